"""The kernels of the ordered family (scan, reduction, segmented reduction): OrderedSpec -> LLVM IR.

``cpu/ordered_kernel.h`` says what each function does. ``scan`` and ``reduce`` are built elsewhere, by form: ``scan_along`` (a
vector runs along the sequence), ``scan_across`` (across many sequences side by side), ``scan_abreast`` (a short row in each
lane), ``reduce``, ``reduce_rows`` (many rows, a vector along each). Here are the two that only see states: ``combine`` and
``finish``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from llvmlite import ir

from ....specs.ordered import OrderedSpec
from ..llvm.build import I64, NULL, PTR, all_pointers, chosen, declare, i64, loop
from ..llvm.engine import module_of
from . import reduce, reduce_rows, scan_abreast, scan_across, scan_along, segment_runs
from .elements import vector_width
from .rows import apply_op, identity_state, load_state, reduce_by_scan, store_results, store_state, uniforms_of

PLAIN, PERIODIC, STREAMING, SPACED = 0, 1, 2, 4
"""Bits of a variant. PERIODIC: ``scan`` takes rows of ``period`` elements, one behind the other. STREAMING: it stores whole
vectors of results past the caches; they must be aligned to their size, or to 64 bytes if that is less. SPACED: rows of a
reduction lie as far apart as each operand has them."""


def function_names(spec: OrderedSpec, variant: int) -> list[str]:
    if variant & PERIODIC:
        return ["scan"]
    if spec.kind == "scan":
        return ["scan", "reduce", "combine"]
    names = ["reduce", "combine", "finish"]
    if spec.kind == "segments" and not spec.across:
        names.append("runs")
    return names


def generate(spec: OrderedSpec, variant: int, vector_bytes: int) -> ir.Module:
    """The module with :func:`function_names`'s functions."""
    module = module_of("scan")
    width, streams = vector_width(spec, vector_bytes), bool(variant & STREAMING)
    for name in function_names(spec, variant):
        if variant & SPACED:
            reduce_rows.reduce_rows(module, spec, vector_bytes, spaced=True)
        elif variant & PERIODIC and spec.across:
            scan_across.rows(module, spec, vector_bytes)
        elif variant & PERIODIC and not scan_along.runs_along_short_rows(spec, vector_bytes):
            folded = reduce_rows.reduce_rows(module, spec, vector_bytes)
            scan_abreast.scan(module, spec, vector_bytes, folded)
        elif name == "combine":
            combine(module, spec, width if spec.across else 1)
        elif name == "finish":
            finish(module, spec, width if spec.across else 1)
        elif name == "runs":
            segment_runs.runs(module, spec, vector_bytes)
        elif name == "reduce" and spec.kind == "scan":
            reduce_by_scan(module, module.globals["scan" if spec.across else scan_along.ALONG])
        elif name == "reduce":
            (scan_across if spec.across else reduce).reduce(module, spec, vector_bytes)
        elif spec.across:
            scan_across.scan(module, spec, vector_bytes, streams=streams)
        else:
            scan_along.scan(module, spec, vector_bytes, periodic=bool(variant & PERIODIC), streams=streams)
    return module


def combine(module: ir.Module, spec: OrderedSpec, width: int) -> None:
    b, (uniforms, first, second, out, lanes) = declare(module, "combine", [PTR, PTR, PTR, PTR, I64])
    captured = uniforms_of(b, spec, uniforms)
    with _lanes(b, spec, lanes, width) as lane:
        rest = b.sub(lanes, lane)
        states = (load_state(b, spec, place, lanes, lane, width, rest) for place in (first, second))
        store_state(b, spec, apply_op(b, spec, captured, width, *states), out, lanes, lane, rest)
    b.ret_void()


def finish(module: ir.Module, spec: OrderedSpec, width: int) -> None:
    b, (uniforms, state, outs, lanes) = declare(module, "finish", [PTR, PTR, PTR, I64])
    captured = uniforms_of(b, spec, uniforms)
    leaves = all_pointers(b, outs, len(spec.leaves))
    with _lanes(b, spec, lanes, width) as lane:
        rest = b.sub(lanes, lane)
        made = _state_or_identity(b, spec, state, lanes, lane, width, rest)
        store_results(b, spec, made, captured, leaves, lane, width, rest)
    b.ret_void()


def _lanes(b: ir.IRBuilder, spec: OrderedSpec, lanes: ir.Value, width: int) -> AbstractContextManager[ir.Value]:
    """Over all lanes, ``width`` at a time. Along a sequence there is one."""
    return loop(b, i64(0), lanes, width) if spec.across else nullcontext(i64(0))


def _state_or_identity(
    b: ir.IRBuilder, spec: OrderedSpec, state: ir.Value, lanes: ir.Value, lane: ir.Value, width: int, rest: ir.Value
) -> list[ir.Value]:
    if spec.identity is None:
        return load_state(b, spec, state, lanes, lane, width, rest)
    there = b.icmp_unsigned("!=", state, NULL)
    return chosen(b, there, lambda: load_state(b, spec, state, lanes, lane, width, rest), lambda: identity_state(spec, width))
