"""A histogram of elements that are sharded over devices: each device its own, then bin by bin the operator on all of them.

Of rows that are sharded themselves, each device has its part of every bin's.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...operators.operator import narrowed, wide
from ...operators.traced import Traced, followed, traced_alike
from .. import devices, divided, own_axes
from ..batches import over_batch
from ..elements import mapped
from .call import HistogramCall, Part, elements_of
from .primitive import histogram_p


def layout(avals: Sequence[Any], *, call: HistogramCall, masks: tuple[int, ...], rank: int) -> divided.Layout:
    """Where each bin starts from its operator's identity; bins that start from ``dest`` alone cannot be started twice. Rows of a
    map lie where its elements do."""
    side_by_side = call.is_map(elements_of(avals, masks)) and not call.reads_positions
    n = "n" if side_by_side or all(p.operator.identity is not None for p in call.parts) else None
    bins = "h" if n and len({p.num_bins for p in call.parts}) == 1 else None
    own = _own_axes(call)
    elements = call.arguments + call.f.jaxpr.constvars
    leaves = [own(call.f.jaxpr.outvars[v]) if p.operator.lanes > 1 else (None,) * len(s) for p, v, s in _leaves(call)]
    dests = [mine for (p, _, _), mine in zip(_leaves(call), leaves, strict=True) if p.dest]

    def factors(k: int, aval: Any) -> tuple[str | None, ...]:
        known = divided.batch_factors(rank, masks[k])
        if k < call.num_arrays:
            known += (n, *own(elements[k]))
        elif k < len(elements):
            known += own_axes.after(own(elements[k]), map(own, elements[: call.num_arrays]))
        elif (at := k - len(avals) + len(dests)) >= 0:
            known += (bins, *dests[at])
        return divided.rest_whole(known, aval)

    every = divided.batch_factors(rank)
    results = tuple((*every, n if side_by_side else bins, *mine) for mine in leaves)
    leaf_names = [name for p in call.parts for name in p.operator.leaf_names]
    if side_by_side:
        words = "nothing: rows lie where elements do"
    elif n:
        words = devices.in_words(leaf_names, [d for p in call.parts for d in p.operator.dtypes])
    else:
        words = "the elements are gathered, since bins without an identity start once"
    on_devices = functools.partial(_rows if side_by_side else _on_devices, call, masks, rank)
    operands, marked, none = tuple(factors(k, aval) for k, aval in enumerate(avals)), None, _outside(call)
    if not side_by_side and n and none is not None:  # elements that are not there are of no bin
        marked = functools.partial(divided.marked, layout, histogram_p, avals, none, call=call, masks=masks, rank=rank)
    return divided.Layout(operands, results, on_devices, words, _fills(avals, call), marked)


def _outside(call: HistogramCall) -> dict[int, int] | None:
    """For f's indices, numbers of no bin; None where there are none, or indices are known to ascend."""
    dtypes = {p.index: call.f.jaxpr.outvars[p.index].aval.dtype for p in call.parts}
    most = {k: int(np.iinfo(dtype).max) for k, dtype in dtypes.items()}
    return None if call.sorted or any(most[p.index] < p.num_bins for p in call.parts) else most


def _fills(avals: Sequence[Any], call: HistogramCall) -> tuple[Any, ...] | None:
    """What elements behind the last are: of no bin."""
    fills: list[Any] = [0] * len(avals)
    given = call.arguments
    for p in call.parts:
        index = call.f.jaxpr.outvars[p.index]
        if index not in given or np.iinfo(avals[k := given.index(index)].dtype).max < p.num_bins:
            return None
        fills[k] = np.iinfo(avals[k].dtype).max
    return tuple(fills)


def _leaves(call: HistogramCall) -> list[tuple[Part, int, tuple[int, ...]]]:
    """Of every leaf of every part: the part, which of f's results it is of, and its shape."""
    return [(p, v, s) for p in call.parts for v, s in zip(p.values, p.operator.shapes, strict=True)]


def _own_axes(call: HistogramCall) -> Callable[[Any], divided.Factors]:
    """Of f's variables: a factor for each axis along which f and the operators do to all the same, and nothing to several."""
    own, results = own_axes.side_by_side(call.f.jaxpr), call.f.jaxpr.outvars
    rows = {v for p in call.parts if p.operator.lanes > 1 and not p.captured for v in p.values}
    mixed = {f for k, v in enumerate(results) if k not in rows for f in own(v)}
    kept = {f for k in rows for f in own(results[k])} - mixed
    return lambda v: tuple(f if f in kept else None for f in own(v))


def _of_parts(call: HistogramCall, axes: dict[str, devices.Names]) -> HistogramCall:
    """Of this device's part of the rows."""
    counts = {f: jax.lax.axis_size(names) for f, names in axes.items() if f[0] == "r" and names}
    if not counts:
        return call
    own = _own_axes(call)
    f: Traced = traced_alike(own_axes.narrowed(call.f.jaxpr, counts, own))
    shapes = [v.aval.shape for v in f.jaxpr.outvars]
    parts = (
        dataclasses.replace(p, operator=narrowed(p.operator, shapes[p.values[0]])) if p.operator.lanes > 1 else p
        for p in call.parts
    )
    return dataclasses.replace(call, f=f, parts=tuple(parts))


def _rows(call: HistogramCall, masks: tuple[int, ...], rank: int, axes: dict[str, devices.Names], *operands: Any) -> list[Any]:
    """Of a map: each device has those of its elements."""
    mine = _of_parts(call, axes)
    parts = (dataclasses.replace(mine.parts[0], num_bins=operands[0].shape[masks[0].bit_count()]),)
    return histogram_p.bind(*operands, call=dataclasses.replace(mine, parts=parts), masks=masks, rank=rank)


def _on_devices(
    call: HistogramCall, masks: tuple[int, ...], rank: int, axes: dict[str, devices.Names], *operands: Any
) -> list[Any]:
    call, names, share = _of_parts(call, axes), axes.get("n", ()), axes.get("h", ())
    if not names:
        return histogram_p.bind(*operands, call=call, masks=masks, rank=rank)
    dtypes = [dtype for part in call.parts for dtype in part.operator.dtypes]
    call = _in_wide(call)
    arrays, captured, per_operator, dests = call.split(operands)
    array_masks, captured_masks, operator_masks, dest_masks = call.split(masks)
    arrays, array_masks = devices.with_positions(call.positions, arrays, array_masks, names)
    mine = dataclasses.replace(
        call,
        positions=(None,) * len(arrays),
        parts=tuple(dataclasses.replace(p, dest=False) for p in call.parts),
    )
    given = [*arrays, *captured, *(x for consts in per_operator for x in consts)]
    given_masks = (*array_masks, *captured_masks, *(m for consts in operator_masks for m in consts))
    flat = histogram_p.bind(*given, call=mine, masks=given_masks, rank=rank)
    full, out = (1 << rank) - 1, []
    for part, consts, consts_masks, dest, dest_mask in zip(
        call.parts, per_operator, operator_masks, dests, dest_masks, strict=True
    ):
        count = len(part.values)
        leaves, flat = flat[:count], flat[count:]
        on_bins = functools.partial(_combine, part, consts, consts_masks, rank)
        op = devices.on_pairs(on_bins((full,) * count, (full,) * count))
        leaves = devices.together(op, leaves, names, part.operator.leaf_names, rank, share)
        if dest is not None:
            start = [x.astype(d) for x, d in zip(dest, part.operator.dtypes, strict=True)]
            leaves = on_bins(dest_mask or (), (full,) * count)(start, leaves)
        out += leaves
    return [x.astype(dtype) for x, dtype in zip(out, dtypes, strict=True)]


def _in_wide(call: HistogramCall) -> HistogramCall:
    """With sums in f32 that are to be rounded to halves afterwards."""
    parts, narrow = list[Part](), list[int]()
    for part in call.parts:
        operator = None if part.captured else wide(part.operator)
        if operator is not None:
            part = dataclasses.replace(part, operator=operator, values=(len(call.f.jaxpr.outvars) + len(narrow),))
            narrow.append(call.parts[len(parts)].values[0])
        parts.append(part)
    if not narrow:
        return call
    f = followed(call.f, lambda out: [*out, *(out[k].astype(jnp.float32) for k in narrow)])
    return dataclasses.replace(call, f=f, parts=tuple(parts))


def _combine(
    part: Part,
    consts: Sequence[Any],
    consts_masks: Sequence[int],
    rank: int,
    masks: Sequence[int],
    other_masks: Sequence[int],
) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """The part's operator on two lists of leaves ``[*batch, num_bins, *bin_shape]``, which have the batch axes of these masks."""
    many, n = len(consts), len(part.values)

    def one(*xs: Any) -> tuple[Any, ...]:
        fn = mapped(lambda *pair: tuple(part.operator.traced(xs[:many], *pair)), 1)
        return fn(*xs[many : many + n], *xs[many + n :])

    fn = over_batch(one, (*consts_masks, *masks, *other_masks), rank)
    return lambda a, b: list(fn(*consts, *a, *b))


divided.layouts[histogram_p] = layout
