"""``fuse``: what is compared with its own extreme is the same to the bit, whoever makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp


def loudest(x: Any) -> Any:
    """XLA takes the maximum of logarithms of a recurrence, whose transpose makes them again."""

    def step(e: Any, v: Any) -> Any:
        e = 0.99 * e + 0.01 * v * v
        return e, e

    _, e = jax.lax.scan(step, jnp.float32(0), x)
    return jnp.max(10 * jnp.log10(e + 1e-9)) + jnp.mean(e)


def steepest(x: Any) -> Any:
    """A kernel takes the maximum of a stencil's cells, which XLA makes again, rounding a * b + c once."""
    y = x[1:] - 0.97 * x[:-1]
    return jnp.max(jnp.abs(y)) + jnp.mean(y * y)


@pytest.mark.parametrize("order", ["grad of fused", "fused grad"])
@pytest.mark.parametrize("fn", [loudest, steepest])
def test_a_maximum_has_a_gradient(fn: Callable[..., Any], order: str) -> None:
    """It goes where the array equals it; of hundreds of thousands of numbers one that is off by a bit is the maximum soon."""
    compiled = jax.jit(jax.grad(jp.fuse(fn)) if order == "grad of fused" else jp.fuse(jax.grad(fn)))
    for seed in range(6):
        x = jnp.asarray(np.random.default_rng(seed).normal(size=400_000).astype(np.float32))
        got, expected = np.abs(compiled(x)), np.abs(jax.jit(jax.grad(fn))(x))
        np.testing.assert_allclose(got.max(), expected.max(), rtol=1e-2)
