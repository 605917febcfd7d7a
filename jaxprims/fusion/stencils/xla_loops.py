"""The loops that XLA makes of equations on CPUs: what it evaluates in one, how often for each number of its result, and what it
writes for others. It takes in what it can, from a result backwards, as ``CpuInstructionFusion`` does."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from jax.extend.core import JaxprEqn, Var

from ...tracing import elementwise
from ...tracing.jaxprs import IDENTITIES, variables
from ...tracing.labels import NUMBER_BY_NUMBER, REDUCTIONS
from ..graph import OUTSIDE, Graph, reached

_FUSED = NUMBER_BY_NUMBER | frozenset(
    "slice dynamic_slice split pad concatenate rev transpose gather dynamic_update_slice".split()
)

_ALIKE = elementwise.NAMES | IDENTITIES | REDUCTIONS | frozenset("reshape squeeze expand_dims".split())
"""What reads each number at one place."""

_ONCE = frozenset("concatenate pad dynamic_update_slice".split())
"""What it evaluates at one place of a loop alone: it has to choose there."""

_DEAR = frozenset("atan2 div pow rem".split())
"""What it writes if a loop reads it where it is, and elsewhere too, and it is of two arrays."""

MOST_PLACES, MOST_PIECES, WIDE = 15, 8, 128
"""Places of a loop at which it evaluates the same; pieces that it puts together there, and numbers of a row of them from which on
it copies them instead."""


@dataclasses.dataclass(frozen=True)
class XlaLoop:
    """``times``: how often a number of its result evaluates each variable; ``reads``: what others make."""

    times: Mapping[Var, float]
    reads: Collection[Var]


def xla_loops(graph: Graph, wanted: Iterable[Any], known: dict[Var, XlaLoop]) -> dict[Var, XlaLoop]:
    """By their results, those that make these variables. ``known``: of this graph, to which is added what is found."""

    def loop(v: Var) -> XlaLoop:
        if v not in known:
            known[v] = _loop(graph, v)
        return known[v]

    def made(atoms: Iterable[Any]) -> list[Var]:
        return [v for v in variables(atoms) if v in graph.producer]

    return {v: loop(v) for v in reached(made(wanted), lambda v: made(loop(v).reads))}


def choices_of(eqn: JaxprEqn) -> int:
    """Choices for each number of what an equation puts together."""
    match eqn.primitive.name:
        case "pad":
            return 1
        case "concatenate":
            return 0 if _is_copied(eqn) else len(eqn.invars) - 1
    return 0


def _loop(graph: Graph, root: Var) -> XlaLoop:
    whole = graph.name_of(root) in REDUCTIONS
    places: dict[Var, dict[Any, tuple[int, float]]] = {root: {None: (1, 1.0)}}  # code at each, and how often it is done
    readers = {root: 1}
    times, reads = dict[Var, float](), dict[Var, None]()
    todo = [(-graph.producer[root], 0, root)]
    while todo:
        index, _, var = heapq.heappop(todo)
        eqn, mine = graph.eqns[-index], places[var]
        count, often = sum(c for c, _ in mine.values()), sum(x for _, x in mine.values())
        if var is not root and not _is_taken(graph, eqn, var, mine, readers[var], whole):
            reads[var] = None
            continue
        times[var] = often
        name, takes = eqn.primitive.name, _takes(eqn)
        for v in dict.fromkeys(variables(eqn.invars)):
            if v not in graph.producer or not v.aval.ndim or not takes:
                reads.update({} if graph.is_constant(v) else {v: None})
                continue
            if v not in places:
                places[v] = {}
                heapq.heappush(todo, (-graph.producer[v], len(places), v))
            readers[v] = readers.get(v, 0) + 1
            if name in _ALIKE:
                places[v].update(mine)
            else:
                places[v][var] = count, often * (min(1, _size(v) / _size(var)) if name in _ONCE else 1)
    return XlaLoop(times, tuple(reads))


def _is_taken(graph: Graph, eqn: JaxprEqn, var: Var, places: Mapping[Any, tuple[int, float]], readers: int, whole: bool) -> bool:
    """Does a loop evaluate it, at these places? ``whole``: one that reduces, which moves nothing."""
    name, count, users = eqn.primitive.name, sum(c for c, _ in places.values()), graph.users[var]
    if name not in _FUSED or not _takes(eqn) or (whole and name not in _ALIKE | {"broadcast_in_dim"}):
        return False
    if count > MOST_PLACES or (name in _ONCE and (count > 1 or readers > 1)):
        return False
    if len({v for v in variables(eqn.invars) if v.aval.ndim}) < 2:
        return True
    written = len(users) > 1 and any(u == OUTSIDE or not _takes(graph.eqns[u]) for u in users)  # for one, and read by all
    return not (written or (name in _DEAR and None in places and count > 1))


def _takes(eqn: JaxprEqn) -> bool:
    """Does XLA take in what this reads?"""
    return eqn.primitive.name in _FUSED | REDUCTIONS and not eqn.effects and not _is_copied(eqn)


def _is_copied(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name != "concatenate":
        return False
    axis, shape = eqn.params["dimension"], eqn.outvars[0].aval.shape
    return len(eqn.invars) > MOST_PIECES or (0 < axis == len(shape) - 1 and shape[-1] >= WIDE)


def _size(var: Var) -> int:
    return max(1, math.prod(var.aval.shape))
