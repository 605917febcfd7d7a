"""What a histogram's kernel and its driver agree on: the variants of a kernel, the layout of a subhistogram."""

from __future__ import annotations

import dataclasses

from ..ir.program import itemsize
from .elements import struct_of
from .histogram import PartSpec


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is fixed at compile time beside the spec; ``code`` is how the driver names it."""

    soa: bool = False  # update the result's arrays, no table
    ranged: bool = False  # only bins in [bin_lo, bin_hi); dropped elements are squeezed out instead of landing in a spare bin
    prefetch: bool = False
    wide: bool = False  # byte offsets into a table pass 2^31
    settled: bool = False  # where an operator chooses, bins seldom change: by a branch
    copies: int = 1  # C, a power of two: neighbours update different copies, so equal indices don't wait for each other

    @property
    def code(self) -> int:
        return (
            self.soa
            | self.ranged << 1
            | self.prefetch << 2
            | self.wide << 3
            | (self.copies.bit_length() - 1) << 4
            | self.settled << 7
        )

    @staticmethod
    def decode(code: int) -> Variant:
        return Variant(bool(code & 1), bool(code & 2), bool(code & 4), bool(code & 8), bool(code & 128), 1 << (code >> 4 & 7))


def slot_offsets(bins: PartSpec) -> tuple[list[int], int]:
    """Byte offset of each slot in a table's struct, and the struct's size."""
    return struct_of(map(itemsize, bins.acc))


def leaf_of_slot(bins: PartSpec) -> list[tuple[int, int, str, int]]:
    """For each slot: its leaf, its place in the leaf's slots, the leaf's dtype, the number of the leaf's slots."""
    return [(k, s, dtype, n) for k, (dtype, n) in enumerate(bins.leaves) for s in range(n)]
