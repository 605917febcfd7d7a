// A kernel of the ordered family written by hand, with the contract of the compiled ones (cpu/ordered_kernel.h).
//
// It composes affine maps modulo 2^32 and counts them: an operator that does not commute, and exact, so that any association
// gives the same result. Arrays: values (uint32) and the element's position; one uniform. Results: the map (two uint32) and the
// count's lowest byte.
#pragma once

#include <cstdint>
#include <cstring>

#include "check.h"
#include "ordered_call.h"
#include "ordered_kernel.h"

namespace jaxprims::test {

struct Affine {
  uint32_t a = 1, b = 0;
  uint64_t count = 0;  // the identity, as it stands

  static Affine Of(uint32_t value, int64_t position, uint32_t scale) {
    return {2 * value + 1, value * scale + static_cast<uint32_t>(position), 1};
  }
  Affine Then(const Affine& next) const { return {a * next.a, b * next.a + next.b, count + next.count}; }
  bool operator==(const Affine&) const = default;
};

enum AffineOptions : uint8_t { kExclusive = 1, kReverse = 2, kRestarts = 4, kAcross = 8, kAffineOptions = 16 };

template <int kOptions>
struct AffineScan {
  static constexpr bool kIsExclusive = (kOptions & kExclusive) != 0, kIsReverse = (kOptions & kReverse) != 0,
                        kHasRestarts = (kOptions & kRestarts) != 0, kIsAcross = (kOptions & kAcross) != 0;

  static Affine Load(const void* state, int64_t lane, int64_t lanes) {
    Affine x;
    const char* p = static_cast<const char*>(state);
    std::memcpy(&x.a, p + 4 * lane, 4);
    std::memcpy(&x.b, p + 8 * lanes + 4 * lane, 4);
    std::memcpy(&x.count, p + 16 * lanes + 8 * lane, 8);
    return x;
  }

  static void Store(const Affine& x, void* state, int64_t lane, int64_t lanes) {
    char* p = static_cast<char*>(state);
    std::memcpy(p + 4 * lane, &x.a, 4);
    std::memcpy(p + 8 * lanes + 4 * lane, &x.b, 4);
    std::memcpy(p + 16 * lanes + 8 * lane, &x.count, 8);
  }

  static int64_t Run(const void* const* arrays, const void* const* uniforms, void* const* outs, const uint8_t* flags,
                     const OrderedRange& range, const void* prefix, void* aggregate, int64_t progress) {
    const int64_t wanted = range.lane_hi - range.lane_lo;
    CHECK(range.lo < range.hi && range.hi <= range.n && arrays[1] == nullptr);
    if (range.period > 0) {
      CHECK(range.lo % range.period == 0 && range.hi % range.period == 0 && prefix == nullptr && progress == 0);
    } else if (!kIsAcross) {
      CHECK(range.lo % kScanStep == 0 && (range.hi % kScanStep == 0 || range.hi == range.n));
    }
    const auto* values = static_cast<const uint32_t*>(arrays[0]);
    const uint32_t scale = *static_cast<const uint32_t*>(uniforms[0]);
    for (int64_t i = range.lo; i < range.hi; ++i) {
      const int64_t m = kIsReverse ? range.n - 1 - i : i;
      bool started = (progress & kStarted) != 0 && (range.period == 0 || i % range.period != 0);
      if (kHasRestarts && flags[m] != 0) started = false, progress |= kRestarted;
      const bool cut = (progress & kRestarted) != 0;
      for (int64_t lane = 0; lane < wanted; ++lane) {
        const int64_t at = m * range.lanes + range.lane_lo + lane;
        const Affine x = Affine::Of(values[at], range.period ? m % range.period : m, scale);
        const Affine before = started ? Load(aggregate, lane, wanted) : Affine{};
        const Affine after = before.Then(x);
        Store(after, aggregate, lane, wanted);
        if (outs == nullptr) continue;
        const Affine own = kIsExclusive ? before : after;
        const Affine out = prefix == nullptr || cut ? own : Load(prefix, lane, wanted).Then(own);
        static_cast<uint32_t*>(outs[0])[2 * at] = out.a;
        static_cast<uint32_t*>(outs[0])[2 * at + 1] = out.b;
        static_cast<uint8_t*>(outs[1])[at] = static_cast<uint8_t>(out.count);
      }
      progress |= kStarted;
    }
    return progress;
  }

  static int64_t Scan(const void* const* arrays, const void* const* uniforms, void* const* outs, const uint8_t* flags,
                      const OrderedRange* range, const void* prefix, void* aggregate, int64_t progress) {
    return Run(arrays, uniforms, outs, flags, *range, prefix, aggregate, progress);
  }

  static int64_t Reduce(const void* const* arrays, const void* const* uniforms, const uint8_t* flags, const OrderedRange* range,
                        void* aggregate, int64_t progress) {
    return Run(arrays, uniforms, nullptr, flags, *range, nullptr, aggregate, progress);
  }

  static void Combine(const void* const* /*uniforms*/, const void* a, const void* b, void* out, int64_t lanes) {
    for (int64_t lane = 0; lane < lanes; ++lane) Store(Load(a, lane, lanes).Then(Load(b, lane, lanes)), out, lane, lanes);
  }

  static OrderedKernel Kernel() { return {Scan, Reduce, Combine, nullptr}; }
};

template <int kOptions = 0>
OrderedKernel AffineScanKernel(int options) {
  if constexpr (kOptions == kAffineOptions) {
    CHECK(false);
    return {};
  } else {
    return options == kOptions ? AffineScan<kOptions>::Kernel() : AffineScanKernel<kOptions + 1>(options);
  }
}

inline OrderedShape AffineShape(int options) {
  OrderedShape shape;
  shape.kind = "scan";
  shape.array_bytes = {4, 0};
  shape.uniforms = 1;
  shape.leaf_bytes = {8, 1};
  shape.leaf_slots = {2, 1};
  shape.slot_bytes = {4, 4, 8};
  shape.exclusive = (options & kExclusive) != 0;
  shape.reverse = (options & kReverse) != 0;
  shape.restarts = (options & kRestarts) != 0;
  shape.across = (options & kAcross) != 0;
  shape.identity = true;
  return shape;
}

}  // namespace jaxprims::test
