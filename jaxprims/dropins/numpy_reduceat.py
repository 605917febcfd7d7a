"""NumPy's ``ufunc.reduceat``, of any operator: segments that may overlap."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from ..arguments.checks import as_array, called, integer
from ..arguments.monoid import as_monoid
from ..arguments.types import Operator, PyTree
from ..calls.check_ordered import check_ordered
from ..calls.segments import segments_reduced, signed
from ..primitives.ordered.scan_xla import like
from ..tracing.varying import placed, vary

__all__ = ["reduceat"]


def reduceat(xs: PyTree, indices: PyTree, op: Operator, axis: int = 0) -> PyTree:
    """Reduces the slice between each index and the next, like :meth:`numpy.ufunc.reduceat`.

    Args:
      xs: pytree of arrays with one length N along ``axis``.
      indices: int [M], each in [0, N), in any order. Segment i is ``xs[indices[i]:indices[i + 1]]``, or ``xs[indices[i]]`` alone
        where the next index is not greater; the last one goes to the end. Indices out of range are clipped.
      op: associative, as for :func:`reduce`.
      axis: which one to go along.

    Returns:
      A pytree like ``xs``, of length M along ``axis``.

    Raises:
      TypeError: indices that are not integers; what :func:`segment_reduce` raises. ValueError: shapes that do not fit, an axis
        out of range, no element where there is an index.

    Cost: where the indices ascend, that of :func:`segment_reduce`, O(N + M). Else O((N + M) log N) work and O(log N) span:
      slices of lengths that are powers of two are combined, as many as the length has bits.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.reduceat(jnp.arange(8), [0, 4, 1, 5, 2, 6, 3, 7], jnp.add).tolist()
    [6, 4, 10, 5, 14, 6, 18, 7]
    """
    at = as_array(indices, "indices")
    if at.ndim != 1 or not jnp.issubdtype(at.dtype, jnp.integer):
        raise TypeError(f"indices must be integers [M], got {at.dtype}{list(at.shape)}")
    if np.dtype(at.dtype).itemsize < 4:  # N may be beyond it
        at = at.astype(np.int32)
    leaves, tree = jax.tree.flatten(xs)
    along = integer(axis, "axis")
    as_monoid(op)  # or it says what is wrong with op
    if not leaves or any(not -np.ndim(x) <= along < np.ndim(x) for x in leaves):
        raise ValueError(f"xs must be arrays that have the axis {along}, got shapes {[np.shape(x) for x in leaves]}")
    lengths = {np.shape(x)[along] for x in leaves}
    if len(lengths) > 1:
        raise ValueError(f"xs must have one length along axis {along}, got {sorted(lengths)}")
    (n,) = lengths
    rows = jax.tree.unflatten(tree, [jnp.moveaxis(jnp.asarray(x), along, 0) for x in leaves])
    if at.size == 0:
        out = jax.tree.map(lambda x: x[:0], rows)
    elif n == 0:
        raise ValueError(f"indices must lie in xs, which has no elements, got {at.size} of them")
    else:
        at, places = _known(at, indices, n).clip(0, n - 1), [jax.typeof(x).sharding for x in jax.tree.leaves(rows)]
        if placed([at, *jax.tree.leaves(rows)]):
            ends = tuple(place.update(spec=P(None, *place.spec[1:])) for place in places)
            out = _of_placed_rows(rows, at, n=n, op=op, ends=ends)
        else:
            out = _of_rows(rows, at, n, op)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, along), out)


def _of_rows(rows: Any, at: jax.Array | np.ndarray, n: int, op: Any) -> Any:
    ascending = (at[1:] >= at[:-1]).all()
    if isinstance(ascending, jax.core.Tracer):
        return jax.lax.cond(ascending, lambda: _of_neighbours(rows, at, n, op), lambda: _of_any(rows, at, n, op))
    at = jnp.asarray(at)
    return _of_neighbours(rows, at, n, op) if ascending else _of_any(rows, at, n, op)


def _known(at: jax.Array, indices: Any, n: Any) -> jax.Array | np.ndarray:
    """As NumPy's where they are known, of which no transformation makes tracers: then it need not be decided at run time whether
    they ascend."""
    if any(isinstance(i, jax.core.Tracer) for i in jax.tree.leaves(indices)) or not isinstance(n, int) or placed([at]):
        return at
    return np.asarray(indices).astype(at.dtype)


@functools.partial(jax.jit, static_argnames=("n", "op", "ends"))
def _of_placed_rows(rows: Any, at: jax.Array, *, n: int, op: Any, ends: tuple[Any, ...]) -> Any:
    """On explicit axes of a mesh, which are automatic ones inside: slices lie on every device."""
    of_leaves = jax.sharding.auto_axes(lambda rows, at: jax.tree.leaves(_of_rows(rows, at, n, op)), out_sharding=list(ends))
    return jax.tree.unflatten(jax.tree.structure(rows), of_leaves(rows, at))


def _ends(at: jax.Array, n: int) -> jax.Array:
    following = jnp.append(at[1:], n)
    return jnp.where(following > at, following, at + 1)


def _of_neighbours(rows: Any, at: jax.Array, n: int, op: Any) -> Any:
    """Where the next index is the same, a segment is empty, and its element stands alone."""
    offsets = jnp.append(at, n)
    call = check_ordered(rows, op, 0, None, None, beside=offsets)
    alone = [x[at] for x in jax.tree.leaves(rows)]
    out = segments_reduced(call, "offsets", vary(signed(offsets, n), call.axes), at.size, alone)
    return jax.tree.unflatten(call.values.tree, out)


def _of_any(rows: Any, at: jax.Array, n: int, op: Any) -> Any:
    """Each slice as a row of slices whose lengths are powers of two, the short ones first."""
    lengths = _ends(at, n) - at
    combined = jax.vmap(lambda a, b: called("op", op, a, b))
    whole, some = _rows(rows, at), jnp.zeros(at.shape, bool)
    for bit in range(n.bit_length() if isinstance(n, int) else 31):  # of a symbolic length
        if bit:  # of each element and those behind it: those that reach beyond the last are not used
            rows = combined(rows, jax.tree.map(functools.partial(jnp.roll, shift=-(1 << bit - 1), axis=0), rows))
        wanted = (lengths >> bit) & 1 == 1
        part = _rows(rows, jnp.minimum(at, n - 1))
        whole = _select(wanted, _select(some, combined(whole, part), part), whole)
        some, at = some | wanted, at + jnp.where(wanted, 1 << bit, 0)
    return whole


def _rows(rows: Any, at: jax.Array) -> Any:
    return jax.tree.map(lambda x: x[at], rows)


def _select(which: jax.Array, a: Any, b: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(like(which, a), a, b), a, b)
