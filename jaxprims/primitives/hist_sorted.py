"""The generalized histogram by segmented reduction (paper 1, Listing 4; paper 2): of sorted indices, or after a sort by index.

Each bin's values are combined in their order, so the bits are the same on every run, where atomics come in any order. GPUs do so
for sorted indices, and where a call is ``deterministic``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from ..frontend.operator import identity_leaves
from . import hist_xla

if TYPE_CHECKING:
    from .hist import Hist, Part


def histograms(hist: Hist, *operands: Any) -> list[Any]:
    """Every part of a call, unbatched."""
    out: list[Any] = []
    for part, consts, dest, index, values in hist.unfused(operands):
        out += _one(part, hist.sorted, consts, index, values, dest)
    return out


def _one(part: Part, is_sorted: bool, consts: list[Any], index: Any, values: list[Any], dest: list[Any] | None) -> list[Any]:
    from .._group import group_by_index  # the user's functions are built on this module
    from .._reduce import segment_reduce

    def combine(a: Any, b: Any) -> tuple[Any, ...]:
        return tuple(part.operator.traced(consts, *a, *b))

    if part.operator.identity is None:
        return hist_xla.reduce_by_index(index, values, part.num_bins, combine, None, dest)
    segments = index
    if not is_sorted:
        order, segments = group_by_index(index, part.num_bins)
        values = [v[order] for v in values]
    identity = tuple(identity_leaves(part.operator))
    sums = segment_reduce(tuple(values), segments, combine, num_segments=part.num_bins, identity=identity)
    return list(sums if dest is None else jax.vmap(combine)(tuple(dest), sums))
