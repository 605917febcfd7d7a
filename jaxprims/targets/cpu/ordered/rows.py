"""Vectors of structs to and from memory: all lanes, or the first few.

Lanes past the last one wanted repeat the first, which is a value that the user gave: a loop in an operator ends on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir

from ....ir.program import CONTROL, Builder, Program, is_float, itemsize
from ....ir.trees import trees
from ....specs.histogram import ArraySpec
from ....specs.ordered import OrderedSpec
from ..llvm import expr
from ..llvm.build import (
    I8,
    I32,
    I64,
    NULL,
    address,
    all_pointers,
    alloca,
    declare,
    i64,
    least,
    load_slots,
    loop,
    masked_load,
    masked_store,
    numbers,
    pointer,
    scaled,
    splat,
)
from ..llvm.math import MATH
from ..llvm.types import take

STARTED, RESTARTED = 1, 2
"""Bits of a kernel's progress (cpu/ordered_kernel.h)."""

RANGE = ("lo", "hi", "n", "period", "lanes", "lane_lo", "lane_hi")
"""Members of ScanRange, of 8 bytes each."""


def members(b: ir.IRBuilder, range_: ir.Value, *names: str) -> list[ir.Value]:
    """Those of a ScanRange."""
    return [b.load(b.gep(range_, [i64(RANGE.index(m))], source_etype=I64), typ=I64) for m in names]


def arrays_of(b: ir.IRBuilder, spec: OrderedSpec, arrays: ir.Value) -> list[ir.Value]:
    """Where each array begins; positions are nowhere."""
    return [pointer(b, arrays, k) if a.slots else NULL for k, a in enumerate(spec.arrays)]


def uniforms_of(b: ir.IRBuilder, spec: OrderedSpec, uniforms: ir.Value) -> list[ir.Value]:
    return all_pointers(b, uniforms, len(spec.uniforms))


def prefix_mask(b: ir.IRBuilder, rest: ir.Value, width: int, slots: int = 1) -> ir.Value:
    """Which of ``width`` structs of ``slots`` scalars, scalar by scalar, are among the first ``rest``."""
    few = least(b, rest, i64(width))
    lane = numbers(I32, [k // slots for k in range(width * slots)])
    return b.icmp_signed("<", lane, splat(b, b.trunc(few, I32), width * slots))


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
    loaded = masked_load(b, p, ir.VectorType(expr.memory_type(dtype), n), prefix_mask(b, rest, width, slots))
    inside, out = prefix_mask(b, rest, width), {}
    for s in wanted:
        v = loaded if slots == 1 else take(b, loaded, loaded, range(s, n, slots))
        filled = b.select(inside, v, take(b, v, v, [0] * width)) if fills else v
        out[s] = expr.from_memory(b, filled, dtype)
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
    values = [expr.to_memory(b, v, dtype) for v in values]
    if width == 1:
        for s, v in enumerate(values):
            b.store(v, b.gep(p, [i64(s)], source_etype=v.type), align=size)
    elif rest is None:
        stored = b.store(interleaved(b, values), p, align=size)
        if streams:
            stream(stored, size * slots * width)
    else:
        masked_store(b, interleaved(b, values), p, prefix_mask(b, rest, width, slots))


def stream(store: ir.StoreInstr, size: int) -> None:
    """Makes a store of ``size`` bytes non-temporal; its place is a multiple of them in memory that is aligned to 64 bytes."""
    store.align = min(64, size & -size)
    store.set_metadata("nontemporal", store.parent.parent.parent.add_metadata([I32(1)]))


STREAMED_ROW, STREAMED_BYTES = 256, 128 * 1024
"""Elements of a row of which results are put together before they are stored past the caches, and bytes of all at most."""

LINE = 64
"""Bytes that a processor fetches at once."""


def stream_bytes(b: ir.IRBuilder, source: ir.Value, to: ir.Value, size: ir.Value, step: int) -> None:
    """Copies ``size`` bytes, a multiple of ``step``, past the caches."""
    with loop(b, i64(0), size, step) as at:
        v = b.load(address(b, source, at), typ=ir.VectorType(I8, step), align=1)
        stream(b.store(v, address(b, to, at)), step)


def element(
    b: ir.IRBuilder,
    spec: OrderedSpec,
    arrays: Sequence[ir.Value],
    uniforms: Sequence[ir.Value],
    width: int,
    index: ir.Value,
    position: Callable[[str], ir.Value],
    rest: ir.Value | None = None,
    fills: bool = True,
) -> list[ir.Value]:
    """f of the elements from ``index`` on, side by side in memory; see :func:`load_row`. ``position``: of a dtype, theirs."""

    def loaded(k: int, wanted: list[int]) -> dict[int, ir.Value]:
        a = spec.arrays[k]
        p = address(b, arrays[k], scaled(b, index, itemsize(a.dtype) * a.slots))
        return load_row(b, p, a.dtype, width, a.slots, wanted, rest, fills)

    return f_of(b, spec.f, spec.arrays, uniforms, width, loaded, position)


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
    used, slots = {params[i.attr] for i in f.body if i.op == "arg"}, dict[tuple[int, int], ir.Value]()
    for k, a in enumerate(arrays):
        wanted = [s for s in range(a.params) if (k, s) in used]
        if a.slots and wanted:
            slots |= {(k, s): v for s, v in loaded(k, wanted).items()}
        elif wanted:
            slots[k, 0] = position(a.dtype)
    blank = [ir.Constant(expr.register_type(t, width), ir.Undefined) for t in f.params]
    args = [slots.get(at, nothing) for at, nothing in zip(params, blank, strict=True)]
    return expr.emit(b, f, args, uniforms, width)


def interleaved(b: ir.IRBuilder, values: Sequence[ir.Value]) -> ir.Value:
    """One vector of the lanes of all: their first ones, then their second ones."""
    row, width = values[0], values[0].type.count
    for s, v in enumerate(values[1:], 1):
        v = take(b, v, v, [k if k < width else 0 for k in range(s * width)])
        row = take(b, row, v, [i * s + t if t < s else s * width + i for i in range(width) for t in range(s + 1)])
    return row


def load_state(
    b: ir.IRBuilder, spec: OrderedSpec, base: ir.Value, lanes: ir.Value, lane: ir.Value, width: int, rest: ir.Value | None = None
) -> list[ir.Value]:
    """The states of ``width`` lanes from ``lane`` on, of ``lanes`` in memory; only the first ``rest`` of them are there."""
    places = _state_places(b, spec, base, lanes, lane)
    return [load_row(b, p, t, width, 1, [0], rest)[0] for p, t in zip(places, spec.state, strict=True)]


def store_state(
    b: ir.IRBuilder, spec: OrderedSpec, values: Sequence[ir.Value], base: ir.Value, lanes: ir.Value, lane: ir.Value,
    rest: ir.Value | None = None
) -> None:  # fmt: skip
    places = _state_places(b, spec, base, lanes, lane)
    for v, p, t in zip(values, places, spec.state, strict=True):
        store_row(b, [v], p, t, v.type.count if isinstance(v.type, ir.VectorType) else 1, rest)


def _state_places(b: ir.IRBuilder, spec: OrderedSpec, base: ir.Value, lanes: ir.Value, lane: ir.Value) -> list[ir.Value]:
    """A slot's states lie side by side, 8 bytes for each whatever its size (cpu/ordered_kernel.h)."""
    rows = [address(b, base, scaled(b, lanes, 8 * s)) if s else base for s in range(len(spec.state))]
    return [address(b, row, scaled(b, lane, itemsize(t))) for row, t in zip(rows, spec.state, strict=True)]


@contextmanager
def repeat(b: ir.IRBuilder, condition: Callable[[], ir.Value]) -> Iterator[None]:
    """``while condition()``; the builder ends up behind the loop."""
    head, body, after = b.append_basic_block(), b.append_basic_block(), b.append_basic_block()
    b.branch(head)
    b.position_at_end(head)
    b.cbranch(condition(), body, after)
    b.position_at_end(body)
    yield
    b.branch(head)
    b.position_at_end(after)


def is_expensive(program: Program) -> bool:
    """Whether its code is so long that one copy of it, called, is better than many."""
    return len(program.body) > 32 or any(i.op in MATH or i.op in CONTROL for i in program.body)


FOUR = 4
"""Elements that are folded into a state at once, where that costs less than one after the other."""


@functools.lru_cache(maxsize=256)
def four_at_once(op: Program) -> Program | None:
    """(state, four elements) -> state, of an operator with maxima or minima of floats: all are asked for NaN at once."""
    n = len(op.params) // 2
    b = Builder((*op.params[:n], *op.params[n:] * FOUR))
    state = [b.arg(k) for k in range(n)]
    for k in range(FOUR):
        state = b.inline(op, [*state, *(b.arg((k + 1) * n + s) for s in range(n))])
    many = b.finish(state)
    extremes = [many.body[k] for k in trees(many)]
    return many if any(i.op in ("max", "min") and is_float(i.dtype) for i in extremes) else None


def apply_op(
    b: ir.IRBuilder, spec: OrderedSpec, uniforms: Sequence[ir.Value], width: int, a: Sequence[ir.Value], x: Sequence[ir.Value]
) -> list[ir.Value]:
    """``a ⊕ x``. An expensive operator is a function that the module holds once and calls: most of its compile time saved."""
    if not is_expensive(spec.op):
        return expr.emit(b, spec.op, [*a, *x], uniforms, width)
    args = [*a, *x, *uniforms]
    fn = b.module.globals.get(f"op.{width}")
    if fn is None:
        result, slots = ir.LiteralStructType([v.type for v in a]), 2 * len(spec.state)
        inside, given = declare(b.module, f"op.{width}", [v.type for v in args], result, inner=True)
        packed: ir.Value = ir.Constant(result, ir.Undefined)
        for k, v in enumerate(expr.emit(inside, spec.op, given[:slots], given[slots:], width)):
            packed = inside.insert_value(packed, v, k)
        inside.ret(packed)
        fn = inside.function
    called = b.call(fn, args)
    return [b.extract_value(called, k) for k in range(len(spec.state))]


class Held:
    """A state in stack space, of which LLVM makes registers."""

    def __init__(self, b: ir.IRBuilder, spec: OrderedSpec, width: int):
        self.b = b
        self.types = [expr.register_type(t, width) for t in spec.state]
        self.places = [alloca(b, t) for t in self.types]

    def put(self, state: Sequence[ir.Value]) -> None:
        for p, v in zip(self.places, state, strict=True):
            self.b.store(v, p)

    def get(self) -> list[ir.Value]:
        return [self.b.load(p, typ=t) for p, t in zip(self.places, self.types, strict=True)]
