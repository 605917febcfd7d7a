"""Derivatives, of both orders and of batches, of calls on numbers of elements that devices do not divide, against one device's.

Numbers are few bits long, so that products and sums are exact whichever way XLA makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exports import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import mesh
from references import assert_close

import jaxprims as jp

H = 4
RNG = np.random.default_rng(0)
X = (np.round(RNG.standard_normal(64) * 64) / 64).astype(np.float32)
IDS = RNG.integers(0, H, 64).astype(np.int32)
TABLE = (np.round(RNG.standard_normal((H, 3)) * 16) / 16).astype(np.float32)

pytestmark = pytest.mark.strategies


def offsets(x: Any) -> jp.Offsets:
    n = x.shape[0]
    return jp.Offsets(jnp.array([0, n // 3, n // 3, n - 1, n]))


def rows(x: Any, t: Any) -> Any:
    return x[:, None] * t[0]


def looped(t: Any, x: Any, i: Any) -> Any:
    return jax.lax.fori_loop(0, 2, lambda k, a: a * jnp.sin(t[i, k]), x)


def branching(t: Any, x: Any, i: Any) -> Any:
    return jax.lax.cond(i > 1, lambda: t[i, 0] * x, lambda: jnp.sin(t[i, 1]))


CALLS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, i, t: jp.segment_softmax(x, i, H),
    "softmax between offsets": lambda x, i, t: jp.segment_softmax(x, offsets(x)),
    "softmax of rows": lambda x, i, t: jp.segment_softmax(rows(x, t), i, H),
    "logsumexp": lambda x, i, t: jp.segment_logsumexp(x, i, H),
    "variance": lambda x, i, t: jp.segment_var(x, i, H),
    "product": lambda x, i, t: jp.segment_prod(x, i, H),
    "logaddexp by index": lambda x, i, t: jp.reduce_by_index(x, i, H, jnp.logaddexp, dest=t[:, 0]),
    "hypot of rows": lambda x, i, t: jp.reduce_by_index(rows(x, t), i, H, jnp.hypot),
    "of a table": lambda x, i, t: jp.genhist(lambda x, i: (i % 3, jnp.sin(x * t[i])), (x, i), jp.Bins(3, jnp.logaddexp)),
    "of themselves": lambda x, i, t: jp.reduce((i, jp.positions), map=lambda i, p: jnp.sin(x[i] * x[p // 2])),
    "of a table, in a loop": lambda x, i, t: jp.reduce((x, i), map=lambda x, i: looped(t, x, i)),
    "of a table, in a branch": lambda x, i, t: jp.segment_reduce(
        (x, i), offsets(x), jnp.logaddexp, map=lambda x, i: branching(t, x, i)
    ),
    "scan of a table": lambda x, i, t: jp.scan((x, i), jnp.logaddexp, map=lambda x, i: x * t[i, 0]),
    "recurrence": lambda x, i, t: jp.linear_recurrence(jnp.cos(x), x, t[0, 0]),
    "scan": lambda x, i, t: jp.scan(x, jnp.logaddexp, reverse=True, exclusive=True),
    "restarts": lambda x, i, t: jp.scan(x, jnp.logaddexp, segment_starts=i == 2),
    "restarts from a start": lambda x, i, t: jp.scan(x, jnp.logaddexp, segment_starts=i == 2, init=t[0, 0]),
    "segments": lambda x, i, t: jp.segment_reduce(x, jnp.sort(i), lambda a, b: a + b + a * b / 8, identity=0.0, num_segments=6),
}  # fmt: skip


def waves(y: Any) -> Any:
    return jnp.sum(jnp.sin(y) * jnp.cos(jnp.arange(1.0 * y.size)).reshape(y.shape))


ORDERS: dict[str, Callable[..., Any]] = {
    "grad": lambda g: jax.grad(g, (0, 2)),
    "grad of grad": lambda g: jax.grad(lambda *xs: sum(map(waves, jax.grad(g, (0, 2))(*xs))), (0, 2)),
    "jvp of grad": lambda g: lambda x, i, t: jax.jvp(
        lambda x, t: jax.grad(g, (0, 2))(x, i, t), (x, t), (jnp.cos(x), jnp.sin(t))
    )[1],
    "vmap of grad": lambda g: lambda x, i, t: jax.vmap(lambda s: jax.grad(g, (0, 2))(x * s, i, t))(jnp.arange(1.0, 4.0)),
    "grad of vmap": lambda g: jax.grad(lambda x, i, t: jnp.sum(jax.vmap(lambda s: g(x * s, i, t))(jnp.arange(1.0, 4.0))), (0, 2)),
}  # fmt: skip


SPECS = (P("x"), P("y"), P(("y", "x")), P(("x", "y")))


@pytest.mark.cover(2)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", CALLS)
def test_derivatives_of_uneven_elements(name: str, order: str) -> None:
    seed = np.random.default_rng([list(CALLS).index(name), list(ORDERS).index(order)])
    n, spec = int(seed.choice([5, 7, 13, 31, 63])), SPECS[int(seed.integers(0, len(SPECS)))]
    first = int(seed.integers(0, 65 - n))

    def g(x: Any, i: Any, t: Any) -> Any:
        return waves(CALLS[name]((x * 1)[first : first + n], i[first : first + n], t))

    f, table = jax.jit(ORDERS[order](g)), P("x") if seed.integers(0, 2) else P()
    placed = [jax.device_put(a, NamedSharding(mesh(4, 2), s)) for a, s in zip((X, IDS, TABLE), (spec, spec, table), strict=True)]
    assert_close(f(*placed), jax.tree.map(np.asarray, f(X, IDS, TABLE)), 2e-3)


def test_batches_that_devices_do_not_divide() -> None:
    """Members whose indices are their own, of one table."""
    i = np.tile(IDS[:6], (64, 1)) + np.arange(64)[:, None] % 3

    def f(x: Any, i: Any, t: Any) -> Any:
        of_member = lambda x, i: jp.reduce((i, jp.positions), map=lambda i, p: jnp.sin(t[i % H, 0] * x + p))  # noqa: E731
        return waves(jax.vmap(of_member)((x * 1)[:13], i[:13]))

    gradient = jax.jit(jax.grad(f, (0, 2)))
    for spec in (P("x"), P("y"), P(("x", "y"))):
        placed = [jax.device_put(a, NamedSharding(mesh(4, 2), s)) for a, s in zip((X, i, TABLE), (spec, spec, P()), strict=True)]
        assert_close(gradient(*placed), jax.tree.map(np.asarray, gradient(X, i, TABLE)), 1e-4)


def test_first_elements_of_batches() -> None:
    """A batch's updates at one place are a scatter, which XLA's partitioner would make on each device."""

    def f(x: Any) -> Any:
        of_row = jax.grad(lambda a: waves(jp.linear_recurrence(a, jnp.cos(a))))
        return jax.vmap(of_row)(jnp.sin((x * 1)[1:] * jnp.arange(1.0, 4.0)[:, None]))

    for spec in (P("x"), P("y"), P(("x", "y"))):
        assert_close(jax.jit(f)(jax.device_put(X, NamedSharding(mesh(4, 2), spec))), np.asarray(jax.jit(f)(X)), 1e-4)


def test_scans_with_wide_numbers() -> None:
    """Devices' numbers have 32 bits whatever those of others have."""
    x = X.astype(np.float64)
    jax.config.update("jax_enable_x64", True)  # for all threads: the partitioner's is another one
    try:
        placed = jax.device_put(x, NamedSharding(mesh(4, 2), P(("x", "y"))))
        got = np.asarray(jax.jit(jp.scan)(placed))
    finally:
        jax.config.update("jax_enable_x64", False)
    assert_close(got, np.cumsum(x), 1e-12)


@pytest.mark.cover(4)
@pytest.mark.parametrize("n", [5, 63])
@pytest.mark.parametrize("name", ["sum by index", "maximum by index", "segments", "gradient of a softmax"])
def test_exported_calls_of_uneven_elements(name: str, n: int) -> None:
    """Which ask nobody how they are divided: XLA's scatters are not left to its partitioner."""
    f = {
        "sum by index": lambda x, i: jp.reduce_by_index(x[:n], i[:n], H),
        "maximum by index": lambda x, i: jp.segment_max(x[:n], i[:n], H),
        "segments": lambda x, i: jp.segment_reduce(x[:n], jnp.sort(i[:n]), num_segments=H),
        "gradient of a softmax": jax.grad(lambda x, i: waves(jp.segment_softmax(x[:n], i[:n], H))),
    }[name]
    for spec in (P("x"), P("y")):
        placed = [jax.device_put(a, NamedSharding(mesh(4, 2), spec)) for a in (X, IDS)]
        types = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for a in placed]
        exported = export(jax.jit(f))(*types)
        assert_close(jax.jit(exported.call)(*placed), np.asarray(jax.jit(f)(X, IDS)), 1e-4)
