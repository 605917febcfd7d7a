"""The public functions, beside plain JAX's."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp

from .operators import Operator, operators
from .plain import by_index, by_segment, reduce, scan
from .program import FLOATS, INTEGERS, ODD_NUMBERS, Array, Program, Rng


def sizes(rng: Rng) -> tuple[int, tuple[int, ...]]:
    n = int(rng.choice([0, 1, 2, 3, 5, 8, 17, 33, 100] if rng.random() < 0.9 else [300, 5000]))
    return n, [(), (), (), (), (3,), (2, 2), (17,)][rng.integers(7)]


def starts_of(h: int, op: Operator, values: Any) -> Any:
    one = op.packed([op.identity]) if len(op.dtypes) == 1 else op.identity
    return jax.tree.map(lambda x, i: jnp.broadcast_to(jnp.asarray(i, x.dtype), (h, *x.shape[1:])), values, one)


def a_histogram(rng: Rng, x64: bool) -> Program:
    op = operators(rng, x64, False)
    n, inner = sizes(rng)
    h = int(rng.choice([1, 2, 5, 33]))
    k = len(op.dtypes)
    mode = str(rng.choice(["drop", "drop", "clip", "wrap"]))
    t = str(rng.choice(INTEGERS[: None if x64 else 6]))
    dest = rng.random() < 0.25
    values = op.values((n, *inner))
    start = op.values((h, *inner), "between" if op.kind == "distinct" else None) if dest else []
    options = op.options(rng, True)
    index = Array((n,), t, "sorted" if (is_sorted := rng.random() < 0.2) else "ids", h)

    def mine(index: Any, *xs: Any) -> Any:
        d = {"dest": op.packed(xs[k:])} if dest else {}
        more = {"mode": mode, "indices_are_sorted": bool(is_sorted), **options, **d}
        return jp.reduce_by_index(op.packed(xs[:k]), index, h, op.given, **more)

    def plain(index: Any, *xs: Any) -> Any:
        v = op.packed(xs[:k])
        return by_index(v, index, h, op.op, op.packed(xs[k:]) if dest else starts_of(h, op, v), mode)

    text = f"reduce_by_index {op.text} N={n} {inner} H={h} {t} {mode}{' dest' * dest}{' sorted' * is_sorted}"
    linear = 1 if op.linear and not dest and jnp.issubdtype(op.dtypes[0], jnp.inexact) else None
    return Program(text, mine, plain, (index, *values, *start), linear, op.smooth, op.tolerance, odd=op.odd)


def a_genhist(rng: Rng, x64: bool) -> Program:
    n, h = int(rng.choice([0, 1, 3, 20, 100])), int(rng.choice([1, 4, 33]))
    t = str(rng.choice(["float32", "float64"] if x64 else ["float32"]))
    which = int(rng.integers(4))
    c = float(rng.integers(-2, 3))

    def f(i: Any, x: Any, w: Any, table: Any) -> Any:
        if which == 0:
            return i, c * x * w
        if which == 1:
            return [(i, x * w), (i // 2, x * x)]
        if which == 2:
            return jnp.stack([i, i + 1]), jnp.stack([x, 2 * x * w])
        return jnp.where(i > 0, i, 1), jnp.where(i % 2 == 0, x, table[jnp.clip(i, 0, 3)]) * w

    def mine(i: Any, x: Any, w: Any, table: Any) -> Any:
        bins = jp.Bins(h, jnp.add)
        return jp.genhist(lambda *a: f(*a, table), (i, x, w), [bins, bins] if which == 1 else bins)

    def plain(i: Any, x: Any, w: Any, table: Any) -> Any:
        pairs = jax.vmap(lambda *a: f(*a, table))(i, x, w)

        def total(pair: Any) -> Any:
            at, v = pair[0].reshape(-1), pair[1].reshape(-1)
            return by_index(v, at, h, jnp.add, jnp.zeros(h, v.dtype))

        return [total(p) for p in pairs] if which == 1 else total(pairs)

    number = Array((n,), t, diff=True)
    arrays = (Array((n,), "int32", "ids", h - 1), number, number, Array((4,), t, diff=True))
    linear = 2 if which != 1 and which != 2 else None
    return Program(f"genhist {which} N={n} H={h} {t}", mine, plain, arrays, linear, odd=ODD_NUMBERS)


def a_scan(rng: Rng, x64: bool) -> Program:
    op = operators(rng, x64, True)
    n, inner = sizes(rng)
    axis = int(rng.integers(0, len(inner) + 1))
    shape = (*inner[:axis], n, *inner[axis:])
    k = len(op.dtypes)
    exclusive, reverse, init, cut = (bool(rng.random() < p) for p in (0.3, 0.3, 0.25, 0.25))
    options = op.options(rng, exclusive)
    mapped = bool(rng.random() < 0.2) and k == 1 and op.dtypes[0] in ("float32", "float64", "int32") and op.kind != "unit"
    arrays = [*op.values(shape)]
    arrays += op.values(inner, "between" if op.kind == "distinct" else None) if init else []
    arrays += [Array((n,), "bool")] if cut else []
    flip = {"reverse": reverse, "exclusive": exclusive}

    def split(xs: Sequence[Any]) -> tuple[Any, Any, Any]:
        return op.packed(xs[:k]), op.packed(xs[k : 2 * k]) if init else None, xs[-1] if cut else None

    def mine(*xs: Any) -> Any:
        v, s, c = split(xs)
        more = {"map": lambda x: x * 3 if k == 1 else x} if mapped else {}
        return jp.scan(v, op.given, axis=axis, init=s, segment_starts=c, **flip, **options, **more)

    def plain(*xs: Any) -> Any:
        v, s, c = split(xs)
        first = jax.tree.map(lambda x: jnp.moveaxis(x * 3 if mapped else x, axis, 0), v)
        y = scan(first, op.op, op.identity, s, c, **flip)
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, axis), y)

    words = f"{' exclusive' * exclusive}{' reverse' * reverse}{' init' * init}{' cut' * cut}{' map' * mapped}"
    linear = 0 if op.linear and not init and jnp.issubdtype(op.dtypes[0], jnp.inexact) else None
    if "affine" in op.text and not init and jnp.issubdtype(op.dtypes[1], jnp.inexact):
        linear = None
    text = f"scan {op.text} {shape} axis {axis}{words}"
    return Program(text, mine, plain, tuple(arrays), linear, op.smooth, op.tolerance, odd=op.odd)


def a_reduce(rng: Rng, x64: bool) -> Program:
    op = operators(rng, x64, True)
    n, inner = sizes(rng)
    axis = int(rng.integers(0, len(inner) + 1))
    shape = (*inner[:axis], n, *inner[axis:])
    k = len(op.dtypes)
    init = bool(rng.random() < 0.25)
    options = op.options(rng, n == 0)
    arrays = op.values(shape) + (op.values(inner, "between" if op.kind == "distinct" else None) if init else [])

    def mine(*xs: Any) -> Any:
        s = op.packed(xs[k:]) if init else None
        return jp.reduce(op.packed(xs[:k]), op.given, axis=axis, init=s, **options)

    def plain(*xs: Any) -> Any:
        v = jax.tree.map(lambda x: jnp.moveaxis(x, axis, 0), op.packed(xs[:k]))
        return reduce(v, op.op, op.identity, op.packed(xs[k:]) if init else None)

    linear = 0 if op.linear and not init and jnp.issubdtype(op.dtypes[0], jnp.inexact) else None
    text = f"reduce {op.text} {shape} axis {axis}{' init' * init}"
    return Program(text, mine, plain, tuple(arrays), linear, op.smooth, op.tolerance, odd=op.odd)


def a_segment_reduce(rng: Rng, x64: bool) -> Program:
    op = operators(rng, x64, True)
    n, inner = sizes(rng)
    h = int(rng.choice([1, 2, 7, 40]))
    by_offsets = bool(rng.random() < 0.5)
    options = op.options(rng, True)

    def mine(cut: Any, *xs: Any) -> Any:
        segments = jp.Offsets(cut) if by_offsets else cut
        return jp.segment_reduce(op.packed(xs), segments, op.given, num_segments=None if by_offsets else h, **options)

    def plain(cut: Any, *xs: Any) -> Any:
        ids = cut
        if by_offsets:
            ids = jnp.searchsorted(cut, jnp.arange(n, dtype=cut.dtype), side="right").astype(int) - 1
        return by_segment(op.packed(xs), ids, h, op.op, op.identity)

    cut = Array((h + 1,), "int32", "offsets", n) if by_offsets else Array((n,), "int32", "sorted", h)
    linear = 1 if op.linear and jnp.issubdtype(op.dtypes[0], jnp.inexact) else None
    text = f"segment_reduce {op.text} N={n} {inner} H={h}{' offsets' * by_offsets}"
    return Program(text, mine, plain, (cut, *op.values((n, *inner))), linear, op.smooth, op.tolerance, odd=op.odd)


def a_segment_function(rng: Rng, x64: bool) -> Program:
    """The functions of ``jax.ops`` and statistics of segments."""
    n, inner = sizes(rng)
    h = int(rng.choice([1, 2, 7, 40]))
    names = ["sum", "prod", "max", "min", "mean", "logsumexp", "softmax", "argmax", "count", "var"]
    name = str(rng.choice(names))
    kinds = {"prod": "unit", "max": "distinct", "min": "distinct", "argmax": "small"}
    t = str(rng.choice(FLOATS[2:] if name in ("logsumexp", "softmax", "var", "mean") else (*INTEGERS[:6], *FLOATS[2:])))
    t = "float32" if t == "float64" and not x64 else t
    is_sorted = bool(rng.random() < 0.3)
    inexact = jnp.issubdtype(t, jnp.inexact)

    def sums(x: Any, ids: Any) -> Any:
        return jax.ops.segment_sum(x, ids, h)

    def own(a: Any, ids: Any) -> Any:  # each element's segment's
        return a[jnp.clip(ids, 0, h - 1)]

    def rows(a: Any, x: Any) -> Any:
        return a.reshape(a.shape + (1,) * (x.ndim - 1))

    def plain(ids: Any, x: Any) -> Any:
        inside = rows((ids >= 0) & (ids < h), x)
        if name in ("sum", "prod", "max", "min"):
            return getattr(jax.ops, f"segment_{name}")(x, ids, h)
        counts = sums(jnp.ones(n, np.int32), ids)
        if name == "count":
            return counts
        if name == "argmax":
            tops = own(jax.ops.segment_max(x, ids, h), ids)
            at = rows(jnp.arange(n), x)
            found = jax.ops.segment_min(jnp.where((x == tops) | (x != x), at, n), ids, h)
            return jnp.minimum(found, n).astype(int)
        divisor = rows(counts, x).astype(x.dtype)
        if name == "mean":
            return sums(x, ids) / divisor
        if name == "var":
            apart = jnp.where(inside, x - own(sums(x, ids) / divisor, ids), 0)
            return jnp.where(divisor > 0, sums(apart * apart, ids) / divisor, jnp.nan)
        top = jax.lax.stop_gradient(jax.ops.segment_max(x, ids, h))
        e = jnp.where(inside, jnp.exp(jnp.where(inside, x - own(top, ids), 0)), 0)
        if name == "softmax":
            return jnp.where(inside, e / own(jnp.where(sums(e, ids) > 0, sums(e, ids), 1), ids), 0)
        return jnp.log(sums(e, ids)) + jnp.where(jnp.isfinite(top), top, 0)

    def mine(ids: Any, x: Any) -> Any:
        if name == "count":
            return jp.segment_count(ids, h, indices_are_sorted=is_sorted)
        return getattr(jp, f"segment_{name}")(x, ids, h, indices_are_sorted=is_sorted)

    # an empty segment's mean is NaN, and so are its derivatives, in one way or another
    smooth = name in ("sum", "max", "min", "softmax")  # JAX has none of a product
    ids = Array((n,), "int32", "sorted" if is_sorted else "ids", h)
    linear = 1 if name in ("sum", "mean") and inexact else None
    text = f"segment_{name} {t} N={n} {inner} H={h}{' sorted' * is_sorted}"
    kind = kinds.get(name, "normal" if inexact and name not in ("sum", "mean") else "small")
    odd = ODD_NUMBERS[:1] if name in ("var", "logsumexp", "softmax") else ODD_NUMBERS
    return Program(text, mine, plain, (ids, Array((n, *inner), t, kind, diff=inexact)), linear, smooth, 1e-4, odd=odd)


def a_cumulative(rng: Rng, x64: bool) -> Program:
    n, inner = sizes(rng)
    axis = int(rng.integers(0, len(inner) + 1))
    shape = (*inner[:axis], n, *inner[axis:])
    name = str(rng.choice(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"]))
    t = str(rng.choice([*FLOATS[2:]] if name == "cumlogsumexp" else [*INTEGERS[:6], *FLOATS]))
    t = "float32" if t == "float64" and not x64 else t
    kind = {"cumsum": "small", "cumprod": "unit", "cumlogsumexp": "normal"}.get(name, "distinct")
    reverse = bool(rng.random() < 0.4)
    inexact = jnp.issubdtype(t, jnp.inexact)
    fns = [getattr(m, name) for m in (jp, jax.lax)]
    if name in ("cumsum", "cumprod"):
        mine, plain = (functools.partial(f, axis=axis) for f in (fns[0], getattr(jnp, name)))
    else:
        mine, plain = (functools.partial(f, axis=axis, reverse=reverse) for f in fns)
    smooth = t not in FLOATS[:2] and name != "cumprod"  # whose rule XLA's has roundings of its own in 16 bits
    text = f"{name} {t} {shape} axis {axis}"
    linear = 0 if name == "cumsum" and inexact else None
    return Program(text, mine, plain, (Array(shape, t, kind, diff=inexact),), linear, smooth, 1e-3, odd=ODD_NUMBERS)


def a_recurrence(rng: Rng, x64: bool) -> Program:
    n, inner = sizes(rng)
    t = str(rng.choice(["float32", "complex64", "float64"] if x64 else ["float32", "complex64"]))
    reverse, init = (bool(rng.random() < 0.4) for _ in range(2))

    def mine(a: Any, b: Any, *s: Any) -> Any:
        return jp.linear_recurrence(a, b, *s, reverse=reverse)

    def plain(a: Any, b: Any, *s: Any) -> Any:
        first = s[0] if s else jnp.zeros(inner, b.dtype)

        def step(y: Any, row: Any) -> Any:
            y = row[0] * y + row[1]
            return y, y

        return jax.lax.scan(step, first, (a, b), reverse=reverse)[1]

    array = Array((n, *inner), t, "unit", diff=True)
    arrays = (array, dataclasses.replace(array, kind="small"), *[Array(inner, t, diff=True)] * init)
    text = f"linear_recurrence {t} {array.shape}{' reverse' * reverse}{' init' * init}"
    return Program(text, mine, plain, arrays, None if init else 1, True, 1e-3)


def a_stencil(rng: Rng, x64: bool) -> Program:
    rank = int(rng.integers(1, 3))
    shape = tuple(int(k) for k in rng.choice([3, 4, 9, 20], rank))
    t = str(rng.choice(["float32", "int32", "float64"] if x64 else ["float32", "int32"]))
    boundary = str(rng.choice(["edge", "wrap", "reflect", "symmetric", "constant"]))
    reads = [tuple(int(d) for d in rng.integers(-2, 3, rank)) for _ in range(int(rng.integers(1, 5)))]
    weights = [int(w) for w in rng.integers(-2, 3, len(reads))]
    squared = bool(rng.random() < 0.3)

    def body(read: Callable[[tuple[int, ...]], Any]) -> Any:
        values = [w * read(at) for w, at in zip(weights, reads, strict=True)]
        total = functools.reduce(lambda a, b: a + b, values)
        return total * read(reads[0]) if squared else total

    def mine(x: Any) -> Any:
        return jp.stencil(lambda a: body(lambda at: a[at if rank > 1 else at[0]]), x, boundary=boundary)

    def plain(x: Any) -> Any:
        wide = jnp.pad(x, 2, mode=boundary)
        return body(lambda at: wide[tuple(slice(2 + d, 2 + d + s) for d, s in zip(at, shape, strict=True))])

    inexact = t != "int32"
    text = f"stencil {t} {shape} {boundary} {reads} {weights}{' squared' * squared}"
    linear = 0 if inexact and not squared else None
    return Program(text, mine, plain, (Array(shape, t, diff=inexact),), linear, odd=ODD_NUMBERS)


def a_drop_in(rng: Rng, x64: bool) -> Program:
    n = int(rng.choice([1, 2, 5, 17, 100]))
    name = str(rng.choice(["argmax", "argmin", "nanargmax", "bincount", "histogram", "group", "associative_scan"]))
    t = str(rng.choice(["int32", "uint8", "float32", "float16"]))
    if name in ("argmax", "argmin", "nanargmax"):
        axis = [None, 0, 1][rng.integers(3)]
        mine, plain = (functools.partial(getattr(m, name), axis=axis) for m in (jp, jnp))
        odd = () if name == "nanargmax" else ODD_NUMBERS
        return Program(f"{name} {t} N={n} axis {axis}", mine, plain, (Array((n, 3), t),), odd=odd)
    number = Array((n,), "float32", diff=True)
    if name == "bincount":
        mine, plain = (lambda i, w, m=m: m.bincount(i, w, length=7) for m in (jp, jnp))
        return Program(f"bincount N={n}", mine, plain, (Array((n,), "int32", "ids", 7), number), 1, odd=ODD_NUMBERS)
    if name == "histogram":
        mine, plain = (lambda x, w, m=m: m.histogram(x, 5, (-3.0, 4.0), weights=w)[0] for m in (jp, jnp))
        where = dataclasses.replace(number, diff=False)
        return Program(f"histogram N={n}", mine, plain, (where, number), 1, odd=ODD_NUMBERS)
    if name == "group":

        def plain_group(i: Any) -> Any:
            inside = jnp.where((i >= 0) & (i < 6), i, 6)
            return jnp.argsort(inside, stable=True).astype(np.int32), jnp.cumsum(jnp.bincount(inside, length=6)).astype(np.int32)

        def mine_group(i: Any) -> Any:
            order, offsets = jp.group_by_index(jnp.where((i >= 0) & (i < 6), i, 6), 7)
            return order.astype(np.int32), offsets.offsets[1:7].astype(np.int32)

        return Program(f"group_by_index N={n}", mine_group, plain_group, (Array((n,), "int32", "ids", 6),))
    op = operators(rng, x64, True)
    reverse = bool(rng.random() < 0.5)
    mine, plain = (lambda *x, m=m: m.associative_scan(op.op, op.packed(x), reverse=reverse) for m in (jp, jax.lax))
    text = f"associative_scan {op.text} N={n}{' reverse' * reverse}"
    linear = 0 if op.linear and "fl" in op.text else None
    return Program(text, mine, plain, tuple(op.values((n,))), linear, op.smooth, op.tolerance, odd=op.odd)


FUNCTIONS = (
    a_histogram, a_histogram, a_histogram, a_genhist, a_scan, a_scan, a_scan, a_reduce, a_reduce, a_segment_reduce,
    a_segment_reduce, a_segment_function, a_segment_function, a_cumulative, a_recurrence, a_stencil, a_drop_in,
)  # fmt: skip
