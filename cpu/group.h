// Stable counting sort by index: count, exclusive scan, stable scatter (what a histogram's general derivative starts from).
//
// The elements are cut into parts; each part counts its own bins, so that a part knows where in each bin its elements go and
// parts can scatter at once. The counts of parts x bins are the workspace; with many bins there are fewer parts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "hist.h"
#include "work_assist.h"
#include "workspace.h"

namespace jaxprims {

inline constexpr int64_t kGroupCounts = 4 << 20;  // counters of all parts together, about: 16 to 32 MB

// How many parts group N elements into H bins.
inline int64_t GroupParts(int64_t elements, int64_t bins, int threads) {
  const int64_t fit = std::max<int64_t>(1, kGroupCounts / (bins + 1));
  const int64_t worth = std::max<int64_t>(1, elements / std::max<int64_t>(kUpdatesPerThread, bins));
  return std::min<int64_t>({int64_t{threads}, fit, worth});
}

// order [n]: element numbers by bin, in their order within it, dropped ones (index outside [0, bins)) last. offsets [bins + 1]:
// where each bin starts in it; the last one is where the dropped ones start. Work O(n + bins * parts).
template <class Index, class Position, class Pool>
void GroupByIndex(Pool& pool, int threads, const Index* indices, int64_t n, int64_t bins, Position* order, Position* offsets) {
  const int64_t parts = GroupParts(n, bins, threads), row = bins + 1;
  Workspace workspace(static_cast<size_t>(parts * row) * sizeof(Position));
  auto* counts = reinterpret_cast<Position*>(workspace.data());
  auto bin_of = [&](int64_t i) {
    const Index at = indices[i];
    return at >= 0 && static_cast<int64_t>(at) < bins ? static_cast<int64_t>(at) : bins;
  };
  WorkAssist(pool, parts, threads, [&](int64_t p, int) {
    Position* mine = counts + p * row;
    std::fill_n(mine, row, Position{0});
    for (int64_t i = internal::Part(n, parts, p); i < internal::Part(n, parts, p + 1); ++i) ++mine[bin_of(i)];
  });
  Position next = 0;
  for (int64_t b = 0; b < row; ++b) {
    offsets[b] = next;
    for (int64_t p = 0; p < parts; ++p) {
      const Position count = counts[p * row + b];
      counts[p * row + b] = next;
      next = static_cast<Position>(next + count);
    }
  }
  WorkAssist(pool, parts, threads, [&](int64_t p, int) {
    Position* mine = counts + p * row;
    for (int64_t i = internal::Part(n, parts, p); i < internal::Part(n, parts, p + 1); ++i) {
      order[mine[bin_of(i)]++] = static_cast<Position>(i);
    }
  });
}

}  // namespace jaxprims
