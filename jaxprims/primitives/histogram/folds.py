"""Derivatives of histograms by any operator: ``tangents_p``, linear in tangents, and ``cotangents_p``, its transpose.

A tangent is made as everywhere: each bin's elements are brought together, and what each of them moves is added up. Its transpose
need not do that in reverse: on CPUs it is two walks through the elements as they lie (``fold_walks``). Elsewhere, and for the
derivatives of either, it is the transpose of the same sums. Where an operator has fields if certain leaves are positive in all
elements (``operators/invariant.py``), it is asked for when the call runs, and neither is done.

Operands: the call's, its results, then of ``tangents_p`` the tangents of the operands that move, of ``cotangents_p`` the inexact
results' cotangents.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ...operators.invariant import Invariant, invariant_of
from ...tracing.varying import axes_of
from ..ad_rules import by_fields
from ..avals import result_aval
from ..batches import batch_shape, new_primitive, outermost, over_batch
from ..ordered import scan_xla
from ..ordered.reduce_ad import through
from ..ordered.scan_xla import like
from ..tangents import Leaves, add, along, instantiated, is_inexact, jvp_of, replaced, summed_to, taylor_by, zeros_if_none
from .call import HistogramCall, Part
from .fold_walks import walks_of
from .group import group
from .groups_by_index import ByIndex
from .primitive import by_index


@dataclasses.dataclass(frozen=True)
class Fold:
    """A call of one part, and which of its operands have tangents: arrays and dests."""

    call: HistogramCall
    moving: tuple[int, ...]

    @property
    def leaves(self) -> list[tuple[tuple[int, ...], Any]]:
        """Of the inexact results: a bin's shape and dtype."""
        op = self.call.parts[0].operator
        return [(s, d) for s, d in zip(op.shapes, op.dtypes, strict=True) if is_inexact(d)]

    def split(self, args: Sequence[Any], behind: int) -> tuple[Leaves, Leaves, Leaves]:
        """The call's operands, its results, and ``behind`` others."""
        count = len(args) - behind - len(self.call.parts[0].values)
        return list(args[:count]), list(args[count : len(args) - behind]), list(args[len(args) - behind :])

    def tangents(self, *args: Any) -> Leaves:
        """Of an unbatched call, in JAX's own primitives and this library's sums and scans."""
        operands, _, dots = self.split(args, len(self.moving))
        of_operands = dict(zip(self.moving, dots, strict=True))
        every = general(self.call, operands, [of_operands.get(k) for k in range(len(operands))])
        return self._instantiated(every)

    def _instantiated(self, tangents: Leaves) -> Leaves:
        found = [t for t, d in zip(tangents, self.call.parts[0].operator.dtypes, strict=True) if is_inexact(d)]
        bins = self.call.parts[0].num_bins
        return [jnp.zeros((bins, *s), d) if t is None else t for t, (s, d) in zip(found, self.leaves, strict=True)]

    def cotangents(self, *args: Any) -> Leaves:
        """Likewise."""
        operands, outs, cts = self.split(args, len(self.leaves))
        linear = lambda *dots: self.tangents(*operands, *outs, *dots)  # noqa: E731
        return list(jax.linear_transpose(linear, *(operands[k] for k in self.moving))(cts))

    def walked(self, *args: Any) -> Leaves:
        """The cotangents, by walks."""
        operands, _, cts = self.split(args, len(self.leaves))
        walks = walks_of(self.call, operands, self.moving)
        assert walks is not None, "tangents_of said so"
        return walks.run(operands, cts)

    @property
    def invariant(self) -> Invariant | None:
        """The operator's fields, if it has any."""
        (part,) = self.call.parts
        return None if part.dest else invariant_of(part.operator)

    def counted(self, *args: Any) -> Any:
        """Are its counters positive?"""
        arrays, captured, *_ = self.call.split(self.split(args, len(self.leaves))[0])
        (part,), inv = self.call.parts, self.invariant
        assert inv is not None
        values = self.call.pairs(part, self.call.on_all(arrays, captured))[1]
        return functools.reduce(jnp.logical_and, [jnp.all(values[k] > 0) for k in inv.counters], jnp.array(True))

    def by_fields(self, *args: Any) -> Leaves:
        """The cotangents, where they are."""
        operands, outs, cts = self.split(args, len(self.leaves))
        (part,), inv = self.call.parts, self.invariant
        arrays, captured, *_ = self.call.split(operands)
        index, _ = self.call.pairs(part, self.call.on_all(arrays, captured))
        assert inv is not None

        def linear(*dots: Any) -> Leaves:
            made = lambda *xs: self.call.pairs(part, self.call.on_all(replaced(arrays, self.moving, xs), captured))[1]  # noqa: E731
            values, moved = jax.jvp(made, tuple(operands[k] for k in self.moving), dots)
            groups = ByIndex(index, part.num_bins, self.call.deterministic)
            return self._instantiated(by_fields(groups, part.operator, inv, values, outs, moved))

        return list(jax.linear_transpose(linear, *(operands[k] for k in self.moving))(cts))


def tangents_of(call: HistogramCall, operands: Leaves, dots: Leaves, outs: Leaves) -> Leaves | None:
    """The tangents of an unbatched call's results, by leaf, for a call of one part (None: an integer's); none at all where their
    transpose is not walks."""
    moving = tuple(k for k, d in enumerate(dots) if d is not None)
    dests = len(operands) - len(call.parts[0].values) if call.parts[0].dest else len(operands)
    plain = not any(call.num_arrays <= k < dests for k in moving)
    args = [*operands, *outs, *(dots[k] for k in moving)]
    if not plain or not moving or axes_of(args) or walks_of(call, operands, moving) is None:
        return None
    args = [jnp.asarray(x) for x in args]
    found = iter(tangents_p.bind(*args, fold=Fold(call, moving), masks=(0,) * len(args), rank=0))
    return [next(found) if is_inexact(d) else None for d in call.parts[0].operator.dtypes]


# --- the general rule ---------------------------------------------------------------------------------------------------------


def general(call: HistogramCall, operands: Leaves, dots: Leaves) -> Leaves:
    """Any operator: each bin's elements brought together, what each of them moves added up."""
    (part,) = call.parts
    arrays, captured, (consts,), (dest,) = call.split(operands)
    *_, (const_dots,), (dest_dot,) = call.split(dots)
    count = len(arrays) + len(captured)
    n = len(arrays)
    results, moved = along(lambda xs: call.on_all(xs[:n], xs[n:]), operands[:count], dots[:count])
    index, values = call.pairs(part, results)
    dot = call.moves(part, values, moved)
    return of_values(part, call.deterministic, index, values, dest, consts, dot, dest_dot or [None] * len(values), const_dots)


def of_values(
    part: Part,
    deterministic: bool,
    index: Any,
    values: Leaves,
    dest: Leaves | None,
    consts: Leaves,
    dot: Leaves,
    dest_dot: Leaves,
    const_dots: Leaves,
) -> Leaves:
    """Likewise, of what f has made."""
    h = part.num_bins
    if dest is not None:  # one more element of each bin, before the others
        index = jnp.concatenate([jnp.arange(h, dtype=index.dtype), index])
        both = [d is not None or e is not None for d, e in zip(dot, dest_dot, strict=True)]
        dot = [
            jnp.concatenate([zeros_if_none(e, d0), zeros_if_none(d, v)]) if used else None
            for used, d, e, v, d0 in zip(both, dot, dest_dot, values, dest, strict=True)
        ]
        values = [jnp.concatenate([d, v]) for d, v in zip(dest, values, strict=True)]
    if index.shape[0] == 0:
        return [None] * len(values)
    spare = scan_xla.spare(index, h)
    order, _ = group(spare, h)
    where, values = spare[order], [v[order] for v in values]
    dot = [None if d is None else d[order] for d in dot]
    moved = through(part.operator, values, dot, consts, const_dots, scan_xla.starts_of(where))
    # dropped elements hold no cotangent: their place is past the last bin
    kept = [jnp.where(like(where < h, m), m, 0) for m in moved if m is not None]
    sums = iter(by_index(where, kept, [add] * len(kept), h, None, deterministic))
    return [None if m is None else next(sums) for m in moved]


# --- the primitives -----------------------------------------------------------------------------------------------------------

tangents_p, cotangents_p = new_primitive("histogram_tangents"), new_primitive("histogram_cotangents")


@tangents_p.def_abstract_eval
def _tangent_avals(*avals: Any, fold: Fold, masks: tuple[int, ...], rank: int) -> list[Any]:
    batch = batch_shape(avals, masks, rank)
    bins = fold.call.parts[0].num_bins
    return [result_aval(avals[0], (*batch, bins, *s), d, ()) for s, d in fold.leaves]


@cotangents_p.def_abstract_eval
def _cotangent_avals(*avals: Any, fold: Fold, masks: tuple[int, ...], rank: int) -> list[Any]:
    batch = batch_shape(avals, masks, rank)
    shapes = [(avals[k].shape[masks[k].bit_count() :], avals[k].dtype) for k in fold.moving]
    return [result_aval(avals[0], (*batch, *s), d, ()) for s, d in shapes]


def _batched(function: Callable[..., Leaves]) -> Callable[..., Leaves]:
    """A method of :class:`Fold` on a batch."""

    def run(*args: Any, fold: Fold, masks: tuple[int, ...], rank: int) -> Leaves:
        return over_batch(functools.partial(function, fold), masks, rank)(*args)

    return run


def _behind(primitive: Primitive, fold: Fold) -> int:
    """Operands that it is linear in: those behind the call's and its results."""
    return len(fold.moving if primitive is tangents_p else fold.leaves)


def _transpose(primitive: Primitive, cts: Sequence[Any], *args: Any, fold: Fold, masks: tuple[int, ...], rank: int) -> Leaves:
    """By the other primitive."""
    count, full = len(args) - _behind(primitive, fold), (1 << rank) - 1
    if any(map(ad.is_undefined_primal, args[:count])):
        what = "tangents" if primitive is tangents_p else "cotangents"
        raise NotImplementedError(f"linear_transpose: a histogram's {what} are not linear in its operands")
    other = cotangents_p if primitive is tangents_p else tangents_p
    moved = other.bind(*args[:count], *instantiated(cts), fold=fold, masks=(*masks[:count], *(full for _ in cts)), rank=rank)
    linear = zip(args[count:], moved, masks[count:], strict=True)
    return [None] * count + [summed_to(x, mask, rank) if ad.is_undefined_primal(a) else None for a, x, mask in linear]


def _jvp_of(primitive: Primitive, plain: Callable[..., Leaves]) -> Callable[..., Any]:
    """Linear in what is behind the call's operands; by these, the derivative of what is plain."""

    def rule(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        count = len(primals) - _behind(primitive, params["fold"])
        if all(isinstance(t, ad.Zero) for t in tangents[:count]):
            moved = instantiated(tangents[count:])
            return primitive.bind(*primals, **params), primitive.bind(*primals[:count], *moved, **params)
        return jvp_of(functools.partial(plain, **params), primals, tangents)

    return rule


for _primitive, _plain in ((tangents_p, _batched(Fold.tangents)), (cotangents_p, _batched(Fold.cotangents))):
    mlir.register_lowering(_primitive, mlir.lower_fun(_plain, multiple_results=True))
    batching.primitive_batchers[_primitive] = functools.partial(outermost, _primitive)
    ad.primitive_jvps[_primitive] = _jvp_of(_primitive, _plain)
    ad.primitive_transposes[_primitive] = functools.partial(_transpose, _primitive)
    taylor_by(_primitive, _plain)


def _by_fields_or(otherwise: Callable[..., Leaves]) -> Callable[..., Leaves]:
    """On a batch, the cotangents by fields where all counters are positive."""

    def run(*args: Any, fold: Fold, **params: Any) -> Leaves:
        other = functools.partial(_batched(otherwise), fold=fold, **params)
        if fold.invariant is None:
            return other(*args)
        counted = jnp.all(_batched(Fold.counted)(*args, fold=fold, **params))
        return list(jax.lax.cond(counted, functools.partial(_batched(Fold.by_fields), fold=fold, **params), other, *args))

    return run


for _otherwise, _platform in ((Fold.cotangents, None), (Fold.walked, "cpu")):
    mlir.register_lowering(cotangents_p, mlir.lower_fun(_by_fields_or(_otherwise), multiple_results=True), platform=_platform)
