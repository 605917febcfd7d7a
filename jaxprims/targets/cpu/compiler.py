"""From a spec to an entry in the C++ kernel table.

Lowering calls :func:`compiled` so that errors show when a function is compiled. The handlers call :func:`compile_text`, by the
spec's text alone, when an executable came from another process (``jax.export``, the persistent compilation cache).
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from ... import _cpu
from ...specs.kernel import KernelSpec, parse
from .llvm import engine as llvm_engine


@dataclasses.dataclass(frozen=True)
class Kernels:
    """What is asked of a kind of spec."""

    table: str  # the name of its kernel table (``cpu/kernel_table.h``)
    described: Callable[[Any], dict[str, Any]]  # what drivers have to know of a spec
    names: Callable[[Any, int], Sequence[str]]  # the functions of a variant
    generate: Callable[[Any, int, int], ir.Module]  # a module with these, for vectors of so many bytes


kernels: dict[str, Kernels] = {}
"""By kind of spec."""

_lock = threading.Lock()
_compiled: dict[tuple[str, int], llvm_engine.Compiled] = {}
_forgotten: list[llvm_engine.Compiled] = []  # machine code lives as long as the process: executables point to it


def compile_text(text: str, variant: int) -> None:
    """Enters the spec into the kernel table and, unless ``variant`` is -1, compiles that variant of it."""
    spec = parse(text)
    if variant >= 0:
        compiled(spec, variant)
    else:
        _enter(spec)


def compiled(spec: KernelSpec, variant: int) -> llvm_engine.Compiled:
    """The machine code of a variant, compiled if it was not."""
    _enter(spec)
    of, vector_bytes = kernels[spec.kind], llvm_engine.target().vector_bytes
    known = _machine_code((spec.text, variant), lambda: of.generate(spec, variant, vector_bytes), of.names(spec, variant))
    _cpu.add_variant(of.table, spec.key, variant, known.address)
    return known


def _enter(spec: KernelSpec) -> None:
    of = kernels[spec.kind]
    if not _cpu.enter(of.table, spec.key, spec.text, of.described(spec)):
        raise RuntimeError("two kernel specs have the same hash")


def forget() -> None:
    """The next call compiles anew."""
    with _lock:
        _forgotten.extend(_compiled.values())
        _compiled.clear()


def _machine_code(key: tuple[str, int], generate: Callable[[], ir.Module], names: Sequence[str]) -> llvm_engine.Compiled:
    """What was compiled before under ``key``, a spec's text and a variant: here, or by any process and kept on disk. Or now."""
    with _lock:
        known = _compiled.get(key)
    if known is None:
        fresh = llvm_engine.compile_cached([key[0], str(key[1])], generate, names)
        with _lock:
            known = _compiled.setdefault(key, fresh)
    return known
