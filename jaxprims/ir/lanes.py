"""The lanes of an array-valued result, as one Program: found, and proved, by comparing all of them instruction by instruction."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from .program import COMMUTATIVE, CONTROL, Builder, Instr, Program, from_bits


@dataclasses.dataclass(frozen=True)
class Row:
    """Lanes that lie side by side in memory: lane k's slot s at ``offset + k * slots + s`` of an element's own array, or, from
    ``base`` on, of a captured one.

    ``based``: where it starts is computed, else it is the array's start. ``each``: so many lanes share a number, as those of a
    vector that is multiplied by one of several weights: lane k's is that of k / each.
    """

    own: bool
    number: int  # of the array, or of the captured one
    offset: int
    based: bool = False
    each: int = 1


@dataclasses.dataclass(frozen=True)
class Lanes:
    """``program(slots of each row..., scalars...)`` gives a lane's slots. ``bases`` (of the rows that have one) and ``scalars``,
    the same for all lanes, are numbers of the whole Program's values."""

    rows: tuple[Row, ...]
    bases: tuple[int, ...]
    scalars: tuple[int, ...]
    program: Program


@functools.lru_cache(maxsize=512)
def lanes_of(whole: Program, results: tuple[int, ...], slots: int, arrays: tuple[int, ...]) -> Lanes | None:
    """The lanes whose slots are these values of ``whole``, lane by lane; None where they are not computed alike from rows.

    ``arrays``: how many of the parameters each array is, in order.
    """
    try:
        return _Comparison(whole, slots, len(results) // slots, arrays).lanes(results)
    except _Different:
        return None


class _Different(Exception):
    pass


class _Comparison:
    """Values are tuples: the same value of each lane."""

    def __init__(self, whole: Program, slots: int, count: int, arrays: Sequence[int]):
        self.body, self.slots, self.count = whole.body, slots, count
        self.place = [(k, s) for k, n in enumerate(arrays) for s in range(n)]
        self.sizes = arrays
        self.rows: dict[tuple[Row, int | None], list[str]] = {}  # with its base: its slots' dtypes
        self.scalars: dict[int, None] = {}
        self.reads: dict[tuple[int, ...], tuple[tuple[Row, int | None], int]] = {}  # a value that is a row's slot
        self.order: list[tuple[int, ...]] = []  # operands before what is made of them
        self.operands: dict[tuple[int, ...], list[tuple[int, ...]]] = {}

    def lanes(self, results: Sequence[int]) -> Lanes:
        wanted = [tuple(results[k * self.slots + s] for k in range(self.count)) for s in range(self.slots)]
        for values in wanted:
            self._visit(values)
        rows = list(self.rows)
        first = {row: k * self.slots for k, row in enumerate(rows)}
        scalar = {v: len(rows) * self.slots + k for k, v in enumerate(self.scalars)}
        b = Builder([t for row in rows for t in self.rows[row]] + [self.body[v].dtype for v in scalar])
        made: dict[tuple[int, ...], int] = {}
        for values in self.order:
            instr = self.body[values[0]]
            if values in self.reads:
                row, slot = self.reads[values]
                made[values] = b.arg(first[row] + slot)
            elif values[0] in scalar and len(set(values)) == 1:
                made[values] = b.arg(scalar[values[0]])
            else:
                operands = [made[o] for o in self.operands[values]]
                made[values] = b.emit(instr.op, instr.dtype, *operands, attr=instr.attr)
        bases = tuple(base for _, base in rows if base is not None)
        return Lanes(tuple(row for row, _ in rows), bases, tuple(scalar), b.finish([made[v] for v in wanted]))

    def _visit(self, values: tuple[int, ...]) -> None:
        pending: list[tuple[tuple[int, ...], bool]] = [(values, False)]
        while pending:
            now, complete = pending.pop()
            if complete:
                self.order.append(now)
            elif now not in self.operands:
                self.operands[now] = self._made_of(now)
                pending.append((now, True))
                pending += [(o, False) for o in self.operands[now]]

    def _made_of(self, values: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The operands of what all lanes compute; none of what is read, or is the same for all."""
        instrs = [self.body[v] for v in values]
        first = instrs[0]
        if len(set(values)) == 1:
            if first.op != "const":
                self.scalars[values[0]] = None
            return []
        if any((i.op, i.dtype, len(i.operands)) != (first.op, first.dtype, len(first.operands)) for i in instrs):
            raise _Different
        if first.op == "arg":
            self._own_row(values, instrs)
            return []
        if first.op == "load":
            self._captured_row(values, instrs)
            return []
        if any(i.attr != first.attr for i in instrs) or first.op in ("const", "item", *CONTROL):
            raise _Different
        operands = [tuple(column) for column in zip(*(self._ordered(i) for i in instrs), strict=True)]
        if first.op in COMMUTATIVE and len(operands) == 2:
            common = set(instrs[0].operands).intersection(*(i.operands for i in instrs))
            if len(common) == 1:  # the same for all lanes, on whichever side
                (same,) = common
                rest = tuple(next((o for o in i.operands if o != same), same) for i in instrs)
                operands = [(same,) * self.count, rest]
        return operands

    def _ordered(self, instr: Instr) -> tuple[int, ...]:
        """Operands of an operation that commutes may have come in either order: by what they are."""
        if instr.op not in COMMUTATIVE:
            return instr.operands
        return tuple(sorted(instr.operands, key=lambda o: (self.body[o].op, self.body[o].dtype, o)))

    def _own_row(self, values: tuple[int, ...], instrs: Sequence[Instr]) -> None:
        places = [self.place[i.attr] for i in instrs]
        array = places[0][0]
        if any(k != array for k, _ in places):
            raise _Different
        self._row(values, True, array, None, [s for _, s in places])

    def _captured_row(self, values: tuple[int, ...], instrs: Sequence[Instr]) -> None:
        uniform, starts = instrs[0].attr, [self._start(i.operands[0]) for i in instrs]
        if any(i.attr != uniform for i in instrs) or len({base for base, _ in starts}) > 1 or self.slots > 1:
            raise _Different
        self._row(values, False, uniform, starts[0][0], [at for _, at in starts])

    def _start(self, index: int) -> tuple[int | None, int]:
        """An index as a computed part, if there is one, and a constant."""
        at = 0
        while True:
            instr = self.body[index]
            if instr.op == "const":
                return None, at + int(from_bits(instr.attr, instr.dtype))
            constant = [o for o in instr.operands if self.body[o].op == "const"]
            if instr.op != "add" or len(constant) != 1:
                return index, at
            at += int(from_bits(self.body[constant[0]].attr, instr.dtype))
            (index,) = (o for o in instr.operands if o != constant[0])

    def _row(self, values: tuple[int, ...], own: bool, number: int, base: int | None, places: Sequence[int]) -> None:
        slot = places[0] % self.slots if own else 0
        start = places[0] - slot
        each = next((k for k, p in enumerate(places) if p != places[0]), 1)
        if start < 0 or list(places) != [start + slot + k // each * self.slots for k in range(self.count)]:
            raise _Different
        if (own and self.sizes[number] % self.slots) or (each > 1 and self.slots > 1):
            raise _Different
        key = Row(own, number, start, base is not None, each), base
        dtypes = self.rows.setdefault(key, [self.body[values[0]].dtype] * self.slots)
        assert dtypes[slot] == self.body[values[0]].dtype
        self.reads[values] = key, slot
