"""What a histogram's working copies hold: the values themselves, or a better form of a recognised operator.

``start`` takes a value to its form (f's Program ends with it), the operator works on forms, ``finish`` takes the combined form
back. The result is the operator's, to the bit; only sums of f16 and bf16 are meant to differ: they are kept in f32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..ir.evaluate import evaluate
from ..ir.program import Builder, Program, from_bits, is_float, itemsize, numpy_dtype, to_bits
from . import classify

INDEX_MAX = 0x7FFFFFFF


@dataclasses.dataclass(frozen=True)
class Representation:
    """Forms of one struct of slots. Without ``start`` and ``finish`` they are the values."""

    dtypes: tuple[str, ...]
    op: Program
    identity: tuple[int, ...] | None
    start: Program | None = None
    finish: Program | None = None


def represent(
    op: Program, dtypes: Sequence[str], identity: tuple[int, ...] | None, ordered: bool, keyed: bool = False
) -> Representation:
    """The form for an operator. ``ordered``: the struct's second slot is the element's own position, below 2^31 - 1. ``keyed``:
    maxima and minima of floats are to be integers of the same order: worth it where an element is compared several times."""
    dtypes = tuple(dtypes)
    name = classify.recognise(op)
    if keyed and name in ("max", "min") and dtypes in (("f32",), ("f64",)):
        return _keyed(name, dtypes[0], identity)
    if name in ("argmax", "argmin") and ordered and dtypes[1] == "s32" and itemsize(dtypes[0]) <= 4 and dtypes[0] != "b1":
        packed = _packed_arg(name, dtypes[0])
        if identity == packed.identity:
            assert packed.start is not None
            neutral = evaluate(packed.start, [np.asarray(from_bits(b, t)) for b, t in zip(identity or (), dtypes, strict=True)])
            return dataclasses.replace(packed, identity=(to_bits(neutral[0], "s64"),))
    halves = [s for s, t in enumerate(dtypes) if t in ("f16", "bf16")]
    wide = {s for s in halves if (s,) in classify.parts(op) and classify.recognise(classify.restrict(op, (s,))) == "add"}
    if wide and identity is not None:  # without one, bins start from dest, where the result lies
        return _wide_sums(op, dtypes, identity, wide)
    return Representation(dtypes, op, identity)


def _wide_sums(op: Program, dtypes: tuple[str, ...], identity: tuple[int, ...] | None, wide: set[int]) -> Representation:
    """Sums of f16 and bf16 (the slots ``wide``) in f32."""
    n = len(dtypes)
    form = tuple("f32" if s in wide else t for s, t in enumerate(dtypes))

    def converted(b: Builder, value: int, dtype: str) -> int:
        return value if b.dtype(value) == dtype else b.emit("convert", dtype, value)

    b = Builder(form * 2)
    narrow = b.inline(op, [converted(b, b.arg(k), dtypes[k % n]) for k in range(2 * n)])
    results = [b.emit("add", "f32", b.arg(s), b.arg(n + s)) if s in wide else narrow[s] for s in range(n)]
    start, finish = Builder(dtypes), Builder(form)
    return Representation(
        form,
        b.finish(results),
        identity and tuple(to_bits(from_bits(x, t), u) for x, t, u in zip(identity, dtypes, form, strict=True)),
        start.finish([converted(start, start.arg(s), form[s]) for s in range(n)]),
        finish.finish([converted(finish, finish.arg(s), dtypes[s]) for s in range(n)]),
    )


def _keyed(name: str, dtype: str, identity: tuple[int, ...] | None) -> Representation:
    """max and min of floats as those of integers, which have no NaN to look out for: one instruction instead of five.

    A float's bits, those below the sign inverted where it is negative, are an integer of the same order; NaN becomes the integer
    that wins. (The NaN that comes back is the canonical one.)
    """
    t = {"f32": "s32", "f64": "s64"}[dtype]
    info = np.iinfo(numpy_dtype(t))

    def turned(b: Builder, bits: int) -> int:
        inverted = b.emit("xor", t, bits, b.const(info.max, t))
        return b.emit("select", t, b.emit("lt", "b1", bits, b.const(0, t)), inverted, bits)

    b = Builder((dtype,))
    key = turned(b, b.emit("bitcast", t, b.arg(0)))
    wins = info.max if name == "max" else info.min
    start = b.finish([b.emit("select", t, b.emit("ne", "b1", b.arg(0), b.arg(0)), b.const(wins, t), key)])
    b = Builder((t,))
    value = b.emit("bitcast", dtype, turned(b, b.arg(0)))
    nan = b.emit("eq", "b1", b.arg(0), b.const(wins, t))
    finish = b.finish([b.emit("select", dtype, nan, b.const(np.nan, dtype), value)])
    b = Builder((t, t))
    op = b.finish([b.emit(name, t, b.arg(0), b.arg(1))])
    neutral = None
    if identity is not None:
        neutral = (to_bits(evaluate(start, [np.asarray(from_bits(identity[0], dtype))])[0], t),)
    return Representation((t,), op, neutral, start, finish)


def _packed_arg(name: str, dtype: str) -> Representation:
    """argmax and argmin with positions: one 64-bit maximum (Henriksen et al. 2020, III-B, pack such pairs for compare-and-swap).

    High half: the value as an integer of the same order, complemented for argmin, NaN above all, both zeros alike. Low half: the
    position, complemented, so that the smaller one wins; and, in the last bit, whether the value was -0.0. ``identity`` is the
    pair's own here.
    """
    b = Builder((dtype, "s32"))
    value, position = b.arg(0), b.arg(1)
    top, one, zero = b.const(INDEX_MAX, "s32"), b.const(1, "s32"), b.const(0, "s32")
    minus_zero = zero
    if is_float(dtype):
        wide = value if dtype == "f32" else b.emit("convert", "f32", value)
        bits = b.emit("bitcast", "s32", wide)
        key = b.emit("select", "s32", b.emit("lt", "b1", bits, zero), b.emit("xor", "s32", bits, top), bits)
        key = b.emit("select", "s32", b.emit("eq", "b1", wide, b.const(0.0, "f32")), zero, key)
        minus_zero = b.emit("select", "s32", b.emit("eq", "b1", bits, b.const(-(2**31), "s32")), one, zero)
    elif dtype == "u32":
        key = b.emit("xor", "s32", b.emit("bitcast", "s32", value), b.const(-(2**31), "s32"))
    else:
        key = value if dtype == "s32" else b.emit("convert", "s32", value)
    if name == "argmin":
        key = b.emit("not", "s32", key)
    if is_float(dtype):
        key = b.emit("select", "s32", b.emit("ne", "b1", wide, wide), top, key)
    place = b.emit("sub", "s32", top, position)
    low = b.emit("or", "s32", b.emit("shift_left", "s32", place, one), minus_zero)
    high = b.emit("shift_left", "s64", b.emit("convert", "s64", key), b.const(32, "s64"))
    low = b.emit("convert", "s64", b.emit("bitcast", "u32", low))
    start = b.finish([b.emit("or", "s64", high, low)])

    b = Builder(("s64",))
    code = b.arg(0)
    top, one, zero = b.const(INDEX_MAX, "s32"), b.const(1, "s32"), b.const(0, "s32")
    key = b.emit("convert", "s32", b.emit("shift_right_arithmetic", "s64", code, b.const(32, "s64")))
    low = b.emit("bitcast", "s32", b.emit("convert", "u32", b.emit("and", "s64", code, b.const(0xFFFFFFFF, "s64"))))
    position = b.emit("sub", "s32", top, b.emit("shift_right_logical", "s32", low, one))
    plain = b.emit("not", "s32", key) if name == "argmin" else key
    if is_float(dtype):
        bits = b.emit("select", "s32", b.emit("lt", "b1", plain, zero), b.emit("xor", "s32", plain, top), plain)
        minus = b.emit("ne", "b1", b.emit("and", "s32", low, one), zero)
        bits = b.emit("select", "s32", minus, b.const(-(2**31), "s32"), bits)
        value = b.emit("bitcast", "f32", bits)
        value = b.emit("select", "f32", b.emit("eq", "b1", key, top), b.const(np.nan, "f32"), value)
        value = value if dtype == "f32" else b.emit("convert", dtype, value)
    elif dtype == "u32":
        value = b.emit("bitcast", "u32", b.emit("xor", "s32", plain, b.const(-(2**31), "s32")))
    else:
        value = plain if dtype == "s32" else b.emit("convert", dtype, plain)
    finish = b.finish([value, position])

    b = Builder(("s64", "s64"))
    op = b.finish([b.emit("max", "s64", b.arg(0), b.arg(1))])
    least = name == "argmax"
    if is_float(dtype):
        worst = -np.inf if least else np.inf
    else:
        info = np.iinfo(numpy_dtype(dtype))
        worst = info.min if least else info.max
    return Representation(("s64",), op, (to_bits(worst, dtype), to_bits(INDEX_MAX, "s32")), start, finish)
