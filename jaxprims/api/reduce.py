"""``reduce``: any associative operator, on any pytree; order kept, so that it need not commute."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ..arguments.checks import flag
from ..arguments.types import AxisName, Function, Operator, PyTree
from ..calls.check_ordered import check_ordered
from ..calls.kept import kept
from ..calls.reduce import reduced
from ..calls.sharded import sharded_reduce
from ..primitives import devices


@kept("xs", "init")
def reduce(
    xs: PyTree,
    op: Operator = jnp.add,
    *,
    axis: int | Sequence[int] | None = None,
    identity: PyTree = None,
    init: PyTree = None,
    map: Function | None = None,
    keepdims: bool = False,
    axis_name: AxisName = None,
) -> PyTree:
    """All elements combined: ``y = init ⊕ x[0] ⊕ x[1] ⊕ ...``, in this order; ``op`` need not commute.

    Args:
      xs: pytree of numbers, each leaf with the same lengths along ``axis``; :data:`positions` stands for each element's own
        position (along several axes: the one in row-major order).
      op: a :class:`Monoid` or any associative callable ``(a, b) -> c`` on slices, the leaves with ``axis`` removed: scalars
        where all axes are reduced; for leaves [N, 2, 2], along axis 0, matrices.
      axis: which one, or a tuple of them, of every leaf; several are gone through in row-major order. None: all axes, of leaves
        of one shape.
      identity: op's neutral element; only wanted for no elements at all without ``init``, and recognised operators bring
        their own.
      init: any value like op's, combined in before the first element; it broadcasts to a slice.
      map: a function of one element (a slice of ``xs``; of a tuple or list, one argument for each member if it takes
        that many), applied in the kernel; what it returns is reduced.
      keepdims: the reduced axes stay, of length 1.
      axis_name: inside ``shard_map``, the mesh axis (or axes) over which the (first) reduced axis is sharded; the result is
        that of all devices' elements, in the mesh's order, on every device.

    Returns:
      A pytree like a slice of ``xs``, or like ``map``'s results.

    Raises:
      TypeError: leaves that are not numbers, an operator that changes a dtype, a shape or the structure, an ``init`` of another
        dtype. ValueError: lengths that differ, an axis out of range or named twice, no elements and no identity.

    Cost: work O(N) applications of ``op`` for each element of a slice, span O(N / T + log N); each element is read once. Axes
    with others between them are reduced one run of neighbours after the other, the last first.

    The result has the same bits on every run and for any number of threads. Sums of 16-bit floats are kept in float32.

    Source: Martín et al. 2012, III.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.reduce(jnp.array([[3, 1, 4], [1, 5, 9]]), jnp.maximum, axis=1).tolist()
    [4, 9]
    >>> value, at = jp.reduce((jnp.array([3, 1, 4]), jp.positions), jp.monoids.argmax)
    >>> int(value), int(at)
    (4, 2)
    """
    keepdims = flag(keepdims, "keepdims")
    if isinstance(axis, list):
        axis = tuple(axis)
    names = devices.names_of(axis_name)
    call = check_ordered(xs, op, axis, identity, map, several=True, names=names, beside=init)
    start = None if init is None else call.start_leaves(init)
    leaves = sharded_reduce(call, start, names) if names else reduced(call, start)
    if keepdims:
        leaves = [jnp.expand_dims(x, call.elements.removed(x.ndim)) for x in leaves]
    return jax.tree.unflatten(call.values.tree, leaves)
