"""``runs``: many short segments, one result each, in one loop, so that the processor works on several at a time."""

from __future__ import annotations

from llvmlite import ir

from ....ir.program import itemsize
from ....specs.ordered import OrderedSpec
from ..llvm import expr
from ..llvm.build import I32, I64, PTR, address, alloca, declare, i64, loop, pointer, scaled, splat
from .elements import vector_width
from .reduce import Fold, State
from .rows import element, is_expensive, prefix_mask, store_row


def runs(module: ir.Module, spec: OrderedSpec, vector_bytes: int) -> None:
    """``runs(arrays, uniforms, outs, ends, base, first, count)``: the segments [first, base + ends[0]), [base + ends[0],
    base + ends[1]) and so on, none empty, ``ends`` of s32; results side by side at ``outs``, a pointer by leaf."""
    b, (arrays, uniforms, outs, ends, base, first, count) = declare(module, "runs", [PTR] * 4 + [I64] * 3)
    fold = _Runs(b, spec, arrays, uniforms, i64(0), vector_width(spec, vector_bytes))
    leaves = [pointer(b, outs, k) for k in range(len(spec.leaves))]
    start = alloca(b, I64)
    b.store(first, start)
    with loop(b, i64(0), count) as k:
        lo = b.load(start, typ=I64)
        hi = b.add(base, b.sext(b.load(b.gep(ends, [k], source_etype=I32), typ=I32), I64))
        b.store(hi, start)
        fold.run(lo, hi)
        values = iter(expr.emit(b, spec.finish, fold.first(), fold.uniforms, 1))
        for leaf, (dtype, slots) in zip(leaves, spec.leaves, strict=True):
            store_row(b, [next(values) for _ in range(slots)], address(b, leaf, scaled(b, k, itemsize(dtype) * slots)), dtype, 1)
    b.ret_void()


class _Runs(Fold):
    def run(self, lo: ir.Value, hi: ir.Value) -> None:
        """An operator that commutes: masked vectors, two of them without asking whether there is a second, since a branch that
        depends on a segment's length is often mispredicted."""
        if not self.spec.commutes or self.width == 1:
            self.fold(lo, hi)
            return
        b, width = self.b, self.width
        total, known = self._element(lo, b.sub(hi, lo)), width
        if not self._loops() and not is_expensive(self.spec.op):
            rest = b.sub(hi, b.add(lo, i64(width)))
            total, known = self._joined(total, self._element(b.add(lo, i64(width)), rest), rest), 2 * width
        self.total.put(total)
        with loop(b, b.add(lo, i64(known)), hi, width) as i:
            rest = b.sub(hi, i)
            self.total.put(self._joined(self.total.get(), self._element(i, rest), rest))
        self.fold_any_lanes(b.sub(hi, lo))

    def _joined(self, total: State, x: State, rest: ir.Value) -> State:
        there = prefix_mask(self.b, rest, self.width)
        return [self.b.select(there, v, w) for v, w in zip(self.op(total, x), total, strict=True)]

    def _loops(self) -> bool:
        """Whether a loop might not end on a value that the user did not give."""
        return self.spec.f.may_not_end or self.spec.op.may_not_end

    def _element(self, i: ir.Value, rest: ir.Value) -> State:
        b, spec, width, fills = self.b, self.spec, self.width, self._loops()

        def position(dtype: str) -> ir.Value:
            first = i if itemsize(dtype) == 8 else b.trunc(i, I32)
            lanes = b.add(splat(b, first, width), ir.Constant(ir.VectorType(first.type, width), list(range(width))))
            return b.select(prefix_mask(b, rest, width), lanes, splat(b, first, width)) if fills else lanes

        return element(b, spec, self.arrays, self.uniforms, width, i, position, rest, fills)
