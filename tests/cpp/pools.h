// Thread pools of every temper: a driver must give the same result on each, and must never wait for a helper that does not come.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace jaxprims::test {

// Never runs a helper: a pool whose threads are busy for good.
struct NeverPool {
  template <class F>
  void Schedule(F&& /*helper*/) {}
};

// Runs a helper inside Schedule, so that it does all the work before the caller starts.
struct InlinePool {
  template <class F>
  void Schedule(F&& helper) {
    std::forward<F>(helper)();
  }
};

// Runs the helpers when told to: after the call that put them there has returned.
class LatePool {
 public:
  template <class F>
  void Schedule(F&& helper) {
    const std::lock_guard lock(mutex_);
    late_.emplace_back(std::forward<F>(helper));
  }
  size_t RunLate() {
    for (auto& helper : late_) helper();
    const size_t ran = late_.size();
    late_.clear();
    return ran;
  }

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> late_;
};

// A thread for each helper at once, more than there are cores.
class BurstPool {
 public:
  BurstPool() = default;
  BurstPool(const BurstPool&) = delete;
  BurstPool& operator=(const BurstPool&) = delete;
  ~BurstPool() { Join(); }

  template <class F>
  void Schedule(F&& helper) {
    threads_.emplace_back(std::forward<F>(helper));
  }
  void Join() {
    for (auto& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

// A queue and some threads, as XLA has it: shared by all callers, and by the tasks that call again from inside.
class QueuePool {
 public:
  explicit QueuePool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
  }
  QueuePool(const QueuePool&) = delete;
  QueuePool& operator=(const QueuePool&) = delete;
  ~QueuePool() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  template <class F>
  void Schedule(F&& helper) {
    {
      const std::lock_guard lock(mutex_);
      queue_.emplace_back(std::forward<F>(helper));
    }
    ready_.notify_one();
  }

 private:
  void Work() {
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock lock(mutex_);
        ready_.wait(lock, [this] { return closed_ || !queue_.empty(); });
        if (queue_.empty()) return;
        next = std::move(queue_.front());
        queue_.pop_front();
      }
      next();
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> queue_;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace jaxprims::test
