"""Scan kernels whose vectors run along the row, called through ctypes as the C++ drivers call them."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_calls import Fenced, affine, matmul, spec_of, sums
from scan_calls import FORMS, IDENTITIES, OPERATORS, STEP, Kernel, fold, kernel, shifted

import jaxprims as jp
from jaxprims.ir import program as P
from jaxprims.targets.cpu.llvm import engine as llvm_engine
from jaxprims.targets.cpu.llvm import structs
from jaxprims.targets.cpu.ordered import scan_along as llvm_scan_along
from jaxprims.targets.cpu.ordered.scan_log_steps import LogSteps
from jaxprims.targets.cpu.ordered.scan_logaddexp import LogAddExp
from jaxprims.targets.cpu.ordered.scan_replicas import Replicas
from jaxprims.targets.cpu.ordered.scan_sequential import Sequential
from jaxprims.targets.cpu.ordered.scan_tiles import Tile

LENGTHS = [*range(301), 511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049, 2300]


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


@pytest.mark.cover(6)
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_every_length(form: str, reverse: bool, exclusive: bool) -> None:
    """Every third length in each of the four modes, which have restarts where they have one of the other two."""
    op, reference, state = OPERATORS["affine s32"]
    spec = spec_of(op, state, identity=(1, 0), reverse=reverse, exclusive=exclusive, restarts=reverse != exclusive)
    lengths = LENGTHS[2 * reverse * (not exclusive) + exclusive :: 3]
    check(kernel(spec, form), reference, exclusive, lengths, IDENTITIES[2])


@pytest.mark.cover(5)
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


@pytest.mark.cover(8)
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


@pytest.mark.cover(8)
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


@pytest.mark.cover(4)
@pytest.mark.parametrize("slots", [7, 8, 12, 15, 17])
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_structs_of_bytes(monkeypatch: pytest.MonkeyPatch, vector_bytes: int, slots: int) -> None:
    """In pieces of 8 or 16, or by shuffles, as the processor permutes the bytes of a vector or does not."""
    monkeypatch.setattr(structs, "target", lambda: types.SimpleNamespace(vector_bytes=vector_bytes))
    op = lambda *v: tuple(v[k] + v[slots + k] for k in range(slots))  # noqa: E731
    spec = spec_of(op, ["u8"] * slots, [("u8", slots)], [("u8", slots)], reverse=slots % 2 == 0)
    turn = slice(None, None, -1 if slots % 2 == 0 else 1)
    for n in (1, 50, 321):
        x = np.random.default_rng(slots).integers(0, 256, (n, slots)).astype(np.uint8)
        out = np.zeros_like(x)
        kernel(spec, "tile", min(32, vector_bytes)).scan([x], [out], n)
        np.testing.assert_array_equal(out[turn], np.cumsum(x[turn], 0, dtype=np.uint8))


@pytest.mark.cover(5)
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


@pytest.mark.parametrize(
    "columns, dtype", [(2, "float64"), (4, "float64"), (2, "float32"), (8, "float32"), (8, "float16"), (4, "int8")]
)
def test_extremes_of_columns_are_replicas(columns: int, dtype: str, x64: None) -> None:
    """Those of floats too, which kernels keep as integers of the same order."""
    rng = np.random.default_rng(columns)
    x = rng.integers(-100, 100, (2000, columns)).astype(jnp.dtype(dtype))
    if dtype != "int8":
        x[rng.integers(0, 2000, 9), 0] = np.nan
        x[:700, 1] = rng.choice([-0.0, 0.0], 700)
    call = lambda x: jp.scan(x, jnp.maximum)  # noqa: E731
    spec = jp.explain(call)(x).calls[0].spec
    assert llvm_scan_along._form(spec, 64, False) is Replicas
    got, wanted = np.asarray(jax.jit(call)(x)), np.maximum.accumulate(x)
    np.testing.assert_array_equal(got, wanted)
    numbers = ~np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(np.asarray(jax.lax.cummax(x)))[numbers])


@pytest.mark.cover(2)
@pytest.mark.parametrize("dtype", ["u8", "f64"])
@pytest.mark.parametrize("form", FORMS)
def test_touches_its_elements_alone(form: str, dtype: str) -> None:
    fence = Fenced()
    for slots in (1, 6):
        state, reverse = [dtype] * slots, (slots == 6) == (dtype == "u8")
        k = kernel(spec_of(sums, state, [(dtype, slots)], [(dtype, slots)], reverse=reverse, restarts=True), form)
        for n, at_end in itertools.product((1, 5, 16, 63, 64, 65, 100), (False, True)):
            x = fence.like(np.arange(n * slots).astype(P.numpy_dtype(dtype)), at_end)
            out = fence.like(np.zeros(n * slots, P.numpy_dtype(dtype)), at_end)
            k.scan([x], [out], n, flags=fence.like(np.ones(n, np.uint8), at_end))
            np.testing.assert_array_equal(out, x)
            k.reduce([x], n, flags=fence.like(np.ones(n, np.uint8), at_end))


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
    assert form(matmul(2), ["f32"] * 4) is LogSteps
    assert form(matmul(3), ["f32"] * 9) is Sequential
    assert form(jnp.logaddexp, ["f32"], restarts=True) is Tile
    assert form(lambda a, b: jnp.sin(a) + b, ["f64"]) is Tile
