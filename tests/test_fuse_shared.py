"""``fuse``: what kernels and XLA both want is made once, and what stays XLA's stays as it was written."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import faults
from jax import lax

from jaxprims.fusion.call import Fused

__all__ = ["faults"]  # fixtures that every test uses
pytestmark = [pytest.mark.strategies, pytest.mark.cpu]

rng = np.random.default_rng(5)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def fused(fn: Any, *args: Any) -> Fused:
    return Fused(jax.make_jaxpr(fn)(*args))


def lines(fn: Any, *args: Any) -> list[str]:
    return [line for line in fused(fn, *args).in_words() if "left to XLA" not in line]


def test_loops_and_branches_without_a_kernel_are_as_they_were_written() -> None:
    def steps(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            return c - 0.1 * jnp.sum(jnp.sin(c)) * c, jnp.max(c)

        last, seen = lax.scan(step, x, length=5)
        return jnp.sum(last) + lax.cond(seen[0] > 0, jnp.sum, jnp.prod, seen)

    for fn in (steps, jax.value_and_grad(steps), lambda x: lax.map(steps, x[None])):
        made = fused(fn, normal(40))
        assert "left to XLA" in str(made.in_words()) and made.rewritten.closed is made.closed
