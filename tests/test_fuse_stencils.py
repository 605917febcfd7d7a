"""``fuse``: stencils in plain code, found and right: against the function itself, with every border and transformation."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import same
from fused_stencils import BIG, CUBE, MODES, RNG, U, check, everywhere, inside, kept, kinds, laplacian, rolled, stencils
from jax import lax

import jaxprims as jp
from jaxprims.fusion.call import Fused
from jaxprims.fusion.stencils.cells import Cells

__all__ = ["everywhere"]  # fixtures that every test uses

X = jnp.asarray(RNG.normal(size=400).astype(np.float32))


# --- what is found --------------------------------------------------------------------------------------------------------------


def test_rolls_are_one_array_that_wraps_around() -> None:
    found = check(rolled, U)
    assert len(found.layout.sources) == 1 and len(found.layout.places) == 5 and found.layout.modes == ["wrap"]


def test_what_is_read_in_more_ways_than_can_be_counted() -> None:
    """Each time what was made before is read twice, and borders divide it into pieces: 2 to the 24 ways lead to the array."""

    def products(x: Any) -> Any:
        for _ in range(24):
            x = x * jnp.roll(x, 1) * 0.3 + x
        return x

    same(jax.jit(products)(X / 8), jax.jit(jp.fuse(products))(X / 8), 1e-4)


def test_slices_are_reads_within() -> None:
    found = check(laplacian, U)
    assert len(found.layout.sources) == 1 and found.layout.modes == []
    check(lambda x: x[2:] - 2 * x[1:-1] + x[:-2], X)
    check(lambda u: jnp.diff(u, 2, axis=0) * 2, U)


@pytest.mark.cover(7)
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


@pytest.mark.cover(4)
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


def test_coordinates() -> None:
    check(lambda u: jnp.where(jnp.arange(13)[:, None] % 2 == jnp.arange(50) % 2, jnp.roll(u, 1, 0) + u, u), U)
    check(lambda u: jnp.roll(u, 1, 1) * lax.broadcasted_iota(jnp.float32, u.shape, 0) - u, U)


def test_axes_in_other_orders() -> None:
    check(lambda u: rolled(u.T), U)
    check(lambda u: rolled(u).T * 2, U)
    check(lambda a: a[1:] - a[:-1] + a[:1], CUBE)
    check(lambda a: jnp.roll(a, 1, 2) - jnp.roll(a, (1, 2), (0, 1)), CUBE)
    check(lambda u: (lambda v: v[1:, 1:] - v[:-1, :-1])(jnp.stack([u, u + 1, u * 2], -1)), U)  # lanes


def test_numbers_of_channels() -> None:
    """What all cells of a row read is laid out along it: vectors would read it lane by lane."""
    pixels, bias = jnp.stack([U, U * 2, U + 1], -1), jnp.asarray([1.0, 2.0, 4.0])
    for numbers in (bias, U[:, :1, None] * bias):

        def change(u: Any, n: Any) -> Any:
            return jnp.roll(u, 1, 0) * n - jnp.roll(u, 1, 1)

        check(change, pixels, numbers)
        (found,) = stencils(change, pixels, numbers)
        assert found.layout.lanes == 1
        assert [s.axes[1].size for s in found.layout.sources] == [50, 50]

    def steps(u: Any, n: Any) -> Any:
        return lax.fori_loop(0, 5, lambda _, u: (jnp.roll(u, 1, 0) + jnp.roll(u, 1, 1)) * n / 9, u)

    same(jax.jit(steps)(pixels, bias), jp.fuse(steps)(pixels, bias))
    assert "several steps" in inside(steps, pixels, bias)[0]


@pytest.mark.dear
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


@pytest.mark.cpu  # what XLA fuses elsewhere is another affair
@pytest.mark.parametrize("loss, share", [(_bilateral, 0.3), (_corners, 1.0), (_sharpened, 0.3)])
@pytest.mark.cover(1)
@pytest.mark.dear
def test_what_gradients_share_is_written_as_far_as_it_pays(loss: Any, share: float) -> None:
    """Of sums of exponentials these, not every exponential; of products of differences what is read at neighbours."""
    u = jnp.asarray(np.random.default_rng(3).random((300, 300)), jnp.float32)
    plain, fused = jax.jit(jax.grad(loss)), jax.jit(jp.fuse(jax.grad(loss)))
    temporaries = [f.lower(u).compile().memory_analysis().temp_size_in_bytes for f in (plain, fused)]
    assert temporaries[1] <= share * temporaries[0] + 2**16
    same(plain(u), fused(u), 1e-4, 1e-5)


def test_what_a_cell_is_made_of_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many plans have the same equations and reads."""
    seen, root = list[Any](), Cells.root

    def noted(self: Cells, var: Any) -> Any:
        seen.append((id(self.graph), var, self.cut))
        return root(self, var)

    monkeypatch.setattr(Cells, "root", noted)
    stencils(jax.grad(_sharpened), BIG)
    assert len(seen) == len(set(seen)) > 2


def test_nothing_is_looked_at_where_nothing_is_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    def normalised(u: Any) -> Any:
        return jnp.sum(jnp.tanh((u - u.mean()) / u.std()))

    monkeypatch.setattr(Cells, "root", lambda self, var: pytest.fail("looked at"))
    Fused(jax.make_jaxpr(jax.grad(normalised))(BIG)).rewritten  # noqa: B018


@pytest.mark.parametrize("transformed", [lambda f: f, lambda f: jax.grad(lambda x: jnp.sum(f(x)))])
def test_long_chains_are_not_looked_through_again_and_again(transformed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known to be more than a kernel holds is part of all that is made of it."""
    looked, made = [0], Cells._made

    def noted(self: Cells, *args: Any) -> Any:
        looked[0] += 1
        return made(self, *args)

    def values(levels: int) -> int:
        def products(x: Any) -> Any:
            for _ in range(levels):
                x = x * jnp.roll(x, 1) * 0.5
            return x

        looked[0] = 0
        Fused(jax.make_jaxpr(transformed(products))(BIG[0])).rewritten  # noqa: B018
        return looked[0]

    monkeypatch.setattr(Cells, "_made", noted)
    assert 0 < values(40) < 2.5 * values(20)


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
    assert found(kept, 300, 300) == 1 and found(rolled, 10_000, 10) == 0
    # rows whose ends XLA chooses, and of which a kernel has to begin each
    padded_rows = lambda u: laplacian(jnp.pad(u, ((0, 0), (1, 1)), "edge"))  # noqa: E731
    assert found(rolled, 8000, 24) == 0 and found(rolled, 1000, 130) == 1
    assert found(padded_rows, 5000, 20) == 0 and found(lambda u: laplacian(jnp.pad(u, 1)), 1000, 100) == 1
    assert found(lambda u: sum(jnp.roll(u, s, k) for k in range(3) for s in (1, -1)), 64, 64, 64) == 1
    for *shape, several in (2000, 50, False), (1000, 130, True), (3000, 200, True):
        (line,) = inside(lambda u: lax.fori_loop(0, 5, lambda _, v: rolled(v), u), jax.ShapeDtypeStruct(shape, jnp.float32))
        assert ("several steps" in line) == several
    small, large = (jax.ShapeDtypeStruct((n, n), jnp.float32) for n in (100, 200))
    for size, several in (small, False), (large, True):
        (line,) = inside(lambda u: lax.fori_loop(0, 5, lambda _, v: rolled(v), u), size)
        assert ("several steps" in line) == several
    assert "left to XLA" in str(jp.explain(jp.fuse(laplacian))(large))
    # what has been weighed is a kernel
    box = lambda u, how: lax.reduce_window(u, 0.0, lax.add, (7, 7), (1, 1), how)  # noqa: E731
    inner, padded = (functools.partial(box, how=how) for how in ("VALID", "SAME"))
    assert found(inner, 70, 70) == 1 and found(padded, 70, 70) == 1
    assert "custom_call @jaxprims" in jax.jit(jp.fuse(inner)).lower(jnp.ones((70, 70))).as_text()
    # rows of bytes that fill no vector, in one step and in each of several

    def around(u: Any) -> Any:
        return functools.reduce(jnp.maximum, [jnp.roll(u, (i, j), (1, 2)) for i in (-1, 0, 1) for j in (-1, 0, 1)])

    for dtype, row, kernels in (jnp.uint8, 53, 0), (jnp.uint8, 100, 1), (jnp.float32, 53, 1):
        grid = jax.ShapeDtypeStruct((64, 52, row), dtype)
        assert len(stencils(around, grid)) == kernels
        (line,) = inside(lambda u: lax.fori_loop(0, 3, lambda _, v: around(v), u), grid)
        assert ("stencil over" in line) == bool(kernels)
    for shape in (300, 300, 2), (1000, 30, 3):  # numbers behind the grid's axes make rows longer
        (line,) = inside(lambda u: lax.fori_loop(0, 5, lambda _, v: rolled(v), u), jax.ShapeDtypeStruct(shape, jnp.float32))
        assert "several steps" in line
    energy = lambda u: jnp.sum((u[1:] - u[:-1]) ** 2)  # noqa: E731
    assert found(energy, 300, 300) == 1 and found(jax.grad(energy), 300, 300) == 0
    box = lambda u: jnp.sum(lax.reduce_window(u, 0.0, lax.add, (3, 3), (1, 1), "SAME") ** 2)  # noqa: E731
    large = [jax.ShapeDtypeStruct((n, n), jnp.float32) for n in (300, 2000)]
    assert [kinds(box, x) for x in large] == [["reduce of stencil"]] * 2  # for several devices
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "device_count", lambda: 1)
        assert [kinds(box, x) for x in large] == [["reduce", "stencil"], ["reduce of stencil"]]  # in caches, and in memory
    assert kinds(energy, large[0]) == ["reduce of stencil"]
    assert found(jax.grad(lambda u: energy(u) ** 3), 200, 200) == 0  # the sum is wanted, and so are its terms
    assert found(jax.grad(lambda u: energy(u) ** 3), 300, 300) == 1  # which are cheap to make again


@pytest.mark.cover(2)
@pytest.mark.parametrize("theirs", ["itself", "wrap", "constant", "edge", "reflect", "symmetric", "inside"])
@pytest.mark.parametrize("own", ["wrap", "constant", "edge", "reflect", "keep"])
def test_steps_beside_what_has_another_boundary(own: str, theirs: str) -> None:
    """An array that stays, read beyond its ends as it is there: not as what steps change is."""
    u, v = (jnp.asarray(RNG.normal(size=(9, 44)).astype(np.float32) * 0.3) for _ in range(2))

    def three(x: Any, how: str, axis: int) -> list[Any]:
        n = x.shape[axis]
        if how == "itself":
            return [x, x, x]
        if how == "inside":
            return [jnp.concatenate([x[:1], x[:-1]], 0) if axis == 0 else x * 2, x, x]
        if how in ("wrap", "keep"):
            return [jnp.roll(x, 1, axis), x, jnp.roll(x, -1, axis)]
        padded = jnp.pad(x, [(int(a == axis),) * 2 for a in range(2)], mode=how)
        return [lax.slice_in_dim(padded, k, k + n, axis=axis) for k in range(3)]

    for axis in (0, 1):

        def step(u: Any, v: Any, axis: int = axis) -> Any:
            a, b = three(u, own, axis), three(v, theirs, axis)
            new = 0.3 * (a[0] - a[1] * b[2] + a[2]) + b[0] - b[2] * a[1]
            return u.at[1:-1, 1:-1].set(new[1:-1, 1:-1]) if own == "keep" else new

        for n in (2, 5):
            loop = lambda u, v, n=n, step=step: lax.fori_loop(0, n, lambda _, u: step(u, v), u)  # noqa: E731
            same(jax.jit(loop)(u, v), jp.fuse(loop)(u, v), 1e-4, 1e-5)


@pytest.mark.cover(2)
@pytest.mark.parametrize("reach", [1, 2])
@pytest.mark.parametrize("keep", [(0, 1), (1, 0), (1, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("mode", ["wrap", "constant", "edge"])
def test_steps_with_a_border_that_is_kept(mode: str, keep: tuple[int, int], reach: int) -> None:
    """On the axis along which cells are read, as far as that or less, and on the other one; of rows short enough to be lanes."""
    u = jnp.asarray(RNG.normal(size=(14, 33)).astype(np.float32))
    for axis, border in ((0, 0), (0, 1), (1, 0), (1, 1)):
        inner = tuple(slice(keep[0], u.shape[a] - keep[1]) if a == border else slice(None) for a in range(2))

        def step(u: Any, axis: int = axis, inner: Any = inner) -> Any:
            wide = jnp.pad(u, [(reach * (a == axis),) * 2 for a in range(2)], mode=mode)
            low, high = (lax.slice_in_dim(wide, k, k + u.shape[axis], axis=axis) for k in (0, 2 * reach))
            return u.at[inner].set((0.4 * low - 0.3 * high + 0.2 * u)[inner])

        loop = lambda u, step=step: lax.fori_loop(0, 4, lambda _, u: step(u), u)  # noqa: E731
        same(jax.jit(loop)(u), jp.fuse(loop)(u), 1e-4, 1e-5)
