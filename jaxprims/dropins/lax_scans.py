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
from ..arguments.checks import called, truth
from ..arguments.types import Operator, PyTree
from ..calls.kept import kept
from ..primitives.avals import typed
from ..tracing.jaxprs import EARLY
from ..tracing.varying import sharded_axes

__all__ = ["associative_scan", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"]

_OPS: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "cumsum": (jax.lax.cumsum, jnp.add, "iufc"),
    "cumprod": (jax.lax.cumprod, jnp.multiply, "iufc"),
    "cummax": (jax.lax.cummax, jnp.maximum, "iuf"),
    "cummin": (jax.lax.cummin, jnp.minimum, "iuf"),
    "cumlogsumexp": (jax.lax.cumlogsumexp, jnp.logaddexp, "f8"),
}
"""JAX's own function, the operator, and the kinds of dtypes that are served: those of kernels, and floats of 8 bits and fewer
("8") where JAX's makes NaN of them."""


def _drop_in(name: str, what: str, served: str, result: str, beside: str, monoid: str, example: str) -> Callable[..., jax.Array]:
    @kept("operand")
    def cumulative(operand: Any, axis: int | None = 0, reverse: bool = False) -> jax.Array:
        return _along(operand, name, axis, reverse)

    @kept("operand")
    def cumulative_of_dtype(operand: Any, axis: int | None = 0, reverse: bool = False, *, dtype: Any = None) -> jax.Array:
        return _along(operand if dtype is None else jnp.asarray(operand).astype(dtype), name, axis, reverse)

    cast = name in ("cumsum", "cumprod")
    of_dtype = f"\n      dtype: that of the {what}s, to which the elements are converted first. Default: ``operand``'s."
    function = cumulative_of_dtype if cast else cumulative
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The cumulative {what} along an axis, like :func:`jax.lax.{name}`.

    Args:
      operand: an array of {served}, of any rank but 0.
      axis: which one to go along. Beyond what ``jax.lax`` takes, negative ones count from the last, and None goes through the
        flattened array.
      reverse: from the last element to the first.{of_dtype if cast else ""}

    Returns:
      An array of ``operand``'s shape and dtype, flat without an axis: element i is the {result}.

    Raises:
      TypeError (booleans among others), ValueError (an axis out of range): as :func:`jax.lax.{name}`'s, which also serves what
      kernels do not: {beside}.

    Cost: work O(N), span O(N / T + T) with T threads; each element is read once from memory and written once.

    Source: as of :func:`scan`, which it is with :data:`monoids.{monoid}`.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    {example}
    """
    return function


_NUMBERS, _REAL = "integers, floats or complex numbers", "integers or floats"
cumsum = _drop_in(
    "cumsum", "sum", _NUMBERS, "sum of elements 0 to i. Integers wrap; sums of halves are kept in f32 and rounded once each",
    "integers of 4 bits, floats of 8", "add",
    """>>> jp.cumsum(jnp.array([[1, 2, 3], [4, 5, 6]]), axis=1).tolist()
    [[1, 3, 6], [4, 9, 15]]""",
)  # fmt: skip
cumprod = _drop_in(
    "cumprod", "product", _NUMBERS, "product of elements 0 to i. Integers wrap", "integers of 4 bits, floats of 8", "mul",
    """>>> jp.cumprod(jnp.array([[1, 2], [3, 4]]), axis=None).tolist()
    [1, 2, 6, 24]""",
)  # fmt: skip
cummax = _drop_in(
    "cummax", "maximum", _REAL, "greatest of elements 0 to i; from a NaN on it is NaN",
    "integers of 4 bits, floats of 8, complex numbers in lexicographic order", "max",
    """>>> jp.cummax(jnp.array([3, 1, 4, 1, 5])).tolist()
    [3, 3, 4, 4, 5]
    >>> jp.cummax(jnp.array([3.0, 1.0, jnp.nan, 5.0]), reverse=True).tolist()
    [nan, nan, nan, 5.0]""",
)  # fmt: skip
cummin = _drop_in(
    "cummin", "minimum", _REAL, "least of elements 0 to i; from a NaN on it is NaN",
    "integers of 4 bits, floats of 8, complex numbers in lexicographic order", "min",
    """>>> jp.cummin(jnp.array([[3, 1], [2, 5]])).tolist()
    [[3, 1], [2, 1]]""",
)  # fmt: skip
cumlogsumexp = _drop_in(
    "cumlogsumexp", "log of the sum of exponentials", "floats",
    "log of the sum of the exponentials of elements 0 to i, without overflow", "complex numbers", "logaddexp",
    """>>> [round(float(y), 2) for y in jp.cumlogsumexp(jnp.array([1.0, 2.0, 3.0]))]
    [1.0, 2.31, 3.41]""",
)  # fmt: skip


def _along(operand: Any, name: str, axis: int | None, reverse: bool) -> jax.Array:
    plain, _, kinds = _OPS[name]
    if axis is None:
        operand, axis = jnp.ravel(operand), 0
    elif type(axis) is int or isinstance(axis, np.integer):
        axis, rank = int(axis), np.ndim(operand)
        if axis < -rank:
            raise ValueError(f"axis must lie in [-{rank}, {rank}), got {axis}")
        axis += rank if axis < 0 else 0
    known = _scannable(operand, kinds) and type(axis) is int and 0 <= axis < operand.ndim and isinstance(reverse, bool)
    if known and axis not in sharded_axes(operand):
        return _cumulative(operand, name, axis, reverse)
    return plain(operand, axis=axis, reverse=reverse)


def _scannable(x: Any, kinds: str) -> bool:
    if not isinstance(x, (jax.Array, np.ndarray)) or x.dtype == jnp.bool_ or jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return False
    if jnp.issubdtype(x.dtype, jnp.floating):
        return ("f" if jnp.finfo(x.dtype).bits >= 16 else "8") in kinds
    return np.dtype(x.dtype).kind in kinds


@functools.partial(jax.jit, static_argnums=(1, 2, 3), inline=EARLY)
def _cumulative(operand: jax.Array, name: str, axis: int, reverse: bool) -> jax.Array:
    if any(k > axis for k in sharded_axes(operand)):  # a batch keeps its sharding: all other axes before this one
        return jnp.moveaxis(_cumulative(jnp.moveaxis(operand, axis, -1), name, operand.ndim - 1, reverse), -1, axis)
    out = scan(operand, _OPS[name][1], axis=axis, reverse=reverse)
    return typed(out, jax.typeof(operand))


def _comes_back(arguments: dict[str, Any]) -> bool:
    leaves = jax.tree.leaves(arguments.get("elems"))
    return any(0 in np.shape(x) for x in leaves) or _nothing_to_combine(leaves, arguments.get("axis", 0))


def _nothing_to_combine(leaves: list[Any], axis: Any) -> bool:
    """Is there one element, or none? ``jax.lax`` does not ask ``fn`` then whether it takes them."""
    if not isinstance(axis, int) or not all(-np.ndim(x) <= axis < np.ndim(x) for x in leaves):
        return False
    lengths = {np.shape(x)[axis] for x in leaves}
    return lengths in ({0}, {1})


@kept("elems", unless=_comes_back)
def associative_scan(fn: Operator, elems: PyTree, reverse: bool = False, axis: int = 0) -> PyTree:
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
    reverse = truth(reverse, "reverse")
    leaves, tree = jax.tree.flatten(elems)
    if not leaves:
        return elems
    along = operator.index(axis)
    if any(sharded_axes(x) for x in leaves):
        return jax.lax.associative_scan(fn, elems, reverse=reverse, axis=along)
    if _nothing_to_combine(leaves, along):
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

    return jax.tree.unflatten(tree, scan(leaves, on_slices, axis=along, reverse=reverse))


def _with_axis(slices: list[Any], ranks: list[int], axis: int) -> list[Any]:
    """A slice, or a part of one, as an array of the whole's rank, of length 1 where it has lost an axis."""
    out = []
    for x, rank in zip(slices, ranks, strict=True):
        full = jnp.reshape(x, (1,) * (rank - 1 - x.ndim) + x.shape)
        out.append(jnp.expand_dims(full, axis % rank))
    return out
