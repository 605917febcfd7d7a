"""Every strategy (plan) of the histogram driver gives the right results: whichever the rule would have chosen.

A plan is (M subhistograms, S bin ranges, C interleaved copies, soa, prefetch); see ``cpu/hist_plan.h``.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from references import assert_close

import jaxprims as jp
from jaxprims.targets import plans
from jaxprims.targets.cpu.llvm import engine
from jaxprims.targets.cpu.plans import HistogramPlan

Plan = tuple[int, int, int, int, int]

PLANS: tuple[Plan, ...] = (
    (1, 1, 1, 0, 0),
    (1, 1, 1, 0, 1),
    (1, 1, 2, 0, 0),
    (1, 1, 4, 0, 1),
    (1, 1, 8, 0, 0),
    (3, 1, 1, 0, 0),
    (8, 1, 8, 0, 0),
    (1, 3, 1, 0, 0),
    (2, 3, 1, 0, 1),
    (3, 2, 1, 0, 0),
    (1, 1, 1, 1, 0),
    (1, 1, 1, 1, 1),
    (1, 5, 1, 1, 0),
    (1, 64, 1, 1, 1),
)
LENGTHS = (*range(71), 511, 512, 513, 514, 1023, 1024, 1025, 1026)
LONG = 70_001


def forced(plan: Plan) -> contextlib.AbstractContextManager[None]:
    """All calls that are traced inside run this plan."""
    return plans.forced(HistogramPlan(*plan[:3], bool(plan[3]), bool(plan[4])))


def run(plan: Plan, f: Callable[..., Any], *args: Any) -> Any:
    with forced(plan):
        compiled = jax.jit(lambda *a: f(*a)).lower(*args).compile()
    first, second = compiled(*args), compiled(*args)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(np.asarray(a).view(np.uint8), np.asarray(b).view(np.uint8))  # the same bits
    return first


def indices(n: int, h: int, seed: int = 0) -> np.ndarray:
    """A sixth of them out of range, extremes among those, and runs of equal ones."""
    rng = np.random.default_rng(seed)
    out = rng.integers(0, h, n).astype(np.int32)
    out = np.where(rng.random(n) < 0.3, np.roll(out, 1), out)
    bad = rng.choice(np.array([-1, h, -(2**31), 2**31 - 1], np.int32), n)
    return np.where(rng.random(n) < 1 / 6, bad, out).astype(np.int32)


def inside(index: np.ndarray, h: int) -> np.ndarray:
    return (index >= 0) & (index < h)


@pytest.mark.cover(2)
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_every_length(plan: Plan) -> None:
    """Sums of lengths up to 70 and around a chunk's ends, as one compiled function: each length with every third plan."""
    h, lengths = 13, LENGTHS[PLANS.index(plan) % 3 :: 3]
    index, values = indices(1026, h), np.random.default_rng(1).integers(-99, 99, 1026).astype(np.int32)

    def f(i: jax.Array, v: jax.Array) -> list[jax.Array]:
        return [jp.reduce_by_index(v[:n], i[:n], h) for n in lengths]

    for n, got in zip(lengths, run(plan, f, index, values), strict=True):
        keep = inside(index[:n], h)
        wanted = np.bincount(index[:n][keep], values[:n][keep], h)
        np.testing.assert_array_equal(got, wanted, err_msg=f"{n} elements")


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("cpu", ["", *(["x86-64", "x86-64-v3"] if engine.target().x86 else [])])
def test_ranges_on_vectors_of_every_width(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates within a range are squeezed together: by an instruction, by a table, one by one. Of values that are made: in bytes,
    halves, floats, doubles, of wide indices."""
    host = engine.target()
    own = {"": 1, "x86-64": 2, "x86-64-v3": 4}[cpu]  # a kernel of each processor's own
    monkeypatch.setenv("JAXPRIMS_TARGET_CPU", cpu)
    if engine.target().vector_bytes > host.vector_bytes:
        pytest.skip("not this machine's")
    h, long = 301, 1100
    index = indices(long, h)
    values = np.random.default_rng(3).integers(0, 9, long)
    for plan in (1, 3, 1, 0, 0), (1, 5, 1, 1, 0):
        for dtype in (np.uint8, np.int16, np.float32, np.float64, *(() if plan[3] else (np.float16,))):
            for n in (1, 7, 8, 9, 61, 512, long):
                keep = inside(index[:n], h)
                wanted = np.zeros(h)
                np.add.at(wanted, index[:n][keep], (values[:n][keep] + own).astype(float))
                for i in (index[:n], index[:n].astype(np.int64)):
                    update = lambda i, v: (i, v + np.asarray(own).astype(v.dtype))  # noqa: E731
                    got = run(
                        plan, lambda i, v, update=update: jp.genhist(update, (i, v), jp.Bins(h)), i, values[:n].astype(dtype)
                    )
                    assert got.dtype == dtype and np.array_equal(got, wanted), (plan, dtype, n, i.dtype)


@pytest.mark.cover(2)
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_every_kind_of_bin(plan: Plan) -> None:
    """Scalars, structs, narrow and 64-bit-wide leaves, several updates and histograms, dest; with every
    other plan long, else shorter than a chunk."""
    soa = bool(plan[3])
    h = 301
    rng = np.random.default_rng(2)

    def f(i: jax.Array, v: jax.Array, w: jax.Array, d: jax.Array) -> list[Any]:
        out = [
            jp.reduce_by_index(v, i, h, jnp.maximum),
            jp.reduce_by_index(w, i, h, jnp.bitwise_xor, dest=d),
            jp.reduce_by_index((v, jp.positions), i, h, jp.monoids.argmax),
            jp.reduce_by_index((w, v, w > 0), i, h, lambda a, b: (a[0] + b[0], jnp.minimum(a[1], b[1]), a[2] | b[2])),
            jp.genhist(lambda i, v: (jnp.stack([i, i + 1, i - 7]), v), (i, v), jp.Bins(h, jnp.minimum)),
            jp.genhist(lambda i, w: [(i, 1), (i // 2, w)], (i, w), [jp.Bins(h), jp.Bins(100, jnp.bitwise_or)]),
        ]
        if not soa:  # accumulated in float32: not where the result lies
            out.append(jp.reduce_by_index(v.astype(jnp.float16), i, h))
        return out

    n = LONG if PLANS.index(plan) % 2 else 600
    index = indices(n, h, 3)
    v = rng.integers(-1000, 1000, n).astype(np.float32) / 8
    w = rng.integers(-100, 100, n).astype(np.int8)
    d = rng.integers(-100, 100, h).astype(np.int8)
    got = run(plan, f, index, v, w, d)
    keep = inside(index, h)
    at = index[keep]

    def reduced(op: np.ufunc, start: Any, values: np.ndarray, where: np.ndarray = at, bins: int = h) -> np.ndarray:
        out = np.broadcast_to(np.asarray(start, values.dtype), bins).copy()
        op.at(out, where, values)
        return out

    np.testing.assert_array_equal(got[0], reduced(np.maximum, -np.inf, v[keep]))
    np.testing.assert_array_equal(got[1], reduced(np.bitwise_xor, d, w[keep]))
    best = reduced(np.maximum, -np.inf, v[keep])
    where = np.full(h, 2**31 - 1)
    np.minimum.at(where, at[v[keep] == best[at]], np.flatnonzero(keep)[v[keep] == best[at]])
    np.testing.assert_array_equal(got[2][0], best)
    np.testing.assert_array_equal(got[2][1], where)
    np.testing.assert_array_equal(got[3][0], reduced(np.add, 0, w[keep]))
    np.testing.assert_array_equal(got[3][1], reduced(np.minimum, np.inf, v[keep]))
    np.testing.assert_array_equal(got[3][2], reduced(np.logical_or, False, w[keep] > 0))
    with np.errstate(over="ignore"):
        thrice = np.stack([index, index + 1, index - 7], 1).reshape(-1)
    ok = inside(thrice, h)
    np.testing.assert_array_equal(got[4], reduced(np.minimum, np.inf, np.repeat(v, 3)[ok], thrice[ok]))
    np.testing.assert_array_equal(got[5][0], np.bincount(at, minlength=h))
    half = index // 2
    ok = inside(half, 100)
    np.testing.assert_array_equal(got[5][1], reduced(np.bitwise_or, 0, w[ok], half[ok], 100))
    if not soa:
        sums = np.bincount(at, v.astype(np.float16)[keep].astype(np.float64), h)
        np.testing.assert_array_equal(got[6], sums.astype(np.float16))


@pytest.mark.cover(4)
@pytest.mark.parametrize("plan", [p for p in PLANS if p[2] == 1], ids=str)
def test_bins_of_many_lanes(plan: Plan) -> None:
    """Array-valued bins (no interleaved copies), lanes that fill no whole vector among them; one or two sizes with each plan."""
    rng = np.random.default_rng(4)
    for lanes, n in itertools.islice(((33, 500), (256, 70), (41, 3000)), PLANS.index(plan) % 3, None, 2):
        index, values = indices(n, 11, 5), rng.integers(-50, 50, (n, lanes)).astype(np.float32)
        got = run(plan, lambda i, v: (jp.reduce_by_index(v, i, 11), jp.reduce_by_index(v, i, 11, jnp.maximum)), index, values)
        keep = inside(index, 11)
        total, best = np.zeros((11, lanes), np.float32), np.full((11, lanes), -np.inf, np.float32)
        np.add.at(total, index[keep], values[keep])
        np.maximum.at(best, index[keep], values[keep])
        np.testing.assert_array_equal(got[0], total)
        np.testing.assert_array_equal(got[1], best)


@pytest.mark.cover(5)
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_batches(plan: Plan) -> None:
    """Batched indices, values, both and dest, nested; each member as if alone."""
    rng = np.random.default_rng(6)
    index = np.stack([indices(400, 9, s) for s in range(6)]).reshape(2, 3, 400)
    values = rng.integers(-99, 99, (3, 400)).astype(np.int32)
    dest = rng.integers(-99, 99, (2, 9)).astype(np.int32)

    def f(i: jax.Array, v: jax.Array, d: jax.Array) -> jax.Array:
        one = lambda i, v, d: jp.reduce_by_index(v, i, 9, dest=d)  # noqa: E731
        return jax.vmap(jax.vmap(one, (0, 0, None)), (0, None, 0))(i, v, d)

    got = run(plan, f, index, values, dest)
    for a in range(2):
        for b in range(3):
            keep = inside(index[a, b], 9)
            np.testing.assert_array_equal(got[a, b], np.bincount(index[a, b][keep], values[b][keep], 9) + dest[a])
    empty = run(plan, lambda i, v: jax.vmap(lambda i: jp.reduce_by_index(v, i, 9))(i), index[:, 0][:0], values[0])
    assert empty.shape == (0, 9)


@pytest.mark.cover(3)
@pytest.mark.parametrize("plan", [p for p in PLANS if p[3]], ids=str)
def test_without_an_identity(plan: Plan) -> None:
    """Bins that start from dest and an operator whose neutral element nobody knows: updated where the result lies."""
    index, v = indices(LONG, 50, 7), np.random.default_rng(8).uniform(-0.1, 0.1, LONG).astype(np.float32)
    dest = np.linspace(-0.5, 0.5, 50, dtype=np.float32)
    got = run(plan, lambda i, v, d: jp.reduce_by_index(v, i, 50, references.einstein, dest=d), index, v, dest)
    assert_close(got, references.reduce_by_index(v, index, 50, references.einstein, dest=dest), 1e-3)


@pytest.mark.parametrize("plan", [(1, 1, 1, 1, 0), (1, 4, 1, 1, 0), (1, 16, 1, 1, 0), (2, 1, 4, 0, 0)], ids=str)
def test_sorted_indices(plan: Plan) -> None:
    for kind in ("spread", "one bin", "out of range", "empty bins"):
        n, h = 5000, 40
        index = {
            "spread": np.sort(indices(n, h, 9)),
            "one bin": np.full(n, 17, np.int32),
            "out of range": np.sort(np.where(np.arange(n) % 2, -5, h + 5).astype(np.int32)),
            "empty bins": np.sort(np.where(np.arange(n) % 3, 0, h - 1).astype(np.int32)),
        }[kind]
        got = run(plan, lambda i: jp.reduce_by_index(jnp.ones_like(i), i, h, indices_are_sorted=True), index)
        np.testing.assert_array_equal(got, np.bincount(index[inside(index, h)], minlength=h), err_msg=kind)


def test_the_promise_of_sorted_indices_is_not_trusted_with_memory() -> None:
    """Broken, it gives an undefined result and nothing worse."""
    for plan in ((1, 7, 1, 1, 0), (1, 2, 1, 1, 1)):
        with forced(plan):
            f = jax.jit(lambda i: jp.reduce_by_index(jnp.ones_like(i), i, 1000, indices_are_sorted=True))
            for seed in range(5):
                assert f(indices(LONG, 1000, seed)).shape == (1000,)


def test_same_bits_every_time() -> None:
    """Float sums, whose rounding depends on the order, with every plan that the rule picks at these sizes."""
    rng = np.random.default_rng(10)
    for n, h in ((200_000, 5), (200_000, 5000), (200_000, 300_000), (50_000, 1)):
        index, v = indices(n, h, 11), rng.standard_normal(n).astype(np.float32)
        f = jax.jit(lambda i, v, h=h: jp.reduce_by_index(v, i, h))
        first = np.asarray(f(index, v))
        for _ in range(10):
            np.testing.assert_array_equal(np.asarray(f(index, v)), first)


@pytest.mark.parametrize("plan", [(1, 3, 1, 0, 0), (1, 3, 1, 1, 0)], ids=str)
def test_narrow_values_beside_wide_ones(plan: Plan) -> None:
    """Bytes computed as wide as doubles: fewer lanes than the narrowest register has bytes."""
    index, v = indices(500, 30, 12), np.random.default_rng(13).integers(-50, 50, 500).astype(np.float64)

    def f(i: jax.Array, v: jax.Array) -> Any:
        bins = [jp.Bins(30), jp.Bins(30, jnp.bitwise_xor)]
        return jp.genhist(lambda i, v: [(i, v * 2), (i, (v * v > 100).astype(jnp.int8))], (i, v), bins)

    with jax.enable_x64(True):
        got = run(plan, f, index, v)
    keep = inside(index, 30)
    np.testing.assert_array_equal(got[0], np.bincount(index[keep], 2 * v[keep], 30))
    np.testing.assert_array_equal(got[1], np.bincount(index[keep], v[keep] ** 2 > 100, 30).astype(np.int8) % 2)


def test_sums_of_halves_without_an_identity() -> None:
    """Where a leaf's neutral element is not known everything is updated where the result lies: sums of halves beside it too."""
    index = indices(600, 20, 14)
    v = np.random.default_rng(15).integers(-1, 2, 600).astype(np.float16)
    keep = inside(index, 20)
    for group in (False, True):

        def f(i: jax.Array, v: jax.Array, d: Any, group: bool = group) -> Any:
            odd = lambda a, b: (a | b) - (a & b)  # noqa: E731
            if not group:
                return jp.reduce_by_index((v, i), i, 20, lambda a, b: (a[0] + b[0], odd(a[1], b[1])), dest=d)
            bins = [jp.Bins(20, dest=d[0]), jp.Bins(20, odd, dest=d[1])]
            return jp.genhist(lambda i, v: [(i, v), (i, i)], (i, v), bins)

        dest = (np.zeros(20, np.float16), np.zeros(20, np.int32))
        got = jax.jit(f)(index, v, dest)
        wanted = np.zeros(20, np.int32)
        np.bitwise_xor.at(wanted, index[keep], index[keep])
        np.testing.assert_array_equal(got[0], np.bincount(index[keep], v[keep].astype(np.float64), 20).astype(np.float16))
        np.testing.assert_array_equal(got[1], wanted)


def test_loops_end_in_spare_lanes() -> None:
    """A loop that ends for the positions of elements only: the last, partial vector has no others."""
    n = 1003

    def f(x: jax.Array, p: jax.Array) -> Any:
        far = jax.lax.while_loop(lambda c: c[0] != n, lambda c: (c[0] + 1, (c[1] * 3 + c[0]) % 1009), (p, jnp.int32(1)))
        return (far[1] + x) % 3, 1

    assert int(jp.genhist(f, (jnp.arange(n), jp.positions), jp.Bins(3)).sum()) == n
