"""``segments_p``: the segmented reduction as a jax primitive (paper 2), in order. Segments are given by row pointers
(``fold.cut`` "offsets", ``[*batch, num_segments + 1]``, ascending; elements outside all of them are dropped, pointers outside
[0, N] are taken as the nearest of these) or by the elements' ascending ids ("ids", ``[*batch, N]``; those outside
[0, num_segments) are dropped), both s32 or s64. Other operands: see ``fold``.

Results: the leaves ``[*batch, num_segments, *inner, *element]``. Segments without elements hold the identity; anything, if the
operator's is not known.
"""

from __future__ import annotations

import functools
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import batching, mlir, xla

from ..runtime import ffi
from . import hist_xla, scan_xla
from .batches import over_batch
from .fold import Fold
from .reduce import neutral_leaves
from .scan import batch_rule, register_kernels, result_avals

segments_p = Primitive("segment_reduce_any_operator")
segments_p.multiple_results = True
segments_p.def_impl(functools.partial(xla.apply_primitive, segments_p))


@segments_p.def_abstract_eval
def _abstract_eval(*avals: Any, fold: Fold, masks: tuple[int, ...], rank: int) -> list[Any]:
    return result_avals(avals, fold, masks, rank, (fold.num_segments,))


batching.primitive_batchers[segments_p] = batch_rule(segments_p, 1)


def _plain_one(fold: Fold, *operands: Any) -> list[Any]:
    arrays, cut, captured, consts, _ = fold.split(operands)
    values = fold.values(arrays, captured)
    ids = cut if fold.cut == "ids" else scan_xla.ids_of(cut, values[0].shape[0])
    neutral, name = neutral_leaves(fold, values), fold.operator.name
    if name in hist_xla.SCATTERS and len(values) == 1 and values[0].dtype.kind != "c":
        return [hist_xla.scatter(ids, values[0], fold.num_segments, name, neutral, None)]
    return scan_xla.segment_reduce(fold.combine(consts, 1 + fold.inner_rank), values, ids, fold.num_segments, neutral)


def _plain(*operands: Any, fold: Fold, masks: tuple[int, ...], rank: int) -> list[Any]:
    return over_batch(functools.partial(_plain_one, fold), masks, rank)(*operands)


mlir.register_lowering(segments_p, mlir.lower_fun(_plain, multiple_results=True))
register_kernels(segments_p, ffi.SEGMENTS, "segments")
