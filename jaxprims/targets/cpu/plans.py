"""Plans of the CPU's drivers. The choices are pure functions in C++ (``cpu/*_plan.h``), so that a call that comes from another
process, or with sizes known only when it runs, is planned by the same rule.

What is None, or 0 where that says so, is chosen by the driver when the plan is forced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from ...specs.problems import Problem

ORDERS = ("assisting", "row_wise", "column_wise", "sequential_rows", "any_order")
"""In which blocks of a scan are claimed (de Kluijver 2024, 3.1 to 3.3), as ``cpu/scan_plan.h`` numbers them."""


@dataclasses.dataclass(frozen=True)
class _Plan:
    target: ClassVar[str] = "cpu"
    family: ClassVar[str]

    def numbers(self, problem: Problem) -> tuple[int, ...]:
        """Nothing to force."""
        return ()


@dataclasses.dataclass(frozen=True)
class HistogramPlan(_Plan):
    """M subhistograms, S bin ranges, C interleaved copies of each bin (``cpu/hist_plan.h``); or, in place, the result's own
    arrays."""

    family: ClassVar[str] = "histogram"
    subhistograms: int = 1
    ranges: int = 1
    copies: int = 1
    in_place: bool = False
    prefetch: bool = False
    threads: int = 0  # chosen
    variant: int = -1  # of the kernel; follows from the rest

    def numbers(self, problem: Problem) -> tuple[int, ...]:
        return self.subhistograms, self.ranges, self.copies, int(self.in_place), int(self.prefetch)

    def __str__(self) -> str:
        if self.in_place:
            strategy = f"in place, S = {self.ranges} bin range{'s' if self.ranges > 1 else ''}, one for each thread"
        else:
            strategy = f"M = {self.subhistograms} subhistograms, S = {self.ranges}, C = {self.copies} interleaved copies"
        return strategy + (", bins prefetched" if self.prefetch else "") + f", {self.threads} threads"


@dataclasses.dataclass(frozen=True)
class ScanPlan(_Plan):
    """How a scan is cut into blocks and who scans which (``cpu/scan_plan.h``)."""

    family: ClassVar[str] = "scan"
    order: str | None = None
    block: int | None = None
    periodic: bool | None = None
    stream: bool | None = None
    threads: int | None = None
    strip: int = 0
    variant: int = 0

    def numbers(self, problem: Problem) -> tuple[int, ...]:
        order = None if self.order is None else ORDERS.index(self.order)
        return tuple(-1 if x is None else int(x) for x in (order, self.block, self.periodic, self.stream, self.threads))

    def __str__(self) -> str:
        if self.periodic:
            how = "many short rows at once"
        elif self.order == "sequential_rows":
            how = "each row is scanned by one thread"
        elif self.order == "any_order":
            how = f"blocks of {self.block}, each by any thread"
        else:
            order = (self.order or "").replace("_", "-")
            how = f"chained scan with look-back over blocks of {self.block}, {order} order"
        return how + (", non-temporal stores" if self.stream else "") + f", {_threads(self.threads)}"


@dataclasses.dataclass(frozen=True)
class ReducePlan(_Plan):
    """How a reduction is cut into pieces (``cpu/reduce_plan.h``)."""

    family: ClassVar[str] = "reduce"
    leaf: int = 0
    block: int = 0
    periodic: bool = False
    threads: int = 0
    variant: int = 0

    def __str__(self) -> str:
        if self.periodic:
            return f"many rows at once, {_threads(self.threads)}"
        return f"pieces of {self.leaf}, combined in pairs of neighbours, {_threads(self.threads)}"


@dataclasses.dataclass(frozen=True)
class SegmentsPlan(_Plan):
    """How a segmented reduction is cut into tasks (``cpu/segments_plan.h``)."""

    family: ClassVar[str] = "segments"
    chunk: int = 0
    tasks: int = 0
    threads: int = 0
    variant: int = 0

    def __str__(self) -> str:
        how = f"segments of up to {self.chunk} elements side by side or one after the other, what is longer in parts"
        return f"{how}; {self.tasks} tasks of equal size, {_threads(self.threads)}"


@dataclasses.dataclass(frozen=True)
class StencilPlan(_Plan):
    """How a stencil's grid is cut into tiles, and how many steps a pass through memory makes (``cpu/stencil_plan.h``). A tile has
    one axis at least as the driver sees it: a grid of one axis has a first one of a single cell."""

    family: ClassVar[str] = "stencil"
    depth: int = 0  # chosen
    tile: tuple[int, ...] = (0, 0, 0)  # cells on the first axis, on those between, on the last; chosen
    stream: bool | None = None
    threads: int = 0

    def numbers(self, problem: Problem) -> tuple[int, ...]:
        first, *middle, last = self.tile
        return self.depth, first, max(middle, default=0), last, -1 if self.stream is None else int(self.stream)

    def __str__(self) -> str:
        steps = f"{self.depth} steps to a pass, " if self.depth > 1 else ""
        streams = ", non-temporal stores" if self.stream else ""
        return f"{steps}tiles of {' x '.join(map(str, self.tile))} cells{streams}, {_threads(self.threads)}"


P = TypeVar("P", HistogramPlan, ScanPlan, ReducePlan, SegmentsPlan)


def plan_of(kind: type[P], numbers: Mapping[str, Any]) -> P:
    """The plan of this kind, from all that a driver says of it."""
    return kind(**{field.name: numbers[field.name] for field in dataclasses.fields(kind)})


def _threads(n: int | None) -> str:
    return f"{n} thread{'s' if n != 1 else ''}"
