"""Random numbers: what ``jax.random`` draws from a key, as a function of positions, which kernels make where it is wanted. XLA
writes every round of the generator for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Primitive
from jax.extend.random import threefry2x32_p
from jax.interpreters import batching, mlir

from ..primitives.batches import batch_axes_first, members
from ..tracing.jaxprs import run_equation
from ..tracing.keys import threefry_dtype
from ..tracing.random import joined
from .graph import Graph, with_equations

random_at_p = Primitive("random_at")
"""``random_at_p.bind(k0, k1, at, bit_width=...)``: an elementwise function of a key's two words and of positions, of one shape
(``tracing.random.random_at``); for XLA, what ``jax.random.bits`` does."""

FEWEST = 2**10
"""Numbers of a key below which they are XLA's."""


def drawn_by_position(graph: Graph) -> ClosedJaxpr | None:
    """The function with random bits so; None if there are none. GPUs have their own kernel for all rounds."""
    if graph.with_rules or jax.default_backend() != "cpu" or not getattr(jax.config, "jax_threefry_partitionable", True):
        return None
    bits = {id(eqn) for eqn in graph.eqns if _is_drawn(eqn)}
    if not bits:
        return None

    def equation(eqn: JaxprEqn, operands: Sequence[Any], value: Callable[[Any], Any]) -> Sequence[Any]:
        return [_drawn(eqn, *operands)] if id(eqn) in bits else run_equation(eqn, operands)

    return with_equations(graph, equation)


def _is_drawn(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name != "random_bits" or eqn.invars[0].aval.dtype != threefry_dtype():
        return False
    shape = eqn.outvars[0].aval.shape
    return all(isinstance(n, int) for n in shape) and FEWEST <= math.prod(eqn.params["shape"]) < 2**32


def _drawn(eqn: JaxprEqn, keys: Any) -> Any:
    out, mine = eqn.outvars[0].aval.shape, eqn.params["shape"]
    words, first = jax.random.key_data(keys), keys.ndim
    at = jnp.zeros((), jnp.uint32)
    for axis, n in enumerate(mine):
        if n > 1:
            at = at + lax.broadcasted_iota(jnp.uint32, out, first + axis) * jnp.uint32(math.prod(mine[axis + 1 :]))
    k0, k1 = (lax.broadcast_in_dim(words[..., k], out, range(first)) for k in range(2))
    return random_at_p.bind(k0, k1, at, bit_width=eqn.params["bit_width"])


def _by_jax(k0: Any, k1: Any, at: Any, bit_width: int) -> Any:
    high, low = threefry2x32_p.bind(k0, k1, jnp.zeros_like(at), at)
    return joined(high, low, bit_width)


def _batched(operands: Any, dims: Any, bit_width: int) -> tuple[Any, int]:
    """Those without vmap's axis are the same along it."""
    first, n = batch_axes_first(operands, dims), members(operands, dims)
    wide = [jnp.broadcast_to(x, (n, *x.shape)) if d is None else x for x, d in zip(first, dims, strict=True)]
    return random_at_p.bind(*wide, bit_width=bit_width), 0


random_at_p.def_impl(jax.jit(_by_jax, static_argnames="bit_width"))
batching.primitive_batchers[random_at_p] = _batched
random_at_p.def_abstract_eval(lambda k0, k1, at, bit_width: jax.core.ShapedArray(at.shape, np.dtype(f"uint{bit_width}")))
mlir.register_lowering(random_at_p, mlir.lower_fun(_by_jax, multiple_results=False))
