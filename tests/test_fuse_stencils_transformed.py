"""``fuse``: stencils in loops and under every transformation; stencils drawn at random."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from fused import same
from fused_stencils import MODES, U, everywhere, inside, kept, laplacian, rolled, stencils
from hypothesis import example, given
from hypothesis import strategies as st
from jax import lax

import jaxprims as jp
from jaxprims.fusion import rewrite

__all__ = ["everywhere"]  # fixtures that every test uses


# --- loops ----------------------------------------------------------------------------------------------------------------------


def _wave(u: Any) -> Any:
    def step(_: Any, both: Any) -> Any:
        now, before = both
        return 2 * now - before + 0.1 * laplacian(jnp.pad(now, 1)), now

    return lax.fori_loop(0, 7, step, (u, u))


def _reaction(u: Any) -> Any:
    def step(both: Any, _: Any) -> Any:
        a, b = both
        r = a * b * b
        return (rolled(a) - r + 0.03 * (1 - a), rolled(b) + r - 0.09 * b), None

    return lax.scan(step, (u, 1 - u), None, length=5)[0]


LOOPS = {
    "wrap": lambda u: lax.fori_loop(0, 6, lambda _, v: rolled(v), u),
    "constant": lambda u: lax.fori_loop(0, 6, lambda _, v: v + 0.1 * laplacian(jnp.pad(v, 1)), u),
    "edge": lambda u: lax.fori_loop(0, 6, lambda _, v: v + 0.1 * laplacian(jnp.pad(v, 1, mode="edge")), u),
    "keep": lambda u: lax.fori_loop(0, 6, lambda _, v: kept(v), u),
    "dirichlet": lambda u: lax.fori_loop(0, 6, lambda _, v: rolled(v).at[0].set(0.0).at[:, -1].set(1.0), u),
    "wave": _wave,
    "reaction": _reaction,
    "a constant field": lambda u: lax.fori_loop(0, 6, lambda _, v: v + 0.1 * u * (jnp.roll(v, 1, 1) - v) + jnp.sin(u[0]), 2 * u),
    "other carries": lambda u: lax.fori_loop(2, 9, lambda _, c: (c[0] + 3, rolled(c[1]), c[2]), (0, u, u[0])),
}


@pytest.mark.cover(5)
@pytest.mark.parametrize("name", LOOPS)
def test_steps(name: str) -> None:
    found = inside(LOOPS[name], U)
    assert len(found) == 1 and "several steps to a pass" in found[0]
    same(jax.jit(LOOPS[name])(U), jp.fuse(LOOPS[name])(U), 1e-5)


@pytest.mark.cover(4)
@pytest.mark.parametrize(
    "loop",
    [
        lambda u: lax.fori_loop(0, 6, lambda i, v: rolled(v) * (i + 1) / 5, u),  # a number of the step
        lambda u: lax.fori_loop(0, 6, lambda _, v: rolled(v) - v[3, 3], u),  # a number that steps change
        lambda u: lax.fori_loop(0, 6, lambda _, v: rolled(v) - jnp.mean(v), u),
        lambda u: lax.fori_loop(0, 6, lambda _, v: rolled(rolled(v)), u),
        lambda u: lax.fori_loop(0, 6, lambda _, v: jnp.roll(v, 1, 0) + jnp.pad(v, 1)[2:, 1:-1], u),  # two boundaries
        lambda u: lax.scan(lambda v, x: (rolled(v) + x, v[0]), u, jnp.arange(4.0)),
        lambda u: lax.while_loop(lambda v: jnp.max(v) > 0.5, rolled, u),
        lambda u: lax.cond(u[0, 0] > 0, rolled, kept, u),
    ],
)
def test_loops_that_are_more_than_a_stencil(loop: Any) -> None:
    found = inside(loop, U)
    assert found and not any("several steps" in line for line in found)
    same(jax.jit(loop)(U), jp.fuse(loop)(U), 1e-4)


def test_loops_of_no_stencil() -> None:
    def loop(u: Any) -> Any:
        return lax.fori_loop(0, 6, lambda _, v: v * 0.5 + 1, u)

    same(jax.jit(loop)(U), jp.fuse(loop)(U))


# --- transformations ------------------------------------------------------------------------------------------------------------


GRADIENTS = {
    "rolls": rolled,
    "slices": laplacian,
    "keep": kept,
    "pad": lambda u: u * laplacian(jnp.pad(u, 1)),
    "edge": lambda u: u * laplacian(jnp.pad(u * u, 1, mode="edge")),
    "reflect": lambda u: laplacian(jnp.pad(u, 1, mode="reflect")) ** 2,
    "convolution": lambda u: lax.conv_general_dilated(u[None, None], u[None, None, :3, :3], (1, 1), "SAME"),
    "window": lambda u: lax.reduce_window(u, 0.0, lax.add, (3, 3), (1, 1), "SAME"),
    "steps": LOOPS["wrap"],
    "steps that keep": LOOPS["keep"],
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    fn = GRADIENTS[name]

    def loss(f: Any) -> Any:
        return lambda u: jnp.sum(f(u) ** 3)

    expected = jax.jit(jax.grad(loss(fn)))(U)
    same(expected, jax.jit(jax.grad(loss(jp.fuse(fn))))(U), 1e-4)
    same(expected, jp.fuse(jax.grad(loss(fn)))(U), 1e-4)


def test_the_adjoint_of_rolls_wraps_around() -> None:
    (found,) = stencils(lambda c: jax.linear_transpose(rolled, c)(c)[0], U)
    assert len(found.layout.sources) == 1 and found.layout.modes == ["wrap"] and not found.layout.counted


@pytest.mark.dear
def test_batches() -> None:
    for fn in (rolled, kept, LOOPS["wrap"], lambda u: laplacian(jnp.pad(u, 1, mode="reflect"))):
        batch = jnp.stack([U, U + 1, U * 2])
        same(jax.jit(jax.vmap(fn))(batch), jax.vmap(jp.fuse(fn))(batch), 1e-5)
        same(jax.jit(jax.vmap(fn, 1, 1))(batch.swapaxes(0, 1)), jp.fuse(jax.vmap(fn, 1, 1))(batch.swapaxes(0, 1)), 1e-5)


def test_tangents() -> None:
    same(jax.jvp(kept, (U,), (U * 2,)), jax.jvp(jp.fuse(kept), (U,), (U * 2,)), 1e-5)
    same(jax.jvp(LOOPS["edge"], (U,), (U * 2,)), jax.jvp(jp.fuse(LOOPS["edge"]), (U,), (U * 2,)), 1e-5)


# --- random programs ------------------------------------------------------------------------------------------------------------


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[tuple[Any, ...]], int]:
    """Moves and functions, each of results before; the grid's size along rows."""
    axis, by = st.integers(0, 1), st.integers(-3, 3)
    widths = st.tuples(*[st.integers(0, 3)] * 2)
    move = st.one_of(
        st.tuples(st.just("roll"), by, axis),
        st.tuples(st.just("pad"), st.sampled_from(MODES), widths, axis),
        st.tuples(st.just("cut"), widths, axis),
        st.tuples(st.just("set"), widths, axis),
        st.tuples(st.just("flip"), st.integers(1, 3), axis),
    )
    other = st.one_of(st.tuples(st.just("square")), st.tuples(st.just("add")), st.tuples(st.just("where")))
    return draw(st.lists(st.one_of(move, other), min_size=2, max_size=8)), draw(st.integers(5, 40))


def _run(program: list[tuple[Any, ...]], u: Any) -> Any:
    x = u
    for name, *how in program:
        n, m = x.shape
        if name == "roll":
            x = jnp.roll(x, *how)
        elif name == "pad":
            mode, (lo, hi), axis = how
            if mode == "reflect" and x.shape[axis] < 2:
                continue
            x = jnp.pad(x, [(lo, hi) if a == axis else (0, 0) for a in range(2)], mode=mode)
        elif name == "cut":
            (lo, hi), axis = how
            if x.shape[axis] > lo + hi:
                x = lax.slice_in_dim(x, lo, x.shape[axis] - hi, axis=axis)
        elif name == "set":
            (lo, hi), axis = how
            if x.shape[axis] > lo + hi:
                at = tuple(slice(lo, k - hi) if a == axis else slice(None) for a, k in enumerate(x.shape))
                x = x.at[at].set(0.5 * x[at] + lo)
        elif name == "flip":
            k, axis = how
            if x.shape[axis] > k:
                part = jnp.flip(lax.slice_in_dim(x, 0, k, axis=axis), axis)
                x = jnp.concatenate([part, lax.slice_in_dim(x, k, x.shape[axis], axis=axis)], axis)
        elif name == "square":
            x = 0.3 * x * x - x
        else:
            rows, columns = min(n, u.shape[0]), min(m, u.shape[1])
            a, b = x[:rows, :columns], u[-rows:, -columns:]
            x = a + b if name == "add" else jnp.where(a > b, a, -b)
    return x


@given(programs())
@example(([("pad", "constant", (1, 1), 1), ("roll", 2, 1), ("roll", 1, 1)], 5))
@examples(20)
@pytest.mark.dear
def test_random_programs(drawn: tuple[list[tuple[Any, ...]], int]) -> None:
    program, m = drawn
    u = jnp.asarray(np.random.default_rng(m).normal(size=(7, m)).astype(np.float32))
    same(jax.jit(lambda u: _run(program, u))(u), jax.jit(jp.fuse(lambda u: _run(program, u)))(u), 1e-5, 1e-6)


@given(programs(), st.sampled_from([None, 1]))
@example(([("pad", "constant", (1, 1), 1), ("square",), ("pad", "constant", (1, 0), 0), ("roll", 1, 1)], 5), None)
@examples(15)
@pytest.mark.dear
def test_random_reductions(drawn: tuple[list[tuple[Any, ...]], int], axis: int | None) -> None:
    program, m = drawn
    u = jnp.asarray(np.random.default_rng(m).normal(size=(7, m)).astype(np.float32))

    def reduced(u: Any) -> Any:
        x = _run(program, u)
        return jnp.sum(x * x, axis), jnp.max(x, axis)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrite, "why_not", lambda body: None)
        got = jax.jit(jp.fuse(reduced))(u)
    same(jax.jit(reduced)(u), got, 1e-4, 1e-6)
