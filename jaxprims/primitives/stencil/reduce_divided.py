"""A reduction of a stencil on a grid that is sharded over devices: halos are exchanged, each device reduces its cells, then the
devices' parts are combined."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from ...operators.commutes import commutes
from .. import devices, divided
from .call import Bounds, Window
from .divided import Share, by_side, counted_from_first, from_first, wraps
from .reduce import StencilReduceCall, stencil_reduce_p


def layout(avals: Sequence[Any], *, call: StencilReduceCall) -> divided.Layout:
    """Of cells among those of arrays of one size, which may be combined in any order; else nothing is divided. Axes that are
    kept are where there is a result for each cell."""
    s, reduce, kept = from_first(call.stencil), call.reduce, call.kept
    sizes = {tuple(aval.shape[: s.rank]) for aval in avals[: s.num_arrays]}
    plain = all(b == Bounds(b.mode) for own in s.bounds for b in own) and len(sizes) == 1
    cells = list(zip(s.window, *sizes, strict=True)) if plain else []
    inside = plain and all(w.start >= 0 and w.start + w.size <= n for w, n in cells)
    free = inside and all(p is None for p in reduce.positions) and commutes(reduce.operator.program)
    divides = [free and (a >= kept or (w.start, w.size) == (0, n)) for a, (w, n) in enumerate(cells)] or [False] * s.rank
    grid = tuple(f"g{a}" if so else None for a, so in enumerate(divides))

    def factors(k: int, aval: Any) -> divided.Factors:
        known = (*grid, *(f"l{a}" for a in range(s.lanes_rank))) if k < s.num_arrays else ()
        return divided.rest_whole(known, aval)

    whole = tuple(n for _, n in cells)
    words = f"halos of 1 step are exchanged; {devices.in_words(reduce.operator.leaf_names, reduce.operator.dtypes)}"
    results = tuple((*grid[:kept], *(None,) * len(shape)) for shape, _ in reduce.results)
    on_devices = functools.partial(_on_devices, dataclasses.replace(call, stencil=s), whole)
    operands, fills = tuple(map(factors, range(len(avals)), avals)), (0,) * len(avals)
    return divided.Layout(operands, results, on_devices, words if any(grid) else "", fills)


def _on_devices(call: StencilReduceCall, whole: tuple[int, ...], axes: dict[str, devices.Names], *operands: Any) -> list[Any]:
    s, reduce = call.stencil, call.reduce
    names = {a: axes[f"g{a}"] for a in range(s.rank) if axes.get(f"g{a}")}
    kept = {f"g{a}" for a in range(call.kept)}
    combined = tuple(name for factor, mine in axes.items() if factor not in kept for name in mine)
    arrays, rest, ends = list(operands[: s.num_arrays]), list(operands[s.num_arrays :]), s.ends(range(s.num_arrays))
    if not any(axes.values()):
        return list(stencil_reduce_p.bind(*operands, call=call))
    shares = {a: Share(s.window[a], whole[a], arrays[0].shape[a], name) for a, name in names.items()}
    for a, share in shares.items():
        if max(ends[a]) > share.least or not share.reaches:  # reads beyond the next device
            arrays = [lax.slice_in_dim(lax.all_gather(x, share.name, axis=a, tiled=True), 0, whole[a], axis=a) for x in arrays]
            out = _on_devices(call, whole, axes | {f"g{a}": ()}, *arrays, *rest)
            return [devices.own_share(share.among_all(x, a), a, share.name) for x in out] if a < call.kept else out
    told = [a for a in s.coordinates if a in names]
    if told:
        firsts = [lax.axis_index(names[a]) * np.int32(shares[a].n) for a in told]
        rest[s.f.captured : s.f.captured] = firsts
        s = dataclasses.replace(s, f=counted_from_first(s, {a: whole[a] for a in told}))
    for a, share in shares.items():
        arrays = [share.received(x, a, *ends[a], b[a].mode == "wrap") for x, b in zip(arrays, s.bounds, strict=True)]

    def branch(sides: tuple[int, ...]) -> list[Any]:
        bounds, window, mine = [list(own) for own in s.bounds], list(s.window), list(arrays)
        for (a, share), side in zip(shares.items(), sides, strict=True):
            for k, own in enumerate(bounds):
                mine[k], own[a] = share.bounded(mine[k], a, own[a], 1, ends[a], side)
            begin, end = share.cells(side)
            window[a] = Window(begin, end - begin)
        local = dataclasses.replace(s, bounds=tuple(map(tuple, bounds)), window=tuple(window))
        part = dataclasses.replace(call, stencil=local, reduce=dataclasses.replace(reduce, wanted=None))
        out = list(stencil_reduce_p.bind(*mine, *rest, call=part))
        for (a, share), side in zip(shares.items(), sides, strict=True):
            out = [share.filled(x, a, side) if a < call.kept else x for x in out]
        return out

    endless = [wraps(s, a) == {True} and not share.cut for a, share in shares.items()]
    out = by_side(list(names.values()), endless, branch)
    if combined:
        op = devices.on_pairs(reduce.combine(rest[len(rest) - reduce.captured :], call.kept))
        out = devices.together(op, out, combined, reduce.operator.leaf_names, 0 if call.kept else None)
    return out if reduce.wanted is None else [out[k] for k in reduce.wanted]


divided.layouts[stencil_reduce_p] = layout
