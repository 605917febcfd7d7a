"""Sums by index of what f makes, differentiated without writing out what it makes.

The tangent of such a sum is the sum, by the same index, of f's tangents: one kernel again. It is linear, and its transpose goes
element by element: each gathers its bin's cotangent and pulls it back through f. What f read of a captured array gets its
cotangent by a sum, too, by the index that it read at. So a graph network's messages are nowhere written, forwards or backwards.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jax.interpreters import ad

from ..ir.folds import rolled
from ..operators.operator import make_traced, simple_operator, slots_of
from ..tracing.lower import Unsupported, hoist, to_program
from ..tracing.varying import axes_of, element_aval, vary
from .batches import over_batch
from .histogram import bind, by_index
from .histogram_call import HistogramCall, Part, can_fuse
from .ordered_call import OrderedCall
from .scan import bind as bind_ordered
from .scan import scan_p
from .tangents import Leaves, add, is_inexact, summed_to
from .transposition import pulled_back

FEWEST = 2**15
"""Numbers of all elements' values from which on kernels pay: below, XLA's own loops are done as soon."""

MOST = 4096
"""Numbers of an element that f is still traced for."""


def is_sum(call: HistogramCall) -> bool:
    """Is every part a sum?"""
    return all(p.captured == 0 and all(g.kind == "add" for g in p.operator.derivative_groups) for p in call.parts)


# --- forwards -------------------------------------------------------------------------------------------------------------------


def tangents(call: HistogramCall, operands: Leaves, dots: Leaves) -> Leaves | None:
    """The tangents of an unbatched call's results, all inexact, by one kernel; None where there is none, or it would not pay.
    ``dots``: the operands' tangents or None."""
    arrays, captured, *_ = call.split(operands)
    array_dots, captured_dots, _, dest_dots = call.split(dots)
    rows = bool(captured) and any(p.operator.lanes > 1 for p in call.parts)
    reads = rows or any(d is not None for d in captured_dots)  # else f's results cost XLA no more than their tangents
    moved = any(d is not None for d in (*array_dots, *captured_dots))
    inexact = all(is_inexact(d) for p in call.parts for d in p.operator.dtypes)
    if not (is_sum(call) and call.f.jaxpr.eqns and reads and moved and inexact):
        return None
    n, wide = arrays[0].shape[0], sum(math.prod(s) * p.updates for p in call.parts for s in p.operator.shapes)
    if not call.plans and isinstance(n, int) and n * wide < FEWEST:
        return None
    if axes_of(operands):  # inside shard_map captured arrays are made to vary in f: the transpose of that is between devices
        return None

    def of_element(*xs: Any) -> Leaves:
        elements, rest = list(xs[: len(call.positions)]), iter(xs[len(call.positions) :])
        given = iter(array_dots)
        element_dots = [next(rest) if p is None and next(given) is not None else None for p in call.positions]
        primals, every = [*captured, *elements], [*captured_dots, *element_dots]
        which = [k for k, d in enumerate(every) if d is not None]

        def run(*changed: Any) -> Leaves:
            full = list(primals)
            for k, x in zip(which, changed, strict=True):
                full[k] = x
            return call.f(full[: len(captured)], *full[len(captured) :])

        results, moves = jax.jvp(run, tuple(primals[k] for k in which), tuple(every[k] for k in which))
        values = {v for p in call.parts for v in p.values}
        return [moves[k] if k in values else r for k, r in enumerate(results)]

    given = [d for d in array_dots if d is not None]
    more = [(x.shape[1:], x.dtype) for x in given]
    parts = tuple(dataclasses.replace(p, dest=False) for p in call.parts)
    made = _call(call, of_element, [*_elements(call, arrays), *more], [*arrays, *given], parts)
    if made is None:
        return None
    sums = bind(*made)
    starts = [d for dest, p in zip(dest_dots, call.parts, strict=True) for d in (dest or [None] * len(p.values))]
    return [s if d is None else s + d for s, d in zip(sums, starts, strict=True)]


def _elements(call: HistogramCall, arrays: Sequence[Any]) -> list[tuple[tuple[int, ...], Any]]:
    """One element of each of f's arguments."""
    given = iter(arrays)
    return [((), p) if p is not None else ((x := next(given)).shape[1:], x.dtype) for p in call.positions]


def _call(
    like: HistogramCall, f: Callable[..., Leaves], elements: Sequence[Any], arrays: Sequence[Any], parts: Sequence[Part]
) -> tuple[HistogramCall, Leaves] | None:
    """The call of another function, of more arrays behind those of ``like``, and its operands; None if it would not be one
    kernel."""
    if sum(slots_of(s, d) for s, d in elements) > MOST:
        return None
    axes = axes_of(arrays)
    closed = jax.make_jaxpr(f)(*(element_aval(s, d, axes) for s, d in elements))
    pre, inner = hoist(closed)
    try:
        traced = make_traced(inner.jaxpr, to_program(inner.jaxpr))
    except Unsupported:
        return None
    positions = (*like.positions, *(None,) * (len(elements) - len(like.positions)))
    call = dataclasses.replace(like, f=traced, positions=positions, parts=tuple(parts))
    return (call, [*arrays, *pre(*closed.consts)]) if can_fuse(call) else None


# --- backwards ------------------------------------------------------------------------------------------------------------------


def transposed(cotangents: Sequence[Any], *operands: Any, call: HistogramCall, masks: tuple[int, ...], rank: int) -> list[Any]:
    """The cotangents of a call's operands, a sum of what is linear in them."""
    linear = [k for k, x in enumerate(operands) if ad.is_undefined_primal(x)]
    known = [k for k in range(len(operands)) if k not in linear]
    cts = [None if isinstance(c, ad.Zero) else c for c in cotangents]
    given = [k for k, c in enumerate(cts) if c is not None]

    def one(*xs: Any) -> Leaves:
        full: Leaves = list(operands)
        for k, x in zip(known, xs, strict=False):
            full[k] = x
        for k in linear:
            aval = operands[k].aval
            full[k] = ad.UndefinedPrimal(jax.ShapeDtypeStruct(aval.shape[masks[k].bit_count() :], aval.dtype))
        mine: Leaves = [None] * len(cts)
        for k, x in zip(given, xs[len(known) :], strict=True):
            mine[k] = x
        found = _by_element(call, mine, full)
        return found if found is not None else _unfused(call, mine, full)

    every = (1 << rank) - 1
    pulled = over_batch(one, (*(masks[k] for k in known), *(every for _ in given)), rank)(
        *(operands[k] for k in known), *(cts[k] for k in given)
    )
    out: list[Any] = [None] * len(operands)
    for k, x in zip(linear, pulled, strict=True):
        out[k] = summed_to(x, masks[k], rank)
    return out


def _unfused(call: HistogramCall, cts: Leaves, operands: Leaves) -> Leaves:
    """By way of f's results on all elements."""

    def run(xs: list[Any]) -> Leaves:
        out: Leaves = []
        for part, _, dest, index, values in call.unfused(xs):
            out += by_index(index, values, [jnp.add] * len(values), part.num_bins, dest, call.deterministic)
        return out

    shapes = [
        jax.ShapeDtypeStruct((p.num_bins, *s), d)
        for p in call.parts
        for s, d in zip(p.operator.shapes, p.operator.dtypes, strict=True)
    ]
    zeros = [ad.Zero(s) if c is None else c for s, c in zip(shapes, cts, strict=True)]
    return [x for x, o in zip(pulled_back(zeros, operands, run), operands, strict=True) if ad.is_undefined_primal(o)]


def _by_element(call: HistogramCall, cts: Leaves, operands: Leaves) -> Leaves | None:
    """Each element's cotangents pulled back through f, by kernels where rows are summed; None where that does not go."""
    arrays, captured, _, dests = call.split(operands)
    known = [x for x in arrays if not ad.is_undefined_primal(x)]
    started = any(ad.is_undefined_primal(x) for dest in dests for x in dest or [])
    if started or not known or axes_of(known) or any(p.num_bins == 0 for p in call.parts):
        return None
    given = iter(arrays)
    arguments: list[Any] = [next(given) if p is None else p for p in call.positions]
    moved = [k for k, x in enumerate(arguments) if ad.is_undefined_primal(x)]
    held = [k for k, x in enumerate(captured) if ad.is_undefined_primal(x)]
    every = [(part, v) for part in call.parts for v in part.values]
    used = [(part, v, ct) for (part, v), ct in zip(every, cts, strict=True) if ct is not None]
    avals = [arguments[k].aval.update(shape=arguments[k].aval.shape[1:]) for k in moved] + [captured[k].aval for k in held]

    def pulled(*xs: Any) -> Leaves:
        rest = iter(xs)
        elements = [None if k in moved else next(rest) for k in range(len(arguments))]

        def run(*linear: Any) -> tuple[Leaves, Leaves]:
            of_element, of_captured = list(elements), list(captured)
            for k, x in zip(moved, linear, strict=False):
                of_element[k] = x
            for k, x in zip(held, linear[len(moved) :], strict=True):
                of_captured[k] = x
            results = call.f(of_captured, *of_element)
            return [results[v] for _, v, _ in used], [results[part.index] for part, _, _ in used]

        _, pull, index = jax.vjp(run, *(vary(jnp.zeros(a.shape, a.dtype), axes_of([a])) for a in avals), has_aux=True)
        return list(pull([_cotangent(ct, i) for (_, _, ct), i in zip(used, index, strict=True)]))

    positions = tuple(p for k, p in enumerate(call.positions) if k not in moved)
    like = dataclasses.replace(call, positions=positions, sorted=False)
    elements = _elements(like, known)
    if sum(slots_of(s, d) for s, d in elements) > MOST:
        return None
    closed = jax.make_jaxpr(pulled)(*(element_aval(s, d, axes_of(known)) for s, d in elements))
    pre, inner = hoist(closed)
    element = _Element(inner, list(pre(*closed.consts)), like, known)
    of_arrays, of_captured = inner.jaxpr.outvars[: len(moved)], inner.jaxpr.outvars[len(moved) :]
    sums: Leaves = []
    for v in of_captured:
        reads = element.reads(v)
        total = None if reads is None else element.summed(reads, v.aval)
        if total is None:
            return None
        sums.append(total)
    return [*element.written(of_arrays), *sums]


def _cotangent(ct: Any, index: Any) -> Any:
    """An element's: its bin's (those of its bins), or zero."""
    inside = (index >= 0) & (index < ct.shape[0])
    row = lambda i: lax.dynamic_index_in_dim(ct, i, keepdims=False)  # noqa: E731
    at = jnp.clip(index, 0, ct.shape[0] - 1)
    found = row(at) if index.ndim == 0 else jax.vmap(row)(at)
    return jnp.where(inside.reshape(inside.shape + (1,) * (found.ndim - inside.ndim)), found, jnp.zeros((), ct.dtype))


@dataclasses.dataclass(frozen=True)
class Read:
    """Which row of a captured array f read (a variable of a jaxpr, a number; None: all of the array), ``clipped`` into it, and
    the cotangent of what it read."""

    index: Any
    row: Any
    clipped: bool = False


@dataclasses.dataclass
class _Element:
    """What is computed for one element, of arrays and captured ones: an open jaxpr without calls."""

    inner: ClosedJaxpr
    captured: Leaves
    like: HistogramCall
    arrays: Leaves

    @functools.cached_property
    def made_by(self) -> dict[Any, JaxprEqn]:
        return {v: eqn for eqn in self.inner.jaxpr.eqns for v in eqn.outvars}

    def reads(self, var: Any) -> list[Read] | None:
        """Of the captured array whose cotangent this is: rows that were added to zeros, or all of it, if it is no longer than a
        row; else None."""
        eqn = None if isinstance(var, Literal) else self.made_by.get(var)
        name = "" if eqn is None else eqn.primitive.name
        found: list[Read] | None = None
        if eqn is None or self._is_zero(var):
            found = [] if self._is_zero(var) else None
        elif name in ("add", "add_any"):
            both = [self.reads(v) for v in eqn.invars]
            found = None if any(r is None for r in both) else [read for r in both for read in r or ()]
        elif name in ("copy", "convert_element_type") and eqn.invars[0].aval.dtype == var.aval.dtype:
            found = self.reads(eqn.invars[0])
        elif name in _ROWS:
            found = _ROWS[name](self, eqn)
        longest = max(math.prod(s) for p in self.like.parts for s in p.operator.shapes)
        return [Read(None, var)] if found is None and math.prod(var.aval.shape) <= longest else found

    def _is_zero(self, atom: Any) -> bool:
        """Is it 0 everywhere, whatever the arguments?"""
        eqn = None if isinstance(atom, Literal) else self.made_by.get(atom)
        if eqn is not None and eqn.primitive.name in ("broadcast_in_dim", "convert_element_type", "copy"):
            return self._is_zero(eqn.invars[0])
        value = self._constant(atom)
        return value is not None and bool(value == 0)

    def _constant(self, atom: Any) -> Any:
        """The number that is made of nothing; None for others."""
        if isinstance(atom, Literal):
            return atom.val if np.ndim(atom.val) == 0 else None
        eqn = self.made_by.get(atom)
        if eqn is None or atom.aval.shape != () or len(eqn.outvars) > 1:
            return None
        operands = [self._constant(v) for v in eqn.invars]
        if any(x is None for x in operands):
            return None
        with jax.ensure_compile_time_eval():
            return np.asarray(eqn.primitive.bind(*operands, **eqn.params))

    def _scatter(self, eqn: JaxprEqn) -> list[Read] | None:
        """Of whole rows at the first axis, by one index."""
        into, indices, updates = eqn.invars
        d, shape, mode = eqn.params["dimension_numbers"], into.aval.shape, eqn.params["mode"].name
        first = d.inserted_window_dims == d.scatter_dims_to_operand_dims == (0,) and not d.operand_batching_dims
        whole = updates.aval.shape == shape[1:] and d.update_window_dims == tuple(range(len(shape) - 1))
        before = self.reads(into)
        if not first or not whole or indices.aval.shape != (1,) or mode not in _MODES or before is None:
            return None
        return [*before, Read(indices, updates, mode == "CLIP")]

    def _dynamic_update_slice(self, eqn: JaxprEqn) -> list[Read] | None:
        """A row put among zeros."""
        into, update, *starts = eqn.invars
        row = update.aval.shape == (1, *into.aval.shape[1:]) and all(self._is_zero(s) for s in starts[1:])
        return [Read(starts[0], update, True)] if row and self._is_zero(into) else None

    def _pad(self, eqn: JaxprEqn) -> list[Read] | None:
        """A row put among zeros, always at the same place."""
        row, filler = eqn.invars
        (low, *_), *others = eqn.params["padding_config"]
        alone = row.aval.shape[0] == 1 and low >= 0 and all(tuple(c) == (0, 0, 0) for c in others)
        return [Read(low, row)] if alone and self._is_zero(filler) else None

    def summed(self, reads: Sequence[Read], aval: Any) -> Any:
        """The rows of all elements, added where they were read; None where there is no kernel for it."""
        sums: Leaves = []
        for read in reads:
            bins, shape = (1, aval.shape) if read.index is None else (aval.shape[0], aval.shape[1:])
            if math.prod(shape) == 0 or bins >= 2**31 - 1:
                return None

            def update(*xs: Any, read: Read = read, bins: int = bins, shape: tuple[int, ...] = shape) -> Leaves:
                computed = not isinstance(read.index, (int, type(None)))
                *index, row = self._evaluated([read.index, read.row] if computed else [read.row])(*xs)
                at = index[0].reshape(()) if computed else read.index or 0
                at = jnp.clip(at, 0, bins - 1) if read.clipped else at
                return [jnp.asarray(at, jnp.int32), row.reshape(shape)]

            part = Part(bins, simple_operator(add, shape, aval.dtype), 0, 0, (1,), 1, False)
            made = _call(self.like, update, self._elements, self.arrays, [part])
            if made is None:
                return None
            sums.append(bind(*made)[0].reshape(aval.shape))
        return functools.reduce(add, sums) if sums else jnp.zeros(aval.shape, aval.dtype)

    @property
    def _elements(self) -> list[tuple[tuple[int, ...], Any]]:
        return [(tuple(v.aval.shape), v.aval.dtype) for v in self.inner.jaxpr.invars]

    def _evaluated(self, outs: Sequence[Any]) -> Callable[..., list[Any]]:
        """Some of its values, of its arguments."""
        jaxpr = self.inner.jaxpr.replace(outvars=list(outs))
        return jaxpr_as_fun(ClosedJaxpr(jaxpr, self.captured))

    def written(self, outs: Sequence[Any]) -> Leaves:
        """Values that every element has, on all of them: by a kernel where rows are folded, else by XLA."""
        given, n = iter(self.arrays), self.arrays[0].shape[0]
        full = [next(given) if p is None else lax.iota(p, n) for p in self.like.positions]
        out: Leaves = []
        for v in outs:
            closed = jax.make_jaxpr(self._evaluated([v]))(*(x.aval for x in self.inner.jaxpr.invars))
            pre, inner = hoist(closed)
            captured = pre(*closed.consts)
            if v.aval.shape == () and _folds(inner):
                last = simple_operator(_second, (), v.aval.dtype)
                f = make_traced(inner.jaxpr, to_program(inner.jaxpr))
                call = OrderedCall(f, self.like.positions, "scan", last)
                out += bind_ordered(scan_p, call, [*self.arrays, *captured])
            else:
                out += jax.vmap(jaxpr_as_fun(ClosedJaxpr(inner.jaxpr, list(captured))))(*full)
        return out


def _folds(inner: ClosedJaxpr) -> bool:
    """Are rows of captured arrays folded in it?"""
    try:
        return any(i.op == "fold" for i in rolled(to_program(inner.jaxpr)).walk())
    except Unsupported:
        return False


def _second(a: Any, b: Any) -> Any:
    return b


_MODES = ("CLIP", "FILL_OR_DROP", "PROMISE_IN_BOUNDS")
_ROWS: dict[str, Callable[[_Element, JaxprEqn], list[Read] | None]] = {
    "scatter-add": _Element._scatter,
    "scatter_add": _Element._scatter,
    "dynamic_update_slice": _Element._dynamic_update_slice,
    "pad": _Element._pad,
}
