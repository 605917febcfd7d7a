// Updates of a histogram's entries by threads that share them (Henriksen et al. 2020, III-B).
#pragma once

#include "histogram/hist_call.cuh"

namespace jp {

// Who updates a table: as far as that, the fences of its locks have to reach. A thread alone needs none, nor atomics.
enum class Sharers { kThread, kBlock, kCluster, kDevice };

template <Sharers sharers>
JP_DEVICE void FenceAmong() {
  if constexpr (sharers == Sharers::kBlock) {
    BlockFence();
  } else if constexpr (sharers == Sharers::kCluster) {
    ClusterFence();
  } else {
    Fence();
  }
}

struct EntryPlace {
  char* entry;
  u32* lock;  // of operators without an atomic
};

struct Table {
  char* entries;
  u32* locks;
  u64 lock_mask;
};

JP_DEVICE bool Same(u32 a, u32 b) { return a == b; }
JP_DEVICE bool Same(u64 a, u64 b) { return a == b; }
JP_DEVICE bool Same(u128 a, u128 b) { return a.lo == b.lo && a.hi == b.hi; }

JP_DEVICE u32 Peek(const u32* p) { return *static_cast<const volatile u32*>(p); }
JP_DEVICE u64 Peek(const u64* p) { return *static_cast<const volatile u64*>(p); }
// Two reads: perhaps of two different values.
JP_DEVICE u128 Peek(const u128* p) {
  const volatile u64* halves = reinterpret_cast<const volatile u64*>(p);
  u128 x;
  x.lo = halves[0];
  x.hi = halves[1];
  return x;
}

// entry = op(entry, value), at once for all who share it.
template <int g, Sharers sharers>
JP_DEVICE void UpdateAt(const spec::Uniforms& uniforms, const EntryPlace& place, const typename spec::Part<g>::Value& value) {
  using Part = spec::Part<g>;
  if constexpr (sharers == Sharers::kThread) {
    Part::Write(place.entry, Part::Op(uniforms, Part::Read(place.entry), value));
  } else if constexpr (Part::kAtomic == spec::Atomic::kHdw) {
    Part::UpdateHdw(place.entry, value);
  } else if constexpr (Part::kAtomic == spec::Atomic::kCas) {
    using Word = typename Part::Word;
    Word* word = reinterpret_cast<Word*>(place.entry);
    Word old;
    if constexpr (Part::kMayNotEnd && sizeof(Word) > 8) {
      old = AtomicCas(word, Word{}, Word{});  // an entry that there is
    } else {
      old = Peek(word);
    }
    // Where `value` changes nothing, nothing is stored: as if it had come when `old` was read, provided that it was ever there.
    for (bool whole = sizeof(Word) <= 8;; whole = true) {
      const Word combined = Part::Pack(Part::Op(uniforms, Part::Unpack(old), value));
      if (whole && Same(combined, old)) return;
      const Word found = AtomicCas(word, old, combined);
      if (Same(found, old)) return;
      old = found;
    }
  } else {
    // Whoever gets the lock gives it back in the same iteration, so lanes of a warp that want the same one take turns, even if
    // they advance in lockstep. The exchanges are relaxed: the first fence keeps the read behind the exchange that found the lock
    // free, the second the write before the one that frees it; so the next holder's first fence lets it see the write.
    for (bool waiting = true; waiting;) {
      if (AtomicExchange(place.lock, 1u) == 0) {
        FenceAmong<sharers>();
        Part::Write(place.entry, Part::Op(uniforms, Part::Read(place.entry), value));
        FenceAmong<sharers>();
        AtomicExchange(place.lock, 0u);
        waiting = false;
      } else {
        Backoff();
      }
    }
  }
}

template <int g, Sharers sharers = Sharers::kDevice>
JP_DEVICE void UpdateEntry(const spec::Uniforms& uniforms, const Table& table, i64 entry,
                           const typename spec::Part<g>::Value& value) {
  const EntryPlace place = {table.entries + entry * spec::Part<g>::kEntryBytes,
                            table.locks + (static_cast<u64>(entry) & table.lock_mask)};
  UpdateAt<g, sharers>(uniforms, place, value);
}

// The key of an update that goes nowhere.
template <class Key>
constexpr Key kNowhere = ~Key(0);

// The first of the lanes that have one key gets the values of all, combined in the order of lanes; the others are left without.
// By all lanes of a warp. In each round those of even rank take the value of the next, and the next is done.
template <int g, class Key>
JP_DEVICE void Gather(const spec::Uniforms& uniforms, Key& key, typename spec::Part<g>::Value& value) {
  using Part = spec::Part<g>;
  const u32 peers = MatchAny(key), before = (1u << Lane()) - 1;
  int rank = PopulationCount(peers & before);
  u32 behind = key == kNowhere<Key> ? 0 : peers & ~before & ~(1u << Lane());
  if (rank > 0) key = kNowhere<Key>;
  while (WarpAny(behind != 0)) {
    const int next = behind != 0 ? FirstLane(behind) : Lane();
    const typename Part::Value other = Part::Each(value, [&](auto x) { return ShuffleFrom(x, next); });
    if (behind != 0) value = Part::Op(uniforms, value, other);
    behind &= Ballot((rank & 1) == 0);
    if ((rank & 1) != 0) behind = 0;
    rank >>= 1;
  }
}

// So many lanes of a warp have to agree on a bin for it to be worth while to gather their values. Hardware atomics bear more (but
// sums of floats are loops in shared memory), and where neighbours update different copies, all have to agree.
template <int g>
JP_DEVICE int CrowdOf(int copies) {
  constexpr int kConflicts = spec::Part<g>::kAtomic == spec::Atomic::kHdw && !spec::Part<g>::kAddsF32 ? 16 : 8;
  return copies < kWarp / kConflicts ? kConflicts * copies : kWarp;
}

// kCount updates of every lane, by all lanes of a warp: entry `locate(key)` for each. A look at one of them tells whether
// neighbours agree; where they do, each lane combines what it has for its first entry, and the warp what its lanes have for one.
// copies: that neighbours update in turn.
template <int g, Sharers sharers, int kCount, class Key, class Locate>
JP_DEVICE void UpdateRun(const spec::Uniforms& uniforms, Key (&key)[kCount], typename spec::Part<g>::Value (&value)[kCount],
                         int copies, Locate locate) {
  using Part = spec::Part<g>;
  if constexpr (Part::kLanes == 1 && sharers != Sharers::kThread) {  // neighbours are not the lanes of one bin
    const Key first = ShuffleFrom(key[0], 0);
    const int crowd = CrowdOf<g>(copies);
    if (first != kNowhere<Key> && PopulationCount(Ballot(key[0] == first)) >= crowd) {
#pragma unroll
      for (int k = 1; k < kCount; ++k) {
        if (key[k] == key[0] && key[k] != kNowhere<Key>) {
          value[0] = Part::Op(uniforms, value[0], value[k]);
          key[k] = kNowhere<Key>;
        }
      }
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        if (PopulationCount(Ballot(key[k] != kNowhere<Key>)) >= crowd) Gather<g>(uniforms, key[k], value[k]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    if (key[k] != kNowhere<Key>) UpdateAt<g, sharers>(uniforms, locate(key[k]), value[k]);
  }
}

}  // namespace jp
