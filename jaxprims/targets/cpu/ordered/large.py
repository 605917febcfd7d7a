"""The kernels of elements of many scalars: a sequence is folded element by element, where results and states lie in memory.

A scan's results are its states: what comes after one is combined with it where it was written. What a block offers to others, its
aggregate, is a fold of its own, so that results are the prefix and then each element, whoever computed the prefix. A map makes
each element where its result is, and blocks have nothing to offer to others.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir

from ....ir.program import itemsize
from ....specs.large import LargeSpec
from ..llvm import nests
from ..llvm.build import I1, I8, I64, NULL, PTR, address, all_pointers, declare, i64, least, loop, pointer, scaled
from ..llvm.engine import module_of
from ..llvm.types import alloca, call, memory_type, resized
from ..llvm.vectors import Variable
from .rows import RESTARTED, STARTED, arrays_of, members, starts_anew

Pointers = list[ir.Value]


def function_names(spec: LargeSpec) -> list[str]:
    return ["scan", "reduce", "combine"] if spec.family == "scan" else ["reduce", "combine", "finish"]


def generate(spec: LargeSpec) -> ir.Module:
    module = module_of("large")
    _Large(module, spec).build()
    return module


class _Large:
    def __init__(self, module: ir.Module, spec: LargeSpec):
        self.module, self.spec = module, spec
        self.bytes = [itemsize(dtype) * size for dtype, size in spec.parts]
        self.stride = spec.offsets[-1]
        self.op = None if spec.combine is None else nests.function(module, "op", spec.combine)
        self.element = None if spec.element is None else nests.function(module, "element", spec.element)
        self.first = 0 if spec.element is None else len(spec.element.uniforms)  # that are the operator's

    def build(self) -> None:
        if self.op is None:
            self._map()
            return
        self.fold = self._fold()
        if self.spec.family == "scan":
            self._scan()
        else:
            self._finish()
        self._reduce()
        self._combine()

    def _parts(self, b: ir.IRBuilder, state: ir.Value) -> Pointers:
        return [address(b, state, i64(at)) for at in self.spec.offsets[:-1]]

    def _copy(self, b: ir.IRBuilder, to: Sequence[ir.Value], come_from: Sequence[ir.Value], sizes: Sequence[int]) -> None:
        for t, f, size in zip(to, come_from, sizes, strict=True):
            call(b, "llvm.memcpy.p0.p0.i64", ir.VoidType(), t, f, i64(size), ir.Constant(I1, 0))

    def _apply(self, b: ir.IRBuilder, uniforms: ir.Value, to: Pointers, first: Pointers, second: Pointers) -> None:
        """``to`` is none of the others."""
        assert self.spec.combine is not None and self.op is not None
        captured = [pointer(b, uniforms, self.first + k) for k in range(len(self.spec.combine.uniforms))]
        b.call(self.op, [*to, *first, *second, *captured])

    def _state(self, b: ir.IRBuilder) -> ir.Value:
        return alloca(b, ir.ArrayType(I8, self.stride))

    # --- the fold -------------------------------------------------------------------------------------------------------------

    def _fold(self) -> ir.Function:
        """``fold(arrays, uniforms, outs, flags, range, lane, state, started) -> progress``: takes the range's elements of a lane
        into ``state``. ``outs``: where results are written; null: nowhere."""
        spec = self.spec
        b, args = declare(self.module, "fold", [PTR] * 5 + [I64, PTR, I1], I64, inner=True)
        arrays, uniforms, outs, flags, range_, lane, state, started = args
        lo, hi, n, lanes = members(b, range_, "lo", "hi", "n", "lanes")
        here = arrays_of(b, spec, arrays)
        writes = b.icmp_unsigned("!=", outs, NULL)
        there = [alloca(b, PTR) for _ in spec.kept]
        with b.if_then(writes):
            for k, p in enumerate(there):
                b.store(pointer(b, outs, k), p)
        current = [alloca(b, PTR) for _ in spec.parts]
        for p, part in zip(current, self._parts(b, state), strict=True):
            b.store(part, p)
        scratch = [self._parts(b, self._state(b)) for _ in range(2)]
        made = None if self.element is None else self._parts(b, self._state(b))
        holds, progress = Variable(b, I1, started), Variable(b, I64, b.zext(started, I64))
        with loop(b, lo, hi) as t:
            step = b.sub(b.sub(n, i64(1)), t) if spec.reverse else t
            index = b.add(b.mul(step, lanes), lane)
            x = self._element(b, here, uniforms, step, index, made)
            if spec.restarts and spec.family == "scan":
                with b.if_then(starts_anew(b, flags, step)):
                    holds.put(0)
                    progress.put(b.or_(progress.get(), i64(RESTARTED)))
            odd = b.trunc(t, I1)
            to = [b.select(odd, p, q) for p, q in zip(*scratch, strict=True)]
            before = [b.load(p, typ=PTR) for p in current]
            begun = holds.get()
            if spec.family == "scan":
                sizes = [self.bytes[k] for k in spec.kept]
                places = [address(b, b.load(p, typ=PTR), scaled(b, index, s)) for p, s in zip(there, sizes, strict=True)]
                if spec.exclusive:
                    with b.if_then(b.and_(writes, begun)):
                        self._copy(b, places, [before[k] for k in spec.kept], sizes)
                else:
                    for k, place in zip(spec.kept, places, strict=True):
                        to[k] = b.select(writes, place, to[k])
            with b.if_else(begun) as (then, otherwise):
                with then:
                    self._apply(b, uniforms, to, before, x)
                with otherwise:
                    self._copy(b, to, x, self.bytes)
            for p, q in zip(current, to, strict=True):
                b.store(q, p)
            holds.put(1)
            progress.put(b.or_(progress.get(), i64(STARTED)))
        with b.if_then(b.icmp_signed("<", lo, hi)):
            self._copy(b, self._parts(b, state), [b.load(p, typ=PTR) for p in current], self.bytes)
        b.ret(progress.get())
        return b.function

    def _element(
        self, b: ir.IRBuilder, arrays: Pointers, uniforms: ir.Value, step: ir.Value, index: ir.Value, made: Pointers | None
    ) -> Pointers:
        """The parts of an element: where it lies, or where they are made."""
        at = []
        for p, a in zip(arrays, self.spec.arrays, strict=True):
            if a.slots:
                at.append(address(b, p, scaled(b, index, itemsize(a.dtype) * a.slots)))
            else:
                at.append(alloca(b, memory_type(a.dtype)))
                b.store(resized(b, step, memory_type(a.dtype)), at[-1])
        if self.element is None or made is None:
            return at
        b.call(self.element, [*made, *at, *(pointer(b, uniforms, k) for k in range(self.first))])
        return made

    def _map(self) -> None:
        """All of a scan that combines nothing: a block waits for none before it."""
        spec = self.spec
        b, (arrays, uniforms, outs, _, range_, _, _, progress) = self._entry("scan", 7)
        lo, hi, n, lanes = members(b, range_, "lo", "hi", "n", "lanes")
        here, there = arrays_of(b, spec, arrays), all_pointers(b, outs, len(spec.kept))
        assert self.element is not None
        with self._over_lanes(b, range_) as (lane, _), loop(b, lo, hi, spec.together) as t:
            step = b.sub(b.sub(n, i64(1)), t) if spec.reverse else t
            index = b.add(b.mul(step, lanes), lane)
            made = [address(b, p, scaled(b, index, size)) for p, size in zip(there, self.bytes, strict=True)]
            make = functools.partial(self._element, b, here, uniforms, step, index, made)
            if spec.together == 1:
                make()
            else:
                left = b.sub(hi, t)
                with b.if_else(b.icmp_signed(">=", left, i64(spec.together)), likely=True) as (then, otherwise):
                    with then:
                        make()
                    with otherwise:
                        self._last_elements(b, here, uniforms, index, made, left)
        b.ret(b.or_(progress, i64(STARTED)))
        b, (*_, progress) = self._entry("reduce", 5)
        b.ret(b.or_(progress, i64(STARTED)))
        b, _ = declare(self.module, "combine", [PTR, PTR, PTR, PTR, I64])
        b.ret_void()

    def _last_elements(
        self, b: ir.IRBuilder, arrays: Pointers, uniforms: ir.Value, index: ir.Value, made: Pointers, left: ir.Value
    ) -> None:
        """Fewer than are made together: the last one stands in for those that are not there, and what these give is dropped."""
        count = self.spec.together
        sizes = [itemsize(a.dtype) * a.slots for a in self.spec.arrays]
        given, results = ([alloca(b, ir.ArrayType(I8, count * size)) for size in each] for each in (sizes, self.bytes))
        with loop(b, i64(0), i64(count)) as k:
            row = b.add(index, least(b, k, b.sub(left, i64(1))))
            from_ = [address(b, p, scaled(b, row, size)) for p, size in zip(arrays, sizes, strict=True)]
            self._copy(b, [address(b, p, scaled(b, k, size)) for p, size in zip(given, sizes, strict=True)], from_, sizes)
        self._element(b, given, uniforms, i64(0), i64(0), results)
        for to, p, size in zip(made, results, self.bytes, strict=True):
            call(b, "llvm.memcpy.p0.p0.i64", ir.VoidType(), to, p, scaled(b, left, size), ir.Constant(I1, 0))

    # --- what drivers call (cpu/ordered_kernel.h) -------------------------------------------------------------------------------

    def _entry(self, name: str, count: int) -> tuple[ir.IRBuilder, list[ir.Value]]:
        return declare(self.module, name, [PTR] * count + [I64], I64)

    @contextmanager
    def _over_lanes(self, b: ir.IRBuilder, range_: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
        """The lane, and where its states are."""
        first, last = members(b, range_, "lane_lo", "lane_hi")
        with loop(b, first, last) as lane:
            yield lane, b.mul(b.sub(lane, first), i64(self.stride))

    def _scan(self) -> None:
        """Where there is a prefix, the aggregate (null: nobody wants it) is folded beside the results."""
        b, (arrays, uniforms, outs, flags, range_, prefix, aggregate, progress) = self._entry("scan", 7)
        led, wanted = b.icmp_unsigned("!=", prefix, NULL), b.icmp_unsigned("!=", aggregate, NULL)
        started = b.trunc(progress, I1)
        total, spare = Variable(b, I64, progress), self._state(b)
        with self._over_lanes(b, range_) as (lane, at):
            own = address(b, aggregate, at)
            fold = [arrays, uniforms, outs, flags, range_, lane]
            with b.if_else(led) as (then, otherwise):
                with then:
                    with b.if_then(wanted):
                        total.put(b.call(self.fold, [arrays, uniforms, NULL, flags, range_, lane, own, started]))
                    self._copy(b, [spare], [address(b, prefix, at)], [self.stride])
                    b.call(self.fold, [*fold, spare, ir.Constant(I1, 1)])
                with otherwise:
                    total.put(b.call(self.fold, [*fold, own, started]))
        b.ret(b.or_(progress, total.get()))

    def _reduce(self) -> None:
        b, (arrays, uniforms, flags, range_, aggregate, progress) = self._entry("reduce", 5)
        total = Variable(b, I64, progress)
        with self._over_lanes(b, range_) as (lane, at):
            given = [arrays, uniforms, NULL, flags, range_, lane, address(b, aggregate, at)]
            total.put(b.call(self.fold, [*given, b.trunc(progress, I1)]))
        b.ret(b.or_(progress, total.get()))

    def _combine(self) -> None:
        b, (uniforms, first, second, out, lanes) = declare(self.module, "combine", [PTR, PTR, PTR, PTR, I64])
        spare = self._state(b)
        with loop(b, i64(0), lanes) as lane:
            at = b.mul(lane, i64(self.stride))
            given = (self._parts(b, address(b, p, at)) for p in (first, second))
            self._apply(b, uniforms, self._parts(b, spare), *given)
            self._copy(b, [address(b, out, at)], [spare], [self.stride])
        b.ret_void()

    def _finish(self) -> None:
        b, (_, state, outs, lanes) = declare(self.module, "finish", [PTR, PTR, PTR, I64])
        with loop(b, i64(0), lanes) as lane:
            parts = self._parts(b, address(b, state, b.mul(lane, i64(self.stride))))
            for j, k in enumerate(self.spec.kept):
                size = self.bytes[k]
                self._copy(b, [address(b, pointer(b, outs, j), scaled(b, lane, size))], [parts[k]], [size])
        b.ret_void()
