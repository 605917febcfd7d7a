"""``fuse``: what is kept for backward passes, and for how long arrays live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import jaxprims as jp
from jaxprims.fusion.call import Fused

LAYERS = 6
X = jnp.asarray(np.random.default_rng(11).normal(size=60_000).astype(np.float32))


def deep(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """A loss of some layers, each with much to be kept between two cumulative sums."""

    def layer(x: Any) -> Any:
        for _ in range(3):
            x = jnp.sin(0.3 * jnp.exp(jnp.tanh(x)) * x)
        return jnp.cumsum(x) / x.size

    def loss(x: Any) -> Any:
        for _ in range(LAYERS):
            x = wrapped(layer)(x)
        return jnp.sum((1 + x) ** 2)

    return loss


def arrays(fn: Callable[..., Any]) -> float:
    """Arrays like X that a function has beside its results."""
    return jax.jit(fn).lower(X).compile().memory_analysis().temp_size_in_bytes / X.nbytes


ORDERS = {
    "grad of fused": lambda f: jax.grad(jp.fuse(f)),
    "fused grad": lambda f: jp.fuse(jax.grad(f)),
    "grad of fused, twice": lambda f: jax.grad(jp.fuse(jp.fuse(f))),
    "value and grad": lambda f: lambda x: jax.value_and_grad(jp.fuse(f))(x)[1],
}


@pytest.mark.parametrize("order", ORDERS)
def test_checkpoints_hold(order: str) -> None:
    """Nothing but each layer's argument is kept, and what is made again is made in kernels."""
    fn = ORDERS[order](deep(jax.checkpoint))
    assert arrays(fn) < LAYERS + 4
    np.testing.assert_allclose(fn(X), jax.grad(deep(jax.checkpoint))(X), rtol=1e-4, atol=1e-7)


def test_policies() -> None:
    """What a checkpoint saves by its name is not made again."""

    def of(x: Any) -> Any:
        return jnp.sum(jnp.cos(checkpoint_name(jnp.cumsum(jnp.sin(x)) / x.size, "kept")))

    def sums(fn: Any) -> int:
        np.testing.assert_allclose(fn(X)[1], jax.grad(of)(X), rtol=1e-4, atol=1e-5)
        return jax.jit(fn).lower(X).as_text().count("custom_call @jaxprims_scan")

    anything = jax.checkpoint(of)
    named = jax.checkpoint(of, policy=jax.checkpoint_policies.save_only_these_names("kept"))
    for f, scans in ((anything, 3), (named, 2)):
        assert sums(jp.fuse(jax.value_and_grad(f))) == sums(jax.value_and_grad(jp.fuse(f))) == scans


def test_checkpoints_stay_where_derivatives_will_be_taken() -> None:
    """As in functions with effects: the call is there, with a kernel in it."""
    fused = Fused(jax.make_jaxpr(jax.checkpoint(lambda x: jnp.cumsum(jnp.sin(x))))(X), with_rules=True)
    (eqn,) = fused.rewritten.closed.jaxpr.eqns
    assert "prevent_cse" in eqn.params and any("in " in line and "cumsum" in line for line in fused.in_words())


def test_gradients_take_no_more_memory() -> None:
    plain = deep(lambda f: f)
    assert arrays(jax.grad(jp.fuse(plain))) <= arrays(jax.grad(plain))
