"""What derivative rules are made of: shifts along the axis, sums over batch axes, zeros, members of a batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import jet
from jax.extend.core import Primitive
from jax.interpreters import ad

from ..tracing.varying import axes_of, vary
from .batches import over_batch
from .held import held
from .ordered.scan_xla import like

add: Callable[..., Any] = jnp.add  # for a cache: NumPy-like functions hash, and their type does not say so
Leaves = list[Any]


def is_inexact(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)


def first_of(x: Any, reverse: bool, axis: int = 0) -> Any:
    """The element that is met first, [1, ...]."""
    at = x.shape[axis] - 1 if reverse else 0
    return jax.lax.slice_in_dim(x, at, at + 1, axis=axis)


def shifted(x: Any, first: Any, reverse: bool, axis: int = 0) -> Any:
    """At each element what the one met before it has; at the first, ``first`` [1, ...]."""
    moved = [(0, 0, 0)] * x.ndim
    moved[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
    return _with_first(jax.lax.pad(x, jnp.zeros((), x.dtype), moved), first, reverse, axis)


def _with_first(x: Any, first: Any, reverse: bool, axis: int = 0) -> Any:
    """With another element in the first one's place. Not by concatenation: XLA would gather a sharded axis for it. Nor by an
    update where there are several devices: of a batch that is a scatter, and XLA's partitioner makes one on each of them where
    they do not divide the axis (XLA 0.10)."""
    if jax.device_count() > 1 and x.ndim and x.shape[axis] != 0:
        return jnp.where(is_first(x.shape, reverse, axis), first, x)
    return jax.lax.dynamic_update_slice_in_dim(x, first, x.shape[axis] - 1 if reverse else 0, axis)


def is_first(shape: tuple[Any, ...], reverse: bool, axis: int = 0) -> Any:
    """Which element is met first."""
    at = shape[axis] - 1 if reverse else 0
    place = np.uint32(at) if isinstance(at, int) else jnp.asarray(at).astype(np.uint32)
    return jax.lax.broadcasted_iota(np.uint32, shape, axis) == place


def after(x: Any, mask: int, reverse: bool) -> Any:
    """At each element what the one met after it has; at the last, its own."""
    axis = mask.bit_count()
    return shifted(x, first_of(x, not reverse, axis), not reverse, axis)


def without_first(x: Any, flags: Any, reverse: bool, instead: Any = None) -> Any:
    """Zero (or what ``instead`` has) at each element before which there is none: the first one, and where flags are true."""
    other = zeros_of(x) if instead is None else instead
    if flags is not None:
        x = jnp.where(like(flags, x), other, x)
    return _with_first(x, first_of(other, reverse), reverse)


def summed_to(x: Any, want: int, rank: int) -> Any:
    """Sums over the batch axes, of which x has all, that the operand does not have."""
    axes = tuple(a for a in range(rank) if not want >> a & 1)
    return jnp.sum(x, axes) if axes else x


def zeros_of(x: Any) -> Any:
    """Like an array, or an aval."""
    return vary(jnp.zeros(x.shape, x.dtype), axes_of([x]))


def zeros_if_none(dot: Any, x: Any) -> Any:
    return zeros_of(x) if dot is None else dot


def instantiated(cotangents: Sequence[Any]) -> Leaves:
    """As arrays, those that are zero too."""
    return [zeros_of(c.aval) if isinstance(c, ad.Zero) else jnp.asarray(c) for c in cotangents]


def no_tangent(x: Any) -> ad.Zero:
    """The tangent of what does not move."""
    return ad.Zero(jax.typeof(x).to_tangent_aval())


def replaced(xs: Sequence[Any], places: Sequence[int], others: Sequence[Any]) -> Leaves:
    """With others in these places."""
    full = list(xs)
    for k, x in zip(places, others, strict=True):
        full[k] = x
    return full


def along(function: Callable[[Leaves], Sequence[Any]], xs: Sequence[Any], dots: Sequence[Any]) -> tuple[Leaves, Leaves]:
    """``function(xs)``, and its tangents along those of ``xs`` that are not None; of none, None for each."""
    active = [k for k, d in enumerate(dots) if d is not None]
    if not active:
        outs = list(function(list(xs)))
        return outs, [None] * len(outs)
    run = lambda *moved: list(function(replaced(xs, active, moved)))  # noqa: E731
    outs, moves = jax.jvp(run, [xs[k] for k in active], [dots[k] for k in active])
    return outs, moves


def on_members(
    fn: Callable[[Leaves, Leaves, Leaves], Leaves],
    primals: Sequence[Any],
    dots: Sequence[Any],
    outs: Sequence[Any],
    masks: Sequence[int],
    rank: int,
) -> Leaves:
    """``fn(operands, their tangents or None, results)`` for one member of the batch, on all of it."""
    active = [k for k, d in enumerate(dots) if d is not None]
    n = len(primals)

    def one(*args: Any) -> Leaves:
        mine = replaced([None] * n, active, args[n : n + len(active)])
        return fn(list(args[:n]), mine, list(args[n + len(active) :]))

    every = (*masks, *(masks[k] for k in active), *((1 << rank) - 1 for _ in outs))
    return over_batch(one, every, rank)(*primals, *(dots[k] for k in active), *outs)


def jvp_rule(primitive: Primitive, tangents_of: Callable[..., Leaves]) -> Callable[..., tuple[Leaves, Leaves]]:
    """A primitive's JVP. ``tangents_of(call, operands, their tangents or None, results)``: those of an unbatched call's inexact
    results."""

    def rule(
        primals: Sequence[Any], tangents: Sequence[Any], *, call: Any, masks: tuple[int, ...], rank: int
    ) -> tuple[Leaves, Leaves]:
        primals = [jnp.asarray(x) for x in primals]  # constants come as NumPy arrays
        if call.compares and not call.has_same_bits:
            return jvp_of(functools.partial(_apart, primitive, call, masks, rank), primals, tangents)
        if call.compares and any(not isinstance(t, ad.Zero) for t in tangents):
            primals = held(primals)
        outs = primitive.bind(*primals, call=call, masks=masks, rank=rank)
        dots = [None if isinstance(t, ad.Zero) else vary(t, axes_of([x])) for x, t in zip(primals, tangents, strict=True)]
        axes = axes_of(t for t in dots if t is not None)
        alike, made = primals, outs
        if axes - axes_of(primals):  # tangents that vary over devices, of what does not
            alike, made = [vary(x, axes) for x in primals], [vary(y, axes) for y in outs]
            dots = [None if t is None else vary(t, axes) for t in dots]
        computed = iter(on_members(functools.partial(tangents_of, call), alike, dots, made, masks, rank))
        return outs, [next(computed) if is_inexact(o.dtype) else no_tangent(o) for o in outs]

    return rule


def _apart(primitive: Primitive, call: Any, masks: tuple[int, ...], rank: int, *operands: Any) -> Leaves:
    """The call with f made before, by XLA: what is compared with the results is what they were made of, to the last bit."""
    arrays, captured = call.of_f(range(len(operands)))
    read, n = [*arrays, *captured], len(arrays)
    made = over_batch(lambda *xs: call.values(xs[:n], xs[n:]), [masks[k] for k in read], rank)(*(operands[k] for k in read))
    others = [k for k in range(len(operands)) if k not in read]
    full = ((1 << rank) - 1,) * len(made)
    return primitive.bind(
        *made,
        *(operands[k] for k in others),
        call=call.passing_on(made, rank),
        masks=(*full, *(masks[k] for k in others)),
        rank=rank,
    )


def jvp_of(function: Callable[..., Leaves], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Leaves, Leaves]:
    """A JVP as JAX's own rules make it of what is evaluated in the primitive's place."""
    primals = [jnp.asarray(x) for x in primals]
    outs, dots = along(lambda xs: function(*xs), primals, [None if isinstance(t, ad.Zero) else t for t in tangents])
    return outs, [d if is_inexact(o.dtype) else no_tangent(o) for o, d in zip(outs, dots, strict=True)]


def taylor_by(primitive: Primitive, plain: Callable[..., Leaves]) -> None:
    """A primitive's Taylor series, for ``jax.experimental.jet``: those of what does the same in JAX's own primitives."""

    def rule(primals: Sequence[Any], series: Sequence[Any], **params: Any) -> Any:
        try:
            return jet.jet(functools.partial(plain, **params), primals, series, factorial_scaled=False)
        except KeyError as e:  # a primitive of JAX's
            raise NotImplementedError(
                f"jet has no rule for {e.args[0]}, by which {params.get('call', primitive)!r} is done"
            ) from e

    jet.jet_rules[primitive] = rule
