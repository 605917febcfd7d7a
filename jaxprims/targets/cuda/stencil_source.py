"""StencilSpec -> ``namespace spec`` of a stencil's kernels, as CUDA C++: all that their skeleton (cuda/kernels/stencil) does not
know itself. A grid of one axis gets a first one of a single cell, as its drivers see it."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.program import itemsize
from ...specs.stencil import StencilSpec
from .elements import function, namespace, numbers, operands, plus, slots, struct, times, uniforms_parameter
from .expr import length, statements
from .types import from_memory, memory_type, register_type, to_memory

SHORT = 80
"""Instructions and reads of a function of which four cells are made together; of one of twice as many, two."""

RESIDENT = 160
"""Up to so many, two blocks' threads find their registers in a multiprocessor."""

MOST_BYTES = 4096
"""Of a kernel's parameter."""

MOST_UNIT = 1 << 20
"""Lanes of a cell (kMostUnit in cuda/launcher/stencil_launch.h)."""

MOST_WORK = 20_000
"""Instructions and reads of a cell."""


def work(spec: StencilSpec) -> int:
    """Instructions and reads of a cell."""
    return length(spec.f) + sum(spec.arrays[array][1] for array, _ in spec.reads)


def column(spec: StencilSpec) -> int:
    """Cells that a thread makes together."""
    return 4 if work(spec) <= SHORT else 2 if work(spec) <= 2 * SHORT else 1


def loads_of_column(spec: StencilSpec) -> int:
    """Slots that a column's cells read: what two of them read is loaded once."""
    ahead = range(column(spec)) if spec.rank > 1 else (0,)
    found = {(array, (offsets[0] + k, *offsets[1:])) for array, offsets in spec.reads for k in ahead}
    alone = 1 if spec.rank > 1 else column(spec)
    return alone * sum(spec.arrays[array][1] for array, _ in found)


def resident(spec: StencilSpec) -> int:
    """Blocks of a multiprocessor that registers suffice for."""
    return 1 + (work(spec) <= RESIDENT)


def takes(spec: StencilSpec) -> bool:
    """Is there a kernel? Its parameter has an end, and so has what a compiler should see at once."""
    rank, arrays = max(spec.rank, 2), len(spec.arrays)
    words = 9 + 5 * (arrays + max(1, len(spec.uniforms)) + len(spec.leaves)) + arrays * (2 + 4 * rank) + 15 * rank
    return 8 * words <= MOST_BYTES and spec.unit <= MOST_UNIT and work(spec) <= MOST_WORK


def is_alike(spec: StencilSpec) -> bool:
    """Are results like the first arrays, so that they may take their place?"""
    return spec.leaves == spec.arrays[: len(spec.leaves)]


def generated(spec: StencilSpec) -> str:
    """``namespace spec``."""
    return namespace(_lines(spec))


def _lines(spec: StencilSpec) -> Iterator[str]:
    flat = spec.rank == 1
    reads = [(array, (0, *offsets) if flat else offsets) for array, offsets in spec.reads] or [(0, (0,) * (spec.rank + flat))]
    yield numbers("int", {
        "Rank": spec.rank + flat, "Unit": spec.unit, "Arrays": len(spec.arrays), "Uniforms": len(spec.uniforms),
        "Leaves": len(spec.leaves), "Reads": len(spec.reads), "Column": column(spec), "Resident": resident(spec),
    })  # fmt: skip
    yield numbers("bool", {"Flat": flat, "Told": bool(spec.coordinates)})
    yield f"constexpr int kArrayOf[] = {{{', '.join(str(array) for array, _ in reads)}}};"
    rows = ", ".join("{" + ", ".join(map(str, offsets)) + "}" for _, offsets in reads)
    yield f"constexpr int kOffsets[][{spec.rank + flat}] = {{{rows}}};"
    yield ""
    yield from struct("Result", slots(spec.f.result_dtypes))
    yield from operands("Arrays", "a", [(k, t) for k, (t, _) in enumerate(spec.arrays)], "const ")
    yield from operands("Uniforms", "u", list(enumerate(spec.uniforms)), "const ")
    yield from operands("Outs", "o", [(k, t) for k, (t, _) in enumerate(spec.leaves)], "")
    yield ""
    yield from _function(spec)
    yield from _memory(spec)
    if is_alike(spec):
        yield from _tile(spec)


def _function(spec: StencilSpec) -> Iterator[str]:
    """f of what ``in`` finds of each read."""
    uses: dict[int, int] = {}
    params = {k: i.attr for k, i in enumerate(spec.f.body) if i.op == "arg"}
    for used in (*(o for i in spec.f.body for o in i.operands), *spec.f.results):
        if used in params:
            uses[params[used]] = uses.get(params[used], 0) + 1
    args: list[str] = []
    lines: list[str] = []
    for r, (array, _) in enumerate(spec.reads):
        dtype, count = spec.arrays[array]
        for s in range(count):
            p = len(args)
            value = from_memory(f"in.template At<{r}, {array}, {count}, {s}>(in.from.arrays.a{array})", dtype)
            if uses.get(p, 0) > 1:  # else it is read where it is used
                lines.append(f"  const {register_type(dtype)} x{p} = {value};")
                value = f"x{p}"
            args.append(value)
    args += [f"told[{axis + (spec.rank == 1)}]" for axis in spec.coordinates]
    body, results = statements(spec.f, args)
    head = f"JP_DEVICE Result F({uniforms_parameter(spec.f)}, const In& in, const i32* told)"
    yield "template <class In>"
    yield from function(head, [*lines, *body, f"  return {{{', '.join(results)}}};"])


def _memory(spec: StencilSpec) -> Iterator[str]:
    """Results to memory, and, of cells that keep their value, arrays as results."""
    stores, kept, slot = [], [], 0
    for k, (dtype, count) in enumerate(spec.leaves):
        for s in range(count):
            stores.append(f"  out.o{k}[{plus(times('lane', count), s)}] = {to_memory(f'r.s{slot}', dtype)};")
            kept.append(from_memory(f"in.a{k}[{plus(times(f'lane[{k}]', count), s)}]", dtype))
            slot += 1
    yield from function("JP_DEVICE void Store(const Outs& out, i64 lane, const Result& r)", stores)
    if is_alike(spec):
        head = "JP_DEVICE Result Kept(const Arrays& in, const i64* lane)"
        yield from function(head, [f"  return {{{', '.join(kept)}}};"])
    else:  # which no call asks for
        yield from function("JP_DEVICE Result Kept(const Arrays&, const i64*)", ["  return {};"])


def lane_bytes(spec: StencilSpec) -> list[int]:
    """Of one lane of each result."""
    return [itemsize(dtype) * count for dtype, count in spec.leaves]


def _tile(spec: StencilSpec) -> Iterator[str]:
    """The arrays that steps change in shared memory, one behind the other."""
    sizes = [f"TileBytes(lanes, {size})" for size in lane_bytes(spec)]
    starts = [" + ".join(["shared", *sizes[:k]]) for k in range(len(sizes))]
    places = [f"reinterpret_cast<{memory_type(t)}*>({start})" for start, (t, _) in zip(starts, spec.leaves, strict=True)]
    arrays = [f"{'tile.o' if k < len(spec.leaves) else 'in.a'}{k}" for k in range(len(spec.arrays))]
    yield from function("JP_DEVICE i64 BytesOfTile(i64 lanes)", [f"  return {' + '.join(sizes)};"])
    yield from function("JP_DEVICE Outs TileOf(char* shared, i64 lanes)", [f"  return {{{', '.join(places)}}};"])
    yield from function("JP_DEVICE Arrays InTile(const Arrays& in, const Outs& tile)", [f"  return {{{', '.join(arrays)}}};"])
    lines = []
    for k, (dtype, count) in enumerate(spec.leaves):
        for s in range(count):
            to, source = plus(times("to", count), s), plus(times(f"lane[{k}]", count), s)
            if itemsize(dtype) in (4, 8):
                lines.append(f"  CopyAsync<{itemsize(dtype)}>(tile.o{k} + {to}, in.a{k} + {source});")
            else:
                lines.append(f"  tile.o{k}[{to}] = LoadConstant(in.a{k} + {source});")
    yield from function("JP_DEVICE void Fetch(const Arrays& in, const i64* lane, const Outs& tile, i64 to)", lines)
