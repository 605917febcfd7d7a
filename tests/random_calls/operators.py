"""Operators, of all kinds that are told apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxprims import monoids
from tests.odd_operators import ODD, ODD_IN_ORDER, matrix

from .program import FLOATS, INTEGERS, ODD_NUMBERS, Array, Fn, Rng


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
