"""Random operators, dtypes, shapes and indices against the sequential loop.

An operator is drawn as an expression tree that is associative and commutative by construction: a base monoid, seen through a
random bijection g, is g⁻¹(g(a) ⊕ g(b)); several of them side by side are a product. The same Python runs on ``jax.numpy`` and on
NumPy.
More examples: ``JAXPRIMS_EXAMPLES=2000 pytest tests/test_properties.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

import jaxprims as jp

pytestmark = pytest.mark.usefixtures("strict")

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
Function = Callable[[Any, Any], Any]  # (xp, x) -> x


@dataclasses.dataclass(frozen=True)
class Bijection:
    forward: Function
    backward: Function
    text: str


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A monoid on one dtype: ``op(xp, a, b)``."""

    dtype: str
    op: Callable[[Any, Any, Any], Any]
    identity: Any
    text: str


# --- operators ---------------------------------------------------------------------------------------------------------


@st.composite
def bijections(draw: st.DrawFn, dtype: str) -> Bijection:
    """Of one integer dtype onto itself."""
    t = np.dtype(dtype)
    bits = 8 * t.itemsize
    kind = draw(st.sampled_from(["xor", "add", "times", "rotate", "not", "xorshift", "negate"]))
    info = np.iinfo(t)
    c = np.array(draw(st.integers(int(info.min), int(info.max))), t)[()]
    k = draw(st.integers(1, bits - 1))
    unsigned = np.dtype(f"uint{bits}")

    def rotate(by: int) -> Function:
        def f(xp: Any, x: Any) -> Any:
            u = x.astype(unsigned)
            return ((u << unsigned.type(by)) | (u >> unsigned.type(bits - by))).astype(t)

        return f

    def undo_xorshift(xp: Any, x: Any) -> Any:
        u = x.astype(unsigned)
        y = u
        for _ in range(-(-bits // k)):
            y = u ^ (y >> unsigned.type(k))
        return y.astype(t)

    if kind == "xor":
        return Bijection(lambda xp, x: x ^ c, lambda xp, x: x ^ c, f"^{c}")
    if kind == "add":
        return Bijection(lambda xp, x: x + c, lambda xp, x: x - c, f"+{c}")
    if kind == "times":
        odd = int(c) | 1
        there, back = (np.array(v % 2**bits, unsigned).astype(t)[()] for v in (odd, pow(odd, -1, 2**bits)))
        return Bijection(lambda xp, x: x * there, lambda xp, x: x * back, f"*{there}")
    if kind == "rotate":
        return Bijection(rotate(k), rotate(bits - k), f"rot{k}")
    if kind == "not":
        return Bijection(lambda xp, x: ~x, lambda xp, x: ~x, "~")
    if kind == "negate":
        return Bijection(lambda xp, x: -x, lambda xp, x: -x, "-")
    return Bijection(
        lambda xp, x: (x.astype(unsigned) ^ (x.astype(unsigned) >> unsigned.type(k))).astype(t), undo_xorshift, f"x>>{k}"
    )


@st.composite
def integer_leaves(draw: st.DrawFn) -> Leaf:
    dtype = draw(st.sampled_from(INTEGERS))
    info = np.iinfo(dtype)
    t = np.dtype(dtype).type
    name, op, identity = draw(
        st.sampled_from([
            ("add", lambda xp, a, b: a + b, 0), ("mul", lambda xp, a, b: a * b, 1), ("xor", lambda xp, a, b: a ^ b, 0),
            ("and", lambda xp, a, b: a & b, -1 if info.min < 0 else info.max), ("or", lambda xp, a, b: a | b, 0),
            ("min", lambda xp, a, b: xp.minimum(a, b), info.max), ("max", lambda xp, a, b: xp.where(a > b, a, b), info.min),
        ])
    )  # fmt: skip
    chain = draw(st.lists(bijections(dtype), max_size=4))

    def forward(xp: Any, x: Any) -> Any:
        for g in chain:
            x = g.forward(xp, x)
        return x

    def backward(xp: Any, x: Any) -> Any:
        for g in reversed(chain):
            x = g.backward(xp, x)
        return x

    with np.errstate(all="ignore"):
        neutral = backward(np, np.array([identity], np.int64).astype(dtype))[0]
    text = f"{dtype}: {name} through [{' '.join(g.text for g in chain)}]"
    return Leaf(dtype, lambda xp, a, b: backward(xp, op(xp, forward(xp, a), forward(xp, b))), t(neutral), text)


@st.composite
def float_leaves(draw: st.DrawFn) -> Leaf:
    """Exact ones: values are small integers, infinities and NaN."""
    dtype = draw(st.sampled_from(["float32", "float16"]))
    t = np.dtype(dtype).type
    kind = draw(st.sampled_from(["max", "min", "max of negated", "sum", "scaled sum", "largest magnitude"]))
    scale = t(2.0 ** draw(st.integers(-3, 3)))
    op, identity = {
        "max": (lambda xp, a, b: xp.maximum(a, b), -np.inf),
        "min": (lambda xp, a, b: xp.minimum(b, a), np.inf),
        "max of negated": (lambda xp, a, b: -xp.maximum(-a, -b), np.inf),
        "sum": (lambda xp, a, b: a + b, 0),
        "scaled sum": (lambda xp, a, b: (a * scale + b * scale) / scale, 0),
        "largest magnitude": (lambda xp, a, b: xp.maximum(abs(a), abs(b)), 0),
    }[kind]
    return Leaf(dtype, op, t(identity), f"{dtype}: {kind}")


@st.composite
def bool_leaves(draw: st.DrawFn) -> Leaf:
    name, op, identity = draw(
        st.sampled_from([
            ("and", lambda xp, a, b: a & b, True), ("or", lambda xp, a, b: xp.logical_or(a, b), False),
            ("xor", lambda xp, a, b: a ^ b, False), ("equal", lambda xp, a, b: a == b, True),
        ])
    )  # fmt: skip
    return Leaf("bool", op, identity, f"bool: {name}")


leaves = st.one_of(integer_leaves(), integer_leaves(), float_leaves(), bool_leaves())


# --- data ------------------------------------------------------------------------------------------------------------------


def values_of(rng: np.random.Generator, leaf: Leaf, shape: tuple[int, ...], special: bool) -> np.ndarray:
    if leaf.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "int" in leaf.dtype:
        info = np.iinfo(leaf.dtype)
        drawn = rng.integers(info.min, info.max, shape, leaf.dtype, endpoint=True)
        extreme = rng.choice(np.array([info.min, info.max, 0, 1], leaf.dtype), shape)
        return np.where(rng.random(shape) < 0.2, extreme, drawn)
    drawn = rng.integers(0 if "magnitude" in leaf.text else -8, 9, shape).astype(leaf.dtype)
    if special and "sum" not in leaf.text:
        odd = rng.choice(np.array([np.nan, np.inf, -np.inf if "magnitude" not in leaf.text else 1, 0.0], leaf.dtype), shape)
        return np.where(rng.random(shape) < 0.1, odd, drawn)
    return drawn


def indices_of(rng: np.random.Generator, n: int, h: int, dtype: str) -> np.ndarray:
    info = np.iinfo(dtype)
    near = rng.integers(max(info.min, -2), min(info.max, h + 2), n, endpoint=True).astype(dtype)
    extreme = rng.choice(np.array([info.min, info.max, max(info.min, -1)], dtype), n)
    return np.where(rng.random(n) < 0.1, extreme, near)


def equal(got: Any, wanted: Any) -> None:
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert g.shape == w.shape
        np.testing.assert_array_equal(np.asarray(g), np.asarray(w).astype(g.dtype))  # NaN equals NaN


# --- properties ----------------------------------------------------------------------------------------------------------------


@examples(12)
@given(
    st.lists(leaves, min_size=1, max_size=3), st.sampled_from([(), (), (), (3,), (2, 2), (40,)]), st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 2, 7, 30, 60, 1500]), st.sampled_from([0, 1, 2, 5, 33, 3000]),
    st.sampled_from(["drop", "clip", "wrap"]), st.sampled_from(INTEGERS), st.booleans(), st.booleans(),
)  # fmt: skip
@pytest.mark.dear
def test_random_operators(
    monoid: list[Leaf],
    shape: tuple[int, ...],
    seed: int,
    n: int,
    h: int,
    mode: str,
    index_dtype: str,
    with_dest: bool,
    sort: bool,
) -> None:
    if n * h > 100_000 or shape == (40,):
        n = min(n, 60)
    rng = np.random.default_rng(seed)
    values = tuple(values_of(rng, leaf, (n, *shape), special=True) for leaf in monoid)
    index = indices_of(rng, n, h, index_dtype)
    index = np.sort(index) if sort else index
    dest = tuple(values_of(rng, leaf, (h, *shape), special=False) for leaf in monoid) if with_dest else None

    def op(xp: Any) -> Callable[[Any, Any], Any]:
        return lambda a, b: tuple(leaf.op(xp, x, y) for leaf, x, y in zip(monoid, a, b, strict=True))

    identity = tuple(leaf.identity for leaf in monoid)
    got = jp.reduce_by_index(values, index, h, op(jnp), identity=identity, dest=dest, mode=mode, indices_are_sorted=sort)
    equal(got, references.reduce_by_index(values, index, h, op(np), identity, dest, mode))


@examples(12)
@given(
    st.lists(st.tuples(leaves, st.integers(1, 4), st.integers(1, 40)), min_size=1, max_size=3), st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1, 9, 200, 1100]), st.booleans(),
)  # fmt: skip
@pytest.mark.dear
def test_random_functions(histograms: list[tuple[Leaf, int, int]], seed: int, n: int, batch: bool) -> None:
    """Several histograms at once; f makes k pairs for each, with indices computed from the position and a captured table."""
    rng = np.random.default_rng(seed)
    values = [values_of(rng, leaf, (2, n) if batch else (n,), special=True) for leaf, _, _ in histograms]
    table = rng.integers(-3, 45, 16).astype(np.int32)

    def f(p: jax.Array, *vs: jax.Array) -> list[Any]:
        out = []
        for (_, k, _), v in zip(histograms, vs, strict=True):
            at = jnp.asarray(table)[(p * 7 + jnp.arange(k, dtype=jnp.int32) * 5) & 15]
            out.append((at, jnp.broadcast_to(v, (k,))) if k > 1 else (at[0], v))
        return out

    def op_of(leaf: Leaf, xp: Any) -> Callable[[Any, Any], Any]:
        return lambda a, b: leaf.op(xp, a, b)

    bins = [jp.Bins(h, op_of(leaf, jnp), leaf.identity) for leaf, _, h in histograms]
    run = lambda *vs: jp.genhist(f, (jp.positions, *vs), bins)  # noqa: E731
    got = jax.tree.map(np.asarray, jax.vmap(run)(*values) if batch else run(*values))
    for j, (leaf, k, h) in enumerate(histograms):
        at = table[(np.arange(n)[:, None] * 7 + np.arange(k) * 5) & 15].reshape(-1)
        for b in range(2 if batch else 1):
            mine = np.repeat(values[j][b] if batch else values[j], k)
            wanted = references.reduce_by_index(mine, at, h, op_of(leaf, np), leaf.identity)
            equal(got[j][b] if batch else got[j], wanted)
