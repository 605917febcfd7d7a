"""The emulated GPU on which the CUDA half is tested: does it compute what hardware does?"""

from __future__ import annotations

import platform
import re
from typing import Any

import numpy as np
import pytest
from emulated import right

from tests.emulation import toolchain

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the emulation needs an x86-64 host")


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
