"""What the forms of scans along a row share: arguments, the aggregate, the carry, stores of results."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from llvmlite import ir

from ....ir.program import itemsize
from ....specs.ordered import OrderedSpec
from ..llvm import expr
from ..llvm.build import I1, I8, I32, NULL, PTR, address, chosen, i64, masked_store, pointer, scaled
from ..llvm.structs import in_pieces, store_structs
from ..llvm.types import alloca, interleaved, splat, to_memory
from ..llvm.vectors import Held, Variable, stream
from .elements import Elements
from .rows import RESTARTED, STARTED, apply_op, arrays_of, has, load_state, members, store_state, uniforms_of

Values = list[ir.Value]
"""A state: a value, or a vector, for each slot."""


class Kernel(abc.ABC):
    """What the forms share: arguments, the aggregate, the carry."""

    elements: Elements
    width: int  # of the vectors that are stored
    lanes = 1
    """How often the aggregate and the carry are held: once, or in every lane of a vector."""

    def __init__(
        self, b: ir.IRBuilder, spec: OrderedSpec, vector_bytes: int, args: Sequence[ir.Value], periodic: bool, streams: bool
    ):
        self.b, self.spec, self.vector_bytes = b, spec, vector_bytes
        self.periodic, self.streams = periodic, streams
        self.restarts = spec.restarts
        arrays, uniforms, outs, self.flags, range_, self.prefix_state, self.aggregate_state, self.progress = args
        self.scans = b.icmp_unsigned("!=", outs, NULL)
        self.arrays, self.uniforms = arrays_of(b, spec, arrays), uniforms_of(b, spec, uniforms)
        self.lo, self.hi, self.n, self.period = members(b, range_, "lo", "hi", "n", "period")
        self.out_places = alloca(b, PTR, len(spec.leaves))
        with b.if_then(self.scans):
            for k in range(len(spec.leaves)):
                b.store(pointer(b, outs, k), b.gep(self.out_places, [i64(k)], source_etype=PTR))

    @abc.abstractmethod
    def build(self) -> None:
        """Emits the function's body."""

    def op(self, first: Sequence[ir.Value], second: Sequence[ir.Value], width: int) -> Values:
        return apply_op(self.b, self.spec, self.uniforms, width, first, second)

    # --- what goes from vector to vector ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Loads the aggregate and the prefix, where there are any."""
        b, spec = self.b, self.spec
        self.started, self.restarted = Variable(b, I1), Variable(b, I1)
        self.aggregate = Held(b, spec.state, self.lanes)
        started = has(b, self.progress, STARTED)
        self.started.put(started)
        self.restarted.put(has(b, self.progress, RESTARTED))
        with b.if_then(started):
            self.aggregate.put(self._state_at(self.aggregate_state))
        self.has_prefix = b.icmp_unsigned("!=", self.prefix_state, NULL)
        self.prefix = Held(b, spec.state, self.lanes)
        with b.if_then(self.has_prefix):
            self.prefix.put(self._state_at(self.prefix_state))

    def end(self) -> None:
        b = self.b
        with b.if_then(self.started.get()):
            self._store_state(self.aggregate.get())
        flags = (self.started, STARTED), (self.restarted, RESTARTED)
        b.ret(b.or_(*(b.select(flag.get(), i64(bit), i64(0)) for flag, bit in flags)))

    def _state_at(self, p: ir.Value) -> Values:
        values = load_state(self.b, self.spec, p, i64(1), i64(0), 1)
        return [splat(self.b, v, self.lanes) for v in values]

    def _store_state(self, state: Values) -> None:
        if self.lanes > 1:
            state = [self.b.extract_element(v, ir.Constant(I32, 0)) for v in state]
        store_state(self.b, self.spec, state, self.aggregate_state, i64(1), i64(0))

    def counts_prefix(self) -> ir.Value:
        """Does the prefix come before the aggregate (there is one, and no restart yet)?"""
        return self.b.and_(self.has_prefix, self.b.not_(self.restarted.get()))

    def carry(self) -> tuple[Values, ir.Value]:
        """prefix ⊕ aggregate, or the one that there is, and whether there is one."""
        b, started, counts = self.b, self.started.get(), self.counts_prefix()
        prefix, aggregate = self.prefix.get(), self.aggregate.get()
        both = chosen(b, b.and_(started, counts), lambda: self.op(prefix, aggregate, self.lanes), lambda: aggregate)
        return expr.selected(b, started, both, prefix), b.or_(started, counts)

    def advance(self, total: Values, restarted: ir.Value | None) -> None:
        """Takes the state ``total`` of further elements into the aggregate; ``restarted``: only since a restart among them."""
        b = self.b

        def joined() -> Values:
            values = self.op(self.aggregate.get(), total, self.lanes)
            return values if restarted is None else expr.selected(b, restarted, total, values)

        self.aggregate.put(chosen(b, self.started.get(), joined, lambda: total))
        self.started.put(1)
        if restarted is not None:
            self.restarts_if(restarted)

    def restarts_if(self, restarted: ir.Value) -> None:
        """Remembers that some element starts anew."""
        self.restarted.put(self.b.or_(self.restarted.get(), restarted))

    def _store(self, states: Values, i: ir.Value, rest: ir.Value | None) -> None:
        b, spec, width = self.b, self.spec, self.width
        values = iter(expr.emit(b, spec.finish, states, self.uniforms, width))
        at, rows = self.elements.memory_index(i), []
        for k, (dtype, slots) in enumerate(spec.leaves):
            leaf = pointer(b, self.out_places, k)
            mine = [to_memory(b, next(values), dtype) for _ in range(slots)]
            if in_pieces(dtype, slots, width):
                size = slots * itemsize(dtype)
                nowhere = None if rest is None else alloca(b, I8, size)
                store_structs(b, mine, self.elements.places(i, rest, leaf, size, nowhere), dtype)
                continue
            row = interleaved(b, mine)
            rows.append((row, address(b, leaf, scaled(b, at, slots * itemsize(dtype))), dtype, slots))

        def store_all() -> None:
            for row, p, dtype, _ in rows:
                stored = b.store(row, p, align=itemsize(dtype))
                if self.streams:
                    stream(stored, itemsize(dtype) * row.type.count)

        if rest is None:
            store_all()
            return
        with b.if_else(self.elements.whole(rest), likely=True) as (then, otherwise):
            with then:
                store_all()
            with otherwise:
                for row, p, _, slots in rows:
                    masked_store(b, row, p, self.elements.in_memory(rest, slots))
