"""Batches, indices that are skewed, sorted or few, and calls so small that only their cost counts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...contestant import Case, Inputs
from ...peers import arrays
from ...peers.futhark import futhark
from ...peers.native import native
from .inputs import small_integers, sum_by_index


def cases(quick: bool) -> list[Case]:
    n, part = (100_000, 50) if quick else (50_000_000, 1)
    bins = 60_000
    return [
        batched("64 histograms of 200,000", 64, 200_000 // part, 256, {"xla": 10.0}),
        batched("3 histograms of 4 million", 3, 4_000_000 // part, 256, {"xla": 10.0}),
        batched("100,000 histograms of 64", 100_000 // part, 64, 16, {"xla": 8.0}),
        sum_by_index("indices", "Zipf", n, bins, {}, zipf),
        sum_by_index("indices", "sorted, and said so", n, bins, {}, ordered, are_sorted=True),
        sum_by_index("indices", "sorted, not said", n, bins, {}, ordered),
        sum_by_index("indices", "runs of 100 equal", n, bins, {}, runs),
        sum_by_index("indices", "few updates, 20 million bins", n // 100, 20_000_000 if not quick else 200_000, {}),
        *(
            sum_by_index("small", f"{m:,} elements, 100 bins", m, 100, {"xla": 0.8} if m == 1000 else {})
            for m in (10, 1_000, 30_000, 1_000_000)
        ),
        small_function(1_000),
    ]


def zipf(rng: np.random.Generator, n: int, bins: int) -> np.ndarray:
    """Bin k with probability proportional to 1 / (k + 1), the bins shuffled."""
    shuffled = rng.permutation(bins).astype(np.int32)
    rank = np.exp(rng.random(n, np.float32) * np.float32(np.log(bins))).astype(np.int32) - 1
    return shuffled[np.clip(rank, 0, bins - 1)]


def ordered(rng: np.random.Generator, n: int, bins: int) -> np.ndarray:
    return (np.arange(n, dtype=np.int64) * bins // n).astype(np.int32)


def runs(rng: np.random.Generator, n: int, bins: int) -> np.ndarray:
    return np.repeat(rng.integers(0, bins, -(-n // 100), dtype=np.int32), 100)[:n]


def batched(name: str, batch: int, n: int, bins: int, targets: dict[str, float]) -> Case:
    """``batch`` sums by index of ``n`` elements each, under vmap."""

    def numpy(values: np.ndarray, indices: np.ndarray) -> Any:
        return np.bincount(indices, values, batch * bins).reshape(batch, bins)

    def flat(values: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return values.astype(np.float64).ravel(), (indices + np.arange(batch, dtype=np.int64)[:, None] * bins).ravel()

    contestants = {
        **native("batched_sum", bins),
        "jaxprims": arrays.jaxprims(lambda jp, v, i: jax.vmap(lambda v, i: jp.reduce_by_index(v, i, bins))(v, i)),
        "xla": arrays.xla(jax.vmap(lambda v, i: jax.ops.segment_sum(v, i, bins))),
        "numpy": arrays.numpy(numpy, flat),
        "torch": arrays.torch(lambda t, v, i: t.zeros(batch, bins).scatter_add_(1, i, v), lambda v, i: (v, i.astype(np.int64))),
        "futhark": futhark("batched_sum", bins),
    }

    def make(rng: np.random.Generator) -> Inputs:
        return {"values": small_integers(rng, batch, n), "indices": rng.integers(0, bins, (batch, n), dtype=np.int32)}

    return Case("batches", name, batch * n, make, contestants, targets=targets, params={"bins": bins, "batch": batch})


def small_function(n: int) -> Case:
    """The histogram inside a larger jitted function, where nothing but the call itself can cost."""
    contestants = {
        "jaxprims": arrays.jaxprims(lambda jp, v, i: jnp.cumsum(jp.reduce_by_index(v * 2, i, 100))),
        "xla": arrays.xla(lambda v, i: jnp.cumsum(jax.ops.segment_sum(v * 2, i, 100))),
    }

    def make(rng: np.random.Generator) -> Inputs:
        return {"values": small_integers(rng, n), "indices": rng.integers(0, 100, n, dtype=np.int32)}

    return Case("small", f"{n:,} elements within a jitted function", n, make, contestants, targets={"xla": 0.8})
