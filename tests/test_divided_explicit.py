"""Calls of several devices whose arrays say in their types where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from divided_calls import IDS, RNG, ROWS, H, X, affine, blur, further, maps
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import mesh, moved
from references import assert_close

import jaxprims as jp

TWICE: dict[str, Callable[..., Any]] = {
    "two bins": lambda x, i: jp.reduce_by_index(x, (i, i), (3, 3)),
    "captured": lambda x, i: jp.genhist(lambda i, x: (i, x * jnp.linspace(1, 2, H)[i]), (i, x), jp.Bins(H)),
    "maxima": lambda x, i: jp.segment_max(x, i, H),
    "affine": lambda x, i: jp.reduce(maps(x), affine),
    "scan": lambda x, i: jp.scan(maps(x), affine),
    "recurrence": lambda x, i: jp.linear_recurrence(x * 0.1 + 0.5, x, np.float32(1)),
    "segments": lambda x, i: jp.segment_reduce(x, i, jnp.multiply, num_segments=H),
    "stencil": lambda x, i: jp.stencil(lambda a: a[0] * a[1], x, steps=2),
}


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", TWICE)
@pytest.mark.dear
def test_eager_derivatives_on_explicit_axes(name: str) -> None:
    """Tangents, gradients of gradients and of a batch, without ``jit``: what is kept for them is on automatic axes."""
    x, i = X[:40] * 0.1 + 1, np.sort(IDS[:40])
    loss = lambda x, i: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(TWICE[name](x, i)))  # noqa: E731
    for f, batch in (
        (lambda x, i: jax.jvp(lambda x: TWICE[name](x, i), (x,), (x,)), ()),
        (lambda x, i: jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(loss)(x, i))))(x), ()),
        (lambda x, i: jax.vmap(lambda x: jax.grad(loss)(x, i))(x), (2,)),
    ):
        m, given = mesh(8, explicit=True), np.broadcast_to(x, (*batch, 40))
        wanted = jax.tree.map(np.asarray, jax.jit(f)(given, i))
        with jax.set_mesh(m):
            placed = jax.device_put(given, NamedSharding(m, P(*(None,) * len(batch), "x")))
            assert_close(jax.tree.map(np.asarray, f(placed, jax.device_put(i, NamedSharding(m, P("x"))))), wanted, 1e-3)


@pytest.mark.dear
def test_explicit_axes_that_are_reduced_as_one() -> None:
    """Positions count along all axes at once, halves are rounded once: wherever these axes are sharded."""
    x = RNG.integers(-3, 4, (2, 16, 24)).astype(np.float32)
    m = mesh(4, 2, explicit=True)

    def both(x: Any, axes: Any) -> tuple[Any, Any]:
        halves = jp.reduce(x.astype(jnp.bfloat16), axis=axes)
        return halves, jp.reduce((x, jp.positions), axis=axes, map=lambda x, p: x * (p % 5))

    every = lambda x: [both(x, axes) for axes in ((0, 1), (1, 2), (0, 2), None)]  # noqa: E731
    wanted = jax.tree.map(np.asarray, jax.jit(every)(x))
    for spec in (P(None, "x"), P(None, None, "x"), P(None, "x", "y")):
        with jax.set_mesh(m):
            placed = jax.device_put(x, NamedSharding(m, spec))
            for got in (jax.jit(every)(placed), every(placed)):
                assert_close(jax.tree.map(np.asarray, got), wanted)


@pytest.mark.cover(2)
@pytest.mark.parametrize("spec", [P("x", "y"), P(None, "x"), P("y", None)])
def test_explicit_axes(spec: P) -> None:
    """Results keep what may stay sharded, in their types too."""
    m = mesh(4, 2, explicit=True)
    with jax.set_mesh(m):
        x = jax.device_put(ROWS, NamedSharding(m, spec))
        for f, wanted in (
            (lambda x: jp.scan(x, jnp.logaddexp, axis=1), tuple(spec)),
            (lambda x: jp.reduce(x, jnp.logaddexp, axis=0), (spec[1],)),
            (lambda x: jp.reduce(x, further, axis=1), (spec[0],)),
            (lambda x: jax.vmap(lambda r: jp.reduce_by_index(r, jnp.arange(120) % 5, 5, jnp.logaddexp))(x), (spec[0], None)),
        ):
            compiled = jax.jit(f).lower(x).compile()
            got = compiled(x)
            assert tuple(jax.typeof(got).sharding.spec) == wanted
            assert moved(compiled) <= 4 * 120
            assert_close(np.asarray(got), np.asarray(jax.jit(f)(ROWS)), 1e-4)


@pytest.mark.cover(2)
@pytest.mark.parametrize("spec", [P("x", "y"), P(None, "x"), P("y", None), P(("y", "x"), None)])
@pytest.mark.parametrize("boundary", ["wrap", "edge", "constant", "valid"])
def test_stencils_on_explicit_axes(spec: P, boundary: str) -> None:
    """Grids stay where they are, in their types too, where the devices divide the results; gradients are where the grid is."""
    m = mesh(4, 2, explicit=True)
    grid = X.reshape(40, 48)
    steps = 3 if boundary == "wrap" else 1

    def both(x: Any) -> Any:
        step = lambda x: jp.stencil(blur, x, boundary=boundary, steps=steps)  # noqa: E731
        return step(x), jax.grad(lambda x: jnp.sum(jnp.sin(step(x))))(x)

    wanted = jax.tree.map(np.asarray, jax.jit(both)(grid))
    with jax.set_mesh(m):
        x = jax.device_put(grid, NamedSharding(m, spec))
        compiled = jax.jit(both).lower(x).compile()
        out, grad = compiled(x)
        assert jax.typeof(grad) == jax.typeof(x)
        assert_close(jax.tree.map(np.asarray, (out, grad)), wanted, 1e-4)
        if boundary != "valid":
            assert jax.typeof(out) == jax.typeof(x) and moved(compiled) < x.size / 2


@pytest.mark.cover(2)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("spec", [P("x", "y"), P(None, "x"), P("y", None)])
@pytest.mark.parametrize("op", [jnp.maximum, jnp.add, jnp.logaddexp, further, jnp.multiply], ids=lambda op: op.__name__)
def test_gradients_on_explicit_axes(op: Any, spec: P, axis: int) -> None:
    """Of scans and reductions along axes that are sharded and along others, by operators with a rule and without."""
    m = mesh(4, 2, explicit=True)
    f = lambda x: jnp.sum(jp.scan(x, op, axis=axis) ** 2) + jnp.sum(jnp.sin(jp.reduce(x, op, axis=axis)))  # noqa: E731
    wanted = np.asarray(jax.jit(jax.grad(f))(ROWS))
    with jax.set_mesh(m):
        x = jax.device_put(ROWS, NamedSharding(m, spec))
        got = jax.jit(jax.grad(f))(x)
        assert jax.typeof(got) == jax.typeof(x)
        assert_close(np.asarray(got), wanted, 1e-3)
