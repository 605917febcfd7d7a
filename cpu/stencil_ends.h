// Cells at the ends of a row that no vector makes: those that are kept, and what lies beyond the ends of a ring's rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "stencil_boundary.h"
#include "stencil_domain.h"
#include "stencil_grid.h"

namespace jaxprims {

// Bytes that are copied to a place in a row: from the same row of the step before, the row itself, or a row of the fill value.
struct RowEnd {
  enum class From : unsigned char { kBefore, kOwn, kFill };
  From from;
  int64_t to, at, bytes;  // to, at: from where cell 0 of either row would be

  void Copy(char* row, const char* before, const char* fill) const {
    const char* const source = (from == From::kBefore ? before : from == From::kOwn ? row : fill) + at;
    switch (bytes) {  // a few cells, most often one
      case 1:
        row[to] = *source;
        break;
      case 4:
        std::memcpy(row + to, source, 4);
        break;
      case 8:
        std::memcpy(row + to, source, 8);
        break;
      default:
        std::memcpy(row + to, source, static_cast<size_t>(bytes));
    }
  }
};

// Cells `wanted` of a row but those of `run`, as they were; `bytes`: of a cell.
inline void KeepEnds(const Cells& from, Interval wanted, Interval run, int64_t bytes, std::vector<RowEnd>& ends) {
  const Interval there = from.there.back();
  auto keep = [&](int64_t begin, int64_t end) {
    for (int64_t n = 0; begin < end; begin += n) {  // as far as nothing wraps around
      const int64_t x = from.padded ? begin : Mapped(Boundary::kWrap, begin, there.begin, there.end);
      n = std::min(end - begin, there.end - x);
      ends.push_back({RowEnd::From::kBefore, begin * bytes, x * bytes, n * bytes});
    }
  };
  keep(wanted.begin, run.begin);
  keep(run.end, wanted.end);
}

// What lies beyond the ends of a row of a ring, where these are the grid's: `low` and `high` cells.
inline void PadEnds(const Cells& to, Interval wanted, Interval all, int64_t low, int64_t high, int64_t bytes,
                    std::vector<RowEnd>& ends) {
  if (to.boundary.back() == Boundary::kNothing) return;
  auto pad = [&](int64_t x) {
    const int64_t at = Mapped(to.boundary.back(), x, all.begin, all.end);
    const bool filled = at == kFillValue;
    ends.push_back({filled ? RowEnd::From::kFill : RowEnd::From::kOwn, x * bytes, (filled ? x : at) * bytes, bytes});
  };
  for (int64_t x = all.begin - low; wanted.begin == all.begin && x < all.begin; ++x) pad(x);
  for (int64_t x = all.end; wanted.end == all.end && x < all.end + high; ++x) pad(x);
}

}  // namespace jaxprims
