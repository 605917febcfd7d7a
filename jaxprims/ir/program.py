"""The Program: a small typed scalar SSA program, all that the layers below know about the user's Python.

A Program is frozen, hashable, printable and parseable (``Program.parse(str(p)) == p``). Its text is canonical,
so it can be a custom call's attribute, a cache key, and what :func:`jaxprims.explain` prints::

    program(f32, f32) {
      %0 = arg f32 0
      %1 = arg f32 1
      %2 = add f32 %0 %1
    } -> (%2)

Values are scalars of the types in :data:`DTYPES`. Complex numbers and small arrays were split into scalars by the
frontend (a complex number is two: real, imaginary). Instructions (``op dtype operands attr``; the dtype is the result's):

===============================  =======================================================================================
``arg k``                        the k-th parameter
``const bits``                   a constant, as the hexadecimal bits of its dtype
``load u %i``                    scalar number %i (s32 or s64, already clamped in range) of uniform number u (a captured array)
a name of :data:`UNARY` ...      ``lax``'s operation of that name, XLA's arithmetic
``exp_below %a``                 exp of what is at most 0, but no less than the smallest normal number, or so; of NaN and what
                                 is greater it may be anything. CPU kernels' own
``select %p %a %b``              a where p, else b
``convert %a``                   numeric cast (float to int saturates, NaN gives 0; to b1: != 0)
``bitcast %a``                   reinterpretation at equal width
``loop n {body}``                ``for i in range(n)``: body(i: s32, carries..., invariants...) -> carries. Operands: initial
                                 carries, then invariants
``fold n {body}``                a ``loop`` with one carry, which the body only combines, by an operation that associates and
                                 commutes, with what it makes of the turn's number: the turns may be taken in any order
``while {cond} {body}``          cond(carries..., invariants...) -> b1; body likewise -> carries
``cond {false} {true}``          first operand b1 chooses the branch; the other operands are the arguments of both
``item k %x``                    k-th result of a ``loop``, ``fold``, ``while`` or ``cond``, whose own dtype is ``tuple``
===============================  =======================================================================================
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

_NUMPY: dict[str, np.dtype] = {
    "b1": np.dtype(np.bool_),
    "s8": np.dtype(np.int8), "s16": np.dtype(np.int16), "s32": np.dtype(np.int32), "s64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8), "u16": np.dtype(np.uint16), "u32": np.dtype(np.uint32), "u64": np.dtype(np.uint64),
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32), "f64": np.dtype(np.float64),
}  # fmt: skip

DTYPES = tuple(_NUMPY)
"""Every scalar type: b1 (stored as one byte), signed and unsigned integers, floats."""

UNARY = frozenset(
    "neg abs sign floor ceil round_away round_even is_finite not population_count clz sqrt rsqrt cbrt exp exp2 expm1 log "
    "log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh logistic erf erfc erf_inv lgamma digamma exp_below".split()
)
"""Operations of one operand, of the operand's dtype (``is_finite`` gives b1). Only floats have the mathematical ones."""

BINARY = frozenset(
    "add sub mul div rem pow max min atan2 nextafter and or xor shift_left shift_right_logical shift_right_arithmetic".split()
)
"""Operations of two operands of one dtype, which is the result's."""

COMPARE = frozenset("eq ne lt le gt ge".split())
"""Comparisons of two operands of one dtype; the result is b1."""

COMMUTATIVE = frozenset("add mul max min and or xor eq ne".split())

CONTROL = frozenset("loop fold while cond".split())

COUNTED = frozenset("loop fold".split())
"""Of these, those with a number of turns."""

NEUTRAL = {"add": 0, "mul": 1, "max": "least", "min": "greatest", "and": "ones", "or": 0, "xor": 0}
"""By operation, the number that changes none, as :func:`neutral_bits` takes it (but that the sum of 0 and -0.0 is 0)."""

FOLDED = frozenset(NEUTRAL)
"""Operations that a ``fold`` may combine by."""


def numpy_dtype(dtype: str) -> np.dtype:
    """The NumPy dtype of a Program's dtype name."""
    return _NUMPY[dtype]


def dtype_name(dtype: Any) -> str:
    """The Program's name of a real (not complex) NumPy dtype; KeyError for a dtype that kernels do not know."""
    return _NAMES[np.dtype(dtype)]


_NAMES = {v: k for k, v in _NUMPY.items()}


def itemsize(dtype: str) -> int:
    """Bytes of one scalar in memory."""
    return _NUMPY[dtype].itemsize


def register_bytes(dtype: str) -> int:
    """Bytes of one in a kernel's registers, where f16 and bf16 are held as f32."""
    return 4 if dtype in ("f16", "bf16") else itemsize(dtype)


def is_float(dtype: str) -> bool:
    return dtype in ("f16", "bf16", "f32", "f64")


def is_signed(dtype: str) -> bool:
    return dtype[0] == "s"


def to_bits(value: Any, dtype: str) -> int:
    """The bits of ``value`` (converted to ``dtype``) as an unsigned integer."""
    a = np.asarray(value).astype(_NUMPY[dtype])
    return int(a.view(f"u{a.dtype.itemsize}")[()])


def from_bits(bits: int, dtype: str) -> Any:
    """The NumPy scalar of ``dtype`` whose bits these are."""
    t = _NUMPY[dtype]
    return np.asarray(bits, f"u{t.itemsize}").view(t)[()]


def neutral_bits(what: Any, dtype: str) -> int:
    """The bits of a number, or of a dtype's "least" or "greatest" value (infinities count) or "ones"."""
    if what in ("least", "greatest"):
        if dtype == "b1":
            return int(what == "greatest")
        if is_float(dtype):
            return to_bits(-np.inf if what == "least" else np.inf, dtype)
        info = np.iinfo(numpy_dtype(dtype))
        return to_bits(info.min if what == "least" else info.max, dtype)
    if what == "ones":
        return 1 if dtype == "b1" else (1 << 8 * numpy_dtype(dtype).itemsize) - 1
    return to_bits(what, dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class Instr:
    """One instruction; the value it defines is named by its position in the body."""

    op: str
    dtype: str
    operands: tuple[int, ...] = ()
    attr: Any = None  # arg, item: int; const: bits; load: uniform number; loop, fold: (n, body); while, cond: (Program, Program);
    # add, sub, mul: may be rounded with what follows (``contraction``)


@dataclasses.dataclass(frozen=True)
class Program:
    """A typed scalar SSA program. ``params``: dtypes of the arguments; ``results``: numbers of the values returned."""

    params: tuple[str, ...]
    body: tuple[Instr, ...]
    results: tuple[int, ...]

    @property
    def result_dtypes(self) -> tuple[str, ...]:
        return tuple(self.body[r].dtype for r in self.results)

    @functools.cached_property
    def text(self) -> str:
        return "\n".join(_lines(self, ""))

    def __str__(self) -> str:
        return self.text

    def __hash__(self) -> int:
        return hash(self.text)

    @functools.cached_property
    def may_not_end(self) -> bool:
        """Whether there is a ``while`` in it, which need not end on arguments that nobody gave."""
        return any(i.op == "while" for i in self.walk())

    @staticmethod
    def parse(text: str) -> Program:
        """The inverse of ``str``."""
        lines = iter(text.splitlines())
        program, rest = _parse(next(lines), lines)
        if rest.strip():
            raise ValueError(f"unexpected text after a program: {rest!r}")
        return program

    def run(self, args: Sequence[Any], rule: Callable[[Instr, list[Any]], Any]) -> list[Any]:
        """The results, where ``rule(instruction, operands)`` says what each but the arguments gives."""
        values: list[Any] = []
        for i in self.body:
            values.append(args[i.attr] if i.op == "arg" else rule(i, [values[o] for o in i.operands]))
        return [values[r] for r in self.results]

    @property
    def used(self) -> set[int]:
        """The arguments that it reads."""
        return {i.attr for i in self.body if i.op == "arg"}

    def used_of(self, sizes: Iterable[int]) -> list[list[int]]:
        """The same by number in its group, where so many arguments are the first group, so many the next."""
        used, out, first = self.used, [], 0
        for size in sizes:
            out.append([k for k in range(size) if first + k in used])
            first += size
        return out

    def sources(self) -> list[frozenset[int]]:
        """The arguments that each value of the body is made of."""
        out: list[frozenset[int]] = []
        for i in self.body:
            out.append(frozenset({i.attr} if i.op == "arg" else ()).union(*(out[o] for o in i.operands)))
        return out

    def walk(self) -> Iterator[Instr]:
        """All instructions, those of nested programs included."""
        for instr in self.body:
            yield instr
            if instr.op in CONTROL:
                for part in instr.attr:
                    if isinstance(part, Program):
                        yield from part.walk()


def _lines(p: Program, indent: str) -> Iterator[str]:
    yield f"{indent}program({', '.join(p.params)}) {{"
    inner = indent + "  "
    for i, instr in enumerate(p.body):
        words = [f"{inner}%{i} =", instr.op, instr.dtype]
        if instr.op == "const":
            words.append(hex(instr.attr))
        elif isinstance(instr.attr, int):
            words.append(str(instr.attr))
        elif instr.op in COUNTED:
            words.append(str(instr.attr[0]))
        words += [f"%{o}" for o in instr.operands]
        yield " ".join(words)
        if instr.op in CONTROL:
            for part in instr.attr:
                if isinstance(part, Program):
                    yield from _lines(part, inner + "  ")
    yield f"{indent}}} -> ({', '.join(f'%{r}' for r in p.results)})"


_HEAD = re.compile(r"\s*program\(([^)]*)\) \{$")
_LINE = re.compile(r"\s*%\d+ = (\w+) (\w+)((?: \S+)*)$")
_TAIL = re.compile(r"\s*\} -> \(([^)]*)\)(.*)$")
_NESTED = {"loop": 1, "fold": 1, "while": 2, "cond": 2}


def _parse(head: str, lines: Iterator[str]) -> tuple[Program, str]:
    m = _HEAD.match(head)
    if m is None:
        raise ValueError(f"not the head of a program: {head!r}")
    params = tuple(m.group(1).split(", ")) if m.group(1) else ()
    body: list[Instr] = []
    for line in lines:
        if tail := _TAIL.match(line):
            results = tuple(int(r[1:]) for r in tail.group(1).split(", ")) if tail.group(1) else ()
            return Program(params, tuple(body), results), tail.group(2)
        m = _LINE.match(line)
        if m is None:
            raise ValueError(f"not an instruction: {line!r}")
        op, dtype, words = m.group(1), m.group(2), m.group(3).split()
        operands = tuple(int(w[1:]) for w in words if w[0] == "%")
        numbers = [int(w, 0) for w in words if w[0] != "%"]
        attr: Any = numbers[0] if numbers else None
        if op in _NESTED:
            parts = tuple(_parse(next(lines), lines)[0] for _ in range(_NESTED[op]))
            attr = (attr, *parts) if op in COUNTED else parts
        body.append(Instr(op, dtype, operands, attr))
    raise ValueError("a program without an end")


class Builder:
    """Builds a Program with hash-consing: the same instruction on the same operands is emitted once.

    >>> b = Builder(("f32", "f32"))
    >>> p = b.finish([b.emit("add", "f32", b.arg(0), b.arg(1))])
    >>> p.result_dtypes
    ('f32',)
    """

    def __init__(self, params: Sequence[str]):
        self.params = tuple(params)
        self.body: list[Instr] = []
        self._known: dict[Instr, int] = {}

    def dtype(self, value: int) -> str:
        return self.body[value].dtype

    def emit(self, op: str, dtype: str, *operands: int, attr: Any = None) -> int:
        """Appends an instruction (or finds the equal one) and returns its value's number."""
        instr = Instr(op, dtype, tuple(operands), attr)
        if instr not in self._known:
            self._known[instr] = len(self.body)
            self.body.append(instr)
        return self._known[instr]

    def arg(self, k: int) -> int:
        return self.emit("arg", self.params[k], attr=k)

    def args(self) -> list[int]:
        """All of them."""
        return [self.arg(k) for k in range(len(self.params))]

    def const(self, value: Any, dtype: str) -> int:
        return self.emit("const", dtype, attr=to_bits(value, dtype))

    def constant_value(self, value: int) -> Any:
        """The NumPy scalar if ``value`` is a constant, else None."""
        instr = self.body[value]
        return from_bits(instr.attr, instr.dtype) if instr.op == "const" else None

    def inline(self, program: Program, args: Sequence[int]) -> list[int]:
        """Emits another Program's body on these arguments; returns its results."""
        return program.run(args, lambda i, operands: self.emit(i.op, i.dtype, *operands, attr=i.attr))

    def finish(self, results: Sequence[int]) -> Program:
        """The Program with these results; what they do not need is dropped, what remains is renumbered."""
        live = set(results)
        for i in range(len(self.body) - 1, -1, -1):
            if i in live:
                live.update(self.body[i].operands)
        if min(live, default=0) < 0:
            raise ValueError(f"a result depends on parameter {~min(live)}")
        number: dict[int, int] = {}
        body: list[Instr] = []
        for i in sorted(live):
            instr = self.body[i]
            number[i] = len(body)
            body.append(dataclasses.replace(instr, operands=tuple(number[o] for o in instr.operands)))
        return Program(self.params, tuple(body), tuple(number[r] for r in results))


def chained(first: Program, second: Program) -> Program:
    """The second on the results of the first."""
    b = Builder(first.params)
    return b.finish(b.inline(second, b.inline(first, b.args())))


def narrowed(p: Program, params: Sequence[int], results: Sequence[int]) -> Program:
    """The Program with only these of its parameters, for these of its values. Raises ValueError if they depend on others."""
    b = Builder([p.params[k] for k in params])
    places = dict(zip(params, b.args(), strict=True))
    args = [places.get(k, ~k) for k in range(len(p.params))]  # nothing that depends on one without a value may be left
    return b.finish(b.inline(Program(p.params, p.body, tuple(results)), args))


def shifted_loads(p: Program, by: int) -> Program:
    """The program with its captured arrays numbered from ``by``."""
    if by == 0 or not any(i.op == "load" for i in p.walk()):
        return p
    body = []
    for i in p.body:
        attr = i.attr
        if i.op == "load":
            attr += by
        elif isinstance(attr, tuple):
            attr = tuple(shifted_loads(a, by) if isinstance(a, Program) else a for a in attr)
        body.append(dataclasses.replace(i, attr=attr))
    return Program(p.params, tuple(body), p.results)


def same_program(p: Program, q: Program) -> bool:
    """Do two Programs compute the same by the same instructions, whatever the order in which they are written?"""
    return p.params == q.params and in_order_of_use(p) == in_order_of_use(q)


def in_order_of_use(p: Program) -> Program:
    """As its results and their operands ask for instructions, one after the other."""
    b = Builder(p.params)
    number: dict[int, int] = {}
    stack = [(r, False) for r in reversed(p.results)]
    while stack:
        i, ready = stack.pop()
        if i in number:
            continue
        instr = p.body[i]
        if ready:
            number[i] = b.emit(instr.op, instr.dtype, *(number[o] for o in instr.operands), attr=instr.attr)
        else:
            stack.append((i, True))
            stack += [(o, False) for o in reversed(instr.operands)]
    return Program(p.params, tuple(b.body), tuple(number[r] for r in p.results))
