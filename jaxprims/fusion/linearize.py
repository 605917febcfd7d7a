"""A function with its tangents, divided into what is computed beforehand and what is linear in the tangents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from ..tracing import elementwise
from ..tracing.jaxprs import assembled
from ..tracing.labels import MOVES
from .body import operations
from .graph import Graph, depending_on
from .rows import groups_of
from .sites import MOST_OWN

SMALL = 4096
"""Numbers of a residual that is kept whatever it costs to compute."""

AGAIN, AGAIN_IN_ROWS = 4, 12
"""Additions an element up to which an equation is computed again by the tangents' function, in place of keeping its result; where
a kernel has the rows that it is of in the cache."""

_VIEWS = frozenset("slice pad rev transpose concatenate".split())
"""What is read where it is, by stencils and by XLA's loops: to keep it would be to copy it."""

_SHIFTS = frozenset("slice pad concatenate".split())
SHIFTED = 0.5
"""Additions that these count for. What stencils make of them is read at several places, so all that it takes counts."""


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
    residuals, again = _residuals(graph, wanted, moving, {*arguments, *jaxpr.constvars})
    within = sorted(again | {graph.producer[e.outvars[0]] for e in linear})
    forward = _closed(graph, arguments, [*results_of, *residuals], _needed_for(graph, [*results_of, *residuals]))
    return forward, _closed(graph, [*arguments, *residuals, *tangents], dots, [graph.eqns[k] for k in within])


def _residuals(graph: Graph, wanted: Sequence[Any], moving: set[Var], given: set[Var]) -> tuple[list[Var], set[int]]:
    """What is kept, and the equations that are computed again."""
    kept: dict[Var, None] = {}
    rows = {k: r for r in groups_of(graph) if r.goes_again(list(r.members)) for k in r.members}
    again: set[int] = set()
    known: dict[Var, float] = {}

    def cost(v: Any) -> float:
        """Additions to compute it again from shifts of what is given, or is kept because it is small; infinite if it is dear."""
        if isinstance(v, Literal) or v in given or v in known:
            return known.get(v, 0) if isinstance(v, Var) else 0
        index = graph.producer[v]
        eqn = graph.eqns[index]
        name, each = eqn.primitive.name, operations(eqn)
        in_cache = index in rows and rows[index].own(index) > 1
        known[v] = math.inf
        again = name in elementwise.NAMES or name in MOVES or name in _VIEWS or _of_a_few(eqn)
        if again and each <= (AGAIN_IN_ROWS if in_cache else AGAIN) and len(eqn.outvars) == 1:
            before = sum(cost(x) for x in eqn.invars if not _is_small(x))
            every = before + SHIFTED if name in _SHIFTS else before + each if before else 0
            within = before < math.inf if in_cache else every <= AGAIN
            known[v] = math.inf if not within else 0 if in_cache else every
        return known[v]

    def keep(v: Any) -> None:
        if isinstance(v, Literal) or v in given or v in moving:
            return
        if _is_small(v) or math.isinf(cost(v)):
            kept[v] = None
            return
        index = graph.producer[v]
        if index not in again:
            again.add(index)
            for x in graph.eqns[index].invars:
                keep(x)

    for v in wanted:
        keep(v)
    return list(kept), again


def _of_a_few(eqn: JaxprEqn) -> bool:
    """Is it a reduction of a few numbers each, as of a distance to each of some centres?"""
    if not eqn.primitive.name.startswith("reduce_") or "axes" not in eqn.params:
        return False
    return math.prod(eqn.invars[0].aval.shape[a] for a in eqn.params["axes"]) <= MOST_OWN


def _is_small(v: Any) -> bool:
    return isinstance(v, Literal) or math.prod(n if isinstance(n, int) else SMALL + 1 for n in v.aval.shape) <= SMALL


def _needed_for(graph: Graph, atoms: Sequence[Any]) -> list[JaxprEqn]:
    bits = graph.needs(atoms)
    return [eqn for k, eqn in enumerate(graph.eqns) if bits >> k & 1]


def _closed(graph: Graph, invars: Sequence[Var], outvars: Sequence[Any], eqns: Sequence[JaxprEqn]) -> ClosedJaxpr:
    return ClosedJaxpr(assembled(graph.jaxpr.constvars, invars, outvars, eqns), list(graph.consts))
