"""The table of operations: how each is written in CUDA C++, the counterpart of ``cpu/llvm/table.py``.

Arithmetic is XLA's. What C++ leaves undefined or does otherwise is a function of cuda/kernels/math.cuh, of the operation's name.
Operands are names or literals, so that no parentheses are needed around them.
"""

from __future__ import annotations

from collections.abc import Callable

from ...ir.program import is_float, is_signed
from .types import HALVES, register_type, rounded, to_memory

Writer = Callable[..., str]
"""(operands' dtype, operands...) -> an expression."""


def _camel(op: str) -> str:
    return "".join(word.capitalize() for word in op.split("_"))


def _call(name: str) -> Writer:
    return lambda dtype, *args: f"{name}({', '.join(args)})"


def _infix(sign: str) -> Writer:
    return lambda dtype, x, y: f"{x} {sign} {y}"


def _prefix(sign: str) -> Writer:
    return lambda dtype, x: f"{sign}{x}"


def _library(name: str) -> Writer:
    """A function of CUDA's mathematical library; f32's has an f at the end."""
    return lambda dtype, *args: f"{name}{'' if dtype == 'f64' else 'f'}({', '.join(args)})"


def _by_kind(pred: Writer | None, integer: Writer | None, floating: Writer | None, native: Writer | None = None) -> Writer:
    """One operation by the kind of its dtype; ``native``: on u32 and u64, which wrap by themselves."""

    def write(dtype: str, *args: str) -> str:
        if is_float(dtype):
            writer = floating
        elif dtype == "b1":
            writer = pred
        else:
            writer = native if native is not None and dtype in ("u32", "u64") else integer
        if writer is None:
            raise TypeError(f"no such operation on {dtype}")
        return writer(dtype, *args)

    return write


def _wrapping(name: str, sign: str, pred: Writer | None = None) -> Writer:
    return _by_kind(pred, _call(name), _infix(sign), _infix(sign))


def _integers(name: str) -> Writer:
    return _by_kind(None, _call(name), None)


def _floats(writer: Writer) -> Writer:
    return _by_kind(None, None, writer)


def _bitwise(sign: str, pred: str) -> Writer:
    return _by_kind(_infix(pred), _infix(sign), None)


def _nextafter(dtype: str, x: str, y: str) -> str:
    return f"NextAfter{HALVES.get(dtype, '')}({x}, {y})"


def bitcast(value: str, source: str, dtype: str) -> str:
    """The same bits as another dtype of the same size."""
    if source == dtype:
        return value
    if dtype in HALVES:
        return f"From{HALVES[dtype]}(BitCast<u16>({to_memory(value, source)}))"
    if dtype == "b1":
        return f"{value} != 0"
    return f"BitCast<{register_type(dtype)}>({f'u8({value})' if source == 'b1' else to_memory(value, source)})"


def convert(value: str, source: str, dtype: str) -> str:
    """XLA's numeric cast: to integers it saturates and NaN gives 0; to b1 it asks for != 0."""
    if source == dtype:
        return value
    if dtype == "b1":
        return f"{value} != 0"
    if is_float(source) and not is_float(dtype):
        return f"Saturated<{register_type(dtype)}>({value})"
    same = register_type(source) == register_type(dtype)
    return rounded(value if same else f"static_cast<{register_type(dtype)}>({value})", dtype)


def operation(op: str, dtype: str, source: str, args: list[str]) -> str:
    """An instruction that knows no more than its operands, of dtype ``source`` (a select's: of the values chosen from)."""
    if op == "select":
        return f"{args[0]} ? {args[1]} : {args[2]}"
    if op == "convert":
        return convert(args[0], source, dtype)
    if op == "bitcast":
        return bitcast(args[0], source, dtype)
    value = TABLE[op](source, *args)
    return value if op in EXACT else rounded(value, dtype)


MATH: dict[str, Writer] = {
    **{name: _floats(_library(name)) for name in
       "sqrt rsqrt cbrt exp exp2 expm1 log log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc lgamma pow "
       "atan2".split()},
    "erf_inv": _floats(_library("erfinv")),
    "logistic": _floats(_call("Logistic")),
    "digamma": _floats(_call("Digamma")),
}  # fmt: skip
"""The mathematical operations."""

TABLE: dict[str, Writer] = {
    **MATH,
    **{name: _floats(_library(name)) for name in ("floor", "ceil")},
    "round_away": _floats(_library("round")),
    "round_even": _floats(_library("rint")),
    "is_finite": _floats(_call("IsFinite")),
    "add": _wrapping("Add", "+", _infix("|")),
    "sub": _wrapping("Sub", "-"),
    "mul": _wrapping("Mul", "*", _infix("&")),
    "div": _by_kind(None, _call("Div"), _infix("/")),
    "rem": _by_kind(None, _call("Rem"), _library("fmod")),
    "max": _by_kind(_infix("|"), _call("Max"), _call("Max")),
    "min": _by_kind(_infix("&"), _call("Min"), _call("Min")),
    "and": _bitwise("&", "&"),
    "or": _bitwise("|", "|"),
    "xor": _bitwise("^", "!="),
    "not": _by_kind(_prefix("!"), _prefix("~"), None),
    "neg": _by_kind(None, _call("Neg"), _prefix("-")),
    "abs": _by_kind(None, lambda dtype, x: f"Abs({x})" if is_signed(dtype) else x, _library("fabs")),
    "sign": _by_kind(None, _call("Sign"), _call("Sign")),
    **{name: _integers(_camel(name)) for name in ("shift_left", "shift_right_logical", "shift_right_arithmetic")},
    **{name: _integers(_camel(name)) for name in ("population_count", "clz")},
    "nextafter": _floats(_nextafter),
    **{name: _infix(sign) for name, sign in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items()},
}
"""How each operation is written, but those that know more than their operands: ``arg const load select convert bitcast`` and
control flow."""

EXACT = frozenset("rem max min neg abs sign floor ceil round_away round_even nextafter".split())
"""What needs no rounding in f16 and bf16."""
