"""The generalized histogram in plain XLA: what platforms without kernels and operators that cannot be compiled get.

Recognised operators scatter; any other one sorts by index and runs a segmented scan (Henriksen et al. 2020, listing 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from ...operators.operator import identity_leaves
from ..ordered import scan_xla
from .call import HistogramCall, Part

SCATTERS = ("add", "mul", "min", "max")


def histograms(call: HistogramCall, *operands: Any) -> list[Any]:
    """Every part of a call, unbatched."""
    arrays, captured, *_ = call.split(operands)
    n = arrays[0].shape[0]
    if call.is_map(n):
        results = call.on_all(arrays, captured)
        return [results[v] for v in call.parts[0].values]
    out: list[Any] = []
    for part, consts, dest, index, values in call.unfused(operands):
        whole = isinstance(n, int) and n > 0 and _is_reduction(call, part)
        out += of_part(part, consts, None if whole else index, values, dest)
    return out


def _is_reduction(call: HistogramCall, part: Part) -> bool:
    """Are all elements of one bin, the only one?"""
    index, names = call.f.jaxpr.outvars[part.index], part.operator.leaf_names
    known = all(scatters(*leaf) for leaf in zip(names, part.operator.dtypes, strict=True))
    return known and part.num_bins == part.updates == 1 and isinstance(index, Literal) and bool(index.val == 0)


def of_part(part: Part, consts: Sequence[Any], index: Any, values: Sequence[Any], dest: Sequence[Any] | None) -> list[Any]:
    """One part of a call."""
    op = part.operator
    identity = None if op.identity is None else identity_leaves(op)
    names = [name or "" for name in op.leaf_names]
    if all(scatters(n, v.dtype) for n, v in zip(names, values, strict=True)):
        starts = identity if dest is None else dest
        assert starts is not None
        return [scatter(index, v, s, part.num_bins, name) for name, v, s in zip(names, values, starts, strict=True)]
    return reduce_by_index(index, values, part.num_bins, lambda a, b: op.traced(consts, *a, *b), identity, dest)


def scatters(name: str | None, dtype: np.dtype) -> bool:
    """Does XLA scatter by the operator of this name?"""
    return name in SCATTERS and (dtype.kind != "c" or name == "add")


def scatter(index: Any, value: Any, start: Any, num_bins: int, name: str) -> Any:
    """``start``: what the bins hold before, or what all of them do. Sums of halves are made in float32, as kernels make them.
    ``index``: None: all values are of the only bin."""
    start = jnp.broadcast_to(start, (num_bins, *value.shape[1:]))
    if value.dtype == jnp.bool_:
        full = {"add": "max", "mul": "min"}.get(name, name)
        return scatter(index, value.astype(jnp.int8), start.astype(jnp.int8), num_bins, full).astype(jnp.bool_)
    if name == "add" and scan_xla.is_half(value.dtype):
        return scatter(index, value.astype(np.float32), start.astype(np.float32), num_bins, name).astype(value.dtype)
    if index is None:
        return scan_xla.STEPS[name](start, scan_xla.REDUCTIONS[name](value, 0)[None])
    if num_bins > jnp.iinfo(index.dtype).max:  # XLA compares them in the indices' dtype
        index = index.astype(jnp.int32)
    rows = lax.ScatterDimensionNumbers(tuple(range(1, value.ndim)), (0,), (0,))
    add = {"add": lax.scatter_add, "mul": lax.scatter_mul, "min": lax.scatter_min, "max": lax.scatter_max}[name]
    return add(start, index[:, None], value, rows, mode=lax.GatherScatterMode.FILL_OR_DROP)


def reduce_by_index(
    index: Any,
    values: Sequence[Any],
    num_bins: int,
    op: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
    identity: Sequence[Any] | None,
    dest: Sequence[Any] | None,
) -> list[Any]:
    """Any operator on one bin: a stable sort by index, then segment by segment."""
    index = scan_xla.spare(index, num_bins)
    order = jnp.argsort(index, stable=True)
    many = jax.vmap(lambda a, b: tuple(op(a, b)))
    return scan_xla.segment_reduce(many, [v[order] for v in values], index[order], num_bins, identity, dest)
