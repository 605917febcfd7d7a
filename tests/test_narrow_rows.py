"""Array-valued bins whose rows are narrower than a vector: values that are dear are made for several elements at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp

COUNTS = (1, 7, 31, 1003)
"""Whole groups of elements, and what is left of them."""


def some(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return (rng.normal(size=shape) * 2).astype(dtype)


def value(x: Any, i: Any, s: Any, centre: Any) -> Any:
    """Of an element's row, one that lies anywhere, and a number that all lanes share."""
    return jnp.exp(s * (x - centre.at[i].get(mode="clip")))


@pytest.mark.cover(2)
@pytest.mark.parametrize("lanes", [2, 3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_sums_of_functions(dtype: str, lanes: int) -> None:
    """Some ids are dropped, whose rows are anything."""
    rng, bins = np.random.default_rng(lanes), 11
    with jax.enable_x64(dtype == "float64"):
        centre = jnp.asarray(some(rng, (bins, lanes), dtype))

        @jax.jit
        def ours(x: Any, ids: Any, s: Any) -> Any:
            made = lambda x, i, s: (i, value(x, i, s, centre))  # noqa: E731
            return jp.genhist(made, (x, ids, s), jp.Bins(bins, jnp.add))

        @jax.jit
        def plain(x: Any, ids: Any, s: Any) -> Any:
            wide = jax.vmap(value, (0, 0, 0, None))(x, ids, s, centre)
            return jnp.zeros((bins, lanes), dtype).at[jnp.where(ids < 0, bins, ids)].add(wide, mode="drop")

        for n in COUNTS:
            ids = rng.integers(-2, bins + 2, n).astype(np.int32)
            x, s = some(rng, (n, lanes), dtype), some(rng, (n,), dtype) / 4
            x[ids < 0] = np.inf
            np.testing.assert_allclose(ours(x, ids, s), plain(x, ids, s), rtol={"float16": 0.05}.get(dtype, 1e-5))


@pytest.mark.parametrize("heads, features", [(2, 2), (4, 2), (2, 3)])
def test_weights_that_lanes_share(heads: int, features: int) -> None:
    rng, n, bins = np.random.default_rng(heads), 203, 9
    x, w = some(rng, (n, heads, features), "float32"), some(rng, (n, heads), "float32")
    ids = jnp.asarray(rng.integers(0, bins, n), jnp.int32)

    def made(x: Any, w: Any, i: Any) -> Any:
        return i, jnp.tanh(x) * jnp.exp(w)[:, None]

    got = jax.jit(lambda *a: jp.genhist(made, a, jp.Bins(bins, jnp.add)))(x, w, ids)
    wide = jnp.tanh(x) * jnp.exp(w)[..., None]
    np.testing.assert_allclose(got, jax.ops.segment_sum(wide, ids, bins), rtol=1e-5, atol=1e-5)


@pytest.mark.cover(3)
@pytest.mark.parametrize("lanes", [2, 3, 4, 6, 8])
def test_equal_rows_have_equal_bits(lanes: int) -> None:
    """Whichever part of a vector they were."""
    row = some(np.random.default_rng(lanes), (lanes,), "float32")
    for n in COUNTS:
        x = jnp.broadcast_to(row, (n, lanes))
        got = jax.jit(lambda x: jp.genhist(lambda p, x: (p, jnp.sin(x) / x), (jp.positions, x), jp.Bins(len(x), jnp.add)))(x)
        np.testing.assert_array_equal(got, jnp.broadcast_to(got[0], got.shape))


def test_remainders_of_integers() -> None:
    """Division by zero is what it is for one element."""
    rng, n, bins = np.random.default_rng(1), 301, 7
    x, y = (jnp.asarray(rng.integers(-5, 6, (n, 4)), jnp.int32) for _ in range(2))
    ids = jnp.asarray(rng.integers(0, bins, n), jnp.int32)
    got = jax.jit(lambda x, y, i: jp.genhist(lambda e: (e[2], (e[0] % e[1]) ** 3 % 7), ((x, y, i),), jp.Bins(bins, jnp.add)))(
        x, y, ids
    )
    np.testing.assert_array_equal(got, jax.ops.segment_sum((x % y) ** 3 % 7, ids, bins))
