"""``fuse``: what is compared with its own extreme is the same to the bit, whoever makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp


def loudest(x: Any) -> Any:
    """XLA takes the maximum of logarithms of a recurrence, whose transpose makes them again."""

    def step(e: Any, v: Any) -> Any:
        e = 0.99 * e + 0.01 * v * v
        return e, e

    _, e = jax.lax.scan(step, jnp.float32(0), x)
    return jnp.max(10 * jnp.log10(e + 1e-9)) + jnp.mean(e)


def steepest(x: Any) -> Any:
    """A kernel takes the maximum of a stencil's cells, which XLA makes again, rounding a * b + c once."""
    y = x[1:] - 0.97 * x[:-1]
    return jnp.max(jnp.abs(y)) + jnp.mean(y * y)


@pytest.mark.parametrize("order", ["grad of fused", "fused grad"])
@pytest.mark.parametrize("fn", [loudest, steepest])
def test_a_maximum_has_a_gradient(fn: Callable[..., Any], order: str) -> None:
    """It goes where the array equals it; of hundreds of thousands of numbers one that is off by a bit is the maximum soon."""
    compiled = jax.jit(jax.grad(jp.fuse(fn)) if order == "grad of fused" else jp.fuse(jax.grad(fn)))
    for seed in range(6):
        x = jnp.asarray(np.random.default_rng(seed).normal(size=400_000).astype(np.float32))
        got, expected = np.abs(compiled(x)), np.abs(jax.grad(fn)(x))  # one operation at a time: XLA too might make it twice
        np.testing.assert_allclose(got.max(), expected.max(), rtol=1e-2)


DENSITIES: list[Callable[[Any], Any]] = [
    lambda x: jnp.exp(-((x - 0.7) ** 2)) / x,
    lambda x: jnp.log(x) * x + 1.7,
    lambda x: x * x * 0.3 + x * 1.1 - 0.2,
    lambda x: jnp.tanh(x) * jnp.sqrt(x),
]


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("extreme", [jnp.max, jnp.min, lambda y: jax.lax.cummax(y, 1)])
def test_a_function_that_is_kept_is_compared_where_it_is_kept(density: Callable[[Any], Any], extreme: Callable[..., Any]) -> None:
    """The derivative makes again what it takes the extreme of, and is given that: rows of a kernel, which are compared by XLA."""

    def row(x: Any, w: Any) -> Any:
        y = density(x) * w
        return jnp.sum(extreme(y[None])) + jnp.sum(jax.scipy.special.erf(y) * x) / len(x)

    fused, plain = (jax.jit(jax.vmap(jax.grad(f, (0, 1)))) for f in (jp.fuse(row), row))
    for seed in range(4):
        x, w = (jnp.asarray(a, jnp.float32) for a in np.random.default_rng(seed).uniform(0.1, 2, (2, 3, 8000)))
        got, expected = fused(x, w), plain(x, w)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(jnp.sum(jnp.abs(a), 1), jnp.sum(jnp.abs(b), 1), rtol=1e-4)
            np.testing.assert_allclose(jnp.max(jnp.abs(a), 1), jnp.max(jnp.abs(b), 1), rtol=1e-3)


@pytest.mark.parametrize("density", DENSITIES)
def test_any_comparison_with_an_extreme(density: Callable[[Any], Any]) -> None:
    """One is no less than the maximum, one no greater than the minimum."""

    comparisons: list[Callable[[Any], Any]] = [
        lambda y: y >= y.max(),
        lambda y: y == y.max(),
        lambda y: y <= y.min(),
        lambda y: y <= jnp.sort(y)[0],
    ]
    for x in np.random.default_rng(0).uniform(0.1, 2, (3, 100_003)).astype(np.float32):
        for compared in comparisons:  # each by itself: XLA makes what is returned, and a kernel the extreme
            assert jp.fuse(lambda x, c=compared: c(density(x)))(x).any()


@pytest.mark.parametrize("density", DENSITIES)
def test_records_are_found(density: Callable[[Any], Any]) -> None:
    """One that sets a record is no less than the maximum so far, which a kernel takes of what XLA makes."""

    def records(x: Any) -> Any:
        y = density(x)
        return y >= jax.lax.cummax(y)

    for x in np.random.default_rng(0).uniform(0.1, 2, (4, 100_003)).astype(np.float32):
        np.testing.assert_array_equal(jax.jit(jp.fuse(records))(x), jax.jit(records)(x))


@pytest.mark.strategies
@pytest.mark.parametrize("density", DENSITIES)
def test_records_beside_their_neighbours_are_found(density: Callable[[Any], Any]) -> None:
    """Where the running maximum rises there is a record: shifted slices, of which a stencil's reduction could be made."""

    def missed(x: Any) -> Any:
        y = density(x)
        best = jax.lax.cummax(y)
        rises = jnp.concatenate([jnp.ones(1, bool), best[1:] > best[:-1]])
        return jnp.sum(rises & (best != y))

    for x in np.random.default_rng(0).uniform(0.1, 2, (4, 200_003)).astype(np.float32):
        assert jax.jit(jp.fuse(missed))(x) == 0


AGREE: dict[str, Callable[[Any], Any]] = {
    "the last of a running maximum": lambda y: jax.lax.cummax(y)[-1] != jnp.max(y),
    "the first of one in reverse": lambda y: jax.lax.cummin(y, reverse=True)[0] != jnp.min(y),
    "the maximum of segments' maxima": lambda y: jnp.max(jax.ops.segment_max(y, jnp.arange(len(y)) % 7, 7)) != jnp.max(y),
    "the last of what is sorted": lambda y: jnp.sort(y)[-1] != jax.lax.cummax(y)[-1],
    "of rows": lambda y: jnp.max(jax.lax.cummax(y[:800].reshape(4, -1), axis=1), 1) != jnp.max(y[:800].reshape(4, -1), 1),
}


@pytest.mark.strategies
@pytest.mark.parametrize("n", [1000, 40_003])
@pytest.mark.parametrize("agree", AGREE)
def test_extremes_of_the_same_numbers_agree(agree: str, n: int) -> None:
    """One of them is a kernel's, another XLA's, which rounds a * b + c once."""
    rng = np.random.default_rng(2)
    makers: list[Callable[..., Any]] = [
        lambda x, w: x * w + w * w,
        lambda x, w: jnp.sin(x) * w + 1.7,
        lambda x, w: jnp.exp(-x * x) / (w + 2),
        lambda x, w: x[1:] - w * x[:-1],
    ]
    for make in makers:
        fused = jax.jit(jp.fuse(lambda x, w, make=make: AGREE[agree](make(x, w))))
        for x in rng.normal(size=(6, n)).astype(np.float32):
            assert not np.any(fused(x, np.float32(rng.uniform(0.5, 2))))


FLAT: dict[str, Callable[[Any], Any]] = {
    "sines": jnp.sin,
    "saturated": lambda x: jnp.tanh(4 * x),
    "a parabola": lambda x: x * x * 0.3 - (x - 0.5) ** 2,
    "a bell": lambda x: x * jnp.exp(-x * x),
    "roots": lambda x: jax.lax.rsqrt(1 + x * x),
    "divided": lambda x: jnp.round(x * 1000) / 7,
    "neighbours": lambda x: jnp.sin(x[1:] - 0.3 * x[:-1]),
}


@pytest.mark.parametrize("n", [3001, 200_000])
@pytest.mark.parametrize("flat", FLAT)
def test_positions_are_those_of_xla(flat: str, n: int) -> None:
    """Of many that are nearly the greatest, the same one; whether it is alone, one of several results, or of each row."""

    def positions(x: Any) -> Any:
        y = FLAT[flat](x)
        return jnp.argmax(y), (jnp.argmin(y), jnp.argmax(y), jnp.mean(y * y))[:-1], jnp.argmax(y[: n // 5 * 4].reshape(4, -1), 1)

    alone = [lambda x: jnp.argmax(FLAT[flat](x)), positions]
    for fn in alone:
        plain, fused = jax.jit(fn), jax.jit(jp.fuse(fn))
        for x in np.random.default_rng(0).normal(size=(6, n)).astype(np.float32):
            jax.tree.map(np.testing.assert_array_equal, fused(x), plain(x))


NEAREST: list[Callable[..., Any]] = [
    lambda p, c: jnp.sum((p[:, None] - c) ** 2, -1),
    lambda p, c: jnp.sum(jnp.log1p((p[:, None] - c) ** 2), -1),
    lambda p, c: jnp.exp(-jnp.sum((p[:, None] - c) ** 2, -1) * 0.3),
]


@pytest.mark.strategies
@pytest.mark.parametrize("order", ["grad of fused", "fused grad"])
@pytest.mark.parametrize("extreme", [jnp.min, jnp.max])
@pytest.mark.parametrize("distance", NEAREST)
def test_extremes_of_a_few_are_compared_where_they_are_made(
    distance: Callable[..., Any], extreme: Callable[..., Any], order: str
) -> None:
    """A kernel that makes both has no use for XLA's bits, which are in an array of all pairs; every element has a gradient."""
    rng = np.random.default_rng(4)
    points, centres = (jnp.asarray(rng.normal(size=(n, 2)).astype(np.float32)) for n in (50_000, 16))
    fn = lambda p, c: jnp.mean(extreme(distance(p, c), 1))  # noqa: E731
    program = jax.grad(jp.fuse(fn)) if order == "grad of fused" else jp.fuse(jax.grad(fn))
    compiled = jax.jit(program).lower(points, centres).compile()
    if order == "fused grad" or distance is not NEAREST[1]:  # whose logarithms are kept for the derivative
        assert compiled.memory_analysis().temp_size_in_bytes < points.size * 4 * 4  # and not 16 numbers for each
    wanted = jax.jit(jax.grad(fn))(points, centres)
    np.testing.assert_allclose(compiled(points, centres), wanted, rtol=2e-4, atol=1e-9)
