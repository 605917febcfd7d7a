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

from ..frontend.program import itemsize
from . import llvm_expr as expr
from .llvm_build import I1, I8, I32, I64, PTR, address, alloca, i64, intrinsic, loop, pointer, scaled, splat, suffix
from .llvm_elements import Elements, vector_width
from .llvm_rows import interleaved, load_state, store_state
from .llvm_types import take
from .scan_spec import ScanSpec

STARTED, RESTARTED = 1, 2
"""Bits of ``progress`` (cpu/scan_kernel.h)."""

Values = list[ir.Value]
"""A state: a value, or a vector, for each slot."""


def build_scan(module: ir.Module, spec: ScanSpec, vector_bytes: int, periodic: bool = False) -> None:
    """Defines ``scan``. ``periodic``: rows end to end, one every ``period`` elements."""
    _form(spec)(module, spec, vector_bytes, "scan", periodic).build()


def build_reduce(module: ir.Module, spec: ScanSpec, vector_bytes: int) -> None:
    """Defines ``reduce``, which leaves the aggregate's very bits that ``scan`` leaves."""
    _form(spec)(module, spec, vector_bytes, "reduce").build()


def _form(spec: ScanSpec) -> type[Kernel]:
    return LogSteps


class Kernel:
    """What the forms share: arguments, the aggregate, the carry."""

    def __init__(self, module: ir.Module, spec: ScanSpec, vector_bytes: int, name: str, periodic: bool = False):
        self.module, self.spec, self.vector_bytes, self.periodic = module, spec, vector_bytes, periodic
        self.scans = name == "scan"
        self.restarts = spec.restarts or spec.kind == "segments" or periodic
        params = [PTR] * (7 if self.scans else 5) + [I64]
        fn = ir.Function(module, ir.FunctionType(I64, params), name)
        fn.attributes.add("nounwind")
        b = self.b = ir.IRBuilder(fn.append_basic_block("entry"))
        arrays, uniforms, *args = fn.args
        if self.scans:
            outs, self.flags, range_, self.prefix_state, self.aggregate_state, self.progress = args
            self.outs = [pointer(b, outs, k) for k in range(len(spec.leaves))]
        else:
            self.flags, range_, self.aggregate_state, self.progress = args
        self.arrays = [pointer(b, arrays, k) if a.slots else ir.Constant(PTR, None) for k, a in enumerate(spec.arrays)]
        self.uniforms = [pointer(b, uniforms, k) for k in range(len(spec.uniforms))]
        members = [b.load(b.gep(range_, [i64(k)], source_etype=I64), typ=I64) for k in range(4)]
        self.lo, self.hi, self.n, self.period = members

    def build(self) -> None:
        raise NotImplementedError

    def op(self, first: Sequence[ir.Value], second: Sequence[ir.Value], width: int) -> Values:
        return expr.emit(self.b, self.spec.op, [*first, *second], self.uniforms, width)

    # --- what goes from vector to vector ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Loads the aggregate and the prefix, where there are any."""
        b, spec = self.b, self.spec
        self.started, self.restarted = alloca(b, I1), alloca(b, I1)
        self.aggregate = [alloca(b, expr.register_type(t)) for t in spec.state]
        started = self._bit(STARTED)
        b.store(started, self.started)
        b.store(self._bit(RESTARTED), self.restarted)
        with b.if_then(started):
            self.keep(load_state(b, spec, self.aggregate_state, i64(1), i64(0), 1))
        if self.scans:
            self.has_prefix = b.icmp_unsigned("!=", self.prefix_state, ir.Constant(PTR, None))
            self.prefix = [alloca(b, expr.register_type(t)) for t in spec.state]
            with b.if_then(self.has_prefix):
                for v, p in zip(load_state(b, spec, self.prefix_state, i64(1), i64(0), 1), self.prefix, strict=True):
                    b.store(v, p)

    def end(self) -> None:
        b = self.b
        with b.if_then(self.is_started()):
            store_state(b, self.spec, self.current(), self.aggregate_state, i64(1), i64(0))
        bits = [b.select(b.load(p, typ=I1), i64(bit), i64(0)) for p, bit in ((self.started, 1), (self.restarted, 2))]
        b.ret(b.or_(*bits))

    def keep(self, state: Sequence[ir.Value]) -> None:
        for v, p in zip(state, self.aggregate, strict=True):
            self.b.store(v, p)

    def current(self) -> Values:
        return [self.b.load(p, typ=expr.register_type(t)) for p, t in zip(self.aggregate, self.spec.state, strict=True)]

    def is_started(self) -> ir.Value:
        return self.b.load(self.started, typ=I1)

    def counts_prefix(self) -> ir.Value:
        """Does the prefix come before the aggregate (there is one, and no restart yet)?"""
        return self.b.and_(self.has_prefix, self.b.not_(self.b.load(self.restarted, typ=I1)))

    def carry(self) -> tuple[Values, ir.Value]:
        """prefix ⊕ aggregate, or the one that there is, and whether there is one."""
        b, started, counts = self.b, self.is_started(), self.counts_prefix()
        prefix = [b.load(p, typ=expr.register_type(t)) for p, t in zip(self.prefix, self.spec.state, strict=True)]
        both = self.either(b.and_(started, counts), lambda: self.op(prefix, self.current(), 1), self.current)
        return [b.select(started, v, p) for v, p in zip(both, prefix, strict=True)], b.or_(started, counts)

    def either(self, condition: ir.Value, yes: Callable[[], Values], no: Callable[[], Values]) -> Values:
        b = self.b
        with b.if_else(condition) as (then, otherwise):
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
            values = self.op(self.current(), total, 1)
            return values if restarted is None else [b.select(restarted, t, v) for t, v in zip(total, values, strict=True)]

        self.keep(self.either(self.is_started(), joined, lambda: total))
        b.store(ir.Constant(I1, 1), self.started)
        if restarted is not None:
            b.store(b.or_(b.load(self.restarted, typ=I1), restarted), self.restarted)

    def _bit(self, bit: int) -> ir.Value:
        return self.b.icmp_unsigned("!=", self.b.and_(self.progress, i64(bit)), i64(0))


class LogSteps(Kernel):
    """For cheap operators: vector after vector, each by log steps."""

    def build(self) -> None:
        b, spec = self.b, self.spec
        self.width = width = vector_width(spec, self.vector_bytes)
        self.word = ir.IntType(max(32, width))
        self.elements = Elements(
            b, spec, self.arrays, self.uniforms, self.n, width, mirrored=True, period=self.period if self.periodic else None
        )
        self.begin()
        if self.periodic:
            self._start_rows()
        with loop(b, self.lo, self.hi, width) as i:
            self._vector(i, b.sub(self.hi, i))
        self.end()

    def _vector(self, i: ir.Value, rest: ir.Value) -> None:
        b, width = self.b, self.width
        values = self.elements.states(i, rest)
        bits = self._restarts(i, rest) if self.restarts else None
        local, reach = self._local(values, bits)
        if self.scans:
            carry, there = self.carry()
            self._store(self._results(local, carry, there, reach, bits), i, rest)
        total = self.elements.either(rest, lambda: self._lane(local, None), lambda: self._lane(local, rest))
        self.advance(total, None if bits is None else b.icmp_unsigned("!=", bits, ir.Constant(self.word, 0)))

    def _local(self, values: Values, bits: ir.Value | None) -> tuple[Values, ir.Value | None]:
        """The vector's own inclusive scan, and which lanes no restart separates from what came before it."""
        b, width, d = self.b, self.width, 1
        while d < width:
            before = [take(b, v, v, [self._earlier(k, d) for k in range(width)]) for v in values]
            reach = self._lanes([self._offset(k) >= d for k in range(width)])
            if bits is not None:
                reach = self._mask(b.and_(b.not_(bits), self._word([self._offset(k) >= d for k in range(width)])))
                bits = b.or_(bits, self._shifted(bits, d))
            values = [b.select(reach, new, v) for new, v in zip(self.op(before, values, width), values, strict=True)]
            d *= 2
        return values, None if bits is None else self._mask(b.not_(bits))

    def _results(self, local: Values, carry: Values, there: ir.Value, reach: ir.Value | None, bits: ir.Value | None) -> Values:
        """States to finish and store."""
        b, spec, width = self.b, self.spec, self.width
        before = [splat(b, v, width) for v in carry]

        def joined() -> Values:
            values = self.op(before, local, width)
            return values if reach is None else [b.select(reach, new, v) for new, v in zip(values, local, strict=True)]

        values = self.either(there, joined, lambda: local)
        if not spec.exclusive:
            return values
        order = [self._earlier(k, 1) if self._offset(k) else width for k in range(width)]
        values = [take(b, v, c, order) for v, c in zip(values, before, strict=True)]
        if spec.identity is None:
            return values
        none = b.select(there, self._lanes([False] * width), self._lanes([self._offset(k) == 0 for k in range(width)]))
        if bits is not None:
            none = b.or_(none, self._mask(bits))
        identity = [expr.constant(t, x, width) for t, x in zip(spec.state, spec.identity, strict=True)]
        return [b.select(none, e, v) for e, v in zip(identity, values, strict=True)]

    def _store(self, states: Values, i: ir.Value, rest: ir.Value) -> None:
        b, spec, width = self.b, self.spec, self.width
        values = iter(expr.emit(b, spec.finish, states, self.uniforms, width))
        at, rows = self.elements.memory_index(i), []
        for leaf, (dtype, slots) in zip(self.outs, spec.leaves, strict=True):
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
        return self.width - 1 - lane if self.spec.reverse else lane

    def _earlier(self, lane: int, d: int) -> int:
        """The lane d places before, going round."""
        return (lane + d if self.spec.reverse else lane - d) % self.width

    def _lane(self, values: Values, rest: ir.Value | None) -> Values:
        """The last element's state; ``rest``: the vector has only so many."""
        b, last = self.b, ir.Constant(I32, self._offset(self.width - 1))
        if rest is not None:
            last = b.trunc(b.sub(i64(self.width), rest) if self.spec.reverse else b.sub(rest, i64(1)), I32)
        return [b.extract_element(v, last) for v in values]

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
        return b.lshr(bits, by) if self.spec.reverse else b.shl(bits, by)

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
