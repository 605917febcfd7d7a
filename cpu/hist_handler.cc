// The FFI handlers of histograms and of the counting sort by index.

#include <algorithm>
#include <limits>
#include <string_view>

#include "group.h"
#include "handlers.h"
#include "hist.h"
#include "hist_plan.h"

namespace jaxprims {
namespace {

ffi::Error Hist(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, const HistAttributes& attributes) {
  return Guarded([&] {
    const auto& entry = FindEntry<HistEntry>(attributes.spec, attributes.key);
    const HistShape& shape = entry.shape;
    HistCall call;
    CheckPlan(attributes.plan, 5, 5);
    ReadHistCall(args, rets, attributes, shape, 0, call);
    if (call.empty) return;
    HistProblem problem = DescribeHist(shape, call);
    problem.sorted = call.sorted_array >= 0;
    const Machine machine = ShareOf(pool, attributes.devices);
    const HistPlan plan = PlanOf(problem, machine, SpanOf(attributes.plan));
    XlaPool assistants{pool};
    RunHist(assistants, shape, call, KernelOf(entry, plan.variant()), plan);
  });
}

// Operand: indices [*batch, N] of s32 or s64. Results: order [*batch, N] and offsets [*batch, H + 1], both s32 or both s64.
ffi::Error Group(ffi::ThreadPool pool, ffi::AnyBuffer indices, ffi::Result<ffi::AnyBuffer> order,
                 ffi::Result<ffi::AnyBuffer> offsets, int64_t devices) {
  return Guarded([&] {
    const Dims rows = DimsOf(indices), ends = DimsOf(*offsets), places = DimsOf(*order);
    if (rows.empty() || ends.size() != rows.size() || !std::ranges::equal(rows, places) || ends.back() < 1 ||
        !std::ranges::equal(rows.first(rows.size() - 1), ends.first(rows.size() - 1))) {
      throw Wrong("group_by_index wants indices [*batch, N], order [*batch, N] and offsets [*batch, bins + 1]");
    }
    const int64_t n = rows.back(), bins = ends.back() - 1, batch = Product(rows.first(rows.size() - 1));
    const bool wide_index = indices.element_type() == ffi::DataType::S64, wide = order->element_type() == ffi::DataType::S64;
    if ((!wide_index && indices.element_type() != ffi::DataType::S32) || (!wide && order->element_type() != ffi::DataType::S32) ||
        order->element_type() != offsets->element_type()) {
      throw Wrong("group_by_index wants s32 or s64");
    }
    if (batch <= 0) return;
    if (!wide && std::max(n, bins) > std::numeric_limits<int32_t>::max())
      throw Wrong("positions of s32 do not tell so many apart");
    const int threads = ShareOf(pool, devices).threads;
    XlaPool assistants{pool};
    auto run = [&](auto index, auto position) {
      using Index = decltype(index);
      using Position = decltype(position);
      const auto* in = static_cast<const Index*>(indices.untyped_data());
      auto* out = static_cast<Position*>(order->untyped_data());
      auto* starts = static_cast<Position*>(offsets->untyped_data());
      for (int64_t b = 0; b < batch; ++b)
        GroupByIndex(assistants, threads, in + b * n, n, bins, out + b * n, starts + b * (bins + 1));
    };
    if (wide_index) {
      wide ? run(int64_t{}, int64_t{}) : run(int64_t{}, int32_t{});
    } else {
      wide ? run(int32_t{}, int64_t{}) : run(int32_t{}, int32_t{});
    }
  });
}

XLA_FFI_DEFINE_HANDLER(
    kGroup, Group,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<int64_t>(
        "devices"));

}  // namespace

void* HistHandler() { return HandlerFor<Hist, HistAttributes>(); }
void* GroupHandler() { return reinterpret_cast<void*>(kGroup); }

}  // namespace jaxprims
