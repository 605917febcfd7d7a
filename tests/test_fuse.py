"""``fuse``: the same results as without it, under every transformation; and the kernels that it is for."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import IDS, SHAPES, N, X, Y, kernels, same

import jaxprims as jp
from bench.cases.fuse import PROGRAMS, Program, gradient
from jaxprims.fusion.call import Fused


@pytest.mark.cover(2)
@pytest.mark.parametrize("width", [2, 3, 5])
def test_numbers_for_each_of_short_rows(width: int) -> None:
    """A row is an element of one reduction: its weight is read once."""
    rows, weights = X[: N // width * width].reshape(-1, width), Y[: N // width]

    def energies(m: Any, v: Any, scale: Any) -> Any:
        return jnp.sum(m[:, None] * v**2 * scale), jnp.max(m[:, None] - v), jnp.sum(jnp.where(v > 0, m[:, None], 0))

    same(jax.jit(energies)(weights, rows, X[:width]), jp.fuse(energies)(weights, rows, X[:width]))
    several = weights[: 4 * (len(weights) // 4)].reshape(4, -1), rows[: 4 * (len(rows) // 4)].reshape(4, -1, width)
    batched = jax.vmap(functools.partial(energies, scale=X[:width]))
    same(batched(*several), jp.fuse(batched)(*several))
    text = jax.jit(jp.fuse(energies)).lower(weights, rows, X[:width]).as_text()
    assert not re.search(rf"-> tensor<{len(weights)}xf32>", "".join(re.findall("custom_call @jaxprims.*", text)))


@pytest.mark.strategies
@pytest.mark.parametrize("name", ["expm1", "log1p"])
def test_what_is_dear_and_xla_wants_twice_is_read(name: str) -> None:
    """XLA writes it, then, whether a kernel could make it again or not; or a kernel of rows does, once."""

    def groups(x: Any, i: Any) -> Any:
        y = getattr(jnp, name)(x / x.sum(1, keepdims=True))
        return jax.ops.segment_sum(y, i, 8), jax.ops.segment_sum(jnp.ones(len(i)), i, 8), y.var(0)

    found = Fused(jax.make_jaxpr(groups)(jnp.ones((800, 50)), IDS[:800])).rewritten
    makers = [k for k in found.kernels if any(k.body.graph.eqns[e].primitive.name == name for e in k.body.taken)]
    assert found.kernels and all(k.body.of_rows for k in makers)
    assert len(makers) + sum(e.primitive.name == name for e in found.closed.jaxpr.eqns) == 1


def test_without_kernels_a_program_is_as_it_was() -> None:
    """In another order, and with calls inlined, XLA may make something worse of it."""

    def few(x: Any, i: Any) -> Any:
        return jax.nn.relu(jnp.zeros(4).at[i].add(x)), jnp.argmax(x)

    closed = jax.make_jaxpr(few)(X[:30], IDS[:30])
    assert Fused(closed).rewritten.closed is closed


# --- programs -----------------------------------------------------------------------------------------------------------------


def _arguments(p: Program) -> list[jax.Array]:
    return [jnp.asarray(x) for x in p.inputs(np.random.default_rng(3), 80_000).values()]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
@pytest.mark.cover(6)
def test_programs(program: Program) -> None:
    args = _arguments(program)
    same(jax.jit(program.function)(*args), jp.fuse(program.function)(*args))


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.differentiable][::3], ids=lambda p: p.name)
@pytest.mark.cover(3)
def test_gradients_of_programs(program: Program) -> None:
    args = _arguments(program)
    expected = jax.jit(gradient(program.function))(*args)
    same(expected, jax.jit(gradient(jp.fuse(program.function)))(*args), 2e-3)
    same(expected, jp.fuse(gradient(program.function))(*args), 2e-3)


# --- which kernels ------------------------------------------------------------------------------------------------------------


def test_reductions_of_one_array_are_one_kernel() -> None:
    found = kernels(lambda x: (jnp.sum(x * x), jnp.max(x), jnp.argmin(x), jnp.sum(x > 0)), X)
    assert found == ["reduce-sum reduce-max argmin reduce-sum"]


@pytest.mark.dear
def test_positions_of_extremes_are_found_in_a_pass_that_is_made_anyway() -> None:
    def moments(x: Any) -> Any:
        return jnp.var(x), jnp.argmax(x)

    assert kernels(moments, X) == ["reduce-sum reduce-max", "reduce-sum reduce-min"]
    assert kernels(lambda x: (jnp.argmin(x), jnp.argmax(x)), X) == ["reduce-min reduce-max", "reduce-min reduce-min"]
    assert kernels(lambda x: (jnp.sum(x), jnp.argmax(x)), X) == ["reduce-sum argmax"]
    halves = lambda x: (jnp.argmin(x), jnp.argmax(x.astype(jnp.bfloat16)))  # noqa: E731
    squares = lambda x: jnp.argmin(x * x)  # noqa: E731
    # of halves one operation after the other: within a program XLA need not round
    pairs = [(jp.fuse(moments), jax.jit(moments)), (jp.fuse(halves), halves), (jp.fuse(squares), jax.jit(squares))]
    for x in (X, X.at[jnp.array([9, 7, 20_000])].set(jnp.nan), jnp.zeros(N).at[::2].set(-0.0), jnp.full(N, -jnp.inf)):
        for fused, plain in pairs:
            same(plain(x), fused(x))
    rows = jnp.round(4 * X).reshape(40, 1000).astype(jnp.int32)
    for axis in (0, 1, None):
        fn = functools.partial(lambda x, axis: (jnp.argmin(x, axis), jnp.argmax(x, axis)), axis=axis)
        same(jax.jit(fn)(rows), jp.fuse(fn)(rows))


def test_what_depends_on_another_is_another_kernel() -> None:
    assert kernels(lambda x: jnp.sum((x - jnp.max(x)) ** 2), X) == ["reduce-max", "reduce-sum"]


def test_kernels_that_need_each_other_crosswise_are_not_merged() -> None:
    def crosswise(x: Any, y: Any) -> Any:
        a, b = jnp.sum(x), jnp.sum(y * 2)
        return jnp.max(y * a) + jnp.max(x * b)

    assert kernels(crosswise, X, Y) == ["reduce-sum", "reduce-sum reduce-max", "reduce-max"]
    same(crosswise(X, Y), jp.fuse(crosswise)(X, Y))


def test_updates_of_the_same_bins_are_one_histogram() -> None:
    def deposit(x: Any, i: Any) -> Any:
        return jnp.zeros(60).at[i].add(1 - x).at[i + 1].add(x)

    assert kernels(deposit, X, IDS) == ["scatter-add"]
    same(deposit(X, IDS), jp.fuse(deposit)(X, IDS))


@pytest.mark.cover(2)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_sums_of_what_is_added_by_index_are_one_histogram(count: int) -> None:
    """As a gradient by a grid that is read at several places of each element."""
    grid, w, at = X[:1600].reshape(40, 40), X[:5000], jnp.arange(2 * 5000).reshape(2, -1) % 37 % 29

    def loss(grid: Any, w: Any) -> Any:
        return sum(jnp.sum(grid[at[0] + k, at[1]] * jnp.sin(w * (k + 1))) for k in range(count))

    grad = jax.grad(loss)
    assert kernels(grad, grid, w) == ["scatter-add"]
    for fused in (jp.fuse(grad), jax.grad(jp.fuse(loss))):
        same(grad(grid, w), jax.jit(fused)(grid, w), atol=1e-4)


def test_sums_by_index_that_are_wanted_themselves_stay() -> None:
    def shared(x: Any, i: Any, j: Any) -> Any:
        first = jnp.zeros(50, x.dtype).at[i].add(x)
        return first, first + jnp.zeros(50, x.dtype).at[j].add(x)

    args = X[:5000], jnp.arange(5000) % 37, jnp.arange(5000) % 41
    same(shared(*args), jp.fuse(shared)(*args), atol=1e-4)
    for dtype in (jnp.int8, jnp.bfloat16, jnp.complex64):
        kernels(shared, jax.ShapeDtypeStruct((5000,), dtype), *args[1:])


def test_what_others_want_is_not_made_again_for_one_reduction() -> None:
    """XLA would make it once more, to lay it out for the kernel."""
    image = jnp.asarray(np.random.default_rng(1).normal(size=(90, 200, 3)), jnp.float32)

    def centred(x: Any) -> Any:
        y = 1 / (1 + jnp.abs(x)) / (2 + x * x)
        less = jnp.sum(-y, (0, 1)) / 18_000
        return jnp.tanh(y + less) + jnp.sum(y * x, 2, keepdims=True)

    assert "reduce-sum" not in kernels(centred, image)
    assert kernels(lambda x: (jnp.sum(-x, (0, 1)), x), image) == ["reduce-sum"]
    same(jax.jit(centred)(image), jp.fuse(centred)(image))


@pytest.mark.parametrize("rows", [3000, 60_000])
def test_what_would_be_written_for_a_kernel_is_reduced_by_xla(rows: int) -> None:
    """Columns of what lies the other way; rows that are gathered in a batch."""
    assert not kernels(lambda x: jnp.sum((x.T + 1) * (x.T - 2), 0), jnp.ones((16, rows)))
    gathered = jax.vmap(lambda x, c, i: jnp.sum((x - c[i]) ** 2))
    assert not kernels(gathered, jnp.ones((4, rows, 16)), jnp.ones((4, 10, 16)), jnp.zeros((4, rows), int))


def test_who_looks_in_between_is_told() -> None:
    def looked(x: Any, i: Any) -> Any:
        first = jnp.zeros(60).at[i].add(x)
        return first.at[i + 1].add(x * first[0]), first

    same(looked(X, IDS), jp.fuse(looked)(X, IDS))


def test_batches_of_histograms_are_one_kernel() -> None:
    assert kernels(*(SHAPES["batched updates"][0], *SHAPES["batched updates"][1])) == ["scatter-add"]


@pytest.mark.parametrize(("updates", "bins", "taken"), [(1, 16, False), (16, 16, False), (40, 16, True), (40, 100, False)])
def test_few_updates_of_a_batchs_bins_are_left_to_xla(updates: int, bins: int, taken: bool) -> None:
    rng = np.random.default_rng(0)
    at, x = rng.integers(0, bins, (3000, updates)), rng.normal(size=(3000, updates)).astype(np.float32)

    def counted(at: Any, x: Any) -> Any:
        return jax.vmap(lambda at, x: jnp.zeros(bins).at[at].add(x))(at, x)

    assert kernels(counted, at, x) == ["scatter-add"] * taken
    same(counted(at, x), jp.fuse(counted)(at, x))


def test_small_inner_arrays_are_not_written() -> None:
    points, centres = X.reshape(-1, 2), jnp.linspace(0, 1, 16).reshape(8, 2)

    def nearest(points: Any, centres: Any) -> Any:
        return jnp.argmin(jnp.sum((points[:, None] - centres) ** 2, -1), 1)

    big = jnp.tile(points, (4, 1))
    assert kernels(nearest, big, centres) == ["argmin"]
    same(nearest(big, centres), jp.fuse(nearest)(big, centres))
    memory = jax.jit(jp.fuse(nearest)).lower(big, centres).compile().memory_analysis()
    assert memory.temp_size_in_bytes < big.nbytes / 50


def test_no_temporaries() -> None:
    def moments(x: Any) -> Any:
        return jnp.sum(jnp.sin(x)), jnp.max(x * x), jnp.argmax(x), jnp.zeros(50).at[IDS].add(x * 2)

    memory = jax.jit(jp.fuse(moments)).lower(X).compile().memory_analysis()
    assert memory.temp_size_in_bytes < X.nbytes / 50


@pytest.mark.parametrize(
    "fn",
    [lambda x: x * 2, lambda x: jnp.sum(x[:100]), lambda x: x[0], lambda x: jnp.sort(x), lambda x: jnp.fft.fft(x)],
    ids=["map", "few", "one", "sort", "fft"],
)
def test_what_has_no_site_is_left_alone(fn: Callable[..., Any]) -> None:
    assert kernels(fn, X) == []
    same(jax.jit(fn)(X), jp.fuse(fn)(X))


@pytest.mark.cover(6)
@pytest.mark.parametrize(
    ("fn", "n", "taken"),
    [
        (lambda x: jnp.cumsum(x * x), 1000, True),
        (lambda x: jnp.argmax(x * x), 3000, True),
        (lambda x: jnp.sum(jnp.sin(x)) + jnp.sum(jnp.cos(x)), 3000, True),
        (lambda x: jnp.zeros(9).at[(x * 9).astype(int)].add(x), 3000, True),
        (lambda x: jnp.sum(x * x), 3000, False),
        (lambda x: jnp.argmax(x * x), 1000, False),
        (lambda x: jnp.zeros(9).at[(x * 9).astype(int)].add(x), 1000, False),
    ],
    ids=["scan", "position", "functions", "updates", "few to sum", "few positions", "few updates"],
)
def test_how_few_elements_are_taken(fn: Callable[..., Any], n: int, taken: bool) -> None:
    """By what XLA does with one of them."""
    assert bool(kernels(fn, X[:n])) == taken
    same(jax.jit(fn)(X[:n]), jp.fuse(fn)(X[:n]))


def test_convolutions_with_channels_first_are_reduced_by_xla() -> None:
    """Who does not read one in a loop of XLA's has it written once more, the other way round."""

    def total(k: Any, x: Any) -> Any:
        return jax.nn.relu(jax.lax.conv_general_dilated(x, k, (1, 1), "SAME")).sum((2, 3))

    k, x = jnp.ones((8, 1, 3, 3)), X.reshape(4, 1, 100, 100)
    assert kernels(total, k, x) == []
    same(jax.jit(total)(k, x), jp.fuse(total)(k, x))


EPILOGUES: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "drawdown": (lambda x: x / jax.lax.cummax(x) - 1, 3 + jnp.abs(X), "div, sub"),
    "running mean": (lambda x: jnp.cumsum(x) / (1 + jnp.arange(N)), X, "div"),
    "from the end": (lambda x: jnp.where(jax.lax.cummin(x, reverse=True) < x, x, 0) > 0.1, X, "lt, select_n, gt"),
    "two scans": (lambda x: jnp.cumsum(x) - jax.lax.cummax(x), X, "sub"),
    "integers": (lambda x: jnp.cumsum((4 * x).astype(jnp.int32)) % 7 == 0, X, "rem"),
    "complex": (lambda x: jnp.cumsum(x + 1j * x) * jnp.conj(x + 2j), X, "convert_element_type, add, conj, mul"),
    "returned too": (lambda x: (lambda c: (c, jnp.exp(-c * c)))(jnp.cumsum(x)), X, "neg, mul, exp"),
    "rows": (lambda r: jnp.cumsum(r * r, 1) / jnp.sum(r * r, 1, keepdims=True), X.reshape(40, -1), "mul"),
    "columns": (lambda r: jnp.cumsum(r, 0) / r[:1] * r[:, :1] + r.mean(), X.reshape(-1, 40), "mul, mul, add"),
    "parts": (lambda r: jax.lax.cummax(r, 2) - r[:, :1] * r[:1], X.reshape(10, 4, -1), "mul, sub"),
    "batch": (jax.vmap(lambda x: x - jax.lax.cummin(x)), X.reshape(4, -1), "sub"),
}


def test_what_a_kernel_reads_of_a_scan_is_written() -> None:
    """Its epilogue and a reduction make the same of it: the reduction reads the scan, which XLA is not to make again."""

    def longest(x: Any) -> Any:
        at = jnp.arange(len(x))
        gap = at - jax.lax.cummax(jnp.where(x > 0, -1, at))
        return jnp.max(gap), jnp.where(x > 0, gap, 0), jnp.sum(gap * x)

    same(jax.jit(longest)(X), jax.jit(jp.fuse(longest))(X), 2e-4)
    assert "reduce_window" not in jax.jit(jp.fuse(longest)).lower(X).as_text()


@pytest.mark.cover(4)
@pytest.mark.parametrize("name", EPILOGUES)
def test_what_is_made_of_scans(name: str) -> None:
    """It is made in their loops, and nothing but it is written."""
    fn, x, made = EPILOGUES[name]
    found = Fused(jax.make_jaxpr(fn)(x)).rewritten.in_words()
    assert sum(f"; makes {made}" in line for line in found) == 1, found
    same(jax.jit(fn)(x), jax.jit(jp.fuse(fn))(x), 2e-4)


@pytest.mark.parametrize("beside", [1, 8])
@pytest.mark.parametrize("scans", [31, 33])
def test_what_is_made_of_many_scans(scans: int, beside: int) -> None:
    """More than fit in registers, together with what else is read: the kernel stores them as they are."""

    def fn(x: Any) -> Any:
        others = [jnp.roll(x, k) for k in range(beside)]
        return sum(jnp.cumsum(x * (k + 1)) * others[k % beside] for k in range(scans)) / scans**2

    same(jax.jit(fn)(X), jax.jit(jp.fuse(fn))(X), 2e-4)


@pytest.mark.parametrize("length", [12, 30])
def test_short_rows_with_numbers_of_their_own(length: int) -> None:
    """Many short rows are scanned at once, which takes no number of each row: XLA makes what these go into."""
    x, z = jnp.sin(jnp.arange(100.0 * length)).reshape(100, length), X[:100]

    def paths(x: Any, z: Any) -> Any:
        return z[:, None] * jnp.exp(jnp.cumsum(x, 1))

    same(jax.jit(paths)(x, z), jax.jit(jp.fuse(paths))(x, z), 2e-4)
    found = Fused(jax.make_jaxpr(paths)(x, z)).rewritten.in_words()
    assert sum("makes exp of it" in line for line in found) == 1, found


def test_what_two_kernels_of_scans_could_make() -> None:
    """One does, and reads what the other has made."""

    def fn(x: Any, y: Any) -> Any:
        return jnp.cumsum(x) - jax.lax.cummax(y)

    found = Fused(jax.make_jaxpr(fn)(X, Y)).rewritten
    assert sum("; makes sub" in line for line in found.in_words()) == 1
    assert not any(e.primitive.name.startswith("cum") for e in found.closed.jaxpr.eqns)
    same(jax.jit(fn)(X, Y), jax.jit(jp.fuse(fn))(X, Y), 2e-4)


def test_what_is_not_made_of_scans() -> None:
    """What would make them write more, and what would need their results elsewhere."""
    for fn in (
        lambda x: (lambda c: (jnp.sum(c), jnp.sum(jnp.sort(c * c)), jnp.sort(c)))(jnp.cumsum(x)),
        lambda x: jnp.cumsum(x)[::-1] + x,
        lambda x: jnp.cumsum(x)[:-9] * 2,
    ):
        assert not any("makes" in line for line in Fused(jax.make_jaxpr(fn)(X)).rewritten.in_words())
        same(jax.jit(fn)(X), jax.jit(jp.fuse(fn))(X), 2e-4)
    fn = jp.fuse(lambda x: x * jnp.cumsum(x))
    same(jax.grad(lambda x: jnp.sum(jnp.sin(x * jnp.cumsum(x))))(X), jax.grad(lambda x: jnp.sum(jnp.sin(fn(x))))(X), 1e-3)
