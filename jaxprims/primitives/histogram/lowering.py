"""How ``histogram_p`` is lowered: to a kernel, to segmented reductions, or to plain XLA."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from jax.interpreters import mlir

from ...specs.problems import HistogramProblem
from ...targets import ffi
from ...targets.operations import in_loop, others_make
from ...targets.plans import AnyKernel
from ...targets.registry import register_family
from ...targets.target import Explanation, Target
from .. import divided, producers
from ..batches import batch_shape, over_batch
from ..family import Instead
from ..looking_back import LookingBack
from . import apart as histogram_apart
from . import by_segments as histogram_by_segments
from . import exponentials as histogram_exponentials
from . import xla as histogram_xla
from .call import HistogramCall, call_spec, can_fuse, elements_of
from .primitive import histogram_p


class Histograms(LookingBack):
    """Generalized histograms."""

    undivided = AnyKernel()

    def problem(self, target: Target, avals: Sequence[Any], **params: Any) -> HistogramProblem:
        call, masks, rank = params["call"], params["masks"], params["rank"]
        spec = call_spec(call, avals, masks, target)
        bins = tuple(p.num_bins for p in call.parts)
        batch = batch_shape(avals, masks, rank)
        apart = any(call.of_f(masks)[1])
        return HistogramProblem(spec, batch, call.plans, elements_of(avals, masks), bins, call.sorted, apart)

    def plain_one(self, *operands: Any, **params: Any) -> list[Any]:
        return histogram_xla.histograms(params["call"], *operands)

    def attributes(self, problem: Any, **params: Any) -> dict[str, Any]:
        """``sorted``: the array of sorted indices, + 2^16 if they have 8 bytes; or -1."""
        call: HistogramCall = params["call"]
        ascending = -1
        if call.sorted and problem.spec.arrays[0].dtype == problem.spec.index:
            ascending = (1 << 16) if problem.spec.index == "s64" else 0
        return {"elements_of": call.positions.index(None), "sorted": ascending}

    def operation(self, **params: Any) -> str | None:
        """``mapped``: where f is more than its arguments, or there are several histograms, or updates."""
        call: HistogramCall = params["call"]
        part, results = call.parts[0], call.f.jaxpr.outvars
        plain = len(call.parts) == 1 and call.num_arrays == len(call.positions) and part.updates == 1 and not part.captured
        passes_on = all(
            v in call.f.jaxpr.invars for v in (results[v] for v in (part.index, *part.values)) if not hasattr(v, "val")
        )
        leaves = [leaf for p in call.parts for leaf in zip(p.operator.leaf_names, p.operator.dtypes, strict=True)]
        if not all(histogram_xla.scatters(*leaf) for leaf in leaves):
            return None
        return (part.operator.name or "several") if plain and passes_on else "mapped"

    def instead(self, target: Target, avals: Sequence[Any], in_loop: bool | None = False, **params: Any) -> Instead | None:
        call: HistogramCall = params["call"]
        if not target.writes_rows and call.is_map(elements_of(avals, params["masks"])):
            return Instead(functools.partial(self.plain, **params), "plain XLA", "each element has a bin of its own: a map")
        split = histogram_exponentials.leaf_by_leaf(call)
        n = elements_of(avals, params["masks"])
        if which := histogram_exponentials.of_exponentials(split, n if target.weighs_apart else 0):
            two = over_batch(functools.partial(histogram_exponentials.histograms, split, which), params["masks"], params["rank"])
            return Instead(two, "maxima, then sums of exponentials", "exponentials side by side")
        if not target.sorts(sorted_indices=call.sorted, deterministic=call.deterministic):
            return super().instead(target, avals, in_loop, **params)
        function = over_batch(functools.partial(histogram_by_segments.histograms, call), params["masks"], params["rank"])
        if call.sorted:
            return Instead(function, "a segmented reduction", "the indices are sorted")
        strategy = "a segmented reduction of the elements, sorted by index"
        return Instead(function, strategy, "the same bits are wanted on every run")

    def _look_back(self, ctx: Any, *operands: Any, **params: Any) -> Any:
        if divided.devices_of(ctx) == 1 and in_loop() and (leaves := histogram_apart.groups(params["call"])):
            function = functools.partial(histogram_apart.histograms, params["call"], leaves)
            return mlir.lower_fun(over_batch(function, params["masks"], params["rank"]))(ctx, *operands)
        return super()._look_back(ctx, *operands, **params)

    def is_read_by_xla(self, ctx: Any, operands: Sequence[Any], **params: Any) -> bool:
        shape, is_map = ctx.avals_out[0].shape, params["call"].is_map(elements_of(ctx.avals_in, params["masks"]))
        return is_map and all(isinstance(n, int) for n in shape) and others_make(math.prod(shape))

    def taken(self, ctx: Any, operands: Sequence[Any], **params: Any) -> producers.Taken | None:
        call: HistogramCall = params["call"]
        found = producers.taken(ctx, operands, call, params["masks"], as_they_are=int(call.sorted))
        return found if found is not None and can_fuse(found.call) else None

    def summary(self, problem: Any, explanation: Explanation, **params: Any) -> str:
        call, parts = params["call"], []
        classes = explanation.classes or ("",) * len(call.parts)
        for p, b, kind in zip(call.parts, problem.spec.bins, classes, strict=True):
            words = [kind] * bool(kind) + [f"vectorised over {b.lanes} lanes"] * (b.lanes > 1)
            shown = f" ({', '.join(words)})" if words else ""
            parts.append(f"{problem.n} elements into {p.num_bins} bins; op {p.operator.name or 'unnamed'}{shown}")
        batch = f" (a batch of {' x '.join(map(str, problem.batch))})" if problem.batch else ""
        return "; ".join(parts) + batch


register_family(Histograms("histogram", "generalized histogram", histogram_p, ffi.HISTOGRAM))
