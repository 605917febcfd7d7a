"""Reductions, segmented reductions and histograms of elements that are sharded over devices, inside ``shard_map``: each device
its own, then the operator on all of them, in the mesh's order. The result is the same on every device, and typed so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from ..primitives import devices
from ..tracing.varying import axes_of, vary
from .histogram import Histogram
from .ordered import Ordered
from .reduce import reduced
from .segments import segments_reduced

Names = devices.Names


def sharded_reduce(call: Ordered, start: Sequence[Any] | None, names: Names) -> list[Any]:
    """``call`` is one device's part, ``start`` comes before the first device's."""
    op = call.plain_operator()  # on whole slices
    out = devices.together(op, reduced(call, None), names, _leaf_names(call), None)
    if start is not None:
        out = [x[0] for x in op([s[None] for s in start], [vary(x, axes_of(start))[None] for x in out])]
    return devices.replicated(out, names)


def sharded_segments(call: Ordered, kind: str, cut: Any, count: int, names: Names) -> list[Any]:
    """Segments may go on from one device to the next. ``cut``: this device's ids; or the offsets of all devices' elements."""
    if kind == "offsets":
        cut = jnp.clip(cut - jax.lax.axis_index(names).astype(cut.dtype) * call.elements.n, 0, call.elements.n)
        cut = vary(cut, call.axes)
    op = devices.on_pairs(call.plain_operator())
    return devices.replicated(devices.together(op, segments_reduced(call, kind, cut, count), names, _leaf_names(call), 0), names)


def sharded_histogram(h: Histogram, mine: Sequence[Any]) -> list[Any]:
    """``mine``: this device's bins, leaves ``[num_bins, *bin_shape]``."""
    bins, dest, names = jax.vmap(jaxpr_as_fun(h.closed)), h.after, h.names
    axes = axes_of([*mine, *(dest or ())])
    known: list[str | None] = [None] * len(mine)
    for leaves, operator, _ in h.parts or ():
        for k, name in zip(leaves, operator.leaf_names, strict=True):
            known[k] = name
    op = devices.on_pairs(lambda a, b: bins(*a, *b))
    out = devices.together(op, [vary(x, axes) for x in mine], names, known, 0)
    if dest is not None:
        out = list(bins(*[vary(d, axes) for d in dest], *[vary(x, axes) for x in out]))
    return devices.replicated(out, names)


def _leaf_names(call: Ordered) -> Sequence[str | None]:
    return [None] * len(call.values.shapes) if call.operator is None else call.operator.leaf_names
