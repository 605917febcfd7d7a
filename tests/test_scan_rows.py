"""Scan kernels of short rows that lie one behind the other, called as the C++ drivers call them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_calls import Fenced, spec_of, sums
from llvmlite import ir
from scan_calls import FORMS, IDENTITIES, OF_FORM, OF_ROWS, OPERATORS, Kernel, fold, kernel, shifted

from jaxprims.ir import program as P
from jaxprims.targets.cpu.llvm.vectors import MOST_SHUFFLED
from jaxprims.targets.cpu.ordered import scan_along
from jaxprims.targets.cpu.ordered.scan_log_steps import LogSteps
from jaxprims.targets.cpu.ordered.scan_short_rows import ShortRows


def aligned(n: int, dtype: np.dtype) -> np.ndarray:
    memory = np.zeros(n * dtype.itemsize + 64, np.uint8)
    return memory[-memory.ctypes.data % 64 :][: n * dtype.itemsize].view(dtype)


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


def check_modes(name: str, order: str, vector_bytes: int, streams: tuple[int, ...] = ()) -> None:
    """Forwards and back, inclusive and exclusive, restarting and not; of narrow vectors one of these."""
    op, reference, state = OPERATORS[name]
    identity = IDENTITIES[len(state)]
    for mode in range(4) if vector_bytes == 64 else (vector_bytes // 16,):
        reverse, exclusive = mode in (1, 3), mode in (2, 3)
        spec = spec_of(op, state, identity=tuple(identity), reverse=reverse, exclusive=exclusive, restarts=mode in (1, 2))
        lengths = SHORT if mode == 0 else (1, 2, 5, 16, 33, 100)
        check_rows(Kernel(spec, order, vector_bytes, True, streams=mode in streams), reference, identity, lengths)


@pytest.mark.cover(2)
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("name", OPERATORS)
def test_short_rows(name: str, vector_bytes: int) -> None:
    check_modes(name, "short", vector_bytes, streams=(0, 3))


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


@pytest.mark.cover(2)
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("name", OPERATORS)
def test_rows_abreast(name: str, vector_bytes: int) -> None:
    check_modes(name, "abreast", vector_bytes)
    op, reference, state = OPERATORS[name]
    identity = IDENTITIES[len(state)]
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


@pytest.mark.cover(1)
@pytest.mark.parametrize("form", ["short", "abreast"])
@pytest.mark.parametrize("dtype", ["b1", "u8", "bf16", "f32", "f64"])
def test_rows_touch_their_elements_alone(dtype: str, form: str) -> None:
    fence = Fenced()
    t = P.numpy_dtype(dtype)
    for slots, kind in itertools.product((1, 3), ("scan", "reduce") if form == "abreast" else ("scan",)):
        spec = spec_of(
            sums, [dtype] * slots, [(dtype, slots)], [(dtype, slots)], kind=kind, restarts=kind == "scan", reverse=slots == 3
        )
        k = kernel(spec, form, periodic=True)
        for rows, period, at_end in itertools.product((1, 5, 17), (1, 3, 16, 20), (False, True)):
            n = rows * period
            x = fence.like((np.arange(n * slots) % 2).astype(t), at_end)
            out = fence.like(np.zeros((n if kind == "scan" else rows) * slots, t), at_end)
            k.scan([x], [out], n, flags=fence.like(np.ones(n, np.uint8), at_end), period=period)
            if kind == "scan":
                np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_few_structs_of_bytes_are_taken_apart_at_once(vector_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM takes seconds over the shuffles of many."""
    for slots, form in itertools.product((3, 4, 7), (ShortRows, LogSteps)):
        monkeypatch.setattr(scan_along, "_form", lambda *_, form=form: form)
        module, leaves = ir.Module(), [("u8", slots)]
        scan_along.scan(module, spec_of(sums, ["u8"] * slots, leaves, leaves), vector_bytes, periodic=form is ShortRows)
        assert max(int(n) for n in re.findall(r"<(\d+) x i8>", str(module))) <= MOST_SHUFFLED


def test_lanes_of_masks_are_not_taken_out_one_by_one() -> None:
    """As those of masks that are kept from vector to vector would be, which takes as long as the scan."""
    code = kernel(spec_of(jnp.maximum, ["f32"]), "short", periodic=True).compiled.assembly()
    assert "pextrb" not in code


@pytest.mark.parametrize("form", OF_ROWS)
def test_equal_rows_have_equal_results(form: str) -> None:
    k = kernel(spec_of(jnp.logaddexp, ["f32"]), form, periodic=True)
    for period in (3, 10, 20, 37, 64):
        row = np.random.default_rng(0).normal(size=period).astype(np.float32)
        out = np.zeros((1000, period), np.float32)
        k.scan([np.tile(row, 1000)], [out], out.size, period=period)
        assert len(np.unique(out.view(np.uint32), axis=0)) == 1


@pytest.mark.cover(7)
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
