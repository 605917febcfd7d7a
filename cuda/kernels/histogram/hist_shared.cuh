// Histograms in shared memory (Henriksen et al. 2020, III-C): each block builds M subhistograms of one pass's bins from its share
// of the elements, and combines them. K blocks work on each pass of each member of the batch. Passes are blocks of their own,
// next to each other: they run at the same time, and what one reads the others find in L2.
#pragma once

#include "histogram/hist_share.cuh"

namespace jp {

// A share of a member's elements, of which K there are, and the bins of a pass.
struct WorkItem {
  i64 member, share;
  BinRange<u32> range;
};

JP_DEVICE i64 WorkItems(const HistParams& p) { return p.call.batch.members * p.work.blocks * p.work.passes; }
JP_DEVICE WorkItem WorkItemOf(const HistParams& p, i64 item) {
  const i64 of_pass = item / p.work.passes, pass = item % p.work.passes;
  return {of_pass / p.work.blocks, of_pass % p.work.blocks, RangeOf<u32>(p.call, p.work.passes, pass)};
}

// An entry of the work item's result, counted from its range's first: finished if the member has no other share, else for
// HistCombine.
template <int g>
JP_DEVICE void PutEntry(const HistParams& p, const HistRow& row, const WorkItem& work, u32 number,
                        const typename spec::Part<g>::Value& value) {
  using Part = spec::Part<g>;
  const i64 entry = work.range.first[g] * Part::kLanes + number;
  if (p.work.blocks == 1) {
    Part::Finish(OutsOf<g>(p.call, row.at), DestsOf<g>(p.call, row.at), row.uniforms, entry, value, Part::kDest);
  } else {
    Part::Write(TableOf<g>(p, work.member, work.share) + entry * Part::kEntryBytes, value);
  }
}

// M copies of a part's entries. Where neighbours in a warp differ in their bins, their copies lie side by side: equal bins of
// different copies in different banks, and with 32 copies no two lanes in one. Where they are lanes of a bin, each warp has a
// copy.
template <int g>
struct Copies {
  static constexpr bool kBeside = spec::Part<g>::kLanes == 1;
  char* entries;
  u32 count, copies;

  JP_DEVICE u32 NumberOf(u32 entry, u32 copy) const { return kBeside ? entry * copies + copy : copy * count + entry; }
  JP_DEVICE char* At(u32 entry, u32 copy) const { return entries + NumberOf(entry, copy) * spec::Part<g>::kEntryBytes; }
};

template <int g>
JP_DEVICE void FillEntries(char* entries, u32 count, u32 thread, u32 threads) {
  const typename spec::Part<g>::Value identity = spec::Part<g>::Identity();
  for (u32 i = thread; i < count; i += threads) spec::Part<g>::Write(entries + i * spec::Part<g>::kEntryBytes, identity);
}

// emit(entry, value) for each entry, its copies combined: by as many neighbouring lanes as there are threads for.
template <int g, class Emit>
JP_DEVICE void CombineCopies(const spec::Uniforms& uniforms, const Copies<g>& table, Emit emit) {
  using Part = spec::Part<g>;
  constexpr u32 threads = kHistThreads;
  const u32 thread = Thread();
  u32 group = 1;
  while (group < kWarp && group * 2 <= table.copies && table.count * group * 2 <= threads) group *= 2;
  const u32 rank = thread % group;
#pragma unroll 1
  for (u32 begin = 0; begin < table.count; begin += threads / group) {
    const u32 entry = begin + thread / group, shown = entry < table.count ? entry : table.count - 1;
    // Neighbouring entries begin with different copies: else all would read from one bank.
    u32 copy = (shown + rank) % table.copies;
    typename Part::Value sum = Part::Read(table.At(shown, copy));
#pragma unroll 1
    for (u32 done = rank + group; done < table.copies; done += group) {
      copy += group;
      if (copy >= table.copies) copy -= table.copies;
      sum = Part::Op(uniforms, sum, Part::Read(table.At(shown, copy)));
    }
#pragma unroll 1
    for (u32 by = 1; by < group; by *= 2) {
      const typename Part::Value other = Part::Each(sum, [&](auto x) { return ShuffleDown(x, static_cast<int>(by)); });
      if (!Part::kMayNotEnd || rank + by < group) sum = Part::Op(uniforms, sum, other);  // or else with other entries'
    }
    if (entry < table.count && rank == 0) emit(entry, sum);
  }
}

// With a copy for each thread nothing has to be atomic. That is worth a loop of its own where an atomic is one itself, as it is
// in shared memory but for integers of 32 bits.
template <int g = 0>
JP_HOST_DEVICE constexpr bool WorthACopyEach() {
  if constexpr (g == spec::kParts) {
    return false;
  } else {
    return spec::kMaxLanes == 1 && (spec::Part<g>::kLoopsInShared || WorthACopyEach<g + 1>());
  }
}

template <bool kIdentitiesKnown>
JP_DEVICE void SharedHistograms(const HistParams& p) {
  if constexpr (kIdentitiesKnown) {
    const i64 copies = p.work.subhistograms;
    char* tables[spec::kParts];
    char* end = DynamicShared();
    ForEachPart([&](auto part) {
      constexpr int g = decltype(part)::value;
      tables[g] = end;
      end += SharedPartBytes(copies, p.call.bins[g], p.work.passes, spec::Part<g>::kLanes, spec::Part<g>::kEntryBytes);
    });
    u32* locks = reinterpret_cast<u32*>(end);
    const u32 lock_mask = static_cast<u32>(p.lock_count) - 1, m = static_cast<u32>(copies);
    const u32 copy_of_thread = static_cast<u32>(Thread()) % m, copy_of_warp = static_cast<u32>(Warp()) % m;

    const auto copies_of = [&](auto part, const BinRange<u32>& range) {
      constexpr int g = decltype(part)::value;
      return Copies<g>{tables[g], range.count[g] * spec::Part<g>::kLanes, m};
    };
#pragma unroll 1
    for (i64 item = Block(); item < WorkItems(p); item += Blocks()) {
      WorkItem work = WorkItemOf(p, item);
      work.range.copies = static_cast<int>(m);
      ForEachPart([&](auto part) {
        constexpr int g = decltype(part)::value;
        FillEntries<g>(tables[g], work.range.count[g] * spec::Part<g>::kLanes * m, Thread(), kHistThreads);
      });
      for (u32 i = Thread(); i < p.lock_count; i += kHistThreads) locks[i] = 0;
      BlockBarrier();

      const auto place = [&](auto part, u32 entry) {
        constexpr int g = decltype(part)::value;
        const u32 number = copies_of(part, work.range).NumberOf(entry, Copies<g>::kBeside ? copy_of_thread : copy_of_warp);
        return EntryPlace{tables[g] + number * spec::Part<g>::kEntryBytes, locks + (number & lock_mask)};
      };
      const HistRow row = RowOf(p.call, work.member);
      if (WorthACopyEach() && m == kHistThreads) {
        UpdateShare<Sharers::kThread, kHistThreads>(row, p.call.n, p.work.blocks, work.share, work.range, place);
      } else {
        UpdateShare<Sharers::kBlock, kHistThreads>(row, p.call.n, p.work.blocks, work.share, work.range, place);
      }
      BlockBarrier();

      const WorkItem again = WorkItemOf(p, Opaque(item));
      ForEachPart([&](auto part) {
        constexpr int g = decltype(part)::value;
        const HistRow to = RowOf(p.call, again.member);
        CombineCopies<g>(to.uniforms, copies_of(part, again.range),
                         [&](u32 entry, const typename spec::Part<g>::Value& value) { PutEntry<g>(p, to, again, entry, value); });
      });
      BlockBarrier();
    }
  }
}

JP_KERNEL(HistShared, jp::HistParams, jp::kHistThreads, jp::kHistResident) { jp::SharedHistograms<jp::IdentitiesKnown()>(p); }

}  // namespace jp
