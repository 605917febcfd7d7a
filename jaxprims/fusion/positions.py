"""What is sliced, reversed or put together of functions of positions (``jnp.linspace`` puts its last number behind the others)
as one function of positions: a kernel makes it where it is wanted, and reads nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from ..primitives.avals import typed
from ..tracing import elementwise
from ..tracing.jaxprs import run_equation
from .body import DEAR, operations
from .graph import OUTSIDE, Graph, flat_graph, with_equations
from .stencils.dear import AGAIN

MOST_AGAIN = 24
"""Equations of such a function, which is made again for each that it becomes."""

FEW = 16
"""Numbers that are made again, however dear they are."""

EXACT = 2**24
"""Positions up to which they are floats."""

Moved = tuple[int, Callable[[Any], Any] | None]
"""How many positions an axis has, and which ones of the function's they are; None: the same."""

Made = Callable[[Callable[[Any], Any]], Any]
"""An array, from the values of atoms before it."""


def of_positions(graph: Graph) -> ClosedJaxpr | None:
    """The function with such functions in one; None if there are none."""
    found: ClosedJaxpr | None = None
    while any(e.primitive.name == "iota" for e in graph.eqns) and (more := _once(graph)) is not None:
        found, graph = more, flat_graph(more, with_rules=graph.with_rules)
    return found


def _once(graph: Graph) -> ClosedJaxpr | None:
    rules = {id(e): rule for e in graph.eqns if _is_sized(e) and (rule := _RULES[e.primitive.name](graph, e)) is not None}
    if not rules:
        return None

    def equation(eqn: JaxprEqn, operands: Sequence[Any], value: Callable[[Any], Any]) -> Sequence[Any]:
        rule = rules.get(id(eqn))
        return run_equation(eqn, operands) if rule is None else [typed(rule(value), eqn.outvars[0].aval)]

    return with_equations(graph, equation)


def _is_sized(eqn: JaxprEqn) -> bool:
    """Is it one of those, of known sizes?"""
    return eqn.primitive.name in _RULES and all(isinstance(n, int) for v in (*eqn.invars, *eqn.outvars) for n in v.aval.shape)


def _slice(graph: Graph, eqn: JaxprEqn) -> Made | None:
    (x,), p, shape = eqn.invars, eqn.params, eqn.outvars[0].aval.shape
    strides = p["strides"] or (1,) * len(shape)
    moved = {
        k: (n, functools.partial(_each, start=p["start_indices"][k], stride=strides[k]))
        for k, n in enumerate(shape)
        if n != x.aval.shape[k]
    }
    return _of_others(graph, x, moved)


def _each(at: Any, start: int, stride: int) -> Any:
    return at * stride + start


def _rev(graph: Graph, eqn: JaxprEqn) -> Made | None:
    (x,) = eqn.invars
    sizes = {k: x.aval.shape[k] for k in eqn.params["dimensions"]}
    return _of_others(graph, x, {k: (n, functools.partial(_each, start=n - 1, stride=-1)) for k, n in sizes.items()})


def _concatenate(graph: Graph, eqn: JaxprEqn) -> Made | None:
    """Of one such function, and single numbers around it."""
    axis, shape = eqn.params["dimension"], eqn.outvars[0].aval.shape
    sizes = [v.aval.shape[axis] for v in eqn.invars]
    if sum(n > 1 for n in sizes) != 1 or min(sizes) < 1 or len(sizes) > 3:
        return None
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    first = max(range(len(sizes)), key=lambda k: sizes[k])
    before = starts[first]
    moved = shape[axis], (lambda at: at - before) if before else None
    middle = _of_others(graph, eqn.invars[first], {axis: moved})
    if middle is None:
        return None

    def together(value: Callable[[Any], Any]) -> Any:
        out, at = jnp.broadcast_to(middle(value), shape), lax.broadcasted_iota(jnp.int32, shape, axis)
        for k in range(len(sizes)):
            if k != first:
                out = jnp.where(at == starts[k], value(eqn.invars[k]), out)
        return out

    return together


_RULES: dict[str, Callable[[Graph, JaxprEqn], Made | None]] = {"slice": _slice, "rev": _rev, "concatenate": _concatenate}


def _of_others(graph: Graph, var: Any, moved: Mapping[int, Moved]) -> Made | None:
    """A function of positions at others, by axis; None if it is none, or so dear that it is better written (of what others want,
    too, that is soon; a few numbers never are)."""
    made: dict[Any, Made | None] = {}

    def at(var: Any, moved: Mapping[int, Moved]) -> Made | None:
        shape = () if isinstance(var, Literal) else var.aval.shape
        moved = {k: m for k, m in moved.items() if shape and (shape[k] > 1 or m[0] < 1)}
        if not moved:
            return lambda value: value(var)
        key = var, *moved
        if key not in made and len(made) < MOST_AGAIN:
            made[key] = None
            made[key] = _resized(graph, var, moved, at)
        return made.get(key)

    out, eqns = at(var, moved), [e for v, *_ in made if (e := graph.made_by(v)) is not None]
    counted = any(e.primitive.name == "iota" for e in eqns)
    alone = all(u != OUTSIDE and graph.eqns[u].primitive.name in _RULES for u in graph.users.get(var, ()))
    numbers = math.prod(moved[k][0] if k in moved else n for k, n in enumerate(var.aval.shape))
    most = math.inf if numbers <= FEW else AGAIN if alone else 2 * DEAR
    return out if counted and sum(map(operations, eqns)) < most else None


def _resized(
    graph: Graph, var: Any, moved: Mapping[int, Moved], at: Callable[[Any, Mapping[int, Moved]], Made | None]
) -> Made | None:
    """``at``: the same of what it is made of."""
    eqn, shape = graph.made_by(var), list(var.aval.shape)
    for k, (n, _) in moved.items():
        shape[k] = n
    if eqn is None:
        return None
    if eqn.primitive.name == "iota":
        return _iota(eqn, shape, moved)
    if eqn.primitive.name == "broadcast_in_dim":
        (x, *_), dims = eqn.invars, eqn.params["broadcast_dimensions"]
        inner = at(x, {k: moved[d] for k, d in enumerate(dims) if d in moved})
        return inner and (lambda value: lax.broadcast_in_dim(inner(value), shape, dims))
    if not elementwise.is_elementwise(eqn) or len(eqn.outvars) != 1:
        return None
    parts = [at(v, moved) for v in eqn.invars]
    known = [f for f in parts if f is not None]
    return (lambda value: run_equation(eqn, [f(value) for f in known])[0]) if len(known) == len(parts) else None


def _iota(eqn: JaxprEqn, shape: Sequence[int], moved: Mapping[int, Moved]) -> Made | None:
    dtype, along = eqn.params["dtype"], eqn.params["dimension"]
    _, place = moved.get(along, (0, None))
    if place is None:
        return lambda value: lax.broadcasted_iota(dtype, shape, along)
    if (
        jnp.dtype(dtype) not in (jnp.int32, jnp.int64, jnp.float32, jnp.float64)
        or max(shape[along], eqn.params["shape"][along]) > EXACT
    ):
        return None
    return lambda value: place(lax.broadcasted_iota(jnp.int32, shape, along)).astype(dtype)
