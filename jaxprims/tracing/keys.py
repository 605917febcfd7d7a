"""Arrays of random keys (``jax.random.key``), which are no arrays of numbers, and the words that they are made of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_key(dtype: Any) -> bool:
    return not isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jax.dtypes.prng_key)


@functools.cache
def threefry_dtype() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32")).dtype


def plain_dtype(dtype: Any) -> Any:
    """NumPy's dtype; that of keys as it is."""
    return dtype if is_key(dtype) else np.dtype(dtype)


def words(x: Any) -> Any:
    """Keys as their words, which are one axis more; anything else as it is."""
    return jax.random.key_data(x) if is_key(x.dtype) else x


def from_words(aval: Any) -> Callable[[Any], Any]:
    """The inverse of :func:`words`, for values like this."""
    if not is_key(aval.dtype):
        return lambda x: x
    found: list[Any] = []
    jax.eval_shape(lambda k: found.append(jax.random.key_impl(k)), jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    return lambda x: jax.random.wrap_key_data(x, impl=found[0])
