"""Operands as they were made.

A call's elements have one axis, which several were made into before. XLA makes such an operand in a loop over the one axis: where
each number is along the others it divides to find out, up to twenty times as slowly as in loops over them. So the call is given
what was reshaped; its mask says how many axes the elements have (``ffi/operand_reader.h``).
"""

from __future__ import annotations

from typing import Any

from .operations import CHEAP, DEAR, Frame, NotTaken, ir, is_one_number, made_by, shape_of

MORE_AXES = 16
"""The bit of a mask from which on it says how many axes more than one the elements have."""

MOST_LOOKED_AT = 24

SHORT, VECTORS = 32, 8
"""Numbers of a row, in multiples of the other, up to which what is the same in all of it is found as fast by division: XLA's
loops along rows would be too short for vectors."""

_BY_NUMBERS = (CHEAP.keys() | DEAR | {"stablehlo.convert", "stablehlo.compare"}) - {"stablehlo.gather"}

_ALONG = frozenset(f"stablehlo.{name}" for name in ("gather", "iota", "reverse", "transpose"))

_IN_PARTS = frozenset(f"stablehlo.{name}" for name in ("concatenate", "dynamic_slice", "pad", "slice"))
"""Along the first axis they are the same along all axes as one."""


def as_made(ctx: Any, operand: Any, batch: int) -> tuple[Any, int]:
    """An operand behind whose ``batch`` axes several were made one for this call, as it was before, and how many they were; or
    as it is."""
    op, _ = made_by(ctx, operand, None)
    if op is None or op.name != "stablehlo.reshape" or operand.owner.operation != op:
        return operand, 1
    (made,) = op.operands
    try:
        before, after = shape_of(made), shape_of(operand)
        axes = len(before) - batch
        one = len(after) == batch + 1 and before[:batch] == after[:batch]  # loops along axes behind it divide once in all
        return (made, axes) if one and axes > 1 and 0 not in before and _divides(ctx, made) else (operand, 1)
    except NotTaken:  # of sizes that are not known
        return operand, 1


def _divides(ctx: Any, value: Any) -> bool:
    """Has XLA to know where along each axis a number is, to make it, and does that take time?"""
    todo: list[tuple[Any, Frame | None]] = [(value, None)]
    found = False
    for _ in range(MOST_LOOKED_AT):
        if not todo:
            break
        op, frame = made_by(ctx, *todo.pop())
        if op is None or (op.name == "stablehlo.broadcast_in_dim" and is_one_number(ctx, op.operands[0], frame)):
            continue
        if _is_of_short_rows(op):
            return False
        found = found or _is_found_along(op)
        if op.name in _BY_NUMBERS or op.name in _IN_PARTS:
            todo += [(x, frame) for x in op.operands]
    return found


def _is_found_along(op: Any) -> bool:
    """Is a number found by its place along axes, not along all of them as one?"""
    if op.name in _IN_PARTS:
        given = [(name, one) for name, one in (("interior_padding", 0), ("strides", 1)) if name in op.attributes]
        steps = any(n != one for name, one in given for n in ir.DenseI64ArrayAttr(op.attributes[name]))
        return steps or shape_of(op.operands[0])[1:] != shape_of(op.results[0])[1:]
    return op.name in _ALONG or bool(_expanded(op))


def _is_of_short_rows(op: Any) -> bool:
    """Has each short row one number?"""
    expanded = _expanded(op)
    after = shape_of(op.results[0]) if expanded else []
    return expanded == [len(after) - 1] and after[-1] <= SHORT and after[-1] % VECTORS == 0


def _expanded(op: Any) -> list[int]:
    """Axes along which all numbers are the same."""
    if op.name != "stablehlo.broadcast_in_dim":
        return []
    of = dict(zip(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]), shape_of(op.operands[0]), strict=True))
    return [k for k, n in enumerate(shape_of(op.results[0])) if n > 1 and of.get(k, 1) == 1]
