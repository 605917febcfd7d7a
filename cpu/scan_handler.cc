// The scan's FFI handler.

#include <string_view>

#include "handlers.h"
#include "scan.h"
#include "scan_plan.h"

namespace jaxprims {
namespace {

// Operands: arrays (without positions), flags if the spec restarts, uniforms, init's leaves. Results: leaf by leaf. plan: empty,
// or order, block, periodic, stream and threads, -1 for what is not forced.
ffi::Error Scan(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, const OrderedAttributes& attributes) {
  return Guarded([&] {
    const auto& entry = FindOrdered(attributes.spec, attributes.key, "scan");
    const OrderedShape& shape = entry.shape;
    OrderedCall call;
    Segments segments;
    if (ffi::Error e = CheckPlan(attributes.plan, 5, 5); e.failure()) return e;
    if (ffi::Error e = ReadOrderedCall(args, rets, attributes, shape, 0, call, segments); e.failure()) return e;
    if (call.empty) return ffi::Error::Success();
    const ScanProblem problem = DescribeScan(shape, call);
    const Machine machine = ShareOf(pool, attributes.devices);
    const ScanPlan plan = PlanOf(problem, machine, SpanOf(attributes.plan));
    XlaPool assistants{pool};
    RunScan(assistants, shape, call, KernelOf(entry, plan.variant()), problem, plan);
    return ffi::Error::Success();
  });
}

XLA_FFI_DEFINE_HANDLER(kScan, Scan, Bound<OrderedAttributes>());

}  // namespace

void* ScanHandler() { return reinterpret_cast<void*>(kScan); }

}  // namespace jaxprims
