"""How much a Program has to do: what thread plans go by."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from .program import COMPARE, CONTROL, COUNTED, Program

_SLOW = {"div": 4, "rem": 8, "sqrt": 4, "rsqrt": 4, "round_away": 4, "is_finite": 2, "load": 2}
_FREE = frozenset("arg const item".split())
_SIMPLE = COMPARE | frozenset(
    "add sub mul max min and or xor shift_left shift_right_logical shift_right_arithmetic not neg abs sign floor ceil round_even "
    "select convert bitcast".split()
)
FUNCTION = 16  # a polynomial, or what there is no instruction for
_TURNS = 8  # of a loop that ends when it does

AT_ONCE = 1000
"""Operations from which, as it counts them, XLA hands a program over to another thread of the CPU, which is to be woken: one of
fewer is done where it is called. A kernel is no operation."""


@functools.lru_cache(maxsize=1024)
def work(p: Program, at_least: bool = False) -> int:
    """Additions that take as long, about. ``at_least``: if of two branches the cheaper one is taken."""
    total = 0
    for i in p.body:
        if i.op in COUNTED:
            turns, body = i.attr
            total += turns * work(body, at_least)
        elif i.op in ("while", "cond"):
            parts = [work(part, at_least) for part in i.attr]
            total += min(parts) if at_least and i.op == "cond" else sum(parts) * (_TURNS if i.op == "while" else 1)
        elif i.op not in _FREE:
            total += 1 if i.op in _SIMPLE else _SLOW.get(i.op, FUNCTION)
    return total


def functions(p: Program) -> int:
    """How many operations are none of these: there are no instructions for them."""
    return sum(i.op not in _SIMPLE | _FREE | CONTROL | _SLOW.keys() for i in p.body)


def instructions(p: Program, weights: Mapping[str, int]) -> int:
    """About how many a target's code has: as the weights say, else 1 for an operation."""
    total = 0
    for i in p.body:
        if i.op in COUNTED:
            total += i.attr[0] * instructions(i.attr[1], weights)
        elif i.op in CONTROL:
            total += 20 + sum(instructions(part, weights) for part in i.attr)
        else:
            total += weights.get(i.op, 1)
    return total
