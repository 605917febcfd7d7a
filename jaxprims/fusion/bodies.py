"""Loops, branches and checkpoints: what they do, fused by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from ..tracing.jaxprs import CHECKPOINTS, opened, run_equation

BODIES = {
    "cond": ("branches",),
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    **dict.fromkeys(CHECKPOINTS - {"call_hi_primitive"}, ("jaxpr",)),
}
"""By primitive: the parameters that are functions."""


def with_fused_bodies(eqn: JaxprEqn, fused: Callable[[ClosedJaxpr], ClosedJaxpr | None]) -> Callable[..., list[Any]] | None:
    """The equation, its functions replaced by what ``fused`` makes of them; None if it makes nothing."""
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
