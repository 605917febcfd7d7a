"""``argmax`` and ``argmin``: the same as ``jax.numpy``'s, in one pass over the data at the speed of memory.

What the kernels do not do (complex data, no elements, arguments that are wrong) is left to ``jax.numpy``, so errors are its own.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..api.reduce import reduce
from ..arguments.monoids import monoids
from ..arguments.positions import positions
from .jnp_histogram import is_real

__all__ = ["argmax", "argmin"]


def _drop_in(name: str, what: str, example: str) -> Callable[..., jax.Array]:
    plain = getattr(jnp, name)

    def arg(a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> jax.Array:
        if out is None and is_real(a) and 0 not in np.shape(a):
            try:
                along = None if axis is None else operator.index(axis)
                if along is None or -np.ndim(a) <= along < np.ndim(a):
                    return _arg(a, name, along, bool(keepdims))
            except TypeError:  # no integer
                pass
        return plain(a, axis, out, keepdims)

    arg.__name__ = arg.__qualname__ = name
    arg.__doc__ = f"""The position of the {what} element, the first of several, like :func:`jax.numpy.{name}`. The first NaN wins.

    Args:
      a: number, of any shape.
      axis: along which axis; default: the position in the flattened array.
      out: as in ``jax.numpy``, None.
      keepdims: the axis stays, of length 1 (all axes, without ``axis``).

    Returns:
      int32 (int64 with ``jax_enable_x64``), of ``a``'s shape without ``axis``.

    Raises:
      TypeError, ValueError: as ``jax.numpy``'s.

    Cost: O(N) work, O(N / T + log N) span, one read of ``a``.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.{name}(jnp.array([2, 7, 1, 8, 1]))
    Array({example}, dtype=int32)
    """
    return arg


argmax = _drop_in("argmax", "greatest", "3")
argmin = _drop_in("argmin", "least", "2")


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _arg(a: jax.Array, name: str, axis: int | None, keepdims: bool) -> jax.Array:
    a = jax.lax.stop_gradient(jnp.asarray(a))
    number = (lambda x, at: (x.astype(np.uint8), at)) if a.dtype == bool else None
    best = reduce((a, positions), getattr(monoids, name), axis=axis, map=number, keepdims=keepdims)
    return best[1].astype(jnp.result_type(int))
