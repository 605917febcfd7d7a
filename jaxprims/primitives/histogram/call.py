"""``HistogramCall``: the static half of a generalized histogram, and its kernel's spec."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...ir.folds import rolled
from ...ir.lanes import Lanes, lanes_of
from ...ir.program import Builder, Program, chained, narrowed, shifted_loads
from ...operators.operator import Operator, passing, scalar_name, simple_operator
from ...operators.representation import Representation
from ...operators.traced import slots_of
from ...specs.histogram import ArraySpec, HistogramSpec, PartSpec, last_of
from ...specs.problems import HistogramProblem
from ...targets.plans import Plan, forced_plans
from ...targets.target import Target
from ..elements import ElementFunctionCall, Operands, captured_dtypes
from ..tangents import add, is_inexact


@dataclasses.dataclass(frozen=True)
class Part:
    """One part: which of f's results are its index and its values, and what is done with them."""

    num_bins: int
    operator: Operator
    captured: int  # number of arrays that the operator captures
    index: int  # number of f's result
    values: tuple[int, ...]
    updates: int  # k index-value pairs from one element
    dest: bool

    def __repr__(self) -> str:
        return f"{self.operator!r} into {self.num_bins} bins"


def sums_of_rows(num_bins: int, shape: Sequence[int], dtype: Any) -> Part:
    """Of f's second result, by the index that is its first."""
    return Part(num_bins, simple_operator(add, tuple(shape), dtype), 0, 0, (1,), 1, False)


@dataclasses.dataclass(frozen=True)
class HistogramCall(ElementFunctionCall):
    """The static half of a call."""

    parts: tuple[Part, ...]
    sorted: bool = False  # the first argument's values, the indices, ascend
    deterministic: bool = False  # the same bits on every run, wherever it runs
    plans: tuple[Plan, ...] = dataclasses.field(default_factory=forced_plans)

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self.parts))}]"

    def is_map(self, n: Any) -> bool:
        """Of n elements, has each a bin of its own, that of its position? Rows of lanes, made by f, are then written side by
        side."""
        part = self.parts[0]
        alone = len(self.parts) == 1 and part.updates == 1 and not part.dest and part.operator.name is not None
        index = self.f.jaxpr.outvars[part.index]
        if not alone or part.operator.lanes == 1 or part.num_bins != n or index not in self.f.jaxpr.invars:
            return False
        return self.positions[self.f.jaxpr.invars.index(index)] is not None

    @property
    def reads_positions(self) -> bool:
        """Does f compute with an element's position?"""
        positions = {v for v, p in zip(self.f.jaxpr.invars, self.positions, strict=True) if p is not None}
        return any(v in positions for eqn in self.f.jaxpr.eqns for v in eqn.invars if not hasattr(v, "val"))

    def split(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[list[Any]], list[list[Any] | None]]:
        """Operands as (arrays, f's captured arrays, each operator's, each part's dests or None)."""
        take = Operands(operands).take
        arrays, captured = take(self.num_arrays), take(self.f.captured)
        per_operator = [take(p.captured) for p in self.parts]
        dests = [take(len(p.values)) if p.dest else None for p in self.parts]
        return arrays, captured, per_operator, dests

    def of_f(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Those that f reads: arrays, and what it captures."""
        arrays, captured, _, _ = self.split(operands)
        return arrays, captured

    @property
    def compares(self) -> bool:
        """Do its derivatives compare values with results?"""
        return any(p.operator.compares for p in self.parts)

    def passing_on(self, values: Sequence[Any], rank: int) -> HistogramCall:
        """The same of f's results, with ``rank`` batch axes."""
        f = passing(tuple((v.shape[rank + 1 :], np.dtype(v.dtype)) for v in values))
        return dataclasses.replace(self, f=f, positions=(None,) * len(values), as_they_are=True)

    def pairs(self, part: Part, results: Sequence[Any]) -> tuple[Any, list[Any]]:
        """A part's (index [N * k], values [N * k, ...]) among f's results on every element."""
        index, values = results[part.index], [results[v] for v in part.values]
        if part.updates > 1 or index.ndim > 1:
            index = index.reshape(-1)
            values = [v.reshape(-1, *v.shape[2:]) for v in values]
        return index, values

    def moves(self, part: Part, values: Sequence[Any], dots: Sequence[Any]) -> list[Any]:
        """The tangents of a part's values, given those of f's results (None: zero, or an integer's)."""
        if all(d is None for d in dots):
            return [None] * len(values)
        return [d if is_inexact(v.dtype) else None for v, d in zip(values, self.pairs(part, dots)[1], strict=True)]

    def unfused(self, operands: Sequence[Any]) -> Iterator[tuple[Part, list[Any], list[Any] | None, Any, list[Any]]]:
        """Each part of an unbatched call, f evaluated: (part, what its operator captures, its dests or None, index, values)."""
        arrays, captured, per_operator, dests = self.split(operands)
        results = self.on_all(arrays, captured)
        for part, consts, dest in zip(self.parts, per_operator, dests, strict=True):
            yield part, consts, dest, *self.pairs(part, results)


@functools.lru_cache(maxsize=512)
def spec_of(
    call: HistogramCall,
    array_avals: tuple[tuple[tuple[int, ...], Any], ...],
    captured: tuple[Any, ...],
    packed: bool = True,
    from_captured: bool = False,
    is_map: bool = False,
) -> HistogramSpec:
    """The kernel's spec. ``array_avals``: shape and dtype of one element of each array (positions too); ``captured``: dtypes.

    ``packed``: may working copies hold another form than the values (which the result's own arrays cannot)? ``from_captured``:
    may they start from captured arrays? ``is_map``: the operator, of which each bin sees one value, is not applied.
    """
    f = call.f.program
    counts = [slots_of(v.aval.shape, v.aval.dtype) for v in call.f.jaxpr.outvars]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(int)
    wide = max(p.num_bins for p in call.parts) >= 2**31 - 1
    index_dtype = "s64" if wide else "s32"

    builder = Builder(f.params)
    parameters = builder.args()
    inlined = builder.inline(f, parameters)
    indices, values, forms, of_lanes = [], [], [], []
    for p in call.parts:
        at = starts[p.index]
        row = inlined[at : at + p.updates]
        indices.append([i if builder.dtype(i) == index_dtype else builder.emit("convert", index_dtype, i) for i in row])
        lanes = None
        if p.operator.lanes > 1:
            lanes = _lanes(call, p)
            assert lanes is not None, "can_fuse said so"
            form = _last(p.operator) if is_map else p.operator.represent(None, keyed=packed)
            given = [builder.inline(Program(f.params, f.body, (*lanes.bases, *lanes.scalars)), parameters)]
            if form.start is not None:
                lanes = dataclasses.replace(lanes, program=chained(lanes.program, form.start))
        else:
            given = [[] for _ in range(p.updates)]
            for v in p.values:
                n = counts[v] // p.updates
                for u, row in enumerate(given):
                    row += inlined[starts[v] + u * n : starts[v] + (u + 1) * n]
            own = call.position_among([builder.body[v] for v in given[0]]) if packed and p.updates == 1 else None
            form = p.operator.represent(own, keyed=packed)
            if form.start is not None:
                given = [builder.inline(form.start, row) for row in given]
        values.append(given)
        forms.append(form)
        of_lanes.append(lanes)
    results = [r for i, v in zip(indices, values, strict=True) for r in i + [s for row in v for s in row]]
    program = builder.finish(results)

    arrays: list[ArraySpec] = []
    keep: list[int] = []
    first = 0
    used = program.used
    for position, (shape, dtype) in zip(call.positions, array_avals, strict=True):
        n = 1 if position is not None else slots_of(shape, dtype)
        mine = [k for k in range(first, first + n) if k in used]
        params = n if n <= 64 else (mine[-1] - first + 1 if mine else 1)
        arrays.append(ArraySpec(scalar_name(dtype), 0 if position is not None else n, params))
        keep += range(first, first + params)
        first += n
    program = rolled(narrowed(program, keep, program.results))
    bins, uniform = [], call.f.captured
    for p, form, lanes in zip(call.parts, forms, of_lanes, strict=True):
        outer = shifted_loads(p.operator.program, uniform) if form.finish is not None and p.dest else None
        op = shifted_loads(form.op, uniform)
        leaves = p.operator.leaf_slots
        part = PartSpec(p.updates, p.operator.lanes, leaves, form.dtypes, op, form.identity, p.dest, form.finish, outer)
        if p.operator.start is not None and from_captured:
            part = dataclasses.replace(part, start=shifted_loads(p.operator.start, uniform))
        bins.append(part if lanes is None else dataclasses.replace(part, rows=lanes.rows, value=lanes.program))
        uniform += p.captured
    return HistogramSpec(index_dtype, tuple(arrays), tuple(scalar_name(d) for d in captured), program, tuple(bins))


def _last(operator: Operator) -> Representation:
    """What is there is replaced."""
    dtypes = tuple(t for t, n in operator.leaf_slots for _ in range(n))
    return Representation(dtypes, last_of(dtypes), operator.identity)


def _lanes(call: HistogramCall, part: Part) -> Lanes | None:
    """How the value of an array-valued part is made, lane by lane; None where it cannot be."""
    counts = [slots_of(v.aval.shape, v.aval.dtype) for v in call.f.jaxpr.outvars]
    arrays = tuple(slots_of(v.aval.shape, v.aval.dtype) for v in call.f.jaxpr.invars)
    (value,) = part.values
    start = sum(counts[:value])
    results = call.f.program.results[start : start + counts[value]]
    return lanes_of(call.f.program, results, counts[value] // part.operator.lanes, arrays)


def can_fuse(call: HistogramCall) -> bool:
    """Values of array-valued bins are made lane by lane: can this f's be? And can all parts be made in one pass?"""
    unknown = any(p.operator.identity is None for p in call.parts)  # then all work on the result's own arrays
    for p in call.parts:
        if unknown and p.operator.represent().finish is not None:
            return False
        if p.operator.lanes > 1 and (p.updates > 1 or _lanes(call, p) is None):
            return False
    return True


def call_spec(call: HistogramCall, avals: Sequence[Any], masks: Sequence[int], target: Target) -> HistogramSpec:
    """The spec of a call with operands of these avals."""
    arrays = call.of_elements(avals, masks)
    count = call.f.captured + sum(p.captured for p in call.parts)
    captured = captured_dtypes(iter(avals[call.num_arrays :]), count)
    is_map = call.is_map(elements_of(avals, masks))
    packed = spec_of(call, arrays, captured, True, target.captures_identities, is_map)
    if all(b.finish is None for b in packed.bins):
        return packed
    if not all(b.has_identity for b in packed.bins):
        plain = True  # whatever N is, known now or not
    else:  # is there a plan that works on the result itself?
        one = spec_of(call, arrays, captured, False, target.captures_identities)
        bins = tuple(p.num_bins for p in call.parts)
        plain = target.in_place(HistogramProblem(one, (), call.plans, elements_of(avals, masks), bins, call.sorted))
    return spec_of(call, arrays, captured, False, target.captures_identities) if plain else packed


def elements_of(avals: Sequence[Any], masks: Sequence[int]) -> Any:
    """N."""
    return avals[0].shape[masks[0].bit_count()]
