"""``reduce`` of logaddexp along memory: a chunk's greatest exponent, then the sum of its exponentials relative to it, none of
which has to wait for the one before."""

from __future__ import annotations

import dataclasses

from llvmlite import ir

from ....ir.program import Builder, same_program
from ....operators.representation import log_sum
from ....specs.ordered import OrderedSpec
from ..llvm import expr
from ..llvm.build import I1, I64, PTR, alloca, i64, least, loop, pointer
from ..llvm.types import literal
from .rows import apply_op, is_expensive, load_state, store_state
from .scan_across import RANGE, STARTED

CHUNK = 4096
"""Elements that stay in the first-level cache from one fold to the next."""


def folds(spec: OrderedSpec) -> tuple[OrderedSpec, OrderedSpec] | None:
    """The maximum of f's exponents, and the sum of their exponentials below a level, which one more captured array holds. None
    for other operators, and where f is not to be evaluated twice."""
    t = spec.state[0]
    if spec.state not in (("f32",) * 2, ("f64",) * 2) or not same_program(spec.op, log_sum(t).op):
        return None
    if not spec.commutes or is_expensive(spec.f):
        return None
    f = Builder(spec.f.params)
    x, scale = f.inline(spec.f, [f.arg(k) for k in range(len(f.params))])
    level = f.emit("load", t, f.const(0, "s32"), attr=len(spec.uniforms))
    terms = f.finish([f.emit("mul", t, f.emit("exp", t, f.emit("sub", t, x, level)), scale)])
    most, total, finish = Builder((t, t)), Builder((t, t)), Builder((t,))
    exponents = dataclasses.replace(spec.f, results=spec.f.results[:1])
    plain = dataclasses.replace(
        spec, state=(t,), leaves=((t, 1),), identity=None, uniforms=(*spec.uniforms, t), finish=finish.finish([finish.arg(0)])
    )
    return (
        dataclasses.replace(plain, f=exponents, op=most.finish([most.emit("max", t, most.arg(0), most.arg(1))])),
        dataclasses.replace(plain, f=terms, op=total.finish([total.emit("add", t, total.arg(0), total.arg(1))])),
    )


def reduce_logaddexp(fn: ir.Function, spec: OrderedSpec, most: ir.Function, total: ir.Function) -> None:
    """Chunk after chunk. ``most`` and ``total`` are the functions of :func:`folds`."""
    b = ir.IRBuilder(fn.append_basic_block("entry"))
    arrays, uniforms, flags, range_, aggregate, progress = fn.args
    register = expr.register_type(spec.state[0], 1)
    part, level, found = alloca(b, I64, len(RANGE)), alloca(b, I64), alloca(b, I64)
    captured = [pointer(b, uniforms, k) for k in range(len(spec.uniforms))]
    own = alloca(b, PTR, len(captured) + 1)
    for k, p in enumerate([*captured, level]):
        b.store(p, b.gep(own, [i64(k)], source_etype=PTR))
    member = {name: b.gep(part, [i64(k)], source_etype=I64) for k, name in enumerate(RANGE)}
    for k, place in enumerate(member.values()):
        b.store(b.load(b.gep(range_, [i64(k)], source_etype=I64), typ=I64), place)
    lo, hi = (b.load(member[name], typ=I64) for name in ("lo", "hi"))
    started = alloca(b, I1)
    b.store(b.icmp_unsigned("!=", b.and_(progress, i64(STARTED)), i64(0)), started)
    with loop(b, lo, hi, CHUNK) as first:
        last = b.add(first, i64(CHUNK))
        b.store(first, member["lo"])
        b.store(least(b, last, hi), member["hi"])
        b.call(most, [arrays, own, flags, part, found, i64(0)])
        top = b.load(found, typ=register)
        infinite = literal(register, float("inf"))
        finite = b.and_(b.fcmp_ordered("<", top, infinite), b.fcmp_ordered(">", top, b.fneg(infinite)))
        b.store(b.select(finite, top, literal(register, 0.0)), level)  # of infinities and NaN their sum tells
        b.call(total, [arrays, own, flags, part, found, i64(0)])
        now = [top, b.load(found, typ=register)]
        with b.if_else(b.load(started, typ=I1)) as (then, otherwise):
            with then:
                before = load_state(b, spec, aggregate, i64(1), i64(0), 1)
                store_state(b, spec, apply_op(b, spec, captured, 1, before, now), aggregate, i64(1), i64(0))
            with otherwise:
                store_state(b, spec, now, aggregate, i64(1), i64(0))
        b.store(ir.Constant(I1, 1), started)
    b.ret(b.or_(progress, b.select(b.load(started, typ=I1), i64(STARTED), i64(0))))
