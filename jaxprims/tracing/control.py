"""Control flow: counted loops (unrolled when small), ``while`` and ``cond``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import jaxprs_in_params

from ..ir.program import CONTROL, Program
from .arrays import cut, join, row, with_row, without_axis
from .emit import Imports, Unsupported
from .jaxprs import opened, scan_counts
from .lowering import Lowering
from .values import Array, Index, Value, check_shape, constants, loaded

UNROLL = 128
"""A counted loop that makes at most so many scalars is unrolled."""

UNROLL_ARRAYS = 4096
"""The same where it works on arrays of scalars: unrolled, their positions are known and need no selections."""

BRANCH = 16
"""Branches of at most so many cheap instructions are both computed, and their results selected."""

_COSTLY = CONTROL | frozenset({"div", "rem", "pow", "load"})


def flat(values: Sequence[Array]) -> list[int]:
    """Every scalar, element by element, a complex number's parts side by side."""
    return [v for a in values for v in np.stack(a.parts, -1).ravel().tolist()]


def unflat(like: Sequence[Array], scalars: Sequence[int]) -> list[Array]:
    """The inverse of :func:`flat`, for arrays of the same shapes."""
    out, start = [], 0
    for a in like:
        count = a.parts[0].size * len(a.parts)
        block = np.array(scalars[start : start + count], np.int64).reshape(*a.shape, len(a.parts))
        out.append(Array(a.dtype, tuple(block[..., k] for k in range(len(a.parts)))))
        start += count
    return out


def cost(e: Lowering, jaxpr: Any) -> int:
    """About how many scalars one evaluation makes."""
    total = 0
    for eqn in jaxpr.eqns:
        inner = sum(cost(e, j) for j in jaxprs_in_params(eqn.params))
        total += inner * eqn.params.get("length", 1) if inner else sum(math.prod(e.shape(v.aval)) for v in eqn.outvars)
    return total


def scan(e: Lowering, eqn: Any, *args: Value) -> list[Value]:
    """A counted loop: unrolled when small, or where its xs and ys are scalars already; else a ``loop``."""
    consts_n, carry_n = scan_counts(eqn)
    length, reverse = eqn.params["length"], eqn.params["reverse"]
    jaxpr, captured = opened(eqn.params["jaxpr"])
    consts, carry, xs = list(args[:consts_n]), list(args[consts_n : consts_n + carry_n]), args[consts_n + carry_n :]
    ys_avals = [v.aval for v in eqn.outvars[carry_n:]]
    if e.lanes is not None and (xs or ys_avals):
        raise Unsupported("scan", "over the lanes of a vectorised operator")
    for aval in ys_avals:
        check_shape(aval.shape, "scan")
    scalarised = bool(ys_avals) or any(isinstance(x, Array) and x.shape != () for x in args)
    if length * max(cost(e, jaxpr), 1) > (UNROLL_ARRAYS if scalarised else UNROLL):
        return _loop(e, jaxpr, captured, consts, [loaded(e, c, "scan") for c in carry], xs, ys_avals, length, reverse)
    ys: list[list[Array]] = [[] for _ in ys_avals]
    for k in reversed(range(length)) if reverse else range(length):
        at_k = [without_axis(cut(x, [slice(k, k + 1), *[slice(None)] * (len(x.shape) - 1)]), 0) for x in xs]
        results = e.evaluate(jaxpr, captured, [*consts, *carry, *at_k])
        carry = results[:carry_n]
        for column, y in zip(ys, results[carry_n:], strict=True):
            column.append(loaded(e, y, "scan"))
    stacked: list[Value] = []
    for column, aval in zip(ys, ys_avals, strict=True):
        rows = column[::-1] if reverse else column
        stacked.append(join(lambda *ps: np.stack(ps), rows) if rows else constants(e, np.zeros(aval.shape, aval.dtype), "scan"))
    return [*carry, *stacked]


def _loop(
    e: Lowering, jaxpr: Any, captured: Any, consts: Sequence[Value], carry: Sequence[Array], xs: Sequence[Value],
    ys_avals: Sequence[Any], length: int, reverse: bool
) -> list[Value]:  # fmt: skip
    """The ``loop`` instruction; the ys are carried along and written one row at a time."""
    start = [*carry, *(constants(e, np.zeros(a.shape, a.dtype), "scan") for a in ys_avals)]
    scalars = flat(start)
    fixed = ("s32", *(e.dtype(v) for v in scalars))
    inner, imports = e.child(fixed), Imports(e, fixed)
    counter = inner.builder.arg(0)
    i = Index(inner.op("sub", inner.const(length - 1, "s32"), counter) if reverse else counter, 0, length)
    state = unflat(start, [inner.builder.arg(k + 1) for k in range(len(scalars))])
    within = [v.each(lambda value: imports.take(inner, value)) for v in (*consts, *xs)]
    at_i = [row(inner, x, i) for x in within[len(consts) :]]
    results = inner.evaluate(jaxpr, captured, [*within[: len(consts)], *state[: len(carry)], *at_i])
    arrays = [loaded(inner, r, "scan") for r in results]
    ys = [with_row(inner, y, i, new) for y, new in zip(state[len(carry) :], arrays[len(carry) :], strict=True)]
    (body,), outer = imports.close((inner, flat([*arrays[: len(carry)], *ys])))
    loop = e.emit("loop", "tuple", *scalars, *outer, attr=(length, body))
    return list(unflat(start, _items(e, loop, body)))


def _items(e: Lowering, control: int, program: Program) -> list[int]:
    return [e.emit("item", t, control, attr=k) for k, t in enumerate(program.result_dtypes)]


def while_(e: Lowering, eqn: Any, *args: Value) -> list[Value]:
    cond_n, body_n = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    start = [loaded(e, v, "while") for v in args[cond_n + body_n :]]
    scalars = flat(start)
    fixed = tuple(e.dtype(v) for v in scalars)
    imports = Imports(e, fixed)

    def part(jaxpr: Any, consts: Sequence[Value]) -> tuple[Lowering, list[Array]]:
        inner = e.child(fixed)
        return inner, results(inner, jaxpr, consts)

    def results(inner: Lowering, jaxpr: Any, consts: Sequence[Value]) -> list[Array]:
        state = unflat(start, [inner.builder.arg(k) for k in range(len(scalars))])
        within = [v.each(lambda value: imports.take(inner, value)) for v in consts]
        return [loaded(inner, r, "while") for r in inner.evaluate(*opened(jaxpr), [*within, *state])]

    cond, (going,) = part(eqn.params["cond_jaxpr"], args[:cond_n])
    body, new = part(eqn.params["body_jaxpr"], args[cond_n : cond_n + body_n])
    if going.shape:  # of a batch: it goes on while a member does, and only those that do change
        (goes,) = results(body, eqn.params["cond_jaxpr"], args[:cond_n])
        old = unflat(start, [body.builder.arg(k) for k in range(len(scalars))])
        new = [_where_going(body, goes, a, b) for a, b in zip(new, old, strict=True)]
    going_on = functools.reduce(lambda a, b: cond.op("or", a, b), flat([going]), cond.const(False, "b1"))
    programs, outer = imports.close((cond, [going_on]), (body, flat(new)))
    loop = e.emit("while", "tuple", *scalars, *outer, attr=tuple(programs))
    return list(unflat(start, _items(e, loop, programs[1])))


def _where_going(e: Lowering, going: Array, new: Array, old: Array) -> Array:
    """``new`` where its leading axes are those of a member that goes on, else ``old``."""
    flags = going.parts[0].reshape(going.shape + (1,) * (len(new.shape) - len(going.shape)))
    flags = np.broadcast_to(flags, new.shape)
    select = np.vectorize(e.select, otypes=[np.int64])
    return Array(new.dtype, tuple(select(flags, a, b) for a, b in zip(new.parts, old.parts, strict=True)))


def cond(e: Lowering, eqn: Any, index: Value, *operands: Value) -> list[Value]:
    """Two branches, or more by bisection. Cheap ones are both computed."""
    which = loaded(e, index, "cond").scalar()
    branches = eqn.params["branches"]
    known = e.constant(which)
    if known is not None:
        return e.evaluate(*opened(branches[min(max(int(known), 0), len(branches) - 1)]), operands)
    return list(_branch(e, which, branches, 0, operands))


def _branch(e: Lowering, which: int, branches: Sequence[Any], first: int, operands: Sequence[Value]) -> list[Array]:
    """The results of the branch number ``which - first``."""
    if len(branches) == 1:
        return [loaded(e, r, "cond") for r in e.evaluate(*opened(branches[0]), operands)]
    middle = len(branches) // 2
    if e.dtype(which) == "b1":
        chosen = which
    elif first + len(branches) == 2:  # all there are
        chosen = e.op("ne", which, e.like(which, 0))
    else:
        chosen = e.op("ge", which, e.like(which, first + middle))
    imports = Imports(e, ())

    def part(some: Sequence[Any], start: int) -> tuple[Lowering, list[Array]]:
        inner = e.child(())
        within = [v.each(lambda value: imports.take(inner, value)) for v in operands]
        return inner, _branch(inner, imports.take(inner, which), some, start, within)

    low, low_results = part(branches[:middle], first)
    high, results = part(branches[middle:], first + middle)
    programs, outer = imports.close((low, flat(low_results)), (high, flat(results)))
    if all(_cheap(p) for p in programs):
        no, yes = (e.builder.inline(p, outer) for p in programs)
        return unflat(results, [e.select(chosen, a, b) for a, b in zip(yes, no, strict=True)])
    choice = e.emit("cond", "tuple", chosen, *outer, attr=tuple(programs))
    return unflat(results, _items(e, choice, programs[0]))


def _cheap(p: Program) -> bool:
    work = [i.op for i in p.body if i.op not in ("arg", "const")]
    return len(work) <= BRANCH and not any(op in _COSTLY for op in work)


RULES: dict[str, Callable[..., Any]] = {"scan": scan, "while": while_, "cond": cond}
