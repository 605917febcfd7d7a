"""Chains of scans on CPUs: the kernels are the members' own (``cpu/scan_chain.h``)."""

from __future__ import annotations

from .... import _cpu
from ....specs.problems import ChainProblem
from ...target import Explanation
from .. import compiler


class ScanChains:
    """The family on CPUs."""

    handler = staticmethod(_cpu.scan_chain_handler)

    def compile(self, problem: ChainProblem) -> None:
        for spec in problem.specs:
            compiler.compiled(spec, 0)

    def plan(self, problem: ChainProblem) -> None:
        return None

    def explain(self, problem: ChainProblem) -> Explanation:
        return Explanation("one pass over memory", "what one makes for the next stays in the cache", 0)
