"""Abstract values of results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax


def result_aval(like: Any, shape: tuple[int, ...], dtype: Any, axes: Sequence[int | None]) -> Any:
    """A result's aval, made from an operand's (which carries what ``shard_map`` wants to know). Where a mesh has explicit axes,
    the result's leading axes are sharded as these of the operand's, if their sizes allow; no other is sharded."""
    sharding = like.sharding
    if getattr(sharding, "mesh", None) is None or sharding.mesh.empty:
        return like.update(shape=shape, dtype=dtype, weak_type=False)

    def names(n: Any, a: int | None) -> Any:
        found = None if a is None else sharding.spec[a]
        every = found if isinstance(found, tuple) else (found,) if found else ()
        parts = math.prod(sharding.mesh.shape[name] for name in every)
        return found if isinstance(n, int) and n % parts == 0 else None

    spec = (*map(names, shape, axes), *(None,) * (len(shape) - len(axes)))
    return like.update(
        shape=shape, dtype=dtype, weak_type=False, sharding=sharding.update(spec=jax.sharding.PartitionSpec(*spec))
    )


def typed(x: Any, aval: Any) -> Any:
    """With the aval's dtype, and weakly typed if it is."""
    if x.dtype == aval.dtype and jax.typeof(x).weak_type == aval.weak_type:
        return x
    return lax.convert_element_type_p.bind(x, new_dtype=aval.dtype, weak_type=aval.weak_type, sharding=None)
