"""Segment reductions: ``jax.ops.segment_*``.

All are :func:`reduce_by_index` with the segments as bins, or, where ids are sorted or given as offsets, :func:`segment_reduce`.
They give the results of ``jax.ops``, those for empty segments and for ids out of range included; what the kernels do not do is
left to ``jax.ops``, so errors are its own.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..api.genhist import reduce_by_index
from ..api.segment_reduce import segment_reduce
from ..arguments.checks import as_array, dtype_of, truth
from ..arguments.offsets import Offsets
from ..calls.segments import count_of
from ..ir.program import dtype_name
from ..tracing.jaxprs import EARLY
from .jnp_histogram import _extent

__all__ = ["segment_max", "segment_min", "segment_prod", "segment_sum"]

_OPS: dict[str, tuple[Callable, Callable, Callable]] = {  # of jax.ops, of a bin, of the buckets
    "sum": (jax.ops.segment_sum, jnp.add, jnp.sum),
    "prod": (jax.ops.segment_prod, jnp.multiply, jnp.prod),
    "max": (jax.ops.segment_max, jnp.maximum, jnp.max),
    "min": (jax.ops.segment_min, jnp.minimum, jnp.min),
}


def _drop_in(name: str, what: str, empty: str, example: str) -> Callable[..., jax.Array]:
    plain = _OPS[name][0]

    def segment(
        data: Any,
        segment_ids: Any,
        num_segments: int | None = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        bucket_size: int | None = None,
        mode: Any = None,
        out_sharding: Any = None,
    ) -> jax.Array:
        ids, n = segment_ids, num_segments
        if isinstance(ids, Offsets):
            return _of_offsets(data, ids, name, n, bucket_size=bucket_size, out_sharding=out_sharding)
        if out_sharding is None and _reducible(data, name in ("sum", "prod")) and _are_ids(ids):
            try:
                n = largest(ids) + 1 if n is None else operator.index(n)
                reduce_mode = mode_of(mode)
            except (TypeError, ValueError):  # traced, or not what they should be
                n = 0
            known = bucket_size is None or isinstance(np.size(ids), int)  # how many buckets
            if n > 0 and known and (bucket_size is None or (bucket_size > 0 and np.ndim(ids) == 1 and np.size(ids) > 0)):
                return _reduce(data, ids, name, n, truth(indices_are_sorted, "indices_are_sorted"), bucket_size, reduce_mode)
        args = (data, ids, num_segments, indices_are_sorted, unique_indices, bucket_size, mode)
        return plain(*args, out_sharding=out_sharding)

    segment.__name__ = segment.__qualname__ = f"segment_{name}"
    segment.__doc__ = f"""The {what} of the elements of each segment, like :func:`jax.ops.segment_{name}`.

    Args:
      data: number [N, ...]; more generally of a shape that broadcasts to ``segment_ids.shape + data.shape[1:]``.
      segment_ids: int [N], in any order. Ids outside [0, num_segments), negative ones included, are dropped. Or
        :class:`Offsets`, which ``jax.ops`` does not take: segments of neighbours.
      num_segments: default the largest id + 1, which must then be concrete.
      indices_are_sorted: promises that the ids are sorted.
      unique_indices: accepted, not needed.
      bucket_size: reduce buckets of so many elements first, then the buckets: more accurate, memory for N / bucket_size results.
      mode: a :class:`jax.lax.GatherScatterMode` or its name; "clip" clips ids out of range instead of dropping them.
      out_sharding: as in ``jax.ops``.

    Returns:
      [num_segments, ...] of ``data``'s dtype. Empty segments are {empty}.

    Raises:
      TypeError, ValueError: as ``jax.ops``'.

    Cost: O(N + num_segments) work and O(log N) span for each element of the trailing axes, one read of the arguments.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.segment_{name}(jnp.array([5, 1, 2]), jnp.array([0, 0, 2]), 3)
    Array({example}, dtype=int32)
    """
    return segment


segment_sum = _drop_in("sum", "sum", "0", "[6, 0, 2]")
segment_prod = _drop_in("prod", "product", "1", "[5, 1, 2]")
segment_max = _drop_in("max", "maximum", "-inf, or the least integer", "[          5, -2147483648,           2]")
segment_min = _drop_in("min", "minimum", "inf, or the greatest integer", "[         1, 2147483647,          2]")


@functools.partial(jax.jit, static_argnums=range(2, 7), inline=EARLY)
def _reduce(
    data: jax.Array, ids: jax.Array, name: str, num_segments: int, indices_are_sorted: bool, bucket_size: int | None, mode: str
) -> jax.Array:
    _, op, reduce_buckets = _OPS[name]
    inner = data.shape[1:]
    if ids.size == 0:  # nothing is read, whatever the shape of data is
        data, ids = jnp.zeros((0, *inner), data.dtype), ids.ravel()
    data = jnp.broadcast_to(data, ids.shape + inner).reshape(ids.size, *inner)
    ids = ids.ravel()
    if bucket_size is None:
        by_id = functools.partial(reduce_by_index, mode=mode, indices_are_sorted=indices_are_sorted)
        return over_columns(lambda d: by_id(d, ids, num_segments, op), data)
    buckets = jnp.arange(ids.size) // bucket_size
    shape = (-(-ids.size // bucket_size), num_segments)
    return reduce_buckets(reduce_by_index(data, (buckets, ids), shape, op, mode=mode), axis=0).astype(data.dtype)


def _of_offsets(data: Any, offsets: Offsets, name: str, num_segments: Any, **of_ids: Any) -> jax.Array:
    for option, value in of_ids.items():
        if value is not None:
            raise ValueError(f"{option} is for segment_ids that are ids, got {option}={value!r} with Offsets")
    data = as_array(data, "data")
    if data.dtype == bool and name in ("sum", "prod"):
        raise TypeError(f"data must be numbers, got {data.dtype}")
    if num_segments is not None:
        check_count(num_segments, offsets)
    return _reduce_offsets(data, offsets, name)


@functools.partial(jax.jit, static_argnums=2, inline=EARLY)
def _reduce_offsets(data: jax.Array, offsets: Offsets, name: str) -> jax.Array:
    return over_columns(lambda d: segment_reduce(d, offsets, _OPS[name][1]), data)


def check_count(num_segments: Any, offsets: Offsets) -> None:
    n = offsets.offsets.shape[0] - 1
    if (count_of(num_segments) if isinstance(n, int) else num_segments) != n:
        raise ValueError(f"num_segments={num_segments} contradicts offsets of {n} segments")


def over_columns(fn: Callable[[jax.Array], jax.Array], data: jax.Array, *, always: bool = False) -> jax.Array:
    """``fn`` of [N, ...]: on each column by itself, of [N], if the shape behind N is symbolic, which no bin's can be."""
    inner = data.shape[1:]
    if data.ndim < 2 or (not always and all(isinstance(d, int) for d in inner)):
        return fn(data)
    out = jax.vmap(fn, in_axes=1, out_axes=1)(data.reshape(data.shape[0], math.prod(inner)))
    return out.reshape(out.shape[0], *inner)


def _reducible(data: Any, complex_too: bool) -> bool:
    try:
        dtype = dtype_of(data)
        # jax.ops has no sums and products of booleans
        return complex_too if jnp.issubdtype(dtype, np.complexfloating) else dtype_name(dtype) != "b1" or not complex_too
    except (KeyError, TypeError):
        return False


def _are_ids(ids: Any) -> bool:
    return bool(jnp.issubdtype(dtype_of(ids), np.integer))


def mode_of(mode: Any) -> str:
    clip = jax.lax.GatherScatterMode.CLIP
    return "clip" if jax.lax.GatherScatterMode.from_any(mode) == clip else "drop"


def largest(ids: Any) -> int:
    if np.size(ids) == 0:
        raise ValueError("segment_ids is empty, so num_segments must be given")
    return int(_extent((jnp.ravel(ids),))[0][1])
