"""A checked scan: by its kernel, or by plain XLA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..arguments.checks import as_array
from ..operators.operator import identity_leaves
from ..operators.traced import Traced
from ..primitives.ordered import scan_xla
from ..primitives.ordered.scan import bind, scan_p
from ..primitives.tangents import is_first
from ..tracing.varying import axes_of, vary
from .check_ordered import check_ordered
from .ordered import Ordered


def restart_flags(segment_starts: Any, call: Ordered) -> Any:
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
            raise ValueError(f"identity is not known for this operator: an exclusive scan needs identity= or init={call.hint}")
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
    return call.restored(bind_scan(call, start, flags, exclusive, reverse, in_place), call.rank)


def bind_scan(
    call: Ordered,
    start: Sequence[Any] | None,
    flags: Any,
    exclusive: bool,
    reverse: bool,
    in_place: bool,
    wanted: tuple[int, ...] | None = None,
    then: Traced | None = None,
) -> list[Any]:
    """The leaves of a call that a kernel does, or those that are ``wanted``, or what is made of them ``then``."""
    static = call.static(
        "scan",
        exclusive=exclusive,
        reverse=reverse,
        init=start is not None,
        in_place=in_place,
        segmented_by="" if flags is None else "flags",
        wanted=wanted,
        then=then,
    )
    cut = [] if flags is None else [flags]
    operands = [*call.elements.given, *cut, *call.f_captured, *call.captured, *(start or [])]
    full = (1 << call.rank) - 1
    shared = len(cut) + len(call.f_captured) + len(call.captured)
    masks = (full,) * len(call.elements.given) + (0,) * shared + (full,) * len(start or [])
    return bind(scan_p, static, operands, masks, call.rank)


def _restarting_from_init(call: Ordered, start: Sequence[Any], flags: Any, exclusive: bool, reverse: bool) -> Any:
    """init is combined into the first element of every segment beforehand; an exclusive scan's first results are init."""
    axes = axes_of([*start, flags, *call.elements.given])
    values = [vary(v, axes) for v in call.plain_values()]
    start = [vary(s, axes) for s in start]
    begins = flags | is_first(flags.shape, reverse)
    op = call.plain_operator()
    full = [jnp.broadcast_to(s, v.shape) for s, v in zip(start, values, strict=True)]
    first = op(full, values)
    begun = scan_xla.where(begins, first, values)
    out = run(same_call(call, begun), None, flags, False, reverse)
    if not exclusive:
        return out
    shifted, axis = [], call.elements.axis
    for x, s in zip(jax.tree.leaves(out), full, strict=True):
        y = jnp.moveaxis(x, axis, 0)
        moved = jnp.concatenate([y[1:], y[:1]]) if reverse else jnp.concatenate([y[-1:], y[:-1]])
        shifted.append(jnp.moveaxis(scan_xla.where(begins, [s], [moved])[0], 0, axis))
    return jax.tree.unflatten(call.values.tree, shifted)


def same_call(call: Ordered, values: Sequence[Any]) -> Ordered:
    """The call's operator on other values, the axis first in them."""
    axis = call.elements.axis
    xs = jax.tree.unflatten(call.values.tree, [jnp.moveaxis(v, 0, axis if axis >= 0 else v.ndim + axis) for v in values])
    return check_ordered(xs, call.monoid, axis, None, None)


def identity_on_slices(call: Ordered) -> list[Any] | None:
    """The identity's leaves on slices: the one given, or the operator's own."""
    leaves: Sequence[Any]
    if call.identity is not None:
        leaves = call.identity
    elif call.monoid.identity is not None:
        leaves = call.start_leaves(call.monoid.identity, "identity")
    elif call.operator is not None and call.operator.identity is not None:
        leaves = identity_leaves(call.operator)
    else:
        return None
    return [vary(jnp.broadcast_to(i, s), call.axes) for i, s in zip(leaves, call.values.shapes, strict=True)]
