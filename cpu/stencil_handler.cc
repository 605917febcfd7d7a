// The stencil's FFI handler.

#include "handlers.h"
#include "stencil.h"
#include "stencil_plan.h"
#include "stencil_reader.h"

namespace jaxprims {
namespace {

ffi::Error Stencil(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, const StencilAttributes& attributes) {
  return Guarded([&] {
    const auto& entry = FindEntry<StencilEntry>(attributes.spec, attributes.key);
    StencilCall call;
    CheckPlan(attributes.plan, 5, 5);
    ReadStencilCall(args, rets, attributes, entry.shape, 0, call);
    if (call.empty) return;
    const StencilGrid grid(entry.shape, call);
    const StencilProblem problem = grid.Problem();
    const Machine machine = ShareOf(pool, attributes.devices);
    const auto forced = SpanOf(attributes.plan);
    const StencilPlan plan = forced.empty() ? KeptStencilPlan(&entry, problem, machine) : PlanOf(problem, machine, forced);
    XlaPool assistants{pool};
    RunStencil(assistants, entry.shape, call, grid, problem, KernelOf(entry, 0), plan);
  });
}

}  // namespace

void* StencilHandler() { return HandlerFor<Stencil, StencilAttributes>(); }

}  // namespace jaxprims
