"""``fuse``: what is handed over and what comes back, once traced; and the shapes of what it finds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import ROWS, SHAPES, N, X, same

import jaxprims as jp
from jaxprims.fusion.call import Fused


@pytest.mark.cover(4)
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str) -> None:
    fn, args = SHAPES[name]
    same(jax.jit(fn)(*args), jp.fuse(fn)(*args), 2e-2 if name == "halves" else 1e-4)


def test_structures_and_static_arguments() -> None:
    @jp.fuse
    def f(tree: Any, how: str, *, axis: int = 0, scale: float = 2.0) -> Any:
        """Its own words."""
        total = jnp.sum if how == "sum" else jnp.max
        return {"out": total(tree["x"] * scale, axis=axis), "n": len(tree["rest"]), "none": None}

    assert f.__doc__ == "Its own words."
    tree = {"x": ROWS, "rest": (X, None)}
    same(jnp.sum(ROWS * 3, 1), f(tree, "sum", axis=1, scale=3.0)["out"])
    same(jnp.max(ROWS * 2, 0), f(tree, "max")["out"])
    assert f(tree, "max")["none"] is None


class _Named:
    """A node that holds an array beside its leaf, which has no one answer to whether it is equal to another."""

    def __init__(self, value: Any, names: Any) -> None:
        self.value, self.names = value, names


jax.tree_util.register_pytree_node(_Named, lambda x: ((x.value,), x.names), lambda names, leaves: _Named(*leaves, names))


def test_nodes_that_cannot_be_compared() -> None:
    for names in (np.arange(3), np.arange(2), [1, 2], np.arange(3)):
        assert jp.fuse(lambda x, names=names: _Named(x * 2, names))(X[:3]).names is names
    times = jp.fuse(lambda x: x.value * x.names[1])
    for names in (np.arange(3), np.arange(3) + 1, [0, 3, 1]):
        same(X[:3] * names[1], times(_Named(X[:3], names)))


def test_numbers_of_python() -> None:
    traces = []

    @jp.fuse
    def filled(value: Any, n: Any) -> Any:
        traces.append(1)
        return 1 / jnp.full(n, value)

    assert filled(0.0, 3)[0] == np.inf
    assert filled(-0.0, 3)[0] == -np.inf
    before = len(traces)
    for rate in (1.0, 2.0, 4.0):  # an operand, though the length had to be known
        assert filled(rate, 3)[0] == 1 / rate
    assert len(traces) == before
    assert jp.fuse(lambda x, names: jnp.sum(x) * len(names))(X[:9], {"a", "b"}) == 2 * jnp.sum(X[:9])


def test_effects_stay(capfd: pytest.CaptureFixture[str]) -> None:
    def noisy(x: Any) -> Any:
        y = jnp.sum(x * x)
        jax.debug.print("sum {y:.1f}", y=y)
        return y, jnp.max(x)

    same((jnp.sum(X * X), jnp.max(X)), jp.fuse(noisy)(X))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("sum ") == 1


def test_captured_tracers() -> None:
    def outer(scale: Any) -> Any:
        return jp.fuse(lambda x: (jnp.sum(x * scale), jnp.max(x + scale)))(X)

    same((jnp.sum(X * 3.0), jnp.max(X + 3.0)), jax.jit(outer)(jnp.float32(3)))
    same(jnp.sum(X), jax.grad(lambda s: outer(s)[0])(jnp.float32(3)))


def test_weak_types() -> None:
    same(jnp.sum(X * 0 + 1) * 2.0, jp.fuse(lambda x, k: jnp.sum(x * 0 + 1) * k)(X, 2.0))
    same(jax.jit(lambda k: jnp.cumsum(jnp.full(N, k)))(1), jp.fuse(lambda k: jnp.cumsum(jnp.full(N, k)))(1))


def test_wrong_programs_say_what_they_would_without() -> None:
    with pytest.raises(TypeError, match="must be a function"):
        jp.fuse(3)  # type: ignore[type-var]
    with pytest.raises(ZeroDivisionError):
        jp.fuse(lambda x: 1 / 0)(X)
    with pytest.raises(TypeError, match="add got incompatible shapes"):
        jp.fuse(lambda x, y: x + y)(X, X[:3])


@pytest.mark.parametrize("dtype", [[("a", "f4"), ("b", "i4")], "V4", "longdouble"])
def test_arrays_of_dtypes_that_jax_does_not_have(dtype: Any) -> None:
    """Are refused in the words of ``jax.jit``, with the name of the argument."""

    def f(n: Any, records: Any) -> Any:
        return n + 1

    messages = []
    for wrapped in (jax.jit(f), jp.fuse(f)):
        with pytest.raises(TypeError) as error:
            wrapped(2, np.zeros(3, dtype))
        messages.append(str(error.value))
    assert messages[0] == messages[1] and "records" in messages[0]


def test_one_trace_for_calls_alike() -> None:
    traces = []

    @jp.fuse
    def f(x: Any) -> Any:
        traces.append(1)
        return jnp.sum(x * x)

    for _ in range(3):
        f(X)
    f(X[:100])
    assert len(traces) == 2


LOOPS = {
    "scan": lambda step, x: jax.lax.scan(step, x[0] * 0, x)[0],
    "scan in a scan": lambda step, x: jax.lax.scan(lambda c, _: (jax.lax.scan(step, c, x)[0], c), x[0] * 0, None, length=2)[0],
    "scan in a call": lambda step, x: jax.jit(lambda x: jax.lax.scan(step, x[0] * 0, x))(x)[0],
    "scan, then a kernel": lambda step, x: jax.lax.scan(step, x[0] * 0, x)[0] + jnp.sum(jnp.cumsum(X * X) * X),
}


@pytest.mark.cover(3)
@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("graded", [False, True], ids=["plain", "gradient"])
def test_what_nobody_wants_of_a_loop_is_left_out(name: str, graded: bool) -> None:
    def fn(x: Any) -> Any:
        out = LOOPS[name](lambda c, row: (jnp.max(c[:, None] + row, 0), jnp.argsort(c)), x)
        return jnp.sum(out)

    wanted = jax.grad(fn) if graded else fn
    x = jnp.sin(jnp.arange(24.0)).reshape(6, 4)
    same(jax.jit(wanted)(x), jax.jit(jp.fuse(wanted))(x))
    assert "sort" not in str(Fused(jax.make_jaxpr(wanted)(x)).rewritten.closed)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.vmap, jax.checkpoint], ids=["plain", "batch", "checkpoint"])
def test_what_a_program_does_not_want_of_a_call_is_left_out(wrap: Any) -> None:
    """Results, and arguments that only they need; where derivatives are taken, too."""

    def fn(x: Any, y: Any, z: Any) -> Any:
        return jnp.sum(jnp.sin(x) * jnp.max(x)), jnp.cumsum(jnp.cosh(x) * y), z

    def loss(f: Any) -> Any:
        return jax.jit(lambda x, y, z: jnp.sum(wrap(f)(x, y, z)[0]))

    args = ROWS, ROWS + 1, ROWS
    text = loss(jp.fuse(fn)).lower(*args).as_text()
    assert "cosh" not in text and "%arg1" not in text
    same(jax.jit(jax.grad(loss(fn)))(*args), jax.jit(jax.grad(loss(jp.fuse(fn))))(*args), 1e-4)
