"""Rows: what goes through each row of an array several times (a softmax, a variance about the mean, their gradients), as one
function of a row, whose arrays stay in the cache from one loop to the next. Where XLA makes a pass through memory for each.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from jax.extend.core import JaxprEqn, Literal

from ..operators.operator import MAX_STRUCT_SLOTS
from ..tracing.labels import REDUCTIONS, Labels, leading, wanted
from .agreed import made_apart
from .body import IN_ROWS, MOST_IN_ROW, Body, Leaf, operations, own_numbers
from .compared import Compared
from .cut import IN_CACHE, bytes_of
from .graph import OUTSIDE, Graph, needs_itself
from .pays import FEWEST_IN_A_LOOP, FEWEST_SIDE_BY_SIDE, why_not
from .priced import bytes_around
from .sites import Site, find_sites, is_number

DEAR, DEAR_IN_CACHE = 16, 8
"""Additions for a number of a row from which on it is written for other sites, not made again by them: those of a function; or of
an exponential, where all may stay in a core's cache."""

MOST_MEMBERS = 150
"""Equations of one function of rows; others go on from what is written of it."""


@dataclasses.dataclass(eq=False)
class Rows:
    """Equations on rows, of as many loops as ``sizes``, that need each other's results: none needs one by way of others, nor by
    way of other such functions."""

    graph: Graph
    sizes: tuple[int, ...]
    members: set[int]

    @functools.cached_property
    def bits(self) -> int:
        return sum(1 << k for k in self.members)

    @functools.cached_property
    def needed(self) -> int:
        """The equations that have to be done before, as bits."""
        return self.graph.needs([v for k in self.members for v in self.graph.eqns[k].invars if not self.has(v)])

    def labels(self, var: Any) -> Labels:
        return leading(len(self.sizes), var.aval.ndim)

    def own(self, index: int) -> float:
        """Numbers of a row of what an equation makes."""
        (var,) = self.graph.eqns[index].outvars
        return own_numbers(var, self.labels(var))

    def has(self, atom: Any) -> bool:
        return not isinstance(atom, Literal) and self.graph.producer.get(atom) in self.members

    def takes(self, eqn: JaxprEqn) -> bool:
        """Is the equation one on these rows, as far as it needs them?"""
        (out,) = eqn.outvars
        if out.aval.shape[: len(self.sizes)] != self.sizes or own_numbers(out, self.labels(out)) > MOST_IN_ROW:
            return False
        operands = wanted(eqn, self.labels(out))
        return operands is not None and all(k == self.labels(v) for v, k in zip(eqn.invars, operands, strict=True) if self.has(v))

    def with_others(self, others: Sequence[Rows], index: int, every: Collection[Rows]) -> Rows | None:
        """One of all of these, with another equation; None if one of them then needs another by way of what is in none, or of
        another of ``every``."""
        together = Rows(self.graph, self.sizes, set().union(self.members, *(o.members for o in others), {index}))
        if len(together.members) > MOST_MEMBERS:
            return None
        rest = (o for o in every if o not in others)
        around = needs_itself(together.bits, together.needed, rest, lambda o: o.bits, lambda o: o.needed)
        return None if around else together

    def roots(self, elsewhere: Collection[int], others: Collection[int]) -> list[int]:
        """What others want of it. What loops of other sites and other functions of rows make again (``elsewhere``), if that is
        cheap, is not written for them; what that is made of is, if anything is. Nor are short rows, for ``others``' kernels."""
        out, again = set[int](), set[int]()
        for k in self.members:
            users = set(self.graph.users[self.graph.eqns[k].outvars[0]]) - self.members
            if self.are_short and k in others and users.issubset(others):
                continue
            made_of = self._made_again_of(k) if self.own(k) > 1 and users.issubset(elsewhere) else None
            if users and made_of is None:
                out.add(k)
            elif users:
                again.update(made_of or ())
        return sorted(out | again) if out else []

    def _made_again_of(self, index: int) -> set[int] | None:
        """What reductions make, of which it is made again, with what is read; None if that is not cheap."""
        total, todo, seen, ends = 0.0, [index], set[int](), set[int]()
        written = bytes_of(self.graph.eqns[index].outvars[0])
        dear = DEAR_IN_CACHE if written + bytes_around(self.graph) <= IN_CACHE else DEAR
        while todo and total < dear:
            k = todo.pop()
            eqn = self.graph.eqns[k]
            if self.own(k) == 1 or eqn.primitive.name in REDUCTIONS:
                ends.add(k)
            elif k not in seen:
                seen.add(k)
                total += operations(eqn)
                todo += [self.graph.producer[v] for v in eqn.invars if self.has(v)]
        return ends if total < dear else None

    def behind(self, roots: Sequence[int]) -> list[int]:
        """What the roots depend on, in the equations' order."""
        return [k for k in self.graph.needed([self.graph.eqns[k].outvars[0] for k in roots]) if k in self.members]

    def goes_again(self, roots: Sequence[int]) -> bool:
        """Does it go through the same rows again, after a reduction of them?"""
        inside = self.behind(roots)
        reduced = {k: self.graph.eqns[k].outvars[0] for k in inside if self.graph.eqns[k].primitive.name in REDUCTIONS}
        first = {r: self._read(r, ()) for r in reduced}
        for k in inside:
            before = [r for r in reduced if r != k and self.graph.ancestors[k] >> r & 1]
            if before and (self.own(k) > 1 or k in reduced):
                mine = self._read(k, set(reduced.values()))
                if any(mine & first[r] for r in before):
                    return True
        return False

    @functools.cached_property
    def are_short(self) -> bool:
        """Are all rows that are reduced so short that registers hold them?"""
        reduced = (e for k in self.members if (e := self.graph.eqns[k]).primitive.name in REDUCTIONS)
        return all(own_numbers(v := e.invars[0], self.labels(v)) <= MAX_STRUCT_SLOTS for e in reduced)

    def combines_short_ones(self, roots: Sequence[int]) -> bool:
        """Are short rows summed, which XLA does one by one, or the extremes found of what is made of numbers that they have in
        common, which a reduction would read again for each? Rows are read where they lie."""
        inside = {k: name for k in self.behind(roots) if (name := self.graph.eqns[k].primitive.name) in REDUCTIONS}
        if not self.are_short or set(inside.values()).isdisjoint(("reduce_sum", "reduce_max", "reduce_min")):
            return False
        loops = set(range(len(self.sizes)))
        if not all(loops.isdisjoint(labels) or loops <= set(labels) for _, labels in self._leaves(roots)):
            return False
        if "reduce_sum" in inside.values():
            return True
        alone = all(self.members.issuperset(self.graph.users[self.graph.eqns[k].invars[0]]) for k in inside)
        read = ((v, k) for v, k in self._leaves(inside) if v.aval.size > 1)
        return alone and any(loops.isdisjoint(k) or own_numbers(v, k) == 1 for v, k in read)

    def _leaves(self, members: Iterable[int]) -> Iterable[Leaf]:
        return Body(self.graph, [_site(self, k) for k in members], ()).leaves

    def _read(self, index: int, cut: Collection[Any]) -> set[Any]:
        """The arrays whose rows an equation is made of."""
        body = Body(self.graph, [_site(self, index)], cut)
        return {v for v, labels in body.leaves if own_numbers(v, labels) > 1}


def groups_of(graph: Graph) -> list[Rows]:
    """All that depends on a reduction of rows and is a function of the same rows."""
    found: dict[int, Rows] = {}
    every: dict[Rows, None] = {}
    for index, eqn in enumerate(graph.eqns):
        if not _may_be_within(eqn):
            continue
        near = list(dict.fromkeys(found[graph.producer[v]] for v in eqn.invars if _is_in(graph, found, v)))
        if eqn.primitive.name in REDUCTIONS:
            sizes = _sizes(eqn)
            mine = None if sizes is None else Rows(graph, sizes, set())
        else:
            mine = Rows(graph, near[0].sizes, set()) if near else None
        if mine is None:
            continue
        others = [o for o in near if o.sizes == mine.sizes]
        while True:
            joined = mine.with_others(others, index, every)
            if joined is not None and joined.takes(eqn):
                break
            if not others:
                break
            others.pop()
        if joined is None or not joined.takes(eqn) or not (others or eqn.primitive.name in REDUCTIONS):
            continue
        found.update(dict.fromkeys(joined.members, joined))
        every = {o: None for o in every if o not in others} | {joined: None}
    return list(every)


def leaves_short_ones(graph: Graph, by_xla: Collection[int]) -> bool:
    """Does XLA, which evaluates these equations, reduce many short rows?"""
    every = ((rows, k) for rows in groups_of(graph) if rows.are_short for k in rows.members & set(by_xla))
    reduced = (graph.eqns[k].invars[0] for _, k in every if graph.eqns[k].primitive.name in REDUCTIONS)
    fewest, _ = FEWEST_IN_A_LOOP if graph.in_loop else FEWEST_SIDE_BY_SIDE
    return any(math.prod(x.aval.shape) >= fewest for x in reduced)


def find_rows(graph: Graph, compared: Sequence[Compared], written: bool) -> list[list[Site]]:
    """Sites of one kernel each: what others want of equations on the same rows, and what is ``compared`` with their extremes.
    ``written``: also what other sites may make of short rows for themselves."""
    groups = groups_of(graph)
    if not groups:
        return []
    within = set().union(*(rows.members for rows in groups))
    elsewhere, kernels = set[int](), set[int]()
    for_others = not written and any(rows.are_short for rows in groups)
    for site in find_sites(graph):
        if site.index not in within:
            body = Body(graph, [site], ())
            elsewhere |= body.inside
            kernels |= body.inside if for_others and why_not(body) is None else set()
    out = []
    for rows in groups:
        roots = rows.roots(elsewhere | within - rows.members, kernels)
        roots = _with_compared(rows, roots, compared) if roots else []
        if roots and (rows.goes_again(roots) or rows.combines_short_ones(roots)):
            out.append([_site(rows, k) for k in roots])
    return out


def _with_compared(rows: Rows, roots: Sequence[int], compared: Sequence[Compared]) -> list[int]:
    """Whatever is ``compared`` by others, or has its extreme there, is written, too."""
    graph = rows.graph
    while True:
        more = {graph.producer[v] for v in made_apart(graph, compared, set(rows.behind(roots)), roots)} & rows.members
        if more <= set(roots):
            return sorted(roots)
        roots = [*roots, *(more - set(roots))]


def _site(rows: Rows, index: int) -> Site:
    eqn = rows.graph.eqns[index]
    (var,) = eqn.outvars
    return Site(index, eqn, "rows", None, ((var, rows.labels(var)),), rows.sizes, 0)


def _is_in(graph: Graph, found: dict[int, Rows], atom: Any) -> bool:
    return not isinstance(atom, Literal) and graph.producer.get(atom, OUTSIDE) in found


def _may_be_within(eqn: JaxprEqn) -> bool:
    known = all(isinstance(n, int) for v in (*eqn.invars, *eqn.outvars) for n in v.aval.shape)
    return eqn.primitive.name in IN_ROWS and known and not eqn.effects and len(eqn.outvars) == 1 and is_number(eqn.outvars[0])


def _sizes(eqn: JaxprEqn) -> tuple[int, ...] | None:
    """The loops around a reduction of rows; None if it is none."""
    shape, axes = eqn.invars[0].aval.shape, sorted(eqn.params["axes"])
    first = len(shape) - len(axes)
    if not axes or not first or axes != list(range(first, len(shape))) or 0 in shape:
        return None
    return shape[:first] if math.prod(shape[first:]) <= MOST_IN_ROW else None
