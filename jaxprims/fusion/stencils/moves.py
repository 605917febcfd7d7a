"""Primitives that move: how a cell of what one makes is a cell of what it takes. Slices and shifts, borders, updates, windows,
convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...tracing.jaxprs import IDENTITIES, scatters
from ...tracing.labels import inner_axes
from ...tracing.parameters import INDEX_MODES
from ..folds import fold_of
from ..sites import extreme
from .cells import FIXED, MOST_PIECES, Cells, Node, Number, Region, Rule, View, shifted

MOST_TAPS = 128
"""Cells of a window or a convolution's weights."""


def _within(region: Region, g: int, lo: int, hi: int) -> tuple[int, int]:
    return max(region[g][0], lo), min(region[g][1], hi)


def _narrowed(region: Region, g: int, part: tuple[int, int]) -> Region:
    return (*region[:g], part, *region[g + 1 :])


def _slice(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    starts, strides = eqn.params["start_indices"], eqn.params["strides"] or (1,) * len(view)
    out = []
    for (g, s), start, stride in zip(view, starts, strides, strict=True):
        if g != FIXED and stride != 1:
            return None
        out.append((g, s * stride + start if g == FIXED else s + start))
    return c.value(eqn.invars[0], tuple(out), region)


def _known(nodes: Iterable[Node]) -> list[int] | None:
    """These, if all are numbers that are known; it is not looked beyond one that is not."""
    numbers = []
    for node in nodes:
        if not isinstance(node, Number):
            return None
        numbers.append(int(node.value))
    return numbers


def _starts(c: Cells, x: Any, given: Sequence[Any], sizes: Sequence[int]) -> list[int] | None:
    """Where in an array something of these sizes begins, if that is known."""
    starts = _known(c.value(v, (), ()) for v in given)
    return starts and [min(max(at, 0), n - size) for at, n, size in zip(starts, x.aval.shape, sizes, strict=True)]


def _dynamic_slice(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    x, *given = eqn.invars
    starts = _starts(c, x, given, eqn.params["slice_sizes"])
    if starts is None:
        return None
    return c.value(x, tuple((g, s + at) for (g, s), at in zip(view, starts, strict=True)), region)


def _placed(c: Cells, view: View, region: Region, box: Region, inside: Callable[[Region], Node], outside: Any) -> Node:
    """``inside`` where the variable's axes are in the box, ``outside`` elsewhere: functions of a region."""

    def along(axis: int, region: Region) -> Node:
        if axis == len(view):
            return inside(region)
        (g, s), (lo, hi) = view[axis], box[axis]
        if g == FIXED:
            return along(axis + 1, region) if lo <= s < hi else outside(region)
        begin, end = region[g]
        lo, hi = min(max(lo - s, begin), end), max(min(hi - s, end), begin)
        if hi <= lo:
            return outside(region)
        pieces = []
        if begin < lo:
            pieces.append((lo, outside(_narrowed(region, g, (begin, lo)))))
        pieces.append((hi, along(axis + 1, _narrowed(region, g, (lo, hi)))))
        if hi < end:
            pieces.append((end, outside(_narrowed(region, g, (hi, end)))))
        return c.joined(g, begin, pieces)

    return along(0, region)


def _pad(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    x, filler = eqn.invars
    config = [tuple(map(int, row)) for row in eqn.params["padding_config"]]
    if any(interior for _, _, interior in config):
        return None
    inner = tuple((g, s - lo) for (g, s), (lo, _, _) in zip(view, config, strict=True))
    return _padded(c, x, inner, region, lambda r: c.value(filler, (), r))


def _padded(c: Cells, x: Any, view: View, region: Region, outside: Callable[[Region], Node]) -> Node:
    """An array, and what is ``outside`` of it."""
    return _placed(c, view, region, tuple((0, n) for n in x.aval.shape), lambda r: c.value(x, view, r), outside)


def _concatenate(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    d = eqn.params["dimension"]
    g, s = view[d]
    first, pieces = 0, []
    for v in eqn.invars:
        n = v.aval.shape[d]
        mine = shifted(view, d, -first)
        if g == FIXED:
            if first <= s < first + n:
                return c.value(v, mine, region)
        else:
            begin, end = _within(region, g, first - s, first + n - s)
            if begin < end:
                pieces.append((end, c.value(v, mine, _narrowed(region, g, (begin, end)))))
        first += n
    return c.joined(g, region[g][0], pieces)


def _reshape(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    """Of axes of size 1 alone, which a broadcast makes longer."""
    x, inner = eqn.invars[0], inner_axes(eqn)
    if inner is None:
        return None
    there = {k: to for to, k in inner.items() if x.aval.shape[k] == eqn.outvars[0].aval.shape[to]}
    return c.value(x, tuple(view[there[k]] if k in there else (FIXED, 0) for k in range(x.aval.ndim)), region)


def _transpose(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    there = eqn.params["permutation"]
    return c.value(eqn.invars[0], tuple(view[there.index(k)] for k in range(len(there))), region)


def _rev(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    x = eqn.invars[0]
    wide = [d for d in eqn.params["dimensions"] if view[d][0] != FIXED]
    for d in wide:
        g = view[d][0]
        begin, end = region[g]
        if end - begin > MOST_PIECES:
            return None
        if end - begin > 1:
            cells = [(k + 1, _rev(c, eqn, view, _narrowed(region, g, (k, k + 1)))) for k in range(begin, end)]
            if any(node is None for _, node in cells):
                return None
            return c.joined(g, begin, [(k, node) for k, node in cells if node is not None])
    out = list(view)
    for d in eqn.params["dimensions"]:
        g, s = view[d]
        out[d] = FIXED, x.aval.shape[d] - 1 - (s if g == FIXED else region[g][0] + s)
    return c.value(x, tuple(out), region)


def _iota(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    g, s = view[eqn.params["dimension"]]
    dtype = eqn.outvars[0].aval.dtype
    return c.number(np.asarray(s, dtype)) if g == FIXED else c.coordinate(g, s, dtype)


def _same(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    return c.value(eqn.invars[0], view, region)


def _updated(
    c: Cells, x: Any, new: Any, starts: Sequence[int], axes: Sequence[int], view: View, region: Region, add: bool
) -> Node:
    """``x`` with ``new`` written from ``starts`` on; ``axes``: those of ``x`` that ``new`` has, in order; the others have one
    position."""
    sizes = [1] * x.aval.ndim
    for k, a in enumerate(axes):
        sizes[a] = new.aval.shape[k]
    box = tuple((lo, lo + n) for lo, n in zip(starts, sizes, strict=True))
    mine = tuple((g, s - starts[a]) for a, (g, s) in enumerate(view) if a in axes)

    def inside(r: Region) -> Node:
        value = c.value(new, mine, r)
        return c.binary("add", c.value(x, view, r), value, x.aval.dtype) if add else value

    return _placed(c, view, region, box, inside, lambda r: c.value(x, view, r))


def _scatter(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    x, indices, new = eqn.invars
    d = eqn.params["dimension_numbers"]
    if indices.aval.ndim != 1 or d.operand_batching_dims or eqn.params["mode"].name not in INDEX_MODES:
        return None
    along = d.scatter_dims_to_operand_dims
    known = _known(c.value(indices, ((FIXED, k),), ()) for k in range(len(along)))
    if known is None:
        return None
    given = dict(zip(along, known, strict=True))
    starts = [given.get(a, 0) for a in range(x.aval.ndim)]
    axes = [a for a in range(x.aval.ndim) if a not in d.inserted_window_dims]
    if tuple(d.update_window_dims) != tuple(range(len(axes))):
        return None
    for a, start in enumerate(starts):
        n = new.aval.shape[axes.index(a)] if a in axes else 1
        if not 0 <= start <= x.aval.shape[a] - n:
            return None
    return _updated(c, x, new, starts, axes, view, region, eqn.primitive.name != "scatter")


def _dynamic_update_slice(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    x, new, *given = eqn.invars
    starts = _starts(c, x, given, new.aval.shape)
    return None if starts is None else _updated(c, x, new, starts, range(x.aval.ndim), view, region, False)


def _window(name: str) -> Rule:
    """A window's sum, maximum or minimum, cell by cell."""

    def rule(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
        dtype = eqn.invars[0].aval.dtype
        if name != "add" and dtype.kind not in "iufV":
            return None
        none = 0 if name == "add" else extreme("least" if name == "max" else "greatest", dtype)
        return _folded(c, eqn, view, region, lambda a, b: c.binary(name, a, b, dtype), c.number(np.asarray(none, dtype)))

    return rule


def _window_of_any(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    """A window folded by any function of two numbers."""
    if (fold := fold_of(c.graph, eqn)) is None:
        return None
    op, start = c.named(eqn, fold.name or "fold", fold.op, eqn.outvars[0].aval.dtype), c.number(fold.start)
    return _folded(c, eqn, view, region, lambda a, b: c.apply(op, [a, b]), start, None if fold.neutral else start)


def _folded(
    c: Cells,
    eqn: Any,
    view: View,
    region: Region,
    combine: Callable[[Node, Node], Node],
    outside: Node,
    out: Node | None = None,
) -> Node | None:
    """A window, beyond the array's ends ``outside``; from ``out`` on, if that is said."""
    p, x = eqn.params, eqn.invars[0]
    sizes = p["window_dimensions"]
    moved = [n != 1 or s != 1 or tuple(pad) != (0, 0) for n, s, pad in zip(sizes, p["window_strides"], p["padding"], strict=True)]
    strided = any(n != 1 for n in (*p["window_strides"], *p["base_dilation"]))
    if strided or math.prod(sizes) > MOST_TAPS or any(m and g == FIXED for m, (g, _) in zip(moved, view, strict=True)):
        return None
    for offsets in np.ndindex(*sizes):
        steps = [o * d - lo for o, d, (lo, _) in zip(offsets, p["window_dilation"], p["padding"], strict=True)]
        mine = tuple((g, s + o) for (g, s), o in zip(view, steps, strict=True))
        term = _padded(c, x, mine, region, lambda r: outside)
        out = term if out is None else combine(out, term)
    return out


def _convolution(c: Cells, eqn: Any, view: View, region: Region) -> Node | None:
    """By few weights, of each channel by itself or to one channel."""
    p, (x, w) = eqn.params, eqn.invars
    d, dtype = p["dimension_numbers"], eqn.outvars[0].aval.dtype
    if x.aval.dtype != dtype or w.aval.dtype != dtype or dtype not in (np.float32, np.float64, np.int32):
        return None
    if any(n != 1 for n in (*p["window_strides"], *p["lhs_dilation"], p["batch_group_count"])):
        return None
    (n, f, *xs), (o, i, *ws), (b, q, *outs) = d.lhs_spec, d.rhs_spec, d.out_spec
    groups, inputs, channels = p["feature_group_count"], w.aval.shape[i], w.aval.shape[o]
    depthwise = inputs == 1 and channels == groups
    sizes = [w.aval.shape[k] for k in ws]
    if not (depthwise or (channels == 1 and groups == 1)) or math.prod(sizes) * inputs > MOST_TAPS:
        return None
    if any(view[k][0] == FIXED for k in outs):
        return None
    zero = c.number(np.asarray(0, dtype))
    out: Node | None = None
    for channel in range(inputs):
        for offsets in np.ndindex(*sizes):
            mine = [(FIXED, 0)] * x.aval.ndim
            mine[n] = view[b]
            mine[f] = view[q] if depthwise else (FIXED, channel)
            weight = [(FIXED, 0)] * w.aval.ndim
            weight[o] = view[q] if depthwise else (FIXED, 0)
            weight[i] = FIXED, channel
            for k, (axis, off) in enumerate(zip(xs, offsets, strict=True)):
                g, s = view[outs[k]]
                mine[axis] = g, s + off * p["rhs_dilation"][k] - p["padding"][k][0]
                weight[ws[k]] = FIXED, off
            term = _padded(c, x, tuple(mine), region, lambda r: zero)
            term = c.binary("mul", term, c.value(w, tuple(weight), region), dtype)
            out = term if out is None else c.binary("add", out, term, dtype)
    return out


RULES: dict[str, Rule] = {
    **dict.fromkeys(IDENTITIES & {"copy", "copy_p", "stop_gradient", "name"}, _same),
    "broadcast_in_dim": _reshape,
    "concatenate": _concatenate,
    "conv_general_dilated": _convolution,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "expand_dims": _reshape,
    "iota": _iota,
    "pad": _pad,
    "reduce_window": _window_of_any,
    "reduce_window_max": _window("max"),
    "reduce_window_min": _window("min"),
    "reduce_window_sum": _window("add"),
    "reshape": _reshape,
    "rev": _rev,
    **dict.fromkeys(scatters("add") | {"scatter"}, _scatter),
    "slice": _slice,
    "squeeze": _reshape,
    "transpose": _transpose,
}
"""By primitive."""
