"""Problems: a kernel's spec and the sizes of a call. All that plans, workspaces and explanations depend on.

Sizes that are only known when the call runs are symbols of ``jax.export``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from .histogram import HistogramSpec
from .kernel import KernelSpec
from .ordered import OrderedSpec
from .stencil import StencilSpec
from .walk import WalkSpec


@dataclasses.dataclass(frozen=True)
class Problem:
    """What all have: a spec (None: the target has one way of its own), the batch's sizes, plans that are forced, and how many
    devices of this process make such a call at once."""

    spec: KernelSpec | None
    batch: tuple[Any, ...]
    plans: tuple[Any, ...]
    devices: int = dataclasses.field(default=1, kw_only=True)

    family: ClassVar[str]
    """The name of the family that it is of."""

    @property
    def sizes(self) -> Sequence[Any]:
        """All of them."""
        return self.batch

    @property
    def known(self) -> bool:
        """Are all sizes numbers?"""
        return all(isinstance(size, int) for size in self.sizes)

    @property
    def members(self) -> Any:
        """Of the batch."""
        return math.prod(self.batch)

    @property
    def arrays(self) -> int:
        """How many operands, the first ones, have an axis of elements behind their batch axes."""
        return 0


@dataclasses.dataclass(frozen=True)
class _OfElements(Problem):
    """Of n elements."""

    n: Any

    @property
    def sizes(self) -> Sequence[Any]:
        return (self.n, *self.batch)


@dataclasses.dataclass(frozen=True)
class HistogramProblem(_OfElements):
    """N elements into the bins of each part."""

    spec: HistogramSpec
    bins: tuple[int, ...]
    sorted: bool = False  # the first array's values, the indices, ascend
    apart: bool = False  # f captures arrays of which each row of the batch has its own
    family: ClassVar[str] = "histogram"

    @property
    def arrays(self) -> int:
        return sum(a.slots > 0 for a in self.spec.arrays)


@dataclasses.dataclass(frozen=True)
class OrderedProblem(_OfElements):
    """A scan, a reduction or a segmented reduction of N elements of so many lanes in each row of the batch."""

    spec: OrderedSpec
    lanes: Any
    init: bool = False
    contiguous: bool = False  # rows lie one behind the other in every operand
    captured: bool = False  # f or the operator use captured arrays
    num_segments: Any = 0
    ids: bool = False  # segments are given by ids, else by offsets
    of_dear: bool = False  # it takes long to make the elements

    @property
    def family(self) -> str:  # type: ignore[override]  # one class for three families
        return self.spec.family

    @property
    def arrays(self) -> int:
        return sum(a.slots > 0 for a in self.spec.arrays)

    @property
    def sizes(self) -> Sequence[Any]:
        return (self.n, self.lanes, *self.batch)


@dataclasses.dataclass(frozen=True)
class StencilReduceProblem(OrderedProblem):
    """A reduction of what a stencil makes: its spec's arrays are what that reads for a cell."""

    @property
    def family(self) -> str:  # type: ignore[override]
        return "stencil_reduce"

    @property
    def arrays(self) -> int:
        return 0  # of cells, which have the grid's axes


@dataclasses.dataclass(frozen=True)
class ChainProblem(_OfElements):
    """Scans and reductions of n elements, one after the other. ``specs``: theirs."""

    specs: tuple[OrderedSpec, ...]
    family: ClassVar[str] = "scan_chain"


@dataclasses.dataclass(frozen=True)
class GroupProblem(_OfElements):
    """A stable counting sort of N indices by bin. ``item_bytes``: of a position."""

    num_bins: int
    item_bytes: int
    family: ClassVar[str] = "group"


@dataclasses.dataclass(frozen=True)
class StencilProblem(Problem):
    """``steps`` of a stencil, each of which makes all cells of a grid; the last one's are of ``size``."""

    spec: StencilSpec
    size: tuple[Any, ...]
    widest: tuple[Any, ...]  # before the first step; larger where the grid shrinks
    steps: int
    changed: int = 0  # arrays that steps change, or whose values are kept at the border: the first ones
    wraps: tuple[bool, ...] = ()  # axes around which these wrap
    family: ClassVar[str] = "stencil"

    @property
    def sizes(self) -> Sequence[Any]:
        return (*self.size, *self.batch)


@dataclasses.dataclass(frozen=True)
class WalkProblem(_OfElements):
    """N elements through the states of H bins. Of tables there are so many parts, and interleaved copies in each."""

    spec: WalkSpec
    bins: int
    parts: int
    copies: int
    family: ClassVar[str] = "walk"
