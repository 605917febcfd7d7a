// The FFI handlers of reductions and segmented reductions.

#include <exception>
#include <string_view>

#include "handlers.h"
#include "reduce.h"
#include "segments.h"

namespace jaxprims {
namespace {

// Operands: arrays (without positions), uniforms, init's leaves. plan: empty.
ffi::Error Reduce(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view spec, int64_t key,
                  int64_t batch_rank, int64_t inner_rank, ffi::Span<const int64_t> masks, int64_t init,
                  ffi::Span<const int64_t> forced) {
  const OrderedAttributes attributes{spec, key, batch_rank, inner_rank, masks, init, forced};
  try {
    const auto& entry = FindOrdered(spec, key, "reduce");
    const OrderedShape& shape = entry.shape;
    OrderedCall call;
    Segments segments;
    if (ffi::Error e = CheckPlan(forced, 0, 0); e.failure()) return e;
    if (ffi::Error e = ReadOrderedCall(args, rets, attributes, shape, 0, call, segments); e.failure()) return e;
    if (call.empty) return ffi::Error::Success();
    const ReduceProblem problem = DescribeReduce(shape, call);
    const ReducePlan plan = MakeReducePlan(problem, MachineWith(static_cast<int>(pool.num_threads())));
    XlaPool assistants{pool};
    RunReduce(assistants, shape, call, KernelOf(entry, plan.variant()), plan);
  } catch (const std::exception& e) {
    return Failed(e);
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kReduce, Reduce, OrderedBinding("init"));

// Operands: arrays (without positions), segments (of s32 or s64: offsets, by 0, or sorted ids, by 1), uniforms. plan: empty.
ffi::Error SegmentReduce(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view spec,
                         int64_t key, int64_t batch_rank, int64_t inner_rank, ffi::Span<const int64_t> masks, int64_t by,
                         ffi::Span<const int64_t> forced) {
  const OrderedAttributes attributes{spec, key, batch_rank, inner_rank, masks, by, forced};
  try {
    const auto& entry = FindOrdered(spec, key, "segments");
    const OrderedShape& shape = entry.shape;
    OrderedCall call;
    Segments segments;
    if (ffi::Error e = CheckPlan(forced, 0, 0); e.failure()) return e;
    if (ffi::Error e = ReadOrderedCall(args, rets, attributes, shape, 0, call, segments); e.failure()) return e;
    if (call.empty) return ffi::Error::Success();
    const Machine machine = MachineWith(static_cast<int>(pool.num_threads()));
    const SegmentsPlan plan = MakeSegmentsPlan(DescribeSegments(shape, call, segments), machine);
    XlaPool assistants{pool};
    RunSegments(assistants, shape, call, segments, KernelOf(entry, 0), plan);
  } catch (const std::exception& e) {
    return Failed(e);
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kSegments, SegmentReduce, OrderedBinding("by"));

}  // namespace

void* ReduceHandler() { return reinterpret_cast<void*>(kReduce); }
void* SegmentsHandler() { return reinterpret_cast<void*>(kSegments); }

}  // namespace jaxprims
