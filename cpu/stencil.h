// The stencil's driver: several steps in one pass through memory (temporal blocking; algorithm and limits: docs/stencils.md).
//
// A tile of results is walked along the grid's first axis, a few planes at a time. For each of these, step 1 reads the arrays,
// step k the planes of step k - 1, which lie in a ring of as many planes as are still wanted: step k runs `halo` planes behind
// step k - 1. The last step writes results. Around a tile each step computes the cells that the next one wants (clipped at the
// grid's border, unless the axis wraps around), so tiles depend on nothing that another thread writes: between two passes all
// threads meet, and that is all the synchronisation there is (WorkAssist). Every cell of every step is the same function of the
// same values whichever tile computes it, so results do not depend on the plan.
//
// Cells whose neighbourhood is inside are computed by vectors along the innermost axis. Those at its ends that read outside what
// is there are computed one at a time, with a pointer for each read. Rings have such cells as padding on either side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "stencil_ahead.h"
#include "stencil_call.h"
#include "stencil_ends.h"
#include "stencil_grid.h"
#include "stencil_kernel.h"
#include "stencil_plan.h"
#include "work_assist.h"
#include "workspace.h"

namespace jaxprims {

// One pass over a tile of a member of the batch: `depth` steps, the first of which is number `first` + 1. Made for each tile:
// what its rows have in common is found once.
class StencilTile {
 public:
  // inputs: what step 1 reads, and arrays that do not change; outs: what the last one writes; work: TileBytes.
  StencilTile(const StencilShape& shape, const StencilGrid& grid, const StencilProblem& problem, const StencilKernel& kernel,
              std::vector<Cells> inputs, std::vector<Cells> outs, std::vector<const void*> uniforms, const StencilPlan& plan)
      : shape_(shape),
        grid_(grid),
        problem_(problem),
        kernel_(kernel),
        inputs_(std::move(inputs)),
        outs_(std::move(outs)),
        uniforms_(std::move(uniforms)),
        stream_(plan.stream),
        alone_(plan.alone),
        asks_(plan.ahead && !plan.stream),
        axis_(grid.rank - 1) {
    for (const auto& row : shape.rows) {
      const auto array = static_cast<size_t>(row.array);
      Row& own = rows_.emplace_back(Row{array, shape.array_bytes[array] * shape.unit, 0, 0, {}});
      for (size_t a = 0; a < axis_; ++a) own.offset.push_back(grid.OuterOffset(row, a));
      for (const auto& read : shape.reads) {
        if (&shape.rows[static_cast<size_t>(read.row)] != &row) continue;
        own.low = std::min(own.low, read.offset);
        own.high = std::max(own.high, read.offset);
      }
    }
    bases_.resize(rows_.size());
    filled_.resize(rows_.size());
    starts_.resize(kTogether * rows_.size());
    reads_.resize(shape.reads.size());
    row_steps_.resize(rows_.size());
    read_steps_.resize(shape.reads.size());
    out_steps_.resize(shape.leaf_bytes.size());
    here_.resize(kTogether * shape.leaf_bytes.size());
    cell_.resize(shape.leaf_bytes.size());
    row_.resize(shape.leaf_bytes.size());
    nothing_.resize(std::max(rows_.size(), row_.size()));
    ahead_.resize(kAheadNumbers * (inputs_.size() + outs_.size()));
    at_.resize(grid.rank);
    told_.resize(grid.rank);
  }

  void Run(const std::vector<std::array<int64_t, 2>>& fills, std::span<const Interval> tile, int64_t first, int64_t depth,
           char* work) {
    Place(fills, tile, first, depth, work);
    const int64_t lag = grid_.halo[0], behind = static_cast<int64_t>(levels_.size()) - 1;
    const int64_t last = levels_.back().region[0].end + behind * lag;
    const int64_t together = depth == 1 ? levels_[0].region[0].size() : PlanesTogether(problem_);
    for (int64_t front = levels_[0].region[0].begin; front < last; front += together) {
      for (size_t k = 0; k < levels_.size(); ++k) {
        const Level& level = levels_[k];
        const int64_t begin = front - static_cast<int64_t>(k) * lag;
        Planes(level, {std::max(begin, level.region[0].begin), std::min(begin + together, level.region[0].end)});
      }
    }
  }

 private:
  struct Row {  // of those that f reads
    size_t array;
    int64_t bytes;      // of a cell
    int64_t low, high;  // offsets along the row
    std::vector<int64_t> offset;
  };
  struct Margin {  // a cell of a row near its end, and where its reads are in their rows
    int64_t x, told;
    std::vector<int64_t> place;  // bytes
    std::vector<char> outside;
  };
  struct Level {  // a step, or a copy of what the first one reads
    int64_t step = 0;
    bool last = false;
    std::vector<const Cells*> from;  // by array
    std::vector<Cells> to;           // by leaf
    std::vector<Interval> region;    // the cells that the tile makes,
    std::vector<Interval> all;       // of those that there are,
    std::vector<Interval> inside;    // of which these are computed and others kept; everything, where the axis wraps around
    Interval calm;                   // on the last axis but one: where no row that is read is outside
    Interval run, vectors;           // of a row: the cells that are computed; those of them that are by vectors
    std::vector<Margin> margins;     // the others
    std::vector<std::vector<RowEnd>> ends, kept;  // by leaf: what else there is of a row, and of one that is not computed
  };

  // Where everything is in `work`, and what each step makes.
  void Place(const std::vector<std::array<int64_t, 2>>& fills, std::span<const Interval> tile, int64_t first, int64_t depth,
             char* work) {
    std::vector<int64_t> sizes;
    for (const Interval& i : tile) sizes.push_back(i.size());
    const int64_t made = FirstMade(problem_, depth);
    levels_.clear();
    for (int64_t k = made; k <= depth; ++k) {
      Level& level = levels_.emplace_back();
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
      // What is never read need only be there.
      const Interval widest = levels_[0].region[axis_], there = input.there[axis_];
      const bool ends = widest.begin + grid_.low[axis_] < there.begin || widest.end + grid_.high[axis_] > there.end;
      const auto inner = input.boundary.begin() + static_cast<std::ptrdiff_t>(axis_);
      const bool read =
          std::find(input.boundary.begin(), inner, Boundary::kConstant) != inner || (ends && *inner == Boundary::kConstant);
      for (int64_t i = 0; read && i < bytes; i += kFill) std::memcpy(work + i, fills[array].data(), kFill);
      input.fill = work + kLine - (widest.begin + grid_.low[axis_]) * input.stride[axis_];
      work += bytes;
    }
    char* const rings = work;
    first_ = grid_.Wraps(axis_) ? 0 : grid_.Computed(first + 1, axis_).begin;
    for (int64_t k = made; k < depth; ++k) {
      if ((k - made) % Rings(problem_, sizes, depth) == 0) work = rings;
      Level& level = levels_[static_cast<size_t>(k - made)];
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

  void PlaceEnds(Level& level) {
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
  void Divide(Level& level) {
    const Interval wanted = level.region[axis_], all = level.all[axis_];
    level.run = {std::max(wanted.begin, level.inside[axis_].begin), std::min(wanted.end, level.inside[axis_].end)};
    if (level.run.size() <= 0) level.run = {wanted.end, wanted.end};
    level.calm = kEverywhere;
    Interval v = level.run;
    for (const Row& row : rows_) {
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
  Interval Rounded(const Level& level, Interval v) const {
    const int64_t bytes = grid_.changed > 0 ? shape_.array_bytes[0] * shape_.unit : kLine, cells = kLine / bytes;
    if (level.last || shape_.coordinates || shape_.may_not_end || kLine % bytes != 0) return v;
    for (size_t array = 0; array < grid_.changed; ++array) {
      if (shape_.array_bytes[array] * shape_.unit != bytes) return v;
    }
    auto down = [&](int64_t x) { return x - Modulo(x - first_, cells); };
    auto there = [&](Interval wide) {
      return std::ranges::all_of(rows_, [&](const Row& row) {
        const Cells& from = *level.from[row.array];
        return from.padded || (wide.begin + row.low >= from.there[axis_].begin && wide.end + row.high <= from.there[axis_].end);
      });
    };
    if (const Interval wide{down(v.begin), v.end}; there(wide)) v = wide;
    if (const Interval wide{v.begin, down(v.end + cells - 1)}; there(wide)) v = wide;
    return v;
  }

  Margin MarginAt(const Level& level, int64_t x) const {
    Margin m{x, grid_.Wraps(axis_) ? Mapped(Boundary::kWrap, x, level.all[axis_].begin, level.all[axis_].end) : x, {}, {}};
    for (const auto& read : shape_.reads) {
      const Row& row = rows_[static_cast<size_t>(read.row)];
      const Cells& cells = *level.from[row.array];
      int64_t at = x + read.offset;
      if (!cells.padded) at = Mapped(cells.boundary[axis_], at, cells.there[axis_].begin, cells.there[axis_].end);
      m.outside.push_back(at == kFillValue ? 1 : 0);
      m.place.push_back(at == kFillValue ? 0 : at * row.bytes);
    }
    return m;
  }

  // The planes of a step, many rows at a time.
  void Planes(const Level& level, Interval planes) {
    const size_t before = axis_ - 1;
    auto rows_of = [&](Interval wanted) {
      for (at_[before] = wanted.begin; at_[before] < wanted.end;) {
        const Group group = Together(level, wanted.end);
        RowsOfCells(level, group);
        at_[before] += group.rows;
      }
    };
    if (before == 0) return rows_of(planes);
    for (at_[0] = planes.begin; at_[0] < planes.end; ++at_[0]) {
      for (size_t a = 1; a < before; ++a) at_[a] = level.region[a].begin;
      for (bool more = true; more;) {
        rows_of(level.region[before]);
        more = false;
        for (size_t a = before; a-- > 1 && !more;) {
          more = ++at_[a] < level.region[a].end;
          if (!more) at_[a] = level.region[a].begin;
        }
      }
    }
  }

  struct Group {  // of rows that the kernel makes at once
    int64_t rows;
    bool listed;  // each has places of its own; else all lie as far from each other as those that they read
  };

  // Those from at_ on, up to `end` of the last axis but one. Rows of a ring, which starts anew somewhere, are listed.
  Group Together(const Level& level, int64_t end) const {
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
  static bool StreamsAlike(const Level& level) {
    return std::ranges::all_of(level.to, [](const Cells& to) { return to.stride[to.stride.size() - 2] % 64 == 0; });
  }

  void RowsOfCells(const Level& level, Group group) {
    bool computed = level.run.size() > 0;
    for (size_t a = 0; a < axis_; ++a) computed = computed && level.inside[a].holds(at_[a]);
    if (computed && group.listed) {
      List(level, group.rows);
    } else {
      Start(level);
      if (computed) Compute(level, group.rows);
    }
    Ends(level, computed ? level.ends : level.kept, group.rows);
  }

  // What of `count` rows from at_ on is neither a vector's nor a margin's.
  void Ends(const Level& level, const std::vector<std::vector<RowEnd>>& ends, int64_t count) {
    const size_t before = axis_ - 1;
    const int64_t first = at_[before];
    const Interval all = level.all[before];
    const bool straight = !grid_.Wraps(before) || (all.holds(first) && all.holds(first + count - 1));
    for (size_t leaf = 0; leaf < ends.size(); ++leaf) {
      if (ends[leaf].empty()) continue;
      const Cells &to = level.to[leaf], &from = *level.from[leaf];
      for (int64_t done = 0; done < count; at_[before] = first + done) {
        const int64_t rows = straight || from.ring > 0 ? count : 1;
        Walk own(to, at_[before], before), old(from, from.ring > 0 ? at_[before] : Told(level, at_[before], before), before);
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
  void Start(const Level& level) {
    for (size_t leaf = 0; leaf < level.to.size(); ++leaf) {
      char* p = level.to[leaf].origin;
      for (size_t a = 0; a < axis_; ++a) p += Distance(level.to[leaf], at_[a], a);
      row_[leaf] = p;
      out_steps_[leaf] = level.to[leaf].stride[axis_ - 1];
    }
  }

  // `count` rows that lie as far from each other as those that they read.
  void Compute(const Level& level, int64_t count) {
    Bases(level);
    for (const Margin& m : level.margins) One(level, m, count);
    if (level.vectors.size() <= 0) return;
    for (size_t r = 0; r < rows_.size(); ++r) starts_[r] = bases_[r] + level.vectors.begin * rows_[r].bytes;
    Move(level.vectors.begin, here_.data());
    told_[axis_] = level.vectors.begin;
    Ask(level, count);
    Vectors(level, count, row_steps_.data(), out_steps_.data(), 0);
  }

  // Up to kTogether rows of planes of one row, wherever they are.
  void List(const Level& level, int64_t count) {
    const int64_t first = at_[0];
    for (; !level.margins.empty() && at_[0] < first + count; ++at_[0]) {
      Start(level);
      Bases(level);
      for (const Margin& m : level.margins) One(level, m, 1);
    }
    at_[0] = first;
    if (level.vectors.size() <= 0) return;
    for (size_t leaf = 0; leaf < row_.size(); ++leaf) {
      Walk plane(level.to[leaf], first, 0);
      char* const begin = level.to[leaf].origin + level.vectors.begin * shape_.unit * shape_.leaf_bytes[leaf];
      for (size_t i = leaf; i < static_cast<size_t>(count) * row_.size(); i += row_.size()) here_[i] = begin + plane.Next();
    }
    for (size_t r = 0; r < rows_.size(); ++r) {
      const Cells& cells = *level.from[rows_[r].array];
      const int64_t x = first + rows_[r].offset[0], begin = level.vectors.begin * rows_[r].bytes;
      const bool there = cells.there[0].holds(x) && cells.there[0].holds(x + count - 1);
      Walk plane(cells, x, 0);
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

  void Vectors(const Level& level, int64_t count, const int64_t* row_steps, const int64_t* out_steps, int64_t listed) {
    kernel_.row(starts_.data(), row_steps, uniforms_.data(), here_.data(), out_steps, told_.data(),
                level.vectors.size() * shape_.unit, count, listed, level.last && stream_ ? 1 : 0,
                alone_ && (level.last || level.step == 1) ? 1 : 0, ahead_.data());
  }

  // Of the planes that are made after these: the part of their rows that is asked for while `level` makes `count` of its own.
  void Ask(const Level& level, int64_t count) {
    if (!asks_) return;
    const auto made = static_cast<int64_t>(levels_.size());
    const int64_t front = at_[0] + (&level - levels_.data()) * grid_.halo[0] + PlanesTogether(problem_);
    const StencilPart part{level.step - 1, levels_.back().step, level.vectors.size() * shape_.unit};
    const Level &first = levels_.front(), &last = levels_.back();
    int64_t* ahead = ahead_.data();
    auto ask = [&](const Cells& cells, const Interval& wide, int64_t bytes, int64_t plane, bool wanted) {
      const Interval there = cells.there[axis_];
      const Interval row{std::max(wide.begin, there.begin), std::min(wide.end, there.end)};
      const char* const where = wanted && row.size() > 0 ? Begin(cells, plane) : nullptr;
      AskFor(where == nullptr ? where : where + row.begin * bytes, cells.stride[axis_ - 1], row.size() * bytes, part, ahead);
      ahead += kAheadNumbers;
    };
    for (size_t array = 0; array < inputs_.size(); ++array) {
      const int64_t plane = front + (array < grid_.changed && first.step == 0 ? 0 : grid_.high[0]);
      ask(inputs_[array], first.region[axis_], shape_.array_bytes[array] * shape_.unit, plane, front < first.region[0].end);
    }
    for (size_t leaf = 0; leaf < outs_.size(); ++leaf) {
      const int64_t plane = front - (made - 1) * grid_.halo[0];
      const Interval planes = last.region[0];
      const bool wanted = planes.holds(plane) && planes.holds(plane + (axis_ == 1 ? count - 1 : 0));
      ask(outs_[leaf], last.region[axis_], shape_.leaf_bytes[leaf] * shape_.unit, plane, wanted);
    }
  }

  // Where cell 0 of the row at at_ is in another plane; null: nowhere.
  const char* Begin(const Cells& cells, int64_t plane) const {
    const char* p = cells.origin;
    for (size_t a = 0; a < axis_; ++a) {
      const int64_t x = Mapped(cells.boundary[a], a == 0 ? plane : at_[a], cells.there[a].begin, cells.there[a].end);
      if (x == kFillValue) return nullptr;
      p += Distance(cells, x, a);
    }
    return p;
  }

  // Where the rows are that the row at at_ reads, and what f is told.
  void Bases(const Level& level) {
    for (size_t r = 0; r < rows_.size(); ++r) {
      const Cells& cells = *level.from[rows_[r].array];
      bases_[r] = RowAt(cells, rows_[r]);
      filled_[r] = bases_[r] == nullptr ? 1 : 0;
      if (filled_[r] != 0) bases_[r] = cells.fill;
      row_steps_[r] = filled_[r] != 0 ? 0 : cells.stride[axis_ - 1];
    }
    Tell(level);
  }

  // What f is told of the row at at_, and of its first vector.
  void Tell(const Level& level) {
    for (size_t a = 0; shape_.coordinates && a < axis_; ++a) told_[a] = Told(level, at_[a], a);
    told_[axis_] = level.vectors.begin;
  }

  void One(const Level& level, const Margin& m, int64_t count) {
    for (size_t r = 0; r < reads_.size(); ++r) {
      const auto& read = shape_.reads[r];
      const auto row = static_cast<size_t>(read.row);
      const bool filled = filled_[row] != 0 || m.outside[r] != 0;
      reads_[r] = filled ? level.from[rows_[row].array]->fill + (m.x + read.offset) * rows_[row].bytes : bases_[row] + m.place[r];
      read_steps_[r] = filled ? 0 : row_steps_[row];
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

  // Where cell 0 of a row would be; null: all of it is the fill value.
  const char* RowAt(const Cells& cells, const Row& row) const {
    const char* p = cells.origin;
    for (size_t a = 0; a < axis_; ++a) {
      const int64_t x = Mapped(cells.boundary[a], at_[a] + row.offset[a], cells.there[a].begin, cells.there[a].end);
      if (x == kFillValue) return nullptr;
      p += Distance(cells, x, a);
    }
    return p;
  }
  static int64_t Distance(const Cells& cells, int64_t x, size_t axis) {
    if (axis > 0 || cells.ring == 0) return x * cells.stride[axis];
    const int64_t slot = x % cells.ring;
    return (slot < 0 ? slot + cells.ring : slot) * cells.stride[axis];
  }
  // Where cells are along an axis, from x on.
  struct Walk {
    Walk(const Cells& cells, int64_t x, size_t axis)
        : stride(cells.stride[axis]), ring(axis == 0 ? cells.ring : 0), place(Distance(cells, x, axis)) {}
    int64_t Next() {
      const int64_t here = place;
      place += stride;
      if (place == ring * stride && ring > 0) place = 0;
      return here;
    }
    int64_t stride, ring, place;
  };
  int64_t Told(const Level& level, int64_t x, size_t a) const {
    return grid_.Wraps(a) ? Mapped(Boundary::kWrap, x, level.all[a].begin, level.all[a].end) : x;
  }
  void Move(int64_t x, void** here) const {
    for (size_t k = 0; k < row_.size(); ++k) here[k] = row_[k] + x * shape_.unit * shape_.leaf_bytes[k];
  }

  static constexpr int64_t kFill = 16;
  static constexpr Interval kEverywhere{INT64_MIN / 2, INT64_MAX / 2};

  const StencilShape& shape_;
  const StencilGrid& grid_;
  const StencilProblem& problem_;
  const StencilKernel& kernel_;
  std::vector<Cells> inputs_;
  const std::vector<Cells> outs_;
  const std::vector<const void*> uniforms_;
  const bool stream_, alone_, asks_;
  const size_t axis_;  // the innermost one
  int64_t first_ = 0;  // a cell of a row that is at the begin of a line, in rings
  std::vector<Row> rows_;
  std::vector<Level> levels_;

  // Of the row that is made.
  std::vector<int64_t> at_, told_;  // its coordinates, which pass the grid's ends on an axis that wraps around; as f is told them
  std::vector<const char*> bases_;  // by row that is read: where its cell 0 would be
  std::vector<char> filled_;        // is it outside, and so the fill value?
  std::vector<char*> row_;          // by leaf: where cell 0 of the row would be
  std::vector<const void*> starts_, reads_;
  std::vector<int64_t> row_steps_, read_steps_, out_steps_, nothing_, ahead_;
  std::vector<void*> here_, cell_;
};

template <class Pool>
void RunStencil(Pool& pool, const StencilShape& shape, const StencilCall& call, const StencilGrid& grid,
                const StencilProblem& problem, const StencilKernel& kernel, const StencilPlan& plan) {
  const size_t rank = grid.rank;
  const int64_t passes = (call.steps + plan.depth - 1) / plan.depth, members = problem.members;
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
    int64_t stride = shape.leaf_bytes[array] * shape.unit;
    cells.origin = data;
    for (size_t a = rank; a-- > 0;) {
      const Interval all = grid.Domain(step, a);
      cells.stride[a] = stride;
      cells.origin -= all.begin * stride;
      cells.there.insert(cells.there.begin(), all);
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
    for (const StencilAxis& own : call.axes[array]) {
      cells.there.push_back({own.begin(), own.end()});
      cells.boundary.push_back(own.boundary);
    }
    return cells;
  };

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
    std::vector<Interval> all(rank);
    std::vector<int64_t> tiles(rank);
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
      std::vector<Interval> tile(rank);
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
      StencilTile(shape, grid, problem, kernel, std::move(inputs), std::move(outs), std::move(uniforms), plan)
          .Run(call.fills, tile, first, depth, work.data() + worker * bytes);
#if defined(__SSE2__)
      if (plan.stream) _mm_sfence();
#endif
    };
    WorkAssist(pool, members * count, threads, run);
    first += depth;
  }
}

}  // namespace jaxprims
