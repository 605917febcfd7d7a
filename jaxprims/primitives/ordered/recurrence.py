"""``recurrence_p``: linear recurrences ``y[t] = L[t] y[t-1] + b[t]`` along one axis. Derivatives of scans are made of them.

``L[t]`` is given by *factors*: numbers, or the two arguments at which an operator is differentiated. The factors of neighbouring
steps compose, and so do pairs (factors, b), by ``(F, b) then (G, c) = (F then G, G b + c)``: a scan, of which only the second
part is written. Nothing but the factors is stored: no Jacobians.

Operands: the factors' leaves, then b's, ``[*batch, N, *inner, *element]`` (a ``steady`` factor: ``[*batch]``); flags
``[*batch, N]`` where ``flags``: where one is true, y[t] = b[t]; what the step captures; y[-1]'s leaves
``[*batch, *inner, *element]`` where ``init``. Results: y's leaves.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from ...operators.operator import Operator, of_arrays, passing
from ...operators.traced import Traced, make_traced
from ...tracing.jaxprs import capturing
from ...tracing.lower import Unsupported, to_program
from ...tracing.varying import Axes, axes_of, by_partitioner, element_aval, vary
from ..avals import result_aval
from ..batches import batch_shape, new_primitive, over_batch
from ..elements import Operands, mapped
from ..tangents import (
    Leaves,
    after,
    along,
    first_of,
    instantiated,
    is_inexact,
    like,
    no_tangent,
    on_members,
    replaced,
    shifted,
    summed_to,
    taylor_by,
    without_first,
    zeros_if_none,
    zeros_of,
)
from . import scan_xla
from .call import OrderedCall
from .scan import batch_rule, scan_p

recurrence_p = new_primitive("linear_recurrence")


@dataclasses.dataclass(frozen=True)
class Product:
    """L[t] is a number (an array's, element by element)."""

    factors = 1
    results = 1
    captured = 0

    @property
    def transposed(self) -> Product:
        return self

    def apply(self, consts: Sequence[Any], factors: Sequence[Any], y: Sequence[Any]) -> Leaves:
        return [factors[0] * y[0]]

    def then(self, consts: Sequence[Any], factors: Sequence[Any], y: Sequence[Any], b: Sequence[Any]) -> Leaves:
        """L y + b."""
        return [factors[0] * y[0] + b[0]]

    def compose(self, consts: Sequence[Any], first: Sequence[Any], then: Sequence[Any]) -> Leaves:
        return [then[0] * first[0]]


@dataclasses.dataclass(frozen=True)
class NearOne:
    """L[t] is 1 + d[t], real: its factors are that, rounded, and d[t]. ``y + d y`` rounds y, where ``(1 + d) y`` has rounded
    1 + d, in every step alike; and ``y + (d y + b)`` rounds it once, by what it changes."""

    factors = 2
    results = 1
    captured = 0

    @property
    def transposed(self) -> NearOne:
        return self

    def apply(self, consts: Sequence[Any], factors: Sequence[Any], y: Sequence[Any]) -> Leaves:
        a, d = factors
        return [jnp.where(d > -0.5, y[0] + d * y[0], a * y[0])]

    def then(self, consts: Sequence[Any], factors: Sequence[Any], y: Sequence[Any], b: Sequence[Any]) -> Leaves:
        a, d = factors
        return [jnp.where(d > -0.5, y[0] + (d * y[0] + b[0]), a * y[0] + b[0])]

    def compose(self, consts: Sequence[Any], first: Sequence[Any], then: Sequence[Any]) -> Leaves:
        d = first[1] + then[1] + first[1] * then[1]
        return [jnp.where(d > -0.5, 1 + d, first[0] * then[0]), d]


@dataclasses.dataclass(frozen=True)
class Derivative:
    """L[t] is an operator's derivative by its first argument, at (p, a) with p[t+1] = p[t] ⊙ a[t]; or that one's transpose, for
    the same pairs from the last to the first. Several steps together have the first p, and all of a's combined."""

    operator: Operator
    captured: int
    is_transposed: bool = False

    @property
    def active(self) -> tuple[int, ...]:
        """The leaves that have derivatives."""
        return tuple(k for k, d in enumerate(self.operator.dtypes) if is_inexact(d))

    @property
    def factors(self) -> int:
        return 2 * len(self.operator.dtypes)

    @property
    def results(self) -> int:
        return len(self.active)

    @property
    def transposed(self) -> Derivative:
        return dataclasses.replace(self, is_transposed=not self.is_transposed)

    def apply(self, consts: Sequence[Any], factors: Sequence[Any], y: Sequence[Any]) -> Leaves:
        n = self.factors // 2
        p, a = list(factors[:n]), factors[n:]

        def result(*moved: Any) -> tuple[Any, ...]:
            out = self.operator.traced(consts, *replaced(p, self.active, moved), *a)
            return tuple(out[k] for k in self.active)

        at = tuple(p[k] for k in self.active)
        if self.is_transposed:
            return list(jax.vjp(result, *at)[1](tuple(y)))
        return list(jax.jvp(result, at, tuple(y))[1])

    def then(self, consts: Sequence[Any], factors: Sequence[Any], y: Sequence[Any], b: Sequence[Any]) -> Leaves:
        return [x + more for x, more in zip(self.apply(consts, factors, y), b, strict=True)]

    def compose(self, consts: Sequence[Any], first: Sequence[Any], then: Sequence[Any]) -> Leaves:
        n = self.factors // 2
        if self.is_transposed:
            first, then = then, first
        return [*first[:n], *self.operator.traced(consts, *first[n:], *then[n:])]


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """The static half of a call."""

    step: Product | NearOne | Derivative
    inner_rank: int
    reverse: bool = False
    flags: bool = False
    init: bool = False  # not of derivatives, and not beside flags
    steady: bool = False  # each factor is one number, for all steps (not of derivatives)
    together: ClassVar[int] = 1

    @property
    def num_arrays(self) -> int:
        return self.step.factors + self.step.results

    def split(self, operands: Sequence[Any]) -> tuple[Leaves, Leaves, Any, Leaves, Leaves | None]:
        """Operands as (factors, b's leaves, flags or None, what the step captures, init's leaves or None)."""
        rest = Operands(operands)
        factors, b, flags = rest.take(self.step.factors), rest.take(self.step.results), rest.take(self.flags)
        captured = rest.take(self.step.captured)
        return factors, b, flags[0] if flags else None, captured, rest.rest if self.init else None

    def combine(self, consts: Sequence[Any], first: Sequence[Any], then: Sequence[Any]) -> Leaves:
        """Two neighbours as one: what is scanned."""
        m = self.step.factors
        return [*self.step.compose(consts, first[:m], then[:m]), *self.step.then(consts, then[:m], first[m:], then[m:])]

    def spread(self, factors: Sequence[Any], b: Any) -> Leaves:
        """An unbatched call's factors, of each step: like b."""
        return [jnp.broadcast_to(x, b.shape) for x in factors] if self.steady else list(factors)


def recurrence(r: Recurrence, operands: Sequence[Any], masks: Sequence[int] | None = None, rank: int = 0) -> Leaves:
    """Binds the primitive. ``masks``: the batch axes that each operand has; ``rank`` of them in all."""
    axes = axes_of(operands)
    operands = [vary(jnp.asarray(x), axes) for x in operands]
    return by_partitioner(recurrence_p, operands, call=r, masks=tuple(masks or (0,) * len(operands)), rank=rank)


@recurrence_p.def_abstract_eval
def _abstract_eval(*avals: Any, call: Recurrence, masks: tuple[int, ...], rank: int) -> list[Any]:
    first, m = call.step.factors, masks[call.step.factors].bit_count()
    steps = avals[first].shape[m : m + 1]
    batch = batch_shape(avals, masks, rank)
    axes = range(m + 1) if masks[first] == (1 << rank) - 1 else ()
    _, b, _, _, _ = call.split(list(zip(avals, masks, strict=True)))
    return [result_aval(avals[first], (*batch, *steps, *x.shape[mask.bit_count() + 1 :]), x.dtype, axes) for x, mask in b]


batching.primitive_batchers[recurrence_p] = batch_rule(recurrence_p, 1)


# --- as a scan ----------------------------------------------------------------------------------------------------------------

Signature = tuple[tuple[tuple[int, ...], Any], ...]  # shapes and dtypes


@functools.lru_cache(maxsize=512)
def _fold(r: Recurrence, elements: Signature, consts: Signature, axes: Axes, x64: bool) -> OrderedCall | None:
    """The scan; None if kernels do not know how to combine its elements."""
    n, m = len(consts), len(elements)
    avals = [element_aval(s, d, axes) for s, d in (*consts, *elements, *elements)]
    closed = jax.make_jaxpr(lambda *xs: r.combine(xs[:n], xs[n : n + m], xs[n + m :]))(*avals)
    try:
        if closed.consts:
            raise Unsupported("constant", "an array that the derivative holds")
        jaxpr = capturing(closed.jaxpr, n)
        shapes, dtypes = tuple(s for s, _ in elements), tuple(np.dtype(d) for _, d in elements)
        large = isinstance(r.step, Derivative) and r.step.operator.large
        if large:
            operator = of_arrays(jaxpr, shapes, dtypes)
        else:
            program = to_program(jaxpr)
            operator = Operator(make_traced(jaxpr, program), program, 1, shapes, dtypes, None, None)
        f = _beside_numbers(elements[-1], r.step.factors) if r.steady else passing(elements, large)
    except Unsupported:
        return None
    return OrderedCall(
        f,
        (None,) * (r.step.results if r.steady else m),
        "scan",
        operator,
        n,
        r.inner_rank,
        reverse=r.reverse,
        init=r.init,
        segmented_by="flags" if r.flags else "",
        wanted=tuple(range(r.step.factors, m)),
        plans=(),
    )


def _beside_numbers(element: tuple[tuple[int, ...], Any], n: int) -> Traced:
    """The f that gives n captured numbers and its argument."""
    number = jax.ShapeDtypeStruct((), element[1])
    return make_traced(capturing(jax.make_jaxpr(lambda *xs: xs)(*(number,) * (n + 1)).jaxpr, n))


def _plain_one(r: Recurrence, *operands: Any) -> Leaves:
    factors, b, flags, consts, init = r.split(operands)
    factors = r.spread(factors, b[0])
    n = len(factors) + len(b)
    op = mapped(lambda *xs: tuple(r.combine(consts, xs[:n], xs[n:])), 1 + r.inner_rank)
    start = None if init is None else [*(jnp.ones_like(init[0]) for _ in factors), *init]
    out = scan_xla.scan(lambda x, y: op(*x, *y), [*factors, *b], start, reverse=r.reverse, flags=flags)
    return out[len(factors) :]


def _as_scan(*operands: Any, call: Recurrence, masks: tuple[int, ...], rank: int) -> Leaves:
    factors, b, _, consts, init = call.split([(jax.typeof(x), mask) for x, mask in zip(operands, masks, strict=True)])
    elements = tuple(
        (a.shape[m.bit_count() + 1 + call.inner_rank :], a.dtype)
        for a, m in (b * call.num_arrays if call.steady else factors + b)
    )
    captured = tuple((a.shape[m.bit_count() :], a.dtype) for a, m in consts)
    axes = axes_of(operands)  # of the mesh around, which is another one elsewhere
    made = (_fold.__wrapped__ if axes else _fold)(call, elements, captured, axes, bool(jax.config.jax_enable_x64))
    if made is None:
        return over_batch(functools.partial(_plain_one, call), masks, rank)(*operands)
    n = call.step.factors
    if init is not None:  # the state's factors as well, which nothing reads
        ones, mine = jnp.ones_like(operands[-1]), masks[-1]
        operands, masks = (*operands[:-1], *(ones,) * n, operands[-1]), (*masks, *(mine,) * n)
    if call.steady:  # f captures them: their place is behind the array and the flags
        at = n + 1 + call.flags
        operands, masks = ((*xs[n:at], *xs[:n], *xs[at:]) for xs in (operands, masks))
    return scan_p.bind(*operands, call=made, masks=tuple(masks), rank=rank)


mlir.register_lowering(recurrence_p, mlir.lower_fun(_as_scan, multiple_results=True))
taylor_by(recurrence_p, _as_scan)


# --- derivatives --------------------------------------------------------------------------------------------------------------


def _forcing(r: Recurrence, operands: Leaves, dots: Leaves, ys: Leaves) -> Leaves:
    """What moves y[t], given y[t-1]: b's tangent, and the factors'."""
    factors, _, flags, consts, init = r.split(operands)
    factor_dots, b_dots, _, const_dots, _ = r.split(dots)
    given, moves = [*factors, *consts], [*factor_dots, *const_dots]
    before = [shifted(y, zeros_of(y[:1]) if init is None else init[0][None], r.reverse) for y in ys]
    if flags is not None:
        before = [jnp.where(like(flags, y), 0, y) for y in before]
    m, depth = len(factors), 1 + r.inner_rank

    def apply(full: Leaves) -> Sequence[Any]:
        on_element = mapped(lambda *xs: tuple(r.step.apply(full[m:], xs[:m], xs[m:])), depth)
        return on_element(*full[:m], *before)

    if r.steady:
        for k in range(m):
            given[k], moves[k] = (None if x is None else jnp.broadcast_to(x, before[0].shape) for x in (given[k], moves[k]))
    _, moved = along(apply, given, moves)
    if init is None:
        moved = [without_first(x, flags, r.reverse) for x in moved]
    return [x if d is None else x + d for x, d in zip(moved, b_dots, strict=True)]


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, call: Recurrence, masks: tuple[int, ...], rank: int
) -> tuple[Leaves, Leaves]:
    primals = [jnp.asarray(x) for x in primals]
    ys = recurrence_p.bind(*primals, call=call, masks=masks, rank=rank)
    if not is_inexact(ys[0].dtype):
        return ys, [no_tangent(y) for y in ys]
    dots = [None if isinstance(t, ad.Zero) else t for t in tangents]
    operands, have = list(primals), list(masks)
    m, n = call.step.factors, call.num_arrays
    factor_dots, b_dots, _, const_dots, init_dots = call.split(dots)
    if any(d is not None for d in (*factor_dots, *const_dots)):
        operands[m:n] = on_members(functools.partial(_forcing, call), primals, dots, ys, masks, rank)
        have[m:n] = [(1 << rank) - 1] * (n - m)
    else:
        operands[m:n] = [zeros_if_none(d, x) for d, x in zip(b_dots, primals[m:n], strict=True)]
    start = None if init_dots is None else init_dots[0]
    if call.init:
        operands[-1:] = [] if start is None else [start]
    return ys, recurrence(dataclasses.replace(call, init=start is not None), operands, have[: len(operands)], rank)


ad.primitive_jvps[recurrence_p] = _jvp


def _transpose(cotangents: Sequence[Any], *operands: Any, call: Recurrence, masks: tuple[int, ...], rank: int) -> Leaves:
    """From the last to the first: r[t] = ct[t] + L[t+1]ᵀ r[t+1] is b's cotangent."""
    numbers: Leaves = [None if ad.is_undefined_primal(x) else x for x in operands]
    factors, _, flags, consts, _ = call.split(numbers)
    if any(x is None for x in (*factors, *consts)):
        raise NotImplementedError("linear_transpose: a linear recurrence is not linear in its coefficients")
    factor_masks, b_masks, flag_masks, const_masks, init_masks = call.split(masks)
    full, reverse = (1 << rank) - 1, call.reverse
    cts = instantiated(cotangents)

    next_factors = factors if call.steady else [after(x, mask, reverse) for x, mask in zip(factors, factor_masks, strict=True)]
    cut, cut_mask = ([], []) if flags is None else ([after(flags, flag_masks, reverse)], [flag_masks])
    back = dataclasses.replace(call, step=call.step.transposed, reverse=not reverse, init=False)
    have = [*factor_masks, *(full for _ in cts), *cut_mask, *const_masks]
    rs = recurrence(back, [*next_factors, *cts, *cut, *consts], have, rank)
    out: Leaves = [None] * len(operands)
    for k, (r, mask) in enumerate(zip(rs, b_masks, strict=True), call.step.factors):
        if ad.is_undefined_primal(operands[k]):
            out[k] = summed_to(r, mask, rank)
    if init_masks is not None and ad.is_undefined_primal(operands[-1]):

        def start(r: Any, *factors: Any) -> Any:
            first = factors if call.steady else [first_of(x, reverse)[0] for x in factors]
            return call.step.apply((), first, [first_of(r, reverse)[0]])[0]

        out[-1] = summed_to(over_batch(start, (full, *factor_masks), rank)(rs[0], *factors), init_masks[0], rank)
    return out


ad.primitive_transposes[recurrence_p] = _transpose
