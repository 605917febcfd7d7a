"""A stencil in plain XLA: arrays with what lies beyond them, a slice for each read, f mapped over the grid."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...tracing.varying import axes_of, vary
from ..elements import mapped
from .call import Bounds, Fill, StencilCall, Window, result_shapes

MOST_LISTED = 1 << 16
"""Cells of a grid of which a constant says which are computed."""


def stencil(call: StencilCall, *operands: Any, pulled: bool = False) -> list[Any]:
    """An unbatched call. ``pulled``: one that is differentiated."""
    arrays, captured = list(operands[: call.num_arrays]), operands[call.num_arrays :]
    if any(isinstance(w.size, int) and w.size <= 0 for w in call.window):  # where the arrays' cells may be too few for any step
        shapes = result_shapes(call, operands, (0,) * len(operands), 0)
        return [vary(jnp.zeros(s, d), axes_of(arrays)) for s, (_, d) in zip(shapes, call.results, strict=True)]
    if call.steps == 1:
        return _step(call, arrays, captured, pulled)
    changed, constant = arrays[: call.changed], arrays[call.changed :]
    whole = all(b == Bounds(b.mode) for own in call.bounds[: call.changed] for b in own)  # no cell was received that is not there
    if not whole or any(w.shrink != (0, 0) for w in call.window):
        for k in range(1, call.steps + 1):
            changed = _step(part(call, k, 1), [*changed, *constant], captured, pulled)
        return changed
    one = part(call, 1, 1)
    return list(lax.fori_loop(0, call.steps, lambda _, xs: _step(one, [*xs, *constant], captured, pulled), changed))


def part(call: StencilCall, k: int, steps: int) -> StencilCall:
    """``steps`` of the steps, from step k on, counted from 1. Where the grid shrinks, what they change has the cells that step
    k - 1 left."""
    left = call.steps - k + 1 - steps
    window = tuple(
        Window(w.start - left * w.shrink[0], w.size + left * sum(w.shrink), w.shrink if steps > 1 else (0, 0), w.keep)
        for w in call.window
    )
    bounds = call.bounds
    if k > 1:  # results of the step before
        before = [w.start - (left + steps) * w.shrink[0] for w in call.window]
        own = tuple(Bounds(b.mode, -first) for b, first in zip(bounds[0], before, strict=True))
        bounds = (*(own,) * call.changed, *bounds[call.changed :])
    return dataclasses.replace(call, steps=steps, window=window, bounds=bounds)


def _step(call: StencilCall, arrays: Sequence[Any], captured: Sequence[Any], pulled: bool) -> list[Any]:
    inner = [w.computed for w in call.window]
    rank, lanes = call.rank, arrays[0].shape[call.rank : call.rank + call.lanes_rank]
    kept = [own_cells(x, row, call.window) for x, row in zip(arrays, call.bounds, strict=True)] if call.keeps else []
    if any(isinstance(end - begin, int) and end <= begin for begin, end in inner):
        return kept[: len(call.results)]
    axes = axes_of(arrays)
    args: list[Any] = []
    whole = {}
    for k, offsets in call.reads:
        if k not in whole:
            # What wraps around and is all computed is rolled, read by read, which XLA fuses with what reads it; along several
            # axes at once, or farther than to the next cell, it is slower than what is around the grid, made once.
            star = all(sum(map(abs, o)) <= 1 for j, o in call.reads if j == k)
            rolls = [
                star and b.mode == "wrap" and (b.lo - b.origin, n - b.hi - b.origin) == i
                for b, n, i in zip(call.bounds[k], arrays[k].shape, inner, strict=False)
            ]
            ends = [(0, 0) if r else e for r, e in zip(rolls, call.ends([k]), strict=True)]
            near = [(b - e[0], t + e[1]) for (b, t), e in zip(inner, ends, strict=True)]
            whole[k] = _around(arrays[k], call.bounds[k], call.fills[k], near), ends, rolls
        x, ends, rolls = whole[k]
        start, stop = [0] * x.ndim, list(x.shape)
        for axis, (o, e, (begin, end)) in enumerate(zip(offsets, ends, inner, strict=True)):
            if rolls[axis]:
                x = jnp.roll(x, -o, axis) if o else x
            else:
                start[axis], stop[axis] = o + e[0], o + e[0] + end - begin
        args.append(lax.slice(x, start, stop))  # once for all axes: so is the padding that its derivative is
    sizes = tuple(end - begin for begin, end in inner)
    for axis in call.coordinates:
        own = lax.broadcasted_iota(np.int32, (*sizes, *lanes), axis) + jnp.asarray(inner[axis][0], np.int32)
        args.append(vary(own, axes))
    if not args:  # f is the same everywhere
        outs = [jnp.broadcast_to(o, (*sizes, *lanes, *o.shape)) for o in call.f(captured)]
    else:
        outs = list(mapped(lambda *xs: tuple(call.f(captured, *xs)), rank + call.lanes_rank)(*args))
    if not call.keeps:
        return outs
    return [_within(x, o, call.window, pulled) for x, o in zip(kept, outs, strict=False)]


def _within(kept: Any, x: Any, window: Sequence[Window], pulled: bool) -> Any:
    """``x`` among what is kept: chosen cell by cell, which XLA does in the loop that makes x; set there, it would be a second. Of
    a choice x's cotangents would be one too, of a sum they are a slice. That is of tangents: XLA adds 0 for what is nearly 0."""
    widths = [(*w.keep, 0) for w in window] + [(0, 0, 0)] * (x.ndim - len(window))

    def padded(x: Any) -> Any:
        return lax.pad(x, vary(jnp.zeros((), x.dtype), axes_of([x])), widths)

    def chosen(kept: Any, x: Any) -> Any:
        return jnp.where(_computed(kept.shape, window), padded(x), kept)

    def tangents(primals: Any, dots: Any) -> Any:
        return chosen(*primals), padded(dots[1]) + jnp.where(_computed(kept.shape, window), 0, dots[0])

    if not pulled or not jnp.issubdtype(x.dtype, jnp.inexact):
        return chosen(kept, x)
    with_sum = jax.custom_jvp(chosen)
    with_sum.defjvp(tangents)
    return with_sum(kept, x)


def _computed(shape: tuple[Any, ...], window: Sequence[Window]) -> Any:
    """Which cells are: of small grids a constant, for XLA would compare coordinates again wherever it is used; not of cells that
    hold several numbers, whose rows XLA reads one by one then."""
    static = all(isinstance(n, int) for n in shape)
    if static and len(shape) == len(window) and math.prod(shape) <= MOST_LISTED:
        listed = np.zeros(shape, bool)
        listed[tuple(slice(w.keep[0], n - w.keep[1]) for w, n in zip(window, shape, strict=True))] = True
        return listed
    there: Any = True
    for axis, w in enumerate(window):
        at = lax.broadcasted_iota(np.int32, shape, axis)
        there = there & (at >= w.keep[0]) & (at < shape[axis] - w.keep[1])
    return there


def own_cells(x: Any, bounds: Sequence[Bounds], window: Sequence[Window]) -> Any:
    """The array's cells in the window."""
    for axis, (b, w) in enumerate(zip(bounds, window, strict=True)):
        x = lax.slice_in_dim(x, w.start + b.origin, w.start + b.origin + w.size, axis=axis)
    return x


def _around(x: Any, bounds: Sequence[Bounds], fill: Fill, wanted: Sequence[tuple[Any, Any]]) -> Any:
    """The array on these intervals of the grid's cells, axis by axis."""
    value = np.frombuffer(np.array(fill, np.int64).tobytes(), np.dtype(x.dtype))[0]
    filled = [(0, 0, 0)] * x.ndim  # beyond axes that map nowhere: all of them in one operation, which XLA fuses with the reads
    for axis, (b, (begin, end)) in enumerate(zip(bounds, wanted, strict=True)):
        first, last = b.lo - b.origin, x.shape[axis] - b.hi - b.origin
        if not all(isinstance(n, int) for n in (first, last, begin, end)):
            x = _padded(x, axis, b, value, begin, end)
            continue
        before, behind = range(begin, min(first, end)), range(max(last, begin, min(first, end)), end)
        start = min(max(first, begin), last)
        there = lax.slice_in_dim(x, start + b.origin, max(start, min(last, end)) + b.origin, axis=axis)
        if b.mode in ("constant", "nothing"):
            filled[axis] = (len(before), len(behind), 0)
            x = there
            continue
        pieces = [_outside(x, axis, b, value, before, (first, last)), there, _outside(x, axis, b, value, behind, (first, last))]
        pieces = [p for p in pieces if p.shape[axis]]
        x = pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces, axis)
    return lax.pad(x, vary(jnp.asarray(value), axes_of([x])), filled) if any(map(any, filled)) else x


def _outside(x: Any, axis: int, b: Bounds, value: Any, cells: range, there: tuple[int, int]) -> Any:
    """Cells that are not there."""
    shape = (*x.shape[:axis], len(cells), *x.shape[axis + 1 :])
    mapped_to = [place(b.mode, c, *there) for c in cells]
    if not cells or None in mapped_to:
        return vary(jnp.full(shape, value, x.dtype), axes_of([x]))
    at = [m + b.origin for m in mapped_to if m is not None]
    if at == [*range(at[0], at[0] + len(at))]:  # not gathered, whose derivative scatters
        return lax.slice_in_dim(x, at[0], at[0] + len(at), axis=axis)
    if len(set(at)) == 1:
        return jnp.broadcast_to(lax.slice_in_dim(x, at[0], at[0] + 1, axis=axis), shape)
    return jnp.take(x, np.array(at, np.int32), axis=axis, mode="clip")


def place(mode: str, x: int, begin: int, end: int) -> int | None:
    """Where what is read at coordinate x lies; None: nowhere, it is the fill value."""
    n = end - begin
    if mode in ("constant", "nothing") or n <= 0:
        return None
    if mode == "edge":
        return min(max(x, begin), end - 1)
    if mode == "wrap":
        return begin + (x - begin) % n
    if mode == "reflect" and n == 1:
        return begin
    period = 2 * (n - 1) if mode == "reflect" else 2 * n
    at = (x - begin) % period
    return begin + (at if at < n else period - at - (mode == "symmetric"))


def _padded(x: Any, axis: int, b: Bounds, value: Any, begin: Any, end: Any) -> Any:
    """Of an array whose size is a symbol; what is wanted around it is told apart from that by numbers."""
    first, last = b.lo - b.origin, x.shape[axis] - b.hi - b.origin
    before, behind = int(first - begin), int(end - last)
    x = lax.slice_in_dim(x, b.lo, x.shape[axis] - b.hi, axis=axis)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (max(before, 0), max(behind, 0))
    mode = "constant" if b.mode == "nothing" else b.mode
    x = jnp.pad(x, widths, mode=mode, **({"constant_values": value} if mode == "constant" else {}))
    return lax.slice_in_dim(x, max(-before, 0), x.shape[axis] - max(-behind, 0), axis=axis)
