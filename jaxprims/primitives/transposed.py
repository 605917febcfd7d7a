"""``transposed_p``: the transpose of a call as one call, which several devices divide as they do the call itself.

A transpose is several calls with something between them: a stencil's looks at a few cells beyond each edge, which are others
within. One by one they would be divided badly. As one call, each device transposes what it does of the call, collectives too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..tracing.varying import axes_of, sharded_axes
from . import divided
from .batches import batch_axes_first, members, new_primitive
from .tangents import jvp_of, taylor_by
from .transposition import pulled_back

transposed_p = new_primitive("transposed")

Rule = Callable[..., list[Any]]
"""``rule(cotangents, *operands, **params)``, as of any primitive; what it gives for what is transposed are arrays."""

Rooms = tuple[Sequence[divided.Factors], Mapping[str, divided.Room]]


@dataclasses.dataclass(frozen=True)
class Form:
    """Of a transpose: what it is the transpose of, by which rule. ``zeros``: avals of the cotangents that are zero, None for
    those that are given; ``linear``: likewise of the operands that it is for."""

    rule: Rule
    primitive: Primitive
    zeros: tuple[Any, ...]
    linear: tuple[Any, ...]
    params: tuple[tuple[str, Any], ...]

    def whole(self, *args: Any) -> list[Any]:
        """The transposes, from the cotangents and the operands that are known."""
        rest = iter(args)
        cts = [next(rest) if zero is None else ad.Zero(zero) for zero in self.zeros]
        xs = [next(rest) if aval is None else ad.UndefinedPrimal(aval) for aval in self.linear]
        return [x for x, aval in zip(self.rule(cts, *xs, **dict(self.params)), self.linear, strict=True) if aval is not None]


def transposed(rule: Rule, primitive: Primitive, cotangents: Sequence[Any], operands: Sequence[Any], **params: Any) -> list[Any]:
    """What ``rule`` gives, by a call of its own where there are several devices."""
    args = [c for c in cotangents if not isinstance(c, ad.Zero)]
    none = not args
    args += [x for x in operands if not ad.is_undefined_primal(x)]
    if none or jax.device_count() == 1 or axes_of(args) or any(map(sharded_axes, args)):
        return rule(cotangents, *operands, **params)
    zeros = tuple(c.aval if isinstance(c, ad.Zero) else None for c in cotangents)
    linear = tuple(x.aval if ad.is_undefined_primal(x) else None for x in operands)
    made = iter(transposed_p.bind(*args, form=Form(rule, primitive, zeros, linear, tuple(params.items()))))
    return [None if aval is None else next(made) for aval in linear]


@transposed_p.def_abstract_eval
def _abstract_eval(*avals: Any, form: Form) -> list[Any]:
    return [aval for aval in form.linear if aval is not None]


def layout(avals: Sequence[Any], form: Form) -> tuple[divided.Layout, Rooms]:
    """The call's, the other way round; and where cotangents are to be among those of all that devices make (0 for others)."""
    given = [k for k, zero in enumerate(form.zeros) if zero is None]
    moved = [k for k, aval in enumerate(form.linear) if aval is not None]
    known = iter(avals[len(given) :])
    every = [next(known) if aval is None else aval for aval in form.linear]
    forward = divided.layouts[form.primitive](every, **dict(form.params))
    rooms: Rooms = [forward.results[k] for k in given], forward.windows

    def on_devices(axes: dict[str, Any], *parts: Any) -> list[Any]:
        whole = {f: room for f, room in forward.windows.items() if not axes.get(f)}  # the call makes those wanted alone
        parts = (*divided.taken(parts[: len(given)], rooms[0], whole), *parts[len(given) :])

        def call(*xs: Any) -> list[Any]:
            known, linear = iter(parts[len(given) :]), iter(xs)
            results = forward.on_devices(axes, *(next(known) if aval is None else next(linear) for aval in form.linear))
            return [results[k] for k in given]

        mine = {f: n for x, factors in zip(parts, rooms[0], strict=False) for f, n in zip(factors, x.shape, strict=True)}

        def part(k: int) -> Any:
            sizes = [
                mine[f] if f is not None and axes.get(f) else n for f, n in zip(forward.operands[k], every[k].shape, strict=True)
            ]
            return jax.ShapeDtypeStruct(sizes, every[k].dtype)

        out = []
        for k, ct in zip(moved, jax.linear_transpose(call, *map(part, moved))(list(parts[: len(given)])), strict=True):
            others = tuple(name for f, names in axes.items() if f not in forward.operands[k] for name in names)
            out.append(jax.lax.psum(ct, others) if others else ct)
        return out

    factors = (*rooms[0], *(forward.operands[k] for k, aval in enumerate(form.linear) if aval is None))
    results, fills = tuple(forward.operands[k] for k in moved), (0,) * len(factors)
    return divided.Layout(factors, results, on_devices, forward.communication, fills, filled="g"), rooms


def _lower(ctx: Any, *args: Any, form: Form) -> Any:
    count = divided.devices_of(ctx)
    if count == 1:
        return mlir.lower_fun(form.whole)(ctx, *args)
    found, (factors, windows) = layout(ctx.avals_in, form)
    n = len(factors)

    def before(xs: Sequence[Any]) -> tuple[Any, ...]:
        return (*divided.placed(xs[:n], factors, windows, (0,) * n), *xs[n:])

    whole = lambda *xs: tuple(form.whole(*divided.taken(xs[:n], factors, windows), *xs[n:]))  # noqa: E731
    return divided.lower(ctx, args, found, whole, count, before)


def _batch(args: Sequence[Any], dims: Sequence[Any], *, form: Form) -> tuple[list[Any], list[int]]:
    """A new, outermost batch axis, of all cotangents and all that is transposed."""
    size = members(args, dims)
    params, count = dict(form.params), form.zeros.count(None)
    known = iter(dims[count:])

    def wider(avals: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(None if a is None else jax.core.ShapedArray((size, *a.shape), a.dtype) for a in avals)

    of_operands = [next(known) if aval is None else 0 for aval in form.linear]
    masks = tuple(mask << 1 | (d is not None) for mask, d in zip(params["masks"], of_operands, strict=True))
    moved = batch_axes_first(args, dims)
    cts = [jnp.broadcast_to(x, (size, *x.shape)) if d is None else x for x, d in zip(moved[:count], dims, strict=False)]
    params |= {"masks": masks, "rank": params["rank"] + 1}
    new = dataclasses.replace(form, zeros=wider(form.zeros), linear=wider(form.linear), params=tuple(params.items()))
    out = transposed_p.bind(*cts, *moved[count:], form=new)
    return out, [0] * len(out)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, form: Form) -> Any:
    return jvp_of(form.whole, primals, tangents)


def _transpose(cotangents: Sequence[Any], *args: Any, form: Form) -> list[Any]:
    return pulled_back(cotangents, args, lambda xs: form.whole(*xs))


mlir.register_lowering(transposed_p, _lower)
batching.primitive_batchers[transposed_p] = _batch
ad.primitive_jvps[transposed_p] = _jvp
ad.primitive_transposes[transposed_p] = _transpose
taylor_by(transposed_p, lambda *args, form: form.whole(*args))
