"""Linear recurrences: values, derivatives, batches, dtypes, errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp


def loop(a: Any, b: Any, init: Any = None, *, axis: int = 0, reverse: bool = False) -> Any:
    """Step by step."""
    shape = jnp.broadcast_shapes(a.shape, b.shape)
    factors, terms = (jnp.moveaxis(jnp.broadcast_to(x, shape), axis, 0) for x in (a, b))
    y = jnp.zeros_like(terms[0]) if init is None else jnp.broadcast_to(init, terms[0].shape)
    steps = range(len(terms))[:: -1 if reverse else 1]
    out: list[Any] = [None] * len(terms)
    for t in steps:
        out[t] = y = factors[t] * y + terms[t]
    return jnp.moveaxis(jnp.stack(out), 0, axis)


def draw(shape: tuple[int, ...], seed: int, dtype: Any = np.float64) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, shape)
    return np.asarray(x + 1j * rng.uniform(-1, 1, shape) if np.dtype(dtype).kind == "c" else x, dtype)


def weighed(y: Any) -> Any:
    return jnp.sum(np.cos(np.arange(y.size, dtype=np.float64)).reshape(y.shape) * jnp.real(y * y))


SHAPES: list[tuple[Any, ...]] = [  # of a, b, init (None: none), axis
    ((5,), (5,), (), 0),
    ((5,), (3, 5), None, -1),
    ((1, 5, 1), (3, 5, 2), (2,), 1),
    ((4, 20), (4, 20), (20,), 0),
    ((), (4, 5), (4,), 1),
    ((2, 1, 4), (2, 3, 4), (), 2),
    ((2, 1, 1), (2, 5, 3), None, 1),
    ((3, 1), (2, 3, 5), (), 2),
    ((), (6,), None, 0),
]


@pytest.mark.cover(3)
@pytest.mark.usefixtures("x64", "strict")
@pytest.mark.parametrize("case", range(len(SHAPES)))
def test_like_a_loop(case: int) -> None:
    """Values and gradients, both directions, real and complex, and second derivatives."""
    *shapes, axis = SHAPES[case]
    dtype = np.float64 if case % 2 else np.complex128
    args = [draw(s, seed, dtype) for seed, s in enumerate(shapes) if s is not None]
    every = tuple(range(len(args)))
    kind: dict[str, Any] = {"axis": axis, "reverse": case in (0, 3, 4)}

    def all_of(f: Any) -> Any:
        grad = jax.grad(lambda *a: weighed(f(*a, **kind)), every)
        return jax.jit(lambda *a: (f(*a, **kind), grad(*a), jax.jvp(grad, a, a)[1] if case < 2 else ()))

    (y, *derivatives), (expected, *wanteds) = (all_of(f)(*args) for f in (jp.linear_recurrence, loop))
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    for got, wanted in zip(*map(jax.tree.leaves, (derivatives, wanteds)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-12)


def test_lengths() -> None:
    """Over vectors, blocks and tails."""
    for n in (1, 2, 15, 16, 17, 300, 70_001):
        a, b = draw((n,), 0, np.float32), draw((n,), 1, np.float32)
        y, wanted = 0.0, []
        for u, v in zip(np.asarray(a, np.float64), np.asarray(b, np.float64), strict=True):
            wanted.append(y := u * y + v)
        np.testing.assert_allclose(jp.linear_recurrence(a, b), wanted, rtol=1e-4, atol=1e-5)
        back = jp.linear_recurrence(a[::-1], b[::-1], reverse=True)
        np.testing.assert_allclose(back, wanted[::-1], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("strict")
def test_batches() -> None:
    """vmap of what is shared copies nothing; vmap of grad and grad of vmap."""
    a, b = draw((6,), 0, np.float32), draw((4, 6), 1, np.float32)
    shared = jax.vmap(jp.linear_recurrence, (None, 0))
    np.testing.assert_allclose(shared(a, b), jax.jit(jax.vmap(loop, (None, 0)))(a, b), rtol=1e-5)
    for f in (shared, lambda a, b: jp.linear_recurrence(a, b, axis=1)):
        jaxpr = str(jax.make_jaxpr(f)(a, b))
        assert "masks=(0, 1)" in jaxpr and "broadcast_in_dim[shape=(4" not in jaxpr
    loss = lambda f: lambda a, b: jnp.sum(f(a, b) ** 2)  # noqa: E731
    each = lambda f: jax.vmap(jax.grad(loss(f)), (None, 0))(a, b)  # noqa: E731
    together = lambda f: jax.grad(lambda a: jnp.sum(jax.vmap(lambda row: loss(f)(a, row))(b)))(a)  # noqa: E731
    got, wanted = (jax.jit(lambda f=f: [each(f), together(f)])() for f in (jp.linear_recurrence, loop))
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5), got, wanted)
    columns = jax.vmap(jp.linear_recurrence, 1, 1)(b, b)
    np.testing.assert_allclose(columns, jax.jit(loop)(b, b), rtol=1e-5)


def test_dtypes() -> None:
    """Common dtypes; integers; 16-bit floats inside in f32: a sum of ones goes past 256."""
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float32, jnp.int32, jnp.uint8, jnp.complex64):
        y = jp.linear_recurrence(np.ones(200, dtype), np.full(200, 2, dtype), np.asarray(1, dtype))
        assert y.dtype == dtype and complex(np.asarray(y)[100]) in (203, 204)
    assert jp.linear_recurrence(jnp.ones(3, jnp.complex64), jnp.ones(3)).dtype == jnp.complex64
    assert jp.linear_recurrence(0.5, jnp.ones(4)).tolist() == [1, 1.5, 1.75, 1.875]
    assert jp.linear_recurrence(jnp.zeros((0, 3)), jnp.zeros((0, 3))).shape == (0, 3)
    assert jax.grad(lambda b: jp.linear_recurrence(2.0, b, axis=1).sum())(jnp.ones((2, 0))).shape == (2, 0)
    nan = jp.linear_recurrence(jnp.array([np.nan, 1.0]), jnp.ones(2))
    assert nan.tolist() == [1, 2]  # nothing comes before the first element


def test_errors() -> None:
    ones = jnp.ones(3)
    for error, match, call in (
        (ValueError, "a and b must broadcast", lambda: jp.linear_recurrence(ones, jnp.ones(4))),
        (ValueError, "axis to go along", lambda: jp.linear_recurrence(1.0, 2.0)),
        (ValueError, "axis 1 is out of range", lambda: jp.linear_recurrence(1.0, ones, axis=1)),
        (TypeError, "axis must be an integer", lambda: jp.linear_recurrence(1.0, ones, axis=1.5)),  # type: ignore[arg-type]
        (TypeError, "a must be numbers, got bool", lambda: jp.linear_recurrence(True, ones)),
        (ValueError, "init must broadcast", lambda: jp.linear_recurrence(1.0, ones, ones)),
        (TypeError, "reverse must be True or False", lambda: jp.linear_recurrence(1.0, ones, reverse=1)),  # type: ignore[arg-type]
    ):
        with pytest.raises(error, match=match):
            call()


@pytest.mark.usefixtures("x64")
def test_one_factor_for_all_steps_is_not_copied() -> None:
    """Neither it nor, for the gradient, its cotangent."""
    a, b = jnp.float32(0.9), draw((50,), 0, np.float32)
    forward = str(jax.make_jaxpr(jp.linear_recurrence)(a, b))
    assert "broadcast" not in forward and forward.count("f32[50]") == 2, forward
    vmapped = jax.vmap(jp.linear_recurrence, (0, None))(jnp.array([0.9, 0.5]), b)
    np.testing.assert_allclose(vmapped[1], jax.jit(loop)(jnp.float32(0.5), b), rtol=1e-6)
    flat = jax.make_jaxpr(jax.vmap(jp.linear_recurrence, (0, None)))(jnp.array([0.9, 0.5]), b)
    assert "broadcast" not in str(flat)
    twice = lambda f: jax.grad(jax.grad(lambda a: weighed(f(a, b))))(a)  # noqa: E731
    np.testing.assert_allclose(*jax.jit(lambda: (twice(jp.linear_recurrence), twice(loop)))(), rtol=1e-4)
