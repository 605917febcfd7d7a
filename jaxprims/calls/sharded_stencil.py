"""Stencils on a grid that is sharded over devices, inside ``shard_map``: a block of steps after the other, each after an exchange
of halos (``primitives.stencil.divided``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax import lax

from ..primitives import devices
from ..primitives.stencil.call import ends_of
from ..primitives.stencil.divided import MOST_STEPS, by_side, exchanged, shard
from ..tracing.varying import axes_of
from .stencil import Stencil
from .stencil_form import after_steps, run_in


def mesh_axes(axis_name: Any, rank: int) -> list[Any]:
    """For each axis of the grid, the mesh axis (or axes) that it is sharded over, or None."""
    names = list(axis_name) if isinstance(axis_name, (tuple, list)) else [axis_name, *[None] * (rank - 1)]
    if len(names) != rank:
        raise ValueError(
            f"axis_name must be one name, of the first axis, or one (or None) for each of {rank}, got {axis_name!r:.100}"
        )
    devices.check_names([name for name in names if name is not None], axis_name)
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
        arrays = [exchanged(x, own[a], low, high, names[a]) for x, own in zip(arrays, call.places, strict=True)]
    call = dataclasses.replace(call, arrays=arrays)

    def branch(sides: tuple[int, ...]) -> list[Any]:
        bounds, window = list(call.bounds), [after_steps(w, steps) for w in call.window]
        for a, side in zip(split, sides, strict=True):
            bounds[a], window[a] = shard(call.bounds[a], call.window[a], steps, ends[a], side)
        return run_in(call, steps, bounds, window)

    wraps = [call.bounds[a].mode == "wrap" for a in split]
    return by_side([names[a] for a in split], wraps, branch, axes_of(arrays))
