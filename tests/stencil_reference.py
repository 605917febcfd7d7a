"""Stencils by definition: arrays padded axis by axis, a slice for each read. In NumPy, or in jax.numpy to be differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

BOUNDARIES = ("edge", "wrap", "reflect", "symmetric", "constant", "valid", "keep")


class _Recorder:
    """Offsets that f asks for, answered by the cells themselves."""

    def __init__(self, x: Any, rank: int):
        self.x, self.ends = x, [[0, 0] for _ in range(rank)]

    def __getitem__(self, offsets: Any) -> Any:
        for end, o in zip(self.ends, offsets if isinstance(offsets, tuple) else (offsets,), strict=True):
            end[:] = [max(end[0], -o), max(end[1], o)]
        return self.x


class _View:
    """An array [*grid, *cell] whose first cells are the grid's cells ``origin``; read around the cells of ``window``."""

    def __init__(
        self, xp: Any, x: Any, modes: Sequence[str], fill: Any, origin: Sequence[int], window: Sequence[tuple[int, int]]
    ):
        self.xp, self.x, self.modes, self.fill, self.origin, self.window = xp, x, modes, fill, origin, window

    def __getitem__(self, offsets: Any) -> Any:
        x = self.x
        numbers = offsets if isinstance(offsets, tuple) else (offsets,)
        rows = zip(numbers, self.modes, self.origin, self.window, strict=True)
        for axis, (o, mode, first, (begin, end)) in enumerate(rows):
            start = begin - first + o
            if mode not in ("valid", "keep"):
                widths = [(abs(o),) * 2 if a == axis else (0, 0) for a in range(x.ndim)]
                more = {"constant_values": self.fill} if mode == "constant" else {}
                x = self.xp.pad(x, widths, mode=mode, **more)
                start += abs(o)
            x = x[(slice(None),) * axis + (slice(start, start + end - begin),)]
        return x


def stencil(
    f: Callable[..., Any],
    xs: Sequence[Any],
    boundary: Any,
    *,
    fill: Any = 0,
    steps: int = 1,
    constants: Sequence[Any] = (),
    rank: int | None = None,
    places: bool = False,
    xp: Any = np,
) -> list[Any]:
    """f's results, flat; arrays are [*grid, *cell]. f works on whole grids as on cells. ``places``: its last argument are the
    coordinates."""
    xs, constants = [xp.asarray(x) for x in xs], [xp.asarray(x) for x in constants]
    rank = xs[0].ndim if rank is None else rank
    modes = (boundary,) * rank if isinstance(boundary, str) else tuple(boundary)
    origin = [0] * rank
    with np.errstate(all="ignore"):
        for _ in range(steps):
            xs, origin = _step(f, xs, constants, modes, fill, origin, rank, places, xp)
    return xs


def _step(
    f: Any, xs: list[Any], constants: list[Any], modes: Any, fill: Any, origin: list[int], rank: int, places: bool, xp: Any
) -> tuple[list[Any], list[int]]:
    sizes = xs[0].shape[:rank]
    recorders = (
        [_Recorder(x, rank) for x in xs],
        [_Recorder(xp.zeros((*sizes, *x.shape[rank:]), x.dtype), rank) for x in constants],
    )
    everywhere = [tuple(np.indices(sizes, np.int32))] if places else []
    likes = jax.tree.leaves(f(*recorders[0], *everywhere, *recorders[1]))
    window, inner, left = [], [], []  # what is computed: as coordinates; of what there is; what there is after the step
    for a, (n, mode, first) in enumerate(zip(sizes, modes, origin, strict=True)):
        lo, hi = (max(r.ends[a][side] for r in (*recorders[0], *recorders[1])) for side in (0, 1))
        begin, end = (lo, max(lo, n - hi)) if mode in ("valid", "keep") else (0, n)
        window.append((first + begin, first + end))
        left.append(slice(begin, end) if mode == "valid" else slice(None))
        inner.append(slice(begin, end) if mode == "keep" else slice(None))
    kept = [x[tuple(left)] for x in xs]
    if any(e == b for b, e in window):
        outs = [
            xp.zeros((*k.shape[:rank], *np.shape(y)[rank:]), y.dtype) for k, y in zip(kept[:1] * len(likes), likes, strict=True)
        ]
        outs = kept if "keep" in modes else outs
    else:
        near = [_View(xp, x, modes, fill, origin, window) for x in xs]
        others = [_View(xp, x, modes, fill, [0] * rank, window) for x in constants]
        where = [tuple(np.indices([e - b for b, e in window], np.int32)[a] + window[a][0] for a in range(rank))]
        outs = jax.tree.leaves(f(*near, *(where if places else []), *others))
        outs = [xp.broadcast_to(y, (*(e - b for b, e in window), *np.shape(y)[rank:])) for y in outs]
        if "keep" in modes:
            outs = [_replaced(xp, k, tuple(inner), y) for k, y in zip(kept, outs, strict=True)]
    return outs, [b if m == "valid" else o for m, o, (b, _) in zip(modes, origin, window, strict=True)]


def _replaced(xp: Any, x: Any, at: tuple[slice, ...], y: Any) -> Any:
    if xp is jnp:
        return x.at[at].set(y)
    out = x.copy()
    out[at] = y
    return out
