"""Reductions of what stencils make, as one kernel that writes nothing but their results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from ...primitives.stencil.reduce import StencilReduceCall, fits, stencil_reduce_p
from ...tracing.jaxprs import assembled, interpret, run_equation, variables
from ..body import Body, operations
from ..graph import flat_graph
from ..pays import DEAR
from ..sites import Site
from .pays import folds
from .stencil import Root, Stencil


@dataclasses.dataclass(frozen=True, eq=False)
class Folded:
    """Reductions, and the stencil whose results they combine."""

    reductions: Body
    stencil: Stencil

    @property
    def sites(self) -> Sequence[Site]:
        return self.reductions.sites

    @property
    def taken(self) -> set[int]:
        return self.reductions.taken | self.stencil.taken

    def in_words(self) -> str:
        eqns = self.reductions.graph.eqns
        inside = {eqns[k].primitive.name for k in self.stencil.taken}
        more = dict.fromkeys(eqns[k].primitive.name for k in sorted(self.reductions.taken))
        every = [self.stencil.in_words(), *(name for name in more if name not in inside)]
        return f"{', '.join(s.eqn.primitive.name for s in self.sites)} of a {', '.join(every)}"


def folded(
    body: Body, call: ClosedJaxpr, inputs: Sequence[Var]
) -> tuple[Folded, list[Var], Callable[[Sequence[Any]], list[Any]]] | None:
    """From a kernel of reductions, which is ``call`` of ``inputs``: it together with the stencil that makes some of these, what
    the two read, and the function of that. None where all that is combined is not such, or better written."""
    graph, flat = body.graph, flat_graph(call)  # newer JAX leaves calls in it
    call = ClosedJaxpr(flat.jaxpr, list(flat.consts))
    made = [v for v in inputs if v in body.given]
    found = _combining(call, [k for k, v in enumerate(inputs) if v in body.given])
    if not made or found is None or len({v.aval.shape for v in made}) > 1:
        return None
    reduction, order, reshapes = found
    stencil = Stencil(graph, [Root(graph.producer[v], graph.eqns[graph.producer[v]]) for v in made], (), graph.jaxpr.outvars)
    if not folds(stencil, body.inside) or _is_written_anyway(body, stencil):
        return None
    making = jax.make_jaxpr(lambda *xs: stencil.run(xs))(*(v.aval for v in stencil.leaves))
    *before, cells = making.jaxpr.eqns
    of_cells = ClosedJaxpr(assembled(making.jaxpr.constvars, making.jaxpr.invars, cells.invars, before), making.consts)
    kept, call_of_cells, call_of_all = reduction.params["rank"], cells.params.get("call"), reduction.params["call"]
    if cells.primitive.name != "stencil" or any(v not in cells.outvars for v in making.jaxpr.outvars):
        return None
    arrays = [v.aval for v in cells.invars[: call_of_cells.num_arrays]]
    if not fits(call_of_cells, arrays, call_of_all) or reduction.invars[0].aval.shape[:kept] != made[0].aval.shape[:kept]:
        return None
    results = [cells.outvars.index(v) for v in making.jaxpr.outvars]
    static = StencilReduceCall(call_of_cells, call_of_all, tuple(results[k] for k in order), kept)
    count, others = len(stencil.leaves), [v for v in inputs if v not in body.given]

    def run(xs: Sequence[Any]) -> list[Any]:
        rest = iter(xs[count:])

        def equation(eqn: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
            if eqn is reduction:
                return stencil_reduce_p.bind(*jaxpr_as_fun(of_cells)(*xs[:count]), *operands[len(order) :], call=static)
            return [None] if any(eqn is e for e in reshapes) else run_equation(eqn, operands)

        return interpret(call.jaxpr, call.consts, [None if v in body.given else next(rest) for v in inputs], equation)

    return Folded(body, stencil), [*stencil.leaves, *others], run


def _combining(call: ClosedJaxpr, arrays: Sequence[int]) -> tuple[JaxprEqn, list[int], list[JaxprEqn]] | None:
    """The equation that combines all elements of these arguments, and of no other arrays: which of them each of its arrays is,
    and the equations that reshape them for it. None if anything else looks at them."""
    source = {call.jaxpr.invars[k]: n for n, k in enumerate(arrays)}
    reshapes, users = [], []
    for eqn in call.jaxpr.eqns:
        if not any(v in source for v in variables(eqn.invars)):
            continue
        if eqn.primitive.name == "reshape":
            source[eqn.outvars[0]] = source[eqn.invars[0]]
            reshapes.append(eqn)
        else:
            users.append(eqn)
    if len(users) != 1 or users[0].primitive.name != "reduce_any_operator":
        return None
    (eqn,) = users
    count, masks, full = eqn.params["call"].num_arrays, eqn.params["masks"], (1 << eqn.params["rank"]) - 1
    from_them = [not isinstance(v, Literal) and v in source for v in eqn.invars]
    if from_them != [k < count for k in range(len(masks))] or any(m != (full if k < count else 0) for k, m in enumerate(masks)):
        return None
    return eqn, [source[v] for v in eqn.invars[:count]], reshapes


def _is_written_anyway(body: Body, stencil: Stencil) -> bool:
    """Is what is combined dear, and wanted by others?"""
    graph, inside = body.graph, body.inside
    wanted = any(u not in inside for r in stencil.sites for u in graph.users[r.eqn.outvars[0]])
    return wanted and sum(operations(graph.eqns[k]) for k in stencil.taken) >= DEAR
