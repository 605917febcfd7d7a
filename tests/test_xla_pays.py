"""Where XLA's own operation is the strategy: the same results on both sides of every limit, under transformations, and said."""

from __future__ import annotations

import functools
import math
import re
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp
from jaxprims import monoids
from jaxprims.ir.work import AT_ONCE
from jaxprims.targets.cpu import xla_pays
from jaxprims.targets.cpu.llvm.engine import target
from jaxprims.targets.plans import AnyKernel, forced

pytestmark = pytest.mark.strategies
rng = np.random.default_rng(3)


def strategies(fn: Callable[..., Any], *args: Any) -> list[str]:
    return [call.strategy for call in jp.explain(fn)(*args).calls]


SCATTERS = [
    (name, dtype, ((60,), (60, 5), (600, 5), (25, 20))[(j + k) % 4])
    for j, name in enumerate(("add", "multiply", "maximum", "minimum"))
    for k, dtype in enumerate((np.float32, np.float16, np.int32, np.uint8))
] + [("add", np.complex64, shape) for shape in ((60, 5), (60,), (600, 5))]


@pytest.mark.cover(5)
@pytest.mark.parametrize(("name", "dtype", "shape"), SCATTERS)
def test_scatters(name: str, dtype: Any, shape: tuple[int, ...]) -> None:
    op = getattr(jnp, name)
    x = jnp.asarray(rng.integers(1, 4, shape), dtype)
    ids = jnp.asarray(rng.integers(-2, 9, shape[0]))

    def call(x: Any, ids: Any) -> Any:
        return jp.reduce_by_index(x, ids, 7, op)

    narrow = 1 < math.prod(shape[1:]) <= xla_pays.NARROW and dtype is not np.float16
    least = xla_pays.SMALL_NARROW if narrow else xla_pays.SMALL
    if dtype is np.complex64:
        x, least = x * (1 + 2j), xla_pays.SMALL_OF_MANY_NARROW
    if name == "add" and dtype is np.float16:
        least = xla_pays.SMALL_HALVES
    pays = math.prod(shape) <= least
    assert (strategies(call, x, ids) == ["plain XLA"]) == (pays and x.size <= AT_ONCE)
    loop = jax.jit(lambda x, ids: jax.lax.fori_loop(0, 3, lambda i, x: x + call(x, ids)[i], x))
    assert ("@jaxprims" in loop.lower(x, ids).as_text()) != pays
    got = jax.jit(call)(x, ids)
    with forced(AnyKernel()):
        assert strategies(lambda x, ids: call(x, ids), x, ids) != ["plain XLA"]
        kernel = jax.jit(lambda x, ids: call(x, ids))(x, ids)
    np.testing.assert_array_equal(got, kernel)
    batch = jax.jit(jax.vmap(call, in_axes=(0, None)))(np.stack([x, x]), ids)
    np.testing.assert_array_equal(batch[1], got)


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


def own(a: Any, b: Any) -> Any:
    return a + b + a * b


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
            if x.size < xla_pays.FEW_IN_LONG_ROWS:
                assert "jaxprims" not in loops.lower(x).as_text()


@pytest.mark.parametrize(("bins", "many"), [(np.float32([-2, -1, -0.5, 0, 0.1, 2]), 400), (130, 60)])
def test_few_numbers_that_have_to_find_their_bins_in_a_loop(bins: Any, many: int) -> None:
    """Compared with every edge, or in turns."""
    x = jnp.asarray(rng.normal(size=15), jnp.float32)
    count = lambda x: jp.histogram(x, bins, (-3, 3))[0]  # noqa: E731
    run = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c + count(x + i), jnp.zeros(np.size(bins) - 1 or bins)))
    assert "@jaxprims_hist" not in run.lower(x).as_text()
    assert "@jaxprims_hist" in run.lower(jnp.ones(many, jnp.float32)).as_text()
    np.testing.assert_array_equal(run(x), sum(jnp.histogram(x + i, bins, (-3, 3))[0] for i in range(3)))


@pytest.mark.dear
def test_few_elements_into_bins() -> None:
    """Of f's own making, into several histograms, with several updates each."""

    def call(x: Any, i: Any) -> Any:
        two = [jp.Bins(4, jnp.add), jp.Bins((2, 3), jnp.maximum)]
        return jp.genhist(lambda x, i: ((i, 2 * x), ((i % 2, i % 3), jnp.sin(x))), (x, i), two)

    def twice(x: Any, i: Any) -> Any:
        return jp.genhist(lambda x, i: (jnp.stack([i, i - 1]), jnp.stack([x, -x])), (x, i), jp.Bins(4, jnp.add))

    x, i = jnp.asarray(rng.uniform(0.5, 2, 9), jnp.float32), jnp.asarray(rng.integers(-1, 6, 9))
    for fn in (call, twice):
        assert set(strategies(fn, x, i)) == {"plain XLA"}
        assert "plain XLA" not in strategies(fn, jnp.ones(3000), jnp.ones(3000, int))
        got = jax.jit(fn)(x, i), jax.vmap(fn, (0, None))(jnp.stack([x, 2 * x]), i)
        with forced(AnyKernel()):
            kernel = (
                jax.jit(lambda x, i, fn=fn: fn(x, i))(x, i),
                jax.vmap(lambda x, i, fn=fn: fn(x, i), (0, None))(jnp.stack([x, 2 * x]), i),
            )
        jax.tree.map(lambda g, k: np.testing.assert_allclose(g, k, rtol=1e-6), got, kernel)


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
    many = jnp.ones(xla_pays.SMALL), jnp.zeros(xla_pays.SMALL, int)
    assert "jaxprims" in jax.jit(loop).lower(*many).as_text()
    got = jax.jit(call)(x, i), jax.vmap(call, (0, None))(jnp.stack([x, 2 * x]), i)
    with forced(AnyKernel()):
        kernel = jax.jit(lambda x, i: call(x, i))(x, i), jax.vmap(lambda x, i: call(x, i), (0, None))(jnp.stack([x, 2 * x]), i)
    jax.tree.map(lambda g, k: np.testing.assert_allclose(g, k, rtol=1e-5), got, kernel)


def test_limits() -> None:
    """Beyond them there are kernels; so there are for what XLA has no operation for, and for sizes that are not known."""
    many, ids = jnp.ones(100 * xla_pays.SMALL), jnp.zeros(100 * xla_pays.SMALL, jnp.int32)
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
        more = jax.ShapeDtypeStruct((xla_pays.MANY, 4), jnp.float16)
        assert strategies(lambda x, op=op: jp.reduce(x, op, axis=1), more) == ["plain XLA"]
    own_numbers = jax.vmap(lambda x: jp.scan(x[1:], map=lambda v: v * x[0]))
    reduced, scanned = functools.partial(jp.reduce, op=own, axis=1), functools.partial(jp.scan, op=own, axis=1)
    for call, short, longer in ((reduced, 8, 200), (scanned, 8, 20), (own_numbers, 25, 50)):
        assert strategies(lambda x, n=short, call=call: call(x.reshape(-1, n)), many) == ["plain XLA"]
        assert strategies(lambda x, n=longer, call=call: call(x.reshape(-1, n)), many) != ["plain XLA"]
    assert strategies(lambda x: jp.argmax(x.reshape(-1, 50), 1), many) != ["plain XLA"]
    assert strategies(lambda x: jp.argmax(x.reshape(8, -1), 0), many) == ["plain XLA"]
    assert strategies(lambda x: jp.argmax(x.reshape(50, -1), 0), many) != ["plain XLA"]
    assert strategies(lambda x: jp.reduce(x.reshape(-1, 200), axis=1), many) != ["plain XLA"]
    assert strategies(lambda x: jp.reduce(x.reshape(-1, 200), jnp.multiply, axis=1), many) != ["plain XLA"]
    long = jax.ShapeDtypeStruct((xla_pays.MANY // 300 + 1, 300), jnp.float32)
    assert strategies(lambda x: jp.reduce(x, axis=1), long) != ["plain XLA"]
    assert strategies(lambda x: jp.reduce(x, jnp.multiply, axis=1), long) != ["plain XLA"]
    assert strategies(lambda x: jp.reduce(x, axis=1), jnp.ones((400, 600))) != ["plain XLA"]
    assert strategies(lambda x: jp.reduce(x, map=jnp.sin), many[:900]) != ["plain XLA"]
    n = jax.export.symbolic_shape("n")
    assert strategies(lambda x: jp.reduce(x), jax.ShapeDtypeStruct(n, jnp.float32)) != ["plain XLA"]


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_extremes_of_short_rows_are_xlas_where_vectors_are_short(monkeypatch: pytest.MonkeyPatch, vector_bytes: int) -> None:
    engine = types.SimpleNamespace(target=lambda: types.SimpleNamespace(vector_bytes=vector_bytes))
    monkeypatch.setattr(xla_pays, "llvm_engine", engine)
    for op, plain in ((jnp.maximum, vector_bytes < 64), (jnp.minimum, vector_bytes < 64), (jnp.add, False)):
        x, more = (jax.ShapeDtypeStruct((rows, 8), jnp.float32) for rows in (10_000, 20_000))
        assert (strategies(lambda x, op=op: jp.reduce(x, op, axis=1), x) == ["plain XLA"]) == plain
        assert strategies(lambda x, op=op: jp.reduce(x, op, axis=1), more) != ["plain XLA"]  # which a kernel's threads share


@pytest.mark.parametrize("vector_bytes", [32, 64])
def test_rows_of_a_vector_by_index_are_xlas_where_vectors_are_short(monkeypatch: pytest.MonkeyPatch, vector_bytes: int) -> None:
    engine = types.SimpleNamespace(target=lambda: types.SimpleNamespace(vector_bytes=vector_bytes))
    monkeypatch.setattr(xla_pays, "llvm_engine", engine)
    ids = jax.ShapeDtypeStruct((10_000,), jnp.int32)
    for lanes, dtype, op, num_bins, plain in (
        (4, "float32", jnp.add, 5000, True),
        (8, "int32", jnp.maximum, 5000, True),
        (4, "float32", jnp.add, 50, False),  # which the caches nearest to a core hold
        (5, "float32", jnp.add, 5000, False),
        (4, "float32", jnp.maximum, 5000, False),  # where XLA looks for a NaN
        (8, "uint8", jnp.add, 5000, False),
    ):
        x = jax.ShapeDtypeStruct((10_000, lanes), dtype)
        got = strategies(lambda x, i, op=op, n=num_bins: jp.reduce_by_index(x, i, n, op), x, ids)
        assert (got == ["plain XLA"]) == (plain and vector_bytes < 64), (lanes, dtype, op, num_bins)


@pytest.mark.parametrize("vector_bytes", [32, 64])
def test_few_sums_of_rows_in_a_loop_are_xlas_where_vectors_are_short(monkeypatch: pytest.MonkeyPatch, vector_bytes: int) -> None:
    engine = types.SimpleNamespace(target=lambda: types.SimpleNamespace(vector_bytes=vector_bytes))
    monkeypatch.setattr(xla_pays, "llvm_engine", engine)
    for shape, plain in (((200, 12), True), ((40, 100), True), ((1000, 12), False), ((60, 100), False)):
        x = jax.ShapeDtypeStruct(shape, jnp.float32)
        loops = jax.jit(lambda x: jax.lax.fori_loop(0, 9, lambda _, y: y + jp.reduce(x + y[0], axis=1), x[:, 0]))
        assert ("custom_call" not in loops.lower(x).as_text()) == (plain and vector_bytes < 64)


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
            always = axis == 1 and dtype == jnp.float32 and shape[1] < xla_pays.ROW_OF_EXTREMES and target().vector_bytes < 64
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


@pytest.mark.cover(5)
@pytest.mark.parametrize("n", [9, 0])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.complex64, np.uint8])
@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "minimum"])
def test_one_bin_is_a_reduction(name: str, dtype: Any, n: int) -> None:
    """Of all elements, if f says so: NaN is kept, ``dest`` combined in."""
    if dtype is np.complex64 and name != "add":
        pytest.skip("there is no such operator, or no scatter")
    values = np.where(rng.random((n, 3)) < 0.2, np.nan, 3 + rng.normal(size=(n, 3)))
    x = jnp.asarray(np.nan_to_num(values, nan=0) if np.dtype(dtype).kind in "iu" else values, dtype)
    for dest in (None, jnp.ones((1, 3), dtype)):
        call = lambda x, dest=dest: jp.genhist(lambda x: (0, x), x, jp.Bins(1, getattr(jnp, name), dest=dest))  # noqa: E731
        by_xla = jax.jit(call)
        assert n == 0 or not re.findall("scatter|jaxprims", by_xla.lower(x).as_text())
        with forced(AnyKernel()):
            kernel = jax.jit(lambda x, call=call: call(x))(x)
        np.testing.assert_allclose(np.asarray(by_xla(x)), kernel, rtol=1e-3 if dtype is np.float16 else 1e-6)


@pytest.mark.parametrize("given", [((-3.0, 3.0),), (), "edges"])
def test_histograms_in_loops(given: Any) -> None:
    """Of few elements XLA finds the bins, and the range; edges of equal bins are made once."""
    x = jnp.asarray(rng.normal(size=15 if given == "edges" else 73), np.float32)
    edges = jnp.asarray([-3, -2.5, -1, 0, 0.25, 0.5, 1.5, 2, 3.0])
    args = (edges,) if given == "edges" else (8, *given)

    def counts(histogram: Any, x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda i, c: c + histogram(x + c[0] * 0, *args)[0], jnp.zeros(8))

    mine = jax.jit(functools.partial(counts, jp.histogram))
    assert {*re.findall(r"@jaxprims_(\w+)_v", mine.lower(x).as_text())} == (set() if given == "edges" else {"held"})
    assert {*re.findall(r"@jaxprims_(\w+)_v", mine.lower(jnp.ones(3000)).as_text())} - {"held"}
    np.testing.assert_array_equal(mine(x), counts(jnp.histogram, x))


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


@pytest.mark.parametrize(("boundary", "row", "pays"), [("wrap", 50, True), ("constant", 50, False), ("wrap", 90, False)])
def test_steps_of_short_rows_that_wrap_around(boundary: str, row: int, pays: bool) -> None:
    x = jnp.asarray(rng.random((400, row), np.float32))

    def steps(x: jax.Array) -> Any:
        return jp.stencil(lambda a: 0.5 * a[0, 0] + 0.25 * (a[0, -1] + a[1, 0]), x, boundary=boundary, steps=12)

    assert (strategies(steps, x) == ["plain XLA"]) == pays
    got = jax.jit(steps)(x)
    with forced(AnyKernel()):
        np.testing.assert_allclose(jax.jit(lambda x: steps(x))(x), got, rtol=1e-5)


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
