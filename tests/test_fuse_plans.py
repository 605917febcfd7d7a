"""``fuse``: of two plans, as if arrays lay in memory and as if they lay in a core's cache, the cheaper as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import RNG, kernels, same

import jaxprims as jp
from jaxprims.fusion.body import Body
from jaxprims.fusion.call import Fused

pytestmark = [pytest.mark.strategies, pytest.mark.cpu]


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def below(most: int, *shape: int) -> jax.Array:
    return jnp.asarray(RNG.integers(0, most, shape), jnp.int32)


def ranks(r: Any, source: Any, target: Any) -> Any:
    """The gradient of a step of PageRank, in which numbers of edges are read by index for two sums."""

    def step(r: Any) -> Any:
        degree = jax.ops.segment_sum(jnp.ones_like(r[source]), source, len(r))
        return jnp.mean((0.15 / len(r) + 0.85 * jax.ops.segment_sum(r[source] / degree[source], target, len(r))) ** 2)

    return jax.grad(step)(r)


@pytest.mark.parametrize("edges, reads", [(30_000, True), (3_000_000, False)])
def test_what_two_kernels_read_by_index(edges: int, reads: bool) -> None:
    """Is written for both where it stays in a core's cache, and read by index in each where it would be read from memory."""
    args = jnp.abs(normal(edges // 10)) + 0.1, below(edges // 10, edges), below(edges // 10, edges)
    read = [v.aval for k in Fused(jax.make_jaxpr(ranks)(*args)).rewritten.kernels for v in k.inputs]
    assert any(a.shape == (edges,) and a.dtype == jnp.float32 for a in read) == reads
    got, expected = jax.jit(jp.fuse(ranks))(*args), jax.jit(ranks)(*args)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3 * float(jnp.abs(expected).max()))


def chamfer(a: Any, b: Any) -> Any:
    distance = jnp.sum((a[:, None] - b) ** 2, -1)
    return jnp.mean(distance.min(0)) + jnp.mean(distance.min(1))


def likelihood(x: Any, mean: Any) -> Any:
    return jnp.mean(jax.nn.logsumexp(-0.5 * jnp.sum((x[:, None] - mean) ** 2, -1), 1))


def clusters(x: Any, centres: Any) -> Any:
    def loss(centres: Any) -> Any:
        distance = jnp.sum((x[:, None] - centres) ** 2, -1)
        return jnp.mean(jnp.sum(jax.nn.softmax(-distance, 1) * distance, 1))

    return jax.grad(loss)(centres)


CACHED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], bool]] = {
    "distances, which XLA writes for one of two minima": (chamfer, (normal(2000, 3), normal(2000, 3)), True),
    "short rows, which XLA reduces slowly": (likelihood, (normal(10_000, 3), normal(8, 3)), True),
    "short rows and sums of their columns": (clusters, (normal(15_000, 2), normal(16, 2)), True),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", CACHED)
def test_the_cheaper_plan_as_a_whole(name: str) -> None:
    """What is read, and so left to XLA, is not cheaper by itself, but by what XLA makes of it."""
    fn, args, taken = CACHED[name]
    assert bool(kernels(fn, *args)) == taken
    same(jax.jit(fn)(*args), jax.jit(jp.fuse(fn))(*args), 1e-3)


def test_sites_that_need_each_other_are_not_tried_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a chain of scans no two of them: to make the body of each two would take a time that grows with their square."""
    made, init = [0], Body.__init__

    def noted(self: Body, *args: Any) -> None:
        made[0] += 1
        init(self, *args)

    def bodies(levels: int) -> int:
        def scans(x: Any) -> Any:
            for _ in range(levels):
                x = jnp.cumsum(x) * 0.1 + x
            return x

        made[0] = 0
        assert len(Fused(jax.make_jaxpr(scans)(normal(40_000))).rewritten.kernels) >= levels
        return made[0]

    monkeypatch.setattr(Body, "__init__", noted)
    assert bodies(12) < 2.5 * bodies(6)


def test_constants_are_known_once() -> None:
    """Of a number that is made of literals in steps, each of which reads the one before twice, 2 to the 60 ways lead to them."""

    def f(x: Any) -> Any:
        c = jnp.zeros((), jnp.float32)
        for _ in range(60):
            c = jnp.sin(c) * c + c
        return jnp.sum(x * c)

    same(jax.jit(f)(normal(40_000)), jp.fuse(f)(normal(40_000)))
