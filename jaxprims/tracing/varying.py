"""Inside ``shard_map``: the mesh axes over which an array varies; and those over which its type says that it is sharded.

A jaxpr is typed with them, so a function is traced for the axes of everything that it will meet, and is run on arrays that vary
over all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

Axes = frozenset[str]


def axes_of(xs: Iterable[Any]) -> Axes:
    """The axes over which any of these arrays or avals varies."""
    types = [getattr(jax.typeof(x) if hasattr(x, "aval") else x, "manual_axis_type", None) for x in xs]
    return frozenset().union(*(t.varying for t in types if t is not None))


def vary(x: Any, axes: Axes) -> Any:
    """The array, made to vary over ``axes`` too."""
    missing = tuple(sorted(axes - axes_of([x])))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def element_aval(shape: Sequence[int], dtype: Any, axes: Axes) -> Any:
    """What a function is traced for."""
    return jax.typeof(vary(jnp.zeros(shape, dtype), axes)) if axes else jax.ShapeDtypeStruct(shape, dtype)


def sharded_axes(x: Any) -> list[int]:
    """The array's axes that are sharded over explicit axes of a mesh."""
    return [k for k, names in enumerate(jax.typeof(x).sharding.spec) if names is not None]


def placed(arrays: Iterable[Any]) -> bool:
    """Has an axis of theirs a place on a mesh with explicit axes? No bins have one."""
    return any(map(sharded_axes, arrays))
