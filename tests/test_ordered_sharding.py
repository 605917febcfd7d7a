"""Scans and reductions on several devices: eight forced host devices (see ``conftest.py``)."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import assert_no_communication, mesh
from odd_operators import weighed_mean
from references import assert_close, matmul

import jaxprims as jp


def matrices(n: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(0).standard_normal((n, 2, 2)))[0].astype(np.float32)


def test_batch_axes_are_split_without_communication() -> None:
    m = mesh(8)
    split = NamedSharding(m, P("x"))
    x = matrices(16 * 50).reshape(16, 50, 2, 2)
    f = jax.vmap(lambda m: (jp.scan(m, matmul), jp.reduce(m, matmul, axis=0)))
    compiled = jax.jit(f, in_shardings=split).lower(x).compile()
    assert_no_communication(compiled)
    got = compiled(jax.device_put(x, split))
    assert not any(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(got))
    for g, w in zip(got, jax.jit(f)(x), strict=True):
        assert_close(g, np.asarray(w), 1e-5)
    rows = jax.jit(lambda x: jp.cumsum(x, axis=1), in_shardings=split).lower(np.ones((16, 40, 3), np.float32)).compile()
    assert_no_communication(rows)


OPTIONS = [options for options in itertools.product((False, True), repeat=4) if sum(options) % 2 == 0]  # every three of them


@pytest.mark.cover(3)
@pytest.mark.parametrize(("exclusive", "reverse", "init", "segments"), OPTIONS)
def test_along_a_sharded_axis(exclusive: bool, reverse: bool, init: bool, segments: bool) -> None:
    """Local scans, an exclusive scan of the totals, combined: of matrices, whose order shows."""
    x = matrices(40)
    starts = np.random.default_rng(1).random(40) < 0.15
    options: dict[str, Any] = {"exclusive": exclusive, "reverse": reverse, "identity": np.eye(2, dtype=np.float32)}
    if init:
        options["init"] = np.array([[1, 2], [3, 4]], np.float32)

    def local(x: Any, starts: Any) -> Any:
        return jp.scan(x, matmul, segment_starts=starts if segments else None, axis_name="x", **options)

    f = jax.jit(jax.shard_map(local, mesh=mesh(8), in_specs=(P("x"), P("x")), out_specs=P("x")))
    if not init and not exclusive:
        options.pop("identity")
    options.pop("identity" if init else "", None)
    assert_close(f(x, starts), references.scan(x, matmul, starts=starts if segments else None, **options), 1e-4)


def test_along_a_sharded_axis_of_a_matrix() -> None:
    """Another axis, two mesh axes, and a gradient through it."""
    x = np.random.default_rng(0).standard_normal((3, 16, 5)).astype(np.float32)
    m = mesh(4, 2)

    def total(x: Any) -> Any:
        f = jax.shard_map(
            lambda x: jp.scan(x, axis=1, axis_name=("x", "y")),
            mesh=m,
            in_specs=P(None, ("x", "y")),
            out_specs=P(None, ("x", "y")),
        )
        return f(x)

    assert_close(jax.jit(total)(x), np.cumsum(x, 1), 1e-5)
    weight = np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)
    got = jax.jit(jax.grad(lambda x: jnp.sum(total(x) * weight)))(x)
    assert_close(got, np.flip(np.cumsum(np.flip(weight, 1), 1), 1), 1e-5)


def test_local_work_inside_shard_map() -> None:
    """Without an axis name each device scans its own; replicated captured arrays are fine."""
    x, w = np.arange(32.0, dtype=np.float32), jnp.asarray(np.float32(2))
    f = jax.shard_map(lambda x, w: jp.scan(x, map=lambda v: v * w), mesh=mesh(8), in_specs=(P("x"), P()), out_specs=P("x"))
    assert_close(jax.jit(f)(x, w), np.cumsum(2 * x.reshape(8, 4), 1).reshape(-1))


@pytest.mark.dear
def test_tangents_that_vary_of_what_does_not() -> None:
    """And those that do not, of what does: as far as JAX's own arithmetic takes them."""
    m = mesh(8)
    alike, each = jnp.arange(1.0, 6), jnp.cos(jnp.arange(40.0)).reshape(8, 5)
    calls = [
        lambda x: jp.scan(x, jnp.multiply),
        lambda x: jp.scan((x, x), jp.monoids.affine)[1],
        lambda x: jp.reduce(x, lambda a, b: a + b + a * b, identity=0.0),
        lambda x: jp.reduce_by_index(x, jnp.zeros(5, int), 2, lambda a, b: a + b + a * b, identity=0.0),
        lambda x: jp.segment_max(x, jnp.zeros(5, int), 2),
    ]
    for f in calls:

        def tangent(x: Any, dot: Any, f: Any = f) -> Any:
            return jax.jvp(f, (x,), (dot,))[1]

        run = jax.shard_map(lambda x, d: tangent(x, d[0])[None], mesh=m, in_specs=(P(), P("x")), out_specs=P("x"))
        assert_close(jax.jit(run)(alike, each), np.asarray(jax.jit(jax.vmap(tangent, (None, 0)))(alike, each)))
        run = jax.shard_map(lambda x, d: tangent(x[0], d)[None], mesh=m, in_specs=(P("x"), P()), out_specs=P("x"))
        assert_close(jax.jit(run)(each, alike), np.asarray(jax.jit(jax.vmap(tangent, (0, None)))(each, alike)))


def test_an_init_that_varies_of_what_does_not() -> None:
    """And begins a segment, which the operator has to combine with it beforehand."""
    x, init, begins = np.arange(5.0, dtype=np.float32), np.arange(8.0, dtype=np.float32), np.arange(40).reshape(8, 5) % 3 == 0

    def mine(x: Any, s: Any, begins: Any) -> Any:
        return jp.scan(x, lambda a, b: a - (-b), init=s, segment_starts=begins)

    run = jax.shard_map(lambda x, s, b: mine(x, s[0], b[0])[None], mesh=mesh(8), in_specs=(P(), P("x"), P("x")), out_specs=P("x"))
    assert_close(jax.jit(run)(x, init, begins), np.stack([mine(x, *row) for row in zip(init, begins, strict=True)]))


@pytest.mark.dear
def test_an_operator_meets_what_varies_besides_elements() -> None:
    """It is traced for starts, restarts and segments too, whose axes its literals have to share."""
    x, begins = jnp.cos(jnp.arange(5.0)), np.arange(40).reshape(8, 5) % 3 == 0

    def bounded(a: Any, b: Any) -> Any:
        return jnp.where(a + b > 1.5, 1.5, a + b)

    def smooth(x: Any, begins: Any) -> Any:
        return jp.scan(x, jnp.logaddexp, segment_starts=begins)

    def curvature(x: Any, begins: Any) -> Any:
        gradient = jax.grad(lambda x: jnp.sum(jnp.sin(smooth(x, begins))))
        return jax.vjp(gradient, x)[1](jax.lax.stop_gradient(x))[0]

    calls = [
        lambda x, begins: jp.scan(x, bounded, init=0.5, segment_starts=begins),
        lambda x, begins: jp.reduce(x, bounded, init=jnp.sum(begins) * 0.25),
        lambda x, begins: jp.segment_reduce(x, jnp.cumsum(begins), bounded, identity=0.0, num_segments=3),
        smooth,
        curvature,
    ]
    for f in calls:
        run = jax.shard_map(lambda x, b, f=f: f(x, b[0])[None], mesh=mesh(8), in_specs=(P(), P("x")), out_specs=P("x"))
        want = np.stack([f(x, row) for row in begins])
        if f is curvature:
            want = np.broadcast_to(want.sum(0), want.shape)
        assert_close((run if f is smooth else jax.jit(run))(x, begins), want)


OWN: dict[str, Any] = {
    "complex": (lambda a, b: a + b + (1 - 2j) * a * b, jnp.complex64(0)),
    "a mean": (weighed_mean, (0.0, 0.0)),
    "a branch": (lambda a, b: jax.lax.cond(a > 0.5, lambda: a + b - 0.5 * a * b, lambda: a + b - a * b * 0.5), 0.0),
    "a loop": (lambda a, b: jax.lax.fori_loop(0, 2, lambda _, y: y + 0.5 * (b + a * b), a), 0.0),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.cover(1)
@pytest.mark.dear
def test_derivatives_of_operators_with_constants(name: str) -> None:
    """Traced where arrays vary, an operator has constants that do, too; rules look at it where nothing does."""
    op, identity = OWN[name]
    ids, leaf = jnp.arange(6) // 4, jnp.asarray(jax.tree.leaves(identity)[0])
    x = (1.5 + np.random.default_rng(3).random((8, 6))).astype(leaf.dtype)
    calls = [
        lambda x: jp.reduce(x, op, identity=identity),
        lambda x: jp.scan(x, op, reverse=True),
        lambda x: jp.segment_reduce(x, ids, op, num_segments=2, identity=identity),
        lambda x: jp.reduce_by_index(x, ids, 2, op, identity=identity),
    ]

    def of(f: Any, x: Any) -> Any:
        leaves = jax.tree.leaves(f(x if len(jax.tree.leaves(identity)) == 1 else (x, x * x)))
        return sum(jnp.sum(jnp.real(y * y)) for y in leaves)

    def both(x: Any) -> list[Any]:
        first = [jax.grad(functools.partial(of, f)) for f in calls]
        return [g(x) for g in first] + [jax.jvp(g, (x,), (x,))[1] for g in first]

    own = lambda x: [g[None] for g in both(x[0])]  # noqa: E731
    run = jax.shard_map(own, mesh=mesh(8), in_specs=P("x"), out_specs=P("x"))
    for got, wanted in zip(jax.jit(run)(x), jax.jit(jax.vmap(both))(x), strict=True):
        assert_close(got, np.asarray(wanted), 1e-3)


def test_transposed_weights() -> None:
    """Of a histogram on each device: its part of the cotangent, not all devices' sum."""
    x, w, ct = (
        np.random.default_rng(k).integers(1, 5, shape).astype(np.float32) for k, shape in enumerate([(8, 2), (8, 2), (8, 5)])
    )

    def weighted(m: Any) -> Any:
        f = lambda x, w: m.histogram(x[0], 5, (0.0, 5.0), weights=w[0])[0][None]  # noqa: E731
        each = jax.shard_map(f, mesh=mesh(8), in_specs=(P("x"), P("x")), out_specs=P("x"))
        return jax.jit(lambda ct: jax.linear_transpose(lambda w: each(x, w), w)(ct)[0])(ct)

    assert_close(weighted(jp), weighted(jnp))


@pytest.mark.cover(2)
@pytest.mark.parametrize("spec", [P("x", None, None), P("y", None, "x"), P(None, ("x", "y"), None)])
def test_explicit_sharding(spec: Any) -> None:
    """The drop-ins keep, and refuse, what JAX's own do."""

    def affine(a: Any, b: Any) -> Any:
        return a[0] * b[0], b[0] * a[1] + b[1]

    def outcome(lax: Any, axis: int, x: Any) -> Any:
        def all_of_them(x: Any) -> Any:
            total, back = jax.value_and_grad(lambda x: jnp.sum(lax.cumsum(x, axis) ** 2))(x)
            each = jax.vmap(lambda x: lax.cummax(x, 0))(jnp.moveaxis(x, axis, 1))
            return lax.cumlogsumexp(x, axis, True), lax.associative_scan(affine, (x, x), axis=axis), total, back, each

        try:
            return jax.jit(all_of_them)(x)
        except Exception as error:
            return type(error)

    explicit = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(explicit):
        x = jax.device_put(np.random.default_rng(0).random((8, 8, 4)).astype(np.float32), NamedSharding(explicit, spec))
        for axis in range(3):
            got, want = outcome(jp, axis, x), outcome(jax.lax, axis, x)
            assert isinstance(want, type) == (spec[axis] is not None)
            if isinstance(want, type):
                assert got is want
                continue
            assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, want)
            assert_close(got, jax.tree.map(np.asarray, want), 1e-4)


@pytest.mark.cover(2)
@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_positions_of_extremes_on_explicit_meshes(axis: int | None) -> None:
    """Where JAX has a result along a sharded axis, there is one, of the same type."""
    m = mesh(4, 2, explicit=True)
    with jax.set_mesh(m):
        x = jax.device_put(np.random.default_rng(0).random((8, 3, 4)).astype(np.float32), NamedSharding(m, P("x", None, "y")))
        for name in ("argmax", "argmin", "nanargmax"):
            try:
                want = getattr(jnp, name)(x, axis)
            except Exception as error:
                with pytest.raises(type(error)):
                    getattr(jp, name)(x, axis)
                continue
            for got in (getattr(jp, name)(x, axis), jax.jit(getattr(jp, name), static_argnums=1)(x, axis)):
                assert jax.typeof(got) == jax.typeof(want)
                np.testing.assert_array_equal(got, want)


def test_one_mesh_after_another() -> None:
    """What was traced on a mesh with explicit axes is not taken for another mesh, or for none."""
    x = np.random.default_rng(0).random((8, 8)).astype(np.float32)
    gradient = jax.grad(lambda x: jnp.sum(jp.cumlogsumexp(x, 1) ** 2))
    wanted = jax.jit(jax.grad(lambda x: jnp.sum(jax.lax.cumlogsumexp(x, 1) ** 2)))(x)
    for m in (mesh(4, 2, explicit=True), mesh(2, explicit=True)):
        with jax.set_mesh(m):
            got = jax.jit(gradient)(jax.device_put(x, NamedSharding(m, P("x"))))
        assert_close(np.asarray(got), np.asarray(wanted), 1e-4)
    alike = jax.shard_map(gradient, mesh=mesh(2), in_specs=P(), out_specs=P())
    for f in (alike, gradient):
        assert_close(np.asarray(jax.jit(f)(x)), np.asarray(wanted), 1e-4)


@pytest.mark.filterwarnings("ignore::jaxprims.FallbackWarning")
def test_an_operator_without_a_kernel_on_one_mesh_after_another() -> None:
    """Which plain XLA does with what was traced of it, whatever mesh that was on."""
    x = np.sort(np.random.default_rng(0).normal(size=(8, 40)).astype(np.float32), 1)

    def sums(x: Any) -> Any:
        return jp.scan(x, lambda a, b: jnp.sort(jnp.maximum(a, b)))

    for size, explicit, checked in ((8, False, True), (4, True, False), (2, False, True), (2, False, False)):
        m = mesh(size, explicit=explicit)
        with jax.set_mesh(m):
            run = jax.jit(jax.shard_map(sums, mesh=m, in_specs=P("x"), out_specs=P("x"), check_vma=checked))
            got = run(jax.device_put(x, NamedSharding(m, P("x"))))
        wanted = np.maximum.accumulate(x.reshape(size, -1, 40), 1).reshape(x.shape)
        assert_close(np.asarray(got), wanted, 1e-6)


@pytest.mark.strategies
@pytest.mark.dear
def test_few_elements_on_one_mesh_after_another() -> None:
    """Which plain XLA does, with operators that were traced once for all."""
    x = np.linspace(0.5, 1.5, 48, dtype=np.float32).reshape(8, 6)
    calls = [
        lambda v: jp.linear_recurrence(v, v),
        lambda v: jp.scan(v, segment_starts=v > 1),
        jax.grad(lambda v: jnp.sum(jnp.sin(jp.cumprod(v)))),
        jax.grad(lambda v: jnp.sum(jp.scan(v, lambda a, b: a * b + a + b, segment_starts=v > 1))),
    ]
    for f in calls:
        results = []
        for size, checked in ((2, True), (8, True), (4, False)):
            run = jax.shard_map(jax.vmap(f), mesh=mesh(size), in_specs=P("x"), out_specs=P("x"), check_vma=checked)
            results.append(np.asarray(jax.jit(run)(x)))
        for got in results:
            assert_close(got, np.stack([jax.jit(f)(row) for row in x]), 1e-5)


@pytest.mark.dear
def test_second_derivatives_of_rows_eagerly() -> None:
    """What a rule makes of elements is traced for the axes over which they vary."""
    x = jnp.arange(1.0, 81.0).reshape(8, 2, 5)
    for op, plain in ((jnp.multiply, jnp.prod), (jnp.maximum, jnp.max)):
        f = jax.shard_map(lambda x, op=op: jp.reduce(x, op, axis=2), mesh=mesh(8), in_specs=P("x"), out_specs=P("x"))
        twice = lambda g: jax.jvp(jax.grad(lambda x: (g(x) ** 2).sum()), (x,), (x,))  # noqa: E731
        got, wanted = twice(f), jax.jit(lambda p=plain: twice(lambda x: p(x, axis=2)))()
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
