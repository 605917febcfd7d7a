"""``reduce`` of logaddexp along memory: a chunk's greatest exponent, then the sum of its exponentials relative to it, none of
which has to wait for the one before. So are other operators that keep an extreme and sums relative to it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

from llvmlite import ir

from ....ir.program import Builder, from_bits, same_program
from ....operators.representation import log_sum
from ....operators.traced import NO_PROGRAM
from ....operators.weighted import Weighted, weighted
from ....specs.ordered import OrderedSpec
from ..llvm import expr
from ..llvm.build import I1, I64, PTR, chosen, declare, i64, least, loop
from ..llvm.elementary import Kit, exp_below
from ..llvm.types import alloca, literal, register_type
from ..llvm.vectors import Variable
from .rows import STARTED, apply_op, has, is_expensive, load_state, members, part_of, store_state, uniforms_of

State = list[ir.Value]
"""A value for each slot."""

CHUNK = 4096
"""Elements that stay in the first-level cache from one fold to the next."""


@dataclasses.dataclass(frozen=True)
class Folds:
    """The extreme of f's slot ``top``, and what is summed relative to a level, which one more captured array holds. ``own``: is a
    level that is not finite left to the operator itself? ``ones``: are exponentials summed, which then tell nothing?"""

    top: int
    most: OrderedSpec
    total: OrderedSpec
    own: bool
    ones: bool


def folds(spec: OrderedSpec) -> Folds | None:
    """None for other operators, and where f is not to be evaluated twice; of segments, which may be short, logaddexp's alone."""
    t, n = spec.state[0], len(spec.state)
    if set(spec.state) not in ({"f32"}, {"f64"}) or not spec.commutes or is_expensive(spec.f):
        return None
    logarithm = is_log_sum(spec)
    found = _LOG_SUM if logarithm else weighted(spec.op) if spec.kind == "reduce" else None
    if found is None:
        return None
    f = Builder(spec.f.params)
    values = f.inline(spec.f, f.args())
    x, level = values.pop(found.top), f.emit("load", t, f.const(0, "s32"), attr=len(spec.uniforms))
    ones = of_ones(spec)
    exp = "exp_below" if ones else "exp"
    scale = f.emit(exp, t, f.emit("sub", t, x, level)) if logarithm else f.inline(found.weight, [x, level])[0]
    terms = f.finish([f.emit("mul", t, scale, v) for v in values])
    exponents = dataclasses.replace(spec.f, results=spec.f.results[found.top : found.top + 1])
    uniforms = (*spec.uniforms, t)
    most = dataclasses.replace(_apart(spec, 1, found.name), f=exponents, uniforms=uniforms)
    total = dataclasses.replace(_apart(spec, n - 1, "add"), f=terms, uniforms=uniforms)
    return Folds(found.top, most, total, not logarithm, ones)


_LOG_SUM = Weighted(0, "max", NO_PROGRAM)


def is_log_sum(spec: OrderedSpec) -> bool:
    return spec.state in (("f32",) * 2, ("f64",) * 2) and spec.commutes and same_program(spec.op, log_sum(spec.state[0]).op)


def of_ones(spec: OrderedSpec) -> bool:
    """logaddexp of nothing but exponents, of whose sums relative to an infinite greatest nobody hears?"""
    if not is_log_sum(spec) or spec.identity is None:
        return False
    one, finish = spec.f.body[spec.f.results[-1]], log_sum(spec.leaves[0][0]).finish
    finished = finish is not None and same_program(spec.finish, finish)
    return finished and one.op == "const" and from_bits(one.attr, one.dtype) == 1


def is_finite(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    infinite = literal(x.type, math.inf)
    return b.and_(b.fcmp_ordered("<", x, infinite), b.fcmp_ordered(">", x, b.fneg(infinite)))


def log_sums_at_once(b: ir.IRBuilder, spec: OrderedSpec, width: int, state: State, elements: Sequence[State]) -> State:
    """The state with several elements, :func:`of_ones`: exponentials relative to the greatest exponent of all. Where that is
    infinite or NaN it is the result, whatever the sum, which is 1 there."""
    t, (before, total) = spec.state[0], state
    exponents = [x for x, _ in elements]
    most = Builder((t,) * (1 + len(exponents)))
    greatest = most.finish([functools.reduce(lambda x, y: most.emit("max", t, x, y), most.args())])
    (top,) = expr.emit(b, greatest, [before, *exponents], [], width)
    k = Kit(b, top.type)
    terms = [k.mul(total, exp_below(b, k.sub(before, top))), *(exp_below(b, k.sub(x, top)) for x in exponents)]
    while len(terms) > 1:
        terms = [*map(k.add, terms[::2], terms[1::2]), *terms[len(terms) & -2 :]]
    return [top, k.where(k.less(k.abs(top), math.inf), terms[0], 1.0)]


def _apart(spec: OrderedSpec, n: int, name: str) -> OrderedSpec:
    """With n slots, each combined by itself."""
    t = spec.state[0]
    op, finish = Builder((t,) * (2 * n)), Builder((t,) * n)
    return dataclasses.replace(
        spec,
        state=(t,) * n,
        leaves=((t, 1),) * n,
        identity=None,
        op=op.finish([op.emit(name, t, op.arg(k), op.arg(n + k)) for k in range(n)]),
        finish=finish.finish(finish.args()),
    )


def reduce_logaddexp(module: ir.Module, spec: OrderedSpec, two: Folds, functions: Sequence[ir.Function]) -> None:
    """Chunk after chunk. ``functions``: most and total of ``two``; the operator's own fold, if that is wanted."""
    most, total, *own = functions
    b, (arrays, uniforms, flags, range_, aggregate, progress) = declare(module, "reduce", [PTR] * 5 + [I64], I64)
    register = register_type(spec.state[0], 1)
    (part, member), level, found = part_of(b, range_), alloca(b, I64), alloca(b, I64, len(spec.state))
    captured = uniforms_of(b, spec, uniforms)
    with_level = alloca(b, PTR, len(captured) + 1)
    for k, p in enumerate([*captured, level]):
        b.store(p, b.gep(with_level, [i64(k)], source_etype=PTR))
    lo, hi = members(b, range_, "lo", "hi")
    started = Variable(b, I1, has(b, progress, STARTED))
    with loop(b, lo, hi, CHUNK) as first:
        last = b.add(first, i64(CHUNK))
        b.store(first, member["lo"])
        b.store(least(b, last, hi), member["hi"])
        b.call(most, [arrays, with_level, flags, part, found, i64(0)])
        if own:  # relative to what came before, too: of a chunk of nothing but -inf the operator may make NaN
            with b.if_then(started.get()):
                before = load_state(b, spec, aggregate, i64(1), i64(0), 1)[two.top]
                b.store(apply_op(b, two.most, captured, 1, [before], [b.load(found, typ=register)])[0], found)
        top = b.load(found, typ=register)
        finite = is_finite(b, top)
        b.store(b.select(finite, top, literal(register, 0.0)), level)  # or the sum tells, or the operator, or all is in top

        def relative() -> None:
            b.call(total, [arrays, with_level, flags, part, found, i64(0)])
            sums = load_state(b, two.total, found, i64(1), i64(0), 1)
            if two.ones:
                sums = [b.select(finite, sums[0], literal(register, 1.0))]
            sums.insert(two.top, top)
            store_state(b, spec, sums, found, i64(1), i64(0))

        if own:
            with b.if_else(finite) as (then, otherwise):
                with then:
                    relative()
                with otherwise:
                    b.call(own[0], [arrays, uniforms, flags, part, found, i64(0)])
        else:
            relative()
        now = load_state(b, spec, found, i64(1), i64(0), 1)

        def joined() -> list[ir.Value]:
            return apply_op(b, spec, captured, 1, load_state(b, spec, aggregate, i64(1), i64(0), 1), now)

        store_state(b, spec, chosen(b, started.get(), joined, lambda: now), aggregate, i64(1), i64(0))
        started.put(1)
    b.ret(b.or_(progress, b.select(started.get(), i64(STARTED), i64(0))))
