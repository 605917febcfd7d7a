"""``reduce`` of a packed maximum (argmax and its position, operators/packed.py): half of each word, as a rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import ir

from ....ir.program import Builder, Program
from ....specs.ordered import OrderedSpec
from ..llvm.build import I32, I64, PTR, declare, i64, least, loop
from ..llvm.types import alloca
from ..llvm.vectors import Variable
from .rows import members, part_of

CHUNK, CHUNKS = 512, 16
"""Elements of a chunk; and how many of them are looked at, in the first-level cache, before one is chosen."""


def halves(spec: OrderedSpec) -> OrderedSpec | None:
    """Of a maximum of s64 whose halves f computes as an s32 and a u32 (argmax and its position, operators/packed.py): the largest
    pair of two s32, the low half's first bit turned."""
    if not spec.commutes or spec.state != ("s64",) or sorted(i.op for i in spec.op.body) != ["arg", "arg", "max"]:
        return None
    body = spec.f.body
    joined = body[spec.f.results[0]]
    parts = [body[o] for o in joined.operands]
    if joined.op != "or" or [p.op for p in parts] != ["shift_left", "convert"]:
        return None
    high, by, low = *(body[o] for o in parts[0].operands), body[parts[1].operands[0]]
    if (by.op, by.attr) != ("const", 32) or high.op != "convert" or (body[high.operands[0]].dtype, low.dtype) != ("s32", "u32"):
        return None
    f, op = Builder(spec.f.params), Builder(("s32",) * 4)
    made = f.inline(Program(spec.f.params, body, (high.operands[0], parts[1].operands[0])), f.args())
    turned = f.emit("xor", "s32", f.emit("bitcast", "s32", made[1]), f.const(-(2**31), "s32"))
    a, i, b, j = op.args()
    behind = op.emit("and", "b1", op.emit("eq", "b1", a, b), op.emit("gt", "b1", i, j))
    first = op.emit("or", "b1", op.emit("gt", "b1", a, b), behind)
    larger = op.finish([op.emit("max", "s32", a, b), op.emit("select", "s32", first, i, j)])
    return _folded(spec, f.finish([made[0], turned]), larger)


def _folded(spec: OrderedSpec, f: Program, op: Program) -> OrderedSpec:
    """Of what f makes instead."""
    finish = Builder(op.result_dtypes)
    leaves = tuple((t, 1) for t in op.result_dtypes)
    unchanged = finish.finish(finish.args())
    return dataclasses.replace(spec, state=op.result_dtypes, leaves=leaves, identity=None, f=f, op=op, finish=unchanged)


def high_halves(pairs: OrderedSpec) -> OrderedSpec:
    """The maximum of the high halves, half the work."""
    f, op = Builder(pairs.f.params), Builder(("s32", "s32"))
    key = f.inline(pairs.f, f.args())[0]
    return _folded(pairs, f.finish([key]), op.finish([op.emit("max", "s32", *op.args())]))


def reduce_packed(module: ir.Module, whole: ir.Function, high: ir.Function) -> None:
    """The high halves' maximum by chunks; then whole words, of those chunks alone that reach the largest."""
    b, args = declare(module, "reduce", [PTR] * 5 + [I64], I64)
    arrays, uniforms, flags, range_, aggregate, progress = args
    (part, member), best, most, done = part_of(b, range_), Variable(b, I32), alloca(b, I64, CHUNKS), Variable(b, I64)
    lo, hi = members(b, range_, "lo", "hi")
    with b.if_then(b.icmp_signed("<=", b.sub(hi, lo), i64(2 * CHUNK))):  # too few for two passes
        b.ret(b.call(whole, args))
    done.put(progress)

    with loop(b, lo, hi, CHUNK * CHUNKS) as start:
        stop = least(b, b.add(start, i64(CHUNK * CHUNKS)), hi)

        @contextmanager
        def chunks() -> Iterator[ir.Value]:
            with loop(b, start, stop, CHUNK) as first:
                b.store(first, member["lo"])
                b.store(least(b, b.add(first, i64(CHUNK)), stop), member["hi"])
                yield b.gep(most, [b.sdiv(b.sub(first, start), i64(CHUNK))], source_etype=I64)

        best.put(0)
        with chunks() as mine:
            b.call(high, [arrays, uniforms, flags, part, mine, i64(0)])
            now = b.load(mine, typ=I32)
            largest = b.icmp_signed(">", now, best.get())
            begins = b.icmp_signed("==", b.load(member["lo"], typ=I64), start)
            best.put(b.select(b.or_(largest, begins), now, best.get()))
        with chunks() as mine, b.if_then(b.icmp_signed(">=", b.load(mine, typ=I32), best.get())):
            done.put(b.call(whole, [arrays, uniforms, flags, part, aggregate, done.get()]))
    b.ret(done.get())
