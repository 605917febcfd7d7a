"""Binary searches in tables (``jnp.searchsorted``, and what is made of it: ``digitize``, ``histogram``, ``interp``), by the place
where a number is to be expected, in place of a loop: of what is prepared of the table once, an element reads one number or none.

A search is known by what its loop does for one element, whatever it has become under transformations. Where a number says which
of two searches is looked at (of edges that ascend or descend), the other one is not made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Primitive, Var, jaxpr_as_fun
from jax.interpreters import mlir

from ..api.bin_finder import place_finder
from ..primitives.batches import new_primitive
from ..tracing import elementwise, lanewise
from ..tracing.emit import Unsupported
from ..tracing.jaxprs import run_equation, with_arguments
from ..tracing.labels import own_shape, wanted
from ..tracing.lanewise import Lane
from .exact_loops import is_exact_loop
from .graph import OUTSIDE, Graph, flat_graph, with_equations

prepared_p = new_primitive("prepared")
search_p = Primitive("search")
"""``search_p.bind(x, table, *captured)``: ``one(x, *captured)`` of each element, for kernels; for XLA, ``jnp.searchsorted``."""


def by_place(graph: Graph) -> ClosedJaxpr | None:
    """The function with its searches so; None if there is none that it is worth it for."""
    if graph.with_rules:
        return None
    searches = {id(eqn): found for eqn in graph.eqns if is_exact_loop(eqn) and (found := _search(graph, eqn)) is not None}
    if not searches:
        return None

    def equation(eqn: JaxprEqn, operands: Sequence[Any], value: Callable[[Any], Any]) -> Sequence[Any]:
        return run_equation(eqn, operands) if id(eqn) not in searches else [searches[id(eqn)](*operands[:2], value)]

    return with_equations(graph, equation)


def _search(graph: Graph, eqn: JaxprEqn) -> Callable[..., Any] | None:
    """What is done in place of a loop, from the table, the elements and the values of all atoms before it."""
    side = _side(graph, eqn)
    if side is None:
        return None
    table, (out,) = eqn.invars[0], eqn.outvars
    made = _prepared(table.aval.size, table.aval.dtype, side, out.aval.size, out.aval.dtype)
    if made is None:
        return None
    prepare, one = made
    condition = _condition(graph, out)

    def search(table: Any, x: Any, value: Callable[[Any], Any]) -> Any:
        captured = prepared_p.bind(table, make=prepare)
        if condition is None:
            return search_p.bind(x, table, *captured, one=one, side=side)
        looked, which = condition
        return search_p.bind(x, table, value(looked), *captured, one=_if(one, which), side=side)

    return search


def _side(graph: Graph, eqn: JaxprEqn) -> str | None:
    """That of the search that a loop does; None if it does another thing."""
    if len(eqn.invars) != 4:
        return None
    table, x, low, high = eqn.invars
    if any(isinstance(v, Literal) for v in (table, x)) or table.aval.ndim != 1 or not jnp.issubdtype(x.aval.dtype, jnp.floating):
        return None
    shape = (*table.aval.shape, *x.aval.shape)
    if not all(isinstance(n, int) for n in shape) or _number(graph, low) != 0 or _number(graph, high) != shape[0]:
        return None
    mine = _of_one(eqn)
    expected = _searches(shape[0], table.aval.dtype, bool(jax.config.jax_enable_x64))
    return next((side for side, loop in expected.items() if loop == mine), None) if mine is not None else None


def _number(graph: Graph, atom: Any) -> int | None:
    """The number that all of an array are."""
    filling = graph.before(atom, ("broadcast_in_dim", "reshape"))
    return int(filling.val) if isinstance(filling, Literal) else None


def _of_one(eqn: JaxprEqn) -> str | None:
    """What a loop does for one element, as text; None where that is not known, as of one that is written for a single element."""
    labels = wanted(eqn, tuple(range(eqn.outvars[0].aval.ndim)))
    if labels is None:
        return None

    def run(*xs: Any) -> Any:
        lanes = [Lane(x, tuple(v.aval.shape), k) for x, v, k in zip(xs, eqn.invars, labels, strict=True)]
        return lanewise.equation(eqn, lanes)[0].data

    own = (jax.ShapeDtypeStruct(own_shape(v, k), v.aval.dtype) for v, k in zip(eqn.invars, labels, strict=True))
    try:
        return str(jax.make_jaxpr(run)(*own))
    except Unsupported:
        return None


@functools.lru_cache(maxsize=64)
def _searches(n: int, dtype: Any, x64: bool) -> dict[str, str | None]:
    """What the installed JAX's search does for one element, by its side."""

    def of(side: str) -> str | None:
        arrays = jax.ShapeDtypeStruct((n,), dtype), jax.ShapeDtypeStruct((2,), dtype)
        graph = flat_graph(jax.make_jaxpr(lambda table, x: jnp.searchsorted(table, x, side=side))(*arrays))
        return next((_of_one(eqn) for eqn in graph.eqns if is_exact_loop(eqn)), None)

    return {side: of(side) for side in ("left", "right")}


@functools.lru_cache(maxsize=256)
def _prepared(n: int, dtype: Any, side: str, elements: int, places: Any) -> tuple[ClosedJaxpr, ClosedJaxpr] | None:
    """(What is prepared of a table, the place of one number by that); None if nothing is worth it."""
    one: list[ClosedJaxpr] = []

    def prepare(table: jax.Array) -> list[Any]:
        place_of = place_finder(table, elements, side)
        if place_of is None:
            return []
        found = jax.make_jaxpr(lambda x: place_of(x).astype(places))(jax.ShapeDtypeStruct((), dtype))
        mine = found.jaxpr
        one.append(ClosedJaxpr(with_arguments(mine, [], [*mine.invars, *mine.constvars]), []))
        return list(found.consts)

    prepared = jax.make_jaxpr(prepare)(jax.ShapeDtypeStruct((n,), dtype))
    return (prepared, one[0]) if one else None


@functools.lru_cache(maxsize=256)
def _if(one: ClosedJaxpr, which: int) -> ClosedJaxpr:
    """The same, if a truth value, which comes first of what is captured, is this one."""

    def run(x: Any, looked: Any, *captured: Any) -> Any:
        (out,) = one.out_avals
        return lax.cond(looked == bool(which), lambda: jaxpr_as_fun(one)(x, *captured)[0], lambda: jnp.zeros((), out.dtype))

    x, *captured = one.in_avals
    return jax.make_jaxpr(run)(x, jax.ShapeDtypeStruct((), bool), *captured)


def _condition(graph: Graph, var: Var) -> tuple[Any, int] | None:
    """The truth value, and which one it has to be, for somebody to look at an array."""
    made = graph.producer[var]
    while graph.users[var] not in ([], [OUTSIDE]) and len(graph.users[var]) == 1:
        eqn = graph.eqns[graph.users[var][0]]
        which, *arms = eqn.invars
        if eqn.primitive.name == "select_n" and which.aval.shape == () and which.aval.dtype == bool and arms.count(var) == 1:
            known = isinstance(which, Literal) or graph.producer.get(which, -1) < made
            return (which, arms.index(var)) if known else None
        if eqn.primitive.name not in elementwise.NAMES or len(eqn.outvars) != 1:
            return None
        (var,) = eqn.outvars
    return None


def _searched(x: Any, table: Any, *captured: Any, one: ClosedJaxpr, side: str) -> Any:
    return jnp.searchsorted(table, x, side=side).astype(one.out_avals[0].dtype)


prepared_p.def_abstract_eval(lambda table, make: list(make.out_avals))
mlir.register_lowering(prepared_p, mlir.lower_fun(lambda table, make: jaxpr_as_fun(make)(table)))
search_p.def_abstract_eval(lambda x, *_, one, side: jax.core.ShapedArray(x.shape, one.out_avals[0].dtype))
mlir.register_lowering(search_p, mlir.lower_fun(_searched, multiple_results=False))
