"""Small arrays: moving scalars, indexing, reductions, products and sorting, all unrolled.

What only moves numbers about is NumPy's own function applied to the arrays of numbers, or arithmetic on a view's strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..ir.program import numpy_dtype
from .elementwise import REAL
from .emit import Unsupported
from .jaxprs import scatters
from .lowering import Lowering
from .values import Array, Index, Value, View, check_shape, clamp_index, constants, loaded, read, row_major

# --- shape -----------------------------------------------------------------------------------------------------------


def broadcast_in_dim(e: Lowering, eqn: Any, x: Value, *dynamic: Value) -> Value:
    shape, axes = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    if isinstance(x, View):
        strides = [0] * len(shape)
        for n, stride, axis in zip(x.shape, x.strides, axes, strict=True):
            strides[axis] = 0 if n == 1 else stride
        return x.replace(shape=tuple(shape), strides=tuple(strides))
    check_shape(shape, "broadcast_in_dim")
    between = [1] * len(shape)
    for n, axis in zip(x.shape, axes, strict=True):
        between[axis] = n
    return x.map(lambda p: np.broadcast_to(p.reshape(between), shape))


def reshape(e: Lowering, eqn: Any, x: Value, *dynamic: Value) -> Value:
    shape = tuple(eqn.outvars[0].aval.shape)
    if eqn.primitive.name == "reshape" and eqn.params["dimensions"] is not None:
        raise Unsupported("reshape", "with dimensions")
    if isinstance(x, View):
        long = [(n, s) for n, s in zip(x.shape, x.strides, strict=True) if n != 1]
        if tuple(s for _, s in long) == row_major([n for n, _ in long]):
            return x.replace(shape=shape, strides=row_major(shape))
        kept = iter(s for _, s in long)
        if [n for n in shape if n != 1] == [n for n, _ in long]:
            return x.replace(shape=shape, strides=tuple(0 if n == 1 else next(kept) for n in shape))
    return loaded(e, x, "reshape").map(lambda p: p.reshape(shape))


def transpose(e: Lowering, eqn: Any, x: Value) -> Value:
    axes = eqn.params["permutation"]
    if isinstance(x, View):
        return x.replace(shape=tuple(x.shape[a] for a in axes), strides=tuple(x.strides[a] for a in axes))
    return x.map(lambda p: np.transpose(p, axes))


def rev(e: Lowering, eqn: Any, x: Value) -> Value:
    axes = eqn.params["dimensions"]
    if isinstance(x, View):
        offset = x.offset + sum((x.shape[a] - 1) * x.strides[a] for a in axes)
        return x.replace(offset=offset, strides=tuple(-s if a in axes else s for a, s in enumerate(x.strides)))
    return x.map(lambda p: np.flip(p, axes))


def slice_(e: Lowering, eqn: Any, x: Value) -> Value:
    start, limit = eqn.params["start_indices"], eqn.params["limit_indices"]
    step = eqn.params["strides"] or (1,) * len(start)
    return cut(x, [slice(a, b, c) for a, b, c in zip(start, limit, step, strict=True)])


def cut(x: Value, by: Sequence[slice]) -> Value:
    """Basic slicing."""
    if isinstance(x, Array):
        return x.map(lambda p: p[tuple(by)])
    ranges = [range(n)[s] for n, s in zip(x.shape, by, strict=True)]
    strides = tuple(stride * r.step for stride, r in zip(x.strides, ranges, strict=True))
    offset = x.offset + sum(stride * r.start for stride, r in zip(x.strides, ranges, strict=True))
    return x.replace(shape=tuple(map(len, ranges)), strides=strides, offset=offset)


def pieces(x: Value, axis: int, sizes: Sequence[int]) -> Iterator[Value]:
    """Consecutive pieces along an axis."""
    start = 0
    for n in sizes:
        yield cut(x, [slice(start, start + n) if a == axis else slice(None) for a in range(len(x.shape))])
        start += n


def without_axis(x: Value, axis: int) -> Value:
    """An axis of length one taken away."""
    if isinstance(x, Array):
        return x.map(lambda p: np.squeeze(p, axis))
    return x.replace(shape=x.shape[:axis] + x.shape[axis + 1 :], strides=x.strides[:axis] + x.strides[axis + 1 :])


def split(e: Lowering, eqn: Any, x: Value) -> list[Value]:
    return list(pieces(x, eqn.params["axis"], [int(n) for n in eqn.params["sizes"]]))


def unstack(e: Lowering, eqn: Any, x: Value) -> list[Value]:
    axis = eqn.params["axis"]
    return [without_axis(piece, axis) for piece in pieces(x, axis, [1] * x.shape[axis])]


def tile(e: Lowering, eqn: Any, x: Value) -> Array:
    check_shape(eqn.outvars[0].aval.shape, "tile")
    return loaded(e, x, "tile").map(lambda p: np.tile(p, eqn.params["reps"]))


def _joining(f: Callable[..., np.ndarray], axis: str) -> Callable[..., Array]:
    def rule(e: Lowering, eqn: Any, *xs: Value) -> Array:
        check_shape(eqn.outvars[0].aval.shape, eqn.primitive.name)
        arrays = [loaded(e, x, eqn.primitive.name) for x in xs]
        return join(lambda *ps: f(ps, axis=eqn.params[axis]), arrays)

    return rule


def join(f: Callable[..., np.ndarray], arrays: Sequence[Array]) -> Array:
    """Makes one array of several of the same dtype."""
    return Array(arrays[0].dtype, tuple(f(*parts) for parts in zip(*(a.parts for a in arrays), strict=True)))


def pad(e: Lowering, eqn: Any, x: Value, filler: Value) -> Array:
    check_shape(eqn.outvars[0].aval.shape, "pad")

    def apply(p: np.ndarray, fill: np.ndarray) -> np.ndarray:
        config = eqn.params["padding_config"]
        inner = tuple(n + max(n - 1, 0) * gap for n, (_, _, gap) in zip(p.shape, config, strict=True))
        spread = np.full(inner, fill.item(), np.int64)
        spread[tuple(slice(None, None, gap + 1) for _, _, gap in config)] = p
        out = np.pad(spread, [(max(a, 0), max(b, 0)) for a, b, _ in config], constant_values=fill.item())
        return out[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b, _) in zip(out.shape, config, strict=True))]

    return join(apply, [loaded(e, x, "pad"), loaded(e, filler, "pad")])


def iota(e: Lowering, eqn: Any, *dynamic: Value) -> Array:
    shape, axis = check_shape(eqn.params["shape"], "iota"), eqn.params["dimension"]
    along = np.arange(shape[axis]).astype(eqn.params["dtype"]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return constants(e, np.broadcast_to(along, shape), "iota")


# --- indexing --------------------------------------------------------------------------------------------------------


def _clamped(e: Lowering, starts: Sequence[Value], shape: Sequence[int], sizes: Sequence[int]) -> list[Index]:
    """Where a window of these sizes starts: as far in as it must be to fit."""
    numbers = [loaded(e, s, "dynamic_slice").scalar() for s in starts]
    return [clamp_index(e, s, n - k + 1) for s, n, k in zip(numbers, shape, sizes, strict=True)]


def dynamic_slice(e: Lowering, eqn: Any, x: Value, *starts: Value) -> Value:
    sizes = eqn.params["slice_sizes"]
    at = _clamped(e, starts, x.shape, sizes)
    if isinstance(x, View):
        return x.moved(e, at).replace(shape=tuple(sizes))
    return gathered(e, x, sizes, lambda out: [i + o for i, o in zip(at, out, strict=True)])


def gathered(e: Lowering, x: Value, shape: Sequence[int], at: Callable[[tuple[int, ...]], list[Index]]) -> Array:
    """The array whose element ``out`` is ``x``'s at ``at(out)``."""
    shape = check_shape(shape, "gather")
    rows = [read(e, x, at(out)) for out in np.ndindex(shape)]
    if not rows:
        return constants(e, np.zeros(shape, x.dtype), "gather")
    return Array(x.dtype, tuple(np.array(part, np.int64).reshape(shape) for part in zip(*rows, strict=True)))


def _in_bounds(e: Lowering, starts: Sequence[tuple[int, int]]) -> int:
    """Whether every (start, how many starts are allowed) is in bounds."""
    inside = e.const(True, "b1")
    for start, count in starts:
        dtype = e.dtype(start)
        if dtype[0] == "s":
            inside = e.op("and", inside, e.op("ge", start, e.like(start, 0)))
        if count - 1 < np.iinfo(numpy_dtype(dtype)).max:
            inside = e.op("and", inside, e.op("lt", start, e.like(start, count)) if count > 0 else e.const(False, "b1"))
    return inside


def gather(e: Lowering, eqn: Any, x: Value, indices: Value) -> Array:
    """XLA's gather; an index is the last axis of ``indices``."""
    d, sizes, shape = eqn.params["dimension_numbers"], eqn.params["slice_sizes"], eqn.outvars[0].aval.shape
    numbers = loaded(e, indices, "gather").parts[0]
    batch_axes = [a for a in range(len(shape)) if a not in d.offset_dims]
    window_axes = [a for a in range(len(x.shape)) if a not in (*d.collapsed_slice_dims, *d.operand_batching_dims)]
    counts = [n - k + 1 for n, k in zip(x.shape, sizes, strict=True)]

    def starts(out: tuple[int, ...]) -> list[tuple[int, int]]:
        row = numbers[tuple(out[a] for a in batch_axes)]
        return [(int(v), counts[axis]) for v, axis in zip(row, d.start_index_map, strict=True)]

    def at(out: tuple[int, ...]) -> list[Index]:
        index = [Index(None, 0)] * len(x.shape)
        for (value, count), axis in zip(starts(out), d.start_index_map, strict=True):
            index[axis] = clamp_index(e, value, count)
        for axis, from_axis in zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True):
            index[axis] = Index(None, out[batch_axes[from_axis]])
        for axis, out_axis in zip(window_axes, d.offset_dims, strict=True):
            index[axis] = index[axis] + out[out_axis]
        return index

    mode = eqn.params["mode"].name
    if mode == "ONE_HOT":
        raise Unsupported("gather", "mode one_hot")
    if mode != "FILL_OR_DROP":
        return gathered(e, x, shape, at)
    filler = constants(e, _fill_value(x.dtype, eqn.params["fill_value"]), "gather")
    values = gathered(e, x, shape, at) if math.prod(x.shape) else constants(e, np.zeros(shape, x.dtype), "gather")
    inside = {out: _in_bounds(e, starts(out)) for out in np.ndindex(*shape)}
    parts = []
    for part, fill in zip(values.parts, filler.parts, strict=True):
        chosen = [e.select(inside[out], int(part[out]), fill.item()) for out in np.ndindex(*shape)]
        parts.append(np.array(chosen, np.int64).reshape(shape))
    return Array(x.dtype, tuple(parts))


def _fill_value(dtype: np.dtype, given: Any) -> np.ndarray:
    if given is None:
        info = np.iinfo(dtype) if dtype.kind in "iu" else None
        given = True if dtype.kind == "b" else np.nan if info is None else info.min if dtype.kind == "i" else info.max
    return np.asarray(given).astype(dtype)


def dynamic_update_slice(e: Lowering, eqn: Any, x: Value, update: Value, *starts: Value) -> Array:
    x, update = loaded(e, x, "dynamic_update_slice"), loaded(e, update, "dynamic_update_slice")
    return _with_window(e, x, _clamped(e, starts, x.shape, update.shape), update)


def row(e: Lowering, x: Value, i: Index) -> Value:
    """``x[i]``."""
    if isinstance(x, View):
        rest = [Index(None, 0)] * (len(x.shape) - 1)
        return without_axis(x.moved(e, [i, *rest]).replace(shape=(1, *x.shape[1:])), 0)
    return gathered(e, x, x.shape[1:], lambda out: [i, *(Index(None, k) for k in out)])


def with_row(e: Lowering, x: Array, i: Index, new: Array) -> Array:
    """``x`` with ``x[i]`` replaced."""
    return _with_window(e, x, [i, *[Index(None, 0)] * len(new.shape)], new.map(lambda p: p[None]))


def _with_window(e: Lowering, x: Array, at: Sequence[Index], new: Array) -> Array:
    """``x`` with ``new`` from a position on."""
    result = x.map(np.copy)
    for u in np.ndindex(new.shape):
        target = [i + o for i, o in zip(at, u, strict=True)]
        _write(e, result, target, [int(p[u]) for p in new.parts], e.const(True, "b1"))
    return result


Combine = Callable[[list[int], list[int]], list[int]]


def _replace(old: list[int], new: list[int]) -> list[int]:
    return new


def _write(e: Lowering, x: Array, at: list[Index], new: list[int], when: int, combine: Combine = _replace) -> None:
    """Changes ``x`` at one computed position: each element it may be is selected."""
    for moves in np.ndindex(*(i.count for i in at)):
        here = when
        for i, k in zip(at, moves, strict=True):
            if i.value is not None:
                here = e.op("and", here, e.op("eq", i.value, e.like(i.value, k)))
        place = tuple(i.offset + k for i, k in zip(at, moves, strict=True))
        if e.constant(here) is not None and not e.constant(here):
            continue
        old = [int(p[place]) for p in x.parts]
        for p, a, b in zip(x.parts, combine(old, new), old, strict=True):
            p[place] = e.select(here, a, b)


def scatter(e: Lowering, eqn: Any, x: Value, indices: Value, updates: Value) -> Array:
    """XLA's scatter, one update after the other; a window that is not whole inside is dropped, or clamped in mode clip."""
    name, d = eqn.primitive.name, eqn.params["dimension_numbers"]
    how = name.removeprefix("scatter").strip("-_") or "replace"
    x, updates, numbers = loaded(e, x, name), loaded(e, updates, name), loaded(e, indices, name).parts[0]
    if x.complex and how not in ("replace", "add", "sub"):
        raise Unsupported(name, "not on complex numbers")

    def combine(old: list[int], new: list[int]) -> list[int]:
        if how == "replace" and eqn.params["update_jaxpr"] is not None:  # a function of the user's: ``.at[].apply``
            pair = [Array(x.dtype, tuple(np.array(n) for n in numbers)) for numbers in (old, new)]
            (result,) = e.evaluate(eqn.params["update_jaxpr"], eqn.params["update_consts"], pair)
            return [int(p[()]) for p in loaded(e, result, name).parts]
        if how == "replace":
            return new
        return [REAL[how](e, {}, e.dtype(a), a, b) for a, b in zip(old, new, strict=True)]

    window_axes = [a for a in range(len(x.shape)) if a not in (*d.inserted_window_dims, *d.operand_batching_dims)]
    batch_axes = [a for a in range(len(updates.shape)) if a not in d.update_window_dims]
    window = dict(zip(window_axes, (updates.shape[a] for a in d.update_window_dims), strict=True))
    result = x.map(np.copy)
    for u in np.ndindex(updates.shape):
        row = numbers[tuple(u[a] for a in batch_axes)]
        counts = [x.shape[a] - window.get(a, 1) + 1 for a in d.scatter_dims_to_operand_dims]
        inside = e.const(True, "b1")
        if eqn.params["mode"].name != "CLIP":
            inside = _in_bounds(e, [(int(v), c) for v, c in zip(row, counts, strict=True)])
        at = [Index(None, 0)] * len(x.shape)
        for v, c, axis in zip(row, counts, d.scatter_dims_to_operand_dims, strict=True):
            at[axis] = clamp_index(e, int(v), c)
        for axis, from_axis in zip(d.operand_batching_dims, d.scatter_indices_batching_dims, strict=True):
            at[axis] = Index(None, u[batch_axes[from_axis]])
        for axis, u_axis in zip(window_axes, d.update_window_dims, strict=True):
            at[axis] = at[axis] + u[u_axis]
        if not any(i.count < 1 for i in at) and 0 not in x.shape:
            _write(e, result, at, [int(p[u]) for p in updates.parts], inside, combine)
    return result


MOVES = frozenset(
    "broadcast_in_dim reshape squeeze expand_dims transpose rev slice split unstack concatenate stack dynamic_slice "
    "dynamic_update_slice".split()
)
"""Those that only move what is in an array, numbers or not."""

RULES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": broadcast_in_dim,
    "reshape": reshape,
    "squeeze": reshape,
    "expand_dims": reshape,
    "transpose": transpose,
    "rev": rev,
    "slice": slice_,
    "split": split,
    "unstack": unstack,
    "tile": tile,
    "concatenate": _joining(np.concatenate, "dimension"),
    "stack": _joining(np.stack, "axis"),
    "pad": pad,
    "iota": iota,
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "gather": gather,
    **dict.fromkeys(scatters("add", "sub", "mul", "min", "max") | {"scatter"}, scatter),
}
