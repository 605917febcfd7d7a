"""Derivatives of ``hist_p``.

One JVP, linear in its tangents and built from the same primitive, serves forward and reverse mode and higher orders; the only
thing that has to be transposed is a sum by index, whose transpose is a gather. The fused call is differentiated unfused: f on
every element (by JAX's own rules), then each part by the cheapest rule that its operator allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from ..frontend.operator import Operator
from .group import group
from .hist import Hist, Part, hist_p, over_batch
from .hist_xla import reduce_by_index, segmented_scan

Leaves = list[Any]


def _inexact(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, hist: Hist, masks: tuple[int, ...], rank: int
) -> tuple[Leaves, Leaves]:
    outs = hist_p.bind(*primals, hist=hist, masks=masks, rank=rank)
    primals = [jnp.asarray(x) for x in primals]  # constants come as NumPy arrays
    active = [k for k, t in enumerate(tangents) if not isinstance(t, ad.Zero)]
    n = len(primals)
    full = (1 << rank) - 1

    def one(*args: Any) -> Leaves:
        mine, dot, results = args[:n], args[n : n + len(active)], list(args[n + len(active) :])
        return [t for t in _tangents(hist, mine, dict(zip(active, dot, strict=True)), results) if t is not None]

    every = (*masks, *(masks[k] for k in active), *(full for _ in outs))
    computed = iter(over_batch(one, every, rank)(*primals, *(tangents[k] for k in active), *outs))
    return outs, [next(computed) if _inexact(o) else ad.Zero(jax.typeof(o).to_tangent_aval()) for o in outs]


ad.primitive_jvps[hist_p] = _jvp


def _tangents(hist: Hist, operands: Sequence[Any], dots: dict[int, Any], outs: Leaves) -> list[Any]:
    """The tangent of each result of an unbatched call; None for an integer one."""
    arrays, captured, per_operator, dests = hist.split(operands)
    first = len(arrays) + len(captured)
    inner = {k: d for k, d in dots.items() if k < first}

    def run(*diff: Any) -> Leaves:
        replaced = [*arrays, *captured]
        for k, x in zip(inner, diff, strict=True):
            replaced[k] = x
        return hist.elements(replaced[: len(arrays)], replaced[len(arrays) :])

    if inner:
        results, result_dots = jax.jvp(run, tuple(operands[k] for k in inner), tuple(inner.values()))
    else:
        results = run()
        result_dots = [None] * len(results)
    tangents: list[Any] = []
    at_operator, at_dest, at_out = first, first + sum(p.captured for p in hist.parts), 0
    for part, consts, dest in zip(hist.parts, per_operator, dests, strict=True):
        count = len(part.values)
        index, values = hist.pairs(part, results)
        dot = (
            [d if d is not None and _inexact(v) else None for d, v in zip(hist.pairs(part, result_dots)[1], values, strict=True)]
            if inner
            else [None] * count
        )
        dest_dot = [dots.get(at_dest + k) for k in range(count)] if dest is not None else [None] * count
        const_dots = [dots.get(at_operator + k) for k in range(part.captured)]
        out = outs[at_out : at_out + count]
        if any(d is not None for d in const_dots):
            tangents += _through_captured(part, index, values, dest, consts, dot, dest_dot, const_dots)
        else:
            tangents += _part(part, index, values, dest, consts, out, dot, dest_dot)
        at_operator, at_out = at_operator + part.captured, at_out + count
        at_dest += count if dest is not None else 0
    return [t if t is not None or not _inexact(o) else jnp.zeros_like(o) for t, o in zip(tangents, outs, strict=True)]


def _part(
    part: Part, index: Any, values: Leaves, dest: Leaves | None, consts: Leaves, out: Leaves, dot: Leaves, dest_dot: Leaves
) -> list[Any]:
    tangents: list[Any] = [None] * len(values)
    for members in part.operator.derivative_groups:
        leaves = members.leaves
        if all(dot[k] is None and dest_dot[k] is None for k in leaves):
            continue
        rule = _WEIGHTED.get(members.name or "") if members.kind == "result" else _RULES.get(members.kind)
        if rule is None:
            return _general(part, index, values, dest, consts, dot, dest_dot)
        start = None if dest is None else [dest[k] for k in leaves]
        of = ([xs[k] for k in leaves] for xs in (values, out, dot, dest_dot))
        mine = rule(part.num_bins, index, next(of), start, *of)
        for k, t in zip(leaves, mine, strict=True):
            tangents[k] = t
    return tangents


# --- the pieces: sum by index, and gather, its transpose --------------------------------------------------------------


def _sum(index: Any, values: Leaves, num_bins: int, dest: Leaves | None = None) -> Leaves:
    """Sums by index, in one pass."""
    from .. import _bins, _genhist  # the user's functions are built on this module

    bins = [_bins.Bins(num_bins, jnp.add, dest=None if dest is None else d) for d in dest or values]
    out = _genhist.genhist(lambda i, *vs: [(i, v) for v in vs], (index, *values), bins)
    return list(out)


def _gather(x: Any, index: Any, fill: float = 0) -> Any:
    """``x[index]``, and ``fill`` for elements that were dropped."""
    x = jnp.asarray(x)  # a cotangent may be a NumPy array
    if x.shape[0] == 0:
        return jnp.full((index.shape[0], *x.shape[1:]), fill, x.dtype)
    inside = (index >= 0) & (index < x.shape[0])
    sharding = jax.typeof(inside).sharding
    if getattr(sharding, "mesh", None) is not None and any(
        axis is not None for axis in sharding.spec
    ):  # a mesh with explicit axes
        spec = jax.sharding.PartitionSpec(*sharding.spec, *(None,) * (x.ndim - 1))
        there = x.at[jnp.where(inside, index, 0)].get(mode="promise_in_bounds", out_sharding=sharding.update(spec=spec))
    else:
        there = x.at[jnp.where(inside, index, 0)].get(mode="promise_in_bounds")
    return jnp.where(_like(inside, there), there, jnp.asarray(fill, x.dtype))


def _zero_if_none(tangent: Any, like: Any) -> Any:
    return jnp.zeros_like(like) if tangent is None else tangent


def _weighted_sum(num_bins: int, index: Any, weight: Any, dot: Any, dest_weight: Any, dest_dot: Any) -> Any:
    """Σ weightᵢ · v̇ᵢ by index, plus dest's own: every rule ends like this."""
    total = None if dot is None else _sum(index, [weight * dot], num_bins)[0]
    if dest_dot is not None:
        mine = dest_weight * dest_dot
        total = mine if total is None else total + mine
    return total


# --- the rules --------------------------------------------------------------------------------------------------------


def _add_rule(num_bins: int, index: Any, values: Leaves, dest: Any, out: Leaves, dot: Leaves, dest_dot: Leaves) -> Leaves:
    if dot[0] is None:
        return dest_dot
    return _sum(index, dot, num_bins, None if dest_dot[0] is None else dest_dot)


def _select_rule(num_bins: int, index: Any, values: Leaves, dest: Any, out: Leaves, dot: Leaves, dest_dot: Leaves) -> Leaves:
    """min, max: ties share evenly, as in ``jax.lax.reduce_max``."""
    value, x = values[0], out[0]
    won = (value == _gather(x, index)).astype(x.dtype)
    count = _sum(index, [won], num_bins)[0]
    dest_won = None
    if dest is not None:
        dest_won = (dest[0] == x).astype(x.dtype)
        count = count + dest_won
    share = jnp.where(count > 0, 1 / jnp.where(count > 0, count, 1), 0)
    total = _weighted_sum(num_bins, index, won, dot[0], dest_won, dest_dot[0])
    return [total * share]


def _arg_rule(num_bins: int, index: Any, values: Leaves, dest: Any, out: Leaves, dot: Leaves, dest_dot: Leaves) -> Leaves:
    """argmin, argmax on (value, index): the winner's tangent; equal pairs share evenly."""

    def won(value: Any, position: Any, x: Any, best: Any) -> Any:
        same = (value == x) | ((value != value) & (x != x))
        return (same & (position == best)).astype(x.dtype)

    mine = won(values[0], values[1], _gather(out[0], index), _gather(out[1], index))
    count = _sum(index, [mine], num_bins)[0]
    dest_won = None
    if dest is not None:
        dest_won = won(dest[0], dest[1], out[0], out[1])
        count = count + dest_won
    total = _weighted_sum(num_bins, index, mine, dot[0], dest_won, dest_dot[0])
    second = None
    if dot[1] is not None or dest_dot[1] is not None:
        second = _weighted_sum(num_bins, index, mine.astype(values[1].dtype), dot[1], dest_won, dest_dot[1])
    share = jnp.where(count > 0, 1 / jnp.where(count > 0, count, 1), 0)
    return [None if total is None else total * share, None if second is None else second * share]


def _mul_rule(num_bins: int, index: Any, values: Leaves, dest: Any, out: Leaves, dot: Leaves, dest_dot: Leaves) -> Leaves:
    """Products with zeros among the factors: p is the product of the others, z the number of zeros in a bin.

    The derivative by a factor is the product of all the others: p / v or p where no *other* factor is zero. Sums s and q of the
    zeros and of their squares (0 themselves) carry its dependence on them, so that a second derivative is right as well.
    """
    from .. import _bins, _genhist

    v = values[0]
    zero = v == 0
    safe = jnp.where(zero, 1, v)
    h = num_bins
    bins = [_bins.Bins(h, jnp.multiply), _bins.Bins(h, jnp.add), _bins.Bins(h, jnp.add)]
    p, z, s = _genhist.genhist(
        lambda i, a, b, c: [(i, a), (i, b), (i, c)], (index, safe, zero.astype(v.dtype), jnp.where(zero, v, 0)), bins
    )
    # with no zero: p; with one, the zero itself (its value, 0, but not its derivative)
    product = jnp.where(z == 0, p, jnp.where(z == 1, p * s, 0))
    p_at, z_at, s_at = (_gather(x, index) for x in (p, z, s))
    weight = jnp.where(
        zero,
        jnp.where(z_at == 1, p_at, jnp.where(z_at == 2, p_at * (s_at - v), 0)),
        jnp.where(z_at == 0, p_at / safe, jnp.where(z_at == 1, p_at / safe * s_at, 0)),
    )
    if dest is not None and dot[0] is not None:
        weight = weight * _gather(dest[0], index)
    return [_weighted_sum(num_bins, index, weight, dot[0], product, dest_dot[0])]


def _logaddexp_weight(value: Any, x: Any) -> Any:
    return jnp.where(value == x, 1, jnp.exp(jnp.where(value == x, 0, value - x)))


def _hypot_weight(value: Any, x: Any) -> Any:
    return jnp.where(x == 0, 0, value / jnp.where(x == 0, 1, x))


def _logaddexp2_weight(value: Any, x: Any) -> Any:
    return jnp.where(value == x, 1, jnp.exp2(jnp.where(value == x, 0, value - x)))


def _result_rule(weigh: Callable[[Any, Any], Any]) -> Callable[..., Leaves]:
    """Operators whose derivative depends on (element, result) alone: no sort, a gather and a product."""

    def rule(num_bins: int, index: Any, values: Leaves, dest: Any, out: Leaves, dot: Leaves, dest_dot: Leaves) -> Leaves:
        weight = weigh(values[0], _gather(out[0], index))
        dest_weight = None if dest is None else weigh(dest[0], out[0])
        return [_weighted_sum(num_bins, index, weight, dot[0], dest_weight, dest_dot[0])]

    return rule


_WEIGHTED = {
    "logaddexp": _result_rule(_logaddexp_weight),
    "logaddexp2": _result_rule(_logaddexp2_weight),
    "hypot": _result_rule(_hypot_weight),
}

_RULES: dict[str, Callable[..., Leaves]] = {
    "add": _add_rule, "select": _select_rule, "mul": _mul_rule, "arg": _arg_rule,
}  # fmt: skip


def _general(
    part: Part, index: Any, values: Leaves, dest: Leaves | None, consts: Leaves, dot: Leaves, dest_dot: Leaves
) -> list[Any]:
    """Any operator: with l and r what stands before and after an element in its bin, the derivative of a ↦ l ⊙ a ⊙ r."""
    h = part.num_bins
    if dest is not None:  # one more element of each bin, before the others
        index = jnp.concatenate([jnp.arange(h, dtype=index.dtype), index])
        both = [d is not None or e is not None for d, e in zip(dot, dest_dot, strict=True)]
        dot = [
            jnp.concatenate([_zero_if_none(e, d0), _zero_if_none(d, v)]) if used else None
            for used, d, e, v, d0 in zip(both, dot, dest_dot, values, dest, strict=True)
        ]
        values = [jnp.concatenate([d, v]) for d, v in zip(dest, values, strict=True)]
    n = index.shape[0]
    if n == 0:
        return [None] * len(values)
    op = _operator_on_elements(part.operator, consts)
    spare = jnp.where((index >= 0) & (index < h), index, h)
    order, _ = group(spare, h)
    where, values = spare[order], [v[order] for v in values]
    dot = [None if d is None else d[order] for d in dot]
    first = jnp.concatenate([jnp.ones(1, jnp.bool_), where[1:] != where[:-1]])
    last = jnp.concatenate([where[1:] != where[:-1], jnp.ones(1, jnp.bool_)])
    upto = segmented_scan(where, values, lambda a, b: part.operator.traced(consts, *a, *b))
    onward = segmented_scan(where, values, lambda a, b: part.operator.traced(consts, *a, *b), reverse=True)
    # An element stands in where there is nothing before or after it: a value that the operator has seen, and that is not used.
    before = [jnp.where(_like(first, v), v, jnp.roll(u, 1, 0)) for u, v in zip(upto, values, strict=True)]
    after = [jnp.where(_like(last, v), v, jnp.roll(u, -1, 0)) for u, v in zip(onward, values, strict=True)]
    active = [k for k, d in enumerate(dot) if d is not None]

    def whole(*changed: Any) -> Leaves:
        a = list(values)
        for k, x in zip(active, changed, strict=True):
            a[k] = x
        a = [jnp.where(_like(first, x), x, y) for x, y in zip(a, op(before, a), strict=True)]
        a = [jnp.where(_like(last, x), x, y) for x, y in zip(a, op(a, after), strict=True)]
        return [x for x in a if _inexact(x)]

    _, moved = jax.jvp(whole, tuple(values[k] for k in active), tuple(dot[k] for k in active))
    # dropped elements hold no cotangent: their place is past the last bin
    sums = iter(_sum(where, [jnp.where(_like(where < h, m), m, 0) for m in moved], h))
    return [next(sums) if _inexact(v) else None for v in values]


def _like(flag: Any, v: Any) -> Any:
    return flag.reshape(flag.shape + (1,) * (v.ndim - 1))


def _operator_on_elements(op: Operator, consts: Leaves) -> Callable[[Leaves, Leaves], Leaves]:
    return lambda a, b: list(jax.vmap(lambda x, y: op.traced(consts, *x, *y))(a, b))


def _through_captured(
    part: Part,
    index: Any,
    values: Leaves,
    dest: Leaves | None,
    consts: Leaves,
    dot: Leaves,
    dest_dot: Leaves,
    const_dots: Leaves,
) -> list[Any]:
    """An operator that captures what is differentiated: JAX differentiates the plain-XLA form."""
    from ..frontend.operator import identity_leaves

    identity = None if part.operator.identity is None else identity_leaves(part.operator)
    given = [*values, *(dest or []), *consts]
    dots = [*dot, *(dest_dot if dest is not None else []), *const_dots]
    active = [k for k, d in enumerate(dots) if d is not None]
    n = len(values)

    def run(*changed: Any) -> Leaves:
        args = list(given)
        for k, x in zip(active, changed, strict=True):
            args[k] = x
        captured = args[len(args) - part.captured :]
        base = args[n : 2 * n] if dest is not None else None
        out = reduce_by_index(index, args[:n], part.num_bins, lambda a, b: part.operator.traced(captured, *a, *b), identity, base)
        return [x for x in out if _inexact(x)]

    _, moved = jax.jvp(run, tuple(given[k] for k in active), tuple(dots[k] for k in active))
    rest = iter(moved)
    return [next(rest) if _inexact(v) else None for v in values]


# --- transposition: of a sum by index, to a gather --------------------------------------------------------------------


def _transpose(cotangents: Sequence[Any], *operands: Any, hist: Hist, masks: tuple[int, ...], rank: int) -> list[Any]:
    """The call is linear in its values and dests: a sum of arrays by index, as the rules above bind it."""
    arrays, _, _, dests = hist.split(range(len(operands)))
    out: list[Any] = [None] * len(operands)
    at = 0
    argument = hist.f.jaxpr.invars
    for part, dest in zip(hist.parts, dests, strict=True):
        index = arrays[argument.index(hist.f.jaxpr.outvars[part.index])]
        for k, v in enumerate(part.values):
            ct = cotangents[at]
            at += 1
            if isinstance(ct, ad.Zero):
                continue
            if dest is not None and ad.is_undefined_primal(operands[dest[k]]):
                out[dest[k]] = _summed_to(ct, (1 << rank) - 1, masks[dest[k]], rank)
            value = arrays[argument.index(hist.f.jaxpr.outvars[v])]
            if ad.is_undefined_primal(operands[value]):
                full = (1 << rank) - 1
                gathered = over_batch(_gather, (full, masks[index]), rank)(ct, operands[index])
                mine = _summed_to(gathered, full, masks[value], rank)
                out[value] = mine if out[value] is None else out[value] + mine
    for k, x in enumerate(operands):
        if ad.is_undefined_primal(x) and out[k] is None:
            out[k] = ad.Zero(x.aval)
    return out


def _summed_to(x: Any, have: int, want: int, rank: int) -> Any:
    """Sums over the batch axes that the operand does not have."""
    present = [a for a in range(rank) if have >> a & 1]
    axes = tuple(i for i, a in enumerate(present) if not want >> a & 1)
    return jnp.sum(x, axes) if axes else x


ad.primitive_transposes[hist_p] = _transpose
