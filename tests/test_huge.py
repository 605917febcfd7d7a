"""More than 2^31 elements, and more than 2^31 bins. On a machine of 24 GB, in some minutes: set ``JAXPRIMS_HUGE`` to run it."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp

pytestmark = [
    pytest.mark.skipif("JAXPRIMS_HUGE" not in os.environ, reason="24 GB of memory: set JAXPRIMS_HUGE to run it"),
    pytest.mark.usefixtures("x64"),
]
HUGE = 2**31 + 10


def test_huge_number_of_elements() -> None:
    """2^31 + 10 int8 elements; positions past 2^31 are int64."""
    values = jnp.ones(HUGE, jnp.int8).at[-1].set(5)
    count = jax.jit(lambda v: jp.genhist(lambda v: (v, jnp.int64(1)), v, jp.Bins(6)))(values)
    assert count.tolist() == [0, HUGE - 1, 0, 0, 0, 1]
    last = jax.jit(lambda v: jp.genhist(lambda v, p: (v, p), (v, jp.positions), jp.Bins(6, jnp.maximum)))(values)
    assert last.dtype == jnp.int64 and last[1] == HUGE - 2 and last[5] == HUGE - 1
    best = jax.jit(lambda v: jp.genhist(lambda v, p: (0, (v, p)), (v, jp.positions), jp.Bins(1, jp.monoids.argmax)))(values)
    assert best[0].tolist() == [5] and best[1].tolist() == [HUGE - 1]


def test_huge_number_of_bins() -> None:
    """2^31 + 10 bins of int8, with indices on both sides of 2^31 and 2^32."""
    index = np.array([0, 5, 2**31 - 1, 2**31, HUGE - 1, HUGE, 2**32, 2**32 + 5, -1, 5, -(2**63), 2**63 - 1], np.int64)
    values = np.arange(1, 13, dtype=np.int8)
    for op, identity in ((jnp.add, 0), (jnp.maximum, -128)):
        got = jax.jit(lambda v, i, op=op: jp.reduce_by_index(v, i, HUGE, op))(values, index)
        assert got.shape == (HUGE,) and got.dtype == jnp.int8
        where = np.array([0, 5, 2**31 - 1, 2**31, HUGE - 1])
        assert got[where].tolist() == [1, 12 if op is jnp.add else 10, 3, 4, 5]
        assert int(jnp.sum(got != identity, dtype=jnp.int64)) == 5
        del got
    flat = jax.jit(lambda v, i: jp.reduce_by_index(v, (i, i), (2**16, 2**15 + 1)))(values, index)
    assert flat.shape == (2**16, 2**15 + 1) and flat[0, 0] == 1 and flat[5, 5] == 12


def test_many_elements_and_bins() -> None:
    """Both at once, spread over the bins."""
    n = 2**28
    index = jax.lax.broadcasted_iota(jnp.int64, (n,), 0) * 8 + 3
    got = jax.jit(lambda i: jp.reduce_by_index(jnp.ones(n, jnp.int8), i, HUGE))(index)
    assert int(jnp.sum(got, dtype=jnp.int64)) == n and got[3 + 8 * (n - 1)] == 1 and got[4] == 0
