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

from .types import alloca, intrinsic, lanes, literal, scalar_of, with_scalar


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
    word = _words(t)
    bits = functools.reduce(b.and_ if op == "max" else b.or_, (b.bitcast(v, word) for v in values))
    signed = intrinsic(b, "copysign", t, extreme, b.bitcast(bits, t))
    pairs = [(values[k], values[min(k + 1, len(values) - 1)]) for k in range(0, len(values), 2)]
    numbers = functools.reduce(b.and_, (b.fcmp_ordered("ord", x, y) for x, y in pairs))
    return b.select(numbers, signed, literal(t, math.nan))


def _words(t: ir.Type) -> ir.Type:
    """The integers of the same size."""
    return with_scalar(t, ir.IntType({ir.DoubleType(): 64, ir.HalfType(): 16}.get(scalar_of(t), 32)))


class Seen:
    """What vectors that were compared by :func:`nearer` alone have had in them: who has many of them asks once, and compares them
    anew where the hardware may have been wrong."""

    def __init__(self, b: ir.IRBuilder, op: str, t: ir.VectorType):
        self.b, self.op, self.t, self.words = b, op, t, _words(t)
        self.none, self.signs = alloca(b, self.words), alloca(b, self.words)
        b.store(ir.Constant(self.words, None), self.none)
        b.store(literal(self.words, -1 if op == "max" else 0), self.signs)

    def put(self, values: Sequence[ir.Value]) -> None:
        b = self.b
        pairs = [values[k : k + 2] for k in range(0, len(values), 2)]
        none = functools.reduce(b.or_, (b.sext(b.fcmp_unordered("uno", p[0], p[-1]), self.words) for p in pairs))
        b.store(b.or_(b.load(self.none, typ=self.words), none), self.none)
        both = b.and_ if self.op == "max" else b.or_
        signs = functools.reduce(both, (b.bitcast(v, self.words) for v in values))
        b.store(both(b.load(self.signs, typ=self.words), signs), self.signs)

    def deceives(self, extremes: ir.Value) -> ir.Value:
        """Was there a NaN? Or is an extreme the zero that loses against the other one, which may have been there?"""
        b, lost = self.b, literal(self.t, -0.0 if self.op == "max" else 0.0)
        zero = self._any(b.icmp_signed("==", b.bitcast(extremes, self.words), b.bitcast(lost, self.words)))
        none = ir.Constant(self.words, None)
        other = self._any(b.icmp_signed(">=" if self.op == "max" else "<", b.load(self.signs, typ=self.words), none))
        return b.or_(self._any(b.icmp_signed("!=", b.load(self.none, typ=self.words), none)), b.and_(zero, other))

    def _any(self, mask: ir.Value) -> ir.Value:
        bits = ir.IntType(lanes(mask.type))
        return self.b.icmp_unsigned("!=", self.b.bitcast(mask, bits), bits(0))
