"""``group_p``: the stable counting sort by index. Operand ``[*batch, N]``; results ``[*batch, N]`` and ``[*batch, H + 1]``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from ..targets import ffi
from .avals import result_aval
from .histogram import by_index
from .ordered_call import simple
from .scan import bind, scan_p
from .tangents import add

group_p = Primitive("group_by_index")
group_p.multiple_results = True
group_p.def_impl(functools.partial(xla.apply_primitive, group_p))


def group(indices: Any, num_bins: int) -> tuple[Any, Any]:
    """order [N] and offsets [num_bins + 1] of int32 or int64 ``indices`` [N]; both of int32 if N allows."""
    order, offsets = group_p.bind(indices, num_bins=num_bins)
    return order, offsets


@group_p.def_abstract_eval
def _abstract_eval(indices: Any, *, num_bins: int) -> list[Any]:
    *batch, n = indices.shape
    dtype = np.dtype(np.int64 if isinstance(n, int) and n > 2**31 - 1 else np.int32)
    return [result_aval(indices, (*batch, m), dtype, len(batch)) for m in (n, num_bins + 1)]


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, num_bins: int) -> tuple[list[Any], list[int]]:
    return group_p.bind(jnp.moveaxis(operands[0], dims[0], 0), num_bins=num_bins), [0, 0]


batching.primitive_batchers[group_p] = _batch


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, num_bins: int) -> tuple[list[Any], list[Any]]:
    out = group_p.bind(*primals, num_bins=num_bins)
    return out, [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in out]


ad.primitive_jvps[group_p] = _jvp


def _plain(indices: Any, *, num_bins: int) -> list[Any]:
    n = indices.shape[-1]
    dtype = np.int64 if isinstance(n, int) and n > 2**31 - 1 else np.int32
    spare = jnp.where((indices >= 0) & (indices < num_bins), indices, num_bins)

    def one(row: Any) -> tuple[Any, Any]:
        counts = by_index(row, [jnp.ones(n, dtype)], [jnp.add], num_bins)[0]
        ends = bind(scan_p, simple("scan", add, counts.dtype), [counts])[0] if num_bins else counts
        return jnp.argsort(row, stable=True).astype(dtype), jnp.concatenate([jnp.zeros(1, dtype), ends])

    for _ in indices.shape[:-1]:
        one = jax.vmap(one)
    return list(one(spare))


def _lower_cpu(ctx: Any, indices: Any, *, num_bins: int) -> Any:
    results = jax.ffi.ffi_lowering(ffi.GROUP)(ctx, indices)
    rank = len(ctx.avals_in[0].shape) - 1
    if rank:
        ffi.shard_batch(results, [rank + 1], [(1 << rank) - 1], rank, [rank + 1, rank + 1])
    return results


mlir.register_lowering(group_p, mlir.lower_fun(_plain, multiple_results=True))
mlir.register_lowering(group_p, _lower_cpu, platform="cpu")
