"""Sorts of short rows: networks of comparisons."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import kernels
from jax import lax

import jaxprims as jp
from jaxprims.fusion import sorts
from jaxprims.tracing.sorting import first_of, network

ROWS = 97
DTYPES = ["float32", "float64", "bfloat16", "int32", "uint64", "int8", "bool"]


def _rows(dtype: str, count: int) -> jax.Array:
    """Many equal numbers, NaN, infinities, zeros of both signs."""
    rng = np.random.default_rng(count)
    if not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
        return jnp.array(rng.integers(0, 120, (ROWS, count)) - (60 if jnp.dtype(dtype).kind == "i" else 0), dtype)
    x = rng.normal(size=(ROWS, count))
    for value in (np.nan, 0.0, -0.0, np.inf, -np.inf):
        x = np.where(rng.random(x.shape) < 0.2, value, x)
    return jnp.array(x, dtype)


def _whole(i: jax.Array) -> jax.Array:
    return jnp.broadcast_to(jnp.arange(i.shape[1]), i.shape)


SORTS: dict[str, Any] = {
    "sort": lambda x, i: jnp.sort(x, 1),
    "along the first axis": lambda x, i: jnp.sort(x.T, 0),
    "descending": lambda x, i: jnp.sort(x, 1, descending=True),
    "argsort": lambda x, i: jnp.argsort(x, 1),
    "both": lambda x, i: lax.sort((x, _whole(i)), dimension=1, num_keys=1),
    "ranks": lambda x, i: jnp.argsort(jnp.argsort(x, 1), 1),
    "by another": lambda x, i: lax.sort((i, x), dimension=1, num_keys=1)[1],
    "by two": lambda x, i: lax.sort((i, x, _whole(i)), dimension=1, num_keys=2),
    "greatest": lambda x, i: lax.top_k(x, min(3, x.shape[1])),
    "all in order": lambda x, i: lax.top_k(x, x.shape[1]),
    "greatest of columns": lambda x, i: lax.top_k(x.T, 1, axis=0),
}


def _equal(a: jax.Array, b: jax.Array) -> None:
    assert a.dtype == b.dtype
    x, y = (np.asarray(v, None if v.dtype.kind in "biu" else np.float64) for v in (a, b))
    np.testing.assert_array_equal(x, y)
    if x.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(x[x == x]), np.signbit(y[x == x]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SORTS)
def test_rows_are_sorted_as_by_xla(name: str, dtype: str) -> None:
    with jax.enable_x64(True):
        for count in (3, 17):
            x = _rows(dtype, count)
            i = jnp.array(np.random.default_rng(0).integers(0, 3, x.shape), jnp.int32)
            assert kernels(SORTS[name], x, i)
            jax.tree.map(_equal, jax.jit(jp.fuse(SORTS[name]))(x, i), jax.jit(SORTS[name])(x, i))


@pytest.mark.parametrize("count", [sorts.LONGEST_BY_KEYS + 1, sorts.LONGEST])
def test_long_rows(count: int) -> None:
    x = _rows("float32", count)
    for name in ("sort", "argsort", "greatest"):
        assert kernels(SORTS[name], x, x)
        jax.tree.map(_equal, jp.fuse(SORTS[name])(x, x), jax.jit(SORTS[name])(x, x))
    assert not kernels(SORTS["by two"], x, x)
    assert not kernels(SORTS["sort"], _rows("float32", sorts.LONGEST + 1), x)


@pytest.mark.parametrize("count", range(9))
def test_the_networks_sort(count: int) -> None:
    """All rows of zeros and ones, and so all rows (Knuth)."""
    for first in (*range(count), count):
        for row in itertools.product((0, 1), repeat=count):
            x = list(row)
            for j, k in first_of(count, first):
                x[j], x[k] = sorted((x[j], x[k]))
            assert x[:first] == sorted(row)[:first]
            assert sorted(x[first:]) == sorted(row)[first:]
    assert len(list(network(count))) <= count * (count - 1) // 2


PROGRAMS: dict[str, Any] = {
    "median": lambda x: jnp.median(x, 1),
    "median filter": lambda x: jnp.median(jnp.stack([x[:-2], x[1:-1], x[2:]]), 0),
    "trimmed mean": lambda x: jnp.sort(x, 1)[:, 2:-2].mean(1),
    "of what is made": lambda x: jnp.sort(jnp.sin(x) * 2, 1),
    "quantiles": lambda x: jnp.quantile(x, jnp.array([0.1, 0.5]), axis=1),
    "mixture": lambda x: jax.nn.softmax(lax.top_k(x, 2)[0], -1),
}


@pytest.mark.parametrize("transform", ["forward", "grad", "grad of fused", "vmap", "second"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, transform: str) -> None:
    f, x = PROGRAMS[name], jax.random.normal(jax.random.key(0), (200, 9))

    def loss(f: Any) -> Any:
        return lambda x: jnp.sum(jnp.cos(f(x)))

    ways: dict[str, Any] = {
        "forward": lambda f: (f, jp.fuse(f)),
        "grad": lambda f: (jax.grad(loss(f)), jp.fuse(jax.grad(loss(f)))),
        "grad of fused": lambda f: (jax.grad(loss(f)), jax.grad(loss(jp.fuse(f)))),
        "vmap": lambda f: (jax.vmap(f), jax.vmap(jp.fuse(f))),
        "second": lambda f: [lambda x: jax.jvp(jax.grad(loss(g)), (x,), (x,))[1] for g in (f, jp.fuse(f))],
    }
    plain, fused = ways[transform](f)
    operand = jnp.stack([x, x + 1]) if transform == "vmap" else x
    np.testing.assert_allclose(jax.jit(fused)(operand), jax.jit(plain)(operand), rtol=2e-6, atol=2e-6)


def test_what_was_rounded_is_read() -> None:
    """Others may compare it with what is sorted."""
    x = jax.random.normal(jax.random.key(0), (400, 9))

    def places(x: jax.Array) -> jax.Array:
        y = jnp.sin(x) * 3 + 1
        return jnp.sum(y[:, :, None] == jnp.sort(y, 1)[:, None, :], dtype=jnp.int32)

    assert int(jax.jit(jp.fuse(places))(x)) >= x.size
