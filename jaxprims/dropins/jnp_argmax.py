"""``argmax`` and ``argmin``, also without NaN: the same as ``jax.numpy``'s, in one pass over the data at the speed of memory.

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
from ..calls.kept import kept
from ..tracing.jaxprs import EARLY
from ..tracing.varying import sharded_axes
from .jnp_histogram import is_real

__all__ = ["argmax", "argmin", "nanargmax", "nanargmin"]

FEW = 4096
"""Numbers of which all are looked at once more for NaN in less time than XLA takes to ask whether that must be."""

FEW_TO_EACH = 20
"""Numbers of which one is the result, below which XLA finds it in the loop that looks for NaN."""


def _drop_in(name: str, what: str, of_nan: str, raises: str, example: str) -> Callable[..., jax.Array]:
    plain = getattr(jnp, name)

    @kept("a")
    def arg(a: Any, axis: int | None = None, out: None = None, keepdims: bool | None = None) -> jax.Array:
        if out is None and is_real(a) and 0 not in np.shape(a):
            try:
                along = None if axis is None else operator.index(axis)
                inside = along is None or -np.ndim(a) <= along < np.ndim(a)
                gone = range(np.ndim(a)) if along is None else [along % max(1, np.ndim(a))]
                if inside and not set(gone) & set(sharded_axes(a)):  # of explicit meshes: JAX alone may combine along them
                    return _arg(a, name, along, bool(keepdims))
            except TypeError:  # no integer
                pass
        return plain(a, axis, out, keepdims)

    arg.__name__ = arg.__qualname__ = name
    arg.__doc__ = f"""The position of the {what} element, the first of several, like :func:`jax.numpy.{name}`. {of_nan}

    Args:
      a: number, of any shape.
      axis: along which axis; default: the position in the flattened array.
      out: as in ``jax.numpy``, None.
      keepdims: the axis stays, of length 1 (all axes, without ``axis``).

    Returns:
      int32 (int64 with ``jax_enable_x64``), of ``a``'s shape without ``axis``.

    Raises:
      TypeError, ValueError: as ``jax.numpy``'s.

    Cost: O(N) work, O(N / T + log N) span, one read of ``a``{raises}.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> {example}
    """
    return arg


_FIRST_NAN, _NO_NAN = "The first NaN wins.", "NaN never wins; where there is nothing else, -1."
_AGAIN = ", two where nothing but infinities and NaN was found"
argmax = _drop_in("argmax", "greatest", _FIRST_NAN, "", """jp.argmax(jnp.array([2, 7, 1, 8, 1])).tolist()
    3""")  # fmt: skip
argmin = _drop_in("argmin", "least", _FIRST_NAN, "", """jp.argmin(jnp.array([2, 7, 1, 8, 1])).tolist()
    2""")  # fmt: skip
nanargmax = _drop_in("nanargmax", "greatest", _NO_NAN, _AGAIN, """jp.nanargmax(jnp.array([2.0, jnp.nan, 1.0])).tolist()
    0""")  # fmt: skip
nanargmin = _drop_in("nanargmin", "least", _NO_NAN, _AGAIN, """jp.nanargmin(jnp.array([2.0, jnp.nan, 1.0])).tolist()
    2""")  # fmt: skip


@functools.partial(jax.jit, static_argnums=(1, 2, 3), inline=EARLY)
def _arg(a: jax.Array, name: str, axis: int | None, keepdims: bool) -> jax.Array:
    a = jax.lax.stop_gradient(jnp.asarray(a))
    ignored = name.startswith("nan") and jnp.issubdtype(a.dtype, jnp.floating)
    last = jnp.asarray(-np.inf if name.endswith("max") else np.inf, a.dtype) if ignored else None

    def number(x: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.where(jnp.isnan(x), last, x) if ignored else x.astype(np.uint8), at

    known = all(isinstance(n, int) for n in a.shape)
    if ignored and known and axis is not None and a.shape[axis] < FEW_TO_EACH and a.size > FEW:
        return getattr(jnp, name)(a, axis, keepdims=keepdims)
    changed = ignored or a.dtype == bool
    monoid = getattr(monoids, name.removeprefix("nan"))
    best, at = reduce((a, positions), monoid, axis=axis, map=number if changed else None, keepdims=keepdims)
    at = at.astype(jnp.result_type(int))
    if not ignored:
        return at
    some = lambda: ~reduce(a, jnp.logical_and, axis=axis, map=jnp.isnan, keepdims=keepdims)  # noqa: E731
    if known and a.size <= FEW:
        return jnp.where(some(), at, -1)
    unsure = jnp.any(best == last)  # an infinity, or nothing but NaN
    return jnp.where(jax.lax.cond(unsure, some, lambda: jnp.ones(at.shape, bool)), at, -1)
