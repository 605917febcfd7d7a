"""The plan of a call on the CPU. The choice itself is a pure function in C++ (``cpu/hist_plan.h``), so that a call that comes
from another process, or with sizes known only when it runs, is planned by the same rule.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ... import _cpu
from ...specs.histogram import HistogramSpec
from ...specs.histogram_layout import Variant, slot_offsets


def cpu_threads() -> int:
    """Threads in XLA's pool: the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def problem_of(
    spec: HistogramSpec, elements: int, bins: Sequence[int], batch: Sequence[int], sorted_indices: bool
) -> _cpu.HistProblem:
    """What the plan depends on."""
    p = _cpu.HistProblem()
    p.elements = elements
    p.bins = max(bins)
    for size in batch:
        p.batch *= size
    p.bin_bytes = sum(slot_offsets(b)[1] * b.lanes for b in spec.bins)
    p.updates = sum(b.updates for b in spec.bins)
    p.slots = max(b.slots for b in spec.bins)
    p.lanes = max(b.lanes for b in spec.bins)
    p.in_place = all(b.finish is None for b in spec.bins)
    p.must_in_place = any(b.identity is None for b in spec.bins)
    p.sorted = sorted_indices and spec.arrays[0].dtype == spec.index
    return p


def plan_of(
    spec: HistogramSpec,
    elements: int,
    bins: Sequence[int],
    batch: Sequence[int],
    sorted_indices: bool = False,
    forced: Sequence[int] = (),
    threads: int | None = None,
) -> _cpu.HistPlan:
    """The plan; ``forced`` is (M, S, C, soa, prefetch), for tests and benchmarks."""
    problem = problem_of(spec, elements, bins, batch, sorted_indices)
    plan = _cpu.make_plan(problem, _cpu.Machine(threads or cpu_threads()))
    if forced:
        m, s, c, soa, prefetch = forced
        plan = _cpu.forced(problem, plan, m, s, c, bool(soa), bool(prefetch))
    return plan


def variant_of(plan: _cpu.HistPlan) -> Variant:
    """The kernel variant that a plan runs."""
    return Variant.decode(plan.variant)
