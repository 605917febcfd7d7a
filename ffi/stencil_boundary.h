// What is read beyond an array: one text for the CPU's driver, the GPU's launcher and its kernels, which have no standard
// headers.
#pragma once

#ifndef JP_HOST_DEVICE
#define JP_HOST_DEVICE inline
#endif

namespace jaxprims {

// What is read outside an array on an axis (jaxprims/primitives/stencil/call.py: MODES). kNothing: nothing is; those that a
// damaged artifact reads all the same are the fill value.
enum class Boundary : unsigned char { kEdge, kWrap, kReflect, kSymmetric, kConstant, kNothing };

#ifdef __CUDACC_RTC__
using Coordinate = long long;
#else
using Coordinate = __INT64_TYPE__;
#endif

constexpr Coordinate kFillValue = -0x7fffffffffffffff - 1;  // no coordinate: what is read is the fill value

JP_HOST_DEVICE Coordinate Modulo(Coordinate a, Coordinate m) { return a % m < 0 ? a % m + m : a % m; }

// Where what is read at coordinate x lies, of an axis with cells [begin, end).
JP_HOST_DEVICE Coordinate Mapped(Boundary boundary, Coordinate x, Coordinate begin, Coordinate end) {
  if (x >= begin && x < end) return x;
  const Coordinate n = end - begin;
  if (n <= 0) return kFillValue;
  switch (boundary) {
    case Boundary::kEdge:
      return x < begin ? begin : end - 1;
    case Boundary::kWrap:
      return begin + Modulo(x - begin, n);
    case Boundary::kReflect: {
      if (n == 1) return begin;
      const Coordinate at = Modulo(x - begin, 2 * (n - 1));
      return begin + (at < n ? at : 2 * (n - 1) - at);
    }
    case Boundary::kSymmetric: {
      const Coordinate at = Modulo(x - begin, 2 * n);
      return begin + (at < n ? at : 2 * n - 1 - at);
    }
    default:
      return kFillValue;
  }
}

}  // namespace jaxprims
