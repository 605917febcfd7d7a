"""What later rows want of memory, asked for while others are made: `cpu/stencil_ahead.h` says what, and when that pays."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ....specs.stencil import StencilSpec
from ..llvm.build import I32, I64, address, i64, intrinsic, loop

LINE = 64
"""Bytes that one request brings."""

SHARE = 16
"""Bits behind the point of the bytes that are asked for with a lane."""

AT_ONCE = 16
"""Rounds of a loop of vectors whose lines are asked for together."""

_WHERE, _STEP, _SHARE = range(3)


class Ahead:
    """``ahead``: for each array, then each leaf, where the first row's begin, bytes to the next row's, and bytes with a lane."""

    def __init__(self, b: ir.IRBuilder, spec: StencilSpec, ahead: ir.Value, numbers: Sequence[ir.Value]):
        self.b = b
        self.shares, self.rows = list[ir.Value](), list[list[ir.Value]]()
        self.writes = [False] * len(spec.arrays) + [True] * len(spec.leaves)
        for k in range(len(self.writes)):
            where, step, share = (self._number(ahead, 3 * k + what) for what in (_WHERE, _STEP, _SHARE))
            self.shares.append(share)
            self.rows.append([b.inttoptr(b.add(where, b.mul(i, step)), ir.PointerType()) for i in numbers])

    def _number(self, ahead: ir.Value, k: int) -> ir.Value:
        return self.b.load(self.b.gep(ahead, [i64(k)], source_etype=I64), typ=I64)

    def fetch(self, begin: ir.Value, lanes: int) -> None:
        """What belongs to ``lanes`` lanes from ``begin`` on."""
        b = self.b
        request = intrinsic(b.module, "llvm.prefetch.p0", ir.VoidType(), [ir.PointerType(), I32, I32, I32])
        for share, rows, writes in zip(self.shares, self.rows, self.writes, strict=True):
            first, last = (b.ashr(b.mul(at, share), i64(SHARE)) for at in (begin, b.add(begin, i64(lanes))))
            with loop(b, b.and_(first, i64(-LINE)), b.and_(last, i64(-LINE)), LINE) as place:
                for row in rows:
                    b.call(request, [address(b, row, place), *(ir.Constant(I32, v) for v in (int(writes), 2, 1))])
