"""``scan``: any associative operator, on any pytree, along any axis."""

from __future__ import annotations

import jax.numpy as jnp

from ..arguments.checks import flag
from ..arguments.types import ArrayLike, AxisName, Function, Operator, PyTree
from ..calls.check_ordered import check_ordered
from ..calls.kept import kept
from ..calls.scan import restart_flags, run
from ..calls.sharded_scan import sharded_scan
from ..primitives import devices


@kept("xs", "init", "segment_starts", unless=lambda arguments: arguments.get("in_place", False) is not False)
def scan(
    xs: PyTree,
    op: Operator = jnp.add,
    *others: PyTree,
    axis: int = 0,
    identity: PyTree = None,
    init: PyTree = None,
    exclusive: bool = False,
    reverse: bool = False,
    map: Function | None = None,
    segment_starts: ArrayLike | None = None,
    axis_name: AxisName = None,
    in_place: bool = False,
) -> PyTree:
    """All prefixes combined: ``y[i] = init ⊕ x[0] ⊕ ... ⊕ x[i]``, in this order; ``op`` need not commute.

    Args:
      xs: pytree of numbers, each leaf with N elements along ``axis``; :data:`positions` stands for each element's own position.
      op: a :class:`Monoid` or any associative callable ``(a, b) -> c`` on slices, the leaves with ``axis`` removed: scalars for
        leaves [N]; for leaves [N, 2, 2], along axis 0, matrices.
      axis: which one to go along, of every leaf.
      identity: op's neutral element; only an exclusive scan without ``init`` wants one, and recognised operators bring their own.
      init: any value like op's, combined in before the first element; it broadcasts to a slice.
      exclusive: ``y[i]`` leaves out ``x[i]``: ``y[0]`` is ``init``, or the identity.
      reverse: from the last element to the first: what flipping, scanning and flipping back would give.
      map: a function of one element (a slice of ``xs``; of a tuple or list, one argument for each member if it takes that many),
        applied in the kernel; what it returns is scanned.
      segment_starts: booleans [N]; where one is true the scan starts anew (from ``init`` again). With ``reverse``, a segment's
        start is its last element, the first one that is met.
      in_place: results may take the memory of ``xs``, which saves making new one: for arrays that are donated to the jitted
        function, or not used after the scan. (If they are, XLA copies them first: slower, never wrong.)
      axis_name: inside ``shard_map``, the mesh axis (or axes) over which ``axis`` is sharded.

    Returns:
      A pytree like ``xs``, or like ``map``'s results: the prefixes, along the same axis.

    Raises:
      TypeError: leaves that are not numbers, an operator that changes a dtype, a shape or the structure, an ``init`` of another
        dtype. ValueError: lengths that differ, an axis out of range, an exclusive scan whose identity is not known.

    Cost: work O(N) applications of ``op`` a lane (up to 2 log2 of a vector's width each, where the operator is cheap), span
    O(N / T + T); each element is read once from memory and written once; workspace O(N / 16,384) states.

    The result has the same bits on every run and for any number of threads.

    Source: de Kluijver 2024, chapter 3; Merrill and Garland 2016.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.scan(jnp.array([3, 1, 4, 1, 5]), jnp.maximum).tolist()
    [3, 3, 4, 4, 5]
    >>> jp.scan(jnp.array([1, 2, 3]), exclusive=True, reverse=True).tolist()
    [5, 3, 0]
    """
    if others:
        way = "jp.scan(xs, op, init=init) with an associative op, or jax.lax.scan(f, init, xs) for a loop with a carry"
        raise TypeError(f"xs and op are the positional arguments, got {2 + len(others)} of them: write {way}")
    exclusive, reverse, in_place = flag(exclusive, "exclusive"), flag(reverse, "reverse"), flag(in_place, "in_place")
    names = devices.names_of(axis_name)
    call = check_ordered(xs, op, axis, identity, map, names=names, beside=(init, segment_starts))
    flags = None if segment_starts is None else restart_flags(segment_starts, call)
    start = None if init is None else call.start_leaves(init)
    if names:
        return sharded_scan(call, start, flags, exclusive, reverse, names)
    return run(call, start, flags, exclusive, reverse, in_place)
