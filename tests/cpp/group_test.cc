// GroupByIndex: a stable counting sort, with dropped elements last, on every pool.

#include "group.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "pools.h"

namespace jaxprims::test {
namespace {

template <class Index, class Position>
void CheckGroup(Pool& pool, const std::vector<Index>& indices, int64_t bins, int threads) {
  const auto n = static_cast<int64_t>(indices.size());
  const auto bin_of = [&](Position i) {
    const auto at = static_cast<int64_t>(indices[static_cast<size_t>(i)]);
    return at >= 0 && at < bins ? at : bins;
  };
  std::vector<Position> want(indices.size());
  std::iota(want.begin(), want.end(), Position{0});
  std::sort(want.begin(), want.end(),
            [&](Position a, Position b) { return bin_of(a) != bin_of(b) ? bin_of(a) < bin_of(b) : a < b; });
  std::vector<Position> order(indices.size(), -1), offsets(static_cast<size_t>(bins) + 1, -1);
  GroupByIndex(pool, threads, indices.data(), n, bins, order.data(), offsets.data());
  CHECK(order == want);
  for (int64_t b = 0; b <= bins; ++b) {
    const auto first = std::partition_point(want.begin(), want.end(), [&](Position i) { return bin_of(i) < b; });
    CHECK_EQ(static_cast<std::ptrdiff_t>(offsets[static_cast<size_t>(b)]), first - want.begin());
  }
}

template <class Index, class Position>
void CheckSizes() {
  QueuePool queue(3);
  for (const int64_t n : {0, 1, 100, 50'000}) {
    for (const int64_t bins : {0, 1, 17, 1000}) {
      std::mt19937 random(static_cast<unsigned>(n + bins));
      std::vector<Index> indices(static_cast<size_t>(n));
      for (auto& index : indices)
        index = static_cast<Index>(static_cast<int64_t>(random() % static_cast<uint64_t>(bins + 3)) - 1);
      if (n > 1) indices[0] = std::numeric_limits<Index>::min(), indices[1] = std::numeric_limits<Index>::max();
      for (const int threads : {1, 2, 8}) {
        NeverPool never;
        CheckGroup<Index, Position>(never, indices, bins, threads);
        CheckGroup<Index, Position>(queue, indices, bins, threads);
        BurstPool burst;
        CheckGroup<Index, Position>(burst, indices, bins, threads);
      }
    }
  }
}

TEST(GroupByIndex) {
  CheckSizes<int32_t, int32_t>();
  CheckSizes<int64_t, int64_t>();
}

TEST(GroupPartsAreBounded) {
  for (const int64_t bins : {int64_t{1}, int64_t{1000}, int64_t{1} << 22, int64_t{1} << 32}) {
    const int64_t parts = GroupParts(int64_t{1} << 40, bins, 64);
    CHECK(parts >= 1 && parts <= 64);
    CHECK(parts == 1 || parts * (bins + 1) <= kGroupCounts);
  }
  CHECK_EQ(GroupParts(1000, 10, 64), int64_t{1});  // too few for a second thread
}

}  // namespace
}  // namespace jaxprims::test
