"""Functions that draw from a captured random key: in kernels with threefry's, by plain XLA with others', the same bits always."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp

X = np.arange(1.0, 8.0, dtype=np.float32)
I = np.arange(7) % 3  # noqa: E741


def step(_: Any, state: Any) -> Any:
    return jax.random.fold_in(state[0], 1), state[1] + jax.random.uniform(state[0])


DRAWS: dict[str, Callable[[Any, Any], Any]] = {
    "uniform": lambda k, i: jax.random.uniform(jax.random.fold_in(k, i)),
    "uniform of the same key": lambda k, i: jax.random.uniform(k),
    "several": lambda k, i: jax.random.uniform(jax.random.fold_in(k, i), (3,), minval=-1).sum(),
    "normal": lambda k, i: jax.random.normal(jax.random.fold_in(k, i), (2,))[1],
    "bits": lambda k, i: jax.random.bits(jax.random.fold_in(k, i), (), jnp.uint8).astype(jnp.float32),
    "randint": lambda k, i: jax.random.randint(jax.random.split(jax.random.fold_in(k, i))[1], (), 0, 10).astype(jnp.float32),
    "split outside": lambda k, i: jax.random.uniform(jax.random.split(k, (2, 2))[1, 0]) + i,
    "chosen": lambda k, i: jax.random.uniform(jax.lax.select(i % 2 == 0, k, jax.random.fold_in(k, i))),
    "seeded": lambda k, i: jax.random.uniform(jax.random.key(i, impl="threefry2x32")),
    "words": lambda k, i: jax.random.key_data(jax.random.fold_in(k, i))[0].astype(jnp.float32),
    "a walk": lambda k, i: jax.lax.fori_loop(0, 3, step, (k, 0.0))[1],
    "bernoulli": lambda k, i: jnp.where(jax.random.bernoulli(jax.random.fold_in(k, i)), 1.0, 2.0),
}  # fmt: skip


PLACES = ("map", "f", "op")


def reduced(draw: Callable[[Any, Any], Any], k: Any, x: Any, places: Sequence[str] = PLACES) -> list[Any]:
    """The draw in map, in f and in an operator (the first value wins)."""
    calls = {
        "map": lambda: jp.scan((x, jp.positions), map=lambda v, i: v * draw(k, i)),
        "f": lambda: jp.genhist(lambda v, i, b: (b, v * draw(k, i)), (x, jp.positions, I), jp.Bins(3)),
        "op": lambda: jp.reduce(x, lambda a, b: a + b + 0 * draw(k, 3)),
    }
    return [calls[place]() for place in places]


def wanted(draw: Callable[[Any, Any], Any], k: Any, x: Any, places: Sequence[str] = PLACES) -> list[Any]:
    y = x * jax.vmap(lambda i: draw(k, i))(jnp.arange(len(x)))
    results = {"map": jnp.cumsum(y), "f": jnp.zeros(3).at[I].add(y), "op": x.sum()}
    return [results[place] for place in places]


@pytest.mark.cover(4)
@pytest.mark.filterwarnings("error::jaxprims.FallbackWarning")
@pytest.mark.parametrize("name", DRAWS)
def test_draws_in_kernels(name: str) -> None:
    """Each in one of the places, in turn."""
    places = [PLACES[list(DRAWS).index(name) % 3]]
    runs = jax.jit(lambda k, x: [fn(DRAWS[name], k, x, places) for fn in (reduced, wanted)])
    for g, w in zip(*runs(jax.random.key(3), X), strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=1e-5)


@pytest.mark.cover(1)
@pytest.mark.filterwarnings("ignore::jaxprims.FallbackWarning")
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.dear
def test_captured_keys_under_transformations(impl: str) -> None:
    """Eager, jitted, under vmap and grad; keys of another generator are drawn from by plain XLA, with a warning."""
    draw, keys = DRAWS["uniform"], jax.random.split(jax.random.key(5, impl=impl), 2)
    loss = lambda fn, x, k: sum(jnp.sum(y * y) for y in fn(draw, k, x, ["map", "f"]))  # noqa: E731
    each = lambda fn, k: fn(draw, k, X, ["f", "op"])  # noqa: E731
    runs: list[Callable[[Any], Any]] = [
        lambda fn: fn(draw, keys[0], X, ["map"]),
        lambda fn: jax.jit(lambda k: fn(draw, k, X))(keys[1]),
        lambda fn: [each(fn, k) for k in (keys[0], keys[1])] if fn is wanted else jax.jit(jax.vmap(lambda k: each(fn, k)))(keys),
        lambda fn: jax.jit(jax.grad(lambda x: loss(fn, x, keys[0])))(jnp.asarray(X)),
    ]
    if impl == "rbg":
        runs.pop(2)  # XLA's generator gives other bits under vmap
        with pytest.warns(jp.FallbackWarning, match="another generator"):
            runs[0](reduced)
    for k, run in enumerate(runs):
        got, want = run(reduced), jax.jit(lambda run=run: run(wanted))()
        if k == 2 and impl != "rbg":
            want = [np.stack(both) for both in zip(*want, strict=True)]
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=2e-5, atol=1e-5), got, want)


@pytest.mark.filterwarnings("ignore::jaxprims.FallbackWarning")
def test_an_array_of_keys_and_what_cannot_be_done_with_keys() -> None:
    keys = jax.random.split(jax.random.key(1), 7)
    for map in (
        lambda v, i: v * jax.random.uniform(keys[i]),
        lambda v, i: v * jax.random.uniform(jax.random.clone(keys)[i]),
        lambda v, i: v * jax.random.uniform(jnp.stack([keys[0], keys[2]])[i % 2]),
    ):
        got = jp.scan((X, jp.positions), map=map)
        np.testing.assert_allclose(got, jnp.cumsum(jax.vmap(map)(X, jnp.arange(7))), rtol=2e-5)


@pytest.mark.parametrize("shape", [(20,), (20, 2)])
def test_keys_as_elements(shape: tuple[int, ...]) -> None:
    keys, ids = jax.random.split(jax.random.key(1), shape), jnp.arange(20) % 3

    def f(i: Any, k: Any) -> Any:
        return i, jax.random.uniform(k if k.ndim == 0 else k[1])

    drawn = jax.vmap(jax.random.uniform)(keys if len(shape) == 1 else keys[:, 1])
    want = jax.ops.segment_sum(drawn, ids, 3)
    for run in (jp.genhist, jax.jit(jp.genhist, static_argnums=(0, 2))):
        np.testing.assert_allclose(run(f, (ids, keys), jp.Bins(3, jnp.add)), want, rtol=1e-5)
    with pytest.raises(TypeError, match="must be numbers, got key"):
        jp.reduce_by_index(keys, ids, 3)
    with pytest.raises(TypeError, match="must be numbers, got key"):
        jp.reduce(keys)
