"""JAX's own scans, faster: ``associative_scan``, ``cumsum``, ``cumprod``, ``cummax``, ``cummin`` and ``cumlogsumexp``.

What the kernels do not do is left to ``jax.lax``, so errors are its own.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..api.scan import scan
from ..arguments.checks import called

__all__ = ["associative_scan", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"]

_OPS: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "cumsum": (jax.lax.cumsum, jnp.add, "iufc"),
    "cumprod": (jax.lax.cumprod, jnp.multiply, "iufc"),
    "cummax": (jax.lax.cummax, jnp.maximum, "iuf"),
    "cummin": (jax.lax.cummin, jnp.minimum, "iuf"),
    "cumlogsumexp": (jax.lax.cumlogsumexp, jnp.logaddexp, "f"),
}
"""JAX's own function, the operator, and the kinds of dtypes that kernels serve."""


def cumsum(operand: Any, axis: int = 0, reverse: bool = False) -> jax.Array:
    """The cumulative sum along an axis, like :func:`jax.lax.cumsum`.

    Args:
      operand: an array of integers, floats or complex numbers, of any rank but 0.
      axis: which one to go along, 0 to rank - 1: as ``jax.lax``'s, it is not negative.
      reverse: from the last element to the first.

    Returns:
      An array of ``operand``'s shape and dtype: element i is the sum of elements 0 to i. Integers
      wrap; sums of f16 and bf16 are kept in f32 and rounded once each.

    Raises:
      TypeError (booleans among others), ValueError (an axis out of range): as :func:`jax.lax.cumsum`'s, which also serves what
      kernels do not: 4-bit integers.

    Cost: work O(N), span O(N / T + T) with T threads; each element is read once from memory and written once.

    Source: as of :func:`scan`, which it is with :data:`monoids.add`.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.cumsum(jnp.array([[1, 2, 3], [4, 5, 6]]), axis=1).tolist()
    [[1, 3, 6], [4, 9, 15]]
    """
    return _along(operand, "cumsum", axis, reverse)


def cumprod(operand: Any, axis: int = 0, reverse: bool = False) -> jax.Array:
    """The cumulative product along an axis, like :func:`jax.lax.cumprod`.

    Args:
      operand: an array of integers, floats or complex numbers, of any rank but 0.
      axis: which one to go along, 0 to rank - 1: as ``jax.lax``'s, it is not negative.
      reverse: from the last element to the first.

    Returns:
      An array of ``operand``'s shape and dtype: element i is the product of elements 0 to i.
      Integers wrap.

    Raises:
      TypeError (booleans among others), ValueError (an axis out of range): as :func:`jax.lax.cumprod`'s, which also serves what
      kernels do not: 4-bit integers.

    Cost: work O(N), span O(N / T + T) with T threads; each element is read once from memory and written once.

    Source: as of :func:`scan`, which it is with :data:`monoids.mul`.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.cumprod(jnp.array([1, 2, 3, 4])).tolist()
    [1, 2, 6, 24]
    """
    return _along(operand, "cumprod", axis, reverse)


def cummax(operand: Any, axis: int = 0, reverse: bool = False) -> jax.Array:
    """The cumulative maximum along an axis, like :func:`jax.lax.cummax`.

    Args:
      operand: an array of integers or floats, of any rank but 0.
      axis: which one to go along, 0 to rank - 1: as ``jax.lax``'s, it is not negative.
      reverse: from the last element to the first.

    Returns:
      An array of ``operand``'s shape and dtype: element i is the greatest of elements 0 to i; from a NaN
      on it is NaN.

    Raises:
      TypeError (booleans among others), ValueError (an axis out of range): as :func:`jax.lax.cummax`'s, which also serves what
      kernels do not: 4-bit integers, complex numbers in lexicographic order.

    Cost: work O(N), span O(N / T + T) with T threads; each element is read once from memory and written once.

    Source: as of :func:`scan`, which it is with :data:`monoids.max`.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.cummax(jnp.array([3, 1, 4, 1, 5])).tolist()
    [3, 3, 4, 4, 5]
    >>> jp.cummax(jnp.array([3.0, 1.0, jnp.nan, 5.0]), reverse=True).tolist()
    [nan, nan, nan, 5.0]
    """
    return _along(operand, "cummax", axis, reverse)


def cummin(operand: Any, axis: int = 0, reverse: bool = False) -> jax.Array:
    """The cumulative minimum along an axis, like :func:`jax.lax.cummin`.

    Args:
      operand: an array of integers or floats, of any rank but 0.
      axis: which one to go along, 0 to rank - 1: as ``jax.lax``'s, it is not negative.
      reverse: from the last element to the first.

    Returns:
      An array of ``operand``'s shape and dtype: element i is the least of elements 0 to i; from a NaN on
      it is NaN.

    Raises:
      TypeError (booleans among others), ValueError (an axis out of range): as :func:`jax.lax.cummin`'s, which also serves what
      kernels do not: 4-bit integers, complex numbers in lexicographic order.

    Cost: work O(N), span O(N / T + T) with T threads; each element is read once from memory and written once.

    Source: as of :func:`scan`, which it is with :data:`monoids.min`.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.cummin(jnp.array([[3, 1], [2, 5]])).tolist()
    [[3, 1], [2, 1]]
    """
    return _along(operand, "cummin", axis, reverse)


def cumlogsumexp(operand: Any, axis: int = 0, reverse: bool = False) -> jax.Array:
    """The cumulative log of the sum of exponentials along an axis, like :func:`jax.lax.cumlogsumexp`.

    Args:
      operand: an array of floats, of any rank but 0.
      axis: which one to go along, 0 to rank - 1: as ``jax.lax``'s, it is not negative.
      reverse: from the last element to the first.

    Returns:
      An array of ``operand``'s shape and dtype: element i is the log of the sum of the exponentials of
      elements 0 to i, without overflow.

    Raises:
      TypeError (booleans, say), ValueError (an axis out of range): as :func:`jax.lax.cumlogsumexp`'s, which also serves what
      kernels do not: complex numbers.

    Cost: work O(N), span O(N / T + T) with T threads; each element is read once from memory and written once.

    Source: as of :func:`scan`, which it is with :data:`monoids.logaddexp`.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> [round(float(y), 2) for y in jp.cumlogsumexp(jnp.array([1.0, 2.0, 3.0]))]
    [1.0, 2.31, 3.41]
    """
    return _along(operand, "cumlogsumexp", axis, reverse)


def _along(operand: Any, name: str, axis: int, reverse: bool) -> jax.Array:
    plain, _, kinds = _OPS[name]
    known = _scannable(operand, kinds) and type(axis) is int and 0 <= axis < operand.ndim and isinstance(reverse, bool)
    if known and axis not in sharded_axes(operand):
        return _cumulative(operand, name, axis, reverse)
    return plain(operand, axis=axis, reverse=reverse)


def _scannable(x: Any, kinds: str) -> bool:
    if not isinstance(x, (jax.Array, np.ndarray)) or x.dtype == jnp.bool_ or jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return False
    return np.dtype(x.dtype).kind in kinds or ("f" in kinds and jnp.issubdtype(x.dtype, jnp.floating))


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _cumulative(operand: jax.Array, name: str, axis: int, reverse: bool) -> jax.Array:
    if any(k > axis for k in sharded_axes(operand)):  # a batch keeps its sharding: all other axes before this one
        return jnp.moveaxis(_cumulative(jnp.moveaxis(operand, axis, -1), name, operand.ndim - 1, reverse), -1, axis)
    out = scan(operand, _OPS[name][1], axis=axis, reverse=reverse)
    if jax.typeof(operand).weak_type:
        out = jax.lax.convert_element_type_p.bind(out, new_dtype=out.dtype, weak_type=True, sharding=None)
    return out


def sharded_axes(x: Any) -> list[int]:
    """Those that are sharded over explicit axes of a mesh."""
    return [k for k, names in enumerate(jax.typeof(x).sharding.spec) if names is not None]


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
    leaves, tree = jax.tree.flatten(elems)
    if not leaves:
        return elems
    along = operator.index(axis)
    if any(sharded_axes(x) for x in leaves):
        return jax.lax.associative_scan(fn, elems, reverse=bool(reverse), axis=along)
    if all(np.shape(x) and np.shape(x)[along if -np.ndim(x) <= along < np.ndim(x) else 0] == 0 for x in leaves):
        return jax.tree.map(jnp.asarray, elems) if reverse else elems
    ranks = [np.ndim(x) for x in leaves]

    def on_slices(a: list[Any], b: list[Any]) -> list[Any]:
        given, other = _with_axis(a, ranks, along), _with_axis(b, ranks, along)
        out, returned = jax.tree.flatten(called("fn", fn, jax.tree.unflatten(tree, given), jax.tree.unflatten(tree, other)))
        if len(out) != len(a):
            raise TypeError(f"fn must return the structure of its arguments, {tree}; it returned {returned}")
        shapes = [np.shape(x) for x in given]
        if [np.shape(x) for x in out] != shapes:
            raise TypeError(f"fn must keep the shapes of its arguments, {shapes}; it returned {[np.shape(x) for x in out]}")
        return [jnp.reshape(x, np.shape(w)) for x, w in zip(out, a, strict=True)]

    return jax.tree.unflatten(tree, scan(leaves, on_slices, axis=along, reverse=bool(reverse)))


def _with_axis(slices: list[Any], ranks: list[int], axis: int) -> list[Any]:
    """A slice, or a part of one, as an array of the whole's rank, of length 1 where it has lost an axis."""
    out = []
    for x, rank in zip(slices, ranks, strict=True):
        full = jnp.reshape(x, (1,) * (rank - 1 - x.ndim) + x.shape)
        out.append(jnp.expand_dims(full, axis % rank))
    return out
