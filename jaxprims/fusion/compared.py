"""What is compared with its own extreme, or its own order, has the same bits in both places, and those that XLA gives it.

A gradient of a maximum goes where the array equals it, a position of one is where it does. XLA's logarithms are not the kernels'
to the last bit, and it rounds a * b + c once: if one of them makes the array for the maximum, and the other makes it again to
compare, nothing may be equal; and of many sines that are nearly 1, another is the greatest. So kernels read what XLA has made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Literal, Var

from ..ir.program import COMPARE
from ..tracing import elementwise
from ..tracing.jaxprs import scatters
from ..tracing.labels import MOVES
from .graph import OUTSIDE, Graph, reached

_LONGEST = 6
"""Equations of a function that is compared of two numbers."""

_EXTREMES = (
    frozenset(f"{what}{which}" for what in ("reduce_", "reduce_window_", "cum") for which in ("max", "min"))
    | scatters("max", "min")
    | {"sort", "top_k"}
)

_POSITIONS = ("argmax", "argmin")

_PICKS = MOVES | frozenset(
    "max min clamp select_n gather slice dynamic_slice rev transpose pad concatenate dynamic_update_slice scatter".split()
)
"""What gives numbers that it was given."""

_PLACES = frozenset("gather slice dynamic_slice rev transpose".split())
"""Of these, by their places."""

_FROM: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
    **dict.fromkeys(("max", "min", "clamp", "pad", "concatenate", "add"), lambda operands: operands),
    "select_n": lambda operands: operands[1:],
    "dynamic_update_slice": lambda operands: operands[:2],
    "scatter": lambda operands: operands[::2],
}
"""Of which operands these are; others of the first."""

_STEPS = COMPARE | frozenset("sqrt rsqrt log log1p pow floor ceil round sign acos acosh atanh is_finite".split())
"""What makes much of a rounding from 0 or 1: a difference from an extreme that one of these is of is a comparison."""

_SCALES = frozenset("mul div add sub neg abs max min clamp exp exp2 expm1 tanh transpose reduce_max reduce_min".split()) | MOVES


class Compared(NamedTuple):
    """A variable, the equation that makes an extreme of it, and the one that compares the two: of a position both are one. Two
    extremes that are compared with each other, such as the last of a running maximum and the maximum, are each other's.

    ``between``: where the same function is compared of both, the equations of that function, of either. Only then may the
    variable be an argument, which nobody makes."""

    var: Var
    extreme: int
    compares: int
    between: frozenset[int] = frozenset()


def compared(graph: Graph) -> list[Compared]:
    extremes = [k for k, e in enumerate(graph.eqns) if e.primitive.name in _EXTREMES or _chooses(e)]
    positions = [k for k, e in enumerate(graph.eqns) if e.primitive.name in _POSITIONS]
    of = {k: {source(graph, v) for v in graph.eqns[k].invars} for k in (*extremes, *positions)}
    greater = {k: _of_both(graph, e) for k, e in enumerate(graph.eqns) if e.primitive.name in ("max", "min")}
    of |= {k: sources for k, sources in greater.items() if sources}
    each = {v: [k for k in extremes if v in of[k]] for v in set().union(*of.values()) if v in graph.producer}
    of_both = {v: [k for k, sources in greater.items() if v in sources] for v in each}
    several = {v: [*itertools.permutations(found, 2), *itertools.product(found, of_both[v])] for v, found in each.items()}
    out = [Compared(v, k, k) for k in positions for v in of[k] if v in graph.producer]
    for index, eqn in enumerate(graph.eqns):
        if eqn.primitive.name == "eq" and _compares(graph, eqn):
            out += [*_of_one(graph, eqn.invars, index), *_of_one(graph, eqn.invars[::-1], index)]
        if of and _compares(graph, eqn):
            for x, extreme in (eqn.invars, eqn.invars[::-1]):
                sources, bits = _picked(graph, x), graph.needs([extreme])
                out += [Compared(v, k, index) for k in of if bits >> k & 1 for v in sources if v in of[k] and v in graph.producer]
                out += _of_functions(graph, of, x, extreme, index)
            out += _of_two(several, *(graph.needs([x]) for x in eqn.invars))
    return out


def _of_one(graph: Graph, operands: Sequence[Any], index: int) -> Iterator[Compared]:
    """A number that is compared with the greater, or less, of itself and another."""
    var, extreme = (source(graph, v) for v in operands)
    eqn = graph.made_by(extreme)
    if eqn is None or eqn.primitive.name not in ("max", "min") or var not in graph.producer:
        return
    if any(source(graph, v) is var for v in eqn.invars):
        yield Compared(var, graph.producer[extreme], index)


def _of_functions(graph: Graph, of: Mapping[int, Collection[Any]], x: Any, extreme: Any, index: int) -> Iterator[Compared]:
    """Extremes of which the same function is compared as of what they are extremes of."""
    functions, theirs = _functions_of(graph, x), _functions_of(graph, extreme)
    for k, sources in of.items():
        for v in (v for v in sources if v in functions):
            mine, other = functions[v], theirs.get(source(graph, graph.eqns[k].outvars[0]))
            if mine and other and _operations(graph, mine) == _operations(graph, other):
                yield Compared(v, k, index, mine | other)


def _operations(graph: Graph, indices: Collection[int]) -> set[str]:
    return {graph.eqns[k].primitive.name for k in indices}


def _functions_of(graph: Graph, atom: Any) -> dict[Any, frozenset[int]]:
    """What a number is made of element by element, or is one of, with the equations that make it of that."""
    start = source(graph, atom)
    out: dict[Any, frozenset[int]] = {start: frozenset()}
    todo = [] if start is None else [start]
    while todo:
        v = todo.pop(0)
        eqn = graph.made_by(v)
        is_one_of = eqn is not None and eqn.primitive.name in _PLACES
        if eqn is None or len(out[v]) >= _LONGEST or not (is_one_of or elementwise.is_elementwise(eqn)):
            continue
        for x in (source(graph, x) for x in (eqn.invars[:1] if is_one_of else eqn.invars)):
            if x is not None and x not in out:
                out[x] = out[v] if is_one_of else out[v] | {graph.producer[v]}
                todo.append(x)
    return out


def _of_two(several: Mapping[Var, Sequence[tuple[int, int]]], left: int, right: int) -> Iterator[Compared]:
    """Extremes of one variable, of which a comparison's two sides are made."""
    for var, extremes in several.items():
        for k, other in extremes:
            if (left >> k & right >> other | left >> other & right >> k) & 1:
                yield Compared(var, k, other)


def _compares(graph: Graph, eqn: JaxprEqn) -> bool:
    name = eqn.primitive.name
    if len(eqn.invars) != 2 or not jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.inexact):
        return False
    return name in COMPARE or ((name in ("sub", "div") or _is_quotient(graph, eqn)) and _is_of_steps(graph, eqn.outvars[0]))


def _is_quotient(graph: Graph, eqn: JaxprEqn) -> bool:
    """Is it a product with a reciprocal?"""
    return eqn.primitive.name == "mul" and any(graph.name_of(source(graph, v)) == "div" for v in eqn.invars)


def _is_of_steps(graph: Graph, difference: Var) -> bool:
    def users(v: Var) -> list[int]:
        return [k for k in graph.users.get(v, ()) if k != OUTSIDE]

    def onward(k: int) -> list[int]:
        eqn = graph.eqns[k]
        return users(eqn.outvars[0]) if eqn.primitive.name in _SCALES | {"convert_element_type"} else []

    def is_step(eqn: JaxprEqn) -> bool:
        whole = eqn.primitive.name == "convert_element_type" and not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
        return whole or eqn.primitive.name in _STEPS

    return any(is_step(graph.eqns[k]) for k in reached(users(difference), onward))


def _of_both(graph: Graph, eqn: JaxprEqn) -> set[Var]:
    """What gives both of two numbers, the greater of which is one of a running extreme that is made by halves, say."""
    if any(isinstance(v, Literal) for v in eqn.invars) or not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact):
        return set()
    found = set[Var].intersection(*(_picked(graph, v) for v in eqn.invars))
    return {v for v in found if not _picks(graph, graph.eqns[graph.producer[v]])}


def _picks(graph: Graph, eqn: JaxprEqn) -> bool:
    if eqn.primitive.name == "add":  # numbers between zeros, and others there
        return all(graph.name_of(v) == "pad" for v in eqn.invars)
    return eqn.primitive.name in _PICKS


def _picked(graph: Graph, atom: Any) -> set[Var]:
    """What others have made that a number is one of."""

    def of(v: Any) -> list[Any]:
        eqn = graph.made_by(v)
        if eqn is None or not _picks(graph, eqn):
            return []
        return [source(graph, x) for x in _FROM.get(eqn.primitive.name, lambda operands: operands[:1])(eqn.invars)]

    return graph.producer.keys() & reached([source(graph, atom)], of)


def _chooses(eqn: JaxprEqn) -> bool:
    """Is it a call of the library's, of an operator that gives one of the elements?"""
    return bool(getattr(eqn.params.get("call"), "compares", False))


def source(graph: Graph, var: Any) -> Any:
    """What a variable is another form of; None of literals."""
    origin = graph.before(var, MOVES)
    return None if isinstance(origin, Literal) else origin
