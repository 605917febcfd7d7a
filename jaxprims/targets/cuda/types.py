"""Scalar types in memory and in registers, and constants, as CUDA C++.

As on CPUs (``cpu/llvm/types.py``): in memory a b1 is a byte and an f16 or bf16 its 16 bits; in registers a b1 is a bool and an
f16 or bf16 the float of the same value, rounded to its own type again after every operation.
"""

from __future__ import annotations

import math

from ...ir.program import from_bits, is_float, itemsize, to_bits

HALVES = {"f16": "F16", "bf16": "Bf16"}

_REGISTER = {
    "b1": "bool", "s8": "i8", "s16": "i16", "s32": "i32", "s64": "i64", "u8": "u8", "u16": "u16", "u32": "u32", "u64": "u64",
    "f16": "float", "bf16": "float", "f32": "float", "f64": "double",
}  # fmt: skip
_MEMORY = {**_REGISTER, "b1": "u8", "f16": "u16", "bf16": "u16"}


def register_type(dtype: str) -> str:
    return _REGISTER[dtype]


def memory_type(dtype: str) -> str:
    return _MEMORY[dtype]


def from_memory(value: str, dtype: str) -> str:
    """What was loaded from memory, as it is held in registers."""
    if dtype in HALVES:
        return f"From{HALVES[dtype]}({value})"
    return f"({value} != 0)" if dtype == "b1" else value


def to_memory(value: str, dtype: str) -> str:
    """A value in registers, as it is stored to memory."""
    return f"{HALVES[dtype]}Bits({value})" if dtype in HALVES else value


def rounded(value: str, dtype: str) -> str:
    """A float rounded to the nearest f16 or bf16; values of other dtypes are what they should be already."""
    return f"Round{HALVES[dtype]}({value})" if dtype in HALVES else value


def constant(dtype: str, bits: int) -> str:
    """The value with these bits, in registers."""
    value = from_bits(bits, dtype)
    if is_float(dtype):
        return _float(dtype, bits, float(value))
    if dtype == "b1":
        return "true" if value else "false"
    number = int(value)
    if dtype in ("s32", "s64"):
        suffix = "ll" if dtype == "s64" else ""
        if number == -(1 << (8 * itemsize(dtype) - 1)):  # the literal without its sign would be too large
            return f"({number + 1}{suffix} - 1)"
        return f"({number}{suffix})" if number < 0 else f"{number}{suffix}"
    suffix = {"u32": "u", "u64": "ull"}.get(dtype, "")
    return f"{number}{suffix}" if suffix else f"{register_type(dtype)}({number})"


def _float(dtype: str, bits: int, value: float) -> str:
    tiny = 2.0**-1022 if dtype == "f64" else 2.0**-126
    if value == 0 or tiny <= abs(value) < math.inf:
        text = f"{value!r}{'' if dtype == 'f64' else 'f'}"  # enough digits, however a compiler reads them
        return f"({text})" if text[0] == "-" else text
    if dtype == "f64":
        return f"BitCast<double>({bits:#018x}ull)"
    return f"BitCast<float>({to_bits(value, 'f32'):#010x}u)"
