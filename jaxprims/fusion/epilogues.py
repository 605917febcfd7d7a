"""What is elementwise of scans' results, made where these would be stored: no pass of its own, and nothing but it is written."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from jax.extend.core import Literal, Var

from ..primitives.ordered.call import last
from ..tracing import elementwise
from ..tracing.jaxprs import run_in, value_of, variables
from ..tracing.lanewise import OWN
from . import loops
from .as_made import SHORT_ROW_SCANNED
from .body import Body, operations
from .cut import KEPT, READ, bytes_of, read_or_made
from .graph import OUTSIDE, Graph
from .sites import Site
from .stencils.stencil import Root


class Finished:
    """The scans of a body, and equations (``inside``) of which no more is written than of the scans. ``sites``: what is;
    ``again``: what is made for these alone, though others may make it too.

    What these read besides goes through the scans with the elements, as it is.
    """

    def __init__(self, scans: Body, inside: Sequence[int], again: Sequence[int], read: Collection[Var]):
        graph, site = scans.graph, scans.sites[0]
        made = [s.eqn.outvars[0] for s in scans.sites] + [graph.eqns[k].outvars[0] for k in inside]
        self.sites = tuple(
            Root(graph.producer[v], graph.eqns[graph.producer[v]]) for v in made if _is_wanted(graph, v, inside, read)
        )
        inside = sorted({*inside, *again})
        made += [graph.eqns[k].outvars[0] for k in again]
        self.graph, self.scans, self.inside = graph, scans, inside
        operands = dict.fromkeys(v for k in inside for v in variables(graph.eqns[k].invars))
        self.beside = [v for v in operands if v not in made]
        (_, labels), *_ = site.roots
        passed = []
        for v in self.beside:
            mine = (k if n == m else OWN for n, m, k in zip(v.aval.shape, made[0].aval.shape, labels, strict=False))
            passed.append(Site(graph.producer.get(v, 0), site.eqn, "scan", last, ((v, tuple(mine)),), *site.form[1:]))
        apart = (v for v in self.beside if _is_wanted(graph, v, inside, read) or v.aval.shape != made[0].aval.shape)
        cut = {v for v, _ in scans.leaves}.union(v for v in apart if graph.name_of(v) != "iota")
        self.body = Body(graph, [*scans.sites, *passed], cut, scans.given)
        self.leaves = [v for v, _ in self.body.leaves if not isinstance(v, Literal)]
        self.taken = {*self.body.taken, *inside, *(s.index for s in scans.sites)}

    def run(self, read: Sequence[Any]) -> list[Any]:
        env = dict(zip(self.leaves, read, strict=True))
        given = [value_of(v, env) for v, _ in self.body.leaves]
        return loops.finished(self.body, given, self._then, [s.eqn.outvars[0].aval for s in self.sites])

    def _then(self, *leaves: Any) -> list[Any]:
        env: dict[Var, Any] = dict(zip([*(s.eqn.outvars[0] for s in self.scans.sites), *self.beside], leaves, strict=True))
        for eqn in (self.graph.eqns[k] for k in self.inside):
            run_in(env, eqn)
        return [env[s.eqn.outvars[0]] for s in self.sites]


def finished(scans: Body, outside: Collection[int], read: Collection[Var]) -> Finished | None:
    """With what is elementwise of the scans' results among the equations ``outside`` of kernels; None if that is nothing.
    ``read``: what other kernels do."""
    graph = scans.graph
    results = [s.eqn.outvars[0] for s in scans.sites]
    shape, known, bits = results[0].aval.shape, set(results), sum(1 << s.index for s in scans.sites)
    sizes, (_, labels) = scans.sites[0].sizes, scans.sites[0].roots[0]
    along = labels.index(len(sizes) - 1)

    def is_of_short_rows(v: Any) -> bool:
        return sizes[-1] <= SHORT_ROW_SCANNED and v.aval.shape[along] == 1 and v.aval.size > 1

    def fits(v: Any) -> bool:
        if isinstance(v, Literal) or v in known:
            return True
        spreads = v.aval.ndim in (0, len(shape)) and all(n in (1, m) for n, m in zip(v.aval.shape, shape, strict=False))
        return spreads and not (v.aval.ndim and is_of_short_rows(v)) and not graph.needs([v]) & bits

    inside = []
    for k in sorted(outside):
        eqn = graph.eqns[k]
        alike = elementwise.is_elementwise(eqn) and len(eqn.outvars) == 1 and eqn.outvars[0].aval.shape == shape
        if alike and any(v in known for v in variables(eqn.invars)) and all(map(fits, eqn.invars)):
            inside.append(k)
            known.update(eqn.outvars)
    while inside and _written(graph, results, inside, read) > _written(graph, results, (), read):
        inside.pop()
    if not inside:
        return None
    return Finished(scans, inside, _made_again(graph, inside, known, outside), read)


def _made_again(graph: Graph, inside: Sequence[int], made: Collection[Any], outside: Collection[int]) -> list[int]:
    """What else these need, as far as it is cheaper made here than written and read: elementwise equations."""
    shape = graph.eqns[inside[0]].outvars[0].aval.shape

    def making(v: Any) -> float:
        eqn = graph.made_by(v)
        alike = eqn is not None and elementwise.is_elementwise(eqn) and len(eqn.outvars) == 1 and v.aval.shape == shape
        return operations(eqn) * v.aval.size if alike and eqn is not None and graph.producer[v] in outside else math.inf

    def reading(v: Any) -> float:
        there = graph.producer.get(v) not in outside or OUTSIDE in graph.users[v]
        return (READ if there else KEPT) * bytes_of(v)

    wanted = [v for k in inside for v in variables(graph.eqns[k].invars) if v not in made]
    return [graph.producer[v] for v in read_or_made(wanted, graph.operands_of, reading, making)[1]]


def _written(graph: Graph, results: Sequence[Var], inside: Sequence[int], read: Collection[Var]) -> float:
    """Bytes of what is for others alone: what the program returns is written anyway."""
    made = [*results, *(graph.eqns[k].outvars[0] for k in inside)]
    return sum(bytes_of(v) for v in made if _is_wanted(graph, v, inside, read) and OUTSIDE not in graph.users[v])


def _is_wanted(graph: Graph, v: Var, inside: Collection[int], read: Collection[Var]) -> bool:
    """By anything but the equations inside? A kernel that makes some of these again reads what they are of."""
    return v in read or any(u not in inside for u in graph.users[v])
