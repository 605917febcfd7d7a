"""Kernels for the emulated GPU that are right, and numbers for them."""

from __future__ import annotations

import functools

from tests.emulation import emulator

RIGHT = r"""
struct Words { u32* out; i64 n; const u32* in; };

// Sums of blocks: shuffles, then shared memory.
JP_KERNEL(Sums, Words, 1024, 1) {
  JP_SHARED(u32, parts[32]);
  u32 x = 0;
  for (i64 i = Block() * Threads() + Thread(); i < p.n; i += Blocks() * Threads()) x += p.in[i];
  for (int by = 16; by > 0; by /= 2) x += ShuffleDown(x, by);
  if (Lane() == 0) parts[Warp()] = x;
  BlockBarrier();
  if (Warp() == 0) {
    x = Lane() < Threads() / kWarp ? parts[Lane()] : 0;
    for (int by = 16; by > 0; by /= 2) x += ShuffleXor(x, by);
    if (Lane() == 0) AtomicAdd(p.out, x);
  }
}

// Every collective of a warp once: 12 words from a thread.
JP_KERNEL(Collectives, Words, 1024, 1) {
  const u32 x = p.in[Thread()], lanes = static_cast<u32>(p.n);
  u32* out = p.out + 12 * Thread();
  if (!(lanes >> Lane() & 1)) return;
  out[0] = Ballot(x & 1, lanes);
  out[1] = WarpAny(x % 16 == 0, lanes);
  out[2] = WarpAll(x % 16 != 0, lanes);
  out[3] = MatchAny(x % 4, lanes);
  out[4] = MatchAny(static_cast<u64>(x % 4) << 32, lanes);
  out[5] = ShuffleFrom(x, FirstLane(lanes), lanes);
  if (lanes != kAllLanes) return;
  out[6] = ShuffleUp(x, 3);
  out[7] = ShuffleDown(x, 5);
  out[8] = ShuffleXor(x, 9);
  out[9] = static_cast<u32>(ShuffleUp(static_cast<double>(x) * 0x1p30, 1) * 0x1p-30);
  out[10] = ShuffleDown(x % 2 == 0, 1);
  out[11] = BlockAny(x == static_cast<u32>(Threads()));
}

// A histogram in shared memory by compare-and-swap.
JP_KERNEL(Histogram, Words, 1024, 1) {
  u32* bins = reinterpret_cast<u32*>(DynamicShared());
  for (int b = Thread(); b < 100; b += Threads()) bins[b] = 0;
  BlockBarrier();
  for (i64 i = Block() * Threads() + Thread(); i < p.n; i += Blocks() * Threads()) {
    u32 old = bins[p.in[i] % 100], seen;
    while ((seen = AtomicCas(bins + p.in[i] % 100, old, old + 1)) != old) old = seen;
  }
  BlockBarrier();
  for (int b = Thread(); b < 100; b += Threads()) AtomicAdd(p.out + b, bins[b]);
}

// A chain of blocks, each waiting for the one before it. out: ticket, then (flag, sum) of tiles.
JP_KERNEL(Chain, Words, 256, 1) {
  JP_SHARED(u32, tile);
  for (;;) {
    BlockBarrier();
    if (Thread() == 0) tile = AtomicAdd(p.out, 1u);
    BlockBarrier();
    if (tile >= p.n) return;
    if (Thread() != static_cast<int>(tile) % Threads()) continue;
    u32* place = p.out + 2 + 2 * tile;
    u32 before = 0;
    if (tile > 0) {
      while (LoadAcquire(place - 2) == 0) Backoff();
      before = place[-1];
    }
    place[1] = before + p.in[tile];
    StoreRelease(place, 1);
  }
}

// A lock taken by diverged lanes.
JP_KERNEL(Locked, Words, 1024, 1) {
  for (i64 k = 0; k < p.n; ++k) {
    while (AtomicExchange(p.out, 1u) != 0) Backoff();
    Fence();
    p.out[1] += 1;
    Fence();
    AtomicExchange(p.out, 0u);
  }
}

// Lanes that find each other at work add together.
JP_KERNEL(Aggregated, Words, 1024, 1) {
  for (i64 k = 0; k < p.n; ++k) {
    if ((p.in[Thread()] + k) % 3 != 0) continue;
    const u32 active = ActiveLanes();
    if (FirstLane(active) == Lane()) AtomicAdd(p.out, static_cast<u32>(PopulationCount(active)));
    WarpBarrier(active);
  }
}

// Warp 0 fills a buffer while the others empty the other one.
JP_KERNEL(Producer, Words, 1024, 1) {
  JP_SHARED(u32, buffer[2][32]);
  JP_SHARED(u32, sum);
  if (Thread() == 0) sum = 0;
  BlockBarrier();
  for (int k = 0; k < static_cast<int>(p.n); ++k) {
    if (Warp() == 0) {
      buffer[k % 2][Lane()] = p.in[32 * k + Lane()];  // step k - 2 is over: others passed its successor's barrier
      NamedBarrier(1 + k % 2, Threads());
    } else {
      NamedBarrier(1 + k % 2, Threads());
      if (Warp() == 1 + k % (Threads() / kWarp - 1)) AtomicAdd(&sum, buffer[k % 2][Lane()]);
    }
  }
  BlockBarrier();
  if (Thread() == 0) p.out[Block()] = sum;
}

// Copies that overlap: reverses tiles.
JP_KERNEL(Copied, Words, 1024, 1) {
  JP_SHARED(Words4, tiles[3][64]);
  auto fetch = [&](i64 k) {
    if (k < p.n) CopyAsync<16>(&tiles[k % 3][Thread()], p.in + 4 * (k * 64 + Thread()));
    CommitCopies();
  };
  fetch(0);
  fetch(1);
  for (i64 k = 0; k < p.n; ++k) {
    WaitForCopies<1>();
    BlockBarrier();
    fetch(k + 2);
    StoreOnce(reinterpret_cast<Words4*>(p.out) + k * 64 + Thread(), tiles[k % 3][63 - Thread()]);
  }
}

// A histogram whose bins lie in the blocks of a cluster.
JP_KERNEL(Clustered, Words, 1024, 1) {
  u32* bins = reinterpret_cast<u32*>(DynamicShared());
  for (int b = Thread(); b < 50; b += Threads()) bins[b] = 0;
  ClusterBarrier();
  for (i64 i = Block() * Threads() + Thread(); i < p.n; i += Blocks() * Threads()) {
    const u32 bin = p.in[i] % static_cast<u32>(50 * ClusterSize());
    AtomicAdd(InBlockOfCluster(bins, static_cast<int>(bin / 50)) + bin % 50, 1u);
  }
  ClusterBarrier();
  for (int b = Thread(); b < 50; b += Threads()) AtomicAdd(p.out + 50 * ClusterRank() + b, bins[b]);
}

JP_KERNEL(Sizes, Words, 96, 1) {
  if (Thread() == 95) p.out[Block()] = static_cast<u32>(kArch + Threads() + Blocks() + Warp() + Lane());
}

JP_KERNEL(Halves, Words, 1024, 1) {
  for (i64 i = Block() * Threads() + Thread(); i < p.n; i += Blocks() * Threads()) {
    const u32 bits = p.in[i];
    p.out[4 * i] = ToF16(BitCast<float>(bits));
    p.out[4 * i + 1] = ToBf16(BitCast<float>(bits));
    p.out[4 * i + 2] = BitCast<u32>(FromF16(static_cast<u16>(bits)));
    p.out[4 * i + 3] = BitCast<u32>(FromBf16(static_cast<u16>(bits)));
  }
}

JP_KERNEL(Atomics, Words, 1024, 1) {
  u64* wide = reinterpret_cast<u64*>(p.out + 8);
  AtomicMin(p.out + 1, p.in[Thread()]);
  AtomicMax(reinterpret_cast<i32*>(p.out) + 2, static_cast<i32>(p.in[Thread()]));
  AtomicXor(p.out + 3, p.in[Thread()]);
  AtomicAdd(reinterpret_cast<float*>(p.out) + 4, 1.0f);
  AtomicAddF16(reinterpret_cast<u16*>(p.out + 5), ToF16(0.5f));
  AtomicAddBf16(reinterpret_cast<u16*>(p.out + 6), ToBf16(2));
  AtomicAddBf16(reinterpret_cast<u16*>(p.out + 6) + 1, ToBf16(1));
  AtomicAdd(wide, static_cast<u64>(p.in[Thread()]));
  AtomicAdd2(reinterpret_cast<float*>(p.out) + 10, 1, 2);
  u128* pair = reinterpret_cast<u128*>(p.out + 12);
  for (u128 old = LoadRelaxed(pair);;) {
    const u128 seen = AtomicCas(pair, old, {old.lo + 1, old.hi + 2});
    if (seen.lo == old.lo && seen.hi == old.hi) break;
    old = seen;
  }
}
"""


@functools.cache
def right() -> emulator.Module:
    return emulator.Module(RIGHT)
