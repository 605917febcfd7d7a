"""A checked reduction: by its kernel, one run of neighbouring axes after the other, or by plain XLA."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp

from ..operators.commutes import commutes
from ..operators.operator import passing, rounds
from ..primitives.ordered import scan_xla
from ..primitives.ordered.call import OrderedCall, in_wide
from ..primitives.ordered.reduce import REDUCTIONS, reduce_p
from ..primitives.ordered.scan import bind
from ..tracing.jaxprs import EARLY
from ..tracing.varying import sharded_axes, vary
from ..tracing.within import within
from .ordered import Ordered
from .scan import identity_on_slices


def reduced(call: Ordered, start: Sequence[Any] | None) -> list[Any]:
    """A checked call: by its kernel, or by plain XLA."""
    if all(0 in s for s in call.values.shapes):
        return [vary(jnp.zeros(s, d), call.axes) for s, d in zip(call.values.shapes, call.values.dtypes, strict=True)]
    if call.elements.n == 0:
        neutral = identity_on_slices(call) if start is None else list(start)
        if neutral is None:
            needed = f"a reduction of no elements needs identity= or init={call.hint}"
            raise ValueError(f"identity is not known for this operator: {needed}")
        return neutral
    if call.operator is None or any(0 in s for s in call.values.shapes):
        return scan_xla.reduce(call.plain_operator(), call.plain_values(), start)
    assert call.f is not None
    static = OrderedCall(call.f, call.positions, "reduce", call.operator, len(call.captured), init=start is not None)
    axes, dtypes, counts = call.elements.axes, call.operator.dtypes, any(call.elements.is_position)
    alone = frozenset() if _at_once.get() or len(axes) == 1 else _sharded_alone(call.elements.given[0], axes)
    if alone and rounds(call.operator) and not call.axes:
        static = in_wide(static)
    if rounds(static.operator) or (counts and REDUCTIONS.extreme(static) is None):
        alone = frozenset()  # all at once: what is rounded is rounded once, positions count along all axes
    if len(_runs(axes)) > 1 and (counts or rounds(static.operator)):
        call.elements.moved_together()
    starts = [x.astype(d) for x, d in zip(start or (), static.operator.dtypes, strict=False)]
    operands = (call.elements.given, call.f_captured, call.captured, starts)
    out = _by_runs(operands, static=static, axes=call.elements.axes, lanes=call.lanes, alone=alone)
    return [x.astype(d) for x, d in zip(out, dtypes, strict=True)]


_at_once: contextvars.ContextVar[bool] = contextvars.ContextVar("axes at once", default=False)


def axes_at_once() -> AbstractContextManager[None]:
    """Reductions that are traced inside are of neighbouring axes as one: nobody writes, or gathers, what they combine."""
    return within(_at_once, True)


LONG = 16
"""Elements along an axis from which on a reduction of its own costs little."""


def _sharded_alone(x: Any, axes: Sequence[int]) -> frozenset[int]:
    """Axes that may be sharded where those in front of them are not: as one axis with these they would be gathered."""
    explicit = sharded_axes(x)
    long = [a for a in axes if isinstance(x.shape[a], int) and x.shape[a] >= LONG] if jax.device_count() > 1 else []
    return frozenset({*long, *(a for a in axes if a in explicit)})


def _runs(axes: Sequence[int], alone: frozenset[int] = frozenset()) -> list[tuple[int, int]]:
    """(first axis, number of axes) of each run of neighbouring axes, the last run first; nothing is in front of one that is to be
    ``alone``."""
    out: list[tuple[int, int]] = []
    for a in reversed(axes):
        if out and out[-1][0] == a + 1 and a + 1 not in alone:
            out[-1] = (a, out[-1][1] + 1)
        else:
            out.append((a, 1))
    return out


@functools.partial(jax.jit, static_argnames=("static", "axes", "lanes", "alone"), inline=EARLY)
def _by_runs(
    operands: tuple[list[Any], ...], *, static: OrderedCall, axes: tuple[int, ...], lanes: int, alone: frozenset[int]
) -> list[Any]:
    """One run of neighbouring axes after the other, the last first, which keeps row-major order. Jitted: reshapes are free."""
    leaves, f_captured, captured, start = operands
    runs, shape = _runs(axes, alone), leaves[0].shape
    sizes = {run: math.prod(shape[run[0] : sum(run)]) for run in runs}
    known = all(isinstance(n, int) for n in sizes.values())
    if alone and known and not static.operator.large and commutes(static.operator.program):
        runs.sort(key=sizes.__getitem__, reverse=True)  # what devices combine is what is left: little
    left = len(axes)
    for k, (place, count) in enumerate(runs):
        first = place - sum(n for at, n in runs[:k] if at < place)
        left -= count
        last = left == 0
        leaves = [_merged(x, first, count) for x in leaves]
        step = dataclasses.replace(static, inner_rank=lanes + left - first, init=static.init and last)
        shared = [*f_captured, *captured]
        full = (1 << first) - 1
        masks = (full,) * len(leaves) + (0,) * len(shared) + (full,) * (len(start) * last)
        leaves = bind(reduce_p, step, [*leaves, *shared, *(start if last else ())], masks, first)
        if not last:
            if any(p is not None for p in static.positions):
                leaves[1] = _among_all(leaves[1], shape, axes, place, count)
            static, f_captured = _of_states(static), []
    return leaves


def _among_all(at: Any, shape: Sequence[int], axes: Sequence[int], place: int, count: int) -> Any:
    """Positions along a run of the axes, which is gone, as those along all of them, row-major."""
    strides = {a: math.prod(shape[b] for b in axes if b > a) for a in axes}
    out = at * strides[place + count - 1]
    for a in axes:
        if not place <= a < place + count:
            out += jax.lax.broadcasted_iota(at.dtype, at.shape, a if a < place else a - count) * strides[a]
    return out


def _merged(x: Any, first: int, count: int) -> Any:
    """With ``count`` axes as one, which is on every device where one behind the first is sharded explicitly."""
    before, run, behind = x.shape[:first], x.shape[first : first + count], x.shape[first + count :]
    spec = jax.typeof(x).sharding.spec
    place = None
    if any(spec[first + 1 : first + count]):
        place = jax.sharding.PartitionSpec(*spec[:first], None, *spec[first + count :])
    return x.reshape(*before, math.prod(run), *behind, out_sharding=place)


def _of_states(static: OrderedCall) -> OrderedCall:
    """The same operator on what it returned: no f."""
    elements = tuple(zip(static.operator.shapes, static.operator.dtypes, strict=True))
    return dataclasses.replace(static, f=passing(elements, static.operator.large), positions=(None,) * len(elements))
