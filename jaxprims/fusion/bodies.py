"""Loops and branches: what they do, fused by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.extend.core import ClosedJaxpr, JaxprEqn

from .graph import run_equation

BODIES = {"cond": ("branches",), "scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr")}
"""By primitive: the parameters that are functions."""


def with_fused_bodies(eqn: JaxprEqn, fused: Callable[[ClosedJaxpr], ClosedJaxpr | None]) -> Callable[..., list[Any]] | None:
    """The equation, its functions replaced by what ``fused`` makes of them; None if it makes nothing."""
    params = dict(eqn.params)
    for name in BODIES.get(eqn.primitive.name, ()):
        value = params[name]
        if isinstance(value, ClosedJaxpr):
            params[name] = fused(value) or value
        elif isinstance(value, tuple) and all(isinstance(j, ClosedJaxpr) for j in value):
            params[name] = tuple(fused(j) or j for j in value)
    if all(params[name] is eqn.params[name] or params[name] == eqn.params[name] for name in BODIES.get(eqn.primitive.name, ())):
        return None
    changed = eqn.replace(params=params)
    return lambda *operands: run_equation(changed, operands)
