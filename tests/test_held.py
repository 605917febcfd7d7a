"""Gradients of extremes of computed elements: an element equals the extreme that it is, whoever makes it again.

Elements are drawn expressions, of numbers that are read and ones that are the same for all, whose parts something else may use;
so sums of products are rounded once in one place and twice in another, unless what is compared is held. What is added to all
elements is added to every extreme, ties or not: its derivative is the number of extremes, each with its weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn import examples
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental.jet import jet
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import mesh

import jaxprims as jp
from jaxprims.ir.check import check_program
from jaxprims.ir.contraction import ALLOWED, CONTRACTS, contracted
from jaxprims.ir.program import Program
from jaxprims.tracing.lower import to_program

H = 7
RNG = np.random.default_rng(0)

BINARY = {"add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply}
UNARY = {"sin": jnp.sin, "exp": lambda x: jnp.exp(-x * x), "tanh": jnp.tanh, "abs": jnp.abs}
EXPRESSIONS = st.recursive(
    st.sampled_from(["x", "a", "b"]),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(sorted(BINARY)), inner, inner),
        st.tuples(st.sampled_from(sorted(UNARY)), inner),
    ),
    max_leaves=6,
)

CALLS: dict[str, Callable[..., Any]] = {
    "by index": lambda y, i: jp.segment_max(y, i, H),
    "segments": lambda y, i: jp.segment_min(y, jnp.sort(i), H, indices_are_sorted=True),
    "reduction": lambda y, i: jp.reduce(y, jnp.maximum, axis=0),
    "of a function": lambda y, i: jp.segment_reduce(y, jnp.sort(i), jnp.maximum, num_segments=H, map=lambda v: v * 0.3 + 0.7 * v),
    "in dest": lambda y, i: jp.reduce_by_index(y, i, H, jnp.minimum, dest=y[H : 2 * H] - 0.1),
    "beside sums": lambda y, i: jp.reduce_by_index((y, y), i, H, lambda a, b: (jnp.maximum(a[0], b[0]), a[1] + b[1]))[0],
    "with places": lambda y, i: jp.reduce((y, jp.positions), jp.monoids.argmax, axis=0)[0],
}


def evaluated(expression: Any, values: dict[str, Any], parts: list[Any]) -> Any:
    """And the parts that it is made of."""
    if isinstance(expression, str):
        return values[expression]
    name, *args = expression
    out = {**BINARY, **UNARY}[name](*(evaluated(e, values, parts) for e in args))
    parts.append(out)
    return out


def check(name: str, expression: Any, looked_at: int, batch: int, put: Callable[..., Any] = lambda xs: xs, n: int = 40) -> None:
    x, (a, b) = RNG.standard_normal((batch, n)).astype(np.float32), RNG.standard_normal((2, batch)).astype(np.float32)
    i, c = np.append(np.arange(H), RNG.integers(0, H, n - H)).astype(np.int32), RNG.standard_normal(batch).astype(np.float32)
    weights = np.arange(1, H + 1, dtype=np.float32)

    def one(x: Any, a: Any, b: Any, c: Any) -> Any:
        parts: list[Any] = [x]
        y = evaluated(("add", ("mul", "x", "a"), expression), {"x": x, "a": a, "b": b}, parts) + c
        return jnp.sum(weights * CALLS[name](y, i)) + 1e-3 * jnp.sum(parts[looked_at % len(parts)])

    def loss(*xs: Any) -> Any:
        return jnp.sum(jax.vmap(one)(*xs)) if batch > 1 else one(*(x[0] for x in xs))

    moved = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*put([x, a, b, c]))[3]
    np.testing.assert_allclose(np.asarray(moved), np.full(batch, weights.sum()), rtol=1e-4)


@pytest.mark.strategies
@examples(16)
@given(EXPRESSIONS, st.integers(0, 5), st.sampled_from(sorted(CALLS)), st.sampled_from([1, 1, 3]), st.sampled_from([40, 3000]))
@pytest.mark.dear
def test_extremes_of_what_is_computed(expression: Any, looked_at: int, name: str, batch: int, n: int) -> None:
    check(name, expression, looked_at, batch, n=n)


@pytest.mark.strategies
@examples(6)
@given(EXPRESSIONS, st.integers(0, 5), st.sampled_from(sorted(CALLS)), st.sampled_from([1, 4]), st.sampled_from(["x", "y", None]))
def test_extremes_of_what_several_devices_compute(
    expression: Any, looked_at: int, name: str, batch: int, axis: str | None
) -> None:
    on = mesh(2, 4)

    def put(xs: list[Any]) -> list[Any]:
        over = P("x" if batch > 1 and axis != "x" else None)
        return [jax.device_put(x, NamedSharding(on, P(*over, axis) if x.ndim == 2 else over)) for x in xs]

    check(name, expression, looked_at, batch, put)


FOUND: dict[str, Callable[..., Any]] = {
    "by index": lambda y, i: jp.segment_max(y, i, H)[i],
    "segments": lambda y, i: jp.segment_min(y, i, H, indices_are_sorted=True)[i],
    "reduction": lambda y, i: jp.reduce(y, jnp.minimum, axis=0),
    "running": lambda y, i: jnp.where(jnp.any(y > jp.cummax(y)), jnp.nan, y),
    "by its place": lambda y, i: y[jp.argmax(y)],
}


@pytest.mark.cover(1)
@pytest.mark.parametrize("wrapped", [lambda f: f, jp.fuse])
@pytest.mark.parametrize("name", FOUND)
@examples(12)
@given(expression=EXPRESSIONS, n=st.sampled_from([40, 3000]))
def test_an_extreme_is_found_among_the_elements(name: str, wrapped: Callable[..., Any], expression: Any, n: int) -> None:
    """By who compares with what XLA makes: kernels round it in the same way, or read it."""
    x, (a, b) = RNG.standard_normal(n).astype(np.float32), RNG.standard_normal(2).astype(np.float32)
    i = np.sort(np.append(np.arange(H), RNG.integers(0, H, n - H))).astype(np.int32)

    def found(x: Any, a: Any, b: Any) -> Any:
        y = evaluated(("add", ("mul", "x", "a"), expression), {"x": x, "a": a, "b": b}, [])
        return jnp.zeros(H, bool).at[i].max(y == FOUND[name](y, i))

    options = {"xla_backend_optimization_level": 3}  # as by default, not as these tests have it: so it rounds as kernels do
    groups = jax.jit(wrapped(found)).lower(x, a, b).compile(options)(x, a, b)
    assert groups.all() if name in ("by index", "segments", "running") else groups.any()


def test_what_may_be_contracted() -> None:
    """It is part of a Program's text; what XLA might round in another way is not."""

    def of(f: Callable[..., Any], dtype: str = "float32") -> Program | None:
        return contracted(to_program(jax.make_jaxpr(f)(*np.ones((2, 1), jnp.dtype(dtype))[:, 0]).jaxpr))

    found = of(lambda x, a: jnp.abs(x * a + 1))
    assert found is not None and [i.op for i in found.body if i.attr == ALLOWED and i.op in CONTRACTS] == ["mul", "add"]
    assert Program.parse(str(found)) == found
    check_program(found, found.params, found.result_dtypes, ())
    assert of(lambda x, a: x / a + 1) is of(lambda x, a: x * a + x * x) is of(lambda x, a: -(x * a) + 1) is None
    assert of(lambda x, a: (x * a + 1) * (x * a)) is of(lambda x, a: x * a + 1, "bfloat16") is None


def test_what_is_in_memory_is_not_held() -> None:
    """Nor what is rounded once, or not at all."""

    def calls(f: Callable[..., Any]) -> int:
        grad = jax.grad(lambda x, t: jnp.sum(jp.segment_max(f(x, t), jnp.arange(40) % H, H)))
        return jax.jit(grad).lower(jnp.ones(40), jnp.ones(90)).as_text().count(jp.CUSTOM_CALL_TARGETS[-1])

    assert calls(lambda x, t: x) == calls(lambda x, t: x + 1) == calls(lambda x, t: jnp.abs(t[10:50])) == 0
    assert calls(lambda x, t: x * 2 + 1) == calls(lambda x, t: jnp.sin(x)) == calls(lambda x, t: jax.jit(jnp.exp)(x) + 1) == 1


def test_what_is_added_to_every_element_of_a_sum_is_made_once() -> None:
    """A gradient's cotangent, if it takes work; of a few numbers it is not worth a call."""
    x = RNG.standard_normal((40, 1000)).astype(np.float32)

    def made(x: Any, loss: Callable[..., Any]) -> Any:
        grad = jax.grad(lambda x: jnp.sum(loss(jp.reduce(x, jnp.logaddexp, axis=0))))
        return jax.jit(grad).lower(x)

    assert [made(x, f).as_text().count(jp.CUSTOM_CALL_TARGETS[-1]) for f in (jnp.sin, lambda y: 2 * y)] == [1, 0]
    assert made(x[:, :5], jnp.sin).as_text().count(jp.CUSTOM_CALL_TARGETS[-1]) == 0
    total = np.log(np.sum(np.exp(x), 0))
    np.testing.assert_allclose(made(x, jnp.sin).compile()(x), np.exp(x - total) * np.cos(total), rtol=1e-4, atol=1e-6)


@pytest.mark.dear
def test_held_in_other_transformations() -> None:
    """Eagerly, in loops, forwards, in Taylor series, in kernels."""
    x, i = RNG.standard_normal(50).astype(np.float32), RNG.integers(0, 3, 50).astype(np.int32)
    top = lambda x: jp.segment_max(x * 1.7 + 0.3, i, 3)  # noqa: E731
    wanted = np.array(jax.jacobian(lambda x: jax.ops.segment_max(x * 2, i, 3))(x)) * 0.85
    np.testing.assert_allclose(jax.jacrev(top)(x), wanted, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(top))(x), wanted, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.jacrev(jax.checkpoint(top)))(x), wanted, rtol=1e-6)

    def step(x: Any, _: Any) -> Any:
        return x - 0.1 * jax.grad(lambda x: jnp.sum(top(x)))(x), None

    got = jax.jit(lambda x: jax.lax.scan(step, x, None, length=3)[0])(x)
    eager = x
    for _ in range(3):
        eager, _ = step(eager, None)
    np.testing.assert_allclose(got, eager, rtol=1e-5)
    gradient = jax.grad(lambda x: jp.reduce(x * 1.7 + 0.3, jnp.maximum))
    _, moved = jet(gradient, (x,), ([jnp.ones(50), jnp.zeros(50)],))
    np.testing.assert_allclose(moved[0], np.zeros(50), atol=1e-6)
