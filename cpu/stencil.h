// The stencil's driver: a call as passes through memory, each of several steps, and a pass as tiles, which are the threads' tasks
// (algorithm and limits: docs/stencils.md; a tile's steps: stencil_pipeline.h; its rows: stencil_rows.h).
//
// Why threads need no more than to meet between passes: a pass reads the arrays or what the pass before wrote, and nobody writes
// these meanwhile; its tiles write disjoint cells of another grid; and what a tile wants around it, it makes itself, in memory
// that is its worker's alone (rings, rows of the fill value, scratch lists). WorkAssist returns when all tasks are done, and what
// they wrote is seen by those of the next pass; stores past the caches are fenced by the task that made them. Every cell of every
// step is the same function of the same values whichever tile makes it, so results depend neither on threads nor on the plan.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "numbers.h"
#include "stencil_call.h"
#include "stencil_grid.h"
#include "stencil_kernel.h"
#include "stencil_plan.h"
#include "stencil_tile.h"
#include "work_assist.h"
#include "workspace.h"

namespace jaxprims {

template <class Pool>
void RunStencil(Pool& pool, const StencilShape& shape, const StencilCall& call, const StencilGrid& grid,
                const StencilProblem& problem, const StencilKernel& kernel, const StencilPlan& plan) {
  const size_t rank = grid.rank;
  const int64_t passes = CeilDiv(call.steps, plan.depth), members = problem.members;
  const int64_t grid_bytes = GridBytes(problem, problem.changed);
  const int64_t between = GridsBetween(problem, plan) * grid_bytes;
  const Workspace grids(static_cast<size_t>(between * members));
  for (size_t leaf = 0; leaf < call.outs.size(); ++leaf) {
    ExpectLarge(call.outs[leaf].data, static_cast<size_t>(problem.Cells() * shape.unit * shape.leaf_bytes[leaf]));
  }
  BatchIndex batch(call.batch);

  // Contiguous cells of step `step`.
  auto contiguous = [&](char* data, size_t array, int64_t step) {
    Cells cells;
    cells.stride.resize(rank);
    cells.there.resize(rank);
    int64_t stride = shape.leaf_bytes[array] * shape.unit;
    cells.origin = data;
    for (size_t a = rank; a-- > 0;) {
      const Interval all = grid.Domain(step, a);
      cells.stride[a] = stride;
      cells.origin -= all.begin * stride;
      cells.there[a] = all;
      stride *= all.size();
    }
    for (size_t a = 0; a < rank; ++a) {
      cells.boundary.push_back(array < grid.changed ? call.axes[array][a].boundary : Boundary::kNothing);
    }
    return cells;
  };
  auto operand = [&](const BatchIndex& at, size_t array) {
    Cells cells;
    cells.stride.resize(rank);
    int64_t stride = shape.array_bytes[array] * shape.unit;
    cells.origin = at.Place(call.arrays[array]);
    for (size_t a = rank; a-- > 0;) {
      const StencilAxis& own = call.axes[array][a];
      cells.stride[a] = stride;
      cells.origin += own.origin * stride;
      stride *= own.size;
    }
    for (size_t a = 0; a < rank; ++a) {
      const StencilAxis& own = call.axes[array][a];
      cells.there.push_back({own.begin(), own.end()});
      cells.boundary.push_back(own.boundary);
      if (a + 1 == rank || array < grid.changed || !own.is_one_cell()) continue;
      cells.origin += own.begin() * cells.stride[a];  // as if rows were everywhere: so they are made together
      cells.stride[a] = 0;
      cells.there[a] = kEverywhere;
    }
    return cells;
  };

  std::vector<std::unique_ptr<StencilTile>> mine(static_cast<size_t>(std::max(plan.threads, 1)));  // by worker
  int64_t first = 0;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t depth = (call.steps - first + passes - pass - 1) / (passes - pass);
    // The last pass writes results; those before it alternate between memory of their own and the results', or, where results
    // have fewer cells than what comes before them, between two of their own.
    auto place = [&](const BatchIndex& at, int64_t member, size_t array, int64_t written) -> char* {
      const bool results = grid.Shrinks() ? written == passes : (passes - written) % 2 == 0;
      if (results) return at.Place(call.outs[array]);
      char* p = grids.data() + member * between + GridBytes(problem, static_cast<int64_t>(array));
      return grid.Shrinks() && (passes - written) % 2 == 0 ? p + grid_bytes : p;
    };
    PerAxis<Interval> all(rank, {});
    PerAxis<int64_t> tiles(rank, 0);
    int64_t count = 1;
    for (size_t a = 0; a < rank; ++a) {
      all[a] = grid.Domain(first + depth, a);
      tiles[a] = (all[a].size() + plan.tile[a] - 1) / plan.tile[a];
      count *= tiles[a];
    }
    const int64_t bytes = TileBytes(problem, plan.tile, depth);
    const int threads = static_cast<int>(std::min<int64_t>(plan.threads, members * count));
    const Workspace work(static_cast<size_t>(std::max(threads, 1) * bytes));
    auto run = [&](int64_t task, int worker) {
      const int64_t member = task / count;
      BatchIndex at = batch;
      at.Select(member);
      PerAxis<Interval> tile(rank, {});
      int64_t rest = task % count;
      for (size_t a = rank; a-- > 0;) {
        const int64_t begin = all[a].begin + rest % tiles[a] * plan.tile[a];
        tile[a] = {begin, std::min(begin + plan.tile[a], all[a].end)};
        rest /= tiles[a];
      }
      std::vector<Cells> inputs, outs;
      for (size_t array = 0; array < call.arrays.size(); ++array) {
        const bool between_passes = pass > 0 && array < grid.changed;
        inputs.push_back(between_passes ? contiguous(place(at, member, array, pass), array, first) : operand(at, array));
      }
      for (size_t leaf = 0; leaf < call.outs.size(); ++leaf) {
        outs.push_back(contiguous(place(at, member, leaf, pass + 1), leaf, first + depth));
      }
      std::vector<const void*> uniforms;
      for (const Operand& u : call.uniforms) uniforms.push_back(at.Place(u));
      auto& own = mine[static_cast<size_t>(worker)];
      if (own == nullptr) own = std::make_unique<StencilTile>(shape, grid, problem, kernel, plan);
      own->Run(inputs, outs, std::move(uniforms), call.fills, tile, first, depth, work.data() + worker * bytes);
#if defined(__SSE2__)
      if (plan.stream) _mm_sfence();
#endif
    };
    WorkAssist(pool, members * count, threads, run);
    first += depth;
  }
}

}  // namespace jaxprims
