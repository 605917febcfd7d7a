"""``lax.reduce`` and ``lax.reduce_window`` by any function of two numbers: by which, if they begin with its identity."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, jaxpr_as_fun

from ..ir.evaluate import NotEvaluable
from ..ir.program import to_bits
from ..operators.classify import identity_of, is_neutral, recognise
from ..tracing.emit import Unsupported
from ..tracing.lower import to_program
from .graph import Graph

FOLDS = ("reduce", "reduce_window")


class Fold(NamedTuple):
    """By an operator, from ``start`` on, its identity: ``neutral``, proved of numbers of every kind, or only of those that are no
    NaN. ``name``: of the operator, where it is recognised and has this identity."""

    name: str | None
    op: Callable[[Any, Any], Any]
    start: np.ndarray
    neutral: bool


def fold_of(graph: Graph, eqn: JaxprEqn) -> Fold | None:
    """One of :data:`FOLDS`; None if it is not by an operator of two numbers, or does not begin with its identity, which JAX asks
    for: how often XLA takes what it begins with is not said."""
    of = eqn.params["jaxpr"]
    closed = of if isinstance(of, ClosedJaxpr) else ClosedJaxpr(of, eqn.params["consts"])
    if len(eqn.invars) != 2 or closed.consts:
        return None
    start, dtype = _known(graph, eqn.invars[1]), eqn.invars[0].aval.dtype
    numbers = [v.aval for v in (*closed.jaxpr.invars, *closed.jaxpr.outvars)]
    if start is None or [(a.shape, a.dtype) for a in numbers] != 3 * [((), dtype)]:
        return None
    try:
        program = to_program(closed.jaxpr)
        if len(program.result_dtypes) != 1:
            return None  # a complex number's parts
        bits, name = (to_bits(start, program.result_dtypes[0]),), recognise(program)
        known = bits == identity_of(program, name)
        neutral = known or is_neutral(program, bits, strictly=False)
        if not (neutral or is_neutral(program, bits, strictly=False, of_nan=False)):
            return None
    except (Unsupported, NotEvaluable):
        return None
    return Fold(name if known else None, functools.partial(_applied, closed), start.astype(dtype), neutral)


def _known(graph: Graph, atom: Any) -> np.ndarray | None:
    """A number's value."""
    origin = graph.before(atom, ("convert_element_type", "copy"))
    if isinstance(origin, Literal):
        return np.asarray(origin.val)
    given = dict(zip(graph.jaxpr.constvars, graph.consts, strict=True)).get(origin)
    return None if given is None or isinstance(given, Tracer) else np.asarray(given)


def _applied(closed: ClosedJaxpr, a: Any, b: Any) -> Any:
    """Number by number of arrays."""
    fn = jaxpr_as_fun(closed)
    for _ in range(jnp.ndim(a)):
        fn = jax.vmap(fn)
    return fn(a, b)[0]
