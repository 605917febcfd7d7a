"""Which elements a histogram combines, for derivative rules (``ad_rules``): sums by index, and gathers, their transposes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from .histogram import by_index
from .reduce_ad import gather, numbers
from .tangents import Leaves
from .weighed_sums import weighed


@dataclasses.dataclass
class ByIndex:
    """The elements of each bin."""

    index: Any
    num_bins: int
    deterministic: bool = False

    def combine(self, ops: Sequence[Callable[..., Any]], values: Leaves, start: Leaves | None = None) -> Leaves:
        """In one pass."""
        return by_index(self.index, values, ops, self.num_bins, start, self.deterministic)

    def reduced(self, f: Callable[..., Any], op: Callable[..., Any], value: Any) -> Leaves | None:
        return None  # several histograms of what is computed are one pass as it is

    def weighed(self, weigh: Callable[..., Any], value: Any, x: Any, dot: Any) -> Any:
        return weighed(weigh, self.index, value, x, dot, self.deterministic)

    def sum(self, values: Any) -> Any:
        return self.combine([jnp.add], [values])[0]

    def numbers(self, mask: Any, dtype: Any) -> Any:
        return numbers(mask, dtype)

    def gather(self, x: Any) -> Any:
        return gather(x, self.index)

    def inside(self) -> Any:
        return (self.index >= 0) & (self.index < self.num_bins)
