"""Derivatives of ``histogram_p``.

One JVP, linear in its tangents and built from the same primitive, serves forward and reverse mode and higher orders; the only
thing that has to be transposed is a sum by index, whose transpose is a gather. The fused call is differentiated unfused: f on
every element (by JAX's own rules), then each part by the cheapest rule that its operator allows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.interpreters import ad
from jax.interpreters import partial_eval as pe

from ...ir.linear import CONSTANT, OTHER
from ..ad_rules import rule_tangents
from ..batches import over_batch
from ..tangents import Leaves, along, is_inexact, jvp_rule, summed_to
from ..transposition import combines_linearly, constant_leaves, joined, known_rule, of_f, of_leaves, transpose_rule
from . import linear as histogram_linear
from .call import HistogramCall, Part
from .folds import of_values, tangents_of
from .groups_by_index import ByIndex
from .primitive import histogram_p
from .row_maps import rows_at


def _tangents(call: HistogramCall, operands: Leaves, every_dot: Leaves, outs: Leaves) -> Leaves:
    """The tangents of an unbatched call's inexact results."""
    fused = histogram_linear.tangents(call, operands, every_dot)
    if fused is not None:
        return fused
    dots = {k: d for k, d in enumerate(every_dot) if d is not None}
    arrays, captured, per_operator, dests = call.split(operands)
    n, first = len(arrays), len(arrays) + len(captured)
    results, result_dots = along(lambda xs: call.on_all(xs[:n], xs[n:]), operands[:first], every_dot[:first])
    tangents: list[Any] = []
    at_operator, at_dest, at_out = first, first + sum(p.captured for p in call.parts), 0
    for part, consts, dest in zip(call.parts, per_operator, dests, strict=True):
        count = len(part.values)
        index, values = call.pairs(part, results)
        dot = call.moves(part, values, result_dots)
        dest_dot = [dots.get(at_dest + k) for k in range(count)] if dest is not None else [None] * count
        const_dots = [dots.get(at_operator + k) for k in range(part.captured)]
        out = outs[at_out : at_out + count]
        found = None
        if all(d is None for d in const_dots):
            groups, positive = ByIndex(index, part.num_bins, call.deterministic), call.f.positive(part.values)
            found = rule_tangents(groups, part.operator, values, dest, out, dot, dest_dot, positive)
            found = found or _walked(call, part, [operands, every_dot], (at_operator, at_dest), out)
        found = found or of_values(part, call.deterministic, index, values, dest, consts, dot, dest_dot, const_dots)
        tangents += found
        at_operator, at_out = at_operator + part.captured, at_out + count
        at_dest += count if dest is not None else 0
    return [jnp.zeros_like(o) if t is None else t for t, o in zip(tangents, outs, strict=True) if is_inexact(o.dtype)]


def _walked(call: HistogramCall, part: Part, given: Sequence[Leaves], at: tuple[int, int], out: Leaves) -> Leaves | None:
    """The tangents of one part, if their transpose is walks. ``given``: the call's operands and their tangents; ``at``: where the
    part's captured arrays, and its dests, are among them."""
    first = call.num_arrays + call.f.captured
    mine = [*range(first), *(at[0] + k for k in range(part.captured)), *(at[1] + k for k in range(len(part.values) * part.dest))]
    operands, dots = ([xs[k] for k in mine] for xs in given)
    return tangents_of(dataclasses.replace(call, parts=(part,)), operands, dots, out)


# --- transposition --------------------------------------------------------------------------------------------------------------


def _is_sum(call: HistogramCall, linear: Sequence[bool]) -> bool:
    """Is it a sum of arrays by index, as the rules above bind it?"""
    arrays, *_ = call.split(range(len(linear)))
    captured = call.num_arrays + call.f.captured + sum(p.captured for p in call.parts)
    plain = not call.f.jaxpr.eqns and all(v in call.f.jaxpr.invars for v in call.f.jaxpr.outvars)
    return (
        plain
        and len(arrays) == len(call.positions)
        and not any(linear[call.num_arrays : captured])
        and all(p.updates == 1 and all(g.kind == "add" for g in p.operator.derivative_groups) for p in call.parts)
    )


def _transpose_sums(
    cotangents: Sequence[Any], *operands: Any, call: HistogramCall, masks: tuple[int, ...], rank: int
) -> list[Any]:
    """To gathers."""
    arrays, _, _, dests = call.split(range(len(operands)))
    out: list[Any] = [None] * len(operands)
    at = 0
    argument = call.f.jaxpr.invars
    for part, dest in zip(call.parts, dests, strict=True):
        index = arrays[argument.index(call.f.jaxpr.outvars[part.index])]
        for k, v in enumerate(part.values):
            ct = cotangents[at]
            at += 1
            if isinstance(ct, ad.Zero):
                continue
            if dest is not None and ad.is_undefined_primal(operands[dest[k]]):
                out[dest[k]] = summed_to(ct, masks[dest[k]], rank)
            value = arrays[argument.index(call.f.jaxpr.outvars[v])]
            if ad.is_undefined_primal(operands[value]):
                full = (1 << rank) - 1
                gathered = over_batch(rows_at, (full, masks[index]), rank)(ct, operands[index])
                mine = summed_to(gathered, masks[value], rank)
                out[value] = mine if out[value] is None else out[value] + mine
    for k, x in enumerate(operands):
        if ad.is_undefined_primal(x) and out[k] is None:
            out[k] = ad.Zero(x.aval)
    return out


def _is_linear(call: HistogramCall, linear: Sequence[bool]) -> bool:
    arrays, captured, per_operator, dests = call.split(linear)
    results = of_f(call, arrays, captured)
    for part, consts, dest in zip(call.parts, per_operator, dests, strict=True):
        if max(results[part.index], default=CONSTANT) > CONSTANT:
            return False
        starts = None if dest is None else of_leaves(part.operator, dest)
        if not combines_linearly(part.operator, _values(part, results), starts, consts):
            return False
    return True


def _values(part: Part, results: Sequence[Sequence[int]]) -> list[int]:
    """The degrees of a part's values, given those of f's results: slot by slot, those of every lane and update."""
    values: list[Sequence[int]] = []
    for v, (_, n) in zip(part.values, part.operator.leaf_slots, strict=True):
        values += [results[v][k::n] for k in range(n)]
    return [joined([[d] for d in slot])[0] for slot in values]


def _constant(call: HistogramCall, unknown: Sequence[bool]) -> list[bool]:
    arrays, captured, per_operator, dests = call.split(unknown)
    results = of_f(call, arrays, captured, OTHER)
    out: list[bool] = []
    for part, consts, dest in zip(call.parts, per_operator, dests, strict=True):
        if max(results[part.index], default=CONSTANT) > CONSTANT:
            out += [False] * len(part.values)
        else:
            starts = None if dest is None else of_leaves(part.operator, dest, OTHER)
            out += constant_leaves(part.operator, _values(part, results), starts, consts)
    return out


def _is_linear_sum(call: HistogramCall, linear: Sequence[bool]) -> bool:
    return _is_sum(call, linear) or (histogram_linear.is_sum(call) and _is_linear(call, linear))


def _transpose_linear_sums(cotangents: Sequence[Any], *operands: Any, call: HistogramCall, **params: Any) -> list[Any]:
    plain = _is_sum(call, [ad.is_undefined_primal(x) for x in operands])
    return (_transpose_sums if plain else histogram_linear.transposed)(cotangents, *operands, call=call, **params)


ad.primitive_transposes[histogram_p] = transpose_rule(histogram_p, _is_linear_sum, _transpose_linear_sums, _is_linear)
ad.primitive_jvps[histogram_p] = jvp_rule(histogram_p, _tangents)
pe.custom_partial_eval_rules[histogram_p] = known_rule(histogram_p, _constant)
