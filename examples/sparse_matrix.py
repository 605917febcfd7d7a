"""A sparse matrix times a vector, and attention on a graph: reductions of segments of very unequal lengths.

The rows of a CSR matrix are segments of its entries. What ``map`` makes of an entry (a product, a neighbour's features) is never
in memory, and attention takes one pass: the operator merges softmax-weighted sums that each know the largest score so far.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

import jaxprims as jp

NODES, FEATURES = 5000, 4
Sum = tuple[jax.Array, jax.Array, jax.Array]  # the largest score m; the sums of exp(score - m) and of exp(score - m) · features


@jax.jit
def multiply(values: jax.Array, columns: jax.Array, rows: jp.Offsets, x: jax.Array) -> jax.Array:
    """The CSR matrix with ``values`` and ``columns`` [entries] times the vector ``x``."""
    return jp.segment_reduce((values, columns), rows, map=lambda value, column: value * x[column])


def merge(a: Sum, b: Sum) -> Sum:
    (m, weight, total), (n, other_weight, other_total) = a, b
    top = jnp.maximum(m, n)
    p, q = jnp.exp(m - top), jnp.exp(n - top)
    return top, p * weight + q * other_weight, p * total + q * other_total


@jax.jit
def attend(scores: jax.Array, columns: jax.Array, rows: jp.Offsets, features: jax.Array) -> jax.Array:
    """[NODES, FEATURES]: the mean of each node's neighbours' features, weighted by the softmax of the edges' scores."""

    def one(score: jax.Array, column: jax.Array) -> Sum:
        return score, jnp.ones_like(score), features[column]

    nothing = (jnp.finfo(scores.dtype).min, 0, 0)
    _, weight, total = jp.segment_reduce((scores, columns), rows, merge, identity=nothing, map=one)
    return total / jnp.maximum(weight, 1)[:, None]  # the largest score weighs 1; a node without neighbours gets 0


def main() -> None:
    rng = np.random.default_rng(0)
    degrees = np.minimum(rng.zipf(1.7, NODES) - 1, 20 * NODES)  # as in the web: many nodes without a link, a few with very many
    columns = rng.integers(0, NODES, degrees.sum(), dtype=np.int32)
    values, x = rng.normal(size=columns.size).astype(np.float32), rng.normal(size=NODES).astype(np.float32)
    rows = jp.Offsets(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32))
    matrix = sparse.csr_array((values.astype(np.float64), columns, rows.offsets), (NODES, NODES))
    y = multiply(values, columns, rows, x)
    np.testing.assert_allclose(y, matrix @ x, rtol=1e-4, atol=1e-2)
    print(f"{NODES} rows with 0 to {degrees.max()} of {columns.size} entries: the product is SciPy's")

    def energy(values: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.vdot(x, multiply(values, columns, rows, x))

    by_values, by_x = jax.jit(jax.grad(energy, (0, 1)))(values, x)
    np.testing.assert_allclose(by_x, matrix @ x + matrix.T @ x, rtol=1e-4, atol=1e-2)
    row = np.repeat(np.arange(NODES), degrees)
    np.testing.assert_allclose(by_values, x[row] * x[columns], rtol=1e-5)
    print("and so are its gradients by matrix and by vector")

    features = rng.normal(size=(NODES, FEATURES)).astype(np.float32)
    weights = jp.segment_softmax(values, row, NODES)
    expected = sparse.csr_array((np.asarray(weights), columns, rows.offsets), (NODES, NODES)) @ features
    attended = attend(values, columns, rows, jnp.asarray(features))
    np.testing.assert_allclose(attended, expected, rtol=1e-4, atol=1e-5)
    print(f"attention in one pass: node {degrees.argmax()} sees {np.asarray(attended)[degrees.argmax()].round(3)}")


if __name__ == "__main__":
    main()
