"""One number of each row, by its position (``take_along_axis`` with one index a row, and its transpose, which adds to one): where
the position is the index. So it is a function of a row like what is around it, and rows need not be written for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal

from ..tracing.labels import REDUCTIONS
from .body import MOST_IN_ROW
from .graph import Graph
from .pays import FEWEST_IN_ROWS_AGAIN, SHORTEST_ROW_AGAIN


def picked_by_place(graph: Graph) -> dict[int, Callable[..., list[Any]]]:
    """By equation: what is done in its place, if rows are reduced before or after."""
    out: dict[int, Callable[..., list[Any]]] = {}
    for index, eqn in enumerate(graph.eqns):
        if eqn.primitive.name == "gather" and _is_one_of_each_row(eqn, eqn.outvars[0]) and _is_known_outside(eqn):
            row = eqn.invars[0]
            if not isinstance(row, Literal) and any(_reduces(e, row) for e in _among(graph, graph.needs([row]))):
                out[index] = _picked(eqn)
        elif eqn.primitive.name in ("scatter-add", "scatter_add") and _is_one_of_each_row(eqn, eqn.invars[2]):
            after = (e for k, e in enumerate(graph.eqns) if graph.ancestors[k] >> index & 1)
            if any(_reduces(e, eqn.invars[0]) for e in after):
                out[index] = _added(eqn)
    return out


def _is_one_of_each_row(eqn: JaxprEqn, window: Any) -> bool:
    """Is it about one number, of ``window`` [*rows, 1], of each row of the first operand [*rows, n]?"""
    (x, indices, *_), d = eqn.invars, eqn.params["dimension_numbers"]
    shape = x.aval.shape
    if not shape or not all(isinstance(n, int) for n in shape):
        return False
    last = len(shape) - 1
    rows = tuple(range(last))
    if eqn.primitive.name == "gather":
        along = d.offset_dims == () and d.collapsed_slice_dims == (last,) and d.start_index_map == (last,)
        along = along and d.operand_batching_dims == d.start_indices_batching_dims == rows
    else:
        along = d.update_window_dims == () and d.inserted_window_dims == (last,) and d.scatter_dims_to_operand_dims == (last,)
        along = along and d.operand_batching_dims == d.scatter_indices_batching_dims == rows
    one = (*shape[:last], 1)
    alike = along and window.aval.shape == one and indices.aval.shape == (*one, 1)
    number = jnp.issubdtype(x.aval.dtype, jnp.floating) or jnp.issubdtype(x.aval.dtype, jnp.integer)
    return alike and number and SHORTEST_ROW_AGAIN <= shape[last] <= MOST_IN_ROW and math.prod(shape) >= FEWEST_IN_ROWS_AGAIN


def _is_known_outside(eqn: JaxprEqn) -> bool:
    """Is it known what there is beyond a row's ends?"""
    return eqn.params["mode"].name in ("CLIP", "PROMISE_IN_BOUNDS") or eqn.params["fill_value"] is not None


def _among(graph: Graph, bits: int) -> list[JaxprEqn]:
    return [eqn for k, eqn in enumerate(graph.eqns) if bits >> k & 1]


def _reduces(eqn: JaxprEqn, row: Any) -> bool:
    """Is it a reduction of rows like these?"""
    last = row.aval.ndim - 1
    return eqn.primitive.name in REDUCTIONS and eqn.invars[0].aval.shape == row.aval.shape and eqn.params["axes"] == (last,)


def _here(eqn: JaxprEqn, x: Any, indices: Any) -> tuple[Any, Any]:
    """Where a row's number is the one, and whether there is one."""
    last = x.ndim - 1
    at, n = indices[..., 0], x.shape[last]
    at = at.astype(np.int32) if at.dtype.itemsize < 4 else at  # which may not hold n
    inside = (at >= 0) & (at < n)
    if eqn.params["mode"].name in ("CLIP", "PROMISE_IN_BOUNDS"):
        at, inside = jnp.clip(at, 0, n - 1), jnp.ones_like(inside)
    places = lax.broadcasted_iota(np.int32, x.shape, last)
    return (places == jnp.where(inside, at, -1).astype(np.int32)), inside


def _picked(eqn: JaxprEqn) -> Callable[..., list[Any]]:
    def found(x: Any, indices: Any) -> list[Any]:
        here, inside = _here(eqn, x, indices)
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        least = jnp.asarray(-jnp.inf if floating else jnp.iinfo(x.dtype).min, x.dtype)
        value = jnp.max(jnp.where(here, x, least), x.ndim - 1, keepdims=True)  # as it is, NaN and zeros' signs too
        outside = value if eqn.params["fill_value"] is None else jnp.asarray(eqn.params["fill_value"], x.dtype)
        return [jnp.where(inside, value, outside)]

    return found


def _added(eqn: JaxprEqn) -> Callable[..., list[Any]]:
    return lambda x, indices, more: [jnp.where(_here(eqn, x, indices)[0], x + more, x)]
