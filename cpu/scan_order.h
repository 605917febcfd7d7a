// Which block of a scan is claimed next: the assisting column-wise order of de Kluijver 2024, and the two it is made of.
//
// Rows are cut into `blocks` blocks each. Row-wise: all blocks of a row, then the next row's. Column-wise: the first block of
// each row, then the second of each, so that a block's predecessor was finished long ago and nobody looks back. One thread alone
// goes row-wise, which costs nothing beyond a plain loop; threads that join go column-wise over the rows not yet begun; whoever
// runs out of blocks helps the other.
//
// One 64-bit work index holds both counts, R blocks claimed row-wise in its upper half and C claimed column-wise in its lower one
// (the paper's halves have 16 bits), and is changed by compare-exchange alone. With F = ceil(R / blocks), the rows begun
// row-wise:
//   a row-wise claim takes block R if C = 0 or R is inside a row (R mod blocks > 0), and R < rows * blocks;
//   a column-wise claim takes block C / (rows - F) of row F + C mod (rows - F), if C < (rows - F) * blocks.
// Every block is claimed exactly once, the blocks of a row in their order:
//   - Once C > 0, F never changes again: R grows only inside a row, up to F * blocks. So all column-wise claims use the same F.
//   - Row-wise claims are the numbers 0, 1, ... below F * blocks, the blocks of rows [0, F) one after the other; column-wise ones
//     the numbers 0, 1, ... below (rows - F) * blocks, which run through each row of [F, rows) from its first block on. A number
//     is handed out once, since the compare-exchange that increments its half succeeds once for each value of the index.
//   - While a block is left, a claim succeeds: if R < F * blocks a row-wise one; else, if C < (rows - F) * blocks, a column-wise
//     one; if neither, all rows * blocks are claimed.
// In particular, when a block is claimed all its predecessors in the row have been claimed before, by threads that are at work.
#pragma once

#include <atomic>
#include <cstdint>

#include "numbers.h"
#include "scan_plan.h"

namespace jaxprims {

class TwoSidedOrder {
 public:
  // A thread's way of going at present.
  struct Cursor {
    bool row_wise;
  };

  TwoSidedOrder(int64_t rows, int64_t blocks, ScanOrder order) : rows_(rows), blocks_(blocks), order_(order) {}

  int64_t tasks() const { return rows_ * blocks_; }

  // The number of a block, row * blocks + its place in the row; -1: none is left.
  int64_t Claim(Cursor& cursor) {
    uint64_t index = index_.load(std::memory_order_relaxed);
    for (;;) {
      const Step step = From(index, cursor);
      if (step.task < 0) return -1;
      if (index_.compare_exchange_weak(index, step.index, std::memory_order_relaxed)) {
        cursor.row_wise = step.row_wise;
        return step.task;
      }
    }
  }

  struct Step {
    int64_t task;
    uint64_t index;
    bool row_wise;
  };

  // What a thread at `cursor` claims when the work index is `index`, and the work index after it.
  Step From(uint64_t index, Cursor cursor) const {
    const auto by_row = static_cast<int64_t>(index >> 32), by_column = static_cast<int64_t>(index & 0xffffffff);
    const int64_t begun = CeilDiv(by_row, blocks_), others = rows_ - begun;
    const bool row = by_row < tasks() && (by_column == 0 || by_row < begun * blocks_) && order_ != ScanOrder::kColumnWise;
    const bool column = by_column < others * blocks_ && order_ != ScanOrder::kRowWise;
    if (!row && !column) return {-1, index, cursor.row_wise};
    if (row && (cursor.row_wise || !column)) return {by_row, index + (uint64_t{1} << 32), true};
    return {(begun + by_column % others) * blocks_ + by_column / others, index + 1, false};
  }

 private:
  const int64_t rows_, blocks_;
  const ScanOrder order_;
  alignas(64) std::atomic<uint64_t> index_{0};
};

}  // namespace jaxprims
