"""``reduceat`` against NumPy's, for ufuncs and for operators that NumPy has not."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exports import export

import jaxprims as jp

rng = np.random.default_rng(7)
OPS = {
    "add": jnp.add,
    "multiply": jnp.multiply,
    "maximum": jnp.maximum,
    "logaddexp": jnp.logaddexp,
    "bitwise_xor": jnp.bitwise_xor,
}


INDICES = [[0, 4, 1, 5, 2, 6, 3, 7], [0, 3, 3, 10, 10, 11, 12, 12], [12, 0, 0, 0, 5, 4, 3, 0], [1, 2, 3, 4, 5, 6, 7, 8]]
"""Slices that overlap, slices that do not, single elements and the whole: all of one shape."""


@pytest.mark.cover(3)
@pytest.mark.parametrize(("name", "jitted"), [(name, k % 2 == 0) for k, name in enumerate(OPS)])
def test_ufuncs(name: str, jitted: bool) -> None:
    x = rng.integers(0, 9, (13, 2)) if name == "bitwise_xor" else rng.random((13, 2), np.float32) + 0.5

    def fn(x: Any, at: Any) -> Any:
        return jp.reduceat(x, at, OPS[name])

    for indices in INDICES:
        got = (jax.jit(fn) if jitted else fn)(x, np.asarray(indices))
        np.testing.assert_allclose(got, getattr(np, name).reduceat(x, indices), rtol=1e-5)
    assert fn(x, np.zeros(0, int)).shape == (0, 2)


def affine(a: Any, b: Any) -> Any:
    return {"scale": a["scale"] * b["scale"], "shift": b["scale"] * a["shift"] + b["shift"]}


def one_by_one(x: Any, at: list[int]) -> Any:
    parts = []
    for start, end in zip(at, [*at[1:], 9], strict=True):
        columns = [jax.tree.map(lambda v, k=k: v[:, k], x) for k in range(start, max(end, start + 1))]
        parts.append(functools.reduce(affine, columns))
    return jax.tree.map(lambda *p: jnp.stack(p, 1), *parts)


def of_gradient(fn: Any) -> Any:
    return jax.jit(jax.grad(lambda x: sum(jnp.sum(jnp.sin(v)) for v in jax.tree.leaves(fn(x)))))


@pytest.mark.parametrize("at", [[3, 1, 1, 8, 0], [0, 2, 2, 5]], ids=str)
def test_a_pytree_along_another_axis_and_its_gradient(at: list[int]) -> None:
    """An operator that does not commute; of slices that overlap and of those that do not."""
    x = {name: rng.random((2, 9), np.float32) for name in ("scale", "shift")}
    fns = [lambda x: jp.reduceat(x, np.array(at), affine, axis=-1), jax.jit(lambda x: one_by_one(x, at))]
    for a, b in (fns, [of_gradient(fn) for fn in fns]):
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5), a(x), b(x))
    rows = jax.jit(jax.vmap(lambda v: jp.reduceat(v, np.array(at), jnp.add)))(x["scale"])
    np.testing.assert_allclose(rows, np.add.reduceat(x["scale"], at, 1), rtol=1e-5)


@pytest.mark.cover(2)
@pytest.mark.parametrize("at", [[0, 3, 3, 10, 10, 12], [2, 2, 2], [5, 3, 3, 0]], ids=str)
def test_no_identity_is_wanted(at: list[int]) -> None:
    """No slice is empty."""
    x = rng.integers(0, 3, 13) * np.arange(13)
    for fn in (jp.reduceat, jax.jit(jp.reduceat, static_argnums=2)):
        np.testing.assert_array_equal(fn(x, np.array(at), jnp.gcd), np.gcd.reduceat(x, at))
        last = fn(x, np.array(at), lambda a, b: jnp.where(b == 0, a, b))
        slices = [x[a : max(a + 1, b)] for a, b in zip(at, [*at[1:], 13], strict=True)]
        np.testing.assert_array_equal(last, [functools.reduce(lambda a, b: b or a, s.tolist()) for s in slices])


def test_errors() -> None:
    x = np.ones(3)
    with pytest.raises(TypeError, match=r"indices must be integers \[M\], got float"):
        jp.reduceat(x, np.ones(2), jnp.add)
    with pytest.raises(ValueError, match="have the axis 1"):
        jp.reduceat(x, [0], jnp.add, axis=1)
    with pytest.raises(ValueError, match="one length along axis 0"):
        jp.reduceat((x, x[:2]), [0], jnp.add)
    with pytest.raises(ValueError, match="no elements"):
        jp.reduceat(x[:0], [0], jnp.add)


def test_a_symbolic_length() -> None:
    (n,) = jax.export.symbolic_shape("n")
    f = jax.jit(lambda x, at: jp.reduceat(x, at, jnp.add))
    avals = (jax.ShapeDtypeStruct((n,), "i4"), jax.ShapeDtypeStruct((4,), "i4"))
    exported = export(f)(*avals)
    for at in ([0, 3, 5, 5], [6, 0, 9, 2]):
        x = np.arange(13, dtype="i4")
        np.testing.assert_array_equal(exported.call(x, np.array(at, "i4")), np.add.reduceat(x, at))


def test_indices_that_cannot_count_the_elements() -> None:
    x = rng.random(200, np.float32)
    for at in ([3, 100, 5, 5, 120], [0, 7, 7, 120]):
        got = jp.reduceat(x, np.array(at, np.int8), jnp.add)
        np.testing.assert_allclose(got, np.add.reduceat(x, at), rtol=1e-5)
