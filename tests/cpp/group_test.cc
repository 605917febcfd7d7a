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

namespace jaxprims::test::group_test {
namespace {

// Positions by bin, as they come; dropped ones behind the last bin.
template <class Index, class Position>
std::vector<Position> Grouped(const std::vector<Index>& indices, int64_t bins, std::vector<Position>& offsets) {
  const auto bin_of = [&](Position i) {
    const auto at = static_cast<int64_t>(indices[static_cast<size_t>(i)]);
    return at >= 0 && at < bins ? at : bins;
  };
  std::vector<Position> order(indices.size());
  std::iota(order.begin(), order.end(), Position{0});
  std::sort(order.begin(), order.end(),
            [&](Position a, Position b) { return bin_of(a) != bin_of(b) ? bin_of(a) < bin_of(b) : a < b; });
  for (int64_t b = 0; b <= bins; ++b) {
    const auto first = std::partition_point(order.begin(), order.end(), [&](Position i) { return bin_of(i) < b; });
    offsets.push_back(static_cast<Position>(first - order.begin()));
  }
  return order;
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
      std::vector<Position> want_offsets;
      const std::vector<Position> want = Grouped(indices, bins, want_offsets);
      const auto check = [&](Pool& pool, int threads) {
        std::vector<Position> order(indices.size(), -1), offsets(static_cast<size_t>(bins) + 1, -1);
        GroupByIndex(pool, threads, indices.data(), n, bins, order.data(), offsets.data());
        CHECK(order == want);
        CHECK(offsets == want_offsets);
      };
      for (const int threads : {1, 2, 8}) {
        NeverPool never;
        check(never, threads);
        check(queue, threads);
        BurstPool burst;
        check(burst, threads);
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
}  // namespace jaxprims::test::group_test
