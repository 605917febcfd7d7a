"""Which elements a histogram combines, for derivative rules (``ad_rules``): sums by index, and gathers, their transposes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ..ad_rules import Groups
from ..ordered.reduce_ad import gather
from ..tangents import Leaves
from .primitive import by_index
from .weighed_sums import weighed


@dataclasses.dataclass
class ByIndex(Groups):
    """The elements of each bin."""

    index: Any
    num_bins: int
    deterministic: bool = False

    def combine(self, ops: Sequence[Callable[..., Any]], values: Leaves, start: Leaves | None = None) -> Leaves:
        """In one pass, whatever is computed first."""
        return by_index(self.index, values, ops, self.num_bins, start, self.deterministic)

    def weighed(self, weigh: Callable[..., Any], value: Any, x: Any, dot: Any) -> Any:
        return weighed(weigh, self.index, value, x, dot, self.deterministic)

    def gather(self, x: Any) -> Any:
        return gather(x, self.index)

    def inside(self) -> Any:
        return (self.index >= 0) & (self.index < self.num_bins)
