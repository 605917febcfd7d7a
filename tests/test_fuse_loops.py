"""Loops under ``fuse``: what every step makes alike, before the loop; two steps in a turn, so that nothing is copied; what stays
XLA's in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import N, X, Y, same
from jax import lax
from jax.extend.core import jaxprs_in_params

import jaxprims as jp
from jaxprims.fusion.call import Fused
from jaxprims.tracing.jaxprs import opened

ROW = X[:1000]


def step(m: Any, s: Any, y: Any) -> Any:
    """Reductions of what is dear and of ``s`` alone, and of what is not."""
    spread = jnp.log1p(jnp.exp(s))
    return m + 1e-3 * jnp.mean(spread * (y - m)) - 1e-3 * jnp.mean(jnp.abs(2 * s - m))


def scanned(m: Any, s: Any, y: Any) -> Any:
    return lax.scan(lambda c, k: (step(c, s, y), k * c[0]), m, jnp.arange(4.0), reverse=True)


def carried(m: Any, s: Any, y: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, c: (step(*c), c[1], c[2]), (m, s, y))


def until(m: Any, s: Any, y: Any) -> Any:
    def body(c: Any) -> Any:
        return c[0] + 1, step(c[1], s, y)

    return lax.while_loop(lambda c: (c[0] < 3) & (jnp.sum(jnp.log1p(jnp.exp(s)) * c[1]) < 1e9), body, (0, m))


def nested(m: Any, s: Any, y: Any) -> Any:
    return lax.scan(lambda c, _: (lax.fori_loop(0, 2, lambda _, d: step(d, s, y), c), None), m, None, length=2)


def by_rows(m: Any, s: Any, y: Any) -> Any:
    """A row for all, of which each step would make one for each."""

    def body(c: Any, _: Any) -> Any:
        x = jnp.log1p(jnp.exp(s[:1000])) * (y.reshape(40, 1000) - c[:1000])
        return c + jnp.sum(x) + jnp.max(jnp.abs(x)), None

    return lax.scan(body, m, None, length=3)


def never(m: Any, s: Any, y: Any) -> Any:
    return lax.fori_loop(0, 0, lambda _, c: step(c, s, y), m)


LOOPS = [scanned, carried, until, nested, by_rows, never]


def made(jaxpr: Any, times: str = "once") -> Counter[tuple[str, str]]:
    """Which functions a program has, and whether in loops, where XLA or kernels make them."""
    out: Counter[tuple[str, str]] = Counter()
    for eqn in opened(jaxpr)[0].eqns:
        out[times, eqn.primitive.name] += 1
        for inner in jaxprs_in_params(eqn.params):
            out += made(inner, "again" if eqn.primitive.name in ("scan", "while") else times)
    return out


@pytest.mark.parametrize("loop", LOOPS)
def test_before_the_loop(loop: Callable[..., Any]) -> None:
    same(loop(X, X, Y), jax.jit(jp.fuse(loop))(X, X, Y))
    program = made(Fused(jax.make_jaxpr(loop)(X, X, Y)).rewritten.closed)
    assert loop is never or program["once", "log1p"] > 0
    assert program["again", "log1p"] == 0


def test_a_search_before_the_loop() -> None:
    """It is a loop itself, which each element goes through."""

    def loop(m: Any, s: Any, y: Any) -> Any:
        edges = jnp.sort(s[:100])
        return lax.fori_loop(0, 3, lambda _, c: c + 1e-4 * jnp.sum(jnp.where(jnp.searchsorted(edges, y) == 7, c, 0)), m)

    same(loop(X, X, Y), jax.jit(jp.fuse(loop))(X, X, Y))
    inside = [site for site in jp.explain(jp.fuse(loop))(X, X, Y).sites if site.startswith("in scan: reduce_sum")]
    assert inside and not any("gather" in site for site in inside)


def test_sorts_and_updates_before_the_loop() -> None:
    """What they are made of is counted in one kernel with what changes, if not before: then they would stay with that."""

    def loop(m: Any, s: Any, y: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            ids = jnp.floor(jnp.abs(s) * 100).astype(jnp.int32) % 50
            counts = jnp.zeros(50).at[ids].add(jnp.ones_like(s))
            sums = jnp.zeros(50).at[ids].add(c)
            order, ranked = jnp.argsort(counts), jnp.sort(s)
            return c + 1e-4 * (sums[order] / (counts[order] + 1))[ids] * ranked, jnp.max(c)

        return lax.scan(body, m, None, length=3)

    same(loop(X, X, Y), jax.jit(jp.fuse(loop))(X, X, Y), 1e-4, 1e-4)
    program = made(Fused(jax.make_jaxpr(loop)(X, X, Y)).rewritten.closed)
    assert program["once", "sort"] == 2 and program["again", "sort"] == 0
    (inside,) = (site for site in jp.explain(jp.fuse(loop))(X, X, Y).sites if site.startswith("in scan: scatter-add"))
    assert "scatter-add over" in inside


def test_derivatives() -> None:
    def loss(f: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(jax.grad(lambda *xs: jnp.sum(f(*xs)[0] * Y), argnums=(0, 1, 2)))

    expected = loss(scanned)(X, X, Y)
    for got in (loss(jp.fuse(scanned)), jp.fuse(loss(scanned))):
        same(expected, got(X, X, Y))


def test_what_stays() -> None:
    """Arithmetic that costs less than to read its result; loops that may not end, where nobody enters the one around; effects."""

    def cheap(c: Any, s: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, c: c + jnp.sum(jnp.abs(s * 2 - c)) + jnp.max(s + c), c)

    program = made(Fused(jax.make_jaxpr(cheap)(X, Y)).rewritten.closed)
    assert program["once", "mul"] == 0

    def endless(c: Any, s: Any) -> Any:
        forever = lambda: lax.while_loop(lambda x: jnp.all(x < 1e30), lambda x: x * 1, s)  # noqa: E731
        return lax.fori_loop(0, c.size - N, lambda _, c: c + jnp.sum(jnp.log1p(jnp.abs(forever()))) * jnp.max(c + s), c)

    same(X, jp.fuse(endless)(X, Y))

    @jax.custom_jvp
    def ruled(s: Any) -> Any:
        return lax.while_loop(lambda x: jnp.all(x < 1e30), lambda x: x * 1, s)

    ruled.defjvp(lambda primals, tangents: (ruled(*primals), tangents[0]))

    def kept(c: Any, s: Any) -> Any:
        return lax.scan(lambda c, _: (c + jnp.sum(jnp.log1p(jnp.abs(ruled(s)))) * jnp.max(c + s), None), c, None, length=0)[0]

    program = made(Fused(jax.make_jaxpr(kept)(X, Y), with_rules=True).rewritten.closed)
    assert program["once", "custom_jvp_call"] == 0

    seen: list[float] = []

    def shown(c: Any, s: Any) -> Any:
        def body(_: Any, c: Any) -> Any:
            jax.debug.callback(lambda x: seen.append(float(x)), c[0])
            return step(c, s, s)

        return lax.fori_loop(0, 3, body, c)

    same(shown(X, Y), jp.fuse(shown)(X, Y))
    jax.effects_barrier()
    assert len(seen) == 6


def normalised(x: Any) -> Any:
    return (x - jnp.mean(x, 1, keepdims=True)) / (1 + jnp.std(x, 1, keepdims=True))


def turns(f: Callable[..., Any], *args: Any) -> list[int]:
    """Steps in a turn of each scan."""
    program = Fused(jax.make_jaxpr(f)(*args)).rewritten.closed.jaxpr
    return [eqn.params["unroll"] for eqn in program.eqns if eqn.primitive.name == "scan"]


@pytest.mark.parametrize("length", [4, 5])
def test_two_steps_in_a_turn(length: int) -> None:
    rows = X.reshape(40, 1000)

    def alone(x: Any) -> Any:
        return lax.fori_loop(0, length, lambda _, c: normalised(c), x)

    def two(x: Any, y: Any) -> Any:
        """One of them made by XLA, of the other's step before."""
        one = jnp.float32(1)
        return lax.scan(lambda c, _: ((normalised(c[1]), 2 * c[0] + c[1], 0.0), None), (x, y, one), None, length=length)[0]

    def shown(x: Any) -> Any:
        """Something new in each step, and a result of each."""
        return lax.scan(lambda c, k: (normalised(c * k), k * c[0]), x, jnp.arange(1.0, length + 1), reverse=True)

    for f, args, expected in ((alone, (rows,), [2]), (two, (rows, Y.reshape(40, 1000)), [2]), (shown, (rows,), [2])):
        same(f(*args), jp.fuse(f)(*args))
        assert turns(f, *args) == expected
    assert turns(alone, rows[:, :64]) == turns(lambda x: lax.fori_loop(0, 3, lambda _, c: normalised(c), x), rows) == [1]


def test_loops_that_are_unrolled() -> None:
    """As those of polynomials: steps in turn, of which a gradient's take what others have made without a stack of it."""
    x, w = X.reshape(20, -1), Y[:7]
    loss = lambda x, w: jnp.sum(jnp.polyval(w, x))  # noqa: E731
    fused = Fused(jax.make_jaxpr(jax.grad(loss, (0, 1)))(x, w))
    assert not any(e.primitive.name == "scan" for e in fused.graph.eqns)
    assert max(v.aval.ndim for e in fused.graph.eqns for v in e.outvars) == 2
    for fn in (
        loss,
        jax.grad(loss, (0, 1)),
        lambda x, w: lax.scan(lambda c, y: (c + y, c * y), x[0], x, reverse=True, unroll=True),
    ):
        same(jax.jit(fn)(x, w), jax.jit(jp.fuse(fn))(x, w), 1e-4, 1e-3)
    same(jax.jit(jax.grad(loss))(x, w), jax.grad(jp.fuse(loss))(x, w), 1e-4, 1e-3)


IN_LOOPS: dict[str, tuple[Callable[[Any, Any], Any], str, tuple[int, int], bool]] = {
    "rows of halves by a number of each": (lambda x, m: jnp.sum(x * x * m[:, None]), "bfloat16", (512, 64), False),
    "long ones": (lambda x, m: jnp.sum(x * x * m[:, None]), "bfloat16", (512, 256), True),
    "rows of floats": (lambda x, m: jnp.sum(x * x * m[:, None]), "float32", (512, 48), True),
    "rows that are chosen": (lambda x, m: jnp.sum(jnp.where(m[:, None] > 0, x * x, 0)), "float32", (512, 48), False),
    "each by itself": (lambda x, m: jnp.sum(jnp.where(m[:, None] > 0, x * x, 0), 1), "float32", (512, 48), False),
    "more of them": (lambda x, m: jnp.sum(jnp.where(m[:, None] > 0, x * x, 0)), "float32", (2000, 48), True),
    "of what takes time": (lambda x, m: jnp.sum(jnp.where(m[:, None] > 0, jnp.exp(x), 0)), "float32", (512, 48), True),
}


@pytest.mark.parametrize("name", IN_LOOPS)
def test_whose_short_rows_in_loops_are(name: str) -> None:
    fn, dtype, shape, expected = IN_LOOPS[name]
    rng = np.random.default_rng(0)
    x, m = (jnp.asarray(rng.normal(size=s), dtype) for s in (shape, shape[:1]))

    def loop(x: Any, m: Any) -> Any:
        step = lambda _, s: s * 0.5 + jnp.sum(fn(x + s.astype(dtype) * 1e-6, m)).astype(jnp.float32) * 1e-3  # noqa: E731
        return lax.fori_loop(0, 3, step, jnp.float32(0))

    assert any("in scan: reduce_sum over" in line for line in jp.explain(jp.fuse(loop))(x, m).sites) == expected
    same(jax.jit(loop)(x, m), jax.jit(jp.fuse(loop))(x, m), 1e-2 if dtype == "bfloat16" else 1e-4)
