// The words of `Call`, the parameter of the ordered family's kernels (ordered.cuh).
#pragma once

#include <cstdint>
#include <vector>

#include "launch.h"
#include "shapes.h"

namespace jaxprims::cuda {

inline void PutCall(Words& words, const CudaOrderedShape& shape, const OrderedCall& call) {
  // Slot by slot, as kernels know no leaves: where lane 0's lies, and the bytes from one lane to the next.
  std::vector<Operand> init(shape.slot_bytes.size());
  std::vector<int64_t> lane(shape.slot_bytes.size());
  size_t slot = 0;
  for (const OrderedInit& leaf : call.init) {
    for (int64_t s = 0; s < leaf.slots; ++s, ++slot) {
      const int64_t bytes = shape.slot_bytes[slot];
      init[slot] = leaf.operand;
      init[slot].data += s * bytes;
      lane[slot] = leaf.slots * bytes;
    }
  }
  words.PutBatch(call.batch);
  words.Int(call.n);
  words.Int(call.lanes);
  words.Int(call.init.empty() ? 0 : 1);
  words.PutList(call.arrays);
  words.Put(call.flags);
  words.PutList(call.uniforms);
  words.PutList(call.outs);
  words.PutList(init);
  for (const int64_t bytes : lane) words.Int(bytes);
}

}  // namespace jaxprims::cuda
