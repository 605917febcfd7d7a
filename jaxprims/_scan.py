"""``scan``: any associative operator, on any pytree, along any axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._bins import as_array
from ._monoid import Monoid
from ._ordered import Ordered, ordered
from .frontend.operator import identity_leaves
from .frontend.varying import vary
from .primitives import scan_xla
from .primitives.fold import Fold
from .primitives.scan import bind, scan_p


def scan(
    xs: Any,
    op: Callable[[Any, Any], Any] | Monoid = jnp.add,
    *,
    axis: int = 0,
    identity: Any = None,
    init: Any = None,
    exclusive: bool = False,
    reverse: bool = False,
    map: Callable[..., Any] | None = None,
    segment_starts: Any = None,
    axis_name: Any = None,
    in_place: bool = False,
) -> Any:
    """All prefixes combined: ``y[i] = init ⊕ x[0] ⊕ ... ⊕ x[i]``, in this order; ``op`` need not commute.

    Args:
      xs: pytree of numbers, each leaf with N elements along ``axis``; :data:`positions` stands for each element's own position.
      op: a :class:`Monoid` or any associative callable ``(a, b) -> c`` on slices, the leaves with ``axis`` removed: scalars for
        leaves [N]; for leaves [N, 2, 2], along axis 0, matrices.
      axis: which one to go along, of every leaf.
      identity: op's neutral element; only an exclusive scan without ``init`` wants one, and recognised operators bring their own.
      init: any value like op's, combined in before the first element; it broadcasts to a slice.
      exclusive: ``y[i]`` leaves out ``x[i]``: ``y[0]`` is ``init``, or the identity.
      reverse: from the last element to the first: what flipping, scanning and flipping back would give.
      map: a function of one element (a slice of ``xs``; of a tuple or list, one argument for each member if it takes that many),
        applied in the kernel; what it returns is scanned.
      segment_starts: booleans [N]; where one is true the scan starts anew (from ``init`` again). With ``reverse``, a segment's
        start is its last element, the first one that is met.
      in_place: results may take the memory of ``xs``, which saves making new one: for arrays that are donated to the jitted
        function, or not used after the scan. (If they are, XLA copies them first: slower, never wrong.)
      axis_name: inside ``shard_map``, the mesh axis (or axes) over which ``axis`` is sharded.

    Returns:
      A pytree like ``xs``, or like ``map``'s results: the prefixes, along the same axis.

    Raises:
      TypeError: leaves that are not numbers, an operator that changes a dtype, a shape or the structure, an ``init`` of another
        dtype. ValueError: lengths that differ, an axis out of range, an exclusive scan whose identity is not known.

    Cost: work O(N) applications of ``op`` a lane (up to 2 log2 of a vector's width each, where the operator is cheap), span
    O(N / T + T); each element is read once from memory and written once; workspace O(N / 16,384) states.

    The result has the same bits on every run and for any number of threads.

    Source: paper 5 (multidimensional scan on CPUs), chapter 3; look-back after Merrill and Garland.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.scan(jnp.array([3, 1, 4, 1, 5]), jnp.maximum).tolist()
    [3, 3, 4, 4, 5]
    >>> jp.scan(jnp.array([1, 2, 3]), exclusive=True, reverse=True).tolist()
    [5, 3, 0]
    """
    for name, flag in (("exclusive", exclusive), ("reverse", reverse), ("in_place", in_place)):
        if not isinstance(flag, (bool, np.bool_)):
            raise TypeError(f"{name} must be True or False, got {flag!r}")
    call = ordered(xs, op, axis, identity, map)
    flags = None if segment_starts is None else _flags(segment_starts, call)
    start = None if init is None else call.start_leaves(init)
    if axis_name is not None:
        from ._sharded_scan import sharded_scan

        return sharded_scan(call, start, flags, bool(exclusive), bool(reverse), axis_name)
    return run(call, start, flags, bool(exclusive), bool(reverse), bool(in_place))


def _flags(segment_starts: Any, call: Ordered) -> Any:
    flags = as_array(segment_starts, "segment_starts")
    if flags.dtype != jnp.bool_:
        raise TypeError(f"segment_starts must be booleans, got {flags.dtype}")
    if flags.shape != (call.elements.n,):
        raise ValueError(f"segment_starts must have shape ({call.elements.n},), got {flags.shape}")
    return vary(flags, call.axes)


def run(call: Ordered, start: Sequence[Any] | None, flags: Any, exclusive: bool, reverse: bool, in_place: bool = False) -> Any:
    """A checked call: by its kernel, or by plain XLA."""
    given = None
    if exclusive and start is None and not any(0 in s for s in call.values.shapes):
        given = identity_on_slices(call)
        if given is None:
            raise ValueError("identity is not known for this operator: an exclusive scan needs identity= or init=")
    empty = call.elements.n == 0 or any(0 in s for s in call.values.shapes)
    if call.operator is None or empty:
        values = call.plain_values()
        if empty:
            return call.restored(values, 0)
        start, neutral = (given, True) if start is None else (start, False)
        out = scan_xla.scan(
            call.plain_operator(), values, start, neutral=neutral, exclusive=exclusive, reverse=reverse, flags=flags
        )
        return call.restored(out, 0)
    if exclusive and start is None and not call.own_identity:
        start = given
    if flags is not None and start is not None:
        return _restarting_from_init(call, start, flags, exclusive, reverse)
    return call.restored(_bind(call, start, flags, exclusive, reverse, in_place), call.rank)


def _bind(call: Ordered, start: Sequence[Any] | None, flags: Any, exclusive: bool, reverse: bool, in_place: bool) -> list[Any]:
    assert call.f is not None and call.operator is not None
    fold = Fold(
        "scan",
        call.f,
        call.operator,
        len(call.captured),
        call.positions,
        call.inner_rank,
        exclusive,
        reverse,
        init=start is not None,
        in_place=in_place,
        cut="" if flags is None else "flags",
    )
    cut = [] if flags is None else [flags]
    operands = [*call.elements.given, *cut, *call.f_captured, *call.captured, *(start or [])]
    full = (1 << call.rank) - 1
    shared = len(cut) + len(call.f_captured) + len(call.captured)
    masks = (full,) * len(call.elements.given) + (0,) * shared + (full,) * len(start or [])
    return bind(scan_p, fold, operands, masks, call.rank)


def _restarting_from_init(call: Ordered, start: Sequence[Any], flags: Any, exclusive: bool, reverse: bool) -> Any:
    """init is combined into the first element of every segment beforehand; an exclusive scan's first results are init."""
    values = call.plain_values()
    begins = flags.at[-1 if reverse else 0].set(True)
    op = call.plain_operator()
    full = [jnp.broadcast_to(s, v.shape) for s, v in zip(start, values, strict=True)]
    first = op(full, values)
    begun = scan_xla.where(begins, first, values)
    tree, axis = call.values.tree, call.elements.axis
    xs = jax.tree.unflatten(tree, [jnp.moveaxis(v, 0, axis if axis >= 0 else v.ndim + axis) for v in begun])
    inner = ordered(xs, call.monoid, axis, None, None)
    out = run(inner, None, flags, False, reverse)
    if not exclusive:
        return out
    shifted = []
    for x, s in zip(jax.tree.leaves(out), full, strict=True):
        y = jnp.moveaxis(x, axis, 0)
        moved = jnp.concatenate([y[1:], y[:1]]) if reverse else jnp.concatenate([y[-1:], y[:-1]])
        shifted.append(jnp.moveaxis(scan_xla.where(begins, [s], [moved])[0], 0, axis))
    return jax.tree.unflatten(tree, shifted)


def identity_on_slices(call: Ordered) -> list[Any] | None:
    """The identity's leaves on slices: the one given, or the operator's own."""
    if call.identity is not None or call.monoid.identity is not None:
        given = call.identity if call.identity is not None else call.start_leaves(call.monoid.identity, "identity")
        return [vary(jnp.broadcast_to(i, s), call.axes) for i, s in zip(given, call.values.shapes, strict=True)]
    if call.operator is None or call.operator.identity is None:
        return None
    leaves = identity_leaves(call.operator)
    return [vary(jnp.broadcast_to(i, s), call.axes) for i, s in zip(leaves, call.values.shapes, strict=True)]
