"""Each family on NVIDIA GPUs: its kernels' text, plans, workspaces, explanations."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
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


def _known(size: Any) -> int:
    """A size, or -1 where it is a symbol."""
    return size if isinstance(size, int) else -1


class _Family(abc.ABC):
    """What the families share. A plan is None where nothing is forced."""

    name: str
    plans: Callable[..., Any]
    source: Callable[[Any], str]
    """A spec's kernels as CUDA C++, includes not expanded."""

    @property
    def kind(self) -> str:
        """Its specs'."""
        return self.name

    @abc.abstractmethod
    def described(self, spec: Any, arch: int) -> dict[str, Any]:
        """What the launcher has to know of a spec on an architecture."""

    @abc.abstractmethod
    def sizes(self, problem: Any) -> dict[str, Any]:
        """Of a call, as ``cuda/launcher/cuda_module.cc`` reads them."""

    @abc.abstractmethod
    def words(self, problem: Any, plan: Any) -> tuple[str, str]:
        """A plan, and why."""

    def takes(self, problem: Any) -> bool:
        """Are there kernels for it?"""
        return True

    def forced(self, problem: Any) -> list[int]:
        plan = plan_among(problem.plans, "cuda", self.name)
        return [] if plan is None else list(plan.numbers(problem))

    def plan(self, problem: Any, device: _cuda.DeviceInfo) -> Any:
        described = compiler.described(problem.spec, 10 * device.major + device.minor)
        numbers = tuple(_cuda.explain(self.name, described, device, self.sizes(problem), self.forced(problem)))
        return self.plans(numbers_by_name=numbers)

    def workspace(self, problem: Any, described: dict[str, Any], devices: list[_cuda.DeviceInfo]) -> tuple[int, int, int]:
        return _cuda.workspace(self.name, described, self.sizes(problem), devices, self.forced(problem))

    def kernels(self, problem: Any, described: dict[str, Any], device: _cuda.DeviceInfo) -> list[str]:
        return _cuda.kernels(self.name, described, device, self.sizes(problem), self.forced(problem))

    def classes(self, spec: Any, arch: int) -> tuple[str, ...]:
        return ()


class Histograms(_Family):
    """Histograms on NVIDIA GPUs."""

    name, kind = "histogram", "hist"
    plans, source = staticmethod(HistogramPlan.made), staticmethod(source.histogram_source)
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

    def sizes(self, problem: HistogramProblem) -> dict[str, Any]:
        return {"n": _known(problem.n), "bins": list(problem.bins), "members": _known(problem.members)}

    def words(self, problem: HistogramProblem, plan: HistogramPlan) -> tuple[str, str]:
        k = SPACES.index(plan.space or SPACES[0])
        return f"{self.WHERE[k]}; {plan}", self.REASONS[k]

    def classes(self, spec: HistogramSpec, arch: int) -> tuple[str, ...]:
        return tuple(histograms.atomic_of(b, arch) for b in spec.bins)


class _Ordered(_Family):
    how: str
    source = staticmethod(source.ordered_source)

    def described(self, spec: OrderedSpec, arch: int) -> dict[str, Any]:
        return {**described_ordered(spec), "state_bytes": ordered.state_bytes(spec)}

    def sizes(self, problem: OrderedProblem) -> dict[str, Any]:
        sizes = {"n": problem.n, "lanes": problem.lanes, "members": problem.members, "segments": problem.num_segments}
        flags = {"init": problem.init, "contiguous": problem.contiguous, "ids": problem.ids}
        return {name: _known(size) for name, size in sizes.items()} | flags

    def words(self, problem: OrderedProblem, plan: Any) -> tuple[str, str]:
        across = problem.spec.across
        return f"{self.how}; {plan}", (
            "vectors run across the elements that lie side by side" if across else "threads share a row"
        )

    def kernels(self, problem: OrderedProblem, described: dict[str, Any], device: _cuda.DeviceInfo) -> list[str]:
        names = super().kernels(problem, described, device)  # operands that are shared, in part: either may be
        contiguous = super().kernels(dataclasses.replace(problem, contiguous=True), described, device)
        return list(dict.fromkeys(names + contiguous))


class Scans(_Ordered):
    """Scans on NVIDIA GPUs."""

    name, how, plans = "scan", "single pass with look-back", ScanPlan


class Reductions(_Ordered):
    """Reductions on NVIDIA GPUs."""

    name, how, plans = "reduce", "in one pass", ReducePlan


class Segments(_Ordered):
    """Segmented reductions on NVIDIA GPUs."""

    name, how, plans = "segments", "balanced by elements", SegmentsPlan


class Stencils(_Family):
    """Stencils on NVIDIA GPUs."""

    name, plans, source = "stencil", StencilPlan, staticmethod(source.stencil_source)

    def described(self, spec: StencilSpec, arch: int) -> dict[str, Any]:
        return {
            **described_stencil(spec, 1, stencils.work(spec)),
            "column": stencils.column(spec),
            "resident": stencils.resident(spec),
            "loads": stencils.loads_of_column(spec),
            "alike": stencils.is_alike(spec),
        }

    def sizes(self, problem: StencilProblem) -> dict[str, Any]:
        grid = {"size": list(problem.size), "wraps": list(problem.wraps)}
        return grid | {"members": problem.members, "steps": problem.steps}

    def takes(self, problem: StencilProblem) -> bool:
        return stencils.takes(problem.spec)

    def words(self, problem: StencilProblem, plan: StencilPlan) -> tuple[str, str]:
        if dict(plan.numbers_by_name)["steps a launch"] > 1:
            return f"several steps in shared memory; {plan}", "what neighbours make twice costs less than passes through memory"
        reason = "each cell is read from memory once" if problem.steps == 1 else "a step is worth a pass"
        return f"a pass through memory; {plan}", reason

    def workspace(
        self, problem: StencilProblem, described: dict[str, Any], devices: list[_cuda.DeviceInfo]
    ) -> tuple[Any, int, int]:
        """One grid more than the results, two where the grid shrinks: however many passes a device makes."""
        if problem.steps == 1:
            return 0, 0, 1
        cells = math.prod(problem.widest) * problem.spec.unit
        grid = sum(itemsize(dtype) * slots * cells + 256 for dtype, slots in problem.spec.leaves)
        return grid * (1 if problem.widest == problem.size else 2), 0, 1
