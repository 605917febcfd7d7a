"""Random calls of the public functions under random transformations, against plain JAX.

``python -m tests.random_calls --count 20000 --seed 1`` makes so many calls and prints those that differ, each with what makes it
again. A *program* is a function, its operator and options, shapes and dtypes, and the transformations around it; it is compiled
once and called on several draws of its arrays. Most numbers are small integers, so that sums are exact in any order.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxprims as jp
from jaxprims import monoids
from jaxprims.targets.plans import AnyKernel, forced
from tests.odd_operators import ODD, ODD_IN_ORDER

Rng = np.random.Generator
Fn = Callable[..., Any]
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float32", "float32", "float64")
ODD_NUMBERS = (np.nan, np.inf, -np.inf)
DERIVATIVES = ("jvp", "vjp", "transpose")


# --- arrays ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Array:
    """An operand: how it is drawn, and whether derivatives are taken by it."""

    shape: tuple[int, ...]
    dtype: str
    kind: str = "small"
    size: int = 0  # of what ids or offsets point into
    diff: bool = False

    def with_odd(self, rng: Rng, odd: Sequence[float]) -> np.ndarray:
        """A draw in which a few numbers are those of ``odd``."""
        x = self.draw(rng)
        if not odd or not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        chosen = rng.random(x.shape) < rng.choice([0.001, 0.03, 0.3])
        return np.where(chosen, rng.choice(np.array(odd), x.shape), x).astype(x.dtype)

    def draw(self, rng: Rng) -> np.ndarray:
        shape, t = self.shape, jnp.dtype(self.dtype)
        if self.kind == "ids":
            info = np.iinfo(t)
            near = rng.integers(max(info.min, -2), min(info.max, self.size + 1), shape, endpoint=True)
            extreme = rng.choice(np.array([info.min, info.max], t), shape)
            return np.where(rng.random(shape) < 0.05, extreme, near.astype(t))
        if self.kind == "sorted":
            return np.sort(rng.integers(0, max(self.size, 1), shape), axis=-1).astype(t)
        if self.kind == "offsets":
            inner = np.sort(rng.integers(0, self.size, shape, endpoint=True), axis=-1)
            if shape[-1] > 1 and rng.random() < 0.7:
                inner[..., 0], inner[..., -1] = 0, self.size
            return inner.astype(t)
        if self.dtype == "bool":
            return rng.random(shape) < rng.choice([0.1, 0.5, 0.9])
        if self.kind == "unit":
            few = [1, 1, 3] if t.kind == "u" else [1, -1, 2] if t.itemsize > 2 or t.kind == "i" else [1, -1]
            few = few[:2] if np.prod(shape) > 200 else few  # whose product no float holds
            drawn = rng.choice(np.array(few), shape).astype(t)
            if t.itemsize == 2 and t.kind not in "iu":  # a dozen factors that no order lets overflow
                chosen = rng.random(shape) < 12 / max(1, drawn.size)
                drawn = np.where(chosen, rng.choice(np.array([2, 0.5]), shape), drawn).astype(t)
            return drawn
        if self.kind in ("distinct", "between"):
            values = rng.permutation(int(np.prod(shape))) - int(np.prod(shape)) // 2
            return (values.reshape(shape) + (0.25 if self.kind == "between" else 0)).astype(t)
        if self.kind == "positive":
            return (np.abs(rng.standard_normal(shape)) + 0.5).astype(t)
        if self.kind == "slow":  # beside the speed of light, three times as fast, too; and all of them together
            return (rng.uniform(-0.1, 0.1, shape) / max(1, np.prod(shape) / 100) ** 0.5).astype(t)
        if self.kind in ("normal", "fine"):
            return (rng.standard_normal(shape) * (1 if self.kind == "normal" else 0.1)).astype(t)
        if t.kind in "iu" and rng.random() < 0.3:
            info = np.iinfo(t)
            return rng.integers(info.min, info.max, shape, t, endpoint=True)
        drawn = rng.integers(0 if t.kind == "u" else -4, 5, shape)
        return (drawn + 1j * rng.integers(-3, 4, shape)).astype(t) if t.kind == "c" else drawn.astype(t)


@dataclasses.dataclass(frozen=True)
class Program:
    """Two functions of the same arrays that are to agree."""

    text: str
    mine: Fn
    plain: Fn
    arrays: tuple[Array, ...]
    linear: int | None = None  # the array that they are linear in
    smooth: bool = True  # derivatives agree wherever the arrays are drawn
    tolerance: float = 0.0
    traceable: bool = True
    odd: tuple[float, ...] = ()  # numbers that the two agree on, wherever they stand among others

    def around(self, text: str, mine: Fn, plain: Fn, arrays: Sequence[Array] | None = None, **others: Any) -> Program:
        more = {"arrays": tuple(arrays if arrays is not None else self.arrays)} | others
        return dataclasses.replace(self, text=f"{text}({self.text})", mine=mine, plain=plain, **more)


# --- plain JAX ------------------------------------------------------------------------------------------------------------


def slices(tree: Any, k: Any) -> Any:
    return jax.tree.map(lambda x: x[k], tree)


def select(flag: Any, a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(flag, x, y), a, b)


def loop(xs: Any, op: Fn, init: Any, cut: Any = None, reverse: bool = False) -> tuple[Any, Any, Any]:
    """All states of a scan along axis 0; those before each element, and whether there is one; the last."""
    n = jax.tree.leaves(xs)[0].shape[0]
    begins = jnp.zeros(n, bool) if cut is None else cut
    has = init is not None
    start = init if has else jax.tree.map(lambda x: jnp.zeros_like(x, shape=x.shape[1:]), xs)

    def step(carry: Any, row: Any) -> Any:
        known, state = carry
        x, begins_here = row
        state = select(begins_here, start, state)
        known = jnp.where(begins_here, has, known)
        after = select(known, op(state, x), x)
        return (jnp.ones_like(known), after), (after, state, known)

    if n == 0:
        return xs, (xs, begins), start
    (_, last), (after, before, known) = jax.lax.scan(step, (jnp.full((), has), start), (xs, begins), reverse=reverse)
    return after, (before, known), last


def scan(
    xs: Any, op: Fn, identity: Any = None, init: Any = None, cut: Any = None, exclusive: bool = False, reverse: bool = False
) -> Any:
    after, (before, known), _ = loop(xs, op, init, cut, reverse)
    if not exclusive:
        return after

    def filled(y: Any, i: Any) -> Any:
        return jnp.where(known.reshape(-1, *[1] * (y.ndim - 1)), y, jnp.asarray(i, y.dtype))

    return before if init is not None else jax.tree.map(filled, before, identity)


def reduce(xs: Any, op: Fn, identity: Any = None, init: Any = None) -> Any:
    n = jax.tree.leaves(xs)[0].shape[0]
    if n == 0:
        full = jax.tree.map(lambda x, i: jnp.broadcast_to(jnp.asarray(i, x.dtype), x.shape[1:]), xs, identity)
        return full if init is None else init
    return loop(xs, op, init)[2]


def by_index(values: Any, index: Any, h: int, op: Fn, start: Any, mode: str = "drop") -> Any:
    """Bins, updated one element after the other."""
    wide = index.astype(jnp.result_type(int)) if index.dtype.kind != "u" else jnp.where(index > h, h, index).astype(int)
    if mode == "clip":
        wide = jnp.clip(wide, 0, h - 1)
    elif mode == "wrap":
        wide = (index % jnp.asarray(h, index.dtype)).astype(int) if h <= np.iinfo(index.dtype).max else wide % h

    def step(bins: Any, row: Any) -> Any:
        at, x = row
        inside = (at >= 0) & (at < h)
        place = jnp.where(inside, at, 0)
        old = slices(bins, place)
        new = select(inside, op(old, x), old)
        return jax.tree.map(lambda b, y: b.at[place].set(y), bins, new), None

    return start if h == 0 or index.shape[0] == 0 else jax.lax.scan(step, start, (wide, values))[0]


def by_segment(values: Any, ids: Any, h: int, op: Fn, identity: Any) -> Any:
    """Likewise, in order; what has no element is the identity."""
    full = jax.tree.map(lambda x, i: jnp.broadcast_to(jnp.asarray(i, x.dtype), (h, *x.shape[1:])), values, identity)
    seen = jnp.zeros(h, bool)

    def both(a: Any, b: Any) -> Any:
        return select(a[0], op(a[1], b[1]), b[1])

    return by_index((jnp.ones(ids.shape, bool), values), ids, h, lambda a, b: (a[0] | b[0], both(a, b)), (seen, full))[1]


# --- operators ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Operator:
    """``given``: what the call gets; ``op``: what it does, for the reference."""

    text: str
    given: Any
    op: Fn
    dtypes: tuple[str, ...]  # of each leaf of an element; one leaf that is no tuple if there is one
    identity: Any
    known: bool
    kind: str = "small"
    commutes: bool = True
    smooth: bool = True
    linear: bool = False
    tolerance: float = 0.0
    odd: tuple[float, ...] = ()

    def values(self, shape: tuple[int, ...], kind: str | None = None) -> list[Array]:
        kind = kind or self.kind
        return [Array(shape, t, kind, diff=jnp.issubdtype(t, jnp.inexact)) for t in self.dtypes]

    def packed(self, leaves: Sequence[Any]) -> Any:
        return leaves[0] if len(self.dtypes) == 1 else tuple(leaves)

    def options(self, rng: Rng, needed: bool) -> dict[str, Any]:
        if self.known and (not needed or rng.random() < 0.7):
            return {}
        return {"identity": self.identity} if self.identity is not None else {}


def least(t: Any) -> Any:
    return False if t == "bool" else -np.inf if jnp.issubdtype(t, jnp.floating) else np.iinfo(t).min


def greatest(t: Any) -> Any:
    return True if t == "bool" else np.inf if jnp.issubdtype(t, jnp.floating) else np.iinfo(t).max


def matrix(a: Any, b: Any) -> Any:
    p, q, r, s = a
    t, u, v, w = b
    return p * t + q * v, p * u + q * w, r * t + s * v, r * u + s * w


def best(a: Any, b: Any) -> Any:
    (va, ia), (vb, ib) = a, b
    first = (va > vb) | ((va == vb) & (ia < ib))
    return jnp.where(first, va, vb), jnp.where(first, ia, ib)


def odd_operator(rng: Rng, ordered: bool) -> Operator:
    table = ODD | ODD_IN_ORDER if ordered else ODD
    name = str(rng.choice(list(table)))
    op, dtypes, identity, kind = table[name]
    return Operator(name, op, op, dtypes, identity, False, kind, name not in ODD_IN_ORDER, tolerance=2e-3)


def operators(rng: Rng, x64: bool, ordered: bool) -> Operator:
    if rng.random() < 0.2:
        return odd_operator(rng, ordered)

    def dtype(*kinds: str) -> str:
        names = [t for t in kinds if x64 or "64" not in t or t == "complex64"]
        return str(rng.choice(names))

    def one_of(*several: Any) -> Any:
        return several[rng.integers(len(several))]

    numbers = (*INTEGERS, *FLOATS, "complex64")
    names = ["add", "add", "add", "mul", "extreme", "extreme", "bits", "quadratic", "best", "pairs", "xor", "logaddexp"]
    name = str(rng.choice([*names, "affine", "affine", "matrix", "last", "known affine"] if ordered else names))
    if name == "add":
        t = dtype(*numbers)
        given = one_of(jnp.add, monoids.add, lambda a, b: a + b, lambda a, b: b + a, lambda a, b: a - (-b))
        return Operator(f"add {t}", given, jnp.add, (t,), 0, True, linear=True, odd=ODD_NUMBERS)
    if name == "mul":
        t = dtype(*numbers)
        given = one_of(jnp.multiply, lambda a, b: b * a)
        return Operator(f"mul {t}", given, jnp.multiply, (t,), 1, True, "unit", odd=ODD_NUMBERS)
    if name == "extreme":
        t = dtype("bool", *INTEGERS, *FLOATS)
        kind = "distinct" if jnp.issubdtype(t, jnp.inexact) else "small"
        fine = t in ("float32", "float64")
        if rng.random() < 0.5:
            given = one_of(jnp.maximum, monoids.max, lambda a, b: jnp.maximum(b, a))
            return Operator(f"max {t}", given, jnp.maximum, (t,), least(t), True, kind, smooth=fine, odd=ODD_NUMBERS)
        given = one_of(jnp.minimum, lambda a, b: jnp.where(a < b, a, b))
        known = given is jnp.minimum
        odd = ODD_NUMBERS if known else ODD_NUMBERS[1:]  # what the other keeps of a NaN depends on the order
        return Operator(f"min {t}", given, jnp.minimum, (t,), greatest(t), known, kind, smooth=fine, odd=odd)
    if name in ("bits", "xor"):
        t = dtype("bool", *INTEGERS)
        given, i = one_of((jnp.bitwise_or, 0), (jnp.bitwise_xor, 0), (lambda a, b: a ^ b, 0), (lambda a, b: a | b, 0))
        return Operator(f"bits {t}", given, given, (t,), np.zeros((), t)[()] if i == 0 else i, False)
    if name == "quadratic":
        t = dtype("int32", "float32", "float32", "float64")
        c = float(rng.integers(-2, 3)) if t != "int32" else int(rng.integers(-2, 3))
        op = lambda a, b: a + b + c * a * b  # noqa: E731
        return Operator(f"a + b + {c} ab {t}", op, op, (t,), 0, False, "fine" if t != "int32" else "small", tolerance=2e-4)
    if name == "best":
        t, k = dtype("int32", "uint8", "float32", "float64"), dtype("int32", "int64")
        top = (least(t), np.iinfo(k).max)
        return Operator(f"best {t} {k}", best, best, (t, k), top, False, "distinct", smooth=False)
    if name == "pairs":
        t, u = dtype(*numbers), dtype("float32", "int32", "bool")
        op = lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1]))  # noqa: E731
        few = t in FLOATS[:2]  # sums of many distinct numbers are too large for halves
        kind = "small" if few else "distinct"
        return Operator(f"sum {t}, max {u}", op, op, (t, u), (0, least(u)), False, kind, smooth=not few, odd=ODD_NUMBERS)
    if name == "logaddexp":
        t = dtype("float32", "float64")
        op = jnp.logaddexp
        return Operator(f"logaddexp {t}", op, op, (t,), -np.inf, True, "normal", tolerance=2e-4, odd=ODD_NUMBERS)
    if name == "matrix":
        t = dtype("int32", "float32")
        kind = "unit" if t == "int32" else "fine"  # long products of large floats cancel: nothing would be right of either
        return Operator(f"matrix {t}", matrix, matrix, (t,) * 4, (1, 0, 0, 1), False, kind, False, tolerance=1e-3)
    if name == "last":
        t = dtype("int16", "float32")
        op = lambda a, b: jnp.where(b == 0, a, b)  # noqa: E731
        return Operator(f"last {t}", op, op, (t,), 0, False, "distinct", False, smooth=False)
    t = dtype("float32", "float32", "float64", "int32", "complex64")
    op = lambda a, b: (b[0] * a[0], b[0] * a[1] + b[1])  # noqa: E731
    return Operator(f"affine {t}", monoids.affine if "known" in name else op, op, (t, t), (1, 0), "known" in name, "unit", False)


# --- functions ------------------------------------------------------------------------------------------------------------


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
    mapped = bool(rng.random() < 0.2) and k == 1 and op.dtypes[0] in ("float32", "float64", "int32")
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


# --- transformations ------------------------------------------------------------------------------------------------------


def inexact(tree: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]


def some(rng: Rng, p: Program, most: float = 0.7) -> list[bool]:
    mask = [bool(b) for b in rng.random(len(p.arrays)) < most]
    return mask if any(mask) else [True] * len(mask)


def widened(p: Program, mask: Sequence[bool], n: int) -> list[Array]:
    return [dataclasses.replace(a, shape=(n, *a.shape)) if m else a for a, m in zip(p.arrays, mask, strict=True)]


def by_vmap(rng: Rng, p: Program) -> Program:
    mask, n = some(rng, p), int(rng.choice([1, 2, 3]))
    axes = [0 if m else None for m in mask]
    return p.around(f"vmap {axes} of {n}", *(jax.vmap(f, axes) for f in (p.mine, p.plain)), widened(p, mask, n))


def by_loop(rng: Rng, p: Program) -> Program:
    mask, n = some(rng, p), int(rng.choice([1, 3]))

    def around(f: Fn) -> Fn:
        def run(*xs: Any) -> Any:
            def step(c: Any, rows: Any) -> Any:
                rest = iter(rows)
                return c + 1, f(*(next(rest) if m else x for m, x in zip(mask, xs, strict=True)))

            return jax.lax.scan(step, 0, [x for m, x in zip(mask, xs, strict=True) if m])[1]

        return run

    return p.around(f"loop {mask} of {n}", around(p.mine), around(p.plain), widened(p, mask, n))


def by_shard_map(rng: Rng, p: Program) -> Program:
    # the cotangent of what does not vary is summed over devices; and a branch on what does fails in JAX if anything does not
    alike = any(word in p.text for word in ("jvp", "vjp", "transpose", "cond"))
    mask = [True] * len(p.arrays) if alike else some(rng, p)
    axes = [0 if m else None for m in mask]
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = tuple(P("d") if m else P() for m in mask)
    mine = jax.shard_map(jax.vmap(p.mine, axes), mesh=mesh, in_specs=specs, out_specs=P("d"))
    return p.around(f"shard_map {axes}", jax.jit(mine), jax.vmap(p.plain, axes), widened(p, mask, 8))


def by_jvp(rng: Rng, p: Program) -> Program:
    moved = [k for k, a in enumerate(p.arrays) if a.diff]
    n = len(p.arrays)

    def around(f: Fn) -> Fn:
        def run(*xs: Any) -> Any:
            def of(*some: Any) -> Any:
                full = list(xs[:n])
                for k, x in zip(moved, some, strict=True):
                    full[k] = x
                return f(*full)

            out, dot = jax.jvp(of, tuple(xs[k] for k in moved), tuple(xs[n:]))
            return out, [d for d, o in zip(jax.tree.leaves(dot), jax.tree.leaves(out), strict=True) if inexact(o)]

        return run

    tangents = [dataclasses.replace(p.arrays[k], kind="small") for k in moved]
    return p.around("jvp", around(p.mine), around(p.plain), [*p.arrays, *tangents], linear=None)


def cotangents(p: Program) -> list[Array]:
    outs = jax.eval_shape(p.plain, *(jax.ShapeDtypeStruct(a.shape, jnp.dtype(a.dtype)) for a in p.arrays))
    return [Array(o.shape, str(o.dtype), diff=True) for o in inexact(outs)]


def by_vjp(rng: Rng, p: Program) -> Program:
    moved = [k for k, a in enumerate(p.arrays) if a.diff]
    n = len(p.arrays)
    remat = bool(rng.random() < 0.2)

    def around(f: Fn) -> Fn:
        def run(*xs: Any) -> Any:
            def of(*some: Any) -> Any:
                full = list(xs[:n])
                for k, x in zip(moved, some, strict=True):
                    full[k] = x
                return inexact(f(*full))

            return jax.vjp(jax.checkpoint(of) if remat else of, *(xs[k] for k in moved))[1](list(xs[n:]))

        return run

    more = [*p.arrays, *cotangents(p)]
    return p.around("vjp of remat" if remat else "vjp", around(p.mine), around(p.plain), more, linear=None)


def by_transpose(rng: Rng, p: Program) -> Program:
    k, n = p.linear, len(p.arrays)
    assert k is not None

    def around(f: Fn, transpose: bool) -> Fn:
        def run(*xs: Any) -> Any:
            of = lambda x: inexact(f(*xs[:k], x, *xs[k + 1 : n]))  # noqa: E731
            return (jax.linear_transpose(of, xs[k]) if transpose else jax.vjp(of, xs[k])[1])(list(xs[n:]))

        return run

    more = [*p.arrays, *cotangents(p)]
    return p.around("transpose", around(p.mine, True), around(p.plain, False), more, linear=None)


def by_cond(rng: Rng, p: Program) -> Program:
    def around(f: Fn) -> Fn:
        def run(flag: Any, *xs: Any) -> Any:
            return jax.lax.cond(flag, f, lambda *xs: jax.tree.map(jnp.zeros_like, f(*xs)), *xs)

        return run

    # JAX itself does not transpose one that is mapped
    return p.around("cond", around(p.mine), around(p.plain), [Array((), "bool"), *p.arrays], linear=None)


def by_fuse(rng: Rng, p: Program) -> Program:
    if rng.random() < 0.5:
        return p.around("fuse", jp.fuse(p.mine), p.plain)
    return p.around("fuse plain", jp.fuse(p.plain), p.plain)


def by_producers(rng: Rng, p: Program) -> Program:
    """Arrays are made of themselves before: what kernels take in, or do not, changes nothing."""
    linear = [
        lambda x: x * jnp.ones((), x.dtype),
        lambda x: x.reshape(-1).reshape(x.shape),
        lambda x: jax.jit(lambda x: x[jnp.arange(x.shape[0])])(x),
        lambda x: jnp.take(x, jnp.arange(x.shape[0]), axis=0),
        lambda x: x.at[jnp.arange(-x.shape[0], 0)].get(mode="fill", fill_value=1),
        lambda x: jnp.where(jnp.arange(x.shape[0]).reshape(-1, *[1] * (x.ndim - 1)) % 2 == 0, x, jax.lax.optimization_barrier(x)),
        lambda x: jax.checkpoint(lambda x: x * jnp.ones_like(x))(x.T).T,
        lambda x: jnp.where((jnp.arange(x.shape[0]) >= 0).reshape(-1, *[1] * (x.ndim - 1)), x, jnp.zeros((), x.dtype)),
    ]
    others = [
        lambda x: jnp.where(x == x, x, x),
        lambda x: jax.lax.cond(x.ravel()[0] == 0, lambda: x * jnp.ones_like(x), lambda: x),
        lambda x: jnp.sort(jnp.stack([x, x]), axis=0)[1],
        lambda x: jax.lax.select(jax.lax.full(x.shape, True), *jax.lax.map(lambda y: (y, y), x)),
        lambda x: x ^ x ^ x if x.dtype.kind in "iu" else x + x - x,
        lambda x: jnp.clip(x, jnp.min(x), jnp.max(x)) if x.dtype.kind in "iu" else jnp.negative(-x),
        lambda x: x.astype({2: jnp.float32, 1: jnp.int32}.get(x.dtype.itemsize, x.dtype)).astype(x.dtype),
    ]
    makers = linear + others * (p.linear is None)
    chosen = [
        makers[rng.integers(len(makers))] if a.shape and 0 not in a.shape and a.dtype != "bool" and rng.random() < 0.8 else None
        for a in p.arrays
    ]
    mine = lambda *xs: p.mine(*(x if m is None else m(jnp.asarray(x)) for m, x in zip(chosen, xs, strict=True)))  # noqa: E731
    return p.around("made before", mine, p.plain, odd=p.odd[:1])  # what is added to an infinity cannot be taken from it


def by_export(rng: Rng, p: Program) -> Program:
    checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in jp.CUSTOM_CALL_TARGETS]

    def mine(*xs: Any) -> Any:
        exported = jax.export.export(jax.jit(p.mine), disabled_checks=checks)(*xs)
        return jax.export.deserialize(exported.serialize()).call(*xs)

    return p.around("export", mine, p.plain, traceable=False)


def transformed(rng: Rng, p: Program) -> Program:
    if rng.random() < 0.06:
        p = by_fuse(rng, p)
    elif rng.random() < 0.3:
        p = by_producers(rng, p)
    for _ in range(int(rng.integers(0, 4))):
        choices: list[Callable[[Rng, Program], Program]] = [by_vmap, by_vmap, by_loop, by_cond, by_shard_map]
        if p.smooth and any(a.diff for a in p.arrays):
            choices += [by_jvp] * 3 + [by_vjp] * 4
        if p.linear is not None:
            choices += [by_transpose] * 3
        chosen = choices[rng.integers(len(choices))]
        if sum(p.text.count(word) for word in DERIVATIVES) >= 2 and chosen in (by_jvp, by_vjp):
            continue
        if chosen is by_shard_map and ("shard_map" in p.text or "fuse plain" in p.text or any(0 in a.shape for a in p.arrays)):
            continue  # the loops' types do not vary; and not every XLA takes a loop around arrays of no elements
        p = chosen(rng, p)
    if "shard_map" not in p.text and rng.random() < 0.06:
        return by_export(rng, p)
    return p


# --- running --------------------------------------------------------------------------------------------------------------


def program(seed: int, number: int) -> tuple[Program, Rng, bool]:
    rng = np.random.default_rng([seed, number])
    x64 = bool(rng.random() < 0.25)
    with jax.enable_x64(x64), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformed(rng, FUNCTIONS[rng.integers(len(FUNCTIONS))](rng, x64)), rng, x64


def differ(got: Any, wanted: Any, tolerance: float) -> str | None:
    """How they do."""
    mine, other = jax.tree.leaves(got), jax.tree.leaves(wanted)
    if len(mine) != len(other):
        return f"{len(mine)} results for {len(other)}"
    for k, (g, w) in enumerate(zip(mine, other, strict=True)):
        if g.dtype == jax.dtypes.float0:
            continue
        if (g.shape, g.dtype) != (w.shape, w.dtype):
            return f"result {k} is {g.dtype}{g.shape}, not {w.dtype}{w.shape}"
        g, w = np.asarray(g), np.asarray(w)
        if not jnp.issubdtype(w.dtype, jnp.inexact):
            same = np.array_equal(g, w)
        else:
            eps = float(jnp.finfo(w.dtype).eps)
            wide = np.complex128 if w.dtype.kind == "c" else np.float64
            g, w = g.astype(wide), w.astype(wide)
            bound = np.abs(w[np.isfinite(w)]).max(initial=1)
            same = np.allclose(g, w, rtol=max(50 * eps, tolerance), atol=max(50 * eps, tolerance) * bound, equal_nan=True)
        if not same:
            return f"result {k}:\n{g}\nis not\n{w}"
    return None


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jp.IdentityWarning)
        warnings.simplefilter("ignore", jp.FallbackWarning)
        yield


def check(seed: int, number: int, draws: int) -> str | None:
    """Runs a program on so many draws of its arrays: what is wrong with it, if anything."""
    p, rng, x64 = program(seed, number)
    eager = not p.traceable or rng.random() < 0.15
    kernels = forced(AnyKernel()) if rng.random() < 0.7 else contextlib.nullcontext()
    with jax.enable_x64(x64), kernels, quietly():
        mine, plain = p.mine if eager else jax.jit(p.mine), jax.jit(p.plain)
        for k in range(1 if not p.traceable else draws):
            odd = p.odd if rng.random() < 0.3 and not any(word in p.text for word in DERIVATIVES) else ()
            arrays = [a.with_odd(rng, odd) for a in p.arrays]
            try:
                wanted = plain(*map(jnp.asarray, arrays))
                wrong = differ(mine(*map(jnp.asarray, arrays)), wanted, p.tolerance)
            except Exception:
                wrong = traceback.format_exc(limit=-6)
            if wrong:
                return f"--seed {seed} --only {number}: {'eager ' * eager}{p.text}, draw {k}\n{wrong}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="calls")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=8, help="calls of each program")
    parser.add_argument("--only", type=int, help="the number of one program")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    args = parser.parse_args()
    flags = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=8"
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}"
    numbers = [args.only] if args.only is not None else range(-(-args.count // args.draws))
    begin, failed, done = time.monotonic(), 0, 0
    for number in numbers:
        wrong = check(args.seed, number, args.draws)
        done += 1
        if wrong:
            failed += 1
            print(f"\n{wrong}", flush=True)
        if number % 100 == 99:
            jax.clear_caches()
        if time.monotonic() - begin > args.seconds:
            break
    print(f"{done} programs, {done * args.draws} calls in {time.monotonic() - begin:.0f} s: {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
