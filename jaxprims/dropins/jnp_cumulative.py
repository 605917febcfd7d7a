"""``jax.numpy``'s cumulative sums and products.

What the kernels do not do is left to ``jax.numpy``, and so are arguments that are wrong: errors are its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..api.scan import scan
from ..tracing.jaxprs import EARLY
from ..tracing.varying import sharded_axes
from .jnp_histogram import is_number

__all__ = ["cumulative_prod", "cumulative_sum", "nancumprod", "nancumsum"]

_OPS: dict[str, tuple[Callable[..., Any], int]] = {
    "cumulative_sum": (jnp.add, 0), "nancumsum": (jnp.add, 0),
    "cumulative_prod": (jnp.multiply, 1), "nancumprod": (jnp.multiply, 1),
}  # fmt: skip
"""The operator and its identity."""


def _described(name: str, example: str, result: str) -> str:
    """How all their documentation ends."""
    return f"""
    Raises:
      TypeError, ValueError: as ``jax.numpy``'s.

    Cost: work O(N), span O(N / T + T) with T threads; each element is read once and written once.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.{name}({example}).tolist()
    {result}
    """


def _cumulative_drop_in(name: str, what: str, initial: int, example: str, result: str) -> Callable[..., jax.Array]:
    def cumulative(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> jax.Array:
        return _along(name, x, axis=axis, dtype=dtype, include_initial=include_initial)

    cumulative.__name__ = cumulative.__qualname__ = name
    cumulative.__doc__ = f"""The cumulative {what} along an axis, like :func:`jax.numpy.{name}`.

    Args:
      x: numbers or booleans, of any rank but 0.
      axis: which one to go along; it may be left out for rank 1.
      dtype: that of the {what}s. Default: ``x``'s, but int for small integers and booleans.
      include_initial: begin with a {initial}.

    Returns:
      An array of ``x``'s shape, or with ``include_initial`` one longer along ``axis``.
{_described(name, example, result)}"""
    return cumulative


def _ignoring_nan(name: str, what: str, neutral: int, result: str) -> Callable[..., jax.Array]:
    def cumulative(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> jax.Array:
        return _along(name, a, axis=axis, dtype=dtype, out=out)

    cumulative.__name__ = cumulative.__qualname__ = name
    cumulative.__doc__ = f"""The cumulative {what} with NaN taken for {neutral}, like :func:`jax.numpy.{name}`.

    Args:
      a: numbers or booleans.
      axis: which one to go along; None: through the flattened array.
      dtype: that of the {what}s; default ``a``'s.
      out: as in ``jax.numpy``, None.

    Returns:
      An array of ``a``'s shape; flat without an axis.
{_described(name, "jnp.array([3.0, jnp.nan, 4.0])", result)}"""
    return cumulative


cumulative_sum = _cumulative_drop_in("cumulative_sum", "sum", 0, "jnp.array([3, 1, 4]), include_initial=True", "[0, 3, 4, 8]")
cumulative_prod = _cumulative_drop_in(
    "cumulative_prod", "product", 1, "jnp.array([[1, 2], [3, 4]]), axis=-1", "[[1, 2], [3, 12]]"
)
nancumsum = _ignoring_nan("nancumsum", "sum", 0, "[3.0, 3.0, 7.0]")
nancumprod = _ignoring_nan("nancumprod", "product", 1, "[3.0, 3.0, 12.0]")


def _along(name: str, x: Any, **options: Any) -> jax.Array:
    axis, out, dtype = (options.get(option) for option in ("axis", "out", "dtype"))
    plain_values = (axis is None or type(axis) is int) and out is None and isinstance(options.get("include_initial", False), bool)
    if plain_values and is_number(x) and np.ndim(x) and not sharded_axes(x):
        known = {k: v for k, v in options.items() if k not in ("out", "dtype")}
        return _cumulative(x, name, dtype=None if dtype is None else np.dtype(dtype), **known)
    return getattr(jnp, name)(x, **options)


@functools.partial(jax.jit, static_argnames=("name", "axis", "dtype", "include_initial"), inline=EARLY)
def _cumulative(x: jax.Array, name: str, axis: int | None, dtype: Any, include_initial: bool | None = None) -> jax.Array:
    options = {} if include_initial is None else {"include_initial": include_initial}
    wanted = jax.eval_shape(functools.partial(getattr(jnp, name), axis=axis, dtype=dtype, **options), x)
    op, neutral = _OPS[name]
    along = 0 if axis is None else axis % x.ndim
    x = jnp.ravel(x) if axis is None else x
    if name.startswith("nan"):
        x = jnp.where(jnp.isnan(x), jnp.array(neutral, x.dtype), x)
    y = scan(x.astype(wanted.dtype), op, axis=along)
    if not include_initial:
        return y
    first = jnp.full((*y.shape[:along], 1, *y.shape[along + 1 :]), neutral, y.dtype)
    return jnp.concatenate([first, y], axis=along)
