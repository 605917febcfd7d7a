"""From a spec to a cubin: kept in memory, then on disk, then compiled.

The CUDA half's launcher calls :func:`describe` and :func:`image`, by the spec's text alone, for the kernels that it is about to
launch: which of a spec's kernels these are depends on sizes and device.
"""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

from ... import _cpu
from ...ir.program import itemsize
from ...specs.histogram import HistogramSpec, PartSpec
from ...specs.ordered import OrderedSpec
from .. import kernel_cache as cubins
from ..cpu import compiler
from . import expr as cuda_expr
from . import histogram_source as cuda_hist_source
from . import nvrtc
from . import ordered_source as cuda_scan_source
from . import source as cuda_source

Spec = HistogramSpec | OrderedSpec


def _skeletons() -> Path:
    """The folder of kernel skeletons: in a source tree beside the package, else installed with the extension."""
    tree = Path(__file__).parents[3] / "cuda"
    return tree if (tree / "device.cuh").exists() else Path(_cpu.__file__).parent / "cuda"


skeleton_folders: list[Path] = [_skeletons()]
"""Where ``#include`` lines find their files; the first that has one."""

_lock = threading.Lock()
_known: dict[tuple[str, str, str], nvrtc.Compiled] = {}


@functools.lru_cache(maxsize=256)
def source(spec: Spec) -> str:
    """The kernels of a spec as one text of CUDA C++."""
    text = cuda_source.hist_source(spec) if isinstance(spec, HistogramSpec) else cuda_source.scan_source(spec)
    return cuda_source.expanded(text, skeleton_folders)


def kernels(spec: Spec) -> list[str]:
    """The names of a spec's kernels."""
    return cuda_source.kernels_of(source(spec))


def cubin(spec: Spec, arch: str, kernel: str) -> nvrtc.Compiled:
    """One of a spec's kernels for an architecture. Raises ``nvrtc.Unavailable`` and what NVRTC has to say."""
    key = (spec.text, arch, kernel)
    with _lock:
        known = _known.get(key)
    if known is not None:
        return known
    text = cuda_source.only(source(spec), kernel)
    name = cubins.name_of(text, arch, nvrtc.version())
    fresh = cubins.read(name)
    if fresh is None:
        fresh = _without_spills(text, arch)
        cubins.write(name, fresh)
    with _lock:
        return _known.setdefault(key, fresh)


def _without_spills(text: str, arch: str) -> nvrtc.Compiled:
    """A kernel whose operator or f wants more registers than its plan foresaw gets them, at the price of resident blocks."""

    def spilled(compiled: nvrtc.Compiled) -> int:
        return sum(used.spill_bytes for used in compiled.resources)

    first = nvrtc.compile_cubin(text, arch)
    if not spilled(first):
        return first
    return min(first, nvrtc.compile_cubin(f"#define JP_ONE_RESIDENT\n{text}", arch), key=spilled)


@functools.lru_cache(maxsize=256)
def parse(kind: str, text: str) -> Spec:
    """A spec from its text; ``kind``: "hist", or anything else for the ordered family."""
    return HistogramSpec.parse(text) if kind == "hist" else OrderedSpec.parse(text)


def image(kind: str, text: str, arch: str, kernel: str) -> bytes:
    """A kernel's cubin, for the launcher."""
    return cubin(parse(kind, text), arch, kernel).image


def describe(kind: str, text: str, arch: str) -> dict[str, Any]:
    """What the launcher has to know of a spec."""
    return described(parse(kind, text), int(arch.removeprefix("sm_")))


@functools.lru_cache(maxsize=256)
def _described(spec: Spec, arch: int) -> dict[str, Any]:
    if isinstance(spec, OrderedSpec):
        return {**compiler.described_scan(spec), "state_bytes": cuda_scan_source.state_bytes(spec)}
    return {
        "positions": [a.slots == 0 for a in spec.arrays],
        "uniforms": len(spec.uniforms),
        "in_bytes": sum(itemsize(a.dtype) * a.slots for a in spec.arrays),
        "index64": spec.index == "s64",
        "f_length": cuda_expr.length(spec.f),
        "parts": [_described_part(b, arch) for b in spec.bins],
    }


def described(spec: Spec, arch: int) -> dict[str, Any]:
    """What the launcher has to know of a spec on an architecture (90 for "sm_90")."""
    return dict(_described(spec, arch))


ATOMICS = ("HDW", "CAS", "XCG")


def _described_part(bins: PartSpec, arch: int) -> dict[str, Any]:
    return {
        **compiler.described_bins(bins),
        "table_bytes": cuda_hist_source.entry_bytes(bins, arch),
        "atomic": ATOMICS.index(cuda_hist_source.atomic_of(bins, arch)),
        "direct": cuda_hist_source.is_direct(bins, arch),
        "slot_bytes": [itemsize(t) for t in bins.acc],
    }
