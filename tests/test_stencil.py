"""``jp.stencil`` against its definition: boundaries, neighbourhoods, dtypes, cells, steps, plans, errors."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import assert_close, wide
from stencil_reference import BOUNDARIES, stencil

import jaxprims as jp
from jaxprims.specs.stencil import StencilSpec
from jaxprims.targets.cpu.plans import StencilPlan
from jaxprims.targets.cpu.stencil.rows import at_once
from jaxprims.targets.cpu.stencil.stages import stages_of
from jaxprims.targets.plans import AnyKernel, forced


def integers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1000, 1000, shape).astype(np.int32)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def weighed(*offsets: tuple[int, ...]) -> Callable[[Any], Any]:
    """The cells at these offsets, each times another number."""
    return lambda a: sum((2 * k + 1) * a[o] for k, o in enumerate(offsets))


def assert_same(got: Any, wanted: Any) -> None:
    """The same bits."""
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert g.shape == np.shape(w) and g.dtype == np.asarray(w).dtype, (g.shape, g.dtype, np.shape(w), np.asarray(w).dtype)
        assert np.asarray(g).tobytes() == np.asarray(w).tobytes(), (np.asarray(g), w)


# Lopsided; they reach beyond small grids on both sides.
NEAR: dict[int, Callable[[Any], Any]] = {
    1: weighed((-3,), (0,), (1,)),
    2: weighed((-1, 0), (0, -2), (0, 0), (2, 1)),
    3: weighed((0, 0, 0), (-1, 0, 1), (1, -2, 0), (0, 1, -1)),
    4: weighed((0, 0, 0, 0), (-1, 0, 0, 2), (0, 1, -1, 0), (1, 0, 0, -1)),
}
SHAPES: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((1,), (2,), (3,), (5,), (17,), (70,)),
    2: ((1, 1), (1, 40), (40, 1), (2, 3), (3, 2), (9, 33)),
    3: ((1, 1, 1), (2, 3, 40), (5, 1, 19)),
    4: ((2, 3, 4, 18), (3, 1, 2, 5)),
}


def mixed(rank: int) -> list[tuple[str, ...]]:
    """Boundaries by axis: each alone, and every two next to each other."""
    alone = [(b,) * rank for b in BOUNDARIES]
    if rank == 1:
        return alone
    pairs = list(itertools.permutations(BOUNDARIES, 2))
    return [*alone, *(tuple((p * rank)[:rank]) for p in pairs)]


@pytest.mark.parametrize("rank", NEAR)
def test_boundaries(rank: int) -> None:
    """Every one, mixed by axis, on grids that are smaller than the neighbourhood and larger."""
    f = NEAR[rank]
    modes = mixed(rank)
    cases = [(shape, b) for k, shape in enumerate(SHAPES[rank]) for b in (modes[:7] + modes[7 + k % 5 :: 5])]
    arrays = [integers(*shape) for shape in SHAPES[rank]]
    given = dict(zip(SHAPES[rank], arrays, strict=True))
    run = jax.jit(lambda xs: [jp.stencil(f, xs[SHAPES[rank].index(s)], boundary=b, fill_value=-7) for s, b in cases])
    for got, (shape, b) in zip(run(arrays), cases, strict=True):
        assert_same(got, *stencil(f, [given[shape]], b, fill=-7)) if got.size else assert_shape(got, f, given[shape], b)


def assert_shape(got: Any, f: Any, x: np.ndarray, boundary: Any) -> None:
    assert got.shape == stencil(f, [x], boundary)[0].shape and got.dtype == x.dtype


@pytest.mark.parametrize(
    "offsets",
    [
        ((5, 0),),
        ((-9, 2),),
        ((0, 13), (1, 0)),
        ((-25, 31), (25, 0), (0, -31)),
        tuple((i, j) for i in range(-3, 4) for j in range(4)),
    ],
)
def test_neighbourhoods(offsets: Any) -> None:
    """To one side only, far away, one cell alone, windows."""
    f, x = weighed(*offsets), integers(11, 37)
    run = jax.jit(lambda x: [jp.stencil(f, x, boundary=(b, c), steps=n) for b, c, n in cases])
    cases = [(b, c, 1 + k % 3) for k, (b, c) in enumerate(zip(BOUNDARIES, BOUNDARIES[3:] + BOUNDARIES[:3], strict=True))]
    for got, (b, c, n) in zip(run(x), cases, strict=True):
        assert_same(got, *stencil(f, [x], (b, c), steps=n))


@pytest.mark.parametrize("reads", [1, 3, 4, 5, 9])
def test_row_lengths(reads: int) -> None:
    """Around multiples of the vectors that are made together: four, three, two or one of them, by how long f is."""
    f, sizes = lambda a: sum(a[k] for k in range(reads)), [*range(reads, 40), 63, 64, 65, 66, 95, 97, 129, 200]
    xs = [integers(n) for n in sizes]
    got = jax.jit(lambda xs: [jp.stencil(f, x, boundary="valid") for x in xs])(xs)
    assert_same(got, [stencil(f, [x], "valid")[0] for x in xs])


DTYPES = (
    "bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
    "complex128",
)  # fmt: skip


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str) -> None:
    """Numbers so small that every dtype holds every result."""
    t, rng = jnp.dtype(dtype), np.random.default_rng(0)
    x = rng.integers(0, 4, (9, 41)).astype(t)
    f = (lambda a: a[-1, 0] ^ a[0, 1] ^ a[0, -2]) if dtype == "bool" else (lambda a: a[-1, 0] + a[0, 1] * a[0, -2])
    cases = [("constant", 1), ("edge", 1), ("keep", 1), (("wrap", "reflect"), 1), ("constant", 2), ("valid", 2)]
    run = jax.jit(lambda x: [jp.stencil(f, x, boundary=b, fill_value=1, steps=n) for b, n in cases])
    for got, (b, n) in zip(run(x), cases, strict=True):
        assert got.dtype == t
        (wanted,) = stencil(f, [wide(x)], b, fill=1, steps=n)
        assert_close(got, wanted, 0.02 if t.itemsize == 2 and t.kind not in "iu" else None)


def test_numbers_at_their_ends() -> None:
    """Integers wrap, maxima and minima are exact, NaN and infinity go where they are read and nowhere else."""
    x = np.array([[127, -128, 5, 0] * 9] * 3, np.int8)
    assert_same(jp.stencil(NEAR[2], x), *stencil(lambda a: NEAR[2](a).astype(np.int8), [x], "edge"))
    y = floats(5, 40)
    y[2, 7], y[3, 30], y[0, 0], y[4, 39] = np.nan, np.inf, -0.0, -np.inf
    near = lambda a: (jnp.maximum(a[0, -1], a[1, 0]), jnp.minimum(a[0, 1], a[-1, 0]), a[0, 0])  # noqa: E731
    plain = lambda a: (np.maximum(a[0, -1], a[1, 0]), np.minimum(a[0, 1], a[-1, 0]), a[0, 0])  # noqa: E731
    for b in BOUNDARIES[:6]:
        for got, wanted in zip(jp.stencil(near, y, boundary=b), stencil(plain, [y], b), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_several_arrays() -> None:
    """Each with a neighbourhood of its own, pytrees, constants, results of other dtypes and structures."""
    a, b, c = integers(6, 21), floats(6, 21), integers(6, 21, seed=1)

    def f(p: Any, q: Any, w: Any) -> Any:
        return {"less": p["a"][0, 1] < w[-1, 0], "sum": (q[1, 1] + q[0, -3], p["a"][2, 0] - p["c"][0, 0] * w[0, 4])}

    run = jax.jit(
        lambda a, b, c: [jp.stencil(f, ({"a": a, "c": c}, b), boundary=m, constants=c, fill_value=2) for m in BOUNDARIES[:6]]
    )
    for got, m in zip(run(a, b, c), BOUNDARIES, strict=False):
        less, added, product = stencil(
            lambda a, c, q, w: jax.tree.leaves(f({"a": a, "c": c}, q, w)), [a, c, b], m, fill=2, constants=[c]
        )
        assert set(got) == {"less", "sum"} and isinstance(got["sum"], tuple)
        assert_same((got["less"], got["sum"][1]), (less, product))
        assert_close(got["sum"][0], added)


def wave(u: Any, v: Any, speed: Any) -> Any:
    """u changes by v, v by u's curvature: two arrays of integers, and one that does not change."""
    return u[0, 0] + v[0, 0], v[0, 0] + speed[0, 1] * (u[1, 0] + u[-1, 0] + u[0, 2] + u[0, -1] - 4 * u[0, 0])


def test_constants_and_steps() -> None:
    """Two arrays that change, and one that is read all the time; what is left out shrinks from step to step."""
    u, v, speed = (integers(13, 30, seed=k) for k in range(3))
    cases = [
        *((b, n) for b in BOUNDARIES for n in (1, 2, 5)),
        *(((a, b), 3) for a, b in itertools.permutations(BOUNDARIES[1:], 2)),
    ]
    run = jax.jit(lambda u, v, s: [jp.stencil(wave, (u, v), boundary=b, steps=n, constants=s, fill_value=3) for b, n in cases])
    for got, (b, n) in zip(run(u, v, speed), cases, strict=True):
        assert isinstance(got, tuple)
        wanted = stencil(wave, [u, v], b, steps=n, constants=[speed], fill=3)
        assert_same([np.asarray(g) for g in got], wanted)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((5, 17, 3), (0, 1)), ((4, 9, 11), (1, 2)), ((9, 3, 14), (0, 2)), ((9, 3, 14), (2, 0)), ((2, 8, 3, 9), (-1, 1)),
        ((6, 7, 70), (1, 0)), ((2, 5, 6, 2, 3), (1, 2)), ((5, 6, 1), (0, 1)), ((1, 5, 6), (2, 1)), ((7, 5, 8), (2, 0)),
    ],
)  # fmt: skip
def test_cells(shape: tuple[int, ...], axes: tuple[int, int]) -> None:
    """Axes that are no part of the grid, before it, between its axes and behind; lane by lane, and where f mixes numbers."""
    x = integers(*shape)
    cell = [n for a, n in enumerate(shape) if a not in [k % len(shape) for k in axes]]
    weights = integers(cell[-1], 2, seed=1) % 5
    lanes = lambda a: a[0, 1] * 3 + a[-2, 0]  # noqa: E731
    product = lambda a: a[0, 1] @ weights + (a[-1, 0]).sum(-1, keepdims=True, dtype=np.int32)  # noqa: E731
    total = lambda a: (a[1, 0] * a[0, -1])[..., 0]  # noqa: E731
    cases = list(zip((lanes, product, total, lanes), BOUNDARIES, (1, 1, 1, 4), strict=False))
    cases += [(lanes, b, 1 + k % 2) for k, b in enumerate(BOUNDARIES[4:])] + [(product, ("wrap", "valid"), 1)]
    run = jax.jit(lambda x: [jp.stencil(f, x, axes=axes, boundary=b, steps=n) for f, b, n in cases])
    if np.prod(cell) > 32:  # more than a kernel's struct
        cases = [c for c in cases if c[0] is lanes]
    first = np.moveaxis(x, axes, (0, 1))
    for got, (f, b, n) in zip(run(x), cases, strict=True):
        (wanted,) = stencil(f, [first], b, steps=n, rank=2)
        fits = all(-wanted.ndim <= a < wanted.ndim for a in axes)
        assert_same(got, np.ascontiguousarray(np.moveaxis(wanted, (0, 1), axes)) if fits else wanted)


def test_cells_of_some_arrays() -> None:
    """A grid of numbers beside a grid of slices; a norm over what a cell holds."""
    x, w = floats(6, 3, 19), floats(6, 19, seed=1)
    f = lambda a, v: (a[0, 1] - a[1, 0]) * v[0, 0]  # noqa: E731
    norm = lambda a: jnp.sqrt((a[0, 1] ** 2).sum()) + a[0, 0]  # noqa: E731
    got, normed = jax.jit(lambda x, w: (jp.stencil(f, (x, w), axes=(0, -1)), jp.stencil(norm, x, axes=(0, 2), steps=2)))(x, w)
    x64, w64 = np.moveaxis(wide(x), 2, 1), wide(w)
    (wanted,) = stencil(f, [x64, w64[..., None]], "edge", rank=2)
    assert_close(got, np.moveaxis(wanted, 2, 1), 1e-5)
    long = lambda a: np.sqrt((a[0, 1] ** 2).sum(-1, keepdims=True)) + a[0, 0]  # noqa: E731
    assert_close(normed, np.moveaxis(stencil(long, [x64], "edge", rank=2, steps=2)[0], 2, 1), 1e-5)


def test_positions() -> None:
    """The cell's coordinates: of the whole grid, also where cells are left out and in later steps."""
    x = integers(7, 5, 23)
    f = lambda a, at: a[-1, 0, 2] * at[2] + at[0] - 7 * at[1] * a[0, 1, 0]  # noqa: E731
    cases = [(b, n) for b in BOUNDARIES for n in (1, 2)] + [(("valid", "wrap", "keep"), 3), (("keep", "valid", "constant"), 2)]
    run = jax.jit(lambda x: [jp.stencil(f, (x, jp.positions), boundary=b, steps=n) for b, n in cases])
    for got, (b, n) in zip(run(x), cases, strict=True):
        assert_same(got, *stencil(f, [x], b, steps=n, places=True))
    lanes = lambda a, at: a[0] * at[0] + a[-1]  # noqa: E731
    got = jp.stencil(lanes, (x, jp.positions), axes=1)
    (wanted,) = stencil(lambda a, at: a[0] * at[0][:, None, None] + a[-1], [np.moveaxis(x, 1, 0)], "edge", rank=1, places=True)
    assert_same(got, np.ascontiguousarray(np.moveaxis(wanted, 0, 1)))
    told = lambda a, at: a[0, 1] * at[1] + a[-1, 0] * at[0]  # noqa: E731
    aside = lambda a, at: told(a, [p[..., None] for p in at])  # noqa: E731
    for n, b in itertools.product((1, 3, 5), BOUNDARIES):  # of lanes beside each other
        y = integers(6, 37, n)
        got = jp.stencil(told, (y, jp.positions), axes=(0, 1), boundary=b, steps=2)
        assert_same(got, *stencil(aside, [y], b, rank=2, steps=2, places=True))
    (alone,) = jp.stencil(lambda p, a: [p[0] * 10 + p[1]], [jp.positions, jnp.zeros((2, 3))])
    assert alone.tolist() == [[0, 1, 2], [10, 11, 12]]


@pytest.mark.parametrize("boundary", list(itertools.permutations(("valid", "keep", "wrap"))))
def test_nothing_is_left(boundary: Any) -> None:
    """After steps that leave out more cells than there are, beside axes that keep theirs; by a kernel and by XLA."""
    shrinking = boundary.index("valid")
    for n, steps in itertools.product((0, 1, 3, 5), (1, 2, 4)):
        shape = tuple(n if a == shrinking else 9 for a in range(3))
        (wanted,) = stencil(NEAR[3], [integers(*shape)], boundary, steps=steps)
        for plans in ((AnyKernel(),), ()):
            with forced(*plans):
                got = jp.stencil(NEAR[3], integers(*shape), boundary=boundary, steps=steps)
            assert_same(got, wanted)


# --- steps and plans -----------------------------------------------------------------------------------------------------------

PLANS = [
    StencilPlan(1, (2, 3, 5), False), StencilPlan(2, (1, 1, 1), True), StencilPlan(3, (5, 2, 3), False),
    StencilPlan(5, (3, 5, 2), True), StencilPlan(7, (100, 1, 100), False), StencilPlan(4, (1, 100, 7)),
    StencilPlan(64, (2, 2, 2)), StencilPlan(0, (100, 3, 1)),
]  # fmt: skip


def turned(a: Any) -> Any:
    """Not linear, and of a value that shows every cell that was read wrongly."""
    return 0.7 * a[0] * a[1] - 0.4 * a[-1] + 0.3


def curved(a: Any) -> Any:
    return 0.8 * a[0, 0] * a[-1, 1] + 0.3 * a[1, -1] - 0.4 * a[0, 2]


def boxed(a: Any) -> Any:
    return 0.8 * a[0, 0, 0] * a[-1, 0, 1] + 0.3 * a[1, 1, -1] - 0.4 * a[0, -1, 0]


@pytest.mark.parametrize(("f", "shape"), [(turned, (41,)), (curved, (11, 23)), (boxed, (7, 6, 19)), (boxed, (1, 5, 40))])
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


# --- errors --------------------------------------------------------------------------------------------------------------------

GRID = np.zeros((3, 4), np.float32)
KEY = jax.random.key(0)


def near(a: Any) -> Any:
    return a[0, 1]


ERRORS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"f": 3}, TypeError, "f must be a function of a cell's neighbourhood, got 3"),
    ({"f": lambda a: ()}, TypeError, "f must return at least one number, got none"),
    ({"f": lambda a: None}, TypeError, "f's result: NoneType is not an array"),
    ({"f": lambda a: "x"}, TypeError, "f's result: str is not an array"),
    ({"f": lambda a: a[0, 0] + KEY}, TypeError, "key"),
    ({"f": lambda a: KEY}, TypeError, "f's results must be numbers, got key"),
    ({"f": lambda a: a}, TypeError, r"a view of xs, to be read at offsets such as view\[0, 0\]; it is no array itself"),
    ({"f": lambda a: jnp.sin(a)}, TypeError, "View|a view of xs"),
    ({"f": lambda a: np.sin(a)}, TypeError, "a view of xs"),
    ({"f": lambda a: sum(a)}, TypeError, "a view of xs"),
    ({"f": lambda a: a + 1.0}, TypeError, "unsupported operand"),
    ({"f": lambda a: a[0, 0] * a}, TypeError, "View|a view of xs"),
    ({"f": lambda a: a[0]}, ValueError, "offsets of xs must be 2 integers, .*, one for each axis of the grid, got 0"),
    ({"f": lambda a: a[0, 1.0]}, TypeError, r"offsets of xs must be 2 integers, .* known when f is traced, got \(0, 1.0\)"),
    ({"f": lambda a: a[True, 0]}, TypeError, r"offsets of xs must be 2 integers, .*, got \(True, 0\)"),
    ({"f": lambda a: a[0, a[0, 0].astype(int)]}, TypeError, "offsets of xs must be 2 integers"),
    ({"f": lambda a: a[0, :]}, TypeError, "offsets of xs must be 2 integers"),
    ({"f": lambda a: a[0, 1 << 30]}, ValueError, r"offsets of xs must be less than 2\^30, got \(0, 1073741824\)"),
    ({"f": lambda a, w: w[0], "constants": GRID}, ValueError, "offsets of constants must be 2 integers"),
    ({"xs": ()}, ValueError, r"xs must hold at least one array, got \(\)"),
    ({"constants": []}, ValueError, r"constants must hold at least one array, got \[\]"),
    ({"xs": {}}, ValueError, "xs: at least one array is needed to know the grid, got none"),
    ({"xs": jp.positions}, ValueError, "xs: at least one array is needed to know the grid, got none"),
    ({"constants": jp.positions}, TypeError, "constants must be arrays; positions are given among xs"),
    ({"xs": [None]}, TypeError, "xs: NoneType is not an array"),
    ({"xs": jax.random.split(KEY, (3, 4))}, TypeError, "xs must be numbers, got key"),
    ({"xs": np.zeros((3, 4), jax.dtypes.float0)}, TypeError, "xs"),
    ({"xs": (GRID, GRID[0])}, ValueError, r"the grid's shape where axes is not given, got shapes \(3, 4\), \(4,\)"),
    ({"constants": GRID[0]}, ValueError, r"constants: all arrays must have the grid's shape"),
    ({"xs": (GRID, GRID[:2])}, ValueError, r"xs: all arrays must have one grid, got grids \(3, 4\), \(2, 4\)"),
    ({"xs": 1.0}, ValueError, "axes must name at least one axis of the grid; xs without an axis have none"),
    ({"axes": ()}, ValueError, "axes must name at least one axis of the grid"),
    ({"axes": 1.0}, TypeError, "axes must be integers, got 1.0"),
    ({"axes": (0, True)}, TypeError, r"axes must be integers, got \(0, True\)"),
    ({"axes": 2}, ValueError, r"axes must be in range for xs of shape \(3, 4\), got 2"),
    ({"axes": (0, -3)}, ValueError, r"axes must be in range for xs of shape \(3, 4\)"),
    ({"axes": (1, -1)}, ValueError, r"axes must be different axes, got \(1, -1\)"),
    ({"xs": np.zeros((1,) * 16)}, ValueError, "axes: a grid has 15 axes at most, got 16"),
    ({"boundary": "mirror"}, ValueError, "boundary must be one of 'edge', 'wrap', .*'valid', 'keep', got 'mirror'"),
    ({"boundary": None}, ValueError, "boundary must be one of .*, got None"),
    ({"boundary": ("edge",)}, ValueError, r"boundary must be one for all axes or one for each of 2, got \('edge',\)"),
    ({"boundary": ("edge", ["wrap"])}, ValueError, r"boundary must be one of .*, got \['wrap'\]"),
    ({"boundary": "constant", "fill_value": "a"}, TypeError, "fill_value must be a number, got 'a'"),
    ({"boundary": "constant", "fill_value": None}, TypeError, "fill_value must be a number, got None"),
    ({"boundary": "constant", "fill_value": [0, 0]}, TypeError, r"fill_value must be a number, got \[0, 0\]"),
    ({"boundary": "constant", "fill_value": 1j}, ValueError, "fill_value must be a number that float32 can hold, got 1j"),
    ({"xs": GRID.astype(np.uint8), "boundary": "constant", "fill_value": -1}, ValueError, "that uint8 can hold, got -1"),
    ({"xs": GRID.astype(np.int8), "boundary": "constant", "fill_value": np.nan}, ValueError, "that int8 can hold, got nan"),
    ({"xs": GRID.astype(bool), "boundary": "constant", "fill_value": 2}, ValueError, "that bool can hold, got 2"),
    ({"steps": 1.5}, TypeError, "steps must be an integer, got 1.5"),
    ({"steps": True}, TypeError, "steps must be an integer, got True"),
    ({"steps": "1"}, TypeError, "steps must be an integer, got '1'"),
    ({"steps": -1}, ValueError, "steps must not be negative, got -1"),
    ({"steps": jnp.array(2.0)}, TypeError, "steps must be one integer"),
    ({"steps": jnp.arange(2)}, TypeError, "steps must be one integer"),
    ({"f": lambda a: (near(a), 1.0), "steps": 2}, TypeError, "a result for each of the 1 arrays of xs, .*, got 2"),
    ({"f": lambda a: near(a) > 0, "steps": 2}, TypeError, r"result 0 is bool\[\]; wanted float32\[\]"),
    ({"f": lambda a: jnp.stack([near(a)] * 2), "steps": 0}, TypeError, r"result 0 is float32\[2\]; wanted float32\[\]"),
    ({"f": lambda a: (near(a), near(a)), "boundary": "keep"}, TypeError, "which are cells that keep their value, got 2"),
    ({"f": lambda a: near(a) > 0, "boundary": ("keep", "edge")}, TypeError, "f's results must be like xs, for they are cells"),
    ({"axis_name": ("x", None, None)}, ValueError, "axis_name must be one name, .* for each of 2"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "error", "message"), ERRORS)
def test_errors(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"f": lambda a, *_: near(a), "xs": GRID} | arguments
    with pytest.raises(error, match=message):
        jp.stencil(given.pop("f"), given.pop("xs"), **given)


def test_errors_under_jit() -> None:
    with pytest.raises(ValueError, match='steps must be known when the function is traced where boundary is "valid"'):
        jax.jit(lambda n: jp.stencil(near, GRID, boundary=("edge", "valid"), steps=n))(3)
    for n in (2.0, True, jnp.arange(2)):
        with pytest.raises(TypeError, match="steps must be one integer, got"):
            jax.jit(lambda n: jp.stencil(near, GRID, steps=n))(n)
    with pytest.raises(TypeError, match="fill_value must be a number that is known when the function is traced"):
        jax.jit(lambda v: jp.stencil(near, GRID, boundary="constant", fill_value=v))(1.0)

    def wrong(a: Any) -> Any:
        raise RuntimeError("from f")

    with pytest.raises(RuntimeError, match="from f") as e:
        jp.stencil(wrong, GRID)
    assert any("while tracing f" in note for note in e.value.__notes__)


def test_views_are_no_arrays() -> None:
    """Views say what they are; one that is kept when f has returned is of no use."""
    kept: list[Any] = []
    jax.jit(lambda x: jp.stencil(lambda a: kept.append(a) or a[0, 0], x))(GRID)  # type: ignore[func-returns-value]
    assert repr(kept[0]) == "a view of xs, to be read at offsets such as view[0, 0]"
    with pytest.raises(Exception, match=r"UnexpectedTracerError|leaked|traced"):
        jnp.asarray(kept[-1][0, 0]) + 1


# --- what neighbouring cells share ------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", SHARED)
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
        plain = lambda x, o=offsets: stencil(weighed(*o), [x], "wrap", xp=jnp)[0]  # noqa: E731
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


@pytest.mark.parametrize("boundary", BOUNDARIES)
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
