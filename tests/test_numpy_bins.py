"""Every element's bin is the exact one, as jax.numpy has it. More random examples:
``JAXPRIMS_EXAMPLES=2000 pytest tests/test_numpy_bins.py``.
"""

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy_outcomes import INF, NAN, assert_same

import jaxprims as jp
from jaxprims.api.bin_finder import bin_finder

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


@pytest.mark.cover(5)
@pytest.mark.parametrize("limits", HARD)
def test_equal_bins_of_hard_ranges(limits):
    n = 1 if limits == (1, 1.0001) else 256
    x = near_edges(np.random.default_rng(n), jnp.histogram(jnp.zeros(1), n, limits)[1], np.float32)
    assert_same(lambda m: m.histogram(x, n, limits))


@examples(5)
@given(st.integers(0, 2**32 - 1), numbers(64), numbers(64))
@pytest.mark.dear
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
@pytest.mark.dear
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
    "few, equal edges": np.array([-2, -1, -0.5, 0, 0, 2, 3, 3]),
    "few, not in order": np.array([-2, -1, -0.5, 0, 0, 3, 2, 5]),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", ["logarithmic", "equal edges", "beyond resolution"])
def test_clustered_edges(name):
    """The others are searched below, in plain XLA."""
    edges = CLUSTERED[name].astype(np.float32)
    x = near_edges(np.random.default_rng(0), edges, np.float32)
    assert_same(lambda m: m.histogram(x, jnp.asarray(edges)))


LIMITS = {"int8": None, "uint8": (-3, 60), "int16": (-3, 60), "int32": None, "uint32": None, "bool": (-3, 60)}


@pytest.mark.cover(2)
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


@pytest.mark.cover(4)
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


@pytest.mark.parametrize(("edges", "equal"), [(CLUSTERED["few, not in order"], False), (np.linspace(-2, 5, 131), True)])
def test_few_numbers(edges, equal):
    """Too few to prepare anything for: each goes through the edges, sorted or not."""
    x = near_edges(np.random.default_rng(2), np.float32(edges), np.float32)[:60]
    assert_same(lambda m: m.histogram(x, 130, (-2, 5)) if equal else m.histogram(x, np.float32(edges)))


@pytest.mark.parametrize("name", ["few, equal edges", "few, not in order", "logarithmic"])
def test_edges_of_each_of_a_batch(name):
    """Where each member of a batch has its own, what is done with them is chosen for each; in a kernel and in plain XLA."""
    edges = np.float32(CLUSTERED[name])
    edges = np.stack([edges, np.linspace(-2, 5, edges.size, dtype=np.float32), np.sort(edges)[::-1], np.sort(edges) ** 3])
    x = near_edges(np.random.default_rng(3), edges.ravel(), np.float32).reshape(4, -1)
    for n in (6, 1024):
        assert_same(lambda m, n=n: jax.vmap(lambda x, e: m.histogram(x, e)[0])(x[:, :n], edges))


@pytest.mark.strategies
def test_weights_in_a_loop():
    """Of few numbers, whose bins XLA finds before it where they stay the same."""
    x = np.random.default_rng(4).normal(size=900).astype(np.float32)

    def sums(m, weights):
        return m.histogram(x, 20, (-3, 3), weights=weights)[0]

    def turns(m):
        return jax.lax.fori_loop(0, 3, lambda i, s: s + sums(m, jnp.ones(900) * i), jnp.zeros(20))

    calls = lambda: turns(jp), lambda: sums(jp, x)
    assert ["@jaxprims_hist" in jax.jit(f).lower().as_text() for f in calls] == [False, True]
    assert_same(turns)


@examples(5)
@given(hnp.arrays(np.int32, 64), st.sampled_from([1, 5, 100]))
def test_bincount(x, length):
    assert_same(lambda m: m.bincount(x, length=length))
    got, want = (m.bincount(x % 7, x.astype(np.float32) / 2**31) for m in (jp, jnp))
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@examples(5)
@given(st.integers(0, 2**32 - 1))
@pytest.mark.dear
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


ENDS = [(0, INF), (-INF, 0), (-INF, INF), (INF, INF), (-INF, -INF), (NAN, 1), (1, NAN), (1, 1)]


@pytest.mark.cover(2)
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.dear
def test_any_ends(ends, jitted):
    """What equals the last edge, where edges are NaN or do not ascend, by the rules of one axis or of several."""
    rng = np.random.default_rng(0)
    x, y = (np.float32([*rng.normal(size=20), INF, -INF, 0, 1, -1, NAN])[rng.permutation(26)] for _ in range(2))
    edges, both = np.float32([ends[0], -1, 0, 1, ends[1]]), np.stack([x, y], 1)
    calls = [
        lambda m, x, y, both: m.histogram(x, 2, ends),
        lambda m, x, y, both: m.histogram(x, edges, weights=jnp.abs(y)),
        lambda m, x, y, both: m.histogram2d(x, y, 3, range=[ends, (-1, 1)]),
        lambda m, x, y, both: m.histogram2d(x, y, edges),
        lambda m, x, y, both: m.histogramdd(both, 2, range=[ends, ends]),
        lambda m, x, y, both: m.histogramdd(both[:, :1], [edges]),
    ]
    for call in calls:
        once = jax.jit(call, static_argnums=0)
        got, want = (once if jitted else call)(jp, x, y, both), once(jnp, x, y, both)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
