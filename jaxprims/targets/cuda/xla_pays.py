"""Where XLA's own operation is the faster one on NVIDIA GPUs, or does what a kernel would and is sooner enqueued.

The figures are of two runs on an H200 (``docs/gpu.md``). What is left to XLA takes as long as plain JAX does; so a kernel is for
what is known, or calculated, to be faster with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ...ir.program import COUNTED, Program, itemsize
from ...ir.work import work
from ...operators.classify import recognise
from ...specs.ordered import OrderedSpec
from ...specs.problems import HistogramProblem, OrderedProblem, Problem, StencilProblem
from .plans import HistogramPlan

CALL = 25.0
"""Microseconds. A call of ours is two or three launches, one of XLA's scatters one or two; it takes 8 to 15 microseconds longer
to enqueue. The GPU is at work meanwhile: what takes XLA no more than this is done before a kernel's launches are enqueued."""

LITTLE = 32 << 20
"""Bytes that are read and written in some 8 microseconds: what a kernel reads fewer times is less than its call costs."""

FEW_WRITTEN = 4
"""Numbers of an element's result up to which each thread writes its own."""

_WORDS = ("s32", "u32", "s64", "u64")
TURNS: Mapping[tuple[str, str], float] = {
    **{("add", dtype): 1 for dtype in (*_WORDS, "f32", "f64")},
    **{(name, dtype): 1 for name in ("min", "max") for dtype in _WORDS},
    ("max", "f32"): 0.3,
    ("min", "f32"): 4,
    **{(name, "f64"): 4 for name in ("min", "max")},
    **{("mul", dtype): 12 for dtype in (*_WORDS, "f32", "f64")},
}
"""What XLA's scatter does natively, by operator and dtype: 1 where an update is an atomic of the hardware's; where it is a loop
of compare-and-swap, a read and two ways to L2 at least, so much longer, and of products, which always change what is there,
longer again; a maximum that is no greater is only read. Narrow types are loops on words that neighbours share."""

ALONE, SPREAD, LEAST = 1.8e-3, 0.45, 0.013e-3
"""Microseconds of an update by XLA's scatter: ``ALONE / entries ** SPREAD``. Measured, in nanoseconds, of 2^27 updates: 1.76 into
one bin, 0.22 into 100, 0.09 into 1,000, 0.0134 into 60,000; no less than that into more."""

SECTOR = 8
"""Numbers of a row that L2 takes as one update: XLA's threads go along rows."""

CHEAP = 64
"""Operations that make an index and a value, as XLA fuses them with its scatter, or a cell of a stencil. Loops it does not fuse:
the host enqueues each turn."""

RUN = 1024
"""Elements of a segment whose updates wait for each other no longer than :data:`ALONE` times that, 1.8 microseconds."""

SHORT_ROW, LONGEST_ROW = 16, 512
"""Elements up to which a scan of XLA's is one window for each, in one kernel; up to which logaddexp's, by doubling distances,
is sooner done than enqueued, where all rows are :data:`FEW_TO_SCAN`."""

FEW_TO_SCAN = 4096
"""Numbers that one block's tile holds: no others are at work meanwhile."""

SEVERAL = "several histograms: their copies are stored and combined for longer than XLA's updates take"
"""Of 2 x 10^6 updates of 50,000 bins, 132 copies of 200 KB: 84 microseconds, XLA's two scatters 59."""

REDUCED = frozenset("add mul min max and or xor argmin argmax complex_mul".split())
SCANNED = frozenset("add mul min max".split())
"""What XLA has an operation for that reads its operand once, and fuses with what is around it."""


def xla_pays(problem: Problem, operation: str, plan: Callable[[HistogramProblem], HistogramPlan]) -> str | None:
    """Why, in words; None where a kernel is faster. All sizes are known. ``plan``: which one the kernel would have."""
    if isinstance(problem, HistogramProblem):
        return _scatter(problem, plan)
    if isinstance(problem, StencilProblem):
        return _stencil(problem)
    if not isinstance(problem, OrderedProblem) or not isinstance(problem.spec, OrderedSpec):
        return None
    if problem.spec.is_map:
        rows = any(slots > FEW_WRITTEN for _, slots in problem.spec.leaves)
        return "short rows, which XLA's threads write side by side" if rows else None
    if problem.family == "reduce" and (operation in REDUCED or (operation == "leaves" and not _loops(problem.spec.f))):
        return "XLA's reduction reads each element once, too, and what is around it is fused with it"
    if problem.family == "reduce" and operation == "logaddexp" and _bytes(problem) <= LITTLE:
        return "few numbers: XLA's two reductions read them from caches"
    if problem.family == "scan":
        return _scan(problem, operation)
    if problem.family == "segments" and operation:
        return _segments(problem, operation)
    return None


def scatter_time(updates: int, lanes: int, entries: int, turns: float) -> float:
    """Microseconds that XLA takes for so many numbers, of rows of ``lanes``, into ``entries``."""
    each = max(ALONE / max(entries, 1) ** SPREAD, LEAST)
    return turns * each * updates / min(max(lanes, 1), SECTOR)


def _scatter(problem: HistogramProblem, plan: Callable[[HistogramProblem], HistogramPlan]) -> str | None:
    """Of updates made in few operations, one for each element and histogram."""
    parts = problem.spec.bins
    if any(part.updates > 1 or len(part.leaves) > 1 for part in parts):
        return None
    if not all(_is_cheap(p) for p in (problem.spec.f, *(part.value for part in parts)) if p is not None):
        return None
    turns = [TURNS.get((recognise(part.op) or "", part.leaves[0][0])) for part in parts]
    time = 0.0
    for part, bins, each in zip(parts, problem.bins, turns, strict=True):
        if each is None:
            return None
        numbers, entries = problem.n * problem.members * part.lanes, bins * problem.members * part.lanes
        time += scatter_time(numbers, part.lanes, entries, each)
    if len(parts) > 1:
        return SEVERAL if time <= CALL * len(parts) and _copied(plan(problem)) > LITTLE else None
    if time <= CALL:
        return "few updates that wait for each other: XLA's are done before a kernel's are enqueued"
    if turns != [1]:
        return None
    mine = plan(problem)
    sampled = dict(mine.numbers_by_name)["race factor"] == 0
    if (mine.space, mine.subhistograms, mine.passes, sampled) == ("global", 1, 1, False):
        return "one atomic for each number in global memory, as XLA's scatter has it"
    return None


def _copied(plan: HistogramPlan) -> int:
    """Bytes of the copies that a kernel's blocks have in shared memory: each is stored, and read to be combined."""
    numbers = dict(plan.numbers_by_name)
    return 2 * numbers["grid"] * numbers["shared bytes"] if plan.space == "shared" else 0


def _is_cheap(p: Program) -> bool:
    return work(p) <= CHEAP and not _loops(p)


def _loops(p: Program) -> bool:
    """Has it any, which XLA does not fuse?"""
    return any(i.op in COUNTED or i.op in ("while", "cond") for i in p.body)


def _bytes(problem: OrderedProblem) -> int:
    """What a call's states take in memory."""
    return math.prod(problem.sizes) * sum(itemsize(dtype) for dtype in problem.spec.state)


def _scan(problem: OrderedProblem, operation: str) -> str | None:
    if operation in SCANNED and problem.n <= SHORT_ROW:
        return "short rows: each result is a window, all in one kernel"
    few = math.prod(problem.sizes) <= FEW_TO_SCAN
    if few and (operation in SCANNED or (operation == "logaddexp" and problem.n <= LONGEST_ROW)):
        return "few numbers: no more than a block's"
    if operation == "logaddexp" and problem.n <= SHORT_ROW:
        return "short rows: by doubling distances, all in one kernel"
    return None


def _stencil(problem: StencilProblem) -> str | None:
    """Of functions that XLA fuses with what they read: a kernel of one step takes 1.1 to 3.4 times as long. Of several steps XLA
    writes and reads all that lies between."""
    spec = problem.spec
    if not _is_cheap(spec.f):
        return None
    if problem.steps == 1:
        return "one step: XLA fuses what it reads, and what is around it"
    cell = spec.unit * sum(itemsize(dtype) * slots for dtype, slots in (*spec.arrays, *spec.leaves))
    large = math.prod(problem.sizes) * cell > LITTLE
    return "steps of a large grid: XLA's are as long as memory takes" if large else None


def _segments(problem: OrderedProblem, operation: str) -> str | None:
    """By ids, and where the order of updates leaves no trace, as the same bits are promised: neither sums of floats, nor their
    maxima, of which a zero's sign is the first one's."""
    dtype, slots = problem.spec.leaves[0]
    turns = TURNS.get((operation, dtype))
    if turns is None or not problem.ids or dtype not in _WORDS or problem.n > RUN * problem.num_segments:
        return None
    lanes = problem.lanes * slots
    time = scatter_time(problem.n * problem.members * lanes, lanes, problem.num_segments * problem.members * lanes, turns)
    return "few updates, of short segments: XLA's are done before a kernel's are enqueued" if time <= CALL else None
