"""Transposition of calls: of what derivative rules bind by rules of its own, of everything else that is linear by its derivative.

A function that is linear in some operands is its own derivative by them, at any point; so a call is transposed by pulling back
through its derivative at zero. That it is linear is proved first, on the Programs of its functions: what is not is refused.

A call may have results that depend on nothing linear, as the number of elements beside their sum. JAX computes what is known
before it transposes the rest, one operation at a time; so a call whose operands are known in part gives the results that depend
on these alone (:func:`known_rule`), and a sum over a number is as linear as it is where each is an operation of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad

from ..ir.linear import CONSTANT, LINEAR, OTHER, degrees
from ..operators.operator import Operator
from ..operators.traced import slots_of
from ..tracing.varying import in_context
from .elements import ElementFunctionCall
from .tangents import Leaves, is_inexact, replaced, zeros_of


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
        operands = tuple(x if u else in_context(x) for x, u in zip(operands, linear, strict=True))
        if is_sum(call, linear):
            return of_sums(cotangents, *operands, call=call, masks=masks, rank=rank)
        if is_linear(call, linear):
            return pulled_back(cotangents, operands, lambda xs: primitive.bind(*xs, call=call, masks=masks, rank=rank))
        raise NotImplementedError(f"linear_transpose: {call!r} is not linear in what is transposed, or not known to be")

    return rule


def known_rule(primitive: Primitive, constant: Callable[[Any, Sequence[bool]], list[bool]]) -> Callable[..., list[Any]]:
    """A primitive's partial evaluation. Of a call and which of its operands are not known, ``constant`` says which results depend
    on none of these: they are computed with zeros in their places."""

    def rule(trace: Any, *tracers: Any, call: Any, masks: tuple[int, ...], rank: int) -> list[Any]:
        params = {"call": call, "masks": masks, "rank": rank}
        later: list[Any] = trace.default_process_primitive(primitive, tracers, params)
        unknown = [not t.is_known() for t in tracers]
        now = constant(call, unknown) if any(unknown) and len(later) > 1 else [False] * len(later)
        if not any(now):
            return later
        full = [zeros_of(t.aval) if u else t.pval.get_known() for t, u in zip(tracers, unknown, strict=True)]
        return [y if k else t for y, t, k in zip(primitive.bind(*full, **params), later, now, strict=True)]

    return rule


def pulled_back(cotangents: Sequence[Any], operands: Sequence[Any], run: Callable[[list[Any]], Leaves]) -> Leaves:
    """The transpose of ``run``, which is linear in the operands that are to be transposed: its pullback at zero."""
    moved = [k for k, x in enumerate(operands) if ad.is_undefined_primal(x)]

    def of(*xs: Any) -> Leaves:
        return [y for y in run(replaced(operands, moved, xs)) if is_inexact(y.dtype)]

    avals = [operands[k].aval for k in moved]
    outs, pull = jax.vjp(of, *map(zeros_of, avals))
    cts = [c for c in cotangents if is_inexact((c.aval if isinstance(c, ad.Zero) else c).dtype)]
    pulled = pull([jnp.zeros_like(o) if isinstance(c, ad.Zero) else c for c, o in zip(cts, outs, strict=True)])
    return replaced([None] * len(operands), moved, pulled)


def of_f(call: ElementFunctionCall, arrays: Sequence[bool], captured: Sequence[bool], degree: int = LINEAR) -> list[list[int]]:
    """The degrees of f's results, slot by slot, given which of its arrays and captured arrays are of ``degree``."""
    if call.f.arrays is not None:  # nothing is proved of it
        return [[OTHER] * slots_of(v.aval.shape, v.aval.dtype) for v in call.f.jaxpr.outvars]
    given, args = iter(arrays), []
    for position, v in zip(call.positions, call.f.jaxpr.invars, strict=True):
        mine = degree if position is None and next(given) else CONSTANT
        args += [mine] * slots_of(v.aval.shape, v.aval.dtype)
    rest = iter(degrees(call.f.program, args, numbers(captured), degree))
    return [[next(rest) for _ in range(slots_of(v.aval.shape, v.aval.dtype))] for v in call.f.jaxpr.outvars]


def of_leaves(op: Operator, which: Iterable[bool], degree: int = LINEAR) -> list[int]:
    """The degrees of an operator's slots, given which of its leaves are of ``degree``."""
    return [degree if mine else CONSTANT for mine, (_, n) in zip(which, op.leaf_slots, strict=True) for _ in range(n)]


def numbers(linear: Iterable[bool]) -> list[int]:
    return [k for k, mine in enumerate(linear) if mine]


def joined(rows: Iterable[Sequence[int]]) -> list[int]:
    """The degrees, slot by slot, of what is one row or another."""
    return [d.pop() if len(d := set(column) - {0}) == 1 else OTHER if d else 0 for column in zip(*rows, strict=True)]


def combines_linearly(op: Operator, values: Sequence[int], start: Sequence[int] | None, captured: Sequence[bool]) -> bool:
    """Is what combines of elements, and of a start value, linear? Given their slots' degrees, and which of the arrays that the
    operator captures are linear. A constant start is none of this function's business, as nobody's is who adds to an array."""
    combined = _closed(op, values, None, captured)
    if OTHER in combined:
        return False
    return start is None or LINEAR not in start or OTHER not in _closed(op, start, combined, captured)


def constant_leaves(op: Operator, values: Sequence[int], start: Sequence[int] | None, captured: Sequence[bool]) -> list[bool]:
    """Which leaves of what combines of elements, and of a start value, are constant? Given their slots' degrees, ``OTHER`` where
    they are not, and which of the arrays that the operator captures are not."""
    combined = _closed(op, values, None, captured, OTHER)
    if start is not None:
        combined = joined([combined, _closed(op, start, combined, captured, OTHER)])
    slots = iter(combined)
    return [max([next(slots) for _ in range(n)], default=CONSTANT) <= CONSTANT for _, n in op.leaf_slots]


def _closed(
    op: Operator, first: Sequence[int], second: Sequence[int] | None, captured: Sequence[bool], degree: int = LINEAR
) -> list[int]:
    """The degrees of ``first``, combined with any number of ``second`` (None: of its own kind)."""
    if op.large:
        return [OTHER] * len(first)
    state = list(first)
    while True:
        after = degrees(op.program, [*state, *(second or state)], numbers(captured), degree)
        grown = joined([state, after])
        if grown == state:
            return state
        state = grown
