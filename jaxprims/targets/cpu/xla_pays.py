"""Where XLA's own operation is the faster one on CPUs, as measured (``python -m bench everyday``)."""

from __future__ import annotations

import math

from ...ir.program import COUNTED, Program, itemsize
from ...ir.work import work
from ...specs.ordered import OrderedSpec
from ...specs.problems import HistogramProblem, OrderedProblem, Problem, StencilProblem
from ...specs.stencil import WIDEST, is_short_row
from .histogram.rows import shares_vectors
from .llvm import engine as llvm_engine
from .llvm.types import HALVES
from .stencil.kernel import vector_width
from .xla_wakes import FLOATS, wakes_a_thread

SMALL, SMALL_OF_MANY, SMALL_OF_MANY_NARROW = 1000, 4096, 8192
"""Numbers that XLA's loop, which is compiled into the program around it, has combined by index before a kernel has been called;
where bins are many, so that a row seldom waits for the one before; and rows are narrow, or of complex numbers."""

SMALL_HALVES = 500
"""The same of sums of halves, which are made of floats: of few bins, or sorted."""

SMALL_NARROW = 3200
"""The same of narrow rows, but of halves, of which XLA makes floats one by one where they fill no vector."""

SMALL_SEGMENTS = 2048
"""The same of segments by sorted ids."""

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

FEW_TO_SCAN, FEW_TO_FOLD, FEW_TO_SCAN_IN_ALL = 800, 8192, 4096
"""Scans, segments and reductions by any operator whose cost in XLA (:func:`_cost`) is no more than this: it is less than half a
microsecond, which is what a call of a kernel takes."""

CHEAP, TURNS, ONE_LOOP = 8, 2, 16
"""Operations for each scalar of a cheap operator; that take as long as an update where XLA makes each turn of all elements before
the next; steps up to which a scan is one loop of XLA's."""

SHORT_FOR_SCAN, SHORT_FOR_FOLD, SHORTEST = 10, 8, 3
"""Elements of a row of scalars that XLA combines in vectors, one operation for each doubling of distances, by an operator that
it does not know: of a scan by a cheap one (two fewer for each scalar of an element), of a reduction (for all scalars), by any."""

SHORT_FOR_CALLS = 40
"""Elements of a row, likewise, if each has numbers of its own, for which a kernel would be called anew."""

ABREAST_IN_XLA = 4
"""How much less that is where rows lie side by side."""

MOST_WRITTEN = 128
"""Operations that are written out for them, for every doubling of their number once: XLA compiles more for a long time."""

FEW_READ = 256
"""Numbers that are read by index, from which on a kernel is not behind whatever else the program does."""

SEARCH = 4
"""How much more an element costs that has to find its segment among offsets; turns of a search."""

FEW_STEPS, FEW_STEPS_OF_EXTREMES, FEW_STEPS_OF_EXTREMES_NARROW = 12, 20, 16
"""Elements to a row, or a column, that XLA's compiler writes out one by one; those of argmax and argmin, of floats where no
vectors are wider than 32 bytes fewer; of integers there as of others."""

FEW_IN_ALL, FEW_IN_LONG_ROWS, FEW_IN_SHORT_ROWS = 2048, 400, 8192
"""Elements that XLA reduces in less time than a call takes: of all rows together; where there is one row, or rows are
:data:`LONG_ROW`; where they have :data:`FEW_STEPS`."""

FEW_IN_COLUMNS, SHORT_ROW_IN_LOOP = 10_000, 24
"""Halves in columns, :data:`NARROW` at least, and in a row of many, whose extremes XLA has found, in a loop's body, when their
maker has written them for a kernel."""

WIDE, FEW_IN_WIDE_COLUMNS = 64, 4096
"""Columns that lie side by side, floats in all of them, that XLA adds and multiplies there."""

COLUMN_IN_LOOP = 32
"""Elements of a column that XLA combines where it makes them, whatever their number; of floats' extremes :data:`FEW_STEPS`."""

LONG_ROW = 40
"""Elements to a row of those that are long; shorter ones of complex numbers are XLA's in a loop."""

EXTREMES, FEW_TO_FIND, FEW_IN_LOOP = ("argmax", "argmin"), 256, 1024
"""Of how many elements XLA finds the position in less time than a call takes; or, of floats in a row, the value; in a loop, where
of so many it has the logsumexp, too."""

LOGIC = ("and", "or", "xor")
"""What XLA folds a boolean at a time where all are one row: few of them are no reason to leave them to it."""

STEPS_IN_LOOP, COST_IN_LOOP = 8, 50_000
"""Steps of rows that lie side by side, and their cost in XLA (:func:`_cost`), which are done in a loop's body when their maker
has written the elements for a kernel; of scans fewer than :data:`ONE_LOOP`, by what XLA knows, as windows, at a quarter of it."""

SHORTEST_ROW, SHORT_ROW_OF_MANY, SHORT_ROW_SUMMED_IN_LOOP = 4, 7, 8
"""Elements of a row of floats whose sum or extreme XLA makes, rows side by side: but of halves; of any, where numbers are so many
that the threads it wakes have been worth it; in a loop's body."""

FEW_SUMMED_IN_LOOP, FEW_SUMMED_IN_SHORT_ROWS = 4096, 8192
"""Floats in rows that XLA has summed where it makes them, in a loop's body, when their maker has written them for a kernel, where
no vectors are wider than 32 bytes; in rows shorter than :data:`SHORT_ROW_IN_LOOP`."""

ROW_OF_EXTREMES, THREADED = 16, 2**17
"""Elements of a row of floats below which XLA finds the extreme, by clamping, where no vectors are wider than 32 bytes and it
shares numbers that are fewer among threads, as a kernel does not."""

ODD_ROW = 3
"""Elements of a row of floats above which XLA falls behind where the number of rows is odd: it goes through them one by one
to find positions, and in one thread to find extremes."""

SHORT_ROW_OF_BYTES, FEW_BYTES = 8, 8192
"""Bytes to a row whose extremes XLA finds where they are few: of many it is slower than a kernel, however short rows are."""

ROW_OF_FACTORS, ROW_OF_FACTORS_NARROW = 128, 8
"""Elements of a row of halves whose product XLA makes faster; where no vectors are wider than 32 bytes."""

MANY = 2**18

SMALL_GRID, SMALL_GRID_OF_STEPS, SMALL_GRID_KEPT = 65_536, 6144, 32_768
"""Bytes of a grid that XLA has made, in one step or in each of several, before a kernel's tiles are laid out; in each of several
where the border is kept, so that nothing is padded."""

SMALL_MEMBER = 256
"""Cells of a member of a batch, all steps together, that XLA has made while a kernel turns to the next member: lines that are all
read alike are one grid (``primitives/stencil/primitive.py``), others are not."""


def xla_pays(problem: Problem, operation: str, in_loop: bool | None = False) -> str | None:
    """Why, in words; None where a kernel is faster. All sizes are known."""
    if isinstance(problem, StencilProblem):
        return _stencil(problem, operation)
    if isinstance(problem, HistogramProblem) and _gathers_short_rows(problem):
        return "short rows, gathered: XLA's loop over all numbers"
    if in_loop is False and wakes_a_thread(problem, operation):
        return None
    if isinstance(problem, HistogramProblem):
        return _scatter(problem, operation, in_loop)
    if not isinstance(problem, OrderedProblem) or not isinstance(problem.spec, OrderedSpec):
        return None
    if operation == "gather":
        if in_loop is not False:
            return "numbers read by index in a loop: XLA reads them where it combines them"
        return _FEW if problem.n * problem.members <= FEW_READ else None
    if problem.spec.is_map:
        return None  # `fuse` has weighed what its elements are made of
    return _ordered(problem, operation, in_loop)


def _goes_down_columns(problem: OrderedProblem, operation: str) -> bool:
    """Does XLA, in a loop's body, make the elements, combine them and use the results in one loop?"""
    state = problem.spec.state[0]
    if not problem.spec.across or len(problem.spec.state) > 1 or itemsize(state) == 1:
        return False
    if operation in ("max", "min") and state in FLOATS:
        return bool(problem.n <= FEW_STEPS) and not problem.of_dear
    known = operation in ("add", "mul") or (operation in ("max", "min") and state not in HALVES)
    return known and bool(problem.n <= COLUMN_IN_LOOP)


def _ordered(problem: OrderedProblem, operation: str, in_loop: bool | None) -> str | None:
    if _few_of_any(problem, operation):
        return _FEW
    if problem.family == "segments" and operation and problem.ids:
        most = SMALL_HALVES if operation == "add" and problem.spec.leaves[0][0] in HALVES else SMALL_SEGMENTS
        most = SMALL if operation == "leaves" else most
        if problem.n * problem.lanes * problem.members * len(problem.spec.leaves) <= most:
            return _FEW
    if not operation and _short_rows(problem):
        return "short rows: an operation for each doubling, on all of them"
    if in_loop and _few_steps(problem, operation):
        return "few steps in a loop: XLA makes what it combines"
    if problem.family == "scan":
        return "two elements: one operation" if operation and problem.n <= 2 else None
    return _reduction(problem, operation, in_loop) if problem.family == "reduce" and operation else None


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


def _few_steps(problem: OrderedProblem, operation: str) -> bool:
    spec: OrderedSpec = problem.spec
    cost = _cost(problem)
    if not spec.across or cost > COST_IN_LOOP:
        return False
    if problem.family != "scan":
        return bool(problem.n <= STEPS_IN_LOOP)
    cheap = work(spec.op) <= CHEAP * len(spec.state)  # others a kernel makes once for an element, XLA twice
    more = problem.n < ONE_LOOP and (not operation or cost <= COST_IN_LOOP // 4)
    return cheap and bool(problem.n <= STEPS_IN_LOOP or more)


def _short_rows(problem: OrderedProblem) -> bool:
    """Of scalars, one behind the other, combined by an operator that XLA has no operation for."""
    spec: OrderedSpec = problem.spec
    slots = len(spec.state)
    scalars = all(n == 1 for _, n in spec.leaves) and all(a.slots <= 1 for a in spec.arrays)
    if problem.family == "segments" or spec.across or spec.restarts or not scalars:
        return False
    if work(spec.op) > CHEAP * slots or work(spec.op) * int(problem.n - 1).bit_length() > MOST_WRITTEN:
        return bool(problem.n <= SHORTEST)
    if problem.family == "scan":
        many = problem.n * problem.members * slots > FEW_TO_SCAN_IN_ALL
        if problem.captured and problem.members > 1 and problem.n < SHORT_FOR_CALLS:
            return True
        return bool(problem.n <= max(SHORTEST, SHORT_FOR_SCAN - 2 * slots * many))
    return bool(problem.n <= max(SHORTEST, SHORT_FOR_FOLD // slots))


def _cost(problem: OrderedProblem) -> int:
    """Of a call in XLA, in pairs of neighbours: a memory access for each scalar takes about as long as two operations."""
    spec: OrderedSpec = problem.spec
    each = 4 * len(spec.state) + 2 * (work(spec.op) + work(spec.f))
    every = int(problem.n * problem.lanes * problem.members)
    return every * each * (SEARCH if spec.family == "segments" and not problem.ids else 1)


def _scatter(problem: HistogramProblem, operation: str, in_loop: bool | None) -> str | None:
    if problem.spec.is_map:
        return _map_of_rows(problem)
    if operation == "mapped":
        updates = sum(b.updates * b.lanes * len(b.leaves) for b in problem.spec.bins)
        if all(b.lanes > 1 for b in problem.spec.bins) and problem.n >= ROWS_OF_FEW * max(problem.bins):
            return _FEW if problem.n * problem.members * updates <= FEW_MAPPED_ROWS else None
        if _is_narrow(problem) and problem.n * problem.members * updates <= _few_narrow(problem):
            return _FEW
        if in_loop and problem.n * problem.members * updates <= SMALL and _finds_apart(problem.spec.f):
            return "few elements in a loop: XLA may have found their bins before it"
        least = TURNS if _searches(problem.spec.f) else CHEAP
        # in vectors: what is cheap takes a kernel as long; where rows of a batch choose apart, XLA makes both branches of all
        made = work(problem.spec.f, at_least=not problem.apart) // least
        return _FEW if problem.n * problem.members * (updates + made) <= SMALL else None
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
    return _FEW if problem.n * problem.members * lanes <= least else None


def _updates_vectors(problem: HistogramProblem, operation: str) -> bool:
    """Does XLA's compiler, where a kernel's vectors are no wider, and none has to be looked through for a NaN?"""
    part = problem.spec.bins[0]
    dtype, slots = part.leaves[0]
    if slots > 1 or itemsize(dtype) < 4 or part.lanes not in ROWS_OF_A_VECTOR:
        return False
    return llvm_engine.target().vector_bytes < WIDEST and not (operation in ("max", "min") and dtype in FLOATS)


def _searches(f: Program) -> bool:
    """Does it read turn after turn, at places that it finds by what it has read?"""
    turns: list[int] = []
    for i in f.body:
        before = max((turns[o] for o in i.operands), default=0)
        turns.append(before + (i.op == "load") + SEARCH * (i.op in COUNTED))
    return max(turns, default=0) >= SEARCH


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
    return bool(part.lanes < SHORT_ROW_GATHERED and llvm_engine.target().vector_bytes < WIDEST)


def _map_of_rows(problem: HistogramProblem) -> str | None:
    """Of rows that are gathered: XLA goes number by number, a kernel row by row."""
    part = problem.spec.bins[0]
    numbers = problem.n * problem.members * part.lanes
    if numbers <= (_few_narrow(problem) if _is_narrow(problem) else FEW_MAPPED):
        return _FEW
    return "narrow rows: XLA's loop over all numbers" if _is_narrow(problem) and numbers > MANY else None


def _few_narrow(problem: HistogramProblem) -> int:
    return FEW_MAPPED_NARROW if any(b.lanes > NARROWEST for b in problem.spec.bins) else FEW_MAPPED_NARROWEST


def _is_narrow(problem: HistogramProblem) -> bool:
    """Does each row take a vector of its own, and leave most of it empty?"""
    return all(1 < b.lanes < NARROW and not shares_vectors(b) for b in problem.spec.bins)


def _reduction(problem: OrderedProblem, operation: str, in_loop: bool | None) -> str | None:
    if problem.n == 1:
        return "one element each: a copy"
    every = problem.n * problem.lanes * problem.members
    state = problem.spec.state[0]
    if operation == "logaddexp":
        return _FEW if every <= (FEW_IN_LOOP if in_loop else FEW_IN_LONG_ROWS) else None
    if operation in LOGIC and state == "b1" and problem.lanes > 1:
        return "columns of booleans: XLA makes them where it folds them"
    rows = problem.lanes == 1 and problem.members > 1
    if operation in LOGIC:
        return "short rows, each reduced by itself" if rows and (problem.n < FEW_STEPS or every <= FEW_IN_ALL) else None
    if operation in EXTREMES:
        if every <= FEW_TO_FIND:
            return _FEW
        if in_loop and rows and problem.spec.arrays[0].dtype in HALVES and problem.n < SHORT_ROW_IN_LOOP:
            return "short rows in a loop: XLA makes what it compares"
        few = problem.n < _few_steps_of_extremes(problem) and (rows or problem.lanes > 1)
        return "few elements to each" if few and not _goes_one_by_one(problem) else None
    extreme = operation in ("max", "min") and state in HALVES + FLOATS  # where XLA has to keep a NaN
    one_by_one = extreme and (problem.lanes * problem.members == 1 or (state in HALVES and problem.n >= FEW_STEPS))
    few = FEW_IN_LOOP if in_loop and not rows else FEW_TO_FIND
    if every <= (few if one_by_one else _few_to_reduce(problem)):
        return _FEW
    if in_loop and _goes_down_columns(problem, operation):
        return "columns in a loop: XLA makes what it folds"
    if not rows:
        halves = extreme and state in HALVES and problem.lanes >= NARROW and every <= FEW_IN_COLUMNS
        wide = operation in ("add", "mul") and state in FLOATS and problem.lanes >= WIDE and every <= FEW_IN_WIDE_COLUMNS
        return "few columns in a loop: XLA makes what it folds" if in_loop and (halves or wide) else None
    is_complex, narrow = len(problem.spec.state) > 1, llvm_engine.target().vector_bytes < WIDEST
    if operation in ("max", "min") and itemsize(state) == 1:
        few = problem.n < SHORT_ROW_OF_BYTES and every <= FEW_BYTES
        return "few bytes: XLA's loop" if few or in_loop else None
    quick = extreme or (operation == "add" and state in HALVES + FLOATS)
    halves = any(a.dtype in HALVES for a in problem.spec.arrays)  # of which sums are floats
    compared = extreme and state in FLOATS and narrow
    shortest = SHORT_ROW_OF_MANY if every >= MANY and not compared else 0 if halves else SHORTEST_ROW
    if compared and every >= THREADED and problem.members % 2:
        shortest = min(shortest, ODD_ROW - 1)
    if operation == "add" and halves and narrow:
        shortest = SHORT_ROW_OF_MANY
    if quick and not is_complex and problem.n <= (SHORT_ROW_SUMMED_IN_LOOP if in_loop else shortest):
        return "short rows: XLA makes them side by side"
    few = FEW_SUMMED_IN_SHORT_ROWS if problem.n < SHORT_ROW_IN_LOOP else FEW_SUMMED_IN_LOOP
    if in_loop and operation == "add" and state in FLOATS and narrow and not is_complex and every <= few:
        return "few sums in a loop: XLA makes what it folds"
    if compared and problem.n < ROW_OF_EXTREMES and every < THREADED:
        return "short rows: XLA compares side by side"
    if in_loop and ((extreme and state in HALVES and problem.n < SHORT_ROW_IN_LOOP) or (is_complex and problem.n < LONG_ROW)):
        return "short rows in a loop: XLA makes what it folds"
    factors = operation == "mul" and state in HALVES
    if not quick and problem.n < ((ROW_OF_FACTORS_NARROW if narrow else ROW_OF_FACTORS) if factors else FEW_STEPS):
        return "short rows, each reduced by itself"
    return None


def _few_steps_of_extremes(problem: OrderedProblem) -> int:
    if problem.lanes > 1 or llvm_engine.target().vector_bytes == WIDEST:
        return FEW_STEPS_OF_EXTREMES
    return FEW_STEPS_OF_EXTREMES_NARROW if problem.spec.arrays[0].dtype in HALVES + FLOATS else FEW_STEPS


def _goes_one_by_one(problem: OrderedProblem) -> bool:
    """Does XLA, through the rows of floats in which it looks for a position?"""
    every = problem.n * problem.members
    floats = problem.spec.arrays[0].dtype in HALVES + FLOATS
    return floats and problem.lanes == 1 and bool(problem.members % 2 and problem.n > ODD_ROW and every > FEW_IN_ALL)


def _few_to_reduce(problem: OrderedProblem) -> int:
    if problem.lanes * problem.members == 1 or problem.n >= LONG_ROW:
        return FEW_IN_LONG_ROWS
    return FEW_IN_ALL if problem.n >= FEW_STEPS else FEW_IN_SHORT_ROWS


def _stencil(problem: StencilProblem, operation: str) -> str | None:
    several = SMALL_GRID_KEPT if operation == "kept" else SMALL_GRID_OF_STEPS
    spec = problem.spec
    cell = spec.unit * max(itemsize(dtype) * slots for dtype, slots in spec.leaves)
    if problem.members * math.prod(problem.size) * cell <= (SMALL_GRID if problem.steps == 1 else several):
        return "few cells: XLA's loop is done before a kernel's tiles are laid out"
    if problem.members > 1 and math.prod(problem.size) * problem.steps <= SMALL_MEMBER:
        return "small members of a batch: XLA makes them all in one loop"
    offsets, around = [o[-1] for _, o in spec.reads], problem.steps > 1 and problem.wraps[-1:] == (True,)
    return "short rows" if is_short_row(problem.size[-1], spec.unit, offsets, vector_width(spec, WIDEST), around) else None
