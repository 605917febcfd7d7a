"""What every step of a loop makes of the same arrays, made before it where that is cheaper.

XLA moves that out of a loop by itself, but not out of a kernel.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var, jaxpr_as_fun

from ..tracing.jaxprs import CALLS, CHECKPOINTS, assembled, called, opened, pruned, scan_counts, scatters, variables
from ..tracing.labels import REDUCTIONS
from .body import operations
from .cut import byte_at, bytes_of, read_or_made
from .exact_loops import is_exact_loop
from .graph import Graph, flat_graph
from .positions import of_positions
from .written import IN_LOOPS, SHIFTS

LEAST, DEAR, AGAIN = 2**10, 8, 16
"""Additions of a step, and of a number, below which what it makes stays where it is (a mask, say, by which a stencil is found);
of a number that is made of positions alone, for which nothing is read."""

SORTED, UPDATED = 60, 20
"""Additions that it takes to sort a number, and to update or find one by index."""

_UPDATES = scatters("add", "mul", "min", "max") | {"scatter"}

_MOVED = IN_LOOPS | _UPDATES | frozenset("dot_general cumsum cumprod cummax cummin cumlogsumexp argmax argmin sort top_k".split())
"""What may be made before a loop, which may have no step: pure, and certain to end."""


def before_loop(eqn: JaxprEqn, with_rules: bool) -> ClosedJaxpr | None:
    """A loop as a function of its operands that makes such arrays first; None if there are none."""
    if eqn.effects or eqn.params.get("_split_transpose"):
        return None
    if eqn.primitive.name == "scan":
        return _before_scan(eqn, with_rules)
    return _before_while(eqn, with_rules) if eqn.primitive.name == "while" else None


def _before_scan(eqn: JaxprEqn, with_rules: bool) -> ClosedJaxpr | None:
    consts, carried = scan_counts(eqn)
    step = _Step(eqn.params["jaxpr"], _unchanged(eqn.params["jaxpr"], consts, carried), with_rules)
    if not step.kept:
        return None

    def loop(*operands: Any) -> list[Any]:
        made = step.before(operands)

        def one(carry: Sequence[Any], xs: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            out = step.after(made, [*operands[:consts], *carry, *xs])
            return tuple(out[:carried]), tuple(out[carried:])

        init, xs = tuple(operands[consts : consts + carried]), tuple(operands[consts + carried :])
        how = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
        carry, ys = lax.scan(one, init, xs, **how)
        return [*carry, *ys]

    return jax.make_jaxpr(loop)(*(v.aval for v in eqn.invars))


def _before_while(eqn: JaxprEqn, with_rules: bool) -> ClosedJaxpr | None:
    first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    carried = len(eqn.invars) - first - second
    same = _unchanged(eqn.params["body_jaxpr"], second, carried)
    body = _Step(eqn.params["body_jaxpr"], same, with_rules)
    cond = _Step(eqn.params["cond_jaxpr"], {*range(first), *(k - second + first for k in same if k >= second)}, with_rules)
    if not (cond.kept or body.kept):
        return None

    def loop(*operands: Any) -> list[Any]:
        of_cond, of_body, init = operands[:first], operands[first : first + second], operands[first + second :]
        for_cond, for_body = cond.before([*of_cond, *init]), body.before([*of_body, *init])
        return list(
            lax.while_loop(
                lambda carry: cond.after(for_cond, [*of_cond, *carry])[0],
                lambda carry: tuple(body.after(for_body, [*of_body, *carry])),
                tuple(init),
            )
        )

    return jax.make_jaxpr(loop)(*(v.aval for v in eqn.invars))


def _unchanged(body: Any, consts: int, carried: int) -> set[int]:
    """Which arguments of a loop's body are the same in every step: captured arrays, and what it carries as it is."""
    jaxpr, _ = opened(body)
    passed = {k for k in range(consts, consts + carried) if jaxpr.outvars[k - consts] is jaxpr.invars[k]}
    return {*range(consts), *passed}


@dataclasses.dataclass
class _Step:
    """A loop's body in two parts: what is ``kept`` of the arguments that are the ``same`` in every step, and the rest."""

    body: Any
    same: set[int]
    with_rules: bool

    def __post_init__(self) -> None:
        def nested(eqn: JaxprEqn) -> Callable[..., list[Any]] | None:
            moved = before_loop(eqn, self.with_rules)
            return None if moved is None else jaxpr_as_fun(moved)

        graph = flat_graph(ClosedJaxpr(*opened(self.body)), nested, self.with_rules)
        found = of_positions(graph)
        self.graph = graph if found is None else flat_graph(found, with_rules=self.with_rules)
        self.kept = _kept(self.graph, self.same)

    def before(self, args: Sequence[Any]) -> list[Any]:
        jaxpr = self.graph.jaxpr
        mine = pruned(assembled([], [*jaxpr.constvars, *jaxpr.invars], self.kept, jaxpr.eqns))
        return list(jaxpr_as_fun(ClosedJaxpr(mine, []))(*self.graph.consts, *args))

    def after(self, made: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        jaxpr = self.graph.jaxpr
        eqns = [eqn for eqn in jaxpr.eqns if not set(eqn.outvars) & set(self.kept)]
        mine = pruned(assembled([], [*self.kept, *jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, eqns))
        return list(jaxpr_as_fun(ClosedJaxpr(mine, []))(*made, *self.graph.consts, *args))


def _kept(graph: Graph, same: set[int]) -> list[Var]:
    """What is cheaper to read in every step than to make."""
    fixed = {*graph.jaxpr.constvars, *(graph.jaxpr.invars[k] for k in same)}
    moved: set[Var] = set()
    for eqn in graph.eqns:
        mine = variables(eqn.invars)
        if _may_be_moved(eqn) and fixed.issuperset(mine):
            fixed.update(eqn.outvars)
            moved.update(eqn.outvars)
    if not moved or not all(isinstance(n, int) for v in (*graph.jaxpr.invars, *moved) for n in v.aval.shape):
        return []
    inside = {k for k, eqn in enumerate(graph.eqns) if not moved.issuperset(eqn.outvars)}
    wanted = [v for v in fixed if inside.intersection(graph.users.get(v, ()))]
    byte = byte_at(sum(map(bytes_of, graph.jaxpr.invars)))

    def operands(v: Var) -> list[Var]:
        return graph.operands_of(v) if v in moved else []

    def making(v: Var) -> float:
        eqn = graph.made_by(v) if v in moved else None
        return math.inf if eqn is None else _additions(eqn)

    def all_of(atoms: Sequence[Var]) -> float:
        return sum(_additions(graph.eqns[k]) for k in graph.needed(atoms))

    def is_dear(v: Var) -> bool:
        eqns = [graph.eqns[k] for k in graph.needed([v])]
        of_positions = all(u.aval.size == 1 or graph.made_by(u) in eqns for e in eqns for u in variables(e.invars))
        return all_of([v]) >= (AGAIN if of_positions else DEAR) * v.aval.size

    read, _ = read_or_made(wanted, operands, lambda v: byte.read * bytes_of(v), making)
    kept = [v for v in read if v in moved and is_dear(v)]
    if all_of(kept) < LEAST:
        return []
    made_by = sorted({graph.producer[v] for v in kept})
    return [v for k in made_by for v in graph.eqns[k].outvars if graph.users.get(v)]  # all that one equation makes


def _may_be_moved(eqn: JaxprEqn) -> bool:
    """Is it such a thing, a loop that each element goes through, or a call with rules of its own that makes nothing else?"""
    if is_exact_loop(eqn):
        return True
    if eqn.primitive.name not in CALLS - CHECKPOINTS:
        return eqn.primitive.name in _MOVED and not eqn.effects
    inner = called(eqn)
    return inner is not None and all(map(_may_be_moved, inner[0].eqns))


def _additions(eqn: JaxprEqn) -> float:
    """Shifts are none: a stencil reads what is shifted."""
    if eqn.primitive.name in SHIFTS:
        return 0.0
    if eqn.primitive.name in _UPDATES:
        return float(UPDATED * eqn.invars[2].aval.size)
    if eqn.primitive.name in ("sort", "top_k"):
        return float(SORTED * eqn.invars[0].aval.size)
    if eqn.primitive.name in CALLS and not is_exact_loop(eqn):
        inner = called(eqn)
        return 0.0 if inner is None else sum(map(_additions, inner[0].eqns))
    numbers = eqn.invars[0] if eqn.primitive.name in REDUCTIONS else eqn.outvars[0]
    return float(operations(eqn) * numbers.aval.size)
