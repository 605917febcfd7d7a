"""``histogram_p``: the generalized histogram as a jax primitive (``genhist`` of Henriksen et al. 2020).

Operands: the arrays (those that are not positions), the captured arrays of f, those of each part's operator, and the dests,
leaf by leaf, of the parts that have them. Any operand may have any subset of the batch axes, leading; what is not batched is
not copied. Results: the leaves of each part, ``[*batch, num_bins, *bin_shape]``.

A *part* is what a kernel updates as one: a histogram of a struct of scalars or of one array-valued leaf.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import batching

from ...operators.operator import passing, simple_operator
from ...tracing.lower import Unsupported
from ...tracing.varying import axes_of, by_partitioner, vary
from ..avals import result_aval
from ..batches import batch_shape, new_primitive, outermost
from . import xla as histogram_xla
from .call import HistogramCall, Part

histogram_p = new_primitive("generalized_histogram")


def bind(call: HistogramCall, operands: Sequence[Any]) -> list[jax.Array]:
    """Binds the primitive on unbatched operands. Under ``shard_map``, what is replicated is first made to vary like the rest."""
    operands = [jnp.asarray(x) for x in operands]
    axes = axes_of(operands)
    first = call.num_arrays
    last = first + call.f.captured + sum(p.captured for p in call.parts)  # f and the operators make their captured arrays vary
    operands = [x if first <= k < last else vary(x, axes) for k, x in enumerate(operands)]
    return by_partitioner(histogram_p, operands, call=call, masks=(0,) * len(operands), rank=0)


def by_index(
    index: Any,
    values: Sequence[Any],
    ops: Sequence[Callable[..., Any]],
    num_bins: int,
    starts: Sequence[Any] | None = None,
    deterministic: bool = False,
) -> list[jax.Array]:
    """The values [N, ...] that share an index combined, each leaf by a function of ``jax.numpy`` that has an identity, from
    ``starts`` where they are given: in one pass."""
    index = narrowed(index, num_bins)
    try:
        operators = [simple_operator(op, v.shape[1:], v.dtype) for op, v in zip(ops, values, strict=True)]
        f = passing(tuple((x.shape[1:], x.dtype) for x in (index, *values)))
    except Unsupported:
        f = None
    if f is None or any(0 in v.shape[1:] for v in values):
        return [_by_xla(op, index, v, num_bins, s) for op, v, s in zip(ops, values, starts or [None] * len(values), strict=True)]
    parts = tuple(Part(num_bins, op, 0, 0, (k + 1,), 1, starts is not None) for k, op in enumerate(operators))
    call = HistogramCall(f, (None,) * (1 + len(values)), parts, deterministic=deterministic)
    return bind(call, [index, *values, *(starts or ())])


def narrowed(index: Any, num_bins: int) -> Any:
    """Indices of 64 bits in 32, where bins are few enough."""
    if index.dtype.itemsize == 8 and num_bins < 2**31 - 1:
        return jnp.where((index >= 0) & (index < num_bins), index, -1).astype(jnp.int32)
    return index


def _by_xla(op: Callable[..., Any], index: Any, value: Any, num_bins: int, start: Any) -> Any:
    name = {"add": "add", "multiply": "mul", "minimum": "min", "maximum": "max"}[op.__name__]
    return histogram_xla.scatter(index, value, np.array(name == "mul", value.dtype) if start is None else start, num_bins, name)


@histogram_p.def_abstract_eval
def _abstract_eval(*avals: Any, call: HistogramCall, masks: tuple[int, ...], rank: int) -> list[Any]:
    batch = batch_shape(avals, masks, rank)
    like = next((k for k, m in enumerate(masks) if m == (1 << rank) - 1), 0)
    axes = range(rank) if masks[like] == (1 << rank) - 1 else ()
    return [
        result_aval(avals[like], (*batch, p.num_bins, *shape), dtype, axes)
        for p in call.parts
        for shape, dtype in zip(p.operator.shapes, p.operator.dtypes, strict=True)
    ]


batching.primitive_batchers[histogram_p] = functools.partial(outermost, histogram_p)
