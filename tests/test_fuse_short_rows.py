"""Functions of short rows: rows side by side in a vector, a few numbers of each, right under every transformation.

Their gradients are compared with JAX's operation by operation: compiled as one, those of norms are wrong in XLA of JAX 0.12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import kernels, same
from jax import lax
from meshes import assert_no_communication
from meshes import mesh as mesh_of

import jaxprims as jp
from jaxprims.calls.mapped import mapped

RNG = np.random.default_rng(11)
LONGEST = 32  # numbers of a row that registers hold


def rows(k: int, n: int = 0, dtype: Any = np.float32) -> jax.Array:
    return jnp.asarray(RNG.normal(size=(n or max(2051, 20_001 // k), k)), dtype)


def labels(x: Any) -> Any:
    return jnp.asarray(RNG.integers(0, x.shape[1], len(x)), jnp.int32)


def norm(x: Any) -> Any:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5)


def cross_entropy(x: Any) -> Any:
    picked = jnp.take_along_axis(jax.nn.log_softmax(x), jnp.argmax(jnp.cos(x), -1)[:, None], 1)
    return -jnp.mean(picked)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x: jax.nn.softmax(x),
    "two results": lambda x: (jax.nn.log_softmax(x)[:, 0], x - x.max(-1, keepdims=True)),
    "norm": norm,
    "length": lambda x: jnp.sqrt(jnp.sum(x * x, -1)),
    "sums": lambda x: (x.sum(-1), x / (1 + jnp.sum(x * x, -1, keepdims=True))),
    "cross entropy": cross_entropy,
    "concentration": lambda x: jnp.sum(jax.nn.softmax(x) ** 2),
    "with weights": lambda x: norm(x) * jnp.arange(1.0, x.shape[1] + 1, dtype=x.dtype),
    "causal": lambda x: jax.nn.softmax(jnp.where(jnp.arange(len(x))[:, None] % 7 >= jnp.arange(x.shape[1]), x, -jnp.inf)),
    "of integers": lambda x: jnp.sum((x * 8).astype(jnp.int32), -1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("k", [2, 3, 5, 8, 13, 16, 31, LONGEST])
@pytest.mark.cover(24)
def test_as_without(name: str, k: int) -> None:
    f, x = FUNCTIONS[name], rows(k)
    assert kernels(f, x)
    same(jax.jit(f)(x), jp.fuse(f)(x), 2e-4, 1e-5)
    if name != "of integers":
        expected = jax.grad(lambda x: _sum(f(x)))(x)
        same(expected, jax.jit(jax.grad(lambda x: _sum(jp.fuse(f)(x))))(x), 5e-4, 1e-5)
        same(expected, jp.fuse(jax.grad(lambda x: _sum(f(x))))(x), 5e-4, 1e-5)


def gated(x: Any, y: Any, gate: Any) -> Any:
    """A layer norm of a mixture of two arrays."""
    weight = jax.nn.sigmoid(gate)
    return norm(weight * x + (1 - weight) * y)


@pytest.mark.parametrize("k", [3, 12, 20, LONGEST])
def test_gradients_in_several_arrays(k: int) -> None:
    """What is written of a row may be more than registers hold of any array."""
    xs = [rows(k) for _ in range(3)]
    gradient = jax.grad(lambda *xs: _sum(gated(*xs)), (0, 1, 2))
    assert kernels(gradient, *xs)
    expected = gradient(*xs)
    same(expected, jp.fuse(gradient)(*xs), 5e-4, 1e-5)
    same(expected, jax.jit(jax.grad(lambda *xs: _sum(jp.fuse(gated)(*xs)), (0, 1, 2)))(*xs), 5e-4, 1e-5)


def _pulled(x: Any, y: Any) -> Any:
    """One cheap sum, of which two arrays make a third."""
    return y + x * (x * y).sum(-1, keepdims=True)


@pytest.mark.parametrize(
    "fn, k, dtype, along",
    [
        (_pulled, 4, np.float32, False),
        (_pulled, 12, np.float32, True),
        (_pulled, 4, np.float64, True),
        (lambda x, y: jax.nn.softmax(x + y), 12, np.float32, False),
        (lambda x, y: jax.nn.softmax(x + y), 32, np.float32, True),
        (lambda x, y: jax.nn.softmax(x + y), 12, np.float64, False),
        (lambda x, y: jax.nn.softmax(x + y), 16, np.float64, True),
    ],
)
def test_vectors_go_along_rows_that_are_dear_to_turn(fn: Any, k: int, dtype: Any, along: bool) -> None:
    with jax.enable_x64(True):
        x, y = (rows(k, 5000).astype(dtype) for _ in range(2))
        found = jp.explain(jp.fuse(fn))(x, y)
        assert ("elements are arrays" in str(found)) == along
        same(fn(x, y), jp.fuse(fn)(x, y), 1e-5, 1e-6)


@pytest.mark.parametrize("shape, one", [((512, 8), True), ((400, 2), False)])
def test_in_loops_fewer_are_enough(shape: tuple[int, int], one: bool) -> None:
    def f(x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda i, x: x / x.sum(-1, keepdims=True), x)

    x = jnp.abs(rows(shape[1], shape[0])) + 0.1
    assert ("one kernel" in str(jp.explain(jp.fuse(f))(x))) == one
    assert "one kernel" not in str(jp.explain(jp.fuse(lambda x: x / x.sum(-1, keepdims=True)))(x))
    same(jax.jit(f)(x), jp.fuse(f)(x), 1e-5, 1e-6)


def _sum(results: Any) -> Any:
    return sum(jnp.sum(r * jnp.cos(jnp.arange(r.size, dtype=r.dtype).reshape(r.shape))) for r in jax.tree.leaves(results))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, np.float64, np.int32, np.int8, np.uint8])
@pytest.mark.parametrize("k", [3, 7, 20])
@pytest.mark.cover(9)
def test_dtypes(dtype: Any, k: int) -> None:
    with jax.enable_x64(dtype == np.float64):
        x = jnp.asarray(RNG.normal(size=(3000, k)) * (1 if jnp.issubdtype(dtype, jnp.floating) else 40)).astype(dtype)
        floats = jnp.issubdtype(dtype, jnp.floating)
        f = (lambda x: jax.nn.softmax(x)) if floats else (lambda x: x * x.sum(-1, keepdims=True) - x.max(-1, keepdims=True))
        assert kernels(f, x)
        same(jax.jit(f)(x), jp.fuse(f)(x), 2e-2 if x.dtype.itemsize == 2 else 1e-5)


def test_numbers_that_are_none() -> None:
    """As NumPy has them: XLA's maxima of short rows lose NaN."""
    x = np.array(rows(6))
    x[5, 2], x[7, :], x[8, 1], x[9, :], x[10, 3] = np.nan, np.nan, np.inf, -np.inf, -0.0
    with np.errstate(invalid="ignore"):
        from_top = x - x.max(-1, keepdims=True)
        powers = np.exp(from_top)
        expected = powers / powers.sum(-1, keepdims=True)
    np.testing.assert_array_equal(jp.fuse(lambda x: x - x.max(-1, keepdims=True))(x), from_top)
    np.testing.assert_allclose(jp.fuse(FUNCTIONS["softmax"])(x), expected, 1e-5, 1e-6)


@pytest.mark.parametrize("name", ["softmax", "norm", "concentration", "with weights"])
def test_transformed(name: str) -> None:
    f, x = FUNCTIONS[name], rows(5, 4102)
    batch = x.reshape(2, -1, 5)
    v = jnp.cos(x)
    pairs: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (lambda g: jax.vmap(g), (batch,)),
        (lambda g: lambda x: jax.jvp(g, (x,), (v,)), (x,)),
        (lambda g: lambda x: jax.jvp(jax.grad(lambda x: _sum(g(x))), (x,), (v,)), (x,)),
        (lambda g: jax.vmap(jax.grad(lambda x: _sum(g(x)))), (batch,)),
        (lambda g: lambda x: lax.fori_loop(0, 3, lambda i, x: x + 0.1 * g(x), x), (x,)),
        (lambda g: lambda x: jax.checkpoint(g)(x), (x,)),
    ]
    for transformed, args in pairs:
        expected = transformed(f)(*args)  # operation by operation: XLA of JAX 0.12 compiles batched gradients of norms wrong
        same(expected, jax.jit(transformed(jp.fuse(f)))(*args), 1e-3, 1e-5)
        same(expected, jp.fuse(transformed(f))(*args), 1e-3, 1e-5)


@pytest.mark.parametrize("extreme", [jnp.min, jnp.max])
@pytest.mark.parametrize("k", [3, 8])
def test_extremes_of_what_is_made_in_several_ways(extreme: Any, k: int) -> None:
    """What is compared with them has been made by XLA, and is not made again by the kernel that reads the comparison."""

    def f(x: Any, y: Any) -> Any:
        share = jax.nn.softmax(x)
        made = jnp.maximum(jax.nn.log_softmax(share), y - share)
        return jax.nn.softmax(y)[:, 0] + (made - extreme(made, -1, keepdims=True))[:, -1]

    x, y = rows(k, 3333), rows(k, 3333)
    expected = jax.jit(jax.grad(lambda x, y: _sum(f(x, y)), (0, 1)))(x, y)
    same(expected, jax.jit(jax.grad(lambda x, y: _sum(jp.fuse(f)(x, y)), (0, 1)))(x, y), 1e-4, 1e-6)
    same(expected, jax.jit(jp.fuse(jax.grad(lambda x, y: _sum(f(x, y)), (0, 1))))(x, y), 1e-4, 1e-6)


def test_products_that_are_chosen_for_certain() -> None:
    """A variance is chosen where its divisor is positive: XLA sees the product behind it, and rounds once for a difference."""

    def f(x: Any) -> Any:
        width = jnp.broadcast_to(x.var(-1, keepdims=True), x.shape)
        return jnp.mean(jnp.sqrt(jnp.sum(width * width, -1))) + jnp.max(width - 1)

    for k, n in ((31, 800), (6, 4000)):
        x = rows(k, n)
        for seed in range(3):
            y = x + 0.1 * seed
            expected = jax.grad(f)(y)  # operation by operation: in one program XLA itself may lose the maximum's part
            same(expected, jax.jit(jp.fuse(jax.grad(f)))(y), 1e-4, 1e-6)
            same(expected, jax.jit(jax.grad(jp.fuse(f)))(y), 1e-4, 1e-6)


def test_a_part_of_a_larger_program() -> None:
    """Attention over few keys, between products of matrices; responsibilities of a mixture, summed along the other axis."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(q @ k.T / 3) @ v

    def responsibilities(x: Any, centres: Any) -> Any:
        r = jax.nn.softmax(-jnp.sum((x[:, None] - centres) ** 2, -1))
        return r.T @ x / r.sum(0)[:, None], r.max(-1)

    x, k, v = rows(4, 3001), rows(4, 9), rows(6, 9)
    same(jax.jit(attention)(x, k, v), jp.fuse(attention)(x, k, v), 1e-4)
    same(jax.jit(responsibilities)(x, k), jp.fuse(responsibilities)(x, k), 1e-4)


def test_a_reduction_of_what_rows_make() -> None:
    """In one kernel, of short rows; of others it reads what a kernel of rows has written for it."""
    x = rows(3, 40_000)
    assert kernels(FUNCTIONS["concentration"], x) == ["reduce-sum"]
    compiled = jax.jit(jp.fuse(FUNCTIONS["concentration"])).lower(x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4096
    long = rows(40, 40_000)
    assert [k for k in kernels(cross_entropy, long) if "reduce" not in k]
    same(jax.jit(cross_entropy)(long), jp.fuse(cross_entropy)(long))


def test_what_no_other_kernel_makes_is_written() -> None:
    """A mean over rows is a kernel's that would make all of the rows, if it were not too dear, or numbers too few."""

    def entropy(x: Any) -> Any:
        log = jax.nn.log_softmax(x)
        return jnp.mean(jnp.max(x, -1) + jnp.sum(jnp.exp(log) * log, -1))

    for n in (3000, 40_000):
        x = rows(8, n)
        assert kernels(entropy, x)
        same(jax.jit(entropy)(x), jp.fuse(entropy)(x))


def test_few_are_left_to_xla() -> None:
    assert not kernels(FUNCTIONS["softmax"], rows(8, 500))
    assert not kernels(FUNCTIONS["length"], rows(8, 1500))


def test_what_other_kernels_make_is_not_written_for_them() -> None:
    def lengths(x: Any) -> Any:
        return jnp.sum(jnp.sum(jnp.square(x), 1) * x[:, 0])

    assert kernels(lengths, rows(4, 40_000)) == ["reduce-sum"]


def test_sharded_rows() -> None:
    """Rows stay where they are; of rows that are sharded themselves, reductions go round."""
    mesh, x = mesh_of(4, 2), rows(8, 4096)
    for spec in (jax.P("x"), jax.P(("x", "y")), jax.P("x", "y")):
        placed = jax.device_put(x, jax.NamedSharding(mesh, spec))
        compiled = jax.jit(jp.fuse(norm)).lower(placed).compile()
        if spec != jax.P("x", "y"):
            assert_no_communication(compiled)
        same(jax.jit(norm)(x), compiled(placed), 1e-4, 1e-5)


# --- the kernel: a scan that keeps the last element ---------------------------------------------------------------------------


@pytest.mark.parametrize("read", [1, 2, 4, 5, 9, 32])
@pytest.mark.parametrize("written", [1, 3, 6, 17, 32])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.float64, np.int16, jnp.bfloat16, np.bool_])
@pytest.mark.cover(24)
def test_maps_of_structs(read: int, written: int, dtype: Any) -> None:
    """Of any number of elements, with those of a vector's rest."""

    def f(row: Any, at: Any) -> Any:
        return jnp.stack([row[k % read] if k % 3 else row[(k + 1) % read] for k in range(written)]), jnp.max(row), at

    with jax.enable_x64(dtype == np.float64):
        for n in (1, 2, 7, 8, 9, 33, 1025):
            x = jnp.asarray(RNG.integers(0, 2 if dtype == np.bool_ else 100, (n, read))).astype(dtype)
            for expected, got in zip(jax.vmap(f)(x, jnp.arange(n)), mapped(f, (x, jnp.arange(n))), strict=True):
                np.testing.assert_array_equal(np.asarray(got, expected.dtype), expected)


@pytest.mark.parametrize("n", [1, 5, 100, 5000])
def test_maps_in_batches_and_in_reverse(n: int) -> None:
    x = jnp.asarray(RNG.normal(size=(9, n, 5)), jnp.float32)

    def f(row: Any, at: Any) -> Any:
        return row * row.sum() + at

    def last(a: Any, b: Any) -> Any:
        return b

    expected = x * x.sum(-1, keepdims=True) + jnp.arange(n)[:, None]
    for reverse in (False, True):
        one = lambda x, reverse=reverse: jp.scan((x, jp.positions), last, map=f, reverse=reverse)  # noqa: E731
        np.testing.assert_allclose(jax.jit(jax.vmap(one))(x), expected, 1e-5, 1e-5)
        np.testing.assert_allclose(one(x[0]), expected[0], 1e-5, 1e-5)
