// What every histogram kernel is given, and the way from there to the data of one member of the batch.
#pragma once

#include "hist_model.h"

namespace jp {

// Words of the kernel's parameter. outs and dests: by leaf, all parts in a row; a dest that is not there is zero.
struct HistCall {
  Batch batch;
  i64 n;
  i64 bins[spec::kParts];
  Operand arrays[AtLeastOne(spec::kArrays)];
  Operand uniforms[AtLeastOne(spec::kUniforms)];
  Operand outs[spec::kAllLeaves];
  Operand dests[spec::kAllLeaves];
};

// Each member of the batch has tables in the workspace, one after the other, each of all parts: a block's result (shared memory)
// or one of M subhistograms (global memory). in_place: the first table is the result itself, and not in the workspace.
struct HistParams {
  HistCall call;
  char* tables;
  i64 table_bytes, member_bytes;
  i64 part_at[spec::kParts];
  i64 in_place;
  u32* locks;      // of operators without an atomic, in global memory
  i64 lock_count;  // a power of two
  HistWork work;
  const HistWork* chosen;  // what the device chose by the race factor; null: `work`
  i64 partials;            // tables that are folded into the result: K of shared memory; 0: M of global memory
  i64 fold_threads;        // that the device has for it
};

JP_DEVICE HistWork WorkOf(const HistParams& p) { return p.chosen != nullptr ? *p.chosen : p.work; }

template <int g>
struct PartNumber {
  static constexpr int value = g;
};

// fn(PartNumber<0>()), fn(PartNumber<1>()), ...
template <int g = 0, class Fn>
JP_DEVICE void ForEachPart(Fn fn) {
  fn(PartNumber<g>());
  if constexpr (g + 1 < spec::kParts) ForEachPart<g + 1>(fn);
}

template <int g>
constexpr int FirstLeaf() {
  if constexpr (g == 0) {
    return 0;
  } else {
    return FirstLeaf<g - 1>() + spec::Part<g - 1>::kLeaves;
  }
}

struct HistRow {
  Member at;
  spec::Arrays arrays;
  spec::Uniforms uniforms;
};

JP_DEVICE HistRow RowOf(const HistCall& call, i64 member) {
  const Member at = MemberOf(call.batch, member);
  return {at, spec::ArraysOf(call.arrays, at), spec::UniformsOf(call.uniforms, at)};
}

template <int g>
JP_DEVICE typename spec::Part<g>::Outs OutsOf(const HistCall& call, const Member& at) {
  return spec::Part<g>::OutsOf(call.outs + FirstLeaf<g>(), at);
}
template <int g>
JP_DEVICE typename spec::Part<g>::Dests DestsOf(const HistCall& call, const Member& at) {
  return spec::Part<g>::DestsOf(call.dests + FirstLeaf<g>(), at);
}

// A table's entries: bin * kLanes + lane.
template <int g>
JP_DEVICE i64 EntriesOf(const HistCall& call) {
  return call.bins[g] * spec::Part<g>::kLanes;
}

// Part g of a member's table.
template <int g>
JP_DEVICE char* TableOf(const HistParams& p, i64 member, i64 table) {
  return p.tables + member * p.member_bytes + (table - p.in_place) * p.table_bytes + p.part_at[g];
}

}  // namespace jp
