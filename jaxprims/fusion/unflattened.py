"""What is flattened on its way to updates by index (``jnp.ravel``) is not: a number of each pair is made in the loops over pairs,
of what there is for each of the two. Along one axis, all of them would have to be written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from ..tracing import elementwise
from ..tracing.jaxprs import run_equation, scatters, variables
from ..tracing.labels import REDUCTIONS
from .graph import Graph, reached, with_equations

_UPDATES = scatters("add", "mul", "min", "max")

_OF_NUMBERS = elementwise.NAMES | {"broadcast_in_dim"}

Shape = tuple[int, ...]


def unflattened(graph: Graph) -> ClosedJaxpr | None:
    """The function with such updates by the axes that there were before; None if there are none."""
    alike = _alike(graph)
    shapes = _shapes(graph, alike)
    updates = [e for e in graph.eqns if e.primitive.name in _UPDATES and _can_update(e, shapes, alike)]
    if not updates:
        return None
    wanted = _behind(graph, [v for e in updates for v in e.invars[1:]], shapes)
    numbers, whole = dict[Var, Any](), dict[Var, Any]()

    def in_shape(atom: Any, shape: Shape) -> Any:
        return whole[atom] if atom in wanted else jnp.broadcast_to(numbers[atom], shape)

    def equation(eqn: JaxprEqn, operands: Sequence[Any], value: Callable[[Any], Any]) -> Sequence[Any]:
        if eqn.outvars and eqn.outvars[0] in alike:
            mine = [numbers[v] if v.aval.ndim else value(v) for v in eqn.invars]
            spread = eqn.primitive.name == "broadcast_in_dim"
            numbers[eqn.outvars[0]] = mine[0] if spread else eqn.primitive.bind(*mine, **eqn.params)
        if any(eqn is e for e in updates):
            into, indices, values = eqn.invars
            shape = shapes[indices]
            return [eqn.primitive.bind(value(into), whole[indices], in_shape(values, shape[:-1]), **eqn.params)]
        if len(eqn.outvars) != 1 or eqn.outvars[0] not in wanted:
            return run_equation(eqn, operands)
        (out,) = eqn.outvars
        shape = shapes[out]
        if eqn.primitive.name in elementwise.NAMES:
            mine = [value(v) if v.aval.ndim == 0 else in_shape(v, shape) for v in eqn.invars]
            whole[out] = eqn.primitive.bind(*mine, **eqn.params)
        elif eqn.primitive.name == "concatenate":
            mine = [in_shape(v, (*shape[:-1], v.aval.shape[-1])) for v in eqn.invars]
            whole[out] = lax.concatenate(mine, len(shape) - 1)
        else:  # the axes are made one, or an axis of one is added
            whole[out] = lax.reshape(whole.get(eqn.invars[0], operands[0]), shape)
        return [lax.reshape(whole[out], out.aval.shape)]

    return with_equations(graph, equation, numbers, whole)


def _shapes(graph: Graph, alike: Collection[Any]) -> dict[Var, Shape]:
    """Of what is flattened, and what is elementwise of that: the shape without it."""
    out: dict[Var, Shape] = {}
    for eqn in graph.eqns:
        if len(eqn.outvars) != 1 or eqn.params.get("sharding") is not None:
            continue
        (v,), name = eqn.outvars, eqn.primitive.name
        shape = None
        if name in elementwise.NAMES:
            shape = _common([x for x in eqn.invars if not _is_number(x, alike)], out)
        elif name == "concatenate" and eqn.params["dimension"] == v.aval.ndim - 1:  # indices of several axes
            shape = _joined(eqn, out, alike)
        elif name in ("reshape", "broadcast_in_dim") and not isinstance(eqn.invars[0], Literal):
            shape = _moved(graph, eqn, out)
        if shape is not None and math.prod(shape) == v.aval.size:
            out[v] = shape
    return out


def _common(arrays: Sequence[Any], shapes: dict[Var, Shape]) -> Shape | None:
    found = {None if isinstance(x, Literal) else shapes.get(x) for x in arrays}
    return found.pop() if len(found) == 1 else None


def _joined(eqn: JaxprEqn, shapes: dict[Var, Shape], alike: Collection[Any]) -> Shape | None:
    """Of what is joined along an axis that is no part of those that were made one."""
    arrays = [x for x in eqn.invars if not _is_number(x, alike)]
    if any(isinstance(x, Literal) or x not in shapes or shapes[x][-1] != x.aval.shape[-1] for x in arrays):
        return None
    heads = {shapes[x][:-1] for x in arrays}
    return (*heads.pop(), eqn.outvars[0].aval.shape[-1]) if len(heads) == 1 else None


def _moved(graph: Graph, eqn: JaxprEqn, shapes: dict[Var, Shape]) -> Shape | None:
    (x, *sizes), new = eqn.invars, eqn.outvars[0].aval.shape
    old = x.aval.shape
    if sizes or not all(isinstance(n, int) for n in (*old, *new)):
        return None
    if x in shapes:
        added = new[len(old) :]
        at_end = eqn.params.get("broadcast_dimensions", range(len(old)))
        same = new[: len(old)] == old and tuple(at_end) == tuple(range(len(old))) and set(added) == {1}
        return (*shapes[x], *added) if same else None
    if eqn.primitive.name == "reshape" and eqn.params["dimensions"] is None and _merges(old, new):
        return old if _is_made_of_less(graph, x) else None
    return None


def _merges(old: Shape, new: Shape) -> bool:
    """Is the new shape the old one with neighbouring axes made one?"""
    left = list(old)
    for n in new:
        size = left.pop(0) if left else 0
        while size < n and left:
            size *= left.pop(0)
        if size != n:
            return False
    return not left and len(new) < len(old)


def _is_made_of_less(graph: Graph, v: Any) -> bool:
    """Is it elementwise of what is the same along an axis, or of what is reduced: of nothing that is there in its shape?"""

    def onward(x: Any) -> list[Any]:
        return graph.operands_of(x) if graph.name_of(x) in elementwise.NAMES else []

    def is_of_less(x: Any) -> bool:
        spreads = graph.name_of(x) == "broadcast_in_dim" or graph.name_of(x) in elementwise.NAMES
        return graph.name_of(x) in REDUCTIONS or (spreads and any(1 < y.aval.size < x.aval.size for y in graph.operands_of(x)))

    return any(map(is_of_less, reached(variables([v]), onward)))


def _alike(graph: Graph) -> set[Any]:
    """The arrays of which all is one number."""
    out = set[Any]()
    for eqn in graph.eqns:
        sharded = eqn.params.get("sharding") is not None
        if eqn.primitive.name in _OF_NUMBERS and not sharded and all(_is_number(v, out) for v in eqn.invars):
            out.update(v for v in eqn.outvars if v.aval.ndim)
    return out


def _is_number(atom: Any, alike: Collection[Any]) -> bool:
    return atom.aval.ndim == 0 or (not isinstance(atom, Literal) and atom in alike)


def _can_update(eqn: JaxprEqn, shapes: dict[Var, Shape], alike: Collection[Any]) -> bool:
    """Are its indices flattened, and what they update with too, numbers?"""
    _, indices, values = eqn.invars
    d = eqn.params["dimension_numbers"]
    kept = len(d.scatter_indices_batching_dims)
    if isinstance(indices, Literal) or indices not in shapes or d.update_window_dims:
        return False
    shape = shapes[indices]
    if shape[:kept] != indices.aval.shape[:kept] or d.scatter_indices_batching_dims != tuple(range(kept)):
        return False
    return _is_number(values, alike) or (not isinstance(values, Literal) and shapes.get(values) == shape[:-1])


def _behind(graph: Graph, atoms: Sequence[Any], shapes: dict[Var, Shape]) -> set[Var]:
    """What these are made of, as far as it is flattened."""
    flattened = lambda atoms: [v for v in variables(atoms) if v in shapes]  # noqa: E731
    return set(reached(flattened(atoms), lambda v: flattened(graph.operands_of(v))))
