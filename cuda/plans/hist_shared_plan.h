// Histograms in shared memory: what the launcher and the kernels have to agree on.
#pragma once

#include "hist_model.h"

namespace jp {

constexpr int kTinyThreads = 256;

// What an element's updates of one part hold, in 4-byte words.
JP_HOST_DEVICE constexpr long long ElementWords(long long updates, long long entry_bytes, long long index_bytes) {
  return updates * (index_bytes / 4 + (entry_bytes + 3) / 4);
}

// Threads of a block of HistShared and HistCluster, so that registers suffice. words: of all parts; length: f's instructions.
JP_HOST_DEVICE constexpr int HistThreads(long long words, long long length) {
  return words <= 3 && length <= 100 ? 1024 : words <= 16 ? 512 : 256;
}

JP_HOST_DEVICE constexpr long long RoundUp(long long x, long long to) { return (x + to - 1) / to * to; }

// Shared memory of one part in one block, in bytes: M copies of the bins of one pass.
JP_HOST_DEVICE constexpr long long SharedPartBytes(long long copies, long long bins, long long passes, long long lanes,
                                                   long long entry_bytes) {
  return RoundUp(copies * CeilDiv(bins, passes) * lanes * entry_bytes, 16);
}

// A cluster's blocks own groups of neighbouring bins in turn: neighbours are written side by side, and what is crowded is spread.
constexpr int kClusterGroup = 32;

JP_HOST_DEVICE constexpr long long ClusterPartBytes(long long blocks, long long bins, long long passes, long long lanes,
                                                    long long entry_bytes) {
  const long long most = (bins + passes - 1) / passes;
  return RoundUp(RoundUp(most, kClusterGroup * blocks) / blocks * lanes * entry_bytes, 16);
}

// How many threads of a warp build one tiny histogram: some eight elements for each.
JP_HOST_DEVICE constexpr int TinyGroup(long long n, long long lanes) {
  int group = 1;
  while (group < 32 && group * 8 < n * lanes) group *= 2;
  return group;
}

// One member's table. An odd number of entries: members' equal bins lie in different banks.
JP_HOST_DEVICE constexpr long long TinyPartBytes(long long bins, long long lanes, long long entry_bytes) {
  return entry_bytes * (bins * lanes | 1);
}

}  // namespace jp
