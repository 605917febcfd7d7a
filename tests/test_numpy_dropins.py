"""bincount and the histograms give what jax.numpy gives: values, edges, dtypes, errors; under every transformation.

Few shapes and numbers of bins: JAX compiles anew for each other one. More random examples:
``JAXPRIMS_EXAMPLES=2000 pytest tests/test_numpy_dropins.py``.
"""

import functools

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st

import jaxprims as jp
from jaxprims.dropins.bin_finder import bin_finder

NAN, INF = np.nan, np.inf


def outcome(f):
    """What f returns, as comparable values, or the kind of error it raises."""
    try:
        result = f()
    except Exception as error:
        # JAX's errors about tracers are one kind: which of them it is changes between its versions
        return "TypeError" if isinstance(error, TypeError) else type(error).__name__
    leaves, tree = jax.tree.flatten(result)
    return tree, [(str(x.dtype), x.weak_type, x.shape, np.asarray(x)) for x in leaves]


def assert_same(f):
    got, want = outcome(lambda: f(jp)), outcome(lambda: f(jnp))
    if isinstance(want, str):
        assert got == want
        return
    assert not isinstance(got, str), got
    assert got[0] == want[0]
    for g, w in zip(got[1], want[1], strict=True):
        assert g[:3] == w[:3]
        np.testing.assert_array_equal(g[3], w[3])


def assert_close(f, rtol=1e-5, eager=False):
    """For sums of floats in another order."""
    got, want = jax.jit(lambda: (() if eager else f(jp), f(jnp)))()
    got = f(jp) if eager else got
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol)


X = np.array([0, 1, 2, 3, 4], np.float32)
I5 = np.arange(5)

HISTOGRAMS = {
    "default": lambda m: m.histogram(X),
    "int": lambda m: m.histogram(I5, 3),
    "uint8": lambda m: m.histogram(I5.astype("uint8"), 3),
    "bool": lambda m: m.histogram(I5 > 2, 3),
    "float16": lambda m: m.histogram(X.astype("float16"), 3),
    "complex": lambda m: m.histogram(X.astype("complex64"), 3),
    "rank 2": lambda m: m.histogram(np.arange(6.0).reshape(2, 3), 3),
    "scalar": lambda m: m.histogram(3.0, 3),
    "range": lambda m: m.histogram(X, 3, (1, 3)),
    "range array": lambda m: m.histogram(X, 3, jnp.array([0, 2.0])),
    "range of ints": lambda m: m.histogram(I5, 3, (0.5, 3.5)),
    "range beyond dtype": lambda m: m.histogram(I5.astype("uint8"), 3, (-5, 300)),
    "range reversed": lambda m: m.histogram(X, 3, (3, 1)),
    "range empty": lambda m: m.histogram(X, 3, (0, 0)),
    "range infinite": lambda m: m.histogram(X, 3, (0, INF)),
    "range NaN": lambda m: m.histogram(X, 3, (0, NAN)),
    "range of three": lambda m: m.histogram(X, 3, (0, 2.0, 3)),
    "edges": lambda m: m.histogram(X, jnp.array([0, 1, 2, 4.0])),
    "edges int": lambda m: m.histogram(I5.astype("int8"), jnp.array([0, 1, 2, 400])),
    "edges float64": lambda m: m.histogram(X, np.array([0, 0.5, 1.1, 2])),
    "edges float32 for float16": lambda m: m.histogram(X.astype("float16"), jnp.array([0, 0.5, 1.1, 2.0])),
    "edges twice": lambda m: m.histogram(X, jnp.array([0, 1, 1, 4.0])),
    "last edge twice": lambda m: m.histogram(X, jnp.array([0, 1, 4, 4.0])),
    "edges infinite": lambda m: m.histogram(jnp.array([0, INF, -INF, 2, 1]), jnp.array([-INF, 1, 2, INF])),
    "edges NaN": lambda m: m.histogram(jnp.array([0, INF, -INF, 2, NAN]), jnp.array([0, 1, 2, NAN])),
    "edges unsorted": lambda m: m.histogram(X, jnp.array([0, 3, 1, 4.0])),
    "edges one": lambda m: m.histogram(X, jnp.array([1.0])),
    "edges none": lambda m: m.histogram(X, jnp.array([])),
    "edges rank 2": lambda m: m.histogram(X, jnp.ones((2, 2))),
    "edges list": lambda m: m.histogram(X, [0, 1, 2.0]),
    "NaN": lambda m: m.histogram(jnp.array([0, 1, NAN, 2, 2]), 3),
    "NaN in range": lambda m: m.histogram(jnp.array([0, 1, NAN, 2, 2]), 3, (0, 2)),
    "infinite": lambda m: m.histogram(jnp.array([0, INF, -INF, 2, 1]), 3),
    "infinite in range": lambda m: m.histogram(jnp.array([0, INF, -INF, 2, 1]), 3, (0, 2)),
    "empty": lambda m: m.histogram(jnp.array([]), 3),
    "empty in range": lambda m: m.histogram(jnp.array([]), 3, (1, 2)),
    "empty, edges": lambda m: m.histogram(jnp.array([]), jnp.array([1.0, 2, 3])),
    "empty, density": lambda m: m.histogram(jnp.array([]), 3, (1, 2), density=True),
    "all equal": lambda m: m.histogram(jnp.full(5, 2.0), 3),
    "all equal, large": lambda m: m.histogram(jnp.full(5, 1e10), 3),
    "0 bins": lambda m: m.histogram(X, 0),
    "-1 bins": lambda m: m.histogram(X, -1),
    "2.5 bins": lambda m: m.histogram(X, 2.5),
    "bins an array": lambda m: m.histogram(X, jnp.array(2)),
    "bins a string": lambda m: m.histogram(X, "auto"),
    "bins traced": lambda m: jax.jit(lambda n: m.histogram(X, n))(3),
    "density": lambda m: m.histogram(X, 3, density=True),
    "density traced": lambda m: jax.jit(lambda d: m.histogram(X, 3, density=d))(True),
    "density float16": lambda m: m.histogram(X.astype("float16"), 3, density=True),
    "weights bool": lambda m: m.histogram(X, 3, weights=np.ones(5, bool)),
    "weights float16": lambda m: m.histogram(X, 3, weights=np.ones(5, "float16")),
    "weights float16, ints": lambda m: m.histogram(I5, 3, weights=np.ones(5, "float16")),
    "weights complex": lambda m: m.histogram(X, 3, weights=np.arange(5) * (1 + 2j)),
    "weights and density": lambda m: m.histogram(X, 3, weights=X, density=True),
    "weights rank 2": lambda m: m.histogram(np.arange(6.0).reshape(2, 3), 3, weights=np.arange(6.0).reshape(2, 3)),
    "weights shape": lambda m: m.histogram(X, 3, weights=np.ones(4)),
    "weights list": lambda m: m.histogram(X, 3, weights=[1, 2, 3, 4, 5]),
    "list": lambda m: m.histogram([1, 2, 3.0, 4, 5], 3),
    "None": lambda m: m.histogram(None, 2),
    "string": lambda m: m.histogram("abc", 2),
    "large ints": lambda m: m.histogram(np.array([2**31 - 1, 2**31 - 2, -(2**31), 0, 1]), 3),
}

S = np.array([[0, 0], [1, 2], [2, 1], [3, 4], [3, 1]], np.float32)
S_NAN = np.where(S == 1, np.float32(NAN), S)

HISTOGRAMS_ND = {
    "one number": lambda m: m.histogramdd(S, 2),
    "numbers": lambda m: m.histogramdd(S, (2, 3)),
    "array of numbers": lambda m: m.histogramdd(S, jnp.array([2, 3])),
    "edges": lambda m: m.histogramdd(S, [jnp.array([0, 1, 3.0]), jnp.array([0, 2, 4.0])]),
    "mixed": lambda m: m.histogramdd(S, [jnp.array([0, 1, 3.0]), 2]),
    "too few": lambda m: m.histogramdd(S, [jnp.array([0, 1, 3.0])]),
    "too many": lambda m: m.histogramdd(S, (2, 3, 4)),
    "lists of edges": lambda m: m.histogramdd(S, [[0, 1, 3.0], [0, 2, 4]]),
    "NaN": lambda m: m.histogramdd(S_NAN, 2),
    "NaN in range": lambda m: m.histogramdd(S_NAN, 2, [(0, 3), (0, 4)]),
    "range None": lambda m: m.histogramdd(S, 2, [None, (0, 4)]),
    "range array": lambda m: m.histogramdd(S, 2, jnp.array([[0, 3], [0, 2.0]])),
    "range short": lambda m: m.histogramdd(S, 2, [(0, 3)]),
    "int": lambda m: m.histogramdd(S.astype(int), 2),
    "complex": lambda m: m.histogramdd(S.astype("complex64"), 2),
    "weights": lambda m: m.histogramdd(S, 2, weights=I5),
    "weights complex": lambda m: m.histogramdd(S, 2, weights=I5 * 1j),
    "weights shape": lambda m: m.histogramdd(S, 2, weights=np.ones((5, 1))),
    "density": lambda m: m.histogramdd(S, 2, density=True),
    "density and weights": lambda m: m.histogramdd(S, 2, density=True, weights=np.array([0, 1, 2, 4, 1])),
    "rank 1": lambda m: m.histogramdd(X, 2),
    "rank 3": lambda m: m.histogramdd(np.ones((2, 2, 2)), 2),
    "columns": lambda m: m.histogramdd([X, X], 2),
    "empty": lambda m: m.histogramdd(np.ones((0, 2), np.float32), 2),
    "no axes": lambda m: m.histogramdd(np.ones((5, 0)), 2),
    "one axis": lambda m: m.histogramdd(np.ones((5, 1)), 2),
    "three axes": lambda m: m.histogramdd(np.arange(15.0).reshape(5, 3) % 6, (2, 3, 4)),
    "0 bins": lambda m: m.histogramdd(S, (2, 0)),
    "outside": lambda m: m.histogramdd(S, [jnp.array([1, 2.0]), jnp.array([1.0, 3])]),
    "2d": lambda m: m.histogram2d(X, X[::-1]),
    "2d edges for both": lambda m: m.histogram2d(X, X[::-1], jnp.array([0, 1, 3.0])),
    "2d list of edges for both": lambda m: m.histogram2d(X, X, [0, 1, 3.0]),
    "2d edges and number": lambda m: m.histogram2d(X, X, [jnp.array([0, 1, 3.0]), 2]),
    "2d two floats": lambda m: m.histogram2d(X, X, jnp.array([0, 3.0])),
    "2d two ints": lambda m: m.histogram2d(X, X, jnp.array([1, 3])),
    "2d one": lambda m: m.histogram2d(X, X, jnp.array([3.0])),
    "2d lengths": lambda m: m.histogram2d(X, X[:3]),
    "2d ranks": lambda m: m.histogram2d(S, S),
    "2d scalars": lambda m: m.histogram2d(1.0, 2.0, 2),
    "2d dtypes": lambda m: m.histogram2d(I5.astype("int8"), X.astype("float16"), 2),
    "2d range": lambda m: m.histogram2d(X, X, 2, [[0, 3], [0, 4]]),
    "2d weights": lambda m: m.histogram2d(X, X, 2, weights=I5),
    "2d density": lambda m: m.histogram2d(X, X, 2, density=True),
    "2d list": lambda m: m.histogram2d([0.0, 1, 2, 3, 4], [1.0, 2, 3, 4, 5], 2),
}

N4 = np.array([0, -1, -3, 5])

BINCOUNTS = {
    "plain": lambda m: m.bincount(np.array([0, 1, 1, 5])),
    "negative": lambda m: m.bincount(N4),
    "all negative": lambda m: m.bincount(np.array([-1, -3])),
    "length": lambda m: m.bincount(np.array([0, -1, -3, 5, 2]), length=3),
    "length 0": lambda m: m.bincount(N4, length=0),
    "length negative": lambda m: m.bincount(N4, length=-4),
    "length float": lambda m: m.bincount(N4, length=2.0),
    "minlength": lambda m: m.bincount(np.array([0, 1]), minlength=4),
    "minlength negative": lambda m: m.bincount(np.array([0, 1]), minlength=-4),
    "minlength float": lambda m: m.bincount(np.array([0, 1]), minlength=2.0),
    "minlength and length": lambda m: m.bincount(np.array([0, 1]), minlength=4, length=2),
    "empty": lambda m: m.bincount(np.array([], int)),
    "empty, minlength": lambda m: m.bincount(np.array([], int), minlength=2),
    "empty, weights": lambda m: m.bincount(np.array([], int), np.array([])),
    "float": lambda m: m.bincount(np.array([0.0])),
    "bool": lambda m: m.bincount(np.array([True, False])),
    "uint8 and a long result": lambda m: m.bincount(np.array([200, 2], "uint8"), length=300),
    "uint8 and a short result": lambda m: m.bincount(np.array([200, 2], "uint8"), length=100),
    "uint32": lambda m: m.bincount(np.array([2**32 - 1, 2], "uint32"), length=100),
    "rank 0": lambda m: m.bincount(3),
    "rank 2": lambda m: m.bincount(np.ones((2, 2), int)),
    "list": lambda m: m.bincount([1, 2]),
    "weights float16": lambda m: m.bincount(N4, np.ones(4, "float16")),
    "weights uint8": lambda m: m.bincount(N4, np.full(4, 200, "uint8")),
    "weights complex": lambda m: m.bincount(N4, np.arange(4) * (1 + 2j)),
    "weights bool": lambda m: m.bincount(N4, np.ones(4, bool)),
    "weights shape": lambda m: m.bincount(N4, np.ones(3)),
    "weights scalar": lambda m: m.bincount(N4, 2.0),
    "weights list": lambda m: m.bincount(N4, [1, 1, 1, 1]),
    "traced": lambda m: jax.jit(m.bincount)(N4),
    "traced, length": lambda m: jax.jit(functools.partial(m.bincount, length=3))(N4),
    "length traced": lambda m: jax.jit(lambda n: m.bincount(N4, length=n))(3),
    "minlength traced": lambda m: jax.jit(lambda n: m.bincount(N4, minlength=n, length=3))(3),
}

CASES = {
    f"{name}: {case}": f
    for name, cases in (("histogram", HISTOGRAMS), ("histogramdd", HISTOGRAMS_ND), ("bincount", BINCOUNTS))
    for case, f in cases.items()
}


@pytest.mark.parametrize("case", CASES)
def test_same_as_jax_numpy(case):
    assert_same(CASES[case])


@pytest.mark.parametrize("case", ["int", "edges float64"])
def test_histogram_with_x64(case):
    with jax.enable_x64(True):
        assert_same(HISTOGRAMS[case])


def test_histogram2d_with_x64():
    with jax.enable_x64(True):
        assert_same(HISTOGRAMS_ND["2d dtypes"])


@pytest.mark.parametrize("case", ["uint8 and a long result", "weights float16"])
def test_bincount_with_x64(case):
    with jax.enable_x64(True):
        assert_same(BINCOUNTS[case])


def test_bincount_of_indices_beyond_32_bits():
    with jax.enable_x64(True):
        assert jp.bincount(np.array([2**40, -(2**40), 1, 2**63 - 1]), length=5).tolist() == [1, 1, 0, 0, 0]


# --- every element's bin is the exact one ----------------------------------------------------------------------------------

N = 4096  # enough for the grid that speeds up the search


def near_edges(rng, edges, dtype):
    """Elements inside, on, and just beside edges, far outside, NaN."""
    edges = np.asarray(edges, dtype)
    on = rng.choice(edges, N)
    finite = edges[np.isfinite(edges)]
    lo, hi = (finite.min(), finite.max()) if finite.size else (0, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        inside = (lo + rng.random(N) * (float(hi) - float(lo))).astype(dtype)
        outside = (inside + (float(hi) - float(lo)) * rng.choice([-3, -1, 1, 2, 1e5], N)).astype(dtype)
        below, above = np.nextafter(on, dtype(-INF)), np.nextafter(on, dtype(INF))
    special = rng.choice(np.array([NAN, INF, -INF, 0.0, -0.0, 1e-30, np.finfo(dtype).max], dtype), N)
    return np.choose(rng.integers(0, 6, N), [on, inside, outside, special, below, above]).astype(dtype)


def numbers(width):
    return st.floats(width=width, allow_nan=False, allow_infinity=False, allow_subnormal=False)


@examples(5)
@given(st.integers(0, 2**32 - 1), numbers(32), numbers(32))
def test_equal_bins(seed, lo, hi):
    n = 10
    limits = sorted((np.float32(lo), np.float32(hi)))
    x = near_edges(np.random.default_rng(seed), jnp.histogram(jnp.zeros(1), n, limits)[1], np.float32)
    assert_same(lambda m: m.histogram(x, n, limits))


HARD = [(0, 1), (0, 256), (1, 1.0001), (1e6, 1e6 + 3), (-1e-30, 1e-30), (0, 1e38), (-3e38, 3e38)]


@pytest.mark.parametrize("limits", HARD)
def test_equal_bins_of_hard_ranges(limits):
    n = 1 if limits == (1, 1.0001) else 256
    x = near_edges(np.random.default_rng(n), jnp.histogram(jnp.zeros(1), n, limits)[1], np.float32)
    assert_same(lambda m: m.histogram(x, n, limits))


@examples(5)
@given(st.integers(0, 2**32 - 1), numbers(64), numbers(64))
def test_equal_bins_of_float64(seed, lo, hi):
    n = 256
    with jax.enable_x64(True):
        limits = sorted((lo, hi))
        x = near_edges(np.random.default_rng(seed), jnp.histogram(jnp.zeros(1), n, limits)[1], np.float64)
        assert_same(lambda m: m.histogram(x, n, limits))


@examples(5)
@given(
    st.integers(0, 2**32 - 1),
    hnp.arrays(np.float32, st.sampled_from([2, 17, 100]), elements=st.floats(-100, 100, width=32, allow_subnormal=False)),
    st.booleans(),
)
def test_any_edges(seed, edges, infinite):
    edges = np.sort(edges)
    if infinite:
        edges[0], edges[-1] = -INF, INF
    x = near_edges(np.random.default_rng(seed), edges, np.float32)
    assert_same(lambda m: m.histogram(x, jnp.asarray(edges)))


CLUSTERED = {
    "logarithmic": np.logspace(-6, 3, 200),
    "one cluster": np.r_[0, 1 + np.arange(50) * 1e-6, 2],
    "equal edges": np.r_[np.zeros(9), 1],
    "equal bins": np.linspace(-2, 5, 78),
    "beyond resolution": np.linspace(1, 1.0001, 10_000),
}


@pytest.mark.parametrize("name", ["logarithmic", "equal edges", "beyond resolution"])
def test_clustered_edges(name):
    """The others are searched below, in plain XLA."""
    edges = CLUSTERED[name].astype(np.float32)
    x = near_edges(np.random.default_rng(0), edges, np.float32)
    assert_same(lambda m: m.histogram(x, jnp.asarray(edges)))


LIMITS = {"int8": None, "uint8": (-3, 60), "int16": (-3, 60), "int32": None, "uint32": None, "bool": (-3, 60)}


@pytest.mark.parametrize("dtype", LIMITS)
def test_histograms_of_every_integer(dtype):
    x = np.random.default_rng(0).integers(0, 256, N).astype("uint8").view("int8").astype(dtype)
    assert_same(lambda m: m.histogram(x, 5, LIMITS[dtype]))


@pytest.mark.parametrize(("dtype", "n"), [("float16", 5), ("bfloat16", 64)])
def test_histograms_of_16_bits(dtype, n):
    x = jnp.asarray(np.random.default_rng(0).normal(size=N), dtype)
    counts, edges = jp.histogram(x, n)
    np.testing.assert_array_equal(edges, jax.jit(lambda x: jnp.histogram(x, n)[1])(x))
    # jax.numpy's sums of ones in 16 bits stop early: its bins are the same, counted in float32
    want = jax.jit(jnp.histogram)(np.asarray(x, np.float32), np.asarray(edges, np.float32))[0].astype(dtype)
    np.testing.assert_array_equal(counts, want)


FINDERS = [*((edges, N) for edges in CLUSTERED.values()), (CLUSTERED["one cluster"], 0), (np.arange(257), N), (np.arange(257), 0)]


@pytest.mark.parametrize(("edges", "elements"), FINDERS)
def test_bin_finder_in_plain_xla(edges, elements):
    edges = edges.astype(np.float32)
    x = near_edges(np.random.default_rng(1), edges, np.float32)

    @jax.jit
    def run(edges, x):
        return jnp.searchsorted(edges, x, side="right"), jax.vmap(bin_finder(edges, elements)[0])(x)

    above, got = map(np.asarray, run(edges, x))  # both as XLA compares: denormals are zeros
    want = np.where(x == edges[-1], len(edges) - 2, above - 1)
    inside = (want >= 0) & (want < len(edges) - 1)
    np.testing.assert_array_equal(got[inside], want[inside])
    assert not ((got >= 0) & (got < len(edges) - 1))[~inside].any()


@examples(5)
@given(hnp.arrays(np.int32, 64), st.sampled_from([1, 5, 100]))
def test_bincount(x, length):
    assert_same(lambda m: m.bincount(x, length=length))
    got, want = (m.bincount(x % 7, x.astype(np.float32) / 2**31) for m in (jp, jnp))
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@examples(5)
@given(st.integers(0, 2**32 - 1))
def test_histogram2d(seed):
    rng, bins = np.random.default_rng(seed), (3, 50)
    x, y = (near_edges(rng, np.linspace(-1, 1, b + 1), np.float32) for b in bins)
    for weights in (None, np.arange(N)):
        assert_same(lambda m: m.histogram2d(x, y, bins, [(-1, 1), (-1, 1)], weights=weights))


def test_counts_are_exact():
    x = np.zeros(5000, np.float16)  # float16 counts by ones end at 2048
    assert jp.histogram(x, 1)[0].tolist() == [5000.0]


@pytest.mark.cpu
def test_one_kernel_serves_many_numbers_of_bins():
    from jaxprims.targets.cpu import compiler

    x = np.linspace(0, 1, 4321, dtype=np.float32)
    for count in (lambda n: jp.histogram(x, n, (0, 1)), lambda n: jp.bincount((50 * x).astype(np.int32), length=n)):
        count(33)
        known = len(compiler._compiled)
        for n in (40, 62):
            count(n)
        assert len(compiler._compiled) == known


# --- transformations ---------------------------------------------------------------------------------------------------------

rng = np.random.default_rng(7)
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
    checks = [jax.export.DisabledSafetyCheck.custom_call(t) for t in jp.CUSTOM_CALL_TARGETS]
    exported = jax.export.export(jax.jit(every), disabled_checks=checks)(*avals)
    rows = np.random.default_rng(0).normal(size=(300, 4)).astype("f4")
    args = rows[:, 1], rows, np.arange(300, dtype="i4") % 4
    for got, want in zip(jax.tree.leaves(exported.call(*args)), jax.tree.leaves(jax.jit(every)(*args)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
