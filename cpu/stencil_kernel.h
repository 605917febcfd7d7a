// What a stencil's kernel and its driver agree on. The functions are made by jaxprims/targets/cpu/stencil/kernel.py.
#pragma once

#include <cstdint>

namespace jaxprims {

struct StencilKernel {
  // `n` lanes of cells side by side, at least a vector's. rows: for each of StencilShape::rows where the first cell's own place
  // is in it; outs: by leaf, where the first lane is written; at: the first cell's coordinates; stream: results go past the
  // caches, and the caller fences.
  using Row = void (*)(const void* const* rows, const void* const* uniforms, void* const* outs, const int64_t* at, int64_t n,
                       int64_t stream);
  // One lane of a cell; reads: where each of StencilShape::reads is.
  using Cell = void (*)(const void* const* reads, const void* const* uniforms, void* const* outs, const int64_t* at);
  Row row = nullptr;
  Cell cell = nullptr;
};

}  // namespace jaxprims
