"""``lax.reduce`` and ``lax.reduce_window`` by any function of two numbers: by which, if they begin with its identity."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, jaxpr_as_fun

from ..ir.program import to_bits
from ..operators.classify import identity_of, recognise, wrong_identity
from ..tracing.emit import Unsupported
from ..tracing.lower import to_program
from .graph import Graph

FOLDS = ("reduce", "reduce_window")


def operator_of(graph: Graph, eqn: JaxprEqn) -> tuple[str | None, Callable[[Any, Any], Any]] | None:
    """The operator of one of :data:`FOLDS`, with the name that it is recognised by; None if it is not one of two numbers, or does
    not begin with its identity, which JAX asks for: how often XLA takes what it begins with is not said."""
    of = eqn.params["jaxpr"]
    closed = of if isinstance(of, ClosedJaxpr) else ClosedJaxpr(of, eqn.params["consts"])
    if len(eqn.invars) != 2 or closed.consts:
        return None
    start = graph.before(eqn.invars[1], ("convert_element_type", "copy"))
    if not isinstance(start, Literal):
        return None
    x = eqn.invars[0].aval
    if [(v.aval.shape, v.aval.dtype) for v in (*closed.jaxpr.invars, *closed.jaxpr.outvars)] != 3 * [((), x.dtype)]:
        return None
    try:
        program = to_program(closed.jaxpr)
    except Unsupported:
        return None
    if len(program.result_dtypes) != 1:
        return None  # a complex number's parts
    bits, name = (to_bits(np.asarray(start.val), program.result_dtypes[0]),), recognise(program)
    if bits == identity_of(program, name):
        return name, functools.partial(_applied, closed)
    return None if wrong_identity(program, bits) else (None, functools.partial(_applied, closed))


def _applied(closed: ClosedJaxpr, a: Any, b: Any) -> Any:
    """Number by number of arrays."""
    fn = jaxpr_as_fun(closed)
    for _ in range(jnp.ndim(a)):
        fn = jax.vmap(fn)
    return fn(a, b)[0]
