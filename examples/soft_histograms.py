"""Soft histograms: a value counts for its two nearest bins, by how near it is, so counts have derivatives; batches by ``vmap``.

``f`` returns two updates for each element. With the derivative, a gamma correction is found that gives a wanted histogram.
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

    x = jnp.asarray(batch[0])
    wanted = soft_histogram(x**0.6)  # which gamma was that?
    loss = jax.jit(jax.value_and_grad(lambda gamma: jnp.mean(((soft_histogram(x**gamma) - wanted) / x.size) ** 2)))
    gamma = jnp.float32(1)
    for _ in range(40):
        _, slope = loss(gamma)
        gamma = gamma - 10 * slope
    np.testing.assert_allclose(gamma, 0.6, rtol=1e-3)
    print(f"gamma found by gradient descent on the histogram: {gamma:.4f}")


if __name__ == "__main__":
    main()
