"""Vectors of structs to and from memory, all lanes or the first few, and f of them.

Lanes past the last one wanted repeat the first, which is a value that the user gave: a loop in an operator ends on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from llvmlite import ir

from ....ir.program import Program, itemsize
from ....specs.histogram import ArraySpec
from ....specs.stencil import WIDEST
from . import engine, expr
from .build import I32, address, chosen, i64, least, load_slots, masked_load, masked_store, scaled, store_slots
from .types import alloca, from_memory, interleaved, lanes, memory_type, numbers, register_type, splat, take, to_memory

MOST_SHUFFLED = 128
"""Scalars in a shuffle; LLVM takes seconds over the ones that have many more."""

MASKED = 4
"""Bytes of the smallest scalars that processors without vectors of :data:`WIDEST` load by a mask."""

LINE = 64
"""Bytes that a processor fetches at once."""


class Held:
    """Values, or vectors of so many lanes, in stack space, of which LLVM makes registers."""

    def __init__(self, b: ir.IRBuilder, dtypes: Sequence[str], width: int):
        self.b = b
        self.types = [register_type(t, width) for t in dtypes]
        self.places = [alloca(b, t) for t in self.types]

    def put(self, values: Sequence[ir.Value]) -> None:
        for p, v in zip(self.places, values, strict=True):
            self.b.store(v, p)

    def get(self) -> list[ir.Value]:
        return [self.b.load(p, typ=t) for p, t in zip(self.places, self.types, strict=True)]


class Variable:
    """A number in stack space, likewise."""

    def __init__(self, b: ir.IRBuilder, t: ir.Type, start: ir.Value | int | None = None):
        self.b, self.type, self.place = b, t, alloca(b, t)
        if start is not None:
            self.put(start)

    def put(self, v: ir.Value | int) -> None:
        self.b.store(self.type(v) if isinstance(v, int) else v, self.place)

    def get(self) -> ir.Value:
        return self.b.load(self.place, typ=self.type)


def prefix_mask(b: ir.IRBuilder, rest: ir.Value, width: int) -> ir.Value:
    """Which of ``width`` lanes are among the first ``rest``."""
    few = least(b, rest, i64(width))
    return b.icmp_signed("<", numbers(I32, range(width)), splat(b, b.trunc(few, I32), width))


def load_row(
    b: ir.IRBuilder,
    p: ir.Value,
    dtype: str,
    width: int,
    slots: int,
    wanted: Sequence[int],
    rest: ir.Value | None = None,
    fills: bool = True,
) -> dict[int, ir.Value]:
    """Like :func:`load_slots`, of the first ``rest`` structs: at least one, unless spare lanes may be zero (``fills`` false)."""
    if rest is None or width == 1:
        return load_slots(b, p, dtype, width, slots, wanted)
    n = width * slots
    loaded = load_first(b, p, ir.VectorType(memory_type(dtype), n), scaled(b, rest, slots), itemsize(dtype))
    inside, out = prefix_mask(b, rest, width), {}
    for s in wanted:
        v = loaded if slots == 1 else take(b, loaded, loaded, range(s, n, slots))
        filled = b.select(inside, v, take(b, v, v, [0] * width)) if fills else v
        out[s] = from_memory(b, filled, dtype)
    return out


def store_row(
    b: ir.IRBuilder,
    values: Sequence[ir.Value],
    p: ir.Value,
    dtype: str,
    width: int,
    rest: ir.Value | None = None,
    streams: bool = False,
) -> None:
    """The inverse of :func:`load_row`: a vector for each slot, interleaved. ``streams``: past the caches."""
    size, slots = itemsize(dtype), len(values)
    values = [to_memory(b, v, dtype) for v in values]
    if rest is not None and width > 1:
        store_first(b, interleaved(b, values), p, scaled(b, rest, slots), size)
        return
    stored = store_slots(b, values, p, dtype, width)
    if stored is not None and streams:
        stream(stored, size * slots * width)


def store_first(b: ir.IRBuilder, v: ir.Value, p: ir.Value, count: ir.Value, size: int) -> None:
    """The first ``count`` lanes, in pieces of powers of two where no vectors are :data:`WIDEST`: some of these processors take
    ten times as long for a masked store, and let loads wait for it; none has it of small scalars."""
    n = lanes(v.type)
    if engine.target().vector_bytes == WIDEST:
        masked_store(b, v, p, prefix_mask(b, count, n))
        return
    with b.if_else(b.icmp_signed(">=", count, i64(n)), likely=True) as (whole, otherwise):
        with whole:
            b.store(v, p, align=size)
        with otherwise:
            _store_pieces(b, v, p, count, size)


def _store_pieces(b: ir.IRBuilder, v: ir.Value, p: ir.Value, count: ir.Value, size: int) -> None:
    n, piece = lanes(v.type), 1 << (lanes(v.type) - 1).bit_length() - 1
    while piece:
        some = b.icmp_unsigned("!=", b.and_(count, i64(piece)), i64(0))
        with b.if_then(some):
            b.store(take(b, v, v, range(piece)), p, align=size)
        v = b.select(some, take(b, v, v, [min(k + piece, n - 1) for k in range(n)]), v)
        p = b.select(some, address(b, p, i64(piece * size)), p)
        piece //= 2


def load_first(b: ir.IRBuilder, p: ir.Value, t: ir.VectorType, count: ir.Value, size: int) -> ir.Value:
    """The first ``count`` lanes, likewise but of scalars that are :data:`MASKED`; behind them zeros."""
    if size >= MASKED or engine.target().vector_bytes == WIDEST:
        return masked_load(b, p, t, prefix_mask(b, count, t.count))
    whole = b.icmp_signed(">=", count, i64(t.count))
    return chosen(b, whole, lambda: [b.load(p, typ=t, align=size)], lambda: [_load_pieces(b, p, t, count, size)], likely=True)[0]


def _load_pieces(b: ir.IRBuilder, p: ir.Value, t: ir.VectorType, count: ir.Value, size: int) -> ir.Value:
    def before(piece: int, v: ir.Value, end: ir.Value) -> list[ir.Value]:
        start = address(b, end, i64(-piece * size))
        few = b.load(start, typ=ir.VectorType(t.element, piece), align=size)
        wide = take(b, few, few, [min(k, piece - 1) for k in range(t.count)])
        return [take(b, wide, v, [k if k < piece else t.count + k - piece for k in range(t.count)]), start]

    state, piece = [ir.Constant(t, None), address(b, p, scaled(b, count, size))], 1
    while piece < t.count:
        some = b.icmp_unsigned("!=", b.and_(count, i64(piece)), i64(0))
        state = chosen(b, some, functools.partial(before, piece, *state), functools.partial(list, state))
        piece *= 2
    return state[0]


def stream(store: ir.StoreInstr, size: int) -> None:
    """Makes a store of ``size`` bytes non-temporal; its place is a multiple of them in memory that is aligned to 64 bytes."""
    store.align = min(64, size & -size)
    store.set_metadata("nontemporal", store.parent.parent.parent.add_metadata([I32(1)]))


def f_of(
    b: ir.IRBuilder,
    f: Program,
    arrays: Sequence[ArraySpec],
    uniforms: Sequence[ir.Value],
    width: int,
    loaded: Callable[[int, list[int]], dict[int, ir.Value]],
    position: Callable[[str], ir.Value],
) -> list[ir.Value]:
    """f of ``width`` elements. ``loaded``: of an array, the slots that f uses; ``position``: of a dtype, where elements lie."""
    params = [(k, s) for k, a in enumerate(arrays) for s in range(a.params)]
    slots = dict[tuple[int, int], ir.Value]()
    for k, (a, wanted) in enumerate(zip(arrays, f.used_of(a.params for a in arrays), strict=True)):
        if a.slots and wanted:
            slots |= {(k, s): v for s, v in loaded(k, wanted).items()}
        elif wanted:
            slots[k, 0] = position(a.dtype)
    blank = [ir.Constant(register_type(t, width), ir.Undefined) for t in f.params]
    args = [slots.get(at, nothing) for at, nothing in zip(params, blank, strict=True)]
    return expr.emit(b, f, args, uniforms, width)
