"""How ``histogram_p`` is lowered: to a kernel, to segmented reductions, or to plain XLA."""

from __future__ import annotations

import functools
from typing import Any

from jax.interpreters import mlir

from ..targets import ffi
from ..targets.cpu import plan_histogram as planning
from ..targets.registry import CPU, CUDA, Target
from . import histogram_by_segments, histogram_xla
from .batches import batch_shape, batched_alike, over_batch
from .histogram import histogram_p
from .histogram_call import HistogramCall, call_spec, elements_of


def _lower(ctx: Any, *operands: Any, call: HistogramCall, masks: tuple[int, ...], rank: int, target: Target) -> Any:
    full = ((1 << rank) - 1,) * len(masks)
    if tuple(masks) != full and getattr(ctx.module_context.axis_context, "num_devices", 1) > 1:
        # XLA's partitioner splits a batch over devices only where every operand has it; the copies are split with it.
        alike = functools.partial(batched_alike, masks=masks, rank=rank)
        return mlir.lower_fun(lambda *xs: histogram_p.bind(*alike(xs), call=call, masks=full, rank=rank))(ctx, *operands)
    if target.sorts(call.sorted, call.deterministic):
        by_segments = over_batch(functools.partial(histogram_by_segments.histograms, call), masks, rank)
        return mlir.lower_fun(by_segments, multiple_results=True)(ctx, *operands)
    spec = call_spec(call, ctx.avals_in, masks, target)
    n = elements_of(call, ctx.avals_in, masks)
    batch = batch_shape(ctx.avals_in, masks, rank)
    bins = [p.num_bins for p in call.parts]

    def variant() -> int:
        known = all(isinstance(size, int) for size in (n, *batch))
        return planning.plan_of(spec, n, bins, batch, call.sorted, call.plan).variant if known else -1

    target.compile(spec, variant)
    sorted_indices = -1
    if call.sorted and spec.arrays[0].dtype == spec.index:
        sorted_indices = (1 << 16) if spec.index == "s64" else 0
    workspace = target.workspace("call", spec, batch, n, bins)
    return ffi.lower_call(
        ctx,
        ffi.HIST,
        operands,
        spec,
        masks,
        rank,
        call.plan,
        workspace,
        elements_of=call.positions.index(None),
        sorted=sorted_indices,
    )


def _plain(*operands: Any, call: HistogramCall, masks: tuple[int, ...], rank: int) -> list[Any]:
    return over_batch(functools.partial(histogram_xla.histograms, call), masks, rank)(*operands)


mlir.register_lowering(histogram_p, mlir.lower_fun(_plain, multiple_results=True))
for _target in (CPU, CUDA):
    mlir.register_lowering(histogram_p, functools.partial(_lower, target=_target), platform=_target.platform)
