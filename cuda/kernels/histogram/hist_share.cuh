// What the histograms' kernels have in common: a block's threads, or a few of them, evaluate a share of the elements and update
// wherever the entries lie.
#pragma once

#include "histogram/hist_call.cuh"
#include "hist_shared_plan.h"
#include "histogram/hist_update.cuh"

namespace jp {

template <int g = 0>
JP_HOST_DEVICE constexpr i64 WordsOfElement() {
  if constexpr (g == spec::kParts) {
    return 0;
  } else {
    return ElementWords(spec::Part<g>::kUpdates, spec::Part<g>::kEntryBytes, sizeof(spec::Index)) + WordsOfElement<g + 1>();
  }
}
constexpr int kHistThreads = HistThreads(WordsOfElement(), spec::kFLength);
// Half a multiprocessor's threads, where registers suffice: what few warps ask for does not keep memory busy.
constexpr int kHistResident = kHistThreads == 512 ? 2 : 1;

template <int g = 0>
JP_HOST_DEVICE constexpr bool IdentitiesKnown() {
  if constexpr (g == spec::kParts) {
    return true;
  } else {
    return spec::Part<g>::kHasIdentity && IdentitiesKnown<g + 1>();
  }
}

// The bins of one pass. A key is an entry's number among them (bin * lanes + lane), counted from `key`. copies: of them, which
// neighbours update in turn.
template <class Key>
struct BinRange {
  int copies;
  i64 first[spec::kParts];
  Key count[spec::kParts];
  Key key[spec::kParts];
};

template <class Key>
JP_DEVICE BinRange<Key> RangeOf(const HistCall& call, i64 passes, i64 pass) {
  BinRange<Key> range;
  range.copies = 1;
  ForEachPart([&](auto part) {
    constexpr int g = decltype(part)::value;
    range.first[g] = PassBin(call.bins[g], passes, pass);
    range.count[g] = static_cast<Key>(PassBin(call.bins[g], passes, pass + 1) - range.first[g]);
    range.key[g] = 0;
  });
  return range;
}

template <int kBytes>
struct UnsignedOf {
  using type = u64;
};
template <>
struct UnsignedOf<4> {
  using type = u32;
};

// How many elements a thread evaluates before it updates: runs of neighbours as wide as memory likes, two of them if small.
constexpr int kUpdateBytes = static_cast<int>(sizeof(spec::Updates));
JP_HOST_DEVICE constexpr int RunOf(int run) { return run > 1 && run * kUpdateBytes > 128 ? RunOf(run / 2) : run; }
constexpr int kHistRun = RunOf(spec::kRunItems);
constexpr int kHistRuns = kHistRun * kUpdateBytes <= 32 ? 2 : 1;
constexpr int kHistItems = kHistRun * kHistRuns;

// The updates of some elements, each in one lane of the parts that have lanes, by all lanes of a warp.
template <Sharers sharers, class Key, int kItems, class Locate>
JP_DEVICE void UpdateItems(const HistRow& row, const BinRange<Key>& range, const spec::Updates (&updates)[kItems],
                           const bool (&valid)[kItems], const int (&lane)[kItems], Locate locate) {
  ForEachPart([&](auto part) {
    constexpr int g = decltype(part)::value;
    using Part = spec::Part<g>;
    using Bin = typename UnsignedOf<sizeof(spec::Index)>::type;
    Key key[kItems * Part::kUpdates];
    typename Part::Value value[kItems * Part::kUpdates];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
#pragma unroll
      for (int k = 0; k < Part::kUpdates; ++k) {
        const Bin bin = static_cast<Bin>(spec::IndexOf<g>(updates[i], k)) - static_cast<Bin>(range.first[g]);
        const bool here = valid[i] && bin < range.count[g] && (spec::kMaxLanes == 1 || lane[i] < Part::kLanes);
        key[i * Part::kUpdates + k] =
            here ? range.key[g] + static_cast<Key>(bin) * Part::kLanes + static_cast<Key>(lane[i]) : kNowhere<Key>;
        value[i * Part::kUpdates + k] = spec::ValueOf<g>(updates[i], k);
      }
    }
    UpdateRun<g, sharers>(row.uniforms, key, value, range.copies, [&](Key at) { return locate(part, at); });
  });
}

// Elements [first, last) by `threads` threads, whole warps, of which this one is `thread`; if not `active` it only takes part.
// locate(part, key) is where an entry lies.
template <Sharers sharers, class Key, class Locate>
JP_DEVICE void UpdateElements(const HistRow& row, i64 first, i64 last, int threads, int thread, bool active,
                              const BinRange<Key>& range, Locate locate) {
  if constexpr (spec::kMaxLanes == 1) {
    const int tile = threads * kHistItems;
#pragma unroll 1
    for (; last - first >= tile; first += tile) {
      spec::Updates updates[kHistItems];
      bool valid[kHistItems];
      int lane[kHistItems];
      spec::Run<kHistRun> read[kHistRuns];  // all of it before f, which may branch, sees the first
      const i64 own = MultipleOf<kHistRun>(first) + thread * kHistRun;
      spec::Read(row.arrays, own, threads * kHistRun, read);
#pragma unroll
      for (int r = 0; r < kHistRuns; ++r) {
        spec::Updates run[kHistRun];
        spec::EvaluateRun(row.arrays, row.uniforms, own + r * threads * kHistRun, read[r], run);
#pragma unroll
        for (int i = 0; i < kHistRun; ++i) updates[r * kHistRun + i] = run[i];
      }
#pragma unroll
      for (int i = 0; i < kHistItems; ++i) valid[i] = active, lane[i] = 0;
      UpdateItems<sharers>(row, range, updates, valid, lane, locate);
    }
  }
  // Beyond the end the last element is evaluated again, and dropped: no branch, and whole warps.
  constexpr int kLanes = spec::kMaxLanes, kItems = kUpdateBytes <= 32 ? 4 : 1;
  i64 element = first + thread / kLanes;
  int at = thread % kLanes;
#pragma unroll 1
  for (i64 left = (last - first) * kLanes; left > 0; left -= threads * kItems) {
    spec::Updates updates[kItems];
    bool valid[kItems];
    int lane[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      valid[i] = active && element < last, lane[i] = at;
      spec::Evaluate(row.arrays, row.uniforms, element < last ? element : last - 1, at, updates[i]);
      element += threads / kLanes, at += threads % kLanes;
      if (at >= kLanes) at -= kLanes, ++element;
    }
    UpdateItems<sharers>(row, range, updates, valid, lane, locate);
  }
}

// Share k of the elements, by a block of kThreads. Shares begin where wide accesses do.
template <Sharers sharers, int kThreads, class Key, class Locate>
JP_DEVICE void UpdateShare(const HistRow& row, i64 n, i64 shares, i64 k, const BinRange<Key>& range, Locate locate) {
  constexpr i64 kStep = spec::kMaxLanes == 1 ? kHistRun * kWarp : 1;
  const i64 steps = (n + kStep - 1) / kStep, first = steps * k / shares * kStep, last = steps * (k + 1) / shares * kStep;
  UpdateElements<sharers>(row, first, last < n ? last : n, kThreads, Thread(), true, range, locate);
}

}  // namespace jp
