"""``fuse``: numbers of pairs that are flattened and then update bins are made in the loops over pairs, and never written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import same

import jaxprims as jp
from jaxprims.fusion.graph import flat_graph
from jaxprims.fusion.unflattened import unflattened

pytestmark = pytest.mark.cpu

RNG = np.random.default_rng(3)


def uniform(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.random(shape), jnp.float32)


def bins_of(x: jax.Array, y: jax.Array) -> jax.Array:
    return (8 * jnp.sqrt(sum((x[:, None, k] - y[None, :, k]) ** 2 for k in range(x.shape[1])))).astype(jnp.int32)


def counts(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.zeros(12, jnp.int32).at[bins_of(x, y).ravel()].add(1)


def summed(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.zeros(12).at[bins_of(x, y).ravel()].add((x[:, :1] * y[:, 0]).ravel(), mode="drop")


def of_bincount(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.bincount(bins_of(x, y).reshape(-1), (x[:, :1] + y[:, 0]).reshape(-1), length=9)


def greatest(x: jax.Array, y: jax.Array) -> jax.Array:
    start = jnp.full(12, -1.0)
    return start.at[bins_of(x, y).reshape(-1)].max(jnp.sin(x[:, :1] * y[:, 0]).reshape(-1), mode="clip")


def of_reduced(x: jax.Array, y: jax.Array) -> jax.Array:
    distance = jnp.sum((x[:, None] - y) ** 2, -1)
    return jnp.zeros((6, 2)).at[(5 * distance).astype(jnp.int32).ravel(), 1].add(distance.ravel() * 2)


def in_two(x: jax.Array, y: jax.Array) -> jax.Array:
    i = bins_of(x, y)
    return jnp.zeros((12, 3)).at[i.ravel(), (i % 4).ravel()].add(1.0)


FUNCTIONS = [counts, summed, of_bincount, greatest, of_reduced, in_two]
BATCHES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda f: f,
    "batch": lambda f: jax.vmap(f, (0, None)),
    "both": lambda f: jax.vmap(jax.vmap(f, (None, 0)), (0, None)),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("f", FUNCTIONS)
@pytest.mark.parametrize("batch", BATCHES)
def test_no_pair_is_written(f: Any, batch: str) -> None:
    x = uniform(150, 2) if batch == "alone" else uniform(3, 90, 2)
    y = uniform(2, 80, 2) if batch == "both" else uniform(130, 2)
    fn = BATCHES[batch](f)
    same(jax.jit(fn)(x, y), jax.jit(jp.fuse(fn))(x, y))
    updates = [line for line in jp.explain(jp.fuse(fn))(x, y).sites if "scatter" in line]
    assert len(updates) == 1 and f"{x.shape[-2]}, {y.shape[-2]}]: one kernel" in updates[0]
    pairs = 4 * x.size * y.shape[-2] // 2
    assert jax.jit(jp.fuse(fn)).lower(x, y).compile().memory_analysis().temp_size_in_bytes < pairs / 2


@pytest.mark.cover(2)
@pytest.mark.parametrize("f", [summed, of_bincount, greatest, of_reduced])
@pytest.mark.parametrize("outside", [True, False])
def test_gradients(f: Any, outside: bool) -> None:
    def loss(f: Any) -> Any:
        return lambda x, y: jnp.sum(f(x, y) ** 2)

    x, y = uniform(90, 2), uniform(70, 2)
    fused = jax.grad(loss(jp.fuse(f)), (0, 1)) if outside else jp.fuse(jax.grad(loss(f), (0, 1)))
    same(jax.jit(jax.grad(loss(f), (0, 1)))(x, y), jax.jit(fused)(x, y), atol=1e-3)


@pytest.mark.cover(2)
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (1, 40), (300, 1)])
def test_few_pairs(shape: tuple[int, int]) -> None:
    x, y = uniform(shape[0], 2), uniform(shape[1], 2)
    for f in FUNCTIONS:
        same(jax.jit(f)(x, y), jax.jit(jp.fuse(f))(x, y))


def test_what_is_there_stays_flat() -> None:
    """An argument, what is elementwise of it, and what others of another order read."""

    def given(i: jax.Array) -> jax.Array:
        return jnp.zeros(9, jnp.int32).at[(i * 2 + 1).ravel()].add(1)

    def turned(x: jax.Array, y: jax.Array) -> jax.Array:
        i = bins_of(x, y)
        return jnp.zeros(12).at[i.ravel()].add((x[:, :1] * y[:, 0]).T.ravel())

    def sorted_first(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.zeros(12, jnp.int32).at[jnp.sort(bins_of(x, y).ravel())].add(1)

    x, y = uniform(60, 2), uniform(60, 2)
    for f, args in ((given, (jnp.ones((30, 40), jnp.int32),)), (turned, (x, y)), (sorted_first, (x, y))):
        assert unflattened(flat_graph(jax.make_jaxpr(f)(*args))) is None
        same(jax.jit(f)(*args), jax.jit(jp.fuse(f))(*args))


def test_others_read_it_flat() -> None:
    def f(x: jax.Array, y: jax.Array) -> Any:
        i = bins_of(x, y).ravel()
        return jnp.zeros(12, jnp.int32).at[i].add(1), jnp.cumsum(i), i[::-1]

    x, y = uniform(150, 2), uniform(80, 2)
    same(jax.jit(f)(x, y), jax.jit(jp.fuse(f))(x, y))
