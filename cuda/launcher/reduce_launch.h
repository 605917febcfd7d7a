// Launching reductions (reduce.cuh). A plan: the algorithm (reduce_tiles.h), then how many lanes or blocks a row gets, 0 to
// choose.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "launch.h"
#include "numbers.h"
#include "ordered_words.h"
#include "reduce_choice.h"
#include "shapes.h"

namespace jaxprims::cuda {

namespace reduction {

inline int InBytes(const CudaOrderedShape& shape) {
  return static_cast<int>(std::accumulate(shape.array_bytes.begin(), shape.array_bytes.end(), int64_t{0}));
}

inline constexpr int64_t kMostBlocks = int64_t{1} << 30;
// Partial states where it is not known how many lanes there will be: enough for the largest device to be full.
inline constexpr int64_t kMostPartials = int64_t{1} << 20;

struct ReduceKernel {
  const char* name;
  int threads;
};

inline ReduceKernel KernelOf(const CudaOrderedShape& shape, int algorithm, int64_t group = 1) {
  if (shape.across) return {"ReduceAcross", jp::AcrossThreads(static_cast<int>(shape.state_bytes))};
  if (algorithm == jp::kReduceRows) return {group == 32 ? "ReduceWarps" : "ReduceRows", jp::kReduceThreads};
  return {"ReduceBlocks", jp::kReduceThreads};
}

inline int64_t SharedOf(const CudaOrderedShape& shape) {
  return shape.across ? jp::AcrossThreads(static_cast<int>(shape.state_bytes)) * shape.state_bytes : 0;
}

// The plan of a problem whose capacity is not filled in yet. occupancy(kernel): blocks of it that a multiprocessor holds.
template <class F>
ReducePlan PlanReduce(const CudaOrderedShape& shape, ReduceProblem p, int multiprocessors, std::span<const int64_t> plan,
                      F occupancy) {
  const auto number = [&](size_t k) { return k < plan.size() ? plan[k] : 0; };
  const int algorithm = std::clamp<int>(static_cast<int>(number(0)), jp::kReduceAutomatic, jp::kReduceBlocks);
  p.in_bytes = InBytes(shape);
  p.state_bytes = static_cast<int>(shape.state_bytes);
  p.across = shape.across;
  p.capacity = std::max(1, multiprocessors * occupancy(KernelOf(shape, algorithm)));
  return MakeReducePlan(p, algorithm, number(1));
}

}  // namespace reduction

inline Workspace ReduceWorkspace(const CudaOrderedShape& shape, int64_t n, int64_t lanes, int64_t /*members*/) {
  const int bytes = static_cast<int>(shape.state_bytes);
  if (!shape.across) {  // a partial state for each block
    const int64_t tile = int64_t{jp::kReduceWarps} * jp::WarpTile(reduction::InBytes(shape), bytes);
    if (n < 0) return {.per = shape.state_bytes, .every = tile};
    return {.base = shape.state_bytes * std::min<int64_t>(n / tile + 1, jp::kPartsOfBlock)};
  }
  const int64_t most = reduction::kMostPartials * shape.state_bytes;
  if (lanes < 0) return {.base = most};
  // A part has some steps at least; and there are not more parts than keep a large device busy.
  const int64_t every = 2 * jp::ColumnDepth(bytes), per = lanes * shape.state_bytes;
  if (n < 0) return {.per = per, .every = every};
  return {.base = std::min(per * (n / every + 1), std::max(most, per))};
}

inline void LaunchReduce(Launcher& launcher, const CudaOrderedShape& shape, const OrderedCall& call, char* workspace,
                         int64_t workspace_bytes, std::span<const int64_t> plan) {
  const int64_t rows = call.rows(), lanes = call.lanes;
  if (rows == 0 || lanes == 0) return;
  ReduceProblem problem{.n = call.n, .rows = rows, .lanes = lanes};
  const int64_t shared = reduction::SharedOf(shape), room = workspace_bytes / shape.state_bytes;
  problem.most_parts = room / (rows * lanes);
  const ReducePlan chosen =
      reduction::PlanReduce(shape, problem, launcher.device().multiprocessors, plan,
                            [&](const reduction::ReduceKernel& k) { return launcher.Occupancy(k.name, k.threads, shared); });
  const reduction::ReduceKernel kernel = reduction::KernelOf(shape, chosen.algorithm, chosen.group);

  auto launch = [&](const char* name, int threads, int64_t blocks, int64_t parts, int64_t number) {
    Words words;
    PutCall(words, shape, call);
    words.Int(parts);
    words.Pointer(workspace);  // partial states are read here
    words.Pointer(workspace);  // or written
    words.Int(number);
    words.Int(chosen.width);
    words.Int(chosen.slices);
    words.Int(chosen.strips);
    launcher.Launch(name, {std::clamp<int64_t>(blocks, 1, reduction::kMostBlocks), threads, shared}, words);
  };

  if (chosen.algorithm == jp::kReduceRows && !shape.across) {
    const int64_t warps = CeilDiv(rows, 32 / chosen.group), blocks = CeilDiv(warps, jp::kReduceWarps);
    const int resident = launcher.Occupancy(kernel.name, kernel.threads, 0) * launcher.device().multiprocessors;
    return launch(kernel.name, kernel.threads, std::min<int64_t>(blocks, std::max(1, resident)), 1, chosen.group);
  }
  const int64_t count = chosen.parts;
  launch(kernel.name, kernel.threads, rows * count * chosen.strips, count, 0);
  if (count == 1) return;
  launch(shape.across ? "ReduceAcrossParts" : "ReduceParts", kernel.threads, rows * chosen.strips, 1, count);
}

// The plan's numbers, by name.
inline std::vector<std::pair<std::string, int64_t>> ExplainReduce(const CudaOrderedShape& shape, const DeviceInfo& device,
                                                                  int64_t n, int64_t lanes, int64_t members,
                                                                  std::span<const int64_t> plan) {
  ReduceProblem problem{.n = n, .rows = std::max<int64_t>(1, members), .lanes = lanes};
  problem.most_parts = std::numeric_limits<int64_t>::max();
  const ReducePlan chosen =
      reduction::PlanReduce(shape, problem, device.multiprocessors, plan, [&](const reduction::ReduceKernel& k) {
        return std::max(1, std::min(device.threads_per_multiprocessor / k.threads, device.blocks_per_multiprocessor) / 2);
      });
  const int bytes = static_cast<int>(shape.state_bytes);
  if (shape.across) {
    return {{"threads", jp::AcrossThreads(bytes)},
            {"lanes of a strip", chosen.width},
            {"slices", chosen.slices},
            {"strips", chosen.strips},
            {"parts", chosen.parts}};
  }
  if (chosen.algorithm == jp::kReduceRows) return {{"algorithm", chosen.algorithm}, {"lanes of a row", chosen.group}};
  return {{"algorithm", chosen.algorithm},
          {"threads", reduction::KernelOf(shape, chosen.algorithm).threads},
          {"elements of a tile", jp::WarpTile(reduction::InBytes(shape), bytes)},
          {"blocks of a row", chosen.parts}};
}

}  // namespace jaxprims::cuda
