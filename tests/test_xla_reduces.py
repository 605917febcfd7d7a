"""Where XLA reduces by what it knows: the same results on both sides of every limit, under transformations, and said."""

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
from jaxprims import monoids
from jaxprims.ir.work import AT_ONCE
from jaxprims.targets.cpu.llvm.engine import target
from jaxprims.targets.cpu.ordered import xla_reduces
from jaxprims.targets.plans import AnyKernel, forced

pytestmark = pytest.mark.strategies
rng = np.random.default_rng(3)


REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: jp.reduce(x, axis=1),
    "max": lambda x: jp.reduce(x, jnp.maximum, axis=1),
    "product along 0": lambda x: jp.reduce(x, jnp.multiply, axis=0),
    "logsumexp": lambda x: jp.reduce(x, jnp.logaddexp, axis=1),
    "everything": lambda x: jp.reduce(x, jnp.minimum),
    "argmax": lambda x: jp.argmax(x, 1),
    "argmin along 0": lambda x: jp.argmin(x, 0),
    "a pair": lambda x: jax.vmap(lambda row: jp.reduce((row, jp.positions), monoids.argmin))(x),
}


@pytest.mark.cover(6)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    """Of ordinary values, ties, and what is not finite."""
    x = rng.normal(size=(6, 9)).astype(np.float32)
    special = x.copy()
    special[0, 3], special[1, :], special[2, 4], special[3, 2:4] = np.nan, -np.inf, np.inf, [-0.0, np.nan]
    call = REDUCTIONS[name]
    assert strategies(call, x) == ["plain XLA"]
    by_xla, by_kernel = jax.jit(call), jax.jit(lambda x: call(x))
    for values in (special, np.round(x), x):
        got = by_xla(values)
        with forced(AnyKernel()):
            kernel = by_kernel(values)
        jax.tree.map(lambda g, k: np.testing.assert_allclose(g, k, rtol=1e-6, atol=1e-6), got, kernel)
    if jnp.issubdtype(jax.tree.leaves(got)[0].dtype, jnp.floating):
        total = lambda x: jnp.sum(jnp.cos(jax.tree.leaves(call(x))[0]))  # noqa: E731
        gradient = jax.jit(jax.grad(total))(x)
        with forced(AnyKernel()):
            np.testing.assert_allclose(gradient, jax.jit(jax.grad(lambda x: total(x)))(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_sums_of_halves_are_wide(dtype: Any) -> None:
    x = jnp.full(1500, 1.0, dtype).at[0].set(256)
    wanted = np.asarray(1755, np.float32).astype(dtype)
    assert jp.reduce_by_index(x, jnp.zeros(1500, int), 1)[0] == wanted
    assert jp.segment_sum(x, jnp.zeros(1500, int), 1)[0] == wanted
    assert jp.reduce(x) == wanted


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
@pytest.mark.cover(1)
@pytest.mark.dear
def test_what_xla_would_wake_a_thread_for_is_a_kernel(dtype: str) -> None:
    """By XLA's own count of operations; in loops it may have all the same."""
    plain = {jnp.add: jnp.sum, jnp.maximum: jnp.max, jnp.minimum: jnp.min, own: None}
    operations = lambda fn, x: jax.jit(fn).lower(x).compile().cost_analysis().get("flops", 0)  # noqa: E731
    for shape in [(390,), (940,), (1200,), (300, 4), (150, 6), (40, 24), (500, 6), (10, 90), (80, 3, 4), (1800, 4)]:
        x = np.ones(shape, dtype)
        for axis in {0, len(shape) - 1}:
            for op, theirs in plain.items():
                if op is own and dtype != "float32":
                    continue
                call = lambda x, op=op: jp.reduce(x, op, axis=axis)  # noqa: E731
                if operations(call, x) < AT_ONCE:
                    continue
                wanted = operations(lambda x: theirs(x, axis), x) if theirs else 0
                by_xla = strategies(call, x) == ["plain XLA"]
                assert by_xla and AT_ONCE <= wanted < 1.1 * AT_ONCE, (shape, axis, op)  # about as many as in plain JAX
            scan = lambda x: jp.scan(x, own, axis=axis)  # noqa: E731
            assert operations(scan, x) < AT_ONCE
            loops = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, x: x + jp.reduce(x, axis=axis, keepdims=True), x))
            if x.size < xla_reduces.FEW_IN_LONG_ROWS:
                assert "jaxprims" not in loops.lower(x).as_text()


@pytest.mark.parametrize("narrow", [True, False])
def test_extremes_of_short_rows_are_xlas_where_vectors_are_short(monkeypatch: pytest.MonkeyPatch, narrow: bool) -> None:
    monkeypatch.setattr(xla_reduces, "has_narrow_vectors", lambda: narrow)
    for op, plain in ((jnp.maximum, narrow), (jnp.minimum, narrow), (jnp.add, False)):
        x, more = (jax.ShapeDtypeStruct((rows, 8), jnp.float32) for rows in (10_000, 20_000))
        assert (strategies(lambda x, op=op: jp.reduce(x, op, axis=1), x) == ["plain XLA"]) == plain
        assert strategies(lambda x, op=op: jp.reduce(x, op, axis=1), more) != ["plain XLA"]  # which a kernel's threads share


@pytest.mark.parametrize("narrow", [True, False])
def test_few_sums_of_rows_in_a_loop_are_xlas_where_vectors_are_short(monkeypatch: pytest.MonkeyPatch, narrow: bool) -> None:
    monkeypatch.setattr(xla_reduces, "has_narrow_vectors", lambda: narrow)
    for shape, plain in (((200, 12), True), ((40, 100), True), ((1000, 12), False), ((60, 100), False)):
        x = jax.ShapeDtypeStruct(shape, jnp.float32)
        loops = jax.jit(lambda x: jax.lax.fori_loop(0, 9, lambda _, y: y + jp.reduce(x + y[0], axis=1), x[:, 0]))
        assert ("custom_call" not in loops.lower(x).as_text()) == (plain and narrow)


def test_positions_in_an_odd_number_of_rows_are_found_by_a_kernel() -> None:
    for rows, dtype, plain in (
        (3000, "float32", True),
        (3001, "float32", False),
        (3001, "bfloat16", False),
        (3001, "int32", True),
    ):
        x = jax.ShapeDtypeStruct((rows, 7), dtype)
        assert (strategies(lambda x: jp.argmax(x, axis=1), x) == ["plain XLA"]) == plain


@pytest.mark.cover(3)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("n", [1, 2, 5, 8, 11])
def test_short_rows(n: int, dtype: Any) -> None:
    """Sums in float32, and extremes that keep NaN, of many rows and of few; under each transformation."""
    x = rng.normal(size=(3000, n)).astype(dtype)
    x[7, n // 2], x[8, n - 1] = np.nan, -np.inf
    wide = x.astype(np.float32)
    for op, wanted in ((jnp.add, wide.sum(1)), (jnp.maximum, wide.max(1)), (jnp.minimum, wide.min(1))):
        call = functools.partial(jp.reduce, op=op, axis=-1)
        ways = jax.jit(lambda x, call=call: (call(x), jax.vmap(call)(x), jax.vmap(call)(x[None])[0]))
        for rows in (3000, 20):
            expected = wanted[:rows].astype(dtype).astype(np.float32)
            for got in ways(x[:rows]):
                assert got.dtype == dtype
                np.testing.assert_allclose(np.asarray(got, np.float32), expected, rtol=float(jnp.finfo(dtype).eps), atol=1e-5)


def test_loops_make_what_they_reduce() -> None:
    """In a loop's body XLA reads short rows where it makes them; by itself, and of many steps, the same call is a kernel."""

    def kernels(call: Callable[[Any], Any], x: Any, loops: bool) -> int:
        def step(c: Any) -> Any:
            return jnp.max(call(x + c)) * 0

        fn = (lambda c: jax.lax.scan(lambda c, _: (step(c), None), c, length=3)[0]) if loops else step
        return jax.jit(fn).lower(0.0).as_text().count("custom_call @jaxprims")

    for shape, axis, dtype, few in (
        ((3000, 15), 1, jnp.float16, True),
        ((3000, 15), 1, jnp.float32, False),
        ((3000, 30), 1, jnp.float32, False),
        ((3000, 7), 1, jnp.float32, True),
        ((300, 300), 1, jnp.float16, False),
        ((100, 60), 0, jnp.bfloat16, True),
        ((100, 60), 0, jnp.float32, False),
        ((1000, 60), 0, jnp.bfloat16, False),
        ((3000, 2), 0, jnp.float16, False),
        ((12, 3000), 0, jnp.float32, True),
        ((13, 3000), 0, jnp.float32, False),
        ((12, 3000), 0, jnp.float16, False),
    ):
        for loops in (False, True):
            found = kernels(lambda x: jp.reduce(x, jnp.maximum, axis=axis), jnp.ones(shape, dtype), loops)
            always = axis == 1 and dtype == jnp.float32 and shape[1] < xla_reduces.ROW_OF_EXTREMES and target().vector_bytes < 64
            assert found == (0 if always or (loops and few) else 1), (shape, dtype, loops)
    for op in (jnp.add, jnp.multiply):
        for shape, few in (((30, 100), True), ((32, 3000), True), ((33, 3000), False), ((60, 100), False)):
            for loops in (False, True):
                found = kernels(lambda x, op=op: jp.reduce(x, op, axis=0), jnp.ones(shape, jnp.float32), loops)
                assert found == (0 if loops and few else 1), (shape, op, loops)
    for shape, few in (((4, 1000), True), ((12, 100), True), ((12, 1000), False), ((40, 1000), False)):
        for loops in (False, True):
            found = kernels(lambda x: jp.cumsum(x, 0), jnp.ones(shape, jnp.float32), loops)
            assert found == (0 if loops and few else 1), (shape, loops)
    affine, dear = (lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])), (lambda a, b: (a[0], jnp.log(jnp.exp(a[1]) + jnp.exp(b[1]))))
    scans = [(affine, (15, 60), True), (affine, (16, 60), False), (affine, (12, 3000), False), (dear, (7, 60), False)]
    for op, shape, few in scans:
        for loops in (False, True):
            found = kernels(lambda x, op=op: jp.scan((x, x), op, axis=0)[1], jnp.ones(shape, jnp.float32), loops)
            assert found == (0 if loops and few else 1), (shape, loops)


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize(("shape", "axis"), [((40, 30), 0), ((300, 9), 1), ((300, 23), 1), ((5, 300), 0), ((60, 1), 0)])
def test_extremes_of_halves_in_loops(shape: tuple[int, ...], axis: int, dtype: Any) -> None:
    """By XLA: what is not finite, ties and both zeros, as NumPy has them."""
    x = np.round(rng.normal(size=shape), 1)
    x.reshape(-1)[rng.permutation(x.size)[:9]] = [np.nan, -np.nan, np.inf, -np.inf, np.inf, 0, -0.0, np.nan, -np.inf]
    x = x.astype(dtype)
    for op, wanted in ((jnp.maximum, np.max), (jnp.minimum, np.min)):
        step = lambda i, c, op=op: jp.reduce(x + jnp.where(i < 0, c[0], 0), op, axis=axis)  # noqa: E731
        loop = jax.jit(lambda c, step=step: jax.lax.fori_loop(0, 3, step, c))
        c = jnp.zeros(shape[1 - axis], dtype)
        assert "jaxprims" not in loop.lower(c).as_text()
        np.testing.assert_array_equal(np.asarray(loop(c), np.float32), wanted(np.asarray(x, np.float32), axis))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_positions_in_short_rows_of_halves(dtype: Any) -> None:
    """In a loop's body they are XLA's, elsewhere a kernel's; NaN and ties are where they were."""
    x = jnp.asarray(rng.integers(-3, 3, (40, 22)), dtype).at[3, 5].set(jnp.nan).at[7].set(jnp.nan)
    loop = jax.jit(
        lambda x: jax.lax.fori_loop(0, 2, lambda _, at: at + jp.argmax(x + at[0].astype(x.dtype) * 0, 1), jnp.zeros(40, int))
    )
    assert "@jaxprims" not in loop.lower(x).as_text()
    np.testing.assert_array_equal(loop(x), 2 * jnp.argmax(x, 1))
    assert strategies(lambda x: jp.argmax(x, 1), x) != ["plain XLA"]
