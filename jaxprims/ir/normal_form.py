"""The normal form of a Program: the same function written in different ways, as one text.

For matching only, never to generate code. Every rule here is exact (NaN, infinities, the sign of zero; a NaN's payload
aside), so that two Programs with one normal form are one function.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .evaluate import EXACT, NotEvaluable, apply
from .program import COMMUTATIVE, Builder, Instr, Program, in_order_of_use, is_float, neutral_bits, to_bits


@functools.lru_cache(maxsize=1024)
def simplify(op: Program) -> Program:
    """The normal form: commutative operands in order, ``lt``/``le``/``eq`` alone of the comparisons, no inverted selects,
    constants folded, harmless no-ops gone, branches turned into selects, values numbered in the order of use."""
    r = _Rewriter(op.params)
    results = r.program(op, [r.emit("arg", d, attr=k) for k, d in enumerate(op.params)])
    return in_order_of_use(Program(op.params, tuple(r.b.body), tuple(results)))


class _Rewriter:
    """Builds a Program through the rules; ``key`` orders values by what they compute, not by when they were made."""

    def __init__(self, params: Sequence[str]):
        self.b = Builder(params)
        self.keys: list[str] = []

    def __getitem__(self, value: int) -> Instr:
        return self.b.body[value]

    def dtype(self, value: int) -> str:
        return self[value].dtype

    def constant(self, value: int) -> Any:
        return self.b.constant_value(value)

    def const(self, value: Any, dtype: str) -> int:
        return self.raw("const", dtype, attr=to_bits(value, dtype))

    def is_const(self, value: int, wanted: float, *, negative_zero: bool = False) -> bool:
        c = self.constant(value)
        return c is not None and bool(c == wanted) and (c != 0 or bool(np.signbit(np.float64(c))) == negative_zero)

    def raw(self, op: str, dtype: str, *x: int, attr: Any = None) -> int:
        if op in COMMUTATIVE:
            x = tuple(sorted(x, key=self.keys.__getitem__))
        value = self.b.emit(op, dtype, *x, attr=attr)
        if value == len(self.keys):
            what = repr((op, dtype, [self.keys[o] for o in x], str(attr)))
            self.keys.append(hashlib.blake2b(what.encode(), digest_size=12).hexdigest())
        return value

    def emit(self, op: str, dtype: str, *x: int, attr: Any = None) -> int:
        for rule in _RULES.get(op, ()):
            found = rule(self, dtype, x)
            if found is not None:
                return found
        if x and op in EXACT and all(self[o].op == "const" for o in x):
            try:
                with np.errstate(all="ignore"):
                    return self.const(apply(op, dtype, [np.asarray(self.constant(o)) for o in x]), dtype)
            except NotEvaluable:
                pass
        return self.raw(op, dtype, *x, attr=attr)

    def program(self, p: Program, args: Sequence[int]) -> list[int]:
        def made(instr: Instr, x: list[Any]) -> Any:
            match instr.op:
                case "cond":  # as selects: both branches always have a value
                    no, yes = (self.program(branch, x[1:]) for branch in instr.attr)
                    return [self.emit("select", self.dtype(y), x[0], y, n) for n, y in zip(no, yes, strict=True)]
                case "item" if isinstance(x[0], list):
                    return x[0][instr.attr]
                case "loop" | "fold" | "while":
                    attr = tuple(simplify(part) if isinstance(part, Program) else part for part in instr.attr)
                    return self.raw(instr.op, instr.dtype, *x, attr=attr)
            return self.emit(instr.op, instr.dtype, *x, attr=instr.attr)

        return p.run(args, made)


Rule = Callable[[_Rewriter, str, tuple[int, ...]], int | None]
"""(rewriter, result's dtype, operands) -> the value that replaces the instruction, or None."""


def _greater(op: str) -> Rule:
    return lambda r, dtype, x: r.emit(op, "b1", x[1], x[0])


def _not_equal(r: _Rewriter, dtype: str, x: tuple[int, ...]) -> int:
    return r.emit("not", "b1", r.emit("eq", "b1", *x))


def _less_equal(r: _Rewriter, dtype: str, x: tuple[int, ...]) -> int | None:
    return None if is_float(r.dtype(x[0])) else r.emit("not", "b1", r.emit("lt", "b1", x[1], x[0]))


def _itself(result: bool) -> Rule:
    """A value compared with itself; a NaN is not equal to itself."""
    return lambda r, dtype, x: r.const(result, "b1") if x[0] == x[1] and not is_float(r.dtype(x[0])) else None


def _equals_truth(r: _Rewriter, dtype: str, x: tuple[int, ...]) -> int | None:
    for p, zero in (x, x[::-1]):
        source = r[p].operands[0] if r[p].op == "convert" else p
        if r.dtype(source) == "b1" and r.is_const(zero, 0):
            return r.emit("not", "b1", source)
        if r.dtype(source) == "b1" and r.is_const(zero, 1):
            return source
    return None


def _twice(op: str) -> Rule:
    return lambda r, dtype, x: r[x[0]].operands[0] if r[x[0]].op == op else None


def _select(r: _Rewriter, dtype: str, x: tuple[int, ...]) -> int | None:
    p, yes, no = x
    if yes == no:
        return yes
    if r[p].op == "const":
        return yes if r[p].attr else no
    if r[p].op == "not":
        return r.emit("select", dtype, r[p].operands[0], no, yes)
    if dtype == "b1" and r.constant(yes) is not None and r.constant(no) is not None:
        return p if r.constant(yes) else r.emit("not", "b1", p)
    if r[p].op == "lt" and not is_float(dtype) and {yes, no} == set(r[p].operands):
        return r.emit("min" if yes == r[p].operands[0] else "max", dtype, yes, no)
    return None


_FLOATS_IN = {"f64": ("f32", "f16", "bf16"), "f32": ("f16", "bf16")}
_INTEGERS_IN = {
    "s16": ("s8", "u8"), "s32": ("s8", "u8", "s16", "u16"), "s64": ("s8", "u8", "s16", "u16", "s32", "u32"),
    "u16": ("u8",), "u32": ("u8", "u16"), "u64": ("u8", "u16", "u32"),
}  # fmt: skip
_NARROWABLE = {
    True: frozenset("add sub mul div max min sqrt neg abs".split()),  # p' >= 2p + 2 digits: rounding twice is rounding once
    False: frozenset("add sub mul and or xor max min not neg".split()),  # modulo a power of two
}


def _convert(r: _Rewriter, dtype: str, x: tuple[int, ...]) -> int | None:
    """Casts that change nothing, and arithmetic in a wider type that gives what the narrow type gives."""
    inner = r[x[0]]
    if inner.dtype == dtype:
        return x[0]
    if inner.op == "convert" and r.dtype(inner.operands[0]) == dtype == "b1":
        return inner.operands[0]
    floats = is_float(dtype)
    if dtype in (_FLOATS_IN if floats else _INTEGERS_IN).get(inner.dtype, ()):

        def was(value: int) -> int | None:
            return r[value].operands[0] if r[value].op == "convert" and r.dtype(r[value].operands[0]) == dtype else None

        if (source := was(x[0])) is not None:
            return source
        narrow = [was(o) for o in inner.operands]
        if inner.op in _NARROWABLE[floats] and None not in narrow:
            return r.emit(inner.op, dtype, *(o for o in narrow if o is not None))
    return None


def _neutral(constant: float, *, negative_zero: bool = False, right_only: bool = False) -> Rule:
    def rule(r: _Rewriter, dtype: str, x: tuple[int, ...]) -> int | None:
        for value, other in ((x[0], x[1]),) if right_only else (x, x[::-1]):
            if r.is_const(other, constant, negative_zero=negative_zero and is_float(dtype)):
                return value
        return None

    return rule


def _all_ones(absorbing: bool) -> Rule:
    def rule(r: _Rewriter, dtype: str, x: tuple[int, ...]) -> int | None:
        for value, other in (x, x[::-1]):
            if r[other].op == "const" and r[other].attr == neutral_bits("ones", dtype):
                return other if absorbing else value
        return None

    return rule


def _idempotent(r: _Rewriter, dtype: str, x: tuple[int, ...]) -> int | None:
    return x[0] if x[0] == x[1] else None


def _add(r: _Rewriter, dtype: str, x: tuple[int, ...]) -> int | None:
    for value, other in (x, x[::-1]):
        if r[other].op == "neg":
            return r.emit("sub", dtype, value, r[other].operands[0])
    return None


def _sub(r: _Rewriter, dtype: str, x: tuple[int, ...]) -> int | None:
    if r[x[1]].op == "neg":
        return r.emit("add", dtype, x[0], r[x[1]].operands[0])
    return r.emit("neg", dtype, x[1]) if not is_float(dtype) and r.is_const(x[0], 0) else None


def _abs(r: _Rewriter, dtype: str, x: tuple[int, ...]) -> int | None:
    inner = r[x[0]]
    if dtype[0] == "u":
        return x[0]
    if inner.op == "neg":
        return r.emit("abs", dtype, *inner.operands)
    if inner.op == "sub":  # |a - b| is |b - a|
        ordered = sorted(inner.operands, key=r.keys.__getitem__)
        return r.raw("abs", dtype, r.emit("sub", dtype, *ordered))
    return None


_RULES: dict[str, tuple[Rule, ...]] = {
    "gt": (_greater("lt"),), "ge": (_greater("le"),), "ne": (_not_equal,), "le": (_less_equal, _itself(True)),
    "lt": (_itself(False),), "eq": (_itself(True), _equals_truth), "not": (_twice("not"),), "neg": (_twice("neg"),),
    "select": (_select,), "convert": (_convert,), "abs": (_abs,),
    "add": (_neutral(0, negative_zero=True), _add), "sub": (_neutral(0, right_only=True), _sub), "mul": (_neutral(1),),
    "div": (_neutral(1, right_only=True),), "or": (_idempotent, _neutral(0), _all_ones(absorbing=True)),
    "and": (_idempotent, _all_ones(absorbing=False)), "xor": (_neutral(0),), "max": (_idempotent,), "min": (_idempotent,),
}  # fmt: skip
