// The cells of a stencil's call: which of them each step has, where they lie in memory, and what is read beyond them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stencil_call.h"
#include "stencil_plan.h"

namespace jaxprims {

inline constexpr int64_t kFillValue = INT64_MIN;  // no coordinate: what is read is the fill value

// Where what is read at coordinate x lies, of an axis with cells [begin, end).
inline int64_t Mapped(Boundary boundary, int64_t x, int64_t begin, int64_t end) {
  if (x >= begin && x < end) return x;
  const int64_t n = end - begin;
  if (n <= 0) return kFillValue;
  auto modulo = [](int64_t a, int64_t m) { return a % m < 0 ? a % m + m : a % m; };
  switch (boundary) {
    case Boundary::kEdge:
      return x < begin ? begin : end - 1;
    case Boundary::kWrap:
      return begin + modulo(x - begin, n);
    case Boundary::kReflect: {
      if (n == 1) return begin;
      const int64_t at = modulo(x - begin, 2 * (n - 1));
      return begin + (at < n ? at : 2 * (n - 1) - at);
    }
    case Boundary::kSymmetric: {
      const int64_t at = modulo(x - begin, 2 * n);
      return begin + (at < n ? at : 2 * n - 1 - at);
    }
    default:
      return kFillValue;
  }
}

struct Interval {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool holds(int64_t x) const { return x >= begin && x < end; }
};

// The sizes of a call that hold for every member of the batch: which cells each step has, and how they lie in memory.
class StencilGrid {
 public:
  StencilGrid(const StencilShape& shape, const StencilCall& call) : shape_(shape), call_(call), rank(call.window.size()) {
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

  StencilProblem Problem() const {
    StencilProblem p;
    for (const StencilWindow& w : call_.window) p.size.push_back(w.size);
    for (size_t a = 0; a < rank; ++a) p.widest.push_back(Domain(0, a).size());
    for (size_t a = 0; a < rank; ++a) p.wraps.push_back(Wraps(a) ? 1 : 0);
    p.halo = halo;
    for (const int64_t n : call_.batch) p.members *= n;
    p.steps = call_.steps;
    p.unit = shape_.unit;
    p.array_bytes = shape_.array_bytes;
    p.leaf_bytes = shape_.leaf_bytes;
    p.changed = static_cast<int64_t>(changed);
    p.work = shape_.work;
    p.width = shape_.width;
    p.planes = high[0] - low[0] + 1;
    p.reach = high.back() - low.back();
    return p;
  }

 private:
  const StencilShape& shape_;
  const StencilCall& call_;

 public:
  const size_t rank;
  size_t changed;                        // arrays that steps change, or whose values are kept: the first ones
  std::vector<int64_t> halo, low, high;  // of what is changed, to either side; of all arrays
};

// Where cells are: those of [begin, end) on each axis are there.
struct Cells {
  char* origin = nullptr;       // of the grid's cell 0, which need not be there
  std::vector<int64_t> stride;  // bytes
  std::vector<Interval> there;
  std::vector<Boundary> boundary;
  int64_t ring = 0;            // planes on the first axis that are kept; 0: all
  bool padded = false;         // cells beyond both ends of a row are there, as far as f reads
  const char* fill = nullptr;  // a row of the fill value, where its cell 0 would be
};

}  // namespace jaxprims
