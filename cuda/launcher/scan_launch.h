// Launching scans (scan.cuh).
//
// A forced plan (tests, benchmarks), -1 or absent for what is not forced:
//   along   {kernel: 0 ScanRows, 1 ScanFlat, 2 ScanEach; flat: whole rows to a tile, 0: tiles are chained;
//            do chained tiles wait in shared memory: 0, 1}
//   across  {width: lanes of a tile; chained: 0, 1}
// What a problem does not allow is not done.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "launch.h"
#include "numbers.h"
#include "ordered_words.h"
#include "scan_tiles.h"
#include "shapes.h"

namespace jaxprims::cuda {

struct ScanProblem {
  int64_t n = 0, rows = 1, lanes = 1;  // rows: members of the batch
  bool contiguous = true;              // rows lie end to end in every operand that has them, captured arrays are shared
  bool flags_shared = false;           // but the flags may be shared, too
};

enum class ScanKernel : int64_t { kRows, kFlat, kEach, kAcross };

struct ScanPlan {
  ScanKernel kernel = ScanKernel::kRows;
  int64_t units = 0, tiles = 1;  // sequences; tiles of each
  int64_t length = 0;            // elements of a tile on the axis
  int64_t total = 0;             // of a sequence
  int64_t rows_of_a_tile = 0;    // flat: whole rows
  int64_t width = 1, strips = 1;
  bool chained = false;
  bool waits = false;     // chained tiles, in shared memory
  int64_t workspace = 0;  // bytes

  const char* name() const {
    constexpr const char* kNames[] = {"ScanRows", "ScanFlat", "ScanEach", "ScanAcross"};
    if (waits) return kernel == ScanKernel::kFlat ? "ScanFlatWaiting" : "ScanRowsWaiting";
    return kNames[static_cast<int64_t>(kernel)];
  }
};

namespace scan {

inline constexpr int64_t kFlatMost = int64_t{1} << 30;  // elements of a row whose positions are 32-bit numbers
inline constexpr int64_t kEachMost = 128;               // elements of a row that is one thread's
inline constexpr int64_t kTicketBytes = 256;            // before the records
inline constexpr int64_t kStripsAlone = 2048;           // so many strips fill a device without chains
inline constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;

inline int WidestElement(const CudaOrderedShape& shape) {
  const auto sum = [](const std::vector<int64_t>& bytes) {
    return static_cast<int>(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
  };
  return jp::WidestOf(sum(shape.array_bytes), static_cast<int>(shape.array_bytes.size()), sum(shape.leaf_bytes),
                      static_cast<int>(shape.leaf_bytes.size()));
}

inline jp::ScanTile TileOf(const CudaOrderedShape& shape) {
  const int bytes = static_cast<int>(shape.state_bytes);
  return shape.across ? jp::TileAcross(bytes) : jp::TileAlong(bytes, WidestElement(shape));
}

inline void Cut(const CudaOrderedShape& shape, ScanPlan& plan, bool chained) {
  plan.tiles = CeilDiv(plan.total, plan.length);
  plan.chained = chained && plan.tiles > 1;
  const int64_t chains = plan.kernel == ScanKernel::kAcross ? plan.units * plan.width : plan.units;
  plan.workspace = plan.chained ? kTicketBytes + 8 * chains * jp::ChainWords(static_cast<int>(shape.state_bytes), plan.tiles) : 0;
}

// Larger tiles that wait, where that pays, in place of a chain of others.
inline void LetWait(const CudaOrderedShape& shape, const ScanProblem& p, std::span<const int64_t> forced, ScanPlan& plan) {
  const jp::ScanTile tile = jp::TileWaiting(static_cast<int>(shape.state_bytes), WidestElement(shape));
  const int64_t length = jp::ElementsOf(tile);
  if (!plan.chained || tile.rounds == 0 || plan.total <= length) return;
  const int64_t tiles = plan.units * CeilDiv(plan.total, length);
  const int64_t abreast = plan.kernel == ScanKernel::kFlat ? p.n / length : jp::TilesAtOnce(tile) / plan.units;
  plan.waits = jp::WaitingPays(tile, tiles, abreast);
  if (forced.size() > 2 && forced[2] >= 0) plan.waits = forced[2] != 0;
  if (!plan.waits) return;
  plan.length = length;
  Cut(shape, plan, true);
}

// So many lanes to a tile that a line of memory is read as a whole, and more where the axis is shorter than a tile.
inline int64_t WidthOf(const jp::ScanTile& tile, int64_t n, int64_t lanes, int64_t element_bytes) {
  if (lanes < 64) return std::min<int64_t>(lanes, tile.threads);
  int64_t width = 32 * std::clamp<int64_t>(4 / element_bytes, 1, 2);
  while (2 * width <= tile.threads && tile.threads / (2 * width) * tile.rounds >= n && width < lanes) width *= 2;
  return width;
}

}  // namespace scan

inline ScanPlan PlanAcross(const CudaOrderedShape& shape, const ScanProblem& p, std::span<const int64_t> forced, bool may_chain) {
  const jp::ScanTile tile = scan::TileOf(shape);
  ScanPlan plan{.kernel = ScanKernel::kAcross};
  plan.width = scan::WidthOf(tile, p.n, p.lanes, scan::WidestElement(shape));
  if (!forced.empty() && forced[0] > 0) plan.width = std::min<int64_t>(forced[0], tile.threads);
  plan.strips = CeilDiv(p.lanes, plan.width);
  plan.units = p.rows * plan.strips;
  plan.length = tile.threads / plan.width * tile.rounds;
  plan.total = p.n;
  bool chained = plan.units < scan::kStripsAlone;
  if (forced.size() > 1 && forced[1] >= 0) chained = forced[1] != 0;
  scan::Cut(shape, plan, chained && may_chain);
  return plan;
}

inline ScanPlan PlanAlong(const CudaOrderedShape& shape, const ScanProblem& p, std::span<const int64_t> forced, bool may_chain) {
  const jp::ScanTile tile = scan::TileOf(shape);
  const int64_t full = jp::ElementsOf(tile);
  // Whole rows to a tile, so many that every tile starts at an aligned place.
  const int64_t together = p.rows == 1 ? 1 : tile.run / std::gcd(p.n, int64_t{tile.run});
  int64_t whole_rows = std::min(full / p.n, p.rows) / together * together;
  const bool aligned = together == 1 && (p.rows > 1 || !shape.reverse || p.n % tile.run == 0);
  const bool flat = p.contiguous && p.n <= scan::kFlatMost;

  ScanKernel kernel = ScanKernel::kRows;
  if (!p.contiguous && p.n <= scan::kEachMost) {
    kernel = ScanKernel::kEach;
  } else if (p.rows > 1 && p.n <= full) {
    if (2 * whole_rows * p.n < full) whole_rows = 0;
    kernel = flat && (whole_rows != 0 || may_chain) ? ScanKernel::kFlat : ScanKernel::kRows;
  } else {
    whole_rows = 0;
    const bool fills = p.rows == 1 || 4 * p.n >= 3 * CeilDiv(p.n, full) * full;
    kernel = flat && !(aligned && fills) ? ScanKernel::kFlat : ScanKernel::kRows;
    if (!may_chain && p.n > full) kernel = ScanKernel::kEach;
  }
  if (!forced.empty() && forced[0] >= 0 && forced[0] <= 2) {
    kernel = static_cast<ScanKernel>(forced[0]);
    if (kernel == ScanKernel::kFlat && !flat) kernel = ScanKernel::kRows;
  }
  if (forced.size() > 1 && forced[1] >= 0) whole_rows = std::min(forced[1], full / p.n) / together * together;

  ScanPlan plan{.kernel = kernel, .units = p.rows, .length = full, .total = p.n};
  if (kernel == ScanKernel::kEach) return plan;
  if (kernel == ScanKernel::kFlat) {
    plan.units = 1;
    plan.total = p.rows * p.n;
    plan.rows_of_a_tile = whole_rows;
    if (whole_rows != 0) plan.length = whole_rows * p.n;
  }
  scan::Cut(shape, plan, whole_rows == 0 || kernel != ScanKernel::kFlat);
  scan::LetWait(shape, p, forced, plan);
  return plan;
}

// Of sizes alone, so that a result's bits are the same on every device.
inline ScanPlan PlanScan(const CudaOrderedShape& shape, const ScanProblem& p, std::span<const int64_t> forced,
                         bool may_chain = true) {
  return shape.across ? PlanAcross(shape, p, forced, may_chain) : PlanAlong(shape, p, forced, may_chain);
}

inline Workspace ScanWorkspace(const CudaOrderedShape& shape, int64_t n, int64_t lanes, int64_t members) {
  if (n == 0 || lanes == 0 || members == 0) return {};
  if (n > 0 && lanes > 0 && members > 0) {
    const auto of_each = [&](int64_t rows) {
      constexpr int64_t kNoneWaits[] = {-1, -1, 0};  // tiles that wait are fewer, and are for some numbers of rows only
      int64_t bytes = 0;
      for (const bool contiguous : {false, true}) {
        const ScanProblem problem{.n = n, .rows = rows, .lanes = lanes, .contiguous = contiguous};
        bytes = std::max(bytes, PlanScan(shape, problem, kNoneWaits).workspace);
      }
      return CeilDiv(bytes, rows);
    };
    // What has chains has them for any part of the batch, which may be split over devices. So many that none is chained need
    // nothing.
    const int64_t base = of_each(members);
    return {.base = base > 0 ? std::max(base, of_each(1)) : 0};
  }
  const jp::ScanTile tile = scan::TileOf(shape);
  const int64_t group = 8 * jp::ChainWords(static_cast<int>(shape.state_bytes), 1);
  if (!shape.across) {
    // Rows that are one sequence have no more groups than the rows of their own.
    const int64_t full = jp::ElementsOf(tile);
    if (n > 0 && n <= full) return {};
    return {.base = scan::kTicketBytes, .per = group, .every = jp::kScanGroup * full};
  }
  if (lanes < 0 || lanes >= 64 * scan::kStripsAlone) return {};  // many enough, or the scan will do without
  const int64_t width = scan::WidthOf(tile, int64_t{1} << 62, lanes, scan::WidestElement(shape));
  const int64_t length = tile.threads / width * tile.rounds;
  return {.base = scan::kTicketBytes, .per = CeilDiv(lanes, width) * width * group, .every = jp::kScanGroup * length};
}

namespace scan {

inline ScanProblem Describe(const CudaOrderedShape& shape, const OrderedCall& call) {
  ScanProblem p{.n = call.n, .rows = call.rows(), .lanes = call.lanes};
  const auto dense = [&](const Operand& operand, int64_t row_bytes) {
    for (size_t axis = call.batch.size(); axis-- > 0; row_bytes *= call.batch[axis]) {
      if (call.batch[axis] > 1 && operand.strides[axis] != row_bytes) return false;
    }
    return true;
  };
  for (size_t k = 0; k < call.arrays.size(); ++k) {
    p.contiguous = p.contiguous && dense(call.arrays[k], call.n * shape.array_bytes[k]);
  }
  for (const Operand& uniform : call.uniforms) p.contiguous = p.contiguous && dense(uniform, 0);
  if (shape.restarts && p.rows > 1) {
    p.flags_shared = dense(call.flags, 0);
    p.contiguous = p.contiguous && (p.flags_shared || dense(call.flags, call.n));
  }
  return p;
}

}  // namespace scan

inline void LaunchScan(Launcher& launcher, const CudaOrderedShape& shape, const OrderedCall& call, char* workspace,
                       int64_t workspace_bytes, std::span<const int64_t> forced) {
  const ScanProblem problem = scan::Describe(shape, call);
  if (problem.n == 0 || problem.rows == 0 || problem.lanes == 0) return;
  const int threads = scan::TileOf(shape).threads, processors = launcher.device().multiprocessors;
  const auto resident = [&](const char* name, int t) {
    return std::max<int64_t>(1, static_cast<int64_t>(processors) * launcher.Occupancy(name, t, 0));
  };
  ScanPlan plan = PlanScan(shape, problem, forced);
  if (plan.workspace > workspace_bytes) plan = PlanScan(shape, problem, {}, false);
  if (plan.workspace > workspace_bytes) plan = {.kernel = ScanKernel::kEach, .units = problem.rows, .total = problem.n};

  const bool each = plan.kernel == ScanKernel::kEach;
  const Grid grid = [&]() -> Grid {
    if (each) {
      const int64_t most = resident("ScanEach", jp::kEachThreads);
      return {std::min(CeilDiv(plan.units, jp::kEachThreads), most), jp::kEachThreads};
    }
    if (shape.across && !plan.chained) return {std::min(plan.units, scan::kMostBlocks), threads};
    return {std::min(plan.units * plan.tiles, resident(plan.name(), threads)), threads};
  }();
  if (plan.chained) launcher.Fill(workspace, 0, plan.workspace);
  Words words;
  PutCall(words, shape, call);
  words.Pointer(plan.chained ? workspace : nullptr);
  words.Pointer(plan.chained ? workspace + scan::kTicketBytes : nullptr);
  for (const int64_t x : {plan.units, plan.tiles, plan.length, plan.total, plan.rows_of_a_tile, int64_t{problem.flags_shared},
                          plan.width, plan.strips}) {
    words.Int(x);
  }
  launcher.Launch(plan.name(), grid, words);
}

// The plan's numbers, by name, of rows that lie end to end.
inline std::vector<std::pair<std::string, int64_t>> ExplainScan(const CudaOrderedShape& shape, const DeviceInfo& /*device*/,
                                                                int64_t n, int64_t lanes, int64_t members,
                                                                std::span<const int64_t> forced) {
  const jp::ScanTile tile = scan::TileOf(shape);
  if (n <= 0 || lanes <= 0 || members <= 0) return {{"threads", tile.threads}};
  const ScanPlan plan = PlanScan(shape, {.n = n, .rows = members, .lanes = lanes}, forced);
  return {{"kernel", static_cast<int64_t>(plan.kernel)},
          {"threads", plan.kernel == ScanKernel::kEach ? jp::kEachThreads : tile.threads},
          {"elements of a tile", plan.length * plan.width},
          {"tiles", plan.units * plan.tiles},
          {"rows to a tile", plan.rows_of_a_tile},
          {"lanes to a tile", plan.width},
          {"chained", plan.chained},
          {"tiles wait", plan.waits},
          {"workspace bytes", plan.workspace}};
}

}  // namespace jaxprims::cuda
