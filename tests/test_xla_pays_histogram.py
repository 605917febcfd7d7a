"""Where XLA's own scatter is the strategy: the same results on both sides of every limit, under transformations, and said."""

from __future__ import annotations

import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowering import strategies

import jaxprims as jp
from jaxprims.ir.work import AT_ONCE
from jaxprims.targets.cpu.histogram import xla_pays
from jaxprims.targets.plans import AnyKernel, forced

pytestmark = pytest.mark.strategies
rng = np.random.default_rng(3)


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


@pytest.mark.parametrize("narrow", [True, False])
def test_rows_of_a_vector_by_index_are_xlas_where_vectors_are_short(monkeypatch: pytest.MonkeyPatch, narrow: bool) -> None:
    monkeypatch.setattr(xla_pays, "has_narrow_vectors", lambda: narrow)
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
        assert (got == ["plain XLA"]) == (plain and narrow), (lanes, dtype, op, num_bins)


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
