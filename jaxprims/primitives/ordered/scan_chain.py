"""``scan_chain_p``: scans of the same elements one after the other, and reductions of what they make, in one pass over memory.
Operands: what the members read of others. Results: what is ``wanted`` of theirs; of the rest nothing is written where a target
can do without.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from ...specs.ordered import OrderedSpec
from ...specs.problems import ChainProblem
from ...targets import ffi
from ...targets.registry import register_family
from ...targets.target import Explanation, Target
from .. import divided
from ..batches import new_primitive
from ..family import Family
from .call import OrderedCall, call_spec
from .reduce import reduce_p
from .scan import scan_p

scan_chain_p = new_primitive("chain_of_scans")


@dataclasses.dataclass(frozen=True)
class Member:
    """A call without a batch. ``reads``: the number of each of its operands, among the chain's and then all results of the
    members before."""

    call: OrderedCall
    reads: tuple[int, ...]

    @property
    def primitive(self) -> Primitive:
        return scan_p if self.call.kind == "scan" else reduce_p


@dataclasses.dataclass(frozen=True)
class ChainCall:
    """``wanted``: numbers of the members' results."""

    operands: int
    members: tuple[Member, ...]
    wanted: tuple[int, ...]
    plans: tuple[Any, ...] = ()


def fits(call: OrderedCall, avals: Sequence[Any], masks: Sequence[int], rank: int) -> bool:
    """May the call be a chain's member?"""
    plain = call.num_arrays and not (call.init or call.segmented_by or call.exclusive or call.reverse or call.inner_rank)
    planned = any(plan.target != "any" for plan in call.plans)
    if rank or any(masks) or planned or not plain or call.operator.large or call.kind not in ("scan", "reduce"):
        return False
    spec = call_spec(call, avals, masks)
    return isinstance(spec, OrderedSpec) and not spec.across


def one_after_the_other(call: ChainCall, *operands: Any) -> list[Any]:
    """By the members' own primitives: all that they make is written."""
    values = list(operands)
    for m in call.members:
        values += m.primitive.bind(*(values[k] for k in m.reads), call=m.call, masks=(0,) * len(m.reads), rank=0)
    return [values[k] for k in call.wanted]


def _values(call: ChainCall, avals: Sequence[Any]) -> list[Any]:
    """Avals of the operands and of all results of all members."""
    every = dataclasses.replace(call, wanted=tuple(range(call.operands + sum(len(m.call.results) for m in call.members))))
    return list(jax.make_jaxpr(functools.partial(one_after_the_other, every))(*avals).out_avals)


@scan_chain_p.def_abstract_eval
def _abstract_eval(*avals: Any, call: ChainCall) -> list[Any]:
    values = _values(call, avals)
    return [values[k] for k in call.wanted]


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, call: ChainCall) -> tuple[list[Any], list[int]]:
    out = jax.vmap(functools.partial(one_after_the_other, call), in_axes=tuple(dims))(*operands)
    return out, [0] * len(out)


batching.primitive_batchers[scan_chain_p] = _batch


class Chains(Family):
    """Chains of scans."""

    def problem(self, target: Target, avals: Sequence[Any], **params: Any) -> ChainProblem:
        call: ChainCall = params["call"]
        values = _values(call, avals)
        specs = []
        for m in call.members:
            spec = call_spec(m.call, [values[k] for k in m.reads], (0,) * len(m.reads))
            assert isinstance(spec, OrderedSpec)
            specs.append(spec)
        return ChainProblem(None, (), (), values[call.members[0].reads[0]].shape[0], tuple(specs))

    def plain_one(self, *operands: Any, **params: Any) -> list[Any]:
        return one_after_the_other(params["call"], *operands)

    def lower(self, ctx: Any, *operands: Any, target: Target, **params: Any) -> Any:
        if divided.devices_of(ctx) > 1:  # whose parts members know how to divide
            return mlir.lower_fun(functools.partial(self.plain, **params))(ctx, *operands)
        return self.to_kernel(ctx, operands, target, **params)

    def attributes(self, problem: ChainProblem, **params: Any) -> dict[str, Any]:
        """Places are operands, results, and then buffers for what is not wanted."""
        call: ChainCall = params["call"]
        fixed = call.operands + len(call.wanted)
        place = {k: call.operands + at for at, k in enumerate(call.wanted)} | {k: k for k in range(call.operands)}
        places, made = list[int](), call.operands
        for m, spec in zip(call.members, problem.specs, strict=True):
            results = range(made, made := made + len(spec.leaves))
            for k in results:
                place.setdefault(k, max(fixed, *(p + 1 for p in place.values())))
            places += [place[k] for k in (*m.reads, *results)]
        buffers = max(fixed, *(p + 1 for p in place.values())) - fixed
        texts = "\n;\n".join(s.text for s in problem.specs)
        return {"specs": texts, "keys": [s.key for s in problem.specs], "places": places, "n": problem.n, "buffers": buffers}

    def summary(self, problem: Any, explanation: Explanation, **params: Any) -> str:
        names = ", ".join(f"{m.call.kind} of {m.call.operator.name or 'unnamed'}" for m in params["call"].members)
        return f"{problem.n} elements: {names}"


SCAN_CHAIN = Chains("scan_chain", "chain of scans", scan_chain_p, ffi.SCAN_CHAIN)
register_family(SCAN_CHAIN)
