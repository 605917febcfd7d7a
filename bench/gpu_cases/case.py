"""A comparison on a GPU, and the sizes of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from ..gpu_contestants import Prepare
from ..gpu_measure import Arrays

OURS = "jaxprims"
BINS = (31, 127, 505, 2041, 6141, 12281, 24569, 49145, 196607, 393215, 786431, 1572863)
RACE_FACTORS = (1, 63)
SATURATION = 0xFFFFFF
LOWEST, HIGHEST = -(2**31), 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Case:
    """One comparison. ``bytes``: what must be moved at least. The first contestant to answer is the reference of the others."""

    group: str
    name: str
    elements: int
    bytes: int
    inputs: Callable[[], tuple[jax.Array, ...]]
    contestants: Mapping[str, Prepare]
    rtol: float = 0.0
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unchecked: tuple[str, ...] = ()
    """Contestants that do another, easier work."""
    check: Callable[[Arrays], Arrays] = lambda answer: answer
    """What of the answers is compared."""
    alone: bool = False
    """Also timed one call at a time."""
    explained: bool = False
    """The report says what ``jaxprims.explain`` tells of the plan."""

    @property
    def title(self) -> str:
        return f"{self.group}: {self.name}"


@dataclasses.dataclass(frozen=True)
class Sizes:
    paper: int  # of Henriksen et al. 2020
    large: int  # where a launch must not show
    bins: tuple[int, ...]
    plan_bins: tuple[int, ...]
    reductions: tuple[int, ...]


FULL = Sizes(50_000_000, 2**27, BINS, BINS[::2] + BINS[-1:], tuple(m * 2**20 for m in (16, 31, 64, 128, 256, 512)))
SMALL = Sizes(20_000, 50_000, (31, 6141), (127,), (2**14, 2**16))
