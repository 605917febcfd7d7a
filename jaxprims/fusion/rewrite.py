"""A graph rewritten: which sites share a kernel, what their bodies take in, and the program that calls them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal, Var, jaxpr_as_fun

from ..arguments.warnings import FallbackWarning, IdentityWarning
from . import loops
from .body import Body
from .graph import Graph, run_equation
from .pays import pays
from .sites import Site, find_sites, small_reduction

WRITTEN = 6
"""Additions for an element from which on it is cheaper to write a producer that several want, and to read it, than to compute it
again."""


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """Sites of one kernel: a function of the arrays that it reads and adds to."""

    body: Body
    inputs: tuple[Var, ...]
    call: ClosedJaxpr


def rewritten(graph: Graph) -> tuple[ClosedJaxpr, list[Kernel]]:
    """The graph's function, its sites done by kernels; and these."""
    kernels = plan(graph)
    avals = [v.aval for v in graph.jaxpr.invars]
    return jax.make_jaxpr(lambda *xs: run(graph, kernels, xs))(*avals), kernels


def plan(graph: Graph) -> list[Kernel]:
    sites = find_sites(graph)
    tried: set[int] = set()
    while True:
        kernels = _kernels(graph, _merged(graph, sites))
        more = _small_reduction(graph, [k.body for k in kernels], tried)
        if more is None:
            return kernels
        sites = sorted([s for k in kernels for s in k.body.sites] + [more], key=lambda s: s.index)


def _kernels(graph: Graph, groups: Sequence[Sequence[Site]]) -> list[Kernel]:
    """Those of these groups that are faster than XLA, and can be expressed."""
    while True:
        cut = _cuts(graph, groups)
        bodies = [Body(graph, g, cut) for g in groups]
        faster = [pays(b) and not _reads_more(b) for b in bodies]
        if not all(faster):
            groups = [g for g, yes in zip(groups, faster, strict=True) if yes]
            continue
        kernels = [_kernel(b) for b in bodies]
        if all(k is not None for k in kernels):
            return [k for k in kernels if k is not None]
        groups = [half for g, k in zip(groups, kernels, strict=True) for half in ([g] if k is not None else _apart(g))]


def _reads_more(body: Body) -> bool:
    """Does a reduction read more arrays because XLA writes them for others? It can have the reduction in the same loop."""
    return body.sites[0].family == "reduce" and len(body.streamed) > len(Body(body.graph, body.sites, ()).streamed)


def _small_reduction(graph: Graph, bodies: Sequence[Body], tried: set[int]) -> Site | None:
    """The last one outside of kernels that is worth one, and has not been tried."""
    for index in sorted(_evaluated(graph, bodies) - tried, reverse=True):
        tried.add(index)
        site = small_reduction(index, graph.eqns[index])
        if site is not None and pays(body := Body(graph, [site], ())) and _kernel(body) is not None:
            return site
    return None


def _apart(sites: Sequence[Site]) -> list[list[Site]]:
    """Sites that cannot be one kernel, as several; one that cannot be any is left to XLA."""
    return [[s] for s in sites] if len(sites) > 1 else []


def _kernel(body: Body) -> Kernel | None:
    """None where the library's kernels do not express the body."""
    into = loops.targets(body)
    leaves = [v for v, _ in body.leaves]
    given = [x for x in into if x is not None]
    inputs = tuple(dict.fromkeys(x for x in (*leaves, *given) if not isinstance(x, Literal)))

    def call(*xs: Any) -> list[Any]:
        env = dict(zip(inputs, xs, strict=True))
        value = [None if x is None else x.val if isinstance(x, Literal) else env[x] for x in (*leaves, *into)]
        return loops.run(body, value[: len(leaves)], value[len(leaves) :])

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IdentityWarning)
            warnings.simplefilter("error", FallbackWarning)
            closed = jax.make_jaxpr(call)(*(v.aval for v in inputs))
    except Exception as e:
        import os
        if os.environ.get('FDBG'): print('FAIL', [s.eqn.primitive.name for s in body.sites], repr(e)[:300])
        return None
    wanted = [s.eqn.outvars[0].aval for s in body.sites]
    if [(a.shape, a.dtype, a.weak_type) for a in closed.out_avals] != [(a.shape, a.dtype, a.weak_type) for a in wanted]:
        return None
    return Kernel(body, inputs, closed)


# --- which sites share a kernel -----------------------------------------------------------------------------------------------


def _merged(graph: Graph, sites: list[Site]) -> list[Sequence[Site]]:
    groups: list[Any] = []
    leaves: list[set[Any]] = []
    for site in sites:
        mine = set(Body(graph, [site], ()).streamed)
        for group, theirs in zip(groups, leaves, strict=True):
            if group[0].form == site.form and mine & theirs and _independent(graph, [*group, site], groups, group):
                group.append(site)
                theirs |= mine
                break
        else:
            groups.append([site])
            leaves.append(mine)
    return groups


def _independent(graph: Graph, merged: Sequence[Site], groups: Sequence[Sequence[Site]], old: Sequence[Site]) -> bool:
    """Does no site of a kernel need another's result, by way of other kernels either?"""
    bits = 0
    for s in merged:
        bits |= graph.needs(s.eqn.invars)
    mine = sum(1 << s.index for s in merged)
    todo = [g for g in groups if g is not old]
    while not bits & mine:
        reached = [g for g in todo if any(bits >> s.index & 1 for s in g)]
        if not reached:
            return True
        for g in reached:
            todo.remove(g)
            for s in g:
                bits |= graph.needs(s.eqn.invars)
    return False


# --- what is written, and what is computed again ------------------------------------------------------------------------------


def _cuts(graph: Graph, groups: Sequence[Sequence[Site]]) -> set[Var]:
    """Variables that several want and that take longer to compute than to read."""
    cut: set[Var] = set()
    while groups:
        bodies = [Body(graph, g, cut) for g in groups]
        plain = _evaluated(graph, bodies)
        found = next(_dear_and_shared(graph, bodies, plain), None)
        if found is None:
            break
        cut.add(found)
    return cut


def _dear_and_shared(graph: Graph, bodies: Sequence[Body], plain: Collection[int]) -> Iterator[Var]:
    for index in reversed(range(len(graph.eqns))):
        inside = [b for b in bodies if index in b.taken]
        if inside and len(inside) + (index in plain) > 1:
            var = graph.eqns[index].outvars[0]
            if inside[0].cost(var) >= WRITTEN:
                yield var


def _evaluated(graph: Graph, bodies: Sequence[Body]) -> set[int]:
    """The equations that are evaluated outside of kernels."""
    within = {s.index: b for b in bodies for s in b.sites}
    todo: list[Any] = [*graph.jaxpr.outvars, *(v for e in graph.eqns if e.effects for v in e.invars)]
    out, done = set(), set()
    while todo:
        v = todo.pop()
        index = None if isinstance(v, Literal) else graph.producer.get(v)
        if index is None or index in done:
            continue
        done.add(index)
        if index in within:
            body = within[index]
            todo += [leaf for leaf, _ in body.leaves] + loops.targets(body)
            done.update(s.index for s in body.sites)
        else:
            out.add(index)
            todo += graph.eqns[index].invars
    return out


# --- the program --------------------------------------------------------------------------------------------------------------


def run(graph: Graph, kernels: Sequence[Kernel], args: Sequence[Any]) -> list[Any]:
    """The graph's results, each kernel called where its first result is wanted."""
    within = {s.index: k for k in kernels for s in k.body.sites}
    env: dict[Any, Any] = dict(zip((*graph.jaxpr.constvars, *graph.jaxpr.invars), (*graph.consts, *args), strict=True))

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    def make(wanted: Sequence[Any]) -> None:
        todo = [v for v in reversed(wanted) if not isinstance(v, Literal)]
        while todo:
            v = todo[-1]
            if v in env:
                todo.pop()
                continue
            index = graph.producer[v]
            kernel = within.get(index)
            inputs = graph.eqns[index].invars if kernel is None else kernel.inputs
            missing = [x for x in inputs if not isinstance(x, Literal) and x not in env]
            if missing:
                todo += reversed(missing)
            elif kernel is None:
                eqn = graph.eqns[index]
                env.update(zip(eqn.outvars, run_equation(eqn, [value(x) for x in eqn.invars]), strict=True))
            else:
                results = jaxpr_as_fun(kernel.call)(*(env[x] for x in kernel.inputs))
                env.update((s.eqn.outvars[0], r) for s, r in zip(kernel.body.sites, results, strict=True))

    for eqn in graph.eqns:
        if eqn.effects:
            make(eqn.invars)
            env.update(zip(eqn.outvars, run_equation(eqn, [value(x) for x in eqn.invars]), strict=True))
    make(graph.jaxpr.outvars)
    return [value(v) for v in graph.jaxpr.outvars]
