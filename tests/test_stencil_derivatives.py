"""Derivatives of stencils: of each boundary, both modes, first and second order, against JAX's of the definition."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from stencil_reference import BOUNDARIES, stencil

import jaxprims as jp

pytestmark = pytest.mark.usefixtures("x64")
MIXED = [
    *((b, b) for b in BOUNDARIES),
    ("wrap", "valid"),
    ("keep", "reflect"),
    ("constant", "wrap"),
    ("symmetric", "keep"),
    ("valid", "keep"),
]


def doubles(*shape: int, seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).uniform(0.2, 0.9, shape))


def assert_close(got: Any, wanted: Any, rtol: float = 1e-9) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=rtol, atol=1e-10), got, wanted)


def total(tree: Any) -> Any:
    """A number that depends on every result, not linearly."""
    return sum(jnp.sum(jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape) * x * x) for x in jax.tree.leaves(tree))


def f(a: Any, w: Any, scale: Any) -> Any:
    """Of a cell to the one side and three to the other, and of an array that does not change; not linear in anything."""
    return a[0, 1] * w[0, 0] * scale + 0.3 * a[-1, -2] * a[0, 0] + 0.1 * a[1, 0] - 0.2 * w[0, 1] ** 2


def both(boundary: Any, steps: int, f: Any = f) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """As a function of an array, one that does not change and a captured number: the stencil; by definition."""

    def ours(x: Any, w: Any, s: Any) -> Any:
        return jp.stencil(lambda a, w: f(a, w, s), x, constants=w, boundary=boundary, steps=steps, fill_value=0.5)

    def plain(x: Any, w: Any, s: Any) -> Any:
        g = lambda a, w: f(a, w, s)  # noqa: E731
        return stencil(g, [x], boundary, constants=[w], steps=steps, fill=0.5, xp=jnp)[0]

    return ours, plain


@pytest.mark.cover(3)
@pytest.mark.parametrize("boundary", MIXED)
def test_gradients(boundary: Any) -> None:
    """Of the array, of what does not change and of a captured number."""
    points = doubles(5, 9), doubles(5, 9, seed=1), np.asarray(0.7)
    ours, plain = (jax.jit(jax.value_and_grad(lambda *p, g=g: total(g(*p)), (0, 1, 2))) for g in both(boundary, 1))
    assert_close(ours(*points), plain(*points))


@pytest.mark.cover(2)
@pytest.mark.parametrize("boundary", ["edge", "wrap", "valid", ("keep", "reflect"), ("constant", "symmetric")])
def test_gradients_of_steps(boundary: Any) -> None:
    """Those of steps one by one: of the array, of what does not change and of a captured number."""
    points = doubles(5, 18), doubles(5, 18, seed=1), np.asarray(0.7)
    if boundary == "valid":
        points = doubles(7, 12), doubles(7, 12, seed=1), np.asarray(0.7)
        ours, plain = (jax.jit(jax.grad(lambda *p, g=g: total(g(*p)), (0, 1, 2))) for g in both(boundary, 2))
        return assert_close(ours(*points), plain(*points))
    one = both(boundary, 1)[0]
    loop = lambda x, w, s: jax.lax.scan(lambda x, _: (one(x, w, s), None), x, None, length=7)[0]  # noqa: E731
    ours, plain = (jax.jit(jax.grad(lambda *p, g=g: total(g(*p)), (0, 1, 2))) for g in (both(boundary, 7)[0], loop))
    return assert_close(ours(*points), plain(*points))


@pytest.mark.cover(1)
@pytest.mark.parametrize("boundary", [("keep", "reflect"), ("valid", "wrap")])
@pytest.mark.dear
def test_both_modes_and_second_order(boundary: Any) -> None:
    """jvp, Hessians by their products with a vector, vmap of gradients, checkpoints."""
    points, dots = ((doubles(4, 7, seed=n), doubles(4, 7, seed=n + 1), np.asarray(0.7)) for n in (0, 5))
    made = []
    for g in both(boundary, 1):
        loss = lambda *p, g=g: total(g(*p))  # noqa: E731
        grad = jax.grad(loss, (0, 1, 2))

        @jax.jit
        def every(p: Any, d: Any, g: Any = g, loss: Any = loss, grad: Any = grad) -> list[Any]:
            batch = tuple(jnp.stack([x, 0.5 * x]) for x in p)
            return [
                jax.jvp(g, p, d),
                jax.jvp(grad, p, d)[1],
                jax.grad(lambda x: jnp.vdot(grad(x, *p[1:])[0], d[0]))(p[0]),
                jax.vmap(grad)(*batch),
                jax.vmap(grad, (None, None, 0))(*p[:2], batch[2]),
                jax.grad(jax.checkpoint(loss))(*p),
            ]

        made.append(every(points, dots))
    assert_close(made[0], made[1], 1e-8)


@pytest.mark.cover(2)
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_small_grids(boundary: str) -> None:
    """Smaller than the neighbourhood, of lopsided, far and overlapping reads."""
    g = lambda a, at: jnp.sin(a[-3]) * a[0] + a[4] * a[-3] + 0.1 * at[0] * a[1]  # noqa: E731
    sizes = (1, 2, 3, 9)

    @jax.jit
    def both(xs: Any) -> Any:
        ours = lambda x: total(jp.stencil(g, (x, jp.positions), boundary=boundary))  # noqa: E731
        plain = lambda x: total(stencil(g, [x], boundary, places=True, xp=jnp))  # noqa: E731
        return [jax.grad(ours)(x) for x in xs], [jax.grad(plain)(x) for x in xs]

    assert_close(*both([doubles(n) for n in sizes]))


@pytest.mark.cover(2)
@pytest.mark.parametrize("boundary", ["edge", "reflect", "symmetric", ("edge", "wrap")])
def test_far_reads(boundary: Any) -> None:
    """The program for what is read beyond the edges is no longer because that is far, and beyond the other edge, too."""

    def losses(reach: tuple[int, int]) -> list[Callable[[Any], Any]]:
        g = lambda a: jnp.sin(a[reach]) * a[0, -reach[1]] + a[0, 1]  # noqa: E731
        return [lambda x: total(jp.stencil(g, x, boundary=boundary)), lambda x: total(stencil(g, [x], boundary, xp=jnp))]

    x = doubles(12, 9)
    near, far = (jax.jit(jax.grad(losses(reach)[0])).lower(x).as_text().count("\n") for reach in ((3, 2), (-11, 8)))
    assert far < 1.2 * near
    for reach in ((-11, 8), (30, -41)):
        assert_close(*(jax.jit(jax.grad(loss))(x) for loss in losses(reach)))


@pytest.mark.dear
def test_finite_differences() -> None:
    run = lambda x: jp.stencil(lambda a: jnp.sin(a[-3]) * a[0] + a[2], x, boundary="reflect", steps=2)  # noqa: E731
    check_grads(jax.jit(run), (doubles(7),), order=2, eps=1e-4, atol=1e-5, rtol=1e-5)


@pytest.mark.cover(1)
@pytest.mark.parametrize("boundary", ["symmetric", "valid"])
@pytest.mark.dear
def test_many_reads(boundary: str) -> None:
    """A window and a box, whose derivatives would be too many equations where they are gathered."""
    weights = doubles(5, 5) - 0.5
    window = lambda a: sum(weights[i, j] * jnp.tanh(a[i - 2, j - 2] * (1 + a[0, 0])) for i in range(5) for j in range(5))  # noqa: E731
    ours = jax.jit(jax.grad(lambda x: total(jp.stencil(window, x, boundary=boundary))))
    plain = jax.jit(jax.grad(lambda x: total(stencil(window, [x], boundary, xp=jnp))))
    assert_close(ours(doubles(9, 12)), plain(doubles(9, 12)), 1e-8)


@pytest.mark.dear
def test_several_results_and_integers() -> None:
    """Results that are not used, or are integers, have no derivative; integer arrays among those that are differentiated."""
    x, n, table = doubles(6, 9), np.arange(54, dtype=np.int32).reshape(6, 9) % 5, doubles(5, seed=2)
    xp_table = jnp.asarray(table)

    def g(a: Any, k: Any) -> Any:
        return {"used": a[0, 1] * a[-1, 0] * k[0, 0], "counted": k[0, 1] + 1, "unused": a[0, 0] ** 3}

    for b in ("wrap", "constant", "valid"):

        def ours(x: Any) -> Any:
            return total(jp.stencil(g, (x, n), boundary=b, fill_value=1)["used"])

        def plain(x: Any) -> Any:
            return total(stencil(lambda a, k: g(a, k)["used"], [x, jnp.asarray(n)], b, fill=1, xp=jnp))

        assert_close(jax.jit(jax.grad(ours))(x), jax.jit(jax.grad(plain))(x))
        looked = lambda t, stencil: total(stencil(lambda k, a: t[k[0, 1]] * a[1, 0]))  # noqa: E731
        got = jax.jit(jax.grad(lambda t: looked(t, lambda g: jp.stencil(g, (n, x), boundary=b, fill_value=1))))(xp_table)
        wanted = jax.jit(jax.grad(lambda t: looked(t, lambda g: stencil(g, [jnp.asarray(n), x], b, fill=1, xp=jnp))))(xp_table)
        assert_close(got, wanted)

    def kept(a: Any, k: Any) -> Any:
        return a[0, 1] * a[1, 0] * k[0, 0], k[0, 2] + 1

    for steps, b in ((1, "keep"), (2, ("edge", "keep")), (3, "wrap")):
        mine = jax.jit(jax.grad(lambda x: total(jp.stencil(kept, (x, n), boundary=b, steps=steps)[0])))
        other = jax.jit(jax.grad(lambda x: total(stencil(kept, [x, jnp.asarray(n)], b, steps=steps, xp=jnp)[0])))
        assert_close(mine(x), other(x))


@pytest.mark.parametrize("axes", [(0, 2), (0, 1), (1, 2)])
@pytest.mark.cover(1)
@pytest.mark.dear
def test_cells(axes: tuple[int, int]) -> None:
    """Lane by lane, wherever the lanes are, and where f mixes a cell's numbers; a captured matrix."""
    x, m = np.moveaxis(doubles(5, 8, 3), (0, 1), axes), doubles(3, 3, seed=1)
    lanes = lambda a, m: a[0, 1] * a[-1, 0] + 0.1 * a[1, 1]  # noqa: E731
    product = lambda a, m: a[0, 1] @ m + jnp.tanh(a[-1, 0])  # noqa: E731
    for g in (lanes, product):
        for b, steps in (("edge", 1), ("wrap", 2), ("keep", 1), ("valid", 2)):
            ours = lambda x, m: total(jp.stencil(lambda a: g(a, m), x, axes=axes, boundary=b, steps=steps))  # noqa: E731
            first = lambda x: jnp.moveaxis(x, axes, (0, 1))  # noqa: E731
            made = lambda x, m: stencil(lambda a: g(a, m), [first(x)], b, steps=steps, rank=2, xp=jnp)[0]  # noqa: E731
            plain = lambda x, m: total(jnp.moveaxis(made(x, m), (0, 1), axes))  # noqa: E731
            assert_close(jax.jit(jax.grad(ours, (0, 1)))(x, m), jax.jit(jax.grad(plain, (0, 1)))(x, m))


@pytest.mark.dear
def test_complex() -> None:
    x = doubles(4, 7) + 1j * doubles(4, 7, seed=1)
    g = lambda a: a[0, 1] * a[-1, 0] * (0.5 + 0.25j) + jnp.conj(a[0, 0])  # noqa: E731
    for b in ("edge", "wrap", "keep"):
        ours, plain = lambda x: jp.stencil(g, x, boundary=b), lambda x: stencil(g, [x], b, xp=jnp)[0]
        grads = [jax.jit(jax.grad(lambda x, run=run: jnp.sum(jnp.abs(run(x)) ** 2)))(x) for run in (ours, plain)]
        assert_close(*grads)


@pytest.mark.cover(3)
@pytest.mark.parametrize("boundary", ["wrap", "reflect", "constant", "valid", "keep"])
def test_linear_transpose(boundary: str) -> None:
    """Of functions that are linear: <y, A x> = <A^T y, x>; in other words of the others."""
    x, w = doubles(6, 11), doubles(6, 11, seed=1)
    for steps in (1, 3):
        g = lambda a, w: 2.0 * a[0, 1] * w[1, 0] - a[-1, 2]  # noqa: E731
        run = functools.partial(lambda x, n: jp.stencil(g, x, constants=w, boundary=boundary, steps=n), n=steps)
        y = doubles(*jax.eval_shape(run, x).shape, seed=2)
        there, (back,) = jax.jit(lambda x, y, run=run: (run(x), jax.linear_transpose(run, x)(y)))(x, y)
        np.testing.assert_allclose(np.vdot(back, x), np.vdot(y, there), rtol=1e-10)
    with pytest.raises(NotImplementedError, match=r"linear_transpose: stencil of .* is not linear in what is transposed"):
        jax.linear_transpose(lambda x: jp.stencil(lambda a: a[0, 0] * a[0, 0], x, boundary=boundary), x)(x)
    with pytest.raises(NotImplementedError, match="is not linear"):
        jax.linear_transpose(lambda x: jp.stencil(lambda a: a[0, 0] + 1.0, x, boundary=boundary), x)(x)


def test_fill_values_are_no_part_of_arrays() -> None:
    with pytest.raises(NotImplementedError, match="linear_transpose"):
        jax.linear_transpose(lambda x: jp.stencil(lambda a: a[1], x, boundary="constant", fill_value=1), np.ones(5))(np.ones(5))


@pytest.mark.dear
def test_rules_of_f() -> None:
    """custom_jvp and custom_vjp inside f, loops and branches."""

    @jax.custom_jvp
    def clipped(x: Any) -> Any:
        return jnp.clip(x, 0.4, 0.8)

    clipped.defjvp(lambda p, t: (clipped(p[0]), 10.0 * t[0]))

    @jax.custom_vjp
    def scaled(x: Any) -> Any:
        return x * 2

    scaled.defvjp(lambda x: (x * 2, x), lambda x, ct: (ct * 5 * x,))

    def g(a: Any) -> Any:
        s = jax.lax.fori_loop(0, 3, lambda k, s: s * a[0, 1] + k, a[0, 0])
        return jnp.where(s > 1.5, scaled(a[-1, 0]), clipped(s)) + jax.nn.relu(a[1, 1] - 0.5)

    x = doubles(5, 8)
    for b in ("edge", "wrap", "keep"):
        grad = jax.jit(jax.grad(lambda x: total(jp.stencil(g, x, boundary=b))))(x)
        cells = jax.vmap(jax.vmap(lambda a, r, u, d: g({(0, 0): a, (0, 1): r, (-1, 0): u, (1, 1): d})))

        def plain(x: Any) -> Any:
            reads = [
                stencil(lambda a, o=o: a[o] + 0 * (a[0, 1] + a[-1, 0] + a[1, 1]), [x], b, xp=jnp)[0]
                for o in ((0, 0), (0, 1), (-1, 0), (1, 1))
            ]
            if b != "keep":
                return total(cells(*reads))
            inner = (slice(1, -1), slice(0, -1))
            return total(x.at[inner].set(cells(*(r[inner] for r in reads))))

        assert_close(grad, jax.jit(jax.grad(plain))(x))


@pytest.mark.cover(2)
@pytest.mark.parametrize("steps", [10, 17, 31, 300])
@pytest.mark.parametrize("boundary", ["edge", "keep", "valid"])
def test_long_runs(steps: int, boundary: str) -> None:
    """Gradients remember few grids, and are those of a plain loop: of an array, of a constant, and of a captured number."""
    if boundary == "valid" and steps > 31:
        return  # nothing is left
    x, w, s = doubles(36, 40), doubles(36, 40), doubles()

    def run(x: Any, w: Any, s: Any, steps: int) -> Any:
        g = lambda a, w: 0.5 * a[0, 0] + s * a[1, 0] * w[0, -1] + 0.1 * w[0, 0] * a[0, 0]  # noqa: E731
        return jp.stencil(g, x, constants=w, boundary=boundary, steps=steps)

    def plain(x: Any, w: Any, s: Any) -> Any:
        if boundary != "valid":
            return jax.lax.scan(lambda x, _: (run(x, w, s, 1), None), x, None, length=steps)[0]
        for _ in range(steps):
            v = w[: x.shape[0], -x.shape[1] :]
            x = (0.5 + 0.1 * v[:-1, 1:]) * x[:-1, 1:] + s * x[1:, 1:] * v[:-1, :-1]
        return x

    gradient = lambda run: jax.jit(jax.value_and_grad(lambda *a: total(run(*a)), (0, 1, 2)))  # noqa: E731
    ours = gradient(functools.partial(run, steps=steps))
    assert_close(ours(x, w, s), gradient(plain)(x, w, s))
    several = jax.vmap(ours, (None, 0, None))(x, jnp.stack([w, 2 * w]), s)  # the array gets its batch axis in the first step
    assert_close(jax.tree.map(lambda g: g[0], several), ours(x, w, s))


def test_traced_steps() -> None:
    """Forward mode is JAX's own; there is no reverse."""
    g = lambda a: 0.5 * a[0] + 0.2 * a[1] * a[-1]  # noqa: E731
    x = doubles(9)
    run = lambda x, n: jp.stencil(g, x, steps=n)  # noqa: E731
    got = jax.jit(lambda x, n: jax.jvp(lambda x: run(x, n), (x,), (x,)))(x, 11)
    assert_close(got, jax.jvp(lambda x: run(x, 11), (x,), (x,)))
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.jit(jax.grad(lambda x, n: jnp.sum(run(x, n))))(x, 3)


@pytest.mark.dear
def test_nothing_to_differentiate() -> None:
    """Grids without cells, f that reads nothing, zero tangents, NaN beside the grid's ends."""
    for boundary in BOUNDARIES:
        for shape in ((0, 4), (4, 0), (1, 1)):
            x = doubles(*shape)
            got = jax.eval_shape(jax.grad(lambda x: total(jp.stencil(lambda a: a[0, 1] * a[-1, 0], x, boundary=boundary))), x)
            assert got.shape == shape
    x = doubles(4)
    assert jax.grad(lambda x: jnp.sum(jp.stencil(lambda a: 1.0, x)))(x).tolist() == [0] * 4
    assert jax.grad(lambda x: jnp.sum(jp.stencil(lambda a: jax.lax.stop_gradient(a[1]), x)))(x).tolist() == [0] * 4
    # where f of what lies beyond is not finite, cells within do not see it
    g = lambda a: jnp.log(a[0]) + jnp.log(a[1])  # noqa: E731
    for boundary in ("edge", "wrap", "valid", "keep", "reflect", "symmetric"):
        got = jax.grad(lambda x: jnp.sum(jp.stencil(g, x, boundary=boundary)))(x)
        assert np.isfinite(got).all(), boundary
    # f of a cell that is not computed may be anything
    ratio = lambda a: a[1] / a[0]  # noqa: E731
    for boundary, wanted in (("keep", [-1, -0.0625, 0.25, 1 + 1 / 9]), ("valid", [-1, -0.0625, 0.25, 1 / 9])):
        got = jax.grad(lambda x: jnp.sum(jp.stencil(ratio, x, boundary=boundary)))(np.array([2.0, 4, 9, 0]))
        np.testing.assert_allclose(got, wanted)


def _wave(height: Any, before: Any, speed: Any) -> Any:
    spread = height[-1, 0] + height[1, 0] + height[0, -1] + height[0, 1] - 4 * height[0, 0]
    return 2 * height[0, 0] - before[0, 0] + speed[0, 0] * spread, height[0, 0]


@pytest.mark.cover(1)
@pytest.mark.parametrize("boundary", ["edge", "wrap", "keep"])
@pytest.mark.parametrize("size", [20, 140])
@pytest.mark.dear
def test_fields_that_rest_at_first(boundary: str, size: int) -> None:
    """Of several fields' tangents some are zero at first, and stay so for a step."""
    rng = np.random.default_rng(0)
    start, weights = (jnp.asarray(rng.normal(size=(size, size)), jnp.float32) for _ in range(2))

    def plain(speed: Any, steps: int) -> Any:
        inside = jnp.zeros(start.shape, jnp.bool_).at[1:-1, 1:-1].set(True) | (boundary != "keep")

        def step(fields: Any, _: None) -> tuple[Any, None]:
            height, before = fields
            p = jnp.pad(height, 1, mode="wrap" if boundary == "wrap" else "edge")
            spread = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * height
            new = jnp.where(inside, 2 * height - before + speed * spread, height)
            return (new, jnp.where(inside, height, before)), None

        (height, _), _ = jax.lax.scan(step, (start, start), None, length=steps)
        return jnp.sum(height * weights)

    speed = jnp.full(start.shape, 0.1, jnp.float32)
    for steps in (1, 2, 3, 20):
        ours = lambda s: jnp.sum(jp.stencil(_wave, (start, start), constants=s, boundary=boundary, steps=steps)[0] * weights)  # noqa: E731
        want = jax.jit(jax.grad(functools.partial(plain, steps=steps)))(speed)
        np.testing.assert_allclose(jax.grad(ours)(speed), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("boundary", ["wrap", "keep"])
def test_reverse_mode_remembers_few_grids(boundary: str) -> None:
    heat = lambda t: t[0, 0] + 0.1 * jnp.tanh(t[-1, 0] + t[1, 0] + t[0, -1] + t[0, 1] - 4 * t[0, 0])  # noqa: E731
    x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    for steps, most in ((17, 12), (100, 36)):
        gradient = jax.jit(jax.grad(lambda x: jnp.sum(jp.stencil(heat, x, boundary=boundary, steps=steps) ** 2)))
        assert gradient.lower(x).compile().memory_analysis().temp_size_in_bytes <= most * 2**18


@pytest.mark.cover(3)
@pytest.mark.strategies
@pytest.mark.parametrize("shape", [(40, 30, 18), (700, 30), (2000, 8, 3)])
@pytest.mark.parametrize("boundary", ["constant", "keep"])
def test_steps_of_short_rows_are_one_loop(shape: tuple[int, ...], boundary: str) -> None:
    """XLA makes the cells of all steps before anew for each if these are not in a loop."""
    centre = (0,) * (len(shape) - (shape[-1] == 3))
    near = [(*centre[:k], s, *centre[k + 1 :]) for k in range(len(centre)) for s in (-1, 1)]
    axes = tuple(range(len(centre)))

    def f(a: Any) -> Any:
        return a[centre] + 0.1 * jnp.tanh(sum(a[o] for o in near) - len(near) * a[centre])

    x = jnp.asarray(np.random.default_rng(0).random(shape, np.float32))
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(jp.stencil(f, x, boundary=boundary, axes=axes, steps=5) ** 2)))
    assert " while(" in gradient.lower(x).compile().as_text()

    def by_steps(x: Any) -> Any:
        for _ in range(5):
            x = jp.stencil(f, x, boundary=boundary, axes=axes)
        return jnp.sum(x**2)

    np.testing.assert_allclose(gradient(x), jax.grad(by_steps)(x), rtol=2e-5, atol=1e-5)
