"""Chains: scans of what scans make, and reductions of that, as one call that goes through memory once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from ..primitives.ordered.scan_chain import ChainCall, Member, fits, scan_chain_p
from ..tracing.jaxprs import interpret, run_equation, variables

FEWEST = 2**14
"""Elements from which on: fewer are in the cache from one kernel to the next."""


def chained(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, list[str]]:
    """The program with its chains of scans, each one call; and these, in words."""
    words = []
    while (found := _first(closed.jaxpr.eqns)) is not None:
        closed = _with(closed, found)
        words.append(", ".join(_in_words(e) for e in found) + ": one pass over memory")
    return closed, words


def _in_words(eqn: JaxprEqn) -> str:
    call = eqn.params["call"]
    return f"{call.kind} of {call.operator.name or 'an operator'}"


def _may_be_member(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name not in ("scan_any_operator", "reduce_any_operator"):
        return False
    avals = [v.aval for v in eqn.invars]
    known = (
        avals and all(isinstance(n, int) for a in avals for n in a.shape) and not any(isinstance(v, Literal) for v in eqn.invars)
    )
    p = eqn.params
    return bool(known) and fits(p["call"], avals, p["masks"], p["rank"]) and avals[0].shape[0] >= FEWEST


def _first(eqns: Sequence[JaxprEqn]) -> list[JaxprEqn] | None:
    """The first scan that others go on from, with these: what they need besides does not depend on any of it."""
    members = [e for e in eqns if _may_be_member(e)]
    for first in members:
        if first.params["call"].kind != "scan":
            continue
        chain, inside, beyond = [first], set[Any](first.outvars), set[Any]()
        length = first.invars[0].aval.shape[0]
        for eqn in eqns[list(eqns).index(first) + 1 :]:
            if eqn.effects:  # which stay in their order
                break
            operands = variables(eqn.invars)
            arrays = eqn.invars[: eqn.params["call"].num_arrays] if eqn in members else []
            alike = eqn in members and inside & set(arrays) and all(v.aval.shape[0] == length for v in arrays)
            if alike and not beyond & set(operands) and not inside & set(operands[len(arrays) :]):
                chain.append(eqn)
                (inside if eqn.params["call"].kind == "scan" else beyond).update(eqn.outvars)
            elif (inside | beyond) & set(operands):
                beyond.update(eqn.outvars)
        if len(chain) > 1:
            return chain
    return None


def _with(closed: ClosedJaxpr, chain: Sequence[JaxprEqn]) -> ClosedJaxpr:
    """The program with these equations as one, where the last of them stands; what needs their results, behind it."""
    made = [v for e in chain for v in e.outvars]
    used = {v for e in closed.jaxpr.eqns if e not in chain for v in variables(e.invars)}
    used.update(variables(closed.jaxpr.outvars))
    wanted = [v for e in chain for v in e.outvars if v in used or e.params["call"].kind == "reduce"]
    operands = list(dict.fromkeys(v for e in chain for v in variables(e.invars) if v not in made))
    number = {v: k for k, v in enumerate([*operands, *made])}
    members = tuple(Member(e.params["call"], tuple(number[v] for v in e.invars)) for e in chain)
    call = ChainCall(len(operands), members, tuple(number[v] for v in wanted))
    before, after, late = list[JaxprEqn](), list[JaxprEqn](), set[Var](made)
    for eqn in closed.jaxpr.eqns:
        if eqn not in chain:
            behind = any(v in late for v in variables(eqn.invars))
            late.update(eqn.outvars if behind else ())
            (after if behind else before).append(eqn)
    instead = chain[-1]

    def equation(eqn: JaxprEqn, given: Sequence[Any]) -> Sequence[Any]:
        if eqn is not one:
            return run_equation(eqn, given)
        return scan_chain_p.bind(*given, call=call)

    one = instead.replace(invars=operands, outvars=wanted)
    jaxpr = closed.jaxpr.replace(eqns=[*before, one, *after])
    return jax.make_jaxpr(lambda *xs: interpret(jaxpr, closed.consts, xs, equation))(*(v.aval for v in jaxpr.invars))
