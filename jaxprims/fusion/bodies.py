"""Loops, branches and checkpoints: what they do, fused by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun

from ..tracing.jaxprs import CHECKPOINTS, opened, run_equation, scan_counts
from .cut import bytes_of

BODIES = {
    "cond": ("branches",),
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    **dict.fromkeys(CHECKPOINTS - {"call_hi_primitive"}, ("jaxpr",)),
}
"""By primitive: the parameters that are functions."""


def with_fused_bodies(
    eqn: JaxprEqn, fused: Callable[[ClosedJaxpr], ClosedJaxpr | None], with_rules: bool = False
) -> Callable[..., list[Any]] | None:
    """The equation, its functions replaced by what ``fused`` makes of them; None if it makes nothing. ``with_rules``: derivatives
    will be taken of it."""
    params = {}
    for name in BODIES.get(eqn.primitive.name, ()):
        value = eqn.params[name]
        if isinstance(value, (ClosedJaxpr, Jaxpr)):
            made = fused(ClosedJaxpr(*opened(value)))
            if made is not None:
                params[name] = made if isinstance(value, ClosedJaxpr) else made.jaxpr
        else:
            each = [fused(body) for body in value]
            if any(body is not None for body in each):
                params[name] = tuple(old if new is None else new for old, new in zip(value, each, strict=True))
    if not params:
        return None
    changed = eqn.replace(params={**eqn.params, **params})
    if not with_rules:
        changed = in_pairs(changed)
    return lambda *operands: run_equation(changed, operands)


_IN_NEW_MEMORY = frozenset("scan_any_operator chain_of_scans linear_recurrence stencil".split())
"""Kernels that make arrays as large as those that they read."""

LEAST_COPIED, MOST_TWICE = 2**14, 100
"""Bytes of such an array from which on its copy takes longer than a turn of a loop; equations of a body to be compiled twice."""


def in_pairs(eqn: JaxprEqn) -> JaxprEqn:
    """The loop with two steps in a turn, if a kernel makes what it carries: after the first that lies in memory of its own, from
    where a turn of one step would copy it; the second writes it to where the loop carries it."""
    if eqn.primitive.name != "scan" or eqn.params["unroll"] != 1 or eqn.effects:
        return eqn
    body, length = eqn.params["jaxpr"], eqn.params["length"]
    consts, carried = scan_counts(eqn)
    made = {v: e for e in body.jaxpr.eqns for v in e.outvars}

    def is_made_by_kernel(v: Any) -> bool:
        eqn = None if isinstance(v, Literal) else made.get(v)
        if eqn is None or not isinstance(v.aval.size, int):
            return False
        if eqn.primitive.name in ("reshape", "squeeze", "expand_dims"):
            return is_made_by_kernel(eqn.invars[0])
        return eqn.primitive.name in _IN_NEW_MEMORY and bytes_of(v) >= LEAST_COPIED

    few = isinstance(length, int) and length >= 4 and len(body.jaxpr.eqns) <= MOST_TWICE
    by_kernels = [is_made_by_kernel(v) for v in body.jaxpr.outvars[:carried]]
    if not (few and any(by_kernels)):
        return eqn

    def apart(*args: Any) -> list[Any]:  # what XLA makes of one step is not made again in the next
        carry = [
            x if mine else lax.optimization_barrier(x)
            for x, mine in zip(args[consts : consts + carried], by_kernels, strict=True)
        ]
        return list(jaxpr_as_fun(body)(*args[:consts], *carry, *args[consts + carried :]))

    closed = jax.make_jaxpr(apart)(*body.in_avals)
    return eqn.replace(params={**eqn.params, "jaxpr": closed, "unroll": 2})
