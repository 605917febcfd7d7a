"""``reduce`` of a sequence that lies along memory: the aggregate of a range, and nothing else.

An operator that commutes folds several vectors' accumulators, lane by lane, and the lanes at the end. One that does not combines
neighbours only: of two vectors whose lanes hold neighbouring runs of elements, the even lanes of both and the odd lanes of
both make one vector of runs twice as long. That tree applies the operator once for each vector, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from llvmlite import ir

from ....ir.program import Program, is_float
from ....specs.ordered import OrderedSpec
from ..llvm import expr
from ..llvm.build import I1, I32, I64, PTR, declare, i64, least, loop
from ..llvm.math import CHAIN
from ..llvm.types import alloca, numbers, register_type, splat, take
from ..llvm.vectors import Held, Variable, prefix_mask
from .elements import Elements, vector_width, width_of_functions
from .reduce_logaddexp import folds, reduce_logaddexp
from .reduce_packed import halves, high_halves, reduce_packed
from .rows import (
    FOUR,
    STARTED,
    apply_op,
    arrays_of,
    four_at_once,
    has,
    is_expensive,
    load_state,
    members,
    repeat,
    store_state,
    uniforms_of,
    walk,
)

State = list[ir.Value]
"""A vector for each slot."""

TREE = 64
"""Vectors, at most, that become one before its lanes are folded."""

LONGEST_SUM = 32
"""Numbers, at most, that are added one after the other where several vectors are under way: what a sum of floats loses grows with
them. Where one is, since an element takes time, the same takes a third longer."""


def reduce(module: ir.Module, spec: OrderedSpec, vector_bytes: int) -> None:
    packed, two = halves(spec), folds(spec)
    if packed is not None:
        reduce_packed(module, *_parts(module, {"whole": spec, "high": high_halves(packed)}, vector_bytes))
    elif two is not None:
        forms = {"most": two.most, "total": two.total} | ({"own": spec} if two.own else {})
        reduce_logaddexp(module, spec, two, _parts(module, forms, vector_bytes))
    else:
        _define(module, "reduce", spec, vector_bytes, inner=False)


def _parts(module: ir.Module, forms: Mapping[str, OrderedSpec], vector_bytes: int) -> list[ir.Function]:
    """Functions that ``reduce`` is made of."""
    return [_define(module, name, form, vector_bytes, inner=True) for name, form in forms.items()]


def _define(module: ir.Module, name: str, spec: OrderedSpec, vector_bytes: int, inner: bool) -> ir.Function:
    width = width_of_functions(spec, vector_bytes) if spec.commutes else vector_width(spec, vector_bytes)
    b, (arrays, uniforms, _, range_, aggregate, progress) = declare(module, name, [PTR] * 5 + [I64], I64, inner)
    lo, hi, n = members(b, range_, "lo", "hi", "n")
    if spec.commutes and spec.reverse:  # any order will do: memory's
        spec, lo, hi = dataclasses.replace(spec, reverse=False), b.sub(n, hi), b.sub(n, lo)
    some, started = b.icmp_signed("<", lo, hi), has(b, progress, STARTED)
    fold = Fold(b, spec, arrays, uniforms, n, width)
    with b.if_then(some):
        fold.fold(lo, hi)
        with b.if_then(started):
            before = load_state(b, spec, aggregate, i64(1), i64(0), 1)
            fold.total.put(fold.op([splat(b, v, width) for v in before], fold.total.get()))
        store_state(b, spec, fold.first(), aggregate, i64(1), i64(0))
    b.ret(b.or_(progress, b.select(some, i64(STARTED), i64(0))))
    return b.function


def _rounds(op: Program) -> bool:
    return any(i.op in ("add", "sub", "mul") and is_float(i.dtype) for i in op.body)


class Fold:
    """Code that leaves the combination of a range of elements in the first lane of ``total``."""

    def __init__(self, b: ir.IRBuilder, spec: OrderedSpec, arrays: ir.Value, uniforms: ir.Value, n: ir.Value, width: int):
        self.b, self.spec, self.width = b, spec, width
        self.uniforms, self.arrays = uniforms_of(b, spec, uniforms), arrays_of(b, spec, arrays)
        self.elements = Elements(b, spec, self.arrays, self.uniforms, n, width)
        self.total, self.holds = Held(b, spec.state, width), Variable(b, I1)

    def fold(self, lo: ir.Value, hi: ir.Value) -> None:
        """The elements [lo, hi), at least one."""
        self.holds.put(0)
        if self.width == 1:
            with loop(self.b, lo, hi) as i:
                self.append(self.elements.states(i))
            return
        (self._unordered if self.spec.commutes else self._ordered)(lo, hi)

    def first(self) -> State:
        """The first lane."""
        if self.width == 1:
            return self.total.get()
        return [self.b.extract_element(v, ir.Constant(I32, 0)) for v in self.total.get()]

    def op(self, first: State, second: State) -> State:
        return apply_op(self.b, self.spec, self.uniforms, self.width, first, second)

    def _unordered(self, lo: ir.Value, hi: ir.Value) -> None:
        b, width, vectors = self.b, self.width, self._vectors_at_once()
        count, left = b.sub(hi, lo), lo
        if vectors > 1 and _rounds(self.spec.op):
            step = vectors * width
            end = b.add(lo, b.and_(count, i64(-step)))
            with loop(b, lo, end, LONGEST_SUM * step) as i:
                self._several(i, least(b, b.sub(end, i), i64(LONGEST_SUM * step)), vectors)
            left = end
        elif vectors > 1:
            left = self._several(lo, count, vectors)
        with loop(b, left, hi, width) as i:
            rest = b.sub(hi, i)
            self.append(self.elements.states(i, rest), prefix_mask(b, rest, width))
        self.fold_any_lanes(count)

    def _several(self, lo: ir.Value, count: ir.Value, vectors: int) -> ir.Value:
        """Several vectors at a time, each into its own accumulator, and these into the total; returns where they end."""
        b, step = self.b, vectors * self.width
        four = four_at_once(self.spec.op) if vectors > FOUR and not is_expensive(self.spec.op) else None
        many = [Held(b, self.spec.state, self.width) for _ in range(vectors if four is None else vectors // FOUR)]
        end = b.add(lo, b.and_(count, i64(-step)))

        def elements(i: ir.Value) -> list[State]:
            return [self.elements.states(b.add(i, i64(v * self.width))) for v in range(vectors)]

        with b.if_then(b.icmp_signed(">=", count, i64(step))):
            first = elements(lo)
            for k, held in enumerate(many):
                total, *others = first[k :: len(many)]
                for x in others:
                    total = self.op(total, x)
                held.put(total)
            with loop(b, b.add(lo, i64(step)), end, step) as i:
                xs = elements(i)
                for k, held in enumerate(many):
                    if four is None:
                        held.put(self.op(held.get(), xs[k]))
                    else:
                        given = [v for x in xs[k :: len(many)] for v in x]
                        held.put(expr.emit(b, four, [*held.get(), *given], self.uniforms, self.width))
            states = [held.get() for held in many]
            while len(states) > 1:
                half = len(states) // 2
                states = [self.op(states[k], states[k + half]) for k in range(half)]
            self.append(states[0])
        return end

    def fold_any_lanes(self, count: ir.Value) -> None:
        """The first ``count`` lanes of the total, or all, in any order. Vectors get narrower where the operator is cheap."""
        b, state, half, few = self.b, self.total.get(), self.width // 2, self._few(count)
        expensive = is_expensive(self.spec.op)
        while half > (0 if expensive else 1):
            width = self.width if expensive else half
            low = state if expensive else [take(b, v, v, range(half)) for v in state]
            high = [take(b, v, v, [(k + half) % self.width for k in range(width)]) for v in state]
            there = b.icmp_signed("<", numbers(I32, range(half, half + width)), splat(b, few, width))
            both = apply_op(b, self.spec, self.uniforms, width, low, high)
            state = expr.selected(b, there, both, low)
            half //= 2
        first = [b.extract_element(v, I32(0)) for v in state]
        if half:
            both = apply_op(b, self.spec, self.uniforms, 1, first, [b.extract_element(v, I32(1)) for v in state])
            there = b.icmp_signed("<", I32(1), few)
            first = expr.selected(b, there, both, first)
        self.total.put([splat(b, v, self.width) for v in first])

    def _few(self, count: ir.Value) -> ir.Value:
        b, most = self.b, i64(self.width)
        return b.trunc(least(b, count, most), I32)

    def _vectors_at_once(self) -> int:
        """As many as hide the operator's latency, but few registers and little code."""
        if is_expensive(self.spec.f) or len(self.spec.f.body) > CHAIN:
            return 1
        return max(1, (4 if is_expensive(self.spec.op) or len(self.spec.f.body) > 4 else 8) // len(self.spec.state))

    def _hold(self, state: State) -> None:
        self.total.put(state)
        self.holds.put(1)

    def append(self, x: State, there: ir.Value | None = None) -> None:
        """x behind the total, in the lanes where it is."""
        b = self.b
        with b.if_else(self.holds.get()) as (then, otherwise):
            with then:
                now = self.total.get()
                new = self.op(now, x)
                self._hold(expr.selected(b, there, new, now))
            with otherwise:
                self._hold(x)

    def _neighbours(self, left: State, right: State) -> tuple[State, State]:
        """The even lanes of two vectors, and the odd ones, each in one vector."""
        lanes = range(2 * self.width)
        even, odd = ([take(self.b, p, q, lanes[k::2]) for p, q in zip(left, right, strict=True)] for k in (0, 1))
        return even, odd

    def _fold_lanes(self, held: Held, count: ir.Value) -> None:
        """The first ``count`` lanes, or all, neighbour by neighbour, into the first one."""
        b, width, state = self.b, self.width, held.get()
        few, run = splat(b, self._few(count), width), 1
        while run < width:
            even, odd = self._neighbours(state, state)
            there = b.icmp_signed("<", numbers(I32, range(run, 2 * width * run, 2 * run)), few)
            state = expr.selected(b, there, self.op(even, odd), even)
            run *= 2
        held.put(state)

    def _ordered(self, lo: ir.Value, hi: ir.Value) -> None:
        b = self.b
        with walk(b, lo, hi) as at:
            x, i = Held(b, self.spec.state, self.width), at.get()
            rest = b.sub(hi, i)
            vectors = self._tree(i, rest, x)
            self._fold_lanes(x, rest)
            at.put(b.add(i, b.mul(vectors, i64(self.width))))
            self.append(x.get())

    def _tree(self, i: ir.Value, rest: ir.Value, out: Held) -> ir.Value:
        """Elements from i on, combined with their neighbours, into ``out``: of 2^k vectors, at most ``TREE``, or the last,
        partial one. Returns how many.

        Subtrees that wait for their right half are kept like the digits of a binary counter.
        """
        b, width, levels = self.b, self.width, TREE.bit_length()
        types = [register_type(t, width) for t in self.spec.state]
        waiting, level = [alloca(b, t, levels) for t in types], Variable(b, I64)
        whole, vectors = b.sdiv(rest, i64(width)), i64(1)
        for k in range(1, levels):
            vectors = b.select(b.icmp_signed(">=", whole, i64(1 << k)), i64(1 << k), vectors)

        def place(p: ir.Value, t: ir.Type) -> ir.Value:
            return b.gep(p, [level.get()], source_etype=t)

        with loop(b, i64(0), vectors) as v:
            skipped = b.mul(v, i64(width))
            out.put(self.elements.states(b.add(i, skipped), b.sub(rest, skipped)))
            level.put(0)
            with repeat(b, lambda: b.trunc(b.lshr(v, level.get()), I1)):
                left = [b.load(place(p, t), typ=t) for p, t in zip(waiting, types, strict=True)]
                out.put(self.op(*self._neighbours(left, out.get())))
                level.put(b.add(level.get(), i64(1)))
            for p, t, value in zip(waiting, types, out.get(), strict=True):
                b.store(value, place(p, t))
        return vectors
