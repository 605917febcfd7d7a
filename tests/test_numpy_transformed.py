"""bincount, histograms and the rest under every transformation, without implicit promotion, of symbolic shapes."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exports import export
from numpy_outcomes import X, assert_close, assert_same, rng

import jaxprims as jp

A = rng.normal(size=(4, 300)).astype(np.float32)
W = rng.normal(size=(4, 300)).astype(np.float32)
E = np.sort(rng.normal(size=(4, 9)).astype(np.float32), axis=1)
K = rng.integers(-2, 9, (4, 300))


def square(y):
    return (jax.tree.leaves(y)[0] ** 2).sum()


TRANSFORMED = {
    "jit, range traced": lambda m: jax.jit(lambda a, hi: m.histogram(a, 7, (0, hi)))(A, 2.0),
    "jit, edges traced": lambda m: jax.jit(m.histogram)(A, E[0]),
    "jit, two axes": lambda m: jax.jit(lambda a, r: m.histogramdd(a, (2, 3), r))(A[:2].T, np.array([[-1, 1], [-2, 3.0]])),
    "vmap": lambda m: jax.vmap(lambda a: m.histogram(a, 7))(A),
    "vmap in a range": lambda m: jax.vmap(lambda a: m.histogram(a, 7, (-1, 1)))(A),
    "vmap over edges": lambda m: jax.vmap(lambda e: m.histogram(A[0], e))(E),
    "vmap over both": lambda m: jax.vmap(m.histogram)(A, E),
    "vmap over weights": lambda m: jax.vmap(lambda w: m.histogram(A[0], 5, weights=w))(W),
    "vmap, density": lambda m: jax.vmap(lambda a, w: m.histogram(a, 5, weights=w, density=True))(A, W * W),
    "vmap, two axes": lambda m: jax.jit(jax.vmap(lambda a, w: m.histogram2d(a, w, 5)))(A, W),
    "vmap of vmap": lambda m: jax.vmap(jax.vmap(lambda a: m.histogram(a, 5), in_axes=1))(A.reshape(2, 300, 2)),
    "vmap, bincount": lambda m: jax.vmap(lambda k, w: m.bincount(k, w, length=4))(K, W),
    "grad of weights, density": lambda m: jax.grad(lambda w: square(m.histogram(A, 5, weights=w, density=True)))(W * W),
    "grad of weights, two axes": lambda m: jax.grad(lambda w: square(m.histogram2d(A[0], A[1], 5, weights=w)))(W[0]),
    "grad of weights, bincount": lambda m: jax.grad(lambda w: square(m.bincount(K[0], w, length=4)))(W[0]),
    "grad of data": lambda m: jax.grad(lambda a: square(m.histogram(a, 5, weights=W)))(A),
    "grad of edges by data": lambda m: jax.grad(lambda a: square(m.histogram(a, 5)[1]))(A),
    "grad of edges": lambda m: jax.grad(lambda e: square(m.histogram(A, e, weights=W)))(E[0]),
    "jvp": lambda m: jax.jvp(lambda w: m.histogram(A, 5, weights=w)[0], (W,), (A,)),
    "hessian": lambda m: jax.jit(jax.hessian(lambda w: (m.histogram(A[0, :20], 5, weights=w)[0] ** 3).sum()))(W[0, :20]),
    "vmap of grad": lambda m: jax.vmap(jax.grad(lambda w: square(m.histogram(A[0], 5, weights=w))))(W),
}


@pytest.mark.cover(3)
@pytest.mark.parametrize("case", TRANSFORMED)
def test_transformations(case):
    assert_close(TRANSFORMED[case], 1e-4, eager=case in ("vmap in a range", "grad of weights, bincount", "jvp"))


# --- without implicit promotion -----------------------------------------------------------------------------------------------

IDS6, OFFSETS = jnp.array([0, 2, 2, 3, 3, 5]), jnp.array([0, 2, 2, 5])
CUMULATIVE = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")

STRICT = {  # of a module like jax.numpy, one like jax.lax, one like jax.ops, and six elements
    "histogram": lambda m, lax, ops, x: m.histogram(x, 3, density=True),
    "histogram in a range": lambda m, lax, ops, x: m.histogram(x.reshape(2, 3), 3, (0, 4)),
    "histogram, edges": lambda m, lax, ops, x: m.histogram(x, jnp.array([0, 1, 3.0])),
    "histogram, weights of its dtype": lambda m, lax, ops, x: m.histogram(x, 3, weights=x, density=True),
    "histogram, weights": lambda m, lax, ops, x: m.histogram(jnp.arange(6), 3, weights=x),
    "histogram2d": lambda m, lax, ops, x: m.histogram2d(x, x, 2, density=True),
    "histogram2d, weights": lambda m, lax, ops, x: m.histogram2d(x, jnp.arange(6.0), 2, weights=x),
    "histogramdd": lambda m, lax, ops, x: m.histogramdd(x.reshape(3, 2), (2, 3), [(0, 3), (0, 4)]),
    "bincount": lambda m, lax, ops, x: m.bincount(x, minlength=2, length=4),
    "bincount, weights": lambda m, lax, ops, x: m.bincount(IDS6, x, length=4),
    "argmax": lambda m, lax, ops, x: (m.argmax(x), m.argmin(x.reshape(2, 3), 1, keepdims=True)),
    "associative_scan": lambda m, lax, ops, x: lax.associative_scan(jnp.multiply, x, reverse=True),
    **{f: lambda m, lax, ops, x, f=f: getattr(lax, f)(x.reshape(2, 3), 1, True) for f in CUMULATIVE},
    **{
        f"segment_{f}, {o}": lambda m, lax, ops, x, f=f, o=o: getattr(ops, f"segment_{f}")(x.reshape(3, 2), IDS6[:3], 4, **o)
        for f in ("sum", "prod", "max", "min")
        for o in ({}, {"mode": "clip"}, {"bucket_size": 2}, {"indices_are_sorted": True})
    },
}
STRICT_OF_OURS = {
    f"segment_{f}, {o}": lambda x, f=f, o=o: getattr(jp, f"segment_{f}")(
        *((x, jp.Offsets(OFFSETS)) if o is None else (x, IDS6, 4)), **(o or {})
    )
    for f in ("mean", "logsumexp", "softmax", "argmax", "argmin")
    for o in (None, {}, {"mode": "clip"}, {"indices_are_sorted": True})
}


KINDS = "bool int8 uint32 int64 float16 bfloat16 float32 float64 complex64 complex128".split()


@pytest.mark.cover(2)
@pytest.mark.parametrize("dtype", KINDS)
def test_without_implicit_promotion(x64, dtype):
    """As JAX's own functions under the same settings: the same types, or the same kind of error. Each dtype takes a part of the
    calls in turn."""
    turn = KINDS.index(dtype)
    strict, strict_of_ours = (
        {case: f for k, (case, f) in enumerate(calls.items()) if (k + k // 4 + turn) % part == 0}
        for calls, part in ((STRICT, 2), (STRICT_OF_OURS, 4))
    )
    x = jnp.array([3, 1, 2, 0, 1, 1]).astype(dtype)

    def types(f):
        try:
            return [(y.dtype, y.weak_type, y.shape) for y in jax.tree.leaves(jax.eval_shape(f))]
        except Exception as error:
            return "TypeError" if isinstance(error, TypeError) else type(error).__name__

    as_ever = {case: types(functools.partial(f, x)) for case, f in strict_of_ours.items()}
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for case, f in strict.items():
            ours, theirs = types(lambda: f(jp, jp, jp, x)), types(lambda: f(jnp, jax.lax, jax.ops, x))
            assert ours == theirs, case
        for case, f in strict_of_ours.items():
            assert types(functools.partial(f, x)) == as_ever[case], case


def test_what_jax_numpy_has_not():
    """An option is one of ours where it is one of the installed ``jax.numpy``'s."""
    for option in ({"out_sharding": None}, {"unknown": 1}):
        assert_same(lambda m: m.histogram(X, 3, **option))


@pytest.mark.cover(1)
@pytest.mark.parametrize("bins", [6, 10])
@pytest.mark.dear
def test_counts_are_those_of_the_edges_that_are_returned(bins):
    """XLA may round an edge in one way where it is returned and in another where it is read; a whole number may be one."""
    calls = (
        lambda x: jp.histogram(x, bins),
        lambda x: jp.histogram(x, bins, weights=jnp.ones(41)),
        lambda x: jp.histogramdd(x[:, None], bins),
        lambda x: jax.lax.cond(x[0] < 9, lambda: jp.histogram(x, bins), lambda: jp.histogram(-x, bins)),
    )
    # As by default, not as these tests have it: so edges are rounded as they are for users
    options = {"xla_backend_optimization_level": 3}
    if "fusion_emitters" in os.environ["XLA_FLAGS"]:
        options["xla_cpu_use_fusion_emitters"] = True
    xs = [np.random.default_rng(most).integers(-most, most + 1, (2, 41)).astype(np.float32) for most in (3, 4)]
    for call in calls:
        of_one = jax.jit(call).lower(xs[0][0]).compile(options)
        of_both = jax.jit(jax.vmap(call)).lower(xs[0]).compile(options)
        for x in xs:
            for row, (counts, edges) in zip(x, (of_one(x[0]), jax.tree.map(lambda a: a[1], of_both(x))), strict=True):
                edges = edges[0] if isinstance(edges, list) else edges
                np.testing.assert_array_equal(counts, np.histogram(row, edges)[0])


# --- symbolic shapes ----------------------------------------------------------------------------------------------------------


def test_symbolic_shapes():
    def every(x, rows, ids):
        return (
            jp.histogram(ids, 3),
            jp.histogram(rows[: x.shape[0] // 2], 7, (-1, 1), density=True),
            jp.bincount(ids, length=3),
            jp.bincount(ids, x, length=3),
        )

    n, k = jax.export.symbolic_shape("n, k")
    avals = [jax.ShapeDtypeStruct(s, d) for s, d in (((n,), "f4"), ((n, k + 2), "f4"), ((n,), "i4"))]
    exported = export(jax.jit(every))(*avals)
    rows = np.random.default_rng(0).normal(size=(300, 4)).astype("f4")
    args = rows[:, 1], rows, np.arange(300, dtype="i4") % 4
    for got, want in zip(jax.tree.leaves(exported.call(*args)), jax.tree.leaves(jax.jit(every)(*args)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
