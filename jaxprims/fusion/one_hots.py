"""One-hot arrays (``jax.nn.one_hot``, ``ids[:, None] == jnp.arange(k)``, ``where(ids == k, x, 0)`` for all k by ``vmap``): what
reduces one over its elements updates by index, and a product of one with a table reads it by index. N numbers and K positions are
N times K otherwise.

A product has zero times what is not finite for NaN. So it is only made by index where, when the program runs, all is finite.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from ..tracing import elementwise
from ..tracing.jaxprs import run_equation, variables
from ..tracing.labels import inner_axes
from .graph import Graph, with_equations
from .sites import extreme, is_number

FEWEST_POSITIONS, FEWEST_IN_PRODUCTS, LEAST_PRODUCT = 8, 16, 2**15
"""Positions from which on reductions, and products, are by index; numbers of a one-hot array that is multiplied."""

Value = Callable[[Any], Any]
"""An atom's array, from the atom."""

Made = Callable[[Value], Any]
"""An array, from those of atoms."""

_REDUCTIONS = {"reduce_sum": "add", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "mul"}


def by_index(graph: Graph) -> ClosedJaxpr | None:
    """The function with its one-hot arrays so; None if there is none."""
    if graph.with_rules or not any(e.primitive.name == "eq" for e in graph.eqns):
        return None
    found = {id(e): made for e in graph.eqns if (made := _reduced(graph, e) or _multiplied(graph, e)) is not None}
    if not found:
        return None

    def equation(eqn: JaxprEqn, operands: Sequence[Any], value: Value) -> Sequence[Any]:
        return [found[id(eqn)](value)] if id(eqn) in found else run_equation(eqn, operands)

    return with_equations(graph, equation)


def one_hot(graph: Graph) -> set[Var]:
    """The arrays of the graph that are one-hot, and what they were made of: nobody should keep them."""
    out = set[Var]()
    for eqn in graph.eqns:
        if len(eqn.outvars) != 1:
            continue
        (v,), operands = eqn.outvars, variables(eqn.invars)
        if eqn.primitive.name in _MOVES | {"convert_element_type"}:
            found = not out.isdisjoint(operands)
        else:
            found = eqn.primitive.name == "eq" and any(
                _chosen(graph, v, k, ()) for k, n in enumerate(v.aval.shape) if _is_many(n)
            )
        if found:
            out.add(v)
    return out


def _is_many(n: Any) -> bool:
    return isinstance(n, int) and n >= FEWEST_POSITIONS


@dataclasses.dataclass(frozen=True)
class _Hot:
    """An array that is one, or a number of its own, where ``axis`` is at an index, and elsewhere zero (or another number)."""

    axis: int
    index: Made  # int32, of the array's other axes; -1: nowhere
    number: Any = None  # an atom of the array's shape; None: one

    def of(self, batch: Sequence[int]) -> Made:
        """The index, behind these of the array's axes."""
        places = [k - (k > self.axis) for k in batch]
        return lambda value: jnp.moveaxis(self.index(value), places, range(len(places)))

    def array(self, value: Value, positions: int, dtype: Any) -> Any:
        """Written, and no longer seen to be one-hot."""
        index = jnp.expand_dims(self.index(value), self.axis)
        shape = [positions if k == self.axis else n for k, n in enumerate(index.shape)]
        return lax.optimization_barrier(index == lax.broadcasted_iota(np.int32, shape, self.axis)).astype(dtype)


# --- reductions -----------------------------------------------------------------------------------------------------------------


def _reduced(graph: Graph, eqn: JaxprEqn) -> Made | None:
    if eqn.primitive.name not in _REDUCTIONS:
        return None
    (x,), axes, (out,) = eqn.invars, sorted(map(int, eqn.params["axes"])), eqn.outvars
    shape, how = x.aval.shape, _REDUCTIONS[eqn.primitive.name]
    if isinstance(x, Literal) or not is_number(x, complex=how in ("add", "mul")) or x.aval.dtype == bool:
        return None
    if not all(isinstance(n, int) and n for n in shape):
        return None
    kept = [k for k in range(len(shape)) if k not in axes]
    for axis in filter(lambda k: _is_many(shape[k]), kept):
        others = [k for k in kept if k != axis]
        batch = [k for k in others if _hot(graph, x, axis, how, (k,)) is None]
        alike = tuple(k for k in others if k not in batch)
        hot = _hot(graph, x, axis, how, alike)
        if hot is None:
            continue
        free = [k for k in alike if hot.number is not None and _without(graph, hot.number, (k,)) is None]
        gone = (axis, *(k for k in alike if k not in free))
        number = _one if hot.number is None else _without(graph, hot.number, gone)
        if number is not None:
            return functools.partial(_updated, hot.index, number, how, shape, axis, (batch, axes, free), out.aval)
    return None


def _one(value: Value) -> Any:
    return jnp.ones(())


def _updated(
    index: Made, number: Made, how: str, shape: Sequence[int], axis: int, divided: Sequence[list[int]], aval: Any, value: Value
) -> Any:
    """Positions updated by the numbers at their index, of arrays of ``shape``: of axes that both have for each result (a batch),
    those that are reduced, and those that the numbers alone have."""
    batch, axes, free = divided
    dtype = _accumulated_in(how, aval.dtype)
    at, updates = _ordered(index(value), (*batch, *axes)), number(value).astype(dtype)
    into = jnp.full((shape[axis], *(shape[k] for k in free)), _identity(how, dtype), dtype)

    def one(at: Any, updates: Any) -> Any:
        return getattr(into.at[_inside(at, shape[axis])], how)(updates, mode="drop")

    if updates.ndim:
        updates = _ordered(updates, (*batch, *axes, *free))
    for _ in batch:
        one = jax.vmap(one, in_axes=(0, 0 if updates.ndim else None))
    order = (*batch, axis, *free)
    out = jnp.transpose(one(at, updates).astype(aval.dtype), [order.index(k) for k in sorted(order)])
    return lax.broadcast_in_dim(out, aval.shape, [k - sum(a < k for a in axes) for k in sorted(order)])


def _ordered(x: Any, axes: Sequence[int]) -> Any:
    """An array of these axes in ascending order, in this one."""
    return jnp.transpose(x, [sorted(axes).index(k) for k in axes])


def _accumulated_in(how: str, dtype: Any) -> Any:
    """XLA rounds what it reduces in less than f32 once, at the end, but what it updates by index each time."""
    rounds = how in ("add", "mul") and jnp.issubdtype(dtype, jnp.floating)
    return np.dtype(np.float32) if rounds and jnp.finfo(dtype).bits < 32 else dtype


def _identity(how: str, dtype: Any) -> Any:
    return int(how == "mul") if how in ("add", "mul") else extreme("least" if how == "max" else "greatest", dtype)


def _inside(index: Any, positions: int) -> Any:
    """One that is no position's is dropped, not counted from the end."""
    return jnp.where(index < 0, positions, index)


# --- products -------------------------------------------------------------------------------------------------------------------


def _multiplied(graph: Graph, eqn: JaxprEqn) -> Made | None:
    if eqn.primitive.name != "dot_general" or eqn.params["preferred_element_type"] not in (None, eqn.outvars[0].aval.dtype):
        return None
    dtype, shapes = eqn.outvars[0].aval.dtype, [v.aval.shape for v in eqn.invars]
    if any(v.aval.dtype != dtype for v in eqn.invars) or dtype.name not in ("float32", "float64", "int32"):
        return None
    if not all(isinstance(n, int) and n for shape in shapes for n in shape):
        return None
    sides = (_by_hot(graph, eqn, k) for k in (0, 1) if math.prod(shapes[k]) >= LEAST_PRODUCT)
    return next((made for made in sides if made is not None), None)


def _by_hot(graph: Graph, eqn: JaxprEqn, mine: int) -> Made | None:
    """A product of which this side is one-hot."""
    hot_side, other = eqn.invars[mine], eqn.invars[1 - mine]
    hot, second = _hot_matrix(graph, hot_side), _hot_matrix(graph, other)
    positions = 0 if hot is None else hot_side.aval.shape[hot.axis]
    if hot is None or positions < FEWEST_IN_PRODUCTS:
        return None
    (own, others), (batch, batch_of_other) = (
        (tuple(axes[mine]), tuple(axes[1 - mine])) for axes in eqn.params["dimension_numbers"]
    )
    along = [k - sum(b < k for b in batch_of_other) for k in (others[own.index(k)] for k in sorted(own))]
    adds = bool(own) and hot.axis not in (*own, *batch) and len(own) + len(batch) == hot_side.aval.ndim - 1
    ends = len(others) + len(batch) == other.aval.ndim - 1
    if own == (hot.axis,):
        one: Callable[..., Any] = functools.partial(_rows, along[0], mine)
    elif adds and second is not None and second.axis not in (*others, *batch_of_other) and ends:
        order = [sorted(along).index(k) for k in along]
        shape = [positions, other.aval.shape[second.axis]]
        count = functools.partial(_pairs, shape, other.aval.dtype, order, mine)
        return _of_batch(count, hot.of(batch), second.of(batch_of_other), len(batch))
    elif adds:
        one = functools.partial(_added, positions, along, mine)
    else:
        return None

    def moved(value: Value) -> Any:
        return jnp.moveaxis(value(other), batch_of_other, range(len(batch)))

    def guarded(value: Value) -> Any:
        def plain() -> Any:
            sides = hot.array(value, positions, hot_side.aval.dtype), value(other)
            return run_equation(eqn, sides if mine == 0 else sides[::-1])[0]

        by_index = _of_batch(one, hot.of(batch), moved, len(batch))
        if not jnp.issubdtype(other.aval.dtype, jnp.floating):
            return by_index(value)
        return lax.cond(jnp.all(jnp.isfinite(value(other))), lambda: by_index(value), plain)

    return guarded


def _of_batch(one: Callable[..., Any], index: Made, other: Made, rank: int) -> Made:
    for _ in range(rank):
        one = jax.vmap(one)
    return lambda value: one(index(value), other(value))


def _rows(along: int, mine: int, index: Any, table: Any) -> Any:
    """Those of a table, by the index."""
    table = jnp.moveaxis(table, along, 0)
    rows = table.at[_inside(index, table.shape[0])].get(mode="fill", fill_value=0)
    return rows if mine == 0 else jnp.moveaxis(rows, range(index.ndim), range(-index.ndim, 0))


def _added(positions: int, along: Sequence[int], mine: int, index: Any, rows: Any) -> Any:
    """Rows added by the index."""
    rows = jnp.moveaxis(rows, along, range(len(along)))
    into = jnp.zeros((positions, *rows.shape[len(along) :]), rows.dtype)
    out = into.at[_inside(index, positions)].add(rows, mode="drop")
    return out if mine == 0 else jnp.moveaxis(out, 0, -1)


def _pairs(shape: Sequence[int], dtype: Any, order: Sequence[int], mine: int, index: Any, other: Any) -> Any:
    """How often each pair of indices is there, of which the second has its axes in another order."""
    at = _inside(index, shape[0]), _inside(jnp.transpose(other, order), shape[1])
    counts = jnp.zeros(shape, dtype).at[at].add(1, mode="drop")
    return counts if mine == 0 else counts.T


def _hot_matrix(graph: Graph, atom: Any) -> _Hot | None:
    """Of ones; through transposes."""
    eqn = graph.made_by(atom)
    if eqn is not None and eqn.primitive.name == "transpose":
        hot, order = _hot_matrix(graph, eqn.invars[0]), eqn.params["permutation"]
        if hot is None:
            return None
        left = [k for k in order if k != hot.axis]
        places = [k - (k > hot.axis) for k in left]
        return _Hot(order.index(hot.axis), lambda value: jnp.transpose(hot.index(value), places))
    found = (_hot(graph, atom, axis, "add", ()) for axis in reversed(range(atom.aval.ndim)) if not isinstance(atom, Literal))
    return next((hot for hot in found if hot is not None and hot.number is None), None)


# --- what is one-hot ------------------------------------------------------------------------------------------------------------


def _hot(graph: Graph, atom: Any, axis: int, how: str, others: Sequence[int]) -> _Hot | None:
    """What an array is along an axis, where all but what is chosen is of no effect; the index is the same along ``others``."""
    eqn = graph.made_by(atom)
    if eqn is None:
        return None
    if eqn.primitive.name == "convert_element_type":
        (x,) = eqn.invars
        if how != "add" or isinstance(x, Literal):
            return None
        if x.aval.dtype != bool:
            hot = _hot(graph, x, axis, how, others)
            return hot if hot is not None and (hot.number is None or _is_wider(atom.aval.dtype, x.aval.dtype)) else None
        index = _chosen(graph, x, axis, others)
        return None if index is None else _Hot(axis, _full(index, x, (axis, *others)))
    if eqn.primitive.name == "select_n" and len(eqn.invars) == 3:
        which, nothing, number = eqn.invars
        if which.aval.shape == atom.aval.shape and _is_identity(graph, nothing, how, atom.aval.dtype):
            index = _chosen(graph, which, axis, others)
            if index is not None and _without(graph, number, (axis,)) is not None:
                return _Hot(axis, _full(index, atom, (axis, *others)), number)
    return None


def _is_wider(dtype: Any, than: Any) -> bool:
    floats = jnp.issubdtype(dtype, jnp.floating) and jnp.issubdtype(than, jnp.floating)
    return bool(floats and jnp.promote_types(dtype, than) == dtype)


def _full(index: Made, atom: Any, without: Sequence[int]) -> Made:
    """One number may be that of all elements."""
    shape = [n for k, n in enumerate(atom.aval.shape) if k not in without]
    return lambda value: jnp.broadcast_to(index(value), shape)


def _is_identity(graph: Graph, atom: Any, how: str, dtype: Any) -> bool:
    types = [np.dtype(dtype)]
    while (eqn := graph.made_by(atom)) is not None and eqn.primitive.name in ("broadcast_in_dim", "convert_element_type"):
        (atom,) = eqn.invars
        types.append(np.dtype(atom.aval.dtype))
    if not isinstance(atom, Literal) or any(b.kind in "iu" and a.kind not in "iub" for a, b in itertools.pairwise(types[::-1])):
        return False  # a float may be beyond an integer's range
    number = np.asarray(atom.val)
    for to in reversed(types):
        number = number.astype(to)
    return bool(np.all(number == np.asarray(_identity(how, dtype), dtype)))


def _chosen(graph: Graph, mask: Any, axis: int, others: Sequence[int]) -> Made | None:
    """The index of which a mask says where along an axis it is, without the axis and others along which all is the same."""
    eqn, without = graph.made_by(mask), (axis, *others)
    if eqn is None:
        return None
    name = eqn.primitive.name
    if name == "eq":
        for position, index in (eqn.invars, eqn.invars[::-1]):
            every = position.aval.shape[axis : axis + 1] == mask.aval.shape[axis : axis + 1]
            if every and _is_position(graph, position, axis) and jnp.issubdtype(index.aval.dtype, jnp.integer):
                made = _without(graph, index, without)
                return None if made is None else _normal(made, mask.aval.shape[axis])
    elif name == "ne" and isinstance(eqn.invars[1], Literal) and eqn.invars[1].val == 0:  # what was made a number before
        made = graph.made_by(eqn.invars[0])
        if made is not None and made.primitive.name == "convert_element_type" and made.invars[0].aval.dtype == bool:
            return _chosen(graph, made.invars[0], axis, others)
    elif name == "and" and mask.aval.dtype == bool:
        for mine, other in (eqn.invars, eqn.invars[::-1]):
            index, also = _chosen(graph, mine, axis, others), _without(graph, other, without)
            if index is not None and also is not None:
                return _if(also, index)
    elif name in _MOVES:
        (x,), size = eqn.invars[:1], mask.aval.shape[axis]
        inner = inner_axes(eqn)
        if inner is not None and axis in inner and x.aval.shape[inner[axis]] == size:
            rest = tuple(inner[k] for k in others if k in inner)
            index = _chosen(graph, x, inner[axis], rest)
            return None if index is None else _moved(eqn, inner, without, (inner[axis], *rest), index)
    return None


def _normal(index: Made, positions: int) -> Made:
    def normal(value: Value) -> Any:
        at = index(value)
        at = at if at.dtype.itemsize >= 4 else at.astype(np.int32)
        return jnp.where((at >= 0) & (at < positions), at.astype(np.int32), -1)

    return normal


def _if(also: Made, index: Made) -> Made:
    return lambda value: jnp.where(also(value), index(value), -1)


def _is_position(graph: Graph, atom: Any, axis: int) -> bool:
    """Is it the position along an axis?"""
    eqn = graph.made_by(atom)
    if eqn is None or not jnp.issubdtype(atom.aval.dtype, jnp.integer):
        return False
    if eqn.primitive.name == "iota":
        most = jnp.iinfo(atom.aval.dtype).max
        return bool(eqn.params["dimension"] == axis and eqn.params["shape"][axis] - 1 <= most)
    if eqn.primitive.name == "convert_element_type":
        narrow = atom.aval.shape[axis] - 1 > jnp.iinfo(atom.aval.dtype).max
        return not narrow and _is_position(graph, eqn.invars[0], axis)
    inner = inner_axes(eqn) if eqn.primitive.name in _MOVES else None
    if inner is None or axis not in inner or eqn.invars[0].aval.shape[inner[axis]] != atom.aval.shape[axis]:
        return False
    return _is_position(graph, eqn.invars[0], inner[axis])


_MOVES = frozenset({"broadcast_in_dim", "reshape", "squeeze", "expand_dims"})


def _without(graph: Graph, atom: Any, axes: Sequence[int]) -> Made | None:
    """An array without axes along which all is the same; None if it is not."""
    if isinstance(atom, Literal) or not atom.aval.shape:
        return lambda value: jnp.asarray(value(atom))
    if not axes:
        return lambda value: value(atom)
    eqn = graph.made_by(atom)
    if eqn is not None and eqn.primitive.name in _MOVES:
        inner = inner_axes(eqn)
        if inner is not None:
            (x,) = eqn.invars[:1]
            spread = [k for k in axes if k in inner and x.aval.shape[inner[k]] == atom.aval.shape[k]]
            made = _without(graph, x, tuple(inner[k] for k in spread))
            if made is not None:
                return _moved(eqn, inner, axes, tuple(inner[k] for k in spread), made)
    elif eqn is not None and eqn.primitive.name in elementwise.NAMES and len(eqn.outvars) == 1 and not eqn.effects:
        parts = [_without(graph, v, axes) for v in eqn.invars]
        if all(p is not None for p in parts):
            whole = tuple(n for k, n in enumerate(atom.aval.shape) if k not in axes)
            return lambda value: _elementwise(eqn, whole, [p(value) for p in parts if p is not None])
    if all(atom.aval.shape[k] == 1 for k in axes):
        return lambda value: lax.squeeze(value(atom), axes)
    return None


def _elementwise(eqn: JaxprEqn, shape: tuple[int, ...], operands: Sequence[Any]) -> Any:
    return eqn.primitive.bind(
        *(
            x if x.ndim == 0 and v.aval.ndim == 0 else jnp.broadcast_to(x, shape)
            for x, v in zip(operands, eqn.invars, strict=True)
        ),
        **eqn.params,
    )


def _moved(eqn: JaxprEqn, inner: dict[int, int], axes: Sequence[int], gone: Sequence[int], made: Made) -> Made:
    """A move of an array that has lost ``gone`` of its axes, to one without ``axes``."""
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    left = [k for k in range(len(new)) if k not in axes]
    have = [k for k in range(len(old)) if k not in gone]
    to = {v: k for k, v in inner.items()}

    def moved(value: Value) -> Any:
        x = made(value)
        if not have or x.ndim == 0:
            return jnp.broadcast_to(x.reshape(()), [new[k] for k in left])
        ones = [n for n, k in enumerate(have) if to.get(k) not in left]  # of one number
        x = lax.squeeze(x, ones)
        return lax.broadcast_in_dim(x, [new[k] for k in left], [left.index(to[k]) for k in have if to.get(k) in left])

    return moved
