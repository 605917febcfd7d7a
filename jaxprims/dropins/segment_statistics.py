"""Segment reductions that are often asked for beside ``jax.ops``': count, mean, variance, argmax and argmin.

All are made of :func:`reduce_by_index` and :func:`genhist` with the segments as bins, or, where ids are sorted or given as
offsets, of :func:`segment_reduce`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.checks import as_array, truth
from ..arguments.monoid import Monoid
from ..arguments.monoids import monoids
from ..arguments.offsets import Offsets
from ..arguments.positions import positions
from ..arguments.promises import promised_ascending
from ..arguments.types import ArrayLike, Mode
from ..primitives.ordered.reduce_ad import gather
from ..primitives.ordered.scan_xla import like
from ..tracing.jaxprs import EARLY
from .ops_segment import check_count, over_columns
from .segments import by_columns, checked, combined, ids_of, not_empty, widened

__all__ = ["segment_argmax", "segment_argmin", "segment_count", "segment_mean", "segment_var"]


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
    ids = as_array(segment_ids, "segment_ids")
    _, ids, n = checked(ids, ids, num_segments, mode, np.number)
    return _count_of_ids(ids, n, truth(indices_are_sorted, "indices_are_sorted"))


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
    return by_columns(mean, data, segment_ids, num_segments, indices_are_sorted, mode, np.number)


@functools.partial(jax.jit, static_argnums=(2, 3, 4), inline=EARLY)
def mean(data: jax.Array, segments: Any, n: int, is_sorted: bool, empty: float = math.nan) -> jax.Array:
    """``empty``: of a segment without elements."""
    dtype = jax.eval_shape(jnp.mean, jax.ShapeDtypeStruct((1,), data.dtype)).dtype
    sums, counts = _sums_and_counts(data, segments, n, is_sorted, widened(dtype))
    return _over(sums, counts.astype(sums.dtype), empty).astype(dtype)


def _sums_and_counts(data: jax.Array, segments: Any, n: int, is_sorted: bool, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Sums of this dtype, and counts of their rank: of numbers that they are divided by as they are, where these are exact."""
    real, elements = np.dtype(jnp.finfo(dtype).dtype), data.shape[0]
    exact = isinstance(elements, int) and elements < 2 ** (jnp.finfo(real).nmant + 1)
    one = np.ones((), real if exact else np.int32)
    if data.ndim == 1:
        return combined(lambda x: (x.astype(dtype), one), data, segments, n, monoids.add, is_sorted)
    sums = combined(None, data.astype(dtype), segments, n, jnp.add, is_sorted)
    return sums, like(_counts(segments, elements, n, is_sorted, one), data)


def _over(sums: jax.Array, counts: jax.Array, empty: float) -> jax.Array:
    """Quotients; ``empty`` where the count is not positive, and no NaN elsewhere, which `jax_debug_nans` would find. What is made
    of counts alone, XLA makes before a loop."""
    some = counts > 0
    if math.isnan(empty):
        return sums / (jnp.maximum(counts, 0) / some.astype(counts.dtype))
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
    of_column = lambda *given: variance(*given, ddof)  # noqa: E731
    return by_columns(of_column, data, segment_ids, num_segments, indices_are_sorted, mode, np.number)


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5), inline=EARLY)
def variance(data: jax.Array, segments: Any, n: int, is_sorted: bool, ddof: int, empty: float = math.nan) -> jax.Array:
    """``empty``: of a segment with no more elements than ``ddof``."""
    dtype = jax.eval_shape(jnp.var, jax.ShapeDtypeStruct((1,), data.dtype)).dtype
    data = data.astype(widened(data.dtype if jnp.issubdtype(data.dtype, np.inexact) else dtype))
    sums, counts = _sums_and_counts(data, segments, n, is_sorted, data.dtype)
    means = sums / jnp.maximum(counts, 1).astype(sums.dtype)  # no NaN, which `jax_debug_nans` would find
    squared = _squared(data, means, segments, n, is_sorted)
    return _over(squared, (counts - ddof).astype(squared.dtype), empty).astype(dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def _squared(data: jax.Array, means: jax.Array, segments: Any, n: int, is_sorted: bool) -> jax.Array:
    """Each segment's sum of squared deviations from its mean."""
    deviations = data - rows_of_segments(means, segments, data)
    squares = jnp.real(deviations * jnp.conj(deviations)) if jnp.iscomplexobj(data) else jnp.square(deviations)
    return combined(None, squares, segments, n, jnp.add, is_sorted)


@_squared.defjvp
def _squared_jvp(n: int, is_sorted: bool, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """The means' tangents add nothing: deviations from a mean sum to 0, whatever the data, so that this is right for further
    derivatives, too."""
    data, means, segments = primals
    moved = 2 * jnp.real(jnp.conj(data - rows_of_segments(means, segments, data)) * tangents[0])
    return _squared(*primals, n, is_sorted), combined(None, moved, segments, n, jnp.add, is_sorted)


def rows_of_segments(values: jax.Array, segments: Any, data: jax.Array) -> jax.Array:
    """Each element's segment's value; 0 for an element of no segment."""
    return gather(not_empty(values), ids_of(segments, data))


def _counts(segments: Any, elements: int, n: int, is_sorted: bool, one: np.ndarray = ONE) -> jax.Array:
    if isinstance(segments, Offsets):
        return jnp.maximum(0, jnp.diff(jnp.clip(segments.offsets, 0, elements))).astype(one.dtype)
    return combined(lambda _: one, segments, segments, n, jnp.add, is_sorted)


def _positions_of(name: str, what: str, op: Monoid, example: str) -> Callable[..., jax.Array]:
    def segment_arg(
        data: Any, segment_ids: Any, num_segments: int | None = None, indices_are_sorted: bool = False, mode: Any = None
    ) -> jax.Array:
        data, segments, n = checked(data, segment_ids, num_segments, mode, np.generic)
        return _arg(data, segments, n, op, truth(indices_are_sorted, "indices_are_sorted"))

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
        at = combined(lambda x, k: (x, k), (column, positions), segments, n, op, is_sorted)[1]
        return jnp.where(at == jnp.iinfo(at.dtype).max, column.shape[0], at).astype(jnp.result_type(int))

    data = jax.lax.stop_gradient(data.astype(np.uint8) if data.dtype == bool else data)
    return over_columns(of_column, data, always=True)
