// Batch axes as kernels know them, at most kMaxAxes: those that lie alike are joined, and what remains beyond is a loop.
#pragma once

#include <cstdint>
#include <vector>

#include "hist_call.h"
#include "launch.h"
#include "operand.h"
#include "ordered_call.h"
#include "stencil_call.h"

namespace jaxprims::cuda {

template <class F>
void ForEachOperand(OrderedCall& call, F f) {
  for (Operand& operand : call.arrays) f(operand);
  for (Operand& operand : call.uniforms) f(operand);
  for (OrderedInit& init : call.init) f(init.operand);
  for (Operand& operand : call.outs) f(operand);
  f(call.flags);
}

template <class F>
void ForEachOperand(HistCall& call, F f) {
  for (auto* operands : {&call.arrays, &call.uniforms, &call.dests, &call.outs}) {
    for (Operand& operand : *operands) f(operand);
  }
}

template <class F>
void ForEachOperand(StencilCall& call, F f) {
  for (auto* operands : {&call.arrays, &call.uniforms, &call.outs}) {
    for (Operand& operand : *operands) f(operand);
  }
}

// Drops axes of size 1; makes one of two neighbours where in every operand the outer one's stride is the whole inner axis.
template <class Call>
void JoinAxes(Call& call) {
  std::vector<int64_t> sizes;  // in place: never more axes than before, and an axis moves only outwards
  for (size_t axis = 0; axis < call.batch.size(); ++axis) {
    const int64_t size = call.batch[axis];
    if (size == 1) continue;
    bool joins = !sizes.empty();
    ForEachOperand(call, [&](Operand& o) { joins = joins && o.strides[sizes.size() - 1] == size * o.strides[axis]; });
    if (joins) {
      sizes.back() *= size;
    } else {
      sizes.push_back(size);
    }
    ForEachOperand(call, [&](Operand& o) { o.strides[sizes.size() - 1] = o.strides[axis]; });
  }
  ForEachOperand(call, [&](Operand& o) {
    for (size_t axis = sizes.size(); axis < call.batch.size(); ++axis) o.strides[axis] = 0;
  });
  call.batch.assign(sizes.begin(), sizes.end());
}

// f(call) with axes joined; or, with more than kMaxAxes of them left, f of one piece after the other. Of an empty batch: nothing.
template <class Call, class F>
void InPieces(Call call, F f) {
  for (const int64_t size : call.batch) {
    if (size == 0) return;
  }
  JoinAxes(call);
  if (call.batch.size() <= kMaxAxes) return f(call);
  const size_t outer = call.batch.size() - kMaxAxes;
  const std::vector<int64_t> sizes(call.batch.begin(), call.batch.begin() + static_cast<std::ptrdiff_t>(outer));
  int64_t pieces = 1;
  for (const int64_t size : sizes) pieces *= size;
  BatchIndex index(sizes);
  for (int64_t k = 0; k < pieces; ++k) {
    index.Select(k);
    Call piece = call;
    piece.batch.erase(piece.batch.begin(), piece.batch.begin() + static_cast<std::ptrdiff_t>(outer));
    ForEachOperand(piece, [&](Operand& o) {
      if (o.data != nullptr) o.data = index.Place(o);
      for (size_t axis = 0; axis < kMaxBatchRank; ++axis) {
        o.strides[axis] = axis < kMaxAxes ? o.strides[axis + outer] : 0;
      }
    });
    f(piece);
  }
}

}  // namespace jaxprims::cuda
