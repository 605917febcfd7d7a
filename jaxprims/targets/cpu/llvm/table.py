"""The table of operations: how each is emitted as LLVM IR, on scalars or on vectors of any width.

Arithmetic is XLA's, with no fast-math flag anywhere, and nothing traps, whatever is in a lane nobody wants.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from llvmlite import ir

from ....ir.program import is_float, is_signed, itemsize
from .engine import target
from .extremes import of_two
from .math import MATH, rem
from .types import from_memory, intrinsic, lanes, literal, memory_type, register_type, rounded, scalar_of, to_memory, with_scalar

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


def _extreme(op: str) -> Emitter:
    return lambda b, x, y: of_two(b, op, x, y)


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
    return rem(b, x, y) if is_float(dtype) else _divide(b, dtype, x, y, remainder=True)


def _shift(method: Emitter) -> Emitter:
    def emit(b: ir.IRBuilder, dtype: str, x: ir.Value, y: ir.Value) -> ir.Value:
        inside = b.icmp_unsigned("<", y, literal(y.type, _bits(y.type)))
        return b.select(inside, method(b, x, y), literal(x.type, 0))

    return emit


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
        return rounded(b, (b.sitofp if is_signed(source) else b.uitofp)(x, t), dtype, plain_nan=True)
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
    "max": _by_kind(B.or_, _intrinsic("smax"), _extreme("max"), _intrinsic("umax")),
    "min": _by_kind(B.and_, _intrinsic("smin"), _extreme("min"), _intrinsic("umin")),
    "and": _by_kind(B.and_, B.and_, None),
    "or": _by_kind(B.or_, B.or_, None),
    "xor": _by_kind(B.xor, B.xor, None),
    "not": _by_kind(B.not_, B.not_, None),
    "neg": _by_kind(None, B.neg, B.fneg),
    "abs": _abs,
    "sign": _sign,
    "shift_left": _shift(B.shl),
    "shift_right_logical": _shift(B.lshr),
    "shift_right_arithmetic": lambda b, _, x, y: b.ashr(x, intrinsic(b, "umin", y.type, y, literal(y.type, _bits(y.type) - 1))),
    "population_count": _by_kind(None, _intrinsic("ctpop"), None),
    "clz": _by_kind(None, _intrinsic("ctlz", 0), None),
    "floor": _by_kind(None, None, _intrinsic("floor")),
    "ceil": _by_kind(None, None, _intrinsic("ceil")),
    "round_away": _by_kind(None, None, _intrinsic("round")),
    "round_even": _by_kind(None, None, _intrinsic("roundeven")),
    "is_finite": lambda b, _, x: b.fcmp_ordered("<", intrinsic(b, "fabs", x.type, x), literal(x.type, math.inf)),
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

BY_PROCESSOR = frozenset(["add", "sub", "mul", "div", "sqrt"])
"""Whose NaN is an operand's own or the processor's: made of halves, one that has nothing in the lower 16 bits."""

IN_HALVES: dict[str, Callable[..., ir.Value]] = {
    **{op: functools.partial(getattr(B, f"f{op}"), flags=("contract",)) for op in ("add", "sub", "mul")},
    **{op: _extreme(op) for op in ("max", "min")},
}
"""What is done in f16 by processors that can: a product and a sum are rounded once, as in XLA's loops."""
