"""A call of ``jp.stencil``: views for f, the neighbourhood found by tracing, axes and boundaries, in the form for kernels."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from ..arguments.checks import as_array, called, check_numbers, integer
from ..arguments.positions import positions
from ..primitives.stencil.call import Bounds, Window, ends_of
from ..specs.stencil import MOST_AXES, MOST_OFFSET, Read
from ..tracing.varying import Axes, axes_of, element_aval, vary

BOUNDARIES = ("edge", "wrap", "reflect", "symmetric", "constant", "valid", "keep")


class View:
    """What f gets for an array: ``view[offsets]`` is what the cell at these offsets holds."""

    def __init__(self, name: str, number: int, rank: int, read: Callable[[int, tuple[int, ...]], Any]):
        self._name, self._number, self._rank, self._read = name, number, rank, read

    def __getitem__(self, offsets: Any) -> Any:
        given = offsets if isinstance(offsets, tuple) else (offsets,)
        wanted = f"{self._rank} integer{'s' if self._rank != 1 else ''}, relative to the cell"
        numbers = []
        for o in given:
            if isinstance(o, (bool, np.bool_, jax.core.Tracer)) or not hasattr(o, "__index__"):
                raise TypeError(f"offsets of {self._name} must be {wanted} and known when f is traced, got {offsets!r:.100}")
            numbers.append(operator.index(o))
        if len(numbers) != self._rank:
            raise ValueError(f"offsets of {self._name} must be {wanted}, one for each axis of the grid, got {offsets!r:.100}")
        if any(abs(n) >= MOST_OFFSET for n in numbers):
            raise ValueError(f"offsets of {self._name} must be less than 2^30, got {offsets!r:.100}")
        return self._read(self._number, tuple(numbers))

    def __repr__(self) -> str:
        return f"a view of {self._name}, to be read at offsets such as view[{', '.join('0' * self._rank)}]"

    def __iter__(self) -> Any:
        raise TypeError(f"f got {self!r}; it is no array itself")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.__iter__()


@dataclasses.dataclass
class Stencil:
    """A call, checked. Grids are in the order of ``axes``."""

    arrays: list[Any]  # those that steps change first
    cells: list[tuple[int, ...]]  # shapes
    places: list[tuple[int, ...]]  # the grid's axes in each
    grid: tuple[Any, ...]
    axes: tuple[int, ...]
    reads: list[Read]
    coordinates: list[int]
    closed: ClosedJaxpr  # of what reads find and the coordinates
    tree: Any
    bounds: tuple[Bounds, ...]
    window: tuple[Window, ...]
    fill: Any
    varying: Axes


def check_stencil(
    f: Any,
    xs: Any,
    boundary: Any,
    fill_value: Any,
    axes: Any,
    constants: Any,
    *,
    like_xs: bool,
    first_cell: Callable[[tuple[Any, ...]], Sequence[tuple[Any, int]]] | None = None,
) -> Stencil:
    """``like_xs``: f's results have to be what its arrays are; ``first_cell``: of the grid, if it is part of a larger one, its
    first cell's coordinate on each axis and the larger one's size (0: it is all there)."""
    if not callable(f):
        raise TypeError(f"f must be a function of a cell's neighbourhood, got {f!r:.100}")
    given, trees = _arguments(xs, "xs"), []
    others = [] if constants is None else _arguments(constants, "constants")
    leaves: list[tuple[str, Any]] = []
    for what, argument in [*(("xs", a) for a in given), *(("constants", a) for a in others)]:
        mine, tree = jax.tree.flatten(argument, is_leaf=lambda x: x is None)
        trees.append(tree)
        leaves += [(what, x) for x in mine]
    arrays = [as_array(x, what) for what, x in leaves if x is not positions]
    numbers = [what for what, x in leaves if x is not positions]
    if any(x is positions and what == "constants" for what, x in leaves):
        raise TypeError("constants must be arrays; positions are given among xs")
    if "xs" not in numbers:
        raise ValueError("xs: at least one array is needed to know the grid, got none")
    for what, x in zip(numbers, arrays, strict=True):
        check_numbers(x.dtype, what)
    own_axes, places = _places(arrays, numbers, axes)
    grid, cells = _grid(arrays, numbers, places)
    rank = len(grid)
    modes = _modes(boundary, rank)
    starts = None if first_cell is None else first_cell(grid)
    varying = axes_of([*arrays, *(x for x, _ in starts or () if isinstance(x, jax.Array))])

    found: dict[Read, int] = {}
    centre = [element_aval(s, x.dtype, varying) for s, x in zip(cells, arrays, strict=True)]
    out_tree: list[Any] = []

    def run(read: Callable[[int, tuple[int, ...]], Any], coordinates: tuple[Any, ...]) -> list[Any]:
        rest, number, views = iter(leaves), 0, []
        for tree in trees:
            members: list[Any] = []
            for _ in range(tree.num_leaves):
                what, x = next(rest)
                if x is positions:
                    members.append(coordinates if starts is None else tuple(map(_of_whole, coordinates, starts, modes)))
                else:
                    members.append(View(what, number, rank, read))
                    number += 1
            views.append(jax.tree.unflatten(tree, members))
        returned = called("f", f, *views)
        out, tree = jax.tree.flatten(returned, is_leaf=lambda x: x is None)
        if not out:
            raise TypeError("f must return at least one number, got none")
        out_tree[:] = [tree]
        return [vary(as_array(x, "f's result"), varying) for x in out]

    at = [element_aval((), np.int32, varying) for _ in range(rank)]

    def probe(cells_: Any, coordinates: Any) -> list[Any]:
        def read(number: int, offsets: tuple[int, ...]) -> Any:
            found.setdefault((number, offsets), len(found))
            return cells_[number]

        return run(read, tuple(coordinates))

    jax.make_jaxpr(probe)(centre, at)  # finds the neighbourhood
    reads = sorted(found)

    def flat(*values: Any) -> list[Any]:
        def read(number: int, offsets: tuple[int, ...]) -> Any:
            return values[reads.index((number, offsets))]

        return run(read, tuple(values[len(reads) :]))

    closed = jax.make_jaxpr(flat)(*(centre[k] for k, _ in reads), *at)
    seen = varying | axes_of(closed.consts)
    if seen != varying:  # inside shard_map, and a captured array varies over more than the operands: once more
        again = jax.tree.map(lambda x: x if x is positions else vary(as_array(x, "xs"), seen), xs, is_leaf=lambda x: x is None)
        return check_stencil(f, again, boundary, fill_value, axes, constants, like_xs=like_xs, first_cell=first_cell)
    n = numbers.count("xs")
    keeps = "keep" in modes
    if like_xs or keeps:
        closed = _like_arrays(closed, flat, centre[:n], [*(centre[k] for k, _ in reads), *at], keeps)
    for v in closed.out_avals:
        check_numbers(v.dtype, "f's results")
    ends = ends_of([offsets for _, offsets in reads], rank)
    window, bounds = [], []
    for size, mode, end in zip(grid, modes, ends, strict=True):
        bounds.append(Bounds("nothing" if mode in ("valid", "keep") else mode))
        window.append(Window(0, size, end if mode == "valid" else (0, 0), end if mode == "keep" else (0, 0)))
    fill = _fill(fill_value, arrays) if "constant" in modes else 0
    return Stencil(
        arrays, cells, places, grid, own_axes, list(reads), list(range(rank)), closed, out_tree[0], tuple(bounds),
        tuple(window), fill, varying,
    )  # fmt: skip


def _arguments(xs: Any, name: str) -> list[Any]:
    """What f gets, one by one."""
    if type(xs) in (tuple, list):
        if not xs:
            raise ValueError(f"{name} must hold at least one array, got {xs!r}")
        return list(xs)
    return [xs]


def _places(arrays: Sequence[Any], names: Sequence[str], axes: Any) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The grid's axes: as given, and in each array."""
    if axes is None:
        first = arrays[0].ndim
        for x, what in zip(arrays, names, strict=True):
            if x.ndim != first:
                shown = ", ".join(str(x.shape) for x in arrays)
                raise ValueError(f"{what}: all arrays must have the grid's shape where axes is not given, got shapes {shown}")
        axes = tuple(range(first))
    given = axes if isinstance(axes, (tuple, list)) else (axes,)
    numbers = []
    for a in given:
        try:
            numbers.append(integer(a, "axes"))
        except TypeError:
            raise TypeError(f"axes must be integers, got {axes!r:.100}") from None
    if not numbers:
        raise ValueError("axes must name at least one axis of the grid; xs without an axis have none")
    if len(numbers) > MOST_AXES:
        raise ValueError(f"axes: a grid has {MOST_AXES} axes at most, got {len(numbers)}")
    places = []
    for x, what in zip(arrays, names, strict=True):
        own = tuple(a + x.ndim if a < 0 else a for a in numbers)
        if any(not 0 <= a < x.ndim for a in own):
            raise ValueError(f"axes must be in range for {what} of shape {x.shape}, got {axes!r:.100}")
        if len(set(own)) != len(own):
            raise ValueError(f"axes must be different axes, got {axes!r:.100}")
        places.append(own)
    return tuple(numbers), places


def _grid(arrays: Any, names: Any, places: Any) -> tuple[tuple[Any, ...], list[tuple[int, ...]]]:
    grids = [tuple(x.shape[a] for a in own) for x, own in zip(arrays, places, strict=True)]
    for grid, what in zip(grids, names, strict=True):
        if grid != grids[0]:
            raise ValueError(f"{what}: all arrays must have one grid, got grids {', '.join(map(str, grids))}")
    cells = [tuple(n for a, n in enumerate(x.shape) if a not in own) for x, own in zip(arrays, places, strict=True)]
    return grids[0], cells


def _modes(boundary: Any, rank: int) -> tuple[str, ...]:
    modes = tuple(boundary) if isinstance(boundary, (tuple, list)) else (boundary,) * rank
    for mode in modes:
        if not isinstance(mode, str) or mode not in BOUNDARIES:
            raise ValueError(f"boundary must be one of {', '.join(map(repr, BOUNDARIES))}, got {mode!r:.100}")
    if len(modes) != rank:
        raise ValueError(f"boundary must be one for all axes or one for each of {rank}, got {boundary!r:.100}")
    return modes


def _of_whole(coordinate: Any, start: tuple[Any, int], mode: str) -> Any:
    """A coordinate in the larger grid; of what was received from the other end, that there."""
    first, size = start
    if size == 0:
        return coordinate
    return (coordinate + first) % np.int32(size) if mode == "wrap" else coordinate + first


def _fill(value: Any, arrays: Sequence[Any]) -> Any:
    if isinstance(value, jax.core.Tracer):
        raise TypeError("fill_value must be a number that is known when the function is traced")
    number = np.asarray(value)
    if number.shape != () or not (jnp.issubdtype(number.dtype, jnp.number) or number.dtype == bool):
        raise TypeError(f"fill_value must be a number, got {value!r:.100}")
    for dtype in {x.dtype for x in arrays}:
        fits = jnp.issubdtype(dtype, jnp.complexfloating) or not np.iscomplexobj(number)
        with np.errstate(all="ignore"):
            if not fits or not (jnp.issubdtype(dtype, jnp.inexact) or bool(number.astype(dtype) == number)):
                raise ValueError(f"fill_value must be a number that {dtype} can hold, got {value!r:.100}")
    return number


def _like_arrays(closed: ClosedJaxpr, flat: Any, wanted: Any, avals: Any, keeps: bool) -> ClosedJaxpr:
    """f with results of the arrays' dtypes. Raises TypeError where they are not."""
    why = "cells that keep their value" if keeps else "the next step"
    got = closed.out_avals
    if len(got) != len(wanted):
        raise TypeError(f"f must return a result for each of the {len(wanted)} arrays of xs, which are {why}, got {len(got)}")
    for k, (g, w) in enumerate(zip(got, wanted, strict=True)):
        if g.shape != w.shape or (g.dtype != w.dtype and not g.weak_type):
            what = f"{g.dtype}{list(g.shape)}; wanted {w.dtype}{list(w.shape)}"
            raise TypeError(f"f's results must be like xs, for they are {why}: result {k} is {what}")
    if [g.dtype for g in got] == [w.dtype for w in wanted]:
        return closed
    return jax.make_jaxpr(lambda *v: [x.astype(w.dtype) for x, w in zip(flat(*v), wanted, strict=True)])(*avals)
