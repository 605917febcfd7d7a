"""A fold over rows of captured arrays, for each element: its turns side by side in vectors, which are folded at the end.

Elements come in vectors too, each with rows of its own: one after the other then, and their results are brought together.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from llvmlite import ir

from ....ir.program import CONTROL, Builder, Instr, Program, itemsize
from .types import alloca, from_memory, lanes, memory_type, numbers, splat, take, to_memory

VECTOR_BYTES = 64
"""Of the vectors along a row: two registers where these are narrower, whose additions do not wait for each other."""

UNROLLED = 256
"""Instructions that the turns written out may have."""

Run = Callable[[Program, Sequence[ir.Value], int], list[ir.Value]]
"""Emits a Program on vectors of a width."""

_I32, _I64 = ir.IntType(32), ir.IntType(64)


@dataclasses.dataclass(frozen=True)
class Fold:
    """``combine`` of two values; ``starts``: where each row starts, of the fold's invariants; ``term`` of what lies in the rows,
    the turn's number and the invariants."""

    combine: Program
    starts: Program
    uniforms: tuple[tuple[int, str], ...]
    term: Program


@functools.lru_cache(maxsize=512)
def parts(body: Program) -> Fold | None:
    """Of a fold's body; None where what it reads at a turn does not lie behind what it read at the turn before."""
    result = body.body[body.results[0]]
    carry = [k for k, i in enumerate(body.body) if i.op == "arg" and i.attr == 1]
    if len(carry) != 1 or result.operands.count(carry[0]) != 1 or sum(i.operands.count(carry[0]) for i in body.body) != 1:
        return None
    (last,) = (o for o in result.operands if o != carry[0])
    outer = body.params[2:]
    before = Builder(outer)
    turns: list[bool] = []  # does a value depend on the turn?
    same: list[int] = []  # what does not, in ``before``
    for i in body.body:
        turns.append((i.op == "arg" and i.attr == 0) or any(turns[o] for o in i.operands))
        if turns[-1] or i.op in ("item", *CONTROL) or (i.op == "arg" and i.attr == 1):
            same.append(-1)
        elif i.op == "arg":
            same.append(before.arg(i.attr - 2))
        else:
            same.append(before.emit(i.op, i.dtype, *(same[o] for o in i.operands), attr=i.attr))
    reads = [(k, i) for k, i in enumerate(body.body) if i.op == "load" and turns[k]]
    begins = [_begin(body, i, turns) for _, i in reads]
    if any(i.op in CONTROL for i in body.body) or None in begins:
        return None
    place = {k: number for number, (k, _) in enumerate(reads)}
    term = Builder((*(i.dtype for _, i in reads), "s32", *outer))
    made: list[int] = []
    for k, i in enumerate(body.body):
        if k in place:
            made.append(term.arg(place[k]))
        elif i.op == "arg" and i.attr != 1:
            made.append(term.arg(len(reads) + max(0, i.attr - 1)))
        elif i is result or i.op == "arg":
            made.append(-1)
        else:
            made.append(term.emit(i.op, i.dtype, *(made[o] for o in i.operands), attr=i.attr))
    t = result.dtype
    both = Builder((t, t))
    combine = both.finish([both.emit(result.op, t, both.arg(0), both.arg(1))])
    starts = before.finish([same[k] for k in begins if k is not None])
    return Fold(combine, starts, tuple((i.attr, i.dtype) for _, i in reads), term.finish([made[last]]))


def _begin(body: Program, load: Instr, turns: Sequence[bool]) -> int | None:
    """What a position adds to the turn's number."""
    at = body.body[load.operands[0]]
    if at.op != "add":
        return None
    for turn, begin in (at.operands, at.operands[::-1]):
        i = body.body[turn]
        plain = i if i.op != "convert" else body.body[i.operands[0]]
        if plain.op == "arg" and plain.attr == 0 and not turns[begin]:
            return begin
    return None


def emit(
    b: ir.IRBuilder, fold: Fold, n: int, start: ir.Value, invariants: Sequence[ir.Value], uniforms: Sequence[ir.Value], run: Run
) -> ir.Value:
    """The fold's result: a vector where its operands are vectors."""
    width = max(lanes(v.type) for v in (start, *invariants))
    begins = run(fold.starts, invariants, width)
    one = functools.partial(_one, b, fold, n, uniforms, run)
    if width == 1:
        return run(fold.combine, [start, one(begins, invariants)], 1)[0]
    dtype = fold.combine.params[0]
    kinds = [*fold.starts.result_dtypes, *fold.starts.params]
    stored = [(v, t, _spilled(b, v, t)) for v, t in zip([*begins, *invariants], kinds, strict=True)]
    out = alloca(b, memory_type(dtype), width)
    before, head, after = b.block, b.append_basic_block("element"), b.append_basic_block("elements")
    b.branch(head)
    b.position_at_end(head)
    k = b.phi(_I64)
    k.add_incoming(_I64(0), before)
    mine = [v if p is None else from_memory(b, b.load(_at(b, p, k, t), typ=memory_type(t)), t) for v, t, p in stored]
    total = one(mine[: len(begins)], mine[len(begins) :])
    b.store(to_memory(b, total, dtype), _at(b, out, k, dtype))
    following = b.add(k, _I64(1))
    k.add_incoming(following, b.block)
    b.cbranch(b.icmp_unsigned("<", following, _I64(width)), head, after)
    b.position_at_end(after)
    totals = from_memory(b, b.load(out, typ=ir.VectorType(memory_type(dtype), width), align=itemsize(dtype)), dtype)
    return run(fold.combine, [splat(b, start, width), totals], width)[0]


def _spilled(b: ir.IRBuilder, v: ir.Value, dtype: str) -> ir.Value | None:
    """Where a vector's elements are in memory; None for what is the same for all."""
    if lanes(v.type) == 1:
        return None
    p = alloca(b, memory_type(dtype), lanes(v.type))
    b.store(to_memory(b, v, dtype), p, align=itemsize(dtype))
    return p


def _at(b: ir.IRBuilder, p: ir.Value, k: ir.Value, dtype: str) -> ir.Value:
    return b.gep(p, [k], source_etype=memory_type(dtype))


def _one(
    b: ir.IRBuilder,
    fold: Fold,
    n: int,
    uniforms: Sequence[ir.Value],
    run: Run,
    begins: Sequence[ir.Value],
    invariants: Sequence[ir.Value],
) -> ir.Value:
    """One element's terms, folded."""
    dtype = fold.combine.params[0]
    rows = [b.gep(uniforms[u], [begin], source_etype=memory_type(t)) for (u, t), begin in zip(fold.uniforms, begins, strict=True)]

    def terms(first: ir.Value, width: int) -> ir.Value:
        given = []
        for row, (_, t) in zip(rows, fold.uniforms, strict=True):
            kind = memory_type(t) if width == 1 else ir.VectorType(memory_type(t), width)
            given.append(from_memory(b, b.load(_at(b, row, first, t), typ=kind, align=itemsize(t)), t))
        turn = b.trunc(first, _I32)
        if width > 1:
            turn = b.add(splat(b, turn, width), numbers(_I32, range(width)))
        return run(fold.term, [*given, turn, *invariants], width)[0]

    def combined(x: ir.Value, y: ir.Value) -> ir.Value:
        return run(fold.combine, [x, y], lanes(x.type))[0]

    def folded(x: ir.Value) -> ir.Value:
        while lanes(x.type) > 2:
            half = lanes(x.type) // 2
            x = combined(take(b, x, x, range(half)), take(b, x, x, range(half, 2 * half)))
        return x if lanes(x.type) == 1 else combined(*(b.extract_element(x, _I32(k)) for k in range(2)))

    widest = max(itemsize(t) for t in (dtype, *(t for _, t in fold.uniforms)))
    width = VECTOR_BYTES // widest
    while width > n:
        width //= 2
    total = terms(_I64(0), width)
    steps, at = n // width, n // width * width
    if (steps - 1) * len(fold.term.body) <= UNROLLED:
        for k in range(1, steps):
            total = combined(total, terms(_I64(k * width), width))
    else:
        before, head, after = b.block, b.append_basic_block("terms"), b.append_basic_block("folded")
        b.branch(head)
        b.position_at_end(head)
        k, carry = b.phi(_I64), b.phi(total.type)
        k.add_incoming(_I64(width), before)
        carry.add_incoming(total, before)
        total = combined(carry, terms(k, width))
        following = b.add(k, _I64(width))
        k.add_incoming(following, b.block)
        carry.add_incoming(total, b.block)
        b.cbranch(b.icmp_unsigned("<", following, _I64(at)), head, after)
        b.position_at_end(after)
    total = folded(total)
    while at < n:  # what is left, by ever narrower vectors
        while width > n - at:
            width //= 2
        total = combined(total, folded(terms(_I64(at), width)))
        at += width
    return total
