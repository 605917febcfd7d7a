"""Scan kernels whose vectors run along the row, called through ctypes as the C++ drivers call them."""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from llvmlite import ir

from jaxprims.ir import program as P
from jaxprims.specs.histogram import ArraySpec
from jaxprims.specs.ordered import OrderedSpec
from jaxprims.targets.cpu.llvm import engine as llvm_engine
from jaxprims.targets.cpu.ordered import scan_abreast as llvm_scan_abreast
from jaxprims.targets.cpu.ordered import scan_along as llvm_scan_along
from jaxprims.targets.cpu.ordered.scan_log_steps import LogSteps
from jaxprims.targets.cpu.ordered.scan_logaddexp import LogAddExp
from jaxprims.targets.cpu.ordered.scan_replicas import Replicas
from jaxprims.targets.cpu.ordered.scan_sequential import Sequential
from jaxprims.targets.cpu.ordered.scan_short_rows import ShortRows
from jaxprims.targets.cpu.ordered.scan_tiles import Tile
from jaxprims.tracing.lower import to_program

STEP = 1024  # kScanStep
FORMS = {"steps": LogSteps, "tile": Tile, "sequential": Sequential}
OF_ROWS = ("short", "sequential", "abreast")
"""Those of short rows that lie end to end."""
OF_FORM = FORMS | {"short": ShortRows}
Arrays = Sequence[np.ndarray]


def program(f: Callable[..., Any], dtypes: Sequence[str]) -> P.Program:
    with jax.enable_x64(True):
        return to_program(jax.make_jaxpr(f)(*(jax.ShapeDtypeStruct((), P.numpy_dtype(t)) for t in dtypes)).jaxpr)


def spec_of(op: Callable[..., Any], state: Sequence[str], arrays: Any = None, leaves: Any = None, **more: Any) -> OrderedSpec:
    """Arrays and leaves hold a slot each, unless given as (dtype, slots); an array of no slots is the positions."""
    arrays = arrays or [(t, 1) for t in state]

    def same(dtypes: Sequence[str]) -> P.Program:
        b = P.Builder(dtypes)
        return b.finish([b.arg(k) for k in range(len(dtypes))])

    return OrderedSpec(
        kind=more.pop("kind", "scan"),
        arrays=tuple(ArraySpec(t, slots, max(1, slots)) for t, slots in arrays),
        uniforms=(),
        state=tuple(state),
        leaves=tuple(leaves or [(t, 1) for t in state]),
        identity=more.pop("identity", None),
        f=same([t for t, slots in arrays for _ in range(max(1, slots))]),
        op=program(op, [*state, *state]),
        finish=same(state),
        **more,
    )


class Kernel:
    """A spec's compiled functions: as a scan's, its results' and reductions' aggregates must agree in every bit."""

    def __init__(self, spec: OrderedSpec, form: str = "", vector_bytes: int = 0, periodic: bool = False, streams: bool = False):
        self.spec = spec
        module = ir.Module(name="scan")
        vector_bytes = vector_bytes or llvm_engine.target().vector_bytes
        forced = mock.patch.object(llvm_scan_along, "_form", lambda *_: OF_FORM[form]) if form in OF_FORM else mock.MagicMock()
        with forced:
            if form == "abreast":
                llvm_scan_abreast.scan(module, spec, vector_bytes, streams)
            else:
                llvm_scan_along.build_scan(module, spec, vector_bytes, periodic=periodic, streams=streams)
            if not periodic:
                llvm_scan_along.build_reduce(module, spec, vector_bytes)
        self.compiled = llvm_engine.compile_ir(module, ["scan"] if periodic else ["scan", "reduce"])
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 7, ctypes.c_int64)
        self.code = kind(self.compiled.address["scan"])
        if not periodic:
            kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 5, ctypes.c_int64)
            self.reduction = kind(self.compiled.address["reduce"])

    def scan(
        self,
        arrays: Sequence[np.ndarray | None],
        outs: Arrays,
        n: int,
        *,
        cuts: Sequence[int] = (),
        flags: np.ndarray | None = None,
        prefix: Sequence[Any] | None = None,
        period: int = 0,
    ) -> tuple[np.ndarray, int]:
        """Calls scan on the ranges between ``cuts``; returns the aggregate's bytes and the progress."""
        aggregate, progress = self.state(), 0
        before = None if prefix is None else self.state(prefix)
        for lo, hi in itertools.pairwise([0, *cuts, n]):
            range_ = np.array([lo, hi, n, period, 1, 0, 1], np.int64)
            rest = (address(flags), range_.ctypes.data, address(before), aggregate.ctypes.data)
            progress = self.code(table(arrays), None, table(outs), *rest, progress)
        return aggregate, progress

    def reduce(
        self, arrays: Sequence[np.ndarray | None], n: int, cuts: Sequence[int] = (), flags: np.ndarray | None = None
    ) -> tuple[np.ndarray, int]:
        aggregate, progress = self.state(), 0
        for lo, hi in itertools.pairwise([0, *cuts, n]):
            range_ = np.array([lo, hi, n, 0, 1, 0, 1], np.int64)
            progress = self.reduction(table(arrays), None, address(flags), range_.ctypes.data, aggregate.ctypes.data, progress)
        return aggregate, progress

    def state(self, slots: Sequence[Any] = ()) -> np.ndarray:
        """A state in memory: 8 bytes for each slot."""
        memory = np.zeros(8 * len(self.spec.state) + 64, np.uint8)
        memory = memory[-memory.ctypes.data % 64 :][: 8 * len(self.spec.state)]
        for s, value in enumerate(slots):
            self.slot(memory, s)[0] = value
        return memory

    def slot(self, memory: np.ndarray, s: int) -> np.ndarray:
        t = self.spec.state[s]
        return memory[8 * s :][: P.itemsize(t)].view(P.numpy_dtype(t))


def aligned(n: int, dtype: np.dtype) -> np.ndarray:
    memory = np.zeros(n * dtype.itemsize + 64, np.uint8)
    return memory[-memory.ctypes.data % 64 :][: n * dtype.itemsize].view(dtype)


def address(a: np.ndarray | None) -> int | None:
    return None if a is None else a.ctypes.data


def table(arrays: Sequence[np.ndarray | None]) -> Any:
    return (ctypes.c_void_p * max(1, len(arrays)))(*map(address, arrays))


kernel = functools.cache(Kernel)


# --- operators, and scans element by element ---------------------------------------------------------------------------------


def affine(a: Any, b: Any, c: Any, d: Any) -> Any:
    return a * c, b * c + d


def product(k: int) -> Callable[..., Any]:
    """Of k x k matrices."""

    def op(*v: Any) -> Any:
        a, b = np.reshape(np.arange(k * k), (k, k)), k * k
        return tuple(
            functools.reduce(lambda x, y: x + y, [v[a[i, m]] * v[b + a[m, j]] for m in range(k)])
            for i in range(k)
            for j in range(k)
        )

    return op


def sums(*v: Any) -> Any:
    return tuple(a + b for a, b in zip(v[: len(v) // 2], v[len(v) // 2 :], strict=True))


def last_nonzero(a: Any, b: Any) -> Any:
    return jnp.where(b != 0, b, a)


def fold(op: Callable[..., Any], rows: Arrays, flags: np.ndarray, init: Sequence[Any] | None) -> list[np.ndarray]:
    """The inclusive scan in the rows' dtypes."""
    out, now = [np.empty_like(r) for r in rows], init
    with np.errstate(all="ignore"):
        for i in range(len(rows[0])):
            x = [r[i] for r in rows]
            joined = x if now is None or flags[i] else op(*now, *x)
            now = [r.dtype.type(v) for r, v in zip(rows, joined, strict=True)]
            for o, v in zip(out, now, strict=True):
                o[i] = v
    return out


def shifted(inclusive: Arrays, first: Sequence[Any], identity: Sequence[Any], flags: np.ndarray) -> list[np.ndarray]:
    """The exclusive scan."""
    out = []
    for w, x, e in zip(inclusive, first, identity, strict=True):
        out.append(np.concatenate([[w.dtype.type(x)], w[:-1]]))
        out[-1][flags] = e
    return out


LENGTHS = [*range(301), 511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049, 2300]
IDENTITIES = {1: [0], 2: [1, 0], 4: [1, 0, 0, 1], 9: [1, 0, 0, 0, 1, 0, 0, 0, 1]}
OPERATORS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[str]]] = {
    "affine s32": (affine, affine, ["s32"] * 2),
    "last non-zero": (last_nonzero, lambda a, b: [b if b else a], ["s8"]),
    "2x2 u16": (product(2), product(2), ["u16"] * 4),
    "3x3 s64": (product(3), product(3), ["s64"] * 9),
    "mixed": (lambda a, b, c, d: (a ^ c, b * d), lambda a, b, c, d: (a ^ c, b * d), ["b1", "s64"]),
}


def check(kernel_: Kernel, op: Callable[..., Any], exclusive: bool, lengths: Sequence[int], identity: Sequence[Any]) -> None:
    spec, n_max = kernel_.spec, max(lengths)
    rng = np.random.default_rng(n_max)
    rows = [rng.integers(0, 2 if t == "b1" else 100, n_max).astype(P.numpy_dtype(t)) for t in spec.state]
    init = [r.dtype.type(v) for r, v in zip(rows, rng.integers(0, 2, len(rows)), strict=True)]
    flags = (rng.random(n_max) < 0.05) & spec.restarts
    alone = fold(op, rows, flags, None)
    for prefix in (None, init):
        want = last = alone if prefix is None else fold(op, rows, flags, prefix)
        if exclusive:
            want = shifted(last, identity if prefix is None else init, identity, flags)
        for n in lengths:
            turn = slice(None, None, -1 if spec.reverse else 1)
            arrays = [np.ascontiguousarray(r[:n][turn]) for r in rows]
            bytes_ = np.ascontiguousarray(flags[:n][turn]).view(np.uint8)
            outs = [np.zeros(n, r.dtype) for r in rows]
            cuts = range(STEP, n, STEP) if n % 2 else ()
            aggregate, progress = kernel_.scan(arrays, outs, n, cuts=cuts, flags=bytes_, prefix=prefix)
            for o, w in zip(outs, want, strict=True):
                np.testing.assert_array_equal(o[turn], w[:n], f"{n} elements, prefix {prefix}")
            reduced = kernel_.reduce(arrays, n, flags=bytes_)
            assert progress == reduced[1] == (n > 0) + 2 * bool(flags[:n].any())
            np.testing.assert_array_equal(aggregate, reduced[0])
            if n:
                assert [kernel_.slot(aggregate, s)[0] for s in range(len(rows))] == [w[n - 1] for w in alone]


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_every_length(form: str, reverse: bool, exclusive: bool) -> None:
    """Every third length in each of the four modes, which have restarts where they have one of the other two."""
    op, reference, state = OPERATORS["affine s32"]
    spec = spec_of(op, state, identity=(1, 0), reverse=reverse, exclusive=exclusive, restarts=reverse != exclusive)
    lengths = LENGTHS[2 * reverse * (not exclusive) + exclusive :: 3]
    check(kernel(spec, form), reference, exclusive, lengths, IDENTITIES[2])


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("form", FORMS)
def test_operators(form: str, name: str) -> None:
    op, reference, state = OPERATORS[name]
    spec = spec_of(op, state, reverse=len(state) == 4, restarts=len(state) < 3)
    check(kernel(spec, form), reference, False, [0, 1, 2, 63, 64, 65, 130, 257, 1500], [])


@pytest.mark.parametrize("form", ["steps", "tile"])
@pytest.mark.parametrize("vector_bytes", [16, 32])
def test_narrower_vectors(vector_bytes: int, form: str) -> None:
    op, reference, state = OPERATORS["affine s32"]
    spec = spec_of(op, state, identity=(1, 0), reverse=True, exclusive=True, restarts=True)
    check(kernel(spec, form, vector_bytes), reference, True, LENGTHS[::7], IDENTITIES[2])


@pytest.mark.parametrize("dtype", P.DTYPES)
def test_sums_of_every_dtype(dtype: str) -> None:
    op = (lambda a, b: a | b) if dtype == "b1" else (lambda a, b: a + b)
    k = kernel(spec_of(op, [dtype]))
    for n in (1, 33, 700):
        x = np.random.default_rng(n).integers(0, 2, n).astype(P.numpy_dtype(dtype))
        want = np.logical_or.accumulate(x) if dtype == "b1" else np.cumsum(x.astype(np.int64)).astype(x.dtype)
        if dtype == "bf16":
            x, want = x[:200], want[:200]  # sums that bf16 holds
        out = np.zeros_like(x)
        k.scan([x], [out], len(x))
        np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("slots", [2, 3, 4, 7])
@pytest.mark.parametrize("form", FORMS)
def test_structs_in_memory(form: str, slots: int) -> None:
    """Arrays and leaves of structs; an operator that keeps the order."""
    dtype, reverse = "f64" if slots == 7 else "f32", slots in (3, 4)

    def op(*v: Any) -> Any:
        return (v[0] * v[slots], *(v[k] * v[slots] + v[slots + k] for k in range(1, slots)))

    spec = spec_of(op, [dtype] * slots, [(dtype, slots)], [(dtype, slots)], reverse=reverse)
    n, turn = 321, slice(None, None, -1 if reverse else 1)
    x = np.random.default_rng(slots).integers(-1, 2, (n, slots)).astype(P.numpy_dtype(dtype))
    out = np.zeros_like(x)
    kernel(spec, form).scan([x], [out], n)
    want = fold(op, list(np.ascontiguousarray(x[turn].T)), np.zeros(n, bool), None)
    np.testing.assert_array_equal(out[turn], np.stack(want, 1))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype, slots", [("s32", 2), ("s32", 4), ("s16", 8), ("s64", 4), ("b1", 4)])
def test_replicas(dtype: str, slots: int, reverse: bool) -> None:
    """One operator on each of a few scalars that lie side by side."""
    exclusive = reverse == (slots == 4)

    def op(*v: Any) -> Any:
        return tuple(jnp.where(b != 0, b, a) for a, b in zip(v[:slots], v[slots:], strict=True))

    memory = [(dtype, slots)]
    spec = spec_of(op, [dtype] * slots, memory, memory, identity=(0,) * slots, reverse=reverse, exclusive=exclusive)
    assert llvm_scan_along._form(spec, 64, False) is Replicas
    k, turn, n_max = kernel(spec), slice(None, None, -1 if reverse else 1), 1400
    rng = np.random.default_rng(slots)
    x = (rng.integers(1, 100, (n_max, slots)) * (rng.random((n_max, slots)) < 0.2)).astype(P.numpy_dtype(dtype))

    def reference(*v: Any) -> Any:
        return [b if b else a for a, b in zip(v[:slots], v[slots:], strict=True)]

    init = [x.dtype.type(7)] * slots
    nowhere = np.zeros(n_max, bool)
    for prefix in (None, init):
        want = last = fold(reference, list(x.T), nowhere, prefix)
        if exclusive:
            want = shifted(last, prefix or [0] * slots, [0] * slots, nowhere)
        for n in (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 500, 1024, 1025, 1400):
            mine, out = np.ascontiguousarray(x[:n][turn]), np.full((n, slots), 1, x.dtype)
            aggregate, progress = k.scan([mine], [out], n, cuts=range(STEP, n, STEP), prefix=prefix)
            np.testing.assert_array_equal(out[turn], np.stack([w[:n] for w in want], 1), f"{n} elements, prefix {prefix}")
            reduced = k.reduce([mine], n)
            assert progress == reduced[1]
            np.testing.assert_array_equal(aggregate, reduced[0])
            if n:
                alone = fold(reference, list(x[:n].T), nowhere, None)
                assert [k.slot(aggregate, s)[0] for s in range(slots)] == [w[-1] for w in alone]


SHORT = [*range(1, 20), 31, 32, 33, 63, 64, 65, 100, 256, 1000]
"""Lengths of short rows."""


def check_rows(
    k: Kernel, op: Callable[..., Any], identity: Sequence[Any], lengths: Sequence[int] = SHORT, reduces: bool = False
) -> None:
    """Rows one behind the other; ``reduces``: one result for each."""
    spec, rng = k.spec, np.random.default_rng(1)
    turn = slice(None, None, -1 if spec.reverse else 1)
    for period in lengths:
        rows = -(-1500 // period // 64) * 64 if spec.reverse else 1 + 1500 // period  # reversed, all end at a cache line
        n, starts = rows * period, np.arange(rows * period) % period == 0
        x = [rng.integers(0, 2 if t == "b1" else 100, n).astype(P.numpy_dtype(t)) for t in spec.state]
        flags = starts | ((rng.random(n) < 0.1) & spec.restarts)
        want = fold(op, x, flags, None)
        if spec.exclusive:
            want = shifted(want, identity, identity, flags)
        outs = [aligned(rows if reduces else n, a.dtype) for a in x]
        own = np.ascontiguousarray((flags & spec.restarts)[turn]).view(np.uint8)
        cuts = () if reduces else [rows // 128 * 64 * period]
        k.scan([np.ascontiguousarray(a[turn]) for a in x], outs, n, cuts=cuts, period=period, flags=own)
        for o, w in zip(outs, want, strict=True):
            np.testing.assert_array_equal(
                o if reduces else o[turn], w[period - 1 :: period] if reduces else w, f"rows of {period}"
            )


@pytest.mark.parametrize("reverse", [False, True])
def test_rows_one_element_after_the_other(reverse: bool) -> None:
    op, reference, state = OPERATORS["affine s32"]
    spec = spec_of(op, state, identity=(1, 0), reverse=reverse, exclusive=reverse)
    check_rows(kernel(spec, "sequential", periodic=True), reference, [1, 0])


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("name", OPERATORS)
def test_short_rows(name: str, vector_bytes: int) -> None:
    op, reference, state = OPERATORS[name]
    identity = IDENTITIES[len(state)]
    for mode in range(4) if vector_bytes == 64 else (vector_bytes // 16,):
        reverse, exclusive = mode in (1, 3), mode in (2, 3)
        spec = spec_of(op, state, identity=tuple(identity), reverse=reverse, exclusive=exclusive, restarts=mode in (1, 2))
        lengths = SHORT if mode == 0 else (1, 2, 5, 16, 33, 100)
        check_rows(Kernel(spec, "short", vector_bytes, True, streams=mode in (0, 3)), reference, identity, lengths)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("vector_bytes", [16, 64])
def test_short_rows_in_place(vector_bytes: int, reverse: bool) -> None:
    """What lies behind a row in a vector is the next row's, and not yet scanned."""
    k = Kernel(spec_of(sums, ["s32"], reverse=reverse), "short", vector_bytes, True)
    turn = slice(None, None, -1 if reverse else 1)
    for period in (2, 3, 5, 9, 17, 40):
        x = np.random.default_rng(period).integers(0, 100, (50, period)).astype(np.int32)
        y = x.copy()
        k.scan([y], [y], y.size, period=period)
        np.testing.assert_array_equal(y[:, turn], np.cumsum(x[:, turn], 1))


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("name", OPERATORS)
def test_rows_abreast(name: str, vector_bytes: int) -> None:
    op, reference, state = OPERATORS[name]
    identity = IDENTITIES[len(state)]
    for mode in range(4) if vector_bytes == 64 else (vector_bytes // 16,):
        reverse, exclusive = mode in (1, 3), mode in (2, 3)
        spec = spec_of(op, state, identity=tuple(identity), reverse=reverse, exclusive=exclusive, restarts=mode in (1, 2))
        lengths = SHORT if mode == 0 else (1, 2, 5, 16, 33, 100)
        check_rows(Kernel(spec, "abreast", vector_bytes, True, streams=mode == 0), reference, identity, lengths)
    k = Kernel(spec_of(op, state, kind="reduce", identity=tuple(identity)), "abreast", vector_bytes, True)
    check_rows(k, reference, identity, SHORT if vector_bytes == 64 else (1, 3, 16, 40), reduces=True)


def test_rows_of_structs_abreast() -> None:
    """Structs of several scalars; operators that are long, or that need not end on what nobody gave."""
    op, reference, state = OPERATORS["2x2 u16"]
    slots, rng = len(state), np.random.default_rng(0)
    for kind in ("scan", "reduce"):
        k = kernel(spec_of(op, state, [("u16", 4)], [("u16", 4)], kind=kind, identity=(1, 0, 0, 1)), "abreast", periodic=True)
        for period, rows in ((1, 70), (3, 21), (5, 3), (16, 40), (37, 65)):
            x = rng.integers(0, 9, (rows * period, slots)).astype(np.uint16)
            want = np.stack(fold(reference, list(x.T), np.arange(len(x)) % period == 0, None), 1)
            want = want if kind == "scan" else want[period - 1 :: period]
            out = np.zeros_like(want)
            k.scan([x], [out], len(x), period=period)
            np.testing.assert_array_equal(out, want)

    def gcd(a: Any, b: Any) -> Any:
        return jax.lax.while_loop(lambda p: p[1] != 0, lambda p: (p[1], p[0] % p[1]), (a, b))[0]

    x = rng.integers(1, 1000, 33 * 7).astype(np.int32) * 6
    out = np.zeros_like(x)
    kernel(spec_of(gcd, ["s32"]), "abreast", periodic=True).scan([x], [out], len(x), period=7)
    np.testing.assert_array_equal(out, np.gcd.accumulate(x.reshape(33, 7), 1).ravel())


@pytest.mark.parametrize("form", ["short", "abreast"])
@pytest.mark.parametrize("dtype", ["b1", "u8", "bf16", "f32", "f64"])
def test_rows_touch_their_elements_alone(dtype: str, form: str) -> None:
    guards = [Guarded() for _ in range(3)]
    t = P.numpy_dtype(dtype)
    for slots, kind in itertools.product((1, 3), ("scan", "reduce") if form == "abreast" else ("scan",)):
        spec = spec_of(
            sums, [dtype] * slots, [(dtype, slots)], [(dtype, slots)], kind=kind, restarts=kind == "scan", reverse=slots == 3
        )
        k = kernel(spec, form, periodic=True)
        for rows, period, at_end in itertools.product((1, 5, 17), (1, 3, 16, 20), (False, True)):
            n = rows * period
            x = guards[0].place((np.arange(n * slots) % 2).astype(t), at_end)
            out = guards[1].place(np.zeros((n if kind == "scan" else rows) * slots, t), at_end)
            k.scan([x], [out], n, flags=guards[2].place(np.ones(n, np.uint8), at_end), period=period)
            if kind == "scan":
                np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("form", OF_ROWS)
def test_equal_rows_have_equal_results(form: str) -> None:
    k = kernel(spec_of(jnp.logaddexp, ["f32"]), form, periodic=True)
    for period in (3, 10, 20, 37, 64):
        row = np.random.default_rng(0).normal(size=period).astype(np.float32)
        out = np.zeros((1000, period), np.float32)
        k.scan([np.tile(row, 1000)], [out], out.size, period=period)
        assert len(np.unique(out.view(np.uint32), axis=0)) == 1


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("form", [*OF_FORM, "abreast"])
def test_positions(form: str, reverse: bool) -> None:
    """The place of the last element so far that is not zero."""
    position = "s64" if reverse == (form == "tile") else "s32"
    spec = spec_of(
        lambda a, i, b, j: (jnp.where(b != 0, b, a), jnp.where(b != 0, j, i)),
        ["f32", position],
        [("f32", 1), (position, 0)],
        reverse=reverse,
    )
    turn = slice(None, None, -1 if reverse else 1)
    for period, rows in ((0, 1), (1, 50), (5, 41), (24, 20), (77, 9)):
        n = period * rows or 333
        if form not in (OF_ROWS if period else FORMS):
            continue
        x = np.where(np.random.default_rng(n).random(n) < 0.3, 2.0, 0.0).astype(np.float32)
        outs = [np.zeros(n, np.float32), np.zeros(n, P.numpy_dtype(position))]
        kernel(spec, form, periodic=period > 0).scan([x, None], outs, n, period=period)
        for row in range(rows):
            part = slice(row * period, (row + 1) * period) if period else slice(0, n)
            mine, want, now = x[part], [], None
            for i in range(len(mine))[turn]:
                now = i if now is None or mine[i] else now
                want.append(now)
            np.testing.assert_array_equal(outs[1][part][turn], want)


class Guarded:
    """Arrays that end where a page begins that nobody may touch, or begin where one ends."""

    def __init__(self) -> None:
        self.page = mmap.PAGESIZE
        self.map = mmap.mmap(-1, 6 * self.page)
        self.base = np.frombuffer(self.map, np.uint8)
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for at in (0, 5):
            assert protect(ctypes.c_void_p(self.base.ctypes.data + at * self.page), ctypes.c_size_t(self.page), 0) == 0

    def place(self, a: np.ndarray, at_end: bool) -> np.ndarray:
        first = 5 * self.page - a.nbytes if at_end else self.page
        mine = self.base[first : first + a.nbytes].view(a.dtype)
        mine[:] = a
        return mine


@pytest.mark.parametrize("dtype", ["u8", "f64"])
@pytest.mark.parametrize("form", FORMS)
def test_touches_its_elements_alone(form: str, dtype: str) -> None:
    guards = [Guarded() for _ in range(3)]
    for slots in (1, 6):
        state, reverse = [dtype] * slots, (slots == 6) == (dtype == "u8")
        k = kernel(spec_of(sums, state, [(dtype, slots)], [(dtype, slots)], reverse=reverse, restarts=True), form)
        for n, at_end in itertools.product((1, 5, 16, 63, 64, 65, 100), (False, True)):
            x = guards[0].place(np.arange(n * slots).astype(P.numpy_dtype(dtype)), at_end)
            out = guards[1].place(np.zeros(n * slots, P.numpy_dtype(dtype)), at_end)
            k.scan([x], [out], n, flags=guards[2].place(np.ones(n, np.uint8), at_end))
            np.testing.assert_array_equal(out, x)
            k.reduce([x], n, flags=guards[2].place(np.ones(n, np.uint8), at_end))


@pytest.mark.parametrize("form", FORMS)
def test_neighbours_and_alignment(form: str) -> None:
    """Nothing is written outside of the range; places need no alignment beyond a scalar's."""
    k = kernel(spec_of(affine, ["s32"] * 2, [("s32", 2)], [("s32", 2)]), form)
    for offset in range(5):
        x = np.random.default_rng(0).integers(0, 9, 5000).astype(np.int32)[offset:]
        out = np.full(5000, -7, np.int32)
        n, outs = 1500, out[offset + 3 :]
        k.scan([x], [outs], n, cuts=[STEP])
        assert (out[: offset + 3] == -7).all() and (outs[2 * n :] == -7).all()
        pairs = x[: 2 * n].reshape(n, 2)
        want = fold(affine, list(np.ascontiguousarray(pairs.T)), np.zeros(n, bool), None)
        np.testing.assert_array_equal(outs[: 2 * n].reshape(n, 2), np.stack(want, 1))


@pytest.mark.parametrize("form", FORMS)
def test_streams(form: str) -> None:
    k = kernel(spec_of(lambda a, b: a + b, ["s32"]), form, streams=True)
    memory = np.zeros(8000 + 64, np.uint8)
    out = memory[-memory.ctypes.data % 64 :][:8000].view(np.int32)
    x = np.arange(2000, dtype=np.int32)
    k.scan([x], [out], 2000, cuts=[STEP])
    np.testing.assert_array_equal(out, np.cumsum(x))


@pytest.mark.parametrize("dtype, reverse", [("f32", False), ("f64", True)])
def test_logaddexp(dtype: str, reverse: bool) -> None:
    spec = spec_of(jnp.logaddexp, [dtype], reverse=reverse)
    assert llvm_scan_along._form(spec, llvm_engine.target().vector_bytes, False) is LogAddExp
    k, n, t = kernel(spec), 2500, P.numpy_dtype(dtype)
    rng, turn = np.random.default_rng(0), slice(None, None, -1 if reverse else 1)
    normal = rng.normal(size=n)
    cases = {
        "near": normal,
        "wide": 200 * normal,
        "rising": np.linspace(0, 3000, n),
        "falling": np.linspace(3000, 0, n),
        "some -inf": np.where(rng.random(n) < 0.3, -np.inf, normal),
        "all -inf": np.full(n, -np.inf),
        "NaN": np.where(np.arange(n) == 1300, np.nan, normal),
        "inf": np.where(np.arange(n) == 1100, np.inf, normal),
    }
    for name, values in cases.items():
        x = values.astype(t)
        for prefix in (None, [-200.0], [0.5], [300.0], [-np.inf]):
            for m in (1, 2, 17, 255, 1025, n):
                row = x[:m][turn].copy()
                with np.errstate(invalid="ignore"):
                    exact = np.logaddexp.accumulate(np.concatenate([prefix or [], x[:m].astype(np.float64)]))[-m:]
                out, cut = np.zeros(m, t), np.zeros(m, t)
                aggregate = k.scan([row], [out], m, prefix=prefix)
                also = k.scan([row], [cut], m, prefix=prefix, cuts=range(STEP, m, STEP))
                np.testing.assert_array_equal(out.view(np.uint8), cut.view(np.uint8))
                for other in (also, k.reduce([row], m)):
                    assert aggregate[1] == other[1]
                    np.testing.assert_array_equal(aggregate[0], other[0])
                eps = 30 * np.finfo(t).eps
                np.testing.assert_allclose(out[turn], exact, rtol=eps, atol=eps, err_msg=f"{name}, {prefix}, {m}")


def test_forms_chosen() -> None:
    def form(op: Callable[..., Any], state: Sequence[str], **more: Any) -> type:
        return llvm_scan_along._form(spec_of(op, state, **more), 64, False)

    assert form(lambda a, b: a + b, ["f32"]) is LogSteps
    assert form(product(2), ["f32"] * 4) is LogSteps
    assert form(product(3), ["f32"] * 9) is Sequential
    assert form(jnp.logaddexp, ["f32"], restarts=True) is Tile
    assert form(lambda a, b: jnp.sin(a) + b, ["f64"]) is Tile
