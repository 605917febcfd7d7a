"""What a whole plan takes: its kernels, and the loops that XLA makes of the rest, in additions."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from jax.extend.core import Var

from ..tracing.jaxprs import variables
from ..tracing.labels import REDUCTIONS
from .body import Body, operations
from .cut import byte_at, bytes_of
from .epilogues import Finished
from .graph import Graph, reached
from .kernels import Kernel
from .stencils.folded import Folded
from .stencils.stencil import Stencil
from .written import A_LOOP, BEGIN_ROW, IN_REDUCTION, MADE_WITHIN, is_written_by_xla

SAVED = 0.97
"""Of what a plan takes, from which on another is cheaper for certain."""

A_CALL = 2**16
"""What a call of a kernel takes beside its elements, in additions."""

A_STEP = 20
"""Additions that it takes a kernel to add a number to its bin or to go a step, XLA twice as many; and those that it takes XLA to
add a number of a few columns, and more to read one by index in the loop of a reduction."""

A_VECTOR = 8
"""Columns side by side from which on XLA adds vectors."""

PRODUCTS = 4
"""Multiplications and additions of a product of matrices in the time of one."""


def bytes_around(graph: Graph) -> float:
    """Of what a program is given and returns; infinite if that is not known."""
    mine = set(variables((*graph.jaxpr.invars, *graph.jaxpr.constvars, *graph.jaxpr.outvars)))
    known = all(isinstance(n, int) for v in mine for n in v.aval.shape)
    return sum(map(bytes_of, mine)) if known else math.inf


def price(graph: Graph, kernels: Sequence[Kernel], by_xla: Collection[int]) -> float:
    """Of these kernels, if XLA evaluates these equations beside them."""
    written = _written(graph, kernels, by_xla)
    loops = {v: _loop(graph, v, written, by_xla) for v in written}
    made = written | {v for k in kernels for v in k.results}
    byte = byte_at(sum(map(bytes_of, {*graph.jaxpr.invars, *graph.jaxpr.constvars, *made})))
    read = [*(v for k in kernels for v in k.inputs), *(v for _, mine in loops.values() for v in mine)]
    moved = byte.read * sum(map(bytes_of, read)) + byte.kept * sum(map(bytes_of, made))
    by_loops = sum(_by_xla(graph, v, inside) for v, (inside, _) in loops.items())
    return moved + by_loops + sum(A_CALL + _in_kernel(k.body) for k in kernels)


def _written(graph: Graph, kernels: Sequence[Kernel], by_xla: Collection[int]) -> set[Var]:
    """What XLA's loops write."""
    read = {v for k in kernels for v in k.inputs}
    made = ((k, v) for k in by_xla for v in graph.eqns[k].outvars)
    return {v for k, v in made if v in read or _is_alone(graph, k) or is_written_by_xla(graph, v, by_xla)}


def _is_alone(graph: Graph, index: int) -> bool:
    """Is what an equation makes written, whoever wants it?"""
    return graph.eqns[index].primitive.name not in MADE_WITHIN


def _loop(graph: Graph, v: Var, written: Collection[Var], by_xla: Collection[int]) -> tuple[set[int], set[Var]]:
    """The equations of the loop that writes a variable, and what it reads."""

    def is_read(x: Var) -> bool:
        return x in written or graph.producer.get(x) not in by_xla

    def makers(k: int) -> list[int]:
        return [graph.producer[x] for x in variables(graph.eqns[k].invars) if not is_read(x)]

    inside = {*reached([graph.producer[v]], makers)}
    return inside, {x for k in inside for x in variables(graph.eqns[k].invars) if is_read(x)}


def _by_xla(graph: Graph, v: Var, inside: Collection[int]) -> float:
    """Of the loop that writes a variable."""
    index, numbers = graph.producer[v], v.aval.size
    last, apart = graph.eqns[index], _is_alone(graph, index)
    name, reduced = last.primitive.name, last.primitive.name in REDUCTIONS
    out = float(A_LOOP)
    for eqn in (graph.eqns[k] for k in inside if k != index or not apart):
        more = A_STEP if reduced and eqn.primitive.name == "gather" else 0
        out += (operations(eqn) + more) * eqn.outvars[0].aval.size
    if reduced:
        x = last.invars[0].aval
        beside = math.prod(x.shape[max(last.params["axes"], default=0) + 1 :])
        each = IN_REDUCTION if beside == 1 else 2 if beside >= A_VECTOR else A_STEP
        return out + each * x.size + BEGIN_ROW * numbers * (beside == 1)
    if name == "dot_general":
        return out + operations(last) * numbers / PRODUCTS
    if name.startswith("scatter"):
        return out + 2 * A_STEP * last.invars[1].aval.size
    return out + PRODUCTS * numbers * apart


def _in_kernel(body: Body | Stencil | Finished | Folded) -> float:
    """Of a kernel's elements."""
    if isinstance(body, Folded):
        return _in_kernel(body.reductions) + _in_kernel(body.stencil)
    if isinstance(body, Stencil):
        return body.layout.work * math.prod(body.shape)
    eqns = body.graph.eqns
    if isinstance(body, Finished):
        return _in_kernel(body.scans) + sum(operations(eqns[k]) * eqns[k].outvars[0].aval.size for k in body.inside)
    once = {k for k in body.taken if (body.of_rows and body.numbers[k] == 1) or body.graph.is_constant(eqns[k].outvars[0])}
    made = sum(operations(eqns[k]) * body.times(k) for k in body.taken - once)
    combined = sum(s.elements * (1 if s.family in ("reduce", "map", "rows") else A_STEP) for s in body.sites)
    return made + combined
