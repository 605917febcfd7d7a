"""The counting sort on CPUs: one driver, no kernel of the user's (``cpu/group.h``)."""

from __future__ import annotations

from ...specs.problems import GroupProblem
from ..target import Explanation
from .family import CpuFamily
from .machine import cpu_threads


class Groups(CpuFamily):
    """The family on CPUs."""

    name = "group"

    def compile(self, problem: GroupProblem) -> None:
        """There is nothing to compile."""

    def explain(self, problem: GroupProblem) -> Explanation:
        counters = min(cpu_threads() * (problem.num_bins + 1), 4 << 20)
        bytes_ = problem.item_bytes * max(problem.num_bins + 1, counters)
        return Explanation("stable counting sort", "the order of elements within a bin is wanted", bytes_)
