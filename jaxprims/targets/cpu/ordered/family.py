"""Scans, their chains, reductions and segmented reductions on CPUs: the kernels' entry in the C++ table, plans, explanations."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

from ....ir.program import itemsize
from ....specs.described import described_ordered, ordered_work
from ....specs.large import LargeSpec
from ....specs.ordered import OrderedSpec
from ....specs.problems import ChainProblem, OrderedProblem
from ...target import UNKNOWN_SIZES, Explanation
from .. import compiler
from ..family import CpuFamily
from ..llvm import engine as llvm_engine
from ..plans import ORDERS, ReducePlan, ScanPlan, SegmentsPlan, plan_of
from . import kernel, large
from .elements import vector_width
from .reduce_rows import folds_rows, folds_spaced
from .scan_along import runs_along_short_rows
from .xla_pays import xla_pays

KERNELS = compiler.Kernels(
    "ordered",
    lambda spec: {**described_ordered(spec), "folds_rows": folds_rows(spec), "folds_spaced": folds_spaced(spec)},
    kernel.function_names,
    kernel.generate,
)
LARGE_KERNELS = dataclasses.replace(
    KERNELS,
    names=lambda spec, variant: large.function_names(spec),
    generate=lambda spec, variant, vector_bytes: large.generate(spec),
)
"""Of those whose elements are arrays in memory."""


def _form(spec: OrderedSpec, n: int, variant: int) -> str:
    if isinstance(spec, LargeSpec):
        made = f"{spec.together} at once" if spec.together > 1 else "each a result of its own"
        return f"elements are arrays, {made if spec.is_map else 'combined one after the other'}"
    if spec.across:
        return "vectors run across the elements that lie side by side"
    slots = len(spec.state)
    vector_bytes = llvm_engine.target().vector_bytes
    along = not variant & kernel.PERIODIC or runs_along_short_rows(spec, vector_bytes)
    along = along or (folds_rows(spec) and n >= vector_width(spec, vector_bytes))
    form = "vectors run along the row" if along else "a short row in each lane of a vector"
    return form + (f", elements are structs of {slots}" if slots > 1 else "")


class _Ordered(CpuFamily):
    """What the three families share."""

    def explain(self, problem: OrderedProblem) -> Explanation:
        if not problem.known:
            return dataclasses.replace(UNKNOWN_SIZES, variant=0)
        plan, planned = self.plan(problem), self.planned(problem)
        words = f"{_form(problem.spec, problem.n, planned['variant'])}; {self.words(problem, plan)}"
        return Explanation(words, self.reason(problem, plan), planned["workspace"], planned["variant"])

    def words(self, problem: OrderedProblem, plan: Any) -> str:
        return str(plan)

    @abc.abstractmethod
    def reason(self, problem: OrderedProblem, plan: Any) -> str: ...

    def xla_pays(self, problem: OrderedProblem, operation: str, in_loop: bool | None) -> str | None:
        return xla_pays(problem, operation, in_loop)

    def numbers(self, problem: OrderedProblem) -> dict[str, Any]:
        """Those that all want."""
        spec = problem.spec
        return {
            "n": problem.n,
            "lanes": problem.lanes,
            "leaf_bytes": [itemsize(t) * n for t, n in spec.leaves],
            "slots": len(spec.state),
            "across": spec.across,
            "work": ordered_work(spec),
        }


class Scans(_Ordered):
    """Scans on CPUs."""

    name = "scan"

    def numbers(self, problem: OrderedProblem) -> dict[str, Any]:
        spec = problem.spec
        return super().numbers(problem) | {
            "rows": problem.members,
            "in_bytes": sum(itemsize(a.dtype) * a.slots for a in spec.arrays),
            "large": isinstance(spec, LargeSpec),
            "map": spec.is_map,
            "together": spec.together if isinstance(spec, LargeSpec) else 1,
            "reverse": spec.reverse,
            "contiguous": problem.contiguous and not spec.across,
        }

    def plan(self, problem: OrderedProblem) -> ScanPlan:
        plan = self.planned(problem)
        plan["order"] = ORDERS[plan["order"]]
        return plan_of(ScanPlan, plan)

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


class Reductions(_Ordered):
    """Reductions on CPUs."""

    name = "reduce"

    def numbers(self, problem: OrderedProblem) -> dict[str, Any]:
        spaced = folds_spaced(problem.spec) and not problem.contiguous
        return super().numbers(problem) | {
            "rows": problem.members,
            "joined": problem.members if spaced or not problem.captured else 1,  # equally far apart, or end to end
            "state_bytes": sum(map(itemsize, problem.spec.state)),
            "init": problem.init,
            "folds_rows": folds_rows(problem.spec),
            "spaced": spaced,
        }

    def plan(self, problem: OrderedProblem) -> ReducePlan:
        return plan_of(ReducePlan, self.planned(problem))

    def words(self, problem: OrderedProblem, plan: ReducePlan) -> str:
        return str(plan).replace(", combined", ("" if problem.spec.commutes or plan.periodic else ", in order") + ", combined")

    def reason(self, problem: OrderedProblem, plan: ReducePlan) -> str:
        if plan.periodic:
            return f"rows of {problem.n} elements"
        commutes = problem.spec.commutes
        return "the operator commutes: a piece may use several accumulators" if commutes else "the operator need not commute"


class StencilReductions(Reductions):
    """Reductions on CPUs of what stencils make."""

    name = "stencil_reduce"

    def numbers(self, problem: OrderedProblem) -> dict[str, Any]:
        return super().numbers(problem) | {"reads": sum(a.slots > 0 for a in problem.spec.arrays)}


class Segments(_Ordered):
    """Segmented reductions on CPUs."""

    name = "segments"

    def numbers(self, problem: OrderedProblem) -> dict[str, Any]:
        return super().numbers(problem) | {
            "segments": problem.num_segments,
            "members": problem.members,
            "state_bytes": sum(map(itemsize, problem.spec.state)),
        }

    def plan(self, problem: OrderedProblem) -> SegmentsPlan:
        return plan_of(SegmentsPlan, self.planned(problem))

    def words(self, problem: OrderedProblem, plan: SegmentsPlan) -> str:
        if not problem.spec.across:
            return str(plan)
        return f"each segment's elements one after the other; {str(plan).partition('; ')[2]}"

    def reason(self, problem: OrderedProblem, plan: SegmentsPlan) -> str:
        return "tasks cut the elements, not the segments: one giant segment is as balanced as many small ones"


class ScanChains(CpuFamily):
    """Chains of scans on CPUs: the kernels are the members' own (``cpu/scan_chain.h``)."""

    name = "scan_chain"

    def compile(self, problem: ChainProblem) -> None:
        for spec in problem.specs:
            compiler.compiled(spec, 0)

    def explain(self, problem: ChainProblem) -> Explanation:
        return Explanation("one pass over memory", "what one makes for the next stays in the cache", 0)
