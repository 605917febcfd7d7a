"""``linear_recurrence``: y[t] = a[t] y[t-1] + b[t]."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..arguments.checks import as_array, flag
from ..arguments.types import ArrayLike, PyTree
from ..calls.along_axis import normal_axis
from ..calls.kept import kept
from ..primitives.ordered.recurrence import Product, Recurrence, recurrence
from ..tracing.varying import axes_of, vary


@kept("a", "b", "init")
def linear_recurrence(a: ArrayLike, b: ArrayLike, init: PyTree = None, *, axis: int = 0, reverse: bool = False) -> jax.Array:
    """``y[t] = a[t] * y[t-1] + b[t]``, element by element of the other axes; ``y[-1]`` is ``init``, or 0.

    Args:
      a: numbers, real or complex; it broadcasts against ``b``. An array that is the same for all leading axes (of size 1 there,
        or without them) is not copied, nor is a number that is the same for all steps.
      b: numbers; N of them along ``axis``.
      init: broadcasts to a slice, ``b`` without ``axis``. None: ``y[0] = b[0]``.
      axis: which one time runs along, of what ``a`` and ``b`` broadcast to.
      reverse: from the last element to the first: ``y[t] = a[t] * y[t+1] + b[t]``.

    Returns:
      y, of the shape to which ``a`` and ``b`` broadcast, and their common dtype (f16 and bf16 are computed in f32).

    Raises:
      TypeError: what is no array of numbers; dtypes without a common one. ValueError: shapes that do not broadcast, an axis out
        of range.

    Cost: work O(N), span O(N / T + T) for T threads; ``a`` and ``b`` are read once, y is written once; its gradient is the
    recurrence in the other direction.

    Source: Blelloch 1990, 1.4; the scan is that of de Kluijver 2024.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.linear_recurrence(jnp.array([0.5, 0.5, 2.0]), jnp.array([4.0, 1.0, 0.0])).tolist()
    [4.0, 3.0, 6.0]
    """
    reverse = flag(reverse, "reverse")
    a, b = (_numbers(x, name) for x, name in ((a, "a"), (b, "b")))
    given = [a, b] if init is None else [a, b, _numbers(init, "init")]
    try:
        shape = jnp.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise ValueError(f"a and b must broadcast against each other, got shapes {a.shape} and {b.shape}") from None
    if not shape:
        raise ValueError("a or b needs an axis to go along, got two scalars")
    at = normal_axis(axis, len(shape), "a and b")
    dtype = jnp.result_type(*given)
    inside = jnp.float32 if dtype in (jnp.float16, jnp.bfloat16) else dtype
    varying = axes_of(given)
    behind = a.shape[max(0, a.ndim - len(shape) + at) :]
    steady = all(isinstance(d, int) and d == 1 for d in behind)  # one number for all steps and what lies behind them
    wanted = (*shape[:at], *(1,) * (len(shape) - at)) if steady else shape
    factors, factor_mask = _on_batch(a.astype(inside), wanted, at)
    if steady:
        factors = factors.reshape(factors.shape[: factor_mask.bit_count()])
    terms, term_mask = _on_batch(b.astype(inside), shape, at)
    operands, masks = [factors, terms], [factor_mask, term_mask]
    if init is not None:
        slices = (*shape[:at], *shape[at + 1 :])
        try:
            operands.append(jnp.broadcast_to(given[2].astype(inside), slices))
        except ValueError:
            raise ValueError(f"init must broadcast to a slice's shape {slices}, got {given[2].shape}") from None
        masks.append((1 << at) - 1)
    if any(d == 0 for d in shape):
        return vary(jnp.zeros(shape, dtype), varying)
    r = Recurrence(Product(), len(shape) - at - 1, bool(reverse), init=init is not None, steady=steady)
    return recurrence(r, operands, masks, at)[0].astype(dtype)


def _numbers(x: Any, name: str) -> jax.Array:
    array = as_array(x, name)
    if array.dtype in (jnp.bool_, jax.dtypes.float0) or jnp.issubdtype(array.dtype, jax.dtypes.extended):
        raise TypeError(f"{name} must be numbers, got {array.dtype}")
    return array


def _on_batch(x: jax.Array, shape: tuple[Any, ...], at: int) -> tuple[jax.Array, int]:
    """An array without the leading axes along which it is the same, and the mask of those that it has."""
    x = x.reshape((1,) * (len(shape) - x.ndim) + x.shape)
    lacks = [k for k in range(at) if x.shape[k] == 1 and shape[k] != 1]
    x = jnp.broadcast_to(x, (*x.shape[:at], *shape[at:]))
    return jnp.squeeze(x, lacks), sum(1 << k for k in range(at) if k not in lacks)
