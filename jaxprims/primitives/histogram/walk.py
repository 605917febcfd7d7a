"""``walk_p``: elements, one after the other, meet the state of their bin, leave another one there and write something.

Operands: the index ``[*batch, N]``, arrays ``[*batch, N, *element]``, what the step captures, and the states' leaves
``[*batch, parts * copies, H, *leaf]``. A part is a run of elements with tables of its own, neighbours of which meet different
copies. Results: what is written for each element, ``[*batch, N, *leaf]``, and the states that are left.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import batching

from ...operators.operator import scalar_name
from ...operators.traced import Traced, slots_of
from ...specs.problems import WalkProblem
from ...specs.walk import WalkSpec
from ...targets import ffi
from ...targets.registry import register_family
from ...targets.target import Target
from ..avals import result_aval
from ..batches import batch_shape, new_primitive, outermost
from ..elements import Operands
from ..family import Family

walk_p = new_primitive("walk_by_index")


@dataclasses.dataclass(frozen=True)
class Walk:
    """The static half of a call. ``step`` takes a state's leaves and an element of each array, and gives the state's leaves and
    what is written."""

    step: Traced
    state: int  # leaves
    num_bins: int
    parts: int
    copies: int
    reverse: bool = False

    def split(self, operands: Sequence[Any]) -> tuple[Any, list[Any], list[Any], list[Any]]:
        """Operands as (index, arrays, captured arrays, states)."""
        rest = Operands(operands)
        (index,), arrays = rest.take(1), rest.take(len(self.step.jaxpr.invars) - self.state)
        return index, arrays, rest.take(self.step.captured), rest.rest

    @property
    def leaves(self) -> list[Any]:
        """Avals of what is written, of one element."""
        return [v.aval for v in self.step.jaxpr.outvars[self.state :]]

    @property
    def states(self) -> list[Any]:
        """Avals of a state's leaves."""
        return [v.aval for v in self.step.jaxpr.outvars[: self.state]]


def walk(call: Walk, operands: Sequence[Any]) -> list[Any]:
    """Binds the primitive on unbatched operands."""
    operands = [jnp.asarray(x) for x in operands]
    return list(walk_p.bind(*operands, call=call, masks=(0,) * len(operands), rank=0))


@walk_p.def_abstract_eval
def _abstract_eval(*avals: Any, call: Walk, masks: tuple[int, ...], rank: int) -> list[Any]:
    batch, n = batch_shape(avals, masks, rank), avals[0].shape[masks[0].bit_count()]
    tables = (call.parts * call.copies, call.num_bins)
    written = [result_aval(avals[0], (*batch, n, *a.shape), a.dtype, ()) for a in call.leaves]
    return written + [result_aval(avals[0], (*batch, *tables, *a.shape), a.dtype, ()) for a in call.states]


batching.primitive_batchers[walk_p] = functools.partial(outermost, walk_p)


@functools.lru_cache(maxsize=512)
def _spec(call: Walk, index: Any, captured: tuple[Any, ...]) -> WalkSpec:
    def leaves(variables: Sequence[Any]) -> tuple[tuple[str, int], ...]:
        return tuple((scalar_name(v.aval.dtype), slots_of(v.aval.shape, v.aval.dtype)) for v in variables)

    jaxpr = call.step.jaxpr
    state, arrays = leaves(jaxpr.invars[: call.state]), leaves(jaxpr.invars[call.state :])
    uniforms = tuple(scalar_name(d) for d in captured)
    written = leaves(jaxpr.outvars[call.state :])
    return WalkSpec(scalar_name(index), call.reverse, arrays, uniforms, state, written, call.step.program)


class Walks(Family):
    """Walks through elements."""

    def problem(self, target: Target, avals: Sequence[Any], **params: Any) -> WalkProblem:
        call: Walk = params["call"]
        index, _, captured, _ = call.split(avals)
        spec = _spec(call, np.dtype(index.dtype), tuple(np.dtype(a.dtype) for a in captured))
        batch = batch_shape(avals, params["masks"], params["rank"])
        return WalkProblem(spec, batch, (), index.shape[-1], call.num_bins, call.parts, call.copies)

    def attributes(self, problem: Any, **params: Any) -> dict[str, Any]:
        return {"bins": problem.bins, "parts": problem.parts, "copies": problem.copies}

    def plain_one(self, *operands: Any, **params: Any) -> list[Any]:
        call: Walk = params["call"]
        index, arrays, captured, states = call.split(operands)
        n = index.shape[0]
        starts = jnp.arange(call.parts) * n // call.parts
        part = jnp.searchsorted(starts, jnp.arange(n), side="right") - 1
        table = part * call.copies + jnp.arange(n) % call.copies
        kept = (index >= 0) & (index < call.num_bins)

        def step(states: list[Any], element: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
            kept, at, xs = element[0], (element[1], element[2]), element[3:]
            out = call.step(captured, *(s[at] for s in states), *xs)
            new = [s.at[at].set(jnp.where(kept, y, s[at])) for s, y in zip(states, out, strict=False)]
            return new, [jnp.where(kept, y, jnp.zeros_like(y)) for y in out[call.state :]]

        elements = (kept, table, jnp.where(kept, index, 0), *arrays)
        states, written = jax.lax.scan(step, states, elements, reverse=call.reverse)
        return [*written, *states]


register_family(Walks("walk", "walk by index", walk_p, ffi.WALK))
