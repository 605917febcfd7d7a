"""Segment reductions that are often asked for beside ``jax.ops``': count, mean, variance, logsumexp, softmax, argmax and argmin.

All are made of :func:`reduce_by_index` and :func:`genhist` with the segments as bins, or, where ids are sorted or given as
offsets, of :func:`segment_reduce`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..api.genhist import genhist, reduce_by_index
from ..api.scan import scan
from ..api.segment_reduce import segment_reduce
from ..arguments.bins import Bins
from ..arguments.monoid import Monoid
from ..arguments.monoids import monoids
from ..arguments.offsets import Offsets
from ..arguments.positions import positions
from ..arguments.promises import promised_ascending
from ..arguments.types import ArrayLike, Mode
from ..calls.segments import segments_pay
from ..primitives.reduce_ad import gather
from ..primitives.row_maps import made_rows, rows_pay
from ..tracing.jaxprs import EARLY
from ..tracing.varying import beside, of_rows, placed
from .ops_segment import check_count, largest, mode_of, over_columns

__all__ = [
    "segment_argmax", "segment_argmin", "segment_count", "segment_logsumexp", "segment_mean", "segment_softmax", "segment_var",
]  # fmt: skip


ONE = np.ones((), np.int32)


def segment_count(
    segment_ids: ArrayLike | Offsets, num_segments: int | None = None, indices_are_sorted: bool = False, mode: Mode = None
) -> jax.Array:
    """The number of elements of each segment.

    Args:
      segment_ids, num_segments, indices_are_sorted, mode: as for :func:`segment_sum`. Or :class:`Offsets` for the ids: they know
        no number of elements, so none is taken for out of range.

    Returns:
      int32 [num_segments].

    Raises:
      TypeError, ValueError: an argument of the wrong dtype or shape.

    Cost: O(N + num_segments) work and O(log N) span, one read of the ids; of offsets a subtraction each.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.segment_count(jnp.array([0, 2, 0]), 3)
    Array([2, 0, 1], dtype=int32)
    """
    if isinstance(segment_ids, Offsets):
        if num_segments is not None:
            check_count(num_segments, segment_ids)
        promised_ascending(segment_ids.offsets, "offsets")
        return jnp.maximum(0, jnp.diff(segment_ids.offsets)).astype(np.int32)
    ids = jnp.asarray(segment_ids)
    _, ids, n = checked(ids, ids, num_segments, mode, np.number)
    return _count_of_ids(ids, n, bool(indices_are_sorted))


@functools.partial(jax.jit, static_argnums=(1, 2), inline=EARLY)
def _count_of_ids(ids: jax.Array, n: int, is_sorted: bool) -> jax.Array:
    return _counts(ids, ids.shape[0], n, is_sorted)


def segment_mean(
    data: ArrayLike,
    segment_ids: ArrayLike | Offsets,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    mode: Mode = None,
) -> jax.Array:
    """The mean of the elements of each segment.

    Args:
      data: number [N, ...]. 16-bit floats are summed in float32.
      segment_ids, num_segments, indices_are_sorted, mode: as for :func:`segment_sum`; or :class:`Offsets` for the ids.

    Returns:
      [num_segments, ...] of the dtype of ``jnp.mean(data)``. Empty segments are NaN (0 / 0).

    Raises:
      TypeError, ValueError: an argument of the wrong dtype or shape.

    Cost: O(N + num_segments) work and O(log N) span for each element of the trailing axes, in one pass for data [N].

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.segment_mean(jnp.array([5, 1, 2]), jnp.array([0, 0, 1]), 2)
    Array([3., 2.], dtype=float32)
    """
    data, ids, n = checked(data, segment_ids, num_segments, mode, np.number)
    return over_columns(lambda d: mean(d, ids, n, bool(indices_are_sorted)), data)


@functools.partial(jax.jit, static_argnums=(2, 3, 4), inline=EARLY)
def mean(data: jax.Array, segments: Any, n: int, is_sorted: bool, empty: float = math.nan) -> jax.Array:
    """``empty``: of a segment without elements."""
    dtype = jax.eval_shape(jnp.mean, jax.ShapeDtypeStruct((1,), data.dtype)).dtype
    sums, counts = _sums_and_counts(data, segments, n, is_sorted, _widened(dtype))
    return _over(sums, counts.astype(sums.dtype), empty).astype(dtype)


def _sums_and_counts(data: jax.Array, segments: Any, n: int, is_sorted: bool, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Sums of this dtype, and counts of their rank: of numbers that they are divided by as they are, where these are exact."""
    real, elements = np.dtype(jnp.finfo(dtype).dtype), data.shape[0]
    exact = isinstance(elements, int) and elements < 2 ** (jnp.finfo(real).nmant + 1)
    one = np.ones((), real if exact else np.int32)
    if data.ndim == 1:
        return _combined(lambda x: (x.astype(dtype), one), data, segments, n, monoids.add, is_sorted)
    sums = _combined(None, data.astype(dtype), segments, n, jnp.add, is_sorted)
    return sums, _rows(_counts(segments, elements, n, is_sorted, one), data)


def _over(sums: jax.Array, counts: jax.Array, empty: float) -> jax.Array:
    """Quotients; ``empty`` where the count is not positive. What is made of counts alone, XLA makes before a loop."""
    some = counts > 0
    if math.isnan(empty):
        return sums / jnp.where(some, counts, np.asarray(empty, counts.dtype))
    return jnp.where(some, sums / jnp.where(some, counts, jnp.ones_like(counts)), jnp.asarray(empty, sums.dtype))


def segment_var(
    data: ArrayLike,
    segment_ids: ArrayLike | Offsets,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    mode: Mode = None,
    *,
    ddof: int = 0,
) -> jax.Array:
    """The variance of the elements of each segment: the mean of the squared deviations from its mean.

    Args:
      data: number [N, ...]; of complex numbers the absolute values of the deviations are squared. 16-bit floats are summed in
        float32.
      segment_ids, num_segments, indices_are_sorted, mode: as for :func:`segment_sum`; or :class:`Offsets` for the ids.
      ddof: the sum of squares is divided by the number of elements less this.

    Returns:
      [num_segments, ...] of the dtype of ``jnp.var(data)``. Segments of ``ddof`` elements or fewer are NaN.

    Raises:
      TypeError, ValueError: an argument of the wrong dtype or shape.

    Cost: O(N + num_segments) work and O(log N) span for each element of the trailing axes; two passes (mean, deviations).

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.segment_var(jnp.array([5, 1, 2]), jnp.array([0, 0, 1]), 2)
    Array([4., 0.], dtype=float32)
    """
    data, ids, n = checked(data, segment_ids, num_segments, mode, np.number)
    return over_columns(lambda d: variance(d, ids, n, bool(indices_are_sorted), ddof), data)


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5), inline=EARLY)
def variance(data: jax.Array, segments: Any, n: int, is_sorted: bool, ddof: int, empty: float = math.nan) -> jax.Array:
    """``empty``: of a segment with no more elements than ``ddof``."""
    dtype = jax.eval_shape(jnp.var, jax.ShapeDtypeStruct((1,), data.dtype)).dtype
    data = data.astype(_widened(data.dtype if jnp.issubdtype(data.dtype, np.inexact) else dtype))
    sums, counts = _sums_and_counts(data, segments, n, is_sorted, data.dtype)
    means = sums / jnp.maximum(counts, 1).astype(sums.dtype)  # no NaN, which `jax_debug_nans` would find
    deviations = data - rows_of_segments(means, segments, data)
    squares = jnp.real(deviations * jnp.conj(deviations)) if jnp.iscomplexobj(data) else jnp.square(deviations)
    squared = _combined(None, squares, segments, n, jnp.add, is_sorted)
    return _over(squared, (counts - ddof).astype(squared.dtype), empty).astype(dtype)


def rows_of_segments(values: jax.Array, segments: Any, data: jax.Array) -> jax.Array:
    """Each element's segment's value; 0 for an element of no segment."""
    return gather(_not_empty(values), _ids(segments, data))


def _combined(f: Any, data: Any, segments: Any, n: int, op: Any, is_sorted: bool) -> Any:
    """What f makes of each element, combined by segment; the elements themselves where f is None."""
    if isinstance(segments, Offsets):
        return segment_reduce(data, segments, op, map=f)
    if f is None:
        return reduce_by_index(data, segments, n, op, indices_are_sorted=is_sorted)
    if is_sorted:
        promised_ascending(segments, "segment_ids")
    if is_sorted and segments_pay(segments.shape[0], n, "argmax" if op in (monoids.argmax, monoids.argmin) else "add"):
        return segment_reduce(data, segments, op, num_segments=n, map=f)
    return genhist(lambda i, *x: (i, f(*x)), (segments, *jax.tree.leaves(data)), Bins(n, op))


def _counts(segments: Any, elements: int, n: int, is_sorted: bool, one: np.ndarray = ONE) -> jax.Array:
    if isinstance(segments, Offsets):
        return jnp.maximum(0, jnp.diff(jnp.clip(segments.offsets, 0, elements))).astype(one.dtype)
    return _combined(lambda _: one, segments, segments, n, jnp.add, is_sorted)


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
    data, ids, n = checked(data, segment_ids, num_segments, mode, np.floating)
    return over_columns(lambda d: _logsumexp(d, ids, n, bool(indices_are_sorted)), data)


@functools.partial(jax.jit, static_argnums=(2, 3), inline=EARLY)
def _logsumexp(data: jax.Array, ids: Any, n: int, is_sorted: bool) -> jax.Array:
    if isinstance(ids, Offsets):
        return segment_reduce(data.astype(_widened(data.dtype)), ids, jnp.logaddexp).astype(data.dtype)
    if _is_constant(data, n):
        return jnp.full((n, *data.shape[1:]), -np.inf, data.dtype)
    return _logsumexp_of_ids(data, ids, n, is_sorted)


def _is_constant(data: jax.Array, n: Any) -> bool:
    """Of no elements or for no segments: a constant needs no derivative (JAX gives a ``custom_jvp`` whose result is one a batch
    axis too many, in a scan under ``vmap``)."""
    return n == 0 or 0 in data.shape


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _logsumexp_of_ids(data: jax.Array, ids: jax.Array, n: int, is_sorted: bool) -> jax.Array:
    top = _top(data, ids, n, is_sorted)
    return _level(top, genhist(lambda i, x: (i, _above(top, i, x)), (ids, data), Bins(n, jnp.add, identity=0)))


def _top(data: jax.Array, ids: jax.Array, n: int, is_sorted: bool) -> jax.Array:
    """The maximum of each segment, 0 where it is not finite."""
    top = _combined(None, data, ids, n, jnp.maximum, is_sorted)
    return jnp.where(jnp.isfinite(top), top, 0)


def _above(top: jax.Array, i: Any, x: Any) -> Any:
    """exp(x) over that of its segment's maximum; for an id out of range anything."""
    return jnp.exp((x - _by_segment(top, i)).astype(_widened(x.dtype)))


def _level(top: jax.Array, sums: jax.Array) -> jax.Array:
    return (jnp.log(sums) + top.astype(sums.dtype)).astype(top.dtype)


@_logsumexp_of_ids.defjvp
def _logsumexp_jvp(n: int, is_sorted: bool, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """Of a segment the mean of its elements' tangents, weighed by their terms of the sum, which are made once."""
    data, ids = primals
    top, ids = _top(data, ids, n, is_sorted), beside(ids, data)
    terms = jnp.where(_rows(_inside(ids, n), data), _above(top, ids, data), 0)
    sums = _combined(None, terms, ids, n, jnp.add, is_sorted)
    weighed = _combined(None, terms * tangents[0], ids, n, jnp.add, is_sorted)
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
    data, ids, n = checked(data, segment_ids, num_segments, mode, np.floating)
    return over_columns(lambda d: _softmax(d, ids, n, bool(indices_are_sorted)), data)


@functools.partial(jax.jit, static_argnums=(2, 3), inline=EARLY)
def _softmax(data: jax.Array, segments: Any, n: int, is_sorted: bool) -> jax.Array:
    if _is_constant(data, n):
        return jnp.zeros_like(data)
    return _softmax_of_some(data, segments, n, is_sorted)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _softmax_of_some(data: jax.Array, segments: Any, n: int, is_sorted: bool) -> jax.Array:
    top = _combined(None, data, segments, n, jnp.maximum, is_sorted)
    ids = _ids(segments, data)
    if isinstance(segments, Offsets) or not rows_pay(data.shape) or placed([data, ids]):
        terms = _term((top,), data, ids)
        sums = _combined(None, terms, segments, n, jnp.add, is_sorted)
        return jnp.where(_rows(_inside(ids, n), data), terms / _by_segment(sums, ids), 0)
    sums = genhist(lambda i, x: (i, _term((top,), x, i)), (ids, data), Bins(n, jnp.add))
    return made_rows(_share, (top, sums), (data, ids))


def _term(held: Sequence[Any], x: Any, i: Any) -> Any:
    """exp(x) over that of its segment's maximum; for an id out of range anything."""
    return jnp.exp(x - _by_segment(held[0], i))


def _share(held: Sequence[Any], x: Any, i: Any) -> Any:
    return jnp.where(_inside(i, held[1].shape[0]), _term(held, x, i) / _by_segment(held[1], i), 0)


@_softmax_of_some.defjvp
def _softmax_jvp(n: int, is_sorted: bool, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """Each element's tangent, less its segment's mean of them."""
    shares = _softmax_of_some(*primals, n, is_sorted)
    weighed = shares * tangents[0]
    means = _combined(None, weighed, primals[1], n, jnp.add, is_sorted)
    return shares, weighed - shares * _by_segment(means, _ids(primals[1], shares))


def _by_segment(values: jax.Array, ids: jax.Array) -> jax.Array:
    """The values of these segments; for ids out of range anything."""
    values = _not_empty(values)
    return values.at[ids].get(mode="clip", wrap_negative_indices=False, out_sharding=of_rows(values, ids))


def _inside(ids: jax.Array, n: Any) -> jax.Array:
    """Which are of a segment. Where n is beyond ids' dtype, none is too large."""
    narrow = isinstance(n, int) and n > jnp.iinfo(ids.dtype).max
    return ids >= 0 if narrow else (ids >= 0) & (ids < n)


def _not_empty(values: jax.Array) -> jax.Array:
    """With one more value if there may be none (a symbolic number of them may be 0): nothing could be read."""
    if isinstance(values.shape[0], int) and values.shape[0]:
        return values
    return jnp.concatenate([values, jnp.zeros((1, *values.shape[1:]), values.dtype)])


def _ids(segments: Any, data: jax.Array) -> jax.Array:
    """Each element's segment; -1 before the first, the number of segments behind the last."""
    if not isinstance(segments, Offsets):
        return beside(segments, data)
    elements = data.shape[0]
    starts = jnp.clip(segments.offsets, 0, elements)
    if not isinstance(elements, int):  # symbolic: bins have a number
        return jnp.cumsum(jnp.zeros(elements, np.int32).at[starts].add(1, mode="drop")) - 1
    return beside(scan(reduce_by_index(jnp.ones(starts.shape, np.int32), starts, elements, jnp.add)) - 1, data)


def _positions_of(name: str, what: str, op: Monoid, example: str) -> Callable[..., jax.Array]:
    def segment_arg(
        data: Any, segment_ids: Any, num_segments: int | None = None, indices_are_sorted: bool = False, mode: Any = None
    ) -> jax.Array:
        data, segments, n = checked(data, segment_ids, num_segments, mode, np.generic)
        return _arg(data, segments, n, op, bool(indices_are_sorted))

    segment_arg.__name__ = segment_arg.__qualname__ = f"segment_{name}"
    segment_arg.__doc__ = f"""The position of the first {what} element of each segment.

    Args:
      data: real [N, ...]. As in ``jax.numpy``, the first NaN wins.
      segment_ids, num_segments, indices_are_sorted, mode: as for :func:`segment_sum`; or :class:`Offsets` for the ids.

    Returns:
      int32 [num_segments, ...] (int64 with ``jax_enable_x64``), positions along axis 0 of ``data``. Empty segments have N,
      which ``data.at[...].get(mode="fill")`` takes as out of range.

    Raises:
      TypeError, ValueError: an argument of the wrong dtype or shape.

    Cost: O(N + num_segments) work and O(log N) span for each element of the trailing axes, in one pass.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.segment_{name}(jnp.array([5, 1, 2, 5]), jnp.array([0, 0, 2, 0]), 3)
    Array({example}, dtype=int32)
    """
    return segment_arg


segment_argmax = _positions_of("argmax", "greatest", monoids.argmax, "[0, 4, 2]")
segment_argmin = _positions_of("argmin", "least", monoids.argmin, "[1, 4, 2]")


@functools.partial(jax.jit, static_argnums=(2, 3, 4), inline=EARLY)
def _arg(data: jax.Array, segments: Any, n: int, op: Monoid, is_sorted: bool) -> jax.Array:
    def of_column(column: jax.Array) -> jax.Array:
        at = _combined(lambda x, k: (x, k), (column, positions), segments, n, op, is_sorted)[1]
        return jnp.where(at == jnp.iinfo(at.dtype).max, column.shape[0], at).astype(jnp.result_type(int))

    data = jax.lax.stop_gradient(data.astype(np.uint8) if data.dtype == bool else data)
    return over_columns(of_column, data, always=True)


def checked(data: Any, segment_ids: Any, num_segments: Any, mode: Any, kind: type) -> tuple[jax.Array, Any, int]:
    """The arguments as arrays, the ids clipped if the mode says so. ``kind``: what the dtype must be, integers converted."""
    offsets = isinstance(segment_ids, Offsets)
    data, ids = jnp.asarray(data), segment_ids if offsets else jnp.asarray(segment_ids)
    if not offsets and not jnp.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"segment_ids must be integers, got dtype {ids.dtype}")
    if not offsets and (ids.ndim != 1 or data.shape[:1] != ids.shape):
        raise ValueError(f"data must be [N, ...] and segment_ids [N], got shapes {data.shape} and {ids.shape}")
    if data.ndim == 0:
        raise ValueError("data must be [N, ...], got a scalar")
    if kind is np.floating and (data.dtype == bool or jnp.issubdtype(data.dtype, np.integer)):
        data = data.astype(jax.eval_shape(jnp.exp, jax.ShapeDtypeStruct((), data.dtype)).dtype)
    real = kind in (np.floating, np.generic)
    if jnp.issubdtype(data.dtype, np.complexfloating) and real:
        raise TypeError(f"data must be real, got dtype {data.dtype}")
    if offsets:
        n = ids.offsets.shape[0] - 1
        if num_segments is not None:
            check_count(num_segments, ids)
        narrow = np.dtype(ids.offsets.dtype).itemsize < 4  # the number of elements may be beyond it
        return data, Offsets(ids.offsets.astype(np.int32)) if narrow else ids, n
    if num_segments is None and isinstance(ids, jax.core.Tracer):
        jax.ops.segment_sum(data, ids)  # raises JAX's error for a traced num_segments
    n = largest(ids) + 1 if num_segments is None else operator.index(num_segments)
    if n < 0:
        raise ValueError(f"num_segments must not be negative, got {n}")
    return data, _clipped(ids, n, mode), n


def _clipped(ids: jax.Array, n: int, mode: Any) -> jax.Array:
    return jnp.clip(ids, 0, min(max(n - 1, 0), jnp.iinfo(ids.dtype).max)) if mode_of(mode) == "clip" else ids


def _widened(dtype: Any) -> Any:
    """What halves are summed in: f32; another inexact dtype as it is."""
    return np.float32 if jnp.finfo(dtype).bits < 32 else dtype


def _rows(a: jax.Array, like: jax.Array) -> jax.Array:
    """[N] with axes of 1 appended, to broadcast to ``like``."""
    return a.reshape(a.shape + (1,) * (like.ndim - 1))
