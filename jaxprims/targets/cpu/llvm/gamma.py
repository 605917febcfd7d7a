"""The logarithm of the gamma function and its derivative, as straight-line LLVM IR, for f32 and f64, scalars and vectors alike.

Numbers up to 3 (f32) or 8 (f64) are brought between 1 and 2 by the recurrence, where polynomials vanish exactly where the
functions do; beyond, Stirling's series. Negative numbers are reflected, in a branch of their own: few programs have any.
"""

from __future__ import annotations

import math

from llvmlite import ir

from .elementary import Kit, log
from .types import intrinsic

_LOG_GAMMA = [
    2.388311336e-3, -3.97213376e-3, 5.355116558e-3, -9.276536438e-3, 1.680356703e-2, -3.13190425e-2, 6.291127891e-2,
    -0.1459596966, 0.4831289505,
]  # fmt: skip
_LOG_GAMMA_F64 = [
    -1.8042762737500871e-5, 2.8340547351058233e-5, -2.2062867871136607e-5, 3.4988964640274817e-5, -6.7650208093809337e-5,
    1.0771545393886628e-4, -1.6865016226225165e-4, 2.7089502962803557e-4, -4.380224528708151e-4, 7.1156502503042788e-4,
    -1.1644126224041502e-3, 1.9229132430031887e-3, -3.2120741489683529e-3, 5.4464579568501979e-3, -9.4256224470610778e-3,
    1.679709862898276e-2, -3.1308487501021699e-2, 6.291140107458168e-2, -0.14595989591430607, 0.48312895054098087,
]  # fmt: skip
"""log gamma(1 + t) / (t (t - 1)) in t - 1/2, for 0 <= t <= 1: relative errors 3e-8 and 5e-17."""

_DIGAMMA = [
    -1.590631756e-2, 2.390907144e-2, -2.604888223e-2, 3.936941934e-2, -6.200706886e-2, 9.511622179e-2, -0.1484022375, 0.240538453,
    -0.4236274347, 0.9510558962,
]  # fmt: skip
_DIGAMMA_F64 = [
    2.5225905069648851e-4, -3.783907897248858e-4, 2.3650171719339815e-4, -3.5476352053371979e-4, 7.1841079690463779e-4,
    -1.0776863967234225e-3, 1.5580749137213762e-3, -2.3375526471031183e-3, 3.5187504361950135e-3, -5.2809030660906056e-3,
    7.9269727356463584e-3, -1.1908146513976738e-2, 1.7907250563619774e-2, -2.6975800029253667e-2, 4.0760833884338703e-2,
    -6.1922133190727069e-2, 9.4988724453541821e-2, -0.14840492305485808, 0.24054248424078477, -0.42362742128145728,
    0.95105587603183288,
]  # fmt: skip
"""digamma(1 + t) / (t - root), likewise: relative errors 2e-8 and 9e-17."""

_BERNOULLI = [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798]


def lgamma(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    k = Kit(b, x.type)
    size = k.abs(x)
    below, t, steps = _to_one_and_two(k, size)
    product = k.where(below, size, 1.0)
    for above, y in steps:
        product = k.where(above, k.mul(product, y), product)
    far = k.less(float(_far(k)), size)
    logarithm = log(b, k.where(far, size, product))
    polynomial = k.polynomial(k.sub(t, 0.5), _LOG_GAMMA_F64 if k.double else _LOG_GAMMA)
    near = k.mul_add(k.mul(t, k.sub(t, 1.0)), polynomial, k.where(below, b.fneg(logarithm), logarithm))
    inverse = k.div(1.0, size)
    series = [n / (2 * i * (2 * i - 1)) for i, n in enumerate(_BERNOULLI[: 8 if k.double else 5], 1)]
    rest = k.mul_add(inverse, k.polynomial(k.mul(inverse, inverse), series[::-1]), math.log(2 * math.pi) / 2 - 0.5)
    value = k.where(far, k.mul_add(k.sub(size, 0.5), k.sub(logarithm, 1.0), rest), near)
    value = k.where(k.equal(size, math.inf), size, value)
    negative = k.less(x, 0.0)
    k.unless(negative, lambda: value)
    nearest, part = _from_nearest(k, size)
    turned = k.sub(log(b, k.div(math.pi, k.abs(_sine_of_pi(k, part)))), k.add(value, log(b, size)))
    return k.where(negative, k.where(k.equal(size, nearest), math.inf, turned), value)


def digamma(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    k = Kit(b, x.type)
    size = k.abs(x)
    below, t, steps = _to_one_and_two(k, size)
    over, under = k.where(below, -1.0, 0.0), k.where(below, size, 1.0)  # the recurrence's fractions, as one
    for above, y in steps:
        over = k.where(above, k.mul_add(over, y, under), over)
        under = k.where(above, k.mul(under, y), under)
    far = k.less(float(_far(k)), size)
    fraction = k.div(k.where(far, 1.0, over), k.where(far, size, under))
    high, low = (0.4616321449683623, -1.552234816e-17) if k.double else (0.4616321325302124, 1.243814994e-8)
    polynomial = k.polynomial(k.sub(t, 0.5), _DIGAMMA_F64 if k.double else _DIGAMMA)
    near = k.mul_add(k.sub(k.sub(t, high), low), polynomial, fraction)
    square = k.mul(fraction, fraction)
    series = [n / (2 * i) for i, n in enumerate(_BERNOULLI[: 9 if k.double else 5], 1)]
    rest = k.mul_add(square, k.polynomial(square, series[::-1]), k.mul(0.5, fraction))
    value = k.where(far, k.sub(log(b, size), rest), near)
    value = k.where(k.equal(size, 0.0), k.with_sign(math.inf, b.fneg(x)), value)
    negative = k.less(x, 0.0)
    k.unless(negative, lambda: value)
    nearest, part = _from_nearest(k, size)
    quotient = k.div(k.mul(math.pi, _cosine_of_pi(k, part)), _sine_of_pi(k, part))
    turned = k.add(value, k.add(k.div(1.0, size), quotient))
    return k.where(negative, k.where(k.equal(size, nearest), math.nan, turned), value)


def _far(k: Kit) -> int:
    """From where on Stirling's series has all places."""
    return 8 if k.double else 3


def _to_one_and_two(k: Kit, x: ir.Value) -> tuple[ir.Value, ir.Value, list[tuple[ir.Value, ir.Value]]]:
    """For 0 <= x < far: whether it is below 1; t, so that 1 + t is x brought between 1 and 2 by whole steps; and for each step
    down whether it is taken, and the number that it leads to."""
    below = k.less(x, 1.0)
    t = k.where(below, x, k.sub(x, 1.0))
    steps = []
    for _ in range(_far(k) - 2):
        above = k.less(1.0, t)
        steps.append((above, t))
        t = k.where(above, k.sub(t, 1.0), t)
    return below, t, steps


def _from_nearest(k: Kit, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The nearest whole number, a pole of the negative, and the distance to it, which is exact."""
    nearest = intrinsic(k.b, "roundeven", k.t, x)
    return nearest, k.sub(x, nearest)


def _sine_of_pi(k: Kit, r: ir.Value) -> ir.Value:
    """sin(pi r) for |r| at most 1/2, and its cosine: Taylor's series."""
    return k.mul(r, k.polynomial(k.mul(r, r), _taylor(k, 1)))


def _cosine_of_pi(k: Kit, r: ir.Value) -> ir.Value:
    return k.polynomial(k.mul(r, r), _taylor(k, 0))


def _taylor(k: Kit, first: int) -> list[float]:
    powers = range(first, 24 if k.double else 14, 2)
    return [(-1) ** (n // 2) * math.pi**n / math.factorial(n) for n in reversed(powers)]
