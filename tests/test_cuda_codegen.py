"""CUDA C++ made from Programs: compiled for the host against tests/emulation/device.cuh, and by NVRTC where that is installed."""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from emulation import toolchain
from expressions import (
    MATH,
    N,
    arithmetic,
    assert_math,
    assert_same,
    hostile,
    in_domain,
    one,
    operands_of,
    result_of,
    xla_arithmetic,
    xla_convert,
)

from jaxprims.ir import evaluate
from jaxprims.ir import program as P
from jaxprims.targets.cuda import expr as cuda_expr
from jaxprims.targets.cuda import nvrtc
from jaxprims.targets.cuda import source as cuda_source
from jaxprims.targets.cuda.types import from_memory, memory_type, to_memory

CUDA = [Path(__file__).parents[1] / "cuda" / name for name in ("kernels", "plans")]
FOLDERS = [toolchain.HERE, *CUDA]
FLOATS = [d for d in P.DTYPES if P.is_float(d)]
HEADERS = "".join(f'#include "{name}.cuh"\n' for name in ("device", "operands", "math"))

Arrays = Sequence[np.ndarray]


def compiled(text: str, arch: str = "sm_90") -> ctypes.CDLL:
    """The text, its includes expanded, as a library of the host."""
    image = toolchain.compile_cubin(cuda_source.expanded(HEADERS + text, FOLDERS), arch).image
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(image)
        file.flush()
        return ctypes.CDLL(file.name)


def table(arrays: Arrays) -> Any:
    return (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))


# --- Programs -----------------------------------------------------------------------------------------------------------------


def function(name: str, program: P.Program, uniforms: Sequence[str] = ()) -> str:
    """``name(inputs, outputs, uniforms, k)``: the program on element k."""
    members = "".join(f"const {memory_type(t)}* u{k}; " for k, t in enumerate(uniforms))
    values = ", ".join(f"static_cast<const {memory_type(t)}*>(captured[{k}])" for k, t in enumerate(uniforms))
    lines = [f"struct {name}_captured {{ {members}}};"] if uniforms else []
    lines.append(f"JP_DEVICE void {name}(const void* const* in, void* const* out, const void* const* captured, i64 k) {{")
    lines += [f"  const {name}_captured u = {{{values}}};"] if uniforms else []
    for k, t in enumerate(program.params):
        loaded = from_memory(f"static_cast<const {memory_type(t)}*>(in[{k}])[k]", t)
        lines.append(f"  const auto x{k} = {loaded};")
    body, results = cuda_expr.statements(program, [f"x{k}" for k in range(len(program.params))])
    lines += body
    for k, (t, value) in enumerate(zip(program.result_dtypes, results, strict=True)):
        lines.append(f"  static_cast<{memory_type(t)}*>(out[{k}])[k] = {to_memory(value, t)};")
    return "\n".join(["namespace jp {", *lines, "}", "}", ""])


def kernel(name: str, program: P.Program, uniforms: Sequence[str] = ()) -> str:
    """``run_<name>(inputs, outputs, uniforms, n)``, of the host."""
    head = f'extern "C" __attribute__((visibility("default"))) void run_{name}'
    parameters = "const void* const* in, void* const* out, const void* const* captured, jp::i64 n"
    loop = f"for (jp::i64 k = 0; k < n; ++k) jp::{name}(in, out, captured, k);"
    return f"{function(name, program, uniforms)}{head}({parameters}) {{ {loop} }}\n"


def call(library: ctypes.CDLL, name: str, program: P.Program, inputs: Arrays, uniforms: Arrays = ()) -> list[np.ndarray]:
    n = len(inputs[0])
    outputs = [np.zeros(n, P.numpy_dtype(t)) for t in program.result_dtypes]
    getattr(library, f"run_{name}")(table(inputs), table(outputs), table(uniforms), ctypes.c_int64(n))
    return outputs


BITCASTS = [(a, b) for a in P.DTYPES for b in P.DTYPES if P.itemsize(a) == P.itemsize(b) and "b1" not in (a, b)]


@functools.cache
def operations() -> dict[str, P.Program]:
    """Every operation on every dtype."""
    programs = {}
    for t in P.DTYPES:
        for op in (*arithmetic(t), *(MATH if P.is_float(t) else ())):
            programs[f"{op}_{t}"] = one(op, result_of(op, t), *[t] * operands_of(op))
        programs[f"select_{t}"] = one("select", t, "b1", t, t)
        programs |= {f"convert_{t}_{to}": one("convert", to, t) for to in P.DTYPES}
    return programs | {f"bitcast_{a}_{b}": one("bitcast", b, a) for a, b in BITCASTS}


@functools.cache
def library_of_operations() -> ctypes.CDLL:
    return compiled("".join(kernel(name, program) for name, program in operations().items()))


def run(name: str, inputs: Arrays) -> np.ndarray:
    return call(library_of_operations(), name, operations()[name], inputs)[0]


def denormal(a: np.ndarray) -> np.ndarray:
    if a.dtype.kind in "biu":
        return np.zeros(a.shape, np.bool_)
    size = np.abs(a.astype(np.float64))
    return (size > 0) & (size <= 2 * float(jax.numpy.finfo(a.dtype).tiny))


@pytest.mark.cover(7)
@pytest.mark.parametrize("dtype", P.DTYPES)
def test_arithmetic(dtype: str, record_property: Callable[[str, object], None]) -> None:
    """XLA's bits, but for denormals, which it flushes; there and everywhere else, the interpreter's."""
    functions = arithmetic(dtype)
    x, y, want = hostile(dtype, 0), hostile(dtype, 1), xla_arithmetic(dtype)
    for op in functions:
        inputs = [x, y][: operands_of(op)]
        got = run(f"{op}_{dtype}", inputs)
        usual = ~np.any([denormal(a) for a in (*inputs, got, np.asarray(want[op]))], axis=0)
        assert_same(got[usual], np.asarray(want[op])[usual], f"{op} {dtype}", [a[usual] for a in inputs])
        if op in evaluate.EXACT:
            (known,) = evaluate.evaluate(operations()[f"{op}_{dtype}"], inputs)
            assert_same(got, known, f"{op} {dtype}", inputs)
    record_property("cases of generated code", len(functions) * N)


@pytest.mark.parametrize("source", P.DTYPES)
def test_convert(source: str) -> None:
    x, want = hostile(source, 0), xla_convert(source)
    for dtype in P.DTYPES:
        got = run(f"convert_{source}_{dtype}", [x])
        usual = ~(denormal(x) | denormal(got) | denormal(np.asarray(want[dtype])))
        assert_same(got[usual], np.asarray(want[dtype])[usual], f"{source} to {dtype}", [x[usual]])


def test_bitcast_and_select() -> None:
    for a, b in BITCASTS:
        x = hostile(a, 0)
        with np.errstate(invalid="ignore"):  # NaNs of halves that signal
            x = x[~np.isnan(x.astype(np.float64))] if P.is_float(a) else x
            assert_same(run(f"bitcast_{a}_{b}", [x]), x.view(P.numpy_dtype(b)), f"{a} as {b}", [x])
    for t in P.DTYPES:
        p, x, y = hostile("b1", 0), hostile(t, 0), hostile(t, 1)
        assert_same(run(f"select_{t}", [p, x, y]), np.where(p, x, y), f"select {t}", [p, x, y])


@pytest.mark.parametrize("dtype", FLOATS)
def test_math(dtype: str) -> None:
    """Of the host's library, but for what is our own. On a GPU it is libdevice's."""
    for op in MATH:
        assert_math(op, dtype, run(f"{op}_{dtype}", [in_domain(dtype, k) for k in range(operands_of(op))]))


# --- control flow -------------------------------------------------------------------------------------------------------------


class Maker:
    """Random Programs of s32, f32 and b1 that always end, with control flow in control flow."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def pick(self, b: P.Builder, values: list[int], dtype: str) -> int:
        known = [v for v in values if b.dtype(v) == dtype]
        if known and self.rng.random() < 0.85:
            return int(self.rng.choice(known))
        constant = {"s32": self.rng.integers(-5, 40), "f32": self.rng.choice([0.1, -2.5, np.inf, 1e-45, 3]), "b1": True}[dtype]
        return b.const(constant, dtype)

    def program(self, params: Sequence[str], results: Sequence[str], depth: int, length: int = 8) -> P.Program:
        b = P.Builder(params)
        values = [b.arg(k) for k in range(len(params))]
        for _ in range(length):
            values += self.step(b, values, depth)
        return b.finish([self.pick(b, values, t) for t in results])

    def step(self, b: P.Builder, values: list[int], depth: int) -> list[int]:
        kind = self.rng.choice(["s32", "f32", "b1", "load", "control"], p=[0.3, 0.2, 0.15, 0.1, 0.25])
        pick = functools.partial(self.pick, b, values)
        if kind == "control" and depth:
            return self.control(b, values, depth)
        if kind == "b1":
            return [b.emit(str(self.rng.choice(["lt", "eq", "ge"])), "b1", pick("s32"), pick("s32"))]
        if kind == "load":
            index = b.emit("and", "s32", pick("s32"), b.const(7, "s32"))
            return [b.emit("load", "bf16", index, attr=1), b.emit("load", "s32", index, attr=0)]
        if kind == "f32":
            op = str(self.rng.choice(["add", "mul", "max", "select"]))
            args = [pick("f32"), pick("f32")]
            return [b.emit(op, "f32", *([pick("b1"), *args] if op == "select" else args))]
        return [b.emit(str(self.rng.choice(["add", "mul", "xor", "div", "min"])), "s32", pick("s32"), pick("s32"))]

    def control(self, b: P.Builder, values: list[int], depth: int) -> list[int]:
        carried = [str(t) for t in self.rng.choice(["s32", "f32", "b1"], self.rng.integers(1, 4))]
        fixed = [str(t) for t in self.rng.choice(["s32", "f32"], self.rng.integers(0, 3))]
        args = [self.pick(b, values, t) for t in (*carried, *fixed)]
        which = self.rng.choice(["loop", "while", "cond"])
        if which == "loop":
            n = int(self.rng.choice([0, 1, 3, 40]))
            body = self.program(["s32", *carried, *fixed], carried, depth - 1, 5)
            tuple_ = b.emit("loop", "tuple", *args, attr=(n, body))
        elif which == "cond":
            branches = tuple(self.program([*carried, *fixed], carried, depth - 1, 4) for _ in range(2))
            tuple_ = b.emit("cond", "tuple", self.pick(b, values, "b1"), *args, attr=branches)
        else:  # a counter in front ends it
            params = ["s32", *carried, *fixed]
            inner = P.Builder(params)
            rest = inner.inline(self.program(params, carried, depth - 1, 4), [inner.arg(k) for k in range(len(params))])
            body = inner.finish([inner.emit("add", "s32", inner.arg(0), inner.const(1, "s32")), *rest])
            outer = P.Builder(params)
            (extra,) = outer.inline(self.program(params, ["b1"], depth - 1, 3), [outer.arg(k) for k in range(len(params))])
            few, some = (outer.emit("lt", "b1", outer.arg(0), outer.const(n, "s32")) for n in (4, 2))
            going = outer.finish([outer.emit("and", "b1", few, outer.emit("or", "b1", extra, some))])
            tuple_ = b.emit("while", "tuple", b.const(0, "s32"), *args, attr=(going, body))
            carried = ["s32", *carried]
        return [b.emit("item", t, tuple_, attr=k) for k, t in enumerate(carried)]


def test_control_flow(record_property: Callable[[str, object], None]) -> None:
    """Random Programs against the reference interpreter, in one library."""
    count, n = 120, 24
    programs = [Maker(seed).program(["s32", "f32", "b1"], ["s32", "f32", "b1"], depth=2) for seed in range(count)]
    assert {i.op for p in programs for i in p.walk()} >= {"loop", "while", "cond", "load", "item"}
    library = compiled("".join(kernel(f"p{k}", p, ["s32", "bf16"]) for k, p in enumerate(programs)))
    uniforms = [np.arange(-3, 5, dtype=np.int32), np.array([1, -0.0, np.inf, 3, 0.5, -2, 7, 100], P.numpy_dtype("bf16"))]
    inputs = [np.arange(-12, 12, dtype=np.int32), np.linspace(-3, 3, n, dtype=np.float32), np.arange(n) % 3 == 0]
    for k, program in enumerate(programs):
        got = call(library, f"p{k}", program, inputs, uniforms)
        for g, want in zip(got, evaluate.evaluate(program, inputs, uniforms), strict=True):
            assert_same(g, np.broadcast_to(want, g.shape), f"{k}: {program}", inputs)
    record_property("cases of generated code", count * n)


def test_carries_change_at_once() -> None:
    body = P.Builder(("s32", "s32", "s32", "s32"))  # i, a, b, c -> b, c, a
    turned = body.finish([body.arg(2), body.arg(3), body.arg(1)])
    b = P.Builder(("s32", "s32", "s32"))
    loop = b.emit("loop", "tuple", *(b.arg(k) for k in range(3)), attr=(200, turned))
    program = b.finish([b.emit("item", "s32", loop, attr=k) for k in range(3)])
    inputs = [np.array([k], np.int32) for k in range(3)]
    got = call(compiled(kernel("turn", program)), "turn", program, inputs)
    assert [int(g[0]) for g in got] == [2, 0, 1]


def test_constants() -> None:
    """All their bits, but a NaN's."""
    programs = {}
    for t in P.DTYPES:
        b = P.Builder(())
        programs[t] = b.finish([b.const(v, t) for v in hostile(t, 0)[-120:]])
    library = compiled("".join(kernel(f"constants_{t}", p) for t, p in programs.items()))
    for t, p in programs.items():
        outputs = [np.zeros(1, P.numpy_dtype(t)) for _ in p.results]
        getattr(library, f"run_constants_{t}")(table([]), table(outputs), table([]), ctypes.c_int64(1))
        want = np.array([P.from_bits(p.body[r].attr, t) for r in p.results], P.numpy_dtype(t))
        assert_same(np.concatenate(outputs), want, t, [])


# --- NVRTC --------------------------------------------------------------------------------------------------------------------

DEVICE_KERNEL = """
struct Test { const void* in[2]; void* out[OUTPUTS]; };
JP_KERNEL(test, Test, 128, 1) { jp::every(p.in, p.out, nullptr, jp::Block() * 128 + jp::Thread()); }
"""


@pytest.mark.cover(1)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_nvrtc_compiles_every_operation(arch: str) -> None:
    """Of a dtype all at once, for one architecture or another; those of halves, which differ, for each."""
    pytest.importorskip("cuda.core")
    first = ("sm_80", "sm_90", "sm_100").index(arch)
    for t in dict.fromkeys((*P.DTYPES[first::3], "f16", "bf16")):
        b = P.Builder((t, t))
        chosen = b.emit("eq", "b1", b.arg(0), b.arg(1))
        results = [chosen, b.emit("select", t, chosen, b.arg(0), b.arg(1)), *(b.emit("convert", to, b.arg(1)) for to in P.DTYPES)]
        results += [b.emit("bitcast", to, b.arg(0)) for source, to in BITCASTS if source == t]
        for op in (*arithmetic(t), *(MATH if P.is_float(t) else ())):
            results.append(b.emit(op, result_of(op, t), *(b.arg(k) for k in range(operands_of(op)))))
        program = b.finish(results)
        text = HEADERS + function("every", program) + DEVICE_KERNEL.replace("OUTPUTS", str(len(program.results)))
        log = nvrtc.compile_cubin(cuda_source.expanded(text, CUDA), arch).log
        assert "warning" not in log, (t, log)
