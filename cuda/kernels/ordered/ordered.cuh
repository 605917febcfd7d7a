// What the kernels of the ordered family (scan, reduction, segmented reduction) share: their parameter, rows, states.
#pragma once

namespace jp {

// The words of a call; the host writes them in this order. Arrays that are positions, and what a kind has no use for, are zero.
struct Call {
  Batch batch;
  i64 n;         // elements of a row
  i64 lanes;     // rows side by side; 1 unless spec::kAcross
  i64 has_init;  // 0 or 1
  Operand arrays[AtLeastOne(spec::kArrays)];
  Operand cut;  // flags of a scan; offsets or ids of segments
  Operand uniforms[AtLeastOne(spec::kUniforms)];
  Operand outs[AtLeastOne(spec::kLeaves)];
  Operand init[AtLeastOne(spec::kSlots)];
  i64 init_lane[AtLeastOne(spec::kSlots)];  // bytes from one lane's to the next's
};

// A member of the batch: one row or, across, a bundle of `lanes`.
struct Row {
  spec::Arrays arrays;
  spec::Uniforms uniforms;
  spec::Outs outs;
  const char* cut;
  Member member;
};

JP_DEVICE Row RowOf(const Call& call, i64 row) {
  const Member m = MemberOf(call.batch, row);
  return {spec::ArraysOf(call.arrays, m), spec::UniformsOf(call.uniforms, m), spec::OutsOf(call.outs, m),
          Place<const char>(call.cut, m), m};
}

JP_DEVICE spec::State InitOf(const Call& call, const Row& row, i64 lane) {
  return spec::InitOf(call.init, call.init_lane, row.member, lane);
}

// --- states of other lanes of the warp; a lane without a source keeps its own ------------------------------------------------------

JP_DEVICE spec::State StateUp(const spec::State& s, int by, u32 lanes = kAllLanes) {
  return spec::Each(s, [=](auto x) { return ShuffleUp(x, by, lanes); });
}
JP_DEVICE spec::State StateDown(const spec::State& s, int by, u32 lanes = kAllLanes) {
  return spec::Each(s, [=](auto x) { return ShuffleDown(x, by, lanes); });
}
JP_DEVICE spec::State StateXor(const spec::State& s, int by, u32 lanes = kAllLanes) {
  return spec::Each(s, [=](auto x) { return ShuffleXor(x, by, lanes); });
}
JP_DEVICE spec::State StateFrom(const spec::State& s, int lane, u32 lanes = kAllLanes) {
  return spec::Each(s, [=](auto x) { return ShuffleFrom(x, lane, lanes); });
}

// --- states in memory, as words; aligned to 4 bytes --------------------------------------------------------------------------------

constexpr int kStateWords = (spec::kStateBytes + 3) / 4;

JP_DEVICE void StoreState(void* p, const spec::State& s) {
  u32 words[kStateWords] = {};
  memcpy(words, &s, sizeof(spec::State));
#pragma unroll
  for (int k = 0; k < kStateWords; ++k) static_cast<u32*>(p)[k] = words[k];
}
JP_DEVICE spec::State LoadState(const void* p) {
  u32 words[kStateWords];
#pragma unroll
  for (int k = 0; k < kStateWords; ++k) words[k] = static_cast<const u32*>(p)[k];
  spec::State s;
  memcpy(&s, words, sizeof(spec::State));
  return s;
}

}  // namespace jp
