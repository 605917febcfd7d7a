"""Elements on several devices that these do not divide: not gathered either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from divided_calls import CALLS, IDS, OFFSETS, ONE, RNG, SORTED, H, N, X, affine, check, further, maps
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import mesh, moved
from references import assert_close

import jaxprims as jp

UNEVEN = [
    "sum by index", "logaddexp by index", "argmax by index", "argmin",
    "sum", "segments by ids", "affine segments", "sums", "sums from the end", "affine scan", "affine scan from the end",
    "no identity", "from a start", "scan of positions", "restarts", "restarts from the end", "gradient by index",
]  # fmt: skip


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", UNEVEN)
def test_numbers_of_elements_that_devices_do_not_divide(name: str) -> None:
    """What is left of sharded elements, and fewer than there are devices: not gathered either."""
    call = CALLS[name]
    for left in (slice(3, None), slice(None, 3)):

        def some(x: Any, i: Any, left: slice = left) -> Any:
            made = call((x * x)[left], i[left])
            return [jnp.sum(y * jnp.cos(jnp.arange(1.0 * y.size).reshape(y.shape))) for y in jax.tree.leaves(made)]

        for spec in (P(("x", "y")), P("y")):
            check(some, (X, SORTED if "segments" in name else IDS), mesh(4, 2), spec, 8 * 4 * H)


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", ["no identity", "affine scan", "affine scan from the end", "recurrence", "from a start"])
def test_gradients_of_uneven_scans(name: str) -> None:
    """They go back, by an operator whose identity nobody knows: what fills up the axis is met last, in front of the first."""

    def loss(x: Any) -> Any:
        return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(CALLS[name](x[3:] * 1.5, None)))

    for g in (jax.grad(loss), lambda x: jax.jvp(jax.grad(loss), (x,), (x,))[1]):
        for m, spec in ((mesh(8), P("x")), (mesh(4, 2), P("y"))):
            check(g, (X,), m, spec, 16)


def test_constants_beside_uneven_elements() -> None:
    """A mean's ones, which are no operand."""
    means = lambda x: jp.segment_mean(x[3:], jp.Offsets(OFFSETS))  # noqa: E731
    placed = jax.device_put(X, NamedSharding(mesh(4, 2), P(("x", "y"))))
    assert_close(jax.jit(means)(placed), means(X))
    assert "segment" in str(jp.explain(means)(X))


@pytest.mark.strategies
def test_scatters_of_uneven_parts() -> None:
    """XLA's partitioner is not left to divide them: where several devices have copies of a part, elements count twice."""
    x, i = jnp.arange(64.0), jnp.zeros(64, jnp.int32)
    for n in (5, 63):
        f = lambda x, i, n=n: jp.reduce_by_index(x[:n], i[:n], 2)  # noqa: E731
        for spec in (P("x"), P("y")):
            placed = [jax.device_put(a, NamedSharding(mesh(4, 2), spec)) for a in (x, i)]
            assert jax.jit(f)(*placed).tolist() == [n * (n - 1) / 2, 0]


TOGETHER: dict[str, Callable[..., Any]] = {
    "reductions": lambda x, i: [jp.reduce(x, op) for op in (jnp.add, jnp.maximum, jnp.multiply, jnp.minimum)],
    "scans": lambda x, i: [jp.scan(x, op, reverse=True) for op in (jnp.add, jnp.maximum)],
    "by index": lambda x, i: [jp.segment_sum(x, i, H)[i], jp.segment_count(i, H), jp.segment_max(x, i, H)],
    "a mean that is read": lambda x, i: jax.grad(lambda x: jnp.sum(jnp.sin(jp.segment_mean(x, i, H)[i])))(x),
    "beside a pad": lambda x, i: [
        jnp.sum(jax.lax.with_sharding_constraint(jnp.pad(x, (0, 7), constant_values=5), P("x"))), jp.reduce(x)
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", TOGETHER)
def test_calls_that_fill_up_the_same_array(name: str) -> None:
    """Each with numbers of its own: zeros, the least, an index of no bin."""
    x, i = X[:97], np.clip(IDS[:97], 0, H - 1)
    sharding, everywhere = NamedSharding(mesh(8), P("x")), NamedSharding(mesh(8), P())

    def sharded(x: Any, i: Any) -> Any:
        return TOGETHER[name](*(jax.lax.with_sharding_constraint(a, sharding) for a in (x, i)))

    with jax.set_mesh(mesh(8)):
        got = jax.jit(sharded)(jax.device_put(x, everywhere), jax.device_put(i, everywhere))
    with jax.set_mesh(mesh(1)):
        assert_close(got, jax.tree.map(np.asarray, jax.jit(TOGETHER[name])(x, i)), 2e-4)


@pytest.mark.parametrize("op", [jnp.add, jnp.maximum, jnp.logaddexp, further], ids=lambda op: op.__name__)
@pytest.mark.cover(1)
def test_gradients_between_sharded_offsets(op: Any) -> None:
    """Which XLA's partitioner would count twice, where devices have copies of some and not as many each."""
    x, inner = X[:320], np.sort(RNG.integers(0, 320, 16)).astype(np.int32)

    def f(x: Any, inner: Any) -> Any:
        offsets = jp.Offsets(jnp.append(inner, 320))
        return jnp.sum(jnp.sin(jp.segment_reduce(x, offsets, op, identity=0.0 if op is further else None)))

    gradient = jax.grad(f)
    for spec in (P("x"), P("y"), P(("x", "y"))):
        check(gradient, (x, inner), mesh(4, 2), spec, 320)


@pytest.mark.cover(2)
@pytest.mark.parametrize("sizes", [(8,), (4, 2)])
@pytest.mark.parametrize("cut", [2, 4])
def test_lengths_that_share_a_factor_with_the_devices(sizes: tuple[int, ...], cut: int) -> None:
    """Nothing large is moved where all devices divide no axis, nor where a part of them does."""
    n = 8 * 500 + (4 if len(sizes) == 2 else 0)
    x, i = RNG.standard_normal(n).astype(np.float32), RNG.integers(0, 9, n).astype(np.int32)
    for f in (
        lambda x, i: jp.segment_sum(x[cut:], i[cut:], 9),
        lambda x, i: jp.reduce(x[cut:], jnp.logaddexp),
        lambda x, i: jp.scan(x, jnp.maximum, reverse=True),
    ):
        placed = [jax.device_put(a, NamedSharding(mesh(*sizes), P("x"))) for a in (x, i)]
        compiled = jax.jit(f).lower(*placed).compile()
        assert_close(compiled(*placed), np.asarray(jax.jit(f)(x, i)), 1e-4)
        assert moved(compiled) <= 64


MADE: dict[str, Callable[..., Any]] = {
    "pairs": lambda x, i, t: jp.genhist(lambda a, b: ((a, b), 1), (i[1:], i[:-1]), jp.Bins((9, 9))),
    "two histograms": lambda x, i, t: jp.genhist(
        lambda p, x, i: ((p % 7, t[i] * x), (jnp.stack([i, i + 1]), jnp.stack([x, 1.0]))), (jp.positions, x[1:], i[1:]),
        (jp.Bins(7, jnp.maximum), jp.Bins(9, dest=jnp.ones(9))),
    ),
    "small indices": lambda x, i, t: jp.genhist(lambda x, i: (i.astype(jnp.int8), x), (x[1:], i[1:]), jp.Bins(120)),
    "members": lambda x, i, t: jax.vmap(lambda s: jp.genhist(lambda x, i: (i, s * x * x), (x[1:], i[1:]), jp.Bins(9)))(t),
    "reduction": lambda x, i, t: jp.reduce(x[1:], jnp.logaddexp, map=lambda v: 2 * v),
    "of positions": lambda x, i, t: jp.reduce((x[1:], jp.positions), map=lambda v, p: v * jnp.cos(p)),
    "reversed scan": lambda x, i, t: jnp.sum(jp.scan(x[1:], jnp.maximum, map=jnp.sin, reverse=True) ** 2),
    "recurrence": lambda x, i, t: jnp.mean(jp.scan(x[1:], affine, map=maps, identity=ONE, reverse=True)[1] ** 2),
}  # fmt: skip


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", MADE)
def test_uneven_elements_that_functions_make(name: str) -> None:
    """What fills up an axis goes through the user's function too: it is of no bin, or the identity."""
    f, table = MADE[name], jnp.linspace(0.5, 1.5, 9)
    i = RNG.integers(0, 9, N).astype(np.int32)
    placed = [jax.device_put(a, NamedSharding(mesh(8), P("x"))) for a in (X, i)]
    compiled = jax.jit(f).lower(*placed, table).compile()
    assert_close(compiled(*placed, table), jax.tree.map(np.asarray, jax.jit(f)(X, i, table)), 1e-4)
    assert moved(compiled) <= 120
    if name not in ("pairs", "small indices"):
        back = jax.jit(jax.grad(lambda x, i, t: sum(jnp.sum(jnp.sin(v)) for v in jax.tree.leaves(f(x, i, t)))))
        assert_close(back(*placed, table), np.asarray(back(X, i, table)), 1e-3)
    plan = jp.explain(lambda x, i: f(x, i, table))(X, i)
    assert all("gathered" not in call.devices for call in plan.calls)
