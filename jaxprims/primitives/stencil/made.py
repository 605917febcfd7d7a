"""Stencils that derivative rules make: of a jaxpr, without what it does not need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from ...operators.traced import make_traced
from ...tracing.jaxprs import looked, pruned, with_arguments
from ...tracing.lower import Unsupported
from .call import StencilCall, Window
from .primitive import bind


def step(
    closed: Any,
    held: Sequence[tuple[Any, int]],
    arrays: Sequence[tuple[int, Any, int]],
    spots: Sequence[tuple[int, tuple[int, ...]]],
    coordinates: Sequence[int],
    bounds: Sequence[Any],
    like: StencilCall,
    rank: int,
    least: int = 0,
) -> Callable[[Sequence[Window]], list[Any]]:
    """One step of a stencil of a jaxpr of (held, what is read at ``spots``, coordinates), without what it does not need: as a
    function of the window. The first ``least`` arrays are wanted whatever it reads."""
    jaxpr, consts = pruned(closed.jaxpr), list(closed.consts)
    if consts:
        raise Unsupported("derivative", "that captures arrays of its own")
    used = looked(jaxpr)
    n, m = len(held), len(held) + len(spots)
    constvars = [k for k in range(n) if jaxpr.invars[k] in used]
    reads = [k for k in range(n, m) if jaxpr.invars[k] in used]
    told = [k for k in range(m, m + len(coordinates)) if jaxpr.invars[k] in used]
    narrow = with_arguments(jaxpr, [jaxpr.invars[k] for k in constvars], [jaxpr.invars[k] for k in (*reads, *told)])
    traced = make_traced(narrow)
    needed = sorted({*range(least), *(spots[k - n][0] for k in reads)} or {0})
    operands = [*(arrays[k][1] for k in needed), *(held[k][0] for k in constvars)]
    masks = [*(arrays[k][2] for k in needed), *(held[k][1] for k in constvars)]

    def at(window: Sequence[Window]) -> list[Any]:
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
        return bind(static, operands, masks, rank)

    return at


def outputs(closed: Any, which: Sequence[int]) -> Callable[..., list[Any]]:
    """A function of some of its results, with the equations that they need."""
    jaxpr = pruned(closed.jaxpr.replace(outvars=[closed.jaxpr.outvars[k] for k in which]))
    return jaxpr_as_fun(ClosedJaxpr(jaxpr, closed.consts))
