// Compiled kernels by their spec's hash: found without a lock held for long, added once, never removed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "hist.h"

namespace jaxprims {

// What is known of a spec, and the variants compiled so far.
struct HistEntry {
  static constexpr int kVariants = 128;

  std::string spec;  // the whole text: a collision of hashes is an error, not a wrong kernel
  HistShape shape;
  std::vector<bool> positions;  // for each array: is it the element's position, and so no operand?
  int64_t uniforms = 0;
  std::array<std::atomic<const HistKernel*>, kVariants> variants{};
};

class KernelTable {
 public:
  static KernelTable& Instance() {
    static auto* table = new KernelTable;  // never destroyed: a pool thread may still run a kernel when the process exits
    return *table;
  }

  HistEntry* Find(int64_t key) const {
    std::shared_lock lock(mutex_);
    const auto it = entries_.find(key);
    return it == entries_.end() ? nullptr : it->second.get();
  }

  // The entry for `key`, `entry` itself if there was none.
  HistEntry* Add(int64_t key, std::unique_ptr<HistEntry> entry) {
    std::unique_lock lock(mutex_);
    return entries_.try_emplace(key, std::move(entry)).first->second.get();
  }

  static void AddVariant(HistEntry& entry, int variant, HistKernel kernel) {
    auto fresh = std::make_unique<const HistKernel>(std::move(kernel));
    const HistKernel* none = nullptr;
    // Release: whoever acquires the pointer sees the kernel's functions. The first one to come stays.
    if (entry.variants.at(static_cast<size_t>(variant)).compare_exchange_strong(none, fresh.get(), std::memory_order_release)) {
      (void)fresh.release();
    }
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<int64_t, std::unique_ptr<HistEntry>> entries_;
};

}  // namespace jaxprims
