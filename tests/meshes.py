"""Meshes of forced host devices, and what must not be moved between them."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AxisType


def mesh(*sizes: int, explicit: bool = False) -> jax.sharding.Mesh:
    kind = AxisType.Explicit if explicit else AxisType.Auto
    return jax.make_mesh(sizes, ("x", "y")[: len(sizes)], axis_types=(kind,) * len(sizes))


def assert_no_communication(compiled: Any) -> None:
    text = compiled.as_text()
    for op in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert op not in text, text
