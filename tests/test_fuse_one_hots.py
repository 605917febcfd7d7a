"""One-hot arrays under ``fuse``: updates and reads by index in their place, and the same results, of what is not finite too."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from fused import same
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxprims as jp
from jaxprims.fusion.one_hots import FEWEST_IN_PRODUCTS, FEWEST_POSITIONS

pytestmark = pytest.mark.strategies
N, K = 3000, 20
RNG = np.random.default_rng(0)
IDS = jnp.asarray(RNG.integers(-3, K + 3, N), "int32")
OTHERS = jnp.asarray(RNG.integers(-3, K + 9, N), "int32")
X = jnp.asarray(RNG.normal(size=(N, 4)), "float32")
W = jnp.asarray(RNG.normal(size=(K, 4)), "float32")
ROWS = jnp.arange(K)
KIND = "one-hot arrays"


def hot(ids, k=K, **how):
    return jax.nn.one_hot(ids, k, **how)


def is_at(ids):
    return ids[:, None] == ROWS


def each(of):
    return jax.vmap(of)(ROWS)


def by_index(f, *args, taken=True):
    fused = jp.fuse(f)
    same(jax.jit(f)(*args), jax.jit(fused)(*args), atol=1e-5)
    assert any(site.startswith(KIND) for site in jp.explain(fused)(*args).sites) == taken


REDUCED = {
    "counts": lambda ids, x: hot(ids).sum(0),
    "of integers": lambda ids, x: jnp.sum(is_at(ids), 0),
    "of 8 bits": lambda ids, x: jnp.sum(ids.astype("uint8")[:, None] == jnp.arange(256, dtype="uint8"), 0),
    "unsigned": lambda ids, x: jnp.sum(ids.astype("uint32")[:, None] == ROWS.astype("uint32"), 0),
    "along axis 0": lambda ids, x: hot(ids, axis=0).sum(1),
    "weighted": lambda ids, x: jnp.sum(hot(ids) * x[:, :1], 0),
    "chosen": lambda ids, x: jnp.sum(jnp.where(is_at(ids), x[:, :1], 0), 0),
    "features": lambda ids, x: jnp.sum(is_at(ids)[:, :, None] * x[:, None], 0),
    "means": lambda ids, x: each(lambda k: jnp.mean(x, 0, where=(ids == k)[:, None])),
    "maxima": lambda ids, x: each(lambda k: jnp.max(jnp.where(ids == k, x[:, 0], -jnp.inf))),
    "minima": lambda ids, x: each(lambda k: jnp.min(x[:, 0], where=ids == k, initial=jnp.inf)),
    "products": lambda ids, x: jnp.prod(jnp.where(is_at(ids), x[:, :1], 1), 0),
    "and more": lambda ids, x: each(lambda k: jnp.sum(jnp.where((ids == k) & (x[:, 0] > 0), x[:, 1], 0))),
    "over two axes": lambda ids, x: jnp.sum(jnp.where(ids.reshape(30, 100, 1) == ROWS, x[:, 0].reshape(30, 100, 1), 0), (0, 1)),
    "halves": lambda ids, x: jnp.sum(jnp.where(is_at(ids), x.astype("bfloat16")[:, :1], 0), 0),
    "batch": lambda ids, x: jax.vmap(lambda ids: hot(ids).sum(0))(ids.reshape(30, 100)),
    "batch of features": lambda ids, x: jnp.sum(
        jnp.where(ids.reshape(3, 1000, 1, 1) == ROWS[:, None], x.reshape(3, 1000, 1, 4), 0), 1
    ),
    "batch of maxima": lambda ids, x: jax.vmap(
        lambda ids: each(lambda k: jnp.max(jnp.where(ids == k, x[:100, 0], -jnp.inf))), out_axes=1
    )(ids.reshape(30, 100)),
    "one for all": lambda ids, x: jnp.sum(jnp.where(ROWS == 3, x[:, :1], 0), 0),
}

MULTIPLIED = {
    "added": lambda ids, x: hot(ids).T @ x,
    "added, turned": lambda ids, x: x.T @ hot(ids),
    "added by einsum": lambda ids, x: jnp.einsum("nd,nk->dk", x, hot(ids)),
    "numbers": lambda ids, x: hot(ids).T @ x[:, 0],
    "over two axes": lambda ids, x: jnp.einsum("abk,bad->dk", hot(ids.reshape(30, 100)), x.reshape(100, 30, 4)),
    "integers": lambda ids, x: hot(ids, dtype="int32").T @ (10 * x).astype("int32"),
    "read": lambda ids, x: hot(ids) @ W,
    "read, turned": lambda ids, x: W.T @ hot(ids).T,
    "rows of two axes": lambda ids, x: hot(ids.reshape(30, 100)) @ W,
    "batch, added": lambda ids, x: jnp.einsum("bnk,bnd->bkd", hot(ids.reshape(3, -1)), x.reshape(3, -1, 4)),
    "batch, added, turned": lambda ids, x: jnp.einsum("nbk,bnd->bdk", hot(ids.reshape(-1, 3)), x.reshape(3, -1, 4)),
    "batch, rows": lambda ids, x: jnp.einsum("nbk,kdb->bnd", hot(ids.reshape(-1, 3)), x[:240].reshape(20, 16, 3)),
    "batch, rows, turned": lambda ids, x: jnp.einsum("bdk,bnk->bdn", x[:240].reshape(3, 16, 20), hot(ids.reshape(3, -1))),
    "batch, pairs": lambda ids, x: jnp.einsum("bnj,bnk->bkj", hot(ids.reshape(3, -1)), hot(OTHERS.reshape(3, -1), 25)),
    "pairs": lambda ids, x: hot(ids).T @ hot(OTHERS, 25),
    "pairs over two axes": lambda ids, x: jnp.einsum("abk,baj->jk", hot(ids.reshape(30, 100)), hot(OTHERS.reshape(100, 30), 25)),
}

LEFT = {
    "one position for all": lambda ids, x: jnp.sum((jnp.full((100, 64), ids[0]) == jnp.arange(1)).astype("float32"), 0),
    "few": lambda ids, x: hot(ids, FEWEST_POSITIONS - 1).sum(0),
    "few, multiplied": lambda ids, x: hot(ids, FEWEST_IN_PRODUCTS - 1).T @ x,
    "another at each": lambda ids, x: jnp.sum(jnp.where(is_at(ids), x[:, :1] * ROWS, 0), 0),
    "truncated": lambda ids, x: jnp.sum(jnp.where(is_at(ids), 3 * x[:, :1], 0).astype("int32"), 0),
    "others": lambda ids, x: jnp.sum(jnp.where(is_at(ids), x[:, :1], 1), 0),
    "but these": lambda ids, x: jnp.sum(jnp.where(is_at(ids), 0, x[:, :1]), 0),
    "of truths": lambda ids, x: jnp.max(jnp.where(is_at(ids), x[:, :1] > 0, False), 0),
    "of complex numbers": lambda ids, x: jnp.max(jnp.where(is_at(ids), x[:, :1] * 1j, -jnp.inf), 0),
    "for each": lambda ids, x: jnp.einsum("nk,nd->nkd", hot(ids), x),
    "for each of a batch": lambda ids, x: jnp.einsum("bnk,bkd->bknd", hot(ids)[None], W[None]),
    "a number that overflows": lambda ids, x: jnp.max(
        jnp.where(is_at(ids), (9 * x[:, :1]).astype("int16"), jnp.int32(-(2**31)).astype("int16")), 0
    ),
    "by floats": lambda ids, x: jnp.sum(ids.astype("float32")[:, None] == jnp.arange(20.0), 0),
    "from one on": lambda ids, x: jnp.sum(ids[:, None] == ROWS + 1, 0),
    "wrapped": lambda ids, x: jnp.sum(ids.astype("uint8")[:, None] == jnp.arange(300).astype("uint8"), 0),
}


@pytest.mark.cover(6)
@pytest.mark.parametrize("name", sorted(REDUCED))
def test_reductions(name):
    by_index(REDUCED[name], IDS, X)


@pytest.mark.cover(5)
@pytest.mark.parametrize("name", sorted(MULTIPLIED))
def test_products(name):
    by_index(MULTIPLIED[name], IDS, X)


@pytest.mark.cover(4)
@pytest.mark.parametrize("name", sorted(LEFT))
def test_what_is_left(name):
    by_index(LEFT[name], IDS, X, taken=False)


@examples(12)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from(sorted(REDUCED) + sorted(MULTIPLIED)), st.sampled_from([np.nan, np.inf, -np.inf])
)
@pytest.mark.dear
def test_not_finite(seed, name, special):
    """A product has zero times infinity for every position; a choice has not."""
    rng = np.random.default_rng(seed)
    f = (REDUCED | MULTIPLIED)[name]
    f_of = lambda ids, x, w: f(ids, x) if name != "read" else hot(ids) @ w  # noqa: E731
    where, row = int(rng.integers(N)), int(rng.integers(K))
    args = IDS, X.at[where, 1].set(special), W.at[row, 0].set(special)
    if name not in ("integers", "halves"):  # XLA converts them as it likes
        np.testing.assert_allclose(jax.jit(jp.fuse(f_of))(*args), jax.jit(f_of)(*args), rtol=1e-4, atol=1e-4)


def within(ids, x):
    """A k-means loss: each from its mean."""
    means = hot(ids).T @ x / jnp.maximum(hot(ids).sum(0), 1)[:, None]
    return jnp.sum((x - hot(ids) @ means) ** 2) + jnp.sum(each(lambda k: jnp.max(jnp.where(ids == k, x[:, 0], -9.0))) ** 2)


def test_derivatives():
    gradient = jax.grad(within, 1)
    want = jax.jit(gradient)(IDS, X)
    for fused in (jp.fuse(gradient), jax.grad(jp.fuse(within), 1)):
        same(want, jax.jit(fused)(IDS, X), atol=1e-4)
        text = jax.jit(fused).lower(IDS, X).compile().as_text()
        assert f"f32[{N},{K}]" not in text.split("branch")[0].split("ENTRY")[-1]  # but where not all is finite
    dots = IDS * 0.0, X * 0 + 1
    same(
        jax.jvp(lambda x: within(IDS, x), (X,), dots[1:])[1],
        jax.jvp(lambda x: jp.fuse(within)(IDS, x), (X,), dots[1:])[1],
        atol=1e-4,
    )


@pytest.mark.parametrize("count", [300, 2000, 9000])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"])
def test_narrow_floats_are_added_up_wide(dtype, count):
    """By index, too: where each sum is rounded, counts stop at 8, at 16, at 256."""
    ids = jnp.asarray(np.random.default_rng(count).integers(0, 2 + count // 400, count), "int32")

    def counts(ids):
        x = hot(ids, dtype=dtype)
        return jax.lax.reduce(x, x.dtype.type(0), jax.lax.add, (0,))

    got, wanted = np.asarray(jp.fuse(counts)(ids), np.float32), np.bincount(ids, minlength=K)[:K]
    np.testing.assert_allclose(got, wanted, rtol=float(jnp.finfo(dtype).eps))
    assert KIND in str(jp.explain(jp.fuse(counts))(ids))


def test_batches():
    ids, x = IDS.reshape(3, -1), X.reshape(3, -1, 4)
    for f in (REDUCED["counts"], MULTIPLIED["added"], MULTIPLIED["read"]):
        want = jax.jit(jax.vmap(f))(ids, x)
        same(want, jax.jit(jax.vmap(jp.fuse(f)))(ids, x), atol=1e-5)
        same(want, jax.jit(jp.fuse(jax.vmap(f)))(ids, x), atol=1e-5)


@pytest.mark.skipif(jax.device_count() < 8, reason="8 devices")
def test_several_devices():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    ids, x = (jax.device_put(a, NamedSharding(mesh, P("d"))) for a in (IDS, X))
    for f in (REDUCED["means"], REDUCED["maxima"], MULTIPLIED["added"], MULTIPLIED["read"], MULTIPLIED["pairs"]):
        same(jax.jit(f)(IDS, X), jax.jit(jp.fuse(f))(ids, x), atol=1e-5)
        text = jax.jit(jp.fuse(f)).lower(ids, x).compile().as_text()
        assert all(int(n) == 8 for n in re.findall(r"\[(\d+)[^ ]* all-gather", text))  # one number of each device
