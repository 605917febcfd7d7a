"""The histogram kernel's skeleton: HistogramSpec -> LLVM IR (Henriksen et al. 2020, listing 3, on a CPU).

Three kinds of function, called by the driver in ``cpu/hist.h``:

``update(arrays, uniforms, tables, bins, lo, hi, bin_lo, bin_hi)``
    Elements [lo, hi) into the tables, chunk by chunk. Phase one evaluates f on vectors and leaves each update's place and value
    in small buffers. Phase two applies the operator, scalar and branchless, from the buffers; it is all stores and loads that
    hit L1 when the table does.
``fill_g(tables, uniforms, lo, hi)``
    Bins [lo, hi) of histogram g to the identity, which may be made of captured arrays.
``combine_g(outs, dests, uniforms, table, parts, stride, lo, hi)``
    Folds ``parts`` subhistograms, ``stride`` bytes apart, in order, then dest from the left, into the result.

A :class:`Variant` fixes what is worth fixing at compile time. Tables are arrays of structs (one cache line for an update of a
tuple), or the result's own arrays when nothing may be copied.
"""

from __future__ import annotations

from llvmlite import ir

from ....ir.program import itemsize
from ....specs.histogram import HistogramSpec, PartSpec
from ....specs.histogram_layout import Variant, leaf_of_slot, slot_offsets
from ..llvm import expr
from ..llvm.build import I64, PTR, address, declare, i64, load, load_slots, loop, pointer, scaled, store, store_slots
from ..llvm.engine import FEWEST_PACKED, module_of, pack
from ..llvm.types import constant, to_memory
from ..llvm.vectors import Held
from .runs import Update


def function_names(spec: HistogramSpec) -> list[str]:
    return ["update"] + [f"{kind}_{g}" for kind in ("fill", "combine") for g in range(len(spec.bins))]


def generate(spec: HistogramSpec, variant: Variant, vector_bytes: int) -> ir.Module:
    """The module with :func:`function_names`'s functions."""
    module = module_of("hist")
    if any(bins.slots >= FEWEST_PACKED and not bins.rows for bins in spec.bins):
        pack(module)
    Update(module, spec, variant, vector_bytes).build()
    for g, bins in enumerate(spec.bins):
        fill(module, bins, variant, f"fill_{g}", len(spec.uniforms))
        combine(module, bins, variant, f"combine_{g}", vector_bytes // 4, len(spec.uniforms))
    return module


def fill(module: ir.Module, bins: PartSpec, variant: Variant, name: str, num_uniforms: int) -> None:
    b, (tables, uniforms, lo, hi) = declare(module, name, [PTR, PTR, I64, I64])
    if bins.start is not None:
        identity = expr.emit(b, bins.start, [], [pointer(b, uniforms, k) for k in range(num_uniforms)], 1)
    elif bins.identity is not None:
        identity = [constant(dtype, bits, 1) for dtype, bits in zip(bins.acc, bins.identity, strict=True)]
    else:
        b.ret_void()
        return
    if variant.soa:
        for k, s, dtype, n in leaf_of_slot(bins):
            leaf = pointer(b, tables, k)
            value = identity[sum(m for _, m in bins.leaves[:k]) + s]
            scale = bins.lanes * n
            with loop(b, scaled(b, lo, scale // n), scaled(b, hi, scale // n)) as i:
                at = b.add(scaled(b, i, n), i64(s))
                store(b, value, address(b, leaf, scaled(b, at, itemsize(dtype))), dtype)
    else:
        offsets, size = slot_offsets(bins)
        entries = variant.copies * bins.lanes
        table = pointer(b, tables, 0)
        with loop(b, scaled(b, lo, entries), scaled(b, hi, entries)) as i:
            entry = address(b, table, scaled(b, i, size))
            for offset, dtype, value in zip(offsets, bins.acc, identity, strict=True):
                store(b, value, address(b, entry, i64(offset)), dtype)
    b.ret_void()


def combine(module: ir.Module, bins: PartSpec, variant: Variant, name: str, width: int, num_uniforms: int) -> None:
    b, (outs, dests, uniforms, table, parts, stride, lo, hi) = declare(module, name, [PTR, PTR, PTR, PTR, I64, I64, I64, I64])
    if variant.soa:
        b.ret_void()
        return
    offsets, size = slot_offsets(bins)
    same = len(set(bins.acc)) == 1  # a vector of structs can be loaded at once
    captured = [pointer(b, uniforms, k) for k in range(num_uniforms)]
    leaf_outs = [pointer(b, outs, k) for k in range(len(bins.leaves))]
    leaf_dests = [pointer(b, dests, k) for k in range(len(bins.leaves))] if bins.dest else []

    def fold(first: ir.Value, w: int) -> None:
        def slots_of(entry: ir.Value) -> list[ir.Value]:
            if w == 1:
                return [load(b, address(b, entry, i64(o)), t) for o, t in zip(offsets, bins.acc, strict=True)]
            return list(load_slots(b, entry, bins.acc[0], w, bins.slots, range(bins.slots)).values())

        base = address(b, table, scaled(b, first, size * variant.copies))
        carried = Held(b, bins.acc, w)
        for c in range(variant.copies):
            values = slots_of(address(b, base, i64(c * size)))
            carried.put(expr.emit(b, bins.op, carried.get() + values, captured, w) if c else values)
        with loop(b, i64(1), parts) as k, loop(b, i64(0), i64(variant.copies)) as c:
            entry = address(b, address(b, base, b.mul(k, stride)), scaled(b, c, size))
            carried.put(expr.emit(b, bins.op, carried.get() + slots_of(entry), captured, w))
        now = carried.get()
        if bins.finish is not None:
            now = expr.emit(b, bins.finish, now, [], w)
        rows = leaf_of_slot(bins)
        if bins.dest:
            given = []
            for k, s, dtype, n in rows:
                p = address(b, leaf_dests[k], scaled(b, scaled(b, first, n), itemsize(dtype)))
                given.append(load_slots(b, p, dtype, w, n, [s])[s])
            now = expr.emit(b, bins.outer or bins.op, given + now, captured, w)
        for k, (dtype, n) in enumerate(bins.leaves):
            p = address(b, leaf_outs[k], scaled(b, scaled(b, first, n), itemsize(dtype)))
            mine = [v for v, row in zip(now, rows, strict=True) if row[0] == k]
            store_slots(b, [to_memory(b, v, dtype) for v in mine], p, dtype, w)

    start, stop = scaled(b, lo, bins.lanes), scaled(b, hi, bins.lanes)
    if same and variant.copies == 1:
        whole = b.add(start, b.and_(b.sub(stop, start), i64(-width)))
        with loop(b, start, whole, width) as i:
            fold(i, width)
        start = whole
    with loop(b, start, stop) as i:
        fold(i, 1)
    b.ret_void()
