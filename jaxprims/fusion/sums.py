"""Sums of what is added by index: ``zeros.at[i].add(x) + zeros.at[j].add(y)``, as a gradient by an array that is read at several
places, adds y to what the first one has made. So there is one array, and both are updates of the same bins.
"""

from __future__ import annotations

from jax.extend.core import ClosedJaxpr, JaxprEqn

from ..tracing.jaxprs import scatters
from .graph import Graph
from .sites import is_filled_with

_ADDED = scatters("add")


def added_in_turn(graph: Graph) -> ClosedJaxpr | None:
    """The function with one sum by index after the other; None if there are none such."""
    last: dict[int, JaxprEqn] = {}  # of an addition that has become an update: that
    for index, eqn in enumerate(graph.eqns):
        if eqn.primitive.name in ("add", "add_any"):
            for first, second in (eqn.invars, eqn.invars[::-1]):
                before, more = graph.made_by(first), graph.made_by(second)
                if before is None or more is None or graph.users[first] != [index]:
                    continue
                before = last.get(graph.producer[first], before)
                if _is_one_of_many(graph, more, index) and _are_alike(before, more):
                    last[index] = more.replace(invars=[first, *more.invars[1:]], outvars=eqn.outvars)
                    break
    if not last:
        return None
    eqns = [last.get(index, eqn) for index, eqn in enumerate(graph.eqns)]
    return ClosedJaxpr(graph.jaxpr.replace(eqns=eqns), graph.consts)


def _is_one_of_many(graph: Graph, eqn: JaxprEqn, user: int) -> bool:
    """Does it add to zeros, for this user alone?"""
    return eqn.primitive.name in _ADDED and is_filled_with(graph, eqn.invars[0], 0) and graph.users[eqn.outvars[0]] == [user]


def _are_alike(one: JaxprEqn, other: JaxprEqn) -> bool:
    """Are they updates of the same bins, as many and of the same kind? Of numbers: rows that are not all made alike would be
    written for a kernel of all of them."""
    if one.primitive is not other.primitive or any(one.params[k] != other.params[k] for k in ("dimension_numbers", "mode")):
        return False
    _, indices, updates = one.invars
    return updates.aval.ndim < indices.aval.ndim and all(
        (v.aval.shape, v.aval.dtype) == (w.aval.shape, w.aval.dtype) for v, w in zip(one.invars, other.invars, strict=True)
    )
