"""The loops that XLA makes on CPUs, as ``xla_loops`` has them, and the stencils that are kernels for what these take."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from fused_stencils import stencils

from jaxprims.fusion.graph import flat_graph
from jaxprims.fusion.stencils.times import time_in_loop
from jaxprims.fusion.stencils.xla_loops import XlaLoop, xla_loops

GRID = jax.ShapeDtypeStruct((300, 300), jnp.float32)
ROW = jax.ShapeDtypeStruct((20_000,), jnp.float32)


def five(u: Any) -> Any:
    return sum(jnp.roll(u, s, k) for k in (0, 1) for s in (1, -1)) - 4 * u


def heat(u: Any) -> Any:
    return u + 0.1 * five(u)


def before(u: Any) -> Any:
    return u - jnp.pad(u[1:], ((0, 1), (0, 0)))


def corners(u: Any) -> Any:
    x, y = jnp.gradient(u, axis=1), jnp.gradient(u, axis=0)
    a, b, c = x * x, x * y, y * y
    return a * c - b * b - 0.04 * (a + c) ** 2


def turning(u: Any) -> Any:
    (ux, uy), (vx, vy) = jnp.gradient(u), jnp.gradient(u * 0.5 + jnp.roll(u, 3, 0))
    return (ux + vy) ** 2 + (vx - uy) ** 2


def weather(x: Any) -> Any:
    """Lorenz's, by Runge and Kutta."""

    def change(x: Any) -> Any:
        return (jnp.roll(x, -1) - jnp.roll(x, 2)) * jnp.roll(x, 1) - x + 8

    k = change(x)
    return x + 0.005 * (k + change(x + 0.01 * k))


def curved(x: Any) -> Any:
    slope = jnp.gradient(x)
    return jnp.abs(jnp.gradient(slope)) / (1 + slope * slope) ** 1.5


def gradient(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return jax.grad(lambda u: jnp.sum(fn(u) ** 2))


def loops(fn: Any, x: Any) -> dict[Any, XlaLoop]:
    graph = flat_graph(jax.make_jaxpr(fn)(x))
    return xla_loops(graph, graph.jaxpr.outvars, {})


@pytest.mark.cpu
@pytest.mark.parametrize(
    "fn, x",
    [
        (heat, GRID),
        (heat, jax.ShapeDtypeStruct((100, 100), jnp.float32)),
        (gradient(heat), GRID),
        (corners, GRID),
        (lambda u: five(five(u)), GRID),
        (lambda u: jnp.pad(u, 1)[2:, 1:-1] * jnp.pad(u, 1)[:-2, 1:-1], GRID),
        (lambda u: before(jnp.sqrt(u)), GRID),
        (lambda u: before(u / (1 + jnp.roll(u, 1, 0))), GRID),
        (weather, ROW),
    ],
)
def test_loops_are_those_of_xla(fn: Any, x: Any) -> None:
    """As many, of as many numbers each: those that are as large as half the grid."""
    text = jax.jit(fn).lower(x).compile().as_text()
    entry = text[text.index("\nENTRY") :]
    shapes = re.findall(r"= f32\[([\d,]+)\]\S* (?!parameter|bitcast|constant)[a-z-]+\(", entry)
    theirs = [math.prod(map(int, s.split(","))) for s in shapes]
    ours = [v.aval.size for v in loops(fn, x)]
    assert sorted(n for n in theirs if n * 2 > x.size) == sorted(n for n in ours if n * 2 > x.size)


def test_what_a_loop_reads_at_several_places_it_makes_again() -> None:
    """But for what makes it choose: that it writes, and for each the same code is not made more than 15 times."""

    def made(fn: Any) -> float:
        graph = flat_graph(jax.make_jaxpr(fn)(GRID))
        (out,) = graph.jaxpr.outvars
        loop = xla_loops(graph, [out], {})[out]
        return sum(often for v, often in loop.times.items() if graph.name_of(v) == "exp")

    def shifts(u: Any, count: int) -> Any:
        y = jnp.exp(u)
        return functools.reduce(jnp.multiply, [y[k : 280 + k] for k in range(count)])

    assert [made(lambda u, n=n: shifts(u, n)) for n in (1, 4, 15, 16)] == [1, 4, 15, 0]
    assert made(lambda u: jnp.exp(u)[1:] * jnp.exp(u)[:-1] + jnp.pad(jnp.exp(u)[2:], ((1, 0), (0, 0)))) == pytest.approx(
        3, abs=0.1
    )


def test_many_choices_leave_no_vectors() -> None:
    """Each by itself takes little."""

    def time(count: int) -> float:
        def fn(u: Any) -> Any:
            return sum(jnp.pad(u[k:], ((0, k), (0, 0))) * u for k in range(1, count + 1))

        graph = flat_graph(jax.make_jaxpr(fn)(GRID))
        return sum(time_in_loop(graph, v, loop) for v, loop in xla_loops(graph, graph.jaxpr.outvars, {}).items())

    assert time(8) > 2 * time(7) > 2 * time(6)


@pytest.mark.cpu
@pytest.mark.strategies
@pytest.mark.parametrize(
    "fn, x, count",
    [
        (gradient(corners), GRID, 3),
        (gradient(turning), GRID, 4),  # none of which would be faster if the others were not
        (gradient(curved), jax.ShapeDtypeStruct((100_000,), jnp.float32), 3),
        (weather, jax.ShapeDtypeStruct((100_000,), jnp.float32), 1),
    ],
)
def test_what_takes_xla_several_loops_is_a_kernel(fn: Any, x: Any, count: int) -> None:
    assert len(stencils(fn, x)) >= count


@pytest.mark.cpu
@pytest.mark.strategies
def test_short_rows_are_code_of_their_own() -> None:
    """In which XLA chooses nothing."""

    def slope(u: Any) -> Any:
        x, y = jnp.gradient(u)
        return jnp.sqrt(1 + x * x + y * y)

    long, short = (len(stencils(gradient(slope), jax.ShapeDtypeStruct(shape, jnp.float32))) for shape in ((300, 300), (3000, 40)))
    assert long and not short
