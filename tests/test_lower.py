"""Programs made of jaxprs, run by :mod:`jaxprims.ir.evaluate`, against the functions run by JAX: numbers."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from lowering import COMPLEX, FLOATS, INTS, check, ops, pairs, program_of, run, samples

from jaxprims.tracing.lower import Unsupported

pytestmark = pytest.mark.usefixtures("x64")


# --- elementwise -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTS + FLOATS)
def test_arithmetic(dtype: str) -> None:
    def f(a: Any, b: Any) -> Any:
        return a + b, a - b, a * b, lax.max(a, b), lax.min(a, b)

    assert ops(check(f, *pairs(dtype), exact=dtype not in FLOATS[:2])) == ["add", "sub", "mul", "max", "min"]


@pytest.mark.parametrize("dtype", INTS + FLOATS)
def test_division(dtype: str) -> None:
    check(lambda a, b: (lax.div(a, b), lax.rem(a, b)), *pairs(dtype))


@pytest.mark.parametrize("dtype", ["bool", *INTS, *FLOATS])
def test_comparisons(dtype: str) -> None:
    def f(a: Any, b: Any) -> Any:
        return lax.eq(a, b), lax.ne(a, b), lax.lt(a, b), lax.le(a, b), lax.gt(a, b), lax.ge(a, b)

    check(f, *pairs(dtype))


@pytest.mark.cover(7)
@pytest.mark.parametrize("dtype", ["bool", *INTS])
def test_bits(dtype: str) -> None:
    check(lambda a, b: (a & b, a | b, a ^ b, ~a), *pairs(dtype))
    if dtype != "bool":
        check(lambda a, b: (lax.population_count(a), lax.clz(a), lax.mulhi(a, b)), *pairs(dtype))
        check(lambda a, b: (lax.shift_left(a, b), lax.shift_right_logical(a, b), lax.shift_right_arithmetic(a, b)), *pairs(dtype))


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", INTS + FLOATS)
def test_sign_abs_and_powers(dtype: str) -> None:
    def f(a: Any) -> Any:
        return jnp.abs(a), lax.sign(a), lax.square(a), *(lax.integer_pow(a, n) for n in (0, 1, 2, 3, 4, 7))

    check(f, samples(dtype), eps=1e-1 if dtype in FLOATS[:2] else None)
    if dtype in FLOATS[2:]:
        check(lambda a: (lax.integer_pow(a, -1), lax.integer_pow(a, -3), a**2, a**0.5), samples(dtype))
        check(lambda a, b: lax.pow(a, b), *pairs(dtype, "int32"), eps=1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("exponent", [-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0])
def test_constant_exponents(exponent: float, dtype: str) -> None:
    """Products and roots, with the zeros, infinities and NaNs of a power; so are those of derivatives."""
    x = np.concatenate([samples(dtype), np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 2.0], jnp.dtype(dtype))])
    program = check(lambda a: lax.pow(a, jnp.asarray(exponent, a.dtype)), x, eps=2e-2 if dtype in FLOATS[:2] else None)
    assert "pow" not in ops(program)
    (got,), want = run(program, [x]), np.asarray(jax.jit(lambda a: a**exponent)(x))
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()


MATH = "is_finite neg floor ceil sqrt rsqrt cbrt exp expm1 log log1p sin cos tan asin acos atan sinh cosh tanh"
MATH += " asinh acosh atanh logistic erf erfc erf_inv"


@pytest.mark.parametrize("dtype, eps", [("float32", 2e-5), ("float64", 1e-11), ("bfloat16", 5e-2)])
def test_math(dtype: str, eps: float) -> None:
    x = samples(dtype)
    size = abs(x.astype(float))
    check(lambda a: [getattr(lax, name)(a) for name in MATH.split()], x, eps=eps)
    check(lambda a: (lax.lgamma(a), lax.digamma(a)), x[~np.isinf(size) & (size != 0)], eps=eps)
    check(lax.exp2, x[size < 8] if dtype == "bfloat16" else x, eps=eps)  # XLA's is exp(x log 2), with a rounded product


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_and_neighbours(dtype: str) -> None:
    x = np.array([0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 8388609.0, np.inf, np.nan], dtype)
    check(lambda a: (lax.round(a, lax.RoundingMethod.AWAY_FROM_ZERO), lax.round(a, lax.RoundingMethod.TO_NEAREST_EVEN)), x)
    check(lambda a, b: (lax.nextafter(a, b), lax.atan2(a, b)), *pairs(dtype), eps=1e-6)


@pytest.mark.parametrize("dtype", ["int32", "uint8", *FLOATS])
def test_clamp_and_select(dtype: str) -> None:
    a, b = pairs(dtype)
    check(lambda a, b: lax.clamp(a, b, jnp.ones_like(a)), a, b)
    assert ops(check(lambda a, b: jnp.where(a > b, a, b), a, b)) == ["gt", "select"]
    check(lambda i, a, b: lax.select_n(i, a, b, a + b, a - b), np.arange(len(a), dtype=np.int32) % 4, a, b)


@pytest.mark.cover(9)
@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize("source", ["bool", *INTS, *FLOATS, "complex64"])
def test_conversions(source: str) -> None:
    def f(a: Any) -> Any:
        return [lax.convert_element_type(a, t) for t in ("bool", *INTS, *FLOATS, *COMPLEX)]

    check(f, samples(source))
    if source in FLOATS:
        huge = np.array([6e4, -6e4, 254.9, -0.9] if source == "float16" else [3e9, -3e9, 1e20, -1e20, 65504.0, 65520.0])
        check(f, huge.astype(jnp.dtype(source)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_total_order(dtype: str) -> None:
    def f(a: Any, b: Any) -> Any:
        return tuple(p.bind(a, b) for p in (lax.eq_to_p, lax.le_to_p, lax.lt_to_p))

    check(f, *pairs(dtype))
    check(f, *pairs("int32"))


def test_bitcast() -> None:
    check(lambda a: lax.bitcast_convert_type(a, jnp.int32), samples("float32"))
    check(lambda a: lax.bitcast_convert_type(a, jnp.float16), samples("uint16"))
    with pytest.raises(Unsupported, match="bitcast_convert_type"):
        program_of(lambda a: lax.bitcast_convert_type(a, jnp.uint8), np.float32(1))


@pytest.mark.parametrize("exponent_bits, mantissa_bits", [(8, 23), (5, 10), (8, 7), (4, 3), (8, 0), (2, 20)])
def test_reduce_precision(exponent_bits: int, mantissa_bits: int) -> None:
    x = [0.0, -0.0, 1.0, 1.1, -3.14159, 65504.0, 65520.0, 1e-5, 6e-8, 1e30, -1e-30, 448.0, np.inf, -np.inf, np.nan]
    fraction, exponent = np.frexp(np.float64(x))
    rounded = np.ldexp(np.rint(np.ldexp(fraction, mantissa_bits + 1)), exponent - mantissa_bits - 1)
    bias = 2 ** (exponent_bits - 1) - 1
    rounded = np.where(np.abs(rounded) < 2.0 ** (1 - bias), np.copysign(0, rounded), rounded)
    rounded = np.where(np.abs(rounded) >= 2.0 ** (bias + 1), np.copysign(np.inf, rounded), rounded)
    wanted = rounded.astype(np.float32)  # XLA has made an infinity of NaN where no bits of the mantissa are left
    check(lambda a: lax.reduce_precision(a, exponent_bits, mantissa_bits), np.array(x, np.float32), exact=True, wanted=[wanted])


def test_jax_numpy() -> None:
    """Functions that lower to several primitives, through calls."""
    x, y = pairs("float32")
    check(lambda a, b: (a // b, a % b, jnp.logaddexp(a, b), jnp.hypot(a, b), jnp.copysign(a, b), jnp.fmax(a, b)), x, y, eps=1e-5)
    check(lambda a: (jax.nn.relu(a), jax.nn.sigmoid(a), jax.nn.softplus(a), jax.nn.gelu(a)), samples("float32"), eps=1e-5)
    check(lambda a: (jnp.sinc(a), jnp.frexp(a), jnp.nan_to_num(a), jnp.signbit(a)), samples("float32"), eps=1e-5)
    check(lambda a: jnp.ldexp(a, 3), samples("float32"))
    i, j = pairs("int32")
    check(lambda a, b: (a // b, a % b, jnp.gcd(a % 64, b % 64)), i, j)
    check(lambda a: (jnp.polyval(jnp.arange(12.0), a), jnp.log2(a), jnp.log10(a)), samples("float64"), eps=1e-12)


def test_special_functions() -> None:
    from jax.scipy import special

    x = np.array([0.3, 0.7, 1.0, 4.5, 19.0, 21.0])
    check(lambda x: (special.ndtri(x % 1), special.ndtr(x), special.entr(x), special.xlogy(x, x)), x, eps=1e-12)


@pytest.mark.parametrize(
    "f, dtype, name",
    [
        (lax.bessel_i1e, "float64", "bessel_i1e"),
        (lambda x: lax.igamma(x, x), "float32", "igamma"),
        (lambda x: lax.betainc(x, x, x), "float32", "regularized_incomplete_beta"),
        (lambda x: lax.zeta(x, x), "float32", "zeta"),
        *((getattr(lax, name), "complex64", name) for name in ("sin", "tanh", "asin", "acosh", "logistic", "rsqrt")),
    ],
)
def test_what_has_no_rule(f: Any, dtype: str, name: str) -> None:
    with pytest.raises(Unsupported, match=name):
        program_of(f, jnp.ones((), dtype))


def test_calls_are_inlined() -> None:
    @jax.custom_vjp
    def double(x: Any) -> Any:
        return 2 * x

    double.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))

    def f(x: Any) -> Any:
        return jax.jit(lambda y: jax.checkpoint(jnp.square)(y) + double(y))(x) + lax.stop_gradient(x)

    assert ops(check(f, samples("float32"))) == ["mul", "mul", "add", "add"]
    check(jax.grad(lambda x: jnp.sin(x) * jax.nn.relu(x)), samples("float32")[:12], eps=1e-5)


def test_without_x64() -> None:
    """The expansions stay in 32 bits, and promote nothing implicitly."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        z = samples("complex64")[8:]
        check(lambda z: (jnp.sqrt(z), z / (z + z), jnp.abs(z), lax.pow(z, z), lax.log1p(z)), z, eps=2e-5)


# --- complex ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_arithmetic(dtype: str) -> None:
    a, b = pairs(dtype)
    check(lambda a, b: (a + b, a - b, a * b, a == b, a != b, lax.max(a, b), jnp.where(b == a, a, b)), a[::3], b[::3])
    divisible = b != 0
    check(lambda a, b: a / b, a[divisible][::3], b[divisible][::3])
    check(lambda a: (-a, jnp.conj(a), a.real, a.imag, a**2, a**3), samples(dtype))
    check(lambda a: a**-2, samples(dtype)[14:])
    x, y = pairs("float32" if dtype == "complex64" else "float64")
    check(lambda x, y: lax.complex(x, y), x, y)


@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_functions(dtype: str) -> None:
    z, eps = samples(dtype), 2e-5 if dtype == "complex64" else 1e-12
    check(lambda z: (lax.abs(z), lax.sign(z), lax.exp(z), lax.sqrt(z)), z, eps=eps)
    check(lambda z: (lax.log(z), lax.log1p(z)), z[(z != 0) & (z != -1)], eps=eps)  # at their poles infinity's sign could differ


def test_complex_power() -> None:
    a, b = pairs("complex128")
    keep = a != 0
    check(lambda a, b: a**b, a[keep][::5], b[keep][::5], eps=1e-11)
    check(lambda a: lax.pow(a, jnp.complex128(0)), samples("complex128"))


def test_complex_extremes() -> None:
    """No overflow or underflow on the way."""
    big = np.array([1e300 + 1e300j, -1e300 + 1e-300j, 1e-300 + 1e-300j, 3e-320j, 1e308 - 1e308j])
    program, _ = program_of(lambda z: (jnp.abs(z), jnp.sqrt(z), z / z, jnp.log(z)), big[0])
    for z in big:
        size, a, b, c, d, e, f = (y[0] for y in run(program, [z.real, z.imag]))
        np.testing.assert_allclose(size, np.abs(z), rtol=1e-14)
        np.testing.assert_allclose(complex(a, b), np.sqrt(z), rtol=1e-13)
        np.testing.assert_allclose(complex(c, d), 1, atol=1e-14)
        np.testing.assert_allclose(complex(e, f), np.log(z), rtol=1e-14)


def test_complex_infinities() -> None:
    inf, nan = math.inf, math.nan
    program, _ = program_of(lambda z, w: z / w, 1j, 1j)

    def quotient(z: complex, w: complex) -> complex:
        return complex(*(y[0] for y in run(program, [z.real, z.imag, w.real, w.imag])))

    assert quotient(1 + 1j, complex(inf, inf)) == 0
    assert quotient(complex(inf, 1), 1 + 1j) == complex(inf, -inf)
    assert quotient(1 + 2j, 0j) == complex(inf, inf)
    program, _ = program_of(jnp.abs, 1j)
    assert run(program, [nan, inf]) == [inf]
    assert np.isnan(run(program, [nan, 1.0])[0])
