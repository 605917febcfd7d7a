"""Calls under plain ``jit`` on sharded elements, lanes or batches: each device its part, nothing large moved, the same result."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import mesh, moved
from references import assert_close

import jaxprims as jp
from jaxprims.primitives import divided, own_axes
from jaxprims.targets.cpu.machine import cpu_threads

N, H = 1920, 24
RNG = np.random.default_rng(0)
X = RNG.standard_normal(N).astype(np.float32)
IDS = RNG.integers(-1, H + 1, N).astype(np.int32)
SORTED = np.sort(IDS)
OFFSETS = np.sort(RNG.integers(-5, N + 5, H)).astype(np.int32)
ROWS = X.reshape(16, -1)


def affine(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] * b[0] + b[1]


def further(a: Any, b: Any) -> Any:
    return jnp.where(jnp.abs(a) >= jnp.abs(b), a, b)


def product_and_sum(a: Any, b: Any) -> Any:
    return a[0] * b[0], a[1] + b[1]


def maps(x: Any) -> Any:
    """Affine maps with factors near 1."""
    return x * 0.1 + 0.9, x


ONE = (np.float32(1), np.float32(0))
CALLS: dict[str, Callable[..., Any]] = {
    "sum by index": lambda x, i: jp.reduce_by_index(x, i, H),
    "sum of bools by index": lambda x, i: jp.reduce_by_index(x > 0, i, H, jnp.logical_or),
    "sum of halves by index": lambda x, i: jp.reduce_by_index(x.astype(jnp.bfloat16), i, H),
    "logaddexp by index": lambda x, i: jp.reduce_by_index(x, i, H, jnp.logaddexp),
    "argmax by index": lambda x, i: jp.reduce_by_index((x, jp.positions), i, H, jp.monoids.argmax),
    "rows by index": lambda x, i: jp.reduce_by_index(x.reshape(-1, 4), i.reshape(-1, 4)[:, 0], H, jnp.maximum),
    "into dest": lambda x, i: jp.reduce_by_index(x, i, H, dest=jnp.arange(H, dtype=jnp.float32)),
    "into dest alone": lambda x, i: jp.reduce_by_index(x, i, H, further, dest=jnp.ones(H)),
    "two histograms": lambda x, i: jp.genhist(
        lambda p, x: ((p % 7, x), (p % 5, (x, 1))), (jp.positions, x),
        (jp.Bins(7), jp.Bins(5, product_and_sum, identity=(1.0, 0))),
    ),
    "captured": lambda x, i: jp.genhist(lambda x, i: (i, x * jnp.linspace(0.5, 2, H)[i]), (x, i), jp.Bins(H)),
    "rows of elements": lambda x, i: jp.genhist(
        lambda p, x, i: (p, x * jnp.ones((H, 4))[i]), (jp.positions, x, i), jp.Bins(N, jnp.add)
    ),
    "sum": lambda x, i: jp.reduce(x),
    "argmin": lambda x, i: jp.argmin(x),
    "last": lambda x, i: jp.reduce(x, lambda a, b: b, init=np.float32(3)),
    "affine": lambda x, i: jp.reduce(maps(x), affine, init=(np.float32(2), np.float32(3))),
    "positions": lambda x, i: jp.reduce((x, jp.positions), map=lambda x, p: x * jnp.sin(p * 1e-3)),
    "segments by ids": lambda x, i: jp.segment_reduce(x, i, num_segments=H),
    "affine segments": lambda x, i: jp.segment_reduce(maps(x), i, affine, identity=ONE, num_segments=H),
    "segments without identity": lambda x, i: jp.segment_reduce(
        x, jp.Offsets(jnp.asarray(OFFSETS)), further, identity=jnp.float32(7) + 0 * x[0]
    ),
    "segments by offsets": lambda x, i: jp.segment_reduce(x, jp.Offsets(jnp.asarray(OFFSETS)), jnp.maximum),
    "sums": lambda x, i: jp.scan(x),
    "sums from the end": lambda x, i: jp.scan(x, reverse=True, exclusive=True),
    "affine scan": lambda x, i: jp.scan(maps(x), affine),
    "affine scan from the end": lambda x, i: jp.scan(maps(x), affine, reverse=True, exclusive=True, identity=ONE),
    "no identity": lambda x, i: jp.scan(x, further),
    "from a start": lambda x, i: jp.scan(maps(x), affine, init=(np.float32(2), np.float32(1))),
    "recurrence": lambda x, i: jp.linear_recurrence(x * 0.1 + 0.9, x, np.float32(2), reverse=True),
    "scan of positions": lambda x, i: jp.scan((x, jp.positions), map=lambda x, p: x * jnp.sin(p * 1e-3)),
    "restarts": lambda x, i: jp.scan(x, segment_starts=i == 5),
    "restarts from a start": lambda x, i: jp.scan(maps(x), affine, segment_starts=i == 5, init=ONE[::-1], exclusive=True),
    "restarts from the end": lambda x, i: jp.scan(maps(x), affine, segment_starts=i == 5, reverse=True),
    "made of a scan": lambda x, i: jp.fuse(lambda x: jnp.sin(jnp.cumsum(jnp.cos(x))) * x)(x),
    "made of a scan from the end": lambda x, i: jp.fuse(lambda x: x + jax.lax.cumsum(jnp.cos(x), reverse=True))(x),
    "gradient of what is made of a scan": lambda x, i: jp.fuse(jax.grad(lambda x: jnp.sum(jnp.sin(jnp.cumsum(jnp.sin(x))))))(x),
    "gradient by index": lambda x, i: jax.grad(lambda x: jnp.sum(jp.reduce_by_index(x, i, H, jnp.logaddexp)[:10] ** 2))(x),
    "gradient of a scan": lambda x, i: jax.grad(lambda x: jnp.sum(jp.scan(maps(x), affine)[1] ** 2))(x),
}  # fmt: skip

ALONG = {
    "reduce": lambda x, axis: jp.reduce(x, jnp.logaddexp, axis=axis),
    "scan": lambda x, axis: jp.scan(x, jnp.logaddexp, axis=axis),
    "argmax": lambda x, axis: jp.argmax(x, axis),
    "vmap": lambda x, axis: jax.vmap(lambda row: jp.scan(row, jnp.logaddexp, init=row[3]), 1 - axis)(x),
}
GATHERED = {"into dest alone"}


def check(f: Callable[..., Any], args: tuple[np.ndarray, ...], m: Mesh, spec: P, most: int) -> None:
    placed = [jax.device_put(a, NamedSharding(m, spec)) for a in args]
    compiled = jax.jit(f).lower(*placed).compile()
    assert moved(compiled) <= most
    assert_close(compiled(*placed), jax.tree.map(np.asarray, jax.jit(f)(*args)), 2e-4)


@pytest.mark.parametrize("name", CALLS)
def test_sharded_elements(name: str) -> None:
    """Over all devices, or over one of two axes of the mesh."""
    most = 8 * 4 * H if name not in GATHERED else N
    for spec in (P(("x", "y")), P("y")):
        check(CALLS[name], (X, SORTED if "segments" in name else IDS), mesh(4, 2), spec, most)


@pytest.mark.parametrize("name", ALONG)
def test_sharded_rows_and_columns(name: str) -> None:
    """Lanes and batches are each device's own; along a sharded axis one slice of each device is moved."""
    for axis, spec, most in ((1, P("x", "y"), 16 * 8), (0, P("x", "y"), 4 * 120), (1, P("y"), 0), (0, P(None, "x"), 0)):
        check(lambda x, axis=axis: ALONG[name](x, axis), (ROWS,), mesh(4, 2), spec, most)


UNEVEN = [
    "sum by index", "logaddexp by index", "argmax by index", "argmin",
    "sum", "segments by ids", "affine segments", "sums", "sums from the end", "affine scan", "affine scan from the end",
    "no identity", "from a start", "scan of positions", "restarts", "restarts from the end", "gradient by index",
]  # fmt: skip


@pytest.mark.parametrize("name", UNEVEN)
def test_numbers_of_elements_that_devices_do_not_divide(name: str) -> None:
    """What is left of sharded elements, and fewer than there are devices: not gathered either."""
    call = CALLS[name]
    for left in (slice(3, None), slice(None, 3)):

        def some(x: Any, i: Any, left: slice = left) -> Any:
            made = call((x * x)[left], i[left])
            return [jnp.sum(y * jnp.cos(jnp.arange(1.0 * y.size).reshape(y.shape))) for y in jax.tree.leaves(made)]

        for spec in (P(("x", "y")), P("y")):
            check(some, (X, SORTED if "segments" in name else IDS), mesh(4, 2), spec, 8 * 4 * H)


def test_constants_beside_uneven_elements() -> None:
    """A mean's ones, which are no operand."""
    means = lambda x: jp.segment_mean(x[3:], jp.Offsets(OFFSETS))  # noqa: E731
    placed = jax.device_put(X, NamedSharding(mesh(4, 2), P(("x", "y"))))
    assert_close(jax.jit(means)(placed), means(X))
    assert "segment" in str(jp.explain(means)(X))


@pytest.mark.strategies
def test_scatters_of_uneven_parts() -> None:
    """XLA's partitioner is not left to divide them: where several devices have copies of a part, elements count twice."""
    x, i = jnp.arange(64.0), jnp.zeros(64, jnp.int32)
    for n in (5, 63):
        f = lambda x, i, n=n: jp.reduce_by_index(x[:n], i[:n], 2)  # noqa: E731
        for spec in (P("x"), P("y")):
            placed = [jax.device_put(a, NamedSharding(mesh(4, 2), spec)) for a in (x, i)]
            assert jax.jit(f)(*placed).tolist() == [n * (n - 1) / 2, 0]


@pytest.mark.parametrize("op", [jnp.add, jnp.maximum, jnp.logaddexp, further], ids=lambda op: op.__name__)
def test_gradients_between_sharded_offsets(op: Any) -> None:
    """Which XLA's partitioner would count twice, where devices have copies of some and not as many each."""
    x, inner = X[:320], np.sort(RNG.integers(0, 320, 16)).astype(np.int32)

    def f(x: Any, inner: Any) -> Any:
        offsets = jp.Offsets(jnp.append(inner, 320))
        return jnp.sum(jnp.sin(jp.segment_reduce(x, offsets, op, identity=0.0 if op is further else None)))

    for spec in (P("x"), P("y"), P(("x", "y"))):
        check(jax.grad(f), (x, inner), mesh(4, 2), spec, 320)


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


def weighed(rows: Any, i: Any, table: Any) -> Any:
    return jp.genhist(lambda i, r: (i, jnp.where(r > 0, r * jnp.exp(table[i] * 0.1), 0)), (i, rows), jp.Bins(H))


OF_ROWS: dict[str, Callable[..., Any]] = {
    "sum": lambda rows, i, table: jp.segment_sum(rows, i, H),
    "halves": lambda rows, i, table: jp.segment_max(rows.astype(jnp.bfloat16), i, H),
    "any operator": lambda rows, i, table: jp.reduce_by_index(rows, i, H, further, identity=0.0),
    "two": lambda rows, i, table: jp.genhist(lambda i, r: ((i, r), (i, 1)), (i, rows), (jp.Bins(H), jp.Bins(H))),
    "into dest": lambda rows, i, table: jp.reduce_by_index(rows, i, H, jnp.logaddexp, dest=table),
    "two axes": lambda rows, i, table: jp.segment_min(rows.reshape(-1, 4, 4), i, H),
    "made of a table": weighed,
    "logsumexp": lambda rows, i, table: jp.segment_logsumexp(rows, i, H),
    "softmax": lambda rows, i, table: jp.segment_softmax(rows, i, H),
    "variance": lambda rows, i, table: jp.segment_var(rows, i, H),
    "a batch": lambda rows, i, table: jax.vmap(lambda r: jp.segment_sum(r * table[i], i, H))(jnp.stack([rows, -rows])),
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_sharded_features(name: str) -> None:
    """Rows by index, the axes of which are sharded: each device has its part of every row and of every bin, gradients too."""
    rows, i = X.reshape(-1, 16), IDS[:120]
    table = RNG.standard_normal((H, 16)).astype(np.float32)
    f, gradient = OF_ROWS[name], jax.grad(lambda *xs: sum(jnp.sum(jnp.sin(1.0 * y)) for y in jax.tree.leaves(OF_ROWS[name](*xs))))
    for spec in (P(None, "x"), P("y", "x")):
        placed = [
            jax.device_put(a, NamedSharding(mesh(4, 2), s))
            for a, s in zip((rows, i, table), (spec, P(), P(None, "x")), strict=True)
        ]
        for g, most in ((f, 0 if spec[0] is None else 2 * 2 * H * 4), (gradient, 120 + 2 * 2 * H * 4)):
            compiled = jax.jit(g).lower(*placed).compile()
            assert moved(compiled) <= most
            assert_close(compiled(*placed), jax.tree.map(np.asarray, jax.jit(g)(rows, i, table)), 2e-4)


def test_shares_of_large_parts() -> None:
    """Each device combines a share of the bins, lanes or rows, whose number devices need not divide."""
    x = RNG.standard_normal((20_001, 8)).astype(np.float32)
    i = np.repeat(np.arange(8) * 2500, 60)[: 8 * 60].astype(np.int32)
    check(lambda x: jp.reduce(x, jnp.logaddexp, axis=1), (x,), mesh(8), P(None, "x"), 20_008)
    check(lambda x: jp.reduce(x.T, jnp.logaddexp, axis=0), (x,), mesh(8), P(None, "x"), 20_008)
    check(lambda x, i: jp.reduce_by_index(x, i, 20_001, jnp.logaddexp), (x[: 8 * 60, 0], i), mesh(8), P("x"), 20_008)


def test_devices_share_the_cores() -> None:
    """A kernel is told how many others run beside it: all of XLA's threads to each would be several to a core."""
    f = lambda x, i: jp.reduce_by_index(x, i, H, jnp.logaddexp)  # noqa: E731
    for count in (1, 2, 8):
        m = mesh(count)
        placed = [jax.device_put(a, NamedSharding(m, P("x"))) for a in (X, IDS)]
        mapped = jax.shard_map(f, mesh=m, in_specs=P("x"), out_specs=P("x"))
        for g in (f, mapped):
            assert f"devices = {count} :" in jax.jit(g).lower(*placed).compile().as_text()
    assert [cpu_threads(n) for n in (1, 10_000)] == [len(os.sched_getaffinity(0)), 1]


def test_several_axes() -> None:
    """Reduced over both, of which the last is sharded: not as one axis, which would be gathered."""
    x = RNG.standard_normal((8, 4096)).astype(np.float32)
    check(lambda x: jp.reduce(x, jnp.logaddexp), (x,), mesh(8), P(None, "x"), 8 * 8)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0), (1, 2)])
@pytest.mark.parametrize("spec", [P(None, "x"), P(None, "y", "x"), P("y", None, "x"), P()])
def test_halves_and_positions_along_several_axes(order: tuple[int, ...], spec: P) -> None:
    """Rounded once, and the first of the greatest, without its axes gathered to be one: ties on several devices and NaN."""
    x = RNG.integers(-300, 300, (24, 16, 40)).astype(np.float32)
    x[RNG.random(x.shape) < 0.001] = np.nan
    finite = np.nan_to_num(x, nan=1.5)
    for f, given in (
        (lambda x: jp.reduce(x.astype(jnp.bfloat16), axis=order, map=lambda v: v * 0.5, init=jnp.bfloat16(3)), finite),
        (lambda x: jp.reduce((x.astype(jnp.float16) * 0.01), jnp.logaddexp, axis=order), finite),
        (lambda x: jp.reduce((x, jp.positions), jp.monoids.argmax, axis=order), x),
        (lambda x: jp.reduce((x, jp.positions), jp.monoids.argmin, axis=order), finite),
        (jp.argmax, x),
    ):
        check(f, (given,), mesh(4, 2), spec, 24 * 40 * 8)
    back = jax.grad(lambda x: jnp.sum(jnp.sin(1e-3 * jp.reduce(x.astype(jnp.bfloat16), axis=order).astype(jnp.float32))))
    check(back, (finite,), mesh(4, 2), spec, 24 * 40)


@pytest.mark.strategies
@pytest.mark.parametrize("boundary", ["edge", "wrap", "symmetric", "constant", "keep"])
def test_steps_that_read_to_one_side(boundary: str) -> None:
    """Left to XLA: the last device's first step has cells before it that it received and are not there, and loses none later."""
    x = RNG.integers(-4, 5, (24, 32)).astype(np.float32)
    for f in (lambda a: a[0, 2] - a[2, 0], lambda a: a[-1, -1] + a[0, 0]):
        for steps, spec in ((2, P("x", "y")), (3, P(None, "y")), (9, P("x"))):
            call = lambda x, f=f, steps=steps: jp.stencil(f, x, boundary=boundary, steps=steps)  # noqa: E731
            check(call, (x,), mesh(4, 2), spec, 32 * 8)
            gradient = jax.grad(lambda x, call=call: jnp.sum(jnp.sin(call(x) * 0.01)))
            check(gradient, (x,), mesh(4, 2), spec, 2 * x.size)  # XLA's


def test_six_devices() -> None:
    """Axes of a mesh that are not powers of two, in either order."""
    for sizes in ((2, 3), (3, 2)):
        m = Mesh(np.array(jax.devices()[:6]).reshape(sizes), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
        for spec in (P("x"), P("y"), P(("y", "x"))):
            check(lambda x, i: jp.scan(maps(x), affine), (X, IDS), m, spec, 6 * 2)


@pytest.mark.parametrize("op", [jnp.add, jnp.logaddexp])
def test_sharded_bins(op: Any) -> None:
    """Bins that are wanted in parts are combined in parts; where elements are not sharded in the same way, everywhere."""
    m = mesh(8)
    rows = NamedSharding(m, P("x"))
    for spec in (P("x"), P()):
        v, i = (jax.device_put(a, NamedSharding(m, spec)) for a in (X, IDS))
        f = jax.jit(lambda v, i: jp.reduce_by_index(v, i, H, op), out_shardings=rows)
        got = f(v, i)
        assert got.sharding.spec == P("x")
        assert_close(got, np.asarray(jax.jit(lambda v, i: jp.reduce_by_index(v, i, H, op))(X, IDS)), 1e-4)


def test_many_bins_are_combined_by_shares() -> None:
    """An operator without a name: each device combines an eighth of the bins, then they are gathered."""
    ids = (IDS * 733).astype(np.int32)
    f = lambda v, i: jp.reduce_by_index(v, i, 17_600, jnp.logaddexp)  # noqa: E731
    placed = [jax.device_put(a, NamedSharding(mesh(8), P("x"))) for a in (X, ids)]
    compiled = jax.jit(f).lower(*placed).compile()
    assert "all-to-all" in compiled.as_text() and moved(compiled) == 17_600
    assert_close(compiled(*placed), np.asarray(jax.jit(f)(X, ids)), 1e-4)


TWICE: dict[str, Callable[..., Any]] = {
    "two bins": lambda x, i: jp.reduce_by_index(x, (i, i), (3, 3)),
    "captured": lambda x, i: jp.genhist(lambda i, x: (i, x * jnp.linspace(1, 2, H)[i]), (i, x), jp.Bins(H)),
    "maxima": lambda x, i: jp.segment_max(x, i, H),
    "affine": lambda x, i: jp.reduce(maps(x), affine),
    "scan": lambda x, i: jp.scan(maps(x), affine),
    "segments": lambda x, i: jp.segment_reduce(x, i, jnp.multiply, num_segments=H),
    "stencil": lambda x, i: jp.stencil(lambda a: a[0] * a[1], x, steps=2),
}


@pytest.mark.parametrize("name", TWICE)
def test_eager_derivatives_on_explicit_axes(name: str) -> None:
    """Tangents, gradients of gradients and of a batch, without ``jit``: what is kept for them is on automatic axes."""
    x, i = X[:40] * 0.1 + 1, np.sort(IDS[:40])
    loss = lambda x, i: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(TWICE[name](x, i)))  # noqa: E731
    for f, batch in (
        (lambda x, i: jax.jvp(lambda x: TWICE[name](x, i), (x,), (x,)), ()),
        (lambda x, i: jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(loss)(x, i))))(x), ()),
        (lambda x, i: jax.vmap(lambda x: jax.grad(loss)(x, i))(x), (2,)),
    ):
        m, given = mesh(8, explicit=True), np.broadcast_to(x, (*batch, 40))
        wanted = jax.tree.map(np.asarray, jax.jit(f)(given, i))
        with jax.set_mesh(m):
            placed = jax.device_put(given, NamedSharding(m, P(*(None,) * len(batch), "x")))
            assert_close(jax.tree.map(np.asarray, f(placed, jax.device_put(i, NamedSharding(m, P("x"))))), wanted, 1e-3)


def test_explicit_axes_that_are_reduced_as_one() -> None:
    """Positions count along all axes at once, halves are rounded once: wherever these axes are sharded."""
    x = RNG.integers(-3, 4, (2, 16, 24)).astype(np.float32)
    for axes in ((0, 1), (1, 2), (0, 2), None):
        for spec in (P(None, "x"), P(None, None, "x"), P(None, "x", "y")):
            m = mesh(4, 2, explicit=True)
            for f in (
                lambda x, axes=axes: jp.reduce(x.astype(jnp.bfloat16), axis=axes),
                lambda x, axes=axes: jp.reduce((x, jp.positions), axis=axes, map=lambda x, p: x * (p % 5)),
            ):
                wanted = np.asarray(jax.jit(f)(x))
                with jax.set_mesh(m):
                    placed = jax.device_put(x, NamedSharding(m, spec))
                    assert_close(np.asarray(jax.jit(f)(placed)), wanted)
                    assert_close(np.asarray(f(placed)), wanted)


@pytest.mark.parametrize("spec", [P("x", "y"), P(None, "x"), P("y", None)])
def test_explicit_axes(spec: P) -> None:
    """Results keep what may stay sharded, in their types too."""
    m = mesh(4, 2, explicit=True)
    with jax.set_mesh(m):
        x = jax.device_put(ROWS, NamedSharding(m, spec))
        for f, wanted in (
            (lambda x: jp.scan(x, jnp.logaddexp, axis=1), tuple(spec)),
            (lambda x: jp.reduce(x, jnp.logaddexp, axis=0), (spec[1],)),
            (lambda x: jp.reduce(x, further, axis=1), (spec[0],)),
            (lambda x: jax.vmap(lambda r: jp.reduce_by_index(r, jnp.arange(120) % 5, 5, jnp.logaddexp))(x), (spec[0], None)),
        ):
            compiled = jax.jit(f).lower(x).compile()
            got = compiled(x)
            assert tuple(jax.typeof(got).sharding.spec) == wanted
            assert moved(compiled) <= 4 * 120
            assert_close(np.asarray(got), np.asarray(jax.jit(f)(ROWS)), 1e-4)


def blur(t: Any) -> Any:
    return 0.3 * t[-1, 0] * t[0, 1] + 0.5 * t[0, 0] + 0.2 * t[1, -1]


@pytest.mark.parametrize("spec", [P("x", "y"), P(None, "x"), P("y", None), P(("y", "x"), None)])
@pytest.mark.parametrize("boundary", ["wrap", "edge", "constant", "valid"])
def test_stencils_on_explicit_axes(spec: P, boundary: str) -> None:
    """Grids stay where they are, in their types too, where the devices divide the results; gradients are where the grid is."""
    m = mesh(4, 2, explicit=True)
    grid = X.reshape(40, 48)
    steps = 3 if boundary == "wrap" else 1

    def both(x: Any) -> Any:
        step = lambda x: jp.stencil(blur, x, boundary=boundary, steps=steps)  # noqa: E731
        return step(x), jax.grad(lambda x: jnp.sum(jnp.sin(step(x))))(x)

    wanted = jax.tree.map(np.asarray, jax.jit(both)(grid))
    with jax.set_mesh(m):
        x = jax.device_put(grid, NamedSharding(m, spec))
        compiled = jax.jit(both).lower(x).compile()
        out, grad = compiled(x)
        assert jax.typeof(grad) == jax.typeof(x)
        assert_close(jax.tree.map(np.asarray, (out, grad)), wanted, 1e-4)
        if boundary != "valid":
            assert jax.typeof(out) == jax.typeof(x) and moved(compiled) < x.size / 2


@pytest.mark.parametrize("spec", [P("x", "y"), P(None, "x"), P(("y", "x"), None), P(None, None)])
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


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("spec", [P("x", "y"), P(None, "x"), P("y", None)])
@pytest.mark.parametrize("op", [jnp.maximum, jnp.add, jnp.logaddexp, further, jnp.multiply], ids=lambda op: op.__name__)
def test_gradients_on_explicit_axes(op: Any, spec: P, axis: int) -> None:
    """Of scans and reductions along axes that are sharded and along others, by operators with a rule and without."""
    m = mesh(4, 2, explicit=True)
    f = lambda x: jnp.sum(jp.scan(x, op, axis=axis) ** 2) + jnp.sum(jnp.sin(jp.reduce(x, op, axis=axis)))  # noqa: E731
    wanted = np.asarray(jax.jit(jax.grad(f))(ROWS))
    with jax.set_mesh(m):
        x = jax.device_put(ROWS, NamedSharding(m, spec))
        got = jax.jit(jax.grad(f))(x)
        assert jax.typeof(got) == jax.typeof(x)
        assert_close(np.asarray(got), wanted, 1e-3)


SMALL: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "maximum": (lambda x: jp.reduce(x, jnp.maximum, axis=-1), lambda x: jnp.max(x, -1)),
    "minimum of all": (lambda x: jp.reduce(x, jnp.minimum), jnp.min),
    "maximum of columns": (lambda x: jp.reduce(x, jnp.maximum, axis=0), lambda x: jnp.max(x, 0)),
    "argmax": (lambda x: jp.argmax(x, axis=0), lambda x: jnp.argmax(x, 0)),
    "cumulative maximum": (lambda x: jp.cummax(x, axis=0), lambda x: jax.lax.cummax(x, 0)),
    "five points": (
        lambda x: jp.stencil(lambda t: t[-1, 0] + t[1, 0] + t[0, -1] + t[0, 1], x, boundary="wrap"),
        lambda x: sum(jnp.roll(x, k, a) for k in (-1, 1) for a in (0, 1)),
    ),
}


@pytest.mark.parametrize("shape", [(8, 8), (16, 40), (64, 64), (400, 32)])
@pytest.mark.parametrize("name", SMALL)
def test_what_is_left_to_xla_is_divided(name: str, shape: tuple[int, int]) -> None:
    """Small calls that XLA does as well, and their gradients: right, NaN too, and no more is moved than in plain JAX."""
    ours, plain = SMALL[name]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x[3, 5] = np.nan
    for spec in (P("x"), P(None, "x"), P("y", "x"), P(("y", "x"), None)):
        placed = jax.device_put(x, NamedSharding(mesh(4, 2), spec))
        programs = [jax.jit(f).lower(placed).compile() for f in (ours, plain)]
        assert_close(programs[0](placed), np.asarray(jax.jit(ours)(x)), 1e-5)
        assert moved(programs[0]) <= max(64, 1.1 * moved(programs[1])), spec  # a halo's corners are exchanged with it
        if name != "argmax":
            back = jax.grad(lambda x: jnp.sum(jnp.sin(ours(x))))
            assert_close(jax.jit(back)(placed), np.asarray(jax.jit(back)(x)), 1e-5)


@pytest.mark.parametrize("sizes", [(8,), (4, 2)])
@pytest.mark.parametrize("cut", [2, 4])
def test_lengths_that_share_a_factor_with_the_devices(sizes: tuple[int, ...], cut: int) -> None:
    """Nothing large is moved where all devices divide no axis, nor where a part of them does."""
    n = 8 * 500 + (4 if len(sizes) == 2 else 0)
    x, i = RNG.standard_normal(n).astype(np.float32), RNG.integers(0, 9, n).astype(np.int32)
    for f in (
        lambda x, i: jp.segment_sum(x[cut:], i[cut:], 9),
        lambda x, i: jp.reduce(x[cut:], jnp.logaddexp),
        lambda x, i: jp.scan(x, jnp.maximum, reverse=True),
    ):
        placed = [jax.device_put(a, NamedSharding(mesh(*sizes), P("x"))) for a in (x, i)]
        compiled = jax.jit(f).lower(*placed).compile()
        assert_close(compiled(*placed), np.asarray(jax.jit(f)(x, i)), 1e-4)
        assert moved(compiled) <= 64


MADE: dict[str, Callable[..., Any]] = {
    "pairs": lambda x, i, t: jp.genhist(lambda a, b: ((a, b), 1), (i[1:], i[:-1]), jp.Bins((9, 9))),
    "two histograms": lambda x, i, t: jp.genhist(
        lambda p, x, i: ((p % 7, t[i] * x), (jnp.stack([i, i + 1]), jnp.stack([x, 1.0]))), (jp.positions, x[1:], i[1:]),
        (jp.Bins(7, jnp.maximum), jp.Bins(9, dest=jnp.ones(9))),
    ),
    "small indices": lambda x, i, t: jp.genhist(lambda x, i: (i.astype(jnp.int8), x), (x[1:], i[1:]), jp.Bins(120)),
    "members": lambda x, i, t: jax.vmap(lambda s: jp.genhist(lambda x, i: (i, s * x * x), (x[1:], i[1:]), jp.Bins(9)))(t),
    "reduction": lambda x, i, t: jp.reduce(x[1:], jnp.logaddexp, map=lambda v: 2 * v),
    "of positions": lambda x, i, t: jp.reduce((x[1:], jp.positions), map=lambda v, p: v * jnp.cos(p)),
    "reversed scan": lambda x, i, t: jnp.sum(jp.scan(x[1:], jnp.maximum, map=jnp.sin, reverse=True) ** 2),
    "recurrence": lambda x, i, t: jnp.mean(jp.scan(x[1:], affine, map=maps, identity=ONE, reverse=True)[1] ** 2),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_uneven_elements_that_functions_make(name: str) -> None:
    """What fills up an axis goes through the user's function too: it is of no bin, or the identity."""
    f, table = MADE[name], jnp.linspace(0.5, 1.5, 9)
    i = RNG.integers(0, 9, N).astype(np.int32)
    placed = [jax.device_put(a, NamedSharding(mesh(8), P("x"))) for a in (X, i)]
    compiled = jax.jit(f).lower(*placed, table).compile()
    assert_close(compiled(*placed, table), jax.tree.map(np.asarray, jax.jit(f)(X, i, table)), 1e-4)
    assert moved(compiled) <= 120
    if name not in ("pairs", "small indices"):
        back = jax.jit(jax.grad(lambda x, i, t: sum(jnp.sum(jnp.sin(v)) for v in jax.tree.leaves(f(x, i, t)))))
        assert_close(back(*placed, table), np.asarray(back(X, i, table)), 1e-3)
    plan = jp.explain(lambda x, i: f(x, i, table))(X, i)
    assert all("gathered" not in call.devices for call in plan.calls)


def test_gradients_of_sharded_features_move_nothing() -> None:
    """Rows that are gathered from a table lie where the table's features do."""
    x = jax.device_put(X.reshape(-1, 16), NamedSharding(mesh(8), P(None, "x")))
    ids = IDS[: len(x)]
    f = jax.grad(lambda x: jnp.sum(jnp.sin(jp.segment_sum(x, ids, H))))
    compiled = jax.jit(f).lower(x).compile()
    assert moved(compiled) == 0
    assert_close(compiled(x), np.asarray(jax.jit(f)(X.reshape(-1, 16))), 1e-4)


NAMED = {
    "reduce": (lambda n: lambda x, i: jp.reduce(maps(x), affine, init=ONE, axis_name=n)),
    "positions": (lambda n: lambda x, i: jp.reduce((x, jp.positions), jp.monoids.argmax, axis_name=n)),
    "rows": (
        lambda n: lambda x, i: jp.reduce((x.reshape(-1, 2), jp.positions), map=lambda x, p: x * jnp.sin(p), axis=0, axis_name=n)
    ),
    "by index": (lambda n: lambda x, i: jp.reduce_by_index(x, i, H, axis_name=n)),
    "sorted": (lambda n: lambda x, i: jp.reduce_by_index(x, jnp.sort(i), H, jnp.logaddexp, indices_are_sorted=True, axis_name=n)),
    "into dest": (
        lambda n: lambda x, i: jp.reduce_by_index(
            (x, jp.positions), i, (H,), lambda a, b: (jnp.maximum(a[0], b[0]), a[1] + b[1]), identity=(-jnp.inf, 0),
            dest=(jnp.ones(H), jnp.arange(H)), axis_name=n,
        )
    ),
    "genhist": (
        lambda n: lambda x, i: jp.genhist(
            lambda p, x: ((p % 7, x), (p % 5, 1)), (jp.positions, x), (jp.Bins(7), jp.Bins(5)), axis_name=n
        )
    ),
    "segments": (lambda n: lambda x, i: jp.segment_reduce(x, jp.Offsets(jnp.asarray(OFFSETS)), jnp.maximum, axis_name=n)),
    "scan of positions": (
        lambda n: lambda x, i: jp.reduce(jp.scan((x, jp.positions), map=lambda x, p: x * jnp.cos(p), axis_name=n), axis_name=n)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_by_name(name: str) -> None:
    """``axis_name=`` inside ``shard_map``: the result of all devices' elements, replicated, and typed so."""
    names, f = ("x", "y"), NAMED[name]
    sharded = jax.shard_map(f(names), mesh=mesh(4, 2), in_specs=(P(names), P(names)), out_specs=P())
    i = np.sort(IDS) if name == "sorted" else IDS
    assert_close(jax.jit(sharded)(X, i), jax.tree.map(np.asarray, jax.jit(f(None))(X, i)), 2e-4)


@pytest.mark.parametrize("op", [jnp.add, jnp.logaddexp, affine])
def test_gradients_by_name(op: Any) -> None:
    def total(x: Any, name: Any) -> Any:
        if op is affine:
            return jp.reduce(maps(x), op, axis_name=name)[1]
        return jnp.sum(jp.reduce_by_index(x, jnp.arange(x.shape[0]) % 4, 4, op, axis_name=name) ** 2)

    x = X[:160]
    sharded = jax.shard_map(lambda x: total(x, "x"), mesh=mesh(8), in_specs=P("x"), out_specs=P())
    assert_close(jax.jit(jax.grad(sharded))(x), np.asarray(jax.jit(jax.grad(lambda x: total(x, None)))(x)), 1e-3)


def test_by_name_large_slices_and_other_shapes() -> None:
    """Slices past the size from which bins are combined by shares, and positions beside leaves of several shapes."""
    x = RNG.standard_normal((16, 20_000)).astype(np.float32)
    m = mesh(8)
    f = lambda n: lambda x: jp.reduce(x, jnp.logaddexp, axis=0, axis_name=n)  # noqa: E731
    sharded = jax.shard_map(f("x"), mesh=m, in_specs=P("x"), out_specs=P())
    assert_close(jax.jit(sharded)(x), np.asarray(jax.jit(f(None))(x)), 1e-5)

    def pairs(n: Any) -> Any:
        both = lambda a, b: jax.tree.map(jnp.add, a, b)  # noqa: E731
        whole = lambda a, b, p: (a.sum() * jnp.sin(p), b.sum())  # noqa: E731
        return lambda x: jp.reduce((x[:, :32].T, x[:, 32:35].T, jp.positions), both, axis=1, map=whole, axis_name=n)

    sharded = jax.shard_map(pairs("x"), mesh=m, in_specs=P("x"), out_specs=P())
    assert_close(jax.jit(sharded)(x), jax.tree.map(np.asarray, jax.jit(pairs(None))(x)), 1e-4)


def test_by_name_an_identity_is_wanted() -> None:
    f = lambda x: jp.reduce_by_index(x, jnp.arange(x.shape[0]) % 4, 4, further, dest=jnp.zeros(4), axis_name="x")  # noqa: E731
    with pytest.raises(ValueError, match=r"not known; give identity$"):
        jax.shard_map(f, mesh=mesh(8), in_specs=P("x"), out_specs=P())(X)


def test_which_axes_number_the_tiles() -> None:
    assert divided._primes(12) == (2, 2, 3) and divided._primes(1) == (1,)
    assert divided._names(np.arange(8), (2, 2, 2)) == ("d0", "d1", "d2")
    assert divided._names(np.array([0, 1, 0, 1]), (2, 2)) == ("d1",)
    assert divided._names(np.array([0, 2, 1, 3]), (2, 2)) == ("d1", "d0")
    assert divided._names(np.zeros(4, int), (2, 2)) == ()
    assert divided._names(np.array([0, 1, 1, 0]), (2, 2)) is None


def test_which_axes_of_elements_go_together() -> None:
    def f(x: Any, y: Any, z: Any, w: Any, v: Any) -> Any:
        made = x * jnp.sum(w)[None, None] + y.reshape(3, 5) * v
        return made - made.max(1, keepdims=True), w[:, None] * w, jax.lax.cumsum(z, 1), jax.lax.iota(jnp.int32, 4)

    avals = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((3, 5), (3, 1, 5), (3, 5), (7,), (5,))]
    jaxpr = jax.make_jaxpr(f)(*avals).jaxpr
    x, y, z, w, v, made, square, summed, places = map(own_axes.factors(jaxpr), (*jaxpr.invars, *jaxpr.outvars))
    assert x == made == (y[0], y[2]) and v == x[1:] and y[1] is None
    assert len({*x, *places, None}) == 4
    assert w * 2 == square == (None, None)  # a diagonal
    assert z == summed == (None, None)  # nothing is known of what goes along an axis


def test_rows_of_thousands_by_index() -> None:
    """More numbers to a row than kernels take: XLA's scatter."""
    x = RNG.standard_normal((6, 5000)).astype(np.float32)
    i = np.array([0, 2, 0, 1, 2, 7], np.int32)
    wanted = np.stack([x[0] + x[2], x[3], x[1] + x[4]])
    assert_close(jp.segment_sum(x, i, 3), wanted, 1e-5)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(jp.segment_max(x, i, 3)[1] ** 2)))(x)
    assert_close(gradient[3], 2 * x[3], 1e-5)


def heat(a: Any) -> Any:
    return 0.2 * (a[0, 0] + a[-1, 0] + a[1, 0] + a[0, -1] + a[0, 1])


def lopsided(a: Any) -> Any:
    return a[0, 0] + 0.5 * a[-2, 1] - 0.3 * a[0, 3]


def curved(a: Any) -> Any:
    return a[0, 0] + 0.3 * (a[1, 0] - a[0, 0]) * jnp.cos(a[0, 2] - a[-1, 0])


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


@pytest.mark.parametrize("boundary", ["edge", "wrap", "reflect", "symmetric", "constant", "keep"])
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


def test_what_is_made_of_a_matrix_is_not_gathered_to_be_combined() -> None:
    """Whichever axes are sharded, short or long, what ``fuse`` or ``map`` makes."""
    x = RNG.standard_normal((256, 128)).astype(np.float32)
    for spec in (P(None, "x"), P("x", "y"), P("y", None)):
        placed = jax.device_put(x, NamedSharding(mesh(4, 2), spec))
        fused = jp.fuse(lambda x: (jnp.sum(x * x), jnp.max(jnp.abs(x))))
        for f in (fused, jax.grad(lambda x: fused(x)[0]), lambda x: jp.reduce(x, jnp.maximum, map=lambda v: v * v)):
            compiled = jax.jit(f).lower(placed).compile()
            assert "all-gather" not in compiled.as_text() and moved(compiled) <= 256
            assert_close(compiled(placed), jax.tree.map(np.asarray, jax.jit(f)(x)), 1e-5)


def test_cells_that_know_where_they_are() -> None:
    """Coordinates count over all devices; where the grid wraps around, in halos too."""
    x = RNG.standard_normal((32, 64)).astype(np.float32)
    f = lambda a, p: a[1, 0] * jnp.cos(p[0] * 0.1) + a[0, -1] * jnp.sin(p[1] * 0.1)  # noqa: E731
    for boundary, steps in (("wrap", 3), ("edge", 1), ("keep", 2), ("constant", 4)):
        call = lambda x, b=boundary, s=steps: jp.stencil(f, (x, jp.positions), boundary=b, steps=s)  # noqa: E731
        placed = jax.device_put(x, NamedSharding(mesh(4, 2), P("x", "y")))
        for g in (call, jax.grad(lambda x, call=call: jnp.sum(jnp.sin(call(x))))):
            compiled = jax.jit(g).lower(placed).compile()
            assert "all-gather" not in compiled.as_text() and moved(compiled) <= 8 * 64
            assert_close(compiled(placed), np.asarray(jax.jit(g)(x)), 1e-5)


def test_transposes_are_differentiated_and_explained() -> None:
    """Of a transpose on several devices: its derivatives, its own transpose, its text, and as it is without ``jit``."""
    x = RNG.standard_normal((16, 32)).astype(np.float32)
    placed = jax.device_put(x, NamedSharding(mesh(4, 2), P("x", "y")))
    gradient = jax.grad(lambda x: jnp.sum(jp.stencil(curved, x, boundary="edge") ** 2))
    assert_close(gradient(placed), np.asarray(gradient(x)), 1e-5)
    twice = jax.grad(lambda x: jnp.sum(jnp.sin(gradient(x))))
    assert_close(jax.jit(twice)(placed), np.asarray(jax.jit(twice)(x)), 1e-5)
    back = lambda x: jax.linear_transpose(lambda y: jp.stencil(heat, y, boundary="edge"), x)(x)[0]  # noqa: E731
    again = jax.linear_transpose(back, x)(x)[0]
    assert_close(again, np.asarray(jp.stencil(heat, x, boundary="edge")), 1e-5)
    plan = jp.explain(gradient)(x)
    assert len(plan.calls) > 2 and all("halos" in call.devices for call in plan.calls)


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("op", [jnp.maximum, jnp.minimum])
def test_extremes_of_every_kind_of_value(op: Any, dtype: str) -> None:
    """NaN wins, whatever its sign and on whichever device; 0 is greater than -0."""
    x = np.array([[0.0, -0.0, 1, -np.inf], [-0.0, 0.0, np.nan, -np.nan], [np.inf, -1, 2, 3], [-5, 1e-40, 5, 6]], np.float32)
    x = np.nan_to_num(x, posinf=100, neginf=-100) if dtype == "int8" else x
    x = jnp.asarray(x).astype(dtype)
    m = mesh(4)
    f = lambda x: jp.reduce_by_index(x.reshape(-1), jnp.arange(16) % 4, 4, op)  # noqa: E731
    got = jax.jit(f)(jax.device_put(x, NamedSharding(m, P("x"))))
    wanted = jax.jit(f)(x)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(wanted, np.float32))
    assert np.array_equal(np.signbit(np.asarray(got, np.float32))[:2], np.signbit(np.asarray(wanted, np.float32))[:2])
