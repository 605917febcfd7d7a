// A call of the ordered family (scan, reduction, segmented reduction) as its drivers see it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "operand.h"

namespace jaxprims {

// What the drivers have to know of a spec.
struct ScanShape {
  std::string kind;                  // scan, reduce, segments
  std::vector<int64_t> array_bytes;  // by array: of one element; 0: the element's position, and so no operand
  int64_t uniforms = 0;
  std::vector<int64_t> leaf_bytes;  // of one element of the result, by leaf
  std::vector<int64_t> leaf_slots;
  std::vector<int64_t> slot_bytes;  // of the state
  bool across = false, restarts = false, exclusive = false, reverse = false, identity = false, commutes = false;

  // Of the state of `lanes` lanes; the layout is in scan_kernel.h.
  int64_t StateBytes(int64_t lanes) const { return (static_cast<int64_t>(slot_bytes.size()) * 8 * lanes + 63) / 64 * 64; }
};

// A leaf of init: [*batch, lanes, slots].
struct ScanInit {
  Operand operand;
  int64_t slots = 1;
};

struct ScanCall {
  int64_t n = 0;                // elements of a row
  int64_t lanes = 1;            // rows side by side: the size of the inner axes
  std::vector<int64_t> batch;   // sizes of the batch axes
  std::vector<Operand> arrays;  // of positions: null
  Operand flags;                // null without restarts
  std::vector<Operand> uniforms;
  std::vector<ScanInit> init;  // empty if there is none
  std::vector<Operand> outs;   // by leaf

  int64_t rows() const {  // or, across, bundles of `lanes` rows
    int64_t rows = 1;
    for (const int64_t size : batch) rows *= size;
    return rows;
  }
};

// Where the segments of a call are; call.flags is the operand: offsets [*batch, count + 1], or ids [*batch, N].
struct Segments {
  int64_t count = 0;
  bool ids = false;
  bool wide = false;  // 64 bits
};

// Pointers of one row of a call (across: of one bundle of rows).
class ScanRow {
 public:
  explicit ScanRow(const ScanCall& call)
      : call_(&call),
        index_(call.batch),
        arrays_(call.arrays.size()),
        uniforms_(call.uniforms.size()),
        init_(call.init.size()),
        outs_(call.outs.size()) {}

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
  bool Init(const ScanShape& shape, int64_t lane_lo, int64_t lane_hi, char* state) const {
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

  const ScanCall* call_;
  BatchIndex index_;
  std::vector<char*> arrays_, uniforms_, init_, outs_;
  char* flags_ = nullptr;
};

}  // namespace jaxprims
