// A pass of several steps over a tile as a pipeline (temporal blocking): which cells of the tile each step makes, and where they
// lie.
//
// Step 1 reads the arrays, step k the planes of step k - 1, which lie in a ring of as many planes as are still wanted. Around the
// tile each step makes the cells that the next one wants, clipped at the grid's border, unless the axis wraps around. All of this
// depends on where the tile is in the grid, not on what is in it: members of a batch share it, and only pointers move.
//
// Cells whose neighbourhood is inside are made by vectors along the innermost axis. Those at a row's ends that read outside what
// is there are its margins, made one at a time, with a place for each read. Rings have such cells as padding on either side.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "stencil_call.h"
#include "stencil_ends.h"
#include "stencil_grid.h"
#include "stencil_plan.h"

namespace jaxprims {

struct StencilRow {  // of those that f reads
  size_t array;
  int64_t bytes;      // of a cell
  int64_t low, high;  // offsets along the row
  PerAxis<int64_t> offset;
};
struct StencilMargin {  // a cell of a row near its end, and where its reads are in their rows
  int64_t x, told;
  std::vector<int64_t> place;  // bytes
  std::vector<char> outside;
};
struct StencilLevel {  // a step, or a copy of what the first one reads
  int64_t step = 0;
  bool last = false;
  std::vector<const Cells*> from;      // by array
  std::vector<Cells> to;               // by leaf
  PerAxis<Interval> region;            // the cells that the tile makes,
  PerAxis<Interval> all;               // of those that there are,
  PerAxis<Interval> inside;            // of which these are computed and others kept; everything, where the axis wraps around
  Interval calm;                       // on the last axis but one: where no row that is read is outside
  Interval run, vectors;               // of a row: the cells that are computed; those of them that are by vectors
  std::vector<StencilMargin> margins;  // the others
  std::vector<std::vector<RowEnd>> ends, kept;  // by leaf: what else there is of a row, and of one that is not computed
};

class StencilPipeline {
 public:
  StencilPipeline(const StencilShape& shape, const StencilGrid& grid, const StencilProblem& problem)
      : shape_(shape), grid_(grid), problem_(problem), axis_(grid.rank - 1) {
    for (const auto& row : shape.rows) {
      const auto array = static_cast<size_t>(row.array);
      StencilRow& own = rows_.emplace_back(StencilRow{array, shape.array_bytes[array] * shape.unit, 0, 0, {}});
      for (size_t a = 0; a < axis_; ++a) own.offset.push_back(grid.OuterOffset(row, a));
      for (const auto& read : shape.reads) {
        if (&shape.rows[static_cast<size_t>(read.row)] != &row) continue;
        own.low = std::min(own.low, read.offset);
        own.high = std::max(own.high, read.offset);
      }
    }
  }
  StencilPipeline(const StencilPipeline&) = delete;  // levels point to what is here
  StencilPipeline& operator=(const StencilPipeline&) = delete;

  // The `depth` steps from number `first` + 1 on. inputs: what the first reads, and arrays that do not change; outs: what the
  // last one writes; work: TileBytes, which are this pipeline's as long as it makes the same cells.
  void Place(std::span<const Cells> inputs, std::span<const Cells> outs, const std::vector<std::array<int64_t, 2>>& fills,
             std::span<const Interval> tile, int64_t first, int64_t depth, char* work) {
    if (!levels_.empty() && steps_ == std::array{first, depth} && std::ranges::equal(tile_, tile)) {  // of another member
      for (size_t array = 0; array < inputs_.size(); ++array) inputs_[array].origin = inputs[array].origin;
      for (size_t leaf = 0; leaf < outs_.size(); ++leaf) levels_.back().to[leaf].origin = outs[leaf].origin;
      return;
    }
    inputs_.assign(inputs.begin(), inputs.end());
    outs_.assign(outs.begin(), outs.end());
    LayOut(fills, tile, first, depth, work);
  }

  const std::vector<StencilRow>& rows() const { return rows_; }
  const std::vector<StencilLevel>& levels() const { return levels_; }
  const std::vector<Cells>& inputs() const { return inputs_; }

 private:
  // Where everything is in `work`, and what each step makes.
  void LayOut(const std::vector<std::array<int64_t, 2>>& fills, std::span<const Interval> tile, int64_t first, int64_t depth,
              char* work) {
    PerAxis<int64_t> sizes;
    for (const Interval& i : tile) sizes.push_back(i.size());
    const int64_t made = FirstMade(problem_, depth);
    levels_.clear();
    levels_.reserve(static_cast<size_t>(depth - made + 1));
    tile_.assign(tile.begin(), tile.end());
    steps_ = {first, depth};
    for (int64_t k = made; k <= depth; ++k) {
      StencilLevel& level = levels_.emplace_back();
      level.step = k;
      level.last = k == depth;
      for (size_t a = 0; a <= axis_; ++a) {
        const int64_t more = (depth - k) * grid_.halo[a];
        const Interval wanted{tile[a].begin - more, tile[a].end + more}, all = grid_.Domain(first + k, a);
        level.all.push_back(all);
        level.region.push_back(grid_.Wraps(a) ? wanted
                                              : Interval{std::max(wanted.begin, all.begin), std::min(wanted.end, all.end)});
        level.inside.push_back(k == 0 ? Interval{} : grid_.Wraps(a) ? kEverywhere : grid_.Computed(first + k, a));
      }
    }
    for (size_t array = 0; array < inputs_.size(); ++array) {
      Cells& input = inputs_[array];
      const int64_t bytes = FillBytes(problem_, sizes[axis_], depth, array);
      // What is never read need only be there: all but what is beyond the ends of one step's rows, if none is outside itself.
      const Interval widest = levels_[0].region[axis_], there = input.there[axis_];
      const int64_t begin = widest.begin + grid_.low[axis_];
      auto place = [&](int64_t x) { return std::clamp<int64_t>(kLine + (x - begin) * input.stride[axis_], 0, bytes); };
      auto fill = [&](int64_t i, int64_t end) {
        for (i -= i % kFill; i < end; i += kFill) std::memcpy(work + i, fills[array].data(), kFill);
      };
      const auto inner = input.boundary.begin() + static_cast<std::ptrdiff_t>(axis_);
      const bool ends = begin < there.begin || widest.end + grid_.high[axis_] > there.end;
      if (std::find(input.boundary.begin(), inner, Boundary::kConstant) != inner ||
          (ends && levels_.size() > 1 && *inner == Boundary::kConstant)) {
        fill(0, bytes);
      } else if (ends && *inner == Boundary::kConstant) {
        fill(0, place(there.begin));
        fill(place(there.end), bytes);
      }
      input.fill = work + kLine - begin * input.stride[axis_];
      work += bytes;
    }
    char* const rings = work;
    first_ = grid_.Wraps(axis_) ? 0 : grid_.Computed(first + 1, axis_).begin;
    for (int64_t k = made; k < depth; ++k) {
      if ((k - made) % Rings(problem_, sizes, depth) == 0) work = rings;
      StencilLevel& level = levels_[static_cast<size_t>(k - made)];
      for (size_t array = 0; array < grid_.changed; ++array) {
        Cells& ring = level.to.emplace_back(inputs_[array]);
        ring.ring = RingPlanes(problem_, sizes[0], depth, k);
        ring.padded = true;
        ring.stride[axis_] = shape_.array_bytes[array] * shape_.unit;
        int64_t stride = RingRowBytes(problem_, sizes[axis_], depth, k, array);
        for (size_t a = axis_; a-- > 0;) {
          ring.stride[a] = stride;
          stride *= Wide(problem_, sizes[a], depth, k, a);
        }
        // The first cell that is computed would be at the begin of a line, in all rings alike.
        const int64_t before = (level.region[axis_].begin - grid_.halo[axis_] - first_) * ring.stride[axis_];
        ring.origin = work + kLine + (before % kLine + kLine) % kLine - before - first_ * ring.stride[axis_];
        for (size_t a = 1; a < axis_; ++a) ring.origin -= level.region[a].begin * ring.stride[a];
        for (size_t a = 0; a <= axis_; ++a) ring.there[a] = grid_.Wraps(a) ? kEverywhere : level.all[a];
        work += RingBytes(problem_, sizes, depth, k, array);
      }
    }
    levels_.back().to = outs_;
    for (size_t k = 0; k < levels_.size(); ++k) {
      for (size_t array = 0; array < inputs_.size(); ++array) {
        levels_[k].from.push_back(k > 0 && array < grid_.changed ? &levels_[k - 1].to[array] : &inputs_[array]);
      }
      Divide(levels_[k]);
      PlaceEnds(levels_[k]);
    }
  }

  void PlaceEnds(StencilLevel& level) {
    const Interval wanted = level.region[axis_], all = level.all[axis_], none{wanted.end, wanted.end};
    const int64_t low = std::min(grid_.halo[axis_], -grid_.low[axis_]), high = std::min(grid_.halo[axis_], grid_.high[axis_]);
    level.ends.resize(grid_.changed);
    level.kept.resize(grid_.changed);
    for (size_t leaf = 0; leaf < grid_.changed; ++leaf) {
      const int64_t bytes = shape_.leaf_bytes[leaf] * shape_.unit;
      KeepEnds(*level.from[leaf], wanted, level.run, bytes, level.ends[leaf]);
      KeepEnds(*level.from[leaf], wanted, none, bytes, level.kept[leaf]);
      if (level.last || grid_.Wraps(axis_)) continue;
      PadEnds(level.to[leaf], wanted, all, low, high, bytes, level.ends[leaf]);
      PadEnds(level.to[leaf], wanted, all, low, high, bytes, level.kept[leaf]);
    }
  }

  // The cells of a row: those at either end that read outside what is there, or of which f is told another coordinate than the
  // next one, are made one by one, the others by vectors.
  void Divide(StencilLevel& level) {
    const Interval wanted = level.region[axis_], all = level.all[axis_];
    level.run = {std::max(wanted.begin, level.inside[axis_].begin), std::min(wanted.end, level.inside[axis_].end)};
    if (level.run.size() <= 0) level.run = {wanted.end, wanted.end};
    level.calm = kEverywhere;
    Interval v = level.run;
    for (const StencilRow& row : rows_) {
      const Cells& cells = *level.from[row.array];
      const size_t before = axis_ - 1;
      level.calm.begin = std::max(level.calm.begin, cells.there[before].begin - row.offset[before]);
      level.calm.end = std::min(level.calm.end, cells.there[before].end - row.offset[before]);
      if (cells.padded) continue;
      v.begin = std::max(v.begin, cells.there[axis_].begin - row.low);
      v.end = std::min(v.end, cells.there[axis_].end - row.high);
    }
    if (shape_.coordinates && grid_.Wraps(axis_)) v = {std::max(v.begin, all.begin), std::min(v.end, all.end)};
    if (v.size() * shape_.unit < shape_.width) v = {level.run.end, level.run.end};
    level.vectors = v;
    for (int64_t x = level.run.begin; x < level.run.end; ++x) {
      if (x == v.begin) x = v.end;
      if (x < level.run.end) level.margins.push_back(MarginAt(level, x));
    }
    if (v.size() > 0) level.vectors = Rounded(level, v);
  }

  // Vectors that are whole lines of rings: nobody reads what they make beyond the tile, and beyond the grid's ends it
  // is written over (Ends).
  Interval Rounded(const StencilLevel& level, Interval v) const {
    const int64_t bytes = grid_.changed > 0 ? shape_.array_bytes[0] * shape_.unit : kLine, cells = kLine / bytes;
    if (level.last || shape_.coordinates || shape_.may_not_end || kLine % bytes != 0) return v;
    for (size_t array = 0; array < grid_.changed; ++array) {
      if (shape_.array_bytes[array] * shape_.unit != bytes) return v;
    }
    auto down = [&](int64_t x) { return x - Modulo(x - first_, cells); };
    auto there = [&](Interval wide) {
      return std::ranges::all_of(rows_, [&](const StencilRow& row) {
        const Cells& from = *level.from[row.array];
        return from.padded || (wide.begin + row.low >= from.there[axis_].begin && wide.end + row.high <= from.there[axis_].end);
      });
    };
    if (const Interval wide{down(v.begin), v.end}; there(wide)) v = wide;
    if (const Interval wide{v.begin, down(v.end + cells - 1)}; there(wide)) v = wide;
    return v;
  }

  StencilMargin MarginAt(const StencilLevel& level, int64_t x) const {
    StencilMargin m{x, grid_.Wraps(axis_) ? Mapped(Boundary::kWrap, x, level.all[axis_].begin, level.all[axis_].end) : x, {}, {}};
    for (const auto& read : shape_.reads) {
      const StencilRow& row = rows_[static_cast<size_t>(read.row)];
      const Cells& cells = *level.from[row.array];
      int64_t at = x + read.offset;
      if (!cells.padded) at = Mapped(cells.boundary[axis_], at, cells.there[axis_].begin, cells.there[axis_].end);
      m.outside.push_back(at == kFillValue ? 1 : 0);
      m.place.push_back(at == kFillValue ? 0 : at * row.bytes);
    }
    return m;
  }

  static constexpr int64_t kFill = 16;

  const StencilShape& shape_;
  const StencilGrid& grid_;
  const StencilProblem& problem_;
  const size_t axis_;  // the innermost one
  std::vector<StencilRow> rows_;
  std::vector<Cells> inputs_, outs_;
  std::vector<StencilLevel> levels_;
  PerAxis<Interval> tile_;          // of which these are,
  std::array<int64_t, 2> steps_{};  // and the steps: the number of those before, and how many
  int64_t first_ = 0;               // a cell of a row that is at the begin of a line, in rings
};

}  // namespace jaxprims
