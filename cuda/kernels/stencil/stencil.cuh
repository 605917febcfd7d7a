// Stencils: every cell of a grid from cells around it. Which kernel runs, and on what tiles, is in stencil_choice.h.
//
// Coordinates are the grid's cells; on the innermost axis lanes, of which a cell has several side by side. A thread makes a
// column of cells that follow each other on the grid's first axis: the same function, unrolled, so that what neighbours of a
// column read is loaded once, while a warp's lanes lie side by side in memory. A column none of whose reads is outside what is
// there needs no test; elsewhere each read is looked up.
#pragma once

#include "stencil_boundary.h"
#include "stencil_tiles.h"

namespace jp {

using jaxprims::Boundary;
using jaxprims::kFillValue;
using jaxprims::Mapped;

constexpr int kRank = spec::kRank, kInner = kRank - 1;
constexpr int kWalk = spec::kFlat ? kInner : 0;  // the axis that columns follow
constexpr int kStencilArrays = AtLeastOne(spec::kArrays), kStencilReads = AtLeastOne(spec::kReads);

// An array on an axis: cells [begin, end) are there, so many lanes from one to the next.
struct ArrayAxis {
  i64 boundary, begin, end, stride;
};
// The grid on an axis. Results are cells [start, start + size); each of the launch's steps has `shrink` cells fewer than the one
// before and keeps `keep` at the border. No read of arrays in global memory is outside for cells [fixed_lo, fixed_hi); those of
// arrays in a tile reach from low (at most 0) to high.
struct GridAxis {
  i64 start, size, shrink_lo, shrink_hi, keep_lo, keep_hi, fixed_lo, fixed_hi, low, high, halo, wraps, tile, tiles, out_stride;
};

// The words of a launch; the host writes them in this order.
struct StencilParams {
  Batch batch;
  Operand arrays[kStencilArrays];
  Operand uniforms[AtLeastOne(spec::kUniforms)];
  Operand outs[AtLeastOne(spec::kLeaves)];
  i64 fill[kStencilArrays][2];  // 16 bytes of the fill value
  ArrayAxis axes[kStencilArrays][kRank];
  GridAxis grid[kRank];
  i64 depth;  // steps
  i64 wide;   // StencilCells: a block's threads on the innermost axis
  i64 walk;   // cells that each of its columns has
};

struct Range {
  i64 lo, hi;
  JP_DEVICE bool Holds(i64 x) const { return x >= lo && x < hi; }
};
JP_DEVICE Range Common(const Range& a, const Range& b) { return {a.lo > b.lo ? a.lo : b.lo, a.hi < b.hi ? a.hi : b.hi}; }

// A step on an axis: the cells that there are before and after it, those that it makes, and those none of whose reads is outside.
struct StepAxis {
  Range before, after, made, inside;
};
struct Step {
  StepAxis axis[kRank];
};
static_assert(kStencilDeepest * sizeof(Step) == StepsBytes(kRank), "as plans know it");

constexpr i64 kFarAway = i64{1} << 62;

// Step k, from 1 on. kTiled: the arrays that steps change are in shared memory, beyond the ends of axes that wrap around, too.
template <bool kTiled>
JP_DEVICE void SetStep(const StencilParams& p, i64 k, Step& step) {
#pragma unroll 1
  for (int a = 0; a < kRank; ++a) {
    const GridAxis& g = p.grid[a];
    const i64 left = p.depth - k;
    const Range after = {g.start - left * g.shrink_lo, g.start + g.size + left * g.shrink_hi};
    const Range before = {after.lo - g.shrink_lo, after.hi + g.shrink_hi};
    const i64 lo = after.lo + g.keep_lo, hi = after.hi - g.keep_hi;
    const Range made = g.wraps ? Range{-kFarAway, kFarAway} : Range{lo, hi > lo ? hi : lo};
    Range inside = Common({g.fixed_lo, g.fixed_hi}, made);
    if (kTiled && !g.wraps) inside = Common(inside, {before.lo - g.low, before.hi - g.high});
    if (spec::kTold) inside = Common(inside, after);  // beyond the end of an axis that wraps around a cell is told another place
    step.axis[a] = {before, after, made, inside};
  }
}

// What cells are made from: arrays in global memory or, the first ones, in a tile.
template <bool kTiled>
struct From {
  const StencilParams& p;
  const Step& step;
  spec::Arrays arrays;
  spec::Uniforms uniforms;
  Range inside[kRank];  // the step's, in registers
  i64 tile_lo[kRank], tile_stride[kRank];

  JP_DEVICE From(const StencilParams& params, const Step& of, const spec::Arrays& arrays_, const spec::Uniforms& uniforms_)
      : p(params), step(of), arrays(arrays_), uniforms(uniforms_) {
#pragma unroll
    for (int a = 0; a < kRank; ++a) inside[a] = of.axis[a].inside;
  }

  JP_DEVICE static constexpr bool InTile(int array) { return kTiled && array < spec::kLeaves; }
  JP_DEVICE i64 Begin(int array, int axis) const {
    return InTile(array) ? tile_lo[axis] : p.axes[array][axis].begin * (axis == kInner ? spec::kUnit : 1);
  }
  JP_DEVICE i64 Stride(int array, int axis) const {
    return axis == kInner ? 1 : InTile(array) ? tile_stride[axis] : p.axes[array][axis].stride;
  }
  // Where an array has the cell's own place.
  JP_DEVICE i64 LaneOf(int array, const i64 (&at)[kRank]) const {
    i64 lane = 0;
#pragma unroll
    for (int a = 0; a < kRank; ++a) lane += (at[a] - Begin(array, a)) * Stride(array, a);
    return lane;
  }
};

// --- what f reads --------------------------------------------------------------------------------------------------------------

// Of a cell none of whose reads is outside: so far from its own place in each array, and `ahead` of it on the walk.
template <bool kTiled>
struct Near {
  const From<kTiled>& from;
  const i64 (&lane)[kStencilArrays];
  i64 ahead;

  template <int kRead, int kArray, int kSlots, int kSlot, class T>
  JP_DEVICE T At(const T* array) const {
    i64 at = lane[kArray];
#pragma unroll
    for (int a = 0; a < kRank; ++a) {
      const i64 offset = static_cast<i64>(spec::kOffsets[kRead][a]) * (a == kInner ? spec::kUnit : 1);
      at += (offset + (a == kWalk ? ahead : 0)) * from.Stride(kArray, a);
    }
    const T* place = array + (at * kSlots + kSlot);
    if constexpr (From<kTiled>::InTile(kArray)) return *place;
    return LoadConstant(place);
  }
};

// Of any cell: where each read lies, or kFillValue.
template <bool kTiled>
JP_DEVICE void Find(const From<kTiled>& from, const i64 (&at)[kRank], i64 (&lanes)[kStencilReads]) {
#pragma unroll 1
  for (int r = 0; r < spec::kReads; ++r) {
    const int array = spec::kArrayOf[r];
    const bool tiled = From<kTiled>::InTile(array);
    i64 found = 0;
#pragma unroll
    for (int a = 0; a < kRank; ++a) {
      const i64 unit = a == kInner ? spec::kUnit : 1;
      const ArrayAxis& axis = from.p.axes[array][a];
      i64 x = at[a] + spec::kOffsets[r][a] * unit, lane = 0;
      if (unit > 1) lane = jaxprims::Modulo(x, unit);
      if (!(tiled && from.p.grid[a].wraps)) {
        const Range before = from.step.axis[a].before;
        const i64 begin = tiled ? before.lo / unit : axis.begin, end = tiled ? before.hi / unit : axis.end;
        const i64 cell = Mapped(static_cast<Boundary>(axis.boundary), (x - lane) / unit, begin, end);
        x = cell == kFillValue ? cell : cell * unit + lane;
      }
      const bool there = found != kFillValue && x != kFillValue;
      found = there ? found + (x - from.Begin(array, a)) * from.Stride(array, a) : kFillValue;
    }
    lanes[r] = found;
  }
}

template <bool kTiled>
struct LookedUp {
  const From<kTiled>& from;
  const i64* lane;  // not within: what a dynamic index looks into is no register's, nor is what lies beside it

  template <int kRead, int kArray, int kSlots, int kSlot, class T>
  JP_DEVICE T At(const T* array) const {
    if (lane[kRead] != kFillValue) return array[lane[kRead] * kSlots + kSlot];
    T fill;
    memcpy(&fill, reinterpret_cast<const char*>(from.p.fill[kArray]) + kSlot * sizeof(T) % 16, sizeof(T));
    return fill;
  }
};

// --- columns -------------------------------------------------------------------------------------------------------------------

// What f is told of a coordinate: of a lane, that of its cell.
JP_DEVICE i32 Told(int axis, i64 x) {
  if (spec::kUnit > 1 && axis == kInner) x = (x - jaxprims::Modulo(x, spec::kUnit)) / spec::kUnit;
  return static_cast<i32>(x);
}

// A cell anywhere: on axes that wrap around perhaps beyond the ends, of which f is told where within it is.
template <bool kTiled>
JP_DEVICE spec::Result LookUp(const From<kTiled>& from, const i64 (&at)[kRank]) {
  bool made = true;
  i64 lane[kStencilArrays];
  i32 told[kRank];
#pragma unroll
  for (int a = 0; a < kRank; ++a) {
    const StepAxis& axis = from.step.axis[a];
    made = made && axis.made.Holds(at[a]);
    i64 x = at[a];
    if (spec::kTold && from.p.grid[a].wraps) x = Mapped(Boundary::kWrap, x, axis.after.lo, axis.after.hi);
    told[a] = Told(a, x);
  }
  if (!made) {
#pragma unroll
    for (int k = 0; k < spec::kArrays; ++k) lane[k] = from.LaneOf(k, at);
    return spec::Kept(from.arrays, lane);
  }
  i64 found[kStencilReads];
  Find(from, at, found);
  return spec::F(from.uniforms, LookedUp<kTiled>{from, found}, told);
}

// One cell, or the unrolled cells of a column, none of which reads outside.
template <bool kTiled, int kCount, class Store>
JP_DEVICE void MakeNear(const From<kTiled>& from, const i64 (&at)[kRank], i64 step, const Store& store) {
  i64 lane[kStencilArrays];
#pragma unroll
  for (int k = 0; k < spec::kArrays; ++k) lane[k] = from.LaneOf(k, at);
  spec::Result made[kCount];  // before any is stored: no load waits for a store that might be to its place
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    i32 told[kRank];
#pragma unroll
    for (int a = 0; a < kRank; ++a) told[a] = Told(a, at[a] + (a == kWalk ? i * step : 0));
    made[i] = spec::F(from.uniforms, Near<kTiled>{from, lane, i * step}, told);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) store(i * step, made[i]);
}

// Of a column, the cells none of whose reads is outside: none, where they are outside on another axis than the walk.
template <bool kTiled>
JP_DEVICE Range CalmOf(const From<kTiled>& from, const i64 (&at)[kRank]) {
  bool aside = true;
#pragma unroll
  for (int a = 0; a < kRank; ++a) aside = aside && (a == kWalk || from.inside[a].Holds(at[a]));
  return aside ? from.inside[kWalk] : Range{};
}

// `count` cells of a column, from `at` on, each `step` ahead of the one before; at most spec::kColumn. store(ahead, result).
template <bool kTiled, class Store>
JP_DEVICE void MakeColumn(const From<kTiled>& from, const i64 (&at)[kRank], const Range& calm, int count, i64 step,
                          const Store& store) {
  if (count == spec::kColumn && calm.Holds(at[kWalk]) && calm.Holds(at[kWalk] + (spec::kColumn - 1) * step)) {
    MakeNear<kTiled, spec::kColumn>(from, at, step, store);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    i64 here[kRank];
#pragma unroll
    for (int a = 0; a < kRank; ++a) here[a] = at[a] + (a == kWalk ? i * step : 0);
    if (calm.Holds(here[kWalk])) {
      MakeNear<kTiled, 1>(from, here, 0, [&](i64, const spec::Result& r) { store(i * step, r); });
    } else {
      store(i * step, LookUp(from, here));
    }
  }
}

// The tile with a number, and the member of the batch that it is of.
JP_DEVICE Member TileAt(const StencilParams& p, i64 number, Range (&tile)[kRank]) {
#pragma unroll
  for (int a = kRank - 1; a >= 0; --a) {
    const GridAxis& g = p.grid[a];
    const i64 lo = g.start + number % g.tiles * g.tile, end = g.start + g.size;
    tile[a] = {lo, lo + g.tile < end ? lo + g.tile : end};
    number /= g.tiles;
  }
  return MemberOf(p.batch, number);
}
JP_DEVICE i64 TilesOf(const StencilParams& p) {
  i64 tiles = p.batch.members;
#pragma unroll
  for (int a = 0; a < kRank; ++a) tiles *= p.grid[a].tiles;
  return tiles;
}

JP_DEVICE i64 OutLane(const StencilParams& p, const i64 (&at)[kRank]) {
  i64 lane = 0;
#pragma unroll
  for (int a = 0; a < kRank; ++a) lane += (at[a] - p.grid[a].start) * (a == kInner ? 1 : p.grid[a].out_stride);
  return lane;
}

// One step. A block's threads are side by side on the innermost axis and, what is left of them, on the last axis but one; of a
// grid of two axes, on pieces of the walk.
JP_KERNEL(StencilCells, StencilParams, kStencilThreads, spec::kResident) {
  JP_SHARED(Step, step);
  if (Thread() == 0) SetStep<false>(p, 1, step);
  BlockBarrier();
  const int wide = static_cast<int>(p.wide), x = Thread() % wide, y = Thread() / wide;
  const i64 ahead = spec::kFlat ? wide : 1;
  for (i64 number = Block(), tiles = TilesOf(p); number < tiles; number += Blocks()) {
    Range tile[kRank];
    const Member m = TileAt(p, number, tile);
    i64 at[kRank];
#pragma unroll
    for (int a = 0; a < kRank; ++a) at[a] = tile[a].lo;
    at[kInner] += x;
    if constexpr (kRank > 2) at[kRank - 2] += y;
    i64 end = tile[kWalk].hi;
    if constexpr (kRank == 2 && !spec::kFlat) {
      at[0] += y * p.walk;
      if (at[0] + p.walk < end) end = at[0] + p.walk;
    }
    if (at[kInner] >= tile[kInner].hi || at[kRank - 2] >= tile[kRank - 2].hi) continue;
    const From<false> from(p, step, spec::ArraysOf(p.arrays, m), spec::UniformsOf(p.uniforms, m));
    const spec::Outs outs = spec::OutsOf(p.outs, m);
    const i64 out_ahead = kWalk == kInner ? 1 : p.grid[kWalk].out_stride;
    const Range calm = CalmOf(from, at);
#pragma unroll 1
    for (; at[kWalk] < end; at[kWalk] += spec::kColumn * ahead) {
      const i64 left = (end - at[kWalk] + ahead - 1) / ahead, out = OutLane(p, at);
      MakeColumn(from, at, calm, left < spec::kColumn ? static_cast<int>(left) : spec::kColumn, ahead,
                 [&](i64 i, const spec::Result& r) { spec::Store(outs, out + i * out_ahead, r); });
    }
  }
}

}  // namespace jp
