"""Expressions compiled and called, on hostile numbers, and what XLA and libm make of them: shared by the tests of both tables."""

from __future__ import annotations

import ctypes
import functools
import math
import platform
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import scipy.special
from jax import lax
from llvmlite import ir

from jaxprims.ir import program as P
from jaxprims.targets.cpu.llvm import engine as llvm_engine
from jaxprims.targets.cpu.llvm import expr as llvm_expr
from jaxprims.targets.cpu.llvm import types as llvm_types

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
        scalar = llvm_types.memory_type(dtype)
        t = scalar if width == 1 else ir.VectorType(scalar, width)
        at = b.gep(pointer_in, [i], source_etype=scalar)
        args.append(llvm_types.from_memory(b, b.load(at, typ=t, align=P.itemsize(dtype)), dtype))
    results = llvm_expr.emit(b, program, args, uniforms, width)
    for pointer_out, dtype, value in zip(outs, program.result_dtypes, results, strict=True):
        assert value.type == llvm_types.register_type(dtype, width)
        at = b.gep(pointer_out, [i], source_etype=llvm_types.memory_type(dtype))
        b.store(llvm_types.to_memory(b, value, dtype), at, align=P.itemsize(dtype))
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


@functools.cache
def xla_convert(source: str) -> dict[str, jax.Array]:
    with jax.enable_x64(True):
        return jax.jit(lambda x: {d: lax.convert_element_type(x, P.numpy_dtype(d)) for d in P.DTYPES})(hostile(source, 0))


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


def assert_math(op: str, dtype: str, got: np.ndarray, what: str = "") -> None:
    """Of ``in_domain``: infinities, NaN and the signs of zeros are XLA's; all else is within a few ULP of the truth."""
    inputs, info = [in_domain(dtype, k) for k in range(operands_of(op))], jax.numpy.finfo(P.numpy_dtype(dtype))
    values, theirs, want = got.astype(np.float64), np.asarray(xla_math(dtype)[op]).astype(np.float64), true_math(dtype)[op]
    with np.errstate(all="ignore"):
        nearest = want.astype(got.dtype).astype(np.float64)
    for same in (np.isnan, np.isposinf, np.isneginf):  # where XLA overflows early, rightly
        differs = np.flatnonzero((same(values) != same(theirs)) & (same(values) != same(nearest)))
        assert differs.size == 0, (op, what, [([a[k] for a in inputs], values[k], theirs[k]) for k in differs[:3]])
    zero = (values == 0) & (theirs == 0)
    assert np.array_equal(np.signbit(values[zero]), np.signbit(theirs[zero])), (op, what)
    finite = np.isfinite(values) & np.isfinite(want)
    # lgamma and digamma have zeros away from 0, and digamma poles, where an error is relative to the terms that cancel
    scale = np.maximum(np.abs(want), 1 if op == "lgamma" else 100 if op == "digamma" else 0)
    allowed = (6 if dtype in ("f32", "f64") else 1) * float(info.eps) * scale + 2 * float(info.tiny)
    with np.errstate(invalid="ignore"):
        off = np.flatnonzero(finite & ~(np.abs(values - want) <= allowed))
    assert off.size == 0, (op, dtype, what, off.size, [([a[k] for a in inputs], values[k], want[k]) for k in off[:3]])


def compare_all(program: P.Program, inputs: Arrays, want: Arrays, uniforms: Arrays = ()) -> None:
    """Runs the program at every width; the results must be exact."""
    for width in (1, 4, 8, 16, 32):
        got = call(compile_all({"p": program}, width), "p", program, inputs, uniforms)
        for g, w in zip(got, want, strict=True):
            assert_same(g, np.asarray(w).astype(g.dtype), f"width {width}", inputs)
