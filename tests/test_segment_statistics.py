"""Counts and variances of segments, and what jraph made of them, against NumPy and plain JAX."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp

rng = np.random.default_rng(11)


def by_segment(x: np.ndarray, ids: np.ndarray, n: int, ddof: int = 0) -> np.ndarray:
    """Variances by NumPy, NaN for segments without elements."""
    out = np.full((n, *x.shape[1:]), np.nan)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of one element, less one degree of freedom: NaN
        for k in set(ids) & set(range(n)):
            out[k] = np.var(x[ids == k], axis=0, ddof=ddof)
    return out


@pytest.mark.cover(2)
@pytest.mark.parametrize(("dtype", "shape"), [("float32", (60,)), ("int32", (60, 3)), ("float16", (60,)), ("complex64", (60, 2))])
def test_variances(dtype: str, shape: tuple[int, ...]) -> None:
    x = rng.normal(5, 2, shape).astype(dtype)
    ids = np.where(np.arange(60) % 7 == 0, -1, rng.integers(0, 9, 60))
    ids[ids == 4] = 9  # a segment without elements, and ids out of range
    exact = x.astype(np.result_type(dtype, np.float64))
    want = by_segment(exact, ids, 8)
    close = {"rtol": 1e-2 if dtype == "float16" else 1e-4, "atol": 1e-5}
    got = jp.segment_var(x, ids, 8)
    assert got.dtype == jnp.var(x).dtype
    np.testing.assert_allclose(got, want, **close)
    np.testing.assert_allclose(jp.segment_variance(x, ids, 8), np.nan_to_num(want), **close)
    order = np.argsort(ids, kind="stable")
    np.testing.assert_allclose(jp.segment_var(x[order], ids[order], 8, True), want, **close)
    offsets = jp.Offsets(np.searchsorted(ids[order], np.arange(9)))
    np.testing.assert_allclose(jp.segment_var(x[order], offsets, ddof=1)[:4], by_segment(exact, ids, 4, 1), **close)
    assert jp.segment_count(offsets).tolist() == [(ids == k).sum() for k in range(8)] == jp.segment_count(ids, 8).tolist()
    assert jp.segment_count(ids, 8, mode="clip")[0] == (ids <= 0).sum()


@pytest.mark.cover(7)
@pytest.mark.parametrize("f", [jp.segment_softmax, jp.segment_logsumexp, jp.segment_normalize, jp.segment_var])
@pytest.mark.parametrize("n, segments", [(0, 4), (3, 0), (0, 0)])
def test_derivatives_of_nothing_in_loops(f: Callable[..., Any], n: int, segments: int) -> None:
    data, ids = jnp.zeros((2, 1, n)), jnp.zeros((2, 1, n), jnp.int32)

    def each(d: jax.Array, i: jax.Array) -> jax.Array:
        return jax.lax.map(lambda x: f(*x, segments), (d, i))

    out, moved = jax.jvp(lambda d: jax.vmap(each)(d, ids), (data,), (data,))
    assert out.shape == moved.shape == (2, 1, segments if f in (jp.segment_logsumexp, jp.segment_var) else n)


@pytest.mark.cover(2)
@pytest.mark.parametrize("shape", [(50,), (50, 5), (50, 17)])
@pytest.mark.parametrize("by", ["ids", "sorted", "offsets"])
def test_derivatives_of_variances(shape: tuple[int, ...], by: str) -> None:
    """The first, which leave out what means move, and the second, of which that is a part."""
    x, v = (rng.normal(3, 2, shape).astype(np.float32) for _ in range(2))
    ids = rng.integers(-1, 6, 50)
    ids = ids if by == "ids" else np.sort(ids)
    segments: Any = jp.Offsets(np.searchsorted(ids, np.arange(7))) if by == "offsets" else ids

    def plain(x: Any) -> Any:
        count = jnp.maximum(1, jax.ops.segment_sum(jnp.ones(50), ids, 6)).reshape(6, *(1,) * (x.ndim - 1))
        return jax.ops.segment_sum(jnp.square(x - (jax.ops.segment_sum(x, ids, 6) / count)[ids]), ids, 6) / count

    def fast(x: Any) -> Any:
        return jp.segment_variance(x, segments, 6, by == "sorted")

    first = [jax.grad(lambda x, f=f: jnp.sum(jnp.sin(f(x)))) for f in (fast, plain)]
    transforms = (
        lambda f: f(x),
        lambda f: jax.jvp(f, (x,), (v,))[1],
        lambda f: jax.grad(lambda x: jnp.vdot(v, f(x)))(x),
        lambda f: jax.vmap(f)(np.stack([x, v])),
    )
    for got, want in zip(*(jax.jit(lambda f=f: [t(f) for t in transforms])() for f in first), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_normalized_and_its_gradient() -> None:
    x, ids = rng.normal(5, 2, 40).astype(np.float32), rng.integers(1, 5, 40)
    ids[:3] = -1

    def of_elements(values: Any) -> Any:
        return values.at[ids].get(mode="fill", fill_value=0, wrap_negative_indices=False)

    def plain(x: Any) -> Any:
        count = jnp.maximum(1, jax.ops.segment_sum(np.ones(40, np.float32), ids, 5))
        mean = of_elements(jax.ops.segment_sum(x, ids, 5) / count)
        variance = of_elements(jax.ops.segment_sum(jnp.square(x - mean), ids, 5) / count)
        return (x - mean) * jax.lax.rsqrt(jnp.maximum(variance, 1e-5))

    def fast(x: Any) -> Any:
        return jp.segment_normalize(x, ids, 5)

    np.testing.assert_allclose(fast(x), jax.jit(plain)(x), rtol=1e-4, atol=1e-5)
    weights = np.cos(np.arange(40, dtype=np.float32)) * (ids >= 0)
    got, want = (jax.jit(jax.grad(lambda x, f=f: weights @ f(x)))(x) for f in (fast, plain))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "complex64"])
@pytest.mark.cover(1)
@pytest.mark.dear
def test_without_implicit_promotion(strict: None, dtype: str) -> None:
    x, ids = (jnp.arange(12) % 5).astype(dtype), jnp.arange(12) % 4
    for f in (jp.segment_mean, jp.segment_var, jp.segment_variance, jp.segment_normalize):
        for rows in (x, x.reshape(6, 2)):
            got = f(rows, ids[: rows.shape[0]], 5)
            with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
                want = f(rows, ids[: rows.shape[0]], 5)
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(np.asarray(got).astype(np.complex64), np.asarray(want).astype(np.complex64))


def test_constants_of_empty_segments_and_partitions() -> None:
    x, ids = np.array([-5, -1, -2], np.int32), np.array([0, 0, 2])
    assert jp.segment_max_or_constant(x, ids, 4, constant=7).tolist() == [-1, 7, -2, 7]
    assert jp.segment_min_or_constant(x.reshape(3, 1), ids, 4).tolist() == [[-5], [0], [-2], [0]]
    logits = rng.normal(size=(6, 2)).astype(np.float32)
    got = jax.jit(jp.partition_softmax)(logits, np.array([2, 0, 4]))
    np.testing.assert_allclose(got, np.concatenate([jax.nn.softmax(logits[:2], 0), jax.nn.softmax(logits[2:], 0)]), rtol=1e-5)
    with pytest.raises(TypeError, match=r"partitions must be integers \[M\]"):
        jp.partition_softmax(logits, np.ones(2))


@pytest.mark.cover(2)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("name", ["nanargmax", "nanargmin"])
def test_positions_without_nan(name: str, axis: int | None, keep: bool) -> None:
    x = rng.integers(0, 9, (5, 6)).astype(np.float32)
    x[rng.random((5, 6)) < 0.4] = np.nan
    worst = -np.inf if name == "nanargmax" else np.inf

    def theirs(a: np.ndarray) -> np.ndarray:  # NumPy's own raises where all are NaN
        nan = np.isnan(a)
        at = getattr(np, name[3:])(np.where(nan, a.dtype.type(worst), a), axis, keepdims=keep)
        return np.where(nan.all(axis, keepdims=keep), -1, at)

    for a in (
        x,
        np.repeat(x, 1000, 1),  # where a second look at all numbers would take its time
        np.repeat(x, 200, 0),
        np.where(np.arange(6000) < 3000, np.nan, np.repeat(np.where(np.arange(5)[:, None] == 1, np.nan, x), 1000, 1)),
        np.where(np.arange(6) == 2, np.nan, x),
        np.where(np.arange(6) == 5, worst, np.nan),
        np.full((5, 6), np.nan),
        x > 3,
    ):
        for dtype in (a.dtype, np.dtype(np.float16)):
            got = getattr(jp, name)(a.astype(dtype), axis, keepdims=keep)
            np.testing.assert_array_equal(got, theirs(a.astype(dtype)))


@pytest.mark.parametrize("name", ["nanargmax", "nanargmin"])
def test_positions_without_nan_among_few(name: str) -> None:
    """Where each result is one of a few numbers XLA looks for NaN in the loop that finds it."""
    for shape, axis, by_xla in (((3, 5000), 0, True), ((5000, 7), -1, True), ((5000, 7), 0, False), ((30, 500), 0, False)):
        calls = jp.explain(lambda x, axis=axis: getattr(jp, name)(x, axis))(np.ones(shape, np.float32)).calls
        assert all(call.strategy == "plain XLA" for call in calls) == by_xla


@pytest.mark.cover(4)
@pytest.mark.parametrize("bins", [1, 7, [0.0, 2.0, 2.5]], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int16", "bool"])
def test_edges_of_bins(dtype: str, bins: Any) -> None:
    for x in (rng.normal(0, 9, (4, 9)).astype(dtype), np.ones(3, dtype)):
        for span in (None, (-2, 3)):
            a, b = (m.histogram_bin_edges(x, bins if isinstance(bins, int) else np.array(bins), span) for m in (jp, jnp))
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
    try:
        want = jnp.histogram_bin_edges(np.zeros(0, dtype))
    except ValueError:  # in older versions
        with pytest.raises(ValueError, match="zero-size"):
            jp.histogram_bin_edges(np.zeros(0, dtype))
    else:
        np.testing.assert_array_equal(jp.histogram_bin_edges(np.zeros(0, dtype)), want)


@pytest.mark.cover(1)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.dear
def test_more_segments_and_elements_than_ids_can_count(dtype: str) -> None:
    r = np.random.default_rng(5)
    x = jnp.asarray(r.standard_normal(300), jnp.float32)
    ids = jnp.asarray(r.integers(0, 120, 300), dtype)
    offsets = jnp.asarray([0, 3, 3, 100, 120], dtype)
    names = ("mean", "var", "logsumexp", "softmax", "argmax", "normalize", "variance", "max_or_constant")
    fns = [getattr(jp, f"segment_{name}") for name in names]
    wide = jax.jit(lambda x, i, o: [(fn(x, i, 301), fn(x, jp.Offsets(o))) for fn in fns])
    for name, fn, want in zip(names, fns, wide(x, ids.astype(np.int32), offsets.astype(np.int32)), strict=True):
        for got, w in zip((fn(x, ids, 301), fn(x, jp.Offsets(offsets))), want, strict=True):
            np.testing.assert_allclose(got, w, rtol=1e-5, err_msg=name)
    shares = lambda x, i: jnp.where(jnp.isfinite(y := jp.segment_logsumexp(x, i, 301)), y, 0).sum()  # noqa: E731
    np.testing.assert_allclose(jax.grad(shares)(x, ids), jax.grad(shares)(x, ids.astype(np.int32)), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("f", [jp.segment_mean, jp.segment_var, jp.segment_softmax, jp.segment_argmax, jp.segment_max])
def test_ids_of_four_bits(f: Callable[..., Any], dtype: str) -> None:
    """Counts are made of the ids, which no kernel reads so."""
    data, ids = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32), np.sort(np.arange(40) % 7)
    for ascend in (False, True):
        got = f(data, jnp.asarray(ids).astype(dtype), 5, indices_are_sorted=ascend)
        np.testing.assert_allclose(got, f(data, ids, 5, indices_are_sorted=ascend), rtol=1e-6)


def test_constant_of_segments_behind_the_last_element() -> None:
    out = jp.segment_max_or_constant(jnp.array([1.0, 2.0]), jp.Offsets(jnp.array([0, 2, 5])), constant=7.0)
    assert out.tolist() == [2.0, 7.0]


@pytest.mark.parametrize("loop", ["scan", "while"])
def test_counts_in_loops_are_calls_of_their_own(loop: str) -> None:
    """XLA makes them before the loop; outside of loops one pass makes sums and counts."""
    r = np.random.default_rng(6)
    x, ids = jnp.asarray(r.standard_normal((3, 4000)), jnp.float32), jnp.asarray(r.integers(-2, 60, 4000))

    def turns(x: Any, ids: Any) -> Any:
        if loop == "scan":
            return jax.lax.scan(lambda c, row: (c + jp.segment_mean(row, ids, 50), None), jnp.zeros(50), x)[0]
        return jax.lax.fori_loop(0, 3, lambda k, c: c + jp.segment_mean(x[k] + 0 * c[0], ids, 50), jnp.zeros(50))

    straight = lambda x, ids: sum(jp.segment_mean(row, ids, 50) for row in x)  # noqa: E731
    np.testing.assert_allclose(jax.jit(turns)(x, ids), jax.jit(straight)(x, ids), rtol=1e-4, atol=1e-4)
    batch = jnp.stack([x, 2 * x])
    np.testing.assert_allclose(jax.jit(jax.vmap(turns, (0, None)))(batch, ids)[1], 2 * turns(x, ids), rtol=1e-4, atol=1e-4)
    calls = [jax.jit(f).lower(x, ids).as_text().count("custom_call @jaxprims") for f in (turns, straight)]
    assert calls == [2, 3]


@pytest.mark.cover(2)
@pytest.mark.parametrize(("identity", "dtype"), [((0.0, 0), np.float32), ((-1, 0), np.int32), ((-np.inf, 0), np.float32)])
def test_identities_in_loops(identity: Any, dtype: Any) -> None:
    """Bins without elements hold the one that was given, in a loop as elsewhere."""
    greatest_and_count = lambda a, b: (jnp.maximum(a[0], b[0]), a[1] + b[1])  # noqa: E731

    def bins(row: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", jp.IdentityWarning)
            return jp.genhist(lambda v: (0, (jnp.abs(v), 1)), row, jp.Bins(2, greatest_and_count, identity=identity))

    x = jnp.ones((3, 1000), dtype)
    for got, want in zip(jax.lax.map(bins, x), jax.jit(bins)(x[0]), strict=True):
        np.testing.assert_array_equal(got[1], want)
        assert want[1] in identity


@pytest.mark.parametrize("x", [[np.inf, 1], [np.nan, 1], [-np.inf, 1], [3, 1]])
def test_gradients_of_logsumexp_of_what_is_not_finite(x: Any) -> None:
    x = jnp.asarray(x, jnp.float32)
    got = jax.grad(lambda x: jp.segment_logsumexp(x, jnp.zeros(2, int), 1)[0])(x)
    np.testing.assert_allclose(got, jax.grad(jax.nn.logsumexp)(x), rtol=1e-6)


@pytest.mark.cover(3)
@pytest.mark.parametrize("dtype", [np.float32, jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(40,), (40, 3), (40, 2, 2)])
def test_softmax_of_elements_of_no_segment(shape: tuple[int, ...], dtype: Any) -> None:
    """0 whatever they are, in a loop as alone."""
    x, ids = np.random.default_rng(5).normal(size=shape).astype(dtype), np.arange(40) % 7 - 2
    dropped = (ids < 0) | (ids > 2)
    x[dropped] = np.resize(np.array([np.nan, np.inf, -np.inf, 1e4], dtype), x[dropped].shape)
    call = lambda x: jp.segment_softmax(x, ids, 3)  # noqa: E731
    loop = jax.lax.fori_loop(0, 3, lambda i, y: call(jnp.where(i < 0, y, x)), jnp.zeros_like(x))
    for got in (call(x), jax.jit(call)(x), loop):
        assert got.dtype == dtype and (np.asarray(got)[dropped] == 0).all()
        np.testing.assert_allclose(np.asarray(got, np.float32).sum(0), np.full(shape[1:], 3), rtol=2e-2)
