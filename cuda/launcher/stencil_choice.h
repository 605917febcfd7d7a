// How many steps of a stencil a launch makes, and on what tiles: a pure function of sizes and the device (docs/gpu.md has the
// equations).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "launch.h"
#include "numbers.h"
#include "shapes.h"
#include "stencil_domain.h"
#include "stencil_tiles.h"

namespace jaxprims::cuda {

// What a plan depends on. Sizes on the last axis are lanes.
struct StencilSizes {
  std::vector<int64_t> size, halo;  // of the results; of what steps change
  std::vector<int64_t> tile_bytes;  // of a lane of each array that steps change
  double read = 0, once = 0;        // bytes of a lane: of these arrays, of the others
  int64_t members = 1, steps = 1;
  bool flat = false, alike = false;                // one axis; results are like what steps change
  double loads = 0, leaves = 1, instructions = 1;  // of a cell
  int64_t column = 1, resident = 1;

  double Lanes() const {
    double lanes = static_cast<double>(members);
    for (const int64_t n : size) lanes *= static_cast<double>(n);
    return lanes;
  }
};

struct StencilPlan {
  int64_t depth = 1;           // steps of a launch
  std::vector<int64_t> tile;   // results of a block, by axis
  int64_t wide = 1, walk = 1;  // StencilCells: threads on the last axis; cells of a column
  int64_t shared = 0;          // bytes of a block
  int64_t blocks = 1;          // tiles
};

namespace stencil {

// Of a multiprocessor in a clock: bytes from memory (data sheets), or from L2, where that holds what is read and written; lanes
// that load or store, lanes that compute.
inline double MemoryBytes(const StencilSizes& s, const DeviceInfo& device) {
  const double memory = device.major < 9 ? 10 : device.major == 9 ? 14 : 28;
  const bool cached = s.Lanes() * (s.read + s.once + s.leaves) < static_cast<double>(device.l2_bytes) / 2;
  return cached ? std::max(memory, 30.0) : memory;
}
inline constexpr double kAccesses = 32, kInstructions = 128;
// Clocks of a barrier with what waits for it, and of a launch. Instructions around a column, from global memory and in a tile.
inline constexpr double kBarrier = 200, kLaunch = 4000, kAround = 50, kAroundTiled = 90;

// What several steps of a launch may take of the time of as many launches: the numbers above are none that were measured.
inline constexpr double kWorth = 0.8;

inline int64_t TilesOf(const StencilSizes& s, const StencilPlan& plan) {
  int64_t tiles = s.members;
  for (size_t a = 0; a < s.size.size(); ++a) tiles *= CeilDiv(s.size[a], plan.tile[a]);
  return tiles;
}

// Both buffers of a tile with what is around it; of what no device has, too much.
inline int64_t SharedBytes(const StencilSizes& s, const std::vector<int64_t>& tile, int64_t depth) {
  constexpr int64_t kMost = int64_t{1} << 20;
  int64_t lanes = 1, bytes = 0;
  for (size_t a = 0; a < tile.size(); ++a) {
    if (tile[a] > kMost || s.halo[a] > kMost) return kMost * kMost;
    lanes *= tile[a] + 2 * depth * s.halo[a];
    if (lanes > kMost) return kMost * kMost;
  }
  for (const int64_t lane : s.tile_bytes) bytes += 2 * jp::TileBytes(lanes, lane);
  return bytes;
}

inline int64_t StepsBytes(const StencilSizes& s) { return jp::StepsBytes(static_cast<int>(s.size.size())); }

inline int64_t Resident(const StencilSizes& s, const DeviceInfo& device, int64_t shared) {
  return std::min<int64_t>(LikelyOccupancy(device, jp::kStencilThreads, shared), s.resident);
}

// Clocks of a multiprocessor for a step of a lane.
inline double Cost(const StencilSizes& s, const DeviceInfo& device, const StencilPlan& plan) {
  const auto depth = static_cast<double>(plan.depth), memory = MemoryBytes(s, device);
  double results = 1, loaded = 1, made = 0;  // lanes of a tile: its results, what is read, what all steps make
  for (size_t a = 0; a < s.size.size(); ++a) {
    results *= static_cast<double>(plan.tile[a]);
    if (plan.depth > 1) loaded *= static_cast<double>(plan.tile[a] + 2 * plan.depth * s.halo[a]);
  }
  for (int64_t k = 1; k <= plan.depth; ++k) {
    double cells = 1;
    for (size_t a = 0; a < s.size.size(); ++a) {
      const int64_t wide = plan.tile[a] + 2 * (plan.depth - k) * s.halo[a];
      cells *= static_cast<double>(plan.depth > 1 && a + 1 == s.size.size() ? CeilDiv(wide, 32) * 32 : wide);
    }
    made += cells;
  }
  const double again = plan.depth > 1 ? loaded / results : 1, cells = made / results;
  const double bytes = s.read * again + s.once * std::min(again, cells / depth) + s.leaves;
  const double copies = plan.depth > 1 ? 2 * again * static_cast<double>(s.tile_bytes.size()) : 0;
  const double accesses = copies + cells * (s.loads + static_cast<double>(s.tile_bytes.size()));
  const double around = plan.depth > 1 ? kAroundTiled : kAround;
  const double instructions = cells * (s.instructions + around / static_cast<double>(s.column));
  const int64_t resident = Resident(s, device, plan.depth > 1 ? plan.shared + StepsBytes(s) : 0);
  if (resident < 1) return INFINITY;
  const double computing = std::max(accesses / kAccesses, instructions / kInstructions), moving = bytes / memory;
  // Blocks that are alone in a multiprocessor load, then compute; several do both at once.
  double clocks = resident > 1 ? std::max(computing, moving) : computing + moving;
  if (plan.depth > 1) clocks += (depth + 2) * kBarrier / (results * static_cast<double>(resident));
  // The last blocks leave multiprocessors idle.
  const double turns = static_cast<double>(plan.blocks) / static_cast<double>(resident * device.multiprocessors);
  clocks *= std::ceil(turns) / turns;
  return (clocks + kLaunch * device.multiprocessors / s.Lanes()) / depth;
}

// One step: columns are long where there are enough of them.
inline StencilPlan PlanCells(const StencilSizes& s, const DeviceInfo& device, int64_t wide, int64_t walk) {
  StencilPlan plan;
  const size_t rank = s.size.size();
  const int64_t threads = jp::kStencilThreads, most = s.flat || rank == 2 ? threads : 64;
  auto power = [](int64_t n) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, n)))); };
  plan.wide = s.flat ? threads : std::min(wide > 0 ? std::min(power(wide), threads) : most, power(s.size.back()));
  const int64_t high = threads / plan.wide;
  auto walks = [&](int64_t cells) {
    plan.walk = cells;
    plan.tile.assign(rank, 1);
    plan.tile.back() = s.flat ? plan.wide * cells : plan.wide;
    if (!s.flat) plan.tile[0] = cells * (rank == 2 ? high : 1);
    if (rank > 2) plan.tile[rank - 2] = high;
    plan.blocks = TilesOf(s, plan);
  };
  walks(walk > 0 ? walk : 64);
  const int64_t busy = 4 * device.multiprocessors * Resident(s, device, 0);
  while (walk <= 0 && plan.walk > s.column && plan.blocks < busy) walks(plan.walk / 2);
  return plan;
}

// forced: steps of a launch; results of a tile on the first axis, those between, the last; 0: chosen.
inline StencilPlan MakePlan(const StencilSizes& s, const DeviceInfo& device, std::span<const int64_t> forced) {
  const auto number = [&](size_t k) { return k < forced.size() ? std::max<int64_t>(0, forced[k]) : 0; };
  const int64_t depth = std::min({number(0), s.steps, int64_t{jp::kStencilDeepest}});
  StencilPlan best = PlanCells(s, device, number(3), number(1));
  if (s.steps == 1 || !s.alike || depth == 1 || s.Lanes() == 0) return best;
  double least = depth > 1 ? INFINITY : kWorth * Cost(s, device, best);
  const size_t rank = s.size.size();
  // Tiles by what their first step makes: of these sizes, as warps are.
  static constexpr int64_t kFlatWidths[] = {512, 1024, 2048, 4096}, kWidths[] = {32, 64, 128, 256}, kHeights[] = {8, 16, 32, 64};
  const std::span<const int64_t> widths = s.flat ? std::span<const int64_t>(kFlatWidths) : std::span<const int64_t>(kWidths);
  for (const int64_t wanted : {2, 3, 4, 6, 8, 12, 16}) {
    StencilPlan plan;
    plan.depth = depth > 1 ? depth : CeilDiv(s.steps, CeilDiv(s.steps, wanted));
    auto fits = [&](size_t a, int64_t made, int64_t force) {
      const int64_t tile = force > 0 ? force : made - 2 * (plan.depth - 1) * s.halo[a];
      plan.tile[a] = std::min(tile, s.size[a]);
      return tile > 0;
    };
    for (const int64_t wide : widths) {
      for (const int64_t high : kHeights) {
        for (const int64_t side : kHeights) {
          plan.tile.assign(rank, 1);
          bool whole = fits(rank - 1, wide, number(3)) && (s.flat || fits(0, high, number(1)));
          if (rank > 2) whole = whole && fits(rank - 2, side, number(2));
          for (size_t a = 1; a + 2 < rank; ++a) {
            plan.tile[a] = std::min(s.size[a], number(2) > 0 ? number(2) : int64_t{s.halo[a] > 0 ? 4 : 1});
          }
          plan.shared = SharedBytes(s, plan.tile, plan.depth);
          if (!whole || plan.shared > device.shared_per_block - kSystemShared - StepsBytes(s)) continue;
          plan.blocks = TilesOf(s, plan);
          const double cost = Cost(s, device, plan);
          if (cost < least) {
            least = cost;
            best = plan;
          }
          if (rank == 2) break;
        }
        if (s.flat) break;
      }
    }
    if (depth > 1) break;
  }
  return best;
}

// On axis a, what is counted in cells, in lanes.
inline int64_t LanesOn(const StencilShape& shape, size_t rank, size_t a) { return a + 1 == rank ? shape.unit : 1; }

inline StencilSizes SizesOf(const CudaStencilShape& shape, const StencilCall& call, const StencilDomain& grid) {
  StencilSizes s;
  for (size_t a = 0; a < grid.rank; ++a) {
    s.size.push_back(call.window[a].size * LanesOn(shape, grid.rank, a));
    s.halo.push_back(grid.halo[a] * LanesOn(shape, grid.rank, a));
  }
  for (size_t k = 0; k < shape.array_bytes.size(); ++k) {
    (k < grid.changed ? s.read : s.once) += static_cast<double>(shape.array_bytes[k]);
  }
  s.leaves = 0;
  for (const int64_t bytes : shape.leaf_bytes) s.leaves += static_cast<double>(bytes);
  s.tile_bytes = shape.leaf_bytes;
  s.members = Product(call.batch);
  s.steps = call.steps;
  s.flat = shape.rank == 1;
  s.alike = shape.alike;
  s.loads = static_cast<double>(shape.loads) / static_cast<double>(shape.column);
  s.instructions = static_cast<double>(shape.work);
  s.column = shape.column;
  s.resident = shape.resident;
  return s;
}

}  // namespace stencil

}  // namespace jaxprims::cuda
