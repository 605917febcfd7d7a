"""A few random calls; ``python -m tests.random_calls`` makes many."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
import random_calls
from drawn import count

PROGRAMS = count(12)


@pytest.mark.strategies
@pytest.mark.dear
def test_random_calls() -> None:
    """Functions, operators, dtypes, shapes and transformations, drawn at random, against plain JAX."""
    wrong = [random_calls.check(seed=0, number=k, draws=4) for k in range(PROGRAMS)]
    assert not any(wrong), "\n\n".join(filter(None, wrong))


def test_differences_are_seen() -> None:
    x = jnp.array([1.0, jnp.nan, 1000.0])
    assert random_calls.differ([x], [x + 1e-3], 0) is None
    assert random_calls.differ([x], [x + 1.0], 0) is not None
    assert random_calls.differ([x], [x.astype(jnp.float16)], 0) == "result 0 is float32(3,), not float16(3,)"
    assert random_calls.differ([x], [jnp.nan_to_num(x)], 0) is not None
    assert random_calls.differ([x, x], [x], 0) == "2 results for 1"
