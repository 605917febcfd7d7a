"""Derivatives of stencils. A JVP is a stencil, which reads tangents beside the arrays; its transpose is the adjoint stencil.
Several steps are differentiated step by step, and made again for that from what is remembered at the square root of their number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad
from jax.interpreters import partial_eval as pe

from ...ir.linear import CONSTANT, LINEAR, OTHER, degrees
from ...operators.traced import NO_PROGRAM, slots_of
from ...specs.stencil import WIDEST, is_short_row
from ...tracing.lower import Unsupported
from ...tracing.varying import axes_of
from ..batches import over_batch
from ..tangents import along, is_inexact, jvp_of, no_tangent, replaced
from ..transposed import transposed
from ..transposition import known_rule, pulled_back
from . import xla as stencil_xla
from .adjoint import Adjoint
from .call import StencilCall, Window, lanes_of
from .made import step
from .primitive import bind, stencil_p

ONE_BY_ONE = 16
"""Steps that are differentiated one by one, all of their grids remembered meanwhile."""

SMALL, FEW_STEPS = 16_384, 100
"""Cells of a grid whose derivatives are XLA's, of no more steps: of the kernels' pieces each would cost more than all of it."""

MOST_CAPTURED = 64
"""Numbers of a captured array whose derivative is made cell by cell, and summed."""


# --- JVP -----------------------------------------------------------------------------------------------------------------------


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: StencilCall, masks: tuple[int, ...], rank: int) -> Any:
    primals = [jnp.asarray(x) for x in primals]
    dots = [None if isinstance(t, ad.Zero) else t for t in tangents]
    avals = [jax.typeof(x) for x in primals]
    if _small(call, avals[0].shape[: masks[0].bit_count()], call.steps) or _leaves_short_rows(call, avals, masks):
        return jvp_of(_plain(call, masks, rank), primals, tangents)
    outs = stencil_p.bind(*primals, call=call, masks=masks, rank=rank)
    return outs, (_tangents if call.steps == 1 else _tangents_of_steps)(primals, dots, outs, call, masks, rank)


def _plain(call: StencilCall, masks: Sequence[int], rank: int) -> Callable[..., list[Any]]:
    """What XLA makes of it, to be differentiated."""
    return over_batch(functools.partial(stencil_xla.stencil, call, pulled=True), masks, rank)


def _small(call: StencilCall, batch: Sequence[Any], steps: int = 1) -> bool:
    """Is all of it XLA's? Of several steps it remembers each."""
    sizes = [*batch, *(w.size for w in call.window)]
    known = not call.plans and all(isinstance(n, int) for n in sizes)
    return known and math.prod(sizes) <= SMALL and steps <= FEW_STEPS


def _leaves_short_rows(call: StencilCall, avals: Sequence[Any], masks: Sequence[int]) -> bool:
    """Are there steps to be differentiated one by one whose rows kernels leave to XLA? It would make each step's cells again for
    the next one if it had them all in one program, and not in a loop."""
    cells = call.window[-1].size
    if call.plans or not 1 < call.steps <= ONE_BY_ONE or not isinstance(cells, int):
        return False
    width = WIDEST // max(a.dtype.itemsize for a in avals[: call.num_arrays])
    return is_short_row(cells, math.prod(lanes_of(call, avals, masks)), [o[-1] for _, o in call.reads], width)


def _tangents(
    primals: Sequence[Any], dots: Sequence[Any], outs: Sequence[Any], call: StencilCall, masks: Sequence[int], rank: int
) -> list[Any]:
    """Of one step's results."""
    rests = _constant(call, [d is not None for d in dots])  # an array of zeros would not be known to be one
    wanted = [k for k, o in enumerate(outs) if is_inexact(o.dtype) and not rests[k]]
    zeros = [no_tangent(o) for o in outs]
    if not wanted:
        return zeros
    still = call.keeps and any(dots[k] is None for k in wanted)  # zero is kept of some: no array of zeros is made for it
    try:
        run = _tangents_within if still else _tangent_stencil
        made = run(primals, dots, wanted, call, masks, rank)
    except Unsupported:
        every = along(lambda xs: _plain(call, masks, rank)(*xs), primals, dots)[1]
        made = [every[k] for k in wanted]
    return replaced(zeros, wanted, made)


def _tangents_within(
    primals: Sequence[Any], dots: Sequence[Any], wanted: Sequence[int], call: StencilCall, masks: Sequence[int], rank: int
) -> list[Any]:
    """Those of the cells that are computed, among what is kept."""
    inner = [Window(w.start + w.keep[0], w.size - sum(w.keep)) for w in call.window]
    if any(not isinstance(w.size, int) or w.size <= 0 for w in inner):
        raise Unsupported("derivative", "of cells that all keep their value")
    made = _tangent_stencil(primals, dots, wanted, dataclasses.replace(call, window=tuple(inner)), masks, rank)
    at = [w.keep[0] for w in call.window]

    def among(k: int, x: Any, *own: Any) -> Any:
        if own:
            kept = stencil_xla.own_cells(own[0], call.bounds[k], call.window)
            return lax.dynamic_update_slice(kept, x, [*at, *[0] * (x.ndim - len(at))])
        widths = [(*w.keep, 0) for w in call.window] + [(0, 0, 0)] * (x.ndim - len(at))
        return lax.pad(x, jnp.zeros((), x.dtype), widths)

    out, full = [], (1 << rank) - 1
    for k, x in zip(wanted, made, strict=True):
        own = [] if dots[k] is None else [(dots[k], masks[k])]
        fn = over_batch(functools.partial(among, k), [full, *(m for _, m in own)], rank)
        out.append(fn(x, *(d for d, _ in own)))
    return out


def _tangent_stencil(
    primals: Sequence[Any], dots: Sequence[Any], wanted: Sequence[int], call: StencilCall, masks: Sequence[int], rank: int
) -> list[Any]:
    n = call.num_arrays
    active = [k for k in range(n) if dots[k] is not None]
    if call.keeps:  # what is kept of a tangent is an array's
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
            outs = call.f(replaced(held, [k - n for k in captured], held_moving), *replaced(values, moving, values_moving))
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
    bounds = [(call.bounds[k], (0, 0)) for k in active]  # beyond a tangent's ends nothing moves where the fill value is read
    bounds += zip(call.bounds, call.fills, strict=True)
    least = len(wanted) if call.keeps else 0
    return step(jaxpr, held, arrays, spots, list(call.coordinates), bounds, call, rank, least)(call.window)


# --- several steps -------------------------------------------------------------------------------------------------------------


def _tangents_of_steps(
    primals: Sequence[Any], dots: Sequence[Any], outs: Sequence[Any], call: StencilCall, masks: Sequence[int], rank: int
) -> list[Any]:
    """Of several steps' results. Reverse mode remembers the operands for them: all else is made again when it is wanted."""
    wanted = [k for k, o in enumerate(outs) if is_inexact(o.dtype)]
    made = [no_tangent(o) for o in outs]
    active = [k for k, d in enumerate(dots) if d is not None]

    @jax.checkpoint
    def moved(primals: list[Any], moving: list[Any]) -> list[Any]:
        every = along(lambda xs: by_steps(xs, call, masks, rank), primals, replaced([None] * len(primals), active, moving))[1]
        return [every[k] for k in wanted]

    return replaced(made, wanted, moved(list(primals), [dots[k] for k in active])) if wanted and active else made


def by_steps(operands: Sequence[Any], call: StencilCall, masks: Sequence[int], rank: int) -> list[Any]:
    """The steps one by one; of many, calls of about the square root of their number."""
    xs, rest = list(operands[: call.changed]), list(operands[call.changed :])
    block = 1 if call.steps <= ONE_BY_ONE else math.isqrt(call.steps)
    parts = (call.steps - 1) // block
    first = call.steps - parts * block
    xs = bind(stencil_xla.part(call, 1, first), operands, masks, rank)
    masks = (*((1 << rank) - 1,) * call.changed, *masks[call.changed :])

    def further(xs: list[Any], begin: int) -> list[Any]:
        return bind(stencil_xla.part(call, begin, block), [*xs, *rest], masks, rank)

    if block == 1 or any(w.shrink != (0, 0) for w in call.window):
        for k in range(parts):
            xs = further(xs, first + 1 + k * block)
        return xs
    return list(lax.scan(lambda xs, _: (further(xs, 1), None), xs, None, length=parts)[0])


# --- transposition -------------------------------------------------------------------------------------------------------------


def _transpose(cts: Sequence[Any], *operands: Any, call: StencilCall, masks: tuple[int, ...], rank: int) -> list[Any]:
    linear = [ad.is_undefined_primal(x) for x in operands]
    if not _is_linear(call, linear):
        raise NotImplementedError(f"linear_transpose: {call!r} is not linear in what is transposed, or not known to be")
    if call.steps > 1:
        return pulled_back(cts, operands, functools.partial(by_steps, call=call, masks=masks, rank=rank))
    shapes = [tuple(x.aval.shape if u else x.shape) for x, u in zip(operands, linear, strict=True)]
    sizes = [*(w.size for w in call.window), *itertools.chain(*shapes)]
    captured = [k for k in range(call.num_arrays, len(operands)) if linear[k]]
    by_xla = (
        not all(isinstance(n, int) for n in sizes)
        or _small(call, ())
        or any(w.size <= sum(w.keep) for w in call.window)  # nothing is computed
        or any(math.prod(shapes[k]) > MOST_CAPTURED for k in captured)
    )
    if not by_xla:
        with contextlib.suppress(Unsupported):
            return transposed(_adjoint, stencil_p, cts, operands, call=call, masks=masks, rank=rank)
    plain = _plain(call, masks, rank)
    return pulled_back(cts, operands, lambda xs: plain(*xs))


def _adjoint(cts: Sequence[Any], *operands: Any, call: StencilCall, masks: tuple[int, ...], rank: int) -> list[Any]:
    return Adjoint(cts, operands, [ad.is_undefined_primal(x) for x in operands], call, masks, rank).all()


def _is_linear(call: StencilCall, linear: Sequence[bool]) -> bool:
    n = call.num_arrays
    if any(linear[k] and any(call.fills[k]) and any(b.mode == "constant" for b in call.bounds[k]) for k in range(n)):
        return False  # a fill value is no part of the array
    if call.f.program is NO_PROGRAM:
        return False
    found = _degrees(call, linear, LINEAR)
    if call.keeps or call.steps > 1:  # what is kept is linear if, and only if, all of the results are
        return all(linear[: call.changed]) and all(d in (0, LINEAR) for d in found)
    return OTHER not in found


def _degrees(call: StencilCall, which: Sequence[bool], degree: int) -> list[int]:
    """The degrees of f's results, slot by slot, given which of the operands are of ``degree``."""
    n, args = call.num_arrays, []
    for (k, _), v in zip(call.reads, call.f.jaxpr.invars, strict=False):
        args += [degree if which[k] else CONSTANT] * slots_of(v.aval.shape, v.aval.dtype)
    args += [CONSTANT] * len(call.coordinates)
    return degrees(call.f.program, args, [k - n for k in range(n, len(which)) if which[k]], degree)


def _constant(call: StencilCall, unknown: Sequence[bool]) -> list[bool]:
    """Which results depend on nothing that is unknown?"""
    outs = call.f.jaxpr.outvars
    if call.f.program is NO_PROGRAM or call.steps > 1:
        return [False] * len(outs)
    slots = iter(_degrees(call, unknown, OTHER))
    constant = [max([next(slots) for _ in range(slots_of(v.aval.shape, v.aval.dtype))]) <= CONSTANT for v in outs]
    return [c and not (call.keeps and unknown[k]) for k, c in enumerate(constant)]  # what is kept is that array's


pe.custom_partial_eval_rules[stencil_p] = known_rule(stencil_p, _constant)
ad.primitive_jvps[stencil_p] = _jvp
ad.primitive_transposes[stencil_p] = _transpose
