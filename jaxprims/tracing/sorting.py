"""Sorting of small arrays: networks of comparisons, in registers.

Where they can, they compare integers, one for each number and its place, of which the minimum and the maximum are all that a
comparison takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..ir.program import is_float
from .elementwise import in_total_order
from .emit import Emitter, Unsupported, bits
from .lowering import Lowering
from .values import Array, Value, loaded, scalar_dtypes

Columns = Sequence[Sequence[int]]  # values at each place, of each operand


def network(count: int) -> Iterator[tuple[int, int]]:
    """The pairs that Batcher's odd-even merges put in order, one after the other (Knuth, The Art of Computer Programming 3,
    5.3.4)."""
    merged = 1
    while merged < count:
        apart = merged
        while apart:
            for first in range(apart % merged, count - apart, 2 * apart):
                for k in range(first, min(first + apart, count - apart)):
                    if k // (2 * merged) == (k + apart) // (2 * merged):
                        yield k, k + apart
            apart //= 2
        merged *= 2


def first_of(count: int, first: int) -> list[tuple[int, int]]:
    """The same of pairs that leave the ``first`` ones in order, before the others in any."""
    one_by_one = [(k - 1, k) for done in range(first) for k in range(count - 1, done, -1)]
    return min(one_by_one, list(network(count)), key=len)


# --- sort -----------------------------------------------------------------------------------------------------------------------


def sort(e: Lowering, eqn: Any, *xs: Value) -> list[Array]:
    """NaN last, zeros equal; equal keys keep their order."""
    axis, keys = eqn.params["dimension"], eqn.params["num_keys"]
    arrays = [loaded(e, x, "sort") for x in xs]
    if any(a.complex for a in arrays[:keys]):
        raise Unsupported("sort", "not on complex keys")
    table = np.stack([np.moveaxis(p, axis, 0) for a in arrays for p in a.parts])  # [operand's part, place, lane...]
    for lane in np.ndindex(table.shape[2:] if table.size else 0):
        column = (slice(None), slice(None), *lane)
        columns = table[column].tolist()
        by_codes = keys == 1 and _has_codes(e.dtype(columns[0][0]), len(columns[0]), len(columns) == 1)
        table[column] = _by_codes(e, columns) if by_codes else _by_keys(e, columns, keys)
    parts = iter(np.moveaxis(t, 0, axis) for t in table)
    return [Array(a.dtype, tuple(next(parts) for _ in a.parts)) for a in arrays]


def _by_keys(e: Emitter, columns: Columns, keys: int) -> Columns:
    """By several operands, and last by their places."""
    rows = [(*row, e.const(k, "s32")) for k, row in enumerate(zip(*columns, strict=True))]
    for j, k in network(len(rows)):
        p, q = rows[j], rows[k]
        swap = _less(e, [(q[r], p[r]) for r in (*range(keys), -1)])
        rows[j] = tuple(e.select(swap, b, a) for a, b in zip(p, q, strict=True))
        rows[k] = tuple(e.select(swap, a, b) for a, b in zip(p, q, strict=True))
    return list(zip(*rows, strict=True))[:-1]


def _less(e: Emitter, pairs: Sequence[tuple[int, int]]) -> int:
    """Lexicographic a < b."""
    (a, b), *rest = pairs
    less = e.op("lt", a, b)
    if is_float(e.dtype(a)):
        less = e.op("or", less, e.op("and", e.op("ne", b, b), e.op("eq", a, a)))
    if not rest:
        return less
    equal = e.op("eq", a, b)
    if is_float(e.dtype(a)):
        equal = e.op("or", equal, e.op("and", e.op("ne", b, b), e.op("ne", a, a)))
    return e.op("or", less, e.op("and", equal, _less(e, rest)))


def _by_codes(e: Emitter, columns: Columns) -> Columns:
    """By the first operand; places among the others are not carried along."""
    key, *rest = columns
    count, dtype = len(key), e.dtype(key[0])
    codes = [_code(e, x, k, count) for k, x in enumerate(key)]
    carried = [c for c in rest if not _are_places(e, c)]
    ordered, *moved = _exchanged(e, network(count), _with_places(e, codes) if rest else codes, carried)
    own = [_code_of(e, p, e.dtype(codes[0])) for p in ordered] if rest else ordered
    moved.reverse()
    return [
        [_decoded(e, c, count, dtype) for c in own],
        *([_place_of(e, p, e.dtype(c[0])) for p in ordered] if _are_places(e, c) else moved.pop() for c in rest),
    ]


def _are_places(e: Emitter, column: Sequence[int]) -> bool:
    return all(e.constant(x) == k for k, x in enumerate(column))


def _exchanged(e: Emitter, pairs: Iterable[tuple[int, int]], codes: Sequence[int], carried: Columns) -> list[list[int]]:
    """Integers, the lesser first after each of these exchanges, and what they carry."""
    codes, moved = list(codes), [list(c) for c in carried]
    for j, k in pairs:
        p, q = codes[j], codes[k]
        codes[j], codes[k] = e.op("min", p, q), e.op("max", p, q)
        for c in moved:
            swap = e.op("lt", q, p)
            c[j], c[k] = e.select(swap, c[k], c[j]), e.select(swap, c[j], c[k])
    return [codes, *moved]


_AMONG_NANS = {"f16": 2**10, "bf16": 2**7, "f32": 2**23, "f64": 2**52}
"""Integers above that of infinity."""


def _has_codes(dtype: str, count: int, alone: bool) -> bool:
    """Are there integers for the zeros of so many places besides those of all numbers, and one for NaN? And wider ones for each
    of them with its place, if it is not ``alone``?"""
    fits = not is_float(dtype) or 2 * count < _AMONG_NANS[dtype] - 1
    return fits and (alone or (bits(dtype) <= 32 and count <= _PLACES))


def _code(e: Emitter, x: int, place: int, count: int) -> int:
    """Of a number at its place: a float's is in IEEE's total order, with room for a zero at each of ``count`` places, whose sign
    is the last bit."""
    if not is_float(e.dtype(x)):
        return x
    ordered = in_total_order(e, x)  # which has 0 and -1 for zeros; a comparison of floats may find denormals equal to them
    zero, above = e.op("sub", e.like(ordered, 2 * place), ordered), e.op("add", ordered, e.like(ordered, 2 * count))
    at_most = e.select(e.op("ge", ordered, e.like(ordered, -1)), zero, ordered)
    code = e.select(e.op("gt", ordered, e.like(ordered, 0)), above, at_most)
    return e.select(e.op("ne", x, x), e.like(code, 2 ** (bits(e.dtype(code)) - 1) - 1), code)


def _decoded(e: Emitter, code: int, count: int, dtype: str) -> int:
    if not is_float(dtype):
        return code
    room = e.like(code, 2 * count)
    zero = e.op("neg", e.op("and", code, e.like(code, 1)))
    at_most = e.select(e.op("ge", code, e.like(code, 0)), zero, code)
    return _in_order(e, e.select(e.op("ge", code, room), e.op("sub", code, room), at_most), dtype)


def _in_order(e: Emitter, ordered: int, dtype: str) -> int:
    """The number that has this integer in total order."""
    if not is_float(dtype):
        return ordered
    n = bits(dtype)
    flip = e.op("shift_right_arithmetic", ordered, e.like(ordered, n - 1))
    return e.bitcast(e.op("xor", ordered, e.op("and", flip, e.like(ordered, 2 ** (n - 1) - 1))), dtype)


_PLACES = 2**8


def _with_places(e: Emitter, codes: Sequence[int]) -> list[int]:
    """Codes of up to 32 bits and their places, which decide between equal ones, in one integer each."""
    wide = "s32" if bits(e.dtype(codes[0])) <= 16 else "s64"
    high = (e.op("mul", e.convert(c, wide), e.const(_PLACES, wide)) for c in codes)
    return [e.op("add", c, e.const(k, wide)) for k, c in enumerate(high)]


def _code_of(e: Emitter, both: int, dtype: str) -> int:
    return e.convert(e.op("shift_right_arithmetic", both, e.like(both, _PLACES.bit_length() - 1)), dtype)


def _place_of(e: Emitter, both: int, dtype: str) -> int:
    return e.convert(e.op("and", both, e.like(both, _PLACES - 1)), dtype)


# --- top_k ----------------------------------------------------------------------------------------------------------------------


def top_k(e: Lowering, eqn: Any, x: Value) -> list[Array]:
    """The first k of a descending order, and their positions; equal ones keep theirs. Floats are in total order: NaN comes first,
    one with a sign last, and 0 before -0."""
    axis, count = eqn.params["axis"], eqn.params["k"]
    a = loaded(e, x, "top_k")
    if a.complex:
        raise Unsupported("top_k", "not on complex numbers")
    (index,) = scalar_dtypes(eqn.outvars[1].aval.dtype, "top_k")
    lanes = np.moveaxis(a.parts[0], axis, -1)
    values, places = (np.empty((*lanes.shape[:-1], count), np.int64) for _ in range(2))
    for lane in np.ndindex(lanes.shape[:-1]):
        values[lane], places[lane] = _greatest(e, lanes[lane].tolist(), count, index)
    parts = [np.moveaxis(t, -1, axis) for t in (values, places)]
    return [Array(v.aval.dtype, (part,)) for v, part in zip(eqn.outvars, parts, strict=True)]


def _greatest(e: Emitter, row: Sequence[int], count: int, index: str) -> tuple[list[int], list[int]]:
    dtype, pairs = e.dtype(row[0]), first_of(len(row), count)
    codes = [e.op("not", in_total_order(e, x)) for x in row]
    if bits(dtype) <= 32 and len(row) <= _PLACES:
        (ordered,) = _exchanged(e, pairs, _with_places(e, codes), ())
        own = (e.op("not", _code_of(e, p, e.dtype(codes[0]))) for p in ordered[:count])
        return [_in_order(e, c, dtype) for c in own], [_place_of(e, p, index) for p in ordered[:count]]
    rows = [(c, e.const(k, index), x) for k, (c, x) in enumerate(zip(codes, row, strict=True))]
    for j, k in pairs:
        p, q = rows[j], rows[k]
        swap = _less(e, [(q[0], p[0]), (q[1], p[1])])
        rows[j] = e.select(swap, q[0], p[0]), e.select(swap, q[1], p[1]), e.select(swap, q[2], p[2])
        rows[k] = e.select(swap, p[0], q[0]), e.select(swap, p[1], q[1]), e.select(swap, p[2], q[2])
    return [r[2] for r in rows[:count]], [r[1] for r in rows[:count]]


RULES: dict[str, Callable[..., Any]] = {"sort": sort, "top_k": top_k}
