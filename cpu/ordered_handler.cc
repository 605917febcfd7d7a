// The FFI handlers of scans, reductions and segmented reductions.

#include <string_view>

#include "handlers.h"
#include "reduce.h"
#include "scan.h"
#include "scan_plan.h"
#include "segments.h"

namespace jaxprims {
namespace {

// run(entry, call, segments, machine, assistants), where there is something to do. plan: empty, or so many numbers.
template <class Attributes, class Run>
ffi::Error Ordered(ffi::ThreadPool pool, const ffi::RemainingArgs& args, const ffi::RemainingRets& rets,
                   const Attributes& attributes, std::string_view kind, size_t plan, Run run) {
  return Guarded([&] {
    const auto& entry = FindOrdered(attributes.spec, attributes.key, kind);
    OrderedCall call;
    Segments segments;
    CheckPlan(attributes.plan, plan, plan);
    ReadOrderedCall(args, rets, attributes, entry.shape, 0, call, segments);
    if (call.empty) return;
    XlaPool assistants{pool};
    run(entry, call, segments, ShareOf(pool, attributes.devices), assistants);
  });
}

// Operands: arrays (without positions), flags if the spec restarts, uniforms, init's leaves. Results: leaf by leaf. plan: empty,
// or order, block, periodic, stream and threads, -1 for what is not forced.
ffi::Error Scan(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, const OrderedAttributes& attributes) {
  return Ordered(pool, args, rets, attributes, "scan", 5,
                 [&](const auto& entry, const auto& call, const auto& /*segments*/, const Machine& machine, XlaPool& assistants) {
                   const ScanProblem problem = DescribeScan(entry.shape, call);
                   const ScanPlan plan = PlanOf(problem, machine, SpanOf(attributes.plan));
                   RunScan(assistants, entry.shape, call, KernelOf(entry, plan.variant()), problem, plan);
                 });
}

// Operands: arrays (without positions), uniforms, init's leaves. plan: empty.
ffi::Error Reduce(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, const OrderedAttributes& attributes) {
  return Ordered(pool, args, rets, attributes, "reduce", 0,
                 [&](const auto& entry, const auto& call, const auto& /*segments*/, const Machine& machine, XlaPool& assistants) {
                   const ReducePlan plan = MakeReducePlan(DescribeReduce(entry.shape, call), machine);
                   RunReduce(assistants, entry.shape, call, KernelOf(entry, plan.variant()), plan);
                 });
}

// Operands: arrays (without positions), segments (of s32 or s64: offsets, by 0, or sorted ids, by 1), uniforms. plan: empty.
ffi::Error SegmentReduce(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                         const SegmentsAttributes& attributes) {
  return Ordered(pool, args, rets, attributes, "segments", 0,
                 [&](const auto& entry, const auto& call, const auto& segments, const Machine& machine, XlaPool& assistants) {
                   const SegmentsPlan plan = MakeSegmentsPlan(DescribeSegments(entry.shape, call, segments), machine);
                   RunSegments(assistants, entry.shape, call, segments, KernelOf(entry, 0), plan);
                 });
}

}  // namespace

void* ScanHandler() { return HandlerFor<Scan, OrderedAttributes>(); }
void* ReduceHandler() { return HandlerFor<Reduce, OrderedAttributes>(); }
void* SegmentsHandler() { return HandlerFor<SegmentReduce, SegmentsAttributes>(); }

}  // namespace jaxprims
