"""``stencil_reduce_p``: a reduction of what a stencil makes, which is not written where a target can do without. Operands: the
stencil's arrays, what its f captures, then what the reduction's f and operator capture. There is no batch: axes of the grid in
front of those that are reduced are the results'.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from ...operators.traced import Traced, make_traced
from ...specs.problems import StencilReduceProblem
from ...targets import ffi
from ...targets.plans import Plan
from ...targets.registry import register_family
from ...targets.target import Explanation, Target
from ...tracing.jaxprs import capturing, structs
from .. import divided
from ..batches import new_primitive
from ..elements import Element
from ..family import Family
from ..ordered import reduce
from ..ordered.call import OrderedCall, spec_of
from . import primitive as stencil
from .call import StencilCall, array_cells

stencil_reduce_p = new_primitive("reduce_of_stencil")


@dataclasses.dataclass(frozen=True)
class StencilReduceCall:
    """``order``: which of the stencil's results each array of the reduction is. The grid's axes from number ``kept`` on, and its
    lanes, are the one axis that is reduced."""

    stencil: StencilCall
    reduce: OrderedCall
    order: tuple[int, ...]
    kept: int

    @property
    def line(self) -> int:
        """Among the arrays that its kernel captures, that of a line's coordinates."""
        return self.stencil.f.captured + self.reduce.f.captured

    @property
    def plans(self) -> tuple[Plan, ...]:
        return self.reduce.plans


MOST_OUTSIDE = 64
"""A grid has at most so many cells more than twice those of an array, on any axis: handlers refuse others."""


def fits(stencil: StencilCall, arrays: Sequence[Any], reduce: OrderedCall) -> bool:
    """May the two be one call? Cells are of one number each. ``arrays``: the avals of the stencil's."""
    one_step = stencil.steps == 1 and not stencil.keeps
    numbers = not any(shape for shape, _ in stencil.results)
    two_ways = stencil.lanes_rank > 0 or reduce.num_arrays < len(reduce.positions)
    counts = stencil.rank - 1 in stencil.coordinates and two_ways  # along the rows
    sizes = [max(x.shape[axis] for x in arrays) for axis in range(stencil.rank)]
    within = all(w.size <= 2 * n + MOST_OUTSIDE for w, n in zip(stencil.window, sizes, strict=True))
    plain = not reduce.operator.large and not reduce.init and reduce.inner_rank == 0
    return one_step and numbers and within and plain and not counts


@stencil_reduce_p.def_abstract_eval
def _abstract_eval(*avals: Any, call: StencilReduceCall) -> list[Any]:
    return [v.aval for v in jax.make_jaxpr(functools.partial(one_after_the_other, call))(*avals).jaxpr.outvars]


def one_after_the_other(call: StencilReduceCall, *operands: Any) -> list[Any]:
    """By the two primitives: the grid is written."""
    count = call.stencil.num_arrays + call.stencil.f.captured
    made = stencil.bind(call.stencil, operands[:count])
    arrays = [made[k].reshape(*made[k].shape[: call.kept], -1) for k in call.order]
    masks = ((1 << call.kept) - 1,) * len(arrays) + (0,) * (len(operands) - count)
    return list(reduce.reduce_p.bind(*arrays, *operands[count:], call=call.reduce, masks=masks, rank=call.kept))


@functools.lru_cache(maxsize=512)
def _of_reads(stencil: StencilCall, then: Traced, order: tuple[int, ...], positions: tuple[Any, ...]) -> Traced:
    """What the reduction's f makes of what the stencil's makes of its reads. ``positions``: of the former, as the reduction has
    them. The coordinate on the innermost axis is one more position, those on the others are captured: an int32 for each axis."""
    f, along = stencil.f, stencil.rank - 1
    reads = len(stencil.reads)

    def composed(captured: Any, of_then: Any, line: Any, *args: Any) -> list[Any]:
        at = [args[-1] if axis == along else line[axis] for axis in stencil.coordinates]
        made, places = f(captured, *args[:reads], *at), iter(args[reads:])
        cells = (made[k] for k in order)
        return then(of_then, *(next(cells if p is None else places) for p in positions))

    consts, own, line = structs(f.jaxpr.constvars), structs(then.jaxpr.constvars), jax.ShapeDtypeStruct((stencil.rank,), np.int32)
    places = [jax.ShapeDtypeStruct((), p) for p in _places(stencil, positions)]
    closed = jax.make_jaxpr(composed)(consts, own, line, *structs(f.jaxpr.invars[:reads]), *places)
    n = len(consts) + len(own) + 1
    return make_traced(capturing(closed.jaxpr, n))


def _places(stencil: StencilCall, positions: Sequence[Any]) -> list[Any]:
    """The dtypes of the positions that f is told."""
    return [*(p for p in positions if p is not None), *[np.dtype(np.int32)] * (stencil.rank - 1 in stencil.coordinates)]


class StencilReductions(Family):
    """Reductions of stencils."""

    def problem(self, target: Target, avals: Any, **params: Any) -> StencilReduceProblem:
        """That of the reduction, whose elements are what the stencil reads."""
        call: StencilReduceCall = params["call"]
        cells = array_cells(call.stencil, avals, (0,) * len(avals))
        elements: list[Element] = [cells[k] for k, _ in call.stencil.reads]
        places = _places(call.stencil, call.reduce.positions)
        f = _of_reads(call.stencil, call.reduce.f, call.order, call.reduce.positions)
        inner = dataclasses.replace(call.reduce, f=f, positions=(*(None for _ in elements), *places))
        dtypes = [np.dtype(a.dtype) for a in avals[call.stencil.num_arrays :]]
        dtypes.insert(call.line, np.dtype(np.int32))
        spec = spec_of(inner, (*elements, *(((), p) for p in places)), tuple(dtypes), 1)
        sizes = [w.size for w in call.stencil.window]
        n = math.prod(sizes[call.kept :]) * _unit(call, avals)
        return StencilReduceProblem(spec, tuple(sizes[: call.kept]), call.plans, n, 1)

    def plain_one(self, *operands: Any, **params: Any) -> list[Any]:
        return one_after_the_other(params["call"], *operands)

    def attributes(self, problem: Any, **params: Any) -> dict[str, Any]:
        call: StencilReduceCall = params["call"]
        return {
            "reads": tuple(n for array, offsets in call.stencil.reads for n in (array, *offsets)),
            **call.stencil.attributes,
            "window": tuple(n for w in call.stencil.window for n in (w.start, w.size)),
            "kept": call.kept,
            "line": call.line,
            "along": int(call.stencil.rank - 1 in call.stencil.coordinates),
        }

    def lower(self, ctx: Any, *operands: Any, target: Target, **params: Any) -> Any:
        call: StencilReduceCall = params["call"]
        count = divided.devices_of(ctx)
        layout = divided.layouts[self.primitive](ctx.avals_in, **params) if count > 1 else None
        if layout is not None and layout.communication:
            whole = lambda *xs: tuple(self.primitive.bind(*xs, **params))  # noqa: E731
            return divided.lower(ctx, operands, layout, whole, count)
        if layout is not None:  # each of the two knows how it is done by several
            return mlir.lower_fun(functools.partial(self.plain, **params))(ctx, *operands)
        problem = self.problem(target, ctx.avals_in, **params)
        target.compile(problem)
        attributes = {**self.attributes(problem, **params), "unit": _unit(call, ctx.avals_in)}
        return target.lower(ctx, self.call_target, operands, problem, (0,) * len(operands), 0, attributes, {})

    def summary(self, problem: Any, explanation: Explanation, **params: Any) -> str:
        call: StencilReduceCall = params["call"]
        cells = " x ".join(str(w.size) for w in call.stencil.window)
        return f"{cells} cells, {len(call.stencil.reads)} reads of a stencil; op {call.reduce.operator.name or 'unnamed'}"


def _unit(call: StencilReduceCall, avals: Any) -> int:
    return math.prod(avals[0].shape[call.stencil.rank : call.stencil.rank + call.stencil.lanes_rank])


register_family(StencilReductions("stencil_reduce", "reduction of a stencil", stencil_reduce_p, ffi.STENCIL_REDUCE))
