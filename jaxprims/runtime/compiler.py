"""From a spec to an entry in the C++ kernel table.

Lowering calls :func:`compile_hist` so that errors show when a function is compiled. The handler calls it, by the spec's text
alone, when an executable came from another process (``jax.export``, the persistent compilation cache).
"""

from __future__ import annotations

import functools
import threading

from .. import _cpu
from ..codegen import hist_layout, llvm_engine, llvm_hist
from ..codegen.spec import BinsSpec, HistSpec
from ..frontend.program import itemsize

_lock = threading.Lock()
_compiled: dict[tuple[int, int], llvm_engine.Compiled] = {}  # machine code lives as long as the process: executables point to it


def compile_hist(text: str, variant: int) -> None:
    """Enters the spec into the kernel table and, unless ``variant`` is -1, compiles that variant of it."""
    spec = _parsed(text)
    _enter(spec)
    if variant >= 0:
        _variant(spec, variant)


def compiled_hist(spec: HistSpec, variant: int) -> llvm_engine.Compiled:
    """The machine code of a variant, compiled if it was not."""
    _enter(spec)
    return _variant(spec, variant)


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> HistSpec:
    return HistSpec.parse(text)


def _enter(spec: HistSpec) -> None:
    added = _cpu.add_hist(
        spec.key, spec.text, [a.slots == 0 for a in spec.arrays], len(spec.uniforms), [_described(b) for b in spec.bins]
    )
    if not added:
        raise RuntimeError("two kernel specs have the same hash")


def _described(bins: BinsSpec) -> dict[str, object]:
    return {
        "leaf_bytes": [itemsize(dtype) * slots * bins.lanes for dtype, slots in bins.leaves],
        "entry_bytes": hist_layout.slot_offsets(bins)[1] * bins.lanes,
        "lanes": bins.lanes,
        "updates": bins.updates,
        "slots": bins.slots,
        "dest": bins.dest,
        "identity": bins.identity is not None,
        "in_place": bins.finish is None,
    }


def _variant(spec: HistSpec, variant: int) -> llvm_engine.Compiled:
    key = (spec.key, variant)
    with _lock:
        known = _compiled.get(key)
    if known is None:
        module = llvm_hist.generate(spec, hist_layout.Variant.decode(variant), llvm_engine.target().vector_bytes)
        fresh = llvm_engine.compile_ir(module, llvm_hist.function_names(spec))
        with _lock:
            known = _compiled.setdefault(key, fresh)
    groups = range(len(spec.bins))
    _cpu.add_hist_variant(
        spec.key,
        variant,
        known.address["update"],
        [known.address[f"fill_{g}"] for g in groups],
        [known.address[f"combine_{g}"] for g in groups],
    )
    return known
