"""Operators that keep an extreme and sums relative to it ("online softmax"): spellings, values of every kind, transformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowering import strategies

import jaxprims as jp
from jaxprims.operators.weighted import weighted
from jaxprims.tracing.lower import to_program

pytestmark = pytest.mark.strategies
rng = np.random.default_rng(0)

STRATEGY = "maxima, then sums of exponentials"
N, BINS, LEAST = 9000, 50, -1e30
inf = np.inf

Weight = Callable[[Any, Any], Any]

WEIGHTS: dict[str, Weight] = {
    "exp": lambda x, m: jnp.exp(x - m),
    "turned": lambda x, m: jnp.exp(-(m - x)),
    "base 2": lambda x, m: jnp.exp2(x - m),
    "scaled": lambda x, m: jnp.exp(0.5 * (x - m)),
    "guarded element": lambda x, m: jnp.where(x == -inf, 0.0, jnp.exp(x - m)),
    "guarded maximum": lambda x, m: jnp.where(jnp.isneginf(m), 0.0, jnp.exp(x - m)),
    "finite maximum": lambda x, m: jnp.exp(x - jnp.where(jnp.isfinite(m), m, 0.0)),
    "equal": lambda x, m: jnp.where(x == m, 1.0, jnp.exp(x - m)),
}

OTHERS: dict[str, Weight] = {
    "no weight": lambda x, m: x - m,
    "square": lambda x, m: jnp.exp(-((x - m) ** 2)),
    "half of all": lambda x, m: 0.5 * jnp.exp(x - m),
    "ties": lambda x, m: jnp.where(x == m, 1.0, 0.0),
    "ties, guarded": lambda x, m: jnp.where(x >= m, 1.0, jnp.where(jnp.isfinite(x), 0.0, 0.0)),
}


def operator(w: Weight, extreme: Callable[..., Any] = jnp.maximum) -> Callable[..., Any]:
    def op(a: Any, b: Any) -> Any:
        m = extreme(a[0], b[0])
        return (m, *(x * w(a[0], m) + y * w(b[0], m) for x, y in zip(a[1:], b[1:], strict=True)))

    return op


def name_of(op: Callable[..., Any]) -> str | None:
    numbers = [jax.ShapeDtypeStruct((), jnp.float32)] * 4
    found = weighted(to_program(jax.make_jaxpr(lambda *x: op(x[:2], x[2:]))(*numbers).jaxpr))
    return found and found.name


def by_index(op: Callable[..., Any], *values: Any, index: Any, least: float = LEAST) -> Any:
    identity = tuple(np.full(v.shape[1:], least if k == 0 else 0, v.dtype) for k, v in enumerate(values))
    return jp.reduce_by_index(values, index, BINS, op, identity=identity)


def one_by_one(op: Callable[..., Any], values: list[np.ndarray], index: np.ndarray, least: float = LEAST) -> Any:
    """Element after element, in plain JAX."""
    start = tuple(jnp.full((BINS, *v.shape[1:]), least if k == 0 else 0, v.dtype) for k, v in enumerate(values))

    def step(state: Any, element: Any) -> Any:
        k, *mine = element
        new = op(tuple(s[k] for s in state), tuple(mine))
        return tuple(s.at[k].set(x) for s, x in zip(state, new, strict=True)), None

    return jax.lax.scan(step, start, (jnp.asarray(index), *map(jnp.asarray, values)))[0]


def drawn(*widths: int, dtype: Any = np.float32) -> list[np.ndarray]:
    shapes = [(N,), *((N, w) if w else (N,) for w in widths)]
    return [rng.normal(0, 3, s).astype(dtype) for s in shapes]


def test_recognised() -> None:
    assert {k: name_of(operator(w)) for k, w in WEIGHTS.items()} == dict.fromkeys(WEIGHTS, "max")
    assert {k: name_of(operator(w)) for k, w in OTHERS.items()} == dict.fromkeys(OTHERS)
    assert name_of(operator(lambda x, m: jnp.exp(m - x), jnp.minimum)) == "min"
    assert name_of(operator(lambda x, m: jnp.exp(x - m), jnp.minimum)) == "min"  # grows, and multiplies all the same
    assert name_of(lambda a, b: (jnp.maximum(a[0], b[0]), a[1] * jnp.exp(a[0] - b[0]) + b[1])) is None
    assert name_of(lambda a, b: (jnp.maximum(a[0], b[0]), a[1] + b[1])) is None


@pytest.mark.cover(3)
@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("widths", [(0,), (0, 5), (0, 0)], ids=str)
def test_histograms(kind: str, widths: tuple[int, ...]) -> None:
    op, values, index = operator(WEIGHTS[kind]), drawn(*widths), rng.integers(0, BINS - 1, N)
    fn = lambda *v: by_index(op, *v, index=index)  # noqa: E731
    assert strategies(fn, *values) == [STRATEGY]
    for got, wanted in zip(fn(*values), one_by_one(op, values, index), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", ["guarded element", "guarded maximum"])
def test_values_of_every_kind_into_bins(kind: str) -> None:
    """-inf alone, with others, and nothing; inf and NaN."""
    op, (m, s) = operator(WEIGHTS[kind]), drawn(0)
    index = np.sort(rng.integers(0, BINS - 5, N))
    m[index == 0], m[(index == 1) & (rng.random(N) < 0.5)] = -inf, -inf
    for k, odd in ((2, inf), (3, np.nan), (4, -inf)):
        m[np.flatnonzero(index == k)[k:9]] = odd
    s[np.flatnonzero(index == 5)[3]] = np.nan
    index = index[order := rng.permutation(N)]
    got = by_index(op, m[order], s[order], index=index, least=-inf)
    for g, wanted in zip(got, one_by_one(op, [m[order], s[order]], index, -inf), strict=True):
        np.testing.assert_allclose(g, wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.dear
def test_transformations_of_histograms() -> None:
    op, (m, s), index = operator(WEIGHTS["exp"]), drawn(0, dtype=np.float32), rng.integers(0, BINS, N)

    def fn(m: Any, s: Any) -> Any:
        top, total = by_index(op, m, s**2, index=index)
        return jnp.log(total) + top

    @jax.jit
    def plain(m: Any, s: Any) -> Any:
        top = jax.ops.segment_max(m, index, BINS)
        return jnp.log(jax.ops.segment_sum(s**2 * jnp.exp(m - top[index]), index, BINS)) + top

    args, tangents = (m, s), (m[::-1].copy(), s[::-1].copy())
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)  # noqa: E731
    jax.tree.map(close, jax.jit(fn)(*args), plain(*args))
    jax.tree.map(close, jax.jvp(fn, args, tangents), jax.jvp(plain, args, tangents))
    jax.tree.map(close, jax.grad(lambda *x: fn(*x).sum(), (0, 1))(*args), jax.grad(lambda *x: plain(*x).sum(), (0, 1))(*args))
    two = (jnp.stack([m, s]), jnp.stack([s, m]))
    jax.tree.map(close, jax.vmap(fn)(*two), jax.vmap(plain)(*two))


@pytest.mark.dear
def test_few_elements_are_the_operators_own() -> None:
    op, index = operator(WEIGHTS["exp"]), rng.integers(0, BINS, N)
    few = lambda m, s: by_index(op, m[:1000], s[:1000], index=index[:1000])  # noqa: E731
    assert STRATEGY not in strategies(few, *drawn(0))


def folded(op: Callable[..., Any], *values: np.ndarray) -> Any:
    """From the first element to the last, in plain JAX."""
    first, rest = tuple(v[0] for v in values), tuple(jnp.asarray(v[1:]) for v in values)
    return jax.lax.scan(lambda a, b: (op(a, b), None), tuple(map(jnp.asarray, first)), rest)[0]


def assert_reduced(op: Callable[..., Any], *values: np.ndarray) -> None:
    for got, wanted in zip(jp.reduce(values, op), folded(op, *values), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=3e-4, atol=3e-4)


@pytest.mark.cover(2)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_reductions(kind: str) -> None:
    op = operator(WEIGHTS[kind])
    for others, n in ((1, 7), (1, N), (3, N)):
        assert_reduced(op, *(v[:n] for v in drawn(*(0,) * others)))


def test_reductions_with_the_sum_first() -> None:
    op, (m, s) = operator(WEIGHTS["exp"]), drawn(0)
    for n in (1, 7, N):
        assert_reduced(lambda a, b: op(a[::-1], b[::-1])[::-1], s[:n], m[:n])


@pytest.mark.cover(2)
@pytest.mark.parametrize("kind", ["exp", "guarded element", "guarded maximum", "finite maximum"])
def test_reductions_of_every_kind_of_value(kind: str) -> None:
    """Infinities at the end, where a chunk may be of nothing else; whole chunks of -inf before, where a weight allows it."""
    op = operator(WEIGHTS[kind])
    for last in (-inf, inf, np.nan):
        m, s = drawn(0)
        m[4096:] = -inf
        for n in (1, 4097, 8000):
            m[n - 1] = last
            assert_reduced(op, m[n - 1 : n] if n == 1 else m[:n], s[:n])
            m[n - 1] = -inf
    m, s = drawn(0)
    s[77] = np.nan
    assert_reduced(op, m, s)
    if kind != "exp":
        m[:5000] = -inf
        assert_reduced(op, m, np.ones_like(s))
        assert_reduced(op, np.full_like(m, -inf), np.ones_like(s))


def test_transformations_of_reductions() -> None:
    op, (m, s) = operator(WEIGHTS["exp"]), drawn(0)

    def fn(m: Any) -> Any:
        top, total = jp.reduce(m, op, map=lambda x: (x, jnp.ones_like(x)))
        return jnp.log(total) + top

    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)  # noqa: E731
    plain = jax.scipy.special.logsumexp
    close(jax.jit(fn)(m), plain(m))
    close(jax.grad(fn)(m), jax.grad(plain)(m))
    jax.tree.map(close, jax.jvp(fn, (m,), (s,)), jax.jvp(plain, (m,), (s,)))
    close(jax.vmap(fn)(jnp.stack([m, s])), [plain(m), plain(s)])
    close(jp.reduce((m, s), op, init=(jnp.float32(20), jnp.float32(2)))[1], 2 + (s * np.exp(m - 20)).sum() if m.max() < 20 else 0)
