"""Histograms made for derivatives: calls of what is computed for each element, traced, and what of held arrays alone.

Derivatives of sums by index, rows made for each element and sums of weighed rows are made of these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from ...operators.operator import simple_operator
from ...operators.traced import make_traced, slots_of
from ...tracing.jaxprs import opened, with_arguments
from ...tracing.lower import Unsupported, hoist
from ..ordered.call import OrderedCall, last
from ..ordered.scan_xla import like
from ..tangents import Leaves
from .call import HistogramCall, Part, can_fuse

MOST_READS = 16
"""Of one captured array by f: each is a kernel backwards, which takes time to compile."""

MOST = 4096
"""Numbers of an element that f is still traced for."""

Aval = tuple[tuple[int, ...], Any]
"""Shape and dtype."""


@dataclasses.dataclass(frozen=True, eq=False)
class Made:
    """A call made of another one's f, or what XLA does for each element; and what its captured arrays are made of."""

    call: Any  # HistogramCall, OrderedCall or ClosedJaxpr
    captured: Callable[..., Leaves]


def is_large(elements: Iterable[Aval]) -> bool:
    """Has an element more numbers than f is traced for?"""
    return sum(slots_of(*a) for a in elements) > MOST


def made_of(
    like: HistogramCall, f: Callable[..., Leaves], held: Sequence[Any], elements: Sequence[Aval], parts: Sequence[Part]
) -> Made | None:
    """The call of ``f(held arrays, *element)``, of more arrays behind those of ``like``; None if it would not be one kernel."""
    pre, inner = traced_element(f, held, elements)
    try:
        traced = make_traced(inner.jaxpr)
    except Unsupported:
        return None
    positions = (*like.positions, *(None,) * (len(elements) - len(like.positions)))
    call = dataclasses.replace(like, f=traced, positions=positions, parts=tuple(parts))
    return Made(call, pre) if can_fuse(call) else None


def traced_element(
    f: Callable[..., Leaves], held: Sequence[Any], elements: Sequence[Aval]
) -> tuple[Callable[..., Leaves], ClosedJaxpr]:
    """What is computed for each element, and what of held arrays alone."""
    n = len(held)
    avals = [jax.ShapeDtypeStruct(s, d) for s, d in (*held, *elements)]
    closed = jax.make_jaxpr(lambda *xs: f(xs[:n], *xs[n:]))(*avals)
    jaxpr, consts = opened(closed)
    jaxpr = with_arguments(jaxpr, [*jaxpr.constvars, *jaxpr.invars[:n]], jaxpr.invars[n:])
    pre, inner = hoist(ClosedJaxpr(jaxpr, [*consts, *avals[:n]]))
    return lambda *xs: pre(*consts, *xs), inner


def numbers_of(element: ClosedJaxpr, positions: tuple[Any, ...]) -> OrderedCall | None:
    """The call that makes a number for each element, as :func:`traced_element` has it; None where there is no kernel for it."""
    try:
        f = make_traced(element.jaxpr)
    except Unsupported:
        return None
    return OrderedCall(f, positions, "scan", simple_operator(last, (), element.out_avals[0].dtype))


def avals_of(xs: Iterable[Any]) -> tuple[Aval, ...]:
    return tuple((tuple(x.shape), np.dtype(x.dtype)) for x in xs)


def context() -> tuple[Any, ...]:
    """What else a trace depends on."""
    return bool(jax.config.jax_enable_x64), jax.sharding.get_abstract_mesh()


def row_or_zero(ct: Any, index: Any) -> Any:
    """An element's: its bin's (those of its bins), or zero."""
    if index.ndim == 1 and index.shape[0] <= MOST_READS:  # one by one, as they were stacked: XLA fuses what it need not stack
        return jnp.stack([row_or_zero(ct, index[k]) for k in range(index.shape[0])])
    inside = (index >= 0) & (index < ct.shape[0])
    found = ct.at[index].get(mode="clip", wrap_negative_indices=False)
    return jnp.where(like(inside, found), found, jnp.zeros((), ct.dtype))
