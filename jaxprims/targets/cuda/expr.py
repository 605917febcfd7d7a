"""The expression table at work: Program -> the statements of a CUDA C++ function, one for each instruction.

The value that an explanation shows as ``%7`` is ``v7`` here; one of a Program that instruction 7 holds, ``v7_2`` (of its second
Program, ``v7b_2``), and the results of that instruction, ``r7_0``, ``r7_1``. Arguments and constants stand where they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ...ir.program import CONTROL, Instr, Program, from_bits
from ...ir.work import instructions
from .table import MATH, operation
from .types import constant, from_memory, register_type

UNROLLED = 256
"""Instructions that a loop's unrolled body may have."""


KEPT = 16
"""Captured scalars that a thread may have in registers."""

Scalars = frozenset[tuple[int, int]]
"""Captured scalars: the captured array's number, and the place in it."""


def statements(
    program: Program, args: Sequence[str], indent: str = "  ", kept: Scalars = frozenset()
) -> tuple[list[str], list[str]]:
    """The lines, and the results as expressions. ``args``: an expression for each parameter; captured arrays are in ``u``, and so
    are the captured scalars that are ``kept``."""
    body = _Body(indent, kept)
    results = body.program(program, args, "v")
    return body.lines, results


def loads(program: Program) -> bool:
    """Does it read captured arrays?"""
    return any(i.op == "load" for i in program.walk())


def fixed_loads(programs: Iterable[Program]) -> Scalars:
    """The scalars of captured arrays that these Programs read, each from a place that is known; none if they are too many to be
    kept from one element to the next."""

    def found(program: Program) -> Iterator[tuple[int, int]]:
        for i in program.body:
            if (scalar := _scalar(program, i)) is not None:
                yield scalar
            for nested in i.attr if i.op in CONTROL else ():
                if isinstance(nested, Program):
                    yield from found(nested)

    all_ = frozenset(scalar for program in programs for scalar in found(program))
    return all_ if len(all_) <= KEPT else frozenset()


def _scalar(program: Program, instr: Instr) -> tuple[int, int] | None:
    if instr.op != "load":
        return None
    place = program.body[instr.operands[0]]
    return (instr.attr, from_bits(place.attr, place.dtype)) if place.op == "const" else None


_WEIGHTS = dict.fromkeys(MATH, 20) | {"div": 8, "rem": 12, "sqrt": 6, "load": 6, "pow": 60}


def length(program: Program) -> int:
    """About how many of the device's instructions a Program takes."""
    return instructions(program, _WEIGHTS)


class _Body:
    def __init__(self, indent: str, kept: Scalars):
        self.lines: list[str] = []
        self.indent = indent
        self.kept = kept

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def program(self, program: Program, args: Sequence[str], prefix: str) -> list[str]:
        values: list[str] = []
        for k, instr in enumerate(program.body):
            operands = [values[o] for o in instr.operands]
            name = f"{prefix}{k}"
            if instr.op == "arg":
                values.append(args[instr.attr])
            elif instr.op == "const":
                values.append(constant(instr.dtype, instr.attr))
            elif instr.op == "item":
                values.append(f"{operands[0]}_{instr.attr}")
            elif instr.op in CONTROL:
                getattr(self, f"_{instr.op}")(instr, operands, name[1:])
                values.append(f"r{name[1:]}")
            else:
                self.line(f"const {register_type(instr.dtype)} {name} = {self._value(program, instr, operands)};")
                values.append(name)
        return [values[r] for r in program.results]

    def _value(self, program: Program, instr: Instr, operands: list[str]) -> str:
        if instr.op == "load":
            if (scalar := _scalar(program, instr)) in self.kept:
                return from_memory("u.u{}_{}".format(*scalar), instr.dtype)
            return from_memory(f"LoadConstant(u.u{instr.attr} + {operands[0]})", instr.dtype)
        source = program.body[instr.operands[0]].dtype
        return operation(instr.op, instr.dtype, instr.dtype if instr.op == "select" else source, operands)

    def _carries(self, body: Program, operands: Sequence[str], path: str) -> list[str]:
        """Variables that start from the operands."""
        names = [f"r{path}_{k}" for k in range(len(body.results))]
        for name, dtype, start in zip(names, body.result_dtypes, operands, strict=False):
            self.line(f"{register_type(dtype)} {name} = {start};")
        return names

    def _block(self, program: Program, args: Sequence[str], prefix: str, results: Sequence[str]) -> None:
        """The program; its results go to the variables ``results``, all at once."""
        new = self.program(program, args, prefix)
        moved = [row for row in zip(results, new, program.result_dtypes, strict=True) if row[0] != row[1]]
        for name, value, dtype in moved:
            if value in results:  # which may get its own new value before
                self.line(f"const {register_type(dtype)} n{name[1:]} = {value};")
        for name, value, _ in moved:
            self.line(f"{name} = {f'n{name[1:]}' if value in results else value};")

    def _nested(self, opening: str) -> None:
        self.line(opening)
        self.indent += "  "

    def _end(self, closing: str = "}") -> None:
        self.indent = self.indent[:-2]
        self.line(closing)

    def _loop(self, instr: Instr, operands: list[str], path: str) -> None:
        n, body = instr.attr
        carries, invariants = self._carries(body, operands, path), operands[len(body.results) :]
        self.line("#pragma unroll" if n * sum(1 for _ in body.walk()) <= UNROLLED else "#pragma unroll 1")
        self._nested(f"for (i32 i{path} = 0; i{path} < {n}; ++i{path}) {{")
        self._block(body, [f"i{path}", *carries, *invariants], f"v{path}_", carries)
        self._end()

    _fold = _loop

    def _while(self, instr: Instr, operands: list[str], path: str) -> None:
        condition, body = instr.attr
        carries, invariants = self._carries(body, operands, path), operands[len(body.results) :]
        self._nested("for (;;) {")
        (going,) = self.program(condition, [*carries, *invariants], f"v{path}_")
        self.line(f"if (!({going})) break;")
        self._block(body, [*carries, *invariants], f"v{path}b_", carries)
        self._end()

    def _cond(self, instr: Instr, operands: list[str], path: str) -> None:
        choice, *args = operands
        no, yes = instr.attr
        results = [f"r{path}_{k}" for k in range(len(yes.results))]
        for name, dtype in zip(results, yes.result_dtypes, strict=True):
            self.line(f"{register_type(dtype)} {name};")
        self._nested(f"if ({choice}) {{")
        self._block(yes, args, f"v{path}_", results)
        self._end("} else {")
        self.indent += "  "
        self._block(no, args, f"v{path}b_", results)
        self._end()
