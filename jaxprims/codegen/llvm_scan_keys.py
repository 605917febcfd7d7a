"""Maxima and minima of floats as those of integers, one instruction where NaN and signed zeros make seven of floats'.

A float's key is its bits as a signed integer, the lower ones flipped if it is negative: of the same order, -0.0 below 0.0. Every
NaN has the key that is greatest (of a minimum, least).
"""

from __future__ import annotations

import dataclasses

from ..frontend import classify
from ..frontend.evaluate import evaluate
from ..frontend.program import Builder, Program, from_bits, is_float, to_bits
from .scan_spec import ScanSpec


@dataclasses.dataclass(frozen=True)
class Keys:
    """``spec`` works on keys; ``start`` makes a state's keys, ``finish`` the state of keys."""

    spec: ScanSpec
    start: Program
    finish: Program


def keys(spec: ScanSpec) -> Keys | None:
    name = classify.recognise(spec.op)
    if name not in ("max", "min") or not all(map(is_float, spec.state)):
        return None
    start, finish = Builder(spec.state), Builder([_key_type(t) for t in spec.state])
    start_program = start.finish([_key(start, start.arg(s), t, name) for s, t in enumerate(spec.state)])
    finish_program = finish.finish([_value(finish, finish.arg(s), t) for s, t in enumerate(spec.state)])
    state = start_program.result_dtypes
    op = Builder(state * 2)
    identity = None
    if spec.identity is not None:
        values = [from_bits(x, t) for x, t in zip(spec.identity, spec.state, strict=True)]
        identity = tuple(to_bits(k, t) for k, t in zip(evaluate(start_program, values), state, strict=True))
    of_keys = dataclasses.replace(
        spec,
        state=state,
        identity=identity,
        f=_composed(spec.f, start_program),
        op=op.finish([op.emit(name, t, op.arg(s), op.arg(len(state) + s)) for s, t in enumerate(state)]),
        finish=_composed(finish_program, spec.finish),
    )
    return Keys(of_keys, start_program, finish_program)


def _composed(first: Program, second: Program) -> Program:
    b = Builder(first.params)
    return b.finish(b.inline(second, b.inline(first, [b.arg(k) for k in range(len(first.params))])))


def _key_type(dtype: str) -> str:
    return "s64" if dtype == "f64" else "s32"


def _wide(dtype: str) -> str:
    return "f64" if dtype == "f64" else "f32"


def _flipped(b: Builder, bits: int, dtype: str) -> int:
    """Bits to keys, and back."""
    top = 63 if dtype == "s64" else 31
    sign = b.emit("shift_right_arithmetic", dtype, bits, b.const(top, dtype))
    return b.emit("xor", dtype, bits, b.emit("and", dtype, sign, b.const((1 << top) - 1, dtype)))


def _key(b: Builder, value: int, dtype: str, name: str) -> int:
    wide, t = _wide(dtype), _key_type(dtype)
    value = value if dtype == wide else b.emit("convert", wide, value)
    nan = to_bits(float("nan"), wide)
    return b.emit(
        "select",
        t,
        b.emit("ne", "b1", value, value),
        b.const(~nan if name == "min" else nan, t),
        _flipped(b, b.emit("bitcast", t, value), t),
    )


def _value(b: Builder, key: int, dtype: str) -> int:
    wide = _wide(dtype)
    value = b.emit("bitcast", wide, _flipped(b, key, _key_type(dtype)))
    return value if dtype == wide else b.emit("convert", dtype, value)
