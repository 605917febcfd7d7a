// Many small histograms: a few lanes of a warp build each, in shared memory, and the warp finishes all it has, side by side as
// the results lie.
#pragma once

#include "histogram/hist_shared.cuh"

namespace jp {

template <bool kIdentitiesKnown>
JP_DEVICE void TinyHistograms(const HistParams& p) {
  if constexpr (kIdentitiesKnown) {
    constexpr int kWarps = kTinyThreads / kWarp;
    const HistCall& call = p.call;
    const int group = TinyGroup(call.n, spec::kMaxLanes), together = kWarp / group;  // members of the batch, by one warp
    const BinRange<u32> all = RangeOf<u32>(call, 1, 0);
    char* tables[spec::kParts];  // of this warp
    u32 stride[spec::kParts];    // entries from one member's table to the next
    char* end = DynamicShared();
    ForEachPart([&](auto part) {
      constexpr int g = decltype(part)::value;
      const i64 bytes = TinyPartBytes(call.bins[g], spec::Part<g>::kLanes, spec::Part<g>::kEntryBytes) * together;
      tables[g] = end + Warp() * bytes;
      stride[g] = (all.count[g] * spec::Part<g>::kLanes) | 1;
      end += kWarps * bytes;
    });
    u32* locks = reinterpret_cast<u32*>(end);
    const u32 lock_mask = static_cast<u32>(p.lock_count) - 1;
    for (u32 i = Thread(); i < p.lock_count; i += kTinyThreads) locks[i] = 0;
    BlockBarrier();

    const i64 members = call.batch.members;
#pragma unroll 1
    for (i64 first = (Block() * kWarps + Warp()) * together; first < members; first += Blocks() * kWarps * together) {
      ForEachPart([&](auto part) {
        constexpr int g = decltype(part)::value;
        FillEntries<g>(tables[g], together * stride[g], Lane(), kWarp);
      });
      WarpBarrier();

      const int mine = Lane() / group;
      const bool active = first + mine < members;
      const HistRow row = RowOf(call, active ? first + mine : members - 1);
      BinRange<u32> range = all;
      ForEachPart([&](auto part) { range.key[decltype(part)::value] = mine * stride[decltype(part)::value]; });
      UpdateElements<Sharers::kBlock>(row, 0, call.n, group, Lane() % group, active, range, [&](auto part, u32 entry) {
        constexpr int g = decltype(part)::value;
        const u32 lock = static_cast<u32>(Warp() * together) * stride[g] + entry;
        return EntryPlace{tables[g] + entry * spec::Part<g>::kEntryBytes, locks + (lock & lock_mask)};
      });
      WarpBarrier();

      ForEachPart([&](auto part) {
        constexpr int g = decltype(part)::value;
        using Part = spec::Part<g>;
        const u32 entries = all.count[g] * Part::kLanes;
        const i64 left = members - first;
        const u32 count = static_cast<u32>(left < together ? left : together) * entries;
#pragma unroll 1
        for (u32 i = Lane(); i < count; i += kWarp) {
          const u32 member = i / entries, entry = i % entries;
          const HistRow to = RowOf(call, first + member);
          const typename Part::Value value = Part::Read(tables[g] + (member * stride[g] + entry) * Part::kEntryBytes);
          Part::Finish(OutsOf<g>(call, to.at), DestsOf<g>(call, to.at), to.uniforms, entry, value, Part::kDest);
        }
      });
      WarpBarrier();
    }
  }
}

JP_KERNEL(HistTiny, jp::HistParams, jp::kTinyThreads, 1) { jp::TinyHistograms<jp::IdentitiesKnown()>(p); }

}  // namespace jp
