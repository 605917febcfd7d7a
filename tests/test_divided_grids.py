"""Stencils on several devices under plain ``jit``: halos are exchanged, nothing is gathered, the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from divided_calls import RNG, blur, check, curved, heat, lopsided, with_gradient
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import mesh, moved
from references import assert_close

import jaxprims as jp


def test_neighbours_in_any_order_of_the_axes() -> None:
    """Along several axes of a mesh, the first the slowest, whichever the mesh has first: under ``jit``, and by name."""
    x = RNG.standard_normal((4, 64)).astype(np.float32)
    call = lambda x, n=None: jp.stencil(lopsided, x, boundary="wrap", steps=2, axis_name=(None, n))  # noqa: E731
    for sizes in ((4, 2), (2, 4)):
        for names in (("x", "y"), ("y", "x")):
            check(call, (x,), mesh(*sizes), P(None, names), 4 * 6)
            by_name = jax.shard_map(
                lambda x, n=names: call(x, n), mesh=mesh(*sizes), in_specs=P(None, names), out_specs=P(None, names)
            )
            assert_close(jax.jit(by_name)(x), np.asarray(call(x)), 1e-6)


def test_grids_that_shrink() -> None:
    """Differences of neighbours: a step that makes all cells, of which some are taken."""
    x = RNG.standard_normal((32, 64)).astype(np.float32)
    for f in (
        lambda x: jnp.sin(jp.stencil(lambda a: a[1, 0] * a[0, 1] - a[0, -2], x, boundary="valid")).sum(),
        lambda x: jnp.sin(jp.fuse(lambda x: x[2:, 1:] - x[:-2, :-1] * x[1:-1, 1:])(x)).sum(),
    ):
        for spec in (P("x", "y"), P(None, ("y", "x")), P("y")):
            check(f, (x,), mesh(4, 2), spec, 2 * 64)
    gradient = jax.grad(lambda x: jnp.sum(jnp.sin(jp.stencil(lambda a: a[1, 0] * a[0, 1], x, boundary="valid"))))
    check(gradient, (x,), mesh(4, 2), P("x", "y"), x.size)


@pytest.mark.strategies
@pytest.mark.parametrize("boundary", ["edge", "wrap", "symmetric", "constant", "keep"])
@pytest.mark.cover(1)
@pytest.mark.dear
def test_steps_that_read_to_one_side(boundary: str) -> None:
    """Left to XLA: the last device's first step has cells before it that it received and are not there, and loses none later."""
    x = RNG.integers(-4, 5, (24, 32)).astype(np.float32)
    for f in (lambda a: a[0, 2] - a[2, 0], lambda a: a[-1, -1] + a[0, 0]):
        for steps, spec in ((2, P("x", "y")), (3, P(None, "y")), (9, P("x"))):
            call = lambda x, f=f, steps=steps: jp.stencil(f, x, boundary=boundary, steps=steps)  # noqa: E731
            check(call, (x,), mesh(4, 2), spec, 32 * 8)
            gradient = jax.grad(lambda x, call=call: jnp.sum(jnp.sin(call(x) * 0.01)))
            check(gradient, (x,), mesh(4, 2), spec, 2 * x.size)  # XLA's


@pytest.mark.parametrize("spec", [P("x", "y"), P(None, "x"), P(("y", "x"), None), P(None, None)])
@pytest.mark.cover(1)
@pytest.mark.dear
def test_gradients_of_grids_that_shrink(spec: P) -> None:
    """Cotangents lie among those of all cells that devices make: only halos move."""
    grid = RNG.standard_normal((160, 256)).astype(np.float32)
    x = jax.device_put(grid, NamedSharding(mesh(4, 2), spec))

    def f(x: Any) -> Any:
        return jnp.sum(jnp.sin(jp.stencil(blur, x, boundary="valid"))) + jnp.sum(
            jp.stencil(blur, x, boundary=("valid", "wrap")) ** 2
        )

    compiled = jax.jit(jax.grad(f)).lower(x).compile()
    assert_close(compiled(x), np.asarray(jax.jit(jax.grad(f))(grid)), 1e-4)
    assert moved(compiled) <= 260
    twice = jax.jit(lambda x: jax.jvp(jax.grad(f), (x,), (x,))[1])
    assert_close(twice(x), np.asarray(twice(grid)), 1e-4)


@pytest.mark.cover(1)
@pytest.mark.parametrize(
    ("boundary", "steps"),
    [(b, n) for b in ("edge", "wrap", "reflect", "symmetric", "constant", "keep") for n in (1, 3, 11)] + [("valid", 1)],
)
@pytest.mark.dear
def test_grids_that_devices_do_not_divide(boundary: str, steps: int) -> None:
    """The last device has fewer cells than the others; nothing is gathered, forward and backward, of large grids and small."""
    large, small = (RNG.integers(-4, 5, s).astype(np.float32) for s in ((200, 136), (72, 80)))
    cosines = lambda y: jnp.sum(y * jnp.cos(jnp.arange(1.0 * y.size)).reshape(y.shape))  # noqa: E731
    for x, f, spec in (
        (large, curved, P("x", "y")),
        (large, lopsided, P("y", "x")),
        (small, heat, P("x", "y")),
        (small, lopsided, P(None, ("x", "y"))),
    ):
        call = lambda x, f=f: cosines(jp.stencil(f, x[3:, :-1] * 0.3, boundary=boundary, steps=steps))  # noqa: E731
        if x is large:
            check(jax.value_and_grad(lambda x, call=call: jnp.sin(call(x) * 1e-3)), (x,), mesh(4, 2), spec, 16 * 200)
        else:
            check(call, (x,), mesh(4, 2), spec, 16 * 200)
            check(jax.grad(lambda x, call=call: jnp.sin(call(x) * 1e-3)), (x,), mesh(4, 2), spec, x.size)  # XLA's


@pytest.mark.dear
def test_uneven_grids_of_more() -> None:
    """Coordinates around the ends, arrays with boundaries of their own, reductions, batches, captured arrays, far reads."""
    x = RNG.standard_normal((200, 136)).astype(np.float32)
    placed_f = lambda a, p: a[1, 0] * jnp.cos(p[0] * 0.1) + a[0, -1] * jnp.sin(p[1] * 0.1)  # noqa: E731
    roll, pad = jnp.roll, lambda x: jnp.pad(x, ((1, 1), (0, 0)))

    def summed(x: Any) -> Any:
        return jnp.sum(jp.fuse(lambda x: jnp.sum((roll(x, 1, 0) - pad(x)[2:]) ** 2, 1))(x) * jnp.arange(1.0 * x.shape[0]))

    def fused(x: Any) -> Any:
        return jnp.sum(jnp.sin(jp.fuse(lambda x: roll(x, 1, 0) * pad(x)[2:] - pad(x)[:-2])(x)))

    for f in (
        lambda x: jnp.sum(jnp.sin(jp.stencil(placed_f, (x, jp.positions), boundary="wrap", steps=3))),
        lambda x: jnp.sum(jnp.sin(jp.stencil(placed_f, (x, jp.positions), boundary="keep"))),
        fused,
        lambda x: jp.fuse(lambda x: jnp.sum((x[2:, 1:] - x[:-2, :-1]) ** 2))(x),
        lambda x: jp.fuse(lambda x: jnp.max(jnp.abs(roll(x, 2, 0) - roll(x, -3, 1))))(x),
        summed,
        lambda x: jnp.sum(jax.vmap(lambda s: jp.stencil(lambda a: s * a[1, 0] / (2 + a[0, -1] ** 2), x))(jnp.arange(3.0))),
    ):
        cut = lambda x, f=f: f(x[1:-2, 1:] * 0.5)  # noqa: E731
        if f is fused:
            check(cut, (x,), mesh(4, 2), P("x", "y"), 8 * 200)
        check(jax.value_and_grad(cut), (x,), mesh(4, 2), P("x", "y"), x.size if f is fused else 8 * 200)
    far = lambda x: jp.stencil(lambda a: a[60, 0] - a[0, -90], x[3:, 3:], boundary="wrap").sum(1)[:8]  # noqa: E731
    check(far, (x,), mesh(4, 2), P("x", "y"), x.size)
    of_scale = jax.grad(lambda s, x: jnp.sum(jp.stencil(lambda a: a[1, 0] / (a[0, -1] * s[0]), x[3:, 1:], boundary="wrap")))
    s, x = np.ones(1, np.float32), np.abs(x) + 1
    placed = jax.device_put(x, NamedSharding(mesh(4, 2), P("x", "y")))
    assert_close(jax.jit(of_scale)(s, placed), np.asarray(jax.jit(of_scale)(s, x)), 1e-4)


@pytest.mark.dear
def test_nothing_is_made_of_cells_that_are_not_wanted() -> None:
    """Beyond the last cell of "valid" neighbours would be alike: a derivative that is infinite there, times zero."""
    x = RNG.standard_normal(1 << 15).astype(np.float32)
    for f in (lambda a: 1 / (a[1] - a[0]), lambda a: jnp.sqrt((a[1] - a[0]) ** 2)):
        for cut in (0, 3):
            call = lambda x, f=f, cut=cut: jnp.sum(jnp.sin(jp.stencil(f, x[cut:], boundary="valid")))  # noqa: E731
            check(jax.grad(call), (x,), mesh(8), P("x"), 64)


@pytest.mark.cover(3)
@pytest.mark.parametrize("boundary", ["edge", "wrap", "reflect", "symmetric", "constant", "keep"])
def test_sharded_grids(boundary: str) -> None:
    """Halos are exchanged, nothing is gathered; the same bits as on one device."""
    x = RNG.standard_normal((32, 64)).astype(np.float32)
    for f, steps, spec in ((heat, 1, P("x", "y")), (lopsided, 3, P(None, ("x", "y"))), (heat, 11, P("y", None))):
        call = lambda x, f=f, steps=steps: jp.stencil(f, x, boundary=boundary, fill_value=2, steps=steps)  # noqa: E731
        placed = jax.device_put(x, NamedSharding(mesh(4, 2), spec))
        compiled = jax.jit(call).lower(placed).compile()
        assert "all-gather" not in compiled.as_text() and moved(compiled) <= 8 * 64
        np.testing.assert_array_equal(np.asarray(compiled(placed)), np.asarray(jax.jit(call)(x)))


@pytest.mark.cover(1)
@pytest.mark.parametrize("boundary", ["edge", "wrap", "reflect", "symmetric", "constant", "keep"])
@pytest.mark.dear
def test_gradients_of_sharded_grids(boundary: str) -> None:
    """Each device transposes what it does: what was received is sent back, what was read beyond an edge added within."""
    x = RNG.standard_normal((32, 64)).astype(np.float32)
    for f, steps, spec in ((curved, 1, P("x", "y")), (lopsided, 2, P(None, ("x", "y"))), (curved, 3, P("y", None))):
        call = lambda x, f=f, steps=steps: jnp.sum(jnp.sin(jp.stencil(f, x, boundary=boundary, steps=steps)))  # noqa: E731
        placed = jax.device_put(x, NamedSharding(mesh(4, 2), spec))
        compiled = jax.jit(jax.grad(call)).lower(placed).compile()
        assert "all-gather" not in compiled.as_text() and moved(compiled) <= 8 * 64
        assert_close(compiled(placed), np.asarray(jax.jit(jax.grad(call))(x)), 1e-5)


OF_GRIDS: dict[str, tuple[Callable[..., Any], list[P]]] = {
    "two arrays": (
        lambda x, y, c: jp.stencil(lambda a, b: a[0, 1] * b[1, 0] + a[-1, 0], (x[0], y), boundary="edge"),
        [P(None, "x", "y"), P("x", "y")],
    ),
    "captured": (lambda x, y, c: jp.stencil(lambda a: c[0] * a[0, 1] + c[1] * a[-1, 0] * a[0, 0], y), [P(), P("x", "y")]),
    "a batch": (lambda x, y, c: jax.vmap(lambda x: jp.stencil(curved, x, boundary="edge"))(x), [P("y", "x"), P()]),
    "one for a batch": (
        lambda x, y, c: jax.vmap(lambda x: jp.stencil(lambda a, b: c[1] * a[0, 1] * b[-1, 0], (x, y), boundary="edge"))(x),
        [P("y", "x"), P("x")],
    ),
    "lanes": (lambda x, y, c: jp.stencil(heat, x, axes=(0, 1), boundary="reflect"), [P("y", None, "x"), P()]),
    "gradients of a batch": (
        lambda x, y, c: jax.vmap(jax.grad(lambda x: jnp.sum(jp.stencil(curved, x, boundary="reflect") ** 2)))(x),
        [P(None, "x", "y"), P()],
    ),
}  # fmt: skip


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", OF_GRIDS)
def test_gradients_by_everything_that_a_stencil_reads(name: str) -> None:
    fn, specs = OF_GRIDS[name]
    args = [RNG.standard_normal(s).astype(np.float32) for s in ((4, 16, 32), (16, 32), (2,))]
    placed = [jax.device_put(x, NamedSharding(mesh(4, 2), s)) for x, s in zip(args, [*specs, P()], strict=True)]
    f = (lambda *xs: fn(*xs)) if name.startswith("gradients") else jax.grad(lambda *xs: jnp.sum(jnp.sin(fn(*xs))), (0, 1, 2))
    compiled = jax.jit(f).lower(*placed).compile()
    assert "all-gather" not in compiled.as_text() and moved(compiled) <= 4 * 32 * 4
    assert_close(compiled(*placed), jax.tree.map(np.asarray, jax.jit(f)(*args)), 1e-5)


def test_arrays_with_boundaries_of_their_own() -> None:
    """One that wraps around beside one that ends, in one call; in a loop too."""
    u, v = (RNG.standard_normal((64, 512)).astype(np.float32) for _ in range(2))

    def both(u: Any, v: Any) -> Any:
        ends = jnp.pad(v, ((0, 0), (1, 1)))
        return 0.3 * (jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) * u) + ends[:, 2:] - ends[:, :-2] * u

    loop = lambda u, v: jax.lax.fori_loop(0, 3, lambda _, u: both(u, v), u)  # noqa: E731
    placed = [jax.device_put(x, NamedSharding(mesh(4, 2), P("y", "x"))) for x in (u, v)]
    for f in (both, lambda u, v: both(v, u), loop):
        compiled = jax.jit(jp.fuse(f)).lower(*placed).compile()
        assert "jaxprims_stencil" in compiled.as_text() and "all-gather" not in compiled.as_text()
        assert_close(compiled(*placed), jax.tree.map(np.asarray, jax.jit(f)(u, v)), 1e-5)


@pytest.mark.dear
def test_reductions_of_sharded_grids() -> None:
    """Of cells between others, around the ends, chosen by coordinates; of several results, and where devices have too little."""
    x = RNG.standard_normal((1024, 1024)).astype(np.float32)
    for f, spec, kept in (
        (lambda u: jnp.sum(jnp.sqrt(jnp.diff(u, axis=0)[:, 1:] ** 2 + jnp.diff(u, axis=1)[1:] ** 2 + 1)), P("x", "y"), True),
        (lambda u: jnp.max(jnp.abs(jnp.roll(u, 3, 0) - jnp.roll(u, -2, 1))), P("x", "y"), True),
        (lambda u: (jnp.sum((u[2:] - u[:-2]) ** 2), jnp.min(u[2:] - u[:-2])), P(("x", "y")), True),
        (lambda u: jnp.sum(jnp.gradient(u, axis=1) ** 2), P("x", "y"), True),
        (lambda u: jnp.sum((u[600:] - u[:-600]) ** 2), P("x", None), False),
        (lambda u: jnp.sum((u[:, 2:] - u[:, :-2]) ** 2, 1), P(None, "x"), True),
        (lambda u: jnp.max(jnp.roll(u, 1, 0) - u, 1), P("x", "y"), True),
        (lambda u: jnp.min(u[2:, 2:] - u[:-2, :-2], 1), P("y", "x"), False),
    ):
        placed = jax.device_put(x, NamedSharding(mesh(4, 2), spec))
        compiled = jax.jit(jp.fuse(f)).lower(placed).compile()
        assert not kept or ("jaxprims_stencil_reduce" in compiled.as_text() and moved(compiled) <= 4 * 1024)
        assert_close(compiled(placed), jax.tree.map(np.asarray, jax.jit(f)(x)), 1e-5)
    of_two_sizes = lambda u, v: jnp.sum((u[2:] - u[:-2]) * v, 1)  # noqa: E731
    placed = jax.device_put(x, NamedSharding(mesh(4, 2), P("x", "y")))
    assert_close(jax.jit(jp.fuse(of_two_sizes))(placed, x[1:-1]), np.asarray(of_two_sizes(x, x[1:-1])), 1e-4)


@pytest.mark.dear
def test_cells_that_know_where_they_are() -> None:
    """Coordinates count over all devices; where the grid wraps around, in halos too."""
    x = RNG.standard_normal((32, 64)).astype(np.float32)
    f = lambda a, p: a[1, 0] * jnp.cos(p[0] * 0.1) + a[0, -1] * jnp.sin(p[1] * 0.1)  # noqa: E731
    for boundary, steps in (("wrap", 3), ("edge", 1), ("keep", 2), ("constant", 4)):
        call = lambda x, b=boundary, s=steps: jp.stencil(f, (x, jp.positions), boundary=b, steps=s)  # noqa: E731
        placed = jax.device_put(x, NamedSharding(mesh(4, 2), P("x", "y")))
        g = with_gradient(call)
        compiled = jax.jit(g).lower(placed).compile()
        assert "all-gather" not in compiled.as_text() and moved(compiled) <= 8 * 64
        assert_close(compiled(placed), jax.tree.map(np.asarray, jax.jit(g)(x)), 1e-5)


@pytest.mark.dear
def test_transposes_are_differentiated_and_explained() -> None:
    """Of a transpose on several devices: its derivatives, its own transpose, its text, and as it is without ``jit``."""
    x = RNG.standard_normal((16, 32)).astype(np.float32)
    placed = jax.device_put(x, NamedSharding(mesh(4, 2), P("x", "y")))
    product = lambda a: a[0, 0] + 0.3 * a[1, 0] * a[0, 2]  # noqa: E731
    gradient = jax.grad(lambda x: jnp.sum(jp.stencil(product, x, boundary="edge") ** 2))
    assert_close(gradient(placed), np.asarray(jax.jit(gradient)(x)), 1e-5)
    twice = jax.grad(lambda x: jnp.sum(gradient(x) ** 2))
    assert_close(jax.jit(twice)(placed), np.asarray(jax.jit(twice)(x)), 1e-5)
    back = lambda x: jax.linear_transpose(lambda y: jp.stencil(heat, y, boundary="edge"), x)(x)[0]  # noqa: E731
    again = jax.jit(lambda x: jax.linear_transpose(back, x)(x)[0])(x)
    assert_close(again, np.asarray(jp.stencil(heat, x, boundary="edge")), 1e-5)
    plan = jp.explain(gradient)(x)
    assert len(plan.calls) > 2 and all("halos" in call.devices for call in plan.calls)


@pytest.mark.dear
def test_sharded_grids_that_are_read_far_away() -> None:
    """Results that shrink, reads beyond the next device, cells' coordinates, batches and gradients: right, however it is done."""
    x = RNG.standard_normal((16, 32)).astype(np.float32)
    placed = jax.device_put(x, NamedSharding(mesh(4, 2), P("x", "y")))
    for f in (
        lambda x: jp.stencil(lopsided, x, boundary=("valid", "edge"), steps=3),
        lambda x: jp.stencil(lambda a: a[6, 0] - a[0, -20], x, boundary="wrap"),
        lambda x: jp.stencil(lambda a, p: a[1, 0] * p[0] + p[1], (x, jp.positions)),
        lambda x: jax.vmap(lambda x: jp.stencil(lambda a, w: a[1] * w[0] - a[-1], (x, jnp.arange(32.0)), boundary="wrap"))(x),
        lambda x: jax.grad(lambda x: jnp.sum(jp.stencil(heat, x, boundary="reflect", steps=4) ** 2))(x),
    ):
        assert_close(jax.jit(f)(placed), np.asarray(jax.jit(f)(x)), 1e-5)
