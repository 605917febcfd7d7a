"""What a stencil takes in a kernel, and what its equations take in XLA's loops, on CPUs: estimates in nanoseconds, fitted to what
47 stencils over 16 grids took on one core of a Zen 4. XLA's are right within a factor of 1.7 mostly, a kernel's of 1.4."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Var

from ...specs.stencil import WIDEST
from ...targets.registry import target_at
from ...tracing.jaxprs import scatters
from ...tracing.labels import REDUCTIONS
from ..body import additions
from ..graph import Graph
from ..one_by_one import is_one_by_one
from .cells import Apply
from .dear import work
from .stencil import Layout
from .xla_loops import XlaLoop, choices_of

UPDATES = scatters("add") | {"scatter", "dynamic_update_slice"}
"""What XLA does in place in loops."""

_FOLDS = frozenset(f"reduce_window_{how}" for how in ("sum", "max", "min")) | {"reduce_window", "conv_general_dilated"}

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

FOLDED, COPIED, FEW_SLICES = 0.08, 0.4, 3
"""For each cell: an addition in a window; what is updated of more slices than so many in a loop, which XLA does in place
otherwise."""

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

MOVED, BY_VECTORS, BY_ONE, CHOICE, MAPPED, MOST_CHOICES = 0.04, 0.01, 0.08, 0.03, 0.05, 7
"""Of XLA's loops as they are: for 32 bits of each number that is read or written; an addition in vectors; one that is not, beside
more choices than so many; each choice; an addition in functions that it has no vectors of. Fitted to what 134 programs took."""

IN_CACHES, IN_CACHES_OF_STEPS = 2**25, 2**21
"""Bytes of a grid from which on it is in memory; from which on each of several steps in XLA's loops goes through memory."""


def time_in_xla(graph: Graph, counts: Mapping[int, float], layout: Layout, several: bool = False) -> float:
    """What XLA's loop takes for these equations, each so often for a cell. ``several``: in one of several steps."""
    inner, cells, words = layout.innermost, math.prod(layout.shape), words_of(layout)
    at_ends = at_rows = arithmetic = one_by_one = slices = mapped = 0.0
    padded = updated = False
    bordered = set[int]()
    for k, count in counts.items():
        eqn = graph.eqns[k]
        name, axes = eqn.primitive.name, _bordered(eqn)
        if axes and math.prod(eqn.outvars[0].aval.shape) * 2 > cells:
            ends = inner in axes
            bordered |= axes
            at_ends, at_rows = at_ends + count * ends, at_rows + count * (not ends)
            padded = padded or (name == "pad" and ends)
        elif name in UPDATES:
            updated = True
        elif name.startswith("reduce_window") or (name == "conv_general_dilated" and not is_of_few_weights(graph, k)):
            one_by_one += FOLDED * work(graph, k) * count
        else:
            slices += count * (name == "slice")
            arithmetic += 0 if is_one_by_one(eqn) else work(graph, k) * count
            mapped += work(graph, k) if is_one_by_one(eqn) else 0
    if updated and slices > FEW_SLICES:
        one_by_one += COPIED
    if mapped:
        one_by_one += words * (NUMBER + mapped * BY_KERNEL[1])  # by a map's kernel
    in_memory = cells * words * 4 > (IN_CACHES_OF_STEPS if several else IN_CACHES)
    each = words * _arrays(layout) * (NUMBER_IN_MEMORY if in_memory else NUMBER) + one_by_one
    row, unrolled = math.prod(layout.shape[inner:]), layout.shape[-1] < UNROLLED
    chooses = at_ends > 1 or padded or (at_ends > 0 and (row < WIDE_ROW or arithmetic > FEW))
    choices = at_ends * CHOSEN + at_rows * OTHER_ROWS + THREE_AXES * (len(bordered) > 2 and not padded)
    scalar = (arithmetic * BESIDE_CHOICES + PADDED * padded) * (PADDED_UNROLLED if padded and unrolled else 1)
    if _is_of_halves(layout):
        each += arithmetic * ROUNDED_BY_XLA + PADDED * padded + choices
    elif chooses:
        narrow = target_at("cpu").vector_bytes != WIDEST
        each += (scalar + choices) * (NARROW if narrow else 1) + CHOSEN_UNROLLED * unrolled
    else:
        each += ONE_BY_ONE + scalar if unrolled and layout.lanes else words * _of_additions(arithmetic, BY_XLA)
    return cells * each


def time_in_loop(graph: Graph, var: Var, loop: XlaLoop) -> float:
    """What one of XLA's loops takes at least that makes this: nothing of what its branches cost."""
    eqns = {v: graph.eqns[graph.producer[v]] for v in loop.times}
    words, made = max(v.aval.dtype.itemsize for v in loop.times) / 4, math.prod(var.aval.shape)
    numbers = made + sum(math.prod(v.aval.shape) for v in loop.reads)
    choices = sum(map(choices_of, eqns.values()))
    addition = BY_ONE if choices > MOST_CHOICES else BY_VECTORS * words
    each = choices * CHOICE
    for v, eqn in eqns.items():
        takes = loop.times[v] * work(graph, graph.producer[v])
        each += takes * (MAPPED if is_one_by_one(eqn) else FOLDED if eqn.primitive.name in _FOLDS else addition)
    cells = numbers - made if eqns[var].primitive.name in REDUCTIONS else made
    return words * MOVED * numbers + cells * each


def time_in_kernel(layout: Layout, several: bool = False) -> float:
    """What a kernel takes, without its call. ``several``: for one of several steps."""
    inner, cells, words = layout.innermost, math.prod(layout.shape), words_of(layout)
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


def words_of(layout: Layout) -> float:
    """The widest number's, of 32 bits."""
    return max((v.aval.dtype.itemsize for v in layout.variables), default=4) / 4


def is_of_few_weights(graph: Graph, index: int) -> bool:
    """Are a convolution's weights so few that XLA's loops, in which it has no library, are vectors of it?"""
    return work(graph, index) <= FEW_WEIGHTED and graph.eqns[index].params["feature_group_count"] == 1


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
