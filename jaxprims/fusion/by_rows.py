"""Reductions of all that is made of rows (a mean of squares of normalised rows), as reductions of each row and then of what these
give: so they are part of a function of rows, which needs not be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from ..tracing.jaxprs import run_equation
from ..tracing.labels import REDUCTIONS
from .graph import Graph, with_equations
from .rows import groups_of


def reduced_by_rows(graph: Graph) -> ClosedJaxpr | None:
    """The function with such reductions so; None if there are none. Derivatives are taken of it as it was: at ties of extremes
    they would be others."""
    reductions = [e for e in graph.eqns if e.primitive.name in REDUCTIONS and not isinstance(e.invars[0], Literal)]
    rank = {id(e): e.invars[0].aval.ndim - len(e.params["axes"]) for e in reductions}  # of what is left
    if graph.with_rules or len(set(rank.values())) < 2:
        return None
    found = {k: rows for rows in groups_of(graph) for k in rows.members}
    loops: dict[int, int] = {}
    for eqn in reductions:
        x, axes = eqn.invars[0], sorted(eqn.params["axes"])
        rows = found.get(graph.producer.get(x, -1))
        if rows is not None and axes == list(range(axes[0], x.aval.ndim)) and axes[0] < len(rows.sizes) < x.aval.ndim:
            loops[id(eqn)] = len(rows.sizes)
    if not loops:
        return None

    def equation(eqn: JaxprEqn, operands: Sequence[Any], value: Callable[[Any], Any]) -> Sequence[Any]:
        if id(eqn) not in loops:
            return run_equation(eqn, operands)
        (x,), axes = operands, sorted(eqn.params["axes"])
        for some in ([a for a in axes if a >= loops[id(eqn)]], [a for a in axes if a < loops[id(eqn)]]):
            x = eqn.primitive.bind(x, **eqn.params | {"axes": tuple(some)})
        return [x]

    return with_equations(graph, equation)
