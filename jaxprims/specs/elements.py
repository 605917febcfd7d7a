"""What the kinds of specs share: the arrays that f takes, slots and their dtypes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from ..ir.check import check_bits
from ..ir.program import DTYPES

MOST_PARAMS = 1 << 16
"""Far more scalars than a Program that can be compiled takes."""


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """An input array: ``slots`` scalars of ``dtype`` for each element; or, with no slots, the element's position.

    f sees the first ``params`` of the slots: all, or one lane's of an array-valued bin's values; of a position, one.
    """

    dtype: str
    slots: int
    params: int


def params_of(arrays: Sequence[ArraySpec]) -> tuple[str, ...]:
    """f's parameters. Raises ValueError for what is no array or position."""
    check_dtypes(a.dtype for a in arrays)
    for a in arrays:
        if not (1 <= a.params <= a.slots or (a.slots == 0 and a.params == 1 and a.dtype in ("s32", "s64"))):
            raise ValueError(f"{a.params} parameters of an array of {a.slots} slots of {a.dtype}")
    if sum(a.params for a in arrays) > MOST_PARAMS:
        raise ValueError(f"f takes more than {MOST_PARAMS} scalars")
    return tuple(a.dtype for a in arrays for _ in range(a.params))


def scalars_of(leaves: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """The dtypes of results' slots, one after the other. Raises ValueError for what are no results."""
    check_dtypes(dtype for dtype, _ in leaves)
    if any(slots < 1 for _, slots in leaves) or sum(slots for _, slots in leaves) > MOST_PARAMS:
        raise ValueError("a result has no slots, or too many")
    return tuple(dtype for dtype, slots in leaves for _ in range(slots))


def struct_of(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Byte offset of each scalar in a struct of scalars of these sizes, each aligned to its size, and the struct's size."""
    offsets, at, align = [], 0, 1
    for size in sizes:
        at = -(-at // size) * size
        offsets.append(at)
        at, align = at + size, max(align, size)
    return offsets, -(-at // align) * align


def check_dtypes(dtypes: Iterable[str]) -> None:
    """Raises ValueError for one that is none."""
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"unknown dtype {dtype!r}")


def check_identity(identity: Sequence[int] | None, dtypes: Sequence[str]) -> None:
    """Raises ValueError unless it is None or has bits for each of these."""
    if identity is None:
        return
    if len(identity) != len(dtypes):
        raise ValueError(f"the identity has {len(identity)} scalars; wanted {len(dtypes)}")
    for bits, dtype in zip(identity, dtypes, strict=True):
        check_bits(bits, dtype)
