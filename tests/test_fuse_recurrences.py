"""``fuse``: loops that are linear recurrences, their terms, factors and lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import RNG, N, X, kernels, same

import jaxprims as jp
from bench.cases.fuse import gradient
from jaxprims.fusion.call import Fused

DONE = jnp.asarray(RNG.random(N) < 0.01)


def test_explained() -> None:
    plan = jp.explain(jp.fuse(lambda x: (jnp.sum(x * x), jnp.max(x), jnp.sum(x[:9]))))(X)
    assert "reduce_sum, reduce_max over [40000]: one kernel, reads f32[40000]; takes in mul" in str(plan)
    assert "left to XLA: few elements" in str(plan)
    assert len(plan.calls) == 1
    assert "linear recurrences" in str(jp.explain(jp.fuse(RECURRENCES["mean"][0]))(X))


def loop(step: Callable[..., Any], init: Any, **options: Any) -> Callable[..., Any]:
    return lambda *xs: jax.lax.scan(step, init, xs[0] if len(xs) == 1 else xs, **options)


RECURRENCES: dict[str, tuple[Callable[..., Any], int, bool]] = {
    "mean": (loop(lambda c, x: ((m := 0.95 * c + 0.05 * x), (x - m) ** 2), 0.0), 1, True),
    "last": (loop(lambda c, x: (c * 0.5 + x, c - x), 1.0), 1, True),
    "returns": (loop(lambda c, x: ((v := x[0] + 0.99 * jnp.where(x[1], 0.0, c)), v), 0.5, reverse=True), 2, True),
    "after infinity": (loop(lambda c, x: ((v := x[0] + jnp.where(x[1], 0.0, c)), v), jnp.inf), 2, True),
    "maximum": (loop(lambda c, x: (jnp.maximum(c, x * 2), c), -1.0), 1, True),
    "two": (loop(lambda c, x: ((c[0] * 0.9 + x, c[1] * 0.8 + c[0]), c[1]), (0.0, 1.0)), 1, True),
    "negative": (loop(lambda c, x: (x - c / 3, c), 0.0), 1, True),
    "no loop": (loop(lambda c, x: (x, c), 0.0), 1, True),
    "lanes": (loop(lambda c, x: (jnp.where(x > 1, x, c * 0.5 + x), c), jnp.zeros(4)), 0, False),
    "count": (loop(lambda c, x: (c + 1, x * c), 0), 1, True),
    "masked": (loop(lambda c, x: (c + jnp.where(x[1], -0.1 * (c - x[0]), 0.0),) * 2, 0.0), 2, False),
    "dropped in part": (loop(lambda c, x: (jnp.where(x[1], 0, c) * 0.3 + 0.3 * c + x[0], c), 0.0), 2, False),
    "grows": (loop(lambda c, x: (c * 2 + 0 * x, c), 0.0), 1, False),
    "may grow": (loop(lambda c, x: (c * (1 + x), c), 0.0), 1, True),
    "divided by nothing": (loop(lambda c, x: (c / jnp.where(x > 3, 0, 2), c), 1.0), 1, True),
    "of halves": (loop(lambda c, x: (c + jnp.float16(1), c), jnp.float16(0)), 1, False),
    "unsigned": (loop(lambda c, x: (c - jnp.uint8(3), c), jnp.uint8(1)), 1, True),
    "with a matrix in each step": (loop(lambda c, x: (c * 0.5 + jnp.sum(jnp.outer(x, x)), c), 0.0), 0, False),
    "round in a circle": (
        loop(lambda c, x: ((c[0] * 0.9 + 0.1 * c[1], c[1] * 0.8 - 0.1 * c[0] + x), c[0]), (0.0, 1.0)),
        1,
        False,
    ),
    "not linear": (loop(lambda c, x: (jnp.tanh(c + x), c), 0.0), 1, False),
    "squared": (loop(lambda c, x: (c * c * 0.01 + x, c), 0.0), 1, False),
    "never changes": (loop(lambda c, x: (c, c + x), 0.0), 1, False),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", RECURRENCES)
def test_recurrences(name: str) -> None:
    fn, arrays, found = RECURRENCES[name]
    args = (X[:8000].reshape(-1, 4),) if not arrays else (X[:5000], DONE[:5000])[:arrays]
    fused = Fused(jax.make_jaxpr(fn)(*args))
    assert found == any("linear recurrences" in line for line in fused.in_words())
    same(jax.jit(fn)(*args), jp.fuse(fn)(*args), 1e-3)
    if name in ("mean", "returns", "two", "not linear"):
        loss = gradient(fn)
        expected = jax.jit(loss)(*args)
        same(expected, jax.jit(gradient(jp.fuse(fn)))(*args), 2e-3)
        same(expected, jp.fuse(loss)(*args), 2e-3)


LANES: dict[str, tuple[Callable[..., Any], bool]] = {
    "each by itself": (jax.vmap(RECURRENCES["mean"][0]), True),
    "with resets": (jax.vmap(lambda x: RECURRENCES["returns"][0](x, x > 1)), True),
    "factors that are not known": (jax.vmap(RECURRENCES["may grow"][0]), True),
    "carries that look at each other": (jax.vmap(RECURRENCES["two"][0]), True),
    "numbers for all lanes": (lambda x: jax.vmap(RECURRENCES["returns"][0], (0, None))(x, x[0] > 1), True),
    "lanes of lanes": (lambda x: jax.vmap(jax.vmap(RECURRENCES["mean"][0]))(x.reshape(2, 3, -1)), True),
    "mixed": (lambda x: jax.lax.scan(lambda c, y: (c[::-1] * 0.5 + y,) * 2, jnp.zeros(6), x.T)[1].T, False),
    "a batch of lanes side by side": (
        lambda x: jax.vmap(lambda x: jax.lax.scan(lambda c, y: (c * 0.5 + y,) * 2, jnp.zeros(2), x)[1])(x.reshape(3, -1, 2)),
        False,
    ),
    "lanes side by side": (lambda x: jax.lax.scan(lambda c, y: (c * 0.5 + y,) * 2, jnp.zeros(6), x.reshape(-1, 6))[1], False),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", LANES)
def test_recurrences_of_lanes(name: str) -> None:
    fn, found = LANES[name]
    x = X[:9000].reshape(6, 1500)
    for at in (x, x.at[2, 500].set(jnp.inf)):
        assert found == any("linear recurrences" in line for line in Fused(jax.make_jaxpr(fn)(at)).in_words())
        same(jax.jit(fn)(at), jp.fuse(fn)(at), 1e-3)
    expected = jax.jit(gradient(fn))(x)
    same(expected, jax.jit(gradient(jp.fuse(fn)))(x), 2e-3)
    same(expected, jp.fuse(gradient(fn))(x), 2e-3)


def test_few_recurrences_at_once_are_left_to_xla() -> None:
    """Which has them in a vector."""
    for rows, found in ((5, False), (20, True)):
        words = Fused(jax.make_jaxpr(LANES["each by itself"][0])(X[: 600 * rows].reshape(rows, 600))).in_words()
        assert found == any("linear recurrences" in line for line in words)


def test_advantages_of_a_batch_read_rows_as_they_lie() -> None:
    """Nothing is transposed: neither for what each step reads, which XLA makes of slices, nor for the recurrences."""

    def advantages(reward: Any, value: Any) -> Any:
        def one(r: Any, v: Any) -> Any:
            delta = r + 0.99 * jnp.concatenate([v[1:], jnp.zeros(1)]) - v
            return jax.lax.scan(lambda c, d: (d + 0.94 * c,) * 2, 0.0, delta, reverse=True)[1]

        return jax.vmap(one)(reward, value)

    x = jnp.stack([jnp.sin(jnp.arange(40_000.0) * k) for k in (0.1, 0.3, 0.7)])
    text = jax.jit(jp.fuse(advantages)).lower(x, x * x).compile().as_text()
    assert "jaxprims_scan" in text and "transpose" not in text.replace('transpose"', "")
    same(jax.jit(advantages)(x, x * x), jp.fuse(advantages)(x, x * x), 1e-4)


def test_recurrences_take_in_their_terms_and_factors() -> None:
    def average(x: Any, done: Any) -> Any:
        def step(later: Any, now: Any) -> Any:
            value = now[0] ** 2 + 0.9 * (1.0 - now[1]) * later
            return value, value

        return jax.lax.scan(step, 0.5, (x, done), reverse=True)[1]

    assert kernels(average, X, DONE) == ["linear-recurrence"]
    nearer = lambda x: jax.lax.scan(lambda c, x: ((y := c + 0.1 * (x * x - c)), y), 0.5, x)[1]  # noqa: E731
    assert kernels(nearer, X) == ["linear-recurrence"]
    assert jax.jit(jp.fuse(nearer)).lower(X).compile().memory_analysis().temp_size_in_bytes < 1000
    loss = lambda x, d: jnp.sum(average(x, d) ** 2)  # noqa: E731
    same(jax.grad(loss)(X, DONE), jp.fuse(jax.grad(loss))(X, DONE))
    for x in (X, X.at[N // 2].set(jnp.nan)):
        same(average(x, DONE), jp.fuse(average)(x, DONE))


def test_a_carry_that_starts_with_nothing_is_not_added() -> None:
    """A term would be changed in place, and be copied for it."""

    def returns(x: Any, done: Any) -> Any:
        return jax.lax.scan(lambda c, now: (now[0] + 0.99 * jnp.where(now[1], 0.0, c),) * 2, 0.0, (x, done), reverse=True)[1]

    graph = Fused(jax.make_jaxpr(returns)(X, DONE)).graph
    assert not any(e.primitive.name.startswith(("scatter", "dynamic_update")) for e in graph.eqns)
    same(returns(X, DONE), jp.fuse(returns)(X, DONE))


@pytest.mark.cover(4)
@pytest.mark.parametrize("level, spread", [(100.0, 0.0), (100.0, 1.0), (-3.0, 0.01), (0.0, 1.0)])
@pytest.mark.parametrize("rate", [0.05, 1e-3, 1e-5, "falling"])
@pytest.mark.parametrize("way", ["towards", "less", "restarted", "masked", "reverse"])
def test_small_changes_of_a_carry(way: str, rate: Any, level: float, spread: float) -> None:
    """``c + k (x - c)``: what rounds ``1 - k`` is not to count in each step. As exact as the loop, or to a few roundings of what
    is summed."""
    n = 30_000
    rng = np.random.default_rng(3)
    x = (level + spread * rng.standard_normal(n)).astype(np.float32)
    k = (1 / np.arange(2, n + 2) if rate == "falling" else np.full(n, rate)).astype(np.float32)
    new = rng.random(n) < 1e-4
    steps: dict[str, Callable[..., Any]] = {
        "towards": lambda c, now: c + now[1] * (now[0] - c),
        "less": lambda c, now: c - now[1] * c + now[1] * now[0],
        "restarted": lambda c, now: jnp.where(now[2], now[0], c + now[1] * (now[0] - c)),
        "masked": lambda c, now: jnp.where(now[2], c, c + now[1] * (now[0] - c)),
    }
    step = steps.get(way, steps["towards"])

    def run(x: Any, k: Any, new: Any) -> Any:
        given = (x, k if rate == "falling" else jnp.broadcast_to(rate, n).astype(x.dtype), new)
        one = lambda c, now: ((y := step(c, now if rate == "falling" else (now[0], rate, now[2]))), y)  # noqa: E731
        return jax.lax.scan(one, x[-1 if way == "reverse" else 0], given, reverse=way == "reverse")[1]

    args = (x, k, new)
    known = any("linear recurrences" in line for line in Fused(jax.make_jaxpr(run)(*args)).in_words())
    assert known
    exact, c = np.zeros(n), float(x[-1 if way == "reverse" else 0])
    for t in range(n)[:: -1 if way == "reverse" else 1]:
        kt, xt = (float(k[t]) if rate == "falling" else rate), float(x[t])
        moved = c + kt * (xt - c)
        c = exact[t] = {"restarted": xt if new[t] else moved, "masked": c if new[t] else moved}.get(way, moved)
    plain, fused = (np.abs(np.asarray(jax.jit(f)(*args)) - exact).max() for f in (run, jp.fuse(run)))
    assert fused <= 2 * plain + 30 * 2.0**-24 * np.abs(exact).max()


def test_carries_of_booleans_and_small_integers() -> None:
    """With a start that is traced; nothing of another dtype is added to it, which JAX warns of."""

    def latch(x: Any, first: Any) -> Any:
        return jax.lax.scan(lambda c, x: (jnp.where(x > 1, True, jnp.where(x < -1, False, c)),) * 2, first, x)

    for first in (True, False):
        same(jax.jit(latch)(X, first), jax.jit(jp.fuse(latch))(X, first))
    fn = lambda x, first: jax.lax.scan(lambda c, x: (jnp.where(x, jnp.int8(3), c + jnp.int8(1)),) * 2, first, x)  # noqa: E731
    same(jax.jit(fn)(DONE, jnp.int8(5)), jax.jit(jp.fuse(fn))(DONE, jnp.int8(5)))


@pytest.mark.dear
def test_what_is_known_of_factors() -> None:
    """No factor may be larger than 1: known before, where it is made of booleans and bounded functions."""
    bounded = {
        "booleans": lambda x, d: 1.0 - d,
        "of tanh": lambda x, d: 0.5 * jnp.tanh(x) + 0.5,
        "clipped": lambda x, d: jnp.clip(x, -0.5, 1.0),
        "chosen": lambda x, d: jnp.where(d, 0.0, 0.99),
        "decay": lambda x, d: jnp.exp(-jnp.abs(x)),
        "square": lambda x, d: jax.nn.sigmoid(x) ** 2,
    }
    others = {
        "number": lambda x, d: x,
        "more than 1": lambda x, d: 1.1 * (1.0 - d),
        "sum": lambda x, d: jnp.tanh(x) + 0.1,
        "integers": lambda x, d: (d.astype(jnp.uint8) - jnp.uint8(1)).astype(jnp.float32),
    }
    for name, factor in {**bounded, **others}.items():

        def fn(x: Any, d: Any, factor: Any = factor) -> Any:
            return jax.lax.scan(lambda c, now: (now[0] * c + now[1],) * 2, 0.0, (factor(x, d), x))[1]

        guarded = any(e.primitive.name == "cond" for e in Fused(jax.make_jaxpr(fn)(X, DONE)).graph.eqns)
        assert guarded == (name in others), name
        same(fn(X, DONE), jp.fuse(fn)(X, DONE))
