"""``LookingBack``: families whose calls take in what makes their operands.

That is to be seen only where a call stands, in a lowering that JAX does not keep for all calls that are alike. Such a lowering is
for all platforms. So there are two: the family's primitive is lowered to another one, which has the operands as they are and,
behind them, what they are made of (``producers``); this one has a rule for each target, which takes the ones or the others. In
a module for one platform it is lowered where it stands, too: its operands are handed over as they were made (``as_made``).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from ..ir.contraction import contracted
from ..operators.traced import make_traced
from ..targets.operations import CAN_LOOK, EACH, in_loop, is_made
from ..targets.target import Target
from . import divided
from .family import Family
from .producers import Taken


@dataclasses.dataclass(frozen=True)
class Seen:
    """``made``: would XLA make the operands in the loop that reads them? ``in_loop``: is the call in a loop's body? ``call``,
    ``masks``: with what makes them taken in; ``contracted``: rounded as XLA's loops do it."""

    made: bool = False
    in_loop: bool | None = False
    call: Any = None
    masks: tuple[int, ...] = ()
    contracted: bool = False


class LookingBack(Family):
    """A family of calls of elements, with ``call`` and ``masks`` among the parameters."""

    def __init__(self, name: str, title: str, primitive: Primitive, call_target: str):
        super().__init__(name, title, primitive, call_target)
        if CAN_LOOK:
            self.lowered, self.standing = self._behind(primitive.name), self._behind(primitive.name)
            mlir.register_lowering(primitive, self._look_back, **EACH)

    def _behind(self, name: str) -> Primitive:
        """A primitive to which the family's is lowered."""
        primitive = Primitive(name)
        primitive.multiple_results = True
        primitive.def_abstract_eval(self._avals)
        return primitive

    @abc.abstractmethod
    def taken(self, ctx: Any, operands: Sequence[Any], **params: Any) -> Taken | None:
        """The call with what makes its operands, if anything is to be taken in."""

    def is_read_by_xla(self, ctx: Any, operands: Sequence[Any], **params: Any) -> bool:
        """Is it read by index what the call gives, by XLA where it makes something of it?"""
        return False

    def fused_by_xla(self, seen: Seen, target: Target, avals: Sequence[Any], **params: Any) -> bool:
        """Is XLA, which may make the operands in the same loop, faster than a kernel where the call stands?"""
        return False

    def plain(self, *operands: Any, seen: Seen | None = None, **params: Any) -> list[Any]:
        return super().plain(*operands[: len(params["masks"])], **params)

    def _avals(self, *avals: Any, seen: Seen, **params: Any) -> Any:
        return jax.make_jaxpr(lambda *xs: self.primitive.bind(*xs, **params))(*avals[: len(params["masks"])]).out_avals

    def _look_back(self, ctx: Any, *operands: Any, **params: Any) -> Any:
        there = None if self.is_read_by_xla(ctx, operands, **params) else in_loop()
        seen, more, avals = Seen(in_loop=there), list[Any](), list[Any]()
        if divided.devices_of(ctx) == 1 and not params["call"].as_they_are:
            taken = self.taken(ctx, operands, **params)
            other = taken is not None and params["call"].compares and _has_other_bits(params["call"], taken.call)
            if taken is not None and other:
                taken = _as_xla_rounds(ctx, taken)
            if taken is not None:
                more, avals = taken.operands, taken.avals
                seen = dataclasses.replace(seen, call=taken.call, masks=taken.masks, contracted=other)
            arrays = operands if taken is None else more[: taken.call.num_arrays]
            seen = dataclasses.replace(seen, made=any(is_made(ctx, x) for x in arrays))
        standing = self.standing if len(ctx.module_context.platforms) == 1 else None
        bind = functools.partial((standing or self.lowered).bind, seen=seen, **params)
        return mlir.lower_fun(bind)(ctx.replace(avals_in=[*ctx.avals_in, *avals]), *operands, *more)

    def lower(self, ctx: Any, *operands: Any, target: Target, seen: Seen | None = None, **params: Any) -> Any:
        seen, n = seen or Seen(), len(params["masks"])
        own, params = ctx.replace(avals_in=ctx.avals_in[:n]), self.whole(ctx, params)
        another = self.another_way(own, operands[:n], target, seen.in_loop, **params)
        if another is not None:
            return another()
        if self.fused_by_xla(seen, target, own.avals_in, **params):
            return mlir.lower_fun(functools.partial(self.plain, **params))(own, *operands[:n])
        if seen.call is None or (seen.contracted and not target.contracts):
            return self.to_kernel(own, operands[:n], target, **params)
        params |= {"call": seen.call, "masks": seen.masks}
        return self.to_kernel(ctx.replace(avals_in=ctx.avals_in[n:]), operands[n:], target, **params)


def _has_other_bits(before: Any, after: Any) -> bool:
    """Does f make now what XLA may make in other bits? Who compares elements with their extreme has what XLA makes."""
    return bool(before.has_same_bits and not after.has_same_bits)


def _as_xla_rounds(ctx: Any, taken: Taken) -> Taken | None:
    """The call whose f makes what XLA's loops make, to the last bit; None where that is not known."""
    f = taken.call.f
    program = None if f.arrays is not None or any(is_made(ctx, x) for x in taken.operands) else contracted(f.program)
    if program is None:
        return None
    return dataclasses.replace(taken, call=dataclasses.replace(taken.call, f=make_traced(f.jaxpr, program)))
