// Kernels written by hand, with the layout of the compiled ones (jaxprims/targets/cpu/histogram/kernel.py), and their result by a
// plain loop.
//
// One pass makes two histograms from the arrays (index [n], value [n]) and the element's position:
//   0: (sum of scale * value, count), a result of two leaves, an entry of 16 bytes; scale is a uniform
//   1: the largest position, in as many bins as it is given
// An index outside a histogram's bins is dropped from it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "check.h"
#include "hist.h"

namespace jaxprims::test {

// T: float, whose sum depends on the order, or int64_t.
template <class T>
struct Entry {
  T sum;
  int64_t count;
};

inline constexpr int64_t kNone = std::numeric_limits<int64_t>::min();

template <class T, class Index, int kCopies, bool kSoa, bool kRanged>
struct SumCountLast {
  static void Update(const void* const* arrays, const void* const* uniforms, void* const* tables, const int64_t* bins, int64_t lo,
                     int64_t hi, int64_t bin_lo, int64_t bin_hi) {
    const auto* index = static_cast<const Index*>(arrays[0]);
    const auto* value = static_cast<const T*>(arrays[1]);
    const T scale = *static_cast<const T*>(uniforms[0]);
    for (int64_t i = lo; i < hi; ++i) {
      if (int64_t b = index[i]; Place(b, bins[0], bin_lo, bin_hi)) {
        if constexpr (kSoa) {
          static_cast<T*>(tables[0])[b] += scale * value[i];
          static_cast<int64_t*>(tables[1])[b] += 1;
        } else {
          auto& entry = static_cast<Entry<T>*>(tables[0])[b * kCopies + i % kCopies];
          entry.sum += scale * value[i];
          entry.count += 1;
        }
      }
      if (int64_t b = index[i]; Place(b, bins[1], bin_lo, bin_hi)) {
        auto& last = static_cast<int64_t*>(tables[kSoa ? 2 : 1])[kSoa ? b : b * kCopies + i % kCopies];
        last = std::max(last, i);
      }
    }
  }

  static void FillSums(void* const* tables, const void* const* /*uniforms*/, int64_t lo, int64_t hi) {
    if constexpr (kSoa) {
      std::fill(static_cast<T*>(tables[0]) + lo, static_cast<T*>(tables[0]) + hi, T{0});
      std::fill(static_cast<int64_t*>(tables[1]) + lo, static_cast<int64_t*>(tables[1]) + hi, 0);
    } else {
      auto* table = static_cast<Entry<T>*>(tables[0]);
      std::fill(table + lo * kCopies, table + hi * kCopies, Entry<T>{0, 0});
    }
  }

  static void FillLast(void* const* tables, const void* const* /*uniforms*/, int64_t lo, int64_t hi) {
    auto* table = static_cast<int64_t*>(tables[0]);
    std::fill(table + lo * kCopies, table + hi * kCopies, kNone);
  }

  static void CombineSums(void* const* outs, const void* const* dests, const void* const* /*uniforms*/, const void* table,
                          int64_t parts, int64_t stride, int64_t lo, int64_t hi) {
    for (int64_t b = lo; b < hi; ++b) {
      Entry<T> all{0, 0};
      if (dests[0] != nullptr) all = {static_cast<const T*>(dests[0])[b], static_cast<const int64_t*>(dests[1])[b]};
      ForEachCopy<Entry<T>>(table, parts, stride, b, [&](const Entry<T>& part) {
        all.sum += part.sum;
        all.count += part.count;
      });
      static_cast<T*>(outs[0])[b] = all.sum;
      static_cast<int64_t*>(outs[1])[b] = all.count;
    }
  }

  static void CombineLast(void* const* outs, const void* const* dests, const void* const* /*uniforms*/, const void* table,
                          int64_t parts, int64_t stride, int64_t lo, int64_t hi) {
    for (int64_t b = lo; b < hi; ++b) {
      int64_t last = dests[0] != nullptr ? static_cast<const int64_t*>(dests[0])[b] : kNone;
      ForEachCopy<int64_t>(table, parts, stride, b, [&](int64_t part) { last = std::max(last, part); });
      static_cast<int64_t*>(outs[0])[b] = last;
    }
  }

  static HistKernel Kernel() { return {Update, {FillSums, FillLast}, {CombineSums, CombineLast}}; }

 private:
  // Whether the update is done, and where: in a table that is not ranged a dropped element goes to the spare bin.
  static bool Place(int64_t& b, int64_t bins, int64_t bin_lo, int64_t bin_hi) {
    const bool inside = b >= 0 && b < bins;
    if constexpr (kRanged) return inside && b >= bin_lo && b < bin_hi;
    if (!inside) b = bins;
    return true;
  }

  template <class E, class F>
  static void ForEachCopy(const void* table, int64_t parts, int64_t stride, int64_t b, F f) {
    for (int64_t p = 0; p < parts; ++p) {
      const auto* part = reinterpret_cast<const E*>(static_cast<const char*>(table) + p * stride);
      for (int64_t c = 0; c < kCopies; ++c) f(part[b * kCopies + c]);
    }
  }
};

// The simplest kernel: how often each index occurs. Its result looks like a subhistogram.
template <bool kSoa>
struct Count {
  static void Update(const void* const* arrays, const void* const* /*uniforms*/, void* const* tables, const int64_t* bins,
                     int64_t lo, int64_t hi, int64_t bin_lo, int64_t bin_hi) {
    auto* table = static_cast<int64_t*>(tables[0]);
    for (int64_t i = lo; i < hi; ++i) {
      const int64_t b = static_cast<const int32_t*>(arrays[0])[i];
      const bool inside = b >= 0 && b < bins[0];
      if (kSoa && !(inside && b >= bin_lo && b < bin_hi)) continue;
      table[inside ? b : bins[0]] += 1;
    }
  }

  static void Fill(void* const* tables, const void* const* /*uniforms*/, int64_t lo, int64_t hi) {
    auto* table = static_cast<int64_t*>(tables[0]);
    std::fill(table + lo, table + hi, 0);
  }

  static void Combine(void* const* outs, const void* const* /*dests*/, const void* const* /*uniforms*/, const void* table,
                      int64_t parts, int64_t stride, int64_t lo, int64_t hi) {
    for (int64_t b = lo; b < hi; ++b) {
      int64_t all = 0;
      for (int64_t p = 0; p < parts; ++p) {
        all += reinterpret_cast<const int64_t*>(static_cast<const char*>(table) + p * stride)[b];
      }
      static_cast<int64_t*>(outs[0])[b] = all;
    }
  }

  static HistKernel Kernel() { return {Update, {Fill}, {Combine}}; }

  static HistShape Shape() {
    HistShape shape;
    shape.bins.resize(1);
    shape.bins[0].leaf_bytes = {sizeof(int64_t)};
    shape.bins[0].entry_bytes = sizeof(int64_t);
    return shape;
  }
};

// What compile on demand does for the variant that a plan asks for.
template <class T, class Index>
HistKernel KernelOf(const HistPlan& plan) {
  if (plan.soa) return SumCountLast<T, Index, 1, true, true>::Kernel();
  if (plan.ranged()) {
    CHECK_EQ(plan.copies, int64_t{1});
    return SumCountLast<T, Index, 1, false, true>::Kernel();
  }
  switch (plan.copies) {
    case 1:
      return SumCountLast<T, Index, 1, false, false>::Kernel();
    case 2:
      return SumCountLast<T, Index, 2, false, false>::Kernel();
    default:
      CHECK_EQ(plan.copies, int64_t{8});
      return SumCountLast<T, Index, 8, false, false>::Kernel();
  }
}

template <class T>
HistShape ShapeOfSumCountLast(bool dest) {
  HistShape shape;
  shape.bins.resize(2);
  shape.bins[0].leaf_bytes = {sizeof(T), sizeof(int64_t)};
  shape.bins[0].entry_bytes = sizeof(Entry<T>);
  shape.bins[1].leaf_bytes = {sizeof(int64_t)};
  shape.bins[1].entry_bytes = sizeof(int64_t);
  for (auto& bins : shape.bins) bins.dest = dest;
  return shape;
}

// The results, or dests, of all members of a batch, one after the other.
template <class T>
struct Results {
  std::vector<T> sums;
  std::vector<int64_t> counts, last;

  Results(int64_t batch, const std::vector<int64_t>& bins)
      : sums(static_cast<size_t>(batch * bins[0])), counts(sums.size()), last(static_cast<size_t>(batch * bins[1])) {}
  bool operator==(const Results&) const = default;
};

}  // namespace jaxprims::test
