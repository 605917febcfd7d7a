"""The function by which a tree of ``lax.associative_scan`` combines neighbours: what its first level makes of slices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Literal

from ..ir.program import Program
from ..operators.classify import is_associative, recognise
from ..tracing import lanewise
from ..tracing.emit import Unsupported
from ..tracing.jaxprs import depending_on, structs
from ..tracing.lanewise import OWN, SAME, Lane
from ..tracing.lower import to_program
from .graph import Graph, reached
from .lookup import between

Slots = dict[Any, tuple[int, int]]
"""Variables that are elements of leaves: which of two neighbours, and of which leaf."""


@dataclasses.dataclass(frozen=True, eq=False)
class Combining:
    """``jaxpr``: of ``slots``, and of what is ``captured``, to a result for each leaf."""

    leaves: list[Any]
    axis: int
    slots: Slots
    jaxpr: Jaxpr
    captured: list[Any]

    def __call__(self, p: Sequence[Any], q: Sequence[Any], captured: Sequence[Any], lanes: Sequence[int]) -> list[Any]:
        """Two neighbours combined: one lane of them along these axes, which are to be treated alike."""
        given = [
            Lane((p, q)[which][i], tuple(v.aval.shape), tuple(a if a in lanes else OWN for a in range(v.aval.ndim)))
            for v, (which, i) in self.slots.items()
        ]
        made = lanewise.evaluate(self.jaxpr, [], [*given, *map(lanewise.constant, captured)])
        return [_settled(x, lanes) for x in made]

    def traced(self, function: Callable[..., Any], lanes: Sequence[int]) -> Jaxpr:
        """Such a function, of one of each leaf, of another of each, and of what is captured."""
        shapes = [[n for a, n in enumerate(x.aval.shape) if a not in lanes] for x in self.leaves]
        elements = [jax.ShapeDtypeStruct(shape, x.aval.dtype) for shape, x in zip(shapes, self.leaves, strict=True)]
        return jax.make_jaxpr(functools.partial(function, lanes=lanes))(elements, elements, structs(self.captured)).jaxpr

    def _program(self, function: Callable[..., Any], lanes: Sequence[int]) -> Program | None:
        try:
            return to_program(self.traced(function, lanes))
        except Unsupported:
            return None

    @functools.cached_property
    def program(self) -> tuple[Program, Sequence[int]] | None:
        """That of one lane along as many axes as can be lanes, and these; None if it is too large, or the scan's is none."""
        try:
            self.traced(self, [self.axis])
        except Unsupported:
            return None
        ranks = range(min(v.aval.ndim for v in self.leaves), self.axis, -1)
        return next(((made, range(n)) for n in ranks if (made := self._program(self, range(n))) is not None), None)

    @property
    def is_associative(self) -> bool:
        """As far as that can be tried."""
        return self.program is not None and is_associative(self.program[0], len(self.program[0].results))

    @property
    def name(self) -> str | None:
        """Of the operator, where it is one of numbers that is known."""
        if self.program is None or len(self.leaves) > 1 or self.captured or len(self.program[0].results) > 1:
            return None
        return recognise(self.program[0])

    def of_one(self, graph: Graph, slots: Slots, i: int, like: Any) -> tuple[Any, Sequence[JaxprEqn]]:
        """What is made so, for a leaf, of single elements, if it is there, and by which equations: JAX writes the product of two
        matrices otherwise than that of more."""
        lanes = [] if self.program is None else self.program[1]
        wanted = self._program(lambda p, q, values, lanes: self(p, q, values, lanes)[i], lanes)
        for v in sorted(depending_on(graph.jaxpr, slots) - slots.keys(), key=graph.producer.__getitem__):
            if (v.aval.shape, v.aval.dtype) != (like.shape, like.dtype):
                continue
            jaxpr, captured = between(graph, list(slots), [v])
            other = dataclasses.replace(self, slots=slots, jaxpr=jaxpr, captured=captured)

            def function(p: Any, q: Any, values: Any, lanes: Sequence[int], other: Combining = other) -> Any:
                known = dict(zip(self.captured, values, strict=True))
                p, q = ([jnp.expand_dims(x, 0) for x in xs] for xs in (p, q))
                rest = [a for a in lanes if a != self.axis]
                return jnp.squeeze(other(p, q, [known[x] for x in other.captured], rest)[0], 0)

            if set(captured) <= set(self.captured) and self._program(function, lanes) == wanted is not None:
                return v, jaxpr.eqns
        return None, []


def combining(graph: Graph, axis: int, elements: Sequence[Any]) -> Combining | None:
    """What makes the second of these of the first, which are the elements of one leaf, level by level. Those of other leaves are
    found where a deeper level has them as the first level has the leaves."""
    count = elements[0].aval.shape[axis]
    if [v.aval.shape[axis] for v in elements] != [count >> k for k in range(count.bit_length())]:
        return None

    def is_slot(v: Any) -> bool:
        if graph.name_of(v) != "slice":
            return False
        params, shape = graph.eqns[graph.producer[v]].params, list(graph.operands_of(v)[0].aval.shape)
        is_half = shape[axis] == count and [*v.aval.shape] == [*shape[:axis], count // 2, *shape[axis + 1 :]]
        return is_half and params["start_indices"][axis] in (0, 1)

    def operands(pair: tuple[Any, Any]) -> list[tuple[Any, Any]]:
        p, q = map(graph.made_by, pair)
        if p is q or p is None or q is None or is_slot(pair[0]):
            return []
        return [both for both in zip(p.invars, q.invars, strict=False) if not any(isinstance(v, Literal) for v in both)]

    leaves, levels, slots = [elements[0]], {elements[0]: list(elements)}, Slots()
    for x in leaves:
        for depth in range(2, len(levels[x])):
            for p, q in reached([(levels[x][1], levels[x][depth])], operands):
                if not is_slot(p) or graph.name_of(q) != "slice":
                    continue
                (leaf,), (deeper,) = graph.operands_of(p), graph.operands_of(q)
                if leaf not in levels:
                    leaves.append(leaf)
                    levels[leaf] = [leaf]
                if len(levels[leaf]) < depth:
                    levels[leaf].append(deeper)
                slots[p] = graph.eqns[graph.producer[p]].params["start_indices"][axis], leaves.index(leaf)
    results = [levels[x][1] for x in leaves]
    halves = [(*x.aval.shape[:axis], count // 2, *x.aval.shape[axis + 1 :]) for x in leaves]
    if [(v.aval.shape, v.aval.dtype) for v in results] != [(n, x.aval.dtype) for n, x in zip(halves, leaves, strict=True)]:
        return None
    return Combining(leaves, axis, slots, *between(graph, list(slots), results))


def _settled(x: Lane, lanes: Collection[int]) -> Any:
    """What there is of one lane."""
    x = x.own(*(a for a in range(len(x.shape)) if a not in lanes))
    if any(k not in ((a, SAME) if a in lanes else (OWN,)) for a, k in enumerate(x.labels)):
        raise Unsupported("associative_scan", "its function mixes elements")
    return x.data
