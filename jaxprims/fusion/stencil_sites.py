"""Which equations of a graph are stencils: from what has to be written backwards, each result with what it is made of."""

from __future__ import annotations

import collections
import heapq
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from jax.extend.core import Literal, Var

from .cells import Unclear, work
from .graph import Graph
from .stencils import AGAIN, TAKEN, Root, Stencil, work_behind


def find_stencils(
    graph: Graph, outside: Collection[int], wanted: Iterable[Any], why_not: Callable[[Stencil], str | None]
) -> tuple[list[Stencil], dict[int, str]]:
    """Among the equations that no kernel has (``outside``), those that make ``wanted`` variables or operands of what is XLA's;
    and why the others are none. A window that is in several, or in one and XLA's, too, is one of its own."""
    wanted = {v for v in wanted if not isinstance(v, Literal)}
    while True:
        found, left = _stencils(graph, outside, wanted, why_not)
        again = _dear_again(found, _evaluated(graph, outside, wanted, found)) - wanted
        if not again:
            return found, left
        wanted |= again


def _evaluated(graph: Graph, outside: Collection[int], wanted: Iterable[Any], stencils: Sequence[Stencil]) -> set[int]:
    """The equations that XLA evaluates beside these."""
    reads = {root.index: s.leaves for s in stencils for root in s.sites}
    todo, done = [*wanted, *(v for k in outside if graph.eqns[k].effects for v in graph.eqns[k].invars)], set[int]()
    while todo:
        index = None if isinstance(v := todo.pop(), Literal) else graph.producer.get(v)
        if index is not None and index in outside and index not in done:
            done.add(index)
            todo += reads.get(index, graph.eqns[index].invars)
    return done.difference(reads)


def _dear_again(stencils: Sequence[Stencil], by_xla: Collection[int]) -> set[Var]:
    """Windows that several stencils compute, or one and XLA; else of what several stencils compute, and takes longer than to read
    it, that by which most is saved: the last of such."""
    times = collections.Counter([*by_xla, *(k for s in stencils for k in s.taken)])
    found, saved = set[Var](), dict[int, tuple[float, Var]]()
    for s in stencils:
        for k in s.taken:
            (var,) = s.graph.eqns[k].outvars
            if times[k] > 1 and math.prod(var.aval.shape) * 2 > math.prod(s.shape):
                again = (times[k] - 1) * work_behind(s.graph, s.taken, k)
                if work(s.graph, k) >= AGAIN:
                    found.add(var)
                elif again >= AGAIN:
                    saved[k] = again, var
    return found or {saved[k][1] for k in sorted(saved, key=lambda k: (saved[k][0], k))[-1:]}


def _stencils(
    graph: Graph, outside: Collection[int], wanted: Collection[Any], why_not: Callable[[Stencil], str | None]
) -> tuple[list[Stencil], dict[int, str]]:
    materialised = set(wanted)
    for k in outside:
        if graph.eqns[k].primitive.name not in TAKEN or graph.eqns[k].effects:
            materialised.update(v for v in graph.eqns[k].invars if not isinstance(v, Literal))
    todo = [-graph.producer[v] for v in materialised if v in graph.producer]
    heapq.heapify(todo)
    found: list[Stencil] = []
    left: dict[int, str] = {}
    done: set[int] = set()
    while todo:
        index = -heapq.heappop(todo)
        if index in done or index not in outside:
            continue
        done.add(index)
        eqn = graph.eqns[index]
        shape = eqn.outvars[0].aval.shape if len(eqn.outvars) == 1 and eqn.primitive.name in TAKEN else ()
        if not shape or not all(isinstance(n, int) and n for n in shape):
            continue
        try:
            stencil = Stencil(graph, [Root(index, eqn)], (), materialised)
        except Unclear as e:
            left[index] = str(e)
            todo_more: Iterable[Any] = eqn.invars
        else:
            todo_more = eqn.invars if eqn.primitive.name == "reshape" else ()
            if eqn.primitive.name == "transpose" and stencil.layout.transposed > 1:
                materialised.update(eqn.invars)  # its result is one array, which XLA transposes
                todo_more = eqn.invars
            elif stencil.layout.shifted:
                why = why_not(stencil)
                if why:
                    left[index] = why
                    continue
                found.append(stencil)
                materialised.update(stencil.leaves)
                todo_more = stencil.leaves
        for v in todo_more:
            if not isinstance(v, Literal) and v in graph.producer:
                heapq.heappush(todo, -graph.producer[v])
    return found, left
