"""Derivatives of sums by index of what f makes: by kernels, against JAX's own of the same written out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp

NODES, EDGES, FEATURES = 7, 61, 12


def arrays() -> tuple[dict[str, Any], dict[str, Any]]:
    """What is differentiated, and the indices."""
    rng = np.random.default_rng(0)

    def some(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape).astype(np.float32))

    moved = {"h": some(NODES, FEATURES), "q": some(NODES, FEATURES), "w": some(EDGES), "x": some(EDGES, FEATURES), "a": some()}
    moved["b"] = some(FEATURES)
    ends = {k: jnp.asarray(rng.integers(-2, NODES + 2, EDGES, dtype=np.int32)) for k in "st"}
    return moved, ends


CASES: dict[str, tuple[Callable[..., Any], str]] = {  # f of what is differentiated and an element; how its values are made
    "messages": (lambda h, q, w, x, a, b, s: w * h[s], "lanes"),
    "both ends": (lambda h, q, w, x, a, b, s: h[s] * q[s] - q[-s] * h[0], "lanes"),
    "clipped": (lambda h, q, w, x, a, b, s: h.at[s].get(mode="clip") * w + q.at[s].get(mode="fill", fill_value=1), "lanes"),
    "gated": (lambda h, q, w, x, a, b, s: jax.nn.sigmoid(x * h[s]) * w, "lanes"),
    "parameters": (lambda h, q, w, x, a, b, s: jnp.tanh(a * x + b), "lanes"),
    "own": (lambda h, q, w, x, a, b, s: w * w * x, "lanes"),
    "attention": (lambda h, q, w, x, a, b, s: jnp.exp(0.1 * jnp.dot(h[s], q[s - 1])) * w, "numbers"),
    "attended": (lambda h, q, w, x, a, b, s: jnp.exp(0.1 * jnp.dot(h[s], q[s])) * h[s], "lanes"),
    "table": (lambda h, q, w, x, a, b, s: a * h[s, 3] ** 2, "numbers"),
    "several": (lambda h, q, w, x, a, b, s: (w * h[s], w * a, h[s] * x), "lanes"),
    "softmax": (lambda h, q, w, x, a, b, s: jax.nn.softmax(h[s] * w), "neither"),
    "doubled": (lambda h, q, w, x, a, b, s: (2 * h)[s], "lanes"),
    "columns": (lambda h, q, w, x, a, b, s: h.reshape(-1)[s] * w, "numbers"),
}  # fmt: skip


def ours(name: str) -> Callable[..., Any]:
    f = CASES[name][0]

    def run(moved: dict[str, Any], ends: dict[str, Any]) -> Any:
        own, held = {k: moved[k] for k in "wx"}, {k: moved[k] for k in "hqab"}
        return jp.genhist(
            lambda e, s, t: (t, f(s=s, **e, **held)), (own, ends["s"], ends["t"]), jp.Bins(NODES, _add, identity=_zero(name))
        )

    return run


def _add(x: Any, y: Any) -> Any:
    return jax.tree.map(jnp.add, x, y)


def _zero(name: str) -> Any:
    return (0, 0, 0) if name == "several" else 0


def plain(name: str) -> Callable[..., Any]:
    f = CASES[name][0]

    def run(moved: dict[str, Any], ends: dict[str, Any]) -> Any:
        own, held = {k: moved[k] for k in "wx"}, {k: moved[k] for k in "hqab"}
        values = jax.vmap(lambda e, s: f(s=s, **e, **held))(own, ends["s"])
        at = jnp.where(ends["t"] < 0, NODES, ends["t"])
        return jax.tree.map(lambda v: jax.ops.segment_sum(v, at, NODES), values)

    return run


def loss(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda moved, ends: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(run(moved, ends)))


def close(got: Any, want: Any) -> None:
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=2e-4, atol=2e-5), got, want)


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    moved, ends = arrays()
    mine, theirs = loss(ours(name)), loss(plain(name))
    got = jax.jit(jax.grad(mine))(moved, ends)
    push = lambda f, moved, dot: jax.jvp(lambda m: f(name)(m, ends), (moved,), (dot,))  # noqa: E731
    want, along = jax.jit(lambda moved, dot: (jax.grad(theirs)(moved, ends), push(plain, moved, dot)))(moved, got)
    close(got, want)
    close(push(ours, moved, got), along)
    jaxpr = str(jax.make_jaxpr(jax.grad(mine))(moved, ends))
    if CASES[name][1] == "lanes":  # JAX's scatter adds nothing
        assert "scatter" not in jaxpr
    if name in ("messages", "both ends", "attended", "clipped"):  # no row is written for every element, but x's zeros
        assert not re.search(rf"f32\[{EDGES},{FEATURES}\] = (?!broadcast_in_dim)", jaxpr)


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", ["messages", "attended"])
def test_other_orders_and_batches(name: str) -> None:
    moved, ends = arrays()
    direction = jax.tree.map(jnp.cos, moved)
    two = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), moved)
    results = []
    for f in (loss(ours(name)), loss(plain(name))):
        second = jax.jit(lambda m, f=f: jax.jvp(jax.grad(lambda m: f(m, ends)), (m,), (direction,)))(moved)
        batched = jax.jit(jax.vmap(jax.grad(lambda m, f=f: f(m, ends))))(two)
        shared = {k: 0 if k == "w" else None for k in moved}
        of_some = jax.jit(jax.vmap(jax.grad(lambda m, f=f: f(m, ends)), (shared,)))({**moved, "w": two["w"]})
        results.append((second, batched, of_some, jax.jit(jax.grad(jax.checkpoint(lambda m, f=f: f(m, ends))))(moved)))
    close(*results)


def test_transposed() -> None:
    moved, ends = arrays()
    for name in ("messages", "doubled"):
        for f in ("h", "w"):
            apply = lambda x, run: run({**moved, f: x}, ends)  # noqa: E731
            ct = jnp.cos(ours(name)(moved, ends))
            if name == "doubled" and f == "w":
                continue
            mine = jax.linear_transpose(lambda x: apply(x, ours(name)), moved[f])(ct)
            _, pull = jax.vjp(lambda x: apply(x, plain(name)), moved[f])
            close(mine, pull(ct))


def test_a_start_and_updates_of_several_bins() -> None:
    moved, ends = arrays()
    start = jnp.ones((NODES, FEATURES))

    def run(moved: dict[str, Any], start: Any, bins: Callable[..., Any]) -> Any:
        return jnp.sum(jnp.sin(bins(moved, start)))

    def one(moved: dict[str, Any], start: Any) -> Any:
        f = lambda w, s, t: (t, w * moved["h"][s])  # noqa: E731
        return jp.genhist(f, (moved["w"], ends["s"], ends["t"]), jp.Bins(NODES, jnp.add, dest=start))

    def reference(moved: dict[str, Any], start: Any) -> Any:
        return start + plain("messages")(moved, ends)

    close(jax.grad(run, (0, 1))(moved, start, one), jax.grad(run, (0, 1))(moved, start, reference))

    def many(moved: dict[str, Any], start: Any) -> Any:
        f = lambda w, s: (jnp.stack([s, s + 1]), jnp.stack([w, 1 - w]) * moved["a"])  # noqa: E731
        return jp.genhist(f, (moved["w"], ends["s"]), jp.Bins(NODES, jnp.add))

    def both(moved: dict[str, Any], start: Any) -> Any:
        s, w = ends["s"], moved["w"] * moved["a"]
        at = lambda i: jnp.where(i < 0, NODES, i)  # noqa: E731
        return jax.ops.segment_sum(w, at(s), NODES) + jax.ops.segment_sum(moved["a"] - w, at(s + 1), NODES)

    close(jax.grad(run)(moved, start, many), jax.grad(run)(moved, start, both))


@pytest.mark.cover(1)
@pytest.mark.parametrize("edges", [0, 1])
def test_few_edges(edges: int) -> None:
    moved, ends = arrays()
    moved |= {k: moved[k][:edges] for k in "wx"}
    ends = {k: v[:edges] for k, v in ends.items()}
    mine, theirs = (jax.grad(loss(f("messages"))) for f in (ours, plain))
    for f in (lambda g: g(moved, ends), lambda g: jax.jvp(lambda m: g(m, ends), (moved,), (moved,))):
        close(f(mine), f(theirs))


@pytest.mark.dear
def test_many_reads() -> None:
    moved, ends = arrays()

    def total(h: Any, bins: Callable[..., Any]) -> Any:
        return jnp.sum(jnp.sin(bins(lambda s: sum(h[(s + k) % NODES] for k in range(20)))))

    mine = jax.grad(total)(moved["h"], lambda f: jp.genhist(lambda s, t: (t, f(s)), (ends["s"], ends["t"]), jp.Bins(NODES)))
    at = jnp.where(ends["t"] < 0, NODES, ends["t"])
    close(mine, jax.grad(total)(moved["h"], lambda f: jax.ops.segment_sum(jax.vmap(f)(ends["s"]), at, NODES)))


def test_what_f_computes_is_pulled_back_in_one_pass() -> None:
    """Without captured arrays, with one update."""
    n, h = 100_000, 50
    x = jnp.linspace(0.1, h + 2, n)

    def loss(sums: Any) -> Any:
        return lambda x, q: jnp.sum(jnp.cos(jnp.arange(h)) * sums(x, q) ** 2)

    def ours(x: Any, q: Any) -> Any:
        return jp.genhist(lambda x, q: (x.astype(jnp.int32), q * jnp.sin(x)), (x, q), jp.Bins(h, jnp.add))

    def plainly(x: Any, q: Any) -> Any:
        return jax.ops.segment_sum(q * jnp.sin(x), x.astype(jnp.int32), h)

    gradient = jax.jit(jax.grad(loss(ours), (0, 1)))
    for got, wanted in zip(gradient(x, x), jax.grad(loss(plainly), (0, 1))(x, x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4 * float(jnp.abs(wanted).max()))
    assert gradient.lower(x, x).compile().memory_analysis().temp_size_in_bytes < n


@pytest.mark.dear
def test_several_updates_are_pulled_back_in_one_pass() -> None:
    """Cloud in cell: of the gradients by position and charge nothing is written but themselves."""
    n, side = 50_000, 32
    rng = np.random.default_rng(5)
    x, y = (jnp.asarray(rng.random(n) * side - 0.5, jnp.float32) for _ in range(2))  # some cells are outside
    charge = jnp.asarray(rng.normal(size=n), jnp.float32)

    def corners(x: Any, y: Any, q: Any) -> Any:
        i, j = jnp.floor(x).astype(jnp.int32), jnp.floor(y).astype(jnp.int32)
        a, b = x - i, y - j
        at = [jnp.where((k >= 0) & (k < side) & (m >= 0) & (m < side), k * side + m, -1) for k in (i, i + 1) for m in (j, j + 1)]
        return jnp.stack(at), jnp.stack([q * (1 - a) * (1 - b), q * (1 - a) * b, q * a * (1 - b), q * a * b])

    def loss(sums: Any) -> Any:
        return lambda *xs: jnp.sum(jnp.sin(jnp.arange(side * side)) * sums(*xs) ** 2)

    ours = jax.grad(loss(lambda *xs: jp.genhist(corners, xs, jp.Bins(side * side, jnp.add))), (0, 1, 2))

    def plainly(*xs: Any) -> Any:
        at, what = jax.vmap(corners)(*xs)
        return jnp.zeros(side * side).at[jnp.where(at < 0, side * side, at)].add(what, mode="drop")

    compiled, theirs = jax.jit(ours).lower(x, y, charge).compile(), jax.jit(jax.grad(loss(plainly), (0, 1, 2)))
    for got, wanted in zip(compiled(x, y, charge), theirs(x, y, charge), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * float(jnp.abs(wanted).max()))
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * n
