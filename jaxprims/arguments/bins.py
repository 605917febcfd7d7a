"""``Bins``: those of one histogram."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from .checks import sizes_of
from .monoid import Monoid, as_monoid


@dataclasses.dataclass(frozen=True, eq=False)
class Bins:
    """The bins of one histogram, for :func:`genhist`.

    Args:
      num_bins: H, or a tuple of sizes for bins of several dimensions.
      op: how a bin and a value become the new bin: a :class:`Monoid` or any callable ``(a, b) -> c`` on values of the histogram's
        structure. Associative and commutative.
      identity: op's neutral element. Known for recognised operators; others need it, or ``dest``. Best a Python or NumPy number:
        a ``jnp`` array made under ``jit`` is only known when the function runs, and bins that start from it cannot be copied.
      dest: what the bins hold before, leaves ``[*num_bins, *bin_shape]``; combined in once, from the left.

    Raises:
      TypeError: ``op`` is not callable, or ``num_bins`` no integer. ValueError: it is negative.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> halves = jp.Bins(3, jnp.maximum, dest=jnp.array([0, 5, 0]))
    >>> jp.genhist(lambda x: (x // 2, x), jnp.array([1, 0, 2, 3]), halves).tolist()
    [1, 5, 0]
    """

    num_bins: int | tuple[int, ...]
    op: Callable[[Any, Any], Any] | Monoid = jnp.add
    identity: Any = None
    dest: Any = None

    def __post_init__(self) -> None:
        sizes_of(self.num_bins)
        as_monoid(self.op, self.identity)
