"""Derivatives of stencils. A JVP is a stencil, which reads tangents beside the arrays. Its transpose is the adjoint stencil: every
cell gathers what the cells that read it make of it (Hückelheim et al. 2019), so nothing is scattered; only what is read beyond
an edge, which is some cell's within, is added to that cell afterwards. Several steps are differentiated step by step, and
remembered at every square root of their number.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr
from jax.interpreters import ad

from ..ir.linear import CONSTANT, LINEAR, OTHER, degrees
from ..operators.operator import NO_PROGRAM, Traced, make_traced, slots_of
from ..tracing.jaxprs import with_arguments
from ..tracing.lower import Unsupported, hoist, to_program
from ..tracing.varying import axes_of, vary
from . import stencil_xla
from .batches import over_batch
from .stencil import bind, stencil_p
from .stencil_call import Bounds, StencilCall, Window
from .tangents import is_inexact, summed_to, zeros_if_none

MOST_EQUATIONS = 1500
"""Of an adjoint that makes each read's derivative where it is gathered; if there are more, they are made first, once for each
cell, and written."""

SMALL = 4096
"""Cells of a grid whose adjoint is XLA's: of the kernels' pieces each would cost more than all of it."""

MOST_CAPTURED = 64
"""Numbers of a captured array whose derivative is made cell by cell, and summed."""


# --- JVP --------------------------------------------------------------------------------------------------------------------------


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: StencilCall, masks: tuple[int, ...], rank: int) -> Any:
    primals = [jnp.asarray(x) for x in primals]
    dots = [None if isinstance(t, ad.Zero) else t for t in tangents]
    if call.steps > 1:
        return _jvp_of_steps(primals, dots, call, masks, rank)
    outs = stencil_p.bind(*primals, call=call, masks=masks, rank=rank)
    return outs, _tangents(primals, dots, outs, call, masks, rank)


def _tangents(
    primals: Sequence[Any], dots: Sequence[Any], outs: Sequence[Any], call: StencilCall, masks: Sequence[int], rank: int
) -> list[Any]:
    """Of one step's results."""
    wanted = [k for k, o in enumerate(outs) if is_inexact(o.dtype)]
    zeros = [ad.Zero(jax.typeof(o).to_tangent_aval()) for o in outs]
    if not wanted:
        return zeros
    try:
        made = _tangent_stencil(primals, dots, wanted, call, masks, rank)
    except Unsupported:
        made = _plain_tangents(primals, dots, wanted, call, masks, rank)
    for k, dot in zip(wanted, made, strict=True):
        zeros[k] = dot
    return zeros


def _plain_tangents(
    primals: Sequence[Any], dots: Sequence[Any], wanted: Sequence[int], call: StencilCall, masks: Sequence[int], rank: int
) -> list[Any]:
    active = [k for k, d in enumerate(dots) if d is not None]

    def plain(*xs: Any) -> list[Any]:
        full = list(primals)
        for k, x in zip(active, xs, strict=True):
            full[k] = x
        outs = over_batch(functools.partial(stencil_xla.stencil, call), masks, rank)(*full)
        return [outs[k] for k in wanted]

    return list(jax.jvp(plain, [primals[k] for k in active], [dots[k] for k in active])[1])


def _tangent_stencil(
    primals: Sequence[Any], dots: Sequence[Any], wanted: Sequence[int], call: StencilCall, masks: Sequence[int], rank: int
) -> list[Any]:
    n = call.num_arrays
    active = [k for k in range(n) if dots[k] is not None]
    if call.keeps:  # what is kept of a tangent is an array's
        dots = [zeros_if_none(d, x) if k in wanted else d for k, (d, x) in enumerate(zip(dots, primals, strict=True))]
        active = [*wanted, *(k for k in active if k not in wanted)]
    captured = [k for k in range(n, len(primals)) if dots[k] is not None]
    moving = [r for r, (k, _) in enumerate(call.reads) if k in active]
    cells = [v.aval for v in call.f.jaxpr.invars]
    consts = [v.aval for v in call.f.jaxpr.constvars]

    def flat(*args: Any) -> list[Any]:
        rest = iter(args)

        def take(count: int) -> list[Any]:
            return list(itertools.islice(rest, count))

        held, held_dots = take(len(consts)), take(len(captured))
        read_dots, values = take(len(moving)), take(len(cells))

        def f(held_moving: list[Any], values_moving: list[Any]) -> list[Any]:
            h, v = list(held), list(values)
            for k, x in zip(captured, held_moving, strict=True):
                h[k - n] = x
            for r, x in zip(moving, values_moving, strict=True):
                v[r] = x
            outs = call.f(h, *v)
            return [outs[k] for k in wanted]

        points = [held[k - n] for k in captured], [values[r] for r in moving]
        return list(jax.jvp(f, points, (held_dots, read_dots))[1])

    tangent = [a.to_tangent_aval() if hasattr(a, "to_tangent_aval") else a for a in cells]
    avals = [*consts, *(consts[k - n] for k in captured), *(tangent[r] for r in moving), *cells]
    jaxpr = jax.make_jaxpr(flat)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) if not axes_of([a]) else a for a in avals))
    arrays = [*((k, dots[k], masks[k]) for k in active), *((k, primals[k], masks[k]) for k in range(n))]
    spots = [(active.index(call.reads[r][0]), call.reads[r][1]) for r in moving]
    spots += [(len(active) + k, offsets) for k, offsets in call.reads]
    held = [(x, masks[n + k]) for k, x in enumerate(primals[n:])] + [(dots[k], masks[k]) for k in captured]
    bounds = [_flat_fill(call, k) for k in active] + list(zip(call.bounds, call.fills, strict=True))
    least = len(wanted) if call.keeps else 0
    return _bound(jaxpr, held, arrays, spots, list(call.coordinates), bounds, call.window, call, rank, least)


def _flat_fill(call: StencilCall, k: int) -> tuple[tuple[Bounds, ...], tuple[int, int]]:
    """Beyond the ends of a tangent nothing moves where the fill value is read."""
    return call.bounds[k], (0, 0)


def _bound(
    closed: Any,
    held: Sequence[tuple[Any, int]],
    arrays: Sequence[tuple[int, Any, int]],
    spots: Sequence[tuple[int, tuple[int, ...]]],
    coordinates: Sequence[int],
    bounds: Sequence[Any],
    window: Sequence[Window],
    like: StencilCall,
    rank: int,
    least: int = 0,
) -> list[Any]:
    """One step of a stencil of a jaxpr of (held, what is read at ``spots``, coordinates), without what it does not need. The
    first ``least`` arrays are wanted whatever it reads."""
    jaxpr, consts = _pruned(closed.jaxpr), list(closed.consts)
    if consts:
        raise Unsupported("derivative", "that captures arrays of its own")
    looked = _looked(jaxpr)
    n, m = len(held), len(held) + len(spots)
    constvars = [k for k in range(n) if jaxpr.invars[k] in looked]
    reads = [k for k in range(n, m) if jaxpr.invars[k] in looked]
    told = [k for k in range(m, m + len(coordinates)) if jaxpr.invars[k] in looked]
    narrow = with_arguments(jaxpr, [jaxpr.invars[k] for k in constvars], [jaxpr.invars[k] for k in (*reads, *told)])
    traced = make_traced(narrow, to_program(narrow))
    needed = sorted({*range(least), *(spots[k - n][0] for k in reads)} or {0})
    static = StencilCall(
        traced,
        tuple((needed.index(spots[k - n][0]), spots[k - n][1]) for k in reads),
        tuple(coordinates[k - m] for k in told),
        tuple(bounds[k][0] for k in needed),
        tuple(bounds[k][1] for k in needed),
        tuple(window),
        lanes_rank=like.lanes_rank,
        plans=like.plans,
    )
    operands = [*(arrays[k][1] for k in needed), *(held[k][0] for k in constvars)]
    masks = [*(arrays[k][2] for k in needed), *(held[k][1] for k in constvars)]
    return bind(static, operands, masks, rank)


def _pruned(jaxpr: Jaxpr) -> Jaxpr:
    """Without equations that nothing needs."""
    wanted = {v for v in jaxpr.outvars if not hasattr(v, "val")}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if wanted.intersection(eqn.outvars) or eqn.effects:
            kept.append(eqn)
            wanted.update(v for v in eqn.invars if not hasattr(v, "val"))
    return jaxpr.replace(eqns=kept[::-1])


def _looked(jaxpr: Jaxpr) -> set[Any]:
    return {v for eqn in jaxpr.eqns for v in eqn.invars if not hasattr(v, "val")} | {
        v for v in jaxpr.outvars if not hasattr(v, "val")
    }


# --- several steps ----------------------------------------------------------------------------------------------------------------


def _jvp_of_steps(primals: list[Any], dots: list[Any], call: StencilCall, masks: tuple[int, ...], rank: int) -> Any:
    active = [k for k, d in enumerate(dots) if d is not None]

    def run(*xs: Any) -> list[Any]:
        full = list(primals)
        for k, x in zip(active, xs, strict=True):
            full[k] = x
        return by_steps(full, call, masks, rank)

    outs, made = jax.jvp(run, [primals[k] for k in active], [dots[k] for k in active])
    return outs, [d if is_inexact(o.dtype) else ad.Zero(jax.typeof(o).to_tangent_aval()) for o, d in zip(outs, made, strict=True)]


def by_steps(operands: Sequence[Any], call: StencilCall, masks: Sequence[int], rank: int) -> list[Any]:
    """The steps one by one, in a form whose reverse remembers O(sqrt(steps)) grids."""
    changed, rest = list(operands[: call.changed]), list(operands[call.changed :])
    full = (1 << rank) - 1
    own = [full if call.steps > 1 else m for m in masks[: call.changed]]
    first = bind(stencil_xla.after(call, 1), operands, masks, rank)
    masks = (*own, *masks[call.changed :])
    if any(w.shrink != (0, 0) for w in call.window):
        xs = first
        for k in range(2, call.steps + 1):
            xs = jax.checkpoint(functools.partial(_one, call=stencil_xla.after(call, k), masks=masks, rank=rank))(xs, rest)
        return xs
    del changed
    one = functools.partial(_one, call=stencil_xla.after(call, 1), masks=masks, rank=rank)
    left = call.steps - 1
    block = max(1, math.isqrt(left))

    def some(count: int, xs: list[Any], rest: list[Any]) -> list[Any]:
        return list(lax.scan(lambda xs, _: (one(xs, rest), None), xs, None, length=count)[0])

    remembered = jax.checkpoint(functools.partial(some, block))
    xs = list(lax.scan(lambda xs, _: (remembered(xs, rest), None), first, None, length=left // block)[0])
    return some(left % block, xs, rest) if left % block else xs


def _one(xs: list[Any], rest: list[Any], *, call: StencilCall, masks: Sequence[int], rank: int) -> list[Any]:
    return bind(call, [*xs, *rest], masks, rank)


# --- transposition ----------------------------------------------------------------------------------------------------------------


def _transpose(cts: Sequence[Any], *operands: Any, call: StencilCall, masks: tuple[int, ...], rank: int) -> list[Any]:
    linear = [ad.is_undefined_primal(x) for x in operands]
    if not _is_linear(call, linear):
        raise NotImplementedError(f"linear_transpose: {call!r} is not linear in what is transposed, or not known to be")
    if call.steps > 1:
        return _transpose_plainly(cts, operands, functools.partial(by_steps, call=call, masks=masks, rank=rank))
    plain = over_batch(functools.partial(stencil_xla.stencil, call), masks, rank)
    sizes = [w.size for w in call.window]
    if not all(isinstance(n, int) for n in (*sizes, *(d for x in operands for d in _shape(x)))):
        return _transpose_plainly(cts, operands, lambda xs: plain(*xs))
    captured = [k for k in range(call.num_arrays, len(operands)) if linear[k]]
    small = math.prod(sizes) <= SMALL and not call.plans
    empty = any(w.size <= sum(w.keep) for w in call.window)  # nothing is computed
    if small or empty or any(math.prod(_shape(operands[k])) > MOST_CAPTURED for k in captured):
        return _transpose_plainly(cts, operands, lambda xs: plain(*xs))
    try:
        return _Adjoint(cts, operands, linear, call, masks, rank).all()
    except Unsupported:
        return _transpose_plainly(cts, operands, lambda xs: plain(*xs))


def _shape(x: Any) -> tuple[Any, ...]:
    return tuple(x.aval.shape) if ad.is_undefined_primal(x) else tuple(x.shape)


def _is_linear(call: StencilCall, linear: Sequence[bool]) -> bool:
    n = call.num_arrays
    if any(linear[k] and any(call.fills[k]) and any(b.mode == "constant" for b in call.bounds[k]) for k in range(n)):
        return False  # a fill value is no part of the array
    if call.f.program is NO_PROGRAM:
        return False
    args: list[int] = []
    for (k, _), v in zip(call.reads, call.f.jaxpr.invars, strict=False):
        args += [LINEAR if linear[k] else CONSTANT] * slots_of(v.aval.shape, v.aval.dtype)
    args += [CONSTANT] * len(call.coordinates)
    found = degrees(call.f.program, args, [k - n for k in range(n, len(linear)) if linear[k]])
    if call.keeps or call.steps > 1:  # what is kept is linear if, and only if, all of the results are
        return all(linear[: call.changed]) and all(d in (0, LINEAR) for d in found)
    return all(d in (0, LINEAR) for d in found) and OTHER not in found


def _transpose_plainly(cts: Sequence[Any], operands: Sequence[Any], run: Callable[..., list[Any]]) -> list[Any]:
    moved = [k for k, x in enumerate(operands) if ad.is_undefined_primal(x)]

    def of(*xs: Any) -> list[Any]:
        full = list(operands)
        for k, x in zip(moved, xs, strict=True):
            full[k] = x
        return [y for y in run(full) if is_inexact(y.dtype)]

    avals = [operands[k].aval for k in moved]
    outs, pull = jax.vjp(of, *(vary(jnp.zeros(a.shape, a.dtype), axes_of([a])) for a in avals))
    given = [c for c in cts if is_inexact((c.aval if isinstance(c, ad.Zero) else c).dtype)]
    pulled = pull([jnp.zeros_like(o) if isinstance(c, ad.Zero) else c for c, o in zip(given, outs, strict=True)])
    out: list[Any] = [None] * len(operands)
    for k, ct in zip(moved, pulled, strict=True):
        out[k] = ct
    return out


class _Adjoint:
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
        self.inside = [(w.start + w.keep[0], w.start + w.size - w.keep[1]) for w in call.window]
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

            def zeros(a: Any) -> Any:
                return vary(jnp.zeros(a.shape, a.dtype), axes_of([a]))

            points = [zeros(cells[r]) for r in self.moving], [zeros(consts[k - n]) for k in self.captured]
            _, pull = jax.vjp(f, *points)
            reads, captured = pull(cts)
            return [*reads, *captured]

        avals = [*(consts[k] for k in fixed_consts), *results, *(cells[r] for r in fixed)]
        # what depends on captured arrays alone stays with the element: captured arrays are arguments here
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
        n, m = len(self.held), len(self.held) + len(self.cts)
        looked = _looked(_pruned(self.pulled.jaxpr))
        return any(v in looked for v in self.pulled.jaxpr.invars[m:]) and n >= 0

    # --- arrays -----------------------------------------------------------------------------------------------------------------

    def _of_array(self, k: int) -> Any:
        """With all batch axes."""
        reads = [r for r in self.moving if self.call.reads[r][0] == k]
        aval = self.operands[k].aval
        if not reads:
            every = 1 << self.rank
            full = self.arrays[0][1].shape[: self.rank]
            base = jnp.zeros((*full, *aval.shape[self.masks[k].bit_count() :]), aval.dtype)
            out = vary(base, axes_of(self.cts))
            del every
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
        terms = self._terms(reads, around)
        main = terms.stencil([Window(begin, end - begin) for begin, end in there])
        main = self._whole(k, main, there)
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
        for o, s, (begin, end), (first, last) in zip(offsets, sides, there, self.inside, strict=True):
            if (s < 0 and first + o >= begin) or (s > 0 and last - 1 + o < end):
                return False
        return True

    def _terms(self, reads: Sequence[int], around: Sequence[bool]) -> _Terms:
        equations = len(self.pulled.jaxpr.eqns) * len(reads)
        if equations > MOST_EQUATIONS:
            return _Written(self, reads, around)
        return _Terms(self, reads, around)

    def _whole(self, k: int, made: Any, there: Sequence[tuple[int, int]]) -> Any:
        """With zeros at the cells of an array that are not there."""
        if not any(b.lo or b.hi for b in self.call.bounds[k]):
            return made
        widths = [(0, 0, 0)] * self.rank + [(b.lo, b.hi, 0) for b in self.call.bounds[k]]
        widths += [(0, 0, 0)] * (made.ndim - len(widths))
        return lax.pad(made, jnp.zeros((), made.dtype), widths)

    def _folded(self, k: int, terms: _Terms, main: Any, sides: Sequence[int], there: Any, beyond: Any) -> Any:
        """With what is read beyond these sides added to the cells that it is."""
        window, places = [], []
        for s, (begin, end), (lo, hi), b in zip(sides, there, beyond, self.call.bounds[k], strict=True):
            cells = range(begin - lo, begin) if s < 0 else range(end, end + hi) if s > 0 else range(begin, end)
            window.append(Window(cells.start, len(cells)))
            places.append([stencil_xla.place(b.mode, c, begin, end) for c in cells] if s else [begin])
        piece = terms.stencil(window)
        axes = [a for a, s in enumerate(sides) if s]
        for at in itertools.product(*(range(len(places[a])) for a in axes)):
            part = piece
            start = [0] * main.ndim
            for a, b in enumerate(self.call.bounds[k]):
                start[self.rank + a] = b.lo if not sides[a] else 0
            for a, i in zip(axes, at, strict=True):
                part = lax.slice_in_dim(part, i, i + 1, axis=self.rank + a)
                start[self.rank + a] = places[a][i] + self.call.bounds[k][a].origin
            old = lax.slice(main, start, [s + n for s, n in zip(start, part.shape, strict=True)])
            main = lax.dynamic_update_slice(main, old + part, start)
        return main

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
        n = len(self.moving)
        jaxpr = self.pulled.jaxpr
        only = jaxpr.replace(outvars=jaxpr.outvars[n:])
        closed = jax.extend.core.ClosedJaxpr(only, self.pulled.consts)
        window = [Window(first, last - first) for first, last in self.inside]
        spots = self._spots((0,) * self.call.rank)
        made = _bound(closed, self._ordered(), self.arrays, spots, self._told(), self.bounds, window, self.call, self.rank)
        out = []
        for k, x in zip(self.captured, made, strict=True):
            cells = tuple(range(self.rank, self.rank + self.call.rank + self.call.lanes_rank))
            out.append(summed_to(jnp.sum(x, cells), self.masks[k], self.rank))
        return out

    def _ordered(self) -> list[tuple[Any, int]]:
        return self.held

    def _told(self) -> list[int]:
        return list(self.call.coordinates)


class _Terms:
    """What the cells that read a cell make of it, summed."""

    def __init__(self, adjoint: _Adjoint, reads: Sequence[int], around: Sequence[bool]):
        self.a, self.reads, self.around = adjoint, reads, around
        call = adjoint.call
        self.bounds = [self._bounds_of_cotangents(b) if c < len(adjoint.cts) else b for c, b in enumerate(adjoint.bounds)]
        self.spots: dict[tuple[int, tuple[int, ...]], int] = {}
        shifts = [tuple(-o for o in call.reads[r][1]) for r in reads]
        for shift in shifts:
            for spot in adjoint._spots(shift):
                self.spots.setdefault(spot, len(self.spots))
        self.closed = self._traced(shifts)

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
        at = [_int32(axes) for _ in range(d)]

        def flat(*args: Any) -> list[Any]:
            held, values, told = args[:n], args[n : n + len(by_spot)], args[n + len(by_spot) :]
            total = None
            for r, shift in zip(self.reads, shifts, strict=True):
                there = [values[self.spots[s]] for s in a._spots(shift)]
                cell = [self._moved(told[x], shift[x], x) for x in a.call.coordinates]
                (one,) = _outputs(pulled, [a.moving.index(r)])(*held, *there, *cell)
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
        a = self.a
        told = list(range(a.call.rank))
        (made,) = _bound(self.closed, a.held, a.arrays, list(self.spots), told, self.bounds, window, a.call, a.rank)
        return made


class _Written(_Terms):
    """The same where each read's derivative is made first, once for each cell, and written."""

    def __init__(self, adjoint: _Adjoint, reads: Sequence[int], around: Sequence[bool]):
        self.a, self.reads, self.around = adjoint, reads, around
        call = adjoint.call
        jaxpr = adjoint.pulled.jaxpr
        only = jaxpr.replace(outvars=[jaxpr.outvars[adjoint.moving.index(r)] for r in reads])
        closed = jax.extend.core.ClosedJaxpr(only, adjoint.pulled.consts)
        window = [Window(first, last - first) for first, last in adjoint.inside]
        spots = adjoint._spots((0,) * call.rank)
        made = _bound(
            closed, adjoint.held, adjoint.arrays, spots, list(call.coordinates), adjoint.bounds, window, call, adjoint.rank
        )
        full = (1 << adjoint.rank) - 1
        self.made = [(-1, x, full) for x in made]
        modes = [Bounds("wrap" if w else "constant", -first) for w, (first, _) in zip(around, adjoint.inside, strict=True)]
        self.own = [(tuple(modes), (0, 0)) for _ in made]
        self.places = [(c, tuple(-o for o in call.reads[r][1])) for c, r in enumerate(reads)]
        cell = jaxpr.outvars[adjoint.moving.index(reads[0])].aval
        self.summed = jax.make_jaxpr(lambda *xs: [functools.reduce(jnp.add, xs)])(*[cell] * len(made))

    def stencil(self, window: Sequence[Window]) -> Any:
        a = self.a
        (made,) = _bound(self.summed, [], self.made, self.places, [], self.own, window, a.call, a.rank)
        return made


def _int32(axes: Any) -> Any:
    from ..tracing.varying import element_aval

    return element_aval((), np.int32, axes)


def _outputs(closed: Any, which: Sequence[int]) -> Callable[..., list[Any]]:
    """A function of some of its results, with the equations that they need."""
    jaxpr = _pruned(closed.jaxpr.replace(outvars=[closed.jaxpr.outvars[k] for k in which]))
    return jax.extend.core.jaxpr_as_fun(jax.extend.core.ClosedJaxpr(jaxpr, closed.consts))


ad.primitive_jvps[stencil_p] = _jvp
ad.primitive_transposes[stencil_p] = _transpose
__all__ = ["Traced", "by_steps", "hoist"]
