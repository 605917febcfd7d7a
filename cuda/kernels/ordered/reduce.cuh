// Reductions. Which kernel runs, and what it is told, is in reduce_tiles.h.
//
// What several blocks make of a row are partial states in the workspace, which another kernel folds in order: it starts when the
// one before it in the stream has ended, so everything is visible to it and no block waits for another.
#pragma once

#include "ordered/fold.cuh"

namespace jp {

struct ReduceParams {
  Call call;
  i64 parts;    // of a row
  State* from;  // partial states: of each row (and part, and lane), in order
  State* to;
  i64 number;                 // ReduceRows: lanes a row; ReduceParts: partial states a row
  i64 width, slices, strips;  // across
};

JP_DEVICE void FinishRow(const Call& call, const Row& row, i64 lane, Maybe total) {
  if (call.has_init) {
    const State init = InitOf(call, row, lane);
    total.state = total.any ? spec::Op(row.uniforms, init, total.state) : init;
    total.any = true;
  }
  Finish(row, lane, total);
}

// The block's result of its part of a row, in thread 0.
JP_DEVICE void FinishPart(const ReduceParams& p, const Row& row, i64 task, const Maybe& total) {
  if (Thread() != 0) return;
  if (p.parts == 1) {
    FinishRow(p.call, row, 0, total);
  } else {
    p.to[task] = total.state;
  }
}

// A block folds a part of a row: its warps neighbouring pieces each, or, if the operator commutes, tiles in turn, all blocks side
// by side.
JP_KERNEL(ReduceBlocks, ReduceParams, kReduceThreads, kResident) {
  if constexpr (!spec::kAcross) {
    const i64 n = p.call.n, tiles = (n + kWarpTile - 1) / kWarpTile, workers = p.parts * kReduceWarps;
    for (i64 task = Block(); task < p.call.batch.members * p.parts; task += Blocks()) {
      const i64 first = task % p.parts * kReduceWarps, worker = first + Warp();
      const Row row = RowOf(p.call, task / p.parts);
      Span mine = ShareOf(tiles, workers, worker);
      i64 step = 1;
      if constexpr (spec::kCommutes) mine = {worker, tiles}, step = workers;
      const i64 hi = mine.hi * kWarpTile < n ? mine.hi * kWarpTile : n;
      Maybe total = FoldSpan(row.arrays, row.uniforms, mine.lo * kWarpTile, hi, step * kWarpTile);
      const i64 warps = tiles - first;  // those that have something
      total.state = FoldWarps(row.uniforms, total.state, warps < kReduceWarps ? static_cast<int>(warps) : kReduceWarps);
      total.any = n > 0;
      FinishPart(p, row, task, total);
    }
  }
}

// The fold of a row's runs, one a lane of a group, in its first lane.
JP_DEVICE State FoldGroup(const spec::Uniforms& u, State s, int sub, int group, i64 runs) {
#pragma unroll 1
  for (int by = 1; by < group; by *= 2) {
    const State next = StateDown(s, by);
    if (sub + by < group && sub + by < runs) s = spec::Op(u, s, next);
  }
  return s;
}

// Some lanes of a warp fold a row; several rows are under way.
JP_KERNEL(ReduceRows, ReduceParams, kReduceThreads, kResident) {
  if constexpr (!spec::kAcross) {
    constexpr int kRunBytes = kItems * (spec::kStateBytes < 4 ? 4 : spec::kStateBytes);
    constexpr int kAtOnce = kRunBytes <= 16 ? 4 : kRunBytes <= 32 ? 2 : 1;
    const int group = static_cast<int>(p.number), sub = Lane() & (group - 1);
    const i64 n = p.call.n, rows = p.call.batch.members, groups = kWarp / group;
    const bool whole = n % kItems == 0 && n > 0 && n <= group * kItems;  // a run for each lane, or none
    for (i64 base = (Block() * kReduceWarps + Warp()) * groups * kAtOnce; base < rows;
         base += Blocks() * kReduceWarps * groups * kAtOnce) {
      auto row_of = [&](int k) {
        const i64 row = base + k * groups + Lane() / group;
        return RowOf(p.call, row < rows ? row : rows - 1);
      };
      auto finish = [&](int k, const Row& row, const State& state) {
        if (sub == 0 && base + k * groups + Lane() / group < rows) FinishRow(p.call, row, 0, {state, n > 0});
      };
      if (whole) {
        State x[kAtOnce][kItems];
        const i64 at = sub * kItems < n ? sub * kItems : n - kItems;
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const Row row = row_of(k);
          spec::Load(row.arrays, row.uniforms, at, at, x[k]);
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const Row row = row_of(k);
          finish(k, row, FoldGroup(row.uniforms, FoldArray(row.uniforms, x[k]), sub, group, n / kItems));
        }
      } else {
#pragma unroll 1
        for (int k = 0; k < kAtOnce; ++k) {
          const Row row = row_of(k);
          Maybe total = {};
#pragma unroll 1
          for (i64 at = 0; at < n; at += group * kItems) {
            const Maybe run = FoldRun(row.arrays, row.uniforms, at + sub * kItems, n);
            const i64 runs = (n - at + kItems - 1) / kItems;
            Append(row.uniforms, total, {FoldGroup(row.uniforms, run.state, sub, group, runs), sub == 0});
          }
          finish(k, row, total.state);
        }
      }
    }
  }
}

// A warp folds a row.
JP_KERNEL(ReduceWarps, ReduceParams, kReduceThreads, kResident) {
  if constexpr (!spec::kAcross) {
    const i64 rows = p.call.batch.members;
    for (i64 mine = Block() * kReduceWarps + Warp(); mine < rows; mine += Blocks() * kReduceWarps) {
      const Row row = RowOf(p.call, mine);
      const Maybe total = FoldSpan(row.arrays, row.uniforms, 0, p.call.n, kWarpTile);
      if (Lane() == 0) FinishRow(p.call, row, 0, total);
    }
  }
}

// Folds a row's partial states, so many a block.
JP_KERNEL(ReduceParts, ReduceParams, kReduceThreads, 1) {
  if constexpr (!spec::kAcross) {
    for (i64 task = Block(); task < p.call.batch.members * p.parts; task += Blocks()) {
      const i64 lo = task % p.parts * kPartsOfBlock, number = task / p.parts;
      const i64 count = p.number - lo < kPartsOfBlock ? p.number - lo : kPartsOfBlock;
      const Row row = RowOf(p.call, number);
      const Span mine = ShareOf(count, kReduceThreads, Thread());
      const State* from = p.from + number * p.number + lo;
      State s = {};
      if (mine.lo < mine.hi) s = from[mine.lo];
#pragma unroll 4
      for (i64 k = mine.lo + 1; k < mine.hi; ++k) s = spec::Op(row.uniforms, s, from[k]);
      const i64 lanes = count - Warp() * kWarp, warps = (count + kWarp - 1) / kWarp;
      s = FoldLanes(row.uniforms, s, lanes < kWarp ? static_cast<int>(lanes) : kWarp);
      s = FoldWarps(row.uniforms, s, warps < kReduceWarps ? static_cast<int>(warps) : kReduceWarps);
      FinishPart(p, row, task, {s, true});
    }
  }
}

// --- sequences side by side: a thread has a lane -----------------------------------------------------------------------------------

struct ElementsOfLane {
  const Row* row;
  i64 lanes, lane;
  JP_DEVICE State operator()(i64 i) const { return spec::LoadOne(row->arrays, row->uniforms, i * lanes + lane, i); }
};
struct PartsOfLane {
  const State* from;
  i64 lanes;
  JP_DEVICE State operator()(i64 i) const { return from[i * lanes]; }
};

// Rows [span) of a lane.
template <class Source>
JP_DEVICE Maybe FoldColumn(const spec::Uniforms& u, const Source& source, const Span& span) {
  constexpr int kDepth = ColumnDepth(spec::kStateBytes);
  Maybe total = {};
  i64 i = span.lo;
#pragma unroll 1
  for (; i + kDepth <= span.hi; i += kDepth) {
    State x[kDepth];
#pragma unroll
    for (int k = 0; k < kDepth; ++k) x[k] = source(i + k);
    Append(u, total, {FoldArray(u, x), true});
  }
#pragma unroll 1
  for (; i < span.hi; ++i) Append(u, total, {source(i), true});
  return total;
}

// A block folds a part of a strip: its slices neighbouring rows each, in order.
template <class MakeSource>
JP_DEVICE void FoldStrips(const ReduceParams& p, i64 n, MakeSource source_of) {
  State* shared = reinterpret_cast<State*>(DynamicShared());
  for (i64 task = Block(); task < p.call.batch.members * p.parts * p.strips; task += Blocks()) {
    const i64 number = task / p.strips / p.parts, part = task / p.strips % p.parts;
    const Strip me = StripOf(p.width, p.slices, p.call.lanes, task % p.strips);
    const Row row = RowOf(p.call, number);
    Maybe total = {};
    if (me.active) {
      const Span span = ShareOf(n, p.parts * p.slices, part * p.slices + me.slice);
      total = FoldColumn(row.uniforms, source_of(row, number, me.lane), span);
      shared[Thread()] = total.state;
    }
    BlockBarrier();
    if (me.active && me.slice == 0) {
      const i64 rest = n - part * p.slices, slices = rest < p.slices ? rest : p.slices;  // those that have something
      for (i64 s = 1; s < slices; ++s) {
        total.state = spec::Op(row.uniforms, total.state, shared[Thread() + static_cast<int>(s * p.width)]);
      }
      if (p.parts == 1) {
        FinishRow(p.call, row, me.lane, total);
      } else {
        p.to[(number * p.parts + part) * p.call.lanes + me.lane] = total.state;
      }
    }
    BlockBarrier();
  }
}

constexpr int kAcrossThreads = AcrossThreads(spec::kStateBytes);

JP_KERNEL(ReduceAcross, ReduceParams, kAcrossThreads, 1) {
  if constexpr (spec::kAcross) {
    FoldStrips(p, p.call.n, [&p](const Row& row, i64, i64 lane) { return ElementsOfLane{&row, p.call.lanes, lane}; });
  }
}

JP_KERNEL(ReduceAcrossParts, ReduceParams, kAcrossThreads, 1) {
  if constexpr (spec::kAcross) {
    FoldStrips(p, p.number, [&p](const Row&, i64 number, i64 lane) {
      return PartsOfLane{p.from + number * p.number * p.call.lanes + lane, p.call.lanes};
    });
  }
}

}  // namespace jp
