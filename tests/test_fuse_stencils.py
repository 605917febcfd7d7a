"""``fuse``: stencils in plain code, found and right: against the function itself, with every border and transformation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from hypothesis import example, given
from hypothesis import strategies as st
from jax import lax
from test_fuse import same

import jaxprims as jp
from jaxprims.fusion import folded, rewrite, steps
from jaxprims.fusion.call import Fused
from jaxprims.fusion.folded import Folded
from jaxprims.fusion.rewrite import Rewritten
from jaxprims.fusion.stencils import Stencil

RNG = np.random.default_rng(11)
U = jnp.asarray(RNG.normal(size=(13, 50)).astype(np.float32))
X = jnp.asarray(RNG.normal(size=400).astype(np.float32))
CUBE = jnp.asarray(RNG.normal(size=(5, 6, 44)).astype(np.float32))
MODES = ("constant", "edge", "wrap", "reflect", "symmetric")


@pytest.fixture(autouse=True)
def everywhere(request: pytest.FixtureRequest) -> Iterator[None]:
    """Small grids are kernels, too, and a fault is not hidden by doing without."""
    found = []
    plain = Rewritten.__init__

    def noted(self: Rewritten, closed: Any, kernels: Any, left: Any, chains: Any = ()) -> None:
        found.extend(why for _, why in left if "a fault in fuse" in why or why.startswith("no kernel"))
        plain(self, closed, kernels, left, chains)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rewritten, "__init__", noted)
        if request.node.get_closest_marker("strategies") is None:
            patch.setattr(rewrite, "why_no_stencil", lambda *_: None)
            patch.setattr(folded, "folds", lambda stencil: True)
            patch.setattr(steps, "FEWEST_CELLS_OF_STEPS", 0)
            patch.setattr(steps, "SHORT_ROW_OF_CELLS", 0)
            patch.setattr(steps, "are_short_rows", lambda layout: False)
        yield
    assert found == []


def stencils(fn: Callable[..., Any], *args: Any) -> list[Stencil]:
    """Those that are found in a function, in reductions too."""
    bodies = [k.body for k in Fused(jax.make_jaxpr(fn)(*args)).rewritten.kernels]
    return [b.stencil if isinstance(b, Folded) else b for b in bodies if isinstance(b, (Stencil, Folded))]


def inside(fn: Callable[..., Any], *args: Any) -> list[str]:
    """What became of loops and branches."""
    fused = Fused(jax.make_jaxpr(fn)(*args))
    assert fused.rewritten
    return fused.inside


def check(fn: Callable[..., Any], *args: Any, count: int = 1, rtol: float = 1e-5) -> Stencil:
    """So many stencils, which give what the function does."""
    found = stencils(fn, *args)
    assert len(found) == count
    same(jax.jit(fn)(*args), jp.fuse(fn)(*args), rtol, 1e-6)
    return found[0]


def laplacian(p: Any) -> Any:
    return p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * p[1:-1, 1:-1]


def rolled(u: Any) -> Any:
    return u + 0.1 * (jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 4 * u)


def kept(u: Any) -> Any:
    return u.at[1:-1, 1:-1].set(u[1:-1, 1:-1] + 0.1 * laplacian(u))


# --- what is found --------------------------------------------------------------------------------------------------------------


def test_rolls_are_one_array_that_wraps_around() -> None:
    found = check(rolled, U)
    assert len(found.layout.sources) == 1 and len(found.layout.places) == 5 and found.layout.modes == ["wrap"]


def test_slices_are_reads_within() -> None:
    found = check(laplacian, U)
    assert len(found.layout.sources) == 1 and found.layout.modes == []
    check(lambda x: x[2:] - 2 * x[1:-1] + x[:-2], X)
    check(lambda u: jnp.diff(u, 2, axis=0) * 2, U)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", [1, 3])
def test_pads(mode: str, width: int) -> None:
    def padded(u: Any) -> Any:
        p = jnp.pad(u, width, mode=mode)
        n, m = u.shape
        return u + 0.3 * p[2 * width :, width : width + m] - p[:n, :m] * p[width : width + n, 2 * width :]

    found = check(padded, U)
    assert len(found.layout.sources) == 1
    if width > 1:
        assert found.layout.modes == [mode]


def test_constants_beyond() -> None:
    found = check(lambda u: jnp.pad(u, 1, constant_values=3.5)[2:, 1:-1] * u, U)
    assert found.layout.modes == ["constant"]
    check(lambda u: jnp.pad(u[2:-1, 3:], ((2, 1), (3, 0)), constant_values=-1)[:, 1:] + u[:, 1:], U)
    check(lambda u, c: jnp.pad(u, 1, constant_values=c)[2:, 1:-1] * u, U, jnp.float32(2))  # not known before


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint8])
@pytest.mark.parametrize("width", [1, 9])
def test_constants_beyond_a_long_row(width: int, dtype: Any) -> None:
    """Of which several threads make a part each, and of the fill values what is beyond its ends alone."""
    x = jnp.asarray(np.random.default_rng(5).integers(0, 100, 300_001).astype(dtype))

    def fn(u: Any) -> Any:
        p = jnp.pad(u, width, constant_values=3)
        return p[2 * width :] + p[: -2 * width] * 2 + u

    check(fn, x)


def test_mixed_borders() -> None:
    def mixed(u: Any) -> Any:
        p = jnp.pad(jnp.pad(u, ((1, 1), (0, 0)), mode="edge"), ((0, 0), (1, 1)), mode="wrap")
        return laplacian(p)

    assert check(mixed, U).layout.modes == ["edge", "wrap"]
    check(lambda u: jnp.pad(u, ((0, 2), (0, 0)), mode="reflect")[2:] - jnp.roll(u, 3, 1), U)


def test_borders_of_what_is_computed() -> None:
    check(lambda u: laplacian(jnp.pad(u * u + 1, 1)), U)  # zero, not what is made of zero
    found = check(lambda u: laplacian(jnp.pad(u * u + 1, 1, mode="edge")), U)
    assert len(found.layout.sources) == 1 and not found.layout.counted

    def flux(u: Any) -> Any:  # edges of an array with fewer cells
        q = (u[1:] - u[:-1]) * (u[1:] + u[:-1])
        return jnp.diff(jnp.pad(q, ((1, 1), (0, 0)), mode="edge"), axis=0)

    assert not check(flux, U).layout.counted


@pytest.mark.parametrize(
    "fn",
    [
        kept,
        lambda u: u.at[1:-1, 1:-1].add(0.5 * laplacian(u)),
        lambda u: lax.dynamic_update_slice(u, 0.1 * laplacian(u), (1, 1)),
        lambda u: rolled(u).at[0].set(0.0).at[-1].set(1.0).at[:, 0].set(2.0).at[:, -1].set(u[:, 5]),
        lambda u: u.at[2:5].set(jnp.roll(u, 1, 1)[2:5]),
        lambda u: kept(u).at[0, 0].set(7.0),
    ],
)
def test_updates_of_a_box(fn: Any) -> None:
    check(fn, U)


def test_gradients_of_numpy() -> None:
    check(jnp.gradient, U, count=2)
    check(jnp.gradient, X)
    check(lambda u: jnp.gradient(u, 0.5, axis=1), U)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_windows(padding: str) -> None:
    check(lambda u: lax.reduce_window(u, 0.0, lax.add, (3, 5), (1, 1), padding) / 15, U)
    check(lambda u: lax.reduce_window(u, -jnp.inf, lax.max, (1, 4), (1, 1), padding), U)
    check(lambda u: lax.reduce_window(u, jnp.inf, lax.min, (3, 1), (1, 1), padding, window_dilation=(2, 1)), U)
    check(lambda i: lax.reduce_window(i, jnp.iinfo(jnp.int32).min, lax.max, (3, 3), (1, 1), padding), (U * 9).astype(jnp.int32))


def test_strides_are_left_to_xla() -> None:
    def pooled(u: Any) -> Any:
        return lax.reduce_window(u, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID")

    assert stencils(pooled, U) == []
    same(pooled(U), jp.fuse(pooled)(U))


@pytest.mark.parametrize("padding", ["SAME", "VALID", ((2, 0), (1, 3))])
def test_convolutions(padding: Any) -> None:
    def channels_first(u: Any, w: Any) -> Any:
        return lax.conv_general_dilated(u[None, None], w[None, None], (1, 1), padding)[0, 0]

    check(channels_first, U, U[:3, :2])
    check(lambda u, w: lax.conv_general_dilated(u[None, None], w[None, None], (1, 1), padding, rhs_dilation=(2, 1)), U, U[:3, :2])


def test_convolutions_of_each_channel() -> None:
    def depthwise(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=x.shape[-1]
        )

    x, w = (jnp.asarray(RNG.normal(size=s).astype(np.float32)) for s in ((2, 9, 10, 6), (3, 3, 1, 6)))
    check(depthwise, x, w)
    check(lambda x, w: lax.conv_general_dilated(x, w, (1,), "SAME"), CUBE[:2], CUBE[:1, :6, :3])  # several channels to one


@pytest.mark.parametrize("mode", ["same", "valid", "full"])
def test_convolve(mode: str) -> None:
    check(lambda x: jnp.convolve(x, jnp.array([1.0, -2.0, 0.5]), mode), X)
    check(lambda x, w: jax.vmap(lambda r: jnp.convolve(r, w, mode))(x), U, X[:4])


def test_arrays_with_fewer_axes() -> None:
    row, column = U[3], U[:, 4]
    check(lambda u, r: jnp.roll(u, 1, 0) * r + u, U, row)
    check(lambda u, c: (jnp.roll(u, 1, 0) + u) * c[:, None], U, column)
    check(lambda u: (jnp.roll(u, 1, 1) + u) * u[:, 3:4] - u[5, 6], U)
    check(lambda u, c: jnp.roll(u, 1, 1) * jnp.roll(c, 1)[:, None] - u * c[:, None], U, column, count=1)


def test_coordinates() -> None:
    check(lambda u: jnp.where(jnp.arange(13)[:, None] % 2 == jnp.arange(50) % 2, jnp.roll(u, 1, 0) + u, u), U)
    check(lambda u: jnp.roll(u, 1, 1) * lax.broadcasted_iota(jnp.float32, u.shape, 0) - u, U)


def test_axes_in_other_orders() -> None:
    check(lambda u: rolled(u.T), U)
    check(lambda u: rolled(u).T * 2, U)
    check(lambda a: a[1:] - a[:-1] + a[:1], CUBE)
    check(lambda a: jnp.roll(a, 1, 2) - jnp.roll(a, (1, 2), (0, 1)), CUBE)
    check(lambda u: (lambda v: v[1:, 1:] - v[:-1, :-1])(jnp.stack([u, u + 1, u * 2], -1)), U)  # lanes


def test_dtypes() -> None:
    check(rolled, (U * 10).astype(jnp.int32))
    check(lambda b: jnp.roll(b, 1, 0) ^ b, U > 0)
    check(lambda z: jnp.roll(z, 1, 0) * z, U + 1j * U[::-1])
    check(lambda u: (jnp.roll(u, 1, 0) > u) * 3, U)


def test_doubles(x64: None) -> None:
    check(rolled, jnp.asarray(RNG.normal(size=(13, 50))), rtol=1e-13)
    check(kept, jnp.asarray(RNG.normal(size=(13, 50))), rtol=1e-13)


def test_weak_types() -> None:
    check(lambda u: jnp.where(jnp.roll(u, 1, 0) > u, 1.0, 2.0), U)


# --- what is written, what is left ----------------------------------------------------------------------------------------------


def test_what_is_dear_is_written_once() -> None:
    (found,) = stencils(lambda u: rolled(jnp.exp(jnp.sin(u))), U)
    assert not any(found.graph.eqns[k].primitive.name in ("exp", "sin") for k in found.taken)
    check(lambda u: rolled(rolled(u)), U, count=2)


def test_what_several_want_is_written_once_if_it_is_dear() -> None:
    """As the windows of a similarity of images are by its gradient."""

    def mean(u: Any) -> Any:
        return lax.reduce_window(u, 0.0, lax.add, (7, 7), (1, 1), "VALID") / 49

    def similarity(u: Any) -> Any:
        a, b = mean(u), mean(u * u)
        return a / (1 + b), a * b - b

    found = stencils(similarity, U)
    assert [len(s.layout.places) for s in found] == [49, 49]
    same(jax.jit(similarity)(U), jp.fuse(similarity)(U), 1e-5, 1e-6)


def _bilateral(u: Any) -> Any:
    p = jnp.pad(u, 1, mode="edge")
    views = [p[i : i + u.shape[0], j : j + u.shape[1]] for i in range(3) for j in range(3)]
    weights = [jnp.exp(-((q - u) ** 2)) * 0.5 for q in views]
    return jnp.sum((sum(w * q for w, q in zip(weights, views, strict=True)) / sum(weights)) ** 2)


def _corners(u: Any) -> Any:
    x, y = jnp.gradient(u, axis=1), jnp.gradient(u, axis=0)
    a, b, c = x * x, x * y, y * y
    return jnp.sum(a * c - b * b - 0.04 * (a + c) ** 2)


def _sharpened(u: Any) -> Any:
    p = jnp.pad(u, 1, mode="edge")
    mean = sum(p[i : i + u.shape[0], j : j + u.shape[1]] for i in range(3) for j in range(3)) / 9
    return jnp.sum((u + 0.5 * (u - mean)) ** 2)


@pytest.mark.parametrize("loss, share", [(_bilateral, 0.3), (_corners, 1.0), (_sharpened, 0.3)])
def test_what_gradients_share_is_written_as_far_as_it_pays(loss: Any, share: float) -> None:
    """Of sums of exponentials these, not every exponential; of products of differences what is read at neighbours."""
    u = jnp.asarray(np.random.default_rng(3).random((300, 300)), jnp.float32)
    plain, fused = jax.jit(jax.grad(loss)), jax.jit(jp.fuse(jax.grad(loss)))
    temporaries = [f.lower(u).compile().memory_analysis().temp_size_in_bytes for f in (plain, fused)]
    assert temporaries[1] <= share * temporaries[0] + 2**16
    same(plain(u), fused(u), 1e-4, 1e-5)


def test_what_is_written_anyway_is_read_before_what_is_made_of_it() -> None:
    """Of the corners' gradient two arrays, at three places each, and not what else is made of these."""
    found = stencils(jax.grad(_corners), BIG)
    assert [len(s.layout.places) for s in found] == [6, 5, 5]


def test_what_xla_needs_too_is_written_once_if_it_is_dear() -> None:
    """A window in a kernel and in a sort of XLA's."""

    def means(u: Any) -> Any:
        a = lax.reduce_window(u, 0.0, lax.add, (7, 7), (1, 1), "VALID") / 49
        return rolled(jnp.tanh(a)), jnp.sort(a * 2, 0)

    found = stencils(means, U)
    assert sorted(len(s.layout.places) for s in found) == [5, 49]
    same(jax.jit(means)(U), jp.fuse(means)(U), 1e-5, 1e-6)


def test_what_several_stencils_compute_is_written_once_if_it_is_dear() -> None:
    """None of its functions by itself, nor at several places, as the weights of a bilateral filter."""

    def weighted(u: Any) -> Any:
        total = sum(jnp.exp(-((jnp.roll(u, s, a) - u) ** 2)) for s in (1, -1) for a in (0, 1))
        return total * u, 1 / (1 + total), jnp.sqrt(total)

    check(weighted, U, rtol=1e-4)


def test_results_are_read_in_place_of_several_arrays() -> None:
    """Which XLA would have to write."""

    def steps(u: Any, v: Any) -> Any:
        w = u[:, ::2] - v
        return w, jnp.sum(jnp.abs(jnp.diff(w, axis=0)) > 0.5)

    (found,) = stencils(steps, BIG, BIG[:, 1::2])
    assert len(found.leaves) == 1
    same(jax.jit(steps)(BIG, BIG[:, 1::2]), jp.fuse(steps)(BIG, BIG[:, 1::2]))


def test_what_a_reduction_reads_at_several_places_is_made_once_if_it_is_dear() -> None:
    def spins(u: Any) -> Any:
        s = jnp.tanh(u)
        return jnp.sum(s * (jnp.roll(s, 1, 0) + jnp.roll(s, 1, 1))), s.mean()

    assert "reduce of stencil" in kinds(spins, BIG)
    (found,) = stencils(spins, BIG)
    assert not any(found.graph.eqns[k].primitive.name == "tanh" for k in found.taken)
    same(jax.jit(spins)(BIG), jp.fuse(spins)(BIG), 1e-4)


def test_far_reads_along_rows_are_left_to_xla() -> None:
    def far(x: Any) -> Any:
        return jnp.roll(x, 150) + x

    assert stencils(far, X) == []
    same(far(X), jp.fuse(far)(X))


def test_elementwise_functions_are_left_to_xla() -> None:
    assert stencils(lambda u: jnp.sin(u) * u + u.T.T, U) == []


def test_results_of_others_and_for_others() -> None:
    check(lambda u: jnp.cumsum(u, 0)[1:] - jnp.cumsum(u, 0)[:-1], U)
    check(lambda u: jnp.sort(rolled(u)), U)
    check(lambda u: (rolled(u), rolled(u).sum(0), u[0]), U)
    same(jax.jit(lambda u: rolled(u)[:, ::2])(U), jp.fuse(lambda u: rolled(u)[:, ::2])(U), 1e-5)


@pytest.mark.strategies
def test_what_pays() -> None:
    def found(fn: Any, *shape: int) -> int:
        return len(stencils(fn, jax.ShapeDtypeStruct(shape, jnp.float32)))

    assert found(rolled, 64, 64) == 0 and found(rolled, 300, 300) == 1
    assert found(laplacian, 1000, 1000) == 0 and found(laplacian, 4096, 4096) == 1
    assert found(kept, 300, 300) == 1 and found(rolled, 10_000, 20) == 0
    small, large = (jax.ShapeDtypeStruct((n, n), jnp.float32) for n in (100, 300))
    for size, several in (small, False), (large, True):
        (line,) = inside(lambda u: lax.fori_loop(0, 5, lambda _, v: rolled(v), u), size)
        assert ("several steps" in line) == several
    assert "left to XLA" in str(jp.explain(jp.fuse(laplacian))(large))
    # what has been weighed is a kernel; windows whose rows have many cells at their ends are XLA's
    box = lambda u, how: lax.reduce_window(u, 0.0, lax.add, (7, 7), (1, 1), how)  # noqa: E731
    inner, padded = (functools.partial(box, how=how) for how in ("VALID", "SAME"))
    assert found(inner, 70, 70) == 1 and found(padded, 70, 70) == 0 and found(padded, 300, 300) == 1
    assert "custom_call @jaxprims" in jax.jit(jp.fuse(inner)).lower(jnp.ones((70, 70))).as_text()
    # rows of bytes that fill no vector, in one step and in each of several

    def around(u: Any) -> Any:
        return functools.reduce(jnp.maximum, [jnp.roll(u, (i, j), (1, 2)) for i in (-1, 0, 1) for j in (-1, 0, 1)])

    for dtype, row, kernels in (jnp.uint8, 53, 0), (jnp.uint8, 100, 1), (jnp.float32, 53, 1):
        grid = jax.ShapeDtypeStruct((64, 52, row), dtype)
        assert len(stencils(around, grid)) == kernels
        (line,) = inside(lambda u: lax.fori_loop(0, 3, lambda _, v: around(v), u), grid)
        assert ("several steps" in line) == bool(kernels)
    energy = lambda u: jnp.sum((u[1:] - u[:-1]) ** 2)  # noqa: E731
    assert found(energy, 300, 300) == 1 and found(jax.grad(energy), 300, 300) == 0
    box = lambda u: jnp.sum(lax.reduce_window(u, 0.0, lax.add, (3, 3), (1, 1), "SAME") ** 2)  # noqa: E731
    large = [jax.ShapeDtypeStruct((n, n), jnp.float32) for n in (300, 1000)]
    assert [kinds(box, x) for x in large] == [["reduce", "stencil"], ["reduce of stencil"]]  # many cells at rows' ends
    assert kinds(energy, large[0]) == ["reduce of stencil"]
    assert found(jax.grad(lambda u: energy(u) ** 3), 200, 200) == 0  # the sum is wanted, and so are its terms
    assert found(jax.grad(lambda u: energy(u) ** 3), 300, 300) == 1  # which are cheap to make again


# --- what other kernels combine -------------------------------------------------------------------------------------------------


def kinds(fn: Callable[..., Any], *args: Any) -> list[str]:
    found = Fused(jax.make_jaxpr(fn)(*args)).rewritten.kernels
    names = {Stencil: "stencil", Folded: "reduce of stencil"}
    return sorted(names.get(type(k.body)) or k.body.sites[0].family for k in found)


BIG = jnp.asarray(RNG.normal(size=(180, 250)).astype(np.float32))


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda u: jnp.sum(laplacian(u) ** 2), ["reduce of stencil"]),
        (lambda u: jnp.linalg.norm(jnp.diff(u, axis=0)), ["reduce of stencil"]),
        (lambda u: (lambda r: (jnp.sum(r * r), jnp.max(jnp.abs(r))))(rolled(u) - u), ["reduce of stencil"]),
        (lambda u: jnp.cumsum(rolled(u), 0), ["scan", "stencil"]),
        (lambda u: jnp.zeros(8).at[jnp.clip((laplacian(u) * 2).astype(jnp.int32), 0, 7)].add(1.0), ["histogram", "stencil"]),
        (lambda u: jnp.argmax(rolled(u)), ["reduce", "stencil"]),  # of the grid as one row, which is a reshape
    ],
)
def test_what_is_combined_is_a_stencil(fn: Any, expected: list[str]) -> None:
    assert kinds(fn, BIG) == expected
    same(jax.jit(fn)(BIG), jp.fuse(fn)(BIG), 1e-4)


WIDE = jnp.asarray(RNG.normal(size=(5, 9000)).astype(np.float32))  # rows longer than a piece of a reduction
PADDED: list[tuple[Any, Any]] = [(lambda u, m=m: jnp.sum((jnp.pad(u, 2, mode=m)[4:, 1:-3] - u) ** 2), BIG) for m in MODES]


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        *PADDED,
        (lambda u: jnp.max(jnp.abs(jnp.roll(u, 3, 1) - jnp.roll(u, -1, 0))), WIDE),
        (lambda u: (lambda d: (jnp.min(d), jnp.sum(d * d), jnp.prod(1 + d * 1e-3)))(u[1:, 2:] - u[:-1, :-2]), WIDE),
        (lambda u: jnp.sum(jnp.sqrt(jnp.diff(u, axis=0)[:, 1:] ** 2 + jnp.diff(u, axis=1)[1:] ** 2 + 1e-6)), BIG),
        (lambda u: sum(jnp.mean(g * g) for g in jnp.gradient(u)[:1]), BIG),
        (lambda u: jnp.sum(jnp.gradient(u)[0] ** 2 + jnp.gradient(u)[1] ** 2), BIG),
        (lambda u: jnp.sum((kept(u) - u) ** 2), BIG),
        (lambda u: jnp.sum((u[1:] - u[:-1]) ** 2 * jnp.arange(179.0)[:, None] * jnp.arange(250.0)), BIG),
        (lambda u: jnp.sum(u[:, 1:] - 2 * u[:, :-1], 1), WIDE),
        (lambda u: jnp.argmax(u[:, 1:] - u[:, :-1], 1), WIDE),
        (lambda x: jnp.argmin(jnp.abs(x[2:] - x[:-2])), WIDE.reshape(-1)),
        (lambda u: jnp.sum(jnp.diff(u.reshape(25, 40, 15, 3), axis=1) ** 2, (1, 2, 3)), WIDE.reshape(-1)),
        (lambda u: jnp.sum(jnp.diff(u.reshape(75, 200, 3), axis=1) ** 2), WIDE.reshape(-1)),
        (lambda u: jnp.sum((u[1:] - u[:-1]) ** 2), BIG.astype(jnp.bfloat16)),
        (lambda u: jnp.sum(u[1:] ^ u[:-1]), (BIG * 9).astype(jnp.int8)),
        (lambda u: jnp.any((u[1:] > 0) != (u[:-1] > 0)), BIG),
        (lambda u: jnp.sum((u[1:] - 1j * u[:-1]) ** 2), BIG.astype(jnp.complex64)),
    ],
)
def test_reductions_of_stencils(fn: Any, x: Any) -> None:
    assert set(kinds(fn, x)) == {"reduce of stencil"}
    same(jax.jit(fn)(x), jp.fuse(fn)(x), 1e-4)
    assert jax.tree.map(str, jp.fuse(fn)(x)) == jax.tree.map(str, jax.jit(jp.fuse(fn))(x))


def test_reductions_of_stencils_of_doubles(x64: None) -> None:
    x = jnp.asarray(np.asarray(BIG, np.float64))
    fn = lambda u: (jnp.sum((rolled(u) - u) ** 2), jnp.max(laplacian(u)))  # noqa: E731
    assert set(kinds(fn, x)) == {"reduce of stencil"}
    same(jax.jit(fn)(x), jp.fuse(fn)(x), 1e-13)


def energy(u: Any, scale: Any) -> Any:
    return jnp.sum((scale * rolled(u) - u) ** 2)


def test_reductions_of_stencils_transformed() -> None:
    batch = jnp.stack([BIG, BIG[::-1], BIG * 2])
    assert kinds(jax.vmap(energy, (0, None)), batch, 3.0) == ["reduce of stencil"]
    plain = jax.jit(energy)
    same(jax.vmap(plain, (0, 0))(batch, jnp.arange(3.0)), jax.vmap(jp.fuse(energy), (0, 0))(batch, jnp.arange(3.0)), 1e-4)
    same(jax.vmap(plain, (0, None))(batch, 3.0), jax.jit(jax.vmap(jp.fuse(energy), (0, None)))(batch, 3.0), 1e-4)
    same(jax.jvp(plain, (BIG, 3.0), (BIG, 1.0)), jax.jvp(jp.fuse(energy), (BIG, 3.0), (BIG, 1.0)), 1e-4)
    same(jax.grad(plain, (0, 1))(BIG, 3.0), jax.jit(jax.grad(jp.fuse(energy), (0, 1)))(BIG, 3.0), 1e-4, 1e-3)
    twice = lambda f: jax.jvp(jax.grad(f), (BIG, 3.0), (BIG, 0.0))  # noqa: E731
    same(twice(plain), twice(jp.fuse(energy)), 1e-4, 1e-3)


def test_reductions_of_stencils_elsewhere() -> None:
    """On GPUs, and over several devices, the grid is written; on its way to another process nothing is lost."""
    fn = jax.jit(jp.fuse(energy))
    assert "jaxprims_stencil_reduce" in fn.lower(BIG, 3.0).as_text()
    for_gpus = fn.trace(BIG, 3.0).lower(lowering_platforms=("cuda",)).as_text()
    assert "jaxprims_stencil_reduce" not in for_gpus and "jaxprims_stencil" in for_gpus and "jaxprims_reduce" in for_gpus
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.device_put(BIG, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
    same(fn(BIG, 3.0), fn(sharded, 3.0), 1e-4)
    allowed = [jax.export.DisabledSafetyCheck.custom_call(name) for name in jp.CUSTOM_CALL_TARGETS]
    text = jax.export.export(fn, disabled_checks=allowed)(BIG, 3.0).serialize()
    same(fn(BIG, 3.0), jax.export.deserialize(text).call(BIG, 3.0), 1e-7)
    explained = jp.explain(fn)(BIG, 3.0)
    assert "180 x 250 cells" in str(explained) and "reduce_sum of a stencil" in str(explained)


def test_what_others_want_too_is_made_twice_or_written() -> None:
    def both(u: Any) -> Any:
        d = u[1:] - u[:-1]
        return jnp.sum(d * d), jnp.cumsum(d, 0)

    assert "reduce of stencil" in kinds(both, BIG)
    same(jax.jit(both)(BIG), jp.fuse(both)(BIG), 1e-4)

    def dear(u: Any) -> Any:
        r = jnp.exp(rolled(u))
        return jnp.sum(r), r

    assert kinds(dear, BIG) == ["reduce", "stencil"]
    same(jax.jit(dear)(BIG), jp.fuse(dear)(BIG), 1e-4)


def test_differences_of_few_numbers_stay_in_their_reduction() -> None:
    x = jnp.asarray(RNG.normal(size=(40_000, 4)).astype(np.float32))

    def lengths(x: Any) -> Any:
        return jnp.sum(jnp.sum(jnp.diff(x, axis=1) ** 2, 1) * x[:, 0])

    assert kinds(lengths, x) == ["reduce"]
    same(jax.jit(lengths)(x), jp.fuse(lengths)(x), 1e-4)


def test_gradients_of_energies() -> None:
    def energy(u: Any) -> Any:
        return jnp.sum(jnp.diff(u, axis=0) ** 2) + jnp.sum(jnp.diff(u, axis=1) ** 2)

    expected = jax.jit(jax.value_and_grad(energy))(BIG)
    same(expected, jax.jit(jax.value_and_grad(jp.fuse(energy)))(BIG), 1e-4)
    same(expected, jp.fuse(jax.value_and_grad(energy))(BIG), 1e-4)


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


@pytest.mark.parametrize("name", LOOPS)
def test_steps(name: str) -> None:
    found = inside(LOOPS[name], U)
    assert len(found) == 1 and "several steps to a pass" in found[0]
    same(jax.jit(LOOPS[name])(U), jp.fuse(LOOPS[name])(U), 1e-5)


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
@examples(40)
def test_random_programs(drawn: tuple[list[tuple[Any, ...]], int]) -> None:
    program, m = drawn
    u = jnp.asarray(np.random.default_rng(m).normal(size=(7, m)).astype(np.float32))
    same(jax.jit(lambda u: _run(program, u))(u), jp.fuse(lambda u: _run(program, u))(u), 1e-5, 1e-6)


@given(programs(), st.sampled_from([None, 1]))
@example(([("pad", "constant", (1, 1), 1), ("square",), ("pad", "constant", (1, 0), 0), ("roll", 1, 1)], 5), None)
@examples(30)
def test_random_reductions(drawn: tuple[list[tuple[Any, ...]], int], axis: int | None) -> None:
    program, m = drawn
    u = jnp.asarray(np.random.default_rng(m).normal(size=(7, m)).astype(np.float32))

    def reduced(u: Any) -> Any:
        x = _run(program, u)
        return jnp.sum(x * x, axis), jnp.max(x, axis)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrite, "why_not", lambda body: None)
        got = jp.fuse(reduced)(u)
    same(jax.jit(reduced)(u), got, 1e-4, 1e-6)


def test_all_pairs_are_no_stencil() -> None:
    """XLA makes the distances of all pairs in the loop that sums them: nothing is written."""

    def energy(x: Any) -> Any:
        return 0.5 * jnp.sum(1 / (jnp.sum((x[:, None] - x[None]) ** 2, -1) + 0.5))

    x = jnp.asarray(np.random.default_rng(5).normal(size=(1800, 3)).astype(np.float32))
    assert "stencil" not in str(jp.explain(jp.fuse(energy))(x))
    plain, ours = (jax.jit(f).lower(x).compile().memory_analysis().temp_size_in_bytes for f in (energy, jp.fuse(energy)))
    assert ours <= plain
    np.testing.assert_allclose(jp.fuse(energy)(x), jax.jit(energy)(x), rtol=1e-5)
