"""Derivatives of the histograms: each row of the rules, first and second order, both modes, and their gaps elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from jax.test_util import check_grads
from references import BY_NAME, INDEX, Case, H, N, assert_close, histogram, inexact, sample, stack

import jaxprims as jp

SMOOTH = ("add", "max", "mul", "logaddexp", "einstein", "mean_variance")


@pytest.mark.cover(1)
@pytest.mark.usefixtures("x64", "strict")
@pytest.mark.parametrize("name", SMOOTH)
def test_second_order(name: str) -> None:
    """Against finite differences, with dest; both modes of products and exponentials, and of the general rule."""
    case = BY_NAME[name]
    index = np.array([0, 1, 0, -1, 0], np.int32)
    f = jax.jit(lambda v, d: inexact(jp.reduce_by_index(v, index, 2, case.op, identity=case.given, dest=d)))
    modes = {"add": ["rev"], "max": ["fwd"], "einstein": ["fwd"], "mean_variance": ["rev"]}.get(name, ["fwd", "rev"])
    check_grads(f, (sample(case, 5, 0, True), sample(case, 2, 1, True)), 2, modes)


SHORT = INDEX[:6]  # a bin of one element, two of two, an empty one; a dropped element
COMPOSED = ("max", "mean_variance", "argmax", "complex_mul", "circulant", "a+b+ab on 40")


def fold(case: Case, values: Any, start: Any) -> Any:
    """The histogram as a loop over the elements, for JAX to differentiate."""
    bins = start
    for n, h in enumerate(SHORT.tolist()):
        if 0 <= h < H:
            new = case.op(*(jax.tree.map(lambda x, at=at: x[at], t) for t, at in ((bins, h), (values, n))))
            bins = jax.tree.map(lambda b, x, h=h: b.at[h].set(x), bins, new)
    return bins


@pytest.mark.cover(2)
@pytest.mark.usefixtures("x64", "strict")
@pytest.mark.parametrize("name", COMPOSED)
def test_gradients_compose(name: str) -> None:
    """value_and_grad, and in turn vmap of grad, grad of vmap, checkpoint and a scan around it, with JAX's gradient of a loop."""
    case = BY_NAME[name]
    values = [sample(case, len(SHORT), seed, True) for seed in range(2)]
    dest = sample(case, H, 5, True)

    def scalar(bins: Any) -> jax.Array:
        weights = (jnp.cos(jnp.arange(x.size)).reshape(x.shape).astype(x.real.dtype) for x in inexact(bins))
        return sum(jnp.sum(w * jnp.real(x) ** 2) for w, x in zip(weights, inexact(bins), strict=True))

    def loss(v: Any, d: Any) -> jax.Array:
        return scalar(histogram(case)(v, SHORT, d))

    integers = any(not jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(dest))
    grad = lambda f: jax.grad(f, (0, 1), allow_int=integers)  # noqa: E731
    both = stack(*values)

    @jax.jit
    def every(both: Any, d: Any) -> list[Any]:
        first = jax.tree.map(lambda x: x[0], both)

        def scanned(both: Any, d: Any) -> jax.Array:
            return jnp.sum(jax.lax.scan(lambda c, v: (c + 1, loss(v, d)), 0, both)[1])

        def mapped(both: Any, d: Any) -> jax.Array:
            return jnp.sum(jax.vmap(loss, (0, None))(both, d))

        out = [jax.value_and_grad(loss, (0, 1), allow_int=integers)(first, d)]
        if COMPOSED.index(name) % 2:
            out += [jax.vmap(grad(loss), (0, None))(both, d), grad(scanned)(both, d)]
        else:
            out += [grad(mapped)(both, d), grad(jax.checkpoint(loss))(first, d)]
        return [inexact(jax.tree.map(lambda g: jnp.zeros(()) if g.dtype == jax.dtypes.float0 else g, o)) for o in out]

    wanted = jax.jit(
        lambda v, d: inexact(
            jax.tree.map(
                lambda g: jnp.zeros(()) if g.dtype == jax.dtypes.float0 else g,
                jax.value_and_grad(lambda v, d: scalar(fold(case, v, d)), (0, 1), allow_int=integers)(v, d),
            )
        )
    )
    alone = [wanted(v, dest) for v in values]
    got = every(both, dest)
    close = lambda a, b: jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-9), a, b)  # noqa: E731
    count = (len(alone[0]) - 1) // 2
    close(got[0], alone[0])
    shared = [np.stack([alone[0][1 + k], alone[1][1 + k]]) for k in range(count)]
    shared += [alone[0][1 + k] + alone[1][1 + k] for k in range(count, 2 * count)]
    if COMPOSED.index(name) % 2:
        close(got[1], [np.stack([a[1 + k], b[1 + k]]) for a, b in [alone] for k in range(2 * count)])
        close(got[2], shared)
    else:
        close(got[1], shared)
        close(got[2], alone[0][1:])


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("op", [jnp.maximum, jnp.minimum])
def test_ties_share_evenly(op: Any) -> None:
    """As in jax.numpy.max, among elements and with dest."""
    v, i = jnp.array([1.0, 3, 3, 2, 3, 5, 5]), np.array([0, 0, 0, 0, 0, 1, 2], np.int32)
    v = v if op is jnp.maximum else -v
    reduce = jnp.max if op is jnp.maximum else jnp.min
    first, wanted = (jax.jit(jax.grad(f)) for f in (lambda v: jp.reduce_by_index(v, i, 3, op)[0], lambda v: reduce(v[:5])))
    grad = np.asarray(first(v))
    assert_close(grad[:5], np.asarray(wanted(v))[:5])
    assert grad[5:].tolist() == [0, 0]
    dest = jnp.array([3.0, 5, 9]) * (1 if op is jnp.maximum else -1)
    grads = jax.jit(jax.grad(lambda v, d: jp.reduce_by_index(v, i, 3, op, dest=d).sum(), (0, 1)))(v, dest)
    assert_close(grads, (np.array([0, 0.25, 0.25, 0, 0.25, 0.5, 0]), np.array([0.25, 0.5, 1])))
    tangent = jax.jvp(lambda v: jp.reduce_by_index(v, i, 3, op), (v,), (jnp.arange(7.0),))[1]
    assert_close(tangent, np.array([7 / 3, 5, 6]))


@pytest.mark.usefixtures("x64", "strict")
@pytest.mark.dear
def test_products_with_zeros() -> None:
    """None, one, two and three zeros in a bin; first and second derivatives, with and without dest."""
    i = np.array([0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 9], np.int32)
    v = np.array([2.0, 3, 0, 5, 0, 7, 0, 0, 0, 0, 1])
    dest = np.array([2.0, -1, 3, 0])

    def product(v: Any, d: Any) -> Any:
        bins = [d[h] * jnp.prod(jnp.stack([v[k] for k in np.flatnonzero(i == h)])) for h in range(4)]
        return jnp.stack(bins)

    def ours(v: Any, d: Any) -> Any:
        return jp.reduce_by_index(v, i, 4, jnp.multiply, dest=d)

    orders = {"fwd": jax.jacfwd, "rev": jax.jacrev, "second": lambda f, k: jax.jacfwd(jax.jacrev(f, k), k)}

    def every(f: Any) -> Any:
        return jax.jit(lambda v, d: {name: [order(f, k)(v, d) for k in (0, 1)] for name, order in orders.items()})

    got, wanted = every(ours)(v, dest), every(product)(v, dest)
    for name in orders:
        assert_close(got[name], wanted[name])
    plain = lambda v: jp.reduce_by_index(v, i, 4, lambda a, b: a * b)  # noqa: E731
    assert_close(jax.jit(jax.hessian(plain))(v), jax.jit(jax.hessian(lambda v: product(v, jnp.ones(4))))(v))


@pytest.mark.cover(2)
@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(
    ("name", "modes"),
    [("add", "drop wrap"), ("max", "drop clip"), ("mul", "drop clip"), ("logaddexp", "drop"), ("einstein", "drop clip wrap")],
)
def test_dropped_elements_get_no_gradient(name: str, modes: str) -> None:
    """Out of range, INT_MIN and INT_MAX too; clipped and wrapped ones get theirs."""
    case = BY_NAME[name]
    index = np.array([0, -1, 4, -(2**31), 2**31 - 1, 3, 0], np.int32)
    v = sample(case, 7)
    run = lambda v, mode: jp.reduce_by_index(v, index, H, case.op, identity=case.given, mode=mode)  # noqa: E731
    places = {mode: references.in_mode(index, H, mode) for mode in modes.split()}

    def total(v: Any, at: np.ndarray) -> Any:
        return sum(functools.reduce(case.op, [case.identity, *(v[k] for k in np.flatnonzero(at == h))]) for h in (0, 3))

    @jax.jit
    def got(v: Any) -> dict[str, Any]:
        return {mode: jax.grad(lambda v, mode=mode: run(v, mode)[np.array([0, 3])].sum())(v) for mode in places}

    wanted = jax.jit(lambda v: {mode: jax.grad(total)(v, at) for mode, at in places.items()})
    grads, wanteds = jax.tree.map(np.asarray, (got(v), wanted(v)))
    for mode, at in places.items():
        if name != "max":  # where ties of max with its identity share
            assert_close(grads[mode], wanteds[mode], 1e-5)
        assert grads[mode][at < 0].tolist() == [0] * int((at < 0).sum())


@pytest.mark.usefixtures("strict")
def test_integer_leaves() -> None:
    """float0 for integer inputs; an argmax's value has a gradient, its index none; integers between floats don't disturb."""
    v, p = jnp.array([1.0, 4, 4, 2, 7]), np.arange(5, dtype=np.int32)
    i = np.array([0, 0, 0, 1, 5], np.int32)
    f = lambda v, p: jp.reduce_by_index((v, p), i, 2, jp.monoids.argmax)  # noqa: E731
    grad = jax.jit(jax.grad(lambda v: f(v, p)[0] @ jnp.array([1.0, 10])))(v)
    assert grad.tolist() == [0, 1, 0, 10, 0]  # of equal values the one with the smaller index wins
    out, tangents = jax.jvp(jax.jit(lambda v: f(v, p)), (v,), (jnp.arange(5.0),))
    assert tangents[0].tolist() == [1, 3] and tangents[1].dtype == jax.dtypes.float0 and out[1].tolist() == [1, 3]
    _, pull = jax.vjp(f, v, p)
    gv, gp = pull((np.ones(2, np.float32), np.zeros(2, jax.dtypes.float0)))
    assert gp.dtype == jax.dtypes.float0 and gv.tolist() == [0, 1, 0, 1, 0]
    with_positions = jax.jit(jax.grad(lambda v: jp.reduce_by_index((v, jp.positions), i, 2, jp.monoids.argmin)[0].sum()))(v)
    assert with_positions.tolist() == [1, 0, 0, 1, 0]
    _, pull = jax.vjp(lambda i: jp.reduce_by_index(v, i, 2), jnp.asarray(i))
    assert pull(np.ones(2, np.float32))[0].dtype == jax.dtypes.float0


@pytest.mark.usefixtures("x64", "strict")
@pytest.mark.dear
def test_through_captured_arrays() -> None:
    """Gradients reach what f and op capture, at computed indices too, alone and together with the elements."""
    rng = np.random.default_rng(0)
    at = rng.integers(0, 6, N).astype(np.int32)
    x, table, scale = rng.standard_normal(N), rng.standard_normal(6), np.asarray(1.5)

    def of_f(x: Any, table: Any, scale: Any) -> Any:
        return jp.genhist(lambda i, a, x: (i, table[a] * x * scale), (INDEX, at, x), jp.Bins(H))

    def plain(x: Any, table: Any, scale: Any) -> Any:
        return jnp.stack([jnp.sum(jnp.where(INDEX == h, table[at] * x * scale, 0)) for h in range(H)])

    def jacobians(f: Any) -> Any:
        return jax.jit(lambda *args: {k: (jax.jacrev(f, k)(*args), jax.jacfwd(f, k)(*args)) for k in range(3)})

    got, wanted = jacobians(of_f)(x, table, scale), jacobians(plain)(x, table, scale)
    for k in range(3):
        assert_close(got[k], wanted[k])
    check_grads(jax.jit(lambda table, scale: of_f(x, table, scale)), (table, scale), 2, ("rev",))

    def of_op(x: Any, scale: Any, dest: Any) -> Any:
        return jp.reduce_by_index(x / 4, INDEX[: len(x)], H, lambda a, b: a + b + scale * a * b, identity=0.0, dest=dest)

    check_grads(jax.jit(of_op), (x, scale, jnp.linspace(-0.5, 0.5, H)), 1, ("fwd", "rev"))
    check_grads(jax.jit(lambda s: of_op(x[:4], s, None)), (scale,), 2, ("fwd",))


@pytest.mark.usefixtures("x64", "strict")
@pytest.mark.dear
def test_updates_several_histograms_and_dimensions() -> None:
    """k updates from one element (B-spline weights), two histograms in a pass, 2-d bins: the registration example in small."""
    rng = np.random.default_rng(1)
    x, y = rng.uniform(0, 4, 12), rng.uniform(0, 4, 12)

    def weights(t: Any) -> Any:
        return jnp.stack([(1 - t) ** 2 / 2, 0.5 + t * (1 - t), t**2 / 2])

    def f(x: Any, y: Any) -> list[Any]:
        i, j = jnp.floor(x), jnp.floor(y)
        wi, wj = weights(x - i), weights(y - j)
        k = jnp.arange(9, dtype=jnp.int32)
        at = (i.astype(jnp.int32) + k // 3, j.astype(jnp.int32) + k % 3)
        return [(at, (wi[:, None] * wj[None, :]).reshape(-1)), (i.astype(jnp.int32), x * y)]

    def entropy(x: Any, y: Any) -> Any:
        joint, best = jp.genhist(f, (x, y), [jp.Bins((6, 5)), jp.Bins(4, jnp.logaddexp)])
        p = joint / 12 + 1e-3
        return jnp.sum(p * jnp.log(p)) + jnp.sum(jnp.where(jnp.isfinite(best), best, 0))

    check_grads(jax.jit(entropy), (x, y), 2, ("rev",))


def test_rules_of_their_own() -> None:
    """A custom_jvp, custom_vjp or stop_gradient inside f or op is obeyed, when it mixes elements and captured arrays too."""
    x, scale = jnp.array([0.2, 1.7, -0.6, 2.4]), jnp.array([2.0, 3.0])
    i = np.array([0, 1, 1, 0], np.int32)

    @jax.custom_jvp
    def straight_through(x: Any, s: Any) -> Any:
        return jnp.round(x * s)

    @straight_through.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (x, s), (dx, ds) = primals, tangents
        return straight_through(x, s), s * dx + x * ds

    @jax.custom_vjp
    def backwards(x: Any, s: Any) -> Any:
        return jnp.round(x * s)

    backwards.defvjp(lambda x, s: (jnp.round(x * s), (x, s)), lambda r, g: (r[1] * g, r[0] * g))

    def loss(rounding: Any) -> Any:
        def run(x: Any, scale: Any) -> Any:
            return jp.genhist(lambda i, x: (i, rounding(x, scale[1])), (i, x), jp.Bins(2)) @ jnp.array([1.0, 10])

        return run

    for rounding in (straight_through, backwards):
        value, grads = jax.jit(jax.value_and_grad(loss(rounding), (0, 1)))(x, scale)
        assert float(value) == float(np.round(np.asarray(x) * 3) @ np.array([1.0, 10, 10, 1]))
        assert_close(grads, (np.array([3.0, 30, 30, 3]), np.array([0, 0.2 + 17 - 6 + 2.4])))
    only_captured = jax.grad(lambda s: jp.genhist(lambda i, x: (i, x * straight_through(s[0], s[1])), (i, x), jp.Bins(2)).sum())
    assert_close(jax.jit(only_captured)(scale), np.array([3.0, 2.0]) * float(x.sum()))

    op = lambda a, b: a + jax.lax.stop_gradient(b - b) + b  # noqa: E731
    for f, wanted in (
        (lambda x: jp.genhist(lambda i, x: (i, x * jax.lax.stop_gradient(x)), (i, x), jp.Bins(2)), np.asarray(x)),
        (lambda x: jp.reduce_by_index(x, i, 2, op, identity=0.0), np.ones(4)),
        (lambda x: jp.genhist(lambda i, x: (i, x * x), (i, x), jp.Bins(2)), 2 * np.asarray(x)),  # without the rule: another one
    ):
        assert_close(jax.jit(jax.grad(lambda x, f=f: f(x).sum()))(x), wanted)


def test_cotangents_of_any_kind() -> None:
    """NumPy arrays, zeros and only one of several results."""
    v = jnp.arange(10.0)
    _, pull = jax.vjp(lambda v: jp.reduce_by_index((v, v * v), INDEX, H, jp.monoids.add), v)
    a, b = np.ones(H, np.float32), np.zeros(H, np.float32)
    inside = ((INDEX >= 0) & (INDEX < H)).astype(np.float32)
    assert_close(pull((a, b))[0], inside)
    assert_close(pull((b, a))[0], 2 * np.arange(10) * inside)
    only = jax.grad(lambda v: jp.reduce_by_index({"a": v, "b": -v}, INDEX, H, jp.monoids.max)["b"][0])(v)
    assert only.tolist() == [-1] + [0] * 9
    linear, transposed = jax.linearize(lambda v: jp.reduce_by_index(v, INDEX, H, jnp.logaddexp), v)
    assert_close(transposed(jnp.ones(10)), np.where(np.isfinite(linear), 1, 0))


def test_linear_transpose() -> None:
    """A sum by index is linear, and its transpose a gather."""
    f = lambda v: jp.reduce_by_index(v, INDEX, H)  # noqa: E731
    (back,) = jax.linear_transpose(f, jax.ShapeDtypeStruct((N,), jnp.float32))(jnp.arange(1.0, 5))
    assert back.tolist() == [1, 2, 4, 1, 0, 2, 1, 4, 0, 2]


OF_DTYPES = {
    jnp.float16: (jnp.add, jnp.maximum, references.einstein),
    jnp.bfloat16: (jnp.multiply, jnp.logaddexp),
    jnp.complex64: (jnp.add, jnp.multiply, references.einstein),
}


@pytest.mark.cover(2)
@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("dtype", OF_DTYPES)
def test_gradients_keep_the_dtype(dtype: Any) -> None:
    v, dest, index = (
        np.asarray([0.5, 0.25, 0.125, 0.5, 0.5], dtype),
        np.asarray([0.5, 0.25], dtype),
        np.array([0, 1, 0, -1, 5], np.int32),
    )

    def loss(v: Any, dest: Any, op: Any) -> Any:
        return jnp.real(jnp.sum(jp.reduce_by_index(v, index, 2, op, dest=dest)))

    for g in jax.tree.leaves(jax.jit(lambda *args: [jax.grad(loss, (0, 1))(*args, op) for op in OF_DTYPES[dtype]])(v, dest)):
        assert g.dtype == dtype and np.isfinite(np.asarray(g, np.complex64)).all()


@pytest.mark.usefixtures("strict")
@pytest.mark.dear
def test_empty_gradients() -> None:
    """No elements, no bins, neither."""
    for op, n, h in (
        (jnp.add, 0, 2),
        (jnp.maximum, 3, 0),
        (jnp.multiply, 0, 2),
        (references.einstein, 0, 2),
        (references.einstein, 3, 0),
        (references.einstein, 0, 0),
    ):
        f = lambda v, d: jp.reduce_by_index(v, np.zeros(len(v), np.int32), len(d), op, dest=d)  # noqa: E731
        gv, gd = jax.jit(jax.grad(lambda v, d, f=f: f(v, d).sum(), (0, 1)))(np.ones(n, np.float32), np.ones(h, np.float32))
        assert gv.tolist() == [0] * n and gd.tolist() == [1] * h


@pytest.mark.strategies
def test_logsumexp_makes_its_tangent_of_one_exponential() -> None:
    """For each element; no NaN where nothing but -inf is summed; halves do not overflow."""
    f = lambda x: jp.reduce(x, jnp.logaddexp)  # noqa: E731
    assert str(jax.make_jaxpr(jax.value_and_grad(f))(jnp.ones(5))).count("= exp ") == 1
    np.testing.assert_array_equal(jax.grad(f)(jnp.array([-np.inf, -np.inf])), [1, 1])
    np.testing.assert_allclose(jax.grad(f)(jnp.array([-np.inf, 3.0, 3.0])), [0, 0.5, 0.5])
    x = jnp.zeros(100_000, jnp.float16)
    np.testing.assert_allclose(f(x), np.log(100_000), rtol=1e-3)
    np.testing.assert_allclose(jax.grad(f)(x)[:3], 1e-5, rtol=0.05)


def _curved(v: Any) -> Any:
    """Kernels' own functions, and XLA's, differ in the last bit."""
    return jnp.tanh(v) * jnp.exp(v) + jnp.log1p(v * v)


EXTREMES_OF_MAPS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "reduce": (lambda x, i: jp.reduce(x, jnp.maximum, map=_curved, axis=0), lambda x, i: jnp.max(_curved(x), 0)),
    "minimum": (lambda x, i: jp.reduce(x, jnp.minimum, map=_curved, axis=0), lambda x, i: jnp.min(_curved(x), 0)),
    "ids": (
        lambda x, i: jp.segment_reduce(x, jnp.sort(i), jnp.maximum, map=_curved, num_segments=7),
        lambda x, i: jax.ops.segment_max(_curved(x), jnp.sort(i), 7),
    ),
    "offsets": (
        lambda x, i: jp.segment_reduce(x, jp.Offsets(jnp.searchsorted(jnp.sort(i), jnp.arange(8))), jnp.maximum, map=_curved),
        lambda x, i: jax.ops.segment_max(_curved(x), jnp.sort(i), 7),
    ),
    "bins": (
        lambda x, i: jp.genhist(lambda i, v: (i, _curved(v)), (i, x), jp.Bins(7, jnp.maximum)),
        lambda x, i: jax.ops.segment_max(_curved(x), i, 7),
    ),
    "by what is captured": (
        lambda x, i: jp.genhist(lambda i, k: (i, _curved(x[k])), (i, jp.positions), jp.Bins(7, jnp.maximum)),
        lambda x, i: jax.ops.segment_max(_curved(x), i, 7),
    ),
    "positions": (
        lambda x, i: jp.reduce((x[:, 0], jp.positions), jp.monoids.argmax, map=lambda v, k: (_curved(v), k))[0],
        lambda x, i: jnp.max(_curved(x[:, 0])),
    ),
    "several": (
        lambda x, i: jp.genhist(
            lambda i, v: ((i, _curved(v[0])), (i, v[1])), (i, x), [jp.Bins(7, jnp.maximum), jp.Bins(7, jnp.add)]
        ),
        lambda x, i: (jax.ops.segment_max(_curved(x[:, 0]), i, 7), jax.ops.segment_sum(x[:, 1], i, 7)),
    ),
}


@pytest.mark.cover(1)
@pytest.mark.parametrize("name", EXTREMES_OF_MAPS)
def test_extremes_of_maps(name: str) -> None:
    """What is compared with an extreme has been made as that was: its derivatives are no zeros. Under each transformation."""
    ours, plain = EXTREMES_OF_MAPS[name]
    rng = np.random.default_rng(17)
    x, i = jnp.asarray(rng.normal(size=(300, 3)), jnp.float32), jnp.asarray(rng.integers(0, 7, 300))

    def total(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(call(x, i)))

    transformed: list[Callable[..., Any]] = [
        lambda call: jax.grad(total(call))(x) if call is ours else jax.jit(jax.grad(total(call)))(x),
        lambda call: jax.jit(jax.grad(total(call)))(x),
        lambda call: jax.jit(lambda x: jax.jvp(lambda x: call(x, i), (x,), (jnp.cos(x),))[1])(x),
        lambda call: jax.jit(jax.vmap(jax.grad(total(call))))(jnp.stack([x, -x])),
        lambda call: jax.jit(jax.grad(lambda x: jnp.sum(jax.grad(total(call))(x) ** 2)))(x),
    ]
    for transform in transformed:
        for got, expected in zip(jax.tree.leaves(transform(ours)), jax.tree.leaves(transform(plain)), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
