"""Vectors of structs to and from memory: all lanes, or the first few.

Lanes past the last one wanted repeat the first, which is a value that the user gave: a loop in an operator ends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir

from ..frontend.program import CONTROL, itemsize
from . import llvm_expr as expr
from .llvm_build import I1, I32, I64, PTR, address, alloca, i64, intrinsic, load, load_slots, scaled, splat, store_slots, suffix
from .llvm_math import MATH
from .llvm_types import take
from .scan_spec import ScanSpec


def prefix_mask(b: ir.IRBuilder, rest: ir.Value, width: int, slots: int = 1) -> ir.Value:
    """Which of ``width`` structs of ``slots`` scalars, scalar by scalar, are among the first ``rest``."""
    few = b.select(b.icmp_signed("<", rest, i64(width)), rest, i64(width))
    lane = ir.Constant(ir.VectorType(I32, width * slots), [k // slots for k in range(width * slots)])
    return b.icmp_signed("<", lane, splat(b, b.trunc(few, I32), width * slots))


def load_row(
    b: ir.IRBuilder, p: ir.Value, dtype: str, width: int, slots: int, wanted: Sequence[int], rest: ir.Value | None = None
) -> dict[int, ir.Value]:
    """Like :func:`load_slots`, of the first ``rest`` (at least one) structs."""
    if rest is None or width == 1:
        return load_slots(b, p, dtype, width, slots, wanted) if width > 1 else _scalars(b, p, dtype, wanted)
    t, n = expr.memory_type(dtype), width * slots
    row, flags = ir.VectorType(t, n), ir.VectorType(I1, n)
    masked = intrinsic(b.module, f"llvm.masked.load.v{n}{suffix(t)}.p0", row, [PTR, flags, row])
    loaded = b.call(masked, [p, prefix_mask(b, rest, width, slots), ir.Constant(row, None)])
    inside, out = prefix_mask(b, rest, width), {}
    for s in wanted:
        v = loaded if slots == 1 else take(b, loaded, loaded, range(s, n, slots))
        first = take(b, v, v, [0] * width)
        out[s] = expr.from_memory(b, b.select(inside, v, first), dtype)
    return out


def store_row(
    b: ir.IRBuilder, values: Sequence[ir.Value], p: ir.Value, dtype: str, width: int, rest: ir.Value | None = None
) -> None:
    """The inverse of :func:`load_row`: a vector for each slot, interleaved."""
    size, slots = itemsize(dtype), len(values)
    values = [expr.to_memory(b, v, dtype) for v in values]
    if width == 1:
        for s, v in enumerate(values):
            b.store(v, b.gep(p, [i64(s)], source_etype=v.type), align=size)
    elif rest is None:
        store_slots(b, values, p, dtype, width)
    else:
        row, n = interleaved(b, values), width * slots
        masked = intrinsic(
            b.module, f"llvm.masked.store.v{n}{suffix(row.type.element)}.p0", ir.VoidType(), [row.type, PTR, ir.VectorType(I1, n)]
        )
        b.call(masked, [row, p, prefix_mask(b, rest, width, slots)])


def interleaved(b: ir.IRBuilder, values: Sequence[ir.Value]) -> ir.Value:
    """One vector of the lanes of all: their first ones, then their second ones."""
    row, width = values[0], values[0].type.count
    for s, v in enumerate(values[1:], 1):
        v = take(b, v, v, [k if k < width else 0 for k in range(s * width)])
        row = take(b, row, v, [i * s + t if t < s else s * width + i for i in range(width) for t in range(s + 1)])
    return row


def _scalars(b: ir.IRBuilder, p: ir.Value, dtype: str, wanted: Sequence[int]) -> dict[int, ir.Value]:
    t = expr.memory_type(dtype)
    return {s: load(b, b.gep(p, [i64(s)], source_etype=t), dtype) for s in wanted}


def load_state(
    b: ir.IRBuilder, spec: ScanSpec, base: ir.Value, lanes: ir.Value, lane: ir.Value, width: int, rest: ir.Value | None = None
) -> list[ir.Value]:
    """The states of ``width`` lanes from ``lane`` on, of ``lanes`` in memory; only the first ``rest`` of them are there."""
    places = _state_places(b, spec, base, lanes, lane)
    return [load_row(b, p, t, width, 1, [0], rest)[0] for p, t in zip(places, spec.state, strict=True)]


def store_state(
    b: ir.IRBuilder, spec: ScanSpec, values: Sequence[ir.Value], base: ir.Value, lanes: ir.Value, lane: ir.Value,
    rest: ir.Value | None = None
) -> None:  # fmt: skip
    places = _state_places(b, spec, base, lanes, lane)
    for v, p, t in zip(values, places, spec.state, strict=True):
        store_row(b, [v], p, t, v.type.count if isinstance(v.type, ir.VectorType) else 1, rest)


def _state_places(b: ir.IRBuilder, spec: ScanSpec, base: ir.Value, lanes: ir.Value, lane: ir.Value) -> list[ir.Value]:
    """A slot's states lie side by side, 8 bytes for each whatever its size (cpu/scan_kernel.h)."""
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


def is_dear(spec: ScanSpec) -> bool:
    """Whether one application of the operator costs more than moving what it works on through stack space."""
    return len(spec.op.body) > 32 or any(i.op in MATH or i.op in CONTROL for i in spec.op.body)


class Held:
    """States of a few vectors of lanes, in stack space that LLVM makes registers of."""

    def __init__(self, b: ir.IRBuilder, spec: ScanSpec, vectors: int, width: int):
        self.b, self.spec, self.vectors, self.width = b, spec, vectors, width
        self.types = [expr.register_type(t, width) for t in spec.state]
        self.places = [[alloca(b, t) for t in self.types] for _ in range(vectors)]

    def another(self) -> Held:
        return Held(self.b, self.spec, self.vectors, self.width)

    def put(self, states: Sequence[Sequence[ir.Value]]) -> None:
        for places, state in zip(self.places, states, strict=True):
            for p, v in zip(places, state, strict=True):
                self.b.store(v, p)

    def get(self) -> list[list[ir.Value]]:
        return [[self.b.load(p, typ=t) for p, t in zip(places, self.types, strict=True)] for places in self.places]
