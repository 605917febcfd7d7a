"""What segment functions have in common: their arguments, what is combined by segment, and what belongs to an element's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..api.genhist import genhist, reduce_by_index
from ..api.segment_reduce import segment_reduce
from ..arguments.bins import Bins
from ..arguments.checks import as_array, truth
from ..arguments.monoids import monoids
from ..arguments.offsets import Offsets
from ..arguments.promises import promised_ascending
from ..calls.segments import count_of, segments_pay
from ..primitives.ordered import segments as ordered_segments
from ..primitives.ordered.scan_xla import inside
from ..primitives.reads import rows as rows_at
from ..tracing.varying import beside
from .ops_segment import check_count, largest, mode_of, over_columns


def combined(f: Any, data: Any, segments: Any, n: int, op: Any, is_sorted: bool) -> Any:
    """What f makes of each element, combined by segment; the elements themselves where f is None."""
    if isinstance(segments, Offsets):
        return segment_reduce(data, segments, op, map=f)
    if f is None:
        return reduce_by_index(data, segments, n, op, indices_are_sorted=is_sorted)
    if is_sorted:
        promised_ascending(segments, "segment_ids")
    if is_sorted and segments_pay(segments.shape[0], n, "argmax" if op in (monoids.argmax, monoids.argmin) else "add"):
        return segment_reduce(data, segments, op, num_segments=n, map=f)
    return genhist(lambda i, *x: (i, f(*x)), (segments, *jax.tree.leaves(data)), Bins(n, op))


def by_segment(values: jax.Array, ids: jax.Array) -> jax.Array:
    """The values of these segments; for ids out of range anything: those are no mistake, so ``checkify`` is not to see them."""
    values = not_empty(values)
    return rows_at(values, jnp.where(inside(ids, values.shape[0]), ids, 0), mode="clip")


def not_empty(values: jax.Array) -> jax.Array:
    """With one more value if there may be none (a symbolic number of them may be 0): nothing could be read."""
    if isinstance(values.shape[0], int) and values.shape[0]:
        return values
    return jnp.concatenate([values, jnp.zeros((1, *values.shape[1:]), values.dtype)])


def ids_of(segments: Any, data: jax.Array) -> jax.Array:
    """Each element's segment; -1 before the first, the number of segments behind the last."""
    if not isinstance(segments, Offsets):
        return beside(segments, data)
    return beside(ordered_segments.ids_of(segments.offsets, data.shape[0], np.int32), data)


def checked(data: Any, segment_ids: Any, num_segments: Any, mode: Any, kind: type) -> tuple[jax.Array, Any, int]:
    """The arguments as arrays, the ids clipped if the mode says so. ``kind``: what the dtype must be, integers converted."""
    offsets = isinstance(segment_ids, Offsets)
    data, ids = as_array(data, "data"), segment_ids if offsets else as_array(segment_ids, "segment_ids")
    if not offsets and not jnp.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"segment_ids must be integers, got dtype {ids.dtype}")
    if not offsets and (ids.ndim != 1 or data.shape[:1] != ids.shape):
        raise ValueError(f"data must be [N, ...] and segment_ids [N], got shapes {data.shape} and {ids.shape}")
    if data.dtype == jax.dtypes.float0 or jnp.issubdtype(data.dtype, jax.dtypes.extended):
        raise TypeError(f"data must be numbers, got dtype {data.dtype}")
    if data.ndim == 0:
        raise ValueError("data must be [N, ...], got a scalar")
    if kind is np.floating and (data.dtype == bool or jnp.issubdtype(data.dtype, np.integer)):
        data = data.astype(jax.eval_shape(jnp.exp, jax.ShapeDtypeStruct((), data.dtype)).dtype)
    real = kind in (np.floating, np.generic)
    if jnp.issubdtype(data.dtype, np.complexfloating) and real:
        raise TypeError(f"data must be real, got dtype {data.dtype}")
    if offsets:
        n = ids.offsets.shape[0] - 1
        if num_segments is not None:
            check_count(num_segments, ids)
        narrow = np.dtype(ids.offsets.dtype).itemsize < 4  # the number of elements may be beyond it
        return data, Offsets(ids.offsets.astype(np.int32)) if narrow else ids, n
    if num_segments is None and isinstance(ids, jax.core.Tracer):
        jax.ops.segment_sum(data, ids)  # raises JAX's error for a traced num_segments
    if jnp.iinfo(ids.dtype).bits < 8:
        ids = ids.astype(np.int8)  # kernels read no others
    n = largest(ids) + 1 if num_segments is None else count_of(num_segments)
    return data, _clipped(ids, n, mode), n


def by_columns(
    fn: Callable[..., jax.Array], data: Any, ids: Any, num_segments: Any, is_sorted: Any, mode: Any, kind: type
) -> jax.Array:
    """``fn(data, segments, their number, are they sorted)`` of these arguments, checked; see :func:`over_columns`."""
    data, segments, n = checked(data, ids, num_segments, mode, kind)
    promised = truth(is_sorted, "indices_are_sorted")
    return over_columns(lambda d: fn(d, segments, n, promised), data)


def _clipped(ids: jax.Array, n: int, mode: Any) -> jax.Array:
    return jnp.clip(ids, 0, min(max(n - 1, 0), jnp.iinfo(ids.dtype).max)) if mode_of(mode) == "clip" else ids


def widened(dtype: Any) -> Any:
    """What halves are summed in: f32; another inexact dtype as it is."""
    return np.float32 if jnp.finfo(dtype).bits < 32 else dtype
