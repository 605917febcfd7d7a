"""Mean and variance of each group in one pass, without subtracting large sums from each other.

A group is summarised by a triple: count, mean, sum of squared differences from the mean. Two summaries merge by Chan, Golub and
LeVeque's formula (1979), which is associative and commutative up to rounding.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp

GROUPS = 60

Summary = tuple[jax.Array, jax.Array, jax.Array]


def merge(a: Summary, b: Summary) -> Summary:
    (n, mean, squares), (m, other_mean, other_squares) = a, b
    total, difference = n + m, other_mean - mean
    share = m / jnp.maximum(total, 1)
    return total, mean + difference * share, squares + other_squares + difference * difference * n * share


@jax.jit
def mean_and_variance(x: jax.Array, groups: jax.Array) -> tuple[jax.Array, jax.Array]:
    bins = jp.Bins(GROUPS, merge, identity=(0.0, 0.0, 0.0))
    count, mean, squares = jp.genhist(lambda x, g: (g, (jnp.float32(1), x, jnp.float32(0))), (x, groups), bins)
    return mean, squares / jnp.maximum(count, 1)


def main() -> None:
    rng = np.random.default_rng(0)
    groups = rng.integers(0, GROUPS, 300_000, dtype=np.int32)
    x = rng.normal(1000, 1 + groups / 10).astype(np.float32)  # E[x^2] - E[x]^2 would lose all its digits
    mean, variance = mean_and_variance(x, groups)
    for g in range(GROUPS):
        mine = x[groups == g].astype(np.float64)
        np.testing.assert_allclose([mean[g], variance[g]], [mine.mean(), mine.var()], rtol=1e-4)
    print(f"group 0: mean {mean[0]:.2f}, variance {variance[0]:.3f}; group {GROUPS - 1}: variance {variance[-1]:.3f}")


if __name__ == "__main__":
    main()
