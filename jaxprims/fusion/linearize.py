"""A function with its tangents, divided into what is computed beforehand and what is linear in the tangents."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from ..tracing.jaxprs import assembled, depending_on, variables
from ..tracing.labels import NUMBER_BY_NUMBER
from .agreed import has_its_own_way, is_of_arguments
from .body import operations
from .compared import compared
from .cut import KEPT, bytes_of, count_of, read_or_made
from .graph import OUTSIDE, Graph, reached
from .one_hots import one_hot
from .sites import MOST_OWN

SMALL = 4096
"""Numbers of a residual that is kept whatever it costs to compute."""

_VIEWS = frozenset("slice pad rev transpose concatenate".split())
"""What is read where it is, by stencils and by XLA's loops: to keep it would be to copy it."""

_SHIFTS = frozenset("slice pad concatenate".split())
SHIFTED, AT_SEVERAL = 0.5, 6
"""Additions that these count for, and times that what is shifted counts: what stencils make of it is read at several places."""

SPREAD = 16
"""Additions for each number that it takes XLA to reduce short rows and to spread the results along them in one loop."""


def divided(graph: Graph, primals: int, results: int) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """Of a function (primals, tangents) -> (results, their tangents): primals -> (results, residuals), and (primals, residuals,
    tangents) -> the results' tangents. What is cheap to compute again is no residual."""
    jaxpr = graph.jaxpr
    arguments, tangents = list(jaxpr.invars[:primals]), list(jaxpr.invars[primals:])
    moving = depending_on(jaxpr, tangents)
    linear = [eqn for eqn in jaxpr.eqns if not moving.isdisjoint(eqn.outvars)]
    results_of = list(jaxpr.outvars[:results])
    dots = list(jaxpr.outvars[results:])
    wanted = [v for eqn in linear for v in eqn.invars] + dots
    residuals, again = _residuals(graph, wanted, moving, arguments, results_of)
    within = sorted(again | {graph.producer[e.outvars[0]] for e in linear})
    made = [*results_of, *residuals]
    forward = _closed(graph, arguments, made, [graph.eqns[k] for k in graph.needed(made)])
    return forward, _closed(graph, [*arguments, *residuals, *tangents], dots, [graph.eqns[k] for k in within])


def _residuals(
    graph: Graph, wanted: Sequence[Any], moving: set[Var], arguments: Sequence[Var], results: Sequence[Any]
) -> tuple[list[Var], set[int]]:
    """What is kept, and the equations that are computed again: the cheapest way to have what is wanted."""
    prices, given = _Prices(graph, arguments, results), {*arguments, *graph.jaxpr.constvars}

    def missing(atoms: Sequence[Any]) -> list[Var]:
        return [v for v in atoms if not (isinstance(v, Literal) or v in given or v in moving)]

    def operands(v: Var) -> list[Var]:
        return missing(graph.eqns[graph.producer[v]].invars)

    kept, again = read_or_made(missing(wanted), operands, prices.kept, prices.again)
    return kept, {graph.producer[v] for v in again}


class _Prices:
    """In additions: of a variable that is kept for the tangents' function, or computed again by it. What checkpoints have put
    behind barriers is not kept, nor are one-hot arrays, which are only made where they are not seen to be by index. What is
    compared with its own extreme is so where that is made: both here or both there. Small constants stay constants: XLA makes
    slices of what is gathered or scattered at indices that it knows."""

    def __init__(self, graph: Graph, arguments: Sequence[Var], results: Sequence[Any]):
        self.graph, self.results = graph, set(variables(results))
        barriers = [v for e in graph.eqns if e.primitive.name == "optimization_barrier" for v in e.outvars]
        needed = graph.needs(results)
        self.behind = {v for v in depending_on(graph.jaxpr, barriers) if barriers and not needed >> graph.producer[v] & 1}
        self.here, self.there = _compared(graph)
        self.one_hot = one_hot(graph)
        cheap = [e for e in graph.eqns if _may_be_again(e)]
        unknown = depending_on(graph.jaxpr, [*arguments, *(v for e in graph.eqns if not _may_be_again(e) for v in e.outvars)])
        self.constant = {v for e in cheap for v in e.outvars if v not in unknown and _is_small(v)}
        self.shifted = {v for e in cheap if e.primitive.name in _SHIFTS for v in e.outvars}
        for e in cheap:
            if any(v in self.shifted for v in variables(e.invars)):
                self.shifted.update(e.outvars)
        for e in reversed(cheap):
            if not self.shifted.isdisjoint(e.outvars):
                self.shifted.update(variables(e.invars))

    def kept(self, v: Var) -> float:
        if v in self.behind or v in self.there or v in self.constant or v in self.one_hot:
            return math.inf
        return 0 if v in self.results or _is_small(v) else KEPT * bytes_of(v)

    def again(self, v: Var) -> float:
        eqn = self.graph.eqns[self.graph.producer[v]]
        if v in self.behind or v in self.one_hot:
            return 0
        if v in self.here or (_is_small(v) and v not in self.there | self.constant) or not _may_be_again(eqn):
            return math.inf
        each = SHIFTED if eqn.primitive.name in _SHIFTS else operations(eqn)
        if v not in self.there and _of_a_few(eqn) and _is_spread(self.graph, v):
            each = max(each, SPREAD)
        return each * max(map(_numbers, (v, *eqn.invars))) * (AT_SEVERAL if v in self.shifted else 1)


def _compared(graph: Graph) -> tuple[set[Var], set[Var]]:
    """What is not made again, since it compares what one has in other bits then; what is not kept, since it is compared with
    what is made again."""
    here, there = set[Var](), set[Var]()
    cheap = {k for k, eqn in enumerate(graph.eqns) if _may_be_again(eqn)}
    for source, extreme, index, _ in compared(graph):
        if has_its_own_way(graph, source, cheap) or is_of_arguments(graph, source, cheap):
            between = {k for k in range(extreme, index) if graph.ancestors[index] >> k & graph.ancestors[k] >> extreme & 1}
            if between <= cheap:
                there.update(graph.eqns[k].outvars[0] for k in between)
            else:
                here.update(graph.eqns[index].outvars)
    return here, there - here


def _may_be_again(eqn: JaxprEqn) -> bool:
    name = eqn.primitive.name
    return len(eqn.outvars) == 1 and (name in NUMBER_BY_NUMBER or name in _VIEWS or _of_a_few(eqn))


def _of_a_few(eqn: JaxprEqn) -> bool:
    """Is it a reduction of a few numbers each, as of a distance to each of some centres?"""
    if not eqn.primitive.name.startswith("reduce_") or "axes" not in eqn.params:
        return False
    return count_of(eqn.invars[0].aval.shape[a] for a in eqn.params["axes"]) <= MOST_OWN


def _is_spread(graph: Graph, v: Var) -> bool:
    """Is what a row is reduced to wanted for each of its numbers?"""

    def onward(x: Var) -> Iterator[Var]:
        users = (graph.eqns[u] for u in graph.users[x] if u != OUTSIDE)
        return (eqn.outvars[0] for eqn in users if eqn.primitive.name in NUMBER_BY_NUMBER)

    return any(_numbers(x) > _numbers(v) for x in reached([v], onward))


def _is_small(v: Any) -> bool:
    return isinstance(v, Literal) or _numbers(v) <= SMALL


def _numbers(v: Any) -> int:
    return count_of(v.aval.shape)


def _closed(graph: Graph, invars: Sequence[Var], outvars: Sequence[Any], eqns: Sequence[JaxprEqn]) -> ClosedJaxpr:
    return ClosedJaxpr(assembled(graph.jaxpr.constvars, invars, outvars, eqns), list(graph.consts))
