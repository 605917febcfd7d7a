"""``fuse``: under every transformation, with rules of its own, exported, sharded; random programs and their derivatives."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from exports import export
from fused import IDS, N, X, Y, kernels, same
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from meshes import mesh as mesh_of

import jaxprims as jp
from jaxprims.fusion.graph import flat_graph

# --- transformations ----------------------------------------------------------------------------------------------------------


def model(x: Any, w: Any) -> Any:
    y = jnp.tanh(x * w[IDS])
    return jnp.sum(jax.ops.segment_sum(y * y, IDS, 50) ** 2) / N + jnp.max(x) + jnp.mean(jnp.sin(x) * x)


W = jnp.linspace(0.5, 1, 50)
FUSED = jp.fuse(model)


@pytest.mark.dear
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


@pytest.mark.dear
def test_results_of_no_batch_are_none() -> None:
    """Where nothing of the batch comes in."""

    def f(x: Any, w: Any) -> Any:
        return jnp.sum(x * x), jnp.max(x * w), jnp.cumsum(w), jnp.float32(2)

    how: Any = {"in_axes": (0, None), "out_axes": (0, 0, None, None)}
    xs = jnp.stack([X, 2 * X, Y])
    same(jax.vmap(f, **how)(xs, Y), jax.vmap(jp.fuse(f), **how)(xs, Y))


def _turned(x: Any) -> Any:
    return jax.lax.ppermute(x, "batch", [(k, (k + 1) % 3) for k in range(3)])


@jax.custom_vjp
def _turned_back(x: Any) -> Any:
    return jnp.sin(x)


_turned_back.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (_turned(g) * x,))


@jax.custom_jvp
def _turned_tangents(x: Any) -> Any:
    return jnp.sin(x)


_turned_tangents.defjvp(lambda x, dx: (jnp.sin(x[0]), jax.lax.psum(_turned(dx[0]), "batch")))


@pytest.mark.parametrize("f", [_turned, lambda x: _turned_back(x) - _turned_tangents(x)], ids=["in it", "in its rules"])
def test_named_axes_of_batches(f: Any) -> None:
    """Derivatives within the batch and around it."""

    def made(f: Any) -> Any:
        batch: Any = functools.partial(jax.vmap, axis_name="batch")
        within = batch(lambda x: jax.vjp(f, x)[1](x))
        around = jax.grad(lambda x: jnp.sum(jnp.sin(batch(f)(x))))
        return jax.jit(lambda x: (batch(f)(x), within(x), around(x)))(jnp.arange(12.0).reshape(3, 4))

    def g(x: Any) -> Any:
        return jnp.sum(f(x) * x) + x

    same(made(g), made(jp.fuse(g)))


def test_inside_loops_and_conditions() -> None:
    def steps(f: Any, w: Any) -> Any:
        w = jax.lax.fori_loop(0, 3, lambda _, w: w - 0.1 * jax.grad(f, 1)(X, w), w)
        return jax.lax.cond(w[0] > 0, lambda: f(X, w), lambda: f(Y, w))

    same(steps(model, W), steps(FUSED, W), 1e-3)
    same(steps(model, W), jp.fuse(lambda w: steps(model, w))(W), 1e-3)


def test_checkpoint() -> None:
    same(jax.grad(jax.checkpoint(FUSED), 1)(X, W), jax.grad(model, 1)(X, W), 1e-3)
    same(jp.fuse(jax.grad(jax.checkpoint(model), 1))(X, W), jax.grad(model, 1)(X, W), 1e-3)


@pytest.mark.dear
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


@pytest.mark.dear
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
    exported = export(jax.jit(FUSED))(*args)
    same(model(X, W), jax.export.deserialize(exported.serialize()).call(X, W))


def test_sizes_that_are_not_known() -> None:
    def f(x: Any) -> Any:
        return jnp.sum(x * 2), jnp.cumsum(x), jnp.argmax(x)

    n = jax.export.symbolic_shape("n")
    exported = export(jax.jit(jp.fuse(f)))(jax.ShapeDtypeStruct(n, jnp.float32))
    same(f(X), exported.call(X))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.sum(jnp.sin(x), 0) * jnp.max(x, 0),
        lambda x: jnp.max(jnp.exp(x @ x.T), 1),
        lambda x: jax.lax.dynamic_slice_in_dim(x, 1, 2, 0)[:, 1:] * 2,
        lambda x: x[1:] - jnp.pad(x, 1)[:-3, 1:-1],
    ],
    ids=["columns", "product", "slice", "shifts"],
)
def test_plans_of_sizes_that_are_not_known(f: Any) -> None:
    """They are made, of derivatives and batches too."""
    for shape in ("n, 6", "6, n", "n, m"):
        x = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, constraints=["n >= 2"]), jnp.float32)
        for fn in (f, jax.grad(lambda x: jnp.sum(f(x)))):
            kernels(fn, x)
        jax.make_jaxpr(jax.grad(lambda x: jnp.sum(jax.vmap(jp.fuse(f))(x[None]))))(x)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jax.lax.fori_loop(0, 3, lambda _, c: c * 0.5 + jnp.cumsum(c) * 1e-4 + jnp.sum(x[0]), X),
        lambda x: jnp.sum(jnp.where(IDS == 2, jnp.exp(X), 0) * x[0, IDS % x.shape[1]]),
        lambda x: jax.vmap(lambda row: jax.lax.scan(lambda c, y: (0.9 * c + y,) * 2, 0.0, row)[1])(x),
    ],
    ids=["loop", "gather", "recurrences"],
)
def test_sizes_that_are_not_known_beside_such_that_are(f: Any) -> None:
    x = jax.ShapeDtypeStruct((*jax.export.symbolic_shape("n"), 600), jnp.float32)
    y = jax.ShapeDtypeStruct((2, *jax.export.symbolic_shape("n")), jnp.float32)
    for shape, array in ((x, X[:3000].reshape(5, 600)), (y, X[:1300].reshape(2, 650))):
        for fn in (f, jax.grad(lambda x: jnp.sum(jnp.tanh(f(x))))):
            same(fn(array), export(jax.jit(jp.fuse(fn)))(shape).call(array), 1e-3)
        jax.make_jaxpr(jax.grad(lambda x: jnp.sum(jp.fuse(f)(x))))(shape)


@pytest.mark.dear
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


def test_shardings_of_batches() -> None:
    """``vmap`` may name the mesh's axis that a batch is sharded over."""
    mesh = mesh_of(4)

    def f(x: Any) -> Any:
        return jnp.max(jax.lax.with_sharding_constraint(x, jax.NamedSharding(mesh, P(None))) * 2), x + 1

    def sharding(f: Any) -> Any:
        return jax.jit(jax.vmap(f, spmd_axis_name="x"))(jnp.ones((8, 5)))[0].sharding

    assert sharding(f).spec == P("x")
    assert sharding(jp.fuse(f)).is_equivalent_to(sharding(f), 1)


def test_types_that_say_where_parts_are() -> None:
    """On explicit axes: as an argument, inside alone, and parts that are still to be added."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,))

    def unadded(a: Any, b: Any) -> Any:
        c = jnp.einsum("ij,jk->ik", a, b, out_sharding=P(None, None, unreduced={"x"}))
        return c + c

    def added(c: Any) -> Any:
        return jax.sharding.reshard(c + c, P(None, None))

    def inside(x: Any) -> Any:
        y = jax.sharding.reshard(x, P("x"))
        return jnp.sum(y * y), y * 2, jnp.max(y)

    with jax.set_mesh(mesh):
        a = jax.sharding.reshard(jnp.arange(32.0).reshape(4, 8), P(None, "x"))
        b = jax.sharding.reshard(jnp.arange(32.0).reshape(8, 4), P("x", None))
        parts = jax.jit(unadded)(a, b)
        for f, args in [(unadded, (a, b)), (lambda *x: added(unadded(*x)), (a, b)), (added, (parts,)), (inside, (X,))]:
            for fused in (jp.fuse(f), jax.jit(jp.fuse(f))):
                expected, got = jax.tree.leaves(jax.jit(f)(*args)), jax.tree.leaves(fused(*args))
                assert [jax.typeof(x) for x in got] == [jax.typeof(x) for x in expected]
                for e, g in zip(expected, got, strict=True):
                    for mine, other in zip(e.addressable_shards, g.addressable_shards, strict=True):
                        np.testing.assert_allclose(other.data, mine.data, rtol=1e-5)


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
@pytest.mark.dear
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


def test_rules_that_return_symbolic_zeros_are_pushed_forward() -> None:
    """JAX cannot linearize them."""

    @jax.custom_jvp
    def steps(x: Any) -> Any:
        return jnp.floor(x * 4)

    @steps.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return steps(*primals), jax.custom_derivatives.zero_from_primal(*primals, symbolic_zeros=True)

    def program(x: Any) -> Any:
        return steps(x), jnp.sum(steps(x) * x)

    for fn in (lambda f: f, jax.vmap):
        wanted, got = (jax.jvp(fn(f), (X.reshape(40, 1000),), (Y.reshape(40, 1000),)) for f in (program, jp.fuse(program)))
        same(wanted, got)
