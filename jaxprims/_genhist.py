"""Generalized histograms: ``genhist`` and ``reduce_by_index``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._bins import MODES, Bins, as_array, check_index, in_mode, sizes_of
from ._element import Call, Pair, flat_function
from ._histogram import Histogram, make_histogram, warn_fallback
from ._monoid import Monoid
from ._reduce import reduce_sorted
from .frontend.lower import Unsupported, hoist, to_program
from .frontend.operator import Operator, identity_leaves, make_traced, scalar_name, slots_of
from .frontend.varying import axes_of, vary
from .primitives import hist_xla
from .primitives.hist import Hist, Part, bind, can_fuse


def genhist(f: Callable[..., Any], arrays: Any, bins: Bins | Sequence[Bins], *, deterministic: bool = False) -> Any:
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

    Returns:
      For one Bins its histogram, a pytree like the value with leaves ``[*num_bins, *bin_shape]``; for a sequence, a tuple of
      them, made in one pass over the elements.

    Raises:
      TypeError: an index that is not an integer, an operator that changes a dtype or the structure, a bad type of argument.
      ValueError: lengths or shapes that do not fit; an operator whose identity is needed and not known.

    Cost: work O(N · (f + updates) + H · T) with T subhistograms, one for each thread, or fewer; span O(N / T + H); memory: the
    result and the subhistograms, which fit the last-level cache together (``jp.explain`` gives their size).

    Source: paper 1 (generalized histograms on GPUs), sections III and IV.

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
    call = Call(f, arrays, leaves, tree, "arrays")
    out = run(call, group, single, deterministic=_flag(deterministic, "deterministic"))
    return out[0] if single else tuple(out)


def reduce_by_index(
    values: Any,
    indices: Any,
    num_bins: int | tuple[int, ...],
    op: Callable[[Any, Any], Any] | Monoid = jnp.add,
    *,
    identity: Any = None,
    dest: Any = None,
    mode: str = "drop",
    indices_are_sorted: bool = False,
    deterministic: bool = False,
) -> Any:
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
      indices_are_sorted: a promise that ``indices`` ascend, which saves work; if it is broken the result is undefined.
      deterministic: the same bits on every run on GPUs too, as for :func:`genhist`.

    Returns:
      A pytree like ``values`` with leaves ``[*num_bins, *bin_shape]``; bins without elements hold the identity (or ``dest``).

    Raises:
      TypeError: indices that are not integers, an operator that changes a dtype or the structure.
      ValueError: lengths or shapes that do not fit; an unknown mode; an identity that is needed and not known.

    Cost: work O(N + H · T), span O(N / T + H), T the number of threads; memory: the result, and subhistograms that fit the
    last-level cache together.

    Source: paper 1 (generalized histograms on GPUs), sections III-A and IV-D.

    >>> import jax.numpy as jnp
    >>> import jaxprims as jp
    >>> jp.reduce_by_index(jnp.array([1., 2., 3.]), jnp.array([1, 0, 1]), 3, jnp.maximum).tolist()
    [2.0, 3.0, -inf]
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    indices_are_sorted = _flag(indices_are_sorted, "indices_are_sorted")
    deterministic = _flag(deterministic, "deterministic")
    sizes = sizes_of(num_bins)
    index = tuple(indices) if isinstance(indices, (tuple, list)) and isinstance(num_bins, tuple) else (indices,)
    if len(index) != len(sizes):
        raise ValueError(f"indices: num_bins={num_bins!r} wants {len(sizes)} index arrays, got {len(index)}")
    index = tuple(as_array(i, "indices") for i in index)
    for i in index:
        check_index(i.dtype, "indices")
        if i.ndim != 1:
            raise ValueError(f"indices must have shape [N], got {i.shape}")
    leaves, tree = jax.tree.flatten(values, is_leaf=lambda x: x is None)
    if not leaves:
        raise TypeError("values must hold at least one array, got none")

    def pass_on(*element: Any) -> Any:
        i = element[: len(index)]
        value = jax.tree.unflatten(tree, element[len(index) :])
        return in_mode(i, sizes, mode) if isinstance(num_bins, tuple) else in_mode(i, sizes, mode)[0], value

    call = Call(pass_on, None, [*index, *leaves], None, "values", num_index=len(index))
    bins = Bins(num_bins, op, identity, dest)
    straight = indices_are_sorted and len(index) == 1 and mode == "drop"
    if straight and dest is None:
        found = reduce_sorted(values, index[0], sizes[0], op, identity)
        if found is not None:
            return found
    return run(call, (bins,), True, straight, deterministic)[0]


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def run(call: Call, group: Sequence[Bins], single: bool, sorted_indices: bool = False, deterministic: bool = False) -> list[Any]:
    axes = axes_of(x for x in jax.tree.leaves([call.given, [[b.dest, b.identity] for b in group]]) if isinstance(x, jax.Array))
    while True:
        found: list[Pair] = []
        closed = jax.make_jaxpr(flat_function(call, group, single, axes, found))(*call.avals(axes))
        histograms = [make_histogram(b, p, axes) for b, p in zip(group, found, strict=True)]
        seen = axes | axes_of([*closed.consts, *(c for h in histograms for c in h.closed.consts)])
        if seen == axes:
            break
        axes = seen  # inside shard_map, and a captured array varies over more than the operands: once more, for all of them
    call.given = [vary(x, axes) for x in call.given]
    starts, at = [], 0
    for h in histograms:
        starts.append(at)
        at += 1 + len(h.pair.shapes)
    if all(h.parts is not None and h.pair.updates > 0 and not any(0 in s for s in h.pair.shapes) for h in histograms):
        outs = _fused(call, closed, histograms, starts, sorted_indices, deterministic)
        if outs is not None:
            return outs
    return _unfused(call, closed, histograms, starts, deterministic)


def _fused(
    call: Call,
    closed: Any,
    histograms: Sequence[Histogram],
    starts: Sequence[int],
    sorted_indices: bool,
    deterministic: bool,
) -> list[Any] | None:
    """All histograms in one kernel, f inlined; None where f or its arrays cannot be compiled."""
    try:
        for aval in call.avals(axes_of(call.given)):
            scalar_name(aval.dtype)
    except KeyError:
        return None
    pre, inner = hoist(closed)
    passes_on = all(v in inner.jaxpr.invars for v in inner.jaxpr.outvars if not hasattr(v, "val")) and not inner.jaxpr.eqns
    big = sum(slots_of(a.shape, a.dtype) for a in call.avals(axes_of(call.given))) > 4096
    if big and not passes_on:
        return None
    try:
        program = to_program(inner.jaxpr)
    except Unsupported as e:
        if not passes_on:
            warn_fallback("f", e)
        return None
    parts, operator_arrays, dests, layout = [], [], [], []
    for h, start in zip(histograms, starts, strict=True):
        assert h.parts is not None
        for leaves, op, captured in h.parts:
            values = tuple(start + 1 + k for k in leaves)
            parts.append(Part(h.total, op, len(captured), start, values, h.pair.updates, h.dest is not None))
            operator_arrays += captured
            dests += [h.dest[k] for k in leaves] if h.dest is not None else []
        layout.append([k for leaves, _, _ in h.parts for k in leaves])
    where = tuple(call.position_dtype if p else None for p in call.is_position)
    hist = Hist(make_traced(inner.jaxpr, program), tuple(parts), where, sorted_indices, deterministic)
    if not can_fuse(hist):
        return None
    flat = bind(hist, [*call.given, *pre(*closed.consts), *operator_arrays, *dests])
    outs = []
    for h, order in zip(histograms, layout, strict=True):
        mine, flat = flat[: len(order)], flat[len(order) :]
        outs.append(_shaped(h, [x for _, x in sorted(zip(order, mine, strict=True), key=lambda pair: pair[0])]))
    return outs


def _shaped(h: Histogram, leaves: Sequence[Any]) -> Any:
    sizes = sizes_of(h.bins.num_bins)
    return jax.tree.unflatten(h.pair.tree, [x.reshape((*sizes, *s)) for x, s in zip(leaves, h.pair.shapes, strict=True)])


def _unfused(call: Call, closed: Any, histograms: Sequence[Histogram], starts: Sequence[int], deterministic: bool) -> list[Any]:
    """f on every element by XLA, then each histogram on its own, with a kernel where its operator has one."""
    rest = iter(call.given)
    axes = axes_of(call.given)
    full = [vary(jnp.arange(call.elements, dtype=call.position_dtype), axes) if p else next(rest) for p in call.is_position]
    results = jax.vmap(jax.extend.core.jaxpr_as_fun(closed))(*full)
    outs = []
    for h, start in zip(histograms, starts, strict=True):
        index, values = results[start], results[start + 1 : start + 1 + len(h.pair.shapes)]
        if h.pair.many:
            index = index.reshape(-1)
            values = [v.reshape(-1, *v.shape[2:]) for v in values]
        if h.parts is None or any(0 in s for s in h.pair.shapes):
            outs.append(_shaped(h, _plain(h, index, values)))
        else:
            leaves: list[Any] = [None] * len(values)
            for members, op, captured in h.parts:
                mine = _one_part(h, op, captured, index, [values[k] for k in members], members, deterministic)
                for k, x in zip(members, mine, strict=True):
                    leaves[k] = x
            outs.append(_shaped(h, leaves))
    return outs


def _plain(h: Histogram, index: Any, values: Sequence[Any]) -> list[Any]:
    fn = jax.extend.core.jaxpr_as_fun(h.closed)
    identity = h.identity
    if identity is None and h.dest is None:  # known from the operator
        assert h.parts is not None
        found = {k: i for leaves, op, _ in h.parts for k, i in zip(leaves, identity_leaves(op), strict=True)}
        identity = [found[k] for k in range(len(values))]
    identity = None if identity is None else [jnp.asarray(i) for i in identity]
    dest = None if h.dest is None else [vary(d, axes_of(values)) for d in h.dest]
    return hist_xla.reduce_by_index(index, values, h.total, lambda a, b: fn(*a, *b), identity, dest)


def _one_part(
    h: Histogram,
    op: Operator,
    captured: Sequence[Any],
    index: Any,
    values: Sequence[Any],
    members: Sequence[int],
    deterministic: bool,
) -> list[Any]:
    avals = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in (index, *values)]
    jaxpr = jax.make_jaxpr(lambda *xs: list(xs))(*avals).jaxpr
    hist = Hist(
        make_traced(jaxpr, to_program(jaxpr)),
        (Part(h.total, op, len(captured), 0, tuple(range(1, len(values) + 1)), 1, h.dest is not None),),
        (None,) * len(avals),
        deterministic=deterministic,
    )
    dest = [h.dest[k] for k in members] if h.dest is not None else []
    return bind(hist, [index, *values, *captured, *dest])
