"""A histogram of elements that are sharded over devices: each device its own, then bin by bin the operator on all of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from . import devices, divided
from .batches import over_batch
from .elements import mapped
from .histogram import histogram_p
from .histogram_call import HistogramCall, Part, elements_of


def layout(avals: Sequence[Any], *, call: HistogramCall, masks: tuple[int, ...], rank: int) -> divided.Layout:
    """Where each bin starts from its operator's identity; bins that start from ``dest`` alone cannot be started twice."""
    if call.is_map(elements_of(avals, masks)) and not call.reads_positions:
        return _side_by_side(avals, call, masks, rank)
    n = "n" if all(p.operator.identity is not None for p in call.parts) else None
    bins = "h" if n and len({p.num_bins for p in call.parts}) == 1 else None

    def factors(k: int, aval: Any) -> tuple[str | None, ...]:
        known = [f"b{a}" for a in range(rank) if masks[k] >> a & 1]
        steps = [n] if k < call.num_arrays else [bins] if k >= len(avals) - dests else []
        return (*known, *steps, *(None,) * (len(aval.shape) - len(known) - len(steps)))

    every = tuple(f"b{a}" for a in range(rank))
    dests = sum(len(p.values) for p in call.parts if p.dest)
    results = tuple((*every, bins, *(None,) * len(s)) for p in call.parts for s in p.operator.shapes)
    operators = [p.operator for p in call.parts]
    names, dtypes = [n for op in operators for n in op.leaf_names], [d for op in operators for d in op.dtypes]
    words = devices.in_words(names, dtypes) if n else "the elements are gathered, since bins without an identity start once"
    on_devices = functools.partial(_on_devices, call, masks, rank)
    return divided.Layout(tuple(factors(k, aval) for k, aval in enumerate(avals)), results, on_devices, words)


def _side_by_side(avals: Sequence[Any], call: HistogramCall, masks: tuple[int, ...], rank: int) -> divided.Layout:
    """Of a map: each device has the rows of its elements."""

    def factors(k: int, aval: Any) -> tuple[str | None, ...]:
        known = [f"b{a}" for a in range(rank) if masks[k] >> a & 1] + ["n"] * (k < call.num_arrays)
        return (*known, *(None,) * (len(aval.shape) - len(known)))

    def on_devices(axes: dict[str, devices.Names], *operands: Any) -> list[Any]:
        (part,), mine = call.parts, operands[0].shape[masks[0].bit_count()]
        own = dataclasses.replace(call, parts=(dataclasses.replace(part, num_bins=mine),))
        return histogram_p.bind(*operands, call=own, masks=masks, rank=rank)

    every = tuple(f"b{a}" for a in range(rank))
    results = tuple((*every, "n", *(None,) * len(s)) for s in call.parts[0].operator.shapes)
    return divided.Layout(
        tuple(map(factors, range(len(avals)), avals)), results, on_devices, "nothing: rows lie where elements do"
    )


def _on_devices(
    call: HistogramCall, masks: tuple[int, ...], rank: int, axes: dict[str, devices.Names], *operands: Any
) -> list[Any]:
    names, share = axes.get("n", ()), axes.get("h", ())
    if not names:
        return histogram_p.bind(*operands, call=call, masks=masks, rank=rank)
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
        out += leaves if dest is None else on_bins(dest_mask or (), (full,) * count)(dest, leaves)
    return out


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
