"""Derivatives of scans, reductions and segments: each rule, first and second order, both modes, every kind of call."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jaxprims as jp

N = 6
STARTS = np.array([0, 0, 1, 0, 1, 1], bool)


def leaves(tree: Any) -> list[Any]:
    """What has derivatives."""
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]


def assert_close(got: Any, wanted: Any, rtol: float = 1e-9) -> None:
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=rtol, atol=1e-10), leaves(got), leaves(wanted))


def scalar(tree: Any) -> Any:
    """A number that depends on every result, not linearly."""
    weigh = lambda x: jnp.cos(jnp.arange(x.size, dtype=np.float64)).reshape(x.shape)  # noqa: E731
    return sum(jnp.sum(weigh(x) * jnp.real(x * x * np.asarray(1 + 0.5j if x.dtype.kind == "c" else 1))) for x in leaves(tree))


def combine(op: Callable[..., Any], xs: Any, order: Sequence[int], init: Any = None) -> Any:
    """Elements combined one after the other."""
    for t in order:
        x = jax.tree.map(lambda v, t=t: v[t], xs)
        init = x if init is None else op(init, x)
    return init


def loop(op: Any, xs: Any, init: Any, neutral: Any, exclusive: bool, reverse: bool, starts: Any) -> Any:
    """The scan, element by element."""
    order = list(range(N))[:: -1 if reverse else 1]
    out: list[Any] = [None] * N
    begin = 0
    for k, t in enumerate(order):
        begin = k if starts is not None and starts[t] else begin
        mine = combine(op, xs, order[begin : k + (not exclusive)], init)
        out[t] = neutral if mine is None else mine
    return jax.tree.map(lambda *rows: jnp.stack(rows), *out)


def mean_variance(p: Any, q: Any) -> Any:
    n, d = p[0] + q[0], q[1] - p[1]
    return n, p[1] + d * q[0] / n, p[2] + q[2] + d * d * p[0] * q[0] / n


def matmul(a: Any, b: Any) -> Any:
    return a @ b


def einstein(a: Any, b: Any) -> Any:
    return (a + b) / (1 + a * b)


@jax.custom_jvp
def clipped(a: Any, b: Any) -> Any:
    return jnp.maximum(a, b)


@clipped.defjvp
def _(primals: Any, tangents: Any) -> Any:
    """At a tie all of it goes to the second."""
    (a, b), (da, db) = primals, tangents
    return clipped(a, b), jnp.where(a > b, da, db)


def cases() -> dict[str, tuple[Any, Any, Any, Any]]:
    """Operator, elements, a start value, identity."""
    rng = np.random.default_rng(0)
    real = lambda *shape: rng.uniform(-0.9, 0.9, shape)  # noqa: E731
    number = lambda *shape: real(*shape) + 1j * real(*shape)  # noqa: E731
    zeros = real(N)
    zeros[[1, 3]] = 0
    count = rng.uniform(1, 2, N)
    return {
        "add": (jnp.add, real(N), 0.5, 0.0),
        "sums": (lambda a, b: (a[0] + b[0], a[1] + b[1]), (real(N), number(N)), (0.5, 1 + 1j), (0.0, 0j)),
        "mul": (jnp.multiply, zeros, 0.5, 1.0),
        "max": (jnp.maximum, real(N), 0.1, -np.inf),
        "logaddexp": (jnp.logaddexp, real(N), 0.5, -np.inf),
        "complex mul": (jnp.multiply, number(N), 1 + 1j, 1 + 0j),
        "affine": (jp.monoids.affine, (real(N), real(N)), (0.5, 0.6), (1.0, 0.0)),
        "complex affine": (jp.monoids.affine, (number(N), number(N)), (0.5 + 1j, 0.6 + 0j), (1 + 0j, 0j)),
        "matmul": (matmul, real(N, 2, 2), real(2, 2), np.eye(2)),
        "complex matmul": (matmul, number(N, 2, 2), number(2, 2), np.eye(2) + 0j),
        "mean_variance": (mean_variance, (count, real(N), real(N) ** 2), (1.0, 0.5, 0.2), None),
        "argmax": (jp.monoids.argmax, (real(N), np.arange(N)), (0.1, 50), (-np.inf, np.iinfo(np.int64).max)),
        "custom": (clipped, np.array([1.0, 3, 3, 2, 3, 4]), 3.0, -np.inf),
        "einstein": (einstein, real(N), 0.5, 0.0),
    }


CASES = cases()
MODES = list(itertools.product((False, True), (False, True), (None, STARTS), (False, True)))


@pytest.mark.usefixtures("x64", "strict")
@pytest.mark.parametrize("name", CASES)
def test_like_a_loop(name: str) -> None:
    """Gradients and tangents, with JAX's of a loop; every combination of exclusive, reverse, segments and init."""
    op, *others = CASES[name]
    xs, init, neutral = jax.tree.map(jnp.asarray, others)
    for exclusive, reverse, starts, with_init in MODES[list(CASES).index(name) % 4 :: 4]:
        if exclusive and not with_init and neutral is None:
            continue
        args = (xs, init) if with_init else (xs,)

        def ours(xs: Any, init: Any = None, *, e: bool = exclusive, r: bool = reverse, s: Any = starts) -> Any:
            given = None if init is not None or op in (jnp.maximum, jp.monoids.argmax) else CASES[name][3]
            return jp.scan(xs, op, init=init, identity=given, exclusive=e, reverse=r, segment_starts=s)

        def one_by_one(xs: Any, init: Any = None, *, e: bool = exclusive, r: bool = reverse, s: Any = starts) -> Any:
            return loop(op, xs, init, neutral, e, r, s)

        finite = lambda f: lambda *a: jax.tree.map(lambda y: jnp.where(jnp.isfinite(y), y, 0), f(*a))  # noqa: B023, E731
        f, g = finite(ours), finite(one_by_one)
        assert_close(f(*args), g(*args))
        every = tuple(range(len(args)))
        grads = [jax.grad(lambda *a, f=f: scalar(f(*a)), every, allow_int=True)(*args) for f in (f, g)]
        assert_close(*[[x for x in jax.tree.leaves(t) if x.dtype != jax.dtypes.float0] for t in grads])
        assert_close(*[jax.jvp(f, args, jax.tree.map(tangent, args))[1] for f in (f, g)])


def tangent(x: Any) -> Any:
    inexact = jnp.issubdtype(x.dtype, jnp.inexact)
    return jnp.sin(jnp.arange(1.0, x.size + 1)).reshape(x.shape).astype(x.dtype) if inexact else np.zeros(x.shape, jax.dtypes.float0)
