"""Operators that give one of their two arguments, whole: a bin is replaced, or stays."""

from __future__ import annotations

import functools

from .program import Builder, Program, is_float


@functools.lru_cache(maxsize=1024)
def replaces(op: Program) -> tuple[Program, ...] | None:
    """(a's slots, b's slots) -> b1: if all of these are true, a ⊕ b is b, else it is a: the first alone may say so. None where it
    is neither, or not known to be."""
    n = len(op.results)
    b = Builder(op.params)
    args = b.args()
    first = op.body[op.results[0]]
    if n == 1 and first.op in ("max", "min") and not is_float(first.dtype):
        places = [op.body[o] for o in first.operands]
        if {i.attr for i in places if i.op == "arg"} != {0, 1}:
            return None
        return (b.finish([b.emit("lt", "b1", *(args if first.op == "max" else args[::-1]))]),)
    chosen = {_choice(op, k) for k in range(n)}
    if len(chosen) > 1 or None in chosen:
        return None
    ((condition, of_second),) = (c for c in chosen if c is not None)
    instr = op.body[condition]
    several = instr.op == ("and" if of_second else "or")
    return tuple(_alone(op, c, of_second) for c in (instr.operands if several else (condition,)))


def _alone(op: Program, condition: int, holds: bool) -> Program:
    """Whether it is true, or false."""
    b = Builder(op.params)
    (made,) = b.inline(Program(op.params, op.body, (condition,)), b.args())
    return b.finish([made if holds else b.emit("not", "b1", made)])


def _choice(op: Program, k: int) -> tuple[int, bool] | None:
    """The condition by which slot k is one of its arguments', and whether it is the second one's where that is true."""
    instr, n = op.body[op.results[k]], len(op.results)
    if instr.op != "select":
        return None
    condition, *sides = instr.operands
    given = [op.body[s].attr if op.body[s].op == "arg" else None for s in sides]
    return {(k, n + k): (condition, False), (n + k, k): (condition, True)}.get((given[0], given[1]))  # type: ignore[arg-type]
