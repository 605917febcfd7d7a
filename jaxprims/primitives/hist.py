"""``hist_p``: the generalized histogram as a jax primitive (paper 1's genhist).

Operands: the arrays (those that are not positions), the captured arrays of f, those of each part's operator, and the dests,
leaf by leaf, of the parts that have them. Any operand may have any subset of the batch axes, leading; what is not batched is
not copied. Results: the leaves of each part, ``[*batch, num_bins, *bin_shape]``.

A *part* is what a kernel updates as one: a histogram of a struct of scalars or of one array-valued leaf.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir, xla

from ..codegen.spec import ArraySpec, BinsSpec, HistSpec
from ..frontend.operator import Operator, Traced, scalar_name, slots_of
from ..frontend.program import Builder, Program, shifted_loads
from ..frontend.varying import axes_of, vary
from ..runtime import ffi, planning
from ..runtime.targets import CPU, CUDA, Target
from . import hist_sorted, hist_xla
from .avals import result_aval
from .batches import batch_shape, batched_alike, over_batch

hist_p = Primitive("generalized_histogram")
hist_p.multiple_results = True


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


@dataclasses.dataclass(frozen=True)
class Hist:
    """The static half of a call."""

    f: Traced
    parts: tuple[Part, ...]
    positions: tuple[np.dtype | None, ...]  # for each of f's arguments: the dtype if it is the element's position
    sorted: bool = False  # the first argument's values, the indices, ascend
    deterministic: bool = False  # the same bits on every run, wherever it runs
    plan: tuple[int, ...] = ()  # empty: chosen; else (M, S, C, soa, prefetch)

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self.parts))}]"

    @property
    def num_arrays(self) -> int:
        return sum(p is None for p in self.positions)

    def split(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[list[Any]], list[list[Any] | None]]:
        """Operands as (arrays, f's captured arrays, each operator's, each part's dests or None)."""
        rest = list(operands)

        def take(n: int) -> list[Any]:
            taken, rest[:] = rest[:n], rest[n:]
            return taken

        arrays, captured = take(self.num_arrays), take(self.f.captured)
        per_operator = [take(p.captured) for p in self.parts]
        dests = [take(len(p.values)) if p.dest else None for p in self.parts]
        return arrays, captured, per_operator, dests

    def elements(self, arrays: Sequence[Any], captured: Sequence[Any]) -> list[Any]:
        """f on every element, unfused: its results with a leading axis [N]. What differentiation and plain XLA start from."""
        rest = iter(arrays)
        n = arrays[0].shape[0]
        axes = axes_of(arrays)
        full = [vary(jnp.arange(n, dtype=p), axes) if p is not None else next(rest) for p in self.positions]
        return jax.vmap(lambda *xs: self.f(captured, *xs))(*full)

    def pairs(self, part: Part, results: Sequence[Any]) -> tuple[Any, list[Any]]:
        """A part's (index [N * k], values [N * k, ...]) among f's results on every element."""
        index, values = results[part.index], [results[v] for v in part.values]
        if part.updates > 1 or index.ndim > 1:
            index = index.reshape(-1)
            values = [v.reshape(-1, *v.shape[2:]) for v in values]
        return index, values

    def unfused(self, operands: Sequence[Any]) -> Iterator[tuple[Part, list[Any], list[Any] | None, Any, list[Any]]]:
        """Each part of an unbatched call, f evaluated: (part, what its operator captures, its dests or None, index, values)."""
        arrays, captured, per_operator, dests = self.split(operands)
        results = self.elements(arrays, captured)
        for part, consts, dest in zip(self.parts, per_operator, dests, strict=True):
            yield part, consts, dest, *self.pairs(part, results)


@functools.lru_cache(maxsize=512)
def spec_of(
    hist: Hist, array_avals: tuple[tuple[tuple[int, ...], Any], ...], captured: tuple[Any, ...], packed: bool = True
) -> HistSpec:
    """The kernel's spec. ``array_avals``: shape and dtype of one element of each array (positions too); ``captured``: dtypes.

    ``packed``: may working copies hold another form than the values (which the result's own arrays cannot)?
    """
    f = hist.f.program
    counts = [slots_of(v.aval.shape, v.aval.dtype) for v in hist.f.jaxpr.outvars]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(int)
    wide = max(p.num_bins for p in hist.parts) >= 2**31 - 1
    index_dtype = "s64" if wide else "s32"

    builder = Builder(f.params)
    inlined = builder.inline(f, [builder.arg(k) for k in range(len(f.params))])
    first_of = np.concatenate([[0], np.cumsum([slots_of(v.aval.shape, v.aval.dtype) for v in hist.f.jaxpr.invars])])
    narrow_positions = {int(k) for k, t in zip(first_of, hist.positions, strict=False) if t == np.int32}
    indices, values, forms = [], [], []
    for p in hist.parts:
        at = starts[p.index]
        row = inlined[at : at + p.updates]
        indices.append([i if builder.dtype(i) == index_dtype else builder.emit("convert", index_dtype, i) for i in row])
        rows = []
        for u in range(p.updates):
            row = []
            for v in p.values:
                n = counts[v] // p.updates if p.operator.lanes == 1 else counts[v] // p.operator.lanes
                row += inlined[starts[v] + u * n : starts[v] + (u + 1) * n]
            rows.append(row)
        second = builder.body[rows[0][1]] if len(rows[0]) > 1 else None
        ordered = second is not None and second.op == "arg" and second.attr in narrow_positions
        form = p.operator.represent(packed and p.updates == 1 and ordered)
        if form.start is not None and p.operator.lanes == 1:  # lanes are read, and converted, by the kernel
            rows = [builder.inline(form.start, row) for row in rows]
        forms.append(form)
        values.append(rows)
    results = [r for i, v in zip(indices, values, strict=True) for r in i + [s for row in v for s in row]]
    program = builder.finish(results)

    arrays: list[ArraySpec] = []
    keep: list[int] = []
    first = 0
    used = {i.attr for i in program.body if i.op == "arg"}
    for position, (shape, dtype) in zip(hist.positions, array_avals, strict=True):
        n = 1 if position is not None else slots_of(shape, dtype)
        mine = [k for k in range(first, first + n) if k in used]
        params = n if n <= 64 else (mine[-1] - first + 1 if mine else 1)
        arrays.append(ArraySpec(scalar_name(dtype), 0 if position is not None else n, params))
        keep += range(first, first + params)
        first += n
    program = _with_params(program, keep)
    bins, uniform = [], hist.f.captured
    for p, form in zip(hist.parts, forms, strict=True):
        outer = shifted_loads(p.operator.program, uniform) if form.finish is not None and p.dest else None
        op = shifted_loads(form.op, uniform)
        leaves = p.operator.leaf_slots
        bins.append(BinsSpec(p.updates, p.operator.lanes, leaves, form.dtypes, op, form.identity, p.dest, form.finish, outer))
        uniform += p.captured
    return HistSpec(index_dtype, tuple(arrays), tuple(scalar_name(d) for d in captured), program, tuple(bins))


def _with_params(p: Program, keep: Sequence[int]) -> Program:
    """The program with only these of its parameters."""
    if len(keep) == len(p.params):
        return p
    b = Builder([p.params[k] for k in keep])
    place = {k: i for i, k in enumerate(keep)}
    return b.finish(b.inline(p, [b.arg(place[k]) if k in place else -1 for k in range(len(p.params))]))


def can_fuse(hist: Hist) -> bool:
    """Array-valued bins take their values from memory: can this f's be found there, lane after lane? And can all parts be made in
    one pass?"""
    f = hist.f.program
    counts = [slots_of(v.aval.shape, v.aval.dtype) for v in hist.f.jaxpr.outvars]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(int)
    first_params = np.concatenate([[0], np.cumsum([slots_of(v.aval.shape, v.aval.dtype) for v in hist.f.jaxpr.invars])]).astype(
        int
    )
    unknown = any(p.operator.identity is None for p in hist.parts)  # then all work on the result's own arrays
    for p in hist.parts:
        if unknown and p.operator.represent(ordered=False).finish is not None:
            return False
        if p.operator.lanes == 1:
            continue
        if p.updates > 1:
            return False
        results = [f.body[r] for r in f.results[starts[p.values[0]] : starts[p.values[0] + 1]]]
        if any(r.op != "arg" for r in results):
            return False
        numbers = [r.attr for r in results]
        if numbers[0] not in first_params or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            return False
        array = int(np.searchsorted(first_params, numbers[0]))
        if first_params[array + 1] - first_params[array] != len(numbers):
            return False
    return True


# --- the primitive ----------------------------------------------------------------------------------------------------


def bind(hist: Hist, operands: Sequence[Any]) -> list[jax.Array]:
    """Binds the primitive on unbatched operands. Under ``shard_map``, what is replicated is first made to vary like the rest."""
    operands = [jnp.asarray(x) for x in operands]
    axes = axes_of(operands)
    first = hist.num_arrays
    last = first + hist.f.captured + sum(p.captured for p in hist.parts)  # f and the operators make their captured arrays vary
    operands = [x if first <= k < last else vary(x, axes) for k, x in enumerate(operands)]
    return hist_p.bind(*operands, hist=hist, masks=(0,) * len(operands), rank=0)


@hist_p.def_abstract_eval
def _abstract_eval(*avals: Any, hist: Hist, masks: tuple[int, ...], rank: int) -> list[Any]:
    batch = batch_shape(avals, masks, rank)
    return [
        result_aval(avals[0], (*batch, p.num_bins, *shape), dtype, masks[0].bit_count() if masks[0] == (1 << rank) - 1 else 0)
        for p in hist.parts
        for shape, dtype in zip(p.operator.shapes, p.operator.dtypes, strict=True)
    ]


hist_p.def_impl(functools.partial(xla.apply_primitive, hist_p))


def _batch(
    operands: Sequence[Any], dims: Sequence[Any], *, hist: Hist, masks: tuple[int, ...], rank: int
) -> tuple[list[Any], list[int]]:
    """A new, outermost batch axis: bit 0 of the masks."""
    moved, new = [], []
    for x, d, mask in zip(operands, dims, masks, strict=True):
        moved.append(x if d is None else jnp.moveaxis(x, d, 0))
        new.append(mask << 1 | (d is not None))
    out = hist_p.bind(*moved, hist=hist, masks=tuple(new), rank=rank + 1)
    return out, [0] * len(out)


batching.primitive_batchers[hist_p] = _batch


# --- lowering ---------------------------------------------------------------------------------------------------------


def call_spec(hist: Hist, avals: Sequence[Any], masks: Sequence[int], target: Target = CPU) -> HistSpec:
    """The spec of a call with operands of these avals."""
    rest = iter(zip(avals, masks, strict=True))
    arrays: list[tuple[tuple[int, ...], Any]] = []
    for position in hist.positions:
        if position is not None:
            arrays.append(((), position))
        else:
            aval, mask = next(rest)
            arrays.append((tuple(aval.shape[mask.bit_count() + 1 :]), np.dtype(aval.dtype)))
    count = hist.f.captured + sum(p.captured for p in hist.parts)
    captured = tuple(np.dtype(next(rest)[0].dtype) for _ in range(count))
    packed = spec_of(hist, tuple(arrays), captured)
    if all(b.finish is None for b in packed.bins):
        return packed
    n = elements_of(hist, avals, masks)
    bins = [p.num_bins for p in hist.parts]
    if any(b.identity is None for b in packed.bins):
        plain = True  # whatever N is, known now or not
    else:  # is there a plan that works on the result itself?
        one = spec_of(hist, tuple(arrays), captured, packed=False)
        plain = target.in_place(one, n, bins, hist.sorted, hist.plan)
    return spec_of(hist, tuple(arrays), captured, packed=False) if plain else packed


def elements_of(hist: Hist, avals: Sequence[Any], masks: Sequence[int]) -> Any:
    """N."""
    return avals[0].shape[masks[0].bit_count()]


def _lower(ctx: Any, *operands: Any, hist: Hist, masks: tuple[int, ...], rank: int, target: Target) -> Any:
    full = ((1 << rank) - 1,) * len(masks)
    if tuple(masks) != full and getattr(ctx.module_context.axis_context, "num_devices", 1) > 1:
        # XLA's partitioner splits a batch over devices only where every operand has it; the copies are split with it.
        alike = functools.partial(batched_alike, masks=masks, rank=rank)
        return mlir.lower_fun(lambda *xs: hist_p.bind(*alike(xs), hist=hist, masks=full, rank=rank))(ctx, *operands)
    if target.sorts(hist.sorted, hist.deterministic):
        by_segments = over_batch(functools.partial(hist_sorted.histograms, hist), masks, rank)
        return mlir.lower_fun(by_segments, multiple_results=True)(ctx, *operands)
    spec = call_spec(hist, ctx.avals_in, masks, target)
    n = elements_of(hist, ctx.avals_in, masks)
    batch = batch_shape(ctx.avals_in, masks, rank)
    bins = [p.num_bins for p in hist.parts]

    def variant() -> int:
        known = all(isinstance(size, int) for size in (n, *batch))
        return planning.plan_of(spec, n, bins, batch, hist.sorted, hist.plan).variant if known else -1

    target.compile(spec, variant)
    sorted_indices = -1
    if hist.sorted and spec.arrays[0].dtype == spec.index:
        sorted_indices = (1 << 16) if spec.index == "s64" else 0
    workspace = target.workspace("hist", spec, batch, n, bins)
    return ffi.lower_call(
        ctx,
        ffi.HIST,
        operands,
        spec,
        masks,
        rank,
        hist.plan,
        workspace,
        elements_of=hist.positions.index(None),
        sorted=sorted_indices,
    )


def _plain(*operands: Any, hist: Hist, masks: tuple[int, ...], rank: int) -> list[Any]:
    return over_batch(functools.partial(hist_xla.histograms, hist), masks, rank)(*operands)


mlir.register_lowering(hist_p, mlir.lower_fun(_plain, multiple_results=True))
for _target in (CPU, CUDA):
    mlir.register_lowering(hist_p, functools.partial(_lower, target=_target), platform=_target.platform)
