"""Chains of scans on CPUs: the kernels are the members' own (``cpu/scan_chain.h``)."""

from __future__ import annotations

from ....specs.problems import ChainProblem
from ...target import Explanation
from .. import compiler
from ..family import CpuFamily


class ScanChains(CpuFamily):
    """The family on CPUs."""

    name = "scan_chain"

    def compile(self, problem: ChainProblem) -> None:
        for spec in problem.specs:
            compiler.compiled(spec, 0)

    def explain(self, problem: ChainProblem) -> Explanation:
        return Explanation("one pass over memory", "what one makes for the next stays in the cache", 0)
