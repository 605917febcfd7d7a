"""``group_by_index``: the counting sort."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..arguments.checks import flat_index, index_array, sizes_of
from ..arguments.offsets import Offsets
from ..arguments.types import PyTree
from ..primitives.histogram.group import group


def _index_array(indices: Any, num_bins: Any) -> tuple[Any, int]:
    sizes = sizes_of(num_bins)
    if len(sizes) != 1:
        raise ValueError(f"num_bins must be one integer, got {num_bins!r}")
    return flat_index((index_array(indices, "indices"),), sizes), sizes[0]


def group_by_index(indices: PyTree, num_bins: int) -> tuple[jax.Array, Offsets]:
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
