"""From what is wanted of a result to what is wanted of its operands, axis by axis.

A *label* says of an axis which loop goes along it (numbered from 0), or ``OWN``: it is an axis of what a loop's body computes. An
equation can be in the body of a loop where each labelled axis of its result is an axis of its operands, or all the same along it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal

from . import elementwise
from .jaxprs import CALLS, IDENTITIES, REDUCED_BY, called, opened, scan_counts
from .lanewise import OWN

Labels = tuple[int, ...]


MOVES = frozenset("broadcast_in_dim reshape squeeze expand_dims iota copy stop_gradient name".split())
"""Primitives that compute nothing, and that a loop's body has for nothing, XLA's loops too."""

NUMBER_BY_NUMBER = elementwise.NAMES | MOVES
"""What loops make of each number by itself, those of XLA's reductions too."""

REDUCTIONS = frozenset(REDUCED_BY)


def leading(loops: int, ndim: int) -> Labels:
    """Of an array whose first axes are the loops', the others its own."""
    return (*range(loops), *(OWN,) * (ndim - loops))


def own_shape(var: Any, labels: Labels) -> tuple[Any, ...]:
    """Of what a loop's body has of an array."""
    return tuple(n for n, k in zip(var.aval.shape, labels, strict=True) if k == OWN)


class Mixed(Exception):
    """A loop cannot go along this axis: the equation mixes what lies along it."""


def wanted(eqn: JaxprEqn, labels: Labels) -> list[Labels] | None:
    """Labels of each operand's axes for a result with these; None where a loop's body cannot have the equation."""
    if eqn.primitive.name not in _RULES or eqn.effects or len(eqn.outvars) != 1:
        return None
    out = [[OWN] * v.aval.ndim for v in eqn.invars]
    try:
        for axis, label in enumerate(labels):
            if label != OWN:
                for operand, there in sources(eqn, axis):
                    if out[operand][there] != OWN:
                        return None  # a diagonal
                    out[operand][there] = label
    except Mixed:
        return None
    return [tuple(x) for x in out]


Found = Sequence[tuple[int, int]]
"""(operand, its axis), of those that have the axis asked for."""


def sources(eqn: JaxprEqn, axis: int) -> Found:
    """Which of the operands' axes an axis of the result is; the result is all the same along it if none. Raises Mixed."""
    rule = _RULES.get(eqn.primitive.name)
    if rule is None:
        raise Mixed
    n = eqn.outvars[0].aval.shape[axis]
    return [(operand, there) for operand, there in rule(eqn, axis) if eqn.invars[operand].aval.shape[there] == n]


def _sources_in(jaxpr: Jaxpr, result: int, axis: int) -> Found:
    """As :func:`sources`, of a whole function: which of its arguments' axes an axis of a result is."""
    made = {v: (eqn, k) for eqn in jaxpr.eqns for k, v in enumerate(eqn.outvars)}
    arguments = {v: k for k, v in enumerate(jaxpr.invars)}
    todo, seen, found = [(jaxpr.outvars[result], axis)], set[Any](), list[tuple[int, int]]()
    while todo:
        v, a = todo.pop()
        if isinstance(v, Literal) or (v, a) in seen:
            continue
        seen.add((v, a))
        if v in arguments:
            found.append((arguments[v], a))
        elif v in made:
            eqn, k = made[v]
            through = _sources_of_several(eqn, k, a) if eqn.primitive.name in _SEVERAL else sources(eqn, a)
            todo += [(eqn.invars[operand], there) for operand, there in through]
        else:  # captured: an array that is not an operand
            raise Mixed
    return found


def _sources_of_several(eqn: Any, result: int, axis: int) -> Found:
    """Of an equation with several results, or that calls a function."""
    inner = called(eqn) if eqn.primitive.name in CALLS else None
    if inner is not None and not inner[1]:
        return _sources_in(inner[0], result, axis)
    if eqn.primitive.name != "scan":
        raise Mixed
    first, carries = scan_counts(eqn)
    if len(eqn.outvars) != carries or len(eqn.invars) != first + carries:
        raise Mixed  # it goes along an axis
    body = opened(eqn.params["jaxpr"])[0]
    along: dict[int, int] = {}  # of each carry
    found, todo = dict[tuple[int, int], None](), [(result, axis)]
    while todo:
        carry, a = todo.pop()
        if along.setdefault(carry, a) != a:
            raise Mixed
        if (first + carry, a) not in found:
            found[first + carry, a] = None
            inside = _sources_in(body, carry, a)
            found |= dict.fromkeys(x for x in inside if x[0] < first)
            todo += [(k - first, there) for k, there in inside if k >= first]
    return list(found)


_SEVERAL = CALLS | {"scan"}


def _call(eqn: Any, axis: int) -> Found:
    return _sources_of_several(eqn, 0, axis)


def _every(eqn: Any, axis: int) -> Found:
    return [(k, axis) for k, v in enumerate(eqn.invars) if v.aval.ndim]


def _elementwise(eqn: Any, axis: int) -> Found:
    if not elementwise.is_elementwise(eqn):
        raise Mixed
    return _every(eqn, axis)


def _broadcast_in_dim(eqn: Any, axis: int) -> Found:
    there = eqn.params["broadcast_dimensions"]
    return [(0, there.index(axis))] if axis in there else []


def _reshape(eqn: Any, axis: int) -> Found:
    if eqn.primitive.name == "reshape" and eqn.params.get("dimensions") is not None:
        raise Mixed
    shape, given = eqn.outvars[0].aval.shape, eqn.invars[0].aval.shape
    before = math.prod(shape[:axis])
    for k, n in enumerate(given):
        if n == shape[axis] and math.prod(given[:k]) == before:
            return [(0, k)]
    raise Mixed


def inner_axes(eqn: JaxprEqn) -> dict[int, int] | None:
    """Which of the operand's axes those of the result are, of a move that adds axes or takes away such of one number."""
    if eqn.primitive.name == "broadcast_in_dim":
        return {int(to): k for k, to in enumerate(eqn.params["broadcast_dimensions"])}
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    left, right = ([k for k, n in enumerate(shape) if n != 1] for shape in (old, new))
    turned = eqn.primitive.name == "reshape" and eqn.params.get("dimensions") is not None
    return None if turned or [old[k] for k in left] != [new[k] for k in right] else dict(zip(right, left, strict=True))


def _transpose(eqn: Any, axis: int) -> Found:
    return [(0, eqn.params["permutation"][axis])]


def _but(name: str) -> Callable[[Any, int], Found]:
    """Every axis but the one (or those) that the primitive works along."""

    def rule(eqn: Any, axis: int) -> Found:
        along = eqn.params[name]
        if axis in (along if isinstance(along, tuple) else (along,)):
            raise Mixed
        return _every(eqn, axis)

    return rule


def _reduction(eqn: Any, axis: int) -> Found:
    kept = [k for k in range(eqn.invars[0].aval.ndim) if k not in eqn.params["axes"]]
    return [(0, kept[axis])]


def _slice(eqn: Any, axis: int) -> Found:
    if eqn.outvars[0].aval.shape[axis] != eqn.invars[0].aval.shape[axis]:
        raise Mixed
    return [(0, axis)]


def _iota(eqn: Any, axis: int) -> Found:
    return []


def _dot_general(eqn: Any, axis: int) -> Found:
    sums, (x_batch, y_batch) = eqn.params["dimension_numbers"]
    if axis < len(x_batch):
        return [(0, x_batch[axis]), (1, y_batch[axis])]
    axis -= len(x_batch)
    for operand, batch in enumerate((x_batch, y_batch)):
        free = [k for k in range(eqn.invars[operand].aval.ndim) if k not in (*sums[operand], *batch)]
        if axis < len(free):
            return [(operand, free[axis])]
        axis -= len(free)
    raise Mixed


def _gather(eqn: Any, axis: int) -> Found:
    d, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    if d.operand_batching_dims:
        raise Mixed
    if axis in d.offset_dims:
        window = [k for k in range(len(sizes)) if k not in d.collapsed_slice_dims]
        there = window[d.offset_dims.index(axis)]
        if sizes[there] != eqn.invars[0].aval.shape[there]:
            raise Mixed
        return [(0, there)]
    batch = [k for k in range(eqn.outvars[0].aval.ndim) if k not in d.offset_dims]
    return [(1, batch.index(axis))]


def _search(eqn: Any, axis: int) -> Found:
    return [(0, axis)]


def _stack(eqn: Any, axis: int) -> Found:
    new = eqn.params["axis"]
    if axis == new:
        raise Mixed
    return [(k, axis - (axis > new)) for k in range(len(eqn.invars))]


_RULES: dict[str, Callable[[Any, int], Found]] = {
    **dict.fromkeys(elementwise.NAMES, _elementwise),
    **dict.fromkeys(IDENTITIES & {"copy", "copy_p", "stop_gradient", "name"}, _every),
    **dict.fromkeys(REDUCTIONS | {"argmax", "argmin"}, _reduction),
    **{f"cum{how}": _but("axis") for how in ("sum", "prod", "max", "min")},
    "jit": _call,
    "pjit": _call,
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": _but("dimension"),
    "dot_general": _dot_general,
    "expand_dims": _reshape,
    "gather": _gather,
    "iota": _iota,
    "reshape": _reshape,
    "rev": _but("dimensions"),
    "search": _search,
    "slice": _slice,
    "sort": _but("dimension"),
    "squeeze": _reshape,
    "top_k": _but("axis"),
    "stack": _stack,
    "transpose": _transpose,
}
