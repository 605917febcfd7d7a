// Several steps of a stencil in one pass through memory (overlapped tiles; Holewinski et al. 2012, Matsumura et al. 2020).
//
// A block loads a tile of results and what all its steps read around it into shared memory. Step k makes the cells that the later
// steps want, a halo fewer at each side than the step before, from one buffer into another; the last one writes results. Nothing
// synchronises blocks: what two tiles want, both make, each time the same function of the same values.
#pragma once

#include "stencil/stencil.cuh"

namespace jp {

// fn(at, count): the columns of a box, a warp's lanes side by side on the innermost axis, its block's warps on the others.
template <int kCells, class F>
JP_DEVICE void ForColumns(const Range (&box)[kRank], const F& fn) {
#pragma unroll
  for (int a = 0; a < kRank; ++a) {
    if (box[a].hi <= box[a].lo) return;
  }
  auto count = [](i64 left) { return left < kCells ? static_cast<int>(left) : kCells; };
  i64 at[kRank];
  if constexpr (spec::kFlat) {
    at[0] = box[0].lo;
    for (at[1] = box[1].lo + Warp() * kWarp * kCells + Lane(); at[1] < box[1].hi; at[1] += kStencilThreads * kCells) {
      fn(at, count((box[1].hi - at[1] + kWarp - 1) / kWarp));
    }
  } else {
    int row[kInner] = {}, rows[kInner];  // on the first axis, columns
#pragma unroll
    for (int a = 0; a < kInner; ++a) rows[a] = static_cast<int>(box[a].hi - box[a].lo);
    rows[0] = (rows[0] + kCells - 1) / kCells;
#pragma unroll 1
    for (row[kInner - 1] = Warp();; row[kInner - 1] += kStencilWarps) {
#pragma unroll
      for (int a = kInner - 1; a > 0; --a) {
        for (; row[a] >= rows[a]; row[a] -= rows[a]) ++row[a - 1];
      }
      if (row[0] >= rows[0]) return;
#pragma unroll
      for (int a = 0; a < kInner; ++a) at[a] = box[a].lo + row[a] * (a == 0 ? kCells : 1);
#pragma unroll 1
      for (at[kInner] = box[kInner].lo + Lane(); at[kInner] < box[kInner].hi; at[kInner] += kWarp) {
        fn(at, count(box[0].hi - at[0]));
      }
    }
  }
}

// The cells of step k that a tile's later ones want.
JP_DEVICE void Wanted(const StencilParams& p, const Range (&tile)[kRank], i64 k, const Step& step, Range (&box)[kRank]) {
#pragma unroll
  for (int a = 0; a < kRank; ++a) {
    const i64 more = (p.depth - k) * p.grid[a].halo;
    box[a] = {tile[a].lo - more, tile[a].hi + more};
    if (!p.grid[a].wraps) box[a] = Common(box[a], k == 0 ? step.axis[a].before : step.axis[a].after);
  }
}

JP_KERNEL(StencilSteps, StencilParams, kStencilThreads, spec::kResident) {
  JP_SHARED(Step, steps[kStencilDeepest]);
  const int depth = static_cast<int>(p.depth);
  if (Thread() < depth) SetStep<true>(p, Thread() + 1, steps[Thread()]);
  i64 stride[kRank], lanes = 1;
#pragma unroll
  for (int a = kRank - 1; a >= 0; --a) {
    stride[a] = lanes;
    lanes *= p.grid[a].tile + 2 * depth * p.grid[a].halo;
  }
  // What step k makes, k = 0: what is loaded. Not pointers that are kept: the compiler is to see that it is shared memory.
  auto buffer = [&](int k) { return spec::TileOf(DynamicShared() + k % 2 * spec::BytesOfTile(lanes), lanes); };
  BlockBarrier();
  for (i64 number = Block(), tiles = TilesOf(p); number < tiles; number += Blocks()) {
    Range tile[kRank], box[kRank];
    const Member m = TileAt(p, number, tile);
    const spec::Arrays arrays = spec::ArraysOf(p.arrays, m);
    const spec::Uniforms uniforms = spec::UniformsOf(p.uniforms, m);
    const spec::Outs outs = spec::OutsOf(p.outs, m);
    auto from_buffer = [&](int k) {
      From<true> from(p, steps[k - 1], spec::InTile(arrays, buffer(k - 1)), uniforms);
#pragma unroll
      for (int a = 0; a < kRank; ++a) {
        from.tile_lo[a] = tile[a].lo - depth * p.grid[a].halo;
        from.tile_stride[a] = stride[a];
      }
      return from;
    };
    {
      const From<true> to = from_buffer(1);
      const From<false> memory(p, steps[0], arrays, uniforms);
      Wanted(p, tile, 0, steps[0], box);
      ForColumns<1>(box, [&](const i64(&at)[kRank], int) {
        i64 there[kRank], lane[kStencilArrays];
#pragma unroll
        for (int a = 0; a < kRank; ++a) {
          const Range before = steps[0].axis[a].before;
          there[a] = p.grid[a].wraps ? Mapped(Boundary::kWrap, at[a], before.lo, before.hi) : at[a];
        }
#pragma unroll
        for (int k = 0; k < spec::kLeaves; ++k) lane[k] = memory.LaneOf(k, there);
        spec::Fetch(arrays, lane, buffer(0), to.LaneOf(0, at));
      });
      CommitCopies();
      WaitForCopies<0>();
      BlockBarrier();
    }
#pragma unroll 1
    for (int k = 1; k <= depth; ++k) {
      const From<true> from = from_buffer(k);
      Wanted(p, tile, k, steps[k - 1], box);
      const bool last = k == depth;
      const spec::Outs to = buffer(k);
      const i64 ahead = spec::kFlat ? kWarp : 1, out_ahead = kWalk == kInner ? 1 : last ? p.grid[0].out_stride : stride[0];
      ForColumns<spec::kColumn>(box, [&](const i64(&at)[kRank], int count) {
        const i64 out = last ? OutLane(p, at) : from.LaneOf(0, at);
        MakeColumn(from, at, CalmOf(from, at), count, ahead, [&](i64 i, const spec::Result& r) {
          if (last) {
            spec::Store(outs, out + i * out_ahead, r);
          } else {
            spec::Store(to, out + i * out_ahead, r);
          }
        });
      });
      BlockBarrier();
    }
  }
}

}  // namespace jp
