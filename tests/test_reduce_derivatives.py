"""Derivatives of maxima, minima and products along axes against those of ``jax.numpy``: ties, zeros, long rows and lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp

rng = np.random.default_rng(3)
OPS = {"max": (jnp.max, jnp.maximum), "min": (jnp.min, jnp.minimum), "prod": (jnp.prod, jnp.multiply)}
SHAPES = [((300,), 0), ((40, 20), 0), ((40, 900), 0), ((3, 300), 1), ((40, 2, 3), 0), ((2, 40, 3), 1), ((5, 7), 1)]


def elements(shape: tuple[int, ...], axis: int, dtype: str = "float32") -> np.ndarray:
    """Small multiples of a quarter, so that there are ties; columns with no zero, one, two and three of them."""
    x = np.moveaxis(rng.integers(4, 9, shape) / 4 * rng.choice([-1, 1], shape), axis, 0)
    x[np.arange(len(x)) > 12] = rng.choice([-1, 1])  # products stay small
    flat = x.reshape(len(x), -1)
    for zeros in range(1, min(4, flat.shape[1])):
        flat[rng.choice(min(len(x), 5), zeros, replace=False), zeros] = 0
    return np.moveaxis(flat.reshape(x.shape), 0, axis).astype(dtype)


def both(name: str, axis: int) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    plain, op = OPS[name]
    return lambda x: jp.reduce(x, op, axis=axis), lambda x: plain(x, axis=axis)


def same(
    made: Callable[[Callable[[Any], Any]], Any], fns: tuple[Callable[[Any], Any], ...], *args: Any, tolerance: float
) -> None:
    got, want = (np.asarray(y, np.float64) for y in jax.jit(lambda *args: [made(f)(*args) for f in fns])(*args))
    assert np.abs(got - want).max() <= tolerance * np.abs(want).max()


@pytest.mark.cover(2)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("name", OPS)
def test_first_derivatives(name: str, shape: tuple[int, ...], axis: int) -> None:
    x, fns = elements(shape, axis), both(name, axis)
    same(lambda f: jax.grad(lambda x: jnp.sum(jnp.sin(f(x)))), fns, x, tolerance=1e-5)
    same(lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(3 * x),))[1], fns, x, tolerance=1e-5)


SECOND = [("prod", (9, 4), 0), ("prod", (40,), 0), ("max", (40, 3), 0), ("min", (300,), 0)]


@pytest.mark.cover(2)
@pytest.mark.parametrize(("name", "shape", "axis"), SECOND)
def test_second_derivatives(name: str, shape: tuple[int, ...], axis: int) -> None:
    x, fns = elements(shape, axis), both(name, axis)

    def along(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: jax.jvp(jax.grad(lambda x: jnp.sum(jnp.sin(f(x)))), (x,), (jnp.cos(3 * x),))[1]

    same(along, fns, x, tolerance=1e-5)
    same(lambda f: jax.vmap(along(f)), fns, np.stack([x, x[::-1]]), tolerance=1e-5)


@pytest.mark.cover(2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", OPS)
def test_other_dtypes(name: str, dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(elements((40, 5), 0), dtype)
        fns = both(name, 0)
        grads = [jax.jit(jax.grad(lambda x, f=f: jnp.sum(f(x).astype(jnp.float32))))(x) for f in fns]
        assert grads[0].dtype == x.dtype
        np.testing.assert_allclose(*(np.asarray(g, np.float64) for g in grads), rtol=0.02, atol=1e-3)


def test_ties_are_counted_beyond_what_halves_can() -> None:
    grad = jax.jit(jax.grad(lambda x: jp.reduce(x, jnp.maximum).astype(jnp.float32)))(np.ones(5000, np.float16))
    np.testing.assert_allclose(np.asarray(grad, np.float32), 1 / 5000, rtol=2e-2)


def test_a_maximum_that_is_nan_moves_with_nothing() -> None:
    x = np.array([[1, np.nan], [2, 3]] * 20, np.float32)
    grad = jax.jit(jax.grad(lambda x: jnp.sum(jp.reduce(x, jnp.maximum, axis=0)[:1])))(x)
    np.testing.assert_array_equal(grad, np.tile([[0, 0], [1 / 20, 0]], (20, 1)).astype(np.float32))


@pytest.mark.cover(4)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("name", OPS)
def test_with_init(name: str, shape: tuple[int, ...], axis: int) -> None:
    """Which is the result of some columns, of some not, and no element's equal."""
    x = elements(shape, axis)
    best = np.max(x, axis) if name != "min" else np.min(x, axis)
    init = (best + np.where(rng.random(best.shape) < 0.5, 0.125, -0.125)).astype(x.dtype)
    plain, op = OPS[name]
    ours = lambda x, s: jnp.sum(jnp.sin(jp.reduce(x, op, axis=axis, init=s)))  # noqa: E731
    wanted = lambda x, s: jnp.sum(jnp.sin(op(s, plain(x, axis=axis))))  # noqa: E731
    tangent = lambda f: jax.jvp(f, (x, init), (x * 0.5, init + 1))[1]  # noqa: E731
    *grads, moved = jax.jit(lambda x, s: (*jax.grad(wanted, (0, 1))(x, s), tangent(wanted)))(x, init)
    *got, ours_moved = jax.jit(lambda x, s: (jax.grad(ours)(x, s), jax.grad(ours, 1)(x, s), tangent(ours)))(x, init)
    for g, want in zip(got, grads, strict=True):
        np.testing.assert_allclose(g, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
    np.testing.assert_allclose(ours_moved, moved, rtol=1e-4)


@pytest.mark.strategies
@pytest.mark.dear
def test_extremes_of_few_and_of_many() -> None:
    """Ties share the cotangent as in JAX, whoever counts them: XLA of few elements, a kernel of more."""
    rng = np.random.default_rng(3)
    for shape, axis in (((40,), 0), ((6, 5), 1), ((70_000,), 0), ((300, 300), 1), ((300, 300), 0)):
        x = jnp.asarray(rng.integers(-5, 5, shape).astype(np.float32))
        for op, plain in ((jnp.maximum, jnp.max), (jnp.minimum, jnp.min)):
            got = jax.grad(lambda x, op=op, axis=axis: (jp.reduce(x, op, axis=axis) ** 2).sum())(x)
            wanted = jax.jit(jax.grad(lambda x, plain=plain, axis=axis: (plain(x, axis=axis) ** 2).sum()))(x)
            np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_logsumexp_without_implicit_promotion(strict: None, dtype: str) -> None:
    x = jnp.arange(6).astype(dtype)
    np.testing.assert_allclose(
        jax.grad(lambda x: jp.reduce(x, jnp.logaddexp))(x).astype(np.float32), jax.nn.softmax(x).astype(np.float32), rtol=2e-2
    )


@pytest.mark.cover(3)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("axis", [0, 1])
def test_exponentials_of_halves_sum_to_one(dtype: str, axis: int) -> None:
    """Whatever the result is rounded to; under ``vmap``, too."""
    one = (100 + 3 * np.random.default_rng(5).normal(size=(40, 90))).astype(jnp.dtype(dtype))
    for x in (one, np.stack([one, one[::-1]])):
        softmax = jax.grad(lambda x: jp.reduce(x, jnp.logaddexp, axis=axis).astype(np.float32).sum())
        got = (jax.vmap(softmax) if x.ndim == 3 else softmax)(x)
        assert got.dtype == x.dtype
        np.testing.assert_allclose(got.astype(np.float32), jax.nn.softmax(x.astype(np.float32), axis - 2), 2e-2, 1e-4)


@pytest.mark.cover(3)
@pytest.mark.parametrize(
    ("shape", "axis"), [((40, 30), 1), ((30, 40), 0), ((100, 60), 1), ((60, 600), 0), ((3000, 20), 1), ((2, 30_000), 0)]
)
def test_logarithms_of_sums(shape: tuple[int, int], axis: int) -> None:
    """Exponentials are kept or made again, by sizes; weights are a softmax, and 1 at what is as infinite as the result."""
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    rows = np.moveaxis(x, axis, 1)  # a view
    rows[0], rows[1, 1], rows[2, 1], rows[5, 0] = -np.inf, np.inf, -np.inf, np.nan
    total = lambda x: jp.reduce(x, jnp.logaddexp, axis=axis)  # noqa: E731
    weights = jax.jit(lambda x: jax.vjp(total, x)[1](jnp.ones(rows.shape[0]))[0])(x)
    with np.errstate(invalid="ignore"):
        out = np.logaddexp.reduce(rows.astype(np.float64), 1)[:, None]
        want = np.where(rows == out, 1, np.exp(rows - out))
    np.testing.assert_allclose(np.moveaxis(np.asarray(weights), axis, 1), want, rtol=1e-4, atol=1e-6)

    again = jax.jit(jax.grad(lambda x: jnp.sum(jax.grad(lambda x: jnp.sum(total(x)))(x) ** 2)))(jnp.asarray(x))
    lost = np.isnan(np.moveaxis(np.asarray(again), axis, 1)).any(1)
    assert lost.nonzero()[0].tolist() == [5]  # what is infinite has second derivatives, too

    y, v = jnp.where(jnp.isfinite(x), x, 0), jnp.cos(jnp.arange(x.size, dtype=jnp.float32)).reshape(shape)
    curved = lambda f: jax.jit(lambda y: jax.jvp(jax.grad(lambda x: jnp.sum(jnp.sin(f(x)))), (y,), (v,))[1])(y)  # noqa: E731
    plain = lambda x: jax.scipy.special.logsumexp(x, axis=axis)  # noqa: E731
    np.testing.assert_allclose(curved(total), curved(plain), rtol=1e-3, atol=1e-4)
