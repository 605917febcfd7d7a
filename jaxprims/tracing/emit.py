"""Emitter: appends instructions to a Program under construction, folding what is exact to fold.

Only integers and booleans are computed here (their arithmetic is exact and wraps as XLA's does), and comparisons and
conversions of constants; floating-point arithmetic is left as it was written. A nested program (the body of a loop, a branch)
has an emitter of its own, which imports the values it uses from the one around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from ..ir.evaluate import apply
from ..ir.program import COMPARE, Builder, Instr, Program, is_float, itemsize, to_bits

MAX_INSTRUCTIONS = 20_000
"""A function with more instructions, loops that were unrolled included, is not compiled."""

MAX_SLOTS = 4096
"""An array inside the function with more scalars is not compiled."""


class Unsupported(Exception):
    """The function cannot be compiled; ``primitive`` names what is in the way and ``reason`` says why."""

    def __init__(self, primitive: str, reason: str = "no kernel can be made of it"):
        super().__init__(f"{primitive}: {reason}")
        self.primitive = primitive
        self.reason = reason


class Counter:
    """How many instructions there are in a program and all that are nested in it."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        self.count += 1
        if self.count > MAX_INSTRUCTIONS:
            raise Unsupported("function", f"it has more than {MAX_INSTRUCTIONS} instructions ({self.count} at least)")


class Emitter:
    """Emits instructions by name; result dtypes follow from the operands."""

    def __init__(self, params: Sequence[str], counter: Counter | None = None):
        self.builder = Builder(params)
        self.counter = Counter() if counter is None else counter

    def dtype(self, value: int) -> str:
        return self.builder.dtype(value)

    def instr(self, value: int) -> Instr:
        return self.builder.body[value]

    def emit(self, op: str, dtype: str, *operands: int, attr: Any = None) -> int:
        """Appends an instruction as it is."""
        before = len(self.builder.body)
        value = self.builder.emit(op, dtype, *operands, attr=attr)
        if value == before:
            self.counter.add()
        return value

    def const(self, value: Any, dtype: str) -> int:
        return self.emit("const", dtype, attr=to_bits(value, dtype))

    def like(self, value: int, constant: Any) -> int:
        """A constant of the dtype of ``value``."""
        return self.const(constant, self.dtype(value))

    def constant(self, value: int) -> Any:
        """The NumPy scalar if ``value`` is a constant, else None."""
        return self.builder.constant_value(value)

    def op(self, name: str, *operands: int) -> int:
        """An arithmetic instruction, folded where that is exact."""
        dtype = "b1" if name in COMPARE or name == "is_finite" else self.dtype(operands[0])
        if not is_float(self.dtype(operands[0])) or name in COMPARE:
            known = [self.constant(o) for o in operands]
            if name in _FOLDED and all(k is not None for k in known):
                return self._folded(name, dtype, known)
            same = self._identity(name, operands, known)
            if same is not None:
                return same
        return self.emit(name, dtype, *operands)

    def _folded(self, name: str, dtype: str, known: Sequence[Any]) -> int:
        with np.errstate(all="ignore"):
            return self.const(apply(name, dtype, known), dtype)

    def _identity(self, name: str, operands: Sequence[int], known: Sequence[Any]) -> int | None:
        """``x`` for x + 0, x * 1, x & True and the like; the condition itself for ``convert(condition) != 0``."""
        if len(operands) != 2:
            return None
        a, b = operands
        for x, k in ((a, known[1]), (b, known[0])):
            if k is None:
                continue
            if name in _NEUTRAL and (~k if name == "and" else k) == _NEUTRAL[name] and (x == a or name != "sub"):
                return x
            if name in ("mul", "and") and k == 0:
                return self.like(x, 0)
            source = self.instr(x)
            if name == "ne" and k == 0 and source.op == "convert" and self.dtype(source.operands[0]) == "b1":
                return source.operands[0]
        return None

    def select(self, p: int, a: int, b: int) -> int:
        known = self.constant(p)
        if known is not None:
            return a if known else b
        return a if a == b else self.emit("select", self.dtype(a), p, a, b)

    def convert(self, value: int, dtype: str) -> int:
        """A numeric cast, XLA's: float to integer saturates and NaN gives 0."""
        if self.dtype(value) == dtype:
            return value
        known = self.constant(value)
        return self.emit("convert", dtype, value) if known is None else self._folded("convert", dtype, [known])

    def bitcast(self, value: int, dtype: str) -> int:
        if self.dtype(value) == dtype:
            return value
        instr = self.instr(value)
        return self.emit("const", dtype, attr=instr.attr) if instr.op == "const" else self.emit("bitcast", dtype, value)

    def child(self, params: Sequence[str]) -> Self:
        """An emitter for a program nested in this one."""
        return type(self)(params, self.counter)


class Imports:
    """The values of an outer program that nested programs use: they become parameters after the first ``fixed`` ones."""

    def __init__(self, outer: Emitter, fixed: Sequence[str]):
        self.outer = outer
        self.fixed = tuple(fixed)
        self.numbers: dict[int, int] = {}

    def take(self, inner: Emitter, value: int) -> int:
        """The number that an outer value has in the nested program; constants are repeated there."""
        instr = self.outer.instr(value)
        if instr.op == "const":
            return inner.emit("const", instr.dtype, attr=instr.attr)
        k = self.numbers.setdefault(value, len(self.numbers))
        inner.builder.params = (*self.fixed, *(self.outer.dtype(v) for v in self.numbers))
        return inner.builder.arg(len(self.fixed) + k)

    def close(self, *nested: tuple[Emitter, Sequence[int]]) -> tuple[list[Program], list[int]]:
        """The nested programs, all with the same parameters, and the outer values of the parameters after the fixed ones."""
        bodies = [inner.builder.finish(results) for inner, results in nested]
        used = set[int]().union(*(p.used for p in bodies))
        kept = [(v, len(self.fixed) + k) for v, k in self.numbers.items() if len(self.fixed) + k in used]
        params = (*self.fixed, *(self.outer.dtype(v) for v, _ in kept))
        renumber = {k: k for k in range(len(self.fixed))} | {k: len(self.fixed) + i for i, (_, k) in enumerate(kept)}
        programs = []
        for p in bodies:
            body = (Instr("arg", i.dtype, (), renumber[i.attr]) if i.op == "arg" else i for i in p.body)
            programs.append(Program(params, tuple(body), p.results))
        return programs, [v for v, _ in kept]


_FOLDED = COMPARE | frozenset("add sub mul div rem neg sign max min and or xor not".split())

_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "or": 0, "xor": 0, "and": 0}  # of "and" the inverse


def bits(dtype: str) -> int:
    """The width of a dtype."""
    return 8 * itemsize(dtype)
