"""Batch axes: leading, and an operand may lack any of them. Bit a of its mask says whether it has axis a of ``rank``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import xla

from ..tracing.varying import by_partitioner


def batch_shape(avals: Sequence[Any], masks: Sequence[int], rank: int) -> tuple[Any, ...]:
    """The sizes of all batch axes."""
    sizes: dict[int, Any] = {}
    for aval, mask in zip(avals, masks, strict=True):
        sizes.update(zip([a for a in range(rank) if mask >> a & 1], aval.shape, strict=False))
    return tuple(sizes[a] for a in range(rank))


def over_batch(fn: Callable[..., Any], masks: Sequence[int], rank: int) -> Callable[..., Any]:
    """``fn``, written for one member of the batch, on operands of which each has the batch axes that its mask names."""
    for axis in reversed(range(rank)):
        fn = jax.vmap(fn, in_axes=tuple(0 if mask >> axis & 1 else None for mask in masks))
    return fn


def batched_alike(operands: Sequence[Any], masks: Sequence[int], rank: int) -> list[Any]:
    """Operands that all have all batch axes."""
    sizes = batch_shape([jax.typeof(x) for x in operands], masks, rank)
    out = []
    for x, mask in zip(operands, masks, strict=True):
        element = x.shape[mask.bit_count() :]
        ones = tuple(size if mask >> a & 1 else 1 for a, size in enumerate(sizes))
        out.append(jnp.broadcast_to(x.reshape(*ones, *element), (*sizes, *element)))
    return out


def new_primitive(name: str) -> Primitive:
    """One with several results, which runs by itself as it does under jit."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(functools.partial(xla.apply_primitive, primitive))
    return primitive


def batch_axes_first(operands: Sequence[Any], dims: Sequence[Any]) -> list[Any]:
    """vmap's operands with its axis, where they have it, in front."""
    return [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True)]


def members(operands: Sequence[Any], dims: Sequence[Any]) -> Any:
    """How many vmap goes over."""
    return next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)


def outermost(
    primitive: Primitive, operands: Sequence[Any], dims: Sequence[Any], *, masks: Sequence[int], rank: int, **params: Any
) -> tuple[list[Any], list[int]]:
    """The batching rule: vmap's axis is a new, outermost batch axis, bit 0 of the masks."""
    new = tuple(mask << 1 | (d is not None) for mask, d in zip(masks, dims, strict=True))
    out = by_partitioner(primitive, batch_axes_first(operands, dims), masks=new, rank=rank + 1, **params)
    return out, [0] * len(out)
