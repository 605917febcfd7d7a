"""The histograms on several devices: eight forced host devices (see ``conftest.py``)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from exports import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import assert_no_communication, mesh, moved
from references import BY_NAME, assert_close

import jaxprims as jp
from jaxprims.tracing.varying import vary

H = 5


def data(*shape: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return references.normal(rng, *shape), rng.integers(-1, H + 1, shape).astype(np.int32)


def sums(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    return references.reduce_by_index(values, index, H, np.add, 0.0)


def test_batch_axes_are_split_without_communication() -> None:
    """Values, indices, both; what is not batched (constants of a struct among them) is the same on every device."""
    m = mesh(8)
    rows = NamedSharding(m, P("x"))
    v, i = data(16, 300)
    one = lambda v, i: jp.reduce_by_index(v, i, H)  # noqa: E731
    mean = lambda v, i: jp.reduce_by_index(  # noqa: E731
        (jnp.ones_like(v), v, jnp.zeros_like(v)), i, H, BY_NAME["mean_variance"].op, identity=(0.0, 0.0, 0.0)
    )
    for f, args, shardings in (
        (jax.vmap(one), (v, i), (rows, rows)),
        (jax.vmap(one, (0, None)), (v, i[0]), (rows, None)),
        (jax.vmap(one, (None, 0)), (v[0], i), (None, rows)),
        (jax.vmap(mean), (v, i), (rows, rows)),
    ):
        compiled = jax.jit(f, in_shardings=shardings).lower(*args).compile()
        assert_no_communication(compiled)
        placed = [x if s is None else jax.device_put(x, s) for x, s in zip(args, shardings, strict=True)]
        got = compiled(*placed)
        assert not any(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(got))
        for k in range(0, 16, 5):
            alone = jax.tree.map(lambda x, k=k: x[k], jax.jit(f)(*args))
            assert_close(jax.tree.map(lambda x, k=k: x[k], got), jax.tree.map(np.asarray, alone), 1e-5)


def test_two_batch_axes_over_two_mesh_axes() -> None:
    m = mesh(4, 2)
    v, i = data(8, 6, 200)
    f = jax.vmap(jax.vmap(lambda v, i: jp.reduce_by_index(v, i, H, jnp.maximum)))
    both = NamedSharding(m, P("x", "y"))
    compiled = jax.jit(f, in_shardings=(both, both)).lower(v, i).compile()
    assert_no_communication(compiled)
    got = compiled(jax.device_put(v, both), jax.device_put(i, both))
    assert got.sharding.spec == P("x", "y")
    assert_close(got[7, 5], references.reduce_by_index(v[7, 5], i[7, 5], H, np.maximum, -np.inf))


def test_gradients_of_a_split_batch() -> None:
    rows = NamedSharding(mesh(8), P("x"))
    v, i = data(8, 100)
    loss = lambda v, i: jnp.sum(jax.vmap(lambda v, i: jp.reduce_by_index(v, i, H, jnp.logaddexp))(v, i)[:, :2] ** 2)  # noqa: E731
    f = jax.jit(jax.grad(loss), in_shardings=(rows, rows))
    got = f(jax.device_put(v, rows), jax.device_put(i, rows))
    assert_close(got, np.asarray(jax.grad(loss)(v, i)), 1e-5)


def test_split_elements_are_gathered_if_nobody_says_how_to_combine() -> None:
    """Right, though not without communication: ``shard_map`` is the way, below."""
    rows = NamedSharding(mesh(8), P("x"))
    v, i = data(800)
    got = jax.jit(lambda v, i: jp.reduce_by_index(v, i, H), in_shardings=(rows, rows))(v, i)
    assert_close(got, sums(v, i))


@pytest.mark.parametrize("name", ["add", "max", "argmax", "packed", "einstein"])
def test_each_device_its_own_histogram(name: str) -> None:
    """Elements split: partial histograms, then a collective, or all gathered and combined by the operator."""
    case = BY_NAME[name]
    m = mesh(8)
    v, i = case.sample(np.random.default_rng(0), 800), data(800)[1]

    @jax.jit
    @jax.shard_map(mesh=m, in_specs=(P("x"), P("x")), out_specs=P(), check_vma=name in ("add", "max"))
    def f(v: Any, i: Any) -> Any:
        mine = jp.reduce_by_index(v, i, H, case.op, identity=case.given)
        if name == "add":
            return jax.lax.psum(mine, "x")
        if name == "max":
            return jax.lax.pmax(mine, "x")
        all_of_them = jax.tree.map(lambda x: jax.lax.all_gather(x, "x"), mine)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), all_of_them)
        which = jnp.tile(jnp.arange(H), 8)
        return jp.reduce_by_index(flat, which, H, case.op, identity=case.given)

    assert_close(f(v, i), references.reduce_by_index(v, i, H, case.reference, case.identity), 1e-4)


@pytest.mark.cover(2)
@pytest.mark.parametrize("op", [jnp.add, jnp.maximum, jnp.multiply, references.einstein])
def test_gradients_under_shard_map(op: Any) -> None:
    """Inside and through ``shard_map``; with replicated captured arrays, indices and dest beside varying values."""
    m = mesh(8)
    v, i = data(80)
    v = np.tanh(v) / 2 + 0.75 if op is not references.einstein else v / 8
    table, dest = jnp.linspace(0.5, 1.5, 4), jnp.linspace(0.1, 0.4, H)

    def local(v: Any, i: Any, table: Any, dest: Any) -> Any:
        mine = jp.genhist(lambda i, v: (i, v * table[i % 4]), (i, v), jp.Bins(H, op, identity=None, dest=dest))
        return jnp.sum(jnp.sin(mine))

    @jax.shard_map(mesh=m, in_specs=(P("x"), P("x"), P(), P()), out_specs=P())
    def total(v: Any, i: Any, table: Any, dest: Any) -> Any:
        return jax.lax.psum(local(v, i, table, dest), "x")

    def reference(v: Any, i: Any, table: Any, dest: Any) -> Any:
        return jnp.sum(jax.vmap(local, (0, 0, None, None))(v.reshape(8, 10), i.reshape(8, 10), table, dest))

    got = jax.jit(jax.grad(total, (0, 2, 3)))(v, i, table, dest)
    assert_close(got, jax.tree.map(np.asarray, jax.jit(jax.grad(reference, (0, 2, 3)))(v, i, table, dest)), 1e-4)

    @jax.jit
    @jax.shard_map(mesh=m, in_specs=(P("x"), P("x"), P(), P()), out_specs=(P("x"), P()))
    def inside(v: Any, i: Any, table: Any, dest: Any) -> Any:
        gv, gd = jax.grad(local, (0, 3))(v, i, table, dest)
        return gv, gd

    per_device, replicated = inside(v, i, table, dest)
    assert_close(per_device, np.asarray(got[0]), 1e-4)
    assert_close(replicated, np.asarray(got[2]), 1e-4)  # the gradient of what is replicated is summed over the devices


def test_mixed_varying_and_replicated() -> None:
    """Replicated values with varying indices, positions, a vmap inside."""
    m = mesh(8)
    v, i = data(64)

    @jax.jit
    @jax.shard_map(mesh=m, in_specs=(P(), P("x")), out_specs=P("x"))
    def f(v: Any, i: Any) -> Any:
        return jp.reduce_by_index((v[: i.shape[0]], jp.positions), i, H, jp.monoids.argmax)[0][None]

    got = f(v, i)
    for k in range(8):
        wanted = references.reduce_by_index(v[:8], i[8 * k : 8 * k + 8], H, np.maximum, -np.inf)
        assert_close(got[k], wanted)

    @jax.jit
    @jax.shard_map(mesh=m, in_specs=(P(), P("x")), out_specs=P("x"))
    def g(v: Any, i: Any) -> Any:
        return jax.vmap(lambda s: jp.reduce_by_index(s * v[: i.shape[0]], i, H))(jnp.arange(2.0))[None]

    assert_close(g(v, i)[3, 1], sums(v[:8], i[24:32]))


EDGES = np.array([-2, -1.5, 0, 0.25, 3], np.float32)
SEGMENTS = "sum prod max min mean logsumexp softmax argmax argmin".split()
STARTS = np.array([0, 2, 2, 7, 11], np.int32)
DROP_INS: dict[str, Any] = {
    "histogram": lambda v, i: jp.histogram(v, 4),
    "histogram of integers": lambda v, i: jp.histogram(i, 3, (-1, H), v),
    "histogram, edges": lambda v, i: jp.histogram(v, EDGES, weights=i * v, density=True)[0],
    "histogram, edges, many elements": lambda v, i: jp.histogram(jnp.tile(v, 20) + EDGES[0], EDGES * v[0]),
    "histogram2d": lambda v, i: jp.histogram2d(v, i, 3),
    "histogramdd": lambda v, i: jp.histogramdd(jnp.stack([v, v * i], 1), EDGES[None].repeat(2, 0), weights=i * v),
    "bincount": lambda v, i: jp.bincount(i, length=H),
    "bincount, weights": lambda v, i: jp.bincount(i, v, length=H),
    "cum*": lambda v, i: [
        jp.cumsum(v),
        jp.cumprod(v, reverse=True),
        jp.cummax(v * i),
        jp.cummin(v * i, reverse=True),
        jp.cumlogsumexp(v),
    ],
    "argmax": lambda v, i: (jp.argmax(v), jp.argmin(v * i)),
    "associative_scan": lambda v, i: jp.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (v, v[0] * i)),
    "linear_recurrence": lambda v, i: (jp.linear_recurrence(v, i, v[1]), jp.linear_recurrence(v[2] * i, v, reverse=True)),
    "group_by_index": lambda v, i: jp.group_by_index(i, H)[0],
    "segment_reduce": lambda v, i: jp.segment_reduce(v * i, jp.Offsets(STARTS)),
    **{f"segment_{f}": lambda v, i, f=f: getattr(jp, f"segment_{f}")(v, i, H) for f in SEGMENTS[1:8]},
    "segment_*, rows, sorted ids": lambda v, i: [
        getattr(jp, f"segment_{f}")(jnp.stack([v, v], 1), jnp.sort(i), H, True) for f in SEGMENTS[3:8]
    ],
    "segment_*, clip": lambda v, i: [getattr(jp, f"segment_{f}")(v, i, H, mode="clip") for f in ("sum", "mean", "argmax")],
    "segment_*, buckets": lambda v, i: [getattr(jp, f"segment_{f}")(v, i, H, bucket_size=5) for f in ("sum", "max")],
    "segment_*, Offsets": lambda v, i: [getattr(jp, f"segment_{f}")(v * i, jp.Offsets(STARTS)) for f in SEGMENTS[4:]],
}


OF_EDGES_ALONE = ("histogram2d", "histogram, edges, many elements")  # their gradients


@pytest.mark.parametrize("name", DROP_INS)
@pytest.mark.cover(2)
def test_drop_ins_inside_shard_map(name: str) -> None:
    """Every device gets what the function gives without ``shard_map``; one operand sharded, the other replicated. The gradient
    with one of them sharded, in turn."""
    f, m, n = DROP_INS[name], mesh(2), 12
    values, index = data(2 * n)
    values = np.exp(values / 4)
    layouts = [(P("x"), P()), (P(), P("x"))]
    turn = list(DROP_INS).index(name) % 2

    def loss(v: Any, i: Any) -> Any:
        floats = [x for x in jax.tree.leaves(f(v, i)) if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum((jnp.sum(jnp.where(jnp.isfinite(x), x, 0) ** 2) for x in floats), start=0 * jnp.sum(v))

    def mine(v: Any, i: Any) -> Any:
        return jax.tree.map(lambda x: vary(x, frozenset("x"))[None], f(v[:n], i[:n]))

    def total(v: Any, i: Any) -> Any:
        return jax.lax.psum(vary(loss(v[:n], i[:n]), frozenset("x")), "x")

    @jax.jit
    def all_layouts(v: Any, i: Any) -> Any:
        outs = [jax.shard_map(mine, mesh=m, in_specs=specs, out_specs=P("x"))(v, i) for specs in layouts]
        if name in OF_EDGES_ALONE:
            return outs, jnp.zeros_like(v)
        return outs, jax.grad(jax.shard_map(total, mesh=m, in_specs=layouts[turn], out_specs=P()))(v, i)

    alone = jax.jit(lambda v, i: (f(v, i), jnp.zeros(n) if name in OF_EDGES_ALONE else jax.grad(loss)(v, i)))
    whole, half = (slice(0, n), slice(0, n)), (slice(0, n), slice(n, 2 * n))
    outs, grads = [], []
    for of_v, of_i in ((half, whole), (whole, half)):
        each = [jax.tree.map(np.asarray, alone(values[a], index[b])) for a, b in zip(of_v, of_i, strict=True)]
        outs.append(jax.tree.map(lambda *xs: np.stack(xs), *(out for out, _ in each)))
        grads.append(np.zeros_like(values))
        for a, (_, grad) in zip(of_v, each, strict=True):
            grads[-1][a] += grad
    assert_close(all_layouts(values, index), (outs, grads[turn]), 1e-4)


def test_explicit_sharding() -> None:
    """On a mesh of explicit axes: a split batch stays split; elements that are split are one device's after the call."""
    m = mesh(8, explicit=True)
    v, i = data(16, 200)
    with jax.set_mesh(m):
        pv, pi = (jax.device_put(x, NamedSharding(m, P("x"))) for x in (v, i))
        f = jax.jit(jax.vmap(lambda v, i: jp.reduce_by_index(v, i, H)))
        got = f(pv, pi)
        assert jax.typeof(got).sharding.spec == P("x", None)
        assert_close(np.asarray(got)[3], sums(v[3], i[3]))
        only = jax.jit(jax.vmap(lambda v, i: jp.reduce_by_index(v, i, H), (0, None)))(pv, i[0])
        assert_close(np.asarray(only)[5], sums(v[5], i[0]))
        grad = jax.jit(jax.grad(lambda v: jnp.sum(f(v, pi) ** 2)))(pv)
        assert_close(
            grad,
            np.asarray(jax.grad(lambda v: jnp.sum(jax.vmap(lambda v, i: jp.reduce_by_index(v, i, H))(v, i) ** 2))(v)),
            1e-5,
        )


@pytest.mark.parametrize("name", [*SEGMENTS[:7], "var", "normalize"])
@pytest.mark.cover(1)
@pytest.mark.dear
def test_segments_on_explicit_axes(name: str) -> None:
    """Elements and ids anywhere on the mesh, forwards and backwards: ids go where the elements are, which stay."""
    rng = np.random.default_rng(len(name))
    rows = bool(rng.integers(2)) or name == "prod"
    v, i = data(400)
    v = np.stack([v, v[::-1] if name == "prod" else v * i], 1) if rows else v
    m, f = mesh(4, 2, explicit=True), getattr(jp, f"segment_{name}")

    def both(v: Any, i: Any) -> Any:
        return f(v, i, H), jax.grad(lambda v: jnp.sum(jnp.sin(f(v, i, H))))(v)

    wanted = jax.tree.map(np.asarray, jax.jit(both)(v, i))
    with jax.set_mesh(m):
        for spec in [P("x"), P(("x", "y"))] + [P("x", "y"), P(None, "y")] * rows:
            for ids in (P("x"), P()):
                placed = jax.device_put(v, NamedSharding(m, spec)), jax.device_put(i, NamedSharding(m, ids))
                compiled = jax.jit(both).lower(*placed).compile()
                assert_close(jax.tree.map(np.asarray, compiled(*placed)), wanted, 1e-4)
                assert moved(compiled) <= (8 * 2 * H if spec == P("x") == ids else v.size)


@pytest.mark.parametrize("op", [jnp.maximum, jnp.minimum, jnp.add, jnp.bitwise_xor])
def test_exported_reductions_of_sharded_axes(op: Any) -> None:
    """What XLA reduces by a function of ours is not left to its partitioner, which asks for a collective of it."""
    m = mesh(2, 4)
    dtype = np.int32 if op is jnp.bitwise_xor else np.float32
    for shape in ((61, 13), (61, 2), (3, 400)):
        x = (100 * np.random.default_rng(3).standard_normal(shape)).astype(dtype)
        for axis in (0, 1):

            def f(x: Any, axis: int = axis) -> Any:
                x = jax.lax.with_sharding_constraint(x, NamedSharding(m, P("x", "y")))
                return jp.reduce(x, op, axis=axis), jp.reduce(x * 2, op, axis=axis)

            whole = NamedSharding(m, P())
            exported = export(jax.jit(f, in_shardings=whole))(x)
            got = jax.jit(exported.call)(jax.device_put(x, whole))
            for a, b in zip(got, (jp.reduce(x, op, axis=axis), jp.reduce(x * 2, op, axis=axis)), strict=True):
                assert_close(a, np.asarray(b))


def test_export_for_several_devices() -> None:
    """An executable for eight devices runs on another mesh of eight."""
    m = mesh(8)
    rows = NamedSharding(m, P("x"))
    v, i = data(16, 100)
    f = jax.jit(jax.vmap(lambda v, i: jp.reduce_by_index(v, i, H)), in_shardings=(rows, rows))
    exported = export(f)(v, i)
    assert exported.nr_devices == 8
    again = jax.export.deserialize(bytearray(exported.serialize()))
    got = jax.jit(again.call, in_shardings=(rows, rows))(jax.device_put(v, rows), jax.device_put(i, rows))
    for k in range(16):
        assert_close(got[k], sums(v[k], i[k]))
