"""exp, log and their kin as straight-line LLVM IR, for f32 and f64, scalars and vectors alike.

Inlined they cost no more than libmvec's calls, which not every machine has, and give a scalar the very bits that they give a
vector's lane. Errors are at most 3 ULP; 5 of tanh and erf of f32, as XLA's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from llvmlite import ir

from .engine import target
from .types import any_lane, intrinsic, literal, scalar_of, with_scalar


class Kit:
    """Arithmetic on one floating type with Python numbers as constants; methods are named as the operators they stand for."""

    def __init__(self, b: ir.IRBuilder, t: ir.Type):
        self.b, self.t = b, t
        self.double = scalar_of(t) == ir.DoubleType()
        self.mantissa, self.bias = (52, 1023) if self.double else (23, 127)
        self.word = with_scalar(t, ir.IntType(64 if self.double else 32))
        self.ln2 = (6.93147180369123816490e-01, 1.90821492927058770002e-10) if self.double else (0.693359375, -2.12194440e-4)

    def of(self, x: ir.Value | float) -> ir.Value:
        return x if isinstance(x, ir.Value) else literal(self.t, x)

    def add(self, x: ir.Value | float, y: ir.Value | float) -> ir.Value:
        return self.b.fadd(self.of(x), self.of(y))

    def sub(self, x: ir.Value | float, y: ir.Value | float) -> ir.Value:
        return self.b.fsub(self.of(x), self.of(y))

    def mul(self, x: ir.Value | float, y: ir.Value | float) -> ir.Value:
        return self.b.fmul(self.of(x), self.of(y))

    def div(self, x: ir.Value | float, y: ir.Value | float) -> ir.Value:
        return self.b.fdiv(self.of(x), self.of(y))

    def mul_add(self, x: ir.Value | float, y: ir.Value | float, z: ir.Value | float) -> ir.Value:
        """x * y + z, rounded once where the machine has it so."""
        if target().fma:
            return intrinsic(self.b, "fma", self.t, self.of(x), self.of(y), self.of(z))
        return self.add(self.mul(x, y), z)

    def less(self, x: ir.Value | float, y: ir.Value | float) -> ir.Value:
        return self.b.fcmp_ordered("<", self.of(x), self.of(y))

    def equal(self, x: ir.Value | float, y: ir.Value | float) -> ir.Value:
        return self.b.fcmp_ordered("==", self.of(x), self.of(y))

    def where(self, p: ir.Value, x: ir.Value | float, y: ir.Value | float) -> ir.Value:
        return self.b.select(p, self.of(x), self.of(y))

    def unless(self, some: ir.Value, value: Callable[[], ir.Value]) -> None:
        """A function returns ``value()`` for vectors without a lane where ``some`` is true; what follows is for others."""
        somewhere = any_lane(self.b, some)
        slow, quick = (self.b.append_basic_block() for _ in range(2))
        self.b.cbranch(somewhere, slow, quick)
        self.b.position_at_end(quick)
        self.b.ret(value())
        self.b.position_at_end(slow)

    def abs(self, x: ir.Value) -> ir.Value:
        return intrinsic(self.b, "fabs", self.t, x)

    def sqrt(self, x: ir.Value) -> ir.Value:
        return intrinsic(self.b, "sqrt", self.t, x)

    def with_sign(self, x: ir.Value | float, sign: ir.Value) -> ir.Value:
        return intrinsic(self.b, "copysign", self.t, self.of(x), sign)

    def polynomial(self, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
        """The polynomial with these coefficients, highest power first: by Estrin's scheme, whose chain is short."""
        terms: list[ir.Value | float] = list(reversed(coefficients))
        while len(terms) > 1:
            pairs = [self.mul_add(high, x, low) for low, high in zip(terms[::2], terms[1::2], strict=False)]
            terms = pairs + terms[len(terms) - len(terms) % 2 :]
            x = self.mul(x, x)
        return self.of(terms[0])

    def int(self, value: int) -> ir.Constant:
        return literal(self.word, value)

    def horner(self, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
        """The same by Horner's scheme, which has the fewest instructions: for loops that have other work meanwhile."""
        value: ir.Value | float = coefficients[0]
        for c in coefficients[1:]:
            value = self.mul_add(value, x, c)
        return self.of(value)

    def nearest(self, x: ir.Value | float, scale: float = 1.0) -> tuple[ir.Value, ir.Value]:
        """``scale * x`` rounded, as a float and as an integer; only for what is far below 2^mantissa."""
        magic = 1.5 * 2.0**self.mantissa  # its sum with x has the integer in the last places
        shifted = self.add(x, magic) if scale == 1.0 else self.mul_add(x, scale, magic)
        as_int = self.b.sub(self.b.bitcast(shifted, self.word), self.b.bitcast(self.of(magic), self.word))
        return self.sub(shifted, magic), as_int

    def power_of_two(self, n: ir.Value) -> ir.Value:
        """2^n for integers with a normal result."""
        biased = self.b.add(n, self.int(self.bias))
        return self.b.bitcast(self.b.shl(biased, self.int(self.mantissa)), self.t)

    def clamp(self, x: ir.Value, low: float, high: float) -> ir.Value:
        """NaN stays NaN."""
        return self.where(self.less(x, low), low, self.where(self.less(high, x), high, x))

    def reduce(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """x = n ln 2 + r with |r| at most ln 2 / 2: r and n."""
        k, n = self.nearest(x, 1 / math.log(2))
        high, low = self.ln2
        return self.mul_add(k, -low, self.mul_add(k, -high, x)), n

    @property
    def exponential(self) -> Sequence[float]:
        """(e^r - 1 - r) / r^2 for |r| at most ln 2 / 2, as a polynomial."""
        return _EXPONENTIAL_F64 if self.double else _EXPONENTIAL

    def small_exp(self, r: ir.Value) -> ir.Value:
        """e^r for |r| at most ln 2 / 2."""
        return self.add(self.small_expm1(r), 1.0) if self.double else self.horner(r, [*self.exponential, 1.0, 1.0])

    def small_expm1(self, r: ir.Value) -> ir.Value:
        """e^r - 1 for |r| at most ln 2 / 2."""
        return self.mul_add(self.mul(r, r), self.polynomial(r, self.exponential), r)

    def scaled(self, p: ir.Value, n: ir.Value, x: ir.Value, low: float, high: float) -> ir.Value:
        """p 2^n for p near 1, where low <= x < high and so the result is normal; below 0, above infinity."""
        b = self.b
        value = b.bitcast(b.add(b.bitcast(p, self.word), b.shl(n, self.int(self.mantissa))), self.t)
        value = self.where(self.less(x, low), 0.0, value)
        return self.where(self.less(x, high), value, self.add(x, math.inf))

    def log_parts(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """x = 2^n (1 + f) with 1 + f between sqrt(1/2) and sqrt(2): f, and the bits of 2^n, less those of 1. For normal positive
        x."""
        b = self.b
        root = b.bitcast(self.of(math.sqrt(0.5)), self.word)
        above = b.sub(b.bitcast(x, self.word), root)
        fraction = b.and_(above, self.int((1 << self.mantissa) - 1))
        return self.sub(b.bitcast(b.add(fraction, root), self.t), 1.0), b.sub(above, fraction)

    def log_of(self, f: ir.Value, power: ir.Value) -> ir.Value:
        """log(2^n (1 + f)), of what :meth:`log_parts` gives, small terms first: f and what is left, as a polynomial or, in f64,
        by the series of 2 atanh(f / (2 + f))."""
        square, whole = self.mul(f, f), self.exponent(power)
        high, low = self.ln2
        if not self.double:
            rest = self.mul_add(square, self.polynomial(f, _LOGARITHM), self.mul(whole, low))
            return self.mul_add(whole, high, self.add(f, rest))
        s, half_square = self.div(f, self.add(f, 2.0)), self.mul(0.5, square)
        z = self.mul(s, s)
        series = self.mul_add(z, self.polynomial(z, _LOGARITHM_F64), half_square)
        return self.mul_add(whole, high, self.sub(f, self.sub(half_square, self.mul_add(whole, low, self.mul(s, series)))))

    def exponent(self, power: ir.Value) -> ir.Value:
        """n, of the bits of 2^n less those of 1."""
        b = self.b
        if not self.double:
            return b.sitofp(b.ashr(power, self.int(self.mantissa)), self.t)
        # few machines have these of 64 bits: the digits of a sum of n and a large number are those of n
        large = 1 << self.mantissa
        digits = b.lshr(b.add(power, self.int(self.bias << self.mantissa)), self.int(self.mantissa))
        return self.sub(b.bitcast(b.or_(digits, b.bitcast(self.of(float(large)), self.word)), self.t), float(large + self.bias))


_EXPONENTIAL = (0.0013814696576446295, 0.008368773385882378, 0.04166838899254799, 0.1666651964187622, 0.4999999403953552)
"""Of the least largest error in e^r: 2^-28, or 2^-56."""
_EXPONENTIAL_F64 = (
    *(2.5110049895858716e-8, 2.7620090487429893e-7, 2.7557242336680357e-6, 2.480152129105733e-5, 1.9841269886591e-4),
    *(1.3888888917217381e-3, 8.333333333322207e-3, 4.166666666662412e-2, 0.16666666666666674, 0.5000000000000001),
)

_LOGARITHM = (
    *(-0.07644951427, 0.1292193803, -0.1324273259, 0.141792571, -0.1660879402),
    *(0.2000208764, -0.2500159857, 0.3333332424, -0.4999998817),
)
"""(log(1 + f) - f) / f^2 for 1 + f between sqrt(1/2) and sqrt(2), of the least largest relative error in log(1 + f): 2^-27."""
_LOGARITHM_F64 = (
    *(0.14795947688569538, 0.15314050714809854, 0.18183564321923593, 0.22222198573205726),
    *(0.28571428742388266, 0.3999999999941467, 0.6666666666666734),
)
"""(2 atanh(s) - 2 s) / s^3 in s^2, likewise: 2^-58."""


def exp(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    k = Kit(b, x.type)
    r, n = k.reduce(x)
    low, high = (-708.396418532264, 709.782712893384) if k.double else (-87.33654, 88.72284)
    return k.scaled(k.small_exp(r), n, x, low, high)


def exp_below(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """e^x for x <= 0, but at least the smallest normal number, or so. What is greater may be given anything."""
    k = Kit(b, x.type)
    low = -708.0 if k.double else -87.0
    r, n = k.reduce(k.where(k.less(low, x), x, low))
    return b.bitcast(b.add(b.bitcast(k.small_exp(r), k.word), b.shl(n, k.int(k.mantissa))), k.t)


def exp2(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    k = Kit(b, x.type)
    whole, n = k.nearest(x)
    p = k.small_exp(k.mul(k.sub(x, whole), math.log(2)))
    return k.scaled(p, n, x, 1.0 - k.bias, 1.0 + k.bias)


def expm1(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    k = Kit(b, x.type)
    r, n = k.reduce(k.clamp(x, *((-40.0, 710.0) if k.double else (-20.0, 89.0))))
    half = k.power_of_two(b.sub(n, k.int(1)))  # half of everything: 2^n itself may overflow
    value = k.mul(2.0, k.mul_add(half, k.small_expm1(r), k.sub(half, 0.5)))
    return k.where(k.less(k.abs(x), 2.0 ** -(k.mantissa + 2)), x, value)


def log(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    k = Kit(b, x.type)
    tiny = 2.0 ** (1 - k.bias)  # denormals count as 0
    value = k.where(k.less(x, math.inf), k.log_of(*k.log_parts(x)), x)  # infinity and NaN are themselves
    outside = k.where(k.less(k.abs(x), tiny), -math.inf, math.nan)
    return k.where(k.less(x, tiny), outside, value)


def log1p(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """1 + x is rounded to find its power of two alone: x / 2^n + (1 / 2^n - 1) is rounded once."""
    k = Kit(b, x.type)
    _, power = k.log_parts(k.add(x, 1.0))
    inverse = b.bitcast(b.sub(k.int(k.bias + 3 << k.mantissa), power), k.t)  # 8 / 2^n, which is normal for every n
    f = k.mul_add(k.mul(x, 0.125), inverse, k.mul_add(inverse, 0.125, -1.0))
    value = k.where(k.less(x, math.inf), k.log_of(f, power), x)
    value = k.where(k.less(k.abs(x), 2.0 ** -(k.mantissa + 2)), x, value)
    outside = k.where(k.equal(x, -1.0), -math.inf, math.nan)
    return k.where(k.less(-1.0, x), value, k.where(k.less(x, 0.0), outside, x))


def power_of_positive(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """2^(y log2 x) for f32, made in f64, which has digits enough for every y. x may be infinite or NaN, but not 0."""
    k, d = Kit(b, x.type), Kit(b, with_scalar(x.type, ir.DoubleType()))
    wide, most = b.fpext(x, d.t), 2.0**100  # stands for infinity, as 2^300 for its logarithm: too much of anything but 0
    f, power = d.log_parts(wide)
    logarithm = d.where(d.less(wide, math.inf), d.mul_add(f, d.polynomial(f, _LOG2), d.exponent(power)), 2.0**300)
    exponent = d.clamp(d.mul(b.fpext(k.clamp(y, -most, most), d.t), logarithm), -160.0, 160.0)  # beyond f32, within f64
    whole, n = d.nearest(exponent)
    part = b.bitcast(d.polynomial(d.sub(exponent, whole), _EXP2), d.word)
    value = b.fptrunc(b.bitcast(b.add(part, b.shl(n, d.int(d.mantissa))), d.t), k.t)
    value = k.where(k.equal(x, x), value, x)
    return k.where(b.or_(k.equal(y, 0.0), k.equal(x, 1.0)), 1.0, value)


_LOG2 = (
    *(0.0773705948283627, -0.1428394951432846, 0.1447484255993106, -0.1431564214439404, 0.1587698005670469),
    *(-0.1803006050032712, 0.2061753596134483, -0.2404531654123349, 0.2885372934717876, -0.3606736748324025),
    *(0.4808983613951901, -0.7213475208687157, 1.442695040868707),
)
"""log2(1 + f) / f for 1 + f between sqrt(1/2) and sqrt(2): relative error 2^-35."""
_EXP2 = (
    *(1.534582568334511e-4, 1.339993431103304e-3, 9.618488922030903e-3, 0.05550328769438698),
    *(0.2402264689089164, 0.6931472057406525, 1.000000000554078),
)
"""2^r for |r| at most 1/2: relative error 2^-29."""


def tanh(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """A quotient of polynomials; for f64, -e / (e + 2) for e = e^(-2 |x|) - 1."""
    k = Kit(b, x.type)
    if not k.double:
        return _odd(k, x, 9.02, _TANH)
    twice = k.mul(-2.0, k.abs(x))
    r, n = k.reduce(k.where(k.less(twice, -40.0), -40.0, twice))
    power = k.power_of_two(n)
    e = k.mul_add(power, k.small_expm1(r), k.sub(power, 1.0))
    return k.with_sign(k.div(e, k.add(e, 2.0)), x)


def erf(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Of f32; that of f64 is the C library's."""
    return _odd(Kit(b, x.type), x, 3.92, _ERF)


def _odd(k: Kit, x: ir.Value, one: float, quotient: tuple[Sequence[float], Sequence[float]]) -> ir.Value:
    """x times a quotient of polynomials in x^2, of a function that is 1 from ``one`` on."""
    x = k.clamp(x, -one, one)
    over, under = (k.horner(k.mul(x, x), p) for p in quotient)  # whose first terms are rounded once
    return k.clamp(k.div(k.mul(x, over), under), -1.0, 1.0)


_TANH = (
    (1.33140447e-8, 2.057963191e-5, 3.493791986e-3, 0.1337951127, 0.9999999785),
    (7.75989526e-7, 3.282701982e-4, 0.02587014253, 0.4671282642, 1.0),
)
_ERF = (
    (2.050029919e-6, 2.848505105e-4, 3.764824427e-3, 0.05274626335, 0.1903900239, 1.128379146),
    (3.808942751e-5, 1.162315827e-3, 0.0149676526, 0.114102055, 0.5020615109, 1.0),
)
"""Relative errors 2^-25; no term takes anything from another."""


def sinh(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    k = Kit(b, x.type)
    size = k.abs(x)
    e = expm1(b, size)
    near = k.mul(0.5, k.add(e, k.div(e, k.add(e, 1.0))))
    return k.with_sign(k.where(k.less(size, 20.0), near, _half_exp(k, size)), x)


def cosh(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    k = Kit(b, x.type)
    size = k.abs(x)
    half = _half_exp(k, size)
    return k.add(half, k.div(0.25, half))


def _half_exp(k: Kit, x: ir.Value) -> ir.Value:
    """e^x / 2 for x >= 0, which overflows later than e^x."""
    r, n = k.reduce(x)
    high = 710.475860073943 if k.double else 89.41598
    return k.scaled(k.add(k.small_expm1(r), 1.0), k.b.sub(n, k.int(1)), x, 0.0, high)


def asinh(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    k = Kit(b, x.type)
    size = k.abs(x)
    square = k.mul(size, size)
    near = log1p(b, k.add(size, k.div(square, k.add(1.0, k.sqrt(k.add(1.0, square))))))
    return k.with_sign(k.where(k.less(size, _LARGE), near, _log_double(k, size)), x)


def acosh(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    k = Kit(b, x.type)
    t = k.sub(x, 1.0)
    near = log1p(b, k.add(t, k.sqrt(k.mul(t, k.add(t, 2.0)))))
    value = k.where(k.less(x, _LARGE), near, _log_double(k, x))
    return k.where(k.less(x, 1.0), math.nan, value)


def atanh(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    k = Kit(b, x.type)
    size = k.abs(x)
    return k.with_sign(k.mul(0.5, log1p(b, k.div(k.mul(2.0, size), k.sub(1.0, size)))), x)


_LARGE = 2.0**28  # where sqrt(x^2 + 1) is x in f64, and x^2 does not overflow in f32


def _log_double(k: Kit, x: ir.Value) -> ir.Value:
    return k.add(log(k.b, x), math.log(2))


EXPANSIONS = {f.__name__: f for f in (exp, exp_below, exp2, expm1, log, log1p, tanh, sinh, cosh, asinh, acosh, atanh)}
"""name -> (builder, x) -> result."""
