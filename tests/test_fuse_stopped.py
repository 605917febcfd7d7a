"""``fuse``: gradients that are stopped, and functions with rules of their own, where derivatives are taken of what became of a
function: of one with effects, references or collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import drawn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import same
from hypothesis import given
from hypothesis import strategies as st
from jax.lax import associative_scan, stop_gradient

import jaxprims as jp

Function = Callable[[Any], Any]


@jax.custom_jvp
def tilted(x: Any) -> Any:
    return jnp.tanh(x)


tilted.defjvp(lambda primals, tangents: (tilted(*primals), 3 * tangents[0]))


def repeated(step: Function) -> Function:
    return lambda x: jax.lax.fori_loop(0, 3, lambda _, y: step(y), x)


def along(step: Callable[[Any, Any], Any]) -> Function:
    return lambda x: jax.lax.scan(lambda c, y: (step(c, y),) * 2, jnp.float32(0), x.reshape(-1))[1].reshape(x.shape)


FUNCTIONS: dict[str, Function] = {
    "map": lambda x: x * stop_gradient(jnp.cos(x)),
    "straight through": lambda x: x + stop_gradient(jnp.round(2 * x) / 2 - x),
    "argument": lambda x: x * stop_gradient(x),
    "rule": tilted,
    "rows": lambda x: x / stop_gradient(jnp.sqrt(jnp.sum(x * x, -1, keepdims=True) + 1)),
    "extremes": lambda x: x * jnp.max(stop_gradient(x), -1, keepdims=True) + x,
    "softmax": lambda x: jax.nn.softmax(x * stop_gradient(x), -1),
    "scan": lambda x: jnp.cumsum(x * stop_gradient(x), -1) / 50,
    "tree": lambda x: associative_scan(lambda a, b: a + stop_gradient(b), x, axis=x.ndim - 1) / 50,
    "stencil": lambda x: x + 0.2 * (jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(1, 1)])[..., 2:] - stop_gradient(x)),
    "shifts": lambda x: jnp.roll(x, 1, -1) * stop_gradient(jnp.roll(x, -1, -1)) + x,
    "steps": repeated(lambda x: jnp.roll(x, 1, -1) / 2 + stop_gradient(x) * x / 9),
    "steps with a rule": repeated(lambda x: tilted(jnp.roll(x, 1, -1) / 2 + x) / 2),
    "recurrence": along(lambda c, y: c / 2 + tilted(y)),
    "exact loop with a rule": lambda x: jax.lax.fori_loop(0, 12, lambda _, y: jax.nn.relu(y), jnp.where(x > 1, 0, x)),
    "by index": lambda x: jax.ops.segment_sum((x * stop_gradient(x)).reshape(-1), jnp.arange(x.size) % 7, 7)[0] * x / 99,
    "pairs": lambda x: x + jnp.sum((x.reshape(-1)[:300, None] - stop_gradient(x.reshape(-1)[:20])) ** 2, 1).mean(),
}


def printed(f: Function) -> Function:
    def g(x: Any) -> Any:
        jax.debug.callback(lambda _: None, x[0])
        return f(x)

    return g


def referred(f: Function) -> Function:
    def g(x: Any) -> Any:
        ref = jax.new_ref(x)
        ref[...] = f(ref[...])
        return ref[...]

    return g


def over_devices(f: Function) -> Function:
    mesh, all_of_it = jax.make_mesh((1,), ("d",)), jax.sharding.PartitionSpec()
    mean = jp.fuse(lambda x: jax.lax.pmean(f(x), "d"))
    return jax.shard_map(mean, mesh=mesh, in_specs=all_of_it, out_specs=all_of_it, check_vma=False)


WHERE: dict[str, Callable[[Function], Function]] = {
    "": lambda f: f,
    "print": printed,
    "reference": referred,
    "mean": over_devices,
}


def compare(where: str, f: Function, shape: tuple[int, ...], seed: int) -> None:
    x = jnp.asarray(np.random.default_rng(seed).normal(size=shape) * 0.8, jnp.float32)

    def loss(y: Any) -> Any:
        return jnp.sum(jnp.sin(y))

    expected = jax.jit(jax.value_and_grad(lambda x: loss(f(x))))(x)
    same(expected, jax.jit(jax.value_and_grad(lambda x: loss(jp.fuse(WHERE[where](f))(x))))(x), rtol=1e-3)


@pytest.mark.cover(2)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("f", FUNCTIONS)
def test_gradients_are_stopped(f: str, where: str) -> None:
    compare(where, FUNCTIONS[f], (300, 30), 0)


@drawn.examples(6)
@given(
    st.sampled_from(list(WHERE)),
    st.lists(st.sampled_from(list(FUNCTIONS)), min_size=2, max_size=3),
    st.sampled_from([(8192,), (2048, 4), (64, 128)]),
)
def test_gradients_of_several(where: str, names: list[str], shape: tuple[int, ...]) -> None:
    def f(x: Any) -> Any:
        for name in names:
            x = FUNCTIONS[name](x)
        return x

    if "straight through" not in names[1:]:  # whose bits round another way
        compare(where, f, shape, 1)


def test_a_stopped_operator() -> None:
    """By lanes, along an axis of rows."""
    x = jnp.asarray(np.random.default_rng(2).normal(size=(50, 4)), jnp.float32)

    def op(a: Any, b: Any) -> Any:
        return a + stop_gradient(b)

    for axis in (0, 1):
        got = jax.grad(lambda x, axis=axis: jnp.sum(jnp.sin(jp.scan(x, op, axis=axis))))(x)
        same(jax.grad(lambda x, axis=axis: jnp.sum(jnp.sin(associative_scan(op, x, axis=axis))))(x), got)
