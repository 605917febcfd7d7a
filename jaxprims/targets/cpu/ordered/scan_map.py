"""Scans that keep the last element, which are maps: nothing goes from element to element."""

from __future__ import annotations

from llvmlite import ir

from ..llvm.build import i64, loop
from .elements import Elements, width_of_functions
from .rows import is_expensive
from .scan_base import Kernel


class Map(Kernel):
    """A vector of elements at a time. Results do not depend on a state before their block, so there is none, nor an aggregate."""

    def build(self) -> None:
        b, spec = self.b, self.spec
        self.width = width_of_functions(spec, self.vector_bytes)
        period = self.period if self.periodic else None
        self.elements = Elements(b, spec, self.arrays, self.uniforms, self.n, self.width, mirrored=True, period=period)
        with b.if_then(self.scans):
            if is_expensive(spec.f):  # most of the time to compile goes here
                with loop(b, self.lo, self.hi, self.width) as i:
                    self._vector(i, b.sub(self.hi, i))
            else:
                rest = b.and_(b.sub(self.hi, self.lo), i64(self.width - 1))
                whole = b.sub(self.hi, rest)
                with loop(b, self.lo, whole, self.width) as i:
                    self._vector(i, None)
                with b.if_then(b.icmp_signed(">", rest, i64(0))):
                    self._vector(whole, rest)
        b.ret(self.progress)

    def _vector(self, i: ir.Value, rest: ir.Value | None) -> None:
        if self.periodic:
            self.elements.row = self.b.sub(i, self.b.urem(i, self.period))
        self._store(self.elements.states(i, rest), i, rest)
