// What the launcher has to know of a spec. jaxprims.targets.cuda.compiler.describe returns a dict of these keys:
//
// the ordered family (OrderedSpec):
//   kind, array_bytes, uniforms, leaf_bytes, slot_bytes, leaf_slots, across, restarts, exclusive, reverse, identity, commutes,
//   map, work: as for the CPU (jaxprims/specs/described.py) state_bytes: int     sizeof(spec::State)
//
// both:
//   key: int             the spec's; signature: as for the CPU (jaxprims/specs/described.py)
//
// histograms (HistogramSpec):
//   parts: list[dict]    leaf_bytes, entry_bytes, lanes, updates, slots, dest, identity, in_place: as for the CPU; and
//     table_bytes: int         of one lane of a bin in a table: Part<g>::kEntryBytes
//     atomic: int              0: hardware, 1: compare and swap, 2: locks
//     direct: bool             Part<g>::kDirect
//     cluster_trips: int       of an update to another block's shared memory, for one to L2; 0: it does not happen as one there
//     slot_bytes: list[int]    of the working copies' slots
//   positions, index64, work: as for the CPU
//   in_bytes: int        of one element, all arrays
//   f_length: int, about how many instructions f takes
//
// stencils (StencilSpec): as for the CPU, of vectors of one lane; and
//   column, resident: int    cells that a thread makes together; spec::kResident
//   loads: int               of a column
//   alike: bool              results are like the first arrays: there is a kernel of several steps
#pragma once

#include <cstdint>
#include <vector>

#include "hist_call.h"
#include "ordered_call.h"
#include "stencil_call.h"

namespace jaxprims::cuda {

struct CudaOrderedShape : OrderedShape {
  int64_t state_bytes = 0;
};

struct CudaHistShape {
  struct Part {
    int64_t entry_bytes = 0;  // of one lane of a bin in a table
    int atomic = 0;           // 0: hardware, 1: compare and swap, 2: locks
    bool direct = false;      // a table's entry looks like the result's
    int cluster_trips = 1;    // of an update to another block's shared memory, for one to L2; 0: it does not happen as one there
    std::vector<int64_t> slot_bytes;
  };
  HistShape shape;
  std::vector<Part> parts;
  int64_t in_bytes = 0;  // of one element, all arrays
  int64_t f_length = 1;
};

struct CudaStencilShape : StencilShape {
  int64_t column = 1, resident = 1, loads = 1;
  bool alike = false;
};

}  // namespace jaxprims::cuda
