"""``OrderedCall``: the static half of a call of the ordered family (scan, reduction, segmented reduction), and its kernel's spec.

Operands, in this order: the arrays (those that are not positions) ``[*batch, N, *inner, *element]``; what cuts them into
segments, if anything does (flags ``[*batch, N]``, offsets, ids); the captured arrays of f, then of the operator; init's leaves
``[*batch, *inner, *element]``. Any operand may have any subset of the batch axes, leading; what is not batched is not copied.
The operator works on elements; it knows nothing of batch and inner axes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...ir.folds import rolled
from ...ir.program import Builder, Program, numpy_dtype, shifted_loads
from ...operators.commutes import commutes
from ...operators.operator import (
    MAX_STRUCT_SLOTS,
    Operator,
    make_operators,
    of_arrays,
    passing,
    scalar_name,
    simple_operator,
    wide,
)
from ...operators.representation import Representation
from ...operators.traced import Traced, followed, make_traced, slots_of, together
from ...specs.histogram import ArraySpec
from ...specs.large import LargeSpec, large_spec
from ...specs.ordered import OrderedSpec
from ...targets.plans import Plan, forced_plans
from ...tracing.jaxprs import structs
from ...tracing.varying import Axes, axes_of, element_aval
from ..elements import ElementFunctionCall, Operands, captured_dtypes, mapped
from ..reads import READS, on_elements

SIDE_BY_SIDE = 8
"""So many elements that lie side by side are one struct; vectors run across more."""


@dataclasses.dataclass(frozen=True)
class OrderedCall(ElementFunctionCall):
    """What is combined and how."""

    kind: str  # scan, reduce, segments
    operator: Operator
    captured: int = 0  # arrays that the operator captures
    inner_rank: int = 0
    exclusive: bool = False
    reverse: bool = False
    init: bool = False
    in_place: bool = False  # a scan's results may take the arrays' memory
    init_is_state: bool = False  # init's leaves hold states, not values
    segmented_by: str = ""  # the operand that says where segments begin: "flags" of a scan, else "offsets" or "ids"
    num_segments: Any = 0
    wanted: tuple[int, ...] | None = None  # which of the operator's leaves are results; None: all
    together: int = 1  # elements of a map that a kernel makes at once
    then: Traced | None = None  # scan: what results are made of the operator's leaves, element by element; None: these
    of_dear: bool = False  # XLA would make the array again, dearly, in each loop that reads it: as seen where it is lowered
    plans: tuple[Plan, ...] = dataclasses.field(default_factory=forced_plans)

    def __repr__(self) -> str:
        words = [name for name in ("exclusive", "reverse", "init") if getattr(self, name)]
        return " ".join([f"{self.kind} of {self.operator!r}", *words, *[self.segmented_by] * bool(self.segmented_by)])

    @property
    def results(self) -> list[tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of each result's element."""
        if self.then is not None:
            return [(v.aval.shape, np.dtype(v.aval.dtype)) for v in self.then.jaxpr.outvars]
        return self.chosen(list(zip(self.operator.shapes, self.operator.dtypes, strict=True)))

    def chosen(self, leaves: Sequence[Any]) -> list[Any]:
        """Those of the operator's leaves that are results."""
        return list(leaves) if self.wanted is None else [leaves[k] for k in self.wanted]

    def split(self, operands: Sequence[Any]) -> tuple[list[Any], Any, list[Any], list[Any], list[Any] | None]:
        """Operands as (arrays, what cuts them or None, f's captured arrays, the operator's, init's leaves or None)."""
        rest = Operands(operands)
        arrays, cut = rest.take(self.num_arrays), rest.take(bool(self.segmented_by))
        captured, consts = rest.take(self.f.captured), rest.take(self.captured)
        return arrays, cut[0] if cut else None, captured, consts, rest.rest if self.init else None

    def of_f(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Those that f reads: arrays, and what it captures."""
        arrays, _, captured, _, _ = self.split(operands)
        return arrays, captured

    @property
    def compares(self) -> bool:
        """Do its derivatives compare values with results?"""
        return self.operator.compares

    def passing_on(self, values: Sequence[Any], rank: int) -> OrderedCall:
        """The same of f's values, with ``rank`` batch axes."""
        elements = tuple((v.shape[rank + 1 + self.inner_rank :], np.dtype(v.dtype)) for v in values)
        f = passing(elements, self.operator.large)
        return dataclasses.replace(self, f=f, positions=(None,) * len(values), as_they_are=True)

    def values(self, arrays: Sequence[Any], captured: Sequence[Any]) -> list[Any]:
        """f on every element of an unbatched call: leaves ``[N, *inner, *element]``."""
        return list(arrays) if self.passes_on else self.on_all(arrays, captured, self.inner_rank)

    @functools.cached_property
    def passes_on(self) -> bool:
        """f returns its arguments as they are."""
        return (
            not self.f.jaxpr.eqns
            and list(self.f.jaxpr.outvars) == list(self.f.jaxpr.invars)
            and self.num_arrays == len(self.positions)
        )

    @functools.cached_property
    def is_map(self) -> bool:
        """Is each result f of its own element (``last``)?"""
        op, n = self.operator.traced.jaxpr, len(self.operator.shapes)
        whole = self.wanted is None and self.then is None and not (self.exclusive or self.init or self.segmented_by)
        return self.kind == "scan" and whole and not op.eqns and list(op.outvars) == list(op.invars[n:])

    @functools.cached_property
    def reads_a_number(self) -> bool:
        """Is it a map that reads a number by index, or gives zero?"""
        names = [eqn.primitive.name for eqn in self.f.jaxpr.eqns]
        reads = [n for n in names if n in READS]
        return self.is_map and len(reads) == 1 and all(n in READS | _AROUND for n in names)

    def results_of(self, leaves: Sequence[Any], depth: int) -> list[Any]:
        """Of the operator's leaves with ``depth`` leading axes."""
        if self.then is not None:
            return list(mapped(functools.partial(self.then, []), depth)(*leaves))
        return self.chosen(leaves)

    def combine(self, consts: Sequence[Any], depth: int) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
        """The operator on two lists of leaves with ``depth`` leading axes."""
        n = len(self.operator.shapes)
        fn = mapped(on_elements(self.operator.traced, consts), depth)
        return lambda a, b: list(fn(*a[:n], *b[:n]))


_AROUND = frozenset("and broadcast_in_dim clamp convert_element_type ge lt max min reshape select_n squeeze".split())
"""What is around one where a zero stands for what is out of range."""


def last(a: Any, b: Any) -> Any:
    """The operator of a scan that is a map: each result is f of its own element."""
    return b


def last_of(values: Sequence[Any]) -> Operator:
    """:func:`last` of elements that are arrays like these variables."""
    avals = structs(values)
    jaxpr = jax.make_jaxpr(lambda *pair: pair[len(avals) :])(*avals, *avals).jaxpr
    return of_arrays(jaxpr, [a.shape for a in avals], [np.dtype(a.dtype) for a in avals])


@functools.lru_cache(maxsize=512)
def simple(kind: str, op: Callable[..., Any], dtype: Any, **others: Any) -> OrderedCall:
    """A call of one array, number by number, by a function of ``jax.numpy``; ``others``: fields of :class:`OrderedCall`."""
    return OrderedCall(passing((((), dtype),)), (None,), kind, simple_operator(op, (), dtype), plans=(), **others)


def of_numbers(f: Callable[..., Any], op: Callable[..., Any], value: Any, name: str | None = None, **others: Any) -> OrderedCall:
    """A reduction of one array like ``value``, of whose numbers ``f`` makes tuples, combined by ``op``, a function of two tuples.
    ``name``: that operator's, if it would have none."""
    axes = axes_of([value])  # of the mesh around, which is another one elsewhere
    return (_of_numbers.__wrapped__ if axes else _of_numbers)(f, op, value.dtype, name, axes, **others)


@functools.lru_cache(maxsize=512)
def _of_numbers(
    f: Callable[..., Any], op: Callable[..., Any], dtype: Any, name: str | None, axes: Axes, **others: Any
) -> OrderedCall:
    jaxpr = jax.make_jaxpr(f)(element_aval((), dtype, axes)).jaxpr
    made = [element_aval((), v.aval.dtype, axes) for v in jaxpr.outvars]
    closed = jax.make_jaxpr(lambda *pair: op(pair[: len(made)], pair[len(made) :]))(*made, *made)
    ((_, operator, _),), _ = make_operators(closed, None)
    operator = dataclasses.replace(operator, name=operator.name or name)
    return OrderedCall(make_traced(jaxpr), (None,), "reduce", operator, plans=(), **others)


# --- the spec -----------------------------------------------------------------------------------------------------------------


def call_spec(call: OrderedCall, avals: Sequence[Any], masks: Sequence[int]) -> OrderedSpec:
    """The spec of a call with operands of these avals."""
    if call.operator.large:
        return _large_spec(call, call.of_elements(avals, masks, call.inner_rank))
    first, mask = avals[0], masks[0].bit_count()
    lanes = first.shape[mask + 1 : mask + 1 + call.inner_rank]
    inner = int(np.prod(lanes, dtype=np.int64)) if all(isinstance(d, int) for d in lanes) else None
    behind = iter(avals[call.num_arrays + bool(call.segmented_by) :])
    captured = captured_dtypes(behind, call.f.captured + call.captured)
    return spec_of(call, call.of_elements(avals, masks, call.inner_rank), captured, inner)


@functools.lru_cache(maxsize=512)
def _large_spec(call: OrderedCall, elements: tuple[tuple[tuple[int, ...], Any], ...]) -> LargeSpec:
    combine, element = None if call.is_map else call.operator.traced.arrays, together(call.f, call.together)
    assert element is not None
    counts = [0 if p is not None else slots_of(s, d) for p, (s, d) in zip(call.positions, elements, strict=True)]
    return large_spec(
        call.kind,
        tuple((scalar_name(d), n) for n, (_, d) in zip(counts, elements, strict=True)),
        call.operator.leaf_slots,
        tuple(range(len(call.operator.shapes))) if call.wanted is None else call.wanted,
        combine,
        None if call.passes_on and not call.is_map else element,
        call.together,
        exclusive=call.exclusive,
        reverse=call.reverse,
        restarts=call.segmented_by == "flags" or call.kind == "segments",
    )


def sizes_along(call: OrderedCall, spec: OrderedSpec, avals: Sequence[Any], masks: Sequence[int]) -> tuple[Any, Any]:
    """N, and how many lanes vectors run across."""
    first = masks[0].bit_count()
    n, *lanes = avals[0].shape[first : first + 1 + call.inner_rank]
    return n, math.prod(lanes) if spec.across else 1


def in_wide(call: OrderedCall) -> OrderedCall:
    """The call in f32, where it is of numbers that are to be rounded to halves afterwards; or as it is."""
    operator = wide(call.operator)
    if operator is None or call.captured or call.then is not None:
        return call
    return dataclasses.replace(call, f=followed(call.f, lambda out: [x.astype(jnp.float32) for x in out]), operator=operator)


def init_dtypes(call: OrderedCall) -> list[np.dtype]:
    """Of init's leaves, as kernels want them: those of states."""
    form = _form(call)
    at, out = 0, []
    for (_, n), dtype in zip(call.operator.leaf_slots, call.operator.dtypes, strict=True):
        out.append(np.dtype(dtype) if np.dtype(dtype).kind == "c" else numpy_dtype(form.dtypes[at]))
        at += n
    return out


@functools.lru_cache(maxsize=512)
def spec_of(
    call: OrderedCall, elements: tuple[tuple[tuple[int, ...], Any], ...], captured: tuple[Any, ...], inner: int | None
) -> OrderedSpec:
    """``elements``: shape and dtype of one element of each array (positions too); ``captured``: dtypes; ``inner``: how many
    elements lie side by side, None if that is not known yet."""
    form = _form(call)
    counts = [1 if p is not None else slots_of(s, d) for p, (s, d) in zip(call.positions, elements, strict=True)]
    side_by_side = inner == 1 or (
        inner is not None and inner <= SIDE_BY_SIDE and inner * max(len(form.dtypes), *counts) <= MAX_STRUCT_SLOTS
    )
    lanes = inner if side_by_side and inner is not None else 1
    leaves = call.operator.leaf_slots
    state_leaves = _state_leaves(form, leaves)
    state, op, identity = _replicated_operator(form, state_leaves, lanes, call.f.captured)
    return OrderedSpec(
        kind=call.kind,
        arrays=tuple(
            ArraySpec(scalar_name(d), 0 if p is not None else n * lanes, 1 if p is not None else n * lanes)
            for p, n, (_, d) in zip(call.positions, counts, elements, strict=True)
        ),
        uniforms=tuple(scalar_name(d) for d in captured),
        state=state,
        leaves=tuple((scalar_name(d), slots_of(s, d) * lanes) for s, d in call.results),
        identity=identity,
        f=_replicated_f(rolled(call.f.program), form, state_leaves, counts, [p is not None for p in call.positions], lanes),
        op=op,
        finish=_replicated_finish(form, call, state_leaves, lanes),
        exclusive=call.exclusive,
        reverse=call.reverse,
        restarts=call.segmented_by == "flags" or call.kind == "segments",
        across=not side_by_side,
        commutes=call.kind != "scan" and (commutes(form.op) or commutes(call.operator.program)),
    )


def _form(call: OrderedCall) -> Representation:
    """What states hold. A scan writes every state, a start value is no packed one: only halves have another form there, and those
    of a leaf that ``init`` has as one array must have the same one."""
    program = call.f.program
    position = call.position_among([program.body[r] for r in program.results])
    unfinished = call.kind != "scan" and not call.init
    form = call.operator.represent(
        position if unfinished else None,
        keyed=call.kind != "reduce" and not call.init,
        unfinished=unfinished,
        in_order=True,
    )
    if call.init and _mixes(form, call.operator.leaf_slots):
        dtypes = tuple(t for t, n in call.operator.leaf_slots for _ in range(n))
        return Representation(dtypes, call.operator.program, call.operator.identity)
    return form


Leaves = Sequence[tuple[str, int]]


def _state_leaves(form: Representation, leaves: Leaves) -> list[tuple[str, int]]:
    """A state's slots by leaf: the result's leaves, or one by one where the form has other slots, or not one dtype in a leaf."""
    if len(form.dtypes) != sum(n for _, n in leaves) or _mixes(form, leaves):
        return [(t, 1) for t in form.dtypes]
    return [(kinds[0], len(kinds)) for kinds in _by_leaf(form, leaves)]


def _by_leaf(form: Representation, leaves: Leaves) -> list[tuple[str, ...]]:
    """The dtypes of each leaf's slots, of a form that has as many."""
    ends = [0, *itertools.accumulate(n for _, n in leaves)]
    return [form.dtypes[a:b] for a, b in itertools.pairwise(ends)]


def _mixes(form: Representation, leaves: Leaves) -> bool:
    """Have some slots of a leaf another form than others?"""
    return any(len(set(kinds)) > 1 for kinds in _by_leaf(form, leaves))


def places_of(counts: Iterable[int], lanes: int) -> list[list[int]]:
    """Where each lane's slots, so many for each leaf, are among those of all lanes: leaf by leaf, in a leaf lane by lane, as in
    memory."""
    out: list[list[int]] = [[] for _ in range(lanes)]
    at = 0
    for n in counts:
        for lane in range(lanes):
            out[lane] += range(at + lane * n, at + (lane + 1) * n)
        at += n * lanes
    return out


def _places(leaves: Leaves, lanes: int) -> list[list[int]]:
    return places_of((n for _, n in leaves), lanes)


def scattered(places: Sequence[Sequence[int]], results: Sequence[Sequence[int]]) -> list[int]:
    """Results of every lane, in the order of all lanes' slots."""
    out = [0] * sum(map(len, places))
    for mine, values in zip(places, results, strict=True):
        for place, value in zip(mine, values, strict=True):
            out[place] = value
    return out


def _replicated_f(
    f: Program, form: Representation, state: Leaves, counts: Sequence[int], is_position: Sequence[bool], lanes: int
) -> Program:
    """f, and the way into the form, on all lanes of an element."""
    params: list[str] = []
    place: list[list[int]] = [[] for _ in range(lanes)]
    at = 0
    for n, position in zip(counts, is_position, strict=True):
        first = len(params)
        params += list(f.params[at : at + n]) * (1 if position else lanes)
        for lane in range(lanes):
            place[lane] += range(first, first + n) if position else range(first + lane * n, first + (lane + 1) * n)
        at += n
    b = Builder(params)
    rows = []
    for lane in range(lanes):
        row = b.inline(f, [b.arg(k) for k in place[lane]])
        rows.append(row if form.start is None else b.inline(form.start, row))
    return b.finish(scattered(_places(state, lanes), rows))


def _replicated_operator(
    form: Representation, leaves: Leaves, lanes: int, first_uniform: int
) -> tuple[tuple[str, ...], Program, tuple[int, ...] | None]:
    places = _places(leaves, lanes)
    state = tuple(t for t, n in leaves for _ in range(n * lanes))
    op = shifted_loads(form.op, first_uniform)
    b = Builder(state * 2)
    rows = [b.inline(op, [b.arg(k) for k in mine] + [b.arg(len(state) + k) for k in mine]) for mine in places]
    identity = None
    if form.identity is not None:
        identity = tuple(scattered(places, [form.identity] * lanes))
    return state, b.finish(scattered(places, rows)), identity


def _replicated_finish(form: Representation, call: OrderedCall, state: Leaves, lanes: int) -> Program:
    """The way back from the form, on all lanes, to the results."""
    b = Builder([t for t, n in state for _ in range(n * lanes)])
    leaves, rows = call.operator.leaf_slots, []
    first_of = np.concatenate([[0], np.cumsum([n for _, n in leaves])])
    kept = range(len(leaves)) if call.wanted is None else call.wanted
    slots = [s for k in kept for s in range(first_of[k], first_of[k + 1])]
    for mine in _places(state, lanes):
        row = [b.arg(k) for k in mine]
        full = row if form.finish is None else b.inline(form.finish, row)
        rows.append([full[s] for s in slots] if call.then is None else b.inline(call.then.program, full))
    results = [(scalar_name(d), slots_of(s, d)) for s, d in call.results]
    return b.finish(scattered(_places(results, lanes), rows))
