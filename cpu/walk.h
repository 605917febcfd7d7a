// Elements walked through in their order, or from the last to the first: each meets the state of its bin, leaves another one
// there and writes something. Derivatives of histograms by any operator are two walks (jaxprims/primitives/histogram/walk.py).
//
// A part is a run of elements with tables of its own, so parts are walked at once. A part's tables are `copies` interleaved ones,
// of which neighbours meet different ones: equal indices would wait for each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "hist.h"
#include "hist_plan.h"
#include "numbers.h"
#include "operand.h"
#include "walk_call.h"
#include "work_assist.h"
#include "workspace.h"

namespace jaxprims {

struct WalkKernel {
  // Elements [lo, hi). table: entries of WalkShape::entry_bytes, `copies` (a power of two) for each of `bins` bins.
  using Walk = void (*)(const void* index, const void* const* arrays, const void* const* uniforms, void* table, void* const* outs,
                        int64_t lo, int64_t hi, int64_t bins, int64_t copies);
  Walk walk = nullptr;
};

inline int64_t WalkTableBytes(const WalkShape& shape, int64_t bins, int64_t copies) { return shape.entry_bytes * bins * copies; }

// The kernel's variant: 1, with bins fetched ahead, where a table passes half of L2.
inline int WalkVariant(const WalkShape& shape, int64_t bins, int64_t copies, const Machine& machine) {
  return WalkTableBytes(shape, bins, copies) > machine.l2 / 2 ? 1 : 0;
}

namespace internal {

// Copy c of a part's tables, leaf by leaf, [bins, slots] each, into the table or back.
template <bool kInto>
void MoveTable(const WalkShape& shape, char* table, char* const* leaves, int64_t bins, int64_t copies) {
  size_t slot = 0;
  for (size_t leaf = 0; leaf < shape.state_slots.size(); ++leaf) {
    const int64_t slots = shape.state_slots[leaf];
    for (int64_t s = 0; s < slots; ++s, ++slot) {
      const int64_t bytes = shape.slot_bytes[slot];
      char* entry = table + shape.slot_offsets[slot];
      char* value = leaves[leaf] + s * bytes;
      const int64_t step = shape.entry_bytes * copies, stride = slots * bytes;
      auto move = [&](auto size) {
        for (int64_t b = 0; b < bins; ++b, entry += step, value += stride) {
          kInto ? std::memcpy(entry, value, size) : std::memcpy(value, entry, size);
        }
      };
      using std::integral_constant;
      switch (bytes) {
        case 1:
          move(integral_constant<size_t, 1>{});
          break;
        case 2:
          move(integral_constant<size_t, 2>{});
          break;
        case 4:
          move(integral_constant<size_t, 4>{});
          break;
        default:
          move(integral_constant<size_t, 8>{});
      }
    }
  }
}

}  // namespace internal

template <class Pool>
void RunWalk(Pool& pool, const WalkShape& shape, const WalkCall& call, const WalkKernel& kernel, int threads) {
  const int64_t members = Product(call.batch), tasks = members * call.parts;
  if (tasks <= 0) return;
  const auto workers =
      static_cast<int>(std::clamp<int64_t>(std::min<int64_t>(threads, call.n * members / kUpdatesPerThread), 1, tasks));
  const int64_t bytes = RoundUp(WalkTableBytes(shape, call.bins, call.copies), 64);
  Workspace workspace(static_cast<size_t>(bytes * workers));
  WorkAssist(pool, tasks, workers, [&](int64_t task, int worker) {
    const int64_t part = task % call.parts, lo = internal::Part(call.n, call.parts, part),
                  hi = internal::Part(call.n, call.parts, part + 1);
    BatchIndex at(call.batch);
    at.Select(task / call.parts);
    auto places = [&](const List<Operand>& operands) {
      std::vector<char*> out;
      for (const Operand& operand : operands) out.push_back(at.Place(operand));
      return out;
    };
    const std::vector<char*> arrays = places(call.arrays), uniforms = places(call.uniforms), outs = places(call.outs);
    std::vector<char*> starts = places(call.starts), ends = places(call.ends);
    auto skip = [&](std::vector<char*>& leaves, int64_t tables) {
      size_t slot = 0;
      for (size_t leaf = 0; leaf < leaves.size(); ++leaf) {
        leaves[leaf] += tables * call.bins * shape.state_slots[leaf] * shape.slot_bytes[slot];
        slot += static_cast<size_t>(shape.state_slots[leaf]);
      }
    };
    char* table = workspace.data() + bytes * worker;
    skip(starts, part * call.copies);
    for (int64_t c = 0; c < call.copies; ++c) {
      internal::MoveTable<true>(shape, table + c * shape.entry_bytes, starts.data(), call.bins, call.copies);
      skip(starts, 1);
    }
    kernel.walk(at.Place(call.index), reinterpret_cast<const void* const*>(arrays.data()),
                reinterpret_cast<const void* const*>(uniforms.data()), table, reinterpret_cast<void* const*>(outs.data()), lo, hi,
                call.bins, call.copies);
    skip(ends, part * call.copies);
    for (int64_t c = 0; c < call.copies; ++c) {
      internal::MoveTable<false>(shape, table + c * shape.entry_bytes, ends.data(), call.bins, call.copies);
      skip(ends, 1);
    }
  });
}

}  // namespace jaxprims
