"""Eager gradients, tangents and batches of calls: compiled once, and rules told apart."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp

X = jnp.arange(12.0)
IDS = jnp.arange(12) % 3


def test_inside_transformations() -> None:
    """Concrete arrays beside traced functions: a tracer that is closed over is none of a kept call's."""
    for k in (1.0, 2.0):
        assert jax.jit(lambda k: jp.reduce(X, map=lambda x: x * k))(k) == 66 * k
        assert jax.grad(lambda k: jp.reduce(X, map=lambda x: x * k))(k) == 66
        np.testing.assert_array_equal(jax.vmap(lambda k: jp.reduce(X, map=lambda x: x * k))(jnp.array([k, 3])), [66 * k, 198])
        assert jax.jit(lambda k: k * jp.reduce(X))(k) == 66 * k


def test_rules_of_their_own_are_told_apart_by_what_they_are() -> None:
    """Operators that have ``custom_jvp`` inside are equal from trace to trace, so that eager gradients and batches of them
    compile once; with another rule they are not, though their Programs are; nor where only a rule's own rule is another."""

    def call(op: Any) -> Any:
        (eqn,) = (
            e for e in jax.make_jaxpr(lambda x: jp.reduce_by_index(x, IDS, 3, op, identity=-np.inf))(X).eqns if "call" in e.params
        )
        return eqn.params["call"]

    def doubling(scale: float, then: Any = None) -> Any:
        @jax.custom_jvp
        def double(x: Any) -> Any:
            return 2 * x

        double.defjvp(lambda p, t: ((then or double)(*p), scale * t[0] * (then or double)(p[0] * 0 + 0.5)))
        return double

    def with_rule(scale: float, then: Any = None) -> Any:
        double = doubling(scale, then)
        return lambda a, b: jnp.maximum(double(a), double(b)) / 2

    made = (
        lambda: jnp.logaddexp,
        lambda: lambda a, b: jnp.logaddexp(a, b),
        lambda: lambda a, b: jnp.maximum(a, b) + 0 * (jax.nn.relu(a) - jax.nn.relu6(b)),
        lambda: with_rule(2),
        lambda: with_rule(2, doubling(5)),
    )
    for make in made:
        assert call(make()) == call(make()) and hash(call(make())) == hash(call(make()))
    two, three = with_rule(2), with_rule(3)
    assert call(two) != call(three)
    assert call(with_rule(2, doubling(5))) != call(with_rule(2, doubling(6)))
    assert call(with_rule(2, doubling(5))) != call(with_rule(2))
    for op, want in ((two, 1), (three, 1.5), (two, 1)):
        got = jax.grad(lambda x, op=op: jp.reduce_by_index(x, IDS[:2] * 0, 1, op, identity=-np.inf)[0])(X[:2])
        np.testing.assert_allclose(got, [0, want])


def backwards(scale: float, of_primal: bool = False) -> Any:
    """A function with a ``custom_vjp``, whose cotangent is scaled, or is multiplied by the argument."""
    double = jax.custom_vjp(lambda x: 2 * x)
    double.defvjp(lambda x: (double(x), x), lambda x, out: ((x if of_primal else scale) * out,))
    return double


def test_backward_rules_are_told_apart_by_what_they_are() -> None:
    def calls(rule: Any) -> list[Any]:
        functions = (lambda x: jp.reduce(x, map=rule)), (lambda x: jp.scan(x, lambda a, b: rule(a) + b))
        return [e.params["call"] for f in functions for e in jax.make_jaxpr(f)(X).eqns if "call" in e.params]

    assert calls(backwards(2)) == calls(backwards(2)) and calls(backwards(0, True)) == calls(backwards(0, True))
    assert len(calls(backwards(2))) == 2
    for one, other in ((backwards(2), backwards(3)), (backwards(2), backwards(2, True))):
        assert all(map(operator.ne, calls(one), calls(other)))
    for scale in (2, 3, 2):
        rule = backwards(scale)
        got = jax.grad(lambda x, rule=rule: jp.reduce(x, map=rule))(X)
        np.testing.assert_array_equal(got, np.full_like(X, scale))
    np.testing.assert_array_equal(jax.grad(lambda x: jp.reduce(x, map=backwards(0, True)))(X), X)


CLIPPED: dict[str, Callable[[Any], Any]] = {
    "backwards": lambda x: jp.genhist(lambda i, v: (i, backwards(3)(v)), (IDS, x), jp.Bins(3, jnp.add)),
    "backwards in a map": lambda x: jp.scan(x, map=lambda v: jax.nn.relu(backwards(3, True)(v))),
    "genhist": lambda x: jp.genhist(lambda i, v: (i, jax.nn.relu(v)), (IDS, x), jp.Bins(3, jnp.add)),
    "by index": lambda x: jp.reduce_by_index(x, IDS, 3, lambda a, b: jax.nn.relu(a + b), identity=0),
    "map": lambda x: jp.reduce(x, map=lambda v: jax.nn.silu(v) * jax.nn.relu6(v)),
    "reduce": lambda x: jp.reduce(x, lambda a, b: jax.nn.relu(a + b)),
    "scan": lambda x: jp.scan(x, lambda a, b: jax.nn.relu(a) + b, map=lambda v: jax.nn.relu(v)),
    "segments": lambda x: jp.segment_reduce(
        x, jp.Offsets(jnp.array([0, 5, 12])), jp.Monoid(lambda a, b: jax.nn.relu(jnp.logaddexp(a, b)), -np.inf)
    ),
    "stencil": lambda x: jp.stencil(lambda a: jax.nn.relu(a[-1] + a[1]), x),
    "captured": lambda x: jp.reduce(X, map=lambda v: jax.nn.relu(v * x[1])),
}
EAGERLY: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: jax.grad(lambda x: f(x).sum())(X),
    "vmap": lambda f: jax.vmap(f)(jnp.stack([X, -X])),
    "jvp": lambda f: jax.jvp(f, (X,), (X,)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(lambda x: f(x).sum()))(jnp.stack([X, -X])),
}


@pytest.mark.cover(4)
@pytest.mark.parametrize("transformation", EAGERLY)
@pytest.mark.parametrize("name", CLIPPED)
def test_eager_transformations_of_rules_compile_once(name: str, transformation: str, caplog: pytest.LogCaptureFixture) -> None:
    if name.startswith("backwards") and transformation == "jvp":
        pytest.skip("JAX has none of a custom_vjp")
    run = lambda: jax.tree.leaves(EAGERLY[transformation](CLIPPED[name]))  # noqa: E731
    first = run()
    run()
    with jax.log_compiles():
        again = run()
        for got, want in zip(again, first, strict=True):
            np.testing.assert_array_equal(got, want)
        assert "Finished XLA compilation" not in caplog.text
        jax.jit(lambda x: x + len(first))(X)
    assert "Finished XLA compilation" in caplog.text


EAGER: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "reduce": lambda f: lambda x: jp.reduce(x, map=f),
    "by an operator": lambda f: lambda x: jp.reduce(x, lambda a, b: a + b + 0 * f(b), identity=0),
    "scan": lambda f: lambda x: jp.scan(x, map=f),
    "genhist": lambda f: lambda x: jp.genhist(lambda i, v: (i, f(v)), (IDS, x), jp.Bins(3, jnp.add)),
    "segments": lambda f: lambda x: jp.segment_reduce(x, jp.Offsets(jnp.array([0, 5, 12])), map=f),
    "stencil": lambda f: lambda x: jp.stencil(lambda a: f(a[-1]) * a[1], x),
    "captured": lambda f: lambda x: jp.reduce(X, map=lambda v: f(v * x[1])),
}


@pytest.mark.cover(3)
@pytest.mark.parametrize("transformation", EAGERLY)
@pytest.mark.parametrize("name", EAGER)
def test_eager_transformations_trace_a_function_twice_at_most(name: str, transformation: str) -> None:
    """The second time to find out whether numbers in functions are the same."""
    traces = 0

    def f(v: Any) -> Any:
        nonlocal traces
        traces += 1
        return v * v

    call = EAGER[name](f)
    run = lambda: jax.tree.leaves(EAGERLY[transformation](call))  # noqa: E731
    first, _ = run(), run()
    seen = traces
    for got, want, jitted in zip(run(), first, jax.jit(run)(), strict=True):
        np.testing.assert_array_equal(got, want)
        np.testing.assert_allclose(got, jitted, rtol=1e-5)
    run()
    assert traces > seen  # by jit
    seen = traces
    run()
    assert traces == seen


def test_tracers_of_jit_leave_nothing_behind() -> None:
    """Whether tracers are of ``jit`` is found without an equation, or a transfer that a user forbids."""
    for call in (jp.reduce, jp.cumsum, jp.scan):
        assert len(jax.make_jaxpr(call)(X).eqns) == 1
    with jax.transfer_guard("disallow_explicit"):
        jax.jvp(jp.reduce, (X,), (X,))
        jax.vmap(jp.cumsum)(jnp.stack([X, X]))
