"""``reduce_p``: the reduction as a jax primitive (Martín et al. 2012), in order, along one axis. Operands: see ``call``.
Results: the leaves ``[*batch, *inner, *element]``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax.interpreters import batching

from ...ir.work import AT_ONCE
from ...operators.operator import identity_leaves
from ...targets import ffi
from ...targets.plans import AnyKernel
from ...targets.registry import register_family
from ...targets.target import Target
from ..batches import new_primitive, over_batch
from ..family import Instead
from ..looking_back import Seen
from . import scan_xla
from .call import OrderedCall
from .family import OrderedFamily
from .scan import batch_rule, result_avals

reduce_p = new_primitive("reduce_any_operator")

SOME_IN_LOOP = AT_ONCE // 8, AT_ONCE // 3
"""Numbers whose extremes wake a thread in a loop's body if they are taken as integers, in five operations each, not in one."""


@reduce_p.def_abstract_eval
def _abstract_eval(*avals: Any, call: OrderedCall, masks: tuple[int, ...], rank: int) -> list[Any]:
    return result_avals(avals, call, masks, rank, ())


batching.primitive_batchers[reduce_p] = batch_rule(reduce_p, 0)


def neutral_leaves(call: OrderedCall, values: Sequence[Any]) -> list[Any]:
    """The identity on slices of ``values`` [N, ...]; zeros where none is known."""
    shapes = [v.shape[1:] for v in values]
    if call.operator.identity is None:
        return [jnp.zeros(s, v.dtype) for s, v in zip(shapes, values, strict=True)]
    return [jnp.broadcast_to(i, s) for i, s in zip(identity_leaves(call.operator), shapes, strict=True)]


class Reductions(OrderedFamily):
    """Reductions."""

    undivided = AnyKernel("cpu")

    def operation(self, **params: Any) -> str | None:
        call: OrderedCall = params["call"]
        plain = call.passes_on and not call.init and len(call.operator.dtypes) == 1 and call.operator.dtypes[0].kind in "fiuVbc"
        return call.operator.name if plain and call.operator.name in scan_xla.REDUCTIONS else self.extreme(call)

    def fused_by_xla(self, seen: Seen, target: Target, avals: Sequence[Any], **params: Any) -> bool:
        return seen.made and not params["call"].plans and self.operation(**params) == "add"

    def left_to_xla(
        self, target: Target, avals: Sequence[Any], operation: str, in_loop: bool | None = False, **params: Any
    ) -> Instead | None:
        if target.fuses_reductions:
            operation = operation or ("leaves" if self.is_leaf_by_leaf(params["call"]) else "")
        found = super().left_to_xla(target, avals, operation, in_loop, **params)
        if found is not None and target.fuses_reductions:
            function = functools.partial(self._of_xla, scan_xla.IN_ONE_LOOP, apart=True, **params)
            return dataclasses.replace(found, function=over_batch(function, *self.batch(avals, **params)))
        if found is None or in_loop is None:
            return found
        numbers = math.prod(self.problem(target, avals, **params).sizes)
        least, most = (0, 2 * AT_ONCE) if not in_loop else SOME_IN_LOOP if operation in ("max", "min") else (0, 0)
        if not least <= numbers < most:
            return found
        # what wakes a thread has been made a kernel: of rows of two, half as many operations as elements
        function = functools.partial(self._of_xla, scan_xla.REDUCTIONS_AT_ONCE, **params)
        return dataclasses.replace(found, function=over_batch(function, *self.batch(avals, **params)))

    def is_leaf_by_leaf(self, call: OrderedCall) -> bool:
        """Has XLA an operation for what the operator does to each leaf, or two for all?"""
        known = all(name in scan_xla.IN_ONE_LOOP and name != "logaddexp" for name in call.operator.leaf_names)
        kinds = all(dtype.kind in "fiuVbc" for dtype in call.operator.dtypes)
        return not call.init and call.wanted is None and ((known and kinds) or call.operator.name in scan_xla.COUNTED)

    def extreme(self, call: OrderedCall) -> str | None:
        """argmax or argmin, of one array's elements with their positions."""
        alone = [p is None for p in call.positions] == [True, False] and not call.init and not call.f.jaxpr.eqns
        in_order = list(call.f.jaxpr.outvars) == list(call.f.jaxpr.invars)
        return call.operator.name if alone and in_order and call.operator.name in scan_xla.EXTREMES else None

    def plain_one(self, *operands: Any, **params: Any) -> list[Any]:
        known = scan_xla.OF_DEAR if params["call"].of_dear else scan_xla.REDUCTIONS
        return self._of_xla(known, *operands, **params)

    def series_one(self, *operands: Any, **params: Any) -> list[Any]:
        return self._of_xla(scan_xla.WITH_SERIES, *operands, **params)

    def _of_xla(
        self, known: Mapping[str | None, Callable[..., Any]], *operands: Any, apart: bool = False, **params: Any
    ) -> list[Any]:
        """By XLA's own operations, if there is one; ``apart``: or one for each leaf."""
        call: OrderedCall = params["call"]
        arrays, _, captured, consts, init = call.split(operands)
        name = self.extreme(call)
        if name is not None and arrays[0].shape[0] > 0:
            pair = scan_xla.extreme(arrays[0], name, call.positions[1])
            return [pair[k] for k in (call.wanted or (0, 1))]
        values = call.values(arrays, captured)
        if values[0].shape[0] == 0:
            return neutral_leaves(call, values) if init is None else init
        extreme = scan_xla.COUNTED.get(call.operator.name)
        if extreme is not None:
            return list(scan_xla.counted(known[extreme], *values))
        names = call.operator.leaf_names
        if init is None and all(name in known for name in names) and (apart or len(names) == 1):
            return [known[name](v, axis=0).astype(v.dtype) for name, v in zip(names, values, strict=True)]
        return scan_xla.reduce(call.combine(consts, 1 + call.inner_rank), values, init)


REDUCTIONS = Reductions("reduce", "reduction", reduce_p, ffi.REDUCE)
register_family(REDUCTIONS)
