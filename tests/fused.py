"""Shared by the tests of ``fuse``: arrays, what a fused function gives beside the function itself, its kernels in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxprims.fusion.call import Fused

N = 40_000
RNG = np.random.default_rng(7)
X = jnp.asarray(RNG.normal(size=N).astype(np.float32))
Y = jnp.asarray(RNG.normal(size=N).astype(np.float32))
IDS = jnp.asarray(RNG.integers(0, 50, N).astype(np.int32))


def same(expected: Any, got: Any, rtol: float = 1e-4, atol: float = 0.0) -> None:
    """Structures, shapes, dtypes, weak types; integers exactly, floats as far as another order of summation goes. ``atol``: where
    large terms may cancel."""
    e, tree = jax.tree.flatten(expected)
    g, other = jax.tree.flatten(got)
    assert tree == other
    for a, b in zip(e, g, strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        a, b = np.asarray(a), np.asarray(b)
        if jnp.issubdtype(a.dtype, jnp.inexact):
            scale = float(np.abs(a[np.isfinite(a)]).max(initial=0))
            np.testing.assert_allclose(b, a, rtol=rtol, atol=rtol * scale + atol)
        else:
            np.testing.assert_array_equal(b, a)


def kernels(fn: Callable[..., Any], *args: Any) -> list[str]:
    """The primitives of each kernel's sites, in words."""
    found = Fused(jax.make_jaxpr(fn)(*args)).rewritten.kernels
    return [" ".join(s.eqn.primitive.name.replace("_", "-") for s in k.body.sites) for k in found]


ROWS = X.reshape(40, 1000)
SHAPES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows": (lambda x: (jnp.max(x * 2, 1), jnp.sum(x, 1), jnp.argmax(x, 1)), (ROWS,)),
    "rows by a number of each": (lambda x, m: jnp.sum((x - m[:, None]) ** 2, 1), (ROWS, X[:40])),
    "rows by a number of each column": (lambda x, w: jnp.sum(x * w, 1), (ROWS, X[:1000])),
    "columns": (lambda x: (jnp.sum(x, 0), jnp.max(x + 1, 0)), (ROWS,)),
    "columns by a number of each": (lambda x, w: jnp.sum(jnp.abs(x - w), 0), (ROWS, X[:1000])),
    "everything of an outer product": (lambda a, b: jnp.sum(jnp.abs(a[:, None] - b)), (X[:40], Y[:1000])),
    "middle axis": (lambda x: jnp.sum(x * 2, 1), (X.reshape(4, 100, 100),)),
    "several axes": (lambda x: jnp.max(x * 2, (1, 2)), (X.reshape(4, 100, 100),)),
    "axes apart": (lambda x: jnp.sum(x * 2, (0, 2)), (X.reshape(4, 100, 100),)),
    "transposed": (lambda x: (jnp.sum(x.T * 2, 1), jnp.sum(x)), (ROWS,)),
    "of a position": (lambda x: (jnp.sum(x * jnp.arange(N)), jnp.argmax(x * jnp.arange(N))), (X,)),
    "of positions in rows": (lambda x: jnp.sum(x * jnp.arange(1000) * jnp.arange(40)[:, None]), (ROWS,)),
    "nothing": (lambda x: (jnp.sum(x * 2), jnp.cumsum(x)), (X[:0],)),
    "booleans": (lambda x: (jnp.any(x > 4), jnp.all(x < 9), jnp.sum(x > 0)), (X,)),
    "integers": (lambda i: (jnp.sum(i * 3), jnp.max(i), jnp.cumsum(i - 7), jnp.prod(i)), (IDS,)),
    "halves": (lambda x: (jnp.sum(x * 2), jnp.max(x), jnp.mean(x)), (X.astype(jnp.bfloat16),)),
    "complex": (lambda x: jnp.sum(jax.lax.complex(x, x) * 1j), (X,)),
    "not a number": (lambda x: (jnp.argmin(x), jnp.nansum(x)), (X.at[77].set(jnp.nan),)),  # XLA's maxima may lose it
    "two-dimensional bins": (lambda x, i: jnp.zeros((7, 50)).at[i % 7, i].add(x), (X, IDS)),
    "rows into bins": (lambda x, i: jnp.zeros((50, 4)).at[i].add(x[:, None] * jnp.arange(4)), (X, IDS)),
    "into an array": (lambda x, i: jnp.linspace(0, 1, 60).at[i].max(x), (X, IDS)),
    "outside": (lambda x, i: (jnp.zeros(9).at[i - 3].add(x), jnp.zeros(9).at[i].add(x, mode="clip")), (X, IDS)),
    "matrix of updates": (lambda x, i: jnp.zeros(50).at[i.reshape(200, 200)].add(x[:200, None] * 2), (X, IDS)),
    "gathers": (lambda h, i: jax.ops.segment_sum(h[i] * jnp.tanh(h[i + 1]), i, 50), (X[:60], IDS)),
    "scans": (lambda x: (jnp.cumsum(x * x), jax.lax.cummax(x + 1, reverse=True), jax.lax.cumlogsumexp(x)), (X,)),
    "scans of rows": (lambda x: (jnp.cumsum(x * 2, 1), jnp.cumprod(x / 9, 0)), (ROWS,)),
    "batched updates": (jax.vmap(lambda x, i: jnp.ones(50).at[i].add(x * x)), (X.reshape(8, -1), IDS.reshape(8, -1))),
    "batched by position": (jax.vmap(lambda k, x: jnp.zeros(99).at[k * jnp.arange(5000)].add(x)), (IDS[:8], X.reshape(8, -1))),
    "sorted": (lambda x: (jnp.argsort(x.reshape(-1, 8), 1), jnp.sort(x.reshape(-1, 8) * 2, 1), jnp.median(x)), (X,)),
    "no numbers in a row": (lambda x: (jnp.sum(x, 1), jnp.all(x > 0, 1)), (jnp.zeros((N, 0)),)),
    "pairs": (
        lambda a, b: jnp.argmin(jnp.sum((a[:, None] - b) ** 2, -1), 1),
        (X[:3200].reshape(-1, 16), Y[:3200].reshape(-1, 16)),
    ),
    "attention": (lambda q, k: jax.nn.softmax(q @ k.T / 8), (X[:16384].reshape(256, 64), Y[:16384].reshape(256, 64))),
    "any of a group": (lambda x, i: jnp.zeros(50, bool).at[i].max(x > 3.5), (X, IDS)),
    "long rows inside": (lambda x: (jnp.sum(jnp.sum(x * x, 1) * jnp.arange(40)), jnp.max(jnp.max(x, 1))), (ROWS,)),
    "produced twice": (lambda x: ((y := jnp.exp(x)), jnp.sum(y), jnp.max(y * 2)), (X,)),
}
