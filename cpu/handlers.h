// What the CPU's FFI handlers share: XLA's pool, compile on demand.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

#include "call_reader.h"
#include "hist_plan.h"
#include "kernel_table.h"
#include "xla/ffi/api/ffi.h"

namespace jaxprims {

// The handlers, for capsules.
void* HistHandler();
void* GroupHandler();
void* ScanHandler();
void* ReduceHandler();
void* SegmentsHandler();
void* StencilHandler();
void* StencilReduceHandler();
void* WalkHandler();
void* ScanChainHandler();

// This machine's caches, and as many threads as told.
Machine MachineWith(int threads);

// What one of `devices` of this process has of it, when all make the same call at once. XLA's pool has a thread for each device,
// however few the cores.
inline Machine ShareOf(const ffi::ThreadPool& pool, int64_t devices) {
  static const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t threads = std::min<int64_t>(cores, pool.num_threads()) / std::max<int64_t>(1, devices);
  return MachineWith(static_cast<int>(std::max<int64_t>(1, threads)));
}

// Asks compile_text of jaxprims.targets.cpu.compiler for a variant of a spec (-1: for its entry in the table alone): the way of
// an executable that came from another process, whose lowering compiled nothing here. Throws what Python raises.
void CompileOnDemand(std::string_view spec, int variant);

// XLA's own pool, for WorkAssist.
struct XlaPool {
  ffi::ThreadPool& pool;
  template <class F>
  void Schedule(F&& f) {
    pool.Schedule(std::forward<F>(f));
  }
};

// XLA's handler that calls a function of XLA's pool, operands, results and attributes.
template <auto kFunction, class Attributes>
void* HandlerFor() {
  XLA_FFI_DEFINE_HANDLER(handler, kFunction,
                         ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().Attrs<Attributes>());
  return reinterpret_cast<void*>(handler);
}

// run(), and what it throws as an error.
template <class F>
ffi::Error Guarded(F run) {
  try {
    run();
    return ffi::Error::Success();
  } catch (const std::exception& e) {
    return Failed(e);
  }
}

// A spec's entry in the table, entered on demand. Throws what Python raises, std::invalid_argument for what is no spec.
template <class Entry>
Entry& FindEntry(std::string_view spec, int64_t key) {
  auto& table = KernelTable<Entry>::Instance();
  thread_local std::array<Entry*, 64> seen{};  // no entry is ever removed, and the table's lock takes as long as a small kernel
  Entry*& place = seen[static_cast<uint64_t>(key) % seen.size()];
  Entry* entry = place != nullptr && place->key == key ? place : table.Find(key);
  if (entry == nullptr) {
    CompileOnDemand(spec, -1);
    entry = table.Find(key);
  }
  place = entry;
  if (entry == nullptr || entry->spec != spec) throw std::invalid_argument("the key is not the spec's, or another one's, too");
  return *entry;
}

// Of the ordered family: each of its kinds has a handler of its own.
inline OrderedEntry& FindOrdered(std::string_view spec, int64_t key, std::string_view kind) {
  auto& entry = FindEntry<OrderedEntry>(spec, key);
  if (entry.shape.kind != kind) throw std::invalid_argument("a spec of another kind than the call's");
  return entry;
}

// A variant's functions, compiled on demand. Throws what Python raises.
template <class Entry>
const auto& KernelOf(const Entry& entry, int variant) {
  const auto& slot = entry.variants.at(static_cast<size_t>(variant));
  const auto* kernel = slot.load(std::memory_order_acquire);
  if (kernel == nullptr) {
    CompileOnDemand(entry.spec, variant);
    kernel = slot.load(std::memory_order_acquire);
  }
  if (kernel == nullptr) throw std::runtime_error("a kernel is missing");
  return *kernel;
}

}  // namespace jaxprims
