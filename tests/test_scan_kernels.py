"""Kernels of the ordered family, called as the drivers do: across rows, reductions, combine, finish."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from test_scan_along import affine, last_nonzero, matmul, program, same, spec_of, table

from jaxprims.codegen import llvm_engine, llvm_scan
from jaxprims.codegen.llvm_elements import vector_width
from jaxprims.codegen.scan_spec import ScanSpec
from jaxprims.codegen.spec import ArraySpec
from jaxprims.frontend import program as P
from jaxprims.frontend.commutes import commutes
from jaxprims.frontend.evaluate import evaluate
from jaxprims.frontend.known import KNOWN
from jaxprims.frontend.representation import represent

STARTED, RESTARTED = 1, 2
VECTOR_BYTES = llvm_engine.target().vector_bytes


@functools.cache
def compiled(spec: ScanSpec) -> dict[str, Callable[..., Any]]:
    names = llvm_scan.function_names(spec, llvm_scan.PLAIN)
    code = llvm_engine.compile_ir(llvm_scan.generate(spec, llvm_scan.PLAIN, VECTOR_BYTES), names)
    keep.append(code)
    return {name: KERNELS[name](code.address[name]) for name in names}


_P, _I = ctypes.c_void_p, ctypes.c_int64
KERNELS = {
    "scan": ctypes.CFUNCTYPE(_I, *[_P] * 7, _I),
    "reduce": ctypes.CFUNCTYPE(_I, *[_P] * 5, _I),
    "combine": ctypes.CFUNCTYPE(None, *[_P] * 4, _I),
    "finish": ctypes.CFUNCTYPE(None, *[_P] * 3, _I),
    "runs": ctypes.CFUNCTYPE(None, *[_P] * 4, _I, _I, _I),
}
keep: list[Any] = []  # machine code that is in use


class Fenced:
    """Memory that ends (or starts) where a page begins (ends) that may not be touched."""

    libc = ctypes.CDLL(None, use_errno=True)

    def __init__(self) -> None:
        self.maps: list[mmap.mmap] = []

    def like(self, a: np.ndarray, at_end: bool = True) -> np.ndarray:
        """A copy of ``a`` in such memory."""
        page = mmap.PAGESIZE
        size = -(-max(1, a.nbytes) // page) * page
        self.maps.append(mmap.mmap(-1, size + 2 * page))
        whole = np.frombuffer(self.maps[-1], np.uint8)
        for fence in (0, size + page):
            assert self.libc.mprotect(ctypes.c_void_p(whole.ctypes.data + fence), page, 0) == 0
        start = page + (size - a.nbytes if at_end else 0)
        out = whole[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
        out[...] = a
        return out


class States:
    """States in memory as kernels hold them (cpu/scan_kernel.h)."""

    def __init__(self, spec: ScanSpec, lanes: int, values: Sequence[np.ndarray] = ()):
        size = 8 * len(spec.state) * lanes
        self.memory = Fenced().like(np.zeros(-(-size // 64) * 64, np.uint8))
        if self.memory.size != size:  # 64 bytes aligned, and yet at the end
            self.memory = np.zeros(size + 64, np.uint8)
            self.memory = self.memory[-self.memory.ctypes.data % 64 :][:size]
        rows = [self.memory[8 * s * lanes :] for s in range(len(spec.state))]
        self.slots = [row[: P.itemsize(t) * lanes].view(P.numpy_dtype(t)) for t, row in zip(spec.state, rows, strict=True)]
        for slot, value in zip(self.slots, values, strict=False):
            slot[:] = value


def across(op: Callable[..., Any], state: Sequence[str], **kw: Any) -> ScanSpec:
    return spec_of(op, state, across=True, **kw)


def apply(p: P.Program, *args: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(v) for v in evaluate(p, [x for group in args for x in group])]


def elements(spec: ScanSpec, arrays: Sequence[np.ndarray | None], n: int, lanes: int) -> list[list[np.ndarray]]:
    """f of every step, in scan order: a vector of lanes for each slot."""
    out = []
    for t in range(n - 1, -1, -1) if spec.reverse else range(n):
        args = []
        for a, array in zip(spec.arrays, arrays, strict=True):
            at = [np.full(lanes, t, P.numpy_dtype(a.dtype))] if array is None else [array[t, :, s] for s in range(a.params)]
            args += at
        out.append(apply(spec.f, args))
    return out


def expected(
    spec: ScanSpec, xs: Sequence[Sequence[np.ndarray]], flags: Any, prefix: Any, acc: Any
) -> tuple[list[list[np.ndarray]], Any, int]:
    """Results in scan order, the aggregate, and the progress."""
    outs, progress = [], STARTED if acc is not None or len(xs) else 0
    lanes = len(xs[0][0]) if xs else 0
    neutral = spec.identity and [np.full(lanes, P.from_bits(w, t)) for w, t in zip(spec.identity, spec.state, strict=True)]
    for x, flag in zip(xs, flags, strict=True):
        if flag:
            acc, prefix, progress = None, None, progress | RESTARTED
        before, acc = acc, x if acc is None else apply(spec.op, acc, x)
        shown = before if spec.exclusive else acc
        if shown is None:
            y = neutral if prefix is None else prefix
        else:
            y = shown if prefix is None else apply(spec.op, prefix, shown)
        outs.append(apply(spec.finish, y))
    return outs, acc, progress


def random_array(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Small numbers: sums and products of a few are exact."""
    low = 0 if dtype[0] in "ub" else -2
    return rng.integers(low, 2 if dtype == "b1" else 3, shape).astype(P.numpy_dtype(dtype))


def check_across(spec: ScanSpec, n: int, lanes: int, lane_lo: int, lane_hi: int, *, prefixed: bool = False, cut: int = 0) -> None:
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
        range_ = np.array([lo, hi, n, 0, lanes, lane_lo, lane_hi], np.int64)
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

WIDTH = VECTOR_BYTES // 4
LANES = [(1, 0, 1), (WIDTH - 1, 0, WIDTH - 1), (WIDTH, 0, WIDTH), (WIDTH + 1, 0, WIDTH + 1), (3 * WIDTH + 5, 0, 3 * WIDTH + 5),
         (3 * WIDTH + 5, 3, 4), (3 * WIDTH + 5, WIDTH - 1, 3 * WIDTH), (3 * WIDTH + 5, 5, 3 * WIDTH + 5)]  # fmt: skip


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("n", [0, 1, 2, 9, 40])
def test_across_every_strip(n: int, lanes: tuple[int, int, int]) -> None:
    for cut in sorted({0, min(1, n), n // 3, n}):
        check_across(across(affine, ["s32"] * 2), n, *lanes, cut=cut)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_across_every_mode(exclusive: bool, reverse: bool, restarts: bool) -> None:
    spec = across(affine, ["s16"] * 2, identity=(1, 0), exclusive=exclusive, reverse=reverse, restarts=restarts)
    for prefixed, cut in itertools.product((False, True), (0, 7, 23)):
        check_across(spec, 23, 2 * WIDTH + 3, 0, 2 * WIDTH + 3, prefixed=prefixed, cut=cut)


def test_across_exclusive_needs_no_identity_behind_a_prefix() -> None:
    check_across(across(affine, ["s32"] * 2, exclusive=True), 5, 3, 0, 3, prefixed=True)


@pytest.mark.parametrize("dtype", P.DTYPES)
def test_across_every_dtype(dtype: str) -> None:
    op = (lambda a, b: a | b) if dtype == "b1" else jnp.maximum if dtype in ("f16", "bf16") else lambda a, b: a + b
    check_across(across(op, [dtype]), 9, 150, 1, 149, cut=4)
    check_across(across(last_nonzero, [dtype]), 9, 20, 0, 20, prefixed=True)


def test_across_reduce() -> None:
    for lanes in LANES:
        check_across(across(affine, ["s32"] * 2, kind="reduce"), 9, *lanes, cut=4)


def test_across_structs_side_by_side_in_memory() -> None:
    kw: Any = {"arrays": [("f32", 4)], "leaves": [("f32", 4)]}
    for lanes in ((1, 0, 1), (WIDTH, 0, WIDTH), (2 * WIDTH + 3, 2, 2 * WIDTH + 3)):
        check_across(across(matmul, ["f32"] * 4, **kw), 4, *lanes, cut=1)
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


def odd_part(a: Any) -> Any:
    """Never ends on 0."""
    return lax.while_loop(lambda x: x % 2 == 0, lambda x: x // 2, a)


def test_spare_lanes_hold_what_the_user_gave() -> None:
    def op(a: Any, b: Any) -> Any:
        return odd_part(a) * odd_part(b)

    def f(x: Any) -> Any:
        return odd_part(x + 3)

    spec = across(op, ["u32"], f=f, identity=(1,))
    check_across(spec, 5, 3, 0, 3, cut=2)
    check_across(dataclasses.replace(spec, exclusive=True), 5, 3, 1, 3, cut=2)
    for commuting in (False, True):
        spec = spec_of(op, ["u32"], f=f, kind="reduce", commutes=commuting)
        for n in (1, 3, WIDTH + 1, 9 * WIDTH + 1):
            check_reduce(spec, n)


def test_dear_operators_are_called() -> None:
    spec = across(matmul_3, ["u16"] * 9, arrays=[("u16", 9)], leaves=[("u16", 9)])
    check_across(spec, 6, 2 * WIDTH + 3, 0, 2 * WIDTH + 3, prefixed=True, cut=3)
    text = str(llvm_scan.generate(spec, llvm_scan.PLAIN, VECTOR_BYTES))
    assert text.count("define internal") == 1


def test_streamed_results() -> None:
    """Past the caches: the same results. 16 rows to a vector, so that places are aligned."""
    spec = across(affine, ["f32"] * 2)
    code = llvm_engine.compile_ir(llvm_scan.generate(spec, llvm_scan.STREAMING, VECTOR_BYTES), ["scan"])
    keep.append(code)
    assert "nontemporal" in code.ir
    lanes, n = 48, 20
    rng = np.random.default_rng(0)
    x = [random_array(rng, "f32", (n, lanes, 1)) for _ in range(2)]
    outs = [Fenced().like(np.zeros((n, lanes), np.float32)) for _ in range(2)]
    aggregate, range_ = States(spec, lanes), np.array([0, n, n, 0, lanes, 0, lanes], np.int64)
    KERNELS["scan"](code.address["scan"])(
        table(x), None, table(outs), None, range_.ctypes.data, None, aggregate.memory.ctypes.data, 0
    )
    want, _, _ = expected(spec, elements(spec, x, n, lanes), [False] * n, None, None)
    for k, out in enumerate(outs):
        np.testing.assert_array_equal(out, np.stack([y[k] for y in want]))


# --- reductions along a row ----------------------------------------------------------------------------------------------------


def check_reduce(spec: ScanSpec, n: int, lo: int = 0, hi: int | None = None, start: Sequence[int] | None = None) -> None:
    rng = np.random.default_rng(n)
    hi = n if hi is None else hi
    for at_end in (True, False):
        arrays = [Fenced().like(random_array(rng, a.dtype, (n, a.slots)), at_end) if a.slots else None for a in spec.arrays]
        rows = [None if a is None else a[:, None, :] for a in arrays]
        begun = start and [np.array([v], P.numpy_dtype(t)) for v, t in zip(start, spec.state, strict=True)]
        aggregate = States(spec, 1, begun or ())
        range_ = np.array([lo, hi, n, 0, 1, 0, 1], np.int64)
        progress = compiled(spec)["reduce"](
            table(arrays), None, None, range_.ctypes.data, aggregate.memory.ctypes.data, STARTED if begun else 0
        )
        _, acc, done = expected(spec, elements(spec, rows, n, 1)[lo:hi], [False] * (hi - lo), None, begun)
        assert progress == done
        for got, want in zip(aggregate.slots, acc or [], strict=False):
            np.testing.assert_array_equal(got, want)


def matmul_3(*v: Any) -> Any:
    return tuple(sum(v[3 * i + k] * v[9 + 3 * k + j] for k in range(3)) for i in range(3) for j in range(3))


SIZES = sorted({0, 1, 2, 3, WIDTH - 1, WIDTH, WIDTH + 1, 3 * WIDTH + 2, 8 * WIDTH, 9 * WIDTH - 1, 16 * WIDTH, 33 * WIDTH + 5})


@pytest.mark.parametrize("n", SIZES)
def test_reduce_every_length(n: int) -> None:
    dear = spec_of(matmul_3, ["u16"] * 9, arrays=[("u16", 9)], leaves=[("u16", 9)], kind="reduce")
    for spec in (
        spec_of(affine, ["u32"] * 2, kind="reduce"),
        spec_of(lambda a, b: a + b, ["s32"], kind="reduce", commutes=True),
        dear,
    ):
        for reverse in (False, True):
            check_reduce(dataclasses.replace(spec, reverse=reverse), n)


def test_reduce_of_a_range_goes_on_from_the_aggregate() -> None:
    for reverse, kw in itertools.product((False, True), ({"commutes": True}, {})):
        spec = spec_of(lambda a, b: a + b, ["s32"], kind="reduce", reverse=reverse, **kw)
        for lo, hi in ((0, 5), (7, 7), (3, 170), (171, 400), (399, 400)):
            check_reduce(spec, 400, lo, hi, start=[5])
        check_reduce(spec_of(affine, ["s16"] * 2, kind="reduce", reverse=reverse), 90, 11, 77, start=[3, 4])


@pytest.mark.parametrize("dtype", P.DTYPES)
@pytest.mark.parametrize("commuting", [False, True])
def test_reduce_every_dtype(dtype: str, commuting: bool) -> None:
    op = (lambda a, b: a | b) if dtype == "b1" else jnp.maximum
    for n in (1, 77, 1200):
        check_reduce(spec_of(op if commuting else last_nonzero, [dtype], kind="reduce", commutes=commuting), n)


def test_reduce_structs_and_positions() -> None:
    for n in (1, 5, 40, 300):
        check_reduce(spec_of(matmul, ["u16"] * 4, arrays=[("u16", 4)], leaves=[("u16", 4)], kind="reduce"), n)
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
    aggregate, range_ = States(spec, 1), np.array([0, x.size, x.size, 0, 1, 0, 1], np.int64)
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
    spec = ScanSpec(
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
                range_ = np.array([lo, hi, n, 0, 1, 0, 1], np.int64)
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
                aggregate, range_ = States(spec, 1), np.array([0, n, n, 0, 1, 0, 1], np.int64)
                compiled(spec)["reduce"](table([x]), None, None, range_.ctypes.data, aggregate.memory.ctypes.data, 0)
                np.testing.assert_array_equal(aggregate.slots[0], [value])


# --- many segments -------------------------------------------------------------------------------------------------------------


def check_runs(spec: ScanSpec, lengths: Sequence[int], first: int = 5) -> None:
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


LENGTHS = [1, 2, WIDTH - 1, WIDTH, WIDTH + 1, 2 * WIDTH, 2 * WIDTH + 1, 1, 5 * WIDTH + 3, 3]


@pytest.mark.parametrize("dtype", P.DTYPES)
def test_runs_every_dtype(dtype: str) -> None:
    op = (lambda a, b: a | b) if dtype == "b1" else jnp.maximum
    check_runs(spec_of(op, [dtype], kind="segments", commutes=True), LENGTHS)


def test_runs_of_every_kind_of_operator() -> None:
    def mean(s: Any, n: Any) -> Any:
        return s / n

    check_runs(spec_of(affine, ["s32"] * 2, kind="segments"), LENGTHS)
    check_runs(spec_of(matmul_3, ["u16"] * 9, arrays=[("u16", 9)], leaves=[("u16", 9)], kind="segments"), LENGTHS)
    kw: Any = {"f": lambda x: (x, jnp.float32(1)), "arrays": [("f32", 1)], "leaves": [("f32", 1)], "kind": "segments"}
    pair = spec_of(lambda a, n, b, m: (a + b, n + m), ["f32"] * 2, finish=program(mean, ["f32"] * 2), commutes=True, **kw)
    check_runs(pair, LENGTHS)
    place = spec_of(jnp.maximum, ["s32"], arrays=[("s32", 0)], kind="segments", commutes=True)
    check_runs(place, LENGTHS)
    odd = spec_of(lambda a, b: odd_part(a) * odd_part(b), ["u32"], f=lambda x: odd_part(x + 3), kind="segments")
    for commuting in (False, True):
        check_runs(dataclasses.replace(odd, commutes=commuting), LENGTHS)


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
        ("segments", "scan reduce combine finish runs"),
    ):
        spec = spec_of(affine, ["f32"] * 2, kind=kind)
        assert llvm_scan.function_names(spec, llvm_scan.PLAIN) == names.split()
        assert llvm_scan.function_names(spec, llvm_scan.PERIODIC) == ["scan"]
        assert ScanSpec.parse(spec.text) == spec
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
        (matmul, [F32] * 4, False),
    ],
)
def test_commutes(op: Callable[..., Any], dtypes: list[str], wanted: bool) -> None:
    assert commutes(program(op, dtypes * 2)) is wanted


def test_what_is_no_operator_does_not_commute() -> None:
    assert not commutes(same([F32, S32]))
