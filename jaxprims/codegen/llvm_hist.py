"""The histogram kernel's skeleton: HistSpec -> LLVM IR (paper 1, Listing 3, on a CPU).

Three kinds of function, called by the driver in ``cpu/hist.h``:

``update(arrays, uniforms, tables, bins, lo, hi, bin_lo, bin_hi)``
    Elements [lo, hi) into the tables, chunk by chunk. Phase one evaluates f on vectors and leaves each update's place and value in
    small buffers. Phase two applies the operator, scalar and branchless, from the buffers; it is all stores and loads that hit L1
    when the table does.
``fill_g(tables, lo, hi)``
    Bins [lo, hi) of histogram g to the identity.
``combine_g(outs, dests, uniforms, table, parts, stride, lo, hi)``
    Folds ``parts`` subhistograms, ``stride`` bytes apart, in order, then dest from the left, into the result.

A :class:`Variant` fixes what is worth fixing at compile time. Tables are arrays of structs (one cache line for an update of a
tuple), or the result's own arrays when nothing may be copied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir

from ..frontend.program import Builder, Program, from_bits, itemsize
from . import llvm_expr as expr
from .spec import BinsSpec, HistSpec

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
PTR = ir.PointerType()

BUFFER_BYTES = 16 * 1024
"""Phase one's buffers take half of a small L1 at most; the table wants the rest."""

PREFETCH_AHEAD = 48
"""Updates between a prefetch and its use: enough to cover a miss of the last-level cache, few enough to stay in L1."""

UNROLL = 8
"""Scalars updated in one turn of phase two's loop, about."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is fixed at compile time beside the spec; ``code`` is how the driver names it."""

    soa: bool = False  # update the result's arrays, no table
    ranged: bool = False  # only bins in [bin_lo, bin_hi); dropped elements are squeezed out instead of landing in a spare bin
    prefetch: bool = False
    wide: bool = False  # byte offsets into a table pass 2^31
    copies: int = 1  # C, a power of two: neighbours update different copies, so equal indices don't wait for each other

    @property
    def code(self) -> int:
        return self.soa | self.ranged << 1 | self.prefetch << 2 | self.wide << 3 | (self.copies.bit_length() - 1) << 4

    @staticmethod
    def decode(code: int) -> Variant:
        return Variant(bool(code & 1), bool(code & 2), bool(code & 4), bool(code & 8), 1 << (code >> 4))


def function_names(spec: HistSpec) -> list[str]:
    return ["update"] + [f"{kind}_{g}" for kind in ("fill", "combine") for g in range(len(spec.bins))]


def slot_offsets(bins: BinsSpec) -> tuple[list[int], int]:
    """Byte offset of each slot in a table's struct, each aligned to its size, and the struct's size."""
    offsets, at, align = [], 0, 1
    for dtype in bins.acc:
        size = itemsize(dtype)
        at = -(-at // size) * size
        offsets.append(at)
        at += size
        align = max(align, size)
    return offsets, -(-at // align) * align


def generate(spec: HistSpec, variant: Variant, vector_bytes: int) -> ir.Module:
    """The module with :func:`function_names`'s functions."""
    module = ir.Module(name="hist")
    module.triple = ""
    _Update(module, spec, variant, vector_bytes).build()
    for g, bins in enumerate(spec.bins):
        _fill(module, bins, variant, f"fill_{g}")
        _combine(module, bins, variant, f"combine_{g}", vector_bytes // 4, len(spec.uniforms))
    return module


# --- small helpers -------------------------------------------------------------------------------------------------------------


def _i64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


@contextmanager
def _loop(b: ir.IRBuilder, start: ir.Value, stop: ir.Value, step: int = 1) -> Iterator[ir.Value]:
    """``for i in range(start, stop, step)``; the builder ends up behind the loop."""
    before, head, body, after = b.block, b.append_basic_block(), b.append_basic_block(), b.append_basic_block()
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(I64)
    i.add_incoming(start, before)
    b.cbranch(b.icmp_signed("<", i, stop), body, after)
    b.position_at_end(body)
    yield i
    i.add_incoming(b.add(i, _i64(step)), b.block)
    b.branch(head)
    b.position_at_end(after)


def _at(b: ir.IRBuilder, base: ir.Value, byte_offset: ir.Value) -> ir.Value:
    return b.gep(base, [byte_offset], source_etype=I8)


def _scaled(b: ir.IRBuilder, index: ir.Value, size: int) -> ir.Value:
    return index if size == 1 else b.mul(index, _i64(size))


def _pointer(b: ir.IRBuilder, pointers: ir.Value, k: int) -> ir.Value:
    return b.load(b.gep(pointers, [_i64(k)], source_etype=PTR), typ=PTR)


def _load(b: ir.IRBuilder, p: ir.Value, dtype: str, width: int = 1) -> ir.Value:
    """A value or a vector of contiguous ones from memory, in registers."""
    t = expr.memory_type(dtype)
    v = b.load(p, typ=t if width == 1 else ir.VectorType(t, width), align=itemsize(dtype))
    return expr.from_memory(b, v, dtype)


def _store(b: ir.IRBuilder, value: ir.Value, p: ir.Value, dtype: str) -> None:
    b.store(expr.to_memory(b, value, dtype), p, align=itemsize(dtype))


def _load_slots(b: ir.IRBuilder, p: ir.Value, dtype: str, width: int, slots: int, wanted: Sequence[int]) -> dict[int, ir.Value]:
    """``width`` consecutive elements of ``slots`` scalars each, as a vector for each wanted slot."""
    t = expr.memory_type(dtype)
    if slots == 1:
        return {0: _load(b, p, dtype, width)}
    row = b.load(p, typ=ir.VectorType(t, width * slots), align=itemsize(dtype))
    undef = ir.Constant(row.type, ir.Undefined)
    out = {}
    for s in wanted:
        lanes = ir.Constant(ir.VectorType(I32, width), [i * slots + s for i in range(width)])
        out[s] = expr.from_memory(b, b.shuffle_vector(row, undef, lanes), dtype)
    return out


def _splat(b: ir.IRBuilder, value: ir.Value, width: int) -> ir.Value:
    t = ir.VectorType(value.type, width)
    one = b.insert_element(ir.Constant(t, ir.Undefined), value, ir.Constant(I32, 0))
    return b.shuffle_vector(one, ir.Constant(t, ir.Undefined), ir.Constant(ir.VectorType(I32, width), [0] * width))


def _intrinsic(module: ir.Module, name: str, result: ir.Type, params: Sequence[ir.Type]) -> ir.Function:
    known = module.globals.get(name)
    return known or ir.Function(module, ir.FunctionType(result, params), name)


def _leaf_of_slot(bins: BinsSpec) -> list[tuple[int, int, str, int]]:
    """For each slot: its leaf, its place in the leaf's slots, the leaf's dtype, the number of the leaf's slots."""
    return [(k, s, dtype, n) for k, (dtype, n) in enumerate(bins.leaves) for s in range(n)]


def _declare(module: ir.Module, name: str, params: Sequence[ir.Type]) -> tuple[ir.IRBuilder, list[ir.Argument]]:
    fn = ir.Function(module, ir.FunctionType(ir.VoidType(), params), name)
    fn.attributes.add("nounwind")
    return ir.IRBuilder(fn.append_basic_block("entry")), list(fn.args)


# --- fill and combine ------------------------------------------------------------------------------------------------------------


def _fill(module: ir.Module, bins: BinsSpec, variant: Variant, name: str) -> None:
    b, (tables, lo, hi) = _declare(module, name, [PTR, I64, I64])
    if bins.identity is None:
        b.ret_void()
        return
    if variant.soa:
        for k, s, dtype, n in _leaf_of_slot(bins):
            leaf = _pointer(b, tables, k)
            value = expr.constant(dtype, bins.identity[sum(m for _, m in bins.leaves[:k]) + s], 1)
            scale = bins.lanes * n
            with _loop(b, _scaled(b, lo, scale // n), _scaled(b, hi, scale // n)) as i:
                at = b.add(_scaled(b, i, n), _i64(s))
                _store(b, value, _at(b, leaf, _scaled(b, at, itemsize(dtype))), dtype)
    else:
        offsets, size = slot_offsets(bins)
        entries = variant.copies * bins.lanes
        table = _pointer(b, tables, 0)
        with _loop(b, _scaled(b, lo, entries), _scaled(b, hi, entries)) as i:
            entry = _at(b, table, _scaled(b, i, size))
            for offset, dtype, bits in zip(offsets, bins.acc, bins.identity, strict=True):
                _store(b, expr.constant(dtype, bits, 1), _at(b, entry, _i64(offset)), dtype)
    b.ret_void()


def _combine(module: ir.Module, bins: BinsSpec, variant: Variant, name: str, width: int, num_uniforms: int) -> None:
    b, (outs, dests, uniforms, table, parts, stride, lo, hi) = _declare(module, name, [PTR, PTR, PTR, PTR, I64, I64, I64, I64])
    if variant.soa:
        b.ret_void()
        return
    offsets, size = slot_offsets(bins)
    same = len(set(bins.acc)) == 1  # a vector of structs can be loaded at once
    captured = [_pointer(b, uniforms, k) for k in range(num_uniforms)]
    leaf_outs = [_pointer(b, outs, k) for k in range(len(bins.leaves))]
    leaf_dests = [_pointer(b, dests, k) for k in range(len(bins.leaves))] if bins.dest else []

    def fold(first: ir.Value, w: int) -> None:
        def load(entry: ir.Value) -> list[ir.Value]:
            if w == 1:
                return [_load(b, _at(b, entry, _i64(o)), t) for o, t in zip(offsets, bins.acc, strict=True)]
            return list(_load_slots(b, entry, bins.acc[0], w, bins.slots, range(bins.slots)).values())

        base = _at(b, table, _scaled(b, first, size * variant.copies))
        places = [expr.register_type(t, w) for t in bins.acc]
        carried = [_alloca(b, t) for t in places]
        for c in range(variant.copies):
            values = load(_at(b, base, _i64(c * size)))
            if c:
                values = expr.emit(b, bins.op, [b.load(p, typ=t) for p, t in zip(carried, places, strict=True)] + values, captured, w)
            for p, v in zip(carried, values, strict=True):
                b.store(v, p)
        with _loop(b, _i64(1), parts) as k, _loop(b, _i64(0), _i64(variant.copies)) as c:
            entry = _at(b, _at(b, base, b.mul(k, stride)), _scaled(b, c, size))
            now = [b.load(p, typ=t) for p, t in zip(carried, places, strict=True)]
            for p, v in zip(carried, expr.emit(b, bins.op, now + load(entry), captured, w), strict=True):
                b.store(v, p)
        now = [b.load(p, typ=t) for p, t in zip(carried, places, strict=True)]
        if bins.finish is not None:
            now = expr.emit(b, bins.finish, now, [], w)
        rows = _leaf_of_slot(bins)
        if bins.dest:
            given = []
            for k, s, dtype, n in rows:
                p = _at(b, leaf_dests[k], _scaled(b, _scaled(b, first, n), itemsize(dtype)))
                v = _load_slots(b, p, dtype, w, n, [s])[s] if w > 1 else _load(b, _at(b, p, _i64(s * itemsize(dtype))), dtype)
                given.append(v)
            now = expr.emit(b, bins.outer or bins.op, given + now, captured, w)
        for k, (dtype, n) in enumerate(bins.leaves):
            p = _at(b, leaf_outs[k], _scaled(b, _scaled(b, first, n), itemsize(dtype)))
            mine = [v for v, row in zip(now, rows, strict=True) if row[0] == k]
            if w == 1:
                for s, v in enumerate(mine):
                    _store(b, v, _at(b, p, _i64(s * itemsize(dtype))), dtype)
            else:
                _store_slots(b, [expr.to_memory(b, v, dtype) for v in mine], p, dtype, w)

    start, stop = _scaled(b, lo, bins.lanes), _scaled(b, hi, bins.lanes)
    if same and variant.copies == 1:
        whole = b.add(start, b.and_(b.sub(stop, start), _i64(-width)))
        with _loop(b, start, whole, width) as i:
            fold(i, width)
        start = whole
    with _loop(b, start, stop) as i:
        fold(i, 1)
    b.ret_void()


def _alloca(b: ir.IRBuilder, t: ir.Type, count: int = 1, align: int = 64) -> ir.Value:
    """Stack space, taken once in the entry block."""
    with b.goto_entry_block():
        p = b.alloca(t, count)
    p.align = align
    p.type = PTR  # llvmlite still gives stack space a typed pointer
    return p


def _store_slots(b: ir.IRBuilder, values: Sequence[ir.Value], p: ir.Value, dtype: str, width: int) -> None:
    """The inverse of :func:`_load_slots`: vectors, one for each slot, interleaved into memory."""
    n = len(values)
    row = ir.Constant(ir.VectorType(values[0].type.element, n * width), ir.Undefined)
    for s, v in enumerate(values):
        lanes = [n * width + i if t == s else i * n + t for i in range(width) for t in range(n)]
        row = b.shuffle_vector(row, _widened(b, v, n, width), ir.Constant(ir.VectorType(I32, n * width), lanes))
    b.store(row, p, align=itemsize(dtype))


def _widened(b: ir.IRBuilder, v: ir.Value, n: int, width: int) -> ir.Value:
    lanes = ir.Constant(ir.VectorType(I32, n * width), [i if i < width else 0 for i in range(n * width)])
    return b.shuffle_vector(v, ir.Constant(v.type, ir.Undefined), lanes)


# --- update ----------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Source:
    """Where an update's value comes from: straight from an array, a constant, or phase one's buffer."""

    kind: str  # array, constant, buffer
    number: int  # the array; the constant's bits; the buffer
    slot: int = 0


class _Update:
    """Builds ``update``. See the module's docstring for the two phases."""

    def __init__(self, module: ir.Module, spec: HistSpec, variant: Variant, vector_bytes: int):
        self.module, self.spec, self.variant, self.vector_bytes = module, spec, variant, vector_bytes
        widest = max([4, *(itemsize(i.dtype) for i in spec.f.walk() if i.dtype not in ("tuple", "s64") and i.op != "arg")])
        self.width = vector_bytes // widest
        self.offset_type = I64 if variant.wide or (variant.soa and spec.index == "s64") else I32
        self._sort_results()

    def _sort_results(self) -> None:
        """Splits f's results into what phase one computes (indices, values) and what phase two reads where it lies."""
        spec, results = self.spec, self.spec.f.results
        self.param_of: list[tuple[int, int]] = [(k, s) for k, a in enumerate(spec.arrays) for s in range(a.params)]
        computed: list[int] = []
        self.sources: list[list[list[_Source]]] = []  # by histogram, update, slot
        self.indices: list[list[int]] = []  # by histogram, update: place among the computed
        self.buffers: list[str] = []  # dtypes of the value buffers
        self.constant: list[int | None] = []  # by histogram: the bin, if it is the same for every element
        at = 0
        for bins in spec.bins:
            index = spec.f.body[results[at]]
            same = index.op == "const" and bins.updates == 1 and bins.lanes == 1 and not self.variant.ranged
            self.constant.append(int(from_bits(index.attr, index.dtype)) if same else None)
            self.indices.append(list(range(len(computed), len(computed) + bins.updates)))
            computed += [] if same else results[at : at + bins.updates]
            at += bins.updates
            rows = []
            for _ in range(bins.updates):
                row = []
                for _ in range(bins.slots):
                    instr = spec.f.body[results[at]]
                    if instr.op == "arg" and spec.arrays[self.param_of[instr.attr][0]].slots:
                        row.append(_Source("array", *self.param_of[instr.attr]))
                    elif instr.op == "const":
                        row.append(_Source("constant", instr.attr))
                    else:
                        row.append(_Source("buffer", len(self.buffers), len(computed)))
                        self.buffers.append(instr.dtype)
                        computed.append(results[at])
                    at += 1
                rows.append(row)
            self.sources.append(rows)
        builder = Builder(spec.f.params)
        values = builder.inline(spec.f, [builder.arg(k) for k in range(len(spec.f.params))])
        number = {old: new for old, new in zip(spec.f.results, values, strict=True)}
        self.f: Program = builder.finish([number[r] for r in computed])
        self.used_params = {i.attr for i in self.f.body if i.op == "arg"}

    def build(self) -> None:
        spec, variant, width = self.spec, self.variant, self.width
        b, (arrays, uniforms, tables, bins, lo, hi, bin_lo, bin_hi) = _declare(
            self.module, "update", [PTR, PTR, PTR, PTR, I64, I64, I64, I64]
        )
        self.b = b
        each = sum(self.offset_type.width // 8 * h.updates for h in spec.bins) + sum(map(itemsize, self.buffers))
        if variant.ranged:
            each += 4 * sum(h.updates for h in spec.bins)
        chunk = 1024
        while chunk > 4 * width and chunk * each > BUFFER_BYTES:
            chunk //= 2
        self.chunk = chunk
        room = chunk + max(PREFETCH_AHEAD, width)
        self.arrays = [_pointer(b, arrays, k) if a.slots else None for k, a in enumerate(spec.arrays)]
        self.uniforms = [_pointer(b, uniforms, k) for k in range(len(spec.uniforms))]
        self.tables: list[list[ir.Value]] = []
        at = 0
        for h in spec.bins:
            n = len(h.leaves) if variant.soa else 1
            self.tables.append([_pointer(b, tables, at + k) for k in range(n)])
            at += n
        self.num_bins = [b.load(b.gep(bins, [_i64(g)], source_etype=I64), typ=I64) for g in range(len(spec.bins))]
        self.bin_lo, self.bin_hi = bin_lo, bin_hi
        self.offset_buffers = [[_alloca(b, self.offset_type, room) for _ in range(h.updates)] for h in spec.bins]
        self.position_buffers = [[_alloca(b, I32, room) for _ in range(h.updates)] for h in spec.bins] if variant.ranged else []
        self.value_buffers = [_alloca(b, expr.memory_type(t), room) for t in self.buffers]
        self.counts = [[_alloca(b, I64) for _ in range(h.updates)] for h in spec.bins] if variant.ranged else []
        with _loop(b, lo, hi, chunk) as first:
            left = b.sub(hi, first)
            count = b.select(b.icmp_signed("<", left, _i64(chunk)), left, _i64(chunk))
            for row in self.counts:
                for c in row:
                    b.store(_i64(0), c)
            with _loop(b, _i64(0), count, width) as j:
                self._vector_phase(first, j, count)
            for g in range(len(spec.bins)):
                self._scalar_phase(g, first, count)
        b.ret_void()

    def _load_tail(self, p: ir.Value, a: ArraySpec, wanted: Sequence[int], rest: ir.Value) -> list[ir.Value]:
        """The last, partial vector: ``rest`` elements, the spare lanes filled with the first of them. No lane sees a value that the
        user did not give: a loop inside f might never end on one."""
        b, width, t = self.b, self.width, expr.memory_type(a.dtype)
        row, flags = ir.VectorType(t, width * a.slots), ir.VectorType(I1, width * a.slots)
        lane = ir.Constant(ir.VectorType(I32, width * a.slots), list(range(width * a.slots)))
        mask = b.icmp_unsigned("<", lane, _splat(b, b.trunc(_scaled(b, rest, a.slots), I32), width * a.slots))
        name = f"llvm.masked.load.v{width * a.slots}{_suffix(t)}.p0"
        load = _intrinsic(self.module, name, row, [PTR, flags, row])
        loaded = b.call(load, [p, mask, ir.Constant(row, None)])
        out = []
        for s in wanted:
            v = self._slot(loaded, s, a.slots)
            first = _splat(b, b.extract_element(v, ir.Constant(I32, 0)), width)
            out.append(b.select(self._slot(mask, 0, a.slots), v, first))
        return out

    def _slot(self, row: ir.Value, s: int, slots: int) -> ir.Value:
        lanes = ir.Constant(ir.VectorType(I32, self.width), [i * slots + s for i in range(self.width)])
        return row if slots == 1 else self.b.shuffle_vector(row, ir.Constant(row.type, ir.Undefined), lanes)

    def _load_elements(self, k: int, i: ir.Value, rest: ir.Value) -> dict[int, ir.Value]:
        """A vector of the elements from i on, for each slot of array k that f uses; ``rest`` of them are left."""
        b, a = self.b, self.spec.arrays[k]
        wanted = [s for p, (q, s) in enumerate(self.param_of) if q == k and p in self.used_params]
        if not wanted:
            return {}
        p = _at(b, self.arrays[k], _scaled(b, i, itemsize(a.dtype) * a.slots))
        t = ir.VectorType(expr.memory_type(a.dtype), self.width)
        with b.if_else(b.icmp_signed(">=", rest, _i64(self.width)), likely=True) as (then, otherwise):
            with then:
                row = b.load(p, typ=ir.VectorType(t.element, self.width * a.slots), align=itemsize(a.dtype))
                whole = [self._slot(row, s, a.slots) for s in wanted]
                whole_block = b.block
            with otherwise:
                tail = self._load_tail(p, a, wanted, rest)
                tail_block = b.block
        out = {}
        for s, v, w in zip(wanted, whole, tail, strict=True):
            phi = b.phi(t)
            phi.add_incoming(v, whole_block)
            phi.add_incoming(w, tail_block)
            out[s] = phi
        return {s: expr.from_memory(b, v, a.dtype) for s, v in out.items()}

    def _vector_phase(self, first: ir.Value, j: ir.Value, count: ir.Value) -> None:
        b, spec, width = self.b, self.spec, self.width
        i = b.add(first, j)
        rest = b.sub(count, j)
        slots: dict[tuple[int, int], ir.Value] = {}
        for k, a in enumerate(spec.arrays):
            if a.slots:
                slots |= {(k, s): v for s, v in self._load_elements(k, i, rest).items()}
            elif any(q == k and p in self.used_params for p, (q, _) in enumerate(self.param_of)):
                t = I32 if itemsize(a.dtype) == 4 else I64
                lane = ir.Constant(ir.VectorType(t, width), list(range(width)))
                base = b.trunc(i, I32) if t is I32 else i
                slots[k, 0] = b.add(_splat(b, base, width), lane)  # past the end in the last vector's spare lanes
        blank = [ir.Constant(expr.register_type(t, width), ir.Undefined) for t in spec.f.params]
        args = [slots.get(self.param_of[p], blank[p]) for p in range(len(spec.f.params))]
        values = expr.emit(b, self.f, args, self.uniforms, width)
        for g, h in enumerate(spec.bins):
            for u in range(h.updates):
                index = None if self.constant[g] is not None else values[self.indices[g][u]]
                mine = [(s, expr.to_memory(b, values[s.slot], self.buffers[s.number])) for s in self.sources[g][u] if s.kind == "buffer"]
                if self.variant.ranged:
                    self._squeeze(g, u, index, mine, j, count)
                    continue
                if index is not None:
                    b.store(self._offsets(g, index), self._buffer_at(self.offset_buffers[g][u], j, self.offset_type), align=4)
                for s, v in mine:
                    at = self._buffer_at(self.value_buffers[s.number], j, v.type.element)
                    b.store(v, at, align=itemsize(self.buffers[s.number]))

    def _buffer_at(self, buffer: ir.Value, j: ir.Value, t: ir.Type) -> ir.Value:
        return self.b.gep(buffer, [j], source_etype=t)

    def _entry_bytes(self, g: int) -> int:
        return slot_offsets(self.spec.bins[g])[1] * self.spec.bins[g].lanes

    def _offsets(self, g: int, index: ir.Value) -> ir.Value:
        """Byte offsets into the table; whatever is outside [0, H), taken as unsigned, lands in the spare bin H."""
        b, width, copies = self.b, self.width, self.variant.copies
        t = index.type.element
        limit = _splat(b, self.num_bins[g] if t is I64 or t.width == 64 else b.trunc(self.num_bins[g], I32), width)
        inside = b.select(b.icmp_unsigned("<", index, limit), index, limit)
        if t.width < self.offset_type.width:
            inside = b.zext(inside, ir.VectorType(self.offset_type, width))
        elif t.width > self.offset_type.width:
            inside = b.trunc(inside, ir.VectorType(self.offset_type, width))
        size = self._entry_bytes(g)
        scaled = b.mul(inside, ir.Constant(inside.type, [size * copies] * width))
        return scaled if copies == 1 else b.add(scaled, ir.Constant(inside.type, [(i % copies) * size for i in range(width)]))

    def _squeeze(
        self, g: int, u: int, index: ir.Value, values: list[tuple[_Source, ir.Value]], j: ir.Value, count: ir.Value
    ) -> None:
        """Appends the lanes whose bin is in range to the buffers: no branch, so nothing waits for a misprediction."""
        b, width = self.b, self.width
        wide = ir.VectorType(I64, width)
        if index.type.element.width < self.offset_type.width:
            index = b.sext(index, wide)
        t = index.type.element
        top = b.select(b.icmp_signed("<", self.bin_hi, self.num_bins[g]), self.bin_hi, self.num_bins[g])
        low, top = (self.bin_lo, top) if t.width == 64 else (b.trunc(self.bin_lo, I32), b.trunc(top, I32))
        low_v, top_v = _splat(b, low, width), _splat(b, top, width)
        lane = ir.Constant(wide, list(range(width)))
        keep = b.and_(
            b.and_(b.icmp_signed(">=", index, low_v), b.icmp_signed("<", index, top_v)),
            b.icmp_signed("<", b.add(_splat(b, j, width), lane), _splat(b, count, width)),
        )
        n = b.load(self.counts[g][u], typ=I64)
        size = 1 if self.variant.soa else self._entry_bytes(g)
        if t.width > self.offset_type.width:
            index = b.trunc(index, ir.VectorType(self.offset_type, width))
        scaled = index if size == 1 else b.mul(index, ir.Constant(index.type, [size] * width))
        place = b.add(_splat(b, b.trunc(j, I32), width), ir.Constant(ir.VectorType(I32, width), list(range(width))))
        rows = [(scaled, self.offset_buffers[g][u]), (place, self.position_buffers[g][u])]
        rows += [(v, self.value_buffers[s.number]) for s, v in values]
        bits = b.bitcast(keep, ir.IntType(width))
        for v, buffer in rows:
            self._compress(v, keep, bits, buffer, n)
        b.store(b.add(n, b.zext(b.ctpop(bits), I64)), self.counts[g][u])

    def _compress(self, v: ir.Value, keep: ir.Value, bits: ir.Value, buffer: ir.Value, n: ir.Value) -> None:
        """Stores the kept lanes in a row from place n on, one register's worth at a time (LLVM 22 spills a wider vector's second half
        with an aligned store to an unaligned place)."""
        b, t = self.b, v.type.element
        piece = min(self.width, self.vector_bytes // (_bytes_of(t)))
        name = f"llvm.experimental.vector.compress.v{piece}{_suffix(t)}"
        part_type, mask_type = ir.VectorType(t, piece), ir.VectorType(I1, piece)
        compress = _intrinsic(self.module, name, part_type, [part_type, mask_type, part_type])
        for first in range(0, self.width, piece):
            lanes = ir.Constant(ir.VectorType(I32, piece), list(range(first, first + piece)))
            part = b.shuffle_vector(v, ir.Constant(v.type, ir.Undefined), lanes)
            mask = b.shuffle_vector(keep, ir.Constant(keep.type, ir.Undefined), lanes)
            before = b.and_(bits, ir.Constant(bits.type, (1 << first) - 1))
            place = b.add(n, b.zext(b.ctpop(before), I64)) if first else n
            squeezed = b.call(compress, [part, mask, ir.Constant(part_type, ir.Undefined)])
            b.store(squeezed, self._buffer_at(buffer, place, t), align=1)

    # --- phase two

    def _scalar_phase(self, g: int, first: ir.Value, count: ir.Value) -> None:
        b, h = self.b, self.spec.bins[g]
        if self.constant[g] is not None:
            self._apply_constant(g, first, count)
            return
        if h.lanes > 1 or h.updates > 1 or self.variant.ranged:
            self._apply_all(g, first, count)
            return
        with b.if_else(self._has_runs(g, count)) as (then, otherwise):
            with then:
                self._apply_runs(g, first, count)
            with otherwise:
                self._apply_all(g, first, count)

    def _apply_all(self, g: int, first: ir.Value, count: ir.Value) -> None:
        b, h = self.b, self.spec.bins[g]
        if h.updates > 1 and not self.variant.ranged:
            # Element by element: neighbours often share bins, the updates of one element seldom do and so don't wait for each other.
            with _loop(b, _i64(0), count) as j:
                for u in range(h.updates):
                    self._apply(g, u, first, j, self._offset(g, u, j))
            return
        for u in range(h.updates):
            n = b.load(self.counts[g][u], typ=I64) if self.variant.ranged else count
            if self.variant.prefetch:
                ahead = b.select(b.icmp_signed("<", n, _i64(PREFETCH_AHEAD)), n, _i64(PREFETCH_AHEAD))
                with _loop(b, _i64(0), ahead) as j:
                    self._prefetch(g, u, j)
            unroll, whole = UNROLL, _i64(0)
            while unroll > 1 and unroll * h.slots * len(h.op.body) > 8 * UNROLL:
                unroll //= 2
            if unroll > 1 and h.lanes == 1:
                whole = b.and_(n, _i64(-unroll))
                with _loop(b, _i64(0), whole, unroll) as j:
                    if g == 0 and u == 0:
                        self._prefetch_next_chunk(b.add(first, j), unroll)
                    for k, offset in enumerate(self._offsets_at(g, u, j, unroll)):
                        self._apply(g, u, first, b.add(j, _i64(k)), offset)
            with _loop(b, whole, n) as j:
                self._apply(g, u, first, j, self._offset(g, u, j))

    def _prefetch_next_chunk(self, i: ir.Value, count: int) -> None:
        """Fetches what phase one will read of the elements one chunk behind [i, i + count).

        A chunk of an array is about a page, and a processor's own prefetchers stop at the end of a page: without this every chunk
        starts with misses.
        """
        b = self.b
        for a, p in zip(self.spec.arrays, self.arrays, strict=True):
            size = a.slots * itemsize(a.dtype)
            for line in range(0, count * size if p is not None and size <= 32 else 0, 64):
                at = b.add(_scaled(b, b.add(i, _i64(self.chunk)), size), _i64(line))
                b.call(self._prefetcher(), [_at(b, p, at), ir.Constant(I32, 0), ir.Constant(I32, 3), ir.Constant(I32, 1)])

    def _prefetcher(self) -> ir.Function:
        return _intrinsic(self.module, "llvm.prefetch.p0", ir.VoidType(), [PTR, I32, I32, I32])

    def _offset(self, g: int, u: int, j: ir.Value) -> ir.Value:
        b = self.b
        offset = b.load(self._buffer_at(self.offset_buffers[g][u], j, self.offset_type), typ=self.offset_type)
        return offset if self.offset_type is I64 else b.zext(offset, I64)

    def _offsets_at(self, g: int, u: int, j: ir.Value, count: int) -> list[ir.Value]:
        """The next ``count`` offsets, two to a load: loads are what phase two has most of."""
        b = self.b
        if self.offset_type is I64:
            return [self._offset(g, u, b.add(j, _i64(k))) for k in range(count)]
        out = []
        for k in range(0, count, 2):
            pair = b.load(self._buffer_at(self.offset_buffers[g][u], b.add(j, _i64(k)), I32), typ=I64, align=4)
            out += [b.and_(pair, _i64(0xFFFFFFFF)), b.lshr(pair, _i64(32))]
        return out

    def _places(self, g: int, offset: ir.Value) -> list[ir.Value]:
        """Address of each slot of the bin (of its first lane)."""
        b, h = self.b, self.spec.bins[g]
        if not self.variant.soa:
            entry = _at(b, self.tables[g][0], offset)
            return [_at(b, entry, _i64(o)) for o in slot_offsets(h)[0]]
        return [
            _at(b, self.tables[g][k], b.add(_scaled(b, offset, h.lanes * n * itemsize(t)), _i64(s * itemsize(t))))
            for k, s, t, n in _leaf_of_slot(h)
        ]

    def _prefetch(self, g: int, u: int, j: ir.Value) -> None:
        b = self.b
        prefetch = self._prefetcher()
        places = self._places(g, self._offset(g, u, j))
        for p in places if self.variant.soa else places[:1]:
            b.call(prefetch, [p, ir.Constant(I32, 1), ir.Constant(I32, 3), ir.Constant(I32, 1)])

    def _element(self, g: int, u: int, j: ir.Value) -> ir.Value:
        """Which of the chunk's elements update j comes from."""
        if not self.variant.ranged:
            return j
        return self.b.zext(self.b.load(self._buffer_at(self.position_buffers[g][u], j, I32), typ=I32), I64)

    def _value(self, g: int, u: int, s: int, first: ir.Value, j: ir.Value) -> ir.Value:
        """One slot of update j's value."""
        b, h, source = self.b, self.spec.bins[g], self.sources[g][u][s]
        dtype = h.acc[s]
        if source.kind == "constant":
            v = expr.constant(dtype, source.number, 1)
        elif source.kind == "buffer":
            v = _load(b, self._buffer_at(self.value_buffers[source.number], j, expr.memory_type(dtype)), dtype)
        else:
            a = self.spec.arrays[source.number]
            at = b.add(_scaled(b, b.add(first, self._element(g, u, j)), a.slots), _i64(source.slot))
            v = _load(b, _at(b, self.arrays[source.number], _scaled(b, at, itemsize(dtype))), dtype)
        return v

    def _apply(self, g: int, u: int, first: ir.Value, j: ir.Value, offset: ir.Value) -> None:
        """bin = bin ⊕ value."""
        b, h = self.b, self.spec.bins[g]
        if self.variant.prefetch:
            self._prefetch(g, u, b.add(j, _i64(PREFETCH_AHEAD)))
        places = self._places(g, offset)
        if h.lanes == 1:
            self._apply_at(g, places, [self._value(g, u, s, first, j) for s in range(h.slots)])
            return
        # An array-valued bin, lane by lane; the lanes of bin and value lie in a row, so vectors of them do.
        source = self.sources[g][u][0]
        size = itemsize(h.acc[0])
        row = b.add(first, self._element(g, u, j))
        value = _at(b, self.arrays[source.number], _scaled(b, row, self.spec.arrays[source.number].slots * size))
        bin_, dtype, wanted = places[0], h.acc[0], range(h.slots)

        def lanes(at: ir.Value, width: int) -> None:
            there, here = (_at(b, p, _scaled(b, at, h.slots * size)) for p in (bin_, value))
            args = [v for p in (there, here) for v in _load_slots(b, p, dtype, width, h.slots, wanted).values()]
            now = expr.emit(b, h.op, args, self.uniforms, width)
            _store_slots(b, [expr.to_memory(b, v, dtype) for v in now], there, dtype, width)

        whole = h.lanes // self.width * self.width
        with _loop(b, _i64(0), _i64(whole), self.width) as lane:
            lanes(lane, self.width)
        with _loop(b, _i64(whole), _i64(h.lanes)) as lane:
            there = [_at(b, p, _scaled(b, lane, size * h.slots)) for p in places]
            here = [_at(b, value, b.add(_scaled(b, lane, size * h.slots), _i64(s * size))) for s in wanted]
            self._apply_at(g, there, [_load(b, p, dtype) for p in here])

    def _apply_at(self, g: int, places: list[ir.Value], values: list[ir.Value]) -> None:
        b, h = self.b, self.spec.bins[g]
        now = [_load(b, p, t) for p, t in zip(places, h.acc, strict=True)]
        for p, t, v in zip(places, h.acc, expr.emit(b, h.op, now + values, self.uniforms, 1), strict=True):
            _store(b, v, p, t)

    # --- runs of one bin

    def _has_runs(self, g: int, count: ir.Value) -> ir.Value:
        """Do neighbours tend to go to one bin (constant or sorted indices)? Looks at a few vectors of a full chunk."""
        b, answer = self.b, _alloca(self.b, I1)
        b.store(ir.Constant(I1, 0), answer)
        with b.if_then(b.icmp_signed("==", count, _i64(self.chunk))):
            samples = [self._agree(g, _i64(self.chunk * k // 4 // self.width * self.width))[0] for k in range(4)]
            b.store(b.or_(b.or_(samples[0], samples[1]), b.or_(samples[2], samples[3])), answer)
        return b.load(answer, typ=I1)

    def _agree(self, g: int, j: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Do the updates [j, j + width) go to one bin? And the offset of the first."""
        b, width, copies = self.b, self.width, self.variant.copies
        t = ir.VectorType(self.offset_type, width)
        offsets = b.load(self._buffer_at(self.offset_buffers[g][0], j, self.offset_type), typ=t, align=4)
        first = b.extract_element(offsets, ir.Constant(I32, 0))
        copy = ir.Constant(t, [(i % copies) * self._entry_bytes(g) for i in range(width)])
        bits = b.bitcast(b.icmp_unsigned("==", offsets, b.add(_splat(b, first, width), copy)), ir.IntType(width))
        return b.icmp_unsigned("==", bits, ir.Constant(ir.IntType(width), -1)), first

    def _apply_runs(self, g: int, first: ir.Value, count: ir.Value) -> None:
        """Vectors of updates that agree on a bin are combined on vectors, one bin's update at the end of its run: equal indices
        cost no more than a reduction (the warp aggregation of GPU kernels)."""
        b, h, width = self.b, self.spec.bins[g], self.width
        run = [_alloca(b, expr.memory_type(t), width) for t in h.acc]
        bin_of_run = _alloca(b, self.offset_type)
        nowhere = ir.Constant(self.offset_type, -1)
        b.store(nowhere, bin_of_run)
        flush = self._flush(g)

        def end_run() -> None:
            current = b.load(bin_of_run, typ=self.offset_type)
            with b.if_then(b.icmp_unsigned("!=", current, nowhere)):
                wide = current if self.offset_type is I64 else b.zext(current, I64)
                b.call(flush, [_at(b, self.tables[g][0], wide), *run, *self.uniforms])

        with _loop(b, _i64(0), count, width) as j:
            agree, offset = self._agree(g, j)
            with b.if_else(agree) as (then, otherwise):
                with then:
                    values = self._vector_values(g, first, j)
                    with b.if_else(b.icmp_unsigned("==", offset, b.load(bin_of_run, typ=self.offset_type))) as (same, other):
                        with same:
                            now = [_load(b, p, t, width) for p, t in zip(run, h.acc, strict=True)]
                            self._keep(run, g, expr.emit(b, h.op, now + values, self.uniforms, width))
                        with other:
                            end_run()
                            b.store(offset, bin_of_run)
                            self._keep(run, g, values)
                with otherwise:
                    end_run()
                    b.store(nowhere, bin_of_run)
                    with _loop(b, j, b.add(j, _i64(width))) as k:
                        self._apply(g, 0, first, k, self._offset(g, 0, k))
        end_run()

    def _apply_constant(self, g: int, first: ir.Value, count: ir.Value) -> None:
        """Every element goes to one bin: the chunk is reduced on vectors, what is left of it element by element."""
        b, h, width, bin_ = self.b, self.spec.bins[g], self.width, self.constant[g]
        assert bin_ is not None
        if bin_ < 0:
            return
        with b.if_then(b.icmp_signed("<", _i64(bin_), self.num_bins[g])):
            entry = _at(b, self.tables[g][0], _i64(bin_ * self._entry_bytes(g) * self.variant.copies))
            run = [_alloca(b, expr.memory_type(t), width) for t in h.acc]
            whole = b.and_(count, _i64(-width))
            with b.if_then(b.icmp_signed("!=", whole, _i64(0))):
                self._keep(run, g, self._vector_values(g, first, _i64(0)))
                with _loop(b, _i64(width), whole, width) as j:
                    now = [_load(b, p, t, width) for p, t in zip(run, h.acc, strict=True)]
                    self._keep(run, g, expr.emit(b, h.op, now + self._vector_values(g, first, j), self.uniforms, width))
                b.call(self._flush(g), [entry, *run, *self.uniforms])
            places = [_at(b, entry, _i64(o)) for o in slot_offsets(h)[0]]
            with _loop(b, whole, count) as j:
                self._apply_at(g, places, [self._value(g, 0, s, first, j) for s in range(h.slots)])

    def _keep(self, run: Sequence[ir.Value], g: int, now: Sequence[ir.Value]) -> None:
        for p, t, v in zip(run, self.spec.bins[g].acc, now, strict=True):
            _store(self.b, v, p, t)

    def _vector_values(self, g: int, first: ir.Value, j: ir.Value) -> list[ir.Value]:
        """The values of updates [j, j + width), by slot."""
        b, h, width, out = self.b, self.spec.bins[g], self.width, []
        for s, source in enumerate(self.sources[g][0]):
            if source.kind == "constant":
                out.append(expr.constant(h.acc[s], source.number, width))
            elif source.kind == "buffer":
                at = self._buffer_at(self.value_buffers[source.number], j, expr.memory_type(h.acc[s]))
                out.append(_load(b, at, h.acc[s], width))
            else:
                a = self.spec.arrays[source.number]
                p = _at(b, self.arrays[source.number], _scaled(b, b.add(first, j), a.slots * itemsize(h.acc[s])))
                out.append(_load_slots(b, p, h.acc[s], width, a.slots, [source.slot])[source.slot])
        return out

    def _flush(self, g: int) -> ir.Function:
        """``flush(entry, run by slot..., uniforms...)``: folds the lanes of a run, pairwise, and updates the bin with the result."""
        h, outer = self.spec.bins[g], self.b
        fn = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [PTR] * (1 + h.slots + len(self.uniforms))), f"flush_{g}")
        fn.linkage = "internal"
        fn.attributes.add("nounwind")
        fn.attributes.add("noinline")
        entry, run, uniforms = fn.args[0], fn.args[1 : 1 + h.slots], list(fn.args[1 + h.slots :])
        b = ir.IRBuilder(fn.append_basic_block("entry"))
        width = self.width
        while width > 1:
            width //= 2
            halves = [
                _load(b, _at(b, p, _i64(half * width * itemsize(t))), t, width) for half in (0, 1) for p, t in zip(run, h.acc, strict=True)
            ]
            for p, t, v in zip(run, h.acc, expr.emit(b, h.op, halves, uniforms, width), strict=True):
                _store(b, v, p, t)
        self.b = b
        one = [_load(b, p, t) for p, t in zip(run, h.acc, strict=True)]
        places = [_at(b, entry, _i64(o)) for o in slot_offsets(h)[0]]
        now = [_load(b, p, t) for p, t in zip(places, h.acc, strict=True)]
        for p, t, v in zip(places, h.acc, expr.emit(b, h.op, now + one, uniforms, 1), strict=True):
            _store(b, v, p, t)
        b.ret_void()
        self.b = outer
        return fn


def _bytes_of(t: ir.Type) -> int:
    return {"i8": 1, "i16": 2, "i64": 8, "double": 8}.get(str(t), 4)


def _suffix(t: ir.Type) -> str:
    """A scalar type in an intrinsic's name."""
    return {"i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "float": "f32", "double": "f64"}[str(t)]
