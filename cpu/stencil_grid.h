// The cells of a stencil's call as the CPU's driver sees them: what a plan depends on, and where they lie in memory.
#pragma once

#include <cstdint>
#include <vector>

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
    for (const int64_t n : call_.batch) p.members *= n;
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
  char* origin = nullptr;       // of the grid's cell 0, which need not be there
  std::vector<int64_t> stride;  // bytes
  std::vector<Interval> there;
  std::vector<Boundary> boundary;
  int64_t ring = 0;            // planes on the first axis that are kept; 0: all
  bool padded = false;         // cells beyond both ends of a row are there, as far as f reads
  const char* fill = nullptr;  // a row of the fill value, where its cell 0 would be
};

}  // namespace jaxprims
