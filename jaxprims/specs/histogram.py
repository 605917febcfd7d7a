"""HistogramSpec: the kernel of a generalized histogram (Henriksen et al. 2020, III), as canonical text."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any

from ..ir.program import Program
from .kernel import KernelSpec, register_kind

VERSION = 1
"""Part of every spec; raised when the meaning of the text changes."""


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """An input array: ``slots`` scalars of ``dtype`` for each element; or, with no slots, the element's position.

    f sees the first ``params`` of the slots: all, or one lane's of an array-valued bin's values; of a position, one.
    """

    dtype: str
    slots: int
    params: int


@dataclasses.dataclass(frozen=True)
class PartSpec:
    """One histogram's bins.

    ``lanes == 1``: a bin is a struct of scalars (slots) and ``op`` maps two of them to one. ``lanes > 1``: the operator is
    vectorised, ``map ⊕``: a bin is ``lanes`` such structs, of one leaf, each updated by ``op`` on its own. f's values are in
    the form that working copies hold, ``finish`` makes the leaves' slots of it.
    """

    updates: int  # index-value pairs from one element
    lanes: int
    leaves: tuple[tuple[str, int], ...]  # of the result: dtype, and slots in a lane
    acc: tuple[str, ...]  # dtype of each slot in the working copies
    op: Program  # (a's slots, b's slots) -> slots, all in acc's dtypes
    identity: tuple[int, ...] | None  # bits, by slot; None: unknown, bins start from dest
    dest: bool  # combined in from the left
    finish: Program | None = None  # working copies' slots -> leaves' slots; None: they are the same
    outer: Program | None = None  # with finish and dest: the operator on leaves' slots

    @property
    def slots(self) -> int:
        return len(self.acc)


@dataclasses.dataclass(frozen=True, eq=False)
class HistogramSpec(KernelSpec):
    """A generalized histogram's kernel (Henriksen et al. 2020, III).

    ``f``'s parameters are the arrays', in order. Its results are, for each of
    ``bins``, the ``updates`` indices (of dtype ``index``; outside [0, H): dropped), then the values, update by update, slot
    by slot. With ``lanes > 1`` the values are the parameters that hold the slots of an array's first lane.
    Captured arrays (uniforms) serve f and every operator.
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
        for name, program in (("op", b.op), ("finish", b.finish), ("outer", b.outer)):
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
                described.append({"leaves": [], **{k: int(v) for k, v in (word.split("=") for word in row[1:])}})
            elif row[0] == "leaf":
                described[-1]["leaves"].append((row[1], int(row[2])))
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
        bins=tuple(PartSpec(**{**d, "leaves": tuple(d["leaves"]), "dest": bool(d["dest"])}) for d in described),
    )


register_kind("hist", HistogramSpec.parse)
