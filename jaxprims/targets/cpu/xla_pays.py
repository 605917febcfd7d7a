"""Where XLA's own operation is the faster one on CPUs, as measured (``python -m bench everyday``)."""

from __future__ import annotations

import math

from ...ir.work import work
from ...specs.ordered import OrderedSpec
from ...specs.problems import HistogramProblem, OrderedProblem, Problem, StencilProblem

SMALL = 2048
"""Elements that XLA's loop, which is compiled into the program around it, has done before a kernel has been called."""

SMALL_IN_VECTORS, SMALL_OF_MANY, SMALL_IN_NARROW_VECTORS = 16_384, 4096, 131_072
"""The same where XLA's loop is one of vectors: sums and products of rows by index; of rows that seldom wait for the one before,
since bins are many, and maxima of such; of narrow ones among these."""

FEW_MAPPED, FEW_MAPPED_NARROW = 2048, 8192
"""Updates, and operations that make them, likewise; of narrow rows, which fill no vector, their numbers."""

NARROW, ROWS_OF_FEW = 8, 8
"""Numbers in a narrow row; rows for a bin below which bins are many."""

FEW_TO_SCAN, FEW_TO_FOLD = 800, 8192
"""Scans, segments and reductions by any operator whose cost in XLA (:func:`_cost`) is no more than this: it is less than half a
microsecond, which is what a call of a kernel takes."""

CHEAP, ONE_LOOP = 8, 16
"""Operations for each scalar of a cheap operator; steps up to which a scan is one loop of XLA's."""

SHORT_FOR_SCAN, SHORT_FOR_FOLD, SHORTEST = 10, 16, 3
"""Elements of a row of scalars that XLA combines in vectors, one operation for each doubling of distances, by an operator that
it does not know: of a scan by a cheap one (two fewer for each scalar of an element), of a reduction (for all scalars), by any."""

ROW_TO_FOLD, ROWS_TO_FOLD = 128, 2**17
"""The same of reductions that one thread does: of a row, and of all."""

ABREAST_IN_XLA = 4
"""How much less that is where rows lie side by side."""

MOST_WRITTEN = 128
"""Operations that are written out for them, for every doubling of their number once: XLA compiles more for a long time."""

SEARCH = 4
"""How much more an element costs that has to find its segment among offsets."""

SHORT_ROW, FEW_EXTREMES = {"argmax": 32, "argmin": 32}, 256
"""Elements of rows that XLA reduces row by row, and a kernel by a scan through all of them, or of columns that XLA unrolls; and
of all rows together."""

SHORT_ROWS, SHORT_ROWS_IN_VECTORS = 128, 512
"""The same for the other operators' rows; the second where XLA folds a row by vectors, or where there are :data:`MANY` elements,
whose rows it splits among the cores."""

ABREAST = {"add": (range(2, 65), ("f32", "f64")), "mul": (range(24, 129), ("f32", "f64"))} | dict.fromkeys(
    ("max", "min"), (range(24, 129), ("s32", "u32", "s64", "u64"))
)
"""Elements of rows that a kernel reduces many at once in less time than XLA, which adds and multiplies one after the other, and
of which types; from :data:`FEW_TO_REDUCE` in all rows on."""

ROWS_OF_EXPONENTIALS, FEW_TO_SUM = range(17, 300), 1024
"""Elements of rows whose logsumexp takes longer in a kernel, shorter ones of which go abreast, longer ones by chunks; of all."""

FEW_TO_REDUCE, FEW_TO_REDUCE_IN_VECTORS = 4096, 16_384
"""Elements of a reduction that XLA knows, likewise."""

HALVES = ("f16", "bf16")

LOGIC = ("and", "or", "xor")
"""What XLA folds a boolean at a time where all are one row: few of them are no reason to leave them to it."""

FEW_OF_COLUMNS = 2**21
"""The same of columns of halves: with more XLA may go through memory in long steps."""

MANY = 2**18

SMALL_GRID, SMALL_GRID_OF_STEPS = 16_384, 1024
"""Cells that XLA has made, in one step or in each of several, before a kernel's tiles are laid out."""

SHORT_ROW_OF_CELLS = 40
"""Numbers along the innermost axis of a grid: the ends of its rows are cells that vectors do not reach."""


def xla_pays(problem: Problem, operation: str) -> str | None:
    """Why, in words; None where a kernel is faster. All sizes are known."""
    if isinstance(problem, HistogramProblem):
        return _scatter(problem, operation)
    if isinstance(problem, StencilProblem):
        return _stencil(problem)
    if not isinstance(problem, OrderedProblem):
        return None
    if not isinstance(problem.spec, OrderedSpec):
        return None
    if problem.spec.is_map:
        return None  # `fuse` has weighed what its elements are made of
    if _few_of_any(problem, operation):
        return _FEW
    if problem.family == "segments" and operation and problem.ids and problem.n * problem.lanes * problem.members <= SMALL:
        return _FEW
    if not operation and _short_rows(problem):
        return "short rows: an operation for each doubling, on all of them"
    if problem.family == "scan":
        return "two elements: one operation" if operation and problem.n <= 2 else None
    return _reduction(problem, operation) if problem.family == "reduce" and operation else None


_FEW = "few elements: XLA's loop is done before a kernel is called"


def _few_of_any(problem: OrderedProblem, operation: str) -> bool:
    spec: OrderedSpec = problem.spec
    if not operation and any(dtype in HALVES for dtype, _ in spec.leaves):
        return False  # kernels sum them in float32
    cheap, few = work(spec.op) <= CHEAP * len(spec.state), FEW_TO_FOLD
    if spec.family != "reduce":  # of few steps XLA makes one vector loop; of functions it is slow in any
        few = int(FEW_TO_SCAN * (max(1, ONE_LOOP / problem.n) ** 2 if cheap else 4 / problem.n))
    written = work(spec.op) * int(problem.n - 1).bit_length()
    cost = _cost(problem) // (ABREAST_IN_XLA if spec.across and not operation else 1)
    return cost <= few and (operation != "" or written <= MOST_WRITTEN)


def _short_rows(problem: OrderedProblem) -> bool:
    """Of scalars, one behind the other, combined by an operator that XLA has no operation for."""
    spec: OrderedSpec = problem.spec
    slots = len(spec.state)
    scalars = all(n == 1 for _, n in spec.leaves) and all(a.slots <= 1 for a in spec.arrays)
    if problem.family == "segments" or spec.across or spec.restarts or not scalars:
        return False
    if work(spec.op) > CHEAP * slots or work(spec.op) * int(problem.n - 1).bit_length() > MOST_WRITTEN:
        return bool(problem.n <= SHORTEST)
    every = problem.n * problem.members * slots
    if problem.family == "scan":
        return bool(problem.n <= max(SHORTEST, SHORT_FOR_SCAN - (2 * slots if every > FEW_TO_REDUCE else 0)))
    few = every <= ROWS_TO_FOLD
    return bool(problem.n <= max(SHORTEST, (ROW_TO_FOLD if few else SHORT_FOR_FOLD) // slots))


def _cost(problem: OrderedProblem) -> int:
    """Of a call in XLA, in pairs of neighbours: a memory access for each scalar takes about as long as two operations."""
    spec: OrderedSpec = problem.spec
    each = 4 * len(spec.state) + 2 * (work(spec.op) + work(spec.f))
    every = int(problem.n * problem.lanes * problem.members)
    return every * each * (SEARCH if spec.family == "segments" and not problem.ids else 1)


def _scatter(problem: HistogramProblem, operation: str) -> str | None:
    if problem.spec.is_map:
        return _map_of_rows(problem)
    if operation == "mapped":
        updates = sum(b.updates * b.lanes * len(b.leaves) for b in problem.spec.bins)
        if _narrow(problem) and problem.n * problem.members * updates <= FEW_MAPPED_NARROW:
            return _FEW
        return _FEW if problem.n * problem.members * (updates + work(problem.spec.f)) <= FEW_MAPPED else None
    lanes = problem.spec.bins[0].lanes
    least = SMALL
    if lanes > 1 and problem.n < ROWS_OF_FEW * problem.bins[0]:
        least = SMALL_IN_NARROW_VECTORS if lanes <= NARROW and not problem.sorted else SMALL_OF_MANY
    elif lanes > NARROW and operation in ("add", "mul"):
        least = SMALL_IN_VECTORS
    return _FEW if problem.n * problem.members * lanes <= least else None


def _map_of_rows(problem: HistogramProblem) -> str | None:
    """Of rows that are gathered: XLA goes number by number, a kernel row by row."""
    part = problem.spec.bins[0]
    numbers = problem.n * problem.members * part.lanes
    if numbers <= (FEW_MAPPED_NARROW if _narrow(problem) else FEW_MAPPED):
        return _FEW
    cheap = part.value is not None and work(part.value) <= CHEAP
    return "narrow rows: XLA's loop over all numbers" if cheap and part.lanes < NARROW and numbers > MANY else None


def _narrow(problem: HistogramProblem) -> bool:
    return all(1 < b.lanes < NARROW for b in problem.spec.bins)


def _reduction(problem: OrderedProblem, operation: str) -> str | None:
    if problem.n == 1:
        return "one element each: a copy"
    every = problem.n * problem.lanes * problem.members
    state = problem.spec.state[0]
    if operation == "logaddexp":
        kernel = problem.lanes == 1 and state in ("f32", "f64") and problem.n not in ROWS_OF_EXPONENTIALS and every > FEW_TO_SUM
        return None if kernel else "a maximum and a sum of exponentials, one for each element"
    if operation in LOGIC and state == "b1" and problem.lanes > 1:
        return "columns of booleans: XLA makes them where it folds them"
    lengths, types = ABREAST.get(operation, (range(0), ()))
    if problem.lanes == 1 and problem.n in lengths and state in types and every > FEW_TO_REDUCE:
        return None
    in_vectors = operation in ("add", "max", "min") and state in ("f32", "f64")
    few = FEW_EXTREMES if operation in SHORT_ROW else FEW_TO_REDUCE_IN_VECTORS if in_vectors else FEW_TO_REDUCE
    if operation not in LOGIC and every <= few:
        return _FEW
    if operation in ("max", "min") and state in HALVES and (problem.lanes == 1 or every <= FEW_OF_COLUMNS):
        return "maxima and minima of halves: XLA's loop is ahead"
    if problem.lanes > 1:
        return "few elements to a column" if problem.n < SHORT_ROW.get(operation, 0) else None
    short = SHORT_ROW.get(operation, SHORT_ROWS_IN_VECTORS if in_vectors or every >= MANY else SHORT_ROWS)
    return "short rows, each reduced by itself" if problem.n <= short and problem.members > 1 else None


def _stencil(problem: StencilProblem) -> str | None:
    if problem.members * math.prod(problem.size) <= (SMALL_GRID if problem.steps == 1 else SMALL_GRID_OF_STEPS):
        return "few cells: XLA's loop is done before a kernel's tiles are laid out"
    return "short rows" if problem.size[-1] * problem.spec.unit <= SHORT_ROW_OF_CELLS else None
