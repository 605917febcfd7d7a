// Compiled kernels by their spec's hash: found without a lock held for long, added once, never removed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hist.h"
#include "ordered_call.h"
#include "ordered_kernel.h"
#include "stencil_call.h"
#include "stencil_kernel.h"
#include "walk.h"

namespace jaxprims {

// What is known of a spec, and the variants compiled so far.
template <class K, class S, int kCount>
struct KernelEntry {
  using Kernel = K;
  static constexpr int kVariants = kCount;

  int64_t key = 0;   // its hash
  std::string spec;  // the whole text: a collision of hashes is an error, not a wrong kernel
  S shape;
  std::array<std::atomic<const K*>, kCount> variants{};
};

struct HistEntry : KernelEntry<HistKernel, HistShape, 256> {};

// Variants: bit 0, periodic; bit 1, streaming: results are stored non-temporally; bit 2, spaced: rows lie apart.
struct OrderedEntry : KernelEntry<OrderedKernel, OrderedShape, 8> {};

struct StencilEntry : KernelEntry<StencilKernel, StencilShape, 1> {};

// Variant 1: bins are fetched ahead.
struct WalkEntry : KernelEntry<WalkKernel, WalkShape, 2> {};

template <class Entry>
class KernelTable {
 public:
  using Kernel = Entry::Kernel;

  static KernelTable& Instance() {
    static auto* table = new KernelTable;  // never destroyed: a pool thread may still run a kernel when the process exits
    return *table;
  }

  Entry* Find(int64_t key) const {
    std::shared_lock lock(mutex_);
    const auto it = entries_.find(key);
    return it == entries_.end() ? nullptr : it->second.get();
  }

  // The entry for `key`, `entry` itself if there was none.
  Entry* Add(int64_t key, std::unique_ptr<Entry> entry) {
    entry->key = key;
    std::unique_lock lock(mutex_);
    return entries_.try_emplace(key, std::move(entry)).first->second.get();
  }

  static void AddVariant(Entry& entry, int variant, Kernel kernel) {
    auto fresh = std::make_unique<const Kernel>(std::move(kernel));
    const Kernel* none = nullptr;
    // Release: whoever acquires the pointer sees the kernel's functions. The first one to come stays.
    if (entry.variants.at(static_cast<size_t>(variant)).compare_exchange_strong(none, fresh.get(), std::memory_order_release)) {
      (void)fresh.release();
    }
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<int64_t, std::unique_ptr<Entry>> entries_;
};

}  // namespace jaxprims
