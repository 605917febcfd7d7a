"""Where an array has its extremes: where it equals its maximum, say, which is a comparison in another pass.

An operator on values with their positions takes several times a maximum's instructions: as much as a pass, for one of them, so
that it pays where that pass is made anyway, or where there are several.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn

from .body import Body
from .graph import Graph
from .pays import FEWEST
from .sites import Site, find_sites

LONG_ROW = 512
"""Elements of a row from which on another pass takes less than an operator on pairs."""

_VALUES = {"argmax": jnp.max, "argmin": jnp.min}


def found_by_value(graph: Graph) -> dict[int, Callable[..., list[Any]]]:
    """By equation: positions of extremes as minima of the positions where the extreme is."""
    positioned = [k for k, e in enumerate(graph.eqns) if e.primitive.name in _VALUES]
    if not positioned:
        return {}
    sites = [s for s in find_sites(graph) if s.family == "reduce"]
    return {s.index: _by_value(s.eqn) for s in sites if s.index in positioned and _pays(graph, s, sites)}


def _pays(graph: Graph, site: Site, sites: list[Site]) -> bool:
    row = math.prod(site.sizes[site.kept :])
    if site.elements < FEWEST or row < LONG_ROW or site.lanes or jnp.issubdtype(site.eqn.invars[0].aval.dtype, jnp.bool_):
        return False
    mine = {leaf for leaf, _ in Body(graph, [site], ()).streamed}
    others = [s for s in sites if s.form == site.form and mine <= {leaf for leaf, _ in Body(graph, [s], ()).streamed}]
    first = sum(1 << s.index for s in others)
    return sum(s.positioned for s in others) > 1 or any(graph.needs(s.eqn.invars) & first for s in others)


def _by_value(eqn: JaxprEqn) -> Callable[..., list[Any]]:
    (axis,), dtype, value = eqn.params["axes"], eqn.params["index_dtype"], _VALUES[eqn.primitive.name]

    def found(x: Any) -> list[Any]:
        best = value(x, axis, keepdims=True)
        here = x == best
        if jnp.issubdtype(x.dtype, jnp.inexact):
            here = jnp.where(best == best, here, x != x)  # the first NaN
        places = lax.broadcasted_iota(dtype, x.shape, axis)
        return [jnp.min(jnp.where(here, places, jnp.asarray(x.shape[axis], dtype)), axis)]

    return found
