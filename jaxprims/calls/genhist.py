"""Histograms of the pairs that f makes: all in one kernel where that can be, else one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from ..arguments.bins import Bins
from ..arguments.checks import sizes_of
from ..arguments.warnings import NoKernel, nothing_but_kernels
from ..operators.operator import Operator, identity_leaves, passing, scalar_name
from ..operators.traced import make_traced, slots_of
from ..primitives import devices
from ..primitives.histogram import xla as histogram_xla
from ..primitives.histogram.call import HistogramCall, Part, can_fuse
from ..primitives.histogram.primitive import bind
from ..tracing.lower import Unsupported, hoist, to_program
from ..tracing.varying import axes_of, vary
from .element import ElementFunction, Pair, flat_function
from .histogram import Histogram, make_histogram, warn_fallback
from .sharded import sharded_histogram

ROW = 8
"""Numbers of a bin from which on they are rows, which are added as vectors: written first, if f does not make them alike."""


def run(
    call: ElementFunction,
    group: Sequence[Bins],
    single: bool,
    sorted_indices: bool = False,
    deterministic: bool = False,
    names: devices.Names = (),
) -> list[Any]:
    """The histograms, of all devices' elements where these are sharded over the mesh axes ``names``."""
    if names:
        call.numbered(names)
    axes = axes_of(x for x in jax.tree.leaves([call.given, [[b.dest, b.identity] for b in group]]) if isinstance(x, jax.Array))
    while True:
        found: list[Pair] = []
        closed = jax.make_jaxpr(flat_function(call, group, single, axes, found))(*call.avals(axes))
        histograms = [make_histogram(b, p, axes, names=names) for b, p in zip(group, found, strict=True)]
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
    call: ElementFunction,
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
    static = HistogramCall(make_traced(inner.jaxpr, program), where, tuple(parts), sorted_indices, deterministic)
    if not can_fuse(static):
        if not any(op.lanes > 1 and slots_of(op.shapes[0], op.dtypes[0]) < ROW for op in (p.operator for p in parts)):
            if nothing_but_kernels():
                raise NoKernel("rows whose numbers are not made alike")
            return None
        structs = [make_histogram(h.bins, h.pair, axes_of(call.given), rows=False, names=h.names) for h in histograms]
        return _fused(call, closed, structs, starts, sorted_indices, deterministic)
    flat = bind(static, [*call.given, *pre(*closed.consts), *operator_arrays, *dests])
    outs = []
    for h, order in zip(histograms, layout, strict=True):
        mine, flat = flat[: len(order)], flat[len(order) :]
        outs.append(_shaped(h, [x for _, x in sorted(zip(order, mine, strict=True), key=lambda pair: pair[0])]))
    return outs


def _shaped(h: Histogram, leaves: Sequence[Any]) -> Any:
    sizes = sizes_of(h.bins.num_bins)
    if h.names:
        leaves = sharded_histogram(h, leaves)
    return jax.tree.unflatten(h.pair.tree, [x.reshape((*sizes, *s)) for x, s in zip(leaves, h.pair.shapes, strict=True)])


def _unfused(
    call: ElementFunction, closed: Any, histograms: Sequence[Histogram], starts: Sequence[int], deterministic: bool
) -> list[Any]:
    """f on every element by XLA, then each histogram on its own, with a kernel where its operator has one."""
    rest = iter(call.given)
    axes = axes_of(call.given)
    full = [vary(jnp.arange(call.elements, dtype=call.position_dtype), axes) if p else next(rest) for p in call.is_position]
    results = jax.vmap(jaxpr_as_fun(closed))(*full)
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
    fn = jaxpr_as_fun(h.closed)
    identity = h.identity
    if identity is None and h.dest is None:  # known from the operator
        assert h.parts is not None
        found = {k: i for leaves, op, _ in h.parts for k, i in zip(leaves, identity_leaves(op), strict=True)}
        identity = [found[k] for k in range(len(values))]
    identity = None if identity is None else [jnp.asarray(i) for i in identity]
    dest = None if h.dest is None else [vary(d, axes_of(values)) for d in h.dest]
    return histogram_xla.reduce_by_index(index, values, h.total, lambda a, b: fn(*a, *b), identity, dest)


def _one_part(
    h: Histogram,
    op: Operator,
    captured: Sequence[Any],
    index: Any,
    values: Sequence[Any],
    members: Sequence[int],
    deterministic: bool,
) -> list[Any]:
    elements = tuple((x.shape[1:], x.dtype) for x in (index, *values))
    part = Part(h.total, op, len(captured), 0, tuple(range(1, len(elements))), 1, h.dest is not None)
    dest = [h.dest[k] for k in members] if h.dest is not None else []
    try:
        f = passing(elements)
    except Unsupported:  # rows of thousands of numbers, which XLA's scatter takes one by one as well
        return histogram_xla.of_part(part, captured, index, values, dest or None)
    static = HistogramCall(f, (None,) * len(elements), (part,), deterministic=deterministic)
    return bind(static, [index, *values, *captured, *dest])
