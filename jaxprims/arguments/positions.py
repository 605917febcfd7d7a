"""``positions``: each element's own."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


class _Positions:
    """Among values, arrays or ``xs``, a leaf that stands for each element's own position: 0, 1, ... It is made in the kernel and
    is never in memory.

    Taken by :func:`reduce_by_index` (among ``values``), :func:`genhist` (among ``arrays``), :func:`scan`, :func:`reduce` and
    :func:`segment_reduce` (among ``xs``), if something else, an array or the indices, says how many elements there are; and by
    :func:`stencil`, as a cell's coordinates.

    Positions count along the axis that is gone through, from its beginning, also with ``reverse=True``; of several axes of a
    reduction, row-major; under ``vmap``, in each member of the batch. An element's position is a scalar of int32, from 2^31
    elements on of int64, which needs ``jax_enable_x64``. Positions have no derivative.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> groups = jnp.array([0, 2, 0, 2, 2])
    >>> jp.reduce_by_index(jp.positions, groups, 3, jnp.maximum).tolist()  # where each group's last element is
    [2, -2147483648, 4]
    >>> x = jnp.array([3.0, 1.0, 5.0])
    >>> jp.scan((x, jp.positions), map=lambda v, i: v * i, op=jnp.add).tolist()
    [0.0, 1.0, 11.0]
    """

    def __repr__(self) -> str:
        return "jp.positions"

    def __reduce__(self) -> str:
        return "positions"  # a copy, or what is read from a pickle, is this one


positions = _Positions()


def position_dtype(n: Any, name: str, *, wanted: bool) -> np.dtype:
    """The dtype of positions among n elements of the argument ``name``. Raises ValueError if they are wanted and pass 2^31
    without 64-bit types."""
    dtype = np.dtype(np.int32 if not isinstance(n, int) or n <= 2**31 else np.int64)
    if wanted and dtype == np.int64 and not jax.config.jax_enable_x64:
        raise ValueError(f"{name}: positions pass 2^31 here: jax_enable_x64 is needed")
    return dtype
