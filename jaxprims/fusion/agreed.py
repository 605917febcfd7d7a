"""Who makes what is compared (``compared``), so that all who make an extreme of it, or compare it with one, have the same bits.

A kernel that has both makes the rest in its own way. Of others one makes it, a kernel or XLA, which writes it, and all read that:
XLA, too, which would make it again, rounded otherwise where it finds other equations around it. A kernel that can neither have
both nor read what it is of is left to XLA.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Var

from ..tracing.jaxprs import variables
from ..tracing.labels import MOVES
from .body import Body
from .compared import Compared, source
from .graph import OUTSIDE, Graph, reached
from .kernels import Kernel

_ALIKE = frozenset(
    "abs add and ceil clamp convert_element_type div eq floor ge gt is_finite le lt max min mul ne neg not or rem round select_n "
    "sign sqrt square sub xor gather slice concatenate pad reduce_window_max reduce_window_min rev".split()
)
"""What has the same bits, whoever computes it, but for sums of products."""

_OF_PARTS = frozenset("abs div mul sign sqrt square".split())
"""Of these, what is several operations on complex numbers, or a function."""

WHY = "it would be made in two ways, and is compared with its own extreme"


def read_in_any_case(graph: Graph, found: Sequence[Compared], bodies: Sequence[Body], by_xla: Collection[int]) -> frozenset[Var]:
    """What one of these bodies would make in its own way: unless all that compare it have made the extreme themselves, of the
    same numbers, as among a few of an element. (Positions among such are their own, too, and among sums that it makes.)"""
    read = set[Var]()
    for var, extreme, compares, _ in found:
        comparing = [b for b in bodies if compares in b.taken]
        own = comparing and extreme != compares and compares not in by_xla
        if own and all(
            extreme in b.taken and not _is_behind(graph, (v for v, _ in b.leaves), extreme, compares) for b in comparing
        ):
            continue
        if any({extreme, compares} <= {s.index for s in b.sites} for b in bodies if extreme != compares):
            continue  # two extremes of one kernel
        for b in bodies:
            sites = {s.index for s in b.sites if s.family != "map"}
            if extreme == compares and graph.users[var] == [extreme] and _is_sum(graph, var, b):
                continue
            places = sites if extreme == compares else sites | b.taken
            if not places.isdisjoint((extreme, compares)) and has_its_own_way(graph, var, b.taken):
                read.add(var)
    return frozenset(read)


def _is_sum(graph: Graph, var: Var, body: Body) -> bool:
    """Is it made of sums in this body, which nobody else rounds in the same order?"""
    sums = (k for k in body.taken if graph.eqns[k].primitive.name == "reduce_sum")
    return any(graph.needs([var]) >> k & 1 for k in sums)


def made_apart(graph: Graph, found: Sequence[Compared], inside: Collection[int], roots: Iterable[int]) -> set[Var]:
    """What these equations would make in their own way, if one of them makes its extreme, or compares it, and others the rest:
    whoever wants what is none of the ``roots`` makes it again."""
    again, written = set[int](), set(roots)
    for k in sorted(set(inside) - written, reverse=True):
        users = (u for v in graph.eqns[k].outvars for u in graph.users.get(v, ()))
        if any(u == OUTSIDE or u not in inside or u in again for u in users):
            again.add(k)

    def is_apart(c: Compared) -> bool:
        if c.extreme == c.compares or not {c.extreme, c.compares} & set(inside):
            return False
        return c.extreme not in inside or c.compares not in inside or c.compares in again

    return {c.var for c in found if is_apart(c) and has_its_own_way(graph, c.var, inside)}


def disagreeing(graph: Graph, found: Sequence[Compared], kernels: Sequence[Kernel], by_xla: Collection[int]) -> list[Kernel]:
    """Kernels that make in their own way what others compare. ``by_xla``: the equations that XLA evaluates."""
    inside = {k: k.inside for k in kernels}
    out = dict[Kernel, None]()
    for var, extreme, compares, between in found:
        if extreme == compares:
            continue
        comparing = [k for k in kernels if compares in inside[k]]
        own = all(extreme in inside[k] and not _is_behind(graph, k.inputs, extreme, compares) for k in comparing)
        if not own or compares in by_xla:
            for k in kernels:
                makes = graph.producer.get(var) in k.body.taken - k.made
                if makes and not {extreme, compares}.isdisjoint(inside[k]) and has_its_own_way(graph, var, inside[k]):
                    out[k] = None
        for index in (k for k in between if not _is_alike(graph, graph.eqns[k])):
            places = [k for k in kernels if index in inside[k]]
            together = len(places) == 1 and places == comparing and not {index, compares} & set(by_xla)
            if not together or not _is_of_rows(places[0]):  # what a row's elements have in common is made before other kernels
                out.update(dict.fromkeys(places))
    return list(out)


def to_be_held(graph: Graph, found: Sequence[Compared], kernels: Sequence[Kernel], by_xla: Collection[int]) -> Iterator[Var]:
    """What XLA is to make once, for itself too: it makes an extreme of it, or compares it, and kernels the rest."""
    every = range(len(graph.eqns))
    for var, extreme, compares, _ in _of_kernels(found, kernels):
        if jnp.issubdtype(var.aval.dtype, jnp.floating) and has_its_own_way(graph, var, every):
            needed = graph.ancestors[extreme] | graph.ancestors[compares]
            if any(needed >> k & 1 for k in _users(graph, var) if k in by_xla):
                yield var


def _of_kernels(found: Sequence[Compared], kernels: Sequence[Kernel]) -> Iterator[Compared]:
    """Those whose extreme or comparison is in a kernel, or that a kernel reads; but for positions."""
    inside, read = {index for k in kernels for index in k.inside}, {v for k in kernels for v in k.inputs}
    return (c for c in found if c.extreme != c.compares and ({c.extreme, c.compares} & inside or c.var in read))


def made_to_be_compared(graph: Graph, found: Sequence[Compared], by_xla: Collection[int]) -> set[int]:
    """Those of these equations, of XLA's, whose rounding decides what is found. Random bits are the same for everybody."""
    made = _behind(graph, [c.var for c in found], by_xla)
    return {k for k in made if graph.eqns[k].primitive.name != "random_at"}


def arguments_to_be_held(
    graph: Graph, found: Sequence[Compared], kernels: Sequence[Kernel], by_xla: Collection[int]
) -> Iterator[Var]:
    """Of what the function is given, what XLA is not to make in the loop that makes what is compared, if a kernel makes that."""
    for var, *_ in _of_kernels(found, kernels):
        if graph.producer.get(var) in by_xla:
            yield from _added(graph, var, by_xla)


def _added(graph: Graph, var: Var, taken: Collection[int]) -> Iterator[Var]:
    """Arguments that these equations add to on the way to a variable, or convert: had they been multiplied in the same loop, they
    would not have been rounded before."""

    def operands(k: int) -> list[Var]:
        return [v for x in graph.eqns[k].invars if (v := source(graph, x)) is not None]

    for k in reached(_makers(graph, [var], taken), lambda k: _makers(graph, operands(k), taken)):
        adds = graph.eqns[k].primitive.name in ("add", "sub")
        for v in operands(k):
            floats = v not in graph.producer and jnp.issubdtype(v.aval.dtype, jnp.floating)
            if floats and (adds or v.aval.dtype.itemsize < 4):
                yield v


def is_of_arguments(graph: Graph, var: Var, taken: Collection[int]) -> bool:
    """Are its bits others if arguments are not rounded?"""
    return any(True for _ in _added(graph, var, taken))


def _users(graph: Graph, var: Var) -> Iterator[int]:
    """The equations that use a variable, or another form of it."""
    for k in graph.users.get(var, ()):
        if k != OUTSIDE and graph.eqns[k].primitive.name in MOVES:
            yield from _users(graph, graph.eqns[k].outvars[0])
        elif k != OUTSIDE:
            yield k


def _is_of_rows(kernel: Kernel) -> bool:
    return isinstance(kernel.body, Body) and kernel.body.of_rows


def _is_behind(graph: Graph, leaves: Iterable[Any], extreme: int, compares: int) -> bool:
    """Is what is compared, or what that is made of, read behind the extreme?"""
    between = [v for v in leaves if v in graph.producer and graph.ancestors[compares] >> graph.producer[v] & 1]
    return any(graph.needs([v]) >> extreme & 1 for v in between)


def has_its_own_way(graph: Graph, var: Var, taken: Collection[int]) -> bool:
    """Are its bits those of whoever computes these equations?"""
    return not all(_is_alike(graph, graph.eqns[k]) for k in _behind(graph, [var], taken))


def _behind(graph: Graph, wanted: Iterable[Var], taken: Collection[int]) -> Iterator[int]:
    """The equations, of those taken, that make these, and what they are made of."""
    return reached(_makers(graph, wanted, taken), lambda k: _makers(graph, variables(graph.eqns[k].invars), taken))


def _makers(graph: Graph, wanted: Iterable[Var], taken: Collection[int]) -> list[int]:
    """The equations that make these, of those taken."""
    return [k for v in wanted if (k := graph.producer.get(v)) is not None and k in taken]


def _is_alike(graph: Graph, eqn: JaxprEqn) -> bool:
    if all(jnp.issubdtype(v.aval.dtype, jnp.integer) for v in eqn.outvars):
        return True  # places to read at, say
    if eqn.primitive.name in ("add", "sub", "reduce_window_sum"):
        return not any(_is_product(graph, v) for v in eqn.invars)
    if eqn.primitive.name in _OF_PARTS and jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.complexfloating):
        return False
    return eqn.primitive.name in _ALIKE | MOVES


def _is_product(graph: Graph, atom: Any) -> bool:
    """Is it for XLA, which chooses where it knows what is chosen?"""
    made = graph.made_by(source(graph, atom))
    if made is None:
        return False
    if made.primitive.name == "select_n" and graph.is_constant(made.invars[0]):
        return any(_is_product(graph, v) for v in made.invars[1:])
    return made.primitive.name in ("mul", "square", "integer_pow")
