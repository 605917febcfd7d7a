// What a stencil's kernel and its driver agree on. The functions are made by jaxprims/targets/cpu/stencil/kernel.py.
#pragma once

#include <cstdint>

namespace jaxprims {

struct StencilKernel {
  // `count` rows of `n` lanes of cells side by side, at least a vector's. rows: for each of StencilShape::rows where the first
  // cell's own place is in it; outs: by leaf, where the first lane is written; row_steps, out_steps: bytes from there to the next
  // row, or zeros if `listed` is 1, and rows and outs go on with the next row's; at: the first cell's coordinates, of which the
  // last but one grows from row to row; stream: results go past the caches, and the caller fences; alone: no two rows at a time;
  // ahead: what is asked of memory meanwhile (stencil_ahead.h).
  using Row = void (*)(const void* const* rows, const int64_t* row_steps, const void* const* uniforms, void* const* outs,
                       const int64_t* out_steps, const int64_t* at, int64_t n, int64_t count, int64_t listed, int64_t stream,
                       int64_t alone, const int64_t* ahead);
  // The same of one lane of a cell of each row; reads: where each of StencilShape::reads is.
  using Cell = void (*)(const void* const* reads, const int64_t* read_steps, const void* const* uniforms, void* const* outs,
                        const int64_t* out_steps, const int64_t* at, int64_t count);
  Row row = nullptr;
  Cell cell = nullptr;
};

}  // namespace jaxprims
