"""Complex arithmetic on pairs of reals, written in ``lax``; it is traced and lowered like the user's own code.

Products are the textbook ones, as in XLA. Absolute values, quotients, roots and logarithms do not overflow or underflow on
the way to a result that does not. The trigonometric and hyperbolic functions of complex numbers, and their inverses, are left to
plain XLA.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax.numpy as jnp
from jax import Array, lax

Pair = tuple[Array, Array]
T = TypeVar("T")


def _add(a: Array, b: Array, c: Array, d: Array) -> Pair:
    return a + c, b + d


def _sub(a: Array, b: Array, c: Array, d: Array) -> Pair:
    return a - c, b - d


def _mul(a: Array, b: Array, c: Array, d: Array) -> Pair:
    return a * c - b * d, a * d + b * c


def _div(a: Array, b: Array, c: Array, d: Array) -> Pair:
    """R. L. Smith's quotient, with C99's infinities (Annex G)."""
    largest = lax.max(lax.max(abs(a), abs(b)), lax.max(abs(c), abs(d)))
    scale = jnp.where(largest > 0.125 * jnp.finfo(a.dtype).max, 0.125, 1.0).astype(a.dtype)  # room for sums of two
    a, b, c, d = a * scale, b * scale, c * scale, d * scale
    by_real = abs(c) >= abs(d)
    large, small = jnp.where(by_real, c, d), jnp.where(by_real, d, c)
    r = small / large
    bottom = large + small * r
    re = jnp.where(by_real, a + b * r, a * r + b) / bottom
    im = jnp.where(by_real, b - a * r, b * r - a) / bottom
    zero = (c == 0) & (d == 0) & ~(jnp.isnan(a) & jnp.isnan(b))
    endless = jnp.copysign(jnp.full_like(c, jnp.inf), c)
    re, im = jnp.where(zero, endless * a, re), jnp.where(zero, endless * b, im)
    a1, b1 = _unit(a), _unit(b)
    above = (jnp.isinf(a) | jnp.isinf(b)) & lax.is_finite(c) & lax.is_finite(d)
    re, im = jnp.where(above, jnp.inf * (a1 * c + b1 * d), re), jnp.where(above, jnp.inf * (b1 * c - a1 * d), im)
    c1, d1 = _unit(c), _unit(d)
    below = (jnp.isinf(c) | jnp.isinf(d)) & lax.is_finite(a) & lax.is_finite(b)
    return jnp.where(below, 0.0 * (a * c1 + b * d1), re), jnp.where(below, 0.0 * (b * c1 - a * d1), im)


def _unit(x: Array) -> Array:
    """The sign of an infinity; a signed zero for what is finite."""
    return jnp.copysign(jnp.where(jnp.isinf(x), 1.0, 0.0).astype(x.dtype), x)


def _ordered(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """The larger and the smaller absolute value, and the square of their ratio (0 where it does not matter)."""
    large, small = lax.max(abs(a), abs(b)), lax.min(abs(a), abs(b))
    ratio = jnp.where((large == 0) | jnp.isinf(large), 0.0, small / large)
    return large, small, ratio * ratio


def _abs(a: Array, b: Array) -> Array:
    large, _, square = _ordered(a, b)
    return jnp.where(jnp.isinf(a) | jnp.isinf(b), jnp.inf, large * lax.sqrt(1.0 + square))


def _log_abs(a: Array, b: Array) -> Array:
    large, _, square = _ordered(a, b)
    infinite = jnp.isinf(a) | jnp.isinf(b)
    return jnp.where(infinite, jnp.inf, lax.log(large) + 0.5 * lax.log1p(square))


def _log(a: Array, b: Array) -> Pair:
    return _log_abs(a, b), lax.atan2(b, a)


def _log2(a: Array, b: Array) -> Pair:
    re, im = _log(a, b)
    return re * (1.0 / math.log(2.0)), im * (1.0 / math.log(2.0))


def _log1p(a: Array, b: Array) -> Pair:
    near = (abs(a) < 0.5) & (abs(b) < 0.5)
    return jnp.where(near, 0.5 * lax.log1p(a * (2.0 + a) + b * b), _log_abs(1.0 + a, b)), lax.atan2(b, 1.0 + a)


def _exp(a: Array, b: Array) -> Pair:
    """By two factors exp(a/2), since exp(a) may be infinite where the result is not."""
    half, sine = lax.exp(0.5 * a), lax.sin(b)
    gone = half == 0
    re, im = (half * lax.cos(b)) * half, jnp.where(sine == 0, sine, half * sine) * half
    im = jnp.where(b == 0, b, im)
    return jnp.where(gone, jnp.zeros_like(a), re), jnp.where(gone, jnp.zeros_like(a), im)


def _sqrt(a: Array, b: Array) -> Pair:
    b = b + 0.0  # on the branch cut XLA is above, whatever the sign of the imaginary zero
    large, _, square = _ordered(a, b)
    # |z|/2 + |a|/2 = large/2 (sqrt(1 + square) + |a|/large), in scaled form
    share = jnp.where(abs(a) >= abs(b), jnp.ones_like(a), jnp.where(large == 0, 0.0, abs(a) / large))
    t = lax.sqrt(large) * lax.sqrt(0.5 * (lax.sqrt(1.0 + square) + share))
    other = jnp.where(t == 0, jnp.zeros_like(t), 0.5 * (abs(b) / t))
    re, im = jnp.where(a >= 0, t, other), jnp.where(a >= 0, other, t)
    nan = jnp.isnan(a) | jnp.isnan(b)
    re, im = jnp.where(nan, jnp.nan, re), jnp.where(nan, jnp.nan, im)
    up, left, right = jnp.isinf(b), a == -jnp.inf, a == jnp.inf
    re = jnp.where(up | right, jnp.inf, jnp.where(left, 0.0, re))
    im = jnp.where(up | left, jnp.inf, jnp.where(right, 0.0, im))
    return re, jnp.copysign(im, b)


def _pow(a: Array, b: Array, c: Array, d: Array) -> Pair:
    re, im = _exp(*_mul(c, d, *_log(a, b)))
    zero = (a == 0) & (b == 0)
    one = (c == 0) & (d == 0)
    vanishes = zero & (c > 0)
    return jnp.where(one, 1.0, jnp.where(vanishes, 0.0, re)), jnp.where(one | vanishes, 0.0, im)


def powered(x: T, n: int, multiply: Callable[[T, T], T]) -> T:
    """A positive power by repeated squaring, in the order of XLA's own expansion."""
    result = None
    while n:
        if n & 1:
            result = x if result is None else multiply(result, x)
        n >>= 1
        x = multiply(x, x) if n else x
    assert result is not None
    return result


@functools.cache
def _integer_pow(y: int) -> Callable[[Array, Array], Pair]:
    def power(a: Array, b: Array) -> Pair:
        one = jnp.ones_like(a), jnp.zeros_like(a)
        result = powered((a, b), abs(y), lambda p, q: _mul(*p, *q)) if y else one
        return result if y >= 0 else _div(*one, *result)

    return power


def _sign(a: Array, b: Array) -> Pair:
    size = _abs(a, b)
    return jnp.where(size == 0, a, a / size), jnp.where(size == 0, b, b / size)


def _larger(compare: Callable[[Array, Array], Array]) -> Callable[[Array, Array, Array, Array], Pair]:
    """Lexicographic, as ``lax.max`` and ``lax.min`` are on complex numbers."""

    def g(a: Array, b: Array, c: Array, d: Array) -> Pair:
        first = lax.select(a == c, compare(b, d), compare(a, c))
        return lax.select(first, a, c), lax.select(first, b, d)

    return g


def _polynomial(a: Array, b: Array, *coefficients: Array) -> Pair:
    re, im = coefficients[-2:]
    for k in range(len(coefficients) - 4, -1, -2):
        re, im = _add(*_mul(re, im, a, b), coefficients[k], coefficients[k + 1])
    return re, im


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "complex": lambda a, b: (a, b),
    "real": lambda a, b: a,
    "imag": lambda a, b: b,
    "conj": lambda a, b=None: (a, jnp.zeros_like(a) if b is None else -b),
    "neg": lambda a, b: (-a, -b),
    "abs": _abs,
    "sign": _sign,
    "add": _add,
    "add_any": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "square": lambda a, b: _mul(a, b, a, b),
    "polynomial": _polynomial,
    "pow": _pow,
    "eq": lambda a, b, c, d: (a == c) & (b == d),
    "ne": lambda a, b, c, d: (a != c) | (b != d),
    "max": _larger(lax.gt),
    "min": _larger(lax.lt),
    "exp": _exp,
    "log": _log,
    "log1p": _log1p,
    "log2": _log2,
    "sqrt": _sqrt,
}
"""On the parts of the operands (real, imaginary, real, ...): the real part, or both."""


def function(name: str, params: Mapping[str, Any]) -> Callable[..., Any] | None:
    """What computes a primitive on complex numbers, or None."""
    return _integer_pow(params["y"]) if name == "integer_pow" else FUNCTIONS.get(name)
