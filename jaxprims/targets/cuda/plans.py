"""Plans of the CUDA launcher. The choices are functions in C++ (``cuda/launcher``); what is None here is chosen there.

``numbers_by_name``: of a plan that was made, all that the launcher says of it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from ...specs.problems import Problem

Numbers = tuple[tuple[str, int], ...]

SPACES = ("tiny", "shared", "cluster", "global")
"""Where subhistograms lie, as the launcher numbers it: in shared memory, several histograms to a block; in shared memory; in that
of a cluster of blocks; in global memory."""

SCAN_KERNELS = ("rows", "flat", "each")


def _chosen(number: int | None) -> int:
    return -1 if number is None else int(number)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    target: ClassVar[str] = "cuda"
    numbers_by_name: Numbers = ()

    def __str__(self) -> str:
        """The numbers in words."""
        shown = (n for n in self.numbers_by_name if n[0] != "space" and not n[0].endswith("workspace bytes"))
        return ", ".join(f"{name} = {value}" for name, value in shown)


@dataclasses.dataclass(frozen=True)
class HistogramPlan(_Plan):
    """M subhistograms, S passes, K blocks for each histogram of a batch."""

    family: ClassVar[str] = "histogram"
    space: str | None = None
    subhistograms: int | None = None
    passes: int | None = None
    blocks: int | None = None
    race_factor: int | None = None
    cluster: int | None = None

    @staticmethod
    def made(numbers_by_name: Numbers) -> HistogramPlan:
        """With its own numbers by name, too."""
        n = dict(numbers_by_name)
        return HistogramPlan(SPACES[n["space"]], n["M"], n["S"], n["K"], None, n["cluster"], numbers_by_name=numbers_by_name)

    def numbers(self, problem: Problem) -> tuple[int, ...]:
        space = 0 if self.space is None else 1 + SPACES.index(self.space)
        return space, *(x or 0 for x in (self.subhistograms, self.passes, self.blocks, self.race_factor, self.cluster))


@dataclasses.dataclass(frozen=True)
class ScanPlan(_Plan):
    """Along a row: which kernel, how many whole rows a tile holds, and whether chained tiles wait in shared memory; across rows
    side by side: how many lanes a tile has, and whether tiles are chained."""

    family: ClassVar[str] = "scan"
    kernel: str | None = None
    whole_rows: int | None = None
    width: int | None = None
    chained: bool | None = None
    waits: bool | None = None

    def numbers(self, problem: Any) -> tuple[int, ...]:
        if problem.spec.across:
            return self.width or 0, _chosen(self.chained)
        kernel = None if self.kernel is None else SCAN_KERNELS.index(self.kernel)
        return _chosen(kernel), _chosen(self.whole_rows), _chosen(self.waits)


@dataclasses.dataclass(frozen=True)
class ReducePlan(_Plan):
    """How many lanes or blocks a row gets."""

    family: ClassVar[str] = "reduce"
    algorithm: int = 0  # as cuda/plans numbers them; 0: chosen
    blocks: int | None = None

    def numbers(self, problem: Problem) -> tuple[int, ...]:
        return self.algorithm, self.blocks or 0


@dataclasses.dataclass(frozen=True)
class StencilPlan(_Plan):
    """How many steps a launch makes, and a block's results on the first axis, those between, and the last; of launches of one
    step, cells of a column, nothing, and threads on the last axis. 0: chosen."""

    family: ClassVar[str] = "stencil"
    depth: int = 0
    tile: tuple[int, int, int] = (0, 0, 0)

    def numbers(self, problem: Problem) -> tuple[int, ...]:
        return self.depth, *self.tile


@dataclasses.dataclass(frozen=True)
class SegmentsPlan(ReducePlan):
    """How many blocks each member of the batch gets."""

    family: ClassVar[str] = "segments"
