// How a segmented reduction is cut into tasks: a pure function of shapes, but for the number of threads, so that bits do not
// depend on that.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "numbers.h"
#include "reduce_plan.h"

namespace jaxprims {

struct SegmentsProblem {
  int64_t n = 0;                          // elements of a row
  int64_t segments = 0;                   // of a row
  int64_t members = 1;                    // of the batch
  int64_t lanes = 1;                      // across: rows side by side
  std::vector<int64_t> leaf_bytes = {4};  // of one element of each result
  int64_t slots = 1;                      // of the state
  int64_t state_bytes = 4;                // of its slots together
  int64_t work = 1;                       // what a slot of an element costs, in that of a sum
  bool across = false;
};

struct SegmentsPlan {
  int64_t items = 1;  // elements and ends of segments of a task, together
  int64_t tasks = 1;  // for each member of the batch and strip
  int64_t chunk = 1;  // elements whose segments are listed together; what fills a chunk is reduced
  int64_t strip = 1;  // lanes of a task
  int64_t grain = 1;  // tasks that a thread takes at once: small members of a batch, one behind the other
  int threads = 1;
};

inline constexpr int64_t kSegmentsTask = 64 << 10;  // scalars and ends of a task
inline constexpr int64_t kSegmentsTaskLeast = 16 << 10;
inline constexpr int64_t kSegmentsRowsLeast = 256;  // across: rows of a task, so that its two border states are cheap beside it
inline constexpr int64_t kRunsChunk = 4;            // buffers of results in a chunk

inline constexpr int64_t kScanBuffer = 16 << 10;      // bytes of results that are put together in the first-level cache
inline constexpr int64_t kScanBufferElements = 2048;  // or elements

// How many results, of so many bytes in each leaf, the buffer takes.
inline int64_t BufferElements(const std::vector<int64_t>& leaf_bytes) {
  const auto fit = static_cast<uint64_t>(kScanBuffer / std::max<int64_t>(1, *std::ranges::max_element(leaf_bytes)));
  return std::clamp<int64_t>(static_cast<int64_t>(std::bit_floor(fit)), 256, kScanBufferElements);
}

inline SegmentsPlan MakeSegmentsPlan(const SegmentsProblem& p, const Machine& m) {
  SegmentsPlan plan;
  const int64_t lanes = std::max<int64_t>(1, p.lanes), total = p.n + p.segments;
  const int64_t all = p.members * total * lanes * p.slots;
  plan.threads = ThreadsFor(static_cast<double>(all) * static_cast<double>(p.work), kUpdatesPerThread, m);
  plan.strip = std::min(lanes, EvenStrip(lanes, p.state_bytes));
  // Few large tasks need few searches for where they start; small calls need enough of them for all cores.
  const int64_t task = total * lanes > 64 * kSegmentsTask ? kSegmentsTask : kSegmentsTaskLeast;
  plan.items = std::max(task / (plan.strip * p.slots), p.across ? kSegmentsRowsLeast : kScanBufferElements);
  plan.tasks = std::max<int64_t>(1, CeilDiv(total, plan.items));
  const int64_t pieces = p.members * plan.tasks * CeilDiv(lanes, plan.strip);
  const int64_t piece = std::max<int64_t>(1, std::min(total, plan.items) * plan.strip * p.slots);
  plan.grain =
      std::clamp<int64_t>(kSegmentsTask / piece, 1, std::max<int64_t>(1, pieces / (kReduceTasksPerThread * plan.threads)));
  plan.chunk = kRunsChunk * BufferElements(p.leaf_bytes);
  return plan;
}

}  // namespace jaxprims
