"""The expression table: Program -> LLVM IR, on scalars or on vectors of any width.

A value that is the same in every lane stays a scalar until it meets one that is not, so loop counters, constants and loads
from captured arrays by them cost what they would in scalar code, and leave loops where they do not change.

Arithmetic is XLA's, with no fast-math flag anywhere. Nothing in a lane nobody wants can trap, loop for ever or read out of range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from llvmlite import ir

from ..frontend.program import CONTROL, Instr, Program, is_float, is_signed, itemsize
from .llvm_engine import target
from .llvm_math import MATH
from .llvm_types import HALVES as HALVES
from .llvm_types import constant as constant
from .llvm_types import from_memory as from_memory
from .llvm_types import intrinsic, lanes, literal, rounded, scalar_of, splat, with_scalar
from .llvm_types import memory_type as memory_type
from .llvm_types import register_type as register_type
from .llvm_types import to_memory as to_memory

Emitter = Callable[..., ir.Value]
"""(builder, operands' dtype, operands...) -> result."""


def _by_kind(pred: Emitter | None, integer: Emitter | None, floating: Emitter | None, unsigned: Emitter | None = None) -> Emitter:
    """One operation, emitted by a builder's method for each kind of dtype."""

    def emit(b: ir.IRBuilder, dtype: str, *args: ir.Value) -> ir.Value:
        if is_float(dtype):
            method = floating
        elif dtype == "b1":
            method = pred
        else:
            method = integer if is_signed(dtype) else unsigned or integer
        if method is None:
            raise TypeError(f"no such operation on {dtype}")
        return method(b, *args)

    return emit


def _intrinsic(name: str, *flags: int) -> Emitter:
    def emit(b: ir.IRBuilder, *args: ir.Value) -> ir.Value:
        return intrinsic(b, name, args[0].type, *args, *(ir.IntType(1)(f) for f in flags))

    return emit


def _compare(op: str) -> Emitter:
    def emit(b: ir.IRBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
        if is_float(dtype):
            return (b.fcmp_unordered if op == "!=" else b.fcmp_ordered)(op, x, y)
        return (b.icmp_signed if is_signed(dtype) else b.icmp_unsigned)(op, x, y)

    return emit


def _math(name: str) -> Emitter:
    return lambda b, dtype, *args: MATH[name](b, *args)


def _bits(t: ir.Type) -> int:
    return int(scalar_of(t).width)


def _constant_lanes(x: ir.Value) -> list[int] | None:
    """The lanes' values of an integer constant, else None."""
    if not isinstance(x, ir.Constant):
        return None
    values = x.constant if isinstance(x.constant, list) else [x.constant]
    return [v.constant if isinstance(v, ir.Constant) else v for v in values]


def _quotient(b: ir.IRBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    """x / y towards zero for y that neither is 0 nor overflows."""
    signed = is_signed(dtype)
    if lanes(x.type) == 1 or _bits(x.type) == 64 or _constant_lanes(y) is not None:
        return (b.sdiv if signed else b.udiv)(x, y)
    # vectors have no integer division, but a float with twice the bits truncates to the exact quotient
    t = with_scalar(x.type, ir.DoubleType() if _bits(x.type) == 32 else ir.FloatType())
    convert, back = (b.sitofp, b.fptosi) if signed else (b.uitofp, b.fptoui)
    return back(b.fdiv(convert(x, t), convert(y, t)), x.type)


def _divide(b: ir.IRBuilder, dtype: str, x: ir.Value, y: ir.Value, remainder: bool) -> ir.Value:
    t, bits = x.type, _bits(x.type)
    known = _constant_lanes(y)
    safe, by_zero = y, None
    if known is None or 0 in known or -1 in known or (1 << bits) - 1 in known:
        by_zero = b.icmp_unsigned("==", y, literal(t, 0))
        unsafe = by_zero
        if is_signed(dtype):
            lowest = b.icmp_unsigned("==", x, literal(t, -(1 << (bits - 1))))
            unsafe = b.or_(by_zero, b.and_(lowest, b.icmp_unsigned("==", y, literal(t, -1))))
        safe = b.select(unsafe, literal(t, 1), y)
    q = _quotient(b, dtype, x, safe)
    result = b.sub(x, b.mul(q, safe)) if remainder else q
    if by_zero is None:
        return result
    return b.select(by_zero, x if remainder else literal(t, -1), result)


def _div(b: ir.IRBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.fdiv(x, y) if is_float(dtype) else _divide(b, dtype, x, y, remainder=False)


def _rem(b: ir.IRBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.frem(x, y) if is_float(dtype) else _divide(b, dtype, x, y, remainder=True)


def _shift(method: Emitter) -> Emitter:
    def emit(b: ir.IRBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
        inside = b.icmp_unsigned("<", y, literal(y.type, _bits(y.type)))
        return b.select(inside, method(b, x, y), literal(x.type, 0))

    return emit


def _shift_right_arithmetic(b: ir.IRBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.ashr(x, intrinsic(b, "umin", y.type, y, literal(y.type, _bits(y.type) - 1)))


def _abs(b: ir.IRBuilder, dtype: str, x: ir.Value) -> ir.Value:
    if is_float(dtype):
        return intrinsic(b, "fabs", x.type, x)
    return _intrinsic("abs", 0)(b, x) if is_signed(dtype) else x


def _sign(b: ir.IRBuilder, dtype: str, x: ir.Value) -> ir.Value:
    one, zero = literal(x.type, 1), literal(x.type, 0)
    if is_float(dtype):  # 0, -0 and NaN are their own sign; a denormal's is 0 where denormals are flushed
        size = b.select(b.fcmp_ordered("!=", x, zero), one, zero)
        return b.select(b.fcmp_unordered("uno", x, x), x, intrinsic(b, "copysign", x.type, size, x))
    if is_signed(dtype):
        return intrinsic(b, "smax", x.type, intrinsic(b, "smin", x.type, x, one), literal(x.type, -1))
    return intrinsic(b, "umin", x.type, x, one)


def _is_finite(b: ir.IRBuilder, dtype: str, x: ir.Value) -> ir.Value:
    return b.fcmp_ordered("<", intrinsic(b, "fabs", x.type, x), literal(x.type, math.inf))


def _nextafter(b: ir.IRBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
    from_bits, to_bits = _to_bits(b, x, dtype), _to_bits(b, y, dtype)
    t = from_bits.type
    top = 8 * itemsize(dtype) - 1
    one, sign, size = literal(t, 1), literal(t, 1 << top), literal(t, (1 << top) - 1)
    from_size, to_size = b.and_(from_bits, size), b.and_(to_bits, size)
    turns = b.icmp_unsigned("!=", b.and_(from_bits, sign), b.and_(to_bits, sign))
    inward = b.or_(turns, b.icmp_unsigned(">", from_size, to_size))
    step = b.add(from_bits, b.select(inward, literal(t, -1), one))
    smallest = b.or_(b.and_(to_bits, sign), one)
    moved = b.select(b.icmp_unsigned("==", from_size, literal(t, 0)), smallest, step)
    nan = b.fcmp_unordered("uno", x, y)
    there = b.select(b.fcmp_ordered("==", x, y), y, _from_bits(b, moved, dtype))
    return b.select(nan, literal(x.type, math.nan), there)


def _to_bits(b: ir.IRBuilder, x: ir.Value, dtype: str) -> ir.Value:
    """The memory's bits as an integer."""
    stored = to_memory(b, x, dtype)
    return b.bitcast(stored, with_scalar(x.type, ir.IntType(8 * itemsize(dtype))))


def _from_bits(b: ir.IRBuilder, bits: ir.Value, dtype: str) -> ir.Value:
    return from_memory(b, b.bitcast(bits, with_scalar(bits.type, memory_type(dtype))), dtype)


def bitcast(b: ir.IRBuilder, x: ir.Value, source: str, dtype: str) -> ir.Value:
    """The same bits as another dtype of the same size."""
    return _from_bits(b, _to_bits(b, x, source), dtype)


def convert(b: ir.IRBuilder, x: ir.Value, source: str, dtype: str) -> ir.Value:
    """XLA's numeric cast: to integers it saturates and NaN gives 0; to b1 it asks for != 0."""
    t = register_type(dtype, lanes(x.type))
    if source == dtype:
        return x
    if dtype == "b1":
        return _compare("!=")(b, source, x, literal(x.type, 0))
    if is_float(source):
        if is_float(dtype):
            return rounded(b, _resize_float(b, x, t), dtype)
        return _saturate(b, x, dtype, t)
    if is_float(dtype):
        return rounded(b, (b.sitofp if is_signed(source) else b.uitofp)(x, t), dtype)
    if _bits(t) < _bits(x.type):
        return b.trunc(x, t)
    if _bits(t) == _bits(x.type):
        return x
    return (b.sext if is_signed(source) else b.zext)(x, t)


def _saturate(b: ir.IRBuilder, x: ir.Value, dtype: str, t: ir.Type) -> ir.Value:
    """A float to the nearest integer towards zero that ``t`` has; NaN to 0."""
    signed = is_signed(dtype)
    if not target().x86:
        return intrinsic(b, "fptosi.sat" if signed else "fptoui.sat", t, x, overloads=(t, x.type))
    # LLVM would take an x86 vector apart for its own saturating conversion
    bits = _bits(t)
    low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)
    lowest, beyond, zero = (literal(x.type, float(v)) for v in (low, high, 0))
    raised = b.select(b.fcmp_ordered("<", x, lowest), lowest, x)
    inside = b.select(b.fcmp_ordered("<", raised, beyond), raised, zero)
    whole = (b.fptosi if signed else b.fptoui)(inside, t)
    return b.select(b.fcmp_ordered(">=", x, beyond), literal(t, high - 1), whole)


def _resize_float(b: ir.IRBuilder, x: ir.Value, t: ir.Type) -> ir.Value:
    if x.type == t:
        return x
    return b.fpext(x, t) if scalar_of(t) == ir.DoubleType() else b.fptrunc(x, t)


B = ir.IRBuilder
TABLE: dict[str, Emitter] = {
    **{name: _math(name) for name in MATH},
    "add": _by_kind(B.or_, B.add, B.fadd),
    "sub": _by_kind(None, B.sub, B.fsub),
    "mul": _by_kind(B.and_, B.mul, B.fmul),
    "div": _div,
    "rem": _rem,
    "max": _by_kind(B.or_, _intrinsic("smax"), _intrinsic("maximum"), _intrinsic("umax")),
    "min": _by_kind(B.and_, _intrinsic("smin"), _intrinsic("minimum"), _intrinsic("umin")),
    "and": _by_kind(B.and_, B.and_, None),
    "or": _by_kind(B.or_, B.or_, None),
    "xor": _by_kind(B.xor, B.xor, None),
    "not": _by_kind(B.not_, B.not_, None),
    "neg": _by_kind(None, B.neg, B.fneg),
    "abs": _abs,
    "sign": _sign,
    "shift_left": _shift(B.shl),
    "shift_right_logical": _shift(B.lshr),
    "shift_right_arithmetic": _shift_right_arithmetic,
    "population_count": _by_kind(None, _intrinsic("ctpop"), None),
    "clz": _by_kind(None, _intrinsic("ctlz", 0), None),
    "floor": _by_kind(None, None, _intrinsic("floor")),
    "ceil": _by_kind(None, None, _intrinsic("ceil")),
    "round_away": _by_kind(None, None, _intrinsic("round")),
    "round_even": _by_kind(None, None, _intrinsic("roundeven")),
    "is_finite": _is_finite,
    "nextafter": _nextafter,
    "eq": _compare("=="),
    "ne": _compare("!="),
    "lt": _compare("<"),
    "le": _compare("<="),
    "gt": _compare(">"),
    "ge": _compare(">="),
}
"""How each operation is emitted, but those that know more than their operands: ``arg const load select convert bitcast``
and control flow."""

EXACT = frozenset(["max", "min", "neg", "abs", "sign", "floor", "ceil", "round_away", "round_even", "nextafter"])
"""What needs no rounding in f16 and bf16."""

UNROLLED = 256
"""Instructions that a loop's unrolled body may have."""

_DEAR = CONTROL | {"div", "rem", "load"} | set(MATH)


def emit(
    builder: ir.IRBuilder, program: Program, args: Sequence[ir.Value], uniforms: Sequence[ir.Value], width: int
) -> list[ir.Value]:
    """Emits ``program`` at the builder's position, which is then at the end of the block where the results are known.

    ``args``: values in registers, one for each parameter (``register_type(dtype, width)``); ``uniforms``: pointers to the
    captured arrays' elements. Returns the results in registers. Every lane must hold values that the program's loops end on.
    """
    results = _Emission(builder, uniforms, width).program(program, args, None)
    return [splat(builder, r, width) for r in results]


class _Emission:
    """The emission of one Program with those nested in it. ``mask`` is the lanes that are wanted (None: all of them)."""

    def __init__(self, builder: ir.IRBuilder, uniforms: Sequence[ir.Value], width: int):
        self.b, self.uniforms, self.width = builder, uniforms, width

    def program(self, program: Program, args: Sequence[ir.Value], mask: ir.Value | None) -> list[ir.Value]:
        values: list[ir.Value] = []
        tuples: dict[int, list[ir.Value]] = {}
        for k, instr in enumerate(program.body):
            if instr.op in CONTROL:
                tuples[k] = getattr(self, f"_{instr.op}")(instr, [values[o] for o in instr.operands], mask)
                values.append(None)
            elif instr.op == "arg":
                values.append(args[instr.attr])
            elif instr.op == "item":
                values.append(tuples[instr.operands[0]][instr.attr])
            else:
                operands = [values[o] for o in instr.operands]
                source = program.body[instr.operands[0]].dtype if instr.operands else instr.dtype
                values.append(self._instr(instr, source, operands))
        return [values[r] for r in program.results]

    def _instr(self, instr: Instr, source: str, operands: list[ir.Value]) -> ir.Value:
        b, op, dtype = self.b, instr.op, instr.dtype
        if op == "const":
            return constant(dtype, instr.attr)
        if op == "load":
            return self._load(instr.attr, dtype, operands[0])
        operands = self._alike(operands)
        if op == "select":
            return b.select(*operands)
        if op == "convert":
            return convert(b, operands[0], source, dtype)
        if op == "bitcast":
            return bitcast(b, operands[0], source, dtype)
        value = TABLE[op](b, source, *operands)
        return value if op in EXACT else rounded(b, value, dtype)

    def _alike(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """All of them scalars, or all of them vectors."""
        width = max((lanes(v.type) for v in values), default=1)
        return [splat(self.b, v, width) for v in values]

    def _load(self, uniform: int, dtype: str, index: ir.Value) -> ir.Value:
        b, t = self.b, memory_type(dtype)
        if lanes(index.type) == 1:
            return from_memory(b, self._scalar_load(uniform, t, index), dtype)
        gathered: ir.Value = ir.Constant(ir.VectorType(t, self.width), ir.Undefined)
        for k in range(self.width):
            at = ir.IntType(32)(k)
            gathered = b.insert_element(gathered, self._scalar_load(uniform, t, b.extract_element(index, at)), at)
        return from_memory(b, gathered, dtype)

    def _scalar_load(self, uniform: int, t: ir.Type, index: ir.Value) -> ir.Value:
        b = self.b
        loaded = b.load(b.gep(self.uniforms[uniform], [index], source_etype=t, inbounds=True), typ=t)
        loaded.set_metadata("invariant.load", b.module.add_metadata([]))
        return loaded

    def _any(self, wanted: ir.Value) -> ir.Value:
        return intrinsic(self.b, "vector.reduce.or", ir.IntType(1), wanted, overloads=(wanted.type,))

    def _both(self, wanted: ir.Value, mask: ir.Value | None) -> ir.Value:
        return wanted if mask is None else self.b.and_(wanted, mask)

    def _phis(self, values: Sequence[ir.Value], block: ir.Block) -> list[ir.PhiInstr]:
        phis = [self.b.phi(v.type) for v in values]
        for phi, v in zip(phis, values, strict=True):
            phi.add_incoming(v, block)
        return phis

    def _carries(self, values: Sequence[ir.Value], varying: Sequence[bool]) -> list[ir.Value]:
        return [splat(self.b, v, self.width) if wide else v for v, wide in zip(values, varying, strict=True)]

    def _loop(self, instr: Instr, operands: list[ir.Value], mask: ir.Value | None) -> list[ir.Value]:
        b, (n, body) = self.b, instr.attr
        count = len(body.results)
        varying = _varying_control(instr, [lanes(v.type) > 1 for v in operands])
        carries, invariants = self._carries(operands[:count], varying), operands[count:]
        s32 = ir.IntType(32)
        if n * sum(1 for _ in body.walk()) <= UNROLLED:
            for k in range(n):
                carries = self.program(body, [s32(k), *carries, *invariants], mask)
            return carries
        before, head, after = b.block, b.append_basic_block("loop"), b.append_basic_block("looped")
        b.branch(head)
        b.position_at_end(head)
        (i,) = self._phis([s32(0)], before)
        phis = self._phis(carries, before)
        new = self._carries(self.program(body, [i, *phis, *invariants], mask), varying)
        following = b.add(i, s32(1), flags=["nsw", "nuw"])
        for phi, v in zip([i, *phis], [following, *new], strict=True):
            phi.add_incoming(v, b.block)
        b.cbranch(b.icmp_signed("<", following, s32(n)), head, after)
        b.position_at_end(after)
        return new

    def _while(self, instr: Instr, operands: list[ir.Value], mask: ir.Value | None) -> list[ir.Value]:
        b, (cond, body) = self.b, instr.attr
        count = len(body.results)
        varying = _varying_control(instr, [lanes(v.type) > 1 for v in operands])
        carries, invariants = self._carries(operands[:count], varying), operands[count:]
        before, head = b.block, b.append_basic_block("while")
        inside, after = b.append_basic_block("do"), b.append_basic_block("done")
        b.branch(head)
        b.position_at_end(head)
        phis = self._phis(carries, before)
        (wanted,) = self.program(cond, [*phis, *invariants], mask)
        wide = lanes(wanted.type) > 1
        if wide:  # a lane that stops keeps its carries, so its condition stays false
            mask = wanted = self._both(wanted, mask)
        b.cbranch(self._any(wanted) if wide else wanted, inside, after)
        b.position_at_end(inside)
        new = self._carries(self.program(body, [*phis, *invariants], mask), varying)
        for phi, v in zip(phis, new, strict=True):
            phi.add_incoming(b.select(wanted, v, phi) if wide else v, b.block)
        b.branch(head)
        b.position_at_end(after)
        return list(phis)

    def _cond(self, instr: Instr, operands: list[ir.Value], mask: ir.Value | None) -> list[ir.Value]:
        b, (choice, *args) = self.b, operands
        if lanes(choice.type) > 1:
            no = self._branch(instr.attr[0], args, self._both(b.not_(choice), mask))
            yes = self._branch(instr.attr[1], args, self._both(choice, mask))
            return [b.select(choice, *self._alike([y, n])) for y, n in zip(yes, no, strict=True)]
        varying = _varying_control(instr, [lanes(v.type) > 1 for v in operands])
        blocks = [b.append_basic_block("otherwise"), b.append_basic_block("then")]
        after = b.append_basic_block("chosen")
        b.cbranch(choice, blocks[1], blocks[0])
        ends = []
        for block, branch in zip(blocks, instr.attr, strict=True):
            b.position_at_end(block)
            ends.append((self._carries(self.program(branch, args, mask), varying), b.block))
            b.branch(after)
        b.position_at_end(after)
        phis = self._phis(*ends[0])
        for phi, v in zip(phis, ends[1][0], strict=True):
            phi.add_incoming(v, ends[1][1])
        return list(phis)

    def _branch(self, branch: Program, args: list[ir.Value], wanted: ir.Value) -> list[ir.Value]:
        """A branch that some lanes may want: evaluated if one does, or at once where that costs less than asking."""
        if len(branch.body) <= 16 and not any(instr.op in _DEAR for instr in branch.body):
            return self.program(branch, args, wanted)
        b = self.b
        before, inside, after = b.block, b.append_basic_block("wanted"), b.append_basic_block("asked")
        b.cbranch(self._any(wanted), inside, after)
        b.position_at_end(inside)
        results = self.program(branch, args, wanted)
        end = b.block
        b.branch(after)
        b.position_at_end(after)
        phis = self._phis([ir.Constant(r.type, None) for r in results], before)
        for phi, r in zip(phis, results, strict=True):
            phi.add_incoming(r, end)
        return list(phis)


def _varying(program: Program, args: Sequence[bool]) -> list[bool]:
    """Which results differ from lane to lane, given which arguments do."""
    values: list[bool] = []
    tuples: dict[int, list[bool]] = {}
    for k, instr in enumerate(program.body):
        operands = [values[o] for o in instr.operands]
        if instr.op in CONTROL:
            tuples[k] = _varying_control(instr, operands)
            values.append(False)
        elif instr.op == "arg":
            values.append(args[instr.attr])
        elif instr.op == "item":
            values.append(tuples[instr.operands[0]][instr.attr])
        else:
            values.append(any(operands))
    return [values[r] for r in program.results]


def _varying_control(instr: Instr, operands: Sequence[bool]) -> list[bool]:
    if instr.op == "cond":
        choice, *args = operands
        branches = [_varying(branch, args) for branch in instr.attr]
        return [choice or any(results) for results in zip(*branches, strict=True)]
    count = len(instr.attr[1].results)
    carries, invariants = list(operands[:count]), operands[count:]
    while True:  # until nothing more varies
        counter = [False] if instr.op == "loop" else []
        new = _varying(instr.attr[1], [*counter, *carries, *invariants])
        stops_alone = instr.op == "while" and _varying(instr.attr[0], [*carries, *invariants])[0]
        joined = [old or now or stops_alone for old, now in zip(carries, new, strict=True)]
        if joined == carries:
            return carries
        carries = joined
