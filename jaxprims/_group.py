"""Grouping by index: the counting sort and the sparsity estimate."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ._bins import as_array, check_index, flat_index, sizes_of
from ._genhist import reduce_by_index
from ._offsets import Offsets
from .primitives.group import group

SAMPLES = 8
"""Groups of elements that :func:`race_factor` looks at."""


def _index_array(indices: Any, num_bins: Any) -> tuple[Any, int]:
    sizes = sizes_of(num_bins)
    if len(sizes) != 1:
        raise ValueError(f"num_bins must be one integer, got {num_bins!r}")
    index = as_array(indices, "indices")
    check_index(index.dtype, "indices")
    if index.ndim != 1:
        raise ValueError(f"indices must have shape [N], got {index.shape}")
    return flat_index((index,), sizes), sizes[0]


def group_by_index(indices: Any, num_bins: int) -> tuple[jax.Array, Offsets]:
    """Stable counting sort by index.

    Args:
      indices: integers ``[N]``; those outside ``[0, num_bins)`` are dropped.
      num_bins: H.

    Returns:
      ``order`` [N], the elements' numbers bin by bin, each bin's in their order, the dropped ones last; and the :class:`Offsets`
      ``[H + 1]`` of the bins in it: bin b holds ``order[offsets[b]:offsets[b + 1]]``. Both int32 (int64 where N passes 2^31).

    Raises:
      TypeError: indices that are not integers. ValueError: a shape that is not [N], a negative or many-dimensional num_bins.

    Cost: work O(N + H · T), span O(N / T + H); memory: the results and at most 32 MB or [H + 1] counters.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> order, bins = jp.group_by_index(jnp.array([1, 0, 1, 7]), 2)
    >>> order.tolist(), bins.offsets.tolist()
    ([1, 0, 2, 3], [0, 1, 3])
    """
    index, h = _index_array(indices, num_bins)
    if not jnp.issubdtype(index.dtype, jnp.signedinteger):
        index = jnp.where(index < h, index, h).astype(jnp.int64)
    order, offsets = group(index, h)
    return order, Offsets(offsets)


def race_factor(indices: Any, num_bins: int) -> jax.Array:
    """The paper's estimate of a histogram's sparsity: on average H / RF bins are hit by H consecutive elements.

    Args:
      indices: integers ``[N]``; those outside ``[0, num_bins)`` are not counted.
      num_bins: H.

    Returns:
      A float32 scalar, at least 1: H divided by the average number of distinct bins in up to 8 sampled groups of min(H, N)
      consecutive elements (in groups shorter than H: the group's length divided by it). Indices uniform over all bins give e /
      (e - 1), about 1.6.

    Raises:
      TypeError: indices that are not integers. ValueError: a shape that is not [N], a negative or many-dimensional num_bins.

    Cost: work O(8 · min(H, N)), whatever N.

    Source: paper 1, section III-D.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> float(jp.race_factor(jnp.arange(1000) % 10 * 100, 1000))
    100.0
    """
    index, h = _index_array(indices, num_bins)
    n = index.shape[0]
    size = min(h, n)
    if size == 0:
        return jnp.ones((), jnp.float32)
    groups = min(SAMPLES, n // size)
    starts = jnp.asarray([(n - size) * k // max(1, groups - 1) for k in range(groups)])
    sampled = jax.vmap(lambda s: jax.lax.dynamic_slice(index, (s,), (size,)))(starts)
    hit = jax.vmap(lambda row: reduce_by_index(jnp.ones(size, jnp.bool_), row, h, jnp.logical_or))(sampled)
    distinct = jnp.sum(hit, dtype=jnp.float32) / groups
    return jnp.maximum(1.0, size / jnp.maximum(distinct, 1.0)).astype(jnp.float32)
