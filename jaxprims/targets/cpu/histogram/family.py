"""Histograms on CPUs: the kernel's entry in the C++ table, plans, explanations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llvmlite import ir

from .... import _cpu
from ....operators import classify
from ....specs.described import chooses, described_histogram, histogram_work
from ....specs.histogram import HistogramSpec
from ....specs.histogram_layout import Variant, slot_offsets
from ....specs.problems import HistogramProblem
from ...plans import plan_among
from ...target import UNKNOWN_SIZES, Explanation
from ...words import bytes_in_words
from .. import compiler
from ..machine import cpu_threads
from ..plans import HistogramPlan
from . import kernel


class HistogramKernels:
    """What the compiler asks of the kind "hist"."""

    def enter(self, spec: HistogramSpec) -> bool:
        return _cpu.add_histogram(spec.key, spec.text, described_histogram(spec))

    def names(self, spec: HistogramSpec, variant: int) -> list[str]:
        return kernel.function_names(spec)

    def generate(self, spec: HistogramSpec, variant: int, vector_bytes: int) -> ir.Module:
        return kernel.generate(spec, Variant.decode(variant), vector_bytes)

    def add(self, spec: HistogramSpec, variant: int, address: Mapping[str, int]) -> None:
        parts = range(len(spec.bins))
        fill, combine = ([address[f"{name}_{g}"] for g in parts] for name in ("fill", "combine"))
        _cpu.add_histogram_variant(spec.key, variant, address["update"], fill, combine)


class Histograms:
    """The family on CPUs."""

    handler = staticmethod(_cpu.histogram_handler)

    def compile(self, problem: HistogramProblem) -> None:
        if problem.known:  # else the handler asks for the variant that it wants
            compiler.compiled(problem.spec, self.plan(problem).variant)

    def plan(self, problem: HistogramProblem) -> HistogramPlan:
        native = _native_problem(problem)
        plan = _native_plan(problem, native)
        return HistogramPlan(plan.subhistograms, plan.ranges, plan.copies, plan.soa, plan.prefetch, plan.threads, plan.variant)

    def in_place(self, problem: HistogramProblem) -> bool:
        forced = plan_among(problem.plans, "cpu", "histogram")
        if forced is not None:
            return forced.in_place
        return isinstance(problem.n, int) and _native_plan(problem, _native_problem(problem, alone=True)).soa

    def explain(self, problem: HistogramProblem) -> Explanation:
        classes = tuple(classify.atomic_class(b.op, b.acc) for b in problem.spec.bins)
        if not problem.known:
            return Explanation(UNKNOWN_SIZES.strategy, UNKNOWN_SIZES.reason, classes=classes)
        native = _native_problem(problem)
        chosen = self.plan(problem)
        workspace = _cpu.workspace_bytes(native, _native_plan(problem, native))
        return Explanation(str(chosen), _reason(native, chosen), workspace, chosen.variant, classes)


def _native_problem(problem: HistogramProblem, *, alone: bool = False) -> _cpu.HistProblem:
    """``alone``: without the batch, whose size may not be known."""
    spec, p = problem.spec, _cpu.HistProblem()
    p.elements = problem.n
    p.bins = max(problem.bins)
    p.batch = 1 if alone else problem.members
    p.bin_bytes = sum(slot_offsets(b)[1] * b.lanes for b in spec.bins)
    p.updates = sum(b.updates for b in spec.bins)
    p.slots = max(b.slots for b in spec.bins)
    p.lanes = max(b.lanes for b in spec.bins)
    p.work = histogram_work(spec)
    p.in_place = all(b.finish is None for b in spec.bins)
    p.must_in_place = not all(b.has_identity for b in spec.bins)
    p.chooses = chooses(spec)
    p.map = spec.is_map and problem.bins[0] == problem.n
    p.sorted = problem.sorted and spec.arrays[0].dtype == spec.index
    return p


def _native_plan(problem: HistogramProblem, native: _cpu.HistProblem) -> _cpu.HistPlan:
    plan = _cpu.make_plan(native, _cpu.Machine(cpu_threads()))
    forced = plan_among(problem.plans, "cpu", "histogram")
    if forced is not None:
        m, s, c, in_place, prefetch = forced.numbers(problem)
        plan = _cpu.forced(native, plan, m, s, c, bool(in_place), bool(prefetch))
    return plan


def _reason(problem: Any, plan: HistogramPlan) -> str:
    table = (problem.bins + 1) * problem.bin_bytes
    if plan.in_place:
        if problem.map:
            return "each element has a bin of its own"
        if problem.must_in_place:
            return "no identity is known: bins start from dest"
        if problem.few:
            return "few elements for many bins: only what is updated is touched"
        if problem.sorted:
            return "the indices are sorted: each thread reads only its own elements"
        return f"subhistograms of {bytes_in_words(table)} would not fit the last-level cache together"
    reason = f"a subhistogram takes {bytes_in_words(table * plan.copies)}"
    if problem.batch > 1 and plan.subhistograms == 1:
        reason += "; each thread uses one for one histogram of the batch after the other"
    return reason
