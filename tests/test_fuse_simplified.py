"""``fuse``: arithmetic in the form that XLA gives it, so that integers that are made of it are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import same
from jax import lax
from jax.extend.core import ClosedJaxpr

import jaxprims as jp
from jaxprims.fusion.graph import flat_graph
from jaxprims.fusion.simplified import _xla_combines, simplified
from jaxprims.targets.cpu.llvm.engine import target

N = 300_000
X = jnp.asarray(np.random.default_rng(0).normal(size=N).astype(np.float32))

FORMS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "a constant below": (lambda x: x / 7, 0),
    "constants in turn": (lambda x: x / 7 * 300, 0),
    "sums in turn": (lambda x: x + 0.1 - 0.3, 0),
    "one for all": (lambda x: x / x[3], 1),
    "one for a row": (lambda x: x.reshape(-1, 100) / x[:3000, None], 1),
    "powers": (lambda x: x**2.0 + x**3.0, 0),
    "a power's derivative": (jax.vmap(jax.grad(lambda x: x**3.0)), 0),
    "each its own": (lambda x: x / (1 + x * x), 1),
    "above a constant": (lambda x: 3 / (x * 2), 1),
    "nothing below": (lambda x: x / 0.0, 0),
    "a mask": (lambda x: x * (x > 0), 0),
    "a mask, and nothing below": (lambda x: (x > 0).astype(x.dtype) / 0.0, 0),
    "a mask, and what is infinite": (lambda x: (x > 0).astype(x.dtype) * np.inf * 2, 0),
    "a mask of rows": (lambda x: x.reshape(-1, 100) * (x[:3000] > 0)[:, None], 0),
    "what does not fit": (lambda x: x * lax.convert_element_type(jnp.full(N, 300.7), np.int8).astype(x.dtype), 0),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    """Quotients that are left, and results to the bit."""
    fn, quotients = FORMS[name]
    closed = jax.make_jaxpr(fn)(X)
    made = simplified(flat_graph(closed)) or closed
    left = [e.outvars[0].aval.size for e in flat_graph(made).eqns if e.primitive.name == "div"]
    assert len(left) == quotients and (name in ("each its own", "above a constant") or max(left, default=0) < N)
    np.testing.assert_array_equal(jax.jit(jax.extend.core.jaxpr_as_fun(made))(X)[0], jax.jit(fn)(X))


def test_what_is_one_number_is_no_reduction() -> None:
    def fn(x: Any) -> Any:
        row = x[None]
        return jnp.sum(row, 0), jnp.max(row, 0), jnp.tensordot(x[0], x, 0), jnp.sum(x[:0])

    made = simplified(flat_graph(jax.make_jaxpr(fn)(X)))
    assert made is not None
    left = [e.primitive.name for e in made.jaxpr.eqns if e.primitive.name.startswith(("reduce", "dot"))]
    assert left == ["reduce_sum"]  # of nothing
    for a, b in zip(jax.jit(jax.extend.core.jaxpr_as_fun(made))(X), jax.jit(fn)(X), strict=True):
        np.testing.assert_array_equal(a, b)


LAST: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "of rows": (lambda x: jnp.cumsum(x, 1)[:, -1] / 3, ["reduce_sum"]),
    "of some rows": (lambda x: jnp.cumsum(x, 1)[5:90, -1:], ["reduce_sum"]),
    "the other way": (lambda x: lax.cumsum(x, 0, reverse=True)[0], ["reduce_sum"]),
    "of products": (lambda x: jnp.cumprod(x, 1)[:, -1], ["reduce_prod"]),
    "of what all is wanted": (lambda x: [c := jnp.cumsum(x, 1), c[:, -1]], ["cumsum"]),
    "another": (lambda x: jnp.cumsum(x, 1)[:, -2], ["cumsum"]),
    "a derivative": (jax.grad(lambda x: (jnp.sin(jnp.cumsum(x, 1)[:, -1]) ** 2).sum()), ["reduce_sum"]),
    "another's": (jax.grad(lambda x: (jnp.sin(jnp.cumsum(x, 1)[:, -2]) ** 2).sum()), ["cumsum", "cumsum"]),
}


@pytest.mark.parametrize("name", LAST)
def test_the_last_of_what_is_cumulative(name: str) -> None:
    """It is a reduction, and its derivative the same for all; XLA makes no more of it either."""
    fn, wanted = LAST[name]
    x = X[:1200].reshape(100, 12)
    graph = flat_graph(jax.make_jaxpr(fn)(x))
    made = simplified(graph) or ClosedJaxpr(graph.jaxpr, graph.consts)
    names = [e.primitive.name for e in flat_graph(made).eqns]
    assert [n for n in names if n.startswith(("cum", "reduce"))] == wanted
    same(jax.jit(jax.extend.core.jaxpr_as_fun(made))(x), jax.tree.leaves(jax.jit(fn)(x)), rtol=1e-5)


@pytest.mark.cover(23)
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2), ()])
@pytest.mark.parametrize("shape", [(0, 5, 1), (5, 0, 1), (1, 0, 0), (1, 1, 1), (4, 1, 5)])
def test_reductions_of_one_number_are_along_axes_of_one(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Not of nothing, of which there are as many numbers before as after."""

    def fn(x: Any) -> Any:
        return jnp.sum(x + 1, axes), jnp.prod(x * 2, axes, keepdims=True), jnp.any(x > 0, axes)

    x = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)
    made = simplified(flat_graph(jax.make_jaxpr(fn)(x)))
    assert (made is None) == any(shape[axis] != 1 for axis in axes)
    if made is not None:
        for a, b in zip(jax.jit(jax.extend.core.jaxpr_as_fun(made))(x), jax.jit(fn)(x), strict=True):
            np.testing.assert_array_equal(a, b)


BINS: dict[str, Callable[[Any], Any]] = {
    "a width": lambda x: jnp.floor(x / 0.1) + 50,
    "a width and a number of bins": lambda x: x / 7 * 300 + 50,
    "between extremes": lambda x: (x - x.min()) / (x.max() - x.min()) * 100,
    "of rows": lambda x: (x.reshape(-1, 100) / jnp.abs(x.reshape(-1, 100)).max(1, keepdims=True) * 50).ravel() + 50,
    "twice shifted": lambda x: (x + 0.1 + 2.3) * 20,
    "four constants": lambda x: x / 2 * 0.77 / 3 * 170,
    "a difference below": lambda x: (x + 3) / 2 * 17,
    "shifted four times": lambda x: (x + 1.39 - 5.53 + 4.19 + 2.31) * 20,
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16], ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", BINS)
def test_counts_are_those_of_xla(name: str, dtype: Any) -> None:
    def counts(x: Any) -> Any:
        index = jnp.clip(BINS[name](x).astype(jnp.int32), 0, 100)
        return jnp.zeros(101, jnp.int32).at[index].add(1), jnp.sum(index), jnp.max(index)

    if dtype is not jnp.float32 and jax.default_backend() != "cpu":
        pytest.skip("XLA rounds no halves between operations there")
    plain, fused = jax.jit(counts), jax.jit(jp.fuse(counts))
    # what XLA writes for the kernel is rounded, where it may add to it unrounded in a loop of its own
    few = N / 100 if name == "of rows" and dtype is jnp.float16 and target().half_arithmetic else 0
    for x in np.random.default_rng(1).normal(size=(4, N)):
        (got, *others), (wanted, *wanted_others) = fused(jnp.asarray(x, dtype)), plain(jnp.asarray(x, dtype))
        assert np.sum(np.abs(got - wanted)) <= few
        np.testing.assert_allclose(others, wanted_others, atol=few)


@pytest.mark.parametrize("spread", [False, True])
def test_a_mask_of_rows_leaves_what_is_not_finite(spread: bool) -> None:
    """XLA's products with one are no choices."""
    x, mask = X.reshape(-1, 100).at[3, 5].set(jnp.inf), jnp.arange(N // 100) != 3
    for fn in (
        lambda x, m: jnp.sum(x * m, 1),
        lambda x, m: jnp.cumsum(x * m, 1),
        lambda x, m: jax.nn.softmax(x * m)[:, :3],
    ):
        of = lambda x, m, fn=fn: fn(x, jnp.broadcast_to(m[:, None], x.shape) if spread else m[:, None])  # noqa: E731
        same(jax.jit(of)(x, mask), jp.fuse(of)(x, mask))


def test_constants_that_are_flushed() -> None:
    same(
        jax.jit(lambda x: x / np.float32(1e-39))(X),
        jax.jit(jp.fuse(lambda x: jnp.cumsum(x)[:0].sum() + x / np.float32(1e-39)))(X),
    )


def test_powers_of_complex_numbers() -> None:
    z = X[:5000] + 1j
    same(jax.jit(lambda z: jnp.sum(jnp.power(z, 2.0)))(z), jp.fuse(lambda z: jnp.sum(jnp.power(z, 2.0)))(z), 1e-3)


def test_constants_are_combined_while_something_is_traced() -> None:
    """Whether XLA combines them may be asked first where a function stays, as in ``shard_map`` and beside effects."""
    asked = []
    _xla_combines.cache_clear()
    jax.eval_shape(lambda x: [asked.append(_xla_combines()), x][1], 1.0)
    _xla_combines.cache_clear()
    assert asked == [_xla_combines()]


def test_gradients_of_a_difference() -> None:
    """What is returned negated is not made again for what is made of it; signs of zeros stay."""
    rows = X[:60_000].reshape(120, 500)

    def loss(f: Any, c: Any) -> Any:
        return jnp.sum(jnp.tanh(jax.scipy.special.logsumexp(f - c, 1)))

    grad = jax.grad(loss, (0, 1))
    made = simplified(flat_graph(jax.make_jaxpr(grad)(rows[0], rows)))
    assert made is not None
    of_returned = {e.outvars[0] for e in made.jaxpr.eqns if e.invars and e.invars[0] is made.jaxpr.outvars[1]}
    assert any(v in of_returned for e in made.jaxpr.eqns if e.primitive.name == "reduce_sum" for v in e.invars)
    for want, got in zip(jax.jit(grad)(rows[0], rows), jp.fuse(grad)(rows[0], rows), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)

    def both(x: Any) -> Any:
        y = jnp.abs(x) * 0
        return -y, jnp.sum(jnp.signbit(y)), 1 / y

    for want, got in zip(both(X[:5000]), jp.fuse(both)(X[:5000]), strict=True):
        np.testing.assert_array_equal(np.asarray(got).view(np.int32), np.asarray(want).view(np.int32))
