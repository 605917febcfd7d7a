"""Calls as people make them, of everyday sizes, under every transformation: plain JAX against ours, nothing else.

A cell that is below 1 is a call for which nobody should have changed a line: they come first.
"""

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

from ..contestant import Answer, Case, Inputs
from ..peers import arrays

Fn = Callable[..., Any]

FORWARD, GRADIENT, BATCH, LOOP, EAGER = "forward", "gradient", "vmap", "in a loop", "eager"
KINDS = (FORWARD, GRADIENT, BATCH, LOOP, EAGER)
SMALL = 400
"""Elements in a loop's step, and in an eager call."""

STEPS = 100


@dataclasses.dataclass(frozen=True)
class Call:
    """One function on one set of shapes. The first input is what is differentiated, if it is of floats."""

    name: str
    inputs: Callable[[np.random.Generator], Inputs]
    plain: Fn
    ours: Fn
    kinds: Sequence[str] = (FORWARD,)


def cases(quick: bool) -> list[Case]:
    return [case(call, kind) for call in CALLS for kind in call.kinds if not quick or kind == EAGER]  # which is small


def case(call: Call, kind: str) -> Case:
    return Case(
        kind,
        call.name,
        math.prod(next(iter(call.inputs(np.random.default_rng(0)).values())).shape),
        functools.partial(inputs_of, call, kind),
        {
            "jaxprims": arrays.eager(call.ours) if kind == EAGER else arrays.xla(transformed(call.ours, kind)),
            "xla": arrays.eager(call.plain) if kind == EAGER else arrays.xla(transformed(call.plain, kind)),
        },
        agree,
        {"xla": 0.95},
    )


def agree(expected: Answer, got: Answer) -> None:
    """Sums in another order; an empty segment's mean is NaN for both."""
    for e, g in zip(expected, got, strict=True):
        finite = np.abs(e[np.isfinite(e)])
        np.testing.assert_allclose(g, e, rtol=2e-2, atol=2e-2 * float(finite.max(initial=0)), equal_nan=True)


def plots(report: dict[str, Any], directory: Path, stem: str) -> list[Path]:
    from .. import plots  # matplotlib is only needed here

    return list(plots.heat_map(report, directory / f"{stem}.png", KINDS, "xla"))


def verdicts(report: dict[str, Any]) -> Iterator[str]:
    ratios = {f"{c['group']}: {c['name']}": c["ratios"]["xla"] for c in report["cases"] if "xla" in c["ratios"]}
    if not ratios:
        return
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    below = sorted((r, title) for title, r in ratios.items() if r < 0.95)
    yield f"{len(ratios)} calls, {len(below)} slower than plain JAX; geometric mean {mean:.2f}"
    yield from (f"  {r:.2f}  {title}" for r, title in below)


# --- transformations ------------------------------------------------------------------------------------------------------


def inputs_of(call: Call, kind: str, rng: np.random.Generator) -> Inputs:
    given = call.inputs(rng)
    n = len(next(iter(given.values())))
    if kind in (LOOP, EAGER):
        return {k: a[:SMALL] if len(a) == n else a for k, a in given.items()}
    if kind == BATCH:
        return {
            k: np.stack([rng.permutation(a) for _ in range(4)]) if k not in ("sorted", "edges") else np.stack([a] * 4)
            for k, a in given.items()
        }
    return given


def transformed(fn: Fn, kind: str) -> Fn:
    if kind == BATCH:
        return jax.vmap(fn)
    if kind == GRADIENT:
        return jax.grad(lambda *xs: sum(jnp.sum(y.astype(jnp.float32) ** 2) for y in jax.tree.leaves(fn(*xs))))
    if kind == LOOP:
        return lambda x, *rest: jax.lax.scan(lambda c, _: _step(fn, c, x, rest), jnp.zeros((), x.dtype), length=STEPS)[0]
    return fn


def _step(fn: Fn, carry: Any, x: Any, rest: Sequence[Any]) -> Any:
    """The next carry depends on every result, the next call on the carry."""
    y = fn(x + carry, *rest)
    return (sum(jnp.max(leaf) for leaf in jax.tree.leaves(y)) * 0).astype(x.dtype), None


# --- the calls ------------------------------------------------------------------------------------------------------------


def floats(*shape: int, dtype: Any = np.float32) -> Callable[[np.random.Generator], Inputs]:
    dtype = jnp.dtype(dtype)
    whole = dtype.kind in "iu"
    return lambda rng: {"x": (rng.normal(size=shape) * (10 if whole else 1)).astype("int32" if whole else dtype).astype(dtype)}


def with_ids(
    shape: Sequence[int], segments: int, dtype: Any = np.float32, ascending: bool = False
) -> Callable[[np.random.Generator], Inputs]:
    def make(rng: np.random.Generator) -> Inputs:
        ids = rng.integers(0, segments, shape[0], dtype=np.int32)
        whole = np.dtype(dtype).kind in "iu"
        x = rng.integers(0, 100, shape).astype(dtype) if whole else rng.normal(size=shape).astype(dtype)
        return {"x": x, "sorted" if ascending else "ids": np.sort(ids) if ascending else ids}

    return make


def _segments() -> Iterator[Call]:
    shapes = [
        ((1_000_000,), 1000, KINDS),
        ((100_000,), 30_000, KINDS),
        ((20_000,), 100, (FORWARD, GRADIENT, BATCH)),
        ((120_000, 24), 5000, (FORWARD, GRADIENT)),
        ((300_000, 32), 20_000, (FORWARD,)),
        ((100_000, 3), 5000, KINDS),
        ((60_000, 16), 500, (FORWARD, GRADIENT, BATCH)),
        ((30_000, 64), 10_000, (FORWARD, GRADIENT, LOOP)),
        ((10_000, 200), 1000, (FORWARD, GRADIENT)),
        ((4000, 512), 300, (FORWARD, GRADIENT)),
    ]
    for shape, h, kinds in shapes:
        for name in ("sum", "max", "prod", "min")[: 4 if len(shape) == 1 else 2]:
            plain, ours = getattr(jax.ops, f"segment_{name}"), getattr(jp, f"segment_{name}")
            shown = kinds if name in ("sum", "max") else kinds[:1]
            title = f"segment_{name} {'x'.join(map(str, shape))} into {h}"
            yield Call(title, with_ids(shape, h), bound(plain, h), bound(ours, h), shown)
    for dtype in (np.int32, np.uint8, np.float16):
        yield Call(
            f"segment_sum {np.dtype(dtype).name} 100000x24 into 5000",
            with_ids((100_000, 24), 5000, dtype),
            bound(jax.ops.segment_sum, 5000),
            bound(jp.segment_sum, 5000),
        )
    for shape in ((500_000,), (100_000, 16)):
        yield Call(
            f"segment_sum, sorted, {'x'.join(map(str, shape))} into 30000",
            with_ids(shape, 30_000, ascending=True),
            lambda x, i: jax.ops.segment_sum(x, i, 30_000, indices_are_sorted=True),
            lambda x, i: jp.segment_sum(x, i, 30_000, indices_are_sorted=True),
            (FORWARD, GRADIENT),
        )
    for shape in ((200_000,), (50_000, 4)):
        yield Call(
            f"segment softmax {'x'.join(map(str, shape))} into 5000",
            with_ids(shape, 5000),
            bound(softmax, 5000),
            bound(jp.segment_softmax, 5000),
            (FORWARD, GRADIENT, EAGER),
        )
        yield Call(
            f"segment mean {'x'.join(map(str, shape))} into 5000",
            with_ids(shape, 5000),
            bound(mean, 5000),
            bound(jp.segment_mean, 5000),
            (FORWARD, GRADIENT, EAGER),
        )


def bound(fn: Fn, segments: int) -> Fn:
    return lambda x, ids: fn(x, ids, segments)


def softmax(x: Any, ids: Any, segments: int) -> Any:
    top = jax.ops.segment_max(x, ids, segments)
    terms = jnp.exp(x - top[ids])
    return terms / jax.ops.segment_sum(terms, ids, segments)[ids]


def mean(x: Any, ids: Any, segments: int) -> Any:
    count = jax.ops.segment_sum(jnp.ones(x.shape[0], x.dtype), ids, segments)
    return jax.ops.segment_sum(x, ids, segments) / count.reshape(-1, *(1,) * (x.ndim - 1))


ALONG: dict[str, tuple[Fn, Fn]] = {
    "cumsum": (lambda x, a: jax.lax.cumsum(x, a % x.ndim), lambda x, a: jp.cumsum(x, a % x.ndim)),
    "cummax": (lambda x, a: jax.lax.cummax(x, a % x.ndim), lambda x, a: jp.cummax(x, a % x.ndim)),
    "cumlogsumexp": (lambda x, a: jax.lax.cumlogsumexp(x, a % x.ndim), lambda x, a: jp.cumlogsumexp(x, a % x.ndim)),
    "sum": (jnp.sum, lambda x, a: jp.reduce(x, axis=a)),
    "max": (jnp.max, lambda x, a: jp.reduce(x, jnp.maximum, axis=a)),
    "logsumexp": (jax.scipy.special.logsumexp, lambda x, a: jp.reduce(x, jnp.logaddexp, axis=a)),
    "argmax": (jnp.argmax, jp.argmax),
}
"""What is done along an axis: plain JAX's function and ours."""


def _rows() -> Iterator[Call]:
    shapes = [((100_000, 10), -1), ((2000, 1000), -1), ((1000, 2000), 0), ((1_000_000,), -1), ((64, 50, 100), 1), ((300, 7), -1)]
    for shape, axis in shapes:
        title = f"{'x'.join(map(str, shape))} along {axis}"
        kinds = KINDS if len(shape) == 1 else (FORWARD, GRADIENT)
        for name, (plain, ours) in ALONG.items():
            shown = [k for k in kinds if name != "argmax" or k != GRADIENT]
            yield Call(f"{name} {title}", floats(*shape), along(plain, axis), along(ours, axis), shown)
    for shape, axis in (((100_000,), 0), ((200, 500), 1), ((1000, 100), 0)):
        yield affine_scan(shape, axis, (FORWARD, GRADIENT))

    for d in (8, 16):
        yield Call(
            f"associative scan of products, 10000 {d}x{d}",
            functools.partial(_matrices, (10_000, d, d)),
            lambda m: jax.lax.associative_scan(jnp.matmul, m),
            lambda m: jp.associative_scan(jnp.matmul, m),
            (FORWARD, GRADIENT),
        )


def _matrices(shape: Sequence[int], rng: np.random.Generator) -> Inputs:
    """Whose products neither grow nor vanish soon."""
    return {"m": (rng.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)}


def along(fn: Fn, axis: int) -> Fn:
    return lambda x: fn(x, axis)


def affine_scan(shape: Sequence[int], axis: int, kinds: Sequence[str]) -> Call:
    return Call(
        f"associative scan of affine maps, {'x'.join(map(str, shape))} along {axis}",
        functools.partial(_pairs, shape),
        lambda b, a: jax.lax.associative_scan(_affine, (a, b), axis=axis)[1],
        lambda b, a: jp.associative_scan(_affine, (a, b), axis=axis)[1],
        kinds,
    )


def _pairs(shape: Sequence[int], rng: np.random.Generator) -> Inputs:
    return {"b": rng.normal(size=shape).astype(np.float32), "a": rng.random(shape).astype(np.float32)}


def _affine(first: Any, then: Any) -> Any:
    return first[0] * then[0], then[0] * first[1] + then[1]


def histogram(n: int, bins: int, kinds: Sequence[str]) -> Call:
    return Call(
        f"histogram {n} into {bins}",
        floats(n),
        lambda x: jnp.histogram(x, bins, (-3.0, 3.0))[0],
        lambda x: jp.histogram(x, bins, (-3.0, 3.0))[0],
        kinds,
    )


def histogram_by_edges(n: int, bins: int, kinds: Sequence[str]) -> Call:
    """Not evenly spaced."""

    def inputs(rng: np.random.Generator) -> Inputs:
        x, edges = rng.normal(size=n), np.sort(rng.normal(size=bins + 1))
        return {"x": x.astype(np.float32), "edges": edges.astype(np.float32)}

    return Call(
        f"histogram {n} by {bins + 1} edges",
        inputs,
        lambda x, edges: jnp.histogram(x, edges)[0],
        lambda x, edges: jp.histogram(x, edges)[0],
        kinds,
    )


def bincount(n: int, bins: int, kinds: Sequence[str]) -> Call:
    return Call(
        f"bincount {n} into {bins}",
        lambda rng: {"x": rng.integers(0, bins, n, dtype=np.int32)},
        lambda x: jnp.bincount(x, length=bins),
        lambda x: jp.bincount(x, length=bins),
        kinds,
    )


def _histograms() -> Iterator[Call]:
    for n, bins in ((1_000_000, 10), (1_000_000, 1000), (10_000, 50)):
        yield histogram(n, bins, (FORWARD, BATCH) if n > 10_000 else (FORWARD, BATCH, LOOP, EAGER))
        yield bincount(n, bins, (FORWARD, BATCH, EAGER))
    yield Call(
        "histogram2d 200000 into 50x50",
        lambda rng: {k: rng.normal(size=200_000).astype(np.float32) for k in "xy"},
        lambda x, y: jnp.histogram2d(x, y, 50, [[-3, 3], [-3, 3]])[0],
        lambda x, y: jp.histogram2d(x, y, 50, [[-3, 3], [-3, 3]])[0],
    )


def messages(edges: int, features: int, nodes: int, kinds: Sequence[str]) -> Call:
    """Edges' weighted messages summed by node."""

    def make(rng: np.random.Generator) -> Inputs:
        ends = {k: rng.integers(0, nodes, edges, dtype=np.int32) for k in ("source", "target")}
        return {"h": rng.normal(size=(nodes, features)).astype(np.float32), "w": rng.random(edges, np.float32), **ends}

    return Call(
        f"weighted messages {edges} of {features}" + f", {nodes} nodes" * (nodes != NODES),
        make,
        lambda h, w, s, t: jax.ops.segment_sum(w[:, None] * h[s], t, nodes),
        lambda h, w, s, t: jp.genhist(lambda w, s, t: (t, w * h[s]), (w, s, t), jp.Bins(nodes, jnp.add)),
        kinds,
    )


NODES = 5000


def _graphs() -> Iterator[Call]:
    for edges, features in ((50_000, 16), (50_000, 64), (20_000, 128)):
        yield messages(edges, features, NODES, (FORWARD, GRADIENT))
    yield Call(
        "sparse matrix by vector, 200000 entries",
        lambda rng: {
            "v": rng.normal(size=20_000).astype(np.float32),
            "e": rng.random(200_000, np.float32),
            "c": rng.integers(0, 20_000, 200_000, dtype=np.int32),
            "sorted": np.sort(rng.integers(0, 20_000, 200_000, dtype=np.int32)),
        },
        lambda v, e, c, r: jax.ops.segment_sum(e * v[c], r, 20_000, indices_are_sorted=True),
        lambda v, e, c, r: jp.segment_reduce((e, c), r, map=lambda e, c: e * v[c], num_segments=20_000),
        (FORWARD, GRADIENT),
    )


CALLS = [*_segments(), *_rows(), *_histograms(), *_graphs()]
