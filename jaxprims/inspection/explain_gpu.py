"""``explain`` for NVIDIA GPUs: plans in words, from the functions that the launcher plans with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .. import _cuda
from ..primitives.histogram_call import HistogramCall, elements_of
from ..primitives.ordered_call import OrderedCall, sizes_of
from ..specs.histogram import HistogramSpec
from ..specs.ordered import OrderedSpec
from ..targets.cuda import compiler as cuda_compiler
from ..targets.cuda import devices as gpu_devices
from ..targets.cuda import histogram_source as cuda_hist_source
from ..targets.registry import CUDA

SPACES = (
    "shared memory, several histograms to a block",
    "shared memory",
    "shared memory of a cluster of blocks",
    "global memory",
)
"""Where subhistograms lie, as the launcher numbers it (``cuda/hist_choice.h``)."""

REASONS = (
    "the histograms are tiny and many",
    "a block's subhistograms fit its shared memory in few passes",
    "the bins fit the shared memory of a few blocks together",
    "shared memory would take too many passes, or no identity is known",
)


def _sentence(numbers: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in numbers if not name.endswith("workspace bytes"))


def hist_words(
    call: HistogramCall, spec: HistogramSpec, avals: Sequence[Any], masks: Sequence[int], batch: Sequence[Any], target: str
) -> tuple[str, str, int]:
    """(strategy, reason, workspace in bytes) of a histogram."""
    if CUDA.sorts(call.sorted, call.deterministic):
        why = "the indices are sorted" if call.sorted else "the same bits are wanted on every run"
        return "a segmented reduction" + ("" if call.sorted else " of the elements, sorted by index"), why, 0
    n, members = elements_of(call, avals, masks), math.prod(batch)
    if not isinstance(n, int) or not isinstance(members, int):
        return "chosen when the call runs", "sizes are not known yet", 0
    device, arch = gpu_devices.device_of(target), int(target.removeprefix("sm_"))
    bins = [p.num_bins for p in call.parts]
    numbers = dict(_cuda.explain_hist(cuda_compiler.described(spec, arch), device, n, bins, members, list(call.plan)))
    space = numbers.pop("space")
    return f"{SPACES[space]}; {_sentence(list(numbers.items()))}", REASONS[space], _bytes("call", spec, batch, n, bins)


def ordered_words(
    call: OrderedCall, spec: OrderedSpec, avals: Sequence[Any], masks: Sequence[int], rank: int, target: str
) -> tuple[str, str, int]:
    """(strategy, reason, workspace in bytes) of a scan, a reduction or a segmented reduction."""
    sizes = sizes_of(call, spec, avals, masks, rank)
    if sizes is None:
        return "chosen when the call runs", "sizes are not known yet", 0
    n, rows, lanes = sizes
    described = cuda_compiler.described(spec, int(target.removeprefix("sm_")))
    segments = (call.cut == "ids", call.num_segments) if call.kind == "segments" else ()
    explained = getattr(_cuda, f"explain_{call.kind}")
    numbers = explained(described, gpu_devices.device_of(target), n, lanes, rows, *segments, list(call.plan))
    along = "vectors run across the elements that lie side by side" if spec.across else "threads share a row"
    how = {"scan": "single pass with look-back", "reduce": "in one pass", "segments": "balanced by elements"}[call.kind]
    return f"{how}; {_sentence(numbers)}", along, _bytes(call.kind, spec, (rows,), n, lanes, *segments[1:])


def _bytes(family: str, spec: HistogramSpec | OrderedSpec, batch: Sequence[Any], *sizes: Any) -> int:
    workspace = CUDA.workspace(family, spec, batch, *sizes)
    return 0 if workspace is None else math.prod(workspace.shape)


def classes(spec: HistogramSpec, target: str) -> list[str]:
    """Each part's atomic class."""
    return [cuda_hist_source.atomic_of(b, int(target.removeprefix("sm_"))) for b in spec.bins]
