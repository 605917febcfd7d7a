"""ArrayProgram -> an LLVM function on arrays in memory.

A nest is compiled as it stands, so that code is as long as the program is and not as its arrays are: counted loops, in them a
block of vectors. Vectors run along an outer loop, in which what is written lies side by side, or, where no such loop suits what
is read, along an inner one. A block of a reduction has several rows of accumulators, in registers, for which what does not differ
from row to row is loaded once: a product of matrices is a loop of one load and so many multiplications by a number each.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from llvmlite import ir

from ....ir.arrays import INDEX, Access, ArrayProgram, Nest
from ....ir.program import NEUTRAL, Program, itemsize, neutral_bits, register_bytes
from . import expr
from .build import I1, I32, PTR, declare, i64, load, loop, store
from .engine import target
from .math import goes_in_pairs
from .table import TABLE, convert
from .types import (
    HALVES,
    alloca,
    constant,
    from_memory,
    intrinsic,
    memory_type,
    numbers,
    register_type,
    rounded,
    splat,
    take,
    to_memory,
    with_lanes,
)
from .vectors import load_first, store_first

LEAST_BYTES = 16
"""Of a vector: shorter ones are masked."""

UNROLLED = 4
"""Vectors of a row that a block has."""

ROWS_ACROSS = 4
"""Accumulators of a block that is reduced along its vectors: of so many rows, or, if there is one, of its vectors by turns."""


def function(module: ir.Module, name: str, p: ArrayProgram) -> ir.Function:
    """``name(results..., parameters..., captured arrays...)``, pointers. Results overlap nothing else."""
    count = len(p.results)
    b, args = declare(module, name, [PTR] * (count + len(p.params) + len(p.uniforms)), inner=True)
    for arg in args[:count]:
        arg.add_attribute("noalias")
    places: list[ir.Value] = list(args[count:])
    for k, (dtype, size) in enumerate(p.made, len(places)):
        mine = k in p.results
        places.append(args[p.results.index(k)] if mine else alloca(b, ir.ArrayType(memory_type(dtype), size)))
    for n in p.nests:
        _Emission(b, n, places, [t for t, _ in p.arrays]).emit()
    b.ret_void()
    return b.function


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Lanes [start, start + count) of the loop that vectors run along, in a vector of ``width``."""

    start: int
    width: int
    count: int


def _pieces(extent: int, most: int, least: int) -> list[_Piece]:
    out = [_Piece(at, most, most) for at in range(0, extent - most + 1, most)]
    rest = extent % most
    if rest:
        width = 1 if rest == 1 else max(least, 1 << (rest - 1).bit_length())
        out.append(_Piece(extent - rest, min(width, most), rest))
    return out


class _Emission:
    def __init__(self, b: ir.IRBuilder, nest: Nest, places: Sequence[ir.Value], dtypes: Sequence[str]):
        self.b, self.nest, self.places, self.dtypes = b, nest, places, dtypes
        self.result = nest.body.result_dtypes[0]
        self.written = dtypes[nest.write.of]
        bytes_ = max(register_bytes(i.dtype) for i in nest.body.walk() if i.dtype != "tuple")
        self.least, self.most = LEAST_BYTES // bytes_, target().vector_bytes // bytes_
        self.along = self._vector_loop()
        self.across = self.along >= nest.outer  # vectors run along what is reduced
        if self.across:
            self.most = min(self.most, 1 << (nest.extents[self.along] - 1).bit_length())
        elif not nest.inner and goes_in_pairs(nest.body):
            self.most *= 2
        self.rows = self._row_loop()

    def strides(self, k: int) -> list[int]:
        """Of each access, written first, in loop k."""
        mine = [self.nest.write.strides[k] if k < self.nest.outer else 0]
        return [*mine, *(r.strides[k] for r in self.nest.reads)]

    def _vector_loop(self) -> int:
        """The loop in which the fewest accesses are neither side by side nor the same; -1: none."""
        n = self.nest
        bad = {k: sum(s not in (0, 1) for s in self.strides(k)) for k in range(len(n.extents)) if n.extents[k] > 1}
        outer = {k: c for k, c in bad.items() if k < n.outer}
        inner = {k: c for k, c in bad.items() if k >= n.outer and not c and n.extents[k] >= self.least}
        if outer and (min(outer.values()) == 0 or not inner):
            best = min(outer.values())
            return max((k for k, c in outer.items() if c == best), key=lambda k: (self.strides(k)[0] == 1, k))
        return max(inner, default=-1)

    def _row_loop(self) -> int:
        """The outer loop whose turns share the most of what is read; -1: none."""
        n = self.nest
        others = [k for k in range(n.outer) if k != self.along]
        if not others or not n.inner:
            return -1
        return max(others, key=lambda k: (sum(s == 0 for s in self.strides(k)), k))

    def emit(self) -> None:
        n = self.nest
        groups: list[list[_Piece]] = [[_Piece(0, 1, 1)]]
        if self.along >= 0 and not self.across:
            pieces = _pieces(n.extents[self.along], self.most, self.least)
            groups = [pieces[k : k + UNROLLED] for k in range(0, len(pieces), UNROLLED)]
        index: list[ir.Value] = [i64(0)] * len(n.extents)
        rest = [k for k in range(n.outer) if k not in (self.along, self.rows)]
        self._outer(rest, index, groups)

    def _outer(self, loops: list[int], index: list[ir.Value], groups: list[list[_Piece]]) -> None:
        b, n = self.b, self.nest
        if loops:
            with loop(b, i64(0), i64(n.extents[loops[0]])) as i:
                index[loops[0]] = i
                self._outer(loops[1:], index, groups)
            return
        same = [g for g in groups if len(g) == UNROLLED and g[-1].count == self.most]
        if len(same) > 1:  # a loop over whole groups
            with loop(b, i64(0), i64(len(same) * UNROLLED * self.most), UNROLLED * self.most) as i:
                index[self.along] = i
                self._row_blocks(index, same[0])
            index[self.along] = i64(0)
            groups = groups[len(same) :]
        for group in groups:
            self._row_blocks(index, group)

    def _row_blocks(self, index: list[ir.Value], group: list[_Piece]) -> None:
        b = self.b
        if self.rows < 0:
            return self._block(index, 1, group)
        extent = self.nest.extents[self.rows]
        registers = 16 if target().vector_bytes == 64 else 8
        size = min(extent, ROWS_ACROSS if self.across or self.along < 0 else max(1, registers // len(group)))
        size = next((d for d in range(size, size // 2, -1) if extent % d == 0), size)
        whole = extent // size * size
        with loop(b, i64(0), i64(whole), size) as i:
            index[self.rows] = i
            self._block(index, size, group)
        if whole < extent:
            index[self.rows] = i64(whole)
            self._block(index, extent - whole, group)
        index[self.rows] = i64(0)

    def _block(self, index: list[ir.Value], rows: int, group: list[_Piece]) -> None:
        b, n = self.b, self.nest
        if not n.inner:
            for row, piece in itertools.product(range(rows), group):
                self._write(index, row, piece, self._values(index, row, piece, {}, n.body)[0])
            return
        where = list(itertools.product(range(rows), group))
        wide, turns = self.most if self.across else 0, 1
        if self.across and rows == 1 and n.extents[self.along] >= ROWS_ACROSS * self.most:
            turns = ROWS_ACROSS
            where *= turns
        types = [register_type(self.result, wide or piece.width) for _, piece in where]
        held = [alloca(b, t) for t in types]
        for p, t in zip(held, types, strict=True):
            start = constant(self.result, neutral_bits(NEUTRAL[n.combine], self.result))
            b.store(splat(b, start, getattr(t, "count", 1)), p)
        for inside in self._reduced([k for k in range(n.outer, len(n.extents)) if k != self.along], index, turns):
            loaded: dict[tuple[int, int, int], ir.Value] = {}
            for k, ((row, piece), p, t) in enumerate(zip(where, held, types, strict=True)):
                if inside is not None and turns > 1:
                    if k == len(inside):
                        break
                    piece = inside[k]
                elif inside is not None:
                    (piece,) = inside
                b.store(self._combined(b.load(p, typ=t), index, row, piece, loaded), p)
        for (row, piece), p, t in zip(where[::turns], held[::turns], types[::turns], strict=True):
            total = b.load(p, typ=t)
            for q in held[1:turns]:
                total = TABLE[n.combine](b, self.result, total, b.load(q, typ=t))
            while self.across and getattr(total.type, "count", 1) > 1:
                half = total.type.count // 2
                low, high = (take(b, total, total, range(k, k + half)) for k in (0, half))
                if half == 1:
                    low, high = (b.extract_element(x, I32(0)) for x in (low, high))
                total = TABLE[n.combine](b, self.result, low, high)
            self._write(index, row, piece, total)

    def _reduced(self, loops: list[int], index: list[ir.Value], turns: int) -> Iterator[Sequence[_Piece] | None]:
        """Inside these loops; where vectors run along another reduced one, also which pieces of it are at hand: ``turns`` of
        them, or what is left."""
        b, n = self.b, self.nest
        if loops:
            with loop(b, i64(0), i64(n.extents[loops[0]])) as i:
                index[loops[0]] = i
                yield from self._reduced(loops[1:], index, turns)
        elif not self.across:
            yield None
        else:
            extent, at, width = n.extents[self.along], 0, self.most
            for count in dict.fromkeys((turns, 1)):
                end = at + (extent - at) // (count * width) * count * width
                if at < end:
                    with loop(b, i64(at), i64(end), count * width) as i:
                        index[self.along] = i
                        yield [_Piece(k * width, width, width) for k in range(count)]
                at = end
            if at < extent:
                index[self.along] = i64(at)
                yield [_Piece(0, width, extent - at)]
            index[self.along] = i64(0)

    def _combined(
        self, total: ir.Value, index: list[ir.Value], row: int, piece: _Piece, loaded: dict[tuple[int, int, int], ir.Value]
    ) -> ir.Value:
        b, how, body = self.b, self.nest.combine, self.nest.body
        last = body.body[body.results[0]]
        if how == "add" and last.op == "mul" and self.result in ("f32", "f64") and target().fma:
            factors = self._values(index, row, piece, loaded, Program(body.params, body.body, last.operands))
            fused = intrinsic(b, "fma", total.type, *factors, total)
        else:
            (value,) = self._values(index, row, piece, loaded, body)
            fused = TABLE[how](b, self.result, total, value)
        if not self.across or piece.count == piece.width:
            return fused
        return b.select(numbers(I1, [int(k < piece.count) for k in range(piece.width)]), fused, total)

    def _values(
        self, index: list[ir.Value], row: int, piece: _Piece, loaded: dict[tuple[int, int, int], ir.Value], body: Program
    ) -> list[ir.Value]:
        args = []
        for k, read in enumerate(self.nest.reads):
            step = read.strides[self.along] if self.along >= 0 else 0
            mine = read.strides[self.rows] if self.rows >= 0 else 0
            key = (k, row if mine else 0, piece.start if step else -1)
            if key not in loaded:
                loaded[key] = self._read(read, index, row * mine + piece.start * step, step, piece)
            args.append(loaded[key])
        return expr.emit(self.b, body, args, [], piece.width)

    def _position(self, access: Access, index: list[ir.Value], offset: int) -> ir.Value:
        b = self.b
        total: ir.Value = i64(access.offset + offset)
        for k, stride in enumerate(access.strides):
            if stride and not isinstance(index[k], ir.Constant):
                total = b.add(b.mul(index[k], i64(stride)), total)
            elif stride and index[k].constant:
                total = b.add(total, i64(index[k].constant * stride))
        return total

    def _at(self, access: Access, index: list[ir.Value], offset: int) -> ir.Value:
        place = self._position(access, index, offset)
        return self.b.gep(self.places[access.of], [place], source_etype=memory_type(self.dtypes[access.of]))

    def _read(self, access: Access, index: list[ir.Value], offset: int, step: int, piece: _Piece) -> ir.Value:
        b = self.b
        if access.of == INDEX:
            first = b.trunc(self._position(access, index, offset), I32)
            if step == 0 or piece.width == 1:
                return first
            lanes = numbers(I32, [step * min(k, piece.count - 1) for k in range(piece.width)])
            return b.add(splat(b, first, piece.width), lanes)
        dtype, p = self.dtypes[access.of], self._at(access, index, offset)
        if step == 0 or piece.width == 1:
            return load(b, p, dtype)
        t = memory_type(dtype)
        vector = ir.VectorType(t, piece.width)
        if step == 1 and piece.count == piece.width:
            return load(b, p, dtype, piece.width)
        if step == 1:
            return from_memory(b, load_first(b, p, vector, i64(piece.count), itemsize(dtype)), dtype)
        ones = (b.load(b.gep(p, [i64(k * step)], source_etype=t), typ=t) for k in range(piece.count))
        return from_memory(b, with_lanes(b, ir.Constant(vector, None), ones), dtype)

    def _write(self, index: list[ir.Value], row: int, piece: _Piece, value: ir.Value) -> None:
        b, access, dtype = self.b, self.nest.write, self.written
        step = access.strides[self.along] if self.along >= 0 and not self.across else 0
        mine = access.strides[self.rows] if self.rows >= 0 else 0
        if self.result in HALVES and self.nest.inner:
            value = rounded(b, value, self.result)
        value = convert(b, value, self.result, dtype)
        p = self._at(access, index, row * mine + piece.start * step)
        if piece.width == 1 or (step == 1 and piece.count == piece.width):
            return store(b, value, p, dtype)
        stored = to_memory(b, value, dtype)
        t = memory_type(dtype)
        if step == 1:
            store_first(b, stored, p, i64(piece.count), itemsize(dtype))
            return
        for k in range(piece.count):
            b.store(b.extract_element(stored, I32(k)), b.gep(p, [i64(k * step)], source_etype=t))
