"""Histograms by logaddexp as two of cheaper operators: maxima, then sums of exponentials relative to their bin's maximum.

The operator takes an exponential and a logarithm for each element, and those of a bin one after the other; this takes an
exponential for each, side by side, and a logarithm for each bin.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..operators.operator import identity_leaves, simple_operator
from .histogram import bind, by_index
from .histogram_call import HistogramCall
from .histogram_made import Aval, Made, avals_of, context, made_of
from .row_maps import is_narrow
from .scan_xla import STEPS
from .tangents import Leaves


def applies(call: HistogramCall) -> bool:
    """Is this one histogram by logaddexp, whose bins start from nothing or from a dest?"""
    part = call.parts[0]
    alone = len(call.parts) == 1 and part.num_bins != 0 and not (call.plans or part.captured or call.deterministic)
    if not alone or part.operator.name != "logaddexp" or part.operator.identity is None:
        return False
    return bool(np.all(np.isneginf(identity_leaves(part.operator)[0].astype(np.float64))))


def histograms(call: HistogramCall, *operands: Any) -> list[Any]:
    """An unbatched call."""
    part, (arrays, captured, _, (dest,)) = call.parts[0], call.split(operands)
    (shape,), (dtype,) = part.operator.shapes, part.operator.dtypes
    wide = np.promote_types(dtype, np.float32)
    maxima = dataclasses.replace(part, operator=simple_operator(STEPS["max"], shape, dtype), dest=False)
    sums = dataclasses.replace(part, operator=simple_operator(STEPS["add"], shape, wide), dest=False)

    (top,) = bind(dataclasses.replace(call, parts=(maxima,)), [*arrays, *captured])
    top = jnp.where(jnp.isfinite(top), top, 0).astype(wide)
    made = None
    if not is_narrow((part.num_bins, *shape)):
        elements = call.of_elements(arrays, (0,) * len(arrays))
        made = _relative(dataclasses.replace(call, parts=(sums,)), avals_of(captured), top.shape, elements, context())
    if made is not None:
        (total,) = bind(made.call, [*arrays, *made.captured(*captured, top)])
    else:
        ((_, _, _, index, (value,)),) = call.unfused(operands)
        (total,) = by_index(index, [jnp.exp(value.astype(wide) - _of_bin(top, index))], [STEPS["add"]], part.num_bins)
    level = (jnp.log(total) + top).astype(dtype)
    return [level if dest is None else jnp.logaddexp(dest[0], level)]


@functools.lru_cache(maxsize=256)
def _relative(
    call: HistogramCall, captured: tuple[Aval, ...], bins: tuple[int, ...], elements: tuple[Aval, ...], _: Any
) -> Made | None:
    """The call, which is a sum, of f's exponentials relative to a last captured array's number of their bin."""
    (part,) = call.parts
    (value,), wide = part.values, part.operator.dtypes[0]

    def of_element(held: Sequence[Any], *xs: Any) -> Leaves:
        results = list(call.f(held[:-1], *xs))
        results[value] = jnp.exp(results[value].astype(wide) - _of_bin(held[-1], results[part.index]))
        return results

    return made_of(call, of_element, [*captured, (bins, wide)], elements, call.parts)


def _of_bin(top: Any, index: Any) -> Any:
    """Of an index out of range anything."""
    return jnp.take(top, index, axis=0, mode="clip")
