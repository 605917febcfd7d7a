"""A stencil on a grid that is sharded over devices: halos are exchanged once for a block of steps.

A device's cells and ``steps`` halos around them are a grid that loses a halo with every step, at the ends where there are
neighbours; at the ends of the whole grid its boundary holds. Which of the two it is depends on the device: each has a branch.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...operators.traced import Traced, make_traced
from ...tracing.jaxprs import capturing, structs
from ...tracing.varying import axes_of, vary
from .. import devices, divided
from .call import Bounds, StencilCall, Window
from .primitive import stencil_p

MOST_STEPS = 8
"""Between two exchanges: what devices compute twice grows with their number."""

FIRST, INNER, LAST = 0, 1, 2


def exchanged(x: Any, axis: int, low: int, high: int, name: Any) -> Any:
    """With the last ``low`` cells of the device before and the first ``high`` of the next, the first device's being next to the
    last one's."""
    n, pieces = x.shape[axis], []
    if low:
        pieces.append(devices.to_neighbour(lax.slice_in_dim(x, n - low, n, axis=axis), name, 1))
    pieces.append(x)
    if high:
        pieces.append(devices.to_neighbour(lax.slice_in_dim(x, 0, high, axis=axis), name, -1))
    return jax.lax.concatenate(pieces, axis) if len(pieces) > 1 else x


def by_side(
    names: Sequence[Any], wraps: Sequence[bool], branch: Callable[[tuple[int, ...]], list[Any]], axes: Any = frozenset()
) -> list[Any]:
    """``branch(sides)`` for this device's place along each of these mesh axes; a grid that wraps around has no ends."""
    at: Any = jnp.zeros((), jnp.int32)
    for name, wrap in zip(names, wraps, strict=True):
        if not wrap:
            index, count = lax.axis_index(name), lax.axis_size(name)
            at = at * 3 + jnp.where(index == 0, FIRST, jnp.where(index == count - 1, LAST, INNER))
    branches = [
        lambda sides=sides: [vary(x, axes) for x in branch(sides)]
        for sides in itertools.product(*((INNER,) if wrap else (FIRST, INNER, LAST) for wrap in wraps))
    ]
    return branches[0]() if len(branches) == 1 else list(lax.switch(at, branches))


def shard(bounds: Bounds, window: Window, steps: int, ends: tuple[int, int], side: int) -> tuple[Bounds, Window]:
    """Of a device at one end of the axis, or between others. Where the grid ends, what was received is not there."""
    low, high = (steps * n for n in ends)
    first, last = side == FIRST, side == LAST
    keep = (window.keep[0] if first else 0, window.keep[1] if last else 0)
    shrink = (0 if first else ends[0], 0 if last else ends[1])
    mode = bounds.mode if first or last else "nothing"
    return Bounds(mode, low, low if first else 0, high if last else 0), Window(0, window.size, shrink, keep)


def layout(avals: Sequence[Any], *, call: StencilCall, masks: tuple[int, ...], rank: int) -> divided.Layout:
    """Axes whose results are the whole grid's cells."""
    call = from_first(call)
    lanes = tuple(f"l{a}" for a in range(call.lanes_rank))
    shrinks = call.steps > MOST_STEPS and any(any(w.shrink) for w in call.window)

    def room(a: int) -> divided.Room | None:
        """Of the results, within arrays of one size; None where the axis is not to be divided."""
        window, sizes = call.window[a], {aval.shape[m.bit_count() + a] for aval, m in arrays}
        at, n = (window.start, window.size), max(sizes)
        plain = all(own[a] == Bounds(own[a].mode) for own in call.bounds) and len(sizes) == 1 and not shrinks
        if not plain or not all(isinstance(k, int) for k in (*at, n)) or sum(at) > n or at[0] < 0:
            return None
        return (*at, n) if at == (0, n) or (call.steps == 1 and not any(window.keep)) else None

    arrays = list(zip(avals, masks, strict=True))[: call.num_arrays]
    rooms = [room(a) for a in range(call.rank)]
    grid = tuple(None if found is None else f"g{a}" for a, found in enumerate(rooms))
    windows = {f"g{a}": found for a, found in enumerate(rooms) if found is not None and found[1] < found[2]}
    sizes = tuple(0 if found is None else found[2] for found in rooms)

    def factors(k: int, aval: Any) -> divided.Factors:
        known = divided.batch_factors(rank, masks[k])
        known += (*grid, *lanes) if k < call.num_arrays else ()
        return divided.rest_whole(known, aval)

    every = divided.batch_factors(rank)
    results = tuple((*every, *grid, *lanes, *(None,) * len(shape)) for shape, _ in call.results)
    on_devices = functools.partial(_on_devices, call, masks, rank, sizes)
    block = min(call.steps, MOST_STEPS)
    words = f"halos of {block} step{'s' * (block > 1)} are exchanged" if any(grid) else "the grid is gathered"
    operands = tuple(factors(k, aval) for k, aval in enumerate(avals))
    return divided.Layout(operands, results, on_devices, words, (0,) * len(avals), windows=windows)


def _on_devices(
    call: StencilCall,
    masks: tuple[int, ...],
    rank: int,
    whole: tuple[int, ...],
    axes: dict[str, devices.Names],
    *operands: Any,
) -> list[Any]:
    """``whole``: the sizes of the grid's axes that may be sharded. The last device has what the others leave of them."""
    names = {a: axes[f"g{a}"] for a in range(call.rank) if axes.get(f"g{a}")}
    if not names:
        return list(stencil_p.bind(*operands, call=call, masks=masks, rank=rank))
    arrays, captured = list(operands[: call.num_arrays]), operands[call.num_arrays :]
    ends = call.ends(range(call.num_arrays))
    places = [[m.bit_count() + a for a in range(call.rank)] for m in masks[: call.num_arrays]]
    shares = {a: Share(call.window[a], whole[a], arrays[0].shape[places[0][a]], name) for a, name in names.items()}
    most = MOST_STEPS if all(len(wraps(call, a)) == 1 for a in names) else 1  # at one end there are halos of some arrays only
    block = min([call.steps, most, *(share.least // max(ends[a]) for a, share in shares.items() if max(ends[a]))])
    alone = block == 0 or (block < call.steps and any(any(w.shrink) for w in call.window))
    far = [a for a, share in shares.items() if alone or not share.reaches]
    if far:  # reads go beyond the next device: the whole axis, and of the results a share
        wide = [_whole(x, own, far, names, whole) for x, own in zip(arrays, places, strict=True)]
        out = _on_devices(call, masks, rank, whole, axes | {f"g{a}": () for a in far}, *wide, *captured)
        for a in far:
            out = [devices.own_share(shares[a].among_all(x, rank + a), rank + a, names[a]) for x in out]
        return out
    window = tuple(dataclasses.replace(w, start=0, size=shares[a].n) if a in names else w for a, w in enumerate(call.window))
    local = dataclasses.replace(call, window=window)
    if any(a in names for a in call.coordinates):
        local = dataclasses.replace(local, f=counted_from_first(call, {a: whole[a] for a in names}))
        captured = (*captured, *(lax.axis_index(names[a]) * np.int32(shares[a].n) for a in call.coordinates if a in names))
        masks = (*masks, *(0 for a in call.coordinates if a in names))
    done = 0
    while done < call.steps:
        steps = min(block, call.steps - done)
        out = _block(local, masks, rank, shares, ends, places, arrays, captured, steps)
        done, arrays = done + steps, [*out, *arrays[len(out) :]]
        masks = ((1 << rank) - 1,) * len(out) + tuple(masks[len(out) :])
        places = [[m.bit_count() + a for a in range(call.rank)] for m in masks[: call.num_arrays]]
    return out


def _whole(x: Any, places: Sequence[int], axes: Sequence[int], names: Mapping[int, Any], sizes: Sequence[int]) -> Any:
    for a in axes:
        x = lax.all_gather(x, names[a], axis=places[a], tiled=True)
        x = lax.slice_in_dim(x, 0, sizes[a], axis=places[a])
    return x


@dataclasses.dataclass(frozen=True)
class Share:
    """A device's part of an axis: ``window`` of ``whole`` cells are wanted, each device has ``n``, so many that all of them
    together may have more than there are; the last has fewer."""

    window: Window
    whole: int
    n: int
    name: devices.Names

    @property
    def missing(self) -> int:
        """Of the last device's cells, how many are not there."""
        return self.n * lax.axis_size(self.name) - self.whole

    @property
    def least(self) -> int:
        """Cells of the last device."""
        return self.n - self.missing

    @property
    def left(self) -> tuple[int, int]:
        """Of the first device's cells, and of the last one's, how many are not wanted."""
        return self.window.start, self.whole - self.window.start - self.window.size + self.missing

    @property
    def reaches(self) -> bool:
        """Does every device have a cell that is wanted?"""
        return self.least > 0 and max(self.left) < self.n

    @property
    def cut(self) -> bool:
        """Does it matter which device is the last though the axis wraps around?"""
        return self.left != (0, 0)

    def among_all(self, x: Any, axis: int) -> Any:
        """What is wanted, among as many cells as all devices have."""
        return padded(x, axis, *self.left)

    def cells(self, side: int) -> tuple[int, int]:
        """Those that are wanted of the device's."""
        first, last = self.left
        return first if side == FIRST else 0, self.n - (last if side == LAST else 0)

    def filled(self, x: Any, axis: int, side: int) -> Any:
        begin, end = self.cells(side)
        return padded(x, axis, begin, self.n - end)

    def received(self, x: Any, axis: int, low: int, high: int, wraps: bool) -> Any:
        """With the neighbours' cells; around the ends, the first device has the last of the last one's that are there."""
        if not (wraps and self.missing and low):
            return exchanged(x, axis, low, high, self.name)
        last = lax.axis_index(self.name) == lax.axis_size(self.name) - 1
        mine = lax.dynamic_slice_in_dim(x, jnp.where(last, self.least, self.n) - low, low, axis)
        pieces = [devices.to_neighbour(mine, self.name, 1), exchanged(x, axis, 0, high, self.name)]
        return lax.concatenate(pieces, axis)

    def bounded(self, x: Any, axis: int, bounds: Bounds, steps: int, ends: tuple[int, int], side: int) -> tuple[Any, Bounds]:
        """An array with its neighbours' cells, and what is beyond it. Where the grid wraps around, the first device's cells are
        next to the last cell that is there."""
        low, high = (steps * n for n in ends)
        wraps = bounds.mode == "wrap"
        there, _ = shard(bounds, self.window, steps, ends, INNER if wraps else side)
        if side != LAST or not self.missing:
            return x, there
        if not wraps:
            return x, dataclasses.replace(there, hi=there.hi + self.missing)
        pieces = [lax.slice_in_dim(x, 0, low + self.least, axis=axis)]
        pieces += [lax.slice_in_dim(x, low + self.n, low + self.n + high, axis=axis)] if high else []
        return lax.concatenate(pieces, axis), there


def padded(x: Any, axis: int, low: int, high: int) -> Any:
    widths = [(low, high, 0) if a == axis else (0, 0, 0) for a in range(x.ndim)]
    return lax.pad(x, vary(jnp.zeros((), x.dtype), axes_of([x])), widths) if low or high else x


def counted_from_first(call: StencilCall, sizes: Mapping[int, int]) -> Traced:
    """f, which captures a device's first coordinate on each of these axes too, on coordinates that count from there."""
    jaxpr, reads = call.f.jaxpr, len(call.reads)
    held, told = len(jaxpr.constvars), [a for a in call.coordinates if a in sizes]

    def flat(*args: Any) -> list[Any]:
        firsts = dict(zip(told, args[held:], strict=False))
        elements = list(args[held + len(told) :])
        for k, a in enumerate(call.coordinates, reads):
            if a in sizes:
                elements[k] += firsts[a]
                if True in wraps(call, a):
                    elements[k] %= np.int32(sizes[a])
        return call.f(args[:held], *elements)

    variables = [*jaxpr.constvars, *jaxpr.invars[reads : reads + 1] * len(told), *jaxpr.invars]
    made = jax.make_jaxpr(flat)(*structs(variables)).jaxpr
    captured = held + len(told)
    made = capturing(made, captured)
    return make_traced(made)


def _block(
    call: StencilCall,
    masks: tuple[int, ...],
    rank: int,
    shares: Mapping[int, Share],
    ends: Sequence[tuple[int, int]],
    places: Sequence[Sequence[int]],
    arrays: Sequence[Any],
    captured: Sequence[Any],
    steps: int,
) -> list[Any]:
    """Steps after one exchange."""
    wide = list(arrays)
    for a, share in shares.items():
        low, high = (steps * n for n in ends[a])
        wide = [
            share.received(x, own[a], low, high, b[a].mode == "wrap") for x, own, b in zip(wide, places, call.bounds, strict=True)
        ]

    def branch(sides: tuple[int, ...]) -> list[Any]:
        bounds, window, mine = [list(own) for own in call.bounds], list(call.window), list(wide)
        for (a, share), side in zip(shares.items(), sides, strict=True):
            begin, end = share.cells(side)
            _, wanted = shard(call.bounds[0][a], call.window[a], steps, ends[a], INNER if wraps(call, a) == {True} else side)
            window[a] = dataclasses.replace(wanted, start=begin, size=end - begin)
            for k, own in enumerate(bounds):
                mine[k], own[a] = share.bounded(mine[k], places[k][a], own[a], steps, ends[a], side)
        part = dataclasses.replace(call, bounds=tuple(map(tuple, bounds)), window=tuple(window), steps=steps)
        out = list(stencil_p.bind(*mine, *captured, call=part, masks=masks, rank=rank))
        for (a, share), side in zip(shares.items(), sides, strict=True):
            out = [share.filled(x, rank + a, side) for x in out]
        return out

    endless = [wraps(call, a) == {True} and not share.cut for a, share in shares.items()]
    return by_side([share.name for share in shares.values()], endless, branch)


def from_first(call: StencilCall) -> StencilCall:
    """A step whose grid begins where each array does: reads are as far away as they are from there."""
    if call.steps > 1 or call.keeps:
        return call
    reads = tuple((k, tuple(o + b.origin for o, b in zip(offsets, call.bounds[k], strict=True))) for k, offsets in call.reads)
    bounds = tuple(tuple(dataclasses.replace(b, origin=0) for b in own) for own in call.bounds)
    return dataclasses.replace(call, reads=reads, bounds=bounds)


def wraps(call: StencilCall, axis: int) -> set[bool]:
    """Do arrays wrap around? Each may have a boundary of its own."""
    return {own[axis].mode == "wrap" for own in call.bounds}


divided.layouts[stencil_p] = layout
