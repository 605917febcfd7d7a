"""Arrays of structs of many scalars, to vectors of each slot and back.

A vector of structs is taken apart in pieces of 16 bytes, P scalars of one struct: the pieces of structs i, i + P, i + 2 P, ...
side by side are one of P vectors whose 16-byte blocks, transposed in squares, are the vectors of P slots. The last piece of a
struct overlaps the one before. LLVM takes long over one shuffle of them all, and makes slow code of it. Of few single bytes
pieces have 8, where no instruction permutes the bytes of a whole vector.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ....ir.program import itemsize
from .build import i64, side_by_side
from .engine import target
from .types import memory_type, take

_LEAST_SLOTS = 5
"""From which on pieces are better than shuffles."""


def in_pieces(dtype: str, slots: int, width: int) -> bool:
    return _piece(dtype, slots, width) > 0


def _piece(dtype: str, slots: int, width: int) -> int:
    """Scalars of a piece; 0 where a shuffle is better."""
    size = itemsize(dtype)
    pieces = (16 // size, 8) if size == 1 and target().vector_bytes < 64 else (16 // size,)
    return next((p for p in pieces if slots >= max(_LEAST_SLOTS, p) and width >= p), 0)


def load_structs(
    b: ir.IRBuilder, places: Sequence[ir.Value], dtype: str, slots: int, wanted: Sequence[int]
) -> dict[int, ir.Value]:
    """The wanted slots of the structs at these places, as they are in memory."""
    t, piece = memory_type(dtype), _piece(dtype, slots, len(places))
    out: dict[int, ir.Value] = {}
    for first in _starts(slots, piece):
        mine = [s for s in wanted if first <= s < first + piece and s not in out]
        if mine:
            loaded = [_at(b, p, first, t) for p in places]
            pieces = [b.load(p, typ=ir.VectorType(t, piece), align=itemsize(dtype)) for p in loaded]
            vectors = _transposed(b, [side_by_side(b, pieces[i::piece]) for i in range(piece)], piece)
            out |= {s: vectors[s - first] for s in mine}
    return out


def store_structs(b: ir.IRBuilder, values: Sequence[ir.Value], places: Sequence[ir.Value], dtype: str) -> None:
    """The inverse: vectors of all slots, as they are in memory."""
    t, width = memory_type(dtype), len(places)
    piece = _piece(dtype, len(values), width)
    for first in _starts(len(values), piece):
        vectors = _transposed(b, values[first : first + piece], piece)
        for k in range(width):
            i, j = k % piece, k // piece * piece
            stored = take(b, vectors[i], vectors[i], range(j, j + piece)) if width > piece else vectors[i]
            b.store(stored, _at(b, places[k], first, t), align=itemsize(dtype))


def _starts(slots: int, piece: int) -> list[int]:
    return [*range(0, slots - piece, piece), slots - piece]


def _at(b: ir.IRBuilder, p: ir.Value, slot: int, t: ir.Type) -> ir.Value:
    return b.gep(p, [i64(slot)], source_etype=t)


def _transposed(b: ir.IRBuilder, rows: Sequence[ir.Value], size: int) -> list[ir.Value]:
    """``size`` rows with every square of ``size`` lanes transposed, by halves."""
    rows, half = list(rows), size // 2
    while half:
        for k in range(size):
            if not k & half:
                rows[k], rows[k + half] = swapped(b, rows[k], rows[k + half], half)
        half //= 2
    return rows


def swapped(b: ir.IRBuilder, low: ir.Value, high: ir.Value, half: int) -> tuple[ir.Value, ir.Value]:
    """Two rows ``half`` apart with the upper half of every 2 * half lanes of the one and the lower of the other swapped."""
    width = low.type.count
    first = take(b, low, high, [k if not k & half else width + k - half for k in range(width)])
    return first, take(b, low, high, [k + half if not k & half else width + k for k in range(width)])
