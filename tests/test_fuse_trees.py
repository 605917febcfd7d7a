"""``lax.associative_scan`` in a fused function: a scan, not the tree of slices that it is traced to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import same
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxprims as jp
from jaxprims.fusion.call import Fused

RNG = np.random.default_rng(0)


def _array(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape) * 0.7, jnp.float32)


def _affine(p: Any, q: Any) -> Any:
    return p[0] * q[0], q[0] * p[1] + q[1]


def _affine_of_matrices(p: Any, q: Any) -> Any:
    return jnp.einsum("nij,njk->nik", q[0], p[0]), jnp.einsum("nij,nj->ni", q[0], p[1]) + q[1]


def _greater(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where(jnp.abs(a) > jnp.abs(b), a, b)


def _names(fn: Callable[..., Any], *args: Any) -> set[str]:
    """Of all that is done."""
    jaxpr = Fused(jax.make_jaxpr(fn)(*args)).graph.jaxpr
    return {e.primitive.name for e in jaxpr.eqns}


def _is_found(fn: Callable[..., Any], *args: Any) -> bool:
    return not _names(fn, *args) & {"slice", "pad", "concatenate"}


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "sum": (lambda x: lax.associative_scan(jnp.add, x), lambda n: (_array(n),)),
    "product in rows": (lambda x: lax.associative_scan(jnp.multiply, x, axis=1), lambda n: (_array(3, n),)),
    "maximum, backwards": (lambda x: lax.associative_scan(jnp.maximum, x, reverse=True, axis=1), lambda n: (_array(2, n, 3),)),
    "logaddexp": (lambda x: lax.associative_scan(jnp.logaddexp, x, axis=-1), lambda n: (_array(4, n),)),
    "any operator": (lambda x: lax.associative_scan(_greater, x), lambda n: (_array(n, 4),)),
    "bits": (lambda x: lax.associative_scan(jnp.bitwise_or, x > 1), lambda n: (_array(n),)),
    "integers": (lambda x: lax.associative_scan(jnp.add, (x * 9).astype(jnp.int32)), lambda n: (_array(n),)),
    "affine": (lambda a, b: lax.associative_scan(_affine, (a, b)), lambda n: (_array(n, 3), _array(n, 3))),
    "affine, one half": (lambda a, b: lax.associative_scan(_affine, (a, b))[1], lambda n: (_array(n), _array(n))),
    "matrices": (lambda m: lax.associative_scan(jnp.matmul, m), lambda n: (_array(n, 2, 2),)),
    "states": (lambda m, v: lax.associative_scan(_affine_of_matrices, (m, v))[1], lambda n: (_array(n, 2, 2), _array(n, 2))),
    "of a batch": (jax.vmap(lambda a, b: lax.associative_scan(_affine, (a, b))[1]), lambda n: (_array(2, n), _array(2, n))),
    "with a captured array": (lambda x, w: lax.associative_scan(lambda a, b: a + b + w, x), lambda n: (_array(n, 3), _array(3))),
    "of what is made": (lambda x: lax.associative_scan(jnp.add, jnp.sin(x) * 2) + 1, lambda n: (_array(n),)),
}


@pytest.mark.parametrize("count", [8, 11, 14, 300])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_a_scan(name: str, count: int) -> None:
    fn, make = PROGRAMS[name]
    args = make(count)
    assert _is_found(fn, *args)
    out, wanted = jax.jit(jp.fuse(fn))(*args), jax.jit(fn)(*args)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5), out, wanted)
    assert jax.tree.map(jax.typeof, out) == jax.tree.map(jax.typeof, wanted)


@pytest.mark.parametrize("count", [1, 3, 7])
@pytest.mark.parametrize("name", PROGRAMS)
def test_few_elements(name: str, count: int) -> None:
    fn, make = PROGRAMS[name]
    args = make(count)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6), jp.fuse(fn)(*args), fn(*args))


@pytest.mark.parametrize("name", ["product in rows", "logaddexp", "any operator", "affine", "affine, one half", "states"])
@pytest.mark.parametrize("around", ["grad of fused", "fused grad", "jvp", "second", "vmap"])
def test_derivatives(name: str, around: str) -> None:
    fn, make = PROGRAMS[name]
    args = make(19)

    def loss(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *xs: sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(f(*xs)))

    def of(f: Callable[..., Any], fused: Callable[..., Any]) -> Any:
        every = tuple(range(len(args)))
        if around == "grad of fused":
            return jax.grad(loss(fused), every)(*args)
        if around == "fused grad":
            return (jax.grad(loss(f), every) if fused is f else jp.fuse(jax.grad(loss(f), every)))(*args)
        if around == "jvp":
            return jax.jvp(loss(fused), args, args)
        if around == "second":
            return jax.jvp(jax.grad(loss(fused), every), args, args)[1]
        return jax.vmap(loss(fused))(*(jnp.stack([x, x / 2]) for x in args))

    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=3e-4, atol=3e-4), of(fn, jp.fuse(fn)), of(fn, fn))


def test_derivatives_are_scans() -> None:
    """The trees of JAX's own rules are none either."""
    x = _array(40, 300)
    for fn in (
        lambda x: lax.cumlogsumexp(x, 1),
        lambda x: lax.cumprod(x, 1),
        lambda x: lax.associative_scan(_affine, (x, x + 1))[1],
    ):
        gradient = jax.make_jaxpr(jax.grad(lambda x, fn=fn: jnp.sum(jp.fuse(fn)(x) ** 2)))(x)
        parts = [Fused(e.params["jaxpr"]).graph.jaxpr for e in gradient.eqns if e.primitive.name == "fused"]
        assert parts
        for jaxpr in parts:
            assert sum(e.primitive.name == "pad" for e in jaxpr.eqns) < 4


@pytest.mark.parametrize("count", [8, 13, 40])
def test_gradients_in_the_function_are_scans(count: int) -> None:
    x = _array(3, count)

    def both(a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.associative_scan(_affine, (jnp.exp(-jnp.abs(a)), b), axis=1)[1]

    for fn in (lambda x, y: lax.cumlogsumexp(x, 1), lambda x, y: lax.cumprod(x + y, 1), both, lambda x, y: both(x, y) * x):

        def loss(x: jax.Array, y: jax.Array, fn: Callable[..., Any] = fn) -> jax.Array:
            return jnp.sum(fn(x, y) ** 2 * jnp.cos(x))

        gradient = jax.grad(loss, (0, 1))
        names = [e.primitive.name for e in Fused(jax.make_jaxpr(gradient)(x, x + 1)).graph.jaxpr.eqns]
        assert sum(name == "pad" for name in names) < 6
        out, wanted = jax.jit(jp.fuse(gradient))(x, x + 1), jax.jit(gradient)(x, x + 1)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4), out, wanted)


def test_gradients_of_a_batch_are_scans() -> None:
    x = _array(3, 20)
    gradient = jax.vmap(jax.grad(lambda a, b: jnp.sum(lax.associative_scan(_affine, (a, b))[1] ** 2), (0, 1)))
    names = [e.primitive.name for e in Fused(jax.make_jaxpr(gradient)(x, x + 1)).graph.jaxpr.eqns]
    assert sum(name == "pad" for name in names) < 6
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4), jp.fuse(gradient)(x, x + 1), gradient(x, x + 1)
    )


def test_ties_are_divided_as_by_jax() -> None:
    x = jnp.zeros(12)
    for around in (lambda f: jp.fuse(jax.grad(f)), lambda f: jax.grad(jp.fuse(f))):
        for scanned in (lambda x: lax.associative_scan(jnp.maximum, x), lambda x: lax.cummax(x)):

            def loss(x: jax.Array, scanned: Callable[..., Any] = scanned) -> jax.Array:
                return jnp.sum((scanned(x) + 1) ** 2 * jnp.arange(12.0))

            np.testing.assert_allclose(around(loss)(x), jax.grad(loss)(x), rtol=1e-6)


def test_zeros_in_a_product() -> None:
    x = jnp.array([2.0, 0.0, 3.0, 4.0, 0.0, 5.0, 1.5, 2.0, 1.0])
    for fn in (lax.cumprod, lambda x: lax.associative_scan(jnp.multiply, x)):
        wanted = jax.grad(lambda x, fn=fn: jnp.sum(fn(x) * jnp.arange(9.0)))(x)
        np.testing.assert_allclose(jax.grad(lambda x, fn=fn: jnp.sum(jp.fuse(fn)(x) * jnp.arange(9.0)))(x), wanted, rtol=1e-6)


# --- what is none ---------------------------------------------------------------------------------------------------------------


def _by_hand(combine: Callable[[int, Any, Any], Any], x: jax.Array, depth: int = 0, behind: int = 2) -> jax.Array:
    """As ``lax.associative_scan`` does it, by another function at each level."""
    n = x.shape[0]
    if n < 2:
        return x
    odd = _by_hand(combine, combine(depth, x[: n - 1 : 2], x[1::2]), depth + 1, behind)
    rest = combine(depth, odd[:-1] if n % 2 == 0 else odd, x[behind::2][: (n - 1) // 2])
    even = jnp.concatenate([x[:1], rest])
    zero = jnp.zeros((), x.dtype)
    high = 0 if n % 2 == 0 else 1
    return lax.pad(even, zero, [(0, 1 - high, 1)]) + lax.pad(odd, zero, [(1, high, 1)])


@pytest.mark.parametrize("count", [8, 11, 13, 16])
def test_trees_of_other_functions_are_none(count: int) -> None:
    x = _array(count)
    alike: Callable[..., Any] = lambda x: _by_hand(lambda _, a, b: a + b, x)  # noqa: E731
    assert _is_found(alike, x)
    np.testing.assert_allclose(jp.fuse(alike)(x), jnp.cumsum(x), rtol=1e-5, atol=1e-6)
    for other in (
        lambda x: _by_hand(lambda depth, a, b: a + b if depth < 2 else a - b, x),
        lambda x: _by_hand(lambda depth, a, b: a + b * (1 + depth), x),
        lambda x: _by_hand(lambda _, a, b: a + b, x, behind=1),
        lambda x: _by_hand(lambda _, a, b: a + b + x[0], x),
        lambda x: _by_hand(lambda _, a, b: a + b[::-1], x),
        lambda x: _by_hand(lambda _, a, b: a + b * jnp.arange(a.shape[0]), x),
        lambda x: _by_hand(lambda _, a, b: jnp.ones_like(a), x),
        lambda x: _by_hand(lambda _, a, b: a + b if len(a) > 1 else a * b, x),
    ):
        np.testing.assert_allclose(jax.jit(jp.fuse(other))(x), jax.jit(other)(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", [lambda a, b: a * 0.5 + b, lambda a, b: a - b, lambda a, b: jnp.sin(a + b)])
def test_functions_that_are_not_associative_keep_their_trees(op: Callable[..., Any]) -> None:
    x = _array(37, 3)
    np.testing.assert_allclose(
        jp.fuse(lambda x: lax.associative_scan(op, x))(x), lax.associative_scan(op, x), rtol=1e-5, atol=1e-5
    )


def test_what_others_want_of_it_stays() -> None:
    """A tree of which somebody reads the middle is made."""
    x = _array(32)

    def both(x: jax.Array) -> Any:
        pairs = x[:-1:2] + x[1::2]
        return lax.associative_scan(jnp.add, x), pairs

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), jp.fuse(both)(x), both(x))


def test_one_behind_the_other() -> None:
    x = _array(50, 3)

    def fn(x: jax.Array) -> Any:
        y = lax.associative_scan(jnp.add, x)
        return lax.associative_scan(lambda a, b: a + b * y.mean(), jnp.maximum(y, x)), lax.associative_scan(jnp.minimum, y)

    def in_order(x: jax.Array) -> Any:
        return lax.associative_scan(jnp.minimum, lax.associative_scan(jnp.add, x))

    assert _is_found(in_order, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), jp.fuse(in_order)(x), in_order(x))
    np.testing.assert_allclose(jp.fuse(fn)(x)[1], fn(x)[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [8, 13])
def test_of_the_same_leaves(count: int) -> None:
    """Several trees of the same arrays; one of whose leaves is another's result; and one whose leaves are the same array."""
    a, b = _array(count), _array(count)

    def three(a: jax.Array, b: jax.Array) -> Any:
        product = lax.associative_scan(jnp.multiply, a)
        return lax.associative_scan(jnp.add, a), product, lax.associative_scan(_affine, (a, b))

    def behind(a: jax.Array, b: jax.Array) -> Any:
        return lax.associative_scan(_affine, (a, jnp.sin(lax.associative_scan(jnp.multiply, a)) + b))

    def same(a: jax.Array, _: jax.Array) -> Any:
        return lax.associative_scan(_affine, (a, a))

    assert _is_found(three, a, b)
    for fn in (three, behind, same):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), jp.fuse(fn)(a, b), fn(a, b))


def test_in_loops_and_branches() -> None:
    a, b = _array(64), _array(64)

    def fn(a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 3, lambda _, s: lax.associative_scan(_affine, (a, s))[1] * 0.5, b)

    np.testing.assert_allclose(jp.fuse(fn)(a, b), fn(a, b), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spec", [PartitionSpec("d"), PartitionSpec(None, "d")])
def test_on_several_devices(spec: PartitionSpec) -> None:
    mesh = Mesh(np.array(jax.devices()[:8]), "d")
    a, b = (jax.device_put(_array(64, 8), NamedSharding(mesh, spec)) for _ in range(2))
    fn = PROGRAMS["affine, one half"][0]
    np.testing.assert_allclose(jax.jit(jp.fuse(fn))(a, b), fn(a, b), rtol=1e-4, atol=1e-5)


def test_sums_that_wrap_before_their_remainder() -> None:
    """Associative for small numbers alone."""
    x = jnp.arange(3000).astype(jnp.uint8)
    fn = lambda x: lax.associative_scan(lambda a, b: (a + b) % jnp.uint8(200), x)  # noqa: E731
    same(fn(x), jp.fuse(fn)(x))
