// What the CPU's FFI handlers share: XLA's pool, compile on demand.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>

#include "call_reader.h"
#include "hist_plan.h"
#include "kernel_table.h"
#include "xla/ffi/api/ffi.h"

namespace jaxprims {

// The handlers of the ordered family, for capsules.
void* ScanHandler();
void* ReduceHandler();
void* SegmentsHandler();

// This machine's caches, and as many threads as told.
Machine MachineWith(int threads);

// Asks `function` of jaxprims.targets.cpu.compiler for a variant of a spec (-1: for its entry in the table alone): the way of an
// executable that came from another process, whose lowering compiled nothing here. Throws what Python raises.
void CompileOnDemand(const char* function, std::string_view spec, int variant);

// XLA's own pool, for WorkAssist.
struct XlaPool {
  ffi::ThreadPool& pool;
  template <class F>
  void Schedule(F&& f) {
    pool.Schedule(std::forward<F>(f));
  }
};

// The binding of a handler of the ordered family: ffi::ThreadPool, then what BindScan says.
inline auto ScanBinding(const char* flag) { return BindScan(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>(), flag); }

// The function of jaxprims.targets.cpu.compiler that makes a table's kernels.
template <class Entry>
inline constexpr const char* kCompiler = std::is_same_v<Entry, HistEntry> ? "compile_hist" : "compile_scan";

// A spec's entry in the table, entered on demand. Throws what Python raises.
template <class Entry>
Entry& FindEntry(std::string_view spec, int64_t key) {
  auto& table = KernelTable<Entry>::Instance();
  Entry* entry = table.Find(key);
  if (entry == nullptr) {
    CompileOnDemand(kCompiler<Entry>, spec, -1);
    entry = table.Find(key);
  }
  if (entry == nullptr || entry->spec != spec) throw std::runtime_error("two specs have the same hash");
  return *entry;
}

// A variant's functions, compiled on demand. Throws what Python raises.
template <class Entry>
const auto& KernelOf(const Entry& entry, int variant) {
  const auto& slot = entry.variants.at(static_cast<size_t>(variant));
  const auto* kernel = slot.load(std::memory_order_acquire);
  if (kernel == nullptr) {
    CompileOnDemand(kCompiler<Entry>, entry.spec, variant);
    kernel = slot.load(std::memory_order_acquire);
  }
  if (kernel == nullptr) throw std::runtime_error("a kernel is missing");
  return *kernel;
}

}  // namespace jaxprims
