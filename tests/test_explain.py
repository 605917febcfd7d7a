"""What ``explain`` says beside strategies."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import jaxprims as jp


def test_large_results_hint_at_memory_that_is_kept() -> None:
    for n, hinted in ((8 << 20, True), (7 << 20, False)):
        x = jax.ShapeDtypeStruct((n,), jnp.float32)
        (call,) = jp.explain(jp.cumsum)(x).calls
        assert ("hint: a result of 32 MB is made of fresh pages" in str(call)) == hinted == ("keep_freed_memory" in call.hint)
        assert jp.explain(jp.reduce)(x).calls[0].hint == jp.explain(jp.cumsum, target="sm_90")(x).calls[0].hint == ""


def test_what_is_made_once_is_no_call() -> None:
    """A derivative compares elements with their maximum, which a call that does nothing keeps as they are."""
    calls = jp.explain(jax.grad(lambda x: jp.reduce(jnp.sin(x) * x, jnp.maximum)))(jnp.ones(10_000)).calls
    assert calls and all(call.summary for call in calls)
