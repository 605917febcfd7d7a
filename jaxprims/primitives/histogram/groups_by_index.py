"""Which elements a histogram combines, for derivative rules (``ad_rules``): sums by index, and gathers, their transposes.
Rows are weighed, by what they and their bin's result say, in the kernel that sums them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ...operators.operator import passing
from ...tracing.lower import Unsupported
from ...tracing.varying import axes_of
from ..ad_rules import Groups
from ..ordered.reduce_ad import gather
from ..tangents import Leaves
from .call import HistogramCall, sums_of_rows
from .linear import pays
from .made import Aval, Made, avals_of, context, is_large, made_of
from .primitive import bind, by_index, narrowed


def weighed(weigh: Callable[..., Any], index: Any, value: Any, x: Any, dot: Any, deterministic: bool) -> Any:
    """``weigh(value, x[index]) * dot`` summed by index, of rows; None where there is no kernel of it, or it would not pay."""
    arrays = [index, value] if dot is None else [index, value, dot]
    sizes = [*value.shape, *x.shape]
    if value.ndim == 1 or axes_of([*arrays, x]) or not all(isinstance(n, int) for n in sizes):
        return None
    if not pays(value.shape[0], math.prod(value.shape[1:])) or 0 in x.shape:
        return None
    arrays[0] = narrowed(index, x.shape[0])
    made = _weighed(weigh, avals_of([x]), tuple((s[1:], d) for s, d in avals_of(arrays)), deterministic, context())
    return None if made is None else bind(made.call, [*arrays, *made.captured(x)])[0]


@functools.lru_cache(maxsize=256)
def _weighed(
    weigh: Callable[..., Any], held: tuple[Aval, ...], elements: tuple[Aval, ...], deterministic: bool, _: Any
) -> Made | None:
    ((bins, *inner), dtype) = held[0]

    def of_element(held: Sequence[Any], i: Any, value: Any, *dot: Any) -> Leaves:
        weight = weigh(value, lax.dynamic_index_in_dim(held[0], jnp.clip(i, 0, bins - 1), keepdims=False))
        return [i, weight * dot[0] if dot else weight]

    if is_large(elements):
        return None
    try:
        part = sums_of_rows(bins, inner, dtype)
    except Unsupported:
        return None
    like = HistogramCall(passing(elements), (None,) * len(elements), (part,), deterministic=deterministic)
    return made_of(like, of_element, held, elements, like.parts)


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
