"""What neighbouring cells of a row have in common, made once for each: a kernel in stages, each of which reads those before it.

The largest of a square is that of its columns' largest, and a column belongs to as many squares as a square has columns. So
those of the columns are made first, for a piece of a row, into memory that stays in the first-level cache. The same holds of
anything that f computes at several places along the innermost axis: sums of columns, powers of reads, differences.

Values of f are equal up to a shift if they are the same instructions of reads that are equally far from each other. Folds whose
order is free are written column by column first (``columns_first``), long ones along the row in blocks, so that they have such
values.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ....ir.program import CONTROL, Builder, Program, is_float
from ....ir.trees import trees
from ....specs.stencil import StencilSpec
from ..llvm.math import MATH
from ..llvm.types import HALVES

LONGEST = 1000
"""Instructions of an f that is looked at."""

FARTHEST = 256
"""Lanes that a shared value may be read ahead."""

ROW = 3
"""What a stage costs beside what it computes, in instructions of a vector: a store, and its part of a loop."""

WORTH = 0.2
"""The part of a stage's instructions that must be saved: short rows have more vectors to the stages than to the cells."""

LONG_RUN = 8
"""Cells along a row whose fold is made in blocks."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """A value for each cell of a row, or, of the last one, f's results. ``f`` takes the spec's arguments and ``made``."""

    f: Program
    dtype: str | None = None  # of the last: none
    beyond: int = 0  # cells behind the row's end that are made too


@dataclasses.dataclass(frozen=True)
class Stages:
    f: Program  # the whole, for a single cell
    stages: tuple[Stage, ...]
    made: tuple[tuple[int, int], ...]  # an earlier stage, and how many cells ahead it is read

    @property
    def work(self) -> int:
        """Instructions of a vector."""
        return sum(len(stage.f.body) + len(stage.f.results) for stage in self.stages)


@functools.lru_cache(256)
def stages_of(spec: StencilSpec) -> Stages:
    """How ``spec``'s rows are made: one stage if nothing is worth another."""
    plain = Stages(spec.f, (Stage(spec.f),), ())
    if spec.f.may_not_end or len(spec.f.body) > LONGEST:
        return plain
    f = columns_first(spec)
    found = _Sharing(spec, f).stages()
    return found if found.made else plain


def _reads(spec: StencilSpec) -> list[tuple[Any, int | None]]:
    """By parameter of f: what is read but for where along the row, and where; other parameters are the same all along it."""
    out: list[tuple[Any, int | None]] = []
    for array, offsets in spec.reads:
        out += [((array, offsets[:-1], slot), offsets[-1]) for slot in range(spec.arrays[array][1])]
    out += [(("own", axis), 0 if axis == spec.rank - 1 else None) for axis in spec.coordinates]
    return out


@dataclasses.dataclass(frozen=True)
class _Shifts:
    """By value of f: its class of those that are equal up to a shift, and where it stands along the row: where its first read
    does (None: it is the same everywhere)."""

    classes: tuple[int, ...]
    places: tuple[int | None, ...]

    @staticmethod
    def of(spec: StencilSpec, f: Program) -> _Shifts:
        params, numbers = _reads(spec), dict[Any, int]()
        classes, places = list[int](), list[int | None]()
        for instr in f.body:
            place: int | None
            if instr.op == "arg":
                what, place = params[instr.attr]
                form: Any = ("arg", what)
            else:
                own = [places[o] for o in instr.operands]
                place = min((p for p in own if p is not None), default=None)
                far = [None if p is None or place is None else p - place for p in own]
                form = (instr.op, instr.dtype, instr.attr, tuple(zip((classes[o] for o in instr.operands), far, strict=True)))
            classes.append(numbers.setdefault(form, len(numbers)))
            places.append(place)
        return _Shifts(tuple(classes), tuple(places))


# --- folds, column by column ------------------------------------------------------------------------------------------------


def columns_first(spec: StencilSpec) -> Program:
    """f, its folds regrouped where their order is free."""
    f, shifts = spec.f, _Shifts.of(spec, spec.f)
    found = trees(f)
    b, new = Builder(f.params), list[int]()
    for k, instr in enumerate(f.body):
        if k in found:
            combine = functools.partial(b.emit, instr.op, instr.dtype)
            new.append(_fold(combine, instr.op in ("max", "min", "and", "or"), _columns(shifts, found[k]), new))
        else:
            new.append(b.emit(instr.op, instr.dtype, *(new[o] for o in instr.operands), attr=instr.attr))
    return b.finish([new[r] for r in f.results])


def _columns(shifts: _Shifts, leaves: Sequence[int]) -> dict[tuple[int, ...], dict[int | None, list[int]]]:
    """Leaves by place, and places by what their leaves are."""
    by_place: dict[int | None, list[int]] = {}
    for leaf in sorted(leaves, key=lambda v: shifts.classes[v]):
        by_place.setdefault(shifts.places[leaf], []).append(leaf)
    columns: dict[tuple[int, ...], dict[int | None, list[int]]] = {}
    for place, own in by_place.items():
        columns.setdefault(tuple(shifts.classes[v] for v in own), {})[place] = own
    return columns


def _fold(
    combine: Callable[[int, int], int],
    again: bool,
    columns: dict[tuple[int, ...], dict[int | None, list[int]]],
    new: Sequence[int],
) -> int:
    """The fold of all columns. ``again``: nothing changes if a value is met more than once."""
    parts: list[int] = []
    for by_place in columns.values():
        if len(by_place) == 1:
            parts += [new[v] for own in by_place.values() for v in own]
            continue
        whole = {p: functools.reduce(combine, (new[v] for v in own)) for p, own in by_place.items() if p is not None}
        parts += [new[v] for own in (by_place.get(None, []),) for v in own]
        parts += _blocks(combine, again, whole)
    return functools.reduce(combine, parts)


def _blocks(combine: Callable[[int, int], int], again: bool, whole: dict[int, int]) -> list[int]:
    """Values at places along the row; if these are many and equally far from each other, folds of equally many."""
    places = sorted(whole)
    steps = {q - p for p, q in itertools.pairwise(places)}
    if len(places) < LONG_RUN or len(steps) > 1:
        return [whole[p] for p in places]
    size = math.isqrt(len(places) - 1) + 1

    def block(first: int) -> int:
        return functools.reduce(combine, (whole[p] for p in places[first : first + size]))

    full = len(places) // size * size
    out = [block(first) for first in range(0, full, size)]
    if again and full < len(places):
        return [*out, block(len(places) - size)]
    return [*out, *(whole[p] for p in places[full:])]


# --- what is shared ---------------------------------------------------------------------------------------------------------


class _Sharing:
    def __init__(self, spec: StencilSpec, f: Program):
        self.spec, self.f, self.shifts = spec, f, _Shifts.of(spec, f)
        self.made: list[tuple[int, int]] = []
        self.numbers: dict[int, int] = {}  # of the stage that makes a class
        self.firsts: dict[int, int] = {}  # the class's value that stands first
        for v, (c, place) in enumerate(zip(self.shifts.classes, self.shifts.places, strict=True)):
            if place is not None and place < (self.shifts.places[self.firsts.setdefault(c, v)] or 0):
                self.firsts[c] = v
        self.roots: list[tuple[list[int], set[int]]] = []

    def stages(self) -> Stages:
        self._divide(list(self.f.results), None)
        programs = [self._program(roots, cuts) for roots, cuts in self.roots]
        stages, beyond = list[Stage](), self._beyond(programs)
        params = (*self.f.params, *(self._dtype(stage) for stage, _ in self.made))
        for k, program in enumerate(programs):
            last = k == len(programs) - 1
            stages.append(Stage(Program(params, program.body, program.results), None if last else self._dtype(k), beyond[k]))
        return Stages(self.f, tuple(stages), tuple(self.made))

    def _dtype(self, stage: int) -> str:
        return self.f.body[self.roots[stage][0][0]].dtype

    def _divide(self, roots: list[int], own: int | None) -> None:
        """Adds the stage that makes ``roots`` (of class ``own``), after those that it reads."""
        cuts: set[int] = set()
        while True:
            live = self._live(roots, cuts)
            cost, best, chosen = self._cost(live, cuts), 0.0, None
            for c in self._candidates(live, cuts, own):
                more = cuts | {c}
                new = 0.0 if c in self.numbers else self._cost(self._live([self.firsts[c]], cuts), cuts) + ROW
                gain = cost - self._cost(self._live(roots, more), more) - new
                if gain > max(best, WORTH * cost):
                    best, chosen = gain, c
            if chosen is None:
                break
            cuts.add(chosen)
        for c in sorted(cuts):
            if c not in self.numbers:
                self._divide([self.firsts[c]], c)
                self.numbers[c] = len(self.roots) - 1
        self.roots.append((roots, cuts))

    def _live(self, roots: Iterable[int], cuts: set[int]) -> set[int]:
        live, waiting = set[int](), list(roots)
        while waiting:
            v = waiting.pop()
            if v not in live:
                live.add(v)
                if self.shifts.classes[v] not in cuts:
                    waiting += self.f.body[v].operands
        return live

    def _cost(self, live: Iterable[int], cuts: set[int]) -> float:
        return sum(1.0 if self.shifts.classes[v] in cuts else self._weight(v) for v in live)

    def _weight(self, v: int) -> float:
        instr = self.f.body[v]
        if self.shifts.places[v] is None:
            return 0.0  # leaves the loop
        if instr.op in CONTROL:
            return float(4 * sum(len(p.body) for p in instr.attr if isinstance(p, Program)))
        if instr.op in MATH or instr.op in ("div", "rem"):
            return 10.0
        rounding = 4.0 if instr.dtype in HALVES and instr.op not in ("arg", "max", "min") else 1.0
        return 2.0 if instr.op in ("max", "min") and is_float(instr.dtype) else rounding

    def _candidates(self, live: Iterable[int], cuts: set[int], own: int | None) -> list[int]:
        """Classes that are wanted at several places, those with the most to save first."""
        places: dict[int, set[int]] = collections.defaultdict(set)
        for v in live:
            place, c, instr = self.shifts.places[v], self.shifts.classes[v], self.f.body[v]
            if place is not None and c != own and c not in cuts and instr.op != "arg" and instr.dtype != "tuple":
                places[c].add(place)
        wanted = []
        for c, at in places.items():
            first = self.shifts.places[self.firsts[c]]
            assert first is not None
            if len(at) > 1 and (max(at) - first) * self.spec.unit <= FARTHEST:
                wanted.append(((len(at) - 1) * self._cost(self._live([self.firsts[c]], cuts), cuts), c))
        return [c for _, c in sorted(wanted, reverse=True)[:16]]

    def _program(self, roots: Sequence[int], cuts: set[int]) -> Program:
        """The stage's, whose parameters behind f's own are ``made``."""
        b = Builder(self.f.params)
        live, new = self._live(roots, cuts), dict[int, int]()
        for v in sorted(live):
            instr, c = self.f.body[v], self.shifts.classes[v]
            if c in cuts:
                ahead = (self.shifts.places[v] or 0) - (self.shifts.places[self.firsts[c]] or 0)
                read = (self.numbers[c], ahead)
                if read not in self.made:
                    self.made.append(read)
                new[v] = b.emit("arg", instr.dtype, attr=len(self.f.params) + self.made.index(read))
            else:
                new[v] = b.emit(instr.op, instr.dtype, *(new[o] for o in instr.operands), attr=instr.attr)
        return b.finish([new[r] for r in roots])

    def _beyond(self, programs: Sequence[Program]) -> list[int]:
        """How many cells behind the row's end each stage makes."""
        beyond = [0] * len(programs)
        for k in range(len(programs) - 1, -1, -1):
            for instr in programs[k].body:
                if instr.op == "arg" and instr.attr >= len(self.f.params):
                    stage, ahead = self.made[instr.attr - len(self.f.params)]
                    beyond[stage] = max(beyond[stage], beyond[k] + ahead)
        return beyond
