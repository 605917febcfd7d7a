"""The function that a tree of ``lax.associative_scan`` combines neighbours by: what the first level makes of slices of the leaves."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun

from ..ir.program import Program
from ..operators.classify import recognise
from ..tracing import lanewise
from ..tracing.emit import Unsupported
from ..tracing.jaxprs import assembled, depending_on, structs
from ..tracing.lanewise import OWN, SAME, Lane
from ..tracing.lower import to_program
from .graph import Graph, reached
from .lookup import between


@dataclasses.dataclass(frozen=True, eq=False)
class Combining:
    """``results`` of ``slots``: of variables that are elements of leaves, which of two neighbours, and of which leaf."""

    leaves: list[Any]
    axis: int
    slots: dict[Any, tuple[int, int]]
    captured: list[Any]
    results: list[Any]
    eqns: list[JaxprEqn]

    def of_lane(self, p: Sequence[Any], q: Sequence[Any], captured: Sequence[Any], lanes: Collection[int]) -> tuple[Any, ...]:
        """The combined elements, from one of each leaf, of one lane along these axes, which are to be treated alike."""
        jaxpr = assembled([], [*self.slots, *self.captured], self.results, self.eqns)
        given = [
            Lane((p, q)[which][i], tuple(v.aval.shape), tuple(a if a in lanes else OWN for a in range(v.aval.ndim)))
            for v, (which, i) in self.slots.items()
        ]
        made = lanewise.evaluate(jaxpr, [], [*given, *map(lanewise.constant, captured)])
        return tuple(_settled(x, lanes) for x in made)

    def traced(self, lanes: Collection[int], function: Callable[..., Any] | None = None) -> Jaxpr:
        """The same, or another function, of one of each leaf, of another of each, and of what is captured."""
        shapes = [[n for a, n in enumerate(x.aval.shape) if a not in lanes] for x in self.leaves]
        elements = [jax.ShapeDtypeStruct(shape, x.aval.dtype) for shape, x in zip(shapes, self.leaves, strict=True)]
        function = function or functools.partial(self.of_lane, lanes=lanes)
        return jax.make_jaxpr(function)(elements, elements, structs(self.captured)).jaxpr

    @functools.cached_property
    def program(self) -> Program | None:
        """Of as few lanes as it can be; None if that is too large."""
        for count in range(min(v.aval.ndim for v in self.leaves), self.axis, -1):
            try:
                return to_program(self.traced(range(count)))
            except Unsupported:
                continue
        return None

    @property
    def name(self) -> str | None:
        """Of the operator, where it is one of numbers that is known."""
        program = None if len(self.leaves) > 1 or self.captured else self.program
        return None if program is None or len(program.results) > 1 else recognise(program)

    def made_of_one(self, graph: Graph, slots: dict[Any, tuple[int, int]], i: int) -> tuple[Any, list[JaxprEqn]]:
        """What is made so, for a leaf, of single elements, if it is there, and by which equations: JAX writes a product of two
        matrices otherwise than that of more."""
        wanted = to_program(dataclasses.replace(self, results=[self.results[i]]).traced([self.axis]))
        like = self.results[i].aval
        shape = (*like.shape[: self.axis], 1, *like.shape[self.axis + 1 :])
        depend = depending_on(graph.jaxpr, slots)
        for v in [v for eqn in graph.eqns for v in eqn.outvars if v in depend and v not in slots]:
            if (v.aval.shape, v.aval.dtype) != (shape, like.dtype):
                continue
            eqns, captured = between(graph, slots, [v])
            if not set(captured) <= set(self.captured):
                continue
            made = jaxpr_as_fun(ClosedJaxpr(assembled([], [*slots, *self.captured], [v], eqns), []))

            def function(p: Sequence[Any], q: Sequence[Any], captured: Sequence[Any], made: Callable[..., Any] = made) -> Any:
                given = [jnp.expand_dims((p, q)[which][i], self.axis) for which, i in slots.values()]
                return jnp.squeeze(made(*given, *captured)[0], self.axis)

            try:
                if to_program(self.traced([self.axis], function)) == wanted:
                    return v, eqns
            except Unsupported:
                continue
        return None, []


def combining(graph: Graph, axis: int, elements: Sequence[Any]) -> Combining:
    """The function that makes the second of these of the first, which are the elements of one leaf, level by level. Those of other
    leaves are found where a deeper level has them as the first level has the leaves. Raises Unsupported."""
    count = elements[0].aval.shape[axis]
    if [v.aval.shape[axis] for v in elements] != [count >> k for k in range(count.bit_length())]:
        raise Unsupported("associative_scan", "of other levels")

    def strided(v: Any) -> JaxprEqn | None:
        eqn = graph.made_by(v)
        is_one = eqn is not None and eqn.primitive.name == "slice" and (eqn.params["strides"] or ())[axis : axis + 1] == (2,)
        return eqn if is_one else None

    def operands(pair: tuple[Any, Any]) -> list[tuple[Any, Any]]:
        p, q = map(graph.made_by, pair)
        if p is q or p is None or q is None or strided(pair[0]) is not None:
            return []
        return [both for both in zip(p.invars, q.invars, strict=False) if not any(isinstance(v, Literal) for v in both)]

    levels = {elements[0]: dict(enumerate(elements))}
    slots = dict[Any, tuple[int, int]]()
    leaves = [elements[0]]
    for x in leaves:
        for depth in range(2, len(levels[x])):
            for p, q in reached([(levels[x][1], levels[x][depth])], operands):
                here, deeper = strided(p), strided(q)
                if here is None or deeper is None or here.invars[0].aval.shape[axis] != count:
                    continue
                leaf = here.invars[0]
                if leaf not in leaves:
                    leaves.append(leaf)
                    levels[leaf] = {0: leaf}
                slots[p] = here.params["start_indices"][axis], leaves.index(leaf)
                levels[leaf].setdefault(depth - 1, deeper.invars[0])
    results = [levels[x][1] for x in leaves]
    eqns, captured = between(graph, slots, results)
    return Combining(leaves, axis, slots, captured, results, eqns)


def _settled(x: Lane, lanes: Collection[int]) -> Any:
    """What there is of one lane."""
    x = x.own(*(a for a in range(len(x.shape)) if a not in lanes))
    if any(k not in ((a, SAME) if a in lanes else (OWN,)) for a, k in enumerate(x.labels)):
        raise Unsupported("associative_scan", "its function mixes elements")
    return x.data
