"""``fuse``: the same results as without it, under every transformation; and the kernels that it is for."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from meshes import mesh as mesh_of

import jaxprims as jp
from bench.cases.fuse import PROGRAMS, Program, gradient
from jaxprims.fusion.call import Fused
from jaxprims.fusion.graph import flat_graph
from jaxprims.fusion.rewrite import Rewritten

N = 40_000
RNG = np.random.default_rng(7)
X = jnp.asarray(RNG.normal(size=N).astype(np.float32))
Y = jnp.asarray(RNG.normal(size=N).astype(np.float32))
IDS = jnp.asarray(RNG.integers(0, 50, N).astype(np.int32))
DONE = jnp.asarray(RNG.random(N) < 0.01)


def same(expected: Any, got: Any, rtol: float = 1e-4, atol: float = 0.0) -> None:
    """Structures, shapes, dtypes, weak types; integers exactly, floats as far as another order of summation goes. ``atol``: where
    large terms may cancel."""
    e, tree = jax.tree.flatten(expected)
    g, other = jax.tree.flatten(got)
    assert tree == other
    for a, b in zip(e, g, strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        a, b = np.asarray(a), np.asarray(b)
        if jnp.issubdtype(a.dtype, jnp.inexact):
            scale = float(np.abs(a[np.isfinite(a)]).max(initial=0))
            np.testing.assert_allclose(b, a, rtol=rtol, atol=rtol * scale + atol)
        else:
            np.testing.assert_array_equal(b, a)


@pytest.fixture(autouse=True)
def faults() -> Iterator[None]:
    """A fault is not hidden by doing without ``fuse``."""
    found = []
    plain = Rewritten.__init__

    def noted(self: Rewritten, closed: Any, kernels: Any, left: Any, chains: Any = ()) -> None:
        found.extend(why for _, why in left if "a fault in fuse" in why)
        plain(self, closed, kernels, left, chains)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rewritten, "__init__", noted)
        yield
    assert found == []


def kernels(fn: Callable[..., Any], *args: Any) -> list[str]:
    """The primitives of each kernel's sites, in words."""
    found = Fused(jax.make_jaxpr(fn)(*args)).rewritten.kernels
    return [" ".join(s.eqn.primitive.name.replace("_", "-") for s in k.body.sites) for k in found]


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
def test_programs(program: Program) -> None:
    args = _arguments(program)
    same(jax.jit(program.function)(*args), jp.fuse(program.function)(*args))


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.differentiable][::3], ids=lambda p: p.name)
def test_gradients_of_programs(program: Program) -> None:
    args = _arguments(program)
    expected = jax.jit(gradient(program.function))(*args)
    same(expected, jax.jit(gradient(jp.fuse(program.function)))(*args), 2e-3)
    same(expected, jp.fuse(gradient(program.function))(*args), 2e-3)


# --- which kernels ------------------------------------------------------------------------------------------------------------


def test_reductions_of_one_array_are_one_kernel() -> None:
    found = kernels(lambda x: (jnp.sum(x * x), jnp.max(x), jnp.argmin(x), jnp.sum(x > 0)), X)
    assert found == ["reduce-sum reduce-max argmin reduce-sum"]


def test_positions_of_extremes_are_found_in_a_pass_that_is_made_anyway() -> None:
    def moments(x: Any) -> Any:
        return jnp.var(x), jnp.argmax(x)

    assert kernels(moments, X) == ["reduce-sum reduce-max", "reduce-sum reduce-min"]
    assert kernels(lambda x: (jnp.argmin(x), jnp.argmax(x)), X) == ["reduce-min reduce-max", "reduce-min reduce-min"]
    assert kernels(lambda x: (jnp.sum(x), jnp.argmax(x)), X) == ["reduce-sum argmax"]
    for x in (X, X.at[jnp.array([9, 7, 20_000])].set(jnp.nan), jnp.zeros(N).at[::2].set(-0.0), jnp.full(N, -jnp.inf)):
        for fn in (moments, lambda x: (jnp.argmin(x), jnp.argmax(x.astype(jnp.bfloat16))), lambda x: jnp.argmin(x * x)):
            same(fn(x), jp.fuse(fn)(x))
    rows = jnp.round(4 * X).reshape(40, 1000).astype(jnp.int32)
    for axis in (0, 1, None):
        fn = functools.partial(lambda x, axis: (jnp.argmin(x, axis), jnp.argmax(x, axis)), axis=axis)
        same(fn(rows), jp.fuse(fn)(rows))


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
        first = jnp.zeros(50).at[i].add(x)
        return first, first + jnp.zeros(50).at[j].add(x)

    args = X[:5000], jnp.arange(5000) % 37, jnp.arange(5000) % 41
    same(shared(*args), jp.fuse(shared)(*args), atol=1e-4)


def test_what_others_want_is_not_made_again_for_one_reduction() -> None:
    """XLA would make it once more, to lay it out for the kernel."""
    image = jnp.asarray(np.random.default_rng(1).normal(size=(90, 200, 3)), jnp.float32)

    def centred(x: Any) -> Any:
        y = 1 / (1 + jnp.abs(x)) / (2 + x * x)
        less = jnp.sum(-y, (0, 1)) / 18_000
        return jnp.tanh(y + less) + jnp.sum(y * x, 2, keepdims=True)

    assert kernels(centred, image) == []
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


@pytest.mark.parametrize("name", EPILOGUES)
def test_what_is_made_of_scans(name: str) -> None:
    """It is made in their loops, and nothing but it is written."""
    fn, x, made = EPILOGUES[name]
    found = Fused(jax.make_jaxpr(fn)(x)).rewritten.in_words()
    assert sum(f"; makes {made}" in line for line in found) == 1, found
    same(jax.jit(fn)(x), jax.jit(jp.fuse(fn))(x), 2e-4)


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


def test_explained() -> None:
    plan = jp.explain(jp.fuse(lambda x: (jnp.sum(x * x), jnp.max(x), jnp.sum(x[:9]))))(X)
    assert "reduce_sum, reduce_max over [40000]: one kernel, reads f32[40000]; takes in mul" in str(plan)
    assert "left to XLA: few elements" in str(plan)
    assert len(plan.calls) == 1
    assert "linear recurrences" in str(jp.explain(jp.fuse(RECURRENCES["mean"][0]))(X))


# --- shapes -------------------------------------------------------------------------------------------------------------------

ROWS = X.reshape(40, 1000)
SHAPES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows": (lambda x: (jnp.max(x * 2, 1), jnp.sum(x, 1), jnp.argmax(x, 1)), (ROWS,)),
    "rows by a number of each": (lambda x, m: jnp.sum((x - m[:, None]) ** 2, 1), (ROWS, X[:40])),
    "rows by a number of each column": (lambda x, w: jnp.sum(x * w, 1), (ROWS, X[:1000])),
    "columns": (lambda x: (jnp.sum(x, 0), jnp.max(x + 1, 0)), (ROWS,)),
    "columns by a number of each": (lambda x, w: jnp.sum(jnp.abs(x - w), 0), (ROWS, X[:1000])),
    "everything of an outer product": (lambda a, b: jnp.sum(jnp.abs(a[:, None] - b)), (X[:40], Y[:1000])),
    "middle axis": (lambda x: jnp.sum(x * 2, 1), (X.reshape(4, 100, 100),)),
    "several axes": (lambda x: jnp.max(x * 2, (1, 2)), (X.reshape(4, 100, 100),)),
    "axes apart": (lambda x: jnp.sum(x * 2, (0, 2)), (X.reshape(4, 100, 100),)),
    "transposed": (lambda x: (jnp.sum(x.T * 2, 1), jnp.sum(x)), (ROWS,)),
    "of a position": (lambda x: (jnp.sum(x * jnp.arange(N)), jnp.argmax(x * jnp.arange(N))), (X,)),
    "of positions in rows": (lambda x: jnp.sum(x * jnp.arange(1000) * jnp.arange(40)[:, None]), (ROWS,)),
    "nothing": (lambda x: (jnp.sum(x * 2), jnp.cumsum(x)), (X[:0],)),
    "booleans": (lambda x: (jnp.any(x > 4), jnp.all(x < 9), jnp.sum(x > 0)), (X,)),
    "integers": (lambda i: (jnp.sum(i * 3), jnp.max(i), jnp.cumsum(i - 7), jnp.prod(i)), (IDS,)),
    "halves": (lambda x: (jnp.sum(x * 2), jnp.max(x), jnp.mean(x)), (X.astype(jnp.bfloat16),)),
    "complex": (lambda x: jnp.sum(jax.lax.complex(x, x) * 1j), (X,)),
    "not a number": (lambda x: (jnp.argmin(x), jnp.nansum(x)), (X.at[77].set(jnp.nan),)),  # XLA's maxima may lose it
    "two-dimensional bins": (lambda x, i: jnp.zeros((7, 50)).at[i % 7, i].add(x), (X, IDS)),
    "rows into bins": (lambda x, i: jnp.zeros((50, 4)).at[i].add(x[:, None] * jnp.arange(4)), (X, IDS)),
    "into an array": (lambda x, i: jnp.linspace(0, 1, 60).at[i].max(x), (X, IDS)),
    "outside": (lambda x, i: (jnp.zeros(9).at[i - 3].add(x), jnp.zeros(9).at[i].add(x, mode="clip")), (X, IDS)),
    "matrix of updates": (lambda x, i: jnp.zeros(50).at[i.reshape(200, 200)].add(x[:200, None] * 2), (X, IDS)),
    "gathers": (lambda h, i: jax.ops.segment_sum(h[i] * jnp.tanh(h[i + 1]), i, 50), (X[:60], IDS)),
    "scans": (lambda x: (jnp.cumsum(x * x), jax.lax.cummax(x + 1, reverse=True), jax.lax.cumlogsumexp(x)), (X,)),
    "scans of rows": (lambda x: (jnp.cumsum(x * 2, 1), jnp.cumprod(x / 9, 0)), (ROWS,)),
    "batched updates": (jax.vmap(lambda x, i: jnp.ones(50).at[i].add(x * x)), (X.reshape(8, -1), IDS.reshape(8, -1))),
    "batched by position": (jax.vmap(lambda k, x: jnp.zeros(99).at[k * jnp.arange(5000)].add(x)), (IDS[:8], X.reshape(8, -1))),
    "sorted": (lambda x: (jnp.argsort(x.reshape(-1, 8), 1), jnp.sort(x.reshape(-1, 8) * 2, 1), jnp.median(x)), (X,)),
    "no numbers in a row": (lambda x: (jnp.sum(x, 1), jnp.all(x > 0, 1)), (jnp.zeros((N, 0)),)),
    "pairs": (
        lambda a, b: jnp.argmin(jnp.sum((a[:, None] - b) ** 2, -1), 1),
        (X[:3200].reshape(-1, 16), Y[:3200].reshape(-1, 16)),
    ),
    "attention": (lambda q, k: jax.nn.softmax(q @ k.T / 8), (X[:16384].reshape(256, 64), Y[:16384].reshape(256, 64))),
    "any of a group": (lambda x, i: jnp.zeros(50, bool).at[i].max(x > 3.5), (X, IDS)),
    "long rows inside": (lambda x: (jnp.sum(jnp.sum(x * x, 1) * jnp.arange(40)), jnp.max(jnp.max(x, 1))), (ROWS,)),
    "produced twice": (lambda x: ((y := jnp.exp(x)), jnp.sum(y), jnp.max(y * 2)), (X,)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str) -> None:
    fn, args = SHAPES[name]
    same(jax.jit(fn)(*args), jp.fuse(fn)(*args), 2e-2 if name == "halves" else 1e-4)


# --- recurrences --------------------------------------------------------------------------------------------------------------


def loop(step: Callable[..., Any], init: Any, **options: Any) -> Callable[..., Any]:
    return lambda *xs: jax.lax.scan(step, init, xs[0] if len(xs) == 1 else xs, **options)


RECURRENCES: dict[str, tuple[Callable[..., Any], int, bool]] = {
    "mean": (loop(lambda c, x: ((m := 0.95 * c + 0.05 * x), (x - m) ** 2), 0.0), 1, True),
    "last": (loop(lambda c, x: (c * 0.5 + x, c - x), 1.0), 1, True),
    "returns": (loop(lambda c, x: ((v := x[0] + 0.99 * jnp.where(x[1], 0.0, c)), v), 0.5, reverse=True), 2, True),
    "after infinity": (loop(lambda c, x: ((v := x[0] + jnp.where(x[1], 0.0, c)), v), jnp.inf), 2, True),
    "maximum": (loop(lambda c, x: (jnp.maximum(c, x * 2), c), -1.0), 1, True),
    "two": (loop(lambda c, x: ((c[0] * 0.9 + x, c[1] * 0.8 + c[0]), c[1]), (0.0, 1.0)), 1, True),
    "negative": (loop(lambda c, x: (x - c / 3, c), 0.0), 1, True),
    "no loop": (loop(lambda c, x: (x, c), 0.0), 1, True),
    "lanes": (loop(lambda c, x: (jnp.where(x > 1, x, c * 0.5 + x), c), jnp.zeros(4)), 0, False),
    "count": (loop(lambda c, x: (c + 1, x * c), 0), 1, True),
    "masked": (loop(lambda c, x: (c + jnp.where(x[1], -0.1 * (c - x[0]), 0.0),) * 2, 0.0), 2, False),
    "dropped in part": (loop(lambda c, x: (jnp.where(x[1], 0, c) * 0.3 + 0.3 * c + x[0], c), 0.0), 2, False),
    "grows": (loop(lambda c, x: (c * 2 + 0 * x, c), 0.0), 1, False),
    "may grow": (loop(lambda c, x: (c * (1 + x), c), 0.0), 1, True),
    "divided by nothing": (loop(lambda c, x: (c / jnp.where(x > 3, 0, 2), c), 1.0), 1, True),
    "of halves": (loop(lambda c, x: (c + jnp.float16(1), c), jnp.float16(0)), 1, False),
    "unsigned": (loop(lambda c, x: (c - jnp.uint8(3), c), jnp.uint8(1)), 1, True),
    "with a matrix in each step": (loop(lambda c, x: (c * 0.5 + jnp.sum(jnp.outer(x, x)), c), 0.0), 0, False),
    "round in a circle": (
        loop(lambda c, x: ((c[0] * 0.9 + 0.1 * c[1], c[1] * 0.8 - 0.1 * c[0] + x), c[0]), (0.0, 1.0)),
        1,
        False,
    ),
    "not linear": (loop(lambda c, x: (jnp.tanh(c + x), c), 0.0), 1, False),
    "squared": (loop(lambda c, x: (c * c * 0.01 + x, c), 0.0), 1, False),
    "never changes": (loop(lambda c, x: (c, c + x), 0.0), 1, False),
}


@pytest.mark.parametrize("name", RECURRENCES)
def test_recurrences(name: str) -> None:
    fn, arrays, found = RECURRENCES[name]
    args = (X[:8000].reshape(-1, 4),) if not arrays else (X[:5000], DONE[:5000])[:arrays]
    fused = Fused(jax.make_jaxpr(fn)(*args))
    assert found == any("linear recurrences" in line for line in fused.in_words())
    same(jax.jit(fn)(*args), jp.fuse(fn)(*args), 1e-3)
    if name in ("mean", "returns", "two", "not linear"):
        loss = gradient(fn)
        expected = jax.jit(loss)(*args)
        same(expected, jax.jit(gradient(jp.fuse(fn)))(*args), 2e-3)
        same(expected, jp.fuse(loss)(*args), 2e-3)


LANES: dict[str, tuple[Callable[..., Any], bool]] = {
    "each by itself": (jax.vmap(RECURRENCES["mean"][0]), True),
    "with resets": (jax.vmap(lambda x: RECURRENCES["returns"][0](x, x > 1)), True),
    "factors that are not known": (jax.vmap(RECURRENCES["may grow"][0]), True),
    "carries that look at each other": (jax.vmap(RECURRENCES["two"][0]), True),
    "numbers for all lanes": (lambda x: jax.vmap(RECURRENCES["returns"][0], (0, None))(x, x[0] > 1), True),
    "lanes of lanes": (lambda x: jax.vmap(jax.vmap(RECURRENCES["mean"][0]))(x.reshape(2, 3, -1)), True),
    "mixed": (lambda x: jax.lax.scan(lambda c, y: (c[::-1] * 0.5 + y,) * 2, jnp.zeros(6), x.T)[1].T, False),
    "a batch of lanes side by side": (
        lambda x: jax.vmap(lambda x: jax.lax.scan(lambda c, y: (c * 0.5 + y,) * 2, jnp.zeros(2), x)[1])(x.reshape(3, -1, 2)),
        False,
    ),
    "lanes side by side": (lambda x: jax.lax.scan(lambda c, y: (c * 0.5 + y,) * 2, jnp.zeros(6), x.reshape(-1, 6))[1], False),
}


@pytest.mark.parametrize("name", LANES)
def test_recurrences_of_lanes(name: str) -> None:
    fn, found = LANES[name]
    x = X[:6000].reshape(6, 1000)
    for at in (x, x.at[2, 500].set(jnp.inf)):
        assert found == any("linear recurrences" in line for line in Fused(jax.make_jaxpr(fn)(at)).in_words())
        same(jax.jit(fn)(at), jp.fuse(fn)(at), 1e-3)
    expected = jax.jit(gradient(fn))(x)
    same(expected, jax.jit(gradient(jp.fuse(fn)))(x), 2e-3)
    same(expected, jp.fuse(gradient(fn))(x), 2e-3)


def test_advantages_of_a_batch_read_rows_as_they_lie() -> None:
    """Nothing is transposed: neither for what each step reads, a stencil, nor for the recurrences."""

    def advantages(reward: Any, value: Any) -> Any:
        def one(r: Any, v: Any) -> Any:
            delta = r + 0.99 * jnp.concatenate([v[1:], jnp.zeros(1)]) - v
            return jax.lax.scan(lambda c, d: (d + 0.94 * c,) * 2, 0.0, delta, reverse=True)[1]

        return jax.vmap(one)(reward, value)

    x = jnp.stack([jnp.sin(jnp.arange(40_000.0) * k) for k in (0.1, 0.3, 0.7)])
    text = jax.jit(jp.fuse(advantages)).lower(x, x * x).compile().as_text()
    assert "jaxprims_stencil" in text and "jaxprims_scan" in text and "transpose" not in text.replace('transpose"', "")
    same(jax.jit(advantages)(x, x * x), jp.fuse(advantages)(x, x * x), 1e-4)


# --- transformations ----------------------------------------------------------------------------------------------------------


def model(x: Any, w: Any) -> Any:
    y = jnp.tanh(x * w[IDS])
    return jnp.sum(jax.ops.segment_sum(y * y, IDS, 50) ** 2) / N + jnp.max(x) + jnp.mean(jnp.sin(x) * x)


W = jnp.linspace(0.5, 1, 50)
FUSED = jp.fuse(model)


def test_recurrences_take_in_their_terms_and_factors() -> None:
    def average(x: Any, done: Any) -> Any:
        def step(later: Any, now: Any) -> Any:
            value = now[0] ** 2 + 0.9 * (1.0 - now[1]) * later
            return value, value

        return jax.lax.scan(step, 0.5, (x, done), reverse=True)[1]

    assert kernels(average, X, DONE) == ["linear-recurrence"]
    loss = lambda x, d: jnp.sum(average(x, d) ** 2)  # noqa: E731
    same(jax.grad(loss)(X, DONE), jp.fuse(jax.grad(loss))(X, DONE))
    for x in (X, X.at[N // 2].set(jnp.nan)):
        same(average(x, DONE), jp.fuse(average)(x, DONE))


def test_a_carry_that_starts_with_nothing_is_not_added() -> None:
    """A term would be changed in place, and be copied for it."""

    def returns(x: Any, done: Any) -> Any:
        return jax.lax.scan(lambda c, now: (now[0] + 0.99 * jnp.where(now[1], 0.0, c),) * 2, 0.0, (x, done), reverse=True)[1]

    graph = Fused(jax.make_jaxpr(returns)(X, DONE)).graph
    assert not any(e.primitive.name.startswith(("scatter", "dynamic_update")) for e in graph.eqns)
    same(returns(X, DONE), jp.fuse(returns)(X, DONE))


def test_what_is_known_of_factors() -> None:
    """No factor may be larger than 1: known before, where it is made of booleans and bounded functions."""
    bounded = {
        "booleans": lambda x, d: 1.0 - d,
        "of tanh": lambda x, d: 0.5 * jnp.tanh(x) + 0.5,
        "clipped": lambda x, d: jnp.clip(x, -0.5, 1.0),
        "chosen": lambda x, d: jnp.where(d, 0.0, 0.99),
        "decay": lambda x, d: jnp.exp(-jnp.abs(x)),
        "square": lambda x, d: jax.nn.sigmoid(x) ** 2,
    }
    others = {
        "number": lambda x, d: x,
        "more than 1": lambda x, d: 1.1 * (1.0 - d),
        "sum": lambda x, d: jnp.tanh(x) + 0.1,
        "integers": lambda x, d: (d.astype(jnp.uint8) - jnp.uint8(1)).astype(jnp.float32),
    }
    for name, factor in {**bounded, **others}.items():

        def fn(x: Any, d: Any, factor: Any = factor) -> Any:
            return jax.lax.scan(lambda c, now: (now[0] * c + now[1],) * 2, 0.0, (factor(x, d), x))[1]

        guarded = any(e.primitive.name == "cond" for e in Fused(jax.make_jaxpr(fn)(X, DONE)).graph.eqns)
        assert guarded == (name in others), name
        same(fn(X, DONE), jp.fuse(fn)(X, DONE))


def test_first_derivatives() -> None:
    for wrt in (0, 1):
        same(jax.jit(jax.grad(model, wrt))(X, W), jax.jit(jax.grad(FUSED, wrt))(X, W), 1e-3)
    t = jnp.cos(X)
    same(jax.jit(functools.partial(jax.jvp, model))((X, W), (t, W)), jax.jvp(FUSED, (X, W), (t, W)), 1e-3)


def test_second_derivatives() -> None:
    def both(f: Any) -> Any:
        of_w = functools.partial(f, X)
        return jax.jit(lambda w: (jax.jvp(jax.grad(of_w), (w,), (w,))[1], jax.hessian(of_w)(w)))(W)

    same(both(model), both(FUSED), 1e-3)


def test_batches() -> None:
    xs = jnp.stack([X, 2 * X, Y])
    same(jax.jit(jax.vmap(model, (0, None)))(xs, W), jax.vmap(FUSED, (0, None))(xs, W))
    same(jax.vmap(model, (0, None))(xs, W), jp.fuse(jax.vmap(model, (0, None)))(xs, W))
    same(jax.vmap(jax.grad(model, 1), (0, None))(xs, W), jax.vmap(jax.grad(FUSED, 1), (0, None))(xs, W), 1e-3)


def test_inside_loops_and_conditions() -> None:
    def steps(f: Any, w: Any) -> Any:
        w = jax.lax.fori_loop(0, 3, lambda _, w: w - 0.1 * jax.grad(f, 1)(X, w), w)
        return jax.lax.cond(w[0] > 0, lambda: f(X, w), lambda: f(Y, w))

    same(steps(model, W), steps(FUSED, W), 1e-3)
    same(steps(model, W), jp.fuse(lambda w: steps(model, w))(W), 1e-3)


def test_checkpoint() -> None:
    same(jax.grad(jax.checkpoint(FUSED), 1)(X, W), jax.grad(model, 1)(X, W), 1e-3)
    same(jp.fuse(jax.grad(jax.checkpoint(model), 1))(X, W), jax.grad(model, 1)(X, W), 1e-3)


def test_rules_of_its_own() -> None:
    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return jnp.sum(x * x)

    clipped.defvjp(lambda x: (jnp.sum(x * x), x), lambda x, g: (g * jnp.clip(x, -0.1, 0.1),))

    @jax.custom_jvp
    def odd(x: Any) -> Any:
        return jnp.sum(jnp.sin(x))

    odd.defjvp(lambda p, t: (odd(*p), jnp.sum(7 * t[0])))

    @jax.custom_jvp
    def straight_through(x: Any) -> Any:
        return jnp.round(x)

    straight_through.defjvps(lambda t, out, x: t)

    def rounded(x: Any) -> Any:
        return jnp.sum(straight_through(x) ** 2)

    same(jax.hessian(rounded)(X[:5]), jax.hessian(jp.fuse(rounded))(X[:5]))
    for f in (clipped, odd):
        same(f(X), jp.fuse(f)(X))
        same(jax.grad(f)(X), jax.grad(jp.fuse(f))(X))
        same(jax.grad(f)(X), jp.fuse(jax.grad(f))(X))


def test_rules_hold_where_derivatives_are_taken_of_the_kernels() -> None:
    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return x * x

    clipped.defvjp(lambda x: (x * x, x), lambda x, g: (g * jnp.clip(x, -0.1, 0.1),))

    def noisy(x: Any) -> Any:
        jax.debug.print("{x}", x=x[0])
        return jnp.sum(clipped(x))

    def local(x: Any) -> Any:
        return jax.lax.psum(jnp.sum(clipped(x)), "x")

    def spread(f: Any) -> Any:
        return jax.shard_map(f, mesh=mesh_of(8), in_specs=P("x"), out_specs=P())

    big = jnp.tile(X, 8)
    same(jax.grad(noisy)(X), jax.grad(jp.fuse(noisy))(X))
    same(jax.grad(spread(local))(big), jax.grad(spread(jp.fuse(local)))(big))
    same(jax.grad(spread(local))(big), jax.grad(jp.fuse(spread(local)))(big))


def test_explicit_shardings_are_kept() -> None:
    def f(x: Any) -> Any:
        return jnp.sum(x * x), jnp.max(x), x * 2

    mesh = mesh_of(8, explicit=True)
    with jax.set_mesh(mesh):
        x = jax.device_put(X, jax.NamedSharding(mesh, P("x")))
        same(jax.jit(f)(x), jp.fuse(f)(x))
        assert jax.typeof(jp.fuse(f)(x)[2]) == jax.typeof(f(x)[2])
        same(jax.grad(lambda x: f(x)[0])(x), jax.grad(lambda x: jp.fuse(f)(x)[0])(x))


def test_export() -> None:
    args = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (X, W)]
    checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in jp.CUSTOM_CALL_TARGETS]
    exported = jax.export.export(jax.jit(FUSED), disabled_checks=checks)(*args)
    same(model(X, W), jax.export.deserialize(exported.serialize()).call(X, W))


def test_sizes_that_are_not_known() -> None:
    def f(x: Any) -> Any:
        return jnp.sum(x * 2), jnp.cumsum(x), jnp.argmax(x)

    n = jax.export.symbolic_shape("n")
    checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in jp.CUSTOM_CALL_TARGETS]
    exported = jax.export.export(jax.jit(jp.fuse(f)), disabled_checks=checks)(jax.ShapeDtypeStruct(n, jnp.float32))
    same(f(X), exported.call(X))


def test_shards() -> None:
    mesh = mesh_of(8)

    def local(x: Any) -> Any:
        return jax.lax.psum(jnp.sum(x * x), "x"), x - jnp.max(x)

    inside = jax.shard_map(jp.fuse(local), mesh=mesh, in_specs=P("x"), out_specs=(P(), P("x")))
    plain = jax.shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=(P(), P("x")))
    big = jnp.tile(X, 8)
    same(plain(big), inside(big))
    same(plain(big), jp.fuse(plain)(big))
    placed = jax.device_put(X, jax.NamedSharding(mesh, P("x")))
    same(model(X, W), FUSED(placed, W))
    same(jax.grad(model, 1)(X, W), jax.grad(FUSED, 1)(placed, W), 1e-3)


# --- calls --------------------------------------------------------------------------------------------------------------------


def test_structures_and_static_arguments() -> None:
    @jp.fuse
    def f(tree: Any, how: str, *, axis: int = 0, scale: float = 2.0) -> Any:
        """Its own words."""
        total = jnp.sum if how == "sum" else jnp.max
        return {"out": total(tree["x"] * scale, axis=axis), "n": len(tree["rest"]), "none": None}

    assert f.__doc__ == "Its own words."
    tree = {"x": ROWS, "rest": (X, None)}
    same(jnp.sum(ROWS * 3, 1), f(tree, "sum", axis=1, scale=3.0)["out"])
    same(jnp.max(ROWS * 2, 0), f(tree, "max")["out"])
    assert f(tree, "max")["none"] is None


def test_numbers_of_python() -> None:
    traces = []

    @jp.fuse
    def filled(value: Any, n: Any) -> Any:
        traces.append(1)
        return 1 / jnp.full(n, value)

    assert filled(0.0, 3)[0] == np.inf
    assert filled(-0.0, 3)[0] == -np.inf
    before = len(traces)
    for rate in (1.0, 2.0, 4.0):  # an operand, though the length had to be known
        assert filled(rate, 3)[0] == 1 / rate
    assert len(traces) == before
    assert jp.fuse(lambda x, names: jnp.sum(x) * len(names))(X[:9], {"a", "b"}) == 2 * jnp.sum(X[:9])


def test_effects_stay(capfd: pytest.CaptureFixture[str]) -> None:
    def noisy(x: Any) -> Any:
        y = jnp.sum(x * x)
        jax.debug.print("sum {y:.1f}", y=y)
        return y, jnp.max(x)

    same((jnp.sum(X * X), jnp.max(X)), jp.fuse(noisy)(X))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("sum ") == 1


def test_captured_tracers() -> None:
    def outer(scale: Any) -> Any:
        return jp.fuse(lambda x: (jnp.sum(x * scale), jnp.max(x + scale)))(X)

    same((jnp.sum(X * 3.0), jnp.max(X + 3.0)), jax.jit(outer)(jnp.float32(3)))
    same(jnp.sum(X), jax.grad(lambda s: outer(s)[0])(jnp.float32(3)))


def test_weak_types() -> None:
    same(jnp.sum(X * 0 + 1) * 2.0, jp.fuse(lambda x, k: jnp.sum(x * 0 + 1) * k)(X, 2.0))
    same(jax.jit(lambda k: jnp.cumsum(jnp.full(N, k)))(1), jp.fuse(lambda k: jnp.cumsum(jnp.full(N, k)))(1))


def test_wrong_programs_say_what_they_would_without() -> None:
    with pytest.raises(TypeError, match="must be a function"):
        jp.fuse(3)  # type: ignore[type-var]
    with pytest.raises(ZeroDivisionError):
        jp.fuse(lambda x: 1 / 0)(X)
    with pytest.raises(TypeError, match="add got incompatible shapes"):
        jp.fuse(lambda x, y: x + y)(X, X[:3])


def test_one_trace_for_calls_alike() -> None:
    traces = []

    @jp.fuse
    def f(x: Any) -> Any:
        traces.append(1)
        return jnp.sum(x * x)

    for _ in range(3):
        f(X)
    f(X[:100])
    assert len(traces) == 2


# --- the graph ----------------------------------------------------------------------------------------------------------------


def test_graph_is_flat_and_has_nothing_twice() -> None:
    @jax.jit
    def inner(x: Any) -> Any:
        unused = jnp.exp(x)
        del unused
        return jnp.sin(x) + jnp.sin(x)

    graph = flat_graph(jax.make_jaxpr(lambda x: inner(x) + jax.nn.relu(jnp.sin(x)))(X))
    names = [e.primitive.name for e in graph.eqns]
    assert names.count("sin") == 1
    assert "exp" not in names and "jit" not in names and "custom_jvp_call" not in names


UNARY = [jnp.sin, jnp.abs, jnp.tanh, lambda x: x * 2, lambda x: -x, jnp.square, lambda x: jnp.where(x > 0, x, 0.5)]
BINARY = [jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, lambda a, b: jnp.where(a > b, a, b * 0.5)]
SITES = [
    jnp.sum, jnp.max, jnp.min, jnp.mean, jnp.argmax, jnp.cumsum, lambda x: jnp.zeros(50).at[IDS].add(x),
    lambda x: jax.ops.segment_max(x, IDS, 50), lambda x: x, lambda x: x - jnp.mean(x), lambda x: jnp.sum(x.reshape(40, -1), 1),
    lambda x: jnp.max(x.reshape(40, -1), 0), lambda x: x[IDS], lambda x: jnp.sum(x > 0),
]  # fmt: skip


@given(st.data())
@examples(15)
def test_random_programs(data: Any) -> None:
    """Each line makes an array of N numbers of earlier ones, or something of another shape that is returned."""
    lines = data.draw(st.lists(st.tuples(*(st.integers(0, 99),) * 4), min_size=3, max_size=9))

    def program(x: Any, y: Any) -> Any:
        arrays, out = [x, y], []
        for kind, a, b, op in lines:
            first, second = arrays[a % len(arrays)], arrays[b % len(arrays)]
            if kind % 3 == 0:
                made = UNARY[op % len(UNARY)](first)
            elif kind % 3 == 1:
                made = BINARY[op % len(BINARY)](first, second)
            else:
                made = SITES[op % len(SITES)](first * 0.5)
            (arrays if made.shape == x.shape else out).append(made)
            if made.shape == () and jnp.issubdtype(made.dtype, jnp.floating):
                arrays.append(second + made / N)
        return out, arrays[-1]

    with jax.enable_x64(True):
        x, y = (a.astype(jnp.float64) for a in (X, Y))
        same(jax.jit(program)(x, y), jp.fuse(program)(x, y), 1e-6, 1e-4)


def test_bodies_of_loops_and_branches_are_fused() -> None:
    def descend(x: Any) -> Any:
        def step(i: Any, c: Any) -> Any:
            return c - 0.1 * (jnp.sum(x * c) + jnp.max(x - c)) / N

        c = jax.lax.fori_loop(0, 5, step, 1.0)
        return jax.lax.cond(c > 0, lambda: (jnp.sum(x * x), jnp.min(x)), lambda: (c, c))

    same(jax.jit(descend)(X), jp.fuse(descend)(X))
    words = str(jp.explain(jp.fuse(descend))(X))
    assert "in scan: reduce_sum, reduce_max over [40000]: one kernel" in words or "in while: reduce_sum, reduce_max" in words
    assert "in cond: reduce_sum, reduce_min over [40000]: one kernel" in words


def test_bitcasts_to_another_width() -> None:
    """They have another axis, or lack one."""

    def program(x: Any, y: Any) -> Any:
        parts = jax.lax.bitcast_convert_type(x, jnp.uint8)
        whole = jax.lax.bitcast_convert_type(parts[::-1], jnp.int32)
        difference = jax.lax.bitcast_convert_type(parts[1:] - parts[:-1], jnp.int32)
        return jnp.cumsum(y), jnp.sum(whole), jnp.max(parts, 0), jnp.argmax(parts, 1), jnp.cumsum(parts, 0, jnp.int32), difference

    same(jax.jit(program)(IDS, X), jp.fuse(program)(IDS, X))
    assert "cumsum" in kernels(program, IDS, X)


def test_a_number_that_is_given_axes() -> None:
    def program(x: Any) -> Any:
        return jnp.cumsum(x), jax.lax.reshape(2.0, (1,))

    same(jax.jit(program)(X), jp.fuse(program)(X))
    assert kernels(program, X) == ["cumsum"]


def test_what_has_no_transpose_is_pushed_forward() -> None:
    def program(x: Any) -> Any:
        smooth = jax.lax.reduce_window(x, np.float32(0), lambda a, b: a + b + 0 * a * b, (3,), (1,), "SAME")
        return smooth * jnp.sum(x * x)

    pushed = [jax.jit(lambda x, t, fn=fn: jax.jvp(fn, (x,), (t,))) for fn in (program, jp.fuse(program))]
    same(*(fn(X[:500], Y[:500]) for fn in pushed))
    with pytest.raises(ValueError, match="does not support reverse-mode"):
        jax.grad(lambda x: jp.fuse(program)(x)[0])(X[:500])
