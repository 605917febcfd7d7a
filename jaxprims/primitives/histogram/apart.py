"""Leaves of a struct that are combined each by itself, and read other arrays: in a loop they are calls of their own.

A mean's counts read indices alone. Outside of loops one pass makes them beside the sums; in a loop whose turns have the same
indices, XLA makes them once, if they are a call.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ...operators.operator import Operator, leaf_operators
from ..ordered.scan_xla import STEPS
from . import xla as histogram_xla
from .call import HistogramCall
from .primitive import by_index


def groups(call: HistogramCall) -> list[list[int]]:
    """A part's leaves by the arrays that they read, if some read only what others do, and others beside it; else []."""
    part = call.parts[0]
    simple = len(call.parts) == 1 and not (part.dest or part.captured or call.sorted or call.deterministic)
    if not simple or len(part.values) < 2 or not _are_apart(part.operator):
        return []
    reads = _read_by_results(call)
    of_leaves = [reads[part.index] | reads[v] for v in part.values]
    if not any(a < b for a, b in itertools.permutations(of_leaves, 2)):
        return []
    return [[k for k, r in enumerate(of_leaves) if r == each] for each in dict.fromkeys(of_leaves)]


def _are_apart(operator: Operator) -> bool:
    """Is each leaf combined by an operation of XLA's, from the identity that this has when it is by itself?"""
    leaves = zip(operator.leaf_names, operator.dtypes, strict=True)
    return all(histogram_xla.scatters(*leaf) for leaf in leaves) and leaf_operators(operator, STEPS) is not None


def histograms(call: HistogramCall, leaves: Sequence[Sequence[int]], *operands: Any) -> list[Any]:
    """An unbatched call as one for each group of leaves."""
    ((part, _, _, index, values),) = call.unfused(operands)
    out: list[Any] = [None] * len(values)
    for group in leaves:
        ops = [STEPS[part.operator.leaf_names[k]] for k in group]
        for k, y in zip(group, by_index(index, [values[k] for k in group], ops, part.num_bins), strict=True):
            out[k] = y
    return out


def _read_by_results(call: HistogramCall) -> list[frozenset[int]]:
    """Which of its arguments each of f's results is made of."""
    jaxpr = call.f.jaxpr
    read = {v: frozenset((k,)) for k, v in enumerate(jaxpr.invars)}
    of = lambda v: frozenset[int]() if hasattr(v, "val") else read.get(v, frozenset())  # noqa: E731
    for eqn in jaxpr.eqns:
        made_of = frozenset[int]().union(*map(of, eqn.invars))
        read |= dict.fromkeys(eqn.outvars, made_of)
    return [of(v) for v in jaxpr.outvars]
