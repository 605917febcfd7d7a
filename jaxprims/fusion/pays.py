"""Where a kernel is faster than what XLA makes of the same equations, on CPUs, as measured (``python -m bench fuse``)."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Var

from ..operators.operator import MAX_STRUCT_SLOTS
from ..tracing.labels import NUMBER_BY_NUMBER, REDUCTIONS, own_shape
from ..tracing.lanewise import OWN
from .body import DEAR, ENOUGH_ROWS, OF_A_VECTOR, Body, Leaf, in_register, operations, own_numbers
from .cut import IN_CACHE
from .elsewhere import (
    has_roots,
    is_made_elsewhere,
    is_made_in_loops,
    is_only_reduced,
    is_reduced_elsewhere,
    is_searched_elsewhere,
    is_spread_dearly,
    makes_others_functions,
    shares_functions,
)
from .exact_loops import is_exact, is_exact_loop
from .graph import OUTSIDE
from .one_by_one import is_one_by_one
from .products import SHORTEST, is_product
from .sites import Site
from .sorts import is_sort
from .stencils.stencil import Stencil

FEWEST, FEWEST_DEAR, FEWEST_SCANNED, FEWEST_SORTED = 2**12, 2**11, 2**8, 2**8
"""Elements below which XLA's own loop is done before a kernel has been called: of a reduction; of what it does one by one, as
updates of bins, positions of extremes, functions; of a scan, through which it goes step by step or several times; of a sort."""

FEWEST_SUMMED = 2**15
"""The same of sums in a loop of what it reads, and of its squares, which are in the cache."""

FEWEST_IN_ROWS_OF_BINS = 2**13
"""The same of updates of rows; of what is made of rows, if others want of it what XLA would have to write."""

LEAST_IN_LOOPS = 2**18
"""Additions, of all elements of a loop of its own, below which XLA has gone all steps before a kernel has been called."""

FEWEST_OF_BATCH = 32
"""Updates of each of a batch's bins, and these bins, below which XLA's loop of all is faster than a kernel for each."""

SHORT_ROW, SHORTEST_ROW, SHORTEST_SEARCHED, SHORTEST_OF_BYTES = 128, 20, 25, 12
"""Elements of a row below which XLA reduces the rows, one by one, as fast: if it is dear to make what they take, of numbers in
common, too; in any case, but where floats are compared that are made for it; if positions of extremes are wanted; of bytes."""

SEARCHED_OF = {"bfloat16": 16} | dict.fromkeys("float64 int32 uint32 int64 uint64".split(), SHORTEST_ROW)
"""The same for positions among numbers of these types."""

FEW_COMPARED, SHORT_COMPARED = 8, 64
"""Floats of a row in memory up to which it takes XLA longer than a kernel to find the greatest; bytes below which it does so of
floats that are dear to make, which it makes one by one, too."""

FEWEST_APART = 16
"""Floats of a row from which on a kernel finds the greatest of many rows at once, if they have numbers in common with some of the
others only."""

FEWEST_MAPPED, FEWEST_MAPPED_IN_A_LOOP = 2**12, 2**10
"""Calls of a sine that XLA has made before a kernel, which does nothing else, has been called; by a loop, where no other thread
has to be woken."""

WIDE_COLUMNS, WIDE_IN_ROWS = 16, 11
"""Columns side by side from which on XLA adds rows as vectors, in all of its own passes with threads that a kernel between them
would send to sleep; of fewer it takes one number after the other. The same in each row of many."""

BESIDE_EACH_OTHER = 64
"""Columns in each of several rows from which on a kernel adds even few of them faster, but for halves."""

FEW_COLUMNS = 5
"""Columns below which a kernel adds functions of them faster than XLA, which makes these once more for others."""

MOST_UNROLLED_BY_XLA = 8
"""Columns up to which it makes functions of them as vectors; of more, up to a vector's, one by one."""

FEWEST_ROOTED = 5
"""Numbers of a column below which XLA normalises it in the loop that reduces it."""

WIDE_FOR_XLA = 33
"""Columns from which on it sums them much slower if each has numbers in common."""

WIDER = 2
"""Times as many numbers as are read for an element that are computed for it: XLA writes them."""

FUSED_BY_XLA = NUMBER_BY_NUMBER | frozenset("slice dynamic_slice pad concatenate rev transpose gather stack unstack".split())
"""What it takes in, and a body does not: a kernel would have to read it."""

_RESHAPES = frozenset("reshape squeeze expand_dims".split())


def is_written_for(body: Body | Stencil, var: Var) -> bool:
    """Would XLA write an array for this kernel alone?"""
    graph = body.graph
    var = graph.before(var, _RESHAPES)  # which are free
    eqn = graph.made_by(var)
    if eqn is not None and eqn.primitive.name == "conv_general_dilated":
        return _has_channels_first(eqn)
    if eqn is None or eqn.primitive.name not in FUSED_BY_XLA:
        return False
    inside = body.inside
    return all(u in inside or (u != OUTSIDE and graph.eqns[u].primitive.name in _RESHAPES) for u in graph.users[var])


def _has_channels_first(eqn: JaxprEqn) -> bool:
    """XLA convolves with channels last: it writes the result once more for who does not read it in a loop of its own."""
    out = eqn.params["dimension_numbers"].out_spec
    return len(out) > 2 and out[1] != len(out) - 1


def is_turned(leaf: Leaf) -> bool:
    """Do its axes lie in memory in another order than the loops, and its own within them?"""
    labels = [k if k != OWN else len(leaf[1]) for n, k in zip(leaf[0].aval.shape, leaf[1], strict=True) if n > 1]
    return labels != sorted(labels)


def is_along_lanes(body: Body, var: Var, labels: tuple[int, ...]) -> bool:
    """Is it read for every element and lane, or one number for all?"""
    own, loops = own_shape(var, labels), {k for k in labels if k >= body.batch}
    return (own == body.sites[0].lanes and len(loops) == len(body.sites[0].sizes) - body.batch) or (not loops and not own)


def is_held(body: Body) -> bool:
    """Can a kernel keep all that it combines, of an element with numbers for several columns? Columns that lie in memory side by
    side are not one element."""
    if all(is_along_lanes(body, *leaf) for leaf in body.leaves):
        return True
    return math.prod(body.sites[0].lanes) * sum(1 + s.positioned for s in body.sites) <= MAX_STRUCT_SLOTS


def _fewest(body: Body) -> int:
    site, inside = body.sites[0], [body.graph.eqns[k] for k in body.taken]
    if site.family == "scan":
        return FEWEST_SCANNED
    if is_sort(site.eqn):
        return FEWEST_SORTED
    if site.family == "map" and is_exact_loop(site.eqn):
        return max(FEWEST_DEAR, LEAST_IN_LOOPS // max(1, int(operations(site.eqn))))
    if site.rows or (site.family == "map" and is_made_elsewhere(body)):
        return FEWEST_IN_ROWS_OF_BINS
    one_by_one = site.family != "reduce" or any(s.positioned for s in body.sites)
    slow = any(e.primitive.name not in NUMBER_BY_NUMBER or is_one_by_one(e) for e in inside)
    each = sum(map(operations, inside))
    if one_by_one or slow or each >= 2 * DEAR:
        return FEWEST_DEAR
    there = body.graph.in_loop and all(body.graph.made_by(var) is None for var, _ in body.streamed)
    there &= all(var.aval.shape[-1:] >= (WIDE_COLUMNS,) for var, _ in site.roots if isinstance(var, Var))
    return FEWEST_SUMMED if there and site.op is jnp.add and each <= 1 else FEWEST


def _are_few_for_bins(site: Site) -> bool:
    """Are a batch's bins, each of which a kernel goes through, more than what is added to them?"""
    each = math.prod(site.sizes[site.kept :]) * len(site.roots) // 2
    return each < max(FEWEST_OF_BATCH, math.prod(site.eqn.invars[0].aval.shape[site.kept :]))


def why_not(body: Body) -> str | None:
    """Why XLA's own code is the strategy, in words; None where a kernel is faster."""
    site = body.sites[0]
    of_bins = site.family == "histogram" and not site.rows  # an update of a few numbers is one
    positioned, searched = any(s.positioned for s in body.sites), is_searched_elsewhere(body)
    numbers: float = math.prod(site.sizes) if of_bins else site.elements
    reduces = any(body.graph.eqns[k].primitive.name in REDUCTIONS for k in body.taken - {s.index for s in body.sites})
    if site.family == "map" and (reduces or not (positioned or searched)):
        numbers = max(numbers, math.prod(site.sizes) * body.widest)  # that are reduced for each
    if numbers < _fewest(body):
        return "few elements: XLA's loop is done before a kernel is called"
    if site.family == "reduce" and not positioned and searched:
        return "an extreme of what XLA makes to find its position"
    if of_bins and site.kept and _are_few_for_bins(site):
        return "few updates for each of a batch's bins"
    inside = [body.graph.eqns[k] for k in body.taken]
    gathers = any(e.primitive.name == "gather" for e in inside)
    if len(body.sites) == 1 and site.rows and site.op is jnp.add and not gathers:
        return "one sum of rows, which XLA adds as vectors, too"
    if not (body.leaves or body.counted) or any(0 in var.aval.shape for var, _ in body.leaves):
        return "there is nothing to be read"
    if site.family in ("map", "reduce"):
        long = math.prod(site.sizes[body.innermost :]) >= ENOUGH_ROWS
        if any(is_product(body.graph, e, 1 if long else SHORTEST) for e in (*inside, *(s.eqn for s in body.sites))):
            return "a product of matrices"
        looped = body.has_pairs and body.combined is None and not long
        if looped and any(e.primitive.name.startswith(("reduce_", "arg")) for e in inside):
            return "every pair of two arrays, with a loop inside"
    narrow = bool(site.lanes) and not is_wide(site)
    in_common = any(leaf not in body.streamed and leaf[0].aval.size > 1 for leaf in body.leaves)
    of_few = in_common and site.kept > 0 and (math.prod(site.lanes) < WIDE_FOR_XLA or site.compares)
    if site.lanes and not narrow and (of_few or not all(is_along_lanes(body, *leaf) for leaf in body.leaves)):
        return "columns with a number for each: XLA would have to write what is made of them"
    if site.family == "map" and (is_exact(site.eqn) or is_sort(site.eqn)):
        return None
    if site.family == "map":
        if any(is_turned(leaf) for leaf in body.streamed):
            return "numbers of an element that lie apart"
        read = sum(own_numbers(*leaf) for leaf in body.streamed)
        if body.widest >= WIDER * read:
            return None
        if not all(_adds_few_columns(s.eqn) for s in body.sites):
            return "a few numbers for each element, all of them in memory"
        if makes_others_functions(body) and any(_columns(s.eqn) >= FEW_COLUMNS for s in body.sites):
            return "a function that takes time, which XLA makes for others as well"
        return "XLA makes a function of it for each number that it is for" if is_spread_dearly(body) else None
    if site.family != "reduce":
        return None
    row = math.prod(site.sizes[site.kept :])
    each, slow = sum(map(operations, inside)), any(is_one_by_one(e) for e in inside)
    in_loops = all(e.primitive.name in NUMBER_BY_NUMBER for e in inside)
    fused = in_common and all(e.primitive.name in FUSED_BY_XLA - {"gather"} for e in inside)
    shortest = (SHORT_ROW if not narrow else SHORTEST_ROW_AGAIN) if each >= DEAR else SHORTEST_ROW if site.lanes else 0
    again = fused and row < shortest
    abreast = not narrow and _are_beside_each_other(body, row)
    rows = bool(site.kept and not abreast) or (positioned and not narrow and bool(site.lanes))
    few = _are_few_alike(body, each) or _are_cheap_in_a_loop(body, each)
    if not slow and (few or (rows and (again or _are_short(body, row, each)))):
        return "short rows, each reduced by itself"
    written = [
        leaf
        for leaf in body.streamed
        if leaf[0] not in body.given and (is_turned(leaf) or (not narrow and is_written_for(body, leaf[0])))
    ]
    if len(written) + sum(map(is_turned, written)) >= len(body.sites) and not positioned:
        return "XLA would have to write what it takes into a loop of its own"
    if not in_loops:
        return None  # XLA would write what these make
    several = len(site.lanes) > 1 if not narrow else site.kept > 0 and math.prod(site.lanes) > MOST_UNROLLED_BY_XLA
    shares = several and shares_functions(body)
    if shares and each >= DEAR:
        return "a function of columns that takes time, which XLA makes for others as well"
    if len(body.sites) == 1 and not positioned:
        if _is_as_fast_in_xla(site, inside, each) and not (slow or narrow or body.given or _is_long(body, inside)):
            return "one reduction, whose arithmetic takes the time"
        wide = shares or (_has_vectors(site) and math.prod(site.lanes) < math.prod(site.sizes))
        cheap = each < (DEAR if site.kept or shares else 1)
        if cheap and wide and not abreast and not body.given and is_reduced_elsewhere(body):
            return "one reduction of columns that XLA goes through again"
        if each <= 1 and not narrow and row < FEWEST_ROOTED and has_roots(body):
            return "lengths of few numbers, of whose roots XLA makes quotients in the same loop"
        if len(site.sizes) - site.kept > 1 and any(is_made_in_loops(body, var) for var, _ in body.streamed):
            return "XLA would make what others want once more, to lay it out for a kernel"
    if not narrow and len(body.streamed) > len(Body(body.graph, body.sites, (), body.given).streamed):
        return "others want what it reads, and XLA reduces it in the loop that makes it"
    return None


def is_wide(site: Site) -> bool:
    """Are its columns, of all axes together, as many as XLA adds as vectors?"""
    return bool(site.lanes) and math.prod(site.lanes) >= (WIDE_IN_ROWS if site.kept else WIDE_COLUMNS)


def _are_beside_each_other(body: Body, row: int) -> bool:
    """Are they sums of columns in each of several rows, for which XLA begins anew in each? Of what it writes with them it makes
    more where columns have several axes."""
    site = body.sites[0]
    enough = row >= SHORTEST_ROW or (math.prod(site.lanes) >= BESIDE_EACH_OTHER and not _reads_halves(body))
    several = site.kept > 0 and site.op is jnp.add and is_wide(site) and enough
    return several and (len(site.lanes) == 1 or is_only_reduced(body.graph, (s.eqn.outvars[0] for s in body.sites)))


def _reads_halves(body: Body) -> bool:
    return any(jnp.dtype(var.aval.dtype).itemsize == 2 for var, _ in body.leaves)


def _has_vectors(site: Site) -> bool:
    """Are innermost columns so many that XLA adds them as vectors?"""
    return bool(site.lanes) and site.lanes[-1] >= (WIDE_IN_ROWS if site.kept else WIDE_COLUMNS)


def _adds_few_columns(eqn: JaxprEqn) -> bool:
    """Does an equation reduce rows that lie side by side, but so few that XLA takes one number after the other?"""
    return eqn.primitive.name in REDUCTIONS and 1 < _columns(eqn) < WIDE_IN_ROWS


def _columns(eqn: JaxprEqn) -> int:
    """Numbers of a row behind the axes that are reduced."""
    return math.prod(eqn.invars[0].aval.shape[max(eqn.params.get("axes", ()), default=0) + 1 :])


BESIDE_A_FUNCTION = 4
"""Additions for a number, beside one function of it, whose extremes along rows XLA finds as fast; of f64 any."""


def _is_as_fast_in_xla(site: Site, inside: list[JaxprEqn], each: float) -> bool:
    """Does arithmetic take the time, and XLA no longer: for halves, which it rounds where they are written; for one function of
    which it has vectors?"""
    row = math.prod(site.sizes[site.kept :]) * in_register(site.eqn.outvars[0])
    if _compares_floats(site) and site.kept and row < SHORT_COMPARED:
        return False
    dtypes = {e.outvars[0].aval.dtype for e in inside}
    if any(jnp.issubdtype(t, jnp.floating) and t.itemsize == 2 for t in dtypes):
        return each >= DEAR
    functions = [(e.primitive.name, operations(e)) for e in inside if operations(e) >= DEAR]
    if len(functions) != 1:
        return False
    ((name, additions),) = functions
    few = jnp.dtype("float64") in dtypes or each - additions <= BESIDE_A_FUNCTION
    return name == "log1p" or (site.compares and bool(site.kept) and few)


FEWEST_LONG = 2**17
"""Elements from which on a kernel's arithmetic, of two vectors at a time, is done before XLA's."""


def _is_long(body: Body, inside: list[JaxprEqn]) -> bool:
    """Is it a reduction of all elements, of more than one operation on floats of which vectors are made as they are?"""
    site = body.sites[0]
    dtypes = {v.aval.dtype for v in (*(e.outvars[0] for e in inside), *(var for var, _ in body.leaves))}
    known = dtypes <= {jnp.dtype(t) for t in ("float32", "float64", "bool", "int32")}
    several = sum(operations(e) > 0 for e in inside) > 1
    return known and several and not site.kept and not site.lanes and math.prod(site.sizes) >= FEWEST_LONG


FEWEST_SIDE_BY_SIDE, FEWEST_ADDED_SIDE_BY_SIDE, FEWEST_IN_A_LOOP = (2**13, 768), (2**14, 1536), (2**12, 128)
"""Numbers, and rows, below which XLA goes through short rows several times as fast as a kernel once; and once, with less than
:data:`DEAR` arithmetic; and either in a loop, where its threads do not help it."""

FEWEST_IN_ROWS_AGAIN, SHORTEST_ROW_AGAIN = 2**13, 32
"""Numbers, in all and of a part of a row that is reduced by itself, below which XLA goes through rows several times as fast as a
kernel once. (In all twice as many, if XLA would have to write what the kernel reads; in a loop as of short ones.)"""


def _are_short(body: Body, row: int, each: float) -> bool:
    """Does XLA reduce rows of so many elements as fast, each of which takes so many additions?"""
    site = body.sites[0]
    compared = _compares_floats(site) and site.elements >= FEWEST
    if any(s.positioned for s in body.sites):
        dtype = site.eqn.invars[0].aval.dtype
        return row < SEARCHED_OF.get(dtype.name, SHORTEST_SEARCHED) - bool(site.lanes)
    if compared:
        if _is_in_part(body):
            return row < FEWEST_APART
        made = each > 0 or len(body.sites) > 1
        return FEW_COMPARED < row < (0 if made else SHORTEST_ROW)
    bytes_compared = site.compares and site.eqn.outvars[0].aval.dtype.itemsize == 1
    return row < (SHORTEST_OF_BYTES if bytes_compared else SHORTEST_ROW)


SHORTEST_APART = 16
"""Elements of a row from which on rows that are alike by the few are reduced side by side, if arithmetic is cheap."""


def _are_few_alike(body: Body, each: float) -> bool:
    """Are too few short rows alike, in what each reads of its own, to fill vectors; or do they read halves, to be taken apart?"""
    row = math.prod(body.sites[0].sizes[body.innermost :])
    if _reads_halves(body) and _is_in_part(body) and row < SHORT_ROW:
        return True
    few = body.innermost > body.batch and body.combined is None and body.few_alike
    return few and row < (SHORT_ROW if each >= DEAR or _reads_halves(body) else SHORTEST_APART)


def _are_cheap_in_a_loop(body: Body, each: float) -> bool:
    """Are they short rows of halves, where XLA's threads do not help it, but vectors do; or few sums of rows, some of which it
    skips?"""
    site, row = body.sites[0], math.prod(body.sites[0].sizes[body.innermost :])
    if not body.graph.in_loop or body.combined is not None:
        return False
    if body.innermost > body.batch and row < SHORT_ROW and _reads_halves(body):
        return True
    few = row < ENOUGH_ROWS and site.elements < FEWEST_SUMMED and each < DEAR
    return few and site.op is jnp.add and _chooses_rows(body)


def _chooses_rows(body: Body) -> bool:
    """Is anything chosen for a whole row by what is true of it?"""
    last = len(body.sites[0].sizes) - 1
    found = (labels for v, labels in (*body.leaves, *body.made) if v.aval.dtype == jnp.bool_)
    return any(labels and max(labels) >= 0 and last not in labels for labels in found)


def _is_in_part(body: Body) -> bool:
    """Is something read that some loops around the rows have in common, but not all?"""
    around = set(range(body.sites[0].kept))
    return any(0 < len(around & set(labels)) < len(around) for _, labels in body.leaves)


def _compares_floats(site: Site) -> bool:
    """Is the greatest or the least of floats wanted, for which XLA goes one by one?"""
    return site.compares and jnp.issubdtype(site.eqn.outvars[0].aval.dtype, jnp.floating)


def why_no_rows(body: Body) -> str | None:
    """Why XLA's own code is the strategy for functions of rows, in words; None where a kernel is faster."""
    site = body.sites[0]
    if body.side_by_side:
        numbers, rows = FEWEST_ADDED_SIDE_BY_SIDE if body.reduced_once else FEWEST_SIDE_BY_SIDE
        if body.graph.in_loop:
            numbers, rows = FEWEST_IN_A_LOOP
        few = math.prod(site.sizes) < rows or math.prod(site.sizes) * body.widest < numbers
        return "few elements: XLA's loop is done before a kernel is called" if few else None
    written = any(own_numbers(*leaf) > 1 and is_written_for(body, leaf[0]) for leaf in body.streamed)
    fewest, _ = FEWEST_IN_A_LOOP if body.graph.in_loop else (FEWEST_IN_ROWS_AGAIN, 0)
    if math.prod(site.sizes) * body.widest < fewest * (1 + written):
        return "few elements: XLA's loop is done before a kernel is called"
    reductions = [e for k in body.taken if (e := body.graph.eqns[k]).primitive.name in REDUCTIONS]
    if body.row_bytes < OF_A_VECTOR or any(_is_of_short_rows(e, math.prod(site.sizes)) for e in reductions):
        return "short rows, each reduced by itself"
    long = body.widest >= SHORT_ROW and math.prod(site.sizes) * body.row_bytes <= IN_CACHE
    if long and body.graph.in_loop and body.reduced_once:
        return "one cheap reduction in a loop of rows that are in the cache when XLA reads them again"
    if _is_made_again_by_xla(body):
        return "one pass of reductions, of which XLA makes the rest where it is wanted"
    return None


def _is_made_again_by_xla(body: Body) -> bool:
    """Would XLA make, in the loops that want it, all that is to be written of rows, after one pass of reductions and cheaply?"""
    graph, inside = body.graph, body.inside
    rows = [s for s in body.sites if any(k == OWN for _, labels in s.roots for k in labels)]
    users = {u for s in rows for u in graph.users[s.eqn.outvars[0]]} - inside
    alone = bool(rows) and all(u != OUTSIDE and graph.eqns[u].primitive.name in FUSED_BY_XLA | {"split"} for u in users)
    reductions = [k for k in inside if graph.eqns[k].primitive.name in REDUCTIONS]
    once = not any(graph.ancestors[a] >> b & 1 for a in reductions for b in reductions if a != b)
    return alone and once and sum(operations(graph.eqns[k]) for k in inside if body.numbers[k] > 1) < DEAR


def _is_of_short_rows(eqn: JaxprEqn, rows: int) -> bool:
    """Does a reduction make several numbers of each row, of a few neighbours each?"""
    each = math.prod(eqn.invars[0].aval.shape[a] for a in eqn.params["axes"])
    return 1 < each < SHORTEST_ROW_AGAIN and math.prod(eqn.outvars[0].aval.shape) > rows
