"""What is written for several kernels, or for a kernel and XLA, and what each of them computes again: a cheapest cut for each."""

from __future__ import annotations

import collections
import math
from collections.abc import Collection, Sequence

from jax.extend.core import JaxprEqn, Literal, Var

from ..tracing import elementwise
from ..tracing.jaxprs import variables
from ..tracing.labels import NUMBER_BY_NUMBER, REDUCTIONS
from .body import Body, operations
from .cut import READ, ByteAt, bytes_of, kept_byte, read_or_made
from .graph import OUTSIDE, Graph, reached

SHIFTS = frozenset("slice dynamic_slice pad concatenate rev transpose".split())

DEAR = 8
"""Additions from which on XLA makes something once, not in each of several loops that want it."""

COMMON = 4
"""Additions from which on what all elements of a row have in common may be made once for the row: those of a division."""

IN_REDUCTION, BEGIN_ROW = 3, 100
"""Additions more that arithmetic on several arrays takes XLA in the loop of a reduction than in one of its own, for each number;
and for each innermost row."""

A_LOOP = 8192
"""What one more loop of XLA's takes, in additions."""

MADE_WITHIN = NUMBER_BY_NUMBER | SHIFTS | {"gather"}
"""What is in the loop of what wants it."""

IN_LOOPS = MADE_WITHIN | REDUCTIONS
"""What XLA's loops take in: what they read need not be written for them."""


def read_of(graph: Graph, bodies: Sequence[Body], plain: Collection[int], byte: ByteAt) -> list[frozenset[Var]]:
    """Of each body, the variables that it is to read, though it could compute them. ``plain``: the equations that XLA evaluates;
    ``byte``: what a byte of them takes.

    To be kept, a variable is written once for all that want it, and read; what is there anyway has only to be read. The body that
    wants it first computes it in any case: the choice is that of the others. XLA makes it again in each of its loops, but reduces
    it where it makes it.
    """
    prices = _Prices(graph, bodies, plain, byte)
    for body in bodies:
        read, made = _chosen(body, prices, more=True)
        prices.chosen |= read - prices.written
        prices.takers.subtract(body.taken - made)
        prices.made |= made
    while True:
        chosen = [_chosen(body, prices, more=False)[0] for body in bodies]
        times = collections.Counter(v for read in chosen for v in read)
        alone = {v for v in prices.chosen if times[v] == 1 and prices.is_for_several(v)}
        if not alone:
            return [frozenset(read) for read in chosen]
        prices.chosen -= alone


def made_once(graph: Graph, reads: Collection[Var], plain: Collection[int]) -> set[Var]:
    """Of what kernels read, what XLA makes for loops of its own as well, and is to make only once; and what it would write for
    several, if kernels did not make it themselves for all but a reduction."""
    mine = (v for v in reads if graph.producer.get(v) in plain and any(u in plain for u in graph.users[v]))
    lying = {*graph.jaxpr.invars, *graph.jaxpr.constvars, *reads}
    left = (v for v in _left(graph, plain) if _is_worth_writing(graph, v, lying))
    return {*(v for v in mine if _is_worth_reading(graph, v)), *left}


def _left(graph: Graph, plain: Collection[int]) -> set[Var]:
    """What several want, of which a reduction is all that is left to XLA."""
    reduced = (v for k in plain if graph.eqns[k].primitive.name in REDUCTIONS for v in variables(graph.eqns[k].invars))

    def onward(v: Var) -> list[Var]:
        return graph.operands_of(v) if graph.name_of(v) in NUMBER_BY_NUMBER and len(graph.users[v]) == 1 else []

    def is_left(v: Var) -> bool:
        users = graph.users[v]
        return len(users) > 1 and graph.name_of(v) in elementwise.NAMES and sum(u in plain for u in users) == 1

    return set(filter(is_left, reached(reduced, onward)))


def _is_worth_writing(graph: Graph, v: Var, lying: Collection[Var]) -> bool:
    """Does XLA reduce it faster if it has been written, beside these arrays?"""
    if not v.aval.ndim or len(_made_of(graph, v)) < 2 or not _are_known({v, *lying}):
        return False
    kept = kept_byte(sum(map(bytes_of, {v, *lying}))) * bytes_of(v) + A_LOOP
    return IN_REDUCTION * v.aval.size + BEGIN_ROW * math.prod(v.aval.shape[:-1]) >= kept


def _are_known(xs: Collection[Var]) -> bool:
    return all(isinstance(n, int) for x in xs for n in x.aval.shape)


def _is_worth_reading(graph: Graph, v: Var) -> bool:
    """Does it take longer to make it again of what is there than to read it?"""
    of = _made_of(graph, v)
    if not _are_known({v, *of}):
        return False
    again = _work(graph, v) * math.prod(v.aval.shape) + READ * sum(map(bytes_of, of))
    return again >= DEAR * math.prod(v.aval.shape) + READ * bytes_of(v)


def _work(graph: Graph, v: Var) -> float:
    """Additions for a number, with what is made for it alone."""
    return sum(map(_time, _made_alone(graph, v)))


def _time(eqn: JaxprEqn) -> float:
    """In additions of f32: vectors have half as many numbers of twice the bytes."""
    return operations(eqn) * max(1, eqn.outvars[0].aval.dtype.itemsize / 4)


def _time_of_all(eqn: JaxprEqn) -> float:
    numbers = eqn.invars[0] if eqn.primitive.name in REDUCTIONS else eqn.outvars[0]
    return _time(eqn) * math.prod(numbers.aval.shape)


def _made_of(graph: Graph, v: Var) -> set[Var]:
    """What is read to make it, with what is made for it alone."""
    inside = _made_alone(graph, v)
    return {x for e in inside for x in variables(e.invars)} - {x for e in inside for x in e.outvars}


def _made_alone(graph: Graph, v: Var) -> list[JaxprEqn]:
    """The equation that makes a variable, and those of its loop that are for it alone."""

    def onward(v: Var) -> list[Var]:
        return [x for x in graph.operands_of(v) if len(graph.users[x]) == 1 and graph.name_of(x) in MADE_WITHIN]

    return [graph.eqns[graph.producer[x]] for x in reached([v], onward)]


def is_written_by_xla(graph: Graph, v: Var, plain: Collection[int]) -> bool:
    """Is it there to be read, whatever kernels want, if XLA evaluates these equations (``plain``)?"""

    def alone(index: int) -> bool:
        return graph.eqns[index].primitive.name not in IN_LOOPS

    users, index = graph.users.get(v, ()), graph.producer[v]
    spread = graph.eqns[index].primitive.name == "broadcast_in_dim"  # of what it is made of is written
    if sum(u in plain for u in users) > 1 and _work(graph, v) >= DEAR and not spread:
        dear = operations(graph.eqns[index]) >= DEAR  # it is cheaper to write it for a kernel, too
        if dear or len(_loops_that_want(graph, v, plain)) > 1:
            return True
    return alone(index) or any(u == OUTSIDE or (u in plain and alone(u)) for u in users)


def _loops_that_want(graph: Graph, v: Var, plain: Collection[int]) -> set[int]:
    """The last equations of XLA's loops that want it, as far as to know whether there are several: equations of one share it."""
    out, todo, seen = set[int](), [v], set[Var]()
    while todo and len(out) < 2:
        x = todo.pop()
        if x in seen:
            continue
        seen.add(x)
        users = [u for u in graph.users.get(x, ()) if u in plain]
        last = {u for u in users if graph.eqns[u].primitive.name not in MADE_WITHIN}
        if x is not v and (not users or OUTSIDE in graph.users[x]):
            out.add(graph.producer[x])
        out |= last
        todo += [y for u in users if u not in last for y in graph.eqns[u].outvars]
    return out


class _Prices:
    """In additions of f32. ``written``: what is there to be read; ``chosen``: what is to be written, too; ``made``: the equations
    in bodies that have chosen."""

    def __init__(self, graph: Graph, bodies: Sequence[Body], plain: Collection[int], byte: ByteAt):
        self.graph, self.bodies, self.plain, self.byte = graph, bodies, plain, byte
        self.takers = collections.Counter(k for b in bodies for k in b.taken)
        self.readers = collections.Counter(v for b in bodies for v in {v for v, _ in b.leaves})
        self.written = {v for v in self.readers if graph.name_of(v) not in SHIFTS}
        concerned = {*self.takers, *(graph.producer[v] for v in self.readers if v in graph.producer)}.intersection(plain)
        self.written.update(v for k in concerned for v in graph.eqns[k].outvars if is_written_by_xla(graph, v, plain))
        self.written.update(s.eqn.outvars[0] for b in bodies for s in b.sites if s.family == "map")
        self.chosen, self.made = set[Var](), set[int]()

    def _written_for(self, body: Body) -> list[Var]:
        """What XLA would write for the body to read."""
        return [v for v in dict.fromkeys(v for v, _ in body.leaves) if v not in self.written]

    def leave_a_choice(self, body: Body) -> bool:
        def is_elsewhere(k: int) -> bool:
            return k in self.plain or self.takers[k] > 1 or any(map(self._is_there, self.graph.eqns[k].outvars))

        return len(self._written_for(body)) > 1 or any(is_elsewhere(k) or self.is_common(body, k) for k in body.taken)

    def is_common(self, body: Body, index: int) -> bool:
        """Does an equation, with what is made for it alone, take its time for every element of a row, which all have it?"""
        if body.combined:  # it is made once
            return False
        if index in body.repeated:
            return True
        eqn = self.graph.eqns[index]
        return index in body.common and eqn.primitive.name in elementwise.NAMES and _work(self.graph, eqn.outvars[0]) >= COMMON

    def _is_there(self, v: Var) -> bool:
        return v in self.written or v in self.chosen

    def again(self, body: Body, v: Var) -> float:
        index = self.graph.producer[v]
        if (body.of_rows and body.numbers[index] == 1) or self.graph.is_constant(v):  # once for a row; when it is compiled
            return 0
        return _time(self.graph.eqns[index]) * body.times(index)

    def leaf(self, v: Var) -> float:
        return self.byte.read * bytes_of(v) if v in self.written else self.shared(v, self.readers[v])

    def shared(self, v: Var, readers: int) -> float:
        """Of what is written for so many, for one of them, who reads it."""
        return (self.byte.read + (self.byte.kept - self.byte.read) / readers) * bytes_of(v)

    def kept(self, body: Body, v: Var, more: bool) -> float:
        """Of what the body could compute; ``more``: may it be written for that?"""
        if self._is_there(v):
            return self.byte.read * bytes_of(v)
        index = self.graph.producer[v]
        if more and index in self.made:
            return self.shared(v, self.takers[index] - 1)
        if more and self.is_common(body, index):
            return self.byte.kept * bytes_of(v) + self._made_by_xla(body, v) + A_LOOP
        if more and (index in self.plain or len(self._written_for(body)) > 1):
            there = index in self.plain and _work(self.graph, v) >= DEAR  # it is made once
            making = 0 if there or body.sites[0].family == "reduce" else self._made_by_xla(body, v)
            return self.shared(v, self.takers[index]) + making / self.takers[index]
        return math.inf

    def is_for_several(self, v: Var) -> bool:
        """And not for XLA, nor in place of several others, nor of what one would make again and again?"""
        index = self.graph.producer[v]
        alone = any(index in b.taken and (self.is_common(b, index) or len(self._written_for(b)) > 1) for b in self.bodies)
        return index not in self.plain and not alone

    def _made_by_xla(self, body: Body, v: Var) -> float:
        graph = self.graph

        def onward(k: int) -> list[int]:
            missing = (x for x in variables(graph.eqns[k].invars) if not self._is_there(x))
            return [m for x in missing if (m := graph.producer.get(x)) in body.taken]

        behind = [graph.eqns[k] for k in reached([graph.producer[v]], onward)]
        operands = {x for e in behind for x in variables(e.invars) if x not in graph.producer}
        return self.byte.read * sum(map(bytes_of, operands)) + sum(map(_time_of_all, behind))


def _chosen(body: Body, prices: _Prices, more: bool) -> tuple[set[Var], set[int]]:
    """What a body is to read, though it could compute it, and the equations that it computes: the cheapest way. ``more``: may
    something be written for that?"""
    if not prices.leave_a_choice(body):
        return set(), body.taken
    graph = body.graph
    own = {v for s in body.sites if s.family in ("map", "rows") for v, _ in s.roots}
    roots = [v for s in body.sites for v, _ in s.roots if not isinstance(v, Literal)]
    reduced = sum(1 << k for k in body.taken if body.of_rows and graph.eqns[k].primitive.name in REDUCTIONS)

    def is_taken(v: Var) -> bool:
        return graph.producer.get(v) in body.taken

    def reading(v: Var) -> float:
        if v in own or (is_taken(v) and graph.needs([v]) & reduced):
            return math.inf  # it is a function of rows for that
        return prices.kept(body, v, more) if is_taken(v) else prices.leaf(v)

    read, made = read_or_made(roots, graph.operands_of, reading, lambda v: prices.again(body, v) if is_taken(v) else math.inf)
    return set(filter(is_taken, read)), {graph.producer[v] for v in made}
