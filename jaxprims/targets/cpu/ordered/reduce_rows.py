"""``reduce`` of many rows that lie one behind the other, by a cheap operator that commutes: a vector runs along each row, and as
many rows as it has lanes become one vector of results.

That vector is made as a square is transposed, but combined on the way: of two vectors with r lanes for each of their rows, the
first halves of these lanes and the second ones are two vectors with r / 2 lanes for each row, which the operator combines.
Nothing depends on where a row lies: equal rows have equal results.

Short rows go side by side, half of them at a time. Extremes of floats there are found by the hardware's comparison alone; only
where one of these rows has a NaN in it, or may end at the wrong zero, all are made anew, one by one. A row of an extreme that
does not fill a vector is one in which its first element is met again. A packed maximum (``reduce_packed``) is one of pairs, half
as wide.

Spaced rows are of arrays that have steps of their own from row to row, none where all rows read the same, and others from so many
rows to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from llvmlite import ir

from ....ir.program import Program, is_float
from ....ir.work import work
from ....specs.ordered import OrderedSpec
from ..llvm import expr, extremes
from ..llvm.build import I64, NULL, PTR, address, all_pointers, bytes_of, chosen, declare, i64, i64_at, least, loop
from ..llvm.types import alloca, literal, numbers, register_type, resized, splat, take
from ..llvm.vectors import Held, prefix_mask
from .elements import vector_width
from .reduce_logaddexp import Folds, folds, is_finite
from .reduce_packed import halves
from .rows import FOUR, apply_op, arrays_of, element, four_at_once, is_expensive, members, store_results, uniforms_of

State = list[ir.Value]
Longer = tuple[ir.Function, int]

ABREAST, WORK_ABREAST = 512, 16
"""Bytes of a row up to which rows go side by side: longer ones are as many places that memory is fetched from; and operations for
an element, as of each row there is code of its own."""

FEWEST_FAR = 2
"""Vectors of a row beyond which rows that come from memory are read one after the other, as its prefetchers expect: with the same
bits."""

ANY, LONG, SHORT = "any", "long", "short"
"""How long a group's rows may be; long and short ones have vectors of their own where scalars are small."""


def folds_rows(spec: OrderedSpec) -> bool:
    """Rows that lie side by side, but of large elements; of others not where the operator does not commute, need not end, or
    takes so long that a lane should do all of a row."""
    if spec.across:
        return spec.kind == "reduce"
    if spec.kind != "reduce" or not spec.commutes or spec.op.may_not_end:
        return False
    two = folds(spec)
    return (two is not None and not two.own) or not (is_expensive(spec.op) or is_expensive(spec.f))


def folds_spaced(spec: OrderedSpec) -> bool:
    """Rows, wherever they lie: f alone may read captured arrays, of which each row may have its own."""
    return folds_rows(spec) and not spec.across and all(i.op != "load" for p in (spec.op, spec.finish) for i in p.walk())


def reduce_rows(module: ir.Module, spec: OrderedSpec, vector_bytes: int, spaced: bool = False) -> Longer | None:
    """A function like ``scan`` of a range that has a period (cpu/ordered_kernel.h), and the least period that it takes; if
    ``spaced``, it is ``scan``."""
    if not folds_rows(spec):
        return None
    packed = halves(spec)
    width, narrow = vector_width(spec if packed is None else packed, vector_bytes), vector_bytes // 4
    b, args = declare(module, "scan" if spaced else "rows", [PTR] * 7 + [I64], I64)
    if not spaced:
        b.function.linkage = "internal"
    (period,) = members(b, args[4], "period")
    once = packed is None and _only(spec.op) not in ("max", "min", "and", "or")
    if width <= narrow:
        _fold_all(b, spec, packed, args, _Group(b, spec, args, width, vector_bytes, once, ANY, spaced))
    else:  # of bytes, say
        with b.if_else(b.icmp_signed(">=", period, i64(max(width, ABREAST // 4)))) as (long, otherwise):
            with long:
                _fold_all(b, spec, packed, args, _Group(b, spec, args, width, vector_bytes, once, LONG, spaced))
            with otherwise:
                _fold_all(b, spec, packed, args, _Group(b, spec, args, narrow, vector_bytes, once, SHORT, spaced))
    b.ret(i64(1))
    return b.function, narrow if width > narrow else width if once else width // 2


def _fold_all(b: ir.IRBuilder, spec: OrderedSpec, packed: OrderedSpec | None, args: Sequence[ir.Value], group: _Group) -> None:
    lo, hi, period = members(b, args[4], "lo", "hi", "period")
    captured, places = uniforms_of(b, spec, args[1]), all_pointers(b, args[2], len(spec.leaves))
    rows, width = b.sdiv(b.sub(hi, lo), period), group.width
    some, two = least(b, rows, i64(width)), folds(spec)
    with loop(b, i64(0), rows, width) as at:
        row = least(b, at, b.sub(rows, some))  # the last ones may be made twice
        group.at(row, some)
        if packed is not None:
            state = _words(group, packed, captured)
        elif two is not None:
            state = _log_sums(group, two, captured)
        else:
            state = _folded(group, spec, captured)
        store_results(b, spec, state, captured, places, row, width, some)


def _folded(group: _Group, spec: OrderedSpec, captured: Sequence[ir.Value]) -> State:
    name = _only(spec.op)
    if name not in ("max", "min") or not is_float(spec.state[0]):
        return group.fold(spec, captured)
    b, t = group.b, register_type(spec.state[0], group.width)
    seen = extremes.Seen(b, name, t)

    def by_hardware() -> State:
        (found,) = group.abreast(spec, captured, lambda x, y: [extremes.nearer(b, name, x[0], y[0])], seen=seen)
        return [found, seen.deceives(found)]

    found, wrong = chosen(b, group.is_few(), by_hardware, lambda: [ir.Constant(t, ir.Undefined), ir.IntType(1)(1)])
    return chosen(b, wrong, lambda: group.one_by_one(spec, captured), lambda: [found])


def _only(op: Program) -> str:
    """The operation that an operator on two scalars is; of others nothing."""
    last = op.body[op.results[0]]
    return last.op if len(op.results) == 1 and len(op.body) == 3 and sorted(last.operands) == [0, 1] else ""


def _words(group: _Group, packed: OrderedSpec, captured: Sequence[ir.Value]) -> State:
    """The largest word of each row, of its halves."""
    b, word = group.b, ir.VectorType(I64, group.width)
    high, low = group.fold(packed, captured)
    low = b.xor(low, literal(low.type, -(2**31)))
    return [b.or_(b.shl(b.sext(high, word), splat(b, i64(32), group.width)), b.zext(low, word))]


def _log_sums(group: _Group, forms: Folds, captured: Sequence[ir.Value]) -> State:
    """The greatest exponent of each row, and the sum of its exponentials relative to it."""
    b = group.b
    (top,) = _folded(group, forms.most, captured)
    finite, levels = is_finite(b, top), alloca(b, top.type)
    b.store(b.select(finite, top, literal(top.type, 0.0)), levels)  # or the sum tells, or all is in top
    (sums,) = group.fold(forms.total, captured, levels)
    return [top, b.select(finite, sums, literal(top.type, 1.0)) if forms.ones else sums]


LANE = 16
"""Bytes within which a processor shuffles most cheaply."""


def _halves(width: int, lanes: int, span: int) -> tuple[list[int], list[int]]:
    """The first and the second half of every ``lanes`` neighbours of two vectors, span by span: the first vector's, then the
    second's."""
    both = [k + at for at in range(0, width, span) for vector in (0, width) for k in range(vector, vector + span)]
    return [k for k in both if k % lanes < lanes // 2], [k for k in both if k % lanes >= lanes // 2]


class _Row(NamedTuple):
    """Its first element is at ``start`` of the arrays. ``bytes``: how far it is behind the first one in each array, then in each
    uniform; nothing where rows are not spaced."""

    arrays: Sequence[ir.Value]
    start: ir.Value
    bytes: Sequence[ir.Value] = ()


class _Group:
    """As many rows as a vector has lanes; what is behind the last one repeats it."""

    def __init__(
        self, b: ir.IRBuilder, spec: OrderedSpec, args: Sequence[ir.Value], width: int, vector_bytes: int, once: bool, rows: str,
        spaced: bool,
    ):  # fmt: skip
        """``once``: an element may not be met twice; if it may, a row of :data:`ANY` length need not fill a vector."""
        self.b, self.width, self.vector_bytes, self.once, self.rows = b, width, vector_bytes, once, rows
        self.arrays = arrays_of(b, spec, args[0])
        lo, hi, n, self.period, far = members(b, args[4], "lo", "hi", "n", "period", "far")
        several = b.icmp_signed(">", self.period, i64(FEWEST_FAR * width))
        self.far = b.and_(b.icmp_signed("!=", far, i64(0)), several)
        self.start = b.sub(n, hi) if spec.reverse else lo
        self.whole = b.and_(self.period, i64(-width))
        self.steps: Sequence[ir.Value] = ()
        if spaced:
            steps = b.inttoptr(*members(b, args[4], "steps"), PTR)
            count = 2 * (len(spec.arrays) + len(spec.uniforms))
            self.steps = [i64_at(b, steps, k) for k in range(count)]
            (self.inner,) = members(b, args[4], "inner")

    def at(self, first: ir.Value, count: ir.Value) -> None:
        """``first`` of ``count`` rows."""
        self.first, self.last = first, self.b.sub(count, i64(1))
        self.starts = list(self._rows())

    def _rows(self) -> Iterator[_Row]:
        b = self.b
        if not self.steps:
            yield from (self._row(i64(r)) for r in range(self.width))
            return
        at, inner = b.udiv(self.first, self.inner), b.urem(self.first, self.inner)
        for r in range(self.width):
            yield self._spaced(at, inner)
            after = b.add(inner, i64(1))
            ends = b.icmp_signed("==", after, self.inner)
            is_last = b.icmp_signed(">=", i64(r), self.last)
            inner = b.select(is_last, inner, b.select(ends, i64(0), after))
            at = b.select(is_last, at, b.add(at, b.zext(ends, I64)))

    def _row(self, r: ir.Value) -> _Row:
        b, at = self.b, self.b.add(self.first, least(self.b, r, self.last))
        if not self.steps:
            return _Row(self.arrays, b.add(self.start, b.mul(at, self.period)))
        return self._spaced(b.udiv(at, self.inner), b.urem(at, self.inner))

    def _spaced(self, at: ir.Value, inner: ir.Value) -> _Row:
        b, half = self.b, len(self.steps) // 2
        steps = zip(self.steps[:half], self.steps[half:], strict=True)
        behind = [b.add(b.mul(inner, step), b.mul(at, jump)) for step, jump in steps]
        arrays = [p if p is NULL else address(b, p, k) for p, k in zip(self.arrays, behind, strict=False)]
        return _Row(arrays, i64(0), behind)

    def is_few(self) -> ir.Value:
        return self.b.icmp_signed("<=", self.period, i64(self.width * ABREAST // self.vector_bytes))

    def fold(self, spec: OrderedSpec, captured: Sequence[ir.Value], levels: ir.Value | None = None) -> State:
        """The combination of each row, in its lane. ``levels``: one more captured number for each."""
        if self.rows == LONG or work(spec.f) + work(spec.op) > WORK_ABREAST:
            return self.one_by_one(spec, captured, levels)

        def op(x: State, y: State) -> State:
            return apply_op(self.b, spec, captured, self.width, x, y)

        together = lambda: self.abreast(spec, captured, op, levels)  # noqa: E731
        if self.rows == SHORT:
            return together()
        return chosen(self.b, self.is_few(), together, lambda: self.one_by_one(spec, captured, levels))

    def one_by_one(self, spec: OrderedSpec, captured: Sequence[ir.Value], levels: ir.Value | None = None) -> State:
        b, width = self.b, self.width

        def of_row(uniforms: Sequence[ir.Value], row: _Row) -> State:
            one = lambda: self._states(spec, uniforms, row, i64(0), self.period)  # noqa: E731
            return self._by_length(one, lambda: self._full_row(spec, uniforms, row))

        states = self._in_turn(spec, captured, levels, range(width), of_row)
        return self._in_order(self._merged(states, lambda x, y: apply_op(b, spec, captured, width, x, y), width))

    def _in_turn(
        self,
        spec: OrderedSpec,
        captured: Sequence[ir.Value],
        levels: ir.Value | None,
        rows: Sequence[int],
        of_row: Callable[[Sequence[ir.Value], _Row], State],
    ) -> list[State]:
        """Of each row, given its uniforms, a vector: by the same code, one after the other."""
        b, types = self.b, [register_type(t, self.width) for t in spec.state]
        folded = [alloca(b, t, len(rows)) for t in types]
        with loop(b, i64(rows[0]), i64(rows[-1] + 1)) as r:
            row = self._row(r)
            total = of_row(self._of_row(captured, levels, types[0], row, r), row)
            for p, t, v in zip(folded, types, total, strict=True):
                b.store(v, b.gep(p, [b.sub(r, i64(rows[0]))], source_etype=t))
        places = ([b.gep(p, [i64(k)], source_etype=t) for p, t in zip(folded, types, strict=True)] for k in range(len(rows)))
        return [[b.load(p, typ=t) for p, t in zip(mine, types, strict=True)] for mine in places]

    def abreast(
        self,
        spec: OrderedSpec,
        captured: Sequence[ir.Value],
        op: Callable[[State, State], State],
        levels: ir.Value | None = None,
        seen: extremes.Seen | None = None,
    ) -> State:
        """Half the rows' first vectors, then all their second ones, combined by ``op``; then the other half, since all would take
        more registers than there are. What vectors are is put into ``seen``."""
        half = self.width // 2
        parts = [self._some_abreast(spec, captured, op, range(k, k + half), levels, seen) for k in (0, half)]
        return self._in_order(self._merged(parts, op, 2))

    def _some_abreast(
        self,
        spec: OrderedSpec,
        captured: Sequence[ir.Value],
        op: Callable[[State, State], State],
        rows: Sequence[int],
        levels: ir.Value | None,
        seen: extremes.Seen | None,
    ) -> State:
        b, n, types = self.b, len(spec.state), [register_type(t, self.width) for t in spec.state]

        def own(r: int) -> tuple[Sequence[ir.Value], _Row]:
            return self._of_row(captured, levels, types[0], self.starts[r], i64(r)), self.starts[r]

        def vectors(which: Sequence[tuple[Sequence[ir.Value], _Row]], at: ir.Value, rest: ir.Value | None = None) -> list[State]:
            xs = [self._states(spec, uniforms, row, at, rest) for uniforms, row in which]
            if seen is not None:
                seen.put([x for (x,) in xs])
            return xs

        def through(*which: tuple[Sequence[ir.Value], _Row]) -> State:
            states = [Held(b, spec.state, self.width) for _ in which]

            def meet(at: ir.Value, there: ir.Value | None = None) -> None:
                for held, x in zip(states, vectors(which, at), strict=True):
                    before, after = held.get(), op(held.get(), x)
                    held.put(expr.selected(b, there, after, before))

            for held, x in zip(states, vectors(which, i64(0)), strict=True):
                held.put(x)
            with loop(b, i64(self.width), self.whole, self.width) as at:
                meet(at)
            with self._rest() as there:
                meet(b.sub(self.period, i64(self.width)), there)
            return [v for held in states for v in held.get()]

        def in_turn() -> State:
            states = self._in_turn(spec, captured, levels, rows, lambda uniforms, row: through((uniforms, row)))
            return [v for state in states for v in state]

        def long() -> State:
            return chosen(b, self.far, in_turn, lambda: through(*map(own, rows)))

        flat = self._by_length(lambda: [v for x in vectors([own(r) for r in rows], i64(0), self.period) for v in x], long)
        return self._merged([flat[k : k + n] for k in range(0, len(flat), n)], op, self.width)

    def _by_length(self, short: Callable[[], State], long: Callable[[], State]) -> State:
        """``short()`` where a row does not fill a vector."""
        if self.once or self.rows != ANY:
            return long()
        return chosen(self.b, self.b.icmp_signed("<", self.period, i64(self.width)), short, long)

    def _of_row(
        self, captured: Sequence[ir.Value], levels: ir.Value | None, t: ir.Type, row: _Row, r: ir.Value
    ) -> list[ir.Value]:
        if row.bytes:
            behind = row.bytes[len(self.arrays) :]
            captured = [address(self.b, p, k) for p, k in zip(captured, behind, strict=True)]
        return [*captured, *([] if levels is None else [self.b.gep(levels, [r], source_etype=t.element)])]

    @contextmanager
    def _rest(self) -> Iterator[ir.Value | None]:
        """Where whole vectors leave elements: those that the last vector of the row has not met; None if it may meet others."""
        b, width = self.b, self.width
        with b.if_then(b.icmp_signed("<", self.whole, self.period)):
            met = b.sub(i64(width), b.sub(self.period, self.whole))
            yield b.not_(prefix_mask(b, met, width)) if self.once else None

    def _merged(self, states: Sequence[State], op: Callable[[State, State], State], lanes: int) -> State:
        """Of vectors with so many lanes for each row one, as a square is transposed."""
        while len(states) > 1:
            which = self._halves(states[0], lanes)
            pairs = zip(states[::2], states[1::2], strict=True)
            states = [op(*([take(self.b, p, q, k) for p, q in zip(x, y, strict=True)] for k in which)) for x, y in pairs]
            lanes //= 2
        return states[0]

    def _halves(self, state: State, lanes: int) -> tuple[list[int], list[int]]:
        near = min(self.width, LANE // max(bytes_of(v.type.element) for v in state))
        return _halves(self.width, lanes, self.width if lanes > near else near)

    def _in_order(self, state: State) -> State:
        """What all rows' vectors have been merged to, the rows' results in their order."""
        rows, lanes = [[r] * self.width for r in range(self.width)], self.width
        while lanes > 1:
            first, _ = self._halves(state, lanes)
            rows, lanes = [[(x + y)[k] for k in first] for x, y in zip(rows[::2], rows[1::2], strict=True)], lanes // 2
        order = [rows[0].index(r) for r in range(self.width)]
        return [take(self.b, v, v, order) for v in state]

    def _states(
        self,
        spec: OrderedSpec,
        uniforms: Sequence[ir.Value],
        row: _Row,
        at: ir.Value,
        rest: ir.Value | None = None,
    ) -> State:
        """A vector of a row."""
        width = self.width

        def position(dtype: str) -> ir.Value:
            t = register_type(dtype)
            first = splat(self.b, resized(self.b, at, t), width)
            places = self.b.add(first, numbers(t, range(width)))
            return places if rest is None else self.b.select(prefix_mask(self.b, rest, width), places, first)

        return element(self.b, spec, row.arrays, uniforms, width, self.b.add(row.start, at), position, rest)

    def _with_four(self, spec: OrderedSpec, uniforms: Sequence[ir.Value], total: State, xs: Sequence[State]) -> State:
        """The total waits for one operation, not for four."""
        many = four_at_once(spec.op)
        if many is not None:
            return expr.emit(self.b, many, [*total, *(v for x in xs for v in x)], uniforms, self.width)
        first, second = (apply_op(self.b, spec, uniforms, self.width, xs[k], xs[k + 2]) for k in range(2))
        both = apply_op(self.b, spec, uniforms, self.width, first, second)
        return apply_op(self.b, spec, uniforms, self.width, total, both)

    def _full_row(self, spec: OrderedSpec, uniforms: Sequence[ir.Value], row: _Row) -> State:
        """One row, at least a vector of elements: a vector of what its lanes have met."""
        b, width, total = self.b, self.width, Held(self.b, spec.state, self.width)

        def states(at: ir.Value) -> State:
            return self._states(spec, uniforms, row, at)

        def through(held: Held, at: ir.Value) -> None:
            xs = [states(b.add(at, i64(k * width))) for k in range(FOUR)]
            held.put(self._with_four(spec, uniforms, held.get(), xs))

        def fours_of(many: int) -> ir.Value:
            return b.add(i64(width), b.and_(rest, i64(-many * FOUR * width)))

        total.put(states(i64(0)))
        rest, done = b.sub(self.period, i64(width)), i64(width)
        if not self.once and four_at_once(spec.op) is not None:  # which takes many cycles from one total to the next
            done, other = fours_of(2), Held(b, spec.state, width)
            other.put(total.get())
            with loop(b, i64(width), done, 2 * FOUR * width) as at:
                through(total, at)
                through(other, b.add(at, i64(FOUR * width)))
            total.put(apply_op(b, spec, uniforms, width, total.get(), other.get()))
        fours = fours_of(1)
        with loop(b, done, fours, FOUR * width) as at:
            through(total, at)
        with loop(b, fours, self.whole, width) as at:
            total.put(apply_op(b, spec, uniforms, width, total.get(), states(at)))
        with self._rest() as there:
            before = total.get()
            after = apply_op(b, spec, uniforms, width, before, states(rest))
            total.put(expr.selected(b, there, after, before))
        return total.get()
