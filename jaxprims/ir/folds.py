"""Folds written out, as sums over an axis and products of vectors become in a Program: rolled up again where they read rows of
captured arrays. A target may take a ``fold``'s turns in any order, so with vectors along the rows."""

from __future__ import annotations

import collections
import functools
from typing import Any

from .lanes import Lanes, lanes_of
from .program import FOLDED, NEUTRAL, Builder, Program, neutral_bits

FEWEST = 8
"""Terms of a fold that is worth it."""


@functools.lru_cache(maxsize=512)
def rolled(whole: Program) -> Program:
    """The Program with such chains as ``fold`` instructions."""
    users = collections.Counter(o for i in whole.body for o in i.operands) + collections.Counter(whole.results)
    inside = set[int]()
    found: dict[int, tuple[int | None, int, Lanes]] = {}
    for root in range(len(whole.body) - 1, -1, -1):
        if whole.body[root].op in FOLDED and root not in inside:
            links, folds = _folds(whole, root, users)
            inside |= links
            found |= folds
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


def _folds(whole: Program, root: int, users: collections.Counter[int]) -> tuple[set[int], dict[int, Any]]:
    """The links of the chain that ends in ``root``, and its folds: the value that each is, its start (a value, or None), its
    number of terms, their lanes."""
    links, terms = _chain(whole, root, users)
    kinds = [whole.body[t].op for t in terms]
    folds: dict[int, Any] = {}
    at = 0
    while at < len(terms):  # each run of terms that are made by one operation
        end = at + 1
        while end < len(terms) and kinds[end] == kinds[at]:
            end += 1
        if end - at >= FEWEST - 1 and at < len(links):
            rest = None if end == len(terms) else terms[-1] if end == len(links) else links[end]
            starts = [(rest, terms[at:end])]
            nested = end < len(links) and kinds[at] == whole.body[root].op  # then the first term looks like a link of the chain
            if nested and kinds[end] == "const":
                starts = [(terms[end], [*terms[at:end], links[end + 1]])] if end + 1 < len(links) else starts
            elif nested:
                starts = [(None, [*terms[at:end], links[end]]), *starts]
            for start, those in starts:
                lanes = lanes_of(whole, tuple(reversed(those)), 1, (1,) * len(whole.params)) if len(those) >= FEWEST else None
                if lanes is not None and lanes.rows and not any(row.own or row.each > 1 for row in lanes.rows):
                    folds[links[at]] = start, len(those), lanes
                    break
            if nested:
                return set(links[: end + (kinds[end] == "const")]), folds
        at = end
    return set(links), folds


def _chain(whole: Program, root: int, users: collections.Counter[int]) -> tuple[list[int], list[int]]:
    """Its links, each but the root used by the one before alone, and its terms, from the last to the first: a link is the next
    link and its term, the last one its term and one more."""
    op, dtype = whole.body[root].op, whole.body[root].dtype
    links, terms = [root], list[int]()
    while True:
        x, y = whole.body[links[-1]].operands
        following = [o for o in (x, y) if (whole.body[o].op, whole.body[o].dtype) == (op, dtype) and users[o] == 1 and x != y]
        if not following:
            return links, [*terms, *((x, y) if whole.body[y].op == "const" else (y, x))]
        terms.append(y if following[0] == x else x)
        links.append(following[0])


def _fold(b: Builder, op: str, values: list[int], start: int | None, count: int, lanes: Lanes) -> int:
    """``start ⊕ term(0) ⊕ ... ⊕ term(count - 1)``."""
    dtype = lanes.program.result_dtypes[0]
    neutral = neutral_bits(-0.0 if op == "add" else NEUTRAL[op], dtype)
    first = values[start] if start is not None else b.emit("const", dtype, attr=neutral)
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
