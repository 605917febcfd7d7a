"""``stencil_p``: every cell of a grid from the cells around it, as a jax primitive (Larsen 2010; ``docs/stencils.md``).
Operands: see ``call``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.interpreters import batching

from ...specs.problems import StencilProblem
from ...targets import ffi
from ...targets.registry import register_family
from ...targets.target import Explanation, Target
from ...tracing.varying import axes_of, by_partitioner, vary
from ..avals import result_aval
from ..batches import batch_axes_first, batch_shape, new_primitive, outermost
from ..family import Family, Instead
from . import xla as stencil_xla
from .call import StencilCall, call_spec, of_lines, result_shapes, widest

stencil_p = new_primitive("stencil")


def bind(call: StencilCall, operands: Sequence[Any], masks: Sequence[int] | None = None, rank: int = 0) -> list[Any]:
    """Binds the primitive. Under ``shard_map``, arrays that are replicated are first made to vary like the rest."""
    operands = [jnp.asarray(x) for x in operands]
    axes = axes_of(operands)
    operands = [vary(x, axes) if k < call.num_arrays else x for k, x in enumerate(operands)]
    masks = tuple(masks or (0,) * len(operands))
    return by_partitioner(stencil_p, operands, call=call, masks=masks, rank=rank)


@stencil_p.def_abstract_eval
def _abstract_eval(*avals: Any, call: StencilCall, masks: tuple[int, ...], rank: int) -> list[Any]:
    shapes = result_shapes(call, avals, masks, rank)
    like = next((k for k in range(call.num_arrays) if any(avals[k].sharding.spec)), 0)
    batch = [(masks[like] & (1 << a) - 1).bit_count() if masks[like] >> a & 1 else None for a in range(rank)]
    first = masks[like].bit_count()
    axes = (*batch, *range(first, first + call.rank + call.lanes_rank))
    return [result_aval(avals[like], shape, dtype, axes) for shape, (_, dtype) in zip(shapes, call.results, strict=True)]


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, call: StencilCall, masks: tuple[int, ...], rank: int) -> Any:
    """vmap's axis, in front. Many lines that are all read alike are one grid: a member costs as much as a hundred cells."""
    arrays, captured = dims[: call.num_arrays], dims[call.num_arrays :]
    if call.rank > 1 or rank > 0 or None in arrays or any(d is not None for d in captured):
        return outermost(stencil_p, operands, dims, call=call, masks=masks, rank=rank)
    moved = batch_axes_first(operands, dims)
    out = by_partitioner(stencil_p, moved, call=of_lines(call, moved[0].shape[0]), masks=masks, rank=0)
    return out, [0] * len(out)


batching.primitive_batchers[stencil_p] = _batch


class Stencils(Family):
    """Stencils."""

    def problem(self, target: Target, avals: Sequence[Any], **params: Any) -> StencilProblem:
        call: StencilCall = params["call"]
        masks, rank = params["masks"], params["rank"]
        size = tuple(w.size for w in call.window)
        spec = call_spec(call, avals, masks)
        batch, wraps = batch_shape(avals, masks, rank), tuple(call.changed > 0 and b.mode == "wrap" for b in call.bounds[0])
        return StencilProblem(spec, batch, call.plans, size, widest(call), call.steps, call.changed, wraps)

    def plain_one(self, *operands: Any, **params: Any) -> list[Any]:
        return stencil_xla.stencil(params["call"], *operands)

    def instead(self, target: Target, avals: Sequence[Any], in_loop: bool | None = False, **params: Any) -> Instead | None:
        if not target.takes(self.problem(target, avals, **params)):
            return Instead(functools.partial(self.plain, **params), "plain XLA", "no kernels of functions so large")
        return super().instead(target, avals, in_loop, **params)

    def operation(self, **params: Any) -> str | None:
        return "kept" if params["call"].keeps else "slices"

    def attributes(self, problem: Any, **params: Any) -> dict[str, Any]:
        call: StencilCall = params["call"]
        window = tuple(n for w in call.window for n in (w.start, *w.shrink, *w.keep))
        return {**call.attributes, "window": window, "steps": call.steps}

    def summary(self, problem: Any, explanation: Explanation, **params: Any) -> str:
        call: StencilCall = params["call"]
        cells = " x ".join(str(w.size) for w in call.window)
        modes = list(dict.fromkeys(b.mode for row in call.bounds for b in row))
        steps = f", {call.steps} steps" if call.steps > 1 else ""
        batch = f" (a batch of {' x '.join(map(str, problem.batch))})" if problem.batch else ""
        return f"{cells} cells, {len(call.reads)} reads, {', '.join(modes)}{steps}{batch}"


register_family(Stencils("stencil", "stencil", stencil_p, ffi.STENCIL))
