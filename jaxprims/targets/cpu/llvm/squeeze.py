"""Chosen lanes of vectors, stored in a row."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from . import engine
from .build import I8, I32, I64, address, bytes_of, i64
from .types import call, numbers, suffix, undefined

LANES = 8
"""Numbers of 4 bytes in a vector that AVX2 permutes."""


def store_kept(b: ir.IRBuilder, rows: Sequence[tuple[ir.Value, ir.Value]], keep: ir.Value, n: ir.Value) -> ir.Value:
    """Of each vector the lanes for which ``keep`` is true, from place ``n`` of its buffer on; the place behind them. What lies
    there, up to a vector, is written over.

    AVX-512 has an instruction for it, AVX2 one that permutes by numbers, which a table has for each mask. There is no branch, so
    nothing waits for a misprediction. Without either each lane is stored where the next one that is kept will be, unless all are
    kept.
    """
    width, where = keep.type.count, engine.target().vector_bytes
    bits = b.bitcast(keep, ir.IntType(width))
    after = b.add(n, b.zext(b.ctpop(bits), I64))
    if where > 16:
        for v, buffer in rows:
            _store_squeezed(b, v, keep, bits, buffer, n, where)
        return after
    with b.if_else(b.icmp_unsigned("==", bits, ir.Constant(bits.type, -1))) as (whole, others):
        with whole:
            for v, buffer in rows:
                b.store(v, _at(b, buffer, n, v.type.element), align=1)
        with others:
            for k in range(width):
                for v, buffer in rows:
                    b.store(b.extract_element(v, i64(k)), _at(b, buffer, n, v.type.element), align=1)
                n = b.add(n, b.zext(b.extract_element(keep, i64(k)), I64))
    return after


def _at(b: ir.IRBuilder, buffer: ir.Value, place: ir.Value, t: ir.Type) -> ir.Value:
    return b.gep(buffer, [place], source_etype=t)


def _store_squeezed(
    b: ir.IRBuilder, v: ir.Value, keep: ir.Value, bits: ir.Value, buffer: ir.Value, n: ir.Value, vector_bytes: int
) -> None:
    """One register's worth at a time: LLVM 22 spills a wider vector's second half with an aligned store to an unaligned place,
    and does not compile what is narrower than the narrowest register."""
    width, narrow = v.type.count, v.type.element
    smallest = ir.IntType(32 if vector_bytes < 64 else max(8, 128 // width))
    t = smallest if isinstance(narrow, ir.IntType) and narrow.width < smallest.width else narrow
    v = v if t is narrow else b.zext(v, ir.VectorType(t, width))
    piece = min(width, vector_bytes // bytes_of(t))
    squeeze = _compressed if vector_bytes == 64 else _permuted
    for first in range(0, width, piece):
        lanes = numbers(I32, range(first, first + piece))
        part = b.shuffle_vector(v, undefined(v.type), lanes)
        mask = b.shuffle_vector(keep, undefined(keep.type), lanes)
        before = b.and_(bits, ir.Constant(bits.type, (1 << first) - 1))
        place = b.add(n, b.zext(b.ctpop(before), I64)) if first else n
        squeezed = squeeze(b, part, mask)
        squeezed = squeezed if t is narrow else b.trunc(squeezed, ir.VectorType(narrow, piece))
        b.store(squeezed, _at(b, buffer, place, narrow), align=1)


def _compressed(b: ir.IRBuilder, v: ir.Value, keep: ir.Value) -> ir.Value:
    return call(b, f"llvm.experimental.vector.compress.{suffix(v.type)}", v.type, v, keep, undefined(v.type))


def _permuted(b: ir.IRBuilder, v: ir.Value, keep: ir.Value) -> ir.Value:
    """Of up to 8 lanes of 4 bytes or 4 of 8, which are pairs."""
    count, halves = v.type.count, bytes_of(v.type.element) // 4
    whole = ir.VectorType(I32, LANES)
    words = b.bitcast(v, ir.VectorType(I32, count * halves))
    if count * halves < LANES:
        words = b.shuffle_vector(words, undefined(words.type), numbers(I32, [k % count for k in range(LANES)]))
    mask = b.zext(b.bitcast(keep, ir.IntType(count)), I64)
    row = b.load(address(b, _places(b.module, LANES // halves, halves), b.mul(mask, i64(LANES))), typ=ir.VectorType(I8, LANES))
    row.align = LANES
    words = call(b, "llvm.x86.avx2.permd", whole, words, b.zext(row, whole))
    if count * halves < LANES:
        words = b.shuffle_vector(words, undefined(whole), numbers(I32, range(count * halves)))
    return b.bitcast(words, v.type)


def _places(module: ir.Module, lanes: int, halves: int) -> ir.Value:
    """For each mask of so many lanes the numbers of the words that are kept, 8 bytes."""
    name = f"kept_of_{lanes}"
    table = module.globals.get(name)
    if table is None:
        rows = []
        for mask in range(1 << lanes):
            kept = [halves * k + h for k in range(lanes) if mask >> k & 1 for h in range(halves)]
            rows += kept + [0] * (LANES - len(kept))
        t = ir.ArrayType(I8, len(rows))
        table = ir.GlobalVariable(module, t, name)
        table.global_constant, table.linkage, table.align = True, "internal", LANES
        table.initializer = ir.Constant(t, bytearray(rows))
    return table
