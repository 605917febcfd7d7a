"""The counting sort on CPUs: one driver, no kernel of the user's (``cpu/group.h``)."""

from __future__ import annotations

from ... import _cpu
from ...specs.problems import GroupProblem
from ..target import Explanation
from .machine import cpu_threads


class Groups:
    """The family on CPUs."""

    handler = staticmethod(_cpu.group_handler)

    def compile(self, problem: GroupProblem) -> None:
        """There is nothing to compile."""

    def plan(self, problem: GroupProblem) -> None:
        return None

    def explain(self, problem: GroupProblem) -> Explanation:
        counters = min(cpu_threads() * (problem.num_bins + 1), 4 << 20)
        bytes_ = problem.item_bytes * max(problem.num_bins + 1, counters)
        return Explanation("stable counting sort", "the order of elements within a bin is wanted", bytes_)
