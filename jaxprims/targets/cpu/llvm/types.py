"""Scalar types in memory and in registers, as LLVM types: what the expression table and the vector math stand on.

In memory a b1 is a byte and an f16 or bf16 its 16 bits. In registers a b1 is an i1 and an f16 or bf16 the f32 of the same
value, rounded to its own type again after every operation.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Sequence

from llvmlite import ir

from ....ir.program import from_bits, is_float, itemsize
from .engine import target

HALVES = ("f16", "bf16")

_MANY = 4096
"""Types and constants that are kept: llvmlite takes a fifth of its time to make the same ones anew, and their texts."""

_I1, _I16, _I32 = ir.IntType(1), ir.IntType(16), ir.IntType(32)
_FLOATS: dict[str, ir.Type] = {"f16": ir.FloatType(), "bf16": ir.FloatType(), "f32": ir.FloatType(), "f64": ir.DoubleType()}


def memory_type(dtype: str) -> ir.Type:
    """The type of a scalar in memory."""
    if dtype in HALVES:
        return _I16
    return _FLOATS[dtype] if is_float(dtype) else ir.IntType(8 * itemsize(dtype))


def register_type(dtype: str, width: int = 1) -> ir.Type:
    """The type of a scalar, or of a vector of ``width`` of them, in registers."""
    scalar = _I1 if dtype == "b1" else _FLOATS[dtype] if is_float(dtype) else memory_type(dtype)
    return vector_of(scalar, width)


def vector_of(scalar: ir.Type, width: int) -> ir.Type:
    return scalar if width == 1 else vector(scalar, width)


@functools.lru_cache(_MANY)
def vector(scalar: ir.Type, width: int) -> ir.VectorType:
    """Also of one lane."""
    return ir.VectorType(scalar, width)


def lanes(t: ir.Type) -> int:
    """How many lanes a vector type has; a scalar has one."""
    return t.count if isinstance(t, ir.VectorType) else 1


def scalar_of(t: ir.Type) -> ir.Type:
    return t.element if isinstance(t, ir.VectorType) else t


def with_scalar(t: ir.Type, scalar: ir.Type) -> ir.Type:
    """The type of ``scalar`` with as many lanes as ``t``."""
    return vector_of(scalar, lanes(t))


def resized(b: ir.IRBuilder, v: ir.Value, t: ir.IntType) -> ir.Value:
    """An unsigned integer, or a vector of them, with as many bits as ``t``."""
    to, bits = with_scalar(v.type, t), scalar_of(v.type).width
    return v if bits == t.width else b.zext(v, to) if bits < t.width else b.trunc(v, to)


def any_lane(b: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    """Is it true in a lane?"""
    return mask if lanes(mask.type) == 1 else intrinsic(b, "vector.reduce.or", _I1, mask, overloads=(mask.type,))


def literal(t: ir.Type, value: float | bool) -> ir.Constant:
    """The constant of a scalar type, or of a vector type with every lane the same."""
    if not isinstance(t, ir.VectorType):
        return ir.Constant(t, value)
    return _alike(t, struct.pack("d", value) if isinstance(value, float) else value)


@functools.lru_cache(_MANY, typed=True)
def _alike(t: ir.VectorType, value: bytes | int) -> ir.Constant:
    """A float is given by its bits: zeros of both signs are equal."""
    (number,) = struct.unpack("d", value) if isinstance(value, bytes) else (value,)
    return ir.Constant(t, [ir.Constant(t.element, number)] * t.count)


def numbers(t: ir.Type, values: Iterable[int]) -> ir.Constant:
    """The vector of these integers, of a scalar type."""
    return _numbers(t, tuple(values))


@functools.lru_cache(_MANY)
def _numbers(t: ir.Type, values: tuple[int, ...]) -> ir.Constant:
    return ir.Constant(vector(t, len(values)), values)


@functools.lru_cache(_MANY)
def constant(dtype: str, bits: int, width: int = 1) -> ir.Constant:
    """The value with these bits, in registers."""
    t = register_type(dtype, width)
    value = from_bits(bits, dtype)
    return literal(t, float(value) if is_float(dtype) else int(value))


def splat(b: ir.IRBuilder, value: ir.Value, width: int) -> ir.Value:
    """A vector with ``value`` in every lane; vectors, and anything for width 1, stay as they are."""
    if width == 1 or isinstance(value.type, ir.VectorType):
        return value
    if isinstance(value, ir.Constant):
        return literal(ir.VectorType(value.type, width), value.constant)
    t = vector(value.type, width)
    first = b.insert_element(undefined(t), value, _I32(0))
    return b.shuffle_vector(first, undefined(t), _zeros(width))


@functools.lru_cache(_MANY)
def undefined(t: ir.Type) -> ir.Constant:
    return ir.Constant(t, ir.Undefined)


@functools.cache
def _zeros(width: int) -> ir.Constant:
    return ir.Constant(vector(_I32, width), None)


def alloca(b: ir.IRBuilder, t: ir.Type, count: int = 1) -> ir.Value:
    """Stack space, taken once in the entry block."""
    with b.goto_entry_block():
        p = b.alloca(t, count)
    p.align = 64
    p.type = ir.PointerType()  # llvmlite still gives stack space a typed pointer
    return p


def take(b: ir.IRBuilder, x: ir.Value, y: ir.Value, order: Sequence[int]) -> ir.Value:
    """The lanes of x followed by y, in ``order``."""
    return b.shuffle_vector(x, y, numbers(_I32, order))


def with_lanes(b: ir.IRBuilder, v: ir.Value, first: Iterable[ir.Value]) -> ir.Value:
    """The vector with these scalars as its first lanes."""
    for k, one in enumerate(first):
        v = b.insert_element(v, one, _I32(k))
    return v


def interleaved(b: ir.IRBuilder, values: Sequence[ir.Value]) -> ir.Value:
    """One vector of the lanes of all: their first ones, then their second ones."""
    row, width = values[0], values[0].type.count
    for s, v in enumerate(values[1:], 1):
        v = take(b, v, v, [k if k < width else 0 for k in range(s * width)])
        row = take(b, row, v, [i * s + t if t < s else s * width + i for i in range(width) for t in range(s + 1)])
    return row


def intrinsic(b: ir.IRBuilder, name: str, result: ir.Type, *args: ir.Value, overloads: Sequence[ir.Type] = ()) -> ir.Value:
    """A call of ``llvm.name``, overloaded on ``overloads`` (if none: on the result's type)."""
    full = ".".join(["llvm", name, *(suffix(t) for t in overloads or (result,))])
    return call(b, full, result, *args)


def suffix(t: ir.Type) -> str:
    """A type in an intrinsic's name."""
    return f"v{t.count}{suffix(t.element)}" if isinstance(t, ir.VectorType) else t.intrinsic_name


def call(b: ir.IRBuilder, name: str, result: ir.Type, *args: ir.Value) -> ir.Value:
    """A call of the external function ``name``, declared where it is not yet."""
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(result, [a.type for a in args]), name)
        if not name.startswith("llvm."):  # intrinsics know their own attributes
            function.attributes.add("nounwind")
            function.attributes.add("readnone")
    return b.call(function, args)


def shared(b: ir.IRBuilder, name: str, f: Callable[..., ir.Value], *args: ir.Value) -> ir.Value:
    """``f(builder, *args)``, of the type of the first of them, as an internal function of the module, emitted once.

    LLVM inlines it where it is used once or is small. An unrolled loop of long expansions would take it long to compile.
    """
    t = args[0].type
    full = f"{name}.{suffix(t)}"
    function = b.module.globals.get(full)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(t, [a.type for a in args]), full)
        function.linkage = "internal"
        function.attributes.add("nounwind")
        inside = ir.IRBuilder(function.append_basic_block())
        inside.ret(f(inside, *function.args))
    return b.call(function, args)


def from_memory(b: ir.IRBuilder, value: ir.Value, dtype: str) -> ir.Value:
    """What was loaded from memory, as it is held in registers."""
    if dtype == "b1":
        return b.icmp_unsigned("!=", value, literal(value.type, 0))
    if dtype == "bf16":
        word = with_scalar(value.type, _I32)
        return b.bitcast(b.shl(b.zext(value, word), literal(word, 16)), with_scalar(word, ir.FloatType()))
    if dtype == "f16":
        return _half_to_float(b, value)
    return value


def to_memory(b: ir.IRBuilder, value: ir.Value, dtype: str) -> ir.Value:
    """A value in registers, as it is stored to memory."""
    if dtype == "b1":
        return b.zext(value, with_scalar(value.type, ir.IntType(8)))
    if dtype == "bf16":
        word = with_scalar(value.type, _I32)
        return b.trunc(b.lshr(b.bitcast(value, word), literal(word, 16)), with_scalar(word, _I16))
    if dtype == "f16":
        return _float_to_half(b, value)
    return value


def rounded(b: ir.IRBuilder, value: ir.Value, dtype: str, *, plain_nan: bool = False) -> ir.Value:
    """An f32 rounded to the nearest f16 or bf16, ties to even; values of other dtypes are what they should be already.

    ``plain_nan``: a NaN among them has nothing in the bits that are cut off. Else rounding could make a number of it.
    """
    if dtype == "f16":
        return _half_to_float(b, _float_to_half(b, value))
    if dtype != "bf16":
        return value
    word = with_scalar(value.type, _I32)
    bits = b.bitcast(value, word)
    odd = b.and_(b.lshr(bits, literal(word, 16)), literal(word, 1))
    near = b.add(b.add(bits, literal(word, 0x7FFF)), odd)
    if not plain_nan:
        near = b.select(b.fcmp_unordered("uno", value, value), b.or_(bits, literal(word, 0x400000)), near)
    return b.bitcast(b.and_(near, literal(word, 0xFFFF0000)), value.type)


def narrowed(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """An f16, held as an f32, in its own type."""
    return b.fptrunc(value, with_scalar(value.type, ir.HalfType()))


def widened(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """What :func:`narrowed` took."""
    return b.fpext(value, with_scalar(value.type, ir.FloatType()))


def _half_to_float(b: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    t = with_scalar(bits.type, ir.FloatType())
    if target().half:
        return widened(b, b.bitcast(bits, with_scalar(t, ir.HalfType())))
    # exponents are moved by 112; a denormal becomes normal by a subtraction that is exact, also where denormals are flushed
    word = with_scalar(t, _I32)
    wide = b.zext(bits, word)
    sign = b.shl(b.and_(wide, literal(word, 0x8000)), literal(word, 16))
    moved = b.shl(b.and_(wide, literal(word, 0x7FFF)), literal(word, 13))
    special = b.icmp_unsigned(">=", moved, literal(word, 0x0F800000))
    denormal = b.icmp_unsigned("<", moved, literal(word, 0x00800000))
    normal = b.add(moved, b.select(special, literal(word, 224 << 23), literal(word, 112 << 23)))
    lifted = b.bitcast(b.add(moved, literal(word, 113 << 23)), t)
    tiny = b.bitcast(b.fsub(lifted, literal(t, 2.0**-14)), word)
    return b.bitcast(b.or_(sign, b.select(denormal, tiny, normal)), t)


def _float_to_half(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    half = with_scalar(value.type, _I16)
    if target().half:
        return b.bitcast(narrowed(b, value), half)
    word = with_scalar(value.type, _I32)
    bits = b.bitcast(value, word)
    sign = b.and_(b.lshr(bits, literal(word, 16)), literal(word, 0x8000))
    size = b.and_(bits, literal(word, 0x7FFFFFFF))
    odd = b.and_(b.lshr(size, literal(word, 13)), literal(word, 1))
    near = b.lshr(b.add(b.sub(size, literal(word, (112 << 23) - 0xFFF)), odd), literal(word, 13))
    # below 2^-14 the sum with 1/2 rounds at the denormals' last place and leaves their bits at the bottom
    lifted = b.fadd(b.bitcast(size, value.type), literal(value.type, 0.5))
    tiny = b.sub(b.bitcast(lifted, word), literal(word, 126 << 23))
    finite = b.select(b.icmp_unsigned("<", size, literal(word, 113 << 23)), tiny, near)
    nan = b.icmp_unsigned(">", size, literal(word, 255 << 23))
    special = b.select(nan, literal(word, 0x7E00), literal(word, 0x7C00))
    large = b.icmp_unsigned(">=", size, literal(word, 143 << 23))
    return b.trunc(b.or_(sign, b.select(large, special, finite)), half)
