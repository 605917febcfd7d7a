"""``reduce`` of a sequence that lies along memory: the aggregate of a range, and nothing else.

An operator that commutes folds several vectors' accumulators, lane by lane, and the lanes at the end. One that does not combines
neighbours only: of two vectors whose lanes hold neighbouring runs of elements, the even lanes of both and the odd lanes of
both make one vector of runs twice as long. That tree applies the operator once for each vector, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from ..frontend.program import Builder, Program
from . import llvm_expr as expr
from .llvm_build import I1, I32, I64, PTR, alloca, i64, loop, pointer, splat
from .llvm_elements import Elements, vector_width
from .llvm_rows import Held, apply_op, is_dear, load_state, prefix_mask, repeat, store_state
from .llvm_scan_across import RANGE, STARTED
from .llvm_types import take
from .scan_spec import ScanSpec

State = list[ir.Value]
"""A vector for each slot."""

CHUNK, CHUNKS = 512, 16
"""Elements of a chunk; and how many of them are looked at, in the first-level cache, before one is chosen."""

TREE = 64
"""Vectors, at most, that become one before its lanes are folded."""


def reduce(module: ir.Module, spec: ScanSpec, vector_bytes: int) -> None:
    high = _high_halves(spec)
    if high is None:
        _Reduction(_declared(module, "reduce"), spec, vector_width(spec, vector_bytes)).build()
        return
    functions = []
    for name, form in (("whole", spec), ("high", high)):
        functions.append(_declared(module, name))
        functions[-1].linkage = "internal"
        _Reduction(functions[-1], form, vector_width(form, vector_bytes)).build()
    _reduce_packed(_declared(module, "reduce"), *functions)


def _declared(module: ir.Module, name: str) -> ir.Function:
    fn = ir.Function(module, ir.FunctionType(I64, [PTR] * 5 + [I64]), name)
    fn.attributes.add("nounwind")
    return fn


def _high_halves(spec: ScanSpec) -> ScanSpec | None:
    """Of a maximum of s64 whose high half f computes as an s32 (argmax and its position, frontend/representation.py): the maximum
    of the high halves, half the work."""
    if not spec.commutes or spec.state != ("s64",) or sorted(i.op for i in spec.op.body) != ["arg", "arg", "max"]:
        return None
    body = spec.f.body
    joined = body[spec.f.results[0]]
    halves = [body[o] for o in joined.operands]
    if joined.op != "or" or [h.op for h in halves] != ["shift_left", "convert"]:
        return None
    high, by, low = *(body[o] for o in halves[0].operands), body[halves[1].operands[0]]
    if (by.op, by.attr) != ("const", 32) or high.op != "convert" or (body[high.operands[0]].dtype, low.dtype) != ("s32", "u32"):
        return None
    f, op, finish = Builder(spec.f.params), Builder(("s32", "s32")), Builder(("s32",))
    key = f.inline(Program(spec.f.params, body, high.operands), [f.arg(k) for k in range(len(f.params))])
    return dataclasses.replace(
        spec,
        state=("s32",),
        leaves=(("s32", 1),),
        identity=None,
        f=f.finish(key),
        op=op.finish([op.emit("max", "s32", op.arg(0), op.arg(1))]),
        finish=finish.finish([finish.arg(0)]),
    )


def _reduce_packed(fn: ir.Function, whole: ir.Function, high: ir.Function) -> None:
    """The high halves' maximum by chunks; then whole words, of those chunks alone that reach the largest."""
    b = ir.IRBuilder(fn.append_basic_block("entry"))
    arrays, uniforms, flags, range_, aggregate, progress = fn.args
    part, best, most, done = alloca(b, I64, len(RANGE)), alloca(b, I64), alloca(b, I64, CHUNKS), alloca(b, I64)
    member = {name: b.gep(part, [i64(k)], source_etype=I64) for k, name in enumerate(RANGE)}
    for k, place in enumerate(member.values()):
        b.store(b.load(b.gep(range_, [i64(k)], source_etype=I64), typ=I64), place)
    lo, hi = (b.load(member[name], typ=I64) for name in ("lo", "hi"))
    with b.if_then(b.icmp_signed("<=", b.sub(hi, lo), i64(2 * CHUNK))):  # too few for two passes
        b.ret(b.call(whole, fn.args))
    b.store(progress, done)

    def least(x: ir.Value, y: ir.Value) -> ir.Value:
        return b.select(b.icmp_signed("<", x, y), x, y)

    with loop(b, lo, hi, CHUNK * CHUNKS) as start:
        stop = least(b.add(start, i64(CHUNK * CHUNKS)), hi)

        @contextmanager
        def chunks() -> Iterator[ir.Value]:
            with loop(b, start, stop, CHUNK) as first:
                b.store(first, member["lo"])
                b.store(least(b.add(first, i64(CHUNK)), stop), member["hi"])
                yield b.gep(most, [b.sdiv(b.sub(first, start), i64(CHUNK))], source_etype=I64)

        b.store(i64(0), best)
        with chunks() as mine:
            b.call(high, [arrays, uniforms, flags, part, mine, i64(0)])
            now = b.load(mine, typ=I32)
            largest = b.icmp_signed(">", now, b.load(best, typ=I32))
            b.store(
                b.select(b.or_(largest, b.icmp_signed("==", b.load(member["lo"], typ=I64), start)), now, b.load(best, typ=I32)),
                best,
            )
        with chunks() as mine, b.if_then(b.icmp_signed(">=", b.load(mine, typ=I32), b.load(best, typ=I32))):
            b.store(b.call(whole, [arrays, uniforms, flags, part, aggregate, b.load(done, typ=I64)]), done)
    b.ret(b.load(done, typ=I64))


class _Reduction:
    def __init__(self, fn: ir.Function, spec: ScanSpec, width: int):
        self.b = b = ir.IRBuilder(fn.append_basic_block("entry"))
        arrays, uniforms, _, range_, self.aggregate, self.progress = fn.args
        self.uniforms = [pointer(b, uniforms, k) for k in range(len(spec.uniforms))]
        lo, hi, n = (b.load(b.gep(range_, [i64(RANGE.index(m))], source_etype=I64), typ=I64) for m in ("lo", "hi", "n"))
        if spec.commutes and spec.reverse:  # any order will do: memory's
            spec, lo, hi = dataclasses.replace(spec, reverse=False), b.sub(n, hi), b.sub(n, lo)
        self.spec, self.width, self.lo, self.hi = spec, width, lo, hi
        rows = [pointer(b, arrays, k) if a.slots else ir.Constant(PTR, None) for k, a in enumerate(spec.arrays)]
        self.elements = Elements(b, spec, rows, self.uniforms, n, width)
        self.total, self.holds = Held(b, spec, width), alloca(b, I1)

    def build(self) -> None:
        b = self.b
        started = b.icmp_unsigned("!=", b.and_(self.progress, i64(STARTED)), i64(0))
        with b.if_then(b.icmp_signed("<", self.lo, self.hi)):
            b.store(ir.Constant(I1, 0), self.holds)
            if self.spec.commutes:
                self._unordered()
            else:
                self._ordered()
            with b.if_then(started):
                before = load_state(b, self.spec, self.aggregate, i64(1), i64(0), 1)
                self.total.put(self._op([splat(b, v, self.width) for v in before], self.total.get()))
            first = [b.extract_element(v, ir.Constant(I32, 0)) for v in self.total.get()]
            store_state(b, self.spec, first, self.aggregate, i64(1), i64(0))
        some = b.select(b.icmp_signed("<", self.lo, self.hi), i64(STARTED), i64(0))
        b.ret(b.or_(self.progress, some))

    def _op(self, first: State, second: State) -> State:
        return apply_op(self.b, self.spec, self.uniforms, self.width, first, second)

    def _unordered(self) -> None:
        b, width = self.b, self.width
        vectors = self._vectors_at_once()
        step, count = vectors * width, b.sub(self.hi, self.lo)
        bulk = b.and_(count, i64(-step))
        many = [Held(b, self.spec, width) for _ in range(vectors)]

        def several(i: ir.Value) -> list[State]:
            return [self.elements.states(b.add(i, i64(v * width))) for v in range(vectors)]

        with b.if_then(b.icmp_signed(">=", count, i64(step))):
            for held, x in zip(many, several(self.lo), strict=True):
                held.put(x)
            with loop(b, b.add(self.lo, i64(step)), b.add(self.lo, bulk), step) as i:
                for held, x in zip(many, several(i), strict=True):
                    held.put(self._op(held.get(), x))
            states = [held.get() for held in many]
            while len(states) > 1:
                half = len(states) // 2
                states = [self._op(states[k], states[k + half]) for k in range(half)]
            self._hold(states[0])
        with loop(b, b.add(self.lo, bulk), self.hi, width) as i:
            rest = b.sub(self.hi, i)
            self._append(self.elements.states(i, rest), prefix_mask(b, rest, width))
        self._fold_lanes(self.total, b.select(b.icmp_signed("<", count, i64(width)), count, i64(width)))

    def _vectors_at_once(self) -> int:
        """As many as hide the operator's latency, but few registers and little code."""
        if is_dear(self.spec.f):
            return 1
        long = len(self.spec.f.body) > 8
        return max(1, (2 if long else 4 if is_dear(self.spec.op) else 8) // len(self.spec.state))

    def _hold(self, state: State) -> None:
        self.total.put(state)
        self.b.store(ir.Constant(I1, 1), self.holds)

    def _append(self, x: State, there: ir.Value | None = None) -> None:
        """x behind the total, in the lanes where it is."""
        b = self.b
        with b.if_else(b.load(self.holds, typ=I1)) as (then, otherwise):
            with then:
                now = self.total.get()
                new = self._op(now, x)
                self._hold(new if there is None else [b.select(there, v, w) for v, w in zip(new, now, strict=True)])
            with otherwise:
                self._hold(x)

    def _neighbours(self, left: State, right: State) -> tuple[State, State]:
        """The even lanes of two vectors, and the odd ones, each in one vector."""
        lanes = range(2 * self.width)
        even, odd = ([take(self.b, p, q, lanes[k::2]) for p, q in zip(left, right, strict=True)] for k in (0, 1))
        return even, odd

    def _fold_lanes(self, held: Held, count: ir.Value) -> None:
        """The first ``count`` lanes, neighbour by neighbour, into the first one."""
        b, width = self.b, self.width
        second = ir.Constant(ir.VectorType(I32, width), [2 * k + 1 for k in range(width)])  # of each pair
        left, state = b.trunc(count, I32), held.get()
        for _ in range(width.bit_length() - 1):
            even, odd = self._neighbours(state, state)
            there = b.icmp_signed("<", second, splat(b, left, width))
            state = [b.select(there, v, w) for v, w in zip(self._op(even, odd), even, strict=True)]
            left = b.lshr(b.add(left, I32(1)), I32(1))
        held.put(state)

    def _ordered(self) -> None:
        b, width = self.b, self.width
        at, x = alloca(b, I64), Held(b, self.spec, width)
        b.store(self.lo, at)
        with repeat(b, lambda: b.icmp_signed("<", b.load(at, typ=I64), self.hi)):
            i = b.load(at, typ=I64)
            rest = b.sub(self.hi, i)
            vectors = self._tree(i, rest, x)
            self._fold_lanes(x, b.select(b.icmp_signed("<", rest, i64(width)), rest, i64(width)))
            b.store(b.add(i, b.mul(vectors, i64(width))), at)
            self._append(x.get())

    def _tree(self, i: ir.Value, rest: ir.Value, out: Held) -> ir.Value:
        """Elements from i on, combined with their neighbours, into ``out``: of 2^k vectors, at most ``TREE``, or the last,
        partial one. Returns how many.

        Subtrees that wait for their right half are kept like the digits of a binary counter.
        """
        b, width, levels = self.b, self.width, TREE.bit_length()
        types = [expr.register_type(t, width) for t in self.spec.state]
        waiting, level = [alloca(b, t, levels) for t in types], alloca(b, I64)
        whole, vectors = b.sdiv(rest, i64(width)), i64(1)
        for k in range(1, levels):
            vectors = b.select(b.icmp_signed(">=", whole, i64(1 << k)), i64(1 << k), vectors)

        def place(p: ir.Value, t: ir.Type) -> ir.Value:
            return b.gep(p, [b.load(level, typ=I64)], source_etype=t)

        with loop(b, i64(0), vectors) as v:
            skipped = b.mul(v, i64(width))
            out.put(self.elements.states(b.add(i, skipped), b.sub(rest, skipped)))
            b.store(i64(0), level)
            with repeat(b, lambda: b.trunc(b.lshr(v, b.load(level, typ=I64)), I1)):
                left = [b.load(place(p, t), typ=t) for p, t in zip(waiting, types, strict=True)]
                out.put(self._op(*self._neighbours(left, out.get())))
                b.store(b.add(b.load(level, typ=I64), i64(1)), level)
            for p, t, value in zip(waiting, types, out.get(), strict=True):
                b.store(value, place(p, t))
        return vectors
