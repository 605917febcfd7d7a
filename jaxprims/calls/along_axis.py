"""Elements along an axis, as the user gave them: arrays, positions, what map makes of them; and the operator, traced on slices
(leaves with the axis removed).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.checks import as_array, called, check_numbers, integer
from ..arguments.positions import position_dtype, positions
from ..primitives import devices
from ..tracing.varying import Axes, vary
from .element import takes


@dataclasses.dataclass
class Elements:
    """Arrays along an axis; or along several, which count as one, row-major. ``given`` leaves out positions."""

    leaves: list[Any]
    tree: Any
    name: str
    axis: Any
    several: bool = False  # may axis be a tuple, or None for all?
    given: list[Any] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.is_position = [leaf is positions for leaf in self.leaves]
        self.given = [as_array(leaf, self.name) for leaf in self.leaves if leaf is not positions]
        if not self.given:
            raise ValueError(f"{self.name}: at least one array is needed to know the number of elements, got none")
        for x in self.given:
            check_numbers(x.dtype, self.name)
        axes = [self._axes_of(x) for x in self.given]
        sizes = {tuple(x.shape[a] for a in own) for x, own in zip(self.given, axes, strict=True)}
        if len(sizes) > 1:
            shown = ", ".join(str(x.shape) for x in self.given)
            what = "one shape" if self.axis is None else f"one length along axis {self.axis}"
            raise ValueError(f"{self.name} must have {what}, got shapes {shown}")
        self.n, self.rank = math.prod(sizes.pop()), len(axes[0])
        if not axes[0]:
            self.given, axes = [x[None] for x in self.given], [(0,)]
        if len(set(axes)) > 1:
            self.given = [self.in_front(x, own) for x, own in zip(self.given, axes, strict=True)]
            axes = [(0,)]
        self.axes = axes[0]
        self.position_dtype = position_dtype(self.n, self.name, wanted=any(self.is_position))

    def _axes_of(self, x: Any) -> tuple[int, ...]:
        if not self.several:
            return (normal_axis(self.axis, x.ndim, self.name),)
        return tuple(range(x.ndim)) if self.axis is None else normal_axes(self.axis, x.ndim, self.name)

    @property
    def at(self) -> int:
        """Axes before the (last) axis that remain."""
        return self.axes[-1] + 1 - len(self.axes)

    def slices(self) -> list[tuple[tuple[int, ...], Any]]:
        """Shape and dtype of every leaf's slice; a position has the others' shape, if they have one."""
        shapes = [tuple(d for k, d in enumerate(x.shape) if k not in self.axes) for x in self.given]
        common = shapes[0] if len(set(shapes)) == 1 else ()
        rest = iter(zip(shapes, self.given, strict=True))
        out = []
        for p in self.is_position:
            if p:
                out.append((common, self.position_dtype))
            else:
                shape, x = next(rest)
                out.append((shape, np.dtype(x.dtype)))
        return out

    def as_arguments(self, map: Callable[..., Any], leaves: Sequence[Any]) -> tuple[Any, ...]:
        """map's arguments: the members of a tuple or list one by one, if it takes that many."""
        structured = jax.tree.unflatten(self.tree, leaves)
        return tuple(structured) if type(structured) in (tuple, list) and takes(map, len(structured)) else (structured,)

    def in_front(self, x: Any, axes: tuple[int, ...]) -> Any:
        """The array with these axes as one, the first."""
        moved = jnp.moveaxis(x, axes, range(len(axes)))
        return moved if len(axes) == 1 else moved.reshape(self.n, *moved.shape[len(axes) :])

    def removed(self, ndim: int) -> tuple[int, ...]:
        """Where the axes were, in a result with ``ndim`` axes that is to have them again."""
        if self.axis is None:
            return tuple(range(self.rank))
        named = len(self.axis) if isinstance(self.axis, tuple) else 1
        return normal_axes(self.axis, ndim + named, self.name) if named else ()

    def moved_together(self) -> None:
        """The axes become neighbours, where the last one is."""
        there = tuple(range(self.at, self.at + len(self.axes)))
        self.given = [jnp.moveaxis(x, self.axes, there) for x in self.given]
        self.axes = there

    def moved_to_front(self) -> None:
        """The axis becomes the first one."""
        self.given = [self.in_front(x, self.axes) for x in self.given]
        self.axes = (0,)

    def numbered(self, names: devices.Names) -> None:
        """Positions become arrays: those among the elements of all devices along these mesh axes."""
        if not any(self.is_position):
            return
        self.position_dtype = position_dtype(self.n * jax.lax.axis_size(names), self.name, wanted=True)
        if len({shape for p, (shape, _) in zip(self.is_position, self.slices(), strict=True) if not p}) > 1:
            self.moved_to_front()
        sizes = [self.given[0].shape[a] for a in self.axes]
        rest, out = iter(self.given), []
        for p, (shape, dtype) in zip(self.is_position, self.slices(), strict=True):
            if not p:
                out.append(next(rest))
                continue
            at = devices.numbered((self.n, *shape), dtype, names).reshape(*sizes, *shape)
            out.append(jnp.moveaxis(at, range(len(sizes)), self.axes))
        self.given, self.is_position = out, [False] * len(out)

    def on_slices(self, axes: Axes) -> list[Any]:
        """Every leaf, positions too, with the axis first."""
        rest = iter(self.given)
        out = []
        for p, (shape, dtype) in zip(self.is_position, self.slices(), strict=True):
            if p:
                out.append(vary(jax.lax.broadcasted_iota(dtype, (self.n, *shape), 0), axes))
            else:
                out.append(self.in_front(next(rest), self.axes))
        return out


def normal_axes(axis: Any, ndim: int, name: str) -> tuple[int, ...]:
    """An axis or a tuple of them, ascending."""
    given = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    axes = tuple(sorted(normal_axis(a, ndim, name) for a in given))
    if len(set(axes)) < len(axes):
        raise ValueError(f"axis {axis} names an axis twice for {name} with {ndim} axes")
    return axes


def normal_axis(axis: Any, ndim: int, name: str) -> int:
    a = integer(axis, "axis")
    if ndim == 0:
        raise ValueError(f"{name}: every leaf needs an axis to go along, got a scalar")
    if not -ndim <= a < ndim:
        raise ValueError(f"axis {a} is out of range for {name} with {ndim} axes")
    return a % ndim


@dataclasses.dataclass
class Values:
    """What is combined: map's results, or the elements themselves. On slices."""

    tree: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype, ...]


def flat_map(elements: Elements, map: Callable[..., Any], axes: Axes) -> tuple[Callable[..., list[Any]], list[Any]]:
    found: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        got, tree = jax.tree.flatten(called("map", map, *elements.as_arguments(map, leaves)), is_leaf=lambda x: x is None)
        if not got:
            raise TypeError("map must return at least one number, got none")
        found[:] = [tree]
        return [vary(_number(x), axes) for x in got]

    return flat, found


def _number(x: Any) -> Any:
    a = as_array(x, "map's result")
    check_numbers(a.dtype, "map's result")
    return a
