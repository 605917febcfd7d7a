"""Shared by all tests: how strictly JAX is run."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def strict() -> Iterator[None]:
    """No implicit promotion of dtypes or ranks: neither in the test nor in what the library does with its arguments."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def x64() -> Iterator[None]:
    """64-bit types, for one test."""
    with jax.enable_x64(True):
        yield
