"""A reference interpreter of Programs: one scalar at a time, NumPy's and SciPy's functions, XLA's rules where they differ."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.special

from jaxprims.ir.program import COMPARE, Instr, Program, from_bits, is_float, numpy_dtype


def run(program: Program, args: Sequence[Any], uniforms: Sequence[np.ndarray] = ()) -> list[Any]:
    """The results for these scalars; ``uniforms`` are flat arrays (a complex one viewed as its parts)."""
    with np.errstate(all="ignore"):
        return _run(program, [numpy_dtype(t).type(a) for t, a in zip(program.params, args, strict=True)], uniforms)


def _run(program: Program, args: list[Any], uniforms: Sequence[np.ndarray]) -> list[Any]:
    values: list[Any] = []
    for instr in program.body:
        x = [values[o] for o in instr.operands]
        value = _instr(instr, x, args, uniforms)
        if instr.dtype != "tuple":
            assert isinstance(value, numpy_dtype(instr.dtype).type), (instr, value, type(value))
        values.append(value)
    return [values[r] for r in program.results]


def _instr(instr: Instr, x: list[Any], args: list[Any], uniforms: Sequence[np.ndarray]) -> Any:
    match instr.op:
        case "arg":
            return args[instr.attr]
        case "const":
            return from_bits(instr.attr, instr.dtype)
        case "load":
            assert 0 <= x[0] < uniforms[instr.attr].size
            return uniforms[instr.attr][x[0]]
        case "item":
            return x[0][instr.attr]
        case "select":
            return x[1] if x[0] else x[2]
        case "convert":
            return cast(x[0], instr.dtype)
        case "bitcast":
            return np.asarray(x[0]).view(numpy_dtype(instr.dtype))[()]
        case "cond":
            return _run(instr.attr[1 if x[0] else 0], x[1:], uniforms)
        case "loop":
            n, body = instr.attr
            count = len(body.results)
            carry, rest = x[:count], x[count:]
            for i in range(n):
                carry = _run(body, [np.int32(i), *carry, *rest], uniforms)
            return carry
        case "while":
            condition, body = instr.attr
            count = len(body.results)
            carry, rest = x[:count], x[count:]
            while _run(condition, [*carry, *rest], uniforms)[0]:
                carry = _run(body, [*carry, *rest], uniforms)
            return carry
    return _arithmetic(instr.op, x)


def _arithmetic(op: str, x: list[Any]) -> Any:
    t = type(x[0])
    if op in COMPARE:
        return np.bool_(getattr(operator, op)(*x))
    if op == "is_finite":
        return np.bool_(np.isfinite(x[0]))
    if np.dtype(t).kind in "iu":
        return _wrap(INTEGER[op](*(int(v) for v in x), 8 * np.dtype(t).itemsize), t)
    if t is np.bool_:
        return np.bool_(LOGIC[op](*x))
    if op == "nextafter":
        return t(_nextafter(*x))
    wide = np.float64 if t is np.float64 else np.float32
    return t(FLOAT[op](*(wide(v) for v in x)))


def cast(value: Any, dtype: str) -> Any:
    """XLA's conversion: saturating from floats, modulo 2^n from integers, ``!= 0`` to booleans."""
    t = numpy_dtype(dtype)
    if dtype == "b1":
        return np.bool_(value != 0)
    if is_float(dtype) or np.asarray(value).dtype.kind in "iub":
        return np.asarray(value).astype(t)[()]
    info, v = np.iinfo(t), float(value)
    return t.type(0 if np.isnan(v) else info.max if v >= info.max else info.min if v <= info.min else int(v))


def _wrap(n: int, t: type) -> Any:
    width = 8 * np.dtype(t).itemsize
    n &= (1 << width) - 1
    return t(n - (1 << width) if np.dtype(t).kind == "i" and n >> (width - 1) else n)


def _signed(a: int, width: int) -> int:
    return a - (1 << width) if a >> (width - 1) == 1 else a


def _int_div(a: int, b: int, width: int) -> int:
    return -1 if b == 0 else (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


def _int_rem(a: int, b: int, width: int) -> int:
    return a if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)


def _shift(f: Callable[[int, int, int], int], past: Callable[[int], int]) -> Callable[[int, int, int], int]:
    return lambda a, b, width: f(a, b, width) if 0 <= b < width else past(a)


INTEGER: dict[str, Callable[..., int]] = {
    "add": lambda a, b, n: a + b,
    "sub": lambda a, b, n: a - b,
    "mul": lambda a, b, n: a * b,
    "div": _int_div,
    "rem": _int_rem,
    "max": lambda a, b, n: max(a, b),
    "min": lambda a, b, n: min(a, b),
    "and": lambda a, b, n: a & b,
    "or": lambda a, b, n: a | b,
    "xor": lambda a, b, n: a ^ b,
    "not": lambda a, n: ~a,
    "neg": lambda a, n: -a,
    "abs": lambda a, n: abs(a),
    "sign": lambda a, n: (a > 0) - (a < 0),
    "population_count": lambda a, n: (a & ((1 << n) - 1)).bit_count(),
    "clz": lambda a, n: n - (a & ((1 << n) - 1)).bit_length(),
    "shift_left": _shift(lambda a, b, n: a << b, lambda a: 0),
    "shift_right_logical": _shift(lambda a, b, n: (a & ((1 << n) - 1)) >> b, lambda a: 0),
    "shift_right_arithmetic": lambda a, b, n: _signed(a, n) >> (b if 0 <= b < n else n),
}

LOGIC: dict[str, Callable[..., Any]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": np.logical_not,
}


def _round_away(x: Any) -> Any:
    r = np.trunc(x)
    return r + np.copysign(1, x) if abs(x - r) >= 0.5 else r


def _nextafter(a: Any, b: Any) -> Any:
    if np.dtype(type(a)).kind == "f":
        return np.nextafter(a, b)
    if a != a or b != b or a == b:
        return a + b if a != b else b
    n = int(np.asarray(a).view(np.int16))
    if a == 0:
        n = 1 if b > 0 else -0x7FFF
    else:
        n += 1 if (b > a) == (a > 0) else -1
    return np.asarray(n, np.int16).view(type(a))[()]


FLOAT: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": np.divide,
    "rem": np.fmod,
    "pow": lambda a, b: np.power(np.array([a]), np.array([b]))[0],
    "max": lambda a, b: a + b if a == b == 0 else np.maximum(a, b),  # of zeros, the positive one
    "min": lambda a, b: -(-a - b) if a == b == 0 else np.minimum(a, b),
    "atan2": np.arctan2,
    "neg": operator.neg,
    "abs": abs,
    "sign": lambda x: x if x == 0 else np.sign(x),
    "floor": np.floor,
    "ceil": np.ceil,
    "round_away": _round_away,
    "round_even": np.rint,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.divide(type(x)(1), np.sqrt(x)),
    "cbrt": np.cbrt,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "logistic": lambda x: np.divide(type(x)(1), 1 + np.exp(-x)),
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "erf_inv": scipy.special.erfinv,
    "lgamma": scipy.special.gammaln,
    "digamma": scipy.special.digamma,
}
