"""Folds written out, as sums over an axis and products of vectors become in a Program: rolled up again where they read rows of
captured arrays. A target may take a ``fold``'s turns in any order, so with vectors along the rows."""

from __future__ import annotations

import collections
import functools

import numpy as np

from .lanes import Lanes, lanes_of
from .program import Builder, Program, is_float, numpy_dtype

FEWEST = 8
"""Terms of a fold that is worth it."""

_OPERATIONS = frozenset("add mul max min and or xor".split())


@functools.lru_cache(maxsize=512)
def rolled(whole: Program) -> Program:
    """The Program with such chains as ``fold`` instructions."""
    users = collections.Counter(o for i in whole.body for o in i.operands) + collections.Counter(whole.results)
    inside = set[int]()
    found: dict[int, tuple[int | None, int, Lanes]] = {}
    for root in range(len(whole.body) - 1, -1, -1):
        if whole.body[root].op not in _OPERATIONS or root in inside:
            continue
        terms, links = _chain(whole, root, users)
        start = terms.pop(0) if whole.body[terms[0]].op == "const" else None
        if len(terms) < FEWEST or len({whole.body[t].op for t in terms}) > 1:
            continue  # all but the last may be alike
        inside |= links
        lanes = lanes_of(whole, tuple(terms), 1, (1,) * len(whole.params))
        if lanes is not None and lanes.rows and not any(row.own for row in lanes.rows):
            found[root] = start, len(terms), lanes
    if not found:
        return whole
    b = Builder(whole.params)
    values: list[int] = []
    for k, instr in enumerate(whole.body):
        if k in found:
            values.append(_fold(b, instr.op, values, *found[k]))
        else:
            values.append(b.emit(instr.op, instr.dtype, *(values[o] for o in instr.operands), attr=instr.attr))
    return b.finish([values[r] for r in whole.results])


def _chain(whole: Program, root: int, users: collections.Counter[int]) -> tuple[list[int], set[int]]:
    """The terms of a chain of one operation, the first ones first; and its links, which nobody else uses."""
    op, dtype = whole.body[root].op, whole.body[root].dtype
    terms: list[int] = []
    links: set[int] = set()
    at = root
    while True:
        x, y = whole.body[at].operands
        following = [o for o in (x, y) if (whole.body[o].op, whole.body[o].dtype) == (op, dtype) and users[o] == 1 and x != y]
        if not following:
            return [x, y, *reversed(terms)], links
        terms.append(y if following[0] == x else x)
        at = following[0]
        links.add(at)


def _fold(b: Builder, op: str, values: list[int], start: int | None, count: int, lanes: Lanes) -> int:
    """``start ⊕ term(0) ⊕ ... ⊕ term(count - 1)``."""
    dtype = lanes.program.result_dtypes[0]
    first = values[start] if start is not None else b.emit("const", dtype, attr=_neutral(op, dtype))
    outer = [values[v] for v in (*lanes.bases, *lanes.scalars)]
    body = Builder(["s32", dtype, *(b.dtype(v) for v in outer)])
    given = iter(range(2, 2 + len(outer)))
    args = []
    for row, t in zip(lanes.rows, lanes.program.params, strict=False):
        base = body.arg(next(given)) if row.based else body.const(0, "s32")
        kind, turn = body.dtype(base), body.arg(0)
        if row.offset:
            base = body.emit("add", kind, base, body.const(row.offset, kind))
        turn = turn if kind == "s32" else body.emit("convert", kind, turn)
        args.append(body.emit("load", t, body.emit("add", kind, base, turn), attr=row.number))
    (term,) = body.inline(lanes.program, [*args, *map(body.arg, given)])
    program = body.finish([body.emit(op, dtype, body.arg(1), term)])
    return b.emit("item", dtype, b.emit("fold", "tuple", first, *outer, attr=(count, program)), attr=0)


def _neutral(op: str, dtype: str) -> int:
    """Bits of the operation's identity."""
    t = numpy_dtype(dtype)
    if op in ("max", "min") and is_float(dtype):
        return _bits(-np.inf if op == "max" else np.inf, t)
    if op in ("max", "min") and dtype != "b1":
        return _bits(getattr(np.iinfo(t), "min" if op == "max" else "max"), t)
    if op in ("and", "min"):
        return _bits(-1 if t.kind == "i" else True if dtype == "b1" else np.iinfo(t).max, t)
    return _bits(1 if op == "mul" else 0, t)


def _bits(value: object, t: np.dtype) -> int:
    a = np.asarray(value).astype(t)
    return int(a.view(f"u{t.itemsize}")[()])
