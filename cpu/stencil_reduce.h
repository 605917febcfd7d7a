// Reductions of what a stencil makes, which is never written: the reduction's kernel has an array for each cell that f reads, and
// is called for pieces of the grid's lines with pointers that are as far apart as these cells.
//
// Elements are the grid's cells, line by line; the tree of their combinations is the one of a row of as many (reduce.h). A piece
// ends where a line does, and cells that read beyond the ends of a line are pieces of their own. What is beyond the other axes
// is another line, or one of the fill value.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "numbers.h"
#include "operand.h"
#include "reduce.h"
#include "stencil_boundary.h"
#include "stencil_call.h"
#include "stencil_domain.h"

namespace jaxprims {

inline constexpr int64_t kMostOutside = 64;  // a grid has at most so many cells more than twice those of an array, on any axis

struct StencilReduceCall {
  struct Read {
    size_t array = 0;
    std::vector<int64_t> offset;  // by axis
  };
  struct Array {
    Operand operand;
    std::vector<StencilAxis> axes;
    std::array<int64_t, 2> fill{};
    int64_t bytes = 1;            // of a cell
    std::vector<int64_t> stride;  // bytes, by axis
  };
  OrderedCall ordered;  // n: the cells of a result's; batch: the grid's first axes, along which nothing is reduced; no arrays
  std::vector<Array> arrays;
  std::vector<Read> reads;  // in the order of the kernel's arrays that are no positions
  std::vector<Interval> window;
  int64_t unit = 1;    // lanes of a cell, each an element
  size_t line = 0;     // among what is captured: the coordinates of the line, an int32 for each axis
  bool along = false;  // positions are the coordinate on the innermost axis, not the element's
};

// What a plan depends on, of a reduction whose elements are made of so many reads: each costs half of what one that is summed
// does.
inline void OfStencil(ReduceProblem& problem, int64_t reads) {
  problem.joined = 1;
  problem.work += reads / 2;
}

// The elements of a call; each worker has its own.
class StencilElements {
 public:
  // fill: rows of fill values, `longest` elements each, by array; all outlive this.
  StencilElements(const OrderedShape& shape, const StencilReduceCall& call, const std::vector<std::vector<char>>& fills)
      : call_(&call), fills_(&fills), last_(call.window.size() - 1), pointers_(shape.array_bytes.size()) {
    size_t next = 0;
    for (size_t k = 0; k < shape.array_bytes.size(); ++k) {
      if (shape.array_bytes[k] == 0) continue;
      const auto& read = call.reads[next++];
      auto same = [&](const Line& line) {
        return line.array == &call.arrays[read.array] && std::equal(line.offset, line.offset + last_, read.offset.data());
      };
      auto line = std::ranges::find_if(lines_, same);
      if (line == lines_.end()) {
        lines_.push_back({&call.arrays[read.array], read.offset.data(), nullptr});
        line = lines_.end() - 1;
      }
      const auto number = static_cast<size_t>(line - lines_.begin());
      places_.push_back({k, number, read.array, shape.array_bytes[k], read.offset[last_]});
    }
    inside_ = call.window[last_];
    for (const Place& p : places_) {
      const StencilAxis& axis = lines_[p.line].array->axes[last_];
      inside_.begin = std::max(inside_.begin, axis.begin() - p.offset);
      inside_.end = std::min(inside_.end, axis.end() - p.offset);
    }
    if (inside_.size() <= 0) inside_ = {call.window[last_].end, call.window[last_].end};
    at_.resize(last_);
    coordinates_.resize(call.window.size());
    uniforms_.resize(call.ordered.uniforms.size());
  }

  // For each array, of those whose fill value may be read: a row of it of `longest` elements.
  static std::vector<std::vector<char>> Fills(const StencilReduceCall& call, int64_t longest) {
    std::vector<std::vector<char>> fills(call.arrays.size());
    for (const auto& read : call.reads) {
      const auto& array = call.arrays[read.array];
      for (size_t a = 0; a < call.window.size(); ++a) {
        const StencilAxis& axis = array.axes[a];
        const bool within =
            call.window[a].begin + read.offset[a] >= axis.begin() && call.window[a].end + read.offset[a] <= axis.end();
        if (within || !fills[read.array].empty()) continue;
        auto& row = fills[read.array];
        row.resize(static_cast<size_t>(RoundUp(std::max(longest, call.unit) * array.bytes / call.unit, 16)));
        for (size_t i = 0; i < row.size(); i += 16) std::memcpy(row.data() + i, array.fill.data(), 16);
      }
    }
    return fills;
  }

  void Reduce(const OrderedShape& /*shape*/, const OrderedKernel& kernel, internal::ReduceWorker& me, int64_t row,
              const OrderedRange& range, void* state) {
    const int64_t unit = call_->unit, width = call_->window[last_].size() * unit;
    int64_t line = (row * call_->ordered.n + range.lo) / width, progress = 0;
    std::copy_n(me.row.uniforms(), uniforms_.size(), uniforms_.data());
    if (call_->line < uniforms_.size()) uniforms_[call_->line] = coordinates_.data();
    Locate(line);
    for (int64_t at = range.lo; at < range.hi; Advance()) {
      const int64_t first = line++ * width - row * call_->ordered.n;  // the line's first element
      Lines();
      const int64_t end = std::min(range.hi, first + width), begin = call_->window[last_].begin;
      const int64_t zero = call_->along ? first - begin : 0;  // the element that is the kernel's number 0
      while (at < end) {                                      // elements up to the next cell of another kind
        const int64_t x = begin + (at - first) / unit, cell = first + (x - begin) * unit;
        const bool vectors = inside_.holds(x);
        const int64_t next = std::min(end, vectors ? first + (inside_.end - begin) * unit : cell + unit);
        OrderedRange piece = range;
        piece.lo = at - zero, piece.hi = next - zero;
        Point(x, cell - zero, piece.lo, vectors);
        progress = kernel.reduce(pointers_.data(), uniforms_.data(), nullptr, &piece, state, progress);
        at = next;
      }
    }
  }

 private:
  struct Line {  // that is read
    const StencilReduceCall::Array* array;
    const int64_t* offset;  // on the outer axes
    const char* cells;      // where the grid's cell 0 would be; null: all are the fill value
  };
  struct Place {                 // of a read
    size_t number, line, array;  // number: among the kernel's arrays
    int64_t bytes, offset;       // of an element; on the innermost axis
  };

  // The coordinates of a line.
  void Locate(int64_t line) {
    for (size_t a = last_; a-- > 0; line /= call_->window[a].size()) {
      at_[a] = call_->window[a].begin + line % call_->window[a].size();
    }
  }
  void Advance() {
    for (size_t a = last_; a > 0; --a) {
      if (++at_[a - 1] < call_->window[a - 1].end) return;
      at_[a - 1] = call_->window[a - 1].begin;
    }
  }

  // Where the lines are that this one reads.
  void Lines() {
    std::copy(at_.begin(), at_.end(), coordinates_.begin());
    for (Line& line : lines_) {
      const auto& array = *line.array;
      line.cells = array.operand.data + array.axes[last_].origin * array.stride[last_];
      for (size_t a = 0; a < last_ && line.cells != nullptr; ++a) {
        const StencilAxis& axis = array.axes[a];
        const int64_t x = Mapped(axis.boundary, at_[a] + line.offset[a], axis.begin(), axis.end());
        line.cells = x == kFillValue ? nullptr : line.cells + (x + axis.origin) * array.stride[a];
      }
    }
  }

  // The kernel's pointers to where element 0 would be: of cells from x on, whose first is element `cell`, and what is wanted
  // begins with element `at`.
  void Point(int64_t x, int64_t cell, int64_t at, bool inside) {
    for (const Place& p : places_) {
      const Line& line = lines_[p.line];
      int64_t place = x + p.offset;
      const StencilAxis& axis = line.array->axes[last_];
      if (!inside) place = Mapped(axis.boundary, place, axis.begin(), axis.end());
      const bool filled = line.cells == nullptr || place == kFillValue;
      const char* const from = filled ? (*fills_)[p.array].data() : line.cells + place * line.array->bytes;
      pointers_[p.number] = from - (filled ? at : cell) * p.bytes;
    }
  }

  const StencilReduceCall* call_;
  const std::vector<std::vector<char>>* fills_;
  size_t last_;      // the innermost axis
  Interval inside_;  // on it: cells that read nothing beyond
  std::vector<Line> lines_;
  std::vector<Place> places_;
  std::vector<const void*> pointers_, uniforms_;
  std::vector<int64_t> at_;
  std::vector<int32_t> coordinates_;
};

}  // namespace jaxprims
