"""Where XLA scans, and folds by any operator: the same results on both sides of every limit, under transformations, and said."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowering import own, strategies

import jaxprims as jp
from jaxprims.ir.work import AT_ONCE
from jaxprims.targets.cpu.histogram.xla_pays import SMALL
from jaxprims.targets.cpu.llvm.engine import target
from jaxprims.targets.cpu.ordered import xla_pays, xla_reduces
from jaxprims.targets.plans import AnyKernel, forced

pytestmark = pytest.mark.strategies
rng = np.random.default_rng(3)


FEW: dict[str, tuple[Callable[..., Any], int]] = {
    "scan": (lambda x: jp.scan(x, own), 200),
    "scan, exclusive": (lambda x: jp.scan(x, own, exclusive=True, identity=0), 200),
    "scan, reverse and restarting": (lambda x: jp.scan(x, own, reverse=True, init=0.5, segment_starts=x > 1.5), 200),
    "maxima before": (lambda x: jp.scan(x, jnp.maximum, exclusive=True), 200),
    "sums behind": (lambda x: jp.scan(x, exclusive=True, reverse=True), 200),
    "two leaves": (lambda x: jp.scan((x, x), lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])), 200),
    "columns": (lambda x: jp.scan(x.reshape(-1, 3), own), 300),
    "mapped": (lambda x: jp.scan(x, own, map=jnp.cos), 200),
    "reduce": (lambda x: jp.reduce(x, own), 2000),
    "reduce, mapped": (lambda x: jp.reduce((x, jp.positions), map=lambda v, i: jnp.sin(v) * i), 2000),
    "reduce rows": (lambda x: jp.reduce(x.reshape(3, -1), own, axis=1, init=0.25), 3000),
    "segments by ids": (lambda x: jp.segment_reduce(x, jnp.arange(x.size) // 4 - 1, own, identity=0, num_segments=2), 200),
    "segments by offsets": (lambda x: jp.segment_reduce(x, jp.Offsets(jnp.array([1, 3, 3, 5])), own, identity=0), 200),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", FEW)
def test_few_elements_by_any_operator(name: str) -> None:
    """What a kernel needs for its call XLA has done; the same results, their derivatives too, and a kernel for more."""
    call, many = FEW[name]
    x = jnp.asarray(rng.uniform(0.5, 2, 6), jnp.float32)
    assert set(strategies(call, x)) == {"plain XLA"}
    assert "plain XLA" not in strategies(call, jnp.ones(many))

    def total(x: Any) -> Any:  # arctan's slope is as accurate as its argument, however large that is
        return sum(jnp.sum(jnp.arctan(leaf)) for leaf in jax.tree.leaves(call(x)))

    got = jax.jit(call)(x), jax.grad(total)(x), jax.vmap(call)(jnp.stack([x, 2 * x]))
    with forced(AnyKernel()):
        kernel = (
            jax.jit(lambda x: call(x))(x),
            jax.grad(lambda x: total(x))(x),
            jax.vmap(lambda x: call(x))(jnp.stack([x, 2 * x])),
        )
    jax.tree.map(lambda g, k: np.testing.assert_allclose(g, k, rtol=2e-5, atol=1e-6), got, kernel)


@pytest.mark.cover(2)
@pytest.mark.parametrize("ops", [(jnp.add, jnp.add), (jnp.maximum, jnp.add), (jnp.multiply, jnp.minimum, jnp.add)])
def test_few_elements_of_several_leaves_into_segments(ops: Any) -> None:
    """A scatter for each, also of what a map makes; in a loop, where XLA makes what does not change before it."""

    def call(x: Any, i: Any) -> Any:
        op = lambda a, b: tuple(f(x, y) for f, x, y in zip(ops, a, b, strict=True))  # noqa: E731
        neutral = {jnp.add: 0.0, jnp.maximum: -jnp.inf, jnp.multiply: 1.0, jnp.minimum: jnp.inf}
        identity = tuple(neutral[f] for f in ops)
        return jp.segment_reduce(x, i, op, map=lambda x: (x, 2 * x, 1.0)[: len(ops)], identity=identity, num_segments=5)

    def loop(x: Any, i: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda k, x: x + sum(jnp.sum(leaf) for leaf in call(x, i)), x)

    x, i = jnp.asarray(rng.uniform(0.5, 2, 19), jnp.float32), jnp.asarray(np.sort(rng.integers(-1, 6, 19)))
    assert strategies(call, x, i) == ["plain XLA"]
    assert "jaxprims" not in jax.jit(loop).lower(x, i).as_text()
    many = jnp.ones(SMALL), jnp.zeros(SMALL, int)
    assert "jaxprims" in jax.jit(loop).lower(*many).as_text()
    got = jax.jit(call)(x, i), jax.vmap(call, (0, None))(jnp.stack([x, 2 * x]), i)
    with forced(AnyKernel()):
        kernel = jax.jit(lambda x, i: call(x, i))(x, i), jax.vmap(lambda x, i: call(x, i), (0, None))(jnp.stack([x, 2 * x]), i)
    jax.tree.map(lambda g, k: np.testing.assert_allclose(g, k, rtol=1e-5), got, kernel)


def test_limits() -> None:
    """Beyond them there are kernels; so there are for what XLA has no operation for, and for sizes that are not known."""
    many, ids = jnp.ones(100 * SMALL), jnp.zeros(100 * SMALL, jnp.int32)
    assert strategies(lambda x: jp.reduce(x), many) != ["plain XLA"]
    assert strategies(lambda x: jp.reduce(x, jnp.logaddexp), many) != ["plain XLA"]
    assert strategies(lambda x: jp.reduce(x.reshape(-1, 50), jnp.logaddexp, axis=1), many) != ["plain XLA"]
    assert strategies(lambda x: jp.reduce(x.reshape(-1, 50), jnp.logaddexp, axis=0), many) != ["plain XLA"]
    assert strategies(lambda x, i: jp.reduce_by_index(x, i, 5), many, ids) != ["plain XLA"]
    assert strategies(lambda x: jp.reduce(x.reshape(-1, 50), jnp.maximum, axis=1), many) != ["plain XLA"]
    assert strategies(lambda x: jp.reduce(x.reshape(-1, 8), jnp.multiply, axis=1), many) == ["plain XLA"]
    assert strategies(lambda x: jp.reduce(x.reshape(-1, 50), axis=1), many) != ["plain XLA"]  # many at once
    for op in (jnp.add, jnp.minimum):
        assert strategies(lambda x, op=op: jp.reduce(x.reshape(-1, 4), op, axis=1), many) == ["plain XLA"]
        assert strategies(lambda x, op=op: jp.reduce(x.reshape(-1, 25), op, axis=1), many) != ["plain XLA"]
        halves = many.astype(jnp.float16)
        assert strategies(lambda x, op=op: jp.reduce(x.reshape(-1, 8), op, axis=1), halves) != ["plain XLA"]
        more = jax.ShapeDtypeStruct((xla_reduces.MANY, 4), jnp.float16)
        assert strategies(lambda x, op=op: jp.reduce(x, op, axis=1), more) == ["plain XLA"]
    own_numbers = jax.vmap(lambda x: jp.scan(x[1:], map=lambda v: v * x[0]))
    reduced, scanned = functools.partial(jp.reduce, op=own, axis=1), functools.partial(jp.scan, op=own, axis=1)
    for call, short, longer in ((reduced, 8, 200), (scanned, 8, 20), (own_numbers, 25, 50)):
        assert strategies(lambda x, n=short, call=call: call(x.reshape(-1, n)), many) == ["plain XLA"]
        assert strategies(lambda x, n=longer, call=call: call(x.reshape(-1, n)), many) != ["plain XLA"]
    for dtype, made, plain in ((np.float32, jnp.negative, True), (np.float32, jnp.exp, False), (np.float16, jnp.negative, False)):
        rows = many.reshape(-1, 8).astype(dtype)
        assert (strategies(lambda x, made=made: jp.reduce(x, own, axis=1, map=made), rows) == ["plain XLA"]) == plain
    assert strategies(lambda x: jp.argmax(x.reshape(-1, 50), 1), many) != ["plain XLA"]
    assert strategies(lambda x: jp.argmax(x.reshape(8, -1), 0), many) == ["plain XLA"]
    assert strategies(lambda x: jp.argmax(x.reshape(50, -1), 0), many) != ["plain XLA"]
    assert strategies(lambda x: jp.reduce(x.reshape(-1, 200), axis=1), many) != ["plain XLA"]
    assert strategies(lambda x: jp.reduce(x.reshape(-1, 200), jnp.multiply, axis=1), many) != ["plain XLA"]
    long = jax.ShapeDtypeStruct((xla_reduces.MANY // 300 + 1, 300), jnp.float32)
    assert strategies(lambda x: jp.reduce(x, axis=1), long) != ["plain XLA"]
    assert strategies(lambda x: jp.reduce(x, jnp.multiply, axis=1), long) != ["plain XLA"]
    assert strategies(lambda x: jp.reduce(x, axis=1), jnp.ones((400, 600))) != ["plain XLA"]
    assert strategies(lambda x: jp.reduce(x, map=jnp.sin), many[:900]) != ["plain XLA"]
    n = jax.export.symbolic_shape("n")
    assert strategies(lambda x: jp.reduce(x), jax.ShapeDtypeStruct(n, jnp.float32)) != ["plain XLA"]


def test_loops_scan_two_elements_as_a_window() -> None:
    for shape, axis in (((2, 30), 0), ((30, 2), 1), ((4, 2, 60), 1)):
        x = jnp.ones(shape)
        lowered = jax.jit(lambda x, axis=axis: jax.lax.fori_loop(0, 2, lambda _, x: x + jp.cumsum(x, axis), x)).lower(x)
        assert "reduce_window" in lowered.as_text()
        twice = lambda x, axis=axis: x + jax.lax.cumsum(x, axis)  # noqa: E731
        np.testing.assert_allclose(lowered.compile()(x), twice(twice(x)), rtol=1e-6)


@pytest.mark.cover(8)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
@pytest.mark.parametrize(("shape", "axis"), [((12, 3), 0), ((2, 17), 1), ((7,), 0), ((24,), 0)])
@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "minimum"])
def test_cumulative_functions_of_few(name: str, shape: tuple[int, ...], axis: int, dtype: Any, reverse: bool) -> None:
    x = jnp.asarray(rng.integers(1, 3, shape), dtype)
    call = lambda x: jp.scan(x, getattr(jnp, name), axis=axis, reverse=reverse)  # noqa: E731
    assert strategies(call, x) == ["plain XLA"]
    turned = np.flip(np.asarray(x, np.float64), axis) if reverse else np.asarray(x, np.float64)
    wanted = getattr(np, name).accumulate(turned, axis)
    tolerance = float(jnp.finfo(dtype).eps) if dtype == jnp.bfloat16 else 0
    np.testing.assert_allclose(np.asarray(jax.jit(call)(x), np.float64), np.flip(wanted, axis) if reverse else wanted, tolerance)


@pytest.mark.cover(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.complex64])
@pytest.mark.parametrize("shape", [(4,), (200,), (300,), (3000,), (3000, 1), (3000, 3)], ids=str)
@pytest.mark.dear
def test_numbers_that_are_read_by_index(shape: tuple[int, ...], dtype: Any) -> None:
    """By a kernel where that is all, by XLA where its loops read them: of what it has made before, and in loops."""
    x, y = (jnp.asarray(rng.normal(size=shape), dtype) for _ in range(2))
    ids = jnp.asarray(rng.integers(-2, 22, shape[0]))

    def gradient(seg: Callable[..., Any], make: Callable[[Any], Any]) -> Callable[..., Any]:
        return jax.grad(lambda x: jnp.sum(jnp.abs(seg(make(x), ids, 20).astype(jnp.complex64)) ** 2))

    def kernels(fn: Callable[..., Any]) -> int:
        return jax.jit(fn).lower(x).as_text().count("@jaxprims")

    alone, made = gradient(jp.segment_sum, lambda x: x), gradient(jp.segment_sum, jnp.tanh)
    steps = lambda x: jax.lax.fori_loop(0, 3, lambda i, x: x + alone(x), x)  # noqa: E731
    if dtype == np.float32:
        sums, alike = int(x.size > AT_ONCE), jax.grad(lambda x: jnp.sum(jp.segment_sum(x, ids, 20)) / 7)
        long = shape != (3000, 3) or target().vector_bytes == 64  # else XLA gathers its rows
        assert kernels(alike) == int(shape == (3000, 3) and long)  # one number everywhere: XLA need not read it
        np.testing.assert_allclose(jax.jit(alike)(x), jax.grad(lambda x: jnp.sum(jax.ops.segment_sum(x, ids, 20)) / 7)(x))
        assert kernels(alone) == sums + int(x.size > xla_pays.FEW_READ and long)
        assert kernels(made) == sums
        assert kernels(steps) == sums
    tolerance = {"rtol": 1e-2, "atol": 1e-1} if dtype == np.float16 else {"rtol": 2e-4, "atol": 2e-4}
    for make, mine in ((lambda x: x, alone), (jnp.tanh, made)):
        plain = gradient(jax.ops.segment_sum, make)
        wanted = jax.jit(plain)
        np.testing.assert_allclose(jax.jit(mine)(x), wanted(x), **tolerance)
        np.testing.assert_allclose(jax.jit(jax.vmap(mine))(np.stack([x, y]))[1], wanted(y), **tolerance)
        if dtype == np.float32:
            twice, expected = (lambda x, g=g: jnp.sum(g(x) ** 2) for g in (mine, plain))
            np.testing.assert_allclose(jax.jit(jax.grad(twice))(x), jax.grad(expected)(x), rtol=1e-3, atol=1e-2)
            np.testing.assert_allclose(jax.jvp(mine, (x,), (y,))[1], jax.jvp(plain, (x,), (y,))[1], rtol=1e-3, atol=1e-2)


CUMULATIVE = [
    (name, shape, axis)
    for name in ("cumsum", "cummax", "cumprod", "cummin")
    for shape, axis in (((12, 10), 0), ((20, 3), 1), ((9,), 0))
]


@pytest.mark.cover(4)
@pytest.mark.parametrize(("name", "shape", "axis"), CUMULATIVE)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_few_steps_are_scanned_in_pairs(name: str, shape: tuple[int, ...], axis: int, dtype: Any) -> None:
    """XLA's own cumulative operation goes through all elements before each; what is dear is made once for it."""
    x = jnp.asarray(rng.integers(1, 3, shape), dtype)

    def call(x: Any) -> Any:
        return getattr(jp, name)(x, axis=axis, reverse=True)

    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda _, x: x + call(x), x)).lower(x)
    text = loop.as_text()
    assert "@jaxprims" not in text and "reduce_window" not in text
    plain = lambda x: x + getattr(jax.lax, name)(x, axis=axis, reverse=True)  # noqa: E731
    rounded = np.issubdtype(dtype, np.floating) and name in ("cumsum", "cumprod")  # in another order
    np.testing.assert_allclose(loop.compile()(x), plain(plain(x)), rtol=16 * np.finfo(dtype).eps if rounded else 0)
    if dtype is np.float32:
        dear = jax.jit(lambda x: call(jnp.sin(2 * x))).lower(x).compile()
        assert dear.cost_analysis().get("transcendentals", 0) <= x.size
        np.testing.assert_allclose(dear(x), getattr(jax.lax, name)(jnp.sin(2 * x), axis=axis, reverse=True), rtol=1e-5)
