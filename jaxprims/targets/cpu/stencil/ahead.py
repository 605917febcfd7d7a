"""What later rows want of memory, asked for while others are made: `cpu/stencil_ahead.h` says what, and when that pays."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ....specs.stencil import StencilSpec
from ..llvm.build import PTR, i64, i64_at, loop, prefetch

LINE = 64
"""Bytes that one request brings."""

SHARE = 16
"""Bits behind the point of the bytes that are asked for with a lane."""

AT_ONCE = 16
"""Rounds of a loop of vectors whose lines are asked for together."""


class Ahead:
    """``ahead``: for each array, then each leaf, where the first row's begin, bytes to the next row's, and bytes with a lane."""

    def __init__(self, b: ir.IRBuilder, spec: StencilSpec, ahead: ir.Value):
        self.b = b
        self.writes = [False] * len(spec.arrays) + [True] * len(spec.leaves)
        self.rows = [[i64_at(b, ahead, 3 * k + what) for what in range(3)] for k in range(len(self.writes))]

    def fetch(self, numbers: Sequence[ir.Value], begin: ir.Value, lanes: int) -> None:
        """What belongs to ``lanes`` lanes from ``begin`` on, of rows ``numbers``."""
        b = self.b
        for (where, step, share), writes in zip(self.rows, self.writes, strict=True):
            first, last = (b.ashr(b.mul(at, share), i64(SHARE)) for at in (begin, b.add(begin, i64(lanes))))
            with loop(b, b.and_(first, i64(-LINE)), b.and_(last, i64(-LINE)), LINE) as place:
                for i in numbers:
                    prefetch(b, b.inttoptr(b.add(b.add(where, b.mul(i, step)), place), PTR), writes, near=2)
