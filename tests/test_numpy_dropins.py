"""bincount and the histograms give what jax.numpy gives: values, edges, dtypes, errors.

Few shapes and numbers of bins: JAX compiles anew for each other one.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_outcomes import INF, NAN, X, assert_same

import jaxprims as jp

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
@pytest.mark.cover(4)
def test_same_as_jax_numpy(case):
    assert_same(CASES[case])


@pytest.mark.parametrize("case", ["int", "edges float64"])
def test_histogram_with_x64(case):
    with jax.enable_x64(True):
        assert_same(HISTOGRAMS[case])


@pytest.mark.cover(2)
@pytest.mark.parametrize("shape", [(), (5,)])
@pytest.mark.parametrize("weights", [None, "float16", "int32"])
def test_weak_types_with_x64(shape, weights):
    """Weakly typed float32, made where float64 is not enabled, stays float32 as it does in jax.numpy."""
    x = jax.jit(lambda: jnp.broadcast_to(jax.lax.exp(1.5), shape))()
    assert (x.dtype, x.weak_type) == (np.float32, True)
    with jax.enable_x64(True):
        w = None if weights is None else np.ones(shape, weights)
        for call in (
            lambda m, x: m.histogram(x, 3, weights=w),
            lambda m, x: m.histogram_bin_edges(x, 3),
            lambda m, x: m.histogram2d(jnp.ravel(x), jnp.ravel(x), 3, weights=None if w is None else w.ravel()),
        ):
            got, want = call(jp, x), jax.jit(lambda x: call(jnp, x))(x)
            assert [a.dtype for a in jax.tree.leaves(got)] == [a.dtype for a in jax.tree.leaves(want)]
            jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.dear
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


@pytest.mark.parametrize("bins", [2**47, 2**62, 2**63, 2**70])
def test_more_bins_than_any_memory_has(bins):
    """An error, where XLA would end the process."""
    two, many = lambda x, n: jp.histogram2d(x, x, (2, n)), lambda x, n: jp.histogramdd(x[:, None], n)
    for call in (jp.histogram, jp.histogram_bin_edges, two, many):
        with pytest.raises(ValueError, match="num_bins must be fewer than any memory has"):
            call(jnp.arange(6.0), bins)
