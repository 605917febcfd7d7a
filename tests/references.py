"""Plain NumPy references: a sequential loop in float64, complex128 and Python's integers; and a zoo of operators to try on it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp

Op = Callable[[Any, Any], Any]


def wide(x: Any) -> np.ndarray:
    """In the widest type of its kind; integers keep theirs (they wrap)."""
    x = np.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return x.astype(np.complex128)
    return x.astype(np.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x


def in_mode(index: np.ndarray, size: int, mode: str = "drop") -> np.ndarray:
    """Indices as Python integers, -1 where they are dropped."""
    out = np.asarray(index).astype(object)
    if mode == "clip":
        out = np.array([min(max(i, 0), size - 1) for i in out], object)
    elif mode == "wrap":
        out = np.array([i % size if size else -1 for i in out], object)
    return np.array([i if 0 <= i < size else -1 for i in out], np.int64)


def reduce_by_index(
    values: Any, indices: Any, num_bins: Any, op: Op, identity: Any = None, dest: Any = None, mode: str = "drop"
) -> Any:
    """The definition, element by element. ``op`` works on NumPy scalars or arrays (pytrees of them)."""
    sizes = num_bins if isinstance(num_bins, tuple) else (num_bins,)
    index = indices if isinstance(indices, tuple) and isinstance(num_bins, tuple) else (indices,)
    columns = [in_mode(np.asarray(i), n, mode) for i, n in zip(index, sizes, strict=True)]
    leaves, tree = jax.tree.flatten(values)
    leaves = [wide(v) for v in leaves]
    total = math.prod(sizes)
    if dest is not None:
        start = [wide(d).reshape(total, *v.shape[1:]) for d, v in zip(jax.tree.leaves(dest), leaves, strict=True)]
    else:
        ones = [np.asarray(x) for x in jax.tree.leaves(identity)]
        start = [np.broadcast_to(e, (total, *v.shape[1:])).astype(v.dtype) for e, v in zip(ones, leaves, strict=True)]
    bins = [[b[h] for b in start] for h in range(total)]
    with np.errstate(all="ignore"):
        for n in range(len(columns[0])):
            if any(c[n] < 0 for c in columns):
                continue
            h = 0
            for c, size in zip(columns, sizes, strict=True):
                h = h * size + int(c[n])
            a = jax.tree.unflatten(tree, bins[h])
            bins[h] = jax.tree.leaves(op(a, jax.tree.unflatten(tree, [v[n] for v in leaves])))
    out = [np.array([b[k] for b in bins]).reshape(*sizes, *v.shape[1:]).astype(v.dtype) for k, v in enumerate(leaves)]
    return jax.tree.unflatten(tree, out)


def assert_close(got: Any, wanted: Any, tolerance: float | None = None) -> None:
    """Integers exactly, floats up to ``tolerance`` (some roundings of their dtype if None); structures the same."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert g.shape == np.shape(w), (g.shape, np.shape(w))
        if not jnp.issubdtype(g.dtype, jnp.inexact):
            np.testing.assert_array_equal(np.asarray(g), w)
            continue
        eps = float(jnp.finfo(g.dtype).eps)
        rtol = max(50 * eps, tolerance or 0)
        w = np.asarray(w)
        bound = np.abs(w[np.isfinite(w)]).max(initial=1)
        np.testing.assert_allclose(np.asarray(g, wide(g).dtype), w, rtol=rtol, atol=rtol * bound)


# --- operators -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """An operator as a user writes it, the same in NumPy, and values that it is meant for."""

    name: str
    op: Op
    reference: Op
    identity: Any  # for the reference
    sample: Callable[[np.random.Generator, int], Any]
    known: bool = False  # does jaxprims know the identity?
    smooth: bool = False  # differentiable (twice) at the sample
    tolerance: float | None = None

    @property
    def given(self) -> Any:
        """The identity that has to be given."""
        return None if self.known else self.identity

    def __str__(self) -> str:
        return self.name


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def bits(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 2**32, shape, np.uint32)


def mean_variance(where: Any) -> Op:
    """Chan's combination of (count, mean, sum of squared deviations)."""

    def op(a: Any, b: Any) -> Any:
        (na, ma, sa), (nb, mb, sb) = a, b
        n = na + nb
        weight = where(n > 0, nb / where(n > 0, n, 1), 0)
        delta = mb - ma
        return n, ma + delta * weight, sa + sb + delta * delta * na * weight

    return op


def arg_extreme(where: Any) -> Op:
    """The greater value, with the smaller index among equals."""

    def op(a: Any, b: Any) -> Any:
        (va, ia), (vb, ib) = a, b
        first = (va > vb) | ((va == vb) & (ia < ib))
        return where(first, va, vb), where(first, ia, ib)

    return op


def gcd(a: Any, b: Any) -> Any:
    def step(s: tuple[Any, Any]) -> tuple[Any, Any]:
        return s[1], s[0] % s[1]

    return jax.lax.while_loop(lambda s: s[1] != 0, step, (a, b))[0]


def packed(maximum: Any) -> Op:
    """The greater of the low halves, the union of the high ones."""
    low, high = np.uint32(0xFFFF), np.uint32(0xFFFF0000)
    return lambda a, b: maximum(a & low, b & low) | ((a | b) & high)


def circulant(rng: np.random.Generator, n: int) -> np.ndarray:
    """2 × 2 circulant matrices commute."""
    a, b = rng.uniform(0.8, 1, n), rng.uniform(-0.2, 0.2, n)
    return np.stack([np.stack([a, b], -1), np.stack([b, a], -1)], -2).astype(np.float32)


def series_product(a: Any, b: Any) -> Any:
    """Power series in three terms."""
    return {
        "c0": a["c0"] * b["c0"],
        "c1": a["c0"] * b["c1"] + a["c1"] * b["c0"],
        "c2": a["c0"] * b["c2"] + a["c1"] * b["c1"] + a["c2"] * b["c0"],
    }


def two_best(a: Any, b: Any) -> Any:
    """The two greatest of four; a and b descend."""
    return jnp.sort(jnp.concatenate([a, b]))[::-1][:2]


DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip


def einstein(a: Any, b: Any) -> Any:
    """Relativistic addition of velocities."""
    return (a + b) / (1 + a * b)


def affine(p: Any, q: Any) -> Any:
    """Maps x -> p0 x + p1, one after the other."""
    return q[0] * p[0], q[0] * p[1] + q[1]


def matmul(a: Any, b: Any) -> Any:
    return a @ b


def inexact(tree: Any) -> list[Any]:
    """The leaves that have derivatives."""
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]


CASES = (
    Case("add", jnp.add, np.add, 0.0, normal, known=True, smooth=True),
    Case("max", jnp.maximum, np.maximum, -np.inf, normal, known=True, smooth=True),
    Case(
        "mul", lambda a, b: b * a, np.multiply, 1.0, lambda r, n: r.uniform(0.7, 1.4, n).astype(np.float32),
        known=True, smooth=True, tolerance=1e-5,
    ),
    Case("logaddexp", jnp.logaddexp, np.logaddexp, -np.inf, normal, known=True, smooth=True, tolerance=1e-5),
    Case("a+b+ab", lambda a, b: a + b + a * b, lambda a, b: a + b + a * b, 0.0, lambda r, n: 0.3 * normal(r, n), smooth=True,
         tolerance=1e-5),
    Case("einstein", einstein, einstein, 0.0, lambda r, n: r.uniform(-0.5, 0.5, n).astype(np.float32),
         smooth=True, tolerance=1e-5),
    Case(
        "harmonic", lambda a, b: 1 / (1 / a + 1 / b), lambda a, b: 1 / (1 / a + 1 / b), np.inf,
        lambda r, n: r.uniform(0.5, 2, n).astype(np.float32), tolerance=1e-5,
    ),
    Case(
        "mean_variance", mean_variance(jnp.where), mean_variance(np.where), (0.0, 0.0, 0.0),
        lambda r, n: (np.ones(n, np.float32), normal(r, n), np.zeros(n, np.float32)), smooth=True, tolerance=1e-4,
    ),
    Case(
        "argmax", arg_extreme(jnp.where), arg_extreme(np.where), (-np.inf, 2**31 - 1),
        lambda r, n: (r.integers(0, 5, n).astype(np.float32), r.permutation(n).astype(np.int32)),
    ),
    Case(
        "complex_mul", lambda a, b: a * b, lambda a, b: a * b, 1.0,
        lambda r, n: np.exp(1j * r.uniform(0, 6, n)).astype(np.complex64), known=True, tolerance=1e-4,
    ),
    Case(
        "saturating", lambda a, b: jnp.minimum(a + b, jnp.uint32(2**24 - 1)),
        lambda a, b: np.minimum(a + b, np.uint32(2**24 - 1)),
        0, lambda r, n: r.integers(0, 2**22, n, np.uint32),
    ),
    Case("packed", packed(jnp.maximum), packed(np.maximum), 0, bits),
    Case("max5", jnp.maximum, np.maximum, -np.inf, lambda r, n: normal(r, n, 5), known=True, smooth=True),
    Case("circulant", lambda a, b: a @ b, lambda a, b: a @ b, np.eye(2), circulant, smooth=True, tolerance=1e-4),
    Case(
        "series", series_product, series_product, {"c0": 1.0, "c1": 0.0, "c2": 0.0},
        lambda r, n: {"c0": r.uniform(0.8, 1.2, n).astype(np.float32), "c1": 0.1 * normal(r, n), "c2": 0.1 * normal(r, n)},
        smooth=True, tolerance=1e-4,
    ),
    Case(
        "two_best", two_best, lambda a, b: np.sort(np.concatenate([a, b]))[::-1][:2], -np.inf,
        lambda r, n: np.sort(normal(r, n, 2))[:, ::-1].copy(), smooth=True,
    ),
    Case("gcd", gcd, np.gcd, 0, lambda r, n: (r.integers(1, 50, n) * 6).astype(np.int32)),
    Case("xor", lambda a, b: a ^ b, np.bitwise_xor, 0, bits, known=True),
    Case(
        "add300", jnp.add, np.add, 0.0, lambda r, n: normal(r, n, 300), known=True, smooth=True,
    ),
    Case(
        "a+b+ab on 40", lambda a, b: a + b + a * b, lambda a, b: a + b + a * b, 0.0, lambda r, n: 0.3 * normal(r, n, 8, 5),
        smooth=True, tolerance=1e-5,
    ),
)  # fmt: skip
BY_NAME = {c.name: c for c in CASES}


# --- one small histogram ------------------------------------------------------------------------------------------------

N, H = 10, 4
INDEX = np.array([0, 1, 3, 0, -1, 1, 0, 3, 4, 1], np.int32)  # bin 2 stays empty, two elements are dropped


def sample(case: Case, n: int, seed: int = 0, wide: bool = False) -> Any:
    """Values for an operator; ``wide``: in double precision."""
    values = case.sample(np.random.default_rng(seed), n)
    if wide:
        double = {"float32": np.float64, "complex64": np.complex128}
        values = jax.tree.map(lambda v: v.astype(double.get(v.dtype.name, v.dtype)), values)
    return jax.tree.map(jnp.asarray, values)


def histogram(case: Case) -> Callable[..., Any]:
    """Of values, indices and dest."""
    return lambda v, i=INDEX, d=None: jp.reduce_by_index(v, i, H, case.op, identity=case.given, dest=d)


def stack(*trees: Any) -> Any:
    """Leaf by leaf."""
    return jax.tree.map(lambda *xs: np.stack(xs), *trees)


def scan(
    xs: Any,
    op: Op,
    axis: int = 0,
    *,
    init: Any = None,
    identity: Any = None,
    exclusive: bool = False,
    reverse: bool = False,
    starts: Any = None,
) -> Any:
    """The definition of a scan, one slice after the other. ``op`` works on NumPy arrays (pytrees of them)."""
    leaves, tree = jax.tree.flatten(xs)
    leaves = [np.moveaxis(wide(x), axis, 0) for x in leaves]
    n = len(leaves[0])
    first = init if init is not None else identity
    start = None
    if first is not None:
        start = [
            np.broadcast_to(wide(e), x.shape[1:]).astype(x.dtype) for e, x in zip(jax.tree.leaves(first), leaves, strict=True)
        ]
    out = [np.empty_like(x) for x in leaves]
    state: Any = None
    with np.errstate(all="ignore"):
        for i in range(n - 1, -1, -1) if reverse else range(n):
            if state is None or (starts is not None and starts[i]):
                state = None if init is None else start
            x = [v[i] for v in leaves]
            both = x if state is None else jax.tree.leaves(op(jax.tree.unflatten(tree, state), jax.tree.unflatten(tree, x)))
            for o, v in zip(out, (start if state is None else state) if exclusive else both, strict=True):
                o[i] = v
            state = both
    return jax.tree.unflatten(tree, [np.moveaxis(o, 0, axis) for o in out])
