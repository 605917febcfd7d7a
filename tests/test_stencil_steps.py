"""``jp.stencil``: steps, plans, few cells and many, what f captures and how little it may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowering import strategies
from references import assert_close
from stencil_cells import NEAR, assert_same, curved, floats, integers, mixed, turned, wave
from stencil_reference import BOUNDARIES, stencil

import jaxprims as jp
from jaxprims.targets.cpu.plans import StencilPlan
from jaxprims.targets.plans import AnyKernel, forced

PLANS = [
    StencilPlan(1, (2, 3, 5), False), StencilPlan(2, (1, 1, 1), True), StencilPlan(3, (5, 2, 3), False),
    StencilPlan(5, (3, 5, 2), True), StencilPlan(7, (100, 1, 100), False), StencilPlan(4, (1, 100, 7)),
    StencilPlan(64, (2, 2, 2)), StencilPlan(0, (100, 3, 1)),
]  # fmt: skip


def boxed(a: Any) -> Any:
    return 0.8 * a[0, 0, 0] * a[-1, 0, 1] + 0.3 * a[1, 1, -1] - 0.4 * a[0, -1, 0]


@pytest.mark.parametrize(("f", "shape"), [(turned, (41,)), (curved, (11, 23)), (boxed, (7, 6, 19)), (boxed, (1, 5, 40))])
@pytest.mark.cover(2)
def test_plans(f: Any, shape: tuple[int, ...]) -> None:
    """However many steps are made in a pass, on tiles of any size: the bits of the plan that is chosen, and right."""
    x = floats(*shape)
    modes = mixed(len(shape))
    cases = [(b, (1, 2, 5, 50)[k % 4]) for k, b in enumerate(modes[7 + len(shape) :: 4])] + [
        (b, n) for b in BOUNDARIES for n in (2, 5)
    ]

    def run(plans: Sequence[StencilPlan]) -> list[Any]:
        def every(x: Any) -> list[Any]:
            out = []
            for k, (b, n) in enumerate(cases):
                with forced(*(plans[k % len(PLANS) :][:1] or [AnyKernel()])):
                    out.append(jp.stencil(f, x, boundary=b, steps=n, fill_value=0.25))
            return out

        return jax.jit(every)(x)

    chosen = run([])
    for got, (b, n) in zip(chosen, cases, strict=True):
        assert_close(got, stencil(f, [x.astype(np.float64)], b, steps=n, fill=0.25)[0], 1e-4)
    for turn in range(len(shape), len(PLANS), 2):
        assert_same(run(PLANS[turn:] + PLANS[:turn]), chosen)


@pytest.mark.cover(2)
@pytest.mark.parametrize("steps", [0, 1, 2, 5, 50])
def test_step_counts(steps: int) -> None:
    """Of integers, which wrap: exactly. Traced ones are the same."""
    x = integers(10, 21)
    modes: list[Any] = [*BOUNDARIES[:5], "keep", ("wrap", "keep"), ("reflect", "constant")]
    run = jax.jit(lambda x: [jp.stencil(NEAR[2], x, boundary=b, steps=steps, fill_value=9) for b in modes])
    traced = jax.jit(lambda x, n: [jp.stencil(NEAR[2], x, boundary=b, steps=n, fill_value=9) for b in modes])
    wanted = [stencil(NEAR[2], [x], b, steps=steps, fill=9)[0] for b in modes]
    assert_same(run(x), wanted)
    assert_same(traced(x, steps), wanted)
    assert_same(jp.stencil(NEAR[2], x, boundary="valid", steps=jnp.array(steps)), stencil(NEAR[2], [x], "valid", steps=steps))


def test_traced_steps() -> None:
    """With constants, positions, several arrays; of any integer dtype; batched."""
    u, v, speed = (integers(13, 30, seed=k) for k in range(3))
    f = lambda p, at, w: (*wave(*p, w)[:1], wave(*p, w)[1] + at[0])  # noqa: E731
    flat = lambda a, b, at, w: f((a, b), at, w)  # noqa: E731
    run = jax.jit(lambda u, v, s, n: jp.stencil(f, ((u, v), jp.positions), constants=s, steps=n))
    for n in (np.uint8(11), np.int32(3), np.int16(0), np.int8(-5)):
        assert_same(run(u, v, speed, n), stencil(flat, [u, v], "edge", steps=int(n), constants=[speed], places=True))
    x = integers(10, 21)
    got = jax.vmap(lambda n: jp.stencil(NEAR[2], x, steps=n))(jnp.arange(4))
    assert_same(list(got), [stencil(NEAR[2], [x], "edge", steps=n)[0] for n in range(4)])


def test_large() -> None:
    """Many tiles, several passes, as planned for themselves."""
    for f, shape in ((turned, (200_003,)), (curved, (700, 803)), (boxed, (40, 90, 101))):
        x = floats(*shape)
        for b in ("edge", "wrap", "valid"):
            got = jax.jit(lambda x: jp.stencil(f, x, boundary=b, steps=7))(x)
            assert_close(got, stencil(f, [x.astype(np.float64)], b, steps=7)[0], 1e-4)


@pytest.mark.cover(3)
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_no_cells_and_one(boundary: str) -> None:
    xs = [integers(*shape) for shape in ((0,), (1,), (0, 5), (5, 0), (1, 1), (0, 0), (2, 0, 3), (1, 1, 1))]
    run = lambda x, steps: jp.stencil(NEAR[x.ndim], x, boundary=boundary, steps=steps)  # noqa: E731
    several = jax.jit(lambda xs: {n: [run(x, n) for x in xs] for n in (0, 3)})(xs) | {1: [run(x, 1) for x in xs]}
    for steps, made in several.items():
        for x, got in zip(xs, made, strict=True):
            (wanted,) = stencil(NEAR[x.ndim], [x], boundary, steps=steps)
            assert got.shape == wanted.shape and got.dtype == np.int32, (x.shape, steps)
            if wanted.size:
                assert_same(got, wanted)
    assert jp.stencil(NEAR[1], jnp.zeros((5, 0)), axes=0, boundary=boundary).shape[1] == 0


def test_captured_arrays() -> None:
    """Scalars, a table that a cell's value is looked up in, a matrix; known only at run time."""
    x = integers(9, 22) % 5
    table, scale, matrix = integers(5), np.int32(7), integers(3, 3)

    def run(x: Any, table: Any, scale: Any, matrix: Any) -> Any:
        def f(a: Any) -> Any:
            box = sum(matrix[i, j] * a[i - 1, j - 1] for i in range(3) for j in range(3))
            return jnp.asarray(table)[a[0, 1]] * scale + box

        return [jp.stencil(f, x, boundary=b) for b in BOUNDARIES]

    wanted = lambda a: table[a[0, 1]] * scale + sum(matrix[i, j] * a[i - 1, j - 1] for i in range(3) for j in range(3))  # noqa: E731
    for call in (run, jax.jit(run)):
        for got, b in zip(call(x, table, scale, matrix), BOUNDARIES, strict=True):
            assert_same(got, *stencil(wanted, [x], b))


def test_f_of_little() -> None:
    """f that reads nothing, returns constants, a captured array, what it was given; that loops, branches; with custom rules."""
    x = floats(5, 19)
    captured = jnp.arange(3.0)
    assert_close(jp.stencil(lambda a: 2.0, x), np.full((5, 19), 2.0))
    assert_close(jp.stencil(lambda a: captured[1] * 1, x), np.full((5, 19), 1.0))
    assert jp.stencil(lambda a: captured, x).shape == (5, 19, 3)
    assert_close(jp.stencil(lambda a: (a[0, 0], a[2, 0], 1.0, 3), x, boundary="wrap")[1], np.roll(x, -2, 0))
    assert jp.stencil(lambda a: 1.0, x, boundary="valid", steps=3).shape == (5, 19)

    def f(a: Any) -> Any:
        s = jax.lax.fori_loop(0, 3, lambda k, s: s + a[0, 1] * k, a[0, 0])
        s = jax.lax.while_loop(lambda s: jnp.abs(s) > 1, lambda s: s / 2, s)
        return jax.lax.cond(s > 0, jax.nn.relu, lambda s: -s, s) + jax.nn.softplus(s)

    def plain(a: Any) -> Any:
        s = a[0, 0] + 3 * a[0, 1]
        while (np.abs(s) > 1).any():
            s = np.where(np.abs(s) > 1, s / 2, s)
        return np.abs(s) + np.logaddexp(s, 0)

    assert_close(jp.stencil(f, x), stencil(plain, [x.astype(np.float64)], "edge")[0], 1e-5)


def test_fallback() -> None:
    """What kernels cannot express runs as plain XLA."""
    x, three = floats(4, 9, 2, 2), 3 * np.eye(2, dtype=np.float32)
    f = lambda a: jnp.linalg.inv(a[0, 0] + three) @ a[1, -1]  # noqa: E731
    plain = lambda a: np.linalg.inv(a[0, 0] + three) @ a[1, -1]  # noqa: E731
    for b in ("reflect", "constant", "valid", "keep"):
        with pytest.warns(jp.FallbackWarning, match="f cannot be compiled into a kernel"):
            got = jp.stencil(f, x, axes=(0, 1), boundary=b, steps=2)
        assert_close(got, stencil(plain, [x.astype(np.float64)], b, steps=2, rank=2)[0], 1e-4)
    with pytest.warns(jp.FallbackWarning, match="of 8281 numbers that f does not treat alike"):
        got = jp.stencil(lambda a: a[1] @ a[0], floats(3, 91, 91) / 91, axes=0)
    assert got.shape == (3, 91, 91)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float8_e5m2"])
def test_types_without_kernels(dtype: str) -> None:
    """Read, made, or neither: the array says how many cells there are."""
    x = jnp.arange(6).astype(dtype)
    calls = {
        "read": (lambda a: a[1].astype(jnp.float32) * 2, [2, 4, 6, 8, 10, 10]),
        "made": (lambda a: (a[0].astype(jnp.int32) + 1).astype(dtype), [1, 2, 3, 4, 5, 6]),
        "neither": (lambda a: 3.0, [3] * 6),
    }
    for f, wanted in calls.values():
        with pytest.warns(jp.FallbackWarning, match=dtype):
            assert jp.stencil(f, x).astype(jnp.float32).tolist() == wanted
    with pytest.warns(jp.FallbackWarning, match=dtype):
        assert jp.stencil(lambda a, at: at[0], (x, jp.positions)).tolist() == list(range(6))


@pytest.mark.strategies
@pytest.mark.parametrize(("boundary", "row", "pays"), [("wrap", 50, True), ("constant", 50, False), ("wrap", 90, False)])
def test_steps_of_short_rows_that_wrap_around(boundary: str, row: int, pays: bool) -> None:
    x = jnp.asarray(np.random.default_rng(3).random((400, row), np.float32))

    def steps(x: jax.Array) -> Any:
        return jp.stencil(lambda a: 0.5 * a[0, 0] + 0.25 * (a[0, -1] + a[1, 0]), x, boundary=boundary, steps=12)

    assert (strategies(steps, x) == ["plain XLA"]) == pays
    got = jax.jit(steps)(x)
    with forced(AnyKernel()):
        np.testing.assert_allclose(jax.jit(lambda x: steps(x))(x), got, rtol=1e-5)
