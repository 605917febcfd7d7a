// A call of the stencil family as its drivers see it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "arena.h"
#include "operand.h"
#include "per_axis.h"
#include "signature.h"
#include "stencil_boundary.h"

namespace jaxprims {

// What the drivers have to know of a spec (jaxprims/specs/stencil.py). A cell is `unit` lanes, side by side in the innermost
// axis.
struct StencilShape {
  struct Row {  // cells of an array along the innermost axis, relative to the cell's own row
    int64_t array = 0;
    std::vector<int64_t> offset;  // on the outer axes
  };
  struct Read {
    int64_t row = 0;
    int64_t offset = 0;  // on the innermost axis
  };
  int64_t rank = 1, unit = 1;
  int64_t width = 1;                 // lanes of a vector: no fewer are given to StencilKernel::Row
  int64_t work = 1;                  // instructions and reads of a vector
  std::vector<int64_t> array_bytes;  // of one lane of a cell, by array
  std::vector<int64_t> leaf_bytes;
  std::vector<Row> rows;
  std::vector<Read> reads;
  bool coordinates = false;  // does f take any?
  bool may_not_end = false;  // are there values for which f may be a loop without end?
  Signature signature;
};

// An array on one axis of the grid: its cell number `origin` is the grid's cell 0, and all but the first `lo` and the last `hi`
// of its `size` cells are there.
struct StencilAxis {
  Boundary boundary = Boundary::kNothing;
  int64_t size = 1, origin = 0, lo = 0, hi = 0;
  int64_t begin() const { return lo - origin; }  // coordinates of the cells that are there
  int64_t end() const { return size - hi - origin; }
  bool is_one_cell() const {  // read wherever one reads
    return end() - begin() == 1 && boundary != Boundary::kConstant && boundary != Boundary::kNothing;
  }
};

// The results on one axis: cells [start, start + size) of the grid after the last step.
struct StencilWindow {
  int64_t start = 0, size = 1;
  int64_t shrink_lo = 0, shrink_hi = 0;  // each step has so many cells fewer than the one before
  int64_t keep_lo = 0, keep_hi = 0;      // so many cells at the border keep their value
};

struct StencilCall {
  Arena<2048> arena;
  List<int64_t> batch{arena.get()};
  List<Operand> arrays{arena.get()}, uniforms{arena.get()}, outs{arena.get()};
  std::vector<PerAxis<StencilAxis>> axes;     // by array
  std::vector<std::array<int64_t, 2>> fills;  // by array: the bits of a scalar, or of both of a complex number
  PerAxis<StencilWindow> window;
  int64_t steps = 1;
  bool empty = false;
};

}  // namespace jaxprims
