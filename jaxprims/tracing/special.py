"""Functions that are no instruction, written in ``lax`` on real scalars; they are traced and lowered like the user's own.

Series, asymptotic series and continued fractions (NIST Digital Library of Mathematical Functions, sections 8.9, 8.17.22,
10.25.2, 10.40.1 and 25.11.43), summed to the precision of the argument, f16 and bf16 in f32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

MOST_TERMS = 2000
"""Series that have not converged after so many terms stop."""


def _wide(f: Callable[..., Array]) -> Callable[..., Array]:
    """``f`` on at least 32 bits."""

    @functools.wraps(f)
    def g(*xs: Array) -> Array:
        wide = jnp.promote_types(xs[0].dtype, jnp.float32)
        return lax.convert_element_type(f(*(lax.convert_element_type(x, wide) for x in xs)), xs[0].dtype)

    return g


def _one_minus_square(x: Array) -> Array:
    return (1 + x) * (1 - x)


def _bessel_e(order: int) -> Callable[[Array], Array]:
    """``exp(-|x|) I(x)`` of order 0 or 1: the power series up to 20, beyond it the asymptotic one."""

    def bessel(x: Array) -> Array:
        size = abs(x)
        near, far = lax.min(size, jnp.full_like(x, 20)), lax.max(size, jnp.full_like(x, 20))

        def power(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            n = lax.convert_element_type(k, x.dtype)
            term = state[0] * (0.25 * near * near) / (n * (n + order))
            return term, state[1] + term

        def asymptotic(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            n = lax.convert_element_type(k, x.dtype)
            term = state[0] * ((2 * n - 1) ** 2 - 4 * order) / (8 * far * n)
            return term, state[1] + term

        one = jnp.ones_like(x)
        small = lax.fori_loop(1, 48, power, (one, one))[1] * lax.exp(-near)
        large = lax.fori_loop(1, 30, asymptotic, (one, one))[1] * lax.rsqrt(2 * math.pi * far)
        value = jnp.where(size <= 20, small * 0.5 * x if order else small, large * lax.sign(x) if order else large)
        return jnp.where(size == jnp.inf, 0.0 * lax.sign(x), value)

    return bessel


def _bernoulli(count: int) -> list[float]:
    """B(2 j) / (2 j)! for j = 1, ..., count, from the zeta function at even numbers."""
    return [
        2 * (-1) ** (j + 1) * sum(k ** (-2 * j) for k in range(1, 400)) / (2 * math.pi) ** (2 * j) for j in range(1, count + 1)
    ]


_BERNOULLI = [1 / 12, -1 / 720, 1 / 30240, *_bernoulli(12)[3:]]


def _zeta(s: Array, q: Array) -> Array:
    """Hurwitz's, by Euler-Maclaurin summation: the first terms, then the integral and its corrections."""

    def more(state: tuple[Array, Array, Array]) -> Array:
        k, a, _ = state
        return (k < 9) | ((a <= 9) & (k < MOST_TERMS))

    def add(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        k, a, total = state
        return k + 1, a + 1, total + lax.pow(a, -s)

    _, a, total = lax.while_loop(more, add, (jnp.int32(0), q, jnp.zeros_like(s)))
    last = lax.pow(a, -s)
    total = total + last * a / (s - 1) + 0.5 * last
    rising, last = s, last / a
    for j, b in enumerate(_BERNOULLI):
        total = total + b * rising * last
        rising, last = rising * (s + 2 * j + 1) * (s + 2 * j + 2), last / (a * a)
    pole = (q <= 0) & (q == lax.floor(q))
    undefined = (s < 1) | ((q <= 0) & (s != lax.floor(s)))
    return jnp.where(undefined, jnp.nan, jnp.where((s == 1) | pole, jnp.inf, total))


def _polygamma(n: Array, x: Array) -> Array:
    sign = jnp.where(n % 2 == 0, -1.0, 1.0).astype(x.dtype)
    higher = sign * lax.exp(lax.lgamma(n + 1)) * _zeta(n + 1, x)
    valid = (n >= 0) & (n == lax.floor(n))
    return jnp.where(valid, jnp.where(n == 0, lax.digamma(x), higher), jnp.nan)


def _fraction(step: Callable[[Array], tuple[Array, Array]], start: Array) -> Array:
    """``start + a1 / (b1 + a2 / (b2 + ...))`` by W. J. Lentz's method; ``step(k)`` is the pair (ak, bk)."""
    eps, tiny = jnp.finfo(start.dtype).eps, jnp.finfo(start.dtype).tiny * 1e4

    def held(x: Array) -> Array:
        return jnp.where(abs(x) < tiny, tiny, x).astype(start.dtype)

    def more(state: tuple[Any, ...]) -> Array:
        k, _, _, _, change = state
        return (k < MOST_TERMS) & (abs(change - 1) > eps)

    def add(state: tuple[Any, ...]) -> tuple[Any, ...]:
        k, value, c, d, _ = state
        a, b = step(lax.convert_element_type(k, start.dtype))
        c, d = held(b + a / c), 1 / held(b + a * d)
        return k + 1, value * c * d, c, d, c * d

    first = held(start)
    return lax.while_loop(more, add, (jnp.int32(1), first, first, jnp.zeros_like(start), 2 * jnp.ones_like(start)))[1]


def _both_igammas(a: Array, x: Array) -> tuple[Array, Array]:
    """P(a, x) and Q(a, x): the series below the bend, the continued fraction above."""
    eps = jnp.finfo(x.dtype).eps
    below = (x <= 1) | (x <= a)
    u = jnp.where(below, x, 1.0).astype(x.dtype)
    v = jnp.where(below, a + 2, x)
    scale = lax.exp(a * lax.log(x) - x - lax.lgamma(a))

    def more(state: tuple[Array, Array, Array]) -> Array:
        k, term, total = state
        return (k < MOST_TERMS) & (term > eps * total)

    def add(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        k, term, total = state
        term = term * u / (a + lax.convert_element_type(k, x.dtype))
        return k + 1, term, total + term

    one = jnp.ones_like(x)
    p = scale / a * lax.while_loop(more, add, (jnp.int32(1), one, one))[2]
    q = scale / _fraction(lambda k: (k * (a - k), v + 2 * k + 1 - a), v + 1 - a)
    p, q = jnp.where(below, p, 1 - q), jnp.where(below, 1 - p, q)
    p, q = jnp.where(x == 0, 0.0, p), jnp.where(x == 0, 1.0, q)
    p, q = jnp.where(x == jnp.inf, 1.0, p), jnp.where(x == jnp.inf, 0.0, q)
    undefined = ~(x >= 0) | ~(a > 0)
    return jnp.where(undefined, jnp.nan, p), jnp.where(undefined, jnp.nan, q)


def _incomplete_beta(a: Array, b: Array, x: Array) -> Array:
    """The continued fraction, on the side of the mean where it converges quickly."""
    swap = x > (a + 1) / (a + b + 2)
    p, q, y = jnp.where(swap, b, a), jnp.where(swap, a, b), jnp.where(swap, 1 - x, x)

    def step(k: Array) -> tuple[Array, Array]:
        m = lax.floor(0.5 * k)
        even = m * (q - m) * y / ((p + 2 * m - 1) * (p + 2 * m))
        odd = -(p + m) * (p + q + m) * y / ((p + 2 * m) * (p + 2 * m + 1))
        return jnp.where(k == 2 * m, even, odd), jnp.ones_like(k)

    logarithm = p * lax.log(y) + q * lax.log1p(-y) + lax.lgamma(p + q) - lax.lgamma(p) - lax.lgamma(q)
    value = lax.exp(logarithm) / (p * _fraction(step, jnp.ones_like(x)))
    value = jnp.where(swap, 1 - value, value)
    value = jnp.where(x == 0, 0.0, jnp.where(x == 1, 1.0, value))
    return jnp.where((x >= 0) & (x <= 1) & (a > 0) & (b > 0), value, jnp.nan)


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "one_minus_square": _one_minus_square,
    "bessel_i0e": _wide(_bessel_e(0)),
    "bessel_i1e": _wide(_bessel_e(1)),
    "zeta": _wide(_zeta),
    "polygamma": _wide(_polygamma),
    "igamma": _wide(lambda a, x: _both_igammas(a, x)[0]),
    "igammac": _wide(lambda a, x: _both_igammas(a, x)[1]),
    "regularized_incomplete_beta": _wide(_incomplete_beta),
}
