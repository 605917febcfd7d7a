"""Applications that are histograms (Henriksen et al. 2020, V-C and V-D)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...contestant import Case, Inputs, close, equal, same_counts
from ...peers import arrays
from ...peers.futhark import futhark
from ...peers.native import native
from .inputs import small_integers

GROUP = "applications"


def cases(quick: bool) -> list[Case]:
    part = 50 if quick else 1
    return [
        saturating_count(20_000_000 // part),
        pair_separations(sets=4 if quick else 100, points=64 if quick else 400),
        *(cluster_sums(25_600_000 // (d * part), d, k) for k, d in ((5, 256), (1024, 256), (1024, 16), (64, 3))),
        joint_histogram(2_000_000 // part, 53),
        joint_histogram(8_000_000 // part, 203),
        forces(pairs=1_380_160 // part),
    ]


def saturating_count(n: int) -> Case:
    """Parboil histo: 996 x 1024 bins, 8-bit counts that stop at 255, of points that crowd in the middle."""
    rows, columns = 996, 1024
    bins = rows * columns

    def make(rng: np.random.Generator) -> Inputs:
        y, x = (rng.standard_normal(n, np.float32) * np.float32(size / 12) + size / 2 for size in (rows, columns))
        return {"indices": np.clip(y, 0, rows - 1).astype(np.int32) * columns + np.clip(x, 0, columns - 1).astype(np.int32)}

    def op(a: jax.Array, b: jax.Array) -> jax.Array:
        return a + jnp.minimum(b, jnp.uint8(255) - a)

    contestants = {
        **native("saturating_count", bins),
        "jaxprims": arrays.jaxprims(lambda jp, i: jp.genhist(lambda e: (e, jnp.uint8(1)), i, jp.Bins(bins, op, jnp.uint8(0)))),
        "xla": arrays.xla(lambda i: jnp.minimum(jnp.zeros(bins, jnp.int32).at[i].add(1), 255).astype(jnp.uint8)),
        "numpy": arrays.numpy(lambda i: np.minimum(np.bincount(i, minlength=bins), 255), lambda i: (i.astype(np.int64),)),
        "torch": arrays.torch(lambda t, i: t.bincount(i, minlength=bins).clamp_(max=255)),
        "futhark": futhark("saturating_count", bins),
    }
    return Case(GROUP, "saturating 8-bit counts, 996 x 1024 bins", n, make, contestants, equal, params={"bins": bins})


def pair_separations(sets: int, points: int) -> Case:
    """Parboil tpacf: for each of many sets, the angles of all pairs data-random and random-random, 22 bins each."""
    bins = 22
    angles = np.radians(np.logspace(-1, np.log10(160), bins - 1))  # less than 0.1 degrees is lost in float32

    def make(rng: np.random.Generator) -> Inputs:
        sphere = rng.standard_normal((sets + 1, points, 3), np.float32)
        sphere /= np.linalg.norm(sphere, axis=-1, keepdims=True)
        return {"data": sphere[0], "random": sphere[1:], "bounds": np.cos(angles).astype(np.float32)}

    def products(data: jax.Array, random: jax.Array) -> tuple[jax.Array, jax.Array]:
        dot = jax.vmap(lambda a, b: jnp.dot(a, b.T, precision="highest").reshape(-1), in_axes=(None, 0))
        return dot(data, random), jax.vmap(lambda r: jnp.dot(r, r.T, precision="highest").reshape(-1))(random)

    def bin_of(bounds: jax.Array, dot: jax.Array) -> jax.Array:
        return sum((dot < bounds[k]).astype(jnp.int32) for k in range(bins - 1))

    def jaxprims(jp: Any, data: jax.Array, random: jax.Array, bounds: jax.Array) -> Any:
        def counts(a: jax.Array, b: jax.Array) -> jax.Array:
            dots = sum(a[:, None, k] * b[:, k] for k in range(3))
            return jnp.zeros(bins, jnp.int32).at[bin_of(bounds, dots)].add(1)

        return jp.fuse(jax.vmap(lambda r: (counts(data, r), counts(r, r))))(random)

    def xla(data: jax.Array, random: jax.Array, bounds: jax.Array) -> Any:
        count = jax.vmap(lambda dot: jnp.zeros(bins, jnp.int32).at[bin_of(bounds, dot)].add(1))
        return [count(dots) for dots in products(data, random)]

    def numpy(data: np.ndarray, random: np.ndarray, bounds: np.ndarray) -> Any:
        def count(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            # searchsorted counts the bounds at or below -dot; they are few, and sorted so
            return np.bincount(np.searchsorted(-bounds, -(a @ b.T).ravel()), minlength=bins)

        return np.stack([count(data, r) for r in random]), np.stack([count(r, r) for r in random])

    contestants = {
        **native("pair_separations", bins),
        "jaxprims": arrays.jaxprims(jaxprims),
        "xla": arrays.xla(xla),
        "numpy": arrays.numpy(numpy),
        "futhark": futhark("pair_separations", bins),
    }
    n = 2 * sets * points * points
    return Case(GROUP, f"tpacf, 2 x {sets} histograms of pairs", n, make, contestants, same_counts(1e-4), params={"bins": bins})


def cluster_sums(n: int, d: int, k: int) -> Case:
    """k-means: how many points each cluster has, and their sum, in one pass."""

    def make(rng: np.random.Generator) -> Inputs:
        return {"membership": rng.integers(0, k, n, dtype=np.int32), "points": small_integers(rng, n, d)}

    def jaxprims(jp: Any, membership: jax.Array, points: jax.Array) -> Any:
        both = [jp.Bins(k, jnp.add), jp.Bins(k, jnp.add)]
        return jp.genhist(lambda m, p: ((m, jnp.int32(1)), (m, p)), (membership, points), both)

    def xla(membership: jax.Array, points: jax.Array) -> Any:
        return jnp.zeros(k, jnp.int32).at[membership].add(1), jax.ops.segment_sum(points, membership, k)

    def numpy(membership: np.ndarray, points: np.ndarray) -> Any:
        counts = np.bincount(membership, minlength=k)
        order = np.argsort(membership, kind="stable")
        used = np.flatnonzero(counts)
        sums = np.zeros((k, d), np.float32)
        sums[used] = np.add.reduceat(points[order], (np.cumsum(counts) - counts)[used], axis=0)
        return counts, sums

    contestants = {
        **native("cluster_sums", k),
        "jaxprims": arrays.jaxprims(jaxprims),
        "xla": arrays.xla(xla),
        "numpy": arrays.numpy(numpy),
        "torch": arrays.torch(lambda t, m, p: [t.bincount(m, minlength=k), t.zeros(k, d).index_add_(0, m, p)]),
        "futhark": futhark("cluster_sums", k),
    }
    return Case(GROUP, f"k-means sums, k = {k}, d = {d}", n * d, make, contestants, equal, params={"k": k, "d": d})


def joint_histogram(n: int, h: int) -> Case:
    """Image registration: a pair of pixels updates 16 bins with cubic B-spline weights."""

    def make(rng: np.random.Generator) -> Inputs:
        return {axis: rng.random(n, np.float32) * np.float32(h - 3 - 1e-3) for axis in ("x", "y")}

    def spline(x: Any) -> list[Any]:
        t = x - jnp.floor(x)
        t2, t3 = t * t, t * t * t
        return [(1 - t3 + 3 * t2 - 3 * t) / 6, (3 * t3 - 6 * t2 + 4) / 6, (1 - 3 * t3 + 3 * t2 + 3 * t) / 6, t3 / 6]

    def updates(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        wx, wy = spline(x), spline(y)
        corner = y.astype(jnp.int32) * h + x.astype(jnp.int32)
        indices = jnp.stack([corner + (i * h + j) for i in range(4) for j in range(4)], -1)
        return indices, jnp.stack([wx[j] * wy[i] for i in range(4) for j in range(4)], -1)

    def xla(x: jax.Array, y: jax.Array) -> jax.Array:
        indices, weights = updates(x, y)
        return jax.ops.segment_sum(weights.reshape(-1), indices.reshape(-1), h * h)

    def numpy(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        out = np.zeros(h * h)
        corner, wx, wy = y.astype(np.int64) * h + x.astype(np.int64), _spline_numpy(x), _spline_numpy(y)
        for i in range(4):
            for j in range(4):
                out += np.bincount(corner + (i * h + j), wx[j] * wy[i], h * h)
        return out

    contestants = {
        **native("joint_histogram", h),
        "jaxprims": arrays.jaxprims(lambda jp, x, y: jp.genhist(updates, (x, y), jp.Bins(h * h, jnp.add))),
        "xla": arrays.xla(xla),
        "numpy": arrays.numpy(numpy),
        "futhark": futhark("joint_histogram", h),
    }
    name = f"joint B-spline histogram, {n:,} pairs, {h} x {h} bins"
    return Case(GROUP, name, n, make, contestants, close(1e-3), params={"bins": h * h, "updates": 16})


def _spline_numpy(x: np.ndarray) -> list[np.ndarray]:
    t = x - np.floor(x)
    t2, t3 = t * t, t * t * t
    return [(1 - t3 + 3 * t2 - 3 * t) / 6, (3 * t3 - 6 * t2 + 4) / 6, (1 - 3 * t3 + 3 * t2 + 3 * t) / 6, t3 / 6]


def forces(pairs: int) -> Case:
    """435.gromacs, loop inl1100: the forces on the neighbours, three updates for each pair, a race factor of about 79."""
    particles = 23_178
    groups = 60  # of particles that see the same few neighbours
    near = particles // 79

    def make(rng: np.random.Generator) -> Inputs:
        group = np.arange(pairs, dtype=np.int64) * groups // pairs
        first = group * (particles - near) // groups
        return {
            "i": (np.arange(pairs, dtype=np.int64) * particles // pairs).astype(np.int32),
            "j": (first + rng.integers(0, near, pairs)).astype(np.int32),
            "position": rng.random((particles, 3), np.float32).ravel() * 8,
        }

    def force(dx: Any, dy: Any, dz: Any) -> Any:
        inv = jax.lax.rsqrt(dx * dx + dy * dy + dz * dz + np.float32(0.5))
        inv2 = inv * inv
        inv6 = inv2 * inv2 * inv2
        return (12 * inv6 * inv6 - 6 * inv6 + inv) * inv2

    def jaxprims(jp: Any, i: jax.Array, j: jax.Array, position: jax.Array) -> jax.Array:
        def pair(i: jax.Array, j: jax.Array) -> Any:
            d = [position[3 * i + c] - position[3 * j + c] for c in range(3)]
            f = -force(*d)
            return jnp.stack([3 * j, 3 * j + 1, 3 * j + 2]), jnp.stack([f * x for x in d])

        return jp.genhist(pair, (i, j), jp.Bins(3 * particles, jnp.add))

    def xla(i: jax.Array, j: jax.Array, position: jax.Array) -> jax.Array:
        rows = position.reshape(-1, 3)
        d = rows[i] - rows[j]
        f = -force(d[:, 0], d[:, 1], d[:, 2])
        return jax.ops.segment_sum(d * f[:, None], j, particles).reshape(-1)

    def numpy(i: np.ndarray, j: np.ndarray, position: np.ndarray) -> np.ndarray:
        rows = position.reshape(-1, 3)
        d = rows[i] - rows[j]
        inv2 = 1 / ((d * d).sum(1) + np.float32(0.5))
        inv6 = inv2 * inv2 * inv2
        f = -(12 * inv6 * inv6 - 6 * inv6 + np.sqrt(inv2)) * inv2
        return np.stack([np.bincount(j, f * d[:, c], particles) for c in range(3)], 1).reshape(-1)

    contestants = {
        **native("forces"),
        "jaxprims": arrays.jaxprims(jaxprims),
        "xla": arrays.xla(xla),
        "numpy": arrays.numpy(numpy),
        "futhark": futhark("forces"),
    }
    params = {"bins": 3 * particles}
    return Case(GROUP, "molecular dynamics, force loop", 3 * pairs, make, contestants, close(1e-3), params=params)
