"""The two sums of k-means in one pass: each cluster's sum of points (array-valued bins) and its number of points.

Which cluster is nearest is found inside the kernel, where the centres are a captured array. The update ``mean of my points`` is
differentiable: a point's derivative goes to the centre of its cluster.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp

CLUSTERS, DIMENSIONS = 5, 3


def step(points: jax.Array, centres: jax.Array) -> tuple[jax.Array, jax.Array]:
    """New centres [CLUSTERS, DIMENSIONS], and the clusters' sizes [CLUSTERS]."""

    def f(point: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        nearest = jnp.argmin(jnp.sum((centres - point) ** 2, axis=1)).astype(jnp.int32)
        return [(nearest, point), (nearest, jnp.float32(1))]

    sums, sizes = jp.genhist(f, points, [jp.Bins(CLUSTERS), jp.Bins(CLUSTERS)])
    return sums / jnp.maximum(sizes, 1)[:, None], sizes


def main() -> None:
    rng = np.random.default_rng(3)
    true = rng.uniform(-10, 10, (CLUSTERS, DIMENSIONS))
    points = (true[rng.integers(0, CLUSTERS, 100_000)] + rng.normal(size=(100_000, DIMENSIONS))).astype(np.float32)
    before = jnp.asarray(points[:CLUSTERS])
    for _ in range(9):
        before, _ = jax.jit(step)(points, before)
    centres, sizes = jax.jit(step)(points, before)
    nearest = np.argmin(((np.asarray(before) - points[:, None]) ** 2).sum(2), 1)
    np.testing.assert_array_equal(sizes, np.bincount(nearest, minlength=CLUSTERS))
    for k in range(CLUSTERS):
        np.testing.assert_allclose(centres[k], points[nearest == k].mean(0), rtol=1e-3, atol=1e-3)
    print("sizes", sizes.astype(int))

    gradient = jax.jit(jax.grad(lambda p: jnp.sum(step(p, before)[0])))(points)
    np.testing.assert_allclose(gradient, np.broadcast_to(1 / np.asarray(sizes)[nearest, None], points.shape), rtol=1e-5)
    print(f"one point moves its centre by 1 / {round(1 / float(gradient[0, 0]))} of its own way")


if __name__ == "__main__":
    main()
