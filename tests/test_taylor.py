"""Taylor series, by ``jax.experimental.jet``: against derivatives along a curve, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.jet import jet

import jaxprims as jp

IDS = np.array([0, 0, 1, 2, 2, 2])
RNG = np.random.default_rng(0)
MORE = RNG.normal(size=40)
X, *TERMS = RNG.uniform(0.5, 1.5, 6), *RNG.normal(size=(3, 6))

CALLS: dict[str, Callable[[Any], Any]] = {
    "cumsum": jp.cumsum,
    "cumprod": jp.cumprod,
    "cummax": jp.cummax,
    "compiled cumsum": jax.jit(lambda x: jp.cumsum(x, reverse=True)),
    "scan of pairs": lambda x: jp.scan((x, x * x), jp.monoids.affine)[1],
    "reduction of exp": lambda x: jp.reduce(x, map=jnp.exp),
    "reduction by an operator": lambda x: jp.reduce(x, lambda a, b: a + b + a * b),
    "logsumexp": lambda x: jp.reduce(x, jnp.logaddexp),
    "maximum of few": lambda x: jp.reduce(x, jnp.maximum),
    "minimum of many": lambda x: jp.reduce(jnp.outer(x, MORE).ravel(), jnp.minimum),
    "maxima of rows": lambda x: jp.reduce(jnp.outer(x, MORE), jnp.maximum, axis=1),
    "greatest, and where": lambda x: jp.reduce((jnp.outer(x, MORE).ravel(), jp.positions), jp.monoids.argmax)[0],
    "segment_sum": lambda x: jp.segment_sum(x, IDS, 3),
    "bincount": lambda x: jp.bincount(IDS, x, length=3),
    "slices that overlap": lambda x: jp.reduceat(x, [0, 4, 2], jnp.multiply),
    "segment_mean": lambda x: jp.segment_mean(x, IDS, 3),
    "genhist": lambda x: jp.genhist(lambda i, x: (i, (jnp.sin(x), x * x)), (IDS, x), jp.Bins(3, jp.monoids.add)),
    "linear recurrence": lambda x: jp.linear_recurrence(x, x * x),
    "linear recurrence, one factor": lambda x: jp.linear_recurrence(0.5, x),
}


@pytest.mark.cover(2)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CALLS)
def test_series(name: str) -> None:
    call = CALLS[name]
    first, rest = jax.jit(lambda x, terms: jet(call, (x,), (terms,)))(X, TERMS)

    def along(t: Any) -> Any:
        return call(X + TERMS[0] * t + TERMS[1] * t**2 / 2 + TERMS[2] * t**3 / 6)

    derivatives = [along]
    for _ in TERMS:
        derivatives.append(lambda t, f=derivatives[-1]: jax.jvp(f, (t,), (1.0,))[1])
    wanted = jax.jit(lambda t: [f(t) for f in derivatives])(0.0)
    for k, (value, series) in enumerate(zip(first, rest, strict=True) if isinstance(first, tuple) else [(first, rest)]):
        for got, want in zip([value, *series], [jax.tree.leaves(w)[k] for w in wanted], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-9)


UNKNOWN: dict[str, Callable[[Any], Any]] = {
    "maxima by index": lambda x: jp.reduce_by_index(x, IDS, 3, jnp.maximum),
    "products by index": lambda x: jp.reduce_by_index(x, IDS, 3, jnp.multiply),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_has_no_series_says_so(name: str) -> None:
    with pytest.raises(NotImplementedError, match="jet has no rule for"):
        jet(UNKNOWN[name], (X,), (TERMS,))
