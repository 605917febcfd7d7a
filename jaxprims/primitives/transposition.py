"""Transposition of calls: of what derivative rules bind by rules of its own, of everything else that is linear by its derivative.

A function that is linear in some operands is its own derivative by them, at any point; so a call is transposed by pulling back
through its derivative at zero. That it is linear is proved first, on the Programs of its functions: what is not is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad

from ..ir.linear import CONSTANT, LINEAR, OTHER, degrees
from ..operators.operator import Operator, slots_of
from ..tracing.varying import axes_of, vary
from .elements import ElementFunctionCall
from .tangents import Leaves, is_inexact


def transpose_rule(
    primitive: Primitive,
    is_sum: Callable[[Any, Sequence[bool]], bool],
    of_sums: Callable[..., Leaves],
    is_linear: Callable[[Any, Sequence[bool]], bool],
) -> Callable[..., Leaves]:
    """A primitive's transposition. Of a call and which of its operands are transposed, ``is_sum`` says whether ``of_sums`` is its
    rule, ``is_linear`` whether it is linear at all."""

    def rule(cotangents: Sequence[Any], *operands: Any, call: Any, masks: tuple[int, ...], rank: int) -> Leaves:
        linear = [ad.is_undefined_primal(x) for x in operands]
        if is_sum(call, linear):
            return of_sums(cotangents, *operands, call=call, masks=masks, rank=rank)
        if not is_linear(call, linear):
            raise NotImplementedError(f"linear_transpose: {call!r} is not linear in what is transposed, or not known to be")
        return pulled_back(cotangents, operands, lambda xs: primitive.bind(*xs, call=call, masks=masks, rank=rank))

    return rule


def pulled_back(cotangents: Sequence[Any], operands: Sequence[Any], run: Callable[[list[Any]], Leaves]) -> Leaves:
    """The transpose of ``run``, which is linear in the operands that are to be transposed: its pullback at zero."""
    moved = [k for k, x in enumerate(operands) if ad.is_undefined_primal(x)]

    def of(*xs: Any) -> Leaves:
        full = list(operands)
        for k, x in zip(moved, xs, strict=True):
            full[k] = x
        return [y for y in run(full) if is_inexact(y.dtype)]

    avals = [operands[k].aval for k in moved]
    outs, pull = jax.vjp(of, *(vary(jnp.zeros(a.shape, a.dtype), axes_of([a])) for a in avals))
    cts = [c for c in cotangents if is_inexact((c.aval if isinstance(c, ad.Zero) else c).dtype)]
    pulled = pull([jnp.zeros_like(o) if isinstance(c, ad.Zero) else c for c, o in zip(cts, outs, strict=True)])
    out: Leaves = [None] * len(operands)
    for k, ct in zip(moved, pulled, strict=True):
        out[k] = ct
    return out


def of_f(call: ElementFunctionCall, arrays: Sequence[bool], captured: Sequence[bool]) -> list[list[int]]:
    """The degrees of f's results, slot by slot, given which of its arrays and captured arrays are linear."""
    if call.f.arrays is not None:  # nothing is proved of it
        return [[OTHER] * slots_of(v.aval.shape, v.aval.dtype) for v in call.f.jaxpr.outvars]
    given, args = iter(arrays), []
    for position, v in zip(call.positions, call.f.jaxpr.invars, strict=True):
        degree = LINEAR if position is None and next(given) else CONSTANT
        args += [degree] * slots_of(v.aval.shape, v.aval.dtype)
    rest = iter(degrees(call.f.program, args, numbers(captured)))
    return [[next(rest) for _ in range(slots_of(v.aval.shape, v.aval.dtype))] for v in call.f.jaxpr.outvars]


def numbers(linear: Iterable[bool]) -> list[int]:
    return [k for k, mine in enumerate(linear) if mine]


def joined(rows: Iterable[Sequence[int]]) -> list[int]:
    """The degrees, slot by slot, of what is one row or another."""
    return [d.pop() if len(d := set(column) - {0}) == 1 else OTHER if d else 0 for column in zip(*rows, strict=True)]


def combines_linearly(op: Operator, values: Sequence[int], start: Sequence[int] | None, captured: Sequence[bool]) -> bool:
    """Is what combines of elements, and of a start value, linear? Given their slots' degrees, and which of the arrays that the
    operator captures are linear. A constant start is none of this function's business, as nobody's is who adds to an array."""
    combined = _closed(op, values, None, captured)
    if combined is None:
        return False
    return start is None or LINEAR not in start or _closed(op, start, combined, captured) is not None


def _closed(op: Operator, first: Sequence[int], second: Sequence[int] | None, captured: Sequence[bool]) -> list[int] | None:
    """The degrees of ``first``, combined with any number of ``second`` (None: of its own kind); None if it is not linear."""
    if op.large:
        return None
    state = list(first)
    while True:
        after = degrees(op.program, [*state, *(second or state)], numbers(captured))
        grown = joined([state, after])
        if any(new == OTHER for new in grown):
            return None
        if grown == state:
            return state
        state = grown
