"""Gradients of histograms by any operator: walks through the elements, beside the rule that sorts and JAX's own of a loop."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from references import BY_NAME, Case, assert_close, inexact, sample

import jaxprims as jp
from jaxprims.operators.traced import make_traced
from jaxprims.primitives.histogram import fold_walks
from jaxprims.primitives.histogram import folds as histogram_folds
from jaxprims.primitives.histogram.walk import Walk, walk, walk_p
from jaxprims.targets.registry import family_of
from jaxprims.tracing.jaxprs import with_arguments
from jaxprims.tracing.lower import to_program

N, H = 90, 7
INDEX = np.random.default_rng(0).integers(-1, H + 1, N).astype(np.int32)
TABLES = ((1, 1), (1, 4), (4, 1), (4, 2))


def weighed(bins: Any) -> jax.Array:
    weights = (jnp.cos(jnp.arange(x.size)).reshape(x.shape) for x in inexact(bins))
    return sum(jnp.sum(w * jnp.real(x)) for w, x in zip(weights, inexact(bins), strict=True))


def by_walks(monkeypatch: pytest.MonkeyPatch, tables: tuple[int, int]) -> None:
    monkeypatch.setattr(fold_walks, "tables_for", lambda *_: tables)


def by_sorting(f: Any) -> Any:
    """The same where no kernel walks."""

    def run(*args: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(histogram_folds, "walks_of", lambda *_: None)
            return jax.jit(f)(*args)

    return run


@pytest.mark.cover(2)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("tables", TABLES, ids=str)
@pytest.mark.parametrize("name", ["a+b+ab", "einstein", "mean_variance", "circulant", "series", "two_best", "harmonic"])
def test_as_by_sorting(monkeypatch: pytest.MonkeyPatch, name: str, tables: tuple[int, int]) -> None:
    case: Case = BY_NAME[name]
    by_walks(monkeypatch, tables)
    values, dest = sample(case, N, 0, True), sample(case, H, 1, True)
    for args in ((values,), (values, dest)):

        def of(values: Any, dest: Any = None) -> jax.Array:
            return weighed(jp.reduce_by_index(values, INDEX, H, case.op, identity=case.given, dest=dest))

        gradient = jax.grad(of, argnums=tuple(range(len(args))))
        text = jax.jit(gradient).lower(*args).as_text()
        assert "jaxprims_walk" in text and "jaxprims_group" not in text
        assert_close(jax.jit(gradient)(*args), by_sorting(gradient)(*args), 1e-7)


@pytest.mark.cover(2)
@pytest.mark.parametrize("tables", TABLES, ids=str)
def test_elements_of_a_function(monkeypatch: pytest.MonkeyPatch, tables: tuple[int, int]) -> None:
    """f computes the index of 8 bits, takes positions and captured arrays, of which the operator has one, too."""
    by_walks(monkeypatch, tables)
    table, scale = jnp.arange(1.0, 5.0), jnp.float32(0.3)

    def of(x: jax.Array, k: jax.Array) -> jax.Array:
        def f(x: Any, k: Any, at: Any) -> Any:
            return (k % 5).astype(jnp.uint8), jnp.sin(x) * table[at % 4]

        return weighed(jp.genhist(f, (x, k, jp.positions), jp.Bins(4, lambda a, b: a + b + scale * a * b, identity=0)))

    x = jnp.asarray(sample(BY_NAME["a+b+ab"], N, 3, True))
    args = (x, jnp.asarray(INDEX) + 1)
    assert "jaxprims_walk" in jax.jit(jax.grad(of)).lower(*args).as_text()
    assert_close(jax.jit(jax.grad(of))(*args), by_sorting(jax.grad(of))(*args), 1e-5)


@pytest.mark.dear
def test_transformed() -> None:
    """vmap of grad, grad of vmap, grad of grad, forward mode over it, in turn, with JAX's derivatives of a product."""
    x = 1 + 0.1 * jax.random.normal(jax.random.key(0), (3, N))
    index = jnp.asarray(INDEX)

    def ours(x: jax.Array, index: jax.Array = index) -> jax.Array:
        return weighed(jp.reduce_by_index(x, index, H, lambda a, b: a + b + a * b, identity=0))

    def plain(x: jax.Array, index: jax.Array = index) -> jax.Array:
        kept = (index[:, None] == jnp.arange(H)) * x[:, None]
        return weighed(jnp.prod(1 + kept, axis=0) - 1)

    derivatives = {
        "grad": lambda f: jax.grad(f)(x[0]),
        "vmap of grad": lambda f: jax.vmap(jax.grad(f))(x),
        "of both": lambda f: jax.vmap(jax.grad(f))(x, jnp.stack([index, index[::-1], index % 3])),
        "of the index": lambda f: jax.vmap(jax.grad(f), (None, 0))(x[0], jnp.stack([index, index[::-1]])),
        "grad of vmap": lambda f: jax.grad(lambda x: jnp.sum(jax.vmap(f)(x) ** 2))(x),
        "grad of grad": lambda f: jax.grad(lambda x: jnp.sum(jax.grad(f)(x) ** 2))(x[0]),
        "jvp of grad": lambda f: jax.jvp(jax.grad(f), (x[0],), (x[1],))[1],
        "jvp of vmap of grad": lambda f: jax.jvp(jax.vmap(jax.grad(f)), (x,), (x[::-1],))[1],
        "vmap of a hessian's product": lambda f: jax.vmap(lambda v: jax.jvp(jax.grad(f), (x[0],), (v,))[1])(x),
        "linear in tangents": lambda f: jax.grad(lambda v: jax.jvp(f, (x[0],), (v,))[1])(x[1]),
        "checkpoint": lambda f: jax.grad(jax.checkpoint(f))(x[0]),
    }
    got, wanted = (jax.jit(lambda f=f: {name: of(f) for name, of in derivatives.items()})() for f in (ours, plain))
    for name in derivatives:
        np.testing.assert_allclose(got[name], wanted[name], rtol=2e-4, atol=1e-5, err_msg=name)


def test_singular_at_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """No element is differentiated beside an identity, nor beside another element where it is alone."""
    for tables in TABLES:
        by_walks(monkeypatch, tables)
        x = jnp.array([3.0, 4.0, 0.0, 2.0])
        op = lambda a, b: jnp.cbrt(a * a * a + b * b * b)  # noqa: E731
        g = jax.grad(lambda x: jnp.sum(jp.reduce_by_index(x, jnp.array([0, 0, 1, 5]), 2, op, identity=0.0)))(x)
        np.testing.assert_allclose(g, [9 / 91 ** (2 / 3), 16 / 91 ** (2 / 3), 1, 0], rtol=1e-6)


@pytest.mark.parametrize("n", [4_000, 400_000])
def test_nothing_is_sorted(n: int) -> None:
    """Of N elements what each met is written, once, and no more."""
    x, index = jnp.zeros(n), jnp.zeros(n, jnp.int32)
    f = lambda x, i: weighed(jp.reduce_by_index(x, i, 100, lambda a, b: a + b + a * b, identity=0))  # noqa: E731
    memory = jax.jit(jax.grad(f)).lower(x, index).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 5.5 * n + 30_000


def root(y: Any) -> Any:
    return jax.lax.while_loop(lambda c: jnp.abs(c * c - y) > 1e-6 * y, lambda c: (c + y / c) / 2, y / 2 + 0.5)


def halved(a: Any, n: Any) -> Any:
    return jax.lax.fori_loop(0, n, lambda _, y: y / 2, a)


@jax.custom_jvp
def one_way(a: Any) -> Any:
    return a * 2


@one_way.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return primals[0] * 2, jax.lax.abs(tangents[0]) * 2  # of a tangent that is positive, as here


FORWARDS: dict[str, tuple[Any, Any]] = {
    "until": (lambda a, b: root(a * a + b * b), lambda a, b: jnp.sqrt(a * a + b * b)),
    "times": (lambda a, b: a + halved(b * 4, jnp.where(b > 1e9, 3, 2)), lambda a, b: a + b),
    "one way": (lambda a, b: a + b + one_way(a * b), lambda a, b: a + b + 2 * a * b),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", FORWARDS)
@pytest.mark.parametrize("of_elements", [False, True])
def test_forward_derivatives_alone(name: str, of_elements: bool) -> None:
    """Where an operator, or what is made of elements, has no others."""
    x = np.linspace(0.5, 1.5, N, dtype=np.float32)

    def call(op: Any) -> Any:
        f = (lambda i, v: (i, op(v, v * 0.5))) if of_elements else lambda i, v: (i, v * 0.1)
        mine = (lambda a, b: a + b + 0.01 * a * b) if of_elements else op
        return lambda x: jp.genhist(f, (INDEX, x), jp.Bins(H, mine, identity=0.0))

    ours, plain = (jax.jvp(call(op), (x,), (x,)) for op in FORWARDS[name])
    assert_close(ours, jax.tree.map(np.asarray, plain), 1e-4)
    with pytest.raises((ValueError, NotImplementedError), match=r"(?i)reverse-mode|transpose"):
        jax.grad(lambda x: jnp.sum(call(FORWARDS[name][0])(x)))(x)


def test_of_no_elements_or_bins() -> None:
    for n, h in ((0, 3), (3, 0)):
        bins = functools.partial(jp.reduce_by_index, num_bins=h, op=lambda a, b: a + b + a * b, identity=0)
        g = jax.grad(lambda x, bins=bins, n=n: jnp.sum(bins(x, jnp.zeros(n, jnp.int32))))(jnp.ones(n))
        np.testing.assert_array_equal(g, np.zeros(n))


# --- the walk itself ----------------------------------------------------------------------------------------------------------


@pytest.mark.cover(2)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bins", [5, 70_000])
@pytest.mark.usefixtures("x64")
def test_kernel_as_plain(bins: int, reverse: bool, dtype: Any) -> None:
    """States of several dtypes and a captured array; of few bins, and of so many that they are fetched ahead."""

    def step(table: Any, count: Any, pair: Any, flag: Any, x: Any, k: Any) -> tuple[Any, ...]:
        return count + 1, pair[::-1] + x * table[k], flag | (x > 0), pair * 2, count, flag

    avals = [((3,), "f4"), ((), "i2"), ((2,), "f8"), ((), "?"), ((), "f8"), ((), "i4")]
    closed = jax.make_jaxpr(step)(*(jax.ShapeDtypeStruct(s, d) for s, d in avals))
    jaxpr = with_arguments(closed.jaxpr, closed.jaxpr.invars[:1], closed.jaxpr.invars[1:])
    rng = np.random.default_rng(1)
    call = Walk(make_traced(jaxpr, to_program(jaxpr)), 3, bins, 3, 2, reverse)
    tables = (6, bins)
    index = rng.integers(-2, bins + 2, 100).astype(dtype)
    operands = [index, rng.normal(size=100), rng.integers(0, 3, 100).astype(np.int32), rng.normal(size=3).astype(np.float32)]
    states = [np.zeros(tables, np.int16), rng.normal(size=(*tables, 2)), np.zeros(tables, bool)]
    got = jax.jit(functools.partial(walk, call))([*operands, *states])
    every = [jnp.asarray(x) for x in (*operands, *states)]
    wanted = family_of(walk_p).plain(*every, call=call, masks=(0,) * len(every), rank=0)
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-12)
