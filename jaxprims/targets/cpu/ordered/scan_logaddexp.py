"""Scans of logaddexp along a row with one exp and one log an element, where the operator itself takes two of each.

A tile's elements are taken relative to its greatest one, t: with e = exp(x - t), results are t + log(k + e summed up to here),
where k = exp(carry - t). That is as exact as the operator as long as nothing that counts underflows: the first element, or the
carry, must not be far below t. Else the tile takes the operator's own way, by log steps, which is slower and short.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ....ir.program import Builder, Program
from ....operators import classify
from ....specs.ordered import OrderedSpec
from ..llvm import expr
from ..llvm.build import I32, chosen, i64, loop
from ..llvm.types import alloca, literal, numbers, register_type, splat, take
from ..llvm.vectors import Variable
from .reduce_logaddexp import is_finite
from .scan_tiles import Tile

BELOW = 20.0
"""How far below the greatest element the first may be: sums then lose nothing that shows, even in f32."""

ABOVE = 40.0
"""How far above it the carry may be: no sum overflows."""


def applies(spec: OrderedSpec) -> bool:
    one = spec.state in (("f32",), ("f64",)) and not spec.exclusive and not spec.restarts and spec.kind == "scan"
    return one and classify.recognise(spec.op) == "logaddexp"


def _program(dtype: str, build: Callable[[Builder, int, int], int]) -> Program:
    b = Builder((dtype, dtype))
    return b.finish([build(b, b.arg(0), b.arg(1))])


class LogAddExp(Tile):
    def _allocate(self) -> None:
        super()._allocate()
        self.backwards = self.spec.reverse  # no squares are transposed
        (dtype,) = self.spec.state
        self.vector = register_type(dtype, self.width)
        self.exp = _program(dtype, lambda b, x, t: b.emit("exp", dtype, b.emit("sub", dtype, x, t)))
        self.log = _program(dtype, lambda b, s, t: b.emit("add", dtype, t, b.emit("log", dtype, s)))
        self.sums = [alloca(self.b, self.vector.element, (self.chains * self.width + 1) * self.width)]
        self.total = Variable(self.b, self.vector)

    def _tile(self, i: ir.Value, rest: ir.Value, used: ir.Value) -> None:
        b, width = self.b, self.width
        count = b.sdiv(b.add(rest, i64(width - 1)), i64(width))
        top, first = self._greatest(count), self._first(self._get(self.rows, i64(0))[0])
        (carry,), there = self.carry()
        finite = self._all(is_finite(b, top))
        most = b.select(there, b.select(b.fcmp_ordered(">", carry, first), carry, first), first)
        high = b.or_(b.not_(there), self._all(b.fcmp_ordered("<", carry, b.fadd(top, literal(self.vector, ABOVE)))))
        near = b.and_(high, self._all(b.fcmp_ordered(">", most, b.fsub(top, literal(self.vector, BELOW)))))
        fast = b.and_(b.and_(finite, near), self.scans)
        aggregate, started = self.aggregate.get(), self.started.get()
        with b.if_then(finite, likely=True):
            self._put(self.rows, count, [b.select(there, carry, top)])
            self._exponentials(count, rest, top)
            before = b.select(there, self._get(self.sums, count)[0], literal(self.vector, 0.0))
            self._put(self.sums, count, [self._sums(count)])
            self._logarithms(b.select(fast, i64(0), count), count, before, top)
            self.total.put(self._get(self.rows, count)[0])
        with b.if_else(fast, likely=True) as (then, otherwise):
            with then:
                self._write(i, rest)
            with otherwise, b.if_then(b.or_(self.scans, b.not_(finite))):
                with loop(b, i64(0), count) as row:
                    self._by_steps(row, b.sub(rest, b.mul(row, i64(width))))
                with b.if_then(self.scans):
                    self._write(i, rest)
        with b.if_then(finite, likely=True):  # the aggregate's bits depend on the elements alone
            self.aggregate.put(aggregate)
            self.started.put(started)
            self.advance([self.total.get()], None)

    def _by_steps(self, row: ir.Value, rest: ir.Value) -> None:
        """The operator's own way, a row at a time."""
        b, width = self.b, self.width
        local, _ = self._local(self._get(self.rows, row), None)
        carry, there = self.carry()
        self._put(self.rows, row, chosen(b, there, lambda: self.op(carry, local, width), lambda: local))
        last = b.sub(b.select(self.elements.whole(rest), i64(width), rest), i64(1))
        (v,) = local
        self.advance([splat(b, b.extract_element(v, b.trunc(self._place(last, width), I32)), width)], None)

    def _all(self, vector: ir.Value) -> ir.Value:
        """Of a vector that is the same in every lane."""
        return self.b.extract_element(vector, ir.Constant(I32, 0))

    def _first(self, v: ir.Value) -> ir.Value:
        return splat(self.b, self.b.extract_element(v, ir.Constant(I32, self._offset(0))), self.width)

    def _greatest(self, count: ir.Value) -> ir.Value:
        """The greatest element, in every lane; NaN does not count."""
        b, width, most = self.b, self.width, Variable(self.b, self.vector, literal(self.vector, float("-inf")))

        def greater(x: ir.Value) -> None:
            now = most.get()
            most.put(b.select(b.fcmp_ordered(">", x, now), x, now))

        with loop(b, i64(0), count) as row:
            greater(self._get(self.rows, row)[0])
        d = 1
        while d < width:
            v = most.get()
            greater(take(b, v, v, [k ^ d for k in range(width)]))
            d *= 2
        return most.get()

    def _exponentials(self, count: ir.Value, rest: ir.Value, top: ir.Value) -> None:
        """exp(x - top) of all rows and the one behind them, 0 where there is no element."""
        b, width = self.b, self.width
        lane = numbers(I32, map(self._offset, range(width)))
        with loop(b, i64(0), b.add(count, i64(1))) as row:
            (e,) = expr.emit(b, self.exp, [*self._get(self.rows, row), top], [], width)
            left = b.select(b.icmp_signed("<", row, count), b.sub(rest, b.mul(row, i64(width))), i64(width))
            there = b.icmp_signed("<", lane, splat(b, b.trunc(left, I32), width))
            self._put(self.sums, row, [b.select(there, e, literal(self.vector, 0.0))])

    def _sums(self, count: ir.Value) -> ir.Value:
        """Makes running sums of all rows; returns the whole sum."""
        b, width, zero = self.b, self.width, literal(self.vector, 0.0)
        run = Variable(b, self.vector, zero)
        with loop(b, i64(0), count) as row:
            (v,) = self._get(self.sums, row)
            d = 1
            while d < width:
                order = [width if k < d else self._offset(k - d) for k in range(width)]
                v = b.fadd(v, take(b, v, zero, order[::-1] if self.spec.reverse else order))
                d *= 2
            before = run.get()
            self._put(self.sums, row, [b.fadd(before, v)])
            run.put(b.fadd(before, take(b, v, v, [self._offset(width - 1)] * width)))
        return run.get()

    def _logarithms(self, start: ir.Value, count: ir.Value, before: ir.Value, top: ir.Value) -> None:
        """Results of the rows from ``start`` on; in the row behind them, of the whole sum without what came before."""
        b, width = self.b, self.width
        with loop(b, start, b.add(count, i64(1))) as row:
            behind = splat(b, b.icmp_signed("<", row, count), width)
            (s,) = self._get(self.sums, row)
            s = b.fadd(s, b.select(behind, before, literal(self.vector, 0.0)))
            self._put(self.rows, row, expr.emit(b, self.log, [s, top], [], width))
