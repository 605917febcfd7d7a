"""Phase two of ``update``: the operator, scalar and branchless, from the buffers."""

from __future__ import annotations

import contextlib
from typing import Any

from llvmlite import ir

from ....ir.choices import replaces
from ....ir.program import itemsize
from ..llvm import expr
from ..llvm.build import I32, I64, address, i64, least, load_each, loop, prefetch, scaled, store_each
from .rows import Rows
from .vector_phase import PREFETCH_AHEAD

UNROLL = 8
"""Scalars updated in one turn of the loop, about."""


class ScalarPhase(Rows):
    """Applies a chunk's updates to histogram g, one after the other."""

    def _apply_all(self, g: int, first: ir.Value, count: ir.Value, done: ir.Value | None = None) -> None:
        """The chunk's updates; the first ``done`` are made already."""
        b, h = self.b, self.spec.bins[g]
        done = i64(0) if done is None else done
        if h.updates > 1 and not self.variant.ranged:
            # Element by element: neighbours often share bins, the updates of one element seldom do and so don't wait for each
            # other.
            with loop(b, i64(0), count) as j:
                for u in range(h.updates):
                    self._apply(g, u, first, j, self._offset(g, u, j))
            return
        for u in range(h.updates):
            n = b.load(self.counts[g][u], typ=I64) if self.variant.ranged else count
            if self.variant.prefetch:
                ahead = least(b, n, i64(PREFETCH_AHEAD))
                with loop(b, i64(0), ahead) as j:
                    self._prefetch(g, u, j)
            unroll, whole = UNROLL, done
            while unroll > 1 and unroll * h.slots * len(h.op.body) > 8 * UNROLL:
                unroll //= 2
            if unroll > 1 and h.lanes == 1:
                whole = b.add(done, b.and_(b.sub(n, done), i64(-unroll)))
                with loop(b, done, whole, unroll) as j:
                    if g == 0 and u == 0:
                        self._prefetch_next_chunk(b.add(first, j), unroll)
                    for k, offset in enumerate(self._offsets_at(g, u, j, unroll)):
                        self._apply(g, u, first, b.add(j, i64(k)), offset)
            if h.lanes > 1:
                whole = self._combine_together(g, first, n)
            with loop(b, whole, n) as j:
                self._apply(g, u, first, j, self._offset(g, u, j))

    def _prefetch_next_chunk(self, i: ir.Value, count: int) -> None:
        """Fetches what phase one will read of the elements one chunk behind [i, i + count).

        A chunk of an array is a part of a page, and a processor's own prefetchers stop at a page's end: without this every few
        chunks start with misses.
        """
        b = self.b
        for a, p in zip(self.spec.arrays, self.arrays, strict=True):
            size = a.slots * itemsize(a.dtype)
            for line in range(0, count * size if p is not None and size <= 32 else 0, 64):
                at = b.add(scaled(b, b.add(i, i64(self.chunk)), size), i64(line))
                prefetch(b, address(b, p, at))

    def _offsets_at(self, g: int, u: int, j: ir.Value, count: int) -> list[ir.Value]:
        """The next ``count`` offsets, two to a load: loads are what phase two has most of."""
        b = self.b
        if self.offset_type is I64:
            return [self._offset(g, u, b.add(j, i64(k))) for k in range(count)]
        out = []
        for k in range(0, count, 2):
            pair = b.load(self._buffer_at(self.offset_buffers[g][u], b.add(j, i64(k)), I32), typ=I64, align=4)
            out += [b.and_(pair, i64(0xFFFFFFFF)), b.lshr(pair, i64(32))]
        return out

    def _apply(self, g: int, u: int, first: ir.Value, j: ir.Value, offset: ir.Value, ahead: int = PREFETCH_AHEAD) -> None:
        """bin = bin ⊕ value. What is dropped goes to the spare bin, unless the operator need not end on it."""
        b, h = self.b, self.spec.bins[g]
        wanted: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if h.op.may_not_end and not self.variant.ranged:
            spare = scaled(b, self.num_bins[g], self._entry_bytes(g) * self.variant.copies)
            wanted = b.if_then(b.icmp_unsigned("<", offset, spare))
        with wanted:
            if self.variant.prefetch:
                self._prefetch(g, u, b.add(j, i64(ahead)))
            places = self._places(g, offset)
            if h.lanes == 1:
                self._apply_at(g, places, [self._value(g, u, s, first, j) for s in range(h.slots)])
            else:
                self._combine_lanes(g, first, j, places[0])

    def _apply_at(self, g: int, places: list[ir.Value], values: list[ir.Value]) -> None:
        b, h = self.b, self.spec.bins[g]
        now = load_each(b, places, h.acc)
        decides = replaces(h.op) if self.variant.settled else None
        if decides is not None:
            with contextlib.ExitStack() as inside:
                for program in decides:
                    inside.enter_context(b.if_then(expr.emit(b, program, now + values, self.uniforms, 1)[0], likely=False))
                store_each(b, values, places, h.acc)
            return
        store_each(b, expr.emit(b, h.op, now + values, self.uniforms, 1), places, h.acc)
