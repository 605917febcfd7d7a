"""``reduce`` of many rows that lie one behind the other, by a cheap operator that commutes: a vector runs along each row, and as
many rows as it has lanes become one vector of results.

That vector is made as a square is transposed, but combined on the way: of two vectors with r lanes for each of their rows, the
first halves of these lanes and the second ones are two vectors with r / 2 lanes for each row, which the operator combines.
Nothing depends on where a row lies: equal rows have equal results.

For extremes of floats in short rows as many go side by side, by the hardware's comparison alone; only where one of these rows
has a NaN in it, or may end at the wrong zero, all are made anew, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ....ir.program import Program, is_float
from ....specs.ordered import OrderedSpec
from ..llvm import expr, extremes
from ..llvm.build import (
    I64,
    PTR,
    all_pointers,
    alloca,
    bytes_of,
    chosen,
    declare,
    i64,
    least,
    loop,
    numbers,
    splat,
)
from ..llvm.types import literal, take
from ..llvm.vectors import prefix_mask
from .elements import vector_width
from .reduce_logaddexp import Folds, folds
from .rows import FOUR, Held, apply_op, arrays_of, element, four_at_once, is_expensive, members, store_results, uniforms_of

State = list[ir.Value]
Longer = tuple[ir.Function, int]

ABREAST = 5
"""Vectors of a row up to which as many rows go side by side: longer ones are as many places that memory is fetched from."""


def folds_rows(spec: OrderedSpec) -> bool:
    """Rows that lie side by side, but of large elements; of others not where the operator does not commute, need not end, or
    takes so long that a lane should do all of a row."""
    if spec.across:
        return spec.kind == "reduce"
    if spec.kind != "reduce" or not spec.commutes or spec.op.may_not_end:
        return False
    two = folds(spec)
    return (two is not None and not two.own) or not (is_expensive(spec.op) or is_expensive(spec.f))


def reduce_rows(module: ir.Module, spec: OrderedSpec, vector_bytes: int) -> Longer | None:
    """A function like ``scan`` of a range that has a period (cpu/ordered_kernel.h), and the least period that it takes."""
    if not folds_rows(spec):
        return None
    width, two = vector_width(spec, vector_bytes), folds(spec)
    b, (arrays, uniforms, outs, _, range_, *_) = declare(module, "rows", [PTR] * 7 + [I64], I64)
    b.function.linkage = "internal"
    lo, hi, n, period = members(b, range_, "lo", "hi", "n", "period")
    captured, places = uniforms_of(b, spec, uniforms), all_pointers(b, outs, len(spec.leaves))
    rows, start = b.sdiv(b.sub(hi, lo), period), b.sub(n, hi) if spec.reverse else lo
    group = _Group(b, arrays_of(b, spec, arrays), period)
    with loop(b, i64(0), rows, width) as row:
        left = b.sub(rows, row)
        group.at(b.add(start, b.mul(row, period)), least(b, left, i64(width)))
        state = _folded(group, spec, captured, width) if two is None else _log_sums(group, two, captured, width)
        store_results(b, spec, state, captured, places, row, width, left)
    b.ret(i64(1))
    return b.function, width


def _folded(group: _Group, spec: OrderedSpec, captured: Sequence[ir.Value], width: int) -> State:
    name = _only(spec.op)
    if name not in ("max", "min") or not is_float(spec.state[0]):
        return group.fold(spec, captured, width)
    b, t = group.b, expr.register_type(spec.state[0], width)
    seen = extremes.Seen(b, name, t)

    def abreast() -> State:
        (found,) = group.side_by_side(spec, captured, width, seen)
        return [found, seen.deceives(found)]

    short = b.icmp_signed("<=", group.period, i64(ABREAST * width))
    found, wrong = chosen(b, short, abreast, lambda: [ir.Constant(t, ir.Undefined), ir.IntType(1)(1)])
    return chosen(b, wrong, lambda: group.fold(spec, captured, width), lambda: [found])


def _only(op: Program) -> str:
    """The operation that an operator on two scalars is; of others nothing."""
    last = op.body[op.results[0]]
    return last.op if len(op.results) == 1 and len(op.body) == 3 and sorted(last.operands) == [0, 1] else ""


def _log_sums(group: _Group, forms: Folds, captured: Sequence[ir.Value], width: int) -> State:
    """The greatest exponent of each row, and the sum of its exponentials relative to it."""
    b = group.b
    (top,) = _folded(group, forms.most, captured, width)
    infinite = literal(top.type, float("inf"))
    finite = b.and_(b.fcmp_ordered("<", top, infinite), b.fcmp_ordered(">", top, b.fneg(infinite)))
    levels = alloca(b, top.type)
    b.store(b.select(finite, top, literal(top.type, 0.0)), levels)  # or the sum tells, or all is in top
    (sums,) = group.fold(forms.total, captured, width, levels)
    return [top, b.select(finite, sums, literal(top.type, 1.0)) if forms.ones else sums]


LANE = 16
"""Bytes within which a processor shuffles most cheaply."""


def _halves(width: int, lanes: int, span: int) -> tuple[list[int], list[int]]:
    """The first and the second half of every ``lanes`` neighbours of two vectors, span by span: the first vector's, then the
    second's."""
    both = [k + at for at in range(0, width, span) for vector in (0, width) for k in range(vector, vector + span)]
    return [k for k in both if k % lanes < lanes // 2], [k for k in both if k % lanes >= lanes // 2]


class _Group:
    """As many rows as a vector has lanes, one behind the other; what is behind the last one repeats it."""

    def __init__(self, b: ir.IRBuilder, arrays: Sequence[ir.Value], period: ir.Value):
        self.b, self.arrays, self.period = b, arrays, period

    def at(self, first: ir.Value, count: ir.Value) -> None:
        """``first``: the element with which the first of ``count`` rows begins."""
        self.first, self.count = first, count

    def fold(self, spec: OrderedSpec, captured: Sequence[ir.Value], width: int, levels: ir.Value | None = None) -> State:
        """The combination of each row, in its lane. ``levels``: one more captured number for each."""
        b, last = self.b, self.b.sub(self.count, i64(1))
        types = [expr.register_type(t, width) for t in spec.state]
        folded = [alloca(b, t, width) for t in types]
        with loop(b, i64(0), i64(width)) as r:
            own = [] if levels is None else [b.gep(levels, [r], source_etype=types[0].element)]
            row = self._row(spec, [*captured, *own], width, b.add(self.first, b.mul(least(b, r, last), self.period)))
            for p, t, v in zip(folded, types, row, strict=True):
                b.store(v, b.gep(p, [r], source_etype=t))
        states = [
            [b.load(b.gep(p, [i64(r)], source_etype=t), typ=t) for p, t in zip(folded, types, strict=True)] for r in range(width)
        ]
        return self._transposed(states, lambda x, y: apply_op(b, spec, captured, width, x, y))

    def side_by_side(self, spec: OrderedSpec, captured: Sequence[ir.Value], width: int, seen: extremes.Seen) -> State:
        """The same of extremes, by the hardware's comparisons. The last vectors of rows may have been met before."""
        b, last = self.b, self.b.sub(self.count, i64(1))
        starts = [b.add(self.first, b.mul(least(b, i64(r), last), self.period)) for r in range(width)]
        best = [Held(b, spec, width) for _ in starts]

        def vectors(at: ir.Value) -> list[State]:
            xs = [self._states(spec, captured, width, start, at) for start in starts]
            seen.put([x for (x,) in xs])
            return xs

        def nearer(x: State, y: State) -> State:
            return [extremes.nearer(b, seen.op, x[0], y[0])]

        def meet(at: ir.Value) -> None:
            for held, x in zip(best, vectors(at), strict=True):
                held.put(nearer(held.get(), x))

        for held, x in zip(best, vectors(i64(0)), strict=True):
            held.put(x)
        with loop(b, i64(width), b.sub(self.period, i64(width)), width) as at:
            meet(at)
        meet(b.sub(self.period, i64(width)))
        return self._transposed([held.get() for held in best], nearer)

    def _transposed(self, states: list[State], op: Callable[[State, State], State]) -> State:
        """Of a vector for each row its lanes, combined: a row in each."""
        b, width, sizes = self.b, len(states), [bytes_of(v.type.element) for v in states[0]]
        rows, lanes, near = [[r] * width for r in range(width)], width, min(width, LANE // max(sizes))
        while lanes > 1:
            which = _halves(width, lanes, width if lanes > near else near)
            pairs = zip(states[::2], states[1::2], strict=True)
            states = [op(*([take(b, p, q, k) for p, q in zip(x, y, strict=True)] for k in which)) for x, y in pairs]
            rows = [[(x + y)[k] for k in which[0]] for x, y in zip(rows[::2], rows[1::2], strict=True)]
            lanes //= 2
        order = [rows[0].index(r) for r in range(width)]
        return [take(b, v, v, order) for v in states[0]]

    def _states(
        self,
        spec: OrderedSpec,
        uniforms: Sequence[ir.Value],
        width: int,
        start: ir.Value,
        at: ir.Value,
        rest: ir.Value | None = None,
    ) -> State:
        """A vector of the row that begins with the element ``start``."""

        def position(dtype: str) -> ir.Value:
            t = expr.register_type(dtype)
            first = at if t.width == 64 else self.b.trunc(at, t)
            return self.b.add(splat(self.b, first, width), numbers(t, range(width)))

        return element(self.b, spec, self.arrays, uniforms, width, self.b.add(start, at), position, rest)

    def _with_four(self, spec: OrderedSpec, uniforms: Sequence[ir.Value], width: int, total: State, xs: Sequence[State]) -> State:
        """The total waits for one operation, not for four."""
        many = four_at_once(spec.op)
        if many is not None:
            return expr.emit(self.b, many, [*total, *(v for x in xs for v in x)], uniforms, width)
        first, second = (apply_op(self.b, spec, uniforms, width, xs[k], xs[k + 2]) for k in range(2))
        both = apply_op(self.b, spec, uniforms, width, first, second)
        return apply_op(self.b, spec, uniforms, width, total, both)

    def _row(self, spec: OrderedSpec, uniforms: Sequence[ir.Value], width: int, start: ir.Value) -> State:
        """One row, at least a vector of elements: a vector of what its lanes have met."""
        b, total = self.b, Held(self.b, spec, width)

        def states(at: ir.Value, rest: ir.Value | None = None) -> State:
            return self._states(spec, uniforms, width, start, at, rest)

        total.put(states(i64(0)))
        rest, whole = b.sub(self.period, i64(width)), b.and_(self.period, i64(-width))
        fours = b.add(i64(width), b.and_(rest, i64(-FOUR * width)))
        with loop(b, i64(width), fours, FOUR * width) as at:
            xs = [states(b.add(at, i64(k * width))) for k in range(FOUR)]
            total.put(self._with_four(spec, uniforms, width, total.get(), xs))
        with loop(b, fours, whole, width) as at:
            total.put(apply_op(b, spec, uniforms, width, total.get(), states(at)))
        with b.if_then(b.icmp_signed("<", whole, self.period)):
            rest, before = b.sub(self.period, whole), total.get()
            after = apply_op(b, spec, uniforms, width, before, states(whole, rest))
            there = prefix_mask(b, rest, width)
            total.put([b.select(there, v, w) for v, w in zip(after, before, strict=True)])
        return total.get()
