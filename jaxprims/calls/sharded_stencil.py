"""Stencils on a grid that is sharded over devices, inside ``shard_map``: halos are exchanged once for a block of steps.

A device's cells and ``steps`` halos around them are a grid that loses a halo with every step, at the ends where there are
neighbours; at the ends of the whole grid its boundary holds. Which of the two it is depends on the device: each has a branch.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..primitives.stencil_call import Bounds, Window, ends_of
from ..tracing.varying import axes_of, vary
from .stencil import Stencil
from .stencil_form import after_steps, run_in

MOST_STEPS = 8
"""Between two exchanges: what devices compute twice grows with their number."""

FIRST, INNER, LAST = 0, 1, 2


def mesh_axes(axis_name: Any, rank: int) -> list[Any]:
    """For each axis of the grid, the mesh axis (or axes) that it is sharded over, or None."""
    names = list(axis_name) if isinstance(axis_name, (tuple, list)) else [axis_name, *[None] * (rank - 1)]
    if len(names) != rank:
        raise ValueError(
            f"axis_name must be one name, of the first axis, or one (or None) for each of {rank}, got {axis_name!r:.100}"
        )
    return names


def check_boundary(names: Sequence[Any], boundary: Any) -> None:
    """Raises ValueError for one that devices cannot have."""
    modes = boundary if isinstance(boundary, (tuple, list)) else [boundary] * len(names)
    for mode, name in zip(modes, names, strict=True):
        if name is not None and mode == "valid":
            raise ValueError('boundary must not be "valid" on an axis with axis_name: devices would have results of other shapes')


def first_cell(names: Sequence[Any], grid: Sequence[int]) -> list[tuple[Any, int]]:
    """The coordinates of this device's first cell, and the whole grid's sizes; 0: those of the device."""
    sizes = [0 if name is None else n * lax.axis_size(name) for name, n in zip(names, grid, strict=True)]
    return [(lax.axis_index(name) * n if size else 0, size) for name, n, size in zip(names, grid, sizes, strict=True)]


def sharded(call: Stencil, steps: int, names: Sequence[Any]) -> list[Any]:
    """So many steps."""
    split = [a for a, name in enumerate(names) if name is not None and lax.axis_size(name) > 1]
    ends = ends_of([offsets for _, offsets in call.reads], len(names))
    block = min(steps, MOST_STEPS)
    for a in split:
        n, far = call.grid[a], max(ends[a])
        if far > n:
            raise ValueError(f"axis_name: f reads {far} cells away along axis {a} of the grid, of which a device has only {n}")
        block = min(block, n // far if far else block)
    changed = len(call.closed.out_avals)
    done = 0
    while done < steps:
        now = min(block, steps - done)
        out = _block(call, now, split, ends, names)
        done += now
        if done == steps:
            return out
        call = _after(call, now, [*out, *call.arrays[changed:]], changed)
    return call.arrays[:changed]


def _after(call: Stencil, steps: int, arrays: list[Any], changed: int) -> Stencil:
    """The call of further steps, of these arrays; of those that do not change, what lies beside the others' cells is cut off."""
    bounds, window = list(call.bounds), [after_steps(w, steps) for w in call.window]
    for a, (old, new) in enumerate(zip(call.window, window, strict=True)):
        if new.shrink != (0, 0):
            bounds[a] = dataclasses.replace(bounds[a], origin=-new.start)
            begin = min(new.start - old.start, old.size - new.size)
            for k in range(changed, len(arrays)):
                arrays[k] = lax.slice_in_dim(arrays[k], begin, begin + new.size, axis=call.places[k][a])
    return dataclasses.replace(call, arrays=arrays, bounds=tuple(bounds), window=tuple(window))


def _block(call: Stencil, steps: int, split: Sequence[int], ends: Sequence[tuple[int, int]], names: Sequence[Any]) -> list[Any]:
    """Steps after one exchange."""
    arrays = list(call.arrays)
    for a in split:
        low, high = (steps * n for n in ends[a])
        arrays = [_with_halos(x, own[a], low, high, names[a]) for x, own in zip(arrays, call.places, strict=True)]
    call = dataclasses.replace(call, arrays=arrays)
    axes = axes_of(arrays)
    at: Any = jnp.zeros((), jnp.int32)
    for a in split:
        index, count = lax.axis_index(names[a]), lax.axis_size(names[a])
        inner = call.bounds[a].mode == "wrap"
        side = INNER if inner else jnp.where(index == 0, FIRST, jnp.where(index == count - 1, LAST, INNER))
        at = at * 3 + side

    def branch(sides: tuple[int, ...]) -> Any:
        bounds, window = list(call.bounds), [after_steps(w, steps) for w in call.window]
        for a, side in zip(split, sides, strict=True):
            bounds[a], window[a] = _shard(call.bounds[a], call.window[a], steps, ends[a], side)
        return lambda: [vary(x, axes) for x in run_in(call, steps, bounds, window)]

    branches = [branch(sides) for sides in itertools.product((FIRST, INNER, LAST), repeat=len(split))]
    return branches[0]() if not split else list(lax.switch(at, branches))


def _shard(bounds: Bounds, window: Window, steps: int, ends: tuple[int, int], side: int) -> tuple[Bounds, Window]:
    """Of a device at one end of the axis, or between others. Where the grid ends, what was received is not there."""
    low, high = (steps * n for n in ends)
    first, last = side == FIRST, side == LAST
    keep = (window.keep[0] if first else 0, window.keep[1] if last else 0)
    shrink = (0 if first else ends[0], 0 if last else ends[1])
    mode = bounds.mode if first or last else "nothing"
    return Bounds(mode, low, low if first else 0, high if last else 0), Window(0, window.size, shrink, keep)


def _with_halos(x: Any, axis: int, low: int, high: int, name: Any) -> Any:
    """With the last ``low`` cells of the device before and the first ``high`` of the next, the first device's being next to the
    last one's."""
    count, n = lax.axis_size(name), x.shape[axis]
    pieces = []
    if low:
        sent = lax.slice_in_dim(x, n - low, n, axis=axis)
        pieces.append(lax.ppermute(sent, name, [(i, (i + 1) % count) for i in range(count)]))
    pieces.append(x)
    if high:
        sent = lax.slice_in_dim(x, 0, high, axis=axis)
        pieces.append(lax.ppermute(sent, name, [(i, (i - 1) % count) for i in range(count)]))
    return jax.lax.concatenate(pieces, axis) if len(pieces) > 1 else x
