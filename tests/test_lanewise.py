"""Operators on slices are compiled lane by lane only where they do treat all lanes alike, at the very sizes of the call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

import jaxprims as jp
from jaxprims.tracing.lanewise import one_lane
from jaxprims.tracing.lower import Unsupported

W = jnp.array([[1.0, -2.0], [0.5, 3.0]])


class Rude(Exception):
    pass


def only(shape: tuple[int, ...]) -> Callable[[Any, Any], Any]:
    """An operator that cannot stand other shapes."""

    def op(a: Any, b: Any) -> Any:
        if a.shape != shape:
            raise Rude(a.shape)
        return a + b

    return op


def swapped(x: Any) -> Any:
    return jnp.swapaxes(x, -1, -2)


ALIKE: dict[str, Callable[[Any, Any], Any]] = {
    "matmul": lambda a, b: a @ b,
    "einsum": lambda a, b: jnp.einsum("...ij,...kj->...ki", a, b),
    "transposes": lambda a, b: 0.5 * (a + swapped(b)),
    "captured": lambda a, b: a @ (W * 2) @ b,
    "broadcast captured": lambda a, b: a + b * W,
    "norm": lambda a, b: a + b / (1 + jnp.sum(b * b, axis=(-1, -2), keepdims=True)),
    "stacked": lambda a, b: jnp.stack([a[..., 0, :] + b[..., 0, :], a[..., 1, :] * b[..., 1, :]], axis=-2),
    "eye": lambda a, b: a @ b + jnp.eye(2),
    "reshaped": lambda a, b: (a.reshape(*a.shape[:-2], 4) + b.reshape(*b.shape[:-2], 4)).reshape(a.shape),
    "trace": lambda a, b: a * jnp.trace(b, axis1=-2, axis2=-1)[..., None, None],
    "flipped": lambda a, b: a[..., ::-1, :] + jnp.cumsum(b, axis=-1),
    "sorted": lambda a, b: jnp.sort(a + b, axis=-1),
    "top_k": lambda a, b: jax.lax.top_k(jnp.concatenate([a, b], -1), 2)[0],
    "element": lambda a, b: a * b[..., :1, :1],
    "where": lambda a, b: jnp.where(b[..., 0, 0][..., None, None] > 0, a, b),
    "argmax": lambda a, b: a + jnp.argmax(b, axis=-1)[..., None],
    "gathered": lambda a, b: a + jnp.take(b, jnp.array([1, 0]), axis=-1),
}

NOT_ALIKE: dict[str, Callable[[Any, Any], Any]] = {
    "fixed row set": lambda a, b: (a @ b).at[2].set(0.0),
    "fixed row read": lambda a, b: a + b.at[2].get(mode="clip"),
    "row by position": lambda a, b: a @ b + (jnp.arange(a.shape[0]) == 2).reshape(-1, *(1,) * (a.ndim - 1)),
    "branch on the shape": lambda a, b: a + b if a.shape[0] == 3 else a @ b,
    "branch on the rank, captured": lambda a, b: a + b + W[0, 0] * a.ndim,
    "over lanes": lambda a, b: a + jnp.sum(b, axis=0),
    "reversed": lambda a, b: a + b[::-1],
    "shuffled": lambda a, b: a + b.transpose(2, 1, 0).reshape(b.shape),
    "rolled": lambda a, b: a + jnp.roll(b, 1, axis=0),
    "first lane": lambda a, b: a + b[:1],
    "lanes meet": lambda a, b: a + jnp.einsum("lij,mjk->lik", a, b),
    "fixed sizes": lambda a, b: a + b.reshape(3, 4).reshape(3, 2, 2).transpose(0, 2, 1),
    "only here": only((3, 2, 2)),
}


def trace(op: Callable[[Any, Any], Any], shape: tuple[int, ...]) -> Any:
    one = jax.ShapeDtypeStruct(shape, jnp.float32)
    return jax.make_jaxpr(lambda a, b: [op(a, b)])(one, one)


@pytest.mark.cover(7)
@pytest.mark.parametrize("name", ALIKE)
def test_what_treats_lanes_alike_is_rewritten_for_one(name: str) -> None:
    op, rng = ALIKE[name], np.random.default_rng(0)
    for outer in ((3,), (2, 1), (3, 2)):
        a, b = (rng.standard_normal((*outer, 2, 2)).astype(np.float32) for _ in range(2))
        lane = one_lane(trace(op, a.shape), outer)
        many = lambda *xs, lane=lane: jaxpr_as_fun(lane)(*xs)[0]  # noqa: E731
        for _ in outer:
            many = jax.vmap(many)
        np.testing.assert_allclose(*jax.jit(lambda a, b, many=many: (many(a, b), op(a, b)))(a, b), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in NOT_ALIKE if not name.startswith(("branch", "only", "fixed sizes"))])
def test_what_does_not_is_refused(name: str) -> None:
    with pytest.raises(Unsupported):
        one_lane(trace(NOT_ALIKE[name], (3, 2, 2)), (3,))


@pytest.mark.dear
def test_calls_are_right_and_never_raise_for_shapes_that_nobody_gave() -> None:
    """Branches on shapes, fixed rows, the user's own exceptions: the operator is tried on other shapes, and nobody notices."""
    x = np.random.default_rng(1).integers(-2, 3, (3, 3, 2, 2)).astype(np.float32)
    ops = {**NOT_ALIKE, "asserts": lambda a, b: next(a + b for _ in range(1) if a.shape[0] == 3)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jp.FallbackWarning)
        got = jax.jit(lambda x: {name: jp.scan(x, op) for name, op in ops.items()})(x)
    for name, op in ops.items():
        want = x[0]
        for row in x[1:]:
            want = np.asarray(op(jnp.asarray(want), jnp.asarray(row)))
        np.testing.assert_allclose(got[name][-1], want, rtol=1e-6, err_msg=name)


def test_square_slices_that_are_one_element() -> None:
    x = jnp.arange(36.0).reshape(4, 3, 3)
    got = jp.scan(x, lambda a, b: 0.5 * ((a + b) + (a + b).T))
    assert got[1].tolist() == (0.5 * ((x[0] + x[1]) + (x[0] + x[1]).T)).tolist()
    maps = {"fixed": lambda s: s.reshape(9)[:3], "row": lambda s: s[2], "asserts": lambda s: [s.sum(0)][s.shape[0] - 3]}
    for name, map in maps.items():
        np.testing.assert_array_equal(jp.scan(x, map=map), jnp.cumsum(jax.vmap(map)(x), 0), err_msg=name)


@pytest.mark.filterwarnings("error")
def test_large_batches_of_matrices_are_still_kernels() -> None:
    x = np.random.default_rng(2).standard_normal((2, 5000, 2, 2)).astype(np.float32)
    for op in (ALIKE["matmul"], ALIKE["norm"], ALIKE["captured"]):
        np.testing.assert_allclose(jp.scan(x, op)[1], op(x[0], x[1]), rtol=1e-5, atol=1e-5)
