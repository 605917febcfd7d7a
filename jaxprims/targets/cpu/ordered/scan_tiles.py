"""Scans of expensive operators along a row: lanes take consecutive elements, so that two applications for each element do."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ..llvm import expr
from ..llvm.build import I8, I32, bytes_of, chosen, i64, least, loop
from ..llvm.types import alloca, splat, take
from .elements import Elements, vector_width
from .rows import identity_state
from .scan_base import Values
from .scan_log_steps import LogSteps
from .squares import from_stored, stored_type, to_stored, transposer


class Tile(LogSteps):
    """For expensive operators: a lane takes ``width`` consecutive elements, so that two applications for each do.

    Vectors are transposed in squares. A lane's elements are combined one after the other, its last with the other lanes' by
    log steps, and what comes before the lane is combined in. A few squares (chains) at a time, so that one need not wait for
    the other. The operator is a function, emitted once.
    """

    STEP = 1024
    """Elements of a tile at most: kScanStep (cpu/ordered_kernel.h)."""

    BUFFER_BYTES = 16 * 1024
    """The states of all chains lie in L1."""

    def build(self) -> None:
        b, spec = self.b, self.spec
        self.width = self.lanes = self.group = width = min(vector_width(spec, self.vector_bytes), self.vector_bytes // 4)
        self.word, self.backwards = I32, False  # lanes are in scan order whatever the row's direction
        self.groups, self.square = 1, width * width
        size = self.square * sum(bytes_of(stored_type(t)) for t in spec.state)
        self.chains = max(1, min(self.STEP // self.square, self.BUFFER_BYTES // size))
        self.chains = 1 << (self.chains.bit_length() - 1)
        self.elements = Elements(b, spec, self.arrays, self.uniforms, self.n, width, mirrored=True)
        self._allocate()
        self.begin()
        tile = self.chains * self.square
        with loop(b, self.lo, self.hi, tile) as i:
            rest = b.sub(self.hi, i)
            rest = least(b, rest, i64(tile))
            used = b.sdiv(b.add(rest, i64(self.square - 1)), i64(self.square))
            self._fill(i, rest, b.mul(used, i64(width)))
            self._tile(i, rest, used)
        self.end()

    def _allocate(self) -> None:
        b, rows = self.b, self.chains * self.width
        self.rows = [alloca(b, stored_type(t), (rows + 1) * self.width) for t in self.spec.state]
        self.carries = [alloca(b, stored_type(t), rows) for t in self.spec.state]
        self.flag_words = alloca(b, I32, rows)
        self.joins = alloca(b, I8, self.chains)

    def _tile(self, i: ir.Value, rest: ir.Value, used: ir.Value) -> None:
        """``used`` chains hold the ``rest`` elements from i on, which lie in rows as in memory."""
        b = self.b
        self._transpose(used)
        self._down(used)
        with loop(b, i64(0), used) as c:
            self._across(c, b.sub(rest, b.mul(c, i64(self.square))))
        with b.if_then(self.scans):
            self._apply(used)
            self._transpose(used)
            self._write(i, rest)

    # --- the buffer: rows of ``width`` states, slot by slot ---------------------------------------------------------------------

    def _row(self, places: Sequence[ir.Value], row: ir.Value) -> list[ir.Value]:
        b = self.b
        at = b.mul(row, i64(self.width))
        return [b.gep(p, [at], source_etype=stored_type(t)) for p, t in zip(places, self.spec.state, strict=True)]

    def _get(self, places: Sequence[ir.Value], row: ir.Value) -> Values:
        b, out = self.b, []
        for p, t in zip(self._row(places, row), self.spec.state, strict=True):
            out.append(from_stored(b, b.load(p, typ=ir.VectorType(stored_type(t), self.width)), t))
        return out

    def _put(self, places: Sequence[ir.Value], row: ir.Value, values: Sequence[ir.Value]) -> None:
        b = self.b
        for p, t, v in zip(self._row(places, row), self.spec.state, values, strict=True):
            b.store(to_stored(b, v, t), p)

    def _row_of(self, c: ir.Value, u: ir.Value) -> ir.Value:
        """The row of each lane's u-th element in scan order."""
        b = self.b
        return b.add(b.mul(c, i64(self.width)), b.sub(i64(self.width - 1), u) if self.spec.reverse else u)

    # --- the steps --------------------------------------------------------------------------------------------------------------

    def _fill(self, i: ir.Value, rest: ir.Value, rows: ir.Value) -> None:
        """The states of a tile's elements; rows past the end repeat the first."""
        b, width = self.b, self.width
        with loop(b, i64(0), rows) as row:
            ahead = b.mul(row, i64(width))
            left = b.sub(rest, ahead)
            there = b.icmp_signed(">", left, i64(0))
            first, left = b.select(there, b.add(i, ahead), i), b.select(there, left, rest)
            self._put(self.rows, row, self.elements.states(first, left))
            if self.restarts:
                bits = self._restarts(first, left)
                bits = b.select(there, bits, ir.Constant(I32, 0))
                b.store(bits, b.gep(self.flag_words, [row], source_etype=I32))

    def _transpose(self, used: ir.Value) -> None:
        b = self.b
        with loop(b, i64(0), used) as c:
            for p, t in zip(self._row(self.rows, b.mul(c, i64(self.width))), self.spec.state, strict=True):
                b.call(transposer(b.module, stored_type(t), self.width), [p])

    def _flags(self, c: ir.Value) -> ir.Value:
        """Each lane's restarts: a word of a bit for each row."""
        p = self.b.gep(self.flag_words, [self.b.mul(c, i64(self.width))], source_etype=I32)
        return self.b.load(p, typ=ir.VectorType(I32, self.width))

    def _flag(self, words: ir.Value, u: ir.Value) -> ir.Value:
        """Which lanes' u-th element starts anew."""
        b = self.b
        row = b.sub(i64(self.width - 1), u) if self.spec.reverse else u
        bit = splat(b, b.shl(ir.Constant(I32, 1), b.trunc(row, I32)), self.width)
        return b.icmp_unsigned("!=", b.and_(words, bit), ir.Constant(words.type, None))

    def _up_to(self, u: ir.Value) -> ir.Value:
        """The bits of a lane's elements up to the u-th."""
        b = self.b
        if self.spec.reverse:
            return b.shl(ir.Constant(I32, -1), b.trunc(b.sub(i64(self.width - 1), u), I32))
        return b.sub(b.shl(ir.Constant(I32, 2), b.trunc(u, I32)), ir.Constant(I32, 1))

    def _down(self, used: ir.Value) -> None:
        """Every lane's elements, one after the other."""
        b = self.b
        with loop(b, i64(1), i64(self.width)) as u, loop(b, i64(0), used) as c:
            row = self._row_of(c, u)
            before, now = self._get(self.rows, self._row_of(c, b.sub(u, i64(1)))), self._get(self.rows, row)
            values = self.op(before, now, self.width)
            if self.restarts:
                anew = self._flag(self._flags(c), u)
                values = expr.selected(b, anew, now, values)
            self._put(self.rows, row, values)

    def _across(self, c: ir.Value, rest: ir.Value) -> None:
        """A chain's lanes among each other, and what comes before each."""
        b, width = self.b, self.width
        totals = self._get(self.rows, self._row_of(c, i64(width - 1)))
        bits = None
        if self.restarts:
            words = self._flags(c)
            found = b.icmp_unsigned("!=", words, ir.Constant(words.type, None))
            bits = b.zext(b.bitcast(found, ir.IntType(width)), I32)
        local, closed = self._local(totals, bits)
        before = [take(b, v, v, [max(0, k - 1) for k in range(width)]) for v in local]
        with b.if_then(self.scans):
            carry, there = self.carry()
            reach = self._lanes([True] * width) if closed is None else self._mask(b.not_(b.shl(closed, ir.Constant(I32, 1))))
            shifted = [take(b, k, v, [0] + [width + j for j in range(1, width)]) for k, v in zip(carry, before, strict=True)]
            reach = b.and_(reach, self._lanes([k > 0 for k in range(width)]))

            def joined() -> Values:
                return expr.selected(b, reach, self.op(carry, before, width), shifted)

            self._put(self.carries, c, chosen(b, there, joined, lambda: before))
            b.store(b.zext(there, I8), b.gep(self.joins, [c], source_etype=I8))
        whole = b.icmp_signed(">=", rest, i64(self.square))
        last = ir.Constant(I32, width - 1)
        total = chosen(
            b, whole, lambda: [splat(b, b.extract_element(v, last), width) for v in local], lambda: self._tail(c, rest, before)
        )
        self.advance(total, None if bits is None else b.icmp_unsigned("!=", bits, ir.Constant(I32, 0)))

    def _tail(self, c: ir.Value, rest: ir.Value, before: Values) -> Values:
        """The combination of a chain's first ``rest`` elements; ``before``: of the lanes before each."""
        b, width = self.b, self.width
        e = b.sub(rest, i64(1))
        lane, u = b.trunc(b.sdiv(e, i64(width)), I32), b.srem(e, i64(width))
        own = [splat(b, b.extract_element(v, lane), width) for v in self._get(self.rows, self._row_of(c, u))]
        behind = [splat(b, b.extract_element(v, lane), width) for v in before]
        joins = b.icmp_unsigned("!=", lane, ir.Constant(I32, 0))
        if self.restarts:
            word = b.extract_element(self._flags(c), lane)
            joins = b.and_(joins, b.icmp_unsigned("==", b.and_(word, self._up_to(u)), ir.Constant(I32, 0)))
        return expr.selected(b, joins, self.op(behind, own, width), own)

    def _apply(self, used: ir.Value) -> None:
        """What comes before a lane, combined into its elements; exclusive: into the next one's place."""
        b, spec, width = self.b, self.spec, self.width

        def replaced(values: Values, where: ir.Value) -> Values:
            return values if spec.identity is None else expr.selected(b, where, identity_state(spec, width), values)

        def joins(c: ir.Value) -> ir.Value:
            there = b.icmp_unsigned("!=", b.load(b.gep(self.joins, [c], source_etype=I8), typ=I8), ir.Constant(I8, 0))
            return b.or_(self._lanes([k > 0 for k in range(width)]), splat(b, there, width))

        last = i64(width - 1)
        with loop(b, i64(0), last if spec.exclusive else i64(width)) as k, loop(b, i64(0), used) as c:
            u = b.sub(last, k)
            source = b.sub(u, i64(1)) if spec.exclusive else u
            now, wanted = self._get(self.rows, self._row_of(c, source)), joins(c)
            if self.restarts:
                words = self._flags(c)
                open_ = b.and_(words, splat(b, self._up_to(source), width))
                wanted = b.and_(wanted, b.icmp_unsigned("==", open_, ir.Constant(words.type, None)))
            values = self.op(self._get(self.carries, c), now, width)
            values = expr.selected(b, wanted, values, now)
            if spec.exclusive and self.restarts:
                values = replaced(values, self._flag(self._flags(c), u))
            self._put(self.rows, self._row_of(c, u), values)
        if spec.exclusive:
            with loop(b, i64(0), used) as c:
                none = b.not_(joins(c))
                if self.restarts:
                    none = b.or_(none, self._flag(self._flags(c), i64(0)))
                self._put(self.rows, self._row_of(c, i64(0)), replaced(self._get(self.carries, c), none))

    def _write(self, i: ir.Value, rest: ir.Value) -> None:
        b, width = self.b, self.width
        with loop(b, i64(0), rest, width) as ahead:
            row = b.sdiv(ahead, i64(width))
            self._store(self._get(self.rows, row), b.add(i, ahead), b.sub(rest, ahead))
