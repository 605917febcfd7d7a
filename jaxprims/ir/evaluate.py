"""A small NumPy interpreter of Programs: XLA's arithmetic on arrays of sample values.

For deciding things about an operator (classify.py) and as a reference in tests, which compare it with XLA; kernels never run it.
Special functions that NumPy lacks raise :class:`NotEvaluable`, unless they are given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .program import Instr, Program, from_bits, numpy_dtype

MAX_ITERATIONS = 10_000
"""Turns of all loops together, nested ones included; what takes more on some sample is not evaluable."""


class NotEvaluable(Exception):
    """The Program has an instruction that this interpreter does not know."""


def evaluate(
    program: Program, args: Sequence[np.ndarray], uniforms: Sequence[np.ndarray] = (), more: Mapping[str, Any] | None = None
) -> list[np.ndarray]:
    """The results of ``program`` on arrays of one shape, element by element, in the parameters' dtypes. ``uniforms``: captured
    arrays, flat; ``more``: functions of instructions that are not in the table."""
    with np.errstate(all="ignore"):
        return _Run(uniforms, more or {}).run(program, [np.asarray(a) for a in args])


@dataclasses.dataclass
class _Run:
    uniforms: Sequence[np.ndarray]
    more: Mapping[str, Any]
    turns: int = 0

    def run(self, program: Program, args: list[np.ndarray]) -> list[np.ndarray]:
        def made(instr: Instr, x: list[Any]) -> Any:
            match instr.op:
                case "const":
                    return np.broadcast_to(from_bits(instr.attr, instr.dtype), args[0].shape if args else ())
                case "load":
                    return self._load(instr, x[0])
                case "item":
                    return x[0][instr.attr]
                case "loop" | "fold":
                    return self._loop(instr, x)
                case "while":
                    return self._while(instr, x)
                case "cond":
                    no, yes = (self.run(branch, x[1:]) for branch in instr.attr)
                    return [np.where(x[0], y, n) for n, y in zip(no, yes, strict=True)]
                case op if op in self.more:
                    return np.asarray(self.more[op](*x)).astype(numpy_dtype(instr.dtype), copy=False)
            return apply(instr.op, instr.dtype, x)

        return program.run(args, made)

    def _load(self, instr: Instr, at: np.ndarray) -> np.ndarray:
        if not self.uniforms:
            raise NotEvaluable("load")
        uniform = self.uniforms[instr.attr]
        return uniform[np.clip(at, 0, len(uniform) - 1)]  # a branch that is not taken may be anywhere

    def _loop(self, instr: Instr, x: list[np.ndarray]) -> list[np.ndarray]:
        n, body = instr.attr
        if n > MAX_ITERATIONS:
            raise NotEvaluable(f"a loop of {n} iterations")
        carries = len(body.results)
        for i in range(n):
            self._turn()
            x = self.run(body, [np.full(x[0].shape, i, np.int32), *x]) + x[carries:]
        return x[:carries]

    def _while(self, instr: Instr, x: list[np.ndarray]) -> list[np.ndarray]:
        cond, body = instr.attr
        carries = len(body.results)
        while True:
            (going,) = self.run(cond, x)
            if not going.any():
                return x[:carries]
            self._turn()
            x = [np.where(going, new, old) for new, old in zip(self.run(body, x), x, strict=False)] + x[carries:]

    def _turn(self) -> None:
        self.turns += 1
        if self.turns > MAX_ITERATIONS:
            raise NotEvaluable("loops of too many iterations")


def apply(op: str, dtype: str, x: Sequence[np.ndarray]) -> np.ndarray:
    """One instruction of an operation on scalars: the result, of ``dtype``."""
    if op not in _TABLE:
        raise NotEvaluable(op)
    if op in ("convert", "bitcast"):
        return _TABLE[op](x[0], numpy_dtype(dtype))
    return np.asarray(_TABLE[op](*x)).astype(numpy_dtype(dtype), copy=False)


def _integer(a: np.ndarray) -> bool:
    return a.dtype.kind in "iub"


def _convert(a: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype.kind not in "iu" or _integer(a):
        return a != 0 if dtype.kind == "b" else a.astype(dtype)
    info, wide = np.iinfo(dtype), np.trunc(a.astype(np.float64))  # a float to an integer: saturate, NaN gives 0
    inside = (wide > info.min) & (wide < info.max)
    out = np.where(inside, wide, 0).astype(dtype)
    return np.where(inside | np.isnan(wide), out, np.where(wide > 0, dtype.type(info.max), dtype.type(info.min)))


def _div(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if not _integer(a):
        return a / b
    divisor = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, ~(a ^ a), (a - np.fmod(a, divisor)) // divisor)  # truncated; by zero, all ones


def _rem(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, b.dtype.type(1), b))) if _integer(a) else np.fmod(a, b)


def _pow(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if _integer(a):
        raise NotEvaluable("pow of integers")
    return np.power(a, np.array(b))  # a copy: of a broadcast exponent 0.5 NumPy would make a square root


def _max(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.maximum(a, b) if _integer(a) else np.where((a == 0) & (b == 0), a + b, np.maximum(a, b))  # 0.0 over -0.0


def _min(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.minimum(a, b) if _integer(a) else -_max(-a, -b)


def _sign(a: np.ndarray) -> np.ndarray:
    return np.where(a == 0, a, np.sign(a))  # of -0.0, -0.0


def _shift(kind: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def shift(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        bits, unsigned = 8 * a.itemsize, np.dtype(f"u{a.itemsize}")
        inside = b.astype(unsigned) < bits
        by = np.where(inside, b, 0).astype(unsigned)
        if kind == "arithmetic":
            signed = a.astype(f"i{a.itemsize}")  # of unsigned integers, too
            return (signed >> np.where(inside, by, bits - 1).astype(signed.dtype)).astype(a.dtype)
        u = a.astype(unsigned)
        return np.where(inside, u << by if kind == "left" else u >> by, 0).astype(unsigned).astype(a.dtype)

    return shift


def _bits(a: np.ndarray) -> np.ndarray:
    return np.asarray(a).view(f"u{a.itemsize}")


def _round_away(a: np.ndarray) -> np.ndarray:
    whole = np.trunc(a)
    return whole + np.copysign((np.abs(a - whole) >= 0.5).astype(a.dtype), a)


def _clz(a: np.ndarray) -> np.ndarray:
    bits = 8 * a.itemsize
    smeared = _bits(a)
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < bits:
            smeared = smeared | (smeared >> np.asarray(shift, smeared.dtype))
    return bits - np.bitwise_count(smeared)


_TABLE: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _div, "rem": _rem, "pow": _pow, "max": _max, "min": _min,
    "atan2": np.arctan2, "nextafter": np.nextafter, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shift_left": _shift("left"), "shift_right_logical": _shift("right"), "shift_right_arithmetic": _shift("arithmetic"),
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "neg": np.negative, "abs": np.abs, "sign": _sign, "floor": np.floor, "ceil": np.ceil, "round_away": _round_away,
    "round_even": np.rint, "is_finite": np.isfinite, "not": np.invert, "clz": _clz,
    "population_count": lambda a: np.bitwise_count(_bits(a)), "sqrt": np.sqrt, "rsqrt": lambda a: 1 / np.sqrt(a),
    "cbrt": np.cbrt, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "logistic": lambda a: 1 / (1 + np.exp(-a)),
    "exp_below": np.exp, "select": np.where, "convert": _convert, "bitcast": lambda a, dtype: np.asarray(a).view(dtype),
}  # fmt: skip

EXACT = frozenset(
    "add sub mul div max min and or xor shift_left shift_right_logical shift_right_arithmetic eq ne lt le gt ge neg abs sign "
    "floor ceil round_even is_finite not clz population_count sqrt select convert bitcast".split()
)
"""Operations with one right answer, the same here as on every target."""


def same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where two arrays of one dtype hold the same value: NaN is NaN, and 0.0 is -0.0."""
    return (a == b) | ((a != a) & (b != b))


def identical(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where they hold the same value, the sign of zero included."""
    return same(a, b) if _integer(a) else same(a, b) & ((a != b) | (np.signbit(a) == np.signbit(b)))
