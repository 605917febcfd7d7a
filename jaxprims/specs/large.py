"""LargeSpec: a kernel of the ordered family whose elements have too many scalars to be structs of them, as canonical text."""

from __future__ import annotations

import dataclasses
import functools
import re

from ..ir.arrays import Array, ArrayProgram, check_arrays
from ..ir.program import DTYPES, Program, itemsize
from .elements import ArraySpec, params_of, scalars_of
from .kernel import register_kind, rows_of
from .ordered import KINDS, OrderedSpec

VERSION = 1
"""Part of every spec; raised when the meaning of the text changes."""

PREFIX = "large-"

MOST_TOGETHER = 1 << 20
"""Bytes of the arrays that elements are made of and give together: those of the last ones are on the stack."""

_FLAGS = ("exclusive", "reverse", "restarts")

_NOTHING = Program((), (), ())


@dataclasses.dataclass(frozen=True, eq=False)
class LargeSpec(OrderedSpec):
    """``parts`` are a state's arrays, which lie one after the other at multiples of 64 bytes; ``kept`` says which of them are
    results. To drivers, which only move states, a state is as many words, and rows always lie side by side (``across``).
    ``element`` is a function of so many elements ``together``, one after the other in each array: of a map's."""

    combine: ArrayProgram | None = None  # (a's parts, b's parts) -> parts; None: a map, of whose elements nothing is combined
    element: ArrayProgram | None = None  # arrays -> parts; None: they are the parts
    parts: tuple[Array, ...] = ()
    kept: tuple[int, ...] = ()
    together: int = 1

    @property
    def family(self) -> str:
        return self.kind.removeprefix(PREFIX)

    @property
    def is_map(self) -> bool:
        return self.combine is None

    @property
    def operators(self) -> tuple[Program, ...]:
        return ()

    @property
    def offsets(self) -> list[int]:
        """Where each part is in a state, in bytes; behind them, a state's size."""
        out = [0]
        for dtype, size in self.parts:
            out.append(out[-1] + -(-itemsize(dtype) * size // 64) * 64)
        return out

    @property
    def uniform_arrays(self) -> tuple[Array, ...]:
        return tuple(u for program in (self.element, self.combine) if program is not None for u in program.uniforms)

    def check(self) -> None:
        if not self.arrays or not self.parts or not self.kept:
            raise ValueError("a call has arrays, states and results")
        scalars_of(self.parts)
        every = tuple(range(len(self.parts)))
        params_of(self.arrays)
        given = tuple((a.dtype, max(1, a.slots) * self.together) for a in self.arrays)
        made = tuple((dtype, size * self.together) for dtype, size in self.parts)
        if self.combine is not None:
            check_arrays(self.combine, self.parts * 2, self.parts, "combine")
        elif self.element is None or self.family != "scan" or self.exclusive or self.restarts or self.kept != every:
            raise ValueError("a map makes each of its results, and nothing cuts it")
        if self.together < 1 or (
            self.together > 1 and not (self.is_map and all(a.slots for a in self.arrays) and not self.reverse)
        ):
            raise ValueError("elements are together in a map alone, from the first to the last, without positions")
        if self.together > 1 and sum(itemsize(dtype) * size for dtype, size in (*given, *made)) > MOST_TOGETHER:
            raise ValueError("more elements are together than the last of them have room for")
        if self.element is not None:
            check_arrays(self.element, given, made, "element")
        elif given != self.parts or not all(a.slots for a in self.arrays):
            raise ValueError("elements are no states")
        if any(not 0 <= k < len(self.parts) for k in self.kept):
            raise ValueError("a result is no part of a state")
        if any(dtype not in DTYPES for dtype, _ in self.uniform_arrays):
            raise ValueError("a captured array has an unknown dtype")
        self.check_modes()

    @functools.cached_property
    def text(self) -> str:
        rows = [f"{self.kind} {VERSION}"]
        rows += [f"array {a.dtype} {a.slots}" for a in self.arrays]
        rows += [f"part {dtype} {size}" for dtype, size in self.parts]
        rows += [f"kept {' '.join(map(str, self.kept))}"]
        rows += [f"together {self.together}"] if self.together > 1 else []
        rows += ["is " + " ".join(name for name in _FLAGS if getattr(self, name))]
        for name in ("element", "combine"):
            program = getattr(self, name)
            rows += [] if program is None else [name, program.text]
        return "\n".join(rows)

    @staticmethod
    def parse(text: str) -> LargeSpec:
        """The inverse of ``text``."""
        pieces = re.split(r"(?m)^(element|combine)$", text)
        rows = rows_of(pieces[0], VERSION)
        programs = {name: ArrayProgram.parse(p.strip("\n")) for name, p in zip(pieces[1::2], pieces[2::2], strict=True)}
        return large_spec(
            text.split(maxsplit=1)[0].removeprefix(PREFIX),
            tuple((t, int(n)) for t, n in rows("array")),
            tuple((t, int(n)) for t, n in rows("part")),
            tuple(int(k) for words in rows("kept") for k in words),
            programs.get("combine"),
            programs.get("element"),
            int(next(iter(rows("together")), ("1",))[0]),
            **{name: name in rows("is")[0] for name in _FLAGS},
        )


def large_spec(
    family: str,
    arrays: tuple[Array, ...],
    parts: tuple[Array, ...],
    kept: tuple[int, ...],
    combine: ArrayProgram | None,
    element: ArrayProgram | None,
    together: int = 1,
    **flags: bool,
) -> LargeSpec:
    """``arrays``: dtype and scalars of an element, none of a position."""
    words = -(-sum(-(-itemsize(dtype) * size * together // 64) * 8 for dtype, size in parts) // together)
    uniforms = [u for program in (element, combine) if program is not None for u in program.uniforms]
    return LargeSpec(
        kind=PREFIX + family,
        arrays=tuple(ArraySpec(dtype, slots, max(1, slots)) for dtype, slots in arrays),
        uniforms=tuple(dtype for dtype, _ in uniforms),
        state=("u64",) * words,
        leaves=tuple(parts[k] for k in kept),
        identity=None,
        f=_NOTHING,
        op=_NOTHING,
        finish=_NOTHING,
        across=True,
        combine=combine,
        element=element,
        parts=parts,
        kept=kept,
        together=together,
        **flags,
    )


for _kind in KINDS:
    register_kind(PREFIX + _kind, LargeSpec.parse)
