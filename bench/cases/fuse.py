"""Whole programs, as people write them who know nothing of this library: ``jax.jit`` against ``jax.jit`` of ``jp.fuse``."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxprims as jp

from ..contestant import Case, Inputs
from ..peers import arrays
from . import fuse_peers
from .everyday import agree

Fn = Callable[..., Any]

FORWARD, GRADIENT, FUSED_GRADIENT = "forward", "grad of fused", "fused grad"
KINDS = (FORWARD, GRADIENT, FUSED_GRADIENT)
N = 4_000_000


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of arrays, of which ``inputs(rng, n)`` makes some with n numbers in all, or so. The first is differentiated."""

    name: str
    inputs: Callable[[np.random.Generator, int], Inputs]
    function: Fn
    differentiable: bool = True


def cases(quick: bool) -> list[Case]:
    n = 50_000 if quick else N
    return [
        Case(kind, p.name, n, functools.partial(_sized, p, n), _contestants(p, kind), agree, _targets(p, kind))
        for p in PROGRAMS
        for kind in KINDS
        if kind == FORWARD or p.differentiable
    ]


def _targets(p: Program, kind: str) -> dict[str, float]:
    return {"xla": 0.95} | ({"futhark": 1.2} if kind == FORWARD and p.name in fuse_peers.BY_HAND else {})


def _sized(p: Program, n: int, rng: np.random.Generator) -> Inputs:
    return p.inputs(rng, n)


def _contestants(p: Program, kind: str) -> dict[str, Any]:
    if kind == FORWARD:
        both = {"jaxprims": arrays.xla(jp.fuse(p.function)), "xla": arrays.xla(p.function)}
        return both | fuse_peers.contestants(p.name)
    plain = gradient(p.function)
    ours = gradient(jp.fuse(p.function)) if kind == GRADIENT else jp.fuse(plain)
    return {"jaxprims": arrays.xla(ours), "xla": arrays.xla(plain)}


def gradient(fn: Fn) -> Fn:
    def loss(*xs: Any) -> Any:
        return sum(jnp.sum(y**3) for y in jax.tree.leaves(fn(*xs)) if jnp.issubdtype(y.dtype, jnp.inexact))

    return jax.grad(loss)


def plots(report: dict[str, Any], directory: Path, stem: str) -> list[Path]:
    from .. import plots  # matplotlib is only needed here

    return list(plots.heat_map(report, directory / f"{stem}.png", KINDS, "xla"))


def verdicts(report: dict[str, Any]) -> Iterator[str]:
    for kind in KINDS:
        ratios = {c["name"]: c["ratios"]["xla"] for c in report["cases"] if c["group"] == kind and "xla" in c["ratios"]}
        if ratios:
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            below = sorted((r, name) for name, r in ratios.items() if r < 0.95)
            yield f"{kind}: {len(ratios)} programs, {len(below)} slower than plain JAX; geometric mean {mean:.2f}"
            yield from (f"  {r:.2f}  {name}" for r, name in below)


# --- inputs -------------------------------------------------------------------------------------------------------------------


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def _one(rng: np.random.Generator, n: int) -> Inputs:
    return {"x": _normal(rng, n)}


def _two(rng: np.random.Generator, n: int) -> Inputs:
    return {"x": _normal(rng, n), "y": _normal(rng, n)}


def _rows(rng: np.random.Generator, n: int) -> Inputs:
    return {"x": _normal(rng, n // 1000, 1000)}


def _grouped(rng: np.random.Generator, n: int) -> Inputs:
    return {"x": _normal(rng, n), "group": rng.integers(0, 1000, n).astype(np.int32)}


def _points(rng: np.random.Generator, n: int) -> Inputs:
    return {"points": _normal(rng, n // 2, 2), "centres": _normal(rng, 16, 2)}


def _graph(rng: np.random.Generator, n: int) -> Inputs:
    nodes = n // 20
    return {
        "w": _normal(rng, n),
        "h": _normal(rng, nodes),
        "source": rng.integers(0, nodes, n).astype(np.int32),
        "target": np.sort(rng.integers(0, nodes, n)).astype(np.int32),
    }


def _features(rng: np.random.Generator, n: int) -> Inputs:
    nodes, edges = n // 160, n // 16
    return {
        "h": _normal(rng, nodes, 16),
        "w": _normal(rng, edges),
        "source": rng.integers(0, nodes, edges).astype(np.int32),
        "target": rng.integers(0, nodes, edges).astype(np.int32),
    }


def _classes(rng: np.random.Generator, n: int) -> Inputs:
    return {"x": _normal(rng, n // 1000, 1000), "label": rng.integers(0, 1000, n // 1000).astype(np.int32)}


def _few_classes(rng: np.random.Generator, n: int) -> Inputs:
    return {"x": _normal(rng, n // 10, 10), "label": rng.integers(0, 10, n // 10).astype(np.int32)}


def _short_rows(rng: np.random.Generator, n: int) -> Inputs:
    return {"x": _normal(rng, n // 8, 8)}


def _labelled(rng: np.random.Generator, n: int) -> Inputs:
    return {"x": _normal(rng, n // 16, 16), "label": rng.integers(0, 100, n // 16).astype(np.int32)}


def _guessed(rng: np.random.Generator, n: int) -> Inputs:
    return {name: rng.integers(0, 100, n // 16).astype(np.int32) for name in ("label", "guess")}


def _options(rng: np.random.Generator, n: int) -> Inputs:
    k = n // 3
    return {
        "price": rng.uniform(5, 30, k).astype(np.float32),
        "strike": rng.uniform(1, 100, k).astype(np.float32),
        "years": rng.uniform(0.25, 10, k).astype(np.float32),
    }


def _rewards(rng: np.random.Generator, n: int) -> Inputs:
    return {"reward": _normal(rng, n), "done": rng.random(n) < 0.001}


def _grid(rng: np.random.Generator, n: int) -> Inputs:
    side = math.isqrt(n)
    return {"u": _normal(rng, side, side)}


# --- Larsen 2010 --------------------------------------------------------------------------------------------------------------


def saxpy(x: Any, y: Any) -> Any:
    return 2.5 * x + y


def sdot(x: Any, y: Any) -> Any:
    return jnp.dot(x, y)


def rmse(x: Any, y: Any) -> Any:
    return jnp.sqrt(jnp.mean((x - y) ** 2))


def black_scholes(price: Any, strike: Any, years: Any) -> Any:
    rate, volatility = 0.02, 0.3
    d1 = (jnp.log(price / strike) + (rate + volatility**2 / 2) * years) / (volatility * jnp.sqrt(years))
    d2 = d1 - volatility * jnp.sqrt(years)
    discounted = strike * jnp.exp(-rate * years)
    call = price * jax.scipy.stats.norm.cdf(d1) - discounted * jax.scipy.stats.norm.cdf(d2)
    return jnp.sum(call), jnp.sum(call - price + discounted)


def great_circle(x: Any, y: Any) -> Any:
    """How far each place of a track is from the next one of another, on a sphere: nothing is reduced."""
    (latitude, longitude), (others, beside) = jnp.split(x, 2), jnp.split(y, 2)
    half = jnp.sin((others - latitude) / 2) ** 2
    half += jnp.cos(latitude) * jnp.cos(others) * jnp.sin((beside - longitude) / 2) ** 2
    bearing = jnp.arctan2(jnp.sin(beside - longitude), jnp.tan(others) - jnp.tan(latitude))
    return 2 * jnp.arcsin(jnp.sqrt(jnp.minimum(half, 1))), bearing


def forward_difference(x: Any) -> Any:
    return x[1:] - x[:-1]


def weighted_moving_average(x: Any) -> Any:
    return 0.25 * x[:-2] + 0.5 * x[1:-1] + 0.25 * x[2:]


def jacobi(u: Any) -> Any:
    return u.at[1:-1, 1:-1].set(0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]))


def matrix_vector(x: Any) -> Any:
    return x @ jnp.linspace(0, 1, x.shape[1])


# --- stencils -----------------------------------------------------------------------------------------------------------------


def five_points_padded(u: Any) -> Any:
    p = jnp.pad(u, 1)
    return u + 0.1 * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u)


def five_points_rolled(u: Any) -> Any:
    return u + 0.1 * (jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 4 * u)


def window_mean(x: Any) -> Any:
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, (16,), (1,), "SAME") / 16


def box_blur(u: Any) -> Any:
    return jax.lax.reduce_window(u, 0.0, jax.lax.add, (3, 3), (1, 1), "SAME") / 9


def convolved(x: Any) -> Any:
    return jnp.convolve(x, jnp.array([1.0, 4.0, 6.0, 4.0, 1.0]) / 16, "same")


def squared_differences(x: Any) -> Any:
    return jnp.sum((x[1:] - x[:-1]) ** 2)


def total_variation(u: Any) -> Any:
    return jnp.sum(jnp.sqrt(jnp.diff(u, axis=0)[:, 1:] ** 2 + jnp.diff(u, axis=1)[1:] ** 2 + 1e-6))


def slopes(u: Any) -> Any:
    return jnp.gradient(u)


def six_steps(u: Any) -> Any:
    return jax.lax.fori_loop(0, 6, lambda _, v: five_points_rolled(v), u)


def wave(u: Any) -> Any:
    def step(_: Any, both: Any) -> Any:
        now, before = both
        p = jnp.pad(now, 1, mode="edge")
        return 2 * now - before + 0.1 * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * now), now

    return jax.lax.fori_loop(0, 10, step, (u, u))[0]


# --- statistics ---------------------------------------------------------------------------------------------------------------


def moments(x: Any) -> Any:
    return jnp.mean(x), jnp.var(x), jnp.min(x), jnp.max(x), jnp.argmax(x), jnp.sum(x > 0)


def kurtosis(x: Any) -> Any:
    d = x - jnp.mean(x)
    return jnp.mean(d**4) / jnp.mean(d**2) ** 2


def correlation(x: Any, y: Any) -> Any:
    a, b = x - x.mean(), y - y.mean()
    return jnp.sum(a * b) / jnp.sqrt(jnp.sum(a * a) * jnp.sum(b * b))


def two_histograms(x: Any, y: Any) -> Any:
    def counts(t: Any) -> Any:
        return jnp.zeros(100, jnp.int32).at[jnp.clip(((t + 4) * 12.5).astype(jnp.int32), 0, 99)].add(1)

    return counts(x), counts(x * y)


def joint_counts(x: Any, y: Any) -> Any:
    def cell(t: Any) -> Any:
        return jnp.clip(((t + 4) * 8).astype(jnp.int32), 0, 63)

    return jnp.zeros((64, 64), jnp.int32).at[cell(x), cell(y)].add(1)


def mutual_information(x: Any, y: Any) -> Any:
    """Of linear weights between neighbouring bins: differentiable."""
    at = jnp.clip((x + 4) * 4, 0, 30.99)
    low = at.astype(jnp.int32)
    right = at - low
    other = jnp.clip(((y + 4) * 4).astype(jnp.int32), 0, 31)
    joint = jnp.zeros((32, 32)).at[low, other].add(1 - right).at[low + 1, other].add(right) / len(x)
    p, q = joint.sum(1), joint.sum(0)
    return jnp.sum(jnp.where(joint > 0, joint * jnp.log(joint / (p[:, None] * q + 1e-30) + 1e-30), 0))


def energy_histogram(x: Any, y: Any) -> Any:
    energy = 0.5 * (x * x + y * y)
    return jnp.zeros(256).at[jnp.clip((energy * 25).astype(jnp.int32), 0, 255)].add(energy)


def binned_means(x: Any, y: Any) -> Any:
    bins = jnp.digitize(x, jnp.linspace(-3, 3, 65))
    return jnp.zeros(66).at[bins].add(y) / jnp.maximum(jnp.zeros(66).at[bins].add(1.0), 1)


def group_summaries(x: Any, group: Any) -> Any:
    total = jax.ops.segment_sum(x, group, 1000)
    count = jax.ops.segment_sum(jnp.ones_like(x), group, 1000)
    squares = jax.ops.segment_sum(x * x, group, 1000)
    mean = total / jnp.maximum(count, 1)
    return mean, squares / jnp.maximum(count, 1) - mean**2, jax.ops.segment_max(x, group, 1000)


def class_means(x: Any, label: Any) -> Any:
    of_class = jax.nn.one_hot(label, 100)
    return of_class.T @ x / jnp.maximum(of_class.sum(0), 1)[:, None]


def confusion(label: Any, guess: Any) -> Any:
    return jax.nn.one_hot(label, 100).T @ jax.nn.one_hot(guess, 100)


def k_means(points: Any, centres: Any) -> Any:
    nearest = jnp.argmin(jnp.sum((points[:, None] - centres) ** 2, -1), 1)
    total = jnp.zeros_like(centres).at[nearest].add(points)
    count = jnp.zeros(len(centres)).at[nearest].add(1.0)
    return total / jnp.maximum(count, 1)[:, None]


def soft_k_means(points: Any, centres: Any) -> Any:
    return jnp.mean(jnp.min(jnp.sum((points[:, None] - centres) ** 2, -1), 1))


# --- finance, reinforcement learning ------------------------------------------------------------------------------------------


def drawdown(x: Any) -> Any:
    wealth = jnp.cumsum(0.01 * x)
    return jnp.max(jax.lax.cummax(wealth) - wealth)


def cumulative_of_function(x: Any) -> Any:
    return jnp.cumsum(jnp.exp(-x * x))


def discounted_returns(reward: Any, done: Any) -> Any:
    def step(later: Any, now: Any) -> Any:
        r, d = now
        value = r + 0.99 * jnp.where(d, 0.0, later)
        return value, value

    return jax.lax.scan(step, 0.0, (reward, done), reverse=True)[1]


def moving_average(x: Any) -> Any:
    def step(mean: Any, now: Any) -> Any:
        mean = 0.95 * mean + 0.05 * now
        return mean, (now - mean) ** 2

    return jax.lax.scan(step, 0.0, x)[1]


def generalized_advantage(reward: Any, done: Any) -> Any:
    value = jnp.tanh(reward)
    after = jnp.concatenate([value[1:], value[-1:]])
    going = 1.0 - done
    delta = reward + 0.99 * after * going - value

    def step(later: Any, now: Any) -> Any:
        d, g = now
        advantage = d + 0.99 * 0.95 * g * later
        return advantage, advantage

    return jnp.mean(jax.lax.scan(step, 0.0, (delta, going), reverse=True)[1] ** 2)


# --- sparse algebra, graphs, particles ----------------------------------------------------------------------------------------


def sparse_matrix_vector(w: Any, h: Any, source: Any, target: Any) -> Any:
    return jax.ops.segment_sum(w * h[source], target, len(h), indices_are_sorted=True)


def sparse_unsorted(w: Any, h: Any, source: Any, target: Any) -> Any:
    return jnp.zeros_like(h).at[source].add(w * h[target])


def attention(w: Any, h: Any, source: Any, target: Any) -> Any:
    score = jax.nn.leaky_relu(w * h[source] + h[target])
    top = jax.ops.segment_max(score, target, len(h))
    e = jnp.exp(score - top[target])
    total = jax.ops.segment_sum(e, target, len(h))
    return jax.ops.segment_sum(e * h[source], target, len(h)) / jnp.maximum(total, 1e-9)


def messages(h: Any, w: Any, source: Any, target: Any) -> Any:
    return jax.ops.segment_sum(w[:, None] * h[source], target, len(h))


def degrees(w: Any, h: Any, source: Any, target: Any) -> Any:
    both = jnp.abs(w)
    return jnp.zeros_like(h).at[source].add(both), jnp.zeros_like(h).at[target].add(both)


def cloud_in_cell(x: Any, y: Any) -> Any:
    px, py = (jnp.clip((t + 4) * 8, 0, 62.9) for t in (x, y))
    i, j = px.astype(jnp.int32), py.astype(jnp.int32)
    fx, fy = px - i, py - j
    grid = jnp.zeros((64, 64))
    for di, wx in ((0, 1 - fx), (1, fx)):
        for dj, wy in ((0, 1 - fy), (1, fy)):
            grid = grid.at[i + di, j + dj].add(wx * wy)
    return grid


# --- networks -----------------------------------------------------------------------------------------------------------------


def logsumexp(x: Any) -> Any:
    return jax.scipy.special.logsumexp(x, axis=1)


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x)


def layer_norm(x: Any) -> Any:
    mean, var = x.mean(1, keepdims=True), x.var(1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5)


def cross_entropy(x: Any, label: Any) -> Any:
    logits = jax.nn.log_softmax(x)
    return -jnp.mean(jnp.take_along_axis(logits, label[:, None], 1))


def huber(x: Any, y: Any) -> Any:
    d = jnp.abs(x - y)
    return jnp.mean(jnp.where(d < 1, 0.5 * d * d, d - 0.5)), jnp.mean(d), jnp.max(d)


def column_scale(x: Any) -> Any:
    return x.mean(0), x.std(0), x.min(0), x.max(0)


PROGRAMS: Sequence[Program] = [
    *(Program(f.__name__, _two, f) for f in (saxpy, sdot, rmse)),
    Program("black_scholes", _options, black_scholes),
    Program("great_circle", _two, great_circle),
    *(Program(f.__name__, _one, f) for f in (forward_difference, weighted_moving_average)),
    Program("jacobi", _grid, jacobi),
    *(Program(f.__name__, _grid, f) for f in (five_points_padded, five_points_rolled, box_blur, total_variation, slopes)),
    *(Program(f.__name__, _grid, f) for f in (six_steps, wave)),
    *(Program(f.__name__, _one, f) for f in (window_mean, convolved, squared_differences)),
    Program("matrix_vector", _rows, matrix_vector),
    *(Program(f.__name__, _one, f) for f in (moments, kurtosis)),
    *(Program(f.__name__, _two, f) for f in (correlation, mutual_information, energy_histogram, huber, cloud_in_cell)),
    *(Program(f.__name__, _two, f, differentiable=False) for f in (two_histograms, joint_counts, binned_means)),
    Program("group_summaries", _grouped, group_summaries),
    Program("class_means", _labelled, class_means),
    Program("confusion", _guessed, confusion, differentiable=False),
    *(Program(f.__name__, _points, f) for f in (k_means, soft_k_means)),
    *(Program(f.__name__, _one, f) for f in (drawdown, cumulative_of_function, moving_average)),
    *(Program(f.__name__, _rewards, f) for f in (discounted_returns, generalized_advantage)),
    *(Program(f.__name__, _graph, f) for f in (sparse_matrix_vector, sparse_unsorted, attention, degrees)),
    Program("messages", _features, messages),
    *(Program(f.__name__, _rows, f) for f in (logsumexp, softmax, layer_norm, column_scale)),
    Program("cross_entropy", _classes, cross_entropy),
    Program("few_classes", _few_classes, cross_entropy),
    Program("short_layer_norm", _short_rows, layer_norm),
]

__all__ = ["KINDS", "PROGRAMS", "Program", "cases", "gradient", "plots", "verdicts"]
