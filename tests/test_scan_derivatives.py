"""Derivatives of scans, reductions and segments: each rule, first and second order, both modes, every kind of call."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from references import einstein, inexact

import jaxprims as jp
from jaxprims.targets.plans import AnyKernel, forced

N = 6
STARTS = np.array([0, 0, 1, 0, 1, 1], bool)


def assert_close(got: Any, wanted: Any, rtol: float = 1e-9) -> None:
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=rtol, atol=1e-10), inexact(got), inexact(wanted))


def scalar(tree: Any) -> Any:
    """A number that depends on every result, not linearly."""
    weigh = lambda x: np.cos(np.arange(x.size, dtype=np.float64)).reshape(x.shape)  # noqa: E731
    turn = lambda x: np.asarray(1 + 0.5j if x.dtype.kind == "c" else 1, x.dtype)  # noqa: E731
    return sum(jnp.sum(weigh(x) * jnp.real(x * x * turn(x))) for x in inexact(tree))


def combine(op: Callable[..., Any], xs: Any, order: Sequence[int], init: Any = None) -> Any:
    """Elements combined one after the other."""
    for t in order:
        x = jax.tree.map(lambda v, t=t: v[t], xs)
        init = x if init is None else op(init, x)
    return init


def loop(op: Any, xs: Any, init: Any, neutral: Any, exclusive: bool, reverse: bool, starts: Any) -> Any:
    """The scan, element by element."""
    order = list(range(N))[:: -1 if reverse else 1]
    out: list[Any] = [None] * N
    begin = 0
    for k, t in enumerate(order):
        begin = k if starts is not None and starts[t] else begin
        mine = combine(op, xs, order[begin : k + (not exclusive)], init)
        out[t] = neutral if mine is None else mine
    return jax.tree.map(lambda *rows: jnp.stack(rows), *out)


def mean_variance(p: Any, q: Any) -> Any:
    n, d = p[0] + q[0], q[1] - p[1]
    return n, p[1] + d * q[0] / n, p[2] + q[2] + d * d * p[0] * q[0] / n


def matmul(a: Any, b: Any) -> Any:
    return a @ b


@jax.custom_jvp
def clipped(a: Any, b: Any) -> Any:
    return jnp.maximum(a, b)


@clipped.defjvp
def _(primals: Any, tangents: Any) -> Any:
    """At a tie all of it goes to the second."""
    (a, b), (da, db) = primals, tangents
    return clipped(a, b), jnp.where(a > b, da, db)


def cases() -> dict[str, tuple[Any, Any, Any, Any]]:
    """Operator, elements, a start value, identity."""
    rng = np.random.default_rng(0)
    real: Callable[..., np.ndarray] = lambda *shape: np.asarray(rng.uniform(-0.9, 0.9, shape))  # noqa: E731
    number = lambda *shape: real(*shape) + 1j * real(*shape)  # noqa: E731
    zeros = real(N)
    zeros[[1, 3]] = 0
    count = rng.uniform(1, 2, N)
    return {
        "add": (jnp.add, real(N), 0.5, 0.0),
        "sums": (lambda a, b: (a[0] + b[0], a[1] + b[1]), (real(N), number(N)), (0.5, 1 + 1j), (0.0, 0j)),
        "mul": (jnp.multiply, zeros, 0.5, 1.0),
        "max": (jnp.maximum, real(N), 0.1, -np.inf),
        "logaddexp": (jnp.logaddexp, real(N), 0.5, -np.inf),
        "complex mul": (jnp.multiply, number(N), 1 + 1j, 1 + 0j),
        "affine": (jp.monoids.affine, (real(N), real(N)), (0.5, 0.6), (1.0, 0.0)),
        "complex affine": (jp.monoids.affine, (number(N), number(N)), (0.5 + 1j, 0.6 + 0j), (1 + 0j, 0j)),
        "matmul": (matmul, real(N, 2, 2), real(2, 2), np.eye(2)),
        "complex matmul": (matmul, number(N, 2, 2), number(2, 2), np.eye(2) + 0j),
        "mean_variance": (mean_variance, (count, real(N), real(N) ** 2), (1.0, 0.5, 0.2), None),
        "argmax": (jp.monoids.argmax, (real(N), np.arange(N)), (0.1, 50), (-np.inf, np.iinfo(np.int64).max)),
        "custom": (clipped, np.array([1.0, 3, 3, 2, 3, 4]), 3.0, -np.inf),
        "einstein": (einstein, real(N), 0.5, 0.0),
    }


CASES = cases()
MODES = list(itertools.product((False, True), (False, True), (None, STARTS), (False, True)))


def arrays(name: str) -> tuple[Any, Any, Any, Any]:
    op, *others = CASES[name]
    return op, *jax.tree.map(np.asarray, others)


def tangent(x: Any) -> Any:
    inexact = jnp.issubdtype(x.dtype, jnp.inexact)
    return (
        np.sin(np.arange(1.0, x.size + 1)).reshape(x.shape).astype(x.dtype) if inexact else np.zeros(x.shape, jax.dtypes.float0)
    )


def finite(tree: Any) -> Any:
    return jax.tree.map(lambda y: jnp.where(jnp.isfinite(y), y, 0) if y.dtype.kind != "i" else y, tree)


def check(ours: Callable[..., Any], reference: Callable[..., Any], *args: Any) -> None:
    """Values, gradients, tangents."""
    every = tuple(range(len(args)))

    def all_of(f: Callable[..., Any], *args: Any) -> dict[str, list[Any]]:
        whole = lambda *a: finite(f(*a))  # noqa: E731
        grads = jax.grad(lambda *a: scalar(whole(*a)), every, allow_int=True)(*args)
        values, tangents = jax.jvp(f, args, jax.tree.map(tangent, args))
        return {"values": inexact(finite(values)), "gradients": inexact(grads), "tangents": inexact(tangents)}

    got, wanted = jax.jit(lambda *args: [all_of(f, *args) for f in (ours, reference)])(*args)
    for what in wanted:
        assert_close(got[what], wanted[what])


@pytest.mark.cover(2)
@pytest.mark.usefixtures("x64", "strict")
@pytest.mark.parametrize("name", CASES)
def test_like_a_loop(name: str) -> None:
    """Gradients and tangents are those of a loop; every combination of exclusive, reverse, segments and init."""
    op, xs, init, neutral = arrays(name)
    turn, once = list(CASES).index(name), name in ("add", "sums", "complex mul", "complex affine", "complex matmul", "argmax")
    for exclusive, reverse, starts, with_init in MODES[turn::16] if once else MODES[turn % 8 :: 8]:
        if exclusive and not with_init and neutral is None:
            continue
        known = op in (jnp.maximum, jnp.logaddexp, jp.monoids.argmax)
        kind: dict[str, Any] = {"exclusive": exclusive, "reverse": reverse, "segment_starts": starts}
        given = {} if known or with_init or neutral is None else {"identity": CASES[name][3]}
        check(
            lambda xs, init=None, k=kind, i=given: jp.scan(xs, op, init=init, **k, **i),
            lambda xs, init=None, k=kind: loop(op, xs, init, neutral, *k.values()),
            xs,
            *([init] if with_init else []),
        )


@pytest.mark.cover(2)
@pytest.mark.usefixtures("x64", "strict")
@pytest.mark.parametrize("name", ["add", "mul", "max", "logaddexp", "affine", "matmul", "mean_variance", "argmax", "einstein"])
def test_reductions_and_segments(name: str) -> None:
    op, xs, init, neutral = arrays(name)
    reduced = (lambda xs, i: jp.reduce(xs, op, axis=0, init=i), lambda xs, i: combine(op, xs, range(N), i))
    if neutral is None:
        check(*reduced, xs, init)
        return
    given = {} if op in (jnp.maximum, jnp.logaddexp, jp.monoids.argmax) else {"identity": CASES[name][3]}
    segments: Any = jp.Offsets(jnp.array([1, 2, 2, 5])) if len(name) % 2 else jnp.array([-1, 0, 2, 2, 2, 3])

    def one_by_one(xs: Any) -> Any:
        rows = [combine(op, xs, range(a, b)) if a < b else neutral for a, b in ((1, 2), (2, 2), (2, 5))]
        return jax.tree.map(lambda *rows: jnp.stack(rows), *rows)

    cut = (lambda xs: jp.segment_reduce(xs, segments, op, num_segments=3, **given), one_by_one)
    check(*(lambda xs, i, f=f, g=g: (f(xs, i), g(xs)) for f, g in zip(reduced, cut, strict=True)), xs, init)


@pytest.mark.usefixtures("x64", "strict")
@pytest.mark.dear
def test_second_order() -> None:
    """Against finite differences: a number for J, matrices for J; and a reduction by the general rule."""
    twice = lambda f, *args, modes=("fwd", "rev"): check_grads(f, args, 2, modes)  # noqa: E731
    op, xs, init, _ = arrays("mul")
    twice(jax.jit(lambda x, i: jp.scan(x, op, init=i, exclusive=True, map=lambda v: v * v + v)), xs[:4], init)
    op, xs, init, _ = arrays("matmul")
    twice(jax.jit(lambda x: jp.scan(x, op, reverse=True, segment_starts=STARTS[:4])), xs[:4], modes=["rev"])
    twice(jax.jit(lambda x: jp.reduce(x, op, axis=0)), xs[:4], modes=["fwd"])


@pytest.mark.usefixtures("x64", "strict")
def test_hessians_with_zeros() -> None:
    """Products of which none, one and several factors are zero."""
    v = np.array([2.0, 0, 3, 0, 5])
    for f, g in (
        (lambda v: jp.scan(v, jnp.multiply)[-1], jnp.prod),
        (lambda v: jp.segment_reduce(v, np.array([0, 0, 0, 1, 1]), jnp.multiply, num_segments=2)[0], lambda v: jnp.prod(v[:3])),
    ):
        assert_close(jax.jit(jax.hessian(f))(v), jax.jit(jax.hessian(g))(v))


@pytest.mark.dear
def test_drop_ins() -> None:
    """Gradients are jax.lax's; those of ties too, of which two share evenly."""
    x = np.random.default_rng(0).standard_normal((5, 4), np.float32)
    for ours, theirs in (
        (jp.cumprod, jax.lax.cumprod),
        (jp.cummin, jax.lax.cummin),
        (jp.cumlogsumexp, jax.lax.cumlogsumexp),
    ):
        grads = [jax.jit(jax.grad(lambda x, f=f: jnp.sum(jnp.sin(f(x, 0, True)))))(x) for f in (ours, theirs)]
        np.testing.assert_allclose(grads[0], grads[1], rtol=1e-4, atol=1e-5)
    ties = np.array([1, 2, 2, 0, 5], np.float32)
    grads = [jax.jit(jax.grad(lambda x, f=f: jnp.sum(f(x))))(ties) for f in (jp.cummax, jax.lax.cummax)]
    np.testing.assert_array_equal(grads[0], grads[1])
    assert jax.jit(jax.grad(lambda x: jp.reduce(x, jnp.maximum)))(np.array([3, 1, 3], np.float32)).tolist() == [0.5, 0, 0.5]
    cut = lambda x: jp.segment_reduce(x, np.array([0, 0, 1]), jnp.maximum).sum()  # noqa: E731
    by = jax.grad(cut)(np.array([3, 3, 3], np.float32))
    assert by.tolist() == [0.5, 0.5, 1]


@pytest.mark.usefixtures("x64", "strict")
@pytest.mark.dear
def test_through_captured_arrays() -> None:
    """Gradients reach what map and op capture, at computed indices too, and the elements beside them."""
    rng = np.random.default_rng(0)
    x, table = rng.uniform(-0.5, 0.5, 5), rng.uniform(0.5, 1, 3)
    at = np.array([0, 2, 2, 1, 0], np.int32)

    def op(table: Any) -> Callable[..., Any]:
        return lambda a, b: a + b + table[0] * a * b

    weighed = lambda table: lambda i, v: table[i] * v  # noqa: E731
    for f, g in (
        (lambda x, t: jp.scan(x, op(t), reverse=True), lambda x, t: loop5(op(t), x, True)),
        (lambda x, t: jp.reduce((at, x), op(t), map=weighed(t)), lambda x, t: combine(op(t), t[at] * x, range(5))),
    ):
        check(f, g, x, table)

    matrix = rng.uniform(-0.5, 0.5, (2, 2))
    pairs = rng.uniform(-1, 1, (5, 2, 2))
    through = lambda m: lambda a, b: a @ m @ b  # noqa: E731
    check(lambda p, m: jp.scan(p, through(m)), lambda p, m: loop5(through(m), p, False), pairs, matrix)


def loop5(op: Any, xs: Any, reverse: bool) -> Any:
    """The scan of five elements."""
    order = [4, 3, 2, 1, 0] if reverse else [0, 1, 2, 3, 4]
    rows = [combine(op, xs, order[: k + 1]) for k in range(5)]
    return jnp.stack(rows[::-1] if reverse else rows)


@pytest.mark.usefixtures("strict")
def test_transformations_compose() -> None:
    """vmap of grad, grad of vmap, jit, checkpoint; what is not batched is not copied."""
    x = np.random.default_rng(0).standard_normal((3, 5, 2, 2), np.float32)
    start = np.random.default_rng(1).standard_normal((2, 2), np.float32)
    plain = lambda x, i: jnp.stack([combine(matmul, x, range(k + 1), i) for k in range(5)])  # noqa: E731

    def losses(scan: Any) -> list[Any]:
        loss = lambda x, i: jnp.sum(jnp.sin(scan(x, i)))  # noqa: E731
        grad = jax.grad(loss, (0, 1))
        return [
            jax.vmap(grad, (0, None))(x, start),
            jax.vmap(grad, (1, None), 1)(np.moveaxis(x, 0, 1), start)[0],
            jax.grad(lambda x, i: jnp.sum(jax.vmap(loss, (0, None))(x, i)), (0, 1))(x, start),
            jax.grad(jax.checkpoint(loss), (0, 1))(x[0], start),
        ]

    got, wanted = (jax.jit(lambda f=f: losses(f))() for f in (lambda x, i: jp.scan(x, matmul, init=i), plain))
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5), got, wanted)

    v, s = x[:, :, 0, 0], x[0, :, 1, 0]
    square = lambda s, f: jnp.sum(jax.vmap(lambda v: f(v * s) ** 2)(v))  # noqa: E731
    grads = [jax.jit(jax.grad(lambda s, f=f: square(s, f)))(s) for f in (jp.cumprod, jnp.cumprod)]
    np.testing.assert_allclose(grads[0], grads[1], rtol=1e-4)


def test_linear_transpose_and_cotangents() -> None:
    """A sum's transpose is the sum from the other end; zeros and only one of several results."""
    one = jax.ShapeDtypeStruct((4,), jnp.float32)
    ct = np.arange(1, 5, dtype=np.float32)
    (back,) = jax.linear_transpose(jp.cumsum, one)(ct)
    assert back.tolist() == [10, 9, 7, 4]
    starts = np.array([True, False, True, False])
    for options, wanted in (
        ({"segment_starts": starts}, [3, 2, 7, 4]),
        ({"exclusive": True}, [9, 7, 4, 0]),
        ({"exclusive": True, "reverse": True}, [0, 1, 3, 6]),
        ({"exclusive": True, "reverse": True, "segment_starts": starts}, [0, 0, 2, 0]),
    ):
        f = lambda x, o=options: jp.scan(x, **o)  # noqa: E731
        (back,), jac = jax.jit(lambda f=f: (jax.linear_transpose(f, one)(ct), jax.jacfwd(f)(np.ones(4, np.float32))))()
        assert back.tolist() == (ct @ np.asarray(jac)).tolist()
        assert back.tolist() == wanted or "segment_starts" in options
    only = jax.grad(lambda v: jp.scan({"a": v, "b": -v}, jp.monoids.max)["b"][2])(np.array([3, 1, 2], np.float32))
    assert only.tolist() == [0, -1, 0]
    (back,) = jax.linear_transpose(lambda x: jp.reduce(x), one)(np.float32(2))
    assert back.tolist() == [2, 2, 2, 2]


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.complex64])
def test_gradients_keep_the_dtype(dtype: Any) -> None:
    v, init = np.asarray([0.5, 0.25, 0.125], dtype), np.asarray(0.5, dtype)
    for f, op in ((jp.scan, jnp.add if dtype == jnp.bfloat16 else jnp.multiply), (jp.reduce, jnp.multiply)):
        for g in jax.jit(jax.grad(lambda v, i, f=f, op=op: jnp.real(jnp.sum(f(v, op, init=i))), (0, 1)))(v, init):
            assert g.dtype == dtype and np.isfinite(np.asarray(g, np.complex64)).all()


def test_no_jacobians_are_stored() -> None:
    """The gradient of a scan of matrices holds states and elements, nothing of 16 numbers for each."""
    x = jnp.ones((7, 2, 2))
    jaxpr = jax.make_jaxpr(jax.grad(lambda x: jnp.sum(jp.scan(x, matmul))))(x)
    assert "linear_recurrence" in str(jaxpr)
    assert max(v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars) <= x.size


def test_empty_gradients() -> None:
    for op in (jnp.add, jnp.multiply, jnp.maximum):
        for f in (lambda v, i, op=op: jp.scan(v, op, init=i), lambda v, i, op=op: jp.reduce(v, op, axis=0, init=i)):
            grad = jax.jit(jax.grad(lambda v, i, f=f: jnp.sum(f(v, i)), (0, 1)))
            gv, gi = grad(np.ones((0, 2), np.float32), np.ones(2, np.float32))
            assert gv.shape == (0, 2) and gi.shape == (2,)


@pytest.mark.strategies
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"])
@pytest.mark.cover(1)
@pytest.mark.dear
def test_a_few_steps_are_xlas(name: str) -> None:
    """Along axes of so few elements that XLA is the strategy, of the scan or its derivative: values, gradients are JAX's."""
    rng = np.random.default_rng(1)
    lengths = ((1, False), (2, True), (2, False), (3, True), (4, False), (5, True), (9, False), (9, True), (10, True))
    cases = [(shape, axis, reverse) for n, reverse in lengths for shape, axis in (((n,), 0), ((2, n, 3), 1))]
    xs = [rng.normal(size=(2, *shape)).astype(np.float32) for shape, *_ in cases]

    def weighted(fn: Callable[..., Any], xs: Any) -> Any:
        ys = [fn(x[0], axis, reverse=reverse) for x, (_, axis, reverse) in zip(xs, cases, strict=True)]
        return sum(jnp.sum(y * x[1]) for x, y in zip(xs, ys, strict=True)), ys

    got, wanted = (
        jax.jit(jax.value_and_grad(functools.partial(weighted, fn), has_aux=True))(xs)
        for fn in (getattr(jp, name), getattr(jax.lax, name))
    )
    for g, v in zip(jax.tree.leaves(got[1]) + got[0][1], jax.tree.leaves(wanted[1]) + wanted[0][1], strict=True):
        np.testing.assert_allclose(g, v, rtol=1e-5, atol=1e-5)
    x = jnp.asarray(rng.normal(size=(5, 3)).astype(np.float32))
    check_grads(jax.jit(jax.vmap(getattr(jp, name))), (x,), 2, rtol=2e-2, atol=2e-2)


@pytest.mark.cover(2)
@pytest.mark.strategies
@pytest.mark.parametrize("n", [1, 2, 3, 6, 7])
def test_few_steps_of_any_operator(n: int) -> None:
    """Left to XLA, as the scan itself is: the same in both modes, of the second order, and under vmap."""
    rng = np.random.default_rng(n)
    op = lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])  # noqa: E731
    values = [rng.normal(size=(5, n)) for _ in range(2)]
    with jax.enable_x64(True):
        ours = lambda *x: sum(jnp.sum(y**2) for y in jp.scan(x, op, axis=1))  # noqa: E731
        plain = lambda *x: sum(jnp.sum(y**2) for y in _one_by_one(op, x))  # noqa: E731
        transforms = (
            lambda f: jax.grad(f, (0, 1)),
            lambda f: lambda *x: jax.jvp(f, x, x),
            lambda f: jax.grad(lambda *x: sum(jnp.sum(g * v) for g, v in zip(jax.grad(f, (0, 1))(*x), x, strict=True)), (0, 1)),
            lambda f: lambda *x: jax.vmap(jax.grad(f))(*(jnp.stack([v, 2 * v]) for v in x)),
        )
        got, want = (jax.jit(lambda *x, f=f: [transform(f)(*x) for transform in transforms])(*values) for f in (ours, plain))
        for g, w in zip(got, want, strict=True):
            assert_close(g, w)


def _one_by_one(op: Any, xs: Any) -> Any:
    states = [tuple(x[:, 0] for x in xs)]
    for k in range(1, xs[0].shape[1]):
        states.append(op(states[-1], tuple(x[:, k] for x in xs)))
    return [jnp.stack(s, 1) for s in zip(*states, strict=True)]


@pytest.mark.cover(13)
@pytest.mark.parametrize("op", [jnp.hypot, jnp.logaddexp])
@pytest.mark.parametrize("first", [0.0, -2.0, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("reverse", [False, True])
def test_the_first_result_is_the_element_itself(op: Any, first: float, reverse: bool) -> None:
    """Of a segment too, whatever the operator would make of it; what is infinite makes no other tangent one that is no number."""
    starts = np.array([True, False, False, True, False, False])
    x = np.array([1, 2, 3, 4, 5, 6], np.float32)
    met_first = [5, 3, 0] if reverse else [0, 3]
    x[met_first] = first
    moved = jax.jvp(lambda x: jp.scan(x, op, segment_starts=starts, reverse=reverse), (x,), (np.arange(1, 7, dtype=np.float32),))[
        1
    ]
    np.testing.assert_array_equal(moved[np.array(met_first)], np.array(met_first) + 1)
    assert np.isnan(first) or jnp.isfinite(moved).all()


@pytest.mark.cover(4)
@pytest.mark.parametrize("name", ["cumlogsumexp", "cumprod", "cummax", "cumsum"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7])
def test_few_steps_are_made_once(name: str, n: int) -> None:
    """XLA, which they are left to, makes no step's exponentials for each step behind it."""
    x = jnp.asarray(np.random.default_rng(n).normal(size=(8, n)).astype(np.float32))

    def gradient(module: Any) -> Any:
        return jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(getattr(module, name)(x, axis=1, reverse=True))))).lower(x).compile()

    ours, plain = gradient(jp), gradient(jax.lax)
    np.testing.assert_allclose(ours(x), plain(x), rtol=1e-4, atol=1e-5)
    made = [c.cost_analysis().get("transcendentals", 0) for c in (ours, plain)]
    assert made[0] <= made[1] + x.size


@pytest.mark.cover(3)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("op", [jnp.maximum, jnp.minimum])
def test_cotangents_of_halves_are_summed_wide(op: Any, dtype: Any) -> None:
    """One element has thousands of results' cotangents, of which a half holds no more than the first."""
    x = jnp.linspace(3, -3, 20_000).astype(dtype)
    weights = jnp.full(x.shape, 1.5 / 1024, dtype)
    of = lambda x: jnp.sum(jp.scan(x, op).astype(jnp.float32) * weights)  # noqa: E731
    moved = np.asarray(jax.jit(jax.grad(of))(x), np.float64)
    wanted = np.asarray(jax.jit(jax.grad(of))(x.astype(jnp.float32)), np.float64)
    assert abs(moved.sum() / wanted.sum() - 1) < 0.02


@pytest.mark.cover(2)
@pytest.mark.strategies
@pytest.mark.parametrize("name", ["cummax", "cummin", "cumprod", "cumlogsumexp"])
@pytest.mark.parametrize(("shape", "axis"), [((300, 6), 1), ((8, 60), 0), ((7,), 0)])
def test_derivatives_of_few_steps_are_xlas(name: str, shape: tuple[int, ...], axis: int) -> None:
    """No recurrence is solved for a few steps of what XLA knows, but of many exponentials; ties share alike."""
    draws = np.random.default_rng(len(shape))
    x, c = (jnp.asarray(draws.uniform(0.5, 2, shape).astype(np.float32)) for _ in range(2))

    def gradient(module: Any) -> Any:
        return jax.jit(jax.grad(lambda x: jnp.sum(c * getattr(module, name)(x, axis=axis, reverse=True))))

    text = gradient(jp).lower(x).as_text()
    assert ("@jaxprims" in text) == (name == "cumlogsumexp" and shape == (8, 60))
    np.testing.assert_allclose(gradient(jp)(x), gradient(jax.lax)(x), rtol=1e-4)
    with forced(AnyKernel()):
        solved = gradient(jp)(jnp.round(x))
    np.testing.assert_allclose(gradient(jp)(jnp.round(x)), solved, rtol=1e-4)
