"""Scans of functions of elements: what keeps the last is a map; linear recurrences, of whose pairs one half is wanted; scans of
whose leaves results are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..operators.operator import MAX_STRUCT_SLOTS
from ..operators.traced import make_traced
from ..primitives.ordered.call import last
from ..primitives.ordered.recurrence import Recurrence
from ..tracing.varying import element_aval
from .check_ordered import check_ordered
from .scan import bind_scan, run


def mapped(f: Callable[..., Any], xs: Any, rows: int = 0, registers: int = MAX_STRUCT_SLOTS) -> Any:
    """``jax.vmap(f)(*xs)`` by a kernel, whatever small arrays f computes with: none of them is written. ``rows``: they are not so
    small, and f goes through them in loops, so many elements together, as it goes through each where its results are more than
    ``registers`` scalars; such arrays stay in the cache from one loop to the next."""
    return run(check_ordered(xs, last, 0, None, f, whole=registers, rows=rows), None, None, False, False)


def recurring(r: Recurrence, f: Callable[..., Any], xs: Any, flags: Any, init: Any) -> Any:
    """A recurrence of numbers, with ``((*factors, b),) = f(*xs[t])``. Factors and terms are not written."""

    def then(p: Any, q: Any) -> Any:
        return (tuple(r.combine((), p[0], q[0])),)

    call = check_ordered(xs, then, 0, None, f)
    if call.operator is None:
        raise ValueError("no kernel of pairs")
    n = r.step.factors
    start = None if init is None else [*(jnp.ones_like(init),) * n, init]
    return bind_scan(call, start, flags, False, r.reverse, False, wanted=(n,))[0]


def scanned(f: Callable[..., Any], op: Callable[..., Any], then: Callable[..., Any], xs: Any, reverse: bool) -> list[Any]:
    """``jax.vmap(then)`` of the leaves that a scan of ``f``'s values has, made where the scan would store them: a list of arrays.
    ``then`` is a function of scalars and captures nothing; what else it needs, f gives and op passes on (``last``)."""
    call = check_ordered(xs, op, 0, None, f)
    if call.operator is None or call.operator.large:  # a kernel of large elements stores what it has combined
        raise ValueError("no kernel of this operator that makes its results of that")
    elements = zip(call.values.shapes, call.values.dtypes, strict=True)
    avals = [element_aval(shape[call.inner_rank :], dtype, call.axes) for shape, dtype in elements]
    closed = jax.make_jaxpr(then)(*avals)
    if closed.consts:
        raise ValueError("a captured array in what is made of the results")
    return bind_scan(call, None, None, False, reverse, False, then=make_traced(closed.jaxpr))
