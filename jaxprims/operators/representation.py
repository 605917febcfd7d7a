"""What a histogram's working copies hold: the values themselves, or a better form of a recognised operator.

``start`` takes a value to its form (f's Program ends with it), the operator works on forms, ``finish`` takes the combined form
back. The result is the operator's, to the bit, but for sums of f16 and bf16, which are kept in f32, and sums in logarithms.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from ..ir.evaluate import evaluate
from ..ir.program import Builder, Program, from_bits, numpy_dtype, to_bits
from . import classify, known, packed

WIDE = ("add", "logaddexp")
"""What halves are combined by in f32."""


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
    unfinished: bool = False,
    in_order: bool = False,
) -> Representation:
    """The form for an operator. ``position``: the struct's slot that is the element's own position, below 2^31 - 1, if one is.
    ``keyed``: maxima and minima of floats are to be integers of the same order: worth it where an element is compared several
    times. ``unfinished``: no form is taken back before all elements are combined. ``in_order``: it begins with an element, where
    there is no identity, not with what lies where the result will."""
    dtypes = tuple(dtypes)
    of_nothing = identity is None or from_bits(identity[0], dtypes[0]) == -np.inf
    if unfinished and len(dtypes) == 1 and of_nothing and classify.recognise(op) == "logaddexp":
        return log_sum(dtypes[0], identity)
    forms: dict[int, Representation] = {}
    for (slot,) in (part for part in classify.parts(op) if len(part) == 1):
        name, alone = classify.recognise(classify.restrict(op, (slot,))), identity and identity[slot : slot + 1]
        if keyed and name in ("max", "min") and dtypes[slot] in _KEYS:
            forms[slot] = _keyed(name, dtypes[slot], alone)
        elif name in WIDE and dtypes[slot] in ("f16", "bf16") and (in_order or alone is not None):
            forms[slot] = _wide(name, dtypes[slot], alone)
    if position is not None and identity is not None:
        form = packed.form_of(op, dtypes, position, identity)
        if form is not None:
            return Representation(("s64",), *form)
    return _by_slot(op, dtypes, identity, forms) if forms else Representation(dtypes, op, identity)


def _by_slot(
    op: Program, dtypes: tuple[str, ...], identity: tuple[int, ...] | None, forms: Mapping[int, Representation]
) -> Representation:
    """With other forms of some slots, each of which is combined alone."""
    n = len(dtypes)
    held = tuple(forms[s].dtypes[0] if s in forms else t for s, t in enumerate(dtypes))

    def each(params: Sequence[str], name: str) -> Program:
        b, out = Builder(params), []
        for s in range(n):
            way = getattr(forms[s], name) if s in forms else None
            out.append(b.arg(s) if way is None else b.inline(way, [b.arg(s)])[0])
        return b.finish(out)

    b = Builder(held * 2)
    plain = b.inline(op, [b.const(0, dtypes[k % n]) if k % n in forms else b.arg(k) for k in range(2 * n)])
    results = [b.inline(forms[s].op, [b.arg(s), b.arg(n + s)])[0] if s in forms else plain[s] for s in range(n)]
    neutral = None
    if identity is not None:
        neutral = tuple((forms[s].identity or (x,))[0] if s in forms else x for s, x in enumerate(identity))
    return Representation(held, b.finish(results), neutral, each(dtypes, "start"), each(held, "finish"))


def _wide(name: str, dtype: str, identity: tuple[int, ...] | None) -> Representation:
    """Sums of f16 and bf16 in f32."""
    start, finish = Builder((dtype,)), Builder(("f32",))
    op = next(k for k in known.rows(("f32",)) if k.name == name)
    return Representation(
        ("f32",),
        op.program(("f32",)),
        None if identity is None else (to_bits(from_bits(identity[0], dtype), "f32"),),
        start.finish([start.emit("convert", "f32", start.arg(0))]),
        finish.finish([finish.emit("convert", dtype, finish.arg(0))]),
    )


@functools.lru_cache
def log_sum(dtype: str, identity: tuple[int, ...] | None = None) -> Representation:
    """The logarithm of a sum of exponentials as the greatest exponent and the sum relative to it: one exponential to combine two,
    and a logarithm at the end, instead of both each time."""
    t = "f32" if dtype in ("f16", "bf16") else dtype
    b = Builder((t,) * 4)
    a, k, c, m = (b.arg(s) for s in range(4))
    apart = b.emit("sub", t, a, c)
    scale = b.emit("exp", t, b.emit("neg", t, b.emit("abs", t, apart)))
    scale = b.emit("select", t, b.emit("ne", "b1", apart, apart), b.const(1.0, t), scale)  # of equal infinities
    first = b.emit("gt", "b1", a, c)
    large, small = (b.emit("select", t, first, *two) for two in ((k, m), (m, k)))
    op = b.finish([b.emit("max", t, a, c), b.emit("add", t, large, b.emit("mul", t, small, scale))])
    b = Builder((dtype,))
    start = b.finish([b.arg(0) if t == dtype else b.emit("convert", t, b.arg(0)), b.const(1.0, t)])
    b = Builder((t, t))
    total = b.emit("add", t, b.arg(0), b.emit("log", t, b.arg(1)))
    finish = b.finish([total if t == dtype else b.emit("convert", dtype, total)])
    neutral = None
    if identity is not None:
        neutral = (to_bits(from_bits(identity[0], dtype), t), to_bits(0.0, t))
    return Representation((t, t), op, neutral, start, finish)


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
