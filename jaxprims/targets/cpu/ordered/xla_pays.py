"""Scans, segments and reductions that XLA's own operations make faster on CPUs, as measured (``python -m bench everyday``)."""

from __future__ import annotations

from ....ir.work import work
from ....specs.ordered import OrderedSpec
from ....specs.problems import OrderedProblem
from ..family import FEW
from ..histogram.xla_pays import SMALL, SMALL_HALVES
from ..llvm.types import HALVES
from ..xla_wakes import wakes_a_thread
from .xla_reduces import sums_one_function, xla_reduces

SMALL_SEGMENTS = 2048
"""As :data:`SMALL`, of segments by sorted ids."""

FEW_TO_SCAN, FEW_TO_FOLD, FEW_TO_SCAN_IN_ALL = 800, 8192, 4096
"""Scans, segments and reductions by any operator whose cost in XLA (:func:`_cost`) is no more than this: it is less than half a
microsecond, which is what a call of a kernel takes."""

CHEAP, ONE_LOOP = 8, 16
"""Operations for each scalar of a cheap operator; steps up to which a scan is one loop of XLA's."""

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
"""How much more an element costs that has to find its segment among offsets."""

STEPS_IN_LOOP, COST_IN_LOOP = 8, 50_000
"""Steps of rows that lie side by side, and their cost in XLA (:func:`_cost`), which are done in a loop's body when their maker
has written the elements for a kernel; of scans fewer than :data:`ONE_LOOP`, by what XLA knows, as windows, at a quarter of it."""


def xla_pays(problem: OrderedProblem, operation: str, in_loop: bool | None) -> str | None:
    """Why, in words; None where a kernel is faster. All sizes are known."""
    if not isinstance(problem.spec, OrderedSpec) or (in_loop is False and wakes_a_thread(problem, operation)):
        return None
    if operation == "gather":
        if in_loop is not False:
            return "numbers read by index in a loop: XLA reads them where it combines them"
        return FEW if problem.n * problem.members <= FEW_READ else None
    if problem.spec.is_map:
        return None  # `fuse` has weighed what its elements are made of
    if _few_of_any(problem, operation) or _few_in_segments(problem, operation):
        return FEW
    if not operation and _short_rows(problem):
        return "short rows: an operation for each doubling, on all of them"
    if in_loop and _few_steps(problem, operation):
        return "few steps in a loop: XLA makes what it combines"
    if not operation and sums_one_function(problem):
        return "rows of one function, which XLA has in vectors"
    if problem.family == "scan":
        return "two elements: one operation" if operation and problem.n <= 2 else None
    return xla_reduces(problem, operation, in_loop) if problem.family == "reduce" and operation else None


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


def _few_in_segments(problem: OrderedProblem, operation: str) -> bool:
    """By sorted ids."""
    if problem.family != "segments" or not operation or not problem.ids:
        return False
    most = SMALL_HALVES if operation == "add" and problem.spec.leaves[0][0] in HALVES else SMALL_SEGMENTS
    most = SMALL if operation == "leaves" else most
    return bool(problem.n * problem.lanes * problem.members * len(problem.spec.leaves) <= most)


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
    if work(spec.f) > (0 if spec.state[0] in HALVES else CHEAP):
        return bool(problem.n < SHORTEST)
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
