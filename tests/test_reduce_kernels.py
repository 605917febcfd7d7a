"""Kernels that reduce a row, or many short segments of it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_calls import (
    KERNELS,
    STARTED,
    VECTOR_BYTES,
    WIDTH,
    Fenced,
    States,
    affine,
    apply,
    compiled,
    elements,
    expected,
    last_nonzero,
    matmul,
    odd_above,
    odd_product,
    program,
    random_array,
    range_of,
    spec_of,
    table,
)

import jaxprims as jp
from jaxprims.ir import program as P
from jaxprims.ir.evaluate import evaluate
from jaxprims.operators.known import KNOWN
from jaxprims.operators.representation import represent
from jaxprims.specs.histogram import ArraySpec
from jaxprims.specs.ordered import OrderedSpec
from jaxprims.targets.cpu.llvm import engine as llvm_engine
from jaxprims.targets.cpu.ordered import kernel as llvm_scan


def check_reduce(spec: OrderedSpec, n: int, lo: int = 0, hi: int | None = None, start: Sequence[int] | None = None) -> None:
    rng = np.random.default_rng(n)
    hi = n if hi is None else hi
    for at_end in (True, False):
        arrays = [Fenced().like(random_array(rng, a.dtype, (n, a.slots)), at_end) if a.slots else None for a in spec.arrays]
        rows = [None if a is None else a[:, None, :] for a in arrays]
        begun = start and [np.array([v], P.numpy_dtype(t)) for v, t in zip(start, spec.state, strict=True)]
        aggregate = States(spec, 1, begun or ())
        range_ = range_of(lo, hi, n)
        progress = compiled(spec)["reduce"](
            table(arrays), None, None, range_.ctypes.data, aggregate.memory.ctypes.data, STARTED if begun else 0
        )
        _, acc, done = expected(spec, elements(spec, rows, n, 1)[lo:hi], [False] * (hi - lo), None, begun)
        assert progress == done
        for got, want in zip(aggregate.slots, acc or [], strict=False):
            np.testing.assert_array_equal(got, want)


SIZES = sorted({0, 1, 2, 3, WIDTH - 1, WIDTH, WIDTH + 1, 3 * WIDTH + 2, 8 * WIDTH, 9 * WIDTH - 1, 16 * WIDTH, 33 * WIDTH + 5})


@pytest.mark.cover(9)
@pytest.mark.parametrize("n", SIZES)
def test_reduce_every_length(n: int) -> None:
    expensive = spec_of(matmul(3), ["u16"] * 9, arrays=[("u16", 9)], leaves=[("u16", 9)], kind="reduce")
    for spec in (
        spec_of(affine, ["u32"] * 2, kind="reduce"),
        spec_of(lambda a, b: a + b, ["s32"], kind="reduce", commutes=True),
        expensive,
    ):
        check_reduce(dataclasses.replace(spec, reverse=SIZES.index(n) % 2 == 1), n)


def test_reduce_of_a_range_goes_on_from_the_aggregate() -> None:
    for reverse, kw in itertools.product((False, True), ({"commutes": True}, {})):
        spec = spec_of(lambda a, b: a + b, ["s32"], kind="reduce", reverse=reverse, **kw)
        for lo, hi in ((0, 5), (7, 7), (3, 170), (171, 400), (399, 400)):
            check_reduce(spec, 400, lo, hi, start=[5])
        check_reduce(spec_of(affine, ["s16"] * 2, kind="reduce", reverse=reverse), 90, 11, 77, start=[3, 4])


@pytest.mark.parametrize("dtype", P.DTYPES)
@pytest.mark.parametrize("commuting", [False, True])
@pytest.mark.cover(6)
def test_reduce_every_dtype(dtype: str, commuting: bool) -> None:
    op = (lambda a, b: a | b) if dtype == "b1" else jnp.maximum
    for n in (1, 77, 1200):
        check_reduce(spec_of(op if commuting else last_nonzero, [dtype], kind="reduce", commutes=commuting), n)


def test_spare_lanes_hold_what_the_user_gave() -> None:
    for commuting in (False, True):
        spec = spec_of(odd_product, ["u32"], f=odd_above, kind="reduce", commutes=commuting)
        for n in (1, 3, WIDTH + 1, 9 * WIDTH + 1):
            check_reduce(spec, n)


def test_reduce_structs_and_positions() -> None:
    for n in (1, 5, 40, 300):
        check_reduce(spec_of(matmul(2), ["u16"] * 4, arrays=[("u16", 4)], leaves=[("u16", 4)], kind="reduce"), n)
        first = spec_of(
            lambda v, i, w, j: (jnp.where(w > v, w, v), jnp.where(w > v, j, i)),
            ["s8", "s32"],
            arrays=[("s8", 1), ("s32", 0)],
            kind="reduce",
        )
        for reverse in (False, True):
            check_reduce(dataclasses.replace(first, reverse=reverse), n)


def test_float_sums_lose_little() -> None:
    spec = spec_of(lambda a, b: a + b, ["f32"], kind="reduce", commutes=True)
    x = np.random.default_rng(0).uniform(0, 1, 8192).astype(np.float32)
    aggregate, range_ = States(spec, 1), range_of(0, x.size, x.size)
    compiled(spec)["reduce"](table([x]), None, None, range_.ctypes.data, aggregate.memory.ctypes.data, 0)
    exact = x.astype(np.float64).sum()
    assert abs(aggregate.slots[0][0] - exact) <= 2**-21 * exact


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("reverse", [False, True])
def test_packed_positions(name: str, reverse: bool) -> None:
    """Ranges shorter and longer than a chunk; ties, NaN and zeros of both signs."""
    known = next(k for k in KNOWN if k.name == name)
    pair = ("f32", "s32")
    form = represent(known.program(pair), pair, known.identity_bits(pair), True)
    assert form.start is not None and form.finish is not None
    spec = OrderedSpec(
        "reduce", (ArraySpec("f32", 1, 1), ArraySpec("s32", 0, 1)), (), form.dtypes, (("f32", 1), ("s32", 1)), form.identity,
        form.start, form.op, form.finish, reverse=reverse, commutes=True,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for n in (1, WIDTH + 1, 600, 1024, 1025, 9000):
        random = rng.standard_normal(n).astype(np.float32)
        holed = random.copy()
        holed[rng.integers(0, n, 3)] = np.nan
        zeros = np.where(random < 0, np.float32(-0.0), np.float32(0))
        for x in (random, np.sort(random), holed, zeros, np.full(n, -np.inf, np.float32)):
            aggregate, row = States(spec, 1), Fenced().like(x)
            for lo, hi in ((0, n // 3), (n // 3, n)):
                range_ = range_of(lo, hi, n)
                mine = (aggregate.memory.ctypes.data, STARTED if lo else 0)
                compiled(spec)["reduce"](table([row, None]), None, None, range_.ctypes.data, *mine)
            value, place = evaluate(spec.finish, aggregate.slots)
            assert place[0] == getattr(np, name)(x)
            np.testing.assert_array_equal(value[0], x[place[0]])
            assert np.signbit(value[0]) == np.signbit(x[place[0]])


@pytest.mark.parametrize("commuting", [False, True])
def test_a_nan_or_an_infinity_is_never_lost(commuting: bool) -> None:
    spec = spec_of(jnp.maximum, ["f32"], kind="reduce", commutes=commuting)
    for n in (1, WIDTH + 1, 20 * WIDTH + 3):
        for at in {0, n // 2, n - 1}:
            x = np.full(n, -np.inf, np.float32)
            for value in (np.inf, np.nan):
                x[at] = value
                aggregate, range_ = States(spec, 1), range_of(0, n, n)
                compiled(spec)["reduce"](table([x]), None, None, range_.ctypes.data, aggregate.memory.ctypes.data, 0)
                np.testing.assert_array_equal(aggregate.slots[0], [value])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logarithms_of_sums_side_by_side(dtype: str) -> None:
    """Several at once relative to the greatest, infinite or NaN too; the same bits however steps and lanes are divided."""
    rng, lanes = np.random.default_rng(0), 5 * WIDTH + 1
    with jax.enable_x64(True):
        x = jnp.ones((2000, lanes), dtype)
        (call,) = jp.explain(lambda x: jp.reduce(x, jnp.logaddexp, axis=0))(x).calls
    spec = call.spec
    for n in (1, 3, 4, 9, 263):
        x = (rng.normal(size=(n, lanes)) * rng.choice([1, 50, 2000], lanes)).astype(dtype)
        x[rng.random((n, lanes)) < 0.02] = np.inf
        x[rng.random((n, lanes)) < 0.02] = np.nan
        x[rng.random((n, lanes)) < np.linspace(0, 1, lanes)] = -np.inf

        def run(first: int, end: int, cuts: Sequence[int], x: np.ndarray = x, n: int = n) -> list[np.ndarray]:
            aggregate, progress = States(spec, end - first), 0
            for lo, hi in itertools.pairwise((0, *cuts, n)):
                range_ = range_of(lo, hi, n, lanes=lanes, lane_lo=first, lane_hi=end)
                given = range_.ctypes.data, aggregate.memory.ctypes.data, progress
                progress = compiled(spec)["reduce"](table([x]), None, None, *given)
            assert progress == STARTED
            return aggregate.slots

        top, total = run(0, lanes, ())
        with np.errstate(all="ignore"):
            want = np.logaddexp.reduce(x.astype(np.longdouble), 0).astype(dtype)
            few = 8 * np.finfo(dtype).eps
            np.testing.assert_allclose(np.log(total) + top, want, rtol=few, atol=few)
        parts = [run(0, 7, [4] * (n > 4)), run(7, lanes, [8] * (n > 8))]
        for got, pair in zip((top, total), zip(*parts, strict=True), strict=True):
            np.testing.assert_array_equal(got, np.concatenate(pair))


# --- many rows, one behind the other ------------------------------------------------------------------------------------------


@functools.cache
def compiled_for_rows(spec: OrderedSpec, vector_bytes: int) -> llvm_engine.Compiled:
    names = llvm_scan.function_names(spec, llvm_scan.PERIODIC)
    return llvm_engine.compile_ir(llvm_scan.generate(spec, llvm_scan.PERIODIC, vector_bytes), names)


def check_rows(spec: OrderedSpec, period: int, rows: int, vector_bytes: int = VECTOR_BYTES) -> None:
    rng, n = np.random.default_rng(period), rows * period
    code = compiled_for_rows(spec, vector_bytes)
    for at_end, far in itertools.product((True, False), (0, 1)):
        arrays = [Fenced().like(random_array(rng, a.dtype, (n, a.slots)), at_end) if a.slots else None for a in spec.arrays]
        outs = [Fenced().like(np.zeros((rows, slots), P.numpy_dtype(t)), at_end) for t, slots in spec.leaves]
        range_ = range_of(0, n, n, period=period, far=far)
        scan = KERNELS["scan"](code.address["scan"])
        scan(table(arrays), None, table(outs), None, range_.ctypes.data, None, None, 0)
        mine = [None if a is None else a.reshape(rows, period, -1).swapaxes(0, 1) for a in arrays]  # a row is a lane
        _, acc, _ = expected(spec, elements(spec, mine, period, rows), [False] * period, None, None)
        got = [out[:, s] for out in outs for s in range(out.shape[1])]
        for g, w in zip(got, apply(spec.finish, acc), strict=True):
            np.testing.assert_array_equal(g, w, f"rows of {period}")


PERIODS = sorted({1, WIDTH - 1, WIDTH, WIDTH + 1, 4 * WIDTH, 5 * WIDTH, 5 * WIDTH + 3, 9 * WIDTH - 1, 13 * WIDTH + 1})


@pytest.mark.cover(4)
@pytest.mark.parametrize("period", PERIODS)
def test_rows_one_behind_the_other(period: int) -> None:
    both = lambda a, b, c, d: (a + c, jnp.maximum(b, d))  # noqa: E731
    for rows, reverse in ((1, False), (WIDTH - 1, True), (2 * WIDTH + 3, False)):
        check_rows(spec_of(lambda a, b: a + b, ["s32"], kind="reduce", commutes=True, reverse=reverse), period, rows)
        check_rows(spec_of(jnp.maximum, ["f32"], kind="reduce", commutes=True), period, rows)
    check_rows(spec_of(both, ["u16"] * 2, arrays=[("u16", 2)], leaves=[("u16", 2)], kind="reduce", commutes=True), period, 19)
    places = [("s8", 1), ("s32", 0)]
    check_rows(
        spec_of(both, ["s8", "s32"], arrays=places, leaves=[*places[:1], ("s32", 1)], kind="reduce", commutes=True), period, 21
    )
    check_rows(spec_of(odd_product, ["u32"], f=odd_above, kind="reduce", commutes=True), period, 18)
    narrow = spec_of(lambda a, b: a + b, ["s8"], [("s64", 1)], f=lambda v: v.astype(jnp.int8), kind="reduce", commutes=True)
    check_rows(narrow, period, 18)  # a state of few bytes in vectors of wide elements


@pytest.mark.cover(4)
@pytest.mark.parametrize("dtype", P.DTYPES)
def test_rows_of_every_dtype(dtype: str) -> None:
    op = (lambda a, b: a | b) if dtype == "b1" else jnp.maximum
    for period, vector_bytes in ((1, VECTOR_BYTES), (WIDTH + 1, 16), (3 * WIDTH + 3, 32), (11 * WIDTH + 5, VECTOR_BYTES)):
        check_rows(spec_of(op, [dtype], kind="reduce", commutes=True), period, 2 * WIDTH + 1, vector_bytes)


@pytest.mark.parametrize("op", [jnp.add, jnp.multiply, jnp.maximum])
def test_rows_from_memory_have_the_same_bits(op: Any) -> None:
    spec, rng, rows = spec_of(op, ["f32"], kind="reduce", commutes=True), np.random.default_rng(0), 2 * WIDTH + 3
    scan = KERNELS["scan"](compiled_for_rows(spec, VECTOR_BYTES).address["scan"])
    for period in PERIODS:
        x, n = rng.uniform(0.5, 2, (rows, period)).astype(np.float32), rows * period
        x[3:5, -1] = np.nan
        near, far = np.zeros((2, rows), np.float32)
        for k, out in enumerate((near, far)):
            range_ = range_of(0, n, n, period=period, far=k)
            scan(table([x]), None, table([out]), None, range_.ctypes.data, None, None, 0)
        np.testing.assert_array_equal(near, far)


# --- many segments -------------------------------------------------------------------------------------------------------------


def check_runs(spec: OrderedSpec, lengths: Sequence[int], first: int = 5) -> None:
    rng = np.random.default_rng(len(lengths))
    ends = np.cumsum(lengths).astype(np.int32)
    n = first + int(ends[-1])
    arrays = [Fenced().like(random_array(rng, a.dtype, (n, a.slots))) if a.slots else None for a in spec.arrays]
    rows = [None if a is None else a[:, None, :] for a in arrays]
    outs = [Fenced().like(np.zeros((len(lengths), slots), P.numpy_dtype(t))) for t, slots in spec.leaves]
    base, before = 3, Fenced().like((ends + (first - 3)).astype(np.int32))
    compiled(spec)["runs"](table(arrays), None, table(outs), before.ctypes.data, base, first, len(lengths))
    xs, lo = elements(spec, rows, n, 1), first
    for k, length in enumerate(lengths):
        _, acc, _ = expected(spec, xs[lo : lo + length], [False] * length, None, None)
        lo += length
        got = [v for out in outs for v in out[k]]
        np.testing.assert_array_equal(got, np.concatenate(apply(spec.finish, acc)))


SHORT = [1, 2, 3, 1, 4] * 8  # side by side, but for the last ones: nothing may be read behind the last element
LENGTHS = [1, 2, WIDTH - 1, WIDTH, WIDTH + 1, 2 * WIDTH, 2 * WIDTH + 1, 1, 5 * WIDTH + 3, 3, *SHORT, 9 * WIDTH, *SHORT]


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", P.DTYPES)
def test_runs_every_dtype(dtype: str) -> None:
    op = (lambda a, b: a | b) if dtype == "b1" else jnp.maximum
    check_runs(spec_of(op, [dtype], kind="segments", commutes=True), LENGTHS)


def test_runs_of_every_kind_of_operator() -> None:
    def mean(s: Any, n: Any) -> Any:
        return s / n

    check_runs(spec_of(affine, ["s32"] * 2, kind="segments"), LENGTHS)
    check_runs(spec_of(matmul(3), ["u16"] * 9, arrays=[("u16", 9)], leaves=[("u16", 9)], kind="segments"), LENGTHS)
    kw: Any = {"f": lambda x: (x, jnp.float32(1)), "arrays": [("f32", 1)], "leaves": [("f32", 1)], "kind": "segments"}
    pair = spec_of(lambda a, n, b, m: (a + b, n + m), ["f32"] * 2, finish=program(mean, ["f32"] * 2), commutes=True, **kw)
    check_runs(pair, LENGTHS)
    place = spec_of(jnp.maximum, ["s32"], arrays=[("s32", 0)], kind="segments", commutes=True)
    check_runs(place, LENGTHS)
    odd = spec_of(odd_product, ["u32"], f=odd_above, kind="segments")
    for commuting in (False, True):
        check_runs(dataclasses.replace(odd, commutes=commuting), LENGTHS)


OPERATORS = {"sum": jnp.add, "max": jnp.maximum, "prod": jnp.multiply}


@pytest.mark.cpu
@pytest.mark.cover(6)
@pytest.mark.parametrize("n", [16, 17, 31, 32, 33, 47, 100, 300])
@pytest.mark.parametrize("dtype", ["float32", "int8", "int32", "bfloat16", "complex64"])
@pytest.mark.parametrize("name", ["sum", "max", "prod"])
@pytest.mark.parametrize("rows", [(16,), (17,), (100,), (3, 40), (50, 3), (9, 15)])
def test_rows_that_lie_apart(rows: tuple[int, ...], name: str, dtype: str, n: int) -> None:
    """Operands that lack batch axes: an array that all rows read, numbers of its own that each row captures."""
    if dtype == "complex64" and name == "max":
        pytest.skip("complex numbers have no maximum")
    rng = np.random.default_rng(n)
    draw = lambda *shape: rng.choice([-1, 1] if name == "prod" else [-2, -1, 0, 1, 2], shape)  # noqa: E731
    x, y, own, turns = draw(*rows, n), draw(n), draw(*rows), draw(rows[-1], 3)

    def one(x: Any, y: Any, own: Any, turns: Any) -> Any:
        return jp.reduce((x, y, jp.positions), OPERATORS[name], map=lambda a, b, i: a * b * own * turns[i % 3])

    every = jax.vmap(one, (0, None, 0, 0))
    if len(rows) > 1:
        every = jax.vmap(every, (0, None, 0, None))
    got = jax.jit(every)(*(jnp.asarray(v, dtype) for v in (x, y, own, turns)))
    wanted = getattr(np, name)(x * y * own[..., None] * turns[:, np.arange(n) % 3], -1)
    np.testing.assert_array_equal(np.asarray(got), wanted.astype(got.dtype))


@pytest.mark.cpu
def test_which_rows_that_lie_apart_are_folded_at_once() -> None:
    """Of captured numbers that each has for itself only f's: vectors of rows are combined."""
    x, w, m = jnp.ones((200, 40)), jnp.ones(40), jnp.ones(200)
    weighted = jax.vmap(lambda x, w: jp.reduce((x, w), map=lambda a, b: a * b), (0, None))
    centred = jax.vmap(lambda x, m: jp.reduce(x, map=lambda a: (a - m) ** 2))
    scaled = jax.vmap(lambda x, m: jp.reduce(x, lambda a, b: a + b + m * 0))
    for fn, y, together in ((weighted, w, True), (centred, m, True), (scaled, m, False)):
        (call,) = jp.explain(fn)(x, y).calls
        assert ("many rows at once" in call.strategy) == together


@pytest.mark.cpu
def test_pieces_of_bytes_are_put_together_by_vectors() -> None:
    """Not by AMD's ``insertq``, which takes a hundred times as long beside them."""
    (call,) = jp.explain(lambda x: jp.reduce(x, jnp.maximum, axis=1))(jnp.ones((50_000, 6), jnp.uint8)).calls
    assert not {"insertq", "extrq"} & set(call.assembly().split())
