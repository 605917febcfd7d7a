"""Scans of cheap operators along many short rows that lie end to end: a few rows in a vector, or a few vectors to a row.

As many whole rows as a vector has room for are scanned at once, by log steps that stop where a row begins. A longer row begins
with a vector of its own. So what meets what in a row does not depend on where it lies: equal rows have equal results.

The lanes that are left over hold elements of the next row, whose own vector is stored later, over theirs. Only where results take
the place of elements, and at the end of all rows, they are left out: by masks, which not all processors have.
"""

from __future__ import annotations

import itertools

from llvmlite import ir

from ....ir.program import itemsize
from ..llvm.build import I1, I8, PTR, address, i64, least, loop, pointer, scaled
from ..llvm.types import alloca, call, resized, take
from ..llvm.vectors import LINE, Held, stream_bytes
from .elements import Elements
from .rows import STREAMED_BYTES, STREAMED_ROW
from .scan_base import STARTED
from .scan_log_steps import LogSteps

STREAMED_AT_ONCE, PUT_TOGETHER = 64, 1024
"""Elements, or one row, between stores past the caches: a processor reads on meanwhile. And elements of short rows whose results
are put together: many, since the last vector of them is seldom full."""


class ShortRows(LogSteps):
    """The rows of a range that has a period (cpu/ordered_kernel.h)."""

    def build(self) -> None:
        b = self.b
        self.choose_groups()
        self.alone, self.together, self.groups = self.group, self.width, 1
        self.before = Held(b, self.spec.state, self.alone)
        self.in_place: ir.Value = ir.Constant(I1, 0)
        for k, place in itertools.product(range(len(self.spec.leaves)), self.arrays):
            self.in_place = b.or_(self.in_place, b.icmp_unsigned("==", pointer(b, self.out_places, k), place))
        streams, self.streams = self.streams, False
        with b.if_else(b.icmp_unsigned("<=", self.period, i64(self.alone))) as (short, otherwise):
            with short:
                self._size(self.together)
                self.bits: ir.Value | None = self._row_starts()
                self._all_rows(streams)
            with otherwise:
                self._size(self.alone)
                self.bits = None
                self._all_rows(streams)
        b.ret(i64(STARTED))

    def _size(self, width: int) -> None:
        b, spec = self.b, self.spec
        self.group = self.width = width
        self.elements = Elements(b, spec, self.arrays, self.uniforms, self.n, width, mirrored=True, period=self.period)

    def _rows(self, lo: ir.Value, hi: ir.Value) -> None:
        """Elements [lo, hi) in scan order. A vector may go on behind them: who wants what is there makes it later."""
        b = self.b
        some = b.mul(b.udiv(i64(self.width), self.period), self.period)
        step = self.period if self.bits is None else some
        with loop(b, lo, hi, step) as row:
            end = least(b, b.add(row, step), hi)
            self.elements.row = row
            if self.bits is not None:
                self._some(row, end, ir.Constant(I1, 0))
            else:
                with loop(b, row, end, self.width) as i:
                    self._some(i, end, b.icmp_signed(">", i, row))

    def _some(self, i: ir.Value, end: ir.Value, there: ir.Value) -> None:
        """A vector of elements up to ``end``; ``there``: whether a part of their row comes before it."""
        b, spec, bits = self.b, self.spec, self.bits
        if bits is not None and self.vector_bytes < 64 and max(map(itemsize, spec.state)) > 1:
            # Masks are made of them anew each time: kept, they are bytes of lanes, which LLVM takes apart one by one.
            bits = b.or_(bits, resized(b, b.lshr(i, i64(62)), self.word))  # no such bits are in use
        run = b.sub(end, i)
        masked = (
            self.vector_bytes >= 64 and self.bits is None
        )  # for nothing there, and fewer stores go over the end of a cache line
        rest = run if masked else b.select(self.in_place, run, b.sub(self.hi, i))
        values = self.elements.states(i, rest)
        if spec.restarts:
            flags = self._restarts(i, rest)
            bits = flags if bits is None else b.or_(bits, flags)
        results, closed = self._local(values, bits, run if self.bits is None else self.alone)
        before = results
        if self.bits is None:
            before = self.before.get()
            results = self._results(results, before, closed, there)
            for v, p in zip(results, self.before.places, strict=True):
                b.store(take(b, v, v, [0 if self.backwards else self.width - 1] * self.width), p)
        if spec.exclusive:
            results = self._shift(results, before, there, bits)
        self._store(results, i, rest)

    def _row_starts(self) -> ir.Value:
        """The lanes of a vector where a row begins, but for the first, which has no predecessor there."""
        b, word = self.b, self.word
        pattern: ir.Value = ir.Constant(word, 1)
        step, reach = self.period, 1
        while reach < self.width:
            short = b.icmp_unsigned("<", step, i64(self.width))
            pattern = b.or_(pattern, b.shl(pattern, resized(b, b.select(short, step, i64(0)), self.word)))
            step, reach = b.select(short, b.add(step, step), step), 2 * reach
        pattern = b.and_(pattern, ir.Constant(word, -2))
        if self.backwards:
            turned = call(b, f"llvm.bitreverse.i{word.width}", word, pattern)
            pattern = b.lshr(turned, ir.Constant(word, word.width - self.width))
        return pattern

    # --- past the caches --------------------------------------------------------------------------------------------------------

    def _all_rows(self, streams: bool) -> None:
        sizes = [slots * itemsize(t) for t, slots in self.spec.leaves]
        unit = LINE // min(size & -size for size in sizes)  # so many rows of any length do
        if streams and unit * STREAMED_ROW * sum(sizes) <= STREAMED_BYTES:
            self._streamed(sizes, unit)
        else:
            self._rows(self.lo, self.hi)

    def _streamed(self, sizes: list[int], unit: int) -> None:
        """Some rows at a time, whose results are put together in the cache, and leave it line by line."""
        b, spec = self.b, self.spec
        short = b.icmp_unsigned("<=", self.period, i64(STREAMED_ROW))
        row = scaled(b, self.period, LINE // unit)
        row = least(b, b.and_(row, b.sub(i64(0), row)), i64(LINE))
        step = b.mul(self.period, b.udiv(i64(LINE), row))  # the fewest that begin and end at cache lines
        times = b.udiv(i64(min(PUT_TOGETHER, unit * STREAMED_ROW)), step)
        step = b.mul(step, b.select(b.icmp_signed(">", times, i64(1)), times, i64(1)))
        outs = [pointer(b, self.out_places, k) for k in range(len(sizes))]
        gathered = [self._gathered(unit * STREAMED_ROW * size, self.width * size) for size in sizes]
        with loop(b, self.lo, self.hi, step) as lo:
            hi = least(b, b.add(lo, step), self.hi)
            whole = b.and_(short, b.icmp_signed("==", b.sub(hi, lo), step))
            first = b.sub(self.n, hi) if spec.reverse else lo
            for k, (out, place, size) in enumerate(zip(outs, gathered, sizes, strict=True)):
                before = b.gep(place, [b.sub(i64(0), scaled(b, first, size))], source_etype=I8)
                b.store(b.select(whole, before, out), b.gep(self.out_places, [i64(k)], source_etype=PTR))
            some = b.udiv(i64(STREAMED_AT_ONCE), self.period)
            chunk = b.mul(self.period, b.select(b.icmp_signed(">", some, i64(1)), some, i64(1)))
            with loop(b, lo, hi, chunk) as at:
                end = least(b, b.add(at, chunk), hi)
                self._rows(at, end)
                with b.if_then(whole):
                    low, high = (b.sub(hi, end), b.sub(hi, at)) if spec.reverse else (b.sub(at, lo), b.sub(end, lo))
                    for out, place, size in zip(outs, gathered, sizes, strict=True):
                        start, stop = (self._line(scaled(b, x, size)) for x in (low, high))
                        to = address(b, out, b.add(scaled(b, first, size), start))
                        stream_bytes(b, address(b, place, start), to, b.sub(stop, start), LINE)

    def _gathered(self, size: int, more: int) -> ir.Value:
        """Memory that begins at a cache line, with room for a vector of ``more`` bytes before it and behind."""
        more = -(-more // LINE) * LINE
        return address(self.b, alloca(self.b, I8, size + 2 * more), i64(more))

    def _line(self, at: ir.Value) -> ir.Value:
        """Where the last cache line begins of which all that comes before ``at`` in scan order has been put together."""
        b = self.b
        at = b.add(at, i64(LINE - 1)) if self.spec.reverse else at
        return b.and_(at, i64(-LINE))
