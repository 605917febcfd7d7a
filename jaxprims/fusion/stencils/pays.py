"""Where a stencil's kernel is faster than what XLA makes of the same equations, on CPUs: by estimates of the time of both."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from ...specs.stencil import WIDEST
from ...targets.cpu.llvm.engine import has_narrow_vectors
from ...tracing import elementwise
from ...tracing.jaxprs import scatters
from ...tracing.labels import NUMBER_BY_NUMBER, REDUCTIONS
from ..body import additions, operations
from ..graph import OUTSIDE, Graph
from ..pays import DEAR, FUSED_BY_XLA, is_one_by_one, is_written_for
from .cells import Apply
from .dear import work
from .stencil import Layout, Stencil

FEWEST_CELLS, FEWEST_ADDED, FEWEST_WRITTEN = 2**12, 2**16, 2**11
"""Cells below which XLA's loop is done before a kernel is called; where it adds to them in place; where it makes them one by
one."""

_ADDED = scatters("add")
_UPDATES = _ADDED | {"scatter", "dynamic_update_slice"}
_WRITTEN = _UPDATES | {"conv_general_dilated"}
"""What XLA does in a loop of its own."""

_SLICED = NUMBER_BY_NUMBER | {"slice"}
"""What costs XLA's loops nothing but loads."""

_BORDERS = frozenset("concatenate pad rev".split())
"""What puts other cells beside a row's, or others' rows."""

# --- estimates: nanoseconds, fitted to what 47 stencils over 16 grids took on one core of a Zen 4 -------------------------------

NUMBER, NUMBER_IN_MEMORY, STREAMED = 0.11, 0.3, 0.2
"""For 32 bits of each cell: to read it and to write its result, in caches or memory; in memory past the caches, as kernels do."""

BY_XLA, BY_KERNEL, READ_BY_KERNEL = (0.007, 0.022), (0.005, 0.014), 0.0065
"""For 32 bits of each cell: an addition in XLA's vectors, up to :data:`FEW` of them, which other work hides, and beyond; in a
kernel's; a kernel's read."""

FEW = 8

COMPLEX = 3
"""Times as much arithmetic with quotients or functions of complex numbers."""

ROUNDED_BY_XLA, ROUNDED_BY_KERNEL = 0.3, 0.1
"""For each cell: an addition of halves, rounded to halves."""

CHOSEN, BESIDE_CHOICES, PADDED, OTHER_ROWS, THREE_AXES, NARROW = 0.02, 0.04, 0.25, 0.03, 0.5, 0.65
"""For each cell, where XLA's loop chooses at the ends of rows: each choice; an addition, since that loop has no vectors; if what
is chosen may be a number that is no array's; each choice of rows, too; if along three axes, what is in arrays. The part of it all
that is left without vectors of 64 bytes: XLA's compiler has more uses for smaller ones."""

WIDE_ROW = 512
"""Numbers of a row from which on XLA's loop with one such choice, and few additions, is made of its pieces."""

PADDED_ROWS, FOLDED, COPIED, FEW_SLICES = 0.06, 0.08, 0.4, 3
"""For each cell: a border of whole rows of such numbers, where rows' ends are no others; an addition in a window; what is updated
of more slices than so many in a loop, which XLA does in place otherwise."""

FEW_WEIGHTED = 32
"""Additions and products up to which a convolution in a loop is in XLA's vectors."""

ONE_BY_ONE_REDUCED = 0.3
"""For each cell that XLA makes within a reduction along rows."""

UNROLLED, CHOSEN_UNROLLED, PADDED_UNROLLED, ONE_BY_ONE = 48, 0.05, 0.4, 0.2
"""Numbers of a row below which XLA's compiler makes one piece of code of it; what a cell takes more then, with such choices; the
part of it all that is left if numbers that are no array's are chosen; what a cell takes more without choices."""

ROW, ROW_OF_STEPS, READ_OF_ROW, NUMBER_OF_ROW, ENDS_OF_ROW = 3.5, 16, 0.9, 3, 6.5
"""For each row of a kernel, in one step or each of several; for each read of it; for each number that all its cells read; if
something else is beyond its ends."""

CALL, CALL_IN_A_LOOP = 1200, 2000
"""For a kernel's call beside XLA's: in a loop, XLA's equations have none."""

THROUGH_MEMORY = 0.2
"""For 32 bits that are written and read for a kernel alone."""

IN_CACHES, IN_CACHES_OF_STEPS = 2**25, 2**21
"""Bytes of a grid from which on it is in memory; from which on each of several steps in XLA's loops goes through memory."""

MARGIN = 1.1
"""How much faster a kernel has to be."""


def time_in_xla(graph: Graph, counts: Mapping[int, float], layout: Layout, several: bool = False) -> float:
    """What XLA's loop takes for these equations, each so often for a cell. ``several``: in one of several steps."""
    inner, cells, words = layout.innermost, math.prod(layout.shape), _words(layout)
    at_ends = at_rows = additions = one_by_one = slices = mapped = 0.0
    padded = padded_rows = updated = False
    bordered = set[int]()
    for k, count in counts.items():
        eqn = graph.eqns[k]
        name, axes = eqn.primitive.name, _bordered(eqn)
        if axes and math.prod(eqn.outvars[0].aval.shape) * 2 > cells:
            ends = inner in axes
            bordered |= axes
            at_ends, at_rows = at_ends + count * ends, at_rows + count * (not ends)
            padded, padded_rows = padded or (name == "pad" and ends), padded_rows or (name == "pad" and not ends)
        elif name in _UPDATES:
            updated = True
        elif name.startswith("reduce_window") or (name == "conv_general_dilated" and not _is_of_few_weights(graph, k)):
            one_by_one += FOLDED * work(graph, k) * count
        else:
            slices += count * (name == "slice")
            additions += 0 if is_one_by_one(eqn) else work(graph, k) * count
            mapped += work(graph, k) if is_one_by_one(eqn) else 0
    if updated and slices > FEW_SLICES:
        one_by_one += COPIED
    if mapped:
        one_by_one += words * (NUMBER + mapped * BY_KERNEL[1])  # by a map's kernel
    in_memory = cells * words * 4 > (IN_CACHES_OF_STEPS if several else IN_CACHES)
    each = words * _arrays(layout) * (NUMBER_IN_MEMORY if in_memory else NUMBER) + one_by_one
    row, unrolled = math.prod(layout.shape[inner:]), layout.shape[-1] < UNROLLED
    chooses = at_ends > 1 or padded or (at_ends > 0 and (row < WIDE_ROW or additions > FEW))
    choices = at_ends * CHOSEN + at_rows * OTHER_ROWS + THREE_AXES * (len(bordered) > 2 and not padded)
    scalar = (additions * BESIDE_CHOICES + PADDED * padded) * (PADDED_UNROLLED if padded and unrolled else 1)
    if _is_of_halves(layout):
        each += additions * ROUNDED_BY_XLA + PADDED * padded + choices
    elif chooses:
        each += (scalar + choices) * (NARROW if has_narrow_vectors() else 1) + CHOSEN_UNROLLED * unrolled
    else:
        each += at_rows * PADDED_ROWS * padded_rows
        each += ONE_BY_ONE + scalar if unrolled and layout.lanes else words * _of_additions(additions, BY_XLA)
    return cells * each


def time_in_kernel(layout: Layout, several: bool = False) -> float:
    """What a kernel takes, without its call. ``several``: for one of several steps."""
    inner, cells, words = layout.innermost, math.prod(layout.shape), _words(layout)
    rows, reads = cells / math.prod(layout.shape[inner:]), len(layout.places)
    row = (ROW_OF_STEPS if several else ROW) + READ_OF_ROW * reads + ENDS_OF_ROW * (layout.beyond(inner) > 0)
    row += NUMBER_OF_ROW * len(layout.captured)
    arrays = 1 if several else _arrays(layout)
    number = arrays * (STREAMED if cells * words * 4 > IN_CACHES and not several else NUMBER)
    halves = _is_of_halves(layout)
    arithmetic = layout.work * ROUNDED_BY_KERNEL if halves else words * _of_additions(layout.work, BY_KERNEL)
    if any(isinstance(n, Apply) and additions(n.op.name) > 1 and n.op.dtype.kind == "c" for n in layout.made):
        arithmetic *= COMPLEX
    return rows * row + cells * (words * (number + READ_BY_KERNEL * reads) + arithmetic)


def _arrays(layout: Layout) -> float:
    """Pairs of one that is read and one that is written."""
    return (len(layout.sources) + layout.results) / 2


def _of_additions(count: float, each: tuple[float, float]) -> float:
    few = min(count, FEW)
    return few * each[0] + (count - few) * each[1]


def _is_of_halves(layout: Layout) -> bool:
    return all(jnp.issubdtype(v.aval.dtype, jnp.floating) and v.aval.dtype.itemsize == 2 for v in layout.variables)


def _words(layout: Layout) -> float:
    """The widest number's, of 32 bits."""
    return max((v.aval.dtype.itemsize for v in layout.variables), default=4) / 4


def fills_no_vector(layout: Layout) -> bool:
    """Is a row, but for what reads beyond its ends, shorter than a vector, so that a kernel makes all cells one by one?"""
    inner = layout.innermost
    shifts = [shifts[inner] for _, shifts in layout.places]
    inside = layout.shape[inner] - max(shifts, default=0) + min(shifts, default=0)
    return inside * math.prod(layout.shape[inner + 1 :]) * _words(layout) * 4 < WIDEST


def why_no_steps(graph: Graph, counts: Mapping[int, float], layout: Layout) -> str | None:
    """As :func:`why_no_stencil`, of several steps."""
    if fills_no_vector(layout):
        return "short rows"
    kernel, xla = time_in_kernel(layout, several=True), time_in_xla(graph, counts, layout, several=True)
    return None if MARGIN * kernel < xla else _in_words(kernel, xla)


def _in_words(kernel: float, xla: float) -> str:
    return f"XLA's loop takes about {xla / 1e3:.3g} us, a kernel {kernel / 1e3:.3g}"


# --- what pays ------------------------------------------------------------------------------------------------------------------

FEWEST_IN_ROWS = 2**22
"""Cells below which XLA reads as fast what has borders on other axes than the innermost."""

FOLDED_AGAIN = 2
"""Additions a cell up to which a reduction makes again what others want too."""

MOST_FOLDED, FEWEST_FOLDED = 12, 2**16
"""Reads of a cell up to which a reduction makes the cells: what neighbours have in common, of many reads, a stencil makes once;
and cells from which on it does so where the ends of rows are cells of their own, or others want them too."""

SHORT_FOLDED, FEWEST_FOLDED_AT_ENDS = 256, 2**21
"""Numbers of a row below which XLA reduces each, or all of what others want too, as fast; cells from which on a reduction makes
those at the ends of rows as well, since all of them are in memory."""


def folds(stencil: Stencil, combined: Collection[int]) -> bool:
    """Does a reduction of it pay that makes the cells as it combines them, by ``combined`` equations?"""
    layout, inner, cells = stencil.layout, stencil.layout.innermost, math.prod(stencil.shape)
    if len(layout.places) > MOST_FOLDED:
        return False
    if _is_of_rows(stencil, combined):
        return math.prod(layout.shape[inner:]) >= SHORT_FOLDED * (1 + (inner in layout.counted))
    if layout.beyond(inner):
        return cells >= FEWEST_FOLDED_AT_ENDS
    return inner not in layout.counted or cells >= FEWEST_FOLDED


def _bordered(eqn: JaxprEqn) -> frozenset[int]:
    """The axes on which an equation puts other cells beside a row's, or others' rows."""
    match eqn.primitive.name:
        case "pad":
            return frozenset(k for k, (low, high, _) in enumerate(eqn.params["padding_config"]) if max(low, high) > 0)
        case "concatenate":
            axis = eqn.params["dimension"]
            return frozenset([axis] if sum(v.aval.shape[axis] > 0 for v in eqn.invars) > 1 else ())
        case "rev":
            return frozenset(eqn.params["dimensions"])
    return frozenset()


def why_no_stencil(
    stencil: Stencil, combined: Collection[int] = (), folded: bool = False, by_xla: Collection[int] = ()
) -> str | None:
    """Why XLA's own code is the strategy, in words; None where a stencil's kernel is faster. ``combined``: it is made for a
    kernel that combines all of it, and these equations are in such kernels; ``folded``: as it is made, without writing it;
    ``by_xla``: equations that XLA evaluates, but for those of stencils."""
    cells, layout, inner = math.prod(stencil.shape), stencil.layout, stencil.layout.innermost
    inside = [stencil.graph.eqns[k] for k in stencil.taken]
    written = any(_is_written(stencil.graph, k) for k in stencil.taken)
    if cells < _fewest_cells(inside):
        return "few cells: XLA's loop is done before a kernel is called"
    if fills_no_vector(layout):
        return "short rows"
    if combined:
        users = [u for s in stencil.sites for u in stencil.graph.users[s.eqn.outvars[0]]]
        wanted_again = any(u not in combined for u in users)
        cheap = _is_cheap(inside)
        bordered = not _BORDERS.isdisjoint(e.primitive.name for e in inside)
        short = math.prod(layout.shape[inner:]) < SHORT_FOLDED
        again = folded and sum(map(operations, inside)) <= FOLDED_AGAIN and cells >= FEWEST_FOLDED and not short
        if bordered and not layout.beyond(inner) and cells < FEWEST_IN_ROWS:
            again = False  # XLA would make borders of borders for the others
        if wanted_again and cheap and not again:
            return "others want it too, and XLA makes it where it is read"
        return None
    if written:
        return None
    reduced = set[int]().union(*(_reductions_of(stencil, k, by_xla) for k in stencil.taken))
    along_rows = [k for k in reduced if len(stencil.shape) - 1 in stencil.graph.eqns[k].params["axes"]]
    returned = any(OUTSIDE in stencil.graph.users[stencil.graph.eqns[k].outvars[0]] for k in stencil.inside)
    if len(reduced) > 1 or (reduced and (returned or not along_rows or inner in layout.counted)):
        return "XLA reduces what it makes on its way, and writes that for both"
    if not inner and 0 in layout.counted:
        return "the ends of one row, which XLA's loop has as well"
    graph = stencil.graph
    kernel = time_in_kernel(layout) + (CALL_IN_A_LOOP if graph.in_loop else CALL) + _through_memory(stencil, by_xla)
    xla = time_in_xla(graph, stencil.counts, layout) + ONE_BY_ONE_REDUCED * cells * len(reduced)
    return None if MARGIN * kernel < xla else _in_words(kernel, xla)


def _through_memory(stencil: Stencil, by_xla: Collection[int]) -> float:
    """What it takes to write for a kernel alone what XLA makes where it is read, and the kernel's results for what XLA makes."""
    graph = stencil.graph
    users = [u for s in stencil.sites for u in graph.users[s.eqn.outvars[0]]]
    passed = all(u in by_xla and graph.eqns[u].primitive.name in FUSED_BY_XLA for u in users)
    written = [v for v in stencil.leaves if is_written_for(stencil, v)]
    columns = [u for v in stencil.leaves if v.aval.ndim > len(stencil.shape) for u in graph.users[v] if u in stencil.taken]
    cells = math.prod(stencil.shape) * (passed * len(stencil.sites) + len(columns))
    return THROUGH_MEMORY * _words(stencil.layout) * (cells + sum(math.prod(v.aval.shape) for v in written))


def _is_cheap(inside: Sequence[JaxprEqn]) -> bool:
    """Is it little arithmetic, and nothing else than XLA's loops make where they read it?"""
    return sum(map(operations, inside)) < DEAR and all(e.primitive.name in _SLICED | _BORDERS for e in inside)


def _fewest_cells(inside: Sequence[JaxprEqn]) -> int:
    if any(e.primitive.name == "conv_general_dilated" or _is_wide_window(e) for e in inside):
        return FEWEST_WRITTEN
    return FEWEST_CELLS if _ADDED.isdisjoint(e.primitive.name for e in inside) else FEWEST_ADDED


def _is_of_rows(stencil: Stencil, combined: Collection[int]) -> bool:
    """Is each row reduced for itself?"""
    graph, mine = stencil.graph, sum(1 << s.index for s in stencil.sites)
    reductions = (graph.eqns[k] for k in combined if graph.eqns[k].primitive.name in REDUCTIONS and graph.ancestors[k] & mine)
    return len(stencil.shape) > 1 and any(0 not in e.params["axes"] for e in reductions)


def _reductions_of(stencil: Stencil, index: int, by_xla: Collection[int]) -> set[int]:
    """The equations by which XLA reduces what a stencil makes of shifted cells for itself, as they are or elementwise."""
    graph, mine = stencil.graph, stencil.inside
    shifts = (k for k in mine if graph.ancestors[index] >> k & 1 and graph.eqns[k].primitive.name in _BORDERS | {"slice"})
    if graph.eqns[index].primitive.name not in elementwise.NAMES or not any(shifts):
        return set()
    todo, seen, found = [index], set(mine), set[int]()
    while todo:
        for u in (u for v in graph.eqns[todo.pop()].outvars for u in graph.users[v] if u in by_xla and u not in seen):
            seen.add(u)
            if graph.eqns[u].primitive.name in REDUCTIONS:
                found.add(u)
            elif graph.eqns[u].primitive.name in elementwise.NAMES:
                todo.append(u)
    return found


def _is_written(graph: Graph, index: int) -> bool:
    """Does XLA make it in a loop of its own, number by number? In a loop it updates rows in place."""
    eqn = graph.eqns[index]
    name = eqn.primitive.name
    if graph.in_loop and name == "conv_general_dilated":
        return not _is_of_few_weights(graph, index)
    if graph.in_loop and name in _UPDATES:
        return eqn.outvars[0].aval.ndim == 1
    return name in _WRITTEN or _is_wide_window(eqn)


def _is_of_few_weights(graph: Graph, index: int) -> bool:
    """Are a convolution's weights so few that XLA's loops, in which it has no library, are vectors of it?"""
    return work(graph, index) <= FEW_WEIGHTED and graph.eqns[index].params["feature_group_count"] == 1


def _is_wide_window(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name.startswith("reduce_window") and sum(n > 1 for n in eqn.params["window_dimensions"]) > 1
