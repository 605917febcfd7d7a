"""``race_factor``: how sparsely a histogram is hit."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..arguments.types import PyTree
from .genhist import reduce_by_index
from .group_by_index import _index_array

SAMPLES = 8
"""Groups of elements that :func:`race_factor` looks at."""


def race_factor(indices: PyTree, num_bins: int) -> jax.Array:
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

    Source: Henriksen et al. 2020, III-D.

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
