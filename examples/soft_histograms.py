"""Soft histograms: a value counts for its two nearest bins, by how near it is, so counts have derivatives; a batch of them by vmap.

``f`` returns two updates for each element. With the derivatives, numbers are moved until their histogram is a wanted one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp

BINS = 16


def soft_histogram(x: jax.Array) -> jax.Array:
    """float32 [BINS] of values in [0, 1]: linear weights between the bins' centres."""

    def f(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        place = x * (BINS - 1)
        low = jnp.floor(place).astype(jnp.int32)
        return jnp.stack([low, low + 1]), jnp.stack([low + 1 - place, place - low])

    return jp.genhist(f, x, jp.Bins(BINS))


def main() -> None:
    rng = np.random.default_rng(0)
    batch = rng.beta(2, 5, (64, 10_000)).astype(np.float32)
    rows = jax.jit(jax.vmap(soft_histogram))(batch)  # one kernel call for the 64 histograms
    for x, row in zip(batch, rows, strict=True):
        place = x.astype(np.float64) * (BINS - 1)
        low = np.floor(place).astype(int)
        expected = np.bincount(low, low + 1 - place, BINS) + np.bincount(low + 1, place - low, BINS + 1)[:BINS]
        np.testing.assert_allclose(row, expected, rtol=1e-3, atol=1e-2)
    print(f"{len(batch)} soft histograms of {batch.shape[1]} values: {rows[0, :4].round(1)} ...")

    x, wanted = jnp.asarray(batch[0]), jnp.full(BINS, batch.shape[1] / BINS)
    loss = jax.jit(jax.value_and_grad(lambda x: jnp.mean((soft_histogram(x) - wanted) ** 2)))
    first, _ = loss(x)
    for _ in range(300):
        value, gradient = loss(x)
        x = jnp.clip(x - 1e-6 * gradient, 0, 1)
    assert value < 0.05 * first, (first, value)
    print(f"moved to a flat histogram: mean squared difference {first:.0f} -> {value:.0f}")


if __name__ == "__main__":
    main()
