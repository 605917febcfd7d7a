"""Numbers that are made once: those that are compared with what came of them, to the last bit, and tables.

The gradient of a maximum goes where an element equals it. XLA makes elements again in each loop that reads them, a kernel takes
in what makes them (``producers``), and a * b + c is rounded once in one of these and twice in another: nothing may be equal to
the maximum, and the gradient is lost. What is held is the result of a call that does nothing, in its operand's place: neither
sees through it, and nothing is copied unless something else reads the operand later.

What is read by index XLA makes in the loop that reads it: of a sum by index whose cosine is the loss, a sine for each element,
not for each bin. Of such a table, too, the call's result is read.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import jet
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..targets import ffi
from ..targets.operations import CAN_LOOK, CHEAP, EACH, IN_LOOPS, Frame, ir, is_one_number, made_by, reshapes
from ..targets.registry import register_family
from ..targets.target import Target
from .batches import new_primitive
from .divided import Layout, batch_factors, devices_of
from .divided import lower as divide

held_p = new_primitive("held")

_ROUNDED = frozenset(f"stablehlo.{name}" for name in ("add", "subtract", "multiply", "convert"))
"""Rounded in one way only, alone."""

_EXACT = frozenset(
    f"stablehlo.{name}"
    for name in (
        "abs and bitcast_convert broadcast_in_dim ceil clamp compare complex concatenate dynamic_slice floor gather imag iota "
        "is_finite maximum minimum negate not or pad real reshape reverse round_nearest_afz round_nearest_even select shift_left "
        "shift_right_arithmetic shift_right_logical sign slice transpose xor"
    ).split()
)

_OF_PARTS = frozenset(f"stablehlo.{name}" for name in ("abs", "multiply", "sign"))
"""Of these, what is several operations on complex numbers."""

MOST_LOOKED_AT = 64

ARGUMENT = -1

FEWEST_READS = 4096
"""Of a table's numbers, from which on they are worth a call."""


def held(xs: Sequence[Any]) -> list[Any]:
    """These arrays; under a trace, floats that whoever reads them finds the same."""
    return [_held(x, 0) if isinstance(x, jax.core.Tracer) and jnp.issubdtype(x.dtype, jnp.floating) else x for x in xs]


def argument(x: Any) -> Any:
    """``x``, which may be a product, or of bf16: who adds to it is to find it rounded, as it lies in memory."""
    return _held(x, ARGUMENT) if isinstance(x, jax.core.Tracer) and jnp.issubdtype(x.dtype, jnp.floating) else x


def table(x: Any, times: Any) -> Any:
    """``x``, made before it is read, if each of its numbers is read so many times, at least two."""
    known = isinstance(x, jax.core.Tracer) and all(isinstance(n, int) for n in (times, *x.shape))
    return _held(x, times) if known and times >= 2 else x


def _held(x: Any, times: int) -> Any:
    """``times``: how often each number is read; 0 if it is compared, :data:`ARGUMENT` if what is made of it is."""
    return held_p.bind(x, times=times)[0]


def _is_rounded(ctx: Any, value: Any, most: int) -> bool:
    """May whoever makes this value anew make another one? Of so many roundings the result is the same."""
    todo: list[tuple[Any, Frame | None]] = [(value, None)]
    rounded = seen = 0
    while todo:
        value, frame = todo.pop()
        op, frame = made_by(ctx, value, frame)
        if op is None:
            if not _is_in_memory(value):
                return True
            continue
        if op.name not in CHEAP and op.name not in IN_LOOPS and op.name not in _EXACT:
            continue
        if op.name in _OF_PARTS and _is_complex(op.operands[0]):
            return True
        seen, rounded = seen + 1, rounded + (op.name not in _EXACT)
        if rounded > most or seen > MOST_LOOKED_AT or (rounded and op.name not in _EXACT | _ROUNDED):
            return True
        todo += [(x, frame) for x in op.operands]
    return False


def _is_complex(value: Any) -> bool:
    return isinstance(ir.RankedTensorType(value.type).element_type, ir.ComplexType)


def _takes_work(ctx: Any, value: Any) -> bool:
    """Would XLA do more for a number of this than to find it and to combine it with one number?"""
    todo: list[tuple[Any, Frame | None]] = [(value, None)]
    for _ in range(MOST_LOOKED_AT):
        if not todo:
            return False
        op, frame = made_by(ctx, *todo.pop())
        if op is not None and reshapes(op):
            todo.append((op.operands[0], frame))
            continue
        if op is None or (op.name not in CHEAP and op.name not in IN_LOOPS):
            continue
        variable = [x for x in op.operands if not is_one_number(ctx, x, frame)]
        if variable and op.name not in _FOUND and (op.name not in CHEAP or len(variable) > 1):
            return True
        todo += [(x, frame) for x in variable]
    return True


_FOUND = frozenset(
    f"stablehlo.{name}" for name in "bitcast_convert broadcast_in_dim convert dynamic_slice reverse slice transpose".split()
)
"""What is found at another place, or in another type."""


def _is_in_memory(value: Any) -> bool:
    """Is it an argument of the program, or of a loop's or branch's body? What calls a function may have made its arguments."""
    owner = value.owner.owner.operation if isinstance(value.owner, ir.Block) else None
    return owner is not None and (owner.name != "func.func" or ir.StringAttr(owner.attributes["sym_name"]).value == "main")


class Held:
    """The call, as targets see it."""

    name = "held"
    primitive = held_p
    lowered = Primitive("held_in_place")
    standing = None
    call_target = ffi.HELD

    def lower(self, ctx: Any, *operands: Any, target: Target, **params: Any) -> Any:
        if params["times"] > 0 and target.platform != "cpu":  # where arithmetic is cheaper than another kernel
            return operands
        rank = ctx.avals_in[0].ndim
        return ffi.lower_call(ctx, self.call_target, operands, None, ((1 << rank) - 1,), rank, (), aliases={0: 0})

    def plain(self, *operands: Any, **params: Any) -> list[Any]:
        return list(operands)

    def where_it_stands(self, ctx: Any, x: Any, *, times: int) -> Any:
        """What makes the operand is to be seen here only (``looking_back``)."""
        (aval,), count = ctx.avals_in, devices_of(ctx)
        if times > 0:
            many = isinstance(aval.size, int) and aval.size * times >= FEWEST_READS  # a batch of unknown size is not
            needed = CAN_LOOK and count == 1 and many and _takes_work(ctx, x)
        else:
            needed = not CAN_LOOK or _is_rounded(ctx, x, most=0 if times == ARGUMENT else 1)
        if not needed:
            return [x]
        bind = functools.partial(self.lowered.bind, times=times)
        if count == 1:
            return mlir.lower_fun(bind)(ctx, x)
        axes = batch_factors(aval.ndim)
        part = Layout((axes,), (axes,), lambda _, x: bind(x), "")
        return divide(ctx, [x], part, lambda x: tuple(bind(x)), count)


HELD = Held()
HELD.lowered.multiple_results = True
HELD.lowered.def_abstract_eval(HELD.plain)
held_p.def_abstract_eval(HELD.plain)
mlir.register_lowering(held_p, HELD.where_it_stands, **EACH)
register_family(HELD)


def _beside(operands: Sequence[Any], beside: Sequence[Any], **params: Any) -> tuple[list[Any], Sequence[Any]]:
    """Batch axes, or tangents, are what they were."""
    return held_p.bind(*operands, **params), beside


def _transpose(cotangents: Sequence[Any], x: Any, times: int) -> Sequence[Any]:
    """What is so often read is the cotangent, if the operand is a sum of so many."""
    return [table(ct, times) if times > 0 and not isinstance(ct, ad.Zero) else ct for ct in cotangents]


batching.primitive_batchers[held_p] = _beside
ad.primitive_jvps[held_p] = _beside
ad.primitive_transposes[held_p] = _transpose
jet.jet_rules[held_p] = _beside
