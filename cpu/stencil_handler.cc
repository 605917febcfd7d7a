// The stencil's FFI handler.

#include <string_view>
#include <unordered_map>

#include "handlers.h"
#include "stencil.h"
#include "stencil_plan.h"
#include "stencil_reader.h"

namespace jaxprims {
namespace {

// A plan takes longer to make than a small grid: it is kept for calls of the same sizes.
const StencilPlan& Planned(const StencilEntry& entry, const StencilProblem& problem, const Machine& machine) {
  struct Last {
    StencilProblem problem;
    Machine machine;
    StencilPlan plan;
  };
  thread_local std::unordered_map<const StencilEntry*, Last> last;
  Last& own = last[&entry];
  if (own.problem != problem || own.machine != machine) own = {problem, machine, MakeStencilPlan(problem, machine)};
  return own.plan;
}

ffi::Error Stencil(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, const StencilAttributes& attributes) {
  return Guarded([&] {
    const auto& entry = FindEntry<StencilEntry>(attributes.spec, attributes.key);
    StencilCall call;
    if (ffi::Error e = CheckPlan(attributes.plan, 5, 5); e.failure()) return e;
    if (ffi::Error e = ReadStencilCall(args, rets, attributes, entry.shape, 0, call); e.failure()) return e;
    if (call.empty) return ffi::Error::Success();
    const StencilGrid grid(entry.shape, call);
    const StencilProblem problem = grid.Problem();
    const Machine machine = ShareOf(pool, attributes.devices);
    const auto forced = SpanOf(attributes.plan);
    const StencilPlan plan = forced.empty() ? Planned(entry, problem, machine) : PlanOf(problem, machine, forced);
    XlaPool assistants{pool};
    RunStencil(assistants, entry.shape, call, grid, problem, KernelOf(entry, 0), plan);
    return ffi::Error::Success();
  });
}

XLA_FFI_DEFINE_HANDLER(kStencil, Stencil, Bound<StencilAttributes>());

}  // namespace

void* StencilHandler() { return reinterpret_cast<void*>(kStencil); }

}  // namespace jaxprims
