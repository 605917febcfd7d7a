"""Histograms by logaddexp as two of cheaper operators: maxima, then sums of exponentials relative to their bin's maximum.

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

from ..operators.operator import leaf_operators, simple_operator
from ..tracing.varying import axes_of
from .histogram import bind, by_index
from .histogram_call import HistogramCall, Part
from .histogram_made import Aval, Made, avals_of, context, made_of
from .row_maps import is_narrow
from .scan_xla import STEPS
from .tangents import Leaves

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


def of_exponentials(call: HistogramCall) -> tuple[int, ...]:
    """Which of a call's parts are logarithms of sums, whose bins start from nothing or from a dest."""
    if call.plans or call.deterministic:
        return ()
    return tuple(k for k, p in enumerate(call.parts) if _is_logarithm(p))


def _is_logarithm(part: Part) -> bool:
    alone = part.num_bins != 0 and not part.captured
    return alone and part.operator.name in _FUNCTIONS and leaf_operators(part.operator, _OPERATORS) is not None


def histograms(call: HistogramCall, which: Sequence[int], *operands: Any) -> list[Any]:
    """An unbatched call. ``which``: its logarithms of sums."""
    arrays, captured, per_operator, dests = call.split(operands)
    parts = [_with(p, "max") if k in which else p for k, p in enumerate(call.parts)]
    consts = [c for of_one in per_operator for c in of_one]
    kept = [d for k, dest in enumerate(dests) if k not in which for d in dest or ()]
    leaves = bind(dataclasses.replace(call, parts=tuple(parts)), [*arrays, *captured, *consts, *kept])

    first = np.cumsum([0, *(len(p.values) for p in parts)])  # of each part's leaves
    tops = [jnp.where(jnp.isfinite(top), top, 0).astype(_wide(top.dtype)) for top in (leaves[first[k]] for k in which)]
    for k, top, total in zip(which, tops, _relative(call, which, operands, tops), strict=True):
        name, dest = call.parts[k].operator.name, dests[k]
        level = (_FUNCTIONS[name][1](total) + top).astype(leaves[first[k]].dtype)
        leaves[first[k]] = level if dest is None else _OPERATORS[name](dest[0], level)
    return leaves


def _with(part: Part, name: str) -> Part:
    (shape,), (dtype,) = part.operator.shapes, part.operator.dtypes
    operator = simple_operator(STEPS[name], shape, _wide(dtype) if name == "add" else dtype)
    return dataclasses.replace(part, operator=operator, dest=False)


def _wide(dtype: Any) -> Any:
    return np.promote_types(dtype, np.float32)


def _relative(call: HistogramCall, which: Sequence[int], operands: Sequence[Any], tops: Sequence[Any]) -> list[Any]:
    """The sums of exponentials relative to the numbers of their bins."""
    arrays, captured = call.of_f(operands)
    if not any(is_narrow(top.shape) for top in tops) and not axes_of(arrays):  # inside shard_map f is traced for arrays that vary
        elements = call.of_elements(arrays, (0,) * len(arrays))
        made = _in_kernel(call, tuple(which), avals_of(captured), avals_of(tops), elements, context())
        if made is not None:
            return bind(made.call, [*arrays, *made.captured(*captured, *tops)])
    sums = []
    every = list(call.unfused(operands))
    for k, top in zip(which, tops, strict=True):
        part, _, _, index, (value,) = every[k]
        sums += by_index(index, [_exponential(part, value, top, index)], [STEPS["add"]], part.num_bins)
    return sums


@functools.lru_cache(maxsize=256)
def _in_kernel(
    call: HistogramCall,
    which: tuple[int, ...],
    captured: tuple[Aval, ...],
    tops: tuple[Aval, ...],
    elements: tuple[Aval, ...],
    _: Any,
) -> Made | None:
    parts = [call.parts[k] for k in which]

    def of_element(held: Sequence[Any], *xs: Any) -> Leaves:
        results = call.f(held[: len(captured)], *xs)
        out: Leaves = []
        for part, top in zip(parts, held[len(captured) :], strict=True):
            index, value = results[part.index], results[part.values[0]]
            out += [index, _exponential(part, value, top, index)]
        return out

    sums = [dataclasses.replace(_with(p, "add"), index=2 * k, values=(2 * k + 1,)) for k, p in enumerate(parts)]
    return made_of(call, of_element, [*captured, *tops], elements, sums)


def _exponential(part: Part, value: Any, top: Any, index: Any) -> Any:
    """Of an index out of range anything."""
    return _FUNCTIONS[part.operator.name][0](value.astype(top.dtype) - jnp.take(top, index, axis=0, mode="clip"))
