// The FFI handlers of reductions and segmented reductions.

#include <string_view>

#include "handlers.h"
#include "reduce.h"
#include "segments.h"

namespace jaxprims {
namespace {

// Operands: arrays (without positions), uniforms, init's leaves. plan: empty.
ffi::Error Reduce(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, const OrderedAttributes& attributes) {
  return Guarded([&] {
    const auto& entry = FindOrdered(attributes.spec, attributes.key, "reduce");
    const OrderedShape& shape = entry.shape;
    OrderedCall call;
    Segments segments;
    if (ffi::Error e = CheckPlan(attributes.plan, 0, 0); e.failure()) return e;
    if (ffi::Error e = ReadOrderedCall(args, rets, attributes, shape, 0, call, segments); e.failure()) return e;
    if (call.empty) return ffi::Error::Success();
    const ReduceProblem problem = DescribeReduce(shape, call);
    const ReducePlan plan = MakeReducePlan(problem, ShareOf(pool, attributes.devices));
    XlaPool assistants{pool};
    RunReduce(assistants, shape, call, KernelOf(entry, plan.variant()), plan);
    return ffi::Error::Success();
  });
}

XLA_FFI_DEFINE_HANDLER(kReduce, Reduce, Bound<OrderedAttributes>());

// Operands: arrays (without positions), segments (of s32 or s64: offsets, by 0, or sorted ids, by 1), uniforms. plan: empty.
ffi::Error SegmentReduce(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                         const SegmentsAttributes& attributes) {
  return Guarded([&] {
    const auto& entry = FindOrdered(attributes.spec, attributes.key, "segments");
    const OrderedShape& shape = entry.shape;
    OrderedCall call;
    Segments segments;
    if (ffi::Error e = CheckPlan(attributes.plan, 0, 0); e.failure()) return e;
    if (ffi::Error e = ReadOrderedCall(args, rets, attributes, shape, 0, call, segments); e.failure()) return e;
    if (call.empty) return ffi::Error::Success();
    const Machine machine = ShareOf(pool, attributes.devices);
    const SegmentsPlan plan = MakeSegmentsPlan(DescribeSegments(shape, call, segments), machine);
    XlaPool assistants{pool};
    RunSegments(assistants, shape, call, segments, KernelOf(entry, 0), plan);
    return ffi::Error::Success();
  });
}

XLA_FFI_DEFINE_HANDLER(kSegments, SegmentReduce, Bound<SegmentsAttributes>());

}  // namespace

void* ReduceHandler() { return reinterpret_cast<void*>(kReduce); }
void* SegmentsHandler() { return reinterpret_cast<void*>(kSegments); }

}  // namespace jaxprims
