"""``fuse``: what is kept for backward passes, and for how long arrays live."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import same
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import jaxprims as jp
from jaxprims.fusion.call import Fused
from jaxprims.fusion.cut import cheapest_cut

LAYERS = 6
X = jnp.asarray(np.random.default_rng(11).normal(size=60_000).astype(np.float32))


def deep(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """A loss of some layers, each with much to be kept between two cumulative sums."""

    def layer(x: Any) -> Any:
        for _ in range(3):
            x = jnp.sin(0.3 * jnp.exp(jnp.tanh(x)) * x)
        return jnp.cumsum(x) / x.size

    def loss(x: Any) -> Any:
        for _ in range(LAYERS):
            x = wrapped(layer)(x)
        return jnp.sum((1 + x) ** 2)

    return loss


def arrays(fn: Callable[..., Any]) -> float:
    """Arrays like X that a function has beside its results."""
    return jax.jit(fn).lower(X).compile().memory_analysis().temp_size_in_bytes / X.nbytes


ORDERS = {
    "grad of fused": lambda f: jax.grad(jp.fuse(f)),
    "fused grad": lambda f: jp.fuse(jax.grad(f)),
    "grad of fused, twice": lambda f: jax.grad(jp.fuse(jp.fuse(f))),
    "value and grad": lambda f: lambda x: jax.value_and_grad(jp.fuse(f))(x)[1],
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.dear
def test_checkpoints_hold(order: str) -> None:
    """Nothing but each layer's argument is kept, and what is made again is made in kernels."""
    fn = ORDERS[order](deep(jax.checkpoint))
    assert arrays(fn) < LAYERS + 4
    np.testing.assert_allclose(fn(X), jax.grad(deep(jax.checkpoint))(X), rtol=1e-4, atol=1e-7)


def test_policies() -> None:
    """What a checkpoint saves by its name is not made again."""

    def of(x: Any) -> Any:
        return jnp.sum(jnp.tanh(checkpoint_name(jnp.cumsum(jnp.exp(x)) / x.size, "kept")))

    def sums(fn: Any) -> int:
        np.testing.assert_allclose(fn(X)[1], jax.grad(of)(X), rtol=1e-4, atol=1e-5)
        return jax.jit(fn).lower(X).as_text().count("custom_call @jaxprims_scan")

    anything = jax.checkpoint(of)
    named = jax.checkpoint(of, policy=jax.checkpoint_policies.save_only_these_names("kept"))
    for f, scans in ((anything, 3), (named, 2)):
        assert sums(jp.fuse(jax.value_and_grad(f))) == sums(jax.value_and_grad(jp.fuse(f))) == scans


def test_checkpoints_stay_where_derivatives_will_be_taken() -> None:
    """As in functions with effects: the call is there, with a kernel in it."""
    fused = Fused(jax.make_jaxpr(jax.checkpoint(lambda x: jnp.cumsum(jnp.sin(x))))(X), with_rules=True)
    (eqn,) = fused.rewritten.closed.jaxpr.eqns
    assert "prevent_cse" in eqn.params and any("in " in line and "cumsum" in line for line in fused.in_words())


def test_loops_of_checkpoints_are_recurrences() -> None:
    """Forwards and backwards: a loop makes nothing that was made before it."""

    def loss(x: Any) -> Any:
        step = jax.checkpoint(lambda c, y: (0.9 * c + y,) * 2)
        return jnp.sum(jax.lax.scan(step, 0.0, x)[1] ** 2)

    fused = Fused(jax.make_jaxpr(jax.grad(loss))(X))
    assert sum("linear recurrences" in line for line in fused.in_words()) == 2
    np.testing.assert_allclose(jp.fuse(jax.grad(loss))(X), jax.grad(loss)(X), rtol=1e-3, atol=1e-3)


def test_cheapest_cut() -> None:
    edges = [("s", "a", 3), ("s", "b", 2), ("a", "b", 5), ("a", "t", 2), ("b", "t", 2.5), ("b", "c", math.inf), ("c", "t", 0.25)]
    assert cheapest_cut(edges, "s", "t") == {"s", "a", "b", "c"}
    assert cheapest_cut([("s", "a", 1), ("a", "t", 1)], "s", "t") == {"s"}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.cover(1)
@pytest.mark.cpu
@pytest.mark.dear
def test_gradients_take_no_more_memory(order: str) -> None:
    """What backward passes make again is no more than a few elementwise functions, in whichever order it is fused."""
    plain = deep(lambda f: f)
    assert arrays(ORDERS[order](plain)) <= LAYERS + 4 < arrays(jax.grad(plain)) / 3
    np.testing.assert_allclose(ORDERS[order](plain)(X), jax.jit(jax.grad(plain))(X), rtol=1e-4, atol=1e-7)


def test_what_is_there_is_read() -> None:
    """Not made again by who wants it too; what is cheap and not there is made again, by each."""

    def reads(fn: Any) -> list[set[str]]:
        rewritten = Fused(jax.make_jaxpr(fn)(X)).rewritten
        return [{k.body.graph.eqns[t].primitive.name for t in k.body.taken} for k in rewritten.kernels]

    returned = lambda x: (lambda y: (y, jnp.cumsum(y)))(jnp.exp(jnp.tanh(x)))  # noqa: E731
    cheap = lambda x: (lambda y: (jnp.cumsum(y), jax.lax.cummax(y[::-1])))(x * x + 1)  # noqa: E731
    dear = lambda x: (lambda y: (jnp.cumsum(y), jax.lax.cummax(y, reverse=True)))(jnp.tanh(jnp.exp(jnp.tanh(x))))  # noqa: E731
    assert not any("tanh" in names for names in reads(returned) + reads(dear))
    assert sum("mul" in names or "integer_pow" in names or "square" in names for names in reads(cheap)) == 1
    for fn in (returned, cheap, dear):
        for a, b in zip(jax.jit(fn)(X), jp.fuse(fn)(X), strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-4)


@pytest.mark.cover(3)
@pytest.mark.parametrize("how", ["set", "add", "multiply"])
@pytest.mark.parametrize("lo, hi", [((1, 1), (19, 14)), ((0, 2), (20, 9)), ((3, 0), (4, 15))])
def test_constants_are_not_kept(how: str, lo: tuple[int, int], hi: tuple[int, int]) -> None:
    """Of a loop's updates where it is known: the gradient's function is given no indices."""
    window = tuple(map(slice, lo, hi))

    def step(x: Any) -> Any:
        return getattr(x.at[window], how)(0.3 * jnp.roll(x, 1, 0)[window])

    def loss(x: Any, wrapped: Callable[..., Any] = lambda f: f) -> Any:
        return jnp.sum(wrapped(lambda x: jax.lax.fori_loop(0, 3, lambda _, v: step(v), x))(x) ** 2)

    x = X[:300].reshape(20, 15)
    made = jax.make_jaxpr(jax.grad(lambda x: loss(x, jp.fuse)))(x)
    calls = [e for e in made.jaxpr.eqns if e.primitive.name == "fused"]
    assert calls and all(jnp.issubdtype(v.aval.dtype, jnp.floating) for e in calls for v in (*e.invars, *e.outvars))
    got = jax.grad(lambda x: loss(x, jp.fuse))(x)
    np.testing.assert_allclose(got, jax.grad(loss)(x), rtol=1e-5)


def test_what_xla_writes_is_read() -> None:
    """Of rows of tables, gathered, and what XLA returns: neither fuse nor the lowering makes it again in the kernel."""

    def residuals(x: Any, table: Any, other: Any, i: Any) -> Any:
        r = x - table[i] * other[i]
        return r, jnp.zeros(300).at[i].add(r * r)

    rng = np.random.default_rng(12)
    table, other, i = jnp.ones(301), jnp.ones(301), jnp.asarray(rng.integers(0, 300, X.size, np.int32))
    lowered = jax.jit(jp.fuse(residuals)).lower(X, table, other, i).as_text()
    (call,) = (line for line in lowered.splitlines() if "jaxprims_hist" in line)
    assert "tensor<301xf32>" not in call.rpartition(" : ")[2]
    for got, expected in zip(jp.fuse(residuals)(X, table, other, i), residuals(X, table, other, i), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_captured_arrays_are_freed() -> None:
    """As without it, once nobody has the function any more: those of calls in branches, too."""

    def call(many: int) -> None:
        data = X + many
        branch = jax.jit(lambda: jnp.sum(jnp.sin(data)))
        fused = jax.jit(jp.fuse(lambda: jax.lax.cond(True, branch, lambda: data[1])))
        fused().block_until_ready()
        jax.grad(jp.fuse(lambda x: jax.lax.cond(True, branch, lambda: data[1]) * jnp.sum(x)))(X)
        fused.clear_cache()

    def live() -> int:
        gc.collect()
        return len(jax.live_arrays())

    call(0)
    before = live()
    for many in range(3):
        call(many)
    assert live() == before


def test_tokens() -> None:
    """Functions with values that are no arrays are left alone."""
    token = jax.lax.create_token()
    functions: dict[str, Callable[..., Any]] = {
        "captured": lambda x: (jax.lax.after_all(token), jnp.cumsum(x))[1],
        "returned": lambda x: (jax.lax.create_token(x), jnp.cumsum(x)),
        "both": lambda x: (token, jnp.cumsum(x)),
        "inside": lambda x: jax.lax.cond(x[0] > 0, lambda: (jax.lax.create_token(x), x + 1)[1], lambda: x),
    }
    for fn in functions.values():
        expected, got = (jax.tree.leaves(f(X)) for f in (jax.jit(fn), jax.jit(jp.fuse(fn))))
        assert [type(x) for x in got] == [type(x) for x in expected]
        np.testing.assert_allclose(got[-1], expected[-1], rtol=1e-4, atol=1e-2)
        assert not jp.explain(jp.fuse(fn))(X).sites
    got, _ = jax.jit(jp.fuse(lambda t, x: (jax.lax.after_all(t), x)))(token, X)
    assert type(got) is type(token)


@pytest.mark.parametrize("f", [lambda x: jnp.max(x, 1), lambda x: jax.nn.logsumexp(x, 1)])
def test_maxima_of_short_rows_are_kept(f: Callable[[Any], Any]) -> None:
    """XLA would reduce the rows again in the loop that compares them, or subtracts, number by number."""
    rows = X.reshape(-1, 6)
    gradient = jax.make_jaxpr(jax.grad(lambda x: jp.fuse(lambda x: jnp.mean(f(x)))(x) ** 2))(rows)
    assert str(gradient).count("reduce_max[") == 1
    np.testing.assert_allclose(
        jax.jit(jax.grad(jp.fuse(lambda x: jnp.mean(f(x)))))(rows), jax.grad(lambda x: jnp.mean(f(x)))(rows), rtol=1e-4
    )


def halves(x: Any) -> Any:
    y = jnp.tanh(x.astype(jnp.bfloat16))
    return y, jnp.sum(y.astype(jnp.float32))


def flattened(x: Any) -> Any:
    at = (jnp.arange(40)[:, None] * jnp.arange(50)) % 20
    return jnp.zeros(20).at[at.ravel()].add((x[:40, None] * x[:50]).ravel())


TRACED: dict[str, Callable[[Any], Any]] = {
    "unrolled": lambda x: lax.scan(lambda c, t: (c + t, c * t), 0.0, jnp.cumsum(x)[:3], unroll=True)[1],
    "unrolled twice": lambda x: jnp.polyval(lax.scan(lambda c, t: (c + t, c), 0.0, x[:3], unroll=3)[1], x),
    "tree": lambda x: lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (jnp.tanh(x), x))[1],
    "product": lambda x: jnp.cumprod(jnp.cos(x)),
    "difference": lambda x: jax.grad(lambda a, b: jnp.sum(jnp.sin(a - b)), (0, 1))(x, x * 2),
    "halves": halves,
    "flattened": flattened,
    "recurrence": lambda x: lax.scan(lambda c, t: (0.9 * c + t, c), 0.0, x)[1],
    "stencil": lambda x: lax.fori_loop(0, 6, lambda _, u: u + 0.1 * (jnp.roll(u, 1) - u), x),
}


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", TRACED)
def test_no_tracer_is_held_by_a_plan(name: str, gradient: bool) -> None:
    def loss(f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(lambda x: sum(jnp.sum(jnp.sin(y).astype(jnp.float32)) for y in jax.tree.leaves(f(x))))

    program, x = TRACED[name], X[:2000] / 4
    closed = jax.make_jaxpr(loss(program) if gradient else program)(x)
    with jax.check_tracer_leaks():
        left = [Fused(closed, with_rules=with_rules).rewritten.left for with_rules in (False, True)]
        got = loss(jp.fuse(program))(x) if gradient else jp.fuse(program)(x)
    assert "a fault in fuse" not in str(left)
    same(jax.jit(loss(program) if gradient else program)(x), got, 1e-2 if name == "halves" else 1e-3)
