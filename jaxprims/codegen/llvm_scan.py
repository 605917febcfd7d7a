"""The kernels of the ordered family (scan, reduction, segmented reduction): ScanSpec -> LLVM IR.

``cpu/scan_kernel.h`` says what each function does. ``scan`` and ``reduce`` are built elsewhere, by form: ``llvm_scan_along``
(a vector runs along the sequence), ``llvm_scan_across`` (across many sequences side by side), ``llvm_reduce``. Here are the
two that only see states: ``combine`` and ``finish``.
"""

from __future__ import annotations

from llvmlite import ir

from ..frontend.program import itemsize
from . import llvm_expr as expr
from . import llvm_reduce, llvm_scan_across
from .llvm_build import I64, PTR, address, declare, i64, loop, pointer, scaled
from .llvm_elements import vector_width
from .llvm_rows import load_state, store_row, store_state
from .scan_spec import ScanSpec

PLAIN, PERIODIC = 0, 1
"""Variants: one sequence; or rows of ``period`` elements, one behind the other."""

_NAMES = {"scan": ("scan", "reduce", "combine"), "reduce": ("reduce", "combine", "finish"),
          "segments": ("scan", "reduce", "combine", "finish")}  # fmt: skip


def function_names(spec: ScanSpec, variant: int) -> list[str]:
    if variant == PERIODIC:
        return ["scan"]
    return [name for name in _NAMES[spec.kind] if not (name == "scan" and spec.kind == "segments" and spec.across)]


def generate(spec: ScanSpec, variant: int, vector_bytes: int) -> ir.Module:
    """The module with :func:`function_names`'s functions."""
    module = ir.Module(name="scan")
    module.triple = ""
    width = vector_width(spec, vector_bytes)
    for name in function_names(spec, variant):
        if name == "combine":
            combine(module, spec, width if spec.across else 1)
        elif name == "finish":
            finish(module, spec, width if spec.across else 1)
        elif spec.across:
            (llvm_scan_across.scan if name == "scan" else llvm_scan_across.reduce)(module, spec, vector_bytes)
        elif name == "reduce" and spec.kind != "scan":
            llvm_reduce.reduce(module, spec, vector_bytes)
        else:
            from . import llvm_scan_along

            if name == "scan":
                llvm_scan_along.build_scan(module, spec, vector_bytes, periodic=variant == PERIODIC)
            else:
                llvm_scan_along.build_reduce(module, spec, vector_bytes)
    return module


def combine(module: ir.Module, spec: ScanSpec, width: int) -> None:
    b, (uniforms, first, second, out, lanes) = declare(module, "combine", [PTR, PTR, PTR, PTR, I64])
    captured = [pointer(b, uniforms, k) for k in range(len(spec.uniforms))]
    with loop(b, i64(0), lanes, width) as lane:
        rest = b.sub(lanes, lane)
        values = load_state(b, spec, first, lanes, lane, width, rest) + load_state(b, spec, second, lanes, lane, width, rest)
        store_state(b, spec, expr.emit(b, spec.op, values, captured, width), out, lanes, lane, rest)
    b.ret_void()


def finish(module: ir.Module, spec: ScanSpec, width: int) -> None:
    b, (uniforms, state, outs, lanes) = declare(module, "finish", [PTR, PTR, PTR, I64])
    captured = [pointer(b, uniforms, k) for k in range(len(spec.uniforms))]
    leaves = [pointer(b, outs, k) for k in range(len(spec.leaves))]
    with loop(b, i64(0), lanes, width) as lane:
        rest = b.sub(lanes, lane)
        values = iter(expr.emit(b, spec.finish, _state_or_identity(b, spec, state, lanes, lane, width, rest), captured, width))
        for leaf, (dtype, slots) in zip(leaves, spec.leaves, strict=True):
            p = address(b, leaf, scaled(b, lane, itemsize(dtype) * slots))
            store_row(b, [next(values) for _ in range(slots)], p, dtype, width, rest)
    b.ret_void()


def _state_or_identity(
    b: ir.IRBuilder, spec: ScanSpec, state: ir.Value, lanes: ir.Value, lane: ir.Value, width: int, rest: ir.Value
) -> list[ir.Value]:
    if spec.identity is None:
        return load_state(b, spec, state, lanes, lane, width, rest)
    before = b.block
    with b.if_then(b.icmp_unsigned("!=", state, ir.Constant(PTR, None))):
        there, loaded = load_state(b, spec, state, lanes, lane, width, rest), b.block
    phis = []
    for t, bits, v in zip(spec.state, spec.identity, there, strict=True):
        phis.append(b.phi(v.type))
        phis[-1].add_incoming(expr.constant(t, bits, width), before)
        phis[-1].add_incoming(v, loaded)
    return phis
