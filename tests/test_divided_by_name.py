"""``axis_name=``: calls inside ``shard_map`` of elements that lie on several devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from divided_calls import IDS, OFFSETS, ONE, RNG, H, X, affine, further, maps
from jax.sharding import PartitionSpec as P
from meshes import mesh
from references import assert_close

import jaxprims as jp

NAMED = {
    "reduce": (lambda n: lambda x, i: jp.reduce(maps(x), affine, init=ONE, axis_name=n)),
    "positions": (lambda n: lambda x, i: jp.reduce((x, jp.positions), jp.monoids.argmax, axis_name=n)),
    "rows": (
        lambda n: lambda x, i: jp.reduce((x.reshape(-1, 2), jp.positions), map=lambda x, p: x * jnp.sin(p), axis=0, axis_name=n)
    ),
    "by index": (lambda n: lambda x, i: jp.reduce_by_index(x, i, H, axis_name=n)),
    "sorted": (lambda n: lambda x, i: jp.reduce_by_index(x, jnp.sort(i), H, jnp.logaddexp, indices_are_sorted=True, axis_name=n)),
    "into dest": (
        lambda n: lambda x, i: jp.reduce_by_index(
            (x, jp.positions), i, (H,), lambda a, b: (jnp.maximum(a[0], b[0]), a[1] + b[1]), identity=(-jnp.inf, 0),
            dest=(jnp.ones(H), jnp.arange(H)), axis_name=n,
        )
    ),
    "genhist": (
        lambda n: lambda x, i: jp.genhist(
            lambda p, x: ((p % 7, x), (p % 5, 1)), (jp.positions, x), (jp.Bins(7), jp.Bins(5)), axis_name=n
        )
    ),
    "segments": (lambda n: lambda x, i: jp.segment_reduce(x, jp.Offsets(jnp.asarray(OFFSETS)), jnp.maximum, axis_name=n)),
    "scan of positions": (
        lambda n: lambda x, i: jp.reduce(jp.scan((x, jp.positions), map=lambda x, p: x * jnp.cos(p), axis_name=n), axis_name=n)
    ),
}  # fmt: skip


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", NAMED)
def test_by_name(name: str) -> None:
    """``axis_name=`` inside ``shard_map``: the result of all devices' elements, replicated, and typed so."""
    names, f = ("x", "y"), NAMED[name]
    sharded = jax.shard_map(f(names), mesh=mesh(4, 2), in_specs=(P(names), P(names)), out_specs=P())
    i = np.sort(IDS) if name == "sorted" else IDS
    assert_close(jax.jit(sharded)(X, i), jax.tree.map(np.asarray, jax.jit(f(None))(X, i)), 2e-4)


@pytest.mark.cover(2)
@pytest.mark.parametrize("op", [jnp.add, jnp.logaddexp, affine])
def test_gradients_by_name(op: Any) -> None:
    def total(x: Any, name: Any) -> Any:
        if op is affine:
            return jp.reduce(maps(x), op, axis_name=name)[1]
        return jnp.sum(jp.reduce_by_index(x, jnp.arange(x.shape[0]) % 4, 4, op, axis_name=name) ** 2)

    x = X[:160]
    sharded = jax.shard_map(lambda x: total(x, "x"), mesh=mesh(8), in_specs=P("x"), out_specs=P())
    assert_close(jax.jit(jax.grad(sharded))(x), np.asarray(jax.jit(jax.grad(lambda x: total(x, None)))(x)), 1e-3)


@pytest.mark.parametrize("op", [jnp.maximum, jnp.minimum])
@pytest.mark.parametrize("names", [("x",), ("y", "x")])
def test_derivatives_of_extremes_by_name(op: Any, names: Any) -> None:
    """XLA's collective is of integers, which have none. Ties lie on one device each, and on all."""

    def of(name: Any) -> Any:
        def both(x: Any) -> Any:
            y = jnp.sin(x) + x**2
            bins = jp.reduce_by_index(y, jnp.arange(y.shape[0]) % 4, 4, op, axis_name=name)
            return jnp.concatenate([jnp.sin(bins), jp.reduce(y, op, axis_name=name)[None] ** 2])

        return both

    m = mesh(4, 2)
    sharded = jax.jit(jax.shard_map(of(names), mesh=m, in_specs=P(names), out_specs=P()))
    for x in (X[:160], np.zeros(32, np.float32) + 2, np.where(np.arange(32) == 9, np.nan, X[:32])):
        for transform in (jax.jacrev, jax.jacfwd, lambda f: jax.hessian(lambda x: jnp.sum(f(x)))):
            assert_close(transform(sharded)(x), np.asarray(transform(jax.jit(of(None)))(x)), 1e-4)


def test_by_name_large_slices_and_other_shapes() -> None:
    """Slices past the size from which bins are combined by shares, and positions beside leaves of several shapes."""
    x = RNG.standard_normal((16, 20_000)).astype(np.float32)
    m = mesh(8)
    f = lambda n: lambda x: jp.reduce(x, jnp.logaddexp, axis=0, axis_name=n)  # noqa: E731
    sharded = jax.shard_map(f("x"), mesh=m, in_specs=P("x"), out_specs=P())
    assert_close(jax.jit(sharded)(x), np.asarray(jax.jit(f(None))(x)), 1e-5)

    def pairs(n: Any) -> Any:
        both = lambda a, b: jax.tree.map(jnp.add, a, b)  # noqa: E731
        whole = lambda a, b, p: (a.sum() * jnp.sin(p), b.sum())  # noqa: E731
        return lambda x: jp.reduce((x[:, :32].T, x[:, 32:35].T, jp.positions), both, axis=1, map=whole, axis_name=n)

    sharded = jax.shard_map(pairs("x"), mesh=m, in_specs=P("x"), out_specs=P())
    assert_close(jax.jit(sharded)(x), jax.tree.map(np.asarray, jax.jit(pairs(None))(x)), 1e-4)


def test_by_name_an_identity_is_wanted() -> None:
    f = lambda x: jp.reduce_by_index(x, jnp.arange(x.shape[0]) % 4, 4, further, dest=jnp.zeros(4), axis_name="x")  # noqa: E731
    with pytest.raises(ValueError, match=r"not known; give identity$"):
        jax.shard_map(f, mesh=mesh(8), in_specs=P("x"), out_specs=P())(X)
