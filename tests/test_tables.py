"""What gradients read by index is made once for each bin, not for each element (``primitives/held.py``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.jet import jet

import jaxprims as jp

N, H = 6000, 40
RNG = np.random.default_rng(0)

LOSSES: dict[str, tuple[Callable[..., Any], bool]] = {
    "a sum": (lambda y, w: y, False),
    "weights": (lambda y, w: w * y, False),
    "scaled": (lambda y, w: 3 * (y * w), False),
    "squares": (lambda y, w: (y - w) ** 2, True),
    "sines": (lambda y, w: jnp.sin(y), True),
    "scaled sines": (lambda y, w: 2 * jnp.sin(w * y), True),
    "a function's": (lambda y, w: jax.nn.softplus(y) * w, True),
    "a norm": (lambda y, w: jnp.linalg.norm(y + w), True),
}
CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sums": (lambda x, i: jp.segment_sum(x, i, H), lambda x, i: jax.ops.segment_sum(x, i, H)),
    "maxima": (lambda x, i: jp.segment_max(x, i, H), lambda x, i: jax.ops.segment_max(x, i, H)),
    "in order": (
        lambda x, i: jp.segment_sum(x, jnp.sort(i), H, indices_are_sorted=True),
        lambda x, i: jax.ops.segment_sum(x, jnp.sort(i), H),
    ),
    "reductions": (
        lambda x, i: jp.reduce(x.reshape(H, -1, *x.shape[1:]), axis=1),
        lambda x, i: jnp.sum(x.reshape(H, -1, *x.shape[1:]), axis=1),
    ),
}


def drawn(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def of_rows(w: Any, x: Any) -> Any:
    return w if x.ndim == 1 else w[:, None]


@pytest.mark.cover(5)
@pytest.mark.strategies
@pytest.mark.parametrize("row", [(), (3,), (16,)])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_make_tables_once(loss: str, call: str, row: tuple[int, ...]) -> None:
    x, w, i = drawn(N, *row), drawn(H), RNG.integers(0, H, N).astype(np.int32)
    f, takes_work = LOSSES[loss]
    ours, plain = (
        jax.jit(jax.grad(lambda x, w, i, call=c: jnp.sum(f(call(x, i), of_rows(w, x))))) for c in CALLS[call]
    )  # fmt: skip
    np.testing.assert_allclose(ours(x, w, i), plain(x, w, i), rtol=1e-3, atol=1e-3)
    if call != "maxima":  # whose gradient divides by how many there are
        assert ("jaxprims_held" in ours.lower(x, w, i).as_text()) == takes_work


@pytest.mark.strategies
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.cover(2)
def test_tables_are_transformed(call: str) -> None:
    x, w, i = drawn(3, N), drawn(H), RNG.integers(0, H, N).astype(np.int32)

    def moved(x: Any, c: Callable[..., Any]) -> Any:
        return jax.grad(lambda x: jnp.sum(w * jnp.sin(c(x, i) / 50)))(x)

    for transformed in (
        lambda f, x: jax.vmap(f)(x),
        lambda f, x: jax.jvp(f, (x[0],), (x[1],))[1],
        lambda f, x: jax.grad(lambda x: jnp.sum(x * f(x)))(x[0]),
        lambda f, x: jax.vmap(jax.grad(lambda x: jnp.sum(x * f(x))))(x),
        lambda f, x: jet(f, (x[0],), ((x[1],),))[1][0] if call != "maxima" else f(x[0]),
        lambda f, x: jax.checkpoint(f)(x[0]),
    ):
        ours, plain = (jax.jit(lambda x, t=transformed, c=c: t(lambda x: moved(x, c), x))(x) for c in CALLS[call])
        np.testing.assert_allclose(ours, plain, rtol=2e-3, atol=2e-3)


@pytest.mark.strategies
def test_few_reads_and_many_rows_are_left_to_xla() -> None:
    def moved(n: int, h: int) -> str:
        ids = np.zeros(n, np.int32)
        return jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(jp.segment_sum(x, ids, h))))).lower(drawn(n)).as_text()

    assert "jaxprims_held" in moved(10_000, 100)
    assert "jaxprims_held" not in moved(1000, 100)
    assert "jaxprims_held" not in moved(10_000, 9000)
