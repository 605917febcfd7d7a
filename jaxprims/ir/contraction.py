"""Products and sums rounded once, where one follows the other: as XLA's loops on CPUs do it.

LLVM makes one instruction of a sum and of a product that nothing else uses, where both allow it. Kernels allow it nowhere but in
what is compared with numbers that XLA makes, so that these are the same to the last bit.
"""

from __future__ import annotations

import collections
import dataclasses

from .evaluate import EXACT
from .program import Instr, Program, is_float

CONTRACTS = frozenset(("add", "sub", "mul"))
ALLOWED = 1
"""The attribute of an instruction that may be made one with another."""

_NEITHER = EXACT - {"div", "sqrt"} | {"arg", "const", "load"}


def contracted(p: Program) -> Program | None:
    """The program whose products and sums may be one. None where it is not plain what XLA's loop would make: where both terms of
    a sum are products, or one is negated or has other uses; where a quotient may be a product with another number, or halves are
    rounded somewhere else."""
    uses = collections.Counter(o for i in p.body for o in i.operands) + collections.Counter(p.results)
    for i in p.body:
        if i.op not in _NEITHER or i.dtype in ("f16", "bf16"):
            return None
        if i.op in ("add", "sub") and is_float(i.dtype):
            products = [o for o in i.operands if p.body[o].op == "mul"]
            negated = any(p.body[o].op == "neg" for o in i.operands)
            if len(products) > 1 or negated or any(uses[o] > 1 for o in products):
                return None
    return Program(p.params, tuple(map(_marked, p.body)), p.results)


def _marked(i: Instr) -> Instr:
    return dataclasses.replace(i, attr=ALLOWED) if i.op in CONTRACTS and is_float(i.dtype) else i
