"""``fuse``: functions of positions, which read nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import kernels, same
from jax import export

import jaxprims as jp
from jaxprims.fusion.call import Fused

N = 20_000


def _midpoints(x: jax.Array) -> jax.Array:
    return (x[1:] + x[:-1]) / 2


MADE: dict[str, Callable[[Any], Any]] = {
    "linspace": lambda s: jnp.linspace(s, 3, N),
    "its inside": lambda s: jnp.linspace(s, 3, N)[1:-1],
    "its last numbers": lambda s: jnp.linspace(s, 3, N)[-5000:],
    "every third": lambda s: jnp.linspace(s, 3, N)[2::3],
    "backwards": lambda s: jnp.linspace(s, 3, N)[::-1],
    "its steps": lambda s: jnp.diff(jnp.linspace(s, 3, N)),
    "its midpoints": lambda s: _midpoints(jnp.linspace(s, 3, N)),
    "geomspace": lambda s: jnp.geomspace(s, 3, N),
    "between other numbers": lambda s: jnp.concatenate([s[None], jnp.arange(N) * s, jnp.ones(1)]),
    "integers backwards": lambda s: jnp.arange(N)[::-1] // 3,
    "rows": lambda s: (jnp.arange(100)[:, None] * s + jnp.linspace(0, 1, 200))[1:, 3:],
    "in the middle of rows": lambda s: (jnp.arange(100.0)[:, None] * jnp.linspace(s, 1, 200))[:, 50:-50],
    "halves": lambda s: (jnp.arange(3000, dtype=jnp.bfloat16) * s.astype(jnp.bfloat16))[7:],
    "small integers": lambda s: (jnp.arange(9000) % 200).astype(jnp.uint8)[9:],
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_positions(name: str) -> None:
    fn, s = MADE[name], jnp.float32(0.25)
    graph = Fused(jax.make_jaxpr(fn)(s)).graph
    got = jax.jit(lambda s: jax.core.eval_jaxpr(graph.jaxpr, graph.consts, s)[0])(s)
    np.testing.assert_allclose(got, jax.jit(fn)(s), atol=1e-6, rtol=1e-6)
    moved = {e.primitive.name for e in graph.eqns} & {"slice", "rev", "concatenate"}
    assert not moved or name in ("halves", "small integers")


SITES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "series": (lambda s: jnp.sum(1 / (1 + jnp.arange(N)) ** s), "reduce-sum"),
    "products": (lambda s: jnp.prod(1 - s / (2 + jnp.arange(N))), "reduce-prod"),
    "integral": (lambda s: jax.scipy.integrate.trapezoid(jnp.exp(-(jnp.linspace(0, s, N) ** 2)), dx=1e-3), "reduce-sum"),
    "greatest": (lambda s: jnp.max(jnp.sin(s * jnp.linspace(0, 9, N))), "reduce-max"),
    "running": (lambda s: jnp.cumsum(jnp.exp(-s * jnp.arange(N) * 1e-4)), "cumsum"),
    "waves": (lambda s: jnp.sin(s * jnp.linspace(0, 1, N)), "sin"),
    "rows": (lambda s: jnp.sum(jnp.exp(-s * jnp.arange(100)[:, None] * jnp.linspace(0, 1, 200)), 1), "reduce-sum"),
    "histogram": (lambda s: jnp.zeros(10).at[jnp.arange(N) % 10].add(s), "scatter-add"),
    "of nothing at all": (lambda s: s * jnp.sum(jnp.sin(jnp.arange(N) * 1e-3)), "reduce-sum"),
}


@pytest.mark.parametrize("name", SITES)
def test_kernels_read_nothing(name: str) -> None:
    (fn, sites), s = SITES[name], jnp.float32(1.5)
    made = Fused(jax.make_jaxpr(fn)(s)).rewritten.kernels
    assert kernels(fn, s) == sites.split()
    assert all(v.aval.size < N / 10 for k in made for v in k.inputs)
    same(jax.jit(fn)(s), jax.jit(jp.fuse(fn))(s), 1e-5)
    same(jax.vmap(fn)(jnp.arange(1.0, 4)), jax.vmap(jp.fuse(fn))(jnp.arange(1.0, 4)), 1e-5)


def test_in_loops_and_derivatives() -> None:
    f = lambda s: jnp.sum(jnp.cos(s * jnp.linspace(0, 1, N)))  # noqa: E731
    loop = lambda s: jax.lax.fori_loop(0, 4, lambda _, s: s * 0.9 + f(s) / N, s)  # noqa: E731
    assert any("in scan: reduce_sum over" in line for line in jp.explain(jp.fuse(loop))(1.5).sites)
    same(loop(1.5), jp.fuse(loop)(1.5))
    for grad in (jax.grad(jp.fuse(f)), jp.fuse(jax.grad(f))):
        same(jax.grad(f)(1.5), grad(1.5))


def test_sizes_that_are_not_known() -> None:
    (n,) = export.symbolic_shape("n", constraints=["n >= 3"])
    fn = lambda x: jnp.sum(x[1:] * jnp.arange(x.shape[0])[1:]) + jnp.sum(x * jnp.arange(x.shape[0])[::-1])  # noqa: E731
    exported = export.export(jax.jit(jp.fuse(fn)))(jax.ShapeDtypeStruct((n,), jnp.float32))
    x = jnp.arange(50.0)
    same(fn(x), exported.call(x))
    closed = jax.make_jaxpr(fn)(jax.ShapeDtypeStruct((n,), jnp.float32))
    assert not any("a fault" in line for line in Fused(closed).in_words())


@pytest.mark.parametrize("piece", [(slice(0, 0), slice(10, 50)), (slice(None), slice(7, 7)), (slice(0, 0), slice(0, 0))])
def test_empty_slices(piece: tuple[slice, slice]) -> None:
    def fn(x: Any) -> Any:
        return (jnp.arange(100.0)[None] * 2)[piece], jax.lax.broadcasted_iota(jnp.int32, (100, 1), 0)[piece[::-1]], jnp.cumsum(x)

    x = jnp.ones(20_000)
    same(fn(x), jp.fuse(fn)(x))


def test_one_number_along_an_axis_is_none_of_several() -> None:
    """Constants of one number are in the kernel."""
    fn = lambda x: jnp.sum(jnp.exp(x * jnp.linspace(2.0, 3.0, N)))  # noqa: E731
    (kernel,) = Fused(jax.make_jaxpr(fn)(jnp.float32(1))).rewritten.kernels
    assert len(kernel.inputs) == 1


MASKED: dict[str, Callable[[Any, Any], Any]] = {
    "lengths": lambda x, n: jnp.sum(jnp.where(jnp.arange(x.shape[1])[:, None] < n[:, None, None], x * x, 0)),
    "lengths of each": lambda x, n: jnp.sum(jnp.where(jnp.arange(x.shape[1])[:, None] < n[:, None, None], x, 0), (1, 2)),
    "a triangle": lambda x, n: jnp.sum(jnp.where(jnp.arange(x.shape[1])[:, None] < jnp.arange(x.shape[2]), x * x, 0)),
    "the greatest": lambda x, n: jnp.max(jnp.where(jnp.arange(x.shape[1])[:, None] < n[:, None, None], x, -9), (1, 2)),
    "by places": lambda x, n: jnp.sum(x * jnp.arange(x.shape[0])[:, None, None] * jnp.arange(x.shape[1])[:, None]),
    "products": lambda x, n: jnp.prod(1 + x * 1e-3 * jnp.arange(x.shape[1])[:, None], (1, 2)),
}


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize(("shape", "rows"), [((6, 12, 64), 72), ((24, 12, 33), None)])
def test_loops_behind_positions_are_rows(name: str, shape: tuple[int, ...], rows: int | None) -> None:
    """Where they are long: of others a position is a quotient."""
    fn, rng = MASKED[name], np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=shape), jnp.float32)
    n = jnp.asarray(rng.integers(1, shape[1], shape[0]), jnp.int32)
    found = jp.explain(jp.fuse(fn))(x, n).calls
    assert any(f"{shape[2]} elements in each of {rows} rows" in str(call) for call in found) == (rows is not None)
    same(jax.jit(fn)(x, n), jax.jit(jp.fuse(fn))(x, n), 1e-4)
    same(jax.vmap(lambda x: fn(x, n))(x[None]), jax.vmap(lambda x: jp.fuse(fn)(x, n))(x[None]), 1e-4)
    same(jax.jit(jax.grad(lambda x: fn(x, n).sum()))(x), jax.jit(jp.fuse(jax.grad(lambda x: fn(x, n).sum())))(x), 1e-4)
