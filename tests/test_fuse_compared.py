"""``fuse``: what is compared with its own extreme is the same to the bit, whoever makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxprims as jp


def loudest(x: Any) -> Any:
    """XLA takes the maximum of logarithms of a recurrence, whose transpose makes them again."""

    def step(e: Any, v: Any) -> Any:
        e = 0.99 * e + 0.01 * v * v
        return e, e

    _, e = jax.lax.scan(step, jnp.float32(0), x)
    return jnp.max(10 * jnp.log10(e + 1e-9)) + jnp.mean(e)


def steepest(x: Any) -> Any:
    """A kernel takes the maximum of a stencil's cells, which XLA makes again, rounding a * b + c once."""
    y = x[1:] - 0.97 * x[:-1]
    return jnp.max(jnp.abs(y)) + jnp.mean(y * y)


@pytest.mark.cover(2)
@pytest.mark.parametrize("order", ["grad of fused", "fused grad"])
@pytest.mark.parametrize("fn", [loudest, steepest])
def test_a_maximum_has_a_gradient(fn: Callable[..., Any], order: str) -> None:
    """It goes where the array equals it; of hundreds of thousands of numbers one that is off by a bit is the maximum soon."""
    compiled = jax.jit(jax.grad(jp.fuse(fn)) if order == "grad of fused" else jp.fuse(jax.grad(fn)))
    for seed in range(6):
        x = jnp.asarray(np.random.default_rng(seed).normal(size=400_000).astype(np.float32))
        got, expected = np.abs(compiled(x)), np.abs(jax.grad(fn)(x))  # one operation at a time: XLA too might make it twice
        np.testing.assert_allclose(got.max(), expected.max(), rtol=1e-2)


DENSITIES: list[Callable[[Any], Any]] = [
    lambda x: jnp.exp(-((x - 0.7) ** 2)) / x,
    lambda x: jnp.log(x) * x + 1.7,
    lambda x: x * x * 0.3 + x * 1.1 - 0.2,
    lambda x: jnp.tanh(x) * jnp.sqrt(x),
]


@pytest.mark.cover(2)
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("extreme", [jnp.max, jnp.min, lambda y: jax.lax.cummax(y, 1)])
def test_a_function_that_is_kept_is_compared_where_it_is_kept(density: Callable[[Any], Any], extreme: Callable[..., Any]) -> None:
    """The derivative makes again what it takes the extreme of, and is given that: rows of a kernel, which are compared by XLA."""

    def row(x: Any, w: Any) -> Any:
        y = density(x) * w
        return jnp.sum(extreme(y[None])) + jnp.sum(jax.scipy.special.erf(y) * x) / len(x)

    fused, plain = (jax.jit(jax.vmap(jax.grad(f, (0, 1)))) for f in (jp.fuse(row), row))
    for seed in range(4):
        x, w = (jnp.asarray(a, jnp.float32) for a in np.random.default_rng(seed).uniform(0.1, 2, (2, 3, 8000)))
        got, expected = fused(x, w), plain(x, w)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(jnp.sum(jnp.abs(a), 1), jnp.sum(jnp.abs(b), 1), rtol=1e-4)
            np.testing.assert_allclose(jnp.max(jnp.abs(a), 1), jnp.max(jnp.abs(b), 1), rtol=1e-3)


@pytest.mark.cover(2)
@pytest.mark.parametrize("density", DENSITIES)
def test_any_comparison_with_an_extreme(density: Callable[[Any], Any]) -> None:
    """One is no less than the maximum, one no greater than the minimum."""

    comparisons: list[Callable[[Any], Any]] = [
        lambda y: y >= y.max(),
        lambda y: y == y.max(),
        lambda y: y <= y.min(),
        lambda y: y <= jnp.sort(y)[0],
    ]
    for x in np.random.default_rng(0).uniform(0.1, 2, (3, 100_003)).astype(np.float32):
        for compared in comparisons:  # each by itself: XLA makes what is returned, and a kernel the extreme
            assert jp.fuse(lambda x, c=compared: c(density(x)))(x).any()


def _is_none(x: Any) -> Any:
    return x != x


STEPS: dict[str, Callable[[Any, Any, Any], tuple[Any, Any]]] = {
    "roots": lambda y, low, high: (_is_none(jnp.sqrt(high - y)), jnp.sqrt(high - y) == 0),
    "scaled roots": lambda y, low, high: (_is_none(jnp.sqrt(0.25 * (y - low))), jnp.sqrt(0.25 * (y - low)) == 0),
    "powers": lambda y, low, high: (_is_none((high - y) ** 0.3), (high - y) ** 0.3 == 0),
    "bins": lambda y, low, high: (jnp.floor((y - low) / (high - low) * 8) < 0, jnp.floor((y - low) / (high - low) * 8) == 0),
    "distances": lambda y, low, high: (_is_none(jnp.log((y - low) / (high - low))), jnp.isinf(jnp.log((y - low) / (high - low)))),
    "signs": lambda y, low, high: (jnp.sign(high - y) < 0, jnp.sign(high - y) == 0),
    "the positive": lambda y, low, high: (jnp.maximum(y, low) > high, jnp.maximum(y, low) >= high),
    "without a few": lambda y, low, high: (jnp.where(y > -1e3, y, low) > high, jnp.where(y > -1e3, y, low) >= high),
}
"""What no number may be, and what one is: of numbers, the least and the greatest of them."""


@pytest.mark.cover(4)
@pytest.mark.strategies
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("density", DENSITIES)
def test_no_number_lies_beyond_its_extremes(density: Callable[[Any], Any], step: str, axis: int | None, summed: bool) -> None:
    """Where a rounding from 0 would be seen, be it by XLA or in a kernel."""

    def found(x: Any) -> Any:
        y = density(x)
        wrong, reached = STEPS[step](y, jnp.min(y, axis, keepdims=True), jnp.max(y, axis, keepdims=True))
        return (jnp.sum(wrong, axis), jnp.sum(reached, axis)) if summed else (wrong, reached)

    xs = np.random.default_rng(0).uniform(0.1, 2, (4, 1000, 100)).astype(np.float32)
    options = {"xla_backend_optimization_level": 3}  # as by default, not as these tests have it: so it rounds as kernels do
    compiled = jax.jit(jp.fuse(found)).lower(xs[0]).compile(options)
    for x in xs:
        wrong, reached = map(np.asarray, compiled(x))
        assert not wrong.any()
        assert (reached > 0).all() if summed else reached.any(axis).all()


@pytest.mark.cover(3)
@pytest.mark.parametrize("density", DENSITIES)
def test_records_are_found(density: Callable[[Any], Any]) -> None:
    """One that sets a record is no less than the maximum so far, which a kernel takes of what XLA makes."""

    def records(x: Any) -> Any:
        y = density(x)
        return y >= jax.lax.cummax(y)

    for x in np.random.default_rng(0).uniform(0.1, 2, (4, 100_003)).astype(np.float32):
        np.testing.assert_array_equal(jax.jit(jp.fuse(records))(x), jax.jit(records)(x))


@pytest.mark.cover(3)
@pytest.mark.strategies
@pytest.mark.parametrize("density", DENSITIES)
def test_records_beside_their_neighbours_are_found(density: Callable[[Any], Any]) -> None:
    """Where the running maximum rises there is a record: shifted slices, of which a stencil's reduction could be made."""

    def missed(x: Any) -> Any:
        y = density(x)
        best = jax.lax.cummax(y)
        rises = jnp.concatenate([jnp.ones(1, bool), best[1:] > best[:-1]])
        return jnp.sum(rises & (best != y))

    for x in np.random.default_rng(0).uniform(0.1, 2, (4, 200_003)).astype(np.float32):
        assert jax.jit(jp.fuse(missed))(x) == 0


@pytest.mark.cover(1)
@pytest.mark.strategies
@pytest.mark.parametrize("order", ["grad of fused", "fused grad"])
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.dear
def test_records_beside_a_gradient_are_found(density: Callable[[Any], Any], order: str) -> None:
    """The derivative of a running maximum makes it by halves: maxima of slices, which are extremes as well."""

    def loss(x: Any) -> tuple[Any, Any]:
        y = density(x)
        best = jax.lax.cummax(y)
        rises = jnp.concatenate([jnp.ones(1, bool), best[1:] > best[:-1]])
        return jnp.sum(best * x), jnp.sum(rises & (best != y))

    program = jax.grad(jp.fuse(loss), has_aux=True) if order == "grad of fused" else jp.fuse(jax.grad(loss, has_aux=True))
    options = {"xla_backend_optimization_level": 3}
    x = np.random.default_rng(0).uniform(0.1, 2, 100_003).astype(np.float32)
    missed = lambda f: jax.jit(f).lower(x).compile(options)(x)[1]  # noqa: E731
    assert missed(program) == 0 or missed(jax.grad(loss, has_aux=True)) > 0


AGREE: dict[str, Callable[[Any], Any]] = {
    "the last of a running maximum": lambda y: jax.lax.cummax(y)[-1] != jnp.max(y),
    "the first of one in reverse": lambda y: jax.lax.cummin(y, reverse=True)[0] != jnp.min(y),
    "the maximum of segments' maxima": lambda y: jnp.max(jax.ops.segment_max(y, jnp.arange(len(y)) % 7, 7)) != jnp.max(y),
    "the last of what is sorted": lambda y: jnp.sort(y)[-1] != jax.lax.cummax(y)[-1],
    "of rows": lambda y: jnp.max(jax.lax.cummax(y[:800].reshape(4, -1), axis=1), 1) != jnp.max(y[:800].reshape(4, -1), 1),
}


@pytest.mark.cover(2)
@pytest.mark.strategies
@pytest.mark.parametrize("n", [1000, 40_003])
@pytest.mark.parametrize("agree", AGREE)
def test_extremes_of_the_same_numbers_agree(agree: str, n: int) -> None:
    """One of them is a kernel's, another XLA's, which rounds a * b + c once."""
    rng = np.random.default_rng(2)
    makers: list[Callable[..., Any]] = [
        lambda x, w: x * w + w * w,
        lambda x, w: jnp.sin(x) * w + 1.7,
        lambda x, w: jnp.exp(-x * x) / (w + 2),
        lambda x, w: x[1:] - w * x[:-1],
    ]
    for make in makers:
        fused = jax.jit(jp.fuse(lambda x, w, make=make: AGREE[agree](make(x, w))))
        for x in rng.normal(size=(6, n)).astype(np.float32):
            assert not np.any(fused(x, np.float32(rng.uniform(0.5, 2))))


def row_extremes(y: Any) -> tuple[Any, Any]:
    return jnp.max(y, 1, keepdims=True), jnp.min(y, 1, keepdims=True)


MISSED: dict[str, Callable[[Any], Any]] = {
    "greater": lambda y: y > row_extremes(y)[0],
    "both": lambda y: (jnp.sum(y == row_extremes(y)[0], 1) < 1) | (jnp.sum(y == row_extremes(y)[1], 1) < 1),
    "clipped": lambda y: jnp.minimum(y, row_extremes(y)[0]) != y,
    "the greater of both": lambda y: jnp.maximum(y, row_extremes(y)[0]) != row_extremes(y)[0],
    "roots": lambda y: jnp.isnan(jnp.sqrt(row_extremes(y)[0] - y)),
}
BESIDE: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda y: 0.0,
    "sines": lambda y: jnp.sum(jnp.sin(y)),
    "logsumexp": lambda y: jnp.sum(jax.nn.logsumexp(y, 1) * y.max(1)),
    "normalised": lambda y: jnp.sum(jax.nn.softmax(y, 1) * jnp.max(y, 1, keepdims=True), 1),
}
ROWS: list[Callable[..., Any]] = [
    lambda x, w: x * w + 1.7,
    lambda x, w: jnp.sin(x) * w - x,
    lambda x, w: jax.nn.gelu(x) * w + w,
    lambda x, w: (x - jnp.mean(x, 1, keepdims=True)) * w + 0.3,  # made of a row's own mean
]


@pytest.mark.cover(2)
@pytest.mark.strategies
@pytest.mark.parametrize("shape", [(300, 128), (40, 3000)])
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("missed", MISSED)
def test_extremes_of_rows_are_found(missed: str, beside: str, shape: tuple[int, int]) -> None:
    """A function of rows makes the extremes, and maybe the rest; XLA or another kernel compares."""
    rng = np.random.default_rng(5)
    for make in ROWS:

        def fn(x: Any, w: Any, make: Callable[..., Any] = make) -> Any:
            y = make(x, w)
            return jnp.sum(MISSED[missed](y)), BESIDE[beside](y)

        x, w = rng.normal(size=(2, *shape)).astype(np.float32)
        assert jax.jit(jp.fuse(fn))(x, w)[0] == 0
        assert jax.jit(fn)(x, w)[0] == 0


FLAT: dict[str, Callable[[Any], Any]] = {
    "sines": jnp.sin,
    "saturated": lambda x: jnp.tanh(4 * x),
    "a parabola": lambda x: x * x * 0.3 - (x - 0.5) ** 2,
    "a bell": lambda x: x * jnp.exp(-x * x),
    "roots": lambda x: jax.lax.rsqrt(1 + x * x),
    "divided": lambda x: jnp.round(x * 1000) / 7,
    "neighbours": lambda x: jnp.sin(x[1:] - 0.3 * x[:-1]),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("n", [3001, 200_000])
@pytest.mark.parametrize("flat", FLAT)
def test_positions_are_those_of_xla(flat: str, n: int) -> None:
    """Of many that are nearly the greatest, the same one; whether it is alone, one of several results, or of each row."""

    def positions(x: Any) -> Any:
        y = FLAT[flat](x)
        return jnp.argmax(y), (jnp.argmin(y), jnp.argmax(y), jnp.mean(y * y))[:-1], jnp.argmax(y[: n // 5 * 4].reshape(4, -1), 1)

    alone = [lambda x: jnp.argmax(FLAT[flat](x)), positions]
    for fn in alone:
        plain, fused = jax.jit(fn), jax.jit(jp.fuse(fn))
        for x in np.random.default_rng(0).normal(size=(6, n)).astype(np.float32):
            jax.tree.map(np.testing.assert_array_equal, fused(x), plain(x))


NEAREST: list[Callable[..., Any]] = [
    lambda p, c: jnp.sum((p[:, None] - c) ** 2, -1),
    lambda p, c: jnp.sum(jnp.log1p((p[:, None] - c) ** 2), -1),
    lambda p, c: jnp.exp(-jnp.sum((p[:, None] - c) ** 2, -1) * 0.3),
]


@pytest.mark.cover(2)
@pytest.mark.strategies
@pytest.mark.parametrize("order", ["grad of fused", "fused grad"])
@pytest.mark.parametrize("extreme", [jnp.min, jnp.max])
@pytest.mark.parametrize("distance", NEAREST)
def test_extremes_of_a_few_are_compared_where_they_are_made(
    distance: Callable[..., Any], extreme: Callable[..., Any], order: str
) -> None:
    """A kernel that makes both has no use for XLA's bits, which are in an array of all pairs; every element has a gradient."""
    rng = np.random.default_rng(4)
    points, centres = (jnp.asarray(rng.normal(size=(n, 2)).astype(np.float32)) for n in (50_000, 16))
    fn = lambda p, c: jnp.mean(extreme(distance(p, c), 1))  # noqa: E731
    program = jax.grad(jp.fuse(fn)) if order == "grad of fused" else jp.fuse(jax.grad(fn))
    compiled = jax.jit(program).lower(points, centres).compile()
    if order == "fused grad" or distance is not NEAREST[1]:  # whose logarithms are kept for the derivative
        assert compiled.memory_analysis().temp_size_in_bytes < points.size * 4 * 4  # and not 16 numbers for each
    wanted = jax.jit(jax.grad(fn))(points, centres)
    np.testing.assert_allclose(compiled(points, centres), wanted, rtol=2e-4, atol=1e-9)


@pytest.mark.parametrize(("op", "f"), [(jnp.minimum, jnp.exp), (jnp.maximum, lambda x: jnp.tanh(x) + 0.95)])
def test_the_greater_of_two(op: Callable[..., Any], f: Callable[[Any], Any]) -> None:
    """Its gradient goes where it is the number itself, which a stencil would make again of what XLA has made for a loop."""

    def loss(x: Any, y: Any, z: Any) -> Any:
        weight = op(1.0, f(0.1 * x))
        steps = weight * (z + 0.9 * jnp.concatenate([y[1:], y[-1:]]) - y)
        first = jnp.zeros(x.shape[1])
        back = jax.lax.scan(lambda c, s: ((s[0] + 0.9 * s[1] * c),) * 2, first, (steps, weight), reverse=True)[1]
        return jnp.sum(jnp.sin(back + y)) + jnp.sum(jnp.sin(weight * (z + 0.9 * jnp.concatenate([y[1:], y[-1:]]) - y)))

    given = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3000, 32)), jnp.float32)
    plain = np.asarray(jax.jit(jax.grad(loss))(*given))
    assert np.abs(jax.jit(jp.fuse(jax.grad(loss)))(*given) - plain).max() < 1e-3


@pytest.mark.cover(4)
@pytest.mark.parametrize("order", ["grad of fused", "fused grad"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("last", [lambda y: jnp.abs(y.astype(jnp.float32)), lambda y: y])
def test_arguments_that_are_products(last: Callable[[Any], Any], dtype: Any, order: str) -> None:
    """XLA makes them in the loop that compares, where x * t - y is rounded once; a kernel reads x * t."""

    def top(x: Any, y: Any) -> Any:
        return jnp.max(last(x - y))

    gradient = jax.grad(jp.fuse(top)) if order == "grad of fused" else jp.fuse(jax.grad(top))
    compiled = jax.jit(lambda x, y, t: gradient(x * t, y))
    for seed in range(6):
        x, y = jnp.asarray(np.random.default_rng(seed).normal(size=(2, 50_000)), dtype)
        got = np.abs(np.asarray(compiled(x, y, dtype(1.02)), np.float32))
        assert got.sum() == 1


def test_arguments_of_a_program_are_not_held() -> None:
    """They lie in memory, rounded: nothing is copied."""
    x, y = jnp.asarray(np.random.default_rng(0).normal(size=(2, 50_000)), jnp.float32)
    compiled = jax.jit(jp.fuse(jax.grad(lambda x, y: jnp.max(x - y)))).lower(x, y).compile()
    assert "held" not in compiled.as_text()
    assert compiled.memory_analysis().temp_size_in_bytes < 1000


COMPLEX: list[Callable[[Any], Any]] = [
    jnp.abs,
    lambda z: jnp.abs(z * z),
    lambda z: jnp.real(z * jnp.conj(z)),
    lambda z: jnp.abs(z / (z + 3)),
    lambda z: jnp.imag(jnp.sqrt(z)),
    lambda z: jnp.real(jnp.sign(z) * z),
    lambda z: jnp.abs(jnp.tanh(z)),
]


@pytest.mark.cover(2)
@pytest.mark.parametrize("order", ["grad of fused", "fused grad"])
@pytest.mark.parametrize("shape", [(3000, 3), (300, 40), (20_003,)])
@pytest.mark.parametrize("size", COMPLEX)
def test_complex_numbers_of_the_greatest_size(size: Callable[[Any], Any], shape: tuple[int, ...], order: str) -> None:
    """Products, quotients, roots and absolute values of these are several operations each, rounded in more than one way."""
    parts = np.random.default_rng(3).normal(size=(2, *shape)).astype(np.float32)
    z = jnp.asarray(parts[0] + 1j * parts[1])

    def greatest(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda z: jnp.sum(f(z))

    def f(z: Any) -> Any:
        return jnp.max(size(z), -1)

    gradient = jax.grad(greatest(jp.fuse(f))) if order == "grad of fused" else jp.fuse(jax.grad(greatest(f)))
    got, expected = jax.jit(gradient)(z), jax.grad(greatest(f))(z)
    np.testing.assert_array_equal(jnp.any(got != 0, -1), jnp.any(expected != 0, -1))
