"""What a stencil reads, though it could compute it: what is dear, and read at several places or written anyway."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from jax.extend.core import Var

from ...tracing import elementwise
from ...tracing.jaxprs import scatters, variables
from ..body import operations
from ..graph import Graph
from .cells import Cells

WRITTEN = 8
"""Additions for a cell from which on what is written anyway is read."""

AGAIN = 24
"""Additions for a cell from which on what is read at several places is written once, not computed again for each."""


SMALL = 16
"""Times as many cells as numbers of an array, from which on it is written with its borders: they would be made in each row."""

BORDERS = frozenset("concatenate pad rev".split())
"""What puts other cells beside a row's, or others' rows."""


def dear(cells: Cells, own: Collection[Var], written: Collection[Var]) -> Var | None:
    """What is cheaper written once than computed for each read of it: the last such. ``written``: what is anyway, before else."""
    graph, counts, grid = cells.graph, cells.counts, math.prod(cells.shape)
    for index in sorted(counts, reverse=True):
        var = graph.eqns[index].outvars[0]
        of_a_row = cells.shape[-1] <= math.prod(var.aval.shape) <= grid // SMALL
        if graph.eqns[index].primitive.name in BORDERS and of_a_row and var not in own:
            return var
    works = works_of(graph, counts)
    mine = [k for k in sorted(counts, reverse=True) if works[k] and graph.eqns[k].outvars[0] not in own]
    for index in mine:
        (var,) = graph.eqns[index].outvars
        if var in written and (work_behind(graph, works, index) >= WRITTEN or _is_of_several(cells, index)):
            return var
    for index in (k for k in mine if counts[k] > 1):
        (var,) = graph.eqns[index].outvars
        again = (counts[index] - 1) * work_behind(graph, works, index)
        if again >= AGAIN and math.prod(var.aval.shape) * 2 > grid:
            return _shared_behind(cells, works, index) or var
    return None


def _shared_behind(cells: Cells, works: Mapping[int, float], index: int) -> Var | None:
    """What is to be written for others as well, if what an equation makes is made of it cheaply: the last such."""
    graph, counts = cells.graph, cells.counts
    whole, size = work_behind(graph, works, index), math.prod(graph.eqns[index].outvars[0].aval.shape)
    for k in (k for k in sorted(counts, reverse=True) if k < index and graph.ancestors[index] >> k & 1 and works[k]):
        (var,) = graph.eqns[k].outvars
        cheap = (counts[index] - 1) * (whole - work_behind(graph, works, k)) < AGAIN
        if cheap and math.prod(var.aval.shape) == size and any(u not in counts for u in graph.users[var]):
            return var
    return None


def works_of(graph: Graph, taken: Collection[int]) -> dict[int, float]:
    """By equation, additions for one number of its result."""
    return {k: work(graph, k) for k in taken}


def work_behind(graph: Graph, works: Mapping[int, float], index: int) -> float:
    """Additions for a number of an equation's result, with all that is taken in for it."""
    behind = graph.ancestors[index]
    return sum(w for k, w in works.items() if behind >> k & 1)


def _is_of_several(cells: Cells, index: int) -> bool:
    """Is it made of more than one array that would have to be read in its place?"""
    graph, behind = cells.graph, cells.graph.ancestors[index]
    operands = [v for k in cells.counts if behind >> k & 1 for v in variables(graph.eqns[k].invars)]
    return len({v for v in operands if v.aval.ndim and graph.producer.get(v) not in cells.counts}) > 1


def work(graph: Graph, index: int) -> float:
    """Additions that an equation takes for one number of its result."""
    eqn = graph.eqns[index]
    name = eqn.primitive.name
    if name.startswith("reduce_window"):
        return math.prod(eqn.params["window_dimensions"])
    if name == "conv_general_dilated":
        w, o = eqn.invars[1].aval, eqn.params["dimension_numbers"].rhs_spec[0]
        return 2 * math.prod(w.shape) / w.shape[o]
    return operations(eqn) if name in elementwise.NAMES else float(name in scatters("add"))
