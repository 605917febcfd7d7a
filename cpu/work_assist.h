// Work assisting: tasks [0, n) from one atomic counter.
//
// The caller works through the tasks itself; helpers put on the pool join whenever they get a thread and find nothing if they
// come late. The caller waits only for tasks that a helper has already claimed, and a claimed task always runs to its end (it
// waits for nobody), so a busy pool, a pool of one thread, or a pool that never runs a helper cannot block the caller: no
// deadlock.
//
// Memory order. What the caller wrote before WorkAssist is visible to a helper because the pool's queue synchronises. What a task
// wrote is visible to the caller because `finished` is incremented with release after the task and read with acquire. `next` only
// hands out numbers: relaxed. A helper that comes late touches only the counters, which it co-owns, never `run`, which lives on
// the caller's stack.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "float_mode.h"

namespace jaxprims {

namespace internal {

struct WorkState {
  explicit WorkState(int64_t count) : tasks(count) {}
  const int64_t tasks;
  const uint64_t float_mode = GetFloatMode();
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<int64_t> finished{0};
  alignas(64) std::atomic<int> workers{0};
};

// One thread's share. Its worker number, below the number of threads asked for, is fixed when it claims its first task.
template <class Run>
void Assist(WorkState& state, Run& run) {
  int64_t task = state.next.fetch_add(1, std::memory_order_relaxed);
  if (task >= state.tasks) return;
  const int worker = state.workers.fetch_add(1, std::memory_order_relaxed);
  int64_t done = 0;
  do {
    run(task, worker);
    ++done;
    task = state.next.fetch_add(1, std::memory_order_relaxed);
  } while (task < state.tasks);
  if (state.finished.fetch_add(done, std::memory_order_acq_rel) + done == state.tasks) state.finished.notify_all();
}

}  // namespace internal

// Calls run(task, worker) once for each task in [0, tasks), on the caller and on up to `threads - 1` helpers from `pool`, which
// has `Schedule(callable)`. Returns when all are finished. run must not throw; worker is in [0, threads) and never in use twice
// at once.
template <class Pool, class Run>
void WorkAssist(Pool& pool, int64_t tasks, int threads, Run run) {
  if (threads <= 1 || tasks <= 1) {
    for (int64_t task = 0; task < tasks; ++task) run(task, 0);
    return;
  }
  auto state = std::make_shared<internal::WorkState>(tasks);
  const int64_t helpers = threads - 1 < tasks - 1 ? threads - 1 : tasks - 1;
  for (int64_t h = 0; h < helpers; ++h) {
    pool.Schedule([state, &run] {
      const ScopedFloatMode mode(state->float_mode);
      internal::Assist(*state, run);
    });
  }
  internal::Assist(*state, run);
  for (int spin = 0;; ++spin) {
    const int64_t finished = state->finished.load(std::memory_order_acquire);
    if (finished == tasks) return;
    if (spin > 2000) state->finished.wait(finished, std::memory_order_acquire);
  }
}

}  // namespace jaxprims
