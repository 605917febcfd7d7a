"""Histograms and the counting sort on CPUs: the kernel's entry in the C++ table, plans, explanations."""

from __future__ import annotations

import dataclasses
from typing import Any

from ....operators import classify
from ....specs.described import chooses, described_histogram, histogram_work
from ....specs.histogram_layout import Variant, slot_offsets
from ....specs.problems import GroupProblem, HistogramProblem
from ...plans import plan_among
from ...target import UNKNOWN_SIZES, Explanation, bytes_in_words
from .. import compiler
from ..family import CpuFamily
from ..machine import cpu_threads
from ..plans import HistogramPlan, plan_of
from . import kernel
from .xla_pays import xla_pays

KERNELS = compiler.Kernels(
    "histogram",
    described_histogram,
    lambda spec, variant: kernel.function_names(spec),
    lambda spec, variant, vector_bytes: kernel.generate(spec, Variant.decode(variant), vector_bytes),
)


class Histograms(CpuFamily):
    """The family on CPUs."""

    name = "histogram"

    def compile(self, problem: HistogramProblem) -> None:
        if problem.known:  # else the handler asks for the variant that it wants
            super().compile(problem)

    def plan(self, problem: HistogramProblem) -> HistogramPlan:
        return plan_of(HistogramPlan, self.planned(problem))

    def in_place(self, problem: HistogramProblem) -> bool:
        forced = plan_among(problem.plans, "cpu", self.name)
        if forced is not None:
            return forced.in_place
        alone = dataclasses.replace(problem, batch=())  # whose size may not be known
        return isinstance(problem.n, int) and self.planned(alone)["in_place"]

    def explain(self, problem: HistogramProblem) -> Explanation:
        classes = tuple(classify.atomic_class(b.op, b.acc) for b in problem.spec.bins)
        if not problem.known:
            return dataclasses.replace(UNKNOWN_SIZES, classes=classes)
        plan, planned = self.plan(problem), self.planned(problem)
        reason = _reason(self.numbers(problem), plan, planned["few"])
        return Explanation(str(plan), reason, planned["workspace"], plan.variant, classes)

    def xla_pays(self, problem: HistogramProblem, operation: str, in_loop: bool | None) -> str | None:
        return xla_pays(problem, operation, in_loop)

    def numbers(self, problem: HistogramProblem) -> dict[str, Any]:
        spec = problem.spec
        return {
            "elements": problem.n,
            "bins": max(problem.bins),
            "batch": problem.members,
            "bin_bytes": sum(slot_offsets(b)[1] * b.lanes for b in spec.bins),
            "updates": sum(b.updates for b in spec.bins),
            "slots": max(b.slots for b in spec.bins),
            "lanes": max(b.lanes for b in spec.bins),
            "work": histogram_work(spec),
            "in_place": all(b.finish is None for b in spec.bins),
            "must_in_place": not all(b.has_identity for b in spec.bins),
            "chooses": chooses(spec),
            "map": spec.is_map and problem.bins[0] == problem.n,
            "sorted": problem.sorted and spec.arrays[0].dtype == spec.index,
        }


def _reason(numbers: dict[str, Any], plan: HistogramPlan, few: bool) -> str:
    table = (numbers["bins"] + 1) * numbers["bin_bytes"]
    if plan.in_place:
        if numbers["map"]:
            return "each element has a bin of its own"
        if numbers["must_in_place"]:
            return "no identity is known: bins start from dest"
        if few:
            return "few elements for many bins: only what is updated is touched"
        if numbers["sorted"]:
            return "the indices are sorted: each thread reads only its own elements"
        return f"subhistograms of {bytes_in_words(table)} would not fit the last-level cache together"
    reason = f"a subhistogram takes {bytes_in_words(table * plan.copies)}"
    if numbers["batch"] > 1 and plan.subhistograms == 1:
        reason += "; each thread uses one for one histogram of the batch after the other"
    return reason


class Groups(CpuFamily):
    """The counting sort on CPUs: one driver, no kernel of the user's (``cpu/group.h``)."""

    name = "group"

    def compile(self, problem: GroupProblem) -> None:
        """There is nothing to compile."""

    def explain(self, problem: GroupProblem) -> Explanation:
        counters = min(cpu_threads() * (problem.num_bins + 1), 4 << 20)
        bytes_ = problem.item_bytes * max(problem.num_bins + 1, counters)
        return Explanation("stable counting sort", "the order of elements within a bin is wanted", bytes_)
