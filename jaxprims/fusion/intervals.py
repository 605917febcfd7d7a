"""Between which numbers a variable lies, from what makes it: ``1.0 - done`` is never more than 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal, Var

from ..tracing.labels import MOVES
from .graph import Graph
from .sites import is_number

Interval = tuple[float, float]
"""The least and the largest number that it may be, if it is not NaN."""

ANY = (-math.inf, math.inf)


def intervals(graph: Graph, given: Sequence[Interval] = ()) -> dict[Var, Interval]:
    """Of every variable of which something is known. ``given``: of the arguments."""
    known: dict[Var, Interval] = dict(zip(graph.jaxpr.invars, given, strict=False))
    for v, x in zip(graph.jaxpr.constvars, graph.consts, strict=True):
        if v.aval.shape == () and is_number(v) and not isinstance(x, (jax.core.Tracer, jax.Ref)):
            known[v] = (float(x), float(x))
    for eqn in graph.eqns:
        rule = _RULES.get(eqn.primitive.name)
        if rule is not None and len(eqn.outvars) == 1 and is_number(eqn.outvars[0]):
            known[eqn.outvars[0]] = rule(eqn, [interval(v, known) for v in eqn.invars])
    return known


def interval(atom: Any, known: Mapping[Var, Interval]) -> Interval:
    """Of a variable or number, in a graph of which ``known`` are the intervals."""
    if isinstance(atom, Literal):
        x = np.asarray(atom.val)
        return (float(x), float(x)) if x.ndim == 0 and x.dtype.kind in "biuf" else ANY
    return known.get(atom, (0.0, 1.0) if atom.aval.dtype == np.bool_ else ANY)


def _union(xs: Sequence[Interval]) -> Interval:
    return min(low for low, _ in xs), max(high for _, high in xs)


def _corners(f: Callable[[float, float], float]) -> Callable[[JaxprEqn, Sequence[Interval]], Interval]:
    """Of a function that is monotonous in each argument, of floats: integers may overflow."""

    def rule(eqn: JaxprEqn, xs: Sequence[Interval]) -> Interval:
        if not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating) or not np.isfinite(xs).all():
            return ANY
        found = [f(x, y) for x in xs[0] for y in xs[-1]]
        return min(found), max(found)

    return rule


def _converted(eqn: JaxprEqn, xs: Sequence[Interval]) -> Interval:
    wraps = jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.integer) and eqn.invars[0].aval.dtype != np.bool_
    return ANY if wraps else xs[0]


def _squared(eqn: JaxprEqn, xs: Sequence[Interval]) -> Interval:
    power = eqn.params.get("y", 2)
    if not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating) or not 0 < power < 8 or not np.isfinite(xs[0]).all():
        return ANY
    low, high = xs[0]
    return (low**power, high**power) if power % 2 or low >= 0 else (0.0, max(-low, high) ** power)


def _clamped(eqn: JaxprEqn, xs: Sequence[Interval]) -> Interval:
    low, x, high = xs
    return min(max(low[0], x[0]), high[0]), min(max(low[1], x[1]), high[1])


def _exp(eqn: JaxprEqn, xs: Sequence[Interval]) -> Interval:
    return 0.0, math.exp(xs[0][1]) if xs[0][1] < 88 else math.inf


def _within(low: float, high: float) -> Callable[[JaxprEqn, Sequence[Interval]], Interval]:
    return lambda eqn, xs: (low, high)


def _extreme(how: Callable[..., float]) -> Callable[[JaxprEqn, Sequence[Interval]], Interval]:
    return lambda eqn, xs: (how(xs[0][0], xs[1][0]), how(xs[0][1], xs[1][1]))


_RULES: dict[str, Callable[[JaxprEqn, Sequence[Interval]], Interval]] = {
    **dict.fromkeys(MOVES - {"iota"} | {"slice", "rev", "transpose", "concatenate"}, lambda eqn, xs: _union(xs)),
    **dict.fromkeys(("reduce_max", "reduce_min", "cummax", "cummin"), lambda eqn, xs: xs[0]),
    **dict.fromkeys(("tanh", "erf", "sin", "cos"), _within(-1.0, 1.0)),
    "abs": lambda eqn, xs: (max(0.0, xs[0][0], -xs[0][1]), max(-xs[0][0], xs[0][1])),
    "add": _corners(lambda x, y: x + y),
    "clamp": _clamped,
    "convert_element_type": _converted,
    "exp": _exp,
    "integer_pow": _squared,
    "logistic": _within(0.0, 1.0),
    "max": _extreme(max),
    "min": _extreme(min),
    "mul": _corners(lambda x, y: x * y),
    "neg": lambda eqn, xs: (-xs[0][1], -xs[0][0]) if jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating) else ANY,
    "select_n": lambda eqn, xs: _union(xs[1:]),
    "square": _squared,
    "sub": _corners(lambda x, y: x - y),
}
