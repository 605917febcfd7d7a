"""Reductions of all that is made of rows (a mean of squares of normalised rows), as reductions of each row and then of what these
give: so they are part of a function of rows, which needs not be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from ..tracing.jaxprs import run_equation
from ..tracing.labels import REDUCTIONS
from .body import Body
from .graph import OUTSIDE, Graph, with_equations
from .pays import why_not
from .rows import groups_of
from .sites import find_sites


def reduced_by_rows(graph: Graph) -> ClosedJaxpr | None:
    """The function with such reductions so; None if there are none. Derivatives are taken of it as it was: at ties of extremes
    they would be others. On GPUs functions of rows are XLA's."""
    reductions = {k: e for k, e in enumerate(graph.eqns) if e.primitive.name in REDUCTIONS}
    ranks = {e.invars[0].aval.ndim - len(e.params["axes"]) for e in reductions.values()}  # of what is left
    if graph.with_rules or len(ranks) < 2 or jax.default_backend() != "cpu":
        return None
    found = {k: rows for rows in groups_of(graph) for k in rows.members}
    sites = {s.index: s for s in find_sites(graph)}
    loops: dict[int, int] = {}
    for index, eqn in reductions.items():
        rows = found.get(graph.producer.get(eqn.invars[0], OUTSIDE)) if not isinstance(eqn.invars[0], Literal) else None
        first, rank = min(eqn.params["axes"], default=0), eqn.invars[0].aval.ndim
        alone = all(u == OUTSIDE or found.get(u) is not found.get(index, rows) for u in graph.users.get(eqn.outvars[0], ()))
        if rows is None or index not in sites or not alone or len(eqn.params["axes"]) != rank - first:
            continue
        if first < len(rows.sizes) < rank and not _combines_rows(Body(graph, [sites[index]], ())):
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


def _combines_rows(body: Body) -> bool:
    """Is it a kernel as it is, whose elements are short rows?"""
    return body.combined is not None and why_not(body) is None
