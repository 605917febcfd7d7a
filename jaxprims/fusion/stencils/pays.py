"""Where a stencil's kernel is faster than what XLA makes of the same equations, on CPUs, as measured (``bench fuse``)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from jax.extend.core import JaxprEqn

from ...specs.stencil import WIDEST, is_short_row
from ...tracing import elementwise
from ...tracing.jaxprs import scatters
from ...tracing.labels import NUMBER_BY_NUMBER, REDUCTIONS
from ..body import operations
from ..graph import Graph
from ..pays import DEAR, FUSED_BY_XLA, ONE_BY_ONE, is_written_for
from .stencil import Layout, Stencil

FEWEST_CELLS, FEWEST_ADDED, FEWEST_WRITTEN, FEWEST_AT_ROWS_ENDS = 2**15, 2**16, 2**11, 2**18
"""Cells below which XLA's loop is done before a kernel's tiles are laid out, in one step or in each of several; where it adds to
them in place; where it makes them one by one; where the cells at the ends of rows are others."""

FEWEST_IN_ROWS, FEWEST_OF_SLICES = 2**22, 2**23
"""Cells below which XLA reads as fast what has borders on other axes than the innermost; what has none."""

BORDERS_OF_RESULT, BORDERS_OF_OPERAND = 4, 3
"""Borders that take XLA as long as it takes a kernel to write what XLA's loops read; and to read what they write for it, or a
column, whose numbers do not lie side by side."""

SHORT_ROW_OF_CELLS, MOST_BORDERED = 128, 3
"""Numbers of a row below which XLA's loops have its ends as fast, unless those of another axis meet them in corners, or so many
axes have ends."""

_ADDED = scatters("add")
_WRITTEN = _ADDED | {"conv_general_dilated", "scatter", "dynamic_update_slice"}
"""What XLA does in a loop of its own."""

_SLICED = NUMBER_BY_NUMBER | {"slice"}
"""What costs XLA's loops nothing but loads."""

_BORDERS = frozenset("concatenate pad rev".split())
"""What puts other cells beside a row's, or others' rows."""

FOLDED_AGAIN = 2
"""Additions a cell up to which a reduction makes again what others want too."""

MOST_FOLDED, FEWEST_FOLDED = 12, 2**16
"""Reads of a cell up to which a reduction makes the cells: what neighbours have in common, of many reads, a stencil makes once;
and cells from which on it does so where the ends of rows are cells of their own, or others want them too."""

SHORT_FOLDED, SHORT_FOLDED_AGAIN = 128, 256
"""Numbers of a row, with each of which a reduction begins anew, below which XLA makes the cells and reduces them as fast: if the
ends are cells of their own; if they are not, and others want the cells too."""


def folds(stencil: Stencil) -> bool:
    """Does a reduction of it pay that makes the cells as it combines them?"""
    layout, inner = stencil.layout, len(stencil.shape) - 1 - stencil.layout.lanes
    ends = inner in layout.counted or layout.beyond(inner) > 0
    return len(layout.places) <= MOST_FOLDED and (not ends or math.prod(stencil.shape) >= FEWEST_FOLDED)


def are_short_rows(layout: Layout) -> bool:
    """Are too many cells, or all, made one by one (:func:`is_short_row`)?"""
    inner = len(layout.shape) - 1 - layout.lanes
    shifts = [shifts[inner] for _, shifts in layout.places]
    width = WIDEST // max((v.aval.dtype.itemsize for v in layout.variables), default=1)
    return is_short_row(layout.shape[inner], math.prod(layout.shape[inner + 1 :]), shifts, width)


def are_ends_of_short_rows(layout: Layout, graph: Graph, taken: Collection[int]) -> bool:
    """Are the ends of short rows all that takes time in these equations, which XLA makes in vectors along them, too?"""
    inner = len(layout.shape) - 1
    names = {graph.eqns[k].primitive.name for k in taken}
    if layout.lanes or layout.shape[inner] >= SHORT_ROW_OF_CELLS or not names <= (_SLICED | _BORDERS) - ONE_BY_ONE:
        return False
    borders = {k: axes for k in taken if (axes := _bordered(graph.eqns[k]))}
    corners = any(len(a | borders[j]) > 1 for k, a in borders.items() for j in borders if j == k or graph.ancestors[k] >> j & 1)
    few = len(frozenset().union(*borders.values())) < MOST_BORDERED
    return few and not corners and (layout.beyond(inner) > 0 or inner in layout.counted)


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
    cells, layout, inner = math.prod(stencil.shape), stencil.layout, len(stencil.shape) - 1 - stencil.layout.lanes
    inside = [stencil.graph.eqns[k] for k in stencil.taken]
    written = any(e.primitive.name in _WRITTEN or _is_wide_window(e) for e in inside)
    if cells < _fewest_cells(inside):
        return "few cells: XLA's loop is done before a kernel is called"
    if are_short_rows(layout):
        return "short rows"
    if combined:
        users = [u for s in stencil.sites for u in stencil.graph.users[s.eqn.outvars[0]]]
        wanted_again = any(u not in combined for u in users)
        cheap = _is_cheap(inside)
        bordered = not _BORDERS.isdisjoint(e.primitive.name for e in inside)
        beyond = layout.beyond(inner) > 0
        short = math.prod(layout.shape[inner:]) < (SHORT_FOLDED if beyond else SHORT_FOLDED_AGAIN)
        again = folded and sum(map(operations, inside)) <= FOLDED_AGAIN and cells >= FEWEST_FOLDED and not short
        if bordered and not beyond and cells < FEWEST_IN_ROWS:
            again = False  # XLA would make borders of borders for the others
        if wanted_again and cheap and not again:
            return "others want it too, and XLA makes it where it is read"
        return "short rows, whose ends are cells of their own" if folded and beyond and short else None
    if written:
        return None
    if any(_is_reduced(stencil, k, by_xla) for k in stencil.taken):
        return "XLA reduces what it makes on its way, and writes that for both"
    if _is_made_where_it_is_read(stencil, inside, by_xla):
        return "XLA makes it in the loop that reads it, of what it need not write either"
    if are_ends_of_short_rows(layout, stencil.graph, stencil.inside):
        return "the ends of short rows, which XLA's loops have as well"
    if not inner and 0 in layout.counted:
        return "the ends of one row, which XLA's loop has as well"
    padded_slices = {"pad", "slice"} <= {e.primitive.name for e in inside}  # XLA makes these again for each that it adds
    ends_of_rows = inner in layout.counted and not padded_slices
    if layout.beyond(inner) and (cells >= FEWEST_AT_ROWS_ENDS or not ends_of_rows):
        return None
    if not (_BORDERS | {"reduce_window_sum"}).isdisjoint(e.primitive.name for e in inside):
        return None if cells >= FEWEST_IN_ROWS else "borders that XLA's loops have as well"
    return None if cells >= FEWEST_OF_SLICES else "slices that XLA's loop reads as well"


def _is_made_where_it_is_read(stencil: Stencil, inside: Sequence[JaxprEqn], by_xla: Collection[int]) -> bool:
    """Are there fewer borders, which are what takes XLA the time, than pay for what goes through memory for a kernel alone?"""
    graph = stencil.graph
    if not _is_cheap(inside):
        return False
    users = [u for s in stencil.sites for u in graph.users[s.eqn.outvars[0]]]
    passed = all(u in by_xla and graph.eqns[u].primitive.name in FUSED_BY_XLA for u in users)
    written = sum(is_written_for(stencil, v) for v in stencil.leaves)
    columns = [u for v in stencil.leaves if v.aval.ndim > len(stencil.shape) for u in graph.users[v] if u in stencil.taken]
    borders = sum(e.primitive.name in _BORDERS for e in inside)
    return borders < BORDERS_OF_RESULT * passed + BORDERS_OF_OPERAND * (written + len(columns))


def _is_cheap(inside: Sequence[JaxprEqn]) -> bool:
    """Is it little arithmetic, and nothing else than XLA's loops make where they read it?"""
    return sum(map(operations, inside)) < DEAR and all(e.primitive.name in _SLICED | _BORDERS for e in inside)


def _fewest_cells(inside: Sequence[JaxprEqn]) -> int:
    if any(e.primitive.name == "conv_general_dilated" or _is_wide_window(e) for e in inside):
        return FEWEST_WRITTEN
    return FEWEST_CELLS if _ADDED.isdisjoint(e.primitive.name for e in inside) else FEWEST_ADDED


def _is_reduced(stencil: Stencil, index: int, by_xla: Collection[int]) -> bool:
    """Does XLA reduce what a stencil makes of shifted cells for itself, as they are or elementwise?"""
    graph, mine = stencil.graph, stencil.inside
    shifts = (k for k in mine if graph.ancestors[index] >> k & 1 and graph.eqns[k].primitive.name in _BORDERS | {"slice"})
    if graph.eqns[index].primitive.name not in elementwise.NAMES or not any(shifts):
        return False
    todo, seen = [index], set(mine)
    while todo:
        for u in (u for v in graph.eqns[todo.pop()].outvars for u in graph.users[v] if u in by_xla and u not in seen):
            seen.add(u)
            if graph.eqns[u].primitive.name in REDUCTIONS:
                return True
            if graph.eqns[u].primitive.name in elementwise.NAMES:
                todo.append(u)
    return False


def _is_wide_window(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name.startswith("reduce_window") and sum(n > 1 for n in eqn.params["window_dimensions"]) > 1
