"""``reduce_p``: the reduction as a jax primitive (paper 2), in order, along one axis. Operands: see ``fold``. Results: the leaves
``[*batch, *inner, *element]``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir, xla

from ..frontend.operator import identity_leaves
from ..runtime import ffi
from . import scan_xla
from .batches import over_batch
from .fold import Fold
from .scan import batch_rule, register_kernels, result_avals

reduce_p = Primitive("reduce_any_operator")
reduce_p.multiple_results = True
reduce_p.def_impl(functools.partial(xla.apply_primitive, reduce_p))


@reduce_p.def_abstract_eval
def _abstract_eval(*avals: Any, fold: Fold, masks: tuple[int, ...], rank: int) -> list[Any]:
    return result_avals(avals, fold, masks, rank, ())


batching.primitive_batchers[reduce_p] = batch_rule(reduce_p, 0)


def neutral_leaves(fold: Fold, values: Sequence[Any]) -> list[Any]:
    """The identity on slices of ``values`` [N, ...]; zeros where none is known."""
    shapes = [v.shape[1:] for v in values]
    if fold.operator.identity is None:
        return [jnp.zeros(s, v.dtype) for s, v in zip(shapes, values, strict=True)]
    return [jnp.broadcast_to(i, s) for i, s in zip(identity_leaves(fold.operator), shapes, strict=True)]


def _plain_one(fold: Fold, *operands: Any) -> list[Any]:
    arrays, _, captured, consts, init = fold.split(operands)
    values = fold.values(arrays, captured)
    if values[0].shape[0] == 0:
        return neutral_leaves(fold, values) if init is None else init
    if fold.operator.name in scan_xla.REDUCTIONS and len(values) == 1 and init is None:
        return [scan_xla.REDUCTIONS[fold.operator.name](values[0], axis=0).astype(values[0].dtype)]
    return scan_xla.reduce(fold.combine(consts, 1 + fold.inner_rank), values, init)


def _plain(*operands: Any, fold: Fold, masks: tuple[int, ...], rank: int) -> list[Any]:
    return over_batch(functools.partial(_plain_one, fold), masks, rank)(*operands)


mlir.register_lowering(reduce_p, mlir.lower_fun(_plain, multiple_results=True))
register_kernels(reduce_p, ffi.REDUCE, "reduce")
