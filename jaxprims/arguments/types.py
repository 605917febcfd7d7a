"""What users hand over and get back, as signatures say it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeAlias

from jax.lax import GatherScatterMode
from jax.typing import ArrayLike as ArrayLike
from jax.typing import DTypeLike as DTypeLike

PyTree: TypeAlias = Any
"""Arrays, or tuples, lists, dicts and registered classes of them: no type of Python's says that."""

Function: TypeAlias = Callable[..., PyTree]
"""Of one element, or of one cell's neighbourhood."""

AxisName: TypeAlias = Hashable | Sequence[Hashable] | None
"""A mesh axis, or several, the first the slowest."""


Mode: TypeAlias = str | GatherScatterMode | None
"""What is done with indices out of range, as ``jax.ops`` says it."""


class Operator(Protocol):
    """``(a, b) -> c`` on values of one structure: a function, or a :class:`Monoid`."""

    def __call__(self, a: PyTree, b: PyTree, /) -> PyTree: ...
