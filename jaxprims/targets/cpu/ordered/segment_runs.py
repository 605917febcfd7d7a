"""``runs``: many short segments, one result each, in one loop, so that the processor works on several at a time.

Segments that are about as short as their neighbours are folded side by side, one in each lane of a vector: a lane folds its own
elements one after the other, so the operator need not commute, and no branch depends on the length of one segment.
"""

from __future__ import annotations

from llvmlite import ir

from ....ir.program import itemsize
from ....specs.ordered import OrderedSpec
from ..llvm import expr
from ..llvm.build import I1, I32, I64, PTR, address, all_pointers, declare, i64, loop, scaled
from ..llvm.types import call, from_memory, memory_type, numbers, register_type, resized, splat, undefined, with_lanes
from ..llvm.vectors import Held, Variable, f_of, prefix_mask
from .elements import vector_width
from .reduce import Fold, State
from .rows import apply_op, element, is_expensive, store_results, walk

ABREAST = 16
"""Segments that are folded side by side, at most: each lane's element is loaded by itself."""

LONGEST, LONGEST_IF_CHEAP, LONGEST_IN_VECTORS = 64, 48, 14
"""Elements of the longest of them, at most: fewer where the operator is cheap, since a vector's lanes then wait for memory, and
where one by one segments are folded in a vector or two. As measured."""


def runs(module: ir.Module, spec: OrderedSpec, vector_bytes: int) -> None:
    """``runs(arrays, uniforms, outs, ends, base, first, count)``: the segments [first, base + ends[0]), [base + ends[0],
    base + ends[1]) and so on, none empty, ``ends`` of s32; results side by side at ``outs``, a pointer by leaf."""
    b, (arrays, uniforms, outs, ends, base, first, count) = declare(module, "runs", [PTR] * 4 + [I64] * 3)
    fold = _Runs(b, spec, arrays, uniforms, i64(0), vector_width(spec, vector_bytes))
    leaves = all_pointers(b, outs, len(spec.leaves))
    start = Variable(b, I32, b.trunc(b.sub(first, base), I32))

    def put(k: ir.Value, state: State, width: int) -> None:
        store_results(b, spec, state, fold.uniforms, leaves, k, width)

    def one_by_one(lo: ir.Value, hi: ir.Value) -> None:
        with loop(b, lo, hi) as k:
            begin = b.add(base, b.sext(start.get(), I64))
            end = b.load(b.gep(ends, [k], source_etype=I32), typ=I32)
            start.put(end)
            fold.run(begin, b.add(base, b.sext(end, I64)))
            put(k, fold.first(), 1)

    width = min(fold.width, ABREAST)
    if width == 1:
        one_by_one(i64(0), count)
        b.ret_void()
        return
    abreast = _Abreast(b, spec, fold, base, ends, count, width)
    with walk(b, i64(0), count) as at:
        done, k = Variable(b, I1), at.get()
        behind = b.add(k, i64(width))
        enough = b.and_(b.icmp_signed(">", k, i64(0)), b.icmp_signed("<=", behind, count))
        done.put(0)
        at.put(b.select(b.icmp_signed("==", k, i64(0)), i64(1), b.select(enough, behind, count)))
        with b.if_then(enough, likely=True):
            longest = abreast.longest(k)
            with b.if_then(abreast.may(longest), likely=True):
                put(k, abreast.run(k, longest), width)
                start.put(b.load(b.gep(ends, [b.sub(behind, i64(1))], source_etype=I32), typ=I32))
                done.put(1)
        with b.if_then(b.not_(done.get()), likely=False):
            one_by_one(k, at.get())
    b.ret_void()


class _Abreast:
    """A segment in each lane: never the first one, whose start is not among the ends."""

    def __init__(
        self, b: ir.IRBuilder, spec: OrderedSpec, fold: Fold, base: ir.Value, ends: ir.Value, count: ir.Value, width: int
    ):
        cheap = LONGEST_IN_VECTORS if spec.commutes else LONGEST_IF_CHEAP
        self.most = LONGEST if is_expensive(spec.op) else cheap
        self.last = b.load(b.gep(ends, [b.sub(count, i64(1))], source_etype=I32), typ=I32)
        self.b, self.spec, self.uniforms, self.width, self.base, self.ends = b, spec, fold.uniforms, width, base, ends
        self.arrays = [
            address(b, p, scaled(b, base, itemsize(a.dtype) * a.slots)) if a.slots else p
            for p, a in zip(fold.arrays, spec.arrays, strict=True)
        ]
        self.total = Held(b, spec.state, width)

    def longest(self, k: ir.Value) -> ir.Value:
        """Elements of the longest of the segments from k on."""
        b, t = self.b, ir.VectorType(I32, self.width)
        self.his, self.los = (b.load(b.gep(self.ends, [i], source_etype=I32), typ=t, align=4) for i in (k, b.sub(k, i64(1))))
        return call(b, f"llvm.vector.reduce.smax.v{self.width}i32", I32, b.sub(self.his, self.los))

    def may(self, longest: ir.Value) -> ir.Value:
        """Are they short enough, and does no lane read past the end of the last segment of all?"""
        b = self.b
        far = b.add(b.extract_element(self.los, I32(self.width - 1)), longest)
        return b.and_(b.icmp_signed("<=", longest, I32(self.most)), b.icmp_signed("<=", far, self.last))

    def run(self, k: ir.Value, longest: ir.Value) -> State:
        """Elements behind a lane's last one are others' and of no use."""
        b, width = self.b, self.width
        self.total.put(self._elements(k, i64(0)))
        with loop(b, i64(1), b.sext(longest, I64)) as i:
            at = b.add(self.los, splat(b, b.trunc(i, I32), width))
            there, now = b.icmp_signed("<", at, self.his), self.total.get()
            joined = apply_op(b, self.spec, self.uniforms, width, now, self._elements(k, i))
            self.total.put(expr.selected(b, there, joined, now))
        return self.total.get()

    def _elements(self, k: ir.Value, i: ir.Value) -> State:
        """f of element i of each segment."""
        b, width = self.b, self.width
        place = [
            b.sext(b.load(b.gep(self.ends, [b.add(k, i64(lane - 1))], source_etype=I32), typ=I32), I64) for lane in range(width)
        ]

        def loaded(n: int, wanted: list[int]) -> dict[int, ir.Value]:
            a = self.spec.arrays[n]
            t, size = memory_type(a.dtype), itemsize(a.dtype)
            out: dict[int, ir.Value] = {}
            base = address(b, self.arrays[n], scaled(b, i, size * a.slots))
            for s in wanted:
                places = (b.gep(base, [b.add(scaled(b, at, a.slots), i64(s))], source_etype=t) for at in place)
                ones = (b.load(p, typ=t, align=size) for p in places)
                out[s] = from_memory(b, with_lanes(b, undefined(ir.VectorType(t, width)), ones), a.dtype)
            return out

        def position(dtype: str) -> ir.Value:
            at = b.add(self.los, splat(b, b.trunc(i, I32), width))
            if itemsize(dtype) == 8:
                return b.add(splat(b, self.base, width), b.sext(at, ir.VectorType(I64, width)))
            return b.add(splat(b, b.trunc(self.base, I32), width), at)

        return f_of(b, self.spec.f, self.spec.arrays, self.uniforms, width, loaded, position)


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
        return expr.selected(self.b, there, self.op(total, x), total)

    def _loops(self) -> bool:
        """Whether a loop might not end on a value that the user did not give."""
        return self.spec.f.may_not_end or self.spec.op.may_not_end

    def _element(self, i: ir.Value, rest: ir.Value) -> State:
        b, spec, width, fills = self.b, self.spec, self.width, self._loops()

        def position(dtype: str) -> ir.Value:
            first = resized(b, i, register_type(dtype))
            lanes = b.add(splat(b, first, width), numbers(first.type, range(width)))
            return b.select(prefix_mask(b, rest, width), lanes, splat(b, first, width)) if fills else lanes

        return element(b, spec, self.arrays, self.uniforms, width, i, position, rest, fills)
