"""Scans of cheap operators along a row: a vector at a time, by log steps of its lanes (Kogge and Stone)."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ..llvm import expr
from ..llvm.build import I1, I8, I32, address, chosen, i64, least, loop, masked_load, side_by_side
from ..llvm.types import alloca, from_memory, memory_type, numbers, register_type, resized, splat, take, to_memory, vector_of
from .elements import Elements, is_taken_apart, vector_width
from .rows import identity_state
from .scan_base import Kernel, Values


class LogSteps(Kernel):
    """For cheap operators: vector after vector, each by log steps.

    A few vectors (groups of a wide one) at a time, so that one need not wait for the other.
    """

    stride = 1
    """Lanes of an element."""

    LANES = 64
    """Of all groups at most: as many bits as a word has."""

    UNROLLED = 32
    """Instructions of the operator, for all groups, up to which they are combined without a loop."""

    def build(self) -> None:
        b, spec = self.b, self.spec
        self.choose_groups()
        self.elements = Elements(b, spec, self.arrays, self.uniforms, self.n, self.width, mirrored=True)
        self.locals = [alloca(b, memory_type(t) if t == "b1" else register_type(t), self.width) for t in spec.state]
        self.carries = [alloca(b, register_type(t), self.groups * self.stride) for t in spec.state]
        self.begin()
        with loop(b, self.lo, self.hi, self.width) as i:
            self._vector(i, b.sub(self.hi, i))
        self.end()

    def choose_groups(self) -> None:
        """How many lanes are scanned among each other, and how many such groups at a time."""
        spec = self.spec
        self.group = vector_width(spec, self.vector_bytes)
        combined = sum(spec.op.body[r].op != "arg" for r in spec.op.results)  # the others are passed on
        self.groups = max(1, min(8 // max(1, combined), self.LANES // self.group))
        self.groups = 1 << (self.groups.bit_length() - 1)
        while self.groups > 1 and not is_taken_apart(spec, self.group * self.groups):
            self.groups //= 2
        self.width = self.group * self.groups
        self.word, self.backwards = ir.IntType(max(32, self.width)), spec.reverse

    def _vector(self, i: ir.Value, rest: ir.Value) -> None:
        b, bits = self.b, None
        values = self.elements.states(i, rest)
        if self.restarts:
            bits = self._restarts(i, rest)
        local, closed = self._local(values, bits)
        there = b.or_(self.started.get(), self.counts_prefix())
        if len(self.spec.op.body) * self.groups <= self.UNROLLED:
            before = chosen(
                b,
                b.and_(self.started.get(), self.elements.whole(rest)),
                lambda: self._between(local, bits),
                lambda: self._between_some(local, bits, rest),
                likely=True,
            )
        else:
            before = self._between_some(local, bits, rest)
        with b.if_then(self.scans):
            results = self._results(local, before, closed, there)
            if self.spec.exclusive:
                results = self._shift(results, before, there, bits)
            self._store(results, i, rest)

    def _results(self, local: Values, before: Values, closed: ir.Value | None, there: ir.Value) -> Values:
        """With what comes before each group combined in; ``there``: whether something comes before the first."""
        b = self.b
        first = self._lanes([self._offset(k) < self.group for k in range(self.width)])
        if closed is None:
            joined = self.op(before, local, self.width)
        else:
            joined = self._whole(
                [
                    expr.selected(b, mask, self.op(k, part, self.group), part)
                    for k, part, mask in zip(self._parts(before), self._parts(local), self._masks(b.not_(closed)), strict=True)
                ]
            )
        alone = expr.selected(b, first, local, joined)
        return chosen(b, there, lambda: joined, lambda: alone, likely=True)

    def _local(self, values: Values, bits: ir.Value | None, run: int | ir.Value | None = None) -> tuple[Values, ir.Value | None]:
        """Each group's inclusive scan, and a bit for each lane that a restart separates from what came before its group. ``run``:
        there are so many elements between restarts at most, so that no step need reach further."""
        b, d = self.b, self.stride
        parts = self._parts(values)
        while d < (run if isinstance(run, int) else self.group):
            has = [self._offset(k) % self.group >= d for k in range(self.width)]
            reach = [self._merging(has[: self.group])] * self.groups
            if bits is not None:
                reach = self._masks(b.and_(b.not_(bits), self._word(has)))
                bits = b.or_(bits, b.and_(self._shifted(bits, d), self._word(has)))
            parts = [self._step(part, mask, d, run) for part, mask in zip(parts, reach, strict=True)]
            d *= 2
        return self._whole(parts), bits

    def _step(self, part: Values, mask: ir.Value, d: int, run: int | ir.Value | None) -> Values:
        """Each lane of a group with what the lane d places before it holds, where the mask says so."""
        b, order = self.b, [self._earlier(k, d) for k in range(self.group)]

        def joined() -> Values:
            values = self.op([take(b, v, v, order) for v in part], part, self.group)
            return expr.selected(b, mask, values, part)

        return chosen(b, b.icmp_signed(">", run, i64(d)), joined, lambda: part) if isinstance(run, ir.Value) else joined()

    def _parts(self, values: Values) -> list[Values]:
        """The groups' own vectors, as they lie in memory."""
        if self.groups == 1:
            return [values]
        return [[take(self.b, v, v, range(k, k + self.group)) for v in values] for k in range(0, self.width, self.group)]

    def _whole(self, parts: Sequence[Values]) -> Values:
        return [side_by_side(self.b, vectors) for vectors in zip(*parts, strict=True)]

    def _between(self, local: Values, bits: ir.Value | None) -> Values:
        """Group after group: takes the last state into the aggregate. Returns what comes before each group, in all its lanes."""
        befores = []
        for g in range(self.groups):
            carry = self._carry()
            befores.append([self._repeated(v) for v in carry])
            last = self._offset((g + 1) * self.group - (self.stride if not self.backwards else 1))
            self._take_in([self._element(v, last) for v in local], self._found(i64(g), bits))
        if self.backwards:
            befores.reverse()
        return self._whole(befores)

    def _carry(self) -> Values:
        prefix, aggregate = self.prefix.get(), self.aggregate.get()
        return chosen(self.b, self.counts_prefix(), lambda: self.op(prefix, aggregate, self.stride), lambda: aggregate)

    def _take_in(self, total: Values, found: ir.Value | None) -> None:
        b, values = self.b, self.op(self.aggregate.get(), total, self.stride)
        if found is not None:
            values = expr.selected(b, found, total, values)
            self.restarts_if(found)
        self.aggregate.put(values)

    def _between_some(self, local: Values, bits: ir.Value | None, rest: ir.Value) -> Values:
        """The same, through memory, also where groups are missing or the aggregate has not been started."""
        b, group, spec = self.b, self.group, self.spec
        for v, p, t in zip(local, self.locals, spec.state, strict=True):
            b.store(to_memory(b, v, t) if t == "b1" else v, p)
        count = b.lshr(b.add(rest, i64(group - 1)), i64(group.bit_length() - 1))
        count = b.select(self.elements.whole(rest), i64(self.groups), count)
        started = self.started.get()
        with b.if_then(b.not_(started)):  # the first group of all starts the aggregate
            total, prefix, found = self._last(i64(0), rest), self.prefix.get(), self._found(i64(0), bits)
            self.aggregate.put(total)
            self._carry_into(i64(0), expr.selected(b, self.counts_prefix(), prefix, total))
            if found is not None:
                self.restarts_if(found)
            self.started.put(1)
        with loop(b, b.select(started, i64(0), i64(1)), count) as g:
            self._carry_into(g, self._carry())
            self._take_in(self._last(g, rest), self._found(g, bits))
        return [self._spread(p, t) for p, t in zip(self.carries, spec.state, strict=True)]

    def _carry_into(self, g: ir.Value, values: Values) -> None:
        b = self.b
        for v, p, t in zip(values, self.carries, self.spec.state, strict=True):
            at = b.mul(self._place(g, self.groups), i64(self.stride))
            b.store(v, b.gep(p, [at], source_etype=register_type(t)), align=1)

    def _found(self, g: ir.Value, bits: ir.Value | None) -> ir.Value | None:
        """Whether there is a restart in group g."""
        if bits is None:
            return None
        b = self.b
        low = resized(b, b.mul(self._place(g, self.groups), i64(self.group)), self.word)
        mine = b.and_(b.lshr(bits, low), ir.Constant(self.word, (1 << self.group) - 1))
        return b.icmp_unsigned("!=", mine, ir.Constant(self.word, 0))

    def _last(self, g: ir.Value, rest: ir.Value) -> Values:
        """The state of the last element of group g."""
        b, group, step = self.b, self.group, self.stride
        first = b.mul(g, i64(group))
        left = b.sub(rest, first)
        last = b.add(first, b.sub(least(b, left, i64(group)), i64(step)))
        at, values = self._place(last, self.width - step + 1), []
        for p, t in zip(self.locals, self.spec.state, strict=True):
            stored = memory_type(t) if t == "b1" else register_type(t)
            v = b.load(b.gep(p, [at], source_etype=stored), typ=vector_of(stored, step), align=1)
            values.append(from_memory(b, v, t) if t == "b1" else v)
        return values

    def _spread(self, p: ir.Value, dtype: str) -> ir.Value:
        """A value for each group, in all its lanes."""
        b, t, parts = self.b, register_type(dtype), []
        for g in range(self.groups):
            place = b.gep(p, [i64(g * self.stride)], source_etype=t)
            parts.append(self._repeated(b.load(place, typ=vector_of(t, self.stride), align=1)))
        return side_by_side(b, parts)

    def _element(self, v: ir.Value, first: int) -> ir.Value:
        """The element in these lanes of a vector."""
        if self.stride == 1:
            return self.b.extract_element(v, ir.Constant(I32, first))
        return take(self.b, v, v, range(first, first + self.stride))

    def _repeated(self, v: ir.Value) -> ir.Value:
        """A group of one element, again and again."""
        if self.stride == 1:
            return splat(self.b, v, self.group)
        return take(self.b, v, v, [k % self.stride for k in range(self.group)])

    def _shift(self, results: Values, before: Values, there: ir.Value, bits: ir.Value | None) -> Values:
        """From inclusive results to exclusive ones: each lane takes its predecessor's."""
        b, spec, width = self.b, self.spec, self.width
        step = self.stride
        order = [self._earlier(k, step) if self._offset(k) % self.group >= step else width + k for k in range(width)]
        values = [take(b, v, c, order) for v, c in zip(results, before, strict=True)]
        if spec.identity is None:
            return values
        none = b.and_(splat(b, b.not_(there), width), self._lanes([self._offset(k) < step for k in range(width)]))
        if bits is not None:
            none = b.or_(none, self._mask(bits))
        return expr.selected(b, none, identity_state(spec, width), values)

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
        """These lanes of a group, as a mask that LLVM cannot see through: with one that it can, it makes shuffles of selects,
        where AVX-512 merges under a mask for nothing."""
        b, group = self.b, self.group
        if self.vector_bytes < 64:
            return numbers(I1, map(int, chosen))
        zero = b.lshr(self.progress, i64(62))  # no such bits are in use
        bits = b.or_(zero, i64(sum(1 << k for k, c in enumerate(chosen) if c)))
        return b.bitcast(resized(b, bits, ir.IntType(group)), ir.VectorType(I1, group))

    def _masks(self, bits: ir.Value) -> list[ir.Value]:
        """A mask for each group."""
        b, group, out = self.b, self.group, []
        for k in range(0, self.width, group):
            mine = b.lshr(bits, ir.Constant(self.word, k)) if k else bits
            out.append(b.bitcast(resized(b, mine, ir.IntType(group)), ir.VectorType(I1, group)))
        return out

    def _lanes(self, chosen: Sequence[bool]) -> ir.Constant:
        return numbers(I1, map(int, chosen))

    # --- restarts -------------------------------------------------------------------------------------------------------------

    def _word(self, chosen: Sequence[bool]) -> ir.Constant:
        return ir.Constant(self.word, sum(1 << k for k, c in enumerate(chosen) if c))

    def _mask(self, bits: ir.Value) -> ir.Value:
        return self.b.bitcast(resized(self.b, bits, ir.IntType(self.width)), ir.VectorType(I1, self.width))

    def _shifted(self, bits: ir.Value, d: int) -> ir.Value:
        """Every lane's bit to the lane d places after it."""
        b = self.b
        by = ir.Constant(self.word, d)
        return b.lshr(bits, by) if self.backwards else b.shl(bits, by)

    def _restarts(self, i: ir.Value, rest: ir.Value) -> ir.Value:
        """A bit for each lane that starts anew."""
        b = self.b
        p, t = (address(b, self.flags, self.elements.memory_index(i)), ir.VectorType(I8, self.width))
        whole, some = lambda: [b.load(p, typ=t, align=1)], lambda: [masked_load(b, p, t, self.elements.in_memory(rest))]
        (flags,) = self.elements.either(rest, whole, some)
        return resized(b, b.bitcast(b.icmp_unsigned("!=", flags, ir.Constant(t, None)), ir.IntType(self.width)), self.word)
