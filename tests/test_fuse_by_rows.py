"""``fuse``: reductions of all that is made of rows, as part of a function of each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from fused import X, Y, kernels, same

import jaxprims as jp
from jaxprims.fusion.call import Fused


def _normalised(x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "squares": lambda x, y: jnp.mean((_normalised(x) - y) ** 2),
    "weights": lambda x, y: jnp.sum(jax.nn.softmax(x, -1) * y),
    "divergence": lambda x, y: jnp.sum(jax.nn.softmax(x, -1) * (jax.nn.log_softmax(x, -1) - jax.nn.log_softmax(y, -1))),
    "entropy": lambda x, y: -jnp.mean(y * jax.nn.log_softmax(x, -1)),
    "greatest": lambda x, y: jnp.max(jnp.abs(_normalised(x) - y)),
    "any": lambda x, y: jnp.any(_normalised(x) > 5),
    "all but one axis": lambda x, y: jnp.sum(jax.nn.softmax(x, -1) * y, tuple(range(1, x.ndim))),
}
SHAPES = ((5000, 8), (1250, 32), (50, 25, 32), (100, 400))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_rows_are_reduced_in_one_function(name: str, shape: tuple[int, ...]) -> None:
    fn, x, y = LOSSES[name], X.reshape(shape), Y.reshape(shape)
    made = Fused(jax.make_jaxpr(fn)(x, y)).rewritten.kernels
    if shape[-1] == 8:  # each row is an element of one reduction
        assert len(made) == 1
    elif name != "all but one axis":  # of which there are few, or each is a row
        assert made[0].body.sites[0].eqn.outvars[0].aval.shape == shape[:-1]
    same(jax.jit(fn)(x, y), jax.jit(jp.fuse(fn))(x, y))
    same(jax.grad(lambda x: fn(x, y).sum() * 1.0)(x), jax.grad(lambda x: jp.fuse(fn)(x, y).sum() * 1.0)(x), 1e-3)


def test_of_halves_functions_are_made_once() -> None:
    """An exponential that is summed before it is rounded, and rounded for what is divided by the sum."""
    x = X.reshape(-1, 64).astype(jnp.bfloat16)
    fn = lambda x: jax.nn.softmax(x, -1)  # noqa: E731
    graph = Fused(jax.make_jaxpr(fn)(x)).graph
    assert [e.invars[0].aval.dtype for e in graph.eqns if e.primitive.name == "exp"] == [jnp.float32]
    assert len(kernels(fn, x)) == 1
    same(jax.jit(fn)(x).astype(jnp.float32), jax.jit(jp.fuse(fn))(x).astype(jnp.float32), 0.01)


def test_of_halves_quotients_before_they_are_rounded_are_products() -> None:
    x = X.reshape(-1, 64).astype(jnp.bfloat16)
    fn = lambda x: jnp.sum((x / jnp.max(x, -1, keepdims=True)).astype(jnp.float32), -1)  # noqa: E731
    graph = Fused(jax.make_jaxpr(fn)(x)).graph
    assert all(e.outvars[0].aval.shape != x.shape for e in graph.eqns if e.primitive.name == "div")
    same(jax.jit(fn)(x), jax.jit(jp.fuse(fn))(x), 1e-5)
