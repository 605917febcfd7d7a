"""Functions of rows: what goes through rows several times is one kernel, right under every transformation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from fused import kernels, same
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from meshes import assert_no_communication, moved
from meshes import mesh as mesh_of

import jaxprims as jp
from jaxprims.fusion.call import Fused
from jaxprims.targets.cpu.plans import ScanPlan
from jaxprims.targets.plans import forced

ROWS, N = 130, 133  # neither is whole vectors
RNG = np.random.default_rng(5)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


TOGETHER: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, w: jax.nn.softmax(x * w),
    "its logarithm": lambda x, w: (jax.nn.logsumexp(x + w, -1), jax.nn.log_softmax(x)),
    "about the mean": lambda x, w: (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + w * w),
    "small": lambda x, w: (x * w > x.mean(-1, keepdims=True), (x - x.max(-1, keepdims=True)).astype(jnp.int8)),
}
"""Functions of rows, and of a number that they share."""

X, Y, SCALE, SHIFT = normal(ROWS, N), normal(ROWS, N), normal(N), normal(N)
LABELS = jnp.asarray(RNG.integers(0, N, ROWS), jnp.int32)


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + shift


def attention(x: Any, w: Any) -> Any:
    """Two kernels, of which the second needs the first's by way of a product of matrices."""
    weights = jax.nn.softmax(x)
    return jax.nn.softmax(x + weights @ w) - weights


def causal(x: Any) -> Any:
    rows, columns = (jax.lax.broadcasted_iota(np.int32, x.shape, k) for k in range(2))
    return jax.nn.softmax(jnp.where(rows >= columns, x, -jnp.inf))


def cross_entropy(x: Any, labels: Any) -> Any:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1))


def by_pairs(x: Any, labels: Any) -> Any:
    """One number of each row, by the row's number and an index."""
    return jnp.mean(jax.nn.logsumexp(x, -1) - x[jnp.arange(len(x)), labels])


def margin(x: Any, labels: Any) -> Any:
    right = (x * x - 1)[jnp.arange(len(x)), labels]
    return jnp.mean(jnp.sum(jnp.maximum(x * x - right[:, None], 0), 1))


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax": (jax.nn.softmax, (X,)),
    "log-softmax": (jax.nn.log_softmax, (X,)),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, axis=-1), (X,)),
    "layer norm": (layer_norm, (X, SCALE, SHIFT)),
    "by pairs": (by_pairs, (X, LABELS)),
    "by pairs from the end": (by_pairs, (X, LABELS - N)),
    "margin": (margin, (X, LABELS)),
    "root mean square": (lambda x, w: x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w, (X, SCALE)),
    "variance": (lambda x: (x.mean(-1), x.var(-1)), (X,)),
    "kurtosis": (lambda x: jnp.mean((x - x.mean(-1, keepdims=True)) ** 4, -1) / x.var(-1) ** 2, (X,)),
    "between 0 and 1": (lambda x: (x - x.min(1, keepdims=True)) / (x.max(1) - x.min(1))[:, None], (X,)),
    "divergence": (lambda x, y: jnp.sum(jax.nn.softmax(x) * (jax.nn.log_softmax(x) - jax.nn.log_softmax(y)), -1), (X, Y)),
    "masked by a length": (lambda x, n: jax.nn.softmax(jnp.where(jnp.arange(N) <= n[:, None], x, -1e30)), (X, LABELS)),
    "causal": (causal, (X,)),
    "cross entropy": (cross_entropy, (X, LABELS)),
    "one of all": (lambda x, i: jnp.sum(jax.nn.one_hot(i, N) * jax.nn.log_softmax(x), -1), (X, LABELS)),
    "through products of matrices": (attention, (X, normal(N, N))),
    "residual": (lambda x, y, w, b: x + jnp.tanh(layer_norm(x + y, w, b)), (X, Y, SCALE, SHIFT)),
    "of matrices": (lambda x: jax.nn.softmax(x.reshape(10, 13, 7, 19), (2, 3)), (X,)),
    "heads": (lambda x, bias: jax.nn.softmax(x.reshape(10, 13, N) + bias), (X, normal(10, 1, N))),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.cover(2)
def test_programs(name: str) -> None:
    """As they are, their gradients, and those taken of what is fused."""
    fn, args = PROGRAMS[name]
    same(jax.jit(fn)(*args), jax.jit(jp.fuse(fn))(*args))
    moving = [k for k, x in enumerate(args) if jnp.issubdtype(x.dtype, jnp.floating)]

    def loss(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *xs: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(f(*xs)))

    expected = jax.jit(jax.grad(loss(fn), moving))(*args)
    same(expected, jax.jit(jax.grad(loss(jp.fuse(fn)), moving))(*args), 5e-4, 1e-6)
    same(expected, jax.jit(jp.fuse(jax.grad(loss(fn), moving)))(*args), 5e-4, 1e-6)


def test_one_kernel_each() -> None:
    assert kernels(jax.nn.softmax, X) == ["mul"]  # with the reciprocal of a row's sum
    assert kernels(layer_norm, X, SCALE, SHIFT) == ["add"]
    assert kernels(cross_entropy, X, LABELS) == ["reduce-sum"]  # of each row; XLA adds these
    assert kernels(jax.grad(cross_entropy), X, LABELS) == ["add-any"]
    weights, made = kernels(attention, X, normal(N, N))
    assert "mul" in weights and "sub" in made


def test_nothing_else_is_written() -> None:
    """Where XLA writes an array as large as what is read, or several."""
    for fn, args in ((cross_entropy, (X, LABELS)), (layer_norm, (X, SCALE, SHIFT)), (jax.grad(cross_entropy), (X, LABELS))):
        memory = jax.jit(jp.fuse(fn)).lower(*args).compile().memory_analysis()
        assert memory.temp_size_in_bytes < X.nbytes / 10


def test_what_goes_through_rows_once_is_not_one() -> None:
    for fn in (lambda x: x.sum(1), lambda x: x.max(1) - x.min(1), lambda x, y: y / x.sum(1, keepdims=True)):
        args = (X, Y)[: fn.__code__.co_argcount]
        assert not any("rows" in line for line in Fused(jax.make_jaxpr(fn)(*args)).rewritten.in_words())
    assert kernels(jax.nn.softmax, X[:20, :30]) == []


def test_one_array_is_written_in_place_of_several_slices() -> None:
    """What they have become, of which XLA reads them."""

    def edges(u: Any) -> Any:
        m = jnp.abs(u[1:, 1:] - u[:-1, 1:]) + jnp.abs(u[1:, 1:] - u[1:, :-1])
        return m / m.max()

    u = normal(8, 64, 64)
    (found,) = Fused(jax.make_jaxpr(jax.vmap(edges))(u)).rewritten.kernels
    assert len(found.inputs) == 1
    same(jax.jit(jax.vmap(edges))(u), jp.fuse(jax.vmap(edges))(u))


def test_what_rows_have_in_common_is_not_made_for_each() -> None:
    """A reduction of other axes than theirs."""

    def scaled(x: Any) -> Any:
        return jax.nn.softmax(x) * x.mean(2).max(1)[:, None, None]

    x = normal(3, 400, 40)
    (found,) = (k.body for k in Fused(jax.make_jaxpr(scaled)(x)).rewritten.kernels if len(k.body.sites[0].sizes) == 2)
    assert found.widest == 40
    same(jax.jit(scaled)(x), jp.fuse(scaled)(x))


@pytest.mark.cover(2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "uint8", "bool"])
def test_dtypes(dtype: str, x64: None) -> None:
    x = jnp.asarray(RNG.integers(0, 9, (70, 150)), dtype)

    def away(x: Any) -> Any:
        return jnp.where(x == x.max(1, keepdims=True), x.min(1, keepdims=True), x)

    same(away(x), jp.fuse(away)(x))
    if jnp.issubdtype(x.dtype, jnp.floating):
        rough = 2e-2 if x.dtype.itemsize == 2 else 1e-6
        same(jax.nn.softmax(x), jp.fuse(jax.nn.softmax)(x), rough)
        same(x - x.mean(1, keepdims=True), jp.fuse(lambda x: x - x.mean(1, keepdims=True))(x), rough)


@pytest.mark.cover(3)
@pytest.mark.parametrize("shape", [(1, 9000), (2, 8192), (9001, 1), (300, 31), (257, 32), (37, 257), (5, 3, 1, 600), (4, 2050)])
def test_shapes(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    for fn in (jax.nn.softmax, lambda x: x - x.mean(-1, keepdims=True), lambda x: x.var(-1)):
        same(jax.jit(fn)(x), jax.jit(jp.fuse(fn))(x))


def test_special_values() -> None:
    """NaN, infinities and zeros' signs are as without it."""
    x = X.at[4].set(-jnp.inf).at[5, 0].set(jnp.inf).at[6].set(-0.0)
    for fn in (jax.nn.softmax, jax.nn.log_softmax, lambda x: x - x.max(1, keepdims=True)):
        np.testing.assert_allclose(jp.fuse(fn)(x), fn(x), rtol=1e-5, atol=1e-6)
        got = jp.fuse(fn)(x.at[3, 5].set(jnp.nan))  # where XLA's maximum of a row may be another number
        assert np.all(np.isnan(got[3])) and np.array_equal(got[:3], jp.fuse(fn)(x)[:3])
    signs = jnp.where(jnp.arange(N) % 2 == 0, -0.0, 0.0) * jnp.ones((ROWS, 1))
    taken = lambda x, i: jnp.take_along_axis(x - x.max(1, keepdims=True) * 0, i[:, None], 1)  # noqa: E731
    np.testing.assert_array_equal(jnp.signbit(taken(signs, LABELS)), jnp.signbit(jp.fuse(taken)(signs, LABELS)))


@pytest.mark.cover(2)
@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
def test_one_number_of_each_row(mode: str) -> None:
    """Beyond a row's ends too, and in what adds to one."""
    at = LABELS if mode == "promise_in_bounds" else LABELS.at[:4].set(jnp.array([-N, -N - 1, N, 3 * N]))

    def fn(x: Any, at: Any) -> Any:
        return jnp.take_along_axis(jax.nn.log_softmax(x), at[:, None], 1, mode=mode)

    same(jax.jit(fn)(X, at), jax.jit(jp.fuse(fn))(X, at))
    grad = jax.grad(lambda x, at: jnp.sum(jnp.where(jnp.isnan(y := fn(x, at)), 0, y) * Y[:, :1]))
    same(jax.jit(grad)(X, at), jax.jit(jp.fuse(grad))(X, at))
    whole = jnp.arange(ROWS * N, dtype=jnp.int32).reshape(ROWS, N)
    integers = lambda x, at: jnp.take_along_axis(x - x.max(1, keepdims=True), at[:, None], 1, mode=mode)  # noqa: E731
    same(jax.jit(integers)(whole, at), jp.fuse(integers)(whole, at))


def test_labels_to_be_ignored() -> None:
    """Beyond a row's ends nothing is added to: of them no gradient comes, however they are read."""
    at = LABELS.at[::3].set(-100 - N)

    def loss(x: Any) -> Any:
        return -jnp.mean(jax.nn.log_softmax(x)[jnp.arange(ROWS), at])

    assert not np.any(jp.fuse(jax.grad(loss))(X)[::3])
    for grad in (jp.fuse(jax.grad(loss)), jax.grad(jp.fuse(loss))):
        same(jax.jit(jax.grad(loss))(X), grad(X))


@pytest.mark.cover(3)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "int64"])
def test_positions_of_any_type(dtype: str, x64: None) -> None:
    """Of rows longer than the type can say, too."""
    x = normal(50, 300)
    fn = lambda x, at: jnp.take_along_axis(jax.nn.log_softmax(x), at[:, None], 1)  # noqa: E731
    at = jnp.arange(50).astype(dtype)
    assert kernels(fn, x, at) == ["select-n"]
    same(fn(x, at), jp.fuse(fn)(x, at))


def test_threads() -> None:
    """Whoever makes a block: the same bits."""
    x = normal(600, 130)
    out = jax.jit(jp.fuse(jax.nn.softmax))(x)
    for order in ("assisting", "row_wise", "column_wise", "sequential_rows", "any_order"):
        for threads in (1, 2, 7):
            with forced(ScanPlan(order, 4, threads=threads)):
                again = jax.jit(lambda x, _=(order, threads): jp.fuse(jax.nn.softmax)(x))(x)
            assert np.array_equal(out, again)


@examples(10)
@given(count=st.integers(256, 400), width=st.integers(32, 150), block=st.integers(1, 40), name=st.sampled_from(sorted(TOGETHER)))
def test_rows_together(count: int, width: int, block: int, name: str) -> None:
    """As many rows at once as fit, the last of any number of them beside none: each with the bits that it has elsewhere."""
    fn, x, w = TOGETHER[name], normal(count, width), SCALE[:1]
    whole = jp.fuse(fn)
    assert max(getattr(call.spec, "together", 1) for call in jp.explain(whole)(x, w).calls) > 1
    every = whole(x, w)
    same(fn(x, w), every, 1e-4, 1e-5)
    with forced(ScanPlan("any_order", block, threads=2)):
        in_blocks = jax.jit(lambda *args: jp.fuse(fn)(*args))(x, w)
        some = jax.jit(lambda *args: jp.fuse(fn)(*args))(x[:256], w)
        both = jax.jit(lambda *args: jax.vmap(jp.fuse(fn))(*args))(jnp.stack([x, -x]), SCALE[:2, None])
    for a, b, c, (d, _) in zip(*map(jax.tree.leaves, (every, in_blocks, some, both)), strict=True):
        assert np.array_equal(a, b) and np.array_equal(a[:256], c) and np.array_equal(a, d)


@pytest.mark.parametrize("few", [5, 12])
def test_few_rows_with_a_number_in_common(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are rows like all others, of which vectors are made."""
    x, w, v = normal(200, few, 29), normal(200), normal(few)

    def weighed(x: Any, w: Any, v: Any) -> Any:
        p = jax.nn.softmax(x * w[:, None, None])
        return p * v[:, None] + w[:, None, None], jnp.sum(p * w[:, None, None], -1)

    monkeypatch.setattr(jax, "device_count", lambda: 1)
    (call,) = jp.explain(jp.fuse(weighed))(x, w, v).calls
    assert call.summary.startswith(f"{200 * few} elements")
    same(weighed(x, w, v), jax.jit(lambda *args: jp.fuse(weighed)(*args))(x, w, v), 1e-4, 1e-5)


def test_sharded_rows() -> None:
    """Each device makes its own: nothing is told to others."""
    x, mesh = normal(8 * 50, 133), mesh_of(8)
    placed = jax.device_put(x, jax.NamedSharding(mesh, P("x")))
    for fn in (jax.nn.softmax, jax.grad(lambda x: jnp.sum(jax.nn.log_softmax(x) ** 2))):
        call = jax.jit(jp.fuse(fn))
        compiled = call.lower(placed).compile()
        assert "jaxprims_scan" in compiled.as_text()
        assert_no_communication(compiled)
        same(fn(x), call(placed))


IN_PARTS = {
    **{name: PROGRAMS[name][0] for name in ("softmax", "layer norm", "divergence", "causal", "cross entropy")},
    "one of all": lambda x, i: jnp.sum(jax.nn.one_hot(i, 128) * jax.nn.log_softmax(x), -1),
    "between 0 and 1": PROGRAMS["between 0 and 1"][0],
    "heads": lambda x, bias: jax.nn.softmax(x.reshape(16, 8, 128) + bias),
    "matrices": lambda x: jax.nn.log_softmax(x.reshape(64, 2, 128), (1, 2)),
    "halves": lambda x: jax.nn.softmax(x.astype(jnp.bfloat16)).astype(jnp.float32),
    "any, all": lambda x: (
        x * jnp.where(jnp.any(x > 2, 1) ^ jnp.all(x < 2.5, 1), 1, jnp.prod(jnp.cos(x), 1))[:, None] - x.sum(1)[:, None]
    ),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", IN_PARTS)
def test_rows_that_are_sharded_themselves(name: str) -> None:
    """Each device makes its part of every row; what is reduced is all that they tell each other, as where XLA divides it."""
    fn, mesh = IN_PARTS[name], mesh_of(4, 2)
    x = normal(128, 128)
    others = {"layer norm": (SCALE[:128], SHIFT[:128]), "divergence": (normal(128, 128),), "heads": (normal(16, 1, 128),)}
    args = (x, *others.get(name, (LABELS[:128] % 128,) if name in ("cross entropy", "one of all") else ()))
    specs = [(None, "x"), ("y", "x"), (None, ("y", "x"))]
    turn = list(IN_PARTS).index(name)
    for k, f in enumerate((fn, jax.grad(lambda *xs: jnp.sum(jnp.sin(fn(*xs)))))):
        spec = specs[(turn + k) % 3]
        of_rank = {1: spec[-1:], 2: spec, 3: (spec[0], None, spec[1])}
        own = [spec[:1] if a.dtype == jnp.int32 else of_rank[a.ndim] for a in args]
        placed = [jax.device_put(a, jax.NamedSharding(mesh, P(*s))) for a, s in zip(args, own, strict=True)]
        plain, fused = (jax.jit(g).lower(*placed).compile() for g in (f, jp.fuse(f)))
        assert "jaxprims_scan" in fused.as_text() and moved(fused) <= max(moved(plain), 8 * 128)
        got, rough = fused(*placed), 2e-2 if name == "halves" else 1e-4
        same(jax.jit(f)(*args), got, rough, rough / 10)
        assert got.sharding == plain(*placed).sharding


@pytest.mark.cover(3)
@pytest.mark.parametrize(
    "spec", [P("x", None, None), P(None, "x", None), P("y", "x", None), P(None, "y", "x"), P(None, None, "y")]
)
def test_rows_of_any_sharded_axis(spec: P) -> None:
    """Few rows in each of many blocks, several of which are put together; a weight that lies otherwise moves there."""
    x, w, mesh = normal(128, 8, 32), normal(32), mesh_of(4, 2)
    placed = jax.device_put(x, jax.NamedSharding(mesh, spec)), jax.device_put(w, jax.NamedSharding(mesh, P(("x", "y"))))
    fn = lambda x, w: layer_norm(x, w, w)  # noqa: E731
    compiled = jax.jit(jp.fuse(fn)).lower(*placed).compile()
    assert "jaxprims_scan" in compiled.as_text() and moved(compiled) <= (32 if spec[2] is None else 128 * 8)
    out = compiled(*placed)
    same(fn(x, w), out)
    assert out.sharding.is_equivalent_to(placed[0].sharding, 3)


def test_loops_of_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with few rows are one; with several devices, all but the last are a batch."""
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    for shape in ((64, 8, 32), (3, 70, 64), (30, 5, 7, 40)):
        x, w = normal(*shape), normal(shape[-1])
        same(layer_norm(x, w, w), jp.fuse(lambda x, w: layer_norm(x, w, w))(x, w))


def test_explicit_meshes_are_jax_own() -> None:
    mesh = mesh_of(4, 2, explicit=True)
    with jax.set_mesh(mesh):
        x = jax.device_put(normal(128, 128), jax.NamedSharding(mesh, P("y", "x")))
        plain, fused = (jax.jit(f).lower(x).compile() for f in (jax.nn.softmax, jp.fuse(jax.nn.softmax)))
        assert moved(fused) == moved(plain)
        np.testing.assert_array_equal(np.asarray(plain(x)), np.asarray(fused(x)))
        assert jax.typeof(fused(x)) == jax.typeof(plain(x))


@pytest.mark.dear
def test_transformations() -> None:
    fn = jp.fuse(layer_norm)
    x = normal(3, ROWS, N)
    plain = jax.jit(layer_norm)
    batched = jax.vmap(plain, (0, None, None))(x, SCALE, SHIFT)
    same(batched, jax.jit(jax.vmap(fn, (0, None, None)))(x, SCALE, SHIFT))
    same(jax.vmap(plain, (None, 0, None))(X, x[0, :2], SHIFT), jax.jit(jax.vmap(fn, (None, 0, None)))(X, x[0, :2], SHIFT))
    tangents = (Y, SHIFT, SCALE)
    same(jax.jvp(plain, (X, SCALE, SHIFT), tangents), jax.jvp(fn, (X, SCALE, SHIFT), tangents), 5e-4)

    def curvature(f: Callable[..., Any]) -> Any:
        return jax.jit(jax.grad(lambda x: jnp.sum(jax.grad(lambda x: jnp.sum(f(x, SCALE, SHIFT) ** 3))(x) * Y)))(X)

    same(curvature(layer_norm), curvature(fn), 2e-3)
    loop = lambda f: jax.lax.scan(lambda c, _: (f(c, SCALE, SHIFT), None), X, None, 3)[0]  # noqa: E731
    same(jax.jit(lambda: loop(layer_norm))(), jax.jit(jp.fuse(lambda: loop(layer_norm)))())
    same(jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(jax.checkpoint(layer_norm)(x, SCALE, SHIFT)))))(X),
         jax.grad(lambda x: jnp.sum(jnp.sin(jp.fuse(jax.checkpoint(layer_norm))(x, SCALE, SHIFT))))(X), 5e-4)  # fmt: skip


def test_what_loops_elsewhere_make_again_is_made_of_what_is_written() -> None:
    """XLA does not reduce the rows once more for the sums of columns."""

    def density(points: Any, at: Any) -> Any:
        weight = jnp.exp(-((at[:, None] - points) ** 2))
        return jnp.sum(jnp.mean(weight, 1) ** 2 + jnp.max(weight, 1))

    both = jax.grad(density, (0, 1))
    points, at = normal(700), normal(64)
    rewritten = Fused(jax.make_jaxpr(both)(points, at)).rewritten
    assert any("rows" in line for line in rewritten.in_words())
    reduced = [e for e in rewritten.closed.jaxpr.eqns if e.primitive.name in ("reduce_sum", "reduce_max", "argmax")]
    assert all(e.params["axes"] == (0,) for e in reduced if e.invars[0].aval.shape == (64, 700))
    same(jax.jit(both)(points, at), jp.fuse(both)(points, at))


@pytest.mark.strategies
def test_what_xla_makes_in_the_loop_that_wants_it() -> None:
    """Of a mean of squares: nothing but that is to be written before a gate's halves are multiplied."""

    def gated(x: Any) -> Any:
        a, b = jnp.split(x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6), 2, -1)
        return jax.nn.silu(a) * b

    def normalised(x: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)

    x = jnp.ones((500, 256))
    (kernel,) = Fused(jax.make_jaxpr(gated)(x)).rewritten.kernels
    assert [s.family for s in kernel.body.sites] == ["reduce"]
    assert Fused(jax.make_jaxpr(normalised)(x)).rewritten.kernels
    assert Fused(jax.make_jaxpr(lambda x: jnp.split(jax.nn.softmax(x), 2, -1)[0] * 2)(x)).rewritten.kernels


@pytest.mark.parametrize("loss", [by_pairs, margin])
def test_what_is_added_by_pairs_is_no_scatter(loss: Callable[..., Any]) -> None:
    program = str(Fused(jax.make_jaxpr(jax.grad(loss))(X, LABELS)).rewritten.closed.jaxpr)
    assert "scatter" not in program and "generalized_histogram" not in program
    others = lambda x, at: jnp.mean(jax.nn.logsumexp(x, -1) - x[(jnp.arange(ROWS) + 1) % ROWS, at])  # noqa: E731
    same(jax.jit(jax.grad(others))(X, LABELS), jax.jit(jp.fuse(jax.grad(others)))(X, LABELS))
