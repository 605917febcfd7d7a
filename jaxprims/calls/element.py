"""A user's f and the arrays it runs on, flat; what it returns, checked."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..arguments.bins import Bins
from ..arguments.checks import as_array, called, check_index, check_numbers, flat_index, sizes_of
from ..arguments.positions import position_dtype, positions
from ..primitives import devices
from ..tracing.keys import from_words, words
from ..tracing.varying import Axes, element_aval, vary


@dataclasses.dataclass
class ElementFunction:
    """f and what it runs on, flat."""

    f: Callable[..., Any]
    arrays: Any
    leaves: list[Any]
    tree: Any
    name: str
    num_index: int = 0  # leading leaves that are indices (reduce_by_index)

    def __post_init__(self) -> None:
        self.is_position = [leaf is positions for leaf in self.leaves]
        given = []
        self.as_given: list[Callable[[Any], Any]] = []  # of each leaf, what f sees of what a kernel reads
        for k, leaf in enumerate(self.leaves):
            if leaf is positions:
                self.as_given.append(lambda x: x)
                continue
            x = as_array(leaf, "indices" if k < self.num_index else self.name)
            if x.dtype == jax.dtypes.float0:
                raise TypeError(f"{self.name} must be numbers, got float0")
            if x.ndim == 0:
                raise ValueError(f"{self.name}: every leaf needs a leading axis [N], got a scalar of {x.dtype}")
            self.as_given.append(from_words(jax.ShapeDtypeStruct(x.shape[1:], x.dtype)))
            given.append(words(x))
        if not given:
            raise ValueError(f"{self.name}: at least one array is needed to know the number of elements, got {self.arrays!r}")
        lengths = {x.shape[0] for x in given}
        if len(lengths) > 1:
            shown = ", ".join(str(x.shape) for x in given)
            what = "values and indices" if self.num_index else self.name
            raise ValueError(f"{what} must have one length N, got shapes {shown}")
        self.given = given
        self.elements = given[0].shape[0]
        self.position_dtype = position_dtype(self.elements, self.name, wanted=any(self.is_position))

    def numbered(self, names: devices.Names) -> None:
        """Positions become arrays: those among the elements of all devices along these mesh axes."""
        self.position_dtype = position_dtype(self.elements * jax.lax.axis_size(names), self.name, wanted=any(self.is_position))
        rest = iter(self.given)
        at = [devices.numbered((self.elements,), self.position_dtype, names) if p else next(rest) for p in self.is_position]
        self.given, self.is_position = at, [False] * len(at)

    def avals(self, axes: Axes) -> list[Any]:
        """Of one element."""
        rest = iter(self.given)
        return [
            element_aval((), self.position_dtype, axes) if p else element_aval((x := next(rest)).shape[1:], x.dtype, axes)
            for p in self.is_position
        ]

    def on_element(self, *element: Any) -> Any:
        """f on one element, given flat."""
        element = tuple(given(x) for given, x in zip(self.as_given, element, strict=True))
        if self.tree is None:
            return called("f", self.f, *element)
        structured = jax.tree.unflatten(self.tree, element)
        spread = type(structured) in (tuple, list) and takes(self.f, len(structured))
        return called("f", self.f, *structured) if spread else called("f", self.f, structured)


def takes(f: Callable[..., Any], n: int) -> bool:
    """Does f take n positional arguments (so that a tuple of arrays is handed over one by one)?"""
    try:
        inspect.signature(f).bind(*range(n))
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


@dataclasses.dataclass
class Pair:
    """What f returned for one histogram."""

    updates: int
    many: bool  # with a leading axis [k]
    tree: Any
    shapes: tuple[tuple[int, ...], ...]  # of a bin's leaves
    dtypes: tuple[np.dtype, ...]


def flat_function(
    call: ElementFunction, group: Sequence[Bins], single: bool, axes: Axes, found: list[Pair]
) -> Callable[..., list[Any]]:
    """f on flat elements: index and value leaves of each histogram in a row. Fills ``found``."""

    def flat(*element: Any) -> list[Any]:
        returned = call.on_element(*element)
        pairs = [returned] if single else returned
        if not isinstance(pairs, (tuple, list)) or len(pairs) != len(group):
            raise TypeError(f"f must return {len(group)} pairs (index, value), one for each of bins, got {shown(returned)}")
        out: list[Any] = []
        found.clear()
        for pair, bins in zip(pairs, group, strict=True):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise TypeError(f"f must return a pair (index, value) for each of bins, got {shown(pair)}")
            out += _checked_pair(pair[0], pair[1], bins, found)
        return [vary(x, axes) for x in out]

    return flat


def shown(x: Any) -> str:
    return repr(x)[:200]


def _checked_pair(index: Any, value: Any, bins: Bins, found: list[Pair]) -> list[Any]:
    sizes = sizes_of(bins.num_bins)
    several = isinstance(index, (tuple, list))
    if several and not isinstance(bins.num_bins, tuple):
        what = f"one integer, or an array [k] of them, for num_bins={bins.num_bins!r}"
        raise TypeError(f"f's index must be {what}, got {shown(index)}")
    parts = tuple(index) if several else (index,)
    if len(parts) != len(sizes):
        raise ValueError(f"f: num_bins={bins.num_bins!r} wants an index of {len(sizes)} integers, got {len(parts)}")
    arrays = []
    for p in parts:
        a = as_array(p, "f's index")
        check_index(a.dtype, "f's index")
        if a.ndim > 1:
            raise ValueError(f"f's index must be a scalar or have one axis [k], got shape {a.shape}")
        arrays.append(a)
    shape = jnp.broadcast_shapes(*(a.shape for a in arrays))
    many = len(shape) == 1
    k = shape[0] if many else 1
    leaves, tree = jax.tree.flatten(value, is_leaf=lambda x: x is None)
    if not leaves:
        raise TypeError("f's value (values) must hold at least one number, got none")
    wanted = None if bins.dest is None else [getattr(x, "dtype", None) for x in jax.tree.leaves(bins.dest)]
    out = []
    for n, leaf in enumerate(leaves):
        v = as_array(leaf, "f's value")
        check_numbers(v.dtype, "f's value (values)")
        if jax.typeof(v).weak_type and wanted is not None and len(wanted) == len(leaves) and wanted[n] is not None:
            v = v.astype(wanted[n])
        if many and v.ndim == 0:
            v = jnp.broadcast_to(v, (k,))
        if many and v.shape[0] != k:
            raise ValueError(f"f's value: the index has {k} updates: leaves need a leading axis [{k}], got shape {v.shape}")
        out.append(v)
    shapes = tuple(v.shape[1:] if many else v.shape for v in out)
    found.append(Pair(k, many, tree, shapes, tuple(np.dtype(v.dtype) for v in out)))
    flat = flat_index(tuple(jnp.broadcast_to(a, shape) for a in arrays), sizes)
    return [flat, *out]
