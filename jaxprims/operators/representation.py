"""What a histogram's working copies hold: the values themselves, or a better form of a recognised operator.

``start`` takes a value to its form (f's Program ends with it), the operator works on forms, ``finish`` takes the combined form
back. The result is the operator's, to the bit; only sums of f16 and bf16 are meant to differ: they are kept in f32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..ir.evaluate import evaluate
from ..ir.program import Builder, Program, from_bits, numpy_dtype, to_bits
from . import classify, packed


@dataclasses.dataclass(frozen=True)
class Representation:
    """Forms of one struct of slots. Without ``start`` and ``finish`` they are the values."""

    dtypes: tuple[str, ...]
    op: Program
    identity: tuple[int, ...] | None
    start: Program | None = None
    finish: Program | None = None


def represent(
    op: Program,
    dtypes: Sequence[str],
    identity: tuple[int, ...] | None,
    position: int | None = None,
    keyed: bool = False,
) -> Representation:
    """The form for an operator. ``position``: the struct's slot that is the element's own position, below 2^31 - 1, if one is.
    ``keyed``: maxima and minima of floats are to be integers of the same order: worth it where an element is compared several
    times."""
    dtypes = tuple(dtypes)
    name = classify.recognise(op)
    if keyed and name in ("max", "min") and len(dtypes) == 1 and dtypes[0] in _KEYS:
        return _keyed(name, dtypes[0], identity)
    if position is not None and identity is not None:
        form = packed.form_of(op, dtypes, position, identity)
        if form is not None:
            return Representation(("s64",), *form)
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


_KEYS = {"f32": "s32", "f64": "s64", "f16": "s16", "bf16": "s16"}


def _keyed(name: str, dtype: str, identity: tuple[int, ...] | None) -> Representation:
    """max and min of floats as those of integers, which have no NaN to look out for: one instruction instead of five.

    A float's bits, those below the sign inverted where it is negative, are an integer of the same order; NaN becomes the integer
    that wins. (The NaN that comes back is the canonical one.)
    """
    t = _KEYS[dtype]
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
