"""``fuse``: functions of all pairs of two arrays' rows, each of which is a short sum, and what is made of them; sums that are
products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import kernels, same
from jax import export

import jaxprims as jp


def squares(x: jax.Array, c: jax.Array) -> jax.Array:
    return jnp.sum((x[:, None] - c) ** 2, -1)


def dots(x: jax.Array, c: jax.Array) -> jax.Array:
    return jnp.sum(x[:, None] * c, -1)


PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "distances": lambda x, c: jnp.sqrt(squares(x, c)),
    "of others": lambda x, c: jnp.sum(jnp.abs(x[:, None] - c), -1),
    "nearest": lambda x, c: jnp.argmin(squares(x, c), 1),
    "nearest and how far": lambda x, c: (jnp.min(squares(x, c), 1), jnp.argmin(squares(x, c), 1)),
    "quantised": lambda x, c: jnp.mean((x - c[jnp.argmin(squares(x, c), 1)]) ** 2),
    "both ways": lambda x, c: jnp.mean(jnp.min(squares(x, c), 0)) + jnp.mean(jnp.min(squares(x, c), 1)),
    "kernel": lambda x, c: jnp.mean(jnp.exp(-squares(x, c)), 1),
    "soft": lambda x, c: jax.nn.softmax(-squares(x, c), 1),
    "mixture": lambda x, c: jax.nn.logsumexp(-0.5 * jnp.sum(((x[:, None] - c) / (1 + c * c)) ** 2, -1), 1),
    "how many": lambda x, c: jnp.sum(squares(x, c) < 1.5, 1),
    "forces": lambda x, c: jnp.sum((x[:, None] - c) / (squares(x, c) + 1)[..., None], 1),
    "boxes": lambda x, c: jnp.sum(jnp.all((x[:, None] > c) & (x[:, None] < c + 1), -1), 1),
    "parts": lambda x, c: jnp.sum(jnp.maximum(x[:, None], c), (1, 2)),
    "greatest product": lambda x, c: jnp.max(dots(x, c), 1),
    "cosines": lambda x, c: dots(x, c) / jnp.sqrt(jnp.sum(x * x, -1)[:, None] * jnp.sum(c * c, -1)),
    "layer": lambda x, c: jnp.sum(jax.nn.relu(dots(x, c) + 1), 1),
}

SIZES = [(2000, 8, 8), (900, 3, 70), (600, 3, 200), (700, 64, 8), (1500, 16, 16), (5000, 2, 3), (400, 5, 1), (1, 3, 5000)]


def arrays(n: int, d: int, k: int, dtype: Any = np.float32) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(n)
    return jnp.asarray(rng.normal(size=(n, d)), dtype), jnp.asarray(rng.normal(size=(k, d)), dtype)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.cover(40)
def test_pairs(name: str, sizes: tuple[int, int, int]) -> None:
    x, c = arrays(*sizes)
    fn = PAIRS[name]
    same(jax.jit(fn)(x, c), jax.jit(jp.fuse(fn))(x, c), 1e-4, 1e-4)


@pytest.mark.parametrize("name", [name for name in PAIRS if name not in ("nearest", "how many", "boxes", "nearest and how far")])
@pytest.mark.parametrize("sizes", SIZES[:4], ids=str)
@pytest.mark.cover(16)
def test_gradients_of_pairs(name: str, sizes: tuple[int, int, int]) -> None:
    x, c = arrays(*sizes)
    grad = jax.grad(lambda x, c: jnp.sum(jnp.sin(PAIRS[name](x, c))), (0, 1))
    wanted = jax.jit(grad)(x, c)
    for fn in (jp.fuse(grad), jax.grad(jp.fuse(lambda x, c: jnp.sum(jnp.sin(PAIRS[name](x, c)))), (0, 1))):
        same(wanted, jax.jit(fn)(x, c), 1e-3, 1e-3)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.float64, np.int32])
def test_pairs_of_other_numbers(dtype: Any) -> None:
    with jax.enable_x64(dtype == np.float64):
        x, c = arrays(2000, 4, 8)
        x, c = (x * 9).astype(dtype), (c * 9).astype(dtype)
        for fn in (squares, dots, lambda x, c: jnp.min(squares(x, c), 1), lambda x, c: jnp.argmin(squares(x, c), 1)):
            wanted, got = jax.jit(fn)(x, c), jax.jit(jp.fuse(fn))(x, c)
            if got.ndim == 1 and got.dtype == np.int32 and dtype != np.int32:  # another is as near, as far as halves tell
                got, wanted = (jnp.take_along_axis(squares(x, c), at[:, None], 1) for at in (got, wanted))
            same(wanted, got, 2e-2 if jnp.dtype(dtype).itemsize == 2 else 1e-5, 1e-5)


def test_products_of_integers_are_kernels() -> None:
    """XLA adds them one by one."""
    x, c = (jnp.asarray(np.random.default_rng(k).integers(-9, 9, (n, 64)), np.int32) for k, n in enumerate((2000, 8)))
    for fn, names in ((dots, ["reduce-sum"]), (lambda x, c: jnp.max(dots(x, c), 1), ["reduce-max"])):
        assert kernels(fn, x, c)[-1:] == names
        same(jax.jit(fn)(x, c), jax.jit(jp.fuse(fn))(x, c))


def test_which_pairs_are_kernels() -> None:
    """One kernel finds the nearest, whether or not it keeps all of an element's pairs; XLA would make each distance by itself."""
    for sizes in ((2000, 8, 8), (2000, 16, 16), (900, 3, 70), (1000, 3, 200), (200, 3, 3000)):
        x, c = arrays(*sizes)
        assert kernels(lambda x, c: jnp.argmin(squares(x, c), 1), x, c) == ["argmin"]
        assert kernels(lambda x, c: jnp.min(squares(x, c), 1), x, c) == ["reduce-min"]
        assert kernels(squares, x, c) == ["reduce-sum"]


def test_equal_distances_are_the_first() -> None:
    for k in (8, 70, 200):
        x, c = arrays(1000, 3, k)
        c = c.at[k // 2].set(c[1]).at[k - 1].set(c[1])
        for at in (x, jnp.broadcast_to(c[1], x.shape)):
            got = jax.jit(jp.fuse(lambda x, c: jnp.argmin(squares(x, c), 1)))(at, c)
            assert not np.isin(got, (k // 2, k - 1)).any()
        x = x.at[3, 1].set(jnp.nan)
        assert jax.jit(jp.fuse(lambda x, c: jnp.argmin(squares(x, c), 1)))(x, c)[3] == 0


PRODUCTS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...], tuple[int, ...]]] = {
    "rows": (dots, (50, 40), (60, 40)),
    "columns": (lambda x, y: jnp.sum(x[:, :, None] * y[:, None], 0), (40, 30), (40, 20)),
    "few columns": (lambda x, y: jnp.sum(x[:, :, None] * y[:, None], 0), (40, 30), (40, 5)),
    "turned": (lambda x, y: jnp.sum(y[:, None] * x.T[None], -1), (40, 30), (50, 40)),
    "of a middle": (lambda x, y: jnp.sum(x[:, :, None] * y[None], 1), (30, 40), (40, 50)),
    "of several axes": (lambda x, y: jnp.sum(x[:, None] * y[None], (2, 3)), (30, 4, 9), (20, 4, 9)),
    "beside ones": (lambda x, y: jnp.sum(x[:, None] * y, (2, 3), keepdims=True), (30, 1, 40), (20, 1, 40)),
    "of short rows": (dots, (300, 3), (200, 3)),
    "in common": (lambda x, y: jnp.sum(x[:, :, None] * y[:, None], 2), (8, 30, 40), (8, 20, 40)),
    "of a function": (lambda x, y: jnp.sum(jnp.exp(x)[:, None] * (y + 1), -1), (50, 40), (60, 40)),
    "repeated": (lambda x, y: jnp.sum(jnp.broadcast_to(x[:, None], (5, 50, 60, 40)) * y, -1), (50, 40), (60, 40)),
    "repeated and added": (lambda x, y: jnp.sum(jnp.broadcast_to(x[:, None], (5, 50, 60, 40)) * y, (0, 3)), (50, 40), (60, 40)),
    "spread along a sum": (lambda x, y: jnp.sum(x[:, None, :, None] * y[None, :, None], (2, 3)), (9, 8), (7, 6)),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_that_are_products_of_matrices(name: str, dtype: Any) -> None:
    fn, *shapes = PRODUCTS[name]
    with jax.enable_x64(dtype == np.float64):
        x, y = (jnp.asarray(np.random.default_rng(k).normal(size=shape), dtype) for k, shape in enumerate(shapes))
        wanted = jax.jit(fn)(x, y)
        same(wanted, jax.jit(jp.fuse(fn))(x, y), 1e-5, 1e-6)
        for both in (lambda x, y: jnp.sum(jnp.tanh(fn(x, y))), lambda x, y: jnp.sum(jnp.max(fn(x, y), 0))):
            grad = jax.grad(both, (0, 1))
            same(jax.jit(grad)(x, y), jax.jit(jp.fuse(grad))(x, y), 1e-4, 1e-5)


def test_what_products_of_matrices_are_written_as() -> None:
    others = ("in common", "spread along a sum", "few columns", "repeated", "repeated and added")
    for name, (fn, *shapes) in PRODUCTS.items():
        x, y = (jnp.ones(shape) for shape in shapes)
        text = jax.jit(jp.fuse(fn)).lower(x, y).as_text()
        assert ("dot_general" in text) == (name not in others), name


GATHERED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "products": lambda x, t, ids: jnp.sum(x * t[ids], -1),
    "distances": lambda x, t, ids: jnp.sqrt(jnp.sum((x - t[ids]) ** 2, -1)),
    "loss": lambda x, t, ids: jnp.mean((x - t[ids]) ** 2),
    "greatest": lambda x, t, ids: jnp.max(jnp.sum(jnp.abs(x - t[ids]), -1)),
    "places": lambda x, t, ids: jnp.sum(x * t[ids] * (1 + jnp.arange(x.shape[1])), -1) * jnp.arange(x.shape[0]) / 3e5,
    "numbers": lambda x, t, ids: jnp.sum(x * t[ids, 0][:, None], -1),
    "of a batch": lambda x, t, ids: jnp.sum(x.reshape(-1, 5, *x.shape[1:]) * t[ids.reshape(-1, 5)], (1, 2)),
}


@pytest.mark.parametrize("name", GATHERED)
@pytest.mark.parametrize("width", [3, 8, 48, 64, 200])
@pytest.mark.cover(12)
def test_rows_beside_rows_that_are_gathered(name: str, width: int) -> None:
    rng, fn = np.random.default_rng(width), GATHERED[name]
    x, t = (jnp.asarray(rng.normal(size=(n, width)), np.float32) for n in (3000, 40))
    ids = jnp.asarray(rng.integers(-40, 45, 3000), np.int32)  # some beyond the end
    same(jax.jit(fn)(x, t, ids), jax.jit(jp.fuse(fn))(x, t, ids), 1e-4, 1e-5)
    grad = jax.grad(lambda x, t, ids: jnp.sum(jnp.sin(fn(x, t, ids))), (0, 1))
    same(jax.jit(grad)(x, t, ids), jax.jit(jp.fuse(grad))(x, t, ids), 1e-3, 1e-4)
    every = jax.vmap(fn, (0, None, 0))
    xs, many = jnp.stack([x, x + 1]), jnp.stack([ids, ids[::-1]])
    same(jax.jit(every)(xs, t, many), jax.jit(jax.vmap(jp.fuse(fn), (0, None, 0)))(xs, t, many), 1e-4, 1e-5)


@pytest.mark.parametrize("name", ["rows", "columns", "few columns", "turned", "of several axes", "in common"])
@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)], ids=str)
def test_products_of_symbolic_sizes(name: str, which: tuple[int, ...]) -> None:
    fn, *shapes = PRODUCTS[name]
    along = sorted({n for shape in shapes for n in shape})
    names = {n: f"n{n}" for k, n in enumerate(along) if k % 2 in which}
    texts = [", ".join(names.get(n, str(n)) for n in shape) for shape in shapes]
    scope = export.SymbolicScope()
    avals = [jax.ShapeDtypeStruct(export.symbolic_shape(text, scope=scope), np.float32) for text in texts]
    x, y = (jnp.asarray(np.random.default_rng(k).normal(size=shape), np.float32) for k, shape in enumerate(shapes))
    same(jax.jit(fn)(x, y), export.export(jax.jit(jp.fuse(fn)))(*avals).call(x, y), 1e-5, 1e-6)


@pytest.mark.parametrize("sizes", [(2000, 4, 128), (700, 4, 128)], ids=str)
def test_gradients_of_mixtures(sizes: tuple[int, int, int]) -> None:
    """Sums over the same elements, of which one is of what another one's is made into."""
    x, c = arrays(*sizes)

    def mixture(x: jax.Array, c: jax.Array) -> jax.Array:
        of = jax.nn.log_softmax(-0.5 * jnp.sum(((x[:, None] - c) / (1 + c * c)) ** 2, -1), 1)
        parts = jnp.sum(jnp.exp(of)[..., None] * x[:, None], 0)
        return jnp.sum(jnp.sin(of)) + jnp.sum(jnp.sin(jnp.sum(jnp.exp(of), 0))) + jnp.sum(jnp.sin(parts))

    grad = jax.grad(mixture, (0, 1))
    same(jax.jit(grad)(x, c), jax.jit(jp.fuse(grad))(x, c), 1e-3, 1e-3)
