"""What hardware punishes, or does not promise, shows on the emulated GPU: in results, in launches that fail, by their order."""

from __future__ import annotations

import functools
import platform
import re

import numpy as np
import pytest
from emulated import right

from tests.emulation import emulator

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the emulation needs an x86-64 host")


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
