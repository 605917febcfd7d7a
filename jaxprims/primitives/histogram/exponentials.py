"""Histograms by logaddexp as two of cheaper operators: maxima, then sums of exponentials relative to their bin's maximum. So
are those by other operators that keep an extreme and sums relative to it (``operators/weighted.py``).

The operator takes an exponential and a logarithm for each element, and those of a bin one after the other; this takes an
exponential for each, side by side, and a logarithm for each bin. The maxima are made beside a call's other histograms.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ...operators.operator import Operator, identity_leaves, leaf_operators, simple_operator
from ...operators.weighted import on_arrays, weighted
from ...tracing.varying import axes_of
from ..ordered.scan_xla import STEPS
from ..tangents import Leaves
from .call import HistogramCall, Part
from .made import Aval, Made, avals_of, context, made_of
from .primitive import bind, by_index

_FUNCTIONS: Mapping[str | None, tuple[Callable[..., Any], ...]] = {
    "logaddexp": (jnp.exp, jnp.log),
    "logaddexp2": (jnp.exp2, jnp.log2),
}
_OPERATORS: Mapping[str | None, Callable[..., Any]] = {"logaddexp": jnp.logaddexp, "logaddexp2": jnp.logaddexp2}


def leaf_by_leaf(call: HistogramCall) -> HistogramCall:
    """The call, its pairs and the like as a histogram for each leaf, where one of these is a logarithm of a sum."""
    return dataclasses.replace(call, parts=tuple(itertools.chain(*map(_leaves, call.parts))))


def _leaves(part: Part) -> list[Part]:
    names = part.operator.leaf_names
    if len(names) < 2 or part.captured or not any(name in _FUNCTIONS for name in names):
        return [part]
    own = leaf_operators(part.operator, {**STEPS, **_OPERATORS})
    if own is None:
        return [part]
    return [dataclasses.replace(part, operator=op, values=(v,)) for op, v in zip(own, part.values, strict=True)]


def of_exponentials(call: HistogramCall, n: Any) -> tuple[int, ...]:
    """Which of a call's parts are made so: logarithms of sums, whose bins start from nothing or from a dest; of operators with
    weights those where two passes over ``n`` elements are less, which they are not where updates are runs of one bin's."""
    if call.plans or call.deterministic:
        return ()
    return tuple(k for k, p in enumerate(call.parts) if _is_logarithm(p) or (not call.sorted and _pays(p, n)))


def _is_logarithm(part: Part) -> bool:
    alone = part.num_bins != 0 and not part.captured
    return alone and part.operator.name in _FUNCTIONS and leaf_operators(part.operator, _OPERATORS) is not None


def _pays(part: Part, n: Any) -> bool:
    if not (isinstance(n, int) and isinstance(part.num_bins, int) and n >= max(MANY, FEW_BINS * part.num_bins)):
        return False
    whole = part.num_bins > 0 and not (part.captured or part.dest or part.operator.traced.has_rules)
    return whole and part.operator.name not in _FUNCTIONS and _way(part.operator) is not None


MANY, FEW_BINS = 1 << 13, 8
"""Elements, and elements to a bin, from which on an operator's own histogram is slower than two, as measured."""


@dataclasses.dataclass(frozen=True)
class _Way:
    """How a part is made of the extremes of its leaf ``top``, by ``name``. ``level``: of these; ``terms``: (its values, levels of
    their bins) -> what is summed, of the shapes and dtypes ``sums``; ``finish``: (levels, sums) -> its leaves."""

    top: int
    name: str
    level: Callable[[Any], Any]
    terms: Callable[[Sequence[Any], Any], list[Any]]
    finish: Callable[[Any, Sequence[Any]], list[Any]]
    sums: tuple[Aval, ...]


@functools.lru_cache(maxsize=256)
def _way(operator: Operator) -> _Way | None:
    """None for other operators."""
    if operator.name in _FUNCTIONS:
        return _logarithm(operator)
    found = weighted(operator.program) if operator.lanes == 1 and not operator.large else None
    if found is None or operator.identity is None:
        return None
    first = np.cumsum([0, *(n for _, n in operator.leaf_slots)]).tolist()
    leaf = first.index(found.top) if found.top in first else 0
    starts, others = identity_leaves(operator), [k for k in range(len(operator.shapes)) if k != leaf]
    if operator.shapes[leaf] != () or any(np.any(starts[k]) for k in others):
        return None

    def terms(values: Sequence[Any], level: Any) -> list[Any]:
        w = on_arrays(found.weight, values[leaf], level)
        return [values[k] * w.reshape(w.shape + (1,) * (values[k].ndim - w.ndim)) for k in others]

    return _Way(
        leaf,
        found.name,
        lambda top: STEPS[found.name](top, starts[leaf]),
        terms,
        lambda level, sums: [*sums[:leaf], level, *sums[leaf:]],
        tuple((operator.shapes[k], operator.dtypes[k]) for k in others),
    )


def _logarithm(operator: Operator) -> _Way:
    (exp, log), (shape,), (dtype,) = _FUNCTIONS[operator.name], operator.shapes, operator.dtypes
    wide = np.promote_types(dtype, np.float32)
    return _Way(
        0,
        "max",
        lambda top: jnp.where(jnp.isfinite(top), top, 0).astype(wide),
        lambda values, level: [exp(values[0].astype(wide) - level)],
        lambda level, sums: [(log(sums[0]) + level).astype(dtype)],
        ((shape, wide),),
    )


def histograms(call: HistogramCall, which: Sequence[int], *operands: Any) -> list[Any]:
    """An unbatched call. ``which``: its parts that are made so."""
    arrays, captured, per_operator, dests = call.split(operands)
    ways = {k: _way_of(call.parts[k]) for k in which}
    parts = [_extremes(p, ways[k]) if k in ways else p for k, p in enumerate(call.parts)]
    consts = [c for of_one in per_operator for c in of_one]
    kept = [d for k, dest in enumerate(dests) if k not in ways for d in dest or ()]
    found = iter(bind(dataclasses.replace(call, parts=tuple(parts)), [*arrays, *captured, *consts, *kept]))
    leaves = [list(itertools.islice(found, len(p.values))) for p in parts]

    levels = [way.level(leaves[k][0]) for k, way in ways.items()]
    sums = iter(_relative(call, ways, operands, levels))
    for (k, way), level in zip(ways.items(), levels, strict=True):
        leaves[k] = way.finish(level, list(itertools.islice(sums, len(way.sums))))
        dest = dests[k]
        if dest is not None:
            leaves[k] = [_OPERATORS[call.parts[k].operator.name](dest[0], leaves[k][0])]
    return list(itertools.chain(*leaves))


def _way_of(part: Part) -> _Way:
    way = _way(part.operator)
    assert way is not None
    return way


def _extremes(part: Part, way: _Way) -> Part:
    operator = simple_operator(STEPS[way.name], part.operator.shapes[way.top], part.operator.dtypes[way.top])
    return dataclasses.replace(part, operator=operator, values=(part.values[way.top],), dest=False)


def _relative(call: HistogramCall, ways: Mapping[int, _Way], operands: Sequence[Any], levels: Sequence[Any]) -> list[Any]:
    """The sums of numbers weighed relative to the levels of their bins."""
    arrays, captured = call.of_f(operands)
    # inside shard_map f is traced for arrays that vary
    if not axes_of(arrays):
        elements = call.of_elements(arrays, (0,) * len(arrays))
        made = _in_kernel(call, tuple(ways), avals_of(captured), avals_of(levels), elements, context())
        if made is not None:
            return bind(made.call, [*arrays, *made.captured(*captured, *levels)])
    out = []
    every = list(call.unfused(operands))
    for (k, way), level in zip(ways.items(), levels, strict=True):
        part, _, _, index, values = every[k]
        terms = way.terms(values, _at(level, index))
        out += by_index(index, terms, [STEPS["add"]] * len(terms), part.num_bins)
    return out


@functools.lru_cache(maxsize=256)
def _in_kernel(
    call: HistogramCall,
    which: tuple[int, ...],
    captured: tuple[Aval, ...],
    levels: tuple[Aval, ...],
    elements: tuple[Aval, ...],
    _: Any,
) -> Made | None:
    ways = [(part, _way_of(part)) for part in (call.parts[k] for k in which)]

    def of_element(held: Sequence[Any], *xs: Any) -> Leaves:
        results = call.f(held[: len(captured)], *xs)
        out: Leaves = []
        for (part, way), level in zip(ways, held[len(captured) :], strict=True):
            index = results[part.index]
            out += [index, *way.terms([results[v] for v in part.values], _at(level, index))]
        return out

    sums: list[Part] = []
    at = 0
    for part, way in ways:
        for k, (shape, dtype) in enumerate(way.sums):
            operator = simple_operator(STEPS["add"], shape, dtype)
            sums.append(dataclasses.replace(part, operator=operator, dest=False, index=at, values=(at + 1 + k,)))
        at += 1 + len(way.sums)
    return made_of(call, of_element, [*captured, *levels], elements, sums)


def _at(level: Any, index: Any) -> Any:
    """Of an index out of range anything."""
    return jnp.take(level, index, axis=0, mode="clip")
