// XLA's arithmetic where C++ leaves it undefined or does otherwise: what generated code calls beyond operators and the functions
// of CUDA's mathematical library.
#pragma once

namespace jp {

using i8 = signed char;
using i16 = short;

template <int kBytes> struct IntegersOf;
template <> struct IntegersOf<1> { using Unsigned = u8; using Signed = i8; };
template <> struct IntegersOf<2> { using Unsigned = u16; using Signed = i16; };
template <> struct IntegersOf<4> { using Unsigned = u32; using Signed = i32; };
template <> struct IntegersOf<8> { using Unsigned = u64; using Signed = i64; };
template <class T>
using Unsigned = typename IntegersOf<static_cast<int>(sizeof(T))>::Unsigned;
template <class T>
using Signed = typename IntegersOf<static_cast<int>(sizeof(T))>::Signed;
// The type in which T's arithmetic wraps: small integers would be promoted to int, which does not.
template <class T>
using Wrapping = typename IntegersOf<(sizeof(T) < 4 ? 4 : static_cast<int>(sizeof(T)))>::Unsigned;

template <class T>
constexpr int kWidthOf = 8 * static_cast<int>(sizeof(T));
template <class T>
constexpr bool kIsSigned = static_cast<T>(-1) < static_cast<T>(1);

// --- integers -----------------------------------------------------------------------------------------------------------------

template <class T>
JP_DEVICE T Add(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
}
template <class T>
JP_DEVICE T Sub(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
}
template <class T>
JP_DEVICE T Mul(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
}
template <class T>
JP_DEVICE T Neg(T a) {
  return Sub(static_cast<T>(0), a);
}

// By zero: -1. The least integer by -1: itself.
template <class T>
JP_DEVICE T Div(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if constexpr (kIsSigned<T>) {
    if (b == -1) return Neg(a);
  }
  return static_cast<T>(a / b);
}
// By zero: a.
template <class T>
JP_DEVICE T Rem(T a, T b) {
  if (b == 0) return a;
  if constexpr (kIsSigned<T>) {
    if (b == -1) return 0;
  }
  return static_cast<T>(a % b);
}

template <class T>
JP_DEVICE T Max(T a, T b) {
  return a > b ? a : b;
}
template <class T>
JP_DEVICE T Min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
JP_DEVICE T Abs(T a) {
  return a < 0 ? Neg(a) : a;
}
template <class T>
JP_DEVICE T Sign(T a) {
  return static_cast<T>((a > 0) - (a < 0));
}

// Shifts past the width: 0 or the sign.
template <class T>
JP_DEVICE T ShiftLeft(T a, T by) {
  const auto n = static_cast<Unsigned<T>>(by);
  return n < kWidthOf<T> ? static_cast<T>(static_cast<Wrapping<T>>(a) << n) : static_cast<T>(0);
}
template <class T>
JP_DEVICE T ShiftRightLogical(T a, T by) {
  const auto n = static_cast<Unsigned<T>>(by);
  return n < kWidthOf<T> ? static_cast<T>(static_cast<Unsigned<T>>(a) >> n) : static_cast<T>(0);
}
template <class T>
JP_DEVICE T ShiftRightArithmetic(T a, T by) {
  const auto n = static_cast<Unsigned<T>>(by);
  const int shift = n < kWidthOf<T> ? static_cast<int>(n) : kWidthOf<T> - 1;
  return static_cast<T>(static_cast<Signed<T>>(a) >> shift);
}

template <class T>
JP_DEVICE T PopulationCount(T a) {
  return static_cast<T>(PopulationCount(static_cast<Wrapping<T>>(static_cast<Unsigned<T>>(a))));
}
template <class T>
JP_DEVICE T Clz(T a) {
  constexpr int kSpare = kWidthOf<Wrapping<T>> - kWidthOf<T>;
  return static_cast<T>(LeadingZeros(static_cast<Wrapping<T>>(static_cast<Unsigned<T>>(a))) - kSpare);
}

// --- floats -------------------------------------------------------------------------------------------------------------------

JP_DEVICE float RoundF16(float x) { return FromF16(ToF16(x)); }
JP_DEVICE float RoundBf16(float x) { return FromBf16(ToBf16(x)); }
// Of floats that are rounded already.
JP_DEVICE u16 F16Bits(float x) { return ToF16(x); }
JP_DEVICE u16 Bf16Bits(float x) { return static_cast<u16>(BitCast<u32>(x) >> 16); }

JP_DEVICE bool IsFinite(float x) { return (BitCast<u32>(x) & 0x7f800000u) != 0x7f800000u; }
JP_DEVICE bool IsFinite(double x) { return (BitCast<u64>(x) & 0x7ff0000000000000ull) != 0x7ff0000000000000ull; }

// NaN wins, and -0 < +0.
JP_DEVICE float Max(float a, float b) { return MaxOrNan(a, b); }
JP_DEVICE float Min(float a, float b) { return MinOrNan(a, b); }
JP_DEVICE double Max(double a, double b) {
  const double zero = BitCast<double>(BitCast<u64>(a) & BitCast<u64>(b));
  return a > b || a != a ? a : a == b ? zero : b;
}
JP_DEVICE double Min(double a, double b) {
  const double zero = BitCast<double>(BitCast<u64>(a) | BitCast<u64>(b));
  return a < b || a != a ? a : a == b ? zero : b;
}

// Zeros and NaN are their own sign.
JP_DEVICE float Sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x; }
JP_DEVICE double Sign(double x) { return x > 0 ? 1.0 : x < 0 ? -1.0 : x; }

// To the nearest integer towards zero that there is; NaN to 0.
template <class To, class From>
JP_DEVICE To Saturated(From x) {
  constexpr To kGreatest = static_cast<To>(static_cast<Unsigned<To>>(-1) >> (kIsSigned<To> ? 1 : 0));
  constexpr To kLeast = static_cast<To>(-kGreatest - 1) * static_cast<To>(kIsSigned<To>);
  constexpr From kBeyond = static_cast<From>(static_cast<u64>(1) << (kWidthOf<To> - 1)) * (kIsSigned<To> ? 1 : 2);
  if constexpr (sizeof(To) < 4 && sizeof(From) == 4) {
    const i32 whole = ToI32(x);
    return static_cast<To>(whole < kLeast ? kLeast : whole > kGreatest ? kGreatest : whole);
  } else {
    if (x >= kBeyond) return kGreatest;
    if (x > static_cast<From>(kLeast)) return static_cast<To>(x);
    return x != x ? static_cast<To>(0) : kLeast;
  }
}
template <>
JP_DEVICE i32 Saturated<i32, float>(float x) { return ToI32(x); }
template <>
JP_DEVICE u32 Saturated<u32, float>(float x) { return ToU32(x); }

// The bits of the next float after `from` towards `to`; both are no NaN, and differ.
template <class Bits>
JP_DEVICE Bits NextBits(Bits from, Bits to) {
  constexpr Bits kSign = static_cast<Bits>(static_cast<Bits>(1) << (kWidthOf<Bits> - 1));
  const Bits from_size = static_cast<Bits>(from & ~kSign), to_size = static_cast<Bits>(to & ~kSign);
  if (from_size == 0) return static_cast<Bits>((to & kSign) | 1);
  const bool inward = ((from ^ to) & kSign) != 0 || from_size > to_size;
  return static_cast<Bits>(inward ? from - 1 : from + 1);
}
JP_DEVICE float NextAfter(float x, float y) {
  if (x != x || y != y) return x + y;
  return x == y ? y : BitCast<float>(NextBits(BitCast<u32>(x), BitCast<u32>(y)));
}
JP_DEVICE double NextAfter(double x, double y) {
  if (x != x || y != y) return x + y;
  return x == y ? y : BitCast<double>(NextBits(BitCast<u64>(x), BitCast<u64>(y)));
}
JP_DEVICE float NextAfterF16(float x, float y) {
  if (x != x || y != y) return x + y;
  return x == y ? y : FromF16(NextBits(F16Bits(x), F16Bits(y)));
}
JP_DEVICE float NextAfterBf16(float x, float y) {
  if (x != x || y != y) return x + y;
  return x == y ? y : FromBf16(NextBits(Bf16Bits(x), Bf16Bits(y)));
}

JP_DEVICE float Logistic(float x) { return 1.0f / (1.0f + expf(-x)); }
JP_DEVICE double Logistic(double x) { return 1.0 / (1.0 + exp(-x)); }

// Reflection below 1/2, upward recurrence to 10, and there the asymptotic series.
JP_DEVICE double Digamma(double x) {
  constexpr double kPi = 3.141592653589793;
  const double kNan = BitCast<double>(0x7ff8000000000000ull), kInfinity = BitCast<double>(0x7ff0000000000000ull);
  const bool reflect = x < 0.5;
  if (reflect && x == floor(x)) return x == 0 ? copysign(kInfinity, -x) : kNan;
  double y = reflect ? 1.0 - x : x, shift = 0.0;
  while (y < 10.0) {
    shift += 1.0 / y;
    y += 1.0;
  }
  const double inverse = 1.0 / y, square = inverse * inverse;
  double series = 1.0 / 12;  // B_2k / 2k, k from 7 down to 1
  series = series * square - 691.0 / 32760;
  series = series * square + 1.0 / 132;
  series = series * square - 1.0 / 240;
  series = series * square + 1.0 / 252;
  series = series * square - 1.0 / 120;
  series = series * square + 1.0 / 12;
  const double value = log(y) - (square * series + inverse * 0.5) - shift;
  // pi cot(pi x) from x's distance to the nearest integer, which is exact near the poles
  return reflect ? value - kPi / tan((x - rint(x)) * kPi) : value;
}
JP_DEVICE float Digamma(float x) { return static_cast<float>(Digamma(static_cast<double>(x))); }

// --- atomics on floats ------------------------------------------------------------------------------------------------------------

// The bits of floats without a sign are integers of the same order, those with one of the opposite order. A NaN wins if its bits
// are the outermost of all.
JP_DEVICE float NanAboveAll(float x) { return x != x ? BitCast<float>(0x7fffffffu) : x; }
JP_DEVICE float NanBelowAll(float x) { return x != x ? BitCast<float>(0xffffffffu) : x; }
JP_DEVICE double NanAboveAll(double x) { return x != x ? BitCast<double>(0x7fffffffffffffffull) : x; }
JP_DEVICE double NanBelowAll(double x) { return x != x ? BitCast<double>(0xffffffffffffffffull) : x; }

// XLA's maximum and minimum; what is at p must come from here, or from the functions above.
template <class Float>
JP_DEVICE void AtomicFloatMax(Float* p, Float x) {
  const auto bits = BitCast<Signed<Float>>(NanAboveAll(x));
  if (bits >= 0) {
    AtomicMax(reinterpret_cast<Signed<Float>*>(p), bits);
  } else {
    AtomicMin(reinterpret_cast<Unsigned<Float>*>(p), static_cast<Unsigned<Float>>(bits));
  }
}
template <class Float>
JP_DEVICE void AtomicFloatMin(Float* p, Float x) {
  const auto bits = BitCast<Signed<Float>>(NanBelowAll(x));
  if (bits >= 0) {
    AtomicMin(reinterpret_cast<Signed<Float>*>(p), bits);
  } else {
    AtomicMax(reinterpret_cast<Unsigned<Float>*>(p), static_cast<Unsigned<Float>>(bits));
  }
}

}  // namespace jp
