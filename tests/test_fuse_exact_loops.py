"""Loops that treat every element by itself and exactly: binary searches and integers, in kernels, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import jaxprims as jp

pytestmark = pytest.mark.strategies
N = 4096
SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3.4e38], "float32")


def drawn(seed, shape, dtype="float32"):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    return np.where(rng.random(shape) < 0.1, rng.choice(SPECIAL, shape), rng.normal(size=shape)).astype(dtype)


def check(f, *args, taken=True):
    fused = jp.fuse(f)
    for want, got in zip(jax.tree.leaves(jax.jit(f)(*args)), jax.tree.leaves(jax.jit(fused)(*args)), strict=True):
        assert want.dtype == got.dtype
        np.testing.assert_array_equal(got, want)
    sites = [site.split(": left")[0] for site in jp.explain(fused)(*args).sites]
    assert any(name in site for site in sites for name in ("loop", "search")) == taken


@examples(5)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["float32", "int32", "uint8"]), st.sampled_from(["left", "right"]))
@pytest.mark.dear
def test_searches(seed, dtype, side):
    edges = np.sort(drawn(seed, 33, dtype))
    check(lambda e, x: jnp.searchsorted(e, x, side=side), edges, drawn(seed + 1, N, dtype))


TABLES = {
    "uneven": lambda rng: np.sort(rng.normal(size=65)),
    "special": lambda rng: np.sort(drawn(rng.integers(100), 257)),
    "few": lambda rng: np.sort(rng.normal(size=6)),
    "even": lambda rng: np.linspace(*np.sort(rng.normal(size=2)), 50),
    "descending": lambda rng: np.linspace(3, -1, 50),
    "exact": lambda rng: np.arange(0, 2, 1 / 32),
    "twice": lambda rng: np.sort(np.repeat(rng.normal(size=20), 3)),
    "in no order": lambda rng: drawn(rng.integers(100), 100),
    "infinite": lambda rng: np.array([-np.inf, -1, 0, 1, np.inf]),
    "all alike": lambda rng: np.zeros(45),
}


def by_place(f, e, x):
    """The same as XLA, by a search that is prepared for."""
    check(f, e, x)
    assert "search" in str(jp.explain(jp.fuse(f))(e, x).sites)


@examples(20)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["float32", "float16", "bfloat16"]),
    st.sampled_from(["left", "right"]),
    st.sampled_from(sorted(TABLES)),
)
@pytest.mark.dear
def test_searches_by_place(seed, dtype, side, table):
    rng = np.random.default_rng(seed)
    e = jnp.asarray(TABLES[table](rng), "float32").astype(dtype)
    near = [jnp.nextafter(e, jnp.asarray(to, dtype)) for to in (-9, 9)]
    x = jnp.concatenate([e, *near, *(jnp.asarray(a).astype(dtype) for a in (SPECIAL, drawn(seed, 2 * N)))])
    by_place(lambda e, x: jnp.searchsorted(e, x, side=side), e, x)


@pytest.mark.cover(3)
@pytest.mark.parametrize("table", sorted(TABLES))
def test_digitize_by_place(table):
    e, x = np.float32(TABLES[table](np.random.default_rng(1))), drawn(2, (4, 3 * N))
    by_place(lambda e, x: jnp.digitize(x, e), e, x)
    by_place(lambda e, x: jnp.zeros(300, int).at[jnp.digitize(x, e, right=True)].add(1), e, x)
    by_place(lambda e, x: jax.vmap(lambda x: jnp.max(jnp.searchsorted(e, x)))(x), e, x)


def test_a_search_is_taken_into_what_wants_it():
    edges, x = np.linspace(-2, 2, 33, dtype="float32"), drawn(0, (8, N))
    check(lambda e, x: jnp.zeros(34, int).at[jnp.digitize(x, e)].add(1), edges, x)
    check(lambda e, x: jnp.max(jnp.searchsorted(e, x), 1), edges, x)
    check(lambda x: jnp.histogram(x, 20, (-2, 2))[0], x[0])


def test_several_searches():
    edges, x = np.linspace(-2, 2, 33, dtype="float32"), drawn(0, N)
    check(lambda e, x: (jnp.searchsorted(e, x), jnp.searchsorted(e, x, side="right")), edges, x)
    f = lambda e, x: jnp.interp(x, e, e * e)  # noqa: E731
    np.testing.assert_allclose(jax.jit(jp.fuse(f))(edges, x), jax.jit(f)(edges, x), rtol=1e-5, atol=1e-6)


@pytest.mark.cover(2)
@pytest.mark.parametrize("n", [1, 0, N])
def test_transformed(n):
    edges, x = np.sort(drawn(1, (3, 17)), 1), drawn(0, (3, n))

    def f(e, x):
        return jnp.searchsorted(e, x)

    want = jax.jit(jax.vmap(f))(edges, x)
    np.testing.assert_array_equal(jax.jit(jp.fuse(jax.vmap(f)))(edges, x), want)
    np.testing.assert_array_equal(jax.jit(jax.vmap(jp.fuse(f)))(edges, x), want)
    gradient = jax.grad(lambda x: jnp.sum(jnp.interp(x, edges[0], edges[1]) ** 2))
    x = np.nan_to_num(x[0], nan=0, posinf=1, neginf=-1)
    np.testing.assert_allclose(jp.fuse(gradient)(x), gradient(x), rtol=1e-4, atol=1e-5)


def collatz(x):
    return lax.fori_loop(0, 40, lambda i, c: (jnp.where(c[0] % 2 == 0, c[0] // 2, 3 * c[0] + 1), c[1] + (c[0] > 1)), (x, x * 0))[
        1
    ]


def hashed(x):
    return lax.fori_loop(0, 9, lambda i, h: (h ^ (h >> 7) ^ x) * jnp.uint32(0x9E3779B1) + i.astype(jnp.uint32), x)


def in_rows(x, shifts):
    """A row's number is the same in every step."""
    return lax.fori_loop(0, 5, lambda i, h: h ^ (h << (shifts[:, None] + jnp.uint32(1))), x)


def test_integers():
    x = np.random.default_rng(0).integers(1, 1000, (8, 1000)).astype("int32")
    check(lambda x: jnp.max(collatz(x)), x)
    check(collatz, x)
    check(hashed, x.astype("uint32"))
    check(lambda x: jnp.sum(hashed(x), 1), x.astype("uint32"))
    check(in_rows, np.tile(x, 4).astype("uint32"), np.arange(8, dtype="uint32"))


def test_what_is_left():
    """What rounds, what mixes elements, what gives an array of its steps, what is done a few times."""
    x = np.random.default_rng(0).integers(0, 1000, N).astype("int32")
    check(lambda x: lax.fori_loop(0, 9, lambda i, h: jnp.roll(h, 1) ^ (h << 1), x), x, taken=False)
    check(lambda x: lax.scan(lambda h, _: (h * 3, h[0]), x, length=9), x, taken=False)
    check(lambda x: lax.fori_loop(0, 2, lambda i, h: h * 5 ^ x, x), x, taken=False)
    check(
        lambda x: lax.fori_loop(0, 9, lambda i, c: (c[1] ^ c[0].T, c[0]), (x.reshape(64, 64), x.reshape(64, 64)))[0],
        x,
        taken=False,
    )
    logistic = lambda x: lax.fori_loop(0, 100, lambda i, h: 3.9 * h * (1 - h), x)  # noqa: E731
    assert "loop of" not in str(jp.explain(jp.fuse(logistic))(x / np.float32(1001)).sites)


def test_operators_on_slices_with_loops():
    """A loop over the lanes of an operator is one for each lane."""
    x = np.random.default_rng(0).integers(0, 5, (300, 6)).astype("int32")

    def mixed(a, b):
        return lax.fori_loop(0, 3, lambda i, c: c | (b & ~(c >> 1)), a) | b

    got = jp.reduce(x, lambda a, b: lax.fori_loop(0, 4, lambda i, c: jnp.maximum(c, b), a), axis=0)
    np.testing.assert_array_equal(got, x.max(0))
    np.testing.assert_array_equal(jp.scan(x, lambda a, b: mixed(a, b) * 0 + jnp.maximum(a, b)), np.maximum.accumulate(x))
