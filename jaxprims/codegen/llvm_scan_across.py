"""``scan`` and ``reduce`` of sequences that lie side by side: a vector runs across them, each lane folds its own in order.

Memory is walked in blocks of steps: within a block, a few vectors of lanes at a time go down the steps with their accumulators
in registers; between blocks the accumulators are the aggregate's states in memory. A block is as long as what it touches is kind
to prefetchers and TLB: steps of a few vectors are walked in one go, long steps a few at a time, so that few streams are open.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ..frontend.program import itemsize
from . import llvm_expr as expr
from .llvm_build import I1, I8, I32, I64, PTR, address, alloca, i64, loop, pointer, scaled
from .llvm_elements import vector_width
from .llvm_rows import Held, load_row, load_state, repeat, store_row, store_state
from .scan_spec import ScanSpec

STARTED, RESTARTED = 1, 2
"""Bits of a kernel's progress (cpu/scan_kernel.h)."""

RANGE = ("lo", "hi", "n", "period", "lanes", "lane_lo", "lane_hi")
"""Members of ScanRange, of 8 bytes each."""

REDUCED_STEPS = 32
"""A reduction folds so many steps by themselves, then into the aggregate: float sums lose less."""


def scan(module: ir.Module, spec: ScanSpec, vector_bytes: int) -> None:
    fn = ir.Function(module, ir.FunctionType(I64, [PTR] * 7 + [I64]), "scan")
    arrays, uniforms, outs, flags, range_, prefix, aggregate, progress = fn.args
    _Across(fn, spec, vector_bytes, arrays, uniforms, flags, range_, aggregate, progress, outs, prefix).build()


def reduce(module: ir.Module, spec: ScanSpec, vector_bytes: int) -> None:
    fn = ir.Function(module, ir.FunctionType(I64, [PTR] * 5 + [I64]), "reduce")
    _Across(fn, spec, vector_bytes, *fn.args).build()


class _Across:
    def __init__(
        self, fn: ir.Function, spec: ScanSpec, vector_bytes: int, arrays: ir.Value, uniforms: ir.Value, flags: ir.Value,
        range_: ir.Value, aggregate: ir.Value, progress: ir.Value, outs: ir.Value | None = None, prefix: ir.Value | None = None,
    ):  # fmt: skip
        fn.attributes.add("nounwind")
        self.b = b = ir.IRBuilder(fn.append_basic_block("entry"))
        self.spec, self.width = spec, vector_width(spec, vector_bytes)
        self.flags, self.aggregate, self.progress, self.prefix = flags, aggregate, progress, prefix
        self.arrays = [pointer(b, arrays, k) if a.slots else None for k, a in enumerate(spec.arrays)]
        self.uniforms = [pointer(b, uniforms, k) for k in range(len(spec.uniforms))]
        self.leaves = None if outs is None else [pointer(b, outs, k) for k in range(len(spec.leaves))]
        members = [b.load(b.gep(range_, [i64(k)], source_etype=I64), typ=I64) for k in range(len(RANGE))]
        self.lo, self.hi, self.n, _, self.lanes, self.lane_lo, lane_hi = members
        self.wanted = b.sub(lane_hi, self.lane_lo)
        self.params = [(k, s) for k, a in enumerate(spec.arrays) for s in range(a.params)]
        self.used = {i.attr for i in spec.f.body if i.op == "arg"}
        self.two_levels = spec.kind != "scan"
        self.started, self.led = alloca(b, I1), alloca(b, I1)  # does the aggregate hold something? is there a prefix that counts?
        b.store(self._bit(STARTED), self.started)
        there = ir.Constant(I1, 0) if prefix is None else b.icmp_unsigned("!=", prefix, ir.Constant(PTR, None))
        b.store(b.and_(there, b.not_(self._bit(RESTARTED))), self.led)

    def _bit(self, bit: int) -> ir.Value:
        return self.b.icmp_unsigned("!=", self.b.and_(self.progress, i64(bit)), i64(0))

    def build(self) -> None:
        b = self.b
        some = b.select(b.icmp_signed("<", self.lo, self.hi), i64(STARTED), i64(0))
        if not self.spec.restarts:
            self._run(self.lo, self.hi)
            b.ret(b.or_(self.progress, some))
            return
        at, restarted = alloca(b, I64), alloca(b, I64)
        b.store(self.lo, at)
        b.store(i64(0), restarted)
        with repeat(b, lambda: b.icmp_signed("<", b.load(at, typ=I64), self.hi)):
            start = b.load(at, typ=I64)
            with b.if_then(self._flag(start)):
                b.store(ir.Constant(I1, 0), self.started)
                b.store(ir.Constant(I1, 0), self.led)
                b.store(i64(RESTARTED), restarted)
            b.store(b.add(start, i64(1)), at)
            with repeat(b, lambda: self._continues(b.load(at, typ=I64))):
                b.store(b.add(b.load(at, typ=I64), i64(1)), at)
            self._run(start, b.load(at, typ=I64))
        b.ret(b.or_(b.or_(self.progress, some), b.load(restarted, typ=I64)))

    def _memory_step(self, t: ir.Value) -> ir.Value:
        return self.b.sub(self.b.sub(self.n, i64(1)), t) if self.spec.reverse else t

    def _flag(self, t: ir.Value) -> ir.Value:
        b = self.b
        return b.icmp_unsigned("!=", b.load(address(b, self.flags, self._memory_step(t)), typ=I8), ir.Constant(I8, 0))

    def _continues(self, t: ir.Value) -> ir.Value:
        """Whether step ``t`` is there and does not restart."""
        b, no = self.b, alloca(self.b, I1)
        b.store(ir.Constant(I1, 0), no)
        with b.if_then(b.icmp_signed("<", t, self.hi)):
            b.store(b.not_(self._flag(t)), no)
        return b.load(no, typ=I1)

    def _run(self, lo: ir.Value, hi: ir.Value) -> None:
        """Steps without a restart but perhaps at the first."""
        b, width, group = self.b, self.width, self._vectors_at_once()
        steps = self._block_steps()
        blocks = b.sdiv(b.add(b.sub(hi, lo), b.sub(steps, i64(1))), steps)
        whole = b.and_(self.wanted, i64(-group * width))
        with loop(b, i64(0), blocks) as k:
            first = b.add(lo, b.mul(k, steps))
            end = b.add(first, steps)
            last = b.select(b.icmp_signed("<", end, hi), end, hi)
            with loop(b, i64(0), whole, group * width) as lane:
                self._down(first, last, lane, group, None)
            with loop(b, whole, self.wanted, width) as lane:
                self._down(first, last, lane, 1, b.sub(self.wanted, lane))
            b.store(ir.Constant(I1, 1), self.started)

    def _vectors_at_once(self) -> int:
        return 4 if len(self.spec.state) * len(self.spec.op.body) <= 16 else 1

    def _block_steps(self) -> ir.Value:
        if self.two_levels:
            return i64(REDUCED_STEPS)
        return i64(8)

    def _down(self, lo: ir.Value, hi: ir.Value, lane: ir.Value, vectors: int, rest: ir.Value | None) -> None:
        """Steps [lo, hi) of a few vectors of lanes."""
        b, spec = self.b, self.spec
        lanes = [b.add(lane, i64(v * self.width)) for v in range(vectors)]
        acc, lead = Held(b, spec, vectors, self.width), Held(b, spec, vectors, self.width)
        started, led = b.load(self.started, typ=I1), b.load(self.led, typ=I1)
        holds = alloca(b, I1)
        b.store(ir.Constant(I1, 0) if self.two_levels else started, holds)
        if not self.two_levels:
            with b.if_then(started):
                acc.put(self._states_of(self.aggregate, lanes, rest))
        if self.leaves is not None:
            with b.if_then(led):
                lead.put(self._states_of(self.prefix, lanes, rest))
        with loop(b, lo, hi) as t:
            step = self._memory_step(t)
            index = [b.add(b.mul(step, self.lanes), b.add(self.lane_lo, at)) for at in lanes]
            x = [self._element(step, i, rest) for i in index]
            begun = b.load(holds, typ=I1)
            if self.leaves is not None and spec.exclusive:
                self._write(self._before(acc, lead, begun, led), index, rest)
            with b.if_else(begun) as (then, otherwise):
                with then:
                    acc.put(self._combined(acc.get(), x))
                with otherwise:
                    acc.put(x)
            b.store(ir.Constant(I1, 1), holds)
            if self.leaves is not None and not spec.exclusive:
                self._write(self._led(acc, lead, led), index, rest)
        if self.two_levels:
            with b.if_then(started):
                acc.put(self._combined(self._states_of(self.aggregate, lanes, rest), acc.get()))
        for at, state in zip(lanes, acc.get(), strict=True):
            store_state(b, spec, state, self.aggregate, self.wanted, at, rest)

    def _states_of(self, base: ir.Value, lanes: Sequence[ir.Value], rest: ir.Value | None) -> list[list[ir.Value]]:
        return [load_state(self.b, self.spec, base, self.wanted, lane, self.width, rest) for lane in lanes]

    def _element(self, step: ir.Value, index: ir.Value, rest: ir.Value | None) -> list[ir.Value]:
        """f of the lanes' elements."""
        b, spec, slots = self.b, self.spec, dict[tuple[int, int], ir.Value]()
        for k, a in enumerate(spec.arrays):
            wanted = [s for p, (q, s) in enumerate(self.params) if q == k and p in self.used]
            if a.slots and wanted:
                p = address(b, self.arrays[k], scaled(b, index, itemsize(a.dtype) * a.slots))
                slots |= {(k, s): v for s, v in load_row(b, p, a.dtype, self.width, a.slots, wanted, rest).items()}
            elif wanted:  # the position: the same in all lanes
                slots[k, 0] = b.trunc(step, I32) if itemsize(a.dtype) == 4 else step
        blank = [ir.Constant(expr.register_type(t), ir.Undefined) for t in spec.f.params]
        args = [slots.get(at, nothing) for at, nothing in zip(self.params, blank, strict=True)]
        return expr.emit(b, spec.f, args, self.uniforms, self.width)

    def _combined(self, a: list[list[ir.Value]], x: list[list[ir.Value]]) -> list[list[ir.Value]]:
        return [expr.emit(self.b, self.spec.op, p + q, self.uniforms, self.width) for p, q in zip(a, x, strict=True)]

    def _led(self, acc: Held, lead: Held, led: ir.Value) -> Held:
        """The prefix, where there is one, before the accumulator."""
        out = acc.another()
        with self.b.if_else(led) as (then, otherwise):
            with then:
                out.put(self._combined(lead.get(), acc.get()))
            with otherwise:
                out.put(acc.get())
        return out

    def _before(self, acc: Held, lead: Held, begun: ir.Value, led: ir.Value) -> Held:
        """What came before this step: prefix and accumulator, one of them, or the identity."""
        b, spec, out = self.b, self.spec, acc.another()
        bits = spec.identity or (0,) * len(spec.state)  # without one, the driver gives a prefix
        identity = [expr.constant(t, word, self.width) for t, word in zip(spec.state, bits, strict=True)]
        with b.if_else(begun) as (then, otherwise):
            with then:
                out.put(self._led(acc, lead, led).get())
            with otherwise, b.if_else(led) as (given, nothing):
                with given:
                    out.put(lead.get())
                with nothing:
                    out.put([identity] * acc.vectors)
        return out

    def _write(self, states: Held, index: Sequence[ir.Value], rest: ir.Value | None) -> None:
        b, spec = self.b, self.spec
        assert self.leaves is not None
        for i, state in zip(index, states.get(), strict=True):
            values = iter(expr.emit(b, spec.finish, state, self.uniforms, self.width))
            for leaf, (dtype, slots) in zip(self.leaves, spec.leaves, strict=True):
                p = address(b, leaf, scaled(b, i, itemsize(dtype) * slots))
                store_row(b, [next(values) for _ in range(slots)], p, dtype, self.width, rest)
