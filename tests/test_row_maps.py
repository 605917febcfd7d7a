"""Rows made for each element: histograms in which each element has the bin of its position, as a map makes them; and rows that
are gathered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp
from jaxprims.primitives.histogram.row_maps import made_rows, rows_at
from jaxprims.targets.cpu.llvm.engine import target
from jaxprims.targets.plans import AnyKernel, forced

N, H = 301, 17
RNG = np.random.default_rng(5)
IDS = jnp.asarray(RNG.integers(-3, H + 3, N), jnp.int32)
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "uint8", "complex64")


def some(shape: tuple[int, ...], dtype: str) -> jax.Array:
    return jnp.asarray(RNG.integers(-9, 9, shape)).astype(dtype)


def table_row(x: Any, i: Any, table: Any) -> Any:
    """Of an element's row and one that lies anywhere."""
    return jnp.where(i > 0, x + table.at[i].get(mode="clip"), x)


def by_position(f: Callable[..., Any], bins: int = N, op: Any = jnp.add, **options: Any) -> Callable[..., Any]:
    return lambda *arrays: jp.genhist(lambda p, *xs: (p, f(*xs)), (jp.positions, *arrays), jp.Bins(bins, op, **options))


@pytest.mark.cover(3)
@pytest.mark.parametrize("inner", [(2,), (3, 2), (16,), (40,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_map(dtype: str, inner: tuple[int, ...]) -> None:
    """By kernels and by XLA, whatever the operator, of which each bin sees one value."""
    with jax.enable_x64(dtype == "float64"):
        x, table = some((N, *inner), dtype), some((H, *inner), dtype)
        f = lambda x, i: table_row(x, i, table)  # noqa: E731
        expected = jax.jit(jax.vmap(f))(x, IDS)
        for op in (jnp.add, jnp.multiply) if dtype == "complex64" else (jnp.add, jnp.maximum):
            np.testing.assert_array_equal(jax.jit(by_position(f, op=op))(x, IDS), expected)
            with forced(AnyKernel()):
                np.testing.assert_array_equal(jax.jit(by_position(f, op=op))(x, IDS), expected)


def test_is_told() -> None:
    """On GPUs it is a map of XLA's: no bin is updated atomically."""
    x = jnp.ones((4000, 16))
    (call,) = jp.explain(by_position(lambda x: 2 * x, 4000), target="sm_90")(x).calls
    assert call.strategy == "plain XLA"
    (call,) = jp.explain(by_position(lambda x: 2 * x, 4000))(x).calls
    assert call.reason == "each element has a bin of its own"


@pytest.mark.parametrize("bins", [N - 5, N + 5])
def test_other_numbers_of_bins(bins: int) -> None:
    """Elements without a bin are dropped, bins without an element hold the identity."""
    x = some((N, 12), "float32")
    expected = np.full((bins, 12), 7, np.float32)
    expected[: min(N, bins)] = x[: min(N, bins)]
    with forced(AnyKernel()):
        got = jax.jit(by_position(lambda x: x, bins, lambda a, b: b, identity=np.float32(7)))(x)
    np.testing.assert_array_equal(got, expected)


def test_from_dest() -> None:
    x, dest = some((N, 12), "float32"), some((N, 12), "float32")
    with forced(AnyKernel()):
        np.testing.assert_array_equal(jax.jit(by_position(lambda x: x, dest=dest))(x), x + dest)


TRANSFORMED: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "vmap": lambda f: lambda x, t: jax.vmap(f, (0, None))(jnp.stack([x, 2 * x]), t),
    "vmap of the table": lambda f: lambda x, t: jax.vmap(f, (None, 0))(x, jnp.stack([t, 3 * t])),
    "grad": lambda f: jax.grad(lambda x, t: jnp.sum(jnp.sin(f(x, t))), (0, 1)),
    "jvp": lambda f: lambda x, t: jax.jvp(f, (x, t), (2 * x, t + 1)),
    "vmap of grad": lambda f: (
        lambda x, t: jax.vmap(jax.grad(lambda x, t: jnp.sum(f(x, t) ** 2), 1), (0, None))(jnp.stack([x, 2 * x]), t)
    ),
    "second order": lambda f: jax.grad(lambda x, t: jnp.sum(jax.grad(lambda t: jnp.sum(jnp.sin(f(x, t))))(t) ** 2), (0, 1)),
    "remat": lambda f: jax.grad(lambda x, t: jnp.sum(jax.checkpoint(f)(x, t) ** 2)),
    "in a scan": lambda f: lambda x, t: jax.lax.scan(lambda c, _: (f(c, t), jnp.sum(c)), x, length=3),
}


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations(name: str) -> None:
    x, table = some((N, 6), "float32") / 8, some((H, 6), "float32") / 8

    def plain(x: Any, table: Any) -> Any:
        return jax.vmap(lambda x, i: table_row(x, i, table) * x)(x, IDS)

    def ours(x: Any, table: Any) -> Any:
        return by_position(lambda x, i: table_row(x, i, table) * x)(x, IDS)

    expected = jax.jit(TRANSFORMED[name](plain))(x, table)
    with forced(AnyKernel()):
        got = jax.jit(TRANSFORMED[name](ours))(x, table)
    jax.tree.map(lambda g, e: np.testing.assert_allclose(g, e, 1e-4, 1e-4), got, expected)


@pytest.mark.cover(3)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "int8", "int64"])
def test_rows_by_index(dtype: str) -> None:
    """Zeros for indices out of range."""
    with jax.enable_x64(dtype == "int64"):
        x, ids = some((H, 5), "float32"), IDS.astype(dtype)
        expected = np.where(((ids >= 0) & (ids < H))[:, None], x[np.clip(ids, 0, H - 1)], 0)
        np.testing.assert_array_equal(jax.jit(rows_at)(x, ids), expected)
        linear = jax.linear_transpose(lambda x: rows_at(x, ids), x)(jnp.ones((N, 5), np.float32))[0]
        np.testing.assert_array_equal(
            linear, np.stack([(np.asarray(ids) == h).sum() for h in range(H)])[:, None] * np.ones((H, 5))
        )


def test_rows_that_no_kernel_makes() -> None:
    """Of no elements, of one number, of a function that is not lane by lane."""
    assert rows_at(jnp.ones((H, 4)), IDS[:0]).shape == (0, 4)
    assert rows_at(jnp.ones((0, 4)), IDS).shape == (N, 4)
    np.testing.assert_array_equal(rows_at(jnp.arange(H), jnp.array([2, 40])), [2, 0])
    x = some((N, 4), "float32")
    np.testing.assert_array_equal(made_rows(_reversed, [], [x]), x[:, ::-1])


def _reversed(_: Any, x: Any) -> Any:
    return x[::-1]


@pytest.mark.parametrize("op", [jnp.maximum, jnp.minimum, jnp.logaddexp, jnp.hypot])
@pytest.mark.cover(2)
def test_gradients_of_rows_by_index(op: Callable[..., Any]) -> None:
    """Which element won, or what it weighs, is written nowhere; ties and dropped elements included, to the second order."""
    n, features = 4000, 9
    x = jnp.asarray(RNG.integers(1, 40, (n, features)), jnp.float32) / 8
    ids = jnp.asarray(RNG.integers(-2, H + 2, n), jnp.int32)

    def loss(combine: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: jnp.sum(jnp.sin(combine(x)))

    def plain(x: Any) -> Any:
        """One number of each bin after the other, whose derivatives are JAX's."""
        inside = [(ids == h)[:, None] for h in range(H)]
        if op in (jnp.maximum, jnp.minimum):
            worst = -jnp.inf if op is jnp.maximum else jnp.inf
            best = jnp.max if op is jnp.maximum else jnp.min
            return jnp.stack([best(jnp.where(mine, x, worst), 0) for mine in inside])
        if op is jnp.hypot:
            return jnp.stack([jnp.sqrt(jnp.sum(jnp.where(mine, x * x, 0), 0)) for mine in inside])
        return jnp.stack([jax.scipy.special.logsumexp(jnp.where(mine, x, -jnp.inf), 0) for mine in inside])

    ours = lambda x: jp.reduce_by_index(x, ids, H, op)  # noqa: E731
    gradient = jax.jit(jax.grad(loss(ours)))
    np.testing.assert_allclose(gradient(x), jax.jit(jax.grad(loss(plain)))(x), 1e-4, 1e-5)
    v = jnp.cos(jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape)
    second = lambda f: jax.jit(lambda x: jax.jvp(jax.grad(loss(f)), (x,), (v,))[1])  # noqa: E731
    np.testing.assert_allclose(second(ours)(x), second(plain)(x), 2e-3, 2e-4)
    batched = jax.jit(jax.vmap(jax.grad(loss(ours))))(jnp.stack([x, x[::-1]]))
    np.testing.assert_allclose(batched[0], gradient(x), 1e-5, 1e-6)
    memory = gradient.lower(x).compile().memory_analysis()
    assert memory.temp_size_in_bytes < x.nbytes / 4


@pytest.mark.strategies
@pytest.mark.parametrize("lanes", [5, 40])
def test_rows_that_are_gathered(lanes: int) -> None:
    """Short ones by XLA where no vectors are wide, long ones by a kernel; what was dropped has zeros."""
    n, ids = 3000, RNG.integers(-2, 22, 3000).astype(np.int32)
    rows = RNG.normal(size=(20, lanes)).astype(np.float32)
    back = jax.jit(lambda c: jax.linear_transpose(lambda x: jp.segment_sum(x, ids, 20), jnp.zeros((n, lanes), np.float32))(c)[0])
    if lanes == 40 or target().vector_bytes == 32:
        assert ("@jaxprims" in back.lower(rows).as_text()) == (lanes == 40)
    np.testing.assert_array_equal(back(rows), np.where(((ids < 0) | (ids > 19))[:, None], 0, rows[ids.clip(0, 19)]))


@pytest.mark.strategies
def test_transposes_of_sums_by_index_are_linear() -> None:
    """Twice transposed, a sum by index is itself."""
    x, ids = jnp.asarray(RNG.normal(size=2000), np.float32), jnp.asarray(RNG.integers(0, 30, 2000))
    total = lambda x: jp.segment_sum(x, ids, 30)  # noqa: E731
    back = lambda c: jax.linear_transpose(total, x)(c)[0]  # noqa: E731
    twice = lambda x: jax.linear_transpose(back, jnp.zeros(30, np.float32))(x)[0]  # noqa: E731
    np.testing.assert_array_equal(jax.jit(back)(jnp.arange(30.0)), ids.astype(np.float32))
    np.testing.assert_allclose(jax.jit(twice)(x), total(x), rtol=1e-5, atol=1e-5)
