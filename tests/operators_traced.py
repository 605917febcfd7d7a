"""Operators traced, and what is recognised in them."""

import jax
import jax.numpy as jnp

from jaxprims.ir.program import numpy_dtype
from jaxprims.tracing.lower import to_program

where = jnp.where
SAMPLE_KIND = {"a": "s16", "n": "f32", "f": "f32", "u": "u32", "i": "s32", "b": "b1"}


def traced(op, *dtypes, shape=()):
    """The Program of ``op`` on a scalar, or on a tuple of them."""
    avals = [jax.ShapeDtypeStruct(shape, d if d.startswith("complex") else numpy_dtype(d)) for d in dtypes]
    n = len(avals)

    def flat(*args):
        return jax.tree.leaves(op(*args) if n == 1 else op(args[:n], args[n:]))

    return to_program(jax.make_jaxpr(flat)(*avals, *avals).jaxpr)
