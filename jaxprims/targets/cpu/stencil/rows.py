"""What a stage takes of memory, and several rows of cells at once: what they read in common is loaded once."""

from __future__ import annotations

import dataclasses
import functools

from ....ir.program import Builder, Program
from ....specs.stencil import StencilSpec
from .stages import stages_of

LONGEST = 120
"""Instructions of a row's f of which two are made at once, half of it for four; longer ones have not enough registers, and do not
wait for loads."""

SHARED = 0.875
"""The part of the loads of so many rows, one by one, that is left at most."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Where an argument comes from; ``row``: which of the rows at once wants it, and 0 for reads, which name their own place."""

    kind: str  # "read" (array, offsets, slot), "own" (axis), "made" (stage, cells ahead)
    what: tuple[int, ...]
    row: int
    offsets: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Rows:
    """A stage's f for as many rows as are made at once: their results one after the other."""

    f: Program
    sources: tuple[Source, ...]  # by parameter

    @property
    def loads(self) -> int:
        reads = {(s.what[0], s.offsets) for s in self.sources if s.kind == "read"}  # slots of one are loaded together
        return len(reads) + sum(s.kind == "made" for s in self.sources)


@functools.lru_cache(1024)
def rows_of(spec: StencilSpec, stage: int, count: int) -> Rows:
    """Of a stage, ``count`` rows at once. Instructions come in the order of the rows that they read, so that what is loaded is
    used while it is in a register."""
    plan = stages_of(spec)
    f = plan.stages[stage].f
    sources: dict[Source, int] = {}
    order: list[tuple[int, int, int]] = []  # (the last row that is read, of which row's f, instruction)
    own = [_sources(spec, plan.made, row) for row in range(count)]
    for row in range(count):
        last: list[int] = []
        for k, instr in enumerate(f.body):
            at = max((last[o] for o in instr.operands), default=-(1 << 30))
            if instr.op == "arg":
                source = own[row][instr.attr]
                sources.setdefault(source, len(sources))
                at = source.offsets[-2] if source.kind == "read" and spec.rank > 1 else at
            last.append(at)
            order.append((at if count > 1 else 0, row, k))
    dtypes = {s: dtype for mine in own for s, dtype in zip(mine, f.params, strict=True)}
    b = Builder(tuple(dtypes[s] for s in sources))
    new: dict[tuple[int, int], int] = {}
    for _, row, k in sorted(order):
        instr = f.body[k]
        if instr.op == "arg":
            new[row, k] = b.arg(sources[own[row][instr.attr]])
        else:
            new[row, k] = b.emit(instr.op, instr.dtype, *(new[row, o] for o in instr.operands), attr=instr.attr)
    return Rows(b.finish([new[row, r] for row in range(count) for r in f.results]), tuple(sources))


def _sources(spec: StencilSpec, made: tuple[tuple[int, int], ...], row: int) -> list[Source]:
    """By parameter of a stage, of the ``row``-th row of those that are made at once."""
    out = []
    for array, offsets in spec.reads:
        at = offsets if spec.rank == 1 else (*offsets[:-2], offsets[-2] + row, offsets[-1])
        out += [Source("read", (array, slot), 0, at) for slot in range(spec.arrays[array][1])]
    out += [Source("own", (axis,), row if axis == spec.rank - 2 else 0) for axis in spec.coordinates]
    return [*out, *(Source("made", read, row) for read in made)]


@functools.lru_cache(256)
def at_once(spec: StencilSpec) -> int:
    """How many rows: four, two, or one if they read too little in common. Of several stages, which share along the row, two."""
    stages = range(len(stages_of(spec).stages))
    longest = max(len(rows_of(spec, k, 1).f.body) for k in stages)

    def pays(count: int) -> bool:
        loads = [sum(rows_of(spec, k, rows).loads for k in stages) for rows in (1, count)]
        return loads[1] <= SHARED * count * loads[0]

    counts = (4, 2) if len(stages) == 1 else (2,)
    return next((count for count in counts if spec.rank > 1 and longest * count <= 2 * LONGEST and pays(count)), 1)
