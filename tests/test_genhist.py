"""``genhist`` and ``reduce_by_index``: what they compute, against a sequential loop."""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import references
from references import BY_NAME, CASES, Case, assert_close

import jaxprims as jp
from jaxprims.targets.cpu.plans import HistogramPlan
from jaxprims.targets.plans import forced

pytestmark = pytest.mark.usefixtures("strict")

INT_MIN, INT_MAX = -(2**31), 2**31 - 1


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# --- operators ---------------------------------------------------------------------------------------------------------


@pytest.mark.cover(10)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_operators(case: Case) -> None:
    """Every operator on ordinary inputs, and in turn on empty or tiny ones; with dest or without."""
    turn = CASES.index(case) % 2
    calls = [
        (
            case.sample(rng(), n),
            rng().integers(-2, 9, n).astype(np.int32),
            case.sample(np.random.default_rng(1), 7) if d else None,
        )
        for n, d in ((200, turn == 0), (turn, False))
    ]
    run = jax.jit(lambda calls: [jp.reduce_by_index(v, i, 7, case.op, identity=case.given, dest=d) for v, i, d in calls])
    for got, (values, index, dest) in zip(run(calls), calls, strict=True):
        assert_close(got, references.reduce_by_index(values, index, 7, case.reference, case.identity, dest), case.tolerance)


def test_identity_is_not_needed_with_dest() -> None:
    case = BY_NAME["einstein"]
    values, index, dest = case.sample(rng(), 500), rng().integers(0, 5, 500), case.sample(rng(), 5)
    got = jp.reduce_by_index(values, index, 5, case.op, dest=dest)
    assert_close(got, references.reduce_by_index(values, index, 5, case.reference, dest=dest), 1e-4)


def test_an_operator_that_kernels_lack_warns_and_works() -> None:
    """Without a kernel: the same results through plain XLA, and a warning that says why."""

    def op(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.lax.linalg.qr(a + b)[0] * 0 + a + b

    values, index = references.normal(rng(), 30, 2, 2), rng().integers(-1, 4, 30)
    with pytest.warns(jp.FallbackWarning, match=r"op cannot be compiled into a kernel \(.*(qr|householder)"):
        got = jp.reduce_by_index(values, index, 3, op, identity=0.0)
    assert_close(got, references.reduce_by_index(values, index, 3, np.add, 0.0))

    def f(m: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
        return i, jnp.linalg.det(m)

    with pytest.warns(jp.FallbackWarning, match="f cannot be compiled into a kernel"):
        got = jp.genhist(f, (references.normal(rng(), 30, 4, 4), index), jp.Bins(3))
    dets = np.linalg.det(references.normal(rng(), 30, 4, 4).astype(np.float64))
    assert_close(got, references.reduce_by_index(dets, index, 3, np.add, 0), 1e-3)


@pytest.mark.parametrize(
    "f, complex_values, name",
    [
        (jax.scipy.special.i0e, False, "bessel_i0e"),
        (lambda x: jax.scipy.special.gammainc(x + 1, x), False, "igamma"),
        (lambda x: jax.scipy.special.betainc(x + 1, 2.0, 0.5), False, "regularized_incomplete_beta"),
        (lambda x: jax.scipy.special.polygamma(1, x + 1), False, "zeta|polygamma"),
        (jnp.tan, True, "tan"),
        (jnp.arcsin, True, "asin"),
    ],
)
def test_functions_without_a_rule_warn_and_work(f: Callable[..., Any], complex_values: bool, name: str) -> None:
    x, index = rng().random(40).astype(np.complex64 if complex_values else np.float32), rng().integers(-1, 4, 40).astype(np.int32)

    @jax.jit  # XLA compiles f for all three
    def run(x: jax.Array) -> Any:
        with pytest.warns(jp.FallbackWarning, match=rf"f cannot be compiled into a kernel \(({name})"):
            hist = jp.genhist(lambda v, i: (i, f(v)), (x, index), jp.Bins(3))
        with pytest.warns(jp.FallbackWarning, match=name):
            return hist, jp.scan(x, map=f), f(x)

    hist, sums, y = map(np.asarray, run(x))
    assert_close(hist, references.reduce_by_index(y, index, 3, np.add, 0), 1e-4)
    assert_close(sums, np.cumsum(y), 1e-4)


# --- shapes of bins, pytrees ----------------------------------------------------------------------------------------------------


SHAPES = ((1,), (5,), (2, 3), (32,), (33,), (256,), (4, 64), (1, 1, 1))


@pytest.mark.cpu
@pytest.mark.parametrize("gradient", [False, True])
def test_scalars_of_one_state_are_packed(gradient: bool) -> None:
    """Sums that share a factor are as many as vectors hold: the machine multiplies them at once."""
    from jaxprims.targets.cpu import compiler

    def op(a: Any, b: Any) -> Any:
        top = jnp.maximum(a[0], b[0])
        mine, other = jnp.exp(a[0] - top), jnp.exp(b[0] - top)
        return top, a[1] * mine + b[1] * other

    def mean(x: Any, y: Any) -> Any:
        return jp.genhist(lambda i, x, y: (i, (x, y)), (i, x, y), jp.Bins(40, op, identity=(-3e38, np.zeros(16, np.float32))))[1]

    i, x, y = (
        rng().integers(0, 40, 3000),
        rng().normal(size=3000).astype(np.float32),
        rng().normal(size=(3000, 16)).astype(np.float32),
    )
    compiler.forget()
    got = jax.jit(jax.grad(lambda x, y: mean(x, y).sum(), (0, 1)) if gradient else mean)(x, y)
    codes = [code.assembly() for code in compiler._compiled.values()]
    assert len(codes) >= 1 + 2 * gradient
    assert all(re.search(r"mulps|fmul\s+v\d+\.4s", code) for code in codes)
    top = np.stack([x[i == k].max() for k in range(40)])
    terms = np.exp(x - top[i])[:, None] * y
    want = np.stack([terms[i == k].sum(0) for k in range(40)])
    if not gradient:
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-4)
    else:
        np.testing.assert_allclose(got[1], np.broadcast_to(np.exp(x - top[i])[:, None], y.shape), rtol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_bin_shapes(shape: tuple[int, ...]) -> None:
    """Small ones are structs, large ones arrays with a vectorised operator; each with two of the operators."""
    n, h = 150, 6
    index = rng().integers(-1, h + 1, n).astype(np.int32)
    values = references.normal(rng(), n, *shape)
    whole = rng().integers(0, 100, (n, *shape)).astype(np.int32)
    both = lambda m: lambda a, b: (a[0] + b[0], m.minimum(a[1], b[1]))  # noqa: E731
    operators: list[Any] = [
        (values, jnp.maximum, np.maximum, None, -np.inf),
        (values / 8, references.einstein, references.einstein, 0.0, 0.0),
        ((values, whole), both(jnp), both(np), None, (0, np.iinfo(np.int32).max)),
    ]
    del operators[SHAPES.index(shape) % 3]
    run = jax.jit(lambda vs: [jp.reduce_by_index(v, index, h, o[1], identity=o[3]) for v, o in zip(vs, operators, strict=True)])
    for got, (v, _, reference, _, identity) in zip(run([o[0] for o in operators]), operators, strict=True):
        assert_close(got, references.reduce_by_index(v, index, h, reference, identity), 1e-4)


def test_an_identity_for_each_lane() -> None:
    """An array-valued identity, on a bin that is a struct and on one of many lanes."""
    for lanes in (3, 4):
        identity = np.arange(lanes, dtype=np.int32)
        values = rng().integers(lanes, 100, (50, lanes)).astype(np.int32)
        index = rng().integers(0, 3, 50).astype(np.int32)
        got = jp.reduce_by_index(values, index, 5, lambda a, b, e=identity: a + b - e, identity=identity)
        assert_close(got, references.reduce_by_index(values, index, 5, lambda a, b, e=identity: a + b - e, identity))


def test_pytrees() -> None:
    """Dicts, tuples and lists of leaves of different dtypes and shapes; dest and identity of the same structure."""
    n, h = 200, 5
    values = {
        "sum": references.normal(rng(), n),
        "pair": (rng().integers(0, 9, n).astype(np.int32), [references.normal(rng(), n, 2)]),
        "any": rng().integers(0, 2, n).astype(bool),
    }

    def op(m: Any) -> Any:
        return lambda a, b: {
            "sum": a["sum"] + b["sum"],
            "pair": (m.maximum(a["pair"][0], b["pair"][0]), [a["pair"][1][0] + b["pair"][1][0]]),
            "any": m.logical_or(a["any"], b["any"]),
        }

    identity = {"sum": 0.0, "pair": (-(2**31), [0.0]), "any": False}
    index = rng().integers(0, h, n).astype(np.int32)
    wanted = references.reduce_by_index(values, index, h, op(np), identity)
    assert_close(jp.reduce_by_index(values, index, h, op(jnp), identity=identity), wanted)
    assert_close(jp.reduce_by_index(values, index, h, op(jnp)), wanted)  # every part's identity is known
    assert_close(jp.reduce_by_index(values, index, h, op(jnp), dest=jax.tree.map(lambda v: v[:h], values)),
                 references.reduce_by_index(values, index, h, op(np), dest=jax.tree.map(lambda v: v[:h], values)))  # fmt: skip
    monoid = jp.Monoid(op(jnp), identity)
    got = jp.genhist(lambda i, v: (i, v), (index, values), jp.Bins(h, monoid))
    assert_close(got, wanted)
    for name in ("add", "mul", "min", "max"):
        m = getattr(jp.monoids, name)
        two = jp.reduce_by_index({"a": values["sum"], "b": values["pair"][0]}, index, h, m)
        one = jp.reduce_by_index(values["pair"][0], index, h, m)
        np.testing.assert_array_equal(two["b"], one)


# --- genhist --------------------------------------------------------------------------------------------------------------------


def test_how_f_gets_its_arguments() -> None:
    x, y = references.normal(rng(), 10), np.arange(10, dtype=np.int32)
    wanted = references.reduce_by_index(x, y % 3, 3, np.add, 0.0)
    bins = jp.Bins(3)
    three = jnp.int32(3)
    for f, arrays in (
        (lambda y, x: (y % three, x), (y, x)),
        (lambda y, x: (y % three, x), [y, x]),
        (lambda yx: (yx[0] % three, yx[1]), (y, x)),
        (lambda d: (d["y"] % three, d["x"]), {"x": x, "y": y}),
        (lambda p, d: (p % three, d["x"]), (jp.positions, {"x": x})),
        (lambda *a: (a[0] % three, a[1]), (y, x)),
    ):
        assert_close(jp.genhist(f, arrays, bins), wanted)
    assert_close(
        jp.genhist(lambda row: (row[0].astype(int) % three, row[1]), np.stack([y.astype(np.float32), x], 1), bins), wanted
    )


def test_positions() -> None:
    """Among values, arrays, alone with an index, on either side; int32, and right in every chunk."""
    n = 5000
    index = rng().integers(0, 7, n).astype(np.int32)
    values = rng().integers(0, 50, n).astype(np.float32)
    got = jax.tree.map(np.asarray, jp.reduce_by_index((values, jp.positions), index, 7, jp.monoids.argmax))
    for h in range(7):
        mine = np.flatnonzero(index == h)
        assert got[0][h] == values[mine].max() and got[1][h] == mine[np.argmax(values[mine])]
    assert got[1].dtype == jnp.int32
    last = jp.reduce_by_index(jp.positions, index, 7, jnp.maximum)
    assert last.tolist() == [np.flatnonzero(index == h).max() for h in range(7)]
    bins = jp.Bins(10, jnp.maximum)
    assert jp.genhist(lambda p, v: (p // 500, p), (jp.positions, values), bins).tolist() == list(range(499, n, 500))
    assert repr(jp.positions) == "jp.positions"


def test_updates() -> None:
    """k pairs from one element, with indices of several dimensions, dropped ones, and bins that are arrays."""
    n, k = 120, 3
    x = rng().uniform(0, 5, n).astype(np.float32)

    def f(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        at = jnp.floor(x).astype(jnp.int32) + jnp.arange(k, dtype=jnp.int32) - 1
        return at, 1 / (1 + jnp.arange(k, dtype=jnp.float32) + x)

    index = np.floor(x).astype(np.int32)[:, None] + np.arange(k, dtype=np.int32) - 1
    weight = 1 / (1 + np.arange(k) + x[:, None])
    flat = references.reduce_by_index(weight.reshape(-1), index.reshape(-1), 4, np.add, 0.0)
    assert_close(jp.genhist(f, x, jp.Bins(4)), flat)

    both = jp.genhist(lambda x: ((f(x)[0], f(x)[0][::-1]), f(x)[1]), x, jp.Bins((4, 5)))
    wanted = references.reduce_by_index(weight.reshape(-1), (index.reshape(-1), index[:, ::-1].reshape(-1)), (4, 5), np.add, 0.0)
    assert_close(both, wanted)
    constant = jp.genhist(lambda x: (f(x)[0], 1), x, jp.Bins(4))
    assert_close(constant, references.reduce_by_index(np.ones(n * k, np.int32), index.reshape(-1), 4, np.add, 0))
    arrays = jp.genhist(lambda x: (f(x)[0], jnp.stack([f(x)[1], -f(x)[1]], 1)), x, jp.Bins(4, jnp.maximum))
    wanted = references.reduce_by_index(np.stack([weight, -weight], 2).reshape(-1, 2), index.reshape(-1), 4, np.maximum, -np.inf)
    assert_close(arrays, wanted)
    one = jp.genhist(lambda x: (f(x)[0][:1], f(x)[1][:1]), x, jp.Bins(4))
    assert_close(one, references.reduce_by_index(weight[:, 0], index[:, 0], 4, np.add, 0.0))
    none = jp.genhist(lambda x: (f(x)[0][:0], f(x)[1][:0]), x, jp.Bins(4))
    assert none.tolist() == [0] * 4


def test_updates_of_one_element_to_the_same_bin() -> None:
    got = jp.genhist(
        lambda x: (jnp.zeros(4, jnp.int32), x * jnp.arange(4, dtype=jnp.int32)), np.arange(100, dtype=np.int32), jp.Bins(2)
    )
    assert got.tolist() == [6 * 4950, 0]


def test_large_bins_computed_by_f() -> None:
    """Array-valued bins whose values are not an array's rows."""
    x = references.normal(rng(), 60, 64)
    index = rng().integers(0, 4, 60).astype(np.int32)
    got = jp.genhist(lambda i, r: (i, r * 2), (index, x), jp.Bins(4))
    assert_close(got, references.reduce_by_index(2 * x, index, 4, np.add, 0.0))
    got = jp.genhist(lambda i, r: (i, r[::-1]), (index, x), jp.Bins(4))
    assert_close(got, references.reduce_by_index(x[:, ::-1], index, 4, np.add, 0.0))
    got = jp.genhist(lambda i, r: (jnp.stack([i, i + 1]), jnp.stack([r, -r])), (index, x), jp.Bins(5))
    wanted = references.reduce_by_index(np.concatenate([x, -x]), np.concatenate([index, index + 1]), 5, np.add, 0.0)
    assert_close(got, wanted)


def test_several_histograms_in_one_pass() -> None:
    """Different sizes, dimensions, operators, dests and numbers of updates; each as if alone."""
    n = 3000
    x, i = references.normal(rng(), n), rng().integers(-1, 9, n).astype(np.int32)
    dest = references.normal(rng(), 8)
    bins = [
        jp.Bins(8, jnp.maximum, dest=dest),
        jp.Bins((3, 2)),
        jp.Bins(5, references.mean_variance(jnp.where), (0, 0, 0)),
        jp.Bins(100),
        jp.Bins(0),
    ]
    two, zero = jnp.int32(2), jnp.float32(0)

    def f(x: jax.Array, i: jax.Array) -> list[Any]:
        one = jnp.float32(1)
        several = jnp.stack([i, i + 50])
        return [(i, x), ((i, i % two), 1), (i, (one, x, zero)), (several, x), (i, one)]

    got = jp.genhist(f, (x, i), bins)
    assert isinstance(got, tuple) and len(got) == 5
    for k, b in enumerate(bins):
        assert_close(jp.genhist(lambda x, i, k=k: f(x, i)[k], (x, i), b), got[k], 1e-5)
    assert_close(got[0], references.reduce_by_index(x, i, 8, np.maximum, dest=dest))
    ones = np.ones(n, np.int32)
    assert_close(got[1], references.reduce_by_index(ones, (i, i % 2), (3, 2), np.add, 0))
    wide = np.concatenate([x, x])
    assert_close(got[3], references.reduce_by_index(wide, np.concatenate([i, i + 50]), 100, np.add, 0.0))


def test_captured_arrays() -> None:
    """Indexed at computed places, out of range too; constants, NumPy arrays and tracers; in f and in op."""
    n = 300
    table, lut = references.normal(rng(), 40), rng().integers(0, 6, 11).astype(np.int8)
    x = rng().integers(0, 11, n).astype(np.int32)
    hist = lambda table, lut, x: jp.genhist(lambda x: (lut[x], table[x * 3]), x, jp.Bins(6))  # noqa: E731
    wanted = references.reduce_by_index(table[x * 3], lut[x], 6, np.add, 0.0)
    assert_close(hist(jnp.asarray(table), jnp.asarray(lut), x), wanted)
    assert_close(jax.jit(hist)(table, lut, x), wanted)
    assert_close(jax.jit(lambda x: hist(jnp.asarray(table), jnp.asarray(lut), x))(x), wanted)

    m = jnp.asarray(13, jnp.int32)
    modular = lambda m, x: jp.reduce_by_index(x, x % jnp.int32(3), 3, lambda a, b: (a + b) % m, identity=0)  # noqa: E731
    wanted = references.reduce_by_index(x, x % 3, 3, lambda a, b: (a + b) % 13, 0)
    assert_close(modular(m, x), wanted)
    assert_close(jax.jit(modular)(m, x), wanted)
    assert_close(jax.jit(modular)(jnp.int32(7), x), references.reduce_by_index(x, x % 3, 3, lambda a, b: (a + b) % 7, 0))

    cayley = jnp.asarray([[(a + b) % 5 for b in range(5)] for a in range(5)], jnp.int32)  # a group, as its table
    y = x % 5
    group = lambda table, y: jp.reduce_by_index(y, x % jnp.int32(3), 3, lambda a, b: table[a, b], identity=0)  # noqa: E731
    wanted = references.reduce_by_index(y, x % 3, 3, lambda a, b: (a + b) % 5, 0)
    assert_close(group(cayley, y), wanted)
    assert_close(jax.jit(group)(cayley, y), wanted)


def test_an_identity_and_a_dest_that_are_traced() -> None:
    values, index = references.normal(rng(), 20), rng().integers(0, 3, 20).astype(np.int32)

    @jax.jit
    def f(low: jax.Array, dest: jax.Array) -> tuple[jax.Array, jax.Array]:
        def clipped_max(a: jax.Array, b: jax.Array) -> jax.Array:
            return jnp.maximum(jnp.maximum(a, b), low)

        return (
            jp.reduce_by_index(values, index, 5, clipped_max, identity=low),
            jp.reduce_by_index(values, index, 5, clipped_max, dest=dest),
        )

    got, with_dest = f(jnp.float32(0.5), jnp.full(5, -1, jnp.float32))
    wanted = references.reduce_by_index(values, index, 5, np.maximum, 0.5)
    assert_close(got, wanted)
    assert_close(with_dest[:3], wanted[:3])
    assert with_dest[3:].tolist() == [-1, -1]


def farther(a: Any, b: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(abs(x) >= abs(y), x, y), a, b)


def pairs_of_counts(a: Any, b: Any) -> Any:
    return {"n": a["n"] | b["n"], "z": farther(a["z"], b["z"])}


@pytest.mark.parametrize("plan", [None, (1, 1, 1, 0, 0), (2, 1, 1, 0, 0), (2, 2, 4, 0, 0), (1, 1, 1, 1, 0)])
@pytest.mark.cover(2)
@pytest.mark.dear
def test_working_copies_start_from_an_identity_that_is_traced(plan: Any) -> None:
    """As they do from one that is known: also of several leaves and slots, batched, and none of it is compiled for a number."""
    n, h = 400, 5
    index = rng().integers(0, h + 1, n).astype(np.int32)
    z = (rng().normal(size=n) + 1j * rng().normal(size=n)).astype(np.complex64)
    values: Any = {"n": rng().random((n, 3)) < 0.1, "z": z}
    known: Any = {"n": np.zeros(3, bool), "z": np.complex64(0)}
    with contextlib.ExitStack() as stack:
        if plan is not None:
            stack.enter_context(forced(HistogramPlan(*plan)))
        call = lambda v, e: jp.reduce_by_index(v, index, h + 1, pairs_of_counts, identity=e)  # noqa: E731
        wanted = jax.jit(lambda v: call(v, known))(values)
        got = jax.jit(call)(values, jax.tree.map(jnp.asarray, known))
        jax.tree.map(np.testing.assert_array_equal, got, wanted)
        for dtype in (np.float16, np.uint8, np.float32):
            x = rng().integers(0, 60, n).astype(dtype)
            one = lambda x, e: jp.reduce_by_index(x, index, h + 2, farther, identity=e)  # noqa: E731
            many = np.stack([x, x[::-1], x // dtype(2)])
            wanted = np.asarray(jax.jit(jax.vmap(lambda x, one=one: one(x, 0)))(many))
            np.testing.assert_array_equal(jax.jit(one)(x, dtype(0)), wanted[0])
            lows = np.array([0, 1, 0], dtype)
            got = jax.jit(jax.vmap(one))(many, lows)
            np.testing.assert_array_equal(got[::2], wanted[::2])
            np.testing.assert_array_equal(got[1, : h + 1], wanted[1][: h + 1])


def test_derivatives_with_an_identity_that_is_traced() -> None:
    values, index = references.normal(rng(), 30), rng().integers(0, 3, 30).astype(np.int32)

    def loss(v: Any, e: Any) -> Any:
        return jnp.sum(jp.reduce_by_index(v, index, 4, farther, identity=e) ** 2)

    same = lambda v: loss(v, 0.0)  # noqa: E731
    assert_close(jax.jit(jax.grad(loss))(values, 0.0), jax.grad(same)(values))
    assert_close(
        jax.jit(jax.jvp, static_argnums=0)(loss, (values, 0.0), (values, 1.0))[1], jax.jvp(same, (values,), (values,))[1]
    )
    assert jax.jit(jax.grad(loss, 1))(values, 0.5) == 1  # of the empty bin


@pytest.mark.dear
def test_more_of_the_bins_than_elements() -> None:
    """The paper's sparse case: the result is updated where it lies."""
    h = 1_000_000
    index = np.array([0, h - 1, 5, 5, h, -1], np.int32)
    for op, identity in ((jnp.add, 0), (references.einstein, 0), (jnp.maximum, -np.inf)):
        values = np.array([0.25, 0.5, 0.125, 0.5, 1, 1], np.float32)
        got = np.asarray(jp.reduce_by_index(values, index, h, op, identity=float(identity)))
        wanted = {0: 0.25, h - 1: 0.5, 5: 0.5 if op is jnp.maximum else float(op(values[2], values[3]))}
        for place, value in wanted.items():
            assert math.isclose(float(got[place]), value, rel_tol=1e-6)
        assert int((got != identity).sum()) == 3


def test_values_that_numpy_and_python_make() -> None:
    """Lists, scalars of Python and NumPy arrays are taken as jax.numpy takes them; ml_dtypes too."""
    assert jp.reduce_by_index(np.arange(4.0), [0, 1, 0, 1], 2).tolist() == [2, 4]
    assert jp.reduce_by_index(np.arange(4.0), np.array([0, 1, 0, 1]), np.int64(2)).dtype == jnp.float32
    assert jp.reduce_by_index(np.ones(3, ml_dtypes.bfloat16), np.zeros(3, np.uint8), 1).dtype == jnp.bfloat16
    got = jp.genhist(lambda x: (0, 1.0), np.arange(5), jp.Bins(2))
    assert got.tolist() == [5, 0] and got.dtype == jnp.float32
    got = jp.genhist(lambda x: (np.int8(1), True), np.arange(5), jp.Bins(2, jnp.logical_or))
    assert got.tolist() == [False, True]


def test_weak_types_follow_dest() -> None:
    dest = jnp.zeros(2, jnp.bfloat16)
    got = jp.genhist(lambda x: (0, 1), np.arange(5), jp.Bins(2, dest=dest))
    assert got.dtype == jnp.bfloat16 and got.tolist() == [5, 0]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int4", "uint4"])
def test_dtypes_without_kernels(dtype: str) -> None:
    """What kernels cannot hold, XLA adds up."""
    values = jnp.asarray(np.arange(6) % 3, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jp.FallbackWarning)
        got = jp.reduce_by_index(values, np.array([0, 1, 0, 1, -1, 2], np.int32), 2, identity=0)
    assert got.dtype == dtype and got.astype(jnp.float32).tolist() == [2, 1]


def test_wrong_identities_are_noticed() -> None:
    values, index = np.arange(4, dtype=np.float32), np.zeros(4, np.int32)
    with pytest.warns(jp.IdentityWarning, match="not op's neutral element"):
        jp.reduce_by_index(values, index, 1, jnp.add, identity=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jp.reduce_by_index(values, index, 1, jnp.add, identity=0)


@pytest.mark.strategies
@pytest.mark.filterwarnings("ignore::jaxprims.FallbackWarning")
@pytest.mark.parametrize("n", [0, 3])
def test_bins_hold_what_they_held_where_there_is_nothing_to_add(n: int) -> None:
    """Rows too long for an operator's kernel, each of a batch's into a ``dest`` of its own, beside an identity."""
    op = lambda a, b: jnp.where(jnp.sort(a)[0] >= jnp.sort(b)[0], a, b)  # noqa: E731
    dest = jnp.asarray(rng().integers(0, 9, (4, 2, 100)), jnp.int32)
    values, index = jnp.full((4, n, 100), 99, jnp.int32), jnp.zeros((4, n), jnp.int32)

    def into(values: Any, index: Any, dest: Any) -> Any:
        return jp.reduce_by_index(values, index, 2, op, identity=np.int32(-(2**31)), dest=dest)

    wanted = dest.at[:, 0].set(99) if n else dest
    np.testing.assert_array_equal(jax.jit(jax.vmap(into))(values, index, dest), wanted)
    np.testing.assert_array_equal(into(values[0], index[0], dest[0]), wanted[0])
