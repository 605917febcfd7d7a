"""The generalized histogram by segmented reduction, sorted by index if need be (Henriksen et al. 2020, listing 4).

Each bin's values are combined in their order, so the bits are the same on every run, where atomics come in any order. GPUs do so
for sorted indices, and where a call is ``deterministic``.
"""

from __future__ import annotations

from typing import Any

import jax

from ...operators.operator import on_lane, passing
from ..ordered.call import OrderedCall
from ..ordered.scan import bind
from ..ordered.segments import segments_p
from . import xla as histogram_xla
from .call import HistogramCall, Part
from .group import group


def histograms(call: HistogramCall, *operands: Any) -> list[Any]:
    """Every part of a call, unbatched."""
    out: list[Any] = []
    for part, consts, dest, index, values in call.unfused(operands):
        out += _one(part, call.sorted, consts, index, values, dest)
    return out


def _one(part: Part, is_sorted: bool, consts: list[Any], index: Any, values: list[Any], dest: list[Any] | None) -> list[Any]:
    def combine(a: Any, b: Any) -> tuple[Any, ...]:
        return tuple(part.operator.traced(consts, *a, *b))

    if part.operator.identity is None or values[0].shape[0] == 0:
        return histogram_xla.of_part(part, consts, index, values, dest)
    kind, cut = "ids", index
    if not is_sorted:
        order, cut = group(index, part.num_bins)
        kind, values = "offsets", [v[order] for v in values]
    operator = on_lane(part.operator)
    lanes = values[0].ndim - 1 if part.operator.lanes > 1 else 0
    elements = tuple((v.shape[1 + lanes :], v.dtype) for v in values)
    call = OrderedCall(
        passing(elements),
        (None,) * len(values),
        "segments",
        operator,
        len(consts),
        lanes,
        segmented_by=kind,
        num_segments=part.num_bins,
    )
    sums = bind(segments_p, call, [*values, cut, *consts])
    return sums if dest is None else list(jax.vmap(combine)(tuple(dest), tuple(sums)))
