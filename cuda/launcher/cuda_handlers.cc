// The FFI handlers of the CUDA half. Operands and attributes are those of the CPU's; the last result is the workspace, of u8
// [*batch, bytes].

#include "cuda_handlers.h"

#include <exception>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "batch_axes.h"
#include "call_reader.h"
#include "families.h"
#include "held.h"
#include "stencil_reader.h"

namespace jaxprims::cuda {
namespace {

// What a call is run on. loads_only: nothing happens but that its kernels are loaded.
struct Place {
  CUstream stream;
  bool loads_only;
};

// run(shape, launcher) in the stream's context, with the kernels of the spec that the attributes name.
template <class Shape, class Attributes, class F>
ffi::Error Run(const Place& place, const Attributes& attributes, F run) {
  try {
    const Driver& driver = OpenDriver();
    const StreamContext context(driver, place.stream);
    auto& loaded = LibraryTable<Shape>::Instance().Find(driver, attributes.key, attributes.spec, context.device(),
                                                        SpecCompiler<Shape>{attributes.key});
    Launcher launcher(loaded.library, place.stream, place.loads_only);
    run(loaded.shape, launcher);
    return ffi::Error::Success();
  } catch (const Wrong& e) {  // a call whose operands cannot be read says so when it runs
    return place.loads_only ? ffi::Error::Success() : Failed(e);
  } catch (const std::exception& e) {
    return Failed(e);
  }
}

struct Memory {
  char* data = nullptr;
  int64_t bytes = 0;
};

Memory WorkspaceOf(const ffi::RemainingRets& rets) {
  if (rets.size() == 0) throw Wrong("a call has no workspace");
  const auto last = BufferOf(rets, rets.size() - 1);
  return {static_cast<char*>(last.untyped_data()), static_cast<int64_t>(last.size_bytes())};
}

ffi::Error RunCall(const Place& place, const ffi::RemainingArgs& args, const ffi::RemainingRets& rets,
                   const OrderedAttributes& attributes) {
  return Run<CudaOrderedShape>(place, attributes, [&](const CudaOrderedShape& shape, Launcher& launcher) {
    const bool is_segments = shape.kind == "segments";
    OrderedCall call;
    Segments segments;
    CheckPlan(attributes.plan, 1, shape.kind == "scan" ? 3 : 2);
    ReadOrderedCall(args, rets, attributes, shape, 1, call, segments);
    const Memory workspace = WorkspaceOf(rets);
    if (call.empty) return;
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
  });
}

ffi::Error RunCall(const Place& place, const ffi::RemainingArgs& args, const ffi::RemainingRets& rets,
                   const HistAttributes& attributes) {
  return Run<CudaHistShape>(place, attributes, [&](const CudaHistShape& shape, Launcher& launcher) {
    HistCall call;
    CheckPlan(attributes.plan, 1, 6);
    ReadHistCall(args, rets, attributes, shape.shape, 1, call);
    const Memory workspace = WorkspaceOf(rets);
    if (call.empty) return;
    InPieces(call, [&](const HistCall& piece) {
      LaunchHist(launcher, shape, piece, workspace.data, workspace.bytes, SpanOf(attributes.plan));
    });
  });
}

ffi::Error RunCall(const Place& place, const ffi::RemainingArgs& args, const ffi::RemainingRets& rets,
                   const StencilAttributes& attributes) {
  return Run<CudaStencilShape>(place, attributes, [&](const CudaStencilShape& shape, Launcher& launcher) {
    StencilCall call;
    CheckPlan(attributes.plan, 4, 4);
    ReadStencilCall(args, rets, attributes, shape, 1, call);
    const Memory workspace = WorkspaceOf(rets);
    if (call.empty) return;
    InPieces(call, [&](const StencilCall& piece) {
      LaunchStencil(launcher, shape, piece, workspace.data, workspace.bytes, SpanOf(attributes.plan));
    });
  });
}

// On XLA's stream; kLoads: at the initialize stage, where nothing happens but that the kernels of the call are loaded.
template <bool kLoads, class Attributes>
ffi::Error OnStream(CUstream stream, ffi::RemainingArgs args, ffi::RemainingRets rets, const Attributes& attributes) {
  return RunCall({stream, kLoads}, args, rets, attributes);
}

template <class Attributes>
ffi::Error OnHost(ffi::RemainingArgs args, ffi::RemainingRets rets, const Attributes& attributes) {
  return RunCall({nullptr, false}, args, rets, attributes);
}

template <class Attributes>
auto Bound(auto binding) {
  return std::move(binding).RemainingArgs().RemainingRets().template Attrs<Attributes>();
}

template <class Attributes>
Handlers HandlersOf() {
  using Stream = ffi::PlatformStream<CUstream>;
  XLA_FFI_DEFINE_HANDLER(execute, (OnStream<false, Attributes>), Bound<Attributes>(ffi::Ffi::Bind().Ctx<Stream>()),
                         {ffi::Traits::kCmdBufferCompatible});
  XLA_FFI_DEFINE_HANDLER(load, (OnStream<true, Attributes>), Bound<Attributes>(ffi::Ffi::BindInitialize().Ctx<Stream>()));
  XLA_FFI_DEFINE_HANDLER(on_host, OnHost<Attributes>, Bound<Attributes>(ffi::Ffi::Bind()));
  auto address = [](XLA_FFI_Handler* handler) { return reinterpret_cast<void*>(handler); };
  return {address(load), address(execute), address(on_host)};
}

ffi::Error HeldOnStream(CUstream stream, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> same) {
  return Held(x, same, [&](void* to, void* from, size_t bytes) {
    const Driver& driver = OpenDriver();
    const StreamContext context(driver, stream);
    driver.Check(driver.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes, stream),
                 "cuMemcpyAsync");
  });
}

// There are no kernels to load.
Handlers HandlersOfHeld() {
  using Stream = ffi::PlatformStream<CUstream>;
  XLA_FFI_DEFINE_HANDLER(execute, HeldOnStream, ffi::Ffi::Bind().Ctx<Stream>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>(),
                         {ffi::Traits::kCmdBufferCompatible});
  XLA_FFI_DEFINE_HANDLER(load, [] { return ffi::Error::Success(); }, ffi::Ffi::BindInitialize());
  XLA_FFI_DEFINE_HANDLER(
      on_host, [](ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> same) { return HeldOnStream(nullptr, x, same); },
      ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());
  auto address = [](XLA_FFI_Handler* handler) { return reinterpret_cast<void*>(handler); };
  return {address(load), address(execute), address(on_host)};
}

}  // namespace

Handlers HandlersOf(std::string_view family) {
  if (family == "histogram") return HandlersOf<HistAttributes>();
  if (family == "scan" || family == "reduce") return HandlersOf<OrderedAttributes>();
  if (family == "segments") return HandlersOf<SegmentsAttributes>();
  if (family == "stencil") return HandlersOf<StencilAttributes>();
  if (family == "held") return HandlersOfHeld();
  throw std::invalid_argument("there are no handlers of this family");
}

}  // namespace jaxprims::cuda
