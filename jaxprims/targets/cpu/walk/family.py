"""Walks on CPUs: the kernel's entry in the C++ table, explanations."""

from __future__ import annotations

from collections.abc import Mapping

from llvmlite import ir

from .... import _cpu
from ....specs.described import described_walk
from ....specs.problems import WalkProblem
from ....specs.walk import WalkSpec
from ...target import Explanation
from .. import compiler
from ..machine import cpu_threads
from . import kernel


class WalkKernels:
    """What the compiler asks of the kind "walk"."""

    def enter(self, spec: WalkSpec) -> bool:
        return _cpu.add_walk(spec.key, spec.text, described_walk(spec))

    def names(self, spec: WalkSpec, variant: int) -> list[str]:
        return [kernel.NAME]

    def generate(self, spec: WalkSpec, variant: int, vector_bytes: int) -> ir.Module:
        return kernel.generate(spec, bool(variant))

    def add(self, spec: WalkSpec, variant: int, address: Mapping[str, int]) -> None:
        _cpu.add_walk_variant(spec.key, variant, address[kernel.NAME])


class Walks:
    """The family on CPUs."""

    handler = staticmethod(_cpu.walk_handler)

    def compile(self, problem: WalkProblem) -> None:
        compiler.compiled(problem.spec, self._variant(problem))

    def plan(self, problem: WalkProblem) -> None:
        return None

    def explain(self, problem: WalkProblem) -> Explanation:
        strategy = f"{problem.parts} parts at once, each with {problem.copies} interleaved tables"
        return Explanation(strategy, "each element meets its bin's state", self._bytes(problem), self._variant(problem))

    def _bytes(self, problem: WalkProblem) -> int:
        return problem.spec.layout[1] * problem.bins * problem.copies

    def _variant(self, problem: WalkProblem) -> int:
        """As ``cpu/walk.h`` has it."""
        return int(self._bytes(problem) > _cpu.Machine(cpu_threads()).l2 // 2)
