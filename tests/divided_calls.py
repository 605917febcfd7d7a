"""Calls of every family for several devices, and the comparison with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import moved
from references import assert_close

import jaxprims as jp

N, H = 1920, 24
RNG = np.random.default_rng(0)
X = RNG.standard_normal(N).astype(np.float32)
IDS = RNG.integers(-1, H + 1, N).astype(np.int32)
SORTED = np.sort(IDS)
OFFSETS = np.sort(RNG.integers(-5, N + 5, H)).astype(np.int32)
ROWS = X.reshape(16, -1)


def affine(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] * b[0] + b[1]


def further(a: Any, b: Any) -> Any:
    return jnp.where(jnp.abs(a) >= jnp.abs(b), a, b)


def product_and_sum(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] + b[1]


def maps(x: Any) -> Any:
    """Affine maps with factors near 1."""
    return x * 0.1 + 0.9, x


ONE = (np.float32(1), np.float32(0))
CALLS: dict[str, Callable[..., Any]] = {
    "sum by index": lambda x, i: jp.reduce_by_index(x, i, H),
    "sum of bools by index": lambda x, i: jp.reduce_by_index(x > 0, i, H, jnp.logical_or),
    "sum of halves by index": lambda x, i: jp.reduce_by_index(x.astype(jnp.bfloat16), i, H),
    "logaddexp by index": lambda x, i: jp.reduce_by_index(x, i, H, jnp.logaddexp),
    "argmax by index": lambda x, i: jp.reduce_by_index((x, jp.positions), i, H, jp.monoids.argmax),
    "rows by index": lambda x, i: jp.reduce_by_index(x.reshape(-1, 4), i.reshape(-1, 4)[:, 0], H, jnp.maximum),
    "into dest": lambda x, i: jp.reduce_by_index(x, i, H, dest=jnp.arange(H, dtype=jnp.float32)),
    "into dest alone": lambda x, i: jp.reduce_by_index(x, i, H, further, dest=jnp.ones(H)),
    "two histograms": lambda x, i: jp.genhist(
        lambda p, x: ((p % 7, x), (p % 5, (x, 1))), (jp.positions, x),
        (jp.Bins(7), jp.Bins(5, product_and_sum, identity=(1.0, 0))),
    ),
    "captured": lambda x, i: jp.genhist(lambda x, i: (i, x * jnp.linspace(0.5, 2, H)[i]), (x, i), jp.Bins(H)),
    "rows of elements": lambda x, i: jp.genhist(
        lambda p, x, i: (p, x * jnp.ones((H, 4))[i]), (jp.positions, x, i), jp.Bins(N, jnp.add)
    ),
    "sum": lambda x, i: jp.reduce(x),
    "argmin": lambda x, i: jp.argmin(x),
    "last": lambda x, i: jp.reduce(x, lambda a, b: b, init=np.float32(3)),
    "affine": lambda x, i: jp.reduce(maps(x), affine, init=(np.float32(2), np.float32(3))),
    "positions": lambda x, i: jp.reduce((x, jp.positions), map=lambda x, p: x * jnp.sin(p * 1e-3)),
    "segments by ids": lambda x, i: jp.segment_reduce(x, i, num_segments=H),
    "affine segments": lambda x, i: jp.segment_reduce(maps(x), i, affine, identity=ONE, num_segments=H),
    "segments without identity": lambda x, i: jp.segment_reduce(
        x, jp.Offsets(jnp.asarray(OFFSETS)), further, identity=jnp.float32(7) + 0 * x[0]
    ),
    "segments by offsets": lambda x, i: jp.segment_reduce(x, jp.Offsets(jnp.asarray(OFFSETS)), jnp.maximum),
    "sums": lambda x, i: jp.scan(x),
    "sums from the end": lambda x, i: jp.scan(x, reverse=True, exclusive=True),
    "affine scan": lambda x, i: jp.scan(maps(x), affine),
    "affine scan from the end": lambda x, i: jp.scan(maps(x), affine, reverse=True, exclusive=True, identity=ONE),
    "no identity": lambda x, i: jp.scan(x, further),
    "from a start": lambda x, i: jp.scan(maps(x), affine, init=(np.float32(2), np.float32(1))),
    "recurrence": lambda x, i: jp.linear_recurrence(x * 0.1 + 0.9, x, np.float32(2), reverse=True),
    "scan of positions": lambda x, i: jp.scan((x, jp.positions), map=lambda x, p: x * jnp.sin(p * 1e-3)),
    "restarts": lambda x, i: jp.scan(x, segment_starts=i == 5),
    "restarts from a start": lambda x, i: jp.scan(maps(x), affine, segment_starts=i == 5, init=ONE[::-1], exclusive=True),
    "restarts from the end": lambda x, i: jp.scan(maps(x), affine, segment_starts=i == 5, reverse=True),
    "made of a scan": lambda x, i: jp.fuse(lambda x: jnp.sin(jnp.cumsum(jnp.cos(x))) * x)(x),
    "made of a scan from the end": lambda x, i: jp.fuse(lambda x: x + jax.lax.cumsum(jnp.cos(x), reverse=True))(x),
    "gradient of what is made of a scan": lambda x, i: jp.fuse(jax.grad(lambda x: jnp.sum(jnp.sin(jnp.cumsum(jnp.sin(x))))))(x),
    "gradient by index": lambda x, i: jax.grad(lambda x: jnp.sum(jp.reduce_by_index(x, i, H, jnp.logaddexp)[:10] ** 2))(x),
    "gradient of a scan": lambda x, i: jax.grad(lambda x: jnp.sum(jp.scan(maps(x), affine)[1] ** 2))(x),
}  # fmt: skip


def check(f: Callable[..., Any], args: tuple[np.ndarray, ...], m: Mesh, spec: P, most: int) -> None:
    placed = [jax.device_put(a, NamedSharding(m, spec)) for a in args]
    compiled = jax.jit(f).lower(*placed).compile()
    assert moved(compiled) <= most
    assert_close(compiled(*placed), jax.tree.map(np.asarray, jax.jit(f)(*args)), 2e-4)


def with_gradient(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What f gives and, in the same program, the gradient of a function of that."""

    def both(x: Any) -> Any:
        y, back = jax.vjp(f, x)
        return y, back(jnp.cos(y))[0]

    return both


def blur(t: Any) -> Any:
    return 0.3 * t[-1, 0] * t[0, 1] + 0.5 * t[0, 0] + 0.2 * t[1, -1]


def heat(a: Any) -> Any:
    return 0.2 * (a[0, 0] + a[-1, 0] + a[1, 0] + a[0, -1] + a[0, 1])


def lopsided(a: Any) -> Any:
    return a[0, 0] + 0.5 * a[-2, 1] - 0.3 * a[0, 3]


def curved(a: Any) -> Any:
    return a[0, 0] + 0.3 * (a[1, 0] - a[0, 0]) * jnp.cos(a[0, 2] - a[-1, 0])
