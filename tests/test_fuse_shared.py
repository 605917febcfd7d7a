"""``fuse``: what kernels and XLA both want is made once, and what stays XLA's stays as it was written."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import same
from jax import lax

import jaxprims as jp
from jaxprims.fusion.call import Fused
from jaxprims.fusion.stencils.stencil import Stencil

pytestmark = [pytest.mark.strategies, pytest.mark.cpu]

rng = np.random.default_rng(5)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def fused(fn: Any, *args: Any) -> Fused:
    return Fused(jax.make_jaxpr(fn)(*args))


def lines(fn: Any, *args: Any) -> list[str]:
    return [line for line in fused(fn, *args).in_words() if "left to XLA" not in line]


def test_loops_and_branches_without_a_kernel_are_as_they_were_written() -> None:
    def steps(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            return c - 0.1 * jnp.sum(jnp.sin(c)) * c, jnp.max(c)

        last, seen = lax.scan(step, x, length=5)
        return jnp.sum(last) + lax.cond(seen[0] > 0, jnp.sum, jnp.prod, seen)

    for fn in (steps, jax.value_and_grad(steps), lambda x: lax.map(steps, x[None])):
        made = fused(fn, normal(40))
        assert "left to XLA" in str(made.in_words()) and made.rewritten.closed is made.needed
    made = fused(steps, normal(40))
    assert made.rewritten.closed is made.closed


def energy(x: Any, neighbours: Any) -> Any:
    d = x[:, None] - x[neighbours]
    inverse = 1 / (jnp.sum(d * d, -1) + 0.1) ** 3
    return jnp.sum(4 * (inverse * inverse - inverse))


def test_what_both_read_is_made_once() -> None:
    """Differences of neighbours, whose gradient one kernel adds by index, and another along rows."""
    x, neighbours = normal(20_000, 3), jnp.asarray(rng.integers(0, 20_000, (20_000, 16)), jnp.int32)
    fn = jax.value_and_grad(energy)
    kernels = fused(fn, x, neighbours).rewritten.kernels
    assert len(kernels) == 2 and len({v for k in kernels for v in k.inputs if v.aval.ndim == 3}) == 1
    plain, made = (jax.jit(f).lower(x, neighbours).compile() for f in (fn, jp.fuse(fn)))
    assert made.memory_analysis().temp_size_in_bytes < 0.7 * plain.memory_analysis().temp_size_in_bytes
    same(plain(x, neighbours), made(x, neighbours), 1e-4, 1e-4)


def test_what_rows_have_in_common_is_made_once() -> None:
    """A reduction for each column, in none of the rows that are reduced; a quotient for each row, in none of its elements."""
    x, y, c = normal(300, 400), normal(300, 400), normal(400, 100)

    def weighed(x: Any, y: Any, c: Any) -> Any:
        w = jnp.sum(jnp.exp(c), 1)
        return jnp.sum(x * y * w, 1), jnp.sum(x * w, 1)

    assert all("exp" not in line for line in lines(weighed, x, y, c) if "over [300, 400]" in line)
    same(jax.jit(weighed)(x, y, c), jax.jit(jp.fuse(weighed))(x, y, c), 1e-4, 1e-2)

    def frames(x: Any) -> Any:
        at = jnp.arange(0, x.size - 256, 128)[:, None] + jnp.arange(256)
        return jnp.sum(jnp.log(jnp.mean(x[at] ** 2, 1) + 1e-6))

    x = normal(100_000)
    assert any("scatter-add" in line and "div" not in line.split("takes in")[1] for line in lines(jax.grad(frames), x))
    same(jax.jit(jax.grad(frames))(x), jax.jit(jp.fuse(jax.grad(frames)))(x), 1e-4, 1e-5)


@pytest.mark.parametrize("others", [lambda x: (jnp.sum(x) - x) / (x.size - 1), lambda x: 9 - jnp.min(x) * x])
def test_cheap_differences_are_made_by_each_of_several_that_read_as_much(others: Any) -> None:
    """Each of them reads what is written, too: what all share of a byte is what it takes to write it."""

    def spread(x: Any) -> Any:
        y = others(x)
        return jnp.mean((y - jnp.mean(y)) ** 2)

    made = fused(jax.grad(spread), jax.ShapeDtypeStruct((2**20,), jnp.float32))
    found = {v for k in made.rewritten.kernels for v in k.inputs if v.aval.size > 1}
    assert len(made.rewritten.kernels) > 1 and found <= set(made.graph.jaxpr.invars)


@pytest.mark.parametrize("width", [80, 110])
@pytest.mark.parametrize("active", [jax.nn.relu, lambda d: jnp.maximum(0, d) ** 2])
def test_what_one_loop_wants_for_several_equations_is_not_there_for_a_kernel(active: Any, width: int) -> None:
    """A hinge and where it is active: one loop of XLA's has both, and writes no difference for a kernel to read."""

    def margins(x: Any, right: Any) -> Any:
        return jnp.mean(jnp.sum(active(x - right[:, None] + 1), 1)) ** 2

    types = jax.ShapeDtypeStruct((30_000, width), jnp.float32), jax.ShapeDtypeStruct((30_000,), jnp.float32)
    made = fused(jax.grad(margins, (0, 1)), *types)
    there = {*made.graph.jaxpr.invars, *made.graph.jaxpr.outvars}
    assert all(v in there or v.aval.ndim == 1 or 1 in v.aval.shape for k in made.rewritten.kernels for v in k.inputs)


def rolled(u: Any) -> Any:
    return jnp.sum((jnp.roll(u, -1, -1) - u) ** 2)


def sliced(u: Any) -> Any:
    return jnp.sum((u[1:] - u[:-1]) ** 2) + jnp.sum((u[:, 1:] - u[:, :-1]) ** 2)


@pytest.mark.cover(4)
@pytest.mark.parametrize("fn", [rolled, sliced])
@pytest.mark.parametrize("row", [67, 100, 400])
def test_short_rows_whose_cells_are_wanted_again(fn: Any, row: int) -> None:
    """Where XLA reduces cells that it has written for the gradient, the gradient is XLA's as well."""
    u = normal(300_000 // row, row)
    both = jax.value_and_grad(fn)
    found = lines(both, u)
    assert (not found) if row < 128 else any("reduce_sum of a stencil" in line for line in found)
    same(jax.jit(both)(u), jax.jit(jp.fuse(both))(u), 1e-4, 1e-4)


def test_a_stencil_reads_what_is_written_for_others() -> None:
    """The residual, which XLA reduces, and not what its adjoint makes of it first."""

    def loss(u: Any, b: Any) -> Any:
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        return jnp.sum((b[1:-1, 1:-1] - around) ** 2)

    u, b = normal(600, 600), normal(600, 600)
    both = jax.value_and_grad(loss)
    made = fused(both, u, b)
    (read,) = (v for k in made.rewritten.kernels if isinstance(k.body, Stencil) for v in k.inputs)
    eqn = made.graph.made_by(read)
    assert eqn is not None and eqn.primitive.name != "neg" and len(made.graph.users[read]) > 1
    same(jax.jit(both)(u, b), jax.jit(jp.fuse(both))(u, b), 1e-4, 1e-4)


@pytest.mark.parametrize("rows, again", [(300, False), (3000, True)])
def test_what_stays_in_the_cache_is_not_made_again(rows: int, again: bool) -> None:
    """Roots that XLA makes for the result anyway are made again for a sum only where they would have to be read from afar."""

    def step(p: Any, g: Any) -> Any:
        u = g / (jnp.sqrt(g * g) + 1e-6) + 0.01 * p
        return p - 0.1 * jnp.linalg.norm(p) / jnp.linalg.norm(u) * u

    p, g = normal(rows, 100), normal(rows, 100)
    assert any("reduce_sum" in line and "sqrt" in line for line in lines(step, p, g)) == again
    np.testing.assert_allclose(jax.jit(jp.fuse(step))(p, g), jax.jit(step)(p, g), rtol=1e-5, atol=1e-6)


def neighbours(y: Any) -> Any:
    """The gradient by ``y`` of what its points do to each other: a sum of rows of columns is a kernel's, one of columns of the
    same XLA's, and XLA would write the two numbers of each pair for both."""
    return jax.grad(lambda y: jnp.sum(1 / (1 + jnp.sum((y[:, None] - y) ** 2, -1)) ** 2))(y)


def shares(z: Any) -> Any:
    return jax.value_and_grad(lambda z: jnp.mean(jax.nn.softmax(z) ** 2))(z)


def walks(z: Any) -> Any:
    return jax.value_and_grad(lambda z: jnp.mean(jnp.maximum(jnp.mean(jnp.exp(jnp.cumsum(z, 1)), 1), 1)))(z)


@pytest.mark.parametrize(
    "fn, shape, held", [(neighbours, (500, 2), True), (shares, (300, 100), False), (walks, (300, 100), False)]
)
def test_what_xla_would_write_for_several_is_written_for_its_reduction(
    fn: Any, shape: tuple[int, ...], held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where kernels make it themselves for all others, too: arithmetic on several arrays takes longer in a reduction's loop. What
    a kernel of rows writes, since all is in the cache, is there."""
    x = 0.1 * normal(*shape)
    with monkeypatch.context() as patch:
        patch.setattr("jaxprims.fusion.rows.IN_CACHE", 0)
        assert any(e.primitive.name == "held" for e in fused(fn, x).rewritten.closed.jaxpr.eqns) == held
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-6), jax.jit(jp.fuse(fn))(x), jax.jit(fn)(x))
