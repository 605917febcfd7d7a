// Thread pools of every temper: a driver must give the same result on each, and must never wait for a helper that does not come.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace jaxprims::test {

using Helper = std::function<void()>;

// The thread sanitizer is slow, and looks for races alone: runs in which one thread does everything are left to the other build,
// which makes every one.
#ifdef __SANITIZE_THREAD__
constexpr bool kRacesOnly = true;
#else
constexpr bool kRacesOnly = false;
#endif

// One type for all of them, so that drivers are compiled once.
struct Pool {
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  virtual ~Pool() = default;
  virtual void Schedule(Helper helper) = 0;
};

// Never runs a helper: a pool whose threads are busy for good.
struct NeverPool : Pool {
  void Schedule(Helper /*helper*/) override {}
};

// Runs a helper inside Schedule, so that it does all the work before the caller starts.
struct InlinePool : Pool {
  void Schedule(Helper helper) override { helper(); }
};

// Runs the helpers when told to: after the call that put them there has returned.
class LatePool : public Pool {
 public:
  void Schedule(Helper helper) override {
    const std::lock_guard lock(mutex_);
    late_.emplace_back(std::move(helper));
  }
  size_t RunLate() {
    for (auto& helper : late_) helper();
    const size_t ran = late_.size();
    late_.clear();
    return ran;
  }

 private:
  std::mutex mutex_;
  std::vector<Helper> late_;
};

// A thread that stands by for work. It synchronises with nobody but who gives it work and waits for it, as a new thread would, so
// that sanitizers see the same races; to start one takes them a millisecond.
class Standby {
 public:
  ~Standby() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void Start(Helper helper) {
    {
      const std::lock_guard lock(mutex_);
      helper_ = std::move(helper);
    }
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !helper_; });
  }

 private:
  void Work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return closed_ || helper_; });
      if (closed_) return;
      lock.unlock();
      helper_();
      lock.lock();
      helper_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Helper helper_;
  bool closed_ = false;
  std::thread thread_{[this] { Work(); }};
};

// A thread for each helper at once, more than there are cores.
class BurstPool : public Pool {
 public:
  ~BurstPool() override { Join(); }

  void Schedule(Helper helper) override {
    if (idle_.empty()) idle_.push_back(std::make_unique<Standby>());
    busy_.push_back(std::move(idle_.back()));
    idle_.pop_back();
    busy_.back()->Start(std::move(helper));
  }
  void Join() {
    for (auto& thread : busy_) {
      thread->Wait();
      idle_.push_back(std::move(thread));
    }
    busy_.clear();
  }

 private:
  static thread_local inline std::vector<std::unique_ptr<Standby>> idle_;
  std::vector<std::unique_ptr<Standby>> busy_;
};

// A queue and some threads, as XLA has it: shared by all callers, and by the tasks that call again from inside.
class QueuePool : public Pool {
 public:
  explicit QueuePool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~QueuePool() override {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void Schedule(Helper helper) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.emplace_back(std::move(helper));
    }
    ready_.notify_one();
  }

 private:
  void Work() {
    for (;;) {
      Helper next;
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
  std::deque<Helper> queue_;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace jaxprims::test
