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
from ..llvm.build import I1, i64, least, loop, pointer
from ..llvm.types import call, resized, take
from ..llvm.vectors import Held
from .elements import Elements
from .scan_base import STARTED
from .scan_log_steps import LogSteps


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
        streams, width = self.streams, i64(self.alone)
        with b.if_else(b.icmp_unsigned("<=", self.period, width)) as (short, otherwise):
            with short:
                self._size(self.together)
                self.bits: ir.Value | None = self._row_starts()
                self._all_rows(streams, b.urem(i64(self.together), self.period))
            with otherwise:
                self._size(self.alone)
                self.bits = None
                self._all_rows(streams, b.urem(self.period, width))
        b.ret(i64(STARTED))

    def _size(self, width: int) -> None:
        b, spec = self.b, self.spec
        self.group = self.width = width
        self.elements = Elements(b, spec, self.arrays, self.uniforms, self.n, width, mirrored=True, period=self.period)

    def _all_rows(self, streams: bool, over: ir.Value) -> None:
        """Results go past the caches where no lane of a vector is left ``over``."""
        b, self.streams = self.b, False
        if streams:
            with b.if_then(b.icmp_unsigned("==", over, i64(0))):
                self.streams = True
                self._rows()
                b.ret(i64(STARTED))
            self.streams = False
        self._rows()

    def _rows(self) -> None:
        """In scan order. A vector may go on behind a row's end: who wants what is there makes it later."""
        b = self.b
        some = b.mul(b.udiv(i64(self.width), self.period), self.period)
        step = self.period if self.bits is None else some
        with loop(b, self.lo, self.hi, step) as row:
            end = least(b, b.add(row, step), self.hi)
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
