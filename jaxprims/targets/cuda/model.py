"""The GPU model of Henriksen et al. 2020: how many subhistograms M, how many passes S, in which memory.

Pure functions of the histogram and a :class:`Device`; nothing here touches a GPU. The equations are in ``cuda/hist_model.h``, one
text for the launcher, for the device, which chooses M and S itself once it has sampled a race factor, and for this module. The
names are the paper's (figure 2): N elements, H bins, a race factor RF, T threads of which C cooperate on one of M subhistograms,
S passes of Hchk bins each. Two choices come out, one for shared memory (section III-C, equations 1-3) and one for global memory,
where the subhistograms should stay in the L2 cache (section III-D, equations 4-6); :func:`choose` picks between them as section
V-A does.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from ... import _cuda

AtomicClass = Literal["HDW", "CAS", "XCG"]
"""How a bin is updated: a hardware atomic, a compare-and-swap loop, or under a lock."""

ATOMICS: tuple[AtomicClass, ...] = ("HDW", "CAS", "XCG")
LOCK_BYTES = 4

MAX_SHARED_PASSES: dict[AtomicClass, int] = {atomic: _cuda.max_shared_passes(k) for k, atomic in enumerate(ATOMICS)}
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

    @property
    def words(self) -> tuple[int, int, int, int, int]:
        return self.shared_bytes, self.l2_bytes, self.l2_line, self.threads, self.block


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

    @property
    def words(self) -> tuple[int, int, int]:
        return sum(self.parts), len(self.parts), ATOMICS.index(self.atomic)


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
    choice = Choice("shared", *_cuda.shared_choice(device.words, n, bins, element.words))
    if choice.passes == 0:
        raise ValueError(f"an element of {element.size} bytes does not fit {device.shared_bytes} bytes of shared memory")
    return choice


def race_expansion(device: Device, race_factor: float, element: Element) -> float:
    """Equation 4: how much larger the L2 cache looks to a histogram of which only H / RF bins are active."""
    return _cuda.race_expansion(device.words, race_factor, element.words)


def global_(device: Device, n: int, bins: int, element: Element, race_factor: float = 1.0) -> Choice:
    """Equations 5 and 6: as many subhistograms and as few passes as keep the active bins in the L2 cache.

    >>> global_(Device(), 50_000_000, 192 * 1024, Element((4,), "CAS"), race_factor=63)
    Choice(space='global', subhistograms=8, passes=1, chunk=196608, cooperation_level=8038)
    """
    return Choice("global", *_cuda.global_choice(device.words, n, bins, element.words, race_factor))


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
    return _cuda.blocks_per_histogram(device.words, histograms)
