"""Reductions, cumulative operations and matrix products of small arrays, unrolled in XLA's order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir.program import NEUTRAL, is_float, neutral_bits
from . import complex
from .elementwise import REAL
from .emit import Emitter, Unsupported
from .jaxprs import REDUCED_BY
from .lowering import Lowering
from .values import Array, Value, check_shape, loaded, scalar_dtypes

Scalars = tuple[int, ...]  # one number: a value, or the two of a complex number
Combine = Callable[[Scalars, Scalars], Scalars]


def combiner(e: Lowering, name: str, dtype: np.dtype) -> Combine:
    """The elementwise primitive of two operands called ``name``, on numbers of ``dtype``."""
    if dtype.kind == "c":
        function = complex.function(name, {})
        if function is None:
            raise Unsupported(name, "not on complex numbers")
        return lambda a, b: e.inline(function, *a, *b)
    return lambda a, b: (REAL[name](e, {}, e.dtype(a[0]), *a, *b),)


def numbers(x: Array) -> np.ndarray:
    """The array's numbers as an array of objects, each a tuple of values."""
    out = np.empty(x.shape, object)
    for at in np.ndindex(x.shape):
        out[at] = tuple(int(p[at]) for p in x.parts)
    return out


def array(dtype: Any, a: np.ndarray, name: str) -> Array:
    """The inverse of :func:`numbers`."""
    count = len(scalar_dtypes(dtype, name))
    parts = (np.array([v[k] for v in a.ravel()], np.int64).reshape(a.shape) for k in range(count))
    return Array(np.dtype(dtype), tuple(parts))


def _identity(e: Lowering, how: str, dtype: np.dtype) -> Scalars:
    first, *rest = scalar_dtypes(dtype, how)
    return (e.emit("const", first, attr=neutral_bits(NEUTRAL[how], first)), *(e.const(0, t) for t in rest))


def _from_zero(how: str, dtype: np.dtype) -> bool:
    """A sum of floats starts from zero: two negative zeros make a positive one."""
    return how == "add" and dtype.kind not in "iub"


def fold(e: Lowering, how: str, dtype: np.dtype, items: Sequence[Scalars]) -> Scalars:
    """All items combined from the left."""
    start = list(items)
    if not start or (_from_zero(how, dtype) and len(start) > 1):
        start = [_identity(e, how, dtype), *start]
    combine, result = combiner(e, how, dtype), start[0]
    for item in start[1:]:
        result = combine(result, item)
    return result


def _lanes(e: Lowering, x: Value, axes: Sequence[int], name: str) -> tuple[np.ndarray, tuple[int, ...]]:
    """The numbers with the reduced axes last, flattened; and the shape without them."""
    a = numbers(loaded(e, x, name))
    kept = [k for k in range(a.ndim) if k not in axes]
    shape = tuple(a.shape[k] for k in kept)
    return np.transpose(a, [*kept, *axes]).reshape(*shape, -1) if a.size else np.empty((*shape, 0), object), shape


def reduction(how: str) -> Callable[..., Array]:
    def rule(e: Lowering, eqn: Any, x: Value) -> Array:
        lanes, shape = _lanes(e, x, eqn.params["axes"], eqn.primitive.name)
        out = np.empty(shape, object)
        for at in np.ndindex(shape):
            out[at] = fold(e, how, x.dtype, list(lanes[at]))
        return array(x.dtype, out, eqn.primitive.name)

    return rule


def arg_reduction(op: str) -> Callable[..., Array]:
    """The first position of the largest (smallest) element; NaN counts as the largest (smallest)."""

    def rule(e: Lowering, eqn: Any, x: Value) -> Array:
        name = eqn.primitive.name
        (index,) = scalar_dtypes(eqn.params["index_dtype"], name)
        if x.dtype.kind == "c":
            raise Unsupported(name, "not on complex numbers")
        lanes, shape = _lanes(e, x, eqn.params["axes"], name)
        out = np.empty(shape, object)
        for at in np.ndindex(shape):
            best, where = lanes[at][0][0], e.const(0, index)
            for k, (v,) in enumerate(lanes[at][1:], 1):
                better = e.op(op, v, best)
                if is_float(e.dtype(v)):
                    first_nan = e.op("and", e.op("ne", v, v), e.op("eq", best, best))
                    better = e.op("or", e.op("and", better, e.op("eq", best, best)), first_nan)
                best, where = e.select(better, v, best), e.select(better, e.const(k, index), where)
            out[at] = (where,)
        return array(eqn.params["index_dtype"], out, name)

    return rule


def cumulative(how: str) -> Callable[..., Array]:
    def rule(e: Lowering, eqn: Any, x: Value) -> Array:
        axis, reverse = eqn.params["axis"], eqn.params["reverse"]
        a = np.moveaxis(numbers(loaded(e, x, eqn.primitive.name)), axis, -1)
        a = a[..., ::-1] if reverse else a
        if how == "logaddexp":
            if x.dtype.kind == "c":
                raise Unsupported(eqn.primitive.name, "not on complex numbers")
            combine: Combine = lambda p, q: (_logaddexp(e, *p, *q),)  # noqa: E731
        else:
            combine = combiner(e, how, x.dtype)
        out = np.empty(a.shape, object)
        for lane in np.ndindex(a.shape[:-1]):
            items = list(a[lane])
            if items and _from_zero(how, x.dtype):
                items[0] = combine(_identity(e, how, x.dtype), items[0])
            for k, total in enumerate(itertools.accumulate(items, combine)):
                out[(*lane, k)] = total
        return array(x.dtype, np.moveaxis(out[..., ::-1] if reverse else out, -1, axis), eqn.primitive.name)

    return rule


def _logaddexp(e: Emitter, a: int, b: int) -> int:
    """log(exp(a) + exp(b)); where the difference is NaN (equal infinities, or NaN), a + b."""
    difference = e.op("sub", a, b)
    log_of_sum = e.op("add", e.op("max", a, b), e.op("log1p", e.op("exp", e.op("neg", e.op("abs", difference)))))
    return e.select(e.op("ne", difference, difference), e.op("add", a, b), log_of_sum)


def dot_general(e: Lowering, eqn: Any, x: Value, y: Value) -> Array:
    """Sums of products; f16 and bf16 accumulate in f32, as XLA's do."""
    (x_sum, y_sum), (x_batch, y_batch) = eqn.params["dimension_numbers"]
    aval = eqn.outvars[0].aval
    shape = check_shape(aval.shape, "dot_general")
    dtype = np.dtype(aval.dtype)
    wide = np.dtype(np.float32) if dtype.kind not in "iubc" and dtype.itemsize == 2 else dtype
    parts = scalar_dtypes(wide, "dot_general")
    both = []
    for v, batch, contract in ((x, x_batch, x_sum), (y, y_batch, y_sum)):
        a = numbers(loaded(e, v, "dot_general").each(lambda value: e.convert(value, parts[0])))
        free = [k for k in range(a.ndim) if k not in (*batch, *contract)]
        both.append((np.transpose(a, [*batch, *free, *contract]), len(free)))
    (a, a_free), (b, _) = both
    n = len(x_batch)
    product = combiner(e, "mul", wide)
    out = np.empty(shape, object)
    for at in np.ndindex(shape):
        rows = a[(*at[: n + a_free], ...)], b[(*at[:n], *at[n + a_free :], ...)]
        out[at] = fold(e, "add", wide, [product(p, q) for p, q in zip(*(r.ravel() for r in rows), strict=True)])
    result = array(wide, out, "dot_general")
    (narrow, *_) = scalar_dtypes(dtype, "dot_general")
    return Array(dtype, tuple(result.each(lambda v: e.convert(v, narrow)).parts))


RULES: dict[str, Callable[..., Any]] = {
    **{name: reduction(how) for name, how in REDUCED_BY.items()},
    "argmax": arg_reduction("gt"),
    "argmin": arg_reduction("lt"),
    "cumsum": cumulative("add"),
    "cumprod": cumulative("mul"),
    "cummax": cumulative("max"),
    "cummin": cumulative("min"),
    "cumlogsumexp": cumulative("logaddexp"),
    "dot_general": dot_general,
}
