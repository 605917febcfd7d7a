"""One number of each row, by its position (``take_along_axis`` with one index a row, or ``x[arange, index]``, and the transpose,
which adds to one). Of what is made number by number, that number alone is made, of those that are read there; what cannot be
read, and what is added to, is where the position is the index. So rows need not be written for it. (A number that is compared
with its row's extreme is read: made alone it would be rounded otherwise.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from ..tracing import elementwise
from ..tracing.jaxprs import run_equation, scatters
from ..tracing.labels import REDUCTIONS
from .body import IN_ROWS, MOST_IN_ROW
from .compared import compared, source
from .graph import Graph, with_equations
from .pays import FEWEST_IN_ROWS_AGAIN
from .sites import extreme, is_filled_with


def added_by_place(graph: Graph) -> dict[int, Callable[..., list[Any]]]:
    """By equation: what is done in place of an addition to one number of each row, if rows are reduced after it, or a loop over
    all numbers combines it with others."""
    out: dict[int, Callable[..., list[Any]]] = {}
    for index, eqn in enumerate(graph.eqns):
        if eqn.primitive.name in scatters("add") and _is_one_of_each_row(graph, eqn, eqn.invars[2]):
            after = [e for k, e in enumerate(graph.eqns) if graph.ancestors[k] >> index & 1]
            combined = any(elementwise.is_elementwise(e) and eqn.outvars[0] in e.invars for e in after)
            if combined or any(_reduces(e, eqn.invars[0]) for e in after):
                out[index] = _added(eqn)
    return out


def picked_first(graph: Graph) -> ClosedJaxpr | None:
    """The function with one number of each row made alone, where rows are reduced before it is; None if there is none such."""
    picks = {k for k, eqn in enumerate(graph.eqns) if eqn.primitive.name == "gather" and _is_of_reduced_rows(graph, eqn)}
    for var, _, compares, _ in compared(graph) if picks else ():  # it is to have the bits of the number that was compared
        picks = {k for k in picks if source(graph, graph.eqns[k].invars[0]) is not var or not graph.ancestors[compares] >> k & 1}
    if not picks:
        return None

    def equation(eqn: JaxprEqn, operands: Sequence[Any], value: Callable[[Any], Any]) -> Sequence[Any]:
        is_one = any(eqn is graph.eqns[k] for k in picks)
        return [_picked(graph, eqn, value)] if is_one else run_equation(eqn, operands)

    return with_equations(graph, equation)


def _is_of_reduced_rows(graph: Graph, eqn: JaxprEqn) -> bool:
    row = eqn.invars[0]
    if not _is_one_of_each_row(graph, eqn, eqn.outvars[0]) or not _is_known_outside(eqn) or isinstance(row, Literal):
        return False
    return any(_reduces(graph.eqns[k], row) for k in graph.needed([row]))


def _is_one_of_each_row(graph: Graph, eqn: JaxprEqn, window: Any) -> bool:
    """Is it about one number, of ``window`` [*rows, 1], of each row of the first operand [*rows, n]? Or [rows], of [rows, n]."""
    (x, indices, *_), d = eqn.invars, eqn.params["dimension_numbers"]
    shape = x.aval.shape
    if not shape or not all(isinstance(n, int) for n in shape):
        return False
    last = len(shape) - 1
    counted = last == 1 and _is_counted(graph, indices)
    axes, rows = ((0, 1), ()) if counted else ((last,), tuple(range(last)))
    if eqn.primitive.name == "gather":
        along = d.offset_dims == () and d.collapsed_slice_dims == axes and d.start_index_map == axes
        along = along and d.operand_batching_dims == d.start_indices_batching_dims == rows
    else:
        along = d.update_window_dims == () and d.inserted_window_dims == axes and d.scatter_dims_to_operand_dims == axes
        along = along and d.operand_batching_dims == d.scatter_indices_batching_dims == rows
    one = shape[:1] if counted else (*shape[:last], 1)
    alike = along and window.aval.shape == one and indices.aval.shape == (*one, len(axes))
    number = jnp.issubdtype(x.aval.dtype, jnp.floating) or jnp.issubdtype(x.aval.dtype, jnp.integer)
    return alike and number and 1 < shape[last] <= MOST_IN_ROW and math.prod(shape) >= FEWEST_IN_ROWS_AGAIN


def _is_counted(graph: Graph, indices: Any) -> bool:
    """Are these pairs of a row's number and another index?"""
    eqn = graph.made_by(indices)
    pairs = eqn is not None and eqn.primitive.name == "concatenate" and len(eqn.invars) == 2 and indices.aval.shape[1:] == (2,)
    return eqn is not None and pairs and eqn.params["dimension"] == 1 and _counts(graph, eqn.invars[0])


def _counts(graph: Graph, var: Any) -> bool:
    """Is it 0, 1, 2, ... along its first axis, or that where it is not negative?"""
    eqn = graph.made_by(var)
    if eqn is None:
        return False
    if eqn.primitive.name == "select_n":
        below, count = graph.made_by(eqn.invars[0]), eqn.invars[1]
        if below is None or below.primitive.name != "lt" or below.invars[0] is not count:
            return False
        return is_filled_with(graph, below.invars[1], 0) and _counts(graph, count)
    if eqn.primitive.name in ("broadcast_in_dim", "reshape", "expand_dims"):  # with axes of one more
        x = eqn.invars[0]
        return x.aval.shape[:1] == var.aval.shape[:1] and x.aval.size == var.aval.size and _counts(graph, x)
    return bool(eqn.primitive.name == "iota" and eqn.params["dimension"] == 0)


def _is_known_outside(eqn: JaxprEqn) -> bool:
    """Is it known what there is beyond a row's ends?"""
    return eqn.params["mode"].name in ("CLIP", "PROMISE_IN_BOUNDS") or eqn.params["fill_value"] is not None


def _reduces(eqn: JaxprEqn, row: Any) -> bool:
    """Is it a reduction of rows like these?"""
    last = row.aval.ndim - 1
    return eqn.primitive.name in REDUCTIONS and eqn.invars[0].aval.shape == row.aval.shape and eqn.params["axes"] == (last,)


def _position(eqn: JaxprEqn, indices: Any) -> tuple[Any, Any]:
    """A number's position in its row, -1 if there is none, and whether there is one. Reads are clipped, updates if it is said."""
    *rows, n = eqn.invars[0].aval.shape
    at = indices[..., -1].reshape(*rows, 1)
    at = at.astype(np.int32) if at.dtype.itemsize < 4 else at  # which may not hold n
    inside = (at >= 0) & (at < n)
    clipped = ("CLIP", "PROMISE_IN_BOUNDS") if eqn.primitive.name == "gather" else ("CLIP",)
    if eqn.params["mode"].name in clipped:
        at, inside = jnp.clip(at, 0, n - 1), jnp.ones_like(inside)
    return jnp.where(inside, at, -1).astype(np.int32), inside


def _is_here(x: Any, at: Any) -> Any:
    return lax.broadcasted_iota(np.int32, x.shape, x.ndim - 1) == at


def _picked(graph: Graph, eqn: JaxprEqn, value: Callable[[Any], Any]) -> Any:
    """One number of each row, made of those at its place."""
    row, n = eqn.invars[0], eqn.invars[0].aval.shape[-1]
    at, inside = _position(eqn, value(eqn.invars[1]))
    known: dict[Any, Any] = {}

    def one(atom: Any) -> Any:
        if isinstance(atom, Literal) or atom.aval.shape[-1:] != (n,):  # the same along the row
            return jnp.asarray(value(atom), atom.aval.dtype)
        if atom not in known:
            known[atom] = made(atom)
        return known[atom]

    def made(var: Any) -> Any:
        maker = graph.made_by(var)
        if maker is not None and elementwise.is_elementwise(maker):
            return maker.primitive.bind(*map(one, maker.invars), **maker.params)
        if maker is not None and maker.primitive.name == "broadcast_in_dim":
            x, axes = maker.invars[0], maker.params["broadcast_dimensions"]
            if x.aval.ndim == 0 or axes[-1] < var.aval.ndim - 1 or x.aval.shape[-1] == 1:
                return lax.broadcast_in_dim(value(x), (*var.aval.shape[:-1], 1), axes)
        elif maker is not None and maker.primitive.name in IN_ROWS:
            return _by_place(value(var), at)
        return jnp.take_along_axis(value(var), jnp.maximum(at, 0), var.aval.ndim - 1, mode="promise_in_bounds")

    fill = eqn.params["fill_value"]
    out = one(row) if fill is None else jnp.where(inside, one(row), jnp.asarray(fill, row.aval.dtype))
    return out.reshape(eqn.outvars[0].aval.shape)


def _by_place(x: Any, at: Any) -> Any:
    """As it is, NaN and zeros' signs too."""
    least = jnp.asarray(extreme("least", x.dtype), x.dtype)
    return jnp.max(jnp.where(_is_here(x, at), x, least), x.ndim - 1, keepdims=True)


def _added(eqn: JaxprEqn) -> Callable[..., list[Any]]:
    def added(x: Any, indices: Any, more: Any) -> list[Any]:
        at, _ = _position(eqn, indices)
        return [jnp.where(_is_here(x, at), x + more.reshape(at.shape), x)]

    return added
