"""Derivatives of ``scan_p``.

One JVP, linear in its tangents, serves both modes and higher orders. With y[t] = y[t-1] ⊙ x[t] and what a step adds,

    u[t] = ∂⊙(y[t-1], x[t]) · (0, ẋ[t]), and the tangents of what ⊙ captures

the tangents are a linear recurrence, ẏ[t] = J[t] ẏ[t-1] + u[t], with J[t] the derivative of ⊙ by its first argument. A sum has
J = 1, its tangents are a scan again; where leaves can be solved one after the other J is a number for each; for any other
operator ``recurrence_p`` applies J without storing it. Exclusive scans, start values and segments change only which state an
element meets, and what its first tangent is.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.interpreters import ad
from jax.interpreters import partial_eval as pe

from ...ir.linear import OTHER
from ...ir.program import Program, is_float
from ...operators.operator import Operator
from ...tracing.varying import axes_of, vary
from ..ad_rules import WEIGHTS
from ..tangents import (
    Leaves,
    add,
    after,
    along,
    first_of,
    instantiated,
    is_inexact,
    jvp_of,
    jvp_rule,
    like,
    shifted,
    summed_to,
    without_first,
    zeros_if_none,
    zeros_of,
)
from ..transposition import combines_linearly, constant_leaves, known_rule, of_f, of_leaves, transpose_rule
from . import scan_xla
from .call import OrderedCall, simple
from .recurrence import Derivative, Product, Recurrence, recurrence
from .scan import SCANS, bind, scan_p


def value_dots(call: OrderedCall, arrays: Leaves, captured: Leaves, dots: Leaves, captured_dots: Leaves) -> tuple[Leaves, Leaves]:
    """f on every element, unfused, and its tangents (None: zero, or an integer's)."""
    values, moved, n = arrays, dots, len(arrays)
    if not call.passes_on:
        values, moved = along(lambda xs: call.values(xs[:n], xs[n:]), [*arrays, *captured], [*dots, *captured_dots])
    return values, [d if is_inexact(x.dtype) else None for x, d in zip(values, moved, strict=True)]


def _tangents(call: OrderedCall, operands: Leaves, dots: Leaves, outs: Leaves) -> Leaves:
    """The tangents of an unbatched call's inexact results."""
    if call.then is not None or call.wanted is not None:
        raise NotImplementedError("derivatives are taken of what fuse and linear recurrences were made of, not of their kernels")
    arrays, flags, captured, consts, init = call.split(operands)
    array_dots, _, captured_dots, const_dots, init_dots = call.split(dots)
    values, moves = value_dots(call, arrays, captured, array_dots, captured_dots)
    if call.is_map:
        return [zeros_if_none(d, o) for d, o in zip(moves, outs, strict=True) if is_inexact(o.dtype)]
    starts = [None] * len(values) if init_dots is None else init_dots
    steps = Steps(call, values, moves, flags, consts, const_dots, init, starts, outs)
    active = [k for k, v in enumerate(values) if is_inexact(v.dtype)]
    if 0 in outs[0].shape or all(d is None for d in (*moves, *const_dots, *(starts[k] for k in active))):
        return [zeros_of(outs[k]) for k in active]
    order = solvable(call.operator)
    if order is None:
        ys = dict(zip(active, steps.coupled(active), strict=True))
        return [steps.before(k, ys[k]) if call.exclusive else ys[k] for k in active]
    summed = {k for g in call.operator.derivative_groups if g.kind == "add" for k in g.leaves}
    results: dict[int, Any] = {}
    moved: dict[int, Any] = {}  # tangents of the state before each element
    for k, needs in order:
        for j in needs - moved.keys():
            moved[j] = results[j] if call.exclusive else steps.before(j, results[j])
        if k in summed:
            results[k] = steps.sum(k)
        else:
            y = steps.number(k, moved)
            results[k] = steps.before(k, y) if call.exclusive else y
    return [results[k] for k in active]


@dataclasses.dataclass
class Steps:
    """An unbatched call, seen step by step. Tangents may be None."""

    call: OrderedCall
    values: Leaves
    dots: Leaves
    flags: Any
    consts: Leaves
    const_dots: Leaves
    init: Leaves | None
    init_dots: Leaves
    outs: Leaves

    @functools.cached_property
    def states(self) -> Leaves:
        """What each element is combined with; where that is nothing, the element itself stands in, a value of the user's."""
        reverse, out = self.call.reverse, []
        for k, x in enumerate(self.values):
            start = x if self.init is None else jnp.broadcast_to(self.init[k], x.shape)
            if not self.call.exclusive:
                before = shifted(self.outs[k], first_of(start, reverse), reverse)
                out.append(before if self.flags is None else jnp.where(like(self.flags, x), start, before))
            elif self.init is None:
                out.append(without_first(self.outs[k], self.flags, reverse, start))
            else:
                out.append(self.outs[k])
        return out

    def before(self, k: int, y: Any) -> Any:
        """From the tangents after each element of leaf k, those before it."""
        start = zeros_of(y) if self.init_dots[k] is None else jnp.broadcast_to(self.init_dots[k], y.shape)
        moved = shifted(y, first_of(start, self.call.reverse), self.call.reverse)
        return moved if self.flags is None else jnp.where(like(self.flags, y), start, moved)

    def pushed(self, moves: Sequence[Any]) -> Leaves:
        """The operator's tangents along those of (states, values, captured arrays)."""
        n, depth = len(self.values), 1 + self.call.inner_rank
        op = lambda xs: self.call.combine(xs[2 * n :], depth)(xs[:n], xs[n : 2 * n])  # noqa: E731
        return along(op, [*self.states, *self.values, *self.consts], moves)[1]

    def added(self, moved: dict[int, Any]) -> Leaves:
        """u, given the tangents of some leaves' states."""
        moves = [moved.get(k) for k in range(len(self.values))]
        for k, d in enumerate(self.init_dots):
            if d is not None and k not in moved:
                nothing = zeros_of(self.values[k])
                moves[k] = without_first(nothing, self.flags, self.call.reverse, jnp.broadcast_to(d, nothing.shape))
        moves += [*self.dots, *self.const_dots]
        us = self.pushed(moves) if any(d is not None for d in moves) else [zeros_of(x) for x in self.values]
        if self.init is not None:
            return us
        alone = [zeros_if_none(d, x) for x, d in zip(self.values, self.dots, strict=True)]
        every = zip(us, alone, strict=True)
        return [without_first(u, self.flags, self.call.reverse, a) if is_inexact(a.dtype) else u for u, a in every]

    def recurrence(
        self, step: Product | Derivative, inner_rank: int, arrays: Sequence[Any], consts: Sequence[Any] = ()
    ) -> Leaves:
        r = Recurrence(step, inner_rank, self.call.reverse, self.flags is not None)
        dtype = arrays[-1].dtype
        if isinstance(step, Product) and scan_xla.is_half(dtype):  # what is carried, and pulled back, is many terms' sum
            wide = self.recurrence(step, inner_rank, [x.astype(jnp.float32) for x in arrays], consts)
            return [y.astype(dtype) for y in wide]
        return recurrence(r, [*arrays, *([] if self.flags is None else [self.flags]), *consts])

    def number(self, k: int, moved: dict[int, Any]) -> Any:
        """Leaf k, with a number for J: by the result if that says it, by the operator once more if not."""
        x, y, dot = self.values[k], self.outs[k], self.dots[k]
        weigh = WEIGHTS.get(self.call.operator.leaf_names[k] or "")
        if weigh is not None and dot is not None and self.init is None and not self.call.exclusive:
            alone = without_first(weigh(x, y) * dot, self.flags, self.call.reverse, dot)  # the first result is the element itself
            return self.recurrence(Product(), x.ndim - 1, [weigh(self.states[k], y), alone])[0]
        ones: Leaves = [None] * (2 * len(self.values) + len(self.consts))
        ones[k] = vary(jnp.ones(x.shape, x.dtype), axes_of([x]))
        return self.recurrence(Product(), x.ndim - 1, [self.pushed(ones)[k], self.added(moved)[k]])[0]

    def coupled(self, active: Sequence[int]) -> Leaves:
        """All leaves at once."""
        us = self.added({})
        step = Derivative(self.call.operator, self.call.captured)
        arrays = [*self.states, *self.values, *(us[k] for k in active)]
        return self.recurrence(step, self.call.inner_rank, arrays, self.consts)

    def sum(self, k: int) -> Any:
        """Leaf k of a sum: the sum of tangents."""
        x, start = self.values[k], self.init_dots[k]
        if self.dots[k] is None and start is None:
            return zeros_of(x)
        call = simple(
            "scan",
            add,
            x.dtype,
            inner_rank=x.ndim - 1,
            exclusive=self.call.exclusive,
            reverse=self.call.reverse,
            init=start is not None,
            segmented_by=self.call.segmented_by,
        )
        cut = [] if self.flags is None else [self.flags]
        return bind(scan_p, call, [zeros_if_none(self.dots[k], x), *cut, *([] if start is None else [start])])[0]


# --- which leaves can be solved one after the other ---------------------------------------------------------------------------


@functools.lru_cache(maxsize=512)
def solvable(operator: Operator) -> tuple[tuple[int, frozenset[int]], ...] | None:
    """The inexact leaves, each with those that it needs solved before: its next state depends on its own, slot by slot, and on
    theirs. None where leaves depend on each other, or where that is not known."""
    if operator.large:
        return None
    slots = len(operator.program.results)
    owner = [k for k, (_, n) in enumerate(operator.leaf_slots) for _ in range(n)]
    groups = {k: g for g in operator.derivative_groups for k in g.leaves}
    active = [k for k, d in enumerate(operator.dtypes) if is_inexact(d)]
    alone = len(active) == 1 and owner.count(active[0]) == 1
    if operator.traced.has_rules and not alone and any(groups[k].kind != "result" for k in active):
        return None
    sources = _sources(operator.program, slots)
    needs: dict[int, set[int]] = {k: set() for k in active}
    for s, result in enumerate(operator.program.results):
        k = owner[s]
        if k not in needs:
            continue
        whole = operator.dtypes[k].kind == "c"
        if whole and groups[k].name not in ("add", "complex_mul", "complex_affine"):
            return None  # not known to be a product with a complex number
        if not whole and any(owner[o] == k and o != s for o in sources[result]):
            return None
        needs[k] |= {owner[o] for o in sources[result]} - {k}
    order: list[tuple[int, frozenset[int]]] = []
    while needs:
        free = [k for k, others in needs.items() if not others & needs.keys()]
        if not free:
            return None
        order += [(k, frozenset(needs.pop(k))) for k in free]
    return tuple(order)


def _sources(program: Program, slots: int) -> list[frozenset[int]]:
    """For each value of the body, the first argument's slots that its derivative comes from."""
    out: list[frozenset[int]] = []
    for i in program.body:
        if i.dtype != "tuple" and not is_float(i.dtype):
            out.append(frozenset())
        elif i.op == "arg":
            out.append(frozenset({i.attr} if i.attr < slots else ()))
        else:
            out.append(frozenset().union(*(out[o] for o in i.operands)))
    return out


# --- transposition --------------------------------------------------------------------------------------------------------------


def is_sum(call: OrderedCall, linear: Sequence[bool]) -> bool:
    """Is it a sum of arrays, and are they what is linear?"""
    _, _, captured, consts, _ = call.split(linear)
    sums = call.wanted is None and all(g.kind == "add" for g in call.operator.derivative_groups)
    return sums and call.passes_on and not any((*captured, *consts))


def is_linear(call: OrderedCall, linear: Sequence[bool]) -> bool:
    arrays, _, captured, consts, init = call.split(linear)
    values = [d for slots in of_f(call, arrays, captured) for d in slots]
    starts = None if init is None else of_leaves(call.operator, init)
    return combines_linearly(call.operator, values, starts, consts)


def constant(call: OrderedCall, unknown: Sequence[bool]) -> list[bool]:
    """Which results depend on nothing that is unknown?"""
    arrays, cut, captured, consts, init = call.split(unknown)
    if cut:
        return [False] * len(call.results)
    values = [d for slots in of_f(call, arrays, captured, OTHER) for d in slots]
    starts = None if init is None else of_leaves(call.operator, init, OTHER)
    leaves = constant_leaves(call.operator, values, starts, consts)
    return leaves if call.wanted is None else [leaves[k] for k in call.wanted]


def _transpose_sums(cotangents: Sequence[Any], *operands: Any, call: OrderedCall, masks: tuple[int, ...], rank: int) -> Leaves:
    """Sums from the other end."""
    k = call.num_arrays
    flags = operands[k] if call.segmented_by else None
    full, reverse = (1 << rank) - 1, call.reverse
    cts = instantiated(cotangents)
    cut = [] if flags is None else [after(flags, masks[k], reverse)]
    back = dataclasses.replace(call, reverse=not reverse, init=False)
    sums = bind(scan_p, back, [*cts, *cut], [*(full for _ in cts), *masks[k : k + len(cut)]], rank)
    out: Leaves = [None] * len(operands)
    for j, x in enumerate(operands[:k]):
        if ad.is_undefined_primal(x):
            out[j] = summed_to(sums[j], masks[j], rank)
    for j, at in enumerate(range(k + len(cut), len(operands))):
        if ad.is_undefined_primal(operands[at]):
            every = jnp.sum(cts[j], rank) if cut else _whole(sums[j], cts[j], call.exclusive, reverse, rank)
            out[at] = summed_to(every, masks[at], rank)
    return out


def _whole(sums: Any, cts: Any, exclusive: bool, reverse: bool, axis: int) -> Any:
    """All cotangents' sum, which the last of the sums from the other end has."""
    last = first_of(sums, reverse, axis)
    return jnp.squeeze(last + first_of(cts, reverse, axis) if exclusive else last, axis)


ad.primitive_transposes[scan_p] = transpose_rule(scan_p, is_sum, _transpose_sums, is_linear)
pe.custom_partial_eval_rules[scan_p] = known_rule(scan_p, constant)
FEW_STEPS: dict[str | None, int] = {"add": 2, "max": 4, "min": 4}
"""Steps of which XLA makes a derivative's passes in one; of other operators 6."""

FEW_NUMBERS, STEPS_OF_FEW = 8192, 9
"""Numbers in all of which it does so before a kernel is called and the recurrence solved, by what it knows, and steps."""

FEW_EXPONENTIALS = 64
"""Numbers in all of which it makes each step's exponentials in less time."""


FEW_IN_ROWS = 3
"""Steps along the last axis, in pairs of which XLA makes both passes sooner than one after the other."""


def _few_steps(name: str | None, x: Any) -> int:
    """Halves' products would be rounded at each step; of sums XLA would make what cotangents are made of at each step."""
    most = FEW_EXPONENTIALS if name == "logaddexp" else FEW_NUMBERS if name in ("mul", "max", "min") else 0
    few = not scan_xla.is_half(x.dtype) and all(isinstance(k, int) for k in x.shape) and x.size <= most
    return STEPS_OF_FEW if few else FEW_STEPS.get(name, 6)


def _is_pulled_back(call: OrderedCall) -> bool:
    return not call.is_map and call.then is None and call.wanted is None and call.operator.traced.has_vjps


def _few_first(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of scans; but a few steps are left to XLA, by pairs, or those of what it knows written out: no pass for each
    part of the derivative. So are operators with a ``custom_vjp``, along which nothing is pushed: JAX transposes XLA's form."""

    def with_few(primals: Leaves, tangents: Leaves, **params: Any) -> Any:
        if _is_pulled_back(params["call"]):
            return jvp_of(functools.partial(SCANS.plain, **params), primals, tangents)
        call, name, axis = params["call"], SCANS.operation(**params), params["masks"][0].bit_count()
        n = primals[0].shape[axis]
        dots = [t for t in tangents if not isinstance(t, ad.Zero)]
        few = isinstance(n, int) and 0 < n <= _few_steps(name, primals[0]) and not call.is_map  # which has no steps
        if not few or call.plans or call.then is not None or call.wanted is not None or axes_of(dots) - axes_of(primals):
            return rule(primals, tangents, **params)
        short_rows = n <= FEW_IN_ROWS and axis == primals[0].ndim - 1
        if name in (None, "logaddexp") or short_rows:  # of which XLA would make all steps' exponentials for each
            return jvp_of(functools.partial(SCANS.plain, **params), primals, tangents)
        return jvp_of(lambda x: [scan_xla.written_out(x, name, axis, call.reverse)], primals, tangents)

    return with_few


ad.primitive_jvps[scan_p] = _few_first(jvp_rule(scan_p, _tangents))
