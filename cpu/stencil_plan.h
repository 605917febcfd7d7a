// How a stencil's grid is cut into tiles, and how many steps a pass through memory makes: a pure function of sizes.
//
// A tile is walked along the grid's first axis, plane by plane; its other axes are cut so that the planes that are in use stay in
// the second-level cache. A pass of `depth` steps computes the cells around a tile that its later steps want once more: what that
// costs, and what it saves in memory traffic, is weighed in Cost.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "hist_plan.h"
#include "numbers.h"
#include "per_axis.h"

namespace jaxprims {

inline constexpr int64_t kTogether =
    4;  // rows of a step that are made one after the other, and are in the first-level cache then

struct StencilProblem {
  PerAxis<int64_t> size;    // cells of the result, by axis; at least two axes
  PerAxis<int64_t> widest;  // cells before the first step; more where the grid shrinks
  PerAxis<int64_t> wraps;   // by axis, 1: it wraps around, so that a tile goes on past its end
  PerAxis<int64_t> halo;    // how far f reads what the steps change, by axis, to either side
  int64_t members = 1;      // of the batch
  int64_t steps = 1;
  int64_t unit = 1;                              // lanes of a cell
  std::vector<int64_t> array_bytes, leaf_bytes;  // of a lane of a cell
  int64_t changed = 0;                           // arrays that steps change: the first ones
  int64_t work = 1;                              // instructions and reads of a vector
  int64_t width = 1;                             // lanes of a vector
  PerAxis<int64_t> span;                         // from the first to the last cell that f reads, by axis

  int64_t Cells() const { return members * Product(size); }
  int64_t ChangedBytes() const { return Sum(std::span(array_bytes).first(static_cast<size_t>(changed))) * unit; }  // of a cell
  int64_t BytesRead() const { return Sum(array_bytes) * unit; }
  int64_t BytesWritten() const { return Sum(leaf_bytes) * unit; }
  int64_t Bytes() const { return BytesRead() + BytesWritten(); }
  bool operator==(const StencilProblem&) const = default;
};

struct StencilPlan {
  int64_t depth = 1;      // steps of a pass
  PerAxis<int64_t> tile;  // cells, by axis
  bool stream = false;    // results go past the caches
  bool alone = false;     // rows that are in memory are made one at a time
  bool ahead = false;     // what later steps want of memory is asked for while others are made
  int threads = 1;

  bool operator==(const StencilPlan&) const = default;
};

// --- memory
// ---------------------------------------------------------------------------------------------------------------------

inline constexpr int64_t kLine = 64, kPage = 4096;
inline int64_t Lines(int64_t bytes) { return RoundUp(bytes, kLine); }

// Cells along an axis that step k of `depth` may compute for a tile.
inline int64_t Wide(const StencilProblem& p, int64_t tile, int64_t depth, int64_t k, size_t axis) {
  return tile + 2 * (depth - k) * p.halo[axis];
}

// Planes of a step that are made one after the other: several, where they are rows.
inline int64_t PlanesTogether(const StencilProblem& p) {
  for (size_t a = 1; a + 1 < p.size.size(); ++a) {
    if (p.size[a] > 1) return 1;
  }
  return kTogether;
}

// What a pass makes first: step 1, or, as 0, a copy of what this reads, if rows wrap around: in a ring they go on beyond their
// ends, where cells would be made one by one otherwise, as many as all steps together read.
inline int64_t FirstMade(const StencilProblem& p, int64_t depth) {
  return depth > 1 && p.wraps.back() != 0 && p.halo.back() > 0 ? 0 : 1;
}

// Of a ring of what step k makes of an array: planes, rows, a row.
inline int64_t RingPlanes(const StencilProblem& p, int64_t tile, int64_t depth, int64_t k) {
  return std::min(2 * p.halo[0] + PlanesTogether(p), Wide(p, tile, depth, k, 0));
}
inline int64_t RingRowBytes(const StencilProblem& p, int64_t tile, int64_t depth, int64_t k, size_t array) {
  const size_t axis = p.halo.size() - 1;
  // Rows are lines of the cache, also of what vectors make beyond them (StencilPipeline::Rounded).
  return Lines((Wide(p, tile, depth, k, axis) + 2 * p.halo[axis]) * p.array_bytes[array] * p.unit) + 3 * kLine;
}
inline int64_t RingBytes(const StencilProblem& p, const PerAxis<int64_t>& tile, int64_t depth, int64_t k, size_t array) {
  int64_t bytes = RingPlanes(p, tile[0], depth, k) * RingRowBytes(p, tile.back(), depth, k, array);
  for (size_t a = 1; a + 1 < tile.size(); ++a) bytes *= Wide(p, tile[a], depth, k, a);
  return bytes;
}

// Where there is one plane only, a step's ring is free for the next step but one.
inline int64_t Rings(const StencilProblem& p, const PerAxis<int64_t>& tile, int64_t depth) {
  const int64_t made = depth - FirstMade(p, depth);
  return RingPlanes(p, tile[0], depth, 1) == 1 ? std::min<int64_t>(2, made) : made;
}

// A row of the fill value, as far beyond its ends as vectors go that are whole lines.
inline int64_t FillBytes(const StencilProblem& p, int64_t tile, int64_t depth, size_t array) {
  const int64_t wide = Wide(p, tile, depth, FirstMade(p, depth), p.halo.size() - 1);
  return Lines((wide + p.span.back()) * p.array_bytes[array] * p.unit) + 2 * kLine;
}

// What a thread needs for a tile.
inline int64_t TileBytes(const StencilProblem& p, const PerAxis<int64_t>& tile, int64_t depth) {
  int64_t bytes = 0;
  const int64_t first = FirstMade(p, depth);
  for (int64_t k = first; k < first + Rings(p, tile, depth); ++k) {
    for (int64_t array = 0; array < p.changed; ++array) bytes += RingBytes(p, tile, depth, k, static_cast<size_t>(array));
  }
  for (size_t array = 0; array < p.array_bytes.size(); ++array) bytes += FillBytes(p, tile.back(), depth, array);
  return bytes;
}

// --- time
// -----------------------------------------------------------------------------------------------------------------------

namespace stencil_cost {  // nanoseconds, of one thread; as measured

inline constexpr double kInstruction = 0.13;  // of one vector, in the first-level cache
inline constexpr double kByteL2 = 0.006;      // of a cell
inline constexpr double kByteMemory = 0.1;
inline constexpr double kWaits = 0.25;     // the part of memory's time in which nothing else is done
inline constexpr double kFreshByte = 0.2;  // of memory between passes, which the system clears
inline constexpr double kTile = 5000;      // what a tile costs beside its cells
inline constexpr double kPass = 10000;     // what it takes several threads to meet
inline constexpr double kRow = 15;         // of cells, beside them

}  // namespace stencil_cost

// Cells along axes [1, rank) that a pass of `depth` steps computes at its step k (from 1) for one plane of a tile.
inline double CellsOfPlane(const StencilProblem& p, const PerAxis<int64_t>& tile, int64_t depth, int64_t k) {
  double cells = 1;
  for (size_t a = 1; a < tile.size(); ++a) {
    const int64_t all = tile[a] + 2 * (depth - k) * p.halo[a],
                  wide = p.wraps[a] != 0 ? all : std::min(all, std::max(p.size[a], tile[a]));
    cells *= static_cast<double>(wide);
  }
  return cells;
}

// Bytes of the planes that one thread has in use.
inline int64_t InUse(const StencilProblem& p, const PerAxis<int64_t>& tile, int64_t depth) {
  return TileBytes(p, tile, depth) +
         static_cast<int64_t>(static_cast<double>((p.span[0] + 1) * p.Bytes()) / 2 * CellsOfPlane(p, tile, depth, 1));
}

// How much of the third-level cache there is, whatever a machine says: a virtual one names its host's.
inline int64_t UsableL3(const Machine& machine) { return std::min<int64_t>(machine.l3, int64_t{64} << 20); }

// Nanoseconds for a byte of what passes read and write, `part` times as many as there is third-level cache: the more of it they
// take, the less of it is still there when the next pass comes, for it is not theirs alone, and goes through all of it in order.
inline double ByteBetween(double part, const Machine& machine) {
  return std::lerp(machine.byte_l3, stencil_cost::kByteMemory, std::clamp((part - 0.25) / 1.25, 0.0, 1.0));
}

// Nanoseconds for a step of a cell.
inline double Cost(const StencilProblem& p, const PerAxis<int64_t>& tile, int64_t depth, const Machine& machine) {
  double cells = 1, computed = 0;
  for (const int64_t n : tile) cells *= static_cast<double>(n);
  for (int64_t k = 1; k <= depth; ++k) {
    const double planes = static_cast<double>(tile[0] + (tile[0] < p.size[0] ? 2 * (depth - k) * p.halo[0] : 0));
    computed += planes * CellsOfPlane(p, tile, depth, k);
  }
  const double again = computed / (cells * static_cast<double>(depth));
  const double vectors = static_cast<double>(p.unit) / static_cast<double>(p.width);
  const double row = static_cast<double>(tile.back()) + 2 * static_cast<double>(depth * p.halo.back());
  double step = static_cast<double>(p.work) * vectors * stencil_cost::kInstruction + stencil_cost::kRow / row;
  const int64_t used = InUse(p, tile, depth), l3 = UsableL3(machine);
  const auto bytes = static_cast<double>(p.Bytes());
  if (depth > 1 || p.span[0] > 0) {
    // What goes through the second-level cache meanwhile takes about half of it.
    const double beyond = std::clamp(static_cast<double>(used) / static_cast<double>(machine.l2) - 0.5, 0.0, 1.0);
    step += bytes * (used * machine.threads > l3 * 3 / 4 ? stencil_cost::kByteMemory
                     : used > machine.l1                 ? std::lerp(stencil_cost::kByteL2, machine.byte_l3, beyond)
                                                         : 0);
  }
  const int64_t all = p.Cells() * p.Bytes();
  const double byte =
      all > machine.l2 ? ByteBetween(static_cast<double>(all) / static_cast<double>(l3), machine) : stencil_cost::kByteL2;
  // Of memory, what is around a tile is read as well. Hardware prefetchers start anew where what lies side by side ends.
  double around = 1, side_by_side = row;
  bool cut = tile.back() < p.size.back();
  for (size_t a = tile.size(); a-- > 0;) {
    if (tile[a] < p.size[a]) {
      around *= static_cast<double>(tile[a] + 2 * (depth - 1) * p.halo[a] + p.span[a]) / static_cast<double>(tile[a]);
    }
    if (a == 0 || a + 1 == tile.size()) continue;
    if (!cut) side_by_side *= static_cast<double>(tile[a]);
    cut = cut || tile[a] < p.size[a];
  }
  const double starts = cut ? 1 + 2048 / (side_by_side * bytes / 2) : 1;
  const double moved = static_cast<double>(p.BytesRead()) * around + static_cast<double>(p.BytesWritten());
  const double fresh =
      depth < p.steps ? static_cast<double>(p.ChangedBytes()) * stencil_cost::kFreshByte / static_cast<double>(p.steps) : 0;
  // Of a pass, which waits for part of it alone: the rest is asked for while steps are made.
  const int64_t passes = CeilDiv(p.steps, depth);
  const double memory = moved * byte * starts * static_cast<double>(passes) / static_cast<double>(p.steps);
  return std::max(step * again, memory) + stencil_cost::kWaits * memory + fresh +
         stencil_cost::kTile / (cells * static_cast<double>(depth));
}

// Is a tile so small beside what further steps want around it that these would do little else, or their rings have no end?
inline bool MostlyAround(const StencilProblem& p, const PerAxis<int64_t>& tile, int64_t depth) {
  for (size_t a = 0; depth > 1 && a < tile.size(); ++a) {
    const int64_t around = 2 * (depth - 1) * p.halo[a];
    if (around > (p.wraps[a] != 0 ? tile[a] / 2 : 2 * tile[a] + 64)) return true;
  }
  return false;
}

// Bytes of the longest of the arrays' and results' rows.
inline int64_t LongestRow(const StencilProblem& p) {
  int64_t lane = 0;
  for (const auto* bytes : {&p.array_bytes, &p.leaf_bytes}) {
    for (const int64_t own : *bytes) lane = std::max(lane, own);
  }
  return lane * p.unit * p.size.back();
}

inline StencilPlan MakeStencilPlan(const StencilProblem& p, const Machine& machine) {
  constexpr int64_t kGrain = 1 << 15;                             // vectors' instructions that are worth a task
  constexpr int64_t kStreamedRow = 16384, kStreamedLines = 2048;  // bytes; where rows are whole lines
  constexpr int64_t kDeepest = 32;
  constexpr int64_t kTasks = 4;    // for each thread
  constexpr double kSlowed = 0.1;  // of a task: what the others wait for a thread that does something else meanwhile
  StencilPlan best;
  int64_t least_lane = INT64_MAX;
  for (const int64_t lane : p.leaf_bytes) least_lane = std::min(least_lane, lane * p.unit);
  const int64_t line = std::max<int64_t>(1, kLine / std::max<int64_t>(1, least_lane));  // cells
  const size_t rank = p.size.size();
  best.tile = p.size;
  const int64_t vectors = std::max<int64_t>(1, p.Cells() * p.unit / p.width);
  const int64_t instructions = vectors * p.steps * p.work;
  auto tasks_of = [&](int64_t each) {
    return std::clamp<int64_t>(instructions / kGrain, 1, machine.threads > 1 ? each * machine.threads : 1);
  };
  double least = -1;
  bool middle = false;
  for (size_t a = 1; a + 1 < rank; ++a) middle = middle || p.size[a] > 1;
  for (int64_t passes = p.steps, depth = 1; depth <= kDeepest; depth = CeilDiv(p.steps, passes)) {
    for (int64_t inner = p.size.back();; inner = inner > 16384 ? 16384 : inner / 2) {
      for (int64_t mid = middle ? int64_t{1} << 40 : 1;; mid = mid > 64 ? 64 : mid * 3 / 4) {
        StencilPlan plan;
        plan.depth = depth;
        plan.tile = p.size;
        plan.tile.back() = inner < p.size.back() ? std::min(p.size.back(), RoundUp(inner, line)) : inner;
        int64_t tiles = CeilDiv(p.size.back(), plan.tile.back());
        for (size_t a = 1; a + 1 < rank; ++a) {
          const int64_t cuts = CeilDiv(p.size[a], mid);
          plan.tile[a] = CeilDiv(p.size[a], cuts);
          tiles *= CeilDiv(p.size[a], plan.tile[a]);
        }
        for (const int64_t each : {kTasks, int64_t{1}}) {
          const int64_t wanted = tasks_of(each), few = std::max<int64_t>(1, CeilDiv(wanted, p.members));
          const int64_t chunks = std::min(p.size[0], CeilDiv(few, tiles));
          plan.tile[0] = CeilDiv(p.size[0], chunks);
          if (MostlyAround(p, plan.tile, depth)) continue;
          // Tiles that are few leave threads without work.
          const int64_t tasks = p.members * tiles * CeilDiv(p.size[0], plan.tile[0]);
          const int64_t threads = std::min<int64_t>(wanted, machine.threads);
          const int64_t rounds = CeilDiv(tasks, threads);
          const double share = (static_cast<double>(rounds) + kSlowed) / static_cast<double>(tasks);
          const double meet = threads > 1 ? stencil_cost::kPass * static_cast<double>(passes) : 0;
          const double cost =
              Cost(p, plan.tile, depth, machine) * share + meet / (static_cast<double>(p.Cells()) * static_cast<double>(p.steps));
          if (least < 0 || cost < least * 0.97) {
            least = cost;
            best = plan;
          }
        }
        if (mid <= 4) break;
      }
      if (inner <= 512) break;
    }
    if (passes == 1) break;
    passes = (p.steps - 1) / depth;  // the most that make more steps each
  }
  best.threads = static_cast<int>(std::min<int64_t>(tasks_of(1), machine.threads));
  // Rows that end within a line of the cache would write it in two ways, which waits for memory.
  const bool lines = p.size.back() % line == 0 && best.tile.back() % line == 0;
  const int64_t least_row = least_lane * best.tile.back();
  // Prefetchers follow one stream in a page of memory; two rows at a time are two.
  best.alone = p.Cells() * p.Bytes() > machine.l2 && LongestRow(p) < kPage;
  best.stream = best.depth == 1 && p.Cells() * p.Bytes() > machine.l3 && least_row >= (lines ? kStreamedLines : kStreamedRow);
  // Of a single step, whose kernel asks if it has several stages: only the first reads memory, which would wait for the others.
  best.ahead = best.stream || (best.depth > 1 && p.Cells() * p.Bytes() > machine.l2);
  return best;
}

// The plan that `kernel` ran last on this thread, for a grid of these sizes: to make one takes longer than a small grid does.
inline const StencilPlan& KeptStencilPlan(const void* kernel, const StencilProblem& problem, const Machine& machine) {
  constexpr size_t kMost = 128;
  struct Last {
    StencilProblem problem;
    Machine machine;
    StencilPlan plan;
  };
  thread_local std::unordered_map<const void*, Last> kept;
  if (kept.size() >= kMost && !kept.contains(kernel)) kept.clear();
  Last& own = kept[kernel];
  if (own.problem != problem || own.machine != machine) own = {problem, machine, MakeStencilPlan(problem, machine)};
  return own.plan;
}

// What the steps change of a member of the batch, array by array, between two passes.
inline int64_t GridBytes(const StencilProblem& p, int64_t arrays) {
  int64_t bytes = 0;
  for (int64_t k = 0; k < arrays; ++k) {
    bytes += Lines(p.array_bytes[static_cast<size_t>(k)] * p.unit * Product(p.widest));
  }
  return bytes;
}

// Passes alternate between one such grid and the results'; where results have fewer cells, between two such grids.
inline int64_t GridsBetween(const StencilProblem& p, const StencilPlan& plan) {
  const int64_t passes = CeilDiv(p.steps, plan.depth);
  return passes <= 1 ? 0 : passes > 2 && p.widest != p.size ? 2 : 1;
}

inline int64_t WorkspaceBytes(const StencilProblem& p, const StencilPlan& plan) {
  const int64_t threads = std::max(plan.threads, 1);
  return p.members * GridsBetween(p, plan) * GridBytes(p, p.changed) + threads * TileBytes(p, plan.tile, plan.depth);
}

inline StencilPlan ForcedStencil(const StencilProblem& p, StencilPlan plan, int64_t depth, int64_t first, int64_t middle,
                                 int64_t inner, int64_t stream) {
  if (depth > 0) plan.depth = std::min(depth, p.steps);
  for (size_t a = 0; a < plan.tile.size(); ++a) {
    const int64_t size = a == 0 ? first : a + 1 == plan.tile.size() ? inner : middle;
    if (size > 0) plan.tile[a] = std::min(size, p.size[a]);
  }
  if (stream >= 0) plan.stream = stream != 0;
  return plan;
}

// forced: empty, or depth, cells of a tile on the first axis, on those between, on the last, and stream; 0 or -1: not forced.
inline StencilPlan PlanOf(const StencilProblem& p, const Machine& machine, std::span<const int64_t> forced) {
  StencilPlan plan = MakeStencilPlan(p, machine);
  return forced.empty() ? plan : ForcedStencil(p, plan, forced[0], forced[1], forced[2], forced[3], forced[4]);
}

}  // namespace jaxprims
