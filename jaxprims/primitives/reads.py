"""What derivative rules read by index, as calls of their own where there are several devices: their transposes add by index.

XLA gives each device as many of a scatter's updates. Where there are fewer, and several devices have copies of these, it adds
what lies behind the last, too (XLA 0.10), so a transpose is made of as many updates as devices divide: the others are zero.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive, jaxprs_in_params
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType

from ..operators.traced import Traced
from ..tracing.jaxprs import CALLS, CHECKPOINTS, RULES, called, equations_in, expansions, interpret, run_equation
from ..tracing.varying import axes_of, in_context, of_rows, placed, under_no_mesh
from .avals import result_aval
from .batches import batch_shape, members, new_primitive, outermost, over_batch
from .tangents import is_inexact, no_tangent, taylor_by

READS = frozenset({"gather", "dynamic_slice"})
"""XLA's primitives whose transposes add by index."""

read_p = new_primitive("read_by_index")
added_p = new_primitive("added_by_index")


@dataclasses.dataclass(frozen=True)
class Read:
    """What is read of one array, for one element: by which primitive of XLA's."""

    primitive: Primitive
    params: tuple[tuple[str, Any], ...]
    shape: tuple[Any, ...]

    def rows(self, masks: Sequence[int], rank: int) -> Callable[..., Any]:
        """On all members of the batch, from the array and indices."""
        return over_batch(lambda table, *index: self.primitive.bind(table, *index, **dict(self.params)), masks, rank)


# --- where they are bound -------------------------------------------------------------------------------------------------------


def on_elements(f: Traced, captured: Sequence[Any]) -> Callable[..., list[Any]]:
    """``f(captured, *element)``, to be mapped; what it reads of arrays by index, by calls of their own."""

    def run(*xs: Any) -> list[Any]:
        if not (captured and _several(*captured, *xs) and _reads(f.elsewhere)):
            return f(captured, *xs)
        return interpret(f.elsewhere, captured, xs, _equation)

    return run


def by_calls(f: Callable[..., Sequence[Any]], *args: Any) -> Sequence[Any]:
    """``f(*args)`` of one element, likewise."""
    if not _several(*args):
        return f(*args)
    closed = jax.make_jaxpr(f)(*args)
    return interpret(closed.jaxpr, closed.consts, args, _equation)


def rows(x: Any, index: Any, **how: Any) -> Any:
    """``x[index]``, of indices [N]; of one, that is an element's own. ``how``: the mode, as for ``x.at[index].get``."""
    if index.ndim == 0 or not _several(x, index) or not is_inexact(x.dtype):
        return x.at[index].get(**how, wrap_negative_indices=False, out_sharding=of_rows(x, index))
    return jax.vmap(lambda i: by_calls(lambda x, i: [x.at[i].get(**how, wrap_negative_indices=False)], x, i)[0])(index)


def _several(*args: Any) -> bool:
    """May XLA's partitioner divide what is made of these?"""
    if jax.device_count() == 1 or axes_of(args) or placed(args):
        return False
    return AxisType.Manual not in jax.sharding.get_abstract_mesh().axis_types


def _reads(jaxpr: Jaxpr) -> bool:
    """Does it read numbers with derivatives by index?"""
    return any(map(_is_read, equations_in(jaxpr)))


def _is_read(eqn: JaxprEqn) -> bool:
    return eqn.primitive.name in READS and is_inexact(eqn.invars[0].aval.dtype)


def _equation(eqn: JaxprEqn, operands: Sequence[Any]) -> Sequence[Any]:
    if _is_read(eqn):
        read = Read(eqn.primitive, tuple(eqn.params.items()), tuple(operands[0].shape))
        return read_p.bind(*operands, read=read, masks=(0,) * len(operands), rank=0)
    if eqn.primitive.name in RULES or not any(map(_reads, jaxprs_in_params(eqn.params))):
        return run_equation(eqn, operands)
    inner = called(eqn) if eqn.primitive.name in CALLS - CHECKPOINTS else None
    if inner is not None:
        return interpret(*inner, operands, _equation)
    return run_equation(eqn.replace(params={name: _replaced(p) for name, p in eqn.params.items()}), operands)


def _replaced(param: Any) -> Any:
    """A parameter of a loop or branch: its functions, likewise."""
    if isinstance(param, tuple):
        return tuple(map(_replaced, param)) if any(isinstance(p, (Jaxpr, ClosedJaxpr)) for p in param) else param
    if not isinstance(param, (Jaxpr, ClosedJaxpr)):
        return param
    closed = param if isinstance(param, ClosedJaxpr) else ClosedJaxpr(param, [])
    run = lambda *xs: interpret(closed.jaxpr, closed.consts, xs, _equation)  # noqa: E731
    made = jax.make_jaxpr(run)(*(v.aval for v in closed.jaxpr.invars))
    return made if isinstance(param, ClosedJaxpr) else made.jaxpr


# --- the primitives -------------------------------------------------------------------------------------------------------------


def _read(table: Any, *index: Any, read: Read, masks: Sequence[int], rank: int) -> list[Any]:
    return [read.rows(masks, rank)(table, *index)]


def _added(ct: Any, *index: Any, read: Read, masks: Sequence[int], rank: int, parts: int = 1) -> list[Any]:
    """The transpose, of batch axes that ``parts`` divides."""
    sizes = batch_shape([jax.typeof(x) for x in (ct, *index)], ((1 << rank) - 1, *masks[1:]), rank)
    full = [n if parts == 1 else n + -n % parts for n in sizes]

    def filled(x: Any, mask: int) -> Any:
        behind = [full[a] - sizes[a] for a in range(rank) if mask >> a & 1]
        around = [(0, n, 0) for n in behind] + [(0, 0, 0)] * (x.ndim - len(behind))
        return x if all(isinstance(n, int) and n == 0 for n in behind) else lax.pad(x, jnp.zeros((), x.dtype), around)

    ct, index = filled(ct, (1 << rank) - 1), tuple(map(filled, index, masks[1:]))
    mine = [a for a in range(rank) if masks[0] >> a & 1]
    table = jax.ShapeDtypeStruct((*(full[a] for a in mine), *read.shape), ct.dtype)
    (out,) = jax.linear_transpose(lambda table: read.rows(masks, rank)(table, *index), table)(ct)
    return [out[tuple(slice(sizes[a]) for a in mine)]]


@read_p.def_abstract_eval
def _abstract_read(*avals: Any, read: Read, masks: tuple[int, ...], rank: int) -> list[Any]:
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    with under_no_mesh():
        (made,) = jax.eval_shape(functools.partial(_read, read=read, masks=masks, rank=rank), *structs)
    return [result_aval(avals[0], made.shape, made.dtype, ())]


@added_p.def_abstract_eval
def _abstract_added(ct: Any, *avals: Any, read: Read, masks: tuple[int, ...], rank: int) -> list[Any]:
    sizes = ct.shape[:rank]
    shape = (*(sizes[a] for a in range(rank) if masks[0] >> a & 1), *read.shape)
    return [result_aval(ct, shape, ct.dtype, ())]


def _lower_added(ctx: Any, *operands: Any, **params: Any) -> Any:
    parts = getattr(ctx.module_context.axis_context, "num_devices", 1)
    return mlir.lower_fun(functools.partial(_added, **params, parts=parts))(ctx, *operands)


def _batch_added(operands: Sequence[Any], dims: Sequence[Any], *, masks: tuple[int, ...], **params: Any) -> Any:
    """All cotangents have all axes, and each member an array of its own."""
    ct, *index = operands
    ct = jnp.broadcast_to(ct, (members(operands, dims), *ct.shape)) if dims[0] is None else jnp.moveaxis(ct, dims[0], 0)
    return outermost(added_p, [ct, *index], [0, *dims[1:]], masks=masks, **params)


def _jvp_of(primitive: Primitive) -> Callable[..., Any]:
    """Of what is linear in its first operand."""

    def rule(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        x, *index = primals
        out = primitive.bind(x, *index, **params)
        if isinstance(tangents[0], ad.Zero):
            return out, [no_tangent(out[0])]
        return out, primitive.bind(tangents[0], *index, **params)

    return rule


def _transpose_by(other: Primitive) -> Callable[..., Any]:
    def rule(cotangents: Sequence[Any], x: Any, *index: Any, **params: Any) -> list[Any]:
        (ct,), none = cotangents, [None] * len(index)
        return [ad.Zero(x.aval) if isinstance(ct, ad.Zero) else other.bind(ct, *map(in_context, index), **params)[0], *none]

    return rule


for _primitive, _other, _whole in ((read_p, added_p, _read), (added_p, read_p, _added)):
    ad.primitive_jvps[_primitive] = _jvp_of(_primitive)
    ad.primitive_transposes[_primitive] = _transpose_by(_other)
    taylor_by(_primitive, _whole)
mlir.register_lowering(read_p, mlir.lower_fun(_read))
mlir.register_lowering(added_p, _lower_added)
batching.primitive_batchers[read_p] = functools.partial(outermost, read_p)
batching.primitive_batchers[added_p] = _batch_added
expansions[read_p.name] = _read
