"""``scan_p``: the scan as a jax primitive (de Kluijver 2024), inclusive or exclusive, either way, along one axis.
Operands: see ``call``. Results: the leaves ``[*batch, N, *inner, *element]``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir, xla

from ..operators.operator import identity_leaves
from ..specs.ordered import OrderedSpec
from ..targets import ffi
from ..targets.cpu import plan_ordered as ordered_planning
from ..targets.registry import CPU, CUDA, Target
from ..tracing.varying import axes_of, vary
from . import scan_xla
from .avals import result_aval
from .batches import batch_shape, batched_alike, over_batch
from .ordered_call import OrderedCall, call_spec, init_dtypes, sizes_along, sizes_of

scan_p = Primitive("scan_any_operator")
scan_p.multiple_results = True
scan_p.def_impl(functools.partial(xla.apply_primitive, scan_p))


def bind(
    primitive: Primitive, call: OrderedCall, operands: Sequence[Any], masks: Sequence[int] | None = None, rank: int = 0
) -> list[Any]:
    """Binds a primitive of the family. ``masks``: the batch axes that each operand has; ``rank`` of them in all.

    Under ``shard_map``, what is replicated is first made to vary like the rest.
    """
    operands = [jnp.asarray(x) for x in operands]
    axes = axes_of(operands)
    first = call.num_arrays + bool(call.cut)
    last = first + call.f.captured + call.captured
    operands = [x if first <= k < last else vary(x, axes) for k, x in enumerate(operands)]
    return list(primitive.bind(*operands, call=call, masks=tuple(masks or (0,) * len(operands)), rank=rank))


def result_avals(avals: Sequence[Any], call: OrderedCall, masks: Sequence[int], rank: int, steps: tuple[Any, ...]) -> list[Any]:
    """Avals of results ``[*batch, *steps, *inner, *element]``."""
    m = masks[0].bit_count()
    inner = avals[0].shape[m + 1 : m + 1 + call.inner_rank]
    whole = m if masks[0] == (1 << rank) - 1 else 0
    return [
        result_aval(avals[0], (*batch_shape(avals, masks, rank), *steps, *inner, *shape), dtype, whole)
        for shape, dtype in call.results
    ]


@scan_p.def_abstract_eval
def _abstract_eval(*avals: Any, call: OrderedCall, masks: tuple[int, ...], rank: int) -> list[Any]:
    return result_avals(avals, call, masks, rank, (avals[0].shape[masks[0].bit_count()],))


def batch_rule(primitive: Primitive, steps: int) -> Callable[..., Any]:
    """vmap: a new, outermost batch axis (bit 0 of the masks); or, if every array has it among its inner axes, one more of
    those, so that nothing moves. ``steps``: axes of the results between batch and inner ones."""

    def rule(
        operands: Sequence[Any], dims: Sequence[Any], *, call: OrderedCall, masks: tuple[int, ...], rank: int
    ) -> tuple[list[Any], list[int]]:
        inner = _inner_axis(dims, call, masks, rank)
        if inner is not None:
            wider = dataclasses.replace(call, inner_rank=call.inner_rank + 1)
            out = primitive.bind(*operands, call=wider, masks=masks, rank=rank)
            return out, [rank + steps + inner] * len(out)
        moved, new = [], []
        for x, d, mask in zip(operands, dims, masks, strict=True):
            moved.append(x if d is None else jnp.moveaxis(x, d, 0))
            new.append(mask << 1 | (d is not None))
        out = primitive.bind(*moved, call=call, masks=tuple(new), rank=rank + 1)
        return out, [0] * len(out)

    return rule


def _inner_axis(dims: Sequence[Any], call: OrderedCall, masks: Sequence[int], rank: int) -> int | None:
    """Which inner axis the new one would be; None if it cannot be one."""
    n = call.num_arrays
    if dims[0] is None or call.init or any(d is not None for d in dims[n:]):
        return None
    places = {None if d is None else d - mask.bit_count() - 1 for d, mask in zip(dims[:n], masks[:n], strict=True)}
    place = places.pop()
    return place if not places and place is not None and 0 <= place <= call.inner_rank else None


batching.primitive_batchers[scan_p] = batch_rule(scan_p, 1)


# --- lowering -----------------------------------------------------------------------------------------------------------------


def _plain_one(call: OrderedCall, *operands: Any) -> list[Any]:
    arrays, flags, captured, consts, init = call.split(operands)
    values = call.values(arrays, captured)
    start, neutral = init, False
    if init is None and call.exclusive and call.operator.identity is not None:
        lanes = values[0].shape[1 : 1 + call.inner_rank]
        identity = identity_leaves(call.operator)
        start = [jnp.broadcast_to(i, (*lanes, *s)) for i, s in zip(identity, call.operator.shapes, strict=True)]
        neutral = True
    op = call.combine(consts, 1 + call.inner_rank)
    out = scan_xla.scan(op, values, start, neutral=neutral, exclusive=call.exclusive, reverse=call.reverse, flags=flags)
    return out if call.kept is None else [out[k] for k in call.kept]


def _plain(*operands: Any, call: OrderedCall, masks: tuple[int, ...], rank: int) -> list[Any]:
    return over_batch(functools.partial(_plain_one, call), masks, rank)(*operands)


def register_kernels(primitive: Primitive, name: str, family: str) -> None:
    """Lowers a primitive to a custom call of ``name`` on every platform that has kernels."""
    for target in (CPU, CUDA):
        rule = functools.partial(_lower, primitive=primitive, name=name, family=family, target=target)
        mlir.register_lowering(primitive, rule, platform=target.platform)


def _lower(
    ctx: Any,
    *operands: Any,
    call: OrderedCall,
    masks: tuple[int, ...],
    rank: int,
    primitive: Primitive,
    name: str,
    family: str,
    target: Target,
) -> Any:
    full = ((1 << rank) - 1,) * len(masks)
    if tuple(masks) != full and getattr(ctx.module_context.axis_context, "num_devices", 1) > 1:
        # XLA's partitioner splits a batch over devices only where every operand has it; the copies are split with it.
        alike = functools.partial(batched_alike, masks=masks, rank=rank)
        return mlir.lower_fun(lambda *xs: primitive.bind(*alike(xs), call=call, masks=full, rank=rank))(ctx, *operands)
    if call.init and not call.in_form:  # sums of halves start from an f32
        dtypes = init_dtypes(call)
        formed = dataclasses.replace(call, in_form=True)

        def start_in_form(*xs: Any) -> Any:
            first = len(xs) - len(dtypes)
            states = [x.astype(t) for x, t in zip(xs[first:], dtypes, strict=True)]
            return primitive.bind(*xs[:first], *states, call=formed, masks=masks, rank=rank)

        return mlir.lower_fun(start_in_form)(ctx, *operands)
    spec = call_spec(call, ctx.avals_in, masks)
    target.compile(spec, lambda: _variant(call, spec, ctx.avals_in, masks, rank))
    n, lanes = sizes_along(call, spec, ctx.avals_in, masks)
    segments = (call.num_segments,) if call.kind == "segments" else ()
    workspace = target.workspace(family, spec, batch_shape(ctx.avals_in, masks, rank), n, lanes, *segments)
    flag = {"by": call.cut == "ids"} if call.kind == "segments" else {"init": call.init}
    return ffi.lower_call(
        ctx,
        name,
        operands,
        spec,
        masks,
        rank,
        call.plan,
        workspace,
        _in_place(ctx, call),
        inner_rank=call.inner_rank,
        **flag,
    )


def planned_scan(
    call: OrderedCall, spec: OrderedSpec, avals: Sequence[Any], masks: Sequence[int], sizes: tuple[int, int, int]
) -> Any:
    """The plan of a scan of (N, rows, lanes)."""
    first = call.num_arrays + bool(call.cut)
    shared = masks[first : first + call.f.captured + call.captured]
    contiguous = not call.init and len(set(masks[:first])) == 1 and not any(shared)
    return ordered_planning.scan_plan(spec, *sizes, contiguous, forced=call.plan)


def _variant(call: OrderedCall, spec: OrderedSpec, avals: Sequence[Any], masks: Sequence[int], rank: int) -> int:
    """The kernel's variant, as far as it is known; the handler has another one compiled if it wants that."""
    sizes = sizes_of(call, spec, avals, masks, rank)
    return planned_scan(call, spec, avals, masks, sizes).variant if call.kind == "scan" and sizes is not None else 0


def _in_place(ctx: Any, call: OrderedCall) -> dict[int, int]:
    """Results that take the place of an array (which XLA copies before, if it is still needed)."""
    free = dict(enumerate(ctx.avals_in[: call.num_arrays])) if call.in_place else {}
    out: dict[int, int] = {}
    for r, aval in enumerate(ctx.avals_out):
        for k, a in free.items():
            if a.shape == aval.shape and a.dtype == aval.dtype:
                out[k] = r
                del free[k]
                break
    return out


mlir.register_lowering(scan_p, mlir.lower_fun(_plain, multiple_results=True))
register_kernels(scan_p, ffi.SCAN, "scan")
