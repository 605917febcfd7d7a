"""Squares of scalars, transposed: what lies along rows becomes vectors across them, and back.

A square of ``width`` rows is transposed by exchanges of their halves, quarters and so on, two such steps in one pass through the
square (LLVM is slow on deeper ones), which lies in the cache. The steps may come in any order: of a square of which few columns
are of use, the passes at the narrow end go through the rows that these become.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ..llvm.build import I32, I64, PTR, declare, i64, least, loop
from ..llvm.structs import swapped
from ..llvm.types import register_type, suffix
from ..llvm.vectors import load_row, store_row

Get = Callable[[ir.IRBuilder, ir.Value], ir.Value]
Put = Callable[[ir.IRBuilder, ir.Value, ir.Value], None]


def stored_type(dtype: str) -> ir.Type:
    """A scalar's type in a square: 4 bytes at least, so that there are few kinds."""
    t = register_type(dtype)
    return I32 if isinstance(t, ir.IntType) and t.width < 32 else t


def to_stored(b: ir.IRBuilder, v: ir.Value, dtype: str) -> ir.Value:
    wide = ir.VectorType(stored_type(dtype), v.type.count)
    return v if v.type == wide else b.zext(v, wide)


def from_stored(b: ir.IRBuilder, v: ir.Value, dtype: str) -> ir.Value:
    narrow = register_type(dtype, v.type.count)
    return v if v.type == narrow else b.trunc(v, narrow)


def row_at(b: ir.IRBuilder, square: ir.Value, t: ir.Type, width: int, row: ir.Value) -> ir.Value:
    return b.gep(square, [b.mul(row, i64(width))], source_etype=t)


def transposer(module: ir.Module, t: ir.Type, width: int) -> ir.Function:
    """``transpose(square)``, in place."""
    fn, b, known = _function(module, f"transpose.{suffix(t)}", [PTR])
    if not known:
        get, put = _rows_of(fn.args[0], t, width)
        for span, radix in _passes(width):
            _pass(b, (span, radix), i64(width // span), get, put)
        b.ret_void()
    return fn


def reader(module: ir.Module, dtype: str, width: int) -> ir.Function:
    """``read(rows, stride, last, columns, square)``: the first ``columns`` scalars of ``width`` rows, ``stride`` bytes apart, as
    so many rows of the square; what is behind the row ``last`` repeats it."""
    return _mover(module, dtype, width, writes=False)


def writer(module: ir.Module, dtype: str, width: int) -> ir.Function:
    """``write(rows, stride, last, columns, square)``: the inverse, to the rows up to ``last``; the square is lost."""
    return _mover(module, dtype, width, writes=True)


def _mover(module: ir.Module, dtype: str, width: int, writes: bool) -> ir.Function:
    fn, b, known = _function(module, f"{'write' if writes else 'read'}.{dtype}", [PTR, I64, I64, I64, PTR])
    if known:
        return fn
    rows, stride, last, columns, square = fn.args
    get, put = _rows_of(square, stored_type(dtype), width)

    def passes(rest: ir.Value | None) -> None:
        def load(b: ir.IRBuilder, row: ir.Value) -> ir.Value:
            p = _row(b, rows, stride, last, row)
            return to_stored(b, load_row(b, p, dtype, width, 1, [0], rest, False)[0], dtype)

        def store(b: ir.IRBuilder, row: ir.Value, v: ir.Value) -> None:
            store_row(b, [from_stored(b, v, dtype)], _row(b, rows, stride, last, row), dtype, width, rest)

        for span, radix in _passes(width)[:: -1 if writes else 1]:
            own_get = load if span == width and not writes else get
            own_put = store if span == width and writes else put
            _pass(b, (span, radix), _of_use(b, rest, span, width), own_get, own_put)

    with b.if_else(b.icmp_signed(">=", columns, i64(width))) as (whole, otherwise):
        with whole:
            passes(None)
        with otherwise:
            passes(columns)
    b.ret_void()
    return fn


def _function(module: ir.Module, name: str, params: Sequence[ir.Type]) -> tuple[ir.Function, ir.IRBuilder, bool]:
    """One that the module holds once, and whether it does already."""
    known = module.globals.get(name)
    if known is not None:
        return known, ir.IRBuilder(), True
    b, _ = declare(module, name, params, inner=True)
    return b.function, b, False


def _row(b: ir.IRBuilder, rows: ir.Value, stride: ir.Value, last: ir.Value, row: ir.Value) -> ir.Value:
    at = least(b, row, last)
    return b.gep(rows, [b.mul(at, stride)], source_etype=ir.IntType(8))


def _rows_of(square: ir.Value, t: ir.Type, width: int) -> tuple[Get, Put]:
    def get(b: ir.IRBuilder, row: ir.Value) -> ir.Value:
        return b.load(row_at(b, square, t, width, row), typ=ir.VectorType(t, width))

    def put(b: ir.IRBuilder, row: ir.Value, v: ir.Value) -> None:
        b.store(v, row_at(b, square, t, width, row))

    return get, put


def _passes(width: int) -> list[tuple[int, int]]:
    """How many neighbours a pass's groups of rows lie among, and how many a group has."""
    out, span = list[tuple[int, int]](), width
    while span > 1:
        out.append((span, min(4, span)))
        span //= out[-1][1]
    return out


def _of_use(b: ir.IRBuilder, columns: ir.Value | None, span: int, width: int) -> ir.Value:
    """Spans of the rows that so many columns become."""
    if span == width or columns is None:
        return i64(width // span)
    some = b.sdiv(b.add(columns, i64(span - 1)), i64(span))
    return least(b, some, i64(width // span))


def _pass(b: ir.IRBuilder, step: tuple[int, int], spans: ir.Value, get: Get, put: Put) -> None:
    span, radix = step
    least = span // radix  # rows of a group lie so far apart
    with loop(b, i64(0), spans) as high, loop(b, i64(0), i64(least)) as low:
        first = b.add(b.mul(high, i64(span)), low)
        places = [b.add(first, i64(k * least)) for k in range(radix)]
        rows = [get(b, p) for p in places]
        half = radix // 2
        while half:
            for k in range(radix):
                if not k & half:
                    rows[k], rows[k + half] = swapped(b, rows[k], rows[k + half], half * least)
            half //= 2
        for p, v in zip(places, rows, strict=True):
            put(b, p, v)
