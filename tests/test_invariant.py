"""Operators under which an element moves as the result does: their fields, and gradients that need neither sorts nor walks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import BY_NAME

import jaxprims as jp
from jaxprims.operators.invariant import invariant_of
from jaxprims.operators.operator import Operator, make_operators

N, H = 200, 9
welford = BY_NAME["mean_variance"].op


def guarded(a: Any, b: Any) -> Any:
    """Another way to write it."""
    (n, m, s), (k, l, t) = a, b  # noqa: E741
    total = n + k
    safe, d = jnp.where(total == 0, 1, total), l - m
    return total, m + d * k / safe, s + t + d * d * n * k / safe


def weighted_mean(a: Any, b: Any) -> Any:
    return a[0] + b[0], (a[0] * a[1] + b[0] * b[1]) / (a[0] + b[0])


def covariance(a: Any, b: Any) -> Any:
    n = a[0] + b[0]
    d, e = b[1] - a[1], b[2] - a[2]
    return n, a[1] + d * b[0] / n, a[2] + e * b[0] / n, a[3] + b[3] + d * e * a[0] * b[0] / n


def product_of_sums(a: Any, b: Any) -> Any:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2] + a[0] * b[1] + a[1] * b[0]


WITH_FIELDS: dict[str, tuple[Callable[..., Any], int]] = {
    "welford": (welford, 3), "guarded": (guarded, 3), "weighted mean": (weighted_mean, 2), "covariance": (covariance, 4),
    "product of sums": (product_of_sums, 3),
}  # fmt: skip


def largest(a: Any, b: Any) -> Any:
    return a[0] + b[0], jnp.maximum(a[1] * a[0], b[1] * b[0])


WITHOUT: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "does not commute": (lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (1, 0)),
    "zeros": (lambda a, b: (a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]), (1, 0)),
    "branches": (largest, (0, 0)),
    "branches on what is no counter": (lambda a, b: (a[0] + b[0], jnp.where(a[1] > 0, a[1] + b[1], a[1] + b[1] + 1)), (0, 0)),
    "an infinite identity": (lambda a, b: (jnp.logaddexp(a[0], b[0]), a[1] + b[1]), (-np.inf, 0)),
    "not neutral": (lambda a, b: (a[0] + b[0] + 1, a[1] + b[1] * a[0]), (0, 0)),
}  # fmt: skip


def operator(op: Callable[..., Any], identity: tuple[float, ...]) -> Operator:
    avals, n = [jax.ShapeDtypeStruct((), np.float32)] * len(identity), len(identity)
    closed = jax.make_jaxpr(lambda *pair: op(pair[:n], pair[n:]))(*avals, *avals)
    (((_, made, _),), _) = make_operators(closed, [np.float32(i) for i in identity])
    return made


@pytest.mark.parametrize("name", WITH_FIELDS)
def test_found(name: str) -> None:
    op, n = WITH_FIELDS[name]
    found = invariant_of(operator(op, (0,) * n))
    assert found is not None
    assert sorted(f.row for f in found.fields) == list(range(n))
    assert found.counters <= {0}


@pytest.mark.parametrize("name", WITHOUT)
def test_not_found(name: str) -> None:
    assert invariant_of(operator(*WITHOUT[name])) is None


def plain(x: jax.Array, index: jax.Array) -> list[jax.Array]:
    """Mean and squared deviations, as JAX has them."""
    n = jnp.maximum(jax.ops.segment_sum(jnp.ones_like(x), index, H), 1)
    mean = jax.ops.segment_sum(x, index, H) / n
    return [mean, jax.ops.segment_sum((x - mean.at[index].get(mode="fill", fill_value=0)) ** 2, index, H)]


def by_function(x: jax.Array, index: jax.Array, op: Any = welford) -> list[jax.Array]:
    f = lambda x, i: (i, (jnp.ones_like(x), x, jnp.zeros_like(x)))  # noqa: E731
    return list(jp.genhist(f, (x, index), jp.Bins(H, op, identity=(0.0, 0.0, 0.0))))[1:]


def by_arrays(x: jax.Array, index: jax.Array) -> list[jax.Array]:
    given = (jnp.ones_like(x), x, jnp.zeros_like(x))
    return list(jp.reduce_by_index(given, index, H, guarded, identity=(0.0, 0.0, 0.0)))[1:]


def loss(f: Callable[..., Any], x: jax.Array, index: jax.Array) -> jax.Array:
    mean, squares = f(x, index)
    w = jnp.cos(jnp.arange(H)).astype(x.dtype)
    return jnp.sum(w * jnp.sin(mean)) + jnp.sum(w[::-1] * jnp.sqrt(1 + squares))


@pytest.mark.cover(1)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("ours", [by_function, by_arrays])
@pytest.mark.dear
def test_transformed(ours: Callable[..., Any]) -> None:
    """With dropped elements and an empty bin; second derivatives, too."""
    rng = np.random.default_rng(0)
    x, other = (jnp.asarray(rng.normal(size=(3, N))) for _ in range(2))
    index = jnp.asarray(np.where(rng.random(N) < 0.1, H, rng.integers(0, H - 1, N)))
    derivatives = {
        "grad": lambda f: jax.grad(loss, 1)(f, x[0], index),
        "jvp": lambda f: jax.jvp(lambda x: loss(f, x, index), (x[0],), (other[0],))[1],
        "of each bin": lambda f: jax.jacfwd(lambda x: f(x, index)[1])(x[0]),
        "vmap of grad": lambda f: jax.vmap(lambda x: jax.grad(loss, 1)(f, x, index))(x),
        "grad of vmap": lambda f: jax.grad(lambda x: jnp.sum(jax.vmap(lambda x: loss(f, x, index))(x) ** 2))(x),
        "jvp of grad": lambda f: jax.jvp(lambda x: jax.grad(loss, 1)(f, x, index), (x[0],), (other[0],))[1],
        "grad of grad": lambda f: jax.grad(lambda x: jnp.sum(jax.grad(loss, 1)(f, x, index) ** 2))(x[0]),
    }
    got, wanted = (jax.jit(lambda f=f: {name: of(f) for name, of in derivatives.items()})() for f in (ours, plain))
    for name in derivatives:
        np.testing.assert_allclose(got[name], wanted[name], rtol=1e-8, atol=1e-9, err_msg=name)


def test_one_pass() -> None:
    """Nothing of N numbers is written but the gradient."""
    x, index = jnp.zeros(100_000), jnp.zeros(100_000, jnp.int32)
    compiled = jax.jit(jax.grad(loss, 1), static_argnums=0).lower(by_function, x, index)
    assert "jaxprims_walk" not in compiled.as_text()
    assert compiled.compile().memory_analysis().temp_size_in_bytes < 20_000


@pytest.mark.cover(2)
@pytest.mark.parametrize("mean", [0.0, 100.0, 1e4])
@pytest.mark.dear
def test_as_accurate_as_the_loop(mean: float) -> None:
    """Deviations are from the result's own mean: more accurate than JAX's derivative of the operator's loop."""
    rng = np.random.default_rng(1)
    x = (mean + rng.normal(size=20_000)).astype(np.float32)
    index = rng.integers(0, H, len(x)).astype(np.int32)

    def loop(x: jax.Array, index: jax.Array) -> list[jax.Array]:
        def step(bins: Any, element: Any) -> tuple[Any, None]:
            x, i = element
            new = guarded(tuple(b[i] for b in bins), (jnp.ones_like(x), x, jnp.zeros_like(x)))
            return tuple(b.at[i].set(y) for b, y in zip(bins, new, strict=True)), None

        return list(jax.lax.scan(step, (jnp.zeros(H),) * 3, (x, index))[0])[1:]

    own = np.array([x[index == b].astype(np.float64).mean() for b in range(H)])
    wanted = 2 * (x.astype(np.float64) - own[index])
    gradient = lambda f: jax.jit(jax.grad(lambda x: jnp.sum(f(x, index)[1])))(x)  # noqa: E731
    error = {f: np.abs(np.asarray(gradient(f), np.float64) - wanted).max() for f in (loop, by_function, by_arrays)}
    assert max(error[by_function], error[by_arrays]) <= error[loop]


def test_elements_without_weight() -> None:
    """Where a counter is not positive, the element's own derivative: known when the call runs alone."""
    w = jnp.array([1.0, 0.0, 2.0, 0.5, 3.0, 0.25])
    x = jnp.array([1.0, 5.0, -1.0, 2.0, 0.5, 4.0])
    index = jnp.array([0, 0, 0, 1, 1, 2])

    def variance(w: jax.Array, x: jax.Array) -> jax.Array:
        bins = jp.reduce_by_index((w, x, jnp.zeros_like(x)), index, 4, welford, identity=(0.0, 0.0, 0.0))
        return jnp.sum(bins[2] * jnp.array([1.0, 2.0, 3.0, 4.0]))

    def directly(w: jax.Array, x: jax.Array) -> jax.Array:
        total = jax.ops.segment_sum(w, index, 4)
        mean = jax.ops.segment_sum(w * x, index, 4) / jnp.where(total == 0, 1, total)
        return jnp.sum(jax.ops.segment_sum(w * (x - mean[index]) ** 2, index, 4) * jnp.array([1.0, 2.0, 3.0, 4.0]))

    for weights in (w, w + 1):
        for got, wanted in zip(*(jax.grad(f, (0, 1))(weights, x) for f in (variance, directly)), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_not_a_number_where_dropped() -> None:
    x, index = jnp.array([1.0, jnp.nan, 2.0]), jnp.array([0, -1, 0])
    for ours in (by_function, by_arrays):
        np.testing.assert_allclose(jax.grad(lambda x, f=ours: jnp.sum(f(x, index)[1]))(x), [-1, 0, 1], atol=1e-6)


def test_reductions_and_segments() -> None:
    x = jnp.asarray(np.random.default_rng(2).normal(size=(60, 4)), jnp.float32)
    triple = lambda v: (jnp.ones_like(v), v, jnp.zeros_like(v))  # noqa: E731
    cuts = jp.Offsets(jnp.array([0, 7, 7, 40, 60]))
    whole = jax.jit(jax.grad(lambda x: jnp.sum(jp.reduce(x, welford, axis=0, map=triple, identity=(0.0, 0.0, 0.0))[2] ** 2)))
    plainly = jax.jit(jax.grad(lambda x: jnp.sum((jnp.var(x, 0) * 60) ** 2)))
    np.testing.assert_allclose(whole(x), plainly(x), rtol=1e-3, atol=1e-3)
    assert "jaxprims_scan" not in whole.lower(x).as_text()

    def segments(x: jax.Array) -> jax.Array:
        return jnp.sum(jp.segment_reduce(x[:, 0], cuts, welford, map=triple, identity=(0.0, 0.0, 0.0))[2] ** 2)

    def apart(x: jax.Array) -> jax.Array:
        return sum((jnp.var(x[a:b, 0]) * (b - a)) ** 2 for a, b in ((0, 7), (7, 40), (40, 60)))

    np.testing.assert_allclose(jax.grad(segments)(x), jax.jit(jax.grad(apart))(x), rtol=1e-3, atol=1e-3)
