"""What a kernel reads as XLA makes it, though it could compute it: what is reduced along rows, sorted, or scanned."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Var

from ..tracing.labels import NUMBER_BY_NUMBER, REDUCTIONS
from .body import Body, own_numbers
from .exact_loops import rounds_nothing
from .one_by_one import ONE_BY_ONE
from .pays import is_along_lanes, is_turned, is_wide
from .sorts import is_sort

MOST_APART = 40
"""Numbers of a row up to which a kernel takes the rows of a vector's elements apart at once; XLA goes along longer ones."""


def along_rows(body: Body) -> frozenset[Var]:
    """What XLA reduces along rows that a kernel would take apart: that lie in memory, gone through once and forgotten."""
    graph = body.graph
    if body.of_rows or any(is_turned(leaf) for leaf in body.streamed):
        return frozenset()
    longest = max((own_numbers(*leaf) for leaf in body.streamed), default=0)
    out = set[Var]()
    for k in body.taken:
        eqn = graph.eqns[k]
        if eqn.primitive.name == "dot_general" and _is_along_rows(body, eqn):
            out.add(eqn.outvars[0])
        if eqn.primitive.name not in REDUCTIONS:
            continue
        shape, axes = eqn.invars[0].aval.shape, sorted(eqn.params["axes"])
        row = math.prod(shape[a] for a in axes)
        if not MOST_APART < row <= longest or axes != list(range(len(shape) - len(axes), len(shape))):
            continue
        behind = {graph.eqns[j].primitive.name for j in body.taken if graph.ancestors[k] >> j & 1 and j != k}
        ahead = (j for j in body.taken if graph.ancestors[j] >> k & 1 and j != k)
        if behind <= NUMBER_BY_NUMBER - ONE_BY_ONE and all(body.numbers[j] < row for j in ahead):
            out.add(eqn.outvars[0])
    return frozenset(out)


SHORTEST_MULTIPLIED = 64
"""Bytes of a matrix's row from which on XLA, which goes along it, multiplies it by a vector faster."""


def _is_along_rows(body: Body, eqn: JaxprEqn) -> bool:
    """Is it a product of a vector and a matrix of floats in memory, whose rows lie side by side and are read for nothing else?"""
    (x, y), ((sums, _), (batch, _)) = eqn.invars, eqn.params["dimension_numbers"]
    dtype, last, inside = x.aval.dtype, x.aval.ndim - 1, body.inside
    read = x in {var for var, _ in body.streamed} and y.aval.ndim == 1 and not batch and tuple(sums) == (last,)
    alone = read and not any(u in inside for u in body.graph.users[x] if body.graph.eqns[u] is not eqn)
    return alone and dtype in (jnp.float32, jnp.float64) and x.aval.shape[last] * dtype.itemsize >= SHORTEST_MULTIPLIED


def of_sorted(body: Body) -> frozenset[Var]:
    """What is sorted, and was rounded: others may compare it with what comes of that."""
    if not any(is_sort(s.eqn) for s in body.sites):
        return frozenset()
    eqns = (body.graph.eqns[k] for k in body.taken)
    return frozenset(v for eqn in eqns if not (is_sort(eqn) or rounds_nothing(eqn)) for v in eqn.outvars)


SHORT_ROW_SCANNED = 256
"""Elements of a row up to which a kernel scans many as one, which it cannot where not all that it reads has a number for each."""


def scanned_as_made(body: Body) -> frozenset[Var]:
    """What is scanned along short rows, if it is made of numbers that these have for themselves, or all in common; side by side,
    if columns have numbers for themselves."""
    site = body.sites[0]
    if site.family == "scan" and is_wide(site) and not all(is_along_lanes(body, *leaf) for leaf in body.leaves):
        return frozenset(var for var, _ in site.roots if isinstance(var, Var))
    *rows, n = site.sizes
    known = all(isinstance(k, int) for k in site.sizes)
    if site.family != "scan" or site.lanes or not known or n > SHORT_ROW_SCANNED or math.prod(rows) == 1:
        return frozenset()
    own = any(var.aval.size > 1 for var, labels in body.leaves if (var, labels) not in body.streamed)
    return frozenset(var for var, _ in site.roots if own and isinstance(var, Var))
