"""Calls under plain ``jit`` on sharded elements, lanes or batches: each device its part, nothing large moved, the same result."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from divided_calls import CALLS, IDS, RNG, ROWS, SORTED, H, N, X, affine, check, further, maps
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import mesh, moved
from references import assert_close

import jaxprims as jp
from jaxprims.primitives import divided, own_axes
from jaxprims.targets.cpu.machine import cpu_threads

ALONG = {
    "reduce": lambda x, axis: jp.reduce(x, jnp.logaddexp, axis=axis),
    "scan": lambda x, axis: jp.scan(x, jnp.logaddexp, axis=axis),
    "argmax": lambda x, axis: jp.argmax(x, axis),
    "vmap": lambda x, axis: jax.vmap(lambda row: jp.scan(row, jnp.logaddexp, init=row[3]), 1 - axis)(x),
}
GATHERED = {"into dest alone"}


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", CALLS)
def test_sharded_elements(name: str) -> None:
    """Over all devices, or over one of two axes of the mesh."""
    most = 8 * 4 * H if name not in GATHERED else N
    for spec in (P(("x", "y")), P("y")):
        check(CALLS[name], (X, SORTED if "segments" in name else IDS), mesh(4, 2), spec, most)


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", ALONG)
def test_sharded_rows_and_columns(name: str) -> None:
    """Lanes and batches are each device's own; along a sharded axis one slice of each device is moved."""
    of_columns, of_rows = (lambda x, axis=axis: ALONG[name](x, axis) for axis in (0, 1))
    for f, spec, most in (
        (of_rows, P("x", "y"), 16 * 8),
        (of_columns, P("x", "y"), 4 * 120),
        (of_rows, P("y"), 0),
        (of_columns, P(None, "x"), 0),
    ):
        check(f, (ROWS,), mesh(4, 2), spec, most)


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


@pytest.mark.cover(2)
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


@pytest.mark.cover(1)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0), (1, 2)])
@pytest.mark.parametrize("spec", [P(None, "x"), P(None, "y", "x"), P("y", None, "x"), P()])
@pytest.mark.dear
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


HALVES: dict[str, Callable[..., Any]] = {
    "sum": lambda x, i: jp.reduce(x, init=jnp.asarray(3, x.dtype)),
    "log of sum": lambda x, i: jp.reduce(x, jnp.logaddexp),
    "scan": lambda x, i: jp.scan(x, reverse=True),
    "scan with starts": lambda x, i: jp.scan(x, segment_starts=i == 0, init=jnp.asarray(3, x.dtype)),
    "by index": lambda x, i: jp.reduce_by_index(x * 2, i, H, jnp.add, dest=jnp.ones(H, x.dtype)),
    "by index, and an extreme": lambda x, i: jp.genhist(
        lambda x, i: ((i, x), (i, x)), (x, i), (jp.Bins(H, jnp.maximum), jp.Bins(H, jnp.add))
    ),
    "segments": lambda x, i: jp.segment_reduce(x, jp.Offsets(jnp.array([0, 3, 900, N])), jnp.add),
}


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_of_halves_are_rounded_once(name: str, dtype: str) -> None:
    """Not each device's: what one would be is beyond float16, or has lost its last digits."""
    x = np.where(np.arange(N) < N // 2, 300, -300) + X
    half, wide = jnp.asarray(x, dtype), jnp.asarray(jnp.asarray(x, dtype), jnp.float32)
    placed = [jax.device_put(a, NamedSharding(mesh(8), P("x"))) for a in (half, IDS)]
    for want, got in zip(*(jax.tree.leaves(jax.jit(HALVES[name])(*a)) for a in ((wide, IDS), placed)), strict=True):
        assert got.dtype == dtype
        rounded = np.asarray(want.astype(dtype), np.float32)
        np.testing.assert_allclose(np.asarray(got, np.float32), rounded, float(jnp.finfo(dtype).eps), 0.5)


def test_six_devices() -> None:
    """Axes of a mesh that are not powers of two, in either order."""
    f = lambda x, i: jp.scan(maps(x), affine)  # noqa: E731
    for sizes in ((2, 3), (3, 2)):
        m = Mesh(np.array(jax.devices()[:6]).reshape(sizes), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
        for spec in (P("x"), P("y"), P(("y", "x"))):
            check(f, (X, IDS), m, spec, 6 * 2)


@pytest.mark.parametrize("op", [jnp.add, jnp.logaddexp])
def test_sharded_bins(op: Any) -> None:
    """Bins that are wanted in parts are combined in parts; where elements are not sharded in the same way, everywhere."""
    m = mesh(8)
    rows = NamedSharding(m, P("x"))
    f = lambda v, i: jp.reduce_by_index(v, i, H, op)  # noqa: E731
    wanted = np.asarray(jax.jit(f)(X, IDS))
    for spec in (P("x"), P()):
        v, i = (jax.device_put(a, NamedSharding(m, spec)) for a in (X, IDS))
        got = jax.jit(f, out_shardings=rows)(v, i)
        assert got.sharding.spec == P("x")
        assert_close(got, wanted, 1e-4)


def test_many_bins_are_combined_by_shares() -> None:
    """An operator without a name: each device combines an eighth of the bins, then they are gathered."""
    ids = (IDS * 733).astype(np.int32)
    f = lambda v, i: jp.reduce_by_index(v, i, 17_600, jnp.logaddexp)  # noqa: E731
    placed = [jax.device_put(a, NamedSharding(mesh(8), P("x"))) for a in (X, ids)]
    compiled = jax.jit(f).lower(*placed).compile()
    assert "all-to-all" in compiled.as_text() and moved(compiled) == 17_600
    assert_close(compiled(*placed), np.asarray(jax.jit(f)(X, ids)), 1e-4)


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


@pytest.mark.cover(2)
@pytest.mark.parametrize("shape", [(8, 8), (16, 40), (64, 64), (400, 32)])
@pytest.mark.parametrize("name", SMALL)
def test_what_is_left_to_xla_is_divided(name: str, shape: tuple[int, int]) -> None:
    """Small calls that XLA does as well, and their gradients: right, NaN too, and no more is moved than in plain JAX."""
    ours, plain = SMALL[name]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x[3, 5] = np.nan
    back = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(ours(x)))))
    for spec in (P("x"), P(None, "x"), P("y", "x"), P(("y", "x"), None)):
        placed = jax.device_put(x, NamedSharding(mesh(4, 2), spec))
        programs = [jax.jit(f).lower(placed).compile() for f in (ours, plain)]
        assert_close(programs[0](placed), np.asarray(jax.jit(ours)(x)), 1e-5)
        assert moved(programs[0]) <= max(64, 1.1 * moved(programs[1])), spec  # a halo's corners are exchanged with it
        if name != "argmax":
            assert_close(back(placed), np.asarray(back(x)), 1e-5)


def test_gradients_of_sharded_features_move_nothing() -> None:
    """Rows that are gathered from a table lie where the table's features do."""
    x = jax.device_put(X.reshape(-1, 16), NamedSharding(mesh(8), P(None, "x")))
    ids = IDS[: len(x)]
    f = jax.grad(lambda x: jnp.sum(jnp.sin(jp.segment_sum(x, ids, H))))
    compiled = jax.jit(f).lower(x).compile()
    assert moved(compiled) == 0
    assert_close(compiled(x), np.asarray(jax.jit(f)(X.reshape(-1, 16))), 1e-4)


def last(a: Any, b: Any) -> Any:
    return b


OF_SMALL_ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "nearest": lambda row, table: jnp.argmin(jnp.sum((row - table) ** 2, -1)),
    "sorted": lambda row, table: jnp.sort(table @ row),
    "running": lambda row, table: jnp.cumsum(jnp.max(row * table, 0)),
    "median": lambda row, table: jnp.median(table @ row),
    "place": lambda row, table: table[jnp.argmax(table @ row)] * row,
    "loop": lambda row, table: jax.lax.fori_loop(0, 3, lambda _, x: jnp.sin(x) + x[::-1], table @ row),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", OF_SMALL_ROWS)
def test_functions_of_small_rows_whose_features_are_sharded(name: str) -> None:
    """Of few numbers a function may do what no loop nest on arrays does."""
    points, table = X.reshape(-1, 2), jnp.asarray(RNG.standard_normal((7, 2)), jnp.float32)
    of_rows = jax.jit(lambda points, table: jp.scan(points, last, map=lambda row: OF_SMALL_ROWS[name](row, table)))
    wanted = jax.vmap(lambda row: OF_SMALL_ROWS[name](row, table))(points)
    for spec in (P(None, "y"), P("x", "y")):
        places = [jax.device_put(x, NamedSharding(mesh(4, 2), s)) for x, s in ((points, spec), (table, P(None, "y")))]
        assert_close(of_rows(*places), np.asarray(wanted), 1e-5)


@pytest.mark.cover(2)
@pytest.mark.parametrize("n", [2**32, 2**31 + 8, 2**31 + 11])
@pytest.mark.parametrize("name", ["scan", "fold", "batch", "bins"])
def test_axes_of_more_elements_than_shardy_counts(name: str, n: int) -> None:
    """Compiled, not run: of a length that the devices do not divide, too. What is sharded stays where it is."""
    shape = {"batch": (8, n), "bins": (8, 6)}.get(name, (n,))
    calls: dict[str, Callable[[Any], Any]] = {
        "scan": lambda x: jp.scan(x, jnp.bitwise_xor),
        "fold": lambda x: jp.reduce(x, lambda a, b: a + b + a * b),
        "batch": jax.vmap(lambda x: jp.scan(x, jnp.bitwise_xor)),
        "bins": jax.vmap(lambda i: jp.reduce_by_index(i > 1, i, n - n % 8, jnp.logical_or)),
    }
    x = jax.ShapeDtypeStruct(shape, jnp.uint8)
    jax.jit(calls[name]).lower(x)  # on one device
    many = NamedSharding(mesh(4, 2), P(("x", "y")) if x.shape[0] % 8 == 0 else P())
    compiled = jax.jit(calls[name], in_shardings=many).lower(x).compile()
    assert moved(compiled) < 2**16
    if name != "fold" and x.shape[0] % 8 == 0:
        assert compiled.output_shardings.spec == P(("x", "y"))


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


@pytest.mark.dear
def test_what_is_made_of_a_matrix_is_not_gathered_to_be_combined() -> None:
    """Whichever axes are sharded, short or long, what ``fuse`` or ``map`` makes."""
    x = RNG.standard_normal((256, 128)).astype(np.float32)
    fused = jp.fuse(lambda x: (jnp.sum(x * x), jnp.max(jnp.abs(x))))
    for f in (fused, jax.grad(lambda x: fused(x)[0]), lambda x: jp.reduce(x, jnp.maximum, map=lambda v: v * v)):
        wanted = jax.tree.map(np.asarray, jax.jit(f)(x))
        for spec in (P(None, "x"), P("x", "y"), P("y", None)):
            placed = jax.device_put(x, NamedSharding(mesh(4, 2), spec))
            compiled = jax.jit(f).lower(placed).compile()
            assert "all-gather" not in compiled.as_text() and moved(compiled) <= 256
            assert_close(compiled(placed), wanted, 1e-5)


@pytest.mark.cover(2)
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


@pytest.mark.cover(2)
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.dear
def test_numbers_of_64_bits_in_a_context(dtype: Any, x64: bool) -> None:
    """XLA's partitioner asks in a thread of its own, where numbers are as wide as outside of ``jax.enable_x64``."""
    calls: dict[str, Callable[..., Any]] = {
        "sum": lambda x, i: jp.segment_sum(x, i, H),
        "fold": lambda x, i: jp.reduce(x, lambda a, b: jnp.maximum(a, b)),
        "scan": lambda x, i: jp.cumsum(x),
        "counts": lambda x, i: jp.bincount(i, length=H),
        "stencil": lambda x, i: jp.stencil(lambda a: a[-1] + a[1], [x]),
        "wide inside": lambda x, i: jp.reduce(x, jnp.add, map=lambda v: jnp.round(v.astype(float) * 1e3).astype(int)),
    }
    with jax.enable_x64(x64):
        x = np.asarray(jnp.asarray((X * 100).astype(dtype)))
        places = [jax.device_put(a, NamedSharding(mesh(8), P("x"))) for a in (x, IDS)]
        for name, fn in calls.items():
            alone, over = jax.jit(fn)(x, IDS), jax.jit(fn)(*places)
            assert alone.dtype == over.dtype, name
            np.testing.assert_allclose(over, alone, rtol=1e-4, atol=1 if x.dtype == np.float32 else 1e-9, err_msg=name)
        if jnp.issubdtype(dtype, jnp.inexact):
            for k in ("sum", "stencil", "fold"):
                grad = jax.jit(jax.grad(lambda x, i, k=k: (calls[k](x, i) ** 2).sum()))
                np.testing.assert_allclose(grad(*places), grad(x, IDS), rtol=1e-3, err_msg=k)
