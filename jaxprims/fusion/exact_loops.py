"""Loops of a fixed number of steps that treat every element by itself and exactly, as a binary search: each is one equation.

XLA goes through all elements in every step, and writes what they carry. In a kernel's body an element goes through all steps.
Only what is exact is taken: a loop may amplify the last bit of a number, which another compiler rounds otherwise.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Var, jaxprs_in_params

from ..ir.program import COMPARE
from ..tracing import elementwise
from ..tracing.jaxprs import CALLS, called, has_rules, looked, opened, run_equation
from ..tracing.labels import MOVES, Mixed, sources

NAME = "loop"
"""Of the call that such a loop becomes."""

FEWEST_STEPS = 3
"""Below which XLA hardly writes more than a kernel."""

_EXACT = MOVES | COMPARE | frozenset("lt_to le_to is_finite select_n gather max min neg abs sign clamp".split())


def as_calls(jaxpr: Jaxpr, with_rules: bool = False) -> Jaxpr:
    """The jaxpr with every such loop, of which one result is wanted, as a call of :data:`NAME`. ``with_rules``: but for loops of
    functions with rules of their own for derivatives."""
    wanted = looked(jaxpr)

    def one(eqn: JaxprEqn) -> JaxprEqn:
        if with_rules and any(map(has_rules, jaxprs_in_params(eqn.params))):
            return eqn
        return _called(eqn, [v for v in eqn.outvars if v in wanted]) or eqn

    return jaxpr.replace(eqns=[one(eqn) for eqn in jaxpr.eqns])


def is_exact_loop(eqn: JaxprEqn) -> bool:
    return is_call_of(eqn, NAME)


def is_exact(eqn: JaxprEqn) -> bool:
    """Is it such a loop, or what is done in place of one?"""
    return is_exact_loop(eqn) or eqn.primitive.name == "search"


def title(eqn: JaxprEqn) -> str:
    """An equation's name, in words."""
    return eqn.params["name"] if eqn.primitive.name in ("jit", "pjit") else eqn.primitive.name


def steps(eqn: JaxprEqn) -> int:
    return int(_loop_of(eqn).params["length"])


def each_step(eqn: JaxprEqn) -> list[JaxprEqn]:
    """What is done in a step, calls inlined."""
    return _inlined(opened(_loop_of(eqn).params["jaxpr"])[0])


def _loop_of(eqn: JaxprEqn) -> JaxprEqn:
    inner = called(eqn)
    assert inner is not None
    return inner[0].eqns[0]


def _inlined(jaxpr: Jaxpr) -> list[JaxprEqn]:
    """Its equations and those of what it calls."""
    out = []
    for eqn in jaxpr.eqns:
        inner = called(eqn) if eqn.primitive.name in CALLS else None
        out += [eqn] if inner is None else _inlined(inner[0])
    return out


def _called(eqn: JaxprEqn, wanted: list[Var]) -> JaxprEqn | None:
    if eqn.primitive.name != "scan" or eqn.effects or len(wanted) != 1:
        return None
    if not isinstance(eqn.params["length"], int) or eqn.params["length"] < FEWEST_STEPS:
        return None
    jaxpr, captured = opened(eqn.params["jaxpr"])
    (out,) = wanted
    if captured or not out.aval.ndim or not _is_exact(jaxpr):
        return None
    call = call_of(eqn, out, NAME)
    try:
        sources(call, 0)
    except Mixed:
        return None
    return call


def call_of(eqn: JaxprEqn, out: Var, name: str) -> JaxprEqn:
    """An equation for one of its results alone, as a call of this name."""
    which = eqn.outvars.index(out)

    def one(*operands: Any) -> Any:
        return run_equation(eqn, operands)[which]

    one.__name__ = name
    (call,) = jax.make_jaxpr(jax.jit(one))(*(v.aval for v in eqn.invars)).eqns
    return call.replace(invars=eqn.invars, outvars=[out])


def is_call_of(eqn: JaxprEqn, name: str) -> bool:
    return eqn.primitive.name in ("jit", "pjit") and eqn.params["name"] == name


def _is_exact(jaxpr: Jaxpr) -> bool:
    """Does a function treat elements by operations that do not round?"""
    return all(map(rounds_nothing, _inlined(jaxpr)))


def rounds_nothing(eqn: JaxprEqn) -> bool:
    whole = eqn.primitive.name in elementwise.NAMES and all(map(_is_whole, (*eqn.invars, *eqn.outvars)))
    return whole or eqn.primitive.name in _EXACT


def _is_whole(v: Any) -> bool:
    return v.aval.dtype == bool or np.issubdtype(v.aval.dtype, np.integer)
