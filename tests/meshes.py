"""Meshes of forced host devices, and what must not be moved between them."""

from __future__ import annotations

import math
import re
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType


def mesh(*sizes: int, explicit: bool = False) -> jax.sharding.Mesh:
    """Skips where there are fewer devices, of which CPUs have as many as are wanted."""
    if jax.default_backend() != "cpu" and math.prod(sizes) > len(jax.devices()):
        pytest.skip(f"of {math.prod(sizes)} devices, and there are {len(jax.devices())}")
    kind = AxisType.Explicit if explicit else AxisType.Auto
    return jax.make_mesh(sizes, ("x", "y")[: len(sizes)], axis_types=(kind,) * len(sizes))


def assert_no_communication(compiled: Any) -> None:
    text = compiled.as_text()
    for op in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert op not in text, text


def moved(compiled: Any) -> int:
    """Numbers in the largest array that a collective makes."""
    found = re.findall(
        r"= \(?\w+\[([\d,]*)\]\S* (?:all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)", compiled.as_text()
    )
    return max([int(np.prod([int(d) for d in dims.split(",") if d])) for dims in found], default=0)
