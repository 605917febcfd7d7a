"""In which bin of a histogram a number lies: exactly, and mostly without looking at the edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..targets.plans import AnyKernel, forced
from ..tracing.varying import axes_of, vary
from .scan import scan

COMPARED, COMPARED_BY_FEW = 40, 128
"""Edges that were given, up to which to compare an element with all of them takes less time than to search in a grid's cell; by
few elements, for which there is no grid."""

STEPS_TO_EQUAL, STEPS_TO_GIVEN = 4, 40
"""Of all elements' searches, for each edge, up to which nothing is prepared: of equal bins; by edges that were given."""

FEWEST_PLACED, PLACED_BY_EDGE = 2**13, 16
"""Elements, also for each edge, from which on what is prepared for places takes less time than it saves."""

AT_ONCE = 8
"""Comparisons that XLA makes in one loop over the elements."""

ASCENDING, UNORDERED = -1, -2
"""How certain a guess is by edges that are not even."""

MAX_CELLS = 1 << 20
"""Of the grid that speeds up the search for unequal bins: 4 MiB."""


Finder = Callable[[Any], Any]
"""A number's bin, or its place."""

Reached = Callable[[Any, Any], Any]
"""(edge, x): is the edge one of those that are below x?"""


def bin_finder(edges: jax.Array, elements: int, one: bool = True, equal: bool = False) -> tuple[Finder, jax.Array]:
    """``bin_of(x)``: ``searchsorted(edges, x, side="right") - 1``, the last edge inclusive; outside [0, n) if in no bin. And n.

    ``one``: of one axis, where ``jax.numpy`` has what equals the last edge in the last bin; of several it takes 1 from what
    was found, which is another where the edges do not ascend (or are NaN, as those between infinities are). ``equal``: the edges
    are those of equal bins, so that only rounding can make them unequal: nothing is prepared to speed up the search for that.

    What depends on n is captured, not compiled in, so that one kernel serves many numbers of bins. Inside ``shard_map`` the
    edges are to vary over all axes over which an x does.
    """
    edges = _wide(edges.real if jnp.iscomplexobj(edges) else edges)
    table = _Table(edges, elements, lambda edge, x: edge <= x, equal)

    def last(i: jax.Array, x: jax.Array, hi: jax.Array) -> jax.Array:
        return jnp.where(x == hi, table.bins - 1 if one else i - 1, i)

    return (table.searcher if table.is_searched else table.guesser)(last), table.bins


def place_finder(edges: jax.Array, elements: int, side: str) -> Finder | None:
    """``place_of(x)``: ``searchsorted(edges, x, side)``, of NaN and of edges that do not ascend, too; None where a plain search
    of so few elements is faster."""
    if elements < max(FEWEST_PLACED, PLACED_BY_EDGE * edges.size):
        return None

    def right(edge: jax.Array, x: jax.Array) -> jax.Array:
        return (edge <= x) | (x != x)

    def left(edge: jax.Array, x: jax.Array) -> jax.Array:
        return (edge < x) | ((x != x) & (edge == edge))

    reached = right if side == "right" else left
    table = _Table(_wide(edges), elements, reached, truncates=side == "right")
    last_below, ends, certain = table.guesser(lambda i, x, hi: i), jnp.stack([table.lo, table.hi]), table.certain

    def place_of(x: jax.Array) -> jax.Array:
        x = x.astype(ends.dtype)
        i = last_below(x)
        inside = jnp.where(reached(ends[1], x), table.bins, jnp.where(reached(ends[0], x), i, -1))
        return jnp.where(certain == UNORDERED, i, inside) + 1

    return place_of


def _wide(edges: jax.Array) -> jax.Array:
    return edges.astype(np.float32) if edges.dtype.itemsize < 4 else edges  # exact, and so is x


class _Table:
    """Edges, and what was prepared of them.

    The bin is guessed as if the bins were equal: g(x) = (x - lo) * scale - 1/2, a function that never decreases, rounding
    included. Let off be the largest abs(g(edge i) - (i - 1/2)). While off < 1/2, an x with abs(g(x) - i) < 1/2 - off is above
    edge i and below edge i + 1; any other lies in one of the two bins beside the edge nearest to it: comparing it with that
    edge decides. This is exact for any edges, needs no analysis of rounding errors, and reads an edge only for the few x
    near one. Bins that are not equal, or narrower than the resolution of x, have off >= 1/2: there x is compared with every
    edge, if they are few and ascend, or searched. So are all for few elements, where edges are many: nothing is prepared, and
    in a loop XLA may do it.

    ``reached``: what an edge is compared by. ``truncates``: an exact place is, as the edge that equals x is below it.
    """

    def __init__(self, edges: jax.Array, elements: int, reached: Reached, equal: bool = False, truncates: bool = True):
        self.edges, self.reached, self.axes = edges, reached, axes_of([edges])
        size = edges.size
        self.steps = vary(jnp.arange(size, dtype=np.int32), self.axes)
        self.bins, self.lo, self.hi = self.steps[-1], edges[0], edges[-1]
        self.cells = min(8 << size.bit_length(), MAX_CELLS)
        self.few = isinstance(elements, int) and elements < self.cells
        self.equal, self.truncates = equal, truncates
        self.compared = not equal and size <= (COMPARED_BY_FEW if self.few else COMPARED)
        most = STEPS_TO_EQUAL if equal else STEPS_TO_GIVEN
        self.is_searched = self.few and not self.compared and elements * size.bit_length() <= most * size
        # Of what is beyond the last edge nothing depends; no infinity, which `jax_debug_infs` would find
        self.padded = lax.pad(edges, self.hi, [(0, (1 << size.bit_length()) - size, 0)])

    def searcher(self, last: Callable[..., Any]) -> Finder:
        """Without anything prepared."""

        def searched(x: jax.Array) -> jax.Array:
            x = x.astype(self.edges.dtype)
            return last(self._among_all(x), x, self.hi)

        return searched

    def guesser(self, last: Callable[..., Any]) -> Finder:
        edges, lo, hi, size, dtype = self.edges, self.lo, self.hi, self.edges.size, self.edges.dtype
        info, bits = jnp.finfo(dtype), np.int32 if dtype == np.float32 else np.int64
        eps = float(info.eps)
        scale = (size - 1) / (hi - lo)
        usable = jnp.isfinite(lo) & jnp.isfinite(scale) & (scale > 0)
        zero, scale = jnp.where(usable, lo, 0), jnp.where(usable, scale, 1)

        off = jnp.max(jnp.abs(_place(edges, zero, scale) - self.steps.astype(dtype)))
        # An image's grey values, say: where the place is exact, even an x on an edge is certain
        power_of_2 = lax.bitcast_convert_type(scale, bits) & ((1 << info.nmant) - 1) == 0
        exact = usable & (off == 0) & (zero == 0) & power_of_2 & self.truncates
        off += 2 * eps * size  # what subtracting 1/2 rounds; and XLA may fuse a multiplication and an addition, the kernel not
        even = usable & (off < 0.5)  # False for NaN
        ascending = jnp.all(edges[:-1] <= edges[1:])  # False for NaN
        certain = jnp.where(exact, 1, jnp.where(even, 0.5 - off, jnp.where(ascending, ASCENDING, UNORDERED)))
        self.certain = certain
        cell_scale = scale * (self.cells / self.bins.astype(dtype))
        has_grid = not (self.few or self.equal or self.compared)
        bounds_of = _grid(edges, zero, cell_scale, self.cells, certain) if has_grid else None
        # few operands, so that small inputs do not wait for many small computations
        captured = jnp.stack([lo, hi, zero, scale, certain, cell_scale])

        def compare(x: jax.Array) -> jax.Array:
            def one_more(k: Any, i: jax.Array) -> jax.Array:
                return i + self.reached(_at(self.padded, k), x).astype(np.int32)

            return lax.fori_loop(0, size, one_more, vary(jnp.int32(-1), self.axes), unroll=AT_ONCE)

        def search(x: jax.Array, certain: jax.Array, zero: jax.Array, cell_scale: jax.Array) -> jax.Array:
            def between() -> jax.Array:
                if bounds_of is None:
                    return self._among_all(x)
                start = bounds_of(_place(x, zero, cell_scale))
                halved = lax.while_loop(lambda bounds: bounds[1] - bounds[0] > 1, lambda bounds: self._halve(bounds, x), start)
                return self._found(halved, x)

            return lax.cond(certain == ASCENDING, lambda: compare(x), between) if self.compared else between()

        # Adding this number rounds to an integer, which appears in the sum's last bits; what is too large for that, and NaN,
        # appears as a number that is no bin's
        magic = np.asarray(1 / eps + 1, dtype)

        def bin_of(x: jax.Array) -> jax.Array:
            x = x.astype(dtype)
            lo, hi, zero, scale, certain, cell_scale = (captured[k] for k in range(6))

            def truncated() -> jax.Array:
                return last(jnp.where(x >= lo, _place(x, zero, scale).astype(np.int32), -1), x, hi)

            def guessed() -> jax.Array:
                g = _place(x, zero, scale) - 0.5
                i = lax.bitcast_convert_type(g + magic, bits) - magic.view(bits)
                doubtful = jnp.abs(g - i.astype(dtype)) >= certain
                if bits == np.int64:
                    i = jnp.clip(i, -1, 2**31 - 1).astype(np.int32)
                return lax.cond(
                    doubtful, lambda: beside(lax.round(g + 0.5, lax.RoundingMethod.TO_NEAREST_EVEN).astype(np.int32)), lambda: i
                )

            def beside(i: jax.Array) -> jax.Array:
                return last(jnp.where(self.reached(_at(self.padded, i), x), i, i - 1), x, hi)

            def sought() -> jax.Array:
                return last(search(x, certain, zero, cell_scale), x, hi)

            return lax.cond(certain == 1, truncated, lambda: lax.cond(certain > 0, guessed, sought))

        return bin_of

    def _among_all(self, x: jax.Array) -> jax.Array:
        start = vary(jnp.int32(0), self.axes), self.bins + 1
        halved = lax.fori_loop(0, self.edges.size.bit_length(), lambda _, bounds: self._halve(bounds, x), start)
        return self._found(halved, x)

    def _halve(self, bounds: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low + high) >> 1
        above = self.reached(_at(self.padded, middle), x)
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    def _found(self, bounds: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
        low, high = bounds
        return low - 1 + ((low < high) & self.reached(_at(self.padded, low), x)).astype(np.int32)


def _place(x: jax.Array, zero: jax.Array, scale: jax.Array) -> jax.Array:
    # one rounding after the other, which no compiler may exchange or merge: the same in XLA's code and in a kernel
    return (x - zero) * scale


def _grid(
    edges: jax.Array, zero: jax.Array, scale: jax.Array, cells: int, certain: jax.Array
) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """From a place to (the number of edges that are certainly not above x, that of those that may not be).

    Equal cells over the places hold the number of edges in lower cells: a cell's number never decreases with x, so only the
    edges in x's own cell are left to search. Nothing is prepared but where edges are :data:`ASCENDING` and not even.
    """

    def cell(place: jax.Array) -> jax.Array:
        return jnp.clip(place, 0, cells - 1).astype(np.int32)

    nothing = vary(jnp.zeros(cells + 1, np.int32), axes_of([edges]))

    def counted() -> jax.Array:
        steps = nothing.at[cell(_place(edges, zero, scale)) + 1].add(1)
        with forced(
            AnyKernel("cpu")
        ):  # XLA would count so many operations in its own that it woke another thread for a small call
            return scan(steps, jnp.add)

    of_use = certain == ASCENDING
    lower = lax.cond(of_use, counted, lambda: nothing)
    beyond = jnp.where(of_use, 0, jnp.arange(edges.size + 1, dtype=np.int32)[-1])

    def bounds(place: jax.Array) -> tuple[jax.Array, jax.Array]:
        c = cell(place)
        return _at(lower, c), _at(lower, c + 1) + beyond

    return bounds


def _at(a: jax.Array, i: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(a, i, keepdims=False, allow_negative_indices=False)
