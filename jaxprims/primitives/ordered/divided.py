"""Scans, reductions and segmented reductions of elements that are sharded over devices: each device its part, then the operator
on all parts, in the devices' order; lanes that are sharded are each device's own."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...operators.commutes import commutes
from ...operators.operator import identity_leaves
from ...operators.traced import Traced, make_large
from ...tracing.emit import Unsupported
from ...tracing.jaxprs import looked, pruned, with_arguments
from ...tracing.nests import to_arrays
from .. import devices, divided, own_axes
from ..batches import batch_shape, batched_alike, over_batch
from . import scan_xla
from .call import OrderedCall, in_wide, last_of
from .reduce import REDUCTIONS, reduce_p
from .scan import scan_p
from .segments import segments_p

Masks = Sequence[int]


@dataclasses.dataclass
class Part:
    """One device's part of a call."""

    call: OrderedCall
    masks: tuple[int, ...]
    rank: int
    axes: dict[str, devices.Names]
    operands: Sequence[Any]

    def __post_init__(self) -> None:
        call = self.call
        self.names = self.axes["n"]
        arrays, self.cut, self.captured, self.consts, self.init = call.split(self.operands)
        array_masks, self.cut_mask, self.captured_masks, self.consts_masks, self.init_masks = call.split(self.masks)
        self.init = self.init and [x.astype(d) for x, d in zip(self.init, call.operator.dtypes, strict=True)]
        self.n = arrays[0].shape[array_masks[0].bit_count()]
        self.inner = arrays[0].shape[array_masks[0].bit_count() + 1 :][: call.inner_rank]
        self.given, self.given_masks = arrays, array_masks
        self.arrays, self.array_masks = devices.with_positions(call.positions, arrays, array_masks, self.names, self.inner)

    def run(self, primitive: Any, call: OrderedCall, cut: Any = None, init: Sequence[Any] | None = None) -> list[Any]:
        """``call``, a form of this one, on this device's elements. ``init`` has all batch axes."""
        cuts, cut_masks = ([], []) if cut is None else ([cut], [self.cut_mask])
        arrays, masks = (
            (self.given, self.given_masks) if any(p is not None for p in call.positions) else (self.arrays, self.array_masks)
        )
        operands = [*arrays, *cuts, *self.captured, *self.consts, *(init or ())]
        full = ((1 << self.rank) - 1,) * len(init or ())
        every = (*masks, *cut_masks, *self.captured_masks, *self.consts_masks, *full)
        return list(primitive.bind(*operands, call=dataclasses.replace(call, init=init is not None), masks=every, rank=self.rank))

    @property
    def whole(self) -> OrderedCall:
        """The call with positions as an array and with all of the operator's leaves, from no start."""
        return dataclasses.replace(self.call, positions=(None,) * len(self.arrays), wanted=None, then=None, init=False)

    def combine(self, depth: int, masks: Masks | None = None) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
        """The operator on two lists of leaves ``[*batch, *depth axes, *element]``; ``masks``: of the first's."""
        many, n, full = len(self.consts), len(self.call.operator.shapes), (1 << self.rank) - 1

        def one(*xs: Any) -> tuple[Any, ...]:
            return tuple(self.call.combine(xs[:many], depth)(xs[many : many + n], xs[many + n :]))

        fn = over_batch(one, (*self.consts_masks, *(masks or (full,) * n), *(full,) * n), self.rank)
        return lambda a, b: list(fn(*self.consts, *a, *b))

    def batched(self, leaves: Sequence[Any], masks: Masks) -> list[Any]:
        """Leaves ``[*inner, *element]``, with the batch axes of their masks, with all of them."""
        size = jnp.zeros(batch_shape(self.operands, self.masks, self.rank))
        full = (1 << self.rank) - 1
        return [batched_alike([x, size], (mask, full), self.rank)[0] for x, mask in zip(leaves, masks, strict=True)]

    @property
    def _totals(self) -> OrderedCall:
        return dataclasses.replace(
            self.whole, kind="reduce", exclusive=False, reverse=False, in_place=False, segmented_by="", plans=()
        )

    def totals(self) -> list[Any]:
        """What this device's elements amount to."""
        call = self.call
        if not call.reverse or (not call.operator.large and commutes(call.operator.program)):
            return self.run(reduce_p, self._totals)
        scanned = self.run(scan_p, dataclasses.replace(self.whole, exclusive=False, in_place=False))
        return [jax.lax.index_in_dim(x, 0, self.rank, keepdims=False) for x in scanned]


def layout(avals: Sequence[Any], *, call: OrderedCall, masks: tuple[int, ...], rank: int) -> divided.Layout:
    """Calls that start from states go along axes that are not sharded."""
    n = None if call.init_is_state else "n"
    lanes = tuple(f"l{a}" for a in range(call.inner_rank))
    first_init = len(avals) - (len(call.operator.shapes) if call.init else 0)
    own = own_axes.factors(call.f.jaxpr) if call.is_map and _of_arrays(call.f) else None
    elements = call.arguments + call.f.jaxpr.constvars

    def factors(k: int, aval: Any) -> tuple[str | None, ...]:
        known = divided.batch_factors(rank, masks[k])
        if k < call.num_arrays:
            known += (n, *lanes)
        elif k == call.num_arrays and call.segmented_by in ("flags", "ids"):
            known += (n,)
        elif k >= first_init:
            known += lanes
        if own is not None:
            mine = own(elements[k])
            known += mine if k < call.num_arrays else own_axes.after(mine, map(own, elements[: call.num_arrays]))
        return divided.rest_whole(known, aval)

    steps: tuple[str | None, ...] = {"scan": (n,), "reduce": (), "segments": ("h",)}[call.kind]
    every = divided.batch_factors(rank)
    ends = [(None,) * len(shape) for shape, _ in call.results] if own is None else map(own, call.f.jaxpr.outvars)
    results = tuple((*every, *steps, *lanes, *mine) for mine in ends)
    if n is None:
        words = "the elements are gathered"
    elif call.is_map:
        words = "nothing: each result is made of its own element"
        if any(f and f[0] == "r" for factors in results for f in factors):
            words += "; of elements that are sharded themselves, an all-reduce of each reduction"
    elif call.kind == "scan":
        words = "an all-gather of each device's total"
    else:
        words = devices.in_words(call.operator.leaf_names, call.operator.dtypes)
    on_devices = functools.partial(_on_devices, call, masks, rank)
    fills, operands, marked = _fills(avals, call), tuple(factors(k, aval) for k, aval in enumerate(avals)), None
    if n and call.kind != "segments" and call.operator.identity is not None and not (call.inner_rank or call.operator.large):
        neutral, primitive = dict(enumerate(identity_leaves(call.operator))), _PRIMITIVES[call.kind]
        marked = functools.partial(divided.marked, layout, primitive, avals, neutral, call=call, masks=masks, rank=rank)
    last = call.kind == "scan" and call.reverse and fills is None and marked is None
    if in_front := last and all(p is None for p in call.positions):  # where the scan ends
        fills = (0,) * len(avals)
    return divided.Layout(operands, results, on_devices, words, fills, marked, in_front=in_front)


def _of_arrays(f: Traced) -> bool:
    """Can it be made of arrays that stay such, as a device's part of an element is? Of small ones f may do more than that."""
    try:
        return f.arrays is not None or to_arrays(f.jaxpr) is not None
    except Unsupported:
        return False


_PRIMITIVES = {"scan": scan_p, "reduce": reduce_p, "segments": segments_p}


def _fills(avals: Sequence[Any], call: OrderedCall) -> tuple[Any, ...] | None:
    """What elements behind the last are: anything, where they come last or are of no segment; else the operator's identity."""
    fills: list[Any] = [0] * len(avals)
    if call.segmented_by == "ids":
        most = np.iinfo(avals[call.num_arrays].dtype).max
        fills[call.num_arrays] = most
        return tuple(fills) if call.num_segments <= most else None
    if call.kind == "scan" and not call.reverse:
        return tuple(fills)
    given = call.arguments
    passes_on = all(v in given for v in call.f.jaxpr.outvars) or (call.kind == "reduce" and REDUCTIONS.extreme(call) is not None)
    if call.f.jaxpr.eqns or call.operator.identity is None or not passes_on:
        return None
    for v, leaf in zip(call.f.jaxpr.outvars, identity_leaves(call.operator), strict=True):
        if v in given:
            if (leaf != leaf.reshape(-1)[0]).any():
                return None
            fills[given.index(v)] = leaf.reshape(-1)[0]
    return tuple(fills)


def _on_devices(
    call: OrderedCall, masks: tuple[int, ...], rank: int, axes: dict[str, devices.Names], *operands: Any
) -> list[Any]:
    if any(names for f, names in axes.items() if f[0] == "r"):
        return _parts_of_elements(Part(call, masks, rank, axes, operands))
    if not axes.get("n"):
        return list(_PRIMITIVES[call.kind].bind(*operands, call=call, masks=masks, rank=rank))
    part = Part(call if call.is_map else in_wide(call), masks, rank, axes, operands)
    if call.is_map:
        return part.run(scan_p, part.whole)
    if call.kind == "scan":
        out = _scan(part)
    else:
        out = _reduce(part) if call.kind == "reduce" else _segments(part)
        out = call.chosen(out)
    return [x.astype(dtype) for x, (_, dtype) in zip(out, call.results, strict=True)]


def _parts_of_elements(part: Part) -> list[Any]:
    """Of a map: what can be made of the part of each element that is this device's."""
    call, full = part.call, (1 << part.rank) - 1
    arrays = dict(zip(call.f.jaxpr.invars, part.arrays, strict=True))
    captured = dict(zip(call.f.jaxpr.constvars, part.captured, strict=True))
    masks = dict(zip([*arrays, *captured], [*part.array_masks, *part.captured_masks], strict=True))

    def kernel(f: Callable[..., list[Any]], arrays: own_axes.Values, captured: own_axes.Values) -> list[Any]:
        given = {**arrays, **captured}
        of_each = [masks.get(v, full if v in arrays else 0) for v in given]
        outer = [mask.bit_count() + (1 + call.inner_rank if v in arrays else 0) for v, mask in zip(given, of_each, strict=True)]
        avals = [jax.ShapeDtypeStruct(x.shape[k:], x.dtype) for x, k in zip(given.values(), outer, strict=True)]
        jaxpr = pruned(jax.make_jaxpr(lambda *xs: f(dict(zip(given, xs, strict=True))))(*avals).jaxpr)
        used = looked(jaxpr)
        kept = [k for k, v in enumerate(jaxpr.invars) if k == 0 or v in used]
        params, reads = [jaxpr.invars[k] for k in kept], sum(k < len(arrays) for k in kept)
        traced = make_large(with_arguments(jaxpr, params[reads:], params[:reads]))
        mine = dataclasses.replace(call, f=traced, positions=(None,) * reads, operator=last_of(jaxpr.outvars))
        operands = [x for k, x in enumerate(given.values()) if k in kept]
        return list(scan_p.bind(*operands, call=mine, masks=tuple(of_each[k] for k in kept), rank=part.rank))

    return own_axes.in_parts(call.f.jaxpr, part.axes, arrays, captured, kernel)


def _reduce(part: Part) -> list[Any]:
    call, depth = part.call, part.call.inner_rank
    if REDUCTIONS.extreme(call) is not None:  # positions are its second result alone: counted from this device's first
        mine = part.run(reduce_p, dataclasses.replace(call, wanted=None))
        mine[1] = mine[1] + jax.lax.axis_index(part.names).astype(mine[1].dtype) * part.n
    else:
        mine = part.run(reduce_p, part.whole)
    op, alike = devices.on_pairs(part.combine(depth)), part.rank if depth else None
    if not depth and part.rank and not any(part.consts_masks):
        alike = 0  # the operator is the same for all members of a batch
    out = devices.together(op, mine, part.names, call.operator.leaf_names, alike)
    return out if part.init is None else part.combine(depth, part.init_masks)(part.init, out)


def _segments(part: Part) -> list[Any]:
    call, depth = part.call, 1 + part.call.inner_rank
    cut = part.cut
    if call.segmented_by == "offsets":
        first = jax.lax.axis_index(part.names).astype(cut.dtype) * part.n
        cut = jax.lax.clamp(np.zeros((), cut.dtype), cut - first, np.array(part.n, cut.dtype))
    mine, op = part.run(segments_p, part.whole, cut), devices.on_pairs(part.combine(depth))
    if call.operator.identity is not None:
        return devices.together(op, mine, part.names, part.call.operator.leaf_names, part.rank, part.axes["h"])
    assert part.cut_mask is not None
    some = over_batch(functools.partial(_some, call, part.n), (part.cut_mask,), part.rank)(cut)
    if some.ndim == 1:
        some = jnp.broadcast_to(some, mine[0].shape[: part.rank + 1])

    def either(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        """Where one has no elements, the other; the operator sees what somebody gave."""
        (*xs, left), (*ys, right) = a, b
        both = op(scan_xla.where(left, xs, ys), scan_xla.where(right, ys, xs))
        return [*scan_xla.where(left & right, both, scan_xla.where(left, xs, ys)), left | right]

    return devices.together(either, [*mine, some], part.names, [None] * (len(mine) + 1), part.rank, part.axes["h"])[:-1]


def _some(call: OrderedCall, n: int, cut: Any) -> Any:
    """Which segments have elements."""
    if call.segmented_by == "offsets":
        return cut[1:] > cut[:-1]
    at = scan_xla.spare(cut, call.num_segments)
    return jnp.zeros(call.num_segments, jnp.bool_).at[at].set(True, mode="drop")


def _scan(part: Part) -> list[Any]:
    """Totals, what comes before each device, and one scan that starts from there: elements are read twice, written once."""
    call, op = part.call, part.call.operator
    if part.cut is not None:
        return _restarting_scan(part)
    mine = dataclasses.replace(part.whole, wanted=call.wanted, then=call.then)
    before, first = devices.before(devices.on_pairs(part.combine(call.inner_rank)), part.totals(), part.names, call.reverse)
    if part.init is None and op.identity is None:
        return jax.lax.cond(first, lambda: part.run(scan_p, mine), lambda: part.run(scan_p, mine, init=before))
    if part.init is not None:
        start = part.batched(part.init, part.init_masks or ())
        before = part.combine(call.inner_rank)(start, before)
    else:
        neutral = [jnp.broadcast_to(i, (*part.inner, *i.shape)) for i in identity_leaves(op)]
        start = part.batched(neutral, (0,) * len(neutral))
    return part.run(scan_p, mine, init=[jnp.where(first, s, b) for s, b in zip(start, before, strict=True)])


def _restarting_scan(part: Part) -> list[Any]:
    """As a device alone would from the first start on; from what comes before the device until then."""
    call = part.call
    start = None if part.init is None else part.batched(part.init, part.init_masks or ())
    alone = part.run(scan_p, part.whole, part.cut, start)
    inclusive = alone
    if call.exclusive:
        inclusive = part.run(scan_p, dataclasses.replace(part.whole, exclusive=False), part.cut, start)
    last = [jax.lax.index_in_dim(x, 0 if call.reverse else part.n - 1, part.rank, keepdims=False) for x in inclusive]
    begun = part.batched([jnp.asarray(part.cut)], [part.cut_mask or 0])[0]  # [*batch, n]
    begins = jnp.any(begun, -1)
    outermost = jax.lax.axis_index(part.names) == (jax.lax.axis_size(part.names) - 1 if call.reverse else 0)
    restarts = begins | outermost
    totals = scan_xla.where(restarts, last, part.totals()) if part.init is not None else last
    before, _ = devices.before(devices.on_pairs(part.combine(call.inner_rank)), totals, part.names, call.reverse, restarts)
    continued = part.run(scan_p, dataclasses.replace(part.whole, segmented_by=""), init=before)
    at = jnp.arange(part.n)[::-1] if call.reverse else jnp.arange(part.n)  # counted from where the scan begins
    met = (at >= jnp.min(jnp.where(begun, at, part.n), -1, keepdims=True)) | outermost
    return call.results_of(scan_xla.where(met, alone, continued), part.rank + 1 + call.inner_rank)


for primitive in _PRIMITIVES.values():
    divided.layouts[primitive] = layout
