"""Elements, states and the operator of a row's kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir

from ....ir.program import CONTROL, Builder, Program, is_float, itemsize
from ....ir.trees import trees
from ....specs.ordered import OrderedSpec
from ..llvm import expr
from ..llvm.build import I8, I64, NULL, PTR, address, all_pointers, declare, i64, i64_at, pointer, scaled
from ..llvm.math import MATH
from ..llvm.types import alloca, constant
from ..llvm.vectors import Variable, f_of, load_row, store_row

STARTED, RESTARTED = 1, 2
"""Bits of a kernel's progress (cpu/ordered_kernel.h)."""

RANGE = ("lo", "hi", "n", "period", "lanes", "lane_lo", "lane_hi", "steps", "inner", "far")
"""Members of ScanRange, of 8 bytes each."""


def members(b: ir.IRBuilder, range_: ir.Value, *names: str) -> list[ir.Value]:
    """Those of a ScanRange."""
    return [i64_at(b, range_, RANGE.index(m)) for m in names]


def part_of(b: ir.IRBuilder, range_: ir.Value) -> tuple[ir.Value, dict[str, ir.Value]]:
    """A copy of a ScanRange, and where its members are."""
    part = alloca(b, I64, len(RANGE))
    places = {name: b.gep(part, [i64(k)], source_etype=I64) for k, name in enumerate(RANGE)}
    for value, place in zip(members(b, range_, *RANGE), places.values(), strict=True):
        b.store(value, place)
    return part, places


def reduce_by_scan(module: ir.Module, scan: ir.Function) -> None:
    """Defines ``reduce`` as the scan that writes nothing: the same code leaves the same bits, and is compiled once."""
    b, (arrays, uniforms, flags, range_, aggregate, progress) = declare(module, "reduce", [PTR] * 5 + [I64], I64)
    b.ret(b.call(scan, [arrays, uniforms, NULL, flags, range_, NULL, aggregate, progress]))


def arrays_of(b: ir.IRBuilder, spec: OrderedSpec, arrays: ir.Value) -> list[ir.Value]:
    """Where each array begins; positions are nowhere."""
    return [pointer(b, arrays, k) if a.slots else NULL for k, a in enumerate(spec.arrays)]


def uniforms_of(b: ir.IRBuilder, spec: OrderedSpec, uniforms: ir.Value) -> list[ir.Value]:
    return all_pointers(b, uniforms, len(spec.uniforms))


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


def identity_state(spec: OrderedSpec, width: int = 1) -> list[ir.Value]:
    """The operator's identity in every lane; zeros where it is not known, and nothing needs it."""
    bits = spec.identity or (0,) * len(spec.state)
    return [constant(t, word, width) for t, word in zip(spec.state, bits, strict=True)]


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


def store_results(
    b: ir.IRBuilder,
    spec: OrderedSpec,
    state: Sequence[ir.Value],
    uniforms: Sequence[ir.Value],
    leaves: Sequence[ir.Value],
    at: ir.Value,
    width: int,
    rest: ir.Value | None = None,
    streams: bool = False,
) -> None:
    """What is made of ``width`` states, side by side from the place ``at`` of each leaf on; see :func:`store_row`."""
    values = iter(expr.emit(b, spec.finish, state, uniforms, width))
    for leaf, (dtype, slots) in zip(leaves, spec.leaves, strict=True):
        place = address(b, leaf, scaled(b, at, itemsize(dtype) * slots))
        store_row(b, [next(values) for _ in range(slots)], place, dtype, width, rest, streams)


def starts_anew(b: ir.IRBuilder, flags: ir.Value, index: ir.Value) -> ir.Value:
    """Is the flag of the element that lies there set?"""
    return b.icmp_unsigned("!=", b.load(address(b, flags, index), typ=I8), ir.Constant(I8, 0))


def has(b: ir.IRBuilder, progress: ir.Value, bit: int) -> ir.Value:
    """Is this bit of a kernel's progress set?"""
    return b.icmp_unsigned("!=", b.and_(progress, i64(bit)), i64(0))


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


@contextmanager
def walk(b: ir.IRBuilder, lo: ir.Value, hi: ir.Value) -> Iterator[Variable]:
    """``at = lo; while at < hi``: what is inside moves it on."""
    at = Variable(b, I64, lo)
    with repeat(b, lambda: b.icmp_signed("<", at.get(), hi)):
        yield at


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
