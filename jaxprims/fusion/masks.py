"""Products with masks, as choices: what is infinite, or no number, is not seen where a mask is false. So does XLA make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .graph import Graph


def chosen_by_mask(graph: Graph) -> dict[int, Callable[..., list[Any]]]:
    """By equation: ``x * mask.astype(x.dtype)`` as XLA on CPUs does it, for the types that it has arithmetic on."""
    out = {}
    for index, eqn in enumerate(graph.eqns):
        if eqn.primitive.name == "mul" and eqn.outvars[0].aval.dtype in (np.float32, np.float64):
            masks = [k for k, v in enumerate(eqn.invars) if _is_mask(graph, v)]
            if masks:
                out[index] = _choice(masks[0])
    return out


def _is_mask(graph: Graph, atom: Any) -> bool:
    eqn = graph.made_by(atom)
    return eqn is not None and eqn.primitive.name == "convert_element_type" and eqn.invars[0].aval.dtype == np.bool_


def _choice(mask: int) -> Callable[..., list[Any]]:
    def choice(*factors: Any) -> list[Any]:
        x, m = jnp.broadcast_arrays(factors[1 - mask], factors[mask])  # a factor may be one number
        return [lax.select(m != 0, x, jnp.zeros_like(x))]

    return choice
