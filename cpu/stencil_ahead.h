// What later rows of a stencil want of memory is asked for while others are made: in a pass of several steps, or of a kernel in
// several stages, most of these read and write what is in the caches, and memory would wait meanwhile.
#pragma once

#include <algorithm>
#include <cstdint>

namespace jaxprims {

// For each array and then each result's leaf: where the first row's begin, bytes from there to the next row's, and bytes for each
// lane that is made, times 65536 (jaxprims/targets/cpu/stencil/ahead.py).
inline constexpr size_t kAheadNumbers = 3;
inline constexpr int kAheadShare = 16;

struct StencilPart {  // of what is asked for: what step `step` of `steps` asks for with `lanes` lanes
  int64_t step, steps, lanes;
};

// A row of `bytes` bytes at `where`, and those after it; null: nothing.
inline void AskFor(const char* where, int64_t row_step, int64_t bytes, const StencilPart& part, int64_t* ahead) {
  const int64_t begin = bytes * part.step / part.steps, end = bytes * (part.step + 1) / part.steps;
  ahead[0] = static_cast<int64_t>(reinterpret_cast<intptr_t>(where)) + begin;
  ahead[1] = row_step;
  ahead[2] = where == nullptr ? 0 : ((end - begin) << kAheadShare) / std::max<int64_t>(part.lanes, 1);
}

}  // namespace jaxprims
