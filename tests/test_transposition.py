"""``jax.linear_transpose`` of every primitive: right wherever the call is linear, an error wherever it is not; linear solvers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp
from jaxprims import monoids
from jaxprims.ir.linear import CONSTANT, LINEAR, OTHER, ZERO, degrees
from jaxprims.tracing.lower import to_program

N, H = 40, 7
rng = np.random.default_rng(5)
IDS = jnp.asarray(rng.integers(-1, H + 1, N))
SORTED = jnp.sort(jnp.clip(IDS, 0, H - 1))
OTHERS = jnp.asarray(rng.integers(0, N, N))
W = jnp.asarray(rng.normal(size=N), jnp.float32)
V = jnp.asarray(rng.normal(size=N), jnp.float32)
OFFSETS = jp.Offsets(jnp.array([0, 5, 5, 20, N]))
STARTS = jnp.asarray(rng.random(N) < 0.2)
SUMS = jp.Bins(H, jnp.add, identity=0)
PAIRS = jp.Bins(H, monoids.add)
EVERY = jnp.concatenate([jnp.arange(H), SORTED[: N - H]])  # no empty segment, not in order


def over(sums: jax.Array, counts: jax.Array) -> jax.Array:
    """What may be transposed only if the counts are known to depend on nothing linear."""
    return sums / counts.astype(np.float32)


def with_ones(i: Any, row: Any) -> Any:
    return i, (row, jnp.ones_like(row))


LINEAR_CALLS: dict[str, Callable[[jax.Array], Any]] = {
    "segments, captured": lambda v: jp.segment_reduce((W, OTHERS), OFFSETS, map=lambda w, c: w * v[c]),
    "segments, map": lambda v: jp.segment_reduce(v, SORTED, map=lambda x: (x, -2 * x), op=monoids.add, num_segments=H),
    "segments of rows": lambda v: jp.segment_reduce(v.reshape(10, 4), jp.Offsets(jnp.array([0, 3, 10]))),
    "reduce, map": lambda v: jp.reduce(v, map=lambda x: 2 * x),
    "reduce, captured": lambda v: jp.reduce(jnp.ones((N, 3)), map=lambda row: jnp.dot(row, v[:3])),
    "reduce, captured in a loop": lambda v: jp.reduce(OTHERS, map=lambda k: jnp.sum(v) * k),
    "reduce, init alone": lambda v: jp.reduce(W, jnp.multiply, init=v[0]),
    "reduce of rows": lambda v: jp.reduce(v.reshape(8, 5), axis=1),
    "scan": lambda v: jp.scan(v, reverse=True, exclusive=True, init=jnp.float32(0)),
    "scan, map": lambda v: jp.scan(v, map=lambda x: (x, 3 * x), op=monoids.add),
    "scan, init alone": lambda v: jp.scan(W, jnp.multiply, init=v[0]),
    "affine": lambda v: jp.scan((W, v), monoids.affine)[1],
    "affine, segments": lambda v: jp.scan((W, v), monoids.affine, exclusive=True, reverse=True, segment_starts=STARTS)[1],
    "recurrence": lambda v: jp.linear_recurrence(W, v),
    "genhist": lambda v: jp.genhist(lambda i, x: (i, 3 * x), (IDS, v), SUMS),
    "genhist, captured": lambda v: jp.genhist(lambda i, c: (i, v[c]), (IDS, OTHERS), SUMS),
    "genhist, several": lambda v: jp.genhist(lambda i, x: [(i, x), (i % 3, -x)], (IDS, v), [SUMS, jp.Bins(3, jnp.add)]),
    "genhist, many updates": lambda v: jp.genhist(lambda i, x: (jnp.stack([i, i + 1]), jnp.stack([x, 2 * x])), (IDS, v), SUMS),
    "genhist, complex rows": lambda v: jnp.real(
        jp.genhist(lambda i, x: (jnp.clip(i, 0, 3), x), (IDS[:8], jax.lax.complex(v, 2 * v).reshape(8, 5) * (1 + 2j)), SUMS)
    ),
    "genhist, pairs": lambda v: jp.genhist(lambda i, x: (i, (x, 1)), (IDS, v), jp.Bins(H, monoids.add))[0],
    "genhist, where": lambda v: jp.genhist(lambda i, x: (i, jnp.where(i > 2, x, 0.0)), (IDS, v), SUMS),
    "by index": lambda v: jp.reduce_by_index(v, IDS, H),
    "by index, clip": lambda v: jp.reduce_by_index(v, IDS, H, mode="clip"),
    "by index, uint8": lambda v: jp.reduce_by_index(v, IDS.astype(np.uint8), H),
    "by index, dest": lambda v: jp.reduce_by_index(W, IDS, N, dest=v),
    "by index, rows": lambda v: jp.reduce_by_index(jnp.tile(v.reshape(10, 4), (1, 20)), IDS[:10], H),
    "bincount": lambda v: jp.bincount(SORTED, v, length=H),
    "histogram": lambda v: jp.histogram(W, 5, weights=v)[0],
    "histogram2d": lambda v: jp.histogram2d(W, -W, 5, weights=v)[0],
    "segment_sum, clip": lambda v: jp.segment_sum(v, IDS, H, mode="clip"),
    "segment_sum, buckets": lambda v: jp.segment_sum(v, SORTED, H, bucket_size=8),
    "cumsum": lambda v: jp.cumsum(v),
    "segment_mean": lambda v: jp.segment_mean(v, EVERY, H),
    "segment_mean, sorted": lambda v: jp.segment_mean(v, jnp.sort(EVERY), H, indices_are_sorted=True),
    "segment_mean, offsets": lambda v: jp.segment_mean(v, jp.Offsets(jnp.array([0, 5, 20, N]))),
    "segment_mean of complex": lambda v: jp.segment_mean(v * (1 + 2j), EVERY, H),
    "segment_mean, vmap": lambda v: jax.vmap(lambda x: jp.segment_mean(x, EVERY[:8], H))(v.reshape(5, 8)),
    "segment_mean, loop": lambda v: jax.lax.map(lambda x: jp.segment_mean(x, EVERY[:8], H), v.reshape(5, 8)),
    "segment_mean, branch": lambda v: jax.lax.cond(IDS[0] > -2, lambda x: jp.segment_mean(x, EVERY, H), lambda x: x[:H], v),
    "segment_mean, remat": lambda v: jax.checkpoint(lambda x: jp.segment_mean(x, EVERY, H))(v),
    "segment_mean, fuse": lambda v: jp.fuse(lambda x: jp.segment_mean(x, EVERY, H))(v),
    "reduce, a mean": lambda v: over(*jp.reduce((v, W * W), monoids.add, map=lambda x, w: (x * w, w))),
    "scan, means": lambda v: over(*jp.scan(v, monoids.add, map=lambda x: (x, jnp.float32(1)))),
    "scan, means from init": lambda v: over(*jp.scan((v, W * W), monoids.add, init=(v[0], jnp.float32(1)))),
    "scan, affine by its factor": lambda v: jnp.multiply(*jp.scan((W, v), monoids.affine)),
    "segments, means": lambda v: over(*jp.segment_reduce((v[::-1], W * W), jp.Offsets(jnp.array([0, 5, N])), monoids.add)),
    "genhist, means": lambda v: over(*jp.genhist(lambda i, x: [(i, x), (i, jnp.float32(1))], (EVERY, v), [SUMS, SUMS])),
    "genhist, means of captured": lambda v: over(*jp.genhist(lambda i, k: (i, (v[k], k + 1)), (EVERY, OTHERS), PAIRS)),
    "genhist, means of rows": lambda v: jnp.divide(*jp.genhist(with_ones, (EVERY[:8], v.reshape(8, 5)), PAIRS)),
    "stencil": lambda v: jnp.multiply(*jp.stencil(lambda x, w: (x[-1] * w[0], w[1] - w[0]), (v, W), boundary="wrap")),
    "vmap": lambda v: jax.vmap(lambda x: jp.reduce(x, map=lambda y: 2 * y))(v.reshape(8, 5)),
    "vmap of genhist": lambda v: jax.vmap(lambda x: jp.genhist(lambda i, y: (i, y + y), (IDS[:5], x), SUMS))(v.reshape(8, 5)),
}

NOT_LINEAR: dict[str, Callable[[jax.Array], Any]] = {
    "product": lambda v: jp.segment_prod(v, IDS, H),
    "maximum": lambda v: jp.segment_max(v, IDS, H),
    "cumprod": lambda v: jp.cumprod(v),
    "logsumexp": lambda v: jp.cumlogsumexp(v),
    "affine in both": lambda v: jp.scan((v, v), monoids.affine),
    "affine in the factor": lambda v: jp.scan((v, W), monoids.affine),
    "coefficients": lambda v: jp.linear_recurrence(v, W),
    "operator's captured": lambda v: jp.scan(W, lambda a, b: a + b * v[0]),
    "index": lambda v: jp.genhist(lambda x: (x.astype(np.int32), 1.0), (v,), SUMS),
    "square": lambda v: jp.reduce(v, map=lambda x: x * x),
    "square beside a count": lambda v: over(*jp.reduce(v, monoids.add, map=lambda x: (x * x, jnp.float32(1)))),
    "constant added": lambda v: jp.reduce(v, map=lambda x: x + 1),
    "branch": lambda v: jp.reduce(v, map=lambda x: jnp.where(x > 0, x, 0)),
    "product by index": lambda v: jp.reduce_by_index(v, IDS, H, jnp.multiply, identity=1),
}


def of_results(y: Any) -> Any:
    """Cotangents."""
    generator = np.random.default_rng(1)
    return jax.tree.map(lambda o: np.asarray(generator.normal(size=o.shape), o.dtype), y)


@pytest.mark.parametrize("name", LINEAR_CALLS)
@pytest.mark.cover(3)
def test_linear(name: str) -> None:
    """The same as the derivative, which is tested elsewhere; and so is that of the transposed function."""
    f = LINEAR_CALLS[name]
    ct = of_results(jax.eval_shape(f, V))
    transposed = jax.jit(lambda ct: jax.linear_transpose(f, V)(ct)[0])

    @jax.jit
    def every(v: Any, ct: Any) -> Any:
        wanted = jax.vjp(f, v)[1](ct)[0]
        return (transposed(ct), wanted), (jax.linear_transpose(transposed, ct)(wanted)[0], jax.jvp(f, (v,), (wanted,))[1])

    once, twice = jax.tree.map(np.asarray, every(V, ct))
    np.testing.assert_allclose(*once, rtol=1e-5, atol=1e-5)
    for got, want in zip(*map(jax.tree.leaves, twice), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_not_linear(name: str) -> None:
    f = NOT_LINEAR[name]
    y = jax.eval_shape(f, V)
    with pytest.raises(NotImplementedError, match="not linear"):
        jax.linear_transpose(f, V)(of_results(y))


@pytest.mark.cover(2)
@pytest.mark.parametrize(
    ("solver", "product"),
    [
        (jax.scipy.sparse.linalg.cg, "histogram"),
        (jax.scipy.sparse.linalg.gmres, "segments"),
        (jax.scipy.sparse.linalg.bicgstab, "histogram"),
    ],
)
def test_solvers(solver: Any, product: str) -> None:
    """Gradients through solvers transpose the product with a sparse matrix, by segments or by index."""
    n = 12
    matrix = np.eye(n) * 4 + 0.2 * rng.normal(size=(n, n)) * (rng.random((n, n)) < 0.4)
    matrix = matrix + matrix.T if solver is jax.scipy.sparse.linalg.cg else matrix
    rows, cols = (k.astype(np.int32) for k in np.nonzero(matrix))
    entries, b = matrix[rows, cols].astype(np.float32), V[:n]
    offsets = jp.Offsets(np.searchsorted(rows, np.arange(n + 1)).astype(np.int32))

    def times(entries: Any, x: Any) -> Any:
        if product == "segments":
            return jp.segment_reduce((entries, cols), offsets, map=lambda e, c: e * x[c])
        return jp.genhist(lambda r, e, c: (r, e * x[c]), (rows, entries, cols), jp.Bins(n, jnp.add, identity=0))

    def solved(entries: Any, b: Any) -> Any:
        return jnp.sum(jnp.sin(solver(lambda x: times(entries, x), b, tol=1e-6)[0]))

    def plain(entries: Any, b: Any) -> Any:
        dense = jnp.zeros((n, n)).at[rows, cols].add(entries)
        return jnp.sum(jnp.sin(jnp.linalg.solve(dense, b)))

    wanted = jax.jit(jax.grad(plain, argnums=(0, 1)))(entries, b)
    for got, want in zip(jax.jit(jax.grad(solved, argnums=(0, 1)))(entries, b), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_custom_linear_solve() -> None:
    """A triangular system, whose solution is a recurrence: both are transposed."""

    def solution(b: Any) -> Any:
        times = lambda x: x - W * jnp.concatenate([jnp.zeros(1), x[:-1]])  # noqa: E731
        back = lambda vecmat, b: jax.linear_transpose(lambda y: jp.linear_recurrence(W, y), b)(b)[0]  # noqa: E731
        return jax.lax.custom_linear_solve(times, b, lambda _, b: jp.linear_recurrence(W, b), back)

    weights = np.cos(np.arange(N, dtype=np.float32))
    got = jax.jit(jax.grad(lambda b: jnp.sum(weights * solution(b))))(V)
    wanted = jax.jit(jax.grad(lambda b: jnp.sum(weights * jp.linear_recurrence(W, b))))(V)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "fn, wanted",
    [
        (lambda x, c: x * c + 2 * x - x / c, LINEAR),
        (lambda x, c: 0 * x, ZERO),
        (lambda x, c: 0 * jnp.exp(x), OTHER),  # which may be NaN
        (lambda x, c: c * c, CONSTANT),
        (lambda x, c: x + c, OTHER),
        (lambda x, c: c / x, OTHER),
        (lambda x, c: jnp.exp(x), OTHER),
        (lambda x, c: jax.lax.select(c > 0, x, -x), LINEAR),
        (lambda x, c: jax.lax.select(c > 0, x, c), OTHER),
        (lambda x, c: jax.lax.fori_loop(0, 100, lambda k, y: c * y + x, x), LINEAR),
        (lambda x, c: jax.lax.fori_loop(0, 100, lambda k, y: y * x, x), OTHER),
        (lambda x, c: jax.lax.fori_loop(0, 100, lambda k, y: y + x * k, 0.0), LINEAR),
        (lambda x, c: jax.lax.while_loop(lambda s: s[0] < c, lambda s: (s[0] + 1, s[1] + x), (0.0, x))[1], LINEAR),
        (lambda x, c: jax.lax.while_loop(lambda s: s < c, lambda s: s + x, x), OTHER),
        (lambda x, c: jax.lax.cond(c > 0, lambda: x, lambda: 3 * x), LINEAR),
        (lambda x, c: jax.lax.cond(x > 0, lambda: x, lambda: 3 * x), OTHER),
    ],
)
def test_degrees(fn: Callable[..., Any], wanted: int) -> None:
    number = jax.ShapeDtypeStruct((), np.float32)
    program = to_program(jax.make_jaxpr(fn)(number, number).jaxpr)
    assert degrees(program, [LINEAR, CONSTANT]) == [wanted]
