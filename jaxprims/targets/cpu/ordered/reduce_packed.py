"""``reduce`` of a packed maximum (argmax and its position, frontend/representation.py): half of each word, as a rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from ....ir.program import Builder, Program
from ....specs.ordered import OrderedSpec
from ..llvm.build import I32, I64, PTR, alloca, declare, i64, least, loop
from .rows import members, part_of

CHUNK, CHUNKS = 512, 16
"""Elements of a chunk; and how many of them are looked at, in the first-level cache, before one is chosen."""


def high_halves(spec: OrderedSpec) -> OrderedSpec | None:
    """Of a maximum of s64 whose high half f computes as an s32 (argmax and its position, frontend/representation.py): the maximum
    of the high halves, half the work."""
    if not spec.commutes or spec.state != ("s64",) or sorted(i.op for i in spec.op.body) != ["arg", "arg", "max"]:
        return None
    body = spec.f.body
    joined = body[spec.f.results[0]]
    halves = [body[o] for o in joined.operands]
    if joined.op != "or" or [h.op for h in halves] != ["shift_left", "convert"]:
        return None
    high, by, low = *(body[o] for o in halves[0].operands), body[halves[1].operands[0]]
    if (by.op, by.attr) != ("const", 32) or high.op != "convert" or (body[high.operands[0]].dtype, low.dtype) != ("s32", "u32"):
        return None
    f, op, finish = Builder(spec.f.params), Builder(("s32", "s32")), Builder(("s32",))
    key = f.inline(Program(spec.f.params, body, high.operands), f.args())
    return dataclasses.replace(
        spec,
        state=("s32",),
        leaves=(("s32", 1),),
        identity=None,
        f=f.finish(key),
        op=op.finish([op.emit("max", "s32", op.arg(0), op.arg(1))]),
        finish=finish.finish([finish.arg(0)]),
    )


def reduce_packed(module: ir.Module, whole: ir.Function, high: ir.Function) -> None:
    """The high halves' maximum by chunks; then whole words, of those chunks alone that reach the largest."""
    b, args = declare(module, "reduce", [PTR] * 5 + [I64], I64)
    arrays, uniforms, flags, range_, aggregate, progress = args
    (part, member), best, most, done = part_of(b, range_), alloca(b, I64), alloca(b, I64, CHUNKS), alloca(b, I64)
    lo, hi = members(b, range_, "lo", "hi")
    with b.if_then(b.icmp_signed("<=", b.sub(hi, lo), i64(2 * CHUNK))):  # too few for two passes
        b.ret(b.call(whole, args))
    b.store(progress, done)

    with loop(b, lo, hi, CHUNK * CHUNKS) as start:
        stop = least(b, b.add(start, i64(CHUNK * CHUNKS)), hi)

        @contextmanager
        def chunks() -> Iterator[ir.Value]:
            with loop(b, start, stop, CHUNK) as first:
                b.store(first, member["lo"])
                b.store(least(b, b.add(first, i64(CHUNK)), stop), member["hi"])
                yield b.gep(most, [b.sdiv(b.sub(first, start), i64(CHUNK))], source_etype=I64)

        b.store(i64(0), best)
        with chunks() as mine:
            b.call(high, [arrays, uniforms, flags, part, mine, i64(0)])
            now = b.load(mine, typ=I32)
            largest = b.icmp_signed(">", now, b.load(best, typ=I32))
            b.store(
                b.select(b.or_(largest, b.icmp_signed("==", b.load(member["lo"], typ=I64), start)), now, b.load(best, typ=I32)),
                best,
            )
        with chunks() as mine, b.if_then(b.icmp_signed(">=", b.load(mine, typ=I32), b.load(best, typ=I32))):
            b.store(b.call(whole, [arrays, uniforms, flags, part, aggregate, b.load(done, typ=I64)]), done)
    b.ret(b.load(done, typ=I64))
