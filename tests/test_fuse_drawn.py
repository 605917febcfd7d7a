"""``fuse``: what ``jax.random`` draws, made where it is wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import X, kernels, same
from jax import random

import jaxprims as jp

KEY = random.key(3)
SHAPES: tuple[tuple[int, ...], ...] = ((20_000,), (300, 70), (30, 1, 700), (7, 50, 60), (1, 20_000, 1))

DRAWS: dict[str, Callable[[Any, tuple[int, ...]], Any]] = {
    "bits": lambda key, shape: random.bits(key, shape),
    "bytes": lambda key, shape: random.bits(key, shape, "uint8"),
    "words of 16 bits": lambda key, shape: random.bits(key, shape, "uint16"),
    "uniform": lambda key, shape: random.uniform(key, shape, minval=-2.0, maxval=3.0),
    "normal": lambda key, shape: random.normal(key, shape),
    "normal halves": lambda key, shape: random.normal(key, shape, jnp.bfloat16),
    "complex": lambda key, shape: random.normal(key, shape, jnp.complex64),
    "bernoulli": lambda key, shape: random.bernoulli(key, 0.3, shape),
    "integers": lambda key, shape: random.randint(key, shape, 0, 6),
    "gumbel": lambda key, shape: random.gumbel(key, shape),
    "exponential": lambda key, shape: random.exponential(key, shape),
    "truncated": lambda key, shape: random.truncated_normal(key, -2.0, 2.0, shape),
    "of an old key": lambda key, shape: random.uniform(random.PRNGKey(5), shape),
}


@pytest.mark.parametrize(
    ("draw", "shape"), [(d, SHAPES[0]) for d in DRAWS] + [(d, s) for d in ("bits", "normal") for s in SHAPES[1:]], ids=str
)
def test_what_is_drawn_is_what_jax_draws(draw: str, shape: tuple[int, ...]) -> None:
    fn = lambda key: DRAWS[draw](key, shape)  # noqa: E731
    assert kernels(fn, KEY)
    same(jax.jit(fn)(KEY), jax.jit(jp.fuse(fn))(KEY), 1e-5)
    same(jax.jit(fn)(KEY), jp.fuse(fn)(KEY), 1e-5)


PROGRAMS: dict[str, tuple[Callable[..., Any], str]] = {
    "a mean of draws": (lambda key, x: jnp.mean(jnp.exp(random.normal(key, x.shape))), "reduce-sum"),
    "points in a circle": (lambda key, x: jnp.sum(jnp.sum(random.uniform(key, (x.size, 2)) ** 2, 1) < 1), "reduce-sum"),
    "a walk": (lambda key, x: jnp.cumsum(random.normal(key, x.shape)), "cumsum"),
    "dropout": (lambda key, x: jnp.where(random.bernoulli(key, 0.9, x.shape), x / 0.9, 0), "select-n"),
    "a bootstrap": (lambda key, x: jnp.mean(x[random.randint(key, x.shape, 0, x.size)]), "reduce-sum"),
    "a histogram": (lambda key, x: jnp.histogram(random.normal(key, x.shape), 50, (-4, 4))[0], "scatter-add"),
    "choices": (lambda key, x: random.categorical(key, x.reshape(-1, 64), 1), "argmax random-at"),
    "normalised rows": (lambda key, x: jax.nn.softmax(random.normal(key, (x.size // 8, 8)) + x.reshape(-1, 8)), "mul"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_draw(name: str) -> None:
    fn, sites = PROGRAMS[name]
    assert sorted(kernels(fn, KEY, X)) == sorted(sites.split())
    same(jax.jit(fn)(KEY, X), jax.jit(jp.fuse(fn))(KEY, X))


def test_of_many_keys() -> None:
    keys = random.split(KEY, 30)
    for fn in (jax.vmap(lambda key: random.bits(key, (3000,))), jax.vmap(lambda key: jnp.max(random.bits(key, (50, 60)), 1))):
        assert kernels(fn, keys)
        same(fn(keys), jp.fuse(fn)(keys))
    one = lambda key, x: jnp.sum(x * random.uniform(key, x.shape))  # noqa: E731
    same(jax.vmap(one)(keys, X[:30_000].reshape(30, -1)), jax.vmap(jp.fuse(one))(keys, X[:30_000].reshape(30, -1)))


def test_in_loops_and_derivatives() -> None:
    def step(x: Any, key: Any) -> Any:
        return 0.99 * x + 0.1 * random.normal(key, x.shape), jnp.max(x)

    def loop(key: Any, x: Any) -> Any:
        return jax.lax.scan(step, x, random.split(key, 5))

    loss = lambda key, x: jnp.sum(jnp.where(random.bernoulli(key, 0.5, x.shape), x, 0.0) ** 2)  # noqa: E731
    same(loop(KEY, X), jp.fuse(loop)(KEY, X))
    for grad in (jax.grad(jp.fuse(loss), 1), jp.fuse(jax.grad(loss, 1)), jax.jit(jax.grad(jp.fuse(loss), 1))):
        same(jax.grad(loss, 1)(KEY, X), grad(KEY, X))


def test_of_64_bits() -> None:
    with jax.enable_x64(True):
        for fn in (lambda key: random.bits(key, (9000,), "uint64"), lambda key: random.normal(key, (90, 100), "float64")):
            assert kernels(fn, KEY)
            same(fn(KEY), jp.fuse(fn)(KEY), 1e-12)


def test_other_generators_are_left() -> None:
    keys = random.key(3, impl="rbg")
    draw = lambda key: random.bits(key, (9000,))  # noqa: E731
    assert not kernels(draw, keys)
    np.testing.assert_array_equal(draw(keys), jp.fuse(draw)(keys))
    with jax.threefry_partitionable(False):
        assert not kernels(draw, KEY)
        np.testing.assert_array_equal(draw(KEY), jp.fuse(draw)(KEY))
