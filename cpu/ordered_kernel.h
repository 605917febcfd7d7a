// What a kernel of the ordered family (scan, reduction, segmented reduction) and its drivers agree on. The functions are made by
// jaxprims/targets/cpu/ordered/kernel.py.
//
// A sequence ("row") has n elements; scan order i = 0 .. n - 1 is memory order, or, reversed, memory element n - 1 - i. Array
// pointers are to the row's memory element 0. Two forms:
//   along   a vector runs along the row; a step of an array is one element (its slots, contiguous).
//   across  `lanes` independent rows lie side by side: a step is `lanes` elements, of which [lane_lo, lane_hi) are wanted.
//
// State memory: slot s of lane l (counted from lane_lo) lies at base + 8 * s * L + l * sizeof(slot's dtype), where L is the
// number of lanes wanted (1 along): 8 * S * L bytes in all, aligned to 64. (Of large elements, whose form is across, the states
// of lanes are one behind the other: OrderedShape::parts.)
#pragma once

#include <cstdint>

namespace jaxprims {

// Elements [lo, hi) in scan order. lo is 0 or a multiple of kScanStep; only the last range of a row has another end than such a
// multiple, so that how elements are associated never depends on how a row is cut into ranges.
struct OrderedRange {
  int64_t lo = 0, hi = 0;
  int64_t n = 0;       // of the row: where reversed order starts
  int64_t period = 0;  // periodic: n elements are n / period rows of `period`, one behind the other; lo is any multiple of it
  int64_t lanes = 1;   // across: elements of a step
  int64_t lane_lo = 0, lane_hi = 1;
  // Spaced: bytes from a row to the next, of each array, then of each uniform; then from `inner` rows to the next so many.
  const int64_t* steps = nullptr;
  int64_t inner = 1;
  int64_t far = 0;  // of reductions: not 0 if elements come from memory, which is read fastest from end to end
};

inline constexpr int64_t kScanStep = 1024;

// Of the state of `slots` slots and `lanes` lanes.
inline int64_t StateBytes(int64_t slots, int64_t lanes) { return (8 * slots * lanes + 63) / 64 * 64; }

// Bits of the `progress` that scan and reduce take and return.
inline constexpr int64_t kStarted = 1;    // the aggregate holds something
inline constexpr int64_t kRestarted = 2;  // a restart was seen: what came before the aggregate no longer counts

// Functions of one variant of a spec. Bit 0 of the variant, periodic: scan alone, of ranges that have a period; it has no prefix
// and no aggregate, and of a reduction writes one result for each row, or, across, lanes [lane_lo, lane_hi) of each, from `outs`
// on. Bit 1, streaming: scan stores whole vectors of results non-temporally; the driver promises that each then starts at a
// multiple of its size or of 64 bytes, and fences. Bit 2, spaced (of periodic reductions): rows lie as `steps` says, from the
// pointers on; without it, one behind the other.
struct OrderedKernel {
  // Writes results for [lo, hi). prefix: the state before the aggregate began, or null if there is none; aggregate: in and out,
  // the combination of this block's elements so far, without the prefix; flags: with restarts, a byte for each memory element.
  // Of large elements the aggregate may be null beside a prefix.
  // outs: by leaf, pointers to where memory element 0 of the row would be written.
  using Scan = int64_t (*)(const void* const* arrays, const void* const* uniforms, void* const* outs, const uint8_t* flags,
                           const OrderedRange* range, const void* prefix, void* aggregate, int64_t progress);
  // The aggregate alone; of a scan: the same bits as Scan leaves.
  using Reduce = int64_t (*)(const void* const* arrays, const void* const* uniforms, const uint8_t* flags,
                             const OrderedRange* range, void* aggregate, int64_t progress);
  // out = a ⊕ b on the states of `lanes` lanes; out may be a or b.
  using Combine = void (*)(const void* const* uniforms, const void* a, const void* b, void* out, int64_t lanes);
  // The results of states; of the identity where state is null. outs: where lane 0 is written, contiguous.
  using Finish = void (*)(const void* const* uniforms, const void* state, void* const* outs, int64_t lanes);
  // The results of `count` segments [first, base + ends[0]), [base + ends[0], base + ends[1]) and so on, none empty. outs: where
  // the first one's is written, contiguous.
  using Runs = void (*)(const void* const* arrays, const void* const* uniforms, void* const* outs, const int32_t* ends,
                        int64_t base, int64_t first, int64_t count);
  Scan scan = nullptr;        // spec "scan": results
  Reduce reduce = nullptr;    // all kinds
  Combine combine = nullptr;  // all kinds
  Finish finish = nullptr;    // "reduce" and "segments"
  Runs runs = nullptr;        // "segments" (along only)
};

}  // namespace jaxprims
