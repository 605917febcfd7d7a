"""Whether an operator commutes, so that a reduction may combine elements in any order."""

from __future__ import annotations

import functools

from ..ir.program import Program
from .classify import parts, recognise, restrict, simplify, swapped

_COMMUTING = frozenset(
    "and or xor max min fmax fmin argmax argmin add mul logaddexp logaddexp2 hypot complex_mul saturating_add".split()
)
"""Of the operators known by name. Rounding of floats, and which of two zeros ``fmax`` gives, may depend on the order; what a
NaN does, and which of equal values' positions wins, does not (with ``select_max``'s spelling it would)."""


@functools.lru_cache(maxsize=1024)
def commutes(op: Program) -> bool:
    """Whether ``op``, on two structs of slots, is known to give the same for (b, a) as for (a, b).

    True if each of its independent parts has a name that says so, or is the same text with its arguments swapped.
    """
    if op.params != op.result_dtypes * 2:
        return False
    return all(_part_commutes(restrict(op, group)) for group in parts(op))


def _part_commutes(op: Program) -> bool:
    return recognise(op) in _COMMUTING or simplify(op).text == simplify(swapped(op)).text
