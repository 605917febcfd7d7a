"""``stencil``: any function of a neighbourhood, on all cells of a grid."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..calls.stencil import check_stencil, run

BLOCK = 8
"""Steps that are made together where their number is only known when the call runs."""


def stencil(
    f: Callable[..., Any],
    xs: Any,
    *,
    boundary: Any = "edge",
    fill_value: Any = 0,
    axes: Any = None,
    steps: Any = 1,
    constants: Any = None,
    axis_name: Any = None,
) -> Any:
    """``f`` of the neighbourhood of every cell; of its results again, ``steps`` times in all."""
    count = _steps(steps)
    call = check_stencil(f, xs, boundary, fill_value, axes, constants, like_xs=count != 1)
    if isinstance(count, int):
        out = run(call, count)
    else:
        out = _blocks(f, xs, boundary, fill_value, axes, constants, count)
    return jax.tree.unflatten(call.tree, out)


def _steps(steps: Any) -> Any:
    if isinstance(steps, (bool, np.bool_)) or (not hasattr(steps, "__index__") and not isinstance(steps, jax.Array)):
        raise TypeError(f"steps must be an integer, got {steps!r:.100}")
    try:
        count = operator.index(steps)
    except TypeError:  # a tracer
        if steps.shape != () or not jnp.issubdtype(steps.dtype, jnp.integer):
            raise TypeError(f"steps must be one integer, got {steps!r:.100}") from None
        return steps
    if count < 0:
        raise ValueError(f"steps must not be negative, got {count}")
    return count


def _blocks(*args: Any) -> Any:
    raise NotImplementedError
