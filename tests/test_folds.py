"""Sums over rows of captured arrays inside f: written out by the frontend, rolled up, and taken along the rows by kernels."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp
from jaxprims.ir.check import check_program
from jaxprims.ir.evaluate import evaluate
from jaxprims.ir.folds import rolled
from jaxprims.ir.program import Program
from jaxprims.ir.reach import reach
from jaxprims.tracing.lower import hoist, to_program

ROWS, ELEMENTS = 9, 83


def traced(f: Callable[..., Any], *dtypes: Any) -> tuple[Program, list[Any]]:
    closed = jax.make_jaxpr(f)(*(jax.ShapeDtypeStruct((), d) for d in dtypes))
    pre, inner = hoist(closed)
    return to_program(inner.jaxpr), list(pre(*closed.consts))


def table(features: int, dtype: Any = np.float32, rows: int = ROWS, seed: int = 0) -> Any:
    rng = np.random.default_rng([features, seed])
    x = rng.integers(-3, 4, (rows, features))
    return jnp.asarray((x % 2 == 0) if dtype == np.bool_ else x.astype(dtype))


def count(p: Program) -> int:
    return sum(i.op == "fold" for i in p.walk())


FOLDS: dict[str, Callable[..., Any]] = {
    "product": lambda a, b, w: jnp.dot(a, b),
    "weighted": lambda a, b, w: jnp.sum(w * a * b),
    "distance": lambda a, b, w: jnp.sqrt(jnp.sum((a - b) ** 2)),
    "greatest": lambda a, b, w: jnp.max(a + w * b),
    "least": lambda a, b, w: jnp.min(jnp.abs(a) - b),
    "normal": lambda a, b, w: jnp.sum(jnp.exp(a - jnp.max(a))) + w,
    "sums": lambda a, b, w: jnp.sum(a + b * w),
    "behind": lambda a, b, w: w + a[0] * a[1] + jnp.sum(a + b) + w,
    "sum and turn": lambda a, b, w: jnp.sum(a * 2) - jnp.sum(b),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDS)
def test_rolled(name: str) -> None:
    h = table(19)
    program, captured = traced(lambda i, j, w: FOLDS[name](h[i], h[j], w), np.int32, np.int32, np.float32)
    short = rolled(program)
    assert count(program) == 0 and count(short) == (2 if name in ("normal", "sum and turn") else 1)
    assert len(list(short.walk())) < len(list(program.walk())) / 2
    assert Program.parse(str(short)) == short
    assert reach([short], len(captured)) == reach([program], len(captured))
    rng = np.random.default_rng(1)
    args = [rng.integers(0, ROWS, 50).astype(np.int32) for _ in range(2)] + [rng.integers(-2, 3, 50).astype(np.float32)]
    flat = [np.asarray(c).reshape(-1) for c in captured]
    for got, want in zip(evaluate(short, args, flat), evaluate(program, args, flat), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_one_row_for_all() -> None:
    """Elements lie in vectors then, as they do without a fold."""
    a, b = table(21), table(9)[0]
    i, j, w = elements(np.float32)
    for f in (lambda i, j, w: jnp.sum(jnp.abs(w - b)), lambda i, j, w: jnp.max(w * a[3] + a[4]) * a[i, 0]):
        ours, of = families(f)["histogram"]
        np.testing.assert_array_equal(ours(i, j, w), of(jax.vmap(f)(i, j, w), j))


def test_a_sum_of_negative_zeros() -> None:
    h = jnp.full((3, 12), -0.0)

    def f(i: Any) -> Any:
        return functools.reduce(jnp.add, [h[i, k] for k in range(12)])

    got = jp.scan(jnp.arange(3), lambda a, b: b, map=f)
    assert jp.explain(lambda i: jp.scan(i, lambda a, b: b, map=f))(jnp.arange(3)).calls[0].spec.f.text.count("fold") == 1
    assert np.signbit(got).all()


def test_a_fold_has_turns() -> None:
    h = table(12)
    program, _ = traced(lambda i: jnp.sum(h[i]), np.int32)
    damaged = Program.parse(re.sub(r"fold tuple \d+", "fold tuple 0", str(rolled(program))))
    with pytest.raises(ValueError, match="no number of turns"):
        check_program(damaged, damaged.params, None, ("f32",))


@pytest.mark.parametrize(
    "f",
    [
        lambda h, i: jnp.sum(h[i, :7]),  # few terms
        lambda h, i: jnp.sum(h[:, i]),  # not side by side
        lambda h, i: jnp.sum(h[i] * jnp.arange(20)),  # terms that differ
        lambda h, i: jnp.cumsum(h[i])[::3].sum(),  # links that others use
        lambda h, i: jax.lax.fori_loop(0, 20, lambda k, s: s + h[i, k], 0.0),  # an order that was asked for
    ],
)
def test_left_as_it_is(f: Callable[..., Any]) -> None:
    h = table(20)
    program, _ = traced(lambda i: f(h, i), np.int32)
    assert count(rolled(program)) == 0


def elements(dtype: Any) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(3)
    ends = rng.integers(0, ROWS, (2, ELEMENTS), dtype=np.int32)
    return jnp.asarray(ends[0]), jnp.asarray(ends[1]), jnp.asarray(rng.integers(0, 2, ELEMENTS).astype(dtype))


def families(f: Callable[..., Any]) -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Ours, and what is made of f's values."""
    ids = jnp.sort(jnp.arange(ELEMENTS, dtype=jnp.int32) % 7)
    return {
        "histogram": (
            lambda i, j, w: jp.genhist(lambda i, j, w: (j, f(i, j, w)), (i, j, w), jp.Bins(ROWS)),
            lambda v, j: jax.ops.segment_sum(v, j, ROWS),
        ),
        "scan": (lambda i, j, w: jp.scan((i, j, w), jnp.add, map=f), lambda v, j: jnp.cumsum(v)),
        "reduce": (lambda i, j, w: jp.reduce((i, j, w), jnp.maximum, map=f), lambda v, j: jnp.max(v)),
        "segments": (
            lambda i, j, w: jp.segment_reduce((i, j, w), ids, jnp.add, map=f, num_segments=7),
            lambda v, j: jax.ops.segment_sum(v, ids, 7),
        ),
    }  # fmt: skip


@pytest.mark.cover(2)
@pytest.mark.parametrize("features", [8, 20, 33, 128])
@pytest.mark.parametrize("family", ["histogram", "scan", "reduce", "segments"])
def test_families(family: str, features: int) -> None:
    a, b = table(features), table(features, seed=1)
    i, j, w = elements(np.float32)
    for name in ("weighted", "greatest"):
        f = lambda i, j, w: FOLDS[name](a[i], b[j], w)  # noqa: E731
        ours, of = families(f)[family]
        assert any(count(c.spec.f) for c in jp.explain(ours)(i, j, w).calls)
        np.testing.assert_allclose(jax.jit(ours)(i, j, w), of(jax.vmap(f)(i, j, w), j), rtol=1e-5)


@pytest.mark.cover(2)
@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.float16, jnp.bfloat16, np.float64])
def test_dtypes(x64: None, dtype: Any) -> None:
    a, b = table(21, dtype), table(21, dtype, seed=1)
    i, j, w = elements(dtype)
    for name in ("weighted", "greatest"):
        f = lambda i, j, w: FOLDS[name](a[i], b[j], w)  # noqa: E731
        got = jp.reduce((i, j, w), jnp.maximum, map=f)
        want = jax.vmap(f)(i, j, w).max()
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(np.asarray(got, np.float64), np.asarray(want, np.float64))


def test_not_a_number_and_gradients() -> None:
    a = table(24).at[2, 5].set(jnp.nan)
    i, j, w = elements(np.float32)
    f = lambda i, j, w: jnp.max(a[i] + a[j])  # noqa: E731
    np.testing.assert_array_equal(jp.scan((i, j, w), jnp.add, map=f), jnp.cumsum(jax.vmap(f)(i, j, w)))
    b = table(24)

    def loss(b: Any, reduce: Callable[..., Any]) -> Any:
        f = lambda i, j, w: jnp.tanh(0.1 * jnp.dot(b[i], b[j])) * w  # noqa: E731
        return reduce(f) ** 2

    mine = jax.grad(loss)(b, lambda f: jp.reduce((i, j, w), jnp.add, map=f))
    np.testing.assert_allclose(mine, jax.grad(loss)(b, lambda f: jax.vmap(f)(i, j, w).sum()), rtol=1e-4, atol=1e-4)
