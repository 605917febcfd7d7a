"""One lane of a function on slices: a jaxpr whose leading axes are lanes, rewritten for a single lane.

Every axis of every value is labelled: a lane axis (what is there depends on that lane alone), one along which all is the same,
or an ordinary one. Values are kept without their axes of the first two kinds, so that the rewritten jaxpr is as large as one
lane. An equation that does not treat every lane alike, or that no rule says so of, is :class:`Unsupported`: what is rewritten
is proved, for all lanes and at the very sizes of the call.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from . import elementwise
from .emit import Unsupported
from .jaxprs import CALLS, IDENTITIES, REDUCED_BY, called, interpret, opened, scan_counts
from .varying import axes_of

SAME, OWN = -1, -2
"""Labels of axes that are no lane axis (those are numbered from 0): all the same along it, or an ordinary one."""


@dataclasses.dataclass(frozen=True)
class Lane:
    """A value: its shape and a label for each axis; ``data`` has the ordinary axes only."""

    data: Any
    shape: tuple[int, ...]
    labels: tuple[int, ...]

    @property
    def uniform(self) -> bool:
        """Is it the same in all lanes?"""
        return all(k < 0 for k in self.labels)

    def labelled(self, labels: Sequence[int]) -> Lane:
        """With axes that are SAME made ordinary ones where ``labels`` says OWN."""
        data, at = self.data, 0
        for n, old, new in zip(self.shape, self.labels, labels, strict=True):
            if old == SAME and new == OWN:
                data = jnp.broadcast_to(jnp.expand_dims(data, at), (*data.shape[:at], n, *data.shape[at:]))
            at += new == OWN
        kept = (new if old == SAME and new == OWN else old for old, new in zip(self.labels, labels, strict=True))
        return Lane(data, self.shape, tuple(kept))

    def own(self, *axes: int) -> Lane:
        """With these of the axes that are the same ordinary ones."""
        return self.labelled([OWN if k == SAME and a in axes else k for a, k in enumerate(self.labels)])

    def whole(self) -> Lane:
        """With all that are the same ordinary ones."""
        return self.own(*range(len(self.shape)))

    def at(self, axis: int) -> int:
        """Where an ordinary axis is in ``data``."""
        if self.labels[axis] != OWN:
            raise Unsupported("operator", "that mixes its lanes")
        return sum(k == OWN for k in self.labels[:axis])


def one_lane(closed: ClosedJaxpr, outer: tuple[int, ...]) -> ClosedJaxpr:
    """The function on one lane; its results and arguments have ``outer`` as leading axes, but for numbers, which are the same for
    all lanes. Raises Unsupported."""
    labels = tuple(SAME if n == 1 else k for k, n in enumerate(outer))
    avals = [v.aval for v in closed.jaxpr.invars]
    if any(a.shape and tuple(a.shape[: len(outer)]) != outer for a in avals) or axes_of(avals):
        raise Unsupported("operator", "that treats the axes of a slice differently")

    def on_lane(*args: Any) -> list[Any]:
        given = [
            Lane(x, tuple(a.shape), (*labels, *(OWN,) * (len(a.shape) - len(outer))) if a.shape else ())
            for x, a in zip(args, avals, strict=True)
        ]
        return [_inside(r, outer, labels) for r in evaluate(closed.jaxpr, closed.consts, given)]

    return jax.make_jaxpr(on_lane)(*(jax.ShapeDtypeStruct(a.shape[len(outer) :], a.dtype) for a in avals))


def _inside(r: Lane, outer: tuple[int, ...], labels: tuple[int, ...]) -> Any:
    """A result on one lane: its leading axes are the lanes, or are the same for all, and have gone."""
    r = r.own(*(k for k in range(len(outer), len(r.shape)) if r.labels[k] == SAME), *(k for k, n in enumerate(outer) if n == 1))
    wanted = (*(OWN if n == 1 else k for n, k in zip(outer, labels, strict=True)), *(OWN,) * (len(r.shape) - len(outer)))
    if any(k != w and not (k == SAME and w >= 0) for k, w in zip(r.labels, wanted, strict=True)):
        raise Unsupported("operator", "that mixes its lanes")
    shape = r.shape[len(outer) :]
    return r.data if jnp.shape(r.data) == shape else jnp.reshape(r.data, shape)


def evaluate(jaxpr: Jaxpr, captured: Sequence[Any], args: Sequence[Lane]) -> list[Lane]:
    return interpret(jaxpr, [*map(constant, captured)], args, equation, lambda x: constant(jnp.asarray(x.val, x.aval.dtype)))


def constant(x: Any) -> Lane:
    """What does not depend on the lane."""
    shape = tuple(jnp.shape(x))
    return Lane(x, shape, (OWN,) * len(shape))


def equation(eqn: Any, operands: list[Lane]) -> Sequence[Lane]:
    """What an equation makes of these, in one lane."""
    name = eqn.primitive.name
    inner = called(eqn) if name in CALLS else None
    if inner is not None:
        return evaluate(*inner, operands)
    if eqn.effects:
        raise Unsupported(name, "it has effects")
    if name == "stop_gradient":  # derivatives may be taken of what is made
        return [dataclasses.replace(x, data=lax.stop_gradient(x.data)) for x in operands]
    if name in IDENTITIES:
        return operands
    if name in _RULES:
        result = _RULES[name](eqn, *operands)
        return result if isinstance(result, list) else [result]
    if not all(x.uniform for x in operands):
        raise Unsupported(name, "of several lanes")
    results = _bind(eqn, *(x.whole().data for x in operands))
    return [constant(r) for r in (results if eqn.primitive.multiple_results else [results])]


def _bind(eqn: Any, *data: Any, **changed: Any) -> Any:
    return eqn.primitive.bind(*data, **{**eqn.params, **changed})


def _aligned(xs: Sequence[Lane]) -> tuple[list[Lane], tuple[int, ...]]:
    """Values of one shape (scalars aside, and axes of their own), their axes labelled alike; and the labels."""
    labels = []
    for mine in zip(*(x.labels for x in xs if x.shape), strict=True):
        found = set(mine) - {SAME}
        if len(found) > 1:
            raise Unsupported("operator", "that mixes its lanes")
        labels.append(found.pop() if found else SAME)
    return [x.labelled(labels) if x.shape else x for x in xs], tuple(labels)


def _elementwise(eqn: Any, *xs: Lane) -> Lane:
    elementwise.check_axes(eqn)
    shape = tuple(eqn.outvars[0].aval.shape)
    aligned, labels = _aligned([_stretched(x, shape, range(len(shape))) if x.shape else x for x in xs])
    return Lane(_bind(eqn, *(x.data for x in aligned)), shape, labels)


def _stretched(x: Lane, shape: tuple[int, ...], axes: Sequence[int]) -> Lane:
    """Broadcast to a shape, in which its axes have these places."""
    labels, data = [SAME] * len(shape), x.data
    for axis, to in reversed(list(enumerate(axes))):
        if x.shape[axis] == shape[to]:
            labels[to] = x.labels[axis]
        elif x.labels[axis] == OWN:
            data = jnp.squeeze(data, x.at(axis))
    return Lane(data, shape, tuple(labels))


def _broadcast_in_dim(eqn: Any, x: Lane, *dynamic: Any) -> Lane:
    return _stretched(x, tuple(eqn.params["shape"]), eqn.params["broadcast_dimensions"])


def _reshape(eqn: Any, x: Lane) -> Lane:
    if eqn.params.get("dimensions") is not None and eqn.primitive.name == "reshape":
        raise Unsupported("reshape", "with dimensions")
    shape = tuple(eqn.outvars[0].aval.shape)
    labels = [OWN] * len(shape)
    for axis, (n, label) in enumerate(zip(x.shape, x.labels, strict=True)):
        if label == OWN:
            continue
        before = math.prod(x.shape[:axis])
        there = [k for k, m in enumerate(shape) if m == n != 1 and math.prod(shape[:k]) == before and math.prod(shape) > 0]
        if there:
            labels[there[0]] = label
        elif label == SAME:
            x = x.own(axis)
        else:
            raise Unsupported(eqn.primitive.name, "that mixes lanes")
    own = [n for n, k in zip(shape, labels, strict=True) if k == OWN]
    data = x.data.reshape(own) if jnp.ndim(x.data) else lax.broadcast_in_dim(x.data, own, ())  # of a literal, too, an equation
    return Lane(data, shape, tuple(labels))


def _transpose(eqn: Any, x: Lane) -> Lane:
    axes = eqn.params["permutation"]
    data = jnp.transpose(x.data, [x.at(a) for a in axes if x.labels[a] == OWN])
    return Lane(data, tuple(x.shape[a] for a in axes), tuple(x.labels[a] for a in axes))


def _slice(eqn: Any, x: Lane) -> Lane:
    p = eqn.params
    cuts = [slice(*c) for c in zip(p["start_indices"], p["limit_indices"], p["strides"] or (1,) * len(x.shape), strict=True)]
    for n, label, cut in zip(x.shape, x.labels, cuts, strict=True):
        if label >= 0 and len(range(n)[cut]) != n:
            raise Unsupported("slice", "of the lanes")
    data = x.data[tuple(c for c, k in zip(cuts, x.labels, strict=True) if k == OWN)]
    return Lane(data, tuple(eqn.outvars[0].aval.shape), x.labels)


def _stack(eqn: Any, *xs: Lane) -> Lane:
    axis = eqn.params["axis"]
    aligned, labels = _aligned(xs)
    data = _bind(eqn, *(x.data for x in aligned), axis=sum(k == OWN for k in labels[:axis]))
    return Lane(data, tuple(eqn.outvars[0].aval.shape), (*labels[:axis], OWN, *labels[axis:]))


def _unstack(eqn: Any, x: Lane) -> list[Lane]:
    axis = eqn.params["axis"]
    x = x.own(axis)
    labels = (*x.labels[:axis], *x.labels[axis + 1 :])
    results = _bind(eqn, x.data, axis=x.at(axis))
    return [Lane(r, tuple(v.aval.shape), labels) for r, v in zip(results, eqn.outvars, strict=True)]


def _reduction(eqn: Any, x: Lane) -> Lane:
    axes = tuple(eqn.params["axes"])
    x = x.own(*axes)
    kept = [k for k in range(len(x.shape)) if k not in axes]
    data = _bind(eqn, x.data, axes=tuple(x.at(a) for a in axes))
    return Lane(data, tuple(x.shape[k] for k in kept), tuple(x.labels[k] for k in kept))


def _along(name: str, eqn: Any, *xs: Lane) -> list[Lane]:
    """Primitives that work along one axis of all, and keep it."""
    axis = eqn.params[name]
    aligned, labels = _aligned([x.own(axis) for x in xs])
    results = _bind(eqn, *(x.data for x in aligned), **{name: aligned[0].at(axis)})
    results = results if eqn.primitive.multiple_results else [results]
    return [Lane(r, tuple(v.aval.shape), labels) for r, v in zip(results, eqn.outvars, strict=True)]


def _rev(eqn: Any, x: Lane) -> Lane:
    axes = [a for a in eqn.params["dimensions"] if x.labels[a] != SAME]
    return Lane(lax.rev(x.data, [x.at(a) for a in axes]), x.shape, x.labels)


def _iota(eqn: Any) -> Lane:
    shape, axis = tuple(eqn.params["shape"]), eqn.params["dimension"]
    labels = tuple(OWN if k == axis else SAME for k in range(len(shape)))
    return Lane(lax.iota(eqn.params["dtype"], shape[axis]), shape, labels)


def _scan(eqn: Any, *xs: Lane) -> list[Lane]:
    """A loop of so many steps; a carry is on a lane axis if it is so after any step."""
    first, carries = scan_counts(eqn)
    if len(eqn.outvars) != carries or len(xs) != first + carries:
        raise Unsupported("scan", "over the lanes")
    jaxpr, captured = opened(eqn.params["jaxpr"])
    avals = [v.aval for v in jaxpr.invars[first:]]
    carry = [Lane(lax.convert_element_type(x.data, a.dtype), x.shape, x.labels) for x, a in zip(xs[first:], avals, strict=True)]
    labels: list[tuple[int, ...]] = []

    def step(state: Sequence[Any], _: Any = None) -> tuple[list[Any], None]:
        mine = [Lane(d, c.shape, c.labels) for d, c in zip(state, carry, strict=True)]
        both = [_aligned((c, r)) for c, r in zip(mine, evaluate(jaxpr, captured, [*xs[:first], *mine]), strict=True)]
        labels[:] = [k for _, k in both]
        return [r.data for (_, r), _ in both], None

    while True:
        jax.eval_shape(step, [c.data for c in carry])
        if labels == [c.labels for c in carry]:
            break
        carry = [Lane(c.labelled(k).data, c.shape, k) for c, k in zip(carry, labels, strict=True)]
    results, _ = lax.scan(step, [c.data for c in carry], length=eqn.params["length"])
    return [Lane(r, c.shape, c.labels) for r, c in zip(results, carry, strict=True)]


def _dot_general(eqn: Any, x: Lane, y: Lane) -> Lane:
    (x_sum, y_sum), (x_batch, y_batch) = eqn.params["dimension_numbers"]
    x, y = (v.own(*c) for v, c in ((x, x_sum), (y, y_sum)))
    labels, batches = [], []
    for p, q in zip(x_batch, y_batch, strict=True):
        found = {x.labels[p], y.labels[q]} - {SAME}
        if len(found) > 1:
            raise Unsupported("dot_general", "that mixes lanes")
        if found == {OWN}:
            x, y = x.own(p), y.own(q)
            batches.append((p, q))
        labels.append(found.pop() if found else SAME)
    for v, batch, contract in ((x, x_batch, x_sum), (y, y_batch, y_sum)):
        labels += [v.labels[k] for k in range(len(v.shape)) if k not in (*batch, *contract)]
    sums = tuple(x.at(a) for a in x_sum), tuple(y.at(a) for a in y_sum)
    both = tuple(x.at(p) for p, _ in batches), tuple(y.at(q) for _, q in batches)
    data = _bind(eqn, x.data, y.data, dimension_numbers=(sums, both))
    return Lane(data, tuple(eqn.outvars[0].aval.shape), tuple(labels))


def _gather(eqn: Any, x: Lane, indices: Lane) -> Lane:
    """Lanes may be axes of the window that are whole; or axes of the indices, where what is read is the same for all."""
    d, sizes, shape = eqn.params["dimension_numbers"], eqn.params["slice_sizes"], tuple(eqn.outvars[0].aval.shape)
    if d.operand_batching_dims or not (indices.uniform or x.uniform):
        raise Unsupported("gather", "of several lanes")
    x, indices = x.whole(), indices.whole()
    window = [a for a in range(len(x.shape)) if a not in d.collapsed_slice_dims]
    lanes = [a for a, k in enumerate(x.labels) if k >= 0]
    if any(a not in window or a in d.start_index_map or sizes[a] != x.shape[a] for a in lanes) or indices.labels[-1] != OWN:
        raise Unsupported("gather", "of the lanes")
    batch = iter(indices.labels)
    labels = [OWN if to in d.offset_dims else next(batch) for to in range(len(shape))]
    for a, to in zip(window, d.offset_dims, strict=True):
        labels[to] = x.labels[a]
    here = [sum(k == OWN for k in labels[:to]) for to in range(len(shape))]
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(here[to] for to in d.offset_dims if labels[to] == OWN),
        collapsed_slice_dims=tuple(x.at(a) for a in d.collapsed_slice_dims),
        start_index_map=tuple(x.at(a) for a in d.start_index_map),
    )
    kept = tuple(n for a, n in enumerate(sizes) if a not in lanes)
    return Lane(_bind(eqn, x.data, indices.data, dimension_numbers=numbers, slice_sizes=kept), shape, tuple(labels))


def _search(eqn: Any, x: Lane, *captured: Lane) -> Lane:
    """``one`` of each number, from what was captured for all (but for the table itself)."""
    if not all(c.uniform for c in captured):
        raise Unsupported("search", "in several tables")
    one = jaxpr_as_fun(eqn.params["one"])
    for _ in range(sum(k == OWN for k in x.labels)):
        one = jax.vmap(one, in_axes=(0, *(None,) * (len(captured) - 1)))
    (data,) = one(x.data, *(c.whole().data for c in captured[1:]))
    return Lane(data, x.shape, x.labels)


_RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(elementwise.NAMES, _elementwise),
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "stack": _stack,
    "unstack": _unstack,
    **dict.fromkeys((*REDUCED_BY, "argmax", "argmin"), _reduction),
    **dict.fromkeys(
        ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "split", "top_k"), functools.partial(_along, "axis")
    ),
    **dict.fromkeys(("concatenate", "sort"), functools.partial(_along, "dimension")),
    "rev": _rev,
    "iota": _iota,
    "scan": _scan,
    "dot_general": _dot_general,
    "gather": _gather,
    "search": _search,
}
