"""``segments_p``: the segmented reduction as a jax primitive (Martín et al. 2012), in order. Segments are given by row pointers
(``call.segmented_by`` "offsets", ``[*batch, num_segments + 1]``, ascending; elements outside all of them are dropped, pointers
outside [0, N] are taken as the nearest of these) or by the elements' ascending ids ("ids", ``[*batch, N]``; those outside
[0, num_segments) are dropped), both s32 or s64. Other operands: see ``call``.

Results: the leaves ``[*batch, num_segments, *inner, *element]``. Segments without elements hold the identity; anything, if the
operator's is not known.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.interpreters import batching

from ...targets import ffi
from ...targets.plans import AnyKernel
from ...targets.registry import register_family
from ...tracing.varying import axes_of, vary
from ..batches import new_primitive
from ..histogram import xla as histogram_xla
from ..histogram.primitive import by_index
from ..tangents import add
from . import scan_xla
from .call import OrderedCall, simple
from .family import OrderedFamily
from .reduce import neutral_leaves
from .scan import batch_rule, bind, result_avals, scan_p

segments_p = new_primitive("segment_reduce_any_operator")


@segments_p.def_abstract_eval
def _abstract_eval(*avals: Any, call: OrderedCall, masks: tuple[int, ...], rank: int) -> list[Any]:
    return result_avals(avals, call, masks, rank, (call.num_segments,))


batching.primitive_batchers[segments_p] = batch_rule(segments_p, 1)


class SegmentedReductions(OrderedFamily):
    """Segmented reductions."""

    undivided = AnyKernel()

    def operation(self, **params: Any) -> str | None:
        """``leaves``: one for each."""
        operator = params["call"].operator
        if not all(histogram_xla.scatters(*leaf) for leaf in zip(operator.leaf_names, operator.dtypes, strict=True)):
            return None
        return operator.name if len(operator.dtypes) == 1 else "leaves"

    def plain_one(self, *operands: Any, **params: Any) -> list[Any]:
        call: OrderedCall = params["call"]
        arrays, cut, captured, consts, _ = call.split(operands)
        values = call.values(arrays, captured)
        ids = cut if call.segmented_by == "ids" else scan_xla.ids_of(cut, values[0].shape[0])
        neutral = neutral_leaves(call, values)
        if self.operation(**params) is not None:
            leaves = zip(values, neutral, call.operator.leaf_names, strict=True)
            return [histogram_xla.scatter(ids, v, start, call.num_segments, name or "") for v, start, name in leaves]
        return scan_xla.segment_reduce(call.combine(consts, 1 + call.inner_rank), values, ids, call.num_segments, neutral)


def ids_of(offsets: Any, n: Any, dtype: Any = None) -> Any:
    """As :func:`scan_xla.ids_of`, by kernels: as many steps at an element as segments start there, and their sums. ``dtype``: the
    offsets' own if none is given."""
    starts = jnp.clip(offsets, 0, n)
    dtype = starts.dtype if dtype is None else dtype
    if isinstance(n, int):
        steps = by_index(starts, [jnp.ones(starts.shape, dtype)], [jnp.add], n)[0]
    else:  # bins have a number
        steps = vary(jnp.zeros(n, dtype), axes_of([starts])).at[starts].add(1, mode="drop")
    return bind(scan_p, simple("scan", add, steps.dtype), [steps])[0] - 1


register_family(SegmentedReductions("segments", "segmented reduction", segments_p, ffi.SEGMENTS))
