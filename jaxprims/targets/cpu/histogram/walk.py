"""Walks through elements on CPUs: the kernel, its entry in the C++ table, explanations. WalkSpec -> LLVM IR:

``walk(index, arrays, uniforms, table, outs, lo, hi, bins, copies)``
    Elements [lo, hi), from the last to the first where the spec says so: the state of each one's bin is loaded, stepped and
    stored, what is written for it is. One after the other: the next element may have the same bin.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ....ir.program import itemsize
from ....specs.described import described_walk
from ....specs.elements import scalars_of
from ....specs.problems import WalkProblem
from ....specs.walk import WalkSpec
from ...target import Explanation
from .. import compiler
from ..family import CpuFamily
from ..llvm import expr
from ..llvm.build import I64, PTR, address, all_pointers, declare, i64, load, loop, pointer, prefetch, scaled, store
from ..llvm.engine import FEWEST_PACKED, module_of, pack
from ..llvm.types import constant

NAME = "walk"

AHEAD = 16
"""Elements between the fetch of a bin and its use."""


def generate(spec: WalkSpec, fetched: bool) -> ir.Module:
    """The module with the function. ``fetched``: bins lie farther away than a step takes."""
    module = module_of("walk")
    if len(scalars_of(spec.state)) >= FEWEST_PACKED:
        pack(module)
    params = [PTR, PTR, PTR, PTR, PTR, I64, I64, I64, I64]
    b, (index, arrays, uniforms, table, outs, lo, hi, bins, copies) = declare(module, NAME, params)
    given = [(pointer(b, arrays, k), *leaf) for k, leaf in enumerate(spec.arrays)]
    written = [(pointer(b, outs, k), *leaf) for k, leaf in enumerate(spec.leaves)]
    captured = all_pointers(b, uniforms, len(spec.uniforms))
    offsets, size = spec.layout
    state = scalars_of(spec.state)
    which = b.sub(copies, i64(1))
    last = b.sub(hi, i64(1))

    def bin_of(i: ir.Value) -> ir.Value:
        at = load(b, address(b, index, scaled(b, i, itemsize(spec.index))), spec.index)
        return at if at.type == I64 else b.sext(at, I64)

    def entry_of(i: ir.Value, at: ir.Value) -> ir.Value:
        return address(b, table, scaled(b, b.add(b.mul(at, copies), b.and_(i, which)), size))

    def fetch(i: ir.Value) -> None:
        ahead = b.sub(i, i64(AHEAD)) if spec.reverse else b.add(i, i64(AHEAD))
        end = lo if spec.reverse else last
        inside = b.icmp_signed(">" if spec.reverse else "<", ahead, end)
        j = b.select(inside, ahead, end)
        prefetch(b, entry_of(j, bin_of(j)), writes=True)

    with loop(b, lo, hi) as k:
        i = b.sub(b.add(lo, last), k) if spec.reverse else k
        if fetched:
            fetch(i)
        at = bin_of(i)
        places = [
            (address(b, p, scaled(b, b.add(scaled(b, i, n), i64(s)), itemsize(t))), t) for p, t, n in written for s in range(n)
        ]
        with b.if_else(b.icmp_unsigned("<", at, bins), likely=True) as (inside, dropped):
            with inside:
                entry = entry_of(i, at)
                slots = [(address(b, entry, i64(o)), t) for o, t in zip(offsets, state, strict=True)]
                args = [load(b, p, t) for p, t in slots]
                for p, t, n in given:
                    first = scaled(b, i, n)
                    args += [load(b, address(b, p, scaled(b, b.add(first, i64(s)), itemsize(t))), t) for s in range(n)]
                results = expr.emit(b, spec.step, args, captured, 1)
                for (p, t), v in zip([*slots, *places], results, strict=True):
                    store(b, v, p, t)
            with dropped:
                for p, t in places:
                    store(b, constant(t, 0, 1), p, t)
    b.ret_void()
    return module


KERNELS = compiler.Kernels(
    "walk",
    described_walk,
    lambda spec, variant: [NAME],
    lambda spec, variant, vector_bytes: generate(spec, bool(variant)),
)


class Walks(CpuFamily):
    """The family on CPUs."""

    name = "walk"

    def numbers(self, problem: WalkProblem) -> dict[str, Any]:
        return {"entry_bytes": problem.spec.layout[1], "bins": problem.bins, "copies": problem.copies}

    def explain(self, problem: WalkProblem) -> Explanation:
        planned = self.planned(problem)
        strategy = f"{problem.parts} parts at once, each with {problem.copies} interleaved tables"
        return Explanation(strategy, "each element meets its bin's state", planned["workspace"], planned["variant"])
