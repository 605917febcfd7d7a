"""Small helpers over llvmlite's builder: loops, addresses, vectors of a struct's slots."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir

from ....ir.program import itemsize
from .types import call, from_memory, interleaved, memory_type, splat, suffix, take, to_memory, vector_of, with_lanes

I1, I8, I32, I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
PTR = ir.PointerType()
NULL = ir.Constant(PTR, None)


@functools.lru_cache(4096)
def i64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


@contextmanager
def loop(b: ir.IRBuilder, start: ir.Value, stop: ir.Value, step: int | ir.Value = 1) -> Iterator[ir.Value]:
    """``for i in range(start, stop, step)``; the builder ends up behind the loop."""
    before, head, body, after = b.block, b.append_basic_block(), b.append_basic_block(), b.append_basic_block()
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(I64)
    i.add_incoming(start, before)
    b.cbranch(b.icmp_signed("<", i, stop), body, after)
    b.position_at_end(body)
    yield i
    i.add_incoming(b.add(i, i64(step) if isinstance(step, int) else step), b.block)
    b.branch(head)
    b.position_at_end(after)


def chosen(
    b: ir.IRBuilder,
    condition: ir.Value,
    yes: Callable[[], Sequence[ir.Value]],
    no: Callable[[], Sequence[ir.Value]],
    likely: bool | None = None,
) -> list[ir.Value]:
    """``yes()`` where the condition holds, else ``no()``."""
    with b.if_else(condition, likely=likely) as (then, otherwise):
        with then:
            values, block = yes(), b.block
        with otherwise:
            others, other_block = no(), b.block
    out = []
    for v, w in zip(values, others, strict=True):
        out.append(b.phi(v.type))
        out[-1].add_incoming(v, block)
        out[-1].add_incoming(w, other_block)
    return out


def least(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.icmp_signed("<", x, y), x, y)


def address(b: ir.IRBuilder, base: ir.Value, byte_offset: ir.Value) -> ir.Value:
    return b.gep(base, [byte_offset], source_etype=I8)


def scaled(b: ir.IRBuilder, index: ir.Value, size: int) -> ir.Value:
    return index if size == 1 else b.mul(index, i64(size))


def pointer(b: ir.IRBuilder, pointers: ir.Value, k: int) -> ir.Value:
    return b.load(b.gep(pointers, [i64(k)], source_etype=PTR), typ=PTR)


def i64_at(b: ir.IRBuilder, numbers: ir.Value, k: int) -> ir.Value:
    return b.load(b.gep(numbers, [i64(k)], source_etype=I64), typ=I64)


def all_pointers(b: ir.IRBuilder, pointers: ir.Value, count: int) -> list[ir.Value]:
    return [pointer(b, pointers, k) for k in range(count)]


def load(b: ir.IRBuilder, p: ir.Value, dtype: str, width: int = 1) -> ir.Value:
    """A value or a vector of contiguous ones from memory, in registers."""
    t = memory_type(dtype)
    v = b.load(p, typ=vector_of(t, width), align=itemsize(dtype))
    return from_memory(b, v, dtype)


def store(b: ir.IRBuilder, value: ir.Value, p: ir.Value, dtype: str) -> None:
    b.store(to_memory(b, value, dtype), p, align=itemsize(dtype))


def load_each(b: ir.IRBuilder, places: Sequence[ir.Value], dtypes: Sequence[str], width: int = 1) -> list[ir.Value]:
    return [load(b, p, t, width) for p, t in zip(places, dtypes, strict=True)]


def store_each(b: ir.IRBuilder, values: Sequence[ir.Value], places: Sequence[ir.Value], dtypes: Sequence[str]) -> None:
    for v, p, t in zip(values, places, dtypes, strict=True):
        store(b, v, p, t)


def masked_load(b: ir.IRBuilder, p: ir.Value, t: ir.VectorType, mask: ir.Value) -> ir.Value:
    """Zeros where the mask is false."""
    return call(b, f"llvm.masked.load.{suffix(t)}.p0", t, p, mask, ir.Constant(t, None))


def masked_store(b: ir.IRBuilder, v: ir.Value, p: ir.Value, mask: ir.Value) -> None:
    call(b, f"llvm.masked.store.{suffix(v.type)}.p0", ir.VoidType(), v, p, mask)


def prefetch(b: ir.IRBuilder, p: ir.Value, writes: bool = False, near: int = 3) -> None:
    """Asks for a line of the cache; ``near``: into which level, 3 the first."""
    call(b, "llvm.prefetch.p0", ir.VoidType(), p, I32(int(writes)), I32(near), I32(1))


def load_slots(b: ir.IRBuilder, p: ir.Value, dtype: str, width: int, slots: int, wanted: Sequence[int]) -> dict[int, ir.Value]:
    """``width`` consecutive elements of ``slots`` scalars each, as a vector for each wanted slot."""
    if slots == 1:
        return {0: load(b, p, dtype, width)}
    if width == 1:
        return {s: load(b, address(b, p, i64(s * itemsize(dtype))), dtype) for s in wanted}
    row = b.load(p, typ=ir.VectorType(memory_type(dtype), width * slots), align=itemsize(dtype))
    return {s: from_memory(b, take(b, row, row, range(s, width * slots, slots)), dtype) for s in wanted}


def declare(
    module: ir.Module, name: str, params: Sequence[ir.Type], result: ir.Type | None = None, inner: bool = False
) -> tuple[ir.IRBuilder, list[ir.Argument]]:
    """A function, to be filled. ``inner``: one that the module's others call, and that stays one."""
    fn = ir.Function(module, ir.FunctionType(result or ir.VoidType(), params), name)
    fn.attributes.add("nounwind")
    if inner:
        fn.linkage = "internal"
        fn.attributes.add("noinline")
    return ir.IRBuilder(fn.append_basic_block("entry")), list(fn.args)


def store_slots(b: ir.IRBuilder, values: Sequence[ir.Value], p: ir.Value, dtype: str, width: int) -> ir.StoreInstr | None:
    """The inverse of :func:`load_slots`, of values as memory has them: vectors, one for each slot, by one store."""
    if width > 1:
        return b.store(interleaved(b, values), p, align=itemsize(dtype))
    for s, v in enumerate(values):
        b.store(v, address(b, p, i64(s * itemsize(dtype))), align=itemsize(dtype))
    return None


def load_few(b: ir.IRBuilder, p: ir.Value, dtype: str, count: int, slots: int) -> list[ir.Value]:
    """:func:`load_slots` of ``count`` elements, in vectors of the next power of two whose spare lanes hold the first element: no
    byte behind them is read."""
    width = vector_for(count)
    if width == count:
        return list(load_slots(b, p, dtype, count, slots, range(slots)).values())
    out: list[ir.Value] = [None] * slots
    for at, piece in _pieces(count):
        found = load_slots(b, address(b, p, i64(at * slots * itemsize(dtype))), dtype, piece, slots, range(slots))
        for s, v in found.items():
            some = splat(b, v, width) if piece == 1 else take(b, v, v, [i if i < piece else 0 for i in range(width)])
            lanes = [width + i - at if at <= i < at + piece else i if i < at else 0 for i in range(width)]
            out[s] = some if at == 0 else take(b, out[s], some, lanes)
    return out


def repeated(b: ir.IRBuilder, p: ir.Value, dtype: str, first: ir.Value, count: int, each: int) -> ir.Value:
    """A vector like those of :func:`load_few`, of ``count`` lanes from ``first`` on, a multiple of the power of two that holds as
    many; ``each`` of the lanes share one of the scalars at p."""
    width = vector_for(count)

    def from_(lane: ir.Value, few: int) -> ir.Value:
        at = b.udiv(lane, i64(each))
        return load_few(b, address(b, p, scaled(b, at, itemsize(dtype))), dtype, few, 1)[0]

    if width == 1 or each % width == 0:
        one = from_(first, 1)
        return splat(b, one, width)
    if width % each == 0:
        few = from_(first, -(-count // each))
        return take(b, few, few, [min(k, count - 1) // each for k in range(width)])
    ones = [from_(b.add(first, i64(k)), 1) for k in range(count)]
    return with_lanes(b, splat(b, ones[0], width), ones)


def store_few(b: ir.IRBuilder, values: Sequence[ir.Value], p: ir.Value, dtype: str, count: int) -> None:
    """The inverse of :func:`load_few`: no byte behind the elements is written."""
    for at, piece in _pieces(count):
        lanes = [at + i for i in range(piece)]
        mine = values if piece == count else [part(b, v, lanes) for v in values]
        store_slots(b, mine, address(b, p, i64(at * len(values) * itemsize(dtype))), dtype, piece)


def vector_for(count: int) -> int:
    """The power of two that holds so many lanes."""
    return 1 << (count - 1).bit_length()


def _pieces(count: int) -> list[tuple[int, int]]:
    """Powers of two that add up to ``count``, the largest first, and where each begins."""
    out, at = [], 0
    while at < count:
        piece = 1 << (count - at).bit_length() - 1
        out.append((at, piece))
        at += piece
    return out


def part(b: ir.IRBuilder, v: ir.Value, lanes: Sequence[int]) -> ir.Value:
    """Some lanes of a vector; of one alone, a scalar."""
    return b.extract_element(v, I32(lanes[0])) if len(lanes) == 1 else take(b, v, v, lanes)


def side_by_side(b: ir.IRBuilder, vectors: Sequence[ir.Value]) -> ir.Value:
    """As many lanes as all of these have, a power of two of vectors of one type."""
    while len(vectors) > 1:
        lanes = range(2 * vectors[0].type.count)
        vectors = [take(b, v, w, lanes) for v, w in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def bytes_of(t: ir.Type) -> int:
    return {"i8": 1, "i16": 2, "i64": 8, "double": 8}.get(str(t), 4)
