"""Scans of structs of many scalars along a row: element after element.

Taking a vector of such structs apart and putting it together again costs more than vectors gain, and an operator on so many
scalars keeps a processor busy without them. Where something comes before the aggregate, vectors of two lanes hold the result so
far and the aggregate: one application of the operator continues both. Every STEP elements the result is made of the aggregate
anew, so that it does not depend on how a row is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ....ir.program import itemsize
from ..llvm import expr
from ..llvm.build import I1, I32, address, chosen, i64, least, loop, pointer, scaled
from ..llvm.types import splat
from ..llvm.vectors import Held, Variable, store_row
from .elements import Elements
from .rows import identity_state, starts_anew
from .scan_base import Kernel, Values

RESULT, AGGREGATE = ir.Constant(I32, 0), ir.Constant(I32, 1)
"""Lanes of a pair."""


class Sequential(Kernel):
    STEP = 1024
    """kScanStep (cpu/ordered_kernel.h)."""

    def build(self) -> None:
        b = self.b
        period = self.period if self.periodic else None
        self.elements = Elements(b, self.spec, self.arrays, self.uniforms, self.n, 1, period=period)
        self.begin()
        self.pairs = Held(b, self.spec.state, 2)
        self.there = Variable(b, I1)  # is there a result so far?
        if self.periodic:
            with loop(b, self.lo, self.hi, self.period) as row:
                self.elements.row = row
                self.started.put(0)
                with loop(b, row, b.add(row, self.period)) as i:
                    self._element(i)
            self.end()
            return
        with b.if_else(self.has_prefix) as (then, otherwise):
            with then, loop(b, self.lo, self.hi, self.STEP) as first:
                last = b.add(first, i64(self.STEP))
                self._steps(first, least(b, last, self.hi))
            with otherwise, loop(b, self.lo, self.hi) as i:
                self._element(i)
        self.end()

    def op(self, first: Sequence[ir.Value], second: Sequence[ir.Value], width: int) -> Values:
        return expr.emit(self.b, self.spec.op, [*first, *second], self.uniforms, width)  # a call would cost as much

    def _element(self, i: ir.Value) -> None:
        """Takes element i into the aggregate, which is the result."""
        b = self.b
        x, anew = self.elements.states(i), self._restarts(i)
        started, before = self.started.get(), self.aggregate.get()
        now = chosen(b, b.and_(started, b.not_(anew)), lambda: self.op(before, x, 1), lambda: x)
        self.aggregate.put(now)
        self.started.put(1)
        self._write(before if self.spec.exclusive else now, started, anew, i)

    def _steps(self, first: ir.Value, last: ir.Value) -> None:
        b = self.b
        result, there = self.carry()
        self.there.put(there)
        for p, r, a in zip(self.pairs.places, result, self.aggregate.get(), strict=True):
            v = b.insert_element(ir.Constant(ir.VectorType(r.type, 2), ir.Undefined), r, RESULT)
            b.store(b.insert_element(v, a, AGGREGATE), p)
        with loop(b, first, last) as i:
            self._element_of_both(i)
        self.aggregate.put([b.extract_element(v, AGGREGATE) for v in self.pairs.get()])

    def _element_of_both(self, i: ir.Value) -> None:
        """Takes element i into the aggregate and into the result, each of which may only start with it."""
        b, there, started = self.b, self.there.get(), self.started.get()
        x, anew = self.elements.states(i), self._restarts(i)
        before = self.pairs.get()
        if self.spec.op.may_not_end:
            self._one_by_one(before, x, anew, there, started)
        else:
            both = [splat(b, v, 2) for v in x]
            values = self.op(before, both, 2)
            self.pairs.put(expr.selected(b, splat(b, anew, 2), both, values))
            self._start(x, there, started)
        self.started.put(1)
        self.there.put(1)
        results = [b.extract_element(v, RESULT) for v in (before if self.spec.exclusive else self.pairs.get())]
        self._write(results, there, anew, i)

    def _one_by_one(self, before: Values, x: Values, anew: ir.Value, there: ir.Value, started: ir.Value) -> None:
        """Result and aggregate each by itself: the operator sees nothing but what is combined."""
        b, pair = self.b, before
        for lane, known in ((AGGREGATE, started), (RESULT, there)):
            now = [b.extract_element(v, lane) for v in before]
            new = chosen(b, b.and_(known, b.not_(anew)), lambda now=now: self.op(now, x, 1), lambda: x)  # type: ignore[misc]
            pair = [b.insert_element(v, n, lane) for v, n in zip(pair, new, strict=True)]
        self.pairs.put(pair)

    def _start(self, x: Values, there: ir.Value, started: ir.Value) -> None:
        b = self.b
        for lane, known in ((AGGREGATE, started), (RESULT, there)):
            with b.if_then(b.not_(known), likely=False):
                self.pairs.put([b.insert_element(v, new, lane) for v, new in zip(self.pairs.get(), x, strict=True)])

    def _write(self, results: Values, there: ir.Value, anew: ir.Value, i: ir.Value) -> None:
        b, spec = self.b, self.spec
        with b.if_then(self.scans):
            if spec.exclusive and spec.identity is not None:
                results = expr.selected(b, b.and_(there, b.not_(anew)), results, identity_state(spec))
            values, at = iter(expr.emit(b, spec.finish, results, self.uniforms, 1)), self.elements.memory_index(i)
            for k, (dtype, slots) in enumerate(spec.leaves):
                p = address(b, pointer(b, self.out_places, k), scaled(b, at, slots * itemsize(dtype)))
                store_row(b, [next(values) for _ in range(slots)], p, dtype, 1)

    def _restarts(self, i: ir.Value) -> ir.Value:
        """Does element i start anew?"""
        if not self.restarts:
            return ir.Constant(I1, 0)
        anew = starts_anew(self.b, self.flags, self.elements.memory_index(i))
        self.restarts_if(anew)
        return anew
