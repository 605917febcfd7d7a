"""A scan along an axis that is sharded over devices, inside ``shard_map``: local scans, an exclusive scan of their totals, and
each total's prefix combined in.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..primitives import devices
from ..primitives.ordered import scan_xla
from ..tracing.varying import axes_of, vary
from . import scan as _scan
from .ordered import Ordered

Leaves = list[Any]


def sharded_scan(call: Ordered, start: Leaves | None, flags: Any, exclusive: bool, reverse: bool, names: devices.Names) -> Any:
    """``call`` is one device's part; the parts lie along the mesh axes ``names`` in the mesh's order.

    Cost: that of the local scan, at most one more pass over the elements, and an all-gather of one slice from each device.
    """
    if call.elements.n == 0:
        return _scan.run(call, start, flags, exclusive, reverse)
    neutral = exclusive and start is None
    if neutral:
        start = _scan.identity_on_slices(call)
        if start is None:
            raise ValueError("identity is not known for this operator: an exclusive scan needs identity= or init=")
    device = jax.lax.axis_index(names)
    if flags is not None:
        return _restarting(call, start, neutral, flags, exclusive, reverse, names, device)
    op = call.plain_operator()
    inclusive = _inclusive(call, None, reverse)
    before, first = devices.before(op, _last(inclusive, reverse), names, reverse)
    if start is None:
        combined = op([jnp.broadcast_to(b[None], x.shape) for b, x in zip(before, inclusive, strict=True)], inclusive)
        return call.restored([jnp.where(first, x, y) for x, y in zip(inclusive, combined, strict=True)], 0)
    further = before if neutral else [x[0] for x in op([s[None] for s in start], [b[None] for b in before])]
    started = [jnp.where(first, s, b) for s, b in zip(start, further, strict=True)]
    axes = axes_of(started)  # of the mesh: device by device another start
    again = _scan.same_call(call, [vary(v, axes) for v in call.plain_values()])
    return _scan.run(again, [vary(s, axes) for s in started], None, exclusive, reverse)


def _restarting(
    call: Ordered, start: Leaves | None, neutral: bool, flags: Any, exclusive: bool, reverse: bool, names: Any, device: Any
) -> Any:
    op = call.plain_operator()
    values = call.plain_values()
    here = -1 if reverse else 0
    outermost = device == (jax.lax.axis_size(names) - 1 if reverse else 0)
    begins = flags.at[here].set(flags[here] | outermost)
    axes = axes_of([begins, *values])
    begins, values = vary(begins, axes), [vary(v, axes) for v in values]
    full = None if start is None else [vary(jnp.broadcast_to(s, v.shape), axes) for s, v in zip(start, values, strict=True)]
    if full is not None and not neutral:
        values = scan_xla.where(begins, op(full, values), values)
    inclusive = _inclusive(_scan.same_call(call, values), begins, reverse)
    before, _ = devices.before(op, _last(inclusive, reverse), names, reverse, jnp.any(begins))
    met = scan_xla.scan(lambda a, b: [a[0] | b[0]], [begins], reverse=reverse)[0]
    combined = op([jnp.broadcast_to(b[None], x.shape) for b, x in zip(before, inclusive, strict=True)], inclusive)
    out = scan_xla.where(met, inclusive, combined)
    if exclusive:
        assert full is not None
        if reverse:
            out = [jnp.concatenate([x[1:], b[None]]) for x, b in zip(out, before, strict=True)]
        else:
            out = [jnp.concatenate([b[None], x[:-1]]) for x, b in zip(out, before, strict=True)]
        out = scan_xla.where(begins, full, out)
    return call.restored(out, 0)


def _inclusive(call: Ordered, flags: Any, reverse: bool) -> Leaves:
    """The local scan, the axis first."""
    return [jnp.moveaxis(x, call.elements.axis, 0) for x in jax.tree.leaves(_scan.run(call, None, flags, False, reverse))]


def _last(leaves: Leaves, reverse: bool) -> Leaves:
    return [x[0] if reverse else x[-1] for x in leaves]
