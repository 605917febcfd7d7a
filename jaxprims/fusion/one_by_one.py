"""Functions that XLA on CPUs calls for one number after the other, and what kernels, which have vectors of them, save."""

from __future__ import annotations

import jax.numpy as jnp
from jax.extend.core import JaxprEqn

ONE_BY_ONE = frozenset("sin cos tan asin acos atan atan2 cbrt sinh cosh pow rem lgamma digamma".split())
ONE_BY_ONE_F64 = ONE_BY_ONE | frozenset("erf asinh acosh atanh".split())
"""Functions of which XLA has no vectors: kernels take a tenth to half of its time; of remainders of floats a fiftieth."""

MAPPED = {**dict.fromkeys(ONE_BY_ONE - {"cosh"}, 1.0), "sinh": 0.5, "pow": 0.5}
MAPPED_F64 = dict.fromkeys(ONE_BY_ONE_F64, 1.0) | dict.fromkeys("sinh cosh pow asinh log log1p expm1".split(), 0.5)
MAPPED_COMPLEX = {"log": 1.0, "pow": 1.0, "exp": 0.5, "sqrt": 0.5}
MAPPED_INTEGERS = {"random_at": 0.5}
"""Those of a map, by what it saves in calls of a sine: logarithms of f64 XLA has in vectors where it reduces them, not in loops
that write them; for random bits it goes round by round through memory."""


def is_one_by_one(eqn: JaxprEqn) -> bool:
    """Is it a function of floats of which XLA has no vectors, or random bits?"""
    dtype = eqn.outvars[0].aval.dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        return eqn.primitive.name in MAPPED_INTEGERS
    return eqn.primitive.name in (ONE_BY_ONE_F64 if dtype == jnp.float64 else ONE_BY_ONE)


def calls(eqn: JaxprEqn) -> float:
    """That a map saves for a number, of sines."""
    dtype = eqn.outvars[0].aval.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        table = MAPPED_COMPLEX
    else:
        table = MAPPED_F64 if dtype == jnp.float64 else MAPPED if jnp.issubdtype(dtype, jnp.floating) else MAPPED_INTEGERS
    return table.get(eqn.primitive.name, 0)
