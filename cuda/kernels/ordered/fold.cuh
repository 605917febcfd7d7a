// Folding elements and states in their order: what reductions and segmented reductions share.
//
// No identity is made up and no element either: where there may be none, that is said beside the state. Lanes with something are
// always the first ones of a warp, warps those of a block. How elements are associated depends on sizes alone.
#pragma once

#include "reduce_tiles.h"

namespace jp {

using spec::State;

// A fold of elements that may be none.
struct Maybe {
  State state;
  bool any;
};

// a, then b.
JP_DEVICE void Append(const spec::Uniforms& u, Maybe& a, const Maybe& b) {
  if (!b.any) return;
  a.state = a.any ? spec::Op(u, a.state, b.state) : b.state;
  a.any = true;
}

struct Span {
  i64 lo, hi;
};

// Worker k's part of [0, n): as equal as can be, in order; those who get nothing come last.
JP_DEVICE Span ShareOf(i64 n, i64 workers, i64 k) {
  const i64 each = n / workers, more = n % workers, lo = k * each + (k < more ? k : more);
  return {lo, lo + each + (k < more ? 1 : 0)};
}

// In lane 0: the fold of the first `count` lanes' states.
JP_DEVICE State FoldLanes(const spec::Uniforms& u, State s, int count) {
#pragma unroll 1
  for (int by = 1; by < kWarp; by *= 2) {
    const State next = StateDown(s, by);
    if (Lane() + by < count) s = spec::Op(u, s, next);
  }
  return s;
}

// In thread 0: the fold of the first `count` warps' states, of their lanes 0. All of the block call it.
JP_DEVICE State FoldWarps(const spec::Uniforms& u, const State& s, int count) {
  struct Shared {
    State state[kReduceWarps];
  };
  JP_SHARED(Shared, shared);
  if (Lane() == 0) shared.state[Warp()] = s;
  BlockBarrier();
  State total = s;
  if (Warp() == 0) {
    if (Lane() < count) total = shared.state[Lane()];
    total = FoldLanes(u, total, count);
  }
  BlockBarrier();
  return total;
}

// Is what a warp folded this lane's? Others have parts of it, which do no harm where the operator ends on any two.
JP_DEVICE bool Leads() { return !spec::kMayNotEnd || Lane() == 0; }

// A balanced tree of neighbours.
template <int kCount>
JP_DEVICE State FoldArray(const spec::Uniforms& u, State (&x)[kCount]) {
#pragma unroll
  for (int step = 1; step < kCount; step *= 2) {
#pragma unroll
    for (int k = 0; k + step < kCount; k += 2 * step) x[k] = spec::Op(u, x[k], x[k + step]);
  }
  return x[0];
}

// x[r] of lane l is number 32 r + l: in lane 0 the fold of all. First half as many rows of states of twice as many lanes, and so
// on, each lane being at work on one row of two, so that it is one operation for each state but for the last steps.
template <int kCount>
JP_DEVICE State FoldRows(const spec::Uniforms& u, State (&x)[kCount]) {
#pragma unroll
  for (int by = 1; by < kCount; by *= 2) {
    const bool second = (Lane() & by) != 0;
#pragma unroll
    for (int k = 0; k < kCount / 2 / by; ++k) {
      const State got = StateXor(spec::Choose(second, x[2 * k], x[2 * k + 1]), by);
      const State kept = spec::Choose(second, x[2 * k + 1], x[2 * k]);
      x[k] = spec::Op(u, spec::Choose(second, got, kept), spec::Choose(second, kept, got));
    }
  }
  // Now lane l has lanes [l - l % kCount, l - l % kCount + kCount) of row l % kCount.
#pragma unroll 1
  for (int by = kCount; by < kWarp; by *= 2) {
    const State next = StateDown(x[0], by);
    if (Lane() + by < kWarp) x[0] = spec::Op(u, x[0], next);
  }
#pragma unroll 1
  for (int by = 1; by < kCount; by *= 2) {
    const State next = StateDown(x[0], by);
    if (Lane() + by < kCount) x[0] = spec::Op(u, x[0], next);
  }
  return x[0];
}

constexpr int kItems = RunItems(spec::kInBytes, spec::kStateBytes), kRows = RunRows(spec::kInBytes, spec::kStateBytes);
constexpr int kWarpTile = WarpTile(spec::kInBytes, spec::kStateBytes);

// Resident blocks that registers are kept for: of simple operators, which wait for memory, several.
constexpr bool kSimple = spec::kStateBytes <= 8 && spec::kInBytes <= 8 && spec::kOpLength <= 8;
constexpr int kResident = kSimple && kItems <= 8 ? 4 : 1;

// Elements [at, at + kItems) as far as they lie before `end`.
JP_DEVICE Maybe FoldRun(const spec::Arrays& in, const spec::Uniforms& u, i64 at, i64 end) {
  State x[kItems] = {};
  const int count = at >= end ? 0 : end - at < kItems ? static_cast<int>(end - at) : kItems;
  if (count == kItems) {
    spec::Load(in, u, at, at, x);
  } else {
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if (k < count) x[k] = spec::LoadOne(in, u, at + k, at + k);
    }
  }
#pragma unroll
  for (int k = 1; k < kItems; ++k) {
    if (k < count) x[0] = spec::Op(u, x[0], x[k]);
  }
  return {x[0], count > 0};
}

// What a warp has of the elements so far: in lane 0 what is folded already; in each lane its own, where order does not matter.
struct WarpFold {
  Maybe total = {}, own = {};

  // Elements [at, at + kRuns runs), where runs can be read at once.
  template <int kRuns>
  JP_DEVICE void Add(const spec::Arrays& in, const spec::Uniforms& u, i64 at) {
    State runs[kRuns][kItems], x[kRuns];
    const i64 first = MultipleOf<kItems>(at) + Lane() * kItems;
    spec::LoadRuns(in, u, first, first, kWarp * kItems, runs);
#pragma unroll
    for (int r = 0; r < kRuns; ++r) x[r] = FoldArray(u, runs[r]);
    if constexpr (spec::kCommutes) {
      Append(u, own, {FoldArray(u, x), true});
    } else {
      Append(u, total, {FoldRows(u, x), Leads()});
    }
  }

  // As many such as there are, then half as many runs, and so on.
  template <int kRuns>
  JP_DEVICE i64 AddAll(const spec::Arrays& in, const spec::Uniforms& u, i64 at, i64 hi, i64 step) {
    if constexpr (kRuns == kRows) {
#pragma unroll 1
      for (; at + kRuns * kWarp * kItems <= hi; at += step) Add<kRuns>(in, u, at);
    } else if (at + kRuns * kWarp * kItems <= hi) {
      Add<kRuns>(in, u, at);
      at += kRuns * kWarp * kItems;
    }
    if constexpr (kRuns > 1) at = AddAll<kRuns / 2>(in, u, at, hi, step);
    return at;
  }
};

// In lane 0: the warp's fold of the elements of [lo, hi) in tiles lo, lo + step, ...; that of the last, partial one, too.
JP_DEVICE Maybe FoldSpan(const spec::Arrays& in, const spec::Uniforms& u, i64 lo, i64 hi, i64 step) {
  WarpFold fold;
  i64 at = lo;
  if (lo % kItems != 0 && lo < hi) {  // up to where runs can be read at once
    const i64 some = kItems - lo % kItems;
    const int count = static_cast<int>(some < hi - lo ? some : hi - lo);
    State s = {};
    if (Lane() < count) s = spec::LoadOne(in, u, lo + Lane(), lo + Lane());
    fold.total = {FoldLanes(u, s, count), Lane() == 0};  // others may have none
    at += count;
  }
  at = fold.AddAll<kRows>(in, u, at, hi, step);
  if (spec::kCommutes && fold.own.any) Append(u, fold.total, {FoldLanes(u, fold.own.state, kWarp), Leads()});
  if (at < hi) {
    const Maybe run = FoldRun(in, u, at + Lane() * kItems, hi);
    Append(u, fold.total, {FoldLanes(u, run.state, static_cast<int>((hi - at + kItems - 1) / kItems)), Lane() == 0});
  }
  return fold.total;
}

// Threads of a block that share a strip of `width` lanes side by side, `slices` of them a lane.
struct Strip {
  i64 width, slices, slice, lane;
  bool active;
};
JP_DEVICE Strip StripOf(i64 width, i64 slices, i64 lanes, i64 number) {
  const int slice = Thread() / static_cast<int>(width), in = Thread() % static_cast<int>(width);
  const i64 lane = number * width + in;
  return {width, slices, slice, lane, slice < slices && lane < lanes};
}

// The result of a fold: identity's, if it is none; anything, of an operator without one.
JP_DEVICE void Finish(const Row& row, i64 at, const Maybe& total) {
  State s = total.state;
  if (!total.any) s = spec::kHasIdentity ? spec::Identity() : State{};
  spec::StoreOne(row.outs, row.uniforms, at, s);
}

}  // namespace jp
