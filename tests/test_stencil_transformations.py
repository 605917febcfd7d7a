"""Stencils under vmap, control flow, sharding, export, threads; their plans in words; random ones."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from exports import called_elsewhere, export
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import assert_no_communication, mesh
from references import assert_close, wide
from stencil_cells import NEAR, assert_same, curved, floats, integers, turned, wave
from stencil_reference import BOUNDARIES, stencil

import jaxprims as jp
from jaxprims.targets.cpu.plans import StencilPlan
from jaxprims.targets.plans import forced

# --- vmap ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("boundary", ["wrap", "valid", ("keep", "reflect")])
def test_vmap(boundary: Any) -> None:
    """Over what changes, what does not, captured arrays; from any axis; nested: as if each member were alone."""
    u, v, speed = integers(3, 8, 21), integers(3, 8, 21, seed=1), integers(2, 8, 21, seed=2)
    table = integers(2, 5, seed=3)

    def f(u: Any, v: Any, s: Any, table: Any) -> Any:
        g = lambda a, b, w: (wave(a, b, w)[0] + jnp.asarray(table)[a[0, 0] & 3], b[1, 0])  # noqa: E731
        return jp.stencil(g, (u, v), constants=s, boundary=boundary, steps=3)

    @jax.jit
    def run(u: Any, v: Any, s: Any, t: Any) -> list[Any]:
        return [
            jax.vmap(f, (0, 0, None, None))(u, v, s[0], t[0]),
            jax.vmap(f, (-1, None, None, None))(jnp.moveaxis(u, 0, -1), v[0], s[0], t[0]),
            jax.vmap(f, (None, None, 0, None))(u[0], v[0], s, t[0]),
            jax.vmap(f, (None, None, None, 0))(u[0], v[0], s[0], t),
            jax.vmap(lambda u, v: jax.vmap(lambda s, t: f(u, v, s, t), out_axes=-1)(s, t))(u, v),
        ]

    def one(i: int, j: int, k: int, m: int) -> Any:
        t = table[m]
        g = lambda a, b, w: (wave(a, b, w)[0] + t[a[0, 0] & 3], b[1, 0])  # noqa: E731
        return stencil(g, [u[i], v[j]], boundary, constants=[speed[k]], steps=3)

    members = [
        [one(i, i, 0, 0) for i in range(3)],
        [one(i, 0, 0, 0) for i in range(3)],
        [one(0, 0, k, 0) for k in range(2)],
        [one(0, 0, 0, m) for m in range(2)],
    ]
    *got, nested = run(u, v, speed, table)
    for g, rows in zip(got, members, strict=True):
        assert_same(list(g), [np.stack(leaf) for leaf in zip(*rows, strict=True)])
    for i in range(3):
        for k in range(2):
            assert_same([x[i, ..., k] for x in nested], one(i, i, k, k))


def test_vmap_of_one_step() -> None:
    """Arrays that have no batch axis are not repeated; arrays without cells; an empty batch; cells with positions."""
    x, w = integers(4, 30), integers(30, seed=1)
    f = lambda a, at, c: a[-1] * c[2] + at[0] + c[0]  # noqa: E731
    run = jax.vmap(lambda x, w: jp.stencil(f, (x, jp.positions), constants=w, boundary="symmetric"), (0, None))
    wanted = [stencil(f, [row], "symmetric", constants=[w], places=True)[0] for row in x]
    assert_same(jax.jit(run)(x, w), np.stack(wanted))
    assert run(x[:0], w).shape == (0, 30)
    assert jax.vmap(lambda x: jp.stencil(NEAR[1], x, steps=2))(jnp.zeros((3, 0))).shape == (3, 0)
    wide = integers(2, 3, 9, 5)
    got = jax.vmap(lambda x: jp.stencil(NEAR[1], x, axes=1, boundary="wrap"), in_axes=1)(wide)
    for k in range(3):
        rows = np.moveaxis(wide[:, k], 1, 0)
        assert_same(got[k], np.ascontiguousarray(np.moveaxis(stencil(NEAR[1], [rows], "wrap", rank=1)[0], 0, 1)))


@pytest.mark.cover(2)
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_lines_under_vmap_are_a_grid(boundary: str) -> None:
    """One grid, with the bits of each line by itself; positions; again under vmap; gradients."""
    x = floats(3, 5, 70)
    f = lambda a, at: 0.5 * a[-2] + a[1] * (1 + at[0])  # noqa: E731

    def run(x: Any) -> Any:
        mode = "valid" if boundary == "keep" else boundary  # which wants results like xs
        return jp.stencil(f, (x, jp.positions), boundary=mode)

    (call,) = jp.explain(jax.vmap(run))(x[0]).calls
    assert "5 x" in str(call) and "batch" not in str(call)
    assert_same(jax.jit(jax.vmap(run))(x[0]), np.stack([run(row) for row in x[0]]))
    assert_same(jax.vmap(jax.vmap(run))(x), np.stack([[run(row) for row in rows] for rows in x]))
    curve = lambda a: 0.8 * a[0] * a[-1] + 0.3 * a[2]  # noqa: E731
    lines = lambda x: jp.stencil(curve, x, boundary=boundary, steps=3)  # noqa: E731
    assert_close(jax.vmap(lines)(x[0]), np.stack([np.asarray(lines(row)) for row in x[0]]), 1e-6)
    loss = lambda x: jnp.sum(lines(x) ** 2)  # noqa: E731
    assert_close(jax.vmap(jax.grad(loss))(x[0]), np.stack([np.asarray(jax.grad(loss)(row)) for row in x[0]]), 1e-5)
    assert_close(jax.grad(lambda x: jax.vmap(loss)(x).sum())(x[0]), jax.vmap(jax.grad(loss))(x[0]), 1e-5)


@pytest.mark.strategies
def test_small_members_of_a_batch() -> None:
    """A thousand lines with an array that all of them read are XLA's; longer ones, or several steps, are not."""

    def strategy(n: int, steps: int = 1) -> str:
        run = jax.vmap(lambda x, w: jp.stencil(lambda a, b: a[-1] * b[0], x, constants=w, steps=steps), (0, None))
        x = jax.ShapeDtypeStruct((1000, n), jnp.float32)
        return str(jp.explain(run)(x, jax.ShapeDtypeStruct((n,), jnp.float32)).calls[0])

    assert "small members" in strategy(64)
    assert "small members" not in strategy(64, steps=10) + strategy(600)


def test_control_flow_and_modes_of_jax() -> None:
    x = floats(6, 20)
    wanted = stencil(curved, [x.astype(np.float64)], "edge", steps=6)[0]
    step = lambda x: jp.stencil(curved, x, steps=2)  # noqa: E731
    assert_close(jax.jit(lambda x: jax.lax.scan(lambda x, _: (step(x), None), x, None, length=3)[0])(x), wanted, 1e-5)
    assert_close(
        jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: step(x), x), donate_argnums=0)(jnp.array(x)), wanted, 1e-5
    )
    inside = jax.vmap(jax.jit(lambda x: jax.lax.scan(lambda x, _: (jax.jit(step)(x), x[0, 0]), x, None, length=3)[0]))
    assert_close(inside(jnp.stack([2 * x, x]))[1], wanted, 1e-5)
    assert_close(
        jax.jit(lambda x, b: jax.lax.cond(b, step, lambda x: x, x))(x, True), stencil(curved, [wide(x)], "edge", steps=2)[0], 1e-5
    )
    assert jax.eval_shape(step, jax.ShapeDtypeStruct((3, 4), jnp.float32)) == jax.ShapeDtypeStruct((3, 4), jnp.float32)
    with jax.disable_jit():
        assert_close(jp.stencil(curved, x, steps=6), wanted, 1e-5)
    with jax.debug_nans(True):
        assert_close(jp.stencil(curved, x, steps=6), wanted, 1e-5)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for boundary in BOUNDARIES:
            got = jp.stencil(lambda a, at: a[0, 1] + a[1, 0], (x, jp.positions), boundary=boundary, steps=2)
            assert_close(got, stencil(lambda a, at: a[0, 1] + a[1, 0], [x], boundary, steps=2, places=True)[0], 1e-5)


def test_donated_and_kept() -> None:
    """A donated array is not read once it is written; one that is not donated stays."""
    x = integers(300, 70)
    given = jnp.array(x)
    run = jax.jit(lambda x: jp.stencil(NEAR[2], x, steps=3, boundary="wrap"), donate_argnums=0)
    keep = jax.jit(lambda x: (jp.stencil(NEAR[2], x, boundary="keep"), x + 1))
    (wanted,) = stencil(NEAR[2], [x], "wrap", steps=3)
    kept, more = keep(given)
    assert_same(run(given), wanted)
    assert_same((kept, more), (*stencil(NEAR[2], [x], "keep"), x + 1))


def test_threads() -> None:
    """Calls from many threads at once, of one function and of others that are compiled meanwhile."""
    x = integers(60, 50)
    wanted = {n: stencil(NEAR[2], [x], "edge", steps=n)[0] for n in range(4)}

    def work(k: int) -> None:
        for n in range(4):
            got = jp.stencil(NEAR[2], x, steps=n)
            own = jp.stencil(lambda a: a[0, k] + k, x, boundary="wrap")
            assert_same((got, own), (wanted[n], np.roll(x, -k, 1) + np.int32(k)))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


# --- devices -------------------------------------------------------------------------------------------------------------------


def test_batch_axes_are_split_without_communication() -> None:
    m = mesh(8)
    split = NamedSharding(m, P("x"))
    x = integers(16, 9, 20)
    f = jax.vmap(lambda x: jp.stencil(NEAR[2], x, steps=3, boundary="wrap"))
    compiled = jax.jit(f, in_shardings=split).lower(x).compile()
    assert_no_communication(compiled)
    got = compiled(jax.device_put(x, split))
    assert not got.sharding.is_fully_replicated
    assert_same(got, np.stack([stencil(NEAR[2], [row], "wrap", steps=3)[0] for row in x]))
    rows = jax.jit(lambda x: jp.stencil(NEAR[1], x, axes=1), in_shardings=split).lower(x).compile()
    assert_no_communication(rows)
    # an axis of the grid that is sharded: right, whatever is moved
    whole = jax.jit(lambda x: jp.stencil(NEAR[3], x, steps=2), in_shardings=split)(x)
    assert_same(whole, *stencil(NEAR[3], [x], "edge", steps=2))


SHARDED = ("edge", "wrap", "reflect", "symmetric", "constant", "keep")


@pytest.mark.cover(2)
@pytest.mark.parametrize("boundary", SHARDED)
def test_along_sharded_axes(boundary: str) -> None:
    """Two arrays and a constant, with positions; more steps than one exchange of halos serves; on one axis and on two."""
    u, v, speed = (integers(32, 24, seed=k) for k in range(3))
    f = lambda a, b, at, w: (wave(a, b, w)[0], wave(a, b, w)[1] + at[0] - at[1])  # noqa: E731
    second = SHARDED[SHARDED.index(boundary) - 1]
    cases: list[Any] = [(mesh(8), P("x"), "x", 9), (mesh(2, 4), P("x", "y"), ("x", "y"), 5), (mesh(4, 2), P("x"), ("x", None), 1)]
    for m, spec, names, steps in cases:

        def local(u: Any, v: Any, s: Any) -> Any:
            return jp.stencil(
                f, (u, v, jp.positions), constants=s, boundary=(boundary, second), steps=steps, axis_name=names, fill_value=5
            )

        got = jax.jit(jax.shard_map(local, mesh=m, in_specs=(spec,) * 3, out_specs=spec))(u, v, speed)
        whole = stencil(
            lambda a, b, at, w: f(a, b, at, w), [u, v], (boundary, second), constants=[speed], steps=steps, places=True, fill=5
        )
        assert_same(list(got), whole)


@pytest.mark.dear
def test_sharded_in_other_ways() -> None:
    """Axes in another order, cells, replicated and captured arrays, traced steps; gradients."""
    x, w = floats(3, 16, 24), floats(16, 24, seed=1)
    m = mesh(4, 2)
    f = lambda a, c: 0.5 * a[1, 0] * c[0, -1] + 0.25 * a[-1, 2]  # noqa: E731
    spec = P(None, "x", "y")

    def local(x: Any, w: Any, n: Any) -> Any:
        return jp.stencil(f, x, axes=(-1, -2), constants=w, steps=n, axis_name=("y", "x"))

    got = jax.jit(jax.shard_map(local, mesh=m, in_specs=(spec, P("x", "y"), P()), out_specs=spec))(x, w, 11)
    for g, row in zip(got, x, strict=True):
        assert_close(g, stencil(f, [wide(row).T], "edge", constants=[wide(w).T], steps=11)[0].T, 1e-5)
    scales = floats(8)

    def other(x: Any, scale: Any) -> Any:
        return jp.stencil(lambda a: a[1] * scale[0] + a[-1], x, boundary="wrap", steps=2, axis_name="x")

    got = jax.jit(jax.shard_map(other, mesh=mesh(8), in_specs=(P("x"), P("x")), out_specs=P("x")))(x[0].ravel(), scales)
    assert got.shape == (16 * 24,)
    for boundary in ("wrap", "reflect", "keep"):

        def loss(x: Any, w: Any, local: bool = True) -> Any:
            g = lambda x, w: jp.stencil(  # noqa: E731
                f, x, constants=w, steps=2, boundary=boundary, axis_name="x" if local else None
            )
            run = jax.shard_map(g, mesh=mesh(4), in_specs=(P("x"), P("x")), out_specs=P("x")) if local else g
            return jnp.sum(jnp.sin(run(x, w)))

        got = jax.jit(jax.grad(loss, (0, 1)))(x[0], w)
        wanted = jax.jit(jax.grad(lambda x, w: loss(x, w, False), (0, 1)))(x[0], w)
        assert_close(got, jax.tree.map(np.asarray, wanted), 1e-4)


def test_cells_left_out_on_another_axis() -> None:
    """Than that which is sharded: also of constants, between two exchanges of halos."""
    x, w = integers(16, 60), integers(16, 60, seed=1)
    f = lambda a, at, c: a[1, 2] - c[-1, 1] * a[0, -1] + at[1] + at[0] * c[0, -2]  # noqa: E731
    for steps, boundary in ((1, ("edge", "valid")), (11, ("wrap", "valid")), (11, ("keep", "valid")), (30, ("edge", "valid"))):
        local = lambda x, w: jp.stencil(  # noqa: E731
            f, (x, jp.positions), constants=w, boundary=boundary, steps=steps, axis_name="x"
        )
        got = jax.jit(jax.shard_map(local, mesh=mesh(8), in_specs=(P("x"), P("x")), out_specs=P("x")))(x, w)
        (wanted,) = stencil(f, [x], boundary, constants=[w], steps=steps, places=True)
        assert got.shape == wanted.shape
        if wanted.size:
            assert_same(got, wanted)


def test_errors_of_sharding() -> None:
    x = np.zeros((16, 4), np.float32)

    def run(boundary: Any, name: Any, f: Any = lambda a: a[3, 0]) -> Any:
        local = lambda x: jp.stencil(f, x, boundary=boundary, axis_name=name)  # noqa: E731
        return jax.jit(jax.shard_map(local, mesh=mesh(8), in_specs=P("x"), out_specs=P("x")))(x)

    with pytest.raises(ValueError, match='boundary must not be "valid" on an axis with axis_name'):
        run(("valid", "edge"), "x")
    with pytest.raises(
        ValueError, match="axis_name: f reads 3 cells away along axis 0 of the grid, of which a device has only 2"
    ):
        run("edge", "x")
    with pytest.raises(ValueError, match=r"axis_name must be one name, of the first axis, or one .or None. for each of 2"):
        run("edge", ("x",))


# --- artifacts and words -------------------------------------------------------------------------------------------------------


def calls(x: Any, w: Any) -> list[Any]:
    wrapped = jp.stencil(lambda a, c: a[1, 0] * c[0, 1] + a[0, -1], x, constants=w, boundary=("wrap", "keep"), steps=5)
    return [wrapped, jp.stencil(lambda a, at: a[1, 1] + at[0], (x, jp.positions), boundary="valid")]


@pytest.mark.dear
def test_export(tmp_path: Path) -> None:
    """An exported function runs in a process that has never traced it; with symbolic sizes too."""
    x, w = integers(9, 20), integers(9, 20, seed=1)
    n, d = jax.export.symbolic_shape("n, d")
    both = lambda x: [jp.stencil(NEAR[2], x, steps=3), jp.stencil(NEAR[2], x, boundary="constant")]  # noqa: E731
    symbolic = export(jax.jit(both))(jax.ShapeDtypeStruct((n, d), jnp.int32))
    grids = [np.resize(x, shape) for shape in ((9, 20), (1, 1), (3, 70))]
    (fixed,), several = called_elsewhere(
        tmp_path, (export(jax.jit(calls))(x, w), [(x, w)]), (symbolic, [(grid,) for grid in grids])
    )
    assert_same(fixed, calls(x, w))
    for grid, got in zip(grids, several, strict=True):
        assert_same(got, [*stencil(NEAR[2], [grid], "edge", steps=3), *stencil(NEAR[2], [grid], "constant")])


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (2, 0)])
def test_symbolic_sizes_of_axes_beside_the_grid(axes: tuple[int, ...]) -> None:
    """However many numbers of a cell lie side by side."""
    shape = jax.export.symbolic_shape("a, b, c")
    f = NEAR[len(axes)]
    step = jax.jit(lambda x: jp.stencil(f, x, axes=axes, boundary="wrap", steps=2))
    exported = export(step)(jax.ShapeDtypeStruct(shape, jnp.int32))
    for sizes in ((3, 4, 5), (1, 2, 70)):
        x = integers(*sizes)
        np.testing.assert_array_equal(exported.call(x), step(x))


def test_explain() -> None:
    f = lambda x: jp.stencil(curved, x, boundary=("wrap", "keep"), steps=20)  # noqa: E731
    (call,) = jp.explain(f)(jax.ShapeDtypeStruct((2000, 3000), jnp.float32)).calls
    text = str(call)
    assert "stencil" in text and "2000 x 3000 cells, 4 reads, wrap, nothing, 20 steps" in text
    assert "steps to a pass, tiles of" in text and "a pass through memory makes" in text
    (small,) = jp.explain(lambda x: jp.stencil(turned, x))(jnp.zeros(7)).calls
    assert "7 cells, 3 reads, edge" in str(small) and "each cell is read from memory once" in str(small)
    (many,) = jp.explain(jax.vmap(lambda x: jp.stencil(curved, x)))(jnp.zeros((4, 7, 9))).calls
    assert "(a batch of 4)" in str(many)
    (lines,) = jp.explain(jax.vmap(lambda x: jp.stencil(turned, x)))(jnp.zeros((4, 7))).calls
    assert "4 x 7 cells" in str(lines)


# --- random stencils -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    shape: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...]  # of the array, then of the constant
    boundary: tuple[str, ...]
    steps: int
    dtype: str
    plan: StencilPlan
    cells: int
    coordinates: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 40 if a == rank - 1 else 7)) for a in range(rank))
    offset = st.tuples(*(st.integers(-3, 3) for _ in range(rank)))
    offsets = tuple(draw(st.lists(offset, min_size=2, max_size=6)))
    boundary = tuple(draw(st.sampled_from(BOUNDARIES)) for _ in range(rank))
    side = st.sampled_from([1, 2, 3, 5, 100])
    plan = StencilPlan(draw(st.integers(1, 9)), (draw(side), draw(side), draw(side)), draw(st.booleans()))
    dtype = draw(st.sampled_from(["int8", "uint16", "int32", "uint32"]))
    return Case(
        shape, offsets, boundary, draw(st.integers(0, 9)), dtype, plan, draw(st.sampled_from([0, 0, 1, 3])), draw(st.booleans())
    )


@given(cases())
@examples(25)
@pytest.mark.dear
def test_random_stencils(case: Case) -> None:
    """Neighbourhoods, grids, boundaries, steps, dtypes, cells, plans: integers, bit for bit."""
    rng, rank = np.random.default_rng(0), len(case.shape)
    cell = (case.cells,) * (case.cells > 0)
    x, c = (rng.integers(0, 100, (*case.shape, *cell)).astype(case.dtype) for _ in range(2))
    half = len(case.offsets) // 2
    one = np.asarray(1, case.dtype)

    def f(a: Any, *rest: Any) -> Any:
        total = sum((k * one + one) * a[o] for k, o in enumerate(case.offsets[:half]))
        w = rest[-1]
        total = total + sum((k * one - one) * w[o] for k, o in enumerate(case.offsets[half:]))
        if case.coordinates:
            at = sum(rest[0]) % 100
            total = total + at.astype(case.dtype).reshape(*np.shape(at), *(1,) * (len(cell) if np.ndim(at) else 0))
        return total

    xs = (x, jp.positions) if case.coordinates else x
    options: dict[str, Any] = {"boundary": case.boundary, "steps": case.steps}
    with forced(case.plan):
        got = jp.stencil(f, xs, axes=tuple(range(rank)), constants=c, fill_value=3, **options)
    (wanted,) = stencil(f, [x], constants=[c], fill=3, rank=rank, places=case.coordinates, **options)
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    if wanted.size:
        assert_same(got, wanted)
