"""Neighbours that go to one bin: long runs of them are combined on vectors first, short ones are kept apart in time."""

from __future__ import annotations

from llvmlite import ir

from ....ir.program import itemsize
from ....specs.histogram_layout import slot_offsets
from ..llvm import expr
from ..llvm.build import I1, I32, I64, PTR, address, declare, i64, least, load, load_each, load_slots, loop, scaled, store_each
from ..llvm.types import alloca, constant, memory_type, resized, splat
from ..llvm.vectors import Variable
from .scalar_phase import ScalarPhase
from .vector_phase import PREFETCH_AHEAD

STREAMS = 8
"""Parts of a chunk that are gone through side by side where neighbours often share a bin: none waits for the one before."""

SAMPLES = 4
"""Vectors of a chunk that are looked at."""


class Update(ScalarPhase):
    """``update``, whole: chooses for each chunk how its updates are made, by how often neighbours go to one bin."""

    LAG = 64
    """Elements that phase two stays behind phase one where they overlap: more than PREFETCH_AHEAD."""

    runs: Variable | None = None  # did neighbours of the chunk before share bins?

    def build(self) -> None:
        lo, hi = self._begin()
        b = self.b
        with loop(b, lo, hi, self.chunk) as first:
            left = b.sub(hi, first)
            count = least(b, left, i64(self.chunk))
            for row in self.counts:
                for c in row:
                    b.store(i64(0), c)
            with loop(b, i64(0), count, self.width) as j:
                self._vector_phase(first, j, count)
                self._overlap(first, j)
            for g in range(len(self.spec.bins)):
                self._scalar_phase(g, first, count)
        b.ret_void()

    def _can_overlap(self) -> bool:
        h = self.spec.bins[0]
        one = len(self.spec.bins) == 1 and h.lanes == 1 and h.updates == 1 and self.constant[0] is None
        cheap = h.slots * len(h.op.body) <= 16 and not self.variant.prefetch  # nor bound by cache misses
        return one and cheap and not self.variant.ranged and not h.op.may_not_end

    def _overlap(self, first: ir.Value, j: ir.Value) -> None:
        """Cheap updates are made while the next vectors are computed: the one is bound by stores, the other by arithmetic.

        Whether a chunk has runs must be known before, so the chunk before it decides.
        """
        if not self._can_overlap():
            return
        b = self.b
        if self.runs is None:
            self.runs = Variable(b, I1)
            with b.goto_entry_block():
                self.runs.put(0)
        late = b.sub(j, i64(self.LAG))
        with b.if_then(b.and_(b.icmp_signed(">=", late, i64(0)), b.not_(self.runs.get()))):
            self._prefetch_next_chunk(b.add(first, late), self.width)
            for k, offset in enumerate(self._offsets_at(0, 0, late, self.width)):
                self._apply(0, 0, first, b.add(late, i64(k)), offset)

    def _scalar_phase(self, g: int, first: ir.Value, count: ir.Value) -> None:
        b, h = self.b, self.spec.bins[g]
        if self.constant[g] is not None:
            self._apply_constant(g, first, count)
            return
        if h.lanes > 1 or h.updates > 1 or self.variant.ranged or h.op.may_not_end:
            self._apply_all(g, first, count)
            return
        many, some = self._has_runs(g, count)
        if not self._can_overlap():
            with b.if_else(b.or_(many, some)) as (then, otherwise):
                with then:
                    self._apply_shared(g, first, count, many)
                with otherwise:
                    self._apply_all(g, first, count)
            return
        assert self.runs is not None
        expected, found = self.runs.get(), b.or_(many, some)
        self.runs.put(found)
        with b.if_else(b.and_(expected, found)) as (then, otherwise):
            with then:
                self._apply_shared(g, first, count, many)
            with otherwise:
                vectors = b.and_(b.add(count, i64(self.width - 1)), i64(-self.width))
                made = b.sub(vectors, i64(self.LAG))
                made = b.select(b.or_(expected, b.icmp_signed("<", made, i64(0))), i64(0), made)
                self._apply_all(g, first, count, made)

    def _apply_shared(self, g: int, first: ir.Value, count: ir.Value, many: ir.Value) -> None:
        with self.b.if_else(many) as (then, otherwise):
            with then:
                self._apply_runs(g, first, count)
            with otherwise:
                self._apply_streams(g, first)

    def _has_runs(self, g: int, count: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Do whole vectors of neighbours go to one bin (constant or sorted indices)? If not, do a quarter of the neighbours?
        Looks at a few vectors of a full chunk."""
        b, many, some = self.b, Variable(self.b, I1, 0), Variable(self.b, I1, 0)
        with b.if_then(b.icmp_signed("==", count, i64(self.chunk))):
            runs, pairs = I32(0), I32(0)
            for k in range(SAMPLES):
                at = i64(self.chunk * k // SAMPLES // self.width * self.width)
                runs = b.add(runs, b.zext(self._agree(g, at)[0], I32))
                pairs = b.add(pairs, self._neighbours(g, at))
            many.put(b.icmp_unsigned(">=", runs, I32(SAMPLES - 1)))
            some.put(b.icmp_unsigned(">=", pairs, I32(SAMPLES * self.width // 4)))
        return many.get(), some.get()

    def _neighbours(self, g: int, j: ir.Value) -> ir.Value:
        """How many of the updates [j, j + width) go to the bin of the one behind."""
        b, width = self.b, self.width
        t = ir.VectorType(self.offset_type, width)
        mine, next_ = (
            b.load(self._buffer_at(self.offset_buffers[g][0], b.add(j, i64(k)), self.offset_type), typ=t, align=4)
            for k in (0, self.variant.copies)
        )
        same = b.bitcast(b.icmp_unsigned("==", mine, next_), ir.IntType(width))
        return resized(b, b.ctpop(same), I32)

    def _apply_streams(self, g: int, first: ir.Value) -> None:
        """A full chunk, from several places on in turn."""
        b, length = self.b, self.chunk // STREAMS
        if self.variant.prefetch:
            with loop(b, i64(0), i64(PREFETCH_AHEAD // STREAMS)) as j:
                for k in range(STREAMS):
                    self._prefetch(g, 0, b.add(j, i64(k * length)))
        with loop(b, i64(0), i64(length), 2) as j:
            if g == 0:
                self._prefetch_next_chunk(b.add(first, scaled(b, j, STREAMS)), 2 * STREAMS)
            places = [b.add(j, i64(k * length)) for k in range(STREAMS)]
            pairs = [self._offsets_at(g, 0, at, 2) for at in places]
            for later in range(2):
                for at, pair in zip(places, pairs, strict=True):
                    self._apply(g, 0, first, b.add(at, i64(later)), pair[later], PREFETCH_AHEAD // STREAMS)

    def _agree(self, g: int, j: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Do the updates [j, j + width) go to one bin? And the offset of the first."""
        b, width, copies = self.b, self.width, self.variant.copies
        t = ir.VectorType(self.offset_type, width)
        offsets = b.load(self._buffer_at(self.offset_buffers[g][0], j, self.offset_type), typ=t, align=4)
        first = b.extract_element(offsets, ir.Constant(I32, 0))
        copy = ir.Constant(t, [(i % copies) * self._entry_bytes(g) for i in range(width)])
        bits = b.bitcast(b.icmp_unsigned("==", offsets, b.add(splat(b, first, width), copy)), ir.IntType(width))
        return b.icmp_unsigned("==", bits, ir.Constant(ir.IntType(width), -1)), first

    def _apply_runs(self, g: int, first: ir.Value, count: ir.Value) -> None:
        """Vectors of updates that agree on a bin are combined on vectors, one bin's update at the end of its run: equal indices
        cost no more than a reduction (the warp aggregation of GPU kernels)."""
        b, h, width = self.b, self.spec.bins[g], self.width
        run = [alloca(b, memory_type(t), width) for t in h.acc]
        nowhere = ir.Constant(self.offset_type, -1)
        bin_of_run = Variable(b, self.offset_type, nowhere)
        flush = self._flush(g)

        def end_run() -> None:
            current = bin_of_run.get()
            with b.if_then(b.icmp_unsigned("!=", current, nowhere)):
                wide = current if self.offset_type is I64 else b.zext(current, I64)
                b.call(flush, [address(b, self.tables[g][0], wide), *run, *self.uniforms])

        with loop(b, i64(0), count, width) as j:
            agree, offset = self._agree(g, j)
            with b.if_else(agree) as (then, otherwise):
                with then:
                    values = self._vector_values(g, first, j)
                    with b.if_else(b.icmp_unsigned("==", offset, bin_of_run.get())) as (same, other):
                        with same:
                            now = load_each(b, run, h.acc, width)
                            store_each(b, expr.emit(b, h.op, now + values, self.uniforms, width), run, h.acc)
                        with other:
                            end_run()
                            bin_of_run.put(offset)
                            store_each(b, values, run, h.acc)
                with otherwise:
                    end_run()
                    bin_of_run.put(nowhere)
                    with loop(b, j, b.add(j, i64(width))) as k:
                        self._apply(g, 0, first, k, self._offset(g, 0, k))
        end_run()

    def _apply_constant(self, g: int, first: ir.Value, count: ir.Value) -> None:
        """Every element goes to one bin: the chunk is reduced on vectors, what is left of it element by element."""
        b, h, width, bin_ = self.b, self.spec.bins[g], self.width, self.constant[g]
        assert bin_ is not None
        if bin_ < 0:
            return
        with b.if_then(b.icmp_signed("<", i64(bin_), self.num_bins[g])):
            entry = address(b, self.tables[g][0], i64(bin_ * self._entry_bytes(g) * self.variant.copies))
            run = [alloca(b, memory_type(t), width) for t in h.acc]
            whole = b.and_(count, i64(-width))
            with b.if_then(b.icmp_signed("!=", whole, i64(0))):
                store_each(b, self._vector_values(g, first, i64(0)), run, h.acc)
                with loop(b, i64(width), whole, width) as j:
                    now = load_each(b, run, h.acc, width) + self._vector_values(g, first, j)
                    store_each(b, expr.emit(b, h.op, now, self.uniforms, width), run, h.acc)
                b.call(self._flush(g), [entry, *run, *self.uniforms])
            places = [address(b, entry, i64(o)) for o in slot_offsets(h)[0]]
            with loop(b, whole, count) as j:
                self._apply_at(g, places, [self._value(g, 0, s, first, j) for s in range(h.slots)])

    def _vector_values(self, g: int, first: ir.Value, j: ir.Value) -> list[ir.Value]:
        """The values of updates [j, j + width), by slot."""
        b, h, width, out = self.b, self.spec.bins[g], self.width, []
        for s, source in enumerate(self.sources[g][0]):
            if source.kind == "constant":
                out.append(constant(h.acc[s], source.number, width))
            elif source.kind == "buffer":
                at = self._buffer_at(self.value_buffers[source.number], j, memory_type(h.acc[s]))
                out.append(load(b, at, h.acc[s], width))
            else:
                a = self.spec.arrays[source.number]
                p = address(b, self.arrays[source.number], scaled(b, b.add(first, j), a.slots * itemsize(h.acc[s])))
                out.append(load_slots(b, p, h.acc[s], width, a.slots, [source.slot])[source.slot])
        return out

    def _flush(self, g: int) -> ir.Function:
        """``flush(entry, run by slot..., uniforms...)``: folds the lanes of a run, pairwise, and updates the bin with the
        result."""
        h = self.spec.bins[g]
        b, (entry, *given) = declare(self.module, f"flush_{g}", [PTR] * (1 + h.slots + len(self.uniforms)), inner=True)
        run, uniforms = given[: h.slots], given[h.slots :]
        width = self.width
        while width > 1:
            width //= 2
            halves = [
                load(b, address(b, p, i64(half * width * itemsize(t))), t, width)
                for half in (0, 1)
                for p, t in zip(run, h.acc, strict=True)
            ]
            store_each(b, expr.emit(b, h.op, halves, uniforms, width), run, h.acc)
        one = load_each(b, run, h.acc)
        places = [address(b, entry, i64(o)) for o in slot_offsets(h)[0]]
        store_each(b, expr.emit(b, h.op, load_each(b, places, h.acc) + one, uniforms, 1), places, h.acc)
        b.ret_void()
        return b.function
