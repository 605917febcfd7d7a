"""What is converted to f32 straight after arithmetic in bf16 is not rounded between, as XLA does not: ``jnp.sum(x * y)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var

from ..tracing import elementwise
from ..tracing.jaxprs import interpret, run_equation
from .graph import Graph

_OF_BITS = frozenset(("convert_element_type", "bitcast_convert_type", "reduce_precision", "nextafter"))
"""What is not the same function in f32."""


def unrounded(graph: Graph) -> ClosedJaxpr | None:
    """The function with such arithmetic in f32; None if there is none such."""
    found = {id(e): made for e in graph.eqns if (made := _arithmetic(graph, e)) is not None}
    if not found:
        return None
    given: dict[Var, Sequence[Any]] = {}  # the operands of what makes a variable

    def equation(eqn: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
        given.update((v, operands) for v in eqn.outvars)
        made = found.get(id(eqn))
        if made is None:
            return run_equation(eqn, operands)
        wide = [lax.convert_element_type(x, jnp.float32) for x in given[made.outvars[0]]]
        return [eqn.primitive.bind(made.primitive.bind(*wide, **made.params), **eqn.params)]

    avals = [v.aval for v in graph.jaxpr.invars]
    return jax.make_jaxpr(lambda *xs: interpret(graph.jaxpr, graph.consts, xs, equation))(*avals)


def _arithmetic(graph: Graph, eqn: JaxprEqn) -> JaxprEqn | None:
    """The equation in bf16 whose result this one converts to f32."""
    if eqn.primitive.name != "convert_element_type" or eqn.params["new_dtype"] != jnp.float32:
        return None
    made = graph.made_by(eqn.invars[0])
    if made is None or made.primitive.name not in elementwise.NAMES - _OF_BITS:
        return None
    return made if all(v.aval.dtype == jnp.bfloat16 for v in (*made.invars, *made.outvars)) else None
