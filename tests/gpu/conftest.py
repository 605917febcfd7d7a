"""Tests on a GPU. They are skipped where there is none; with JAXPRIMS_REQUIRE_GPU=1 they fail there.

JAX_PLATFORMS=cuda,cpu runs the tests of the folder above on the GPU as well; those marked ``cpu`` say nothing there.
"""

from __future__ import annotations

import os

import jax
import pytest


def why_not() -> str:
    """Why nothing can run on a GPU here; empty if it can."""
    if os.environ.get("JAXPRIMS_CUDA_DRIVER"):
        return ""  # an emulated one
    try:
        jax.devices("gpu")
    except RuntimeError as error:
        return f"no GPU: {str(error).splitlines()[0]}"
    return "" if jax.default_backend() == "gpu" else f"JAX runs on {jax.default_backend()!r} (JAX_PLATFORMS)"


@pytest.fixture
def gpu() -> None:
    """Skips, or fails if a GPU is required, where there is none."""
    if reason := why_not():
        (pytest.fail if os.environ.get("JAXPRIMS_REQUIRE_GPU") == "1" else pytest.skip)(reason)
