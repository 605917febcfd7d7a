"""``fuse``: functions that XLA calls for one number after the other are kernels, with what is elementwise around them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused import kernels, same
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import assert_no_communication, mesh

import jaxprims as jp
from jaxprims.fusion.body import MOST_TAKEN
from jaxprims.fusion.pays import FEWEST_MAPPED

RNG = np.random.default_rng(0)
N = 9000


def numbers(dtype: Any = np.float32, n: int = N) -> Any:
    return jnp.asarray(RNG.uniform(0.1, 0.9, n)).astype(dtype)


FUNCTIONS: dict[str, tuple[Callable[..., Any], bool | None]] = {  # is it a map? None: of f64
    "sin": (jnp.sin, True),
    "cos": (jnp.cos, True),
    "tan": (jnp.tan, True),
    "asin": (jnp.arcsin, True),
    "acos": (jnp.arccos, True),
    "atan": (jnp.arctan, True),
    "atan2": (lambda x: jnp.arctan2(x, 2 - x), True),
    "cbrt": (jnp.cbrt, True),
    "sinh": (jnp.sinh, True),
    "cosh": (jnp.cosh, None),
    "power": (lambda x: x ** (x + 1), True),
    "remainder": (lambda x: lax.rem(x, x.dtype.type(0.7)), True),
    "lgamma": (lax.lgamma, True),
    "digamma": (lax.digamma, True),
    "log": (jnp.log, None),
    "log1p": (jnp.log1p, None),
    "expm1": (jnp.expm1, None),
    "erf": (lax.erf, None),
    "asinh": (jnp.arcsinh, None),
    "acosh": (lambda x: jnp.arccosh(1 + x), None),
    "atanh": (jnp.arctanh, None),
    "exp": (jnp.exp, False),
    "tanh": (jnp.tanh, False),
    "product": (lambda x: x * x + 1, False),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, jnp.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.cover(24)
def test_functions(name: str, dtype: Any) -> None:
    f, mapped = FUNCTIONS[name]
    with jax.enable_x64(dtype == np.float64):
        x = numbers(dtype)
        taken = dtype == np.float64 if mapped is None else mapped
        assert len(kernels(f, x)) == taken
        assert kernels(f, x[: FEWEST_MAPPED - 1]) == []
        rtol = 2e-2 if x.dtype.itemsize == 2 else 1e-5 if dtype == np.float32 else 1e-12
        same(jax.jit(f)(x), jax.jit(jp.fuse(f))(x), rtol)
        same(jax.jit(f)(x[:, None]), jp.fuse(f)(x[:, None]), rtol)


def distance(x: Any, y: Any) -> Any:
    """Along great circles."""
    half = jnp.sin((x - y) / 2) ** 2 + jnp.cos(x) * jnp.cos(y) * jnp.sin(x / 3) ** 2
    return 2 * jnp.arcsin(jnp.sqrt(jnp.clip(half, 0, 1)))


def rotated(x: Any, y: Any) -> Any:
    c, s = jnp.cos(x), jnp.sin(x)
    return c * y - s, s * y + c, s > c, jnp.round(10 * c).astype(jnp.int32)


def with_a_total(x: Any, y: Any) -> Any:
    """What has been added up is wanted by what is made with it: two kernels."""
    s = jnp.sin(x)
    return s / jnp.sum(jnp.sqrt(jnp.abs(s) + 1)) * jnp.cos(y), s


def of_rows(x: Any, y: Any) -> Any:
    turned = jnp.arange(x.shape[0] // 10)[:, None] * 10.0 ** -jnp.arange(5.0)
    a, b = jnp.split(x.reshape(-1, 10), 2, axis=1)
    return jnp.concatenate([a * jnp.cos(turned) - b * jnp.sin(turned), a * jnp.sin(turned) + b], 1) @ y[:10]


def of_complex(x: Any, y: Any) -> Any:
    z = lax.complex(jnp.cos(x), jnp.sin(x))
    return z * y, z.imag + jnp.sin(y)


def stepped(x: Any, y: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, x: x + 0.1 * i * jnp.sin(x) * y, x)


def chosen(x: Any, y: Any) -> Any:
    return lax.cond(x[0] > 0, lambda x: jnp.arctan2(x, y), lambda x: jnp.tan(x), x)


def read_by_index(x: Any, y: Any) -> Any:
    at = jnp.arange(x.shape[0])[::-1] // 2
    return jnp.cbrt(x[at]) * y, jnp.zeros(100).at[at % 100].add(jnp.cos(y))


def apart(x: Any, y: Any) -> Any:
    """Arrays of other lengths, and of the same that nothing has in common."""
    return jnp.sin(x), jnp.cos(y), jnp.tan(jnp.concatenate([x, y])), jnp.sin(jnp.float32(3))


PROGRAMS = [distance, rotated, with_a_total, of_rows, of_complex, stepped, chosen, read_by_index, apart]


@pytest.mark.parametrize("f", PROGRAMS)
def test_programs(f: Callable[..., Any]) -> None:
    x, y = numbers(n=24_000 if f is of_rows else N), numbers(n=24_000 if f is of_rows else N)
    assert any("one kernel" in site for site in jp.explain(jp.fuse(f))(x, y).sites)
    expected = jax.jit(f)(x, y)
    same(expected, jax.jit(jp.fuse(f))(x, y), 1e-5, 1e-6)
    same(expected, jp.fuse(f)(x, y), 1e-5, 1e-6)


@pytest.mark.parametrize("f", [p for p in PROGRAMS if p is not of_complex])
@pytest.mark.cover(4)
def test_transformed(f: Callable[..., Any]) -> None:
    x, y = numbers(n=24_000 if f is of_rows else N), numbers(n=24_000 if f is of_rows else N)

    def loss(g: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, y: sum(jnp.sum(r * r) for r in jax.tree.leaves(g(x, y)) if jnp.issubdtype(r.dtype, jnp.floating))

    batch = jnp.stack([x, 1 - x])
    both = (0, 1)
    pairs: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (lambda g: jax.vmap(g, (0, None)), (batch, y)),
        (lambda g: lambda x, y: jax.jvp(g, (x, y), (y, x)), (x, y)),
        (lambda g: jax.grad(loss(g), both), (x, y)),
        (lambda g: jax.vmap(jax.grad(loss(g), both), (0, None)), (batch, y)),
        (lambda g: lambda x, y: jax.jvp(jax.grad(loss(g), both), (x, y), (y, x)), (x, y)),
        (lambda g: jax.grad(loss(jax.checkpoint(g)), both), (x, y)),
    ]
    for transformed, args in pairs:
        expected = jax.jit(transformed(f))(*args)
        same(expected, jax.jit(transformed(jp.fuse(f)))(*args), 1e-4, 1e-5)
        same(expected, jp.fuse(transformed(f))(*args), 1e-4, 1e-5)


def test_one_kernel_makes_what_is_of_the_same_arrays() -> None:
    x, y = numbers(), numbers()
    assert len(kernels(rotated, x, y)) == 1
    assert len(kernels(distance, x, y)) == 1
    assert len(kernels(lambda x, y: (jnp.sin(x), jnp.cos(y)), x, y)) == 2


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers(dtype: Any) -> None:
    with jax.enable_x64(dtype == np.complex128):
        z = (numbers() + 1j * numbers()).astype(dtype)
        for f in (jnp.exp, jnp.log, jnp.sqrt, lambda z: z**1.5, lambda z: jnp.exp(1j * z.real) * z, jnp.angle):
            assert len(kernels(f, z)) == 1
            same(jax.jit(f)(z), jp.fuse(f)(z), 1e-5 if dtype == np.complex64 else 1e-12)
        assert kernels(lambda z: z * z / (1 + z), z) == []


def test_fewer_numbers_in_a_loop() -> None:
    """No other thread has to be woken there."""
    x = numbers(n=1500)
    assert kernels(jnp.sin, x) == []
    assert any("one kernel" in site for site in jp.explain(jp.fuse(lambda x: stepped(x, x)))(x).sites)


def test_what_a_reduction_takes_in_is_not_written() -> None:
    x = numbers(n=100_000)
    assert kernels(lambda x: jnp.sum(jnp.sin(x) * x), x) == ["reduce-sum"]
    with jax.enable_x64(True):
        assert kernels(lambda x: jnp.sum(jnp.log(x)), numbers(np.float64, 100_000)) == ["reduce-sum"]


@pytest.mark.parametrize("f", [jnp.sin, lambda x: jnp.cbrt(x) * 1.7 + x, lambda x: lax.lgamma(x)])
def test_what_is_compared_with_its_maximum_is_it(f: Callable[..., Any]) -> None:
    x = jnp.concatenate([numbers(), numbers()])

    def g(x: Any) -> Any:
        y = f(x)
        return y == jnp.max(y), jnp.argmax(y), y - jnp.max(y), y

    hit, at, below, y = jp.fuse(g)(x)
    assert hit.sum() == 1 and hit[at] and below[at] == 0 and (below <= 0).all()
    same(f(x), y, 1e-5, 1e-6)


def test_numbers_that_are_none() -> None:
    x = numbers().at[:6].set(jnp.array([jnp.nan, jnp.inf, -jnp.inf, 0.0, -0.0, 1e30]))
    for name, (f, mapped) in FUNCTIONS.items():
        if mapped and name != "digamma":  # of zero XLA's is NaN or -inf, by its version
            with np.errstate(all="ignore"):
                expected, got = np.asarray(jax.jit(f)(x)[:5]), np.asarray(jp.fuse(f)(x)[:5])
            np.testing.assert_allclose(got, expected, 1e-6, err_msg=name)
            np.testing.assert_array_equal(np.signbit(got[3:]), np.signbit(expected[3:]), err_msg=name)


@pytest.mark.parametrize("shape", [(8000,), (80, 100), (8, 1000, 3), (2, 40, 100)])
def test_devices_keep_their_parts(shape: tuple[int, ...]) -> None:
    """Whichever of the axes are sharded, but for a few numbers behind the last."""
    devices = mesh(2, 4)
    x = jnp.asarray(RNG.uniform(0.1, 0.9, shape).astype(np.float32))
    f = jp.fuse(lambda x: (jnp.sin(x) + jnp.arange(shape[0]).reshape(-1, *(1,) * (x.ndim - 1)), jnp.arctan2(x, 2.0) > 0.3))
    assert kernels(f.__wrapped__, x) == ["add gt"]
    expected = jax.jit(f.__wrapped__)(x)
    for axes in itertools.permutations(["x", "y", *(None,) * (len(shape) - 1)], len(shape)):
        places = [a if n >= 8 or (a == "x" and n % 2 == 0) else None for a, n in zip(axes, shape, strict=True)]
        placed = jax.device_put(x, NamedSharding(devices, P(*places)))
        compiled = jax.jit(f).lower(placed).compile()
        assert_no_communication(compiled)
        same(expected, compiled(placed), 1e-5)


def test_functions_longer_than_a_body() -> None:
    """Several kernels, one after the other: nothing is left to XLA."""

    def f(x: Any) -> Any:
        for k in range(MOST_TAKEN // 3):
            x = 0.5 * jnp.sin(x + k) + 0.3 * jnp.cos(x)
        return x

    x = numbers()
    assert len(kernels(f, x)) > 1
    lowered = jax.jit(jp.fuse(f)).lower(x).as_text()
    assert "stablehlo.sine" not in lowered and "stablehlo.cosine" not in lowered
    same(jax.jit(f)(x), jp.fuse(f)(x), 1e-3)
