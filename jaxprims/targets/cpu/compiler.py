"""From a spec to an entry in the C++ kernel table.

Lowering calls :func:`compiled_hist` or :func:`compiled_scan` so that errors show when a function is compiled. The handlers call
:func:`compile_hist` or :func:`compile_scan`, by the spec's text alone, when an executable came from another process
(``jax.export``, the persistent compilation cache).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence

from llvmlite import ir

from ... import _cpu
from ...ir.program import itemsize
from ...specs import histogram_layout as hist_layout
from ...specs.histogram import HistogramSpec, PartSpec
from ...specs.ordered import OrderedSpec
from .histogram import kernel as llvm_hist
from .llvm import engine as llvm_engine
from .ordered import kernel as llvm_scan

_lock = threading.Lock()
_compiled: dict[tuple[int, int], llvm_engine.Compiled] = {}  # machine code lives as long as the process: executables point to it


def compile_hist(text: str, variant: int) -> None:
    """Enters the spec into the kernel table and, unless ``variant`` is -1, compiles that variant of it."""
    spec = _parsed(text)
    _enter(spec)
    if variant >= 0:
        _variant(spec, variant)


def compiled_hist(spec: HistogramSpec, variant: int) -> llvm_engine.Compiled:
    """The machine code of a variant, compiled if it was not."""
    _enter(spec)
    return _variant(spec, variant)


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> HistogramSpec:
    return HistogramSpec.parse(text)


def _enter(spec: HistogramSpec) -> None:
    added = _cpu.add_hist(
        spec.key, spec.text, [a.slots == 0 for a in spec.arrays], len(spec.uniforms), [described_bins(b) for b in spec.bins]
    )
    if not added:
        raise RuntimeError("two kernel specs have the same hash")


def described_bins(bins: PartSpec) -> dict[str, object]:
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


def _variant(spec: HistogramSpec, variant: int) -> llvm_engine.Compiled:
    decoded, vector_bytes = hist_layout.Variant.decode(variant), llvm_engine.target().vector_bytes
    known = _machine_code(
        (spec.key, variant), lambda: llvm_hist.generate(spec, decoded, vector_bytes), llvm_hist.function_names(spec)
    )
    groups = range(len(spec.bins))
    _cpu.add_hist_variant(
        spec.key,
        variant,
        known.address["update"],
        [known.address[f"fill_{g}"] for g in groups],
        [known.address[f"combine_{g}"] for g in groups],
    )
    return known


def _machine_code(key: tuple[int, int], generate: Callable[[], ir.Module], names: Sequence[str]) -> llvm_engine.Compiled:
    """What was compiled before under ``key``, or now."""
    with _lock:
        known = _compiled.get(key)
    if known is None:
        fresh = llvm_engine.compile_ir(generate(), names)
        with _lock:
            known = _compiled.setdefault(key, fresh)
    return known


def compile_scan(text: str, variant: int) -> None:
    """Like :func:`compile_hist`, of the ordered family: scans, reductions, segmented reductions."""
    spec = _parsed_scan(text)
    _enter_scan(spec)
    if variant >= 0:
        _scan_variant(spec, variant)


def compiled_scan(spec: OrderedSpec, variant: int) -> llvm_engine.Compiled:
    """The machine code of a variant, compiled if it was not."""
    _enter_scan(spec)
    return _scan_variant(spec, variant)


@functools.lru_cache(maxsize=256)
def _parsed_scan(text: str) -> OrderedSpec:
    return OrderedSpec.parse(text)


def _enter_scan(spec: OrderedSpec) -> None:
    if not _cpu.add_scan(spec.key, spec.text, described_scan(spec)):
        raise RuntimeError("two kernel specs have the same hash")


def described_scan(spec: OrderedSpec) -> dict[str, object]:
    return {
        "kind": spec.kind,
        "array_bytes": [itemsize(a.dtype) * a.slots for a in spec.arrays],
        "uniforms": len(spec.uniforms),
        "leaf_bytes": [itemsize(dtype) * slots for dtype, slots in spec.leaves],
        "slot_bytes": [itemsize(dtype) for dtype in spec.state],
        "leaf_slots": [slots for _, slots in spec.leaves],
        "across": spec.across,
        "restarts": spec.restarts,
        "exclusive": spec.exclusive,
        "reverse": spec.reverse,
        "identity": spec.identity is not None,
        "commutes": spec.commutes,
    }


def _scan_variant(spec: OrderedSpec, variant: int) -> llvm_engine.Compiled:
    names, vector_bytes = llvm_scan.function_names(spec, variant), llvm_engine.target().vector_bytes
    known = _machine_code((spec.key, variant), lambda: llvm_scan.generate(spec, variant, vector_bytes), names)
    functions = ("scan", "reduce", "combine", "finish", "runs")
    _cpu.add_scan_variant(spec.key, variant, *(known.address.get(name, 0) for name in functions))
    return known
