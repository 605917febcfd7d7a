// Work assisting: tasks [0, n) from one atomic counter, or in another order of claims.
//
// The caller works through the tasks itself; helpers put on the pool join whenever they get a thread and find nothing if they
// come late. The caller waits only for tasks that a helper has already claimed, and a claimed task always runs to its end (it
// waits for nobody, or for tasks claimed before it alone), so a busy pool, a pool of one thread, or a pool that never runs a
// helper cannot block the caller: no deadlock.
//
// Memory order. What the caller wrote before WorkAssist is visible to a helper because the pool's queue synchronises. What a task
// wrote is visible to the caller because `finished` is incremented with release after the task and read with acquire. An order
// only hands out numbers: relaxed. A helper that comes late touches only the counters, which it co-owns, never `run`, which lives
// on the caller's stack.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "float_mode.h"

namespace jaxprims {

// One after the other. What an order of claims has to offer: a thread's Cursor, made of whether it is the caller's; Claim, from
// any thread, the number of a task that nobody else gets, or -1 when none is left; and their number.
class CountingOrder {
 public:
  struct Cursor {
    bool caller;
  };
  explicit CountingOrder(int64_t tasks) : tasks_(tasks) {}
  int64_t tasks() const { return tasks_; }
  int64_t Claim(Cursor& /*cursor*/) {
    const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
    return task < tasks_ ? task : -1;
  }

 private:
  const int64_t tasks_;
  alignas(64) std::atomic<int64_t> next_{0};
};

namespace internal {

template <class Order>
struct WorkState {
  template <class... Args>
  explicit WorkState(const Args&... args) : order(args...) {}
  Order order;
  const uint64_t float_mode = GetFloatMode();
  alignas(64) std::atomic<int64_t> finished{0};
  alignas(64) std::atomic<int> workers{0};
};

// One thread's share. Its worker number, below the number of threads asked for, is fixed when it claims its first task.
template <class Order, class Run>
void Assist(WorkState<Order>& state, Run& run, bool caller) {
  typename Order::Cursor cursor{caller};
  int64_t task = state.order.Claim(cursor);
  if (task < 0) return;
  const int worker = state.workers.fetch_add(1, std::memory_order_relaxed);
  int64_t done = 0;
  do {
    run(task, worker);
    ++done;
    task = state.order.Claim(cursor);
  } while (task >= 0);
  if (state.finished.fetch_add(done, std::memory_order_acq_rel) + done == state.order.tasks()) state.finished.notify_all();
}

}  // namespace internal

// How long a thread that has nothing left to do looks whether the others are done before it sleeps: to be woken takes some 40 us,
// which is as long as a small call's task.
inline constexpr std::chrono::microseconds kPatience{200};

inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Calls run(task, worker) once for each task of an Order made of `args`, on the caller and on up to `threads - 1` helpers from
// `pool`, which has `Schedule(callable)`. Returns when all are finished. run must not throw; worker is in [0, threads) and never
// in use twice at once.
template <class Order, class Pool, class Run, class... Args>
void WorkAssistInOrder(Pool& pool, int threads, Run run, const Args&... args) {
  auto state = std::make_shared<internal::WorkState<Order>>(args...);
  const int64_t tasks = state->order.tasks(), helpers = threads - 1 < tasks - 1 ? threads - 1 : tasks - 1;
  try {
    for (int64_t h = 0; h < helpers; ++h) {
      pool.Schedule([state, &run] {
        const ScopedFloatMode mode(state->float_mode);
        internal::Assist(*state, run, false);
      });
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): a helper that cannot be had is one that never comes
  }
  internal::Assist(*state, run, true);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  for (int64_t finished = 0; (finished = state->finished.load(std::memory_order_acquire)) != tasks;) {
    std::chrono::steady_clock::now() < until ? Pause() : state->finished.wait(finished, std::memory_order_acquire);
  }
}

// The same for tasks [0, tasks) in their order.
template <class Pool, class Run>
void WorkAssist(Pool& pool, int64_t tasks, int threads, Run run) {
  if (threads <= 1 || tasks <= 1) {
    for (int64_t task = 0; task < tasks; ++task) run(task, 0);
    return;
  }
  WorkAssistInOrder<CountingOrder>(pool, threads, std::move(run), tasks);
}

}  // namespace jaxprims
