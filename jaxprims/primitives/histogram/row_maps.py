"""Rows made for each element: a histogram in which each has a bin of its own, the one of its position.

Its kernel goes lane by lane through what lies in a row, of elements as of captured arrays: a gather and what is made of it
are one pass of vectors, where XLA goes number by number.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...operators.traced import make_traced
from ...tracing.lower import Unsupported
from ...tracing.varying import axes_of, placed
from ..held import table
from ..ordered.call import OrderedCall
from ..ordered.reduce_ad import gather
from ..ordered.scan import bind as bind_ordered
from ..ordered.scan import scan_p
from ..reads import by_calls
from .call import HistogramCall, can_fuse, sums_of_rows
from .made import Aval, Made, avals_of, context, is_large, numbers_of, row_or_zero, traced_element
from .primitive import bind

F = Callable[..., Any]
"""``f(held arrays, *element)`` gives a row; a function of a module, since calls are remembered by it."""


FEWEST, FEWEST_OF_WIDE, NARROW = 16_384, 2048, 8
"""Numbers from which on such kernels pay: XLA makes what several of them need once; of rows of so many numbers."""


def rows_pay(shape: Sequence[Any]) -> bool:
    """Are kernels ahead of XLA for elements [N, ...]?"""
    if len(shape) < 2 or not all(isinstance(n, int) for n in shape):
        return False
    row = math.prod(shape[1:])
    return row > 1 and math.prod(shape) >= (FEWEST if row < NARROW else FEWEST_OF_WIDE)


def made_rows(f: F, held: Sequence[Any], arrays: Sequence[Any]) -> Any:
    """``jax.vmap(lambda *element: f(held, *element))(*arrays)``."""
    found = _in_kernel(f, held, arrays)
    n, of_element = len(held), lambda *xs: [f(xs[:n], *xs[n:])]
    return jax.vmap(lambda *element: by_calls(of_element, *held, *element)[0])(*arrays) if found is None else found


def rows_at(x: Any, index: Any) -> Any:
    """``x[index]``, and 0 for elements that were dropped."""
    x = jnp.asarray(x)  # a cotangent may be a NumPy array
    if 0 in x.shape:
        return gather(x, index)
    x = table(x, index.shape[0] // x.shape[0])
    of_numbers = math.prod(x.shape[1:]) == 1
    found = _in_kernel(_row_of, [x.reshape(x.shape[:1]) if of_numbers else x], [index])
    return gather(x, index) if found is None else found.reshape(*index.shape, *x.shape[1:])


def _row_of(held: Sequence[Any], index: Any) -> Any:
    return row_or_zero(held[0], index)


def _in_kernel(f: F, held: Sequence[Any], arrays: Sequence[Any]) -> Any:
    """None where there is no such kernel, or where the elements' axis has a place that no bins could have."""
    sizes = [s for x in (*held, *arrays) for s in x.shape]
    if placed(arrays) or axes_of([*held, *arrays]) or not all(isinstance(s, int) and s > 0 for s in sizes):
        return None
    made = _call(f, avals_of(held), tuple((s[1:], d) for s, d in avals_of(arrays)), arrays[0].shape[0], context())
    if made is None:
        return None
    operands = [*arrays, *made.captured(*held)]
    return (bind_ordered(scan_p, made.call, operands) if isinstance(made.call, OrderedCall) else bind(made.call, operands))[0]


@functools.lru_cache(maxsize=256)
def _call(f: F, held: tuple[Aval, ...], elements: tuple[Aval, ...], n: int, _: Any) -> Made | None:
    position = jnp.dtype(jnp.int32)
    if n >= 2**31 - 1 or is_large(elements):
        return None
    pre, inner = traced_element(lambda given, *xs: [f(given, *xs)], held, elements)
    if inner.out_avals[0].shape == ():
        call = numbers_of(inner, (None,) * len(elements))
        return None if call is None else Made(dataclasses.replace(call, plans=()), pre)
    pre, inner = traced_element(lambda given, at, *xs: [at, f(given, *xs)], held, [((), position), *elements])
    row = inner.out_avals[1]
    if math.prod(row.shape) < 2:
        return None
    try:
        part = sums_of_rows(n, row.shape, row.dtype)
        rows = HistogramCall(make_traced(inner.jaxpr), (position, *(None,) * len(elements)), (part,), plans=())
        return Made(rows, pre) if rows.is_map(n) and can_fuse(rows) else None
    except (Unsupported, KeyError):
        return None
