"""segment_sum, prod, max and min give what jax.ops gives; the others what a loop over the segments gives.

More random examples: ``JAXPRIMS_EXAMPLES=2000 pytest tests/test_segment.py``.
"""

import functools

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import numpy_outcomes
import pytest
from drawn import examples
from exports import export
from hypothesis import given
from hypothesis import strategies as st
from jax.lax import GatherScatterMode
from jax.test_util import check_grads

import jaxprims as jp

NAMES = ("sum", "prod", "max", "min")
DATA = np.arange(1, 7, dtype=np.float32)
IDS = np.array([-1, 0, 2, 3, 7, -5])


def assert_same(name, *args, **options):
    numpy_outcomes.assert_same(lambda m: getattr(m, f"segment_{name}")(*args, **options), jax.ops)


MODES = (None, "drop", "clip", "fill", "promise_in_bounds", GatherScatterMode.CLIP, GatherScatterMode.FILL_OR_DROP, "wrap", "?")
IDS_OF = (IDS, IDS.astype("int8"), np.array([200, 0, 2, 3, 7, 0], "uint8"))


@pytest.mark.cover(2)
@pytest.mark.parametrize("mode", MODES)
def test_modes(mode):
    """Each mode meets every dtype of ids, most functions, and buckets or none."""
    for turn, ids in enumerate(IDS_OF, MODES.index(mode)):
        assert_same(NAMES[turn % 4], DATA, ids, 4, mode=mode, bucket_size=(None, 2)[turn % 2])


DTYPES = "float32 float16 bfloat16 int8 uint8 int16 int32 uint32 bool complex64 int4 float8_e4m3fn".split()


@pytest.mark.cover(3)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_and_empty_segments(dtype):
    """Sums, and the others in turn; of what has no order or no sum, all."""
    others = NAMES[1:] if dtype in ("bool", "complex64") else (NAMES[1 + DTYPES.index(dtype) % 3],)
    for name in ("sum", *others):
        assert_same(name, np.array([3, 1, 1]).astype(jnp.dtype(dtype)), np.array([0, 0, 2]), 4)


@pytest.mark.parametrize("dtype, name", [("int64", "sum"), ("uint64", "max"), ("float64", "min"), ("complex128", "prod")])
def test_dtypes_of_64_bits(x64, dtype, name):
    assert_same(name, np.array([3, 1, 1], dtype), np.array([0, 0, 2]), 4)


def test_ids_of_64_bits(x64):
    # jax.ops loses their upper halves
    ids = np.array([2**40, -(2**40), 0, 1, 2**62, -(2**63)])
    assert jp.segment_sum(DATA, ids, 4).tolist() == [3, 4, 0, 0]
    assert jp.segment_sum(DATA, ids, 4, mode="clip").tolist() == [11, 4, 0, 6]


SHAPES = {
    "rank 2": ((6, 3), (6,)),
    "rank 4": ((6, 2, 1, 3), (6,)),
    "ids of rank 2": ((3,), (2, 3)),
    "ids of rank 2, data of one column": ((2, 1), (2, 3)),
    "ids and data of rank 2": ((2, 2), (2, 2)),
    "ids and data of rank 2, not to be broadcast": ((2, 3), (2, 3)),
    "one row": ((1, 3), (2,)),
    "rows and ids differ": ((5, 3), (2,)),
    "scalar data": ((), (2,)),
    "scalars": ((), ()),
    "scalar id": ((3,), ()),
    "empty": ((0,), (0,)),
    "empty rows": ((2, 0), (2,)),
    "no ids of rank 2": ((2, 0), (2, 0)),
    "no ids of rank 2, rows": ((0, 3, 4), (0, 3)),
    "data and no ids": ((5, 3), (0,)),
}


@pytest.mark.cover(7)
@pytest.mark.parametrize("case", SHAPES)
def test_shapes(case):
    data, ids = SHAPES[case]
    rng = np.random.default_rng(0)
    values = rng.integers(-9, 9, data).astype(np.float32)
    turn = list(SHAPES).index(case) % 2
    assert_same(("sum", "max")[turn], values, rng.integers(0, 3, ids), 3, bucket_size=(None, 2)[turn])


ODD = {
    "num_segments found": ((DATA, np.array([0, 3, 1, 1, 0, 2])), {}),
    "num_segments found, rank 2": ((DATA, np.array([[0, 3, 1], [1, 0, 2]])[0]), {}),
    "all negative": ((np.ones(2), np.array([-4, -2])), {}),
    "no ids": ((np.ones(0), np.array([], int)), {}),
    "0": ((DATA, IDS, 0), {}),
    "negative": ((DATA, IDS, -3), {}),
    "float": ((DATA, IDS, 2.0), {}),
    "NumPy integer": ((DATA, IDS, np.int64(3)), {}),
    "float ids": ((DATA, IDS.astype(float), 3), {}),
    "list of ids": ((DATA, [0, 1], 3), {}),
    "list of data": (([1.0, 2.0], np.array([0, 1]), 3), {}),
    "sorted": ((DATA, np.array([0, 0, 1, 1, 1, 3]), 4), {"indices_are_sorted": True}),
    "unique": ((DATA, np.array([5, 0, 1, 2, 4, 3]), 6), {"unique_indices": True}),
    "NaN": ((np.array([1, np.nan, 2, np.nan], np.float32), np.array([0, 0, 1, 2]), 4), {}),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_arguments(case):
    args, options = ODD[case]
    for name in NAMES if case in ("NaN", "all negative") else NAMES[list(ODD).index(case) % 2 :: 2]:
        assert_same(name, *args, **options)


def test_traced_num_segments():
    for f in (jp.segment_sum, jp.segment_mean, jp.segment_argmax):
        with pytest.raises(jax.errors.ConcretizationTypeError, match="num_segments"):
            jax.jit(f)(DATA, IDS)


@examples(5)
@given(hnp.arrays(np.int32, (50, 2), elements=st.integers(-1000, 1000)), hnp.arrays(np.int32, 50, elements=st.integers(-2, 8)))
def test_random(data, ids):
    for name in NAMES:
        assert_same(name, data, ids, 7)
    assert_same("sum", data, ids, 7, mode="clip")


rng = np.random.default_rng(3)
X = rng.normal(size=60).astype(np.float32)
X2 = rng.normal(size=(60, 3)).astype(np.float32)
segments = rng.integers(-1, 8, 60)  # with ids out of range, and an empty segment
segments[segments == 4] = 5


@pytest.mark.parametrize("name, x", [("sum", X), ("sum", X2), ("max", X2), ("min", X)])
def test_drop_ins_transformed(name, x):
    batch, ids = np.stack([x, -x]), np.stack([segments, segments[::-1]])

    @jax.jit
    def transformed(x, batch, segments, ids):
        def all_of(f):
            def loss(x):
                y = f(x, segments, 7)
                return (jnp.where(jnp.isfinite(y), y, 0) ** 2).sum()

            return [
                f(x, segments, 7),
                jax.vmap(lambda x: f(x, segments, 7))(batch),
                jax.vmap(lambda x, i: f(x, i, 7))(batch, ids),
                jax.vmap(lambda i: f(x, i, 7))(ids),
                jax.grad(loss)(x),
                jax.jvp(lambda x: f(x, segments, 7), (x,), (x,))[1],
            ]

        return [all_of(getattr(m, f"segment_{name}")) for m in (jp, jax.ops)]

    for got, want in zip(*transformed(x, batch, segments, ids), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# --- against a loop ------------------------------------------------------------------------------------------------------------


@functools.cache
def jitted(name):
    return jax.jit(getattr(jp, f"segment_{name}"), static_argnums=2, static_argnames="mode")


def by_loop(f, x, ids, n, empty):
    return np.stack([f(x[ids == k]) if (ids == k).any() else np.full(x.shape[1:], empty) for k in range(n)])


@pytest.mark.parametrize("x", [X, X2, (X * 10).astype(int), (X2 * 10).astype("int8"), X > 0, X.astype("float16")])
def test_mean(x):
    got = jitted("mean")(x, segments, 7)
    assert got.dtype == jax.eval_shape(jnp.mean, x).dtype
    want = by_loop(lambda v: v.astype(float).mean(0), x, segments, 7, np.nan)
    np.testing.assert_allclose(got, want, rtol=1e-3 if x.dtype == np.float16 else 1e-5, atol=1e-6)


def test_mean_does_not_overflow():
    assert jp.segment_mean(np.full(1000, 1000, np.float16), np.zeros(1000, int), 1).tolist() == [1000.0]
    assert jp.segment_mean(np.array([1 + 2j, 3]), np.zeros(2, int), 1).tolist() == [2 + 1j]


@pytest.mark.parametrize("x", [X, X2, X * 1000, np.where(X > 0, -np.inf, X), np.where(X > 1, np.inf, X), (X * 10).astype(int)])
def test_logsumexp(x):
    got = jitted("logsumexp")(x, segments, 7)
    want = by_loop(lambda v: np.logaddexp.reduce(v.astype(float)), x, segments, 7, -np.inf)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("x", [X, X2, X * 1000, np.where(X > 0, -np.inf, X), (X * 10).astype(int)])
def test_softmax(x):
    want = np.zeros(x.shape)
    for k in range(7):
        here = np.flatnonzero(segments == k)
        mine = x[here].astype(float)
        powers = np.exp(mine - mine.max(0, initial=-np.inf))
        want[here] = powers / powers.sum(0)
    np.testing.assert_allclose(jitted("softmax")(x, segments, 7), want, rtol=1e-5, atol=1e-6)


WITH_TIES = rng.integers(-3, 3, (60, 2))
WITH_NAN = np.where(X > 1, np.nan, X)


@pytest.mark.cover(10)
@pytest.mark.parametrize("x", [X, X2, WITH_TIES, WITH_TIES.astype("uint8"), WITH_NAN, X > 0, np.full(60, -np.inf, np.float32)])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_arg(x, name):
    def position(k):
        here = np.flatnonzero(segments == k)
        return here[getattr(np, name)(x[here], axis=0)] if here.size else np.full(x.shape[1:], len(x))

    got = jitted(name)(x, segments, 7)
    assert got.dtype == jax.eval_shape(jnp.argmax, x).dtype
    np.testing.assert_array_equal(got, np.stack([position(k) for k in range(7)]))


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", ["mean", "logsumexp", "softmax", "argmax"])
def test_clip(name):
    f = jitted(name)
    ids = np.arange(60) % 10 - 2
    np.testing.assert_allclose(f(X, ids, 5, mode="clip"), f(X, ids.clip(0, 4), 5), rtol=1e-6)
    np.testing.assert_allclose(f(X, np.abs(ids).astype("uint8"), 5, mode="clip"), f(X, np.abs(ids).clip(0, 4), 5), rtol=1e-6)


@pytest.mark.cover(2)
@pytest.mark.parametrize("name, x, modes", [("mean", X2, ["fwd"]), ("logsumexp", X, ["rev"]), ("softmax", X2, ["fwd", "rev"])])
def test_gradients(name, x, modes):
    ids = np.where(segments == 6, 7, segments)

    def f(x):
        y = getattr(jp, f"segment_{name}")(x, ids, 7)
        return jnp.where(jnp.isfinite(y), y, 0)

    check_grads(jax.jit(f), (x,), order=2, modes=modes, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("name", ["mean", "logsumexp", "softmax", "argmax"])
def test_batches(name):
    f = jitted(name)
    batch, ids = np.stack([X, -X]), np.stack([segments, segments[::-1]])
    got = jax.vmap(lambda x, i: f(x, i, 7))(batch, ids)
    np.testing.assert_allclose(got, np.stack([f(x, i, 7) for x, i in zip(batch, ids, strict=True)]), rtol=1e-6)
    got = jax.jit(jax.vmap(lambda x: f(x, segments, 7)))(batch)
    np.testing.assert_allclose(got, np.stack([f(x, segments, 7) for x in batch]), rtol=1e-6)


@pytest.mark.parametrize("name", ["mean", "logsumexp", "softmax", "argmax", "argmin"])
def test_errors(name):
    f = getattr(jp, f"segment_{name}")
    with pytest.raises(TypeError, match="segment_ids"):
        f(X, segments.astype(float), 7)
    with pytest.raises(ValueError, match="segment_ids"):
        f(X, segments[:5], 7)
    with pytest.raises(ValueError, match="segment_ids"):
        f(X, segments.reshape(6, 10), 7)
    with pytest.raises(ValueError, match="num_segments"):
        f(X, segments, -1)
    with pytest.raises(ValueError, match="num_segments"):
        f(X[:0], segments[:0])
    with pytest.raises(ValueError):
        f(X, segments, 7, mode="?")
    if name != "mean":
        with pytest.raises(TypeError, match="data"):
            f(X * 1j, segments, 7)


def test_empty():
    ids = np.zeros(0, int)
    assert jp.segment_logsumexp(np.zeros((0, 2)), ids, 1).tolist() == [[-np.inf, -np.inf]]
    assert jp.segment_softmax(np.zeros(0), ids, 3).shape == (0,)
    assert jp.segment_argmax(np.zeros(0), ids, 2).tolist() == [0, 0]
    assert np.isnan(jp.segment_mean(np.zeros(0), ids, 2)).tolist() == [True, True]


# --- sorted ids and offsets ----------------------------------------------------------------------------------------------------

OFTEN = ("mean", "logsumexp", "softmax", "argmax", "argmin")


SORTED_SHAPES = ((90,), (90, 3), (90, 20))


@pytest.mark.cover(5)
@pytest.mark.parametrize("name, shape", [(name, SORTED_SHAPES[k % 3]) for k, name in enumerate((*NAMES, *OFTEN))])
def test_sorted_ids_and_offsets(name, shape):
    """Give what ids in any order give; some segments are empty, some elements in none."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal(shape).astype(np.float32)
    ids = np.sort(rng.integers(-3, 30, 90)).astype(np.int32)
    ids[ids == 7] = 8
    fn = getattr(jp, f"segment_{name}")
    offsets = jp.Offsets(np.searchsorted(ids, np.arange(26)))

    @jax.jit
    def run(data, offsets):
        is_sorted = functools.partial(fn, segment_ids=ids, num_segments=25, indices_are_sorted=True)
        return fn(data, ids, 25), is_sorted(data), jax.vmap(is_sorted)(data[None])[0], fn(data, offsets)

    want, *others = run(data, offsets)
    for got in others:
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)
    with pytest.raises(ValueError, match="contradicts offsets of 25 segments"):
        fn(data, offsets, 24)


@pytest.mark.parametrize("name", NAMES)
def test_what_offsets_do_not_go_with(name):
    fn, offsets = getattr(jp, f"segment_{name}"), jp.Offsets(np.array([0, 2, 6]))
    with pytest.raises(ValueError, match="bucket_size is for segment_ids that are ids"):
        fn(DATA, offsets, bucket_size=2)
    with pytest.raises(TypeError, match="num_segments must be an integer"):
        fn(DATA, offsets, 2.0)
    if name in ("sum", "prod"):
        with pytest.raises(TypeError, match="data must be numbers, got bool"):
            fn(DATA > 2, offsets)
    else:
        assert (
            fn(DATA > 2, offsets).tolist()
            == getattr(jax.ops, f"segment_{name}")(DATA > 2, np.array([0, 0, 1, 1, 1, 1]), 2).tolist()
        )


SYMBOLIC = jax.export.symbolic_shape("n, k")


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", ["sum", "max", *OFTEN[:4]])
def test_symbolic_shapes(name):
    """Of elements, of what is behind them, and of segments."""
    fn, (n, k) = getattr(jp, f"segment_{name}"), SYMBOLIC
    buckets = {"bucket_size": 4} if name in NAMES else {}

    def every(data, rows, ids, offsets):
        half = data.shape[0] // 2
        calls = (
            lambda: fn(data[:half], ids[:half], 5, mode="clip"),
            lambda: fn(data, ids, 5, **buckets),
            lambda: fn(rows, ids, 5, True),
            lambda: fn(data, jp.Offsets(offsets)),
            lambda: fn(rows, jp.Offsets(offsets)),
        )
        return [call() for call in (calls if name == "sum" else calls[len(name) % 2 :: 2])]

    avals = [jax.ShapeDtypeStruct(s, d) for s, d in (((n,), "f4"), ((n, k), "f4"), ((n,), "i4"), ((k + 1,), "i4"))]
    exported = export(jax.jit(every))(*avals)
    for rows in (np.concatenate([X2, X2[::-1]], 1)[:41],):
        args = rows[:, 1], rows, np.sort(segments[: len(rows)]).astype("i4"), np.linspace(0, 30, rows.shape[1] + 1).astype("i4")
        for got, want in zip(exported.call(*args), jax.jit(every)(*args), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sum", "max", "mean", "var"])
def test_a_symbolic_number_of_rows_without_numbers(name):
    """There is nothing to sort, and nothing that would need to know how many there are."""
    f = lambda rows, ids: getattr(jp, f"segment_{name}")(rows, ids, 5)  # noqa: E731
    avals = jax.ShapeDtypeStruct((SYMBOLIC[0], 0), "f4"), jax.ShapeDtypeStruct(SYMBOLIC[:1], "i4")
    got = export(jax.jit(f))(*avals).call(np.zeros((7, 0), "f4"), np.zeros(7, "i4"))
    assert got.shape == (5, 0)


def test_symbolic_numbers_of_segments_that_may_be_0():
    def every(data, offsets):
        cut = jp.Offsets(offsets)
        return [jp.segment_softmax(data, cut), jp.segment_var(data, cut), jp.segment_normalize(data, cut)]

    n, k = SYMBOLIC
    avals = (jax.ShapeDtypeStruct((n,), "f4"), jax.ShapeDtypeStruct((k,), "i4"))
    exported = export(jax.jit(every))(*avals)
    for offsets in ([2], [0, 4, 4, 9]):
        args = X2[:11, 0].astype("f4"), np.array(offsets, "i4")
        for got, want in zip(exported.call(*args), jax.jit(every)(*args), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", ["mean", "logsumexp", "softmax", "sum", "max", "prod"])
def test_derivatives_with_sorted_ids(name):
    rng = np.random.default_rng(0)
    data = rng.standard_normal(40).astype(np.float32)
    ids = np.sort(rng.integers(-3, 12, 40)).astype(np.int32)
    fn = getattr(jp, f"segment_{name}")
    weights = rng.standard_normal(fn(data, ids, 10).shape).astype(np.float32)
    total = lambda d, is_sorted: jnp.sum(jnp.where(weights < 9, weights * jnp.nan_to_num(fn(d, ids, 10, is_sorted), neginf=0), 0))  # noqa: E731
    by_sorted, by_any = jax.jit(lambda d: (jax.grad(total)(d, True), jax.grad(total)(d, False)))(data)
    np.testing.assert_allclose(by_sorted, by_any, rtol=1e-4, atol=1e-5)
