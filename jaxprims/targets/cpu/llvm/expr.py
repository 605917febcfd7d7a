"""The expression table at work: Program -> LLVM IR, on scalars or on vectors of any width.

A value that is the same in every lane stays a scalar until it meets one that is not, so loop counters, constants and loads
from captured arrays by them cost what they would in scalar code, and leave loops where they do not change.

A lane nobody wants runs no branch and no turn of a loop for itself, and nothing in it can trap or read out of range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llvmlite import ir

from ....ir.program import CONTROL, COUNTED, Instr, Program, is_float
from ....ir.trees import trees
from . import folds
from .engine import target
from .extremes import completed, nearer
from .math import MATH
from .table import BY_PROCESSOR, EXACT, IN_HALVES, TABLE, bitcast, convert
from .types import any_lane, constant, from_memory, lanes, memory_type, narrowed, rounded, splat, undefined, widened, with_lanes

UNROLLED = 256
"""Instructions that a loop's unrolled body may have."""

SHORT_TURNS = 64
"""Instructions of four turns that are written one behind the other, so that a loop's own are fewer."""

_DEAR = CONTROL | {"div", "rem", "load"} | set(MATH)


def emit(
    builder: ir.IRBuilder, program: Program, args: Sequence[ir.Value], uniforms: Sequence[ir.Value], width: int
) -> list[ir.Value]:
    """Emits ``program`` at the builder's position, which is then at the end of the block where the results are known.

    ``args``: values in registers, one for each parameter (``register_type(dtype, width)``); ``uniforms``: pointers to the
    captured arrays' elements. Returns the results in registers. Every lane must hold values that the program's loops end on.
    """
    results = _Emission(builder, uniforms, width).program(program, args, None)
    return [splat(builder, r, width) for r in results]


def selected(b: ir.IRBuilder, which: ir.Value | None, x: Sequence[ir.Value], y: Sequence[ir.Value]) -> list[ir.Value]:
    """x where ``which`` is true (None: everywhere), else y, value by value."""
    return list(x) if which is None else [b.select(which, v, w) for v, w in zip(x, y, strict=True)]


class _Emission:
    """The emission of one Program with those nested in it. ``mask`` is the lanes that are wanted (None: all of them)."""

    def __init__(self, builder: ir.IRBuilder, uniforms: Sequence[ir.Value], width: int):
        self.b, self.uniforms, self.width = builder, uniforms, width

    def program(self, program: Program, args: Sequence[ir.Value], mask: ir.Value | None) -> list[ir.Value]:
        values: list[ir.Value] = []
        tuples: dict[int, list[ir.Value]] = {}
        extremes = {k: v for k, v in trees(program).items() if _is_extreme(program.body[k])}
        within = _within(program, extremes)
        for k, instr in enumerate(program.body):
            if instr.op in CONTROL:
                tuples[k] = getattr(self, f"_{instr.op}")(instr, [values[o] for o in instr.operands], mask)
                values.append(None)
            elif instr.op == "arg":
                values.append(args[instr.attr])
            elif instr.op == "item":
                values.append(tuples[instr.operands[0]][instr.attr])
            elif k in within or k in extremes:
                value = nearer(self.b, instr.op, *self._alike([values[o] for o in instr.operands]))
                if k in extremes:
                    value, *leaves = self._alike([value, *(values[o] for o in extremes[k])])
                    value = completed(self.b, instr.op, value, leaves)
                values.append(value)
            else:
                operands = [values[o] for o in instr.operands]
                source = program.body[instr.operands[0]].dtype if instr.operands else instr.dtype
                values.append(self._instr(instr, source, operands))
        return [values[r] for r in program.results]

    def _instr(self, instr: Instr, source: str, operands: list[ir.Value]) -> ir.Value:
        b, op, dtype = self.b, instr.op, instr.dtype
        if op == "const":
            return constant(dtype, instr.attr)
        if op == "load":
            return self._load(instr.attr, dtype, operands[0])
        operands = self._alike(operands)
        if op == "select":
            return b.select(*operands)
        if op == "convert":
            return convert(b, operands[0], source, dtype)
        if op == "bitcast":
            return bitcast(b, operands[0], source, dtype)
        if dtype == "f16" and op in IN_HALVES and target().half_arithmetic:
            return widened(b, IN_HALVES[op](b, *(narrowed(b, x) for x in operands)))
        if instr.attr is not None:
            return getattr(b, f"f{op}")(*operands, flags=("contract",))
        value = TABLE[op](b, source, *operands)
        return value if op in EXACT else rounded(b, value, dtype, plain_nan=op in BY_PROCESSOR)

    def _alike(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """All of them scalars, or all of them vectors."""
        width = max((lanes(v.type) for v in values), default=1)
        return [splat(self.b, v, width) for v in values]

    def _load(self, uniform: int, dtype: str, index: ir.Value) -> ir.Value:
        b, t = self.b, memory_type(dtype)
        if lanes(index.type) == 1:
            return from_memory(b, self._scalar_load(uniform, t, index), dtype)
        ones = (self._scalar_load(uniform, t, b.extract_element(index, ir.IntType(32)(k))) for k in range(self.width))
        return from_memory(b, with_lanes(b, undefined(ir.VectorType(t, self.width)), ones), dtype)

    def _scalar_load(self, uniform: int, t: ir.Type, index: ir.Value) -> ir.Value:
        b = self.b
        base = self.uniforms[uniform]
        loaded = b.load(b.gep(base, [index], source_etype=t, inbounds=True), typ=t)
        if not isinstance(base, (ir.AllocaInstr, ir.GEPInstr)):  # in which the kernel itself keeps a number
            loaded.set_metadata("invariant.load", b.module.add_metadata([]))
        return loaded

    def _both(self, wanted: ir.Value, mask: ir.Value | None) -> ir.Value:
        return wanted if mask is None else self.b.and_(wanted, mask)

    def _phis(self, values: Sequence[ir.Value], block: ir.Block) -> list[ir.PhiInstr]:
        phis = [self.b.phi(v.type) for v in values]
        for phi, v in zip(phis, values, strict=True):
            phi.add_incoming(v, block)
        return phis

    def _carries(self, values: Sequence[ir.Value], varying: Sequence[bool]) -> list[ir.Value]:
        return [splat(self.b, v, self.width) if wide else v for v, wide in zip(values, varying, strict=True)]

    def _loop(self, instr: Instr, operands: list[ir.Value], mask: ir.Value | None) -> list[ir.Value]:
        b, (n, body) = self.b, instr.attr
        count = len(body.results)
        varying = _varying_control(instr, [lanes(v.type) > 1 for v in operands])
        carries, invariants = self._carries(operands[:count], varying), operands[count:]
        s32 = ir.IntType(32)
        size = sum(1 for _ in body.walk())
        whole = n * size <= UNROLLED
        turns = 4 if 4 * size <= SHORT_TURNS else 1
        for k in range(n if whole else n % turns):
            carries = self.program(body, [s32(k), *carries, *invariants], mask)
        if whole:
            return carries
        before, head, after = b.block, b.append_basic_block("loop"), b.append_basic_block("looped")
        b.branch(head)
        b.position_at_end(head)
        (i,) = self._phis([s32(n % turns)], before)
        phis = new = self._phis(self._carries(carries, varying), before)
        following = i
        for _ in range(turns):
            new = self._carries(self.program(body, [following, *new, *invariants], mask), varying)
            following = b.add(following, s32(1), flags=["nsw", "nuw"])
        for phi, v in zip([i, *phis], [following, *new], strict=True):
            phi.add_incoming(v, b.block)
        b.cbranch(b.icmp_signed("<", following, s32(n)), head, after)
        b.position_at_end(after)
        return new

    def _fold(self, instr: Instr, operands: list[ir.Value], mask: ir.Value | None) -> list[ir.Value]:
        found = folds.parts(instr.attr[1])
        apart = found is not None and any(_varying(found.starts, [lanes(v.type) > 1 for v in operands[1:]]))
        if found is None or (self.width > 1 and not apart):  # one row for all elements: these lie in vectors already
            return self._loop(instr, operands, mask)

        def run(program: Program, args: Sequence[ir.Value], width: int) -> list[ir.Value]:
            return _Emission(self.b, self.uniforms, width).program(program, args, None)

        return [folds.emit(self.b, found, instr.attr[0], operands[0], operands[1:], self.uniforms, run)]

    def _while(self, instr: Instr, operands: list[ir.Value], mask: ir.Value | None) -> list[ir.Value]:
        b, (cond, body) = self.b, instr.attr
        count = len(body.results)
        varying = _varying_control(instr, [lanes(v.type) > 1 for v in operands])
        carries, invariants = self._carries(operands[:count], varying), operands[count:]
        before, head = b.block, b.append_basic_block("while")
        inside, after = b.append_basic_block("do"), b.append_basic_block("done")
        b.branch(head)
        b.position_at_end(head)
        phis = self._phis(carries, before)
        (wanted,) = self.program(cond, [*phis, *invariants], mask)
        wide = lanes(wanted.type) > 1
        if wide:  # a lane that stops keeps its carries, so its condition stays false
            mask = wanted = self._both(wanted, mask)
        b.cbranch(any_lane(b, wanted), inside, after)
        b.position_at_end(inside)
        new = self._carries(self.program(body, [*phis, *invariants], mask), varying)
        for phi, v in zip(phis, new, strict=True):
            phi.add_incoming(b.select(wanted, v, phi) if wide else v, b.block)
        b.branch(head)
        b.position_at_end(after)
        return list(phis)

    def _cond(self, instr: Instr, operands: list[ir.Value], mask: ir.Value | None) -> list[ir.Value]:
        b, (choice, *args) = self.b, operands
        if lanes(choice.type) > 1:
            no = self._branch(instr.attr[0], args, self._both(b.not_(choice), mask))
            yes = self._branch(instr.attr[1], args, self._both(choice, mask))
            return [b.select(choice, *self._alike([y, n])) for y, n in zip(yes, no, strict=True)]
        varying = _varying_control(instr, [lanes(v.type) > 1 for v in operands])
        blocks = [b.append_basic_block("otherwise"), b.append_basic_block("then")]
        after = b.append_basic_block("chosen")
        b.cbranch(choice, blocks[1], blocks[0])
        ends = []
        for block, branch in zip(blocks, instr.attr, strict=True):
            b.position_at_end(block)
            ends.append((self._carries(self.program(branch, args, mask), varying), b.block))
            b.branch(after)
        b.position_at_end(after)
        phis = self._phis(*ends[0])
        for phi, v in zip(phis, ends[1][0], strict=True):
            phi.add_incoming(v, ends[1][1])
        return list(phis)

    def _branch(self, branch: Program, args: list[ir.Value], wanted: ir.Value) -> list[ir.Value]:
        """A branch that some lanes may want: evaluated if one does, or at once where that costs less than asking."""
        if len(branch.body) <= 16 and not any(instr.op in _DEAR for instr in branch.body):
            return self.program(branch, args, wanted)
        b = self.b
        before, inside, after = b.block, b.append_basic_block("wanted"), b.append_basic_block("asked")
        b.cbranch(any_lane(b, wanted), inside, after)
        b.position_at_end(inside)
        results = self.program(branch, args, wanted)
        end = b.block
        b.branch(after)
        b.position_at_end(after)
        phis = self._phis([ir.Constant(r.type, None) for r in results], before)
        for phi, r in zip(phis, results, strict=True):
            phi.add_incoming(r, end)
        return list(phis)


def _is_extreme(instr: Instr) -> bool:
    return instr.op in ("max", "min") and is_float(instr.dtype)


def _within(program: Program, extremes: Mapping[int, Sequence[int]]) -> set[int]:
    """The values between the roots and the leaves of trees."""
    within: set[int] = set()
    for root, leaves in extremes.items():
        waiting = [root]
        while waiting:
            waiting = [o for k in waiting for o in program.body[k].operands if o not in leaves]
            within.update(waiting)
    return within


def _varying(program: Program, args: Sequence[bool]) -> list[bool]:
    """Which results differ from lane to lane, given which arguments do."""

    def varies(instr: Instr, operands: list[Any]) -> Any:
        if instr.op == "item":
            return operands[0][instr.attr]
        return _varying_control(instr, operands) if instr.op in CONTROL else any(operands)

    return program.run(args, varies)


def _varying_control(instr: Instr, operands: Sequence[bool]) -> list[bool]:
    if instr.op == "cond":
        choice, *args = operands
        branches = [_varying(branch, args) for branch in instr.attr]
        return [choice or any(results) for results in zip(*branches, strict=True)]
    count = len(instr.attr[1].results)
    carries, invariants = list(operands[:count]), operands[count:]
    while True:  # until nothing more varies
        counter = [False] if instr.op in COUNTED else []
        new = _varying(instr.attr[1], [*counter, *carries, *invariants])
        stops_alone = instr.op == "while" and _varying(instr.attr[0], [*carries, *invariants])[0]
        joined = [old or now or stops_alone for old, now in zip(carries, new, strict=True)]
        if joined == carries:
            return carries
        carries = joined
