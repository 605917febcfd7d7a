"""The cotangents of what is combined by index, for any operator, without a sort: by two walks through the elements.

The first one combines them anew, bin by bin, and writes what each of them met in its bin. The second goes back: a bin holds the
cotangent of its state, an element's is pulled back from it to the state before, and to the element and through f. That is reverse
differentiation of the loop that a histogram is: each element is read where it lies, and nothing is sorted or gathered.

Elements in several parts, and neighbours in several copies of a bin, are walked by themselves, and the cotangents of each copy's
end are those of the few combinations that lead from them to the result.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...ir.program import Program
from ...operators.operator import Operator
from ...operators.traced import Traced, make_traced, slots_of
from ...tracing.lower import Unsupported, to_program
from ...tracing.varying import axes_of
from ..elements import mapped
from ..ordered.scan_xla import where
from ..tangents import Leaves, is_inexact, replaced
from .call import HistogramCall
from .made import Aval, avals_of, context, traced_element
from .primitive import narrowed
from .walk import Walk, walk

MOST_PARTS = 16
"""Runs of elements with tables of their own."""

FEWEST = 2**14
"""Elements of a part."""

MOST_COPIES = 8
"""Of a bin, of which neighbours meet different ones."""

NEAR = 2**14
"""Scalars of all copies of a part: more would not be near enough for copies to pay."""

MOST_SCALARS = 64
"""Of an element of f's, and of a state: more would not be held in registers."""


def tables_for(n: int, num_bins: int, slots: int) -> tuple[int, int]:
    """Parts, and copies in each, of so many elements and bins of so many scalars: their tables are few beside the elements."""
    parts = copies = 1
    while parts < MOST_PARTS and 2 * parts * FEWEST <= n and num_bins * 2 * parts * (1 if parts == 1 else 8) <= n:
        parts *= 2
    while copies < MOST_COPIES and 2 * copies * num_bins * slots <= NEAR and 16 * parts * copies * num_bins <= n:
        copies *= 2
    return parts, copies


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A walk's step: its function, what its captured arrays are made of, and what is left of all leaves and arrays."""

    traced: Traced
    captured: Callable[..., Leaves]
    state: tuple[int, ...]
    arrays: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """Of both walks. ``met``: which of what an element meets the first one writes and the second one reads: 0, whether it meets
    anything; k + 1, leaf k."""

    onward: Step
    back: Step
    met: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Which cotangents: of these arguments of f's, and of dest; and whether a bin has several copies."""

    moving: tuple[int, ...]
    dest: bool
    several: bool


@functools.lru_cache(maxsize=256)
def _steps(call: HistogramCall, elements: tuple[Aval, ...], held: tuple[Aval, ...], wanted: Wanted, _: Any) -> Steps | None:
    """None where there are no kernels of it."""
    (part,) = call.parts
    op, count, flag = part.operator, call.f.captured, ((), np.dtype(bool))
    leaves = [(tuple(s), np.dtype(d)) for s, d in zip(op.shapes, op.dtypes, strict=True)]
    active = [k for k, (_, d) in enumerate(leaves) if is_inexact(d)]
    n, m = len(leaves), len(active)

    def values(held: Sequence[Any], xs: Sequence[Any]) -> Leaves:
        results = call.f(held[:count], *xs)
        return [results[v] for v in part.values]

    def onward(held: Sequence[Any], met: Any, *rest: Any) -> Leaves:
        mine = values(held, rest[n:])
        before = [jnp.where(met, s, v) for s, v in zip(rest[:n], mine, strict=True)]
        out = op.traced(held[count:], *before, *mine)
        return [jnp.ones_like(met), *(jnp.where(met, y, v) for y, v in zip(out, mine, strict=True)), met, *before]

    def back(held: Sequence[Any], *rest: Any) -> Leaves:
        cts, xs, (met, *before) = rest[:m], list(rest[m : m + len(elements)]), rest[m + len(elements) :]

        def made(*moved: Any) -> Leaves:
            out = values(held, replaced(xs, wanted.moving, moved))
            return [out[k] for k in active]

        def combined(*both: Any) -> Leaves:
            out = op.traced(held[count:], *replaced(before, active, both[:m]), *replaced(every, active, both[m:]))
            return [out[k] for k in active]

        every = values(held, xs)
        mine, through_f = _pulling(made, *(xs[k] for k in wanted.moving))
        pulled = _pulling(combined, *(before[k] for k in active), *mine)[1](list(cts))
        earlier = [jnp.where(met, x, jnp.zeros_like(x)) for x in pulled[:m]]
        own = [jnp.where(met, x, ct) for x, ct in zip(pulled[m:], cts, strict=True)]
        return [*earlier, *through_f(own)]

    try:
        second = _step(back, held, [leaves[k] for k in active], [*elements, flag, *leaves], range(m) if wanted.dest else ())
        met = tuple(k - len(elements) for k in second.arrays if k >= len(elements))
        first = _step(
            lambda *xs: list(operator.itemgetter(*range(n + 1), *(n + 1 + k for k in met))(onward(*xs))),
            held,
            [flag, *leaves],
            elements,
            range(n + 1) if wanted.several else (),
        )
        return Steps(first, second, met)
    except Unsupported:
        return None


def _pulling(f: Callable[..., Leaves], *at: Any) -> tuple[Leaves, Callable[[Leaves], Sequence[Any]]]:
    """``jax.vjp``, of what has one: loops until something holds have forward derivatives alone."""
    out, back = jax.vjp(f, *at)

    def pulled(cts: Leaves) -> Sequence[Any]:
        try:
            return back(cts)
        except (TypeError, ValueError, NotImplementedError) as e:
            raise Unsupported("transpose", str(e)) from e

    return out, pulled


def _step(
    f: Callable[..., Leaves], held: Sequence[Aval], state: Sequence[Aval], arrays: Sequence[Aval], ends: Iterable[int]
) -> Step:
    """Of ``f(held, *state, *arrays)``, which gives the state and what is written: what this and ``ends``, of the state, need."""
    n = len(state)
    _, inner = traced_element(f, held, [*state, *arrays])
    results = [(v.aval.shape, v.aval.dtype) for v in inner.jaxpr.outvars]
    reads = _reads(to_program(inner.jaxpr), [*state, *arrays], results)
    live = set(ends).union(*reads[n:])
    while not live >= (more := set().union(*(reads[k] for k in live if k < n))):
        live |= more
    kept, used = [k for k in range(n) if k in live], [k for k in range(len(arrays)) if n + k in live]

    def of_live(held: Sequence[Any], *xs: Any) -> Leaves:
        zeros = [jnp.zeros(*a) for a in (*state, *arrays)]
        out = f(held, *replaced(zeros, [*kept, *(n + k for k in used)], xs))
        return [*(out[k] for k in kept), *out[n:]]

    pre, inner = traced_element(of_live, held, [*(state[k] for k in kept), *(arrays[k] for k in used)])
    return Step(make_traced(inner.jaxpr), pre, tuple(kept), tuple(used))


def _reads(program: Program, params: Sequence[Aval], results: Sequence[Aval]) -> list[set[int]]:
    """For each result the parameters that it depends on, arrays for arrays."""
    owner = [k for k, a in enumerate(params) for _ in range(slots_of(*a))]
    sources = iter(program.run([{k} for k in owner], lambda _, operands: set().union(*operands)))
    return [set().union(*(next(sources) for _ in range(slots_of(*a)))) for a in results]


@dataclasses.dataclass(frozen=True)
class Walks:
    """Both walks of a call with one part, unbatched."""

    call: HistogramCall
    steps: Steps
    wanted: Wanted
    parts: int
    copies: int

    def run(self, operands: Leaves, cts: Leaves) -> Leaves:
        """The cotangents that are wanted, from those of the inexact results."""
        call, steps = self.call, self.steps
        (part,) = call.parts
        op = part.operator
        arrays, captured, (consts,), (dest,) = call.split(operands)
        rest, n = iter(arrays), arrays[0].shape[0]
        xs = [jax.lax.iota(p, n) if p is not None else next(rest) for p in call.positions]
        index = narrowed(call.on_all(arrays, captured)[part.index], part.num_bins).astype(np.int32)
        held, tables = [*captured, *consts], (self.parts * self.copies, part.num_bins)
        starts = [jnp.zeros(tables, bool), *(jnp.zeros((*tables, *s), d) for s, d in zip(op.shapes, op.dtypes, strict=True))]
        if dest is not None:
            starts = [s.at[0].set(d) for s, d in zip(starts, [True, *dest], strict=True)]
        written, ends = self._walk(steps.onward, index, xs, held, starts, False)
        last = [ct[None] for ct in cts]
        if self.wanted.several:
            stand_ins = [v[0] for v in call.pairs(part, call.on_all([x[:1] for x in arrays], captured))[1]]
            last = _last(op, consts, ends, stand_ins, cts)
        met = dict(zip(steps.met, written, strict=True))
        arrays = [*xs, *(met.get(k) for k in range(1 + len(op.dtypes)))]
        moved, ends = self._walk(steps.back, index, arrays, held, last, True)
        return [*moved, *([e[0] for e in ends] if self.wanted.dest else [])]

    def _walk(self, step: Step, index: Any, arrays: Leaves, held: Leaves, starts: Leaves, reverse: bool) -> tuple[Leaves, Leaves]:
        """What is written, and the states' leaves that are left."""
        w = Walk(step.traced, len(step.state), self.call.parts[0].num_bins, self.parts, self.copies, reverse)
        given = [*(arrays[k] for k in step.arrays), *step.captured(*held), *(starts[k] for k in step.state)]
        out = walk(w, [index, *given])
        return out[: len(w.leaves)], out[len(w.leaves) :]


def walks_of(call: HistogramCall, operands: Sequence[Any], moving: tuple[int, ...]) -> Walks | None:
    """For the cotangents of the operands ``moving`` of a call of one part; None where there are no kernels of it, or they would
    not pay. Operands may be avals."""
    (part,) = call.parts
    arrays, captured, (consts,), (dest,) = call.split(operands)
    n, op = arrays[0].shape[0], part.operator
    places = [k for k, p in enumerate(call.positions) if p is None]
    first_dest = len(operands) - (len(dest) if dest else 0)
    every = [first_dest + k for k, d in enumerate(op.dtypes) if is_inexact(d)]
    mine = tuple(places[k] for k in moving if k < len(arrays))
    of_dest = [k for k in moving if k >= len(arrays)]
    known = isinstance(n, int) and 0 < part.num_bins < 2**31 - 1 and n > 0
    if axes_of(operands):  # inside shard_map functions are typed with its axes
        return None
    if not known or not mine or of_dest not in ([], every) or part.updates > 1 or op.lanes > 1 or op.large:
        return None
    given = iter(avals_of(arrays))
    elements = tuple(((), np.dtype(p)) if p is not None else (lambda a: (a[0][1:], a[1]))(next(given)) for p in call.positions)
    slots = sum(k for _, k in op.leaf_slots)
    if sum(slots_of(*a) for a in elements) + slots > MOST_SCALARS:
        return None
    parts, copies = tables_for(n, part.num_bins, slots)
    wanted = Wanted(mine, bool(of_dest), parts * copies > 1)
    steps = _steps(call, elements, avals_of([*captured, *consts]), wanted, context())
    return None if steps is None else Walks(call, steps, wanted, parts, copies)


def _last(op: Operator, consts: Leaves, ends: Leaves, stand_ins: Leaves, cts: Leaves) -> Leaves:
    """The cotangents of the bins' copies [K, H, ...], a power of two, combined in pairs. ``ends``: whether a copy has met an
    element, and its leaves; ``stand_ins``: an element's values, where none has come to a copy."""
    met, *values = ends
    active = [k for k, d in enumerate(op.dtypes) if is_inexact(d)]
    combine = mapped(lambda *xs: tuple(op.traced(consts, *xs)), 2)

    def result(*moved: Any) -> Leaves:
        leaves, here = replaced(values, active, moved), met
        while here.shape[0] > 1:
            one, other = here[::2], here[1::2]
            a, b = [x[::2] for x in leaves], [x[1::2] for x in leaves]
            both = one & other
            out = combine(*where(both, a, stand_ins), *where(both, b, stand_ins))
            leaves = where(both, out, where(one, a, b))
            here = one | other
        return [leaves[k][0] for k in active]

    return list(jax.vjp(result, *(values[k] for k in active))[1](list(cts)))
