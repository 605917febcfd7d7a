// A kernel of the ordered family written by hand, with the interface of the compiled ones (cpu/ordered_kernel.h), and a call of
// it.
//
// The operator composes affine maps modulo 2^64 (associative, exact, not commutative) and adds floats (whose bits tell how they
// were associated). An element is made of a value (int32), its position and a uniform; the result has leaves of 16, 4, 2 and 3
// bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "batches.h"
#include "check.h"
#include "ordered_call.h"
#include "ordered_kernel.h"

namespace jaxprims::test {

struct AffineState {
  uint64_t a = 0, b = 0;
  float sum = 0;
};

inline AffineState Compose(const AffineState& x, const AffineState& y) { return {x.a * y.a, x.b * y.a + y.b, x.sum + y.sum}; }

inline AffineState AffineElement(int32_t value, int64_t position, int64_t scale) {
  return {static_cast<uint64_t>(value) * 2 + 1, static_cast<uint64_t>(position * scale + value),
          static_cast<float>(value) * 0.3F};
}

inline const AffineState kAffineIdentity = {1, 0, 0};

struct AffineResult {
  std::vector<char> leaves[4];
  static constexpr int64_t kBytes[4] = {16, 4, 2, 3};

  AffineResult() = default;
  explicit AffineResult(int64_t count) {
    for (int k = 0; k < 4; ++k) leaves[k].assign(static_cast<size_t>(count * kBytes[k]), static_cast<char>(0x77));
  }
  bool operator==(const AffineResult&) const = default;

  // Whether all but the floats is the same.
  bool SameMaps(const AffineResult& other) const {
    return leaves[0] == other.leaves[0] && leaves[2] == other.leaves[2] && leaves[3] == other.leaves[3];
  }

  static void Write(const AffineState& s, void* const* outs, int64_t at) {
    const uint64_t pair[2] = {s.a, s.b};
    const char* bytes[4] = {reinterpret_cast<const char*>(pair), reinterpret_cast<const char*>(&s.sum),
                            reinterpret_cast<const char*>(pair), reinterpret_cast<const char*>(pair + 1)};
    for (int k = 0; k < 4; ++k) {
      char* to = static_cast<char*>(outs[k]) + at * kBytes[k];
      std::memcpy(to, bytes[k], static_cast<size_t>(kBytes[k]));
    }
  }
  void Set(int64_t at, const AffineState& s) {
    void* outs[4] = {leaves[0].data(), leaves[1].data(), leaves[2].data(), leaves[3].data()};
    Write(s, outs, at);
  }
};

struct AffineKernel {
  static AffineState Load(const void* state, int64_t lane, int64_t lanes) {
    const char* base = static_cast<const char*>(state);
    AffineState s;
    std::memcpy(&s.a, base + lane * 8, 8);
    std::memcpy(&s.b, base + 8 * lanes + lane * 8, 8);
    std::memcpy(&s.sum, base + 16 * lanes + lane * 4, 4);
    return s;
  }

  static void Store(const AffineState& s, void* state, int64_t lane, int64_t lanes) {
    char* base = static_cast<char*>(state);
    std::memcpy(base + lane * 8, &s.a, 8);
    std::memcpy(base + 8 * lanes + lane * 8, &s.b, 8);
    std::memcpy(base + 16 * lanes + lane * 4, &s.sum, 4);
  }

  static AffineState Element(const void* const* arrays, const void* const* uniforms, const OrderedRange& r, int64_t i,
                             int64_t lane) {
    const int64_t row = r.steps == nullptr ? 0 : i / r.period, at = i - row * r.period;
    const auto step = [&](const void* p, int64_t k) {
      return static_cast<const char*>(p) + (row > 0 ? row % r.inner * r.steps[k] + row / r.inner * r.steps[3 + k] : 0);
    };
    int32_t value = 0;
    int64_t scale = 0;
    std::memcpy(&value, step(arrays[0], 0) + 4 * (at * r.lanes + lane), 4);
    std::memcpy(&scale, step(uniforms[0], 2), 8);
    return AffineElement(value, r.period > 0 ? i % r.period : i, scale);
  }

  static int64_t Scan(const void* const* arrays, const void* const* uniforms, void* const* outs, const uint8_t* flags,
                      const OrderedRange* range, const void* prefix, void* aggregate, int64_t progress) {
    const OrderedRange& r = *range;
    CHECK(prefix == nullptr && r.lanes == 1 && 0 <= r.lo && r.lo <= r.hi && r.hi <= r.n);
    AffineState s = (progress & kStarted) != 0 ? Load(aggregate, 0, 1) : AffineState();
    bool fresh = (progress & kStarted) == 0;
    for (int64_t i = r.lo; i < r.hi; ++i) {
      if (r.period > 0 && i % r.period == 0) fresh = true;
      if (flags != nullptr && flags[i] != 0) {
        fresh = true;
        progress |= kRestarted;
      }
      const AffineState e = Element(arrays, uniforms, r, i, 0);
      s = fresh ? e : Compose(s, e);
      fresh = false;
      if (r.period == 0) {
        AffineResult::Write(s, outs, i);
      } else if ((i + 1) % r.period == 0) {
        AffineResult::Write(s, outs, (i - r.lo) / r.period);
      }
    }
    if (aggregate != nullptr) Store(s, aggregate, 0, 1);
    return r.lo < r.hi ? progress | kStarted : progress;
  }

  // Of a reduction, across: bundles of `period` steps, one behind the other.
  static int64_t Bundles(const void* const* arrays, const void* const* uniforms, void* const* outs, const uint8_t* flags,
                         const OrderedRange* range, const void* prefix, void* aggregate, int64_t /*progress*/) {
    const OrderedRange& r = *range;
    CHECK(flags == nullptr && prefix == nullptr && aggregate == nullptr && r.lo == 0 && r.hi == r.n && r.n % r.period == 0);
    CHECK(0 <= r.lane_lo && r.lane_lo < r.lane_hi && r.lane_hi <= r.lanes);
    for (int64_t first = 0; first < r.n; first += r.period) {
      for (int64_t lane = r.lane_lo; lane < r.lane_hi; ++lane) {
        AffineState s = Element(arrays, uniforms, r, first, lane);
        for (int64_t i = 1; i < r.period; ++i) s = Compose(s, Element(arrays, uniforms, r, first + i, lane));
        AffineResult::Write(s, outs, first / r.period * r.lanes + lane);
      }
    }
    return kStarted;
  }

  static int64_t Reduce(const void* const* arrays, const void* const* uniforms, const uint8_t* flags, const OrderedRange* range,
                        void* aggregate, int64_t progress) {
    const OrderedRange& r = *range;
    const int64_t lanes = r.lane_hi - r.lane_lo;
    CHECK(flags == nullptr && 0 <= r.lo && r.lo < r.hi && r.hi <= r.n && 0 <= r.lane_lo && r.lane_hi <= r.lanes && lanes > 0);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      AffineState s = (progress & kStarted) != 0 ? Load(aggregate, lane, lanes) : AffineState();
      for (int64_t i = r.lo; i < r.hi; ++i) {
        const AffineState e = Element(arrays, uniforms, r, i, r.lane_lo + lane);
        s = (progress & kStarted) == 0 && i == r.lo ? e : Compose(s, e);
      }
      Store(s, aggregate, lane, lanes);
    }
    return progress | kStarted;
  }

  static void Combine(const void* const* /*uniforms*/, const void* a, const void* b, void* out, int64_t lanes) {
    for (int64_t lane = 0; lane < lanes; ++lane) Store(Compose(Load(a, lane, lanes), Load(b, lane, lanes)), out, lane, lanes);
  }

  static void Finish(const void* const* /*uniforms*/, const void* state, void* const* outs, int64_t lanes) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      AffineResult::Write(state == nullptr ? kAffineIdentity : Load(state, lane, lanes), outs, lane);
    }
  }

  static void Runs(const void* const* arrays, const void* const* uniforms, void* const* outs, const int32_t* ends, int64_t base,
                   int64_t first, int64_t count) {
    CHECK(count > 0);
    for (int64_t k = 0; k < count; ++k) {
      CHECK(first < base + ends[k]);
      AffineState s;
      for (int64_t i = first; i < base + ends[k]; ++i) {
        const AffineState e = Element(arrays, uniforms, OrderedRange{}, i, 0);
        s = i == first ? e : Compose(s, e);
      }
      AffineResult::Write(s, outs, k);
      first = base + ends[k];
    }
  }

  static OrderedKernel Kernel(bool across) { return {across ? Bundles : Scan, Reduce, Combine, Finish, across ? nullptr : Runs}; }
  static OrderedShape Shape(const char* kind, bool across) {
    OrderedShape shape;
    shape.kind = kind;
    shape.array_bytes = {4, 0};
    shape.uniforms = 1;
    shape.leaf_bytes.assign(AffineResult::kBytes, AffineResult::kBytes + 4);
    shape.leaf_slots = {2, 1, 1, 1};
    shape.slot_bytes = {8, 8, 4};
    shape.across = across;
    shape.folds_rows = true;
    shape.folds_spaced = !across;
    shape.identity = true;
    return shape;
  }
};

// A call's memory but for the results. Vectors are as long as the operand, so the address sanitizer sees an access past its end.
struct AffineProblem : Batch {
  int value_mask = 3, scale_mask = 0, init_mask = 3, segments_mask = 3;
  int64_t n = 0, lanes = 1;
  bool init = false, across = false;
  std::vector<int32_t> value;
  std::vector<int64_t> scale;
  std::vector<uint64_t> init_maps;  // (a, b) by lane: a leaf of two slots
  std::vector<float> init_sums;

  void Draw(unsigned seed) {
    std::mt19937 random(seed);
    for (int64_t i = 0; i < Members(value_mask) * n * lanes; ++i) value.push_back(static_cast<int32_t>(random() % 2001) - 1000);
    for (int64_t i = 0; i < Members(scale_mask); ++i) scale.push_back(static_cast<int64_t>(random() % 50));
    for (int64_t i = 0; init && i < Members(init_mask) * lanes; ++i) {
      init_maps.push_back(random());
      init_maps.push_back(random());
      init_sums.push_back(static_cast<float>(random() % 100));
    }
  }

  // `count`: results of a member.
  OrderedCall Call(AffineResult& out, int64_t count) const {
    OrderedCall call;
    call.n = n;
    call.lanes = lanes;
    call.batch.assign(batch.begin(), batch.end());
    call.arrays = {At(value.data(), value_mask, n * lanes * 4), {}};
    call.uniforms = {At(scale.data(), scale_mask, 8)};
    if (init) {
      call.init = {{At(init_maps.data(), init_mask, lanes * 16), 2}, {At(init_sums.data(), init_mask, lanes * 4), 1}};
    }
    for (int k = 0; k < 4; ++k) call.outs.push_back(At(out.leaves[k].data(), 3, count * AffineResult::kBytes[k]));
    return call;
  }

  AffineState Element(int64_t member, int64_t i, int64_t lane) const {
    const int64_t at = (Member(value_mask, member) * n + i) * lanes + lane;
    return AffineElement(value[static_cast<size_t>(at)], i, scale[static_cast<size_t>(Member(scale_mask, member))]);
  }
};

}  // namespace jaxprims::test
