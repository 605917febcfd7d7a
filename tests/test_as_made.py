"""Operands whose elements had several axes are handed over as they were made: the same results, and no loop of XLA's divides."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from exports import called_elsewhere, export
from hypothesis import given
from hypothesis import strategies as st

import jaxprims as jp

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.integers(-9, 9, (7, 6, 5)), jnp.float32)

MADE: dict[str, Callable[..., Any]] = {
    "a number for each row": lambda x: x * x[..., :1],
    "a number for each column": lambda x: x + x[:1, :1] * 2,
    "padded": lambda x: jnp.pad(x, [(1, 2)] * x.ndim, constant_values=3),
    "padded inside": lambda x: jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 1), *[(0, 0, 0)] * (x.ndim - 1)]),
    "reversed": lambda x: x[::-1],
    "every other": lambda x: x[::2],
    "transposed": lambda x: jnp.swapaxes(x, 0, -1) * 2,
    "side by side": lambda x: jnp.concatenate([x, -x], -1),
    "positions": lambda x: x * jax.lax.broadcasted_iota(x.dtype, x.shape, x.ndim - 1),
    "gathered": lambda x: x[jnp.arange(len(x))[::-1] // 2],
    "as it is": lambda x: x,
    "number by number": lambda x: x * 2 + 1,
    "along the first axis": lambda x: jnp.concatenate([x[1:], x[:1]]),
}
"""Functions of an array; the last three are the same along all axes as one."""

CALLS: dict[str, Callable[..., Any]] = {
    "reduce": lambda x: jp.reduce(x.reshape(-1), lambda a, b: jnp.where(a * 2 > b * 2, a, b)),
    "rows": lambda x: jp.reduce(x.reshape(-1, x.shape[-1]), jnp.add, axis=0),
    "scan": lambda x: jp.scan(x.reshape(-1), jnp.add),
    "segments": lambda x: jp.segment_reduce(x.reshape(-1), jp.Offsets(jnp.array([0, 3, 3, x.size])), jnp.add),
    "histogram": lambda x: jp.genhist(lambda v: (v.astype(jnp.int32), v), x.reshape(-1), jp.Bins(9, jnp.add)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("made", MADE)
def test_calls(call: str, made: str) -> None:
    """Elements come in NumPy's order; of batches, of pairs, in gradients."""
    fn, make = CALLS[call], MADE[made]
    for x in (X, X.astype(jnp.int32), X[:, 0]):
        wanted = fn(jnp.asarray(np.asarray(make(x))))
        np.testing.assert_array_equal(jax.jit(lambda x: fn(make(x)))(x), wanted)
    several = jax.jit(jax.vmap(lambda x: fn(make(x))))(jnp.stack([-X[:, 0], X[:, 0]]))
    np.testing.assert_array_equal(several[1], wanted)
    loss = lambda fn, make: lambda x: jnp.sum(jnp.sin(fn(make(x))))  # noqa: E731
    of_made = jax.grad(loss(fn, lambda x: x))(make(X))
    np.testing.assert_allclose(jax.jit(jax.grad(loss(fn, make)))(X), jax.vjp(make, X)[1](of_made)[0], rtol=1e-5)


def test_what_divides() -> None:
    """XLA's loop over one axis is as fast where what it makes is the same along all axes as one."""
    axes = {}
    for name, make in MADE.items():
        text = jax.jit(lambda x, make=make: CALLS["reduce"](make(x))).lower(X).as_text()
        (operands,) = re.findall(r"custom_call @jaxprims_reduce.*: \((.*)\) ->", text)
        axes[name] = {len(t.split("x")) - 1 for t in re.findall(r"tensor<(\S*)>", operands)}
    assert [name for name, found in axes.items() if max(found) < 3] == list(MADE)[-3:]


def test_beside_others() -> None:
    """An array beside another that is not reshaped, elements of several numbers, a vector that is captured."""
    y, w = X.reshape(-1)[::-1], jnp.arange(5.0)

    def fn(x: Any, y: Any) -> Any:
        first = jp.reduce((jnp.pad(x, [(0, 1), (1, 0), (0, 0)])[:7, :6].reshape(-1), y), lambda a, b: (a[0] + b[0], a[1] + b[1]))
        rows = jp.scan((x * x[..., :1]).reshape(-1, 5), jnp.add, map=lambda row: row * w)
        return first, rows, jp.reduce_by_index((x * x[:1]).reshape(-1, 5), jnp.arange(42) % 4, 4)

    got = jax.jit(fn)(X, y)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(fn(X, y)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_axes_of_one_element() -> None:
    """They stay behind that of the elements."""
    for fn in (
        lambda x: jp.scan(x.reshape(-1, 1), lambda a, b: a + b, axis=0),
        lambda x: jp.scan(x.reshape(6, -1, 1), jnp.add, axis=1),
        lambda x: jp.reduce(x.reshape(-1, 1), lambda a, b: a + b, axis=0),
        lambda x: jp.scan(x.reshape(-1, 1), jnp.add, axis=0, init=jnp.ones(1)),
        lambda x: jax.vmap(lambda v: jp.scan(v, jnp.add), in_axes=1)(x.reshape(-1, 1)),
        lambda x: jp.argmax(x.reshape(-1, 1), 0),
    ):
        np.testing.assert_array_equal(jax.jit(lambda x, fn=fn: fn(x * x[:1]))(X), fn(jnp.asarray(np.asarray(X * X[:1]))))


def test_what_gives_no_array_first() -> None:
    """What makes an operand may order effects, too."""
    seen: list[int] = []

    def body(k: Any, c: Any) -> Any:
        jax.debug.callback(lambda k: seen.append(int(k)), k, ordered=True)
        return c * 2

    out = jax.jit(lambda x: CALLS["scan"](jax.lax.fori_loop(0, 2, body, x)))(X)
    jax.effects_barrier()
    np.testing.assert_array_equal(out, CALLS["scan"](X * 4))
    assert seen == [0, 1]


@pytest.mark.dear
def test_exported(tmp_path: Path) -> None:
    """The mask in the file says how many axes an operand's elements have."""
    fn = jax.jit(lambda x: CALLS["scan"](X * jnp.flip(x, 1)))
    (((got,),),) = called_elsewhere(tmp_path, (export(fn)(X), [(X,)]))
    np.testing.assert_array_equal(got, fn(X))


@examples(30)
@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=5), names=st.lists(st.sampled_from(sorted(MADE)), max_size=3))
def test_any_shape(shape: list[int], names: list[str]) -> None:
    x = jnp.asarray(RNG.integers(-9, 9, shape), jnp.float32)

    def make(x: Any) -> Any:
        for name in names:
            x = MADE[name](x) if x.shape[0] else x
        return x

    elements = np.asarray(make(x))
    np.testing.assert_array_equal(jax.jit(lambda x: CALLS["scan"](make(x)))(x), np.cumsum(elements, dtype=np.float32))
