"""Phase two for array-valued bins: values are made of rows, lane by lane, and so is the operator applied."""

from __future__ import annotations

from llvmlite import ir

from ....ir.program import Program, itemsize, register_bytes
from ....ir.work import work
from ....specs.histogram import PartSpec
from ..llvm import expr
from ..llvm.build import I64, address, i64, load_few, loop, part, prefetch, repeated, scaled, side_by_side, store_few, vector_for
from ..llvm.types import splat, to_memory
from .vector_phase import PREFETCH_AHEAD, VectorPhase

ROWS_AHEAD = 8
"""Updates between the prefetch of a row and its use, and of each at most so many bytes."""

MOST_FETCHED = 512

CHEAP, TURN = 16, 4
"""Instructions of an operator that is written out for so many vectors of a row; one that is longer for one in a turn."""

DEAR = 8
"""Work of a value from which on several elements' narrow rows are one vector: a function costs the same for all its lanes."""


def shares_vectors(bins: PartSpec) -> bool:
    """Are several elements' values made in one vector, where that holds them?"""
    value = bins.value
    if value is None or value.may_not_end or bins.op.may_not_end:  # nobody waits for what is dropped
        return False
    return len(bins.op.body) <= CHEAP and work(value) > DEAR


class Rows(VectorPhase):
    """Applies a chunk's updates to the array-valued bins of histogram g."""

    def _combine_lanes(self, g: int, first: ir.Value, j: ir.Value, bin_: ir.Value) -> None:
        """An array-valued bin, lane by lane; lanes of the bin and of its value's rows lie side by side, so vectors of them do."""
        b, h, value = self.b, self.spec.bins[g], self._lane_value(g)
        self._prefetch_rows(g, b.add(j, i64(ROWS_AHEAD)))
        rows = self._rows(g, first, j)
        scalars = [self._value(g, 0, s, first, j) for s in range(h.bases, h.given)]
        size, dtype = itemsize(h.acc[0]), h.acc[0]

        def lanes(at: ir.Value, count: int) -> None:
            there = address(b, bin_, scaled(b, at, h.slots * size))
            args, width = load_few(b, there, dtype, count, h.slots), vector_for(count)
            args += expr.emit(b, value, [*self._lanes_of(g, rows, at, count), *scalars], self.uniforms, width)
            now = expr.emit(b, h.op, args, self.uniforms, width)
            store_few(b, [to_memory(b, v, dtype) for v in now], there, dtype, count)

        width, at = self._lanes_at_once(g), 0
        cheap = len(h.op.body) + len(value.body) <= CHEAP
        turn = TURN * width if cheap else width
        if h.lanes > turn:
            at = h.lanes // turn * turn
            with loop(b, i64(0), i64(at), turn) as lane:
                for k in range(0, turn, width):
                    lanes(b.add(lane, i64(k)), width)
        while at < h.lanes:
            count = min(width, h.lanes - at)
            lanes(i64(at), count)
            at += count

    def _lanes_at_once(self, g: int) -> int:
        """More than phase one's vectors have, where all numbers are of fewer bytes than an index."""
        h = self.spec.bins[g]
        dtypes = {h.acc[0], *(i.dtype for program in (h.op, self._lane_value(g)) for i in program.walk())}
        widest = max(4 if t == "tuple" else register_bytes(t) for t in dtypes)
        return max(self.width, self.vector_bytes // widest)

    def _lane_value(self, g: int) -> Program:
        value = self.spec.bins[g].value
        assert value is not None
        return value

    def _lanes_of(self, g: int, rows: list[tuple[ir.Value, str]], at: ir.Value, count: int) -> list[ir.Value]:
        """``count`` lanes of each slot of each row, from ``at`` on."""
        b, h, out = self.b, self.spec.bins[g], []
        for (row, t), each in zip(rows, (r.each for r in h.rows), strict=True):
            if each == 1:
                out += load_few(b, address(b, row, scaled(b, at, h.slots * itemsize(t))), t, count, h.slots)
            else:
                out.append(repeated(b, row, t, at, count, each))
        return out

    def _together(self, g: int) -> int:
        """How many elements' values are one vector's."""
        h = self.spec.bins[g]
        return max(1, self.width // vector_for(h.lanes)) if shares_vectors(h) else 1

    def _combine_together(self, g: int, first: ir.Value, count: ir.Value) -> ir.Value:
        """Updates whose values are made for several elements at once: the first so many of them."""
        b, h, value, together = self.b, self.spec.bins[g], self._lane_value(g), self._together(g)
        if together == 1:
            return i64(0)
        stride, whole, dtype = vector_for(h.lanes), b.and_(count, i64(-together)), h.acc[0]
        with loop(b, i64(0), whole, together) as j:
            elements = [b.add(j, i64(k)) for k in range(together)]
            given = []
            for e in elements:
                self._prefetch_rows(g, b.add(e, i64(ROWS_AHEAD)))
                if self.variant.prefetch:
                    self._prefetch(g, 0, b.add(e, i64(PREFETCH_AHEAD)))
                scalars = [splat(b, self._value(g, 0, s, first, e), stride) for s in range(h.bases, h.given)]
                given.append(self._lanes_of(g, self._rows(g, first, e), i64(0), h.lanes) + scalars)
            args = [side_by_side(b, vectors) for vectors in zip(*given, strict=True)]
            values = expr.emit(b, value, args, self.uniforms, together * stride)
            for k, e in enumerate(elements):
                there = self._places(g, self._offset(g, 0, e))[0]
                mine = [part(b, v, range(k * stride, (k + 1) * stride)) for v in values]
                now = load_few(b, there, dtype, h.lanes, h.slots)
                now = expr.emit(b, h.op, now + mine, self.uniforms, stride)
                store_few(b, [to_memory(b, v, dtype) for v in now], there, dtype, h.lanes)
        return whole

    def _rows(self, g: int, first: ir.Value, j: ir.Value) -> list[tuple[ir.Value, str]]:
        """Where each row starts, and its dtype."""
        b, h = self.b, self.spec.bins[g]
        out, bases = [], iter(range(h.bases))
        for row in h.rows:
            if row.own:
                array = self.spec.arrays[row.number]
                pointer, dtype = self.arrays[row.number], array.dtype
                at = scaled(b, b.add(first, self._element(g, 0, j)), array.slots)
            else:
                pointer, dtype = self.uniforms[row.number], self.spec.uniforms[row.number]
                at = self._base(g, next(bases), first, j) if row.based else i64(0)
            out.append((address(b, pointer, scaled(b, b.add(at, i64(row.offset)), itemsize(dtype))), dtype))
        return out

    def _base(self, g: int, k: int, first: ir.Value, j: ir.Value) -> ir.Value:
        base = self._value(g, 0, k, first, j)
        return base if base.type == I64 else self.b.sext(base, I64)

    def _prefetch_rows(self, g: int, j: ir.Value) -> None:
        """Fetches what lies anywhere of an element to come: rows of captured arrays."""
        b, h, bases = self.b, self.spec.bins[g], iter(range(self.spec.bins[g].bases))
        for row in h.rows:
            k = next(bases) if row.based else None
            if k is None or self.sources[g][0][k].kind != "buffer":
                continue
            dtype = self.spec.uniforms[row.number]
            start = address(b, self.uniforms[row.number], scaled(b, self._base(g, k, i64(0), j), itemsize(dtype)))
            for line in range(0, min(h.numbers(row) * itemsize(dtype), MOST_FETCHED), 64):
                at = address(b, start, i64(row.offset * itemsize(dtype) + line))
                prefetch(b, at)
