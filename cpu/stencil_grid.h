// The cells of a stencil's call as the CPU's driver sees them: what a plan depends on, and where they lie in memory.
#pragma once

#include <cstdint>
#include <vector>

#include "numbers.h"
#include "stencil_call.h"
#include "stencil_domain.h"
#include "stencil_plan.h"

namespace jaxprims {

class StencilGrid : public StencilDomain {
 public:
  using StencilDomain::StencilDomain;

  StencilProblem Problem() const {
    StencilProblem p;
    for (const StencilWindow& w : call_.window) p.size.push_back(w.size);
    for (size_t a = 0; a < rank; ++a) p.widest.push_back(Domain(0, a).size());
    for (size_t a = 0; a < rank; ++a) p.wraps.push_back(Wraps(a) ? 1 : 0);
    p.halo = halo;
    p.members = Product(call_.batch);
    p.steps = call_.steps;
    p.unit = shape_.unit;
    p.array_bytes = shape_.array_bytes;
    p.leaf_bytes = shape_.leaf_bytes;
    p.changed = static_cast<int64_t>(changed);
    p.work = shape_.work;
    p.width = shape_.width;
    for (size_t a = 0; a < rank; ++a) p.span.push_back(high[a] - low[a]);
    return p;
  }
};

// Where cells are: those of [begin, end) on each axis are there.
struct Cells {
  char* origin = nullptr;   // of the grid's cell 0, which need not be there
  PerAxis<int64_t> stride;  // bytes
  PerAxis<Interval> there;
  PerAxis<Boundary> boundary;
  int64_t ring = 0;            // planes on the first axis that are kept; 0: all
  bool padded = false;         // cells beyond both ends of a row are there, as far as f reads
  const char* fill = nullptr;  // a row of the fill value, where its cell 0 would be
};

// Bytes from where cell 0 of an axis would be to cell x: on the first axis of a ring, to where it is now.
inline int64_t Distance(const Cells& cells, int64_t x, size_t axis) {
  if (axis > 0 || cells.ring == 0) return x * cells.stride[axis];
  const int64_t slot = x % cells.ring;
  return (slot < 0 ? slot + cells.ring : slot) * cells.stride[axis];
}

// Where cells are along an axis, from x on.
struct CellWalk {
  CellWalk(const Cells& cells, int64_t x, size_t axis)
      : stride(cells.stride[axis]), ring(axis == 0 ? cells.ring : 0), place(Distance(cells, x, axis)) {}
  int64_t Next() {
    const int64_t here = place;
    place += stride;
    if (place == ring * stride && ring > 0) place = 0;
    return here;
  }
  int64_t stride, ring, place;
};

}  // namespace jaxprims
