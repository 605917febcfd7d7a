"""The elements of a row as vectors: loads of the arrays, positions made, f applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ....ir.program import itemsize, register_bytes
from ....specs.ordered import OrderedSpec
from ..llvm.build import I32, address, chosen, i64, masked_load, scaled
from ..llvm.math import goes_in_pairs
from ..llvm.structs import in_pieces, load_structs
from ..llvm.types import from_memory, memory_type, numbers, register_type, resized, splat, undefined, with_lanes
from ..llvm.vectors import MOST_SHUFFLED, f_of

LEAST_WIDTH = 4


def vector_width(spec: OrderedSpec, vector_bytes: int) -> int:
    """How many of the widest scalars that the kernel touches fill a register; fewer of elements with many slots, which are taken
    apart and put together again by shuffles of all of a vector's slots at once. One along a row where the operator need not end
    on pairs that are not in the data: the lanes of a vector that is folded or scanned hold such pairs."""
    if spec.op.may_not_end and not spec.across:
        return 1
    dtypes = {i.dtype for p in (spec.f, spec.op, spec.finish) for i in p.walk() if i.dtype != "tuple"}
    dtypes |= {*spec.state, *(dtype for dtype, _ in spec.leaves), *(a.dtype for a in spec.arrays)}
    width = vector_bytes // max(map(register_bytes, dtypes))
    while width > LEAST_WIDTH and not is_taken_apart(spec, width):
        width //= 2
    return width


def width_of_functions(spec: OrderedSpec, vector_bytes: int) -> int:
    """The lanes of a loop that makes f, and little else: of two registers, where that pays."""
    width = vector_width(spec, vector_bytes)
    return 2 * width if width > 1 and goes_in_pairs(spec.f) and is_taken_apart(spec, 2 * width) else width


def is_taken_apart(spec: OrderedSpec, width: int) -> bool:
    """Are so many elements taken apart, and put together again, by shuffles over which LLVM does not take seconds?"""
    structs = [*spec.leaves, *((a.dtype, a.slots) for a in spec.arrays)]
    return all(width * n <= MOST_SHUFFLED or (not spec.across and in_pieces(t, n, width)) for t, n in structs)


class Elements:
    """Vectors of ``width`` consecutive elements of a row of ``n``, in scan order, and f of them.

    ``mirrored``: where the scan runs backwards, lanes stay in memory order, so a vector's first element is in its last lane.
    ``period``: the row is many rows end to end, and positions start again with each. ``row`` is then to be a multiple of it up to
    which a vector has come: where the first of its rows begins.
    """

    def __init__(
        self,
        b: ir.IRBuilder,
        spec: OrderedSpec,
        arrays: Sequence[ir.Value],
        uniforms: Sequence[ir.Value],
        n: ir.Value,
        width: int,
        mirrored: bool = False,
        period: ir.Value | None = None,
    ):
        """``arrays``: a pointer to memory element 0 of the row for each array; those of positions are not looked at."""
        self.b, self.spec, self.arrays, self.uniforms, self.n, self.width = b, spec, arrays, uniforms, n, width
        self.turned = spec.reverse and not mirrored  # lanes are turned round when loaded
        self.backwards = spec.reverse and mirrored  # or their order is the opposite of the scan's
        self.period = period
        self.wanted = spec.f.used_of(a.params for a in spec.arrays)
        self.row: ir.Value = i64(0)
        if period is not None:
            types = {register_type(a.dtype) for k, a in enumerate(spec.arrays) if not a.slots and self.wanted[k]}
            self.in_rows = {t: self._in_rows(t) for t in types}

    def states(self, i: ir.Value, rest: ir.Value | None = None) -> list[ir.Value]:
        """The states of elements i, i + 1, ..., a vector (``width`` 1: a scalar) for each slot.

        ``rest`` of them are there (None: enough). Spare lanes repeat the first: none holds a value that the user did not give,
        on which a loop inside f or op might never end.
        """
        spec, loaded = self.spec, self._load(i, rest)

        def slots(k: int, wanted: list[int]) -> dict[int, ir.Value]:
            return {s: loaded[k, s] for s in wanted}

        def position(dtype: str) -> ir.Value:
            return self._positions(i, rest, dtype)

        return f_of(self.b, spec.f, spec.arrays, self.uniforms, self.width, slots, position)

    def memory_index(self, i: ir.Value) -> ir.Value:
        """The first memory element of the vector that starts with scan element i."""
        return self.b.sub(self.n, self.b.add(i, i64(self.width))) if self.spec.reverse else i

    def in_memory(self, rest: ir.Value, slots: int = 1) -> ir.Value:
        """Which of a vector's memory places, ``slots`` for each element, hold its first ``rest`` elements."""
        b, places = self.b, self.width * slots
        order = range(places - 1, -1, -1) if self.spec.reverse else range(places)
        place = numbers(I32, order)
        return b.icmp_unsigned("<", place, splat(b, b.trunc(scaled(b, rest, slots), I32), places))

    def whole(self, rest: ir.Value) -> ir.Value:
        """Do ``rest`` elements fill a vector?"""
        return self.b.icmp_signed(">=", rest, i64(self.width))

    def either(
        self, rest: ir.Value | None, full: Callable[[], list[ir.Value]], tail: Callable[[], list[ir.Value]]
    ) -> list[ir.Value]:
        """``full()`` for a vector with all its elements, else ``tail()``."""
        return full() if rest is None or self.width == 1 else chosen(self.b, self.whole(rest), full, tail, likely=True)

    # --- arrays ---------------------------------------------------------------------------------------------------------------

    def _load(self, i: ir.Value, rest: ir.Value | None) -> dict[tuple[int, int], ir.Value]:
        """The slots that f uses, by array and slot."""
        b, arrays = self.b, self.spec.arrays
        out: dict[tuple[int, int], ir.Value] = {}
        wanted = [(k, s) for k, a in enumerate(arrays) if a.slots for s in self.wanted[k]]
        for k in sorted({k for k, _ in wanted}):
            a = arrays[k]
            if self.width > 1 and in_pieces(a.dtype, a.slots, self.width):
                places = self.places(i, rest, self.arrays[k], itemsize(a.dtype) * a.slots)
                out |= {(k, s): v for s, v in load_structs(b, places, a.dtype, a.slots, self.wanted[k]).items()}
        others = [at for at in wanted if at not in out]
        start = self.memory_index(i)
        at = {k: address(b, self.arrays[k], scaled(b, start, itemsize(arrays[k].dtype) * arrays[k].slots)) for k, _ in others}

        def full() -> list[ir.Value]:
            if self.width == 1:
                types = {k: memory_type(arrays[k].dtype) for k in at}
                return [b.load(b.gep(at[k], [i64(s)], source_etype=types[k]), typ=types[k]) for k, s in others]
            rows = {k: b.load(p, typ=self._row(k), align=itemsize(arrays[k].dtype)) for k, p in at.items()}
            return [self._slot(rows[k], s, arrays[k].slots) for k, s in others]

        def tail() -> list[ir.Value]:
            rows = {k: masked_load(b, p, self._row(k), self.in_memory(rest, arrays[k].slots)) for k, p in at.items()}
            values = [self._slot(rows[k], s, arrays[k].slots) for k, s in others]
            return [self._filled(v, rest) for v in values]

        if others:
            out |= dict(zip(others, self.either(rest, full, tail), strict=True))
        return {(k, s): from_memory(b, v, arrays[k].dtype) for (k, s), v in out.items()}

    def places(
        self, i: ir.Value, rest: ir.Value | None, base: ir.Value, size: int, spare: ir.Value | None = None
    ) -> list[ir.Value]:
        """Where each lane's element of ``size`` bytes is; a spare lane's at ``spare``, or with the vector's first."""
        b, width, out = self.b, self.width, []
        for k in range(width):
            ahead = i64(width - 1 - k if self.backwards else k)
            element = b.add(i, ahead)
            if rest is not None and spare is None:
                element = b.select(b.icmp_signed("<", ahead, rest), element, i)
            if self.spec.reverse:
                element = b.sub(b.sub(self.n, i64(1)), element)
            p = address(b, base, scaled(b, element, size))
            out.append(p if rest is None or spare is None else b.select(b.icmp_signed("<", ahead, rest), p, spare))
        return out

    def _row(self, k: int) -> ir.VectorType:
        a = self.spec.arrays[k]
        return ir.VectorType(memory_type(a.dtype), self.width * a.slots)

    def _slot(self, row: ir.Value, s: int, slots: int) -> ir.Value:
        """One slot of each element, its lanes in the order asked for."""
        if slots == 1 and not self.turned:
            return row
        lanes = range(self.width - 1, -1, -1) if self.turned else range(self.width)
        order = numbers(I32, [k * slots + s for k in lanes])
        return self.b.shuffle_vector(row, undefined(row.type), order)

    def _filled(self, v: ir.Value, rest: ir.Value) -> ir.Value:
        """A vector's first ``rest`` elements, its other lanes filled with the first of them."""
        b, width = self.b, self.width
        lane = [width - 1 - k if self.backwards else k for k in range(width)]
        place = numbers(I32, lane)
        there = b.icmp_unsigned("<", place, splat(b, b.trunc(rest, I32), width))
        return b.select(there, v, splat(b, b.extract_element(v, ir.Constant(I32, lane.index(0))), width))

    # --- positions ------------------------------------------------------------------------------------------------------------

    def _positions(self, i: ir.Value, rest: ir.Value | None, dtype: str) -> ir.Value:
        """Memory places within the row."""
        b, width = self.b, self.width
        t = register_type(dtype)
        if self.period is not None:
            ahead = b.sub(i, self.row)
            first = resized(b, b.sub(b.sub(self.period, i64(1)), ahead) if self.spec.reverse else ahead, t)
            first = splat(b, first, width)
            v = b.sub(first, self.in_rows[t]) if self.spec.reverse else b.add(first, self.in_rows[t])
        else:
            first = resized(b, self.memory_index(i), t)
            lanes = range(width - 1, -1, -1) if self.turned else range(width)
            v = first if width == 1 else b.add(splat(b, first, width), numbers(t, lanes))
        return self.either(rest, lambda: [v], lambda: [self._filled(v, rest)])[0]

    def _in_rows(self, t: ir.Type) -> ir.Value:
        """How far a vector's elements are from their rows' starts, in scan order, if it begins with one."""
        b, width = self.b, self.width
        lanes = [resized(b, b.urem(i64(width - 1 - k if self.backwards else k), self.period), t) for k in range(width)]
        if width == 1:
            return lanes[0]
        return with_lanes(b, undefined(ir.VectorType(t, width)), lanes)
