"""50 million float32: the works that jaxprims is measured by, with the ratios it shall reach."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...contestant import Case, Inputs, close, equal, same_argmax, same_counts
from ...peers import arrays
from ...peers.futhark import futhark
from ...peers.native import native
from .inputs import long_indices, sum_by_index, uniform, values_and_indices, wide_indices

GROUP = "50 million"
LOW, HIGH = -4.0, 4.0
BINS = 100


def cases(quick: bool) -> list[Case]:
    n = 100_000 if quick else 50_000_000
    many = ((100, "100"), (60_000, "60,000"), (1_500_000, "1.5 million"))
    sums: tuple[dict[str, float], ...] = (
        {"xla": 2.2, "futhark": 0.95}, {"xla": 1.85, "futhark": 0.95}, {"xla": 1.25, "futhark": 1.2},
    )  # fmt: skip
    argmaxes: tuple[dict[str, float], ...] = {"futhark": 1.3}, {}, {"futhark": 2.2}
    moments: tuple[dict[str, float], ...] = {"futhark": 1.0}, {"futhark": 1.45}, {"futhark": 3.2}
    return [
        histogram(n),
        histogram_min_max(n),
        count(n),
        *(sum_by_index(GROUP, f"sum by index, {text} bins", n, h, t) for (h, text), t in zip(many, sums, strict=True)),
        *(argmax_by_index(f"argmax pairs, {text} bins", n, h, t) for (h, text), t in zip(many, argmaxes, strict=True)),
        *(moments_by_index(f"mean and variance, {text} bins", n, h, t) for (h, text), t in zip(many, moments, strict=True)),
        *(sums_by_index(f"count, sum, sum of squares, {text} bins", n, h) for h, text in many),
        sum_by_index(
            GROUP, "all in one bin", n, BINS, {"xla": 10.0}, lambda rng, n, h: np.full(n, h // 2, np.int32), check=close(1e-3)
        ),
    ]


def histogram(n: int) -> Case:
    def boost(bh: Any, threads: int, x: np.ndarray) -> np.ndarray:
        return bh.Histogram(bh.axis.Regular(BINS, LOW, HIGH), storage=bh.storage.Int64()).fill(x, threads=threads).view()

    contestants = {
        **native("histogram", LOW, HIGH, BINS),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.histogram(x, BINS, (LOW, HIGH))[0]),
        "xla": arrays.xla(lambda x: jnp.histogram(x, BINS, (LOW, HIGH))[0]),
        "numpy": arrays.numpy(lambda x: np.histogram(x, BINS, (LOW, HIGH))[0]),
        "torch": arrays.torch(lambda t, x: t.histc(x, BINS, LOW, HIGH)),
        "boost": arrays.boost(boost),
        "futhark": futhark("histogram", LOW, HIGH, BINS),
    }
    targets = {"xla": 80.0, "numpy": 20.0, "boost": 6.0}
    return Case(GROUP, "histogram, 100 bins", n, _normal(n), contestants, same_counts(1e-5), targets, {"bins": BINS})


def histogram_min_max(n: int) -> Case:
    def boost(bh: Any, threads: int, x: np.ndarray) -> np.ndarray:
        # the last bin of boost's axis does not hold its upper end; the next float does
        axis = bh.axis.Regular(BINS, x.min(), np.nextafter(x.max(), np.float32(np.inf)))
        return bh.Histogram(axis, storage=bh.storage.Int64()).fill(x, threads=threads).view()

    contestants = {
        **native("histogram_min_max", BINS),
        "jaxprims": arrays.jaxprims(lambda jp, x: jp.histogram(x, BINS)[0]),
        "xla": arrays.xla(lambda x: jnp.histogram(x, BINS)[0]),
        "numpy": arrays.numpy(lambda x: np.histogram(x, BINS)[0]),
        "torch": arrays.torch(lambda t, x: t.histc(x, BINS)),
        "boost": arrays.boost(boost),
        "futhark": futhark("histogram_min_max", BINS),
    }
    return Case(GROUP, "histogram, range not given", n, _normal(n), contestants, same_counts(1e-5), params={"bins": BINS})


def count(n: int) -> Case:
    """The count of a traced function of each element, here 100 x as an integer."""
    scale = np.float32(BINS)
    contestants = {
        **native("count", BINS, BINS),
        "jaxprims": arrays.jaxprims(
            lambda jp, x: jp.genhist(lambda e: ((e * scale).astype(jnp.int32), jnp.int32(1)), x, jp.Bins(BINS, jnp.add))
        ),
        "xla": arrays.xla(lambda x: jnp.zeros(BINS, jnp.int32).at[(x * scale).astype(jnp.int32)].add(1)),
        "numpy": arrays.numpy(lambda x: np.bincount((x * scale).astype(np.int64), minlength=BINS)),
        "torch": arrays.torch(lambda t, x: t.bincount((x * float(scale)).int(), minlength=BINS)),
        "futhark": futhark("count", BINS, BINS),
    }

    def make(rng: np.random.Generator) -> Inputs:
        return {"x": rng.random(n, np.float32)}

    return Case(GROUP, "count of a function, 100 bins", n, make, contestants, equal, {"futhark": 1.65}, {"bins": BINS})


def argmax_by_index(name: str, n: int, bins: int, targets: dict[str, float]) -> Case:
    def xla(values: jax.Array, indices: jax.Array) -> Any:
        largest = jax.ops.segment_max(values, indices, bins)
        position = jnp.where(values == largest[indices], jnp.arange(n, dtype=jnp.int32), jnp.iinfo(jnp.int32).max)
        return largest, jax.ops.segment_min(position, indices, bins)

    def torch(t: Any, values: Any, indices: Any) -> Any:
        largest = t.full((bins,), -t.inf).scatter_reduce_(0, indices, values, "amax")
        position = t.where(values == largest[indices], t.arange(n, dtype=t.int32), n)
        return largest, t.full((bins,), n, dtype=t.int32).scatter_reduce_(0, indices, position, "amin")

    contestants = {
        **native("argmax_by_index", bins),
        "jaxprims": arrays.jaxprims(lambda jp, v, i: jp.reduce_by_index((v, jp.positions), i, bins, jp.monoids.argmax)),
        "xla": arrays.xla(xla),
        "torch": arrays.torch(torch, long_indices),
        "futhark": futhark("argmax_by_index", bins),
    }

    def make(rng: np.random.Generator) -> Inputs:
        return {"values": rng.random(n, np.float32), "indices": uniform(rng, n, bins)}

    return Case(GROUP, name, n, make, contestants, same_argmax, targets, {"bins": bins})


def moments_by_index(name: str, n: int, bins: int, targets: dict[str, float]) -> Case:
    """Count, mean and sum of squared deviations, merged by Chan's formula, which loses no digits."""

    def merge(a: Any, b: Any) -> Any:
        (n1, m1, s1), (n2, m2, s2) = a, b
        n, d = n1 + n2, m2 - m1
        w = n2 / jnp.maximum(n, 1.0)
        return n, m1 + d * w, s1 + s2 + d * d * n1 * w

    def jaxprims(jp: Any, values: jax.Array, indices: jax.Array) -> Any:
        bins_ = jp.Bins(bins, merge, (0.0, 0.0, 0.0))
        return jp.genhist(lambda v, i: (i, (jnp.float32(1), v, jnp.float32(0))), (values, indices), bins_)

    def xla(values: jax.Array, indices: jax.Array) -> Any:
        counts = jax.ops.segment_sum(jnp.ones_like(values), indices, bins)
        means = jax.ops.segment_sum(values, indices, bins) / jnp.maximum(counts, 1.0)
        return counts, means, jax.ops.segment_sum((values - means[indices]) ** 2, indices, bins)

    def numpy(values: np.ndarray, indices: np.ndarray) -> Any:
        counts = np.bincount(indices, minlength=bins)
        means = np.bincount(indices, values, bins) / np.maximum(counts, 1)
        return counts, means, np.bincount(indices, (values - means[indices]) ** 2, bins)

    def boost(bh: Any, threads: int, values: np.ndarray, indices: np.ndarray) -> Any:
        axis = bh.axis.Integer(0, bins, underflow=False, overflow=False)
        view = bh.Histogram(axis, storage=bh.storage.Mean()).fill(indices, sample=values).view()  # threads are refused here
        return view["count"], np.where(view["count"] > 0, view["value"], 0), view["_sum_of_deltas_squared"]

    contestants = {
        **native("moments_by_index", bins),
        "jaxprims": arrays.jaxprims(jaxprims),
        "xla": arrays.xla(xla),
        "numpy": arrays.numpy(numpy, wide_indices),
        "boost": arrays.boost(boost),
        "futhark": futhark("moments_by_index", bins),
    }

    def make(rng: np.random.Generator) -> Inputs:
        return {"values": rng.standard_normal(n, np.float32) + 1, "indices": uniform(rng, n, bins)}

    return Case(GROUP, name, n, make, contestants, close(1e-3), targets, {"bins": bins})


def sums_by_index(name: str, n: int, bins: int) -> Case:
    """The same statistics as three plain sums."""

    def jaxprims(jp: Any, values: jax.Array, indices: jax.Array) -> Any:
        op = jp.Bins(bins, lambda a, b: jax.tree.map(jnp.add, a, b), (jnp.float32(0),) * 3)
        return jp.genhist(lambda v, i: (i, (jnp.float32(1), v, v * v)), (values, indices), op)

    def xla(values: jax.Array, indices: jax.Array) -> Any:
        return [jax.ops.segment_sum(x, indices, bins) for x in (jnp.ones_like(values), values, values * values)]

    def numpy(values: np.ndarray, indices: np.ndarray) -> Any:
        return [np.bincount(indices, weights, bins) for weights in (None, values, values * values)]

    contestants = {
        **native("sums_by_index", bins),
        "jaxprims": arrays.jaxprims(jaxprims),
        "xla": arrays.xla(xla),
        "numpy": arrays.numpy(numpy, wide_indices),
        "torch": arrays.torch(
            lambda t, v, i: [t.zeros(bins).scatter_add_(0, i, x) for x in (t.ones_like(v), v, v * v)], long_indices
        ),
        "futhark": futhark("sums_by_index", bins),
    }
    return Case(GROUP, name, n, values_and_indices(n, bins), contestants, params={"bins": bins})


def _normal(n: int) -> Any:
    return lambda rng: {"x": rng.standard_normal(n, np.float32)}
