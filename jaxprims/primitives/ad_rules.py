"""Derivative rules of reductions by recognised operators: the same for histograms, reductions and segments, whatever it is that
says which elements are combined.

A rule takes the elements of one group of leaves, their results and tangents (None: zero), and gives the results' tangents. With
it come ``start``, what was combined in before the elements (a histogram's dest, a reduction's init), and its tangents.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..operators.invariant import Invariant, combined, invariant_of, solved, vectors
from ..operators.operator import Operator
from .elements import mapped
from .tangents import like

Leaves = list[Any]


class Groups(abc.ABC):
    """Which elements are combined."""

    @abc.abstractmethod
    def combine(self, ops: Sequence[Callable[..., Any]], values: Leaves, start: Leaves | None = None) -> Leaves:
        """Each group's elements combined, every leaf by a function of ``jax.numpy``; from ``start``, one for each group."""

    def reduced(self, f: Callable[..., Any], op: Callable[..., Any], value: Any, name: str | None = None) -> Leaves | None:
        """Each group's tuples, which ``f`` makes of its elements, combined by ``op``, in one pass that writes nothing else. None
        where that is not better than to compute the tuples first. ``name``: of an operator that would have none."""
        return None

    def weighed(self, weigh: Callable[..., Any], value: Any, x: Any, dot: Any) -> Any:
        """Each group's sum of ``weigh(value, the group's x) * dot`` (without ``dot`` where that is None), in one pass that writes
        nothing else. None where that is not better than to compute the weights first. ``weigh`` is a function of a module."""
        return None

    def sum(self, values: Any) -> Any:
        """Each group's sum of what has just been computed, element by element."""
        return self.combine([jnp.add], [values])[0]

    def numbers(self, mask: Any, dtype: Any) -> Any:
        """A mask of elements as 0 and 1, kept as such: XLA would keep the booleans, and on CPUs it has taken 19 ns to make a
        number of one."""
        return jax.lax.optimization_barrier(mask.astype(dtype))

    @abc.abstractmethod
    def gather(self, x: Any) -> Any:
        """At each element its group's ``x``, or what broadcasts to that; 0 for elements of none."""

    @abc.abstractmethod
    def inside(self) -> Any:
        """Which elements are of any group; None: all."""


def rule_tangents(
    groups: Groups,
    operator: Operator,
    values: Leaves,
    start: Leaves | None,
    out: Leaves,
    dot: Leaves,
    start_dot: Leaves,
    positive: frozenset[int],
) -> Leaves | None:
    """Each leaf's tangent, None for zero; no list at all if there is no rule for the operator. ``positive``: leaves whose values
    are known to be."""
    tangents: Leaves = [None] * len(values)
    for members in operator.derivative_groups:
        leaves = members.leaves
        if all(dot[k] is None and start_dot[k] is None for k in leaves):
            continue
        rule = _WEIGHTED.get(members.name or "") if members.kind == "result" else _RULES.get(members.kind)
        if rule is None:
            inv = invariant_of(operator) if start is None else None
            return None if inv is None or not inv.counters <= positive else by_fields(groups, operator, inv, values, out, dot)
        mine = None if start is None else [start[k] for k in leaves]
        of = ([xs[k] for k in leaves] for xs in (values, out, dot, start_dot))
        for k, t in zip(leaves, rule(groups, members.name or "", next(of), mine, *of), strict=True):
            tangents[k] = t
    return tangents


def _weighted_sum(groups: Groups, weight: Any, dot: Any, start_weight: Any, start_dot: Any) -> Any:
    """Σ weightᵢ · v̇ᵢ by index, plus start's own."""
    return _with_start(None if dot is None else groups.sum(weight * dot), start_weight, start_dot)


def _with_start(total: Any, start_weight: Any, start_dot: Any) -> Any:
    """Every rule ends like this."""
    if start_dot is not None:
        mine = start_weight * start_dot
        total = mine if total is None else total + mine
    return total


# --- the rules --------------------------------------------------------------------------------------------------------


def _add_rule(groups: Groups, name: str, values: Leaves, start: Any, out: Leaves, dot: Leaves, start_dot: Leaves) -> Leaves:
    if dot[0] is None:
        return start_dot
    return groups.combine([jnp.add], dot, None if start_dot[0] is None else start_dot)


def _select_rule(groups: Groups, name: str, values: Leaves, start: Any, out: Leaves, dot: Leaves, start_dot: Leaves) -> Leaves:
    """min, max: ties share evenly, as in ``jax.lax.reduce_max``."""
    value, x = values[0], out[0]
    count = groups.weighed(_won, value, x, None)
    total = None if count is None or dot[0] is None else groups.weighed(_won, value, x, dot[0])
    if count is None or (total is None and dot[0] is not None):
        won = groups.numbers(value == groups.gather(x), x.dtype)
        best, n = _BEST.get(name), value.shape[0]
        few = value.ndim == 1 and isinstance(n, int) and n <= SHORT_ROW
        given = jax.lax.stop_gradient(value)
        ties = None if best is None or few else groups.reduced(_once, _counting(best), given, f"{name}, counted")
        count = groups.sum(won) if ties is None else jnp.where(ties[0] == x, ties[1], 0).astype(x.dtype)  # start may be the best
        total = None if dot[0] is None else groups.sum(won * dot[0])
    start_won = None
    if start is not None:
        start_won = (start[0] == x).astype(x.dtype)
        count = count + start_won
    return [_shared(_with_start(total, start_won, start_dot[0]), count, x == x)]  # NaN is equal to none


def _shared(total: Any, count: Any, some: Any) -> Any:
    """Among so many winners; 0 unless there are ``some``. A cotangent is divided as well: what makes it (a cosine, say) XLA then
    does not make anew at each element, as it would in front of a product. The quotient is chosen, not what is divided: backwards
    it comes last, and nothing is chosen at each element. The count is read once, so that XLA makes it where it divides."""
    return None if total is None else jnp.where(some, total / jnp.maximum(count, 1), 0)


def _won(value: Any, x: Any) -> Any:
    return (value == x).astype(x.dtype)


SHORT_ROW = 256
"""Elements of a row whose ties XLA counts faster: it fuses the comparison with the sum."""

_BEST: dict[str, Callable[..., Any]] = {"max": jnp.maximum, "min": jnp.minimum}


def _once(v: Any) -> Any:
    return v, jnp.float32(1)


@functools.cache
def _counting(best: Callable[..., Any]) -> Callable[..., Any]:
    """The best and how many are equal to it; of NaN none is."""

    def op(a: Any, b: Any) -> Any:
        x = best(a[0], b[0])
        return x, jnp.where(a[0] == x, a[1], 0) + jnp.where(b[0] == x, b[1], 0)

    return op


def _arg_rule(groups: Groups, name: str, values: Leaves, start: Any, out: Leaves, dot: Leaves, start_dot: Leaves) -> Leaves:
    """argmin, argmax on (value, index): the winner's tangent; equal pairs share evenly."""

    def won(value: Any, position: Any, x: Any, best: Any) -> Any:
        same = (value == x) | ((value != value) & (x != x))
        return (same & (position == best)).astype(x.dtype)

    mine = won(values[0], values[1], groups.gather(out[0]), groups.gather(out[1]))
    count = groups.sum(mine)
    start_won = None
    if start is not None:
        start_won = won(start[0], start[1], out[0], out[1])
        count = count + start_won
    total = _weighted_sum(groups, mine, dot[0], start_won, start_dot[0])
    second = None
    if dot[1] is not None or start_dot[1] is not None:
        second = _weighted_sum(groups, mine.astype(values[1].dtype), dot[1], start_won, start_dot[1])
    return [_shared(total, count, count > 0), _shared(second, count, count > 0)]


def _mul_rule(groups: Groups, name: str, values: Leaves, start: Any, out: Leaves, dot: Leaves, start_dot: Leaves) -> Leaves:
    """Products with zeros among the factors: p is the product of the others, z the number of zeros in a group.

    The derivative by a factor is the product of all the others: p / v or p where no *other* factor is zero. Sums s and q of the
    zeros and of their squares (0 themselves) carry its dependence on them, so that a second derivative is right as well.
    """
    v = values[0]
    zero = v == 0
    safe = jnp.where(zero, 1, v)
    found = groups.reduced(_factors, _multiply_add_add, v)
    if found is None:
        found = groups.combine([jnp.multiply, jnp.add, jnp.add], [x.astype(v.dtype) for x in _factors(v)])
    p, z, s = (x.astype(v.dtype) for x in found)
    # with no zero: p; with one, the zero itself (its value, 0, but not its derivative)
    product = jnp.where(z == 0, p, jnp.where(z == 1, p * s, 0))
    p_at, z_at, s_at = (groups.gather(x) for x in (p, z, s))
    weight = jnp.where(
        zero,
        jnp.where(z_at == 1, p_at, jnp.where(z_at == 2, p_at * (s_at - v), 0)),
        jnp.where(z_at == 0, p_at / safe, jnp.where(z_at == 1, p_at / safe * s_at, 0)),
    )
    if start is not None and dot[0] is not None:
        weight = weight * groups.gather(start[0])
    return [_weighted_sum(groups, weight, dot[0], product, start_dot[0])]


def _factors(v: Any) -> Any:
    """A factor or 1 for zero; whether it is zero; zero itself."""
    wide = v.astype(jnp.float32) if jnp.finfo(v.dtype).bits < 32 else v
    zero = wide == 0
    return jnp.where(zero, 1, wide), zero.astype(wide.dtype), jnp.where(zero, wide, 0)


def _multiply_add_add(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] + b[1], a[2] + b[2]


def _relative(exp: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda value, x: jnp.where(value == x, 1, exp(jnp.where(value == x, 0, value - x)))


def _hypot_weight(value: Any, x: Any) -> Any:
    none = (x == 0) | jnp.isinf(x)
    return jnp.where(none, 0, value / jnp.where(none, 1, x))


def _result_rule(weigh: Callable[[Any, Any], Any]) -> Callable[..., Leaves]:
    """Operators whose derivative depends on (element, result) alone: no sort, a gather and a product."""

    def rule(groups: Groups, name: str, values: Leaves, start: Any, out: Leaves, dot: Leaves, start_dot: Leaves) -> Leaves:
        total = None if dot[0] is None else groups.weighed(weigh, values[0], out[0], dot[0])
        if total is None and dot[0] is not None:
            total = groups.sum(weigh(values[0], groups.gather(out[0])) * dot[0])
        start_weight = None if start is None else weigh(start[0], out[0])
        return [_with_start(total, start_weight, start_dot[0])]

    return rule


def by_fields(groups: Groups, operator: Operator, inv: Invariant, values: Leaves, out: Leaves, dot: Leaves) -> Leaves:
    """Operators under which an element moves as the result does (``operators/invariant.py``): how much of each field is in the
    elements' tangents is summed, and those are the result's. The neutral elements that they are of have the result's own numbers
    where any would do, so that what is subtracted are deviations from it."""

    def at(x: Leaves, free: Leaves) -> list[Leaves]:
        n = len(x)
        fields = lambda *xs: vectors(operator, inv.fields, xs[:n], dict(zip(inv.free, xs[n:], strict=True)))  # noqa: E731
        return mapped(fields, x[0].ndim)(*x, *free)

    # of no elements there are no numbers to divide by, and nothing is moved
    t = [jnp.where(x == 0, 1, x) if k in inv.counters else x for k, x in enumerate(out)]
    own = [jax.lax.stop_gradient(t[k]) for k in inv.free]
    theirs = [jnp.broadcast_to(groups.gather(x), values[0].shape) for x in own]
    inside = groups.inside()
    if inside is not None:
        dot = [None if d is None else jnp.where(like(inside, d), d, 0) for d in dot]
    parts = solved(inv.fields, at(values, theirs), dot)
    some = [p for p in parts if p is not None]
    sums = iter(groups.combine([jnp.add] * len(some), some))
    return combined(inv.fields, at(t, own), [None if p is None else next(sums) for p in parts])


WEIGHTS = {"logaddexp": _relative(jnp.exp), "logaddexp2": _relative(jnp.exp2), "hypot": _hypot_weight}
"""The derivative by an element, given that and the result."""

_WEIGHTED = {name: _result_rule(weigh) for name, weigh in WEIGHTS.items()}

_RULES: dict[str, Callable[..., Leaves]] = {
    "add": _add_rule, "select": _select_rule, "mul": _mul_rule, "arg": _arg_rule,
}  # fmt: skip
