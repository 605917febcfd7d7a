"""Sums of products of numbers of two arrays, each of which is in several sums: products of matrices, written out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, Literal

from ..primitives.avals import typed
from ..tracing.varying import is_whole
from .cut import count_of
from .graph import Graph

SHORTEST, FEWEST = 16, 32
"""Numbers of a sum, and sums, from which on XLA multiplies matrices faster than a kernel adds."""

NARROW = 16
"""Columns below which it adds them faster than it turns a matrix."""

_Axes = dict[int, int]
"""Axes of an array along which it varies, by those of what it is spread to."""


def is_product(graph: Graph, eqn: JaxprEqn, shortest: int = SHORTEST) -> bool:
    return _factors(graph, eqn, shortest) is not None


def as_matrices(graph: Graph, eqn: JaxprEqn) -> Callable[[Mapping[Any, Any]], Any] | None:
    """A function that makes the result of what is known; None where XLA should have the sum as it is, as of halves, and of axes
    that are sharded explicitly."""
    factors, out = _factors(graph, eqn, 1), eqn.outvars[0].aval
    if factors is None or not all(is_whole(v.aval) for v, _ in factors):
        return None
    if out.dtype != jnp.float64 and (out.dtype != jnp.float32 or _is_added_by_xla(graph, eqn)):
        return None
    (x, left), (y, right) = factors
    shape = eqn.invars[0].aval.shape
    summed = [a for a in eqn.params["axes"] if shape[a] != 1]
    kept = [a for along in (left, right) for a in along if a not in summed]
    if len({*kept}) < len(kept) or not all(a in left and a in right for a in summed):
        return None
    if any(n != 1 and a not in (*kept, *summed) for a, n in enumerate(shape)):
        return None  # an axis along which both are the same
    both = tuple([*map([*along].index, summed)] for along in (left, right))
    order = sorted(range(len(kept)), key=kept.__getitem__)

    def product(known: Mapping[Any, Any]) -> Any:
        if x not in known or y not in known:
            return None
        z = lax.dot_general(_bare(known[x], left), _bare(known[y], right), (both, ((), ())), precision=lax.Precision.HIGHEST)
        return typed(lax.transpose(z, order).reshape(out.shape), out)

    return product


def _factors(graph: Graph, eqn: JaxprEqn, shortest: int = SHORTEST) -> list[tuple[Any, _Axes]] | None:
    """Both arrays, with the axes of their product along which each varies; None of what is no product of matrices, or of
    integers, of which XLA has none that is fast."""
    floats = jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating)
    mul = graph.made_by(eqn.invars[0]) if floats and eqn.primitive.name == "reduce_sum" else None
    if mul is None or mul.primitive.name != "mul" or len(graph.users[eqn.invars[0]]) > 1:
        return None
    axes, shape = eqn.params["axes"], eqn.invars[0].aval.shape
    if count_of(shape[a] for a in axes) < shortest or count_of(eqn.outvars[0].aval.shape) <= FEWEST:
        return None
    factors = [_spread(graph, v) for v in mul.invars]
    left, right = ({*along} - {*axes} for _, along in factors)
    return factors if left - right and right - left else None


def _is_added_by_xla(graph: Graph, eqn: JaxprEqn) -> bool:
    """Are they sums of a few columns, which it need not turn? What two have in common it writes, as large as all products."""
    mul, first = graph.made_by(eqn.invars[0]), min(eqn.params["axes"])
    narrow = first == 0 and count_of(eqn.invars[0].aval.shape[-1:]) < NARROW
    return narrow and mul is not None and all(isinstance(v, Literal) or len(graph.users[v]) == 1 for v in mul.invars)


def _spread(graph: Graph, var: Any) -> tuple[Any, _Axes]:
    """What an array has been broadcast from."""
    eqn = None if isinstance(var, Literal) else graph.made_by(var)
    if eqn is None or eqn.primitive.name != "broadcast_in_dim":
        return var, {a: a for a, n in enumerate(var.aval.shape) if not isinstance(n, int) or n != 1}
    (x, *_), places = eqn.invars, eqn.params["broadcast_dimensions"]
    source, along = _spread(graph, x)
    return source, {int(places[a]): mine for a, mine in along.items()}


def _bare(x: Any, along: _Axes) -> Any:
    """Its axes in the order of those of the product, without others, which are of one number."""
    x = lax.squeeze(x, [a for a in range(x.ndim) if a not in along.values()])
    order = sorted(along.values())
    return lax.transpose(x, [order.index(a) for a in along.values()])
