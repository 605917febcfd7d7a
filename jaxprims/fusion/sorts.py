"""Sorts of short rows: networks of comparisons in registers, many rows at once; XLA calls a function to compare two numbers.

A sort of several operands is a call for each of its results that is wanted. XLA, where it makes these, finds that the sorts are
the same; so does a kernel.
"""

from __future__ import annotations

from jax.extend.core import Jaxpr, JaxprEqn

from ..tracing.jaxprs import called, looked
from ..tracing.sorting import network
from .exact_loops import call_of, is_call_of

NAME = "sorted"
"""Of the call that a sort of several operands becomes."""

LONGEST, LONGEST_BY_KEYS = 64, 24
"""Numbers of a row that a network sorts; if it compares several keys, or other numbers than have integers for them and places."""


def by_result(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr with every sort of short rows of several operands as a call for each result that is wanted."""
    wanted = looked(jaxpr)
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        several = len(eqn.outvars) > 1 and is_short(eqn)
        eqns += [call_of(eqn, v, NAME) for v in eqn.outvars if v in wanted] if several else [eqn]
    return jaxpr.replace(eqns=eqns)


def is_sort(eqn: JaxprEqn) -> bool:
    """Is it one, or the greatest of one?"""
    return eqn.primitive.name in ("sort", "top_k") or is_call_of(eqn, NAME)


def is_short(eqn: JaxprEqn) -> bool:
    """Is it a sort of short rows?"""
    if not is_sort(eqn) or not all(isinstance(n, int) for n in eqn.invars[0].aval.shape):
        return False
    sort, shape = _sort(eqn), eqn.invars[0].aval.shape
    by_code = len(sort.outvars) == 1 or (sort.params.get("num_keys", 1) == 1 and sort.invars[0].aval.dtype.itemsize <= 4)
    return 0 < shape[axis_of(eqn)] <= (LONGEST if by_code else LONGEST_BY_KEYS)


def axis_of(eqn: JaxprEqn) -> int:
    """Along which it sorts."""
    params = _sort(eqn).params
    return int(params["dimension"] if "dimension" in params else params["axis"])


def additions(eqn: JaxprEqn) -> float:
    """That it takes for a number."""
    row, axis = _sort(eqn), axis_of(eqn)
    return sum(2 * len(row.invars) for _ in network(row.invars[0].aval.shape[axis])) / eqn.outvars[0].aval.shape[axis]


def _sort(eqn: JaxprEqn) -> JaxprEqn:
    inner = called(eqn) if is_call_of(eqn, NAME) else None
    return eqn if inner is None else inner[0].eqns[0]
