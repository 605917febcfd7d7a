"""Operations of a module that is being lowered: which of them make arrays number by number, and as what functions of JAX's."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

ir = mlir.ir

CAN_LOOK = "cacheable" in inspect.signature(mlir.register_lowering).parameters
"""Does this JAX lower calls where they stand, if that is wanted?"""

EACH: dict[str, bool] = {"cacheable": False} if CAN_LOOK else {}
"""How that is said of a primitive."""

CHEAP: dict[str, Callable[..., Any]] = {
    f"stablehlo.{name}": function
    for name, function in {
        "abs": jax.lax.abs,
        "add": jax.lax.add,
        "and": jax.lax.bitwise_and,
        "clamp": jax.lax.clamp,
        "divide": jax.lax.div,
        "is_finite": jax.lax.is_finite,
        "maximum": jax.lax.max,
        "minimum": jax.lax.min,
        "multiply": jax.lax.mul,
        "negate": jax.lax.neg,
        "not": jax.lax.bitwise_not,
        "or": jax.lax.bitwise_or,
        "select": lambda which, yes, no: jax.lax.select_n(which, no, yes),
        "subtract": jax.lax.sub,
        "xor": jax.lax.bitwise_xor,
    }.items()
}

COMPARISONS = {"EQ": jax.lax.eq, "NE": jax.lax.ne, "LT": jax.lax.lt, "LE": jax.lax.le, "GT": jax.lax.gt, "GE": jax.lax.ge}

DEAR = frozenset(
    f"stablehlo.{name}"
    for name in (
        "cbrt cosine exponential exponential_minus_one gather log log_plus_one logistic power rsqrt sine sqrt tan tanh"
    ).split()
)
"""What XLA makes in the loop that reads it, and had better not make again for each."""

IN_LOOPS = DEAR | frozenset(
    f"stablehlo.{name}"
    for name in (
        "bitcast_convert broadcast_in_dim ceil compare concatenate convert dynamic_slice floor iota pad remainder reverse "
        "round_nearest_afz round_nearest_even shift_left shift_right_arithmetic shift_right_logical sign slice transpose"
    ).split()
)
"""What XLA makes in the loop that reads it, beside the cheap ones."""

LOOPS, BODIES = ("stablehlo.while",), ("closed_call", "eval_jaxpr")
"""Operations that are loops; what versions of JAX name a function that is a loop's body, before it is inlined."""

DTYPES = {
    "i1": np.dtype(bool),
    **{f"i{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)},
    **{f"ui{n}": np.dtype(f"uint{n}") for n in (8, 16, 32, 64)},
    "bf16": np.dtype(jnp.bfloat16),
    **{f"f{n}": np.dtype(f"float{n}") for n in (16, 32, 64)},
}


class NotTaken(Exception):
    """Something of an operand's making that no kernel takes in."""


@dataclasses.dataclass(frozen=True)
class Frame:
    """Inside a function that is called. A value is looked up in the frame that it is in."""

    call: Any
    outer: Frame | None


def in_loop() -> bool | None:
    """Is what is being lowered a loop's body? None where that is not known: in a function or branch, which may be a loop's."""
    owner = ir.InsertionPoint.current.block.owner.operation
    if owner.name in LOOPS:
        return True
    name = ir.StringAttr(owner.attributes["sym_name"]).value if owner.name == "func.func" else ""
    return True if name.startswith(BODIES) else False if name == "main" else None


def others_make(numbers: int) -> bool:
    """Does XLA make so many floats before what is being lowered? Then a loop of its own, likely, reads what is made here."""
    before = ir.InsertionPoint.current.block.operations
    return any((op.name in CHEAP or op.name in IN_LOOPS) and _floats_of(op.results[0]) >= numbers for op in before)


def _floats_of(value: Any) -> int:
    kind = ir.RankedTensorType(value.type)
    return math.prod(kind.shape) if kind.has_static_shape and "f" in str(kind.element_type) else 0


def is_made(ctx: Any, operand: Any) -> bool:
    """Would XLA make this operand in the loop that reads it?"""
    op, frame = made_by(ctx, operand, None)
    while op is not None and reshapes(op):
        op, frame = made_by(ctx, op.operands[0], frame)
    return op is not None and (op.name in CHEAP or op.name in IN_LOOPS)


def is_dear(ctx: Any, value: Any, frame: Frame | None = None, depth: int = 8) -> bool:
    """Would XLA make it of what is :data:`DEAR` in every loop that reads it?"""
    op, frame = made_by(ctx, value, frame)
    if op is None or depth == 0:
        return False
    made = op.name in CHEAP or op.name in IN_LOOPS or reshapes(op)
    return op.name in DEAR or (made and any(is_dear(ctx, x, frame, depth - 1) for x in op.operands))


def is_one_number(ctx: Any, value: Any, frame: Frame | None = None, depth: int = 8) -> bool:
    """Is it the same number everywhere? XLA, which sees that, reads it from no memory."""
    kind = ir.RankedTensorType(value.type)
    if kind.has_static_shape and math.prod(kind.shape) == 1:
        return True
    op, frame = made_by(ctx, value, frame)
    if op is None or depth == 0:
        return False
    if op.name == "stablehlo.constant":
        return bool(ir.DenseElementsAttr(op.attributes["value"]).is_splat)
    looks = op.name in CHEAP or op.name in ("stablehlo.broadcast_in_dim", "stablehlo.convert") or reshapes(op)
    return looks and all(is_one_number(ctx, x, frame, depth - 1) for x in op.operands)


def made_by(ctx: Any, value: Any, frame: Frame | None) -> tuple[Any, Frame | None]:
    """The operation that makes a value, inside the functions that are called, and where it is; None for an argument."""
    value, frame = resolved(value, frame)
    while not isinstance(value.owner, ir.Block):
        inside = returned(ctx, value, frame) if value.owner.operation.name == "func.call" else None
        if inside is None:
            return value.owner.operation, frame
        value, frame = resolved(*inside)
    return None, frame


def resolved(value: Any, frame: Frame | None) -> tuple[Any, Frame | None]:
    """The value itself, of a function's argument."""
    while frame is not None and isinstance(value.owner, ir.Block):
        value, frame = frame.call.operands[ir.BlockArgument(value).arg_number], frame.outer
    return value, frame


def returned(ctx: Any, value: Any, frame: Frame | None) -> tuple[Any, Frame] | None:
    """What a function that is called returns, inside of it; None if that is not to be seen."""
    call, symbols = value.owner.operation, ctx.module_context.symbol_table
    name = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
    if name not in symbols:
        return None
    last = symbols[name].operation.regions[0].blocks[0].operations[-1]
    return last.operation.operands[ir.OpResult(value).result_number], Frame(call, frame)


def shape_of(value: Any) -> tuple[int, ...]:
    kind = ir.RankedTensorType(value.type)
    if not kind.has_static_shape:
        raise NotTaken
    return tuple(kind.shape)


def dtype_of(value: Any) -> np.dtype:
    found = DTYPES.get(str(ir.RankedTensorType(value.type).element_type))
    if found is None:
        raise NotTaken
    return found


def reshapes(op: Any) -> bool:
    """A reduction along axes of length 1 is a reshape, whatever its function: XLA takes it for one."""
    if op.name != "stablehlo.reduce" or len(op.results) != 1:
        return op.name == "stablehlo.reshape"
    before, after = (ir.RankedTensorType(x.type) for x in (op.operands[0], op.results[0]))
    return before.has_static_shape and math.prod(before.shape) == math.prod(after.shape)


def function_of(op: Any) -> Callable[..., Any] | None:
    """The function of JAX's that an operation is; None if it is none that is taken in."""
    if op.name == "stablehlo.convert" and (dtype := dtype_of(op.results[0])).kind != "b":
        return functools.partial(jax.lax.convert_element_type, new_dtype=dtype)
    if op.name == "stablehlo.compare":
        words = [str(op.attributes[name]) for name in op.attributes if name.startswith("compar")]
        if any("TOTALORDER" in w for w in words):
            return None
        return next((f for name, f in COMPARISONS.items() if any(f" {name}>" in w for w in words)), None)
    return CHEAP.get(op.name)


def masked(ctx: Any, op: Any, frame: Frame | None) -> Callable[..., Any] | None:
    """A product with a mask as the choice that XLA makes of it: what is infinite, or no number, is not seen where a mask is
    false."""
    if op.name != "stablehlo.multiply" or dtype_of(op.results[0]) not in (np.float32, np.float64):
        return None
    masks = [k for k, x in enumerate(op.operands) if _is_mask(made_by(ctx, x, frame)[0])]
    if not masks:
        return None
    return lambda *factors: jnp.where(factors[masks[0]] != 0, factors[1 - masks[0]], jnp.zeros_like(factors[0]))


def _is_mask(op: Any) -> bool:
    return op is not None and op.name == "stablehlo.convert" and dtype_of(op.operands[0]).kind == "b"


def gathers_rows(op: Any) -> bool:
    """Does a gather take one row of a table for each of its indices?"""
    how = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    table, indices, rows = shape_of(op.operands[0]), shape_of(op.operands[1]), shape_of(op.results[0])
    lead, sizes = len(indices) - 1, list(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))
    return (
        indices[-1:] == (1,)
        and how.index_vector_dim == lead
        and [list(how.start_index_map), list(how.collapsed_slice_dims), list(how.operand_batching_dims)] == [[0], [0], []]
        and list(how.offset_dims) == list(range(lead, len(rows)))
        and sizes == [1, *table[1:]]
        and rows == (*indices[:-1], *table[1:])
    )
