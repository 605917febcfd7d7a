"""``jp.stencil``: what neighbouring cells share is made once; few cells are XLA's."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import assert_close
from stencil_cells import assert_same, floats, integers, weighed
from stencil_reference import BOUNDARIES, stencil

import jaxprims as jp
from jaxprims.specs.stencil import StencilSpec
from jaxprims.targets.cpu.stencil.rows import at_once
from jaxprims.targets.cpu.stencil.stages import stages_of


def of(name: str, cells: Sequence[Any]) -> Any:
    """The fold of ``cells`` by a function of NumPy or of JAX."""
    return functools.reduce(getattr(np if isinstance(cells[0], np.ndarray) else jnp, name), cells)


def largest(cells: Sequence[Any]) -> Any:
    return of("maximum", cells)


def window(*sides: Sequence[int]) -> list[tuple[int, ...]]:
    return list(itertools.product(*sides))


SHARED: dict[str, tuple[int, Callable[[Any], Any]]] = {
    # stages, and a function that has so many
    "square": (2, lambda a: largest([a[o] for o in window(range(-2, 3), range(-1, 4))])),
    "cube": (2, lambda a: largest([a[o] for o in window(range(2), range(-1, 2), range(-1, 2))])),
    "line": (2, lambda a: of("minimum", [a[k] for k in range(-5, 16)])),
    "far apart": (3, lambda a: largest([a[o] for o in window((-3, 0, 3), range(0, 54, 6))])),
    "columns of columns": (3, lambda a: largest([a[o] for o in window(range(-3, 4), range(12))])),
    "sums": (2, lambda a: sum(a[o] for o in window(range(-2, 3), range(-2, 3))) - 3 * a[0, 0]),
    "of sums": (2, lambda a: sum((k + 4) * sum((i + 3) * a[i, k] for i in range(-2, 3)) for k in range(-3, 3))),
    "counts": (2, lambda a: sum((a[o] > 100).astype(np.int32) for o in window(range(-2, 3), range(-2, 3)))),
    "any": (2, lambda a: of("logical_or", [a[o] > 900 for o in window(range(3), range(3))]) + 2 * a[0, 0]),
    "nothing": (1, lambda a: a[0, 0] + a[0, 1] * a[1, 0]),
}  # fmt: skip


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", SHARED)
@pytest.mark.dear
def test_what_neighbours_share(name: str) -> None:
    """Made once for each cell: in so many stages, the same bits as by definition, in rows of less than a piece and more."""
    stages, f = SHARED[name]
    rank = {"cube": 3, "line": 1}.get(name, 2)
    shapes = {1: [(70,), (3000,)], 2: [(9, 64), (3, 2500)], 3: [(3, 4, 41)]}[rank]
    xs = [integers(*shape) for shape in shapes]
    assert len(stages_of(spec_of(f, xs[0])).stages) == stages
    for x in xs:
        for boundary, steps in (("edge", 1), ("wrap", 2), ("constant", 1), ("keep", 2)):
            (wanted,) = jax.jit(functools.partial(stencil, f, boundary=boundary, steps=steps, xp=jnp))([x])
            assert_same(jp.stencil(f, x, boundary=boundary, steps=steps), wanted)


@pytest.mark.dear
def test_rows_at_once() -> None:
    """Four that have reads in common, two of several stages or of a longer f, one of a longer one yet."""
    near = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
    square = list(itertools.product(range(-1, 2), repeat=2))
    wide = list(itertools.product(range(-3, 4), repeat=2))
    kinds: list[tuple[Callable[[Any], Any], int]] = [
        (weighed(*near), 4), (weighed(*square), 4), (weighed((0, 0), (3, 0), (-4, 0)), 1),
        (lambda a: functools.reduce(jnp.maximum, (a[o] for o in square)), 2), (weighed(*wide[:28]), 2), (weighed(*wide), 1),
    ]  # fmt: skip
    for f, count in kinds:
        x = floats(13, 100)
        assert at_once(spec_of(f, x)) == count
        assert_close(jp.stencil(f, x, boundary="wrap", steps=3), *stencil(f, [x], "wrap", steps=3))


def spec_of(f: Callable[[Any], Any], x: Any) -> StencilSpec:
    (call,) = jp.explain(lambda x: jp.stencil(f, x))(x).calls
    assert isinstance(call.spec, StencilSpec)
    return call.spec


@pytest.mark.dear
def test_what_neighbours_share_of_floats() -> None:
    """NaN wins among maxima and minima, whatever else there is, -0 is less than 0, and sums keep their order. Cells of
    several numbers, of two bytes each, coordinates."""
    x = floats(12, 90) * (np.random.default_rng(1).random((12, 90)) < 0.2)
    x[3, 40], x[7, 80], x[0, 0] = np.nan, -np.nan, np.inf
    near = window(range(-2, 3), range(-2, 3))

    def f(a: Any) -> Any:
        columns = [sum(a[i, j] for i in range(-2, 3)) for j in range(-2, 3)]
        return largest([a[o] for o in near]), of("minimum", [a[o] for o in near]), sum(columns)

    for c in (x, np.repeat(x[..., None], 3, -1), x.astype(np.float16)):
        got, wanted = jp.stencil(f, c, boundary="wrap", axes=(0, 1)), stencil(f, [c], "wrap", rank=2)
        for g, w in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(g, w)
        negative = [
            stencil(lambda a, q=q: q(np.stack([a[o] for o in near]), 0), [np.signbit(c)], "wrap", rank=2)[0]
            for q in (np.all, np.any)
        ]
        for g, w in zip(got, negative, strict=False):
            np.testing.assert_array_equal(np.signbit(g)[~np.isnan(g)], w[~np.isnan(g)])

    def f(p: Any, q: Any, at: Any) -> Any:
        both = [(p[o] * q[o] + at[0]) * (p[o] - 2) for o in near]
        return largest([c + k // 5 for k, c in enumerate(both)]) + at[1]

    p, q = integers(9, 70), integers(9, 70, seed=1)
    (wanted,) = stencil(f, [p, q], "reflect", places=True)
    assert_same(jp.stencil(f, (p, q, jp.positions), boundary="reflect"), wanted)


@pytest.mark.strategies
def test_few_cells_are_padded_in_one_operation() -> None:
    """What XLA makes of few cells is as good as what a user writes: one pad, which it fuses with the reads, no pieces."""
    f = weighed((0, 0, -1), (0, 1, 0), (-1, 0, 0))
    text = jax.jit(lambda x: jp.stencil(f, x, boundary="constant", fill_value=3)).lower(jnp.zeros((8, 9, 10))).as_text()
    assert text.count("stablehlo.pad") == 1 and "stablehlo.concatenate" not in text
    x = floats(8, 9, 10)
    assert_close(jp.stencil(f, x, boundary="constant", fill_value=3), stencil(f, [x], "constant", fill=3)[0], 1e-6)


@pytest.mark.strategies
def test_few_cells_around() -> None:
    """Of the next cells XLA rolls the grid for each read; of what is read farther away, or along several axes at once, it reads
    what is around it. The same cells, and derivatives, either way."""
    star = [(0, 0, -1), (0, 1, 0), (-1, 0, 0), (0, 0, 0)]
    for offsets, rolls in ((star, True), ([*star, (1, 0, -1)], False), ([*star, (0, 2, 0)], False)):
        run = functools.partial(jp.stencil, weighed(*offsets), boundary="wrap")
        x = floats(5, 6, 7)
        assert ("roll" in str(jax.make_jaxpr(lambda x, run=run: jax.vjp(run, x)[0])(x))) == rolls
        plain = jax.jit(lambda x, o=offsets: stencil(weighed(*o), [x], "wrap", xp=jnp)[0])
        assert_close(jax.jit(run)(x), plain(x), 1e-6)
        got, wanted = (jax.grad(lambda x, g=g: jnp.sum(jnp.sin(g(x))))(x) for g in (run, plain))
        assert_close(got, wanted, 1e-6)


@pytest.mark.parametrize("steps", [1, 3])
def test_kept_while_it_is_differentiated(steps: int) -> None:
    """The same bits as otherwise, signs of zeros, NaN and numbers that are nearly 0 among them."""
    x = floats(6, 7)
    x[0], x[2, 2:5], x[-1, 0], x[:, -1], x[-1, 1:4] = -0.0, -0.0, np.nan, -np.inf, -1e-40
    run = functools.partial(jp.stencil, lambda a: a[0, 1] * a[0, 0], boundary="keep", steps=steps)
    value = jax.jit(lambda x: jax.vjp(run, x)[0])(x)
    np.testing.assert_array_equal(np.asarray(value).view(np.uint32), np.asarray(jax.jit(run)(x)).view(np.uint32))


@pytest.mark.strategies
def test_rows_that_fill_no_vector() -> None:
    """Such are XLA's, whatever the number of bytes: a kernel would make all cells one by one."""

    def strategy(dtype: str, row: int) -> str:
        run = lambda x: jp.stencil(lambda a: a[-1, 0] | a[0, 1], x, boundary="keep", steps=2)  # noqa: E731
        return str(jp.explain(run)(jax.ShapeDtypeStruct((3000, row), dtype)).calls[0])

    assert "short rows" in strategy("uint8", 64)
    assert "short rows" not in strategy("uint8", 66) + strategy("int32", 64)


@pytest.mark.cover(1)
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.dear
def test_drawn_of_few_cells(boundary: str) -> None:
    """XLA's cells far beyond small grids: several times around, to and fro; and their derivatives, which read otherwise."""
    rng = np.random.default_rng(BOUNDARIES.index(boundary))
    for rank in (1, 2, 3):
        shape = tuple(map(int, rng.integers(1, 7, rank)))
        offsets = [tuple(map(int, o)) for o in rng.integers(-7, 8, (3, rank))]
        steps = int(rng.integers(1, 4))
        f, x = weighed(*offsets), integers(*shape)
        if rank == 1:
            f = weighed(*(o[0] for o in offsets))  # type: ignore[arg-type]
        run = functools.partial(jp.stencil, f, boundary=boundary, steps=steps)
        assert_same(jax.jit(run)(x), stencil(f, [x], boundary, steps=steps)[0])
        y = x.astype(np.float32)
        plain = functools.partial(stencil, f, boundary=boundary, steps=steps, xp=jnp)
        got = jax.jit(jax.grad(lambda y: jnp.sum(run(y) * 0.5)))(y)
        assert_close(got, jax.jit(jax.grad(lambda y: jnp.sum(plain([y])[0] * 0.5)))(y))
