"""The generalized histogram by segmented reduction (paper 1, Listing 4; paper 2): of sorted indices, or after a sort by index.

Each bin's values are combined in their order, so the bits are the same on every run, where atomics come in any order. GPUs do so
for sorted indices, and where a call is ``deterministic``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ..frontend.operator import identity_leaves
from . import hist_xla
from .group import group

if TYPE_CHECKING:
    from .hist import Hist, Part


def histograms(hist: Hist, *operands: Any) -> list[Any]:
    """Every part of a call, unbatched."""
    arrays, captured, per_operator, dests = hist.split(operands)
    results = hist.elements(arrays, captured)
    out: list[Any] = []
    for part, consts, dest in zip(hist.parts, per_operator, dests, strict=True):
        index, values = hist.pairs(part, results)
        out += _one(part, hist.sorted, consts, index, values, dest)
    return out


def _one(part: Part, is_sorted: bool, consts: list[Any], index: Any, values: list[Any], dest: list[Any] | None) -> list[Any]:
    from .._offsets import Offsets
    from .._reduce import segment_reduce

    def combine(a: Any, b: Any) -> tuple[Any, ...]:
        return tuple(part.operator.traced(consts, *a, *b))

    if part.operator.identity is None:
        return hist_xla.reduce_by_index(index, values, part.num_bins, combine, None, dest)
    segments = index
    if not is_sorted:
        order, offsets = group(_signed(index, part.num_bins), part.num_bins)
        values, segments = [v[order] for v in values], Offsets(offsets)
    identity = tuple(identity_leaves(part.operator))
    count = None if isinstance(segments, Offsets) else part.num_bins
    sums = segment_reduce(tuple(values), segments, combine, num_segments=count, identity=identity)
    return list(sums if dest is None else jax.vmap(combine)(tuple(dest), sums))


def _signed(index: Any, num_bins: int) -> Any:
    """Indices as s32 or s64; those outside the bins negative."""
    wide = index.dtype.itemsize > 4 and num_bins > 2**31 - 1
    last = min(num_bins - 1, int(jnp.iinfo(index.dtype).max))
    inside = (index >= 0) & (index <= last)
    return jnp.where(inside, index.astype(jnp.int64 if wide else jnp.int32), -1)
