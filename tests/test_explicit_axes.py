"""Arrays whose types say where they are: what JAX's own functions refuse there, and what eager derivatives keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from divided_calls import further
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import mesh
from references import assert_close

import jaxprims as jp

RNG = np.random.default_rng(0)


def check(f: Callable[..., Any], sizes: tuple[int, ...], *args: tuple[Any, P]) -> None:
    """As without a mesh, eagerly and jitted; on automatic axes too."""
    wanted = jax.tree.map(np.asarray, jax.jit(f)(*(x for x, _ in args)))
    for explicit in (True, False):
        m = mesh(*sizes, explicit=explicit)
        with jax.set_mesh(m):
            placed = [jax.device_put(x, NamedSharding(m, spec)) for x, spec in args]
            for g in (f, jax.jit(f)) if explicit else (jax.jit(f),):
                assert_close(jax.tree.map(np.asarray, g(*placed)), wanted, 1e-4)


OF_MEMBERS: dict[str, Callable[..., Any]] = {
    "histogram": lambda x, w: jp.histogram(x, 8, (0.0, 1.0), weights=w)[0],
    "made indices": lambda x, w: jp.genhist(lambda x, w: ((x * 8).astype(jnp.int32), w * x), (x, w), jp.Bins(8)),
    "extremes": lambda x, w: jp.reduce_by_index(w, (x * 8).astype(jnp.int32), 8, jnp.maximum),
    "scan": lambda x, w: jp.scan(x * w, jnp.logaddexp),
    "segments": lambda x, w: jp.segment_reduce(x * w, jnp.arange(x.shape[0]) // 5, jnp.multiply, num_segments=13),
    "stencil": lambda x, w: jp.stencil(lambda x, w: x[-1] * w[1] + jnp.sin(x[0]), (x, w), boundary="wrap"),
}


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", OF_MEMBERS)
@pytest.mark.dear
def test_gradients_of_members(name: str) -> None:
    """Of a batch, in whose rules nothing is explicit: neither the batch's axis nor what eager derivatives kept."""
    x, w = RNG.random((2, 8, 64), np.float32)
    f = lambda x, w: jax.grad(lambda w: jnp.sum(jnp.sin(jax.vmap(OF_MEMBERS[name])(x, w))))(w)  # noqa: E731
    for spec in (P("x"), P(None, "x"), P("y", "x")):
        check(f, (4, 2), (x, spec), (w, spec))


@pytest.mark.cover(1)
@pytest.mark.parametrize("spec", [P("x"), P(("x", "y")), P()])
@pytest.mark.parametrize("op", [jnp.add, further], ids=["add", "further"])
@pytest.mark.dear
def test_slices_between_sharded_indices(op: Any, spec: P) -> None:
    """``reduceat`` and its gradient, along an axis that is sharded and beside one."""
    x, axis = RNG.random((16, 8), np.float32), int(RNG.integers(2))
    at = RNG.integers(0, x.shape[axis], 8).astype(np.int32)
    f = lambda x, at: jp.reduceat(x, at, op, axis)  # noqa: E731
    both = lambda x, at: (f(x, at), jax.grad(lambda x: jnp.sum(jnp.sin(f(x, at))))(x))  # noqa: E731
    check(both, (4, 2), (x, P("x")), (at, spec))
