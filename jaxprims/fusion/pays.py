"""Where a kernel is faster than what XLA makes of the same equations, on CPUs, as measured (``python -m bench fuse``)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Var

from ..operators.operator import MAX_STRUCT_SLOTS
from ..specs.stencil import WIDEST, is_short_row
from ..tracing import elementwise
from ..tracing.labels import MOVES, REDUCTIONS
from ..tracing.lanewise import OWN
from .body import Body, Leaf, operations, own_numbers
from .exact_loops import is_exact, is_exact_loop
from .graph import OUTSIDE
from .sites import Site
from .stencils.stencil import Layout, Stencil

FEWEST, FEWEST_DEAR, FEWEST_SCANNED = 2**15, 2**11, 2**8
"""Elements below which XLA's own loop is done before a kernel has been called: of a reduction; of what it does one by one, as
updates of bins, positions of extremes, functions; of a scan, through which it goes step by step or several times."""

FEWEST_IN_ROWS_OF_BINS = 2**13
"""The same of updates of rows; of what is made of rows, if others want of it what XLA would have to write."""

LEAST_IN_LOOPS = 2**18
"""Additions, of all elements of a loop of its own, below which XLA has gone all steps before a kernel has been called."""

FEWEST_OF_BATCH = 32
"""Updates of each of a batch's bins, and these bins, below which XLA's loop of all is faster than a kernel for each."""

SHORT_ROW, SHORT_ROW_OF_POSITIONS = 512, 128
"""Elements of a row below which XLA reduces the rows, one by one, as fast; where it is told the position too."""

SHORTEST_ROW = 64
"""Elements of a row below which a kernel of rows is slower, whatever goes into them."""

DEAR = 8
"""Additions for each element from which on arithmetic takes the time: XLA's loop of one reduction is no slower."""

ONE_BY_ONE = frozenset("sin cos tan asin acos atan atan2 cbrt sinh cosh rem".split())
"""Functions of which XLA has no vectors: kernels take a tenth to a third of its time; of remainders of floats a fiftieth."""

WIDE_COLUMNS = 16
"""Columns side by side from which on XLA adds rows as vectors, in all of its own passes with threads that a kernel between them
would send to sleep; of fewer it takes one number after the other."""

WIDER = 2
"""Times as many numbers as are read for an element that are computed for it: XLA writes them."""

_IN_LOOPS = elementwise.NAMES | MOVES
"""What XLA takes into the loop of a reduction, too."""

_SLICED = _IN_LOOPS | {"slice"}
"""What costs XLA's loops nothing but loads."""

_FUSED_BY_XLA = _IN_LOOPS | frozenset("slice dynamic_slice pad concatenate rev transpose gather stack unstack".split())
"""What it takes in, and a body does not: a kernel would have to read it."""

_RESHAPES = frozenset("reshape squeeze expand_dims".split())


def _is_written_for(body: Body | Stencil, var: Var) -> bool:
    """Would XLA write an array for this kernel alone?"""
    graph = body.graph
    eqn = graph.made_by(var)
    while eqn is not None and eqn.primitive.name in _RESHAPES:  # which are free
        var = eqn.invars[0]
        eqn = graph.made_by(var)
    if eqn is not None and eqn.primitive.name == "conv_general_dilated":
        return _has_channels_first(eqn)
    if eqn is None or eqn.primitive.name not in _FUSED_BY_XLA:
        return False
    inside = {*body.taken, *(s.index for s in body.sites)}
    return all(u in inside or (u != OUTSIDE and graph.eqns[u].primitive.name in _RESHAPES) for u in graph.users[var])


def _is_read_by_xla(body: Body) -> bool:
    """Do others want what this kernel reads?"""
    inside = body.inside
    return any(u != OUTSIDE and u not in inside for var, _ in body.streamed for u in body.graph.users[var])


def _is_made_elsewhere(body: Body) -> bool:
    """Do others want what this kernel makes on its way?"""
    inside = body.inside
    return any(u not in inside for k in body.taken for v in body.graph.eqns[k].outvars for u in body.graph.users[v])


def _is_made_in_loops(body: Body, var: Var) -> bool:
    """Is it XLA's loops that make what this kernel could compute, not a stencil or a kernel of rows?"""
    made = sum(1 << body.graph.producer[v] for v in body.given)
    return var in body.cut and not body.graph.needs([var]) & made


def _has_channels_first(eqn: JaxprEqn) -> bool:
    """XLA convolves with channels last: it writes the result once more for who does not read it in a loop of its own."""
    out = eqn.params["dimension_numbers"].out_spec
    return len(out) > 2 and out[1] != len(out) - 1


def _is_turned(leaf: Leaf) -> bool:
    """Do its axes lie in memory in another order than the loops, and its own within them?"""
    labels = [k if k != OWN else len(leaf[1]) for n, k in zip(leaf[0].aval.shape, leaf[1], strict=True) if n > 1]
    return labels != sorted(labels)


def _is_along_lanes(body: Body, var: Var, labels: tuple[int, ...]) -> bool:
    """Is it read for every element and lane, or one number for all?"""
    own = tuple(n for n, k in zip(var.aval.shape, labels, strict=True) if k == OWN)
    loops = {k for k in labels if k >= body.batch}
    return (own == body.sites[0].lanes and len(loops) == len(body.sites[0].sizes) - body.batch) or (not loops and not own)


def is_held(body: Body) -> bool:
    """Can a kernel keep all that it combines, of an element with numbers for several columns? Columns that lie in memory side by
    side are not one element."""
    if all(_is_along_lanes(body, *leaf) for leaf in body.leaves):
        return True
    return math.prod(body.sites[0].lanes) * sum(1 + s.positioned for s in body.sites) <= MAX_STRUCT_SLOTS


def _fewest(body: Body) -> int:
    site, inside = body.sites[0], [body.graph.eqns[k] for k in body.taken]
    if site.family == "scan":
        return FEWEST_SCANNED
    if site.family == "map" and is_exact_loop(site.eqn):
        return max(FEWEST_DEAR, LEAST_IN_LOOPS // max(1, int(operations(site.eqn))))
    if site.rows or (site.family == "map" and _is_made_elsewhere(body)):
        return FEWEST_IN_ROWS_OF_BINS
    one_by_one = site.family != "reduce" or any(s.positioned for s in body.sites)
    slow = any(e.primitive.name not in _IN_LOOPS or e.primitive.name in ONE_BY_ONE for e in inside)
    dear = slow or sum(map(operations, inside)) >= 2 * DEAR
    return FEWEST_DEAR if one_by_one or dear else FEWEST


def _are_few_for_bins(site: Site) -> bool:
    """Are a batch's bins, each of which a kernel goes through, more than what is added to them?"""
    each = math.prod(site.sizes[site.kept :]) * len(site.roots) // 2
    return each < max(FEWEST_OF_BATCH, math.prod(site.eqn.invars[0].aval.shape[site.kept :]))


def why_not(body: Body) -> str | None:
    """Why XLA's own code is the strategy, in words; None where a kernel is faster."""
    site = body.sites[0]
    of_bins = site.family == "histogram" and not site.rows  # an update of a few numbers is one
    if (math.prod(site.sizes) if of_bins else site.elements) < _fewest(body):
        return "few elements: XLA's loop is done before a kernel is called"
    if of_bins and site.kept and _are_few_for_bins(site):
        return "few updates for each of a batch's bins"
    gathers = any(body.graph.eqns[k].primitive.name == "gather" for k in body.taken)
    if len(body.sites) == 1 and site.rows and site.op is jnp.add and not gathers:
        return "one sum of rows, which XLA adds as vectors, too"
    if any(0 in var.aval.shape for var, _ in body.leaves):
        return "there is nothing to be read"
    inside = [body.graph.eqns[k] for k in body.taken]
    beside = any(0 < len({k for k in labels if k >= site.kept}) < len(site.sizes) - site.kept for _, labels in body.leaves)
    looped = beside and not body.combines_rows
    if looped and site.family in ("map", "reduce") and any(e.primitive.name.startswith(("reduce_", "arg")) for e in inside):
        return "every pair of two arrays, with a loop inside"
    narrow = bool(site.lanes) and math.prod(site.lanes) < WIDE_COLUMNS
    if site.lanes and not narrow and not all(_is_along_lanes(body, *leaf) for leaf in body.leaves):
        return "columns with a number for each: XLA would have to write what is made of them"
    if site.family in ("map", "reduce") and any(e.primitive.name == "lgamma" for e in inside):
        return "lgamma, which kernels call for one number after the other"
    if site.family == "map" and is_exact(site.eqn):
        return None
    if site.family == "map":
        read = sum(own_numbers(*leaf) for leaf in body.streamed)
        return None if body.widest >= WIDER * read else "a few numbers for each element, all of them in memory"
    if site.family != "reduce":
        return None
    row = math.prod(site.sizes[site.kept :])
    slow = any(e.primitive.name in ONE_BY_ONE for e in inside)
    if site.kept and row < SHORTEST_ROW and not slow:
        return "short rows, each reduced by itself"
    positioned = any(s.positioned for s in body.sites)
    written = [
        leaf
        for leaf in body.streamed
        if leaf[0] not in body.given and (_is_turned(leaf) or (not narrow and _is_written_for(body, leaf[0])))
    ]
    if len(written) >= len(body.sites) and not positioned:
        return "XLA would have to write what it takes into a loop of its own"
    if any(e.primitive.name not in _IN_LOOPS for e in inside):
        return None  # XLA would write what these make
    if site.kept and row < (SHORT_ROW_OF_POSITIONS if positioned else SHORT_ROW) and not slow:
        return "short rows, each reduced by itself"
    if len(body.sites) == 1 and not positioned:
        each = sum(map(operations, inside))
        if each >= DEAR and not (slow or narrow or body.given):
            return "one reduction, whose arithmetic takes the time"
        if each == 0 and site.kept and not body.given:
            return "one reduction of rows that lie in memory"
        wide = WIDE_COLUMNS <= math.prod(site.lanes) < site.sizes[0]
        if each == 0 and wide and not body.given and _is_read_by_xla(body):
            return "one reduction of columns that XLA goes through again"
        if len(site.sizes) - site.kept > 1 and any(_is_made_in_loops(body, var) for var, _ in body.streamed):
            return "XLA would make what others want once more, to lay it out for a kernel"
    if not narrow and len(body.streamed) > len(Body(body.graph, body.sites, (), body.given).streamed):
        return "others want what it reads, and XLA reduces it in the loop that makes it"
    return None


MOST_APART = 40
"""Numbers of a row up to which a kernel takes the rows of a vector's elements apart at once; XLA goes along longer ones."""


def along_rows(body: Body) -> frozenset[Var]:
    """What XLA reduces along rows that a kernel would take apart: that lie in memory, gone through once and forgotten."""
    graph = body.graph
    if body.of_rows or any(_is_turned(leaf) for leaf in body.streamed):
        return frozenset()
    longest = max((own_numbers(*leaf) for leaf in body.streamed), default=0)
    out = set[Var]()
    for k in body.taken:
        eqn = graph.eqns[k]
        if eqn.primitive.name not in REDUCTIONS:
            continue
        shape, axes = eqn.invars[0].aval.shape, sorted(eqn.params["axes"])
        row = math.prod(shape[a] for a in axes)
        if not MOST_APART < row <= longest or axes != list(range(len(shape) - len(axes), len(shape))):
            continue
        behind = {graph.eqns[j].primitive.name for j in body.taken if graph.ancestors[k] >> j & 1 and j != k}
        ahead = (j for j in body.taken if graph.ancestors[j] >> k & 1 and j != k)
        if behind <= _IN_LOOPS - ONE_BY_ONE and all(body.numbers[j] < row for j in ahead):
            out.add(eqn.outvars[0])
    return frozenset(out)


FEWEST_SIDE_BY_SIDE, FEWEST_ADDED_SIDE_BY_SIDE = (2**13, 768), (2**14, 2048)
"""Numbers, and rows, below which XLA goes through short rows several times as fast as a kernel once; and once, with less than
:data:`DEAR` arithmetic."""

FEWEST_IN_ROWS_AGAIN, SHORTEST_ROW_AGAIN = 2**13, 32
"""Numbers, in all and of a row, below which XLA goes through rows several times as fast as a kernel once. (In all twice as many,
if XLA would have to write what the kernel reads.)"""


def why_no_rows(body: Body) -> str | None:
    """Why XLA's own code is the strategy for functions of rows, in words; None where a kernel is faster."""
    site = body.sites[0]
    if body.side_by_side:
        reduced = sum(body.graph.eqns[k].primitive.name in REDUCTIONS for k in body.inside)
        each = sum(operations(body.graph.eqns[k]) * body.numbers[k] for k in body.taken) / body.widest
        once = reduced < 2 and each < DEAR
        numbers, rows = FEWEST_ADDED_SIDE_BY_SIDE if once else FEWEST_SIDE_BY_SIDE
        few = math.prod(site.sizes) < rows or math.prod(site.sizes) * body.widest < numbers
        return "few elements: XLA's loop is done before a kernel is called" if few else None
    written = any(own_numbers(*leaf) > 1 and _is_written_for(body, leaf[0]) for leaf in body.streamed)
    if math.prod(site.sizes) * body.widest < FEWEST_IN_ROWS_AGAIN * (1 + written):
        return "few elements: XLA's loop is done before a kernel is called"
    reductions = [e for k in body.taken if (e := body.graph.eqns[k]).primitive.name in REDUCTIONS]
    if body.widest < SHORTEST_ROW_AGAIN or any(_is_of_short_rows(e, math.prod(site.sizes)) for e in reductions):
        return "short rows, each reduced by itself"
    if _is_made_again_by_xla(body):
        return "one pass of reductions, of which XLA makes the rest where it is wanted"
    return None


def _is_made_again_by_xla(body: Body) -> bool:
    """Would XLA make, in the loops that want it, all that is to be written of rows, after one pass of reductions and cheaply?"""
    graph, inside = body.graph, body.inside
    rows = [s for s in body.sites if any(k == OWN for _, labels in s.roots for k in labels)]
    users = {u for s in rows for u in graph.users[s.eqn.outvars[0]]} - inside
    alone = bool(rows) and all(u != OUTSIDE and graph.eqns[u].primitive.name in _FUSED_BY_XLA | {"split"} for u in users)
    reductions = [k for k in inside if graph.eqns[k].primitive.name in REDUCTIONS]
    once = not any(graph.ancestors[a] >> b & 1 for a in reductions for b in reductions if a != b)
    return alone and once and sum(operations(graph.eqns[k]) for k in inside if body.numbers[k] > 1) < DEAR


def _is_of_short_rows(eqn: JaxprEqn, rows: int) -> bool:
    """Does a reduction make several numbers of each row, of a few neighbours each?"""
    each = math.prod(eqn.invars[0].aval.shape[a] for a in eqn.params["axes"])
    return 1 < each < SHORTEST_ROW_AGAIN and math.prod(eqn.outvars[0].aval.shape) > rows


FEWEST_CELLS, FEWEST_ADDED, FEWEST_WRITTEN, FEWEST_AT_ROWS_ENDS = 2**15, 2**16, 2**11, 2**18
"""Cells below which XLA's loop is done before a kernel's tiles are laid out, in one step or in each of several; where it adds to
them in place; where it makes them one by one; where the cells at the ends of rows are others."""

FEWEST_IN_ROWS, FEWEST_OF_SLICES = 2**22, 2**23
"""Cells below which XLA reads as fast what has borders on other axes than the innermost; what has none."""

BORDERS_OF_RESULT, BORDERS_OF_OPERAND = 4, 3
"""Borders that take XLA as long as it takes a kernel to write what XLA's loops read; and to read what they write for it, or a
column, whose numbers do not lie side by side."""

_ADDED = frozenset(("scatter-add", "scatter_add"))
_WRITTEN = _ADDED | {"conv_general_dilated", "scatter", "dynamic_update_slice"}
"""What XLA does in a loop of its own."""


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
        each = sum(map(operations, inside))
        cheap = each < DEAR and all(e.primitive.name in _SLICED | _BORDERS for e in inside)
        bordered = not _BORDERS.isdisjoint(e.primitive.name for e in inside)
        beyond = layout.beyond(inner) > 0
        short = math.prod(layout.shape[inner:]) < (SHORT_FOLDED if beyond else SHORT_FOLDED_AGAIN)
        again = folded and each <= FOLDED_AGAIN and cells >= FEWEST_FOLDED and not short
        if bordered and not beyond and cells < FEWEST_IN_ROWS:
            again = False  # XLA would make borders of borders for the others
        if wanted_again and cheap and not again:
            return "others want it too, and XLA makes it where it is read"
        return "short rows, whose ends are cells of their own" if folded and cheap and beyond and short else None
    if written:
        return None
    if any(_is_reduced(stencil, k, by_xla) for k in stencil.taken):
        return "XLA reduces what it makes on its way, and writes that for both"
    if _is_made_where_it_is_read(stencil, inside, by_xla):
        return "XLA makes it in the loop that reads it, of what it need not write either"
    if not inner and 0 in layout.counted:
        return "the ends of one row, which XLA's loop has as well"
    padded_slices = {"pad", "slice"} <= {e.primitive.name for e in inside}  # XLA makes these again for each that it adds
    ends_of_rows = inner in layout.counted and not padded_slices
    if layout.beyond(inner) and cells >= (FEWEST_AT_ROWS_ENDS if ends_of_rows else FEWEST_CELLS):
        return None
    if not (_BORDERS | {"reduce_window_sum"}).isdisjoint(e.primitive.name for e in inside):
        return None if cells >= FEWEST_IN_ROWS else "borders that XLA's loops have as well"
    return None if cells >= FEWEST_OF_SLICES else "slices that XLA's loop reads as well"


def _is_made_where_it_is_read(stencil: Stencil, inside: Sequence[JaxprEqn], by_xla: Collection[int]) -> bool:
    """Are there fewer borders, which are what takes XLA the time, than pay for what goes through memory for a kernel alone?"""
    graph = stencil.graph
    if sum(map(operations, inside)) >= DEAR or not all(e.primitive.name in _SLICED | _BORDERS for e in inside):
        return False
    users = [u for s in stencil.sites for u in graph.users[s.eqn.outvars[0]]]
    passed = all(u in by_xla and graph.eqns[u].primitive.name in _FUSED_BY_XLA for u in users)
    written = sum(_is_written_for(stencil, v) for v in stencil.leaves)
    columns = [u for v in stencil.leaves if v.aval.ndim > len(stencil.shape) for u in graph.users[v] if u in stencil.taken]
    borders = sum(e.primitive.name in _BORDERS for e in inside)
    return borders < BORDERS_OF_RESULT * passed + BORDERS_OF_OPERAND * (written + len(columns))


def _fewest_cells(inside: Sequence[JaxprEqn]) -> int:
    if any(e.primitive.name == "conv_general_dilated" or _is_wide_window(e) for e in inside):
        return FEWEST_WRITTEN
    return FEWEST_CELLS if _ADDED.isdisjoint(e.primitive.name for e in inside) else FEWEST_ADDED


def _is_reduced(stencil: Stencil, index: int, by_xla: Collection[int]) -> bool:
    """Does XLA reduce what a stencil makes of shifted cells for itself, as they are or elementwise?"""
    graph, mine = stencil.graph, {*stencil.taken, *(s.index for s in stencil.sites)}
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
