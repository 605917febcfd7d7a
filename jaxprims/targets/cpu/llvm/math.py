"""Mathematical functions of f32 and f64, scalars and vectors of any width, in LLVM IR.

exp, log and the like, and what follows from them, are expansions. The others are the C library's: a vector is cut into pieces
of the machine's width for libmvec (4 ULP), or into its lanes where there is no libmvec. libmvec's functions of other widths, and
libm's of one number, round otherwise: so that one number has one sine, a lane or a scalar of a row, fewer lanes are a piece too.
Sines and cosines of far numbers are made of those near zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from llvmlite import ir

from ....ir.program import CONTROL, Program
from .elementary import EXPANSIONS, Kit, erf, power_of_positive
from .engine import has_symbol, target, vector_function
from .gamma import digamma, lgamma
from .types import call, intrinsic, lanes, scalar_of, shared, splat, take, undefined, with_lanes, with_scalar

Math = Callable[..., ir.Value]
"""(builder, operands...) -> result, all of one type."""


class Unavailable(NotImplementedError):
    """A mathematical function that neither this machine's libraries nor an expansion can compute."""


def library(name: str) -> Math:
    """The C library's function ``name``, vectorised where the machine has it so."""

    def compute(b: ir.IRBuilder, *args: ir.Value) -> ir.Value:
        t = args[0].type
        dtype, letter = ("f32", "f") if scalar_of(t) == ir.FloatType() else ("f64", "")
        full = target().vector_bytes // (4 if dtype == "f32" else 8)
        found = ((w, vector_function(name, dtype, w)) for w in (full, full // 2, full // 4))
        piece, symbol = next((known for known in found if known[1]), (0, None))
        if symbol:
            return in_pieces(b, lambda *part: call(b, symbol, part[0].type, *part), args, piece)
        if not has_symbol(name + letter):
            raise Unavailable(f"{name}{letter} is not in this machine's C library")
        return lane_by_lane(b, lambda *lane: call(b, name + letter, lane[0].type, *lane), args)

    return compute


def in_pieces(b: ir.IRBuilder, f: Callable[..., ir.Value], args: Sequence[ir.Value], piece: int) -> ir.Value:
    """``f`` on pieces of ``piece`` lanes; a last piece that is not full repeats the last lane, as that of a scalar does."""
    width = lanes(args[0].type)
    if width == piece:
        return f(*args)
    if width == 1:
        return b.extract_element(f(*(splat(b, a, piece) for a in args)), ir.IntType(32)(0))
    parts = []
    for start in range(0, width, piece):
        order = [min(start + k, width - 1) for k in range(piece)]
        parts.append(f(*(take(b, a, a, order) for a in args)))
    while len(parts) > 1:  # joined in pairs; an odd one is joined with itself
        parts = [_joined(b, *(parts[k : k + 2] * 2)[:2]) for k in range(0, len(parts), 2)]
    return take(b, parts[0], parts[0], range(width)) if lanes(parts[0].type) != width else parts[0]


def _joined(b: ir.IRBuilder, low: ir.Value, high: ir.Value) -> ir.Value:
    return take(b, low, high, range(2 * lanes(low.type)))


def lane_by_lane(b: ir.IRBuilder, f: Callable[..., ir.Value], args: Sequence[ir.Value]) -> ir.Value:
    """``f`` on every lane alone."""
    t = args[0].type
    if lanes(t) == 1:
        return f(*args)
    ones = (f(*(b.extract_element(a, ir.IntType(32)(k)) for a in args)) for k in range(lanes(t)))
    return with_lanes(b, undefined(t), ones)


def rsqrt(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    k = Kit(b, x.type)
    return k.div(1.0, k.sqrt(x))


def logistic(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    k = Kit(b, x.type)
    return k.div(1.0, k.add(1.0, MATH["exp"](b, b.fneg(x))))


# erf_inv(y) / y as Giles has it ("Approximating the erfinv function", 2010), fitted anew: relative errors 6e-9 and 7e-8
_ERF_INV_CENTRE = [
    -8.931926009e-09, 2.333596724e-08, 4.681313486e-07, -3.463985268e-06, -4.972419692e-06, 2.183493862e-04, -1.252726392e-03,
    -4.177392875e-03, 0.2466402791, 1.50140936,
]  # in w - 2.5, w = -log(1 - y^2) < 5  # fmt: skip
_ERF_INV_TAIL = [
    -3.281250885e-07, 7.536066709e-07, 3.261583613e-06, -1.07949008e-05, 4.63727153e-06, 2.998050685e-06, 2.872883378e-05,
    -8.958011253e-05, 2.279315756e-04, -6.431656655e-04, 8.073653567e-04, 1.009901083, 4.041726369,
]  # in sqrt(w) - 4.2, up to 1 - |y| = 2^-53  # fmt: skip


def erf_inv(b: ir.IRBuilder, y: ir.Value) -> ir.Value:
    """Two polynomials; for f64, then one step of Halley's method, which cubes their error."""
    k = Kit(b, y.type)
    size = k.abs(y)
    rest = k.sub(1.0, size)
    w = b.fneg(MATH["log"](b, k.mul(rest, k.add(1.0, size))))
    centre = k.polynomial(k.sub(w, 2.5), _ERF_INV_CENTRE)
    tail = k.polynomial(k.sub(k.sqrt(w), 4.2), _ERF_INV_TAIL)
    x = k.mul(size, k.where(k.less(w, 5.0), centre, tail))
    if k.double:
        beyond = k.sub(rest, MATH["erfc"](b, x))  # near 1 only the complement tells values apart, near 0 only erf itself
        error = k.where(k.less(size, 0.5), k.sub(MATH["erf"](b, x), size), beyond)
        newton = k.div(error, k.mul(2 / math.sqrt(math.pi), MATH["exp"](b, b.fneg(k.mul(x, x)))))
        x = k.sub(x, k.div(newton, k.mul_add(newton, x, 1.0)))
    return k.with_sign(k.where(k.equal(size, 1.0), math.inf, x), y)


_PI = (3.141592653589793, 1.2246467991473532e-16)
"""As a sum of two numbers of f64."""

_FAR, _FARTHEST = 1e4, 2.0**40
"""Of these f32 libmvec has sines and cosines one after the other; and from where on their last places are many turns."""


def of_turns(name: str) -> Math:
    """The C library's sine or cosine; of far numbers, its sine of their distance to the nearest zero, of which f64 has all places
    of f32."""

    def compute(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
        if scalar_of(x.type) == ir.DoubleType() or not target().fma:
            return library(name)(b, x)
        return shared(b, name, lambda b, x: _near_or_far(b, name, x), x)

    return compute


def _near_or_far(b: ir.IRBuilder, name: str, x: ir.Value) -> ir.Value:
    k, d = Kit(b, x.type), Kit(b, with_scalar(x.type, ir.DoubleType()))
    size = k.abs(x)
    far = b.and_(k.less(_FAR, size), k.less(size, _FARTHEST))
    k.unless(far, lambda: library(name)(b, x))
    y = b.fpext(x, d.t)
    # sin(n pi + r) is sin(r), or -sin(r) for an odd n; cos((n + 1/2) pi + r) for an even one
    before = 0.0 if name == "sin" else 0.5
    n, as_int = d.nearest(d.mul_add(y, 1 / math.pi, -before))
    zero = d.add(n, before)
    rest = b.fptrunc(d.mul_add(zero, -_PI[1], d.mul_add(zero, -_PI[0], y)), k.t)
    odd = b.shl(b.trunc(as_int, k.word), k.int(31))
    flipped = odd if name == "sin" else b.xor(odd, k.int(1 << 31))
    value = library("sin")(b, k.where(far, rest, x if name == "sin" else 0.0))
    turned_value = b.bitcast(b.xor(b.bitcast(value, k.word), flipped), k.t)
    return k.where(far, turned_value, value if name == "sin" else library(name)(b, k.where(far, 0.0, x)))


def error_function(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The C library's; an expansion for f32."""
    return library("erf")(b, x) if scalar_of(x.type) == ir.DoubleType() else shared(b, "erf", erf, x)


def erfc(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The C library's, which libmvec has for one number after the other where it is no normal number any more: zero."""
    k = Kit(b, x.type)
    far = k.less(27.0 if k.double else 10.0, x)
    return k.where(far, 0.0, library("erfc")(b, k.where(far, 1.0, x)))


def power(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Of positive numbers, that of f64 is the C library's: zeros and negative ones libmvec takes one after the other."""
    return shared(b, "power", _power, x, y)


def _power(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    k = Kit(b, x.type)
    zero, half = k.equal(x, 0.0), k.mul(y, 0.5)
    whole = k.equal(y, intrinsic(b, "trunc", k.t, y))
    odd = b.and_(whole, b.not_(k.equal(half, intrinsic(b, "trunc", k.t, half))))
    size = (library("pow") if k.double else power_of_positive)(b, k.where(zero, 1.0, k.abs(x)), y)
    of_zero = k.where(k.less(0.0, y), 0.0, k.where(k.less(y, 0.0), math.inf, k.add(y, 1.0)))
    value = k.where(zero, of_zero, size)
    value = k.where(odd, k.with_sign(value, x), value)
    nowhere = b.and_(b.and_(k.less(x, 0.0), k.less(-math.inf, x)), b.not_(whole))
    return k.where(nowhere, math.nan, value)


def rem(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x - n y for the whole n = x / y towards zero: exact. The C library's function, as XLA calls it, takes one number after the
    other; it has only the vectors with a quotient too large to have all its digits, or with denormals, which floats flush."""
    return shared(b, "rem", _rem, x, y) if target().fma else b.frem(x, y)


def _rem(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    k = Kit(b, x.type)
    size, of = k.abs(x), k.abs(y)
    quotient = k.div(size, of)
    normal = 2.0 ** (1 - k.bias)
    # multiples of the last place of such a divisor are no denormals; which numbers are, integers say, where floats flush them
    known = b.and_(k.less(quotient, 2.0 ** (k.mantissa - 1)), b.and_(k.less(of, math.inf), k.less(normal * 2.0**k.mantissa, of)))
    bits = b.and_(b.bitcast(x, k.word), k.int((1 << (63 if k.double else 31)) - 1))
    known = b.and_(known, b.icmp_unsigned(">=", b.sub(bits, k.int(1)), k.int((1 << k.mantissa) - 1)))

    def known_rest() -> ir.Value:
        rest = k.mul_add(b.fneg(intrinsic(b, "trunc", k.t, quotient)), of, size)
        # a quotient that was rounded up to a whole number is one too many
        return k.with_sign(k.where(k.less(rest, 0.0), k.add(rest, of), rest), x)

    k.unless(b.not_(known), known_rest)
    return lane_by_lane(b, b.frem, (x, y))


def _shared(name: str, f: Math) -> Math:
    return lambda b, *args: shared(b, name, f, *args)


_LIBRARY = ["tan", "asin", "acos", "atan", "cbrt", "atan2"]
_LONG: dict[str, Math] = {**EXPANSIONS, "logistic": logistic, "erf_inv": erf_inv, "digamma": digamma, "lgamma": lgamma}

MATH: dict[str, Math] = {
    **{name: library(name) for name in _LIBRARY},
    **{name: _shared(name, f) for name, f in _LONG.items()},
    "sin": of_turns("sin"),
    "cos": of_turns("cos"),
    "erf": error_function,
    "erfc": erfc,
    "pow": power,
    "sqrt": lambda b, x: intrinsic(b, "sqrt", x.type, x),
    "rsqrt": rsqrt,
}
"""How each mathematical operation is emitted."""

CHAIN, TWO_CHAINS = 16, 64
"""Instructions from which on operations wait for those before, and up to which registers hold what two vectors need."""


def goes_in_pairs(program: Program) -> bool:
    """Do two vectors of lanes take little longer than one? Functions are long chains of operations: each hides how long the
    other's take. Powers of f32 are made of f64, two vectors already."""
    ops, length = {i.op for i in program.body}, len(program.body)
    return length <= TWO_CHAINS and (length > CHAIN or bool(ops & MATH.keys())) and not ops & {*CONTROL, "pow"}
