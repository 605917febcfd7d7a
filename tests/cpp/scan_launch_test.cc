// PlanScan of the CUDA half: which tiles there can be, and which scans let them wait.

#include "scan_launch.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"

namespace jaxprims::test::scan_launch_test {
namespace {

using cuda::CudaOrderedShape;
using cuda::PlanScan;
using cuda::ScanPlan;
using cuda::ScanProblem;

CudaOrderedShape ShapeOf(int64_t state_bytes, int64_t element_bytes) {
  CudaOrderedShape shape;
  shape.kind = "scan";
  shape.array_bytes = shape.leaf_bytes = {element_bytes};
  shape.state_bytes = state_bytes;
  return shape;
}

std::string Text(const ScanPlan& plan) {
  std::ostringstream text;
  text << plan.name() << " " << plan.units << " x " << plan.tiles << " of " << plan.length << (plan.chained ? " chained" : "");
  return text.str();
}

TEST(ScanTilesThatWait) {
  for (int state = 1; state <= 600; ++state) {
    for (const int element : {1, 2, 3, 4, 8, 12, 16, 64}) {
      const jp::ScanTile along = jp::TileAlong(state, element), waiting = jp::TileWaiting(state, element);
      CHECK_EQ(waiting.threads, along.threads);
      CHECK_EQ(waiting.run, along.run);                                             // what is aligned for one is for the other
      CHECK(along.run * along.rounds <= 32 && waiting.run * waiting.rounds <= 32);  // a bit for each element
      CHECK(state > 4 || 4 * waiting.rounds >= 7 * along.rounds);
      CHECK((waiting.rounds == 0) == (state > 64));
      if (waiting.rounds == 0) continue;
      CHECK(jp::ElementsOf(waiting) >= jp::ElementsOf(along));
      // Beside it lie a state for each warp, three more, and three claims.
      const int more = (waiting.threads / 32 + 3) * (state + 16) + 3 * 48;
      CHECK(4 * jp::WaitingWords(waiting, state) * waiting.threads + more <= 48 * 1024);
    }
  }
}

TEST(ScanWaitsWhereChainsAreLong) {
  constexpr int64_t kMillion = int64_t{1} << 20;
  struct Example {
    int64_t state, element, rows, n;
    bool contiguous;
    const char* plan;
  };
  const std::vector<Example> examples = {
      {4, 4, 1, 128 * kMillion, true, "ScanRowsWaiting 1 x 16384 of 8192 chained"},
      {8, 8, 1, 64 * kMillion, true, "ScanRowsWaiting 1 x 18725 of 3584 chained"},
      {1, 1, 1, 128 * kMillion, true, "ScanRowsWaiting 1 x 16384 of 8192 chained"},
      {4, 4, 1, kMillion, true, "ScanRows 1 x 256 of 4096 chained"},  // a block's only tile has nothing to wait for
      {4, 4, 1, 528 * 8192 - 8192, true, "ScanRows 1 x 1054 of 4096 chained"},
      {4, 4, 1, 528 * 8192 - 8191, true, "ScanRowsWaiting 1 x 528 of 8192 chained"},
      {4, 4, 131'072, 1024, true, "ScanFlat 1 x 32768 of 4096"},
      {4, 4, 131'072, 4096, true, "ScanFlat 1 x 131072 of 4096"},
      {4, 4, 30, 16 * kMillion, true, "ScanRowsWaiting 30 x 2048 of 8192 chained"},
      {4, 4, 3000, kMillion, true, "ScanRows 3000 x 256 of 4096 chained"},  // what comes before a tile was made long before
      {4, 4, 131'072, 3001, true, "ScanFlat 1 x 96032 of 4096 chained"},    // at most one tile is waited for
      {4, 4, 9000, 70'001, true, "ScanFlatWaiting 1 x 76906 of 8192 chained"},
      {4, 4, 9000, 70'001, false, "ScanRows 9000 x 18 of 4096 chained"},
      {4, 4, 9000, 100, false, "ScanEach 9000 x 1 of 4096"},
      {128, 128, 1, 4 * kMillion, true, "ScanRows 1 x 32768 of 128 chained"},  // such a state is too large to wait
      {4, 4, 1, 1, true, "ScanRows 1 x 1 of 4096"},
  };
  for (const Example& e : examples) {
    const CudaOrderedShape shape = ShapeOf(e.state, e.element);
    const std::string plan = Text(PlanScan(shape, {.n = e.n, .rows = e.rows, .contiguous = e.contiguous}, {}));
    if (plan != e.plan) Fail(__FILE__, __LINE__, e.rows, " rows of ", e.n, ": ", plan, ", not ", e.plan);
  }
}

TEST(ScanWaitsOnlyInChains) {
  const CudaOrderedShape shape = ShapeOf(4, 4);
  const std::array<int64_t, 3> waits{-1, -1, 1}, none{-1, -1, 0}, whole{1, 4, 1};
  const auto plan = [&](int64_t n, int64_t rows, std::span<const int64_t> forced) {
    return Text(PlanScan(shape, {.n = n, .rows = rows}, forced));
  };
  CHECK_EQ(plan(8193, 1, waits), "ScanRowsWaiting 1 x 2 of 8192 chained");
  CHECK_EQ(plan(8192, 1, waits), "ScanRows 1 x 2 of 4096 chained");
  CHECK_EQ(plan(1'000'000'000, 1, none), "ScanRows 1 x 244141 of 4096 chained");
  CHECK_EQ(plan(1024, 100'000, whole), "ScanFlat 1 x 25000 of 4096");
  CHECK_EQ(Text(PlanScan(shape, {.n = 1'000'000'000}, waits, false)), "ScanEach 1 x 1 of 4096");
}

// Whatever part of the batch a device has.
TEST(ScanWorkspaceSufficesForTilesThatWait) {
  const std::array<int64_t, 3> none{-1, -1, 0};
  std::mt19937_64 random(1);
  const auto size = [&](int max_log) {
    return 1 + static_cast<int64_t>(random() >> (64 - std::uniform_int_distribution<int>(1, max_log)(random)));
  };
  int waited = 0;
  for (int round = 0; round < 20'000; ++round) {
    CudaOrderedShape shape = ShapeOf(size(8), size(4));
    shape.reverse = random() % 2 == 0;
    const int64_t n = size(30), members = size(std::uniform_int_distribution<int>(0, 1)(random) == 0 ? 5 : 16);
    const cuda::Workspace given = cuda::ScanWorkspace(shape, n, 1, members);
    const cuda::Workspace unknown = cuda::ScanWorkspace(shape, n, 1, -1), any = cuda::ScanWorkspace(shape, -1, 1, -1);
    for (const int64_t rows : {members, (members + 7) / 8, std::min<int64_t>(members, 3), int64_t{1}}) {
      for (const bool contiguous : {false, true}) {
        const ScanPlan plan = PlanScan(shape, {.n = n, .rows = rows, .contiguous = contiguous}, {});
        CHECK_EQ(plan.tiles, (plan.total + plan.length - 1) / plan.length);
        if (!plan.waits) continue;
        ++waited;
        CHECK(plan.chained &&
              plan.workspace <= PlanScan(shape, {.n = n, .rows = rows, .contiguous = contiguous}, none).workspace);
        CHECK(plan.workspace <= rows * given.base);
        CHECK(plan.workspace <= rows * (unknown.base + unknown.per * (n / unknown.every + 1)));
        CHECK(plan.workspace <= rows * (any.base + any.per * (n / any.every + 1)));
      }
    }
  }
  CHECK(waited > 1000);
}

}  // namespace
}  // namespace jaxprims::test::scan_launch_test
