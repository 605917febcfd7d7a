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
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jax.interpreters import ad

from ...tracing.jaxprs import with_arguments
from ...tracing.lower import Unsupported
from ...tracing.parameters import INDEX_MODES
from ...tracing.varying import axes_of, element_aval
from ..batches import over_batch
from ..ordered.call import OrderedCall
from ..ordered.scan import bind as bind_ordered
from ..ordered.scan import scan_p
from ..reads import by_calls
from ..tangents import Leaves, add, along, is_inexact, replaced, summed_to
from ..transposition import pulled_back
from .call import HistogramCall, sums_of_rows
from .made import MOST_READS, Aval, Made, avals_of, context, is_large, made_of, numbers_of, row_or_zero, traced_element
from .primitive import bind, by_index

FEWEST, FEWEST_SCALARS, FEWEST_NARROW, NARROW = 1024, 5000, 2**15, 8
"""Numbers of all elements' values from which on kernels pay, below which XLA's own loops are done as soon: of rows, of scalars,
of rows that are narrow."""


def is_sum(call: HistogramCall) -> bool:
    """Is every part a sum?"""
    return all(p.captured == 0 and all(g.kind == "add" for g in p.operator.derivative_groups) for p in call.parts)


def pays(elements: int, numbers: int) -> bool:
    """Do kernels, of so many numbers of each element?"""
    least = FEWEST_SCALARS if numbers == 1 else FEWEST_NARROW if numbers < NARROW else FEWEST
    return elements * numbers >= least


# --- forwards -------------------------------------------------------------------------------------------------------------------


def tangents(call: HistogramCall, operands: Leaves, dots: Leaves) -> Leaves | None:
    """The tangents of an unbatched call's results, all inexact, by one kernel; None where there is none, or it would not pay.
    ``dots``: the operands' tangents or None."""
    arrays, captured, *_ = call.split(operands)
    array_dots, captured_dots, _, dest_dots = call.split(dots)
    moved = any(d is not None for d in (*array_dots, *captured_dots))
    inexact = all(is_inexact(d) for p in call.parts for d in p.operator.dtypes)
    if not (is_sum(call) and call.f.jaxpr.eqns and moved and inexact):
        return None
    if any(not isinstance(n, int) for x in (*arrays, *captured) for n in x.shape):
        return None
    wide = sum(math.prod(s) * p.updates for p in call.parts for s in p.operator.shapes)
    if not call.plans and not pays(arrays[0].shape[0], wide):
        return None
    if axes_of(operands):  # inside shard_map captured arrays are made to vary in f: the transpose of that is between devices
        return None
    which = tuple(d is not None for d in (*captured_dots, *array_dots))
    made = _tangent_call(call, tuple((s[1:], d) for s, d in avals_of(arrays)), avals_of(captured), which, context())
    if made is None:
        return None
    given = [d for d in array_dots if d is not None]
    sums = bind(made.call, [*arrays, *given, *made.captured(*captured, *(d for d in captured_dots if d is not None))])
    starts = [d for dest, p in zip(dest_dots, call.parts, strict=True) for d in (dest or [None] * len(p.values))]
    return [s if d is None else s + d for s, d in zip(sums, starts, strict=True)]


@functools.lru_cache(maxsize=256)
def _tangent_call(
    call: HistogramCall, arrays: tuple[Aval, ...], captured: tuple[Aval, ...], which: tuple[bool, ...], _: Any
) -> Made | None:
    """``which``: of the captured arrays and the arrays, those that have tangents. Held are captured arrays, then their tangents;
    elements are f's, then their tangents."""
    count = len(captured)
    places = [k for k, p in enumerate(call.positions) if p is None]
    moved = [k for k in range(count) if which[k]], [k for k, has in zip(places, which[count:], strict=True) if has]

    def of_element(held: Sequence[Any], *xs: Any) -> Leaves:
        primals = [*held[:count], *xs[: len(call.positions)]]
        changes = [*held[count:], *xs[len(call.positions) :]]
        dots = replaced([None] * len(primals), [*moved[0], *(count + k for k in moved[1])], changes)
        results, moves = along(lambda xs: call.f(xs[:count], *xs[count:]), primals, dots)
        values = {v for p in call.parts for v in p.values}
        return [moves[k] if k in values else r for k, r in enumerate(results)]

    elements = _elements(call.positions, arrays)
    every = [*elements, *(elements[k] for k in moved[1])]
    if is_large(every):
        return None
    held = [*captured, *(captured[k] for k in moved[0])]
    return made_of(call, of_element, held, every, [dataclasses.replace(p, dest=False) for p in call.parts])


def _elements(positions: Sequence[Any], arrays: Sequence[Aval]) -> list[Aval]:
    """One element of each of f's arguments."""
    given = iter(arrays)
    return [((), p) if p is not None else next(given) for p in positions]


# --- backwards ------------------------------------------------------------------------------------------------------------------


def transposed(cotangents: Sequence[Any], *operands: Any, call: HistogramCall, masks: tuple[int, ...], rank: int) -> list[Any]:
    """The cotangents of a call's operands, a sum of what is linear in them."""
    linear = [k for k, x in enumerate(operands) if ad.is_undefined_primal(x)]
    known = [k for k in range(len(operands)) if k not in linear]
    cts = [None if isinstance(c, ad.Zero) else c for c in cotangents]
    given = [k for k, c in enumerate(cts) if c is not None]

    def one(*xs: Any) -> Leaves:
        full = replaced(operands, known, xs[: len(known)])
        for k in linear:
            aval = operands[k].aval
            full[k] = ad.UndefinedPrimal(element_aval(aval.shape[masks[k].bit_count() :], aval.dtype, axes_of([aval])))
        mine = replaced([None] * len(cts), given, xs[len(known) :])
        found = _pulled(call, mine, full)
        return found if found is not None else _unfused(call, mine, full)

    every = (1 << rank) - 1
    pulled = over_batch(one, (*(masks[k] for k in known), *(every for _ in given)), rank)(
        *(operands[k] for k in known), *(cts[k] for k in given)
    )
    sums = [summed_to(x, masks[k], rank) for k, x in zip(linear, pulled, strict=True)]
    return replaced([None] * len(operands), linear, sums)


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


def _pulled(call: HistogramCall, cts: Leaves, operands: Leaves) -> Leaves | None:
    """Each element's cotangents pulled back through f, by kernels where rows are summed; None where that does not go."""
    arrays, captured, _, dests = call.split(operands)
    known = [x for x in arrays if not ad.is_undefined_primal(x)]
    started = any(ad.is_undefined_primal(x) for dest in dests for x in dest or [])
    if (
        started
        or not known
        or axes_of(known)
        or not isinstance(known[0].shape[0], int)
        or any(p.num_bins == 0 for p in call.parts)
    ):
        return None
    linear = tuple(ad.is_undefined_primal(x) for x in (*captured, *arrays))
    shapes = avals_of([x.aval if ad.is_undefined_primal(x) else x for x in (*captured, *arrays)])
    of_arrays = tuple((s[1:], d) for s, d in shapes[len(captured) :])
    given = [ct for ct in cts if ct is not None]
    pull = _pullback(
        call, of_arrays, shapes[: len(captured)], linear, tuple(ct is not None for ct in cts), avals_of(given), context()
    )
    return None if pull is None else pull.run(known, [x for x in captured if not ad.is_undefined_primal(x)] + given)


@dataclasses.dataclass(frozen=True, eq=False)
class Pullback:
    """Of f, for all elements: ``written``, a map for each array; ``sums``, calls for each captured array, whose results are
    added. All of them take the arrays, and what ``held`` makes of the held ones."""

    held: Callable[..., Leaves]
    positions: tuple[Any, ...]
    written: list[tuple[Made, Made | None]]  # the second: as rows, by a kernel
    sums: list[tuple[Aval, list[Made]]]

    def run(self, arrays: Leaves, held: Leaves) -> Leaves:
        captured, out = self.held(*held), []
        given, n = iter(arrays), arrays[0].shape[0]
        full = [next(given) if p is None else lax.iota(p, n) for p in self.positions]
        for f, rows in self.written:
            if rows is not None and n < 2**31 - 1:
                parts = tuple(dataclasses.replace(p, num_bins=n) for p in rows.call.parts)
                out += bind(dataclasses.replace(rows.call, parts=parts), [*arrays, *rows.captured(*captured)])
                continue
            mine = f.captured(*captured)
            if isinstance(f.call, OrderedCall):
                out += bind_ordered(scan_p, f.call, [*arrays, *mine])
            else:
                out += jax.vmap(functools.partial(by_calls, _captured_first(f.call.jaxpr), *mine))(*full)
        for (shape, dtype), calls in self.sums:
            each = [bind(c.call, [*arrays, *c.captured(*captured)])[0].reshape(shape) for c in calls]
            out.append(functools.reduce(add, each) if each else jnp.zeros(shape, dtype))
        return out


def _captured_first(jaxpr: Jaxpr) -> Callable[..., Leaves]:
    """As a function of captured arrays and arguments."""
    return jaxpr_as_fun(ClosedJaxpr(with_arguments(jaxpr, [], [*jaxpr.constvars, *jaxpr.invars]), []))


@functools.lru_cache(maxsize=256)
def _pullback(
    call: HistogramCall,
    arrays: tuple[Aval, ...],
    captured: tuple[Aval, ...],
    linear: tuple[bool, ...],
    used: tuple[bool, ...],
    cotangents: tuple[Aval, ...],
    _: Any,
) -> Pullback | None:
    """``linear``: of the captured arrays and the arrays, what is pulled back to; ``used``: which results have cotangents."""
    count = len(captured)
    arguments = _elements(call.positions, arrays)
    places = [k for k, p in enumerate(call.positions) if p is None]
    moved = [k for k, mine in zip(places, linear[count:], strict=True) if mine]
    held = [k for k in range(count) if linear[k]]
    every = [(part, v) for part in call.parts for v in part.values]
    values = [pair for pair, mine in zip(every, used, strict=True) if mine]

    def pulled(given: Sequence[Any], *xs: Any) -> Leaves:
        rest, cts = iter(xs), given[count - len(held) :]
        elements = [None if k in moved else next(rest) for k in range(len(arguments))]
        known = iter(given)
        fixed = [None if linear[k] else next(known) for k in range(count)]

        def run(*new: Any) -> tuple[Leaves, Leaves]:
            of_captured = replaced(fixed, held, new[len(moved) :])
            results = call.f(of_captured, *replaced(elements, moved, new[: len(moved)]))
            return [results[v] for _, v in values], [results[part.index] for part, _ in values]

        zeros = [jnp.zeros(*arguments[k]) for k in moved] + [jnp.zeros(*captured[k]) for k in held]
        _, pull, index = jax.vjp(run, *zeros, has_aux=True)
        return list(pull([row_or_zero(ct, i) for ct, i in zip(cts, index, strict=True)]))

    elements = [a for k, a in enumerate(arguments) if k not in moved]
    if is_large(elements):
        return None
    positions = tuple(p for k, p in enumerate(call.positions) if k not in moved)
    pre, inner = traced_element(
        pulled, [a for a, mine in zip(captured, linear, strict=False) if not mine] + list(cotangents), elements
    )
    element = _Element(inner, dataclasses.replace(call, positions=positions, sorted=False))
    outs = inner.jaxpr.outvars
    sums: list[tuple[Aval, list[Made]]] = []
    for v, k in zip(outs[len(moved) :], held, strict=True):
        reads = element.reads(v)
        calls = None if reads is None or len(reads) > MOST_READS else element.summed(reads, captured[k])
        if calls is None:
            return None
        sums.append((captured[k], calls))
    return Pullback(pre, positions, [(element.written(v), element.row(v)) for v in outs[: len(moved)]], sums)


@dataclasses.dataclass(frozen=True)
class Read:
    """Which row of a captured array f read (a variable of a jaxpr, a number; None: all of the array), ``clipped`` into it, and
    the cotangent of what it read."""

    index: Any
    row: Any
    clipped: bool = False


@dataclasses.dataclass
class _Element:
    """What is computed for one element: an open jaxpr without calls. ``like``: a call of the same arrays."""

    inner: ClosedJaxpr
    like: HistogramCall

    @functools.cached_property
    def made_by(self) -> dict[Any, JaxprEqn]:
        return {v: eqn for eqn in self.inner.jaxpr.eqns for v in eqn.outvars}

    def reads(self, var: Any, depth: int = 0) -> list[Read] | None:
        """Of the captured array whose cotangent this is: rows that were added to zeros, or all of it, if it is no longer than a
        row; else None."""
        if depth > MOST_READS:
            return None
        eqn = None if isinstance(var, Literal) else self.made_by.get(var)
        name = "" if eqn is None else eqn.primitive.name
        found: list[Read] | None = None
        if eqn is None or self._is_zero(var):
            found = [] if self._is_zero(var) else None
        elif name in ("add", "add_any"):
            both = [self.reads(v, depth + 1) for v in eqn.invars]
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
        if not first or not whole or indices.aval.shape != (1,) or mode not in INDEX_MODES or before is None:
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

    def summed(self, reads: Sequence[Read], aval: Aval) -> list[Made] | None:
        """Calls that add the rows of all elements where they were read; None where there is no kernel for it."""
        calls: list[Made] = []
        for read in reads:
            bins, shape = (1, aval[0]) if read.index is None else (aval[0][0], aval[0][1:])
            if math.prod(shape) == 0 or bins >= 2**31 - 1:
                return None

            def update(captured: Sequence[Any], *xs: Any, read: Read = read, bins: int = bins, shape: Any = shape) -> Leaves:
                computed = not isinstance(read.index, (int, type(None)))
                *index, row = self._evaluated([read.index, read.row] if computed else [read.row], captured)(*xs)
                at = index[0].reshape(()) if computed else read.index or 0
                at = jnp.clip(at, 0, bins - 1) if read.clipped else at
                return [jnp.asarray(at, jnp.int32), row.reshape(shape)]

            part = sums_of_rows(bins, shape, aval[1])
            made = made_of(self.like, update, self._held, self._elements, [part])
            if made is None:
                return None
            calls.append(made)
        return calls

    @property
    def _held(self) -> tuple[Aval, ...]:
        return avals_of(v.aval for v in self.inner.jaxpr.constvars)

    @property
    def _elements(self) -> tuple[Aval, ...]:
        return avals_of(v.aval for v in self.inner.jaxpr.invars)

    def _evaluated(self, outs: Sequence[Any], captured: Sequence[Any]) -> Callable[..., list[Any]]:
        """Some of its values, of its arguments."""
        return jaxpr_as_fun(ClosedJaxpr(self.inner.jaxpr.replace(outvars=list(outs)), list(captured)))

    def row(self, out: Any) -> Made | None:
        """The histogram in which each element has a bin of its own, for a row of numbers that every element has; of no bins yet.
        None where there is none."""
        if math.prod(out.aval.shape) < 2 or self._is_zero(out):
            return None
        position = np.dtype(np.int32)

        def of_element(captured: Sequence[Any], at: Any, *xs: Any) -> Leaves:
            return [at, *self._evaluated([out], captured)(*xs)]

        try:
            part = sums_of_rows(0, out.aval.shape, out.aval.dtype)
        except Unsupported:
            return None
        if part.operator.lanes == 1:
            return None
        like = dataclasses.replace(self.like, positions=(position, *self.like.positions), deterministic=False)
        return made_of(like, of_element, self._held, [((), position), *self._elements], [part])

    def written(self, out: Any) -> Made:
        """What makes a value that every element has: of numbers a kernel, which gathers several times as fast as XLA."""
        pre, inner = traced_element(lambda captured, *xs: self._evaluated([out], captured)(*xs), self._held, self._elements)
        numbers = numbers_of(inner, self.like.positions) if out.aval.shape == () else None
        return Made(inner if numbers is None else numbers, pre)


_ROWS: dict[str, Callable[[_Element, JaxprEqn], list[Read] | None]] = {
    "scatter-add": _Element._scatter,
    "scatter_add": _Element._scatter,
    "dynamic_update_slice": _Element._dynamic_update_slice,
    "pad": _Element._pad,
}
