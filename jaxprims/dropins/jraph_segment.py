"""Segment reductions of graph networks, by the names and with the conventions that ``jraph`` gave them: a segment without
elements has a number, not NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..arguments.offsets import Offsets
from ..arguments.types import ArrayLike
from ..primitives.ordered.scan_xla import like
from .ops_segment import segment_max, segment_min
from .segment_exponentials import segment_softmax
from .segment_statistics import mean, rows_of_segments, segment_count, variance
from .segments import by_columns, checked

__all__ = ["partition_softmax", "segment_max_or_constant", "segment_min_or_constant", "segment_normalize", "segment_variance"]


def segment_variance(
    data: ArrayLike,
    segment_ids: ArrayLike | Offsets,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> jax.Array:
    """The variance of the elements of each segment, 0 for segments without any: else :func:`segment_var`.

    Args:
      data: number [N, ...].
      segment_ids, num_segments, indices_are_sorted: as for :func:`segment_sum`; or :class:`Offsets` for the ids.
      unique_indices: accepted, not needed.

    Returns:
      [num_segments, ...] of the dtype of ``jnp.var(data)``.

    Raises:
      TypeError, ValueError: an argument of the wrong dtype or shape.

    Cost: as :func:`segment_var`.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.segment_variance(jnp.array([5, 1, 2]), jnp.array([0, 0, 2]), 3).tolist()
    [4.0, 0.0, 0.0]
    """
    of_column = lambda *given: variance(*given, 0, 0.0)  # noqa: E731
    return by_columns(of_column, data, segment_ids, num_segments, indices_are_sorted, None, jnp.number)


def segment_normalize(
    data: ArrayLike,
    segment_ids: ArrayLike | Offsets,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    eps: ArrayLike = 1e-5,
) -> jax.Array:
    """Each element less its segment's mean, over the square root of its segment's variance.

    Args:
      data: number [N, ...].
      segment_ids, num_segments, indices_are_sorted: as for :func:`segment_sum`; or :class:`Offsets` for the ids.
      unique_indices: accepted, not needed.
      eps: the least variance that is divided by.

    Returns:
      [N, ...], float. Elements of no segment are as they would be in one of mean 0 and variance 0.

    Raises:
      TypeError, ValueError: an argument of the wrong dtype or shape.

    Cost: as :func:`segment_var`, and two gathers.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.segment_normalize(jnp.array([5.0, 1.0, 2.0]), jnp.array([0, 0, 1])).round(3).tolist()
    [1.0, -1.0, 0.0]
    """

    def normalized(d: jax.Array, ids: Any, n: int, is_sorted: bool) -> jax.Array:
        means, variances = mean(d, ids, n, is_sorted, 0.0), variance(d, ids, n, is_sorted, 0, 0.0)
        own, spread = (rows_of_segments(x, ids, d) for x in (means, variances))
        scale = jax.lax.rsqrt(jnp.maximum(spread, jnp.asarray(eps, spread.dtype)))
        return (d.astype(own.dtype) - own) * scale.astype(own.dtype)

    return by_columns(normalized, data, segment_ids, num_segments, indices_are_sorted, None, jnp.number)


def _where_empty(values: jax.Array, data: Any, segments: Any, constant: Any) -> jax.Array:
    data, segments, n = checked(data, segments, values.shape[0], None, jnp.number)
    if isinstance(segments, Offsets):  # what lies beyond the last element is none
        segments = Offsets(jnp.clip(segments.offsets, 0, data.shape[0]))
    return jnp.where(like(segment_count(segments, n) > 0, values), values, jnp.asarray(constant, values.dtype))


def _or_constant(name: str, what: str, plain: Callable[..., jax.Array], example: str) -> Callable[..., jax.Array]:
    def segment(
        data: Any,
        segment_ids: Any,
        num_segments: int | None = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        constant: Any = 0.0,
    ) -> jax.Array:
        out = plain(data, segment_ids, num_segments, indices_are_sorted)
        return _where_empty(out, data, segment_ids, constant)

    segment.__name__ = segment.__qualname__ = name
    segment.__doc__ = f"""The {what} of the elements of each segment, a constant for segments without any.

    Args:
      data: real number [N, ...].
      segment_ids, num_segments, indices_are_sorted: as for :func:`segment_sum`; or :class:`Offsets` for the ids.
      unique_indices: accepted, not needed.
      constant: of a segment without elements.

    Returns:
      [num_segments, ...] of ``data``'s dtype.

    Raises:
      TypeError, ValueError: as ``jax.ops``'.

    Cost: as :func:`{plain.__name__}`, and a count.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.{name}(jnp.array([5.0, 1.0, 2.0]), jnp.array([0, 0, 2]), 3).tolist()
    {example}
    """
    return segment


segment_max_or_constant = _or_constant("segment_max_or_constant", "maximum", segment_max, "[5.0, 0.0, 2.0]")
segment_min_or_constant = _or_constant("segment_min_or_constant", "minimum", segment_min, "[1.0, 0.0, 2.0]")


def partition_softmax(logits: ArrayLike, partitions: ArrayLike, sum_partitions: int | None = None) -> jax.Array:
    """:func:`segment_softmax` of segments that lie one behind the other, given by their lengths.

    Args:
      logits: real [N, ...].
      partitions: int [M], the lengths. What lies behind the last one belongs to no segment.
      sum_partitions: accepted, not needed: it is ``logits.shape[0]``.

    Returns:
      [N, ...], float.

    Raises:
      TypeError, ValueError: an argument of the wrong dtype or shape.

    Cost: as :func:`segment_softmax`.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.partition_softmax(jnp.array([1.0, 1.0, 7.0]), jnp.array([2, 1])).tolist()
    [0.5, 0.5, 1.0]
    """
    lengths = jnp.asarray(partitions)
    if lengths.ndim != 1 or not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise TypeError(f"partitions must be integers [M], got {lengths.dtype}{list(lengths.shape)}")
    return segment_softmax(logits, Offsets(jnp.cumulative_sum(lengths, include_initial=True)))
