// The scan's FFI handler.

#include <exception>
#include <string_view>

#include "handlers.h"
#include "scan.h"
#include "scan_plan.h"

namespace jaxprims {
namespace {

// Operands: arrays (without positions), flags if the spec restarts, uniforms, init's leaves. Results: leaf by leaf. plan: empty,
// or order, block, periodic, stream and threads, -1 for what is not forced.
ffi::Error Scan(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view spec, int64_t key,
                int64_t batch_rank, int64_t inner_rank, ffi::Span<const int64_t> masks, int64_t init,
                ffi::Span<const int64_t> forced) {
  const OrderedAttributes attributes{spec, key, batch_rank, inner_rank, masks, init, forced};
  try {
    const auto& entry = FindOrdered(spec, key, "scan");
    const OrderedShape& shape = entry.shape;
    OrderedCall call;
    Segments segments;
    if (ffi::Error e = CheckPlan(forced, 5, 5); e.failure()) return e;
    if (ffi::Error e = ReadOrderedCall(args, rets, attributes, shape, 0, call, segments); e.failure()) return e;
    if (call.empty) return ffi::Error::Success();
    const ScanProblem problem = DescribeScan(shape, call);
    const Machine machine = MachineWith(static_cast<int>(pool.num_threads()));
    const ScanPlan plan = PlanOf(problem, machine, {forced.begin(), forced.size()});
    XlaPool assistants{pool};
    RunScan(assistants, shape, call, KernelOf(entry, plan.variant()), plan);
  } catch (const std::exception& e) {
    return Failed(e);
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kScan, Scan, OrderedBinding("init"));

}  // namespace

void* ScanHandler() { return reinterpret_cast<void*>(kScan); }

}  // namespace jaxprims
