"""What is compared with its own extreme, or its own order, has the same bits in both places, and those that XLA gives it.

A gradient of a maximum goes where the array equals it, a position of one is where it does. XLA's logarithms are not the kernels'
to the last bit, and it rounds a * b + c once: if one of them makes the array for the maximum, and the other makes it again to
compare, nothing may be equal; and of many sines that are nearly 1, another is the greatest. So kernels read what XLA has made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Literal, Var

from ..tracing.labels import MOVES
from .body import Body
from .graph import OUTSIDE, Graph

_EXTREMES = frozenset(
    f"{what}{which}" for what in ("reduce_", "reduce_window_", "cum", "scatter-", "scatter_") for which in ("max", "min")
) | {"sort", "top_k"}

_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))

_ALIKE = frozenset(
    "abs add and ceil clamp convert_element_type div eq floor ge gt is_finite le lt max min mul ne neg not or rem round select_n "
    "sign sqrt square sub xor gather slice".split()
)
"""What has the same bits, whoever computes it, but for sums of products."""

_POSITIONS = ("argmax", "argmin")

_PICKS = frozenset("max min clamp select_n gather slice dynamic_slice rev transpose".split()) | MOVES
"""What gives numbers that it was given."""

_FROM: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
    **dict.fromkeys(("max", "min", "clamp"), lambda operands: operands),
    "select_n": lambda operands: operands[1:],
}
"""Of which operands these are; others of the first."""

_STEPS = frozenset("sqrt rsqrt log pow floor ceil round sign acos acosh atanh is_finite".split()) | _COMPARISONS
"""What makes much of a rounding from 0 or 1: a difference from an extreme that one of these is of is a comparison."""

_SCALES = frozenset("mul div neg abs max min clamp transpose reduce_max reduce_min".split()) | MOVES

Compared = tuple[Var, int, int]
"""A variable, the equation that makes an extreme of it, and the one that compares the two: of a position both are one. Two
extremes that are compared with each other, such as the last of a running maximum and the maximum, are each other's."""


def compared(graph: Graph) -> list[Compared]:
    extremes = [k for k, e in enumerate(graph.eqns) if e.primitive.name in _EXTREMES or _chooses(e)]
    of = {k: {_source(graph, v) for v in graph.eqns[k].invars} for k in extremes}
    each = {v: [k for k in extremes if v in of[k]] for v in set().union(*of.values()) if v in graph.producer}
    several = {v: found for v, found in each.items() if len(found) > 1}
    out = []
    for index, eqn in enumerate(graph.eqns):
        if eqn.primitive.name in _POSITIONS and (source := _source(graph, eqn.invars[0])) in graph.producer:
            out.append((source, index, index))
        if extremes and _compares(graph, eqn):
            for x, extreme in (eqn.invars, eqn.invars[::-1]):
                sources, bits = _picked(graph, x), graph.needs([extreme])
                out += [(v, k, index) for k in extremes if bits >> k & 1 for v in sources if v in of[k]]
            out += _of_two(several, *(graph.needs([x]) for x in eqn.invars))
    return out


def _of_two(several: Mapping[Var, Sequence[int]], left: int, right: int) -> Iterator[Compared]:
    """Extremes of one variable, of which a comparison's two sides are made."""
    for var, extremes in several.items():
        for k, other in itertools.permutations(extremes, 2):
            if (left >> k & right >> other | left >> other & right >> k) & 1:
                yield var, k, other


def _compares(graph: Graph, eqn: JaxprEqn) -> bool:
    name = eqn.primitive.name
    if name not in _COMPARISONS and (name != "sub" or not _is_of_steps(graph, eqn.outvars[0])):
        return False
    return bool(jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.inexact))


def _is_of_steps(graph: Graph, difference: Var) -> bool:
    todo, seen = [difference], set[int]()
    while todo:
        for k in graph.users.get(todo.pop(), ()):
            if k == OUTSIDE or k in seen:
                continue
            seen.add(k)
            eqn = graph.eqns[k]
            name, out = eqn.primitive.name, eqn.outvars[0]
            if name in _STEPS or (name == "convert_element_type" and not jnp.issubdtype(out.aval.dtype, jnp.inexact)):
                return True
            if name in _SCALES or name == "convert_element_type":
                todo.append(out)
    return False


def _picked(graph: Graph, atom: Any) -> set[Var]:
    """What others have made that a number is one of."""
    todo, out = [atom], set[Var]()
    while todo:
        v = _source(graph, todo.pop())
        eqn = graph.made_by(v)
        if eqn is not None and v not in out:
            out.add(v)
            if eqn.primitive.name in _PICKS:
                todo += _FROM.get(eqn.primitive.name, lambda operands: operands[:1])(eqn.invars)
    return out


def _chooses(eqn: JaxprEqn) -> bool:
    """Is it a call of the library's, of an operator that gives one of the elements?"""
    return bool(getattr(eqn.params.get("call"), "compares", False))


def read_in_any_case(graph: Graph, found: Sequence[Compared], bodies: Sequence[Body], by_xla: Collection[int]) -> frozenset[Var]:
    """What one of these bodies would make in its own way: unless all that compare it have made the extreme themselves, of the
    same numbers, as among a few of an element. (Positions among such are their own, too.)"""
    read = set[Var]()
    for var, extreme, compares in found:
        comparing = [b for b in bodies if compares in b.taken]
        own = comparing and extreme != compares and compares not in by_xla
        if own and all(extreme in b.taken and not _is_read(graph, b, extreme, compares) for b in comparing):
            continue
        if any({extreme, compares} <= {s.index for s in b.sites} for b in bodies if extreme != compares):
            continue  # two extremes of one kernel
        for b in bodies:
            sites = {s.index for s in b.sites if s.family != "map"}
            places = sites if extreme == compares else sites | b.taken
            if not places.isdisjoint((extreme, compares)) and has_its_own_way(graph, var, b.taken):
                read.add(var)
    return frozenset(read)


def made_apart(graph: Graph, found: Sequence[Compared], inside: Collection[int]) -> set[Var]:
    """What these equations would make in their own way, who have its extreme or compare it, but not both."""
    apart = (var for var, extreme, compares in found if (extreme in inside) != (compares in inside))
    return {var for var in apart if has_its_own_way(graph, var, inside)}


def _is_read(graph: Graph, body: Body, extreme: int, compares: int) -> bool:
    """Does the body read what it compares with, or what that is made of, behind the extreme?"""
    between = [v for v, _ in body.leaves if v in graph.producer and graph.ancestors[compares] >> graph.producer[v] & 1]
    return any(graph.needs([v]) >> extreme & 1 for v in between)


def has_its_own_way(graph: Graph, var: Var, taken: Collection[int]) -> bool:
    """Are its bits those of whoever computes these equations?"""
    todo, seen = [graph.producer[var]], set[int]()
    while todo:
        k = todo.pop()
        if k in taken and k not in seen:
            seen.add(k)
            eqn = graph.eqns[k]
            if not _is_alike(graph, eqn):
                return True
            todo += [graph.producer[v] for v in eqn.invars if not isinstance(v, Literal) and v in graph.producer]
    return False


def _is_alike(graph: Graph, eqn: JaxprEqn) -> bool:
    if eqn.primitive.name in ("add", "sub"):
        made = [graph.made_by(_source(graph, v)) for v in eqn.invars]
        return not any(m is not None and m.primitive.name in ("mul", "square", "integer_pow") for m in made)
    return eqn.primitive.name in _ALIKE | MOVES


def _source(graph: Graph, var: Any) -> Any:
    """What a variable is another form of; None of literals."""
    while not isinstance(var, Literal):
        eqn = graph.made_by(var)
        if eqn is None or eqn.primitive.name not in MOVES or not eqn.invars:
            return var
        var = eqn.invars[0]
    return None
