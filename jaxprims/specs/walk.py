"""WalkSpec: the kernel of a walk through elements, each of which meets the state of its bin, as canonical text."""

from __future__ import annotations

import dataclasses
import functools

from ..ir.check import check_program
from ..ir.program import Program, itemsize
from .elements import check_dtypes, scalars_of, struct_of
from .kernel import KernelSpec, register_kind, rows_of

VERSION = 2
"""Part of every spec; raised when the meaning of the text changes."""


@dataclasses.dataclass(frozen=True, eq=False)
class WalkSpec(KernelSpec):
    """``step`` takes the scalars of a bin's state and of an element, and gives those of the state that is left there and of what
    is written for the element. Where an index is no bin's, zeros are. Captured arrays are uniforms.
    """

    index: str  # s32 or s64
    reverse: bool  # from the last element to the first
    arrays: tuple[tuple[str, int], ...]  # dtype, and scalars of one element
    uniforms: tuple[str, ...]
    state: tuple[tuple[str, int], ...]
    leaves: tuple[tuple[str, int], ...]  # what is written
    step: Program
    kind: str = dataclasses.field(default="walk", init=False)

    def check(self) -> None:
        if self.index not in ("s32", "s64") or not self.state or not self.leaves:
            raise ValueError("a walk has indices of s32 or s64, a state and results")
        check_dtypes(self.uniforms)
        state = scalars_of(self.state)
        params, results = (*state, *scalars_of(self.arrays)), (*state, *scalars_of(self.leaves))
        check_program(self.step, params, results, self.uniforms, "step")

    @functools.cached_property
    def layout(self) -> tuple[list[int], int]:
        """Byte offset of each of the state's scalars in a struct, each aligned to its size, and the struct's size."""
        return struct_of(map(itemsize, scalars_of(self.state)))

    @functools.cached_property
    def text(self) -> str:
        rows = [f"walk {VERSION}", f"index {self.index} {int(self.reverse)}"]
        rows += [f"array {dtype} {slots}" for dtype, slots in self.arrays]
        rows += [f"uniform {u}" for u in self.uniforms]
        rows += [f"state {dtype} {slots}" for dtype, slots in self.state]
        rows += [f"leaf {dtype} {slots}" for dtype, slots in self.leaves]
        return "\n".join([*rows, "step", self.step.text])

    @staticmethod
    def parse(text: str) -> WalkSpec:
        """The inverse of ``text``."""
        head, _, program = text.partition("\nstep\n")
        rows = rows_of(head, VERSION)
        ((index, reverse),) = rows("index")
        uniforms = tuple(u for (u,) in rows("uniform"))
        array, state, leaf = (tuple((t, int(n)) for t, n in rows(name)) for name in ("array", "state", "leaf"))
        return WalkSpec(index, bool(int(reverse)), array, uniforms, state, leaf, Program.parse(program))


register_kind("walk", WalkSpec.parse)
