"""Gradients of trees of ``lax.associative_scan``: what JAX makes of each level, backwards, as the gradient of one scan.

What JAX would make of a tree, or of the cumulative function that is traced to it, is made here, and looked for in the function,
equation by equation: if all of it is there, its results are the gradient.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from ..tracing.jaxprs import structs
from .graph import Graph, flat_graph
from .lookup import Atom, Lookup, are_alike, between, follow

MOST_TRIED = 16
"""Choices of arrays that may be what the gradient begins with."""


class Pulled(NamedTuple):
    """``begins``: the cotangents of a tree's results, in the order of these; ``results``: the variables that are those of its
    leaves, with the sum of ``more`` in each; ``inside``: the equations."""

    begins: Sequence[Any]
    results: list[Any]
    more: list[list[Any]]
    inside: set[int]


def pulled(lookup: Lookup, leaves: Sequence[Any], outs: Sequence[Any], known: Callable[..., Any] | None = None) -> Pulled | None:
    """The gradient of what makes ``outs`` of ``leaves``; ``known``: a function of these that does."""
    if not all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in (*leaves, *outs)):
        return None
    written, captured = between(lookup.graph, leaves, outs)
    found = None if known is None else _found(lookup, known, leaves, [], outs)
    return found or _found(lookup, jaxpr_as_fun(ClosedJaxpr(written, [])), leaves, captured, outs)


def _found(
    lookup: Lookup, function: Callable[..., Any], leaves: Sequence[Any], captured: Sequence[Any], outs: Sequence[Any]
) -> Pulled | None:
    """What JAX makes of its gradient, in the graph, behind all that it is made of."""

    def gradient(xs: Sequence[Any], more: Sequence[Any], begins: Sequence[Any]) -> Sequence[Any]:
        _, pull = jax.vjp(lambda *xs: function(*xs, *more), *xs)
        return pull(list(begins))

    try:
        made = flat_graph(jax.make_jaxpr(gradient)(structs(leaves), structs(captured), structs(outs)))
    except Exception:  # of what has none
        return None
    candidates = [_candidates(lookup, made, v) for v in made.jaxpr.invars[-len(outs) :]]
    for begins in itertools.islice(itertools.product(*candidates), MOST_TRIED):
        found = _matched(lookup, made, leaves, captured, begins)
        if found is not None:
            place = {v: lookup.graph.producer.get(v, -1) for v in (*outs, *begins, *itertools.chain(*found.more))}
            if max(place.values()) < min(lookup.graph.producer[v] for v in found.results):
                return found
    return None


def _candidates(lookup: Lookup, made: Graph, begin: Any) -> Iterator[Any]:
    """What is used as the gradient first uses this."""
    for user in made.users.get(begin, [])[:1]:
        eqn = made.eqns[user] if user >= 0 else None
        if eqn is not None:
            at = eqn.invars.index(begin)
            same = (e.invars[at] for e in lookup.graph.eqns if are_alike(eqn, e))
            yield from dict.fromkeys(v for v in same if not isinstance(v, Literal) and v.aval.shape == begin.aval.shape)


def _matched(lookup: Lookup, made: Graph, leaves: Sequence[Any], captured: Sequence[Any], begins: Sequence[Any]) -> Pulled | None:
    """The variables of the graph that are what is made, with what else is added to them; and their equations."""
    known: dict[Any, Atom] = dict(zip(made.jaxpr.invars, (*leaves, *captured, *begins), strict=True))
    summed = [_summands(made, v) for v in made.jaxpr.outvars]
    added = set[int]().union(*(adding for _, adding in summed))
    found = Pulled(begins, [], [], set())
    follow([eqn for k, eqn in enumerate(made.eqns) if k not in added], known, functools.partial(lookup.there, found.inside))
    for mine in [[known[v] for v in summands] for summands, _ in summed]:
        total = None if None in mine else _total(lookup.graph, mine)
        if total is None:
            return None
        every, adding = _summands(lookup.graph, total)
        found.inside.update(adding)
        found.results.append(total)
        found.more.append([v for v in every if v not in mine])
    return found


def _summands(graph: Graph, total: Any) -> tuple[list[Any], set[int]]:
    """What a sum of several arrays is of, and the equations that add them."""
    summands, adding, todo = list[Any](), set[int](), [total]
    while todo:
        v = todo.pop()
        eqn = graph.made_by(v)
        if eqn is None or eqn.primitive.name != "add_any" or (v is not total and len(graph.users[v]) > 1):
            summands.append(v)
        else:
            adding.add(graph.producer[v])
            todo += reversed(eqn.invars)
    return summands, adding


def _total(graph: Graph, summands: Sequence[Any]) -> Any:
    """The sum that all of these are in, with as few others as there are; None if there is none."""
    v = summands[0]
    while True:
        if set(summands) <= set(_summands(graph, v)[0]):
            return v if v in graph.producer else None
        users = graph.users.get(v, [])
        if len(users) != 1 or users[0] < 0 or graph.eqns[users[0]].primitive.name != "add_any":
            return None
        (v,) = graph.eqns[users[0]].outvars
