// WorkAssist: every task exactly once, worker numbers that are nobody else's at the time, and no pool that can block the caller.

#include "work_assist.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "pools.h"

namespace jaxprims::test::work_assist_test {
namespace {

constexpr int kMaxThreads = 16;

// Something that takes a while and that the compiler cannot leave out.
int64_t Busy(int64_t rounds) {
  volatile int64_t sum = 0;
  for (int64_t i = 0; i < rounds; ++i) sum = sum + i;
  return sum;
}

// One call, checked. `results` is written and read without atomics: the thread sanitizer sees whether the caller may read it.
void CheckCall(Pool& pool, int64_t tasks, int threads, int64_t rounds = 10) {
  std::vector<int64_t> results(static_cast<size_t>(tasks), 0);
  std::vector<std::atomic<int>> in_use(static_cast<size_t>(std::max(threads, 1)));
  WorkAssist(pool, tasks, threads, [&](int64_t task, int worker) {
    CHECK(task >= 0 && task < tasks);
    CHECK(worker >= 0 && worker < std::max(threads, 1));
    CHECK_EQ(in_use[static_cast<size_t>(worker)].exchange(1), 0);
    Busy(rounds * (task % 7));  // uneven tasks
    results[static_cast<size_t>(task)] += task + 1;
    in_use[static_cast<size_t>(worker)].store(0);
  });
  for (int64_t task = 0; task < tasks; ++task) CHECK_EQ(results[static_cast<size_t>(task)], task + 1);
}

void CheckSizes(Pool& pool) {
  for (int threads = 1; threads <= kMaxThreads; ++threads) {
    for (const int64_t tasks : {0, 1, 2, 3, 15, 16, 17, 300}) CheckCall(pool, tasks, threads);
  }
}

TEST(WorkAssistOnPoolThatNeverRunsAHelper) {
  NeverPool pool;
  CheckSizes(pool);
}

TEST(WorkAssistOnPoolThatRunsHelpersInline) {
  InlinePool pool;
  CheckSizes(pool);
}

TEST(WorkAssistOnPoolThatRunsHelpersLate) {
  LatePool pool;
  CheckSizes(pool);
  CHECK(pool.RunLate() > 0);  // what they would have run is long gone, and must not be touched
}

TEST(WorkAssistOnPoolThatRunsHelpersAtOnce) {
  for (int threads = 1; threads <= kMaxThreads; ++threads) {
    BurstPool pool;
    for (const int64_t tasks : {1, 2, 17, 300}) CheckCall(pool, tasks, threads, 100);
  }
}

TEST(WorkAssistOnQueue) {
  for (const int pool_threads : {1, 2, 5}) {
    QueuePool pool(pool_threads);
    CheckSizes(pool);
  }
}

TEST(WorkAssistAsksForNoMoreHelpersThanTasks) {
  LatePool pool;
  WorkAssist(pool, 3, kMaxThreads, [](int64_t, int) {});
  CHECK_EQ(pool.RunLate(), size_t{2});
  WorkAssist(pool, 100, 1, [](int64_t, int) {});
  CHECK_EQ(pool.RunLate(), size_t{0});
}

TEST(WorkAssistSleepsUntilASlowHelperIsDone) {
  const auto caller = std::this_thread::get_id();
  for (int round = 0; round < 20; ++round) {
    BurstPool pool;
    std::latch both(2);
    int slow = 0;
    WorkAssist(pool, 2, 2, [&](int64_t, int) {
      both.arrive_and_wait();  // so that one task is the helper's
      if (std::this_thread::get_id() == caller) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      slow = 1;
    });
    CHECK_EQ(slow, 1);
  }
}

TEST(WorkAssistWhileThePoolIsBusy) {
  QueuePool pool(1);
  std::latch released(1);
  pool.Schedule([&] { released.wait(); });
  CheckCall(pool, 100, 8);  // would not return if it waited for the pool's only thread
  released.count_down();
}

TEST(WorkAssistFromConcurrentCallers) {
  QueuePool pool(2);
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&pool, c] {
      for (int round = 0; round < 50; ++round) CheckCall(pool, 40 + c, 2 + c);
    });
  }
  for (auto& caller : callers) caller.join();
}

TEST(WorkAssistNested) {
  QueuePool pool(2);
  std::atomic<int> leaves{0};
  for (int round = 0; round < 20; ++round) {
    WorkAssist(pool, 6, 3, [&](int64_t, int) {
      WorkAssist(pool, 5, 4, [&](int64_t, int) { WorkAssist(pool, 3, 2, [&](int64_t, int) { leaves.fetch_add(1); }); });
    });
  }
  CHECK_EQ(leaves.load(), 20 * 6 * 5 * 3);
}

#if defined(__x86_64__)
TEST(WorkAssistInTheFloatModeOfTheCaller) {
  constexpr uint64_t kFlushToZero = 0x8000;
  const uint64_t usual = GetFloatMode();
  BurstPool burst;
  InlinePool at_once;
  for (Pool* pool : {static_cast<Pool*>(&burst), static_cast<Pool*>(&at_once)}) {
    const ScopedFloatMode mode(usual | kFlushToZero);
    WorkAssist(*pool, 100, 4, [&](int64_t, int) {
      CHECK_EQ(GetFloatMode(), usual | kFlushToZero);
      Busy(1000);
    });
    CHECK_EQ(GetFloatMode(), usual | kFlushToZero);
  }
  CHECK_EQ(GetFloatMode(), usual);
}
#endif

}  // namespace
}  // namespace jaxprims::test::work_assist_test
