"""Where a stencil's kernel is faster than what XLA makes of the same equations, on CPUs: by estimates of the time of both."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import jax
from jax.extend.core import JaxprEqn, Var

from ...specs.stencil import WIDEST, fills_no_vector
from ...tracing import elementwise
from ...tracing.jaxprs import scatters, variables
from ...tracing.labels import NUMBER_BY_NUMBER, REDUCTIONS
from ..body import operations
from ..graph import OUTSIDE, Graph
from ..pays import DEAR, FUSED_BY_XLA, is_written_for
from .dear import BORDERS
from .stencil import Layout, Stencil
from .times import ONE_BY_ONE_REDUCED, UNROLLED, UPDATES, is_of_few_weights, time_in_kernel, time_in_loop, time_in_xla, words_of
from .xla_loops import xla_loops

FEWEST_CELLS, FEWEST_ADDED, FEWEST_WRITTEN = 2**12, 2**16, 2**11
"""Cells of each device below which XLA's loop is done before a kernel is called; of all where it adds to them in place; where it
makes them one by one."""

MOST_PARTS = 8
"""Devices beyond which it is not asked for more cells."""

_ADDED = scatters("add")
_WRITTEN = UPDATES | {"conv_general_dilated"}
"""What XLA does in a loop of its own."""

_SLICED = NUMBER_BY_NUMBER | {"slice"}
"""What costs XLA's loops nothing but loads."""

CALL, CALL_IN_A_LOOP = 1200, 2000
"""For a kernel's call beside XLA's: in a loop, XLA's equations have none."""

THROUGH_MEMORY = 0.2
"""For 32 bits that are written and read for a kernel alone."""

MARGIN, MARGIN_OF_LOOPS = 1.1, 1.3
"""How much faster a kernel has to be, than one loop and than several, of which less is known."""

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


SHORTEST_FOLDED = 160
"""Bytes of a row up to which a reduction does not make differences of neighbours in it."""


def folds(stencil: Stencil, combined: Collection[int]) -> bool:
    """Does a reduction of it pay that makes the cells as it combines them, by ``combined`` equations?"""
    layout, inner, cells = stencil.layout, stencil.layout.innermost, math.prod(stencil.shape)
    short = math.prod(layout.shape[inner:]) < SHORT_FOLDED * (1 + (inner in layout.counted))
    if len(layout.places) > MOST_FOLDED or jax.device_count() > 1:
        return len(layout.places) <= MOST_FOLDED  # several devices exchange less
    if _is_of_rows(stencil, combined):
        return not short
    if layout.beyond(inner):
        return cells >= FEWEST_FOLDED_AT_ENDS or (_is_wanted_again(stencil, combined) and not short)
    return inner not in layout.counted or cells >= FEWEST_FOLDED


def _is_of_short_differences(layout: Layout) -> bool:
    """Does a cell read two neighbours in a row, which take less than to begin it?"""
    row = math.prod(layout.shape[layout.innermost :]) * 4 * words_of(layout)
    return len(layout.places) <= 2 and row <= SHORTEST_FOLDED and not layout.beyond(layout.innermost)


def _is_wanted_again(stencil: Stencil, combined: Collection[int]) -> bool:
    """Do others than these equations want it?"""
    return any(u not in combined for s in stencil.sites for u in stencil.graph.users[s.eqn.outvars[0]])


def _fills_no_vector(layout: Layout) -> bool:
    """Are all cells of a row made one by one?"""
    inner, shape = layout.innermost, layout.shape
    offsets, width = [shifts[inner] for _, shifts in layout.places], int(WIDEST / (4 * words_of(layout)))
    return fills_no_vector(shape[inner], math.prod(shape[inner + 1 :]), offsets, width)


def why_no_steps(graph: Graph, counts: Mapping[int, float], layout: Layout) -> str | None:
    """As :func:`why_no_stencil`, of several steps."""
    if _fills_no_vector(layout):
        return "short rows"
    kernel, xla = time_in_kernel(layout, several=True), time_in_xla(graph, counts, layout, several=True)
    return None if MARGIN * kernel < xla else _in_words(kernel, xla)


def _in_words(kernel: float, xla: float) -> str:
    return f"XLA's loop takes about {xla / 1e3:.3g} us, a kernel {kernel / 1e3:.3g}"


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
    if _fills_no_vector(layout):
        return "short rows"
    if all(_is_of_constants(stencil.graph, v) for v in stencil.leaves):
        return "constants, which XLA makes when it compiles"
    if combined and folded and _is_of_short_differences(layout):
        return "differences along short rows"
    if combined:
        cheap = _is_cheap(inside)
        bordered = not BORDERS.isdisjoint(e.primitive.name for e in inside)
        short = math.prod(layout.shape[inner:]) < SHORT_FOLDED
        again = folded and sum(map(operations, inside)) <= FOLDED_AGAIN and cells >= FEWEST_FOLDED and not short
        if bordered and not layout.beyond(inner) and cells < FEWEST_IN_ROWS:
            again = False  # XLA would make borders of borders for the others
        if _is_wanted_again(stencil, combined) and cheap and not again:
            return "others want it too, and XLA makes it where it is read"
        return None
    if written:
        return None
    graph = stencil.graph
    kernel = time_in_kernel(layout) + (CALL_IN_A_LOOP if graph.in_loop else CALL) + _through_memory(stencil, by_xla)
    reduced = set[int]().union(*(_reductions_of(stencil, k, by_xla) for k in stencil.taken))
    with_it, before = _in_loops(stencil)
    before += THROUGH_MEMORY * words_of(layout) * cells * bool(reduced)
    if MARGIN_OF_LOOPS * (kernel + before) < with_it and layout.shape[-1] >= UNROLLED:  # of shorter rows XLA chooses nothing
        return None
    along_rows = [k for k in reduced if len(stencil.shape) - 1 in graph.eqns[k].params["axes"]]
    if len(reduced) > 1 or (reduced and (not along_rows or inner in layout.counted or _is_shared(stencil))):
        return "XLA reduces what it makes on its way, and writes that for both"
    if not inner and 0 in layout.counted:
        return "the ends of one row, which XLA's loop has as well"
    xla = time_in_xla(graph, stencil.counts, layout) + ONE_BY_ONE_REDUCED * cells * len(reduced)
    return None if MARGIN * kernel < xla else _in_words(kernel, xla)


def _is_of_constants(graph: Graph, var: Var) -> bool:
    """Is it made of literals alone, as the derivative of what is linear?"""
    eqns = [graph.eqns[k] for k in graph.needed([var])]
    return bool(eqns) and all(e.primitive.name != "iota" and set(variables(e.invars)) <= graph.producer.keys() for e in eqns)


def _in_loops(stencil: Stencil) -> tuple[float, float]:
    """What XLA's loops take that make all that a stencil does, and those that would have to make what it reads; but for what both
    need, and of what others want too its share."""
    graph, known, made = stencil.graph, stencil.seen.loops, [s.eqn.outvars[0] for s in stencil.sites]
    mine, shares = {s.index for s in stencil.sites}, dict[int, float]()
    for k in reversed(graph.needed(made)):
        users = [u for v in graph.eqns[k].outvars for u in graph.users.get(v, ())]
        shares[k] = 1 if k in mine else sum(shares.get(u, 0) for u in users) / len(users)
    every, before = xla_loops(graph, made, known), xla_loops(graph, stencil.leaves, known)
    with_it = (shares[graph.producer[v]] * time_in_loop(graph, v, loop) for v, loop in every.items() if v not in before)
    return sum(with_it), sum(time_in_loop(graph, v, loop) for v, loop in before.items() if v not in every)


def _through_memory(stencil: Stencil, by_xla: Collection[int]) -> float:
    """What it takes to write for a kernel alone what XLA makes where it is read, and the kernel's results for what XLA makes."""
    graph = stencil.graph
    users = [u for s in stencil.sites for u in graph.users[s.eqn.outvars[0]]]
    passed = all(u in by_xla and graph.eqns[u].primitive.name in FUSED_BY_XLA for u in users)
    written = [v for v in stencil.leaves if is_written_for(stencil, v)]
    columns = [u for v in stencil.leaves if v.aval.ndim > len(stencil.shape) for u in graph.users[v] if u in stencil.taken]
    cells = math.prod(stencil.shape) * (passed * len(stencil.sites) + len(columns))
    return THROUGH_MEMORY * words_of(stencil.layout) * (cells + sum(math.prod(v.aval.shape) for v in written))


def _is_cheap(inside: Sequence[JaxprEqn]) -> bool:
    """Is it little arithmetic, and nothing else than XLA's loops make where they read it?"""
    return sum(map(operations, inside)) < DEAR and all(e.primitive.name in _SLICED | BORDERS for e in inside)


def _fewest_cells(inside: Sequence[JaxprEqn]) -> int:
    if any(e.primitive.name == "conv_general_dilated" or _is_wide_window(e) for e in inside):
        return FEWEST_WRITTEN
    return fewest_cells() if _ADDED.isdisjoint(e.primitive.name for e in inside) else FEWEST_ADDED


def fewest_cells() -> int:
    """Of all devices together."""
    return FEWEST_CELLS * min(jax.device_count(), MOST_PARTS)


def _is_shared(stencil: Stencil) -> bool:
    """Do others want what it computes on its way, or several what it makes?"""
    graph, inside = stencil.graph, stencil.inside
    computed = [k for k in inside if graph.eqns[k].primitive.name in elementwise.NAMES]
    others = [u for k in computed for v in graph.eqns[k].outvars for u in graph.users[v] if u not in inside]
    return len(others) > 1 or OUTSIDE in others


def _is_of_rows(stencil: Stencil, combined: Collection[int]) -> bool:
    """Is each row reduced for itself?"""
    graph, mine = stencil.graph, sum(1 << s.index for s in stencil.sites)
    reductions = (graph.eqns[k] for k in combined if graph.eqns[k].primitive.name in REDUCTIONS and graph.ancestors[k] & mine)
    return len(stencil.shape) > 1 and any(0 not in e.params["axes"] for e in reductions)


def _reductions_of(stencil: Stencil, index: int, by_xla: Collection[int]) -> set[int]:
    """The equations by which XLA reduces what a stencil makes of shifted cells for itself, as they are or elementwise."""
    graph, mine = stencil.graph, stencil.inside
    shifts = (k for k in mine if graph.ancestors[index] >> k & 1 and graph.eqns[k].primitive.name in BORDERS | {"slice"})
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
        return not is_of_few_weights(graph, index)
    if graph.in_loop and name in UPDATES:
        return eqn.outvars[0].aval.ndim == 1
    return name in _WRITTEN or _is_wide_window(eqn)


def _is_wide_window(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name.startswith("reduce_window") and sum(n > 1 for n in eqn.params["window_dimensions"]) > 1
