"""The expression table against XLA on the CPU: every operation on every dtype it applies to, scalar and at several widths."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.special
from expressions import (
    FLOATS,
    MATH,
    X86,
    N,
    arithmetic,
    assert_math,
    assert_same,
    call,
    compare_all,
    compile_all,
    hostile,
    in_domain,
    one,
    operands_of,
    result_of,
    widths,
    xla_arithmetic,
    xla_convert,
)

from jaxprims.ir import program as P
from jaxprims.targets.cpu.llvm import engine as llvm_engine


def run_all(programs: dict[str, P.Program], inputs: dict[str, list[np.ndarray]], width: int) -> dict[str, np.ndarray]:
    compiled = compile_all(programs, width)
    return {name: call(compiled, name, program, inputs[name])[0] for name, program in programs.items()}


@pytest.mark.cover(2)
@pytest.mark.parametrize("dtype", P.DTYPES)
def test_arithmetic(dtype: str) -> None:
    functions, want = arithmetic(dtype), xla_arithmetic(dtype)
    x, y = hostile(dtype, 0), hostile(dtype, 1)
    inputs = {op: [x, y][: operands_of(op)] for op in functions}
    programs = {op: one(op, result_of(op, dtype), *[dtype] * operands_of(op)) for op in functions}
    for name, width in widths(dtype).items():
        got = run_all(programs, inputs, width)
        for op in functions:
            assert_same(got[op], want[op], f"{op} {dtype} {name}", inputs[op])


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "sqrt"])
def test_not_a_number_of_any_bits_stays_one(op: str) -> None:
    """Rounding adds to a bf16's bits: of a NaN, all ones or not, of either sign, it must not make a number."""
    x = np.arange(2**16).astype(np.uint16).view(P.numpy_dtype("bf16"))
    x[np.abs(x.astype(np.float32)) < 2.0**-126] = 0  # denormals, which are flushed
    y = np.random.default_rng(0).permutation(x)
    with np.errstate(all="ignore"):
        wide = [a.astype(np.float32) for a in (x, y)][: operands_of(op)]
        want = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt}[op](*wide)
    for width in widths("bf16").values():
        got = run_all({op: one(op, "bf16", *["bf16"] * operands_of(op))}, {op: [x, y][: operands_of(op)]}, width)[op]
        np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), np.isnan(want))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_remainder(dtype: str) -> None:
    """To the bit: products and their neighbours, quotients of any size, and what ends in denormals."""
    t, rng, n = P.numpy_dtype(dtype), np.random.default_rng(0), 4000
    info = np.finfo(t)
    special = [0, -0.0, 1, -1, 3, np.inf, -np.inf, np.nan, info.tiny, -3 * info.tiny, info.max, 1 + info.eps, 1 - info.epsneg]
    special += [2.0 ** (info.nmant + k) * s for k in range(-2, 3) for s in (1, info.tiny, 1.5 * info.tiny)]
    pairs = np.array([(x, y) for x in special for y in special], t)
    y = (rng.normal(size=n) * 2.0 ** rng.uniform(info.minexp + 2, info.maxexp - 70, n)).astype(t)
    product = (y * np.round(2.0 ** rng.uniform(0, info.nmant + 3, n))).astype(t)
    of_any_size = (y * 2.0 ** rng.uniform(-3, 70, n)).astype(t)
    near = [np.nextafter(product, t.type(end)) for end in (0, np.inf)]
    x, y = np.concatenate([pairs[:, 0], product, *near, of_any_size]), np.concatenate([pairs[:, 1], y, y, y, y])
    with np.errstate(all="ignore"):
        want = np.fmod(x, y)
    kept = ~((np.abs(x) < info.tiny) & (x != 0)) & ~((np.abs(want) < info.tiny) & (want != 0))
    x, y, want = (np.resize(a[kept], 18432) for a in (x, y, want))  # whole vectors
    program = one("rem", dtype, dtype, dtype)
    for name, width in widths(dtype).items():
        for order in (slice(None), slice(None, None, -1), rng.permutation(len(x))):
            args = [np.ascontiguousarray(x[order]), np.ascontiguousarray(y[order])]
            assert_same(run_all({"rem": program}, {"rem": args}, width)["rem"], want[order].copy(), f"rem {dtype} {name}", args)


def _extreme(op: str, *cells: np.ndarray) -> np.ndarray:
    t = np.dtype(f"i{cells[0].itemsize}")
    words = np.stack([np.broadcast_to(c, cells[0].shape) for c in cells]).view(t)
    ordered = np.where(words < 0, words ^ np.iinfo(t).max, words)  # by bits, so that -0 is less than 0
    best = ordered.max(0) if op == "max" else ordered.min(0)
    best = np.where(best < 0, best ^ np.iinfo(t).max, best).view(cells[0].dtype)
    return np.where(np.isnan(np.stack(np.broadcast_arrays(*cells))).any(0), np.nan, best).astype(best.dtype)


@pytest.mark.parametrize("op", ["max", "min"])
def test_several_at_once(op: str) -> None:
    """Maxima and minima of several floats, which are looked after together: any order of NaN, infinities and zeros."""
    fold = functools.partial(_extreme, op)
    for dtype in ("f32", "f64", "f16"):
        cells = [hostile(dtype, k) for k in range(4)]
        for c in cells:
            c[np.abs(c) < np.finfo(c.dtype).smallest_normal] *= 0
        b = P.Builder((dtype,) * 4)
        w, x, y, z = (b.arg(k) for k in range(4))
        of = functools.partial(b.emit, op, dtype)
        zero, minus = b.const(0, dtype), b.const(-0.0, dtype)
        inner = of(w, x)  # wanted twice: it is no part of a larger one
        results = [of(of(w, x), of(y, z)), of(of(of(z, w), y), zero), of(of(inner, y), z), of(of(minus, x), of(y, x)), inner]
        program = b.finish(results)
        w, x, y, z = cells
        zero, minus = np.zeros_like(w), -np.zeros_like(w)
        compare_all(program, cells, [fold(w, x, y, z), fold(z, w, y, zero), fold(w, x, y, z), fold(minus, x, y), fold(w, x)])


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
def test_extremes_beside_a_known_number(op: str, dtype: str) -> None:
    """To the bit, NaN and the signs of zeros included, on either side."""
    x = hostile(dtype, 0)
    x[np.abs(x) < np.finfo(x.dtype).smallest_normal] *= 0
    numbers = [0, -0.0, 1.5, -2, np.inf, -np.inf, np.nan]
    b = P.Builder((dtype,))
    v, bounds = b.arg(0), [b.const(number, dtype) for number in numbers]
    program = b.finish([b.emit(op, dtype, *pair) for bound in bounds for pair in ((v, bound), (bound, v))])
    want = [_extreme(op, x, np.full_like(x, number)) for number in numbers for _ in range(2)]
    compare_all(program, [x], want)


@pytest.mark.cover(3)
@pytest.mark.parametrize("source", P.DTYPES)
def test_convert(source: str) -> None:
    x, want = hostile(source, 0), xla_convert(source)
    programs = {dtype: one("convert", dtype, source) for dtype in P.DTYPES}
    for name, width in widths(source).items():
        got = run_all(programs, {key: [x] for key in programs}, width)
        for dtype in P.DTYPES:
            assert_same(got[dtype], want[dtype], f"{source} to {dtype} {name}", [x])


@pytest.mark.cover(1)
@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v2", "x86-64-v3"] if X86 else [])
def test_lesser_machines(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of 16 and 32 bytes, and f16 without the hardware's help."""
    host = llvm_engine.target()
    monkeypatch.setenv("JAXPRIMS_TARGET_CPU", cpu)
    monkeypatch.setattr("expressions.WIDTHS", ["machine"])
    assert llvm_engine.target() != host
    if llvm_engine.target().vector_bytes <= host.vector_bytes:
        test_convert("f16")
        test_convert("f32")
        test_arithmetic("f32")
        test_arithmetic("s32")
        test_several_at_once("max")
        test_math("f32")


@pytest.mark.cover(2)
@pytest.mark.parametrize("dtype", FLOATS)
def test_math(dtype: str) -> None:
    inputs = {op: [in_domain(dtype, k) for k in range(operands_of(op))] for op in MATH}
    programs = {op: one(op, dtype, *[dtype] * operands_of(op)) for op in MATH}
    for name, width in widths(dtype).items():
        got = run_all(programs, inputs, width)
        for op in MATH:
            assert_math(op, dtype, got[op], name)


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_turns_of_far_numbers(op: str) -> None:
    """Right to 4 ULP near their zeros and however far, and to the bit whatever lies beside."""
    rng = np.random.default_rng(0)
    far = [rng.uniform(-m, m, 1000) for m in (1, 9999, 10001, 1e5, 1e9, 1e12, 2e12, 1e30, 3e38)]
    zeros = np.arange(-2000, 2000) * rng.integers(1, 10**6, 4000) * np.pi / 2
    special = [0, -0.0, 1e4, -1e4, np.nextafter(np.float32(1e4), np.float32(np.inf)), 2.0**40, np.inf, -np.inf, np.nan]
    x = np.resize(np.concatenate([*far, zeros, special]).astype(np.float32), 13056)
    rng.shuffle(x)
    with np.errstate(invalid="ignore"):
        want = getattr(np, op)(x.astype(np.longdouble))
    program = one(op, "f32", "f32")
    for width in widths("f32").values():
        got = run_all({op: program}, {op: [x]}, width)[op]
        with np.errstate(invalid="ignore"):
            assert np.nanmax(np.abs(got - want) / np.spacing(np.abs(want).astype(np.float32))) < 4
        assert (np.isnan(got) == ~np.isfinite(x)).all()
        order = np.argsort(np.abs(x), kind="stable")
        assert_same(run_all({op: program}, {op: [x[order]]}, width)[op], got[order], op, [x[order]])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_powers_of_any_numbers(dtype: str) -> None:
    """Zeros, signs and infinities are IEEE's; to the bit whatever lies beside."""
    rng, t = np.random.default_rng(0), P.numpy_dtype(dtype)
    special = [0, 1, 2, 0.5, 3, 4, 2.5, 7, 1 / 3, 1e10, 1e-10, 1e30, 1e-30, np.inf, 2.0**24 + 2, 2.0**23 + 1]
    special = [np.nan, *special, *(-v for v in special)]
    pairs = np.array([(a, b) for a in special for b in special])
    x, y = (np.concatenate([p, rng.normal(size=1000) * 3, rng.normal(size=1000) * 3]) for p in pairs.T)
    y[-1000:] = rng.integers(-9, 10, 1000)
    x, y = np.resize(x, 3104).astype(t), np.resize(y, 3104).astype(t)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.longdouble), y).astype(t)
    want[np.abs(want) < np.finfo(t).tiny] *= 0
    program = one("pow", dtype, dtype, dtype)
    for width in widths(dtype).values():
        got = run_all({"pow": program}, {"pow": [x, y]}, width)["pow"]
        got[np.abs(got) < np.finfo(t).tiny] *= 0
        np.testing.assert_array_max_ulp(got, want, 4, t)
        assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()
        order = rng.permutation(len(x))
        again = run_all({"pow": program}, {"pow": [x[order], y[order]]}, width)["pow"]
        again[np.abs(again) < np.finfo(t).tiny] *= 0
        assert_same(again, got[order], "pow", [x[order], y[order]])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_complements_of_far_numbers(dtype: str) -> None:
    x = np.concatenate([np.linspace(-40, 40, 1017), [0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30]]).astype(P.numpy_dtype(dtype))
    want = scipy.special.erfc(x.astype(np.float64))
    for width in widths(dtype).values():
        got = run_all({"erfc": one("erfc", dtype, dtype)}, {"erfc": [x]}, width)["erfc"]
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2 * np.finfo(x.dtype).tiny)


@pytest.mark.cover(1)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("cpu", ["", *(["x86-64", "x86-64-v3"] if X86 else [])])
def test_scalars_and_lanes_have_the_same_bits(cpu: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row's maximum and what equals it are equal under any function, whether a kernel has them as scalars or as lanes."""
    host = llvm_engine.target()
    monkeypatch.setenv("JAXPRIMS_TARGET_CPU", cpu)
    if llvm_engine.target().vector_bytes > host.vector_bytes:
        pytest.skip("not this machine's")
    args = [in_domain(dtype, 0), in_domain(dtype, 1)]
    inputs = {op: args[: operands_of(op)] for op in MATH}
    programs = {op: one(op, dtype, *[dtype] * operands_of(op)) for op in MATH}
    scalar, *others = (run_all(programs, inputs, width) for width in sorted({1, 2, 4, 8, 16, 32, *widths(dtype).values()}))
    for op in MATH:
        for lanes in others:
            assert_same(lanes[op], scalar[op], op, inputs[op])


def test_constants_select_and_bitcast() -> None:
    b = P.Builder(("f32", "b1", "f16"))
    x, p, h = (b.arg(k) for k in range(3))
    chosen = b.emit("select", "f32", p, x, b.const(-np.inf, "f32"))
    constants = [b.const(v, d) for v, d in ((1, "b1"), (-7, "s8"), (250, "u8"), (1.1, "bf16"), (1.1, "f16"), (np.nan, "f64"))]
    both = b.emit("select", "f32", b.const(True, "b1"), x, chosen)  # a uniform choice of lanes that vary
    casts = [b.emit("bitcast", "s32", x), b.emit("bitcast", "u16", h), b.emit("bitcast", "bf16", b.emit("bitcast", "s16", h))]
    program = b.finish([chosen, *constants, both, *casts])
    x, p, h = hostile("f32", 0), hostile("b1", 0), hostile("f16", 1)
    h[np.isnan(h)] = 1
    want = [np.where(p, x, np.float32(-np.inf))]
    want += [np.full(N, P.from_bits(program.body[r].attr, program.body[r].dtype)) for r in program.results[1:7]]
    want += [x, x.view(np.int32), h.view(np.uint16), h.view(P.numpy_dtype("bf16"))]
    compare_all(program, [x, p, h], want)
