"""The largest or smallest of several floats: NaN if one is, and -0 less than 0, which the hardware's comparisons do not know.

Both are looked after once for all of them. The sign of a maximum is negative where all signs are, that of a minimum where one is,
also among zeros; so the hardware's result needs it only put in. Whether there is a NaN is asked of two values at a time. Beside a
number that is known when the code is made, one comparison says all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from llvmlite import ir

from .types import intrinsic, literal, scalar_of, with_scalar


def nearer(b: ir.IRBuilder, op: str, x: ir.Value, y: ir.Value) -> ir.Value:
    """The hardware's maximum or minimum of two: right but for zeros and NaN."""
    return b.select(b.fcmp_ordered(">" if op == "max" else "<", x, y), x, y)


def of_two(b: ir.IRBuilder, op: str, x: ir.Value, y: ir.Value) -> ir.Value:
    for value, bound in ((x, y), (y, x)):
        number = _known(bound)
        if number is not None and not math.isnan(number):
            return _bounded(b, op, value, bound, number)
    return completed(b, op, nearer(b, op, x, y), (x, y))


def _bounded(b: ir.IRBuilder, op: str, x: ir.Value, bound: ir.Value, number: float) -> ir.Value:
    """``x``, NaN too, but where it is beyond the bound; at a bound of zero, if that wins against the other one."""
    wins = number == 0 and (math.copysign(1, number) > 0) == (op == "max")
    beyond = ("<" if op == "max" else ">") + ("=" if wins else "")
    return b.select(b.fcmp_ordered(beyond, x, bound), bound, x)


def _known(v: ir.Value) -> float | None:
    """The number that a constant is, in all lanes."""
    if not isinstance(v, ir.Constant):
        return None
    number = v.constant
    if isinstance(number, list):
        number = number[0].constant if len({x.constant for x in number}) == 1 else None
    return number if isinstance(number, float) else None


def completed(b: ir.IRBuilder, op: str, extreme: ir.Value, values: Sequence[ir.Value]) -> ir.Value:
    """``nearer`` of all of ``values``, with its sign and NaN."""
    t = extreme.type
    word = with_scalar(t, ir.IntType({ir.DoubleType(): 64, ir.HalfType(): 16}.get(scalar_of(t), 32)))
    bits = functools.reduce(b.and_ if op == "max" else b.or_, (b.bitcast(v, word) for v in values))
    signed = intrinsic(b, "copysign", t, extreme, b.bitcast(bits, t))
    pairs = [(values[k], values[min(k + 1, len(values) - 1)]) for k in range(0, len(values), 2)]
    numbers = functools.reduce(b.and_, (b.fcmp_ordered("ord", x, y) for x, y in pairs))
    return b.select(numbers, signed, literal(t, math.nan))
