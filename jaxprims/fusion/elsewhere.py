"""What others want of what a kernel takes in or makes: XLA makes that for them as well, where they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from jax.extend.core import Var

from ..tracing.labels import MOVES, NUMBER_BY_NUMBER, REDUCTIONS
from .body import DEAR, Body, operations
from .graph import OUTSIDE, Graph, reached


def is_reduced_elsewhere(body: Body) -> bool:
    """Do others want what this kernel reduces?"""
    graph, inside = body.graph, body.inside
    reduced = (var for site in body.sites for var, _ in site.roots if isinstance(var, Var))
    return any(u != OUTSIDE and u not in inside for var in reduced for u in graph.users[var])


def is_made_elsewhere(body: Body) -> bool:
    """Do others want what this kernel makes on its way?"""
    inside = body.inside
    return any(u not in inside for k in body.taken for v in body.graph.eqns[k].outvars for u in body.graph.users[v])


def is_made_in_loops(body: Body, var: Var) -> bool:
    """Is it XLA's loops that make what this kernel could compute, not a stencil or a kernel of rows, and that want it, not
    reductions of functions of it?"""
    graph = body.graph
    if var not in body.cut or graph.needs([var]) & sum(1 << graph.producer[v] for v in body.given):
        return False
    return not is_only_reduced(graph, [var], body.inside)


def is_only_reduced(graph: Graph, variables: Iterable[Var], inside: Collection[int] = ()) -> bool:
    """Is all that others make of these, number by number, reduced?"""

    def others(v: Var) -> list[int]:
        reduced = (u != OUTSIDE and graph.eqns[u].primitive.name in REDUCTIONS for u in graph.users[v])
        return [u for u, once in zip(graph.users[v], reduced, strict=True) if u not in inside and not once]

    def onward(v: Var) -> list[Var]:
        return [x for u in others(v) if u != OUTSIDE for x in graph.eqns[u].outvars]

    users = (u for v in reached(variables, onward) for u in others(v))
    return all(u != OUTSIDE and graph.eqns[u].primitive.name in NUMBER_BY_NUMBER | MOVES for u in users)


def makes_others_functions(body: Body) -> bool:
    """Do others want what takes time to be made here?"""
    graph, inside = body.graph, body.inside
    dear = (graph.eqns[k] for k in body.taken if operations(graph.eqns[k]) >= DEAR)
    return any(u not in inside for e in dear for v in e.outvars for u in graph.users[v])


def has_roots(body: Body) -> bool:
    """Are roots wanted of the results?"""
    graph = body.graph

    def onward(v: Var) -> list[Var]:
        return [
            x for u in graph.users[v] if u != OUTSIDE and graph.eqns[u].primitive.name in MOVES for x in graph.eqns[u].outvars
        ]

    users = (u for v in reached((s.eqn.outvars[0] for s in body.sites), onward) for u in graph.users[v] if u != OUTSIDE)
    return any(graph.eqns[u].primitive.name in ("sqrt", "rsqrt") for u in users)


def shares_functions(body: Body) -> bool:
    """Is what takes time, here or of the results, made for others as well?"""
    graph = body.graph
    todo = [*(v for k in body.taken for v in graph.eqns[k].outvars), *(s.eqn.outvars[0] for s in body.sites)]

    def onward(v: Var) -> list[Var]:
        found = (graph.eqns[u] for u in graph.users[v] if u != OUTSIDE)
        return [x for e in found if e.primitive.name in NUMBER_BY_NUMBER or e.primitive.name in MOVES for x in e.outvars]

    made = (v for v in reached(todo, onward) if graph.producer.get(v) is not None and v.aval.size >= body.sites[0].elements)
    return any(operations(graph.eqns[graph.producer[v]]) >= DEAR and len(graph.users[v]) > 1 for v in made)


def is_spread_dearly(body: Body) -> bool:
    """Is a function of a result, that takes time, wanted for more numbers than it has?"""
    graph = body.graph
    todo, seen = [(s.eqn.outvars[0], False) for s in body.sites], set[tuple[Var, bool]]()
    while todo:
        var, dear = todo.pop()
        if (var, dear) in seen:
            continue
        seen.add((var, dear))
        for eqn in (graph.eqns[u] for u in graph.users[var] if u != OUTSIDE):
            (out,) = eqn.outvars if len(eqn.outvars) == 1 else (var,)
            if dear and eqn.primitive.name in NUMBER_BY_NUMBER and out.aval.size > var.aval.size:
                return True
            if eqn.primitive.name in NUMBER_BY_NUMBER and out.aval.size == var.aval.size:
                todo.append((out, dear or operations(eqn) >= DEAR))
    return False


def is_searched_elsewhere(body: Body) -> bool:
    """Are extremes wanted of what others look through for their positions?"""
    graph, inside = body.graph, body.inside
    users = (u for s in body.sites if s.compares for u in graph.users[s.eqn.invars[0]] if u != OUTSIDE and u not in inside)
    return any(graph.eqns[u].primitive.name in ("argmax", "argmin") for u in users)
