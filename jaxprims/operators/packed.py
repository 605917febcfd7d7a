"""The best value and where it is, as one 64-bit maximum (Henriksen et al. 2020, III-B, pack such pairs for compare-and-swap).

An operator on a pair of a value and a position is one of eight orders, however it is written and whichever comes first in the
pair: the largest value or the smallest, of equal ones the first or the last, NaN above all or below. That it is one is proved by
the decisions that it makes (classify.py): operators that ask for no NaN treat it in no order at all, and are left as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np

from ..ir.evaluate import evaluate, identical
from ..ir.program import Builder, Program, from_bits, is_float, itemsize, to_bits
from . import classify
from .known import Expr

POSITION_MAX = 0x7FFFFFFF


@dataclasses.dataclass(frozen=True)
class Order:
    """Which of two pairs an operator returns."""

    largest: bool  # value, or the smallest
    first: bool  # of equal values, or the last
    nan_wins: bool  # or loses against every number

    def chosen(self, v: Expr, i: Expr, w: Expr, j: Expr) -> tuple[Expr, Expr]:
        """As an operator on (value, position)."""
        better = v > w if self.largest else v < w
        alone = v.is_nan() & ~w.is_nan() if self.nan_wins else w.is_nan() & ~v.is_nan()
        tie = v.equals(w) | (v.is_nan() & w.is_nan())
        mine = better | alone | (tie & (i < j if self.first else j < i))
        return mine.where(v, w), mine.where(i, j)


Form = tuple[Program, tuple[int, ...], Program, Program]
"""The operator, its identity, what makes a word of a pair, and a pair of a word."""


def form_of(op: Program, dtypes: tuple[str, ...], position: int, identity: tuple[int, ...]) -> Form | None:
    """The form of an operator on pairs, slot ``position`` of which is the position; None where it has none that gives the same
    bits. ``identity``: its bits, by slot; bins that stay empty hold it."""
    if len(dtypes) != 2 or dtypes[position] != "s32" or dtypes[1 - position] == "b1" or itemsize(dtypes[1 - position]) > 4:
        return None
    order = _order(op, position)
    if order is None:
        return None
    neutral = [np.asarray(from_bits(bits, t)) for bits, t in zip(identity, dtypes, strict=True)]
    least = min(0, int(neutral[position]))  # -1, as a position that is none, moves all others up by one
    if least < -1:
        return None
    start, finish = _start(dtypes, position, order, least), _finish(dtypes, position, order, least)
    word = evaluate(start, neutral)
    back = evaluate(finish, word)
    if any(to_bits(x, t) != bits for x, t, bits in zip(back, dtypes, identity, strict=True)):
        return None
    b = Builder(("s64", "s64"))
    largest = b.finish([b.emit("max", "s64", b.arg(0), b.arg(1))])
    return largest, (to_bits(word[0], "s64"),), start, finish


@functools.lru_cache(maxsize=1024)
def _order(op: Program, position: int) -> Order | None:
    if op.params != op.result_dtypes * 2:
        return None
    value_first = classify.restrict(op, (1 - position, position))
    decisions = classify.decisions(value_first)
    if decisions is None:
        return None
    return next((o for o, wanted in _references(value_first.result_dtypes) if all(map(_same, decisions, wanted))), None)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(identical(a, b).all())


@functools.lru_cache
def _references(dtypes: tuple[str, ...]) -> tuple[tuple[Order, list[np.ndarray]], ...]:
    """Every order's decisions; of integers those without NaN."""
    found = []
    for order in itertools.starmap(Order, itertools.product((True, False), repeat=3)):
        b = Builder(dtypes * 2)
        results = order.chosen(*(Expr(b, b.arg(k)) for k in range(4)))
        decisions = classify.decisions(b.finish([r.value for r in results]))
        assert decisions is not None
        found.append((order, decisions))
    return tuple(found)


def _start(dtypes: tuple[str, ...], place: int, order: Order, least: int) -> Program:
    """High half: the value as an integer of the same order, complemented for the smallest, NaN above or below all, both zeros
    alike. Low half: the position above ``least``, complemented where the first one wins; and, in the last bit, whether the value
    was -0.0."""
    dtype = dtypes[1 - place]
    b = Builder(dtypes)
    value, position = b.arg(1 - place), b.arg(place)
    top, one, zero = b.const(POSITION_MAX, "s32"), b.const(1, "s32"), b.const(0, "s32")
    minus_zero = zero
    if is_float(dtype):
        wide = value if dtype == "f32" else b.emit("convert", "f32", value)
        bits = b.emit("bitcast", "s32", wide)
        key = b.emit("select", "s32", b.emit("lt", "b1", bits, zero), b.emit("xor", "s32", bits, top), bits)
        key = b.emit("select", "s32", b.emit("eq", "b1", wide, b.const(0.0, "f32")), zero, key)
        minus_zero = b.emit("select", "s32", b.emit("eq", "b1", bits, b.const(-(2**31), "s32")), one, zero)
    elif dtype == "u32":
        key = b.emit("xor", "s32", b.emit("bitcast", "s32", value), b.const(-(2**31), "s32"))
    else:
        key = value if dtype == "s32" else b.emit("convert", "s32", value)
    if not order.largest:
        key = b.emit("not", "s32", key)
    if is_float(dtype):
        key = b.emit("select", "s32", b.emit("ne", "b1", wide, wide), b.const(_nan_key(order), "s32"), key)
    if least:
        position = b.emit("sub", "s32", position, b.const(least, "s32"))
    if order.first:
        position = b.emit("sub", "s32", top, position)
    low = b.emit("or", "s32", b.emit("shift_left", "s32", position, one), minus_zero)
    high = b.emit("shift_left", "s64", b.emit("convert", "s64", key), b.const(32, "s64"))
    low = b.emit("convert", "s64", b.emit("bitcast", "u32", low))
    return b.finish([b.emit("or", "s64", high, low)])


def _nan_key(order: Order) -> int:
    """No number's, of floats."""
    return POSITION_MAX if order.nan_wins else -POSITION_MAX - 1


def _finish(dtypes: tuple[str, ...], place: int, order: Order, least: int) -> Program:
    dtype = dtypes[1 - place]
    b = Builder(("s64",))
    code = b.arg(0)
    top, one, zero = b.const(POSITION_MAX, "s32"), b.const(1, "s32"), b.const(0, "s32")
    key = b.emit("convert", "s32", b.emit("shift_right_arithmetic", "s64", code, b.const(32, "s64")))
    low = b.emit("bitcast", "s32", b.emit("convert", "u32", b.emit("and", "s64", code, b.const(0xFFFFFFFF, "s64"))))
    position = b.emit("shift_right_logical", "s32", low, one)
    if order.first:
        position = b.emit("sub", "s32", top, position)
    if least:
        position = b.emit("add", "s32", position, b.const(least, "s32"))
    plain = key if order.largest else b.emit("not", "s32", key)
    if is_float(dtype):
        bits = b.emit("select", "s32", b.emit("lt", "b1", plain, zero), b.emit("xor", "s32", plain, top), plain)
        minus = b.emit("ne", "b1", b.emit("and", "s32", low, one), zero)
        bits = b.emit("select", "s32", minus, b.const(-(2**31), "s32"), bits)
        value = b.emit("bitcast", "f32", bits)
        nan = b.emit("eq", "b1", key, b.const(_nan_key(order), "s32"))
        value = b.emit("select", "f32", nan, b.const(np.nan, "f32"), value)
        value = value if dtype == "f32" else b.emit("convert", dtype, value)
    elif dtype == "u32":
        value = b.emit("bitcast", "u32", b.emit("xor", "s32", plain, b.const(-(2**31), "s32")))
    else:
        value = plain if dtype == "s32" else b.emit("convert", dtype, plain)
    return b.finish([value, position] if place == 1 else [position, value])
