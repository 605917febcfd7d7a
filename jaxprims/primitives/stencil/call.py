"""``StencilCall``: the static half of a call of the stencil family, and its kernel's spec.

Operands: the arrays ``[*batch, *grid, *lanes, *cell]``, then the captured arrays of f. Any operand may have any subset of the
batch axes, leading. Results: ``[*batch, *grid, *lanes, *cell]``, where the grid's size is the window's.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...operators.operator import scalar_name
from ...operators.traced import Traced, slots_of
from ...specs.stencil import Read, StencilSpec
from ...targets.plans import Plan, forced_plans
from ..batches import batch_shape

MODES = ("edge", "wrap", "reflect", "symmetric", "constant", "nothing")
"""What is read beyond an array, as ``ffi/stencil_call.h`` numbers them; "nothing": nothing is."""


@dataclasses.dataclass(frozen=True)
class Bounds:
    """An array on one axis of the grid: its cell number ``origin`` is the grid's cell 0; all but the first ``lo`` and the last
    ``hi`` of its cells are there."""

    mode: str = "constant"
    origin: int = 0
    lo: int = 0
    hi: int = 0


@dataclasses.dataclass(frozen=True)
class Window:
    """The results on one axis: ``size`` cells of the grid from cell ``start`` on, after the last step. Each step makes
    ``shrink`` cells fewer than there were, at either end; ``keep`` cells at either end keep their value."""

    start: Any
    size: Any
    shrink: tuple[int, int] = (0, 0)
    keep: tuple[int, int] = (0, 0)

    @property
    def computed(self) -> tuple[Any, Any]:
        """Where the cells that do not keep their value begin and end."""
        return self.start + self.keep[0], self.start + self.size - self.keep[1]


def ends_of(offsets: Sequence[Sequence[int]], rank: int) -> list[tuple[int, int]]:
    """How far these are before and behind the cell, on each axis: numbers from 0 on."""
    return [(max([0, *(-o[a] for o in offsets)]), max([0, *(o[a] for o in offsets)])) for a in range(rank)]


Fill = tuple[int, int]
"""16 bytes of a fill value, again and again."""


def fill_of(value: Any, dtype: Any) -> Fill:
    scalar = np.asarray(value).astype(dtype).tobytes()
    first, second = np.frombuffer(scalar * (16 // len(scalar)), np.int64)
    return int(first), int(second)


@dataclasses.dataclass(frozen=True)
class StencilCall:
    """What is read, what is made of it, and where. ``f`` takes what each of ``reads`` finds, then the cell's coordinate (int32)
    on each of ``coordinates``; it works on one lane."""

    f: Traced
    reads: tuple[Read, ...]
    coordinates: tuple[int, ...]
    bounds: tuple[tuple[Bounds, ...], ...]  # by array, by axis
    fills: tuple[Fill, ...]
    window: tuple[Window, ...]
    steps: int = 1
    lanes_rank: int = 0
    plans: tuple[Plan, ...] = dataclasses.field(default_factory=forced_plans)

    def __repr__(self) -> str:
        return f"stencil of {len(self.reads)} reads on {self.rank} axes" + (f", {self.steps} steps" if self.steps > 1 else "")

    @property
    def rank(self) -> int:
        return len(self.window)

    @property
    def num_arrays(self) -> int:
        return len(self.bounds)

    @property
    def keeps(self) -> bool:
        return any(n for w in self.window for n in w.keep)

    @property
    def changed(self) -> int:
        """Arrays that steps change, or whose values are kept at the border: the first ones."""
        return len(self.f.jaxpr.outvars) if self.steps > 1 or self.keeps else 0

    @property
    def attributes(self) -> dict[str, tuple[int, ...]]:
        """What handlers are told of what lies beyond the arrays."""
        bounds = (b for row in self.bounds for b in row)
        return {
            "bounds": tuple(n for b in bounds for n in (MODES.index(b.mode), b.origin, b.lo, b.hi)),
            "fills": tuple(n for fill in self.fills for n in fill),
        }

    @property
    def results(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of a lane of a cell of each result."""
        return [(tuple(v.aval.shape), np.dtype(v.aval.dtype)) for v in self.f.jaxpr.outvars]

    def ends(self, arrays: Sequence[int]) -> list[tuple[int, int]]:
        """How far these arrays are read before and behind the cell, on each axis: numbers from 0 on."""
        return ends_of([offsets for k, offsets in self.reads if k in arrays], self.rank)


def of_lines(call: StencilCall, count: Any) -> StencilCall:
    """A call on a line of cells as one on ``count`` of them, a grid on whose first axis each cell reads its own line."""
    return dataclasses.replace(
        call,
        reads=tuple((k, (0, *offsets)) for k, offsets in call.reads),
        coordinates=tuple(axis + 1 for axis in call.coordinates),
        bounds=tuple((Bounds("nothing"), *own) for own in call.bounds),
        window=(Window(0, count), *call.window),
    )


def array_cells(call: StencilCall, avals: Sequence[Any], masks: Sequence[int]) -> list[tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of a lane of a cell of each array."""
    skipped = call.rank + call.lanes_rank
    pairs = list(zip(avals, masks, strict=True))[: call.num_arrays]
    return [(tuple(a.shape[m.bit_count() + skipped :]), np.dtype(a.dtype)) for a, m in pairs]


def lanes_of(call: StencilCall, avals: Sequence[Any], masks: Sequence[int]) -> tuple[int, ...]:
    first = masks[0].bit_count() + call.rank
    return tuple(avals[0].shape[first : first + call.lanes_rank])


def call_spec(call: StencilCall, avals: Sequence[Any], masks: Sequence[int]) -> StencilSpec:
    cells = tuple(array_cells(call, avals, masks))
    captured = tuple(np.dtype(a.dtype) for a in avals[call.num_arrays :])
    return _spec(call.f, call.reads, call.coordinates, call.rank, math.prod(lanes_of(call, avals, masks)), cells, captured)


@functools.lru_cache(maxsize=512)
def _spec(
    f: Traced, reads: Any, coordinates: Any, rank: int, unit: int, cells: Sequence[Any], captured: Sequence[np.dtype]
) -> StencilSpec:
    def form(shape: tuple[int, ...], dtype: Any) -> tuple[str, int]:
        return scalar_name(dtype), slots_of(shape, dtype)

    return StencilSpec(
        rank,
        unit,
        tuple(form(*cell) for cell in cells),
        reads,
        coordinates,
        tuple(scalar_name(d) for d in captured),
        tuple(form(v.aval.shape, v.aval.dtype) for v in f.jaxpr.outvars),
        f.program,
    )


def result_shapes(call: StencilCall, avals: Sequence[Any], masks: Sequence[int], rank: int) -> list[tuple[Any, ...]]:
    batch, lanes = batch_shape(avals, masks, rank), lanes_of(call, avals, masks)
    return [(*batch, *(w.size for w in call.window), *lanes, *shape) for shape, _ in call.results]


def widest(call: StencilCall) -> tuple[Any, ...]:
    """The grid's size before the first step."""
    return tuple(w.size + call.steps * sum(w.shrink) for w in call.window)
