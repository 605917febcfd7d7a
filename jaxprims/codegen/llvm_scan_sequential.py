"""Scans of structs of many scalars along a row: element after element.

Taking a vector of such structs apart and putting it together again costs more than vectors gain, and an operator on so many
scalars keeps a processor busy without them.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ..frontend.program import itemsize
from . import llvm_expr as expr
from .llvm_build import I1, I8, I64, address, alloca, i64, loop, pointer, scaled
from .llvm_elements import Elements
from .llvm_rows import store_row
from .llvm_scan_kernel import Kernel, Values


class Sequential(Kernel):
    def build(self) -> None:
        b = self.b
        period = self.period if self.periodic else None
        self.elements = Elements(b, self.spec, self.arrays, self.uniforms, self.n, 1, period=period)
        self.begin()
        self.ahead = alloca(b, I64)  # periodic: elements to the next row
        b.store(i64(0), self.ahead)
        with loop(b, self.lo, self.hi) as i:
            self._element(i)
        self.end()

    def op(self, first: Sequence[ir.Value], second: Sequence[ir.Value], width: int) -> Values:
        return expr.emit(self.b, self.spec.op, [*first, *second], self.uniforms, width)  # a call would cost as much

    def _element(self, i: ir.Value) -> None:
        b, spec = self.b, self.spec
        x = self.elements.states(i)
        anew = self._restarts(i) if self.restarts else ir.Constant(I1, 0)
        if spec.exclusive:
            results, there = self.carry()
            if spec.identity is not None:
                identity = [expr.constant(t, bits) for t, bits in zip(spec.state, spec.identity, strict=True)]
                there = b.and_(there, b.not_(anew))
                results = [b.select(there, v, e) for v, e in zip(results, identity, strict=True)]
        aggregate = self.held(self.aggregate)
        joins = b.and_(self.is_started(), b.not_(anew))
        self.keep(self.either(joins, lambda: self.op(aggregate, x, 1), lambda: x), self.aggregate)
        b.store(ir.Constant(I1, 1), self.started)
        b.store(b.or_(b.load(self.restarted, typ=I1), anew), self.restarted)
        with b.if_then(self.scans):
            if not spec.exclusive:
                now, prefix = self.held(self.aggregate), self.held(self.prefix)
                results = self.either(self.counts_prefix(), lambda: self.op(prefix, now, 1), lambda: now)
            values = iter(expr.emit(b, spec.finish, results, self.uniforms, 1))
            at = self.elements.memory_index(i)
            for k, (dtype, slots) in enumerate(spec.leaves):
                p = address(b, pointer(b, self.out_places, k), scaled(b, at, slots * itemsize(dtype)))
                store_row(b, [next(values) for _ in range(slots)], p, dtype, 1)

    def _restarts(self, i: ir.Value) -> ir.Value:
        b, bits = self.b, []
        if self.periodic:
            ahead = b.load(self.ahead, typ=I64)
            bits.append(b.icmp_signed("==", ahead, i64(0)))
            b.store(b.sub(b.select(bits[0], self.period, ahead), i64(1)), self.ahead)
        if self.spec.restarts or self.spec.kind == "segments":
            flag = b.load(address(b, self.flags, self.elements.memory_index(i)), typ=I8)
            bits.append(b.icmp_unsigned("!=", flag, ir.Constant(I8, 0)))
        return bits[0] if len(bits) == 1 else b.or_(*bits)
