"""A checked stencil in the form for kernels: cells are lanes where f treats all of their numbers alike, else structs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from ..arguments.warnings import FallbackWarning, warn_user
from ..operators.operator import MAX_STRUCT_SLOTS, check_dtypes
from ..operators.traced import NO_PROGRAM, Traced, make_traced, slots_of
from ..primitives.stencil import xla as stencil_xla
from ..primitives.stencil.call import Bounds, StencilCall, Window, fill_of
from ..primitives.stencil.primitive import bind
from ..specs.stencil import Read
from ..tracing.jaxprs import looked, with_arguments
from ..tracing.lanewise import one_lane
from ..tracing.lower import Unsupported, hoist
from .stencil import Stencil

MOST_LANES = 64
"""Lanes of a cell that are walked through together with the cells of the innermost axis; more are an axis of their own."""


@dataclasses.dataclass
class Form:
    """How a call's arrays are laid out for the primitive: f on one lane; which axes are batch, grid and lanes."""

    closed: ClosedJaxpr
    order: list[tuple[int, ...]]  # by array: its axes, in the primitive's order
    batch: int
    between: tuple[int, ...]  # where each axis of the primitive's grid is among the call's; -1: an axis of lanes
    lanes: int = 0
    broadcast: tuple[int, ...] = ()  # cells of arrays that have none, lane by lane


def run(call: Stencil, steps: int) -> list[Any]:
    """So many steps: the results, with the grid's axes where the call's ``axes`` say."""
    if steps == 0:
        return call.arrays[: len(call.closed.out_avals)]
    return run_in(call, steps, call.bounds, [after_steps(w, steps) for w in call.window])


def after_steps(window: Window, steps: int) -> Window:
    """Of the results, given what there is before the first step."""
    left = window.size - steps * sum(window.shrink)
    size = max(0, left) if isinstance(left, int) else left
    return dataclasses.replace(window, start=window.start + steps * window.shrink[0], size=size)


def run_in(call: Stencil, steps: int, own_bounds: Sequence[Bounds], own_window: Sequence[Window]) -> list[Any]:
    """The same for arrays with these bounds, all of them, and results in this window."""
    form = _form(call)
    if form is None:
        return _plainly(call, steps, own_bounds, own_window)
    try:
        pre, inner = hoist(form.closed)
        traced, reads, coordinates = _used(inner, call)
    except Unsupported as e:
        warn_user(f"f cannot be compiled into a kernel ({e}); plain XLA does it", FallbackWarning)
        return _plainly(call, steps, own_bounds, own_window)
    captured = list(pre(*form.closed.consts))
    arrays = [_laid_out(x, order, form) for x, order in zip(call.arrays, form.order, strict=True)]
    changed = len(call.closed.out_avals) if steps > 1 or any(w.keep != (0, 0) for w in own_window) else 0
    needed = sorted({*range(changed), *(k for k, _ in reads)} or {0})
    sizes = arrays[0].shape[form.batch : form.batch + len(form.between)]
    window = [Window(0, n) if a < 0 else own_window[a] for a, n in zip(form.between, sizes, strict=True)]
    bounds = [Bounds("nothing") if a < 0 else own_bounds[a] for a in form.between]
    static = StencilCall(
        traced,
        tuple((needed.index(k), tuple(0 if a < 0 else o[a] for a in form.between)) for k, o in reads),
        tuple(form.between.index(a) for a in coordinates),
        (tuple(bounds),) * len(needed),
        tuple(fill_of(call.fill, call.arrays[k].dtype) for k in needed),
        tuple(window),
        steps,
        form.lanes,
    )
    operands = [*(arrays[k] for k in needed), *captured]
    masks = ((1 << form.batch) - 1,) * len(needed) + (0,) * len(captured)
    outs = bind(static, operands, masks, form.batch)
    return [_as_given(out, form, call, len(o.shape)) for out, o in zip(outs, call.closed.out_avals, strict=True)]


def _used(inner: ClosedJaxpr, call: Stencil) -> tuple[Traced, list[Read], list[int]]:
    """f without the arguments that it does not look at."""
    jaxpr = inner.jaxpr
    n, needed = len(call.reads), looked(jaxpr)
    used = [k for k, v in enumerate(jaxpr.invars) if v in needed]
    narrow = with_arguments(jaxpr, jaxpr.constvars, [jaxpr.invars[k] for k in used])
    for v in (*narrow.invars, *narrow.outvars):
        if slots_of(v.aval.shape, v.aval.dtype) > MAX_STRUCT_SLOTS:
            raise Unsupported(
                "cell", f"of {math.prod(v.aval.shape)} numbers that f does not treat alike; {MAX_STRUCT_SLOTS} is the most"
            )
        if slots_of(v.aval.shape, v.aval.dtype) == 0:
            raise Unsupported("cell", "without numbers")
        check_dtypes([v.aval.dtype])
    reads = [call.reads[k] for k in used if k < n]
    if not reads:
        check_dtypes([call.arrays[0].dtype])  # which goes along all the same, to say how many cells there are
    return make_traced(narrow), reads, [call.coordinates[k - n] for k in used if k >= n]


def _form(call: Stencil) -> Form | None:
    """Lane by lane if f treats all numbers of a cell alike; else a cell is a struct."""
    cell = max(call.cells, key=len)
    outs = [tuple(o.shape) for o in call.closed.out_avals]
    rank = len(call.grid)
    if cell and 0 not in cell and all(s in (cell, ()) for s in call.cells) and all(s == cell for s in outs):
        wide = call.cells.index(cell)
        try:
            closed = one_lane(call.closed, cell)
        except Unsupported:
            pass
        else:
            return _lane_by_lane(call, closed, wide)
    order = [(*own, *(a for a in range(x.ndim) if a not in own)) for x, own in zip(call.arrays, call.places, strict=True)]
    if 0 in cell or any(0 in s for s in outs):
        return None
    return Form(call.closed, order, 0, tuple(range(rank)))


def _lane_by_lane(call: Stencil, closed: ClosedJaxpr, wide: int) -> Form:
    places = call.places[wide]
    ndim = call.arrays[wide].ndim
    others = [a for a in range(ndim) if a not in places]
    batch = [a for a in others if a < min(places)]
    lanes = [a for a in others if a > max(places)]
    number = math.prod(call.arrays[wide].shape[a] for a in lanes)
    if not isinstance(number, int) or number > MOST_LANES:
        lanes = []
    inner = [a for a in range(ndim) if a not in batch and a not in lanes]
    axes = [*batch, *inner, *lanes]
    between = tuple(places.index(a) if a in places else -1 for a in inner)
    order = []
    for x, own, s in zip(call.arrays, call.places, call.cells, strict=True):
        mine = [a for a in range(x.ndim) if a not in own]
        table = dict(zip(places, own, strict=True)) | dict(zip(others, mine, strict=False) if s else {})
        order.append(tuple(table.get(a, -1) for a in axes))
    return Form(closed, order, len(batch), between, len(lanes), tuple(call.arrays[wide].shape[a] for a in axes))


def _laid_out(x: Any, order: tuple[int, ...], form: Form) -> Any:
    """An array in the primitive's order, with the axes that it lacks."""
    there = [a for a in order if a >= 0]
    y = jnp.transpose(x, there) if there != list(range(x.ndim)) else x
    if -1 in order:
        y = jnp.broadcast_to(jnp.expand_dims(y, [n for n, a in enumerate(order) if a < 0]), form.broadcast)
    return y


def _as_given(out: Any, form: Form, call: Stencil, cell_rank: int) -> Any:
    """A result with the grid's axes where ``axes`` say, or first if it has not so many."""
    rank = len(call.grid)
    if form.broadcast:  # laid out as the arrays are, whose axes went where order says
        order = form.order[max(range(len(form.order)), key=lambda k: len([a for a in form.order[k] if a >= 0]))]
        back = np.argsort(order)
        return out if list(back) == list(range(out.ndim)) else jnp.transpose(out, [int(a) for a in back])
    return with_axes(out, call.axes, rank, cell_rank)


def with_axes(out: Any, axes: tuple[int, ...], rank: int, cell_rank: int) -> Any:
    """With its first ``rank`` axes at ``axes``, if it has so many."""
    ndim = rank + cell_rank
    own = [a + ndim if a < 0 else a for a in axes]
    if any(not 0 <= a < ndim for a in own) or own == list(range(rank)):
        return out
    return jnp.moveaxis(out, range(rank), own)


def _plainly(call: Stencil, steps: int, bounds: Sequence[Bounds], window: Sequence[Window]) -> list[Any]:
    """By plain XLA."""
    rank = len(call.grid)
    arrays = [jnp.moveaxis(x, own, range(rank)) for x, own in zip(call.arrays, call.places, strict=True)]
    jaxpr = call.closed.jaxpr
    traced = Traced(with_arguments(jaxpr, jaxpr.constvars, jaxpr.invars), NO_PROGRAM, None)
    fills = tuple(fill_of(call.fill, x.dtype) for x in arrays)
    coordinates = tuple(call.coordinates)
    static = StencilCall(
        traced, tuple(call.reads), coordinates, (tuple(bounds),) * len(arrays), fills, tuple(window), steps, plans=()
    )
    outs = stencil_xla.stencil(static, *arrays, *call.closed.consts)
    return [with_axes(o, call.axes, rank, len(a.shape)) for o, a in zip(outs, call.closed.out_avals, strict=True)]
