"""JAX's own scans, faster: ``associative_scan``, ``cumsum``, ``cumprod``, ``cummax``, ``cummin`` and ``cumlogsumexp``.

What the kernels do not do is left to ``jax.lax``, so errors are its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..api.scan import scan

__all__ = ["associative_scan", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"]

_OPS: dict[str, tuple[Callable[..., Any], Callable[..., Any], str, str, str]] = {
    "cumsum": (jax.lax.cumsum, jnp.add, "sum", "biufc", "[1, 3, 6]"),
    "cumprod": (jax.lax.cumprod, jnp.multiply, "product", "biufc", "[1, 2, 6]"),
    "cummax": (jax.lax.cummax, jnp.maximum, "maximum", "biuf", "[1, 2, 3]"),
    "cummin": (jax.lax.cummin, jnp.minimum, "minimum", "biuf", "[1, 1, 1]"),
    "cumlogsumexp": (jax.lax.cumlogsumexp, jnp.logaddexp, "log of the sum of exponentials", "f", "[1.0, 2.31, 3.41]"),
}


def _drop_in(name: str) -> Callable[..., jax.Array]:
    plain, _, what, kinds, example = _OPS[name]

    def cumulative(operand: Any, axis: int = 0, reverse: bool = False) -> jax.Array:
        if _scannable(operand, kinds) and type(axis) is int and 0 <= axis < operand.ndim and isinstance(reverse, bool):
            return _cumulative(operand, name, axis, reverse)
        return plain(operand, axis=axis, reverse=reverse)

    cumulative.__name__ = cumulative.__qualname__ = name
    shown = "" if name == "cumlogsumexp" else "int(v)"
    values = "[round(float(v), 2) for v in y]" if not shown else "[int(v) for v in y]"
    start = "1., 2., 3." if not shown else "1, 2, 3"
    cumulative.__doc__ = f"""The cumulative {what} along an axis, like :func:`jax.lax.{name}`.

    Args:
      operand: an array of numbers.
      axis: which one to go along, not negative.
      reverse: from the last element to the first.

    Returns:
      An array like ``operand``. Sums of f16 and bf16 are kept in f32 and rounded once each.

    Raises:
      TypeError, ValueError: as ``jax.lax``'s.

    Cost: work O(N), span O(N / T + T) with T threads; each element is read once from memory and written once.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> y = jp.{name}(jnp.array([{start}]))
    >>> {values}
    {example}
    """
    return cumulative


def _scannable(x: Any, kinds: str) -> bool:
    if not isinstance(x, (jax.Array, np.ndarray)) or x.dtype == jnp.bool_ or jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return False
    return np.dtype(x.dtype).kind in kinds or ("f" in kinds and jnp.issubdtype(x.dtype, jnp.floating))


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _cumulative(operand: jax.Array, name: str, axis: int, reverse: bool) -> jax.Array:
    return scan(operand, _OPS[name][1], axis=axis, reverse=reverse)


cumsum = _drop_in("cumsum")
cumprod = _drop_in("cumprod")
cummax = _drop_in("cummax")
cummin = _drop_in("cummin")
cumlogsumexp = _drop_in("cumlogsumexp")


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """All prefixes combined with an associative function, like :func:`jax.lax.associative_scan`.

    Args:
      fn: ``(a, b) -> c`` on arrays that still have ``axis``, of any length along it: on many pairs of elements at once, each by
        itself, as ``jax.lax`` wants it. Its arguments and result have the structure of ``elems``.
      elems: pytree of arrays with one length along ``axis``.
      reverse: from the last element to the first.
      axis: which one to go along.

    Returns:
      A pytree like ``elems``.

    Raises:
      TypeError: ``fn`` is not callable, or changes structure, shapes or dtypes. ValueError: lengths that differ, an axis out of
        range.

    Cost: as :func:`scan`'s: ``jax.lax``'s own passes over memory 2 log N times.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.associative_scan(jnp.maximum, jnp.array([3, 1, 4])).tolist()
    [3, 3, 4]
    """
    if not callable(fn):
        raise TypeError(f"fn must be a function of two values, got {fn!r}")
    leaves = jax.tree.leaves(elems)
    if not leaves:
        return elems
    if all(np.shape(x) and np.shape(x)[axis if -np.ndim(x) <= axis < np.ndim(x) else 0] == 0 for x in leaves):
        return elems
    ranks = [np.ndim(x) for x in leaves]

    def on_slices(a: Any, b: Any) -> Any:
        given, wanted = _with_axis(a, ranks, axis), jax.tree.leaves(a)
        flat, tree = jax.tree.flatten(fn(given, _with_axis(b, ranks, axis)))
        shapes = [np.shape(x) for x in jax.tree.leaves(given)]
        if [np.shape(x) for x in flat] != shapes:
            raise TypeError(f"fn must keep the shapes of its arguments, {shapes}; it returned {[np.shape(x) for x in flat]}")
        return jax.tree.unflatten(tree, [jnp.reshape(x, np.shape(w)) for x, w in zip(flat, wanted, strict=True)])

    return scan(elems, on_slices, axis=axis, reverse=bool(reverse))


def _with_axis(slices: Any, ranks: list[int], axis: int) -> Any:
    """A slice, or a part of one, as an array of the whole's rank, of length 1 where it has lost an axis."""
    leaves, tree = jax.tree.flatten(slices)
    out = []
    for x, rank in zip(leaves, ranks, strict=True):
        full = jnp.reshape(x, (1,) * (rank - 1 - x.ndim) + x.shape)
        out.append(jnp.expand_dims(full, axis % rank))
    return jax.tree.unflatten(tree, out)
