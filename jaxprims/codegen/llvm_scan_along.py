"""Scans whose vectors run along the row: ``scan`` and ``reduce`` of cpu/scan_kernel.h.

A vector is scanned by log steps: at step d = 1, 2, 4, ... a lane takes in what the lane d before it holds (Kogge and Stone).
Lanes without such a predecessor keep what they have, so no neutral element is needed. Between vectors goes a carry:

    output = (prefix ⊕ aggregate) ⊕ local,    aggregate = aggregate ⊕ the vector's last local

where the aggregate never takes in the prefix, so ``reduce`` leaves the same bits.

A restart is a bit for each lane. A lane may look d back if no restart lies in the d lanes up to it; windows twice as long are
two shifted ones, so a few shifts of one integer make the masks of all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ..frontend.program import CONTROL, Program, itemsize
from . import llvm_expr as expr
from .llvm_build import I1, I8, I32, I64, PTR, address, alloca, bytes_of, i64, intrinsic, loop, pointer, scaled, splat, suffix
from .llvm_elements import Elements, vector_width
from .llvm_math import MATH
from .llvm_rows import interleaved, load_state, store_state
from .llvm_types import take
from .scan_spec import ScanSpec

STARTED, RESTARTED = 1, 2
"""Bits of ``progress`` (cpu/scan_kernel.h)."""

Values = list[ir.Value]
"""A state: a value, or a vector, for each slot."""


def build_scan(module: ir.Module, spec: ScanSpec, vector_bytes: int, periodic: bool = False) -> None:
    """Defines ``scan``. ``periodic``: rows end to end, one every ``period`` elements."""
    b, args = _define(module, "scan", 7)
    b.ret(b.call(_along(module, spec, vector_bytes, periodic), args))


def build_reduce(module: ir.Module, spec: ScanSpec, vector_bytes: int) -> None:
    """Defines ``reduce``, which leaves the aggregate's very bits that ``scan`` leaves: it is the same code."""
    b, (arrays, uniforms, flags, range_, aggregate, progress) = _define(module, "reduce", 5)
    null = ir.Constant(PTR, None)
    args = [arrays, uniforms, null, flags, range_, null, aggregate, progress]
    b.ret(b.call(_along(module, spec, vector_bytes, False), args))


def _define(module: ir.Module, name: str, pointers: int) -> tuple[ir.IRBuilder, list[ir.Argument]]:
    fn = ir.Function(module, ir.FunctionType(I64, [PTR] * pointers + [I64]), name)
    fn.attributes.add("nounwind")
    return ir.IRBuilder(fn.append_basic_block("entry")), list(fn.args)


def _along(module: ir.Module, spec: ScanSpec, vector_bytes: int, periodic: bool) -> ir.Function:
    """``scan``, or, where ``outs`` is null, ``reduce``: emitted once for both, since most of the time to compile goes here."""
    known = module.globals.get("along")
    if known is not None:
        return known
    b, args = _define(module, "along", 7)
    fn = module.globals["along"]
    fn.linkage = "internal"
    fn.attributes.add("noinline")
    form = Tile if _cost(spec.op) > DEAR * len(spec.state) else LogSteps
    form(b, spec, vector_bytes, args, periodic).build()
    return fn


DEAR = 10
"""Instructions for each slot from which on an operator is worth two transpositions to be applied less often."""

_WEIGHTS = {"div": 6, "rem": 8, "sqrt": 6, "load": 8, "pow": 60} | dict.fromkeys(("cond", "while"), 20)


def _cost(program: Program) -> int:
    """About how many vector instructions a Program takes."""
    total = 0
    for i in program.body:
        if i.op == "loop":
            total += i.attr[0] * _cost(i.attr[1])
        elif i.op in CONTROL:
            total += 20 + sum(map(_cost, i.attr))
        elif i.op not in ("arg", "const", "item"):
            total += _WEIGHTS.get(i.op, 20 if i.op in MATH else 1)
    return total


class Kernel:
    """What the forms share: arguments, the aggregate, the carry."""

    lanes = 1
    """How often the aggregate and the carry are held: once, or in every lane of a vector."""

    def __init__(self, b: ir.IRBuilder, spec: ScanSpec, vector_bytes: int, args: Sequence[ir.Value], periodic: bool):
        self.b, self.module, self.spec, self.vector_bytes, self.periodic = b, b.module, spec, vector_bytes, periodic
        self.restarts = spec.restarts or spec.kind == "segments" or periodic
        arrays, uniforms, outs, self.flags, range_, self.prefix_state, self.aggregate_state, self.progress = args
        self.scans = b.icmp_unsigned("!=", outs, ir.Constant(PTR, None))
        self.arrays = [pointer(b, arrays, k) if a.slots else ir.Constant(PTR, None) for k, a in enumerate(spec.arrays)]
        self.uniforms = [pointer(b, uniforms, k) for k in range(len(spec.uniforms))]
        members = [b.load(b.gep(range_, [i64(k)], source_etype=I64), typ=I64) for k in range(4)]
        self.lo, self.hi, self.n, self.period = members
        self.out_places = alloca(b, PTR, len(spec.leaves))
        with b.if_then(self.scans):
            for k in range(len(spec.leaves)):
                b.store(pointer(b, outs, k), b.gep(self.out_places, [i64(k)], source_etype=PTR))

    def build(self) -> None:
        raise NotImplementedError

    def op(self, first: Sequence[ir.Value], second: Sequence[ir.Value], width: int) -> Values:
        return expr.emit(self.b, self.spec.op, [*first, *second], self.uniforms, width)

    # --- what goes from vector to vector ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Loads the aggregate and the prefix, where there are any."""
        b, spec = self.b, self.spec
        self.started, self.restarted = alloca(b, I1), alloca(b, I1)
        self.aggregate = [alloca(b, expr.register_type(t, self.lanes)) for t in spec.state]
        started = self._bit(STARTED)
        b.store(started, self.started)
        b.store(self._bit(RESTARTED), self.restarted)
        with b.if_then(started):
            self.keep(self._state_at(self.aggregate_state), self.aggregate)
        self.has_prefix = b.icmp_unsigned("!=", self.prefix_state, ir.Constant(PTR, None))
        self.prefix = [alloca(b, expr.register_type(t, self.lanes)) for t in spec.state]
        with b.if_then(self.has_prefix):
            self.keep(self._state_at(self.prefix_state), self.prefix)

    def end(self) -> None:
        b = self.b
        with b.if_then(self.is_started()):
            last = self.held(self.aggregate)
            if self.lanes > 1:
                last = [b.extract_element(v, ir.Constant(I32, 0)) for v in last]
            store_state(b, self.spec, last, self.aggregate_state, i64(1), i64(0))
        bits = [b.select(b.load(p, typ=I1), i64(bit), i64(0)) for p, bit in ((self.started, 1), (self.restarted, 2))]
        b.ret(b.or_(*bits))

    def keep(self, state: Sequence[ir.Value], places: Sequence[ir.Value]) -> None:
        for v, p in zip(state, places, strict=True):
            self.b.store(v, p)

    def held(self, places: Sequence[ir.Value]) -> Values:
        return [self.b.load(p, typ=expr.register_type(t, self.lanes)) for p, t in zip(places, self.spec.state, strict=True)]

    def _state_at(self, p: ir.Value) -> Values:
        values = load_state(self.b, self.spec, p, i64(1), i64(0), 1)
        return [splat(self.b, v, self.lanes) for v in values] if self.lanes > 1 else values

    def is_started(self) -> ir.Value:
        return self.b.load(self.started, typ=I1)

    def counts_prefix(self) -> ir.Value:
        """Does the prefix come before the aggregate (there is one, and no restart yet)?"""
        return self.b.and_(self.has_prefix, self.b.not_(self.b.load(self.restarted, typ=I1)))

    def carry(self) -> tuple[Values, ir.Value]:
        """prefix ⊕ aggregate, or the one that there is, and whether there is one."""
        b, started, counts = self.b, self.is_started(), self.counts_prefix()
        prefix, aggregate = self.held(self.prefix), self.held(self.aggregate)
        both = self.either(b.and_(started, counts), lambda: self.op(prefix, aggregate, self.lanes), lambda: aggregate)
        return [b.select(started, v, p) for v, p in zip(both, prefix, strict=True)], b.or_(started, counts)

    def either(
        self, condition: ir.Value, yes: Callable[[], Values], no: Callable[[], Values], likely: bool | None = None
    ) -> Values:
        b = self.b
        with b.if_else(condition, likely=likely) as (then, otherwise):
            with then:
                values, block = yes(), b.block
            with otherwise:
                others, other_block = no(), b.block
        out = []
        for v, w in zip(values, others, strict=True):
            out.append(b.phi(v.type))
            out[-1].add_incoming(v, block)
            out[-1].add_incoming(w, other_block)
        return out

    def advance(self, total: Values, restarted: ir.Value | None) -> None:
        """Takes the state ``total`` of further elements into the aggregate; ``restarted``: only since a restart among them."""
        b = self.b

        def joined() -> Values:
            values = self.op(self.held(self.aggregate), total, self.lanes)
            return values if restarted is None else [b.select(restarted, t, v) for t, v in zip(total, values, strict=True)]

        self.keep(self.either(self.is_started(), joined, lambda: total), self.aggregate)
        b.store(ir.Constant(I1, 1), self.started)
        if restarted is not None:
            b.store(b.or_(b.load(self.restarted, typ=I1), restarted), self.restarted)

    def _bit(self, bit: int) -> ir.Value:
        return self.b.icmp_unsigned("!=", self.b.and_(self.progress, i64(bit)), i64(0))


class LogSteps(Kernel):
    """For cheap operators: vector after vector, each by log steps.

    A few vectors (groups of a wide one) at a time, so that one need not wait for the other.
    """

    LANES = 64
    """Of all groups at most: as many bits as a word has."""

    def build(self) -> None:
        b, spec = self.b, self.spec
        self.group = vector_width(spec, self.vector_bytes)
        self.groups = max(1, min(8 // len(spec.state), self.LANES // self.group))
        self.groups = 1 << (self.groups.bit_length() - 1)
        self.width = width = self.group * self.groups
        self.word, self.backwards = ir.IntType(max(32, width)), spec.reverse
        self.elements = Elements(
            b, spec, self.arrays, self.uniforms, self.n, width, mirrored=True, period=self.period if self.periodic else None
        )
        self.locals = [alloca(b, expr.memory_type(t) if t == "b1" else expr.register_type(t), width) for t in spec.state]
        self.carries = [alloca(b, expr.register_type(t), self.groups) for t in spec.state]
        self.begin()
        if self.periodic:
            self._start_rows()
        with loop(b, self.lo, self.hi, width) as i:
            self._vector(i, b.sub(self.hi, i))
        self.end()

    def _vector(self, i: ir.Value, rest: ir.Value) -> None:
        b, bits = self.b, None
        values = self.elements.states(i, rest)
        if self.restarts:
            bits = self._restarts(i, rest)
        local, closed = self._local(values, bits)
        there = b.or_(self.is_started(), self.counts_prefix())
        self._between(local, bits, rest)
        with b.if_then(self.scans):
            self._results(local, closed, there, bits, i, rest)

    def _results(
        self, local: Values, closed: ir.Value | None, there: ir.Value, bits: ir.Value | None, i: ir.Value, rest: ir.Value
    ) -> None:
        """Combines what comes before each group in, and stores; ``there``: whether something comes before the first."""
        b = self.b
        before = [self._spread(p, t) for p, t in zip(self.carries, self.spec.state, strict=True)]
        first = self._lanes([self._offset(k) < self.group for k in range(self.width)])
        joined = self.op(before, local, self.width)
        if closed is not None:
            reach = self._mask(b.not_(closed))
            joined = [b.select(reach, v, x) for v, x in zip(joined, local, strict=True)]
        alone = [b.select(first, x, v) for v, x in zip(joined, local, strict=True)]
        results = self.either(there, lambda: joined, lambda: alone, likely=True)
        if self.spec.exclusive:
            results = self._shift(results, before, there, bits)
        self._store(results, i, rest)

    def _local(self, values: Values, bits: ir.Value | None) -> tuple[Values, ir.Value | None]:
        """Each group's inclusive scan, and a bit for each lane that a restart separates from what came before its group."""
        b, width, d = self.b, self.width, 1
        while d < self.group:
            before = [take(b, v, v, [self._earlier(k, d) for k in range(width)]) for v in values]
            has = [self._offset(k) % self.group >= d for k in range(width)]
            reach = self._merging(has[: self.group])
            if bits is not None:
                reach = self._mask(b.and_(b.not_(bits), self._word(has)))
                bits = b.or_(bits, b.and_(self._shifted(bits, d), self._word(has)))
            values = [b.select(reach, new, v) for new, v in zip(self.op(before, values, width), values, strict=True)]
            d *= 2
        return values, bits

    def _between(self, local: Values, bits: ir.Value | None, rest: ir.Value) -> None:
        """Group after group: keeps the carry into it, then takes its last state into the aggregate."""
        b, group, spec = self.b, self.group, self.spec
        for v, p, t in zip(local, self.locals, spec.state, strict=True):
            b.store(expr.to_memory(b, v, t) if t == "b1" else v, p)
        count = b.lshr(b.add(rest, i64(group - 1)), i64(group.bit_length() - 1))
        count = b.select(self.elements.whole(rest), i64(self.groups), count)
        started = self.is_started()
        with b.if_then(b.not_(started), likely=False):  # the first group of all starts the aggregate
            total = self._last(i64(0), rest)
            self.keep(total, self.aggregate)
            prefix = self.held(self.prefix)
            self._carry_into(i64(0), [b.select(self.counts_prefix(), v, x) for v, x in zip(prefix, total, strict=True)])
            self._found(i64(0), bits)
            b.store(ir.Constant(I1, 1), self.started)
        with loop(b, b.select(started, i64(0), i64(1)), count) as g:
            total, aggregate = self._last(g, rest), self.held(self.aggregate)
            prefix = self.held(self.prefix)
            self._carry_into(g, self.either(self.counts_prefix(), lambda: self.op(prefix, aggregate, 1), lambda: aggregate))
            found, values = self._found(g, bits), self.op(aggregate, total, 1)
            if found is not None:
                values = [b.select(found, t, v) for t, v in zip(total, values, strict=True)]
            self.keep(values, self.aggregate)

    def _carry_into(self, g: ir.Value, values: Values) -> None:
        for v, p in zip(values, self.carries, strict=True):
            self.b.store(v, self.b.gep(p, [self._place(g, self.groups)], source_etype=v.type))

    def _found(self, g: ir.Value, bits: ir.Value | None) -> ir.Value | None:
        """Whether there is a restart in group g."""
        if bits is None:
            return None
        b = self.b
        low = self._amount(b.mul(self._place(g, self.groups), i64(self.group)))
        mine = b.and_(b.lshr(bits, low), ir.Constant(self.word, (1 << self.group) - 1))
        found = b.icmp_unsigned("!=", mine, ir.Constant(self.word, 0))
        b.store(b.or_(b.load(self.restarted, typ=I1), found), self.restarted)
        return found

    def _last(self, g: ir.Value, rest: ir.Value) -> Values:
        """The state of the last element of group g."""
        b, group = self.b, self.group
        left, first = b.sub(rest, b.mul(g, i64(group))), b.mul(g, i64(group))
        last = b.sub(b.select(b.icmp_signed("<", left, i64(group)), left, i64(group)), i64(1))
        at, values = self._place(b.add(first, last), self.width), []
        for p, t in zip(self.locals, self.spec.state, strict=True):
            stored = expr.memory_type(t) if t == "b1" else expr.register_type(t)
            v = b.load(b.gep(p, [at], source_etype=stored), typ=stored)
            values.append(expr.from_memory(b, v, t) if t == "b1" else v)
        return values

    def _spread(self, p: ir.Value, dtype: str) -> ir.Value:
        """A value for each group, in all its lanes."""
        b, t = self.b, expr.register_type(dtype)
        parts = [splat(b, b.load(b.gep(p, [i64(g)], source_etype=t), typ=t), self.group) for g in range(self.groups)]
        while len(parts) > 1:
            parts = [take(b, x, y, range(2 * x.type.count)) for x, y in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    def _shift(self, results: Values, before: Values, there: ir.Value, bits: ir.Value | None) -> Values:
        """From inclusive results to exclusive ones: each lane takes its predecessor's."""
        b, spec, width = self.b, self.spec, self.width
        order = [self._earlier(k, 1) if self._offset(k) % self.group else width + k for k in range(width)]
        values = [take(b, v, c, order) for v, c in zip(results, before, strict=True)]
        if spec.identity is None:
            return values
        none = b.and_(splat(b, b.not_(there), width), self._lanes([self._offset(k) == 0 for k in range(width)]))
        if bits is not None:
            none = b.or_(none, self._mask(bits))
        identity = [expr.constant(t, x, width) for t, x in zip(spec.state, spec.identity, strict=True)]
        return [b.select(none, e, v) for e, v in zip(identity, values, strict=True)]

    def _store(self, states: Values, i: ir.Value, rest: ir.Value) -> None:
        b, spec, width = self.b, self.spec, self.width
        values = iter(expr.emit(b, spec.finish, states, self.uniforms, width))
        at, rows = self.elements.memory_index(i), []
        for k, (dtype, slots) in enumerate(spec.leaves):
            leaf = pointer(b, self.out_places, k)
            row = interleaved(b, [expr.to_memory(b, next(values), dtype) for _ in range(slots)])
            rows.append((row, address(b, leaf, scaled(b, at, slots * itemsize(dtype))), dtype, slots))
        with b.if_else(self.elements.whole(rest), likely=True) as (then, otherwise):
            with then:
                for row, p, dtype, _ in rows:
                    b.store(row, p, align=itemsize(dtype))
            with otherwise:
                for row, p, _, slots in rows:
                    name = f"llvm.masked.store.v{row.type.count}{suffix(row.type.element)}.p0"
                    mask = self.elements.in_memory(rest, slots)
                    b.call(intrinsic(self.module, name, ir.VoidType(), [row.type, PTR, mask.type]), [row, p, mask])

    # --- lanes ----------------------------------------------------------------------------------------------------------------

    def _offset(self, lane: int) -> int:
        """A lane's place in scan order."""
        return self.width - 1 - lane if self.backwards else lane

    def _place(self, k: ir.Value, count: int) -> ir.Value:
        """Where the k-th of ``count`` things in scan order is in memory order."""
        return self.b.sub(i64(count - 1), k) if self.backwards else k

    def _earlier(self, lane: int, d: int) -> int:
        """The lane d places before, going round in its group."""
        first = lane - lane % self.group
        return first + (lane - first + (d if self.backwards else -d)) % self.group

    def _merging(self, chosen: Sequence[bool]) -> ir.Value:
        """These lanes of every group, as a mask that LLVM cannot see through: with one that it can, it makes shuffles of selects,
        where AVX-512 merges under a mask for nothing."""
        b, group = self.b, self.group
        if self.vector_bytes < 64:
            return self._lanes(list(chosen) * self.groups)
        zero = b.lshr(self.progress, i64(62))  # no such bits are in use
        bits = b.or_(zero, i64(sum(1 << k for k, c in enumerate(chosen) if c)))
        mask = b.bitcast(bits if group == 64 else b.trunc(bits, ir.IntType(group)), ir.VectorType(I1, group))
        return take(b, mask, mask, list(range(group)) * self.groups) if self.groups > 1 else mask

    def _lanes(self, chosen: Sequence[bool]) -> ir.Constant:
        return ir.Constant(ir.VectorType(I1, self.width), list(map(int, chosen)))

    # --- restarts -------------------------------------------------------------------------------------------------------------

    def _word(self, chosen: Sequence[bool]) -> ir.Constant:
        return ir.Constant(self.word, sum(1 << k for k, c in enumerate(chosen) if c))

    def _mask(self, bits: ir.Value) -> ir.Value:
        narrow = bits if self.word.width == self.width else self.b.trunc(bits, ir.IntType(self.width))
        return self.b.bitcast(narrow, ir.VectorType(I1, self.width))

    def _shifted(self, bits: ir.Value, d: int | ir.Value) -> ir.Value:
        """Every lane's bit to the lane d places after it."""
        b = self.b
        by = ir.Constant(self.word, d) if isinstance(d, int) else d
        return b.lshr(bits, by) if self.backwards else b.shl(bits, by)

    def _restarts(self, i: ir.Value, rest: ir.Value) -> ir.Value:
        """A bit for each lane that starts anew."""
        b, bits = self.b, []
        if self.periodic:
            bits.append(self._row_starts())
        if self.spec.restarts or self.spec.kind == "segments":
            p, t = address(b, self.flags, self.elements.memory_index(i)), ir.VectorType(I8, self.width)
            name = f"llvm.masked.load.v{self.width}i8.p0"

            def tail() -> Values:
                mask = self.elements.in_memory(rest)
                return [b.call(intrinsic(self.module, name, t, [PTR, mask.type, t]), [p, mask, ir.Constant(t, None)])]

            (flags,) = self.elements.either(rest, lambda: [b.load(p, typ=t, align=1)], tail)
            found = b.bitcast(b.icmp_unsigned("!=", flags, ir.Constant(t, None)), ir.IntType(self.width))
            bits.append(found if self.word.width == self.width else b.zext(found, self.word))
        return bits[0] if len(bits) == 1 else b.or_(*bits)

    def _start_rows(self) -> None:
        """Rows every ``period`` elements: the starts in a vector that begins with one, and how far away the next start is."""
        b, word = self.b, self.word
        pattern: ir.Value = ir.Constant(word, 1)
        step, reach = self.period, 1
        while reach < self.width:
            short = b.icmp_unsigned("<", step, i64(self.width))
            shifted = b.shl(pattern, self._amount(b.select(short, step, i64(0))))
            pattern = b.or_(pattern, shifted)
            step, reach = b.select(short, b.add(step, step), step), 2 * reach
        if self.spec.reverse:
            turned = intrinsic(self.module, f"llvm.bitreverse.i{word.width}", word, [word])
            pattern = b.lshr(b.call(turned, [pattern]), ir.Constant(word, word.width - self.width))
        self.pattern, self.step = pattern, b.urem(i64(self.width), self.period)
        self.ahead = alloca(b, I64)
        b.store(i64(0), self.ahead)

    def _row_starts(self) -> ir.Value:
        b, ahead = self.b, self.b.load(self.ahead, typ=I64)
        near = b.icmp_unsigned("<", ahead, i64(self.width))
        by = self._amount(b.select(near, ahead, i64(0)))
        bits = b.select(near, self._shifted(self.pattern, by), ir.Constant(self.word, 0))
        after = b.sub(ahead, self.step)
        b.store(b.select(b.icmp_signed("<", after, i64(0)), b.add(after, self.period), after), self.ahead)
        return bits

    def _amount(self, value: ir.Value) -> ir.Value:
        return value if self.word is I64 or self.word.width == 64 else self.b.trunc(value, self.word)


class Tile(LogSteps):
    """For dear operators: a lane takes ``width`` consecutive elements, so that two applications for each do.

    Vectors are transposed in squares. A lane's elements are combined one after the other, its last with the other lanes' by
    log steps, and what comes before the lane is combined in. A few squares (chains) at a time, so that one need not wait for
    the other. The operator is a function, emitted once.
    """

    BUFFER_BYTES = 16 * 1024
    """The states of all chains lie in L1."""

    def build(self) -> None:
        b, spec = self.b, self.spec
        self.width = self.lanes = self.group = width = min(vector_width(spec, self.vector_bytes), self.vector_bytes // 4)
        self.word, self.backwards = I32, False  # lanes are in scan order whatever the row's direction
        self.groups, self.square = 1, width * width
        size = self.square * sum(bytes_of(self._stored(t)) for t in spec.state)
        self.chains = min(4, max(1, self.BUFFER_BYTES // size))
        self.chains = 1 << (self.chains.bit_length() - 1)
        self.elements = Elements(
            b, spec, self.arrays, self.uniforms, self.n, width, mirrored=True, period=self.period if self.periodic else None
        )
        self.rows = [alloca(b, self._stored(t), self.chains * self.square) for t in spec.state]
        self.flag_words = alloca(b, I32, self.chains * width)
        self.carries = [alloca(b, self._stored(t), self.chains * width) for t in spec.state]
        self.joins = alloca(b, I8, self.chains)
        self.begin()
        if self.periodic:
            self._start_rows()
        tile = self.chains * self.square
        with loop(b, self.lo, self.hi, tile) as i:
            rest = b.sub(self.hi, i)
            rest = b.select(b.icmp_signed("<", rest, i64(tile)), rest, i64(tile))
            used = b.sdiv(b.add(rest, i64(self.square - 1)), i64(self.square))
            self._fill(i, rest, b.mul(used, i64(width)))
            self._transpose(used)
            self._down(used)
            with loop(b, i64(0), used) as c:
                self._across(c, b.sub(rest, b.mul(c, i64(self.square))))
            with b.if_then(self.scans):
                self._apply(used)
                self._transpose(used)
                self._write(i, rest)
        self.end()

    def op(self, first: Sequence[ir.Value], second: Sequence[ir.Value], width: int) -> Values:
        b, function = self.b, self.module.globals.get("op")
        if function is None:
            t = [expr.register_type(t, width) for t in self.spec.state]
            result = ir.LiteralStructType(t)
            function = ir.Function(self.module, ir.FunctionType(result, [*t, *t, *(PTR for _ in self.uniforms)]), "op")
            function.linkage = "internal"
            for attribute in ("nounwind", "noinline"):
                function.attributes.add(attribute)
            inside = ir.IRBuilder(function.append_basic_block())
            args, uniforms = list(function.args[: 2 * len(t)]), list(function.args[2 * len(t) :])
            made: ir.Value = ir.Constant(result, ir.Undefined)
            for k, v in enumerate(expr.emit(inside, self.spec.op, args, uniforms, width)):
                made = inside.insert_value(made, v, k)
            inside.ret(made)
        values = b.call(function, [*first, *second, *self.uniforms])
        return [b.extract_value(values, k) for k in range(len(first))]

    # --- the buffer: rows of ``width`` states, slot by slot ---------------------------------------------------------------------

    def _stored(self, dtype: str) -> ir.Type:
        """A scalar's type in the buffer: 4 bytes at least, so that there are few kinds of square."""
        t = expr.register_type(dtype)
        return I32 if isinstance(t, ir.IntType) and t.width < 32 else t

    def _row(self, places: Sequence[ir.Value], row: ir.Value) -> list[ir.Value]:
        b = self.b
        at = b.mul(row, i64(self.width))
        return [b.gep(p, [at], source_etype=self._stored(t)) for p, t in zip(places, self.spec.state, strict=True)]

    def _get(self, places: Sequence[ir.Value], row: ir.Value) -> Values:
        b, out = self.b, []
        for p, t in zip(self._row(places, row), self.spec.state, strict=True):
            v = b.load(p, typ=ir.VectorType(self._stored(t), self.width))
            narrow = expr.register_type(t, self.width)
            out.append(v if v.type == narrow else b.trunc(v, narrow))
        return out

    def _put(self, places: Sequence[ir.Value], row: ir.Value, values: Sequence[ir.Value]) -> None:
        b = self.b
        for p, t, v in zip(self._row(places, row), self.spec.state, values, strict=True):
            wide = ir.VectorType(self._stored(t), self.width)
            b.store(v if v.type == wide else b.zext(v, wide), p)

    def _row_of(self, c: ir.Value, u: ir.Value) -> ir.Value:
        """The row of each lane's u-th element in scan order."""
        b = self.b
        return b.add(b.mul(c, i64(self.width)), b.sub(i64(self.width - 1), u) if self.spec.reverse else u)

    # --- the steps --------------------------------------------------------------------------------------------------------------

    def _fill(self, i: ir.Value, rest: ir.Value, rows: ir.Value) -> None:
        """The states of a tile's elements; rows past the end repeat the first."""
        b, width = self.b, self.width
        with loop(b, i64(0), rows) as row:
            ahead = b.mul(row, i64(width))
            left = b.sub(rest, ahead)
            there = b.icmp_signed(">", left, i64(0))
            first, left = b.select(there, b.add(i, ahead), i), b.select(there, left, rest)
            self._put(self.rows, row, self.elements.states(first, left))
            if self.restarts:
                bits = self._restarts(first, left)
                bits = b.select(there, bits, ir.Constant(I32, 0))
                b.store(bits, b.gep(self.flag_words, [row], source_etype=I32))

    def _transpose(self, used: ir.Value) -> None:
        b = self.b
        with loop(b, i64(0), used) as c:
            for p, t in zip(self._row(self.rows, b.mul(c, i64(self.width))), self.spec.state, strict=True):
                b.call(self._transposer(self._stored(t)), [p])

    def _transposer(self, t: ir.Type) -> ir.Function:
        """Transposes a square of scalars in place, by halves, two halvings at a time (LLVM is slow on deeper ones)."""
        name, width = f"transpose.{suffix(t)}", self.width
        function = self.module.globals.get(name)
        if function is not None:
            return function
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [PTR]), name)
        function.linkage = "internal"
        for attribute in ("nounwind", "noinline"):
            function.attributes.add(attribute)
        b, row = ir.IRBuilder(function.append_basic_block()), ir.VectorType(t, width)
        span = width
        while span > 1:
            radix = min(4, span)
            least = span // radix  # rows of a group lie so far apart
            with loop(b, i64(0), i64(width // span)) as high, loop(b, i64(0), i64(least)) as low:
                first = b.add(b.mul(high, i64(span)), low)
                places = [b.gep(function.args[0], [b.add(first, i64(k * least))], source_etype=row) for k in range(radix)]
                rows = [b.load(p, typ=row) for p in places]
                half = radix // 2
                while half:
                    for k in range(radix):
                        if not k & half:
                            rows[k], rows[k + half] = self._swapped(b, rows[k], rows[k + half], half * least)
                    half //= 2
                for p, v in zip(places, rows, strict=True):
                    b.store(v, p)
            span = least
        b.ret_void()
        return function

    def _swapped(self, b: ir.IRBuilder, low: ir.Value, high: ir.Value, half: int) -> tuple[ir.Value, ir.Value]:
        """Two rows ``half`` apart with the upper half of every 2 * half lanes of the one and the lower of the other swapped."""
        lanes = range(self.width)
        first = take(b, low, high, [k if not k & half else self.width + k - half for k in lanes])
        return first, take(b, low, high, [k + half if not k & half else self.width + k for k in lanes])

    def _flags(self, c: ir.Value) -> ir.Value:
        """Each lane's restarts: a word of a bit for each row."""
        p = self.b.gep(self.flag_words, [self.b.mul(c, i64(self.width))], source_etype=I32)
        return self.b.load(p, typ=ir.VectorType(I32, self.width))

    def _flag(self, words: ir.Value, u: ir.Value) -> ir.Value:
        """Which lanes' u-th element starts anew."""
        b = self.b
        row = b.sub(i64(self.width - 1), u) if self.spec.reverse else u
        bit = splat(b, b.shl(ir.Constant(I32, 1), b.trunc(row, I32)), self.width)
        return b.icmp_unsigned("!=", b.and_(words, bit), ir.Constant(words.type, None))

    def _up_to(self, u: ir.Value) -> ir.Value:
        """The bits of a lane's elements up to the u-th."""
        b = self.b
        if self.spec.reverse:
            return b.shl(ir.Constant(I32, -1), b.trunc(b.sub(i64(self.width - 1), u), I32))
        return b.sub(b.shl(ir.Constant(I32, 2), b.trunc(u, I32)), ir.Constant(I32, 1))

    def _down(self, used: ir.Value) -> None:
        """Every lane's elements, one after the other."""
        b = self.b
        with loop(b, i64(1), i64(self.width)) as u, loop(b, i64(0), used) as c:
            row = self._row_of(c, u)
            before, now = self._get(self.rows, self._row_of(c, b.sub(u, i64(1)))), self._get(self.rows, row)
            values = self.op(before, now, self.width)
            if self.restarts:
                anew = self._flag(self._flags(c), u)
                values = [b.select(anew, x, v) for x, v in zip(now, values, strict=True)]
            self._put(self.rows, row, values)

    def _across(self, c: ir.Value, rest: ir.Value) -> None:
        """A chain's lanes among each other, and what comes before each."""
        b, width = self.b, self.width
        totals = self._get(self.rows, self._row_of(c, i64(width - 1)))
        bits = None
        if self.restarts:
            words = self._flags(c)
            found = b.icmp_unsigned("!=", words, ir.Constant(words.type, None))
            bits = b.zext(b.bitcast(found, ir.IntType(width)), I32)
        local, closed = self._local(totals, bits)
        before = [take(b, v, v, [max(0, k - 1) for k in range(width)]) for v in local]
        with b.if_then(self.scans):
            carry, there = self.carry()
            reach = self._lanes([True] * width) if closed is None else self._mask(b.not_(b.shl(closed, ir.Constant(I32, 1))))
            shifted = [take(b, k, v, [0] + [width + j for j in range(1, width)]) for k, v in zip(carry, before, strict=True)]
            reach = b.and_(reach, self._lanes([k > 0 for k in range(width)]))

            def joined() -> Values:
                return [b.select(reach, v, w) for v, w in zip(self.op(carry, before, width), shifted, strict=True)]

            self._put(self.carries, c, self.either(there, joined, lambda: before))
            b.store(b.zext(there, I8), b.gep(self.joins, [c], source_etype=I8))
        whole = b.icmp_signed(">=", rest, i64(self.square))
        last = ir.Constant(I32, width - 1)
        total = self.either(
            whole, lambda: [splat(b, b.extract_element(v, last), width) for v in local], lambda: self._tail(c, rest, before)
        )
        self.advance(total, None if bits is None else b.icmp_unsigned("!=", bits, ir.Constant(I32, 0)))

    def _tail(self, c: ir.Value, rest: ir.Value, before: Values) -> Values:
        """The combination of a chain's first ``rest`` elements; ``before``: of the lanes before each."""
        b, width = self.b, self.width
        e = b.sub(rest, i64(1))
        lane, u = b.trunc(b.sdiv(e, i64(width)), I32), b.srem(e, i64(width))
        own = [splat(b, b.extract_element(v, lane), width) for v in self._get(self.rows, self._row_of(c, u))]
        behind = [splat(b, b.extract_element(v, lane), width) for v in before]
        joins = b.icmp_unsigned("!=", lane, ir.Constant(I32, 0))
        if self.restarts:
            word = b.extract_element(self._flags(c), lane)
            joins = b.and_(joins, b.icmp_unsigned("==", b.and_(word, self._up_to(u)), ir.Constant(I32, 0)))
        return [b.select(joins, v, w) for v, w in zip(self.op(behind, own, width), own, strict=True)]

    def _apply(self, used: ir.Value) -> None:
        """What comes before a lane, combined into its elements; exclusive: into the next one's place."""
        b, spec, width = self.b, self.spec, self.width
        identity = None
        if spec.exclusive and spec.identity is not None:
            identity = [expr.constant(t, x, width) for t, x in zip(spec.state, spec.identity, strict=True)]

        def replaced(values: Values, where: ir.Value) -> Values:
            return values if identity is None else [b.select(where, e, v) for e, v in zip(identity, values, strict=True)]

        def joins(c: ir.Value) -> ir.Value:
            there = b.icmp_unsigned("!=", b.load(b.gep(self.joins, [c], source_etype=I8), typ=I8), ir.Constant(I8, 0))
            return b.or_(self._lanes([k > 0 for k in range(width)]), splat(b, there, width))

        last = i64(width - 1)
        with loop(b, i64(0), last if spec.exclusive else i64(width)) as k, loop(b, i64(0), used) as c:
            u = b.sub(last, k)
            source = b.sub(u, i64(1)) if spec.exclusive else u
            now, wanted = self._get(self.rows, self._row_of(c, source)), joins(c)
            if self.restarts:
                words = self._flags(c)
                open_ = b.and_(words, splat(b, self._up_to(source), width))
                wanted = b.and_(wanted, b.icmp_unsigned("==", open_, ir.Constant(words.type, None)))
            values = self.op(self._get(self.carries, c), now, width)
            values = [b.select(wanted, v, x) for v, x in zip(values, now, strict=True)]
            if spec.exclusive and self.restarts:
                values = replaced(values, self._flag(self._flags(c), u))
            self._put(self.rows, self._row_of(c, u), values)
        if spec.exclusive:
            with loop(b, i64(0), used) as c:
                none = b.not_(joins(c))
                if self.restarts:
                    none = b.or_(none, self._flag(self._flags(c), i64(0)))
                self._put(self.rows, self._row_of(c, i64(0)), replaced(self._get(self.carries, c), none))

    def _write(self, i: ir.Value, rest: ir.Value) -> None:
        b, width = self.b, self.width
        with loop(b, i64(0), rest, width) as ahead:
            row = b.sdiv(ahead, i64(width))
            self._store(self._get(self.rows, row), b.add(i, ahead), b.sub(rest, ahead))
