"""``reduce`` and ``segment_reduce``: any associative operator, on any pytree; order kept, so that it need not commute."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._bins import as_array, check_index, sizes_of
from ._lanes import pass_on
from ._monoid import Monoid
from ._offsets import Offsets
from ._ordered import Ordered, ordered
from ._scan import identity_on_slices
from .frontend.operator import identity_leaves
from .frontend.varying import vary
from .primitives import scan_xla
from .primitives.fold import Fold
from .primitives.reduce import reduce_p
from .primitives.scan import bind
from .primitives.segments import segments_p


def reduce(
    xs: Any,
    op: Callable[[Any, Any], Any] | Monoid = jnp.add,
    *,
    axis: int | Sequence[int] | None = None,
    identity: Any = None,
    init: Any = None,
    map: Callable[..., Any] | None = None,
    keepdims: bool = False,
) -> Any:
    """All elements combined: ``y = init ⊕ x[0] ⊕ x[1] ⊕ ...``, in this order; ``op`` need not commute.

    Args:
      xs: pytree of numbers, each leaf with the same lengths along ``axis``; :data:`positions` stands for each element's own
        position (along several axes: the one in row-major order).
      op: a :class:`Monoid` or any associative callable ``(a, b) -> c`` on slices, the leaves with ``axis`` removed: scalars
        where all axes are reduced; for leaves [N, 2, 2], along axis 0, matrices.
      axis: which one, or a tuple of them, of every leaf; several are gone through in row-major order. None: all axes, of leaves
        of one shape.
      identity: op's neutral element; only wanted for no elements at all without ``init``, and recognised operators bring
        their own.
      init: any value like op's, combined in before the first element; it broadcasts to a slice.
      map: a function of one element (a slice of ``xs``; of a tuple or list, one argument for each member if it takes
        that many), applied in the kernel; what it returns is reduced.
      keepdims: the reduced axes stay, of length 1.

    Returns:
      A pytree like a slice of ``xs``, or like ``map``'s results.

    Raises:
      TypeError: leaves that are not numbers, an operator that changes a dtype, a shape or the structure, an ``init`` of another
        dtype. ValueError: lengths that differ, an axis out of range or named twice, no elements and no identity.

    Cost: work O(N) applications of ``op`` for each element of a slice, span O(N / T + log N); each element is read once. Axes
    with others between them are reduced one run of neighbours after the other, the last first.

    The result has the same bits on every run and for any number of threads. Sums of 16-bit floats are kept in float32.

    Source: paper 2 (reductions), section III.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.reduce(jnp.array([[3, 1, 4], [1, 5, 9]]), jnp.maximum, axis=1).tolist()
    [4, 9]
    >>> value, at = jp.reduce((jnp.array([3, 1, 4]), jp.positions), jp.monoids.argmax)
    >>> int(value), int(at)
    (4, 2)
    """
    if not isinstance(keepdims, (bool, np.bool_)):
        raise TypeError(f"keepdims must be True or False, got {keepdims!r}")
    if isinstance(axis, list):
        axis = tuple(axis)
    call = ordered(xs, op, axis, identity, map, several=True)
    start = None if init is None else call.start_leaves(init)
    leaves = _reduced(call, start)
    if keepdims:
        leaves = [jnp.expand_dims(x, call.elements.removed(x.ndim)) for x in leaves]
    return jax.tree.unflatten(call.values.tree, leaves)


def _reduced(call: Ordered, start: Sequence[Any] | None) -> list[Any]:
    """A checked call: by its kernel, or by plain XLA."""
    if all(0 in s for s in call.values.shapes):
        return [vary(jnp.zeros(s, d), call.axes) for s, d in zip(call.values.shapes, call.values.dtypes, strict=True)]
    if call.elements.n == 0:
        neutral = identity_on_slices(call) if start is None else list(start)
        if neutral is None:
            raise ValueError("identity is not known for this operator: a reduction of no elements needs identity= or init=")
        return neutral
    if call.operator is None or any(0 in s for s in call.values.shapes):
        return scan_xla.reduce(call.plain_operator(), call.plain_values(), start)
    assert call.f is not None
    if len(_runs(call.elements.axes)) > 1 and _one_pass(call):
        call.elements.moved_together()
    fold = Fold("reduce", call.f, call.operator, len(call.captured), call.positions, init=start is not None)
    operands = (call.elements.given, call.f_captured, call.captured, list(start or ()))
    return _by_runs(operands, fold=fold, axes=call.elements.axes, lanes=call.lanes)


def _one_pass(call: Ordered) -> bool:
    """Positions count along all axes at once, and what is rounded is rounded once."""
    assert call.operator is not None
    return any(call.elements.is_position) or call.operator.represent(ordered=False).finish is not None


def _runs(axes: Sequence[int]) -> list[tuple[int, int]]:
    """(first axis, number of axes) of each run of neighbouring axes, the last run first."""
    out: list[tuple[int, int]] = []
    for a in reversed(axes):
        if out and out[-1][0] == a + 1:
            out[-1] = (a, out[-1][1] + 1)
        else:
            out.append((a, 1))
    return out


@functools.partial(jax.jit, static_argnames=("fold", "axes", "lanes"), inline=True)
def _by_runs(operands: tuple[list[Any], ...], *, fold: Fold, axes: tuple[int, ...], lanes: int) -> list[Any]:
    """One run of neighbouring axes after the other, the last first, which keeps row-major order. Jitted: reshapes are free."""
    leaves, f_captured, captured, start = operands
    runs = _runs(axes)
    left = len(axes)
    for first, count in runs:
        left -= count
        last = left == 0
        leaves = [_merged(x, first, count) for x in leaves]
        step = dataclasses.replace(fold, inner_rank=lanes + left - first, init=fold.init and last)
        shared = [*f_captured, *captured]
        full = (1 << first) - 1
        masks = (full,) * len(leaves) + (0,) * len(shared) + (full,) * (len(start) * last)
        leaves = bind(reduce_p, step, [*leaves, *shared, *(start if last else ())], masks, first)
        if not last:
            fold, f_captured = _of_states(fold), []
    return leaves


def _merged(x: Any, first: int, count: int) -> Any:
    """With ``count`` axes as one."""
    before, run, behind = x.shape[:first], x.shape[first : first + count], x.shape[first + count :]
    return x.reshape(*before, math.prod(run), *behind)


def _of_states(fold: Fold) -> Fold:
    """The same operator on what it returned: no f."""
    avals = tuple(jax.ShapeDtypeStruct(s, d) for s, d in zip(fold.operator.shapes, fold.operator.dtypes, strict=True))
    return dataclasses.replace(fold, f=pass_on(avals), positions=(None,) * len(avals))


# --- segments -----------------------------------------------------------------------------------------------------------------


def segment_reduce(
    values: Any,
    segments: Any,
    op: Callable[[Any, Any], Any] | Monoid = jnp.add,
    *,
    num_segments: int | None = None,
    identity: Any = None,
    map: Callable[..., Any] | None = None,
) -> Any:
    """Each segment's elements combined, in their order; ``op`` need not commute.

    Args:
      values: pytree of numbers, leaves [N, ...]; :data:`positions` stands for each element's own position.
      segments: :class:`Offsets` (row pointers, as in CSR: segment s is elements [offsets[s], offsets[s + 1])); or the elements'
        segment ids, integers [N], ascending. Elements outside all segments, and ids outside [0, num_segments), are dropped. That
        either ascends is a promise; if it is broken the result is undefined.
      op: a :class:`Monoid` or any associative callable ``(a, b) -> c`` on slices: scalars for leaves [N]; for leaves [N, 2, 2]
        matrices.
      num_segments: for ids; default the last one + 1, which must then be concrete.
      identity: op's neutral element, what empty segments hold. Recognised operators bring their own.
      map: a function of one element (a slice of ``values``; of a tuple or list, one argument for each member if it takes
        that many), applied in the kernel; what it returns is reduced.

    Returns:
      A pytree like ``values``, or like ``map``'s results, leaves [num_segments, ...].

    Raises:
      TypeError: values that are not numbers, ids that are not integers, an operator that changes a dtype, a shape or the
        structure. ValueError: lengths that differ, ``num_segments`` that is unknown or contradicts offsets, an identity that is
        not known.

    Cost: work O(N + num_segments) applications of ``op`` for each element of a slice, span O((N + num_segments) / T), however
    long or short the segments are; each element is read once.

    The result has the same bits on every run and for any number of threads. Sums of 16-bit floats are kept in float32.

    Source: paper 2 (reductions), section IV.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.segment_reduce(jnp.array([3, 1, 4, 1, 5]), jp.Offsets(jnp.array([0, 2, 2, 5]))).tolist()
    [4, 0, 10]
    >>> jp.segment_reduce(jnp.array([3., 1., 4.]), jnp.array([0, 0, 2]), jnp.maximum, num_segments=3).tolist()
    [3.0, -inf, 4.0]
    """
    call = ordered(values, op, 0, identity, map, name="values")
    n = call.elements.n
    if isinstance(segments, Offsets):
        count = segments.offsets.shape[0] - 1
        if num_segments is not None and _count(num_segments) != count:
            raise ValueError(f"num_segments={num_segments!r} contradicts offsets of {count} segments")
        kind, cut = "offsets", _signed(segments.offsets, n)
    else:
        ids = as_array(segments, "segments")
        check_index(ids.dtype, "segments")
        if ids.shape != (n,):
            raise ValueError(f"segments: ids must have shape ({n},), got {ids.shape}")
        count = _largest(ids) + 1 if num_segments is None else _count(num_segments)
        kind, cut = "ids", _signed(ids, count)
    return jax.tree.unflatten(call.values.tree, _segments(call, kind, vary(cut, call.axes), count))


def reduce_sorted(values: Any, ids: Any, count: int, op: Any, identity: Any) -> Any:
    """What ``reduce_by_index`` returns for ids that ascend; None where a histogram is faster, or its error is wanted."""
    if count == 0:
        return None
    call = ordered(values, op, 0, identity, None, name="values")
    if call.operator is None or not segments_pay(ids.shape[0], count, call.operator.name) or identity_on_slices(call) is None:
        return None
    return jax.tree.unflatten(call.values.tree, _segments(call, "ids", vary(_signed(ids, count), call.axes), count))


LONG_SEGMENTS = 8192
"""Elements of a segment from which on it is reduced at the speed of memory, which no histogram is."""

SHORT_SEGMENTS = range(3, 64)
"""Elements of segments that change too often for a histogram of sorted indices, which keeps the current bin in registers."""


def segments_pay(n: Any, count: int, name: str | None) -> bool:
    """Is a reduction by sorted ids faster than a histogram, for the operator of this name? As measured."""
    if not isinstance(n, int):
        return False
    average = n // max(1, count)
    if name in ("argmax", "argmin"):  # a histogram's bin holds such a pair in one word
        return average >= LONG_SEGMENTS
    return average >= LONG_SEGMENTS or average in SHORT_SEGMENTS or name == "logaddexp"


def _count(num_segments: Any) -> int:
    if isinstance(num_segments, (tuple, list)):
        raise TypeError(f"num_segments must be an integer, got {num_segments!r}")
    try:
        return sizes_of(num_segments)[0]
    except (TypeError, ValueError) as e:
        raise type(e)(str(e).replace("num_bins", "num_segments")) from None


def _largest(ids: Any) -> int:
    if isinstance(ids, jax.core.Tracer) or ids.shape[0] == 0:
        why = "the ids are traced" if isinstance(ids, jax.core.Tracer) else "there are no ids"
        raise ValueError(f"num_segments must be given where {why}")
    return max(int(ids[-1]), -1)


def _signed(index: Any, most: Any) -> Any:
    """As s32 or s64, in their order; what is larger than ``most`` may become ``most``."""
    kind, size = index.dtype.kind, index.dtype.itemsize
    if kind == "i" or size < 4:
        return index if size >= 4 else index.astype(jnp.int32)
    narrow = isinstance(most, int) and most < 2**31
    if isinstance(most, int) and most > int(jnp.iinfo(index.dtype).max):
        return index.astype(jnp.int64)
    return jnp.minimum(index, most).astype(jnp.int32 if narrow else jnp.int64)


def _segments(call: Ordered, kind: str, cut: Any, count: int) -> list[Any]:
    """A checked call: by its kernel, or by plain XLA."""
    shapes = [(count, *s) for s in call.values.shapes]
    if all(0 in s for s in shapes):
        return [vary(jnp.zeros(s, d), call.axes) for s, d in zip(shapes, call.values.dtypes, strict=True)]
    neutral = identity_on_slices(call)
    if neutral is None:
        raise ValueError("identity: segments may be empty, and op's neutral element is not known; give identity")
    if call.elements.n == 0:
        return [jnp.broadcast_to(i, s) for i, s in zip(neutral, shapes, strict=True)]
    if call.operator is None or any(0 in s for s in shapes):
        ids = cut if kind == "ids" else scan_xla.ids_of(cut, call.elements.n)
        return scan_xla.segment_reduce(call.plain_operator(), call.plain_values(), ids, count, neutral)
    assert call.f is not None
    fold = Fold(
        "segments", call.f, call.operator, len(call.captured), call.positions, call.inner_rank, cut=kind, num_segments=count
    )
    out = bind(segments_p, fold, [*call.elements.given, cut, *call.f_captured, *call.captured])
    if not _is_own(neutral, call):
        empty = _empty(kind, cut, count, call.elements.n)
        out = [jnp.where(empty.reshape(count, *(1,) * i.ndim), i, x) for i, x in zip(neutral, out, strict=True)]
    return out


def _is_own(neutral: Sequence[Any], call: Ordered) -> bool:
    """Is this identity what the kernel puts into empty segments? One known only at run time or with lanes that differ is not."""
    assert call.operator is not None
    if call.operator.identity is None or any(isinstance(i, jax.core.Tracer) for i in call.identity or ()):
        return False
    own = identity_leaves(call.operator)
    return call.identity is None or all(bool(np.all(a == b)) for a, b in zip(call.identity, own, strict=True))


def _empty(kind: str, cut: Any, count: int, n: int) -> Any:
    """Which segments have no elements."""
    if kind == "offsets":
        inside = jnp.clip(cut, 0, n)
        return inside[1:] <= inside[:-1]
    at = jnp.where((cut >= 0) & (cut < count), cut, count)
    return jnp.ones(count, jnp.bool_).at[at].set(False, mode="drop")
