"""Elementwise primitives: a table from ``lax``'s names to what each emits for one element.

A rule of :data:`REAL` takes the emitter, the equation's parameters, the result's dtype and one value for each operand.
Complex operands go through :mod:`complex`, which is written in ``lax`` itself, traced, and lowered by this table. Bessel, zeta,
polygamma, incomplete gamma and beta functions have no rule: what uses them runs as plain XLA.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..ir.program import BINARY, COMPARE, UNARY, is_float
from . import complex
from .emit import Emitter, Unsupported, bits
from .keys import plain_dtype
from .lowering import Lowering
from .random import random_at
from .values import Array, Value, by_number, check_shape, loaded, scalar_dtypes

Rule = Callable[..., int]


def _same(name: str) -> Rule:
    return lambda e, params, out, *xs: e.op(name, *xs)


def _on_bool(name: str, instead: str) -> Rule:
    """Booleans have only logic: max is or, min is and."""
    return lambda e, params, out, a, b: e.op(instead if e.dtype(a) == "b1" else name, a, b)


def _sign(e: Emitter, params: Mapping[str, Any], out: str, x: int) -> int:
    return e.convert(e.op("ne", x, e.like(x, 0)), out) if out[0] == "u" else e.op("sign", x)


def _integer_pow(e: Emitter, params: Mapping[str, Any], out: str, x: int) -> int:
    y = params["y"]
    if y == 0:
        return e.like(x, 1)
    power = complex.powered(x, abs(y), lambda a, b: e.op("mul", a, b))
    return power if y > 0 else e.op("div", e.like(x, 1), power)


def _pow(e: Emitter, params: Mapping[str, Any], out: str, x: int, y: int) -> int:
    """As XLA has it, a constant exponent is a few products, or a root: libraries take negative numbers one after the other."""
    exponent = e.convert(y, out)
    known = e.constant(exponent)
    if known in (-1, 0, 1, 2, 3):
        return _integer_pow(e, {"y": int(known)}, out, x)
    if known not in (-0.5, 0.5, 1.5):
        return e.op("pow", x, exponent)
    # unlike a root, of -0 it is 0 and of minus infinity infinity
    root = e.op("add", e.op("sqrt", x), e.like(x, 0))
    root = e.select(e.op("eq", x, e.like(x, -np.inf)), e.like(x, np.inf), root)
    return root if known == 0.5 else e.op("mul", e.op("abs", x), root) if known == 1.5 else e.op("div", e.like(x, 1), root)


def _bitcast(e: Emitter, params: Mapping[str, Any], out: str, x: int) -> int:
    if bits(e.dtype(x)) != bits(out):
        raise Unsupported("bitcast_convert_type", f"from {e.dtype(x)} to {out}, which has another width")
    return e.bitcast(x, out)


def in_total_order(e: Emitter, x: int) -> int:
    """An integer, greater for what is later in IEEE's total order: the bits are sign and magnitude, made two's complement."""
    if not is_float(e.dtype(x)):
        return x
    n = bits(e.dtype(x))
    b = e.bitcast(x, f"s{n}")
    flip = e.op("shift_right_arithmetic", b, e.like(b, n - 1))
    return e.op("xor", b, e.op("and", flip, e.like(b, 2 ** (n - 1) - 1)))


def _total_order(name: str) -> Rule:
    return lambda e, params, out, a, b: e.op(name, in_total_order(e, a), in_total_order(e, b))


def _reduce_precision(e: Emitter, params: Mapping[str, Any], out: str, x: int) -> int:
    """Rounds to fewer bits of mantissa (to nearest, ties to even); what a smaller exponent cannot hold is infinity or zero."""
    mantissa = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}[out]
    exponent = bits(out) - 1 - mantissa
    to_exponent, to_mantissa = params["exponent_bits"], params["mantissa_bits"]
    if (to_exponent, to_mantissa) == (8, 7) and e.instr(x).op == "convert" and e.dtype(e.instr(x).operands[0]) == "bf16":
        return x
    unsigned = f"u{bits(out)}"

    def c(n: int) -> int:
        return e.const(n, unsigned)

    b = e.bitcast(x, unsigned)
    infinity, sign = c(((1 << exponent) - 1) << mantissa), c(1 << (bits(out) - 1))
    if to_mantissa < mantissa:
        cut = mantissa - to_mantissa
        odd = e.op("and", e.op("shift_right_logical", b, c(cut)), c(1))
        half = e.op("add", odd, c((1 << (cut - 1)) - 1))
        b = e.op("and", e.op("add", b, half), c((1 << bits(out)) - (1 << cut)))
    if to_exponent < exponent:
        bias, to_bias = (1 << (exponent - 1)) - 1, (1 << (to_exponent - 1)) - 1
        power = e.op("and", b, infinity)
        signed_zero = e.op("and", b, sign)
        over = e.op("gt", power, c((bias + to_bias) << mantissa))
        under = e.op("le", power, c((bias - to_bias) << mantissa))
        b = e.select(over, e.op("or", signed_zero, infinity), e.select(under, signed_zero, b))
    return e.select(e.op("ne", x, x), x, e.bitcast(b, out))


def _mulhi(e: Emitter, params: Mapping[str, Any], out: str, a: int, b: int) -> int:
    """The upper half of a product: from one of twice the width, or of 64-bit numbers from four of their halves."""
    n = bits(out)
    if n < 64:
        wide = out[0] + str(2 * n)
        shift = "shift_right_arithmetic" if out[0] == "s" else "shift_right_logical"
        product = e.op("mul", e.convert(a, wide), e.convert(b, wide))
        return e.convert(e.op(shift, product, e.const(n, wide)), out)

    def low(x: int) -> int:
        return e.op("and", x, e.like(x, 2**32 - 1))

    def high(x: int) -> int:
        return e.op("shift_right_logical", x, e.like(x, 32))

    x, y = e.bitcast(a, "u64"), e.bitcast(b, "u64")
    middle = e.op("add", e.op("mul", high(x), low(y)), high(e.op("mul", low(x), low(y))))
    other = e.op("add", e.op("mul", low(x), high(y)), low(middle))
    result = e.op("add", e.op("add", e.op("mul", high(x), high(y)), high(middle)), high(other))
    if out == "s64":  # a negative number counts 2^64 too much in the unsigned product
        zero = e.const(0, "u64")
        for p, q in ((a, y), (b, x)):
            result = e.op("sub", result, e.select(e.op("lt", p, e.like(p, 0)), q, zero))
    return e.bitcast(result, out)


def _polynomial(e: Emitter, params: Mapping[str, Any], out: str, x: int, *coefficients: int) -> int:
    """Horner's rule; a long polynomial starts from zero, as XLA's loop does."""
    rest = list(coefficients)
    power = rest.pop() if len(rest) <= (params.get("unroll") or 8) else e.like(x, 0)
    while rest:
        power = e.op("add", e.op("mul", power, x), rest.pop())
    return power


def _log2(e: Emitter, params: Mapping[str, Any], out: str, x: int) -> int:
    return e.op("mul", e.op("log", x), e.like(x, 1.4426950408889634))


REAL: dict[str, Rule] = {
    **{name: _same(name) for name in (UNARY - {"round_away", "round_even", "exp_below"}) | BINARY | COMPARE},
    "add": _on_bool("add", "or"),
    "add_any": _on_bool("add", "or"),
    "mul": _on_bool("mul", "and"),
    "max": _on_bool("max", "or"),
    "min": _on_bool("min", "and"),
    "sign": _sign,
    "round": lambda e, params, out, x: e.op("round_away" if int(params["rounding_method"]) == 0 else "round_even", x),
    "square": lambda e, params, out, x: e.op("mul", x, x),
    "one_minus_square": lambda e, params, out, x: e.op("mul", e.op("add", e.like(x, 1), x), e.op("sub", e.like(x, 1), x)),
    "integer_pow": _integer_pow,
    "pow": _pow,
    "clamp": lambda e, params, out, low, x, high: e.op("min", e.op("max", low, x), high),
    "convert_element_type": lambda e, params, out, x: e.convert(x, out),
    "bitcast_convert_type": _bitcast,
    "eq_to": _total_order("eq"),
    "le_to": _total_order("le"),
    "lt_to": _total_order("lt"),
    "reduce_precision": _reduce_precision,
    "mulhi": _mulhi,
    "polynomial": _polynomial,
    "log2": _log2,
    "random_at": lambda e, params, out, *xs: e.inline(functools.partial(random_at, bit_width=params["bit_width"]), *xs)[0],
}


def _select(e: Emitter, which: int, *cases: int) -> int:
    """``cases[which]``, an integer ``which`` clamped."""
    if e.dtype(which) == "b1" and len(cases) > 1:
        return e.select(which, cases[1], cases[0])
    return by_number(e, which, len(cases), cases.__getitem__)


def _parts(e: Lowering, name: str, out: tuple[str, ...], params: Mapping[str, Any]) -> Callable[..., tuple[int, ...]]:
    """The rule for one element of a primitive with complex operands or a complex result."""
    if name == "convert_element_type":
        if len(out) == 1:
            return lambda re, im: (e.convert(re, out[0]),)
        return lambda re, im=None: (e.convert(re, out[0]), e.const(0, out[1]) if im is None else e.convert(im, out[1]))
    function = complex.function(name, params)
    if function is None:
        raise Unsupported(name, "not on complex numbers")
    if name == "pow":  # the exponent may be an integer
        return lambda a, b, c, d=None: e.inline(function, a, b, e.convert(c, e.dtype(a)), e.like(a, 0) if d is None else d)
    return lambda *xs: e.inline(function, *xs)


def elementwise(e: Lowering, eqn: Any, *values: Value) -> Array:
    """Any primitive of :data:`NAMES` on arrays; scalars broadcast."""
    name, aval = eqn.primitive.name, eqn.outvars[0].aval
    check_axes(eqn)
    shape = check_shape(e.shape(aval), name)
    operands = [loaded(e, v, name) for v in values]
    out = scalar_dtypes(aval.dtype, name)
    if name == "select_n":
        which, *cases = operands
        by_part = zip(*(c.parts for c in cases), strict=True)
        parts = tuple(_map(shape, 1, lambda *xs: (_select(e, *xs),), which.parts[0], *p)[0] for p in by_part)
        return Array(plain_dtype(aval.dtype), parts)
    f: Callable[..., tuple[int, ...]]
    if len(out) == 2 or any(v.complex for v in operands):
        f = _parts(e, name, out, eqn.params)
    else:
        f = lambda *xs: (REAL[name](e, eqn.params, out[0], *xs),)  # noqa: E731
    return Array(np.dtype(aval.dtype), _map(shape, len(out), f, *(p for v in operands for p in v.parts)))


def _map(shape: tuple[int, ...], results: int, f: Callable[..., tuple[int, ...]], *parts: np.ndarray) -> tuple[np.ndarray, ...]:
    """``f`` on each element of arrays of numbers."""
    columns = zip(*(np.broadcast_to(p, shape).ravel().tolist() for p in parts), strict=True)
    rows = np.array([f(*xs) for xs in columns], np.int64).reshape(-1, results)
    return tuple(rows[:, k].reshape(shape) for k in range(results))


NAMES = REAL.keys() | complex.FUNCTIONS.keys() | {"select_n", "integer_pow"}
"""Every elementwise primitive there is a rule for."""


def is_elementwise(eqn: Any) -> bool:
    """Is it one of :data:`NAMES`, and are its operands' axes those of its result? A bitcast to another width has one more, or
    one less."""
    name = eqn.primitive.name
    return name in NAMES and (name != "bitcast_convert_type" or eqn.invars[0].aval.ndim == eqn.outvars[0].aval.ndim)


def check_axes(eqn: Any) -> None:
    if not is_elementwise(eqn):
        raise Unsupported(eqn.primitive.name, "to another width")
