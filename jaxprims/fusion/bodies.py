"""Loops, branches and checkpoints: what they do, fused by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from ..tracing.jaxprs import CHECKPOINTS, interpret, opened, run_equation
from .invariants import before_loop

BODIES = {
    "cond": ("branches",),
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    **dict.fromkeys(CHECKPOINTS - {"call_hi_primitive"}, ("jaxpr",)),
}
"""By primitive: the parameters that are functions."""


Fuse = Callable[[ClosedJaxpr], "ClosedJaxpr | None"]
"""What becomes of a function; None: nothing."""


def with_fused_bodies(eqn: JaxprEqn, fused: Fuse, with_rules: bool = False) -> Callable[..., list[Any]] | None:
    """The equation, its functions replaced by what ``fused`` makes of them, if it makes something; of a loop, without what is
    made before it."""
    apart = before_loop(eqn, with_rules)
    if apart is None:
        return _replaced(eqn, fused)
    (loop,) = (e for e in apart.jaxpr.eqns if e.primitive is eqn.primitive)
    instead = _replaced(loop, fused)
    if instead is None:
        return None

    def equation(e: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
        return instead(*operands) if e is loop else run_equation(e, operands)

    return lambda *operands: interpret(apart.jaxpr, apart.consts, operands, equation)


def _replaced(eqn: JaxprEqn, fused: Fuse) -> Callable[..., list[Any]] | None:
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
    return lambda *operands: run_equation(changed, operands)
