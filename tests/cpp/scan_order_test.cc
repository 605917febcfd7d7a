// TwoSidedOrder: every block once and a row's blocks in their order, however threads interleave. And a model of the chained scan
// that tries all interleavings of its threads: no deadlock, nothing read before it is announced, every prefix right.

#include "scan_order.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "check.h"
#include "pools.h"

namespace jaxprims::test::scan_order_test {
namespace {

using Cursor = TwoSidedOrder::Cursor;

TEST(OrdersClaimEveryBlockOnceAndARowsBlocksInOrder) {
  std::mt19937 random(1);
  for (int round = 0; round < 3000; ++round) {
    const auto rows = static_cast<int64_t>(random() % 6 + 1), blocks = static_cast<int64_t>(random() % 6 + 1);
    TwoSidedOrder order(rows, blocks, static_cast<ScanOrder>(round % 3));
    CHECK_EQ(order.tasks(), rows * blocks);
    std::vector<Cursor> cursors = {{true}, {false}, {false}, {false}};
    std::vector<int64_t> next(static_cast<size_t>(rows), 0);
    std::vector<bool> ended(cursors.size());
    int64_t claimed = 0;
    while (std::count(ended.begin(), ended.end(), true) < 4) {
      const size_t t = random() % (round % 5 == 0 ? 1 : 4) + (ended[0] ? random() % 4 : 0);  // now and then one thread alone
      if (t > 3) continue;
      const int64_t task = order.Claim(cursors[t]);
      ended[t] = task < 0;
      if (task < 0) continue;
      ++claimed;
      CHECK_EQ(task % blocks, next[static_cast<size_t>(task / blocks)]++);
    }
    CHECK_EQ(claimed, rows * blocks);
  }
}

std::vector<int64_t> Claims(TwoSidedOrder& order, Cursor& cursor, int count) {
  std::vector<int64_t> tasks;
  for (int k = 0; k < count; ++k) tasks.push_back(order.Claim(cursor));
  return tasks;
}

TEST(OrdersOfThePaper) {
  Cursor first{true}, other{false};
  TwoSidedOrder alone(3, 3, ScanOrder::kAssisting);
  CHECK((Claims(alone, first, 10) == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, -1}));
  TwoSidedOrder row_wise(2, 3, ScanOrder::kRowWise);
  CHECK((Claims(row_wise, other, 7) == std::vector<int64_t>{0, 1, 2, 3, 4, 5, -1}));
  TwoSidedOrder column_wise(2, 3, ScanOrder::kColumnWise);
  CHECK((Claims(column_wise, first, 7) == std::vector<int64_t>{0, 3, 1, 4, 2, 5, -1}));
  // One thread is in its first row when another joins: that goes column-wise over the others, then helps; the first finishes its
  // row, then goes column-wise.
  TwoSidedOrder both(3, 3, ScanOrder::kAssisting);
  first.row_wise = true, other.row_wise = false;
  CHECK((Claims(both, first, 1) == std::vector<int64_t>{0}));
  CHECK((Claims(both, other, 3) == std::vector<int64_t>{3, 6, 4}));
  CHECK((Claims(both, first, 3) == std::vector<int64_t>{1, 2, 7}));
  CHECK((Claims(both, other, 3) == std::vector<int64_t>{5, 8, -1}));
  TwoSidedOrder one_row(1, 4, ScanOrder::kAssisting);
  first.row_wise = true, other.row_wise = false;
  CHECK((Claims(one_row, first, 1) == std::vector<int64_t>{0}));
  CHECK((Claims(one_row, other, 2) == std::vector<int64_t>{1, 2}));
  CHECK((Claims(one_row, first, 2) == std::vector<int64_t>{3, -1}));
}

TEST(OrdersFromManyThreads) {
  for (int round = 0; round < 50; ++round) {
    TwoSidedOrder order(20, 7, static_cast<ScanOrder>(round % 3));
    std::vector<std::atomic<int>> claims(140);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        Cursor cursor{t == 0};
        for (int64_t task = order.Claim(cursor); task >= 0; task = order.Claim(cursor)) claims[static_cast<size_t>(task)]++;
      });
    }
    for (auto& thread : threads) thread.join();
    for (const auto& claim : claims) CHECK_EQ(claim.load(), 1);
  }
}

// A thread does one atomic step at a time, as ScanBlock in scan.h does them: claim; look at the descriptors before the block;
// publish the aggregate; look again, waiting; publish the prefix; scan. A value is told by what it is made of: the prefix behind
// block b of a row is right if it was folded from a right prefix and the aggregates behind it.
constexpr int kMostBlocks = 6, kMostThreads = 3;
enum Status : uint8_t { kNothing, kAggregate, kPrefix };
enum At : uint8_t { kClaims, kLooks, kWaits, kPublishesAggregate, kPublishesPrefix, kEnds };

struct Thread {
  uint8_t at = kClaims, task = 0, looks_at = 0;
  bool row_wise = false, reduced = false;
  auto operator<=>(const Thread&) const = default;
};

struct World {
  uint64_t index = 0;
  std::array<uint8_t, kMostBlocks> status{};
  std::array<bool, kMostBlocks> scanned{};
  std::array<Thread, kMostThreads> threads{};
  auto operator<=>(const World&) const = default;
};

class Model {
 public:
  Model(int64_t rows, int64_t blocks, int threads, ScanOrder order, int restarted)
      : order_(rows, blocks, order), blocks_(blocks), threads_(threads), restarted_(restarted) {}

  // All worlds that can be reached from the first.
  size_t Explore() {
    World start;
    start.threads[0].row_wise = true;
    std::set<World> seen = {start};
    std::vector<World> open = {start};
    while (!open.empty()) {
      const World world = open.back();
      open.pop_back();
      bool moved = false, ended = true;
      for (int t = 0; t < threads_; ++t) {
        World next = world;
        ended = ended && world.threads[static_cast<size_t>(t)].at == kEnds;
        if (!Step(next, next.threads[static_cast<size_t>(t)])) continue;
        moved = true;
        if (seen.insert(next).second) open.push_back(next);
      }
      CHECK(moved || ended);  // else a deadlock; a helper that never comes is a thread less
      if (ended) CHECK_EQ(std::count(world.scanned.begin(), world.scanned.end(), true), order_.tasks());
    }
    return seen.size();
  }

 private:
  // One step of a thread; false if it cannot move.
  bool Step(World& world, Thread& t) const {
    const auto place = static_cast<int>(t.task % blocks_);
    const bool last = place == blocks_ - 1;
    switch (t.at) {
      case kClaims: {
        const TwoSidedOrder::Step step = order_.From(world.index, {t.row_wise});
        if (step.task < 0) {
          t = {};
          t.at = kEnds;
          return true;
        }
        world.index = step.index;
        const bool row_wise = step.row_wise;
        t = {};
        t.task = static_cast<uint8_t>(step.task), t.row_wise = row_wise;
        t.looks_at = static_cast<uint8_t>(t.task - 1);
        t.at = step.task % blocks_ == 0 ? kPublishesPrefix : kLooks;
        return true;
      }
      case kLooks:
      case kWaits: {
        CHECK(t.looks_at / blocks_ == t.task / blocks_ && t.looks_at < t.task);
        const bool waits = t.at == kWaits || last;
        switch (world.status[t.looks_at]) {
          case kNothing:
            if (waits) return false;
            t.at = kPublishesAggregate, t.looks_at = static_cast<uint8_t>(t.task - 1), t.reduced = true;
            if (t.task == restarted_) t.at = kPublishesPrefix;  // needs nothing from before
            return true;
          case kAggregate:
            CHECK(t.looks_at % blocks_ > 0);  // the first block of a row goes to its prefix at once
            t.looks_at--;
            return true;
          default:
            t.at = kPublishesPrefix;
            return true;
        }
      }
      case kPublishesAggregate:
        CHECK_EQ(int{world.status[t.task]}, int{kNothing});
        world.status[t.task] = kAggregate;
        t.at = kWaits;
        return true;
      case kPublishesPrefix:
        // What it folded is there still, and nobody has published in its stead.
        for (int b = t.looks_at; place > 0 && t.task != restarted_ && b < t.task; ++b)
          CHECK(world.status[static_cast<size_t>(b)] != kNothing);
        CHECK_EQ(int{world.status[t.task]}, int{t.reduced && t.task != restarted_ ? kAggregate : kNothing});
        world.status[t.task] = kPrefix;
        CHECK(!world.scanned[t.task]);
        world.scanned[t.task] = true;
        t.at = kClaims;
        return true;
      default:
        return false;
    }
  }

  const TwoSidedOrder order_;
  const int64_t blocks_;
  const int threads_, restarted_;
};

TEST(ModelOfTheChainedScan) {
  if (kRacesOnly) return;
  size_t worlds = 0;
  for (const ScanOrder order : {ScanOrder::kAssisting, ScanOrder::kRowWise, ScanOrder::kColumnWise}) {
    for (const int threads : {1, 2, 3}) {
      for (const auto& [rows, blocks] : {std::array<int64_t, 2>{1, 5}, {2, 3}}) {
        for (const int restarted : {-1, 2}) worlds += Model(rows, blocks, threads, order, restarted).Explore();
      }
    }
  }
  CHECK(worlds > 1000);
}

}  // namespace
}  // namespace jaxprims::test::scan_order_test
