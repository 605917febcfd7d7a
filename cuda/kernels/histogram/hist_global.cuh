// Histograms in global memory (Henriksen et al. 2020, III-D): M subhistograms of the whole grid, which should stay in the L2 cache;
// C = T / M threads cooperate on each. Passes come one after the other, so that only one's bins are in the cache.
#pragma once

#include "histogram/hist_call.cuh"
#include "histogram/hist_share.cuh"
#include "histogram/hist_update.cuh"

namespace jp {

template <bool kWide>
struct KeyOf {
  using type = u32;
};
template <>
struct KeyOf<true> {
  using type = u64;
};
// An entry's number in its table.
using GlobalKey = KeyOf<(sizeof(spec::Index) > 4 || spec::kMaxLanes > 1)>::type;

// The subhistogram that a thread works on.
struct Subhistogram {
  char* entries[spec::kParts];
  u32* locks;
  u64 lock_mask;
};

JP_DEVICE Subhistogram SubhistogramOf(const HistParams& p, const HistRow& row, i64 member, i64 number, i64 subhistograms) {
  Subhistogram own;
  ForEachPart([&](auto part) {
    constexpr int g = decltype(part)::value;
    char* result = reinterpret_cast<char*>(OutsOf<g>(p.call, row.at).o0);
    own.entries[g] = number < p.in_place ? result : TableOf<g>(p, member, number);
  });
  // Each has locks of its own, as far as there are enough.
  i64 sets = 1;
  while (sets < subhistograms && sets * 64 <= p.lock_count) sets *= 2;
  const i64 locks = p.lock_count / sets;
  own.locks = p.locks + ((member * subhistograms + number) & (sets - 1)) * locks;
  own.lock_mask = static_cast<u64>(locks) - 1;
  return own;
}

// --- array-valued bins: several lanes of a float sum in one atomic (compute capability 9) -------------------------------------

template <int g = 0>
constexpr int WideLanes() {
  if constexpr (g == spec::kParts) {
    return 4;
  } else {
    using Part = spec::Part<g>;
    constexpr int kOwn = Part::kLanes == 1 ? 4 : !Part::kAddsF32 ? 1 : Part::kLanes % 4 == 0 ? 4 : Part::kLanes % 2 == 0 ? 2 : 1;
    return Least(kOwn, WideLanes<g + 1>());
  }
}
constexpr int kWideLanes = kArch >= 90 && spec::kMaxLanes > 1 ? WideLanes() : 1;

template <int kWide>
JP_DEVICE void AddLanes(float* p, const float (&x)[kWide]) {
  if constexpr (kWide == 4) {
    if (reinterpret_cast<u64>(p) % 16 == 0) return AtomicAdd4(p, x[0], x[1], x[2], x[3]);
  } else {
    if (reinterpret_cast<u64>(p) % 8 == 0) return AtomicAdd2(p, x[0], x[1]);
  }
#pragma unroll
  for (int k = 0; k < kWide; ++k) AtomicAdd(p + k, x[k]);
}

// Consecutive threads work on consecutive lanes, kWide each.
template <int kWide>
JP_DEVICE void AddWideLanes(const HistRow& row, const Subhistogram& own, i64 n, i64 shares, i64 share,
                            const BinRange<GlobalKey>& range) {
  constexpr int kEach = spec::kMaxLanes / kWide;
  const i64 first = n * share / shares, last = n * (share + 1) / shares;
#pragma unroll 1
  for (i64 item = Thread(); item < (last - first) * kEach; item += kGlobalThreads) {
    const i64 element = first + item / kEach;
    const int lane = static_cast<int>(item % kEach) * kWide;
    spec::Updates updates[kWide];
#pragma unroll
    for (int k = 0; k < kWide; ++k) spec::Evaluate(row.arrays, row.uniforms, element, lane + k, updates[k]);
    ForEachPart([&](auto part) {
      constexpr int g = decltype(part)::value;
      using Part = spec::Part<g>;
      if (lane >= Part::kLanes) return;
#pragma unroll
      for (int u = 0; u < Part::kUpdates; ++u) {
        const i64 bin = spec::IndexOf<g>(updates[0], u);
        if (static_cast<u64>(bin) - static_cast<u64>(range.first[g]) >= range.count[g]) continue;
        if constexpr (Part::kLanes > 1) {
          float x[kWide];
#pragma unroll
          for (int k = 0; k < kWide; ++k) x[k] = spec::ValueOf<g>(updates[k], u).s0;
          AddLanes<kWide>(reinterpret_cast<float*>(own.entries[g]) + bin * Part::kLanes + lane, x);
        } else {
          UpdateEntry<g>(row.uniforms, {own.entries[g], own.locks, own.lock_mask}, bin, spec::ValueOf<g>(updates[0], u));
        }
      }
    });
  }
}

// --- the kernels --------------------------------------------------------------------------------------------------------------

// Half of a multiprocessor's threads if an element has few words, so that the others' atomics hide what one waits for.
constexpr int kGlobalResident = kHistThreads == 1024 && spec::kMaxLanes == 1 ? 4 : 2;

JP_KERNEL(HistGlobal, HistParams, kGlobalThreads, kGlobalResident) {
  const HistWork work = WorkOf(p);
  const i64 units = p.call.batch.members * work.blocks;
#pragma unroll 1
  for (i64 unit = Block(); unit < units; unit += Blocks()) {
    const i64 member = unit / work.blocks, share = unit % work.blocks;
    const HistRow row = RowOf(p.call, member);
    // Neighbours have different subhistograms, so that equal bins next to each other do not conflict; lanes of one bin have the
    // same.
    const i64 worker = spec::kMaxLanes == 1 ? share * kGlobalThreads + Thread() : share * (kGlobalThreads / kWarp) + Warp();
    const Subhistogram own = SubhistogramOf(p, row, member, worker % work.subhistograms, work.subhistograms);
#pragma unroll 1
    for (i64 pass = 0; pass < work.passes; ++pass) {
      BinRange<GlobalKey> range = RangeOf<GlobalKey>(p.call, work.passes, pass);
      range.copies = static_cast<int>(work.subhistograms);
      if constexpr (kWideLanes > 1) {
        AddWideLanes<kWideLanes>(row, own, p.call.n, work.blocks, share, range);
      } else {
        UpdateShare<Sharers::kDevice, kGlobalThreads>(row, p.call.n, work.blocks, share, range, [&](auto part, GlobalKey entry) {
          constexpr int g = decltype(part)::value;
          const i64 at = range.first[g] * spec::Part<g>::kLanes + static_cast<i64>(entry);
          return EntryPlace{own.entries[g] + at * spec::Part<g>::kEntryBytes, own.locks + (static_cast<u64>(at) & own.lock_mask)};
        });
      }
    }
  }
}

// The race factor of one part's indices, and M and S by it.
struct HistSampleParams {
  HistParams hist;
  ModelDevice device;
  ModelElement element;
  i64 updates, bins;  // N and H of all members that are worked on at once
  i64 most;           // subhistograms for which there is room
  i64 part;
  i64 groups, group_size;  // in updates
  u32* seen;               // a bit for each bin, by group; zero
  i64 seen_words;          // of a group
  u64* distinct;           // zero
  u32* finished;           // zero
  HistWork* chosen;
};

// Bins that this thread is the first to hit.
template <int g>
JP_DEVICE u32 CountDistinct(const HistSampleParams& p, i64 group, i64 worker, i64 workers) {
  constexpr int kUpdates = spec::Part<g>::kUpdates;
  const HistCall& call = p.hist.call;
  const HistRow row = RowOf(call, RaceStart(call.batch.members, 1, p.groups, group));
  const i64 start = RaceStart(call.n, CeilDiv(p.group_size, kUpdates), p.groups, group);
  u32* seen = p.seen + group * p.seen_words;
  u32 count = 0;
#pragma unroll 1
  for (i64 i = worker; i * kUpdates < p.group_size; i += workers) {
    spec::Updates updates;
    spec::Evaluate(row.arrays, row.uniforms, start + i, 0, updates);
#pragma unroll
    for (int k = 0; k < kUpdates; ++k) {
      const i64 bin = spec::IndexOf<g>(updates, k);
      if (bin < 0 || bin >= call.bins[g] || i * kUpdates + k >= p.group_size) continue;
      const u32 bit = 1u << (bin % 32);
      if ((seen[bin / 32] & bit) == 0 && (AtomicOr(seen + bin / 32, bit) & bit) == 0) ++count;
    }
  }
  return count;
}

JP_KERNEL(HistSample, HistSampleParams, kSampleThreads, 2) {
  const i64 group = Block() % p.groups;
  const i64 worker = Block() / p.groups * kSampleThreads + Thread(), workers = Blocks() / p.groups * kSampleThreads;
  u32 count = 0;
  ForEachPart([&](auto part) {
    constexpr int g = decltype(part)::value;
    if (g == p.part) count = CountDistinct<g>(p, group, worker, workers);
  });
  for (int step = kWarp / 2; step > 0; step /= 2) count += ShuffleDown(count, step);
  if (Lane() == 0 && count > 0) AtomicAdd(p.distinct, static_cast<u64>(count));
  BlockBarrier();
  if (Thread() != 0) return;
  Fence();
  if (AtomicAdd(p.finished, 1u) + 1 != static_cast<u32>(Blocks())) return;
  Fence();
  const double race_factor = RaceFactor(p.group_size, p.groups, static_cast<i64>(LoadRelaxed(p.distinct)));
  const ModelChoice choice = GlobalChoice(p.device, p.updates, p.bins, p.element, race_factor);
  *p.chosen = {p.hist.work.blocks, Least(choice.subhistograms, p.most), choice.passes};
}

}  // namespace jp
