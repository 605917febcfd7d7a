// Arithmetic on sizes, of both halves.
#pragma once

#include <cstdint>
#include <span>

namespace jaxprims {

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t RoundUp(int64_t a, int64_t to) { return CeilDiv(a, to) * to; }

inline int64_t Sum(std::span<const int64_t> numbers) {
  int64_t sum = 0;
  for (const int64_t n : numbers) sum += n;
  return sum;
}

// -1 where it is no int64_t: as many elements as no memory holds, beside an axis of none.
inline int64_t Product(std::span<const int64_t> numbers) {
  int64_t product = 1;
  for (const int64_t n : numbers) {
    if (__builtin_mul_overflow(product, n, &product)) return -1;
  }
  return product;
}

// The first number in [lo, hi) for which `before` is false; it is true for those before, if the input is as promised.
template <class Before>
int64_t FirstNot(int64_t lo, int64_t hi, Before before) {
  while (lo < hi) {
    const int64_t mid = lo + (hi - lo) / 2;
    if (before(mid)) {
      lo = mid + 1;
    } else {
      hi = mid;
    }
  }
  return lo;
}

}  // namespace jaxprims
