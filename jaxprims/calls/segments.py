"""A checked segmented reduction: by its kernel, or by plain XLA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..arguments.checks import sizes_of
from ..primitives.histogram.primitive import by_index
from ..primitives.ordered import scan_xla
from ..primitives.ordered.scan import bind
from ..primitives.ordered.segments import segments_p
from ..tracing.varying import placed, vary
from .check_ordered import check_ordered
from .ordered import Ordered
from .scan import identity_on_slices


def reduce_sorted(values: Any, ids: Any, count: int, op: Any, identity: Any) -> Any:
    """What ``reduce_by_index`` returns for ids that ascend; None where a histogram is faster, or its error is wanted."""
    if count == 0:
        return None
    call = check_ordered(values, op, 0, identity, None, name="values", beside=ids)
    if call.operator is None or identity_on_slices(call) is None:
        return None
    if not segments_pay(ids.shape[0], count, call.operator.name, rows=any(call.values.shapes)):
        return None
    return jax.tree.unflatten(call.values.tree, segments_reduced(call, "ids", vary(signed(ids, count), call.axes), count))


LONG_SEGMENTS = 8192
"""Elements of a segment from which on it is reduced at the speed of memory, which no histogram is."""


SHORT_SEGMENTS, SHORT_SUMS = range(2, 128), range(4, 128)
"""Elements of segments that change too often for a histogram of sorted indices, which keeps the current bin in registers; with
fewer (``kLeastRun`` of ``cpu/hist_plan.h``) its threads update bins of their own, in place: sums and products as fast."""


def segments_pay(n: Any, count: int, name: str | None, rows: bool = False) -> bool:
    """Is a reduction by sorted ids faster than a histogram, for the operator of this name? As measured. ``rows``: elements are
    rows of numbers, which a histogram updates by vectors."""
    if not isinstance(n, int):
        return False
    average = n // max(1, count)
    if rows or name in ("argmax", "argmin"):  # a histogram's bin holds such a pair in one word
        return average >= LONG_SEGMENTS
    short = SHORT_SUMS if name in ("add", "mul") else SHORT_SEGMENTS
    return average >= LONG_SEGMENTS or average in short or name == "logaddexp"


def count_of(num_segments: Any) -> int:
    if isinstance(num_segments, (tuple, list)):
        raise TypeError(f"num_segments must be an integer, got {num_segments!r}")
    try:
        return sizes_of(num_segments)[0]
    except (TypeError, ValueError) as e:
        raise type(e)(str(e).replace("num_bins", "num_segments")) from None


def largest(ids: Any) -> int:
    if isinstance(ids, jax.core.Tracer) or ids.shape[0] == 0:
        why = "the ids are traced" if isinstance(ids, jax.core.Tracer) else "there are no ids"
        raise ValueError(f"num_segments must be given where {why}")
    return max(int(ids[-1]), -1)


def signed(index: Any, most: Any) -> Any:
    """As s32 or s64, in their order; what is larger than ``most`` may become ``most``."""
    kind, size = index.dtype.kind, index.dtype.itemsize
    if kind == "i" or size < 4:
        return index if size >= 4 else index.astype(jnp.int32)
    narrow = isinstance(most, int) and most < 2**31
    if isinstance(most, int) and most > int(jnp.iinfo(index.dtype).max):
        return index.astype(jnp.int64)
    return jnp.minimum(index, most).astype(jnp.int32 if narrow else jnp.int64)


def segments_reduced(call: Ordered, kind: str, cut: Any, count: int, of_empty: Sequence[Any] | None = None) -> list[Any]:
    """A checked call: by its kernel, or by plain XLA. ``of_empty``: what is returned for empty segments, an element for each
    segment, instead of the identity."""
    shapes = [(count, *s) for s in call.values.shapes]
    if all(0 in s for s in shapes):
        return [vary(jnp.zeros(s, d), call.axes) for s, d in zip(shapes, call.values.dtypes, strict=True)]
    neutral = identity_on_slices(call) if of_empty is None else of_empty
    if neutral is None:
        raise ValueError(f"identity: segments may be empty, and op's neutral element is not known; give identity{call.hint}")
    if call.elements.n == 0:
        return [jnp.broadcast_to(i, s) for i, s in zip(neutral, shapes, strict=True)]
    if call.operator is None or any(0 in s for s in shapes):
        ids = cut if kind == "ids" else scan_xla.ids_of(cut, call.elements.n)
        return scan_xla.segment_reduce(call.plain_operator(), call.plain_values(), ids, count, neutral)
    static = call.static("segments", segmented_by=kind, num_segments=count)
    out = bind(segments_p, static, [*call.elements.given, cut, *call.f_captured, *call.captured])
    if of_empty is not None or not call.own_identity:
        empty = _empty(kind, cut, count, call.elements.n)
        out = [jnp.where(scan_xla.like(empty, x), i, x) for i, x in zip(neutral, out, strict=True)]
    return out


def _empty(kind: str, cut: Any, count: int, n: int) -> Any:
    """Which segments have no elements."""
    if kind == "offsets":
        inside = jnp.clip(cut, 0, n)
        return inside[1:] <= inside[:-1]
    if jax.device_count() > 1 and not placed([cut]):  # a scatter's parts would have to be as many on each
        return ~by_index(cut, [jnp.ones(cut.shape, jnp.bool_)], [jnp.logical_or], count)[0]
    return jnp.ones(count, jnp.bool_).at[scan_xla.spare(cut, count)].set(False, mode="drop")
