"""Operators with derivatives of their own, by custom_jvp or custom_vjp: obeyed, whatever the operator is recognised as."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import einstein

import jaxprims as jp


def _ruled(base: Callable[..., Any], backwards: bool) -> Callable[..., Any]:
    """With a derivative of its own: three times that by the first argument, half of that by the second."""
    if backwards:
        f = jax.custom_vjp(base)

        def pull(operands: Any, ct: Any) -> Any:
            return tuple(k * x for k, x in zip((3, 0.5), jax.vjp(base, *operands)[1](ct), strict=True))

        f.defvjp(lambda a, b: (base(a, b), (a, b)), pull)
        return f
    f = jax.custom_jvp(base)
    f.defjvp(lambda xs, dots: (f(*xs), jax.jvp(base, xs, (3 * dots[0], 0.5 * dots[1]))[1]))
    return f


@pytest.mark.cover(3)
@pytest.mark.strategies
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(
    ("op", "neutral"),
    [(jnp.add, 0.0), (jnp.multiply, 1.0), (jnp.maximum, -np.inf), (jnp.logaddexp, -np.inf), (jnp.hypot, 0.0), (einstein, 0.0)],
)
def test_operators_with_rules_of_their_own(op: Any, neutral: float, backwards: bool) -> None:
    """A custom_jvp or custom_vjp of an operator is obeyed, whatever it is recognised as: of a few steps JAX's gradients by the
    same operator, of many those of a custom_vjp, which has no forward mode."""
    ruled = _ruled(op, backwards)
    x = jnp.linspace(0.3, 0.5, 20)
    for n, reverse in ((2, False), (5, True), *(((20, False), (20, True)) if backwards else ())):
        row, w = x[:n], jnp.cos(jnp.arange(n))
        ours, theirs = (
            jax.jit(jax.grad(lambda x, f=f, w=w: jnp.sum(w * f(x))))(row)
            for f in (
                lambda x, r=reverse: jp.scan(x, ruled, reverse=r),
                lambda x, r=reverse: jax.lax.associative_scan(ruled, x, reverse=r),
            )
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    pair, one = x[:2], np.zeros(2, np.int32)
    wanted = jax.grad(lambda x: ruled(x[0], x[1]))(pair)
    for f in (
        lambda x: jp.reduce(x, ruled),
        lambda x: jp.segment_reduce(x, one, ruled, num_segments=1, identity=neutral)[0],
        lambda x: jp.reduce_by_index(x, one, 1, ruled, identity=neutral)[0],
    ):
        np.testing.assert_allclose(jax.grad(f)(pair), wanted, rtol=1e-5)


def test_operators_with_a_vjp_in_every_call() -> None:
    """Start values, segments, exclusive scans, elements of several leaves, batches and second derivatives."""
    op = _ruled(einstein, True)
    pairs = lambda a, b: (op(a[0], b[0]), a[1] + b[1])  # noqa: E731
    x, w = jnp.linspace(-0.4, 0.6, 8), jnp.cos(jnp.arange(8))
    whole = lambda x: jnp.sum(w * jax.lax.associative_scan(op, x))  # noqa: E731
    for f, g in (
        (lambda x: jp.scan(x[1:], op, init=x[0]), lambda x: jax.lax.associative_scan(op, x.at[1].set(op(x[0], x[1]))[1:])),
        (lambda x: jp.scan(x, op, identity=0.0, exclusive=True)[1:], lambda x: jax.lax.associative_scan(op, x)[:-1]),
        (
            lambda x: jp.scan(x, op, segment_starts=jnp.arange(8) % 4 == 0),
            lambda x: jax.vmap(lambda x: jax.lax.associative_scan(op, x))(x.reshape(2, 4)).reshape(-1),
        ),
        (lambda x: jp.scan((x, x), pairs)[0], lambda x: jax.lax.associative_scan(op, x)),
    ):
        weighted = lambda x, f: jnp.sum(w[: f(x).size] * f(x))  # noqa: E731
        ours, theirs = (jax.grad(weighted)(x, h) for h in (f, g))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    mine = lambda x: jnp.sum(w * jp.scan(x, op))  # noqa: E731
    rows = jnp.stack([x, x / 2, x / 3])
    np.testing.assert_allclose(jax.vmap(jax.grad(mine))(rows), jax.vmap(jax.grad(whole))(rows), rtol=1e-4, atol=1e-5)
    ours, theirs = (jax.grad(lambda x, f=f: jnp.sum(jax.grad(f)(x) ** 2))(x) for f in (mine, whole))
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
