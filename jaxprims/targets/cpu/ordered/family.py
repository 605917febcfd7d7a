"""Scans, reductions and segmented reductions on CPUs: the kernels' entry in the C++ table, plans, explanations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llvmlite import ir

from .... import _cpu
from ....ir.program import itemsize
from ....specs.described import described_ordered, ordered_work
from ....specs.large import LargeSpec
from ....specs.ordered import OrderedSpec
from ....specs.problems import OrderedProblem
from ...plans import plan_among
from ...target import UNKNOWN_SIZES, Explanation
from .. import compiler
from ..llvm import engine as llvm_engine
from ..machine import cpu_threads
from ..plans import ORDERS, ReducePlan, ScanPlan, SegmentsPlan
from . import kernel, large
from .scan_along import runs_along_short_rows


class OrderedKernels:
    """What the compiler asks of the kinds "scan", "reduce" and "segments"."""

    def enter(self, spec: OrderedSpec) -> bool:
        return _cpu.add_ordered(spec.key, spec.text, described_ordered(spec))

    def names(self, spec: OrderedSpec, variant: int) -> list[str]:
        return kernel.function_names(spec, variant)

    def generate(self, spec: OrderedSpec, variant: int, vector_bytes: int) -> ir.Module:
        return kernel.generate(spec, variant, vector_bytes)

    def add(self, spec: OrderedSpec, variant: int, address: Mapping[str, int]) -> None:
        functions = ("scan", "reduce", "combine", "finish", "runs")
        _cpu.add_ordered_variant(spec.key, variant, *(address.get(name, 0) for name in functions))


class LargeKernels(OrderedKernels):
    """The same of those whose elements are arrays in memory."""

    def names(self, spec: OrderedSpec, variant: int) -> list[str]:
        assert isinstance(spec, LargeSpec)
        return large.function_names(spec)

    def generate(self, spec: OrderedSpec, variant: int, vector_bytes: int) -> ir.Module:
        assert isinstance(spec, LargeSpec)
        return large.generate(spec)


def _leaf_bytes(spec: OrderedSpec) -> list[int]:
    return [itemsize(t) * n for t, n in spec.leaves]


def _form(spec: OrderedSpec, variant: int) -> str:
    if isinstance(spec, LargeSpec):
        return "elements are arrays, " + ("each a result of its own" if spec.is_map else "combined one after the other")
    if spec.across:
        return "vectors run across the elements that lie side by side"
    slots = len(spec.state)
    along = not variant & kernel.PERIODIC or runs_along_short_rows(spec, llvm_engine.target().vector_bytes)
    form = "vectors run along the row" if along else "a short row in each lane of a vector"
    return form + (f", elements are structs of {slots}" if slots > 1 else "")


class _Ordered:
    """What the three families share."""

    def compile(self, problem: OrderedProblem) -> None:
        compiler.compiled(problem.spec, self.plan(problem).variant if problem.known else 0)

    def plan(self, problem: OrderedProblem) -> Any:
        raise NotImplementedError

    def explain(self, problem: OrderedProblem) -> Explanation:
        if not problem.known:
            return Explanation(UNKNOWN_SIZES.strategy, UNKNOWN_SIZES.reason, variant=0)
        plan = self.plan(problem)
        words = f"{_form(problem.spec, plan.variant)}; {self.words(problem, plan)}"
        return Explanation(words, self.reason(problem, plan), self.workspace_bytes(problem), plan.variant)

    def words(self, problem: OrderedProblem, plan: Any) -> str:
        return str(plan)

    def reason(self, problem: OrderedProblem, plan: Any) -> str:
        raise NotImplementedError

    def workspace_bytes(self, problem: OrderedProblem) -> int:
        raise NotImplementedError


class Scans(_Ordered):
    """Scans on CPUs."""

    handler = staticmethod(_cpu.scan_handler)

    def _native(self, problem: OrderedProblem) -> tuple[_cpu.ScanProblem, _cpu.ScanPlan]:
        spec, p = problem.spec, _cpu.ScanProblem()
        p.n, p.rows, p.lanes = problem.n, problem.members, problem.lanes
        p.in_bytes, p.leaf_bytes = sum(itemsize(a.dtype) * a.slots for a in spec.arrays), _leaf_bytes(spec)
        p.slots, p.across, p.reverse, p.work = len(spec.state), spec.across, spec.reverse, ordered_work(spec)
        p.large, p.map = isinstance(spec, LargeSpec), spec.is_map
        p.contiguous = problem.contiguous and not spec.across
        p.aligned = True  # as XLA's buffers are
        machine = _cpu.Machine(cpu_threads())
        forced = plan_among(problem.plans, "cpu", "scan")
        return p, _cpu.forced_scan(p, machine, *forced.numbers(problem)) if forced else _cpu.make_scan_plan(p, machine)

    def plan(self, problem: OrderedProblem) -> ScanPlan:
        plan = self._native(problem)[1]
        order = next(name for name in ORDERS if plan.order == getattr(_cpu.ScanOrder, name))
        return ScanPlan(order, plan.block, plan.periodic, plan.stream, plan.threads, plan.strip, plan.variant)

    def reason(self, problem: OrderedProblem, plan: ScanPlan) -> str:
        if plan.periodic:
            return f"rows of {problem.n} elements lie one behind the other"
        if plan.order == "any_order":
            return "nothing is combined: blocks need nothing of each other"
        if plan.order != "sequential_rows":
            return "rows are long and few: threads share them"
        if plan.threads == 1:
            return "one thread"
        return "there are rows enough for all threads" if problem.members * problem.lanes > 1 else "one block"

    def workspace_bytes(self, problem: OrderedProblem) -> int:
        return _cpu.scan_workspace_bytes(*self._native(problem))


class Reductions(_Ordered):
    """Reductions on CPUs."""

    handler = staticmethod(_cpu.reduce_handler)

    def _native(self, problem: OrderedProblem) -> tuple[_cpu.ReduceProblem, _cpu.ReducePlan]:
        spec, p = problem.spec, _cpu.ReduceProblem()
        p.n, p.rows, p.lanes = problem.n, problem.members, problem.lanes
        p.joined = 1 if problem.captured else problem.members  # consecutive rows that lie end to end
        p.leaf_bytes, p.slots, p.across, p.work = _leaf_bytes(spec), len(spec.state), spec.across, ordered_work(spec)
        p.state_bytes, p.init = sum(map(itemsize, spec.state)), problem.init
        return p, _cpu.make_reduce_plan(p, _cpu.Machine(cpu_threads()))

    def plan(self, problem: OrderedProblem) -> ReducePlan:
        plan = self._native(problem)[1]
        return ReducePlan(plan.leaf, plan.block, plan.periodic, plan.threads, int(plan.periodic))

    def words(self, problem: OrderedProblem, plan: ReducePlan) -> str:
        return str(plan).replace(", combined", ("" if problem.spec.commutes or plan.periodic else ", in order") + ", combined")

    def reason(self, problem: OrderedProblem, plan: ReducePlan) -> str:
        if plan.periodic:
            return f"rows of {problem.n} elements"
        commutes = problem.spec.commutes
        return "the operator commutes: a piece may use several accumulators" if commutes else "the operator need not commute"

    def workspace_bytes(self, problem: OrderedProblem) -> int:
        return _cpu.reduce_workspace_bytes(*self._native(problem))


class StencilReductions(Reductions):
    """Reductions on CPUs of what stencils make."""

    handler = staticmethod(_cpu.stencil_reduce_handler)

    def _native(self, problem: OrderedProblem) -> tuple[_cpu.ReduceProblem, _cpu.ReducePlan]:
        p, _ = super()._native(problem)
        _cpu.of_stencil(p, sum(a.slots > 0 for a in problem.spec.arrays))
        return p, _cpu.make_reduce_plan(p, _cpu.Machine(cpu_threads()))


class Segments(_Ordered):
    """Segmented reductions on CPUs."""

    handler = staticmethod(_cpu.segments_handler)

    def _native(self, problem: OrderedProblem) -> tuple[_cpu.SegmentsProblem, _cpu.SegmentsPlan]:
        spec, p = problem.spec, _cpu.SegmentsProblem()
        p.n, p.segments, p.members, p.lanes = problem.n, problem.num_segments, problem.members, problem.lanes
        p.leaf_bytes, p.slots, p.across, p.work = _leaf_bytes(spec), len(spec.state), spec.across, ordered_work(spec)
        p.state_bytes = sum(map(itemsize, spec.state))
        return p, _cpu.make_segments_plan(p, _cpu.Machine(cpu_threads()))

    def plan(self, problem: OrderedProblem) -> SegmentsPlan:
        plan = self._native(problem)[1]
        return SegmentsPlan(plan.chunk, plan.tasks, plan.threads)

    def words(self, problem: OrderedProblem, plan: SegmentsPlan) -> str:
        if not problem.spec.across:
            return str(plan)
        return f"each segment's elements one after the other; {str(plan).partition('; ')[2]}"

    def reason(self, problem: OrderedProblem, plan: SegmentsPlan) -> str:
        return "tasks cut the elements, not the segments: one giant segment is as balanced as many small ones"

    def workspace_bytes(self, problem: OrderedProblem) -> int:
        return _cpu.segments_workspace_bytes(*self._native(problem))
