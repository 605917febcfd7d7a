"""Reductions by what XLA knows that it makes faster on CPUs, as measured (``python -m bench everyday``)."""

from __future__ import annotations

from ....ir.program import itemsize
from ....ir.work import FUNCTION, functions, work
from ....specs.problems import OrderedProblem
from ..family import FEW
from ..llvm.engine import has_narrow_vectors
from ..llvm.types import HALVES
from ..xla_wakes import FLOATS

EXTREMES = ("max", "min")
POSITIONS = ("argmax", "argmin")
LOGIC = ("and", "or", "xor")
"""What XLA folds a boolean at a time where all are one row: few of them are no reason to leave them to it."""


def xla_reduces(problem: OrderedProblem, operation: str, in_loop: bool | None) -> str | None:
    """Why, in words; None where a kernel is faster. All sizes are known."""
    if problem.n == 1:
        return "one element each: a copy"
    if operation in LOGIC:
        return _folds_logic(problem)
    if operation in POSITIONS:
        return _finds_positions(problem, in_loop)
    if _few(problem, operation, in_loop):
        return FEW
    if operation == "logaddexp":
        return None
    if in_loop and _goes_down_columns(problem, operation):
        return "columns in a loop: XLA makes what it folds"
    if problem.lanes == 1 and problem.members > 1:
        return _reduces_rows(problem, operation, in_loop)
    return "few columns in a loop: XLA makes what it folds" if in_loop and _few_in_columns(problem, operation) else None


def _every(problem: OrderedProblem) -> int:
    return int(problem.n * problem.lanes * problem.members)


# --- few, of all rows together ----------------------------------------------------------------------------------------

FEW_STEPS, LONG_ROW = 12, 40
"""Elements to a row, or a column, that XLA's compiler writes out one by one; to a row that is long: shorter ones of complex
numbers are XLA's in a loop."""

FEW_IN_ALL, FEW_IN_LONG_ROWS, FEW_IN_SHORT_ROWS = 2048, 400, 8192
"""Elements that XLA reduces in less time than a call takes: of all rows together; where there is one row, or rows are
:data:`LONG_ROW`; where they have :data:`FEW_STEPS`."""

FEW_TO_FIND, FEW_IN_LOOP = 256, 1024
"""Of how many elements XLA finds the position in less time than a call takes; or, of floats in a row, the value; in a loop, where
of so many it has the logsumexp, too."""


def _few(problem: OrderedProblem, operation: str, in_loop: bool | None) -> bool:
    every, state = _every(problem), problem.spec.state[0]
    if operation == "logaddexp":
        return every <= (FEW_IN_LOOP if in_loop else FEW_IN_LONG_ROWS)
    one_row = problem.lanes * problem.members == 1
    extreme = operation in EXTREMES and state in HALVES + FLOATS  # where XLA has to keep a NaN
    if extreme and (one_row or (state in HALVES and problem.n >= FEW_STEPS)):
        return every <= (FEW_IN_LOOP if in_loop and (one_row or problem.lanes > 1) else FEW_TO_FIND)
    if one_row or problem.n >= LONG_ROW:
        return every <= FEW_IN_LONG_ROWS
    return every <= (FEW_IN_ALL if problem.n >= FEW_STEPS else FEW_IN_SHORT_ROWS)


def _folds_logic(problem: OrderedProblem) -> str | None:
    if problem.spec.state[0] == "b1" and problem.lanes > 1:
        return "columns of booleans: XLA makes them where it folds them"
    rows = problem.lanes == 1 and problem.members > 1
    few = problem.n < FEW_STEPS or _every(problem) <= FEW_IN_ALL
    return "short rows, each reduced by itself" if rows and few else None


# --- positions of extremes --------------------------------------------------------------------------------------------

FEW_STEPS_TO_FIND, FEW_STEPS_TO_FIND_NARROW = 20, 16
"""As :data:`FEW_STEPS`, of positions; of those of floats in rows where no vectors are wider than 32 bytes, and of bfloat16."""

SHORT_ROW_IN_LOOP = 24
"""Halves in a row of many, whose extremes XLA has found, in a loop's body, when their maker has written them for a kernel."""

ODD_ROW = 3
"""Elements of a row of floats above which XLA falls behind where the number of rows is odd: it goes through them one by one
to find positions, and in one thread to find extremes."""


def _finds_positions(problem: OrderedProblem, in_loop: bool | None) -> str | None:
    every, dtype = _every(problem), problem.spec.arrays[0].dtype
    if every <= FEW_TO_FIND:
        return FEW
    rows = problem.lanes == 1 and problem.members > 1
    if in_loop and rows and dtype in HALVES and problem.n < SHORT_ROW_IN_LOOP:
        return "short rows in a loop: XLA makes what it compares"
    floats, few = dtype in HALVES + FLOATS, FEW_STEPS_TO_FIND_NARROW if dtype == "bf16" else FEW_STEPS_TO_FIND
    if problem.lanes == 1 and has_narrow_vectors():
        few = FEW_STEPS_TO_FIND_NARROW if floats else FEW_STEPS
    one_by_one = rows and floats and problem.members % 2 and problem.n > ODD_ROW and every > FEW_IN_ALL
    return "few elements to each" if problem.n < few and (rows or problem.lanes > 1) and not one_by_one else None


# --- columns, in a loop's body ----------------------------------------------------------------------------------------

COLUMN_IN_LOOP = 32
"""Elements of a column that XLA combines where it makes them, whatever their number; of floats' extremes :data:`FEW_STEPS`."""

SOME_COLUMNS, FEW_HALVES_IN_COLUMNS = 8, 10_000
"""Columns that lie side by side, halves in all of them, whose extremes XLA has found when their maker has written them for a
kernel."""

WIDE, FEW_IN_WIDE_COLUMNS = 64, 4096
"""The same of floats that it adds and multiplies."""


def _goes_down_columns(problem: OrderedProblem, operation: str) -> bool:
    """Does XLA make the elements, combine them and use the results in one loop?"""
    state = problem.spec.state[0]
    if not problem.spec.across or len(problem.spec.state) > 1 or itemsize(state) == 1:
        return False
    if operation in EXTREMES and state in FLOATS:
        return bool(problem.n <= FEW_STEPS) and not problem.of_dear
    known = operation in ("add", "mul") or (operation in EXTREMES and state not in HALVES)
    return known and bool(problem.n <= COLUMN_IN_LOOP)


def _few_in_columns(problem: OrderedProblem, operation: str) -> bool:
    every, state = _every(problem), problem.spec.state[0]
    if operation in EXTREMES and state in HALVES:
        return problem.lanes >= SOME_COLUMNS and every <= FEW_HALVES_IN_COLUMNS
    return operation in ("add", "mul") and state in FLOATS and problem.lanes >= WIDE and every <= FEW_IN_WIDE_COLUMNS


# --- of a function ----------------------------------------------------------------------------------------------------

BESIDE_A_FUNCTION = {"f32": 4, "f64": 12}
"""Additions for a number, beside one function of it, up to which XLA's loop along a row is as fast where no vectors are wider
than 32 bytes."""


def sums_one_function(problem: OrderedProblem) -> bool:
    """Does XLA make what is summed along rows, of a function that it has in vectors, as fast?"""
    f, op, beside = problem.spec.f, problem.spec.op, BESIDE_A_FUNCTION.get(problem.spec.state[0], 0)
    sums = problem.family == "reduce" and [i.op for i in op.body if i.op != "arg"] == ["add"]
    rows = sums and problem.lanes == 1 and problem.members > 1
    return rows and beside > 0 and has_narrow_vectors() and functions(f) == 1 and work(f) <= FUNCTION + beside


# --- rows -------------------------------------------------------------------------------------------------------------

SHORTEST_ROW, SHORT_ROW_OF_MANY, SHORT_ROW_SUMMED_IN_LOOP, MANY = 4, 7, 8, 2**18
"""Elements of a row of floats whose sum or extreme XLA makes, rows side by side: but of halves; of any, where numbers are so many
that the threads it wakes have been worth it; in a loop's body; that many."""

FEW_SUMMED_IN_LOOP, FEW_SUMMED_IN_SHORT_ROWS = 4096, 8192
"""Floats in rows that XLA has summed where it makes them, in a loop's body, when their maker has written them for a kernel, where
no vectors are wider than 32 bytes; in rows shorter than :data:`SHORT_ROW_IN_LOOP`."""

ROW_OF_EXTREMES, THREADED = 16, 2**17
"""Elements of a row of floats below which XLA finds the extreme, by clamping, where no vectors are wider than 32 bytes and it
shares numbers that are fewer among threads, as a kernel does not."""

SHORT_ROW_OF_BYTES, FEW_BYTES = 8, 8192
"""Bytes to a row whose extremes XLA finds where they are few: of many it is slower than a kernel, however short rows are."""

ROW_OF_FACTORS, ROW_OF_FACTORS_NARROW = 128, 8
"""Elements of a row of halves whose product XLA makes faster; where no vectors are wider than 32 bytes."""


def _reduces_rows(problem: OrderedProblem, operation: str, in_loop: bool | None) -> str | None:
    n, every, state = problem.n, _every(problem), problem.spec.state[0]
    is_complex = len(problem.spec.state) > 1
    if operation in EXTREMES and itemsize(state) == 1:
        return "few bytes: XLA's loop" if in_loop or (n < SHORT_ROW_OF_BYTES and every <= FEW_BYTES) else None
    if in_loop and is_complex and n < LONG_ROW:
        return "short rows in a loop: XLA makes what it folds"
    if operation not in ("add", *EXTREMES) or state not in HALVES + FLOATS:
        narrow = ROW_OF_FACTORS_NARROW if has_narrow_vectors() else ROW_OF_FACTORS
        short = n < (narrow if operation == "mul" and state in HALVES else FEW_STEPS)
        return "short rows, each reduced by itself" if short else None
    if is_complex:
        return None
    if n <= (SHORT_ROW_SUMMED_IN_LOOP if in_loop else _side_by_side(problem, operation)):
        return "short rows: XLA makes them side by side"
    if operation in EXTREMES and state in HALVES:
        return "short rows in a loop: XLA makes what it folds" if in_loop and n < SHORT_ROW_IN_LOOP else None
    if state in HALVES or not has_narrow_vectors():
        return None
    if operation in EXTREMES:
        return "short rows: XLA compares side by side" if n < ROW_OF_EXTREMES and every < THREADED else None
    few = FEW_SUMMED_IN_SHORT_ROWS if n < SHORT_ROW_IN_LOOP else FEW_SUMMED_IN_LOOP
    return "few sums in a loop: XLA makes what it folds" if in_loop and every <= few else None


def _side_by_side(problem: OrderedProblem, operation: str) -> int:
    """Numbers to a row up to which XLA goes through many rows at once."""
    every, narrow = _every(problem), has_narrow_vectors()
    halves = any(a.dtype in HALVES for a in problem.spec.arrays)  # of which sums are floats
    if operation == "add" and halves and narrow:
        return SHORT_ROW_OF_MANY
    if operation in EXTREMES and problem.spec.state[0] in FLOATS and narrow:
        shortest = 0 if halves else SHORTEST_ROW
        return min(shortest, ODD_ROW - 1) if every >= THREADED and problem.members % 2 else shortest
    return SHORT_ROW_OF_MANY if every >= MANY else 0 if halves else SHORTEST_ROW
