"""Histograms, and maps of rows, that XLA's own scatter makes faster on CPUs, as measured (``python -m bench everyday``)."""

from __future__ import annotations

from ....ir.program import COUNTED, Program, itemsize
from ....ir.work import work
from ....specs.problems import HistogramProblem
from ..family import FEW
from ..llvm.engine import has_narrow_vectors
from ..llvm.types import HALVES
from ..xla_wakes import FLOATS, wakes_a_thread
from .rows import shares_vectors

SMALL, SMALL_OF_MANY, SMALL_OF_MANY_NARROW = 1000, 4096, 8192
"""Numbers that XLA's loop, which is compiled into the program around it, has combined by index before a kernel has been called;
where bins are many, so that a row seldom waits for the one before; and rows are narrow, or of complex numbers."""

SMALL_HALVES = 500
"""The same of sums of halves, which are made of floats: of few bins, or sorted."""

SMALL_NARROW = 3200
"""The same of narrow rows, but of halves, of which XLA makes floats one by one where they fill no vector."""

FEW_MAPPED, FEW_MAPPED_ROWS = 2048, 400
"""Numbers of rows that are gathered, likewise; of rows that are made, into few bins."""

FEW_MAPPED_NARROW, FEW_MAPPED_NARROWEST = 8192, 32_768
"""The same of narrow rows, which fill no vector, where bins are many, as in a map; of those of :data:`NARROWEST`."""

SHORT_ROW_GATHERED = 24
"""Numbers in a row that is gathered and nothing else, below which XLA goes faster, where no vectors are wider than 32 bytes."""

NARROW, NARROWEST, ROWS_OF_FEW = 8, 4, 8
"""Numbers in a narrow row; in the narrowest; rows for a bin below which bins are many."""

ROWS_OF_A_VECTOR, FEW_ROWS = (2, 4, 8), 32_768
"""Numbers in rows that XLA's compiler updates in one vector, as a kernel does; how many it has updated, where bins are many and
no vectors are wider than 32 bytes, before a kernel's second thread."""

UPDATE, TURNS = 8, 2
"""Operations that take as long as an update; where XLA makes each turn of all elements before the next."""

FIRST_TURNS = 4
"""Reads one after the other, each at a place that the one before gave, that are a search."""

MANY = 2**18
"""Numbers of narrow rows beyond which XLA's loop over all of them is the faster one again."""


def xla_pays(problem: HistogramProblem, operation: str, in_loop: bool | None) -> str | None:
    """Why, in words; None where a kernel is faster. All sizes are known."""
    if _gathers_short_rows(problem):
        return "short rows, gathered: XLA's loop over all numbers"
    if in_loop is False and wakes_a_thread(problem, operation):
        return None
    if problem.spec.is_map:
        return _map_of_rows(problem)
    return _mapped(problem, in_loop) if operation == "mapped" else _scatter(problem, operation)


def _mapped(problem: HistogramProblem, in_loop: bool | None) -> str | None:
    """Of what f makes, into several histograms, or several updates of an element."""
    updates = sum(b.updates * b.lanes * len(b.leaves) for b in problem.spec.bins)
    if all(b.lanes > 1 for b in problem.spec.bins) and problem.n >= ROWS_OF_FEW * max(problem.bins):
        return FEW if problem.n * problem.members * updates <= FEW_MAPPED_ROWS else None
    if _is_narrow(problem) and problem.n * problem.members * updates <= _few_narrow(problem):
        return FEW
    if in_loop and problem.n * problem.members * updates <= SMALL and _finds_apart(problem.spec.f):
        return "few elements in a loop: XLA may have found their bins before it"
    least = TURNS if _searches(problem.spec.f) else UPDATE
    # in vectors: what is cheap takes a kernel as long; where rows of a batch choose apart, XLA makes both branches of all
    made = work(problem.spec.f, at_least=not problem.apart) // least
    return FEW if problem.n * problem.members * (updates + made) <= SMALL else None


def _scatter(problem: HistogramProblem, operation: str) -> str | None:
    """Of numbers that are there, into one."""
    lanes, least, (dtype, slots) = problem.spec.bins[0].lanes, SMALL, problem.spec.bins[0].leaves[0]
    halves, many = operation == "add" and dtype in HALVES, problem.n < ROWS_OF_FEW * problem.bins[0]
    if slots > 1:
        least = SMALL_OF_MANY_NARROW
    elif halves and (problem.sorted or not many):
        least = SMALL_HALVES
    elif many:
        least = SMALL_OF_MANY_NARROW if lanes <= NARROW and not problem.sorted else SMALL_OF_MANY
    elif 1 < lanes <= NARROW and (lanes == NARROW or dtype not in HALVES):
        least = SMALL_NARROW
    if many and _updates_vectors(problem, operation):
        least = FEW_ROWS * lanes
    return FEW if problem.n * problem.members * lanes <= least else None


def _updates_vectors(problem: HistogramProblem, operation: str) -> bool:
    """Does XLA's compiler, where a kernel's vectors are no wider, and none has to be looked through for a NaN?"""
    part = problem.spec.bins[0]
    dtype, slots = part.leaves[0]
    if slots > 1 or itemsize(dtype) < 4 or part.lanes not in ROWS_OF_A_VECTOR:
        return False
    return has_narrow_vectors() and not (operation in ("max", "min") and dtype in FLOATS)


def _searches(f: Program) -> bool:
    """Does it read turn after turn, at places that it finds by what it has read?"""
    turns: list[int] = []
    for i in f.body:
        before = max((turns[o] for o in i.operands), default=0)
        turns.append(before + (i.op == "load") + FIRST_TURNS * (i.op in COUNTED))
    return max(turns, default=0) >= FIRST_TURNS


def _finds_apart(f: Program) -> bool:
    """Is the first result, an index, made of other arrays than the others are?"""
    sources = f.sources()
    index, *values = (sources[r] for r in f.results)
    made = frozenset[int]().union(*values)
    return bool(index and made) and not index & made


def _gathers_short_rows(problem: HistogramProblem) -> bool:
    """And does nothing with them but choose zeros for what no element wants?"""
    part = problem.spec.bins[0]
    if not problem.spec.is_map or part.value is None or work(part.value) > 1:
        return False
    return bool(part.lanes < SHORT_ROW_GATHERED and has_narrow_vectors())


def _map_of_rows(problem: HistogramProblem) -> str | None:
    """Of rows that are gathered: XLA goes number by number, a kernel row by row."""
    part = problem.spec.bins[0]
    numbers = problem.n * problem.members * part.lanes
    if numbers <= (_few_narrow(problem) if _is_narrow(problem) else FEW_MAPPED):
        return FEW
    return "narrow rows: XLA's loop over all numbers" if _is_narrow(problem) and numbers > MANY else None


def _few_narrow(problem: HistogramProblem) -> int:
    return FEW_MAPPED_NARROW if any(b.lanes > NARROWEST for b in problem.spec.bins) else FEW_MAPPED_NARROWEST


def _is_narrow(problem: HistogramProblem) -> bool:
    """Does each row take a vector of its own, and leave most of it empty?"""
    return all(1 < b.lanes < NARROW and not shares_vectors(b) for b in problem.spec.bins)
