"""Stencils on CPUs: the kernels' entry in the C++ table, plans, explanations."""

from __future__ import annotations

import dataclasses
from typing import Any

from ....ir.program import itemsize
from ....specs.described import described_stencil
from ....specs.problems import StencilProblem
from ...target import UNKNOWN_SIZES, Explanation
from .. import compiler
from ..family import CpuFamily
from ..llvm.engine import target
from ..plans import StencilPlan
from . import kernel
from .stages import stages_of
from .xla_pays import xla_pays

KERNELS = compiler.Kernels(
    "stencil",
    lambda spec: described_stencil(spec, kernel.vector_width(spec, target().vector_bytes), stages_of(spec).work),
    lambda spec, variant: kernel.NAMES,
    lambda spec, variant, vector_bytes: kernel.generate(spec, vector_bytes),
)


class Stencils(CpuFamily):
    """The family on CPUs."""

    name = "stencil"

    def compile(self, problem: StencilProblem) -> None:
        compiler.compiled(problem.spec, 0)

    def plan(self, problem: StencilProblem) -> StencilPlan:
        plan = self.planned(problem)
        return StencilPlan(plan["depth"], tuple(plan["tile"]), plan["stream"], plan["threads"])

    def explain(self, problem: StencilProblem) -> Explanation:
        if not problem.known:
            return dataclasses.replace(UNKNOWN_SIZES, variant=0)
        plan = self.plan(problem)
        reason = "a step is worth a pass"
        if problem.steps == 1:
            reason = "each cell is read from memory once"
        elif plan.depth > 1:
            reason = f"a pass through memory makes {plan.depth} of {problem.steps} steps"
        return Explanation(str(plan), reason, self.planned(problem)["workspace"], 0)

    def xla_pays(self, problem: StencilProblem, operation: str, in_loop: bool | None) -> str | None:
        return xla_pays(problem, operation)

    def numbers(self, problem: StencilProblem) -> dict[str, Any]:
        spec = problem.spec
        ends = [[0, *(offsets[a] for _, offsets in spec.reads)] for a in range(spec.rank)]
        moved = [[0, *(offsets[a] for k, offsets in spec.reads if k < problem.changed)] for a in range(spec.rank)]
        alone = spec.rank == 1  # drivers see another axis, of a single cell
        return {
            "size": [*[1] * alone, *problem.size],
            "widest": [*[1] * alone, *problem.widest],
            "wraps": [*[0] * alone, *map(int, problem.wraps)],
            "halo": [*[0] * alone, *(max(max(o), -min(o)) for o in moved)],
            "members": problem.members,
            "steps": problem.steps,
            "unit": spec.unit,
            "array_bytes": [itemsize(dtype) * slots for dtype, slots in spec.arrays],
            "leaf_bytes": [itemsize(dtype) * slots for dtype, slots in spec.leaves],
            "changed": problem.changed,
            "work": stages_of(spec).work,
            "width": kernel.vector_width(spec, target().vector_bytes),
            "span": [*[0] * alone, *(max(e) - min(e) for e in ends)],
        }
