"""``jp.segment_reduce`` against the definition: segments of every length, offsets and ids, operators that do not commute."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from references import DTYPES, assert_close
from test_scan import affine, elements, everything, last, matmul

import jaxprims as jp

IDENTITY = {
    "two": np.eye(2, dtype=np.float32),
    "three": np.eye(3, dtype=np.float32),
    "affine": (np.float32(1), np.float32(0)),
    "last": np.int16(0),
    "joined": (np.uint32(0), np.uint32(0), np.uint32(1)),
}


def segmented(x: Any, offsets: Any, op: Any, identity: Any) -> Any:
    """The definition, segment by segment."""
    n = len(jax.tree.leaves(x)[0])
    bounds = np.clip(np.asarray(offsets).astype(object), 0, n).astype(int)
    out = []
    for a, b in itertools.pairwise(bounds):
        part = jax.tree.map(lambda v, a=a, b=b: references.wide(v)[a:b], x)
        if b > a:
            out.append(jax.tree.map(lambda v: v[-1], references.scan(part, op)))
        else:
            out.append(jax.tree.map(lambda i, v: np.broadcast_to(i, v.shape[1:]).astype(references.wide(v).dtype), identity, x))
    return jax.tree.map(lambda *rows: np.stack(rows), *out)


def ids_of(offsets: Any, n: int) -> np.ndarray:
    """-1 before the first segment, the number of segments behind the last."""
    return (np.searchsorted(offsets, np.arange(n), side="right") - 1).astype(np.int32)


def offsets_of(lengths: Any, first: int = 0) -> np.ndarray:
    return (first + np.concatenate([[0], np.cumsum(lengths)])).astype(np.int32)


rng = np.random.default_rng(0)
LENGTHS = {
    "one by one": np.ones(700, int),
    "short": rng.integers(0, 5, 600),
    "as long as vectors": rng.integers(10, 40, 60),
    "long": np.array([700, 1, 900, 0, 0, 1023, 1024, 1025]),
    "one": np.array([1500]),
    "mostly empty": np.where(rng.random(4000) < 0.02, rng.integers(1, 30, 4000), 0),
    "of all lengths": np.arange(60),
    "all empty": np.zeros(9, int),
}


@pytest.mark.cover(3)
@pytest.mark.parametrize("case", LENGTHS)
def test_lengths(case: str) -> None:
    lengths = LENGTHS[case]
    n = 30 + int(lengths.sum())
    offsets = offsets_of(lengths, 13)
    x = elements(n)
    want = segmented(x, offsets, everything, IDENTITY)

    @jax.jit
    def run(x: Any, offsets: Any, ids: Any) -> Any:
        by_ids = jp.segment_reduce(x, ids, everything, num_segments=len(lengths), identity=IDENTITY)
        return jp.segment_reduce(x, jp.Offsets(offsets), everything, identity=IDENTITY), by_ids

    for got in run(x, offsets, ids_of(offsets, n)):
        assert_close(got, want, 1e-3)


def test_long() -> None:
    """Many blocks, of long and of short segments; and a second run gives the same bits."""
    lengths = np.concatenate([rng.integers(0, 9, 5000), [40_000], rng.integers(0, 300, 100), [0, 1, 30_000]])
    n, offsets = int(lengths.sum()), offsets_of(lengths)
    a, b = rng.uniform(-1, 1, n).astype(np.float32), rng.standard_normal(n).astype(np.float32)
    run = jax.jit(lambda a, b, o: jp.segment_reduce((a, b), jp.Offsets(o), jp.monoids.affine))
    got = jax.tree.map(np.asarray, run(a, b, offsets))
    prefixes = references.scan((a, b), affine, starts=np.isin(np.arange(n), offsets[:-1]))
    some = lengths > 0
    for g, p, e in zip(got, prefixes, (1, 0), strict=True):
        assert_close(g[some], p[offsets[1:][some] - 1], 1e-3)
        assert (g[~some] == e).all()
    assert all(p.tobytes() == np.asarray(q).tobytes() for p, q in zip(got, run(a, b, offsets), strict=True))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_dtypes_of_segments(dtype: str, x64: None) -> None:
    """Those outside are dropped, however far outside."""
    info = np.iinfo(dtype)
    x = np.arange(1, 10, dtype=np.float32)
    ids = np.array([info.min, max(info.min, -1), 0, 0, 2, 2, 2, 3, info.max], dtype)
    if info.min == 0:
        ids[:2] = 0
    want = [10.0 if info.min == 0 else 7, 0, 18]
    offsets = np.array([max(info.min, -5), 2, 2, 5, info.max], dtype)

    @jax.jit
    def run(x: Any, ids: Any, offsets: Any) -> Any:
        of_ids = [
            jp.segment_reduce(x, i, num_segments=n)
            for i, n in ((ids, 3), (ids, 0), (jnp.concatenate([ids[:-1], ids[-2:-1]]), 120))
        ]
        return of_ids, [jp.segment_reduce(x, jp.Offsets(offsets), op) for op in (jnp.add, jnp.maximum)]

    of_ids, of_offsets = jax.tree.map(lambda y: y.tolist(), run(x, ids, offsets))
    assert of_ids == [want, [], [*want, 17, *[0] * 116]]
    assert of_offsets == [[3, 0, 12, 30], [2, -np.inf, 5, 9]]


@pytest.mark.cover(5)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str, x64: None) -> None:
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 4, (400, 2)).astype(jnp.dtype(dtype))
    offsets = offsets_of([3, 0, 100, 1, 1, 40, 200])
    cases: Any = ((x, jnp.add, np.add), (x[:, 0], last, last))
    if dtype not in ("bool", "bfloat16"):  # of the others one, in turn
        cases = (cases[DTYPES.index(dtype) % 2],)
    run = jax.jit(
        lambda *vs: [jp.segment_reduce(v, jp.Offsets(offsets), op, identity=0) for v, (_, op, _) in zip(vs, cases, strict=True)]
    )
    for got, (v, _, reference) in zip(run(*(v for v, _, _ in cases)), cases, strict=True):
        assert got.dtype == x.dtype
        assert_close(got, segmented(v, offsets, reference, 0))


def test_sums_of_halves_are_rounded_once() -> None:
    x = np.random.default_rng(0).random(20_000).astype(jnp.bfloat16)
    got = np.asarray(jp.segment_reduce(x, jp.Offsets(np.array([0, 100, 20_000]))), np.float64)
    exact = np.asarray(x, np.float64)
    np.testing.assert_allclose(got, [exact[:100].sum(), exact[100:].sum()], rtol=float(jnp.finfo(jnp.bfloat16).eps))


@pytest.mark.dear
def test_slices() -> None:
    """Vectors, matrices in batches, leaves of different ranks; wide ones are combined lane by lane."""
    offsets = offsets_of([3, 0, 40, 1, 16])
    r = np.random.default_rng(0)
    for shape in ((3,), (37,), (4, 70), (2, 3, 2, 2)):
        x = r.integers(-99, 99, (60, *shape)).astype(np.int32)
        got = jp.segment_reduce(x, jp.Offsets(offsets), last, identity=0)
        assert_close(got, segmented(x, offsets, last, 0))
        at = np.asarray(jp.segment_reduce((x, jp.positions), jp.Offsets(offsets), jp.monoids.argmax)[1])
        for s, (a, b) in enumerate(itertools.pairwise(offsets)):
            if b > a:
                np.testing.assert_array_equal(at[s], a + x[a:b].argmax(0))
    m = np.linalg.qr(r.standard_normal((60, 5, 2, 2)))[0].astype(np.float32)
    eye = np.eye(2, dtype=np.float32)
    assert_close(jp.segment_reduce(m, jp.Offsets(offsets), matmul, identity=eye), segmented(m, offsets, matmul, eye), 1e-4)
    pair = m[:, 0], r.standard_normal((60, 2)).astype(np.float32)
    maps = lambda p, q: (q[0] @ p[0], q[0] @ p[1] + q[1])  # noqa: E731
    neutral = (eye, np.zeros(2, np.float32))
    assert_close(
        jp.segment_reduce(pair, jp.Offsets(offsets), maps, identity=neutral), segmented(pair, offsets, maps, neutral), 1e-4
    )


def test_map() -> None:
    """Sparse matrix times vector; on slices that are mixed, by XLA."""
    r = np.random.default_rng(0)
    offsets = offsets_of(r.integers(0, 8, 50))
    n = int(offsets[-1])
    columns, entries, x = r.integers(0, 20, n), r.standard_normal(n).astype(np.float32), r.standard_normal(20).astype(np.float32)
    spmv = jax.jit(lambda v, j, x: jp.segment_reduce((v, j), jp.Offsets(offsets), map=lambda v, j: v * x[j]))
    assert_close(spmv(entries, columns, x), segmented(entries * x[columns], offsets, np.add, 0), 1e-5)
    rows = r.standard_normal((n, 3)).astype(np.float32)
    assert_close(
        jp.segment_reduce(rows, jp.Offsets(offsets), map=jnp.sort), segmented(np.sort(rows, 1), offsets, np.add, 0), 1e-5
    )


def test_identities() -> None:
    """What empty segments hold: known when traced or not, the same in every lane or not, not even neutral."""
    x = np.ones((6, 2), np.float32)
    offsets = jp.Offsets(np.array([0, 0, 4, 4, 6, 9]))
    lanes = np.array([3, 4], np.float32)
    for op in (jnp.add, lambda a, b: jnp.where(b == 0, a, b)):
        run = jax.jit(lambda i, op=op: jp.segment_reduce(x, offsets, op, identity=i))
        np.testing.assert_array_equal(np.asarray(run(lanes))[::2], [lanes] * 3)
    ids = np.array([-3, 1, 1, 3, 3, 5])
    run = jax.jit(lambda i: jp.segment_reduce(x, ids, lambda a, b: jnp.where(b == 0, a, b), num_segments=5, identity=i))
    np.testing.assert_array_equal(run(lanes), [lanes, [1, 1], lanes, [1, 1], lanes])
    with pytest.warns(jp.IdentityWarning):
        assert jp.segment_reduce(x[:, 0], offsets, jnp.maximum, identity=np.float32(5)).tolist() == [5, 1, 5, 1, 5]


def test_counts() -> None:
    """num_segments: given, found, none; no elements."""
    x = np.arange(5, dtype=np.float32)
    assert jp.segment_reduce(x, jnp.array([0, 0, 1, 3, 3])).tolist() == [1, 2, 0, 7]
    assert jp.segment_reduce(x, jnp.array([-2, -2, -1, -1, -1])).shape == (0,)
    assert jp.segment_reduce(x, [0, 0, 1, 1, 9], num_segments=np.int64(2)).tolist() == [1, 5]
    assert jp.segment_reduce(x[:0], jnp.zeros(0, int), jnp.maximum, num_segments=2).tolist() == [-np.inf] * 2
    assert jp.segment_reduce(x, jp.Offsets(jnp.array([2])), jnp.maximum).shape == (0,)
    assert jp.segment_reduce(x[:, None][:, :0], jp.Offsets(jnp.array([0, 2, 5])), last).shape == (2, 0)


def test_batches() -> None:
    """vmap over any of values, segments, captured arrays."""
    r = np.random.default_rng(0)
    x = r.standard_normal((3, 40, 4)).astype(np.float32)
    offsets = np.stack([offsets_of(r.multinomial(40, [1 / 6] * 6)) for _ in range(3)])
    ids = np.stack([ids_of(o, 40) for o in offsets])
    w = r.standard_normal(3).astype(np.float32)
    by_offsets = lambda v, o: jp.segment_reduce(v, jp.Offsets(o))  # noqa: E731
    by_ids = lambda v, i: jp.segment_reduce(v, i, num_segments=6)  # noqa: E731
    for fn, cut in ((by_offsets, offsets), (by_ids, ids)):
        want = np.stack([segmented(x[k], offsets[k], np.add, 0) for k in range(3)])
        assert_close(jax.vmap(fn)(x, cut), want, 1e-5)
        assert_close(np.asarray(jax.vmap(fn, (None, 0))(x[1], cut))[1], want[1], 1e-5)
        assert_close(np.asarray(jax.vmap(fn, (0, None))(x, cut[1]))[1], want[1], 1e-5)
        inner = jax.jit(jax.vmap(fn, (2, None), 1))(x[1][:, None], cut[1])
        assert_close(np.asarray(inner)[..., 0], want[1], 1e-5)
        nested = jax.vmap(jax.vmap(fn, (1, None), 1))(x, cut)
        assert_close(nested, want, 1e-5)
    weighed = jax.vmap(lambda w: jp.segment_reduce(x[0], jp.Offsets(offsets[0]), map=lambda v: v * w))(w)
    assert_close(weighed, w[:, None, None] * segmented(x[0], offsets[0], np.add, 0), 1e-4)


@pytest.mark.cover(2)
@pytest.mark.parametrize("average", [1, 10, 300, 9000])
def test_histograms_of_sorted_indices(average: int) -> None:
    """``reduce_by_index`` takes one way or the other; what it does with indices outside and with ``dest`` is the same."""
    n = max(3000, 3 * average)
    bins = n // average
    r = np.random.default_rng(0)
    ids = np.sort(r.integers(-2, bins + 2, n)).astype(np.int32)
    x = r.integers(-99, 99, (n, 2)).astype(np.int32)
    dest = r.integers(-9, 9, (bins, 2)).astype(np.int32)
    for values, op, start in (
        (x, jnp.add, dest),
        (x[:, 0], jnp.maximum, None),
        ((x[:, 0], jp.positions), jp.monoids.argmax, None),
    ):
        got, want = (jp.reduce_by_index(values, ids, bins, op, dest=start, indices_are_sorted=s) for s in (True, False))
        assert_close(got, jax.tree.map(np.asarray, want))


def test_operators_without_a_kernel() -> None:
    x = np.random.default_rng(0).integers(0, 99, (11, 3)).astype(np.float32)
    greatest = lambda a, b: jax.lax.approx_max_k(jnp.concatenate([a, b], -1), 3)[0]  # noqa: E731
    offsets = np.array([1, 3, 3, 11])
    want = np.stack([-np.sort(-x[1:3].ravel())[:3], np.full(3, -1), -np.sort(-x[3:].ravel())[:3]])
    with pytest.warns(jp.FallbackWarning, match="op cannot be compiled"):
        got = jp.segment_reduce(x, jp.Offsets(offsets), greatest, identity=np.float32(-1))
    np.testing.assert_array_equal(got, want)


ERRORS: dict[str, tuple[Any, type, str]] = {
    "identity": (
        lambda x: jp.segment_reduce(x, jp.Offsets(np.array([0, 6])), last),
        ValueError,
        "neutral element is not known; give identity",
    ),
    "ids no integers": (lambda x: jp.segment_reduce(x, x), TypeError, "segments must be integers, got float32"),
    "shape of ids": (lambda x: jp.segment_reduce(x, np.zeros(5, int)), ValueError, r"ids must have shape \(6,\), got \(5,\)"),
    "contradiction": (
        lambda x: jp.segment_reduce(x, jp.Offsets(np.array([0, 6])), num_segments=2),
        ValueError,
        "num_segments=2 contradicts offsets of 1 segments",
    ),
    "traced ids": (
        lambda x: jax.jit(lambda i: jp.segment_reduce(x, i))(np.zeros(6, int)),
        ValueError,
        "must be given where the ids are traced",
    ),
    "no ids": (lambda x: jp.segment_reduce(x[:0], np.zeros(0, int)), ValueError, "must be given where there are no ids"),
    "negative": (
        lambda x: jp.segment_reduce(x, np.zeros(6, int), num_segments=-1),
        ValueError,
        "num_segments must not be negative, got -1",
    ),
    "no integer": (
        lambda x: jp.segment_reduce(x, np.zeros(6, int), num_segments=1.5),
        TypeError,
        "num_segments must be an integer",
    ),
    "several": (
        lambda x: jp.segment_reduce(x, np.zeros(6, int), num_segments=(2, 3)),
        TypeError,
        "num_segments must be an integer",
    ),
    "scalar": (lambda x: jp.segment_reduce(x[0], np.zeros(6, int)), ValueError, "values: every leaf needs an axis"),
    "lengths differ": (lambda x: jp.segment_reduce((x, x[:5]), np.zeros(6, int)), ValueError, "values must have one length"),
    "offsets": (lambda x: jp.Offsets(np.zeros((2, 2), int)), ValueError, "offsets must have shape"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: str) -> None:
    call, kind, message = ERRORS[case]
    with pytest.raises(kind, match=message):
        call(np.zeros(6, np.float32))
