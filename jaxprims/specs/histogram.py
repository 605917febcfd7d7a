"""HistogramSpec: the kernel of a generalized histogram (Henriksen et al. 2020, III), as canonical text."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ..ir.check import check_program
from ..ir.lanes import Row
from ..ir.program import Builder, Program
from ..ir.reach import FARTHEST
from .elements import ArraySpec as ArraySpec
from .elements import check_dtypes, check_identity, params_of, scalars_of
from .kernel import KernelSpec, register_kind

VERSION = 4
"""Part of every spec; raised when the meaning of the text changes."""


@dataclasses.dataclass(frozen=True)
class PartSpec:
    """One histogram's bins.

    ``lanes == 1``: a bin is a struct of scalars (slots) and ``op`` maps two of them to one. ``lanes > 1``: the operator is
    vectorised, ``map ⊕``: a bin is ``lanes`` such structs, of one leaf, each updated by ``op`` on its own; ``value`` makes one
    of what lies at its lane in each of ``rows`` and of f's scalars. Values are in the form that working copies hold, ``finish``
    makes the leaves' slots of it.
    """

    updates: int  # index-value pairs from one element
    lanes: int
    leaves: tuple[tuple[str, int], ...]  # of the result: dtype, and slots in a lane
    acc: tuple[str, ...]  # dtype of each slot in the working copies
    op: Program  # (a's slots, b's slots) -> slots, all in acc's dtypes
    identity: tuple[int, ...] | None  # bits, by slot; None: made by start, or unknown: bins start from dest
    dest: bool  # combined in from the left
    finish: Program | None = None  # working copies' slots -> leaves' slots; None: they are the same
    outer: Program | None = None  # with finish and dest: the operator on leaves' slots
    rows: tuple[Row, ...] = ()
    value: Program | None = None  # (slots of each row's lane..., f's scalars...) -> slots, in acc's dtypes
    start: Program | None = None  # () -> the identity's slots, of captured arrays: one that is known when the call runs

    @property
    def slots(self) -> int:
        return len(self.acc)

    @property
    def has_identity(self) -> bool:
        """Can working copies start from something?"""
        return self.identity is not None or self.start is not None

    @property
    def bases(self) -> int:
        """How many of its rows start where f says."""
        return sum(row.based for row in self.rows)

    def numbers(self, row: Row) -> int:
        """Of a row, for all lanes."""
        return -(-self.lanes // row.each) * self.slots

    @property
    def given(self) -> int:
        """Results of f for an update, beside the index: its value's slots; or its rows' bases, then scalars for ``value``."""
        return self.slots if self.value is None else self.bases + len(self.value.params) - len(self.rows) * self.slots

    def check(self, uniforms: tuple[str, ...]) -> None:
        """Raises ValueError unless its parts fit each other."""
        if self.updates < 1 or self.lanes < 1 or not self.acc or not self.leaves:
            raise ValueError("a bin has updates, lanes, slots and results")
        check_dtypes(self.acc)
        results = scalars_of(self.leaves)
        check_program(self.op, self.acc * 2, self.acc, uniforms, "op")
        if self.finish is not None:
            check_program(self.finish, self.acc, results, (), "finish")
        elif self.acc != results:
            raise ValueError(f"a bin of ({', '.join(self.acc)}) is no result of ({', '.join(results)})")
        if (self.outer is not None) != (self.finish is not None and self.dest):
            raise ValueError("with finish and dest, and only then, there is an operator on results")
        if self.outer is not None:
            check_program(self.outer, results * 2, results, uniforms, "outer")
        check_identity(self.identity, self.acc)
        if self.start is not None:
            check_program(self.start, (), self.acc, uniforms, "start")
            if self.identity is not None or self.lanes > 1:
                raise ValueError("an identity is known, or made when the call runs, then of a struct of scalars")
        if self.identity is None and not self.dest:
            raise ValueError("bins start from an identity or from dest")
        if self.lanes > 1 and (self.updates > 1 or len(self.leaves) > 1 or len(set(self.acc)) > 1):
            raise ValueError("an array-valued bin is of one result and one dtype, with one update")
        if (self.value is not None) != (self.lanes > 1) or (self.rows and self.value is None):
            raise ValueError("an array-valued bin's values, and no other's, are made lane by lane")


def last_of(dtypes: Sequence[str]) -> Program:
    """The operator whose result is its second argument."""
    b = Builder((*dtypes, *dtypes))
    return b.finish([b.arg(len(dtypes) + k) for k in range(len(dtypes))])


@dataclasses.dataclass(frozen=True, eq=False)
class HistogramSpec(KernelSpec):
    """A generalized histogram's kernel (Henriksen et al. 2020, III).

    ``f``'s parameters are the arrays', in order. Its results are, for each of
    ``bins``, the ``updates`` indices (of dtype ``index``; outside [0, H): dropped), then what is ``given``: the values, update by
    update, slot by slot; or, for values that are made lane by lane, where rows start and scalars.
    Captured arrays (uniforms) serve f, rows, and every operator.
    """

    index: str  # s32 or s64
    arrays: tuple[ArraySpec, ...]
    uniforms: tuple[str, ...]
    f: Program
    bins: tuple[PartSpec, ...]
    kind: str = dataclasses.field(default="hist", init=False)

    @property
    def operators(self) -> tuple[Program, ...]:
        return tuple(b.op for b in self.bins)

    @functools.cached_property
    def is_map(self) -> bool:
        """Does each element's value replace what is in the bin of its own position? Of as many bins as elements it is a map."""
        part, index = self.bins[0], self.f.body[self.f.results[0]]
        if len(self.bins) > 1 or part.updates > 1 or part.dest or part.finish is not None or index.op != "arg":
            return False
        of_param = [a for a in self.arrays for _ in range(a.params)]
        return of_param[index.attr].slots == 0 and part.op == last_of(part.acc)

    def check(self) -> None:
        if self.index not in ("s32", "s64") or not self.arrays or not self.bins:
            raise ValueError("a histogram has indices of s32 or s64, arrays and bins")
        check_dtypes(self.uniforms)
        check_program(self.f, params_of(self.arrays), None, self.uniforms, "f")
        if len(self.f.results) != sum(b.updates * (1 + b.given) for b in self.bins):
            raise ValueError("f has not the bins' indices and values as results")
        for b in self.bins:
            b.check(self.uniforms)
        if any(b.identity is None for b in self.bins) and any(b.finish is not None for b in self.bins):
            raise ValueError("without an identity bins are updated where the result lies, and hold what it holds")
        at = 0
        for b in self.bins:
            values = at + b.updates
            if any(t != self.index for t in self.f.result_dtypes[at:values]):
                raise ValueError(f"an index is not of {self.index}")
            at = values + b.updates * b.given
            if b.value is not None:
                self._check_rows(b, b.value, self.f.result_dtypes[values:at])
            elif self.f.result_dtypes[values:at] != b.acc * b.updates:
                raise ValueError("values are not of the bins' dtypes")

    def _check_rows(self, bins: PartSpec, value: Program, given: tuple[str, ...]) -> None:
        """Those of an array-valued bin, and the Program on what they hold."""
        dtypes: list[str] = []
        for row in bins.rows:
            if row.each < 1 or (row.each > 1 and bins.slots > 1):
                raise ValueError("lanes of one slot may share numbers")
            last = row.offset + bins.numbers(row)
            if not 0 <= row.offset < FARTHEST or not 0 <= row.number < len(self.arrays if row.own else self.uniforms):
                raise ValueError("there is no such row")
            if row.own and (row.based or last > self.arrays[row.number].slots):
                raise ValueError("a row is longer than its array's elements")
            dtypes += [self.arrays[row.number].dtype if row.own else self.uniforms[row.number]] * bins.slots
        if any(t not in ("s32", "s64") for t in given[: bins.bases]):
            raise ValueError("a row starts where an s32 or s64 says")
        check_program(value, (*dtypes, *given[bins.bases :]), bins.acc, (), "value")

    @functools.cached_property
    def reads(self) -> Program:
        """f, and the first and the last scalar of every row of a captured array: how far it reads."""
        b = Builder(self.f.params)
        given = b.inline(self.f, b.args())
        at = 0
        for bins in self.bins:
            bases = iter(given[at + bins.updates :])
            for row in bins.rows:
                base = next(bases) if row.based else b.const(0, "s64")
                wide = base if b.dtype(base) == "s64" else b.emit("convert", "s64", base)
                for place in (row.offset, row.offset + bins.numbers(row) - 1) if not row.own else ():
                    start = b.emit("add", "s64", wide, b.const(place, "s64"))
                    given.append(b.emit("load", self.uniforms[row.number], start, attr=row.number))
            at += bins.updates * (1 + bins.given)
        return b.finish(given)

    @functools.cached_property
    def text(self) -> str:
        return "\n".join(_lines(self))

    @staticmethod
    def parse(text: str) -> HistogramSpec:
        """The inverse of ``text``."""
        return _parse(text)


def _lines(s: HistogramSpec) -> Iterator[str]:
    yield f"hist {VERSION}"
    yield f"index {s.index}"
    for a in s.arrays:
        yield f"array {a.dtype} {a.slots} {a.params}"
    for u in s.uniforms:
        yield f"uniform {u}"
    yield "f"
    yield s.f.text
    for b in s.bins:
        yield f"bins updates={b.updates} lanes={b.lanes} dest={int(b.dest)}"
        for dtype, slots in b.leaves:
            yield f"leaf {dtype} {slots}"
        yield f"acc {' '.join(b.acc)}"
        yield "identity none" if b.identity is None else f"identity {' '.join(map(hex, b.identity))}"
        for row in b.rows:
            yield f"row {'own' if row.own else 'captured'} {row.number} {row.offset} {int(row.based)} {row.each}"
        for name, program in (("op", b.op), ("finish", b.finish), ("outer", b.outer), ("value", b.value), ("start", b.start)):
            if program is not None:
                yield name
                yield program.text


def _parse(text: str) -> HistogramSpec:
    # a program ends with the first unindented "} -> (...)"
    parts = re.split(r"(?m)^(program\(.*?^\} -> \([^)]*\))$", text, flags=re.S)
    head, f, between, programs = parts[0], Program.parse(parts[1]), parts[2::2], parts[3::2]
    lines = [line.split() for line in head.splitlines()]
    if lines[0] != ["hist", str(VERSION)]:
        raise ValueError(f"not a spec of version {VERSION}: {' '.join(lines[0])!r}")
    described: list[dict[str, Any]] = []
    for words, program in zip(between, programs, strict=False):
        rows = [line.split() for line in words.splitlines() if line]
        for row in rows[:-1]:
            if row[0] == "bins":
                described.append({"leaves": [], "rows": [], **{k: int(v) for k, v in (word.split("=") for word in row[1:])}})
            elif row[0] == "leaf":
                described[-1]["leaves"].append((row[1], int(row[2])))
            elif row[0] == "row":
                described[-1]["rows"].append(Row(row[1] == "own", int(row[2]), int(row[3]), bool(int(row[4])), int(row[5])))
            elif row[0] == "acc":
                described[-1]["acc"] = tuple(row[1:])
            else:
                described[-1]["identity"] = None if row[1:] == ["none"] else tuple(int(w, 16) for w in row[1:])
        described[-1][rows[-1][0]] = Program.parse(program)
    return HistogramSpec(
        index=lines[1][1],
        arrays=tuple(ArraySpec(row[1], int(row[2]), int(row[3])) for row in lines if row[0] == "array"),
        uniforms=tuple(row[1] for row in lines if row[0] == "uniform"),
        f=f,
        bins=tuple(
            PartSpec(**{**d, "leaves": tuple(d["leaves"]), "rows": tuple(d["rows"]), "dest": bool(d["dest"])}) for d in described
        ),
    )


register_kind("hist", HistogramSpec.parse)
