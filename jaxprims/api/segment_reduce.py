"""``segment_reduce``: any associative operator, on any pytree; order kept, so that it need not commute."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..arguments.checks import as_array, check_index
from ..arguments.offsets import Offsets
from ..arguments.promises import promised_ascending
from ..arguments.types import ArrayLike, AxisName, Function, Operator, PyTree
from ..calls.check_ordered import check_ordered
from ..calls.kept import kept
from ..calls.segments import count_of, largest, segments_reduced, signed
from ..calls.sharded import sharded_segments
from ..primitives import devices
from ..tracing.varying import vary


def _unnumbered(arguments: dict[str, Any]) -> bool:
    """Must the ids say how many segments there are?"""
    return arguments.get("num_segments") is None and not isinstance(arguments.get("segments"), Offsets)


@kept("values", "segments", unless=_unnumbered)
def segment_reduce(
    values: PyTree,
    segments: ArrayLike | Offsets,
    op: Operator = jnp.add,
    *,
    num_segments: int | None = None,
    identity: PyTree = None,
    map: Function | None = None,
    axis_name: AxisName = None,
) -> PyTree:
    """Each segment's elements combined, in their order; ``op`` need not commute.

    Args:
      values: pytree of numbers, leaves [N, ...]; :data:`positions` stands for each element's own position.
      segments: :class:`Offsets` (row pointers, as in CSR: segment s is elements [offsets[s], offsets[s + 1])); or the elements'
        segment ids, integers [N], ascending. Elements outside all segments, and ids outside [0, num_segments), are dropped. That
        either ascends is a promise; if it is broken the result is undefined (:func:`debug_checks` tells). For ids in any order
        there are :func:`reduce_by_index` and ``segment_sum`` and its like.
      op: a :class:`Monoid` or any associative callable ``(a, b) -> c`` on slices: scalars for leaves [N]; for leaves [N, 2, 2]
        matrices.
      num_segments: for ids; default the last one + 1, which must then be concrete.
      identity: op's neutral element, what empty segments hold. Recognised operators bring their own.
      map: a function of one element (a slice of ``values``; of a tuple or list, one argument for each member if it takes
        that many), applied in the kernel; what it returns is reduced.
      axis_name: inside ``shard_map``, the mesh axis (or axes) over which the elements, and their ids, are sharded (offsets are
        those of all devices' elements). A segment may go on from one device to the next; the result is the same on every device.

    Returns:
      A pytree like ``values``, or like ``map``'s results, leaves [num_segments, ...].

    Raises:
      TypeError: values that are not numbers, ids that are not integers, an operator that changes a dtype, a shape or the
        structure. ValueError: lengths that differ, ``num_segments`` that is unknown or contradicts offsets, an identity that is
        not known.

    Cost: work O(N + num_segments) applications of ``op`` for each element of a slice, span O((N + num_segments) / T), however
    long or short the segments are; each element is read once.

    The result has the same bits on every run and for any number of threads. Sums of 16-bit floats are kept in float32.

    Source: Martín et al. 2012, IV.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.segment_reduce(jnp.array([3, 1, 4, 1, 5]), jp.Offsets(jnp.array([0, 2, 2, 5]))).tolist()
    [4, 0, 10]
    >>> jp.segment_reduce(jnp.array([3., 1., 4.]), jnp.array([0, 0, 2]), jnp.maximum, num_segments=3).tolist()
    [3.0, -inf, 4.0]
    """
    names = devices.names_of(axis_name)
    call = check_ordered(values, op, 0, identity, map, name="values", names=names, beside=segments)
    n = call.elements.n
    if isinstance(segments, Offsets):
        count = segments.offsets.shape[0] - 1
        if num_segments is not None and count_of(num_segments) != count:
            raise ValueError(f"num_segments={num_segments!r} contradicts offsets of {count} segments")
        kind, cut = "offsets", signed(segments.offsets, n * jax.lax.axis_size(names) if names else n)
    else:
        ids = as_array(segments, "segments")
        check_index(ids.dtype, "segments")
        if ids.shape != (n,):
            raise ValueError(f"segments: ids must have shape ({n},), got {ids.shape}")
        count = largest(ids) + 1 if num_segments is None else count_of(num_segments)
        kind, cut = "ids", signed(ids, count)
    promised_ascending(cut, "segments")
    cut = vary(cut, call.axes)
    leaves = sharded_segments(call, kind, cut, count, names) if names else segments_reduced(call, kind, cut, count)
    return jax.tree.unflatten(call.values.tree, leaves)
