"""``scan`` and ``reduce`` of sequences that lie side by side: a vector runs across them, each lane folds its own in order.

Memory is walked in blocks of steps: within a block, one vector of lanes after the other goes down the steps with its accumulator
in registers; between blocks the accumulators are the aggregate's states in memory, which stay in the first-level cache. Of a
reduction of few steps no state is ever in memory, and many lie one behind the other (``rows``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ....ir.program import itemsize
from ....specs.ordered import OrderedSpec
from ..llvm import expr
from ..llvm.build import I1, I64, NULL, PTR, all_pointers, chosen, declare, i64, least, loop, pointer
from ..llvm.types import alloca, register_type, resized
from ..llvm.vectors import Held, Variable
from .elements import vector_width
from .reduce_logaddexp import log_sums_at_once, of_ones
from .rows import (
    FOUR,
    RESTARTED,
    STARTED,
    apply_op,
    arrays_of,
    element,
    four_at_once,
    has,
    identity_state,
    is_expensive,
    load_state,
    members,
    repeat,
    starts_anew,
    store_results,
    store_state,
    uniforms_of,
    walk,
)

SHORT_ROW, STRIP_STEPS = 2048, 8
"""Lanes up to which a scan walks memory step by step; and how many steps are walked together else: prefetchers can follow so many
streams, and accumulators stay in registers for so long. (Sums at once divide it, so they are the same however lanes are.)"""

FEWEST_FAR = 512
"""Bytes of a step from which on memory is read step by step; less is read from end to end as it is."""

VECTORS = 4
"""Of a reduction's lanes, side by side: their accumulators do not wait for each other."""

State = list[ir.Value]
"""A vector for each slot."""


def scan(module: ir.Module, spec: OrderedSpec, vector_bytes: int, streams: bool = False) -> None:
    """``streams``: results go past the caches."""
    _Across(module, spec, vector_bytes, "scan", streams).build()


def reduce(module: ir.Module, spec: OrderedSpec, vector_bytes: int) -> None:
    _Across(module, spec, vector_bytes, "reduce").build()


def rows(module: ir.Module, spec: OrderedSpec, vector_bytes: int) -> None:
    """Defines ``scan`` of a range that has a period (cpu/ordered_kernel.h), of a reduction."""
    _Rows(module, spec, vector_bytes, "scan").build()


class _Across:
    def __init__(self, module: ir.Module, spec: OrderedSpec, vector_bytes: int, name: str, streams: bool = False):
        self.scans, self.streams = spec.kind == "scan" and name == "scan", streams
        b, (arrays, uniforms, *args) = declare(module, name, [PTR] * (7 if name == "scan" else 5) + [I64], I64)
        self.b, self.spec, self.width = b, spec, vector_width(spec, vector_bytes)
        self.started = Variable(b, I1)  # does the aggregate hold something?
        self.led = Variable(b, I1)  # is there a prefix that counts?
        self.before: ir.Value = i64(0)  # elements in memory
        if name == "scan":
            outs, self.flags, self.range_, self.prefix, self.aggregate, self.progress = args
            self._open(outs)
        else:
            self.flags, self.range_, self.aggregate, self.progress = args
        self.arrays, self.uniforms = arrays_of(b, spec, arrays), uniforms_of(b, spec, uniforms)
        names = ("lo", "hi", "n", "lanes", "lane_lo", "lane_hi")
        self.lo, self.hi, self.n, self.lanes, self.lane_lo, lane_hi = members(b, self.range_, *names)
        self.wanted = b.sub(lane_hi, self.lane_lo)
        self.started.put(has(b, self.progress, STARTED))

    def _open(self, outs: ir.Value) -> None:
        """What only a scan has: results, which ``reduce`` does not want, and a prefix."""
        b = self.b
        self.writes = b.icmp_unsigned("!=", outs, NULL)
        self.leaves = [alloca(b, PTR) for _ in self.spec.leaves]
        with b.if_then(self.writes):
            for k, leaf in enumerate(self.leaves):
                b.store(pointer(b, outs, k), leaf)
        self.led.put(b.and_(b.icmp_unsigned("!=", self.prefix, NULL), b.not_(has(b, self.progress, RESTARTED))))

    def build(self) -> None:
        b = self.b
        some = b.select(b.icmp_signed("<", self.lo, self.hi), i64(STARTED), i64(0))
        if not self.spec.restarts or self.spec.kind == "segments":  # there flags are only for scans, along
            self._run(self.lo, self.hi)
            b.ret(b.or_(self.progress, some))
            return
        at, restarted = Variable(b, I64, self.lo), Variable(b, I64, 0)
        with repeat(b, lambda: b.icmp_signed("<", at.get(), self.hi)):
            start = at.get()
            with b.if_then(self._flag(start)):
                self.started.put(0)
                self.led.put(0)
                restarted.put(RESTARTED)
            at.put(b.add(start, i64(1)))
            with repeat(b, lambda: self._continues(at.get())):
                at.put(b.add(at.get(), i64(1)))
            self._run(start, at.get())
        b.ret(b.or_(b.or_(self.progress, some), restarted.get()))

    def _memory_step(self, t: ir.Value) -> ir.Value:
        return self.b.sub(self.b.sub(self.n, i64(1)), t) if self.spec.reverse else t

    def _flag(self, t: ir.Value) -> ir.Value:
        return starts_anew(self.b, self.flags, self._memory_step(t))

    def _continues(self, t: ir.Value) -> ir.Value:
        """Whether step ``t`` is there and does not restart."""
        b = self.b
        return chosen(b, b.icmp_signed("<", t, self.hi), lambda: [b.not_(self._flag(t))], lambda: [I1(0)])[0]

    def _run(self, lo: ir.Value, hi: ir.Value) -> None:
        """Steps without a restart but perhaps at the first."""
        b, steps = self.b, self._block_steps(lo, hi)
        with walk(b, lo, hi) as at:
            first = at.get()
            end = least(b, b.add(first, steps), hi)
            self._all_lanes(first, end)
            self.started.put(1)
            at.put(end)

    def _all_lanes(self, first: ir.Value, end: ir.Value) -> None:
        b, spec, width, left = self.b, self.spec, self.width, i64(0)
        whole = b.and_(self.wanted, i64(-width))
        if not self.scans and not is_expensive(spec.op):
            left = b.and_(whole, i64(-VECTORS * width))
            with loop(b, i64(0), left, VECTORS * width) as lane:
                self._down(first, end, [b.add(lane, i64(k * width)) for k in range(VECTORS)])
        backwards = self.scans and spec.reverse  # so that memory is gone through from end to end
        if backwards:
            self._rest(first, end, whole)
        with loop(b, left, whole, width) as lane:
            self._down(first, end, [b.sub(b.sub(whole, i64(width)), lane) if backwards else lane])
        if not backwards:
            self._rest(first, end, whole)

    def _rest(self, first: ir.Value, end: ir.Value, whole: ir.Value) -> None:
        """The lanes that fill no vector."""
        with self.b.if_then(self.b.icmp_signed("<", whole, self.wanted)):
            self._down(first, end, [whole], self.b.sub(self.wanted, whole))

    def _block_steps(self, lo: ir.Value, hi: ir.Value) -> ir.Value:
        """Of one vector: all. Of short rows of a scan, whole, and of what a reduction reads from memory: one, so that it is read
        from end to end. Else a few."""
        b = self.b
        if self.scans:
            one = b.and_(b.icmp_signed("==", self.wanted, self.lanes), b.icmp_signed("<=", self.lanes, i64(SHORT_ROW)))
        elif of_ones(self.spec):  # of sums of exponentials those at once save most of these
            one = I1(0)
        else:
            (far,) = members(b, self.range_, "far")
            least_lanes = FEWEST_FAR // max(1, sum(itemsize(a.dtype) * a.slots for a in self.spec.arrays))
            one = b.and_(b.icmp_signed("!=", far, i64(0)), b.icmp_signed(">=", self.lanes, i64(least_lanes)))
        few = b.select(one, i64(1), i64(STRIP_STEPS))
        return b.select(b.icmp_signed("<=", self.wanted, i64(self.width)), b.sub(hi, lo), few)

    def _down(self, lo: ir.Value, hi: ir.Value, lanes: list[ir.Value], rest: ir.Value | None = None) -> None:
        """Steps [lo, hi) of vectors of lanes, of the last of which ``rest`` may be there."""
        b, spec, holds = self.b, self.spec, Variable(self.b, I1)
        accs, lead = [Held(b, spec.state, self.width) for _ in lanes], Held(b, spec.state, self.width)
        started = self.started.get()
        holds.put(started)
        with b.if_then(started):
            for acc, lane in zip(accs, lanes, strict=True):
                acc.put(load_state(b, spec, self.aggregate, self.wanted, lane, self.width, rest))
        if self.scans:
            with b.if_then(self.led.get()):
                lead.put(load_state(b, spec, self.prefix, self.wanted, lanes[0], self.width, rest))
        four, some = self._at_once(), lo
        if four is not None or isinstance(self, _Rows):
            if four is not None and is_expensive(spec.op):
                with b.if_then(b.not_(started)):
                    accs[0].put(self._identity())
            else:
                some = b.add(lo, b.select(b.or_(started, b.icmp_signed(">=", lo, hi)), i64(0), i64(1)))
                with loop(b, lo, some) as t:
                    for acc, x in zip(accs, self._elements(t, lanes, rest)[1], strict=True):
                        acc.put(x)
            holds.put(1)
            lo = some
        if four is not None:
            lo = b.add(some, b.and_(b.sub(hi, some), i64(-FOUR)))
            with loop(b, some, lo, FOUR) as t:
                rows = [self._elements(b.add(t, i64(k)), lanes, rest)[1] for k in range(FOUR)]
                for k, acc in enumerate(accs):
                    acc.put(four(acc.get(), [row[k] for row in rows]))
        with loop(b, lo, hi) as t:
            indices, xs = self._elements(t, lanes, rest)
            begun = holds.get()
            if self.scans and spec.exclusive:
                self._write(lambda: self._before(accs[0], lead, begun), indices[0], rest)
            with b.if_else(begun) as (then, otherwise):
                with then:
                    for acc, x in zip(accs, xs, strict=True):
                        acc.put(self._op(acc.get(), x))
                with otherwise:
                    for acc, x in zip(accs, xs, strict=True):
                        acc.put(x)
            holds.put(1)
            if self.scans and not spec.exclusive:
                self._write(lambda: self._led(accs[0], lead), indices[0], rest)
        for acc, lane in zip(accs, lanes, strict=True):
            self._leave(acc.get(), lane, rest)

    def _leave(self, state: State, lane: ir.Value, rest: ir.Value | None) -> None:
        store_state(self.b, self.spec, state, self.aggregate, self.wanted, lane, rest)

    def _elements(self, t: ir.Value, lanes: Sequence[ir.Value], rest: ir.Value | None) -> tuple[list[ir.Value], list[State]]:
        """Of step t, with where they lie."""
        b, step = self.b, self._memory_step(t)
        row = b.add(b.add(self.before, b.mul(step, self.lanes)), self.lane_lo)
        indices = [b.add(row, lane) for lane in lanes]
        position = lambda dtype: resized(b, step, register_type(dtype))  # noqa: E731  # the same in all lanes
        xs = [element(b, self.spec, self.arrays, self.uniforms, self.width, index, position, rest) for index in indices]
        return indices, xs

    def _op(self, a: State, x: State) -> State:
        return apply_op(self.b, self.spec, self.uniforms, self.width, a, x)

    def _led(self, acc: Held, lead: Held) -> State:
        """The prefix, where there is one, before the accumulator."""
        return chosen(self.b, self.led.get(), lambda: self._op(lead.get(), acc.get()), acc.get)

    def _before(self, acc: Held, lead: Held, begun: ir.Value) -> State:
        """What came before this step: prefix and accumulator, one of them, or the identity."""
        b = self.b

        def start() -> State:
            return chosen(b, self.led.get(), lead.get, self._identity)

        return chosen(b, begun, lambda: self._led(acc, lead), start)

    def _identity(self) -> State:
        return identity_state(self.spec, self.width)  # without one, the driver gives a prefix

    def _at_once(self) -> Callable[[State, Sequence[State]], State] | None:
        """What folds several elements into a state, if that costs less than one after the other."""
        spec = self.spec
        if self.scans:
            return None
        if spec.kind == "reduce" and of_ones(spec):
            return lambda state, xs: log_sums_at_once(self.b, spec, self.width, state, xs)
        four = None if is_expensive(spec.op) else four_at_once(spec.op)
        if four is None:
            return None
        return lambda state, xs: expr.emit(self.b, four, [*state, *(v for x in xs for v in x)], self.uniforms, self.width)

    def _write(self, state: Callable[[], State], index: ir.Value, rest: ir.Value | None) -> None:
        b = self.b
        with b.if_then(self.writes):
            leaves = [b.load(leaf, typ=PTR) for leaf in self.leaves]
            store_results(b, self.spec, state(), self.uniforms, leaves, index, self.width, rest, self.streams)


class _Rows(_Across):
    """Of few steps, one reduction behind the other: accumulators stay in registers from the first step to the last."""

    def _open(self, outs: ir.Value) -> None:
        self.places = all_pointers(self.b, outs, len(self.spec.leaves))

    def build(self) -> None:
        b = self.b
        (self.n,) = members(b, self.range_, "period")
        with loop(b, i64(0), b.sdiv(self.hi, self.n)) as self.row:
            self.before = b.mul(b.mul(self.row, self.n), self.lanes)
            self._all_lanes(i64(0), self.n)
        b.ret(i64(STARTED))

    def _leave(self, state: State, lane: ir.Value, rest: ir.Value | None) -> None:
        b = self.b
        at = b.add(b.add(b.mul(self.row, self.lanes), self.lane_lo), lane)
        store_results(b, self.spec, state, self.uniforms, self.places, at, self.width, rest)
