"""Stencils on CPUs: the kernels' entry in the C++ table, plans, explanations."""

from __future__ import annotations

from collections.abc import Mapping

from llvmlite import ir

from .... import _cpu
from ....ir.program import itemsize
from ....specs.described import described_stencil
from ....specs.problems import StencilProblem
from ....specs.stencil import StencilSpec
from ...plans import plan_among
from ...target import UNKNOWN_SIZES, Explanation
from .. import compiler
from ..llvm.engine import target
from ..machine import cpu_threads
from ..plans import StencilPlan
from . import kernel
from .stages import stages_of


class StencilKernels:
    """What the compiler asks of the kind "stencil"."""

    def enter(self, spec: StencilSpec) -> bool:
        width = kernel.vector_width(spec, target().vector_bytes)
        return _cpu.add_stencil(spec.key, spec.text, described_stencil(spec, width, stages_of(spec).work))

    def names(self, spec: StencilSpec, variant: int) -> list[str]:
        return list(kernel.NAMES)

    def generate(self, spec: StencilSpec, variant: int, vector_bytes: int) -> ir.Module:
        return kernel.generate(spec, vector_bytes)

    def add(self, spec: StencilSpec, variant: int, address: Mapping[str, int]) -> None:
        _cpu.add_stencil_kernel(spec.key, *(address[name] for name in kernel.NAMES))


class Stencils:
    """The family on CPUs."""

    handler = staticmethod(_cpu.stencil_handler)

    def compile(self, problem: StencilProblem) -> None:
        compiler.compiled(problem.spec, 0)

    def plan(self, problem: StencilProblem) -> StencilPlan:
        plan = self._native(problem)[1]
        return StencilPlan(plan.depth, tuple(plan.tile), plan.stream, plan.threads)

    def explain(self, problem: StencilProblem) -> Explanation:
        if not problem.known:
            return Explanation(UNKNOWN_SIZES.strategy, UNKNOWN_SIZES.reason, variant=0)
        native, plan = self._native(problem)
        reason = (
            "each cell is read from memory once"
            if problem.steps == 1
            else (
                f"a pass through memory makes {plan.depth} of {problem.steps} steps"
                if plan.depth > 1
                else "a step is worth a pass"
            )
        )
        return Explanation(str(self.plan(problem)), reason, _cpu.stencil_workspace_bytes(native, plan), 0)

    def _native(self, problem: StencilProblem) -> tuple[_cpu.StencilProblem, _cpu.StencilPlan]:
        spec, p = problem.spec, _cpu.StencilProblem()
        ends = [[0, *(offsets[a] for _, offsets in spec.reads)] for a in range(spec.rank)]
        moved = [[0, *(offsets[a] for k, offsets in spec.reads if k < problem.changed)] for a in range(spec.rank)]
        alone = [1] * (spec.rank == 1)
        p.size = [*alone, *problem.size]
        p.widest = [*alone, *problem.widest]
        p.wraps = [*(0 for _ in alone), *map(int, problem.wraps)]
        p.halo = [*(0 for _ in alone), *(max(max(o), -min(o)) for o in moved)]
        p.members, p.steps, p.unit = problem.members, problem.steps, spec.unit
        p.array_bytes = [itemsize(dtype) * slots for dtype, slots in spec.arrays]
        p.leaf_bytes = [itemsize(dtype) * slots for dtype, slots in spec.leaves]
        p.changed = problem.changed
        p.work = stages_of(spec).work
        p.width = kernel.vector_width(spec, target().vector_bytes)
        p.span = [*(0 for _ in alone), *(max(e) - min(e) for e in ends)]
        machine = _cpu.Machine(cpu_threads())
        plan = _cpu.make_stencil_plan(p, machine)
        forced = plan_among(problem.plans, "cpu", "stencil")
        return p, plan if forced is None else _cpu.forced_stencil(p, plan, *forced.numbers(problem))
