"""Histograms by logaddexp, as maxima and sums of exponentials: values of every kind, derivatives, batches, devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from lowering import strategies

import jaxprims as jp

pytestmark = pytest.mark.strategies
rng = np.random.default_rng(0)

STRATEGY = "maxima, then sums of exponentials"


def wanted(values: np.ndarray, index: np.ndarray, bins: int) -> np.ndarray:
    """One element after the other, in 64 bits."""
    out = np.full((bins, *values.shape[1:]), -np.inf)
    with np.errstate(invalid="ignore"):
        for i, v in zip(index, values.astype(np.float64), strict=True):
            if 0 <= i < bins:
                out[i] = np.logaddexp(out[i], v)
    return out


@pytest.mark.cover(4)
@pytest.mark.parametrize("shape", [(500,), (500, 2), (500, 5), (30, 3, 40), (0,), (0, 7)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_values(shape: tuple[int, ...], dtype: str) -> None:
    values = np.asarray(jnp.asarray(rng.normal(0, 9, shape), dtype).astype(jnp.float32))
    index = rng.integers(-2, 20, shape[0])
    by_index = lambda v, i: jp.reduce_by_index(v, i, 18, jnp.logaddexp)  # noqa: E731
    args = jnp.asarray(values, dtype), jnp.asarray(index)
    assert strategies(by_index, *args) == [STRATEGY]
    got = np.asarray(by_index(*args).astype(jnp.float32))
    np.testing.assert_allclose(got, wanted(values, index, 18), rtol=float(jnp.finfo(dtype).eps) * 4, atol=1e-6)


def test_infinities_and_nan() -> None:
    inf, nan = np.inf, np.nan
    values = np.array([inf, 1, -inf, -inf, nan, 3, inf, -inf, 2000, 2001, inf, inf, nan, inf, -3e38, 3e38], np.float32)
    index = np.repeat(np.arange(8), 2)
    got = jp.reduce_by_index(jnp.asarray(values), jnp.asarray(index), 9, jnp.logaddexp)
    np.testing.assert_allclose(got, wanted(values, index, 9).astype(np.float32), rtol=1e-6)


def test_updates_of_captured_numbers_onto_what_was_there() -> None:
    """Two updates of an element, made of a table by f; bins that start from a dest."""
    x, i, table = rng.normal(size=300), rng.integers(0, 10, 300), rng.normal(size=10)
    dest = rng.normal(size=11)

    def histogram(i: Any, x: Any, table: Any, dest: Any) -> Any:
        f = lambda i, x: (jnp.stack([i, i + 1]), jnp.stack([x, table[i] * x]))  # noqa: E731
        return jp.genhist(f, (i, x), jp.Bins(11, jp.monoids.logaddexp, dest=dest))

    args = jnp.asarray(i), *(jnp.asarray(a, jnp.float32) for a in (x, table, dest))
    assert strategies(histogram, *args) == [STRATEGY]
    expected = wanted(np.concatenate([x, table[i] * x, dest]), np.concatenate([i, i + 1, np.arange(11)]), 11)
    np.testing.assert_allclose(histogram(*args), expected, rtol=1e-5, atol=1e-5)


def test_beside_other_histograms() -> None:
    """In one call: a pair of which each is one, from a dest; a sum from a dest; an operator that captures a number."""
    x, y, i = rng.normal(size=200), rng.normal(size=200) * 3, rng.integers(-1, 7, 200)
    start, c = rng.normal(size=7), jnp.float32(0.5)

    def histograms(i: Any, x: Any, y: Any, start: Any) -> Any:
        pairs = jp.Bins(7, lambda a, b: (jnp.logaddexp(a[0], b[0]), jnp.logaddexp2(a[1], b[1])), dest=(start, 2 * start))
        least = jp.Bins(7, lambda a, b: jnp.minimum(a, b) + 0 * c, identity=np.inf)
        return jp.genhist(lambda i, x, y: [(i, x), (i, (x, y)), (i, y)], (i, x, y), [jp.Bins(7, dest=start), pairs, least])

    args = jnp.asarray(i), *(jnp.asarray(a, jnp.float32) for a in (x, y, start))
    assert strategies(histograms, *args) == [STRATEGY]
    total, (natural, binary), least = histograms(*args)
    keep, bins = i >= 0, np.concatenate([i, np.arange(7)])
    np.testing.assert_allclose(total, start + np.bincount(i[keep], x[keep], 7), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(natural, wanted(np.concatenate([x, start]), bins, 7), rtol=1e-5, atol=1e-6)
    ln2 = np.log(2)
    np.testing.assert_allclose(binary, wanted(ln2 * np.concatenate([y, 2 * start]), bins, 7) / ln2, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(least, [y[i == k].astype(np.float32).min() for k in range(7)])


@pytest.mark.dear
def test_kernels_where_bins_start_from_something_else() -> None:
    """An identity that is not the operator's, and bits that may not change: as the operator says."""
    x, i = jnp.asarray(rng.normal(size=50), jnp.float32), jnp.asarray(rng.integers(0, 5, 50))
    with pytest.warns(jp.IdentityWarning):
        assert strategies(lambda x, i: jp.reduce_by_index(x, i, 5, jnp.logaddexp, identity=0.0), x, i) != [STRATEGY]
    assert strategies(lambda x, i: jp.reduce_by_index(x, i, 5, jnp.logaddexp, deterministic=True), x, i) != [STRATEGY]


@pytest.mark.cover(1)
@pytest.mark.parametrize("width", [(), (4,)], ids=str)
@pytest.mark.dear
def test_transformations(width: tuple[int, ...]) -> None:
    x = jnp.asarray(rng.normal(size=(3, 40, *width)), jnp.float32)
    i = jnp.asarray(rng.integers(0, 6, (3, 40)))

    def ours(x: Any, i: Any) -> Any:
        return jp.reduce_by_index(x, i, 6, jnp.logaddexp)

    def plain(x: Any, i: Any) -> Any:
        at = (i[:, None] == jnp.arange(6)).reshape(*i.shape, 6, *(1,) * len(width))
        return jax.nn.logsumexp(jnp.where(at, x[:, None], -jnp.inf), 0)

    for of in (
        jax.vmap,
        lambda f: jax.vmap(jax.grad(lambda x, i: jnp.sum(jnp.exp(f(x, i))))),
        lambda f: lambda x, i: jax.jvp(lambda x: f(x, i[0])[i[0]], (x[0],), (x[1],))[1],
        lambda f: lambda x, i: jax.hessian(lambda x: jnp.sum(jnp.exp(f(x, i[0, :4]))))(x[0, :4]),
        lambda f: lambda x, i: jax.lax.scan(lambda c, a: (c, f(a[0] + c, a[1])), 0.5, (x, i))[1],
    ):
        np.testing.assert_allclose(jax.jit(of(ours))(x, i), jax.jit(of(plain))(x, i), rtol=2e-5, atol=1e-5)


def test_devices() -> None:
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    x, i = jnp.asarray(rng.normal(size=800), jnp.float32), jnp.asarray(rng.integers(0, 7, 800))
    expected = wanted(np.asarray(x), np.asarray(i), 7)
    own = lambda x, i: jp.reduce_by_index(x, i, 7, jnp.logaddexp, axis_name="d")  # noqa: E731
    inside = jax.jit(jax.shard_map(own, mesh=mesh, in_specs=P("d"), out_specs=P()))
    np.testing.assert_allclose(inside(x, i), expected, rtol=1e-5)
    for few in (8, 800):  # XLA's, and kernels', of what f does to the indices
        clipped = lambda x, i: jp.reduce_by_index(x, i, 5, jnp.logaddexp, mode="clip")  # noqa: E731
        parts = jax.shard_map(clipped, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
        each = [wanted(*(np.asarray(a[k : k + few // 8]) for a in (x, np.clip(i, 0, 4))), 5) for k in range(0, few, few // 8)]
        np.testing.assert_allclose(jax.jit(parts)(x[:few], i[:few]), np.concatenate(each), rtol=1e-5)
    sharded = [jax.device_put(a, jax.NamedSharding(mesh, P("d"))) for a in (x, i)]
    np.testing.assert_allclose(jax.jit(lambda x, i: jp.reduce_by_index(x, i, 7, jnp.logaddexp))(*sharded), expected, rtol=1e-5)
