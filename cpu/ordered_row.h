// A row of a call of the ordered family, for its kernels.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "numbers.h"
#include "operand.h"
#include "ordered_call.h"
#include "ordered_kernel.h"
#include "workspace.h"

namespace jaxprims {

inline int64_t StateBytes(const OrderedShape& shape, int64_t lanes) {
  return StateBytes(static_cast<int64_t>(shape.slot_bytes.size()), lanes);
}

// A worker for each thread, made where it lies: the lists of a copy would lie on the heap.
template <class Worker, class... Args>
std::vector<Worker> WorkersOf(int threads, const Args&... args) {
  std::vector<Worker> workers;
  workers.reserve(static_cast<size_t>(threads));
  for (int w = 0; w < threads; ++w) workers.emplace_back(args...);
  return workers;
}

// Huge pages behind results of so many elements.
inline void ExpectLargeResults(const OrderedShape& shape, const OrderedCall& call, int64_t elements) {
  for (size_t leaf = 0; leaf < call.outs.size(); ++leaf) {
    ExpectLarge(call.outs[leaf].data, static_cast<size_t>(elements * shape.leaf_bytes[leaf]));
  }
}

// Pointers of one row of a call (across: of one bundle of rows).
class OrderedRow {
 public:
  explicit OrderedRow(const OrderedCall& call)
      : call_(&call),
        index_(call.batch),
        arrays_(call.arrays.size(), arena_.get()),
        uniforms_(call.uniforms.size(), arena_.get()),
        init_(call.init.size(), arena_.get()),
        outs_(call.outs.size(), arena_.get()) {}

  void Select(int64_t row) {
    index_.Select(row);
    Place();
  }

  void Next() {
    if (!index_.Next()) return Place();
    ForEach([&](const Operand& operand, char*& p) { p += index_.Stride(operand); });
  }

  const void* const* arrays() const { return reinterpret_cast<const void* const*>(arrays_.data()); }
  const void* const* uniforms() const { return reinterpret_cast<const void* const*>(uniforms_.data()); }
  const uint8_t* flags() const { return reinterpret_cast<const uint8_t*>(flags_); }
  char* const* outs() const { return outs_.data(); }

  // The row's init as the state of lanes [lane_lo, lane_hi); false if it has none.
  bool Init(const OrderedShape& shape, int64_t lane_lo, int64_t lane_hi, char* state) const {
    if (!shape.parts.empty() && !init_.empty()) {
      for (int64_t l = lane_lo; l < lane_hi; ++l) {
        for (size_t leaf = 0; leaf < init_.size(); ++leaf) {
          const int64_t bytes = shape.parts[leaf].second;
          std::memcpy(state, init_[leaf] + l * bytes, static_cast<size_t>(bytes));
          state += RoundUp(bytes, 64);
        }
      }
      return true;
    }
    size_t slot = 0;
    for (size_t leaf = 0; leaf < init_.size(); ++leaf) {
      const int64_t slots = call_->init[leaf].slots;
      for (int64_t s = 0; s < slots; ++s, ++slot) {
        const int64_t bytes = shape.slot_bytes[slot];
        char* to = state + 8 * static_cast<int64_t>(slot) * (lane_hi - lane_lo);
        const char* from = init_[leaf] + s * bytes;
        if (slots == 1) {
          std::memcpy(to, from + lane_lo * bytes, static_cast<size_t>((lane_hi - lane_lo) * bytes));
          continue;
        }
        for (int64_t l = lane_lo; l < lane_hi; ++l, to += bytes) {
          std::memcpy(to, from + l * slots * bytes, static_cast<size_t>(bytes));
        }
      }
    }
    return !init_.empty();
  }

 private:
  void Place() {
    ForEach([&](const Operand& operand, char*& p) { p = index_.Place(operand); });
  }

  template <class F>
  void ForEach(F f) {
    for (size_t i = 0; i < arrays_.size(); ++i) f(call_->arrays[i], arrays_[i]);
    for (size_t i = 0; i < uniforms_.size(); ++i) f(call_->uniforms[i], uniforms_[i]);
    for (size_t i = 0; i < init_.size(); ++i) f(call_->init[i].operand, init_[i]);
    for (size_t i = 0; i < outs_.size(); ++i) f(call_->outs[i], outs_[i]);
    f(call_->flags, flags_);
  }

  const OrderedCall* call_;
  BatchIndex index_;
  Arena<256> arena_;
  List<char*> arrays_, uniforms_, init_, outs_;
  char* flags_ = nullptr;
};

}  // namespace jaxprims
