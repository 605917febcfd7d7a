"""Generalized histograms: ``genhist`` and ``reduce_by_index``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..arguments.bins import Bins
from ..arguments.checks import MODES, flag, in_mode, index_array, sizes_of
from ..arguments.promises import promised_ascending
from ..arguments.types import AxisName, Function, Operator, PyTree
from ..calls.element import ElementFunction
from ..calls.genhist import run
from ..calls.kept import kept
from ..calls.segments import reduce_sorted
from ..primitives import devices


@kept("arrays")
def genhist(
    f: Function, arrays: PyTree, bins: Bins | Sequence[Bins], *, deterministic: bool = False, axis_name: AxisName = None
) -> PyTree:
    """Generalized histograms: ``bins[i] = bins[i] ⊕ v`` for the pairs (i, v) that ``f`` makes from each element.

    ``f`` and every operator are traced once and compiled into one kernel; neither indices nor values are written to memory.

    Args:
      f: takes one element and returns one pair (index, value) for each of ``bins``. A tuple or list of arrays is handed over as
        separate arguments, any other pytree as one. An index is an integer, or a tuple of them for bins of several dimensions.
        Index and value may have a leading axis [k]: k updates from one element. An index outside the bins is dropped. ``f`` may
        use arrays from around it, at computed indices too.
      arrays: pytree with leaves ``[N, ...]``; :data:`positions` stands for each element's own position.
      bins: a :class:`Bins`, and ``f`` returns one pair; or a sequence of them, and ``f`` returns as many.
      deterministic: the same bits on every run on GPUs too, where the elements are sorted by index for it; on a CPU it is always
        so, and costs nothing.
      axis_name: inside ``shard_map``, the mesh axis (or axes) over which the elements are sharded; the result is that of all
        devices' elements, on every device. The identity must be known; ``dest`` is combined in once.

    Returns:
      For one Bins its histogram, a pytree like the value with leaves ``[*num_bins, *bin_shape]``; for a sequence, a tuple of
      them, made in one pass over the elements.

    Raises:
      TypeError: an index that is not an integer, an operator that changes a dtype or the structure, a bad type of argument.
      ValueError: lengths or shapes that do not fit; an operator whose identity is needed and not known.

    Cost: work O(N · (f + updates) + H · T) with T subhistograms, one for each thread, or fewer; span O(N / T + H); memory: the
    result and the subhistograms, which fit the last-level cache together (``jp.explain`` gives their size).

    Source: Henriksen et al. 2020, III and IV.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> x = jnp.array([0.1, 0.5, 0.6, 0.9])
    >>> jp.genhist(lambda x: ((x * 2).astype(int), 1), x, jp.Bins(2, jnp.add)).tolist()
    [1, 3]
    """
    if not callable(f):
        raise TypeError(f"f must be a function of one element, got {f!r}")
    single = isinstance(bins, Bins)
    group = (bins,) if isinstance(bins, Bins) else tuple(bins) if isinstance(bins, (list, tuple)) else None
    if not group or not all(isinstance(b, Bins) for b in group):
        raise TypeError(f"bins must be a jp.Bins or a sequence of them, got {bins!r}")
    leaves, tree = jax.tree.flatten(arrays, is_leaf=lambda x: x is None)
    call = ElementFunction(f, arrays, leaves, tree, "arrays")
    names = devices.names_of(axis_name)
    out = run(call, group, single, deterministic=flag(deterministic, "deterministic"), names=names)
    return out[0] if single else tuple(out)


@kept("values", "indices", "dest")
def reduce_by_index(
    values: PyTree,
    indices: PyTree,
    num_bins: int | tuple[int, ...],
    op: Operator = jnp.add,
    *,
    identity: PyTree = None,
    dest: PyTree = None,
    mode: str = "drop",
    indices_are_sorted: bool = False,
    deterministic: bool = False,
    axis_name: AxisName = None,
) -> PyTree:
    """Combines the values that share an index: ``result[i] = dest[i] ⊕ (⊕ of values[n] where indices[n] == i)``.

    Args:
      values: pytree with leaves ``[N, *bin_shape]``; :data:`positions` stands for each element's own position (int32; int64
        where N passes 2^31).
      indices: integers ``[N]``, or a tuple of as many such arrays as there are dimensions of bins.
      num_bins: H, or a tuple of sizes.
      op: a :class:`Monoid` or any callable ``(a, b) -> c`` on bins, associative and commutative. On leaves with a ``bin_shape``
        it gets arrays of that shape.
      identity: op's neutral element; known for recognised operators (``jnp.add``, ``lambda a, b: a * b``, ``jnp.maximum`` ...).
      dest: what the bins hold before, leaves ``[*num_bins, *bin_shape]``.
      mode: what happens to an index outside the bins, negative ones included: "drop" (the element has no effect), "clip" (to the
        nearest bin) or "wrap" (modulo).
      indices_are_sorted: a promise that ``indices`` ascend, which saves work; if it is broken the result is undefined
        (:func:`debug_checks` tells).
      deterministic: the same bits on every run on GPUs too, as for :func:`genhist`.
      axis_name: inside ``shard_map``, the mesh axis (or axes) over which values and indices are sharded; the result is that of
        all devices' elements, on every device. The identity must be known; ``dest`` is combined in once.

    Returns:
      A pytree like ``values`` with leaves ``[*num_bins, *bin_shape]``; bins without elements hold the identity (or ``dest``).

    Raises:
      TypeError: indices that are not integers, an operator that changes a dtype or the structure.
      ValueError: lengths or shapes that do not fit; an unknown mode; an identity that is needed and not known.

    Cost: work O(N + H · T), span O(N / T + H), T the number of threads; memory: the result, and subhistograms that fit the
    last-level cache together.

    Source: Henriksen et al. 2020, III-A and IV-D.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.reduce_by_index(jnp.array([1., 2., 3.]), jnp.array([1, 0, 1]), 3, jnp.maximum).tolist()
    [2.0, 3.0, -inf]
    """
    if not isinstance(mode, str) or mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    indices_are_sorted = flag(indices_are_sorted, "indices_are_sorted")
    deterministic = flag(deterministic, "deterministic")
    sizes = sizes_of(num_bins)
    index = tuple(indices) if isinstance(indices, (tuple, list)) and isinstance(num_bins, tuple) else (indices,)
    if len(index) != len(sizes):
        raise ValueError(f"indices: num_bins={num_bins!r} wants {len(sizes)} index arrays, got {len(index)}")
    index = tuple(index_array(i, "indices") for i in index)
    if indices_are_sorted and len(index) == 1:
        promised_ascending(index[0], "indices")
    leaves, tree = jax.tree.flatten(values, is_leaf=lambda x: x is None)
    if not leaves:
        raise TypeError("values must hold at least one array, got none")

    def pass_on(*element: Any) -> Any:
        i = element[: len(index)]
        value = jax.tree.unflatten(tree, element[len(index) :])
        return in_mode(i, sizes, mode) if isinstance(num_bins, tuple) else in_mode(i, sizes, mode)[0], value

    call = ElementFunction(pass_on, None, [*index, *leaves], None, "values", num_index=len(index))
    bins = Bins(num_bins, op, identity, dest)
    names = devices.names_of(axis_name)
    straight = indices_are_sorted and len(index) == 1 and mode == "drop"
    if straight and dest is None and not names:
        found = reduce_sorted(values, index[0], sizes[0], op, identity)
        if found is not None:
            return found
    return run(call, (bins,), True, straight, deterministic, names)[0]
