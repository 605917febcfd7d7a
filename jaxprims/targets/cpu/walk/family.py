"""Walks on CPUs: the kernel's entry in the C++ table, explanations."""

from __future__ import annotations

from typing import Any

from ....specs.described import described_walk
from ....specs.problems import WalkProblem
from ...target import Explanation
from .. import compiler
from ..family import CpuFamily
from . import kernel

KERNELS = compiler.Kernels(
    "walk",
    described_walk,
    lambda spec, variant: [kernel.NAME],
    lambda spec, variant, vector_bytes: kernel.generate(spec, bool(variant)),
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
