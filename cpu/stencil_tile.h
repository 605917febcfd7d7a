// A tile of results, walked along the grid's first axis, a few planes at a time: for each of these, step k runs `halo` planes
// behind step k - 1, which has made what it reads, and the last step writes results.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "stencil_call.h"
#include "stencil_grid.h"
#include "stencil_kernel.h"
#include "stencil_pipeline.h"
#include "stencil_plan.h"
#include "stencil_rows.h"

namespace jaxprims {

// Each thread has its own, for all tiles that it makes.
class StencilTile {
 public:
  StencilTile(const StencilShape& shape, const StencilGrid& grid, const StencilProblem& problem, const StencilKernel& kernel,
              const StencilPlan& plan)
      : grid_(grid),
        problem_(problem),
        pipeline_(shape, grid, problem),
        rows_(shape, grid, problem, kernel, pipeline_, plan),
        axis_(grid.rank - 1) {}

  // A tile of a member of the batch; what the arguments are, StencilPipeline::Place says.
  void Run(std::span<const Cells> inputs, std::span<const Cells> outs, std::vector<const void*> uniforms,
           const std::vector<std::array<int64_t, 2>>& fills, std::span<const Interval> tile, int64_t first, int64_t depth,
           char* work) {
    pipeline_.Place(inputs, outs, fills, tile, first, depth, work);
    rows_.Start(std::move(uniforms));
    const std::vector<StencilLevel>& levels = pipeline_.levels();
    const int64_t lag = grid_.halo[0], behind = static_cast<int64_t>(levels.size()) - 1;
    const int64_t last = levels.back().region[0].end + behind * lag;
    const int64_t together = depth == 1 ? levels[0].region[0].size() : PlanesTogether(problem_);
    for (int64_t front = levels[0].region[0].begin; front < last; front += together) {
      for (size_t k = 0; k < levels.size(); ++k) {
        const StencilLevel& level = levels[k];
        const int64_t begin = front - static_cast<int64_t>(k) * lag;
        Planes(level, {std::max(begin, level.region[0].begin), std::min(begin + together, level.region[0].end)});
      }
    }
  }

 private:
  // The planes of a step, many rows at a time.
  void Planes(const StencilLevel& level, Interval planes) {
    const size_t before = axis_ - 1;
    std::vector<int64_t>& at = rows_.at();
    auto rows_of = [&](Interval wanted) {
      for (at[before] = wanted.begin; at[before] < wanted.end;) {
        const StencilRows::Group group = rows_.Together(level, wanted.end);
        rows_.Make(level, group);
        at[before] += group.rows;
      }
    };
    if (before == 0) return rows_of(planes);
    for (at[0] = planes.begin; at[0] < planes.end; ++at[0]) {
      for (size_t a = 1; a < before; ++a) at[a] = level.region[a].begin;
      for (bool more = true; more;) {
        rows_of(level.region[before]);
        more = false;
        for (size_t a = before; a-- > 1 && !more;) {
          more = ++at[a] < level.region[a].end;
          if (!more) at[a] = level.region[a].begin;
        }
      }
    }
  }

  const StencilGrid& grid_;
  const StencilProblem& problem_;
  StencilPipeline pipeline_;
  StencilRows rows_;
  const size_t axis_;  // the innermost one
};

}  // namespace jaxprims
