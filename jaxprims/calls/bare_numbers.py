"""Python's numbers as operands of a call that is kept: may they be, or is something made of them that wants to know them?

With a number that is known Python computes in double precision; an integer may be an exponent, an index, a number of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal, jaxprs_in_params

from ..tracing.jaxprs import CALLS, called, variables

_HANDED_ON = frozenset(("convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "copy", "stop_gradient", "pvary"))
_TERMS = frozenset("add sub mul div max min eq ne lt le gt ge select_n broadcast_in_dim convert_element_type".split())
"""What may be done with an integer that is not known."""
_CONTROL = frozenset(("cond", "while", "scan"))


def computes(jaxpr: Jaxpr, numbers: Sequence[bool], integers: bool) -> bool:
    """Is anything computed of these arguments alone, or may be where a loop or a branch has them? ``integers``: some are, and
    nothing may be made of them but terms and factors."""
    alone = {v for v, is_number in zip(jaxpr.invars, numbers, strict=True) if is_number}
    for eqn in jaxpr.eqns:
        held = variables(eqn.invars)
        if not alone.isdisjoint(held) and (eqn.primitive.name in _CONTROL or any(map(_branches, _functions(eqn)))):
            return True
        if integers and not alone.isdisjoint(held):
            if any(_uses(f, {v for v in f.constvars if v.aval.shape == ()}) for f in _functions(eqn)):
                return True
            if not all(v in alone for v in held) and eqn.primitive.name not in _TERMS and "call" not in eqn.params:
                inner = called(eqn) if eqn.primitive.name in CALLS else None
                if inner is None:
                    return True
        if held and all(v in alone for v in held):
            (x, *_), (y, *_) = held, eqn.outvars
            rounded = x.aval.dtype != y.aval.dtype and x.aval.dtype not in (np.float64, np.complex128)  # once more
            if jnp.issubdtype(x.aval.dtype, np.integer):
                rounded = rounded and not jnp.issubdtype(y.aval.dtype, np.inexact)  # a narrow integer may not hold it
            if eqn.primitive.name not in _HANDED_ON or rounded:
                return True
            alone.update(eqn.outvars)
        elif not alone.isdisjoint(held) and eqn.primitive.name in CALLS:
            inner = called(eqn)
            if inner is None or computes(inner[0], [isinstance(v, Literal) or v in alone for v in eqn.invars], integers):
                return True
    return False


def _uses(f: Jaxpr, alone: set[Any]) -> bool:
    """Is any of these used otherwise than as a term or a factor?"""
    for eqn in f.eqns:
        held = [v in alone for v in variables(eqn.invars)]
        if eqn.primitive.name in _HANDED_ON and all(held):
            alone.update(eqn.outvars)
        elif any(held) and eqn.primitive.name in CALLS:
            inner = called(eqn)
            if inner is None or _uses(inner[0], {a for a, v in zip(inner[0].invars, eqn.invars, strict=True) if v in alone}):
                return True
        elif any(held) and eqn.primitive.name not in _TERMS:
            return True
    return any(v in alone for v in variables(f.outvars))


def _functions(eqn: JaxprEqn) -> list[Jaxpr]:
    """Those of a call of the library's: of its elements, and its operators."""
    call = eqn.params.get("call")
    parts = getattr(call, "parts", (call,))
    operators = [part.operator.traced for part in parts if hasattr(part, "operator")]
    return [f.jaxpr for f in (*([call.f] if hasattr(call, "f") else ()), *operators)]


def _branches(jaxpr: Jaxpr) -> bool:
    return any(e.primitive.name in _CONTROL or any(map(_branches, jaxprs_in_params(e.params))) for e in jaxpr.eqns)
