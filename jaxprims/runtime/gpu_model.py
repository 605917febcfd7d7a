"""Paper 1's model of a GPU: how many subhistograms M, how many passes S, in which memory.

Pure functions of the histogram and a :class:`Device`; nothing here touches a GPU. The names are the paper's (figure 2):
N elements, H bins, a race factor RF, T threads of which C cooperate on one of M subhistograms, S passes of Hchk bins each.
Two choices come out, one for shared memory (section III-C, equations 1-3) and one for global memory, where the subhistograms
should stay in the L2 cache (section III-D, equations 4-6); :func:`choose` picks between them as section V-A does.
"""

from __future__ import annotations

import dataclasses
from math import ceil, floor
from typing import Literal

AtomicClass = Literal["HDW", "CAS", "XCG"]
"""How a bin is updated: a hardware atomic, a compare-and-swap loop, or under a lock."""

K_RF = 0.75  # equation 4: how far a race factor expands the cache
C_K_MIN = 2  # equation 5: at least so many bins for each thread of a group
F_L2 = 0.4  # equation 5: the part of L2 that is left to histograms
LOCK_BYTES = 4

U: dict[AtomicClass, float] = {"HDW": 2.0, "CAS": 1.0, "XCG": 1.0}
"""Equation 6: hardware atomics bear twice the cooperation."""

MAX_SHARED_PASSES: dict[AtomicClass, int] = {"HDW": 3, "CAS": 4, "XCG": 6}
"""Section V-A: beyond so many passes in shared memory, global memory is faster."""


@dataclasses.dataclass(frozen=True)
class Device:
    """What the model needs to know of a GPU. The defaults are the paper's RTX 2080 Ti."""

    shared_bytes: int = 48 * 1024  # L: shared memory of one block
    l2_bytes: int = 11 * 1024 * 1024 // 2  # L2
    l2_line: int = 64  # bytes that an update brings into L2
    threads: int = 69_632  # T_hw: hardware threads at once
    block: int = 1024  # B: threads of a block
    compute_capability: tuple[int, int] = (7, 5)

    @property
    def cas_bytes(self) -> int:
        """The widest element that atomicCAS exchanges."""
        return 16 if self.compute_capability >= (9, 0) else 8


@dataclasses.dataclass(frozen=True)
class Element:
    """A bin's element. ``parts``: the bytes of it in each array that holds a part (several for a tuple of arrays)."""

    parts: tuple[int, ...]
    atomic: AtomicClass

    @property
    def size(self) -> int:
        """``elsize``: the bytes of one bin, its lock included."""
        return sum(self.parts) + (LOCK_BYTES if self.atomic == "XCG" else 0)

    @property
    def average_size(self) -> float:
        """``elsize_avg``: the bytes of one bin in one array, where the locks are an array of their own (section III-D)."""
        return self.size / (len(self.parts) + (self.atomic == "XCG"))


@dataclasses.dataclass(frozen=True)
class Choice:
    """M subhistograms (of each block in shared memory, of the whole grid in global memory), built in S passes of Hchk bins."""

    space: Literal["shared", "global"]
    subhistograms: int  # M
    passes: int  # S
    chunk: int  # Hchk
    cooperation_level: int  # C: threads that share a subhistogram


def shared(device: Device, n: int, bins: int, element: Element) -> Choice:
    """Equations 1-3: the most subhistograms that fit a block's shared memory, in passes if not even one does.

    >>> shared(Device(), 50_000_000, 127, Element((4,), "HDW"))
    Choice(space='shared', subhistograms=96, passes=1, chunk=127, cooperation_level=11)
    """
    blocks = ceil(min(device.threads, n) / device.block)
    m0 = min(device.shared_bytes / element.size, n / blocks) / bins
    m = max(1, min(floor(m0), device.block))
    length = device.shared_bytes // (element.size * m)
    if length == 0:
        raise ValueError(f"an element of {element.size} bytes does not fit {device.shared_bytes} bytes of shared memory")
    passes = ceil(bins / length)
    return Choice("shared", m, passes, ceil(bins / passes), ceil(device.block / m))


def race_expansion(device: Device, race_factor: float, element: Element) -> float:
    """Equation 4: how much larger the L2 cache looks to a histogram of which only H / RF bins are active.

    The paper prints min(1, line / elsize_avg). Its text (an active bin may waste all the rest of its line) and its Table I
    are those of max: a bin narrower than a line expands the cache by less.
    """
    return max(1.0, K_RF * race_factor / max(1.0, device.l2_line / element.average_size))


def global_(device: Device, n: int, bins: int, element: Element, race_factor: float = 1.0) -> Choice:
    """Equations 5 and 6: as many subhistograms and as few passes as keep the active bins in the L2 cache.

    >>> global_(Device(), 50_000_000, 192 * 1024, Element((4,), "CAS"), race_factor=63)
    Choice(space='global', subhistograms=8, passes=1, chunk=196608, cooperation_level=8038)
    """
    threads = min(device.threads, n)
    cache = F_L2 * device.l2_bytes * race_expansion(device, race_factor, element)
    c_max = min(threads, max(1, bins // C_K_MIN))
    m_min = max(1, threads // c_max)
    passes = ceil(m_min * bins * element.average_size / cache)
    chunk = ceil(bins / passes)
    k_max = min(cache / element.size, n) / threads
    c = min(threads, max(1, floor(U[element.atomic] * chunk / k_max)))
    return Choice("global", max(1, threads // c), passes, chunk, c)


def choose(device: Device, n: int, bins: int, element: Element, race_factor: float = 1.0) -> Choice:
    """Shared memory if it takes at most :data:`MAX_SHARED_PASSES`, else global memory (section V-A).

    >>> [choose(Device(), 50_000_000, h * 1024, Element((4,), "HDW")).space for h in (24, 36, 48)]
    ['shared', 'shared', 'global']
    """
    if element.size <= device.shared_bytes:
        choice = shared(device, n, bins, element)
        if choice.passes <= MAX_SHARED_PASSES[element.atomic]:
            return choice
    return global_(device, n, bins, element, race_factor)


def blocks_per_histogram(device: Device, histograms: int) -> int:
    """K of section IV-C: blocks for each histogram of a batch, so that all together occupy the device.

    >>> blocks_per_histogram(Device(), 10), blocks_per_histogram(Device(), 1000)
    (7, 1)
    """
    return ceil(ceil(device.threads / device.block) / histograms)
