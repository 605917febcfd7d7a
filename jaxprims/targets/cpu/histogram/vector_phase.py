"""Phase one of ``update``: f on vectors; each update's place and value into small buffers."""

from __future__ import annotations

import dataclasses

from llvmlite import ir

from ....ir.program import Builder, Program, from_bits, itemsize
from ....specs.histogram import HistogramSpec
from ....specs.histogram_layout import Variant, leaf_of_slot, slot_offsets
from ..llvm.build import I32, I64, PTR, address, all_pointers, chosen, declare, i64, least, load, pointer, prefetch, scaled
from ..llvm.math import goes_in_pairs
from ..llvm.squeeze import store_kept
from ..llvm.types import alloca, constant, memory_type, numbers, resized, splat, to_memory
from ..llvm.vectors import f_of, load_row

BUFFER_BYTES = 16 * 1024
"""Phase one's buffers take half of a small L1 at most; the table wants the rest."""

PREFETCH_AHEAD = 48
"""Updates between a prefetch and its use: enough to cover a miss of the last-level cache, few enough to stay in L1."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Where an update's value comes from: straight from an array, a constant, or phase one's buffer."""

    kind: str  # array, constant, buffer
    number: int  # the array; the constant's bits; the buffer
    slot: int = 0


class VectorPhase:
    """Phase one, and what of it phase two reads. See ``kernel`` for the two phases."""

    def __init__(self, module: ir.Module, spec: HistogramSpec, variant: Variant, vector_bytes: int):
        self.module, self.spec, self.variant, self.vector_bytes = module, spec, variant, vector_bytes
        widest = max([4, *(itemsize(i.dtype) for i in spec.f.walk() if i.dtype not in ("tuple", "s64") and i.op != "arg")])
        self.width = vector_bytes // widest
        if goes_in_pairs(spec.f) and not any(a.slots for a in spec.arrays):
            self.width *= 2
        self.offset_type = I64 if variant.wide or (variant.soa and spec.index == "s64") else I32
        self._sort_results()

    def _sort_results(self) -> None:
        """Splits f's results into what phase one computes (indices, values) and what phase two reads where it lies."""
        spec, results = self.spec, self.spec.f.results
        self.param_of: list[tuple[int, int]] = [(k, s) for k, a in enumerate(spec.arrays) for s in range(a.params)]
        computed: list[int] = []
        self.sources: list[list[list[Source]]] = []  # by histogram, update, slot
        self.indices: list[list[int]] = []  # by histogram, update: place among the computed
        self.buffers: list[str] = []  # dtypes of the value buffers
        self.given: list[tuple[str, ...]] = []  # by histogram: dtypes of an update's values (or bases and scalars)
        self.constant: list[int | None] = []  # by histogram: the bin, if it is the same for every element
        at = 0
        for bins in spec.bins:
            index = spec.f.body[results[at]]
            same = index.op == "const" and bins.updates == 1 and bins.lanes == 1 and not self.variant.ranged
            self.constant.append(int(from_bits(index.attr, index.dtype)) if same else None)
            self.indices.append(list(range(len(computed), len(computed) + bins.updates)))
            computed += [] if same else results[at : at + bins.updates]
            at += bins.updates
            self.given.append(spec.f.result_dtypes[at : at + bins.given])
            rows = []
            for _ in range(bins.updates):
                row = []
                for _ in range(bins.given):
                    instr = spec.f.body[results[at]]
                    if instr.op == "arg" and spec.arrays[self.param_of[instr.attr][0]].slots:
                        row.append(Source("array", *self.param_of[instr.attr]))
                    elif instr.op == "const":
                        row.append(Source("constant", instr.attr))
                    else:
                        row.append(Source("buffer", len(self.buffers), len(computed)))
                        self.buffers.append(instr.dtype)
                        computed.append(results[at])
                    at += 1
                rows.append(row)
            self.sources.append(rows)
        builder = Builder(spec.f.params)
        values = builder.inline(spec.f, builder.args())
        number = dict(zip(spec.f.results, values, strict=True))
        self.f: Program = builder.finish([number[r] for r in computed])

    def _begin(self) -> tuple[ir.Value, ir.Value]:
        """The function's arguments and buffers. Returns the range of elements."""
        spec, variant, width = self.spec, self.variant, self.width
        b, (arrays, uniforms, tables, bins, lo, hi, bin_lo, bin_hi) = declare(
            self.module, "update", [PTR, PTR, PTR, PTR, I64, I64, I64, I64]
        )
        self.b = b
        each = sum(self.offset_type.width // 8 * h.updates for h in spec.bins) + sum(map(itemsize, self.buffers))
        if variant.ranged:
            each += 4 * sum(h.updates for h in spec.bins)
        chunk = 512
        while chunk > 4 * width and chunk * each > BUFFER_BYTES:
            chunk //= 2
        self.chunk = chunk
        room = chunk + max(PREFETCH_AHEAD, width)
        self.arrays = [pointer(b, arrays, k) if a.slots else None for k, a in enumerate(spec.arrays)]
        self.uniforms = all_pointers(b, uniforms, len(spec.uniforms))
        self.tables: list[list[ir.Value]] = []
        at = 0
        for h in spec.bins:
            n = len(h.leaves) if variant.soa else 1
            self.tables.append([pointer(b, tables, at + k) for k in range(n)])
            at += n
        self.num_bins = [b.load(b.gep(bins, [i64(g)], source_etype=I64), typ=I64) for g in range(len(spec.bins))]
        self.bin_lo, self.bin_hi = bin_lo, bin_hi
        self.offset_buffers = [[alloca(b, self.offset_type, room) for _ in range(h.updates)] for h in spec.bins]
        self.position_buffers = [[alloca(b, I32, room) for _ in range(h.updates)] for h in spec.bins] if variant.ranged else []
        self.value_buffers = [alloca(b, memory_type(t), room) for t in self.buffers]
        self.counts = [[alloca(b, I64) for _ in range(h.updates)] for h in spec.bins] if variant.ranged else []
        return lo, hi

    def _load_elements(self, k: int, wanted: list[int], i: ir.Value, rest: ir.Value) -> dict[int, ir.Value]:
        """A vector of the elements from i on, for each wanted slot of array k; ``rest`` of them are left."""
        b, a = self.b, self.spec.arrays[k]
        p = address(b, self.arrays[k], scaled(b, i, itemsize(a.dtype) * a.slots))

        def loaded(rest: ir.Value | None) -> list[ir.Value]:
            return list(load_row(b, p, a.dtype, self.width, a.slots, wanted, rest).values())

        whole = b.icmp_signed(">=", rest, i64(self.width))
        return dict(zip(wanted, chosen(b, whole, lambda: loaded(None), lambda: loaded(rest), likely=True), strict=True))

    def _vector_phase(self, first: ir.Value, j: ir.Value, count: ir.Value) -> None:
        b, spec, width = self.b, self.spec, self.width
        i = b.add(first, j)
        rest = b.sub(count, j)

        def position(dtype: str) -> ir.Value:
            """Spare lanes: the first one's, as for arrays."""
            t = I32 if itemsize(dtype) == 4 else I64
            lane = numbers(t, range(width))
            base, left = (resized(b, x, t) for x in (i, rest))
            lane = b.select(b.icmp_signed("<", lane, splat(b, left, width)), lane, ir.Constant(lane.type, None))
            return b.add(splat(b, base, width), lane)

        loaded = lambda k, wanted: self._load_elements(k, wanted, i, rest)  # noqa: E731
        values = f_of(b, self.f, spec.arrays, self.uniforms, width, loaded, position)
        for g, h in enumerate(spec.bins):
            for u in range(h.updates):
                index = None if self.constant[g] is not None else values[self.indices[g][u]]
                mine = [
                    (s, to_memory(b, values[s.slot], self.buffers[s.number])) for s in self.sources[g][u] if s.kind == "buffer"
                ]
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
        limit = splat(b, resized(b, self.num_bins[g], index.type.element), width)
        inside = resized(b, b.select(b.icmp_unsigned("<", index, limit), index, limit), self.offset_type)
        size = self._entry_bytes(g)
        scaled = b.mul(inside, ir.Constant(inside.type, [size * copies] * width))
        return scaled if copies == 1 else b.add(scaled, ir.Constant(inside.type, [(i % copies) * size for i in range(width)]))

    def _squeeze(
        self, g: int, u: int, index: ir.Value, values: list[tuple[Source, ir.Value]], j: ir.Value, count: ir.Value
    ) -> None:
        """Appends the lanes whose bin is in range to the buffers."""
        b, width = self.b, self.width
        wide = ir.VectorType(I64, width)
        if index.type.element.width < self.offset_type.width:
            index = b.sext(index, wide)
        t = index.type.element
        top = least(b, self.bin_hi, self.num_bins[g])
        low, top = (resized(b, x, t) for x in (self.bin_lo, top))
        low_v, top_v = splat(b, low, width), splat(b, top, width)
        lane = ir.Constant(wide, list(range(width)))
        keep = b.and_(
            b.and_(b.icmp_signed(">=", index, low_v), b.icmp_signed("<", index, top_v)),
            b.icmp_signed("<", b.add(splat(b, j, width), lane), splat(b, count, width)),
        )
        n = b.load(self.counts[g][u], typ=I64)
        size = 1 if self.variant.soa else self._entry_bytes(g)
        if t.width > self.offset_type.width:
            index = b.trunc(index, ir.VectorType(self.offset_type, width))
        scaled = index if size == 1 else b.mul(index, ir.Constant(index.type, [size] * width))
        place = b.add(splat(b, b.trunc(j, I32), width), numbers(I32, range(width)))
        rows = [(scaled, self.offset_buffers[g][u]), (place, self.position_buffers[g][u])]
        rows += [(v, self.value_buffers[s.number]) for s, v in values]
        b.store(store_kept(b, rows, keep, n), self.counts[g][u])

    # --- what phase two reads of it ---------------------------------------------------------------------------------------------

    def _offset(self, g: int, u: int, j: ir.Value) -> ir.Value:
        b = self.b
        offset = b.load(self._buffer_at(self.offset_buffers[g][u], j, self.offset_type), typ=self.offset_type)
        return offset if self.offset_type is I64 else b.zext(offset, I64)

    def _places(self, g: int, offset: ir.Value) -> list[ir.Value]:
        """Address of each slot of the bin (of its first lane)."""
        b, h = self.b, self.spec.bins[g]
        if not self.variant.soa:
            entry = address(b, self.tables[g][0], offset)
            return [address(b, entry, i64(o)) for o in slot_offsets(h)[0]]
        return [
            address(b, self.tables[g][k], b.add(scaled(b, offset, h.lanes * n * itemsize(t)), i64(s * itemsize(t))))
            for k, s, t, n in leaf_of_slot(h)
        ]

    def _prefetch(self, g: int, u: int, j: ir.Value) -> None:
        places = self._places(g, self._offset(g, u, j))
        for p in places if self.variant.soa else places[:1]:
            prefetch(self.b, p, writes=True)

    def _element(self, g: int, u: int, j: ir.Value) -> ir.Value:
        """Which of the chunk's elements update j comes from."""
        if not self.variant.ranged:
            return j
        return self.b.zext(self.b.load(self._buffer_at(self.position_buffers[g][u], j, I32), typ=I32), I64)

    def _value(self, g: int, u: int, s: int, first: ir.Value, j: ir.Value) -> ir.Value:
        """One slot of update j's value, or one of its scalars."""
        b, source, dtype = self.b, self.sources[g][u][s], self.given[g][s]
        if source.kind == "constant":
            return constant(dtype, source.number, 1)
        if source.kind == "buffer":
            return load(b, self._buffer_at(self.value_buffers[source.number], j, memory_type(dtype)), dtype)
        a = self.spec.arrays[source.number]
        at = b.add(scaled(b, b.add(first, self._element(g, u, j)), a.slots), i64(source.slot))
        return load(b, address(b, self.arrays[source.number], scaled(b, at, itemsize(dtype))), dtype)
