"""The expression table against XLA on the CPU: every operation on every dtype it applies to, scalar and at several widths."""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import math
import operator
import platform
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
import scipy.special
from jax import lax
from llvmlite import ir

from jaxprims.ir import program as P
from jaxprims.targets.cpu.llvm import engine as llvm_engine
from jaxprims.targets.cpu.llvm import expr as llvm_expr

X86 = platform.machine() == "x86_64"
INTEGERS = [d for d in P.DTYPES if d[0] in "su"]
FLOATS = [d for d in P.DTYPES if P.is_float(d)]
WIDTHS = ["scalar", "machine", "half", "twice"]


def widths(dtype: str) -> dict[str, int]:
    """Scalars, and vectors as long as the machine's; for every third dtype half as long ones too, for others double ones."""
    machine = llvm_engine.target().vector_bytes // max(4, P.itemsize(dtype))
    every = {"scalar": 1, "machine": machine, "half": machine // 2, "twice": 2 * machine}
    third = ("half", "twice", "")[P.DTYPES.index(dtype) % 3]
    return {name: every[name] for name in WIDTHS if name in ("scalar", "machine", third)}


def add_kernel(module: ir.Module, name: str, program: P.Program, width: int) -> None:
    """``name(inputs, outputs, uniforms, n)``: the program on n elements, in steps of width; denormals flushed, as XLA does."""
    pointer, i64 = ir.PointerType(), ir.IntType(64)
    f = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer, pointer, pointer, i64]), name)
    b = ir.IRBuilder(f.append_basic_block())

    def member(table: ir.Value, k: int) -> ir.Value:
        return b.load(b.gep(table, [i64(k)], source_etype=pointer), typ=pointer)

    before = _set_mode(b, None)
    ins = [member(f.args[0], k) for k in range(len(program.params))]
    outs = [member(f.args[1], k) for k in range(len(program.results))]
    uniforms = [member(f.args[2], k) for k in range(8)]
    entry, head, done = b.block, b.append_basic_block(), b.append_basic_block()
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(i64)
    i.add_incoming(i64(0), entry)
    args = []
    for pointer_in, dtype in zip(ins, program.params, strict=True):
        scalar = llvm_expr.memory_type(dtype)
        t = scalar if width == 1 else ir.VectorType(scalar, width)
        at = b.gep(pointer_in, [i], source_etype=scalar)
        args.append(llvm_expr.from_memory(b, b.load(at, typ=t, align=P.itemsize(dtype)), dtype))
    results = llvm_expr.emit(b, program, args, uniforms, width)
    for pointer_out, dtype, value in zip(outs, program.result_dtypes, results, strict=True):
        assert value.type == llvm_expr.register_type(dtype, width)
        at = b.gep(pointer_out, [i], source_etype=llvm_expr.memory_type(dtype))
        b.store(llvm_expr.to_memory(b, value, dtype), at, align=P.itemsize(dtype))
    if width == 1:
        b.fence("acquire")  # keeps LLVM from making it a vector loop; costs nothing else
    following = b.add(i, i64(width))
    i.add_incoming(following, b.block)
    b.cbranch(b.icmp_signed("<", following, f.args[3]), head, done)
    b.position_at_end(done)
    _set_mode(b, before)
    b.ret_void()


def _set_mode(b: ir.IRBuilder, mode: ir.Value | None) -> ir.Value | None:
    """Sets the mode of x86's vector arithmetic (None: now with denormals flushed); returns what it was."""
    if not X86:
        return None
    pointer, i32 = ir.PointerType(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer])
    names = [f"llvm.x86.sse.{which}mxcsr" for which in ("st", "ld")]
    get, put = (b.module.globals.get(name) or ir.Function(b.module, kind, name) for name in names)
    slot = b.alloca(i32)
    if mode is None:
        b.call(get, [slot])
        mode = b.load(slot, typ=i32)
        b.store(b.or_(mode, i32(0x8040)), slot)
    else:
        b.store(mode, slot)
    b.call(put, [slot])
    return mode


Arrays = Sequence[np.ndarray]


def call(compiled: Any, name: str, program: P.Program, inputs: Arrays, uniforms: Arrays = ()) -> list[np.ndarray]:
    n = len(inputs[0])
    outputs = [np.zeros(n, P.numpy_dtype(d)) for d in program.result_dtypes]

    def table(arrays: Arrays) -> Any:
        return (ctypes.c_void_p * max(8, len(arrays)))(*(a.ctypes.data for a in arrays))

    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    kind(compiled.address[f"kernel_{name}"])(table(inputs), table(outputs), table(uniforms), n)
    return outputs


def compile_all(programs: dict[str, P.Program], width: int) -> Any:
    module = ir.Module()
    for name, program in programs.items():
        add_kernel(module, f"kernel_{name}", program, width)
    return llvm_engine.compile_ir(module, [f"kernel_{name}" for name in programs])


def run_all(programs: dict[str, P.Program], inputs: dict[str, list[np.ndarray]], width: int) -> dict[str, np.ndarray]:
    compiled = compile_all(programs, width)
    return {name: call(compiled, name, program, inputs[name])[0] for name, program in programs.items()}


N = 1536  # of all widths a multiple


def hostile(dtype: str, seed: int, n: int = N) -> np.ndarray:
    """Every kind of value that goes wrong somewhere, then random ones of all magnitudes."""
    rng = np.random.default_rng(seed)
    t = P.numpy_dtype(dtype)
    if dtype == "b1":
        return rng.integers(0, 2, n).astype(t)
    raw = rng.integers(0, 256, n * t.itemsize, np.uint8).view(t).copy()
    if P.is_float(dtype):
        info = jax.numpy.finfo(t)
        special = [0.0, -0.0, np.nan, np.inf, -np.inf, 1, -1, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 1e-3, 100, -100, 3, -7, 127, 128]
        special += [-129, 255.5, 256, 2.0**31, -(2.0**31), 2.0**63]
        special += [float(info.max), float(info.min), float(info.tiny), -float(info.tiny)]
        if dtype != "bf16":  # one XLA flushes bf16's denormals where another does not
            special += [float(info.smallest_subnormal), -float(info.smallest_subnormal)]
        with np.errstate(over="ignore"):
            values = np.array(special).astype(t)
            raw[: n // 3] = (rng.standard_normal(n // 3) * 3).astype(t)
            raw[n // 3 : n // 2] = (2.0 ** rng.uniform(-20, 20, n // 2 - n // 3)).astype(t)
    else:
        info = np.iinfo(t)
        special = [0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 63, 64, 65, 100, info.max, info.max - 1, info.min, info.min + 1]
        special += [-1, -2, -3, -8, -64, -100] if info.min < 0 else []
        values = np.array([t.type(v) for v in special])
        raw[: n // 3] = rng.integers(max(info.min, -70), 70, n // 3).astype(t)
    k = len(values)
    both = np.repeat(values, k) if seed % 2 else np.tile(values, k)  # two arrays of different parity hold all pairs
    both = both[: n // 2] if len(both) > n // 2 else both
    raw[-len(both) :] = both
    return raw


def one(op: str, result: str, *params: str) -> P.Program:
    b = P.Builder(params)
    return b.finish([b.emit(op, result, *(b.arg(k) for k in range(len(params))))])


def arithmetic(dtype: str) -> dict[str, Callable[..., jax.Array]]:
    """lax's function for each operation whose result is exact."""
    common = "eq ne lt le gt ge max min "
    names = {"b1": common + "and or xor not"}
    whole = "add sub mul div rem neg sign and or xor not population_count clz shift_left "
    names |= dict.fromkeys(INTEGERS, common + whole + "shift_right_logical shift_right_arithmetic")
    real = "add sub mul div rem neg sign abs floor ceil round_away round_even is_finite nextafter sqrt"
    names |= dict.fromkeys(FLOATS, common + real)
    special: dict[str, Callable[..., jax.Array]] = {
        "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor, "not": lax.bitwise_not,
        "round_away": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
        "round_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    }  # fmt: skip
    chosen = names[dtype].split() + (["abs"] if dtype[0] == "s" else [])
    return {name: special.get(name) or getattr(lax, name) for name in chosen}


def result_of(op: str, dtype: str) -> str:
    return "b1" if op in P.COMPARE or op == "is_finite" else dtype


def operands_of(op: str) -> int:
    return 2 if op in P.BINARY or op in P.COMPARE else 1


def assert_same(got: np.ndarray, want: np.ndarray, what: str, args: Arrays) -> None:
    """Equal bits, but for NaNs' payloads."""
    want = np.asarray(want)
    assert got.dtype == want.dtype, what
    size = f"u{got.dtype.itemsize}"
    wrong = got.view(size) != want.view(size)
    if got.dtype.kind not in "biu":
        wrong &= ~(np.isnan(got.astype(float)) & np.isnan(want.astype(float)))
    at = np.flatnonzero(wrong)
    shown = [([a[k] for a in args], got[k], want[k]) for k in at[:4]]
    assert at.size == 0, f"{what}: {at.size} of {got.size}: (arguments), got, want: {shown}"


@functools.cache
def xla_arithmetic(dtype: str) -> dict[str, jax.Array]:
    functions = arithmetic(dtype)
    with jax.enable_x64(True):
        compiled = jax.jit(lambda x, y: {op: f(*[x, y][: operands_of(op)]) for op, f in functions.items()})
        return compiled(hostile(dtype, 0), hostile(dtype, 1))


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


@pytest.mark.parametrize("op", ["max", "min"])
def test_several_at_once(op: str) -> None:
    """Maxima and minima of several floats, which are looked after together: any order of NaN, infinities and zeros."""

    def fold(*cells: np.ndarray) -> np.ndarray:
        t = np.dtype(f"i{cells[0].itemsize}")
        words = np.stack([np.broadcast_to(c, cells[0].shape) for c in cells]).view(t)
        ordered = np.where(words < 0, words ^ np.iinfo(t).max, words)  # by bits, so that -0 is less than 0
        best = ordered.max(0) if op == "max" else ordered.min(0)
        best = np.where(best < 0, best ^ np.iinfo(t).max, best).view(cells[0].dtype)
        return np.where(np.isnan(np.stack(np.broadcast_arrays(*cells))).any(0), np.nan, best).astype(best.dtype)

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


@functools.cache
def xla_convert(source: str) -> dict[str, jax.Array]:
    with jax.enable_x64(True):
        return jax.jit(lambda x: {d: lax.convert_element_type(x, P.numpy_dtype(d)) for d in P.DTYPES})(hostile(source, 0))


@pytest.mark.parametrize("source", P.DTYPES)
def test_convert(source: str) -> None:
    x, want = hostile(source, 0), xla_convert(source)
    programs = {dtype: one("convert", dtype, source) for dtype in P.DTYPES}
    for name, width in widths(source).items():
        got = run_all(programs, {key: [x] for key in programs}, width)
        for dtype in P.DTYPES:
            assert_same(got[dtype], want[dtype], f"{source} to {dtype} {name}", [x])


@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v2", "x86-64-v3"] if X86 else [])
def test_lesser_machines(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of 16 and 32 bytes, and f16 without the hardware's help."""
    host = llvm_engine.target()
    monkeypatch.setenv("JAXPRIMS_TARGET_CPU", cpu)
    monkeypatch.setattr(f"{__name__}.WIDTHS", ["machine"])
    assert llvm_engine.target() != host
    if llvm_engine.target().vector_bytes <= host.vector_bytes:
        test_convert("f16")
        test_convert("f32")
        test_arithmetic("f32")
        test_arithmetic("s32")
        test_several_at_once("max")
        test_math("f32")


def digamma(x: np.ndarray) -> np.ndarray:
    """SciPy's, but reflected where SciPy's own reflection is not exact near the poles."""
    reflected = scipy.special.psi(1 - x) - np.pi / np.tan(np.pi * (x - np.rint(x)))
    return np.where((x < 0.5) & (x != np.rint(x)), reflected, scipy.special.psi(x))


def reference(op: str) -> Callable[..., np.ndarray]:
    """An accurate implementation on float64 or longer arrays."""
    named: dict[str, Any] = {
        "cbrt": np.cbrt, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh,
        "atanh": np.arctanh, "atan2": np.arctan2, "pow": np.power, "erf_inv": scipy.special.erfinv,
        "lgamma": scipy.special.gammaln, "digamma": digamma,
        "erf": np.vectorize(math.erf, otypes=[float]), "erfc": np.vectorize(math.erfc, otypes=[float]),
        "rsqrt": lambda x: 1 / np.sqrt(x), "logistic": lambda x: 1 / (1 + np.exp(-x)),
    }  # fmt: skip
    return named.get(op) or getattr(np, op)


EXPANDED = ["exp", "exp2", "expm1", "log", "log1p", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "logistic"]
MATH = [*EXPANDED, "sin", "cos", "tan", "asin", "acos", "atan", "cbrt", "rsqrt", "erf", "erfc", "erf_inv", "lgamma", "digamma"]
MATH += ["pow", "atan2"]


def in_domain(dtype: str, seed: int) -> np.ndarray:
    """Hostile values but denormals, which count as 0 in some places and not in others, then values where functions bend."""
    rng, t = np.random.default_rng(seed), P.numpy_dtype(dtype)
    tiny, most = float(jax.numpy.finfo(t).tiny), 700 if dtype == "f64" else 80 if dtype != "f16" else 8
    x = hostile(dtype, seed, N // 2)
    size = np.abs(x.astype(np.float64))
    x[(size > 0) & (size < 2 * tiny)] = 0.25
    parts = [rng.uniform(-1, 1, N // 8), rng.uniform(-most, most, N // 8), 2.0 ** rng.uniform(-14, 15, N // 8)]
    parts.append(1 + rng.choice([-1, 1], N // 8) * 2.0 ** rng.uniform(-10, -1, N // 8))
    return np.concatenate([x, np.concatenate(parts).astype(t)])


@functools.cache
def xla_math(dtype: str) -> dict[str, jax.Array]:
    args = in_domain(dtype, 0), in_domain(dtype, 1)
    with jax.enable_x64(True):
        return jax.jit(lambda *a: {op: getattr(lax, op)(*a[: operands_of(op)]) for op in MATH})(*args)


@functools.cache
def true_math(dtype: str) -> dict[str, np.ndarray]:
    args = [in_domain(dtype, seed).astype(np.float64) for seed in range(2)]
    with np.errstate(all="ignore"):
        return {op: reference(op)(*args[: operands_of(op)]) for op in MATH}


@pytest.mark.parametrize("dtype", FLOATS)
def test_math(dtype: str) -> None:
    """Infinities, NaN and the signs of zeros are XLA's; all else is within a few ULP of the truth."""
    args, xla = [in_domain(dtype, 0), in_domain(dtype, 1)], xla_math(dtype)
    inputs = {op: args[: operands_of(op)] for op in MATH}
    programs = {op: one(op, dtype, *[dtype] * operands_of(op)) for op in MATH}
    info = jax.numpy.finfo(P.numpy_dtype(dtype))
    for name, width in widths(dtype).items():
        got = run_all(programs, inputs, width)
        for op in MATH:
            values, theirs = got[op].astype(np.float64), np.asarray(xla[op]).astype(np.float64)
            want = true_math(dtype)[op]
            with np.errstate(all="ignore"):
                nearest = want.astype(got[op].dtype).astype(np.float64)
            for same in (np.isnan, np.isposinf, np.isneginf):  # where XLA overflows early, rightly
                differs = np.flatnonzero((same(values) != same(theirs)) & (same(values) != same(nearest)))
                assert differs.size == 0, (op, name, [([a[k] for a in inputs[op]], values[k], theirs[k]) for k in differs[:3]])
            zero = (values == 0) & (theirs == 0)
            assert np.array_equal(np.signbit(values[zero]), np.signbit(theirs[zero])), (op, name)
            finite = np.isfinite(values) & np.isfinite(want)
            # lgamma and digamma have zeros away from 0, and digamma poles, where an error is relative to the terms that cancel
            scale = np.maximum(np.abs(want), 1 if op == "lgamma" else 100 if op == "digamma" else 0)
            allowed = (6 if dtype in ("f32", "f64") else 1) * float(info.eps) * scale + 2 * float(info.tiny)
            with np.errstate(invalid="ignore"):
                off = np.flatnonzero(finite & ~(np.abs(values - want) <= allowed))
            assert off.size == 0, (op, dtype, name, off.size, [([a[k] for a in inputs[op]], values[k], want[k]) for k in off[:3]])


def test_expansions_give_scalars_and_lanes_the_same_bits() -> None:
    x = in_domain("f32", 0)
    programs, inputs = {op: one(op, "f32", "f32") for op in EXPANDED}, {op: [x] for op in EXPANDED}
    scalar, vector = (run_all(programs, inputs, widths("f32")[name]) for name in ("scalar", "machine"))
    for op in EXPANDED:
        assert_same(vector[op], scalar[op], op, [x])


def compare_all(program: P.Program, inputs: Arrays, want: Arrays, uniforms: Arrays = ()) -> None:
    """Runs the program at every width; the results must be exact."""
    for width in (1, 4, 8, 16, 32):
        got = call(compile_all({"p": program}, width), "p", program, inputs, uniforms)
        for g, w in zip(got, want, strict=True):
            assert_same(g, np.asarray(w).astype(g.dtype), f"width {width}", inputs)


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


def test_loads() -> None:
    """By a constant, by a computed index, and by a loop's counter: the last in scalar registers, whatever the width."""
    coefficients, table = np.arange(1, 6, dtype=np.float32), np.array([1, 0, 1, 1], np.bool_)
    b = P.Builder(("s32", "f32", "s64"))
    inner = P.Builder(("s32", "f32", "f32"))
    next_coefficient = inner.emit("load", "f32", inner.arg(0), attr=0)
    step = inner.finish([inner.emit("add", "f32", inner.emit("mul", "f32", inner.arg(1), inner.arg(2)), next_coefficient)])
    horner = b.emit("loop", "tuple", b.const(0, "f32"), b.arg(1), attr=(5, step))
    results = [
        b.emit("load", "f32", b.const(3, "s32"), attr=0),
        b.emit("load", "f32", b.arg(0), attr=0),
        b.emit("load", "b1", b.arg(2), attr=1),
        b.emit("load", "bf16", b.arg(2), attr=2),
        b.emit("item", "f32", horner, attr=0),
    ]
    program = b.finish(results)
    rng = np.random.default_rng(0)
    i, x, j = rng.integers(0, 5, 96).astype(np.int32), rng.integers(-3, 4, 96).astype(np.float32), rng.integers(0, 4, 96)
    halves = np.array([1, -0.0, np.inf, 3], P.numpy_dtype("bf16"))
    want = [np.full(96, coefficients[3]), coefficients[i], table[j], halves[j], np.polyval(coefficients, x)]
    compare_all(program, [i, x, j], want, [coefficients, table, halves])
    horner_alone = b.finish([results[4]])
    assert "extractelement" not in compile_all({"p": horner_alone}, 8).ir


def test_loops() -> None:
    """Carries that do and do not vary from lane to lane, nested, and of no steps at all."""
    rows = P.Builder(("s32", "s32", "s32", "s32"))  # column, sum, row, x -> sum + x * (row ^ column)
    mixed = rows.emit("xor", "s32", rows.arg(0), rows.arg(2))
    row = rows.finish([rows.emit("add", "s32", rows.arg(1), rows.emit("mul", "s32", rows.arg(3), mixed))])
    body = P.Builder(("s32", "s32", "s32", "s32"))  # row, sum, power, x
    inner = body.emit("loop", "tuple", body.arg(1), body.arg(0), body.arg(3), attr=(3, row))
    rows_xor = body.emit("xor", "s32", body.arg(2), body.arg(0))
    many = body.finish([body.emit("item", "s32", inner, attr=0), rows_xor])
    b = P.Builder(("s32",))
    start = [b.const(0, "s32"), b.const(1, "s32")]
    loops = {n: b.emit("loop", "tuple", *start, b.arg(0), attr=(n, many)) for n in (0, 7, 101)}  # unrolled if they are short
    program = b.finish([b.emit("item", "s32", t, attr=k) for t in loops.values() for k in (0, 1)])
    x = np.arange(-48, 48, dtype=np.int32)
    want = []
    for n in loops:
        want += [x * sum(r ^ c for r in range(n) for c in range(3)), np.full(96, functools.reduce(operator.xor, range(n), 1))]
    compare_all(program, [x], want)


def _collatz() -> P.Program:
    """(steps, n) -> (steps, 1)"""
    cond = P.Builder(("s32", "s64"))
    body = P.Builder(("s32", "s64"))
    n, one_ = body.arg(1), body.const(1, "s64")
    odd = body.emit("ne", "b1", body.emit("and", "s64", n, one_), body.const(0, "s64"))
    tripled = body.emit("add", "s64", body.emit("mul", "s64", n, body.const(3, "s64")), one_)
    halved = body.emit("shift_right_arithmetic", "s64", n, one_)
    steps = body.emit("add", "s32", body.arg(0), body.const(1, "s32"))
    step = body.finish([steps, body.emit("select", "s64", odd, tripled, halved)])
    b = P.Builder(("s32", "s64"))
    more = cond.finish([cond.emit("ne", "b1", cond.arg(1), cond.const(1, "s64"))])
    loop = b.emit("while", "tuple", b.arg(0), b.arg(1), attr=(more, step))
    return b.finish([b.emit("item", "s32", loop, attr=0), b.emit("item", "s64", loop, attr=1)])


def _collatz_steps(n: int) -> int:
    return 0 if n == 1 else 1 + _collatz_steps(3 * n + 1 if n % 2 else n // 2)


def test_while_and_cond_in_lanes_that_differ() -> None:
    """n > 0: Collatz's steps. Other lanes would never end there: they must be kept out of the branch's loop."""
    b = P.Builder(("s64", "s32"))
    n, y = b.arg(0), b.arg(1)
    positive = b.emit("gt", "b1", n, b.const(0, "s64"))
    other = P.Builder(("s32", "s64"))
    quotient = other.emit("div", "s32", other.const(100, "s32"), other.emit("convert", "s32", other.arg(1)))
    apart = other.finish([quotient, other.arg(1)])
    chosen = b.emit("cond", "tuple", positive, y, n, attr=(apart, _collatz()))
    program = b.finish([b.emit("item", "s32", chosen, attr=0), b.emit("item", "s64", chosen, attr=1)])
    rng = np.random.default_rng(0)
    n = rng.integers(-20, 60, 96)
    n[32:64] = np.abs(n[32:64]) + 1  # whole vectors of one mind
    n[64:] = -np.abs(n[64:])
    y = rng.integers(0, 9, 96).astype(np.int32)
    pairs = zip(n.tolist(), y.tolist(), strict=True)
    want = [yk + _collatz_steps(nk) if nk > 0 else int(100 / nk) if nk else -1 for nk, yk in pairs]
    compare_all(program, [n, y], [np.array(want), np.where(n > 0, 1, n)])


def test_while_in_while() -> None:
    """Sum over m = n, n - 1, ... 1 of Collatz's steps of m: the inner loop runs only for lanes that the outer one still has."""
    cond, body = P.Builder(("s32", "s64")), P.Builder(("s32", "s64"))
    more = cond.finish([cond.emit("gt", "b1", cond.arg(1), cond.const(0, "s64"))])
    total, _ = body.inline(_collatz(), [body.arg(0), body.arg(1)])
    step = body.finish([total, body.emit("sub", "s64", body.arg(1), body.const(1, "s64"))])
    b = P.Builder(("s64",))
    loop = b.emit("while", "tuple", b.const(0, "s32"), b.arg(0), attr=(more, step))
    program = b.finish([b.emit("item", "s32", loop, attr=0)])
    n = np.random.default_rng(1).integers(-5, 30, 96)
    compare_all(program, [n], [np.array([sum(map(_collatz_steps, range(1, k + 1))) for k in n.tolist()])])


def test_uniform_control_flow() -> None:
    """Conditions that are the same in every lane branch as scalar code does, also where the carries vary."""
    cond, body = P.Builder(("s32", "f32", "s32")), P.Builder(("s32", "f32", "s32"))
    limit = cond.emit("load", "s32", cond.const(0, "s32"), attr=0)
    more = cond.finish([cond.emit("lt", "b1", cond.arg(0), limit)])
    doubled = body.emit("mul", "f32", body.arg(1), body.const(2, "f32"))
    step = body.finish([body.emit("add", "s32", body.arg(0), body.arg(2)), doubled])
    b = P.Builder(("f32",))
    loop = b.emit("while", "tuple", b.const(0, "s32"), b.arg(0), b.const(1, "s32"), attr=(more, step))
    branches = [P.Builder(("f32",)) for _ in range(2)]
    negated = branches[0].finish([branches[0].emit("neg", "f32", branches[0].arg(0))])
    itself = branches[1].finish([branches[1].arg(0)])
    large = b.emit("gt", "b1", b.emit("load", "s32", b.const(0, "s32"), attr=0), b.const(100, "s32"))
    chosen = b.emit("cond", "tuple", large, b.arg(0), attr=(negated, itself))
    items = [b.emit("item", dtype, value, attr=k) for dtype, value, k in (("s32", loop, 0), ("f32", loop, 1), ("f32", chosen, 0))]
    program = b.finish(items)
    assert "vector.reduce" not in compile_all({"p": program}, 8).ir
    x = np.random.default_rng(0).standard_normal(96).astype(np.float32)
    compare_all(program, [x], [np.full(96, 6), x * 64, -x], [np.array([6], np.int32)])


def test_engine() -> None:
    program = one("tan", "f32", "f32")
    compiled = compile_all({"p": program}, widths("f32")["machine"])
    assert "kernel_p" in compiled.assembly() and "kernel_p" in compiled.ir
    assert llvm_engine.target() is llvm_engine.target()
    assert llvm_engine.vector_function("no_such_function", "f32", 4) is None
    assert llvm_engine.vector_function("exp", "f32", 3) is None
    with pytest.raises(RuntimeError):
        llvm_engine.compile_ir("declare void @missing()\ndefine void @f() {\n call void @missing()\n ret void\n}", ["f"])
    with pytest.raises(RuntimeError):
        llvm_engine.compile_ir("not LLVM IR", ["f"])


def test_compiling_from_many_threads() -> None:
    x = np.linspace(1, 2, 96, dtype=np.float32)

    def work(k: int) -> float:
        b = P.Builder(("f32",))
        program = b.finish([b.emit("mul", "f32", b.arg(0), b.const(k, "f32"))])
        return float(call(compile_all({"p": program}, 8), "p", program, [x])[0][0])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(32))) == list(range(32))
