"""The adjoint of one step of a stencil: every cell gathers what the cells that read it make of it (Hückelheim et al. 2019), so
nothing is scattered; only what is read beyond an edge, which is some cell's within, is added to that cell afterwards.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr
from jax.interpreters import ad

from ...tracing.jaxprs import looked, pruned
from ...tracing.varying import axes_of, element_aval, vary
from ..tangents import summed_to, zeros_of
from . import xla as stencil_xla
from .call import Bounds, StencilCall, Window
from .made import outputs, step

MOST_EQUATIONS = 1500
"""Of an adjoint that makes each read's derivative where it is gathered; if there are more, they are made first, once for each
cell, and written."""


class Adjoint:
    """The transpose of one step that is linear in some operands."""

    def __init__(
        self, cts: Sequence[Any], operands: Sequence[Any], linear: Sequence[bool], call: StencilCall, masks: Any, rank: int
    ):
        self.call, self.linear, self.masks, self.rank, self.operands = call, linear, masks, rank, operands
        n = call.num_arrays
        self.given = [k for k, c in enumerate(cts) if not isinstance(c, ad.Zero)]
        self.cts = [cts[k] for k in self.given]
        self.moving = [r for r, (k, _) in enumerate(call.reads) if linear[k]]
        self.captured = [k for k in range(n, len(operands)) if linear[k]]
        self.pulled = self._pull()
        self.inside = [w.computed for w in call.window]
        # What pulling back looks at: (held arrays; cotangents of a cell; what it reads; its coordinates)
        self.held = [(operands[k], masks[k]) for k in range(n, len(operands)) if not linear[k]]
        full = (1 << rank) - 1
        self.arrays = [(-1, ct, full) for ct in self.cts]
        self.bounds = [(tuple(Bounds("constant", -w.start, *w.keep) for w in call.window), (0, 0)) for _ in self.cts]
        self.number = {}  # of the other arrays among these
        for k in range(n):
            if not linear[k]:
                self.number[k] = len(self.arrays)
                self.arrays.append((k, operands[k], masks[k]))
                self.bounds.append((call.bounds[k], call.fills[k]))

    def all(self) -> list[Any]:
        out: list[Any] = [None] * len(self.operands)
        if not self.cts:
            return out
        for k in range(self.call.num_arrays):
            if self.linear[k]:
                out[k] = summed_to(self._of_array(k), self.masks[k], self.rank)
        for k, ct in zip(self.captured, self._of_captured(), strict=True):
            out[k] = ct
        return out

    # --- f, pulled back ---------------------------------------------------------------------------------------------------------

    def _pull(self) -> Any:
        """The jaxpr from (held arrays that are not linear, cotangents, what is read and not linear, coordinates) to cotangents of
        the reads that are linear, then of the captured arrays that are."""
        call, n = self.call, self.call.num_arrays
        cells, consts = [v.aval for v in call.f.jaxpr.invars], [v.aval for v in call.f.jaxpr.constvars]
        fixed_consts = [k for k in range(len(consts)) if not self.linear[n + k]]
        fixed = [r for r in range(len(cells)) if r not in self.moving]
        results = [call.f.jaxpr.outvars[k].aval for k in self.given]

        def flat(*args: Any) -> list[Any]:
            rest = iter(args)
            held = dict(zip(fixed_consts, itertools.islice(rest, len(fixed_consts)), strict=True))
            cts = list(itertools.islice(rest, len(results)))
            values = dict(zip(fixed, rest, strict=True))

            def f(reads: list[Any], captured: list[Any]) -> list[Any]:
                h = held | dict(zip([k - n for k in self.captured], captured, strict=True))
                v = values | dict(zip(self.moving, reads, strict=True))
                outs = call.f([h[k] for k in range(len(consts))], *(v[r] for r in range(len(cells))))
                return [outs[k] for k in self.given]

            points = [zeros_of(cells[r]) for r in self.moving], [zeros_of(consts[k - n]) for k in self.captured]
            _, pull = jax.vjp(f, *points)
            reads, captured = pull(cts)
            return [*reads, *captured]

        avals = [*(consts[k] for k in fixed_consts), *results, *(cells[r] for r in fixed)]
        return jax.make_jaxpr(flat)(*avals)

    def _spots(self, shift: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Where pulling back looks at when the cell is ``shift`` away."""
        zero = tuple(shift)
        spots = [(c, zero) for c in range(len(self.cts))]
        for r, (k, offsets) in enumerate(self.call.reads):
            if r not in self.moving:
                spots.append((self.number[k], tuple(o + s for o, s in zip(offsets, shift, strict=True))))
        return spots

    @property
    def _nonlinear(self) -> bool:
        """Does pulling back look at more than cotangents and captured arrays?"""
        needed = looked(pruned(self.pulled.jaxpr))
        return any(v in needed for v in self.pulled.jaxpr.invars[len(self.held) + len(self.cts) :])

    # --- arrays -----------------------------------------------------------------------------------------------------------------

    def _of_array(self, k: int) -> Any:
        """With all batch axes."""
        reads = [r for r in self.moving if self.call.reads[r][0] == k]
        aval = self.operands[k].aval
        if not reads:
            batch = self.cts[0].shape[: self.rank]
            out = vary(jnp.zeros((*batch, *aval.shape[self.masks[k].bit_count() :]), aval.dtype), axes_of(self.cts))
        else:
            out = self._gathered(k, reads)
        return self._with_kept(k, out)

    def _sizes(self, k: int) -> list[int]:
        first = self.masks[k].bit_count()
        return list(self.operands[k].aval.shape[first : first + self.call.rank])

    def _gathered(self, k: int, reads: Sequence[int]) -> Any:
        call = self.call
        there = [(b.lo - b.origin, n - b.hi - b.origin) for b, n in zip(call.bounds[k], self._sizes(k), strict=True)]
        # On an axis that wraps around, all of which is computed, so do cotangents.
        around = [b.mode == "wrap" and t == i for b, t, i in zip(call.bounds[k], there, self.inside, strict=True)]
        many = len(self.pulled.jaxpr.eqns) * len(reads) > MOST_EQUATIONS
        terms = (Written if many else Terms)(self, reads, around)
        main = self._whole(k, terms.stencil([Window(begin, end - begin) for begin, end in there]))
        beyond = []
        for axis, (b, (begin, end), (first, last)) in enumerate(zip(call.bounds[k], there, self.inside, strict=True)):
            offsets = [call.reads[r][1][axis] for r in reads]
            low, high = begin - (first + min(offsets)), last - 1 + max(offsets) - (end - 1)
            folds = b.mode in ("edge", "wrap", "reflect", "symmetric") and not around[axis]
            beyond.append((max(0, low) if folds else 0, max(0, high) if folds else 0))
        for sides in itertools.product((0, -1, 1), repeat=call.rank):
            if not any(sides) or any((s < 0 and not lo) or (s > 0 and not hi) for s, (lo, hi) in zip(sides, beyond, strict=True)):
                continue
            if not any(self._leaves(call.reads[r][1], sides, there) for r in reads):
                continue
            main = self._folded(k, terms, main, sides, there, beyond)
        return main

    def _leaves(self, offsets: Sequence[int], sides: Sequence[int], there: Sequence[tuple[int, int]]) -> bool:
        """Does a read of some computed cell go beyond these sides at once?"""
        every = zip(offsets, sides, there, self.inside, strict=True)
        return not any(
            (s < 0 and first + o >= begin) or (s > 0 and last - 1 + o < end) for o, s, (begin, end), (first, last) in every
        )

    def _whole(self, k: int, made: Any) -> Any:
        """With zeros at the cells of an array that are not there."""
        if not any(b.lo or b.hi for b in self.call.bounds[k]):
            return made
        widths = [(0, 0, 0)] * self.rank + [(b.lo, b.hi, 0) for b in self.call.bounds[k]]
        widths += [(0, 0, 0)] * (made.ndim - len(widths))
        return lax.pad(made, jnp.zeros((), made.dtype), widths)

    def _folded(self, k: int, terms: Terms, main: Any, sides: Sequence[int], there: Any, beyond: Any) -> Any:
        """With what is read beyond these sides added to the cells that it is."""
        window, places = [], []
        for s, (begin, end), (lo, hi), b in zip(sides, there, beyond, self.call.bounds[k], strict=True):
            cells = range(begin - lo, begin) if s < 0 else range(end, end + hi) if s > 0 else range(begin, end)
            window.append(Window(cells.start, len(cells)))
            places.append([stencil_xla.place(b.mode, c, begin, end) or 0 for c in cells] if s else None)
        piece, start = terms.stencil(window), [0] * main.ndim
        for axis, (at, b) in enumerate(zip(places, self.call.bounds[k], strict=True), self.rank):
            start[axis] = b.lo if at is None else min(at) + b.origin
            piece = piece if at is None else _added_up(piece, axis, at)
        old = lax.slice(main, start, [s + n for s, n in zip(start, piece.shape, strict=True)])
        return lax.dynamic_update_slice(main, old + piece, start)

    def _with_kept(self, k: int, out: Any) -> Any:
        """With the cotangents of the cells that keep their value."""
        call = self.call
        if not call.keeps or k >= call.changed or k not in self.given:
            return out
        ct = self.cts[self.given.index(k)]
        left = [(0, n) for n in ct.shape[self.rank : self.rank + call.rank]]
        for axis, w in enumerate(call.window):
            n = left[axis][1]
            low, high = min(w.keep[0], n), max(min(w.keep[0], n), n - w.keep[1])
            for begin, end in ((0, low), (high, n)):
                if begin < end:
                    part = [*left[:axis], (begin, end), *left[axis + 1 :]]
                    start = [0] * self.rank + [b for b, _ in part] + [0] * (ct.ndim - self.rank - call.rank)
                    stop = [*ct.shape[: self.rank], *(e for _, e in part), *ct.shape[self.rank + call.rank :]]
                    moved = list(start)
                    for a, (b, v) in enumerate(zip(call.bounds[k], call.window, strict=True)):
                        moved[self.rank + a] += v.start + b.origin
                    size = [e - s for s, e in zip(start, stop, strict=True)]
                    old = lax.slice(out, moved, [m + n for m, n in zip(moved, size, strict=True)])
                    out = lax.dynamic_update_slice(out, old + lax.slice(ct, start, stop), moved)
            left[axis] = (low, high)
        return out

    # --- captured arrays --------------------------------------------------------------------------------------------------------

    def _of_captured(self) -> list[Any]:
        """Made cell by cell, and summed."""
        if not self.captured:
            return []
        made = self.of_cells(self.pulled.jaxpr.outvars[len(self.moving) :])
        cells = tuple(range(self.rank, self.rank + self.call.rank + self.call.lanes_rank))
        return [summed_to(jnp.sum(x, cells), self.masks[k], self.rank) for k, x in zip(self.captured, made, strict=True)]

    def of_cells(self, outvars: Sequence[Any]) -> list[Any]:
        """These results of pulling back, at every cell that is computed."""
        closed, call = ClosedJaxpr(self.pulled.jaxpr.replace(outvars=outvars), self.pulled.consts), self.call
        spots, told = self._spots((0,) * call.rank), list(call.coordinates)
        window = [Window(first, last - first) for first, last in self.inside]
        return step(closed, self.held, self.arrays, spots, told, self.bounds, call, self.rank)(window)


def _added_up(x: Any, axis: int, places: Sequence[int]) -> Any:
    """What lies along an axis, added up where it belongs, from the first of those places to the last. One operation, however many
    there are: for each that updates a part of an array XLA copies all of it, and compiles."""
    first, count, steps = min(places), max(places) - min(places) + 1, set(np.diff(places).tolist())
    if count == 1:
        return x if len(places) == 1 else jnp.sum(x, axis, keepdims=True)
    if steps in ({1}, {-1}):
        return x if steps == {1} else lax.rev(x, (axis,))
    zeros = jnp.zeros((*x.shape[:axis], count, *x.shape[axis + 1 :]), x.dtype)  # what is reflected more than once
    return vary(zeros, axes_of([x])).at[(*[slice(None)] * axis, np.array(places) - first)].add(x)


class Terms:
    """What the cells that read a cell make of it, summed."""

    def __init__(self, adjoint: Adjoint, reads: Sequence[int], around: Sequence[bool]):
        self.a, self.reads, self.around = adjoint, reads, around
        call = adjoint.call
        self.bounds = [self._bounds_of_cotangents(b) if c < len(adjoint.cts) else b for c, b in enumerate(adjoint.bounds)]
        self.spots: dict[tuple[int, tuple[int, ...]], int] = {}
        shifts = [tuple(-o for o in call.reads[r][1]) for r in reads]
        for shift in shifts:
            for spot in adjoint._spots(shift):
                self.spots.setdefault(spot, len(self.spots))
        a, told = adjoint, list(range(call.rank))
        self.at = step(self._traced(shifts), a.held, a.arrays, list(self.spots), told, self.bounds, call, a.rank)

    def _bounds_of_cotangents(self, b: Any) -> Any:
        own = tuple(dataclasses.replace(x, mode="wrap") if w else x for x, w in zip(b[0], self.around, strict=True))
        return own, b[1]

    def _traced(self, shifts: Sequence[tuple[int, ...]]) -> Any:
        a = self.a
        pulled, masked = a.pulled, a._nonlinear
        n, c, d = len(a.held), len(a.cts), a.call.rank
        avals = [v.aval for v in pulled.jaxpr.invars]
        fixed = avals[n + c : len(avals) - len(a.call.coordinates)]
        by_spot: dict[int, Any] = {}
        for shift in shifts:
            for spot, aval in zip(a._spots(shift), [*avals[n : n + c], *fixed], strict=True):
                by_spot[self.spots[spot]] = aval
        axes = axes_of(avals)
        at = [element_aval((), np.int32, axes)] * d

        def flat(*args: Any) -> list[Any]:
            held, values, told = args[:n], args[n : n + len(by_spot)], args[n + len(by_spot) :]
            total = None
            for r, shift in zip(self.reads, shifts, strict=True):
                there = [values[self.spots[s]] for s in a._spots(shift)]
                cell = [self._moved(told[x], shift[x], x) for x in a.call.coordinates]
                (one,) = outputs(pulled, [a.moving.index(r)])(*held, *there, *cell)
                if masked:
                    one = self._within(one, told, shift)
                total = one if total is None else total + one
            return [total]

        return jax.make_jaxpr(flat)(*avals[:n], *(by_spot[k] for k in range(len(by_spot))), *at)

    def _moved(self, x: Any, shift: int, axis: int) -> Any:
        moved = x + np.int32(shift)
        if not self.around[axis]:
            return moved
        first, last = self.a.inside[axis]
        return jnp.mod(moved - np.int32(first), np.int32(last - first)) + np.int32(first)

    def _within(self, x: Any, told: Sequence[Any], shift: Sequence[int]) -> Any:
        """Zero where the cell is none that was computed, of which f may make anything."""
        there = None
        for axis, (first, last) in enumerate(self.a.inside):
            if self.around[axis]:
                continue
            at = told[axis] + np.int32(shift[axis])
            here = (at >= np.int32(first)) & (at < np.int32(last))
            there = here if there is None else there & here
        if there is None:
            return x
        return jnp.where(there, x, jnp.zeros_like(x))

    def stencil(self, window: Sequence[Window]) -> Any:
        """At these cells."""
        (made,) = self.at(window)
        return made


class Written(Terms):
    """The same where each read's derivative is made first, once for each cell, and written."""

    def __init__(self, adjoint: Adjoint, reads: Sequence[int], around: Sequence[bool]):
        call, full = adjoint.call, (1 << adjoint.rank) - 1
        outvars = [adjoint.pulled.jaxpr.outvars[adjoint.moving.index(r)] for r in reads]
        made = adjoint.of_cells(outvars)
        modes = [Bounds("wrap" if w else "constant", -first) for w, (first, _) in zip(around, adjoint.inside, strict=True)]
        own = [(tuple(modes), (0, 0)) for _ in made]
        places = [(c, tuple(-o for o in call.reads[r][1])) for c, r in enumerate(reads)]
        summed = jax.make_jaxpr(lambda *xs: [functools.reduce(jnp.add, xs)])(*[outvars[0].aval] * len(made))
        self.at = step(summed, [], [(-1, x, full) for x in made], places, [], own, call, adjoint.rank)
