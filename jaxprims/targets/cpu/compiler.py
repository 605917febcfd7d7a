"""From a spec to an entry in the C++ kernel table.

Lowering calls :func:`compiled` so that errors show when a function is compiled. The handlers call :func:`compile_text`, by the
spec's text alone, when an executable came from another process (``jax.export``, the persistent compilation cache).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from llvmlite import ir

from ... import _cpu
from ...specs.kernel import KernelSpec, parse
from .llvm import engine as llvm_engine


class Kernels(Protocol):
    """What is asked of a kind of spec. ``table``: the name of its kernel table (``cpu/kernel_table.h``)."""

    table: str

    def described(self, spec: Any) -> dict[str, Any]:
        """What drivers have to know of a spec."""

    def names(self, spec: Any, variant: int) -> list[str]:
        """The functions of a variant."""

    def generate(self, spec: Any, variant: int, vector_bytes: int) -> ir.Module:
        """A module with these functions."""


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
