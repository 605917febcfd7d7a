"""``scan_p``: the scan as a jax primitive (de Kluijver 2024), inclusive or exclusive, either way, along one axis.
Operands: see ``call``. Results: the leaves ``[*batch, N, *inner, *element]``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching

from ...operators.operator import identity_leaves
from ...targets import ffi
from ...targets.operations import is_one_number, others_make
from ...targets.registry import register_family
from ...targets.target import Target
from ...tracing.varying import axes_of, by_partitioner, vary
from ..avals import result_aval
from ..batches import batch_shape, new_primitive, outermost, over_batch
from ..family import Instead
from . import scan_xla
from .call import OrderedCall
from .family import OrderedFamily

scan_p = new_primitive("scan_any_operator")


def bind(
    primitive: Primitive, call: OrderedCall, operands: Sequence[Any], masks: Sequence[int] | None = None, rank: int = 0
) -> list[Any]:
    """Binds a primitive of the family. ``masks``: the batch axes that each operand has; ``rank`` of them in all.

    Under ``shard_map``, what is replicated is first made to vary like the rest.
    """
    operands = [jnp.asarray(x) for x in operands]
    axes = axes_of(operands)
    first = call.num_arrays + bool(call.segmented_by)
    last = first + call.f.captured + call.captured
    operands = [x if first <= k < last else vary(x, axes) for k, x in enumerate(operands)]
    masks = tuple(masks or (0,) * len(operands))
    return by_partitioner(primitive, operands, call=call, masks=masks, rank=rank)


def result_avals(avals: Sequence[Any], call: OrderedCall, masks: Sequence[int], rank: int, steps: tuple[Any, ...]) -> list[Any]:
    """Avals of results ``[*batch, *steps, *inner, *element]``."""
    m = masks[0].bit_count()
    inner = avals[0].shape[m + 1 : m + 1 + call.inner_rank]
    batch = range(m) if masks[0] == (1 << rank) - 1 else (None,) * rank
    along = (m if call.kind == "scan" else None,) * len(steps)
    axes = (*batch, *along, *range(m + 1, m + 1 + call.inner_rank))
    return [
        result_aval(avals[0], (*batch_shape(avals, masks, rank), *steps, *inner, *shape), dtype, axes)
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
        inner = _inner_axis(dims, call, masks)
        if inner is not None:
            wider = dataclasses.replace(call, inner_rank=call.inner_rank + 1)
            out = by_partitioner(primitive, operands, call=wider, masks=masks, rank=rank)
            return out, [rank + steps + inner] * len(out)
        return outermost(primitive, operands, dims, call=call, masks=masks, rank=rank)

    return rule


def _inner_axis(dims: Sequence[Any], call: OrderedCall, masks: Sequence[int]) -> int | None:
    """Which inner axis the new one would be; None if it cannot be one."""
    n = call.num_arrays
    if dims[0] is None or call.init or call.together > 1 or any(d is not None for d in dims[n:]):
        return None
    places = {None if d is None else d - mask.bit_count() - 1 for d, mask in zip(dims[:n], masks[:n], strict=True)}
    place = places.pop()
    return place if not places and place is not None and 0 <= place <= call.inner_rank else None


batching.primitive_batchers[scan_p] = batch_rule(scan_p, 1)


class Scans(OrderedFamily):
    """Scans."""

    def is_read_by_xla(self, ctx: Any, operands: Sequence[Any], **params: Any) -> bool:
        if not params["call"].reads_a_number or not all(isinstance(n, int) for a in ctx.avals_in for n in a.shape):
            return False
        table = [x for x, a in zip(operands, ctx.avals_in, strict=True) if a.size > 1 and jnp.issubdtype(a.dtype, jnp.inexact)]
        return others_make(math.prod(ctx.avals_out[0].shape)) or any(is_one_number(ctx, x) for x in table)

    def operation(self, **params: Any) -> str | None:
        call: OrderedCall = params["call"]
        if call.reads_a_number:
            return "gather"
        return None if call.exclusive else self._known(call)

    def instead(self, target: Target, avals: Sequence[Any], in_loop: bool | None = False, **params: Any) -> Instead | None:
        if not target.writes_rows and params["call"].reads_a_number:
            return Instead(functools.partial(self.plain, **params), "plain XLA", "numbers are read by index")
        return super().instead(target, avals, in_loop, **params)

    def left_to_xla(
        self, target: Target, avals: Sequence[Any], operation: str, in_loop: bool | None = False, **params: Any
    ) -> Instead | None:
        found = super().left_to_xla(target, avals, operation, in_loop, **params)
        reverse = params["call"].reverse
        known = ("logaddexp",) if target.fuses_reductions else () if params["call"].of_dear else scan_xla.STEPS
        two = in_loop and self.problem(target, avals, **params).n <= 2  # as a window one loop, and two as pairs
        if found is None or operation not in known or two:
            return found
        if operation in scan_xla.STEPS:
            scanned = functools.partial(scan_xla.in_pairs, name=operation, reverse=reverse)
        else:
            scanned = functools.partial(jax.lax.cumlogsumexp, reverse=reverse)
        return dataclasses.replace(found, function=over_batch(lambda x: [scanned(x)], *self.batch(avals, **params)))

    def _known(self, call: OrderedCall) -> str | None:
        plain = call.passes_on and not call.init and not call.segmented_by and call.then is None
        one = len(call.operator.dtypes) == 1 and call.operator.dtypes[0].kind in "fiuV"
        return call.operator.name if plain and one and call.operator.name in scan_xla.CUMULATIVE else None

    def plain_one(self, *operands: Any, **params: Any) -> list[Any]:
        call: OrderedCall = params["call"]
        name = self._known(call)
        if name is not None and operands[0].shape[0] > 0 and not call.exclusive:
            return [scan_xla.cumulative(operands[0], name, 0, call.reverse)]
        if name is not None and operands[0].shape[0] > 0 and call.operator.identity is not None:
            first = identity_leaves(call.operator)[0]
            if np.all(first == first.reshape(-1)[0]):
                return [_moved(scan_xla.cumulative(operands[0], name, 0, call.reverse), first.reshape(-1)[0], call.reverse)]
        arrays, flags, captured, consts, init = call.split(operands)
        values = call.values(arrays, captured)
        if call.is_map:
            return values
        start, neutral = init, False
        if init is None and call.exclusive and call.operator.identity is not None:
            lanes = values[0].shape[1 : 1 + call.inner_rank]
            identity = identity_leaves(call.operator)
            start = [jnp.broadcast_to(i, (*lanes, *s)) for i, s in zip(identity, call.operator.shapes, strict=True)]
            neutral = True
        op = call.combine(consts, 1 + call.inner_rank)
        out = scan_xla.scan(op, values, start, neutral=neutral, exclusive=call.exclusive, reverse=call.reverse, flags=flags)
        return call.results_of(out, 1 + call.inner_rank)


def _moved(x: Any, first: Any, reverse: bool) -> Any:
    """One place on, behind the number ``first``: padded, which XLA makes in any loop."""
    edges = [(-1, 1, 0) if reverse else (1, -1, 0), *[(0, 0, 0)] * (x.ndim - 1)]
    return jax.lax.pad(x, vary(jnp.asarray(first, x.dtype), axes_of([x])), edges)


SCANS = Scans("scan", "scan", scan_p, ffi.SCAN)
register_family(SCANS)
