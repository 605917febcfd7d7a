"""bf16 and f16: a fused function is no less exact than XLA's, which rounds nothing before it is converted to f32, and no sum is
rounded before it is complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp

N = 36_000
RNG = np.random.default_rng(0)
HALVES = (jnp.bfloat16, jnp.float16)

PRODUCERS: dict[str, Callable[..., Any]] = {
    "product": lambda x, y: x * y,
    "difference": lambda x, y: x - y,
    "quotient": lambda x, y: x / (2 + y * y),
    "exponential": lambda x, y: jnp.exp(x),
    "power": lambda x, y: (x + y) ** 3,
    "softplus": lambda x, y: jax.nn.softplus(x * y),
    "choice": lambda x, y: jnp.where(x > y, x * x, y),
    "one number": lambda x, y: x * x[0] + 1,
}

USES: dict[str, Callable[[Any], Any]] = {
    "sum": jnp.sum,
    "moments": lambda z: (jnp.mean(z), jnp.mean(z * z), jnp.max(z), jnp.argmax(z)),
    "sums of rows": lambda z: z.reshape(-1, 100).sum(1),
    "sums of columns": lambda z: z.reshape(-1, 8).sum(0),
    "softmax": lambda z: jax.nn.softmax(z.reshape(-1, 400)),
    "running sums": lambda z: jnp.cumsum(z) * z + 1,
    "running sums, compared": lambda z: jnp.where(z > 0, jnp.cumsum(z[::-1]), z),
    "sums by index": lambda z: jnp.zeros(8, z.dtype).at[jnp.arange(N) % 8].add(z),
    "in f32": lambda z: jnp.cumsum(z.astype(jnp.float32)),
}


def error(x: Any, exact: Any) -> float:
    x, exact = np.asarray(x).astype(np.float64), np.asarray(exact)
    return float(np.sqrt(np.mean((x - exact) ** 2) / (np.mean(exact**2) + 1e-30)))


@pytest.mark.cover(3)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_no_less_exact_than_plain(producer: str, use: str) -> None:
    """Every producer and every use meets both dtypes, in turn."""
    dtype: Any = HALVES[(list(PRODUCERS).index(producer) + list(USES).index(use)) % 2]

    def f(x: Any, y: Any) -> Any:
        return USES[use](PRODUCERS[producer](x, y))

    x, y = (jnp.asarray(RNG.uniform(0.01, 0.3, N)).astype(dtype) for _ in range(2))
    plain, ours = jax.jit(f)(x, y), jax.jit(jp.fuse(f))(x, y)
    with jax.enable_x64(True):
        exact = jax.jit(f)(*(jnp.asarray(np.asarray(a).astype(np.float64)) for a in (x, y)))
    for p, o, e in zip(*map(jax.tree.leaves, (plain, ours, exact)), strict=True):
        assert (p.dtype, p.shape, p.weak_type) == (o.dtype, o.shape, o.weak_type)
        if jnp.issubdtype(p.dtype, jnp.floating) and np.isfinite(np.asarray(p).astype(np.float64)).all():
            assert error(o, e) <= 1.2 * error(p, e) + float(jnp.finfo(dtype).eps) / 2  # one rounding of one number
        else:
            np.testing.assert_array_equal(np.asarray(o), np.asarray(p))


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.__name__)
def test_sums_beside_what_is_passed_on(dtype: Any) -> None:
    """An operator without an identity for all its leaves still has its sums in f32."""
    x = jnp.asarray(RNG.uniform(0.5, 1, (4, 3000))).astype(dtype)

    def op(a: Any, b: Any) -> Any:
        return a[0] + b[0], b[1]

    exact = np.cumsum(np.asarray(x).astype(np.float64), 1)
    sums, same = jp.scan((x, x), op, axis=1)
    np.testing.assert_allclose(np.asarray(sums).astype(np.float64), exact, rtol=float(jnp.finfo(dtype).eps))
    np.testing.assert_array_equal(np.asarray(same), np.asarray(x))
    total, _ = jp.reduce((x, x), op, axis=1)
    np.testing.assert_allclose(np.asarray(total).astype(np.float64), exact[:, -1], rtol=float(jnp.finfo(dtype).eps))
    every, last = jp.reduce((x, x), op, axis=(0, 1))
    np.testing.assert_allclose(float(every), exact[:, -1].sum(), rtol=float(jnp.finfo(dtype).eps))
    assert last == x[-1, -1]
