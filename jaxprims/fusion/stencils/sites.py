"""Which equations of a graph are stencils: from what has to be written backwards, each result with what it is made of."""

from __future__ import annotations

import collections
import dataclasses
import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from jax.extend.core import Var

from ...tracing.jaxprs import scatters, variables
from ..cut import KEPT, READ, bytes_of
from ..graph import Graph
from .cells import Unclear
from .dear import AGAIN, WRITTEN, work, work_behind, works_of
from .pays import fewest_cells
from .stencil import SHIFTS, TAKEN, Root, Seen, Stencil
from .times import UNROLLED

_CELL_BY_CELL = scatters("add") | frozenset("concatenate pad rev scatter dynamic_update_slice".split())
"""What XLA's loops choose for each cell, which they make one by one; windows, too."""

ONE_BY_ONE = 64
"""Additions in the time of such a cell."""

FRESH, LARGEST_KEPT = 20, 2**25
"""Additions that it takes the system to give a byte of memory, and bytes from which on it is asked for them in each call."""

MOST_IN_VAIN = 3
"""Plans, each with one more array, after which a cheaper one is not looked for."""


WhyNot = Callable[[Stencil], str | None]
"""Why a stencil is none."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Plan:
    """Stencils that make ``wanted`` variables, why other equations are none, and those that XLA evaluates beside them."""

    wanted: Collection[Any]
    stencils: list[Stencil]
    left: dict[int, str]
    by_xla: set[int]


def find_stencils(
    graph: Graph, outside: Collection[int], wanted: Iterable[Any], why_not: WhyNot, seen: Seen
) -> tuple[list[Stencil], dict[int, str]]:
    """Among the equations that no kernel has (``outside``), those that make ``wanted`` variables or operands of what is XLA's;
    and why the others are none. What several compute, or one and XLA, is one of its own where that is cheaper. ``seen``: what
    other plans of the graph have looked at."""

    def planned(wanted: Collection[Any], why_not: WhyNot = why_not) -> _Plan:
        found, left = _stencils(graph, outside, wanted, why_not, seen)
        reads = {root.index: s.leaves for s in found for root in s.sites}
        return _Plan(wanted, found, left, graph.evaluated(reads, wanted, outside))

    slower: list[Stencil] = []

    def noted(s: Stencil) -> str | None:
        why = why_not(s)
        slower.extend([s] if why else [])
        return why

    first = planned(set(variables(wanted)), noted)
    best = _searched(graph, first, planned, (_last, _most))
    large = (s for s in slower if math.prod(s.shape) >= fewest_cells() and s.shape[-1] >= UNROLLED)
    if not best.stencils and any(large):  # for what each makes again, it may be

        def as_if(wanted: Collection[Any]) -> _Plan:
            return planned(wanted, lambda s: None)

        other = planned(_searched(graph, as_if(first.wanted), as_if, (_last,)).wanted)
        best = other if _price(graph, other) < _price(graph, best) else best
    return best.stencils, best.left


Which = Callable[[Mapping[int, float]], int]


def _searched(graph: Graph, first: _Plan, planned: Callable[[Collection[Any]], _Plan], ways: Sequence[Which]) -> _Plan:
    """The cheapest plan, of those in which more is written for all."""
    best = first
    for which in ways:
        plan, in_vain = first, 0
        while in_vain < MOST_IN_VAIN and (more := _dear_again(plan, which)):
            plan = planned({*plan.wanted, *more})
            best, in_vain = (plan, 0) if _price(graph, plan) < _price(graph, best) else (best, in_vain + 1)
    return best


def _price(graph: Graph, plan: _Plan) -> float:
    """Of what is computed, read and written, in additions."""
    out = 0.0
    written = {r.eqn.outvars[0] for s in plan.stencils for r in s.sites}
    for s in plan.stencils:
        out += (READ * len(s.layout.places) + s.layout.work) * math.prod(s.shape) + READ * sum(map(bytes_of, s.leaves))
        written.update(v for v in s.leaves if graph.producer.get(v) in plan.by_xla)
    for k in plan.by_xla:
        (v, *_), name, each = graph.eqns[k].outvars, graph.eqns[k].primitive.name, work(graph, k)
        if name in TAKEN:
            one_by_one = name in _CELL_BY_CELL or each >= AGAIN
            out += (each + ONE_BY_ONE * one_by_one) * math.prod(v.aval.shape)
            if one_by_one or (each >= WRITTEN and sum(u in plan.by_xla for u in graph.users[v]) > 1):
                written.add(v)
    total = sum(map(bytes_of, written))
    return out + total * (KEPT - READ + FRESH * (total > LARGEST_KEPT))


def _last(saved: Mapping[int, float]) -> int:
    return max(saved)


def _most(saved: Mapping[int, float]) -> int:
    """The last of those by which most is saved."""
    return max(saved, key=lambda k: (saved[k], k))


def _dear_again(plan: _Plan, which: Which) -> set[Var]:
    """What might be written: windows that several stencils compute, or one and XLA; else ``which`` of what several stencils
    compute, and takes longer than to read it."""
    times = collections.Counter([*plan.by_xla, *(k for s in plan.stencils for k in s.taken)])
    windows, saved, made = set[Var](), dict[int, float](), dict[int, Var]()
    for s in plan.stencils:
        works = works_of(s.graph, s.taken)
        for k in s.taken:
            (var,) = s.graph.eqns[k].outvars
            if times[k] > 1 and var not in plan.wanted and math.prod(var.aval.shape) * 2 > math.prod(s.shape):
                again = (times[k] - 1) * work_behind(s.graph, works, k)
                if works[k] >= AGAIN:
                    windows.add(var)
                elif again >= AGAIN:
                    saved[k], made[k] = again, var
    return windows or ({made[which(saved)]} if saved else set())


def _stencils(
    graph: Graph, outside: Collection[int], wanted: Collection[Any], why_not: WhyNot, seen: Seen
) -> tuple[list[Stencil], dict[int, str]]:
    materialised = set(wanted)
    for k in outside:
        if graph.eqns[k].primitive.name not in TAKEN or graph.eqns[k].effects:
            materialised.update(variables(graph.eqns[k].invars))
    shifted = _made_of_shifts(graph)
    todo = [-graph.producer[v] for v in materialised if v in graph.producer]
    heapq.heapify(todo)
    found: list[Stencil] = []
    left: dict[int, str] = {}
    done: set[int] = set()
    while todo:
        index = -heapq.heappop(todo)
        if index in done or index not in outside or index not in shifted:
            continue
        done.add(index)
        eqn = graph.eqns[index]
        shape = eqn.outvars[0].aval.shape if len(eqn.outvars) == 1 and eqn.primitive.name in TAKEN else ()
        if not all(isinstance(n, int) and n for n in shape) or math.prod(shape) == 1:
            continue  # one number is no grid
        try:
            stencil = Stencil(graph, [Root(index, eqn)], (), materialised, seen)
        except Unclear as e:
            left[index] = str(e)
            todo_more: Iterable[Any] = eqn.invars
        else:
            todo_more = eqn.invars if eqn.primitive.name == "reshape" else stencil.leaves
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
        for v in variables(todo_more):
            if v in graph.producer:
                heapq.heappush(todo, -graph.producer[v])
    return found, left


def _made_of_shifts(graph: Graph) -> set[int]:
    """The equations that a stencil may take in of which one that shifts is part: others are looked at in no case."""
    out = set[int]()
    for k, eqn in enumerate(graph.eqns):
        name = eqn.primitive.name
        if name in SHIFTS or (name in TAKEN and any(graph.producer.get(v) in out for v in variables(eqn.invars))):
            out.add(k)
    return out
