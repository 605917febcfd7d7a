// A step's rows, made by the kernel: where the rows lie that they read, what is asked of memory meanwhile, and what of a row is
// neither a vector's nor a margin's. It has the scratch lists that a call of the kernel takes, so each thread has its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "stencil_ahead.h"
#include "stencil_call.h"
#include "stencil_ends.h"
#include "stencil_grid.h"
#include "stencil_kernel.h"
#include "stencil_pipeline.h"
#include "stencil_plan.h"

namespace jaxprims {

class StencilRows {
 public:
  struct Group {  // of rows that the kernel makes at once
    int64_t rows;
    bool listed;  // each has places of its own; else all lie as far from each other as those that they read
  };

  StencilRows(const StencilShape& shape, const StencilGrid& grid, const StencilProblem& problem, const StencilKernel& kernel,
              const StencilPipeline& pipeline, const StencilPlan& plan)
      : shape_(shape),
        grid_(grid),
        problem_(problem),
        kernel_(kernel),
        levels_(pipeline.levels()),
        rows_(pipeline.rows()),
        inputs_(pipeline.inputs()),
        stream_(plan.stream),
        alone_(plan.alone),
        asks_(plan.ahead),
        axis_(grid.rank - 1) {
    const size_t leaves = shape.leaf_bytes.size(), rows = rows_.size();
    bases_.resize(rows);
    starts_.resize(kTogether * rows);
    filled_.resize(rows);
    reads_.resize(shape.reads.size());
    row_steps_.resize(rows);
    read_steps_.resize(shape.reads.size());
    out_steps_.resize(leaves);
    here_.resize(kTogether * leaves);
    cell_.resize(leaves);
    row_.resize(leaves);
    nothing_.resize(std::max(rows, leaves));
    ahead_.resize(kAheadNumbers * (shape.array_bytes.size() + leaves));
    at_.resize(grid.rank);
    told_.resize(grid.rank);
  }

  // uniforms: what f captured, of a member of the batch.
  void Start(std::vector<const void*> uniforms) { uniforms_ = std::move(uniforms); }

  // The coordinates of the row that is made next: set by who walks through the tile. They pass the grid's ends on an axis that
  // wraps around.
  std::vector<int64_t>& at() { return at_; }

  // Those from at_ on, up to `end` of the last axis but one. Rows of a ring, which starts anew somewhere, are listed.
  Group Together(const StencilLevel& level, int64_t end) const {
    const size_t before = axis_ - 1;
    const int64_t at = at_[before];
    const bool ring = before == 0 && levels_.size() > 1;
    if (level.step == 0) return {end - at, ring};
    if (!level.inside[before].holds(at) || (!ring && !level.calm.holds(at))) return {1, false};
    end = std::min(end, level.inside[before].end);
    if (!ring) end = std::min(end, level.calm.end);
    if (shape_.coordinates && grid_.Wraps(before)) {
      if (!level.all[before].holds(at)) return {1, false};
      end = std::min(end, level.all[before].end);
    }
    // Results that go past the caches are aligned in all rows at once.
    if (ring && level.last && stream_ && !StreamsAlike(level)) return {1, false};
    return {ring ? std::min(end - at, kTogether) : end - at, ring};
  }

  void Make(const StencilLevel& level, Group group) {
    bool computed = level.run.size() > 0;
    for (size_t a = 0; a < axis_; ++a) computed = computed && level.inside[a].holds(at_[a]);
    if (computed && group.listed) {
      List(level, group.rows);
    } else {
      Locate(level);
      if (computed) Compute(level, group.rows);
    }
    Ends(level, computed ? level.ends : level.kept, group.rows);
  }

 private:
  static bool StreamsAlike(const StencilLevel& level) {
    return std::ranges::all_of(level.to, [](const Cells& to) { return to.stride[to.stride.size() - 2] % 64 == 0; });
  }

  // What of `count` rows from at_ on is neither a vector's nor a margin's.
  void Ends(const StencilLevel& level, const std::vector<std::vector<RowEnd>>& ends, int64_t count) {
    const size_t before = axis_ - 1;
    const int64_t first = at_[before];
    const Interval all = level.all[before];
    const bool straight = !grid_.Wraps(before) || (all.holds(first) && all.holds(first + count - 1));
    for (size_t leaf = 0; leaf < ends.size(); ++leaf) {
      if (ends[leaf].empty()) continue;
      const Cells &to = level.to[leaf], &from = *level.from[leaf];
      for (int64_t done = 0; done < count; at_[before] = first + done) {
        const int64_t rows = straight || from.ring > 0 ? count : 1;
        CellWalk own(to, at_[before], before), old(from, from.ring > 0 ? at_[before] : Told(level, at_[before], before), before);
        char* row = to.origin;
        const char* source = from.origin;
        for (size_t a = 0; a < before; ++a) {
          row += Distance(to, at_[a], a);
          source += Distance(from, from.ring > 0 ? at_[a] : Told(level, at_[a], a), a);
        }
        for (int64_t i = 0; i < rows; ++i) {
          char* const here = row + own.Next();
          const char* const there = source + old.Next();
          for (const RowEnd& end : ends[leaf]) end.Copy(here, there, to.fill);
        }
        done += rows;
      }
      at_[before] = first;
    }
  }

  // Where the row at at_ is written.
  void Locate(const StencilLevel& level) {
    for (size_t leaf = 0; leaf < level.to.size(); ++leaf) {
      char* p = level.to[leaf].origin;
      for (size_t a = 0; a < axis_; ++a) p += Distance(level.to[leaf], at_[a], a);
      row_[leaf] = p;
      out_steps_[leaf] = level.to[leaf].stride[axis_ - 1];
    }
  }

  // `count` rows that lie as far from each other as those that they read.
  void Compute(const StencilLevel& level, int64_t count) {
    Bases(level);
    for (const StencilMargin& m : level.margins) One(level, m, count);
    if (level.vectors.size() <= 0) return;
    for (size_t r = 0; r < rows_.size(); ++r) starts_[r] = bases_[r] + level.vectors.begin * rows_[r].bytes;
    Move(level.vectors.begin, here_.data());
    told_[axis_] = level.vectors.begin;
    Ask(level, count);
    Vectors(level, count, row_steps_.data(), out_steps_.data(), 0);
  }

  // Up to kTogether rows of planes of one row, wherever they are.
  void List(const StencilLevel& level, int64_t count) {
    const int64_t first = at_[0];
    for (int64_t alike = 0; !level.margins.empty() && at_[0] < first + count; at_[0] += alike) {
      alike = Alike(level, first + count - at_[0]);
      Locate(level);
      Bases(level);
      for (const StencilMargin& m : level.margins) One(level, m, alike);
    }
    at_[0] = first;
    if (level.vectors.size() <= 0) return;
    for (size_t leaf = 0; leaf < row_.size(); ++leaf) {
      CellWalk plane(level.to[leaf], first, 0);
      char* const begin = level.to[leaf].origin + level.vectors.begin * shape_.unit * shape_.leaf_bytes[leaf];
      for (size_t i = leaf; i < static_cast<size_t>(count) * row_.size(); i += row_.size()) here_[i] = begin + plane.Next();
    }
    for (size_t r = 0; r < rows_.size(); ++r) {
      const Cells& cells = *level.from[rows_[r].array];
      const int64_t x = first + rows_[r].offset[0], begin = level.vectors.begin * rows_[r].bytes;
      const bool there = cells.there[0].holds(x) && cells.there[0].holds(x + count - 1);
      CellWalk plane(cells, x, 0);
      for (int64_t i = 0; i < count; ++i) {
        const char* row = cells.origin + plane.Next();
        if (!there) {
          const int64_t place = Mapped(cells.boundary[0], x + i, cells.there[0].begin, cells.there[0].end);
          row = place == kFillValue ? cells.fill : cells.origin + Distance(cells, place, 0);
        }
        starts_[static_cast<size_t>(i) * rows_.size() + r] = row + begin;
      }
    }
    Tell(level);
    Ask(level, count);
    Vectors(level, count, nothing_.data(), nothing_.data(), 1);
  }

  // How many of `count` planes of one row lie as far from each other as those that they read: no ring starts anew among them.
  int64_t Alike(const StencilLevel& level, int64_t count) const {
    auto until_anew = [&](const Cells& cells, int64_t x) {
      if (cells.ring > 0) count = std::min(count, cells.ring - Modulo(x, cells.ring));
    };
    for (const Cells& to : level.to) until_anew(to, at_[0]);
    for (const StencilRow& row : rows_) {
      const Cells& from = *level.from[row.array];
      const int64_t x = at_[0] + row.offset[0];
      count = from.there[0].holds(x) ? std::min(count, from.there[0].end - x) : 1;
      until_anew(from, x);
    }
    return count;
  }

  void Vectors(const StencilLevel& level, int64_t count, const int64_t* row_steps, const int64_t* out_steps, int64_t listed) {
    kernel_.row(starts_.data(), row_steps, uniforms_.data(), here_.data(), out_steps, told_.data(),
                level.vectors.size() * shape_.unit, count, listed, level.last && stream_ ? 1 : 0,
                alone_ && (level.last || level.step == 1) ? 1 : 0, ahead_.data());
  }

  // Of the planes that are made after these: the part of their rows that is asked for while `level` makes `count` of its own.
  void Ask(const StencilLevel& level, int64_t count) {
    if (!asks_) return;
    const auto made = static_cast<int64_t>(levels_.size());
    const int64_t front = at_[0] + (&level - levels_.data()) * grid_.halo[0] + PlanesTogether(problem_);
    const StencilPart part{level.step - 1, levels_.back().step, level.vectors.size() * shape_.unit};
    const StencilLevel &first = levels_.front(), &last = levels_.back();
    int64_t* ahead = ahead_.data();
    auto ask = [&](const Cells& cells, const Interval& wide, int64_t bytes, int64_t plane, bool wanted) {
      const Interval there = cells.there[axis_];
      const Interval row{std::max(wide.begin, there.begin), std::min(wide.end, there.end)};
      auto in_plane = [&](size_t a) { return a == 0 ? plane : at_[a]; };
      const char* const where = wanted && row.size() > 0 ? RowAt(cells, in_plane) : nullptr;
      AskFor(where == nullptr ? where : where + row.begin * bytes, cells.stride[axis_ - 1], row.size() * bytes, part, ahead);
      ahead += kAheadNumbers;
    };
    for (size_t array = 0; array < inputs_.size(); ++array) {
      const int64_t plane = front + (array < grid_.changed && first.step == 0 ? 0 : grid_.high[0]);
      ask(inputs_[array], first.region[axis_], shape_.array_bytes[array] * shape_.unit, plane, front < first.region[0].end);
    }
    for (size_t leaf = 0; leaf < last.to.size(); ++leaf) {
      const int64_t plane = front - (made - 1) * grid_.halo[0];
      const Interval planes = last.region[0];
      const bool wanted = !stream_ && planes.holds(plane) && planes.holds(plane + (axis_ == 1 ? count - 1 : 0));
      ask(last.to[leaf], last.region[axis_], shape_.leaf_bytes[leaf] * shape_.unit, plane, wanted);
    }
  }

  // Where the rows are that the row at at_ reads, and what f is told.
  void Bases(const StencilLevel& level) {
    const std::span<const StencilRow> rows = rows_;
    const std::span<const char*> bases = bases_;
    const std::span<char> filled = filled_;
    const std::span<int64_t> steps = row_steps_;
    for (size_t r = 0; r < rows.size(); ++r) {
      const Cells& cells = *level.from[rows[r].array];
      const char* const base = RowAt(cells, [&](size_t a) { return at_[a] + rows[r].offset[a]; });
      const bool outside = base == nullptr;
      bases[r] = outside ? cells.fill : base;
      filled[r] = outside ? 1 : 0;
      steps[r] = outside ? 0 : cells.stride[axis_ - 1];
    }
    Tell(level);
  }

  // What f is told of the row at at_, and of its first vector.
  void Tell(const StencilLevel& level) {
    for (size_t a = 0; shape_.coordinates && a < axis_; ++a) told_[a] = Told(level, at_[a], a);
    told_[axis_] = level.vectors.begin;
  }

  void One(const StencilLevel& level, const StencilMargin& m, int64_t count) {
    const std::span<const StencilRow> rows = rows_;
    const std::span<const char* const> bases = bases_;
    const std::span<const char> filled = filled_;
    const std::span<const int64_t> row_steps = row_steps_;
    const std::span<const void*> reads = reads_;
    const std::span<int64_t> steps = read_steps_;
    for (size_t r = 0; r < reads.size(); ++r) {
      const auto& read = shape_.reads[r];
      const auto row = static_cast<size_t>(read.row);
      const bool outside = filled[row] != 0 || m.outside[r] != 0;
      reads[r] = outside ? level.from[rows[row].array]->fill + (m.x + read.offset) * rows[row].bytes : bases[row] + m.place[r];
      steps[r] = outside ? 0 : row_steps[row];
    }
    told_[axis_] = m.told;
    Move(m.x, cell_.data());
    for (int64_t lane = 0; lane < shape_.unit; ++lane) {
      kernel_.cell(reads_.data(), read_steps_.data(), uniforms_.data(), cell_.data(), out_steps_.data(), told_.data(), count);
      if (shape_.unit == 1) break;
      for (size_t r = 0; r < reads_.size(); ++r) {
        const size_t array = rows_[static_cast<size_t>(shape_.reads[r].row)].array;
        reads_[r] = static_cast<const char*>(reads_[r]) + shape_.array_bytes[array];
      }
      for (size_t k = 0; k < cell_.size(); ++k) cell_[k] = static_cast<char*>(cell_[k]) + shape_.leaf_bytes[k];
    }
  }

  // Where cell 0 of the row at at(axis) would be; null: all of it is the fill value.
  template <class At>
  const char* RowAt(const Cells& cells, At at) const {
    const char* p = cells.origin;
    for (size_t a = 0; a < axis_; ++a) {
      const int64_t x = Mapped(cells.boundary[a], at(a), cells.there[a].begin, cells.there[a].end);
      if (x == kFillValue) return nullptr;
      p += Distance(cells, x, a);
    }
    return p;
  }
  int64_t Told(const StencilLevel& level, int64_t x, size_t a) const {
    return grid_.Wraps(a) ? Mapped(Boundary::kWrap, x, level.all[a].begin, level.all[a].end) : x;
  }
  void Move(int64_t x, void** here) const {
    for (size_t k = 0; k < row_.size(); ++k) here[k] = row_[k] + x * shape_.unit * shape_.leaf_bytes[k];
  }

  const StencilShape& shape_;
  const StencilGrid& grid_;
  const StencilProblem& problem_;
  const StencilKernel& kernel_;
  const std::vector<StencilLevel>& levels_;
  const std::vector<StencilRow>& rows_;
  const std::vector<Cells>& inputs_;
  std::vector<const void*> uniforms_;
  const bool stream_, alone_, asks_;
  const size_t axis_;  // the innermost one

  // Of the row that is made.
  std::vector<int64_t> at_, told_;  // its coordinates, and as f is told them
  std::vector<const char*> bases_;  // by row that is read: where its cell 0 would be
  std::vector<char> filled_;        // is it outside, and so the fill value?
  std::vector<char*> row_;          // by leaf: where cell 0 of the row would be
  std::vector<const void*> starts_, reads_;
  std::vector<int64_t> row_steps_, read_steps_, out_steps_, nothing_, ahead_;
  std::vector<void*> here_, cell_;
};

}  // namespace jaxprims
