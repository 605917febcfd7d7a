"""Promises that are broken: undefined without checks, told with them, in every transformation and by either way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import jaxprims as jp

X = np.arange(6, dtype=np.float32)
GOOD, BAD = np.array([0, 0, 1, 2, 2, 3]), np.array([0, 2, 1, 2, 2, 3])
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "segment_reduce": lambda x, i: jp.segment_reduce(x, i, jnp.maximum, num_segments=4),
    "offsets": lambda x, i: jp.segment_reduce(x, jp.Offsets(i)),
    "reduce_by_index": lambda x, i: jp.reduce_by_index(x, i, 4, jnp.add, indices_are_sorted=True),
    "segment_sum": lambda x, i: jp.segment_sum(x, i, 4, indices_are_sorted=True),
    "segment_softmax": lambda x, i: jp.segment_softmax(x, i, 4, indices_are_sorted=True),
    "segment_mean": lambda x, i: jp.segment_mean(x, i, 4, indices_are_sorted=True),
    "segment_argmax": lambda x, i: x[0] * jp.segment_argmax(x, i, 4, indices_are_sorted=True),
    "segment_count": lambda x, i: x[0] * jp.segment_count(i, 4, indices_are_sorted=True),
    "segment_count, offsets": lambda x, i: x[0] * jp.segment_count(jp.Offsets(i)),
}
AROUND: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "grad": lambda f: jax.jit(jax.grad(lambda x, i: jnp.sum(f(x, i)))),
    "vmap": lambda f: lambda x, i: jax.jit(jax.vmap(f, (0, None)))(np.stack([x, x]), i),
    "scan": lambda f: lambda x, i: jax.lax.scan(lambda c, x: (c, f(x, i)), 0, np.stack([x, x])),
}


@pytest.mark.cover(7)
@pytest.mark.parametrize(("call", "around"), [(c, a) for k, c in enumerate(CALLS) for a in ["eager", list(AROUND)[1 + k % 4]]])
def test_raised(call: str, around: str) -> None:
    fn = AROUND[around](CALLS[call])
    jax.block_until_ready(fn(X, BAD))  # undefined, but not an error; and it is not what is called below
    with jp.debug_checks():
        jax.block_until_ready(fn(X, GOOD))
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="must ascend, got 1 behind 2 at position 2"):
            jax.block_until_ready(fn(X, BAD))
    jax.block_until_ready(fn(X, BAD))


@pytest.mark.parametrize("call", CALLS)
def test_by_checkify(call: str) -> None:
    fn = jax.jit(checkify.checkify(CALLS[call]))
    with jp.debug_checks("checkify"):
        assert fn(X, GOOD)[0].get() is None
        assert "must ascend" in fn(X, BAD)[0].get()


def test_unknown_way() -> None:
    with pytest.raises(ValueError, match="by must be one of"):
        jp.debug_checks("shout")


def test_no_nan_on_the_way() -> None:
    """Functions that return no NaN for empty segments make none that ``jax_debug_nans`` would find."""
    with jax.debug_nans(True):
        for f in (jp.segment_variance, jp.segment_normalize, jp.segment_max_or_constant, jp.segment_softmax):
            jax.block_until_ready(f(X, GOOD, 9))
            jax.block_until_ready(jax.grad(lambda x, f=f: jnp.sum(f(x, GOOD, 9)))(X))


def test_no_nan_where_data_have_none() -> None:
    """Functions that return NaN for empty segments make none of it without such, be every operation by itself."""
    with jax.debug_nans(True), jax.disable_jit():
        for f in (jp.segment_mean, jp.segment_var):
            jax.block_until_ready(f(X, GOOD, 4))
    for f in (jp.segment_mean, jp.segment_var):
        assert np.isnan(f(X, GOOD, 5)).tolist() == [False] * 4 + [True]
    assert np.isnan(jp.segment_var(X, GOOD, 5, ddof=2)).all()


def test_no_infinity_on_the_way() -> None:
    """Of what bins are found by nothing is infinite, not what derivatives keep of it either."""
    x = jnp.linspace(0, 9, 100_000)

    def squares(x: Any) -> Any:
        found, _ = jp.histogram(x, jnp.array([0.0, 1, 4, 5, 8, 9]), weights=x)
        return jnp.sum(found**2)

    with jax.debug_infs(True):
        for f in (squares, jax.checkpoint(squares), jax.jit(jax.checkpoint(squares))):
            jax.block_until_ready(jax.grad(f)(x))
