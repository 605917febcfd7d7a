"""Scans and reductions of many short rows that lie one behind the other: a row in each lane of a vector.

A lane goes down its row one element after the other, so that the operator is applied once for each, in the row's order, and equal
rows have equal results wherever they lie. Rows are transposed in squares on their way into the cache and out of it. Where the
operator takes long, a few vectors of rows go down together, so that the one need not wait for the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from llvmlite import ir

from ....ir.program import itemsize
from ....specs.ordered import OrderedSpec
from ..llvm import expr
from ..llvm.build import (
    I64,
    PTR,
    address,
    all_pointers,
    bytes_of,
    chosen,
    declare,
    i64,
    least,
    loop,
    pointer,
    prefetch,
    scaled,
)
from ..llvm.types import alloca, register_type, resized
from ..llvm.vectors import LINE, f_of, store_row
from .elements import vector_width
from .rows import apply_op, identity_state, is_expensive, members, uniforms_of
from .squares import from_stored, reader, row_at, stored_type, to_stored, writer

TOGETHER = 4
"""Vectors of rows that go down together: more memory that lies far apart, so not where the operator is cheap."""

BUFFER_BYTES = 24 * 1024
"""Of the squares, which stay in the first-level cache."""

FLAGS = -1
"""Where restarts are among the arrays' squares."""

State = list[ir.Value]
Mover = Callable[[ir.Module, str, int], ir.Function]


def scan(
    module: ir.Module,
    spec: OrderedSpec,
    vector_bytes: int,
    longer: tuple[ir.Function, int] | None = None,
) -> None:
    """Defines ``scan`` of a range that has a period (cpu/ordered_kernel.h): of a scan all results, else one for each row.
    ``longer``: a function that takes rows from so many elements on."""
    b, args = declare(module, "scan", [PTR] * 7 + [I64], I64)
    abreast = _Abreast(b, spec, vector_bytes, args)
    if longer is not None:
        rows, least_period = longer
        with b.if_then(b.icmp_signed(">=", abreast.period, i64(least_period))):
            b.ret(b.call(rows, args))
    abreast.build()


class _Squares:
    """One after the other for each vector of rows: the scalars of so many elements of an array or a result, a vector for each."""

    def __init__(self, b: ir.IRBuilder, dtype: str, slots: int, elements: int, width: int, groups: int):
        self.b, self.dtype, self.slots, self.width = b, dtype, slots, width
        self.type, self.size = stored_type(dtype), slots * itemsize(dtype)  # in the cache; of an element in memory
        self.rows = -(-elements * slots // width) * width
        self.memory = alloca(b, self.type, groups * self.rows * width)

    def place(self, group: ir.Value, row: ir.Value) -> ir.Value:
        return row_at(self.b, self.memory, self.type, self.width, self.b.add(scaled(self.b, group, self.rows), row))

    def get(self, group: ir.Value, element: ir.Value, slot: int) -> ir.Value:
        p = self.place(group, self.b.add(scaled(self.b, element, self.slots), i64(slot)))
        return from_stored(self.b, self.b.load(p, typ=ir.VectorType(self.type, self.width)), self.dtype)

    def put(self, group: ir.Value, element: ir.Value, slot: int, v: ir.Value) -> None:
        p = self.place(group, self.b.add(scaled(self.b, element, self.slots), i64(slot)))
        self.b.store(to_stored(self.b, v, self.dtype), p)

    def move(
        self, mover: ir.Function, group: ir.Value, rows: ir.Value, stride: ir.Value, last: ir.Value, elements: ir.Value
    ) -> None:
        """From or to rows in memory, of so many elements."""
        b, size = self.b, itemsize(self.dtype)
        scalars = scaled(b, elements, self.slots)
        with loop(b, i64(0), scalars, self.width) as s:
            b.call(mover, [address(b, rows, scaled(b, s, size)), stride, last, b.sub(scalars, s), self.place(group, s)])


class _Abreast:
    def __init__(self, b: ir.IRBuilder, spec: OrderedSpec, vector_bytes: int, args: Sequence[ir.Value]):
        self.b, self.spec = b, spec
        self.width = width = min(vector_width(dataclasses.replace(spec, across=True), vector_bytes), vector_bytes // 4)
        arrays, uniforms, outs, flags, range_, *_ = args
        self.arrays = {k: pointer(b, arrays, k) for k, a in enumerate(spec.arrays) if a.slots} | {FLAGS: flags}
        self.uniforms, self.outs = uniforms_of(b, spec, uniforms), all_pointers(b, outs, len(spec.leaves))
        self.lo, self.hi, self.n, self.period = members(b, range_, "lo", "hi", "n", "period")
        sides = {k: (a.dtype, a.slots) for k, a in enumerate(spec.arrays) if a.slots}
        if spec.restarts and spec.kind == "scan":
            sides[FLAGS] = ("u8", 1)
        scalars = sum(n * bytes_of(stored_type(t)) for t, n in (*sides.values(), *spec.leaves))
        self.vectors = TOGETHER if is_expensive(spec.op) else 1
        fit = BUFFER_BYTES // max(1, self.vectors * width * scalars)
        self.elements = max(1, min(width, 1 << max(0, fit.bit_length() - 1)))
        self.squares = {k: _Squares(b, t, n, self.elements, width, self.vectors) for k, (t, n) in sides.items()}
        kept = self.elements if spec.kind == "scan" else 1
        self.results = [_Squares(b, t, n, kept, width, self.vectors) for t, n in spec.leaves]
        self.types = [register_type(t, width) for t in spec.state]
        self.states = [alloca(b, t, self.vectors) for t in self.types]

    def build(self) -> None:
        b, block = self.b, self.vectors * self.width
        rows = b.sdiv(b.sub(self.hi, self.lo), self.period)
        start = b.sub(self.n, self.hi) if self.spec.reverse else self.lo
        with loop(b, i64(0), rows, block) as row:
            left = b.sub(rows, row)
            count = least(b, left, i64(block))
            self._block(row, b.add(start, b.mul(row, self.period)), count)
        b.ret(i64(1))

    def _block(self, row: ir.Value, first: ir.Value, count: ir.Value) -> None:
        """``count`` rows, which begin at element ``first``."""
        b, spec = self.b, self.spec
        groups = b.sdiv(b.add(count, i64(self.width - 1)), i64(self.width))
        with loop(b, i64(0), self.period, self.elements) as at:
            left = b.sub(self.period, at)
            some = least(b, left, i64(self.elements))
            place = b.sub(left, some) if spec.reverse else at  # in a row, of the first of them in memory
            self._prefetch(first, at, some)
            with self._each(groups) as group:
                for k, squares in self.squares.items():
                    rows = address(b, self.arrays[k], scaled(b, b.add(first, place), squares.size))
                    self._move(reader, squares, group, rows, count, some)
            with loop(b, i64(0), some) as j:
                element = b.sub(b.sub(some, i64(1)), j) if spec.reverse else j
                begun = b.icmp_signed(">", b.add(at, j), i64(0))
                with self._each(groups) as group:
                    self._step(group, element, b.add(place, element), begun)
            if spec.kind == "scan":
                with self._each(groups) as group:
                    for out, squares in zip(self.outs, self.results, strict=True):
                        rows = address(b, out, scaled(b, b.add(first, place), squares.size))
                        self._move(writer, squares, group, rows, count, some)
        if spec.kind != "scan":
            with self._each(groups) as group:
                self._finish(group, row, count)

    def _prefetch(self, first: ir.Value, at: ir.Value, some: ir.Value) -> None:
        """A part of the block behind this one, from end to end: a processor's own prefetchers do not follow many rows."""
        b, spec = self.b, self.spec
        sides = [(self.arrays[k], squares, False) for k, squares in self.squares.items()]
        if spec.kind == "scan":
            sides += [(out, squares, True) for out, squares in zip(self.outs, self.results, strict=True)]
        block = i64(self.vectors * self.width)
        for base, squares, writes in sides:
            place = address(b, base, scaled(b, b.add(first, b.mul(block, b.add(self.period, at))), squares.size))
            with loop(b, i64(0), scaled(b, b.mul(block, some), squares.size), LINE) as line:
                prefetch(b, address(b, place, line), writes)

    def _each(self, groups: ir.Value) -> AbstractContextManager[ir.Value]:
        return loop(self.b, i64(0), groups) if self.vectors > 1 else nullcontext(i64(0))

    def _move(self, mover: Mover, squares: _Squares, group: ir.Value, rows: ir.Value, count: ir.Value, some: ir.Value) -> None:
        """``rows``: of the first group, of ``count`` in all."""
        b, stride = self.b, scaled(self.b, self.period, squares.size)
        mine = b.mul(group, i64(self.width))
        function = mover(b.module, squares.dtype, self.width)
        squares.move(function, group, address(b, rows, b.mul(mine, stride)), stride, self._last(mine, count), some)

    def _last(self, mine: ir.Value, count: ir.Value) -> ir.Value:
        """The last row of a group that begins with row ``mine``."""
        b, last = self.b, self.b.sub(self.b.sub(count, mine), i64(1))
        return least(b, last, i64(self.width - 1))

    def _step(self, group: ir.Value, element: ir.Value, place: ir.Value, begun: ir.Value) -> None:
        """One element of each of a group's rows; ``place``: in the row, as in memory."""
        b, spec, width = self.b, self.spec, self.width

        def loaded(k: int, wanted: list[int]) -> dict[int, ir.Value]:
            return {s: self.squares[k].get(group, element, s) for s in wanted}

        def position(dtype: str) -> ir.Value:
            return resized(b, place, register_type(dtype))

        xs = f_of(b, spec.f, spec.arrays, self.uniforms, width, loaded, position)
        identity = identity_state(spec, width)

        def combined() -> State:
            state = self._state(group)
            return [*state, *apply_op(b, spec, self.uniforms, width, state, xs)]

        both = chosen(b, begun, combined, lambda: [*identity, *xs])
        before, now = both[: len(xs)], both[len(xs) :]
        if FLAGS in self.squares:
            flags = self.squares[FLAGS].get(group, element, 0)
            anew = b.icmp_unsigned("!=", flags, ir.Constant(flags.type, None))
            now = expr.selected(b, anew, xs, now)
            before = expr.selected(b, anew, identity, before)
        for p, v in zip(self._places(group), now, strict=True):
            b.store(v, p)
        if spec.kind == "scan":
            self._put(group, element, before if spec.exclusive else now)

    def _places(self, group: ir.Value) -> list[ir.Value]:
        return [self.b.gep(p, [group], source_etype=t) for p, t in zip(self.states, self.types, strict=True)]

    def _state(self, group: ir.Value) -> State:
        return [self.b.load(p, typ=t) for p, t in zip(self._places(group), self.types, strict=True)]

    def _put(self, group: ir.Value, element: ir.Value, state: State) -> None:
        values = iter(expr.emit(self.b, self.spec.finish, state, self.uniforms, self.width))
        for squares in self.results:
            for s in range(squares.slots):
                squares.put(group, element, s, next(values))

    # --- results ----------------------------------------------------------------------------------------------------------------

    def _finish(self, group: ir.Value, row: ir.Value, count: ir.Value) -> None:
        """A result for each row of a group."""
        b, spec, width = self.b, self.spec, self.width
        mine = b.mul(group, i64(width))
        values = iter(expr.emit(b, spec.finish, self._state(group), self.uniforms, width))
        for out, squares in zip(self.outs, self.results, strict=True):
            rows = address(b, out, scaled(b, b.add(row, mine), squares.size))
            if squares.slots == 1:
                store_row(b, [next(values)], rows, squares.dtype, width, b.sub(count, mine))
                continue
            for s in range(squares.slots):
                squares.put(group, i64(0), s, next(values))
            function = writer(b.module, squares.dtype, width)
            squares.move(function, group, rows, i64(squares.size), self._last(mine, count), i64(1))
