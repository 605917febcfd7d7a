"""Which calls, left to XLA, would wait for another thread: outside of loops a call may be all of a program, and a program of many
operations, as XLA counts them, it hands over to a thread that is to be woken. A kernel is called where the program is.
"""

from __future__ import annotations

from ...ir.work import AT_ONCE, work
from ...specs.histogram import PartSpec
from ...specs.ordered import OrderedSpec
from ...specs.problems import HistogramProblem, OrderedProblem, Problem
from .llvm.types import HALVES

MOST_AWAITED, MOST_ROWS_AWAITED = 8192, 32_768
"""Numbers up to which that takes longer than a kernel; of rows that are read by index."""

EACH, EACH_OF_HALVES = {"logaddexp": 4, "argmax": 9, "argmin": 9}, {"add": 2, "mul": 2, "max": 4, "min": 4}
"""Operations that XLA counts for an element of a reduction, if it is not one; of halves, which it makes floats of and back."""

INDEXED = 4
"""Of a number that is read by index: whether that is in range, and what it is if not."""

FLOATS, INTEGERS = ("f32", "f64"), ("s16", "s32", "s64")

PART = 32
"""Elements of the parts in which XLA reduces long rows and columns, the last one filled up."""


def wakes_a_thread(problem: Problem, operation: str) -> bool:
    """``operation``: as for ``Target.xla_pays``."""
    if isinstance(problem, HistogramProblem):
        operations, numbers = _of_updates(problem)
        most = MOST_ROWS_AWAITED if problem.spec.is_map else MOST_AWAITED
    elif isinstance(problem, OrderedProblem) and isinstance(problem.spec, OrderedSpec) and problem.n > 1:
        operations, numbers = _of_combinations(problem, operation)
        most = MOST_AWAITED
    else:
        return False
    return operations >= AT_ONCE and numbers <= most


def _of_updates(problem: HistogramProblem) -> tuple[int, int]:
    """Operations, one of a complex number, and numbers. Rows that are only read by index take none."""
    spec, elements = problem.spec, int(problem.n * problem.members)
    numbers = [b.updates * b.lanes for b in spec.bins]
    each = [_of_update(b, spec.is_map) for b in spec.bins]
    operations = work(spec.f) + sum(n * k for n, k in zip(numbers, each, strict=True))
    made = [(b.finish, b.lanes * n) for b, n in zip(spec.bins, problem.bins, strict=True) if b.finish and not _is_keyed(b)]
    finished = sum(work(finish) * n for finish, n in made)
    return elements * operations + problem.members * finished, elements * sum(numbers)


def _of_update(part: PartSpec, is_map: bool) -> int:
    applied = 0 if is_map else work(part.op) * len(part.leaves) // part.slots
    keyed = work(part.finish) if part.finish and _is_keyed(part) else 0  # which takes as long there as back
    return applied + (work(part.value) if part.value else 0) - keyed


def _is_keyed(part: PartSpec) -> bool:
    """Are floats made integers of the same order, as XLA does not?"""
    return part.finish is not None and part.slots == 1 and part.leaves[0][0] in HALVES + FLOATS and part.acc[0] in INTEGERS


def _of_combinations(problem: OrderedProblem, operation: str) -> tuple[int, int]:
    spec, steps, rows = problem.spec, int(problem.n), int(problem.lanes * problem.members)
    scans = problem.family == "scan"
    if steps > PART and not scans:
        steps = -(-steps // PART) * PART
    if operation == "gather":
        each = INDEXED
    elif operation and not scans:
        halves = any(a.dtype in HALVES for a in spec.arrays)
        each = (EACH_OF_HALVES if halves else EACH).get(operation, EACH.get(operation, 1))
        rows *= sum(scalars for _, scalars in spec.leaves)
    else:
        each = work(spec.op) * (2 if scans else 1) + work(spec.f)
    return (steps * each - 1) * rows, problem.n * rows
