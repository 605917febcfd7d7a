"""Maps: elementwise functions that XLA calls for one number after the other, with all that is elementwise around them."""

from __future__ import annotations

from collections.abc import Collection

import jax
from jax.extend.core import Var

from ..operators.operator import MAX_STRUCT_SLOTS
from ..tracing import elementwise
from ..tracing.jaxprs import variables
from ..tracing.labels import REDUCTIONS
from .body import Body
from .graph import OUTSIDE, Graph
from .one_by_one import calls
from .pays import FEWEST_MAPPED, FEWEST_MAPPED_IN_A_LOOP, is_turned
from .sites import Site, is_number, map_of

LEAST = 128
"""Numbers of a function that a map begins with."""


def find_maps(
    graph: Graph, free: Collection[int], by_xla: Collection[int], given: Collection[Var], read: Collection[Var]
) -> list[list[Site]]:
    """Those of each kernel, among the equations that are ``free`` to be in one: what others want of such functions and of what is
    elementwise of them. ``by_xla``: what XLA evaluates; ``given``: what kernels make; ``read``: what they read."""
    inside = _inside(graph, free)
    groups: list[Body] = []
    for k in sorted(inside):
        eqn = graph.eqns[k]
        (out,) = eqn.outvars
        others = [u for u in graph.users[out] if u not in inside and (u == OUTSIDE or u in by_xla)]
        if out not in read and all(u != OUTSIDE and graph.eqns[u].primitive.name in REDUCTIONS for u in others):
            continue  # XLA reduces it where it makes it, or nobody wants it
        mine = Body(graph, [map_of(k, eqn)], (), given)
        for n, theirs in enumerate(groups):
            both = _together(theirs, mine, given)
            if both is not None:
                groups[n] = both
                break
        else:
            groups.append(mine)
    return [list(body.sites) for body in groups]


def is_worth_one(body: Body) -> bool:
    """Are enough numbers left to it, with what it is to read? Devices may share axes that lie in another order."""
    if jax.device_count() > 1 and any(map(is_turned, body.leaves)):
        return False
    fewest = FEWEST_MAPPED_IN_A_LOOP if body.graph.in_loop else FEWEST_MAPPED
    return sum(calls(body.graph.eqns[k]) * body.times(k) for k in body.taken) >= fewest


def _inside(graph: Graph, free: Collection[int]) -> set[int]:
    """Such functions, and what is elementwise of them, number by number."""
    inside, behind = set[int](), set[Var]()
    for k in sorted(free):
        eqn = graph.eqns[k]
        if not elementwise.is_elementwise(eqn) or len(eqn.outvars) != 1 or not is_number(eqn.outvars[0], complex=True):
            continue
        (out,) = eqn.outvars
        begins = calls(eqn) and isinstance(out.aval.size, int) and out.aval.size >= LEAST
        if begins or any(v in behind and v.aval.shape == out.aval.shape for v in variables(eqn.invars)):
            inside.add(k)
            behind.add(out)
    return inside


def _together(theirs: Body, mine: Body, given: Collection[Var]) -> Body | None:
    """One kernel's body, if they read the same or one makes what the other wants, and neither has to be there before."""
    sites = [*theirs.sites, *mine.sites]
    alike = set(theirs.streamed) & set(mine.streamed) or not mine.taken.isdisjoint(theirs.inside)
    if theirs.sites[0].sizes != mine.sites[0].sizes or len(sites) > MAX_STRUCT_SLOTS or not alike:
        return None
    both = Body(theirs.graph, sites, (), given)
    made = sum(1 << s.index for s in sites)
    return None if both.graph.needs([v for v, _ in both.leaves]) & made else both
