"""Walks on CPUs: the kernel's entry in the C++ table, explanations."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ....specs.described import described_walk
from ....specs.problems import WalkProblem
from ....specs.walk import WalkSpec
from ...target import Explanation
from ..family import CpuFamily
from . import kernel


class WalkKernels:
    """What the compiler asks of the kind "walk"."""

    table = "walk"
    described = staticmethod(described_walk)

    def names(self, spec: WalkSpec, variant: int) -> list[str]:
        return [kernel.NAME]

    def generate(self, spec: WalkSpec, variant: int, vector_bytes: int) -> ir.Module:
        return kernel.generate(spec, bool(variant))


class Walks(CpuFamily):
    """The family on CPUs."""

    name = "walk"

    def numbers(self, problem: WalkProblem) -> dict[str, Any]:
        return {"entry_bytes": problem.spec.layout[1], "bins": problem.bins, "copies": problem.copies}

    def explain(self, problem: WalkProblem) -> Explanation:
        planned = self.planned(problem)
        strategy = f"{problem.parts} parts at once, each with {problem.copies} interleaved tables"
        return Explanation(strategy, "each element meets its bin's state", planned["workspace"], planned["variant"])
