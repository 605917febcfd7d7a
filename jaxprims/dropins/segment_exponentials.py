"""Segment reductions of exponentials, relative to each segment's maximum: logsumexp and softmax."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..api.genhist import genhist
from ..api.segment_reduce import segment_reduce
from ..arguments.bins import Bins
from ..arguments.offsets import Offsets
from ..arguments.types import ArrayLike, Mode
from ..primitives.histogram.row_maps import made_rows, rows_pay
from ..primitives.ordered.scan_xla import inside, like
from ..tracing.jaxprs import EARLY
from ..tracing.varying import beside, placed
from .segments import by_columns, by_segment, combined, ids_of, widened

__all__ = ["segment_logsumexp", "segment_softmax"]


def segment_logsumexp(
    data: ArrayLike,
    segment_ids: ArrayLike | Offsets,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    mode: Mode = None,
) -> jax.Array:
    """``log(sum(exp(data)))`` over each segment, without overflow.

    Args:
      data: real [N, ...].
      segment_ids, num_segments, indices_are_sorted, mode: as for :func:`segment_sum`; or :class:`Offsets` for the ids.

    Returns:
      [num_segments, ...], float. Empty segments are -inf.

    Raises:
      TypeError, ValueError: an argument of the wrong dtype or shape.

    Cost: O(N + num_segments) work and O(log N) span for each element of the trailing axes; two passes (maximum, sum),
      one for offsets.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.segment_logsumexp(jnp.array([1000.0, 1000.0, 3.0]), jnp.array([0, 0, 1]), 2)
    Array([1000.6932,    3.    ], dtype=float32)
    """
    return by_columns(_logsumexp, data, segment_ids, num_segments, indices_are_sorted, mode, np.floating)


@functools.partial(jax.jit, static_argnums=(2, 3), inline=EARLY)
def _logsumexp(data: jax.Array, ids: Any, n: int, is_sorted: bool) -> jax.Array:
    if isinstance(ids, Offsets):
        return segment_reduce(data.astype(widened(data.dtype)), ids, jnp.logaddexp).astype(data.dtype)
    if _is_constant(data, n):
        return jnp.full((n, *data.shape[1:]), -np.inf, data.dtype)
    return _logsumexp_of_ids(data, ids, n, is_sorted)


def _is_constant(data: jax.Array, n: Any) -> bool:
    """Of no elements or for no segments: a constant needs no derivative (JAX gives a ``custom_jvp`` whose result is one a batch
    axis too many, in a scan under ``vmap``)."""
    return n == 0 or 0 in data.shape


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _logsumexp_of_ids(data: jax.Array, ids: jax.Array, n: int, is_sorted: bool) -> jax.Array:
    top = _top(data, ids, n, is_sorted)  # not one histogram by logaddexp: maxima and sums are all-reduced over devices
    return _level(top, genhist(lambda i, x: (i, _above(top, i, x)), (ids, data), Bins(n, jnp.add, identity=0)))


def _terms(top: jax.Array, ids: jax.Array, data: jax.Array, n: int) -> jax.Array:
    """Of the sum, all of them."""
    return jnp.where(like(inside(ids, n), data), _above(top, ids, data), 0)


def _top(data: jax.Array, ids: jax.Array, n: int, is_sorted: bool) -> jax.Array:
    """The maximum of each segment, 0 where it is not finite."""
    top = combined(None, data, ids, n, jnp.maximum, is_sorted)
    return jnp.where(jnp.isfinite(top), top, 0)


def _above(top: jax.Array, i: Any, x: Any) -> Any:
    """exp(x) over that of its segment's maximum; for an id out of range anything."""
    return jnp.exp((x - by_segment(top, i)).astype(widened(x.dtype)))


def _level(top: jax.Array, sums: jax.Array) -> jax.Array:
    return (jnp.log(sums) + top.astype(sums.dtype)).astype(top.dtype)


@_logsumexp_of_ids.defjvp
def _logsumexp_jvp(n: int, is_sorted: bool, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """Of a segment the mean of its elements' tangents, weighed by their terms of the sum, which are made once."""
    data, ids = primals
    top, ids = _top(data, ids, n, is_sorted), beside(ids, data)
    terms = _terms(top, ids, data, n)
    sums = combined(None, terms, ids, n, jnp.add, is_sorted)
    weighed = combined(None, terms * tangents[0], ids, n, jnp.add, is_sorted)
    return _level(top, sums), (weighed / jnp.where(sums == 0, 1, sums)).astype(data.dtype)


def segment_softmax(
    data: ArrayLike,
    segment_ids: ArrayLike | Offsets,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    mode: Mode = None,
) -> jax.Array:
    """:func:`jax.nn.softmax` within each segment.

    Args:
      data: real [N, ...].
      segment_ids, num_segments, indices_are_sorted, mode: as for :func:`segment_sum`; or :class:`Offsets` for the ids.

    Returns:
      [N, ...], float: each element's ``exp(data)`` over the sum of those of its segment; 0 for an element of no segment.

    Raises:
      TypeError, ValueError: an argument of the wrong dtype or shape.

    Cost: O(N + num_segments) work and O(log N) span for each element of the trailing axes; two passes (maximum, sum) and
    two gathers.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.segment_softmax(jnp.array([1.0, 1.0, 7.0]), jnp.array([0, 0, 1]), 2)
    Array([0.5, 0.5, 1. ], dtype=float32)
    """
    return by_columns(_softmax, data, segment_ids, num_segments, indices_are_sorted, mode, np.floating)


@functools.partial(jax.jit, static_argnums=(2, 3), inline=EARLY)
def _softmax(data: jax.Array, segments: Any, n: int, is_sorted: bool) -> jax.Array:
    if _is_constant(data, n):
        return jnp.zeros_like(data)
    return _softmax_of_some(data, segments, n, is_sorted)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _softmax_of_some(data: jax.Array, segments: Any, n: int, is_sorted: bool) -> jax.Array:
    top = combined(None, data, segments, n, jnp.maximum, is_sorted)
    ids = ids_of(segments, data)
    if isinstance(segments, Offsets) or not rows_pay(data.shape) or placed([data, ids]):
        terms = _term((top,), data, ids)
        sums = combined(None, terms, segments, n, jnp.add, is_sorted)
        return _masked(terms / by_segment(sums, ids), inside(ids, n))
    sums = genhist(lambda i, x: (i, _term((top,), x, i)), (ids, data), Bins(n, jnp.add))
    return made_rows(_share, (top, sums), (data, ids))


def _masked(x: jax.Array, which: jax.Array) -> jax.Array:
    """0 where ``which`` [N] is false, which no derivative goes through: of rows by their bits, as XLA chooses number by number
    where it is a row that is chosen."""
    return jnp.where(which, x, 0) if x.ndim == 1 else _bits_of(x, like(which, x))


def _bits_of(x: jax.Array, which: jax.Array) -> jax.Array:
    """x, and 0 where ``which`` is false."""
    bits = jnp.dtype(f"int{8 * x.dtype.itemsize}")
    return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(x, bits) & -which.astype(bits), x.dtype)


def _term(held: Sequence[Any], x: Any, i: Any) -> Any:
    """exp(x) over that of its segment's maximum; for an id out of range anything."""
    return jnp.exp(x - by_segment(held[0], i))


def _share(held: Sequence[Any], x: Any, i: Any) -> Any:
    return _bits_of(_term(held, x, i) / by_segment(held[1], i), inside(i, held[1].shape[0]))


@_softmax_of_some.defjvp
def _softmax_jvp(n: int, is_sorted: bool, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """Each element's tangent, less its segment's mean of them."""
    shares = _softmax_of_some(*primals, n, is_sorted)
    weighed = shares * tangents[0]
    means = combined(None, weighed, primals[1], n, jnp.add, is_sorted)
    return shares, weighed - shares * by_segment(means, ids_of(primals[1], shares))
