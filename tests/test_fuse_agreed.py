"""``fuse``: drawn arrays of rows, of segments and of one axis are equal to their own extremes where plain JAX finds them so.

What is counted is what may not be: rows without an element that equals the maximum, numbers beyond it, roots of less than 0. XLA
makes numbers as often as loops read them, rounded as it likes in each, and in these programs always alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import count
from jax import lax

import jaxprims as jp

OPTIONS = {"xla_backend_optimization_level": 3}  # as by default, not as these tests have it: so it rounds as kernels do

UNARY: list[Callable[[Any], Any]] = [
    jnp.sin,
    jnp.tanh,
    jax.nn.gelu,
    lambda v: v * 1.3 + 0.7,
    lambda v: jnp.exp(-v * v),
    lambda v: jnp.log(v * v + 0.5),
    lambda v: v,
]
BINARY: list[Callable[[Any, Any], Any]] = [
    jnp.add,
    jnp.multiply,
    lambda u, v: u * v + u,
    lambda u, v: u * 0.7 + v * 0.3,
    lambda u, v: u / (v * v + 1),
]


def drawn(rng: random.Random) -> Callable[..., Any]:
    """An expression in numbers, and whether it ends with a product and a sum."""
    steps = [(rng.choice(UNARY), rng.choice(BINARY), rng.randrange(3)) for _ in range(rng.randrange(1, 4))]
    ends = rng.random() < 0.6

    def expression(x: Any, a: Any, b: Any) -> Any:
        y = x
        for unary, binary, other in steps:
            y = binary(unary(y), (a, b, x)[other])
        return y * a + b if ends else y

    return expression


def high(y: Any) -> Any:
    return y.max(1, keepdims=True)


def low(y: Any) -> Any:
    return y.min(1, keepdims=True)


def rows_of(y: Any) -> Any:
    return jnp.arange(len(y))


def none_of(mask: Any) -> Any:
    """Rows without one."""
    return jnp.sum(mask, 1, dtype=jnp.int32) < 1


OF_ROWS: dict[str, Callable[[Any], Any]] = {
    "both": lambda y: none_of(y == high(y)) | none_of(y == low(y)),
    "beyond": lambda y: (y > high(y)) | (y < low(y)),
    "by its position": lambda y: y[rows_of(y), jnp.argmax(y, 1)] != y.max(1),
    "along the axis": lambda y: jnp.take_along_axis(y, jnp.argmin(y, 1)[:, None], 1) != low(y),
    "beyond that at a position": lambda y: y > y[rows_of(y), jnp.argmax(y, 1)][:, None],
    "the second": lambda y: jnp.where(y == high(y), -jnp.inf, y).max(1) >= y.max(1),
    "chosen": lambda y: jnp.where(y == high(y), y, -jnp.inf).max(1) != y.max(1),
    "roots": lambda y: jnp.isnan(jnp.sqrt(high(y) - y)),
    "logarithms": lambda y: none_of(jnp.isinf(jnp.log(high(y) - y))),
    "exponentials": lambda y: none_of(jnp.exp(y - high(y)) == 1) | (jnp.exp(y - high(y)).max(1) > 1),
    "the rest": lambda y: jnp.isnan(jnp.log(1 - jnp.exp(y - high(y)))),
    "from 0 to 1": lambda y: ((y - low(y)) / (high(y) - low(y)) < 0) | none_of(y - low(y) == 0)[:, None],
    "ratios": lambda y: jnp.log((jnp.abs(y) + 0.5) / high(jnp.abs(y) + 0.5)) > 0,
    "scaled": lambda y: y * 2.5 > high(y) * 2.5,
    "moved": lambda y: y - y.mean(1, keepdims=True) > high(y) - y.mean(1, keepdims=True),
    "the same function": lambda y: jnp.tanh(y) > jnp.tanh(high(y)),
    "one of a scalar and of lanes": lambda y: jnp.cbrt(y) > jnp.cbrt(high(y)),
    "one of that at a position": lambda y: jnp.expm1(y[rows_of(y), jnp.argmax(y, 1)]) != jnp.expm1(y.max(1)),
    "roots of that at a position": lambda y: jnp.sqrt(jnp.take_along_axis(y, jnp.argmax(y, 1)[:, None], 1)) < jnp.sqrt(high(y)),
    "clipped": lambda y: jnp.clip(y, low(y), high(y)) != y,
    "running": lambda y: (lax.cummax(y, 1) < y) | (lax.cummax(y, 1)[:, -1:] != high(y)),
    "sorted": lambda y: none_of(y == jnp.sort(y, 1)[:, :1]) | (jnp.sort(y, 1)[:, -1] != y.max(1)),
    "the best": lambda y: jnp.sum(y >= lax.top_k(y, 3)[0][:, 2:], 1, dtype=jnp.int32) < 3,
    "columns": lambda y: (y > y.max(0)) | (jnp.sum(y == y.max(0), 0, dtype=jnp.int32) < 1),
    "of columns by position": lambda y: y[jnp.argmax(y, 0), jnp.arange(y.shape[1])] != y.max(0),
    "of all": lambda y: (y > y.max()) | (y.max(1).max() != y.max()),
}
ARRANGED: list[Callable[[Any], Any]] = [
    lambda y: y,
    lambda y: (y - y.mean(1, keepdims=True)) * 1.3 + 0.3,  # made of the row's own mean
    lambda y: y * lax.rsqrt((y * y).mean(1, keepdims=True) + 1e-3) * 1.1,
    jax.nn.log_softmax,
    lambda y: (y - y.mean(0)) * 1.7 + 0.1,
    lambda y: jnp.cumsum(y, 1) * 0.3 + y,
]
BESIDE: list[Callable[[Any], Any]] = [
    lambda y: jnp.float32(0),
    lambda y: jnp.sum(jnp.sin(y)),
    lambda y: jax.nn.logsumexp(y, -1) * y.max(-1),
    lambda y: jnp.cumsum(y, -1),
    lambda y: y,
]


def assert_none(fn: Callable[..., Any], *args: Any) -> None:
    """That ``fuse`` counts none where plain JAX does not."""
    found = jax.jit(jp.fuse(fn)).lower(*args).compile(OPTIONS)(*args)[0]
    if found:
        assert jax.jit(fn).lower(*args).compile(OPTIONS)(*args)[0] > 0


def numbers(rng: random.Random, shape: Sequence[int], some: Sequence[tuple[int, ...]]) -> list[Any]:
    draw = np.random.default_rng(rng.randrange(1 << 30))
    other = rng.choice([(), tuple(shape), *some])
    return [jnp.asarray(draw.normal(size=s), jnp.float32) for s in (tuple(shape), other, other)]


@pytest.mark.cover(3)
@pytest.mark.strategies
@pytest.mark.parametrize("seed", range(count(2)))
@pytest.mark.parametrize("missed", OF_ROWS)
def test_rows(missed: str, seed: int) -> None:
    rng = random.Random(f"{missed} {seed}")
    expression, arranged, beside = drawn(rng), rng.choice(ARRANGED), rng.choice(BESIDE)
    args = numbers(rng, shape := rng.choice([(300, 128), (40, 3000), (2000, 40), (16, 64)]), [(shape[0], 1), (1, shape[1])])

    def fn(x: Any, a: Any, b: Any) -> Any:
        y = arranged(jnp.broadcast_to(expression(x, a, b), shape))
        return jnp.sum(OF_ROWS[missed](y), dtype=jnp.int32), beside(y)

    assert_none(fn, *args)


def by_segment(mask: Any, ids: Any, n: int) -> Any:
    return jax.ops.segment_sum(mask.astype(jnp.int32), ids, n)


def none_in(mask: Any, ids: Any, n: int) -> Any:
    """Segments that have elements, but none such."""
    return (by_segment(mask, ids, n) < 1) & (by_segment(jnp.ones(ids.shape), ids, n) > 0)


def best(y: Any, ids: Any, n: int) -> Any:
    return jax.ops.segment_max(y, ids, n)[ids]


def rises(c: Any) -> Any:
    return jnp.concatenate([jnp.ones(1, bool), c[1:] > c[:-1]])


OF_ONE_AXIS: dict[str, Callable[[Any, Any, int], Any]] = {
    "of segments": lambda y, ids, n: none_in(y == best(y, ids, n), ids, n),
    "beyond segments'": lambda y, ids, n: (y > best(y, ids, n)) | (y < -best(-y, ids, n)),
    "roots in segments": lambda y, ids, n: jnp.isnan(jnp.sqrt(best(y, ids, n) - y)),
    "logarithms in segments": lambda y, ids, n: none_in(jnp.isinf(jnp.log(best(y, ids, n) - y)), ids, n),
    "exponentials in segments": lambda y, ids, n: jnp.exp(y - best(y, ids, n)) > 1,
    "the segment of the best": lambda y, ids, n: jax.ops.segment_max(y, ids, n)[ids[jnp.argmax(y)]] != y.max(),
    "by its position": lambda y, ids, n: (y[jnp.argmax(y)] != y.max()) | (y[jnp.argmin(y)] != y.min()),
    "beyond": lambda y, ids, n: (y > y.max()) | (jnp.sum(y >= y.max(), dtype=jnp.int32) < 1),
    "records": lambda y, ids, n: rises(lax.cummax(y)) & (lax.cummax(y) != y),
    "running": lambda y, ids, n: (lax.cummax(y) < y) | (lax.cummin(y, reverse=True)[0] != y.min()),
    "below the best so far": lambda y, ids, n: jnp.isnan(jnp.sqrt(lax.cummax(y) - y)),
    "sorted": lambda y, ids, n: jnp.sum(y == jnp.sort(y)[0], dtype=jnp.int32) < 1,
    "in order": lambda y, ids, n: jnp.diff(y[jnp.argsort(y)]) < 0,
    "the best": lambda y, ids, n: jnp.sum(y >= lax.top_k(y, 5)[0][4], dtype=jnp.int32) < 5,
    "from 0 to 1": lambda y, ids, n: (y - y.min()) / (y.max() - y.min()) < 0,
    "scaled": lambda y, ids, n: y * 0.7 > y.max() * 0.7,
    "of blocks": lambda y, ids, n: y[:24_000].reshape(8, -1).max(1).max() != y[:24_000].max(),
}
ALONG: list[Callable[[Any, Any, int], Any]] = [
    lambda y, ids, n: y,
    lambda y, ids, n: (y - y.mean()) * 1.3 + 0.3,
    lambda y, ids, n: jax.ops.segment_sum(y, ids, n)[ids] * 0.01 + y * 1.1,
    lambda y, ids, n: jnp.cumsum(y) * 0.3 + y,
    lambda y, ids, n: y - 0.97 * jnp.roll(y, 1),
]


@pytest.mark.cover(3)
@pytest.mark.strategies
@pytest.mark.parametrize("seed", range(count(2)))
@pytest.mark.parametrize("missed", OF_ONE_AXIS)
def test_one_axis(missed: str, seed: int) -> None:
    rng = random.Random(f"{missed} {seed}")
    expression, along, beside = drawn(rng), rng.choice(ALONG), rng.choice(BESIDE)
    size, n = rng.choice([24_000, 100_003]), rng.choice([1, 7, 1000])
    args = numbers(rng, (size,), [])
    ids = np.random.default_rng(seed).integers(0, n, size).astype(np.int32)

    def fn(ids: Any, x: Any, a: Any, b: Any) -> Any:
        y = along(jnp.broadcast_to(expression(x, a, b), (size,)), ids, n)
        return jnp.sum(OF_ONE_AXIS[missed](y, ids, n), dtype=jnp.int32), beside(y)

    assert_none(fn, np.sort(ids) if rng.random() < 0.3 else ids, *args)


def repeated(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, a, b: lax.fori_loop(0, 3, lambda k, found: found + fn(x * (1.0 + k), a, b)[0], jnp.int32(0))[None]


def batched(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, a, b: (jnp.sum(jax.vmap(fn, (0, None, None))(jnp.stack([x, 1.5 * x]), a, b)[0]),)


def differentiated(fn: Callable[..., Any]) -> Callable[..., Any]:
    def of_derivative(x: Any, a: Any, b: Any) -> Any:
        def loss(x: Any) -> Any:
            found, y = fn(x, a, b)
            return jnp.sum(y), found

        slope, found = jax.grad(loss, has_aux=True)(x)
        return found, slope

    return of_derivative


@pytest.mark.cover(2)
@pytest.mark.strategies
@pytest.mark.parametrize("missed", ["both", "by its position", "roots", "the same function", "running", "sorted"])
@pytest.mark.parametrize("form", [repeated, batched, differentiated])
def test_transformed(form: Callable[..., Any], missed: str) -> None:
    rng = random.Random(f"{form.__name__} {missed}")
    expression, arranged = drawn(rng), rng.choice(ARRANGED)
    args = numbers(rng, (300, 128), [(300, 1)])

    def fn(x: Any, a: Any, b: Any) -> Any:
        y = arranged(jnp.broadcast_to(expression(x, a, b), (300, 128)))
        return jnp.sum(OF_ROWS[missed](y), dtype=jnp.int32), y

    assert_none(form(fn), *args)


@pytest.mark.cover(3)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("missed", ["both", "by its position", "roots", "running", "columns"])
def test_halves(missed: str, dtype: Any) -> None:
    rng = random.Random(missed)
    expression = drawn(rng)
    args = [x.astype(dtype) for x in numbers(rng, (300, 128), [(300, 1)])]

    def fn(x: Any, a: Any, b: Any) -> Any:
        y = jnp.broadcast_to(expression(x, a, b), (300, 128))
        return jnp.sum(OF_ROWS[missed](y), dtype=jnp.int32), y.sum(1)

    assert_none(fn, *args)


@pytest.mark.cover(2)
@pytest.mark.strategies
@pytest.mark.parametrize("seed", range(count(2)))
@pytest.mark.parametrize("missed", ["the same function", "one of a scalar and of lanes", "one of that at a position", "both"])
@pytest.mark.parametrize("form", [jax.vmap, lambda row: lambda x: lax.map(row, x)])
def test_doubles(form: Callable[..., Any], missed: str, seed: int) -> None:
    rng = random.Random(f"{missed} {seed}")
    expression, arranged, beside = drawn(rng), rng.choice(ARRANGED), rng.choice(BESIDE)

    def row(x: Any) -> Any:
        y = arranged(expression(x, 0.7, -0.3)[None])
        return jnp.sum(OF_ROWS[missed](y), dtype=jnp.int32), beside(y)

    def fn(x: Any) -> Any:
        found, more = form(row)(x)
        return jnp.sum(found), more

    with jax.enable_x64(True):
        assert_none(fn, jnp.asarray(np.random.default_rng(seed).normal(size=(40, 2000))))


@pytest.mark.cover(3)
@pytest.mark.strategies
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("function", [jnp.tan, jnp.tanh])
@pytest.mark.parametrize("shape", [(40, 3000), (4, 50_000), (3000, 96)])
def test_functions_of_an_argument_and_its_extreme(shape: tuple[int, int], function: Callable[[Any], Any], dtype: str) -> None:
    """XLA's function of the one and a kernel's of the other would be two; so would a kernel's of scalars and of lanes."""

    def row(y: Any) -> Any:
        differs = (y == y.max()) & (function(y) != function(y.max()))
        return jnp.sum(differs, dtype=jnp.int32), jax.nn.softmax(y)

    def fn(x: Any) -> Any:
        found, more = lax.map(row, x)
        return jnp.sum(found), more

    with jax.enable_x64(True):
        assert_none(fn, jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype))
