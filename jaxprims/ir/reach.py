"""How far a Program reads into its captured arrays, by intervals of what its integers may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .program import CONTROL, COUNTED, Instr, Program, from_bits, is_float, numpy_dtype

Interval = tuple[int, int]
"""The least and the greatest value."""

FARTHEST = 1 << 60
"""No array is as long."""


def reach(programs: Sequence[Program], num_uniforms: int) -> list[int]:
    """For each captured array, how many of its scalars Programs (that :func:`check_program` passed) may read: one more than the
    greatest position. Raises ValueError where one may be negative, or anything."""
    out = _Reach(num_uniforms)
    for p in programs:
        if any(i.op == "load" for i in p.walk()):
            out.program(p, [_whole(t) for t in p.params])
    return out.scalars


def _whole(dtype: str) -> Interval:
    """All that a dtype has; of floats nothing is known or asked."""
    if dtype == "tuple" or is_float(dtype):
        return 0, 0
    if dtype == "b1":
        return 0, 1
    info = np.iinfo(numpy_dtype(dtype))
    return int(info.min), int(info.max)


def _joined(intervals: Sequence[Interval]) -> Interval:
    return min(low for low, _ in intervals), max(high for _, high in intervals)


class _Reach:
    def __init__(self, num_uniforms: int):
        self.scalars = [0] * num_uniforms

    def program(self, p: Program, args: Sequence[Interval]) -> list[Interval]:
        """The results' intervals."""

        def lies(instr: Instr, given: list[Any]) -> Any:
            if instr.op in CONTROL:
                return self._control(instr, given)
            if instr.op == "item":
                return given[0][instr.attr]
            whole = _whole(instr.dtype)
            if instr.op == "load":
                self._load(instr.attr, given[0])
            elif not is_float(instr.dtype) and not any(is_float(p.body[o].dtype) for o in instr.operands):
                exact = _exact(instr, given)
                if exact is not None and whole[0] <= exact[0] and exact[1] <= whole[1]:  # else it may wrap
                    return exact
            return whole

        return p.run(args, lies)

    def _load(self, uniform: int, at: Interval) -> None:
        if at[0] < 0 or at[1] >= FARTHEST:
            raise ValueError(f"captured array {uniform} may be read at {at[0] if at[0] < 0 else at[1]}")
        self.scalars[uniform] = max(self.scalars[uniform], at[1] + 1)

    def _control(self, instr: Instr, given: Sequence[Interval]) -> list[Interval]:
        if instr.op == "cond":
            branches = [self.program(branch, given[1:]) for branch in instr.attr]
            return [_joined(both) for both in zip(*branches, strict=True)]
        carries = [_whole(t) for t in instr.attr[1].result_dtypes]  # after any number of turns: nothing is known of them
        args = [*carries, *given[len(carries) :]]
        if instr.op in COUNTED:
            args.insert(0, (0, max(0, instr.attr[0] - 1)))
        else:
            self.program(instr.attr[0], args)
        self.program(instr.attr[1], args)
        return carries


def _exact(instr: Instr, given: Sequence[Interval]) -> Interval | None:
    """The interval of a result that does not wrap; None: nothing is known."""
    op, ends = instr.op, given
    if op == "const":
        value = int(from_bits(instr.attr, instr.dtype))
        return value, value
    if op == "convert" and instr.dtype != "b1":
        return ends[0]
    if op == "select":
        return _joined(ends[1:])
    if op in ("add", "sub", "mul", "max", "min") and instr.dtype != "b1":
        (a, b), (c, d) = ends
        products = (a * c, a * d, b * c, b * d)
        return {
            "add": (a + c, b + d),
            "sub": (a - d, b - c),
            "mul": (min(products), max(products)),
            "max": (max(a, c), max(b, d)),
            "min": (min(a, c), min(b, d)),
        }[op]
    if op == "and":
        tops = [high for low, high in ends if low >= 0]
        return (0, min(tops)) if tops else None
    return None
