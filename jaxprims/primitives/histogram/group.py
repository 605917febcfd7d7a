"""``group_p``: the stable counting sort by index. Operand ``[*batch, N]``; results ``[*batch, N]`` and ``[*batch, H + 1]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching

from ...specs.problems import GroupProblem
from ...targets import ffi
from ...targets.registry import register_family
from ...targets.target import Explanation, Target
from ..avals import result_aval
from ..batches import new_primitive
from ..family import Family
from ..ordered import scan_xla
from ..ordered.call import simple
from ..ordered.scan import bind, scan_p
from ..tangents import add, no_tangent
from .primitive import by_index

group_p = new_primitive("group_by_index")


def group(indices: Any, num_bins: int) -> tuple[Any, Any]:
    """order [N] and offsets [num_bins + 1] of int32 or int64 ``indices`` [N]; both of int32 if N allows, and then kernels count
    bins in it, too."""
    dtype = _dtype_of(indices.shape[0])
    if num_bins > np.iinfo(dtype).max:
        raise ValueError(f"num_bins must fit the dtype of elements' numbers, {dtype}, got {num_bins}")
    order, offsets = group_p.bind(indices, num_bins=num_bins)
    return order, offsets


@group_p.def_abstract_eval
def _abstract_eval(indices: Any, *, num_bins: int) -> list[Any]:
    *batch, n = indices.shape
    return [result_aval(indices, (*batch, m), _dtype_of(n), range(len(batch))) for m in (n, num_bins + 1)]


def _dtype_of(n: Any) -> np.dtype:
    """Of positions among n elements."""
    return np.dtype(np.int64 if isinstance(n, int) and n > 2**31 - 1 else np.int32)


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, num_bins: int) -> tuple[list[Any], list[int]]:
    return group_p.bind(jnp.moveaxis(operands[0], dims[0], 0), num_bins=num_bins), [0, 0]


batching.primitive_batchers[group_p] = _batch


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, num_bins: int) -> tuple[list[Any], list[Any]]:
    out = group_p.bind(*primals, num_bins=num_bins)
    return out, [no_tangent(x) for x in out]


ad.primitive_jvps[group_p] = _jvp


class Groups(Family):
    """Counting sorts."""

    def problem(self, target: Target, avals: Sequence[Any], **params: Any) -> GroupProblem:
        *batch, n = avals[0].shape
        return GroupProblem(None, tuple(batch), (), n, params["num_bins"], _dtype_of(n).itemsize)

    def batch(self, avals: Sequence[Any], **params: Any) -> tuple[tuple[int, ...], int]:
        rank = len(avals[0].shape) - 1
        return ((1 << rank) - 1,), rank

    def plain_one(self, *operands: Any, **params: Any) -> list[Any]:
        num_bins: int = params["num_bins"]
        n, dtype = operands[0].shape[0], _dtype_of(operands[0].shape[0])
        row = scan_xla.spare(operands[0], num_bins)
        counts = by_index(row, [jnp.ones(n, dtype)], [jnp.add], num_bins)[0]
        ends = bind(scan_p, simple("scan", add, counts.dtype), [counts])[0] if num_bins else counts
        return [jnp.argsort(row, stable=True).astype(dtype), jnp.concatenate([jnp.zeros(1, dtype), ends])]

    def unserved(self) -> tuple[str, str]:
        return "XLA's stable sort, a histogram and a scan of the counts", "GPUs sort fast"

    def summary(self, problem: Any, explanation: Explanation, **params: Any) -> str:
        return f"{problem.n} elements into {problem.num_bins} bins"


register_family(Groups("group", "group by index", group_p, ffi.GROUP))
