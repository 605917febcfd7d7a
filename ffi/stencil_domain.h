// The cells of a stencil's call: which of them each step has, and how far around a cell is read. For every platform.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stencil_boundary.h"
#include "stencil_call.h"

namespace jaxprims {

struct Interval {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool holds(int64_t x) const { return x >= begin && x < end; }
  bool operator==(const Interval&) const = default;
};
inline constexpr Interval kEverywhere{INT64_MIN / 2, INT64_MAX / 2};

// The sizes of a call that hold for every member of the batch: which cells each step has, and how they lie in memory.
class StencilDomain {
 public:
  StencilDomain(const StencilShape& shape, const StencilCall& call) : shape_(shape), call_(call), rank(call.window.size()) {
    changed = call.steps > 1 || Keeps() ? shape.leaf_bytes.size() : 0;
    halo.assign(rank, 0);
    low.assign(rank, 0);
    high.assign(rank, 0);
    for (const auto& read : shape.reads) {
      const auto& row = shape.rows[static_cast<size_t>(read.row)];
      for (size_t a = 0; a < rank; ++a) {
        const int64_t offset = OffsetOf(read, row, a);
        low[a] = std::min(low[a], offset);
        high[a] = std::max(high[a], offset);
        if (static_cast<size_t>(row.array) < changed) halo[a] = std::max({halo[a], offset, -offset});
      }
    }
  }

  // The driver has two axes at least: a row of cells is a plane of one row.
  int64_t OffsetOf(const StencilShape::Read& read, const StencilShape::Row& row, size_t axis) const {
    if (axis + 1 == rank) return read.offset;
    return OuterOffset(row, axis);
  }
  int64_t OuterOffset(const StencilShape::Row& row, size_t axis) const { return row.offset.empty() ? 0 : row.offset[axis]; }

  // The cells that there are after step k, and those of them that are computed.
  Interval Domain(int64_t step, size_t axis) const {
    const StencilWindow& w = call_.window[axis];
    const int64_t left = call_.steps - step;
    return {w.start - left * w.shrink_lo, w.start + w.size + left * w.shrink_hi};
  }
  Interval Computed(int64_t step, size_t axis) const {
    const StencilWindow& w = call_.window[axis];
    const Interval all = Domain(step, axis);
    return {all.begin + w.keep_lo, std::max(all.begin + w.keep_lo, all.end - w.keep_hi)};
  }
  bool Keeps() const {
    return std::ranges::any_of(call_.window, [](const StencilWindow& w) { return w.keep_lo > 0 || w.keep_hi > 0; });
  }
  bool Shrinks() const {
    return std::ranges::any_of(call_.window, [](const StencilWindow& w) { return w.shrink_lo > 0 || w.shrink_hi > 0; });
  }

  // What is read outside of what the steps change. All arrays among it have the boundaries of the first.
  Boundary BoundaryOf(size_t array, size_t axis) const { return call_.axes[array][axis].boundary; }
  bool Wraps(size_t axis) const { return changed > 0 && BoundaryOf(0, axis) == Boundary::kWrap; }

 protected:
  const StencilShape& shape_;
  const StencilCall& call_;

 public:
  const size_t rank;
  size_t changed;                    // arrays that steps change, or whose values are kept: the first ones
  PerAxis<int64_t> halo, low, high;  // of what is changed, to either side; of all arrays
};

}  // namespace jaxprims
