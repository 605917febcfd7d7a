// Which kernel a reduction runs on a GPU, and how much a block gets: a pure function of the problem and the device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "host_device.h"
#include "numbers.h"
#include "reduce_tiles.h"

namespace jaxprims::cuda {

struct ReduceProblem {
  int64_t n = 0, rows = 1, lanes = 1;
  int in_bytes = 4, state_bytes = 4;
  bool across = false;
  int64_t capacity = 1;    // blocks that are resident together
  int64_t most_parts = 1;  // partial states that the workspace holds for each row (and lane)
};

struct ReducePlan {
  int algorithm = jp::kReduceBlocks;
  int64_t group = 32;                         // kReduceRows: lanes of a warp a row
  int64_t parts = 1;                          // blocks a row (across: and strip)
  int64_t width = 1, slices = 1, strips = 1;  // across: lanes of a strip; threads that share such a lane
};

// Lanes side by side are cut into strips: all in one, or evenly, of whole warps.
inline int64_t StripWidth(int64_t lanes, int64_t most) {
  if (lanes <= 32) return std::max<int64_t>(1, lanes);
  return CeilDiv(CeilDiv(lanes, CeilDiv(lanes, most)), 32) * 32;
}

// Blocks for each of `rows` rows: together as many as are resident at once, or, where that leaves some idle, several turns.
inline int64_t BlocksOfRow(int64_t rows, int64_t capacity) {
  if (2 * rows <= capacity) return capacity / rows;
  return rows < 4 * capacity ? CeilDiv(4 * capacity, rows) : 1;
}

inline void ChooseStrips(const ReduceProblem& p, ReducePlan& plan) {
  const int64_t threads = jp::AcrossThreads(p.state_bytes), depth = jp::ColumnDepth(p.state_bytes);
  plan.width = StripWidth(p.lanes, threads / 2);
  plan.strips = CeilDiv(p.lanes, plan.width);
  plan.slices = std::max<int64_t>(1, std::min(threads / plan.width, p.n / depth));
}

inline ReducePlan MakeReducePlan(const ReduceProblem& p, int algorithm, int64_t number) {
  ReducePlan plan;
  int64_t most = 1;  // parts that are worth a block
  if (p.across) {
    ChooseStrips(p, plan);
    const int64_t steps = p.n / plan.slices;
    most = number > 0 ? steps : steps / (2 * jp::ColumnDepth(p.state_bytes));
    plan.parts = number > 0 ? number : BlocksOfRow(p.rows * plan.strips, p.capacity);
    plan.parts = std::clamp<int64_t>(plan.parts, 1, std::max<int64_t>(1, std::min(most, p.most_parts)));
    return plan;
  }
  const int64_t items = jp::RunItems(p.in_bytes, p.state_bytes), tile = jp::WarpTile(p.in_bytes, p.state_bytes);
  if (algorithm == jp::kReduceAutomatic) {
    const bool many = p.rows >= p.capacity * jp::kReduceWarps;
    algorithm = p.n <= 32 * items || (many && p.n <= 8 * tile) ? jp::kReduceRows : jp::kReduceBlocks;
  }
  plan.algorithm = algorithm;
  if (algorithm == jp::kReduceRows) {
    const int64_t wanted = number > 0 ? number : CeilDiv(p.n, items);
    for (plan.group = 1; plan.group < 32 && plan.group < wanted;) plan.group *= 2;
    return plan;
  }
  most = std::min<int64_t>(CeilDiv(p.n, tile * jp::kReduceWarps), jp::kPartsOfBlock);
  plan.parts = number > 0 ? number : BlocksOfRow(p.rows, p.capacity);
  plan.parts = std::clamp<int64_t>(plan.parts, 1, std::max<int64_t>(1, std::min(most, p.most_parts)));
  return plan;
}

}  // namespace jaxprims::cuda
