"""The ArrayProgram: what kernels of large elements know of the user's Python. Loop nests over small arrays, not scalars.

An array is a parameter, a captured array or one that the program makes, of so many scalars. A nest has counted loops, the outer
ones over what it writes, the inner ones reduced; its body is a Program on one scalar of each array that it reads. Views (slices,
transposes, broadcasts) are no nests: an access has an offset and a stride for each loop. Like a Program it is frozen, hashable,
printable and parseable, and its text is canonical.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

from .check import check_program
from .program import DTYPES, FOLDED, Program, is_float, itemsize

INDEX = -1
"""As the number of an array: its scalar at a position is the position, as s32."""

COMBINE = FOLDED | {"none"}
"""How a nest combines what its inner loops make."""

MOST_BYTES = 1 << 18
"""Of the arrays that a program makes: they are on the stack."""

MOST_TURNS = 1 << 24
"""Of a nest: far more than an element's arithmetic has."""

Array = tuple[str, int]
"""Dtype, and number of scalars."""


@dataclasses.dataclass(frozen=True)
class Access:
    """The scalar ``offset + sum(index * stride)`` of an array."""

    of: int
    offset: int
    strides: tuple[int, ...]

    @property
    def text(self) -> str:
        return " ".join(map(str, (self.of, self.offset, *self.strides)))

    @staticmethod
    def parse(words: Sequence[str]) -> Access:
        of, offset, *strides = map(int, words)
        return Access(of, offset, tuple(strides))

    def reach(self, extents: Sequence[int]) -> tuple[int, int]:
        """The first and the last position."""
        steps = [s * (e - 1) for s, e in zip(self.strides, extents, strict=True)]
        return self.offset + sum(min(0, s) for s in steps), self.offset + sum(max(0, s) for s in steps)


@dataclasses.dataclass(frozen=True)
class Nest:
    """``write[outer] = combine over inner of body(reads[outer, inner])``, converted to the dtype of what is written."""

    extents: tuple[int, ...]
    inner: int  # how many of the loops, the last ones, are reduced
    combine: str
    write: Access  # strides of outer loops alone
    reads: tuple[Access, ...]
    body: Program

    @property
    def outer(self) -> int:
        return len(self.extents) - self.inner


@dataclasses.dataclass(frozen=True)
class ArrayProgram:
    """Nests, one after the other. Arrays are numbered: parameters, captured arrays, arrays made; of these some are results."""

    params: tuple[Array, ...]
    uniforms: tuple[Array, ...]
    made: tuple[Array, ...]
    nests: tuple[Nest, ...]
    results: tuple[int, ...]

    @property
    def arrays(self) -> tuple[Array, ...]:
        return (*self.params, *self.uniforms, *self.made)

    @property
    def result_arrays(self) -> tuple[Array, ...]:
        return tuple(self.arrays[r] for r in self.results)

    @functools.cached_property
    def text(self) -> str:
        rows = []
        for role in ("params", "uniforms", "made"):
            rows += [f"{role} " + " ".join(f"{dtype} {size}" for dtype, size in getattr(self, role))]
        for n in self.nests:
            rows += [f"nest {n.combine} {n.inner} {' '.join(map(str, n.extents))}", f"write {n.write.text}"]
            rows += [*(f"read {r.text}" for r in n.reads), n.body.text]
        return "\n".join([*rows, f"results {' '.join(map(str, self.results))}"])

    def __hash__(self) -> int:
        return hash(self.text)

    @staticmethod
    def parse(text: str) -> ArrayProgram:
        """The inverse of ``text``."""
        lines, nests = iter(text.splitlines()), list[Nest]()

        def arrays() -> tuple[Array, ...]:
            words = next(lines).split()[1:]
            return tuple((t, int(n)) for t, n in zip(words[::2], words[1::2], strict=True))

        params, uniforms, made = arrays(), arrays(), arrays()
        for line in lines:
            words = line.split()
            if words[0] == "results":
                return ArrayProgram(params, uniforms, made, tuple(nests), tuple(map(int, words[1:])))
            write, reads, body = Access.parse(next(lines).split()[1:]), [], []
            for row in lines:
                if row.startswith("read "):
                    reads.append(Access.parse(row.split()[1:]))
                    continue
                body.append(row)
                if row.startswith("}"):
                    break
            extents = tuple(map(int, words[3:]))
            nests.append(Nest(extents, int(words[2]), words[1], write, tuple(reads), Program.parse("\n".join(body))))
        raise ValueError("an array program without an end")


def check_arrays(p: ArrayProgram, params: Sequence[Array], results: Sequence[Array] | None, name: str) -> None:
    """Raises ValueError unless ``p`` takes these parameters, gives these results (None: whatever it gives), and stays inside its
    arrays."""
    arrays, first = p.arrays, len(p.params) + len(p.uniforms)
    if p.params != tuple(params):
        raise ValueError(f"{name} takes other arrays than it is given")
    if any(t not in DTYPES or size < 1 for t, size in arrays) or sum(itemsize(t) * n for t, n in p.made) > MOST_BYTES:
        raise ValueError(f"{name} makes no arrays, or too large ones")
    if len(set(p.results)) < len(p.results) or any(not first <= r < len(arrays) for r in p.results):
        raise ValueError(f"{name} gives what it does not make")
    if results is not None and p.result_arrays != tuple(results):
        raise ValueError(f"{name} gives other arrays than are wanted")
    there = set(range(first))
    for n in p.nests:
        _check_nest(n, arrays, first, there, name)
        there.add(n.write.of)
    if not there.issuperset(p.results):
        raise ValueError(f"{name} gives what nothing is written to")


def _check_nest(n: Nest, arrays: Sequence[Array], first: int, there: set[int], name: str) -> None:
    turns = math.prod(n.extents)
    if min(n.extents, default=1) < 1 or turns > MOST_TURNS or not 0 <= n.inner <= len(n.extents):
        raise ValueError(f"{name}: no loops")
    if n.combine not in COMBINE or (n.combine == "none" and n.inner):
        raise ValueError(f"{name}: no way to combine")
    if not first <= n.write.of < len(arrays):
        raise ValueError(f"{name}: it writes what it does not make")
    for access, extents in ((n.write, n.extents[: n.outer]), *((r, n.extents) for r in n.reads)):
        low, high = access.reach(extents)
        if access.of != INDEX and access is not n.write and access.of not in there:
            raise ValueError(f"{name}: it reads what is not made")
        if low < 0 or high >= (2**31 if access.of == INDEX else arrays[access.of][1]):
            raise ValueError(f"{name}: outside an array")
    check_program(n.body, ["s32" if r.of == INDEX else arrays[r.of][0] for r in n.reads], None, (), name)
    if len(n.body.results) != 1:
        raise ValueError(f"{name}: a nest has one result")
    kind = n.body.result_dtypes[0]
    if n.combine in ("and", "or", "xor") and is_float(kind):
        raise ValueError(f"{name}: no such combination of {kind}")
