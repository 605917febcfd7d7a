// The CUDA half's FFI handlers, for capsules, and what Python describes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launch.h"
#include "shapes.h"

namespace jaxprims::cuda {

// Whether a spec's text is a histogram's, or a stencil's: its first word is its kind.
inline bool IsHistogram(std::string_view spec) { return spec.starts_with("hist "); }
inline bool IsStencil(std::string_view spec) { return spec.starts_with("stencil "); }

// jaxprims.targets.cuda.compiler, by a spec's text. The functions take the GIL and throw what Python raises, and
// std::invalid_argument for what is no spec, or has another key.
template <class Shape>
struct SpecCompiler {
  int64_t key;
  Shape Describe(const std::string& spec, const DeviceInfo& device) const;
  std::string Image(const std::string& spec, const DeviceInfo& device, const std::string& kernel) const;
};

// A family's handlers. initialize: the stage that loads the kernels that a call will launch. on_host: for XLA's CPU client, which
// has no streams; device 0's memory is the host's.
struct Handlers {
  void *initialize, *execute, *on_host;
};
Handlers HandlersOf(std::string_view family);

}  // namespace jaxprims::cuda
