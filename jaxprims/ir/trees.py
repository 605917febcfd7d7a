"""Trees in a Program, of one operation that is associative and commutative to the bit, whose order is free."""

from __future__ import annotations

from .program import Program, is_float


def order_is_free(op: str, dtype: str) -> bool:
    """Whether any order of any number of operands gives the same bits (NaN counts as one value)."""
    return op in ("max", "min", "and", "or", "xor") or (op in ("add", "mul") and not is_float(dtype))


def trees(program: Program) -> dict[int, tuple[int, ...]]:
    """The leaves of each largest such tree with three or more, by the value at its root. What is within is used nowhere else."""
    uses = [0] * len(program.body)
    for instr in program.body:
        for o in instr.operands:
            uses[o] += 1
    for r in program.results:
        uses[r] += 2
    found: dict[int, tuple[int, ...]] = {}
    for k, instr in enumerate(program.body):
        if len(instr.operands) != 2 or not order_is_free(instr.op, instr.dtype):
            continue
        leaves: list[int] = []
        for o in instr.operands:
            same = program.body[o].op == instr.op and uses[o] == 1
            leaves += found.pop(o, program.body[o].operands) if same else (o,)
        found[k] = tuple(leaves)
    return {k: leaves for k, leaves in found.items() if len(leaves) > 2}
