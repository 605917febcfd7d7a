// Launching stencils (stencil.cuh, stencil_steps.cuh).
//
// A forced plan (tests, benchmarks): {steps of a launch; results of a tile on the first axis, on those between, on the last}, 0
// for what is not forced. Of a launch of one step: cells of a column; nothing; threads on the last axis. What a problem does not
// allow is not done.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "launch.h"
#include "numbers.h"
#include "shapes.h"
#include "stencil_choice.h"
#include "stencil_domain.h"

namespace jaxprims::cuda {

namespace stencil {

inline constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;
inline constexpr int64_t kMostUnit = int64_t{1} << 20;  // coordinates times it are numbers yet

// An array of a pass on an axis, and where its lanes are.
struct Placed {
  Operand operand;
  PerAxis<StencilAxis> axes;
  std::vector<int64_t> stride;  // lanes
};

inline void PutAxes(Words& words, const Placed& array) {
  for (size_t a = 0; a < array.axes.size(); ++a) {
    words.Int(static_cast<int64_t>(array.axes[a].boundary));
    words.Int(array.axes[a].begin());
    words.Int(array.axes[a].end());
    words.Int(array.stride[a]);
  }
}

// Row-major; the last axis's cells are `unit` lanes.
template <class Size>
std::vector<int64_t> StridesOf(size_t rank, int64_t unit, Size size) {
  std::vector<int64_t> stride(rank, unit);
  for (size_t a = rank; a-- > 1;) stride[a - 1] = stride[a] * size(a);
  return stride;
}

// The passes of a call: what each reads and writes.
class Passes {
 public:
  Passes(const CudaStencilShape& shape, const StencilCall& call, const StencilDomain& grid, const StencilPlan& plan,
         char* workspace, int64_t workspace_bytes)
      : shape_(shape), call_(call), grid_(grid), plan_(plan), workspace_(workspace), passes_(CeilDiv(call.steps, plan.depth)) {
    const int64_t grids = passes_ <= 1 ? 0 : passes_ > 2 && grid.Shrinks() ? 2 : 1;
    for (size_t k = 0; grids > 0 && k < grid.changed; ++k) {
      int64_t bytes = shape.array_bytes[k] * shape.unit * Product(call.batch);
      for (size_t a = 0; a < grid.rank; ++a) bytes *= grid.Domain(0, a).size();
      between_.push_back(bytes_);
      bytes_ += RoundUp(bytes, 256);
    }
    if (grids * bytes_ > workspace_bytes) throw std::invalid_argument("a stencil's workspace is too small");
  }

  void Launch(Launcher& launcher) const {
    for (int64_t pass = 0, first = 0; pass < passes_; ++pass, first += plan_.depth) {
      Launch(launcher, pass, first, std::min(plan_.depth, call_.steps - first));
    }
  }

 private:
  int64_t Unit(size_t a) const { return LanesOn(shape_, grid_.rank, a); }

  // Array k after a pass that is not the last: where the grid keeps its size, results' memory takes turns with the workspace.
  Operand Between(int64_t pass, size_t k, int64_t cells) const {
    const int64_t left = passes_ - 1 - pass;
    if (left == 0 || (!grid_.Shrinks() && left % 2 == 0)) return call_.outs[k];
    Operand operand;
    operand.data = workspace_ + between_[k] + (grid_.Shrinks() && left % 2 == 0 ? bytes_ : 0);
    int64_t stride = cells * shape_.array_bytes[k] * shape_.unit;
    for (size_t axis = call_.batch.size(); axis-- > 0; stride *= call_.batch[axis]) operand.strides[axis] = stride;
    return operand;
  }

  Placed ArrayOf(size_t k, int64_t pass, int64_t first) const {
    Placed array{call_.arrays[k], call_.axes[k], {}};
    if (pass > 0 && k < grid_.changed) {
      int64_t cells = 1;
      for (size_t a = 0; a < grid_.rank; ++a) {
        const Interval all = grid_.Domain(first, a);
        array.axes[a] = {call_.axes[k][a].boundary, all.size(), -all.begin, 0, 0};
        cells *= all.size();
      }
      array.operand = Between(pass - 1, k, cells);
    }
    array.stride = StridesOf(grid_.rank, shape_.unit, [&](size_t a) { return array.axes[a].size; });
    // Kernels count from the first cell that is there.
    int64_t skipped = 0;
    for (size_t a = 0; a < grid_.rank; ++a) {
      const StencilAxis& axis = array.axes[a];
      if (axis.begin() < axis.end()) skipped += axis.lo * array.stride[a];
    }
    array.operand.data += skipped * shape_.array_bytes[k];
    return array;
  }

  void Launch(Launcher& launcher, int64_t pass, int64_t first, int64_t depth) const {
    const bool tiled = plan_.depth > 1;
    const size_t rank = grid_.rank, arrays = call_.arrays.size();
    Words words;
    words.PutBatch(call_.batch);
    std::vector<Placed> placed;
    for (size_t k = 0; k < arrays; ++k) placed.push_back(ArrayOf(k, pass, first));
    for (const Placed& array : placed) words.Put(array.operand);
    words.PutList(call_.uniforms);
    std::vector<Interval> results;
    int64_t cells = 1;
    for (size_t a = 0; a < rank; ++a) cells *= results.emplace_back(grid_.Domain(first + depth, a)).size();
    for (size_t k = 0; k < call_.outs.size(); ++k) {
      words.Put(pass + 1 == passes_ ? call_.outs[k] : Between(pass, k, cells));
    }
    for (const auto& fill : call_.fills) {
      for (const int64_t half : fill) words.Int(half);
    }
    for (const Placed& array : placed) PutAxes(words, array);
    const auto out_stride = StridesOf(rank, shape_.unit, [&](size_t a) { return results[a].size(); });
    int64_t tiles = Product(call_.batch);
    for (size_t a = 0; a < rank; ++a) {
      const StencilWindow& w = call_.window[a];
      const int64_t unit = Unit(a), size = results[a].size() * unit, count = CeilDiv(size, plan_.tile[a]);
      Interval fixed{-kFar, kFar};
      int64_t low = 0, high = 0;
      for (const auto& read : shape_.reads) {
        const auto& row = shape_.rows[static_cast<size_t>(read.row)];
        const auto k = static_cast<size_t>(row.array);
        const int64_t offset = grid_.OffsetOf(read, row, a);
        if (tiled && k < grid_.changed) {
          low = std::min(low, offset);
          high = std::max(high, offset);
        } else {
          fixed.begin = std::max(fixed.begin, placed[k].axes[a].begin() - offset);
          fixed.end = std::min(fixed.end, placed[k].axes[a].end() - offset);
        }
      }
      for (const int64_t x : {results[a].begin, results[a].size(), w.shrink_lo, w.shrink_hi, w.keep_lo, w.keep_hi, fixed.begin,
                              fixed.end, low, high, grid_.halo[a]}) {
        words.Int(x * unit);
      }
      words.Int(grid_.Wraps(a) ? 1 : 0);
      words.Int(plan_.tile[a]);
      words.Int(count);
      words.Int(a + 1 == rank ? 1 : out_stride[a]);
      tiles *= count;
    }
    words.Int(depth);
    words.Int(plan_.wide);
    words.Int(plan_.walk);
    const Grid grid{std::min(tiles, kMostBlocks), jp::kStencilThreads, plan_.shared};
    launcher.Launch(tiled ? "StencilSteps" : "StencilCells", grid, words);
  }

  static constexpr int64_t kFar = int64_t{1} << 42;  // farther than any coordinate and offset

  const CudaStencilShape& shape_;
  const StencilCall& call_;
  const StencilDomain& grid_;
  const StencilPlan& plan_;
  char* const workspace_;
  const int64_t passes_;
  std::vector<int64_t> between_;  // bytes to each array
  int64_t bytes_ = 0;             // of a grid
};

}  // namespace stencil

inline void LaunchStencil(Launcher& launcher, const CudaStencilShape& shape, const StencilCall& call, char* workspace,
                          int64_t workspace_bytes, std::span<const int64_t> forced) {
  if (shape.unit > stencil::kMostUnit) throw std::invalid_argument("a stencil's cells have too many lanes");
  const StencilDomain grid(shape, call);
  if (grid.changed > 0 && !shape.alike) throw std::invalid_argument("a step's results are not like what it changes");
  const StencilPlan plan = stencil::MakePlan(stencil::SizesOf(shape, call, grid), launcher.device(), forced);
  stencil::Passes(shape, call, grid, plan, workspace, workspace_bytes).Launch(launcher);
}

// The plan's numbers, by name.
inline std::vector<std::pair<std::string, int64_t>> ExplainStencil(const CudaStencilShape& shape, const DeviceInfo& device,
                                                                   const StencilCall& call, std::span<const int64_t> forced) {
  const StencilDomain grid(shape, call);
  const StencilPlan plan = stencil::MakePlan(stencil::SizesOf(shape, call, grid), device, forced);
  std::vector<std::pair<std::string, int64_t>> numbers = {{"steps a launch", plan.depth}};
  for (size_t a = shape.rank == 1 ? 1 : 0; a < plan.tile.size(); ++a) {
    numbers.emplace_back("tile on axis " + std::to_string(a - (shape.rank == 1 ? 1 : 0)), plan.tile[a]);
  }
  if (plan.depth == 1) numbers.emplace_back("cells of a column", plan.walk);
  numbers.emplace_back("threads", jp::kStencilThreads);
  numbers.emplace_back("shared bytes", plan.shared);
  numbers.emplace_back("blocks", plan.blocks);
  return numbers;
}

}  // namespace jaxprims::cuda
