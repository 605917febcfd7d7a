"""Which results of a Program are linear in some of what it reads: what may be transposed.

A value's *degree* is ``ZERO`` (the constant 0), ``CONSTANT`` (it depends on nothing of that), ``LINEAR``, or ``OTHER``: affine,
of higher degree, or not known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from .program import CONTROL, COUNTED, Instr, Program, from_bits, is_float

ZERO, CONSTANT, LINEAR, OTHER = range(4)


def degrees(program: Program, args: Sequence[int], uniforms: Collection[int] = (), degree: int = LINEAR) -> list[int]:
    """The results' degrees. ``args``: the arguments' own; ``uniforms``: numbers of the captured arrays that are of ``degree``."""

    def degree_of(i: Instr, of: list[Any]) -> Any:
        if i.op == "item":
            return of[0][i.attr]
        if i.op in CONTROL:
            return _control(i, of, uniforms, degree)
        return _degree(i, of, degree if i.op == "load" and i.attr in uniforms else CONSTANT)

    return program.run(args, degree_of)


def _degree(i: Instr, of: list[int], of_load: int) -> int:
    if i.op == "const":
        return ZERO if from_bits(i.attr, i.dtype) == 0 else CONSTANT
    if i.op == "load":
        return OTHER if of[0] > CONSTANT else of_load
    if i.op == "neg" or (i.op == "convert" and is_float(i.dtype)):
        return of[0]
    if i.op in ("add", "sub"):
        return _sum(*of)
    if i.op == "mul" and ZERO in of:
        return OTHER if OTHER in of else ZERO
    if i.op == "mul" and max(of) == LINEAR and min(of) == CONSTANT:
        return LINEAR
    if i.op == "div" and of[1] <= CONSTANT:
        return of[0]
    if i.op == "select" and of[0] <= CONSTANT:
        return _either(of[1], of[2])
    return CONSTANT if all(d <= CONSTANT for d in of) else OTHER


def _sum(a: int, b: int) -> int:
    return max(a, b) if ZERO in (a, b) or a == b else OTHER


_either = _sum  # one or the other: an affine function is no linear one wherever it is used


def _control(i: Instr, of: list[int], uniforms: Collection[int], degree: int) -> list[int]:
    """The degrees of what a loop or a branch gives."""
    if i.op == "cond":
        if of[0] > CONSTANT:
            return [OTHER] * len(i.attr[0].results)
        no, yes = (degrees(branch, of[1:], uniforms, degree) for branch in i.attr)
        return [_either(a, b) for a, b in zip(no, yes, strict=True)]
    body = i.attr[1]
    counter = [CONSTANT] if i.op in COUNTED else []
    carries, invariants = of[: len(body.results)], of[len(body.results) :]
    while True:
        after = degrees(body, [*counter, *carries, *invariants], uniforms, degree)
        if i.op == "while" and degrees(i.attr[0], [*carries, *invariants], uniforms, degree)[0] > CONSTANT:
            return [OTHER] * len(carries)
        joined = [_either(a, b) for a, b in zip(carries, after, strict=True)]
        if joined == carries:
            return carries
        carries = joined
