"""What drivers and launchers have to know of a spec, as their C++ reads it: on every target the same. Of its calls' operands and
results too: handlers compare them with what a call has (``ffi/signature.h``), for an executable that was serialized may have been
edited since."""

from __future__ import annotations

import functools
import math
from typing import Any

from ..ir.choices import replaces
from ..ir.program import Program, itemsize
from ..ir.reach import reach
from ..ir.work import work
from .elements import scalars_of
from .histogram import HistogramSpec, PartSpec
from .histogram_layout import slot_offsets
from .large import LargeSpec
from .ordered import OrderedSpec
from .stencil import StencilSpec
from .walk import WalkSpec


def described_part(part: PartSpec) -> dict[str, Any]:
    """Of a part of a histogram."""
    return {
        "leaf_bytes": [itemsize(dtype) * slots * part.lanes for dtype, slots in part.leaves],
        "entry_bytes": slot_offsets(part)[1] * part.lanes,
        "lanes": part.lanes,
        "updates": part.updates,
        "slots": part.slots,
        "dest": part.dest,
        "identity": part.has_identity,
        "in_place": part.finish is None,
    }


def histogram_work(spec: HistogramSpec) -> int:
    """What an element costs beside updates by a cheap operator, in these: f on vectors, operators one by one, of rows on
    vectors."""
    return work(spec.f) // 16 + sum(b.updates * (work(b.op) // 6) * -(-b.lanes // 16) for b in spec.bins)


def chooses(spec: HistogramSpec) -> bool:
    """Does an operator give one of its arguments, whole?"""
    return any(b.lanes == 1 and replaces(b.op) is not None for b in spec.bins)


VECTORS = 64
"""Operations of a function of a row, in vectors, that take as long as a word of a large element."""


def ordered_work(spec: OrderedSpec) -> int:
    """What a slot of an element costs, in that of a sum."""
    if isinstance(spec, LargeSpec):
        made = spec.element.nests if spec.is_map and spec.element is not None else ()  # of operators it is not known
        turns = sum(math.prod(n.extents) * (1 + work(n.body)) for n in made)
        return 1 + turns // (VECTORS * spec.together * len(spec.state))
    programs = [spec.f, spec.op]
    return 1 + sum(map(work, programs)) // (16 * max(1, len(spec.state)))


def described_histogram(spec: HistogramSpec) -> dict[str, Any]:
    """Of a histogram's kernel."""
    return {
        "positions": [a.slots == 0 for a in spec.arrays],
        "index64": spec.index == "s64",
        "parts": [described_part(b) for b in spec.bins],
        "map": spec.is_map,
        "chooses": chooses(spec),
        "work": histogram_work(spec),
        "signature": signature(spec),
    }


def described_ordered(spec: OrderedSpec) -> dict[str, Any]:
    """Of a kernel of the ordered family."""
    return {
        "kind": spec.family,
        "array_bytes": [itemsize(a.dtype) * a.slots for a in spec.arrays],
        "uniforms": len(spec.uniforms),
        "leaf_bytes": [itemsize(dtype) * slots for dtype, slots in spec.leaves],
        "slot_bytes": [itemsize(dtype) for dtype in spec.state],
        "parts": [(n, itemsize(dtype) * n) for dtype, n in spec.parts] if isinstance(spec, LargeSpec) else [],
        "leaf_slots": [slots for _, slots in spec.leaves],
        "across": spec.across,
        "restarts": spec.restarts,
        "exclusive": spec.exclusive,
        "reverse": spec.reverse,
        "identity": spec.identity is not None,
        "commutes": spec.commutes,
        "map": spec.is_map,
        "together": spec.together if isinstance(spec, LargeSpec) else 1,
        "work": ordered_work(spec),
        "signature": signature(spec),
    }


def described_stencil(spec: StencilSpec, width: int, work: int) -> dict[str, Any]:
    """What drivers have to know of a spec whose kernel's vectors have so many lanes, and so many instructions."""
    return {
        "rank": spec.rank,
        "unit": spec.unit,
        "width": width,
        "work": work,
        "array_bytes": [itemsize(dtype) * slots for dtype, slots in spec.arrays],
        "leaf_bytes": [itemsize(dtype) * slots for dtype, slots in spec.leaves],
        "coordinates": bool(spec.coordinates),
        "may_not_end": spec.f.may_not_end,
        "rows": [(array, list(offsets)) for array, offsets in spec.rows],
        "reads": [(spec.rows.index((array, offsets[:-1])), offsets[-1]) for array, offsets in spec.reads],
        "signature": signature(spec),
    }


def described_walk(spec: WalkSpec) -> dict[str, Any]:
    """Of a walk's kernel."""
    offsets, size = spec.layout
    return {
        "index64": spec.index == "s64",
        "entry_bytes": size,
        "slot_offsets": offsets,
        "slot_bytes": [itemsize(dtype) for dtype in scalars_of(spec.state)],
        "state_slots": [slots for _, slots in spec.state],
        "signature": signature(spec),
    }


@functools.lru_cache(maxsize=512)
def signature(spec: HistogramSpec | OrderedSpec | StencilSpec | WalkSpec) -> dict[str, Any]:
    """Of a spec that is checked here. Dtypes are a Program's; a complex number is two scalars. By name:

    ``arrays`` (dtype, scalars of one element), those that are operands; ``uniforms`` (dtype, scalars that are read at most);
    ``leaves`` (dtype, scalars of one element or bin), of results; ``state``: dtypes of what init starts.
    """
    spec.check()
    if isinstance(spec, StencilSpec | WalkSpec):
        read = reach([spec.f if isinstance(spec, StencilSpec) else spec.step], len(spec.uniforms))
        return {
            "arrays": list(spec.arrays),
            "uniforms": list(zip(spec.uniforms, read, strict=True)),
            "leaves": list(spec.leaves),
            "state": list(scalars_of(spec.state)) if isinstance(spec, WalkSpec) else [],
        }
    programs: list[Program | None]
    if isinstance(spec, HistogramSpec):
        programs = [spec.reads, *(p for b in spec.bins for p in (b.op, b.outer, b.start))]
        leaves = [(dtype, slots * b.lanes) for b in spec.bins for dtype, slots in b.leaves]
    elif isinstance(spec, LargeSpec):
        programs, leaves = [], list(spec.leaves)
    else:
        programs = [spec.f, spec.op, spec.finish]
        leaves = list(spec.leaves)
    read = reach([p for p in programs if p is not None], len(spec.uniforms))
    state = [] if isinstance(spec, HistogramSpec) else list(spec.state)
    if isinstance(spec, LargeSpec):
        read, state = [size for _, size in spec.uniform_arrays], list(scalars_of(spec.parts))
    return {
        "arrays": [(a.dtype, a.slots) for a in spec.arrays if a.slots],
        "uniforms": list(zip(spec.uniforms, read, strict=True)),
        "leaves": leaves,
        "state": state,
    }
