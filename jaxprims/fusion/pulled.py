"""Gradients of trees of ``lax.associative_scan``: what JAX makes of each level, backwards, as the gradient of one scan.

What JAX would make of a tree, or of the cumulative function that is traced to it, is made here, and looked for in the function,
equation by equation: if all of it is there, its results are the gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, jaxpr_as_fun

from ..tracing.jaxprs import assembled, structs, variables
from .graph import Graph, flat_graph, reached

MOST_TRIED = 16
"""Choices of arrays that may be what the gradient begins with."""


class Pulled(NamedTuple):
    """``begins``: the cotangents of a tree's results, in the order of these; ``results``: the variables that are those of its
    leaves, with the sum of ``more`` in each; ``inside``: the equations."""

    begins: tuple[Any, ...]
    results: tuple[Any, ...]
    more: tuple[tuple[Any, ...], ...]
    inside: frozenset[int]


def pulled(graph: Graph, leaves: Sequence[Any], outs: Sequence[Any], known: Callable[..., Any] | None = None) -> Pulled | None:
    """The gradient of what makes ``outs`` of ``leaves``; ``known``: a function of these that does."""
    if not all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in (*leaves, *outs)):
        return None
    written, captured = _between(graph, leaves, outs)
    table = {_key(e, map(_atom, e.invars)): e for e in graph.eqns if not e.effects}
    for function, more in ((known, ()), (written, captured)):
        found = None if function is None else _found(graph, table, function, leaves, more, outs)
        if found is not None:
            return found
    return None


def _between(graph: Graph, leaves: Sequence[Any], outs: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
    """What makes some variables of others and of what it captures, as a function; and what that is."""

    def makers(k: int) -> list[int]:
        return [graph.producer[v] for v in variables(graph.eqns[k].invars) if v in graph.producer and v not in leaves]

    eqns = [graph.eqns[k] for k in sorted(reached([graph.producer[v] for v in outs], makers))]
    read = dict.fromkeys(v for eqn in eqns for v in variables(eqn.invars))
    captured = [v for v in read if v not in graph.producer and v not in leaves]
    return jaxpr_as_fun(ClosedJaxpr(assembled([], [*leaves, *captured], outs, eqns), [])), captured


def _found(
    graph: Graph, table: Mapping[Any, JaxprEqn], function: Callable[..., Any], leaves: Sequence[Any], more: Sequence[Any],
    outs: Sequence[Any],
) -> Pulled | None:  # fmt: skip
    """What JAX makes of its gradient, in the graph."""

    def gradient(xs: Sequence[Any], captured: Sequence[Any], begins: Sequence[Any]) -> Sequence[Any]:
        _, pull = jax.vjp(lambda *xs: function(*xs, *captured), *xs)
        return pull(list(begins))

    try:
        made = flat_graph(jax.make_jaxpr(gradient)(structs(leaves), structs(more), structs(outs)))
    except Exception:  # of what has none
        return None
    given = dict(zip(made.jaxpr.invars, [*leaves, *more], strict=False))
    begins = made.jaxpr.invars[len(given) :]
    for choice in itertools.islice(itertools.product(*(_candidates(graph, made, v) for v in begins)), MOST_TRIED):
        matched = _matched(graph, table, made, given | dict(zip(begins, choice, strict=True)))
        if matched is not None:
            results, more, inside = matched
            first = min(graph.producer[v] for v in results)
            if all(graph.producer.get(v, -1) < first for v in (*choice, *itertools.chain(*more))):
                return Pulled(tuple(choice), tuple(results), tuple(more), frozenset(inside))
    return None


def _candidates(graph: Graph, made: Graph, begin: Any) -> Iterator[Any]:
    """What is used as the gradient first uses this."""
    for user in made.users.get(begin, [])[:1]:
        eqn = made.eqns[user] if user >= 0 else None
        if eqn is not None:
            at = eqn.invars.index(begin)
            same = (e.invars[at] for e in graph.eqns if e.primitive is eqn.primitive and _text(e) == _text(eqn))
            yield from dict.fromkeys(v for v in same if not isinstance(v, Literal) and v.aval.shape == begin.aval.shape)


def _matched(
    graph: Graph, table: Mapping[Any, JaxprEqn], made: Graph, known: dict[Any, Any]
) -> tuple[list[Any], list[tuple[Any, ...]], set[int]] | None:
    """The variables of the graph that are what is made, with what else is added to them; and their equations."""
    summed = [_summands(made, v) for v in made.jaxpr.outvars]
    within, inside = {k for _, adding in summed for k in adding}, set[int]()
    for index, eqn in enumerate(made.eqns):
        if index in within:
            continue
        operands = [_atom(v) if isinstance(v, Literal) else known[v] for v in eqn.invars]
        there = table.get(_key(eqn, operands))
        if there is None:
            return None
        known.update(zip(eqn.outvars, there.outvars, strict=True))
        inside.add(graph.producer[there.outvars[0]])
    results, more = list[Any](), list[tuple[Any, ...]]()
    for summands, _ in summed:
        mine = [known[v] for v in summands]
        total = _total(graph, mine)
        if total is None:
            return None
        every, adding = _summands(graph, total)
        inside |= adding
        results.append(total)
        more.append(tuple(v for v in every if v not in mine))
    return results, more, inside


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
        users = graph.users[v]
        if len(users) != 1 or users[0] < 0 or graph.eqns[users[0]].primitive.name != "add_any":
            return None
        (v,) = graph.eqns[users[0]].outvars


def _key(eqn: JaxprEqn, operands: Any) -> Any:
    return eqn.primitive, _text(eqn), tuple(operands)


def _text(eqn: JaxprEqn) -> str:
    return str(sorted(eqn.params.items(), key=lambda item: item[0]))


def _atom(v: Any) -> Any:
    return (str(v.val), str(v.aval)) if isinstance(v, Literal) else v
