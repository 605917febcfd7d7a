"""A stencil's kernel: StencilSpec -> LLVM IR. ``cpu/stencil_kernel.h`` says what each function does.

``row`` walks along the innermost axis by vectors, a few at a time. All reads of one row of cells go by one pointer, at distances
that are known; neighbours' loads overlap, and are the first-level cache's affair. Its last vector overlaps the one before, which
writes the same again. What neighbours have in common beyond that is a stage of its own (``stages.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from ....ir.program import itemsize, register_bytes
from ....specs.stencil import Read, StencilSpec
from ..llvm import expr
from ..llvm.build import I32, I64, PTR, address, all_pointers, declare, i64, i64_at, least, load, loop, scaled, store
from ..llvm.engine import module_of
from ..llvm.types import HALVES, alloca, memory_type, numbers, register_type, splat
from ..llvm.vectors import MOST_SHUFFLED, Variable, load_row, store_row
from .ahead import AT_ONCE, Ahead
from .rows import Rows, at_once, rows_of
from .stages import stages_of

NAMES = ("row", "cell")

SIDE_BY_SIDE = 4
"""Vectors that are made together, of a function of few instructions."""

FEW = 24
"""Instructions and reads, all vectors together, up to which more vectors are made together."""

LONG_ROW = 32
"""Vectors of a row from which on an extra one is made at its begin, so that the others are stored within lines of the cache."""

PIECE = 4096
"""Bytes of what several stages keep of a row, at most twice that: they stay in the first-level cache."""


def vector_width(spec: StencilSpec, vector_bytes: int) -> int:
    """How many of the widest scalars that the kernel touches fill a register; fewer of cells with many slots."""
    dtypes = {i.dtype for i in spec.f.walk() if i.dtype != "tuple"} | {t for t, _ in (*spec.arrays, *spec.leaves)}
    width = vector_bytes // max(map(register_bytes, dtypes))
    while width > 4 and any(width * slots > MOST_SHUFFLED for _, slots in (*spec.arrays, *spec.leaves)):
        width //= 2
    return width


def generate(spec: StencilSpec, vector_bytes: int) -> ir.Module:
    """The module with both functions."""
    module = module_of("stencil")
    width = vector_width(spec, vector_bytes)
    _row(module, spec, width)
    _cell(module, spec)
    return module


class _Cells:
    """Lanes of cells side by side, in rows ``numbers``, which follow each other: what a stage makes of what they read."""

    def __init__(self, b: ir.IRBuilder, spec: StencilSpec, args: Sequence[ir.Value], numbers: Sequence[ir.Value]):
        rows, row_steps, uniforms, outs, out_steps, at, listed = args
        self.b, self.spec, self.count = b, spec, len(numbers)
        self.rows: dict[Read, ir.Value] = {}
        for i, number in enumerate(numbers):
            for k, (array, offsets) in enumerate(spec.rows):
                row = (array, (*offsets[:-1], offsets[-1] + i)) if offsets else (array, offsets)
                if row not in self.rows:  # which the row before reads as well
                    self.rows[row] = moved(b, rows, row_steps, k, number, b.mul(listed, i64(len(spec.rows))))
        self.uniforms = all_pointers(b, uniforms, len(spec.uniforms))
        results = range(len(spec.leaves))
        self.outs = [[moved(b, outs, out_steps, k, i, b.mul(listed, i64(len(results)))) for k in results] for i in numbers]
        self.at = [[coordinate(b, spec, at, axis, i) for axis in spec.coordinates] for i in numbers]
        self.shared: list[list[ir.Value]] = []  # by row and stage but the last: where lane 0 of the row would be

    def make(self, k: int, j: ir.Value, width: int, streams: bool = False) -> None:
        """``width`` lanes of stage ``k``, from lane ``j`` of the row on. ``streams``: past the caches, each vector at a multiple
        of its size."""
        b, spec, stage = self.b, self.spec, stages_of(self.spec).stages[k]
        rows = rows_of(spec, k, self.count)
        values = expr.emit(b, rows.f, _Arguments(self, rows, j, width), self.uniforms, width)
        for i in range(self.count):
            own = iter(values[i * len(stage.f.results) :])
            if stage.dtype is not None:
                kept = kept_type(stage.dtype)
                store(b, next(own), address(b, self.shared[i][k], scaled(b, j, itemsize(kept))), kept)
                continue
            for out, (dtype, count) in zip(self.outs[i], spec.leaves, strict=True):
                p = address(b, out, scaled(b, j, itemsize(dtype) * count))
                store_row(b, [next(own) for _ in range(count)], p, dtype, width, streams=streams)


class _Arguments(Sequence[ir.Value]):
    """What is loaded, where it is first wanted."""

    def __init__(self, cells: _Cells, rows: Rows, j: ir.Value, width: int):
        self.cells, self.rows, self.j, self.width = cells, rows, j, width
        self.loaded: dict[tuple[int, tuple[int, ...]], dict[int, ir.Value]] = {}

    def __len__(self) -> int:
        return len(self.rows.sources)

    def __getitem__(self, k: Any) -> Any:
        source, cells, b = self.rows.sources[k], self.cells, self.cells.b
        if source.kind == "read":
            return self._read(source.what[0], source.offsets)[source.what[1]]
        if source.kind == "own":
            return self._coordinate(source.what[0], source.row)
        stage, ahead = source.what
        kept = kept_type(self.rows.f.params[k])
        j = b.add(self.j, i64(ahead * cells.spec.unit))
        return load(b, address(b, cells.shared[source.row][stage], scaled(b, j, itemsize(kept))), kept, self.width)

    def _read(self, array: int, offsets: tuple[int, ...]) -> dict[int, ir.Value]:
        """By slot."""
        cells, b = self.cells, self.cells.b
        if (array, offsets) not in self.loaded:
            dtype, count = cells.spec.arrays[array]
            size = itemsize(dtype) * count
            row = address(b, cells.rows[array, offsets[:-1]], scaled(b, self.j, size))
            p = address(b, row, i64(offsets[-1] * cells.spec.unit * size))
            wanted = [s.what[1] for s in self.rows.sources if (s.kind, s.what[0], s.offsets) == ("read", array, offsets)]
            self.loaded[array, offsets] = load_row(b, p, dtype, self.width, count, wanted)
        return self.loaded[array, offsets]

    def _coordinate(self, axis: int, row: int) -> ir.Value:
        """The same in all lanes, which stays a scalar, but on the innermost axis, where it is that of a lane's cell."""
        cells, b = self.cells, self.cells.b
        first = cells.at[row][cells.spec.coordinates.index(axis)]
        if axis < cells.spec.rank - 1:
            return first
        unit = i64(cells.spec.unit)
        cell = b.trunc(b.udiv(self.j, unit), I32)
        if self.width == 1:
            return b.add(first, cell)
        ahead = numbers(I32, range(self.width))
        if cells.spec.unit > 1:  # of the cell's lanes, how many are before
            before = splat(b, b.trunc(b.urem(self.j, unit), I32), self.width)
            ahead = b.udiv(b.add(before, ahead), splat(b, ir.Constant(I32, cells.spec.unit), self.width))
        return b.add(splat(b, b.add(first, cell), self.width), ahead)


def kept_type(dtype: str) -> str:
    """What is shared lies in memory as it does in registers."""
    return "f32" if dtype in HALVES else dtype


def moved(b: ir.IRBuilder, pointers: ir.Value, steps: ir.Value, k: int, i: ir.Value, beyond: ir.Value) -> ir.Value:
    """Pointer k, ``i`` of its steps on, of the ``i``-th list, each ``beyond`` pointers behind the one before."""
    step = i64_at(b, steps, k)
    first = b.load(b.gep(pointers, [b.add(b.mul(i, beyond), i64(k))], source_etype=PTR), typ=PTR)
    return address(b, first, b.mul(i, step))


def coordinate(b: ir.IRBuilder, spec: StencilSpec, at: ir.Value, axis: int, i: ir.Value) -> ir.Value:
    """The first cell's in row ``i``, of the coordinates that the driver gives: those of a grid of two axes at least."""
    place = axis + (spec.rank == 1)
    first = i64_at(b, at, place)
    return b.trunc(b.add(first, i) if axis == spec.rank - 2 else first, I32)


_SHARED = [PTR] * 6  # rows (or reads), their steps, uniforms, outs, their steps, at


def _row(module: ir.Module, spec: StencilSpec, width: int) -> None:
    """Several rows at once, if that pays and ``alone`` is 0, and those that are left."""
    ones = [_one(module, spec, width, k) for k in range(len(stages_of(spec).stages))]
    b, (*shared, n, count, listed, stream, alone, ahead) = declare(module, "row", [*_SHARED, I64, I64, I64, I64, I64, PTR])
    rows = _Rows(b, spec, width, ones, [*shared, listed], n, stream, ahead)
    left: ir.Value = i64(0)
    if (several := at_once(spec)) > 1:
        wanted = b.and_(_alike(b, spec, shared[4], stream), b.icmp_signed("==", alone, i64(0)))
        left = b.select(wanted, b.and_(count, i64(-several)), i64(0))
        with loop(b, i64(0), left, several) as i:
            rows.make([b.add(i, i64(k)) for k in range(several)])
    with loop(b, left, count) as i:
        rows.make([i])
    b.ret_void()


class _Rows:
    """Rows, each by vectors from its first lane on. With several stages, piece by piece: of each, stage after stage."""

    def __init__(
        self,
        b: ir.IRBuilder,
        spec: StencilSpec,
        width: int,
        ones: Sequence[ir.Function],
        shared: Sequence[ir.Value],
        n: ir.Value,
        stream: ir.Value,
        ahead: ir.Value,
    ):
        self.b, self.spec, self.width, self.ones, self.args, self.n, self.stream = b, spec, width, ones, shared, n, stream
        self.ahead = Ahead(b, spec, ahead)
        self.stages = stages_of(spec).stages
        self.kept = [kept_type(stage.dtype) for stage in self.stages if stage.dtype is not None]
        few = 8 * width
        self.piece = max(PIECE // sum(map(itemsize, self.kept)) // few * few, few) if self.kept else 0
        lanes = [2 * self.piece + 2 * width + stage.beyond * spec.unit for stage in self.stages]
        self.memory = [
            [alloca(b, memory_type(dtype), room) for dtype, room in zip(self.kept, lanes, strict=False)]
            for _ in range(at_once(spec))
        ]
        self.bases = [alloca(b, PTR, max(len(self.kept), 1)) for _ in range(at_once(spec))]
        self.left = Variable(b, I64)

    def make(self, numbers: Sequence[ir.Value]) -> None:
        b, n = self.b, self.n
        cells = _Cells(b, self.spec, self.args, numbers)
        stream, long = b.icmp_signed("!=", self.stream, i64(0)), b.icmp_signed(">=", n, i64(LONG_ROW * self.width))
        start, there = _aligned(b, self.spec, cells.outs[0], self.width, b.or_(stream, long))
        streams = b.and_(there, stream)
        if not self.kept:
            self._lanes(0, cells, numbers, i64(0), start, n, streams)
            return
        pieces = b.sdiv(b.sub(n, start), i64(self.piece))
        pieces = b.select(b.icmp_signed(">", pieces, i64(0)), pieces, i64(1))
        with loop(b, i64(0), pieces) as p:
            own = b.add(start, b.mul(p, i64(self.piece)))
            begin = b.select(b.icmp_signed("==", p, i64(0)), i64(0), own)
            end = b.select(b.icmp_signed("==", p, b.sub(pieces, i64(1))), n, b.add(own, i64(self.piece)))
            cells.shared = [
                [address(b, m, scaled(b, b.sub(i64(0), begin), itemsize(dtype))) for m, dtype in zip(row, self.kept, strict=True)]
                for row in self.memory[: len(numbers)]
            ]
            for k in range(len(self.kept)):
                for row, bases in zip(cells.shared, self.bases, strict=False):
                    b.store(row[k], b.gep(bases, [i64(k)], source_etype=PTR))
                beyond = i64(self.stages[k].beyond * self.spec.unit)
                self._lanes(k, cells, numbers, begin, begin, b.add(end, beyond))
            self._lanes(len(self.kept), cells, numbers, begin, own, end, streams)

    def _lanes(
        self,
        k: int,
        cells: _Cells,
        numbers: Sequence[ir.Value],
        begin: ir.Value,
        start: ir.Value,
        end: ir.Value,
        streams: ir.Value | None = None,
    ) -> None:
        """Stage k's [begin, end), at least a vector's: several vectors together from ``start`` on; those that are left, one by
        one; the last one ends where the lanes end."""
        b, width = self.b, self.width

        def one(j: ir.Value) -> None:
            for i, bases in zip(numbers, self.bases, strict=False):
                b.call(self.ones[k], [*self.args, i, bases, j])

        f = rows_of(self.spec, k, len(numbers)).f
        together = min(SIDE_BY_SIDE, max(1, FEW // (len(f.body) + len(f.results)))) if width > 1 else 1
        last = b.sub(end, i64(together * width - 1))
        if streams is not None:
            with b.if_then(b.icmp_signed(">", start, begin)):
                one(begin)
        for streaming in (False, True) if streams is not None else (False,):
            first = start
            if streams is not None:
                first = b.select(streams, start, last) if streaming else b.select(streams, last, start)
            several = AT_ONCE * together * width
            with loop(b, first, last, several) as begins:
                if streams is not None and (self.kept or not streaming):
                    self.ahead.fetch(numbers, begins, several)
                ends = b.add(begins, i64(several))
                with loop(b, begins, least(b, ends, last), together * width) as j:
                    for v in range(together):
                        cells.make(k, b.add(j, i64(v * width)), width, streaming)
        self.left.put(b.sub(end, b.urem(b.sub(end, start), i64(together * width))))
        with loop(b, self.left.get(), b.sub(end, i64(width - 1)), width) as j:
            one(j)
            self.left.put(b.add(j, i64(width)))
        with b.if_then(b.icmp_signed("<", self.left.get(), end)):
            one(b.sub(end, i64(width)))


def _alike(b: ir.IRBuilder, spec: StencilSpec, out_steps: ir.Value, stream: ir.Value) -> ir.Value:
    """Are vectors that are aligned in one row of results aligned in the next, or need not be?"""
    odd: ir.Value = i64(0)
    for k in range(len(spec.leaves)):
        odd = b.or_(odd, i64_at(b, out_steps, k))
    aligned = b.icmp_signed("==", b.and_(odd, i64(63)), i64(0))
    return b.or_(aligned, b.icmp_signed("==", stream, i64(0)))


def _one(module: ir.Module, spec: StencilSpec, width: int, k: int) -> ir.Function:
    """A vector of stage k, as a function: it is wanted in three places, seldom."""
    b, (*shared, i, bases, j) = declare(module, f"one{k}", [*_SHARED, I64, I64, PTR, I64], inner=True)
    cells = _Cells(b, spec, shared, [i])
    cells.shared = [all_pointers(b, bases, len(stages_of(spec).stages) - 1)]
    cells.make(k, j, width)
    b.ret_void()
    return b.function


def _aligned(
    b: ir.IRBuilder, spec: StencilSpec, outs: Sequence[ir.Value], width: int, wanted: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """(lane, flag): where every result's vectors are aligned, if that is wanted and there is such a place; else 0."""
    sizes = [itemsize(dtype) * slots for dtype, slots in spec.leaves]
    if width == 1 or any(size & (size - 1) for size in sizes):
        return i64(0), ir.Constant(ir.IntType(1), 0)
    there, starts = wanted, []
    for out, size in zip(outs, sizes, strict=True):
        place = b.ptrtoint(out, I64)
        there = b.and_(there, b.icmp_unsigned("==", b.and_(place, i64(size - 1)), i64(0)))
        lane = b.lshr(place, i64(size.bit_length() - 1))
        starts.append(b.and_(b.sub(i64(0), lane), i64(width - 1)))
    for other in starts[1:]:
        there = b.and_(there, b.icmp_unsigned("==", other, starts[0]))
    return b.select(there, starts[0], i64(0)), there


def _cell(module: ir.Module, spec: StencilSpec) -> None:
    b, (reads, read_steps, uniforms, outs, out_steps, at, count) = declare(module, "cell", [*_SHARED, I64])
    f = stages_of(spec).f
    captured = all_pointers(b, uniforms, len(spec.uniforms))
    read = [spec.arrays[array] for array, _ in spec.reads]
    with loop(b, i64(0), count) as i:
        args: list[ir.Value] = []
        for k, ((dtype, slots), wanted) in enumerate(zip(read, f.used_of(n for _, n in read), strict=True)):
            loaded = load_row(b, moved(b, reads, read_steps, k, i, i64(0)), dtype, 1, slots, wanted)
            args += [loaded.get(s, ir.Constant(register_type(dtype), ir.Undefined)) for s in range(slots)]
        args += [coordinate(b, spec, at, axis, i) for axis in spec.coordinates]
        values = iter(expr.emit(b, f, args, captured, 1))
        for k, (dtype, slots) in enumerate(spec.leaves):
            store_row(b, [next(values) for _ in range(slots)], moved(b, outs, out_steps, k, i, i64(0)), dtype, 1)
    b.ret_void()
