// The FFI handlers of the CUDA half. Operands and attributes are those of the CPU's; the last result is the workspace, of u8
// [*batch, bytes].

#include "cuda_handlers.h"

#include <exception>
#include <span>
#include <string_view>

#include "batch_axes.h"
#include "call_reader.h"
#include "families.h"
#include "stencil_reader.h"

namespace jaxprims::cuda {
namespace {

// What a call is run on. loads_only: nothing happens but that its kernels are loaded.
struct Place {
  CUstream stream;
  bool loads_only;
};

LoadedSpec<CudaHistShape>& Find(const Driver& driver, CUdevice device, const HistAttributes& a) {
  return LibraryTable<CudaHistShape>::Instance().Find(driver, a.key, a.spec, device, HistCompiler{a.key});
}

LoadedSpec<CudaOrderedShape>& Find(const Driver& driver, CUdevice device, const OrderedAttributes& a) {
  return LibraryTable<CudaOrderedShape>::Instance().Find(driver, a.key, a.spec, device, OrderedCompiler{a.key});
}

LoadedSpec<CudaStencilShape>& Find(const Driver& driver, CUdevice device, const StencilAttributes& a) {
  return LibraryTable<CudaStencilShape>::Instance().Find(driver, a.key, a.spec, device, StencilCompiler{a.key});
}

// run(shape, launcher) in the stream's context, with the kernels of the spec that the attributes name.
template <class Attributes, class F>
ffi::Error Run(const Place& place, const Attributes& attributes, F run) {
  try {
    const Driver& driver = OpenDriver();
    const StreamContext context(driver, place.stream);
    auto& loaded = Find(driver, context.device(), attributes);
    Launcher launcher(loaded.library, place.stream, place.loads_only);
    ffi::Error e = run(loaded.shape, launcher);
    // A call whose operands cannot be read says so when it runs.
    return place.loads_only ? ffi::Error::Success() : e;
  } catch (const std::exception& e) {
    return Failed(e);
  }
}

struct Memory {
  char* data = nullptr;
  int64_t bytes = 0;
};

ffi::Error ReadWorkspace(const ffi::RemainingRets& rets, Memory& workspace) {
  if (rets.size() == 0) return ffi::Error::InvalidArgument("jaxprims: a call has no workspace");
  auto last = rets.get<ffi::AnyBuffer>(rets.size() - 1);
  if (last.has_error()) return last.error();
  workspace = {static_cast<char*>((*last)->untyped_data()), static_cast<int64_t>((*last)->size_bytes())};
  return ffi::Error::Success();
}

std::span<const int64_t> SpanOf(ffi::Span<const int64_t> numbers) { return {numbers.begin(), numbers.size()}; }

ffi::Error RunOrdered(const Place& place, const ffi::RemainingArgs& args, const ffi::RemainingRets& rets,
                      const OrderedAttributes& attributes) {
  return Run(place, attributes, [&](const CudaOrderedShape& shape, Launcher& launcher) {
    const bool is_segments = shape.kind == "segments";
    OrderedCall call;
    Segments segments;
    Memory workspace;
    if (ffi::Error e = CheckPlan(attributes.plan, 1, 2); e.failure()) return e;
    if (ffi::Error e = ReadOrderedCall(args, rets, attributes, shape, 1, call, segments); e.failure()) return e;
    if (ffi::Error e = ReadWorkspace(rets, workspace); e.failure()) return e;
    if (call.empty) return ffi::Error::Success();
    const auto plan = SpanOf(attributes.plan);
    InPieces(call, [&](const OrderedCall& piece) {
      if (is_segments) {
        LaunchSegments(launcher, shape, piece, segments, workspace.data, workspace.bytes, plan);
      } else if (shape.kind == "reduce") {
        LaunchReduce(launcher, shape, piece, workspace.data, workspace.bytes, plan);
      } else {
        LaunchScan(launcher, shape, piece, workspace.data, workspace.bytes, plan);
      }
    });
    return ffi::Error::Success();
  });
}

ffi::Error RunHist(const Place& place, const ffi::RemainingArgs& args, const ffi::RemainingRets& rets,
                   const HistAttributes& attributes) {
  return Run(place, attributes, [&](const CudaHistShape& shape, Launcher& launcher) {
    HistCall call;
    Memory workspace;
    if (ffi::Error e = CheckPlan(attributes.plan, 1, 6); e.failure()) return e;
    if (ffi::Error e = ReadHistCall(args, rets, attributes, shape.shape, 1, call); e.failure()) return e;
    if (ffi::Error e = ReadWorkspace(rets, workspace); e.failure()) return e;
    if (call.empty) return ffi::Error::Success();
    InPieces(call, [&](const HistCall& piece) {
      LaunchHist(launcher, shape, piece, workspace.data, workspace.bytes, SpanOf(attributes.plan));
    });
    return ffi::Error::Success();
  });
}

ffi::Error RunStencil(const Place& place, const ffi::RemainingArgs& args, const ffi::RemainingRets& rets,
                      const StencilAttributes& attributes) {
  return Run(place, attributes, [&](const CudaStencilShape& shape, Launcher& launcher) {
    StencilCall call;
    Memory workspace;
    if (ffi::Error e = CheckPlan(attributes.plan, 4, 4); e.failure()) return e;
    if (ffi::Error e = ReadStencilCall(args, rets, attributes, shape, 1, call); e.failure()) return e;
    if (ffi::Error e = ReadWorkspace(rets, workspace); e.failure()) return e;
    if (call.empty) return ffi::Error::Success();
    InPieces(call, [&](const StencilCall& piece) {
      LaunchStencil(launcher, shape, piece, workspace.data, workspace.bytes, SpanOf(attributes.plan));
    });
    return ffi::Error::Success();
  });
}

ffi::Error Ordered(CUstream stream, ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view spec, int64_t key,
                   int64_t batch_rank, int64_t inner_rank, ffi::Span<const int64_t> masks, int64_t flag,
                   ffi::Span<const int64_t> plan) {
  return RunOrdered({stream, false}, args, rets, {spec, key, batch_rank, inner_rank, masks, flag, plan});
}

ffi::Error Hist(CUstream stream, ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view spec, int64_t key,
                int64_t batch_rank, int64_t elements_of, ffi::Span<const int64_t> masks, int64_t sorted,
                ffi::Span<const int64_t> plan) {
  return RunHist({stream, false}, args, rets, {spec, key, batch_rank, elements_of, masks, sorted, plan});
}

ffi::Error Stencil(CUstream stream, ffi::RemainingArgs args, ffi::RemainingRets rets, std::string_view spec, int64_t key,
                   int64_t batch_rank, ffi::Span<const int64_t> masks, ffi::Span<const int64_t> bounds,
                   ffi::Span<const int64_t> fills, ffi::Span<const int64_t> window, int64_t steps,
                   ffi::Span<const int64_t> plan) {
  return RunStencil({stream, false}, args, rets, {spec, key, batch_rank, masks, bounds, fills, window, steps, plan});
}

ffi::Error Initialize(CUstream stream, ffi::RemainingArgs args, ffi::RemainingRets rets, ffi::Dictionary given) {
  ffi::Error missing;
  auto get = [&](const char* name, auto& value) {
    auto found = given.get<std::decay_t<decltype(value)>>(name);
    if (found.has_value()) {
      value = *found;
    } else {
      missing = found.error();
    }
  };
  auto get_all = [&](auto& attributes) {
    get("spec", attributes.spec);
    get("key", attributes.key);
    get("batch_rank", attributes.batch_rank);
    get("masks", attributes.masks);
    get("plan", attributes.plan);
  };
  const Place place{stream, true};
  std::string_view spec;
  get("spec", spec);
  if (IsHistogram(spec)) {
    HistAttributes attributes{};
    get_all(attributes);
    get("elements_of", attributes.elements_of);
    get("sorted", attributes.sorted);
    return missing.failure() ? missing : RunHist(place, args, rets, attributes);
  }
  if (IsStencil(spec)) {
    StencilAttributes attributes{};
    get_all(attributes);
    get("bounds", attributes.bounds);
    get("fills", attributes.fills);
    get("window", attributes.window);
    get("steps", attributes.steps);
    return missing.failure() ? missing : RunStencil(place, args, rets, attributes);
  }
  OrderedAttributes attributes{};
  get_all(attributes);
  get("inner_rank", attributes.inner_rank);
  get(spec.starts_with("segments ") ? "by" : "init", attributes.flag);
  return missing.failure() ? missing : RunOrdered(place, args, rets, attributes);
}

auto OnStream() { return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<CUstream>>(); }
auto OnHost() { return ffi::Ffi::Bind(); }

constexpr auto kOrderedStreamLess = [](auto... arguments) { return Ordered(nullptr, arguments...); };
constexpr auto kHistStreamLess = [](auto... arguments) { return Hist(nullptr, arguments...); };
constexpr auto kStencilStreamLess = [](auto... arguments) { return Stencil(nullptr, arguments...); };
constexpr auto kInitializeStreamLess = [](auto... arguments) { return Initialize(nullptr, arguments...); };

// Scans and reductions; segments.
XLA_FFI_DEFINE_HANDLER(kOrdered, Ordered, BindOrdered(OnStream(), "init"), {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kOrderedOnHost, kOrderedStreamLess, BindOrdered(OnHost(), "init"));
XLA_FFI_DEFINE_HANDLER(kSegments, Ordered, BindOrdered(OnStream(), "by"), {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kSegmentsOnHost, kOrderedStreamLess, BindOrdered(OnHost(), "by"));
XLA_FFI_DEFINE_HANDLER(kHist, Hist, BindHist(OnStream()), {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kHistOnHost, kHistStreamLess, BindHist(OnHost()));
XLA_FFI_DEFINE_HANDLER(kStencil, Stencil, BindStencil(OnStream()), {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kStencilOnHost, kStencilStreamLess, BindStencil(OnHost()));
XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize,
                       ffi::Ffi::BindInitialize().Ctx<ffi::PlatformStream<CUstream>>().RemainingArgs().RemainingRets().Attrs());
// The CPU client has no such stage: as what it executes.
XLA_FFI_DEFINE_HANDLER(kInitializeOnHost, kInitializeStreamLess, OnHost().RemainingArgs().RemainingRets().Attrs());

void* Address(XLA_FFI_Handler* handler) { return reinterpret_cast<void*>(handler); }

}  // namespace

void* ScanHandler(bool host) { return Address(host ? kOrderedOnHost : kOrdered); }
void* ReduceHandler(bool host) { return ScanHandler(host); }
void* SegmentsHandler(bool host) { return Address(host ? kSegmentsOnHost : kSegments); }
void* HistHandler(bool host) { return Address(host ? kHistOnHost : kHist); }
void* StencilHandler(bool host) { return Address(host ? kStencilOnHost : kStencil); }
void* Initializer(bool host) { return Address(host ? kInitializeOnHost : kInitialize); }

}  // namespace jaxprims::cuda
