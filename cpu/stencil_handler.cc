// The stencil's FFI handler.

#include <exception>
#include <string_view>

#include "handlers.h"
#include "stencil.h"
#include "stencil_plan.h"
#include "stencil_reader.h"

namespace jaxprims {
namespace {

ffi::Error Stencil(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view spec, int64_t key,
                   int64_t batch_rank, ffi::Span<const int64_t> masks, ffi::Span<const int64_t> bounds,
                   ffi::Span<const int64_t> fills, ffi::Span<const int64_t> window, int64_t steps,
                   ffi::Span<const int64_t> forced) {
  const StencilAttributes attributes{spec, key, batch_rank, masks, bounds, fills, window, steps, forced};
  try {
    const auto& entry = FindEntry<StencilEntry>(spec, key);
    StencilCall call;
    if (ffi::Error e = CheckPlan(forced, 5, 5); e.failure()) return e;
    if (ffi::Error e = ReadStencilCall(args, rets, attributes, entry.shape, 0, call); e.failure()) return e;
    if (call.empty) return ffi::Error::Success();
    const StencilGrid grid(entry.shape, call);
    const StencilProblem problem = grid.Problem();
    const Machine machine = MachineWith(static_cast<int>(pool.num_threads()));
    const StencilPlan plan = PlanOf(problem, machine, {forced.begin(), forced.size()});
    XlaPool assistants{pool};
    RunStencil(assistants, entry.shape, call, grid, problem, KernelOf(entry, 0), plan);
  } catch (const std::exception& e) {
    return Failed(e);
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kStencil, Stencil, BindStencil(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));

}  // namespace

void* StencilHandler() { return reinterpret_cast<void*>(kStencil); }

}  // namespace jaxprims
