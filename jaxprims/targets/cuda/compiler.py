"""From a spec to a cubin: kept in memory, then on disk, then compiled.

The CUDA half's launcher calls :func:`describe` and :func:`image`, by the spec's text alone, for the kernels that it is about to
launch: which of a spec's kernels these are depends on sizes and device.
"""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any, Protocol

from ... import _cpu
from ...specs.kernel import KernelSpec, parse
from .. import kernel_cache
from . import nvrtc
from . import source as cuda_source


class Kind(Protocol):
    """What is asked of a kind of spec."""

    def source(self, spec: Any) -> str:
        """Its kernels as CUDA C++, includes not expanded."""

    def described(self, spec: Any, arch: int) -> dict[str, Any]:
        """What the launcher has to know of it on an architecture."""


kinds: dict[str, Kind] = {}


def _skeletons() -> list[Path]:
    """The folders of kernel skeletons: in a source tree beside the package, else installed with the extension (there with what
    ``ffi`` has for kernels)."""
    tree = Path(__file__).parents[3] / "cuda"
    root = tree if (tree / "kernels").is_dir() else Path(_cpu.__file__).parent / "cuda"
    return [root / "kernels", root / "plans", tree.parent / "ffi"]


skeleton_folders: list[Path] = _skeletons()
"""Where ``#include`` lines find their files; the first that has one."""

_lock = threading.Lock()
_known: dict[tuple[str, str, str], nvrtc.Compiled] = {}


@functools.lru_cache(maxsize=256)
def source(spec: KernelSpec) -> str:
    """The kernels of a spec as one text of CUDA C++."""
    return cuda_source.expanded(kinds[spec.kind].source(spec), skeleton_folders)


def kernels(spec: KernelSpec) -> list[str]:
    """The names of a spec's kernels, those that its calls may launch."""
    return cuda_source.launched(spec, cuda_source.kernels_of(source(spec)))


def cubin(spec: KernelSpec, arch: str, kernel: str) -> nvrtc.Compiled:
    """One of a spec's kernels for an architecture. Raises ``nvrtc.Unavailable`` and what NVRTC has to say."""
    key = (spec.text, arch, kernel)
    with _lock:
        known = _known.get(key)
    if known is not None:
        return known
    text = cuda_source.only(source(spec), kernel)
    name = kernel_cache.name_of("cubin", text, arch, nvrtc.version(), repr(sorted(nvrtc.OPTIONS.items())))
    found = kernel_cache.read(name)
    if found is not None:
        fresh = nvrtc.Compiled(found[0], found[1].decode())
    else:
        fresh = _without_spills(text, arch)
        kernel_cache.write(name, [fresh.image, fresh.log.encode()])
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


def image(text: str, arch: str, kernel: str) -> bytes:
    """A kernel's cubin, for the launcher."""
    nvrtc.check_usable(arch)
    return cubin(parse(text), arch, kernel).image


def describe(text: str, arch: str) -> dict[str, Any]:
    """What the launcher has to know of a spec."""
    spec = parse(text)
    return described(spec, nvrtc.number_of(arch)) | {"key": spec.key}


@functools.lru_cache(maxsize=256)
def _described(spec: KernelSpec, arch: int) -> dict[str, Any]:
    return kinds[spec.kind].described(spec, arch)


def described(spec: KernelSpec, arch: int) -> dict[str, Any]:
    """What the launcher has to know of a spec on an architecture (90 for "sm_90")."""
    return dict(_described(spec, arch))


def forget() -> None:
    """The next call finds or compiles its kernels anew."""
    with _lock:
        _known.clear()
    source.cache_clear()
    _described.cache_clear()
