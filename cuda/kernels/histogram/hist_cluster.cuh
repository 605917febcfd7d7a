// Histograms in the shared memory of a cluster of blocks (compute capability 9): each block owns a part of the bins, reads its
// share of the elements and updates the owners' memory, so that more bins than one block can hold need but one pass.
#pragma once

#include "histogram/hist_shared.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

namespace jp {

// Bins in groups of neighbours, dealt out to the blocks of a cluster in turn; their number is a power of two.
struct Dealt {
  int rank, blocks, shift;

  JP_DEVICE int OwnerOf(u32 bin) const { return static_cast<int>(bin / kClusterGroup) & (blocks - 1); }
  JP_DEVICE u32 PlaceOf(u32 bin) const { return (bin / kClusterGroup >> shift) * kClusterGroup + bin % kClusterGroup; }
  // The bin at a place in this block.
  JP_DEVICE u32 BinAt(u32 place) const {
    return (place / kClusterGroup << shift | static_cast<u32>(rank)) * kClusterGroup + place % kClusterGroup;
  }
  JP_DEVICE u32 Places(u32 bins) const {
    const u32 groups = (bins + kClusterGroup - 1) / kClusterGroup;
    return ((groups + static_cast<u32>(blocks) - 1) >> shift) * kClusterGroup;
  }
};

template <bool kIdentitiesKnown>
JP_DEVICE void ClusterHistograms(const HistParams& p) {
  if constexpr (kIdentitiesKnown) {
    const int blocks = ClusterSize();
    const Dealt dealt = {ClusterRank(), blocks, 31 - LeadingZeros(static_cast<u32>(blocks))};
    char* tables[spec::kParts];
    char* end = DynamicShared();
    ForEachPart([&](auto part) {
      constexpr int g = decltype(part)::value;
      tables[g] = end;
      end += ClusterPartBytes(blocks, p.call.bins[g], p.work.passes, spec::Part<g>::kLanes, spec::Part<g>::kEntryBytes);
    });
    u32* locks = reinterpret_cast<u32*>(end);
    const u32 lock_mask = static_cast<u32>(p.lock_count) - 1;

#pragma unroll 1
    for (i64 item = Block() / blocks; item < WorkItems(p); item += Blocks() / blocks) {
      const WorkItem work = WorkItemOf(p, item);
      ForEachPart([&](auto part) {
        constexpr int g = decltype(part)::value;
        FillEntries<g>(tables[g], dealt.Places(work.range.count[g]) * spec::Part<g>::kLanes, Thread(), kHistThreads);
      });
      for (u32 i = Thread(); i < p.lock_count; i += kHistThreads) locks[i] = 0;
      ClusterBarrier();

      const auto place_of = [&](auto part, u32 entry) {
        constexpr int g = decltype(part)::value;
        constexpr u32 kLanes = spec::Part<g>::kLanes;
        const u32 bin = entry / kLanes, place = dealt.PlaceOf(bin) * kLanes + entry % kLanes;
        const int owner = dealt.OwnerOf(bin);
        EntryPlace to = {InBlockOfCluster(tables[g] + place * spec::Part<g>::kEntryBytes, owner), nullptr};
        if (spec::Part<g>::kAtomic == spec::Atomic::kXcg) to.lock = InBlockOfCluster(locks + (place & lock_mask), owner);
        return to;
      };
      const i64 shares = p.work.blocks * blocks, share = work.share * blocks + dealt.rank;
      const HistRow row = RowOf(p.call, work.member);
      UpdateShare<Sharers::kCluster, kHistThreads>(row, p.call.n, shares, share, work.range, place_of);
      ClusterBarrier();

      const WorkItem again = WorkItemOf(p, Opaque(item));
      ForEachPart([&](auto part) {
        constexpr int g = decltype(part)::value;
        using Part = spec::Part<g>;
        const HistRow to = RowOf(p.call, again.member);
        const u32 count = dealt.Places(again.range.count[g]) * Part::kLanes;
#pragma unroll 1
        for (u32 i = Thread(); i < count; i += kHistThreads) {
          const u32 bin = dealt.BinAt(i / Part::kLanes);
          if (bin >= again.range.count[g]) continue;
          PutEntry<g>(p, to, again, bin * Part::kLanes + i % Part::kLanes, Part::Read(tables[g] + i * Part::kEntryBytes));
        }
      });
      BlockBarrier();
    }
  }
}

JP_KERNEL(HistCluster, jp::HistParams, jp::kHistThreads, 1) { jp::ClusterHistograms<jp::IdentitiesKnown()>(p); }

}  // namespace jp

#endif
