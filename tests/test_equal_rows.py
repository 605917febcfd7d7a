"""The same row has the same bits, wherever it lies in a batch: equal rows of floats, drawn with what is made of them. And
extremes have the same zeros, whoever finds them.

More examples: ``JAXPRIMS_EXAMPLES=500 pytest tests/test_equal_rows.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st
from odd_operators import matrix

import jaxprims as jp

pytestmark = pytest.mark.usefixtures("x64")


def variance(a: Any, b: Any) -> Any:
    (n, m, s), (k, p, q) = a, b
    d = p - m
    return n + k, m + d * (k / (n + k)), s + q + d * d * (n * k / (n + k))


def one(op: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: (op(a[0], b[0]),)


OPERATORS: dict[str, tuple[Any, tuple[float, ...]]] = {
    "sum": (one(jnp.add), (0,)),
    "product": (one(jnp.multiply), (1,)),
    "logaddexp": (one(jnp.logaddexp), (-np.inf,)),
    "velocities": (one(lambda a, b: (a + b) / (1 + a * b)), (0,)),
    "affine": (lambda a, b: (b[0] * a[0], b[0] * a[1] + b[1]), (1, 0)),
    "variance": (variance, (0, 0, 0)),
    "matrix": (matrix, (1, 0, 0, 1)),
    "six products": (lambda a, b: tuple(x * y for x, y in zip(a, b, strict=True)), (1,) * 6),
}
"""Classes of kernels: cheap and expensive, of few scalars and of many. None is associative to the bit."""

# Where the rows are, and which axes of results they are then.
BATCHES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "rows": (lambda call: lambda x: call(x, 2), (0, 1)),
    "columns": (lambda call: lambda x: call([jnp.moveaxis(v, 2, 0) for v in x], 0), (-2, -1)),
    "between": (lambda call: lambda x: call([jnp.moveaxis(v, 2, 1) for v in x], 1), (0, -1)),
    "vmap": (lambda call: lambda x: jax.vmap(jax.vmap(lambda x: call(x, 0)))(x), (0, 1)),
    "vmap of columns": (lambda call: lambda x: jax.vmap(lambda x: call(x, 0), 1)([v[0].T for v in x]), (0,)),
}


@examples(30)
@given(
    st.sampled_from(sorted(OPERATORS)),
    st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
    st.one_of(st.integers(1, 40), st.integers(1, 300)),
    st.tuples(st.integers(1, 3), st.integers(2, 70)),
    st.sampled_from(sorted(BATCHES)),
    st.sampled_from(["scan", "exclusive", "reduce"]),
    st.booleans(),
    st.sampled_from(["", "map", "starts", "init"]),
    st.integers(0, 2**32 - 1),
)
@pytest.mark.dear
def test_equal_rows(
    name: str, dtype: str, n: int, rows: tuple[int, int], batch: str, kind: str, reverse: bool, more: str, seed: int
) -> None:
    (op, identity), rng = OPERATORS[name], np.random.default_rng(seed)
    row = (rng.uniform(0.2, 1.5, (len(identity), n)) * (1 if name != "velocities" else 0.5)).astype(jnp.dtype(dtype))
    starts = rng.random(n) < 0.2

    def call(xs: Any, axis: int) -> Any:
        options: dict[str, Any] = {"axis": axis, "identity": tuple(jnp.asarray(i, dtype) for i in identity)}
        if more == "map":
            options["map"] = lambda *slots: tuple(v * v for v in slots)
        if more == "init":
            options["init"] = tuple(jnp.full(np.delete(xs[0].shape, axis), 0.7, dtype) for _ in identity)
        if kind == "reduce":
            return jp.reduce(tuple(xs), op, **options)
        options |= {"segment_starts": starts} if more == "starts" else {}
        return jp.scan(tuple(xs), op, exclusive=kind == "exclusive", reverse=reverse, **options)

    wrap, axes = BATCHES[batch]
    for y in jax.jit(wrap(call))([jnp.asarray(np.broadcast_to(v, (*rows, n))) for v in row]):
        lying = np.moveaxis(np.asarray(y), axes, range(len(axes)))
        lying = np.ascontiguousarray(lying).view(np.uint8).reshape(np.prod(lying.shape[: len(axes)], dtype=int), -1)
        assert len(np.unique(lying, axis=0)) == 1


@pytest.mark.strategies
def test_zeros_keep_their_signs_whoever_reduces() -> None:
    """Also what is left to XLA: rows and columns, the shortest, short ones and longer ones, few of them and many."""
    shapes, rng = [(1500, 3), (1500, 12), (30, 12), (100, 60)], np.random.default_rng(0)
    x = [rng.choice(np.float32([0.0, -0.0]), shape, p=(0.2, 0.8)) for shape in shapes]

    def extremes(x: Any, op: Any) -> Any:
        return [(jp.reduce(v, op, axis=1), jp.reduce(v.T, op, axis=0)) for v in x]

    largest, smallest = jax.jit(lambda x, y: (extremes(x, jnp.maximum), extremes(y, jnp.minimum)))(x, [-v for v in x])
    for v, most, least in zip(x, largest, smallest, strict=True):
        for y in (*most, *map(np.negative, least)):
            np.testing.assert_array_equal(np.signbit(y), np.signbit(v).all(1), str(v.shape))


@pytest.mark.cover(20)
@pytest.mark.parametrize("n", [1, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 40, 65, 130])
def test_rows_of_every_length(n: int) -> None:
    """Short ones that do not fill a vector, ones side by side, and long ones; of scalars of every size."""
    rng = np.random.default_rng(n)
    x = np.round(rng.normal(size=(71, n)) * 40)
    x = np.where(rng.random(x.shape) < 0.3, np.copysign(0.0, x), x)
    for dtype in (np.uint8, np.int16, np.int32, np.float32, np.float64, np.float16, jnp.bfloat16):
        values = (np.abs(x) if dtype == np.uint8 else x).astype(dtype)
        wide = values.dtype if values.dtype.kind in "iu" else np.float64
        np.testing.assert_array_equal(jp.reduce(values, jnp.maximum, axis=1), values.max(1))
        np.testing.assert_array_equal(jp.reduce(values, jnp.minimum, axis=1), values.min(1))
        got, expected = (np.asarray(v).astype(np.float64) for v in (jp.reduce(values, axis=1), values.sum(1, dtype=wide)))
        np.testing.assert_allclose(got, expected, rtol=1e-2)
        np.testing.assert_array_equal(jp.argmax(values, axis=1), values.argmax(1))
        np.testing.assert_array_equal(jp.argmin(values, axis=1), values.argmin(1))


def test_rows_and_columns_from_memory() -> None:
    """More than a core keeps in its caches: rows have the bits of the same among fewer ones; columns are right."""
    x = np.random.default_rng(0).uniform(0.5, 1.5, (30_000, 130)).astype(np.float32)
    many, few = (np.asarray(jp.reduce(v, axis=1)) for v in (x, x[:100]))
    np.testing.assert_array_equal(many[:100], few)
    np.testing.assert_allclose(many, x.sum(1), rtol=1e-5)
    np.testing.assert_array_equal(jp.reduce(x, jnp.maximum, axis=1), x.max(1))
    np.testing.assert_array_equal(jp.reduce(x, jnp.maximum, axis=0), x.max(0))
    np.testing.assert_allclose(jp.reduce(x, axis=0), x.sum(0, dtype=np.float64), rtol=1e-5)
