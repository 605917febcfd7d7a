"""The emulated GPU on which the CUDA half is tested: does it compute what hardware does, and find what hardware punishes? And
random calls of the CUDA half on it.
"""

from __future__ import annotations

import functools
import platform
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from drawn import count

from tests.emulation import emulator, toolchain

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the emulation needs an x86-64 host")

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
  AtomicAddBf16x2(p.out + 6, static_cast<u32>(ToBf16(1)) << 16 | ToBf16(2));
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


def numbers(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, n, np.uint32)


@pytest.mark.parametrize("threads", [32, 256, 1024])
def test_a_sum_by_shuffles_and_shared_memory(threads: int) -> None:
    x = numbers(10_000)
    for blocks in (1, 3, 40):
        out = np.zeros(1, np.uint32)
        right().launch("Sums", blocks, threads, [out, x.size, x])
        assert out[0] == x.sum(dtype=np.uint32)


@pytest.mark.parametrize("lanes", [0xFFFFFFFF, 1, 0x80000001, 0x0F0F0F0F, 0x12345678])
def test_collectives_of_a_warp(lanes: int) -> None:
    x = numbers(64, lanes) % 1000
    out = np.zeros((64, 12), np.uint32)
    right().launch("Collectives", 1, 64, [out, lanes, x])
    members = [k for k in range(32) if lanes >> k & 1]

    def mask(chosen: Any) -> int:
        return sum(1 << k for k in members if chosen(k))

    for thread in (t for t in range(64) if lanes >> (t % 32) & 1):
        first = thread // 32 * 32
        w, me = x[first : first + 32], thread % 32
        same = mask(lambda k, w=w, me=me: w[k] % 4 == w[me] % 4)
        expected = [
            mask(lambda k, w=w: w[k] & 1),
            any(w[k] % 16 == 0 for k in members),
            all(w[k] % 16 != 0 for k in members),
            same,
            same,
            w[members[0]],
        ]
        if len(members) == 32:
            expected += [w[me - 3 if me >= 3 else me], w[me + 5 if me < 27 else me], w[me ^ 9], w[max(me - 1, 0)]]
            expected += [w[min(me + 1, 31)] % 2 == 0, (x == 64).any()]
        assert out[thread, : len(expected)].tolist() == [int(e) for e in expected]


@pytest.mark.parametrize("name", ["Histogram", "Clustered"])
def test_histograms_in_shared_memory(name: str) -> None:
    x = numbers(20_000)
    for blocks, cluster in ((2, 2), (12, 4)) if name == "Clustered" else ((1, 1), (9, 1)):
        bins = 50 * cluster if name == "Clustered" else 100
        out = np.zeros(bins, np.uint32)
        right().launch(name, blocks, 256, [out, x.size, x], shared=400, cluster=cluster)
        np.testing.assert_array_equal(out, np.bincount(x % bins, minlength=bins))


def test_blocks_that_wait_for_each_other() -> None:
    x = numbers(300) % 1000
    for _ in range(20):
        out = np.zeros(2 + 2 * x.size, np.uint32)
        right().launch("Chain", 17, 64, [out, x.size, x])
        np.testing.assert_array_equal(out[3::2], np.cumsum(x))


def test_locks_taken_by_the_lanes_of_a_warp() -> None:
    for _ in range(10):
        out = np.zeros(2, np.uint32)
        right().launch("Locked", 3, 64, [out, 5, out])
        assert out.tolist() == [0, 3 * 64 * 5]


def test_lanes_that_are_active_together() -> None:
    x = numbers(128) % 3
    for _ in range(10):
        out = np.zeros(1, np.uint32)
        right().launch("Aggregated", 2, 128, [out, 30, x])
        assert out[0] == 2 * 128 * 10


def test_producers_and_consumers() -> None:
    x = numbers(32 * 20)
    for _ in range(10):
        out = np.zeros(3, np.uint32)
        right().launch("Producer", 3, 128, [out, 20, x])
        assert (out == x.sum(dtype=np.uint32)).all()


def test_copies_past_the_registers() -> None:
    x = numbers(4 * 64 * 9)
    for _ in range(10):
        out = np.zeros_like(x)
        right().launch("Copied", 1, 64, [out, 9, x])
        np.testing.assert_array_equal(out.reshape(9, 64, 4), x.reshape(9, 64, 4)[:, ::-1])


def test_sizes_and_architecture() -> None:
    out = np.zeros(5, np.uint32)
    right().launch("Sizes", 5, 96, [out, 0, out])
    assert (out == 90 + 96 + 5 + 2 + 31).all()


def test_conversions_of_halves() -> None:
    import ml_dtypes

    x = np.concatenate([numbers(200_000), np.arange(65536, dtype=np.uint32), np.arange(0x477FE000, 0x47801000, dtype=np.uint32)])
    x = np.concatenate([x, np.arange(65536, dtype=np.float16).view(np.uint16).astype(np.uint32) << 13])
    out = np.zeros((x.size, 4), np.uint32)
    right().launch("Halves", 4, 256, [out, x.size, x])
    bits = x.astype(np.uint16)
    with np.errstate(all="ignore"):
        expected = (
            x.view(np.float32).astype(np.float16).astype(np.float32),
            x.view(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32),
            bits.view(np.float16).astype(np.float32),
            bits.view(ml_dtypes.bfloat16).astype(np.float32),
        )
        found = (
            out[:, 0].astype(np.uint16).view(np.float16).astype(np.float32),
            out[:, 1].astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.float32),
            out[:, 2].view(np.float32),
            out[:, 3].view(np.float32),
        )
    for e, f in zip(expected, found, strict=True):
        np.testing.assert_array_equal(e, f)


def test_atomics() -> None:
    x = numbers(256)
    out = np.zeros(16, np.uint32)
    out[1] = 2**32 - 1
    right().launch("Atomics", 1, 256, [out, 0, x])
    assert out[1:4].tolist() == [x.min(), max(int(x.view(np.int32).max()), 0), np.bitwise_xor.reduce(x)]
    assert out[4:5].view(np.float32)[0] == 256
    assert out[5:6].view(np.float16)[0] == 128
    assert (out[6:7].view(np.uint16).astype(np.uint32) << 16).view(np.float32).tolist() == [512, 256]  # 256 + 1 ties to even
    assert out[8:10].view(np.uint64)[0] == x.sum(dtype=np.uint64)
    assert out[10:12].view(np.float32).tolist() == [256, 512]
    assert out[12:16].view(np.uint64).tolist() == [256, 512]


WRONG = r"""
struct Words { u32* out; i64 n; };

JP_KERNEL(NoBarrier, Words, 1024, 1) {
  JP_SHARED(u32, x[1024]);
  x[Thread()] = static_cast<u32>(Thread());
  p.out[Block() * Threads() + Thread()] = x[(Thread() + 40) % Threads()];
}
JP_KERNEL(NoWarpBarrier, Words, 1024, 1) {
  JP_SHARED(u32, x[1024]);
  x[Thread()] = static_cast<u32>(Thread());
  p.out[Block() * Threads() + Thread()] = x[Thread() ^ 1];
}
JP_KERNEL(OneBarrierOfTwo, Words, 1024, 1) {
  JP_SHARED(u32, x);
  for (u32 k = 0; k < 10; ++k) {
    if (Thread() == 0) x = k;
    BlockBarrier();
    if (x != k) p.out[0] = 1;
  }
}
JP_KERNEL(NoWait, Words, 1024, 1) {
  JP_SHARED(u32, x[1024]);
  CopyAsync<4>(x + Thread(), p.out + Block() * Threads() + Thread());
  CommitCopies();
  BlockBarrier();
  p.out[Block() * Threads() + Thread()] = x[Thread()];
}
JP_KERNEL(WaitsForTooFew, Words, 1024, 1) {
  JP_SHARED(u32, x[1024]);
  CopyAsync<4>(x + Thread(), p.out + Block() * Threads() + Thread());
  CommitCopies();
  WaitForCopies<1>();
  p.out[Block() * Threads() + Thread()] = x[Thread()];
}
JP_KERNEL(NeverWritten, Words, 1024, 1) {
  JP_SHARED(u32, x[1024]);
  if (p.n > 0) x[Thread()] = 0;
  p.out[Block() * Threads() + Thread()] = x[Thread()];
}
JP_KERNEL(LaterBlock, Words, 1024, 1) {  // counts on the order in which blocks start
  if (Block() + 1 < Blocks()) {
    while (LoadAcquire(p.out + Block() + 1) == 0) Backoff();
  }
  StoreRelease(p.out + Block(), 1);
}
JP_KERNEL(LostUpdate, Words, 1024, 1) {
  const u32 old = AtomicAdd(p.out + 1, 0u);
  AtomicExchange(p.out + 1, old + 1);
}

JP_KERNEL(LanesApart, Words, 1024, 1) {
  if (Lane() < 16) {
    p.out[0] = ShuffleXor(1u, 1);
  } else {
    p.out[1] = ShuffleXor(1u, 1);
  }
}
JP_KERNEL(LaneGone, Words, 1024, 1) {
  if (Lane() == 7) return;
  p.out[0] = Ballot(true);
}
JP_KERNEL(NotOfTheLanes, Words, 1024, 1) { p.out[0] = Ballot(true, 1); }
JP_KERNEL(TwoBarriers, Words, 1024, 1) {
  if (Warp() == 0) {
    BlockBarrier();
  } else {
    BlockBarrier();
  }
}
JP_KERNEL(Deadlock, Words, 1024, 1) {
  if (Warp() == 0) {
    NamedBarrier(1, 64);
  } else {
    BlockBarrier();
  }
}
JP_KERNEL(WaitsForNobody, Words, 1024, 1) {
  while (LoadAcquire(p.out) == 0) Backoff();
}
JP_KERNEL(LockKept, Words, 1024, 1) {
  while (AtomicExchange(p.out, 1u) != 0) {
  }
}
JP_KERNEL(NoSuchBarrier, Words, 1024, 1) { NamedBarrier(16, 64); }
JP_KERNEL(OddBarrier, Words, 1024, 1) { NamedBarrier(1, 40); }
JP_KERNEL(Misaligned, Words, 1024, 1) { reinterpret_cast<u64*>(p.out + 1)[0] = 1; }
JP_KERNEL(MisalignedVector, Words, 1024, 1) { LoadOnce(reinterpret_cast<const Words4*>(p.out + 2)); }
JP_KERNEL(MisalignedAtomic, Words, 1024, 1) { AtomicAdd2(reinterpret_cast<float*>(p.out + 1), 1, 1); }
JP_KERNEL(VectorAtomicInShared, Words, 1024, 1) {
  JP_SHARED(Words4, x);
  AtomicAdd2(reinterpret_cast<float*>(&x), 1, 1);
}
JP_KERNEL(CopyToGlobal, Words, 1024, 1) { CopyAsync<4>(p.out, p.out + 4); }
JP_KERNEL(NoSuchBlock, Words, 1024, 1) {
  JP_SHARED(u32, x);
  *InBlockOfCluster(&x, 2) = 1;
}
JP_KERNEL(Nowhere, Words, 1024, 1) { *reinterpret_cast<volatile u32*>(p.n) = 1; }
JP_KERNEL(TooDeep, Words, 1024, 1) {
  volatile char x[1 << 20];
  for (i64 k = (1 << 20) - 1; k >= 0; k -= 512) x[k] = 1;
}
JP_KERNEL(ShiftTooFar, Words, 1024, 1) { p.out[0] = 1u << (p.n + 32); }
JP_KERNEL(Overflow, Words, 1024, 1) { p.out[0] = static_cast<u32>(0x7fffffff + static_cast<int>(p.n) + 1); }
JP_KERNEL(BeyondTheEnd, Words, 1024, 1) {
  JP_SHARED(u32, x[8]);
  x[p.n + 8] = 1;
}
JP_KERNEL(DividesByZero, Words, 1024, 1) { p.out[0] = static_cast<u32>(7 / p.n); }
JP_KERNEL(SmallBlock, Words, 64, 1) {}
"""


@functools.cache
def wrong() -> emulator.Module:
    return emulator.Module(WRONG)


SILENT = {  # what is right; else hardware, too, would compute something
    "NoBarrier": lambda out: (out.reshape(2, 128) == (np.arange(128) + 40) % 128).all(),
    "NoWarpBarrier": lambda out: (out.reshape(2, 128) == np.arange(128) ^ 1).all(),
    "OneBarrierOfTwo": lambda out: out[0] == 0,
    "NoWait": lambda out: (out == np.arange(256)).all(),
    "WaitsForTooFew": lambda out: (out == np.arange(256)).all(),
    "NeverWritten": lambda out: len(set(out.tolist())) == 1 or (np.diff(out) == 1).all(),
    "LostUpdate": lambda out: out[1] == 256,
}


@pytest.mark.parametrize("name", SILENT)
def test_faults_that_show_in_results(name: str) -> None:
    wrongs = 0
    for _ in range(20):
        out = np.arange(256, dtype=np.uint32)
        if name in ("OneBarrierOfTwo", "LostUpdate"):
            out[:2] = 0
        wrong().launch(name, 2, 128, [out, 0])
        wrongs += not SILENT[name](out)
    assert wrongs >= 5, "a fault that is hardly ever seen"


REPORTED = {
    "LanesApart": "wait for each other at different collectives",
    "LaneGone": "exited",
    "NotOfTheLanes": "this one is none of",
    "TwoBarriers": "different barriers",
    "Deadlock": "deadlock",
    "WaitsForNobody": "nothing happens any more",
    "LockKept": "nothing happens any more",
    "NoSuchBarrier": "no named barrier 16",
    "OddBarrier": "a barrier of 40 threads",
    "Misaligned": "misaligned",
    "MisalignedVector": "misaligned",
    "MisalignedAtomic": "misaligned",
    "VectorAtomicInShared": "global memory",
    "CopyToGlobal": "not the block's shared memory",
    "NoSuchBlock": "the cluster has no block 2",
    "Nowhere": "memory that is not there",
    "TooDeep": "stack is too small",
    "ShiftTooFar": "shift",
    "Overflow": "overflows",
    "BeyondTheEnd": "index beyond an array",
    "DividesByZero": "division by zero",
}


@pytest.mark.parametrize("name", REPORTED)
def test_faults_that_fail_a_launch(name: str) -> None:
    out = np.zeros(512, np.uint32)
    aligned = out[(-out.ctypes.data // 4) % 4 :]
    with pytest.raises(emulator.LaunchError, match=REPORTED[name]) as error:
        wrong().launch(name, 2, 128, [aligned, 0])
    assert f"kernel {name}" in str(error.value)
    right().launch("Sizes", 1, 96, [out, 0, out])  # the next launch works
    assert out[0] == 90 + 96 + 1 + 2 + 31


def test_an_order_of_blocks_that_nobody_promised_fails_now_and_then() -> None:
    failed = 0
    for _ in range(30):
        try:
            wrong().launch("LaterBlock", 20, 32, [np.zeros(20, np.uint32), 0])
        except emulator.LaunchError as e:
            assert "nothing happens" in str(e)
            failed += 1
    assert 5 <= failed < 30


def test_an_access_beyond_a_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    with emulator.guarded(100, np.uint32) as buffer:
        buffer[:] = 1
        out = np.zeros(1, np.uint32)
        right().launch("Sums", 1, 32, [out, 100, buffer])
        assert out[0] == 100
        with pytest.raises(emulator.LaunchError, match="memory that is not there"):
            right().launch("Sums", 1, 32, [out, 101, buffer])


def test_limits_of_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    out = np.zeros(4, np.uint32)

    def refused(why: str, name: str, blocks: int, threads: int, **options: int) -> None:
        with pytest.raises(emulator.LaunchError, match=why):
            wrong().launch(name, blocks, threads, [out, 0], **options)

    refused("its bound is 64", "SmallBlock", 1, 96)
    refused("no such block", "SmallBlock", 1, 0)
    refused("clusters of 3", "SmallBlock", 4, 64, cluster=3)
    refused("clusters of 16", "SmallBlock", 16, 64, cluster=16)
    refused("attribute 8", "SmallBlock", 1, 64, shared=300_000)
    wrong().launch("SmallBlock", 1, 64, [out, 0], shared=200_000)
    monkeypatch.setenv("JAXPRIMS_EMULATION_DEVICE", "shared=65536 major=8")
    refused("attribute 8", "SmallBlock", 1, 64, shared=65_537)
    refused("clusters of 2", "SmallBlock", 4, 64, cluster=2)
    for device, clusters in (  # blocks of a cluster are in one group of multiprocessors
        ("multiprocessors=132 group=18", {1: 132, 2: 66, 4: 4 * 7 + 1, 8: 2 * 7 + 0}),
        ("multiprocessors=4 group=2 threads=64", {2: 2, 4: 0}),
        ("multiprocessors=4 major=8", {2: 0}),
    ):
        monkeypatch.setenv("JAXPRIMS_EMULATION_DEVICE", f"{device} blocks=1")
        for cluster, most in clusters.items():
            assert wrong().clusters("SmallBlock", 64, cluster) == most
    with pytest.raises(emulator.LaunchError, match="no kernel Missing"):
        wrong().launch("Missing", 1, 32, [out, 0])


def test_a_seed_gives_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
    struct Words { u32* out; };
    JP_KERNEL(Order, Words, 64, 1) { p.out[1 + AtomicAdd(p.out, 1u)] = static_cast<u32>(Block() * 64 + Thread()); }
    """
    orders = []
    for seed in (1, 1, 2):
        monkeypatch.setenv("JAXPRIMS_EMULATION_SEED", str(seed))
        out = np.zeros(1 + 64 * 20, np.uint32)
        emulator.driver().jp_emulation_restart()
        emulator.Module(source).launch("Order", 20, 64, [out])
        assert sorted(out[1:].tolist()) == list(range(64 * 20))
        orders.append(out.tolist())
    assert orders[0] == orders[1] != orders[2]


ORDER = r"""
struct Words { u32* out; i64 n; u32* data; };

// Blocks pass a plain value on; how, says the kernel.
#define PASS(Name, Publish, Await)                                         \
  JP_KERNEL(Name, Words, 64, 1) {                                          \
    JP_SHARED(u32, ticket);                                                \
    if (Thread() == 0) ticket = AtomicAdd(p.out, 1u);                      \
    BlockBarrier();                                                        \
    u32* flag = p.out + 1 + ticket;                                        \
    u64* wide = reinterpret_cast<u64*>(p.out + 100) + ticket;              \
    if (Thread() == 0) {                                                   \
      u32 before = 0;                                                      \
      if (ticket > 0) {                                                    \
        Await;                                                             \
        before = p.data[ticket - 1];                                       \
      }                                                                    \
      p.data[ticket] = before + ticket;                                    \
      Publish;                                                             \
    }                                                                      \
    (void)flag, (void)wide;                                                \
  }
PASS(Release, StoreRelease(flag, 1u), while (LoadAcquire(flag - 1) == 0) Backoff())
PASS(Fences, Fence(); StoreRelaxed(wide, u64{1}), while (LoadRelaxed(wide - 1) == 0) Backoff(); Fence())
PASS(Update, Fence(); AtomicExchange(flag, 1u), while (AtomicAdd(flag - 1, 0u) == 0) Backoff(); Fence())
PASS(NoFence, StoreRelaxed(wide, u64{1}), while (LoadRelaxed(wide - 1) == 0) Backoff(); Fence())
PASS(NoFenceAfter, Fence(); StoreRelaxed(wide, u64{1}), while (LoadRelaxed(wide - 1) == 0) Backoff())
PASS(NoRelease, AtomicExchange(flag, 1u), while (LoadAcquire(flag - 1) == 0) Backoff())
PASS(Plainly, *reinterpret_cast<volatile u32*>(flag) = 1, while (LoadAcquire(flag - 1) == 0) Backoff())

// Who comes last adds up what all wrote.
JP_KERNEL(Last, Words, 64, 1) {
  JP_SHARED(bool, last);
  p.data[Block() * Threads() + Thread()] = 1;
  if (p.n == 0) Fence();
  BlockBarrier();
  if (Thread() == 0) last = AtomicAdd(p.out, 1u) + 1 == static_cast<u32>(Blocks());
  BlockBarrier();
  if (!last) return;
  if (p.n == 0) Fence();
  u32 sum = 0;
  for (i64 i = Thread(); i < Blocks() * Threads(); i += Threads()) sum += p.data[i];
  AtomicAdd(p.out + 1, sum);
}
JP_KERNEL(SamePlace, Words, 64, 1) { p.data[p.n * Block() + Thread() / 32] = 1; }
"""


@functools.cache
def ordered() -> emulator.Module:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXPRIMS_EMULATION_ORDER", "1")
        return emulator.Module(ORDER)


@pytest.mark.parametrize("name", ["Release", "Fences", "Update", "Last"])
def test_accesses_that_fences_order(name: str) -> None:
    for _ in range(10):
        out, data = np.zeros(200, np.uint32), np.zeros(40 * 64, np.uint32)
        ordered().launch(name, 40, 64, [out, 0, data])
        assert out[1] == 40 * 64 if name == "Last" else (data[:40] == np.cumsum(np.arange(40))).all()


@pytest.mark.parametrize("name", ["NoFence", "NoFenceAfter", "NoRelease", "Plainly", "Last", "SamePlace"])
def test_accesses_that_nothing_orders(name: str) -> None:
    out, data = np.zeros(200, np.uint32), np.zeros(40 * 64, np.uint32)
    with pytest.raises(emulator.LaunchError, match="nothing orders the two") as error:
        ordered().launch(name, 40, 64, [out, int(name == "Last"), data])
    assert re.search(r"at line \d+", str(error.value))


def test_the_same_names_as_on_hardware() -> None:
    """A name that only one of the two has would be found when it is too late."""

    def names(text: str) -> set[str]:
        text = re.sub(r"//.*", "", text)
        found = set(re.findall(r"(?:JP_DEVICE|inline) [\w<>:*& ]+?[ *&](\w+)\(", text))
        return found | set(re.findall(r"JP_ATOMIC\((\w+),", text)) | set(re.findall(r"#define (JP_\w+)", text))

    hardware = names((toolchain.ROOT / "cuda" / "kernels" / "device.cuh").read_text())
    emulated = names((toolchain.HERE / "device.cuh").read_text())
    assert len(hardware) > 60
    assert hardware <= emulated, hardware - emulated


# --- the CUDA half on it --------------------------------------------------------------------------------------------------------

DEVICES = {
    "sm_90": "",
    "small": "multiprocessors=1 threads=1024 blocks=16 shared=49152 shared_multiprocessor=65536 l2=65536",
    "passes": "multiprocessors=8 threads=1024 blocks=16 shared=6144 shared_multiprocessor=8192 l2=65536",  # many, in histograms
    "stencils": "multiprocessors=4",
    "sm_80": "multiprocessors=108 major=8 minor=0 shared=166912 shared_multiprocessor=167936 l2=41943040",
}
CALLS = count(0) // 4
"""Of each operator, if more than in ``RANDOM``: ``JAXPRIMS_EXAMPLES=2000 pytest tests/test_emulation.py -k random``."""
RANDOM = {  # device: families, numbers of an operator's calls, and kernels that must have run
    "sm_90": (
        "scan reduce segments hist",
        range(1),
        "ScanAcross ScanEach ScanFlat ScanRows ReduceAcross ReduceBlocks ReduceParts ReduceRows ReduceWarps "
        "SegmentsAcross SegmentsBorders SegmentsIdentity SegmentsLong SegmentsShort HistCombine HistShared HistTiny",
    ),
    "small": (
        "scan reduce segments hist martin",
        range(1, 2),
        "ReduceAcrossParts ReduceMatrix ReduceProducerConsumer ReduceTree ReduceWarpTree "
        "SegmentsMatrix SegmentsProducerConsumer SegmentsTree SegmentsWarpTree HistFill",
    ),
    "stencils": ("stencil", range(1), "StencilCells StencilSteps"),
    "sm_80": ("hist --only 5 6 9 10 11", range(3, 4), "HistCombine HistFill HistGlobal HistShared"),  # with narrower atomics
    "passes": ("hist", range(6, 8), "HistCluster HistGlobal HistSample"),
}


@pytest.mark.parametrize("device", RANDOM)
def test_random_calls(device: str, record_property: Any) -> None:
    """In a process of its own: there the emulation takes XLA's CPU's place."""
    families, calls, kernels = RANDOM[device]
    command = [sys.executable, "-m", "tests.emulation.random_calls", str(max(len(calls), CALLS)), *families.split()]
    command += ["--first", str(calls.start), "--device", DEVICES[device]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=toolchain.ROOT)
    found = re.search(r"^(\d+) kernels, (\d+) cases$", done.stdout, re.M)
    assert done.returncode == 0 and found, done.stdout[-4000:] + done.stderr[-4000:]
    assert set(kernels.split()) <= set(re.findall(r"(\w+):\d", done.stdout))
    record_property("kernels run on the emulated GPU", int(found[1]))
    record_property("random cases run on the emulated GPU", int(found[2]))


COPY_EACH = r"""
import re
import tests.emulation.plugin
import jax, jax.numpy as jnp, numpy as np
import jaxprims as jp
from jaxprims.targets.cuda.plans import HistogramPlan
from jaxprims.targets.plans import forced

def merge(a, b):  # more than an atomic can be
    return a[0] + b[0], a[1] * b[1], a[2] ^ b[2], jnp.maximum(a[3], b[3]), jnp.minimum(a[4], b[4])

n = 20_011
rng = np.random.default_rng(1)
i, w = rng.integers(-1, 4, n).astype(np.int32), rng.integers(0, 100, n).astype(np.uint32)
five = (w, 2 * w + 1, w, w, w)
calls = {
    "HDW": lambda: jp.reduce_by_index(w.astype(np.float32), i, 3, jnp.add),
    "CAS": lambda: jp.reduce_by_index(w, i, 3, lambda a, b: jnp.minimum(a + b, jnp.uint32(2_000)), identity=0),
    "XCG": lambda: jp.reduce_by_index(five, i, 3, merge, identity=(0, 1, 0, 0, 2**32 - 1)),
}
groups = [w[i == k] for k in range(3)]
wanted = {"HDW": [g.sum() for g in groups], "CAS": [min(g.sum(), 2000) for g in groups]}
with np.errstate(over="ignore"):
    wanted["XCG"] = [f(g) for f in (np.sum, lambda g: np.prod(2 * g + 1), np.bitwise_xor.reduce, np.max, np.min) for g in groups]
for kind, call in calls.items():
    with forced(HistogramPlan("shared", subhistograms=1024)):
        assert re.search(r"M = (1024|512), S = 1", jp.explain(lambda: call(), target="sm_90")().calls[0].strategy)
        got = np.ravel(jax.tree.leaves(jax.jit(lambda: call())()))
    np.testing.assert_array_equal(got, np.asarray(wanted[kind], np.uint32), kind)
"""


def test_histograms_with_a_copy_for_each_thread() -> None:
    """Which take no atomics, whatever the operator."""
    done = subprocess.run([sys.executable, "-c", COPY_EACH], capture_output=True, text=True, check=False, cwd=toolchain.ROOT)
    assert done.returncode == 0, done.stderr[-4000:]


def test_operators_that_end_only_on_what_is_in_the_data() -> None:
    """Scans, reductions and histograms apply them to nothing else, in no lane: it would hang."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.emulation.plugin", "tests/test_endless.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=toolchain.ROOT, timeout=200)
    assert done.returncode == 0, done.stdout[-4000:]
