"""Derivatives of ``reduce_p`` and ``segments_p``: by the operator's rule; by the general one where there is none.

The only things that have to be transposed are sums: to a broadcast, and to a gather.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad
from jax.interpreters import partial_eval as pe

from ...operators.classify import swapped
from ...operators.operator import Operator, of_arrays, passing
from ...operators.traced import make_traced
from ...tracing.jaxprs import with_arguments
from ...tracing.varying import axes_of
from ..ad_rules import Groups, rule_tangents
from ..batches import over_batch
from ..held import held, table
from ..reads import rows
from ..tangents import (
    Leaves,
    add,
    along,
    first_of,
    instantiated,
    is_inexact,
    jvp_of,
    jvp_rule,
    replaced,
    shifted,
    summed_to,
    without_first,
    zeros_if_none,
)
from ..transposition import known_rule, transpose_rule
from . import scan_xla
from .call import OrderedCall, of_numbers, simple
from .reduce import REDUCTIONS, reduce_p
from .scan import bind, scan_p
from .scan_ad import Steps, constant, is_linear, is_sum, value_dots
from .segments import ids_of, segments_p


def through(
    operator: Operator,
    values: Leaves,
    dots: Leaves,
    consts: Leaves,
    const_dots: Leaves,
    flags: Any = None,
    init: Leaves | None = None,
    init_dots: Leaves | None = None,
    inner_rank: int = 0,
) -> Leaves:
    """What each element moves of its segment's result: with l and r what stands before and after it, the tangent of l ⊙ a ⊙ r.
    What the operator captures moves the first of the two products, so that it counts once for each element. ``flags``: where
    segments start. None for integers."""
    elements = tuple((v.shape[1 + inner_rank :], v.dtype) for v in values)
    f = passing(elements, operator.large) if operator.lanes == 1 else operator.traced  # an array-valued bin: no kernel, no f
    call = OrderedCall(f, (None,) * len(values), "scan", operator, len(consts), inner_rank, init=init is not None)
    call = dataclasses.replace(call, segmented_by="" if flags is None else "flags")
    ends = None if flags is None else shifted(flags, first_of(flags, True), True)
    upto = _prefixes(call, values, flags, consts, init)
    back = dataclasses.replace(call, operator=_swapped(operator), reverse=True, init=False)
    onward = _prefixes(back, values, ends, consts, None)
    none: Leaves = [None] * len(values)
    moved = Steps(call, values, dots, flags, consts, const_dots, init, init_dots or none, upto).added({})
    # Where nothing follows, the element stands in, a value of the user's: what comes of it is not used.
    rest = [without_first(shifted(x, first_of(x, True), True), ends, True, v) for x, v in zip(onward, values, strict=True)]
    active = [k for k, v in enumerate(values) if is_inexact(v.dtype)]
    combine = call.combine(consts, 1 + inner_rank)

    _, passed = along(lambda before: combine(before, rest), upto, replaced(none, active, [moved[k] for k in active]))
    return replaced(none, active, [without_first(passed[k], ends, True, moved[k]) for k in active])


def _prefixes(call: OrderedCall, values: Leaves, flags: Any, consts: Leaves, init: Leaves | None) -> Leaves:
    if call.operator.lanes > 1:
        op = call.combine(consts, 1 + call.inner_rank)
        return scan_xla.scan(op, values, init, reverse=call.reverse, flags=flags)
    return bind(scan_p, call, [*values, *([] if flags is None else [flags]), *consts, *(init or [])])


@functools.lru_cache(maxsize=512)
def _swapped(operator: Operator) -> Operator:
    """The operator with its arguments exchanged: what a scan from the last element combines with is what follows."""
    jaxpr, program = operator.traced.jaxpr, operator.program
    n = len(jaxpr.invars) // 2
    turned = with_arguments(jaxpr, jaxpr.constvars, [*jaxpr.invars[n:], *jaxpr.invars[:n]])
    if operator.large:
        return of_arrays(turned, operator.shapes, operator.dtypes)
    other = swapped(program)
    return dataclasses.replace(operator, traced=make_traced(turned, other), program=other, name=None)


# --- which elements are combined ------------------------------------------------------------------------------------------------


FEW_TO_SELECT = 65_536
"""Elements of maxima and minima whose ties XLA counts sooner than a kernel."""

FEW_FACTORS, FEW_FACTORS_IN_ALL = 32, 32_768
"""Elements whose product XLA differentiates faster, as a tree: of a row, of all rows."""

COLUMNS_OF_FACTORS = 64
"""Columns side by side from which on it multiplies halves of all of them as vectors, where a kernel goes down from both ends."""


@dataclasses.dataclass
class All(Groups):
    """All of them."""

    def combine(self, ops: Sequence[Callable[..., Any]], values: Leaves, start: Leaves | None = None) -> Leaves:
        out: Leaves = []
        for k, (op, v) in enumerate(zip(ops, values, strict=True)):
            call = simple("reduce", op, v.dtype, inner_rank=v.ndim - 1, init=start is not None)
            out += bind(reduce_p, call, [v] if start is None else [v, start[k]])
        return out

    def reduced(self, f: Callable[..., Any], op: Callable[..., Any], value: Any, name: str | None = None) -> Leaves | None:
        if value.dtype.kind not in "fV":
            return None
        return bind(reduce_p, of_numbers(f, op, value, name, inner_rank=value.ndim - 1), [value])

    def sum(self, values: Any) -> Any:
        total = jnp.sum(values, axis=0, dtype=values.dtype)  # which XLA fuses with what computes them
        return table(total, values.shape[0])  # as its cotangent will be

    def numbers(self, mask: Any, dtype: Any) -> Any:
        return mask.astype(dtype)

    def gather(self, x: Any) -> Any:
        return x[None]

    def inside(self) -> Any:
        return None

    def flags(self) -> Any:
        return None


@dataclasses.dataclass
class Segments(Groups):
    """Those of each segment."""

    kind: str
    cut: Any
    num_segments: Any
    n: Any

    def combine(self, ops: Sequence[Callable[..., Any]], values: Leaves, start: Leaves | None = None) -> Leaves:
        assert start is None
        out: Leaves = []
        for op, v in zip(ops, values, strict=True):
            call = simple("segments", op, v.dtype, inner_rank=v.ndim - 1, segmented_by=self.kind, num_segments=self.num_segments)
            out += bind(segments_p, call, [v, self.cut])
        return out

    @functools.cached_property
    def ids(self) -> Any:
        """Each element's segment; out of range for elements of none."""
        return self.cut if self.kind == "ids" else ids_of(self.cut, self.n)

    def gather(self, x: Any) -> Any:
        return gather(x, self.ids)

    def inside(self) -> Any:
        return (self.ids >= 0) & (self.ids < self.num_segments)

    def flags(self) -> Any:
        return scan_xla.starts_of(jnp.clip(self.ids, -1, self.num_segments))


def gather(x: Any, index: Any) -> Any:
    """``x[index]``, and 0 for elements that were dropped."""
    x = jnp.asarray(x)  # a cotangent may be a NumPy array
    if x.shape[0] == 0:
        return jnp.zeros((index.shape[0], *x.shape[1:]), x.dtype)
    inside = scan_xla.inside(index, x.shape[0])
    at = jnp.where(inside, index, 0)  # so checkify sees none that is outside
    found = rows(table(x, index.shape[0] // x.shape[0]), at, mode="clip")
    return jnp.where(scan_xla.like(inside, x), found, jnp.zeros((), x.dtype))


def _groups(call: OrderedCall, cut: Any, n: Any) -> All | Segments:
    return All() if call.kind == "reduce" else Segments(call.segmented_by, cut, call.num_segments, n)


# --- the rules ------------------------------------------------------------------------------------------------------------------


def _tangents(call: OrderedCall, operands: Leaves, dots: Leaves, outs: Leaves) -> Leaves:
    """The tangents of an unbatched call's inexact results."""
    arrays, cut, captured, consts, init = call.split(operands)
    array_dots, _, captured_dots, const_dots, init_dots = call.split(dots)
    values, moves = value_dots(call, arrays, captured, array_dots, captured_dots)
    starts = init_dots if init_dots is not None else [None] * len(values)
    groups = _groups(call, cut, values[0].shape[0])
    found = None
    if values[0].shape[0] == 0:
        found = starts
    elif all(d is None for d in const_dots):
        positive = call.f.positive(range(len(values)))
        found = rule_tangents(groups, call.operator, values, init, outs, moves, starts, positive)
    if found is None:
        flags = groups.flags()
        moved = through(call.operator, values, moves, consts, const_dots, flags, init, starts, call.inner_rank)
        active = [m for m in moved if m is not None]
        sums = iter(groups.combine([add] * len(active), active))
        found = [None if m is None else next(sums) for m in moved]
    return [zeros_if_none(t, o) for t, o in zip(found, outs, strict=True) if is_inexact(o.dtype)]


def _transpose_sums(cotangents: Sequence[Any], *operands: Any, call: OrderedCall, masks: tuple[int, ...], rank: int) -> Leaves:
    """Each element's cotangent is its sum's."""
    arrays, cut, _, _, init = call.split(range(len(operands)))
    cts = instantiated(cotangents)
    full = (1 << rank) - 1
    out: Leaves = [None] * len(operands)
    for k in arrays:
        if not ad.is_undefined_primal(operands[k]):
            continue
        n = operands[k].aval.shape[masks[k].bit_count()]
        if cut is None:
            wide = jnp.broadcast_to(jnp.expand_dims(table(cts[k], n), rank), (*cts[k].shape[:rank], n, *cts[k].shape[rank:]))
        else:
            gather = lambda cut, ct: _groups(call, cut, n).gather(ct)  # noqa: B023, E731
            wide = over_batch(gather, (masks[cut], full), rank)(operands[cut], cts[k])
        out[k] = summed_to(wide, masks[k], rank)
    for ct, k in zip(cts, init or [], strict=False):
        if ad.is_undefined_primal(operands[k]):
            out[k] = summed_to(ct, masks[k], rank)
    return out


def _whole_first(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of reductions; but the exponentials of halves are relative to a sum that is not rounded, those that stay in
    caches are not made again, the product of a few elements is differentiated as XLA unrolls it, and the extremes of few as XLA
    finds them."""

    def with_wholes(primals: Leaves, tangents: Leaves, **params: Any) -> Any:
        name = REDUCTIONS.operation(**params)
        if name not in ("logaddexp", "mul", "max", "min") or isinstance(tangents[0], ad.Zero):
            return rule(primals, tangents, **params)
        x, axis = jnp.asarray(primals[0]), params["rank"]
        n = x.shape[axis]
        if name == "logaddexp" and scan_xla.is_half(x.dtype):
            wide = lambda v: All().combine([jnp.logaddexp], [v.astype(jnp.float32)])[0].astype(v.dtype)  # noqa: E731
            out, dot = jax.jvp(over_batch(wide, [(1 << axis) - 1], axis), (x,), (tangents[0],))
        elif params["call"].plans:
            return rule(primals, tangents, **params)
        elif name == "logaddexp" and _terms_stay(x, axis) and not axes_of(tangents[:1]) - axes_of([x]):
            out, dot = _log_sum_by_terms(x, tangents[0], axis)
        elif name == "mul" and n != 0 and _multiplies_in_a_tree(x, axis):
            out, dot = jax.jvp(functools.partial(jnp.prod, axis=axis), (x,), (tangents[0],))
        elif name in ("max", "min") and n != 0 and _few(x, FEW_TO_SELECT) and not axes_of(tangents[:1]) - axes_of([x]):
            x = held([x])[0]
            out = reduce_p.bind(x, *primals[1:], **params)[0]
            met = (x == jnp.expand_dims(out, axis)).astype(x.dtype)
            dot = jnp.sum(met * tangents[0], axis) / jnp.sum(met, axis)
        else:
            return rule(primals, tangents, **params)
        return [out], [dot]

    return with_wholes


def _multiplies_in_a_tree(x: jax.Array, axis: int) -> bool:
    if not all(isinstance(k, int) for k in x.shape):  # JAX's own derivative of a product has no symbolic sizes
        return False
    beside = math.prod(x.shape[axis + 1 :])
    return x.shape[axis] <= FEW_FACTORS or beside >= COLUMNS_OF_FACTORS or _few(x, FEW_FACTORS_IN_ALL)


def _few(x: jax.Array, most: int) -> bool:
    return all(isinstance(k, int) for k in x.shape) and x.size <= most


FEW_TERMS, FEW_TERMS_ABREAST = 4096, 32_768
"""Exponentials that XLA makes and sums before a kernel is called; where rows lie side by side."""

ROW_OF_TERMS, TERMS_BYTES, COLUMNS_BYTES = 48, 2**24, 2**15
"""Elements of a row, bytes of all, and bytes that lie side by side, of which exponentials are kept in the caches sooner than they
are made again: XLA, which makes them, is slow on short rows and long columns."""


def _terms_stay(x: jax.Array, axis: int) -> bool:
    if not all(isinstance(k, int) for k in x.shape):
        return False
    inner, size = math.prod(x.shape[axis + 1 :]), x.dtype.itemsize
    if x.size <= _few_terms(x, axis):
        return x.size > 0
    return x.shape[axis] >= ROW_OF_TERMS and inner * size <= COLUMNS_BYTES and x.size * size <= TERMS_BYTES


def _few_terms(x: jax.Array, axis: int) -> int:
    return FEW_TERMS if math.prod(x.shape[axis + 1 :]) == 1 else FEW_TERMS_ABREAST


def _log_sum_by_terms(x: Any, dot: Any, axis: int) -> tuple[Any, Any]:
    """The logarithm of a sum of exponentials and its tangent, by the same exponentials."""
    few = x.size <= _few_terms(x, axis)  # of which XLA finds the greatest, though it may lose a NaN: the sum has that, too
    greatest = over_batch(lambda v: All().combine([jnp.maximum], [v])[0], [(1 << axis) - 1], axis)
    fixed = jax.lax.stop_gradient(x)
    top = jnp.max(fixed, axis) if few else greatest(fixed)
    terms = (_terms_in_order if few else _terms)(x, jnp.expand_dims(top, axis))
    total = jnp.sum(terms, axis)
    total = jnp.where(jnp.isinf(top) & (total == total) if few else jnp.isinf(top), 1, total)
    return jnp.log(total) + top, jnp.sum((terms if few else _weights(terms, 1)) * dot, axis) / total


def _terms_in_order(x: Any, top: Any) -> Any:
    """Exponentials below the greatest; of an infinity below itself, 1."""
    below = x - top
    return jnp.exp(jnp.where((below != below) & (x == x), 0, below))


@jax.custom_jvp
def _terms(x: Any, top: Any) -> Any:
    """The same, but NaN in place of that 1, which :func:`_weights` puts there when they are read again: XLA may take a third
    longer for exponentials of what it chooses."""
    return jnp.exp(x - top)


@_terms.defjvp
def _terms_jvp(primals: Leaves, tangents: Leaves) -> tuple[Any, Any]:
    terms = _terms(*primals)
    return terms, _weights(terms, 0) * tangents[0]


def _weights(terms: Any, infinite: int) -> Any:
    return jnp.where(terms <= 1, terms, infinite)


def _large_by_xla(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of reductions; but large elements are reduced by XLA, as a tree: its transpose has as many combinations as the
    reduction, where prefixes from both ends have four times as many."""

    def with_tree(primals: Leaves, tangents: Leaves, **params: Any) -> Any:
        if not params["call"].operator.large:
            return rule(primals, tangents, **params)
        return jvp_of(functools.partial(REDUCTIONS.plain, **params), primals, tangents)

    return with_tree


for _primitive in (reduce_p, segments_p):
    ad.primitive_jvps[_primitive] = jvp_rule(_primitive, _tangents)
    ad.primitive_transposes[_primitive] = transpose_rule(_primitive, is_sum, _transpose_sums, is_linear)
    pe.custom_partial_eval_rules[_primitive] = known_rule(_primitive, constant)
ad.primitive_jvps[reduce_p] = _large_by_xla(_whole_first(ad.primitive_jvps[reduce_p]))
