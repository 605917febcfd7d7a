"""``fuse``: ``lax.reduce`` and ``lax.reduce_window`` by any function of two numbers, from its identity on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import same
from fused_stencils import RNG, stencils
from jax import lax

import jaxprims as jp
from jaxprims.fusion.call import Fused

X = jnp.asarray(RNG.normal(size=(300, 200)).astype(np.float32))
LEAST = np.float32(-np.inf)


def larger(a: Any, b: Any) -> Any:
    return jnp.where(jnp.abs(a) >= jnp.abs(b), a, b)


def fmax(a: Any, b: Any) -> Any:
    return jnp.fmax(a, b)


FOLDS = {
    "logaddexp": (jnp.logaddexp, LEAST, jnp.float32),
    "one that ignores NaN": (fmax, LEAST, jnp.float32),
    "of halves": (jnp.logaddexp, LEAST, jnp.bfloat16),
    "a choice": (larger, np.float32(0), jnp.float32),
    "a sum": (lambda a, b: a + b, np.float32(0), jnp.float32),
    "a maximum": (lambda a, b: jnp.maximum(a, b), LEAST, jnp.float32),
    "bits": (lambda a, b: a | b, np.uint8(0), jnp.uint8),
    "either": (lambda a, b: a | b, False, jnp.bool_),
    "a product": (lax.mul, np.float32(1), jnp.float32),
}


def names(fn: Any, *args: Any) -> str:
    return str(jp.explain(jp.fuse(fn))(*args).sites)


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_reductions(name: str, axes: tuple[int, ...]) -> None:
    op, start, dtype = FOLDS[name]
    x = (X > 1.5) if dtype == jnp.bool_ else (X * 0.01 + 1 if name == "a product" else X).astype(dtype)

    def fn(x: Any) -> Any:
        return lax.reduce(x, np.asarray(start, x.dtype), op, axes)

    plain = fn(x.astype(jnp.float32)).astype(dtype) if dtype == jnp.bfloat16 else fn(x)  # in bf16 XLA's stop to grow
    same(plain, jax.jit(jp.fuse(fn))(x), 0.03 if dtype == jnp.bfloat16 else 2e-4)
    assert ("one kernel" in names(fn, x)) == (op not in (larger, fmax))  # of nothing but NaN they give what they begin with


@pytest.mark.parametrize("name", FOLDS)
@pytest.mark.parametrize("how", ["SAME", "VALID", "dilated"])
def test_windows(name: str, how: str) -> None:
    op, start, dtype = FOLDS[name]
    x = (X > 1.5) if dtype == jnp.bool_ else X.astype(dtype)

    def fn(x: Any) -> Any:
        begin = np.asarray(start, x.dtype)
        if how == "dilated":
            return lax.reduce_window(x, begin, op, (3, 3), (1, 1), ((2, 2), (4, 0)), window_dilation=(2, 1))
        return lax.reduce_window(x, begin, op, (3, 2), (1, 1), how)

    if name == "one that ignores NaN":
        x = x.at[3:9].set(np.nan)
    same(jax.jit(fn)(x), jax.jit(jp.fuse(fn))(x), 0.03 if dtype == jnp.bfloat16 else 2e-5)
    assert len(stencils(fn, x)) == 1


def test_what_begins_with_something_else() -> None:
    """JAX asks for an identity: how often XLA takes what it is given is not said, and what XLA makes of it stays."""
    for start in (np.float32(0.5), X.min()):
        for fn in (
            lambda x, start=start: lax.reduce(x, start, lambda a, b: a + b, (1,)),
            lambda x, start=start: lax.reduce_window(x, start, jnp.logaddexp, (3, 3), (1, 1), "SAME"),
        ):
            same(jax.jit(fn)(X), jax.jit(jp.fuse(fn))(X), 0)
    strange = lambda a, b: 0.5 * a + b  # noqa: E731 - 0 and x are x, but not x and 0
    same(*(jax.jit(t(lambda x: lax.reduce(x, np.float32(0), strange, (1,))))(X) for t in (lambda f: f, jp.fuse)), 0)
    pairs = lambda a, b: (jnp.maximum(a[0], b[0]), a[1] + b[1])  # noqa: E731
    same(
        *(jax.jit(t(lambda x: lax.reduce((x, x), (LEAST, np.float32(0)), pairs, (1,))))(X) for t in (lambda f: f, jp.fuse)), 1e-5
    )
    same(*(jax.jit(t(lambda x: lax.reduce(x[:0], np.float32(0), jnp.hypot, (0,))))(X) for t in (lambda f: f, jp.fuse)), 0)


def test_what_has_a_primitive() -> None:
    """It is that, so that what is known of it holds."""
    of = {"add": "reduce_sum", "mul": "reduce_prod", "max": "reduce_max", "min": "reduce_min"}
    start = {"add": np.float32(0), "mul": np.float32(1), "max": LEAST, "min": -LEAST}
    for name, primitive in of.items():
        fn = lambda x, name=name: lax.reduce(x, start[name], lambda a, b: getattr(lax, name)(a, b), (1,))  # noqa: E731
        assert primitive in names(fn, X)
    window = lambda x: lax.reduce_window(x, jnp.zeros((), x.dtype), lambda a, b: a + b, (3, 3), (1, 1), "SAME")  # noqa: E731
    assert "reduce_window_sum" in names(window, X)
    rewritten = Fused(jax.make_jaxpr(lambda x: lax.reduce(x, np.float32(-0.0), lax.add, (1,)))(X)).rewritten
    assert rewritten is None or "reduce_sum" not in str(rewritten)  # a sum from -0.0 on is another one where all are -0.0


def test_derivatives() -> None:
    def fn(x: Any) -> Any:
        return lax.reduce(x, LEAST, jnp.logaddexp, (1,)).sum()

    same(jax.grad(fn)(X), jax.jit(jax.grad(jp.fuse(fn)))(X), 1e-5)
    same(jax.grad(fn)(X), jax.jit(jp.fuse(jax.grad(fn)))(X), 1e-5)

    def of_windows(x: Any) -> Any:
        return lax.reduce_window(x, LEAST, jnp.logaddexp, (3, 3), (1, 1), "SAME")

    same(jax.jvp(of_windows, (X,), (X,)), jax.jvp(jp.fuse(of_windows), (X,), (X,)), 1e-4)
    each = lambda x: lax.reduce(x, LEAST, jnp.logaddexp, (0,))  # noqa: E731
    same(jax.vmap(each)(X), jax.vmap(jp.fuse(each))(X), 1e-5)


def test_convolutions_in_loops() -> None:
    """By channel, and between reshapes: XLA's loops have no library for those."""

    def smooth(u: Any) -> Any:
        x = u.reshape(1, 300, 50, 4)
        out = lax.conv_general_dilated(
            x, jnp.full((3, 3, 1, 4), 0.1), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=4
        )
        return out.reshape(u.shape)

    def fn(u: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, v: v + 0.01 * smooth(v), u)

    same(jax.jit(fn)(X), jax.jit(jp.fuse(fn))(X), 1e-5)
    assert "stencil over" in names(fn, X)
