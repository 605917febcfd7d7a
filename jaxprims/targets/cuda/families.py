"""Each family on NVIDIA GPUs: its kernels' text, plans, workspaces, explanations."""

from __future__ import annotations

import math
from typing import Any

from ... import _cuda
from ...ir.program import itemsize
from ...specs.described import described_histogram, described_ordered, described_part, described_stencil
from ...specs.histogram import HistogramSpec, PartSpec
from ...specs.ordered import OrderedSpec
from ...specs.problems import HistogramProblem, OrderedProblem, StencilProblem
from ...specs.stencil import StencilSpec
from ..plans import plan_among
from . import compiler, expr, source
from . import histogram_source as histograms
from . import ordered_source as ordered
from . import stencil_source as stencils
from .plans import SPACES, HistogramPlan, ReducePlan, ScanPlan, SegmentsPlan, StencilPlan

ATOMICS = ("HDW", "CAS", "XCG")


class HistogramKind:
    """What the compiler asks of the kind "hist"."""

    source = staticmethod(source.histogram_source)

    def described(self, spec: HistogramSpec, arch: int) -> dict[str, Any]:
        return {
            **described_histogram(spec),
            "in_bytes": sum(itemsize(a.dtype) * a.slots for a in spec.arrays),
            "f_length": expr.length(spec.f),
            "parts": [self._part(b, arch) for b in spec.bins],
        }

    def _part(self, part: PartSpec, arch: int) -> dict[str, Any]:
        return {
            **described_part(part),
            "table_bytes": histograms.entry_bytes(part, arch),
            "atomic": ATOMICS.index(histograms.atomic_of(part, arch)),
            "direct": histograms.is_direct(part, arch),
            "cluster_trips": histograms.cluster_trips(part),
            "slot_bytes": [itemsize(t) for t in part.acc],
        }


class OrderedKind:
    """What the compiler asks of the kinds "scan", "reduce" and "segments"."""

    source = staticmethod(source.ordered_source)

    def described(self, spec: OrderedSpec, arch: int) -> dict[str, Any]:
        return {**described_ordered(spec), "state_bytes": ordered.state_bytes(spec)}


class StencilKind:
    """What the compiler asks of the kind "stencil"."""

    source = staticmethod(source.stencil_source)

    def described(self, spec: StencilSpec, arch: int) -> dict[str, Any]:
        return {
            **described_stencil(spec, 1, stencils.work(spec)),
            "column": stencils.column(spec),
            "resident": stencils.resident(spec),
            "loads": stencils.loads_of_column(spec),
            "alike": stencils.is_alike(spec),
        }


def _known(size: Any) -> int:
    """A size, or -1 where it is a symbol."""
    return size if isinstance(size, int) else -1


class _Family:
    """What the families share. A plan is None where nothing is forced."""

    name: str

    def takes(self, problem: Any) -> bool:
        """Are there kernels for it?"""
        return True

    def forced(self, problem: Any) -> list[int]:
        plan = plan_among(problem.plans, "cuda", self.name)
        return [] if plan is None else list(plan.numbers(problem))

    def classes(self, spec: Any, arch: int) -> tuple[str, ...]:
        return ()


class Histograms(_Family):
    """Histograms on NVIDIA GPUs."""

    name = "histogram"
    REASONS = (
        "the histograms are tiny and many",
        "a block's subhistograms fit its shared memory in few passes",
        "the bins fit the shared memory of a few blocks together",
        "shared memory would take too many passes, or no identity is known",
    )
    WHERE = (
        "shared memory, several histograms to a block",
        "shared memory",
        "shared memory of a cluster of blocks",
        "global memory",
    )

    def plan(self, problem: HistogramProblem, device: _cuda.DeviceInfo) -> HistogramPlan:
        described = compiler.described(problem.spec, 10 * device.major + device.minor)
        numbers = _cuda.explain_histogram(described, device, problem.n, list(problem.bins), problem.members, self.forced(problem))
        named = dict(numbers)
        space = SPACES[named["space"]]
        return HistogramPlan(space, named["M"], named["S"], named["K"], None, named["cluster"], numbers_by_name=tuple(numbers))

    def words(self, problem: HistogramProblem, plan: HistogramPlan) -> tuple[str, str]:
        k = SPACES.index(plan.space or SPACES[0])
        return f"{self.WHERE[k]}; {plan}", self.REASONS[k]

    def workspace(
        self, problem: HistogramProblem, described: dict[str, Any], devices: list[_cuda.DeviceInfo]
    ) -> tuple[int, int, int]:
        sizes = _known(problem.n), list(problem.bins), _known(problem.members)
        return _cuda.histogram_workspace(described, *sizes, devices, self.forced(problem))

    def kernels(self, problem: HistogramProblem, described: dict[str, Any], device: _cuda.DeviceInfo) -> list[str]:
        bins = list(problem.bins)
        return _cuda.kernels_of_histogram(described, device, problem.n, bins, problem.members, self.forced(problem))

    def classes(self, spec: HistogramSpec, arch: int) -> tuple[str, ...]:
        return tuple(histograms.atomic_of(b, arch) for b in spec.bins)


class _Ordered(_Family):
    how: str

    def words(self, problem: OrderedProblem, plan: Any) -> tuple[str, str]:
        across = problem.spec.across
        return f"{self.how}; {plan}", (
            "vectors run across the elements that lie side by side" if across else "threads share a row"
        )

    def kernels(self, problem: OrderedProblem, described: dict[str, Any], device: _cuda.DeviceInfo) -> list[str]:
        sizes, plan = (problem.n, problem.lanes, problem.members, problem.init), self.forced(problem)
        names: dict[str, None] = {}
        for contiguous in {problem.contiguous, True}:  # operands that are shared, in part: either may be
            segments = (problem.ids, problem.num_segments)
            names |= dict.fromkeys(_cuda.kernels_of_ordered(described, device, *sizes, contiguous, *segments, plan))
        return list(names)


class Scans(_Ordered):
    """Scans on NVIDIA GPUs."""

    name, how = "scan", "single pass with look-back"

    def plan(self, problem: OrderedProblem, device: _cuda.DeviceInfo) -> ScanPlan:
        described = compiler.described(problem.spec, 10 * device.major + device.minor)
        numbers = _cuda.explain_scan(described, device, problem.n, problem.lanes, problem.members, self.forced(problem))
        return ScanPlan(numbers_by_name=tuple(numbers))

    def workspace(self, problem: OrderedProblem, described: dict[str, Any], devices: object) -> tuple[int, int, int]:
        return _cuda.scan_workspace(described, _known(problem.n), _known(problem.lanes), _known(problem.members))


class Reductions(_Ordered):
    """Reductions on NVIDIA GPUs."""

    name, how = "reduce", "in one pass"

    def plan(self, problem: OrderedProblem, device: _cuda.DeviceInfo) -> ReducePlan:
        described = compiler.described(problem.spec, 10 * device.major + device.minor)
        numbers = _cuda.explain_reduce(described, device, problem.n, problem.lanes, problem.members, self.forced(problem))
        return ReducePlan(numbers_by_name=tuple(numbers))

    def workspace(self, problem: OrderedProblem, described: dict[str, Any], devices: object) -> tuple[int, int, int]:
        return _cuda.reduce_workspace(described, _known(problem.n), _known(problem.lanes), _known(problem.members))


class Segments(_Ordered):
    """Segmented reductions on NVIDIA GPUs."""

    name, how = "segments", "balanced by elements"

    def plan(self, problem: OrderedProblem, device: _cuda.DeviceInfo) -> SegmentsPlan:
        described = compiler.described(problem.spec, 10 * device.major + device.minor)
        sizes = (problem.n, problem.lanes, problem.members, problem.ids, problem.num_segments)
        return SegmentsPlan(numbers_by_name=tuple(_cuda.explain_segments(described, device, *sizes, self.forced(problem))))

    def workspace(self, problem: OrderedProblem, described: dict[str, Any], devices: object) -> tuple[int, int, int]:
        sizes = map(_known, (problem.n, problem.lanes, problem.num_segments, problem.members))
        return _cuda.segments_workspace(described, *sizes)


class Stencils(_Family):
    """Stencils on NVIDIA GPUs."""

    name = "stencil"

    def takes(self, problem: StencilProblem) -> bool:
        return stencils.takes(problem.spec)

    def plan(self, problem: StencilProblem, device: _cuda.DeviceInfo) -> StencilPlan:
        described = compiler.described(problem.spec, 10 * device.major + device.minor)
        return StencilPlan(numbers_by_name=tuple(_cuda.explain_stencil(described, device, *self._sizes(problem))))

    def words(self, problem: StencilProblem, plan: StencilPlan) -> tuple[str, str]:
        if dict(plan.numbers_by_name)["steps a launch"] > 1:
            return f"several steps in shared memory; {plan}", "what neighbours make twice costs less than passes through memory"
        reason = "each cell is read from memory once" if problem.steps == 1 else "a step is worth a pass"
        return f"a pass through memory; {plan}", reason

    def workspace(self, problem: StencilProblem, described: dict[str, Any], devices: object) -> tuple[Any, int, int]:
        """One grid more than the results, two where the grid shrinks: however many passes a device makes."""
        if problem.steps == 1:
            return 0, 0, 1
        cells = math.prod(problem.widest) * problem.spec.unit
        grid = sum(itemsize(dtype) * slots * cells + 256 for dtype, slots in problem.spec.leaves)
        return grid * (1 if problem.widest == problem.size else 2), 0, 1

    def kernels(self, problem: StencilProblem, described: dict[str, Any], device: _cuda.DeviceInfo) -> list[str]:
        return _cuda.kernels_of_stencil(described, device, *self._sizes(problem))

    def _sizes(self, problem: StencilProblem) -> tuple[Any, ...]:
        return list(problem.size), list(problem.wraps), problem.members, problem.steps, self.forced(problem)
