"""A stencil's kernel: StencilSpec -> LLVM IR. ``cpu/stencil_kernel.h`` says what each function does.

``row`` walks along the innermost axis by vectors, a few at a time. All reads of one row of cells go by one pointer, at distances
that are known; neighbours' loads overlap, and are the first-level cache's affair. Its last vector overlaps the one before, which
writes the same again. What neighbours have in common beyond that is a stage of its own (``stages.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ....ir.program import Program, itemsize
from ....specs.stencil import StencilSpec
from ..llvm import expr
from ..llvm.build import I32, I64, PTR, address, alloca, declare, i64, load, loop, pointer, scaled, splat, store
from ..ordered.elements import MOST_SHUFFLED, register_bytes
from ..ordered.rows import load_row, store_row
from .stages import stages_of

NAMES = ("row", "cell")

SIDE_BY_SIDE = 4
"""Vectors that are made together, of a function of few instructions."""

FEW = 24
"""Instructions and reads, all vectors together, up to which more vectors are made together."""

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
    module = ir.Module(name="stencil")
    module.triple = ""
    width = vector_width(spec, vector_bytes)
    _row(module, spec, width)
    _cell(module, spec)
    return module


class _Cells:
    """Lanes of cells side by side, in row ``i``: what a stage makes of what they read, and where it goes."""

    def __init__(self, b: ir.IRBuilder, spec: StencilSpec, args: Sequence[ir.Value], i: ir.Value):
        rows, row_steps, uniforms, outs, out_steps, at = args
        self.b, self.spec, self.plan = b, spec, stages_of(spec)
        self.rows = [moved(b, rows, row_steps, k, i) for k in range(len(spec.rows))]
        self.uniforms = [pointer(b, uniforms, k) for k in range(len(spec.uniforms))]
        self.outs = [moved(b, outs, out_steps, k, i) for k in range(len(spec.leaves))]
        self.at = [coordinate(b, spec, at, axis, i) for axis in spec.coordinates]
        self.shared: list[ir.Value] = []  # by stage but the last: where lane 0 of the row would be

    def make(self, k: int, j: ir.Value, width: int, streams: bool = False) -> None:
        """``width`` lanes of stage ``k``, from lane ``j`` of the row on. ``streams``: past the caches, each vector at a multiple
        of its size."""
        b, spec, stage = self.b, self.spec, self.plan.stages[k]
        used = used_params(stage.f)
        args: list[ir.Value] = []
        for (array, offsets), wanted in zip(spec.reads, wanted_slots(spec, used), strict=True):
            dtype, count = spec.arrays[array]
            size = itemsize(dtype) * count
            row = address(b, self.rows[spec.rows.index((array, offsets[:-1]))], scaled(b, j, size))
            p = address(b, row, i64(offsets[-1] * spec.unit * size))
            loaded = load_row(b, p, dtype, width, count, wanted) if wanted else {}
            blank = ir.Constant(expr.register_type(dtype, width), ir.Undefined)
            args += [loaded.get(s, blank) for s in range(count)]
        for axis, first in zip(spec.coordinates, self.at, strict=True):
            own = first
            if axis == spec.rank - 1:
                own = b.add(first, b.trunc(j, I32))
                if width > 1:
                    ahead = ir.Constant(ir.VectorType(I32, width), list(range(width)))
                    own = b.add(splat(b, own, width), ahead)
            args.append(own)  # the same in all lanes: it stays a scalar
        for at, dtype in enumerate(stage.f.params[len(args) :], len(args)):
            earlier, cells = self.plan.made[at - len(spec.f.params)]
            kept = kept_type(dtype)
            p = address(b, self.shared[earlier], scaled(b, b.add(j, i64(cells * spec.unit)), itemsize(kept)))
            blank = ir.Constant(expr.register_type(dtype, width), ir.Undefined)
            args.append(load(b, p, kept, width) if at in used else blank)
        values = iter(expr.emit(b, stage.f, args, self.uniforms, width))
        if stage.dtype is not None:
            kept = kept_type(stage.dtype)
            store(b, next(values), address(b, self.shared[k], scaled(b, j, itemsize(kept))), kept)
            return
        for out, (dtype, count) in zip(self.outs, spec.leaves, strict=True):
            p = address(b, out, scaled(b, j, itemsize(dtype) * count))
            store_row(b, [next(values) for _ in range(count)], p, dtype, width, streams=streams)


def kept_type(dtype: str) -> str:
    """What is shared lies in memory as it does in registers."""
    return "f32" if dtype in expr.HALVES else dtype


def moved(b: ir.IRBuilder, pointers: ir.Value, steps: ir.Value, k: int, i: ir.Value) -> ir.Value:
    """Pointer k, ``i`` of its steps on."""
    step = b.load(b.gep(steps, [i64(k)], source_etype=I64), typ=I64)
    return address(b, pointer(b, pointers, k), b.mul(i, step))


def coordinate(b: ir.IRBuilder, spec: StencilSpec, at: ir.Value, axis: int, i: ir.Value) -> ir.Value:
    """The first cell's in row ``i``, of the coordinates that the driver gives: those of a grid of two axes at least."""
    place = axis + (spec.rank == 1)
    first = b.load(b.gep(at, [i64(place)], source_etype=I64), typ=I64)
    return b.trunc(b.add(first, i) if axis == spec.rank - 2 else first, I32)


def used_params(f: Program) -> set[int]:
    return {i.attr for i in f.body if i.op == "arg"}


def wanted_slots(spec: StencilSpec, used: set[int]) -> list[list[int]]:
    """Of each read, the slots that are among the parameters ``used``."""
    out, first = [], 0
    for array, _ in spec.reads:
        slots = spec.arrays[array][1]
        out.append([s for s in range(slots) if first + s in used])
        first += slots
    return out


_SHARED = [PTR] * 6  # rows (or reads), their steps, uniforms, outs, their steps, at


def _row(module: ir.Module, spec: StencilSpec, width: int) -> None:
    """The rows, each by vectors from its first lane on. With several stages, piece by piece: of each, stage after stage."""
    stages = stages_of(spec).stages
    ones = [_one(module, spec, width, k) for k in range(len(stages))]
    b, (*shared, n, count, stream) = declare(module, "row", [*_SHARED, I64, I64, I64])
    kept = [kept_type(stage.dtype) for stage in stages if stage.dtype is not None]
    piece = max(PIECE // sum(map(itemsize, kept)) // (8 * width) * (8 * width), 8 * width) if kept else 0
    room = [2 * piece + 2 * width + stage.beyond * spec.unit for stage in stages]
    memory = [alloca(b, expr.memory_type(dtype), lanes) for dtype, lanes in zip(kept, room, strict=False)]
    bases, left = alloca(b, PTR, max(len(kept), 1)), alloca(b, I64)

    def lanes(k: int, cells: _Cells, begin: ir.Value, start: ir.Value, end: ir.Value, streams: ir.Value | None) -> None:
        """Stage k's [begin, end), at least a vector's: several vectors together from ``start`` on; those that are left, one by
        one; the last one ends where the lanes end."""

        def one(j: ir.Value) -> None:
            b.call(ones[k], [*shared, i, bases, j])

        f = stages[k].f
        together = min(SIDE_BY_SIDE, max(1, FEW // (len(f.body) + len(f.results)))) if width > 1 else 1
        last = b.sub(end, i64(together * width - 1))
        if streams is not None:
            with b.if_then(b.icmp_signed(">", start, begin)):
                one(begin)
        for streaming in (False, True) if streams is not None else (False,):
            first = start
            if streams is not None:
                first = b.select(streams, start, last) if streaming else b.select(streams, last, start)
            with loop(b, first, last, together * width) as j:
                for v in range(together):
                    cells.make(k, b.add(j, i64(v * width)), width, streaming)
        b.store(b.sub(end, b.urem(b.sub(end, start), i64(together * width))), left)
        with loop(b, b.load(left, typ=I64), b.sub(end, i64(width - 1)), width) as j:
            one(j)
            b.store(b.add(j, i64(width)), left)
        with b.if_then(b.icmp_signed("<", b.load(left, typ=I64), end)):
            one(b.sub(end, i64(width)))

    with loop(b, i64(0), count) as i:
        cells = _Cells(b, spec, shared, i)
        start, streams = _aligned(b, spec, cells.outs, width, stream)
        if not kept:
            lanes(0, cells, i64(0), start, n, streams)
        else:
            pieces = b.sdiv(b.sub(n, start), i64(piece))
            pieces = b.select(b.icmp_signed(">", pieces, i64(0)), pieces, i64(1))
            with loop(b, i64(0), pieces) as p:
                own = b.add(start, b.mul(p, i64(piece)))
                begin = b.select(b.icmp_signed("==", p, i64(0)), i64(0), own)
                end = b.select(b.icmp_signed("==", p, b.sub(pieces, i64(1))), n, b.add(own, i64(piece)))
                cells.shared = [
                    address(b, m, scaled(b, b.sub(i64(0), begin), itemsize(dtype))) for m, dtype in zip(memory, kept, strict=True)
                ]
                for k, base in enumerate(cells.shared):
                    b.store(base, b.gep(bases, [i64(k)], source_etype=PTR))
                    lanes(k, cells, begin, begin, b.add(end, i64(stages[k].beyond * spec.unit)), None)
                lanes(len(kept), cells, begin, own, end, streams)
    b.ret_void()


def _one(module: ir.Module, spec: StencilSpec, width: int, k: int) -> ir.Function:
    """A vector of stage k, as a function: it is wanted in three places, seldom."""
    b, (*shared, i, bases, j) = declare(module, f"one{k}", [*_SHARED, I64, PTR, I64])
    fn = b.function
    fn.linkage = "internal"
    fn.attributes.add("noinline")
    cells = _Cells(b, spec, shared, i)
    cells.shared = [pointer(b, bases, s) for s in range(len(cells.plan.stages) - 1)]
    cells.make(k, j, width)
    b.ret_void()
    return fn


def _aligned(
    b: ir.IRBuilder, spec: StencilSpec, outs: Sequence[ir.Value], width: int, stream: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """(lane, flag): where every result's vectors are aligned, if there is such a place and the caller wants to stream; else 0."""
    sizes = [itemsize(dtype) * slots for dtype, slots in spec.leaves]
    wanted = b.icmp_signed("!=", stream, i64(0))
    if width == 1 or any(size & (size - 1) for size in sizes):
        return i64(0), ir.Constant(ir.IntType(1), 0)
    starts = []
    for out, size in zip(outs, sizes, strict=True):
        place = b.ptrtoint(out, I64)
        wanted = b.and_(wanted, b.icmp_unsigned("==", b.and_(place, i64(size - 1)), i64(0)))
        lane = b.lshr(place, i64(size.bit_length() - 1))
        starts.append(b.and_(b.sub(i64(0), lane), i64(width - 1)))
    for other in starts[1:]:
        wanted = b.and_(wanted, b.icmp_unsigned("==", other, starts[0]))
    return b.select(wanted, starts[0], i64(0)), wanted


def _cell(module: ir.Module, spec: StencilSpec) -> None:
    b, (reads, read_steps, uniforms, outs, out_steps, at, count) = declare(module, "cell", [*_SHARED, I64])
    f = stages_of(spec).f
    captured = [pointer(b, uniforms, k) for k in range(len(spec.uniforms))]
    with loop(b, i64(0), count) as i:
        args: list[ir.Value] = []
        for k, ((array, _), wanted) in enumerate(zip(spec.reads, wanted_slots(spec, used_params(f)), strict=True)):
            dtype, slots = spec.arrays[array]
            loaded = load_row(b, moved(b, reads, read_steps, k, i), dtype, 1, slots, wanted)
            args += [loaded.get(s, ir.Constant(expr.register_type(dtype), ir.Undefined)) for s in range(slots)]
        args += [coordinate(b, spec, at, axis, i) for axis in spec.coordinates]
        values = iter(expr.emit(b, f, args, captured, 1))
        for k, (dtype, slots) in enumerate(spec.leaves):
            store_row(b, [next(values) for _ in range(slots)], moved(b, outs, out_steps, k, i), dtype, 1)
    b.ret_void()
