"""Kernels across rows; combine and finish; which operators commute."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from kernel_calls import (
    KERNELS,
    VECTOR_BYTES,
    WIDTH,
    Fenced,
    States,
    affine,
    apply,
    compiled,
    elements,
    expected,
    keep,
    last_nonzero,
    matmul,
    odd_above,
    odd_product,
    program,
    random_array,
    range_of,
    same,
    spec_of,
    sums,
    table,
)

from jaxprims.ir import program as P
from jaxprims.operators.commutes import commutes
from jaxprims.specs.ordered import OrderedSpec
from jaxprims.targets.cpu.llvm import engine as llvm_engine
from jaxprims.targets.cpu.ordered import kernel as llvm_scan
from jaxprims.targets.cpu.ordered.elements import vector_width


def across(op: Callable[..., Any], state: Sequence[str], **kw: Any) -> OrderedSpec:
    return spec_of(op, state, across=True, **kw)


def check_across(
    spec: OrderedSpec, n: int, lanes: int, lane_lo: int, lane_hi: int, *, prefixed: bool = False, cut: int = 0
) -> None:
    """Scan in two calls, cut anywhere; and reduce."""
    rng = np.random.default_rng(n * lanes)
    fence, wanted = Fenced(), lane_hi - lane_lo
    arrays = [random_array(rng, a.dtype, (n, lanes, a.slots)) if a.slots else None for a in spec.arrays]
    memory = [None if a is None else fence.like(a) for a in arrays]
    outs = [fence.like(np.full((n, lanes, slots), 99, P.numpy_dtype(t))) for t, slots in spec.leaves]
    flags = fence.like(rng.integers(0, 4, n) == 0) if spec.restarts else np.zeros(n, bool)
    prefix = States(spec, wanted, [random_array(rng, t, (wanted,)) for t in spec.state]) if prefixed else None
    given = None if prefix is None else prefix.memory.ctypes.data
    aggregates, kernels, progress = [States(spec, wanted) for _ in range(2)], compiled(spec), [0, 0]
    for lo, hi in ((0, cut), (cut, n)):
        range_ = range_of(lo, hi, n, lanes=lanes, lane_lo=lane_lo, lane_hi=lane_hi, far=int(lo > 0))
        common = (flags.ctypes.data, range_.ctypes.data)
        for k, a in enumerate(aggregates):
            mine = (a.memory.ctypes.data, progress[k])
            if k or spec.kind != "scan":
                progress[k] = kernels["reduce"](table(memory), None, *common, *mine)
            else:
                progress[k] = kernels["scan"](table(memory), None, table(outs), *common, given, *mine)
    inside = [None if a is None else a[:, lane_lo:lane_hi] for a in arrays]
    in_order = flags[::-1] if spec.reverse else flags
    xs = elements(spec, inside, n, wanted)
    results, acc, done = expected(spec, xs, in_order, None if prefix is None else [s.copy() for s in prefix.slots], None)
    for a, p in zip(aggregates, progress, strict=True):
        assert p == done
        for got, want in zip(a.slots, acc or [], strict=False):
            np.testing.assert_array_equal(got, want)
    if spec.kind == "scan":
        flat = [np.stack(rows) for rows in zip(*results[:: -1 if spec.reverse else 1], strict=True)] if n else []
        at = 0
        for out, (_, slots) in zip(outs, spec.leaves, strict=True):
            for s in range(slots if n else 0):
                np.testing.assert_array_equal(out[:, lane_lo:lane_hi, s], flat[at + s])
            at += slots
            untouched = np.delete(out, np.s_[lane_lo:lane_hi], axis=1)
            assert (untouched == np.asarray(99, out.dtype)).all()


# --- across rows ---------------------------------------------------------------------------------------------------------------

LANES = [(1, 0, 1), (WIDTH - 1, 0, WIDTH - 1), (WIDTH, 0, WIDTH), (WIDTH + 1, 0, WIDTH + 1), (3 * WIDTH + 5, 0, 3 * WIDTH + 5),
         (3 * WIDTH + 5, 3, 4), (3 * WIDTH + 5, WIDTH - 1, 3 * WIDTH), (3 * WIDTH + 5, 5, 3 * WIDTH + 5)]  # fmt: skip


@pytest.mark.cover(14)
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("n", [0, 1, 2, 9, 40])
def test_across_every_strip(n: int, lanes: tuple[int, int, int]) -> None:
    for cut in sorted({0, min(1, n), n // 3, n}):
        check_across(across(affine, ["s32"] * 2), n, *lanes, cut=cut)


@pytest.mark.cover(3)
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_across_every_mode(exclusive: bool, reverse: bool, restarts: bool) -> None:
    spec = across(affine, ["s16"] * 2, identity=(1, 0), exclusive=exclusive, reverse=reverse, restarts=restarts)
    for prefixed, cut in itertools.product((False, True), (0, 7, 23)):
        check_across(spec, 23, 2 * WIDTH + 3, 0, 2 * WIDTH + 3, prefixed=prefixed, cut=cut)


def test_across_exclusive_needs_no_identity_behind_a_prefix() -> None:
    check_across(across(affine, ["s32"] * 2, exclusive=True), 5, 3, 0, 3, prefixed=True)


@pytest.mark.cover(3)
@pytest.mark.parametrize("dtype", P.DTYPES)
def test_across_every_dtype(dtype: str) -> None:
    op = (lambda a, b: a | b) if dtype == "b1" else jnp.maximum if dtype in ("f16", "bf16") else lambda a, b: a + b
    check_across(across(op, [dtype]), 9, 150, 1, 149, cut=4)
    check_across(across(last_nonzero, [dtype]), 9, 20, 0, 20, prefixed=True)


def test_across_reduce() -> None:
    """Vectors side by side, single ones and a part of one; several blocks of steps."""
    many = 13 * WIDTH + 7
    for lanes in [*LANES, (many, 0, many), (many, 2, 9 * WIDTH), (40 * WIDTH, 0, 40 * WIDTH)]:
        for reverse in (False, True):
            spec = across(affine, ["s32"] * 2, kind="reduce", reverse=reverse)
            check_across(spec, 9 if lanes in LANES else 70, *lanes, cut=4)


def test_across_structs_side_by_side_in_memory() -> None:
    kw: Any = {"arrays": [("f32", 4)], "leaves": [("f32", 4)]}
    for lanes in ((1, 0, 1), (WIDTH, 0, WIDTH), (2 * WIDTH + 3, 2, 2 * WIDTH + 3)):
        check_across(across(matmul(2), ["f32"] * 4, **kw), 4, *lanes, cut=1)
    mixed = across(
        lambda a, i, b, j: (a + b, jnp.maximum(i, j)),
        ["f64", "u8"],
        arrays=[("u8", 3), ("f64", 1)],
        f=lambda x, y, z, w: (w, x + z),
    )
    check_across(mixed, 6, 21, 2, 20, cut=2, prefixed=True)


@pytest.mark.parametrize("position", ["s32", "s64"])
@pytest.mark.parametrize("reverse", [False, True])
def test_across_positions_are_places_in_memory(reverse: bool, position: str) -> None:
    def argmax(v: Any, i: Any, w: Any, j: Any) -> Any:
        return jnp.where(v >= w, v, w), jnp.where(v >= w, i, j)

    spec = across(argmax, ["s8", position], arrays=[("s8", 1), (position, 0)], reverse=reverse)
    check_across(spec, 12, 70, 1, 69, cut=5)


def test_spare_lanes_hold_what_the_user_gave() -> None:
    spec = across(odd_product, ["u32"], f=odd_above, identity=(1,))
    check_across(spec, 5, 3, 0, 3, cut=2)
    check_across(dataclasses.replace(spec, exclusive=True), 5, 3, 1, 3, cut=2)


def test_dear_operators_are_called() -> None:
    spec = across(matmul(3), ["u32"] * 9, arrays=[("u32", 9)], leaves=[("u32", 9)])
    check_across(spec, 6, 2 * WIDTH + 3, 0, 2 * WIDTH + 3, prefixed=True, cut=3)
    text = str(llvm_scan.generate(spec, llvm_scan.PLAIN, VECTOR_BYTES))
    assert text.count("define internal") == 1


@pytest.mark.parametrize("slots", [1, 3])
def test_streamed_results(slots: int) -> None:
    """Past the caches: the same results. Steps are whole vectors."""
    spec = across(jnp.add, ["f32"]) if slots == 1 else across(sums, ["f32"] * 3, arrays=[("f32", 3)], leaves=[("f32", 3)])
    code = llvm_engine.compile_ir(llvm_scan.generate(spec, llvm_scan.STREAMING, VECTOR_BYTES), ["scan"])
    keep.append(code)
    assert "nontemporal" in code.ir
    lanes, n = 64, 16
    x = random_array(np.random.default_rng(0), "f32", (n, lanes, slots))
    out = Fenced().like(np.zeros_like(x))
    aggregate, range_ = States(spec, lanes), range_of(0, n, n, lanes=lanes, lane_hi=lanes)
    mine = (aggregate.memory.ctypes.data, 0)
    KERNELS["scan"](code.address["scan"])(table([x]), None, table([out]), None, range_.ctypes.data, None, *mine)
    np.testing.assert_array_equal(out, np.cumsum(x, 0))


# --- states --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, WIDTH - 1, WIDTH, WIDTH + 1, 5 * WIDTH + 3])
def test_combine(lanes: int) -> None:
    rng = np.random.default_rng(0)
    for state in (["s32", "s32"], ["f64", "f64"]):
        spec = across(affine, state)
        a, b = ([random_array(rng, t, (lanes,)) for t in state] for _ in range(2))
        want = apply(spec.op, a, b)
        for where in range(3):  # out is a third state, a or b
            first, second, third = States(spec, lanes, a), States(spec, lanes, b), States(spec, lanes)
            out = (third, first, second)[where]
            compiled(spec)["combine"](None, first.memory.ctypes.data, second.memory.ctypes.data, out.memory.ctypes.data, lanes)
            for got, value in zip(out.slots, want, strict=True):
                np.testing.assert_array_equal(got, value)


def test_combine_of_one_state() -> None:
    spec = spec_of(affine, ["f16", "f16"])
    a, b = States(spec, 1, [np.float16([2]), np.float16([3])]), States(spec, 1, [np.float16([4]), np.float16([5])])
    compiled(spec)["combine"](None, a.memory.ctypes.data, b.memory.ctypes.data, b.memory.ctypes.data, 1)
    assert [v[0] for v in b.slots] == [8, 17]


@pytest.mark.parametrize("form", ["across", "along"])
def test_finish(form: str) -> None:
    finish = program(lambda s, n: (s / n, jnp.sqrt(s), n.astype(jnp.int8)), ["f32", "f32"])
    spec = spec_of(
        lambda a, n, b, m: (a + b, n + m), ["f32", "f32"], leaves=[("f32", 2), ("s8", 1)], kind="reduce",
        identity=(P.to_bits(4, "f32"), P.to_bits(2, "f32")), finish=finish, across=form == "across"
    )  # fmt: skip
    for lanes in (1, WIDTH, 2 * WIDTH + 3) if spec.across else (1,):
        sums, counts = np.arange(1, lanes + 1, dtype=np.float32) ** 2, np.full(lanes, 2, np.float32)
        states = States(spec, lanes, [sums, counts])
        for given, s in ((states.memory.ctypes.data, sums), (None, np.full(lanes, 4, np.float32))):
            leaf, small = Fenced().like(np.zeros((lanes, 2), np.float32)), Fenced().like(np.zeros(lanes, np.int8))
            compiled(spec)["finish"](None, given, table([leaf, small]), lanes)
            np.testing.assert_array_equal(leaf, np.stack([s / 2, np.sqrt(s)], 1))
            np.testing.assert_array_equal(small, 2)


def test_functions_of_each_kind() -> None:
    for kind, names in (
        ("scan", "scan reduce combine"),
        ("reduce", "reduce combine finish"),
        ("segments", "reduce combine finish runs"),
    ):
        spec = spec_of(affine, ["f32"] * 2, kind=kind)
        assert llvm_scan.function_names(spec, llvm_scan.PLAIN) == names.split()
        assert llvm_scan.function_names(spec, llvm_scan.PERIODIC) == ["scan"]
        assert OrderedSpec.parse(spec.text) == spec
    cheap = spec_of(jnp.add, ["f32"], kind="segments", commutes=True)
    assert "runs" not in llvm_scan.function_names(dataclasses.replace(cheap, across=True), llvm_scan.PLAIN)
    assert vector_width(spec_of(affine, ["f64"] * 2), 64) == 8


# --- which operators commute ---------------------------------------------------------------------------------------------------

F32, S32 = "f32", "s32"


@pytest.mark.parametrize(
    ("op", "dtypes", "wanted"),
    [
        (lambda a, b: a + b, [F32], True),
        (jnp.maximum, [F32], True),
        (jnp.fmin, [F32], True),
        (jnp.logaddexp, [F32], True),
        (lambda a, b: jnp.where(a > b, a, b), [S32], True),
        (lambda a, b: jnp.where(a > b, a, b), [F32], False),  # what it does with a NaN depends on the order
        (lambda a, b, c, d: (a * c - b * d, a * d + b * c), [F32] * 2, True),
        (lambda a, b, c, d: (a + c, jnp.maximum(b, d)), [F32, S32], True),
        (lambda a, b: a + b + a * b, [F32], True),
        (lambda a, b: (a ^ b) & 7, [S32], True),
        (lambda a, b: a - b, [F32], False),
        (lambda a, b: jnp.where(b != 0, b, a), [F32], False),
        (affine, [F32] * 2, False),
        (lambda a, b, s, c, d, t: (*affine(a, b, c, d), s + t), [F32] * 3, False),
        (matmul(2), [F32] * 4, False),
    ],
)
def test_commutes(op: Callable[..., Any], dtypes: list[str], wanted: bool) -> None:
    assert commutes(program(op, dtypes * 2)) is wanted


def test_what_is_no_operator_does_not_commute() -> None:
    assert not commutes(same([F32, S32]))
