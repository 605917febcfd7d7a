"""Chains of scans: one pass over memory, the same results as one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import same
from jax import lax

import jaxprims as jp
from jaxprims.fusion.call import Fused
from jaxprims.fusion.chains import FEWEST
from jaxprims.primitives.ordered.scan_chain import SCAN_CHAIN, ChainCall, scan_chain_p
from jaxprims.targets import ffi
from jaxprims.targets.registry import target_at

N = 100_003
X = jnp.asarray(np.random.default_rng(5).normal(size=N).astype(np.float32))
I = jnp.asarray(np.random.default_rng(6).integers(-9, 10, N).astype(np.int32))  # noqa: E741

Fn = Callable[..., Any]


def drawdown(x: Any) -> Any:
    wealth = jnp.cumsum(0.01 * x)
    return jnp.max(lax.cummax(wealth) - wealth)


def relative(x: Any) -> Any:
    wealth = jnp.cumprod(1 + 0.001 * x)
    peak = lax.cummax(wealth)
    return jnp.min(wealth / peak - 1), jnp.argmax(peak - wealth), wealth[-1], x.mean()


def three(x: Any) -> Any:
    a = jnp.cumsum(x)
    b = jnp.cumsum(a * 1e-3)
    return lax.cummax(b), jnp.sum(a), jnp.min(b)


PROGRAMS: dict[str, Fn] = {f.__name__: f for f in (drawdown, relative, three)}


def call_of(fn: Fn) -> ChainCall:
    (eqn,) = Fused(jax.make_jaxpr(fn)(X)).rewritten.closed.jaxpr.eqns
    call: ChainCall = eqn.params["call"]
    return call


def chains(fn: Fn, *args: Any) -> list[int]:
    """How many members each chain has."""
    eqns = Fused(jax.make_jaxpr(fn)(*args)).rewritten.closed.jaxpr.eqns
    return [len(e.params["call"].members) for e in eqns if e.primitive is scan_chain_p]


@pytest.mark.cover(5)
@pytest.mark.parametrize("n", [FEWEST, FEWEST + 1, 50_000, N])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, n: int) -> None:
    fn = PROGRAMS[name]
    assert chains(fn, X[:n]) != []
    same(jax.jit(fn)(X[:n]), jax.jit(jp.fuse(fn))(X[:n]), 1e-3)


@pytest.mark.cover(3)
@pytest.mark.parametrize("seed", range(4))
def test_integers_are_equal(seed: int) -> None:
    def f(i: Any) -> Any:
        a = jnp.cumsum(i)
        b = lax.cummin(a * 3 - i)
        return jnp.max(a - b), lax.cummax(a + b), jnp.sum(b), jnp.argmin(b), jnp.bitwise_or.reduce(b)

    i = jnp.roll(I, 1000 * seed)[: N - 777 * seed]
    assert chains(f, i) != []
    for got, want in zip(jp.fuse(f)(i), jax.jit(f)(i), strict=True):
        np.testing.assert_array_equal(got, want)


def test_nothing_is_written_that_is_only_reduced() -> None:
    assert jax.jit(jp.fuse(drawdown)).lower(X).compile().memory_analysis().temp_size_in_bytes < 1024
    assert "one pass over memory" in str(jp.explain(jp.fuse(drawdown))(X))


def test_equal_bits_every_time() -> None:
    f = jax.jit(jp.fuse(three))
    first = f(X)
    for _ in range(20):
        for a, b in zip(first, f(X), strict=True):
            np.testing.assert_array_equal(a, b)


def test_sums_are_made_of_pairs() -> None:
    """Their errors do not grow with the number of blocks."""

    def f(x: Any) -> Any:
        highest = lax.cummax(x)
        return jnp.sum(highest), jnp.max(lax.cummin(highest))

    n = 2**23
    x = jnp.full(n, 0.1, jnp.float32)
    assert chains(f, x)
    np.testing.assert_allclose(np.float64(jax.jit(jp.fuse(f))(x)[0]), n * np.float64(np.float32(0.1)), rtol=2e-6)


def test_what_depends_on_the_whole_of_a_scan_is_not_its_member() -> None:
    def f(x: Any) -> Any:
        c = jnp.cumsum(x)
        return jnp.sum((c - c.mean()) ** 2), jnp.max(lax.cummax(c)), jnp.sum(jnp.sin(c[-1]) * c)

    assert chains(f, X) != []
    same(jax.jit(f)(X), jp.fuse(f)(X), 1e-3)


def test_no_chains() -> None:
    assert chains(lambda x: jnp.max(lax.cummax(lax.cumsum(x), reverse=True)), X) == []
    assert chains(drawdown, X[: FEWEST - 1]) == []
    assert chains(lambda x: jnp.cumsum(x), X) == []


@pytest.mark.dear
def test_transformations() -> None:
    rows = X[:99_000].reshape(3, -1)
    wanted = jax.jit(jax.vmap(drawdown))(rows)
    same(wanted, jax.vmap(jp.fuse(drawdown))(rows), 1e-3)
    same(jax.jit(jax.grad(drawdown))(X), jax.grad(jp.fuse(drawdown))(X), 1e-3)
    call = call_of(drawdown)
    batched = jax.vmap(lambda x: scan_chain_p.bind(x, call=call)[0])(rows)
    same(wanted, batched, 1e-3)


def test_a_call_that_was_damaged_is_refused() -> None:
    """Places that are none, sizes of others: an error, and no memory of others is touched."""
    problem = SCAN_CHAIN.problem(target_at("cpu"), [jax.typeof(X)], call=call_of(drawdown))
    good = {**SCAN_CHAIN.attributes(problem, call=call_of(drawdown)), "devices": 1}
    assert good["places"] == [0, 2, 2, 3, 3, 2, 1] and good["buffers"] == 2
    run(X, good)
    for places in (
        [0, 3, 2, 3, 3, 2, 1],
        [0, 2, 2, 2, 3, 2, 1],
        [0, 0, 2, 3, 3, 2, 1],
        [0, 2, 2, 3, 3, 2, 2],
        [0, 2, 9, 3, 3, 2, 1],
    ):
        with pytest.raises(Exception, match="other operands or results"):
            run(X, good | {"places": places})
    for wrong in (
        {"n": N + 1},
        {"n": 0},
        {"buffers": 1},
        {"places": good["places"][:-1]},
        {"keys": good["keys"][:2]},
        {"specs": "scan"},
    ):
        with pytest.raises(Exception, match="jaxprims"):
            run(X, good | wrong)


def run(x: Any, attributes: dict[str, Any]) -> Any:
    numbers = {k: v if isinstance(v, str) else np.int64(v) if isinstance(v, int) else np.array(v) for k, v in attributes.items()}
    call = jax.ffi.ffi_call(ffi.SCAN_CHAIN, jax.ShapeDtypeStruct((), jnp.float32))
    return jax.block_until_ready(jax.jit(lambda x: call(x, **numbers))(x))
