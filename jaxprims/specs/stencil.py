"""StencilSpec: which stencil's kernel is wanted, as canonical text."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from ..ir.check import check_program
from ..ir.program import Program
from .elements import MOST_PARAMS, check_dtypes, scalars_of
from .kernel import KernelSpec, register_kind, rows_of

VERSION = 2
"""Part of every spec; raised when the meaning of the text changes."""

MOST_AXES = 15
MOST_OFFSET = 1 << 30

Read = tuple[int, tuple[int, ...]]
"""An array, and how far from the cell it is read on each axis."""


SHORT_ROW, WIDEST = 40, 64
"""Numbers along the innermost axis of a short row, the ends of which are cells that vectors do not reach; bytes of the widest
vector."""


def is_short_row(cells: int, lanes: int, offsets: Sequence[int], width: int, around: bool = False) -> bool:
    """Do CPUs make too many cells of a row one by one, or all, since they fill no vector? ``offsets``: where on the innermost
    axis cells are read; ``width``: numbers that fill the widest vector; ``around``: steps go on beyond the ends of rows that
    wrap."""
    return cells * lanes <= SHORT_ROW * (2 if around else 1) or fills_no_vector(cells, lanes, offsets, width)


def fills_no_vector(cells: int, lanes: int, offsets: Sequence[int], width: int) -> bool:
    """Are all cells of such a row made one by one? But for what reads beyond its ends it is shorter than a vector."""
    return (cells - max(offsets, default=0) + min(offsets, default=0)) * lanes < width


@dataclasses.dataclass(frozen=True, eq=False)
class StencilSpec(KernelSpec):
    """A kernel that makes every cell of a grid of ``rank`` axes from cells around it.

    A cell of array k is ``unit`` lanes, each of so many scalars (slots); what is done to a lane depends on that lane of other
    cells alone. ``f`` takes the slots of each of ``reads``, then the cell's coordinate (s32) on each of ``coordinates``, and
    gives the slots of each of ``leaves``. What lies beyond the arrays, and how large they are, is the call's affair.
    """

    rank: int
    unit: int
    arrays: tuple[tuple[str, int], ...]  # dtype, slots
    reads: tuple[Read, ...]
    coordinates: tuple[int, ...]
    uniforms: tuple[str, ...]
    leaves: tuple[tuple[str, int], ...]
    f: Program
    kind: str = dataclasses.field(default="stencil", init=False)

    def check(self) -> None:
        if not (1 <= self.rank <= MOST_AXES and 1 <= self.unit < MOST_OFFSET):
            raise ValueError(f"a grid of {self.rank} axes, {self.unit} lanes to a cell")
        if not self.arrays or not self.leaves:
            raise ValueError("a stencil has arrays and results")
        slots = [scalars_of([array]) for array in self.arrays]
        if sum(map(len, slots)) * max(len(self.reads), 1) > MOST_PARAMS:
            raise ValueError(f"f takes more than {MOST_PARAMS} scalars")
        for array, offsets in self.reads:
            if not 0 <= array < len(self.arrays) or len(offsets) != self.rank or any(abs(o) >= MOST_OFFSET for o in offsets):
                raise ValueError(f"a read of array {array} at {offsets}")
        if any(not 0 <= axis < self.rank for axis in self.coordinates):
            raise ValueError(f"coordinates on axes {self.coordinates}")
        check_dtypes(self.uniforms)
        params = [t for array, _ in self.reads for t in slots[array]] + ["s32"] * len(self.coordinates)
        check_program(self.f, params, scalars_of(self.leaves), self.uniforms, "f")

    @functools.cached_property
    def rows(self) -> tuple[Read, ...]:
        """The rows of cells along the innermost axis that are read: an array, and offsets on the other axes."""
        return tuple(dict.fromkeys((array, offsets[:-1]) for array, offsets in self.reads))

    @functools.cached_property
    def text(self) -> str:
        rows = [f"stencil {VERSION}", f"grid {self.rank} {self.unit}"]
        rows += [f"array {dtype} {slots}" for dtype, slots in self.arrays]
        rows += [f"read {array} {' '.join(map(str, offsets))}" for array, offsets in self.reads]
        rows += [f"coordinate {axis}" for axis in self.coordinates]
        rows += [f"uniform {u}" for u in self.uniforms]
        rows += [f"leaf {dtype} {slots}" for dtype, slots in self.leaves]
        return "\n".join([*rows, "f", self.f.text])

    @staticmethod
    def parse(text: str) -> StencilSpec:
        """The inverse of ``text``."""
        head, _, program = text.partition("\nf\n")
        rows = rows_of(head, VERSION)
        ((rank, unit),) = rows("grid")
        return StencilSpec(
            int(rank),
            int(unit),
            tuple((dtype, int(slots)) for dtype, slots in rows("array")),
            tuple((int(array), tuple(map(int, offsets))) for array, *offsets in rows("read")),
            tuple(int(axis) for (axis,) in rows("coordinate")),
            tuple(u for (u,) in rows("uniform")),
            tuple((dtype, int(slots)) for dtype, slots in rows("leaf")),
            Program.parse(program),
        )


register_kind("stencil", StencilSpec.parse)
