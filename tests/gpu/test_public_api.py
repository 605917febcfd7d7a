"""The public functions on a GPU: every operator class, every dtype, every option, against NumPy and sequential loops."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import short_form
from exports import export
from references import BY_NAME, CASES, INDEX, H, N, assert_close, histogram, sample, stack

import jaxprims as jp

pytestmark = pytest.mark.usefixtures("gpu")

RNG = np.random.default_rng(3)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")


def drawn(dtype: str, *shape: int) -> np.ndarray:
    """Small values, whose sums are exact in every dtype."""
    low = 0 if dtype.startswith("uint") or dtype == "bool" else -3
    return RNG.integers(low, 4, shape).astype(jnp.dtype(dtype))


@pytest.mark.parametrize("name", sorted(short_form.calls()))
def test_short_form(name: str) -> None:
    short_form.calls()[name].check()


# --- histograms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_operator_by_index(case: references.Case) -> None:
    """Few elements, and then so many that blocks share the bins; with and without dest."""
    for n, bins, tolerance in ((N, H, case.tolerance), (3000, 37, max(case.tolerance or 0, 1e-3))):
        if n > N and case.name == "einstein":  # sums of many come close to 1, where the formula divides by almost nothing
            continue
        values, dest = sample(case, n), sample(case, bins, 5)
        index = INDEX if n == N else short_form.indices(n, bins)
        one = jax.jit(lambda v, i, h=bins: jp.reduce_by_index(v, i, h, case.op, identity=case.given))
        want = references.reduce_by_index(values, index, bins, case.reference, case.identity)
        assert_close(one(values, index), want, tolerance)
        on = jax.jit(lambda v, i, d, h=bins: jp.reduce_by_index(v, i, h, case.op, identity=case.given, dest=d))
        want = references.reduce_by_index(values, index, bins, case.reference, case.identity, dest)
        assert_close(on(values, index, dest), want, tolerance)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
def test_every_dtype_by_index(dtype: str) -> None:
    """Sums, minima and maxima, of 32- and 64-bit indices."""
    values, index = drawn(dtype, 5000), short_form.indices(5000, 70)
    got = jax.jit(lambda v, i: [jp.reduce_by_index(v, i, 70, op) for op in (jnp.add, jnp.minimum, jnp.maximum)])(values, index)
    again = jax.jit(lambda v, i: jp.reduce_by_index(v, i, 70))(values, index.astype(np.int64))
    np.testing.assert_array_equal(np.asarray(got[0]), np.asarray(again))
    wide = values.astype(np.float64) if dtype in FLOATS else values
    np.testing.assert_array_equal(np.asarray(got[0]).astype(wide.dtype), short_form.by_sums(wide, index, 70).astype(wide.dtype))
    kept = (index >= 0) & (index < 70)
    for result, ufunc in zip(got[1:], (np.minimum, np.maximum), strict=True):
        used = np.bincount(index[kept], minlength=70) > 0
        out = np.full(70, 9 if ufunc is np.minimum else -9, np.int64)
        ufunc.at(out, index[kept], values[kept].astype(np.int64))
        np.testing.assert_array_equal(np.asarray(result).astype(np.int64)[used], out[used])


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "uint32"])
def test_logic_by_index(dtype: str) -> None:
    values, index = drawn(dtype, 3000) if dtype != "bool" else RNG.random(3000) < 0.01, short_form.indices(3000, 40)
    kept = (index >= 0) & (index < 40)
    for op, ufunc, empty in ((jnp.bitwise_or, np.bitwise_or, 0), (jnp.bitwise_xor, np.bitwise_xor, 0)):
        want = np.full(40, empty, values.dtype)
        ufunc.at(want, index[kept], values[kept])
        np.testing.assert_array_equal(np.asarray(jp.reduce_by_index(values, index, 40, op)), want)


@pytest.mark.parametrize("bins", [1, 2, 31, 1000, 5000, 12_281, 60_000, 400_000, 3_000_000])
@pytest.mark.parametrize("skew", ["uniform", "one bin", "few bins"])
def test_every_number_of_bins(bins: int, skew: str) -> None:
    """Through all spaces a table may lie in; integers, so that any order is right."""
    n = 200_003
    index = RNG.integers(0, bins, n).astype(np.int32)
    if skew != "uniform":
        index = np.full(n, bins // 3, np.int32) if skew == "one bin" else index // 63 * 63
    values = RNG.integers(-100, 100, n).astype(np.int32)
    u = RNG.integers(0, 2**21, n).astype(np.uint32)
    position = np.arange(n, dtype=np.int32)

    @jax.jit
    def every(v: Any, u: Any, i: Any) -> Any:
        saturated = jp.reduce_by_index(u, i, bins, short_form.saturate, identity=0)
        return jp.reduce_by_index(v, i, bins), saturated, jp.reduce_by_index((v, jp.positions), i, bins, jp.monoids.argmax)

    got = every(values, u, index)
    assert_close(got[0], short_form.by_sums(values, index, bins))
    assert_close(got[1], np.minimum(short_form.by_sums(u.astype(np.int64), index, bins), 2**24 - 1).astype(np.uint32))
    best = np.full(bins, -(2**31), np.int32)
    np.maximum.at(best, index, values)
    first = np.full(bins, 2**31 - 1, np.int32)
    winner = values == best[index]
    np.minimum.at(first, index[winner], position[winner])
    assert_close(got[2], (best, first))


@pytest.mark.parametrize("mode", ["drop", "clip", "wrap"])
def test_modes(mode: str) -> None:
    values, index = drawn("int32", 900), RNG.integers(-30, 60, 900).astype(np.int32)
    want = references.reduce_by_index(values, index, 20, np.add, 0, mode=mode)
    assert_close(jp.reduce_by_index(values, index, 20, mode=mode), want)


def test_drop_ins() -> None:
    x, w = RNG.standard_normal(10_000).astype(np.float32), drawn("float32", 10_000)
    i = RNG.integers(0, 50, 10_000).astype(np.int32)
    counts, edges = jax.jit(lambda x: jp.histogram(x, 30, (-3, 3)))(x)
    want = np.histogram(x, np.asarray(edges))[0]
    assert np.abs(np.asarray(counts) - want).sum() <= 4
    np.testing.assert_array_equal(jp.bincount(i, w, length=50), np.bincount(i, w, 50))
    np.testing.assert_array_equal(jp.bincount(i, length=50), np.bincount(i, minlength=50))
    order, offsets = jp.group_by_index(i, 50)
    np.testing.assert_array_equal(order, np.argsort(i, kind="stable"))
    np.testing.assert_array_equal(offsets.offsets, np.concatenate([[0], np.cumsum(np.bincount(i, minlength=50))]))


@pytest.mark.parametrize("name", ["add", "max", "mul", "logaddexp", "a+b+ab", "argmax", "max5"])
def test_batches_by_index(name: str) -> None:
    case, f = BY_NAME[name], histogram(BY_NAME[name])
    values, index = [sample(case, N, seed) for seed in range(3)], [np.roll(INDEX, k) for k in range(3)]
    got = jax.jit(jax.vmap(f))(stack(*values), np.stack(index))
    wanted = [references.reduce_by_index(v, i, H, case.reference, case.identity) for v, i in zip(values, index, strict=True)]
    assert_close(got, stack(*wanted), case.tolerance)


@pytest.mark.parametrize("case", [c for c in CASES if c.smooth], ids=str)
def test_derivatives_by_index(case: references.Case) -> None:
    """Against XLA's derivative of a fold in a loop."""
    values = sample(case, N)

    def weighed(out: Any) -> Any:
        return sum(jnp.sum(jnp.sin(1 + jnp.arange(o.size).reshape(o.shape)) * o) for o in jax.tree.leaves(out))

    def loop(v: Any) -> Any:
        """Bins 0, 1 and 3, whose identities play no part."""
        out = []
        for h in (0, 1, 3):
            (at,) = np.nonzero(INDEX == h)
            total = jax.tree.map(lambda x, k=at[0]: x[k], v)
            for k in at[1:]:
                total = case.op(total, jax.tree.map(lambda x, k=k: x[k], v))
            out.append(total)
        return jax.tree.map(lambda *xs: jnp.stack(xs), *out)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jp.FallbackWarning)
        got = jax.grad(lambda v: weighed(jax.tree.map(lambda x: x[np.array([0, 1, 3])], histogram(case)(v))))(values)
    assert_close(got, jax.tree.map(np.asarray, jax.grad(lambda v: weighed(loop(v)))(values)), max(case.tolerance or 0, 1e-4))


# --- scans -----------------------------------------------------------------------------------------------------------------


TAME = ("add", "max", "logaddexp", "mean_variance", "argmax", "saturating", "packed", "max5", "gcd", "xor")
"""Operators whose long scans stay in range."""


@pytest.mark.parametrize("case, n", [(c, n) for c in CASES for n in (1, 700, 9001) if n < 9001 or c.name in TAME], ids=str)
def test_every_operator_scanned(case: references.Case, n: int) -> None:
    values = sample(case, n)
    got = jax.jit(lambda v: jp.scan(v, case.op))(values)
    tolerance = max(case.tolerance or 0, 1e-4)
    assert_close(got, references.scan(values, case.reference), tolerance)
    whole = jax.jit(lambda v: jp.reduce(v, case.op, axis=0))(values)
    assert_close(whole, jax.tree.map(lambda x: x[-1], references.scan(values, case.reference)), tolerance)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
def test_every_dtype_in_order(dtype: str) -> None:
    """Scans, reductions and segments. Alternating signs keep sums small."""
    n = 10_007
    x = drawn(dtype, n) if dtype in INTEGERS else (drawn(dtype, n) * np.where(np.arange(n) % 2, 1, -1)).astype(jnp.dtype(dtype))
    at = short_form.offsets(RNG.integers(0, 9, n // 5))
    v = x[: at[-1]]

    @jax.jit
    def every(x: Any, v: Any) -> Any:
        return jp.cumsum(x), jp.cummax(x, reverse=True), jp.reduce(x), jp.segment_reduce(v, jp.Offsets(at), jnp.maximum)

    sums, largest, total, by_segment = every(x, v)
    wide = np.float64 if dtype in FLOATS else x.dtype
    tolerance = {"float16": 1e-2, "bfloat16": 5e-2}.get(dtype, 1e-6)
    assert_close(sums, np.cumsum(x.astype(wide), dtype=wide), tolerance)
    assert_close(total, np.sum(x.astype(wide), dtype=wide), tolerance)
    exact = x.astype(np.int64)
    np.testing.assert_array_equal(np.asarray(largest).astype(np.int64), np.maximum.accumulate(exact[::-1])[::-1])
    used = np.diff(at) > 0
    want = short_form.folds(exact[: at[-1]], at, np.maximum, -9)
    np.testing.assert_array_equal(np.asarray(by_segment)[used].astype(np.int64), want[used])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("init", [False, True])
def test_options_of_scans(reverse: bool, exclusive: bool, restarts: bool, init: bool) -> None:
    """Of an operator that does not commute; along and across."""
    if restarts and init:  # init stands in front of every segment: XLA's work
        pytest.skip("no kernel")
    n = 3000
    a, b = np.where(RNG.random(n) < 0.5, -1, 1).astype(np.int32), short_form.integers(n)
    starts = RNG.random(n) < 0.02 if restarts else None
    start = (np.int32(3), np.int32(-7)) if init else None
    options: dict[str, Any] = {"reverse": reverse, "exclusive": exclusive}
    if exclusive and not init:
        options["identity"] = (np.int32(1), np.int32(0))
    want = references.scan((a, b), short_form.affine, starts=starts, init=start, **options)
    got = jax.jit(lambda a, b: jp.scan((a, b), short_form.affine, init=start, segment_starts=starts, **options))(a, b)
    if restarts and exclusive:
        want = tuple(np.where(starts, e, w) for e, w in zip((1, 0), want, strict=True))
        assert all(bool(jnp.all(jnp.where(starts, g, e) == e)) for e, g in zip((1, 0), got, strict=True))
    assert_close(got, want)


@pytest.mark.parametrize("shape", [(4, 25_000), (25_000, 4), (300, 333), (1, 70_001), (5, 7, 1100), (1100, 7, 5), (9, 1100, 3)])
def test_shapes(shape: tuple[int, ...]) -> None:
    """Scans and reductions along every axis."""
    x = RNG.integers(-50, 50, shape).astype(np.int32)
    for axis in range(len(shape)):
        got = jax.jit(lambda x, a=axis: (jp.cumsum(x, a), jp.reduce(x, axis=a), jp.scan(x, jnp.maximum, axis=a, reverse=True)))(x)
        assert_close(got[0], np.cumsum(x, axis, dtype=np.int32))
        assert_close(got[1], np.sum(x, axis, dtype=np.int32))
        assert_close(got[2], np.flip(np.maximum.accumulate(np.flip(x, axis), axis), axis))
    total = jax.jit(lambda x: jp.reduce(x))(x)
    assert_close(total, np.sum(x, dtype=np.int32))


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 1023, 1024, 1025, 8191, 8192, 8193, 1_000_003])
def test_lengths(n: int) -> None:
    x = short_form.integers(n)
    assert_close(jax.jit(jp.cumsum)(x), np.cumsum(x, dtype=np.int32))
    assert_close(jax.jit(lambda x: jp.reduce(x))(x), np.sum(x, dtype=np.int32))
    index = np.arange(n, dtype=np.int32) % 100
    assert_close(jax.jit(lambda x, i: jp.reduce_by_index(x, i, 100))(x, index), short_form.by_sums(x, index, 100))


@pytest.mark.parametrize("lengths", ["ones", "threes", "random", "giant", "empty", "one", "equal"])
def test_segments(lengths: str) -> None:
    n = 60_000
    made = {
        "ones": np.ones(n, int),
        "threes": np.full(n // 3, 3),
        "random": RNG.integers(0, 41, n // 20),
        "giant": np.concatenate([RNG.integers(0, 5, 4000), [n // 2], RNG.integers(0, 5, 4000)]),
        "empty": np.zeros(500, int),
        "one": np.array([n]),
        "equal": np.full(30, n // 30),
    }[lengths]
    at = short_form.offsets(made)
    x = short_form.integers(int(at[-1]))
    ids = np.repeat(np.arange(len(made), dtype=np.int32), made)
    want = short_form.folds(x, at, np.add, 0).astype(np.int32)
    assert_close(jax.jit(lambda x, o: jp.segment_reduce(x, jp.Offsets(o)))(x, at), want)
    assert_close(jax.jit(lambda x, i: jp.segment_reduce(x, i, num_segments=len(made)))(x, ids), want)


# --- what the platform offers ----------------------------------------------------------------------------------------------


def test_the_calls_are_on_the_gpu() -> None:
    """The kernels are custom calls of the executable, and its results lie on the device."""
    lowered = jax.jit(lambda x: jp.cumsum(x)).lower(jnp.ones(5000))
    assert "jaxprims_scan" in lowered.as_text()
    out = lowered.compile()(jnp.ones(5000))
    assert {d.platform for d in out.devices()} == {"gpu"}


def test_both_platforms_in_one_process() -> None:
    x = np.arange(1000, dtype=np.int32)
    on_cpu = jax.jit(jp.cumsum)(jax.device_put(x, jax.devices("cpu")[0]))
    on_gpu = jax.jit(jp.cumsum)(jax.device_put(x, jax.devices("gpu")[0]))
    np.testing.assert_array_equal(np.asarray(on_cpu), np.asarray(on_gpu))


def test_export_to_both_platforms() -> None:
    """One exported function for both; this process calls it on the GPU."""
    f = jax.jit(lambda x: jp.scan(x, jnp.maximum))
    exported = export(f, platforms=("cuda", "cpu"))(jax.ShapeDtypeStruct((4096,), jnp.int32))
    x = short_form.integers(4096)
    np.testing.assert_array_equal(np.asarray(exported.call(x)), np.maximum.accumulate(x))
