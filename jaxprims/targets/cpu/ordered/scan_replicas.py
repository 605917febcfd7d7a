"""Scans along a row of an operator on each of a few scalars alone, which lie side by side: nothing is taken apart.

Their row is one of scalars, in which an element's predecessor is ``lanes`` scalars before it: log steps begin with that distance,
and a carry is ``lanes`` scalars, again and again.
"""

from __future__ import annotations

import dataclasses
import functools

from llvmlite import ir

from ....ir.program import Program, in_order_of_use, narrowed
from ....operators import classify
from ....specs.histogram import ArraySpec
from ....specs.ordered import OrderedSpec
from ..llvm.build import I32, i64
from ..llvm.types import undefined, with_lanes
from .rows import load_state, store_state
from .scan_base import Values
from .scan_log_steps import LogSteps


@functools.lru_cache(maxsize=64)
def of_one_scalar(spec: OrderedSpec, periodic: bool) -> OrderedSpec | None:
    """The spec of one of the scalars, if nothing but their number tells the one from the other."""
    slots = len(spec.state)
    if spec.restarts or periodic or spec.kind != "scan" or slots not in (2, 4, 8):
        return None
    if [a.slots for a in spec.arrays] != [slots] or [n for _, n in spec.leaves] != [slots]:
        return None
    if len(set(spec.identity or (0,))) > 1 or classify.parts(spec.op) != tuple((s,) for s in range(slots)):
        return None
    ops = {in_order_of_use(classify.restrict(spec.op, (s,))) for s in range(slots)}
    f, finish = _of_one(spec.f), _of_one(spec.finish)
    if len(ops) > 1 or f is None or finish is None:
        return None
    return dataclasses.replace(
        spec,
        arrays=(ArraySpec(spec.arrays[0].dtype, 1, 1),),
        state=spec.state[:1],
        leaves=((spec.leaves[0][0], 1),),
        identity=spec.identity and spec.identity[:1],
        f=f,
        op=ops.pop(),
        finish=finish,
    )


def _of_one(p: Program) -> Program | None:
    """What the Program makes of each of its parameters, if it makes the same of each alone."""
    if len(p.params) != len(p.results):
        return None
    try:
        made = {in_order_of_use(narrowed(p, (k,), (result,))) for k, result in enumerate(p.results)}
    except ValueError:
        return None
    return made.pop() if len(made) == 1 else None


class Replicas(LogSteps):
    def build(self) -> None:
        b, one = self.b, of_one_scalar(self.spec, self.periodic)
        assert one is not None
        self.structs, self.spec = self.spec, one
        self.lanes = self.stride = len(self.structs.state)
        self.lo, self.hi, self.n = (b.mul(v, i64(self.lanes)) for v in (self.lo, self.hi, self.n))
        super().build()

    def _state_at(self, p: ir.Value) -> Values:
        b, values = self.b, load_state(self.b, self.structs, p, i64(1), i64(0), 1)
        return [with_lanes(b, undefined(ir.VectorType(values[0].type, self.lanes)), values)]

    def _store_state(self, state: Values) -> None:
        scalars = [self.b.extract_element(state[0], ir.Constant(I32, k)) for k in range(self.lanes)]
        store_state(self.b, self.structs, scalars, self.aggregate_state, i64(1), i64(0))
