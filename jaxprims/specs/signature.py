"""What a spec says of its calls' operands and results: derived from it once, and compared by the handlers, of every target, with
what a call has (``ffi/signature.h``). An executable that was serialized may have been edited since."""

from __future__ import annotations

import functools
from typing import Any

from ..ir.program import Program
from ..ir.reach import reach
from .elements import scalars_of
from .histogram import HistogramSpec
from .large import LargeSpec
from .ordered import OrderedSpec
from .stencil import StencilSpec
from .walk import WalkSpec


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
