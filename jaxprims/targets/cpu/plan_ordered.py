"""The plans of scans, reductions and segmented reductions on the CPU: pure functions in C++ (``cpu/scan_plan.h``,
``reduce_plan.h``, ``segments_plan.h``), seen from Python for lowering and ``explain``.
"""

from __future__ import annotations

from typing import Any

from ... import _cpu
from ...ir.program import itemsize
from ...specs.ordered import OrderedSpec
from .plan_histogram import cpu_threads


def element_bytes(spec: OrderedSpec) -> tuple[int, list[int]]:
    """Of one element: bytes in all arrays, bytes in each result."""
    return sum(itemsize(a.dtype) * a.slots for a in spec.arrays), [itemsize(t) * n for t, n in spec.leaves]


def scan_plan(
    spec: OrderedSpec, n: int, rows: int, lanes: int, contiguous: bool, in_place: bool = False, forced: Any = ()
) -> _cpu.ScanPlan:
    """``contiguous``: rows lie one behind the other in every operand, and there is no init."""
    problem = _cpu.ScanProblem()
    problem.n, problem.rows, problem.lanes = n, rows, lanes
    problem.in_bytes, problem.leaf_bytes = element_bytes(spec)
    problem.slots, problem.across, problem.reverse = len(spec.state), spec.across, spec.reverse
    problem.in_place, problem.contiguous = in_place, contiguous and not spec.across
    problem.aligned = True  # as XLA's buffers are
    machine = _cpu.Machine(cpu_threads())
    return _cpu.forced_scan(problem, machine, *forced) if len(forced) == 5 else _cpu.make_scan_plan(problem, machine)


def reduce_plan(spec: OrderedSpec, n: int, rows: int, lanes: int, joined: int, init: bool) -> _cpu.ReducePlan:
    """``joined``: how many consecutive rows lie end to end."""
    problem = _cpu.ReduceProblem()
    problem.n, problem.rows, problem.joined, problem.lanes = n, rows, joined, lanes
    problem.leaf_bytes, problem.slots, problem.across = max(element_bytes(spec)[1]), len(spec.state), spec.across
    problem.state_bytes, problem.init = sum(map(itemsize, spec.state)), init
    return _cpu.make_reduce_plan(problem, _cpu.Machine(cpu_threads()))


def segments_plan(spec: OrderedSpec, n: int, rows: int, lanes: int, segments: int, path: int = 0) -> _cpu.SegmentsPlan:
    """``segments``: how many there are."""
    problem = _cpu.SegmentsProblem()
    problem.n, problem.segments, problem.members, problem.lanes = n, segments, rows, lanes
    problem.leaf_bytes, problem.slots, problem.across = max(element_bytes(spec)[1]), len(spec.state), spec.across
    problem.state_bytes = sum(map(itemsize, spec.state))
    return _cpu.make_segments_plan(problem, _cpu.Machine(cpu_threads()), path)
