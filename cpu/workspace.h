// Working memory for subhistograms: kept between calls up to a limit, so that a call does not pay for page faults again.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace jaxprims {

class WorkspaceCache {
 public:
  static constexpr size_t kKept = size_t{256} << 20;  // bytes that stay allocated between calls, at most
  static constexpr size_t kHugePage = size_t{2} << 20;

  static WorkspaceCache& Instance() {
    static auto* cache = new WorkspaceCache;  // never destroyed: pool threads may outlive static destructors
    return *cache;
  }

  // At least `bytes` bytes, aligned to a cache line, with unspecified contents.
  void* Take(size_t bytes, size_t& taken) {
    const size_t unit = bytes >= kHugePage ? kHugePage : 4096;
    taken = (bytes + unit - 1) / unit * unit;
    {
      const std::lock_guard lock(mutex_);
      size_t best = free_.size();
      for (size_t i = 0; i < free_.size(); ++i) {
        if (free_[i].bytes >= taken && (best == free_.size() || free_[i].bytes < free_[best].bytes)) best = i;
      }
      if (best < free_.size() && free_[best].bytes / 4 <= taken) {
        const Block block = free_[best];
        free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(best));
        kept_ -= block.bytes;
        taken = block.bytes;
        return block.data;
      }
    }
    void* data = std::aligned_alloc(unit, taken);
    if (data == nullptr) throw std::bad_alloc();
    if (unit == kHugePage) madvise(data, taken, MADV_HUGEPAGE);  // random updates of a large table miss the TLB otherwise
    return data;
  }

  // Back to the cache, which lets go of those given longest ago to make room.
  void Give(void* data, size_t bytes) {
    if (bytes > kKept) {
      std::free(data);
      return;
    }
    const std::lock_guard lock(mutex_);
    free_.push_back({data, bytes});
    kept_ += bytes;
    auto oldest = free_.begin();
    for (; kept_ > kKept; ++oldest) {
      std::free(oldest->data);
      kept_ -= oldest->bytes;
    }
    free_.erase(free_.begin(), oldest);
  }

  // Bytes allocated and not in use now.
  size_t Kept() {
    const std::lock_guard lock(mutex_);
    return kept_;
  }

 private:
  struct Block {
    void* data;
    size_t bytes;
  };
  std::mutex mutex_;
  std::vector<Block> free_;
  size_t kept_ = 0;
};

// Asks for huge pages behind a large result that is about to be written for the first time: fewer page faults, fewer TLB misses.
inline void ExpectLarge(void* data, size_t bytes) {
  constexpr size_t kHuge = WorkspaceCache::kHugePage;
  const size_t before = (kHuge - reinterpret_cast<uintptr_t>(data) % kHuge) % kHuge;  // the first huge page starts here
  if (bytes < before + 2 * kHuge) return;
  madvise(static_cast<char*>(data) + before, (bytes - before) / kHuge * kHuge, MADV_HUGEPAGE);
}

// Workspace for one call.
class Workspace {
 public:
  explicit Workspace(size_t bytes)
      : data_(bytes == 0        ? nullptr
              : bytes <= kSmall ? small_
                                : WorkspaceCache::Instance().Take(bytes, taken_)) {}
  ~Workspace() {
    if (taken_ != 0) WorkspaceCache::Instance().Give(data_, taken_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  char* data() const { return static_cast<char*>(data_); }

 private:
  static constexpr size_t kSmall = 2048;  // bytes that are here, not in the cache

  size_t taken_ = 0;
  void* data_;
  alignas(64) char small_[kSmall];  // NOLINT: with unspecified contents
};

}  // namespace jaxprims
