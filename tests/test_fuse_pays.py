"""``fuse``: which reductions are kernels, by what XLA makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import N, X, kernels, same

import jaxprims as jp
from jaxprims.fusion.body import Body
from jaxprims.fusion.call import Fused


def _read(x: jax.Array) -> jax.Array:
    return x


def _made(x: jax.Array) -> jax.Array:
    return x * x - x


def _dear(x: jax.Array) -> jax.Array:
    return jnp.exp(-x * x)


@pytest.mark.parametrize("op", [jnp.max, jnp.min, jnp.argmax])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
@pytest.mark.parametrize("width", [3, 8, 12, 20, 25])
@pytest.mark.cover(15)
def test_extremes_of_short_rows(op: Any, dtype: Any, width: int) -> None:
    """XLA compares floats, and makes what it compares, one by one."""
    rows = X[: N // width * width].reshape(-1, width).astype(dtype).at[7, 1].set(jnp.nan)
    for make, shorter in ((_read, width <= 8 or width >= 20), (_made, True), (_dear, width < 16)):
        fn = lambda x, make=make: op(make(x), -1)  # noqa: E731
        pays = width >= (16 if dtype == jnp.bfloat16 else 24) if op is jnp.argmax else shorter
        assert bool(kernels(fn, rows)) == pays, make
        assert op is jnp.argmax or not kernels(fn, rows[:100])
        if pays:
            wanted = getattr(np, op.__name__)(np.asarray(make(rows), np.float32), -1)  # jnp's own may lose the NaN
            got = np.asarray(jax.jit(jp.fuse(fn))(rows), wanted.dtype)
            np.testing.assert_allclose(got, wanted, 1e-5 if dtype == np.float32 else 1e-2)


@pytest.mark.parametrize(
    "op, dtype, shortest", [(jnp.prod, np.float32, 20), (jnp.any, np.bool_, 20), (jnp.max, np.int32, 20), (jnp.min, np.int8, 12)]
)
def test_short_rows_that_are_only_reduced(op: Any, dtype: Any, shortest: int) -> None:
    for width in (5, shortest - 1, shortest, 33):
        rows = (X[: N // width * width].reshape(-1, width) * 3).astype(dtype)
        assert bool(kernels(lambda x: op(x, -1), rows)) == (width >= shortest)
        same(op(rows, -1), jp.fuse(lambda x: op(x, -1))(rows), 1e-4, 1e-30)


@pytest.mark.parametrize("width", [7, 50])
def test_columns_that_xla_goes_through_again(width: int) -> None:
    """Where XLA adds vectors, a kernel between its own passes gains nothing; few columns it takes one by one."""
    rows = X[: N // width * width].reshape(-1, width)
    assert bool(kernels(lambda x: jnp.std(x, 0), rows)) == (width == 7)
    assert bool(kernels(lambda x: jax.nn.logsumexp(x, 0), rows)) == (width == 7)
    assert kernels(lambda x: jnp.max(x, 0), rows) == ["reduce-max"]
    assert kernels(lambda x: jax.nn.logsumexp(x, 0), rows.T) == ["reduce-max"]  # long rows, a few
    assert kernels(lambda x: (jnp.sum(x, 0), jnp.max(x, 0), x - 1), rows) == ["reduce-sum reduce-max"]
    for fn in (lambda x: jnp.std(x, 0), lambda x: jax.nn.logsumexp(x, 0)):
        same(jax.jit(fn)(rows), jax.jit(jp.fuse(fn))(rows))


def taken_in(fn: Callable[..., Any], *args: Any) -> str:
    """What the kernels of a function take in."""
    return " ".join(site.partition("takes in")[2] for site in jp.explain(jp.fuse(fn))(*args).sites)


SLOW: dict[str, tuple[Callable[..., Any], bool]] = {  # is a reduction of long rows a kernel?
    "sin": (jnp.sin, True),
    "atan2": (lambda x: jnp.arctan2(x, 2 + x), True),
    "cbrt": (jnp.cbrt, True),
    "remainder": (lambda x: x % 0.7, True),
    "lgamma": (lambda x: jax.lax.lgamma(x * x), True),
    "exp": (jnp.exp, True),
    "tanh": (jnp.tanh, True),
    "log1p": (lambda x: jnp.log1p(x * x), False),
}


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("shape", [(N,), (N // 4, 4), (N // 20, 20), (N // 400, 400)])
@pytest.mark.cover(8)
def test_reductions_of_functions(name: str, shape: tuple[int, ...]) -> None:
    """Kernels have vectors of all, twice as wide as XLA's; of short rows, whatever they are."""
    f, taken = SLOW[name]

    def total(x: Any) -> Any:
        return jnp.sum(f(x), -1)

    x = X.reshape(shape)
    assert bool(kernels(total, x)) == (taken or 1 < shape[-1] < 32)
    same(jax.jit(total)(x), jax.jit(jp.fuse(total))(x), atol=1e-3 * np.sqrt(shape[-1]))


LONG: dict[str, tuple[Callable[..., Any], int]] = {  # elements from which on one reduction is a kernel, if not of halves
    "losses": (lambda x: jnp.log1p(jnp.exp(-jnp.abs(x))) + jnp.maximum(x, 0), 2**11),
    "densities": (lambda x: jnp.exp(-x * x / 2), 2**12),
    "powers": (lambda x: x * (x * (x + 1) - 2) ** 2, 2**12),
    "logarithms": (lambda x: jnp.log1p(x * x), 2**17),
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_long_arithmetic_of_many_elements(name: str, dtype: str) -> None:
    """Operations that wait for each other are a kernel's; those of halves XLA does not round one by one."""
    f, fewest = LONG[name]
    with jax.enable_x64(dtype == "float64"):
        x = jnp.linspace(-3, 3, fewest, dtype=dtype)
        assert bool(kernels(lambda x: jnp.sum(f(x)), x)) == (dtype != "bfloat16" or name == "powers")
        assert not kernels(lambda x: jnp.sum(f(x)), x[1:])
        same(jnp.sum(f(x)), jp.fuse(lambda x: jnp.sum(f(x)))(x), atol=1e-3 * x.size)


@pytest.mark.parametrize("width", [5, 12, 40])
def test_extremes_of_what_rows_have_in_common(width: int) -> None:
    """Short ones are functions of rows; what is dear to make XLA makes in a loop along longer ones."""
    rows = X[: N // width * width].reshape(-1, width)
    cheap, dear = lambda x, c: jnp.max(x - c, -1), lambda x, c: jnp.max(jnp.exp(x - c), -1)
    assert bool(kernels(cheap, rows, rows[0])) and bool(kernels(dear, rows, rows[0])) == (width < 32)
    for fn in (cheap, dear):
        same(jax.jit(fn)(rows, rows[0]), jax.jit(jp.fuse(fn))(rows, rows[0]))


@pytest.mark.parametrize("width", [6, 20])
def test_a_product_of_long_rows_with_a_vector_is_read(width: int) -> None:
    rows, y = X[: N // width * width].reshape(-1, width), X[: N // width]

    def loss(x: Any, b: Any, y: Any) -> Any:
        return jnp.sum(jnp.abs(y - x @ b)), jnp.max(x @ b)

    args = jnp.concatenate([rows] * 20), rows[1], jnp.concatenate([y] * 20)
    assert ("dot_general" in taken_in(loss, *args)) == (width == 6)
    same(jax.jit(loss)(*args), jax.jit(jp.fuse(loss))(*args), atol=1e-2)


@pytest.mark.parametrize("count", [8, 300])
def test_a_slice_is_not_read_with_much_beside_it(count: int) -> None:
    rows = jnp.resize(X, (count, 1000))
    fn = lambda x: jnp.sum(jnp.abs(x - x[3:4]), -1)  # noqa: E731
    assert ("slice" in taken_in(fn, rows)) == (count == 8)
    same(jax.jit(fn)(rows), jax.jit(jp.fuse(fn))(rows), atol=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_are_not_made_twice(dtype: str) -> None:
    """To write one and read it takes less."""

    def priorities(x: Any, bins: Any) -> Any:
        p = (jnp.abs(x) + 0.1) ** 0.6
        return jnp.zeros(32, x.dtype).at[bins].add(p), jnp.cumsum(p * x)

    with jax.enable_x64(dtype == "float64"):
        x, bins = jnp.resize(X, 100_000).astype(dtype), jnp.arange(100_000) % 32
        assert taken_in(priorities, x, bins).count("pow") <= 1
        same(jax.jit(priorities)(x, bins), jp.fuse(priorities)(x, bins), atol=1e-2)


def mixture(x: Any, mean: Any, width: Any) -> Any:
    """A step of expectation maximisation; each sum by the kernel that makes what it adds."""
    likely = -0.5 * ((x[:, None] - mean) / width) ** 2 - jnp.log(width)
    share = jax.nn.softmax(likely, axis=1)
    count = share.sum(0)
    new = (share * x[:, None]).sum(0) / count
    return new, jnp.sqrt((share * (x[:, None] - new) ** 2).sum(0) / count)


def likelihood(x: Any, mean: Any, width: Any) -> Any:
    return jnp.mean(jax.nn.logsumexp(-0.5 * ((x[:, None] - mean) / width) ** 2 - jnp.log(width), axis=1))


NARROW: dict[str, Callable[..., Any]] = {
    "mixture": mixture,
    "gradient": jax.grad(likelihood, (1, 2)),
    "weighted": lambda x, m, w: jnp.sum(x[:, None] * jnp.cos(x[:, None] * m), 0),
    "kernels": lambda x, m, w: jnp.sum(jnp.exp(-((x[:, None] - m) ** 2) / w), 0),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("width", [2, 5, 15])
def test_few_columns_that_are_made_are_not_written(name: str, width: int) -> None:
    """XLA adds few columns one number after the other. (Of many numbers at once, some for each element are.)"""
    fn, args = NARROW[name], (X, jnp.linspace(-2, 2, width), jnp.linspace(0.5, 1, width))
    compiled = jax.jit(jp.fuse(fn)).lower(*args).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < (4 * X.nbytes if width == 15 else X.nbytes / 4)
    same(jax.jit(fn)(*args), compiled(*args))


def test_what_xla_writes_for_a_position_is_not_read_for_a_sum_alone() -> None:
    def nearest(x: Any, y: Any) -> Any:
        distance = jnp.sum(x * x, 1)[:, None] - 2 * x @ y.T + jnp.sum(y * y, 1)
        return jnp.argmin(distance, 1), jnp.min(distance, 1).sum()

    x, y = X[:4000].reshape(500, 8), X[4000:4128].reshape(16, 8)
    assert kernels(nearest, x, y) == []
    x = jnp.concatenate([x] * 25)
    assert all(
        "[12500,16]" not in line for line in jp.explain(jp.fuse(nearest))(x, y).sites if line.startswith("reduce_sum over")
    )
    same(jax.jit(nearest)(x, y), jp.fuse(nearest)(x, y))


@pytest.mark.parametrize("width", [6, 16])
def test_a_position_and_its_maximum_are_one_kernel(width: int) -> None:
    """Of one of them alone, it would be XLA that makes for the other what they have in common."""

    def overlap(x: Any, y: Any) -> Any:
        each = jnp.minimum(jnp.abs(x)[:, None], y) / (jnp.abs(x)[:, None] + y)
        return jnp.argmax(each, 1), jnp.max(each, 1)

    args = X, jnp.linspace(0.5, 2, width)
    assert kernels(overlap, *args) == ["argmax reduce-max"]
    for mine, theirs in zip(jax.jit(jp.fuse(overlap))(*args), jax.jit(overlap)(*args), strict=True):
        same(theirs, mine)


def test_what_elements_of_a_row_have_in_common_is_not_made_for_each() -> None:
    """Reductions of rows, for updates of as many bins as these have elements: not again for every one of these."""
    places = jnp.arange(N // 32 - 1)[:, None] * 32 + jnp.arange(64)

    def loudness(x: Any) -> Any:
        frames = x[places]
        return jnp.sum(jnp.sqrt(jnp.mean(frames * frames, 1))) + jnp.sum(jnp.max(jnp.abs(frames), 1))

    sites = [str(s) for s in jp.explain(jp.fuse(jax.grad(loudness)))(X).sites if "one kernel" in str(s)]
    (site,) = [s for s in sites if "scatter" in s]
    assert "reduce_" not in site
    same(jax.jit(jax.grad(loudness))(X), jax.jit(jp.fuse(jax.grad(loudness)))(X))


def test_functions_of_what_elements_of_a_row_have_in_common_are_not_made_for_each() -> None:
    """A cosine of a row's number, in what is reduced and added by index: of as many as there are rows, and read. What is cheap is
    made where it is wanted."""
    rows, factors, index = X[: N // 64], jnp.arange(64.0), jnp.arange(N // 64 * 64).reshape(-1, 64) % 500

    def each(x: Any) -> Any:
        return jnp.cos(x)[:, None] * factors + 2 * x[:, None]

    for fn in (lambda x: jnp.sum(jnp.abs(each(x))), lambda x: jnp.zeros(500).at[index].add(each(x) ** 2)):
        (site,) = [s for s in jp.explain(jp.fuse(fn))(rows).sites if "one kernel" in str(s)]
        assert "mul" in str(site) and "cos" not in str(site)
        same(jax.jit(fn)(rows), jax.jit(jp.fuse(fn))(rows))


def test_long_rows_are_reduced_along_memory() -> None:
    """Not taken apart for several elements at once; short ones are, and what goes through its row again, or is slow in XLA."""

    def lengths(x: Any) -> Any:
        length = jnp.sqrt(jnp.sum(x * x, -1))
        return jnp.zeros(20).at[length.astype(jnp.int32)].add(length)

    def deviations(x: Any) -> Any:
        return lengths(x - jnp.mean(x, -1, keepdims=True))

    many = {n: jnp.ones((10_000, n)) for n in (16, 64)}
    assert "reduce_sum" in taken_in(lengths, many[16]) and "reduce_sum" not in taken_in(lengths, many[64])
    assert "sin" in taken_in(lambda x: lengths(jnp.sin(x)), many[64])
    assert kernels(deviations, many[64])
    x = X[: N // 64 * 64].reshape(-1, 64)
    for fn in (lengths, deviations):
        same(jax.jit(fn)(x), jax.jit(jp.fuse(fn))(x), 1e-4)


@pytest.mark.parametrize("kind", ["set", "add"])
@pytest.mark.parametrize("side", [60, 280])
def test_few_cells_are_updated_in_place_by_xla(kind: str, side: int) -> None:
    """Which is done before a kernel's tiles are laid out; what XLA makes one by one is not."""
    u = jnp.tile(X, 4)[: side * side].reshape(side, side)

    def step(u: Any) -> Any:
        return getattr(u.at[1:-1, 1:-1], kind)(0.1 * (u[:-2, 1:-1] + u[2:, 1:-1] - 2 * u[1:-1, 1:-1]))

    def window(u: Any) -> Any:
        return jax.lax.reduce_window(u, 0.0, jax.lax.add, (3, 3), (1, 1), "SAME")

    assert bool(jp.explain(jp.fuse(step))(u).calls) == (side == 280)
    assert jp.explain(jp.fuse(window))(u).calls
    same(jax.jit(step)(u), jax.jit(jp.fuse(step))(u))


def test_cells_that_xla_makes_where_it_reads_them() -> None:
    """Few borders take it no longer than a kernel's result takes through memory, or columns that are not side by side."""
    x = jnp.sin(jnp.arange(600_000, dtype=jnp.float32))

    def change(x: Any) -> Any:
        return x - jnp.concatenate([x[:1], x[:-1]])

    def smooth(x: Any) -> Any:
        return sum(0.1 * k * jnp.roll(x, k) for k in range(-2, 3))

    programs: dict[bool, list[Callable[..., Any]]] = {
        True: [lambda x: jnp.stack([smooth(x), x]), lambda x: smooth(x.reshape(-1, 2)[:, 1])],
        False: [
            change,
            lambda x: jnp.stack([change(x), x], 1),
            lambda x: jnp.concatenate([x, change(x)]),
            lambda x: change(x.reshape(-1, 2)[:, 1]),
        ],
    }
    for is_kernel, functions in programs.items():
        for fn in functions:
            assert bool(jp.explain(jp.fuse(fn))(x).calls) == is_kernel
            same(jax.jit(fn)(x), jax.jit(jp.fuse(fn))(x), 1e-5, 1e-5)


ROWS: dict[str, tuple[Callable[..., Any], int]] = {  # into how many kernels that is reduced
    "dot products": (lambda x, y, w, m: jnp.sum(x * y, 1), 1),
    "distances": (lambda x, y, w, m: jnp.sqrt(jnp.sum((x - y) ** 2, 1)), 1),
    "cosines": (lambda x, y, w, m: jnp.sum(x * y, 1) / jnp.sqrt(jnp.sum(x * x, 1) * jnp.sum(y * y, 1)), 1),
    "a sum and a position": (lambda x, y, w, m: (jnp.sum(x, 1), jnp.argmax(x, 1)), 1),
    "all and any": (lambda x, y, w, m: (jnp.all(x > y, 1), jnp.any(x > w, 1), jnp.sum(x > 0, 1)), 1),
    "weighted": (lambda x, y, w, m: jnp.sum(x * w, 1), 1),
    "centred": (lambda x, y, w, m: jnp.sum(jnp.abs(x - m[:, None]), 1), 1),
    "dear": (lambda x, y, w, m: jnp.sum(jnp.exp(x) * y, 1), 0),
    "pairs": (lambda x, y, w, m: (jnp.sum(jnp.abs(x[:90, None] - y[:90]), 2), jnp.max(x[:90, None] * y[:90], 2)), 1),
}


@pytest.mark.cover(5)
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("width", [20, 40, 200])
def test_rows(width: int, name: str) -> None:
    """Of 33 elements and more, which a kernel folds many at once; dear ones XLA makes on its way as fast."""
    fn, count = ROWS[name]
    rng = np.random.default_rng(width)
    x, y, w, m = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((2000, width), (2000, width), (width,), (2000,)))
    if width > 32:
        assert len([k for k in kernels(fn, x, y, w, m) if "reduce" in k]) == count
    same(jax.jit(fn)(x, y, w, m), jax.jit(jp.fuse(fn))(x, y, w, m), 1e-5, 1e-4)
    gradient = jax.grad(lambda *args: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(fn(*args))), (0, 1, 2, 3))
    if "position" not in name and "all" not in name:
        same(jax.jit(gradient)(x, y, w, m), jax.jit(jp.fuse(gradient))(x, y, w, m), 1e-4, 1e-3)


@pytest.mark.parametrize("width", [3, 16, 17, 24, 31, 100, 101])
def test_all_rows_of_what_they_have_in_common(width: int) -> None:
    """Summed as one: short rows are elements, longer ones are folded many at once; dear ones a row at a time are slow."""
    rng = np.random.default_rng(width)
    x, w, m = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((2000, width), (width,), (2000,)))
    for fn in (lambda x, w, m: jnp.sum((x - m[:, None] * w) ** 2), lambda x, w, m: jnp.sum(jnp.exp(m[:, None] * w - x))):
        assert kernels(fn, x, w, m) == ["reduce-sum"]
        same(jax.jit(fn)(x, w, m), jax.jit(jp.fuse(fn))(x, w, m), 1e-5)
    folded = "many rows at once" in str(jp.explain(jp.fuse(lambda x, w: jnp.sum((x - w) ** 2)))(x, w))
    assert folded == (width > 16)


def test_products_for_a_row_are_made_once() -> None:
    """Not for each of its elements."""

    def fn(x: Any, w: Any, v: Any) -> Any:
        return jnp.sum(jnp.abs(x - jnp.outer(x @ w, v)))

    args = tuple(jnp.asarray(np.random.default_rng(0).normal(size=s), jnp.float32) for s in ((1000, 60), (60,), (60,)))
    assert "dot_general" not in taken_in(fn, *args)
    same(jax.jit(fn)(*args), jax.jit(jp.fuse(fn))(*args), 1e-5)


@pytest.mark.parametrize("lanes", [2, 3, 8, 12])
def test_a_few_columns_of_a_few_numbers(lanes: int) -> None:
    """XLA adds vectors of many, and one after the other of few; what is divided by a root of them it makes in one loop."""
    x = jnp.asarray(np.random.default_rng(lanes).normal(size=(2000, 5, lanes)), jnp.float32)
    for fn in (lambda x: jnp.mean(x, 1), lambda x: jnp.sum(x * x, 1), lambda x: x - jnp.mean(x, 1, keepdims=True)):
        assert bool(kernels(fn, x)) == (lanes < 12)
        same(jax.jit(fn)(x), jax.jit(jp.fuse(fn))(x), 1e-5, 1e-5)
    assert not kernels(lambda x: x / jnp.sqrt(jnp.sum(x * x, 1, keepdims=True)), x)


PLACES: dict[str, tuple[Callable[..., Any], bool]] = {  # is a reduction along the first axes, or those between, a kernel?
    "densities": (lambda x, g: jnp.exp(-((g[:, None] - x) ** 2)).sum(0), True),
    "the nearest": (lambda x, g: jnp.abs(g[:, None] - x).min(0), True),
    "which is that": (lambda x, g: jnp.argmin(jnp.abs(g[:, None] - x), 0), True),
    "between": (lambda x, g: jnp.exp(g[:, None] - x.reshape(10, 1, -1)).sum(1), True),
    "what lies apart": (lambda x, g: jnp.exp(x.reshape(8, -1) - g[:, None]).sum(0), False),
    "constants": (lambda x, g: jnp.exp(jnp.full((8, x.size), 1.0)).sum(0) + x, False),
}


@pytest.mark.parametrize("name", PLACES)
def test_reductions_along_the_first_axis(name: str) -> None:
    """XLA makes what it adds of several arrays one number at a time."""
    fn, taken = PLACES[name]
    x, g = X[:16000], jnp.linspace(-2, 2, 8)
    assert bool(kernels(fn, x, g)) == taken
    same(jax.jit(fn)(x, g), jax.jit(jp.fuse(fn))(x, g), 1e-5)
    gradient = jax.grad(lambda x, g: jnp.sum(jnp.exp(-((g[:, None] - x) ** 2))) + fn(x, g).sum(), (0, 1))
    same(jax.jit(gradient)(x, g), jax.jit(jp.fuse(gradient))(x, g), 1e-4, 1e-4)


SCANS: dict[str, Callable[..., Any]] = {
    "a number for each row": lambda x, w, m: jnp.cumsum(x * m[:, None], 1),
    "numbers for all rows": lambda x, w, m: jnp.cumsum(x * w, 1),
    "a row's own sum": lambda x, w, m: jnp.cumsum(jax.nn.softmax(x), 1),
    "after it": lambda x, w, m: jnp.cumsum(x, 1) * m[:, None],
}


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("width", [5, 100, 300])
def test_scans_of_rows_with_numbers_of_their_own(width: int, name: str) -> None:
    """Short rows are one call of a kernel, to which XLA gives what it made of these numbers; long ones take them in."""
    fn = SCANS[name]
    rng = np.random.default_rng(width)
    x, w, m = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((3000, width), (width,), (3000,)))
    (scan,) = (site for site in jp.explain(jp.fuse(fn))(x, w, m).sites if site.startswith("cumsum over"))
    if "own sum" not in name:
        assert ("mul" in scan) == (width > 256)
    same(jax.jit(fn)(x, w, m), jax.jit(jp.fuse(fn))(x, w, m), 1e-5, 1e-4)


def test_scans_of_columns_with_numbers_of_their_own() -> None:
    """XLA makes what is scanned, and no scan."""
    x, w = jnp.asarray(np.random.default_rng(0).normal(size=(6, 70, 20)), jnp.float32), jnp.arange(20.0)
    for fn in (
        lambda x, w: jnp.cumsum(x * w, 1),
        lambda x, w: jax.lax.cummax(x - w, 1),
        lambda x, w: jnp.cumsum(x * w[3:4], 1),
    ):
        assert "mul" not in taken_in(fn, x, w) and kernels(fn, x, w)
        same(jax.jit(fn)(x, w), jax.jit(jp.fuse(fn))(x, w), 1e-5)


NESTED: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "numbers of columns": ((40, 30, 8), (8,)),
    "of columns of a batch": ((40, 30, 8), (40, 1, 8)),
    "of rows": ((40, 30, 8), (40, 30, 1)),
    "of the rows of all": ((40, 30, 8), (1, 30, 1)),
    "of few rows": ((400, 5, 8), (400, 1, 8)),
    "of few long rows": ((200, 4, 40), (200, 1, 40)),
    "of a middle": ((9, 28, 10, 8), (28, 10, 1)),
    "of two": ((9, 28, 10, 8), (9, 1, 10, 1)),
    "of rows of 40": ((30, 40, 40), (40, 1)),
}


@pytest.mark.parametrize("name", NESTED)
def test_sums_of_all_with_numbers_in_common(name: str) -> None:
    """Short rows are elements, side by side where arrays go along them alike."""
    shapes = NESTED[name]
    x, w = (jnp.asarray(np.random.default_rng(k).normal(size=shape), jnp.float32) for k, shape in enumerate(shapes))
    for fn in (
        lambda x, w: jnp.sum(jnp.tanh(x * w)),
        lambda x, w: (jnp.max(jnp.abs(x - w)), jnp.sum(x * w)),
        lambda x, w: jnp.sum(jnp.exp(x - w), (-2, -1)),
        lambda x, w: jnp.prod(1 + x * w * 1e-3),
    ):
        same(jax.jit(fn)(x, w), jax.jit(jp.fuse(fn))(x, w), 1e-4, 1e-4)
    found = Fused(jax.make_jaxpr(lambda x, w: jnp.sum(jnp.tanh(x * w)))(x, w)).rewritten.kernels
    assert bool(found) == (name != "of few long rows")
    assert all(isinstance(k.body, Body) and k.body.combined for k in found)


def test_reductions_of_what_reductions_and_sums_want() -> None:
    """Of centred squares of what is made: nothing is written for others' sake."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(100, 64, 5)), jnp.float32)
    for axis in (0, 1, 2):
        fn = lambda x, axis=axis: jnp.sum(((y := x * x + 1) - y.mean(axis, keepdims=True)) ** 2)  # noqa: E731
        assert len(kernels(fn, x)) == 2 - (axis == 2)
        same(jax.jit(fn)(x), jax.jit(jp.fuse(fn))(x), 1e-4)


def test_what_scans_take_in() -> None:
    """One number for all, and of one row whatever it is."""
    for fn, *args in (
        (lambda x, c: jnp.cumsum(x * c, 1), jnp.ones((2000, 90)), jnp.float32(2)),
        (lambda x, w: jnp.cumsum(x[:, None] * w), jnp.ones(5000), jnp.ones(1)),
    ):
        assert "mul" in taken_in(fn, *args)
        same(jax.jit(fn)(*args), jax.jit(jp.fuse(fn))(*args), 1e-5)


CHOICES: dict[str, tuple[Callable[..., Any], tuple[int, ...], list[str]]] = {
    "softmax of images' channels": (lambda x: jax.nn.softmax(x, 1), (4, 8, 28, 28), []),
    "softmax of nine columns": (lambda x: jax.nn.softmax(x, 1), (32, 50, 9), []),
    "softmax of eight": (lambda x: jax.nn.softmax(x, 1), (32, 50, 8), ["reduce-max", "reduce-sum"]),
    "lengths of points": (lambda x: x / jnp.sqrt(jnp.sum(x * x, 0)), (3, 50_000), []),
    "lengths of more": (lambda x: x / jnp.sqrt(jnp.sum(x * x, 0)), (8, 20_000), ["reduce-sum"]),
    "places among few rows": (lambda x: jnp.argmax(x, 0), (8, 5000), []),
    "places among more": (lambda x: jnp.argmax(x, 0), (24, 5000), ["argmax"]),
    "columns of each of several rows": (lambda x: x - x.mean(1, keepdims=True), (30, 16, 200), ["reduce-sum"]),
    "few columns of each": (lambda x: x - x.mean(1, keepdims=True), (87, 8, 20), []),
}


@pytest.mark.parametrize("name", CHOICES)
def test_whose_columns_are(name: str) -> None:
    fn, shape, expected = CHOICES[name]
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
    assert kernels(fn, x) == expected
    same(jax.jit(fn)(x), jax.jit(jp.fuse(fn))(x), 1e-5)
